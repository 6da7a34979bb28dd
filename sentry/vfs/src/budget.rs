//! What all file systems that a sandbox writes to may use together: those in memory, and what guests add to the host's
//! files.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use sentry_abi::{Errno, PAGE_SIZE};

/// A limit that several file systems share. Counts are in pages, inodes and bytes.
#[derive(Debug)]
pub struct Budget {
    max_pages: u64,
    max_inodes: u64,
    /// Pages of files may only be had while they and what else is in use (`others`) are less than this, in bytes.
    memory: u64,
    pages: AtomicU64,
    /// Pages of all files: those in memory, and what guests have added to the host's.
    disk: AtomicU64,
    inodes: AtomicU64,
    /// Those of `inodes` that are names of the host.
    names: AtomicU64,
    others: AtomicU64,
    /// The [`Shortage`] that was met last, 0 if it was told.
    short: AtomicU8,
}

/// A limit that has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shortage {
    /// Of pages that files may have.
    Pages = 1,
    /// Of inodes.
    Inodes,
    /// Of memory, with what else is in use.
    Memory,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(None, None, None)
    }
}

impl Budget {
    /// At most so many bytes (`disk`) and inodes; and so many bytes together with memory of other kinds.
    pub fn new(disk: Option<u64>, inodes: Option<u64>, memory: Option<u64>) -> Budget {
        Budget {
            max_pages: disk.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE),
            max_inodes: inodes.unwrap_or(u64::MAX),
            memory: memory.unwrap_or(u64::MAX),
            pages: AtomicU64::new(0),
            disk: AtomicU64::new(0),
            names: AtomicU64::new(0),
            inodes: AtomicU64::new(0),
            others: AtomicU64::new(0),
            short: AtomicU8::new(0),
        }
    }

    /// Bytes that files in memory use.
    pub fn used(&self) -> u64 {
        self.pages.load(Ordering::Relaxed).saturating_mul(PAGE_SIZE)
    }

    /// Bytes that count against `disk`.
    pub fn used_disk(&self) -> u64 {
        self.disk.load(Ordering::Relaxed).saturating_mul(PAGE_SIZE)
    }

    /// Inodes in use.
    pub fn used_inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    /// How much memory of other kinds is in use, in bytes.
    pub fn set_others(&self, bytes: u64) {
        self.others.store(bytes, Ordering::Relaxed);
    }

    /// Pages in memory that can be had at this moment.
    pub fn free_pages(&self) -> u64 {
        let pages = self.pages.load(Ordering::Relaxed);
        let memory = self.memory.saturating_sub(self.others.load(Ordering::Relaxed)) / PAGE_SIZE;
        self.free_disk_pages().min(memory.saturating_sub(pages))
    }

    /// All pages that guests may have of the host's disks.
    pub fn max_disk_pages(&self) -> u64 {
        self.max_pages
    }

    /// Pages that can be had of the host's disks.
    pub fn free_disk_pages(&self) -> u64 {
        self.max_pages.saturating_sub(self.disk.load(Ordering::Relaxed))
    }

    /// All pages that files may have.
    pub fn max_pages(&self) -> u64 {
        self.max_pages.min(self.memory / PAGE_SIZE)
    }

    /// All inodes that there may be.
    pub fn max_inodes(&self) -> u64 {
        self.max_inodes
    }

    /// Whether so many pages cannot be had at this moment: then that is noted.
    pub fn lacks(&self, pages: u64) -> bool {
        if pages <= self.free_pages() {
            return false;
        }
        let disk = pages > self.free_disk_pages();
        self.note(if disk { Shortage::Pages } else { Shortage::Memory });
        true
    }

    fn note(&self, short: Shortage) {
        self.short.store(short as u8, Ordering::Relaxed);
    }

    /// The limit that was reached since this was asked last.
    pub fn take_shortage(&self) -> Option<Shortage> {
        let short = self.short.load(Ordering::Relaxed);
        if short == 0 {
            return None;
        }
        match self.short.swap(0, Ordering::Relaxed) {
            1 => Some(Shortage::Pages),
            2 => Some(Shortage::Inodes),
            3 => Some(Shortage::Memory),
            _ => None,
        }
    }

    /// Bytes in use of what [`Shortage::Memory`] is about.
    pub fn used_with_others(&self) -> u64 {
        self.used().saturating_add(self.others.load(Ordering::Relaxed))
    }

    /// Counts pages in memory; `ENOSPC`, and counts nothing, beyond the limit.
    pub fn charge(&self, pages: u64) -> Result<(), Errno> {
        if self.lacks(pages) {
            return Err(Errno::ENOSPC);
        }
        self.charge_disk(pages)?;
        self.pages.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    }

    /// Counts pages in memory that are in use whatever the limit says.
    pub fn charge_forced(&self, pages: u64) {
        self.pages.fetch_add(pages, Ordering::Relaxed);
        self.charge_disk_forced(pages);
    }

    /// Gives pages in memory back.
    pub fn uncharge(&self, pages: u64) {
        let subtract = |used: u64| Some(used.saturating_sub(pages));
        let before = self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        self.uncharge_disk(before.unwrap_or(0).min(pages));
    }

    /// True if what guests add to the host's files has a limit.
    pub fn limits_disk(&self) -> bool {
        self.max_pages != u64::MAX || self.max_inodes != u64::MAX
    }

    /// Counts pages of the host's disks; `ENOSPC`, and counts nothing, beyond the limit.
    pub fn charge_disk(&self, pages: u64) -> Result<(), Errno> {
        let add = |used: u64| used.checked_add(pages).filter(|&sum| sum <= self.max_pages);
        match self.disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.note(Shortage::Pages);
                Err(Errno::ENOSPC)
            }
        }
    }

    /// Counts pages of the host's disks that are in use whatever the limit says.
    pub fn charge_disk_forced(&self, pages: u64) {
        self.disk.fetch_add(pages, Ordering::Relaxed);
    }

    /// Gives pages of the host's disks back.
    pub fn uncharge_disk(&self, pages: u64) {
        let subtract = |used: u64| Some(used.saturating_sub(pages));
        let _ = self.disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }

    /// How many names there may be on the host: a name without content takes room too. As in a tmpfs, as many as pages,
    /// if nothing else is said.
    fn max_names(&self) -> u64 {
        const NAMES_LEAST: u64 = 1 << 10;
        if self.max_inodes == u64::MAX && self.max_pages != u64::MAX {
            self.max_pages.max(NAMES_LEAST)
        } else {
            u64::MAX
        }
    }

    /// Names that guests can still make on the host.
    pub fn free_names(&self) -> u64 {
        let left = |most: u64, used: &AtomicU64| most.saturating_sub(used.load(Ordering::Relaxed));
        left(self.max_inodes, &self.inodes).min(left(self.max_names(), &self.names))
    }

    /// Counts a name on the host; `ENOSPC` beyond the limits.
    pub fn charge_name(&self) -> Result<(), Errno> {
        let add = |most: u64| move |used: u64| Some(used + 1).filter(|&sum| sum <= most);
        let names = add(self.max_names());
        if self
            .names
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, names)
            .is_err()
        {
            self.note(Shortage::Pages);
            return Err(Errno::ENOSPC);
        }
        let inodes = add(self.max_inodes);
        if self
            .inodes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, inodes)
            .is_err()
        {
            self.names.fetch_sub(1, Ordering::Relaxed);
            self.note(Shortage::Inodes);
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Gives names on the host back, which were counted.
    pub fn uncharge_names(&self, count: u64) {
        self.names.fetch_sub(count, Ordering::Relaxed);
        self.inodes.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts an inode; `ENOSPC` beyond the limit, and where no memory is left: empty files take some too.
    pub fn charge_inode(&self) -> Result<(), Errno> {
        let used = self.used().saturating_add(self.others.load(Ordering::Relaxed));
        if self.memory != u64::MAX && used >= self.memory {
            self.note(Shortage::Memory);
            return Err(Errno::ENOSPC);
        }
        let add = |used: u64| Some(used + 1).filter(|&sum| sum <= self.max_inodes);
        match self.inodes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.note(Shortage::Inodes);
                Err(Errno::ENOSPC)
            }
        }
    }

    /// Gives an inode back.
    pub fn uncharge_inode(&self) {
        self.inodes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_the_rest_share_the_memory() {
        let budget = Budget::new(Some(100 * PAGE_SIZE), Some(1), Some(10 * PAGE_SIZE));
        assert_eq!(budget.charge(11), Err(Errno::ENOSPC));
        budget.charge(4).unwrap();
        budget.set_others(5 * PAGE_SIZE);
        assert_eq!((budget.free_pages(), budget.charge(2)), (1, Err(Errno::ENOSPC)));
        budget.set_others(0);
        budget.charge(6).unwrap();
        budget.uncharge(10);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.take_shortage(), Some(Shortage::Memory));
        assert_eq!(budget.take_shortage(), None);
        budget.set_others(10 * PAGE_SIZE);
        assert_eq!(budget.charge_inode(), Err(Errno::ENOSPC));
        assert_eq!(budget.take_shortage(), Some(Shortage::Memory));
        budget.set_others(0);
        budget.charge_inode().unwrap();
        assert_eq!(budget.charge_inode(), Err(Errno::ENOSPC));
        assert_eq!(budget.take_shortage(), Some(Shortage::Inodes));
        let budget = Budget::new(Some(2 * PAGE_SIZE), None, Some(10 * PAGE_SIZE));
        assert!(budget.lacks(3) && !budget.lacks(2));
        assert_eq!(budget.take_shortage(), Some(Shortage::Pages));
    }

    #[test]
    fn host_files_share_the_disk_but_not_the_memory() {
        let budget = Budget::new(Some(10 * PAGE_SIZE), None, Some(4 * PAGE_SIZE));
        budget.charge_disk(8).unwrap();
        assert_eq!((budget.used(), budget.used_disk()), (0, 8 * PAGE_SIZE));
        assert_eq!(
            (budget.charge(3), budget.take_shortage()),
            (Err(Errno::ENOSPC), Some(Shortage::Pages))
        );
        budget.charge(2).unwrap();
        assert_eq!(budget.charge_disk(1), Err(Errno::ENOSPC));
        // What was never counted gives no host pages back.
        budget.uncharge(5);
        assert_eq!((budget.used(), budget.free_disk_pages()), (0, 2));
        budget.uncharge_disk(20);
        assert_eq!(budget.free_disk_pages(), 10);
    }

    #[test]
    fn names_on_the_host_are_inodes() {
        let budget = Budget::new(None, Some(2), None);
        budget.charge_name().unwrap();
        budget.charge_inode().unwrap();
        assert_eq!((budget.charge_name(), budget.free_names()), (Err(Errno::ENOSPC), 0));
        assert_eq!(budget.take_shortage(), Some(Shortage::Inodes));
        budget.uncharge_names(1);
        assert_eq!((budget.free_names(), budget.used_inodes()), (1, 1));
        // With a limit for content only, there are as many as pages.
        let budget = Budget::new(Some(2000 * PAGE_SIZE), None, None);
        assert_eq!(budget.free_names(), 2000);
        assert_eq!(Budget::new(None, None, None).free_names(), u64::MAX);
    }
}
