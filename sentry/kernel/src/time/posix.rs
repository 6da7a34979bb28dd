//! POSIX timers: timer_create(2) and its kin.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use super::{Armed, Clock, Interval, Pace, advance, next_look};
use crate::Kernel;
use crate::signal::{SigInfo, Signal, SignalQueue, send_to_process, send_to_thread};
use crate::task::{Process, Thread};

/// The largest overrun count that is told (`DELAYTIMER_MAX`).
const OVERRUN_MAX: u64 = i32::MAX as u64;

/// How many timers a process may have, whatever its limit: root can raise its own.
const MOST: u64 = 1 << 15;

/// What happens when a timer expires.
#[derive(Clone)]
pub enum Notify {
    /// Nothing (`SIGEV_NONE`).
    None,
    /// A signal to the process.
    Process(Signal),
    /// A signal to a thread (`SIGEV_THREAD_ID`).
    Thread(Signal, Weak<Thread>),
}

struct Timer {
    clock: Clock,
    notify: Notify,
    value: u64,
    expiry: u64,
    period: u64,
    pace: Pace,
    armed: Armed,
    /// Overruns of the signal that is pending, or was delivered last.
    overrun: u64,
    /// Those of the one before.
    overrun_before: u64,
}

#[derive(Default)]
struct Table {
    timers: BTreeMap<i32, Timer>,
    next: i32,
}

/// A process's timers. They end at execve(2) ([`PosixTimers::clear`]), and a child has none.
#[derive(Default)]
pub struct PosixTimers {
    table: Mutex<Table, rank::PosixTimers>,
}

impl PosixTimers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.table.lock().timers.len()
    }

    /// Makes a disarmed timer; `EAGAIN` beyond `limit` timers. `value` is `sigev_value`; without one it is the id.
    pub fn create(&self, clock: Clock, notify: Notify, value: Option<u64>, limit: u64) -> Result<i32, Errno> {
        let mut table = self.table.lock();
        if table.timers.len() as u64 >= limit.min(MOST) {
            return Err(Errno::EAGAIN);
        }
        let mut id = table.next;
        while table.timers.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(0);
        }
        table.next = id.checked_add(1).unwrap_or(0);
        let value = value.unwrap_or(id as u64);
        let armed = Armed::default();
        let timer = Timer {
            clock,
            notify,
            value,
            expiry: 0,
            period: 0,
            pace: Pace::default(),
            armed,
            overrun: 0,
            overrun_before: 0,
        };
        table.timers.insert(id, timer);
        Ok(id)
    }

    /// Removes a timer; a signal of it that is pending stays. `EINVAL` if there is none.
    pub fn delete(&self, kernel: &Arc<Kernel>, id: i32) -> Result<(), Errno> {
        let timer = self.table.lock().timers.remove(&id).ok_or(Errno::EINVAL)?;
        if let Some(key) = timer.armed.key {
            kernel.executor().timer_cancel(key);
        }
        Ok(())
    }

    /// Removes all timers.
    pub fn clear(&self, kernel: &Arc<Kernel>) {
        let timers = std::mem::take(&mut *self.table.lock()).timers;
        for key in timers.into_values().filter_map(|timer| timer.armed.key) {
            kernel.executor().timer_cancel(key);
        }
    }

    /// What is left of a timer; `EINVAL` if there is none.
    pub fn get(&self, id: i32) -> Result<Interval, Errno> {
        let table = self.table.lock();
        let timer = table.timers.get(&id).ok_or(Errno::EINVAL)?;
        Ok(left(timer, timer.clock.now().unwrap_or(0)))
    }

    /// How many expirations the last signal stands for, less one; `EINVAL` if there is no such timer.
    pub fn overrun(&self, process: &Process, id: i32) -> Result<i32, Errno> {
        let (notify, current, before) = {
            let table = self.table.lock();
            let timer = table.timers.get(&id).ok_or(Errno::EINVAL)?;
            (timer.notify.clone(), timer.overrun, timer.overrun_before)
        };
        let pending = change_pending(process, &notify, |queue| queue.update(|info| is_of(info, id)));
        Ok(if pending { before } else { current }.min(OVERRUN_MAX) as i32)
    }

    /// Arms a timer (`value` 0: disarms it); what was left of it before. With `absolute`, `new.value` is a time of
    /// its clock.
    pub fn set(
        &self,
        kernel: &Arc<Kernel>,
        process: &Arc<Process>,
        id: i32,
        new: Interval,
        absolute: bool,
    ) -> Result<Interval, Errno> {
        let mut table = self.table.lock();
        let timer = table.timers.get_mut(&id).ok_or(Errno::EINVAL)?;
        let now = timer.clock.now()?;
        let old = left(timer, now);
        if let Some(key) = timer.armed.key.take() {
            kernel.executor().timer_cancel(key);
        }
        timer.armed.generation += 1;
        timer.overrun = 0;
        timer.overrun_before = 0;
        timer.period = new.period;
        timer.expiry = match (new.value, absolute) {
            (0, _) => 0,
            (value, true) => value,
            (value, false) => now.saturating_add(value),
        };
        if timer.expiry != 0 && !matches!(timer.notify, Notify::None) {
            arm(kernel, process, id, timer, now);
        }
        Ok(old)
    }

    /// All timers for /proc/PID/timers: id, signal, thread if it goes to one.
    pub fn list(&self) -> Vec<(i32, Option<Signal>)> {
        let table = self.table.lock();
        let signal = |timer: &Timer| match timer.notify {
            Notify::None => None,
            Notify::Process(signal) | Notify::Thread(signal, _) => Some(signal),
        };
        table.timers.iter().map(|(&id, timer)| (id, signal(timer))).collect()
    }
}

