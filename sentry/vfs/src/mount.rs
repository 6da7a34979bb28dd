//! Mounts and the mount table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bitflags::bitflags;
use sentry_abi::Errno;
use sentry_lock::{RwLock, rank};

use crate::dentry::Dentry;
use crate::inode::Inode;

bitflags! {
    /// Per-mount flags, with the numbers of mount(2)'s `MS_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct MountFlags: u32 {
        /// Nothing can be changed through this mount.
        const READ_ONLY = 1;
        /// Set-user-id and set-group-id bits are ignored.
        const NO_SUID = 2;
        /// Device nodes cannot be opened.
        const NO_DEV = 4;
        /// Programs cannot be executed.
        const NO_EXEC = 8;
        /// Symbolic links are not followed.
        const NO_SYMFOLLOW = 256;
        /// Access times are not kept.
        const NO_ATIME = 1024;
        /// Access times of directories are not kept.
        const NO_DIRATIME = 2048;
        /// Access times are kept only relative to changes.
        const REL_ATIME = 1 << 21;
    }
}

/// A file system that can be mounted, at more than one place.
pub struct FileSystem {
    root: Arc<Dentry>,
    /// As in /proc/mounts: `tmpfs`, `proc`, `overlay`…
    kind: String,
    /// First field of /proc/mounts.
    source: Vec<u8>,
    /// File-system options of /proc/mounts, without the mount flags (`size=64k`); may be empty.
    options: Vec<u8>,
    dev: u64,
}

impl FileSystem {
    /// A file system with this root directory (or file).
    pub fn new(
        root: Arc<dyn Inode>,
        kind: impl Into<String>,
        source: impl Into<Vec<u8>>,
        options: impl Into<Vec<u8>>,
    ) -> Arc<FileSystem> {
        let dev = root.attributes().map(|attributes| attributes.dev).unwrap_or(0);
        Arc::new(FileSystem {
            root: Dentry::root(root),
            kind: kind.into(),
            source: source.into(),
            options: options.into(),
            dev,
        })
    }

    /// Its root.
    pub fn root(&self) -> &Arc<Dentry> {
        &self.root
    }

    /// First field of /proc/mounts.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// File-system options of /proc/mounts; may be empty.
    pub fn options(&self) -> &[u8] {
        &self.options
    }

    /// The device number of its root.
    pub fn dev(&self) -> u64 {
        self.dev
    }

    /// Its type's name.
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        crate::cache::take_apart(&self.root);
        self.root.inode().unmounted();
    }
}

/// A device number (`st_dev`) of its own for a new file system without a device, as Linux gives them out.
pub fn new_anonymous_dev() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0x14);
    let minor = NEXT.fetch_add(1, Ordering::Relaxed);
    libc::makedev(0, minor)
}

/// A mount, and a place in it where another is mounted.
type MountPoint = (Arc<Mount>, Arc<Dentry>);

/// A file system, or a part of it, at a place in the tree.
pub struct Mount {
    id: u64,
    fs: Arc<FileSystem>,
    /// What of the file system is seen.
    root: Arc<Dentry>,
    /// Where it is mounted; `None` for the root of a namespace, and after umount.
    pub(crate) place: RwLock<Option<MountPoint>, rank::MountPlace>,
    flags: AtomicU32,
    /// umount2(2) with `MNT_EXPIRE` has been here, and nobody since.
    pub(crate) expiring: AtomicBool,
    /// Which namespace it belongs to.
    pub(crate) namespace: u64,
}

impl Mount {
    pub(crate) fn new(fs: Arc<FileSystem>, root: Arc<Dentry>, flags: MountFlags, namespace: u64) -> Arc<Mount> {
        use std::sync::atomic::AtomicU64;
        static NEXT: AtomicU64 = AtomicU64::new(20);
        Arc::new(Mount {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fs,
            root,
            place: RwLock::new(None),
            flags: AtomicU32::new(flags.bits()),
            expiring: AtomicBool::new(false),
            namespace,
        })
    }

