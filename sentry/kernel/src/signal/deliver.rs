//! What a thread does about its signals before it goes back to the guest.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use sentry_abi::Errno;
use sentry_platform::Registers;

use super::frame::{self, SS_AUTODISARM};
use super::send::{force_fatal, kill};
use super::{Action, AltStack, DefaultAction, Disposition, SaFlags, SigInfo, Signal};
use crate::task::process::StopState;
use crate::task::wait::{WaitStatus, notify_parent};
use crate::task::{RunState, Thread};

/// A system call that ended with a restart code.
#[derive(Clone, Copy, Debug)]
pub struct Restarting {
    /// The call's number.
    pub nr: u64,
    /// The code.
    pub code: Errno,
    /// The call was the stub's own: `ERESTART_RESTARTBLOCK` executes the same instruction again.
    pub local: bool,
}

/// The length of the `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

/// Looks at everything that is due: death, stops, signals. Sets the registers for a handler or for the restart of
/// an interrupted call. `Break` when the thread is to end.
pub async fn deliver(thread: &Arc<Thread>, mut restarting: Option<Restarting>) -> ControlFlow<()> {
    let mut changed: Option<Registers> = None;
    loop {
        thread.work.store(false, Ordering::SeqCst);
        if thread.killed() {
            return ControlFlow::Break(());
        }
        if wait_while_stopped(thread).await {
            // Whatever came meanwhile is looked at from the start.
            continue;
        }
        let Some((info, action)) = next_signal(thread) else {
            break;
        };
        if let Some(tracer) = thread.kernel().tracer.get() {
            tracer.signal(thread.tid(), &info);
        }
        match action.disposition(info.signal) {
            Disposition::Ignore | Disposition::Default(DefaultAction::Ignore | DefaultAction::Continue) => {}
            Disposition::Default(DefaultAction::Stop) => stop(thread, info.signal),
            // There are no core files, so that none is announced either.
            Disposition::Default(DefaultAction::Terminate | DefaultAction::Core) => {
                kill(
                    &mut thread.process().signals.lock(),
                    WaitStatus::Signaled(info.signal, false),
                );
                return ControlFlow::Break(());
            }
            Disposition::Handler => {
                let mut regs = changed.take().unwrap_or_else(|| thread.guest().registers());
                if let Some(call) = restarting.take() {
                    restart_with_handler(thread, &mut regs, &call, &action);
                }
                changed = Some(run_handler(thread, regs, &info, &action));
            }
        }
    }
    if let Some(call) = restarting {
        let mut regs = changed.take().unwrap_or_else(|| thread.guest().registers());
        restart_plain(&mut regs, &call);
        changed = Some(regs);
    }
    if let Some(regs) = changed {
        thread.guest().set_registers(&regs);
    }
    // No handler ran that would bring the mask back.
    thread.restore_mask();
    ControlFlow::Continue(())
}

/// Takes the next signal that is not blocked, with its action (which `SA_RESETHAND` resets).
fn next_signal(thread: &Arc<Thread>) -> Option<(SigInfo, Action)> {
    let process = thread.process();
    let actions = process.actions();
    let mut state = process.signals.lock();
    let mut signals = thread.signals.lock();
    let allowed = super::SigSet(!signals.mask.0);
    let info = signals.queue.take(allowed).or_else(|| state.queue.take(allowed))?;
    let action = actions.get(info.signal);
    if action.disposition(info.signal) == Disposition::Handler && action.flags.contains(SaFlags::RESETHAND) {
        actions.set(
            info.signal,
            Action {
                handler: super::action::SIG_DFL,
                ..action
            },
        );
    }
    Some((info, action))
}

/// True if a signal waits that will end the process when the thread comes to it. Waits for no lock, since the thread
/// may be deep in a call: false if one is taken.
pub(crate) fn fatal_is_pending(thread: &Thread) -> bool {
    let process = thread.process();
    let (Some(state), Some(signals)) = (process.signals.try_lock(), thread.signals.try_lock()) else {
        return false;
    };
    let mut pending = signals.queue.set().union(state.queue.set()).without(signals.mask);
    drop((state, signals));
    let actions = process.actions();
    while let Some(signal) = pending.first() {
        let disposition = actions.get(signal).disposition(signal);
        if let Disposition::Default(DefaultAction::Terminate | DefaultAction::Core) = disposition {
            return true;
        }
        pending.remove(signal);
    }
    false
}

