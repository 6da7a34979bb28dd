//! futex(2) with priority inheritance: locks that the kernel hands over, and conditions that go with them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("futex_pi": free_lock, handed_over, try_lock, time_out, time_out_monotonic, errors, deadlock, owner_must_exist, unlock_errors,
    waiters_in_turn, between_processes, robust_owner_dies, contended, requeue_wakes_with_lock, requeue_moves, requeue_value, requeue_errors,
    wait_requeue_times_out, signal_restarts_lock);

const TID: u32 = 0x3fff_ffff;
const WAITERS: u32 = 0x8000_0000;
const LOCK_PI2: i32 = 13;

fn futex(word: &AtomicU32, op: i32, value: u32, timeout: u64, word2: u64, value3: u32) -> i64 {
    sys!(libc::SYS_futex, word.as_ptr(), op | libc::FUTEX_PRIVATE_FLAG, value, timeout, word2, value3)
}

fn lock(word: &AtomicU32) -> i64 {
    futex(word, libc::FUTEX_LOCK_PI, 0, 0, 0, 0)
}

fn unlock(word: &AtomicU32) -> i64 {
    futex(word, libc::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
}

/// A point in time so many milliseconds from now.
fn at(clock: i32, ms: i64) -> libc::timespec {
    let mut time: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, clock, &mut time as *mut _));
    time.tv_nsec += ms * 1_000_000;
    time.tv_sec += time.tv_nsec / 1_000_000_000;
    time.tv_nsec %= 1_000_000_000;
    time
}

fn address(time: &libc::timespec) -> u64 {
    std::ptr::from_ref(time) as u64
}

/// Waits until somebody waits for the lock.
fn until_waited_for(word: &AtomicU32) {
    until("somebody waits", || word.load(Ordering::SeqCst) & WAITERS != 0);
    sleep_ms(10);
}

fn free_lock() {
    let word = AtomicU32::new(0);
    eq!(lock(&word), 0);
    eq!(word.load(Ordering::SeqCst), gettid() as u32);
    eq!(unlock(&word), 0);
    eq!(word.load(Ordering::SeqCst), 0);
}

fn handed_over() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    eq!(lock(&WORD), 0);
    let thread = std::thread::spawn(|| {
        eq!(lock(&WORD), 0);
        eq!(WORD.load(Ordering::SeqCst) & TID, gettid() as u32);
        eq!(unlock(&WORD), 0);
    });
    until_waited_for(&WORD);
    eq!(WORD.load(Ordering::SeqCst), gettid() as u32 | WAITERS);
    eq!(unlock(&WORD), 0);
    thread.join().expect("the thread ends");
    eq!(WORD.load(Ordering::SeqCst), 0);
}

fn try_lock() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    eq!(futex(&WORD, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0), 0);
    std::thread::spawn(|| err!(futex(&WORD, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0), libc::EAGAIN)).join().expect("the thread ends");
    err!(futex(&WORD, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0), libc::EDEADLK);
    eq!(unlock(&WORD), 0);
}

fn time_out() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    eq!(lock(&WORD), 0);
    std::thread::spawn(|| {
        let time = at(libc::CLOCK_REALTIME, 20);
        err!(futex(&WORD, libc::FUTEX_LOCK_PI, 0, address(&time), 0, 0), libc::ETIMEDOUT);
        let past = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        err!(futex(&WORD, libc::FUTEX_LOCK_PI, 0, address(&past), 0, 0), libc::ETIMEDOUT);
        let bad = libc::timespec { tv_sec: 1, tv_nsec: -1 };
        err!(futex(&WORD, libc::FUTEX_LOCK_PI, 0, address(&bad), 0, 0), libc::EINVAL);
        err!(futex(&WORD, libc::FUTEX_LOCK_PI, 0, BAD, 0, 0), libc::EFAULT);
    })
    .join()
    .expect("the thread ends");
    eq!(unlock(&WORD), 0);
}

fn time_out_monotonic() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    eq!(lock(&WORD), 0);
    std::thread::spawn(|| {
        let time = at(libc::CLOCK_MONOTONIC, 20);
        err!(futex(&WORD, LOCK_PI2, 0, address(&time), 0, 0), libc::ETIMEDOUT);
        let time = at(libc::CLOCK_REALTIME, 20);
        err!(futex(&WORD, LOCK_PI2 | libc::FUTEX_CLOCK_REALTIME, 0, address(&time), 0, 0), libc::ETIMEDOUT);
    })
    .join()
    .expect("the thread ends");
    eq!(unlock(&WORD), 0);
}

