//! `sentry profile`, and what the kernel has to know of limits.

use std::path::Path;

use sentry_kernel::config::SandboxLimits;
use sentry_limits::Limits;

use crate::terminal::complain;

/// Runs `sentry profile check`; the exit code.
pub fn check(path: &Path) -> u8 {
    match Limits::read(path) {
        Ok(limits) => {
            for (name, value) in limits.list() {
                println!("{name:<14} {value}");
            }
            0
        }
        Err(error) => {
            complain(error.to_string().trim_end());
            1
        }
    }
}

/// What the kernel has to know of them.
pub fn for_kernel(limits: &Limits) -> SandboxLimits {
    SandboxLimits {
        memory: limits.memory,
        cpus: limits.cpus,
        disk: limits.disk,
        inodes: limits.disk_inodes,
        pids: limits.pids,
        cpu_time: limits.cpu_time,
        nofile: limits.nofile,
        output: limits.output_limit,
        io_rate: limits.io_rate,
    }
}
