//! Controlling terminals and job control (credentials(7), `tcsetpgrp(3)`): whose terminal it is, who may read it,
//! and what the end of a session or of a terminal means.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::cred::Cap;
use sentry_vfs::file::File;

use super::pty::{Job, Pty, TtyFile};
use crate::Kernel;
use crate::signal::{self, After, SigInfo, Signal};
use crate::task::pid::TasksGuard;
use crate::task::{Pid, Tasks, Thread};

/// A process's controlling terminal.
pub fn terminal_of(kernel: &Kernel, pid: Pid) -> Option<Arc<Pty>> {
    kernel.tasks.read().node(pid)?.terminal.clone()
}

fn is_terminal(node: &crate::task::pid::Node, pty: &Arc<Pty>) -> bool {
    node.terminal.as_ref().is_some_and(|own| Arc::ptr_eq(own, pty))
}

/// True if the terminal is the caller's controlling terminal.
pub fn controls(thread: &Thread, pty: &Arc<Pty>) -> bool {
    let tasks = thread.kernel().tasks.read();
    tasks.node(thread.pid()).is_some_and(|node| is_terminal(node, pty))
}

/// Stops a process that is not in the foreground of its terminal and wants to read it (`SIGTTIN`) or to change it
/// (`SIGTTOU`): `ERESTARTSYS` after the signal to its group, `EIO` where nobody could continue it.
pub fn check_change(thread: &Arc<Thread>, pty: &Arc<Pty>, signal: Signal) -> Result<(), Errno> {
    let (group, orphaned) = {
        let tasks = thread.kernel().tasks.read();
        let Some(node) = tasks.node(thread.pid()).filter(|node| is_terminal(node, pty)) else {
            return Ok(());
        };
        if pty.job().foreground.is_none_or(|foreground| foreground == node.pgid) {
            return Ok(());
        }
        (node.pgid, tasks.is_orphaned(node.pgid, None))
    };
    let deaf = thread.signal_mask().has(signal) || thread.process().actions().get(signal).ignores(signal);
    match signal {
        _ if deaf && signal != Signal::TTIN => Ok(()),
        _ if deaf || orphaned => Err(Errno::EIO),
        _ => {
            signal::send_to_group(thread.kernel(), group, SigInfo::kernel(signal));
            Err(Errno::ERESTARTSYS)
        }
    }
}

/// After an open(2): a session leader without a terminal takes this one, unless `O_NOCTTY`.
pub fn opened(thread: &Thread, file: &File, flags: i32) {
    let Some(tty) = TtyFile::of(file).filter(|tty| !tty.is_master() && file.readable()) else {
        return;
    };
    if flags & libc::O_NOCTTY != 0 {
        return;
    }
    let mut tasks = thread.kernel().tasks.write();
    let mut job = tty.pty().job.lock();
    let free = tasks
        .node(thread.pid())
        .is_some_and(|node| node.sid == thread.pid() && node.terminal.is_none());
    if free && job.session.is_none() {
        take(&mut tasks, thread.pid(), tty.pty(), &mut job);
    }
}

/// Makes the terminal the controlling one of a new session's leader.
pub fn give(tasks: &mut Tasks, pid: Pid, pty: &Arc<Pty>) {
    take(tasks, pid, pty, &mut pty.job.lock());
}

fn take(tasks: &mut Tasks, pid: Pid, pty: &Arc<Pty>, job: &mut Job) {
    let Some(node) = tasks.node_mut(pid) else { return };
    node.terminal = Some(pty.clone());
    node.former_foreground = None;
    *job = Job {
        session: Some(node.sid),
        foreground: Some(node.pgid),
    };
}

/// `TIOCSCTTY`: makes the terminal the controlling one of the caller's session. `EPERM` unless the caller leads a
/// session without one, and no other session has it (which `steal` lets the superuser take it from).
pub fn take_terminal(thread: &Thread, pty: &Arc<Pty>, readable: bool, steal: bool) -> Result<(), Errno> {
    let privileged = thread.cred().has(Cap::SYS_ADMIN);
    let mut tasks = thread.kernel().tasks.write();
    let node = tasks.node(thread.pid()).ok_or(Errno::ESRCH)?;
    let (leader, sid, has_one) = (node.sid == thread.pid(), node.sid, node.terminal.is_some());
    let mut job = pty.job.lock();
    if leader && job.session == Some(sid) {
        return Ok(());
    }
    if !leader || has_one || !(readable || privileged) {
        return Err(Errno::EPERM);
    }
    if let Some(owner) = job.session {
        if !steal || !privileged {
            return Err(Errno::EPERM);
        }
        tasks.forget_terminal(owner);
    }
    take(&mut tasks, thread.pid(), pty, &mut job);
    Ok(())
}

/// `TIOCNOTTY`: gives the controlling terminal up. A session leader's session loses it, and its foreground group gets
/// SIGHUP and SIGCONT.
pub fn give_up_terminal(thread: &Thread) {
    let kernel = thread.kernel();
    let mut after = After::default();
    let mut tasks = kernel.tasks.write();
    let Some(node) = tasks.node(thread.pid()) else {
        return;
    };
    if node.sid != thread.pid() {
        tasks.give_up_terminal(thread.pid());
        return;
    }
    let Some(pty) = node.terminal.clone() else { return };
    let job = std::mem::take(&mut *pty.job.lock());
    tasks.forget_terminal(thread.pid());
    if let Some(group) = job.foreground {
        send_to_members(kernel, &tasks, group, &[Signal::HUP, Signal::CONT], &mut after);
    }
    drop(tasks);
    after.run(kernel);
}

