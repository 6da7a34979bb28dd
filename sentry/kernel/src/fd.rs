//! Descriptor tables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sentry_abi::Errno;
use sentry_lock::{RwLock, rank};
use sentry_vfs::file::File;

use crate::locks::{LockTable, Owner};

/// A descriptor number, as the guest uses it.
pub type Fd = i32;

/// The highest number of descriptors a table can have (`nr_open`).
pub const NR_OPEN: u64 = 1 << 20;
/// How many open files the sandbox may have (`/proc/sys/fs/file-max`), root's too.
const FILE_MAX: usize = 1 << 19;

/// A bit for each descriptor.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn get(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    fn set(&mut self, index: usize, on: bool) {
        if let Some(word) = self.0.get_mut(index / 64) {
            if on {
                *word |= 1 << (index % 64)
            } else {
                *word &= !(1 << (index % 64))
            }
        }
    }

    /// The first clear bit from `start` on; beyond the end all are clear.
    fn first_clear(&self, start: usize) -> usize {
        let mut index = start / 64;
        let mut below = (1u64 << (start % 64)) - 1;
        while let Some(word) = self.0.get(index) {
            let taken = word | below;
            if taken != u64::MAX {
                return index * 64 + taken.trailing_ones() as usize;
            }
            below = 0;
            index += 1;
        }
        start.max(self.0.len() * 64)
    }
}

#[derive(Clone, Default)]
struct Slots {
    files: Vec<Option<Arc<File>>>,
    used: Bits,
    cloexec: Bits,
    /// Every descriptor below is in use.
    hint: usize,
}

impl Slots {
    fn get(&self, fd: Fd) -> Result<(usize, &Arc<File>), Errno> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        match self.files.get(index) {
            Some(Some(file)) => Ok((index, file)),
            _ => Err(Errno::EBADF),
        }
    }

    fn put(&mut self, index: usize, file: Arc<File>, cloexec: bool) -> Option<Arc<File>> {
        if index >= self.files.len() {
            let len = (index + 1).next_multiple_of(64);
            self.files.resize(len, None);
            self.used.0.resize(len / 64, 0);
            self.cloexec.0.resize(len / 64, 0);
        }
        self.used.set(index, true);
        self.cloexec.set(index, cloexec);
        if index == self.hint {
            self.hint += 1;
        }
        self.files[index].replace(file)
    }

    fn take(&mut self, index: usize) -> Option<Arc<File>> {
        let file = self.files.get_mut(index)?.take()?;
        self.used.set(index, false);
        self.cloexec.set(index, false);
        self.hint = self.hint.min(index);
        Some(file)
    }

    fn range(&self, first: u32, last: u32) -> std::ops::Range<usize> {
        let end = self.files.len().min((last as usize).saturating_add(1));
        (first as usize).min(end)..end
    }
}

/// A descriptor table; shared by threads with `CLONE_FILES`. It owns the POSIX locks of its process.
pub struct FdTable {
    id: u64,
    slots: RwLock<Slots, rank::FdSlots>,
    /// Where it has set POSIX locks.
    locks: OnceLock<Arc<LockTable>>,
}

impl Default for FdTable {
    fn default() -> FdTable {
        FdTable::with(Slots::default())
    }
}

impl FdTable {
    fn with(slots: Slots) -> FdTable {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        FdTable {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: RwLock::new(slots),
            locks: OnceLock::new(),
        }
    }

    /// An empty table.
    pub fn new() -> Arc<FdTable> {
        Arc::new(FdTable::default())
    }

    /// A number of its own, which owns POSIX locks.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that the table owns POSIX locks, to be released as its descriptors are closed.
    pub fn set_locks(&self, locks: &Arc<LockTable>) {
        let _ = self.locks.set(locks.clone());
    }

    /// A copy, as fork(2) makes it. POSIX locks are not inherited.
    pub fn fork(&self) -> Arc<FdTable> {
        Arc::new(FdTable::with(self.slots.read().clone()))
    }

    /// All its files, one for each descriptor.
    pub fn files(&self) -> Vec<Arc<File>> {
        self.slots.read().files.iter().flatten().cloned().collect()
    }

    /// The file of a descriptor; `EBADF` if it is not open.
    pub fn get(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        Ok(self.slots.read().get(fd)?.1.clone())
    }

    /// Installs a file at the lowest free number that is at least `min` and below `limit` (`RLIMIT_NOFILE`);
    /// `EMFILE` if there is none, `ENFILE` if the sandbox has too many open files.
    pub fn install(&self, file: Arc<File>, cloexec: bool, min: Fd, limit: u64) -> Result<Fd, Errno> {
        let min = usize::try_from(min).map_err(|_| Errno::EINVAL)?;
        let mut slots = self.slots.write();
        let index = slots.used.first_clear(min.max(slots.hint));
        if index as u64 >= limit.min(NR_OPEN) {
            return Err(Errno::EMFILE);
        }
        if File::count() > FILE_MAX {
            return Err(Errno::ENFILE);
        }
        slots.put(index, file, cloexec);
        Fd::try_from(index).map_err(|_| Errno::EMFILE)
    }

    /// `ENFILE` if there are too many open files, `EMFILE` if no number below `limit` is free: for calls that must not do anything then.
    pub fn check_room(&self, limit: u64) -> Result<(), Errno> {
        let slots = self.slots.read();
        let free = slots.used.first_clear(slots.hint);
        if (free as u64) >= limit.min(NR_OPEN) {
            return Err(Errno::EMFILE);
        }
        if File::count() >= FILE_MAX {
            return Err(Errno::ENFILE);
        }
        Ok(())
    }

