//! Whether others want the processors. A worker that waits by spinning does so at a high priority, and a machine with
//! more to run than processors has better use for that time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::handoff::rdtscp;

/// How long an answer holds, in TSC ticks: some 20 ms. Asking the host takes a few microseconds.
const HOLDS: u64 = 60_000_000;

/// The host's load, as `/proc/loadavg` tells.
#[derive(Debug)]
pub struct Load {
    file: File,
    /// Processors of the host that can run something.
    processors: usize,
    asked: AtomicU64,
    crowded: AtomicBool,
}

impl Load {
    /// Opens it; `None` where there is no /proc.
    pub fn open() -> Option<Load> {
        let file = File::open("/proc/loadavg").ok()?;
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
        Some(Load {
            file,
            processors: count(&online)?,
            asked: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
        })
    }

    /// More threads can run than there are processors.
    pub fn is_crowded(&self) -> bool {
        let now = rdtscp().0;
        if now.wrapping_sub(self.asked.load(Ordering::Relaxed)) < HOLDS {
            return self.crowded.load(Ordering::Relaxed);
        }
        self.asked.store(now, Ordering::Relaxed);
        let mut text = [0; 64];
        let len = self.file.read_at(&mut text, 0).unwrap_or(0);
        let crowded = running(&text[..len]).is_some_and(|running| running > self.processors);
        self.crowded.store(crowded, Ordering::Relaxed);
        crowded
    }
}

/// The number of processors in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',');
    let sizes = ranges.map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    sizes.sum()
}

/// The threads that run or could, whoever asks among them: `0.20 0.18 0.12 1/80 11206`.
fn running(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_loads_are_read() {
        assert_eq!(count("0-3,8\n"), Some(5));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count(""), None);
        assert_eq!(count("3-1"), None);
        assert_eq!(running(b"0.20 0.18 0.12 7/80 11206\n"), Some(7));
        assert_eq!(running(b"0.20"), None);
        let load = Load::open().expect("a /proc and a /sys");
        assert!(load.processors > 0);
        load.is_crowded();
    }
}
