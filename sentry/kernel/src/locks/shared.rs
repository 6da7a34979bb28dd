//! Locks that count on the host too: those on files of a tree that guest and host share (`--rw`).
//!
//! The guest's locks are in the table like all others, which says how guests stand to each other. Besides, the host
//! descriptor of each open file has what was locked through it, as locks of an open file description: the union, where
//! several processes share the file. So a process's POSIX lock that it sets anew through another descriptor moves to
//! that one's, and in between, for a moment, the host sees no lock.
//!
//! The host's calls never wait. Who waits for a host process's lock tries again, at growing intervals.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sentry_abi::Errno;
use sentry_host::file_locks;
use sentry_vfs::file::File;

use super::{FileLocks, Owner, Record, Refused};

/// From one try to the next, at first and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The intervals at which somebody tries who waits for a host process.
pub struct Patience(Duration);

impl Default for Patience {
    /// The first is short.
    fn default() -> Patience {
        Patience(PATIENCE.0)
    }
}

impl Patience {
    /// How long to wait now.
    pub fn interval(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(PATIENCE.1);
        now
    }
}

fn refused(errno: Errno) -> Refused {
    if errno == Errno::EAGAIN {
        Refused::Host
    } else {
        Refused::Error(errno)
    }
}

impl FileLocks {
    fn host(&self, via: u64) -> Option<Arc<OwnedFd>> {
        self.hosts.get(&via).and_then(Weak::upgrade)
    }

    /// Makes the host's locks of one open file between `start` and `end` what the records say, those of `without`
    /// left out.
    pub(super) fn apply(&self, via: u64, (start, end): (u64, u64), without: Option<Owner>) {
        let Some(fd) = self.host(via) else { return };
        let end = end.min(i64::MAX as u64);
        let records: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| record.via == via && Some(record.owner) != without && record.overlaps(start, end))
            .collect();
        let mut cuts = vec![start, end + 1];
        for record in &records {
            cuts.push(record.start.max(start));
            cuts.push(record.end.min(end) + 1);
        }
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let (first, last) = (pair[0], pair[1] - 1);
            let here = records.iter().filter(|record| record.overlaps(first, last));
            let exclusive = here.map(|record| record.exclusive).reduce(|one, other| one || other);
            // Nothing here asks for more than the description has, so that only a host out of memory refuses.
            let _ = file_locks::set(fd.as_fd(), exclusive, first, last);
        }
    }

    /// The open files through which `owner` has locks that overlap, but for `via`.
    pub(super) fn through_others(&self, owner: Owner, via: u64, start: u64, end: u64) -> Vec<u64> {
        let theirs = self
            .records
            .iter()
            .filter(|record| record.owner == owner && record.overlaps(start, end));
        let mut all: Vec<u64> = theirs
            .map(|record| record.via)
            .filter(|other| *other != via && *other != 0)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Locks on the host what is about to become a record, and lets go what its owner has there through other files.
    pub(super) fn lock_on_host(&mut self, file: &File, record: &mut Record) -> Result<(), Refused> {
        let Some(fd) = file.ops().shared_file() else {
            return Ok(());
        };
        record.via = file.id();
        self.hosts.retain(|_, fd| fd.strong_count() > 0);
        self.hosts.insert(file.id(), Arc::downgrade(fd));
        let range = (record.start, record.end);
        let others = self.through_others(record.owner, record.via, record.start, record.end);
        for other in &others {
            self.apply(*other, range, Some(record.owner));
        }
        let locked = file_locks::set(fd.as_fd(), Some(record.exclusive), record.start, record.end);
        if locked.is_err() {
            for other in &others {
                self.apply(*other, range, None);
            }
        }
        locked.map_err(refused)
    }

    /// A lock of the host's in the way of `record`. Those of its owner through other files are not.
    pub(super) fn conflict_on_host(&self, file: &File, record: &Record) -> Option<Record> {
        let fd = file.ops().shared_file()?;
        let found = file_locks::test(fd.as_fd(), record.exclusive, record.start, record.end).ok()??;
        let own = self.through_others(record.owner, file.id(), found.start, found.end);
        own.is_empty().then_some(Record {
            owner: Owner::File(0),
            exclusive: found.exclusive,
            start: found.start,
            end: found.end,
            pid: found.pid,
            via: 0,
        })
    }
}

/// flock(2) on the host, where `file` is shared with it. `None` unlocks.
pub(super) fn flock(file: &File, exclusive: Option<bool>) -> Result<(), Refused> {
    match file.ops().shared_file() {
        Some(fd) => file_locks::flock(fd.as_fd(), exclusive).map_err(refused),
        None => Ok(()),
    }
}
