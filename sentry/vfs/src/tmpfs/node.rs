//! Inodes of tmpfs.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, RwLock, rank};

use super::data::Data;
use super::open::OpenFile;
use super::store::{PAGE, Store};
use crate::dir::OpenDirectory;
use crate::file::{DirEntry, FileOps};
use crate::inode::{Attributes, FsStatistics, Inode, NewInode, Permissions, SetAttributes, Timestamp};
use crate::opens::Opens;
use crate::pseudo::entry_kind;

/// Bytes of extended attributes, names included, that one file may have.
const XATTRS_MAX: usize = 128 * 1024;
/// What Linux counts for a directory entry.
const ENTRY_SIZE: u64 = 20;
/// Link texts shorter than this cost no page.
const SHORT_LINK: usize = 128;

pub(crate) struct Node {
    this: Weak<Node>,
    pub(super) store: Arc<Store>,
    ino: u64,
    /// Type bits.
    kind: u32,
    rdev: u64,
    pub(super) meta: Mutex<Meta, rank::TmpfsMeta>,
    xattrs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>, rank::TmpfsXattrs>,
    /// Pages charged for extended attributes and for a long link text.
    extra_pages: AtomicU64,
    pub(super) content: Content,
    opens: Opens,
}

pub(crate) struct Meta {
    /// Permission bits.
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// Made without a name and may still get one.
    linkable: bool,
    /// `F_SEAL_*` (memfd_create(2)).
    pub(super) seals: u32,
    atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    btime: Timestamp,
}

pub(crate) enum Content {
    File(FileContent),
    Directory(Mutex<Entries, rank::TmpfsEntries>),
    Symlink(Box<[u8]>),
    /// Devices, FIFOs, sockets.
    Node,
}

pub(crate) struct FileContent {
    pub data: RwLock<Data, rank::TmpfsData>,
}

impl Content {
    pub(super) fn directory() -> Content {
        Content::Directory(Mutex::default())
    }

    fn file() -> Content {
        Content::File(FileContent {
            data: RwLock::new(Data::new()),
        })
    }
}

#[derive(Default)]
pub(crate) struct Entries {
    names: BTreeMap<Box<[u8]>, Arc<Node>>,
    /// Removed: nothing can be made in it.
    dead: bool,
}

impl Node {
    pub(super) fn make(store: &Arc<Store>, new: &NewInode, content: Content) -> Arc<Node> {
        let now = Timestamp::now();
        let is_dir = matches!(content, Content::Directory(_));
        Arc::new_cyclic(|this| Node {
            this: this.clone(),
            store: store.clone(),
            ino: store.next_ino(),
            kind: new.mode & libc::S_IFMT,
            rdev: new.rdev,
            meta: Mutex::new(Meta {
                mode: new.mode & 0o7777,
                uid: new.uid,
                gid: new.gid,
                nlink: if is_dir { 2 } else { 1 },
                linkable: false,
                seals: libc::F_SEAL_SEAL as u32,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
            }),
            xattrs: Mutex::default(),
            extra_pages: AtomicU64::new(0),
            opens: Opens::default(),
            content,
        })
    }

    /// A node without a place, charged to the store.
    pub(crate) fn unplaced(store: &Arc<Store>, new: &NewInode, target: Option<&[u8]>) -> Result<Arc<Node>, Errno> {
        let content = match (new.mode & libc::S_IFMT, target) {
            (libc::S_IFLNK, Some(target)) => Content::Symlink(target.into()),
            (libc::S_IFREG, _) => Content::file(),
            (libc::S_IFDIR, _) => Content::directory(),
            (libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK, _) => Content::Node,
            _ => return Err(Errno::EINVAL),
        };
        store.charge_inode()?;
        let node = Node::make(store, new, content);
        // Short texts are part of the inode, as in Linux.
        if target.is_some_and(|target| target.len() >= SHORT_LINK) {
            node.charge_extra(1)?;
        }
        Ok(node)
    }

    /// Charges this many pages, beside the content, from now on.
    fn charge_extra(&self, pages: u64) -> Result<(), Errno> {
        let old = self.extra_pages.load(Ordering::Relaxed);
        if pages > old {
            self.store.charge(pages - old)?;
        } else {
            self.store.uncharge(old - pages);
        }
        self.extra_pages.store(pages, Ordering::Relaxed);
        Ok(())
    }

