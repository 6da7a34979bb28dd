//! Wait queues: how a task waits for a file, a child or a condition without holding a host thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use bitflags::bitflags;
use sentry_lock::{Mutex, rank};

bitflags! {
    /// Readiness, with the numbers of poll(2) and epoll(7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct PollEvents: u32 {
        /// There is data to read.
        const IN = 0x001;
        /// There is an exceptional condition.
        const PRI = 0x002;
        /// Writing is possible.
        const OUT = 0x004;
        /// An error; always reported.
        const ERR = 0x008;
        /// Hung up; always reported.
        const HUP = 0x010;
        /// Not an open descriptor; poll(2) only.
        const NVAL = 0x020;
        /// Normal data to read.
        const RDNORM = 0x040;
        /// Priority data to read.
        const RDBAND = 0x080;
        /// Normal data can be written.
        const WRNORM = 0x100;
        /// Priority data can be written.
        const WRBAND = 0x200;
        /// The peer closed its writing half.
        const RDHUP = 0x2000;
    }
}

/// Tasks that wait for something. A waiter registers its waker *before* it looks at the condition, and looks
/// again when woken: wakes may be spurious and are never lost.
#[derive(Default)]
pub struct WaitQueue {
    waiters: Mutex<Vec<Entry>, rank::Waiters>,
    /// The number of waiters, so that waking an empty queue takes no lock.
    len: AtomicUsize,
    next: AtomicUsize,
}

struct Entry {
    key: usize,
    mask: PollEvents,
    waker: Waker,
}

/// Names a registration, to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitKey(usize);

impl WaitQueue {
    /// An empty queue.
    pub fn new() -> WaitQueue {
        WaitQueue::default()
    }

    /// Adds a waker that is woken (again and again, until removed) by events in `mask`; `ERR` and `HUP` always count.
    pub fn register(&self, waker: &Waker, mask: PollEvents) -> WaitKey {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let mut waiters = self.waiters.lock();
        waiters.push(Entry {
            key,
            mask: mask | PollEvents::ERR | PollEvents::HUP,
            waker: waker.clone(),
        });
        self.len.store(waiters.len(), Ordering::SeqCst);
        WaitKey(key)
    }

    /// Takes a registration back. No effect if it is not there.
    pub fn unregister(&self, key: WaitKey) {
        let mut waiters = self.waiters.lock();
        waiters.retain(|entry| entry.key != key.0);
        self.len.store(waiters.len(), Ordering::SeqCst);
    }

    /// Wakes every waiter interested in `events`.
    pub fn wake(&self, events: PollEvents) {
        if self.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        // Wakers run outside the lock: an epoll waiter's waker takes locks of its own.
        let wakers: Vec<Waker> = self
            .waiters
            .lock()
            .iter()
            .filter(|entry| entry.mask.intersects(events))
            .map(|entry| entry.waker.clone())
            .collect();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Wakes every waiter.
    pub fn wake_all(&self) {
        self.wake(PollEvents::all());
    }
}
