//! epoll(7) for the executor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sentry_abi::Errno;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u32);

impl Interest {
    /// Reading is possible.
    pub const READ: Interest = Interest(libc::EPOLLIN as u32);
    /// Writing is possible.
    pub const WRITE: Interest = Interest(libc::EPOLLOUT as u32);
    /// There is an exceptional condition.
    pub const PRIORITY: Interest = Interest(libc::EPOLLPRI as u32);
    /// The peer closed its writing half.
    pub const READ_HANGUP: Interest = Interest(libc::EPOLLRDHUP as u32);
    /// Report changes only.
    pub const EDGE: Interest = Interest(libc::EPOLLET as u32);

    /// Both.
    #[must_use]
    pub fn and(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// One event.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Event(libc::epoll_event);

impl Default for Event {
    fn default() -> Self {
        Event(libc::epoll_event { events: 0, u64: 0 })
    }
}

impl Event {
    /// What the descriptor was registered with.
    pub fn token(&self) -> u64 {
        self.0.u64
    }

    /// `EPOLL*` bits.
    pub fn readiness(&self) -> u32 {
        self.0.events
    }
}

/// An epoll set.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// Set once the host has answered that it has no epoll_pwait2(2).
static NO_PWAIT2: AtomicBool = AtomicBool::new(false);

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Epoll, Errno> {
        // SAFETY: no memory is passed; the descriptor returned is ours alone.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    /// Adds a descriptor. `EPERM` if its kind cannot be waited for, `EEXIST` if it is there already.
    pub fn add(&self, fd: BorrowedFd<'_>, interest: Interest, token: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: interest.0,
            u64: token,
        };
        // SAFETY: `event` is valid for the call.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
        if result < 0 {
            Err(std::io::Error::last_os_error().into())
        } else {
            Ok(())
        }
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: EPOLL_CTL_DEL takes no event.
        let result = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd.as_raw_fd(),
                std::ptr::null_mut(),
            )
        };
        if result < 0 {
            Err(std::io::Error::last_os_error().into())
        } else {
            Ok(())
        }
    }

    /// Waits until something is ready or `timeout` (none: for ever) has passed; the number of events. `EINTR`
    /// when a host signal came.
    pub fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> Result<usize, Errno> {
        let capacity = i32::try_from(events.len()).unwrap_or(i32::MAX);
        let exact = timeout.is_some_and(|timeout| !timeout.is_zero());
        if exact && !NO_PWAIT2.load(Ordering::Relaxed) {
            match self.pwait2(events, capacity, timeout.unwrap_or_default()) {
                Err(Errno::ENOSYS | Errno::EPERM) => NO_PWAIT2.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        let millis = match timeout {
            None => -1,
            // Up, so that the caller does not come back before its time again and again.
            Some(timeout) => i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        // SAFETY: `events` is valid for `capacity` entries, of which `Event` is a transparent form.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), capacity, millis) };
        usize::try_from(count).map_err(|_| std::io::Error::last_os_error().into())
    }

    fn pwait2(&self, events: &mut [Event], capacity: i32, timeout: Duration) -> Result<usize, Errno> {
        let time = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: `events` is valid for `capacity` entries and `time` for the call; there is no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.as_mut_ptr().cast::<libc::epoll_event>(),
                capacity,
                &raw const time,
                std::ptr::null::<libc::sigset_t>(),
                8usize,
            )
        };
        usize::try_from(count).map_err(|_| std::io::Error::last_os_error().into())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