    fn entries_of(&self) -> Result<&Mutex<Entries, rank::TmpfsEntries>, Errno> {
        match &self.content {
            Content::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn file(&self) -> Result<&FileContent, Errno> {
        match &self.content {
            Content::File(file) => Ok(file),
            Content::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Modification and change happened now.
    pub(crate) fn touch(&self) {
        let now = Timestamp::now();
        let mut meta = self.meta.lock();
        meta.mtime = now;
        meta.ctime = now;
    }

    fn touch_links(&self, change: i32) {
        let mut meta = self.meta.lock();
        meta.nlink = meta.nlink.saturating_add_signed(change);
        meta.ctime = Timestamp::now();
    }

    /// Was read; kept as `relatime` says: if not read since the last change, or for a day.
    pub(super) fn accessed(&self) {
        const DAY: i64 = 24 * 60 * 60;
        let mut meta = self.meta.lock();
        if meta.atime <= meta.mtime || meta.atime <= meta.ctime {
            meta.atime = Timestamp::now();
        } else {
            let now = Timestamp::now();
            if now.sec.saturating_sub(meta.atime.sec) >= DAY {
                meta.atime = now;
            }
        }
    }

    /// Sets times and birth as they were elsewhere (copy-up).
    pub(crate) fn set_history(&self, attributes: &Attributes) {
        let mut meta = self.meta.lock();
        meta.atime = attributes.atime;
        meta.mtime = attributes.mtime;
        meta.ctime = attributes.ctime;
        meta.btime = attributes.btime;
    }

    /// A regular file's data, for copy-up: appends without touching times.
    pub(crate) fn fill(&self, buf: &[u8], offset: u64) -> Result<(), Errno> {
        let done = self.file()?.data.write().write(&self.store, buf, offset)?;
        if done == buf.len() { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// A regular file's size, for copy-up of sparse files.
    pub(crate) fn fill_to(&self, size: u64) -> Result<(), Errno> {
        self.file()?.data.write().set_size(&self.store, size)
    }

    fn add(&self, name: &[u8], node: Arc<Node>) -> Result<(), Errno> {
        let mut entries = self.entries_of()?.lock();
        if entries.dead {
            return Err(Errno::ENOENT);
        }
        if entries.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if node.is_dir() {
            self.touch_links(1);
        }
        entries.names.insert(name.into(), node);
        self.touch();
        Ok(())
    }

    fn add_new(&self, name: &[u8], new: &NewInode, target: Option<&[u8]>) -> Result<Arc<dyn Inode>, Errno> {
        let node = Node::unplaced(&self.store, new, target)?;
        self.add(name, node.clone())?;
        Ok(node)
    }

    fn sealed(&self, seal: libc::c_int) -> bool {
        self.meta.lock().seals & seal as u32 != 0
    }

    /// True if there is nothing to cut off or add.
    fn is_untouched_by(&self, size: u64) -> Result<bool, Errno> {
        let data = self.file()?.data.read();
        Ok(data.size() == size && data.blocks() == 0)
    }

    fn resize(&self, size: u64) -> Result<(), Errno> {
        let mut data = self.file()?.data.write();
        let seal = if size > data.size() {
            libc::F_SEAL_GROW
        } else {
            libc::F_SEAL_SHRINK
        };
        if size != data.size() && self.sealed(seal) {
            return Err(Errno::EPERM);
        }
        data.set_size(&self.store, size)
    }

    /// The other directory of a rename.
    fn same_store<'a>(&self, inode: &'a Arc<dyn Inode>) -> Result<&'a Node, Errno> {
        let node = inode.as_any().downcast_ref::<Node>().ok_or(Errno::EXDEV)?;
        if Arc::ptr_eq(&self.store, &node.store) {
            Ok(node)
        } else {
            Err(Errno::EXDEV)
        }
    }
}

impl Inode for Node {
    fn opens(&self) -> Option<&Opens> {
        Some(&self.opens)
    }

    fn attributes(&self) -> Result<Attributes, Errno> {
        let (size, blocks) = match &self.content {
            Content::File(file) => {
                let data = file.data.read();
                (data.size(), data.blocks())
            }
            Content::Directory(entries) => ((entries.lock().names.len() as u64 + 2) * ENTRY_SIZE, 0),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Node => (0, 0),
        };
        let meta = self.meta.lock();
        Ok(Attributes {
            dev: self.store.dev,
            ino: self.ino,
            mode: self.kind | meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: self.rdev,
            size,
            blocks,
            block_size: PAGE as u32,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: meta.btime,
        })
    }

    fn permissions(&self) -> Result<Permissions, Errno> {
        let meta = self.meta.lock();
        Ok(Permissions {
            mode: self.kind | meta.mode,
            uid: meta.uid,
            gid: meta.gid,
        })
    }

    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        let resized = match set.size {
            Some(size) if set.only_if_resized && self.is_untouched_by(size)? => false,
            Some(size) => {
                self.resize(size)?;
                true
            }
            None => true,
        };
        let now = Timestamp::now();
        let mut meta = self.meta.lock();
        meta.mode = set.mode.map_or(meta.mode, |mode| mode & 0o7777);
        meta.uid = set.uid.unwrap_or(meta.uid);
        meta.gid = set.gid.unwrap_or(meta.gid);
        if !resized {
            return Ok(());
        }
        if set.size.is_some() {
            meta.mtime = now;
        }
        meta.atime = set.atime.unwrap_or(meta.atime);
        meta.mtime = set.mtime.unwrap_or(meta.mtime);
        meta.ctime = now;
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let node = self
            .entries_of()?
            .lock()
            .names
            .get(name)
            .cloned()
            .ok_or(Errno::ENOENT)?;
        Ok(node)
    }

    fn create(&self, name: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        self.add_new(name, new, None)
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        self.add_new(name, new, Some(target))
    }

    fn tmpfile(&self, new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        let node = Node::unplaced(&self.store, new, None)?;
        let mut meta = node.meta.lock();
        meta.nlink = 0;
        meta.linkable = true;
        meta.seals = 0;
        drop(meta);
        Ok(node)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        const LINKS_MAX: u32 = u32::MAX / 2;
        let node = self.same_store(target)?;
        let this = node.this.upgrade().ok_or(Errno::ENOENT)?;
        {
            let mut meta = node.meta.lock();
            if meta.nlink == 0 && !meta.linkable {
                return Err(Errno::ENOENT);
            }
            if meta.nlink >= LINKS_MAX {
                return Err(Errno::EMLINK);
            }
            meta.nlink += 1;
        }
        let added = self.add(name, this);
        node.touch_links(if added.is_ok() { 0 } else { -1 });
        if added.is_ok() {
            node.meta.lock().linkable = false;
        }
        added
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        let mut entries = self.entries_of()?.lock();
        let node = entries.names.get(name).ok_or(Errno::ENOENT)?;
        if node.is_dir() {
            return Err(Errno::EISDIR);
        }
        let node = entries.names.remove(name);
        drop(entries);
        if let Some(node) = node {
            node.touch_links(-1);
        }
        self.touch();
        Ok(())
    }

    fn rmdir(&self, name: &[u8]) -> Result<(), Errno> {
        let _tree = self.store.tree.lock()?;
        let mut entries = self.entries_of()?.lock();
        let node = entries.names.get(name).ok_or(Errno::ENOENT)?.clone();
        kill_directory(&node)?;
        entries.names.remove(name);
        drop(entries);
        self.touch_links(-1);
        self.touch();
        Ok(())
    }

    fn rename(&self, old: &[u8], new_dir: &Arc<dyn Inode>, new: &[u8], flags: u32) -> Result<(), Errno> {
        let to = self.same_store(new_dir)?;
        let _tree = self.store.tree.lock()?;
        let node = self.entries_of()?.lock().names.get(old).cloned().ok_or(Errno::ENOENT)?;
        let victim = to.entries_of()?.lock().names.get(new).cloned();
        if to.entries_of()?.lock().dead {
            return Err(Errno::ENOENT);
        }
        if victim.as_ref().is_some_and(|victim| Arc::ptr_eq(victim, &node)) {
            return Ok(());
        }
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        match &victim {
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            Some(victim) if !exchange => match (node.is_dir(), victim.is_dir()) {
                (true, true) => {
                    kill_directory(victim)?;
                    to.touch_links(-1);
                }
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (false, false) => victim.touch_links(-1),
            },
            _ => {}
        }
        self.entries_of()?.lock().names.remove(old);
        to.entries_of()?.lock().names.insert(new.into(), node.clone());
        move_link_count(&node, self, to);
        if let Some(victim) = victim.filter(|_| exchange) {
            move_link_count(&victim, to, self);
            victim.touch_links(0);
            self.entries_of()?.lock().names.insert(old.into(), victim);
        }
        node.touch_links(0);
        self.touch();
        to.touch();
        Ok(())
    }

    fn rename_leaving(
        &self,
        old: &[u8],
        new_dir: &Arc<dyn Inode>,
        new: &[u8],
        left: &NewInode,
    ) -> Result<Arc<dyn Inode>, Errno> {
        let node = Node::unplaced(&self.store, left, None)?;
        self.rename(old, new_dir, new, 0)?;
        self.add(old, node.clone())?;
        Ok(node)
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        match &self.content {
            Content::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(&self, _flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        match &self.content {
            Content::File(_) => Ok(Box::new(OpenFile::new(self.this.upgrade().ok_or(Errno::ENOENT)?))),
            Content::Directory(_) => Ok(Box::new(OpenDirectory::new())),
            _ => Err(Errno::ENXIO),
        }
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let entries = self.entries_of()?.lock();
        let list = entries.names.iter().map(|(name, node)| DirEntry {
            ino: node.ino,
            kind: entry_kind(node.kind),
            name: name.to_vec(),
        });
        Ok(list.collect())
    }

    fn statistics(&self) -> Result<FsStatistics, Errno> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let store = &self.store;
        let unlimited = store.max_pages() == u64::MAX / PAGE;
        Ok(FsStatistics {
            magic: TMPFS_MAGIC,
            block_size: PAGE,
            blocks: if unlimited { 0 } else { store.max_pages() },
            blocks_free: if unlimited { 0 } else { store.free_pages() },
            files: store.max_inodes(),
            files_free: store.max_inodes().saturating_sub(store.used_inodes()),
            name_max: 255,
        })
    }

    fn remounted(&self, options: &[u8]) -> Result<(), Errno> {
        let options = super::TmpfsOptions::parse(options, super::MEMORY)?;
        self.store.set_limits(options.size, options.inodes)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattrs.lock().get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let mut xattrs = self.xattrs.lock();
        let exists = xattrs.contains_key(name);
        if exists && flags & libc::XATTR_CREATE as u32 != 0 {
            return Err(Errno::EEXIST);
        }
        if !exists && flags & libc::XATTR_REPLACE as u32 != 0 {
            return Err(Errno::ENODATA);
        }
        let used: usize = xattrs
            .iter()
            .filter(|(old, _)| *old != name)
            .map(|(old, value)| old.len() + value.len())
            .sum();
        if used + name.len() + value.len() > XATTRS_MAX {
            return Err(Errno::ENOSPC);
        }
        self.charge_extra(((used + name.len() + value.len()) as u64).div_ceil(PAGE))?;
        xattrs.insert(name.to_vec(), value.to_vec());
        drop(xattrs);
        self.touch_links(0);
        Ok(())
    }

    fn list_xattr(&self) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(self.xattrs.lock().keys().cloned().collect())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        let mut xattrs = self.xattrs.lock();
        xattrs.remove(name).ok_or(Errno::ENODATA)?;
        let used: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.charge_extra((used as u64).div_ceil(PAGE))?;
        drop(xattrs);
        self.touch_links(0);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Marks an empty directory as removed; `ENOTEMPTY`, `ENOTDIR`. With the tree locked: its parent may be, too.
fn kill_directory(node: &Node) -> Result<(), Errno> {
    let mut entries = node.entries_of()?.lock_another();
    if !entries.names.is_empty() {
        return Err(Errno::ENOTEMPTY);
    }
    entries.dead = true;
    drop(entries);
    node.touch_links(-2);
    Ok(())
}

/// A directory that moves takes its `..` along.
fn move_link_count(node: &Node, from: &Node, to: &Node) {
    if node.is_dir() && !std::ptr::eq(from, to) {
        from.touch_links(-1);
        to.touch_links(1);
    }
}

impl Drop for Node {
    /// Trees go node by node: a deep one must not be dropped by recursion.
    fn drop(&mut self) {
        self.store.uncharge_inode();
        self.store.uncharge(*self.extra_pages.get_mut());
        let mut todo = Vec::new();
        match &mut self.content {
            Content::File(file) => file.data.get_mut().free(&self.store),
            Content::Directory(entries) => todo.extend(std::mem::take(&mut entries.get_mut().names).into_values()),
            Content::Symlink(_) | Content::Node => {}
        }
        while let Some(node) = todo.pop() {
            if let Some(mut node) = Arc::into_inner(node)
                && let Content::Directory(entries) = &mut node.content
            {
                todo.extend(std::mem::take(&mut entries.get_mut().names).into_values());
            }
        }
    }
}
