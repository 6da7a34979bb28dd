//! Waiting that may take long on a thread that others need meanwhile.
//!
//! A worker of the kernel runs the tasks of many guests. What one of them waits for (an answer of the gofer, a lock that
//! is held while the gofer is asked) comes within microseconds as a rule, and then waiting in place is the quickest.
//! When it does not come, the thread hands the worker's work over to another thread ([`Waiter::hand_off`]) and waits
//! on: only its own task stands still, and that one can still be killed ([`Waiter::given_up`]).
//!
//! Threads without a waiter (start-up, pools, tests) wait in place.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_lock::rank::Rank;
use sentry_lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long a thread waits before it hands its work over: longer than handing over takes, and than usual answers.
const BRIEF: Duration = Duration::from_micros(500);
/// How often a waiting thread then looks whether anybody still wants what it waits for: first, and later on.
const PIECES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// What a thread does before it waits long.
pub trait Waiter {
    /// Has another thread do this one's work from now on; false if there is none. The second call for the same work
    /// does nothing.
    fn hand_off(&self) -> bool;
    /// True if nobody wants what is waited for any more.
    fn given_up(&self) -> bool;
}

thread_local! {
    static WAITER: RefCell<Option<Rc<dyn Waiter>>> = const { RefCell::new(None) };
}

/// Sets this thread's waiter.
pub fn set_waiter(waiter: Option<Rc<dyn Waiter>>) {
    WAITER.set(waiter);
}

fn waiter() -> Option<Rc<dyn Waiter>> {
    WAITER.with_borrow(Clone::clone)
}

/// Waits: `attempt` waits for at most the time it is given, and gives a value when there is one.
///
/// # Errors
/// `EINTR` if nobody wants the value any more; `ENOMEM` if there is no other thread to do this one's work.
pub fn wait<T>(mut attempt: impl FnMut(Duration) -> Option<T>) -> Result<T, Errno> {
    if let Some(value) = attempt(BRIEF) {
        return Ok(value);
    }
    let waiter = waiter();
    if waiter.as_ref().is_some_and(|waiter| !waiter.hand_off()) {
        return Err(Errno::ENOMEM);
    }
    let mut piece = PIECES.0;
    loop {
        if waiter.as_ref().is_some_and(|waiter| waiter.given_up()) {
            return Err(Errno::EINTR);
        }
        if let Some(value) = attempt(piece) {
            return Ok(value);
        }
        piece = (piece * 2).min(PIECES.1);
    }
}

/// As [`wait`], but until there is a value, whatever happens.
fn wait_anyway<T>(mut attempt: impl FnMut(Duration) -> Option<T>) -> T {
    if let Some(value) = attempt(BRIEF) {
        return value;
    }
    if let Some(waiter) = waiter() {
        // With nobody to do the work it has to wait.
        waiter.hand_off();
    }
    loop {
        if let Some(value) = attempt(Duration::from_secs(60)) {
            return value;
        }
    }
}

/// A lock of rank `R` that may be held as long as the gofer takes to answer.
#[derive(Debug)]
pub struct LongMutex<T, R>(Mutex<T, R>);

impl<T: Default, R: Rank> Default for LongMutex<T, R> {
    fn default() -> Self {
        LongMutex::new(T::default())
    }
}

impl<T, R: Rank> LongMutex<T, R> {
    /// A lock around `value`.
    pub const fn new(value: T) -> LongMutex<T, R> {
        LongMutex(Mutex::new(value))
    }

    /// Locks.
    ///
    /// # Errors
    /// Those of [`wait`].
    #[track_caller]
    pub fn lock(&self) -> Result<MutexGuard<'_, T, R>, Errno> {
        match self.0.try_lock_in_order() {
            Some(guard) => Ok(guard),
            None => wait(|limit| self.0.try_lock_for(limit)),
        }
    }

    /// Locks one more of a rank of which one is held. The caller knows in which order those come.
    ///
    /// # Errors
    /// Those of [`wait`].
    #[track_caller]
    pub fn lock_another(&self) -> Result<MutexGuard<'_, T, R>, Errno> {
        match self.0.try_lock_another() {
            Some(guard) => Ok(guard),
            None => wait(|limit| self.0.try_lock_another_for(limit)),
        }
    }

    /// Locks where nothing may fail any more. For work that is done under the lock already or must not be left out.
    #[track_caller]
    pub fn lock_anyway(&self) -> MutexGuard<'_, T, R> {
        match self.0.try_lock_in_order() {
            Some(guard) => guard,
            None => wait_anyway(|limit| self.0.try_lock_for(limit)),
        }
    }

    /// Locks if nobody else has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        self.0.try_lock()
    }

    /// The value of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// As [`LongMutex`], for readers and writers.
