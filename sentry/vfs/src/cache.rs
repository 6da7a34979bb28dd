//! The dentry cache: look-ups that stay, and how the cache stays small.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use crate::dentry::{Child, Children, Dentry};
use crate::ops::Vfs;
use crate::walk::NAME_MAX;

/// Names kept before the cache is shrunk (about 300 bytes each with an inode behind).
const LIMIT: usize = 64 * 1024;

/// Counts what is cached.
#[derive(Default)]
pub(crate) struct CacheState {
    /// About how many names are cached. Counted anew by each shrink.
    count: AtomicUsize,
    /// How many there were after the last shrink: names in use cannot be forgotten.
    left: AtomicUsize,
    /// One shrink at a time.
    shrinking: Mutex<(), rank::CacheShrink>,
}

impl CacheState {
    fn added(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Vfs {
    /// The dentry of a name in a directory; `None` if there is no such name.
    pub(crate) fn child(&self, dir: &Arc<Dentry>, name: &[u8]) -> Result<Option<Arc<Dentry>>, Errno> {
        let mut children = dir.children.lock()?;
        self.child_locked(dir, &mut children, name)
    }

    /// As [`Vfs::child`], with the directory locked.
    pub(crate) fn child_locked(
        &self,
        dir: &Arc<Dentry>,
        children: &mut Children,
        name: &[u8],
    ) -> Result<Option<Arc<Dentry>>, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if dir.is_deleted() {
            return Ok(None);
        }
        let cacheable = dir.inode().cacheable();
        let mut old = None;
        match children.get_mut(name) {
            Some(Child::Positive(dentry)) if cacheable => {
                if !dentry.referenced.load(Ordering::Relaxed) {
                    dentry.referenced.store(true, Ordering::Relaxed);
                }
                return Ok(Some(dentry.clone()));
            }
            Some(Child::Negative(referenced)) if cacheable => {
                *referenced = true;
                return Ok(None);
            }
            Some(Child::Positive(dentry)) => old = Some(dentry.clone()),
            Some(Child::Weak(dentry)) => old = dentry.upgrade(),
            Some(Child::Negative(_)) | None => {}
        }
        let inode = match dir.inode().lookup(name) {
            Ok(inode) => inode,
            Err(Errno::ENOENT) => {
                if cacheable {
                    self.insert(children, name, Child::Negative(true));
                } else if children.remove(name).is_some()
                    && let Some(old) = old
                {
                    old.mark_deleted();
                }
                return Ok(None);
            }
            Err(errno) => return Err(errno),
        };
        if let Some(old) = old
            && (Arc::ptr_eq(old.inode(), &inode) || is_same_mount_point(&old, &inode))
        {
            return Ok(Some(old));
        }
        Ok(Some(self.insert_new(dir, children, name, inode)))
    }

    /// Notes a name in its (locked) directory.
    pub(crate) fn insert(&self, children: &mut Children, name: &[u8], child: Child) {
        let weak = matches!(child, Child::Weak(_));
        if children.insert(name.into(), child).is_none() {
            self.cache.added();
            // What is held nowhere else has died meanwhile.
            if weak && children.len() >= 64 && children.len().is_power_of_two() {
                children.retain(|_, child| !matches!(child, Child::Weak(dentry) if dentry.strong_count() == 0));
            }
        }
    }

    /// Notes a new inode under a name.
    pub(crate) fn insert_new(
        &self,
        dir: &Arc<Dentry>,
        children: &mut Children,
        name: &[u8],
        inode: Arc<dyn crate::inode::Inode>,
    ) -> Arc<Dentry> {
        let dentry = Dentry::child(inode, dir, name);
        self.insert_dentry(dir, children, name, &dentry);
        dentry
    }

    /// Notes a dentry under its name.
    pub(crate) fn insert_dentry(&self, dir: &Arc<Dentry>, children: &mut Children, name: &[u8], dentry: &Arc<Dentry>) {
        let held = dir.inode().cacheable() || dir.inode().keeps_inodes();
        let child = if held {
            Child::Positive(dentry.clone())
        } else {
            Child::Weak(Arc::downgrade(dentry))
        };
        self.insert(children, name, child);
    }

    /// Notes that a name does not exist any more.
    pub(crate) fn insert_removed(&self, dir: &Arc<Dentry>, children: &mut Children, name: &[u8]) {
        if dir.inode().cacheable() {
            self.insert(children, name, Child::Negative(true));
        } else {
            children.remove(name);
        }
    }

    /// Shrinks the cache if it has grown too large. Holds no lock when called.
    pub(crate) fn maybe_shrink(&self) {
        // With more than the limit in use, shrinking must not become the work of every walk.
        let left = self.cache.left.load(Ordering::Relaxed);
        if self.cache.count.load(Ordering::Relaxed) > LIMIT.max(left + left / 2) {
            self.shrink(LIMIT * 3 / 4);
        }
    }

    /// Forgets names that nothing uses until about `keep` are left: first those not used since the last time.
    pub fn shrink(&self, keep: usize) {
        let Some(_one) = self.cache.shrinking.try_lock() else {
            return;
        };
        for force in [false, true] {
            let mut directories = Vec::new();
            for root in self.file_system_roots() {
                collect(root, &mut directories);
            }
            // A directory that somebody is busy with is passed over: nobody waits for a shrink.
            let sizes = directories
                .iter()
                .map(|dir| dir.children.try_lock().map_or(0, |children| children.len()));
            let total: usize = sizes.sum();
            let mut left = total;
            // Children come behind their parents in the list: going backwards empties the deep ones first.
            while let Some(dir) = directories.pop() {
                let mut dead = Vec::new();
                let Some(mut children) = dir.children.try_lock() else {
                    continue;
                };
                children.retain(|_, child| {
                    let keep_it = left <= keep || !evict(child, force);
                    if !keep_it {
                        left -= 1;
                        if let Child::Positive(dentry) = child {
                            dead.push(dentry.clone());
                        }
                    }
                    keep_it
                });
            }
            self.cache.count.store(left, Ordering::Relaxed);
            self.cache.left.store(left, Ordering::Relaxed);
            if left <= keep {
                break;
            }
        }
    }

    /// About how many names are cached.
    pub fn cached_names(&self) -> usize {
        self.cache.count.load(Ordering::Relaxed)
    }
}

/// A mount point must be found again even if its file system makes a new inode for each look-up.
fn is_same_mount_point(old: &Arc<Dentry>, inode: &Arc<dyn crate::inode::Inode>) -> bool {
    if old.mounts.load(Ordering::Acquire) == 0 {
        return false;
    }
    match (old.inode().attributes(), inode.attributes()) {
        (Ok(a), Ok(b)) => a.dev == b.dev && a.ino == b.ino,
        _ => false,
    }
}

fn evict(child: &mut Child, force: bool) -> bool {
    match child {
        Child::Negative(referenced) => force || !std::mem::replace(referenced, false),
        Child::Weak(dentry) => dentry.strong_count() == 0,
        Child::Positive(dentry) => {
            let referenced = dentry.referenced.swap(false, Ordering::Relaxed);
            Arc::strong_count(dentry) == 1
                && (force || !referenced)
                && dentry.mounts.load(Ordering::Acquire) == 0
                && dentry.watched.load(Ordering::Relaxed) == 0
                && dentry.children.try_lock().is_some_and(|children| children.is_empty())
        }
    }
}

/// All directories with cached children, parents before children.
fn collect(root: Arc<Dentry>, into: &mut Vec<Arc<Dentry>>) {
    let first = into.len();
    into.push(root);
    let mut next = first;
    while let Some(dir) = into.get(next).cloned() {
        next += 1;
        let Some(children) = dir.children.try_lock() else {
            continue;
        };
        into.extend(children.values().filter_map(|child| match child {
            Child::Positive(dentry) if dentry.is_dir() => Some(dentry.clone()),
            _ => None,
        }));
    }
}

/// Takes a tree of dentries apart (they hold each other) when its file system goes.
pub(crate) fn take_apart(root: &Arc<Dentry>) {
    let mut todo = vec![root.clone()];
    while let Some(dentry) = todo.pop() {
        let children = std::mem::take(&mut *dentry.children.lock_anyway());
        todo.extend(children.into_values().filter_map(|child| match child {
            Child::Positive(dentry) => Some(dentry),
            _ => None,
        }));
    }
}
