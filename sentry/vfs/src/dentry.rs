//! Dentries: names in directories, cached.
//!
//! A dentry always has an inode; a name known not to exist is only a mark in its parent's table. Dentries hold
//! their parents, and parents hold their cached children, until the cache is shrunk, the name is removed or the
//! file system is no longer mounted.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sentry_host::waiting::LongMutex;
use sentry_lock::{RwLock, rank};

use crate::inode::Inode;
use crate::notify::EndNotice;

/// A name in a directory, or the root of a file system.
pub struct Dentry {
    inode: Arc<dyn Inode>,
    /// The inode's type bits (`S_IFMT`), which never change.
    kind: u32,
    link: RwLock<Link, rank::DentryLink>,
    /// Cached children. Held over each change of the directory and each look-up in its inode, so that table
    /// and directory agree (Linux's `i_rwsem`).
    pub(crate) children: LongMutex<Children, rank::DentryChildren>,
    /// Unlinked: the name is gone, open descriptions live on.
    deleted: AtomicBool,
    /// Used since the cache was last shrunk.
    pub(crate) referenced: AtomicBool,
    /// How many mounts have this dentry as their mount point.
    pub(crate) mounts: AtomicU32,
    /// How many marks were made here ([`crate::notify::Mark`]): as long, the cache keeps it.
    pub(crate) watched: AtomicU32,
    /// Of a removed name: tells the inode's end.
    pub(crate) end_notice: OnceLock<Box<EndNotice>>,
}

pub(crate) type Children = HashMap<Box<[u8]>, Child>;

/// What is known of a name.
pub(crate) enum Child {
    Positive(Arc<Dentry>),
    /// In a directory that is asked each time: a dentry that something else may hold.
    Weak(Weak<Dentry>),
    /// Known not to exist; true if used since the cache was last shrunk.
    Negative(bool),
}

struct Link {
    parent: Option<Arc<Dentry>>,
    name: Arc<[u8]>,
}

impl Dentry {
    /// The root of a file system.
    pub fn root(inode: Arc<dyn Inode>) -> Arc<Dentry> {
        Dentry::make(inode, None, &[])
    }

    pub(crate) fn child(inode: Arc<dyn Inode>, parent: &Arc<Dentry>, name: &[u8]) -> Arc<Dentry> {
        Dentry::make(inode, Some(parent.clone()), name)
    }

    fn make(inode: Arc<dyn Inode>, parent: Option<Arc<Dentry>>, name: &[u8]) -> Arc<Dentry> {
        let kind = inode.permissions().map(|permissions| permissions.kind()).unwrap_or(0);
        Arc::new(Dentry {
            inode,
            kind,
            link: RwLock::new(Link {
                parent,
                name: name.into(),
            }),
            children: LongMutex::new(HashMap::new()),
            deleted: AtomicBool::new(false),
            referenced: AtomicBool::new(true),
            mounts: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            end_notice: OnceLock::new(),
        })
    }

    /// Its inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// True for a FIFO.
    pub(crate) fn is_fifo(&self) -> bool {
        self.kind == libc::S_IFIFO
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == libc::S_IFLNK
    }

    /// The directory it is in; `None` for the root of a file system.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.link.read().parent.clone()
    }

    /// Its name in its directory; empty for the root of a file system.
    pub fn name(&self) -> Arc<[u8]> {
        self.link.read().name.clone()
    }

    /// True once its name was removed.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(crate) fn mark_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    /// True if `self` is `other` or above it.
    pub(crate) fn is_ancestor_of(self: &Arc<Dentry>, other: &Arc<Dentry>) -> bool {
        let mut next = Some(other.clone());
        while let Some(dentry) = next {
            if Arc::ptr_eq(self, &dentry) {
                return true;
            }
            next = dentry.parent();
        }
        false
    }

    pub(crate) fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let new = Link {
            parent: Some(parent.clone()),
            name: name.into(),
        };
        let old = std::mem::replace(&mut *self.link.write(), new);
        drop(old);
    }
}

impl Drop for Dentry {
    /// Parents go one by one: a deep tree must not be dropped by recursion.
    fn drop(&mut self) {
        let mut next = self.link.get_mut().parent.take();
        while let Some(parent) = next {
            next = match Arc::into_inner(parent) {
                Some(mut parent) => parent.link.get_mut().parent.take(),
                None => None,
            };
        }
    }
}

impl fmt::Debug for Dentry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dentry({})", String::from_utf8_lossy(&self.name()))
    }
}
