//! wait4(2) and waitid(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::wait::PollEvents;
use zerocopy::IntoBytes;

use super::{Row, Sys, SysResult, call};
use crate::pidfd::PidFd;
use crate::signal::SigInfo;
use crate::task::wait::{WaitOptions, Waited, Which, try_wait};
use crate::task::{Thread, Wake, block_on};
use crate::user;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_wait4, wait4, Int, Ptr, Hex, Ptr),
    call!(libc::SYS_waitid, waitid, Int, Int, Ptr, Hex, Ptr),
];

/// `__WNOTHREAD`, `__WALL`, `__WCLONE`.
const WNOTHREAD: i32 = 0x2000_0000;
const WALL: i32 = 0x4000_0000;
const WCLONE: i32 = 0x8000_0000_u32 as i32;

/// Waits until `which` has something to report. `finish` puts it into the guest's memory.
fn wait(
    thread: &Arc<Thread>,
    which: Which,
    options: WaitOptions,
    nohang: bool,
    finish: impl FnOnce(&Arc<Thread>, Option<Waited>) -> SysResult + Send + 'static,
) -> Sys {
    match try_wait(thread.kernel(), thread.process(), which, options) {
        Err(errno) => return errno.into(),
        Ok(Some(waited)) => return finish(thread, Some(waited)).into(),
        Ok(None) if nohang => return finish(thread, None).into(),
        Ok(None) => {}
    }
    let thread = thread.clone();
    Sys::wait(async move {
        let process = thread.process().clone();
        let queues = [(&process.child_events, PollEvents::IN)];
        let look = || try_wait(thread.kernel(), thread.process(), which, options).transpose();
        match block_on(&thread, None, &queues, look).await {
            Ok(waited) => finish(&thread, Some(waited?)),
            Err(Wake::Signal | Wake::Timeout) => Err(Errno::ERESTARTSYS),
        }
    })
}

fn wait4(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [pid, status, flags, rusage, ..] = args.args;
    let (pid, flags) = (pid as i32, flags as i32);
    let known = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | WNOTHREAD | WALL | WCLONE;
    if flags & !known != 0 {
        return Errno::EINVAL.into();
    }
    let which = match pid {
        -1 => Which::Any,
        0 => Which::Group(own_group(thread)),
        i32::MIN => return Errno::ESRCH.into(),
        pid if pid < 0 => Which::Group(-pid),
        pid => Which::Pid(pid),
    };
    let options = WaitOptions {
        exited: true,
        stopped: flags & libc::WUNTRACED != 0,
        continued: flags & libc::WCONTINUED != 0,
        keep: false,
        all: flags & WALL != 0,
        clone: flags & WCLONE != 0,
        maker: (flags & WNOTHREAD != 0).then(|| thread.tid()),
    };
    wait(thread, which, options, flags & libc::WNOHANG != 0, move |thread, waited| {
        let Some(waited) = waited else { return Ok(0) };
        if status != 0 {
            user::write_bytes(thread, status, &waited.change.to_raw().to_ne_bytes())?;
        }
        if rusage != 0 {
            user::write_bytes(thread, rusage, waited.usage.to_rusage().as_bytes())?;
        }
        Ok(i64::from(waited.pid))
    })
}

fn own_group(thread: &Arc<Thread>) -> i32 {
    thread.kernel().tasks.read().node(thread.pid()).map_or(0, |node| node.pgid)
}

fn waitid(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [kind, id, info, flags, rusage, _] = args.args;
    let (kind, id, flags) = (kind as u32, id as i32, flags as i32);
    let states = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    let known = states | libc::WNOHANG | libc::WNOWAIT | WNOTHREAD | WALL | WCLONE;
    if flags & !known != 0 || flags & states == 0 {
        return Errno::EINVAL.into();
    }
    let mut nohang = flags & libc::WNOHANG != 0;
    let mut pidfd_nonblocking = false;
    let which = match kind {
        libc::P_ALL => Which::Any,
        libc::P_PID if id > 0 => Which::Pid(id),
        libc::P_PGID if id > 0 => Which::Group(id),
        libc::P_PGID if id == 0 => Which::Group(own_group(thread)),
        libc::P_PIDFD if id >= 0 => {
            let file = match thread.files().get(id) {
                Ok(file) => file,
                Err(errno) => return errno.into(),
            };
            pidfd_nonblocking = file.nonblocking();
            match PidFd::process_of(&file) {
                Ok(process) => Which::Pid(process.pid()),
                Err(errno) => return errno.into(),
            }
        }
        _ => return Errno::EINVAL.into(),
    };
    let options = WaitOptions {
        exited: flags & libc::WEXITED != 0,
        stopped: flags & libc::WSTOPPED != 0,
        continued: flags & libc::WCONTINUED != 0,
        keep: flags & libc::WNOWAIT != 0,
        all: flags & WALL != 0,
        clone: flags & WCLONE != 0,
        maker: (flags & WNOTHREAD != 0).then(|| thread.tid()),
    };
    let explicit = nohang;
    nohang |= pidfd_nonblocking;
    wait(thread, which, options, nohang, move |thread, waited| {
        if waited.is_none() && !explicit {
            return Err(Errno::EAGAIN);
        }
        if rusage != 0
            && let Some(waited) = &waited
        {
            user::write_bytes(thread, rusage, waited.usage.to_rusage().as_bytes())?;
        }
        if info != 0 {
            let bytes = match &waited {
                Some(waited) => {
                    let (code, status) = waited.change.to_child_code();
                    SigInfo::child(code, waited.pid, waited.uid, status, 0, 0).to_bytes()
                }
                None => [0; 128],
            };
            // Only signo, errno, code, pid, uid and status are written.
            user::write_bytes(thread, info, &bytes[..28])?;
        }
        Ok(0)
    })
}
