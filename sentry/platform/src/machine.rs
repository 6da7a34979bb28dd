//! The two platforms as the kernel sees them: processes from the zygote, workers that look for guests.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, answer};

use crate::arena::{Arena, Sandbox};
use crate::async_lock::AsyncLock;
use crate::context::Guest;
use crate::core::{Core, Worker};
use crate::handoff::Handoff;
use crate::load::Load;
use crate::ptrace::{self, Tracer};
use crate::space::Space;
use crate::thread::{CURRENT_WORKER, Thread, Wake};
use crate::zygote::{self, Placement, Plan};
use crate::{
    BoxFuture, ChildStart, Event, GuestLayout, GuestThread, Platform, PlatformError, PlatformOptions, Registers,
};

/// The next process.
enum Spare {
    /// Being forked; to be polled by one at a time, who holds the zygote's lock.
    Coming(BoxFuture<'static, Result<Arc<Thread>, Errno>>),
    Here(Arc<Thread>),
}

/// A platform: systrap, or ptrace if the core has a tracer.
pub(crate) struct Machine {
    core: Arc<Core>,
    zygote: Arc<Thread>,
    /// Held while a task talks to the zygote.
    zygote_lock: AsyncLock,
    /// The next process, once somebody has said that it will be needed.
    spare: Mutex<Option<Spare>, rank::SpareProcess>,
    /// The zygote has said hello.
    ready: Arc<AtomicBool>,
    /// A process has been taken.
    used: AtomicBool,
    /// Threads whose wake was left to another stub.
    delegated: Mutex<Vec<Arc<Thread>>, rank::DelegatedWakes>,
    /// What else the host has to run.
    load: Option<Arc<Load>>,
}

impl Machine {
    fn new(options: &PlatformOptions, core: Arc<Core>, zygote: Arc<Thread>, ready: bool) -> Machine {
        Machine {
            core,
            zygote,
            zygote_lock: AsyncLock::new(),
            spare: Mutex::new(None),
            ready: Arc::new(ready.into()),
            used: AtomicBool::new(false),
            delegated: Mutex::new(Vec::new()),
            load: options.load.clone(),
        }
    }

    /// Starts systrap. This process must have one thread only.
    pub fn systrap(options: &PlatformOptions) -> Result<Machine, PlatformError> {
        let (core, space, pid) = start_zygote(options, false)?;
        let zygote = Thread::new(&core, &space, 0, core.zygote_wake_index, 0, Guest::Unknown);
        zygote.set_host_tid(pid);
        let machine = Machine::new(options, core.clone(), zygote, false);
        let watched = core.clone();
        spawn("watchdog", move || watched.watchdog.watch())?;
        spawn("reaper", move || core.reap())?;
        Ok(machine)
    }

    /// Starts ptrace. This process must have one thread only.
    pub fn ptrace(options: &PlatformOptions) -> Result<Machine, PlatformError> {
        let (core, space, pid) = start_zygote(options, true)?;
        let guest = ptrace::start(&core, &space, pid)?;
        let zygote = Thread::new(&core, &space, 0, core.zygote_wake_index, 0, guest);
        zygote.set_host_tid(pid);
        let machine = Machine::new(options, core.clone(), zygote, true);
        spawn("watchdog", move || core.watchdog.watch())?;
        Ok(machine)
    }

    /// Takes the spare process, or forks one; and starts on the next, unless this was the first: few programs execute
    /// another one without a fork, which says so.
    async fn take_process(&self) -> Result<Arc<Thread>, Errno> {
        let _guard = self.zygote_lock.lock().await;
        // What went wrong ahead of time is no reason to fail now.
        let process = match poll_fn(|cx| self.poll_spare(cx)).await {
            Ok(process) => process,
            Err(_) => poll_fn(|cx| self.poll_spare(cx)).await?,
        };
        *self.spare.lock() = None;
        if self.used.swap(true, Ordering::Relaxed) {
            self.start_spare();
        }
        Ok(process)
    }

    /// Polls the spare process, which is begun if there is none. Whoever waits for it may give up: it stays where it
    /// is. With the zygote's lock.
    fn poll_spare(&self, cx: &mut Context<'_>) -> Poll<Result<Arc<Thread>, Errno>> {
        let spare = self.spare.lock().take();
        let mut coming = match spare {
            Some(Spare::Coming(coming)) => coming,
            Some(Spare::Here(process)) => {
                *self.spare.lock() = Some(Spare::Here(process.clone()));
                return Poll::Ready(Ok(process));
            }
            None => Box::pin(fork_zygote(self.zygote.clone(), self.ready.clone())),
        };
        let poll = coming.as_mut().poll(cx);
        *self.spare.lock() = match &poll {
            Poll::Pending => Some(Spare::Coming(coming)),
            Poll::Ready(Ok(process)) => Some(Spare::Here(process.clone())),
            Poll::Ready(Err(_)) => None,
        };
        poll
    }

