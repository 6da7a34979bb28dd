//! Locks of open file descriptions on host files: fcntl(2) with `F_OFD_*`, and flock(2). None of these waits.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::fcntl::{FcntlArg, FlockArg, fcntl};
use sentry_abi::Errno;

/// A range of bytes that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Range {
    pub exclusive: bool,
    pub start: u64,
    /// The last byte, inclusive; `i64::MAX` for "to the end".
    pub end: u64,
    /// The process that has it as this process sees it; -1 if a description has it, 0 if it is not to be seen.
    pub pid: i32,
}

fn description(kind: libc::c_int, start: u64, end: u64) -> libc::flock {
    let (start, end) = (start.min(i64::MAX as u64), end.min(i64::MAX as u64));
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as i64,
        l_len: if end == i64::MAX as u64 {
            0
        } else {
            end.saturating_sub(start) as i64 + 1
        },
        l_pid: 0,
    }
}

fn kind(exclusive: bool) -> libc::c_int {
    if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw(error as i32)
}

/// Locks `start..=end` (`Some(exclusive)`) or unlocks it, for the open file description.
///
/// # Errors
/// `EAGAIN` if somebody else's lock is in the way; else those of fcntl_locking(2).
pub fn set(fd: BorrowedFd<'_>, exclusive: Option<bool>, start: u64, end: u64) -> Result<(), Errno> {
    let lock = description(exclusive.map_or(libc::F_UNLCK, kind), start, end);
    match fcntl(fd, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EACCES) => Err(Errno::EAGAIN),
        Err(error) => Err(errno(error)),
    }
}

/// A lock of somebody else that is in the way of such a one.
///
/// # Errors
/// Those of fcntl_locking(2).
pub fn test(fd: BorrowedFd<'_>, exclusive: bool, start: u64, end: u64) -> Result<Option<Range>, Errno> {
    let mut lock = description(kind(exclusive), start, end);
    fcntl(fd, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(errno)?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = u64::try_from(lock.l_start).unwrap_or(0);
    Ok(Some(Range {
        exclusive: i32::from(lock.l_type) == libc::F_WRLCK,
        start,
        end: match u64::try_from(lock.l_len) {
            Ok(len @ 1..) => start.saturating_add(len - 1),
            _ => i64::MAX as u64,
        },
        pid: lock.l_pid,
    }))
}

/// flock(2): `Some(exclusive)` locks, `None` unlocks.
///
/// # Errors
/// `EAGAIN` if somebody else's lock is in the way; else those of flock(2).
pub fn flock(fd: BorrowedFd<'_>, exclusive: Option<bool>) -> Result<(), Errno> {
    let operation = match exclusive {
        Some(true) => FlockArg::LockExclusiveNonblock,
        Some(false) => FlockArg::LockSharedNonblock,
        None => FlockArg::Unlock,
    };
    // What nix offers in its place owns the descriptor.
    #[allow(deprecated)]
    nix::fcntl::flock(fd.as_raw_fd(), operation).map_err(errno)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_descriptions_are_in_each_others_way() {
        let file = crate::memory_file::MemoryFile::new(c"locked").unwrap();
        let again = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let other = std::fs::File::options().read(true).write(true).open(again).unwrap();
        let (one, two) = (file.as_fd(), other.as_fd());
        set(one, Some(true), 10, 19).unwrap();
        assert_eq!(set(two, Some(false), 19, u64::MAX), Err(Errno::EAGAIN));
        let found = test(two, false, 0, u64::MAX).unwrap().unwrap();
        assert_eq!((found.exclusive, found.start, found.end, found.pid), (true, 10, 19, -1));
        set(one, None, 10, 19).unwrap();
        assert_eq!(test(two, true, 0, u64::MAX), Ok(None));
        flock(one, Some(false)).unwrap();
        flock(two, Some(false)).unwrap();
        assert_eq!(flock(two, Some(true)), Err(Errno::EAGAIN));
        flock(one, None).unwrap();
        flock(two, Some(true)).unwrap();
    }
}
