//! What of the sentry's memory a process has caused: for the choice of who goes when memory runs out.
//!
//! An estimate. What several processes hold (after fork(2)) is divided among them, as far as it is open files.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fd::FdTable;
use crate::task::Process;

/// Bytes of a descriptor, of an open file, of a queued signal, of a timer, of a thread: measured, rounded up.
const SLOT: u64 = 16;
const FILE: u64 = 400;
const SIGNAL: u64 = 160;
const TIMER: u64 = 300;
const THREAD: u64 = 4096;

/// The bytes of a process's open files, queued signals and timers.
pub(crate) fn of(process: &Process) -> u64 {
    let mut tables = BTreeSet::new();
    let mut bytes = SIGNAL * process.signals.lock().queue.count() as u64;
    bytes += TIMER * process.timers.posix.count() as u64;
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
