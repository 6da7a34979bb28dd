//! CPU time and resource usage of guests.
//!
//! The host counts the CPU time of each guest's host process, and the sentry may read its clock. All of it counts
//! as user time. There is no such clock for one thread of another process: a thread of several is given its share
//! by the number of threads, which is exact for a process of one.

use std::sync::atomic::Ordering;

use super::NANOS_PER_TICK;
use crate::task::usage::Usage;
use crate::task::{Process, Thread};

/// What the present host process of a process has used, in nanoseconds.
fn host_nanos(process: &Process) -> u64 {
    sentry_host::clock::process_cpu_nanos(process.mm().space().host_pid()).unwrap_or(0)
}

/// CPU time of a process, threads that have ended included, in nanoseconds. It never goes back.
pub fn process_nanos(process: &Process) -> u64 {
    let usage = usage(process);
    usage.user_nanos.saturating_add(usage.system_nanos)
}

/// CPU time of a thread in nanoseconds; see the module's documentation.
pub fn thread_nanos(thread: &Thread) -> u64 {
    process_nanos(thread.process()) / (thread.process().thread_count().max(1) as u64)
}

/// Usage of a process so far (`RUSAGE_SELF`).
pub fn usage(process: &Process) -> Usage {
    let mut usage = process.usage();
    if !process.is_zombie() {
        let shared = process.timers.shared_nanos.load(Ordering::Relaxed);
        let host = host_nanos(process).saturating_sub(shared);
        usage.user_nanos = usage.user_nanos.saturating_add(host);
    }
    usage.max_rss = usage.max_rss.max(process.mm().total().1 / 1024);
    usage
}

/// To be called before a process gives up its host process (at execve(2) and at its end): keeps what that has used.
pub fn retire_space(process: &Process) {
    let used = host_nanos(process).saturating_sub(process.timers.shared_nanos.swap(0, Ordering::Relaxed));
    let peak = process.mm().total().1 / 1024;
    let mut usage = process.usage.lock();
    usage.user_nanos = usage.user_nanos.saturating_add(used);
    usage.max_rss = usage.max_rss.max(peak);
}

/// To be called for a vfork child before it runs in its parent's host process: what that has used is not the child's.
pub fn share_space(child: &Process) {
    child.timers.shared_nanos.store(host_nanos(child), Ordering::Relaxed);
}

/// Nanoseconds as clock ticks.
pub fn ticks(nanos: u64) -> i64 {
    i64::try_from(nanos / NANOS_PER_TICK).unwrap_or(i64::MAX)
}