    /// Installs two files at the lowest free numbers, or none of them.
    pub fn install_pair(&self, pair: (Arc<File>, Arc<File>), cloexec: bool, limit: u64) -> Result<(Fd, Fd), Errno> {
        let first = self.install(pair.0, cloexec, 0, limit)?;
        match self.install(pair.1, cloexec, 0, limit) {
            Ok(second) => Ok((first, second)),
            Err(errno) => {
                let _ = self.close(first);
                Err(errno)
            }
        }
    }

    /// Installs a file at exactly `fd`; what was there before is returned (dup2(2)). `EBADF` beyond `limit`.
    pub fn install_at(&self, fd: Fd, file: Arc<File>, cloexec: bool, limit: u64) -> Result<Option<Arc<File>>, Errno> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if index as u64 >= limit.min(NR_OPEN) {
            return Err(Errno::EBADF);
        }
        let old = self.slots.write().put(index, file, cloexec);
        if let Some(old) = &old {
            self.closed(old);
        }
        Ok(old)
    }

    /// Takes a descriptor out of the table; `EBADF` if it is not open.
    pub fn close(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let file = self.slots.write().take(index).ok_or(Errno::EBADF)?;
        self.closed(&file);
        Ok(file)
    }

    /// Takes all descriptors from `first` to `last` out.
    pub fn close_range(&self, first: u32, last: u32) -> Vec<Arc<File>> {
        let mut slots = self.slots.write();
        let files: Vec<_> = slots.range(first, last).filter_map(|index| slots.take(index)).collect();
        drop(slots);
        files.iter().for_each(|file| self.closed(file));
        files
    }

    /// Sets close-on-exec on all descriptors from `first` to `last`.
    pub fn cloexec_range(&self, first: u32, last: u32) {
        let mut slots = self.slots.write();
        for index in slots.range(first, last) {
            if slots.used.get(index) {
                slots.cloexec.set(index, true);
            }
        }
    }

    /// Takes out everything that is close-on-exec.
    pub fn close_on_exec(&self) -> Vec<Arc<File>> {
        let mut slots = self.slots.write();
        let marked: Vec<usize> = (0..slots.files.len())
            .filter(|&index| slots.cloexec.get(index))
            .collect();
        let files: Vec<_> = marked.into_iter().filter_map(|index| slots.take(index)).collect();
        drop(slots);
        files.iter().for_each(|file| self.closed(file));
        files
    }

    /// The close-on-exec flag.
    pub fn cloexec(&self, fd: Fd) -> Result<bool, Errno> {
        let slots = self.slots.read();
        let (index, _) = slots.get(fd)?;
        Ok(slots.cloexec.get(index))
    }

    /// Sets the close-on-exec flag.
    pub fn set_cloexec(&self, fd: Fd, cloexec: bool) -> Result<(), Errno> {
        let mut slots = self.slots.write();
        let (index, _) = slots.get(fd)?;
        slots.cloexec.set(index, cloexec);
        Ok(())
    }

    /// All open descriptors.
    pub fn list(&self) -> Vec<(Fd, Arc<File>, bool)> {
        let slots = self.slots.read();
        let open = slots
            .files
            .iter()
            .enumerate()
            .filter_map(|(index, file)| Some((index, file.as_ref()?)));
        open.filter_map(|(index, file)| Some((Fd::try_from(index).ok()?, file.clone(), slots.cloexec.get(index))))
            .collect()
    }

    /// The number of slots (`FDSize` of /proc/PID/status).
    pub fn capacity(&self) -> usize {
        self.slots.read().files.len()
    }

    /// Closing any descriptor of a file gives up the process's POSIX locks on it (fcntl_locking(2)).
    fn closed(&self, file: &File) {
        if let Some(locks) = self.locks.get() {
            locks.unset(file, Owner::Table(self.id), 0, u64::MAX);
        }
    }
}

impl Drop for FdTable {
    fn drop(&mut self) {
        if self.locks.get().is_some() {
            self.close_range(0, u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::eventfd;

    #[test]
    fn the_lowest_free_number_is_taken() {
        let table = FdTable::new();
        let file = eventfd(0, false, 0);
        for expected in 0..200 {
            assert_eq!(table.install(file.clone(), false, 0, 1024), Ok(expected));
        }
        assert_eq!(table.install(file.clone(), false, 500, 1024), Ok(500));
        for fd in [130, 7, 64] {
            table.close(fd).unwrap();
        }
        assert_eq!(table.close(7).err(), Some(Errno::EBADF));
        for expected in [7, 64, 130, 200] {
            assert_eq!(table.install(file.clone(), false, 0, 1024), Ok(expected));
        }
        assert_eq!(table.install(file.clone(), false, 0, 201), Err(Errno::EMFILE));
        assert_eq!(table.install(file.clone(), false, 1024, 1024), Err(Errno::EMFILE));
    }

    #[test]
    fn ranges_and_close_on_exec() {
        let table = FdTable::new();
        let file = eventfd(0, false, 0);
        for _ in 0..10 {
            table.install(file.clone(), false, 0, 1024).unwrap();
        }
        table.cloexec_range(8, u32::MAX);
        assert_eq!(table.cloexec(9), Ok(true));
        assert_eq!(table.close_range(2, 4).len(), 3);
        assert_eq!(table.close_on_exec().len(), 2);
        let open: Vec<Fd> = table.list().iter().map(|(fd, ..)| *fd).collect();
        assert_eq!(open, [0, 1, 5, 6, 7]);
        let copy = table.fork();
        assert_eq!(
            copy.install_at(6, file.clone(), true, 1024)
                .unwrap()
                .map(|file| file.id()),
            Some(file.id())
        );
        assert_eq!((copy.cloexec(6), table.cloexec(6)), (Ok(true), Ok(false)));
        assert_eq!(copy.install_at(1024, file, true, 1024).err(), Some(Errno::EBADF));
    }
}
