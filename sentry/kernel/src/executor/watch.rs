//! The watch over the workers: one that does not come back from what it does ends the sandbox, saying what everybody did.
//!
//! A fault of ours (a loop without end, two that wait for each other, a host call that never returns) must not leave a
//! sandbox that hangs for ever. What counts is not the time that passes, of which a worker of a crowded or stopped machine has
//! nothing, but, for one and the same step of a worker:
//!
//! - processor time of its thread: [`TELL_CPU`], then [`END_CPU`];
//! - rounds in which the thread has used (next to) none, while this one had a turn: [`TELL_IDLE`], then [`END_IDLE`]. A round is
//!   a sleep of its own, so a machine (or a sandbox) that stands still lets none pass.
//!
//! At the first it is told, at the second the sandbox ends. Threads that wait for the gofer or the host have given their work to
//! others (`threads.rs`) and are nobody's worker. The watch takes no lock, since who is stuck may hold any, and sleeps while
//! all workers do.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use sentry_host::{clock, fatal};

use super::{CURRENT, Executor, Worker};

/// How long the watch sleeps between two looks.
const ROUND: Duration = Duration::from_secs(1);
const SECOND: u64 = 1_000_000_000;
const TELL_CPU: u64 = 10 * SECOND;
const END_CPU: u64 = 30 * SECOND;
const TELL_IDLE: u32 = 30;
const END_IDLE: u32 = 60;
/// With less than this in a round a thread was idle.
const IDLE_BELOW: u64 = SECOND / 200;

/// What a worker shows of itself: written by whoever has its role.
#[derive(Default)]
pub(super) struct Pulse {
    /// Counts its steps.
    beat: AtomicU64,
    /// Its host thread.
    thread: AtomicI32,
    /// The guest thread whose call it carries out (upper half), and the call's number and 1. 0 for none.
    call: AtomicU64,
}

impl Pulse {
    /// The calling thread has the role from now on.
    pub fn begin(&self) {
        self.thread.store(sentry_host::system::thread_id(), Ordering::Relaxed);
        self.beat();
    }

    /// A step has ended.
    pub fn beat(&self) {
        // One writer at a time.
        self.beat
            .store(self.beat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.call.store(0, Ordering::Relaxed);
    }
}

/// The watch's thread.
#[derive(Default)]
pub(super) struct Watch {
    thread: OnceLock<Thread>,
    /// It sleeps until somebody works.
    dormant: AtomicBool,
    /// Limits are shorter by so much (0: as they are). For tests.
    hurry: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Fine,
    Tell,
    End,
}

/// The account of one worker: numbers only.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    beat: u64,
    /// It did not sleep at the last look.
    awake: bool,
    /// What its thread had used when the step was first seen, and at the last look.
    begin: u64,
    last: u64,
    idle: u32,
    told: bool,
}

impl Account {
    /// A round has passed: the worker's step, and what its thread has used in its life; none if it sleeps.
    fn round(&mut self, beat: u64, cpu: Option<u64>, hurry: u64) -> Verdict {
        let cpu = match cpu {
            Some(cpu) if self.awake && beat == self.beat => cpu,
            _ => {
                *self = Account {
                    beat,
                    awake: cpu.is_some(),
                    begin: cpu.unwrap_or(0),
                    last: cpu.unwrap_or(0),
                    ..Account::default()
                };
                return Verdict::Fine;
            }
        };
        if cpu.saturating_sub(self.last) < IDLE_BELOW / hurry {
            self.idle += 1;
        }
        self.last = cpu;
        let used = cpu.saturating_sub(self.begin) * hurry;
        if used >= END_CPU || self.idle >= END_IDLE {
            Verdict::End
        } else if !self.told && (used >= TELL_CPU || self.idle >= TELL_IDLE) {
            self.told = true;
            Verdict::Tell
        } else {
            Verdict::Fine
        }
    }

    /// How long the step has taken, in words.
    fn so_far(&self) -> String {
        let used = self.last.saturating_sub(self.begin) as f64 / SECOND as f64;
        format!("{used:.1} s of processor time, idle in {} rounds", self.idle)
    }
}

/// For the state of the workers: the calling worker carries out the call `nr` for the guest thread `tid`.
pub(crate) fn carries_out(executor: &Executor, tid: i32, nr: u64) {
    if let Some(worker) = CURRENT.get().and_then(|index| executor.workers.get(index)) {
        let call = (u64::from(tid.cast_unsigned()) << 32) | (nr & 0xffff_ffff).wrapping_add(1);
        worker.pulse.call.store(call, Ordering::Relaxed);
    }
}

impl Executor {
    /// Makes the watch's limits ten times shorter.
    pub(crate) fn hurry_watch(&self) {
        self.watch.hurry.store(10, Ordering::Relaxed);
    }

