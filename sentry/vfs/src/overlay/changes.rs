//! What differs from the lower tree.
//!
//! A directory knows the names it has changed itself, but a lower file that is copied up keeps its place in the lower
//! tree. So, where changes are tracked, nodes note where they were found, and a change marks the directories above.
//! Only marked directories are looked at in the end: the time this takes depends on what has changed, not on the size
//! of the tree. A hard link of a changed lower file that nobody ever looked up is therefore not found.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;

use super::copy_up::read_at;
use super::node::{Change, Node};
use super::{LowerKey, Overlay, Shared};
use crate::file::File;
use crate::inode::{Attributes, Inode};
use crate::path::VfsPath;

/// Bytes compared at a time.
const PIECE: usize = 256 * 1024;

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is another file now or has other attributes, or something below it differs.
    Changed,
    /// It is no more.
    Deleted,
}

/// A path that differs.
pub struct Changed<'a> {
    /// Below the root of the overlay, with a slash before each name; empty for the root.
    pub path: &'a [u8],
    /// How it differs.
    pub kind: ChangeKind,
    /// What is there now; `None` if it is no more.
    pub inode: Option<Arc<dyn Inode>>,
    /// A directory that shows nothing of the lower directory in its place.
    pub opaque: bool,
}

/// A directory on the way.
struct Frame {
    node: Arc<Node>,
    /// The lower directory in its place.
    base: Option<Arc<dyn Inode>>,
    names: std::vec::IntoIter<Box<[u8]>>,
    /// How long its path is.
    path: usize,
    /// What to tell of it once something in it is told; `None` when it was told.
    pending: Option<ChangeKind>,
}

impl Overlay {
    /// From now on, [`Overlay::changes`] will know what differs from the present state. What happened before must not
    /// be more than making directories and mount points. The overlay must stay mounted somewhere, or alive.
    pub fn track(&self) -> Result<(), Errno> {
        let mut given = std::collections::HashSet::new();
        let mut todo = vec![self.root.clone()];
        while let Some(node) = todo.pop() {
            if let (Some(upper), Some(lower)) = (node.upper.get(), &node.lower) {
                upper.set_history(&lower.attributes()?);
            } else if node.lower.is_none() {
                given.insert(node.ino);
            }
            todo.extend(
                node.directory
                    .lock()
                    .changes
                    .values()
                    .filter_map(|change| match change {
                        Change::Node(node) => Some(node.clone()),
                        Change::Removed => None,
                    }),
            );
            todo.extend(self.shared().copied_up_in(&node)?);
        }
        let _ = self.shared().given.set(given);
        Ok(())
    }

    /// To be called before anything is looked up: later on, [`Overlay::changes`] will be asked for.
    pub fn prepare_tracking(&self) {
        self.shared().tracked.store(true, Ordering::Relaxed);
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.root.shared
    }

    /// Tells what differs from the lower tree: a directory before what is in it, names in the order of their bytes.
    /// Paths longer than `longest` are left out; how many, is the answer. Stops at the first error of `sink`.
    pub fn changes(
        &self,
        longest: usize,
        sink: &mut dyn FnMut(Changed<'_>) -> Result<(), Errno>,
    ) -> Result<u64, Errno> {
        let mut walk = Walk {
            shared: self.shared(),
            path: Vec::new(),
            longest,
            left_out: 0,
            frames: Vec::new(),
            sink,
        };
        walk.run(&self.root)?;
        Ok(walk.left_out)
    }
}

impl Shared {
    /// The lower directories in `node` that something has happened in.
    fn copied_up_in(&self, node: &Node) -> Result<Vec<Arc<Node>>, Errno> {
        let touched: Vec<_> = node.directory.lock().touched.iter().cloned().collect();
        let found = touched.iter().filter_map(|name| node.find(name).ok());
        Ok(found.filter(|node| node.is_dir()).collect())
    }
}

struct Walk<'a> {
    shared: &'a Arc<Shared>,
    path: Vec<u8>,
    longest: usize,
    left_out: u64,
    frames: Vec<Frame>,
    sink: &'a mut dyn FnMut(Changed<'_>) -> Result<(), Errno>,
}

