use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sentry_abi::Errno;
use sentry_platform::{BoxFuture, GuestLayout, GuestThread, Platform};
use sentry_vfs::wait::PollEvents;

use super::{Deadline, Executor, Purpose};

/// A platform without guests.
struct NoGuests {
    doorbells: Vec<OwnedFd>,
}

impl Platform for NoGuests {
    fn name(&self) -> &'static str {
        "none"
    }
    fn layout(&self) -> GuestLayout {
        GuestLayout {
            low: 0,
            high: 0,
            mmap_base: 0,
            host_vdso: 0,
        }
    }
    fn new_process(&self) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async { Err(Errno::ENOMEM) })
    }
    fn scan(&self, _worker: usize) -> usize {
        0
    }
    fn flush(&self, _worker: usize) {}
    fn should_spin(&self, _worker: usize) -> bool {
        false
    }
    fn prepare_park(&self, _worker: usize) -> bool {
        true
    }
    fn unpark(&self, worker: usize) {
        let _ = sentry_host::eventfd::drain(self.doorbells[worker].as_fd());
    }
    fn doorbell(&self, worker: usize) -> BorrowedFd<'_> {
        self.doorbells[worker].as_fd()
    }
}

fn executor(workers: usize) -> Arc<Executor> {
    let doorbells = (0..workers).map(|_| sentry_host::eventfd::new().unwrap()).collect();
    Executor::new(Arc::new(NoGuests { doorbells }), workers).unwrap()
}

/// Runs `future` on worker 0 and gives its value.
fn run<T: Send + 'static>(executor: &Arc<Executor>, future: impl Future<Output = T> + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    let stopper = executor.clone();
    executor.spawn(0, async move {
        send.send(future.await).unwrap();
        stopper.stop();
    });
    executor.run().unwrap();
    receive.recv().unwrap()
}

#[test]
fn a_sleep_ends_at_its_time_and_not_before() {
    let executor = executor(1);
    let begin = Instant::now();
    let sleep = executor.sleep_until(Deadline::after(Duration::from_millis(20)));
    run(&executor, sleep);
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

#[test]
fn timers_fire_in_order_and_cancelled_ones_do_not() {
    let executor = executor(1);
    let (send, receive) = mpsc::channel();
    for millis in [6u64, 2, 4] {
        let send = send.clone();
        executor.timer_call(Deadline::after(Duration::from_millis(millis)), move || {
            send.send(millis).unwrap()
        });
    }
    let unwanted = executor.timer_call(Deadline::after(Duration::from_millis(1)), move || send.send(1).unwrap());
    assert!(executor.timer_cancel(unwanted));
    assert!(!executor.timer_cancel(unwanted));
    let sleep = executor.sleep_until(Deadline::after(Duration::from_millis(20)));
    run(&executor, sleep);
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), [2, 4, 6]);
}