    pub(super) fn start_watch(self: &Arc<Self>) -> std::io::Result<()> {
        let executor = Arc::downgrade(self);
        let spawned = std::thread::Builder::new().name("watch".into()).spawn(move || {
            let mut accounts = Vec::new();
            loop {
                let Some(executor) = executor.upgrade().filter(|executor| !executor.stopping()) else {
                    return;
                };
                accounts.resize(executor.workers.len(), Account::default());
                executor.look(&mut accounts);
            }
        })?;
        // Once for each executor.
        let _ = self.watch.thread.set(spawned.thread().clone());
        Ok(())
    }

    /// A worker wakes up.
    pub(super) fn rouse_watch(&self) {
        if self.watch.dormant.load(Ordering::SeqCst)
            && self.watch.dormant.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.watch.thread.get()
        {
            thread.unpark();
        }
    }

    fn look(&self, accounts: &mut [Account]) {
        let hurry = self.watch.hurry.load(Ordering::Relaxed).max(1);
        std::thread::sleep(ROUND / u32::try_from(hurry).unwrap_or(1));
        let (mut worst, mut active) = (Verdict::Fine, false);
        for (worker, account) in self.workers.iter().zip(accounts.iter_mut()) {
            let (beat, cpu) = worker.seen();
            active |= cpu.is_some() || beat != account.beat;
            worst = worst.max(account.round(beat, cpu, hurry));
        }
        match worst {
            Verdict::Fine => {}
            Verdict::Tell => fatal::warn(&format!("a worker is late: {}", self.describe(accounts))),
            Verdict::End => fatal::end(&format!("a worker is stuck: {}", self.describe(accounts))),
        }
        if !active {
            self.watch.dormant.store(true, Ordering::SeqCst);
            // Whoever has woken before that does not rouse us.
            let idle = |worker: &Worker| worker.parked.load(Ordering::SeqCst);
            while self.watch.dormant.load(Ordering::SeqCst) && self.workers.iter().all(idle) && !self.stopping() {
                std::thread::park();
            }
            self.watch.dormant.store(false, Ordering::SeqCst);
        }
    }

    /// What each worker does.
    fn describe(&self, accounts: &[Account]) -> String {
        let mut text = String::new();
        for (index, (worker, account)) in self.workers.iter().zip(accounts).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let _ = write!(text, "{separator}worker {index} ");
            let call = worker.pulse.call.load(Ordering::Relaxed);
            let name = |nr: u64| crate::syscalls::lookup(nr).map_or("an unknown call", |row| row.1);
            let _ = match call {
                _ if worker.parked.load(Ordering::SeqCst) => write!(text, "sleeps"),
                0 => write!(text, "is in no call, {}", account.so_far()),
                call => write!(
                    text,
                    "is in {} of thread {}, {}",
                    name((call & 0xffff_ffff) - 1),
                    call >> 32,
                    account.so_far()
                ),
            };
        }
        text
    }
}

impl Worker {
    /// Its step and what its thread has used; none if it sleeps.
    fn seen(&self) -> (u64, Option<u64>) {
        let beat = self.pulse.beat.load(Ordering::Relaxed);
        let thread = self.pulse.thread.load(Ordering::Relaxed);
        let awake = !self.parked.load(Ordering::SeqCst) && thread != 0;
        let used = || clock::thread_cpu_nanos(thread.cast_unsigned()).unwrap_or(0);
        (beat, awake.then(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of one step with so much processor time (in ms) each, until there is a verdict beyond `above`.
    fn rounds(millis: u64, above: Verdict, limit: u32) -> (u32, Verdict) {
        let mut account = Account::default();
        account.round(7, Some(1000 * SECOND), 1);
        for round in 1..=limit {
            let cpu = 1000 * SECOND + u64::from(round) * millis * 1_000_000;
            let verdict = account.round(7, Some(cpu), 1);
            if verdict > above {
                return (round, verdict);
            }
        }
        (limit, Verdict::Fine)
    }

    #[test]
    fn who_runs_on_is_told_of_and_then_ended() {
        assert_eq!(rounds(1000, Verdict::Fine, 100), (10, Verdict::Tell));
        assert_eq!(rounds(1000, Verdict::Tell, 100), (30, Verdict::End));
        // On a tenth of a processor it takes longer, but no more of it.
        assert_eq!(rounds(100, Verdict::Tell, 1000), (300, Verdict::End));
    }

    #[test]
    fn who_sleeps_in_a_step_is_told_of_and_then_ended() {
        assert_eq!(rounds(0, Verdict::Fine, 100), (30, Verdict::Tell));
        assert_eq!(rounds(1, Verdict::Tell, 100), (60, Verdict::End));
    }

    #[test]
    fn who_goes_on_or_sleeps_between_steps_is_not() {
        let mut account = Account::default();
        for round in 0..1000 {
            assert_eq!(account.round(round, Some(round * SECOND), 1), Verdict::Fine);
        }
        let mut account = Account::default();
        for round in 0..1000 {
            // Twenty-nine rounds in a step, and one asleep.
            let cpu = (round % 30 != 29).then_some(5 * SECOND);
            assert_eq!(account.round(7, cpu, 1), Verdict::Fine);
        }
    }
}
