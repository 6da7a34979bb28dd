//! File locks: POSIX record locks and open-file-description locks (fcntl_locking(2)), and flock(2).
//!
//! One table holds all of them behind one lock, which makes the search for deadlocks simple. Those on files that the
//! host shares count there too ([`shared`]).

mod shared;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, ReleaseWatcher};
use sentry_vfs::inode::Inode;
use sentry_vfs::path::InodeKey;
use sentry_vfs::wait::WaitQueue;

pub use shared::Patience;

/// The most record locks in a sandbox; more answer `ENOLCK`.
const MAX_RECORDS: usize = 1 << 17;

/// Whose a record lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A descriptor table ([`crate::fd::FdTable::id`]): POSIX locks.
    Table(u64),
    /// An open file description ([`File::id`]): OFD locks.
    File(u64),
}

/// A range of bytes with its kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Record {
    pub owner: Owner,
    pub exclusive: bool,
    pub start: u64,
    /// The last byte, inclusive; `i64::MAX` for "to the end".
    pub end: u64,
    /// For `F_GETLK`; -1 for OFD locks.
    pub pid: i32,
    /// The open file description whose host descriptor has the lock too ([`File::id`]); 0 for none. The table sets it.
    pub via: u64,
}

impl Record {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    fn conflicts(&self, other: &Record) -> bool {
        self.owner != other.owner && (self.exclusive || other.exclusive) && self.overlaps(other.start, other.end)
    }
}

/// What a lock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Inode(InodeKey),
    /// A file without an inode.
    File(u64),
}

fn key_of(file: &File) -> Key {
    file.path().inode_key().map_or(Key::File(file.id()), Key::Inode)
}

/// A lock of flock(2).
#[derive(Clone, Copy)]
struct Flocked {
    /// The open file description that has it.
    file: u64,
    exclusive: bool,
    /// Who set it, for /proc/locks.
    pid: i32,
}

/// One lock, as /proc/locks shows it.
#[allow(missing_docs)]
pub struct Listed {
    /// `POSIX`, `OFDLCK` or `FLOCK`.
    pub kind: &'static str,
    pub exclusive: bool,
    pub pid: i32,
    pub inode: Option<Arc<dyn Inode>>,
    /// The open file description that has it, if one has.
    pub file: Option<u64>,
    pub start: u64,
    /// The last byte, inclusive; none for "to the end".
    pub end: Option<u64>,
}

struct FileLocks {
    records: Vec<Record>,
    flocks: Vec<Flocked>,
    /// The host descriptors of open file descriptions that the host shares.
    hosts: HashMap<u64, Weak<OwnedFd>>,
    queue: Arc<WaitQueue>,
    /// Keeps the key from being used again.
    inode: Option<Arc<dyn Inode>>,
}

impl FileLocks {
    fn listed(&self) -> impl Iterator<Item = Listed> {
        let records = self.records.iter().map(|record| Listed {
            kind: if matches!(record.owner, Owner::File(_)) {
                "OFDLCK"
            } else {
                "POSIX"
            },
            exclusive: record.exclusive,
            pid: record.pid,
            inode: self.inode.clone(),
            file: match record.owner {
                Owner::File(file) => Some(file),
                Owner::Table(_) => None,
            },
            start: record.start,
            end: (record.end < i64::MAX as u64).then_some(record.end),
        });
        let flocks = self.flocks.iter().map(|lock| Listed {
            kind: "FLOCK",
            exclusive: lock.exclusive,
            pid: lock.pid,
            inode: self.inode.clone(),
            file: Some(lock.file),
            start: 0,
            end: None,
        });
        records.chain(flocks)
    }
}

#[derive(Default)]
struct Inner {
    files: HashMap<Key, FileLocks>,
    records: usize,
    /// What each owner of POSIX locks is waiting to lock.
    waiting: HashMap<Owner, Vec<(Key, Record)>>,
    /// Descriptions whose end the table is told of.
    watched: HashSet<u64>,
}

impl Inner {
    fn entry(&mut self, file: &File) -> &mut FileLocks {
        self.files.entry(key_of(file)).or_insert_with(|| FileLocks {
            records: Vec::new(),
            flocks: Vec::new(),
            hosts: HashMap::new(),
            queue: Arc::new(WaitQueue::new()),
            inode: file.path().inode().cloned(),
        })
    }

    fn conflict(&self, key: Key, record: &Record) -> Option<Record> {
        self.files
            .get(&key)?
            .records
            .iter()
            .find(|other| other.conflicts(record))
            .copied()
    }

