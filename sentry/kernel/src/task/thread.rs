//! One guest thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::task::Waker;

use sentry_lock::{Mutex, RwLock, rank};
use sentry_platform::{Fault, GuestThread};
use sentry_vfs::cred::Credentials;
use sentry_vfs::ops::TaskIds;

use super::clone::VforkDone;
use super::fs::{CallerContext, FsContext};
use super::limits::{Limit, Resource};
use super::pid::Pid;
use super::process::Process;
use crate::Kernel;
use crate::fd::FdTable;
use crate::mm::MemoryMap;
use crate::namespace::UtsNamespace;
use crate::signal::{AltStack, SigSet, SignalQueue};
use crate::syscalls::Sys;
use crate::system;

/// What a thread is doing, for /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RunState {
    /// In the guest, or working on a call.
    Running,
    /// Waiting in a call.
    Sleeping,
    /// Waiting for its vfork child.
    Vfork,
    /// Stopped by a signal.
    Stopped,
    /// Gone, not yet reaped.
    Zombie,
}

/// A thread's own part of signal handling.
#[derive(Default)]
pub struct ThreadSignals {
    /// Blocked signals.
    pub mask: SigSet,
    /// The mask to go back to after the next handler (rt_sigsuspend(2), ppoll(2)…).
    pub saved_mask: Option<SigSet>,
    /// Signals sent to this thread alone.
    pub queue: SignalQueue,
    /// The alternate stack.
    pub stack: AltStack,
    /// What rt_sigtimedwait(2) waits for, blocked or not.
    pub waiting: SigSet,
}

/// Goes on with an interrupted call (restart_syscall(2)).
pub type Restart = Box<dyn FnOnce(&Arc<Thread>) -> Sys + Send>;

/// A guest thread.
pub struct Thread {
    kernel: Arc<Kernel>,
    process: Arc<Process>,
    tid: AtomicI32,
    worker: usize,
    guest: RwLock<Arc<dyn GuestThread>, rank::ThreadGuest>,
    files: RwLock<Arc<FdTable>, rank::ThreadFiles>,
    fs: RwLock<Arc<FsContext>, rank::ThreadFs>,
    cred: RwLock<Arc<Credentials>, rank::ThreadCredentials>,
    uts: RwLock<Arc<UtsNamespace>, rank::ThreadUts>,
    comm: Mutex<Vec<u8>, rank::ThreadName>,
    pub(crate) signals: Mutex<ThreadSignals, rank::ThreadSignals>,
    /// Set when there may be a signal to deliver, or the thread is to stop or to die.
    pub(crate) work: AtomicBool,
    /// Set when the thread is to die at once.
    pub(crate) dying: AtomicBool,
    /// Set while the present call must not be given up, even if the thread is killed.
    pub(crate) shielded: AtomicBool,
    /// Set while the guest runs, so that a sender knows whether to kick it or to wake its task.
    pub(crate) in_guest: AtomicBool,
    pub(crate) waker: Mutex<Option<Waker>, rank::ThreadWaker>,
    /// Set when the host thread is known to be gone.
    pub(crate) gone: AtomicBool,
    /// Set while a vfork child runs on the host thread.
    pub(crate) lent: AtomicBool,
    /// Set while it runs on its vfork parent's host thread.
    pub(crate) borrows: AtomicBool,
    /// The vfork parent that waits for this thread's process.
    pub(crate) vfork: Mutex<Option<Arc<VforkDone>>, rank::ThreadVfork>,
    /// The argument of exit(2).
    pub(crate) exit_code: AtomicU8,
    state: AtomicU8,
    /// Where 0 is written, and a futex woken, when the thread ends (set_tid_address(2)).
    pub clear_child_tid: AtomicU64,
    /// The head of the robust futex list.
    pub robust_list: AtomicU64,
    /// What this thread gets when its parent's thread dies (`PR_SET_PDEATHSIG`).
    pub parent_death_signal: AtomicI32,
    pub(crate) restart: Mutex<Option<Restart>, rank::ThreadRestart>,
    /// Its last fault, for signal frames.
    pub(crate) fault: Mutex<Option<Fault>, rank::ThreadFault>,
    /// When it was made: nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub start_time: u64,
    /// Policy, affinity and I/O priority.
    pub scheduling: Mutex<crate::sched::Scheduling, rank::Scheduling>,
    /// `PR_SET_TIMERSLACK` and what it goes back to, in nanoseconds.
    timer_slack: [AtomicU64; 2],
    /// `PR_SET_IO_FLUSHER`.
    pub io_flusher: AtomicBool,
}

/// The timer slack of the first thread, in nanoseconds.
const TIMER_SLACK: u64 = 50_000;

