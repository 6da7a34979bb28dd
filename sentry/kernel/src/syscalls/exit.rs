//! exit(2) and exit_group(2).

use std::sync::Arc;

use sentry_platform::SyscallArgs;

use super::{Row, SysResult, call};
use crate::task::wait::WaitStatus;
use crate::task::{Thread, exit as task};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_exit, exit, Int),
    call!(libc::SYS_exit_group, exit_group, Int),
];

fn exit(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    task::exit_thread(thread, args.args[0] as u8);
    Ok(0)
}

fn exit_group(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    task::exit_process(thread.process(), WaitStatus::Exited(args.args[0] as u8));
    Ok(0)
}
