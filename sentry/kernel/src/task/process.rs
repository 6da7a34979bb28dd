//! A process: a thread group with what its threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

use sentry_lock::{Mutex, RwLock, rank};
use sentry_platform::GuestThread;
use sentry_vfs::wait::WaitQueue;

use super::limits::Limits;
use super::pid::Pid;
use super::thread::Thread;
use super::usage::{IoCounters, Usage};
use super::wait::WaitStatus;
use crate::mm::MemoryMap;
use crate::signal::{Actions, Signal, SignalQueue};
use crate::time::ProcessTimers;

/// A process.
pub struct Process {
    pid: Pid,
    pub(crate) signals: Mutex<ProcessSignals, rank::ProcessSignals>,
    actions: RwLock<Arc<Actions>, rank::ProcessActions>,
    mm: RwLock<Arc<MemoryMap>, rank::ProcessMemory>,
    /// Resource limits.
    pub limits: RwLock<Limits, rank::ProcessLimits>,
    /// Interval and POSIX timers.
    pub timers: ProcessTimers,
    /// Woken when a child changes state, and when signals come (for signalfd(2)).
    pub child_events: WaitQueue,
    /// Woken when a signal becomes pending for any thread (signalfd(2)).
    pub signal_events: WaitQueue,
    /// Set once it was waited for.
    pub(crate) reaped: AtomicBool,
    /// Woken when the process has ended (pidfd_open(2)).
    pub exit_events: WaitQueue,
    /// Usage of its own threads that have ended.
    pub usage: Mutex<Usage, rank::ProcessUsage>,
    /// Usage of children that were waited for.
    pub child_usage: Mutex<Usage, rank::ChildUsage>,
    /// What it has read and written.
    pub(crate) io: IoCounters,
    /// `PR_SET_CHILD_SUBREAPER`.
    pub subreaper: AtomicBool,
    /// `PR_SET_DUMPABLE`.
    pub dumpable: AtomicBool,
    /// `/proc/PID/oom_score_adj`.
    pub oom_score_adj: AtomicI32,
    /// personality(2).
    pub personality: AtomicU64,
    /// What prctl(2) has set.
    pub options: ProcessOptions,
    /// Real user id of its leader, for limits and SIGCHLD.
    pub real_uid: std::sync::atomic::AtomicU32,
    /// The host side of its first thread, when that has ended before the others: the host names a process by its
    /// first thread, so that one must stay.
    pub(crate) first_guest: Mutex<Option<Arc<dyn GuestThread>>, rank::FirstGuest>,
    /// When it was made: nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub start_time: u64,
}

/// Settings of prctl(2) that belong to a process as a whole. A child has its parent's, and execve(2) keeps them.
pub struct ProcessOptions {
    /// `PR_SET_THP_DISABLE`.
    pub thp_disabled: AtomicBool,
    /// `PR_MCE_KILL_*`.
    pub memory_errors: AtomicU8,
    /// `PR_MDWE_*`; 0 while memory may be writable and executable.
    pub write_execute: AtomicU8,
}

impl Default for ProcessOptions {
    fn default() -> ProcessOptions {
        ProcessOptions {
            thp_disabled: AtomicBool::new(false),
            memory_errors: AtomicU8::new(2),
            write_execute: AtomicU8::new(0),
        }
    }
}

impl ProcessOptions {
    /// Takes over what a child inherits.
    pub(crate) fn inherit(&self, parent: &ProcessOptions) {
        const NO_INHERIT: u8 = 2;
        let thp_disabled = parent.thp_disabled.load(Ordering::Relaxed);
        self.thp_disabled.store(thp_disabled, Ordering::Relaxed);
        let memory_errors = parent.memory_errors.load(Ordering::Relaxed);
        self.memory_errors.store(memory_errors, Ordering::Relaxed);
        let write_execute = parent.write_execute.load(Ordering::Relaxed);
        if write_execute & NO_INHERIT == 0 {
            self.write_execute.store(write_execute, Ordering::Relaxed);
        }
    }

    /// True if no memory may become executable that was not, nor be writable and executable.
    pub fn denies_write_execute(&self) -> bool {
        self.write_execute.load(Ordering::Relaxed) != 0
    }
}

