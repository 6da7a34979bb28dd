//! The nodes that the gofer has given out.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use sentry_abi::Errno;

use super::walk::Identity;
use crate::protocol::NodeId;

/// The most nodes at a time; what is beyond is refused with `ENFILE` until the sentry forgets some.
pub(super) const MAX_NODES: usize = 64 * 1024;
/// The most files without a name that are held open at a time.
pub(super) const MAX_HELD: usize = 512;
/// The most components below a root.
const MAX_DEPTH: usize = 1024;

/// A directory and a name in it.
pub(super) type InDirectory = (NodeId, Box<[u8]>);

/// A name at a place: not the file itself, but where it was found and which file it was.
struct Node {
    /// The index of its export.
    export: usize,
    /// Where it is; `None` for a root, and for a node whose name is gone.
    place: Option<InDirectory>,
    /// The file itself, kept open for when its name is gone.
    held: Option<OwnedFd>,
    /// The number of its watch.
    watch: Option<i32>,
    /// True for the root of an export.
    root: bool,
    identity: Identity,
    depth: usize,
    /// How often replies have named it and no request has forgotten it.
    references: u64,
    children: HashMap<Box<[u8]>, NodeId>,
}

/// Where a node is: its export and the components below the export's root.
pub(super) struct Place<'a> {
    pub(super) export: usize,
    pub(super) components: Vec<&'a [u8]>,
    pub(super) identity: Identity,
}

/// All nodes.
#[derive(Default)]
pub(super) struct Nodes {
    nodes: HashMap<NodeId, Node>,
    next: u64,
    /// How many are held open.
    held: usize,
    /// Watches of nodes that are gone.
    unwatched: Vec<i32>,
}

