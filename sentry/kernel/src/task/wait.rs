//! What a process's end or stop looks like, and how a parent hears of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_vfs::wait::PollEvents;

use super::pid::Node;
use super::usage::Usage;
use super::{Pid, Process};
use crate::Kernel;
use crate::config::Notice;
use crate::signal::{self, SaFlags, SigInfo, Signal};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStatus {
    /// By exit(2), with the low eight bits of its argument.
    Exited(u8),
    /// By a signal; whether it counts as a core dump.
    Signaled(Signal, bool),
}

impl WaitStatus {
    /// As wait4(2) gives it.
    pub fn to_raw(self) -> i32 {
        match self {
            WaitStatus::Exited(code) => i32::from(code) << 8,
            WaitStatus::Signaled(signal, core) => signal.number() | if core { 0x80 } else { 0 },
        }
    }

    /// `si_code` and `si_status`.
    pub fn to_child_code(self) -> (i32, i32) {
        match self {
            WaitStatus::Exited(code) => (SigInfo::CLD_EXITED, i32::from(code)),
            WaitStatus::Signaled(signal, false) => (SigInfo::CLD_KILLED, signal.number()),
            WaitStatus::Signaled(signal, true) => (SigInfo::CLD_DUMPED, signal.number()),
        }
    }
}

fn child_info(process: &Process, code: i32, status: i32) -> SigInfo {
    let usage = process.usage();
    let ticks = |nanos: u64| i64::try_from(nanos / 10_000_000).unwrap_or(i64::MAX);
    let uid = process.real_uid.load(Ordering::Relaxed);
    SigInfo::child(
        code,
        process.pid(),
        uid,
        status,
        ticks(usage.user_nanos),
        ticks(usage.system_nanos),
    )
}

/// Tells the parent that a process stopped or goes on: SIGCHLD unless it does not want it, and its waits look again.
/// `Kernel::tasks` must not be held.
pub(crate) fn notify_parent(kernel: &Arc<Kernel>, process: &Arc<Process>, code: i32, status: i32) {
    if code == SigInfo::CLD_STOPPED {
        kernel.stops.fetch_add(1, Ordering::Relaxed);
    }
    let mut tasks = kernel.tasks.write();
    tasks.note_news(process.pid());
    let parent = tasks
        .node(process.pid())
        .and_then(|node| tasks.process(node.parent))
        .cloned();
    drop(tasks);
    let Some(parent) = parent else {
        // The first process's parent is outside.
        if code == SigInfo::CLD_STOPPED {
            kernel.tell_supervisor(Notice::Stopped);
        }
        return;
    };
    let action = parent.actions().get(Signal::CHLD);
    if !action.flags.contains(SaFlags::NOCLDSTOP) {
        signal::send_to_process(kernel, &parent, child_info(process, code, status));
    }
    parent.child_events.wake(PollEvents::IN);
}

/// What a child's end means for its parent, with `Kernel::tasks` held: the signal to send, and whether the child
/// leaves no zombie.
pub(crate) fn end_notice(
    process: &Process,
    parent: &Process,
    status: WaitStatus,
    exit_signal: i32,
) -> (Option<SigInfo>, bool) {
    let Ok(signal) = Signal::from_number(i64::from(exit_signal)) else {
        return (None, false);
    };
    let action = parent.actions().get(signal);
    let is_child_signal = signal == Signal::CHLD;
    let ignored = is_child_signal && action.handler == 1;
    let reaped = is_child_signal && (ignored || action.flags.contains(SaFlags::NOCLDWAIT));
    let (code, value) = status.to_child_code();
    let info = SigInfo {
        signal,
        ..child_info(process, code, value)
    };
    ((!ignored).then_some(info), reaped)
}

/// Which children a wait is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    Any,
    /// One.
    Pid(Pid),
    /// A process group's members.
    Group(Pid),
}

/// What a wait wants to know.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct WaitOptions {
    pub exited: bool,
    pub stopped: bool,
    pub continued: bool,
    /// Leave it to be waited for again (`WNOWAIT`).
    pub keep: bool,
    /// Children whose exit signal is not SIGCHLD too (`__WALL`).
    pub all: bool,
    /// Only such children (`__WCLONE`).
    pub clone: bool,
    /// Only children that this thread made (`__WNOTHREAD`).
    pub maker: Option<Pid>,
}

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Waited {
    pub pid: Pid,
    pub uid: u32,
    pub change: Change,
    pub usage: Usage,
}

/// A change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Change {
    Ended(WaitStatus),
    Stopped(Signal),
    Continued,
}

impl Change {
    /// As wait4(2) gives it.
    pub fn to_raw(self) -> i32 {
        match self {
            Change::Ended(status) => status.to_raw(),
            Change::Stopped(signal) => signal.number() << 8 | 0x7f,
            Change::Continued => 0xffff,
        }
    }

    /// `si_code` and `si_status`.
    pub fn to_child_code(self) -> (i32, i32) {
        match self {
            Change::Ended(status) => status.to_child_code(),
            Change::Stopped(signal) => (SigInfo::CLD_STOPPED, signal.number()),
            Change::Continued => (SigInfo::CLD_CONTINUED, Signal::CONT.number()),
        }
    }
}

/// Looks once whether a child has something to report, and takes it. `Ok(None)`: not yet. `ECHILD` if no child
/// can ever match.
pub fn try_wait(
    kernel: &Kernel,
    parent: &Process,
    which: Which,
    options: WaitOptions,
) -> Result<Option<Waited>, Errno> {
    let mut tasks = kernel.tasks.write();
    let node = tasks.node(parent.pid()).ok_or(Errno::ECHILD)?;
    let fits = |child: &Node| {
        let pid = child.process.pid();
        let named = match which {
            Which::Any => true,
            Which::Pid(wanted) => wanted == pid,
            Which::Group(wanted) => wanted == child.pgid,
        };
        let is_clone = child.exit_signal != Signal::CHLD.number();
        named && options.maker.is_none_or(|maker| maker == child.maker) && (options.all || is_clone == options.clone)
    };
    let mut found = None;
    for child in node.news.iter().filter_map(|pid| tasks.node(*pid)) {
        if fits(child)
            && let Some(change) = report(&child.process, options)
        {
            found = Some((child.process.clone(), change));
            break;
        }
    }
    let any = found.is_some() || node.children.iter().filter_map(|pid| tasks.node(*pid)).any(fits);
    let Some((process, change)) = found else {
        return if any { Ok(None) } else { Err(Errno::ECHILD) };
    };
    let usage = total_usage(&process);
    if matches!(change, Change::Ended(_)) && !options.keep {
        tasks.remove_process(process.pid());
        drop(tasks);
        parent.child_usage.lock().add(&usage);
    }
    let uid = process.real_uid.load(Ordering::Relaxed);
    Ok(Some(Waited {
        pid: process.pid(),
        uid,
        change,
        usage,
    }))
}

/// A process's own usage and that of its children that it waited for.
fn total_usage(process: &Process) -> Usage {
    let mut usage = process.usage();
    usage.add(&process.child_usage.lock());
    usage
}

fn report(process: &Process, options: WaitOptions) -> Option<Change> {
    let mut state = process.signals.lock();
    if let Some(status) = state.ended {
        return options.exited.then_some(Change::Ended(status));
    }
    if options.stopped
        && let Some(signal) = state.report_stop
    {
        if !options.keep {
            state.report_stop = None;
        }
        return Some(Change::Stopped(signal));
    }
    if options.continued && state.report_continue {
        state.report_continue = options.keep;
        return Some(Change::Continued);
    }
    None
}
