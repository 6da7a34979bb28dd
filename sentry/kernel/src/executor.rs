//! The executor: worker threads that run guest tasks, wait for guests, host descriptors and timers.
//!
//! A worker runs its ready tasks, hands the platform the collected answers, looks for guests that have come back,
//! spins for a short while where that pays, and parks in one `epoll_wait`. A task stays on the worker on which it
//! was spawned. Worker 0 also watches the host descriptors. A thread whose task waits long inside of a step gives its
//! worker to another thread (`threads.rs`).

mod blocking;
mod reactor;
mod threads;
mod timers;
pub(crate) mod watch;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_task::{Runnable, Task};
use sentry_abi::Errno;
use sentry_host::epoll::{Epoll, Interest};
use sentry_lock::{Mutex, rank};
use sentry_platform::Platform;

pub use blocking::BlockingPool;
pub use reactor::{HostReady, HostWatch};
pub use threads::Purpose;
pub use timers::{Deadline, Sleep, TimerKey};

/// How long a worker keeps looking for guests to come back before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// After so many tasks in a row the worker looks at guests and timers again.
const BATCH: usize = 64;

thread_local! {
    /// Which worker this host thread is.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Worker {
    ready: Mutex<VecDeque<Runnable>, rank::ReadyTasks>,
    /// Set while it is, or is about to be, asleep.
    parked: AtomicBool,
    timers: timers::Timers,
    epoll: Epoll,
    pulse: watch::Pulse,
    /// Tasks that have not ended.
    tasks: Arc<AtomicUsize>,
}

/// Counts a task of a worker as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The worker threads' shared state.
pub struct Executor {
    platform: Arc<dyn Platform>,
    workers: Vec<Worker>,
    stopping: AtomicBool,
    reactor: reactor::Reactor,
    pool: BlockingPool,
    threads: threads::Threads,
    watch: watch::Watch,
}

/// How many tasks more than the idlest a worker may have before new ones go elsewhere.
const IMBALANCE: usize = 16;

/// The token of a worker's doorbell in its epoll set; others are host descriptors.
const DOORBELL: u64 = u64::MAX;

impl Executor {
    /// An executor of `workers` workers (at least one). Nothing runs before [`Executor::run`].
    pub fn new(platform: Arc<dyn Platform>, workers: usize) -> Result<Arc<Executor>, Errno> {
        let mut list = Vec::new();
        for index in 0..workers.max(1) {
            let epoll = Epoll::new()?;
            epoll.add(platform.doorbell(index), Interest::READ, DOORBELL)?;
            list.push(Worker {
                ready: Mutex::new(VecDeque::new()),
                parked: AtomicBool::new(false),
                timers: timers::Timers::default(),
                epoll,
                pulse: watch::Pulse::default(),
                tasks: Arc::default(),
            });
        }
        Ok(Arc::new(Executor {
            platform,
            workers: list,
            stopping: AtomicBool::new(false),
            reactor: reactor::Reactor::default(),
            pool: BlockingPool::new(),
            threads: threads::Threads::default(),
            watch: watch::Watch::default(),
        }))
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The worker for a thread made by one of worker `near`: the same, since those who talk to each other are best
    /// served by one; another when that one has far more to do.
    pub fn pick_worker(&self, near: usize) -> usize {
        let load = |index: usize| {
            self.workers
                .get(index)
                .map_or(usize::MAX, |w| w.tasks.load(Ordering::Relaxed))
        };
        let least = (0..self.workers.len()).min_by_key(|index| load(*index)).unwrap_or(0);
        if load(near) > load(least).saturating_add(IMBALANCE) {
            least
        } else {
            near % self.workers.len()
        }
    }

    /// The worker that runs the caller, if it is one.
    pub fn current_worker() -> Option<usize> {
        CURRENT.get()
    }

    /// Runs `future` as a task on `worker` (modulo the number of workers). The task runs on its own.
    pub fn spawn(self: &Arc<Self>, worker: usize, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_task(worker, future).detach();
    }

    /// As [`Executor::spawn`], on behalf of `purpose`.
    pub fn spawn_for(
        self: &Arc<Self>,
        purpose: Arc<dyn Purpose>,
        worker: usize,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(worker, threads::for_purpose(purpose, future));
    }

    /// As [`Executor::spawn`]; dropping the task cancels it.
    pub fn spawn_task<T: Send + 'static>(
        self: &Arc<Self>,
        worker: usize,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let worker = worker % self.workers.len();
        let executor = Arc::downgrade(self);
        let schedule = move |runnable: Runnable| {
            if let Some(executor) = executor.upgrade() {
                executor.push(worker, runnable);
            }
        };
        let tasks = self.workers[worker].tasks.clone();
        tasks.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(tasks);
        let future = async move {
            let _counted = counted;
            future.await
        };
        let (runnable, task) = async_task::spawn(future, schedule);
        runnable.schedule();
        task
    }

