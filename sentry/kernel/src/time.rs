//! Clocks of the guests, CPU time, and per-process timers.
//!
//! Wall clocks are the host's. CPU time is what the host counts for the guest's own host process: calls that the
//! sentry works on are not in it.

mod clock;
pub mod cpu;
mod interval;
pub mod limit;
mod posix;

pub use clock::Clock;
pub use interval::{Interval, IntervalKind, IntervalTimers};
pub use posix::{Notify, PosixTimers};

use std::sync::atomic::AtomicU64;

use sentry_lock::{Mutex, rank};

use crate::executor::{Deadline, TimerKey};

/// Clock ticks in a second (`AT_CLKTCK`, times(2)).
pub const TICKS_PER_SECOND: u64 = 100;
/// Nanoseconds of one clock tick.
pub const NANOS_PER_TICK: u64 = sentry_abi::time::NANOS / TICKS_PER_SECOND;

/// A repeating timer fires at most this often, so that it cannot keep a worker busy; what falls between counts as
/// overrun.
const MIN_PERIOD: u64 = 20_000;
/// And at least this often, however little the guest keeps up with its signals ([`Pace`]): on a crowded machine it may get
/// the processor every ten milliseconds only.
const MAX_PERIOD: u64 = 100_000_000;
/// CPU clocks are looked at no more often than this while a timer on them is armed.
const CPU_POLL: u64 = 2_000_000;

/// Interval and POSIX timers of a process.
///
/// Their locks are taken before any lock of a process or thread (a CPU clock asks those), never while one is held.
#[derive(Default)]
pub struct ProcessTimers {
    /// getitimer(2).
    pub intervals: IntervalTimers,
    /// timer_create(2).
    pub posix: PosixTimers,
    /// The next look at `RLIMIT_CPU`.
    cpu_limit: Mutex<Armed, rank::CpuLimit>,
    /// CPU time of the host process that is not this process's ([`cpu::share_space`]), in nanoseconds.
    shared_nanos: AtomicU64,
}

/// Where an armed timer hangs in the executor.
#[derive(Clone, Copy, Debug, Default)]
struct Armed {
    key: Option<TimerKey>,
    /// Counts arms and disarms, so that a shot already on its way knows that it is late.
    generation: u64,
}

/// How often a repeating timer may fire: less often where its last signal is still pending when the next one is due.
/// Otherwise a guest that takes longer for a signal than the timer's period would never get beyond its handler.
#[derive(Clone, Copy, Debug)]
struct Pace(u64);

impl Default for Pace {
    fn default() -> Pace {
        Pace(MIN_PERIOD)
    }
}

impl Pace {
    /// The time until the timer may fire again, in nanoseconds.
    fn nanos(self) -> u64 {
        self.0
    }

    /// The timer has fired; `pending`: the signal before was not taken yet.
    fn fired(&mut self, pending: bool) {
        let next = if pending { self.0 * 2 } else { self.0 - self.0 / 8 };
        self.0 = next.clamp(MIN_PERIOD, MAX_PERIOD);
    }
}

/// When to look at a timer again: `expiry` and the answer are nanoseconds, of `clock` and of the host's monotonic
/// clock.
fn next_look(clock: &Clock, now: u64, expiry: u64) -> Deadline {
    let left = expiry.saturating_sub(now);
    let left = if clock.is_cpu() { left.max(CPU_POLL) } else { left };
    Deadline(Deadline::now().0.saturating_add(left))
}

/// The expiry after `expiry` that is not yet past, and how many lie before it.
fn advance(expiry: u64, interval: u64, now: u64) -> (u64, u64) {
    let interval = interval.max(1);
    let earliest = now.saturating_add(1);
    let count = if expiry >= earliest {
        1
    } else {
        (earliest - expiry).div_ceil(interval)
    };
    (expiry.saturating_add(count.saturating_mul(interval)), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace() {
        let mut pace = Pace::default();
        pace.fired(false);
        assert_eq!(pace.nanos(), MIN_PERIOD);
        (0..100).for_each(|_| pace.fired(true));
        assert_eq!(pace.nanos(), MAX_PERIOD);
        pace.fired(false);
        assert!(pace.nanos() < MAX_PERIOD);
        (0..100).for_each(|_| pace.fired(false));
        assert_eq!(pace.nanos(), MIN_PERIOD);
    }

    #[test]
    fn advancing() {
        assert_eq!(advance(100, 10, 100), (110, 1));
        assert_eq!(advance(100, 10, 109), (110, 1));
        assert_eq!(advance(100, 10, 110), (120, 2));
        assert_eq!(advance(100, 10, 135), (140, 4));
        assert_eq!(advance(100, 0, 100), (101, 1));
        assert_eq!(advance(u64::MAX, u64::MAX, u64::MAX).0, u64::MAX);
    }
}
