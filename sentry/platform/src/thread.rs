//! A guest thread: the sentry's side of one mailbox.

use std::future::poll_fn;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, Op, Slot, answer, answer_flags, op, request};

use crate::arena::Arena;
use crate::async_lock::AsyncGuard;
use crate::context::{Guest, Traced};
use crate::control::MAX_FDS;
use crate::core::{Core, Worker, is_child};
use crate::frame::Frame;
use crate::ptrace::Command;
use crate::space::Space;
use crate::watchdog::{Expected, ROUND, Suspect};
use crate::{AddressSpace, BoxFuture, ChildStart, Event, Fault, GuestThread, Identity, Order, Registers, SyscallArgs};

/// What a thread does, as the sentry sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waiting for the sentry.
    Stopped,
    /// To be resumed at the next flush.
    Queued,
    /// Running guest code.
    Running,
    /// Carrying out orders.
    Ordering,
    /// Gone, or told to go.
    Dead,
}

/// ptrace: what the tracer saw a thread do.
pub(crate) enum Report {
    /// Guest code stopped.
    Event(Event),
    /// The operations are done.
    Done,
}

struct State {
    phase: Phase,
    waker: Option<Waker>,
    /// Operations for the next answer.
    ops: Vec<Op>,
    /// Guest addresses that staged COPY_OUT operations write: (address, data offset, length).
    staged: Vec<(u64, usize, usize)>,
    /// The data area is used up to here.
    data_used: usize,
    result: Option<i64>,
    guest: Guest,
    /// ptrace: what the tracer has reported and nobody has taken yet.
    report: Option<Report>,
    /// ptrace: the child that the host says this thread has made.
    made: Option<u32>,
    event: Option<Event>,
    /// What the stub brought along: (guest address, length, data offset).
    prefetch: [(u64, usize, usize); 2],
    fs_base: u64,
    gs_base: u64,
}

/// A guest thread.
pub(crate) struct Thread {
    core: Arc<Core>,
    space: Arc<Space>,
    /// The same, as the trait hands it out.
    space_dyn: Arc<dyn AddressSpace>,
    slot: usize,
    wake_index: u32,
    host_tid: AtomicU32,
    worker: AtomicUsize,
    /// The last request taken.
    seen: AtomicU32,
    kick: AtomicU8,
    /// Its worker's list has it.
    armed: AtomicBool,
    /// It has processors of its own choice: they are left alone.
    pinned: AtomicBool,
    state: Mutex<State, rank::GuestState>,
    me: std::sync::Weak<Thread>,
}

/// What has become of a thread's kick.
mod kick {
    pub const NONE: u8 = 0;
    pub const UNDER_WAY: u8 = 1;
    pub const ARRIVED: u8 = 2;
}

/// How an answered stub that sleeps is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// By another stub, which has been told to.
    Deferred,
    /// On the worker's own processor if it slept there: the worker has nothing else to do.
    Near,
    /// Wherever the host likes.
    Anywhere,
}

