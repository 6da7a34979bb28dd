//! An overlay: a lower tree that is only read, and changes kept in memory.
//!
//! Unlike overlayfs, there is no upper directory tree. A [`node::Node`] stands for a file of either kind and knows
//! its lower inode, if it has one. A directory keeps, by name, what differs from its lower directory: a node
//! made or moved here, or a removed name (a whiteout). A directory without lower inode is what overlayfs calls
//! opaque. Copy-up gives a node an inode of a private tmpfs for attributes and content; the node itself, its inode
//! number and its place stay. So directories of the lower tree can be renamed, hard links stay together, and who
//! has a lower file open for reading sees what is written to it later.
//!
//! The lower tree must not change meanwhile: names and inode numbers are trusted to mean the same thing for good.
//! Mappings of a lower file made before its copy-up do not see later writes (as with overlayfs).

mod changes;
mod copy_up;
mod node;
mod open;

pub use changes::{ChangeKind, Changed};
pub use copy_up::read_at;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use crate::inode::Inode;
use crate::mount::FileSystem;
use crate::tmpfs::{Store, TmpfsOptions};
use node::Node;

/// Device and inode number in the lower tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LowerKey {
    dev: u64,
    ino: u64,
}

/// What all nodes of one overlay share.
struct Shared {
    /// Limits and memory of what was copied up or made. Its `tree` lock guards renames and removals of directories.
    store: Arc<Store>,
    lower_dev: u64,
    next_ino: AtomicU64,
    /// The nodes of lower files, so that each has one node at most. A leaf in the lock order; nodes are dropped
    /// outside of it.
    nodes: Mutex<HashMap<LowerKey, Slot>, rank::OverlayNodes>,
    /// Somebody will ask what has changed.
    tracked: AtomicBool,
    /// Made before tracking began: the numbers of nodes that are no change.
    given: OnceLock<HashSet<u64>>,
}

struct Slot {
    node: Weak<Node>,
    /// Holds a node that differs from its lower file.
    changed: Option<Arc<Node>>,
}

impl Shared {
    /// The node of a lower inode.
    fn node_of(self: &Arc<Shared>, lower: Arc<dyn Inode>) -> Result<Arc<Node>, Errno> {
        let attributes = lower.attributes()?;
        let key = LowerKey {
            dev: attributes.dev,
            ino: attributes.ino,
        };
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&key).and_then(|slot| slot.node.upgrade()) {
            return Ok(node);
        }
        let node = Node::of_lower(self, lower, key, &attributes);
        nodes.insert(
            key,
            Slot {
                node: Arc::downgrade(&node),
                changed: None,
            },
        );
        Ok(node)
    }

    fn tracks(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Holds the node of a lower file that has changed.
    fn pin(&self, key: LowerKey, node: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        nodes.insert(
            key,
            Slot {
                node: Arc::downgrade(node),
                changed: Some(node.clone()),
            },
        );
    }

    /// Lets the node of a lower file go that has no name left.
    fn unpin(&self, key: LowerKey) {
        let changed = self.nodes.lock().get_mut(&key).and_then(|slot| slot.changed.take());
        drop(changed);
    }

    /// A node is gone.
    fn forget(&self, key: LowerKey) {
        let mut nodes = self.nodes.lock();
        if nodes.get(&key).is_some_and(|slot| slot.node.strong_count() == 0) {
            nodes.remove(&key);
        }
    }

    /// The inode number of a lower file: the same, unless it comes from another device than the lower root.
    fn ino_of(&self, key: LowerKey) -> u64 {
        if key.dev == self.lower_dev {
            key.ino
        } else {
            key.ino ^ key.dev.rotate_left(32) | 1 << 63
        }
    }

    /// The inode number of a file made here: beyond those of usual file systems.
    fn next_ino(&self) -> u64 {
        (1 << 48) + self.next_ino.fetch_add(1, Ordering::Relaxed)
    }
}

/// An overlay file system.
pub struct Overlay {
    root: Arc<Node>,
}

impl Overlay {
    /// An overlay over a lower root directory. Of `options`, the limits of size and inodes count.
    pub fn new(lower: Arc<dyn Inode>, options: TmpfsOptions) -> Result<Arc<Overlay>, Errno> {
        let shared = Arc::new(Shared {
            store: Arc::new(Store::new(options.size, options.inodes, options.budget)),
            lower_dev: lower.attributes()?.dev,
            next_ino: AtomicU64::new(1),
            nodes: Mutex::default(),
            tracked: AtomicBool::new(false),
            given: OnceLock::new(),
        });
        let root = shared.node_of(lower)?;
        Ok(Arc::new(Overlay { root }))
    }

    /// Its root directory.
    pub fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    /// The same, ready to be mounted. `source` is the first field of /proc/mounts.
    pub fn file_system(&self, source: impl Into<Vec<u8>>) -> Arc<FileSystem> {
        FileSystem::new(self.root.clone(), "overlay", source, "")
    }
}
