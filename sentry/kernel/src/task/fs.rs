//! What path names mean to a thread: root, working directory, umask.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{RwLock, rank};
use sentry_vfs::cred::Credentials;
use sentry_vfs::ops::{Caller, TaskIds};
use sentry_vfs::path::VfsPath;

use crate::namespace::MountNamespace;

/// Root, working directory and umask; shared by threads with `CLONE_FS`.
pub struct FsContext {
    inner: RwLock<Inner, rank::FsPlaces>,
}

#[derive(Clone)]
struct Inner {
    root: VfsPath,
    cwd: VfsPath,
    umask: u32,
    mounts: Arc<MountNamespace>,
}

impl FsContext {
    /// A context of its own.
    pub fn new(root: VfsPath, cwd: VfsPath, umask: u32, mounts: Arc<MountNamespace>) -> Arc<FsContext> {
        Arc::new(FsContext {
            inner: RwLock::new(Inner {
                root,
                cwd,
                umask,
                mounts,
            }),
        })
    }

    /// The mounts that it is in.
    pub fn mounts(&self) -> Arc<MountNamespace> {
        self.inner.read().mounts.clone()
    }

    /// A copy with mounts of its own (`CLONE_NEWNS`).
    pub fn with_own_mounts(&self) -> Result<Arc<FsContext>, Errno> {
        let mut inner = self.inner.read().clone();
        inner.mounts = inner.mounts.clone().copy(&mut [&mut inner.root, &mut inner.cwd])?;
        Ok(Arc::new(FsContext {
            inner: RwLock::new(inner),
        }))
    }

    /// Goes to other mounts, and to their root (setns(2)).
    pub fn enter_mounts(&self, mounts: Arc<MountNamespace>) -> Result<(), Errno> {
        let root = mounts.root().ok_or(Errno::EINVAL)?;
        let mut inner = self.inner.write();
        let new = Inner {
            root: root.clone(),
            cwd: root,
            umask: inner.umask,
            mounts,
        };
        let old = std::mem::replace(&mut *inner, new);
        drop(inner);
        drop(old);
        Ok(())
    }

    /// A copy, as fork(2) makes it.
    pub fn fork(&self) -> Arc<FsContext> {
        Arc::new(FsContext {
            inner: RwLock::new(self.inner.read().clone()),
        })
    }

    /// The root directory.
    pub fn root(&self) -> VfsPath {
        self.inner.read().root.clone()
    }

    /// The working directory.
    pub fn cwd(&self) -> VfsPath {
        self.inner.read().cwd.clone()
    }

    /// The mask for new files.
    pub fn umask(&self) -> u32 {
        self.inner.read().umask
    }

    /// chroot(2).
    pub fn set_root(&self, root: VfsPath) {
        self.inner.write().root = root;
    }

    /// chdir(2).
    pub fn set_cwd(&self, cwd: VfsPath) {
        self.inner.write().cwd = cwd;
    }

    /// umask(2); the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        std::mem::replace(&mut self.inner.write().umask, umask & 0o777)
    }

    /// A snapshot for one VFS operation.
    pub fn context(&self, cred: Arc<Credentials>, task: TaskIds) -> CallerContext {
        let Inner { root, cwd, umask, .. } = self.inner.read().clone();
        CallerContext {
            cred,
            root,
            cwd,
            umask,
            task,
        }
    }
}

/// What a [`Caller`] borrows from: `let ctx = thread.context(); vfs.open(&ctx.caller(), …)`.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct CallerContext {
    pub cred: Arc<Credentials>,
    pub root: VfsPath,
    pub cwd: VfsPath,
    pub umask: u32,
    pub task: TaskIds,
}

impl CallerContext {
    /// The caller, for the VFS.
    pub fn caller(&self) -> Caller<'_> {
        Caller {
            cred: &self.cred,
            root: &self.root,
            cwd: &self.cwd,
            umask: self.umask,
            task: self.task,
        }
    }
}