    /// Sends the order for the spare process, or collects it. With the zygote's lock.
    fn start_spare(&self) {
        let _ = self.poll_spare(&mut Context::from_waker(Waker::noop()));
    }
}

/// Forks a process from the zygote, once that has said hello.
async fn fork_zygote(zygote: Arc<Thread>, ready: Arc<AtomicBool>) -> Result<Arc<Thread>, Errno> {
    if !ready.load(Ordering::Relaxed) {
        zygote_hello(&zygote).await?;
        ready.store(true, Ordering::Relaxed);
    }
    zygote.fork_process(ChildStart::default()).await
}

async fn zygote_hello(zygote: &Arc<Thread>) -> Result<(), Errno> {
    let mut armed = false;
    let event = poll_fn(|cx| {
        let poll = zygote.poll_event(cx);
        if poll.is_pending() && !armed {
            armed = true;
            zygote.arm();
        }
        poll
    })
    .await;
    match event {
        Event::Syscall(call) if call.nr == layout::HELLO_NR => {
            zygote.reset_xstate();
            zygote.set_registers(&Registers {
                eflags: 0x202,
                ..Registers::default()
            });
            Ok(())
        }
        _ => Err(Errno::ESRCH),
    }
}

/// Starts a service thread of the platform. Signals are left to the workers.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), PlatformError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(128 * 1024)
        .spawn(body)
        .map(drop)
        .map_err(|error| PlatformError::Host("starting a thread", Errno::from(error)))
}

/// Makes the shared state and the zygote process.
fn start_zygote(options: &PlatformOptions, ptrace: bool) -> Result<(Arc<Core>, Arc<Space>, u32), PlatformError> {
    let host = |what| move |error| PlatformError::Host(what, error);
    check_processor()?;
    let sandbox = Sandbox::new().map_err(host("making the sandbox page"))?;
    let mut workers = Vec::new();
    for _ in 0..options.workers.clamp(1, layout::MAX_WORKERS) {
        workers.push(Worker {
            armed: Mutex::new(Vec::new()),
            outbox: Mutex::new(Vec::new()),
            doorbell: sentry_host::eventfd::new().map_err(host("making a doorbell"))?,
            handoff: Handoff::new(),
        });
    }
    let place = Placement::choose().map_err(host("placing the stub"))?;
    let layout = GuestLayout {
        low: 0x1_0000,
        high: zygote::GUEST_HIGH,
        mmap_base: zygote::GUEST_HIGH - (1 << 30),
        host_vdso: options.vdso.base,
    };
    let cpus = workers[0].handoff.cpus();
    let (arena, arena_fd) = Arena::new(place.arena).map_err(host("making an arena"))?;
    let (control, theirs) =
        sentry_host::scm::packet_pair().map_err(|error| PlatformError::Host("making a socket", error.into()))?;
    let filter =
        crate::filter::stub_program(place.gadget()).map_err(|error| PlatformError::Filter(error.to_string()))?;
    let plan = Plan {
        place,
        arena: &arena,
        arena_fd: &arena_fd,
        sandbox_fd: sandbox.fd(),
        control: &theirs,
        doorbells: workers.iter().map(|worker| worker.doorbell.as_fd()).collect(),
        filter,
        vdso: options.vdso,
        layout,
        spin_ticks: if cpus > 1 { 50_000 } else { 0 },
        max_processes: options.max_processes,
        nice: options.nice,
        ptrace,
    };
    let wake_index = sandbox.take_wake_index().map_err(host("a wake word"))?;
    arena.slot(0).wake_index.store(wake_index, Ordering::Relaxed);
    let pid = zygote::start(&plan).map_err(host("starting the zygote"))?;
    drop(plan);
    drop((arena_fd, theirs));
    zygote::release(&place);
    let tracer = if ptrace {
        Some(Tracer::new(&place).map_err(host("making the tracer"))?)
    } else {
        None
    };
    let remote_memory = !options.copy_by_stub && can_read_child(pid, place.text);
    let core = Arc::new(Core::new(
        sandbox,
        workers,
        layout,
        place.arena,
        wake_index,
        remote_memory,
        tracer,
    ));
    let space = Space::new(&core, arena, core.controls.pinned(control), 0);
    space.set_pid(pid);
    core.enter(pid, &space);
    core.zygote_pid.store(pid, Ordering::Relaxed);
    Ok((core, space, pid))
}

/// Tries process_vm_readv(2) on the zygote: Yama, a filter or an old kernel may refuse it. (It need not have mapped
/// the address yet: a fault is no refusal.)
fn can_read_child(pid: u32, addr: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: 1,
    };
    // SAFETY: `local` is one byte of ours.
    let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    count == 1 || Errno::from(std::io::Error::last_os_error()) == Errno::EFAULT
}

