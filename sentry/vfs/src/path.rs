//! Places in the tree: a mount and a dentry; or a file outside of any tree.

use std::fmt;
use std::sync::Arc;

use crate::dentry::Dentry;
use crate::inode::Inode;
use crate::mount::Mount;

/// A place in the tree, or an anonymous file. Cheap to clone.
#[derive(Clone)]
pub struct VfsPath(Repr);

#[derive(Clone)]
enum Repr {
    Tree { mount: Arc<Mount>, dentry: Arc<Dentry> },
    Anonymous(Arc<Anonymous>),
}

struct Anonymous {
    name: Vec<u8>,
    inode: Option<Arc<dyn Inode>>,
}

impl VfsPath {
    /// A place in a mount.
    pub fn new(mount: Arc<Mount>, dentry: Arc<Dentry>) -> VfsPath {
        VfsPath(Repr::Tree { mount, dentry })
    }

    /// A file outside of every mount. `name` is what `/proc/PID/fd` shows: `pipe:[7]`, `socket:[8]`,
    /// `anon_inode:[eventpoll]`, `/memfd:x (deleted)`.
    pub fn anonymous(name: impl Into<Vec<u8>>) -> VfsPath {
        VfsPath(Repr::Anonymous(Arc::new(Anonymous {
            name: name.into(),
            inode: None,
        })))
    }

    /// As [`VfsPath::anonymous`], with an inode behind it (memfd_create(2)).
    pub fn anonymous_inode(name: impl Into<Vec<u8>>, inode: Arc<dyn Inode>) -> VfsPath {
        VfsPath(Repr::Anonymous(Arc::new(Anonymous {
            name: name.into(),
            inode: Some(inode),
        })))
    }

    /// Its inode; anonymous files (pipes, eventfds…) have none.
    pub fn inode(&self) -> Option<&Arc<dyn Inode>> {
        match &self.0 {
            Repr::Tree { dentry, .. } => Some(dentry.inode()),
            Repr::Anonymous(file) => file.inode.as_ref(),
        }
    }

    /// The mount; anonymous files have none.
    pub fn mount(&self) -> Option<&Arc<Mount>> {
        match &self.0 {
            Repr::Tree { mount, .. } => Some(mount),
            Repr::Anonymous(_) => None,
        }
    }

    /// The dentry; anonymous files have none.
    pub fn dentry(&self) -> Option<&Arc<Dentry>> {
        match &self.0 {
            Repr::Tree { dentry, .. } => Some(dentry),
            Repr::Anonymous(_) => None,
        }
    }

    /// Mount and dentry.
    pub fn tree(&self) -> Option<(&Arc<Mount>, &Arc<Dentry>)> {
        match &self.0 {
            Repr::Tree { mount, dentry } => Some((mount, dentry)),
            Repr::Anonymous(_) => None,
        }
    }

    /// The display name of an anonymous file.
    pub fn anonymous_name(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::Tree { .. } => None,
            Repr::Anonymous(file) => Some(&file.name),
        }
    }

    /// True if both are the same place: same mount and same dentry.
    pub fn same(&self, other: &VfsPath) -> bool {
        match (&self.0, &other.0) {
            (
                Repr::Tree { mount, dentry },
                Repr::Tree {
                    mount: mount2,
                    dentry: dentry2,
                },
            ) => Arc::ptr_eq(mount, mount2) && Arc::ptr_eq(dentry, dentry2),
            (Repr::Anonymous(a), Repr::Anonymous(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// A key for tables of what belongs to an inode (locks, FIFOs, sockets bound to a name): the same for
    /// every path and hard link to one inode, and not reused while any path to it is held.
    pub fn inode_key(&self) -> Option<InodeKey> {
        self.inode().map(InodeKey::of)
    }
}

impl fmt::Debug for VfsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Tree { mount, dentry } => write!(f, "VfsPath({}, {:?})", mount.id(), dentry),
            Repr::Anonymous(file) => write!(f, "VfsPath({})", String::from_utf8_lossy(&file.name)),
        }
    }
}

/// Identifies an inode while something holds it. See [`VfsPath::inode_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeKey(usize);

impl InodeKey {
    /// The key of an inode.
    pub fn of(inode: &Arc<dyn Inode>) -> InodeKey {
        InodeKey(Arc::as_ptr(inode).cast::<()>().addr())
    }
}
