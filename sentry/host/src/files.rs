//! Host calls on files that nix does not offer: statx(2), getdents64(2), changes through an `O_PATH` descriptor,
//! and extended attributes by descriptor.

use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn check(result: libc::c_long) -> io::Result<usize> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as usize)
    }
}

/// The descriptor that a call has just made.
fn made(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: callers pass the result of a call that makes a descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Attributes of the file behind `fd` itself, `O_PATH` descriptors included; the birth time where the file
/// system has one. Nothing is followed or mounted.
///
/// # Errors
/// Those of statx(2).
pub fn statx_fd(fd: BorrowedFd<'_>) -> io::Result<libc::statx> {
    statx_at(fd, c"", libc::AT_EMPTY_PATH)
}

/// Attributes of `name` in the directory `dir`; a symbolic link is not followed, an automount not triggered.
///
/// # Errors
/// Those of statx(2).
pub fn statx_child(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<libc::statx> {
    statx_at(dir, name, 0)
}

fn statx_at(dir: BorrowedFd<'_>, path: &CStr, flags: libc::c_int) -> io::Result<libc::statx> {
    let flags = flags | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let mut buf = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: `path` is a C string and `buf` has room for a statx structure, which the kernel fills.
    let result = unsafe { libc::statx(dir.as_raw_fd(), path.as_ptr(), flags, mask, buf.as_mut_ptr()) };
    check(result.into())?;
    // SAFETY: statx is plain integers; it was zeroed and then filled.
    Ok(unsafe { buf.assume_init() })
}

/// One entry as getdents64(2) gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where reading goes on behind this entry (lseek(2) of the directory).
    pub next: i64,
    /// `DT_*`.
    pub kind: u8,
    /// The name, without a zero byte.
    pub name: &'a [u8],
}

/// Reads some entries of an open directory into `buf`; 0 bytes at its end. [`parse_entries`] takes them apart.
///
/// # Errors
/// Those of getdents64(2).
pub fn read_entries(dir: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    let result = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buf.as_mut_ptr(), buf.len()) };
    check(result).map(|len| len.min(buf.len()))
}

/// Takes the result of [`read_entries`] apart; stops at the first malformed entry.
pub fn parse_entries(mut buf: &[u8]) -> impl Iterator<Item = RawEntry<'_>> {
    const NAME: usize = offset_of!(libc::dirent64, d_name);
    std::iter::from_fn(move || {
        let ino = u64::from_ne_bytes(buf.get(0..8)?.try_into().ok()?);
        let next = i64::from_ne_bytes(buf.get(8..16)?.try_into().ok()?);
        let len = usize::from(u16::from_ne_bytes(buf.get(16..18)?.try_into().ok()?));
        let kind = *buf.get(18)?;
        let name = CStr::from_bytes_until_nul(buf.get(NAME..len)?).ok()?.to_bytes();
        buf = buf.get(len..)?;
        Some(RawEntry { ino, next, kind, name })
    })
}

/// Moves a directory's read position to one that [`RawEntry::next`] gave.
///
/// # Errors
/// Those of lseek(2).
pub fn seek_directory(dir: BorrowedFd<'_>, position: i64) -> io::Result<()> {
    nix::unistd::lseek64(dir, position, nix::unistd::Whence::SeekSet)?;
    Ok(())
}

/// Sets the permission bits of the file behind an `O_PATH` descriptor (fchmodat2, Linux 6.6).
///
/// # Errors
/// `ENOSYS` on older kernels, else those of fchmodat(2).
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: the path is a C string that lives for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_fchmodat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH,
        )
    };
    check(result).map(drop)
}

/// Sets access and modification time of the file behind an `O_PATH` descriptor: seconds and nanoseconds
/// (`UTIME_OMIT` and `UTIME_NOW` as in utimensat(2)).
///
/// # Errors
/// Those of utimensat(2).
pub fn set_times_fd(fd: BorrowedFd<'_>, atime: (i64, i64), mtime: (i64, i64)) -> io::Result<()> {
    let times = [atime, mtime].map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
    // SAFETY: the path is a C string and `times` has two elements, as the call wants.
    let result = unsafe { libc::utimensat(fd.as_raw_fd(), c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) };
    check(result.into()).map(drop)
}

/// The value of an extended attribute of an open file (not `O_PATH`).
///
/// # Errors
/// `ERANGE` if it is longer than `max`; else those of fgetxattr(2).
pub fn get_xattr(fd: BorrowedFd<'_>, name: &CStr, max: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0; max];
    // SAFETY: the kernel writes at most `max` bytes into `value`; `name` is a C string.
    let result = unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), max) };
    let len = check(result as libc::c_long)?;
    // A size of 0 asks for the length only.
    if len > max {
        return Err(io::Error::from_raw_os_error(libc::ERANGE));
    }
    value.truncate(len);
    Ok(value)
}