/// What a new thread starts with.
pub(crate) struct NewThread {
    pub tid: Pid,
    pub worker: usize,
    pub guest: Arc<dyn GuestThread>,
    pub files: Arc<FdTable>,
    pub fs: Arc<FsContext>,
    pub cred: Arc<Credentials>,
    pub uts: Arc<UtsNamespace>,
    pub comm: Vec<u8>,
    pub mask: SigSet,
    pub stack: AltStack,
}

impl Thread {
    pub(crate) fn new(kernel: Arc<Kernel>, process: Arc<Process>, new: NewThread) -> Arc<Thread> {
        Arc::new(Thread {
            kernel,
            process,
            tid: AtomicI32::new(new.tid),
            worker: new.worker,
            guest: RwLock::new(new.guest),
            files: RwLock::new(new.files),
            fs: RwLock::new(new.fs),
            cred: RwLock::new(new.cred),
            uts: RwLock::new(new.uts),
            comm: Mutex::new(new.comm),
            signals: Mutex::new(ThreadSignals {
                mask: new.mask,
                stack: new.stack,
                ..ThreadSignals::default()
            }),
            work: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            shielded: AtomicBool::new(false),
            in_guest: AtomicBool::new(false),
            waker: Mutex::new(None),
            gone: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            borrows: AtomicBool::new(false),
            vfork: Mutex::new(None),
            exit_code: AtomicU8::new(0),
            state: AtomicU8::new(RunState::Running as u8),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            parent_death_signal: AtomicI32::new(0),
            restart: Mutex::new(None),
            fault: Mutex::new(None),
            start_time: sentry_host::clock::monotonic_nanos(),
            scheduling: Mutex::default(),
            timer_slack: [const { AtomicU64::new(TIMER_SLACK) }; 2],
            io_flusher: AtomicBool::new(false),
        })
    }

