//! The three interval timers of a process: getitimer(2), setitimer(2), alarm(2).

use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use super::{Armed, Clock, Pace, advance, next_look};
use crate::Kernel;
use crate::signal::{SigInfo, Signal, send_to_process};
use crate::task::Process;

/// Which timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalKind {
    /// Wall time, SIGALRM.
    Real,
    /// User CPU time, SIGVTALRM.
    Virtual,
    /// CPU time, SIGPROF.
    Profile,
}

impl IntervalKind {
    /// By its `ITIMER_*` number; `EINVAL` for others.
    pub fn from_number(number: u64) -> Result<IntervalKind, Errno> {
        // The kernel takes an int.
        match number as i32 {
            0 => Ok(IntervalKind::Real),
            1 => Ok(IntervalKind::Virtual),
            2 => Ok(IntervalKind::Profile),
            _ => Err(Errno::EINVAL),
        }
    }

    fn signal(self) -> Signal {
        match self {
            IntervalKind::Real => Signal::ALRM,
            IntervalKind::Virtual => Signal::VTALRM,
            IntervalKind::Profile => Signal::PROF,
        }
    }

    fn clock(self, process: &Arc<Process>) -> Clock {
        match self {
            IntervalKind::Real => Clock::Host(libc::CLOCK_MONOTONIC),
            _ => Clock::Process(Arc::downgrade(process)),
        }
    }
}

/// Time left (0: disarmed) and period (0: once), in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Interval {
    pub value: u64,
    pub period: u64,
}

#[derive(Default)]
struct Timer {
    /// When it fires next, by its clock; 0: never.
    expiry: u64,
    period: u64,
    pace: Pace,
    armed: Armed,
}

/// A process's interval timers. They last over execve(2), and a child has none.
#[derive(Default)]
pub struct IntervalTimers {
    timers: [Mutex<Timer, rank::IntervalTimer>; 3],
}

impl IntervalTimers {
    /// What is left of a timer.
    pub fn get(&self, process: &Arc<Process>, kind: IntervalKind) -> Interval {
        let now = kind.clock(process).now().unwrap_or(0);
        let timer = self.timers[kind as usize].lock();
        left(&timer, now)
    }

    /// Arms or disarms a timer; what was left of it before.
    pub fn set(&self, kernel: &Arc<Kernel>, process: &Arc<Process>, kind: IntervalKind, new: Interval) -> Interval {
        let now = kind.clock(process).now().unwrap_or(0);
        let mut timer = self.timers[kind as usize].lock();
        let old = left(&timer, now);
        if let Some(key) = timer.armed.key.take() {
            kernel.executor().timer_cancel(key);
        }
        timer.armed.generation += 1;
        timer.expiry = if new.value == 0 {
            0
        } else {
            now.saturating_add(new.value)
        };
        timer.period = new.period;
        if new.value != 0 {
            arm(kernel, process, kind, &mut timer, now);
        }
        old
    }
}

fn left(timer: &Timer, now: u64) -> Interval {
    // An armed timer never shows 0, even if it is due.
    let value = if timer.expiry == 0 {
        0
    } else {
        timer.expiry.saturating_sub(now).max(1)
    };
    Interval {
        value,
        period: timer.period,
    }
}

fn arm(kernel: &Arc<Kernel>, process: &Arc<Process>, kind: IntervalKind, timer: &mut Timer, now: u64) {
    let at = next_look(&kind.clock(process), now, timer.expiry);
    let (weak_kernel, weak, generation) = (Arc::downgrade(kernel), Arc::downgrade(process), timer.armed.generation);
    timer.armed.key = Some(
        kernel
            .executor()
            .timer_call(at, move || fire(&weak_kernel, &weak, kind, generation)),
    );
}

fn fire(kernel: &Weak<Kernel>, process: &Weak<Process>, kind: IntervalKind, generation: u64) {
    let (Some(kernel), Some(process)) = (kernel.upgrade(), process.upgrade()) else {
        return;
    };
    if process.is_zombie() {
        return;
    }
    let Ok(now) = kind.clock(&process).now() else { return };
    let due = {
        let mut timer = process.timers.intervals.timers[kind as usize].lock();
        if timer.armed.generation != generation || timer.expiry == 0 {
            return;
        }
        timer.armed.key = None;
        let due = now >= timer.expiry;
        if due {
            timer.expiry = match timer.period {
                0 => 0,
                period => {
                    let earliest = now.saturating_add(timer.pace.nanos());
                    advance(timer.expiry, period, now).0.max(earliest)
                }
            };
        }
        if timer.expiry != 0 {
            arm(&kernel, &process, kind, &mut timer, now);
        }
        due
    };
    if due {
        let pending = process.signals.lock().queue.set().has(kind.signal());
        process.timers.intervals.timers[kind as usize]
            .lock()
            .pace
            .fired(pending);
        send_to_process(&kernel, &process, SigInfo::kernel(kind.signal()));
    }
}
