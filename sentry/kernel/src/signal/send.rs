//! Sending signals.
//!
//! Nothing here takes `Kernel::tasks`; callers may hold it, so that a signal to a group reaches every member. What
//! is left to do afterwards with that lock (telling a parent that its child goes on) is handed back as [`After`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_vfs::wait::PollEvents;

use super::queue::Charge;
use super::{Action, Disposition, SigInfo, SigSet, Signal};
use crate::Kernel;
use crate::task::process::{ProcessSignals, StopState};
use crate::task::wait::{WaitStatus, notify_parent};
use crate::task::{Pid, Process, Resource, Thread};

/// What is left to do after a signal was sent, once `Kernel::tasks` is free.
#[must_use]
#[derive(Default)]
pub struct After {
    continued: Vec<Arc<Process>>,
}

impl After {
    /// Does it. `Kernel::tasks` must not be held.
    pub fn run(self, kernel: &Arc<Kernel>) {
        for process in self.continued {
            notify_parent(kernel, &process, SigInfo::CLD_CONTINUED, Signal::CONT.number());
        }
    }

    /// Joins two.
    pub fn merge(&mut self, other: After) {
        self.continued.extend(other.continued);
    }
}

/// Sends a signal of the kernel's own to a process: any thread that does not block it takes it.
/// `Kernel::tasks` must not be held.
pub fn send_to_process(kernel: &Arc<Kernel>, process: &Arc<Process>, info: SigInfo) {
    // Only a guest's own signals are refused, and then for a lack of room.
    let _ = try_send_to_process(kernel, process, info);
}

/// Sends a signal of the kernel's own to one thread. `Kernel::tasks` must not be held.
pub fn send_to_thread(thread: &Arc<Thread>, info: SigInfo) {
    let _ = try_send_to_thread(thread, info);
}

/// Sends a signal to a process. `EAGAIN` when the receiver's user has too many signals queued. `Kernel::tasks`
/// must not be held.
pub fn try_send_to_process(kernel: &Arc<Kernel>, process: &Arc<Process>, info: SigInfo) -> Result<(), Errno> {
    send(kernel, process, None, info).map(|after| after.run(kernel))
}

/// Sends a signal to one thread; errors as [`try_send_to_process`].
pub fn try_send_to_thread(thread: &Arc<Thread>, info: SigInfo) -> Result<(), Errno> {
    let kernel = thread.kernel();
    send(kernel, thread.process(), Some(thread), info).map(|after| after.run(kernel))
}

/// Sends a signal to every member of a process group, without asking for permission. True if it had members.
/// `Kernel::tasks` must not be held.
pub fn send_to_group(kernel: &Arc<Kernel>, pgid: Pid, info: SigInfo) -> bool {
    let mut after = After::default();
    let mut any = false;
    let tasks = kernel.tasks.read();
    for node in tasks.group(pgid) {
        any = true;
        if let Ok(more) = send(kernel, &node.process, None, info) {
            after.merge(more);
        }
    }
    drop(tasks);
    after.run(kernel);
    any
}

/// The general form. `Kernel::tasks` may be held.
pub fn send(
    kernel: &Arc<Kernel>,
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
) -> Result<After, Errno> {
    let signal = info.signal;
    let action = process.actions().get(signal);
    let mut after = After::default();
    let mut state = process.signals.lock();
    if state.ended.is_some() || state.threads.is_empty() {
        return Ok(after);
    }
    if signal == Signal::KILL {
        kill(&mut state, WaitStatus::Signaled(Signal::KILL, false));
        return Ok(after);
    }
    if prepare(&mut state, signal) {
        after.continued.push(process.clone());
    }
    if is_ignored(&state, process, target, &action, signal) {
        return Ok(after);
    }
    let absorbed = match target {
        Some(thread) => thread.signals.lock().queue.absorbs(signal),
        None => state.queue.absorbs(signal),
    };
    if !absorbed {
        let charge = charge(kernel, process, &info)?;
        match target {
            Some(thread) => thread.signals.lock().queue.push(info, charge),
            None => state.queue.push(info, charge),
        }
    }
    match target {
        Some(thread) => {
            if wants(thread, signal) {
                thread.notify();
            }
        }
        None => {
            if let Some(thread) = choose(&state, process.pid(), signal) {
                thread.notify();
            }
        }
    }
    drop(state);
    process.signal_events.wake(PollEvents::IN);
    Ok(after)
}

/// Makes every thread of a process die. The first reason counts.
pub(crate) fn kill(state: &mut ProcessSignals, status: WaitStatus) {
    if state.group_exit.is_none() {
        state.group_exit = Some(status);
    }
    state.stop = StopState::Running;
    for thread in &state.threads {
        thread.dying.store(true, Ordering::SeqCst);
        thread.notify();
    }
}

/// What a stop signal and SIGCONT do to each other at the moment of sending. True if a stopped process goes on.
fn prepare(state: &mut ProcessSignals, signal: Signal) -> bool {
    if SigSet::STOPS.has(signal) {
        discard_everywhere(state, SigSet::from_iter([Signal::CONT]));
        return false;
    }
    if signal != Signal::CONT {
        return false;
    }
    discard_everywhere(state, SigSet::STOPS);
    let was = std::mem::take(&mut state.stop);
    state.report_stop = None;
    if was != StopState::Running {
        state.stopped = 0;
        state.stop_epoch += 1;
        for thread in &state.threads {
            thread.notify();
        }
    }
    let continued = matches!(was, StopState::Stopped(_));
    state.report_continue |= continued;
    continued
}