/// The names of all extended attributes of an open file, each with a zero byte behind it.
///
/// # Errors
/// `ERANGE` if they are longer than `max`; else those of flistxattr(2).
pub fn list_xattr(fd: BorrowedFd<'_>, max: usize) -> io::Result<Vec<u8>> {
    let mut names = vec![0; max];
    // SAFETY: the kernel writes at most `max` bytes into `names`.
    let result = unsafe { libc::flistxattr(fd.as_raw_fd(), names.as_mut_ptr().cast(), max) };
    let len = check(result as libc::c_long)?;
    if len > max {
        return Err(io::Error::from_raw_os_error(libc::ERANGE));
    }
    names.truncate(len);
    Ok(names)
}

/// openat(2) with `O_CLOEXEC`, for where openat2(2) is not to be had.
///
/// # Errors
/// Those of openat(2).
pub fn open_at(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a C string that lives for the call.
    let result = unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    made(result.into())
}

/// openat2(2) with `O_CLOEXEC`; `resolve` is `RESOLVE_*`.
///
/// # Errors
/// `ENOSYS` before Linux 5.6, else those of openat2(2).
pub fn open_at2(dir: BorrowedFd<'_>, path: &CStr, flags: libc::c_int, mode: u32, resolve: u64) -> io::Result<OwnedFd> {
    // SAFETY: open_how is plain integers, and has to be zero where it is not set.
    let mut how: libc::open_how = unsafe { MaybeUninit::zeroed().assume_init() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = mode.into();
    how.resolve = resolve;
    let size = size_of::<libc::open_how>();
    // SAFETY: `path` is a C string and `how` a structure of `size` bytes; both live for the call.
    let result = unsafe { libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), path.as_ptr(), &raw const how, size) };
    made(result)
}

/// Clones the mounts at and below `path` into a tree of their own, detached from everything (open_tree(2) with
/// `OPEN_TREE_CLONE` and `AT_RECURSIVE`): an `O_PATH` descriptor of its root, above which there is nothing. The tree
/// lives as long as the descriptor. Links in `path` are followed.
///
/// # Errors
/// Those of open_tree(2): `EPERM` without `CAP_SYS_ADMIN` over the mount namespace.
pub fn clone_tree(path: &CStr) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_int = 1;
    const AT_RECURSIVE: libc::c_int = 0x8000;
    let flags = OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC;
    // SAFETY: `path` is a C string that lives for the call.
    made(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Writes to the end of an open file, wherever that is by then (pwritev2(2) with `RWF_APPEND`).
///
/// # Errors
/// Those of pwritev2(2).
pub fn append(fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    let iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: one iovec that describes `data`, which the call only reads.
    let result = unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const iov, 1, 0, libc::RWF_APPEND) };
    check(result as libc::c_long)
}

/// fsync(2), or fdatasync(2) with `data_only`.
///
/// # Errors
/// Those of fsync(2).
pub fn sync(fd: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
    // SAFETY: these calls take no pointers.
    let result = unsafe {
        if data_only {
            libc::fdatasync(fd.as_raw_fd())
        } else {
            libc::fsync(fd.as_raw_fd())
        }
    };
    check(result.into()).map(drop)
}

/// fallocate(2); `mode` is `FALLOC_FL_*`.
///
/// # Errors
/// Those of fallocate(2).
pub fn allocate(fd: BorrowedFd<'_>, mode: libc::c_int, offset: i64, len: i64) -> io::Result<()> {
    // SAFETY: this call takes no pointers.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) }.into()).map(drop)
}

/// ftruncate(2).
///
/// # Errors
/// Those of ftruncate(2).
pub fn truncate(fd: BorrowedFd<'_>, len: i64) -> io::Result<()> {
    // SAFETY: this call takes no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn lists_a_directory() {
        let dir = File::open(env!("CARGO_MANIFEST_DIR")).expect("open");
        let mut names = Vec::new();
        let mut buf = [0; 128];
        loop {
            let len = read_entries(dir.as_fd(), &mut buf).expect("read");
            if len == 0 {
                break;
            }
            names.extend(parse_entries(&buf[..len]).map(|entry| entry.name.to_vec()));
        }
        for expected in [&b"."[..], b"..", b"Cargo.toml", b"src"] {
            assert!(names.iter().any(|name| name == expected), "{names:?}");
        }
    }

    #[test]
    fn malformed_entries_end_the_list() {
        for len in 0..64 {
            for byte in [0, 1, 18, 24, 255] {
                assert!(parse_entries(&vec![byte; len]).count() <= 3);
            }
        }
    }

    #[test]
    fn opens_beneath_only() {
        let dir = File::open(env!("CARGO_MANIFEST_DIR")).expect("open");
        let file = open_at2(dir.as_fd(), c"Cargo.toml", libc::O_PATH, 0, libc::RESOLVE_BENEATH).expect("open");
        assert_eq!(
            u32::from(statx_fd(file.as_fd()).expect("statx").stx_mode) & libc::S_IFMT,
            libc::S_IFREG
        );
        let error = open_at2(dir.as_fd(), c"..", libc::O_PATH, 0, libc::RESOLVE_BENEATH).expect_err("above");
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
    }
}
