//! A lock that a task can wait for.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use sentry_lock::{Mutex, rank};

/// An asynchronous mutual exclusion lock without data.
pub(crate) struct AsyncLock {
    state: Mutex<(bool, Vec<Waker>), rank::AsyncWaiters>,
}

/// Releases the lock when dropped.
pub(crate) struct AsyncGuard<'a>(&'a AsyncLock);

impl AsyncLock {
    pub fn new() -> AsyncLock {
        AsyncLock {
            state: Mutex::new((false, Vec::new())),
        }
    }

    /// Waits until the lock is free, and takes it.
    pub async fn lock(&self) -> AsyncGuard<'_> {
        poll_fn(|cx| {
            let (held, waiting) = &mut *self.state.lock();
            if *held {
                waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            *held = true;
            Poll::Ready(())
        })
        .await;
        AsyncGuard(self)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<AsyncGuard<'_>> {
        let (held, _) = &mut *self.state.lock();
        (!std::mem::replace(held, true)).then(|| AsyncGuard(self))
    }
}

impl Drop for AsyncGuard<'_> {
    fn drop(&mut self) {
        let (held, waiting) = &mut *self.0.state.lock();
        *held = false;
        for waker in waiting.drain(..) {
            waker.wake();
        }
    }
}
