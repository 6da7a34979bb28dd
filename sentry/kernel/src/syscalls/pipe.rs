//! pipe(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;

use super::args::int;
use super::{Row, SysResult, call};
use crate::task::{Resource, Thread};
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_pipe, pipe, Ptr),
    call!(libc::SYS_pipe2, pipe2, Ptr, OpenFlags),
];

fn pipe(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_pipe(thread, UserPtr::new(args.args[0]), 0)
}

fn pipe2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_pipe(thread, UserPtr::new(args.args[0]), int(args, 1))
}

fn do_pipe(thread: &Arc<Thread>, out: UserPtr<[i32; 2]>, flags: i32) -> SysResult {
    if flags & !(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    crate::pipe::check_total()?;
    let cred = thread.cred();
    let pair = crate::pipe::pipe(flags as u32, cred.fsuid, cred.fsgid);
    let limit = thread.limit(Resource::NOFILE).current;
    let files = thread.files();
    let (reader, writer) = files.install_pair(pair, flags & libc::O_CLOEXEC != 0, limit)?;
    if let Err(errno) = out.copy_out(thread, &[reader, writer]) {
        let _ = files.close(reader);
        let _ = files.close(writer);
        return Err(errno);
    }
    Ok(0)
}
