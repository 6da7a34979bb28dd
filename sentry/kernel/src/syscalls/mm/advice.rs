//! madvise, msync, mincore, membarrier.

use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_platform::{Order, SyscallArgs};

use super::{page_range, run_one};
use crate::gap;
use crate::mm::Backing;
use crate::syscalls::{Sys, SysResult};
use crate::task::Thread;

pub(super) fn madvise(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, len, advice, ..] = args.args;
    let advice = advice as i32;
    let len = match page_range(addr, len, Errno::EINVAL) {
        Ok(len) => len,
        Err(errno) => return errno.into(),
    };
    match advice {
        // What the host does for the guest's own memory.
        0..=4 | 8 | 14 | 15 | 20..=23 => {}
        // DOFORK, DONTDUMP, DODUMP, KEEPONFORK: what is the case anyway, or does not show.
        11 | 16 | 17 | 19 => return Sys::Done(Ok(0)),
        100 | 101 => return Errno::EPERM.into(),
        // REMOVE, DONTFORK, MERGEABLE, UNMERGEABLE, WIPEONFORK, COLLAPSE, guards: programs have to do without.
        9 | 10 | 12 | 13 | 18 | 25 | 102 | 103 => {
            gap!(thread.kernel(), "madvise {}", advice);
            return Errno::EINVAL.into();
        }
        _ => return Errno::EINVAL.into(),
    }
    if len == 0 {
        return Sys::Done(Ok(0));
    }
    let thread = thread.clone();
    Sys::wait(async move { run_one(&thread, Order::Madvise { addr, len, advice }).await })
}

/// Shared mappings are the host's page cache, so that only `MS_SYNC` has something to do.
pub(super) fn msync(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, len, flags, ..] = args.args;
    let flags = flags as i32;
    const BOTH: i32 = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !(BOTH | libc::MS_INVALIDATE) != 0 || flags & BOTH == BOTH {
        return Errno::EINVAL.into();
    }
    let len = match page_range(addr, len, Errno::ENOMEM) {
        Ok(len) => len,
        Err(errno) => return errno.into(),
    };
    let mm = thread.mm();
    let regions = mm.overlapping(addr, len);
    if flags & libc::MS_INVALIDATE != 0 && regions.iter().any(|region| region.locked) {
        return Errno::EBUSY.into();
    }
    if !mm.covers(addr, len) {
        return Errno::ENOMEM.into();
    }
    let files: Vec<_> = (regions.into_iter().filter(|region| region.shared))
        .filter_map(|region| {
            if let Backing::File(file) = region.backing {
                Some(file)
            } else {
                None
            }
        })
        .collect();
    if flags & libc::MS_SYNC == 0 || files.is_empty() {
        return Sys::Done(Ok(0));
    }
    let work = thread
        .kernel()
        .executor()
        .blocking(move || files.iter().try_for_each(|file| file.ops().sync(true)));
    Sys::wait(async move { work.await.map(|()| 0) })
}

/// The most bytes that one mincore(2) looks at.
const MAX_MINCORE: u64 = 64 << 30;

/// Says that all mapped pages are there: whether they are is the host's business, and a hint at best.
pub(super) fn mincore(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [addr, len, out, ..] = args.args;
    let len = page_range(addr, len, Errno::ENOMEM)?;
    if !thread.mm().covers(addr, len) {
        return Err(Errno::ENOMEM);
    }
    if len > MAX_MINCORE {
        return Err(Errno::EAGAIN);
    }
    let space = thread.mm().space().clone();
    let mut left = len / PAGE_SIZE;
    let mut at = out;
    let ones = [1u8; PAGE_SIZE as usize];
    while left > 0 {
        let count = left.min(PAGE_SIZE);
        space.write(at, ones.get(..count as usize).ok_or(Errno::EFAULT)?)?;
        at = at.checked_add(count).ok_or(Errno::EFAULT)?;
        left -= count;
    }
    Ok(0)
}

/// Every barrier is the host's global one: it takes milliseconds, and needs no registration.
pub(super) fn membarrier(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    const GLOBAL: i32 = 1;
    const GLOBAL_EXPEDITED: i32 = 2;
    const REGISTER_GLOBAL_EXPEDITED: i32 = 4;
    const PRIVATE_EXPEDITED: i32 = 8;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 16;
    const ALL: i32 =
        GLOBAL | GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED | PRIVATE_EXPEDITED | REGISTER_PRIVATE_EXPEDITED;
    let [command, flags, ..] = args.args;
    if flags as u32 != 0 || !sentry_host::system::has_global_barrier() {
        return Errno::EINVAL.into();
    }
    match command as i32 {
        0 => Sys::Done(Ok(ALL.into())),
        REGISTER_GLOBAL_EXPEDITED | REGISTER_PRIVATE_EXPEDITED => Sys::Done(Ok(0)),
        PRIVATE_EXPEDITED if thread.process().thread_count() == 1 => Sys::Done(Ok(0)),
        GLOBAL | GLOBAL_EXPEDITED | PRIVATE_EXPEDITED => {
            let work = thread.kernel().executor().blocking(sentry_host::system::global_barrier);
            Sys::wait(async move { work.await.map(|()| 0) })
        }
        command => {
            gap!(thread.kernel(), "membarrier {}", command);
            Errno::EINVAL.into()
        }
    }
}
