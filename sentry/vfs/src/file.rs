//! Open file descriptions: what `open(2)` makes, what descriptors refer to, what fork shares.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, MutexGuard, rank};

use crate::inode::Attributes;
use crate::notify::{Events, Notifier};
use crate::opens::Opened;
use crate::path::VfsPath;
use crate::text::TextUse;
use crate::wait::{PollEvents, WaitQueue};

/// One directory entry, as getdents64(2) gives it.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct DirEntry {
    pub ino: u64,
    /// `DT_*`.
    pub kind: u8,
    pub name: Vec<u8>,
}

/// The offset that stands for a file's own position: see [`FileOps::own_position`].
pub const CURRENT: u64 = u64::MAX;

/// What an open file does. No method blocks: what is not ready answers `EAGAIN`, and the kernel waits on
/// [`FileOps::wait_queue`]. Buffers are the sentry's own memory, never the guest's.
///
/// `offset` is where to read or write; stream files ignore it. The kernel keeps the file position.
pub trait FileOps: Send + Sync + 'static {
    /// Reads; 0 at the end of the file.
    fn read(&self, _file: &File, _buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes. With `O_APPEND` set on `file`, a seekable file appends and `offset` is ignored; returns the
    /// number of bytes and the offset behind them.
    fn write(&self, _file: &File, _buf: &[u8], _offset: u64) -> Result<(usize, u64), Errno> {
        Err(Errno::EINVAL)
    }

    /// Whether it can be the source of splice(2) and sendfile(2), as far as its kind can.
    fn spliced(&self) -> bool {
        true
    }
    /// True if the file has a position (else lseek(2) and pread(2) answer `ESPIPE`).
    fn seekable(&self) -> bool {
        false
    }

    /// True for a file that keeps its position itself (a host file shared with others): lseek(2) goes to
    /// [`Self::own_seek`], and reads and writes at [`CURRENT`] use the position.
    fn own_position(&self) -> bool {
        false
    }

    /// lseek(2) of a file that keeps its position itself; `whence` is `SEEK_*`.
    fn own_seek(&self, _offset: i64, _whence: i32) -> Result<u64, Errno> {
        Err(Errno::ESPIPE)
    }

    /// The host file behind, when reads (and writes, if `writable` and not `may_block`) may go straight to it with
    /// pread(2) and pwrite(2) at the guest's offsets: regular files of the gofer, tmpfs files with a backing memfd.
    fn host_file(&self) -> Option<HostFile<'_>> {
        None
    }

    /// The descriptor of a file that processes of the host use too, opened for this open file only: locks go to it.
    fn shared_file(&self) -> Option<&Arc<OwnedFd>> {
        None
    }

    /// Tells the file that the kernel wrote to [`Self::host_file`] up to `end` (size and times change).
    fn host_written(&self, _end: u64) {}

    /// Tells the file that the kernel read from [`Self::host_file`] (the access time changes).
    fn host_read(&self) {}

    /// A descriptor to map, opened with no more than the guest's rights. `ENODEV` if it cannot be mapped;
    /// `EACCES` where mmap(2) says so.
    fn mmap_file(&self, _file: &File, _shared: bool, _writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        Err(Errno::ENODEV)
    }

    /// As [`Self::mmap_file`], where it is known which bytes can be written through the mapping at once (none without
    /// `PROT_WRITE`): a file system with a size limit counts them.
    fn mmap_range(
        &self,
        file: &File,
        shared: bool,
        writable: bool,
        _written: Range<u64>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        self.mmap_file(file, shared, writable)
    }

    /// What an address space keeps, as long as it lives, that is about to get a descriptor to map: only its own word says
    /// what it still maps. With a number that tells what is the same.
    fn mapping(&self) -> Option<(usize, Arc<dyn Any + Send + Sync>)> {
        None
    }

    /// The directory's entries from position `pos` on, `.` and `..` included; each with the position behind
    /// it. `sink` answers false when its buffer is full.
    fn readdir(&self, _file: &File, _pos: u64, _sink: &mut dyn FnMut(&DirEntry, u64) -> bool) -> Result<(), Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Present readiness.
    fn poll(&self, _file: &File) -> PollEvents {
        PollEvents::IN | PollEvents::OUT | PollEvents::RDNORM | PollEvents::WRNORM
    }

    /// Where changes of readiness are announced; `None` for files that are always ready.
    fn wait_queue(&self) -> Option<&WaitQueue> {
        None
    }

    /// The size of the file for `SEEK_END`, where it is not the inode's (devices: 0).
    fn size(&self, file: &File) -> Result<u64, Errno> {
        Ok(file.attributes()?.size)
    }

    /// fsync(2) and fdatasync(2).
    fn sync(&self, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// fallocate(2): `mode` is `FALLOC_FL_*`.
    fn fallocate(&self, _mode: i32, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// `SEEK_DATA` (`data` true) and `SEEK_HOLE`.
    fn seek_extent(&self, file: &File, offset: u64, data: bool) -> Result<u64, Errno> {
        let size = self.size(file)?;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if data { offset } else { size })
    }

    /// Seals in force (fcntl `F_GET_SEALS`, memfd_create(2)); `EINVAL` for files that cannot be sealed.
    fn seals(&self) -> Result<u32, Errno> {
        Err(Errno::EINVAL)
    }

    /// Adds seals (`F_ADD_SEALS`). The file itself refuses what they forbid.
    fn add_seals(&self, _seals: u32) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Attributes of a file that has no place in a file system (pipe, eventfd…); `None`: ask the inode.
    fn anonymous_attributes(&self) -> Option<Attributes> {
        None
    }

    /// About how many bytes of the sentry's memory it holds for its users: what waits in a pipe, say.
    fn memory(&self) -> u64 {
        0
    }

    /// Further lines of /proc/PID/fdinfo, each with its newline.
    fn describe(&self, _file: &File) -> String {
        String::new()
    }

    /// For kernel objects (epoll, eventfd, terminals…) to find their own type again.
    fn as_any(&self) -> &dyn Any;
}

