//! How the tracer hears that a child has changed its state: by a descriptor that it can wait for.
//!
//! SIGCHLD is blocked in every thread that descends from the one that called [`ChildSignal::watch`], so it stays
//! pending for the signalfd. A program that embeds this crate may have older threads, which do not block it; whichever
//! of them gets the signal runs a handler that rings the tracer's doorbell instead. So no change is lost, and the
//! tracer need not look on its own.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The doorbell that the handler rings; -1 before there is one.
static DOORBELL: AtomicI32 = AtomicI32::new(-1);

extern "C" fn ring(_signal: i32) {
    let one = 1u64;
    // SAFETY: `write` is async-signal-safe and reads eight bytes of `one`; errno, which the interrupted code may be
    // about to read, is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(DOORBELL.load(Ordering::Relaxed), (&raw const one).cast(), 8);
        *errno = before;
    }
}

/// SIGCHLD as a descriptor.
pub(crate) struct ChildSignal {
    signals: SignalFd,
}

impl ChildSignal {
    /// Blocks SIGCHLD in this thread and those it will start. Where a thread does not block it, `doorbell` (an
    /// eventfd that is never closed) rings.
    pub fn watch(doorbell: &OwnedFd) -> nix::Result<ChildSignal> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        set.thread_block()?;
        DOORBELL.store(doorbell.as_raw_fd(), Ordering::Relaxed);
        // Without SA_NOCLDSTOP: a stop is what the tracer waits for.
        let action = SigAction::new(SigHandler::Handler(ring), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler makes async-signal-safe calls only.
        unsafe { sigaction(Signal::SIGCHLD, &action) }?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(ChildSignal { signals })
    }

    /// Takes the signal if it is pending. Children are to be looked at afterwards.
    pub fn drain(&self) {
        loop {
            match self.signals.read_signal() {
                Ok(Some(_)) | Err(Errno::EINTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl AsFd for ChildSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}