fn left(timer: &Timer, now: u64) -> Interval {
    let mut expiry = timer.expiry;
    // A timer that tells nobody is not moved on when it expires.
    if matches!(timer.notify, Notify::None) && expiry != 0 && expiry <= now {
        expiry = if timer.period == 0 {
            0
        } else {
            advance(expiry, timer.period, now).0
        };
    }
    let value = if expiry == 0 {
        0
    } else {
        expiry.saturating_sub(now).max(1)
    };
    Interval {
        value,
        period: timer.period,
    }
}

fn arm(kernel: &Arc<Kernel>, process: &Arc<Process>, id: i32, timer: &mut Timer, now: u64) {
    let at = next_look(&timer.clock, now, timer.expiry);
    let (weak_kernel, weak, generation) = (Arc::downgrade(kernel), Arc::downgrade(process), timer.armed.generation);
    timer.armed.key = Some(
        kernel
            .executor()
            .timer_call(at, move || fire(&weak_kernel, &weak, id, generation)),
    );
}

fn is_of(info: &SigInfo, id: i32) -> bool {
    info.code == SigInfo::SI_TIMER && info.word(16) == id as u32
}

/// Runs `change` on the queue that a timer's signals go to.
fn change_pending(process: &Process, notify: &Notify, change: impl FnOnce(&mut SignalQueue) -> bool) -> bool {
    match notify {
        Notify::None => false,
        Notify::Process(_) => change(&mut process.signals.lock().queue),
        Notify::Thread(_, thread) => thread
            .upgrade()
            .is_some_and(|thread| change(&mut thread.signals.lock().queue)),
    }
}

fn fire(kernel: &Weak<Kernel>, process: &Weak<Process>, id: i32, generation: u64) {
    let (Some(kernel), Some(process)) = (kernel.upgrade(), process.upgrade()) else {
        return;
    };
    if process.is_zombie() {
        return;
    }
    // The timer's own lock is not held while signal locks are taken.
    let (notify, value, expired, overrun) = {
        let mut table = process.timers.posix.table.lock();
        // All timers of a process together fire no more often than one may.
        let timers = table.timers.len() as u64;
        let Some(timer) = table.timers.get_mut(&id) else { return };
        if timer.armed.generation != generation || timer.expiry == 0 {
            return;
        }
        timer.armed.key = None;
        let Ok(now) = timer.clock.now() else { return };
        let earliest = now.saturating_add(timer.pace.nanos().saturating_mul(timers));
        let mut expired = 0;
        if now >= timer.expiry {
            expired = 1;
            if timer.period == 0 {
                timer.expiry = 0;
            } else {
                let (next, count) = advance(timer.expiry, timer.period, now);
                expired = count;
                timer.expiry = next;
                if next < earliest {
                    let (next, more) = advance(next, timer.period, earliest);
                    expired = expired.saturating_add(more);
                    timer.expiry = next;
                }
            }
        }
        if timer.expiry != 0 {
            arm(&kernel, &process, id, timer, now);
        }
        (timer.notify.clone(), timer.value, expired, timer.overrun)
    };
    if expired == 0 {
        return;
    }
    let (Notify::Process(signal) | Notify::Thread(signal, _)) = notify else {
        return;
    };
    let info = |overrun: u64| SigInfo::timer(signal, id, overrun.min(OVERRUN_MAX) as i32, value);
    let more = overrun.saturating_add(expired);
    let pending = change_pending(&process, &notify, |queue| {
        queue.update(|entry| {
            let found = is_of(entry, id);
            if found {
                *entry = info(more);
            }
            found
        })
    });
    if let Some(timer) = process.timers.posix.table.lock().timers.get_mut(&id) {
        if !pending {
            timer.overrun_before = timer.overrun;
        }
        timer.overrun = if pending { more } else { expired - 1 };
        timer.pace.fired(pending);
    }
    if pending {
        return;
    }
    match notify {
        Notify::None => {}
        Notify::Process(_) => send_to_process(&kernel, &process, info(expired - 1)),
        Notify::Thread(_, thread) => {
            if let Some(thread) = thread.upgrade() {
                send_to_thread(&thread, info(expired - 1));
            }
        }
    }
}
