//! Inodes of the overlay.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sentry_abi::Errno;
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, rank};

use super::open::OpenLower;
use super::{LowerKey, Shared};
use crate::dir::OpenDirectory;
use crate::file::{DirEntry, FileOps};
use crate::inode::{Attributes, FsStatistics, Inode, NewInode, Permissions, SetAttributes};
use crate::opens::Opens;
use crate::pseudo::entry_kind;
use crate::tmpfs;

/// A directory, and the name something has in it.
type Found = (Weak<Node>, Box<[u8]>);

pub(super) struct Node {
    this: Weak<Node>,
    pub(super) shared: Arc<Shared>,
    pub(super) ino: u64,
    /// Type bits.
    pub(super) kind: u32,
    pub(super) lower: Option<Arc<dyn Inode>>,
    pub(super) key: Option<LowerKey>,
    /// Attributes and content, once they differ from the lower file's.
    pub(super) upper: OnceLock<Arc<tmpfs::Node>>,
    /// Held over a copy-up.
    pub(super) copying: LongMutex<(), rank::OverlayCopy>,
    links: AtomicU32,
    /// Made without a name and may still get one.
    linkable: AtomicBool,
    /// A lower file that got a name here.
    pub(super) linked: AtomicBool,
    pub(super) directory: Mutex<Directory, rank::OverlayDirectory>,
    /// Where it was found in the lower tree, if changes are tracked. A leaf in the lock order.
    found_in: Mutex<Vec<Found>, rank::OverlayFound>,
    opens: Opens,
}

/// How a directory differs from its lower one.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) changes: BTreeMap<Box<[u8]>, Change>,
    /// Lower names that differ, or below which something does, as far as changes are tracked. May be outdated.
    pub(super) touched: BTreeSet<Box<[u8]>>,
    /// Removed: nothing can be made in it.
    dead: bool,
}

pub(super) enum Change {
    /// Made, or moved here.
    Node(Arc<Node>),
    /// The lower directory's name is hidden.
    Removed,
}

impl Node {
    pub(super) fn of_lower(
        shared: &Arc<Shared>,
        lower: Arc<dyn Inode>,
        key: LowerKey,
        attributes: &Attributes,
    ) -> Arc<Node> {
        let ino = shared.ino_of(key);
        let kind = attributes.mode & libc::S_IFMT;
        Node::make(shared, ino, kind, Some((lower, key)), OnceLock::new(), attributes.nlink)
    }

    fn make(
        shared: &Arc<Shared>,
        ino: u64,
        kind: u32,
        lower: Option<(Arc<dyn Inode>, LowerKey)>,
        upper: OnceLock<Arc<tmpfs::Node>>,
        links: u32,
    ) -> Arc<Node> {
        let (lower, key) = lower.unzip();
        Arc::new_cyclic(|this| Node {
            this: this.clone(),
            shared: shared.clone(),
            ino,
            kind,
            lower,
            key,
            upper,
            copying: LongMutex::new(()),
            links: AtomicU32::new(links),
            linkable: AtomicBool::new(false),
            linked: AtomicBool::new(false),
            directory: Mutex::default(),
            found_in: Mutex::default(),
            opens: Opens::default(),
        })
    }

    /// A node that has never been in the lower tree.
    fn new_upper(&self, new: &NewInode, target: Option<&[u8]>) -> Result<Arc<Node>, Errno> {
        let upper = tmpfs::Node::unplaced(&self.shared.store, new, target)?;
        let kind = new.mode & libc::S_IFMT;
        let links = if kind == libc::S_IFDIR { 2 } else { 1 };
        Ok(Node::make(
            &self.shared,
            self.shared.next_ino(),
            kind,
            None,
            OnceLock::from(upper),
            links,
        ))
    }

