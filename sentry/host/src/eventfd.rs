//! eventfd(2), as doorbells and flags between threads.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use sentry_abi::Errno;

/// A new non-blocking, close-on-exec eventfd with counter 0.
pub fn new() -> Result<OwnedFd, Errno> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to the counter. `EAGAIN` when it is full.
pub fn signal(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is valid for eight bytes.
    let written = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    if written < 0 {
        Err(std::io::Error::last_os_error().into())
    } else {
        Ok(())
    }
}

/// Takes the counter's value and sets it to 0. `EAGAIN` if it is 0.
pub fn drain(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut value = [0u8; 8];
    // SAFETY: `value` is valid for eight bytes.
    let read = unsafe { libc::read(fd.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
    if read < 0 {
        Err(std::io::Error::last_os_error().into())
    } else {
        Ok(u64::from_ne_bytes(value))
    }
}
