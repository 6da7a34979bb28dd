//! The caller's standard descriptors: what a sandbox changes on them is put back at the end.

use std::io::{Write, stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

/// The state of standard input, output and error when it was taken.
#[derive(Debug)]
pub struct Saved {
    flags: [Option<OFlag>; 3],
}

fn with_standard<T>(mut action: impl FnMut(usize, BorrowedFd<'_>) -> T) -> [T; 3] {
    [
        action(0, stdin().as_fd()),
        action(1, stdout().as_fd()),
        action(2, stderr().as_fd()),
    ]
}

impl Saved {
    /// Takes it.
    pub fn take() -> Saved {
        Saved {
            flags: with_standard(|_, fd| fcntl(fd, FcntlArg::F_GETFL).ok().map(OFlag::from_bits_retain)),
        }
    }

    /// Puts back what has changed.
    pub fn restore(&self) {
        with_standard(|index, fd| {
            if let Some(flags) = self.flags[index] {
                let now = fcntl(fd, FcntlArg::F_GETFL).ok().map(OFlag::from_bits_retain);
                if now.is_some_and(|now| (now ^ flags).contains(OFlag::O_NONBLOCK)) {
                    let _ = fcntl(fd, FcntlArg::F_SETFL(flags));
                }
            }
        });
    }
}

/// Does something to a terminal that would stop us from the background.
pub fn without_stop<T>(action: impl FnOnce() -> T) -> T {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    let mut before = SigSet::empty();
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&stop), Some(&mut before));
    let result = action();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    result
}

/// Writes a message to standard error, unless that would have to wait: a full pipe must not hold us up.
pub fn say(message: &str) {
    let error = stderr();
    let mut ready = [PollFd::new(error.as_fd(), PollFlags::POLLOUT)];
    if matches!(poll(&mut ready, PollTimeout::from(100u8)), Ok(1)) {
        let _ = error.lock().write_all(message.as_bytes());
    }
}

/// A line of our own, as all of them look.
pub fn complain(message: &str) {
    say(&format!("sentry: {message}\n"));
}