thread_local! {
    /// The worker that this host thread is, once it has scanned.
    pub(crate) static CURRENT_WORKER: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Thread {
    /// The thread in `slot`, which waits for the answer to request `seen`. It runs if its registers are not known.
    pub fn new(
        core: &Arc<Core>,
        space: &Arc<Space>,
        slot: usize,
        wake_index: u32,
        seen: u32,
        guest: Guest,
    ) -> Arc<Thread> {
        let stopped = guest.is_known();
        let thread = Arc::new_cyclic(|me| Thread {
            core: core.clone(),
            space: space.clone(),
            space_dyn: space.clone(),
            slot,
            wake_index,
            host_tid: AtomicU32::new(0),
            worker: AtomicUsize::new(0),
            seen: AtomicU32::new(seen),
            kick: AtomicU8::new(kick::NONE),
            armed: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            state: Mutex::new(State {
                phase: if stopped { Phase::Stopped } else { Phase::Running },
                waker: None,
                ops: Vec::new(),
                staged: Vec::new(),
                data_used: 0,
                result: None,
                guest,
                report: None,
                made: None,
                event: None,
                prefetch: [(0, 0, 0); 2],
                fs_base: 0,
                gs_base: 0,
            }),
            me: me.clone(),
        });
        space.add_thread(&thread);
        thread
    }

    fn arena(&self) -> &Arena {
        &self.space.arena
    }

    fn head(&self) -> &Slot {
        self.arena().slot(self.slot)
    }

    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    fn my_worker(&self) -> &Worker {
        &self.core.workers[self.worker.load(Ordering::Relaxed) % self.core.workers.len()]
    }

    /// True if the stub has posted a request that has not been taken yet.
    pub fn has_request(&self) -> bool {
        if self.core.tracer.is_some() {
            return self.state.lock().report.is_some();
        }
        self.head().request.load(Ordering::Acquire) != self.seen()
    }

    /// True if it has come back since request `seen`, or never will.
    pub fn has_come_back(&self, seen: u32) -> bool {
        self.seen() != seen || self.has_request() || self.state.lock().phase == Phase::Dead
    }

    /// Notes the host thread's id.
    pub fn set_host_tid(&self, tid: u32) {
        self.host_tid.store(tid, Ordering::Relaxed);
    }

    /// Has the current worker look for this thread's next request.
    pub fn arm(self: &Arc<Thread>) {
        let worker = CURRENT_WORKER.get();
        self.worker.store(worker, Ordering::Relaxed);
        if !self.armed.swap(true, Ordering::Relaxed) {
            self.core.workers[worker].armed.lock().push(self.clone());
        }
    }

    /// Its worker has taken it off the list.
    pub fn was_disarmed(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Takes it off its worker's list: a list with threads that do not run would look like a crowd.
    fn disarm(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            let mut armed = self.my_worker().armed.lock();
            armed.retain(|thread| !std::ptr::eq(&**thread, self));
        }
    }

    /// ptrace: has the tracer read the extended state, if it has not yet.
    fn fetch_xstate(&self) {
        let Some(tracer) = &self.core.tracer else { return };
        let missing = self
            .state
            .lock()
            .guest
            .traced()
            .is_some_and(|traced| traced.xstate.is_none());
        if let (true, Some(me)) = (missing, self.me.upgrade()) {
            tracer.read_xstate(me);
        }
    }

    /// ptrace: what the tracer knows of this thread's registers, under the lock.
    pub fn with_traced<T>(&self, work: impl FnOnce(&mut Traced) -> T) -> Option<T> {
        self.state.lock().guest.traced().map(work)
    }

    /// ptrace: the host says that this thread has made a child.
    pub fn note_child(&self, tid: u32) {
        self.state.lock().made = Some(tid);
    }

    /// ptrace: the tracer reports what the thread did; `guest` are its registers at an event.
    pub fn report(&self, report: Report, guest: Option<Traced>) {
        let waker = {
            let mut state = self.state.lock();
            if let Some(traced) = guest {
                state.guest = Guest::Traced(Box::new(traced));
            }
            state.report = Some(report);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// ptrace: where the stub's stack for operations begins.
    pub fn stub_stack(&self) -> u64 {
        self.arena().slot_address(self.slot) + layout::SLOT_SIZE as u64 - 256
    }

    /// ptrace: false if a copy of the last operations failed (the stub's word).
    pub fn copies_were_clean(&self) -> bool {
        self.head().args[0].load(Ordering::Relaxed) != 0
    }

    /// ptrace: the result that `publish` has left.
    pub fn answered_result(&self) -> i64 {
        self.head().result.load(Ordering::Relaxed)
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().phase == Phase::Stopped
    }

    /// True if it has been resumed, but not been let go yet.
    pub fn is_queued(&self) -> bool {
        self.state.lock().phase == Phase::Queued
    }

    pub fn is_alive(&self) -> bool {
        self.state.lock().phase != Phase::Dead
    }

    pub fn host_tid(&self) -> u32 {
        self.host_tid.load(Ordering::Relaxed)
    }

    /// The processor the stub says it is on.
    pub fn claimed_cpu(&self) -> u32 {
        self.head().cpu.load(Ordering::Relaxed)
    }

    /// Wakes the task that waits for this thread.
    pub fn wake_task(&self) {
        let waker = self.state.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The process is gone.
    pub fn mark_dead(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.phase = Phase::Dead;
            state.waker.take()
        };
        self.disarm();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn store_identity(&self, identity: Identity) {
        let head = self.head();
        head.pid.store(identity.pid, Ordering::Relaxed);
        head.uid.store(identity.uid, Ordering::Relaxed);
        head.euid.store(identity.euid, Ordering::Relaxed);
        head.gid.store(identity.gid, Ordering::Relaxed);
        head.egid.store(identity.egid, Ordering::Relaxed);
    }

    pub fn store_local(&self, on: bool) {
        self.head().local.store(u32::from(on), Ordering::Relaxed);
    }

    /// Sends the kick signal if the thread runs and has not been sent one; true if it was.
    pub fn interrupt(&self) -> bool {
        let phase = self.state.lock().phase;
        // One signal is enough until the thread comes back: more would only pile frames on its signal stack.
        let sends = matches!(phase, Phase::Running | Phase::Queued) && self.change_kick(kick::NONE, kick::UNDER_WAY);
        if sends {
            self.send_kick();
        }
        sends
    }

    fn change_kick(&self, from: u8, to: u8) -> bool {
        let change = self.kick.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        change.is_ok()
    }

    /// True while a kick has been sent that the host does not know of yet: it may run on innocently.
    pub fn kick_is_under_way(&self) -> bool {
        self.kick.load(Ordering::SeqCst) == kick::UNDER_WAY && self.is_alive()
    }

    /// The host will stop the thread before its next instruction of guest code.
    pub fn kick_has_arrived(&self) {
        self.change_kick(kick::UNDER_WAY, kick::ARRIVED);
    }

    pub fn send_kick(&self) {
        if let (Some(tracer), Some(me)) = (&self.core.tracer, self.me.upgrade()) {
            tracer.send(Command::Interrupt { thread: me });
            return;
        }
        let (pid, tid) = (self.space.pid(), self.host_tid.load(Ordering::Relaxed));
        if pid != 0 && tid != 0 && !self.space.is_dead() {
            // SAFETY: a signal to a thread of a child of ours; a wrong tid (a stub's claim) is refused by the host
            // unless it is a thread of that same process.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, layout::KICK_SIGNAL) };
        }
        self.kick_has_arrived();
    }

    /// Sends the answer that has been prepared. Called by `flush`, on the thread's worker.
    ///
    /// `wakes` are wake words that this thread's stub shall wake (delegated wakes). True if this stub is asleep and
    /// has not been woken here.
    pub fn publish(self: &Arc<Thread>, kind: u32, mut wakes: Vec<u32>, wake: Wake) -> bool {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Queued | Phase::Ordering) {
            return false;
        }
        let (head, arena) = (self.head(), self.arena());
        wakes.truncate(layout::MAX_OPS - state.ops.len().min(layout::MAX_OPS));
        for index in wakes {
            let mut a = [0; 7];
            a[0] = index.into();
            state.ops.push(Op {
                kind: op::WAKE,
                flags: 0,
                a,
            });
        }
        let has_ops = !state.ops.is_empty();
        if !has_ops {
            head.op_count.store(0, Ordering::Relaxed);
        } else {
            arena.set_ops(self.slot, &state.ops);
        }
        let mut flags = 0;
        if kind == answer::RETURN {
            if let Some(value) = state.result.take() {
                head.result.store(value, Ordering::Relaxed);
                flags |= answer_flags::RESULT;
                if !state.staged.is_empty() {
                    flags |= answer_flags::FAULT_RESULT;
                }
            }
            state.phase = Phase::Running;
            state.ops.clear();
            state.staged.clear();
            state.data_used = 0;
            state.prefetch = [(0, 0, 0); 2];
        }
        head.answer_kind.store(kind, Ordering::Relaxed);
        head.answer_flags.store(flags, Ordering::Relaxed);
        let worker = CURRENT_WORKER.get();
        head.worker.store(worker as u32, Ordering::Relaxed);
        if let Some(tracer) = &self.core.tracer {
            self.worker.store(worker, Ordering::Relaxed);
            drop(state);
            tracer.send(if kind == answer::RETURN {
                Command::Return {
                    thread: self.clone(),
                    ops: has_ops,
                    flags,
                }
            } else {
                Command::Orders { thread: self.clone() }
            });
            // A kick that came while the thread was queued found nothing to interrupt.
            if kind == answer::RETURN && self.kick.load(Ordering::SeqCst) != kick::NONE {
                self.kick.store(kick::UNDER_WAY, Ordering::SeqCst);
                tracer.send(Command::Interrupt { thread: self.clone() });
            }
            return false;
        }
        self.arm();
        drop(state);
        head.answer.store(self.seen(), Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if head.sleeping.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let sandbox = &self.core.sandbox;
        match wake {
            Wake::Deferred => {
                sandbox.wake_word(self.wake_index).fetch_add(1, Ordering::SeqCst);
            }
            Wake::Near if !self.pinned.load(Ordering::Relaxed) => {
                self.my_worker()
                    .handoff
                    .wake_near(self.host_tid(), self.claimed_cpu(), || sandbox.wake(self.wake_index))
            }
            Wake::Near | Wake::Anywhere => sandbox.wake(self.wake_index),
        }
        true
    }

    /// False if its stub says that the guest sleeps in a futex wait. (A lie only makes its own sandbox slower.)
    pub fn may_run(&self) -> bool {
        self.head().waiting.load(Ordering::Relaxed) == 0
    }

    /// True if its stub sleeps until it is answered.
    pub fn is_asleep(&self) -> bool {
        self.head().sleeping.load(Ordering::SeqCst) != 0
    }

    pub fn wake_index(&self) -> u32 {
        self.wake_index
    }

    /// Takes a request if there is one: its kind. Everything is read once.
    fn take_request(&self, state: &mut State) -> Option<u32> {
        let head = self.head();
        if self.core.tracer.is_some() {
            let report = state.report.take()?;
            self.seen.fetch_add(1, Ordering::Relaxed);
            self.kick.store(kick::NONE, Ordering::Relaxed);
            return Some(match report {
                Report::Done => request::DONE,
                Report::Event(event) => {
                    state.event = Some(event);
                    request::TRACED
                }
            });
        }
        let number = head.request.load(Ordering::Acquire);
        if number == self.seen() {
            return None;
        }
        self.disarm();
        self.seen.store(number, Ordering::Relaxed);
        self.kick.store(kick::NONE, Ordering::Relaxed);
        let kind = head.kind.load(Ordering::Relaxed);
        if kind != request::DONE {
            let frame = Frame::new(self.arena(), self.slot, head.frame.load(Ordering::Relaxed));
            state.guest = frame.map_or(Guest::Unknown, Guest::Frame);
            state.fs_base = head.fs_base.load(Ordering::Relaxed);
            state.gs_base = head.gs_base.load(Ordering::Relaxed);
        }
        Some(kind)
    }

    /// Reads the request that was just taken; `None` if it makes no sense.
    fn event(&self, state: &mut State, kind: u32) -> Option<Event> {
        if !state.guest.is_known() {
            return None;
        }
        let head = self.head();
        let args = || SyscallArgs {
            nr: head.nr.load(Ordering::Relaxed),
            args: std::array::from_fn(|i| head.args[i].load(Ordering::Relaxed)),
        };
        match kind {
            request::SYSCALL => {
                for index in 0..2 {
                    let len = head.prefetch_len[index].load(Ordering::Relaxed) as usize;
                    if len > 0 && len <= layout::PREFETCH_MAX {
                        let addr = head.prefetch_addr[index].load(Ordering::Relaxed);
                        let offset = index * layout::PREFETCH_MAX;
                        state.prefetch[index] = (addr, len, offset);
                        state.data_used = offset + layout::PREFETCH_MAX;
                    }
                }
                Some(Event::Syscall(args()))
            }
            request::TRACED => state.event.take(),
            request::LOCAL_INTERRUPTED => Some(Event::LocalInterrupted(args())),
            request::INTERRUPTED => Some(Event::Interrupted),
            request::FAULT => {
                let signal = head.fault_signal.load(Ordering::Relaxed);
                let known = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
                known.contains(&signal).then(|| {
                    Event::Fault(Fault {
                        signal,
                        code: head.fault_code.load(Ordering::Relaxed),
                        address: head.fault_address.load(Ordering::Relaxed),
                        trapno: head.args[0].load(Ordering::Relaxed),
                        error: head.args[1].load(Ordering::Relaxed),
                    })
                })
            }
            _ => None,
        }
    }

    /// Sends CONTINUE with the collected operations and waits for DONE; the results of the last `count`.
    async fn exchange(&self, count: usize) -> Result<Vec<i64>, Errno> {
        let me = self.me.upgrade().ok_or(Errno::ESRCH)?;
        let first = {
            let mut state = self.state.lock();
            if state.phase != Phase::Stopped {
                return Err(Errno::ESRCH);
            }
            state.phase = Phase::Ordering;
            state.ops.len() - count
        };
        me.publish(answer::CONTINUE, Vec::new(), Wake::Near);
        let done = poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase == Phase::Dead {
                return Poll::Ready(false);
            }
            match self.take_request(&mut state) {
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                Some(kind) => {
                    state.phase = Phase::Stopped;
                    Poll::Ready(kind == request::DONE)
                }
            }
        })
        .await;
        if !done {
            self.space.kill();
            return Err(Errno::ESRCH);
        }
        let mut state = self.state.lock();
        state.ops.clear();
        state.staged.clear();
        state.data_used = 0;
        state.prefetch = [(0, 0, 0); 2];
        Ok((first..first + count)
            .map(|index| self.arena().op_result(self.slot, index))
            .collect())
    }

    /// Copies between `buf` and guest memory by the stub of this stopped thread, without touching what is collected
    /// for its next answer; the number of bytes. For hosts that refuse process_vm_readv(2). The watchdog's
    /// rules hold for the stub.
    pub fn copy_by_stub(&self, addr: u64, buf: *mut u8, len: usize, write: bool) -> usize {
        let Some(me) = self.me.upgrade() else { return 0 };
        let mut done = 0;
        while done < len {
            let (number, offset, chunk) = {
                let mut state = self.state.lock();
                if state.phase != Phase::Stopped {
                    return done;
                }
                let offset = state.data_used.next_multiple_of(8);
                let chunk = (len - done).min(layout::DATA_SIZE.saturating_sub(offset));
                let Some(window) = self.arena().data_window(self.slot, offset, chunk).filter(|_| chunk > 0) else {
                    return done;
                };
                if write {
                    // SAFETY: `window` is `chunk` bytes of the data area, `buf` has `len` bytes.
                    unsafe { std::ptr::copy_nonoverlapping(buf.add(done), window, chunk) };
                }
                let kind = if write { op::COPY_OUT } else { op::COPY_IN };
                let mut a = [0; 7];
                a[..3].copy_from_slice(&[offset as u64, addr + done as u64, chunk as u64]);
                self.arena().set_ops(self.slot, &[Op { kind, flags: 0, a }]);
                state.phase = Phase::Ordering;
                (self.seen(), offset, chunk)
            };
            let mut suspect = Suspect::new(&me, Expected::Copy);
            let head = self.head();
            head.answer_kind.store(answer::CONTINUE, Ordering::Relaxed);
            if let Some(tracer) = &self.core.tracer {
                tracer.send(Command::Orders { thread: me.clone() });
            } else {
                head.answer.store(number, Ordering::SeqCst);
                self.core.sandbox.wake(self.wake_index);
            }
            let mut round = std::time::Instant::now();
            while !self.has_request() {
                if round.elapsed() >= ROUND {
                    round = std::time::Instant::now();
                    if !suspect.look() {
                        break;
                    }
                }
                std::thread::yield_now();
            }
            let mut state = self.state.lock();
            if state.phase != Phase::Ordering || self.take_request(&mut state) != Some(request::DONE) {
                drop(state);
                self.space.kill();
                return done;
            }
            state.phase = Phase::Stopped;
            let copied = usize::try_from(self.arena().op_result(self.slot, 0))
                .unwrap_or(0)
                .min(chunk);
            if !write && let Some(window) = self.arena().data_window(self.slot, offset, copied) {
                // SAFETY: as above; `copied` is at most `chunk`.
                unsafe { std::ptr::copy_nonoverlapping(window, buf.add(done), copied) };
            }
            done += copied;
            if copied < chunk {
                break;
            }
        }
        done
    }

    /// Reads guest memory up to the first fault; the number of bytes.
    fn fetch(&self, addr: u64, buf: &mut [u8]) -> usize {
        if self.core.remote_memory {
            return self.space.read_partial(addr, buf);
        }
        if addr
            .checked_add(buf.len() as u64)
            .is_none_or(|end| end > self.core.layout.high)
        {
            return 0;
        }
        self.copy_by_stub(addr, buf.as_mut_ptr(), buf.len(), false)
    }

    /// Writes guest memory at once.
    fn store(&self, addr: u64, data: &[u8]) -> Result<(), Errno> {
        if self.core.remote_memory {
            return self.space.write(addr, data);
        }
        let done = self.copy_by_stub(addr, data.as_ptr().cast_mut(), data.len(), true);
        if done == data.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn push_op(&self, kind: u32, flags: u32, args: &[u64]) {
        let mut a = [0; 7];
        a[..args.len()].copy_from_slice(args);
        self.state.lock().ops.push(Op { kind, flags, a });
    }

    fn room_for_ops(&self) -> usize {
        (layout::MAX_OPS - 8).saturating_sub(self.state.lock().ops.len())
    }

    /// Sends descriptors to the stub, which are received by the next operation.
    async fn send_descriptors<'a>(&'a self, fds: &[BorrowedFd<'_>]) -> Result<AsyncGuard<'a>, Errno> {
        let guard = self.space.descriptor_order.lock().await;
        poll_fn(|cx| self.try_send(fds, cx)).await?;
        self.push_op(op::RECEIVE, 0, &[fds.len() as u64]);
        Ok(guard)
    }

    /// Sends descriptors. If too many of this host user are on their way (unix(7), `ETOOMANYREFS`), that is the doing
    /// of other stubs, which the watchdog will end: tries again later.
    fn try_send(&self, fds: &[BorrowedFd<'_>], cx: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        if self.state.lock().phase != Phase::Stopped {
            return Poll::Ready(Err(Errno::ESRCH));
        }
        match self.space.control.send(b'd', fds) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(Errno::ETOOMANYREFS) => {
                self.core.watchdog.wake_later(cx.waker());
                Poll::Pending
            }
            Err(_) => {
                self.space.kill();
                Poll::Ready(Err(Errno::ESRCH))
            }
        }
    }

    fn watch_orders(&self) {
        if let Some(me) = self.me.upgrade() {
            self.core.watchdog.expect(&me, Expected::Orders);
        }
    }

    /// Copies bytes to the guest by the data area if there is room: the operation is added.
    fn stage(&self, state: &mut State, addr: u64, data: &[u8]) -> bool {
        let offset = state.data_used.next_multiple_of(8);
        if state.ops.len() + 8 >= layout::MAX_OPS || offset + data.len() > layout::DATA_SIZE {
            return false;
        }
        if !self.arena().write(self.slot, layout::DATA_OFFSET + offset, data) {
            return false;
        }
        let mut a = [0; 7];
        a[..3].copy_from_slice(&[offset as u64, addr, data.len() as u64]);
        state.ops.push(Op {
            kind: op::COPY_OUT,
            flags: 0,
            a,
        });
        state.staged.push((addr, offset, data.len()));
        state.data_used = offset + data.len();
        true
    }

    /// Fills in the head of a child's slot so that its stub, once there, waits for our answer.
    fn prepare_child(
        &self,
        arena: &Arena,
        slot: usize,
        wake_index: u32,
        start: ChildStart,
    ) -> Result<(u64, Guest), Errno> {
        let guest = self.state.lock().guest.clone();
        let frame = match &guest {
            Guest::Unknown => return Err(Errno::ESRCH),
            Guest::Frame(frame) => Some(frame.copy_for_child(self.arena(), arena, slot).ok_or(Errno::ESRCH)?),
            Guest::Traced(_) => None,
        };
        let (head, parent) = (arena.slot(slot), self.head());
        let relaxed = Ordering::Relaxed;
        head.request.store(1, relaxed);
        head.answer.store(0, relaxed);
        head.blocked.store(0, relaxed);
        head.kicked.store(0, relaxed);
        head.in_vdso.store(0, relaxed);
        head.sleeping.store(0, relaxed);
        head.restart_rip.store(0, relaxed);
        head.received_count.store(0, relaxed);
        head.alive.store(1, relaxed);
        head.kind.store(request::SYSCALL, relaxed);
        head.frame.store(frame.map_or(0, |frame| frame.address(arena)), relaxed);
        head.wake_index.store(wake_index, relaxed);
        head.worker.store(parent.worker.load(relaxed), relaxed);
        for (to, from) in [
            (&head.tid, &parent.tid),
            (&head.pid, &parent.pid),
            (&head.uid, &parent.uid),
            (&head.euid, &parent.euid),
            (&head.gid, &parent.gid),
            (&head.egid, &parent.egid),
        ] {
            to.store(from.load(relaxed), relaxed);
        }
        head.local.store(u32::from(self.space.local_calls()), relaxed);
        let Some(frame) = frame else {
            return Ok((
                arena.slot_address(slot) + layout::SLOT_SIZE as u64 - 256,
                Guest::Unknown,
            ));
        };
        let mut registers = frame.registers(arena, 0, 0);
        registers.rsp = start.stack.unwrap_or(registers.rsp);
        // The child's first way to the guest must be rt_sigreturn, which sets its alternate stack: the stub takes the
        // short one only where rcx is rip. (A system call does not keep rcx.)
        registers.rcx = 0;
        frame.set_registers(arena, &registers);
        // The child's own stack begins below the frame.
        Ok(((frame.address(arena) - 8 - 256) & !15, Guest::Frame(frame)))
    }

    /// The registers of a new child: as prepared, or (ptrace) a copy of this thread's.
    fn child_guest(&self, prepared: Guest, start: ChildStart) -> Guest {
        if prepared.is_known() {
            return prepared;
        }
        let mut guest = self.state.lock().guest.clone();
        if let Some(traced) = guest.traced() {
            traced.registers.rax = 0;
            traced.registers.rsp = start.stack.unwrap_or(traced.registers.rsp);
            traced.registers.fs_base = start.tls.unwrap_or(traced.registers.fs_base);
            traced.dirty = true;
            traced.xstate_dirty = true;
        }
        guest
    }

    /// Finishes a child's thread object.
    fn adopt_child(&self, child: &Arc<Thread>, start: ChildStart, inherits_fs: bool) {
        let (fs_base, gs_base) = {
            let state = self.state.lock();
            (state.fs_base, state.gs_base)
        };
        let mut state = child.state.lock();
        if state.guest.traced().is_some() {
            return;
        }
        state.fs_base = start.tls.unwrap_or(fs_base);
        state.gs_base = gs_base;
        if start.tls.is_some() || !inherits_fs {
            let a = [state.fs_base, 0, 0, 0, 0, 0, 0];
            state.ops.push(Op {
                kind: op::SET_FS,
                flags: 0,
                a,
            });
        }
        if !inherits_fs && gs_base != 0 {
            state.ops.push(Op {
                kind: op::SET_GS,
                flags: 0,
                a: [gs_base, 0, 0, 0, 0, 0, 0],
            });
        }
    }

    /// Forks this thread's process.
    pub async fn fork_process(&self, start: ChildStart) -> Result<Arc<Thread>, Errno> {
        let made = Arena::new(self.core.arena_base)
            .and_then(|arena| Ok((arena, sentry_host::scm::packet_pair().map_err(Errno::from)?)));
        // As fork(2) says it.
        let ((arena, memfd), (ours, theirs)) = made.map_err(|error| match error {
            Errno::EMFILE | Errno::ENFILE => Errno::EAGAIN,
            error => error,
        })?;
        let wake_index = self.core.sandbox.take_wake_index()?;
        let result = self.fork_into(arena, memfd, ours, theirs, wake_index, start).await;
        if result.is_err() {
            self.core.sandbox.release_wake_index(wake_index);
        }
        result
    }

    async fn fork_into(
        &self,
        arena: Arena,
        memfd: std::os::fd::OwnedFd,
        ours: std::os::fd::OwnedFd,
        theirs: std::os::fd::OwnedFd,
        wake_index: u32,
        start: ChildStart,
    ) -> Result<Arc<Thread>, Errno> {
        use std::os::fd::AsFd;
        let guard = self.send_descriptors(&[memfd.as_fd(), theirs.as_fd()]).await?;
        drop((memfd, theirs));
        let (rsp, prepared) = self.prepare_child(&arena, self.slot, wake_index, start)?;
        let (from, to) = (self.arena().header(), arena.header());
        to.control_fd
            .store(from.control_fd.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_start
            .store(from.brk_start.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_end
            .store(from.brk_end.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_limit
            .store(from.brk_limit.load(Ordering::Relaxed), Ordering::Relaxed);
        self.push_op(op::FORK, 0, &[rsp]);
        self.push_op(op::CLOSE, 0, &[]);
        self.watch_orders();
        let mut results = self.exchange(3).await?;
        drop(guard);
        self.host_says(&mut results[1]);
        if results[0] != 0 {
            self.space.kill();
            return Err(Errno::ESRCH);
        }
        if results[1] < 0 {
            return Err(Errno::from_raw(-results[1].max(-4095) as i32));
        }
        let space = Space::new(&self.core, arena, self.core.controls.add(ours), self.slot);
        let pid = u32::try_from(results[1])
            .ok()
            .filter(|pid| self.verify_child(*pid))
            .ok_or(Errno::EAGAIN);
        let Ok(pid) = pid.and_then(|pid| {
            if self.core.enter(pid, &space) {
                Ok(pid)
            } else {
                Err(Errno::EAGAIN)
            }
        }) else {
            // A false claim: the process that made it ends, and whatever it really forked with it (its group).
            self.space.kill();
            return Err(Errno::EAGAIN);
        };
        // SAFETY: moves a child of ours, which has not called exec, to a group of its own.
        unsafe { libc::setpgid(pid as libc::pid_t, pid as libc::pid_t) };
        space.set_pid(pid);
        if !self.space.local_calls() {
            space.set_local_calls(false);
        }
        let guest = self.child_guest(prepared, start);
        let child = Thread::new(&self.core, &space, self.slot, wake_index, 1, guest);
        child.host_tid.store(pid, Ordering::Relaxed);
        self.adopt_child(&child, start, true);
        Ok(child)
    }

    /// ptrace: the host tells the tracer who the child is; the stub's claim does not count.
    fn host_says(&self, result: &mut i64) {
        if self.core.tracer.is_some() && *result > 0 {
            *result = self
                .state
                .lock()
                .made
                .take()
                .map_or(-i64::from(libc::EAGAIN), i64::from);
        }
    }

    /// True if a pid that the stub claims is really its new child: ours, unknown, and in this process's group.
    fn verify_child(&self, pid: u32) -> bool {
        // SAFETY: asks for a process group; no memory involved.
        let group = unsafe { libc::getpgid(pid as libc::pid_t) };
        let mine = self.space.pid() as libc::pid_t;
        pid > 1 && is_child(pid) && !self.core.knows(pid) && (group == mine || group < 0)
    }

    async fn spawn_thread(&self, start: ChildStart, tid: u32) -> Result<Arc<Thread>, Errno> {
        let slot = self.space.take_slot()?;
        let wake_index = match self.core.sandbox.take_wake_index() {
            Ok(index) => index,
            Err(error) => {
                self.arena().slot(slot).alive.store(0, Ordering::Relaxed);
                self.space.release_slot(slot);
                return Err(error);
            }
        };
        let (rsp, prepared) = self.prepare_child(self.arena(), slot, wake_index, start)?;
        self.arena().slot(slot).tid.store(tid, Ordering::Relaxed);
        self.push_op(op::THREAD, 0, &[rsp]);
        let mut result = self.exchange(1).await?[0];
        self.host_says(&mut result);
        let guest = self.child_guest(prepared, start);
        let child = Thread::new(&self.core, &self.space, slot, wake_index, 1, guest);
        let result = match result {
            host_tid if host_tid > 0 => {
                child.host_tid.store(host_tid as u32, Ordering::Relaxed);
                self.adopt_child(&child, start, false);
                return Ok(child);
            }
            error => Errno::from_raw(-error.max(-4095) as i32),
        };
        child.state.lock().phase = Phase::Dead;
        self.arena().slot(slot).alive.store(0, Ordering::Relaxed);
        self.space.release_slot(slot);
        Err(result)
    }

    /// Turns one order into an operation; `Err` with the result it has without being run.
    fn add_order(&self, order: &Order<'_>) -> Result<(), i64> {
        let inside = |addr: u64, len: u64| addr.checked_add(len).is_some_and(|end| end <= self.core.layout.high);
        let call = |nr: i64, flags: u32, args: [u64; 6]| {
            self.push_op(
                op::CALL,
                flags,
                &[nr as u64, args[0], args[1], args[2], args[3], args[4], args[5]],
            );
            Ok(())
        };
        let invalid = Err(-i64::from(libc::EINVAL));
        match *order {
            Order::Mmap {
                addr,
                len,
                prot,
                flags,
                fd,
                offset,
            } => {
                if !inside(addr, len) {
                    return Err(-i64::from(libc::ENOMEM));
                }
                let (index, argument) = fd.map_or((u64::MAX, 0), |index| (index as u64, 5));
                call(
                    libc::SYS_mmap,
                    argument,
                    [addr, len, prot as u64, flags as u64, index, offset],
                )
            }
            Order::Munmap { addr, len } if inside(addr, len) => call(libc::SYS_munmap, 0, [addr, len, 0, 0, 0, 0]),
            Order::Mprotect { addr, len, prot } if inside(addr, len) => {
                call(libc::SYS_mprotect, 0, [addr, len, prot as u64, 0, 0, 0])
            }
            Order::Mremap {
                addr,
                old_len,
                new_len,
                flags,
                new_addr,
            } if inside(addr, old_len) && inside(new_addr, new_len) && inside(addr, new_len) => {
                call(libc::SYS_mremap, 0, [addr, old_len, new_len, flags as u64, new_addr, 0])
            }
            Order::Madvise { addr, len, advice } if inside(addr, len) => {
                call(libc::SYS_madvise, 0, [addr, len, advice as u64, 0, 0, 0])
            }
            Order::Zero { addr, len } if inside(addr, len) => {
                self.push_op(op::ZERO, 0, &[addr, len]);
                Ok(())
            }
            Order::CompareExchange { addr, old, new } if inside(addr, 4) && addr.is_multiple_of(4) => {
                self.push_op(op::CMPXCHG, 0, &[addr, old.into(), new.into()]);
                Ok(())
            }
            Order::Write { addr, data } if inside(addr, data.len() as u64) => {
                let mut state = self.state.lock();
                let staged = self.stage(&mut state, addr, data);
                debug_assert!(staged, "room was made before");
                Ok(())
            }
            Order::FutexWake { addr, count } if inside(addr, 4) => {
                call(
                    libc::SYS_futex,
                    0,
                    [addr, libc::FUTEX_WAKE as u64 | 128, count.into(), 0, 0, 0],
                )?;
                call(
                    libc::SYS_futex,
                    0,
                    [addr, libc::FUTEX_WAKE as u64, count.into(), 0, 0, 0],
                )
            }
            _ => invalid,
        }
    }

    fn order_cost(order: &Order<'_>) -> (usize, usize) {
        match order {
            Order::Write { data, .. } => (1, data.len() + 8),
            Order::FutexWake { .. } => (2, 0),
            _ => (1, 0),
        }
    }

    async fn run_orders(&self, orders: &[Order<'_>], fds: &[BorrowedFd<'_>]) -> Result<Vec<i64>, Errno> {
        let mut results = Vec::with_capacity(orders.len());
        if fds.len() > MAX_FDS {
            return Err(Errno::E2BIG);
        }
        let mut guard = None;
        if !fds.is_empty() {
            if self.room_for_ops() < 8 {
                self.exchange(0).await?;
            }
            guard = Some(self.send_descriptors(fds).await?);
            self.watch_orders();
        }
        // (number of operations, or the result of an order that is not run)
        let mut batch: Vec<Result<usize, i64>> = Vec::new();
        let mut next = orders.iter().peekable();
        loop {
            let fits = next.peek().is_some_and(|order| {
                let (ops, data) = Self::order_cost(order);
                self.room_for_ops() > ops && self.state.lock().data_used + data <= layout::DATA_SIZE
            });
            if fits {
                let Some(order) = next.next() else { break };
                batch.push(self.add_order(order).map(|()| Self::order_cost(order).0));
                continue;
            }
            let last = next.peek().is_none();
            if !last && batch.is_empty() && self.state.lock().ops.is_empty() {
                // A single order that can never fit.
                return Err(Errno::E2BIG);
            }
            let mut count: usize = batch.iter().flatten().sum();
            if last && guard.is_some() {
                self.push_op(op::CLOSE, 0, &[]);
                count += 1;
            }
            let raw = self.exchange(count).await?;
            let mut index = 0;
            for item in batch.drain(..) {
                match item {
                    Ok(ops) => {
                        results.push(raw[index]);
                        index += ops;
                    }
                    Err(result) => results.push(result),
                }
            }
            if last {
                break;
            }
        }
        // A copy that fell short faulted.
        for (result, order) in results.iter_mut().zip(orders) {
            let want = match order {
                Order::Write { data, .. } => data.len() as i64,
                Order::Zero { len, .. } => *len as i64,
                _ => continue,
            };
            if *result >= 0 {
                *result = if *result == want { 0 } else { -i64::from(libc::EFAULT) };
            }
        }
        drop(guard);
        Ok(results)
    }
}

impl GuestThread for Thread {
    fn address_space(&self) -> &Arc<dyn AddressSpace> {
        &self.space_dyn
    }

    fn resume(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            state.phase = Phase::Queued;
            drop(state);
            self.core.workers[CURRENT_WORKER.get()].outbox.lock().push(me);
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Dead => return Poll::Ready(Event::Exited),
            Phase::Running => {}
            _ => {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        let Some(kind) = self.take_request(&mut state) else {
            match &mut state.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        state.phase = Phase::Stopped;
        match self.event(&mut state, kind) {
            Some(event) => Poll::Ready(event),
            None => {
                drop(state);
                self.space.kill();
                Poll::Ready(Event::Exited)
            }
        }
    }

    fn will_block(&self) {
        self.head().blocked.store(self.seen(), Ordering::Relaxed);
    }

    fn set_result(&self, value: i64) {
        self.state.lock().result = Some(value);
    }

    fn registers(&self) -> Registers {
        let state = self.state.lock();
        let mut registers = state.guest.registers(self.arena(), state.fs_base, state.gs_base);
        if let Some(result) = state.result {
            registers.rax = result as u64;
        }
        registers
    }

    fn set_registers(&self, registers: &Registers) {
        let mut state = self.state.lock();
        state.guest.set_registers(self.arena(), registers);
        state.result = None;
        if state.guest.traced().is_some() {
            return;
        }
        for (new, old, kind) in [
            (registers.fs_base, state.fs_base, op::SET_FS),
            (registers.gs_base, state.gs_base, op::SET_GS),
        ] {
            if new != old {
                state.ops.push(Op {
                    kind,
                    flags: 0,
                    a: [new, 0, 0, 0, 0, 0, 0],
                });
            }
        }
        state.fs_base = registers.fs_base;
        state.gs_base = registers.gs_base;
    }

    fn xstate(&self) -> Vec<u8> {
        self.fetch_xstate();
        self.state.lock().guest.xstate(self.arena())
    }

    fn set_xstate(&self, xstate: &[u8]) -> Result<(), Errno> {
        self.fetch_xstate();
        self.state.lock().guest.set_xstate(self.arena(), xstate)
    }

    fn reset_xstate(&self) {
        self.fetch_xstate();
        self.state.lock().guest.reset_xstate(self.arena());
    }

    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let state = self.state.lock();
        let end = addr.checked_add(buf.len() as u64).ok_or(Errno::EFAULT)?;
        for (start, len, offset) in state.prefetch {
            if addr >= start && end <= start + len as u64 && len > 0 {
                self.arena()
                    .read(self.slot, layout::DATA_OFFSET + offset + (addr - start) as usize, buf);
                return Ok(());
            }
        }
        let staged = state.staged.clone();
        drop(state);
        if self.fetch(addr, buf) != buf.len() {
            return Err(Errno::EFAULT);
        }
        // What this call has written but the stub has not copied yet.
        for (start, offset, len) in staged {
            let (from, to) = (addr.max(start), end.min(start + len as u64));
            if from < to {
                let part = &mut buf[(from - addr) as usize..(to - addr) as usize];
                self.arena()
                    .read(self.slot, layout::DATA_OFFSET + offset + (from - start) as usize, part);
            }
        }
        Ok(())
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Errno> {
        let end = addr.checked_add(data.len() as u64).ok_or(Errno::EFAULT)?;
        if end > self.core.layout.high {
            return Err(Errno::EFAULT);
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped && data.len() <= layout::DATA_SIZE / 2 && self.stage(&mut state, addr, data) {
            return Ok(());
        }
        drop(state);
        self.store(addr, data)
    }

    fn read_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno> {
        if addr
            .checked_add(len as u64)
            .is_none_or(|end| end > self.core.layout.high)
        {
            return Err(Errno::EFAULT);
        }
        let mut state = self.state.lock();
        let start = state.data_used.next_multiple_of(64);
        let room = layout::DATA_SIZE.saturating_sub(start);
        if len <= room && state.ops.len() + 8 < layout::MAX_OPS {
            let window = self.arena().data_window(self.slot, start, len).ok_or(Errno::EFAULT)?;
            let count = read_at(fd, window, len, offset, flags)?;
            if count > 0 {
                let mut a = [0; 7];
                a[..3].copy_from_slice(&[start as u64, addr, count as u64]);
                state.ops.push(Op {
                    kind: op::COPY_OUT,
                    flags: 0,
                    a,
                });
                state.staged.push((addr, start, count));
                state.data_used = start + count;
            }
            return Ok(count);
        }
        drop(state);
        let mut buf = vec![0; len.min(1 << 20)];
        let count = read_at(fd, buf.as_mut_ptr(), buf.len(), offset, flags)?;
        self.store(addr, &buf[..count])?;
        Ok(count)
    }

    fn write_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno> {
        let mut buf = vec![0; len.min(1 << 20)];
        if self.read(addr, &mut buf).is_err() {
            let count = self.fetch(addr, &mut buf);
            if count == 0 && len > 0 {
                return Err(Errno::EFAULT);
            }
            buf.truncate(count);
        }
        let iov = libc::iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        // SAFETY: the vector names `buf`, which the call only reads.
        let count = unsafe { libc::pwritev2(fd.as_raw_fd(), &iov, 1, offset, flags) };
        if count < 0 {
            Err(Errno::from(std::io::Error::last_os_error()))
        } else {
            Ok(count as usize)
        }
    }

    fn run<'a>(&'a self, orders: &'a [Order<'a>], fds: &'a [BorrowedFd<'a>]) -> BoxFuture<'a, Result<Vec<i64>, Errno>> {
        Box::pin(self.run_orders(orders, fds))
    }

    fn fork(&self, start: ChildStart) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async move { Ok(self.fork_process(start).await? as Arc<dyn GuestThread>) })
    }

    fn spawn(&self, start: ChildStart, tid: u32) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async move { Ok(self.spawn_thread(start, tid).await? as Arc<dyn GuestThread>) })
    }

    fn set_identity(&self, identity: Identity) {
        self.store_identity(identity);
    }

    fn read_string(&self, addr: u64, max: usize) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        {
            let state = self.state.lock();
            for (start, len, offset) in state.prefetch {
                if addr == start && len > 0 {
                    text.resize(len.min(max + 1), 0);
                    self.arena().read(self.slot, layout::DATA_OFFSET + offset, &mut text);
                    break;
                }
            }
        }
        loop {
            if let Some(end) = text.iter().position(|byte| *byte == 0) {
                text.truncate(end);
                return Ok(text);
            }
            if text.len() > max {
                return Err(Errno::ENAMETOOLONG);
            }
            // To the end of the page, so that a string before an unmapped page can be read.
            let from = addr.checked_add(text.len() as u64).ok_or(Errno::EFAULT)?;
            let page = 4096 - (from % 4096) as usize;
            let old = text.len();
            text.resize(old + page.min(256).min(max + 1 - old), 0);
            let got = self.fetch(from, &mut text[old..]);
            text.truncate(old + got);
            if got == 0 {
                return Err(Errno::EFAULT);
            }
        }
    }

    fn waits_locally(&self) -> bool {
        self.head().waiting.load(Ordering::Relaxed) == 1
    }

    fn set_tid(&self, tid: u32) {
        self.head().tid.store(tid, Ordering::Relaxed);
    }

    fn set_affinity(&self, processors: &[u32]) {
        let tid = self.host_tid();
        // 0 would be the worker itself.
        if tid != 0 {
            self.pinned.store(true, Ordering::Relaxed);
            crate::handoff::set_affinity(tid, processors);
        }
    }

    fn kick(&self) {
        if self.interrupt()
            && let Some(me) = self.me.upgrade()
        {
            self.core.watchdog.expect(&me, Expected::Kick);
        }
    }

    fn exit(&self) {
        let Some(me) = self.me.upgrade() else { return };
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Stopped {
                return;
            }
            state.phase = Phase::Ordering;
            state.ops.push(Op {
                kind: op::EXIT,
                flags: 0,
                a: [0; 7],
            });
        }
        me.publish(answer::CONTINUE, Vec::new(), Wake::Anywhere);
        self.mark_dead();
        self.space.release_slot(self.slot);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.core.sandbox.release_wake_index(self.wake_index);
    }
}

fn read_at(fd: BorrowedFd<'_>, to: *mut u8, len: usize, offset: i64, flags: i32) -> Result<usize, Errno> {
    let iov = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    // SAFETY: the vector names `len` bytes at `to`, which the caller owns (or shares with a guest as raw bytes).
    let count = unsafe { libc::preadv2(fd.as_raw_fd(), &iov, 1, offset, flags) };
    if count < 0 {
        Err(Errno::from(std::io::Error::last_os_error()))
    } else {
        Ok(count as usize)
    }
}