fn errors() {
    err!(sys!(libc::SYS_futex, 2, libc::FUTEX_LOCK_PI | libc::FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_futex, BAD, libc::FUTEX_LOCK_PI | libc::FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_futex, BAD, libc::FUTEX_UNLOCK_PI | libc::FUTEX_PRIVATE_FLAG, 0, 0, 0, 0), libc::EFAULT);
}

fn deadlock() {
    let word = AtomicU32::new(0);
    eq!(lock(&word), 0);
    err!(lock(&word), libc::EDEADLK);
    eq!(unlock(&word), 0);
}

fn owner_must_exist() {
    let gone = child(|| {});
    reap(gone);
    let word = AtomicU32::new(gone as u32);
    err!(lock(&word), libc::ESRCH);
}

fn unlock_errors() {
    let word = AtomicU32::new(0);
    err!(unlock(&word), libc::EPERM);
    let parent = sys!(libc::SYS_getppid) as u32;
    let word = AtomicU32::new(parent);
    err!(unlock(&word), libc::EPERM);
}

fn waiters_in_turn() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static TURN: AtomicU32 = AtomicU32::new(0);
    eq!(lock(&WORD), 0);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                eq!(lock(&WORD), 0);
                TURN.fetch_add(1, Ordering::SeqCst);
                eq!(unlock(&WORD), 0);
            })
        })
        .collect();
    until_waited_for(&WORD);
    eq!(TURN.load(Ordering::SeqCst), 0);
    eq!(unlock(&WORD), 0);
    threads.into_iter().for_each(|t| t.join().expect("the thread ends"));
    eq!((TURN.load(Ordering::SeqCst), WORD.load(Ordering::SeqCst)), (4, 0));
}

fn between_processes() {
    let word = &shared_words()[0];
    let shared = |op: i32| sys!(libc::SYS_futex, word.as_ptr(), op, 0, 0, 0, 0);
    eq!(shared(libc::FUTEX_LOCK_PI), 0);
    let pid = child(|| {
        eq!(shared(libc::FUTEX_LOCK_PI), 0);
        eq!(word.load(Ordering::SeqCst) & TID, getpid() as u32);
        eq!(shared(libc::FUTEX_UNLOCK_PI), 0);
    });
    until_waited_for(word);
    eq!(shared(libc::FUTEX_UNLOCK_PI), 0);
    reap(pid);
}

fn robust_owner_dies() {
    // Through a robust list, the next owner learns that the last one died.
    #[repr(C)]
    struct Head {
        next: u64,
        offset: i64,
        pending: u64,
    }
    let words = shared_words();
    let word = &words[2];
    let shared = |op: i32| sys!(libc::SYS_futex, word.as_ptr(), op, 0, 0, 0, 0);
    let pid = child(|| {
        eq!(shared(libc::FUTEX_LOCK_PI), 0);
        // The list's entry lies at the first word; bit 0 says that the lock inherits priorities.
        let entry = words[0].as_ptr() as u64;
        let head = Head { next: entry | 1, offset: 8, pending: 0 };
        // SAFETY: the entry points back to the head.
        unsafe { (entry as *mut u64).write_volatile(std::ptr::from_ref(&head) as u64) };
        ok!(sys!(libc::SYS_set_robust_list, &head as *const Head, 24));
        exit(0);
    });
    reap(pid);
    eq!(word.load(Ordering::SeqCst) & TID, 0);
    eq!(shared(libc::FUTEX_LOCK_PI), 0);
    eq!(word.load(Ordering::SeqCst) & TID, getpid() as u32);
    check!(word.load(Ordering::SeqCst) & 0x4000_0000 != 0);
}

fn contended() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let work = || {
        let tid = gettid() as u32;
        for _ in 0..300 {
            if WORD.compare_exchange(0, tid, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                eq!(lock(&WORD), 0);
            }
            let before = COUNT.load(Ordering::Relaxed);
            if before.is_multiple_of(16) {
                sys!(libc::SYS_sched_yield);
            }
            COUNT.store(before + 1, Ordering::Relaxed);
            if WORD.compare_exchange(tid, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                eq!(unlock(&WORD), 0);
            }
        }
    };
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(work)).collect();
    work();
    threads.into_iter().for_each(|t| t.join().expect("the thread ends"));
    eq!(COUNT.load(Ordering::SeqCst), 1200);
}

