//! The caller's standard descriptors: pipes, sockets and files are passed through, terminals are not (see
//! [`crate::tty::console`]).
//!
//! The host's descriptors 0 to 2 are shared with processes outside, so their status flags are not ours to change:
//! reads and writes ask first (`RWF_NOWAIT`, or poll(2) where the file does not know that).

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::make_device;
use sentry_host::stdio;
use sentry_lock::{Mutex, rank};
use sentry_vfs::cred::Credentials;
use sentry_vfs::file::{CURRENT, File, FileOps};
use sentry_vfs::inode::{Attributes, Timestamp};
use sentry_vfs::ops::{At, Caller, Lookup};
use sentry_vfs::path::VfsPath;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::Kernel;
use crate::executor::{Executor, HostWatch};
use crate::quota::Output;
use crate::tty::Pty;
use crate::tty::console::Console;

/// What a host descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A pipe or socket.
    Stream,
    /// A regular file; its position is the host's.
    Regular,
    /// A device that is always ready (`/dev/null`), or a directory.
    Other,
}

/// One host descriptor.
struct Host {
    fd: OwnedFd,
    kind: Kind,
    /// Its description does not block, whoever made it so.
    nonblocking: bool,
    attributes: Attributes,
    queue: Arc<WaitQueue>,
    /// Ends with it.
    watch: Option<HostWatch>,
    /// What may be written, and was.
    output: Arc<Output>,
    /// Between "it is ready" and the read or write.
    turn: Mutex<(), rank::StdioTurn>,
}

/// An open host descriptor.
#[derive(Clone)]
pub struct HostStdio(Arc<Host>);

