//! Timers of one worker, and the futures that wait for a point in time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sentry_lock::{Mutex, rank};

use super::Executor;

/// A point in time: nanoseconds of the host's `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub u64);

impl Deadline {
    /// Now.
    pub fn now() -> Deadline {
        Deadline(sentry_host::clock::monotonic_nanos())
    }

    /// This long from now; the end of time if that overflows.
    pub fn after(duration: Duration) -> Deadline {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Deadline(Deadline::now().0.saturating_add(nanos))
    }

    /// True once it has come.
    pub fn passed(self) -> bool {
        Deadline::now() >= self
    }

    /// The time left; zero once it has come.
    pub fn remaining(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Deadline::now().0))
    }
}

/// Names a timer, to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    worker: usize,
    deadline: Deadline,
    number: u64,
}

/// What happens when a timer fires.
enum Action {
    Wake(Waker),
    /// Runs on the worker; must be short.
    Call(Box<dyn FnOnce() + Send>),
}

/// The timers of one worker, by deadline.
#[derive(Default)]
pub(super) struct Timers {
    entries: Mutex<BTreeMap<(Deadline, u64), Action>, rank::Timers>,
    /// The earliest deadline, so that a look costs no lock; `u64::MAX` for none.
    earliest: AtomicEarliest,
    number: AtomicU64,
}

struct AtomicEarliest(AtomicU64);

impl Default for AtomicEarliest {
    fn default() -> Self {
        AtomicEarliest(AtomicU64::new(u64::MAX))
    }
}

impl Timers {
    fn add(&self, deadline: Deadline, action: Action) -> (u64, bool) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        entries.insert((deadline, number), action);
        let first = entries.first_key_value().is_some_and(|(key, _)| key.1 == number);
        self.store_earliest(&entries);
        (number, first)
    }

    fn cancel(&self, deadline: Deadline, number: u64) -> bool {
        let mut entries = self.entries.lock();
        let was = entries.remove(&(deadline, number)).is_some();
        self.store_earliest(&entries);
        was
    }

    fn store_earliest(&self, entries: &BTreeMap<(Deadline, u64), Action>) {
        let earliest = entries.first_key_value().map_or(u64::MAX, |(key, _)| key.0.0);
        self.earliest.0.store(earliest, Ordering::SeqCst);
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Deadline> {
        match self.earliest.0.load(Ordering::SeqCst) {
            u64::MAX => None,
            nanos => Some(Deadline(nanos)),
        }
    }

    /// Fires what is due.
    pub(super) fn fire(&self) {
        let Some(next) = self.next() else { return };
        let now = Deadline::now();
        if next > now {
            return;
        }
        loop {
            let mut entries = self.entries.lock();
            let due = entries.first_key_value().is_some_and(|(key, _)| key.0 <= now);
            let action = if due { entries.pop_first() } else { None };
            self.store_earliest(&entries);
            drop(entries);
            match action {
                Some((_, Action::Wake(waker))) => waker.wake(),
                Some((_, Action::Call(call))) => call(),
                None => return,
            }
        }
    }
}

impl Executor {
    fn add_timer(&self, deadline: Deadline, action: Action) -> TimerKey {
        let worker = Executor::current_worker().unwrap_or(0) % self.workers();
        let (number, first) = match self.timers(worker) {
            Some(timers) => timers.add(deadline, action),
            None => (0, false),
        };
        if first && Executor::current_worker() != Some(worker) {
            self.ring(worker);
        }
        TimerKey {
            worker,
            deadline,
            number,
        }
    }

    /// Wakes `waker` once at `deadline`.
    pub fn timer_wake(&self, deadline: Deadline, waker: Waker) -> TimerKey {
        self.add_timer(deadline, Action::Wake(waker))
    }

    /// Calls `call` once at `deadline`, on a worker, under no lock. It must be short and never block.
    pub fn timer_call(&self, deadline: Deadline, call: impl FnOnce() + Send + 'static) -> TimerKey {
        self.add_timer(deadline, Action::Call(Box::new(call)))
    }

    /// Takes a timer back; true if it had not fired.
    pub fn timer_cancel(&self, key: TimerKey) -> bool {
        self.timers(key.worker)
            .is_some_and(|timers| timers.cancel(key.deadline, key.number))
    }

    /// Ready at `deadline`.
    pub fn sleep_until(self: &Arc<Self>, deadline: Deadline) -> Sleep {
        Sleep {
            executor: self.clone(),
            deadline,
            key: None,
        }
    }
}

/// See [`Executor::sleep_until`].
pub struct Sleep {
    executor: Arc<Executor>,
    deadline: Deadline,
    key: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.deadline.passed() {
            return Poll::Ready(());
        }
        if let Some(key) = self.key.take() {
            self.executor.timer_cancel(key);
        }
        self.key = Some(self.executor.timer_wake(self.deadline, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.executor.timer_cancel(key);
        }
    }
}
