//! How often a file is open, for leases (fcntl(2), `F_SETLEASE`): they depend on who has it open, and whoever opens it
//! may have to wait for their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sentry_abi::Errno;

use crate::inode::Inode;
use crate::ops::Vfs;

/// Lies in an inode on which leases can be had.
#[derive(Default)]
pub struct Opens {
    readers: AtomicU32,
    writers: AtomicU32,
    leased: AtomicBool,
}

impl Opens {
    fn of(&self, write: bool) -> &AtomicU32 {
        if write { &self.writers } else { &self.readers }
    }

    /// How many have it open for reading only.
    pub fn readers(&self) -> u32 {
        self.readers.load(Ordering::SeqCst)
    }

    /// How many have it open for writing.
    pub fn writers(&self) -> u32 {
        self.writers.load(Ordering::SeqCst)
    }

    /// True if there may be leases.
    pub fn leased(&self) -> bool {
        self.leased.load(Ordering::SeqCst)
    }

    /// Whether there are leases.
    pub fn set_leased(&self, leased: bool) {
        self.leased.store(leased, Ordering::SeqCst);
    }
}

/// Counts as open as long as it lives.
pub struct Opened {
    inode: Arc<dyn Inode>,
    write: bool,
}

impl Opened {
    /// Opens a file for reading, or with `write` for writing. `None` where no leases can be had: nobody asks there.
    pub fn new(inode: &Arc<dyn Inode>, write: bool) -> Option<Opened> {
        inode.opens()?.of(write).fetch_add(1, Ordering::SeqCst);
        Some(Opened {
            inode: inode.clone(),
            write,
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(opens) = self.inode.opens() {
            opens.of(self.write).fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Who knows the leases.
pub trait LeaseBreaker: Send + Sync {
    /// A file with leases is to be opened, or with `write` opened for writing or resized: tells those who have to give
    /// theirs up. `EAGAIN` if there are any and the caller does not wait, `EJUKEBOX` if it is to wait.
    fn breaks(&self, inode: &Arc<dyn Inode>, write: bool, nonblocking: bool) -> Result<(), Errno>;
}

impl Vfs {
    /// Sets who knows the leases; once.
    pub fn set_lease_breaker(&self, breaker: Arc<dyn LeaseBreaker>) {
        let _ = self.leases.set(breaker);
    }

    /// To be called before a regular file is opened or resized; as long as the answer is held, no new lease is in the
    /// way.
    pub(crate) fn break_leases(
        &self,
        inode: &Arc<dyn Inode>,
        write: bool,
        nonblocking: bool,
    ) -> Result<Option<Opened>, Errno> {
        let Some(opens) = inode.opens() else { return Ok(None) };
        // Counted first: whoever takes a lease looks at the count after it has said so.
        let opened = Opened::new(inode, write);
        if opens.leased()
            && let Some(breaker) = self.leases.get()
        {
            breaker.breaks(inode, write, nonblocking)?;
        }
        Ok(opened)
    }
}
