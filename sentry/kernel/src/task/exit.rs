//! The end of threads and processes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_platform::GuestThread;
use sentry_vfs::wait::PollEvents;

use super::dead;
use super::robust;
use super::wait::{WaitStatus, end_notice};
use super::{Pid, Process, RunState, Thread};
use crate::Kernel;
use crate::events::Event;
use crate::fd::FdTable;
use crate::signal::{self, After, SigInfo, Signal};
use crate::time::{Interval, IntervalKind, cpu};
use crate::tty::job;

/// exit(2): ends the calling thread at the end of its call.
pub(crate) fn exit_thread(thread: &Arc<Thread>, code: u8) {
    thread.exit_code.store(code, Ordering::Relaxed);
    thread.dying.store(true, Ordering::SeqCst);
    thread.work.store(true, Ordering::SeqCst);
}

/// exit_group(2), and the end of the whole process for any other reason.
pub(crate) fn exit_process(process: &Process, status: WaitStatus) {
    signal::kill(&mut process.signals.lock(), status);
}

/// The last thing a thread's task does.
pub(super) async fn end_thread(thread: &Arc<Thread>) {
    let process = thread.process();
    // Nothing more is to interrupt it: what follows talks to the guest.
    thread.dying.store(true, Ordering::SeqCst);
    let lent = thread.lent.load(Ordering::SeqCst);
    if !lent && !thread.gone.load(Ordering::SeqCst) {
        robust::walk_list(thread).await;
        // Nobody is there to read it unless the memory is shared.
        if process.thread_count() > 1 || thread.vfork.lock().is_some() {
            robust::clear_tid(thread).await;
        }
    }

    let last = {
        let mut state = process.signals.lock();
        state.threads.retain(|other| !Arc::ptr_eq(other, thread));
        let last = state.threads.is_empty();
        // A stop that waited for this thread only is complete now.
        let stopped = if last { None } else { signal::complete_stop(&mut state) };
        // So is an execve(2) that waited for it.
        if state.exec.is_some() {
            for other in &state.threads {
                other.notify_task();
            }
        }
        drop(state);
        if let Some(signal) = stopped {
            super::wait::notify_parent(thread.kernel(), process, SigInfo::CLD_STOPPED, signal.number());
        }
        last
    };

    if let Some(tracer) = thread.kernel().tracer.get() {
        let status = process.signals.lock().group_exit;
        let text = match status {
            Some(status) => format!("ends: {status:?}"),
            None => format!("ends: exit {}", thread.exit_code.load(Ordering::Relaxed)),
        };
        tracer.ended(thread.tid(), &text);
    }
    thread.set_state(RunState::Zombie);
    if last {
        cpu::retire_space(process);
        drop(process.set_mm(dead::memory()));
    }
    if !last && thread.tid() == process.pid() && !thread.borrows.load(Ordering::SeqCst) {
        *process.first_guest.lock() = Some(thread.set_guest(dead::guest()));
    } else {
        leave_guest_to(thread, dead::guest());
    }
    drop(thread.set_files(FdTable::new()));
    *thread.restart.lock() = None;
    if last {
        end_process(thread);
    } else if thread.tid() != process.pid() {
        thread.kernel().tasks.write().remove_thread(thread.tid());
    }
    *thread.waker.lock() = None;
}

/// Gives the host thread back to the vfork parent, or ends it, and puts another guest side in its place.
pub(super) fn leave_guest_to(thread: &Arc<Thread>, new: Arc<dyn GuestThread>) {
    let guest = thread.set_guest(new);
    let link = thread.vfork.lock().take();
    let borrows = thread.borrows.load(Ordering::SeqCst);
    // A vfork(2) without shared memory has a host thread of its own.
    let returned = link.is_some_and(|link| link.finish()) && borrows;
    // A vfork parent that died while its child lives leaves the host thread to the child.
    let lent = thread.lent.load(Ordering::SeqCst);
    if !returned && !lent && !thread.gone.load(Ordering::SeqCst) {
        guest.exit();
    }
}