impl Nodes {
    fn insert(&mut self, node: Node) -> Result<NodeId, Errno> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Errno::ENFILE);
        }
        self.next += 1;
        let id = NodeId(self.next);
        self.nodes.insert(id, node);
        Ok(id)
    }

    fn get(&self, id: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&id).ok_or(Errno::ESTALE)
    }

    /// Gives out the root of an export.
    pub(super) fn root(&mut self, export: usize, identity: Identity) -> Result<NodeId, Errno> {
        let references = 1;
        self.insert(Node {
            export,
            place: None,
            held: None,
            watch: None,
            root: true,
            identity,
            depth: 0,
            references,
            children: HashMap::new(),
        })
    }

    /// Gives out what was found at `name` in `parent`: the node that is there, if it is the same file.
    pub(super) fn child(&mut self, parent: NodeId, name: &[u8], identity: Identity) -> Result<NodeId, Errno> {
        let directory = self.get(parent)?;
        let (export, depth) = (directory.export, directory.depth + 1);
        if depth > MAX_DEPTH {
            return Err(Errno::ENAMETOOLONG);
        }
        if let Some(id) = directory.children.get(name).copied() {
            if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.identity == identity) {
                node.references += 1;
                return Ok(id);
            }
            self.lose_place(id);
        }
        let place = Some((parent, name.into()));
        let node = Node {
            export,
            place,
            held: None,
            watch: None,
            root: false,
            identity,
            depth,
            references: 1,
            children: HashMap::new(),
        };
        let id = self.insert(node)?;
        if let Some(directory) = self.nodes.get_mut(&parent) {
            directory.children.insert(name.into(), id);
        }
        Ok(id)
    }

    /// The export from which a node was given out.
    pub(super) fn export(&self, id: NodeId) -> Result<usize, Errno> {
        Ok(self.get(id)?.export)
    }

    /// Keeps the file open that a node is. `ENFILE` beyond [`MAX_HELD`].
    pub(super) fn hold(&mut self, id: NodeId, file: OwnedFd) -> Result<(), Errno> {
        let full = self.held >= MAX_HELD;
        let node = self.nodes.get_mut(&id).ok_or(Errno::ESTALE)?;
        if node.held.is_none() {
            if full {
                return Err(Errno::ENFILE);
            }
            self.held += 1;
            node.held = Some(file);
        }
        Ok(())
    }

    /// The file that a node without a name is, if it was held.
    pub(super) fn held(&self, id: NodeId) -> Option<&OwnedFd> {
        let node = self.nodes.get(&id)?;
        node.held.as_ref().filter(|_| node.place.is_none())
    }

    /// The number of a node's watch.
    pub(super) fn watch(&self, id: NodeId) -> Option<i32> {
        self.nodes.get(&id)?.watch
    }

    /// Notes a node's watch.
    pub(super) fn set_watch(&mut self, id: NodeId, watch: i32) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.watch = Some(watch);
        }
    }

    /// The watches of nodes that have gone since the last time, once for each node.
    pub(super) fn take_unwatched(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.unwatched)
    }

    /// Where a node is. `ENOENT` for one that is held without a name; `ESTALE` for numbers that were not given out and
    /// for nodes whose name, or that of a directory above, is gone.
    pub(super) fn place(&self, id: NodeId) -> Result<Place<'_>, Errno> {
        let node = self.get(id)?;
        let mut components = Vec::with_capacity(node.depth);
        let mut at = node;
        while let Some((parent, name)) = &at.place {
            components.push(&**name);
            at = self.get(*parent)?;
        }
        if !at.root {
            return Err(if self.held(id).is_some() {
                Errno::ENOENT
            } else {
                Errno::ESTALE
            });
        }
        components.reverse();
        Ok(Place {
            export: node.export,
            components,
            identity: node.identity,
        })
    }

    /// The directory in which a node is, and its name there; `None` for a root.
    pub(super) fn parent(&self, id: NodeId) -> Result<Option<InDirectory>, Errno> {
        let node = self.get(id)?;
        match &node.place {
            Some(place) => Ok(Some(place.clone())),
            None if node.root => Ok(None),
            None => Err(Errno::ESTALE),
        }
    }

    /// The name is gone or another file's: the node that had it has no place any more.
    pub(super) fn detach(&mut self, parent: NodeId, name: &[u8]) {
        let Some(id) = self
            .nodes
            .get_mut(&parent)
            .and_then(|directory| directory.children.remove(name))
        else {
            return;
        };
        self.lose_place(id);
        self.collect(parent);
    }

    /// Whoever calls has taken it out of its directory, or puts something else there.
    fn lose_place(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.place = None;
        }
        self.collect(id);
    }

    /// True if `id` is `above`, or below it.
    fn is_beneath(&self, mut id: NodeId, above: NodeId) -> bool {
        loop {
            if id == above {
                return true;
            }
            match self.nodes.get(&id).and_then(|node| node.place.as_ref()) {
                Some((parent, _)) => id = *parent,
                None => return false,
            }
        }
    }

    /// A name was moved (`exchange`: two were exchanged). Both directories are of the same export.
    pub(super) fn rename(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), exchange: bool) {
        if from == to {
            return;
        }
        let take = |nodes: &mut Nodes, (parent, name): (NodeId, &[u8])| {
            nodes
                .nodes
                .get_mut(&parent)
                .and_then(|directory| directory.children.remove(name))
        };
        let moved = take(self, from);
        let replaced = take(self, to);
        if let Some(id) = moved {
            self.put(id, to);
        }
        if let Some(id) = replaced {
            if exchange {
                self.put(id, from)
            } else {
                self.lose_place(id)
            }
        }
        self.collect(from.0);
        self.collect(to.0);
    }

    fn put(&mut self, id: NodeId, (parent, name): (NodeId, &[u8])) {
        // The host refuses to move a directory into itself, unless somebody else moves things at the same time:
        // the nodes must not become a ring then.
        if self.is_beneath(parent, id) {
            return self.lose_place(id);
        }
        let Some(directory) = self.nodes.get_mut(&parent) else {
            return;
        };
        directory.children.insert(name.into(), id);
        let mut depth = directory.depth + 1;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.place = Some((parent, name.into()));
        }
        // Depths below change too.
        let mut level = vec![id];
        while !level.is_empty() {
            let mut below = Vec::new();
            for id in level {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.depth = depth;
                    below.extend(node.children.values().copied());
                }
            }
            depth += 1;
            level = below;
        }
    }

    /// Takes references back.
    pub(super) fn forget(&mut self, id: NodeId, count: u32) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.references = node.references.saturating_sub(count.into());
            self.collect(id);
        }
    }

    /// Drops a node that nobody refers to, and then perhaps the directories it was in.
    fn collect(&mut self, mut id: NodeId) {
        while let Some(node) = self.nodes.get(&id) {
            if node.references > 0 || !node.children.is_empty() {
                return;
            }
            let Some(node) = self.nodes.remove(&id) else {
                return;
            };
            self.held -= usize::from(node.held.is_some());
            self.unwatched.extend(node.watch);
            let Some((parent, name)) = node.place else {
                return;
            };
            if let Some(directory) = self.nodes.get_mut(&parent) {
                directory.children.remove(&name);
            }
            id = parent;
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Attributes;

    fn identity(ino: u64) -> Identity {
        Identity::from(&Attributes {
            dev: 1,
            ino,
            ..Attributes::default()
        })
    }

    fn path(nodes: &Nodes, id: NodeId) -> Result<String, Errno> {
        Ok(String::from_utf8(nodes.place(id)?.components.join(&b'/')).expect("UTF-8"))
    }

    #[test]
    fn same_file_same_node_other_file_other_node() {
        let mut nodes = Nodes::default();
        let root = nodes.root(0, identity(1)).expect("root");
        let first = nodes.child(root, b"a", identity(2)).expect("child");
        assert_eq!(nodes.child(root, b"a", identity(2)), Ok(first));
        let second = nodes.child(root, b"a", identity(3)).expect("child");
        assert_ne!(first, second);
        assert_eq!(path(&nodes, first), Err(Errno::ESTALE));
        assert_eq!(path(&nodes, second).as_deref(), Ok("a"));
        nodes.forget(first, 1);
        assert_eq!(nodes.len(), 3);
        nodes.forget(first, 1);
        assert_eq!(nodes.len(), 2);
    }

    #[test]
    fn directories_stay_while_something_in_them_is_known() {
        let mut nodes = Nodes::default();
        let root = nodes.root(0, identity(1)).expect("root");
        let dir = nodes.child(root, b"d", identity(2)).expect("child");
        let file = nodes.child(dir, b"f", identity(3)).expect("child");
        nodes.forget(dir, 1);
        nodes.forget(root, 1);
        assert_eq!(path(&nodes, file).as_deref(), Ok("d/f"));
        nodes.forget(file, u32::MAX);
        assert_eq!(nodes.len(), 0);
    }

    #[test]
    fn renames_move_nodes() {
        let mut nodes = Nodes::default();
        let root = nodes.root(0, identity(1)).expect("root");
        let dir = nodes.child(root, b"d", identity(2)).expect("child");
        let file = nodes.child(dir, b"f", identity(3)).expect("child");
        let other = nodes.child(root, b"o", identity(4)).expect("child");
        nodes.rename((root, b"d"), (root, b"e"), false);
        assert_eq!(path(&nodes, file).as_deref(), Ok("e/f"));
        nodes.rename((dir, b"f"), (root, b"o"), false);
        assert_eq!(path(&nodes, file).as_deref(), Ok("o"));
        assert_eq!(path(&nodes, other), Err(Errno::ESTALE));
        nodes.rename((root, b"o"), (root, b"e"), true);
        assert_eq!(
            (path(&nodes, file).as_deref(), path(&nodes, dir).as_deref()),
            (Ok("e"), Ok("o"))
        );
    }

    #[test]
    fn never_a_ring() {
        let mut nodes = Nodes::default();
        let root = nodes.root(0, identity(1)).expect("root");
        let dir = nodes.child(root, b"d", identity(2)).expect("child");
        let below = nodes.child(dir, b"e", identity(3)).expect("child");
        nodes.rename((root, b"d"), (below, b"x"), false);
        assert_eq!(path(&nodes, below), Err(Errno::ESTALE));
        assert_eq!(path(&nodes, dir), Err(Errno::ESTALE));
    }

    #[test]
    fn bounded() {
        let mut nodes = Nodes::default();
        let mut at = nodes.root(0, identity(1)).expect("root");
        for _ in 0..MAX_DEPTH {
            at = nodes.child(at, b"x", identity(2)).expect("child");
        }
        assert_eq!(nodes.child(at, b"x", identity(2)), Err(Errno::ENAMETOOLONG));
        let root = nodes.root(0, identity(1)).expect("root");
        let mut number = 0_u64;
        let error = loop {
            number += 1;
            if let Err(error) = nodes.child(root, &number.to_le_bytes(), identity(number)) {
                break error;
            }
        };
        assert_eq!((error, nodes.len()), (Errno::ENFILE, MAX_NODES));
    }
}
