//! Opening what the sentry sent once more, with fewer rights.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use sentry_abi::Errno;
use sentry_host::{files, memory_file};

use super::walk::{Identity, attributes};
use super::{Answer, Server};
use crate::nix_errno;
use crate::protocol::Reply;

impl Server {
    /// Opens `file` for reading only. It must be a regular file that is open for reading and writing, so that the
    /// answer gives nothing that the sentry did not have; and a memory file, since nothing else is asked for.
    pub(super) fn reopen(&self, file: &OwnedFd) -> Answer {
        let sent = attributes(&files::statx_fd(file.as_fd())?);
        let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).map_err(nix_errno)?);
        // Only memory files (and files of tmpfs, which are the same) have seals.
        let in_memory = fcntl(file, FcntlArg::F_GET_SEALS).is_ok();
        let read_write = flags & OFlag::O_ACCMODE == OFlag::O_RDWR && !flags.contains(OFlag::O_PATH);
        if sent.kind() != libc::S_IFREG || !read_write || !in_memory {
            return Err(Errno::EACCES);
        }
        let directory = self.own_descriptors.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let opened = memory_file::open_again(directory.as_fd(), file.as_fd(), libc::O_RDONLY)?;
        if Identity::from(&attributes(&files::statx_fd(opened.as_fd())?)) != Identity::from(&sent) {
            return Err(Errno::EIO);
        }
        Ok((Reply::Reopened, vec![opened]))
    }
}
