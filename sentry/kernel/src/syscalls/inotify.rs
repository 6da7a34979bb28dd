//! inotify(7).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::notify::Events;
use sentry_vfs::ops::{Access, At, Lookup};

use super::args::{file, install, int, uint};
use super::{Row, SysResult, call};
use crate::inotify::{Existing, Inotify, WatchRequest, inotify};
use crate::task::{Resource, Thread};
use crate::user::read_path;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_inotify_init, inotify_init),
    call!(libc::SYS_inotify_init1, inotify_init1, OpenFlags),
    call!(libc::SYS_inotify_add_watch, inotify_add_watch, Fd, Str, Hex),
    call!(libc::SYS_inotify_rm_watch, inotify_rm_watch, Fd, Int),
];

fn inotify_init(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    init(thread, 0)
}

fn inotify_init1(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    init(thread, int(args, 0))
}

fn init(thread: &Arc<Thread>, flags: i32) -> SysResult {
    if flags & !(libc::IN_CLOEXEC | libc::IN_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let kernel = thread.kernel();
    thread.files().check_room(thread.limit(Resource::NOFILE).current)?;
    let file = inotify(&kernel.inotify, kernel.vfs().notifier(), thread.cred().euid, flags as u32)?;
    install(thread, file, flags & libc::IN_CLOEXEC != 0)
}

fn inotify_add_watch(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const EVENTS: u32 = libc::IN_ALL_EVENTS | libc::IN_UNMOUNT | libc::IN_Q_OVERFLOW | libc::IN_IGNORED;
    const HOW: u32 = libc::IN_ONLYDIR
        | libc::IN_DONT_FOLLOW
        | libc::IN_EXCL_UNLINK
        | libc::IN_MASK_CREATE
        | libc::IN_MASK_ADD
        | libc::IN_ISDIR
        | libc::IN_ONESHOT;
    let mask = uint(args, 2);
    if mask & !(EVENTS | HOW) != 0 || mask == 0 {
        return Err(Errno::EINVAL);
    }
    let file = file(thread, int(args, 0))?;
    let has = |flag| mask & flag != 0;
    let existing = match (has(libc::IN_MASK_ADD), has(libc::IN_MASK_CREATE)) {
        (true, true) => return Err(Errno::EINVAL),
        (true, false) => Existing::Extend,
        (false, true) => Existing::Refuse,
        (false, false) => Existing::Replace,
    };
    let inotify = Inotify::of(&file)?;
    let name = read_path(thread, args.args[1])?;
    let mut lookup = Lookup::empty();
    lookup.set(Lookup::NO_FOLLOW, has(libc::IN_DONT_FOLLOW));
    lookup.set(Lookup::DIRECTORY, has(libc::IN_ONLYDIR));
    let (context, vfs) = (thread.context(), thread.kernel().vfs());
    let path = vfs.resolve(&context.caller(), At::Cwd, &name, lookup)?;
    vfs.access(&context.caller(), &path, Access::READ)?;
    let request = WatchRequest {
        mask: Events::from_bits_truncate(mask & EVENTS),
        oneshot: has(libc::IN_ONESHOT),
        excl_unlink: has(libc::IN_EXCL_UNLINK),
        existing,
    };
    let watch = inotify.watch(&path, request);
    thread.kernel().follow_reports();
    watch.map(i64::from)
}

fn inotify_rm_watch(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    Inotify::of(&file)?.unwatch(int(args, 1))?;
    thread.kernel().vfs().notifier().end_unwanted_reports();
    Ok(0)
}
