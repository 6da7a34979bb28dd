//! Clock ids, and what they say.

use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_abi::time::NANOS;

use super::cpu;
use crate::task::{Process, Thread};

/// The resolution of the coarse clocks: a tick of the usual host kernel (250 Hz), in nanoseconds.
const COARSE: u64 = 4_000_000;
/// `CLOCK_REALTIME_ALARM` and `CLOCK_BOOTTIME_ALARM`.
const ALARMS: [i32; 2] = [8, 9];

/// A clock that a guest can name.
#[derive(Clone)]
pub enum Clock {
    /// One of the host's, by id.
    Host(i32),
    /// CPU time of a process.
    Process(Weak<Process>),
    /// CPU time of a thread.
    Thread(Weak<Thread>),
}

impl Clock {
    /// The clock of an id (clock_getres(2), clock_getcpuclockid(3), pthread_getcpuclockid(3)); `EINVAL` if there
    /// is none.
    pub fn from_id(thread: &Arc<Thread>, id: i32) -> Result<Clock, Errno> {
        match id {
            libc::CLOCK_PROCESS_CPUTIME_ID => Ok(Clock::Process(Arc::downgrade(thread.process()))),
            libc::CLOCK_THREAD_CPUTIME_ID => Ok(Clock::Thread(Arc::downgrade(thread))),
            0 | 1 | 4..=9 | libc::CLOCK_TAI => Ok(Clock::Host(id)),
            i32::MIN..0 => Clock::from_cpu_id(thread, id),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Ids made of a process or thread id: `~pid << 3`, 4 for a thread, and the kind (the kernel's `posix-timers.h`).
    fn from_cpu_id(thread: &Arc<Thread>, id: i32) -> Result<Clock, Errno> {
        let target = !(id >> 3);
        if id & 3 == 3 {
            return Err(Errno::EINVAL);
        }
        if id & 4 != 0 {
            let target = if target == 0 { thread.tid() } else { target };
            let found = thread
                .kernel()
                .thread(target)
                .filter(|found| Arc::ptr_eq(found.process(), thread.process()));
            return found
                .map(|found| Clock::Thread(Arc::downgrade(&found)))
                .ok_or(Errno::EINVAL);
        }
        let target = if target == 0 || target == thread.tid() {
            thread.pid()
        } else {
            target
        };
        let found = thread.kernel().process(target).ok_or(Errno::EINVAL)?;
        Ok(Clock::Process(Arc::downgrade(&found)))
    }

    /// True for CPU time.
    pub fn is_cpu(&self) -> bool {
        !matches!(self, Clock::Host(_))
    }

    /// True if the clock's time is the time of day, which someone may set.
    pub fn is_realtime(&self) -> bool {
        matches!(self, Clock::Host(libc::CLOCK_REALTIME | 8 | libc::CLOCK_TAI))
    }

    /// Its present time in nanoseconds; `EINVAL` once its process or thread is gone.
    pub fn now(&self) -> Result<u64, Errno> {
        match self {
            Clock::Host(id) => {
                // The alarm clocks tell the same time; reading them may be refused.
                let id = match *id {
                    8 => libc::CLOCK_REALTIME,
                    9 => libc::CLOCK_BOOTTIME,
                    id => id,
                };
                let (sec, nsec) = sentry_host::clock::get(id).ok_or(Errno::EINVAL)?;
                Ok(u64::try_from(sec)
                    .unwrap_or(0)
                    .saturating_mul(NANOS)
                    .saturating_add(nsec.into()))
            }
            Clock::Process(process) => Ok(cpu::process_nanos(&*process.upgrade().ok_or(Errno::EINVAL)?)),
            Clock::Thread(thread) => Ok(cpu::thread_nanos(&*thread.upgrade().ok_or(Errno::EINVAL)?)),
        }
    }

    /// Its resolution in nanoseconds.
    pub fn resolution(&self) -> u64 {
        match self {
            Clock::Host(libc::CLOCK_REALTIME_COARSE | libc::CLOCK_MONOTONIC_COARSE) => COARSE,
            _ => 1,
        }
    }

    /// `EOPNOTSUPP` if no sleep and no timer can use it, as Linux has it; `EINVAL` for the CPU clock of the calling
    /// thread, on which nobody can sleep.
    pub fn check_sleep(&self, thread: &Arc<Thread>) -> Result<(), Errno> {
        match self {
            Clock::Host(4..=6) => Err(Errno::EOPNOTSUPP),
            Clock::Thread(of) if std::ptr::eq(of.as_ptr(), Arc::as_ptr(thread)) => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// `EOPNOTSUPP` if timer_create(2) cannot use it, `EPERM` if it may not.
    pub fn check_timer(&self, thread: &Arc<Thread>) -> Result<(), Errno> {
        match self {
            Clock::Host(4..=6) => Err(Errno::EOPNOTSUPP),
            Clock::Host(id) if ALARMS.contains(id) => thread.cred().require(sentry_vfs::cred::Cap::WAKE_ALARM),
            _ => Ok(()),
        }
    }
}
