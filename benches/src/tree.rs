//! What a process and all its descendants use, as the host's /proc tells.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// The process and its descendants.
pub fn family(root: u32) -> Result<Vec<u32>, String> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc")
        .map_err(|error| format!("/proc: {error}"))?
        .flatten()
    {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(parent) = parent(pid) else { continue };
        children.entry(parent).or_default().push(pid);
    }
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    Ok(all)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the state and the parent follow the last of them.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Memory in bytes, shared pages divided among those who share them (PSS).
pub fn memory(root: u32) -> Result<u64, String> {
    let mut total = 0;
    for pid in family(root)? {
        let Ok(rollup) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            continue;
        };
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        total += line
            .and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            << 10;
    }
    if total == 0 {
        Err("the sandbox is not there".into())
    } else {
        Ok(total)
    }
}

/// Page tables, in bytes.
pub fn page_tables(root: u32) -> Result<u64, String> {
    let mut total = 0;
    for pid in family(root)? {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
        total += line
            .and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            << 10;
    }
    Ok(total)
}

/// Time on processors so far, of all threads.
pub fn cpu_time(root: u32) -> Result<Duration, String> {
    let mut nanoseconds = 0;
    for pid in family(root)? {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let schedstat = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            nanoseconds += schedstat
                .split_whitespace()
                .next()
                .and_then(|time| time.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_is_found_with_its_memory_and_its_time() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        assert!(super::family(own).unwrap().contains(&child.id()));
        assert!(super::memory(own).unwrap() > 4096);
        assert!(super::cpu_time(own).unwrap().as_nanos() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
