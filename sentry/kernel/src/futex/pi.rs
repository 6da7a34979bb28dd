//! Futexes with priority inheritance, without the inheritance: guests have no priorities here.
//!
//! The word holds the owner's thread id. It is changed by compare-and-exchange only, so that guests can take and
//! leave the lock by themselves as long as nobody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_platform::Order;

use super::requeue::Pending;
use super::{Key, read_word};
use crate::executor::Deadline;
use crate::task::{Thread, Wake, block_on};

pub(super) const WAITERS: u32 = 0x8000_0000;
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
pub(super) const TID_MASK: u32 = 0x3fff_ffff;

pub(super) const QUEUED: u8 = 0;
/// It has been made the owner.
pub(super) const OWNER: u8 = 1;
/// It is to look again.
pub(super) const RETRY: u8 = 2;
/// It does not wait any more.
pub(super) const GONE: u8 = 3;

pub(super) struct Waiter {
    thread: Arc<Thread>,
    state: AtomicU8,
}

impl Waiter {
    pub(super) fn new(thread: &Arc<Thread>) -> Arc<Waiter> {
        Arc::new(Waiter {
            thread: thread.clone(),
            state: AtomicU8::new(QUEUED),
        })
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::SeqCst)
    }

    /// Its thread's id, as a lock's word has it.
    pub(super) fn tid(&self) -> u32 {
        self.thread.tid() as u32
    }

    /// Has its thread look at the state.
    pub(super) fn notify(&self) {
        self.thread.notify_task();
    }

    /// Ends the wait this way, unless it has ended already.
    pub(super) fn settle(&self, state: u8) -> bool {
        self.state
            .compare_exchange(QUEUED, state, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// Locks with waiters.
///
/// The word and the queue cannot be changed at once. So a waiter first sets `WAITERS`, then queues, and sleeps only if
/// the word is still the owner's with that bit; and who changes the word afterwards to one without the bit has those
/// who are queued by then look again.
#[derive(Default)]
pub(crate) struct PiTable {
    queues: Mutex<HashMap<Key, VecDeque<Arc<Waiter>>>, rank::PiFutexes>,
    /// Those that wait for a condition, by its key. Never locked together with the queues.
    pub(super) pending: Mutex<HashMap<Key, VecDeque<Arc<Pending>>>, rank::PiFutexes>,
}

impl PiTable {
    /// Makes all waiters of a lock look again: its owner has died, or does not know of them.
    pub(super) fn wake_all(&self, key: Key) {
        let waiters = self.queues.lock().remove(&key);
        for waiter in waiters.into_iter().flatten() {
            if waiter.settle(RETRY) {
                waiter.thread.notify_task();
            }
        }
    }

    fn push(&self, key: Key, thread: &Arc<Thread>) -> Arc<Waiter> {
        let waiter = Waiter::new(thread);
        self.enqueue(key, &waiter);
        waiter
    }

    /// Queues a waiter for a lock.
    pub(super) fn enqueue(&self, key: Key, waiter: &Arc<Waiter>) {
        self.queues.lock().entry(key).or_default().push_back(waiter.clone());
    }

    pub(super) fn has_waiters(&self, key: Key) -> bool {
        self.queues.lock().contains_key(&key)
    }

    pub(super) fn remove(&self, key: Key, waiter: &Arc<Waiter>) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&key) {
            queue.retain(|other| !Arc::ptr_eq(other, waiter));
            if queue.is_empty() {
                queues.remove(&key);
            }
        }
    }

    /// The first waiter, and whether there are more.
    fn first(&self, key: Key) -> Option<(Arc<Waiter>, bool)> {
        let queues = self.queues.lock();
        let queue = queues.get(&key)?;
        Some((queue.front()?.clone(), queue.len() > 1))
    }
}

struct Queued<'a> {
    table: &'a PiTable,
    key: Key,
    waiter: Arc<Waiter>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.table.remove(self.key, &self.waiter);
    }
}

