//! Building blocks of generated file systems (proc, sysfs): directories, text files, links.
//!
//! A [`PseudoFs`] gives each inode its numbers. Static trees are built once from [`StaticDir`]; what comes and
//! goes is a [`DynamicDir`], which the VFS asks at every look-up.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sentry_abi::Errno;
use sentry_lock::{Mutex, RwLock, rank};

use crate::dir::OpenDirectory;
use crate::file::{DirEntry, File, FileOps};
use crate::inode::{Attributes, FsStatistics, Inode, Permissions, SetAttributes, Timestamp};
use crate::ops::TaskIds;
use crate::path::VfsPath;

/// statfs(2)'s number for proc.
pub const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// Identity of a generated file system: its device number, magic number and the next inode number.
pub struct PseudoFs {
    dev: u64,
    magic: u64,
    next: AtomicU64,
    made: Timestamp,
}

/// Owner and permission bits of a generated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Owner {
    /// Permission bits only.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// Root's, with these permission bits.
    pub fn root(mode: u32) -> Owner {
        Owner { mode, uid: 0, gid: 0 }
    }
}

/// Makes the text of a file. Called at the first read of an open description and at each read from offset 0;
/// reads at other offsets continue in the text made then.
pub trait Generate: Send + Sync + 'static {
    /// The whole content.
    fn generate(&self) -> Result<Vec<u8>, Errno>;
    /// Takes one write(2).
    fn write(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }
    /// Opens the file as something else than generated text (for `/proc/PID/mem`, `pagemap`); `None`: as text.
    fn open(&self, _flags: u32) -> Option<Result<Box<dyn FileOps>, Errno>> {
        None
    }
    /// Whether splice(2) and sendfile(2) read from it.
    fn spliced(&self) -> bool {
        true
    }
    /// Whether a task may open it, beside what its mode says; `EACCES` if not.
    fn allows(&self, _task: TaskIds) -> bool {
        true
    }
    /// Owner and mode, asked at each stat; `None`: what the inode was made with.
    fn owner(&self) -> Option<Owner> {
        None
    }
}

impl<F> Generate for F
where
    F: Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
{
    fn generate(&self) -> Result<Vec<u8>, Errno> {
        self()
    }
}

/// A generated file that can be written: two closures.
pub struct ReadWrite<R, W> {
    /// Makes the text.
    pub read: R,
    /// Takes a write.
    pub write: W,
}

impl<R, W> Generate for ReadWrite<R, W>
where
    R: Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    W: Fn(&[u8], u64) -> Result<usize, Errno> + Send + Sync + 'static,
{
    fn generate(&self) -> Result<Vec<u8>, Errno> {
        (self.read)()
    }
    fn write(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        (self.write)(data, offset)
    }
}

/// A directory whose entries come and go (`/proc`, `/proc/PID/fd`). It is asked at each look-up.
pub trait DynamicDir: Send + Sync + 'static {
    /// The inode of a name; `ENOENT` if there is none. Give the same inode number for the same thing
    /// ([`PseudoFs::directory_at`] and its like), where programs compare it.
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno>;
    /// All entries but `.` and `..`. Positions are indexes into the list: keep an order.
    fn entries(&self) -> Result<Vec<DirEntry>, Errno>;
    /// Owner and mode, asked at each stat (a process's directories follow its credentials).
    fn owner(&self) -> Owner {
        Owner::root(0o555)
    }
    /// Link count, for programs that look.
    fn nlink(&self) -> u32 {
        2
    }
}

/// A symbolic link that depends on who follows it, or leads where no path does.
pub trait Link: Send + Sync + 'static {
    /// Its text, for readlink(2) and for following it.
    fn target(&self, task: TaskIds) -> Result<Vec<u8>, Errno>;
    /// A magic link: where it leads. `None`: walk the text.
    fn follow(&self) -> Option<Result<VfsPath, Errno>> {
        None
    }
    /// True if `task` may read and follow it; else both are `EACCES`.
    fn allows(&self, _task: TaskIds) -> bool {
        true
    }
    /// Owner.
    fn owner(&self) -> Owner {
        Owner::root(0o777)
    }
}

impl PseudoFs {
    /// A new file system; `magic` is for statfs(2) (`PROC_SUPER_MAGIC`…).
    pub fn new(magic: u64) -> Arc<PseudoFs> {
        PseudoFs::with_dev(magic, crate::mount::new_anonymous_dev())
    }

    /// As [`PseudoFs::new`], with a device number.
    pub fn with_dev(magic: u64, dev: u64) -> Arc<PseudoFs> {
        Arc::new(PseudoFs {
            dev,
            magic,
            next: AtomicU64::new(1),
            made: Timestamp::now(),
        })
    }