#[test]
fn tasks_on_several_workers_wake_each_other() {
    let executor = executor(3);
    let total = Arc::new(AtomicUsize::new(0));
    let (counter, inner) = (total.clone(), executor.clone());
    run(&executor, async move {
        let tasks: Vec<_> = (0..300)
            .map(|index| {
                let counter = counter.clone();
                let executor = inner.clone();
                inner.spawn_task(index, async move {
                    executor.sleep_until(Deadline::after(Duration::from_micros(50))).await;
                    counter.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 300);
}

#[test]
fn a_hung_host_call_delays_nobody() {
    let executor = executor(1);
    let (never, hung) = mpsc::channel::<()>();
    drop(executor.blocking(move || hung.recv()));
    let answer = executor.blocking(|| 7);
    assert_eq!(run(&executor, answer), 7);
    drop(never);
}

/// What a task waits for on its thread.
fn wait_for<T>(receive: &mpsc::Receiver<T>) -> Result<T, Errno> {
    sentry_host::waiting::wait(|limit| receive.recv_timeout(limit).ok())
}

#[test]
fn a_task_that_waits_on_its_thread_stops_nobody() {
    let executor = executor(1);
    let (send, receive) = mpsc::channel();
    let (again, both) = mpsc::channel();
    let inner = executor.clone();
    let result = run(&executor, async move {
        let first = inner.spawn_task(0, async move { (wait_for(&receive), wait_for(&both)) });
        // On the same worker, which the other task's thread has given up.
        inner.sleep_until(Deadline::after(Duration::from_millis(5))).await;
        send.send(1).unwrap();
        inner.sleep_until(Deadline::after(Duration::from_millis(5))).await;
        again.send(2).unwrap();
        first.await
    });
    assert_eq!(result, (Ok(1), Ok(2)));
}

struct Gone(AtomicBool);

impl Purpose for Gone {
    fn is_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn what_a_task_waits_for_is_given_up_with_its_purpose() {
    let executor = executor(1);
    let (_never, receive) = mpsc::channel::<()>();
    let (done, waited) = mpsc::channel();
    let purpose = Arc::new(Gone(AtomicBool::new(false)));
    executor.spawn_for(purpose.clone(), 0, async move {
        done.send(wait_for(&receive)).unwrap();
    });
    let inner = executor.clone();
    run(&executor, async move {
        inner.sleep_until(Deadline::after(Duration::from_millis(5))).await;
        purpose.0.store(true, Ordering::SeqCst);
    });
    // Whether it was the purpose or the end, it has been given up.
    assert_eq!(waited.recv_timeout(Duration::from_secs(10)), Ok(Err(Errno::EINTR)));
}

#[test]
fn an_executor_stops_though_its_threads_wait() {
    let executor = executor(2);
    let (never, receive) = mpsc::channel::<()>();
    let receive = Arc::new(parking_lot::Mutex::new(receive));
    for worker in 0..20 {
        let receive = receive.clone();
        executor.spawn(worker, async move {
            let _ = sentry_host::waiting::wait(|limit| receive.try_lock_for(limit)?.recv_timeout(limit).ok());
        });
    }
    let sleep = executor.sleep_until(Deadline::after(Duration::from_millis(20)));
    run(&executor, sleep);
    drop(never);
}

/// With more waiting than there may be threads, the rest is refused, and the worker works on.
#[test]
fn threads_that_wait_are_bounded() {
    let executor = executor(1);
    let (_never, receive) = mpsc::channel::<()>();
    let receive = Arc::new(parking_lot::Mutex::new(receive));
    let refused = Arc::new(AtomicUsize::new(0));
    for _ in 0..300 {
        let (receive, refused) = (receive.clone(), refused.clone());
        executor.spawn(0, async move {
            let waited = sentry_host::waiting::wait(|limit| receive.try_lock_for(limit)?.recv_timeout(limit).ok());
            if waited == Err(Errno::ENOMEM) {
                refused.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let (inner, count) = (executor.clone(), refused.clone());
    run(&executor, async move {
        while count.load(Ordering::SeqCst) < 300 - 257 {
            inner.sleep_until(Deadline::after(Duration::from_millis(1))).await;
        }
    });
    let refused = refused.load(Ordering::SeqCst);
    assert!((43..=45).contains(&refused), "{refused}");
}

#[test]
fn host_descriptors_are_waited_for() {
    let executor = executor(1);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let ready = executor.host_ready(&reader, PollEvents::IN);
    let timer = executor.timer_call(Deadline::after(Duration::from_millis(5)), move || {
        writer.write_all(b"x").unwrap();
    });
    assert!(run(&executor, ready).contains(PollEvents::IN));
    assert!(!executor.timer_cancel(timer));
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
}

#[test]
fn a_regular_file_is_always_ready() {
    let executor = executor(1);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let ready = executor.host_ready(&file, PollEvents::IN);
    assert_eq!(run(&executor, ready), PollEvents::IN);
}
