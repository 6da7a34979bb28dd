//! Directories of a gofer's export: what is known of their names.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use sentry_abi::Errno;
use sentry_gofer::Access;
use sentry_gofer::protocol::{Attributes, EntryDetails, Step};
use sentry_gofer::watches::Moment;

use super::ahead::Run;
use super::{Caching, GoferInode, Identity, MAX_NAMES, Place, VALIDITY};
use crate::file::DirEntry;

/// More entries than any directory that makes sense, against a gofer that lists for ever.
const MAX_ENTRIES: usize = 1 << 20;

/// How many names of a directory are asked for one by one before all are: a start of a program looks at one or two
/// names in directories of a thousand.
const LIST_AFTER: u8 = 2;

/// What is known of a directory's names.
#[derive(Default)]
pub(super) struct Directory {
    /// Inodes that something refers to.
    children: HashMap<Box<[u8]>, Weak<GoferInode>>,
    listing: Listing,
    /// How many names have been asked for while the listing was not.
    asked: u8,
    pub(super) run: Run,
}

/// The directory as a whole.
#[derive(Default)]
enum Listing {
    /// Not asked for yet.
    #[default]
    Unknown,
    /// Too large to keep, or not to be listed: each name is asked for.
    ByName,
    /// All names.
    Known {
        at: Instant,
        /// The moment before it was asked for.
        since: Moment,
        names: HashMap<Box<[u8]>, Known>,
        /// What [`Known::order`] the next new name gets.
        next: u32,
    },
}

struct Known {
    ino: u64,
    kind: u8,
    /// Entries are listed in this order.
    order: u32,
    /// In small directories.
    details: Option<Box<EntryDetails>>,
}

impl Directory {
    fn child(&self, name: &[u8]) -> Option<Arc<GoferInode>> {
        self.children.get(name).and_then(Weak::upgrade)
    }

    /// The place of `name` in the listing, if there is one.
    pub(super) fn order(&self, name: &[u8]) -> Option<u32> {
        match &self.listing {
            Listing::Known { names, .. } => names.get(name).map(|known| known.order),
            Listing::Unknown | Listing::ByName => None,
        }
    }

    /// The regular files at the places from `first` on, in their order.
    pub(super) fn files(&self, first: u32, count: u32) -> Vec<Box<[u8]>> {
        let Listing::Known { names, .. } = &self.listing else {
            return Vec::new();
        };
        let places = first..first.saturating_add(count);
        let files = names
            .iter()
            .filter(|(_, known)| places.contains(&known.order) && known.kind == libc::DT_REG);
        let mut files: Vec<_> = files.map(|(name, known)| (known.order, name.clone())).collect();
        files.sort_unstable_by_key(|(order, _)| *order);
        files.into_iter().map(|(_, name)| name).collect()
    }

    fn insert(&mut self, name: &[u8], inode: &Arc<GoferInode>) {
        if self.children.len() >= 64 && self.children.len().is_power_of_two() {
            self.children.retain(|_, child| child.strong_count() > 0);
        }
        self.children.insert(name.into(), Arc::downgrade(inode));
    }

    /// A name is gone.
    fn removed(&mut self, name: &[u8]) -> Option<Arc<GoferInode>> {
        if let Listing::Known { names, .. } = &mut self.listing {
            names.remove(name);
        }
        self.children.remove(name).and_then(|child| child.upgrade())
    }

    /// A name is new, or another file's.
    fn added(&mut self, name: &[u8], inode: &Arc<GoferInode>) {
        if let Listing::Known { names, next, .. } = &mut self.listing {
            let kind = (inode.kind >> 12) as u8;
            names.insert(
                name.into(),
                Known {
                    ino: inode.identity().ino,
                    kind,
                    order: *next,
                    details: None,
                },
            );
            *next = next.saturating_add(1);
        }
        self.insert(name, inode);
    }
}

impl GoferInode {
    /// Which file a name was found to lead to, if somebody uses it.
    pub(super) fn known_child(&self, name: &[u8]) -> Option<Identity> {
        let child = self.directory.lock_anyway().child(name);
        child.map(|child| child.identity())
    }