    /// A new inode number.
    pub fn next_ino(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn node(self: &Arc<PseudoFs>, kind: u32, ino: Option<u64>, owner: Owner) -> Node {
        let ino = ino.unwrap_or_else(|| self.next_ino());
        Node {
            fs: self.clone(),
            kind,
            ino,
            owner: Mutex::new(owner),
        }
    }

    /// A directory to be filled with [`StaticDir::add`].
    pub fn directory(self: &Arc<PseudoFs>, mode: u32) -> Arc<StaticDir> {
        let node = self.node(libc::S_IFDIR, None, Owner::root(mode));
        Arc::new(StaticDir {
            node,
            entries: RwLock::new(BTreeMap::new()),
        })
    }

    /// A text file.
    pub fn file(self: &Arc<PseudoFs>, mode: u32, generate: impl Generate) -> Arc<dyn Inode> {
        self.file_at(None, Owner::root(mode), generate)
    }

    /// A text file with an owner and, if given, an inode number.
    pub fn file_at(self: &Arc<PseudoFs>, ino: Option<u64>, owner: Owner, generate: impl Generate) -> Arc<dyn Inode> {
        Arc::new(TextFile {
            node: self.node(libc::S_IFREG, ino, owner),
            generate: Arc::new(generate),
        })
    }

    /// A text file that never changes.
    pub fn text(self: &Arc<PseudoFs>, text: impl Into<Vec<u8>>) -> Arc<dyn Inode> {
        let text = text.into();
        self.file(0o444, move || Ok(text.clone()))
    }

    /// A symbolic link with fixed text.
    pub fn symlink(self: &Arc<PseudoFs>, target: impl Into<Vec<u8>>) -> Arc<dyn Inode> {
        struct Fixed(Vec<u8>);
        impl Link for Fixed {
            fn target(&self, _task: TaskIds) -> Result<Vec<u8>, Errno> {
                Ok(self.0.clone())
            }
        }
        self.link_at(None, Fixed(target.into()))
    }

    /// A symbolic link with code behind it and, if given, an inode number.
    pub fn link_at(self: &Arc<PseudoFs>, ino: Option<u64>, link: impl Link) -> Arc<dyn Inode> {
        let owner = link.owner();
        Arc::new(LinkNode {
            node: self.node(libc::S_IFLNK, ino, owner),
            link,
        })
    }

    /// A directory with code behind it and, if given, an inode number.
    pub fn directory_at(self: &Arc<PseudoFs>, ino: Option<u64>, dir: impl DynamicDir) -> Arc<dyn Inode> {
        let owner = dir.owner();
        Arc::new(DynamicNode {
            node: self.node(libc::S_IFDIR, ino, owner),
            dir,
        })
    }
}

/// What all generated inodes have.
struct Node {
    fs: Arc<PseudoFs>,
    kind: u32,
    ino: u64,
    owner: Mutex<Owner, rank::PseudoOwner>,
}

impl Node {
    fn attributes(&self, owner: Owner, nlink: u32) -> Attributes {
        Attributes {
            dev: self.fs.dev,
            ino: self.ino,
            mode: self.kind | (owner.mode & 0o7777),
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            block_size: 1024,
            atime: self.fs.made,
            mtime: self.fs.made,
            ctime: self.fs.made,
            btime: self.fs.made,
            ..Attributes::default()
        }
    }

    fn permissions(&self, owner: Owner) -> Permissions {
        Permissions {
            mode: self.kind | (owner.mode & 0o7777),
            uid: owner.uid,
            gid: owner.gid,
        }
    }

    /// chmod and chown last as long as the inode; sizes and times are not kept.
    fn set(&self, set: &SetAttributes) {
        let mut owner = self.owner.lock();
        owner.mode = set.mode.unwrap_or(owner.mode);
        owner.uid = set.uid.unwrap_or(owner.uid);
        owner.gid = set.gid.unwrap_or(owner.gid);
    }

    /// A look-up in /proc finds something or fails, so that nothing comes to making a name.
    fn refuses_new_names(&self) -> bool {
        self.fs.magic == PROC_SUPER_MAGIC
    }

    fn statistics(&self) -> FsStatistics {
        FsStatistics {
            magic: self.fs.magic,
            block_size: 4096,
            name_max: 255,
            ..FsStatistics::default()
        }
    }
}

/// A directory whose entries are added by the kernel and stay.
pub struct StaticDir {
    node: Node,
    entries: RwLock<BTreeMap<Vec<u8>, Arc<dyn Inode>>, rank::PseudoEntries>,
}

impl StaticDir {
    /// Adds or replaces an entry. Add before the directory is first looked into: the VFS caches what it finds.
    pub fn add(&self, name: impl AsRef<[u8]>, inode: Arc<dyn Inode>) -> &StaticDir {
        self.entries.write().insert(name.as_ref().to_vec(), inode);
        self
    }

