//! What is remembered of a host file, and whether it still holds.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sentry_abi::Errno;
use sentry_gofer::protocol;
use sentry_gofer::watches::{Kind, Moment};

use super::{Caching, GoferInode, Identity, VALIDITY, file};
use crate::inode::Attributes;

impl GoferInode {
    /// The moment before a request; what is noted from its answer holds since.
    pub(super) fn moment(&self) -> Moment {
        match self.fs.caching {
            Caching::Forever => Moment::default(),
            Caching::Revalidate => self.fs.client.watches().moment(),
        }
    }

    /// Has this directory watched, if the host changes it too and that is to be had.
    pub(super) fn watched(&self) {
        if self.fs.caching == Caching::Forever || self.watch.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Ok(id) = self.node() else { return };
        let watch = match self.fs.client.watch(id) {
            Ok(watch) => watch,
            Err(Errno::EACCES | Errno::EMFILE | Errno::ENOSPC | Errno::ENOENT | Errno::ENOTDIR) => {
                self.watch.store(-1, Ordering::Relaxed);
                return;
            }
            Err(_) => return,
        };
        let node = self.node.lock();
        // The watch goes with the node.
        let kept = node.id == Some(id)
            && self
                .watch
                .compare_exchange(0, watch, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        drop(node);
        if !kept {
            self.fs.client.watches().release(watch);
        }
    }

    /// The node goes, and its watch.
    pub(super) fn unwatched(&self) {
        let watch = self.watch.load(Ordering::Relaxed);
        if watch > 0
            && self
                .watch
                .compare_exchange(watch, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.fs.client.watches().release(watch);
        }
    }

    /// True if nothing of this `kind` has happened to the inode's name since then. `content`: nor, in a directory, to
    /// the names in it.
    fn holds(&self, kind: Kind, content: bool, since: Moment) -> bool {
        let watches = self.fs.client.watches();
        let watch = |inode: &GoferInode| inode.watch.load(Ordering::Relaxed);
        let place = self.place.lock();
        let Some((parent, name)) = &*place else {
            return watches.directory_holds(watch(self), since);
        };
        watches.name_holds(watch(parent), name, kind, since)
            && (!content || !self.is_dir() || watches.directory_holds(watch(self), since))
    }

    /// True if `name` in this directory is what it was then.
    pub(super) fn name_holds(&self, name: &[u8], since: Moment) -> bool {
        let watch = self.watch.load(Ordering::Relaxed);
        self.fs.client.watches().name_holds(watch, name, Kind::Any, since)
    }

    /// Notes what a reply says of this inode.
    pub(super) fn note(&self, host: &protocol::Attributes, since: Moment) {
        self.note_by_descriptor(host, since);
        self.state.lock().owner_since = since;
    }

    /// As [`Self::note`]; the owner is not news.
    fn note_by_descriptor(&self, host: &protocol::Attributes, since: Moment) {
        let attributes = self.fs.attributes(host);
        let mut state = self.state.lock();
        state.identity = Identity::from(host);
        state.attributes = attributes;
        state.at = Instant::now();
        state.since = since;
        state.valid = true;
    }

    /// The attributes are not what they were.
    pub(super) fn changed(&self) {
        self.state.lock().valid = false;
    }

    /// The attributes that count without asking (those of a directory that change with its names only if `content`
    /// says so); `None` if there are none, or if an open descriptor knows better.
    pub(super) fn known(&self, content: bool) -> Option<Attributes> {
        let (attributes, since) = {
            let state = self.state.lock();
            if !state.valid {
                return None;
            }
            if self.fs.caching == Caching::Forever {
                return Some(state.attributes);
            }
            let others = state.attributes.nlink > 1 && !self.is_dir();
            if others || state.open.strong_count() > 0 || state.at.elapsed() >= VALIDITY {
                return None;
            }
            (state.attributes, state.since)
        };
        self.holds(Kind::Any, content, since).then_some(attributes)
    }

    /// Asks for the attributes.
    pub(super) fn refresh(&self) -> Result<Attributes, Errno> {
        let since = self.moment();
        let open = self.state.lock().open.upgrade();
        let Some(fd) = open else {
            return self.ask(since);
        };
        let mut attributes = file::stat(fd.as_fd())?;
        // Seen from the sentry's user namespace nobody owns it: the owner is what the gofer said last. Through a name
        // elsewhere it may have changed unseen; a name that was lost cannot be asked for.
        let owner_since = self.state.lock().owner_since;
        let owner_holds = self.fs.caching == Caching::Forever
            || (attributes.nlink == 1 && self.holds(Kind::BeyondData, false, owner_since));
        if !owner_holds && let Ok(attributes) = self.ask(since) {
            return Ok(attributes);
        }
        let known = self.state.lock().attributes;
        (attributes.uid, attributes.gid) = (known.uid, known.gid);
        self.note_by_descriptor(&attributes, since);
        Ok(self.state.lock().attributes)
    }

    /// As [`Self::refresh`], of the gofer.
    fn ask(&self, since: Moment) -> Result<Attributes, Errno> {
        let Some((parent, name)) = self.place() else {
            if self.node.lock().id.is_none() {
                // Removed and closed: nobody can say more.
                return Ok(self.state.lock().attributes);
            }
            let attributes = self.with_node(|id| self.fs.client.attributes(id))?;
            self.note(&attributes, since);
            return Ok(self.state.lock().attributes);
        };
        let (step, _) = parent.request_lookup(&name, None)?;
        let same = step.attributes.kind() == self.kind && Identity::from(&step.attributes) == self.identity();
        if !same {
            self.fs.client.forget(step.node, 1);
            return Err(Errno::ESTALE);
        }
        self.adopt(step.node);
        self.note(&step.attributes, since);
        Ok(self.state.lock().attributes)
    }
}
