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

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sentry_abi::Errno;

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

/// A lock that may be held as long as the gofer takes to answer.
#[derive(Debug, Default)]
pub struct LongMutex<T>(Mutex<T>);

impl<T> LongMutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> LongMutex<T> {
        LongMutex(Mutex::new(value))
    }

    /// Locks.
    ///
    /// # Errors
    /// Those of [`wait`].
    pub fn lock(&self) -> Result<MutexGuard<'_, T>, Errno> {
        match self.0.try_lock() {
            Some(guard) => Ok(guard),
            None => wait(|limit| self.0.try_lock_for(limit)),
        }
    }

    /// Locks where nothing may fail any more. For work that is done under the lock already or must not be left out.
    pub fn lock_anyway(&self) -> MutexGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => wait_anyway(|limit| self.0.try_lock_for(limit)),
        }
    }

    /// Locks if nobody else has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// The value of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// As [`LongMutex`], for readers and writers.
#[derive(Debug, Default)]
pub struct LongRwLock<T>(RwLock<T>);

impl<T> LongRwLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> LongRwLock<T> {
        LongRwLock(RwLock::new(value))
    }

    /// Locks for reading where nothing may fail.
    pub fn read_anyway(&self) -> RwLockReadGuard<'_, T> {
        match self.0.try_read() {
            Some(guard) => guard,
            None => wait_anyway(|limit| self.0.try_read_for(limit)),
        }
    }

    /// Locks for writing.
    ///
    /// # Errors
    /// Those of [`wait`].
    pub fn write(&self) -> Result<RwLockWriteGuard<'_, T>, Errno> {
        match self.0.try_write() {
            Some(guard) => Ok(guard),
            None => wait(|limit| self.0.try_write_for(limit)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
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
        let lock = LongMutex::new(1);
        *lock.lock().unwrap() += 1;
        assert_eq!(*lock.lock_anyway(), 2);
        assert_eq!((waiter.hand_offs.get(), waiter.looks.get()), (1, 1));
    }

    #[test]
    fn a_long_wait_hands_off_once_and_can_be_given_up() {
        let waiter = patience(5, 2);
        let lock = LongMutex::new(());
        let held = lock.lock().unwrap();
        assert_eq!(lock.lock().err(), Some(Errno::EINTR));
        assert_eq!((waiter.hand_offs.get(), waiter.looks.get()), (4, 0));
        patience(0, 2);
        assert_eq!(lock.lock().err(), Some(Errno::ENOMEM));
        drop(held);
        assert!(lock.lock().is_ok());
        let lock = LongRwLock::new(());
        let held = lock.read_anyway();
        patience(1, 1);
        assert_eq!(lock.write().err(), Some(Errno::EINTR));
        drop(held);
        assert!(lock.write().is_ok());
    }

    #[test]
    fn some_locks_are_waited_for_anyway() {
        let lock = LongMutex::new(0);
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
