//! The kernel as one value.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_platform::Platform;
use sentry_vfs::ops::Vfs;

use crate::executor::Executor;
use crate::gap::Gaps;
use crate::namespace::UtsNamespace;
use crate::task::pid::{Pid, TaskTable};
use crate::task::{Process, Thread};

/// Everything a sandbox is, reached from each of its threads.
pub struct Kernel {
    platform: Arc<dyn Platform>,
    executor: Arc<Executor>,
    vfs: Arc<Vfs>,
    vdso: crate::vdso::Vdso,
    /// Who exists.
    pub tasks: TaskTable,
    /// The first host and domain name (uname(2)).
    pub(crate) uts: Arc<UtsNamespace>,
    /// File systems that guests mount and share.
    pub(crate) shared_file_systems: crate::syscalls::SharedFileSystems,
    /// What was asked for and is not implemented.
    pub gaps: Gaps,
    /// Whether a gap's first use is written to standard error.
    pub log_gaps: bool,
    /// A fault of ours, on purpose.
    pub stuck: Option<crate::config::Stuck>,
    /// The nice value of the first process.
    pub nice: i32,
    /// True while system calls are counted (`--stats`).
    pub stats: bool,
    /// System calls so far, by number.
    pub counts: Box<[AtomicU64; crate::syscalls::TABLE_SIZE]>,
    /// True while every call is printed.
    pub strace: AtomicBool,
    /// Where they are printed; set at boot if at all.
    pub tracer: OnceLock<crate::strace::Tracer>,
    /// When the sandbox started: nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub boot_time: u64,
    /// Futexes whose calls come here.
    pub(crate) futexes: crate::futex::FutexTable,
    /// File locks.
    pub locks: Arc<crate::locks::LockTable>,
    /// Leases on files.
    pub leases: Arc<crate::leases::LeaseTable>,
    /// Files that announce their readiness by signals.
    pub(crate) announcers: crate::sigio::Announcers,
    /// Directories whose changes are announced by signals.
    pub(crate) directory_watches: crate::sigio::DirectoryWatches,
    /// Limits of inotify instances.
    pub(crate) inotify: Arc<crate::inotify::Limits>,
    /// Waits for the host to report changes of what guests watch; set once they watch something.
    pub(crate) reports: OnceLock<crate::executor::HostWatch>,
    /// Pseudo-terminals.
    pub(crate) terminals: crate::tty::Terminals,
    /// The socket to the supervisor, if there is one.
    pub(crate) supervisor: OnceLock<Arc<OwnedFd>>,
    /// Where events go, if somebody wants to know.
    pub(crate) events: OnceLock<Arc<crate::events::Events>>,
    /// What the sandbox may use, and has used.
    pub(crate) quota: crate::quota::Quota,
    /// Names of Unix sockets.
    pub(crate) unix: crate::unix::Names,
    /// Stops of whole processes by job control so far.
    pub(crate) stops: AtomicU64,
    /// Processes ever made.
    pub forks: AtomicU64,
    pending_signals: Mutex<BTreeMap<u32, Arc<AtomicU64>>, rank::PendingSignals>,
    /// Signals from outside that have come before the first process; none once it is there.
    pub(crate) early_signals: Mutex<Option<Vec<crate::signal::Signal>>, rank::EarlySignals>,
    /// How many signals are queued on behalf of all.
    pub(crate) all_pending_signals: Arc<AtomicU64>,
    /// The exit of the first process.
    pub(crate) init_exit: Mutex<Option<crate::task::wait::WaitStatus>, rank::InitExit>,
}

/// The names uname(2) gives.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct HostNames {
    pub host: Vec<u8>,
    pub domain: Vec<u8>,
}

/// How a kernel is made.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct KernelOptions {
    pub workers: usize,
    pub hostname: Vec<u8>,
    pub log_gaps: bool,
    pub stats: bool,
    pub strace: bool,
    pub limits: crate::config::SandboxLimits,
    pub stuck: Option<crate::config::Stuck>,
    /// The nice value of the first process.
    pub nice: i32,
}