/// A host file that the kernel may read and write directly.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct HostFile<'a> {
    pub fd: BorrowedFd<'a>,
    /// Added to the guest's offset.
    pub base: u64,
    /// Reads beyond this many bytes of the guest's file are cut (`u64::MAX`: the host knows).
    pub size: u64,
    pub writable: bool,
    /// A read might block (anything but our own memfds): use `RWF_NOWAIT` first. Writes are [`FileOps::write`]'s.
    pub may_block: bool,
}

/// Told when an open file description goes away: epoll forgets it, its locks are released.
pub trait ReleaseWatcher: Send + Sync {
    /// `file` is going; its operations still work. Runs once.
    fn released(&self, file: &File);
}

/// What a file's owner is (fcntl `F_SETOWN_EX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Owner {
    /// One thread.
    Thread,
    /// A process.
    #[default]
    Process,
    /// A process group.
    Group,
}

/// Who is told of readiness by a signal, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Announce {
    /// What [`Self::id`] is.
    pub owner: Owner,
    /// Thread, process or group; 0 for nobody.
    pub id: i32,
    /// Real and effective user of who named the owner: signals go only where those could send one.
    pub uid: u32,
    /// See [`Self::uid`].
    pub euid: u32,
    /// The signal that is sent with information; 0: SIGIO, without.
    pub signal: i32,
}

/// A file position. Reads and writes that move it hold its lock from beginning to end (Linux's `f_pos_lock`), so they
/// may make the contents of any file with it held. What only wants to know the position takes no lock.
#[derive(Default)]
pub struct Position {
    value: AtomicU64,
    lock: Mutex<(), rank::FilePosition>,
}

impl Position {
    /// The position now, also while somebody moves it.
    pub fn now(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Locks the position, to move it.
    pub fn lock(&self) -> PositionGuard<'_> {
        PositionGuard {
            value: &self.value,
            _lock: self.lock.lock(),
        }
    }
}

/// A locked [`Position`]. Nobody else moves it.
pub struct PositionGuard<'a> {
    value: &'a AtomicU64,
    _lock: MutexGuard<'a, (), rank::FilePosition>,
}

impl PositionGuard<'_> {
    /// The position.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Moves it.
    pub fn set(&self, position: u64) {
        self.value.store(position, Ordering::Relaxed);
    }
}

/// An open file description.
pub struct File {
    ops: Box<dyn FileOps>,
    /// Where it was opened; anonymous files have a path of their own kind (`pipe:[1]`).
    path: VfsPath,
    /// `O_ACCMODE`, `O_APPEND`, `O_NONBLOCK`, `O_DIRECT`, `O_PATH`… (never `O_CLOEXEC`).
    flags: AtomicU32,
    /// The file position.
    pub position: Position,
    /// Who is told of readiness by a signal (fcntl `F_SETOWN`, `F_SETSIG`).
    pub announce: Mutex<Announce, rank::FileAnnounce>,
    /// A number of its own, for locks and epoll.
    id: u64,
    watchers: Mutex<Vec<Weak<dyn ReleaseWatcher>>, rank::FileWatchers>,
    /// Who is told when it is closed.
    notifier: Option<Arc<Notifier>>,
    /// It counts as being written or executed.
    text: Mutex<Option<TextUse>, rank::FileText>,
    /// It counts as open.
    _opened: Option<Opened>,
}

