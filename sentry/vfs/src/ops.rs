//! The operations of the virtual file system, as system calls need them.
//!
//! A call resolves a path to a [`VfsPath`] and acts on it (`stat`, `chmod`, `open_path`…), or it acts on a name
//! in a directory (`mkdir`, `unlink`, `rename`…) and hands the whole path over. Permission is checked here,
//! with Linux's errors, from the [`Caller`]'s credentials. Nothing here waits for another guest task.
//!
//! The methods of [`Vfs`] stand in one file per subject:
//!
//! - names (`walk.rs`, `open.rs`, `names.rs`): [`Vfs::resolve`], [`Vfs::open`], [`Vfs::mkdir`], [`Vfs::mknod`], [`Vfs::symlink`], [`Vfs::link`],
//!   [`Vfs::unlink`], [`Vfs::rmdir`], [`Vfs::rename`]
//! - places (`attr.rs`, `walk.rs`): [`Vfs::stat`], [`Vfs::access`], [`Vfs::chmod`], [`Vfs::chown`], [`Vfs::set_times`],
//!   [`Vfs::truncate`], [`Vfs::statfs`], [`Vfs::readlink`], extended attributes, [`Vfs::d_path`]
//! - open files (`attr.rs`): [`Vfs::truncate_file`], [`Vfs::remove_privileges`]
//! - mounts: see [`crate::mount`]

use std::sync::{Arc, OnceLock};

use bitflags::bitflags;
use sentry_host::waiting::LongRwLock;
use sentry_lock::{RwLock, rank};

use crate::budget::Budget;
use crate::cache::CacheState;
use crate::cred::Credentials;
use crate::device::{DeviceRegistry, FifoOpener};
use crate::inode::Timestamp;
use crate::mount::{FileSystem, MountFlags, MountTable};
use crate::notify::Notifier;
use crate::opens::LeaseBreaker;
use crate::path::VfsPath;
use crate::text::Texts;
use crate::tmpfs::{Tmpfs, TmpfsOptions};

/// The numbers of the calling task, for what depends on who looks (`/proc/self`, `/dev/tty`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TaskIds {
    /// Thread group (process).
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
}

/// On whose behalf an operation runs.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Caller<'a> {
    pub cred: &'a Credentials,
    pub root: &'a VfsPath,
    pub cwd: &'a VfsPath,
    pub umask: u32,
    pub task: TaskIds,
}

impl<'a> Caller<'a> {
    /// Somebody whose root and working directory are the same, without an umask and no task in particular.
    pub fn at_root(cred: &'a Credentials, root: &'a VfsPath) -> Caller<'a> {
        Caller {
            cred,
            root,
            cwd: root,
            umask: 0,
            task: TaskIds::default(),
        }
    }

    /// The same caller with other credentials.
    pub fn with_cred(&self, cred: &'a Credentials) -> Caller<'a> {
        Caller { cred, ..*self }
    }
}

/// Where a relative path starts.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    /// `AT_FDCWD`.
    Cwd,
    /// What a descriptor refers to.
    Path(&'a VfsPath),
}

bitflags! {
    /// How to resolve a path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Lookup: u32 {
        /// Do not follow a symbolic link at the end (`AT_SYMLINK_NOFOLLOW`).
        const NO_FOLLOW = 1;
        /// `ENOTDIR` unless the result is a directory.
        const DIRECTORY = 2;
        /// An empty path means the start itself (`AT_EMPTY_PATH`), else `ENOENT`.
        const EMPTY_PATH = 4;
        /// Is no use of a mount that is about to expire (`MNT_EXPIRE`).
        const KEEP_EXPIRY = 8;
    }
}

bitflags! {
    /// openat2(2)'s `RESOLVE_*`, with its numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Resolve: u64 {
        /// Stay on one mount.
        const NO_XDEV = 0x01;
        /// Follow no magic link.
        const NO_MAGICLINKS = 0x02;
        /// Follow no symbolic link at all.
        const NO_SYMLINKS = 0x04;
        /// Do not leave the start.
        const BENEATH = 0x08;
        /// Take the start as the root.
        const IN_ROOT = 0x10;
        /// Only what is cached: `EAGAIN` else. (We never wait, so it always succeeds.)
        const CACHED = 0x20;
    }
}

/// What access(2) and permission checks ask for: `R_OK`, `W_OK`, `X_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// Existence only.
    pub const EXIST: Access = Access(0);
    /// May be executed or searched.
    pub const EXEC: Access = Access(1);
    /// May be written.
    pub const WRITE: Access = Access(2);
    /// May be read.
    pub const READ: Access = Access(4);
}

/// A time to set (utimensat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// `UTIME_NOW`.
    Now,
    /// `UTIME_OMIT`.
    Omit,
    /// A given time.
    At(Timestamp),
}

/// The virtual file system: all mounts of all namespaces, the dentry cache, devices.
///
/// Lock order: `rename_lock`; the children of one directory (or of two, in a rename only, by address); the mount
/// table; then the file system's own locks. A dentry's link is a leaf.
pub struct Vfs {
    pub(crate) devices: DeviceRegistry,
    pub(crate) fifos: RwLock<Option<Arc<dyn FifoOpener>>, rank::FifoOpener>,
    pub(crate) table: RwLock<MountTable, rank::MountTable>,
    pub(crate) cache: CacheState,
    /// Held for reading while a path is put together, for writing in each rename.
    pub(crate) rename_lock: LongRwLock<(), rank::RenameLock>,
    /// Where files without a place live (memfd_create(2)).
    pub(crate) unplaced: Arc<Tmpfs>,
    budget: Arc<Budget>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) texts: Arc<Texts>,
    pub(crate) leases: OnceLock<Arc<dyn LeaseBreaker>>,
}

impl Vfs {
    /// A tree with this root; gives its root place.
    pub fn new(root: &Arc<FileSystem>, flags: MountFlags) -> (Arc<Vfs>, VfsPath) {
        Vfs::with_budget(root, flags, Arc::default())
    }

    /// The same, with a limit for what is kept in memory.
    pub fn with_budget(root: &Arc<FileSystem>, flags: MountFlags, budget: Arc<Budget>) -> (Arc<Vfs>, VfsPath) {
        let unplaced = TmpfsOptions {
            budget: budget.clone(),
            ..TmpfsOptions::default()
        };
        let vfs = Vfs {
            devices: DeviceRegistry::default(),
            fifos: RwLock::new(None),
            table: RwLock::default(),
            cache: CacheState::default(),
            rename_lock: LongRwLock::new(()),
            unplaced: Tmpfs::new(unplaced),
            budget,
            notifier: Arc::default(),
            texts: Arc::default(),
            leases: OnceLock::new(),
        };
        crate::devtmpfs::register(&vfs.devices);
        let mount = vfs.add_namespace(root, flags);
        let path = VfsPath::new(mount, root.root().clone());
        (Arc::new(vfs), path)
    }

    /// What its files in memory may use together.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The drivers of device nodes.
    pub fn devices(&self) -> &DeviceRegistry {
        &self.devices
    }

    /// Sets what opens FIFOs.
    pub fn set_fifo_opener(&self, opener: Arc<dyn FifoOpener>) {
        *self.fifos.write() = Some(opener);
    }
}
