//! Futexes whose calls come to the kernel.
//!
//! Usually a guest's stub answers futex(2) with the host's futex on the guest's own memory. What comes here are the
//! calls of processes for which that is switched off, and the priority-inheriting operations, always.

pub mod pi;
pub mod requeue;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::path::InodeKey;

use crate::executor::Deadline;
use crate::mm::Backing;
use crate::task::{Thread, Wake, block_on};

/// Matches every waiter (`FUTEX_BITSET_MATCH_ANY`).
pub const MATCH_ANY: u32 = u32::MAX;

/// Which futex an address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Memory of one address space.
    Private {
        /// Which one.
        space: usize,
        /// The address.
        addr: u64,
    },
    /// A shared mapping of a file.
    File {
        /// Which one.
        inode: InodeKey,
        /// The offset in it.
        offset: u64,
    },
    /// Shared memory without a file, which forked children have at the same address.
    Anonymous {
        /// The address.
        addr: u64,
    },
}

impl Key {
    /// The key of an address of `thread`. `EINVAL` unless it is aligned.
    pub fn of(thread: &Thread, addr: u64, shared: bool) -> Result<Key, Errno> {
        if !addr.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        let mm = thread.mm();
        let space = Arc::as_ptr(&mm).addr();
        let private = Key::Private { space, addr };
        if !shared {
            return Ok(private);
        }
        let regions = mm.overlapping(addr, 4);
        let Some(region) = regions.first().filter(|region| region.shared) else {
            return Ok(private);
        };
        match &region.backing {
            Backing::File(file) => match file.path().inode_key() {
                Some(inode) => {
                    let offset = region.offset.wrapping_add(addr.wrapping_sub(region.start));
                    Ok(Key::File { inode, offset })
                }
                None => Ok(private),
            },
            _ => Ok(Key::Anonymous { addr }),
        }
    }
}

struct Waiter {
    thread: Arc<Thread>,
    bitset: u32,
    woken: AtomicBool,
}

impl Waiter {
    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.notify_task();
    }
}

type Queues = HashMap<Key, VecDeque<Arc<Waiter>>>;

/// All futexes with waiters.
#[derive(Default)]
pub(crate) struct FutexTable {
    queues: Mutex<Queues, rank::Futexes>,
    pi: pi::PiTable,
}

fn wake_in(queues: &mut Queues, key: Key, count: u32, bitset: u32) -> i64 {
    let Some(queue) = queues.get_mut(&key) else { return 0 };
    let mut woken = 0;
    queue.retain(|waiter| {
        if woken >= i64::from(count) || waiter.bitset & bitset == 0 {
            return true;
        }
        waiter.wake();
        woken += 1;
        false
    });
    if queue.is_empty() {
        queues.remove(&key);
    }
    woken
}

/// Reads a futex word.
pub fn read_word(thread: &Thread, addr: u64) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    thread.guest().read(addr, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

impl FutexTable {
    /// Wakes up to `count` waiters that `bitset` matches; how many.
    pub fn wake(&self, key: Key, count: u32, bitset: u32) -> i64 {
        wake_in(&mut self.queues.lock(), key, count, bitset)
    }

    /// Wakes waiters at an address, private and shared ones.
    pub fn wake_address(&self, thread: &Arc<Thread>, addr: u64, count: u32) {
        for shared in [false, true] {
            if let Ok(key) = Key::of(thread, addr, shared) {
                self.wake(key, count, MATCH_ANY);
                self.pi.wake_all(key);
            }
        }
    }

    /// Wakes up to `count` waiters of `from` and moves up to `move_count` others to `to`. With `expected`, `EAGAIN`
    /// if the word is another. How many were woken, and how many moved.
    pub fn requeue(
        &self,
        thread: &Thread,
        (from, addr): (Key, u64),
        to: Key,
        counts: (u32, u32),
        expected: Option<u32>,
    ) -> Result<(i64, i64), Errno> {
        let mut queues = self.queues.lock();
        if let Some(expected) = expected
            && read_word(thread, addr)? != expected
        {
            return Err(Errno::EAGAIN);
        }
        let woken = wake_in(&mut queues, from, counts.0, MATCH_ANY);
        let Some(queue) = queues.get_mut(&from) else {
            return Ok((woken, 0));
        };
        let moved = queue.len().min(counts.1 as usize);
        if from == to {
            return Ok((woken, moved as i64));
        }
        let taken: Vec<_> = queue.drain(..moved).collect();
        if queue.is_empty() {
            queues.remove(&from);
        }
        if !taken.is_empty() {
            queues.entry(to).or_default().extend(taken);
        }
        Ok((woken, moved as i64))
    }

    /// Puts the thread into the queue if the word is `expected`; `EAGAIN` if not.
    fn enqueue(
        &self,
        thread: &Arc<Thread>,
        key: Key,
        addr: u64,
        expected: u32,
        bitset: u32,
    ) -> Result<Arc<Waiter>, Errno> {
        // The word is looked at under the lock that a waker takes after it has changed the word.
        let mut queues = self.queues.lock();
        if read_word(thread, addr)? != expected {
            return Err(Errno::EAGAIN);
        }
        let waiter = Arc::new(Waiter {
            thread: thread.clone(),
            bitset,
            woken: AtomicBool::new(false),
        });
        queues.entry(key).or_default().push_back(waiter.clone());
        Ok(waiter)
    }

    /// Takes a waiter out, wherever a requeue has put it. True if it had been woken.
    fn dequeue(&self, key: Key, waiter: &Arc<Waiter>) -> bool {
        let mut queues = self.queues.lock();
        if waiter.woken.load(Ordering::SeqCst) {
            return true;
        }
        let take = |queues: &mut Queues, key: Key| {
            let Some(queue) = queues.get_mut(&key) else {
                return false;
            };
            let before = queue.len();
            queue.retain(|other| !Arc::ptr_eq(other, waiter));
            let found = queue.len() < before;
            if queue.is_empty() {
                queues.remove(&key);
            }
            found
        };
        if !take(&mut queues, key) {
            let keys: Vec<Key> = queues.keys().copied().collect();
            keys.into_iter().any(|key| take(&mut queues, key));
        }
        false
    }
}

/// Takes the waiter out when its thread dies in the wait.
struct Queued<'a> {
    table: &'a FutexTable,
    key: Key,
    waiter: Arc<Waiter>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.table.dequeue(self.key, &self.waiter);
    }
}

/// Waits on a futex. `EAGAIN` if the word is not `expected`, `ETIMEDOUT`; a signal gives
/// `ERESTARTSYS`.
pub(crate) async fn wait(
    thread: &Arc<Thread>,
    addr: u64,
    shared: bool,
    expected: u32,
    bitset: u32,
    deadline: Option<Deadline>,
) -> Result<(), Errno> {
    let key = Key::of(thread, addr, shared)?;
    let table = &thread.kernel().futexes;
    let waiter = table.enqueue(thread, key, addr, expected, bitset)?;
    let queued = Queued {
        table,
        key,
        waiter: waiter.clone(),
    };
    let woken = || waiter.woken.load(Ordering::SeqCst).then_some(());
    let result = block_on(thread, deadline, &[], woken).await;
    drop(queued);
    match result {
        Ok(()) => Ok(()),
        // It may have been woken between the signal and the way out of the queue.
        Err(_) if waiter.woken.load(Ordering::SeqCst) => Ok(()),
        Err(Wake::Signal) => Err(Errno::ERESTARTSYS),
        Err(Wake::Timeout) => Err(Errno::ETIMEDOUT),
    }
}
