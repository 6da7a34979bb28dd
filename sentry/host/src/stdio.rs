//! Reading, writing and waiting on descriptors that others share: the caller's standard descriptors.

use std::os::fd::{AsRawFd, BorrowedFd};

use sentry_abi::Errno;
use sentry_abi::tty::Winsize;

fn last() -> Errno {
    std::io::Error::last_os_error().into()
}

fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last())
}

/// read(2); blocks as the descriptor does.
pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    count(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
}

/// write(2); blocks as the descriptor does.
pub fn write(fd: BorrowedFd<'_>, data: &[u8]) -> Result<usize, Errno> {
    // SAFETY: `data` is valid for reading.
    count(unsafe { libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len()) })
}

/// pread(2).
pub fn pread(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    nix::sys::uio::pread(fd, buf, offset).map_err(|errno| Errno::from_raw(errno as i32))
}

/// pwrite(2).
pub fn pwrite(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    nix::sys::uio::pwrite(fd, data, offset).map_err(|errno| Errno::from_raw(errno as i32))
}

/// preadv2(2) at the file's own position with `RWF_NOWAIT`: `EAGAIN` instead of waiting, `EOPNOTSUPP` from files
/// that cannot say (terminals).
pub fn read_now(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    let vector = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: one vector that describes `buf`.
    count(unsafe { libc::preadv2(fd.as_raw_fd(), &raw const vector, 1, -1, libc::RWF_NOWAIT) })
}

/// pwritev2(2) at the file's own position with `RWF_NOWAIT`, as [`read_now`].
pub fn write_now(fd: BorrowedFd<'_>, data: &[u8]) -> Result<usize, Errno> {
    let vector = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: one vector that describes `data`, which is only read.
    count(unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const vector, 1, -1, libc::RWF_NOWAIT) })
}

/// poll(2) without waiting: `POLL*` bits of `events` that are ready, `POLLERR` and `POLLHUP`.
pub fn poll_now(fd: BorrowedFd<'_>, events: i16) -> i16 {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, valid for the call.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    if ready > 0 { entry.revents } else { 0 }
}

/// lseek(2).
pub fn seek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Result<u64, Errno> {
    // SAFETY: no memory is passed.
    u64::try_from(unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) }).map_err(|_| last())
}

/// The status flags (`F_GETFL`).
pub fn status_flags(fd: BorrowedFd<'_>) -> Result<i32, Errno> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 { Err(last()) } else { Ok(flags) }
}

/// A terminal's size.
pub fn get_winsize(fd: BorrowedFd<'_>) -> Result<Winsize, Errno> {
    let mut size = Winsize::default();
    // SAFETY: TIOCGWINSZ writes one `struct winsize`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    if result < 0 { Err(last()) } else { Ok(size) }
}

/// How many bytes can be read (`FIONREAD`).
pub fn readable_bytes(fd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut bytes = 0i32;
    // SAFETY: FIONREAD writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if result < 0 { Err(last()) } else { Ok(bytes) }
}