/// Builds the frame; the registers the handler starts with. If the frame cannot be written the thread gets SIGSEGV.
fn run_handler(thread: &Arc<Thread>, regs: Registers, info: &SigInfo, action: &Action) -> Registers {
    let (mask, stack) = {
        let mut signals = thread.signals.lock();
        (signals.saved_mask.take().unwrap_or(signals.mask), signals.stack)
    };
    let context = frame::Context {
        info,
        action,
        mask,
        stack,
        fault: *thread.fault.lock(),
    };
    match frame::build(thread, &regs, &context) {
        Ok(started) => {
            if stack.flags & SS_AUTODISARM != 0 {
                thread.signals.lock().stack = AltStack::default();
            }
            let mut blocked = thread.signal_mask().union(action.mask);
            if !action.flags.contains(SaFlags::NODEFER) {
                blocked.add(info.signal);
            }
            thread.set_signal_mask(blocked);
            started
        }
        Err(_) => {
            // A handler for SIGSEGV cannot run if its own frame is what fails.
            if info.signal == Signal::SEGV {
                force_fatal(thread, Signal::SEGV);
            } else {
                super::send::force(thread, SigInfo::kernel(Signal::SEGV));
            }
            regs
        }
    }
}

fn restart_with_handler(thread: &Arc<Thread>, regs: &mut Registers, call: &Restarting, action: &Action) {
    let again = match call.code {
        Errno::ERESTARTNOINTR => true,
        Errno::ERESTARTSYS => action.flags.contains(SaFlags::RESTART),
        _ => false,
    };
    if again {
        regs.rax = call.nr;
        regs.rip = regs.rip.wrapping_sub(SYSCALL_LEN);
    } else {
        *thread.restart.lock() = None;
        regs.rax = (-i64::from(Errno::EINTR.raw())) as u64;
    }
}

fn restart_plain(regs: &mut Registers, call: &Restarting) {
    let by_block = call.code == Errno::ERESTART_RESTARTBLOCK && !call.local;
    regs.rax = if by_block {
        libc::SYS_restart_syscall as u64
    } else {
        call.nr
    };
    regs.rip = regs.rip.wrapping_sub(SYSCALL_LEN);
}

/// Starts a stop of the whole process by a signal's default action.
fn stop(thread: &Arc<Thread>, signal: Signal) {
    let process = thread.process();
    if signal != Signal::STOP {
        let tasks = thread.kernel().tasks.read();
        let orphaned = tasks
            .node(process.pid())
            .is_some_and(|node| tasks.is_orphaned(node.pgid, None));
        if orphaned {
            return;
        }
    }
    let mut state = process.signals.lock();
    // SIGCONT may have come since the signal was taken: then the stop is void. SIGKILL always wins.
    if state.group_exit.is_some() || state.queue.set().has(Signal::CONT) {
        return;
    }
    if state.stop == StopState::Running {
        state.stop = StopState::Stopping(signal);
        state.report_continue = false;
        for other in &state.threads {
            other.notify();
        }
    }
}

/// If the process is stopped, waits until it goes on or is killed; true if it waited.
async fn wait_while_stopped(thread: &Arc<Thread>) -> bool {
    let process = thread.process();
    let epoch = {
        let mut state = process.signals.lock();
        if state.stop == StopState::Running {
            return false;
        }
        state.stopped += 1;
        let (epoch, complete) = (state.stop_epoch, complete_stop(&mut state));
        drop(state);
        if let Some(signal) = complete {
            notify_parent(thread.kernel(), process, SigInfo::CLD_STOPPED, signal.number());
        }
        epoch
    };
    thread.set_state(RunState::Stopped);
    thread.guest().will_block();
    poll_fn(|_| {
        let mut state = process.signals.lock();
        let same = state.stop != StopState::Running && state.stop_epoch == epoch;
        if same && !thread.killed() {
            return Poll::Pending;
        }
        if same {
            state.stopped = state.stopped.saturating_sub(1);
        }
        Poll::Ready(())
    })
    .await;
    thread.set_state(RunState::Running);
    true
}

/// Completes a stop once every thread has noticed; the signal to report.
pub(crate) fn complete_stop(state: &mut crate::task::process::ProcessSignals) -> Option<Signal> {
    match state.stop {
        StopState::Stopping(signal) if state.stopped >= state.threads.len() => {
            state.stop = StopState::Stopped(signal);
            state.report_stop = Some(signal);
            Some(signal)
        }
        _ => None,
    }
}