fn wait_requeue(cond: &AtomicU32, value: u32, timeout: u64, mutex: &AtomicU32) -> i64 {
    futex(cond, libc::FUTEX_WAIT_REQUEUE_PI, value, timeout, mutex.as_ptr() as u64, 0)
}

fn cmp_requeue(cond: &AtomicU32, count: u32, value: u32, mutex: &AtomicU32) -> i64 {
    futex(cond, libc::FUTEX_CMP_REQUEUE_PI, 1, count.into(), mutex.as_ptr() as u64, value)
}

fn requeue_wakes_with_lock() {
    static COND: AtomicU32 = AtomicU32::new(0);
    static MUTEX: AtomicU32 = AtomicU32::new(0);
    let thread = std::thread::spawn(|| {
        eq!(wait_requeue(&COND, 0, 0, &MUTEX), 0);
        eq!(MUTEX.load(Ordering::SeqCst) & TID, gettid() as u32);
        eq!(unlock(&MUTEX), 0);
    });
    until("the waiter is there", || cmp_requeue(&COND, 0, 0, &MUTEX) == 1);
    thread.join().expect("the thread ends");
    eq!(cmp_requeue(&COND, 0, 0, &MUTEX), 0);
}

fn requeue_moves() {
    static COND: AtomicU32 = AtomicU32::new(0);
    static MUTEX: AtomicU32 = AtomicU32::new(0);
    static DONE: AtomicU32 = AtomicU32::new(0);
    eq!(lock(&MUTEX), 0);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                eq!(wait_requeue(&COND, 0, 0, &MUTEX), 0);
                DONE.fetch_add(1, Ordering::SeqCst);
                eq!(unlock(&MUTEX), 0);
            })
        })
        .collect();
    let mut moved = 0;
    until("all have been moved", || {
        moved += ok!(cmp_requeue(&COND, i32::MAX as u32, 0, &MUTEX));
        moved == 3
    });
    sleep_ms(10);
    eq!(DONE.load(Ordering::SeqCst), 0);
    until_waited_for(&MUTEX);
    eq!(unlock(&MUTEX), 0);
    threads.into_iter().for_each(|t| t.join().expect("the thread ends"));
    eq!((DONE.load(Ordering::SeqCst), MUTEX.load(Ordering::SeqCst)), (3, 0));
}

fn requeue_value() {
    let (cond, mutex) = (AtomicU32::new(5), AtomicU32::new(0));
    err!(wait_requeue(&cond, 4, 0, &mutex), libc::EAGAIN);
    err!(cmp_requeue(&cond, 1, 4, &mutex), libc::EAGAIN);
    eq!(cmp_requeue(&cond, 1, 5, &mutex), 0);
}

fn requeue_errors() {
    let (cond, mutex) = (AtomicU32::new(0), AtomicU32::new(0));
    err!(wait_requeue(&cond, 0, 0, &cond), libc::EINVAL);
    err!(cmp_requeue(&cond, 1, 0, &cond), libc::EINVAL);
    err!(futex(&cond, libc::FUTEX_CMP_REQUEUE_PI, 2, 1, mutex.as_ptr() as u64, 0), libc::EINVAL);
    err!(futex(&cond, libc::FUTEX_CMP_REQUEUE_PI, 1, 1, BAD, 0), libc::EFAULT);
}

fn wait_requeue_times_out() {
    let (cond, mutex) = (AtomicU32::new(0), AtomicU32::new(0));
    let time = at(libc::CLOCK_MONOTONIC, 20);
    err!(wait_requeue(&cond, 0, address(&time), &mutex), libc::ETIMEDOUT);
    eq!(mutex.load(Ordering::SeqCst), 0);
}

fn signal_restarts_lock() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let (ready, go) = (pipe(), pipe());
    let holder = std::thread::spawn(move || {
        eq!(lock(&WORD), 0);
        write(ready.1, b"x");
        read(go.0, 1);
        eq!(unlock(&WORD), 0);
    });
    read(ready.0, 1);
    // Signals do not end the wait, whatever the handler's flags are.
    let r = interrupted_then(libc::SIGUSR1, 0, 3, move || {
        write(go.1, b"x");
    }, || lock(&WORD));
    eq!(r, 0);
    check!(seen() >= 3);
    eq!(unlock(&WORD), 0);
    holder.join().expect("the thread ends");
}