    /// True if what `from` waits for leads to `to`.
    fn leads_to(&self, from: Owner, to: Owner) -> bool {
        let mut seen = HashSet::new();
        let mut todo = vec![from];
        while let Some(owner) = todo.pop() {
            if owner == to {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (key, record) in self.waiting.get(&owner).into_iter().flatten() {
                let locks = self.files.get(key).map_or(&[][..], |locks| &locks.records);
                todo.extend(
                    locks
                        .iter()
                        .filter(|other| other.conflicts(record))
                        .map(|other| other.owner),
                );
            }
        }
        false
    }

    /// Drops the file's entry when nothing is left; gives the queue to wake after a change.
    fn settle(&mut self, key: Key) -> Option<Arc<WaitQueue>> {
        let locks = self.files.get(&key)?;
        let queue = locks.queue.clone();
        // A waiter holds the queue; the entry must stay while there is one, for the next unlock to find it.
        if locks.records.is_empty() && locks.flocks.is_empty() && Arc::strong_count(&queue) <= 2 {
            self.files.remove(&key);
        }
        Some(queue)
    }

    /// Takes `start..=end` out of the owner's records. True if there was anything.
    fn cut(&mut self, key: Key, owner: Owner, start: u64, end: u64) -> bool {
        let Some(locks) = self.files.get_mut(&key) else {
            return false;
        };
        let before = locks.records.len();
        let mut rest = Vec::new();
        let mut changed = false;
        locks.records.retain(|record| {
            if record.owner != owner || !record.overlaps(start, end) {
                return true;
            }
            changed = true;
            if record.start < start {
                rest.push(Record {
                    end: start - 1,
                    ..*record
                });
            }
            if record.end > end {
                rest.push(Record {
                    start: end + 1,
                    ..*record
                });
            }
            false
        });
        locks.records.extend(rest);
        let after = locks.records.len();
        self.records = self.records + after - before;
        changed
    }
}

/// All file locks of a sandbox.
#[derive(Default)]
pub struct LockTable {
    inner: Mutex<Inner, rank::FileLocks>,
}

/// Why a lock was not granted at once.
pub enum Refused {
    /// Another owner holds a lock in the way; wait for the queue and try again.
    Conflict(Arc<WaitQueue>),
    /// A process of the host does; try again later ([`Patience`]).
    Host,
    /// `ENOLCK`, or `EDEADLK` when waiting would never end.
    Error(Errno),
}

impl LockTable {
    /// An empty table.
    pub fn new() -> Arc<LockTable> {
        Arc::new(LockTable::default())
    }

    /// Sets a record lock if nothing conflicts, replacing what its owner had there.
    pub fn set(self: &Arc<Self>, file: &Arc<File>, record: Record) -> Result<(), Refused> {
        let key = key_of(file);
        let mut record = record;
        let mut inner = self.inner.lock();
        if inner.conflict(key, &record).is_some() {
            return Err(Refused::Conflict(inner.entry(file).queue.clone()));
        }
        if inner.records >= MAX_RECORDS {
            return Err(Refused::Error(Errno::ENOLCK));
        }
        if let Err(refused) = inner.entry(file).lock_on_host(file, &mut record) {
            inner.settle(key);
            return Err(refused);
        }
        if let Owner::File(_) = record.owner {
            self.watch(&mut inner, file);
        }
        let replaced = inner.cut(key, record.owner, record.start, record.end);
        // Neighbours of the same kind become one.
        let mut merged = 0;
        let locks = inner.entry(file);
        locks.records.retain(|other| {
            let touches = other.owner == record.owner
                && other.exclusive == record.exclusive
                && other.via == record.via
                && (other.end.checked_add(1) == Some(record.start) || record.end.checked_add(1) == Some(other.start));
            if touches {
                record.start = record.start.min(other.start);
                record.end = record.end.max(other.end);
                merged += 1;
            }
            !touches
        });
        locks.records.push(record);
        let queue = locks.queue.clone();
        inner.records = inner.records + 1 - merged;
        drop(inner);
        if replaced {
            // It may have been exclusive before.
            queue.wake_all();
        }
        Ok(())
    }

    /// Takes an owner's record locks between `start` and `end` away.
    pub fn unset(&self, file: &File, owner: Owner, start: u64, end: u64) {
        let key = key_of(file);
        let mut inner = self.inner.lock();
        if !inner.cut(key, owner, start, end) {
            return;
        }
        if let Some(locks) = inner.files.get(&key) {
            locks.hosts.keys().for_each(|via| locks.apply(*via, (start, end), None));
        }
        let queue = inner.settle(key);
        drop(inner);
        if let Some(queue) = queue {
            queue.wake_all();
        }
    }

    /// A lock that is in the way of `record` (`F_GETLK`).
    pub fn test(&self, file: &File, record: &Record) -> Option<Record> {
        let key = key_of(file);
        let mut inner = self.inner.lock();
        let found = inner.conflict(key, record);
        let found = found.or_else(|| inner.entry(file).conflict_on_host(file, record));
        inner.settle(key);
        found
    }

