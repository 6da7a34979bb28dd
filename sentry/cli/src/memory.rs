//! How much memory a sandbox uses, as the supervisor finds out: by looking at its processes in `/proc`.
//!
//! The sentry has no `/proc`, and guests' memory is the host's own, so nobody else can say. Between two looks a sandbox can
//! grow by what its processes can touch meanwhile: the nearer the limit, the sooner the next look.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::unistd::Pid;

/// How fast processes are thought to touch memory, in bytes a second.
const RATE: u64 = 4 << 30;
/// Bounds of the time between two looks.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(100);
/// So many of the largest processes are told to the sentry when one of them has to go.
const LARGEST: usize = 16;

/// What one process uses, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Anonymous memory and page tables.
    kib: u64,
    /// Its id as the sentry knows it.
    inner: u32,
}

/// Reads what matters of `/proc/PID/status`.
fn parse(status: &str) -> Use {
    let number = |line: &str| line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    let mut found = Use::default();
    for line in status.lines() {
        match line.split(':').next() {
            Some("RssAnon" | "VmPTE" | "VmSwap") => found.kib += number(line).unwrap_or(0),
            Some("NSpid") => {
                let last = line.split_whitespace().last();
                found.inner = last.and_then(|text| text.parse().ok()).unwrap_or(0);
            }
            _ => {}
        }
    }
    found
}

/// The children of a process, as /proc tells.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for thread in threads.flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    all
}

/// True if this host's `/proc` tells which processes are whose children. Without that nobody can be measured.
pub fn can_be_seen() -> bool {
    fs::read_to_string("/proc/thread-self/children").is_ok()
}

/// Anonymous memory of a process, what it shares with others after fork(2) counted in parts: in KiB.
fn proportional(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss_Anon:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Looks at the processes of a sandbox.
pub struct Meter {
    root: Pid,
    guarded: bool,
    limit: u64,
    /// The most bytes seen at a time.
    pub peak: u64,
}

/// What a look found, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What all processes use, ours among them.
    pub total: u64,
    /// The processes that use most, by the number that the sentry knows: (number, KiB).
    pub largest: Vec<(u32, u32)>,
}

impl Meter {
    /// A meter for the sentry `root`, or its guard, and the processes below.
    pub fn new(root: Pid, guarded: bool, limit: Option<u64>) -> Meter {
        Meter {
            root,
            guarded,
            limit: limit.unwrap_or(u64::MAX),
            peak: 0,
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// All processes of the sandbox: guests are children of the sentry, which may have a guard above it.
    fn processes(&self) -> BTreeSet<i32> {
        let root = self.root.as_raw();
        let mut found: BTreeSet<i32> = children(root).into_iter().collect();
        if self.guarded {
            let below: Vec<i32> = found.iter().flat_map(|pid| children(*pid)).collect();
            found.extend(below);
        }
        found.insert(root);
        found
    }

    /// Looks. `exact` counts memory that processes share once, which takes longer.
    pub fn look(&mut self, exact: bool) -> Look {
        let mut look = Look::default();
        let mut uses: Vec<(u32, u32)> = Vec::new();
        for pid in self.processes() {
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let mut used = parse(&status);
            if exact && let Some(kib) = proportional(pid) {
                used.kib = kib;
            }
            look.total += used.kib << 10;
            uses.push((used.inner, u32::try_from(used.kib).unwrap_or(u32::MAX)));
        }
        uses.sort_unstable_by_key(|(_, kib)| std::cmp::Reverse(*kib));
        uses.truncate(LARGEST);
        look.largest = uses;
        self.peak = self.peak.max(look.total);
        look
    }

    /// How long until the next look, after one that found so many bytes.
    pub fn next(&self, total: u64) -> Duration {
        let left = self.limit.saturating_sub(total);
        Duration::from_micros(left / (RATE / 1_000_000)).clamp(SOONEST, LATEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_files_are_read() {
        let text =
            "Name:\tx\nVmRSS:\t 900 kB\nRssAnon:\t     120 kB\nVmPTE:\t      44 kB\nNSpid:\t412\t7\nThreads:\t1\n";
        assert_eq!(parse(text), Use { kib: 164, inner: 7 });
        assert_eq!(parse(""), Use::default());
    }

    #[test]
    fn the_nearer_the_limit_the_sooner() {
        let meter = Meter::new(Pid::from_raw(1), false, Some(1 << 30));
        assert_eq!(meter.next(0), LATEST);
        assert_eq!(meter.next(1 << 30), SOONEST);
        assert!(meter.next((1 << 30) - (64 << 20)) < Duration::from_millis(20));
    }
}