    /// An entry.
    pub fn get(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        self.entries.read().get(name).cloned()
    }
}

impl Inode for StaticDir {
    fn attributes(&self) -> Result<Attributes, Errno> {
        let nlink = 2 + self.entries.read().values().filter(|inode| is_dir(inode)).count() as u32;
        Ok(self.node.attributes(*self.node.owner.lock(), nlink))
    }
    fn permissions(&self) -> Result<Permissions, Errno> {
        Ok(self.node.permissions(*self.node.owner.lock()))
    }
    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.node.set(set);
        Ok(())
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        self.get(name).ok_or(Errno::ENOENT)
    }
    fn refuses_new_names(&self) -> bool {
        self.node.refuses_new_names()
    }
    fn open(&self, _flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        Ok(Box::new(OpenDirectory::new()))
    }
    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        // A directory among them looks at its own.
        let entries = self.entries.read().clone();
        Ok(entries
            .iter()
            .filter_map(|(name, inode)| entry_of(name, inode))
            .collect())
    }
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Ok(self.node.statistics())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn is_dir(inode: &Arc<dyn Inode>) -> bool {
    inode.permissions().is_ok_and(|permissions| permissions.is_dir())
}

/// A directory entry for an inode.
pub fn entry_of(name: &[u8], inode: &Arc<dyn Inode>) -> Option<DirEntry> {
    let attributes = inode.attributes().ok()?;
    Some(DirEntry {
        ino: attributes.ino,
        kind: entry_kind(attributes.mode),
        name: name.to_vec(),
    })
}

/// `DT_*` from mode bits.
pub fn entry_kind(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

struct DynamicNode<D> {
    node: Node,
    dir: D,
}

/// The directory behind an inode that [`PseudoFs::directory_at`] made of a `D`.
pub fn dynamic_dir<D: DynamicDir>(inode: &dyn Inode) -> Option<&D> {
    inode.as_any().downcast_ref::<DynamicNode<D>>().map(|node| &node.dir)
}

impl<D: DynamicDir> Inode for DynamicNode<D> {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(self.node.attributes(self.dir.owner(), self.dir.nlink()))
    }
    fn permissions(&self) -> Result<Permissions, Errno> {
        Ok(self.node.permissions(self.dir.owner()))
    }
    fn set_attributes(&self, _set: &SetAttributes) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        self.dir.lookup(name)
    }
    fn cacheable(&self) -> bool {
        false
    }
    fn refuses_new_names(&self) -> bool {
        self.node.refuses_new_names()
    }
    fn open(&self, _flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        Ok(Box::new(OpenDirectory::new()))
    }
    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        self.dir.entries()
    }
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Ok(self.node.statistics())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct LinkNode<L> {
    node: Node,
    link: L,
}

impl<L: Link> Inode for LinkNode<L> {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(self.node.attributes(self.link.owner(), 1))
    }
    fn permissions(&self) -> Result<Permissions, Errno> {
        Ok(self.node.permissions(self.link.owner()))
    }
    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        self.link.target(TaskIds::default())
    }
    fn follow_magic_as(&self, task: TaskIds) -> Option<Result<VfsPath, Errno>> {
        let followed = self.link.follow()?;
        Some(if self.link.allows(task) {
            followed
        } else {
            Err(Errno::EACCES)
        })
    }
    fn readlink_as(&self, task: TaskIds) -> Result<Vec<u8>, Errno> {
        if !self.link.allows(task) {
            return Err(Errno::EACCES);
        }
        self.link.target(task)
    }
    fn follow_magic(&self) -> Option<Result<VfsPath, Errno>> {
        self.link.follow()
    }
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Ok(self.node.statistics())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct TextFile<G> {
    node: Node,
    generate: Arc<G>,
}

impl<G: Generate> TextFile<G> {
    fn owner(&self) -> Owner {
        self.generate.owner().unwrap_or(*self.node.owner.lock())
    }
}

impl<G: Generate> Inode for TextFile<G> {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(self.node.attributes(self.owner(), 1))
    }
    fn permissions(&self) -> Result<Permissions, Errno> {
        Ok(self.node.permissions(self.owner()))
    }
    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.node.set(set);
        Ok(())
    }
    fn open_as(&self, flags: u32, task: TaskIds) -> Result<Box<dyn FileOps>, Errno> {
        if !self.generate.allows(task) {
            return Err(Errno::EACCES);
        }
        self.open(flags)
    }
    fn open(&self, flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        match self.generate.open(flags) {
            Some(opened) => opened,
            None => Ok(Box::new(OpenText {
                generate: self.generate.clone(),
                text: Mutex::new(None),
            })),
        }
    }
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Ok(self.node.statistics())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct OpenText<G> {
    generate: Arc<G>,
    text: Mutex<Option<Vec<u8>>, rank::PseudoText>,
}

impl<G: Generate> FileOps for OpenText<G> {
    fn read(&self, _file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let known = self.text.lock().is_some();
        // Without the lock: what the text is about may wait for anything.
        let fresh = if known && offset != 0 {
            None
        } else {
            Some(self.generate.generate()?)
        };
        let mut text = self.text.lock();
        if fresh.is_some() {
            *text = fresh;
        }
        let all = text.as_deref().unwrap_or_default();
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| all.get(offset..))
            .unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn write(&self, _file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        let count = self.generate.write(buf, offset)?.min(buf.len());
        Ok((count, offset.saturating_add(count as u64)))
    }
    fn seekable(&self) -> bool {
        true
    }
    fn spliced(&self) -> bool {
        self.generate.spliced()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
