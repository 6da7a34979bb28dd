//! The host threads that do the workers' work.
//!
//! A worker is a role, and one thread at a time has it. A thread that is about to wait for long inside of a task (see
//! [`sentry_host::waiting`]) gives its role to another: an idle one, or a new one. It ends that task's step without a
//! role, and then goes on in it if nobody has taken it yet, or waits for one. The thread that called [`Executor::run`] does the same, and returns when the executor
//! stops.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sentry_host::waiting::{self, Waiter};
use sentry_lock::{Condvar, Mutex, rank};

use super::{CURRENT, Executor};

/// The most threads besides the one that called [`Executor::run`]. When all of them wait, what waits next fails.
const MAX_THREADS: usize = 256;
/// After so long an idle thread ends.
const IDLE: Duration = Duration::from_secs(5);

/// What a task is run for. Asked by a thread that waits long for something the task wants.
pub trait Purpose: Send + Sync {
    /// True if nobody wants the task's result any more.
    fn is_gone(&self) -> bool;
}

thread_local! {
    /// The purpose of the task that this thread runs.
    static PURPOSE: Cell<Option<Arc<dyn Purpose>>> = const { Cell::new(None) };
}

/// Runs `future` for `purpose`.
pub(super) async fn for_purpose<T>(purpose: Arc<dyn Purpose>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut purpose = Some(purpose);
    poll_fn(|cx| {
        // Lent to the thread for this step.
        PURPOSE.set(purpose.take());
        let result = future.as_mut().poll(cx);
        purpose = PURPOSE.take();
        result
    })
    .await
}

/// Who works, and who could.
#[derive(Default)]
pub(super) struct Threads {
    state: Mutex<State, rank::WorkerThreads>,
    /// For idle threads.
    vacancy: Condvar,
    /// For the thread that waits for the end.
    fewer: Condvar,
}

#[derive(Default)]
struct State {
    /// Roles that an idle thread will take.
    vacant: VecDeque<usize>,
    idle: usize,
    /// All threads but the one that called `run`.
    started: usize,
    /// Those with a role.
    working: usize,
}

impl Threads {
    /// Lets all threads see that the executor stops.
    pub(super) fn stop(&self) {
        let _state = self.state.lock();
        self.vacancy.notify_all();
    }

    fn working(&self, change: isize) {
        let mut state = self.state.lock();
        state.working = state.working.saturating_add_signed(change);
        self.fewer.notify_all();
    }
}

/// A worker's thread that waits.
struct WorkerThread(Weak<Executor>);

impl Waiter for WorkerThread {
    fn hand_off(&self) -> bool {
        match (CURRENT.get(), self.0.upgrade()) {
            (Some(role), Some(executor)) => executor.hand_off(role),
            _ => true,
        }
    }

    fn given_up(&self) -> bool {
        let purpose = PURPOSE.take();
        let gone = purpose.as_ref().is_some_and(|purpose| purpose.is_gone());
        PURPOSE.set(purpose);
        gone || self.0.upgrade().is_none_or(|executor| executor.stopping())
    }
}

impl Executor {
    /// Works as the calling thread, beginning in `role`, until the executor stops; a thread that is not the `last` to go
    /// also ends when there is nothing to do for some time.
    pub(super) fn serve(self: &Arc<Self>, role: usize, last: bool) {
        waiting::set_waiter(Some(Rc::new(WorkerThread(Arc::downgrade(self)))));
        let mut role = Some(role);
        while let Some(index) = role {
            self.threads.working(1);
            self.platform.take_over(index);
            if self.work(index) {
                self.threads.working(-1);
            }
            role = self.next_role(last);
        }
        waiting::set_waiter(None);
    }

    /// Waits until no thread has a role any more. Those that wait in the host for something are left alone.
    pub(super) fn await_workers(&self) {
        let mut state = self.threads.state.lock();
        while state.working > 0 {
            self.threads.fewer.wait(&mut state);
        }
    }

    /// Starts a thread in a role.
    pub(super) fn start_thread(self: &Arc<Self>, role: usize) -> std::io::Result<()> {
        let executor = self.clone();
        self.threads.state.lock().started += 1;
        let builder = std::thread::Builder::new().name(format!("worker-{role}"));
        let started = builder.spawn(move || executor.serve(role, false));
        if started.is_err() {
            self.threads.state.lock().started -= 1;
        }
        started.map(drop)
    }

    /// Waits for a role; none at the end.
    fn next_role(&self, last: bool) -> Option<usize> {
        let mut state = self.threads.state.lock();
        state.idle += 1;
        let role = loop {
            if self.stopping() {
                break None;
            }
            if let Some(role) = state.vacant.pop_front() {
                break Some(role);
            }
            if last {
                self.threads.vacancy.wait(&mut state);
            } else if self.threads.vacancy.wait_for(&mut state, IDLE).timed_out() && state.vacant.is_empty() {
                break None;
            }
        };
        state.idle -= 1;
        if role.is_none() && !last {
            state.started -= 1;
        }
        role
    }

    /// Takes the role back that the calling thread gave away, if nobody has taken it yet.
    pub(super) fn take_back(&self, role: usize) -> bool {
        let mut state = self.threads.state.lock();
        let Some(at) = state.vacant.iter().position(|vacant| *vacant == role) else {
            return false;
        };
        state.vacant.remove(at);
        state.working += 1;
        CURRENT.set(Some(role));
        true
    }

    /// Gives the calling thread's role to another.
    fn hand_off(self: &Arc<Self>, role: usize) -> bool {
        let mut state = self.threads.state.lock();
        if state.idle > state.vacant.len() {
            state.vacant.push_back(role);
            self.threads.vacancy.notify_one();
        } else {
            if state.started >= MAX_THREADS {
                return false;
            }
            drop(state);
            if self.start_thread(role).is_err() {
                return false;
            }
            state = self.threads.state.lock();
        }
        state.working = state.working.saturating_sub(1);
        drop(state);
        CURRENT.set(None);
        true
    }
}