    /// A lock of `record`'s owner that meets its range (`F_OFD_GETLK` with `F_UNLCK`).
    pub fn owned(&self, file: &File, record: &Record) -> Option<Record> {
        let inner = self.inner.lock();
        let locks = inner.files.get(&key_of(file))?;
        let meets = |own: &&Record| own.owner == record.owner && own.start <= record.end && record.start <= own.end;
        locks.records.iter().filter(meets).min_by_key(|own| own.start).copied()
    }

    /// Notes that a POSIX lock is waited for; `EDEADLK` if it would wait for itself. Hold the result while waiting.
    pub fn wait_for(self: &Arc<Self>, file: &File, record: Record) -> Result<Waiting, Errno> {
        let key = key_of(file);
        let mut inner = self.inner.lock();
        if let Owner::Table(_) = record.owner {
            let blockers: Vec<Owner> = inner.files.get(&key).map_or(Vec::new(), |locks| {
                locks
                    .records
                    .iter()
                    .filter(|other| other.conflicts(&record))
                    .map(|other| other.owner)
                    .collect()
            });
            if blockers
                .into_iter()
                .any(|blocker| inner.leads_to(blocker, record.owner))
            {
                return Err(Errno::EDEADLK);
            }
        }
        inner.waiting.entry(record.owner).or_default().push((key, record));
        Ok(Waiting {
            table: self.clone(),
            key,
            record,
        })
    }

    /// flock(2): sets a lock of an open file description if nothing conflicts. A lock of the other kind that it
    /// has is given up first, as in Linux.
    pub fn flock(self: &Arc<Self>, file: &Arc<File>, exclusive: bool, pid: i32) -> Result<(), Refused> {
        let mut inner = self.inner.lock();
        self.watch(&mut inner, file);
        let locks = inner.entry(file);
        let queue = locks.queue.clone();
        let held = |lock: &Flocked| lock.file == file.id() && lock.exclusive == exclusive;
        if locks.flocks.iter().any(held) {
            return Ok(());
        }
        let before = locks.flocks.len();
        locks.flocks.retain(|lock| lock.file != file.id());
        let converted = locks.flocks.len() != before;
        let free = locks.flocks.iter().all(|other| !exclusive && !other.exclusive);
        // The host, too, gives the old lock up before it looks for others.
        let result = if free {
            shared::flock(file, Some(exclusive))
        } else {
            if converted {
                let _ = shared::flock(file, None);
            }
            Err(Refused::Conflict(queue.clone()))
        };
        if result.is_ok() {
            let file = file.id();
            locks.flocks.push(Flocked { file, exclusive, pid });
        }
        drop(inner);
        if converted {
            queue.wake_all();
        }
        drop(queue);
        if let Err(Refused::Host | Refused::Error(_)) = result {
            self.inner.lock().settle(key_of(file));
        }
        result
    }

    /// All locks that are held.
    pub fn list(&self) -> Vec<Listed> {
        self.inner.lock().files.values().flat_map(FileLocks::listed).collect()
    }

    /// Those of one file.
    pub fn of_file(&self, file: &File) -> Vec<Listed> {
        let inner = self.inner.lock();
        inner
            .files
            .get(&key_of(file))
            .into_iter()
            .flat_map(FileLocks::listed)
            .collect()
    }

    /// flock(2) with `LOCK_UN`.
    pub fn unflock(&self, file: &File) {
        let key = key_of(file);
        let mut inner = self.inner.lock();
        let Some(locks) = inner.files.get_mut(&key) else { return };
        let before = locks.flocks.len();
        locks.flocks.retain(|lock| lock.file != file.id());
        if locks.flocks.len() != before {
            let _ = shared::flock(file, None);
        }
        let queue = inner.settle(key);
        drop(inner);
        if let Some(queue) = queue {
            queue.wake_all();
        }
    }

    fn watch(self: &Arc<Self>, inner: &mut Inner, file: &File) {
        if inner.watched.insert(file.id()) {
            let weak: Weak<LockTable> = Arc::downgrade(self);
            file.watch_release(weak);
        }
    }
}

impl ReleaseWatcher for LockTable {
    fn released(&self, file: &File) {
        self.inner.lock().watched.remove(&file.id());
        self.unset(file, Owner::File(file.id()), 0, u64::MAX);
        self.unflock(file);
    }
}

/// A POSIX lock being waited for; see [`LockTable::wait_for`].
pub struct Waiting {
    table: Arc<LockTable>,
    key: Key,
    record: Record,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut inner = self.table.inner.lock();
        if let Some(list) = inner.waiting.get_mut(&self.record.owner) {
            if let Some(index) = list
                .iter()
                .position(|(key, record)| *key == self.key && *record == self.record)
            {
                list.swap_remove(index);
            }
            if list.is_empty() {
                inner.waiting.remove(&self.record.owner);
            }
        }
        inner.settle(self.key);
    }
}

impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Conflict(_) => f.write_str("Conflict"),
            Refused::Host => f.write_str("Host"),
            Refused::Error(errno) => write!(f, "Error({errno:?})"),
        }
    }
}

impl Listed {
    /// A line of /proc/locks or /proc/PID/fdinfo without its newline: `POSIX  ADVISORY  WRITE 7 00:15:3 0 EOF`.
    pub fn line(&self) -> String {
        let attributes = self.inode.as_ref().and_then(|inode| inode.attributes().ok());
        let attributes = attributes.unwrap_or_default();
        let (major, minor) = (libc::major(attributes.dev), libc::minor(attributes.dev));
        let (access, start) = (if self.exclusive { "WRITE" } else { "READ" }, self.start);
        let end = self.end.map_or_else(|| "EOF".to_owned(), |end| end.to_string());
        format!(
            "{:<6} ADVISORY  {access:<5} {} {major:02x}:{minor:02x}:{} {start} {end}",
            self.kind, self.pid, attributes.ino
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::eventfd;

    const END: u64 = i64::MAX as u64;

    fn record(owner: u64, exclusive: bool, start: u64, end: u64) -> Record {
        Record {
            owner: Owner::Table(owner),
            exclusive,
            start,
            end,
            pid: owner as i32,
            via: 0,
        }
    }

    fn own(table: &LockTable, owner: u64) -> Vec<(bool, u64, u64)> {
        let inner = table.inner.lock();
        let all = inner.files.values().flat_map(|locks| &locks.records);
        let mut list: Vec<_> = all
            .filter(|record| record.owner == Owner::Table(owner))
            .map(|record| (record.exclusive, record.start, record.end))
            .collect();
        list.sort_by_key(|record| record.1);
        list
    }

    #[test]
    fn ranges_split_and_merge() {
        let (table, file) = (LockTable::new(), eventfd(0, false, 0));
        table.set(&file, record(1, true, 0, 99)).unwrap();
        table.set(&file, record(1, false, 40, 59)).unwrap();
        assert_eq!(own(&table, 1), [(true, 0, 39), (false, 40, 59), (true, 60, 99)]);
        table.set(&file, record(1, true, 40, 59)).unwrap();
        assert_eq!(own(&table, 1), [(true, 0, 99)]);
        table.unset(&file, Owner::Table(1), 10, 19);
        assert_eq!(own(&table, 1), [(true, 0, 9), (true, 20, 99)]);
        table.unset(&file, Owner::Table(1), 0, END);
        assert!(table.inner.lock().files.is_empty());
        assert_eq!(table.inner.lock().records, 0);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let (table, file) = (LockTable::new(), eventfd(0, false, 0));
        table.set(&file, record(1, false, 0, END)).unwrap();
        table.set(&file, record(2, false, 5, 6)).unwrap();
        assert!(matches!(
            table.set(&file, record(2, true, 5, 6)),
            Err(Refused::Conflict(_))
        ));
        assert_eq!(table.test(&file, &record(3, true, 0, 1)).map(|lock| lock.pid), Some(1));
        table.unset(&file, Owner::Table(1), 0, END);
        table.set(&file, record(2, true, 5, 6)).unwrap();
    }

    #[test]
    fn deadlocks_are_seen() {
        let (table, file) = (LockTable::new(), eventfd(0, false, 0));
        table.set(&file, record(1, true, 1, 1)).unwrap();
        table.set(&file, record(2, true, 2, 2)).unwrap();
        table.set(&file, record(3, true, 3, 3)).unwrap();
        let _one = table.wait_for(&file, record(1, true, 2, 2)).ok();
        let two = table.wait_for(&file, record(2, true, 3, 3)).ok();
        assert_eq!(table.wait_for(&file, record(3, true, 1, 1)).err(), Some(Errno::EDEADLK));
        drop(two);
        assert!(table.wait_for(&file, record(3, true, 1, 1)).is_ok());
    }

    #[test]
    fn flocks_convert_and_end_with_the_description() {
        let table = LockTable::new();
        let file = eventfd(0, false, 0);
        assert!(table.flock(&file, false, 1).is_ok());
        assert!(table.flock(&file, true, 1).is_ok());
        assert!(table.flock(&file, true, 1).is_ok());
        let ofd = Record {
            owner: Owner::File(file.id()),
            exclusive: true,
            start: 0,
            end: END,
            pid: -1,
            via: 0,
        };
        table.set(&file, ofd).unwrap();
        drop(file);
        let inner = table.inner.lock();
        assert!(inner.files.is_empty() && inner.watched.is_empty());
    }
}
