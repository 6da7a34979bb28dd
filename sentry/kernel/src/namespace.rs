//! Namespaces (namespaces(7)). Mounts and host names can be a process's own; of the other kinds there is one each.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{RwLock, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::{Attributes, Inode};
use sentry_vfs::ops::Vfs;
use sentry_vfs::path::VfsPath;

use crate::kernel::HostNames;
use crate::task::clone::CloneFlags;

/// `st_dev` of what `/proc/PID/ns` leads to.
const NSFS_DEV: u64 = 0x4;

/// The number of a new namespace, which its link in `/proc/PID/ns` shows.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(4_026_532_100);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Host and domain name.
pub struct UtsNamespace {
    number: u64,
    names: RwLock<HostNames, rank::HostName>,
}

impl UtsNamespace {
    /// The first one.
    pub fn first(names: HostNames) -> Arc<UtsNamespace> {
        Arc::new(UtsNamespace {
            number: 4_026_531_838,
            names: RwLock::new(names),
        })
    }

    /// A new one with the same names.
    pub fn copy(&self) -> Arc<UtsNamespace> {
        Arc::new(UtsNamespace {
            number: next_number(),
            names: RwLock::new(self.names()),
        })
    }

    /// The names.
    pub fn names(&self) -> HostNames {
        self.names.read().clone()
    }

    /// Changes the names.
    pub fn change(&self, change: impl FnOnce(&mut HostNames)) {
        change(&mut self.names.write());
    }
}

/// A set of mounts, taken apart when nobody is in it any more.
pub struct MountNamespace {
    number: u64,
    vfs: Weak<Vfs>,
    /// The VFS's own number for it.
    mounts: u64,
}

impl MountNamespace {
    /// The first one, which `root` is in.
    pub fn first(vfs: &Arc<Vfs>, root: &VfsPath) -> Arc<MountNamespace> {
        Arc::new(MountNamespace {
            number: 4_026_531_841,
            vfs: Arc::downgrade(vfs),
            mounts: root.mount().map_or(0, |mount| mount.namespace()),
        })
    }

    /// A new one with copies of all mounts; `paths` are moved to the copies. `ENOSPC` if there are too many mounts.
    pub fn copy(&self, paths: &mut [&mut VfsPath]) -> Result<Arc<MountNamespace>, Errno> {
        let vfs = self.vfs.upgrade().ok_or(Errno::EINVAL)?;
        let mounts = vfs.copy_mounts(self.mounts, paths)?;
        Ok(Arc::new(MountNamespace {
            number: next_number(),
            vfs: self.vfs.clone(),
            mounts,
        }))
    }

    /// The root of its mounts.
    pub fn root(&self) -> Option<VfsPath> {
        self.vfs.upgrade()?.namespace_root(self.mounts)
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        if let Some(vfs) = self.vfs.upgrade() {
            vfs.end_namespace(self.mounts);
        }
    }
}

/// A namespace that a descriptor can mean.
#[derive(Clone)]
pub enum Namespace {
    /// Mounts.
    Mount(Arc<MountNamespace>),
    /// Host and domain name.
    Uts(Arc<UtsNamespace>),
    /// Of a kind of which there is one: index into [`KINDS`].
    Only(usize),
}

/// Kinds of which there is one namespace: name, number, flag of clone(2).
pub const KINDS: [(&str, u64, CloneFlags); 6] = [
    ("cgroup", 4_026_531_835, CloneFlags::NEWCGROUP),
    ("ipc", 4_026_531_839, CloneFlags::NEWIPC),
    ("net", 4_026_531_840, CloneFlags::NEWNET),
    ("pid", 4_026_531_836, CloneFlags::NEWPID),
    ("time", 4_026_531_834, CloneFlags::NEWTIME),
    ("user", 4_026_531_837, CloneFlags::NEWUSER),
];

impl Namespace {
    /// Its kind's name, number and flag of clone(2).
    pub fn description(&self) -> (&'static str, u64, CloneFlags) {
        match self {
            Namespace::Mount(mounts) => ("mnt", mounts.number, CloneFlags::NEWNS),
            Namespace::Uts(uts) => ("uts", uts.number, CloneFlags::NEWUTS),
            Namespace::Only(index) => KINDS.get(*index).copied().unwrap_or(KINDS[0]),
        }
    }

    /// As a link's text: `uts:[4026531838]`.
    pub fn text(&self) -> String {
        let (kind, number, _) = self.description();
        format!("{kind}:[{number}]")
    }

    /// The namespace behind an open file; `EINVAL` if it is something else.
    pub fn of(file: &File) -> Result<Namespace, Errno> {
        let open = file.ops().as_any().downcast_ref::<OpenNamespace>();
        Ok(open.ok_or(Errno::EINVAL)?.0.clone())
    }

    /// Where its link in `/proc/PID/ns` leads.
    pub fn path(&self) -> VfsPath {
        VfsPath::anonymous_inode(self.text(), Arc::new(NamespaceInode(self.clone())))
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            dev: NSFS_DEV,
            ino: self.description().1,
            mode: libc::S_IFREG | 0o444,
            nlink: 1,
            block_size: 4096,
            ..Attributes::default()
        }
    }
}

struct NamespaceInode(Namespace);

impl Inode for NamespaceInode {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(self.0.attributes())
    }

    fn open(&self, flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        if flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno::EPERM);
        }
        Ok(Box::new(OpenNamespace(self.0.clone())))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct OpenNamespace(Namespace);

impl FileOps for OpenNamespace {
    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(self.0.attributes())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
