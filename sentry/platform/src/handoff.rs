//! Where a worker waits for guests: it spins while calls keep coming, and parks near the guest otherwise.
//!
//! Waking a sleeping thread on another processor costs ten times what waking it on the same one does, so before it
//! sleeps a worker moves to the processor of the guest it served last. When requests then come in quick succession
//! it moves away again, to spin: two processors that both spin exchange a call in a tenth of a microsecond.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use sentry_stub::layout::WorkerState;

/// Requests that come back within this many TSC ticks of the answer count as quick (some 30 µs).
const QUICK_TICKS: u64 = 80_000;
/// So many quick requests in a row make a parked worker move away and spin.
const QUICK_ENOUGH: u32 = 3;

/// The time-stamp counter and the processor's number.
pub(crate) fn rdtscp() -> (u64, u32) {
    let mut aux = 0;
    // SAFETY: RDTSCP exists on every processor with the features the platform demands; it writes only `aux`.
    let ticks = unsafe { std::arch::x86_64::__rdtscp(&mut aux) };
    (ticks, aux & 0xfff)
}

/// A worker's hand-off state. Only the worker itself changes it.
pub(crate) struct Handoff {
    /// The processors it may use.
    allowed: Vec<u32>,
    /// The processor of the guest it last served.
    guest_cpu: AtomicU32,
    last_answer: AtomicU64,
    quick: AtomicU32,
    /// The processor it is pinned to, or -1.
    pinned: AtomicI32,
    /// It stays away from the guest's processor.
    away: AtomicBool,
}

impl Handoff {
    pub fn new() -> Handoff {
        Handoff {
            allowed: allowed_cpus(),
            guest_cpu: AtomicU32::new(0),
            last_answer: AtomicU64::new(0),
            quick: AtomicU32::new(0),
            pinned: AtomicI32::new(-1),
            away: AtomicBool::new(false),
        }
    }

    /// Another thread is the worker: one that may be anywhere.
    pub fn take_over(&self) {
        set_affinity(0, &self.allowed);
        self.pinned.store(-1, Ordering::Relaxed);
        self.away.store(false, Ordering::Relaxed);
    }

    /// How many processors there are to share.
    pub fn cpus(&self) -> usize {
        self.allowed.len()
    }

    /// A request of a guest that says it is on `cpu` was found. The number is a claim: it is looked up first.
    pub fn request_seen(&self, cpu: u32, state: &WorkerState) {
        if self.allowed.contains(&cpu) {
            self.guest_cpu.store(cpu, Ordering::Relaxed);
        }
        let (now, own) = rdtscp();
        state.cpu.store(own, Ordering::Relaxed);
        let quick = if now.wrapping_sub(self.last_answer.load(Ordering::Relaxed)) < QUICK_TICKS {
            self.quick.load(Ordering::Relaxed).saturating_add(1)
        } else {
            0
        };
        self.quick.store(quick, Ordering::Relaxed);
    }

    /// An answer was sent.
    pub fn answer_sent(&self) {
        self.last_answer.store(rdtscp().0, Ordering::Relaxed);
    }

    /// True if spinning for one running guest can pay: it is on another processor, or the worker moves there now.
    pub fn can_spin(&self, state: &WorkerState) -> bool {
        if self.allowed.len() < 2 {
            return false;
        }
        let guest = self.guest_cpu.load(Ordering::Relaxed);
        if rdtscp().1 != guest {
            return true;
        }
        if self.quick.load(Ordering::Relaxed) < QUICK_ENOUGH {
            return false;
        }
        self.quick.store(0, Ordering::Relaxed);
        let others: Vec<u32> = self.allowed.iter().copied().filter(|cpu| *cpu != guest).collect();
        if !set_affinity(0, &others) {
            return false;
        }
        self.pinned.store(-1, Ordering::Relaxed);
        self.away.store(true, Ordering::Relaxed);
        state.cpu.store(rdtscp().1, Ordering::Relaxed);
        true
    }

    /// Wakes (with `wake`) a guest thread that last ran on `cpu`, and has it go on there if the worker is on that
    /// processor too: the worker is about to leave it, but the host does not know, and would move the thread to an
    /// idle processor, which takes ten times as long and leaves the worker waiting on the wrong one.
    pub fn wake_near(&self, tid: u32, cpu: u32, wake: impl FnOnce()) {
        let here = self.allowed.len() > 1 && rdtscp().1 == cpu && self.allowed.contains(&cpu);
        let held = here && set_affinity(tid, &[cpu]);
        wake();
        if held {
            set_affinity(tid, &self.allowed);
        }
    }

    /// Before sleeping: go to the guest's processor.
    pub fn park_near(&self, state: &WorkerState) {
        if self.allowed.len() < 2 {
            return;
        }
        let guest = self.guest_cpu.load(Ordering::Relaxed);
        if self.pinned.load(Ordering::Relaxed) != guest as i32 && set_affinity(0, &[guest]) {
            self.pinned.store(guest as i32, Ordering::Relaxed);
            self.away.store(false, Ordering::Relaxed);
        }
        state.cpu.store(guest, Ordering::Relaxed);
    }
}

fn allowed_cpus() -> Vec<u32> {
    // SAFETY: cpu_set_t is plain data that the call fills in.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as u32)
            .filter(|cpu| libc::CPU_ISSET(*cpu as usize, &set))
            .collect()
    }
}

/// Lets thread `tid` (0: the calling thread) run on these processors only.
pub(crate) fn set_affinity(tid: u32, cpus: &[u32]) -> bool {
    // SAFETY: cpu_set_t is plain data; a wrong id makes the call fail.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        libc::sched_setaffinity(tid as libc::pid_t, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}
