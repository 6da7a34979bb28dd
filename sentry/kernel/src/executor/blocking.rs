//! A small pool of host threads for host calls that may block.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use crossbeam::channel::{Receiver, Sender, unbounded};
use sentry_lock::{Mutex, rank};

/// The most threads there are at a time. One that hangs in the host only makes the others busier.
const MAX_THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that start when they are needed. None is ever waited for: a hung host call delays neither the death
/// of the guest that made it nor the end of the sandbox.
pub struct BlockingPool {
    send: Sender<Job>,
    receive: Receiver<Job>,
    threads: AtomicUsize,
    idle: Arc<AtomicUsize>,
}

impl BlockingPool {
    pub(super) fn new() -> BlockingPool {
        let (send, receive) = unbounded();
        BlockingPool {
            send,
            receive,
            threads: AtomicUsize::new(0),
            idle: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// Runs `call` on a thread of the pool. Dropping the future abandons the call, which goes on.
    pub fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> BlockingCall<T> {
        let slot = Arc::new(Mutex::new(Slot {
            value: None,
            waker: None,
        }));
        let result = slot.clone();
        let job: Job = Box::new(move || {
            let value = call();
            let mut slot = result.lock();
            slot.value = Some(value);
            let waker = slot.waker.take();
            drop(slot);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        // The channel has a receiver as long as the pool lives.
        let _ = self.send.send(job);
        self.grow();
        BlockingCall { slot }
    }

    fn grow(&self) {
        if self.idle.load(Ordering::SeqCst) >= self.send.len() {
            return;
        }
        let grown = self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            (count < MAX_THREADS).then_some(count + 1)
        });
        if grown.is_err() {
            return;
        }
        let (receive, idle) = (self.receive.clone(), self.idle.clone());
        let spawned = std::thread::Builder::new().name("blocking".to_owned()).spawn(move || {
            loop {
                idle.fetch_add(1, Ordering::SeqCst);
                let job = receive.recv();
                idle.fetch_sub(1, Ordering::SeqCst);
                match job {
                    Ok(job) => job(),
                    Err(_) => return,
                }
            }
        });
        if spawned.is_err() {
            let before = self.threads.fetch_sub(1, Ordering::SeqCst);
            if before == 1 {
                // Not even one thread: better to block here than never to answer.
                while let Ok(job) = self.receive.try_recv() {
                    job();
                }
            }
        }
    }
}

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// The result of a call on the pool.
pub struct BlockingCall<T> {
    slot: Arc<Mutex<Slot<T>, rank::BlockingSlot>>,
}

impl<T> Future for BlockingCall<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
