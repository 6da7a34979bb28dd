//! Where the files of an export meet the books.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_gofer::protocol::{Attributes, FsTotals, NewAttributes, Step};
use sentry_host::files;

use super::ledger::{NewName, Use};
use super::meter::{Look, pages_of};
use super::{GoferInode, Identity, file};

impl From<&Attributes> for Look {
    fn from(attributes: &Attributes) -> Look {
        Look {
            pages: pages_of(attributes.blocks),
            size: attributes.size,
        }
    }
}

impl GoferInode {
    /// Totals of the file system, asked for by a directory: the gofer has a bound for nodes of other files.
    pub(super) fn totals(&self) -> Result<FsTotals, Errno> {
        match self.place().filter(|_| !self.is_dir()) {
            Some((parent, _)) => parent.with_node(|id| self.fs.client.fs_totals(id)),
            None => self.with_node(|id| self.fs.client.fs_totals(id)),
        }
    }

    /// The account of a file that was just opened; the gate is held.
    pub(super) fn account_of(&self, fd: &Arc<OwnedFd>) -> Result<Option<Use>, Errno> {
        if self.fs.limited().is_none() {
            return Ok(None);
        }
        let identity = Identity::from(&file::stat(fd.as_fd())?);
        Ok(self.fs.account(identity, || self.totals()))
    }

    /// A file that a guest may have made: its name counts, or is given back.
    pub(super) fn counted<T>(
        &self,
        new_name: NewName<'_>,
        name: &[u8],
        made: Result<(Step, T), Errno>,
    ) -> Result<(Step, T), Errno> {
        match made {
            Ok((step, rest)) => {
                self.fs.learn_of(step.attributes.dev, || self.totals());
                new_name.made(&step.attributes, true);
                self.tally_made(name, false);
                Ok((step, rest))
            }
            Err(errno) => {
                new_name.failed(errno);
                Err(errno)
            }
        }
    }

    /// As [`Self::counted`], where only a look can tell whether the file was made.
    pub(super) fn find_made(&self, new_name: NewName<'_>, name: &[u8]) -> Result<Arc<GoferInode>, Errno> {
        match self.find(name) {
            Ok(inode) => {
                let identity = inode.identity();
                self.fs.learn_of(identity.dev, || self.totals());
                new_name.found(identity);
                self.tally_made(name, false);
                Ok(inode)
            }
            Err(Errno::ENOENT) => Err(Errno::EMFILE),
            Err(_) => {
                new_name.failed(Errno::EIO);
                Err(Errno::EMFILE)
            }
        }
    }

    pub(super) fn tally_made(&self, name: &[u8], replaces: bool) {
        if let Some(tally) = self.fs.tally() {
            tally.made(self.identity(), name, replaces);
        }
    }

    /// A guest changes the file.
    pub(super) fn modified(&self) {
        let Some(tally) = self.fs.tally().filter(|_| !self.is_dir()) else {
            return;
        };
        if self.noted.swap(true, Ordering::Relaxed) {
            return;
        }
        match self.place() {
            Some((parent, name)) => tally.changed(parent.identity(), &name),
            // An export of one file has no name in it.
            None if self.is_export => tally.changed(self.identity(), b""),
            None => {}
        }
    }

    /// Resizes a file by a descriptor that is open.
    pub(super) fn truncate_open(&self, fd: &Arc<OwnedFd>, size: u64) -> Result<(), Errno> {
        match self.account_of(fd)?.filter(Use::meters) {
            Some(used) => used.resize(fd.as_fd(), size),
            None => {
                let len = i64::try_from(size).map_err(|_| Errno::EINVAL)?;
                Ok(files::truncate(fd.as_fd(), len)?)
            }
        }
    }

    /// Has the gofer resize a file.
    pub(super) fn truncate_unopened(&self, size: u64, new: &NewAttributes) -> Result<Attributes, Errno> {
        let act = || self.with_node(|id| self.fs.client.set_attributes(id, new));
        let identity = self.identity();
        let used = self.fs.account(identity, || self.totals());
        let Some(used) = used.filter(Use::meters) else {
            return act();
        };
        let ask = || match self.place() {
            Some((parent, name)) => {
                let (step, _) = parent.request_lookup(&name, None)?;
                self.adopt(step.node);
                Ok(step.attributes)
            }
            None => self.with_node(|id| self.fs.client.attributes(id)),
        };
        let look = || {
            let attributes = ask()?;
            // Another file is there by now, of which nothing counts here.
            if Identity::from(&attributes) != identity {
                return Err(Errno::ESTALE);
            }
            Ok(Look::from(&attributes))
        };
        used.resize_unopened(size, look, || {
            let attributes = act()?;
            let same = Identity::from(&attributes) == identity;
            Ok((attributes, same.then(|| Look::from(&attributes))))
        })
    }
}