/// Turns a process without threads into a zombie and tells everybody.
fn end_process(last: &Arc<Thread>) {
    let kernel = last.kernel();
    let process = last.process();
    drop(process.first_guest.lock().take());
    process.timers.posix.clear(kernel);
    for kind in [IntervalKind::Real, IntervalKind::Virtual, IntervalKind::Profile] {
        process.timers.intervals.set(kernel, process, kind, Interval::default());
    }
    let status = {
        // Without exit_group(2) the last thread's code counts.
        let by_exit = WaitStatus::Exited(last.exit_code.load(Ordering::Relaxed));
        process.signals.lock().group_exit.unwrap_or(by_exit)
    };

    let cpu = cpu::process_nanos(process);
    kernel.count_cpu(cpu);
    kernel.tell(|| Event::Exit {
        pid: process.pid(),
        code: match status {
            WaitStatus::Exited(code) => Some(code),
            WaitStatus::Signaled(..) => None,
        },
        signal: match status {
            WaitStatus::Exited(_) => None,
            WaitStatus::Signaled(signal, _) => Some(signal.number()),
        },
        cpu_ms: cpu / 1_000_000,
    });
    let mut after = After::default();
    let mut wake: Vec<Arc<Process>> = Vec::new();
    let mut tasks = kernel.tasks.write();
    let pid = process.pid();
    job::leader_ends(kernel, &mut tasks, pid, &mut after);
    let reaper = find_reaper(&tasks, pid);
    let groups = groups_around(&tasks, pid);
    let children = tasks.reparent(pid, reaper);
    hang_up_orphans(kernel, &tasks, pid, groups, &mut after);
    for child in children {
        adopt(kernel, &mut tasks, child, reaper, &mut wake, &mut after);
    }
    process.signals.lock().ended = Some(status);
    tasks.note_news(pid);
    let (parent, exit_signal) = match tasks.node(pid) {
        Some(node) => (tasks.process(node.parent).cloned(), node.exit_signal),
        None => (None, 0),
    };
    if last.tid() != pid {
        tasks.remove_thread(last.tid());
    }
    if let Some(parent) = parent {
        announce(kernel, &mut tasks, process, &parent, status, exit_signal, &mut after);
        wake.push(parent);
    }
    drop(tasks);

    after.run(kernel);
    for process in wake {
        process.child_events.wake(PollEvents::IN);
    }
    process.exit_events.wake_all();
    if pid == 1 {
        *kernel.init_exit.lock() = Some(status);
        kernel.executor().stop();
    }
}

/// Sends a parent the end of its child; removes the child at once if the parent does not want to know.
fn announce(
    kernel: &Arc<Kernel>,
    tasks: &mut super::Tasks,
    child: &Arc<Process>,
    parent: &Arc<Process>,
    status: WaitStatus,
    exit_signal: i32,
    after: &mut After,
) {
    let (info, reaped) = end_notice(child, parent, status, exit_signal);
    if reaped {
        tasks.remove_process(child.pid());
    }
    if let Some(info) = info
        && let Ok(more) = signal::send(kernel, parent, None, info)
    {
        after.merge(more);
    }
}

/// The nearest living ancestor that adopts orphans, else the first process.
fn find_reaper(tasks: &super::Tasks, pid: Pid) -> Pid {
    let mut at = pid;
    while let Some(node) = tasks.node(at) {
        at = node.parent;
        let living = tasks
            .process(at)
            .is_some_and(|p| p.subreaper.load(Ordering::Relaxed) && !p.is_zombie());
        if living {
            return at;
        }
    }
    1
}

/// A child of a dead process: its death signal, and its zombie goes to the new parent.
fn adopt(
    kernel: &Arc<Kernel>,
    tasks: &mut super::Tasks,
    child: Pid,
    reaper: Pid,
    wake: &mut Vec<Arc<Process>>,
    after: &mut After,
) {
    let Some(process) = tasks.process(child).cloned() else {
        return;
    };
    if let Some(node) = tasks.node_mut(child) {
        node.exit_signal = Signal::CHLD.number();
    }
    for thread in process.threads() {
        let number = thread.parent_death_signal.load(Ordering::Relaxed);
        if let Ok(signal) = Signal::from_number(i64::from(number))
            && let Ok(more) = signal::send(
                kernel,
                &process,
                Some(&thread),
                SigInfo::user(signal, SigInfo::SI_USER, 0, 0),
            )
        {
            after.merge(more);
        }
    }
    let ended = process.signals.lock().ended;
    if let Some(status) = ended
        && let Some(parent) = tasks.process(reaper).cloned()
    {
        announce(kernel, tasks, &process, &parent, status, Signal::CHLD.number(), after);
        wake.push(parent);
    }
}

/// The groups of a process and of its children in the same session.
fn groups_around(tasks: &super::Tasks, pid: Pid) -> Vec<Pid> {
    let Some(node) = tasks.node(pid) else { return Vec::new() };
    let mut groups = vec![node.pgid];
    for child in node.children.iter().filter_map(|child| tasks.node(*child)) {
        if child.sid == node.sid && !groups.contains(&child.pgid) {
            groups.push(child.pgid);
        }
    }
    groups
}

/// Groups that have lost their last link to the rest of the session, with a stopped member, are told (setpgid(2)).
fn hang_up_orphans(kernel: &Arc<Kernel>, tasks: &super::Tasks, pid: Pid, groups: Vec<Pid>, after: &mut After) {
    if kernel.stops.load(Ordering::Relaxed) == 0 {
        // Nobody has ever been stopped.
        return;
    }
    for pgid in groups {
        let stopped = tasks
            .group(pgid)
            .any(|member| member.process.pid() != pid && member.process.is_stopped());
        if stopped && tasks.is_orphaned(pgid, Some(pid)) {
            job::send_to_members(kernel, tasks, pgid, &[Signal::HUP, Signal::CONT], after);
        }
    }
}
