//! For tests: single steps on the ptrace platform, where the tracer alone can make them.
//!
//! A thread named by [`step`] is stepped from its next resumption on, through the operations of the stub and on in
//! the guest's code. After so many steps the tracer waits, so that something can be done at just that place; then it
//! goes on as always.

use crossbeam::channel::{Receiver, Sender, bounded};
use sentry_lock::{Mutex, rank};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// The test's end of a plan.
pub struct Steps {
    at: Receiver<u64>,
    go: Sender<()>,
}

impl Steps {
    /// Waits until the steps have been made: where the thread is. None if it came back before.
    pub fn wait(&self) -> Option<u64> {
        self.at.recv_timeout(PATIENCE).ok()
    }

    /// Lets the tracer go on.
    pub fn go(self) {
        let _ = self.go.send(());
    }
}

struct Plan {
    tid: i32,
    left: u32,
    at: Sender<u64>,
    go: Receiver<()>,
}

static PLAN: Mutex<Option<Plan>, rank::StepPlan> = Mutex::new(None);

/// Plans `count` steps of the host thread `tid`.
pub fn step(tid: i32, count: u32) -> Steps {
    let ((at, wait), (go, gone)) = (bounded(1), bounded(1));
    *PLAN.lock() = Some(Plan {
        tid,
        left: count,
        at,
        go: gone,
    });
    Steps { at: wait, go }
}

/// What to do with a thread that is about to be resumed.
pub(crate) enum Next {
    Resume,
    Step,
    /// Tell the test where the thread is, then resume it.
    Tell(Told),
}

pub(crate) struct Told(Plan);

impl Told {
    /// Tells the test, and waits until it has done what it wants to.
    pub fn tell(self, rip: u64) {
        let _ = self.0.at.send(rip);
        let _ = self.0.go.recv_timeout(PATIENCE);
    }
}

pub(crate) fn next(tid: i32) -> Next {
    let mut plan = PLAN.lock();
    match plan.as_ref().map(|plan| (plan.tid, plan.left)) {
        Some((planned, 0)) if planned == tid => plan.take().map_or(Next::Resume, |plan| Next::Tell(Told(plan))),
        Some((planned, _)) if planned == tid => Next::Step,
        _ => Next::Resume,
    }
}

/// A trap has stopped the thread: true if it was a step.
pub(crate) fn stepped(tid: i32) -> bool {
    let mut plan = PLAN.lock();
    let plan = plan.as_mut().filter(|plan| plan.tid == tid && plan.left > 0);
    plan.map(|plan| plan.left -= 1).is_some()
}

/// The thread has come back: what is planned for it will not happen.
pub(crate) fn came_back(tid: i32) {
    let mut plan = PLAN.lock();
    if plan.as_ref().is_some_and(|plan| plan.tid == tid) {
        *plan = None;
    }
}