#[derive(Debug)]
pub struct LongRwLock<T, R>(RwLock<T, R>);

impl<T, R: Rank> LongRwLock<T, R> {
    /// A lock around `value`.
    pub const fn new(value: T) -> LongRwLock<T, R> {
        LongRwLock(RwLock::new(value))
    }

    /// Locks for reading where nothing may fail.
    #[track_caller]
    pub fn read_anyway(&self) -> RwLockReadGuard<'_, T, R> {
        match self.0.try_read_in_order() {
            Some(guard) => guard,
            None => wait_anyway(|limit| self.0.try_read_for(limit)),
        }
    }

    /// Locks for writing.
    ///
    /// # Errors
    /// Those of [`wait`].
    #[track_caller]
    pub fn write(&self) -> Result<RwLockWriteGuard<'_, T, R>, Errno> {
        match self.0.try_write_in_order() {
            Some(guard) => Ok(guard),
            None => wait(|limit| self.0.try_write_for(limit)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use sentry_lock::rank::{DentryChildren, RenameLock};
    use std::cell::Cell;

    /// Hands off so often, and gives up after so many looks.
    struct Patience {
        hand_offs: Cell<u32>,
        looks: Cell<u32>,
    }

    impl Waiter for Patience {
        fn hand_off(&self) -> bool {
            let left = self.hand_offs.get();
            self.hand_offs.set(left.saturating_sub(1));
            left > 0
        }
        fn given_up(&self) -> bool {
            let left = self.looks.get();
            self.looks.set(left.saturating_sub(1));
            left == 0
        }
    }

    fn patience(hand_offs: u32, looks: u32) -> Rc<Patience> {
        let waiter = Rc::new(Patience {
            hand_offs: Cell::new(hand_offs),
            looks: Cell::new(looks),
        });
        set_waiter(Some(waiter.clone()));
        waiter
    }

    #[test]
    fn what_is_there_is_taken_in_place() {
        let waiter = patience(1, 1);
        assert_eq!(wait(|_| Some(5)), Ok(5));
        let lock = LongMutex::<_, DentryChildren>::new(1);
        *lock.lock().unwrap() += 1;
        assert_eq!(*lock.lock_anyway(), 2);
        assert_eq!((waiter.hand_offs.get(), waiter.looks.get()), (1, 1));
    }

    #[test]
    fn a_long_wait_hands_off_once_and_can_be_given_up() {
        let lock = LongMutex::<_, DentryChildren>::new(());
        elsewhere(
            || lock.lock_anyway(),
            || {
                let waiter = patience(5, 2);
                assert_eq!(lock.lock().err(), Some(Errno::EINTR));
                assert_eq!((waiter.hand_offs.get(), waiter.looks.get()), (4, 0));
                patience(0, 2);
                assert_eq!(lock.lock().err(), Some(Errno::ENOMEM));
            },
        );
        assert!(lock.lock().is_ok());
        let lock = LongRwLock::<_, RenameLock>::new(());
        elsewhere(
            || lock.read_anyway(),
            || {
                patience(1, 1);
                assert_eq!(lock.write().err(), Some(Errno::EINTR));
            },
        );
        assert!(lock.write().is_ok());
    }

    /// Does something while another thread holds a lock.
    fn elsewhere<G>(lock: impl FnOnce() -> G + Send, then: impl FnOnce()) {
        let (held, locked) = std::sync::mpsc::channel();
        let (done, finished) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let guard = lock();
                held.send(()).unwrap();
                // Until then, or until that has failed.
                let _ = finished.recv();
                drop(guard);
            });
            locked.recv().unwrap();
            then();
            drop(done);
        });
    }

    #[test]
    fn some_locks_are_waited_for_anyway() {
        let lock = LongMutex::<_, DentryChildren>::new(0);
        std::thread::scope(|scope| {
            let held = lock.lock().unwrap();
            scope.spawn(|| {
                patience(0, 0);
                *lock.lock_anyway() += 1;
            });
            std::thread::sleep(BRIEF * 3);
            drop(held);
        });
        assert_eq!(*lock.lock_anyway(), 1);
    }
}
