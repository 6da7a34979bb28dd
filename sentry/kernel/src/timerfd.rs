//! timerfd_create(2).

use std::any::Any;
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::anon;
use crate::executor::{Deadline, Executor, TimerKey};
use crate::task::Thread;
use crate::time::Clock;

const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);

/// A timer behind a descriptor.
pub struct TimerFd {
    clock: Clock,
    clock_id: i32,
    executor: Arc<Executor>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State, rank::TimerFd>,
    queue: WaitQueue,
}

/// Times in nanoseconds of the timer's clock.
#[derive(Default)]
struct State {
    /// When it expires next; none when disarmed.
    expiry: Option<u64>,
    /// 0 for a single shot.
    interval: u64,
    /// Expirations that nobody has read yet.
    ticks: u64,
    /// How it was set.
    absolute: bool,
    key: Option<TimerKey>,
}

impl State {
    /// Counts the expirations up to `now`. True if there were any.
    fn advance(&mut self, now: u64) -> bool {
        let Some(expiry) = self.expiry.filter(|&expiry| expiry <= now) else {
            return false;
        };
        #[allow(clippy::manual_checked_ops)]
        if self.interval == 0 {
            self.ticks = self.ticks.saturating_add(1);
            self.expiry = None;
        } else {
            let count = (now - expiry) / self.interval + 1;
            self.ticks = self.ticks.saturating_add(count);
            self.expiry = Some(expiry.saturating_add(count.saturating_mul(self.interval)));
        }
        true
    }

    fn remaining(&self, now: u64) -> u64 {
        // An armed timer never says 0.
        self.expiry.map_or(0, |expiry| expiry.saturating_sub(now).max(1))
    }
}

/// A new, disarmed timer; `EINVAL` for a clock that timers cannot have.
pub fn timerfd(thread: &Arc<Thread>, clock: i32, flags: u32) -> Result<Arc<File>, Errno> {
    // CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME and the two alarm clocks.
    if !matches!(clock, 0 | 1 | 7..=9) {
        return Err(Errno::EINVAL);
    }
    let clock_id = clock;
    let clock = Clock::from_id(thread, clock)?;
    clock.check_timer(thread)?;
    let ops = TimerFd {
        clock,
        clock_id,
        executor: thread.kernel().executor().clone(),
        shared: Arc::default(),
    };
    let flags = (flags & libc::O_NONBLOCK as u32) | libc::O_RDWR as u32;
    Ok(anon::file("anon_inode:[timerfd]", flags, Box::new(ops)))
}

impl TimerFd {
    /// The timer behind a file; `EINVAL` if it is something else.
    pub fn of(file: &File) -> Result<&TimerFd, Errno> {
        file.ops().as_any().downcast_ref::<TimerFd>().ok_or(Errno::EINVAL)
    }

    /// Arms it (`value` 0: disarms), in nanoseconds; the old time left and interval.
    pub fn set(&self, value: u64, interval: u64, absolute: bool) -> Result<(u64, u64), Errno> {
        let now = self.clock.now()?;
        let mut state = self.shared.state.lock();
        state.advance(now);
        let old = (state.remaining(now), state.interval);
        let expiry = if absolute { value } else { now.saturating_add(value) };
        state.expiry = (value > 0).then_some(expiry);
        state.interval = interval;
        state.ticks = 0;
        state.absolute = absolute;
        self.arm(&mut state, now);
        drop(state);
        Ok(old)
    }

    /// The time left and the interval, in nanoseconds.
    pub fn get(&self) -> Result<(u64, u64), Errno> {
        let now = self.clock.now()?;
        let mut state = self.shared.state.lock();
        state.advance(now);
        Ok((state.remaining(now), state.interval))
    }

    /// Sets the executor's timer for the next expiration. After one that nobody has read there is none: a short
    /// interval costs nothing while nobody looks.
    fn arm(&self, state: &mut State, now: u64) {
        if let Some(key) = state.key.take() {
            self.executor.timer_cancel(key);
        }
        let Some(expiry) = state.expiry else { return };
        let deadline = Deadline(Deadline::now().0.saturating_add(expiry.saturating_sub(now)));
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        state.key = Some(self.executor.timer_call(deadline, move || {
            if let Some(shared) = shared.upgrade() {
                shared.queue.wake(READABLE);
            }
        }));
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        if let Some(key) = self.shared.state.lock().key.take() {
            self.executor.timer_cancel(key);
        }
    }
}

impl FileOps for TimerFd {
    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        let out = buf.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        let now = self.clock.now()?;
        let mut state = self.shared.state.lock();
        state.advance(now);
        if state.ticks == 0 {
            // The clock may have been a little behind when the executor's timer fired, or was set back.
            if state.expiry.is_some() {
                self.arm(&mut state, now);
            }
            return Err(Errno::EAGAIN);
        }
        *out = std::mem::take(&mut state.ticks).to_ne_bytes();
        self.arm(&mut state, now);
        Ok(8)
    }

    fn poll(&self, _file: &File) -> PollEvents {
        let Ok(now) = self.clock.now() else {
            return PollEvents::empty();
        };
        let mut state = self.shared.state.lock();
        state.advance(now);
        if state.ticks > 0 {
            return READABLE;
        }
        if state.expiry.is_some() {
            self.arm(&mut state, now);
        }
        PollEvents::empty()
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.shared.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, _file: &File) -> String {
        const NANOS: u64 = 1_000_000_000;
        let (left, interval) = self.get().unwrap_or((0, 0));
        let (ticks, absolute) = {
            let state = self.shared.state.lock();
            (state.ticks, state.absolute)
        };
        format!(
            "clockid: {}\nticks: {ticks}\nsettime flags: 0{}\nit_value: ({}, {})\nit_interval: ({}, {})\n",
            self.clock_id,
            u8::from(absolute),
            left / NANOS,
            left % NANOS,
            interval / NANOS,
            interval % NANOS
        )
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expirations_are_counted() {
        let mut state = State {
            expiry: Some(100),
            interval: 10,
            ..State::default()
        };
        assert!(!state.advance(99));
        assert!(state.advance(135));
        assert_eq!((state.ticks, state.expiry, state.remaining(135)), (4, Some(140), 5));
        let mut once = State {
            expiry: Some(100),
            ..State::default()
        };
        assert!(once.advance(100));
        assert_eq!((once.ticks, once.expiry, once.remaining(200)), (1, None, 0));
    }
}