    /// The kernel.
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// Its process (thread group).
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Its id. Changes only when a thread that is not the leader calls execve(2).
    pub fn tid(&self) -> Pid {
        self.tid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tid(&self, tid: Pid) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Its process's id.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The worker that runs its task.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// The host side of it. A thread that has ended has one that answers `ESRCH` to everything.
    pub fn guest(&self) -> Arc<dyn GuestThread> {
        self.guest.read().clone()
    }

    pub(crate) fn set_guest(&self, guest: Arc<dyn GuestThread>) -> Arc<dyn GuestThread> {
        std::mem::replace(&mut self.guest.write(), guest)
    }

    /// Its memory.
    pub fn mm(&self) -> Arc<MemoryMap> {
        self.process.mm()
    }

    /// Its descriptor table.
    pub fn files(&self) -> Arc<FdTable> {
        self.files.read().clone()
    }

    /// Gives it another descriptor table (unshare(2), execve(2)).
    pub fn set_files(&self, files: Arc<FdTable>) -> Arc<FdTable> {
        std::mem::replace(&mut self.files.write(), files)
    }

    /// Root, working directory and umask.
    pub fn fs(&self) -> Arc<FsContext> {
        self.fs.read().clone()
    }

    /// Gives it another file system context (unshare(2)).
    pub fn set_fs(&self, fs: Arc<FsContext>) {
        *self.fs.write() = fs;
    }

    /// Host and domain name, as it sees them.
    pub fn uts(&self) -> Arc<UtsNamespace> {
        self.uts.read().clone()
    }

    /// Gives it other host names (unshare(2), setns(2)).
    pub fn set_uts(&self, uts: Arc<UtsNamespace>) {
        *self.uts.write() = uts;
    }

    /// Its credentials.
    pub fn cred(&self) -> Arc<Credentials> {
        self.cred.read().clone()
    }

    /// Changes its credentials, and tells the platform what the guest may be told without asking.
    pub fn set_cred(&self, cred: Credentials) {
        if self.tid() == self.pid() {
            self.process.real_uid.store(cred.uid, Ordering::Relaxed);
        }
        *self.cred.write() = Arc::new(cred);
        self.publish_identity();
    }

    /// Credentials are a thread's own; others of the process keep theirs.
    fn publish_identity(&self) {
        self.guest().set_identity(self.identity());
    }

    /// What the VFS needs to know of the caller: `let ctx = thread.context(); vfs.open(&ctx.caller(), …)`.
    pub fn context(&self) -> CallerContext {
        let task = TaskIds {
            tgid: u32::try_from(self.pid()).unwrap_or(0),
            tid: u32::try_from(self.tid()).unwrap_or(0),
        };
        self.fs().context(self.cred(), task)
    }

    /// Tells the host which processors it has chosen, if it has.
    pub(crate) fn apply_affinity(&self) {
        let Some(mask) = self.scheduling.lock().affinity.clone() else {
            return;
        };
        let processors: Vec<u32> = system::mask_processors(&mask).map(|cpu| cpu as u32).collect();
        self.guest().set_affinity(&processors);
    }

    /// `PR_GET_TIMERSLACK`, in nanoseconds. Kept and told: timers are as exact as they can be.
    pub fn timer_slack(&self) -> u64 {
        self.timer_slack[0].load(Ordering::Relaxed)
    }

    /// `PR_SET_TIMERSLACK`; none: the value that the thread was made with.
    pub fn set_timer_slack(&self, nanos: Option<u64>) {
        let nanos = nanos.unwrap_or_else(|| self.timer_slack[1].load(Ordering::Relaxed));
        self.timer_slack[0].store(nanos, Ordering::Relaxed);
    }

    /// A new thread has its maker's slack, and goes back to it.
    pub(crate) fn inherit_timer_slack(&self, maker: &Thread) {
        for slack in &self.timer_slack {
            slack.store(maker.timer_slack(), Ordering::Relaxed);
        }
    }

    /// A resource limit of its process.
    pub fn limit(&self, resource: Resource) -> Limit {
        self.process.limits.read().get(resource)
    }

    /// Its name, at most 15 bytes (`PR_SET_NAME`).
    pub fn comm(&self) -> Vec<u8> {
        self.comm.lock().clone()
    }

    /// Sets its name; cut to 15 bytes.
    pub fn set_comm(&self, name: &[u8]) {
        *self.comm.lock() = name.iter().copied().take(15).collect();
    }

    /// What it is doing.
    pub fn state(&self) -> RunState {
        match self.state.load(Ordering::Relaxed) {
            0 if self.guest().waits_locally() => RunState::Sleeping,
            0 => RunState::Running,
            1 => RunState::Sleeping,
            2 => RunState::Vfork,
            3 => RunState::Stopped,
            _ => RunState::Zombie,
        }
    }

    pub(crate) fn set_state(&self, state: RunState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// True when a waiting call must come back: a signal to deliver, a stop, or death.
    pub fn interrupted(&self) -> bool {
        self.work.load(Ordering::SeqCst)
    }

    /// True when the thread is to die without further ado.
    pub fn killed(&self) -> bool {
        self.dying.load(Ordering::SeqCst)
    }

    /// As long as the answer lives the present call is not given up. For what takes a bounded time and would leave
    /// something half made.
    pub(crate) fn shield(self: &Arc<Self>) -> Shield {
        self.shielded.store(true, Ordering::SeqCst);
        Shield(self.clone())
    }

    /// Makes the thread look at its signals soon, wherever it is.
    pub(crate) fn notify(&self) {
        // If it was set before, whoever set it has kicked the guest, or the task will when it lets the guest run.
        let first = !self.work.swap(true, Ordering::SeqCst);
        if first && self.in_guest.load(Ordering::SeqCst) {
            self.guest().kick();
        }
        // Also when it was in the guest: it may have come back meanwhile and wait for something now.
        self.notify_task();
    }

    /// Wakes the thread's task.
    pub(crate) fn notify_task(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Remembers how to go on with the present call after a signal; the call then answers
    /// `ERESTART_RESTARTBLOCK`.
    pub fn set_restart(&self, restart: impl FnOnce(&Arc<Thread>) -> Sys + Send + 'static) {
        *self.restart.lock() = Some(Box::new(restart));
    }

    /// Blocked signals.
    pub fn signal_mask(&self) -> SigSet {
        self.signals.lock().mask
    }

    /// Replaces the mask for the length of a call (ppoll(2), pselect(2), epoll_pwait(2)). If the call ends by a signal, the
    /// old mask comes back after the handler, as soon as the call answers a restart code or `EINTR`; otherwise
    /// call [`Thread::restore_mask`].
    pub fn set_temporary_mask(&self, mask: SigSet) {
        let old = self.signal_mask();
        self.signals.lock().saved_mask = Some(old);
        self.set_signal_mask(mask);
    }

    /// Takes back [`Thread::set_temporary_mask`] when no signal came.
    pub fn restore_mask(&self) {
        let saved = self.signals.lock().saved_mask.take();
        if let Some(saved) = saved {
            self.set_signal_mask(saved);
        }
    }
}

/// See [`Thread::shield`].
pub(crate) struct Shield(Arc<Thread>);

impl Drop for Shield {
    fn drop(&mut self) {
        self.0.shielded.store(false, Ordering::SeqCst);
    }
}