pub(crate) fn discard_everywhere(state: &mut ProcessSignals, signals: SigSet) {
    state.queue.discard(signals);
    for thread in &state.threads {
        thread.signals.lock().queue.discard(signals);
    }
}

/// True if a signal is dropped at once: it would do nothing, and nobody blocks it to take it later.
fn is_ignored(
    state: &ProcessSignals,
    process: &Process,
    target: Option<&Arc<Thread>>,
    action: &Action,
    signal: Signal,
) -> bool {
    if !action.ignores(signal) {
        return false;
    }
    let leader = || {
        state
            .threads
            .iter()
            .find(|thread| thread.tid() == process.pid())
            .or(state.threads.first())
    };
    match target.or_else(leader) {
        Some(thread) => {
            let signals = thread.signals.lock();
            !signals.mask.has(signal) && !signals.waiting.has(signal)
        }
        None => true,
    }
}

/// Counts a queued signal against the limit of the receiver's user. Only a signal with information that would be
/// lost is refused; one of the kernel or of kill(2) is queued in any case.
fn charge(kernel: &Kernel, process: &Process, info: &SigInfo) -> Result<Option<Charge>, Errno> {
    let limit = process.limits.read().get(Resource::SIGPENDING).current;
    let counter = kernel.pending_signals(process.real_uid.load(Ordering::Relaxed));
    match Charge::new(&counter, limit, &kernel.all_pending_signals) {
        Some(charge) => Ok(Some(charge)),
        None if info.signal.is_realtime() && info.from_user() && info.code != SigInfo::SI_USER => Err(Errno::EAGAIN),
        // A standard signal is pending once at most; the queue stays bounded without the limit.
        None if !info.signal.is_realtime() => Ok(None),
        None => Err(Errno::EAGAIN),
    }
}

fn wants(thread: &Thread, signal: Signal) -> bool {
    !thread.killed() && !thread.signals.lock().mask.has(signal)
}

/// The thread that takes a signal of the process: the leader if it can, else the first that does not block it.
fn choose(state: &ProcessSignals, pid: Pid, signal: Signal) -> Option<&Arc<Thread>> {
    let able = |thread: &&Arc<Thread>| wants(thread, signal);
    let leader = state.threads.iter().find(|thread| thread.tid() == pid).filter(able);
    leader.or_else(|| state.threads.iter().find(able))
}

/// A signal that the thread itself caused and cannot escape: if it is blocked or ignored, the default action
/// comes back and it is unblocked.
pub fn force(thread: &Arc<Thread>, info: SigInfo) {
    let process = thread.process();
    let signal = info.signal;
    let actions = process.actions();
    let state = process.signals.lock();
    let mut signals = thread.signals.lock();
    let action = actions.get(signal);
    if signals.mask.has(signal) || action.disposition(signal) == Disposition::Ignore {
        actions.set(signal, Action::default());
        signals.mask.remove(signal);
    }
    signals.queue.push(info, None);
    drop(signals);
    drop(state);
    thread.work.store(true, Ordering::SeqCst);
}

/// The thread dies of `signal` at the next look, whatever its action is (a broken signal frame).
pub fn force_fatal(thread: &Arc<Thread>, signal: Signal) {
    thread.process().actions().set(signal, Action::default());
    force(thread, SigInfo::kernel(signal));
}

impl Thread {
    /// Replaces the mask of blocked signals; SIGKILL and SIGSTOP stay unblocked.
    pub fn set_signal_mask(&self, mask: SigSet) {
        let mask = mask.without(SigSet::UNBLOCKABLE);
        let state = self.process().signals.lock();
        let mut signals = self.signals.lock();
        let blocked = mask.without(signals.mask);
        signals.mask = mask;
        let pending = signals.queue.set().union(state.queue.set()).without(mask);
        drop(signals);
        if !pending.is_empty() {
            self.work.store(true, Ordering::SeqCst);
        }
        // What this thread was to take and now blocks, another one may take.
        let orphaned = state.queue.set().intersection(blocked);
        if !orphaned.is_empty() {
            for thread in state.threads.iter().filter(|thread| !std::ptr::eq(&***thread, self)) {
                if !orphaned.without(thread.signals.lock().mask).is_empty() {
                    thread.notify();
                }
            }
        }
    }

    /// Signals pending for this thread, its process's included, blocked or not.
    pub fn pending_signals(&self) -> SigSet {
        let state = self.process().signals.lock();
        let own = self.signals.lock().queue.set();
        own.union(state.queue.set())
    }

    /// Takes a pending signal of `wanted` away (rt_sigtimedwait(2), signalfd(2)).
    pub fn take_signal(&self, wanted: SigSet) -> Option<SigInfo> {
        let mut state = self.process().signals.lock();
        let own = self.signals.lock().queue.take(wanted);
        own.or_else(|| state.queue.take(wanted))
    }
}
