//! `RLIMIT_CPU`: SIGXCPU at the soft limit and each second after it, SIGKILL at the hard one.

use std::sync::{Arc, Weak};

use sentry_abi::time::NANOS;

use super::{Clock, cpu, next_look};
use crate::Kernel;
use crate::signal::{SigInfo, Signal, send_to_process};
use crate::task::{Limit, Process, Resource};

/// Begins to look at the CPU time of a process that has such a limit. To be called when the limit is set, and for
/// a child that inherits one.
pub fn watch(kernel: &Arc<Kernel>, process: &Arc<Process>) {
    if process.limits.read().get(Resource::CPU)
        == (Limit {
            current: Limit::INFINITY,
            max: Limit::INFINITY,
        })
    {
        return;
    }
    let now = cpu::process_nanos(process);
    {
        // There is one look at a time, however often the limit is set.
        let mut armed = process.timers.cpu_limit.lock();
        armed.generation += 1;
        if let Some(key) = armed.key.take() {
            kernel.executor().timer_cancel(key);
        }
    }
    look(kernel, process, now, 0);
}

/// Looks again when the next thing is due: not before `told`, the seconds for which SIGXCPU was sent last.
fn look(kernel: &Arc<Kernel>, process: &Arc<Process>, now: u64, told: u64) {
    let limit = process.limits.read().get(Resource::CPU);
    let soft = limit.current.max(told.saturating_add(u64::from(told > 0)));
    let expiry = soft.min(limit.max).saturating_mul(NANOS);
    let clock = Clock::Process(Arc::downgrade(process));
    let (weak_kernel, weak) = (Arc::downgrade(kernel), Arc::downgrade(process));
    let mut armed = process.timers.cpu_limit.lock();
    let generation = armed.generation;
    if limit.current == Limit::INFINITY && limit.max == Limit::INFINITY {
        return;
    }
    let fire = move || fire(&weak_kernel, &weak, generation, told);
    armed.key = Some(kernel.executor().timer_call(next_look(&clock, now, expiry), fire));
}

fn fire(kernel: &Weak<Kernel>, process: &Weak<Process>, generation: u64, told: u64) {
    let (Some(kernel), Some(process)) = (kernel.upgrade(), process.upgrade()) else {
        return;
    };
    if process.is_zombie() || process.timers.cpu_limit.lock().generation != generation {
        return;
    }
    let limit = process.limits.read().get(Resource::CPU);
    let now = cpu::process_nanos(&process);
    let seconds = now / NANOS;
    if seconds >= limit.max {
        send_to_process(&kernel, &process, SigInfo::kernel(Signal::KILL));
        return;
    }
    let mut told = told;
    if seconds >= limit.current && seconds > told {
        send_to_process(&kernel, &process, SigInfo::kernel(Signal::XCPU));
        told = seconds.max(1);
    }
    look(&kernel, &process, now, told);
}
