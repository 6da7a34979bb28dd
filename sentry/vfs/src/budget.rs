//! What all file systems in memory of a sandbox may use together.

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
    inodes: AtomicU64,
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
            inodes: AtomicU64::new(0),
            others: AtomicU64::new(0),
            short: AtomicU8::new(0),
        }
    }

    /// Bytes that files use.
    pub fn used(&self) -> u64 {
        self.pages.load(Ordering::Relaxed).saturating_mul(PAGE_SIZE)
    }

    /// Inodes in use.
    pub fn used_inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    /// How much memory of other kinds is in use, in bytes.
    pub fn set_others(&self, bytes: u64) {
        self.others.store(bytes, Ordering::Relaxed);
    }

    /// Pages that can be had at this moment.
    pub fn free_pages(&self) -> u64 {
        let pages = self.pages.load(Ordering::Relaxed);
        let memory = self.memory.saturating_sub(self.others.load(Ordering::Relaxed)) / PAGE_SIZE;
        self.max_pages.min(memory).saturating_sub(pages)
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
        let disk = pages > self.max_pages.saturating_sub(self.pages.load(Ordering::Relaxed));
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

    /// Counts pages; `ENOSPC`, and counts nothing, beyond the limit.
    pub fn charge(&self, pages: u64) -> Result<(), Errno> {
        if self.lacks(pages) {
            return Err(Errno::ENOSPC);
        }
        let add = |used: u64| used.checked_add(pages).filter(|&sum| sum <= self.max_pages);
        match self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::ENOSPC),
        }
    }

    /// Counts pages that are in use whatever the limit says.
    pub fn charge_forced(&self, pages: u64) {
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Gives pages back.
    pub fn uncharge(&self, pages: u64) {
        let subtract = |used: u64| Some(used.saturating_sub(pages));
        let _ = self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
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
}
