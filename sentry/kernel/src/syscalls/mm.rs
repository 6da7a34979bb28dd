//! Memory: mmap(2) and its kin.
//!
//! Most calls of this family are answered by the stub; what comes here are files, shared memory, and everything
//! while the stub's own answers are switched off.

mod advice;
mod lock;
mod map;
mod policy;
mod remote;

use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_platform::Order;

use super::{Row, SysResult, call};
use crate::task::Thread;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_mmap, mmap, Ptr, Int, Prot, MapFlags, Fd, Hex),
    call!(libc::SYS_munmap, munmap, Ptr, Int),
    call!(libc::SYS_mprotect, mprotect, Ptr, Int, Prot),
    call!(libc::SYS_pkey_mprotect, pkey_mprotect, Ptr, Int, Hex, Int),
    call!(libc::SYS_mremap, mremap, Ptr, Int, Int, Hex, Ptr),
    call!(libc::SYS_brk, brk, Ptr),
    call!(libc::SYS_msync, msync, Ptr, Int, Hex),
    call!(libc::SYS_mincore, mincore, Ptr, Int, Ptr),
    call!(libc::SYS_madvise, madvise, Ptr, Int, Int),
    call!(libc::SYS_mlock, mlock, Ptr, Int),
    call!(libc::SYS_mlock2, mlock2, Ptr, Int, Hex),
    call!(libc::SYS_munlock, munlock, Ptr, Int),
    call!(libc::SYS_mlockall, mlockall, Hex),
    call!(libc::SYS_munlockall, munlockall),
    call!(libc::SYS_membarrier, membarrier, Int, Hex, Int),
    call!(
        libc::SYS_process_vm_readv,
        process_vm_readv,
        Int,
        Ptr,
        Int,
        Ptr,
        Int,
        Hex
    ),
    call!(
        libc::SYS_process_vm_writev,
        process_vm_writev,
        Int,
        Ptr,
        Int,
        Ptr,
        Int,
        Hex
    ),
    call!(libc::SYS_mbind, mbind, Ptr, Int, Int, Ptr, Int, Hex),
    call!(libc::SYS_set_mempolicy, set_mempolicy, Int, Ptr, Int),
    call!(libc::SYS_get_mempolicy, get_mempolicy, Ptr, Ptr, Int, Ptr, Hex),
];

use advice::{madvise, membarrier, mincore, msync};
use lock::{mlock, mlock2, mlockall, munlock, munlockall};
use map::{brk, mmap, mprotect, mremap, munmap, pkey_mprotect};
use policy::{get_mempolicy, mbind, set_mempolicy};
use remote::{process_vm_readv, process_vm_writev};

/// A range of whole pages; `error` if `addr` is not page-aligned or the range leaves the address space.
fn page_range(addr: u64, len: u64, error: Errno) -> Result<u64, Errno> {
    if !addr.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(error)?;
    addr.checked_add(len).filter(|&end| end <= 1 << 47).ok_or(error)?;
    Ok(len)
}

/// Runs one order without descriptors in the thread's address space.
async fn run_one(thread: &Arc<Thread>, order: Order<'_>) -> SysResult {
    let guest = thread.guest();
    let results = guest.run(&[order], &[]).await?;
    result_of(&results)
}

/// The result of the first order.
fn result_of(results: &[i64]) -> SysResult {
    match results.first() {
        Some(&value) if !(-4095..0).contains(&value) => Ok(value),
        Some(&value) => Err(Errno::from_raw(-value as i32)),
        None => Err(Errno::ESRCH),
    }
}
