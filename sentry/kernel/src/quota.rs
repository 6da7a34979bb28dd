//! Limits of a sandbox as a whole, and what is counted for them.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::budget::Shortage;

use crate::Kernel;
use crate::config::{Notice, SandboxLimits};
use crate::events::{self, Event, Totals};
use crate::executor::Deadline;
use crate::io::rate::Rate;
use crate::objects;
use crate::signal::{SigInfo, Signal, send_to_process};
use crate::system;
use crate::task::{Process, Thread};
use crate::time::cpu;

/// How often the processor time is added up, at most: a sandbox goes over its limit by as much per processor.
const LOOK: Duration = Duration::from_millis(50);

/// What a sandbox may use, and has used.
#[derive(Default)]
pub struct Quota {
    /// The limits.
    pub limits: SandboxLimits,
    /// Processor time of processes that are gone, in nanoseconds.
    ended_cpu: AtomicU64,
    /// Refused accesses.
    denials: AtomicU64,
    output: Arc<Output>,
    processor: Processor,
    pub(crate) io_rate: Rate,
    memory: Mutex<Memory, rank::MemoryUse>,
}

/// What was written to the standard descriptors outside.
#[derive(Default)]
pub struct Output {
    limit: Option<u64>,
    written: AtomicU64,
    /// More was wanted.
    reached: AtomicBool,
}

impl Output {
    /// How many of so many bytes may be written: `EFBIG` if none.
    pub fn allow(&self, len: usize) -> Result<usize, Errno> {
        let Some(limit) = self.limit else { return Ok(len) };
        let left = limit.saturating_sub(self.written.load(Ordering::Relaxed));
        let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if allowed == 0 && len > 0 {
            self.reached.store(true, Ordering::Relaxed);
            return Err(Errno::EFBIG);
        }
        Ok(allowed)
    }

    /// So many bytes were written.
    pub fn count(&self, len: usize) {
        self.written.fetch_add(len as u64, Ordering::Relaxed);
    }
}

impl Quota {
    /// With these limits.
    pub fn new(limits: SandboxLimits) -> Quota {
        objects::set_memory(limits.memory.unwrap_or(u64::MAX));
        let output = Output {
            limit: limits.output,
            ..Output::default()
        };
        Quota {
            limits,
            output: Arc::new(output),
            ..Quota::default()
        }
    }

    /// Whether guests may run at this moment.
    pub(crate) fn processor(&self) -> &Processor {
        &self.processor
    }

    /// The meter of the standard descriptors.
    pub fn output(&self) -> &Arc<Output> {
        &self.output
    }
}

impl Kernel {
    /// Tells of an event if somebody wants to know.
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = self.events.get() {
            events.tell(self, &event());
        }
    }

    /// Tells of a limit that a thread has reached.
    pub(crate) fn limit_reached(&self, limit: &str, value: u64, used: u64, action: &str, thread: Option<&Thread>) {
        self.tell(|| Event::Limit {
            limit: limit.to_owned(),
            value,
            used,
            action: action.to_owned(),
            pid: thread.map(Thread::pid),
            comm: thread.map(|thread| events::text(&thread.comm())),
        });
    }

    /// A call had no room: tells of the limit if it is one of the sandbox.
    pub(crate) fn no_room(&self, thread: &Thread) {
        let budget = self.vfs().budget();
        let limits = &self.quota.limits;
        let (name, limit, used) = match budget.take_shortage() {
            None => return,
            Some(Shortage::Pages) => ("disk", limits.disk, budget.used_disk()),
            Some(Shortage::Inodes) => ("disk-inodes", limits.inodes, budget.used_inodes()),
            Some(Shortage::Memory) => ("memory", limits.memory, budget.used_with_others()),
        };
        if let Some(limit) = limit {
            self.limit_reached(name, limit, used, "refused", Some(thread));
        }
    }

    /// `EAGAIN` where one more thread would be more than `--pids` says.
    pub(crate) fn check_pids(&self, thread: &Thread) -> Result<(), Errno> {
        let Some(limit) = self.quota.limits.pids else {
            return Ok(());
        };
        let count = self.tasks.read().threads().count() as u64;
        if count < limit {
            return Ok(());
        }
        self.limit_reached("pids", limit, count, "refused", Some(thread));
        Err(Errno::EAGAIN)
    }

    /// A process has ended, having used so much processor time in nanoseconds.
    pub(crate) fn count_cpu(&self, nanos: u64) {
        self.quota.ended_cpu.fetch_add(nanos, Ordering::Relaxed);
    }

    /// A file was asked for and refused.
    pub(crate) fn count_denial(&self) {
        self.quota.denials.fetch_add(1, Ordering::Relaxed);
    }

    /// Processor time of all processes, those that are gone included, in nanoseconds.
    pub(crate) fn cpu_nanos(&self) -> u64 {
        let living: Vec<_> = {
            let tasks = self.tasks.read();
            tasks.processes().map(|node| node.process.clone()).collect()
        };
        // One that ends meanwhile may be counted twice for a moment: the first figure is the earlier one.
        let ended = self.quota.ended_cpu.load(Ordering::Relaxed);
        let living = living.iter().filter(|process| !process.is_zombie());
        ended + living.map(|process| cpu::process_nanos(process)).sum::<u64>()
    }

    /// What was used so far.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            processes: self.forks.load(Ordering::Relaxed) + 1,
            cpu_ms: self.cpu_nanos() / 1_000_000,
            denials: self.quota.denials.load(Ordering::Relaxed),
            output: self.quota.output.written.load(Ordering::Relaxed),
            ..Totals::default()
        }
    }
}