fn check_processor() -> Result<(), PlatformError> {
    // SAFETY: reads the auxiliary vector; CPUID is there on every x86-64.
    let (fsgsbase, rdtscp) = unsafe {
        (
            libc::getauxval(libc::AT_HWCAP2) & 2 != 0,
            std::arch::x86_64::__cpuid(0x8000_0001).edx & (1 << 27) != 0,
        )
    };
    if !fsgsbase {
        return Err(PlatformError::Processor("FSGSBASE (Linux 5.9 on Ivy Bridge or later)"));
    }
    if !rdtscp {
        return Err(PlatformError::Processor("RDTSCP"));
    }
    Ok(())
}

impl Platform for Machine {
    fn name(&self) -> &'static str {
        if self.core.tracer.is_some() {
            "ptrace"
        } else {
            "systrap"
        }
    }

    fn layout(&self) -> GuestLayout {
        self.core.layout
    }

    fn new_process(&self) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async move { Ok(self.take_process().await? as Arc<dyn GuestThread>) })
    }

    fn prepare_process(&self) {
        // Whoever has the lock is at it.
        if let Some(_guard) = self.zygote_lock.try_lock() {
            self.start_spare();
        }
    }

    fn take_over(&self, worker: usize) {
        CURRENT_WORKER.set(worker);
        self.core.workers[worker].handoff.take_over();
    }

    fn scan(&self, worker: usize) -> usize {
        CURRENT_WORKER.set(worker);
        scan(&self.core, worker)
    }

    fn flush(&self, index: usize) {
        CURRENT_WORKER.set(index);
        let worker = &self.core.workers[index];
        let mut outbox = std::mem::take(&mut *worker.outbox.lock());
        outbox.retain(|thread| !thread.space().hold(index, thread));
        if outbox.is_empty() {
            return;
        }
        self.core
            .sandbox
            .worker(index)
            .cpu
            .store(crate::handoff::rdtscp().1, Ordering::Relaxed);
        if let [only] = &*outbox {
            only.publish(answer::RETURN, Vec::new(), Wake::Near);
        } else {
            // Sleepers first, without waking them; then those that still spin, who wake the sleepers on their way.
            let (sleepers, awake): (Vec<_>, Vec<_>) = outbox.into_iter().partition(|thread| thread.is_asleep());
            let delegate = !awake.is_empty() && sleepers.len() <= 8;
            let mut wakes = Vec::new();
            for thread in sleepers {
                let wake = if delegate { Wake::Deferred } else { Wake::Anywhere };
                if thread.publish(answer::RETURN, Vec::new(), wake) && delegate {
                    wakes.push(thread.wake_index());
                    self.delegated.lock().push(thread);
                }
            }
            for thread in awake {
                thread.publish(answer::RETURN, std::mem::take(&mut wakes), Wake::Anywhere);
            }
        }
        worker.handoff.answer_sent();
    }

    fn should_spin(&self, index: usize) -> bool {
        let worker = &self.core.workers[index];
        let running = worker.armed.lock().iter().filter(|thread| thread.may_run()).count();
        if running == 0 || running > worker.handoff.cpus() || self.load.as_ref().is_some_and(|load| load.is_crowded()) {
            return false;
        }
        worker.handoff.can_spin(self.core.sandbox.worker(index))
    }

    fn prepare_park(&self, index: usize) -> bool {
        let worker = &self.core.workers[index];
        let state = self.core.sandbox.worker(index);
        // Wakes that were left to a stub: it may not have done them, or not yet.
        let delegated = std::mem::take(&mut *self.delegated.lock());
        for thread in delegated {
            if thread.is_asleep() {
                self.core.sandbox.wake_again(thread.wake_index());
            }
        }
        if !worker.armed.lock().is_empty() {
            worker.handoff.park_near(state);
        }
        state.sleeping.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let news = worker.armed.lock().iter().any(|thread| thread.has_request());
        if news {
            state.sleeping.store(0, Ordering::SeqCst);
        }
        !news
    }

    fn unpark(&self, index: usize) {
        let state = self.core.sandbox.worker(index);
        state.sleeping.store(0, Ordering::SeqCst);
        state.cpu.store(crate::handoff::rdtscp().1, Ordering::Relaxed);
        let _ = sentry_host::eventfd::drain(self.doorbell(index));
    }

    fn doorbell(&self, worker: usize) -> BorrowedFd<'_> {
        self.core.workers[worker % self.core.workers.len()].doorbell.as_fd()
    }
}

/// Finds the armed threads of a worker that have a request, and wakes their tasks.
pub(crate) fn scan(core: &Core, index: usize) -> usize {
    let worker = &core.workers[index];
    let mut found: Vec<Arc<Thread>> = Vec::new();
    {
        let mut armed = worker.armed.lock();
        let mut at = 0;
        while at < armed.len() {
            if armed[at].has_request() {
                let thread = armed.swap_remove(at);
                thread.was_disarmed();
                found.push(thread);
            } else {
                at += 1;
            }
        }
    }
    for thread in &found {
        worker
            .handoff
            .request_seen(thread.claimed_cpu(), core.sandbox.worker(index));
        thread.wake_task();
    }
    found.len()
}
