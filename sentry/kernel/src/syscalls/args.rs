//! Raw arguments of file calls, and what they name.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::ops::At;

use crate::fd::Fd;
use crate::task::{Resource, Thread};

/// Argument `index` as a C int.
pub(super) fn int(args: &SyscallArgs, index: usize) -> i32 {
    args.args[index] as i32
}

/// Argument `index` as a C unsigned int.
pub(super) fn uint(args: &SyscallArgs, index: usize) -> u32 {
    args.args[index] as u32
}

/// An open descriptor, `O_PATH` ones included.
pub(super) fn any_file(thread: &Thread, fd: Fd) -> Result<Arc<File>, Errno> {
    thread.files().get(fd)
}

/// An open descriptor; `EBADF` for `O_PATH` ones.
pub(super) fn file(thread: &Thread, fd: Fd) -> Result<Arc<File>, Errno> {
    let file = any_file(thread, fd)?;
    if file.flags() & libc::O_PATH as u32 != 0 {
        Err(Errno::EBADF)
    } else {
        Ok(file)
    }
}

/// A new descriptor for a file.
pub(super) fn install(thread: &Thread, file: Arc<File>, cloexec: bool) -> Result<i64, Errno> {
    let limit = thread.limit(Resource::NOFILE).current;
    thread.files().install(file, cloexec, 0, limit).map(i64::from)
}

/// Where a path starts: what [`At`] borrows from.
pub(super) enum Start {
    /// The working directory, or the path is absolute.
    Cwd,
    /// A descriptor.
    File(Arc<File>),
}

impl Start {
    /// From a `dirfd` argument and the path, which makes it unimportant if it is absolute.
    pub(super) fn new(thread: &Thread, dirfd: i32, path: &[u8]) -> Result<Start, Errno> {
        if dirfd == libc::AT_FDCWD || path.first() == Some(&b'/') {
            return Ok(Start::Cwd);
        }
        any_file(thread, dirfd).map(Start::File)
    }

    /// For the VFS.
    pub(super) fn at(&self) -> At<'_> {
        match self {
            Start::Cwd => At::Cwd,
            Start::File(file) => At::Path(file.path()),
        }
    }
}
