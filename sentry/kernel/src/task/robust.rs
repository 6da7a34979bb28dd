//! What a dying thread does to the futexes of threads that go on (set_robust_list(2), `CLONE_CHILD_CLEARTID`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_platform::{GuestThread, Order};

use super::Thread;

/// The most entries of a robust list that are looked at (`ROBUST_LIST_LIMIT`).
const LIMIT: usize = 2048;
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;

/// Marks all futexes of the thread's robust list, and wakes a waiter of each. Errors end the walk: the list is the
/// guest's own, and nobody else depends on it.
pub(super) async fn walk_list(thread: &Arc<Thread>) {
    let head = thread.robust_list.swap(0, Ordering::Relaxed);
    if head != 0 {
        let _ = walk(thread, head).await;
    }
}

fn read_u64(guest: &dyn GuestThread, addr: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    guest.read(addr, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

async fn walk(thread: &Arc<Thread>, head: u64) -> Result<(), Errno> {
    let guest = thread.guest();
    let mut raw = [0; 24];
    guest.read(head, &mut raw)?;
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (first, offset, pending) = (word(0), word(8), word(16));
    let mut entry = first;
    for _ in 0..LIMIT {
        if entry & !1 == head {
            break;
        }
        // The next one first: a woken owner may take the entry off the list.
        let next = read_u64(&*guest, entry & !1);
        if entry != pending {
            mark(thread, &guest, (entry & !1).wrapping_add(offset)).await?;
        }
        entry = next?;
    }
    if pending & !1 != 0 {
        mark(thread, &guest, (pending & !1).wrapping_add(offset)).await?;
    }
    Ok(())
}

/// Marks one futex as left by a dead owner, if the thread owns it.
async fn mark(thread: &Arc<Thread>, guest: &Arc<dyn GuestThread>, addr: u64) -> Result<(), Errno> {
    if !addr.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; 4];
    guest.read(addr, &mut bytes)?;
    let mut value = u32::from_ne_bytes(bytes);
    while i64::from(value & TID_MASK) == i64::from(thread.tid()) {
        let new = (value & WAITERS) | OWNER_DIED;
        let results = guest
            .run(&[Order::CompareExchange { addr, old: value, new }], &[])
            .await?;
        let old = results.first().copied().unwrap_or(-14);
        if old < 0 {
            return Err(Errno::EFAULT);
        }
        if old == i64::from(value) {
            if value & WAITERS != 0 {
                wake(thread, guest, addr).await;
            }
            return Ok(());
        }
        value = old as u32;
    }
    Ok(())
}

/// Wakes one waiter of a futex, wherever it waits.
async fn wake(thread: &Arc<Thread>, guest: &Arc<dyn GuestThread>, addr: u64) {
    thread.kernel().futexes.wake_address(thread, addr, 1);
    let _ = guest.run(&[Order::FutexWake { addr, count: 1 }], &[]).await;
}

/// Writes 0 to the address of set_tid_address(2) and wakes a waiter.
pub(super) async fn clear_tid(thread: &Arc<Thread>) {
    let addr = thread.clear_child_tid.swap(0, Ordering::Relaxed);
    if addr == 0 {
        return;
    }
    let guest = thread.guest();
    let zero = 0u32.to_ne_bytes();
    let orders = [Order::Write { addr, data: &zero }, Order::FutexWake { addr, count: 1 }];
    if guest.run(&orders, &[]).await.is_ok() {
        thread.kernel().futexes.wake_address(thread, addr, 1);
    }
}
