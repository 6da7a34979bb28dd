//! What all files of one tmpfs share: limits, and the memory that small and middling files live in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sentry_abi::Errno;
use sentry_host::memory_file::MemoryFile;
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, rank};

use crate::budget::Budget;

/// Bytes in a page, the unit of the size limit.
pub(super) const PAGE: u64 = sentry_abi::PAGE_SIZE;
/// Bytes in a chunk of the shared memory file.
pub(super) const CHUNK: u64 = 64 * 1024;
/// Pages in a chunk.
pub(super) const CHUNK_PAGES: u64 = CHUNK / PAGE;

/// Limits, counts and shared memory of one tmpfs.
pub(crate) struct Store {
    pub dev: u64,
    max_pages: AtomicU64,
    max_inodes: AtomicU64,
    used_pages: AtomicU64,
    used_inodes: AtomicU64,
    /// Beyond the own limits.
    budget: Arc<Budget>,
    next_ino: AtomicU64,
    /// Never handed out: files that are mapped get one of their own.
    shared: OnceLock<MemoryFile>,
    chunks: Mutex<Chunks, rank::TmpfsChunks>,
    /// Held over renames and removals of directories: the only operations that lock two directories.
    pub tree: LongMutex<(), rank::TmpfsTree>,
}

/// Which chunks of the shared file are free.
#[derive(Default)]
struct Chunks {
    free: Vec<u32>,
    next: u32,
}

impl Store {
    pub fn new(max_bytes: Option<u64>, max_inodes: Option<u64>, budget: Arc<Budget>) -> Store {
        // Inodes cost sentry memory even when files are empty: as many as pages, within these bounds.
        const INODES_LEAST: u64 = 1 << 10;
        const INODES_MOST: u64 = 1 << 20;
        let max_pages = max_bytes.map_or(u64::MAX / PAGE, |bytes| bytes.div_ceil(PAGE));
        Store {
            dev: crate::mount::new_anonymous_dev(),
            max_pages: AtomicU64::new(max_pages),
            max_inodes: AtomicU64::new(max_inodes.unwrap_or(max_pages.clamp(INODES_LEAST, INODES_MOST))),
            used_pages: AtomicU64::new(0),
            used_inodes: AtomicU64::new(0),
            budget,
            next_ino: AtomicU64::new(1),
            shared: OnceLock::new(),
            chunks: Mutex::default(),
            tree: LongMutex::new(()),
        }
    }

    pub fn next_ino(&self) -> u64 {
        self.next_ino.fetch_add(1, Ordering::Relaxed)
    }

    pub fn used_pages(&self) -> u64 {
        self.used_pages.load(Ordering::Relaxed)
    }

    pub fn used_inodes(&self) -> u64 {
        self.used_inodes.load(Ordering::Relaxed)
    }

    /// How many pages files may use.
    pub fn max_pages(&self) -> u64 {
        self.max_pages.load(Ordering::Relaxed).min(self.budget.max_pages())
    }

    /// How many files there may be.
    pub fn max_inodes(&self) -> u64 {
        self.max_inodes.load(Ordering::Relaxed).min(self.budget.max_inodes())
    }

    /// Changes the limits (mount(2) with `MS_REMOUNT`); `EINVAL`, and changes nothing, if more is in use.
    pub fn set_limits(&self, max_bytes: Option<u64>, max_inodes: Option<u64>) -> Result<(), Errno> {
        let pages = max_bytes.map(|bytes| bytes.div_ceil(PAGE));
        if pages.is_some_and(|pages| pages < self.used_pages())
            || max_inodes.is_some_and(|inodes| inodes < self.used_inodes())
        {
            return Err(Errno::EINVAL);
        }
        if let Some(pages) = pages {
            self.max_pages.store(pages, Ordering::Relaxed);
        }
        if let Some(inodes) = max_inodes {
            self.max_inodes.store(inodes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Pages that can still be charged.
    pub fn free_pages(&self) -> u64 {
        let own = self.max_pages().saturating_sub(self.used_pages());
        own.min(self.budget.free_pages())
    }

    /// Whether so many pages cannot be charged.
    pub fn lacks(&self, pages: u64) -> bool {
        self.budget.lacks(pages) || pages > self.free_pages()
    }

    /// Counts pages; `ENOSPC`, and counts nothing, beyond the limit.
    pub fn charge(&self, pages: u64) -> Result<(), Errno> {
        self.budget.charge(pages)?;
        let add = |used: u64| used.checked_add(pages).filter(|&sum| sum <= self.max_pages());
        match self.used_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.budget.uncharge(pages);
                Err(Errno::ENOSPC)
            }
        }
    }

    /// Counts pages that are in use whatever the limit says.
    pub fn charge_forced(&self, pages: u64) {
        self.used_pages.fetch_add(pages, Ordering::Relaxed);
        self.budget.charge_forced(pages);
    }

    pub fn uncharge(&self, pages: u64) {
        self.budget.uncharge(pages);
        let _ = self
            .used_pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used.saturating_sub(pages))
            });
    }

    pub fn charge_inode(&self) -> Result<(), Errno> {
        self.budget.charge_inode()?;
        let add = |used: u64| Some(used + 1).filter(|&sum| sum <= self.max_inodes());
        match self.used_inodes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.budget.uncharge_inode();
                Err(Errno::ENOSPC)
            }
        }
    }

    pub fn uncharge_inode(&self) {
        self.used_inodes.fetch_sub(1, Ordering::Relaxed);
        self.budget.uncharge_inode();
    }

    fn shared(&self) -> Result<&MemoryFile, Errno> {
        if let Some(file) = self.shared.get() {
            return Ok(file);
        }
        let file = MemoryFile::new(c"tmpfs")?;
        // Sparse, and large enough for every chunk number.
        file.set_len(u64::from(u32::MAX) * CHUNK)?;
        Ok(self.shared.get_or_init(|| file))
    }

    /// A chunk of zeros.
    pub fn take_chunk(&self) -> Result<u32, Errno> {
        self.shared()?;
        let mut chunks = self.chunks.lock();
        if let Some(number) = chunks.free.pop() {
            return Ok(number);
        }
        let number = chunks.next;
        chunks.next = number
            .checked_add(1)
            .filter(|&next| next < u32::MAX)
            .ok_or(Errno::ENOSPC)?;
        Ok(number)
    }

    /// Gives a chunk back, and its memory to the host.
    pub fn free_chunk(&self, number: u32) {
        if let Ok(shared) = self.shared()
            && shared.punch(u64::from(number) * CHUNK, CHUNK).is_ok()
        {
            self.chunks.lock().free.push(number);
        }
    }

    pub fn read_chunk(&self, number: u32, within: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let count = self.shared()?.read_at(buf, u64::from(number) * CHUNK + within)?;
        buf[count..].fill(0);
        Ok(())
    }

    pub fn write_chunk(&self, number: u32, within: u64, buf: &[u8]) -> Result<(), Errno> {
        self.shared()?.write_at(buf, u64::from(number) * CHUNK + within)
    }

    pub fn punch_chunk(&self, number: u32, within: u64, len: u64) -> Result<(), Errno> {
        self.shared()?.punch(u64::from(number) * CHUNK + within, len)
    }
}
