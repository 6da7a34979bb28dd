//! These run in debug builds; in release builds there is nothing to see.

use crate::rank::{Armed, GuestState, Outbox};
use crate::{Condvar, Mutex, RwLock};

fn panics(work: impl FnOnce() + Send + 'static) -> bool {
    std::thread::spawn(work).join().is_err()
}

#[test]
fn in_order_all_is_well() {
    let (first, second) = (Mutex::<_, GuestState>::new(1), RwLock::<_, Armed>::new(2));
    let mut one = first.lock();
    let two = second.read();
    *one += *two;
    // Released out of order.
    drop(one);
    let third = Mutex::<_, Outbox>::new(5);
    assert_eq!(*third.lock() + *two, 7);
    drop(two);
    *second.write() += *first.lock_another();
    assert_eq!(second.into_inner(), 5);
}

#[test]
fn a_condition_releases_its_lock() {
    let (lock, condition) = (Mutex::<_, Armed>::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ready = lock.lock();
            while !*ready {
                condition.wait(&mut ready);
            }
        });
        *lock.lock() = true;
        condition.notify_all();
    });
}

#[cfg(debug_assertions)]
mod order {
    use super::*;

    #[test]
    fn the_other_way_round_panics() {
        assert!(panics(|| {
            let (first, second) = (Mutex::<_, GuestState>::new(()), Mutex::<_, Armed>::new(()));
            let _second = second.lock();
            let _first = first.lock();
        }));
        assert!(panics(|| {
            let (first, second) = (RwLock::<_, GuestState>::new(()), RwLock::<_, Armed>::new(()));
            let _second = second.read();
            let _first = first.read();
        }));
    }

    #[test]
    fn two_of_a_kind_need_a_reason() {
        assert!(panics(|| {
            let (first, second) = (Mutex::<_, Armed>::new(()), Mutex::<_, Armed>::new(()));
            let _first = first.lock();
            let _second = second.lock();
        }));
        let (first, second) = (Mutex::<_, Armed>::new(()), Mutex::<_, Armed>::new(()));
        let _first = first.lock();
        let _second = second.lock_another();
    }

    #[test]
    fn what_does_not_wait_needs_no_order() {
        let (first, second) = (Mutex::<_, GuestState>::new(()), Mutex::<_, Armed>::new(()));
        let second = second.lock();
        assert!(first.try_lock().is_some());
        drop(second);
        let _first = first.lock();
    }

    #[test]
    fn who_waits_if_it_fails_needs_the_order() {
        assert!(panics(|| {
            let (first, second) = (Mutex::<_, GuestState>::new(()), Mutex::<_, Armed>::new(()));
            let _second = second.lock();
            let _first = first.try_lock_in_order();
        }));
        let (first, second) = (RwLock::<_, GuestState>::new(()), Mutex::<_, Armed>::new(()));
        let _first = first.try_read_in_order();
        let second = second.try_lock_in_order();
        assert!(second.is_some());
    }

    #[test]
    fn a_wait_with_something_else_held_panics() {
        assert!(panics(|| {
            let (first, second) = (Mutex::<_, GuestState>::new(()), Mutex::<_, Armed>::new(()));
            let _first = first.lock();
            let time = std::time::Duration::from_millis(1);
            Condvar::new().wait_for(&mut second.lock(), time);
        }));
    }
}
