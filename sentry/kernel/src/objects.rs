//! What of the sentry's memory a process has caused: for the choice of who goes when memory runs out; and how much all
//! objects of a kind may take of it.
//!
//! The former is an estimate. What several processes hold (after fork(2)) is divided among them, as far as it is open files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fd::FdTable;
use crate::task::Process;

/// The sandbox's memory in bytes; there is one in a process.
static MEMORY: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The sandbox has so much memory.
pub(crate) fn set_memory(bytes: u64) {
    MEMORY.store(usize::try_from(bytes).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// A limit for all objects of a kind: `most`, and no more than one part in `parts` of the sandbox's memory. What the sentry
/// keeps has to be bounded where it is made: nobody looks as often as it can grow.
pub(crate) fn share(most: usize, parts: usize) -> usize {
    most.min(MEMORY.load(Ordering::Relaxed) / parts)
}

/// Bytes of a descriptor, of an open file, of a queued signal, of a timer, of a thread: measured, rounded up.
const SLOT: u64 = 16;
const FILE: u64 = 400;
const SIGNAL: u64 = 160;
const TIMER: u64 = 300;
const THREAD: u64 = 4096;
/// Of a file that is kept since the process has got it to map, and its account.
const MAPPED: u64 = 400;

/// The bytes of a process's open files, queued signals and timers.
pub(crate) fn of(process: &Process) -> u64 {
    let mut tables = BTreeSet::new();
    let mut bytes = SIGNAL * process.signals.lock().queue.count() as u64;
    bytes += TIMER * process.timers.posix.count() as u64;
    bytes += MAPPED * process.mm().kept() as u64;
    for thread in process.threads() {
        bytes += THREAD + SIGNAL * thread.signals.lock().queue.count() as u64;
        let files = thread.files();
        if tables.insert(files.id()) {
            bytes = bytes.saturating_add(of_files(&files));
        }
    }
    bytes
}

fn of_files(table: &FdTable) -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0u64;
    // Copies, not under the table's lock: each file looks under its own.
    for file in table.files() {
        bytes += SLOT;
        if seen.insert(file.id()) {
            let holders = Arc::strong_count(&file).saturating_sub(1).max(1) as u64;
            bytes = bytes.saturating_add((FILE + file.ops().memory()) / holders);
        }
    }
    bytes
}