pub(super) async fn exchange(thread: &Arc<Thread>, addr: u64, old: u32, new: u32) -> Result<u32, Errno> {
    let guest = thread.guest();
    let results = guest.run(&[Order::CompareExchange { addr, old, new }], &[]).await?;
    match results.first() {
        Some(&value) if value >= 0 => Ok(value as u32),
        _ => Err(Errno::EFAULT),
    }
}

/// `FUTEX_LOCK_PI`, and with `only_try` `FUTEX_TRYLOCK_PI`.
pub(crate) async fn lock(
    thread: &Arc<Thread>,
    addr: u64,
    shared: bool,
    deadline: Option<Deadline>,
    only_try: bool,
) -> Result<(), Errno> {
    let key = Key::of(thread, addr, shared)?;
    let table = &thread.kernel().futexes.pi;
    let tid = thread.tid() as u32;
    loop {
        let value = read_word(thread, addr)?;
        if value & TID_MASK == 0 {
            let waiters = if table.has_waiters(key) { WAITERS } else { 0 };
            if exchange(thread, addr, value, tid | (value & OWNER_DIED) | waiters).await? == value {
                return Ok(());
            }
            continue;
        }
        if value & TID_MASK == tid {
            return Err(Errno::EDEADLK);
        }
        if only_try {
            return Err(Errno::EAGAIN);
        }
        if value & WAITERS == 0 && exchange(thread, addr, value, value | WAITERS).await? != value {
            continue;
        }
        if thread.kernel().thread((value & TID_MASK) as i32).is_none() {
            return Err(Errno::ESRCH);
        }
        let waiter = table.push(key, thread);
        let queued = Queued {
            table,
            key,
            waiter: waiter.clone(),
        };
        // The owner may have left before it could see the waiter, and be back without the bit.
        let again = read_word(thread, addr)?;
        if again != value | WAITERS && waiter.settle(GONE) {
            continue;
        }
        let state = || match waiter.state.load(Ordering::SeqCst) {
            QUEUED => None,
            state => Some(state),
        };
        let waited = block_on(thread, deadline, &[], state).await;
        waiter.settle(GONE);
        drop(queued);
        match (waited, waiter.state.load(Ordering::SeqCst)) {
            (_, OWNER) => return Ok(()),
            (Ok(_), _) => {}
            (Err(Wake::Signal), _) => return Err(Errno::ERESTARTNOINTR),
            (Err(Wake::Timeout), _) => return Err(Errno::ETIMEDOUT),
        }
    }
}

/// `FUTEX_UNLOCK_PI`.
pub(crate) async fn unlock(thread: &Arc<Thread>, addr: u64, shared: bool) -> Result<(), Errno> {
    let key = Key::of(thread, addr, shared)?;
    release(thread, addr, key, thread.tid() as u32).await
}

/// Gives a lock that is owned in the name of `tid` to the first waiter. `EPERM` if it is not.
pub(super) async fn release(thread: &Arc<Thread>, addr: u64, key: Key, tid: u32) -> Result<(), Errno> {
    let table = &thread.kernel().futexes.pi;
    let mut value = read_word(thread, addr)?;
    if value & TID_MASK != tid {
        return Err(Errno::EPERM);
    }
    let mut mine = true;
    let new = loop {
        let next = table.first(key);
        let new = match &next {
            Some((waiter, more)) => waiter.thread.tid() as u32 | if *more { WAITERS } else { 0 },
            None => 0,
        };
        let found = exchange(thread, addr, value, new).await?;
        if found != value {
            if found & TID_MASK != value & TID_MASK {
                return if mine { Err(Errno::EINVAL) } else { Ok(()) };
            }
            value = found;
            continue;
        }
        let Some((waiter, _)) = next else { break new };
        table.remove(key, &waiter);
        if waiter.settle(OWNER) {
            waiter.thread.notify_task();
            break new;
        }
        // It has given up meanwhile: the lock, in its name now, goes to the next.
        (value, mine) = (new, false);
    };
    if new & WAITERS == 0 {
        table.wake_all(key);
    }
    Ok(())
}