    /// What answers for attributes and content.
    fn current(&self) -> &dyn Inode {
        match (self.upper.get(), &self.lower) {
            (Some(upper), _) => &**upper,
            (None, Some(lower)) => &**lower,
            // A node has one or the other.
            (None, None) => &Nothing,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Keeps the node while it differs from its lower file.
    pub(super) fn pin(&self) {
        if let (Some(key), Some(this)) = (self.key, self.this.upgrade())
            && self.links.load(Ordering::Relaxed) > 0
        {
            self.shared.pin(key, &this);
        }
    }

    /// Notes where a lower file was found, for [`Self::mark`].
    fn note_place(&self, directory: &Node, name: &[u8]) {
        if !self.shared.tracks() {
            return;
        }
        let mut places = self.found_in.lock();
        let known = |(place, at): &Found| Weak::ptr_eq(place, &directory.this) && **at == *name;
        if !places.iter().any(known) {
            places.retain(|(place, _)| place.strong_count() > 0);
            places.push((directory.this.clone(), name.into()));
            drop(places);
            // Another name of what has changed already.
            if self.upper.get().is_some() || self.linked.load(Ordering::Relaxed) {
                self.mark();
            }
        }
    }

    fn places(&self) -> Vec<(Arc<Node>, Box<[u8]>)> {
        let places = self.found_in.lock();
        let alive = places
            .iter()
            .filter_map(|(place, name)| Some((place.upgrade()?, name.clone())));
        alive.collect()
    }

    /// Tells the directories above that something differs here, if changes are tracked.
    pub(super) fn mark(&self) {
        if !self.shared.tracks() {
            return;
        }
        let mut todo = self.places();
        while let Some((directory, name)) = todo.pop() {
            let mut inside = directory.directory.lock();
            let first = inside.touched.is_empty();
            inside.touched.insert(name);
            drop(inside);
            if first {
                directory.pin();
                todo.extend(directory.places());
            }
        }
    }

    fn unpin(&self) {
        if let Some(key) = self.key {
            self.shared.unpin(key);
        }
    }

    fn change_links(&self, change: i32) {
        let _ = self.links.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |links| {
            Some(links.saturating_add_signed(change))
        });
    }

    /// A name of this node (not a directory) was removed.
    fn unlinked(&self) {
        self.change_links(-1);
        if self.links.load(Ordering::Relaxed) == 0 {
            self.unpin();
        } else {
            self.pin();
        }
        self.touch_change();
    }

    /// Its change time is now; a lower file keeps the one it has.
    fn touch_change(&self) {
        if let Some(upper) = self.upper.get() {
            let _ = upper.set_attributes(&SetAttributes::default());
        }
    }

    /// To be called before the directory's names change.
    fn check_alive(&self) -> Result<&Arc<tmpfs::Node>, Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if self.directory.lock().dead {
            return Err(Errno::ENOENT);
        }
        self.copy_up(0)
    }

    pub(super) fn find(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        match self.directory.lock().changes.get(name) {
            Some(Change::Node(node)) => return Ok(node.clone()),
            Some(Change::Removed) => return Err(Errno::ENOENT),
            None => {}
        }
        let lower = self.lower.as_ref().ok_or(Errno::ENOENT)?;
        let node = self.shared.node_of(lower.lookup(name)?)?;
        node.note_place(self, name);
        Ok(node)
    }

    /// Puts a new name in.
    fn add(&self, name: &[u8], node: Arc<Node>) -> Result<(), Errno> {
        let upper = self.check_alive()?;
        match self.find(name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let mut directory = self.directory.lock();
        if directory.dead {
            return Err(Errno::ENOENT);
        }
        if node.is_dir() {
            self.change_links(1);
        }
        directory.changes.insert(name.into(), Change::Node(node));
        drop(directory);
        upper.touch();
        Ok(())
    }

    fn add_new(&self, name: &[u8], new: &NewInode, target: Option<&[u8]>) -> Result<Arc<dyn Inode>, Errno> {
        let node = self.new_upper(new, target)?;
        self.add(name, node.clone())?;
        Ok(node)
    }

    /// Takes a name out; what was in its place is given back to be dropped without the lock.
    fn remove(&self, name: &[u8]) -> Option<Change> {
        // Where the lower directory cannot say, the name is hidden.
        let below = self
            .lower
            .as_ref()
            .is_some_and(|lower| !matches!(lower.lookup(name), Err(Errno::ENOENT)));
        let mut directory = self.directory.lock();
        if below {
            directory.changes.insert(name.into(), Change::Removed)
        } else {
            directory.changes.remove(name)
        }
    }

    /// Marks an empty directory as removed; `ENOTEMPTY`, `ENOTDIR`. Holds the tree lock.
    fn kill_directory(&self) -> Result<(), Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !self.entries()?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.directory.lock().dead = true;
        self.links.store(0, Ordering::Relaxed);
        self.unpin();
        Ok(())
    }

