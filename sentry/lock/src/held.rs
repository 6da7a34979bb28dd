//! What each thread holds, in debug builds.

#[cfg(debug_assertions)]
pub(crate) use on::{Held, assert_one};

#[cfg(not(debug_assertions))]
pub(crate) use off::{Held, assert_one};

#[cfg(debug_assertions)]
mod on {
    use std::cell::RefCell;
    use std::marker::PhantomData;
    use std::panic::Location;

    use crate::rank::Rank;

    struct Entry {
        level: u16,
        name: &'static str,
        place: &'static Location<'static>,
    }

    thread_local! {
        static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    }

    /// One lock of rank `R` that this thread has.
    pub(crate) struct Held<R: Rank>(PhantomData<R>);

    impl<R: Rank> Held<R> {
        #[track_caller]
        pub fn take() -> Held<R> {
            Self::check(|level| level < R::LEVEL);
            Self::out_of_order()
        }

        #[track_caller]
        pub fn take_another() -> Held<R> {
            Self::check(|level| level <= R::LEVEL);
            Self::out_of_order()
        }

        #[track_caller]
        pub fn out_of_order() -> Held<R> {
            let entry = Entry {
                level: R::LEVEL,
                name: R::NAME,
                place: Location::caller(),
            };
            // Nothing is kept at the end of a thread, when its thread-local values are gone.
            let _ = HELD.try_with(|held| held.borrow_mut().push(entry));
            Held(PhantomData)
        }

        #[track_caller]
        fn check(allowed: impl Fn(u16) -> bool) {
            let wrong = HELD.try_with(|held| {
                let held = held.borrow();
                let wrong = held.iter().find(|entry| !allowed(entry.level));
                wrong.map(|entry| (entry.name, entry.place))
            });
            if let Ok(Some((name, place))) = wrong
                && !std::thread::panicking()
            {
                panic!("lock order: {} is taken while {name} is held, since {place}", R::NAME);
            }
        }
    }

    impl<R: Rank> Drop for Held<R> {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(index) = held.iter().rposition(|entry| entry.level == R::LEVEL) {
                    held.remove(index);
                }
            });
        }
    }

    /// Panics if this thread has more than one lock.
    #[track_caller]
    pub(crate) fn assert_one() {
        let names: Result<Vec<_>, _> = HELD.try_with(|held| held.borrow().iter().map(|entry| entry.name).collect());
        if let Ok(names) = names
            && names.len() > 1
        {
            panic!("lock order: a wait with {names:?} held");
        }
    }
}

#[cfg(not(debug_assertions))]
mod off {
    use std::marker::PhantomData;

    use crate::rank::Rank;

    pub(crate) struct Held<R: Rank>(PhantomData<R>);

    impl<R: Rank> Held<R> {
        #[inline(always)]
        pub fn take() -> Held<R> {
            Held(PhantomData)
        }

        #[inline(always)]
        pub fn take_another() -> Held<R> {
            Held(PhantomData)
        }

        #[inline(always)]
        pub fn out_of_order() -> Held<R> {
            Held(PhantomData)
        }
    }

    #[inline(always)]
    pub(crate) fn assert_one() {}
}