/// All open files.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Drop for File {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        for watcher in std::mem::take(self.watchers.get_mut()) {
            if let Some(watcher) = watcher.upgrade() {
                watcher.released(self);
            }
        }
        if let Some(notifier) = &self.notifier {
            notifier.opened_file(
                self,
                if self.writable() {
                    Events::CLOSE_WRITE
                } else {
                    Events::CLOSE_NOWRITE
                },
            );
        }
    }
}

impl File {
    /// How many there are.
    pub fn count() -> usize {
        COUNT.load(Ordering::Relaxed)
    }

    /// A new description, position 0.
    pub fn new(path: VfsPath, flags: u32, ops: Box<dyn FileOps>) -> Arc<File> {
        File::make(path, flags, ops, None)
    }

    /// As [`File::new`], and tells of the opening now and of the closing at its end.
    pub(crate) fn opened(path: VfsPath, flags: u32, ops: Box<dyn FileOps>, notifier: &Arc<Notifier>) -> Arc<File> {
        let file = File::opened_before(path, flags, ops, notifier);
        notifier.opened_file(&file, Events::OPEN);
        file
    }

    /// As [`File::opened`], of which those who watch it were told before.
    pub(crate) fn opened_before(
        path: VfsPath,
        flags: u32,
        ops: Box<dyn FileOps>,
        notifier: &Arc<Notifier>,
    ) -> Arc<File> {
        File::make(path, flags, ops, Some(notifier.clone()))
    }

    fn make(path: VfsPath, flags: u32, ops: Box<dyn FileOps>, notifier: Option<Arc<Notifier>>) -> Arc<File> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mode = flags as i32 & (libc::O_PATH | libc::O_ACCMODE);
        let inode = path.inode().filter(|_| mode & libc::O_PATH == 0);
        let opened = inode.and_then(|inode| Opened::new(inode, mode != libc::O_RDONLY));
        COUNT.fetch_add(1, Ordering::Relaxed);
        Arc::new(File {
            ops,
            path,
            flags: AtomicU32::new(flags & !(libc::O_CLOEXEC as u32)),
            position: Position::default(),
            announce: Mutex::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            watchers: Mutex::new(Vec::new()),
            notifier,
            text: Mutex::new(None),
            _opened: opened,
        })
    }

    /// Keeps others from executing, or writing, the file until the description goes away.
    pub(crate) fn keep_text(&self, text: Option<TextUse>) {
        let old = std::mem::replace(&mut *self.text.lock(), text);
        // It may be the last to hold the inode.
        drop(old);
    }

    /// From now on, a file opened to be executed may be written.
    pub fn release_text(&self) {
        self.keep_text(None);
    }

    /// Asks for `watcher` to be told when the description goes away.
    pub fn watch_release(&self, watcher: Weak<dyn ReleaseWatcher>) {
        self.watchers.lock().push(watcher);
    }

    /// Takes back what [`Self::watch_release`] asked for.
    pub fn unwatch_release(&self, watcher: &Weak<dyn ReleaseWatcher>) {
        self.watchers.lock().retain(|other| !other.ptr_eq(watcher));
    }

    /// Its behaviour.
    pub fn ops(&self) -> &dyn FileOps {
        &*self.ops
    }

    /// Where it was opened.
    pub fn path(&self) -> &VfsPath {
        &self.path
    }

    /// The open flags now in force.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the status flags in `mask` (fcntl `F_SETFL`).
    pub fn set_flags(&self, mask: u32, value: u32) {
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some((old & !mask) | (value & mask))
        });
    }

    /// Unique in the sandbox.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// True if the description can be read.
    pub fn readable(&self) -> bool {
        let flags = self.flags() as i32;
        flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// True if the description can be written.
    pub fn writable(&self) -> bool {
        let flags = self.flags() as i32;
        flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    }

    /// True with `O_NONBLOCK`.
    pub fn nonblocking(&self) -> bool {
        self.flags() as i32 & libc::O_NONBLOCK != 0
    }

    /// What fstat(2) says.
    pub fn attributes(&self) -> Result<Attributes, Errno> {
        match self.ops.anonymous_attributes() {
            Some(attributes) => Ok(attributes),
            None => self.path.inode().ok_or(Errno::EBADF)?.attributes(),
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}