/// A process ends. If it leads a session, its terminal's foreground group gets SIGHUP (and SIGCONT, if the terminal
/// has gone before), and the session has no terminal any more.
pub fn leader_ends(kernel: &Arc<Kernel>, tasks: &mut Tasks, pid: Pid, after: &mut After) {
    let Some(node) = tasks.node_mut(pid).filter(|node| node.sid == pid) else {
        return;
    };
    let former = node.former_foreground.take();
    match node.terminal.clone() {
        Some(pty) => {
            let job = std::mem::take(&mut *pty.job.lock());
            tasks.forget_terminal(pid);
            if let Some(group) = job.foreground {
                send_to_members(kernel, tasks, group, &[Signal::HUP], after);
            }
        }
        None => {
            if let Some(group) = former {
                send_to_members(kernel, tasks, group, &[Signal::HUP, Signal::CONT], after);
            }
        }
    }
}

/// Signals to every member of a group.
pub fn send_to_members(kernel: &Arc<Kernel>, tasks: &Tasks, pgid: Pid, signals: &[Signal], after: &mut After) {
    for node in tasks.group(pgid) {
        for signal in signals {
            if let Ok(more) = signal::send(kernel, &node.process, None, SigInfo::kernel(*signal)) {
                after.merge(more);
            }
        }
    }
}

/// A terminal was hung up: its session loses it, and the session's leader gets SIGHUP and SIGCONT.
///
/// A master may be closed wherever a file is dropped, with `Kernel::tasks` held too: then a task does it soon.
pub fn hang_up(kernel: &Arc<Kernel>, pty: &Arc<Pty>) {
    if pty.job().session.is_none() {
        return;
    }
    match kernel.tasks.try_write() {
        Some(tasks) => lose_terminal(kernel, pty, tasks),
        None => {
            let (weak, pty) = (Arc::downgrade(kernel), pty.clone());
            kernel.executor().spawn(0, async move {
                if let Some(kernel) = weak.upgrade() {
                    let tasks = kernel.tasks.write();
                    lose_terminal(&kernel, &pty, tasks);
                }
            });
        }
    }
}

fn lose_terminal(kernel: &Arc<Kernel>, pty: &Arc<Pty>, mut tasks: TasksGuard<'_>) {
    let mut after = After::default();
    let job = std::mem::take(&mut *pty.job.lock());
    let Some(sid) = job.session else { return };
    tasks.forget_terminal(sid);
    if let Some(leader) = tasks.node_mut(sid).filter(|node| node.sid == sid) {
        leader.former_foreground = job.foreground;
        let process = leader.process.clone();
        for signal in [Signal::HUP, Signal::CONT] {
            if let Ok(more) = signal::send(kernel, &process, None, SigInfo::kernel(signal)) {
                after.merge(more);
            }
        }
    }
    drop(tasks);
    after.run(kernel);
}

/// `TIOCGPGRP` at a slave is for those whose controlling terminal it is; the master may always ask.
fn check_own(thread: &Thread, tty: &TtyFile) -> Result<(), Errno> {
    if tty.is_master() || controls(thread, tty.pty()) {
        Ok(())
    } else {
        Err(Errno::ENOTTY)
    }
}

/// `TIOCGPGRP`: the foreground group; 0 if there is none.
pub fn foreground(thread: &Thread, tty: &TtyFile) -> Result<Pid, Errno> {
    check_own(thread, tty)?;
    Ok(tty.pty().job().foreground.unwrap_or(0))
}

/// `TIOCGSID`: the session that the terminal controls.
pub fn session(thread: &Thread, tty: &TtyFile) -> Result<Pid, Errno> {
    check_own(thread, tty)?;
    tty.pty().job().session.ok_or(Errno::ENOTTY)
}

/// `TIOCSPGRP`: puts a group of the caller's session in the foreground. `group` is read once it is wanted.
pub fn set_foreground(
    thread: &Arc<Thread>,
    pty: &Arc<Pty>,
    group: impl FnOnce() -> Result<Pid, Errno>,
) -> Result<(), Errno> {
    check_change(thread, pty, Signal::TTOU).map_err(|errno| match errno {
        Errno::EIO => Errno::ENOTTY,
        other => other,
    })?;
    let group = group()?;
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    let tasks = thread.kernel().tasks.read();
    let mut job = pty.job.lock();
    let node = tasks.node(thread.pid()).ok_or(Errno::ESRCH)?;
    if !is_terminal(node, pty) || job.session != Some(node.sid) {
        return Err(Errno::ENOTTY);
    }
    // Any process's number does, as long as it is of this session.
    let named = tasks.group(group).next().or_else(|| tasks.node(group));
    if named.ok_or(Errno::ESRCH)?.sid != node.sid {
        return Err(Errno::EPERM);
    }
    job.foreground = Some(group);
    Ok(())
}
