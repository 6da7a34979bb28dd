//! What a process has used (getrusage(2)).

use std::sync::atomic::{AtomicU64, Ordering};

/// What a process has read and written (`/proc/PID/io`).
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Bytes read.
    pub read: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// Calls that read.
    pub reads: AtomicU64,
    /// Calls that write.
    pub writes: AtomicU64,
}

impl IoCounters {
    /// Counts a call if it is one that reads or writes.
    pub fn count(&self, nr: u64, result: Option<i64>) {
        let (reads, writes) = match nr as i64 {
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
                (true, false)
            }
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
                (false, true)
            }
            libc::SYS_sendfile | libc::SYS_copy_file_range => (true, true),
            _ => return,
        };
        let bytes = result.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
        for (counts, calls, total) in [(reads, &self.reads, &self.read), (writes, &self.writes, &self.written)] {
            if counts {
                calls.fetch_add(1, Ordering::Relaxed);
                total.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

/// Resource usage: CPU times in nanoseconds, and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Usage {
    pub user_nanos: u64,
    pub system_nanos: u64,
    /// In KiB.
    pub max_rss: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

impl Usage {
    /// Adds another process's usage (the largest resident set counts).
    pub fn add(&mut self, other: &Usage) {
        self.user_nanos = self.user_nanos.saturating_add(other.user_nanos);
        self.system_nanos = self.system_nanos.saturating_add(other.system_nanos);
        self.max_rss = self.max_rss.max(other.max_rss);
        self.minor_faults = self.minor_faults.saturating_add(other.minor_faults);
        self.major_faults = self.major_faults.saturating_add(other.major_faults);
        self.voluntary_switches = self.voluntary_switches.saturating_add(other.voluntary_switches);
        self.involuntary_switches = self.involuntary_switches.saturating_add(other.involuntary_switches);
    }

    /// As `struct rusage`.
    pub fn to_rusage(&self) -> [i64; 18] {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut out = [0i64; 18];
        out[0] = signed(self.user_nanos / 1_000_000_000);
        out[1] = signed(self.user_nanos % 1_000_000_000 / 1000);
        out[2] = signed(self.system_nanos / 1_000_000_000);
        out[3] = signed(self.system_nanos % 1_000_000_000 / 1000);
        out[4] = signed(self.max_rss);
        out[8] = signed(self.minor_faults);
        out[9] = signed(self.major_faults);
        out[16] = signed(self.voluntary_switches);
        out[17] = signed(self.involuntary_switches);
        out
    }
}
