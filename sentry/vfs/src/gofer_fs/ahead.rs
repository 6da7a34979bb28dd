//! Files that are opened one after another, in the order of their directory, as grep -r, tar and cp -r do: several are
//! asked for with one request, before the guest opens them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_gofer::Access;
use sentry_gofer::client::OpenedAhead;
use sentry_gofer::protocol::MAX_AHEAD;

use super::{GoferInode, Identity};

/// So many files were opened one after another before more are asked for.
const RUN: u32 = 2;
/// Files that a run may leave out between two.
const GAP: u32 = 4;
/// The most descriptors of files that nobody has opened yet.
const MAX_WAITING: usize = 2 * MAX_AHEAD;

/// The files of a directory that were opened last.
#[derive(Default)]
pub(super) struct Run {
    /// The place in the directory behind the last one.
    next: u32,
    /// How often one came behind the one before.
    length: u32,
}

impl Run {
    /// The file at this place is opened: how many there are to be opened with it.
    fn step(&mut self, place: u32) -> u32 {
        let follows = (self.next..=self.next.saturating_add(GAP)).contains(&place);
        self.length = if follows { self.length + 1 } else { 0 };
        let count = match self.length.checked_sub(RUN) {
            None => 1,
            Some(more) => (4 << more.min(4)).min(MAX_AHEAD as u32),
        };
        self.next = place.saturating_add(count);
        count
    }
}

/// A descriptor of a file that nobody has opened yet.
pub(super) struct Waiting {
    /// Where the directory's inode is. It may be gone: what counts is which file it was.
    directory: usize,
    name: Box<[u8]>,
    file: OpenedAhead,
}

impl Waiting {
    pub(super) fn identity(&self) -> Identity {
        Identity::from(&self.file)
    }
}

impl From<&OpenedAhead> for Identity {
    fn from(file: &OpenedAhead) -> Identity {
        Identity {
            dev: file.dev,
            ino: file.ino,
        }
    }
}

impl GoferInode {
    /// A descriptor for reading that came with that of an earlier file, or comes now with those of the next ones.
    /// `None`: it has to be opened alone.
    pub(super) fn opened_ahead(&self) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let Some((parent, name)) = self.place() else {
            return Ok(None);
        };
        let file = match parent.take_waiting(&name) {
            Some(file) => Some(file),
            None => parent.open_run(&name)?,
        };
        let file = file.filter(|file| Identity::from(file) == self.identity());
        Ok(file.map(|file| {
            let fd = self.opened(file.fd, Access::Read);
            self.keep(&fd);
            fd
        }))
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn take_waiting(&self, name: &[u8]) -> Option<OpenedAhead> {
        let mut descriptors = self.fs.descriptors.lock();
        let waiting = &mut descriptors.waiting;
        let at = waiting
            .iter()
            .position(|waiting| waiting.directory == self.key() && *waiting.name == *name)?;
        waiting.remove(at).map(|waiting| waiting.file)
    }

    /// Opens `name` in this directory and what is likely to be opened next.
    fn open_run(&self, name: &[u8]) -> Result<Option<OpenedAhead>, Errno> {
        let mut directory = self.directory.lock()?;
        let Some(names) = directory.run(name) else {
            return Ok(None);
        };
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let Ok(opened) = self.with_node(|id| self.fs.client.open_ahead(id, &names)) else {
            return Ok(None);
        };
        let mut wanted = None;
        let mut gone = Vec::new();
        let mut descriptors = self.fs.descriptors.lock();
        for (other, file) in names.iter().zip(opened) {
            match file {
                Some(file) if *other == name => wanted = Some(file),
                Some(file) => {
                    if descriptors.waiting.len() >= MAX_WAITING {
                        gone.extend(descriptors.waiting.pop_front());
                    }
                    descriptors.waiting.push_back(Waiting {
                        directory: self.key(),
                        name: (*other).into(),
                        file,
                    });
                }
                None => {}
            }
        }
        // Closed without the lock.
        drop(descriptors);
        drop(gone);
        Ok(wanted)
    }
}

impl super::directory::Directory {
    /// The file `name` is opened: if it goes on a run, it and the names behind that are to be opened with it.
    fn run(&mut self, name: &[u8]) -> Option<Vec<Box<[u8]>>> {
        let place = self.order(name)?;
        let count = self.run.step(place);
        (count > 1).then(|| self.files(place, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_grow_and_end() {
        let mut run = Run::default();
        assert_eq!(run.step(70), 1);
        assert_eq!(run.step(71), 1);
        assert_eq!(run.step(73), 4);
        assert_eq!(run.step(77), 8);
        assert_eq!(run.step(85), 16);
        assert_eq!(run.step(101), MAX_AHEAD as u32);
        // Back, and too far ahead.
        assert_eq!(run.step(101), 1);
        assert_eq!(run.step(120), 1);
        assert_eq!(run.step(u32::MAX), 1);
    }
}
