//! How a system call waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sentry_vfs::wait::{PollEvents, WaitKey, WaitQueue};

use crate::executor::{Deadline, Sleep};
use crate::task::Thread;

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A signal wants attention (or the process is to stop or to die).
    Signal,
    /// The deadline has passed.
    Timeout,
}

/// Waits until `try_now` gives something, trying at once and after every wake of one of `queues`; until
/// `deadline`; or until a signal comes. Only for the task of `thread` itself. What `try_now` gives wins over a
/// signal and over the deadline.
pub async fn block_on<T>(
    thread: &Arc<Thread>,
    deadline: Option<Deadline>,
    queues: &[(&WaitQueue, PollEvents)],
    try_now: impl FnMut() -> Option<T>,
) -> Result<T, Wake> {
    Block {
        thread,
        deadline,
        queues,
        try_now,
        registered: Vec::new(),
        sleep: None,
        started: false,
    }
    .await
}

/// Sleeps until `deadline` (for ever without one) or a signal.
pub async fn sleep(thread: &Arc<Thread>, deadline: Option<Deadline>) -> Wake {
    match block_on::<std::convert::Infallible>(thread, deadline, &[], || None).await {
        Err(wake) => wake,
        Ok(never) => match never {},
    }
}

struct Block<'a, F> {
    thread: &'a Arc<Thread>,
    deadline: Option<Deadline>,
    queues: &'a [(&'a WaitQueue, PollEvents)],
    try_now: F,
    registered: Vec<WaitKey>,
    sleep: Option<Sleep>,
    started: bool,
}

impl<F> Unpin for Block<'_, F> {}

impl<T, F: FnMut() -> Option<T>> Future for Block<'_, F> {
    type Output = Result<T, Wake>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.started {
            this.started = true;
            if let Some(value) = (this.try_now)() {
                return Poll::Ready(Ok(value));
            }
            // First the wakers, then a second look: nothing can come between.
            for (queue, events) in this.queues {
                this.registered.push(queue.register(cx.waker(), *events));
            }
            this.thread.guest().will_block();
        }
        if let Some(value) = (this.try_now)() {
            return Poll::Ready(Ok(value));
        }
        if this.thread.interrupted() {
            return Poll::Ready(Err(Wake::Signal));
        }
        let Some(deadline) = this.deadline else {
            return Poll::Pending;
        };
        let executor = this.thread.kernel().executor();
        let sleep = this.sleep.get_or_insert_with(|| executor.sleep_until(deadline));
        match Pin::new(sleep).poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Wake::Timeout)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<F> Drop for Block<'_, F> {
    fn drop(&mut self) {
        for ((queue, _), key) in self.queues.iter().zip(self.registered.drain(..)) {
            queue.unregister(key);
        }
    }
}