    fn same_overlay<'a>(&self, inode: &'a Arc<dyn Inode>) -> Result<&'a Node, Errno> {
        let node = inode.as_any().downcast_ref::<Node>().ok_or(Errno::EXDEV)?;
        if Arc::ptr_eq(&self.shared, &node.shared) {
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
        let mut attributes = self.current().attributes()?;
        attributes.dev = self.shared.store.dev;
        attributes.ino = self.ino;
        attributes.nlink = self.links.load(Ordering::Relaxed);
        Ok(attributes)
    }

    fn permissions(&self) -> Result<Permissions, Errno> {
        self.current().permissions()
    }

    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.copy_up(set.size.unwrap_or(u64::MAX))?.set_attributes(set)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        Ok(self.find(name)?)
    }

    fn cacheable(&self) -> bool {
        self.lower.as_ref().is_none_or(|lower| lower.cacheable())
    }

    fn keeps_inodes(&self) -> bool {
        true
    }

    fn create(&self, name: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        // As in Linux, a whiteout is the overlay's own matter.
        if new.mode & libc::S_IFMT == libc::S_IFCHR && new.rdev == 0 {
            return Err(Errno::EPERM);
        }
        self.add_new(name, new, None)
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        self.add_new(name, new, Some(target))
    }

    fn tmpfile(&self, new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        let node = self.new_upper(new, None)?;
        node.links.store(0, Ordering::Relaxed);
        node.linkable.store(true, Ordering::Relaxed);
        Ok(node)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        let node = self.same_overlay(target)?;
        let this = node.this.upgrade().ok_or(Errno::ENOENT)?;
        if node.links.load(Ordering::Relaxed) == 0 && !node.linkable.load(Ordering::Relaxed) {
            return Err(Errno::ENOENT);
        }
        self.add(name, this)?;
        node.linkable.store(false, Ordering::Relaxed);
        node.change_links(1);
        node.linked.store(node.lower.is_some(), Ordering::Relaxed);
        node.pin();
        node.mark();
        node.touch_change();
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        let node = self.find(name)?;
        if node.is_dir() {
            return Err(Errno::EISDIR);
        }
        let upper = self.check_alive()?;
        let gone = self.remove(name);
        node.unlinked();
        upper.touch();
        drop(gone);
        Ok(())
    }

    fn rmdir(&self, name: &[u8]) -> Result<(), Errno> {
        let _tree = self.shared.store.tree.lock()?;
        let node = self.find(name)?;
        let upper = self.check_alive()?;
        node.kill_directory()?;
        let gone = self.remove(name);
        self.change_links(-1);
        upper.touch();
        drop(gone);
        Ok(())
    }

    fn rename(&self, old: &[u8], new_dir: &Arc<dyn Inode>, new: &[u8], flags: u32) -> Result<(), Errno> {
        let to = self.same_overlay(new_dir)?;
        let _tree = self.shared.store.tree.lock()?;
        let node = self.find(old)?;
        let victim = match to.find(new) {
            Ok(victim) => Some(victim),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        // Everything that can fail comes first.
        let (from_upper, to_upper) = (self.check_alive()?, to.check_alive()?);
        if victim.as_ref().is_some_and(|victim| Arc::ptr_eq(victim, &node)) {
            return Ok(());
        }
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        match &victim {
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            Some(victim) if !exchange => match (node.is_dir(), victim.is_dir()) {
                (true, true) => {
                    victim.kill_directory()?;
                    to.change_links(-1);
                }
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (false, false) => victim.unlinked(),
            },
            _ => {}
        }
        let mut gone = vec![self.remove(old)];
        gone.push(
            to.directory
                .lock()
                .changes
                .insert(new.into(), Change::Node(node.clone())),
        );
        move_link_count(&node, self, to);
        if let Some(victim) = victim.filter(|_| exchange) {
            move_link_count(&victim, to, self);
            victim.touch_change();
            gone.push(self.directory.lock().changes.insert(old.into(), Change::Node(victim)));
        }
        node.touch_change();
        from_upper.touch();
        to_upper.touch();
        Ok(())
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        self.current().readlink()
    }

    fn open(&self, flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        if self.is_dir() {
            return Ok(Box::new(OpenDirectory::new()));
        }
        if flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
            return self.copy_up(u64::MAX)?.open(flags);
        }
        match (self.upper.get(), &self.lower) {
            (None, Some(lower)) => {
                let node = self.this.upgrade().ok_or(Errno::ENOENT)?;
                Ok(Box::new(OpenLower::new(node, lower.open(flags)?, flags)))
            }
            _ => self.current().open(flags),
        }
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let mut entries = match &self.lower {
            Some(lower) => lower.entries()?,
            None => Vec::new(),
        };
        let directory = self.directory.lock();
        entries.retain(|entry| !directory.changes.contains_key(entry.name.as_slice()));
        entries.extend(directory.changes.iter().filter_map(|(name, change)| match change {
            Change::Node(node) => Some(DirEntry {
                ino: node.ino,
                kind: entry_kind(node.kind),
                name: name.to_vec(),
            }),
            Change::Removed => None,
        }));
        Ok(entries)
    }

    fn statistics(&self) -> Result<FsStatistics, Errno> {
        const OVERLAYFS_MAGIC: u64 = 0x794c_7630;
        let store = &self.shared.store;
        let mut statistics = match &self.lower {
            // Without a limit of our own, the lower file system's numbers are at least plausible.
            Some(lower) if store.max_pages() == u64::MAX / sentry_abi::PAGE_SIZE => lower.statistics()?,
            lower => {
                // What is there below takes room too, and there is none to be had from it.
                let below = lower
                    .as_ref()
                    .and_then(|lower| lower.statistics().ok())
                    .unwrap_or_default();
                let used = below
                    .blocks
                    .saturating_sub(below.blocks_free)
                    .saturating_mul(below.block_size);
                FsStatistics {
                    block_size: sentry_abi::PAGE_SIZE,
                    blocks: store.max_pages().saturating_add(used.div_ceil(sentry_abi::PAGE_SIZE)),
                    blocks_free: store.free_pages(),
                    files: store.max_inodes(),
                    files_free: store.max_inodes().saturating_sub(store.used_inodes()),
                    ..FsStatistics::default()
                }
            }
        };
        statistics.magic = OVERLAYFS_MAGIC;
        statistics.name_max = 255;
        Ok(statistics)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.current().get_xattr(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        self.copy_up(u64::MAX)?.set_xattr(name, value, flags)
    }

    fn list_xattr(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.current().list_xattr()
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.copy_up(u64::MAX)?.remove_xattr(name)
    }

    fn unmounted(&self) {
        if self.shared.tracks() {
            // Still to be asked what has changed.
            return;
        }
        // Changed nodes and what they share hold each other.
        let nodes = std::mem::take(&mut *self.shared.nodes.lock());
        drop(nodes);
        if let Some(lower) = &self.lower {
            lower.unmounted();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A directory that moves takes its `..` along.
fn move_link_count(node: &Node, from: &Node, to: &Node) {
    if node.is_dir() && !std::ptr::eq(from, to) {
        from.change_links(-1);
        to.change_links(1);
    }
}

impl Drop for Node {
    /// Trees go node by node: a deep one must not be dropped by recursion.
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.forget(key);
        }
        let mut todo: Vec<Change> = std::mem::take(&mut self.directory.get_mut().changes)
            .into_values()
            .collect();
        while let Some(change) = todo.pop() {
            if let Change::Node(node) = change
                && let Some(mut node) = Arc::into_inner(node)
            {
                todo.extend(std::mem::take(&mut node.directory.get_mut().changes).into_values());
            }
        }
    }
}

/// Answers for a node that has neither inode, which cannot be.
struct Nothing;

impl Inode for Nothing {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Err(Errno::EIO)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
