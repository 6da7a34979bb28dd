//! `FUTEX_WAIT_REQUEUE_PI` and `FUTEX_CMP_REQUEUE_PI`: waiters for a condition, which get its lock in their sleep.
//!
//! Who moves a waiter takes the lock in its name, or puts it into the lock's queue. What cannot be done so (the lock
//! changed hands just then) the waiter does itself when it is told to look again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sentry_abi::Errno;

use super::pi::{self, GONE, OWNER, OWNER_DIED, PiTable, QUEUED, RETRY, TID_MASK, WAITERS, Waiter, exchange};
use super::{Key, read_word};
use crate::executor::Deadline;
use crate::task::{Thread, Wake, block_on};

/// The end of what a guest may use: no futex is beyond.
const ADDRESSES: u64 = (1 << 47) - 4096;

/// One who waits to be moved.
pub(super) struct Pending {
    waiter: Arc<Waiter>,
    target: Key,
    moved: AtomicBool,
}

/// Takes the waiter out of both queues, also when its thread dies in the wait.
struct Queued<'a> {
    table: &'a PiTable,
    key: Key,
    pending: Arc<Pending>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        {
            let mut pending = self.table.pending.lock();
            if let Some(queue) = pending.get_mut(&self.key) {
                queue.retain(|other| !Arc::ptr_eq(other, &self.pending));
                if queue.is_empty() {
                    pending.remove(&self.key);
                }
            }
        }
        self.table.remove(self.pending.target, &self.pending.waiter);
    }
}

/// The keys of a condition and of its lock, which have to differ.
fn keys(thread: &Thread, (addr, addr2): (u64, u64), shared: bool) -> Result<(Key, Key), Errno> {
    let keys = (Key::of(thread, addr, shared)?, Key::of(thread, addr2, shared)?);
    if keys.0 == keys.1 {
        return Err(Errno::EINVAL);
    }
    if addr >= ADDRESSES || addr2 >= ADDRESSES {
        return Err(Errno::EFAULT);
    }
    Ok(keys)
}

/// `FUTEX_WAIT_REQUEUE_PI`: waits at `addr` until the lock at `addr2` is the caller's. `EAGAIN` if the word is not
/// `expected`, or if a signal comes when it has been moved; `ETIMEDOUT`.
pub(crate) async fn wait(
    thread: &Arc<Thread>,
    (addr, addr2): (u64, u64),
    shared: bool,
    expected: u32,
    deadline: Option<Deadline>,
) -> Result<(), Errno> {
    let (key, target) = keys(thread, (addr, addr2), shared)?;
    let table = &thread.kernel().futexes.pi;
    let pending = Arc::new(Pending {
        waiter: Waiter::new(thread),
        target,
        moved: AtomicBool::new(false),
    });
    {
        // The word is looked at under the lock that one who moves takes.
        let mut queues = table.pending.lock();
        if read_word(thread, addr)? != expected {
            return Err(Errno::EAGAIN);
        }
        queues.entry(key).or_default().push_back(pending.clone());
    }
    let queued = Queued {
        table,
        key,
        pending: pending.clone(),
    };
    let waiter = &pending.waiter;
    let state = || Some(waiter.state()).filter(|&state| state != QUEUED);
    let waited = block_on(thread, deadline, &[], state).await;
    waiter.settle(GONE);
    drop(queued);
    match (waited, waiter.state()) {
        (_, OWNER) => Ok(()),
        (Ok(_), _) => pi::lock(thread, addr2, shared, deadline, false).await,
        (Err(Wake::Signal), _) if pending.moved.load(Ordering::SeqCst) => Err(Errno::EAGAIN),
        (Err(Wake::Signal), _) => Err(Errno::ERESTARTNOINTR),
        (Err(Wake::Timeout), _) => Err(Errno::ETIMEDOUT),
    }
}

/// `FUTEX_CMP_REQUEUE_PI`: gives the lock at `addr2` to the first who waits at `addr` if it is free, and puts up to
/// `count` others (one more if it is not) into its queue; how many in all. `EAGAIN` if the word is not `expected`.
pub(crate) async fn requeue(
    thread: &Arc<Thread>,
    (addr, addr2): (u64, u64),
    shared: bool,
    count: u32,
    expected: u32,
) -> Result<i64, Errno> {
    let (key, target) = keys(thread, (addr, addr2), shared)?;
    read_word(thread, addr2)?;
    let table = &thread.kernel().futexes.pi;
    let taken: Vec<Arc<Pending>> = {
        let mut queues = table.pending.lock();
        if read_word(thread, addr)? != expected {
            return Err(Errno::EAGAIN);
        }
        let Some(queue) = queues.get_mut(&key) else {
            return Ok(0);
        };
        let most = queue.len().min((count as usize).saturating_add(1));
        if queue.iter().take(most).any(|pending| pending.target != target) {
            return Err(Errno::EINVAL);
        }
        let taken = queue.drain(..most).collect();
        if queue.is_empty() {
            queues.remove(&key);
        }
        taken
    };
    let mut moved = 0;
    for (index, pending) in taken.iter().enumerate() {
        match hand_over(thread, table, addr2, pending, index + 1 < taken.len()).await {
            Ok(counted) => moved += i64::from(counted),
            Err(errno) => {
                // Nobody is lost: they are put back, in their order.
                let mut queues = table.pending.lock();
                let queue = queues.entry(key).or_default();
                let waits = |pending: &&Arc<Pending>| pending.waiter.state() == QUEUED;
                let rest = taken.iter().skip(index).rev().filter(waits);
                rest.for_each(|pending| queue.push_front(pending.clone()));
                return if moved > 0 { Ok(moved) } else { Err(errno) };
            }
        }
    }
    Ok(moved)
}

/// Makes a waiter the owner, or puts it into the lock's queue. False if it has given up.
async fn hand_over(
    thread: &Arc<Thread>,
    table: &PiTable,
    addr: u64,
    pending: &Arc<Pending>,
    more: bool,
) -> Result<bool, Errno> {
    let (waiter, key) = (&pending.waiter, pending.target);
    let tid = waiter.tid();
    loop {
        let value = read_word(thread, addr)?;
        if value & TID_MASK == 0 {
            let waiters = if more || table.has_waiters(key) { WAITERS } else { 0 };
            if exchange(thread, addr, value, tid | (value & OWNER_DIED) | waiters).await? != value {
                continue;
            }
            if waiter.settle(OWNER) {
                waiter.notify();
                return Ok(true);
            }
            // It has given up meanwhile: the lock, in its name now, is given back.
            pi::release(thread, addr, key, tid).await?;
            return Ok(false);
        }
        if value & TID_MASK == tid {
            return Err(Errno::EDEADLK);
        }
        if value & WAITERS == 0 && exchange(thread, addr, value, value | WAITERS).await? != value {
            continue;
        }
        if thread.kernel().thread((value & TID_MASK) as i32).is_none() {
            return Err(Errno::ESRCH);
        }
        pending.moved.store(true, Ordering::SeqCst);
        table.enqueue(key, waiter);
        // The owner may have left before it could see the waiter.
        if read_word(thread, addr)? != value | WAITERS && waiter.settle(RETRY) {
            table.remove(key, waiter);
            waiter.notify();
        }
        if waiter.state() == GONE {
            table.remove(key, waiter);
            return Ok(false);
        }
        return Ok(true);
    }
}
