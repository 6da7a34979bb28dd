//! Host descriptors that tasks wait for. They are all in worker 0's epoll set.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sentry_abi::Errno;
use sentry_host::epoll::{Epoll, Interest};
use sentry_lock::{Mutex, rank};
use sentry_vfs::wait::PollEvents;

use super::Executor;

type Callback = Arc<dyn Fn(PollEvents) + Send + Sync>;

/// Registrations by token.
#[derive(Default)]
pub(super) struct Reactor {
    entries: Mutex<HashMap<u64, Callback>, rank::Reactor>,
    next: std::sync::atomic::AtomicU64,
}

impl Reactor {
    /// Calls what was registered for `token`.
    pub(super) fn dispatch(&self, _epoll: &Epoll, token: u64, readiness: u32) {
        let callback = self.entries.lock().get(&token).cloned();
        if let Some(callback) = callback {
            callback(PollEvents::from_bits_truncate(readiness));
        }
    }
}

fn interest_of(events: PollEvents) -> Interest {
    let mut interest = Interest::EDGE;
    if events.intersects(PollEvents::IN | PollEvents::RDNORM) {
        interest = interest.and(Interest::READ);
    }
    if events.intersects(PollEvents::OUT | PollEvents::WRNORM) {
        interest = interest.and(Interest::WRITE);
    }
    if events.intersects(PollEvents::PRI) {
        interest = interest.and(Interest::PRIORITY);
    }
    if events.intersects(PollEvents::RDHUP) {
        interest = interest.and(Interest::READ_HANGUP);
    }
    interest
}

/// A registration of a host descriptor; dropping it ends the registration.
pub struct HostWatch {
    executor: Arc<Executor>,
    /// A duplicate of its own, so that several watches of one descriptor do not collide in the epoll set.
    fd: OwnedFd,
    token: u64,
}

impl Drop for HostWatch {
    fn drop(&mut self) {
        let _ = self.executor.host_epoll().remove(self.fd.as_fd());
        self.executor.reactor.entries.lock().remove(&self.token);
    }
}

impl Executor {
    /// Calls `notify` on a worker whenever the readiness of `fd` changes (edge-triggered; once at the start if it
    /// is ready). `EPERM` for descriptors that epoll(7) does not take, which are always ready.
    pub fn watch_host(
        self: &Arc<Self>,
        fd: &impl AsFd,
        events: PollEvents,
        notify: impl Fn(PollEvents) + Send + Sync + 'static,
    ) -> Result<HostWatch, Errno> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let token = self.reactor.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.reactor.entries.lock().insert(token, Arc::new(notify));
        if let Err(errno) = self.host_epoll().add(fd.as_fd(), interest_of(events), token) {
            self.reactor.entries.lock().remove(&token);
            return Err(errno);
        }
        Ok(HostWatch {
            executor: self.clone(),
            fd,
            token,
        })
    }

    /// Ready when `fd` is ready for any of `events`; the events that are. A descriptor that cannot be waited for
    /// is ready at once.
    pub fn host_ready(self: &Arc<Self>, fd: &impl AsFd, events: PollEvents) -> HostReady {
        let state = Arc::new(Mutex::new((PollEvents::empty(), None::<Waker>)));
        let shared = state.clone();
        let watch = self.watch_host(fd, events, move |ready| {
            let mut state = shared.lock();
            state.0 |= ready;
            if let Some(waker) = state.1.take() {
                drop(state);
                waker.wake();
            }
        });
        if watch.is_err() {
            state.lock().0 = events;
        }
        HostReady {
            state,
            _watch: watch.ok(),
        }
    }
}

/// What a descriptor is ready for, and who waits for that.
type Readiness = (PollEvents, Option<Waker>);

/// See [`Executor::host_ready`].
pub struct HostReady {
    state: Arc<Mutex<Readiness, rank::HostReadiness>>,
    _watch: Option<HostWatch>,
}

impl Future for HostReady {
    type Output = PollEvents;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PollEvents> {
        let mut state = self.state.lock();
        if state.0.is_empty() {
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        } else {
            Poll::Ready(state.0)
        }
    }
}
