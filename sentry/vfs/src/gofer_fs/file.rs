//! Open files of a gofer's export.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_gofer::protocol;
use sentry_gofer::{Access, Time};
use sentry_host::{files, memory_file, stdio};

use super::ledger::{Mapped, Use};
use super::{Caching, GoferInode};
use crate::file::{File, FileOps, HostFile};

/// What statx(2) says of a descriptor.
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<protocol::Attributes, Errno> {
    let stat = files::statx_fd(fd)?;
    let time = |time: &libc::statx_timestamp| Time {
        sec: time.tv_sec,
        nsec: time.tv_nsec.min(999_999_999),
    };
    Ok(protocol::Attributes {
        dev: libc::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        btime: time(&stat.stx_btime),
    })
}

/// An open regular file: the descriptor that the gofer opened, with exactly the access of the open. Several opens
/// for reading share one; it is only ever used with offsets.
pub(super) struct GoferFile {
    inode: Arc<GoferInode>,
    fd: Arc<OwnedFd>,
    access: Access,
    /// What counts for it, if there is a limit. Dropped after the descriptor.
    used: Option<Use>,
}

impl GoferFile {
    pub(super) fn new(inode: Arc<GoferInode>, fd: Arc<OwnedFd>, access: Access, used: Option<Use>) -> GoferFile {
        GoferFile {
            inode,
            fd,
            access,
            used,
        }
    }

    /// The account, where what is added has a limit.
    fn metered(&self) -> Option<&Use> {
        self.used.as_ref().filter(|used| used.meters())
    }
}

impl Drop for GoferFile {
    fn drop(&mut self) {
        if let Some(used) = &self.used {
            used.closing(self.fd.as_fd());
        }
        if self.access.writes() && Arc::strong_count(&self.fd) == 1 {
            self.inode.fs.client.settle();
        }
    }
}

impl FileOps for GoferFile {
    fn read(&self, _file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        stdio::pread(self.fd.as_fd(), buf, offset)
    }

    fn write(&self, file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        if !self.access.writes() {
            return Err(Errno::EBADF);
        }
        self.inode.changed();
        self.inode.modified();
        let append = file.flags() as i32 & libc::O_APPEND != 0;
        if let Some(used) = self.metered() {
            return used.write(self.fd.as_fd(), buf, (!append).then_some(offset));
        }
        if append {
            let written = files::append(self.fd.as_fd(), buf)?;
            return Ok((written, stat(self.fd.as_fd())?.size));
        }
        let written = stdio::pwrite(self.fd.as_fd(), buf, offset)?;
        Ok((written, offset.saturating_add(written as u64)))
    }

    fn seekable(&self) -> bool {
        true
    }

    fn host_file(&self) -> Option<HostFile<'_>> {
        Some(HostFile {
            fd: self.fd.as_fd(),
            base: 0,
            size: u64::MAX,
            writable: self.access.writes(),
            may_block: true,
        })
    }

    fn shared_file(&self) -> Option<&Arc<OwnedFd>> {
        (self.inode.fs.caching == Caching::Revalidate).then_some(&self.fd)
    }

    fn host_written(&self, _end: u64) {
        self.inode.changed();
    }

    fn mmap_file(&self, _file: &File, shared: bool, writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        if self.access == Access::Write || (shared && writable && self.access != Access::ReadWrite) {
            return Err(Errno::EACCES);
        }
        if shared && writable {
            self.inode.modified();
        }
        // However it is to be mapped: what can be written with it is the guest's choice.
        if let Some(used) = self.metered().filter(|_| self.access == Access::ReadWrite) {
            used.map(self.fd.as_fd()).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(self.fd.clone())
    }

    fn mapping(&self) -> Option<(usize, Arc<dyn Any + Send + Sync>)> {
        let used = self.used.as_ref()?;
        let key = Arc::as_ptr(&used.account).addr();
        Some((key, Arc::new(Mapped::new(used.another()))))
    }

    fn size(&self, _file: &File) -> Result<u64, Errno> {
        Ok(stat(self.fd.as_fd())?.size)
    }

    fn seek_extent(&self, _file: &File, offset: u64, data: bool) -> Result<u64, Errno> {
        // Reads and writes have offsets, so the position of the descriptor is free.
        memory_file::seek_extent(self.fd.as_fd(), offset, data)
    }

    fn sync(&self, data_only: bool) -> Result<(), Errno> {
        Ok(files::sync(self.fd.as_fd(), data_only)?)
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
        self.inode.changed();
        self.inode.modified();
        if let Some(used) = self.metered() {
            return used.allocate(self.fd.as_fd(), mode, offset, len);
        }
        let offset = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let len = i64::try_from(len).map_err(|_| Errno::EFBIG)?;
        Ok(files::allocate(self.fd.as_fd(), mode, offset, len)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
