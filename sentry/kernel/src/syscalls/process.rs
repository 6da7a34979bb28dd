//! Process ids, groups and sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;

use super::{Row, SysResult, call};
use crate::pidfd::{self, PidFd};
use crate::task::{Pid, Tasks, Thread};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_getpid, getpid),
    call!(libc::SYS_gettid, gettid),
    call!(libc::SYS_getppid, getppid),
    call!(libc::SYS_getpgid, getpgid, Int),
    call!(libc::SYS_getpgrp, getpgrp),
    call!(libc::SYS_getsid, getsid, Int),
    call!(libc::SYS_setpgid, setpgid, Int, Int),
    call!(libc::SYS_setsid, setsid),
    call!(libc::SYS_set_tid_address, set_tid_address, Ptr),
    call!(libc::SYS_pidfd_open, pidfd_open, Int, Hex),
    call!(libc::SYS_pidfd_getfd, pidfd_getfd, Fd, Fd, Hex),
];

fn getpid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.pid()))
}

fn gettid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.tid()))
}

fn getppid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    let tasks = thread.kernel().tasks.read();
    Ok(tasks.node(thread.pid()).map_or(0, |node| i64::from(node.parent)))
}

/// The process that a call names: 0 is the caller's own. A thread's id means its process.
fn named(tasks: &Tasks, thread: &Thread, pid: i32) -> Result<Pid, Errno> {
    match pid {
        0 => Ok(thread.pid()),
        pid => match tasks.node(pid) {
            Some(node) => Ok(node.process.pid()),
            None => tasks.thread(pid).map(|thread| thread.pid()).ok_or(Errno::ESRCH),
        },
    }
}

fn getpgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let tasks = thread.kernel().tasks.read();
    let pid = named(&tasks, thread, args.args[0] as i32)?;
    tasks.node(pid).map(|node| i64::from(node.pgid)).ok_or(Errno::ESRCH)
}

fn getpgrp(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    let tasks = thread.kernel().tasks.read();
    tasks.node(thread.pid()).map(|node| i64::from(node.pgid)).ok_or(Errno::ESRCH)
}

fn getsid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let tasks = thread.kernel().tasks.read();
    let pid = named(&tasks, thread, args.args[0] as i32)?;
    tasks.node(pid).map(|node| i64::from(node.sid)).ok_or(Errno::ESRCH)
}

fn setpgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, pgid, ..] = args.args;
    let own = thread.pid();
    let pid = if pid as i32 == 0 { own } else { pid as i32 };
    let pgid = if pgid as i32 == 0 { pid } else { pgid as i32 };
    if pgid < 0 {
        return Err(Errno::EINVAL);
    }
    let mut tasks = thread.kernel().tasks.write();
    let session = tasks.node(own).ok_or(Errno::ESRCH)?.sid;
    let target = match tasks.node(pid) {
        Some(node) => node,
        // A thread that is not a leader has no group of its own.
        None if tasks.thread(pid).is_some() => return Err(Errno::EINVAL),
        None => return Err(Errno::ESRCH),
    };
    if pid != own {
        if target.parent != own {
            return Err(Errno::ESRCH);
        }
        if target.sid != session {
            return Err(Errno::EPERM);
        }
        if target.execed {
            return Err(Errno::EACCES);
        }
    }
    if target.sid == pid {
        return Err(Errno::EPERM);
    }
    if pgid != pid && !tasks.group(pgid).any(|member| member.sid == session) {
        return Err(Errno::EPERM);
    }
    tasks.set_group(pid, pgid);
    Ok(0)
}

fn setsid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    let pid = thread.pid();
    let mut tasks = thread.kernel().tasks.write();
    let leads = tasks.node(pid).is_some_and(|node| node.sid == pid);
    if leads || tasks.has_group(pid) {
        return Err(Errno::EPERM);
    }
    tasks.new_session(pid);
    Ok(i64::from(pid))
}

fn set_tid_address(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    thread.clear_child_tid.store(args.args[0], Ordering::Relaxed);
    Ok(i64::from(thread.tid()))
}

fn pidfd_open(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (pid, flags) = (args.args[0] as i32, args.args[1] as u32 as i32);
    if pid <= 0 || flags & !libc::O_NONBLOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let process = {
        let tasks = thread.kernel().tasks.read();
        match tasks.process(pid) {
            Some(process) => process.clone(),
            None if tasks.thread(pid).is_some() => return Err(Errno::EINVAL),
            None => return Err(Errno::ESRCH),
        }
    };
    Ok(i64::from(pidfd::install(thread, &process, flags & libc::O_NONBLOCK != 0)?))
}

fn pidfd_getfd(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [fd, target_fd, flags, ..] = args.args;
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = PidFd::process_of(&*thread.files().get(fd as i32)?)?;
    let target = process.any_thread().ok_or(Errno::ESRCH)?;
    if !crate::procfs::may_inspect(thread, &process) {
        return Err(Errno::EPERM);
    }
    let file = target.files().get(target_fd as i32)?;
    let limit = thread.limit(crate::task::Resource::NOFILE).current;
    Ok(i64::from(thread.files().install(file, true, 0, limit)?))
}
