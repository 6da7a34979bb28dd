//! A sandbox whose guest sleeps does nothing: no part of it wakes up on its own.

mod common;

use std::fs::{read_dir, read_to_string};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{SENTRY, eventually};

fn children(pid: u32) -> Vec<u32> {
    let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .flat_map(|pid| {
            let mut family = children(pid);
            family.push(pid);
            family
        })
        .collect()
}

/// How often the threads of a process and of all its descendants have been given a processor, and how many they are.
fn switches(root: u32) -> (u64, usize) {
    let mut family = children(root);
    family.push(root);
    let (mut sum, mut threads) = (0, 0);
    for pid in family {
        for task in read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let status = read_to_string(task.path().join("status")).unwrap_or_default();
            threads += 1;
            sum += status
                .lines()
                .filter(|line| line.contains("_ctxt_switches:"))
                .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .sum::<u64>();
        }
    }
    (sum, threads)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeps(platform: &str, guest: &[&str]) {
    let sandbox = Command::new(SENTRY)
        .args(["exec", "--platform", platform, "--"])
        .args(guest)
        .current_dir("/usr")
        .stdin(Stdio::null())
        .spawn()
        .expect("the sentry starts");
    let sandbox = Running(sandbox);
    let mut seen = Vec::new();
    // Whatever starts or ends something may take a while on a busy machine; then there is a second without anything.
    let still = eventually(|| {
        let before = switches(sandbox.0.id());
        std::thread::sleep(Duration::from_secs(1));
        let after = switches(sandbox.0.id());
        seen.push(after.0 - before.0.min(after.0));
        after == before && after.1 > 5
    });
    assert!(still, "{platform}: threads woke up, for each second: {seen:?}");
}

#[test]
fn nobody_wakes_while_the_guest_sleeps() {
    for platform in ["systrap", "ptrace"] {
        sleeps(platform, &["sleep", "1000"]);
        // A guest with several processes, one of which waits for another.
        sleeps(platform, &["sh", "-c", "sleep 1000 | cat; true"]);
    }
}
