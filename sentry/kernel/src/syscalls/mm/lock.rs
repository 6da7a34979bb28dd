//! Locked memory: counted and limited as on Linux. Whether pages stay in memory is the host's decision.

use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;

use crate::mm::{Backing, Region};
use crate::syscalls::SysResult;
use crate::task::{Resource, Thread};

/// A range widened to whole pages: its start and length.
fn pages(addr: u64, len: u64) -> Result<(u64, u64), Errno> {
    let start = addr & !(PAGE_SIZE - 1);
    let end = addr
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE))
        .ok_or(Errno::EINVAL)?;
    Ok((start, end - start))
}

fn check_limit(thread: &Thread, more: u64) -> Result<(), Errno> {
    if thread.cred().has(Cap::IPC_LOCK) {
        return Ok(());
    }
    match thread.limit(Resource::MEMLOCK).current {
        0 => Err(Errno::EPERM),
        limit if thread.mm().locked().saturating_add(more) > limit => Err(Errno::ENOMEM),
        _ => Ok(()),
    }
}

pub(super) fn mlock(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    lock(thread, args)?;
    // What cannot be brought to memory stays locked all the same: nothing to see, or beyond a file's end.
    let (start, len) = pages(args.args[0], args.args[1])?;
    let regions = thread.mm().overlapping(start, len);
    let absent = |region: &Region| {
        let end = region.end.min(start.saturating_add(len)) - region.start;
        let short = match &region.backing {
            Backing::File(file) if crate::io::kind_of(file) == libc::S_IFREG => {
                let size = file.ops().size(file).unwrap_or(u64::MAX);
                region.offset.saturating_add(end) > size.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX)
            }
            _ => false,
        };
        short || region.prot == libc::PROT_NONE
    };
    if regions.iter().any(absent) {
        return Err(Errno::ENOMEM);
    }
    Ok(0)
}

fn lock(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (start, len) = pages(args.args[0], args.args[1])?;
    let already: u64 = thread
        .mm()
        .overlapping(start, len)
        .iter()
        .filter(|r| r.locked)
        .map(|r| r.len())
        .sum();
    check_limit(thread, len.saturating_sub(already))?;
    if thread.mm().set_locked(start, len, true) {
        Ok(0)
    } else {
        Err(Errno::ENOMEM)
    }
}

pub(super) fn mlock2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const MLOCK_ONFAULT: i32 = 1;
    if args.args[2] as i32 & !MLOCK_ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    if args.args[2] as i32 == MLOCK_ONFAULT {
        return lock(thread, args);
    }
    mlock(thread, args)
}

pub(super) fn munlock(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (start, len) = pages(args.args[0], args.args[1])?;
    if thread.mm().set_locked(start, len, false) {
        Ok(0)
    } else {
        Err(Errno::ENOMEM)
    }
}

pub(super) fn mlockall(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = args.args[0] as i32;
    let (current, future, on_fault) = (libc::MCL_CURRENT, libc::MCL_FUTURE, libc::MCL_ONFAULT);
    if flags & !(current | future | on_fault) != 0 || flags & (current | future) == 0 {
        return Err(Errno::EINVAL);
    }
    let now = flags & current != 0;
    let more = if now {
        thread.mm().total().0.saturating_sub(thread.mm().locked())
    } else {
        0
    };
    check_limit(thread, more)?;
    thread
        .mm()
        .set_locked_all(now.then_some(true), Some(flags & future != 0));
    Ok(0)
}

pub(super) fn munlockall(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    thread.mm().set_locked_all(Some(false), Some(false));
    Ok(0)
}