    /// The mount's number (mountinfo, statx).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is mounted.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// The number of the namespace that it belongs to.
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// Its root dentry.
    pub fn root(&self) -> &Arc<Dentry> {
        &self.root
    }

    /// Its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    pub(crate) fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// `EROFS` if nothing may be changed through it.
    pub fn check_writable(&self) -> Result<(), Errno> {
        if self.flags().contains(MountFlags::READ_ONLY) {
            Err(Errno::EROFS)
        } else {
            Ok(())
        }
    }
}

/// One line of /proc/PID/mountinfo.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct MountInfo {
    pub id: u64,
    pub parent_id: u64,
    /// Device number of the file system.
    pub dev: u64,
    /// What of the file system is mounted, `/` for the whole.
    pub root: Vec<u8>,
    /// Where, as seen from the caller's root.
    pub target: Vec<u8>,
    pub flags: MountFlags,
    pub kind: String,
    pub source: Vec<u8>,
    /// File-system options without the mount flags.
    pub options: Vec<u8>,
}

/// How a mount takes part in propagation (mount(2), "MS_SHARED…"). Kept by name only: every mount is private.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Propagation {
    Private,
    Shared,
    Slave,
    Unbindable,
}

/// All attached mounts, of all namespaces.
#[derive(Default)]
pub(crate) struct MountTable {
    pub by_id: BTreeMap<u64, Arc<Mount>>,
    /// What is mounted at a dentry (its address) of a mount (its id).
    by_place: HashMap<(u64, usize), Arc<Mount>>,
    next_namespace: u64,
}

impl MountTable {
    pub fn new_namespace(&mut self) -> u64 {
        self.next_namespace += 1;
        self.next_namespace
    }

    pub fn at(&self, mount: &Mount, dentry: &Arc<Dentry>) -> Option<&Arc<Mount>> {
        self.by_place.get(&(mount.id, Arc::as_ptr(dentry).addr()))
    }

    /// Puts a mount at a place, or at no place (the root of a namespace).
    pub fn attach(&mut self, mount: &Arc<Mount>, place: Option<(Arc<Mount>, Arc<Dentry>)>) {
        self.by_id.insert(mount.id, mount.clone());
        if let Some((parent, dentry)) = &place {
            dentry.mounts.fetch_add(1, Ordering::AcqRel);
            self.by_place
                .insert((parent.id, Arc::as_ptr(dentry).addr()), mount.clone());
        }
        *mount.place.write() = place;
    }

    /// Takes a mount from its place; gives the place.
    pub fn detach(&mut self, mount: &Arc<Mount>) -> Option<(Arc<Mount>, Arc<Dentry>)> {
        self.by_id.remove(&mount.id);
        let place = mount.place.write().take();
        if let Some((parent, dentry)) = &place {
            self.by_place.remove(&(parent.id, Arc::as_ptr(dentry).addr()));
            dentry.mounts.fetch_sub(1, Ordering::AcqRel);
        }
        place
    }

    /// The mounts right on `mount`, in order.
    pub fn children(&self, mount: &Mount) -> Vec<Arc<Mount>> {
        let is_child = |child: &&Arc<Mount>| {
            child
                .place
                .read()
                .as_ref()
                .is_some_and(|(parent, _)| parent.id == mount.id)
        };
        self.by_id.values().filter(is_child).cloned().collect()
    }

    /// `mount` and all mounts on it, parents first.
    pub fn subtree(&self, mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
        let mut all = vec![mount.clone()];
        let mut next = 0;
        while let Some(parent) = all.get(next).cloned() {
            all.extend(self.children(&parent));
            next += 1;
        }
        all
    }

    /// All mounts of a namespace, in order.
    pub fn of_namespace(&self, namespace: u64) -> Vec<Arc<Mount>> {
        let mounts = self.by_id.values().filter(|mount| mount.namespace == namespace);
        mounts.cloned().collect()
    }

    /// True if the mount is attached.
    pub fn has(&self, mount: &Mount) -> bool {
        self.by_id.contains_key(&mount.id)
    }
}
