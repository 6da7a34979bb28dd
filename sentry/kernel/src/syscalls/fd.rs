//! dup(2), close(2) and eventfd(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;

use super::args::{any_file, install, int, uint};
use super::{Row, SysResult, call};
use crate::task::{Resource, Thread};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_close, close, Fd),
    call!(libc::SYS_close_range, close_range, Int, Int, Hex),
    call!(libc::SYS_dup, dup, Fd),
    call!(libc::SYS_dup2, dup2, Fd, Fd),
    call!(libc::SYS_dup3, dup3, Fd, Fd, OpenFlags),
    call!(libc::SYS_eventfd, eventfd, Int),
    call!(libc::SYS_eventfd2, eventfd2, Int, OpenFlags),
];

fn close(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    drop(thread.files().close(int(args, 0))?);
    if !thread.kernel().vfs().notifier().is_idle() {
        // A mapping that the stub has taken away by itself keeps its file open until the sentry hears of it.
        thread.mm().settle();
    }
    Ok(0)
}

fn close_range(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    let (first, last, flags) = (uint(args, 0), uint(args, 1), uint(args, 2));
    if flags & !(UNSHARE | CLOEXEC) != 0 || first > last {
        return Err(Errno::EINVAL);
    }
    if flags & UNSHARE != 0 {
        let copy = thread.files().fork();
        let _old = thread.set_files(copy);
    }
    if flags & CLOEXEC != 0 {
        thread.files().cloexec_range(first, last);
    } else {
        drop(thread.files().close_range(first, last));
    }
    Ok(0)
}

fn dup(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    install(thread, any_file(thread, int(args, 0))?, false)
}

fn dup2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (old, new) = (int(args, 0), int(args, 1));
    if old == new {
        return any_file(thread, old).map(|_| i64::from(new));
    }
    do_dup(thread, old, new, false)
}

fn dup3(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (old, new, flags) = (int(args, 0), int(args, 1), int(args, 2));
    if flags & !libc::O_CLOEXEC != 0 || old == new {
        return Err(Errno::EINVAL);
    }
    do_dup(thread, old, new, flags & libc::O_CLOEXEC != 0)
}

fn do_dup(thread: &Thread, old: i32, new: i32, cloexec: bool) -> SysResult {
    let limit = thread.limit(Resource::NOFILE).current;
    if u64::try_from(new).map_or(true, |new| new >= limit) {
        return Err(Errno::EBADF);
    }
    let files = thread.files();
    let file = files.get(old)?;
    let replaced = files.install_at(new, file, cloexec, limit)?;
    drop(replaced);
    Ok(new.into())
}

fn eventfd(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_eventfd(thread, uint(args, 0), 0)
}

fn eventfd2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_eventfd(thread, uint(args, 0), int(args, 1))
}

fn do_eventfd(thread: &Thread, initial: u32, flags: i32) -> SysResult {
    if flags & !(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = crate::eventfd::eventfd(initial, flags & libc::EFD_SEMAPHORE != 0, flags as u32);
    install(thread, file, flags & libc::EFD_CLOEXEC != 0)
}
