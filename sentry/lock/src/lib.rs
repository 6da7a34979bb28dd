//! Locks with ranks: who holds a lock may take one of a higher rank only, so no two threads can wait for each other.
//!
//! The ranks, their order and the reasons for it stand in [`rank`]. A lock's rank is part of its type. A debug build
//! keeps the ranks that each thread holds, and panics where a lock is taken out of order, whether or not another thread
//! is in the way at that moment. In a release build nothing of this is left: these are the locks of `parking_lot`.
#![forbid(unsafe_code)]

mod held;
pub mod rank;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub use parking_lot::WaitTimeoutResult;

use crate::held::Held;
use crate::rank::Rank;

/// A mutual exclusion lock of rank `R`.
pub struct Mutex<T: ?Sized, R> {
    rank: PhantomData<R>,
    inner: parking_lot::Mutex<T>,
}

/// Releases a [`Mutex`] when dropped. Not `Send`, so that none is held over an `.await`.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized, R: Rank> {
    // Dropped in this order: the lock first.
    inner: parking_lot::MutexGuard<'a, T>,
    _held: Held<R>,
}

impl<T, R: Rank> Mutex<T, R> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Mutex<T, R> {
        Mutex {
            rank: PhantomData,
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The value of a lock that nobody else can have.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: Rank> Mutex<T, R> {
    /// Locks; waits while another thread has it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        let held = Held::take();
        MutexGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    /// Locks one more of a rank of which one is held. The caller knows in which order those come.
    #[track_caller]
    pub fn lock_another(&self) -> MutexGuard<'_, T, R> {
        let held = Held::take_another();
        MutexGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    /// Locks if nobody has it. That cannot wait, so it needs no order.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard {
            inner,
            _held: Held::out_of_order(),
        })
    }

    /// As [`Mutex::try_lock`], for who waits if it fails: the order counts.
    #[track_caller]
    pub fn try_lock_in_order(&self) -> Option<MutexGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, _held: held })
    }

    /// As [`Mutex::try_lock_in_order`], for one more of a rank of which one is held.
    #[track_caller]
    pub fn try_lock_another(&self) -> Option<MutexGuard<'_, T, R>> {
        let held = Held::take_another();
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, _held: held })
    }

    /// As [`Mutex::lock`], but gives up after a time.
    #[track_caller]
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_lock_for(time)?;
        Some(MutexGuard { inner, _held: held })
    }

    /// As [`Mutex::lock_another`], but gives up after a time.
    #[track_caller]
    pub fn try_lock_another_for(&self, time: Duration) -> Option<MutexGuard<'_, T, R>> {
        let held = Held::take_another();
        let inner = self.inner.try_lock_for(time)?;
        Some(MutexGuard { inner, _held: held })
    }

    /// The value of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R: Rank> Default for Mutex<T, R> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized, R: Rank> Deref for MutexGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R: Rank> DerefMut for MutexGuard<'_, T, R> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A lock of rank `R` for many readers or one writer.
pub struct RwLock<T: ?Sized, R> {
    rank: PhantomData<R>,
    inner: parking_lot::RwLock<T>,
}

/// Ends the reading of a [`RwLock`] when dropped.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized, R: Rank> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held<R>,
}

/// Ends the writing of a [`RwLock`] when dropped.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized, R: Rank> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held<R>,
}

impl<T, R: Rank> RwLock<T, R> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T, R> {
        RwLock {
            rank: PhantomData,
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The value of a lock that nobody else can have.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: Rank> RwLock<T, R> {
    /// Locks for reading.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, R> {
        let held = Held::take();
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Locks one more of a rank of which one is held, for reading. The caller knows in which order those come.
    #[track_caller]
    pub fn read_another(&self) -> RwLockReadGuard<'_, T, R> {
        let held = Held::take_another();
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Locks for writing.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, R> {
        let held = Held::take();
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// Locks one more of a rank of which one is held, for writing. The caller knows in which order those come.
    #[track_caller]
    pub fn write_another(&self) -> RwLockWriteGuard<'_, T, R> {
        let held = Held::take_another();
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// Locks for reading if that needs no waiting.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, R>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard {
            inner,
            _held: Held::out_of_order(),
        })
    }

    /// Locks for writing if that needs no waiting.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, R>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard {
            inner,
            _held: Held::out_of_order(),
        })
    }

    /// As [`RwLock::try_read`], for who waits if it fails: the order counts.
    #[track_caller]
    pub fn try_read_in_order(&self) -> Option<RwLockReadGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: held })
    }

    /// As [`RwLock::try_write`], for who waits if it fails: the order counts.
    #[track_caller]
    pub fn try_write_in_order(&self) -> Option<RwLockWriteGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: held })
    }

    /// As [`RwLock::read`], but gives up after a time.
    #[track_caller]
    pub fn try_read_for(&self, time: Duration) -> Option<RwLockReadGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_read_for(time)?;
        Some(RwLockReadGuard { inner, _held: held })
    }

    /// As [`RwLock::write`], but gives up after a time.
    #[track_caller]
    pub fn try_write_for(&self, time: Duration) -> Option<RwLockWriteGuard<'_, T, R>> {
        let held = Held::take();
        let inner = self.inner.try_write_for(time)?;
        Some(RwLockWriteGuard { inner, _held: held })
    }

    /// The value of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R: Rank> Default for RwLock<T, R> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized, R: Rank> Deref for RwLockReadGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R: Rank> Deref for RwLockWriteGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R: Rank> DerefMut for RwLockWriteGuard<'_, T, R> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition variable that nobody waits for.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Releases the lock and waits. No other lock may be held.
    #[track_caller]
    pub fn wait<T: ?Sized, R: Rank>(&self, guard: &mut MutexGuard<'_, T, R>) {
        held::assert_one();
        self.0.wait(&mut guard.inner);
    }

    /// As [`Condvar::wait`], for at most a time.
    #[track_caller]
    pub fn wait_for<T: ?Sized, R: Rank>(&self, guard: &mut MutexGuard<'_, T, R>, time: Duration) -> WaitTimeoutResult {
        held::assert_one();
        self.0.wait_for(&mut guard.inner, time)
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests;