impl Walk<'_> {
    fn run(&mut self, root: &Arc<Node>) -> Result<(), Errno> {
        let base = root.lower.clone();
        let differs = match &base {
            Some(lower) => differs(root, lower)?,
            None => true,
        };
        self.enter(root.clone(), base, ChangeKind::Changed)?;
        if differs {
            self.tell_pending()?;
        }
        while let Some(frame) = self.frames.last_mut() {
            let Some(name) = frame.names.next() else {
                self.frames.pop();
                continue;
            };
            let (node, base) = (frame.node.clone(), frame.base.clone());
            self.path.truncate(frame.path);
            if self.path.len() + 1 + name.len() > self.longest {
                self.left_out += 1;
                continue;
            }
            self.path.push(b'/');
            self.path.extend_from_slice(&name);
            let was = base.as_ref().and_then(|base| base.lookup(&name).ok());
            let now = node.find(&name).ok();
            self.compare(was, now)?;
        }
        Ok(())
    }

    fn compare(&mut self, was: Option<Arc<dyn Inode>>, now: Option<Arc<Node>>) -> Result<(), Errno> {
        let Some(now) = now else {
            return match was {
                Some(_) => self.tell(ChangeKind::Deleted, None, false),
                None => Ok(()),
            };
        };
        let Some(was) = was else {
            if !self.given(&now) {
                self.tell(ChangeKind::Added, Some(&now), false)?;
                return self.enter_told(now, None);
            }
            return if now.is_dir() {
                self.enter(now, None, ChangeKind::Added)
            } else {
                Ok(())
            };
        };
        let attributes = was.attributes()?;
        let key = LowerKey {
            dev: attributes.dev,
            ino: attributes.ino,
        };
        if now.key != Some(key) {
            if self.given(&now) {
                return Ok(());
            }
            let was_directory = attributes.mode & libc::S_IFMT == libc::S_IFDIR;
            self.tell(ChangeKind::Changed, Some(&now), was_directory && now.is_dir())?;
            return self.enter_told(now, Some(was).filter(|_| was_directory));
        }
        let differs = differs(&now, &was)?;
        if !now.is_dir() {
            return if differs {
                self.tell(ChangeKind::Changed, Some(&now), false)
            } else {
                Ok(())
            };
        }
        self.enter(now, Some(was), ChangeKind::Changed)?;
        if differs { self.tell_pending() } else { Ok(()) }
    }

    fn given(&self, node: &Node) -> bool {
        self.shared.given.get().is_some_and(|given| given.contains(&node.ino))
    }

    /// Goes into a directory that was told (does nothing for other files).
    fn enter_told(&mut self, node: Arc<Node>, base: Option<Arc<dyn Inode>>) -> Result<(), Errno> {
        if !node.is_dir() {
            return Ok(());
        }
        self.enter(node, base, ChangeKind::Changed)?;
        if let Some(frame) = self.frames.last_mut() {
            frame.pending = None;
        }
        Ok(())
    }

    /// Goes into a directory, to be told as `pending` once something in it is.
    fn enter(&mut self, node: Arc<Node>, base: Option<Arc<dyn Inode>>, pending: ChangeKind) -> Result<(), Errno> {
        let same = match (&node.key, &base) {
            (Some(key), Some(base)) => {
                let attributes = base.attributes()?;
                (key.dev, key.ino) == (attributes.dev, attributes.ino)
            }
            _ => false,
        };
        let mut names: BTreeSet<Box<[u8]>> = BTreeSet::new();
        if !same {
            names.extend(node.entries()?.into_iter().map(|entry| entry.name.into()));
            if let Some(base) = &base {
                names.extend(base.entries()?.into_iter().map(|entry| entry.name.into()));
            }
        }
        {
            let directory = node.directory.lock();
            names.extend(directory.touched.iter().cloned());
            names.extend(directory.changes.keys().cloned());
        }
        self.frames.push(Frame {
            node,
            base,
            names: names.into_iter().collect::<Vec<_>>().into_iter(),
            path: self.path.len(),
            pending: Some(pending),
        });
        Ok(())
    }

    /// Tells of the directories on the way that were not told yet.
    fn tell_pending(&mut self) -> Result<(), Errno> {
        let first = self.frames.iter().rposition(|frame| frame.pending.is_none());
        let start = first.map_or(0, |first| first + 1);
        for frame in &mut self.frames[start..] {
            if let Some(kind) = frame.pending.take() {
                (self.sink)(Changed {
                    path: &self.path[..frame.path],
                    kind,
                    inode: Some(frame.node.clone()),
                    opaque: false,
                })?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, kind: ChangeKind, node: Option<&Arc<Node>>, opaque: bool) -> Result<(), Errno> {
        self.tell_pending()?;
        (self.sink)(Changed {
            path: &self.path,
            kind,
            inode: node.map(|node| node.clone() as Arc<dyn Inode>),
            opaque,
        })
    }
}

/// Does the node of a lower file differ from it? Times of access and change do not count.
fn differs(node: &Node, lower: &Arc<dyn Inode>) -> Result<bool, Errno> {
    if node.linked.load(Ordering::Relaxed) {
        return Ok(true);
    }
    let Some(upper) = node.upper.get() else {
        return Ok(false);
    };
    let (now, was) = (upper.attributes()?, lower.attributes()?);
    let same_size = node.is_dir() || now.size == was.size;
    let same = (now.mode, now.uid, now.gid, now.mtime) == (was.mode, was.uid, was.gid, was.mtime) && same_size;
    if !same || xattrs(&**upper) != xattrs(&**lower) {
        return Ok(true);
    }
    if node.kind != libc::S_IFREG {
        return Ok(false);
    }
    // Opened for writing, and perhaps not written; or written through a mapping, which changes no time here.
    same_content(&(upper.clone() as Arc<dyn Inode>), lower, &was).map(|same| !same)
}

fn xattrs(inode: &dyn Inode) -> Vec<(Vec<u8>, Vec<u8>)> {
    let names = inode.list_xattr().unwrap_or_default();
    let mut all: Vec<_> = names
        .into_iter()
        .filter_map(|name| inode.get_xattr(&name).ok().map(|value| (name, value)))
        .collect();
    all.sort_unstable();
    all
}

fn same_content(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>, attributes: &Attributes) -> Result<bool, Errno> {
    let flags = libc::O_RDONLY as u32;
    let open = |inode: &Arc<dyn Inode>| -> Result<_, Errno> {
        Ok(File::new(
            VfsPath::anonymous_inode("", inode.clone()),
            flags,
            inode.open(flags)?,
        ))
    };
    let (one, other) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < attributes.size {
        let piece = usize::try_from(attributes.size - at).unwrap_or(PIECE).min(PIECE);
        let count = read_at(&one, &mut left[..piece], at)?;
        if count == 0 || !read_exactly(&other, &mut right[..count], at)? || left[..count] != right[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// False at the end of the file.
fn read_exactly(file: &File, buf: &mut [u8], at: u64) -> Result<bool, Errno> {
    let mut done = 0;
    while done < buf.len() {
        match read_at(file, &mut buf[done..], at + done as u64)? {
            0 => return Ok(false),
            count => done += count,
        }
    }
    Ok(true)
}