    fn push(&self, index: usize, runnable: Runnable) {
        let Some(worker) = self.workers.get(index) else { return };
        worker.ready.lock().push_back(runnable);
        if CURRENT.get() != Some(index) && worker.parked.swap(false, Ordering::SeqCst) {
            self.ring(index);
        }
    }

    /// Wakes a worker that is asleep.
    fn ring(&self, index: usize) {
        // A full counter means that it is readable, which is all that is wanted.
        let _ = sentry_host::eventfd::signal(self.platform.doorbell(index));
    }

    /// Runs the workers, this thread being worker 0, until [`Executor::stop`].
    pub fn run(self: &Arc<Self>) -> std::io::Result<()> {
        for index in 1..self.workers.len() {
            self.start_thread(index)?;
        }
        self.start_watch()?;
        self.serve(0, true);
        self.await_workers();
        Ok(())
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Makes all workers return. Tasks that are not finished are left as they are.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for (index, worker) in self.workers.iter().enumerate() {
            worker.parked.store(false, Ordering::SeqCst);
            self.ring(index);
        }
        self.rouse_watch();
        self.threads.stop();
    }

    /// Does a worker's work until the executor stops; false if the work was handed over to another thread.
    fn work(&self, index: usize) -> bool {
        CURRENT.set(Some(index));
        let Some(worker) = self.workers.get(index) else {
            return true;
        };
        worker.pulse.begin();
        while !self.stopping() {
            worker.pulse.beat();
            let ran = self.run_ready(worker);
            if CURRENT.get().is_none() {
                if !self.take_back(index) {
                    // The last task may have left an answer.
                    self.platform.flush(index);
                    return false;
                }
                worker.pulse.begin();
            }
            worker.timers.fire();
            if ran == BATCH && index == 0 {
                self.poll_host(worker, Some(Duration::ZERO));
            }
            self.platform.flush(index);
            let came_back = self.platform.scan(index);
            if came_back > 0 || !worker.ready.lock().is_empty() {
                continue;
            }
            if self.platform.should_spin(index) && self.spin(index, worker) {
                continue;
            }
            self.park(index, worker);
        }
        CURRENT.set(None);
        true
    }

    /// Runs up to [`BATCH`] ready tasks, and no more if one hands the work over; how many it were.
    fn run_ready(&self, worker: &Worker) -> usize {
        for count in 0..BATCH {
            let next = worker.ready.lock().pop_front();
            match next {
                Some(runnable) => {
                    runnable.run();
                    if CURRENT.get().is_none() {
                        return count;
                    }
                    worker.pulse.beat();
                }
                None => return count,
            }
        }
        BATCH
    }

    /// Looks for returning guests for a while; true when there is something to do.
    fn spin(&self, index: usize, worker: &Worker) -> bool {
        let until = Instant::now() + SPIN;
        loop {
            for _ in 0..16 {
                if self.platform.scan(index) > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
            if !worker.ready.lock().is_empty() || self.stopping.load(Ordering::Relaxed) {
                return true;
            }
            if Instant::now() >= until || !self.platform.should_spin(index) {
                return false;
            }
        }
    }

    fn park(&self, index: usize, worker: &Worker) {
        worker.parked.store(true, Ordering::SeqCst);
        let idle = worker.ready.lock().is_empty() && !self.stopping.load(Ordering::SeqCst);
        if idle && self.platform.prepare_park(index) {
            self.poll_host(worker, worker.timers.next().map(|deadline| deadline.remaining()));
            self.platform.unpark(index);
        }
        worker.parked.store(false, Ordering::SeqCst);
        self.rouse_watch();
    }

    /// Waits on the worker's epoll set and wakes whoever waits for its descriptors.
    fn poll_host(&self, worker: &Worker, timeout: Option<Duration>) {
        let mut events = [sentry_host::epoll::Event::default(); 32];
        // An error (EINTR) is the same as no event.
        let count = worker.epoll.wait(&mut events, timeout).unwrap_or(0);
        // What follows is work, which the watch is to see.
        worker.parked.store(false, Ordering::SeqCst);
        for event in events.iter().take(count) {
            if event.token() != DOORBELL {
                self.reactor.dispatch(&worker.epoll, event.token(), event.readiness());
            }
        }
    }

    /// The epoll set that host descriptors are registered with.
    fn host_epoll(&self) -> &Epoll {
        // There is always a worker 0.
        &self.workers[0].epoll
    }

    fn timers(&self, worker: usize) -> Option<&timers::Timers> {
        self.workers.get(worker).map(|worker| &worker.timers)
    }

    /// The pool for host calls that may block.
    pub fn pool(&self) -> &BlockingPool {
        &self.pool
    }

    /// Runs a host call that may block on a thread of the pool.
    pub fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        self.pool.run(call)
    }
}

#[cfg(test)]
mod tests;
