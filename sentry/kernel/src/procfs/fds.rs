//! `/proc/PID/fd` and `/proc/PID/fdinfo`.

use std::any::Any;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::file::{DirEntry, File, FileOps, HostFile};
use sentry_vfs::inode::{Attributes, Inode};
use sentry_vfs::ops::TaskIds;
use sentry_vfs::path::VfsPath;
use sentry_vfs::pseudo::{DynamicDir, Link, Owner};
use sentry_vfs::wait::{PollEvents, WaitQueue};

use super::{Subject, parse_number, pid};
use crate::fd::Fd;

/// The list of a process's descriptors.
pub(super) struct FdDir {
    pub subject: Subject,
    /// fdinfo: text about each; else links.
    pub info: bool,
}

fn ino(tid: i32, fd: Fd, info: bool) -> u64 {
    1 << 56 | u64::from(info) << 55 | u64::from(tid as u32) << 24 | u64::from(fd as u32 & 0xff_ffff)
}

impl DynamicDir for FdDir {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let fd = parse_number(name)?;
        let subject = self.subject.clone();
        subject
            .thread()
            .and_then(|thread| thread.files().get(fd))
            .map_err(|_| Errno::ENOENT)?;
        let fs = &self.subject.proc.fs;
        let ino = Some(ino(subject.tid, fd, self.info));
        if !self.info {
            return Ok(fs.link_at(ino, FdLink { subject, fd }));
        }
        let owner = subject.owner(0o400);
        Ok(fs.file_at(ino, owner, move || info(&subject, fd)))
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let fds = self.subject.thread()?.files().list();
        let kind = if self.info { libc::DT_REG } else { libc::DT_LNK };
        let tid = self.subject.tid;
        let entry = |fd: Fd| DirEntry {
            ino: ino(tid, fd, self.info),
            kind,
            name: fd.to_string().into_bytes(),
        };
        Ok(fds.into_iter().map(|(fd, _, _)| entry(fd)).collect())
    }

    fn owner(&self) -> Owner {
        self.subject.owner(if self.info { 0o555 } else { 0o500 })
    }
}

fn info(subject: &Subject, fd: Fd) -> Result<Vec<u8>, Errno> {
    let files = subject.thread()?.files();
    let file = files.get(fd).map_err(|_| Errno::ENOENT)?;
    let cloexec = if files.cloexec(fd)? { libc::O_CLOEXEC } else { 0 };
    let mount = file.path().mount().map_or(0, |mount| mount.id());
    let inode = file.attributes().map_or(0, |attributes| attributes.ino);
    let (pos, flags) = (file.position.now(), file.flags() | cloexec as u32);
    let mut more = file.ops().describe(&file);
    for lock in subject.kernel()?.locks.of_file(&file) {
        let own_records = lock.inode.is_some() && lock.pid == subject.pid;
        if lock.file.map_or(own_records, |id| id == file.id()) {
            more.push_str(&format!("lock:\t1: {}\n", lock.line()));
        }
    }
    Ok(format!("pos:\t{pos}\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t{inode}\n{more}").into_bytes())
}

struct FdLink {
    subject: Subject,
    fd: Fd,
}

impl FdLink {
    fn file(&self) -> Result<Arc<File>, Errno> {
        self.subject.thread()?.files().get(self.fd).map_err(|_| Errno::ENOENT)
    }
}

impl Link for FdLink {
    fn target(&self, task: TaskIds) -> Result<Vec<u8>, Errno> {
        pid::display(&self.subject, self.file()?.path(), task)
    }

    fn follow(&self) -> Option<Result<VfsPath, Errno>> {
        let follow = || {
            let file = self.file()?;
            let path = file.path().clone();
            match (path.inode(), path.anonymous_name()) {
                (None, Some(name)) => {
                    let name = name.to_vec();
                    Ok(VfsPath::anonymous_inode(name, Arc::new(Reopen { file })))
                }
                _ => Ok(path),
            }
        };
        Some(follow())
    }

    fn allows(&self, task: TaskIds) -> bool {
        self.subject.allows(task)
    }

    fn owner(&self) -> Owner {
        let mode = self.file().map_or(0, |file| {
            (if file.readable() { 0o500 } else { 0 }) | (if file.writable() { 0o300 } else { 0 })
        });
        self.subject.owner(mode)
    }
}

/// A file without a name in any tree (a pipe, a terminal handed over), as something that can be opened again by
/// way of `/proc/PID/fd`.
struct Reopen {
    file: Arc<File>,
}

impl Inode for Reopen {
    fn attributes(&self) -> Result<Attributes, Errno> {
        self.file.attributes()
    }

    fn open(&self, flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        let mode = self.file.attributes()?.mode & libc::S_IFMT;
        if !matches!(mode, libc::S_IFIFO | libc::S_IFCHR | libc::S_IFREG | libc::S_IFBLK) {
            return Err(Errno::ENXIO);
        }
        let access = flags as i32 & libc::O_ACCMODE;
        let (read, write) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        // Linux would open the other end of a pipe; this opens the same end again.
        if (read && !self.file.readable()) || (write && !self.file.writable()) {
            return Err(Errno::EACCES);
        }
        Ok(Box::new(Again {
            file: self.file.clone(),
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open file that is another one under a new description.
struct Again {
    file: Arc<File>,
}

impl FileOps for Again {
    fn read(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.file.ops().read(file, buf, offset)
    }
    fn write(&self, file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        self.file.ops().write(file, buf, offset)
    }
    fn seekable(&self) -> bool {
        self.file.ops().seekable()
    }
    fn own_position(&self) -> bool {
        self.file.ops().own_position()
    }
    fn own_seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        self.file.ops().own_seek(offset, whence)
    }
    fn host_file(&self) -> Option<HostFile<'_>> {
        self.file.ops().host_file()
    }
    fn host_written(&self, end: u64) {
        self.file.ops().host_written(end);
    }
    fn host_read(&self) {
        self.file.ops().host_read();
    }
    fn mmap_file(&self, file: &File, shared: bool, writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        self.file.ops().mmap_file(file, shared, writable)
    }
    fn mmap_range(
        &self,
        file: &File,
        shared: bool,
        writable: bool,
        written: Range<u64>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        self.file.ops().mmap_range(file, shared, writable, written)
    }
    fn mapping(&self) -> Option<(usize, Arc<dyn Any + Send + Sync>)> {
        self.file.ops().mapping()
    }
    fn poll(&self, file: &File) -> PollEvents {
        self.file.ops().poll(file)
    }
    fn wait_queue(&self) -> Option<&WaitQueue> {
        self.file.ops().wait_queue()
    }
    fn size(&self, _file: &File) -> Result<u64, Errno> {
        self.file.ops().size(&self.file)
    }
    fn sync(&self, data_only: bool) -> Result<(), Errno> {
        self.file.ops().sync(data_only)
    }
    fn anonymous_attributes(&self) -> Option<Attributes> {
        self.file.ops().anonymous_attributes()
    }
    fn as_any(&self) -> &dyn Any {
        self.file.ops().as_any()
    }
}