fn timestamp(time: libc::statx_timestamp) -> Timestamp {
    Timestamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

fn attributes(fd: BorrowedFd<'_>) -> Result<Attributes, Errno> {
    let stat = sentry_host::files::statx_fd(fd)?;
    Ok(Attributes {
        dev: make_device(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: make_device(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        atime: timestamp(stat.stx_atime),
        mtime: timestamp(stat.stx_mtime),
        ctime: timestamp(stat.stx_ctime),
        btime: timestamp(stat.stx_btime),
    })
}

impl HostStdio {
    fn new(executor: &Arc<Executor>, fd: OwnedFd, output: &Arc<Output>) -> Result<HostStdio, Errno> {
        let attributes = attributes(fd.as_fd())?;
        let kind = match attributes.mode & libc::S_IFMT {
            libc::S_IFREG => Kind::Regular,
            libc::S_IFIFO | libc::S_IFSOCK => Kind::Stream,
            _ => Kind::Other,
        };
        let nonblocking = stdio::status_flags(fd.as_fd())? & libc::O_NONBLOCK != 0;
        let queue = Arc::new(WaitQueue::new());
        let watch = if kind == Kind::Stream {
            let events = PollEvents::IN | PollEvents::OUT | PollEvents::PRI | PollEvents::RDHUP;
            let announce = queue.clone();
            executor
                .watch_host(&fd, events, move |ready| announce.wake(with_normal(ready)))
                .ok()
        } else {
            None
        };
        Ok(HostStdio(Arc::new(Host {
            fd,
            kind,
            nonblocking,
            attributes,
            queue,
            watch,
            output: output.clone(),
            turn: Mutex::new(()),
        })))
    }

    /// The one behind a file.
    pub fn of(file: &File) -> Option<&HostStdio> {
        file.ops().as_any().downcast_ref::<HostStdio>()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// How many bytes can be read at once (`FIONREAD`).
    pub fn available(&self) -> Result<i32, Errno> {
        stdio::readable_bytes(self.fd())
    }

    fn ready(&self, events: i16) -> bool {
        stdio::poll_now(self.fd(), events) != 0
    }
}

/// `IN` and `OUT` with their other names.
fn with_normal(events: PollEvents) -> PollEvents {
    let mut all = events;
    all.set(PollEvents::RDNORM, events.contains(PollEvents::IN));
    all.set(PollEvents::WRNORM, events.contains(PollEvents::OUT));
    all
}

/// Host files that do not know `RWF_NOWAIT`.
fn cannot_tell(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL | Errno::ESPIPE)
}

impl FileOps for HostStdio {
    fn read(&self, _file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let host = &*self.0;
        if host.kind == Kind::Regular && offset != CURRENT {
            return stdio::pread(self.fd(), buf, offset);
        }
        if host.nonblocking || matches!(host.kind, Kind::Regular | Kind::Other) || buf.is_empty() {
            return stdio::read(self.fd(), buf);
        }
        let _turn = host.turn.lock();
        match stdio::read_now(self.fd(), buf) {
            Err(errno) if cannot_tell(errno) => {}
            result => return result,
        }
        if self.ready(libc::POLLIN) {
            stdio::read(self.fd(), buf)
        } else {
            Err(Errno::EAGAIN)
        }
    }

    fn write(&self, _file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        let host = &*self.0;
        let buf = &buf[..host.output.allow(buf.len())?];
        if host.kind == Kind::Regular && offset != CURRENT {
            let count = stdio::pwrite(self.fd(), buf, offset)?;
            host.output.count(count);
            return Ok((count, offset.saturating_add(count as u64)));
        }
        let count = if host.nonblocking || matches!(host.kind, Kind::Regular | Kind::Other) || buf.is_empty() {
            stdio::write(self.fd(), buf)?
        } else {
            let _turn = host.turn.lock();
            self.write_now(buf)?
        };
        host.output.count(count);
        Ok((count, CURRENT))
    }

    fn seekable(&self) -> bool {
        self.0.kind == Kind::Regular
    }

    fn own_position(&self) -> bool {
        self.0.kind == Kind::Regular
    }

    fn own_seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        stdio::seek(self.fd(), offset, whence)
    }

    fn size(&self, _file: &File) -> Result<u64, Errno> {
        attributes(self.fd()).map(|attributes| attributes.size)
    }

    fn poll(&self, _file: &File) -> PollEvents {
        if self.0.watch.is_none() {
            return PollEvents::IN | PollEvents::OUT | PollEvents::RDNORM | PollEvents::WRNORM;
        }
        let asked = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
        with_normal(PollEvents::from_bits_truncate(u32::from(
            stdio::poll_now(self.fd(), asked) as u16,
        )))
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        self.0.watch.as_ref().map(|_| &*self.0.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        match self.0.kind {
            Kind::Regular => attributes(self.fd()).ok(),
            _ => Some(self.0.attributes),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl HostStdio {
    fn write_now(&self, buf: &[u8]) -> Result<usize, Errno> {
        match stdio::write_now(self.fd(), buf) {
            Err(errno) if cannot_tell(errno) => {}
            result => return result,
        }
        // A pipe that is ready takes PIPE_BUF bytes.
        let chunk = &buf[..buf.len().min(crate::pipe::PIPE_BUF)];
        let mut done = 0;
        while done < buf.len() {
            if !self.ready(libc::POLLOUT) {
                break;
            }
            let end = (done + chunk.len()).min(buf.len());
            match stdio::write(self.fd(), &buf[done..end]) {
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        if done == 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }
}

/// What the first process starts with.
pub struct Stdio {
    /// Descriptors 0, 1 and 2.
    pub files: [Arc<File>; 3],
    /// Its controlling terminal, if one of them is a terminal.
    pub terminal: Option<Arc<Pty>>,
}

/// Takes the caller's standard descriptors over. Those that are terminals are one `terminal` inside, whatever stands
/// in their place.
pub fn take_over(
    kernel: &Arc<Kernel>,
    root: &VfsPath,
    host: [OwnedFd; 3],
    terminal: Option<(&Arc<Console>, [bool; 3])>,
) -> Result<Stdio, Errno> {
    let cred = Credentials::root();
    let caller = Caller::at_root(&cred, root);
    let place = |path: &[u8]| kernel.vfs().resolve(&caller, At::Cwd, path, Lookup::empty()).ok();
    let (console, are_terminals) = match terminal {
        Some((console, which)) => (Some((console, console.open(kernel, root)?)), which),
        None => (None, [false; 3]),
    };
    let mut files = Vec::new();
    for (fd, is_terminal) in host.into_iter().zip(are_terminals) {
        if let (true, Some((_, file))) = (is_terminal, &console) {
            files.push(file.clone());
            continue;
        }
        let flags = stdio::status_flags(fd.as_fd())?;
        let stdio = HostStdio::new(kernel.executor(), fd, kernel.quota.output())?;
        let ino = stdio.0.attributes.ino;
        let path = match stdio.0.kind {
            Kind::Other if stdio.0.attributes.rdev == make_device(1, 3) => {
                place(b"/dev/null").unwrap_or_else(|| VfsPath::anonymous("/dev/null"))
            }
            Kind::Stream if stdio.0.attributes.mode & libc::S_IFMT == libc::S_IFSOCK => {
                VfsPath::anonymous(format!("socket:[{ino}]"))
            }
            Kind::Stream => VfsPath::anonymous(format!("pipe:[{ino}]")),
            Kind::Regular | Kind::Other => VfsPath::anonymous("/host/file"),
        };
        let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT | libc::O_SYNC;
        files.push(File::new(path, (flags & kept) as u32, Box::new(stdio)));
    }
    let files = <[Arc<File>; 3]>::try_from(files).map_err(|_| Errno::EIO)?;
    Ok(Stdio {
        files,
        terminal: console.map(|(console, _)| console.pty().clone()),
    })
}