/// Whether a process is stopped by job control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StopState {
    /// It runs.
    #[default]
    Running,
    /// A signal stops it; some threads have not noticed yet.
    Stopping(Signal),
    /// All threads have stopped.
    Stopped(Signal),
}

/// What is shared by a process's threads and guarded by one lock: see the crate's lock order.
#[derive(Default)]
pub struct ProcessSignals {
    /// Signals sent to the process.
    pub queue: SignalQueue,
    /// Threads that have not ended.
    pub threads: Vec<Arc<Thread>>,
    /// Set once the process is to end as a whole.
    pub group_exit: Option<WaitStatus>,
    /// Set once it has ended: a zombie until reaped.
    pub ended: Option<WaitStatus>,
    /// Job control.
    pub stop: StopState,
    /// How many threads have noticed the stop and wait.
    pub stopped: usize,
    /// Counts continuations, so that a thread knows whether a stop is still the one it waits in.
    pub stop_epoch: u64,
    /// A stop that wait(2) has not reported yet.
    pub report_stop: Option<Signal>,
    /// A continuation that wait(2) has not reported yet.
    pub report_continue: bool,
    /// The thread that is in execve(2) and makes the others end.
    pub exec: Option<Pid>,
}

impl Process {
    pub(crate) fn new(pid: Pid, actions: Arc<Actions>, mm: Arc<MemoryMap>, limits: Limits) -> Arc<Process> {
        Arc::new(Process {
            pid,
            signals: Mutex::new(ProcessSignals::default()),
            actions: RwLock::new(actions),
            mm: RwLock::new(mm),
            limits: RwLock::new(limits),
            timers: ProcessTimers::default(),
            child_events: WaitQueue::new(),
            signal_events: WaitQueue::new(),
            reaped: AtomicBool::new(false),
            exit_events: WaitQueue::new(),
            usage: Mutex::new(Usage::default()),
            child_usage: Mutex::new(Usage::default()),
            io: IoCounters::default(),
            subreaper: AtomicBool::new(false),
            dumpable: AtomicBool::new(true),
            oom_score_adj: AtomicI32::new(0),
            personality: AtomicU64::new(0),
            options: ProcessOptions::default(),
            real_uid: std::sync::atomic::AtomicU32::new(0),
            first_guest: Mutex::new(None),
            start_time: sentry_host::clock::monotonic_nanos(),
        })
    }

    /// Its id: that of its first thread.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Its memory.
    pub fn mm(&self) -> Arc<MemoryMap> {
        self.mm.read().clone()
    }

    pub(crate) fn set_mm(&self, mm: Arc<MemoryMap>) -> Arc<MemoryMap> {
        std::mem::replace(&mut self.mm.write(), mm)
    }

    /// What its signals do.
    pub fn actions(&self) -> Arc<Actions> {
        self.actions.read().clone()
    }

    pub(crate) fn set_actions(&self, actions: Arc<Actions>) {
        *self.actions.write() = actions;
    }

    /// Its threads that have not ended.
    pub fn threads(&self) -> Vec<Arc<Thread>> {
        self.signals.lock().threads.clone()
    }

    /// The number of threads that have not ended.
    pub fn thread_count(&self) -> usize {
        self.signals.lock().threads.len()
    }

    /// Some thread of it that has not ended, the leader if it can be.
    pub fn any_thread(&self) -> Option<Arc<Thread>> {
        let signals = self.signals.lock();
        signals
            .threads
            .iter()
            .find(|thread| thread.tid() == self.pid)
            .or(signals.threads.first())
            .cloned()
    }

    /// True once it has ended and waits to be reaped.
    pub fn is_zombie(&self) -> bool {
        self.signals.lock().ended.is_some()
    }

    /// True if job control has stopped it.
    pub fn is_stopped(&self) -> bool {
        matches!(self.signals.lock().stop, StopState::Stopped(_))
    }

    /// What getrusage(2) says of the process itself, as far as the kernel counts.
    pub fn usage(&self) -> Usage {
        *self.usage.lock()
    }

    /// personality(2).
    pub fn personality(&self) -> u64 {
        self.personality.load(Ordering::Relaxed)
    }
}
