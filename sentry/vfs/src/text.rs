//! Programs that run are not written, and files that are written not executed (`ETXTBSY`).

use std::collections::HashMap;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use crate::inode::Inode;

/// By inode: how many write it, or, negative, how many execute it.
#[derive(Default)]
pub(crate) struct Texts {
    counts: Mutex<HashMap<usize, i64>, rank::TextCounts>,
}

/// Counts as a writer or as an executor of a regular file as long as it lives.
pub(crate) struct TextUse {
    texts: Arc<Texts>,
    /// Keeps the address, which is the key.
    inode: Arc<dyn Inode>,
    change: i64,
}

impl Texts {
    /// Who opens for writing; `ETXTBSY` if it is being executed.
    pub fn write(self: &Arc<Texts>, inode: &Arc<dyn Inode>) -> Result<TextUse, Errno> {
        self.count(inode, 1)
    }

    /// Who executes; `ETXTBSY` if it is open for writing.
    pub fn execute(self: &Arc<Texts>, inode: &Arc<dyn Inode>) -> Result<TextUse, Errno> {
        self.count(inode, -1)
    }

    fn count(self: &Arc<Texts>, inode: &Arc<dyn Inode>, change: i64) -> Result<TextUse, Errno> {
        let mut counts = self.counts.lock();
        let count = counts.entry(key(inode)).or_default();
        if *count * change < 0 {
            return Err(Errno::ETXTBSY);
        }
        *count += change;
        drop(counts);
        Ok(TextUse {
            texts: self.clone(),
            inode: inode.clone(),
            change,
        })
    }
}

fn key(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>() as usize
}

impl Drop for TextUse {
    fn drop(&mut self) {
        let mut counts = self.texts.counts.lock();
        if let Some(count) = counts.get_mut(&key(&self.inode)) {
            *count -= self.change;
            if *count == 0 {
                counts.remove(&key(&self.inode));
            }
        }
    }
}