/// Holds guests up that have used their processor time of this period.
#[derive(Default)]
pub(crate) struct Processor {
    closed: AtomicBool,
    waiting: Mutex<Vec<Waker>, rank::ProcessorGate>,
}

/// Over which processor time is counted: that of the host's own CFS bandwidth control.
const PERIOD: Duration = Duration::from_millis(100);
/// How often it is looked at.
const STEP: Duration = Duration::from_millis(10);

impl Processor {
    /// Waits until guests may run, or the thread is killed.
    pub(crate) async fn pass(&self, thread: &Thread) {
        if !self.closed.load(Ordering::Relaxed) {
            return;
        }
        poll_fn(|cx| {
            let mut waiting = self.waiting.lock();
            if !self.closed.load(Ordering::Relaxed) || thread.killed() {
                return Poll::Ready(());
            }
            waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn open(&self) {
        let waiting = {
            let mut waiting = self.waiting.lock();
            self.closed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn close(&self, kernel: &Kernel) {
        self.closed.store(true, Ordering::Relaxed);
        let running: Vec<_> = {
            let tasks = kernel.tasks.read();
            let running = tasks.threads().filter(|thread| thread.in_guest.load(Ordering::SeqCst));
            running.map(|thread| thread.guest()).collect()
        };
        for guest in running.iter().filter(|guest| !guest.waits_locally()) {
            guest.kick();
        }
    }
}

/// Keeps the processor time, of guests and our own, at `--cpus`, in milliseconds for each second.
async fn throttle(kernel: Weak<Kernel>, cpus: u64) {
    let allowed = cpus.saturating_mul(PERIOD.as_nanos() as u64) / 1000;
    let mut begun = Instant::now();
    // What was used beyond what was allowed, so far.
    let mut debt = 0;
    let mut last = 0;
    let mut told = false;
    loop {
        let Some(kernel) = kernel.upgrade() else { return };
        let executor = kernel.executor().clone();
        // What we do for guests too: else those that have us work would take more than their share of the machine.
        let own = sentry_host::clock::process_cpu_nanos(std::process::id()).unwrap_or(0);
        let used = (kernel.cpu_nanos() + own).max(last);
        debt += used - last;
        last = used;
        if begun.elapsed() >= PERIOD {
            let periods = (begun.elapsed().as_nanos() / PERIOD.as_nanos()) as u64;
            begun += PERIOD * periods as u32;
            debt = debt.saturating_sub(allowed * periods);
        }
        let processor = &kernel.quota.processor;
        let closed = processor.closed.load(Ordering::Relaxed);
        if debt >= allowed && !closed {
            if !std::mem::replace(&mut told, true) {
                kernel.limit_reached("cpus", cpus, cpus, "throttled", None);
            }
            processor.close(&kernel);
        } else if debt < allowed && closed {
            processor.open();
        }
        drop(kernel);
        executor.sleep_until(Deadline::after(STEP)).await;
    }
}

/// What is known of the memory of the sandbox's processes.
#[derive(Default)]
struct Memory {
    /// Bytes, when the supervisor looked last.
    used: u64,
    /// Host process ids with KiB.
    large: Vec<(u32, u32)>,
    /// The supervisor was asked for these.
    asked: bool,
    /// When the heap was trimmed last.
    trimmed: Option<Instant>,
    /// What was killed last.
    victims: Vec<Victim>,
}

/// A process that was killed for want of memory.
struct Victim {
    process: Arc<Process>,
    /// Its number on the host.
    host: u32,
    since: Instant,
}

/// How often the heap is trimmed, at most.
const TRIM: Duration = Duration::from_millis(20);
/// How long a process that is killed may take to give its memory back.
const DYING: Duration = Duration::from_secs(2);
/// And how long at least until the next one goes: what the sentry had for it is given back by and by.
const SETTLING: Duration = Duration::from_millis(100);

impl Kernel {
    /// Memory as guests see it: the limit is all there is.
    pub(crate) fn memory_totals(&self) -> sentry_host::system::Totals {
        let mut totals = system::totals();
        if let Some(limit) = self.quota.limits.memory
            && limit < totals.total_ram
        {
            let used = self.quota.memory.lock().used + self.vfs().budget().used();
            totals.free_ram = limit.saturating_sub(used).min(totals.free_ram);
            totals.total_ram = limit;
            (totals.buffer_ram, totals.total_swap, totals.free_swap) = (0, 0, 0);
            totals.shared_ram = self.vfs().budget().used();
        }
        totals
    }

    /// The supervisor has looked: processes use so many bytes.
    pub(crate) fn note_memory(&self, bytes: u64) {
        let Some(limit) = self.quota.limits.memory else { return };
        self.vfs().budget().set_others(bytes);
        let mut memory = self.quota.memory.lock();
        memory.used = bytes;
        if bytes + self.vfs().budget().used() <= limit {
            return;
        }
        // What is free in the sentry's heap goes back first, and the next look, which comes at once, decides.
        if memory.trimmed.is_none_or(|when| when.elapsed() > TRIM) {
            memory.trimmed = Some(Instant::now());
            drop(memory);
            sentry_host::system::trim_heap();
            return;
        }
        if memory.asked || memory.is_dying() {
            return;
        }
        memory.asked = true;
        memory.large.clear();
        drop(memory);
        self.tell_supervisor(Notice::MemoryShort);
    }

    /// One of the processes that use most.
    pub(crate) fn note_large_process(&self, pid: u32, kib: u32) {
        let mut memory = self.quota.memory.lock();
        if memory.asked && memory.large.len() < 64 {
            memory.large.push((pid, kib));
        }
    }

    /// All is known: if it really is too much, the process that is worst goes.
    pub(crate) fn judge_memory(self: &Arc<Self>, bytes: u64) {
        let Some(limit) = self.quota.limits.memory else { return };
        let (large, dying) = {
            let mut memory = self.quota.memory.lock();
            memory.asked = false;
            memory.used = bytes;
            let large = std::mem::take(&mut memory.large);
            let dying = memory.holds_on(&large);
            (large, dying)
        };
        let used = bytes + self.vfs().budget().used();
        if used <= limit || dying {
            return;
        }
        let victims = self.worst(&large, limit, used - limit);
        let since = Instant::now();
        let noted = victims.iter().map(|process| Victim {
            process: process.clone(),
            host: process.mm().space().host_pid(),
            since,
        });
        self.quota.memory.lock().victims = noted.collect();
        for victim in victims {
            let thread = victim.threads().first().cloned();
            self.limit_reached("memory", limit, used, "killed", thread.as_deref());
            send_to_process(self, &victim, SigInfo::kernel(Signal::KILL));
        }
    }

    /// As Linux chooses: who uses most, moved by `oom_score_adj` thousandths of all there is; -1000 is spared. So many that
    /// they have `excess` bytes together: many small ones can grow faster than one after the other ends. The first
    /// process, with which everything ends, only if there is no other.
    ///
    /// What the sentry keeps for a process counts as its own.
    fn worst(&self, large: &[(u32, u32)], limit: u64, excess: u64) -> Vec<Arc<Process>> {
        let living: Vec<_> = {
            let tasks = self.tasks.read();
            let all = tasks.processes().map(|node| node.process.clone());
            all.filter(|process| !process.is_zombie()).collect()
        };
        let score = |process: &Arc<Process>| {
            let host = process.mm().space().host_pid();
            let own = large.iter().find(|(pid, _)| *pid == host).map_or(0, |(_, kib)| *kib);
            let used = u64::from(own).saturating_add(objects::of(process) >> 10);
            let used = i64::try_from(used).unwrap_or(i64::MAX >> 1);
            let adjust = i64::from(process.oom_score_adj.load(Ordering::Relaxed));
            let share = i64::try_from(limit >> 10).unwrap_or(i64::MAX) / 1000;
            (adjust > -1000).then(|| (process.pid() != 1, used + adjust * share, used))
        };
        let scored = living.into_iter();
        let mut scored: Vec<_> = scored.filter_map(|process| Some((score(&process)?, process))).collect();
        scored.sort_unstable_by_key(|(score, _)| std::cmp::Reverse(*score));
        let mut left = i64::try_from(excess >> 10).unwrap_or(i64::MAX);
        let mut victims = Vec::new();
        let mut first = None;
        for ((others, _, used), process) in scored {
            let most = *first.get_or_insert(used);
            if !victims.is_empty() && (left <= 0 || !others) {
                break;
            }
            // The end of those that have next to nothing would give nothing back.
            if used >= most / 16 {
                left = left.saturating_sub(used);
                victims.push(process);
            }
        }
        victims
    }
}

impl Memory {
    fn is_dying(&self) -> bool {
        self.victims.iter().any(|victim| {
            let patience = if victim.process.is_zombie() { SETTLING } else { DYING };
            victim.since.elapsed() < patience
        })
    }

    /// Whether what was killed last still has memory on the host: there it ends later than for us.
    fn holds_on(&self, large: &[(u32, u32)]) -> bool {
        let mut victims = self.victims.iter().filter(|victim| victim.since.elapsed() < DYING);
        victims.any(|victim| large.iter().any(|(pid, kib)| *pid == victim.host && *kib > 0))
    }
}

/// Watches what has to be looked at from time to time.
pub(crate) fn watch(kernel: &Arc<Kernel>) {
    let limits = &kernel.quota.limits;
    if let Some(cpus) = limits.cpus {
        kernel.executor().spawn(0, throttle(Arc::downgrade(kernel), cpus));
    }
    if limits.cpu_time.is_none() && limits.output.is_none() {
        return;
    }
    let weak = Arc::downgrade(kernel);
    let executor = kernel.executor().clone();
    kernel.executor().spawn(0, async move {
        let mut told_output = false;
        let mut told_cpu = false;
        loop {
            executor.sleep_until(Deadline::after(LOOK)).await;
            let Some(kernel) = weak.upgrade() else { return };
            let limits = &kernel.quota.limits;
            if let Some(limit) = limits.output
                && !told_output
                && kernel.quota.output.reached.load(Ordering::Relaxed)
            {
                told_output = true;
                let written = kernel.quota.output.written.load(Ordering::Relaxed);
                kernel.limit_reached("output-limit", limit, written, "refused", None);
            }
            if let Some(limit) = limits.cpu_time
                && !told_cpu
            {
                let used = Duration::from_nanos(kernel.cpu_nanos());
                if used >= limit {
                    told_cpu = true;
                    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                    kernel.limit_reached("cpu-time", millis(limit), millis(used), "ended", None);
                    kernel.tell_supervisor(Notice::CpuTimeUsedUp);
                }
            }
        }
    });
}