    /// The child of this name.
    pub(super) fn find(&self, name: &[u8]) -> Result<Arc<GoferInode>, Errno> {
        let mut directory = self.directory.lock()?;
        let child = directory.child(name);
        let mut ahead = false;
        match self.fs.caching {
            Caching::Forever => {
                if let Some(child) = child {
                    child.put(self, name);
                    return Ok(child);
                }
                if matches!(directory.listing, Listing::Unknown) {
                    if directory.asked < LIST_AFTER {
                        directory.asked += 1;
                        // Where opens are counted, each is by itself.
                        ahead = self.fs.limited().is_none();
                    } else {
                        self.load(&mut directory)?;
                    }
                }
                if let Listing::Known { names, .. } = &mut directory.listing {
                    let known = names.get_mut(name).ok_or(Errno::ENOENT)?;
                    if let Some(details) = &known.details {
                        let (attributes, target) = (details.attributes, details.target.clone());
                        return self.child_inode(&mut directory, name, &attributes, target, Moment::default());
                    }
                }
            }
            Caching::Revalidate => {
                // Most directories that are looked into once are not looked into again.
                if directory.asked > 0 {
                    self.watched();
                }
                directory.asked = 1;
                if let Some(child) = child
                    && child.known(false).is_some()
                {
                    child.put(self, name);
                    return Ok(child);
                }
                if let Listing::Known { at, since, names, .. } = &directory.listing
                    && at.elapsed() < VALIDITY
                    && self.name_holds(name, *since)
                    && let Some(details) = names.get(name).and_then(|known| known.details.as_ref())
                    && (details.attributes.nlink == 1 || details.attributes.is_dir())
                {
                    let (at, since) = (*at, *since);
                    let (attributes, target) = (details.attributes, details.target.clone());
                    let inode = self.child_inode(&mut directory, name, &attributes, target, since)?;
                    // As old as the listing.
                    inode.state.lock().at = at;
                    return Ok(inode);
                }
            }
        }
        let since = self.moment();
        let asked = if ahead {
            self.request_lookup_ahead(name)
        } else {
            self.request_lookup(name, None)
        };
        let (step, fd) = match asked {
            Ok(found) => found,
            Err(errno) => {
                if errno == Errno::ENOENT {
                    let gone = directory.removed(name);
                    self.lost(gone, name);
                }
                return Err(errno);
            }
        };
        let inode = self.child_inode(&mut directory, name, &step.attributes, step.target, since)?;
        inode.adopt(step.node);
        if let Some(fd) = fd {
            let fd = inode.opened(fd, Access::Read);
            inode.keep(&fd);
        }
        Ok(inode)
    }

    /// The inode for what was found at `name`: the one that is there already, if it is the same file.
    fn child_inode(
        &self,
        directory: &mut Directory,
        name: &[u8],
        attributes: &Attributes,
        target: Option<Vec<u8>>,
        since: Moment,
    ) -> Result<Arc<GoferInode>, Errno> {
        if let Some(child) = directory.child(name) {
            // A link that was made anew may have the old one's number.
            let leads_on = target.is_none() || child.target.get() == target.as_ref();
            if child.kind == attributes.kind() && child.identity() == Identity::from(attributes) && leads_on {
                child.note(attributes, since);
                child.put(self, name);
                return Ok(child);
            }
            self.lost(Some(child), name);
        }
        let this = self.this.upgrade().ok_or(Errno::EIO)?;
        let inode = GoferInode::new(&self.fs, Some((this, name.into())), attributes, target, since);
        directory.insert(name, &inode);
        Ok(inode)
    }

    /// Gives the inode a place, if what it has is not good: another name of it may be gone.
    fn put(&self, parent: &GoferInode, name: &[u8]) {
        let stays = |place: &Option<Place>| match place {
            // Where a shared file was seen last is where it is.
            Some((old, its)) => {
                self.fs.caching == Caching::Forever || (std::ptr::eq(Arc::as_ptr(old), parent) && **its == *name)
            }
            None => false,
        };
        if stays(&self.place.lock()) {
            return;
        }
        let Some(parent) = parent.this.upgrade() else { return };
        let mut place = self.place.lock();
        let old = (!stays(&place)).then(|| place.replace((parent, name.into())));
        drop(place);
        // Its drop may take locks.
        drop(old);
    }

    /// `name` in this directory does not lead to `inode` any more.
    fn lost(&self, inode: Option<Arc<GoferInode>>, name: &[u8]) {
        let Some(inode) = inode else { return };
        let old = {
            let mut place = inode.place.lock();
            match &*place {
                Some((parent, its)) if std::ptr::eq(Arc::as_ptr(parent), self) && **its == *name => place.take(),
                _ => None,
            }
        };
        // Its drop may take locks.
        drop(old);
        inode.changed();
    }

