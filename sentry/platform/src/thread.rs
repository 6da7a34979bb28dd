//! A guest thread: the sentry's side of one mailbox.

mod children;
mod guest;
mod memory;
mod orders;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;

use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, Op, Slot, answer, answer_flags, op, request};

use crate::arena::Arena;
use crate::context::{Guest, Traced};
use crate::core::{Core, Worker};
use crate::frame::Frame;
use crate::mailbox::{self, Brought};
use crate::ptrace::Command;
use crate::space::Space;
use crate::{AddressSpace, Event, Identity};

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
    /// What the stub brought along.
    prefetch: [Brought; 2],
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
                prefetch: Default::default(),
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
            state.prefetch = Default::default();
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
        if kind == request::TRACED {
            return state.event.take();
        }
        let (event, brought) = mailbox::read(self.head(), kind)?;
        state.data_used = state.data_used.max(mailbox::reserved(&brought));
        state.prefetch = brought;
        Some(event)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.core.sandbox.release_wake_index(self.wake_index);
    }
}