impl Kernel {
    /// A kernel without processes.
    pub fn new(platform: Arc<dyn Platform>, vfs: Arc<Vfs>, options: KernelOptions) -> Result<Arc<Kernel>, Errno> {
        let vdso = crate::vdso::Vdso::new(platform.layout().host_vdso)?;
        let executor = Executor::new(platform.clone(), options.workers)?;
        vfs.set_fifo_opener(Arc::new(crate::pipe::Fifos::default()));
        let kernel = Arc::new(Kernel {
            platform,
            executor,
            vfs,
            vdso,
            tasks: TaskTable::default(),
            uts: UtsNamespace::first(HostNames {
                host: options.hostname,
                domain: b"(none)".to_vec(),
            }),
            shared_file_systems: crate::syscalls::SharedFileSystems::default(),
            gaps: Gaps::default(),
            log_gaps: options.log_gaps,
            stuck: options.stuck,
            nice: options.nice,
            stats: options.stats,
            counts: Box::new([const { AtomicU64::new(0) }; crate::syscalls::TABLE_SIZE]),
            strace: AtomicBool::new(options.strace),
            tracer: OnceLock::new(),
            boot_time: sentry_host::clock::monotonic_nanos(),
            futexes: crate::futex::FutexTable::default(),
            locks: crate::locks::LockTable::new(),
            leases: crate::leases::LeaseTable::new(),
            announcers: crate::sigio::Announcers::default(),
            directory_watches: crate::sigio::DirectoryWatches::default(),
            inotify: Arc::default(),
            reports: OnceLock::new(),
            terminals: crate::tty::Terminals::default(),
            supervisor: OnceLock::new(),
            events: OnceLock::new(),
            quota: crate::quota::Quota::new(options.limits),
            unix: crate::unix::Names::default(),
            stops: AtomicU64::new(0),
            forks: AtomicU64::new(0),
            pending_signals: Mutex::new(BTreeMap::new()),
            early_signals: Mutex::new(Some(Vec::new())),
            all_pending_signals: Arc::default(),
            init_exit: Mutex::new(None),
        });
        crate::tty::register(&kernel);
        let breaker = crate::leases::Breaker(Arc::downgrade(&kernel));
        kernel.vfs.set_lease_breaker(Arc::new(breaker));
        Ok(kernel)
    }

    /// What runs the guests.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// What runs the tasks.
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// The file systems.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// The vDSO image of all guests.
    pub(crate) fn vdso(&self) -> &crate::vdso::Vdso {
        &self.vdso
    }

    /// A process by id, zombies included.
    pub fn process(&self, pid: Pid) -> Option<Arc<Process>> {
        self.tasks.read().process(pid).cloned()
    }

    /// A thread by id.
    pub fn thread(&self, tid: Pid) -> Option<Arc<Thread>> {
        self.tasks.read().thread(tid).cloned()
    }

    /// Tells the supervisor something. If it does not listen, waiting for it would not help.
    pub(crate) fn tell_supervisor(&self, notice: crate::config::Notice) {
        if let Some(socket) = self.supervisor.get() {
            let _ = sentry_host::scm::try_send_with_fds(socket.as_fd(), &notice.encode(), &[]);
        }
    }

    /// Tells guests what the host reports of the files that they watch, from now on.
    pub(crate) fn follow_reports(self: &Arc<Kernel>) {
        if self.reports.get().is_some() {
            return;
        }
        let Some(descriptor) = self.vfs.notifier().reports_descriptor() else {
            return;
        };
        let kernel = Arc::downgrade(self);
        let watch = self
            .executor
            .watch_host(&descriptor, sentry_vfs::wait::PollEvents::IN, move |_| {
                let Some(kernel) = kernel.upgrade() else { return };
                kernel.vfs.notifier().read_reports();
                if kernel.vfs.notifier().has_unwanted_reports() {
                    let vfs = kernel.vfs.clone();
                    kernel
                        .executor
                        .spawn(0, async move { vfs.notifier().end_unwanted_reports() });
                }
            });
        if let Ok(watch) = watch {
            let _ = self.reports.set(watch);
        }
    }

    /// How many signals are queued on behalf of a user.
    pub(crate) fn pending_signals(&self, uid: u32) -> Arc<AtomicU64> {
        self.pending_signals.lock().entry(uid).or_default().clone()
    }
}
