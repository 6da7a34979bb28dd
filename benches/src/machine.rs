//! What the results depend on: the machine, its load, and the code's version.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// Where and with what a run was made.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name and how many there are.
    pub processor: String,
    /// The host kernel.
    pub kernel: String,
    /// The load averages at the start.
    pub load: String,
    /// The commit of the code, with a mark when files differ from it.
    pub commit: String,
    /// The processor that everything was kept on.
    pub pinned: Option<usize>,
}

impl Machine {
    /// This one, now.
    pub fn here(pinned: Option<usize>) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let values = |key: &str| -> Vec<String> {
            let lines = cpuinfo.lines().filter(|line| line.starts_with(key));
            lines
                .filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned()))
                .collect()
        };
        let names = values("model name");
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            processor: format!("{} × {}", names.len(), names.first().map_or("unknown", String::as_str)),
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/ostype"),
                read("/proc/sys/kernel/osrelease")
            ),
            load: read("/proc/loadavg")
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
            commit: git(&["describe", "--always", "--dirty", "--abbrev=12"]).unwrap_or_else(|| "unknown".into()),
            pinned,
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments)
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Keeps this process, and all it starts, on one processor.
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = nix::sched::CpuSet::new();
    let pinned = set
        .set(cpu)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
    pinned.map_err(|error| format!("cannot stay on processor {cpu}: {error}"))
}