    /// Brings the whole directory, if it is to be had.
    fn load(&self, directory: &mut Directory) -> Result<(), Errno> {
        let (at, since) = (Instant::now(), self.moment());
        let mut names = HashMap::new();
        let (mut cursor, mut order) = (0, 0);
        loop {
            let listing = match self.with_node(|id| self.fs.client.list(id, None, cursor)) {
                Ok(listing) => listing,
                Err(Errno::EACCES) => {
                    directory.listing = Listing::ByName;
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            };
            for entry in listing.entries {
                let known = Known {
                    ino: entry.ino,
                    kind: entry.kind,
                    order,
                    details: entry.details.map(Box::new),
                };
                order += 1;
                names.insert(entry.name.into_boxed_slice(), known);
            }
            if names.len() > MAX_NAMES {
                directory.listing = Listing::ByName;
                return Ok(());
            }
            match listing.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        directory.listing = Listing::Known {
            at,
            since,
            names,
            next: order,
        };
        Ok(())
    }

    /// All entries.
    pub(super) fn listed(&self) -> Result<Vec<DirEntry>, Errno> {
        {
            let mut directory = self.directory.lock()?;
            let stale = match &directory.listing {
                Listing::Unknown => true,
                Listing::ByName => false,
                Listing::Known { at, .. } => self.fs.caching == Caching::Revalidate && at.elapsed() >= VALIDITY,
            };
            // A listing of a shared tree that the guest reads twice is the host's twice.
            if stale || self.fs.caching == Caching::Revalidate {
                self.watched();
                self.load(&mut directory)?;
            }
            if let Listing::Known { names, .. } = &directory.listing {
                let mut all: Vec<_> = names.iter().collect();
                all.sort_unstable_by_key(|(_, known)| known.order);
                let entries = all.into_iter().map(|(name, known)| DirEntry {
                    ino: known.ino,
                    kind: known.kind,
                    name: name.to_vec(),
                });
                return Ok(entries.collect());
            }
        }
        let mut entries = Vec::new();
        let mut cursor = 0;
        loop {
            let listing = self.with_node(|id| self.fs.client.list(id, None, cursor))?;
            entries.extend(listing.entries.into_iter().map(|entry| DirEntry {
                ino: entry.ino,
                kind: entry.kind,
                name: entry.name,
            }));
            match listing.next {
                Some(next) if entries.len() < MAX_ENTRIES => cursor = next,
                _ => return Ok(entries),
            }
        }
    }

    /// A new file is there.
    pub(super) fn made(&self, name: &[u8], step: Step, since: Moment) -> Arc<GoferInode> {
        let mut directory = self.directory.lock_anyway();
        let place = self.this.upgrade().map(|this| (this, name.into()));
        let inode = GoferInode::new(&self.fs, place, &step.attributes, step.target, since);
        inode.adopt(step.node);
        let old = directory.removed(name);
        self.lost(old, name);
        directory.added(name, &inode);
        drop(directory);
        self.changed();
        inode
    }

    /// `target` has another name, in this directory.
    pub(super) fn linked(&self, name: &[u8], target: &GoferInode) {
        let mut directory = self.directory.lock_anyway();
        let old = directory.removed(name);
        self.lost(old, name);
        if let Some(target) = target.this.upgrade() {
            directory.added(name, &target);
        }
        drop(directory);
        target.put(self, name);
        self.changed();
    }

    pub(super) fn remove(&self, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        self.writable()?;
        let gate = self.fs.gate()?;
        let mut directory = self.directory.lock()?;
        let removed = self.with_node(|id| self.fs.client.unlink(id, name, is_directory))?;
        self.fs.lost_name(removed);
        drop(gate);
        if let Some(tally) = self.fs.tally() {
            tally.removed(self.identity(), name);
        }
        let old = directory.removed(name);
        drop(directory);
        if let Some(old) = old.as_ref().filter(|_| is_directory) {
            old.removed_directory();
        }
        self.lost(old, name);
        self.changed();
        Ok(())
    }

    /// `old` has become `new` in the directory `to`; with `exchange`, the other way round too.
    pub(super) fn renamed(&self, old: &[u8], to: &GoferInode, new: &[u8], exchange: bool) {
        // One directory at a time: two threads may rename both ways.
        let moved = self.directory.lock_anyway().removed(old);
        let replaced = to.directory.lock_anyway().removed(new);
        self.lost(moved.clone(), old);
        to.lost(replaced.clone(), new);
        to.arrived(new, moved);
        if exchange {
            self.arrived(old, replaced);
        }
        self.changed();
        to.changed();
    }

    fn arrived(&self, name: &[u8], inode: Option<Arc<GoferInode>>) {
        let mut directory = self.directory.lock_anyway();
        match inode {
            Some(inode) => {
                directory.added(name, &inode);
                drop(directory);
                inode.put(self, name);
            }
            // Nobody has looked at it yet: what the directory is known to hold is not complete any more.
            None => directory.listing = Listing::Unknown,
        }
    }
}
