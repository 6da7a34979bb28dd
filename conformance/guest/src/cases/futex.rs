//! futex(2) and robust lists.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("futex": wait_and_wake, value_mismatch, timeouts, errors, wake_counts, shared_between_processes, shared_file_mapping,
    requeue, cmp_requeue, wake_op, bitset, absolute_timeout, interrupted_wait, restarted_wait, robust_list, robust_list_calls,
    many_waiters, pi_lock, ping_pong);

fn op(word: &AtomicU32, op: i32, value: u32, timeout: u64, word2: u64, value3: u32) -> i64 {
    sys!(libc::SYS_futex, word.as_ptr(), op | libc::FUTEX_PRIVATE_FLAG, value, timeout, word2, value3)
}

fn wait_and_wake() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let thread = std::thread::spawn(|| {
        while WORD.load(Ordering::SeqCst) == 0 {
            futex_wait(&WORD, 0, None);
        }
    });
    sleep_ms(5);
    WORD.store(1, Ordering::SeqCst);
    check!((0..=1).contains(&futex_wake(&WORD, 1)));
    thread.join().expect("joined");
}

fn value_mismatch() {
    let word = AtomicU32::new(5);
    err!(futex_wait(&word, 4, None), libc::EAGAIN);
}

fn timeouts() {
    let word = AtomicU32::new(5);
    let start = now();
    err!(futex_wait(&word, 5, Some(&timespec_ms(20))), libc::ETIMEDOUT);
    check!(now() - start >= 20_000_000);
    err!(futex_wait(&word, 5, Some(&timespec_ms(0))), libc::ETIMEDOUT);
    let bad = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    err!(futex_wait(&word, 5, Some(&bad)), libc::EINVAL);
    let bad = libc::timespec { tv_sec: -1, tv_nsec: 0 };
    err!(futex_wait(&word, 5, Some(&bad)), libc::EINVAL);
}

fn errors() {
    let words = [AtomicU32::new(0), AtomicU32::new(0)];
    let odd = words[0].as_ptr() as u64 + 1;
    err!(sys!(libc::SYS_futex, odd, libc::FUTEX_WAIT, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_futex, odd, libc::FUTEX_WAKE, 1), libc::EINVAL);
    err!(sys!(libc::SYS_futex, BAD, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_futex, BAD, libc::FUTEX_WAIT, 0, 0), libc::EFAULT);
    err!(op(&words[0], 99, 0, 0, 0, 0), libc::ENOSYS);
    err!(op(&words[0], libc::FUTEX_WAIT, 0, BAD, 0, 0), libc::EFAULT);
    err!(op(&words[0], libc::FUTEX_WAIT_BITSET, 0, 0, 0, 0), libc::EINVAL);
    err!(op(&words[0], libc::FUTEX_WAKE_BITSET, 1, 0, 0, 0), libc::EINVAL);
    let read_only = map(PAGE, libc::PROT_READ);
    err!(sys!(libc::SYS_futex, read_only, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 1, 0), libc::EAGAIN);
}

/// Starts `count` threads that wait once each on the word; returns when all sleep.
fn waiters(word: &'static AtomicU32, count: usize, bits: u32) -> Vec<std::thread::JoinHandle<i64>> {
    let (tx, rx) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let tx = tx.clone();
            std::thread::spawn(move || {
                tx.send(gettid()).expect("sent");
                op(word, libc::FUTEX_WAIT_BITSET, 0, 0, 0, bits)
            })
        })
        .collect();
    for _ in 0..count {
        let tid = rx.recv().expect("received");
        // Asleep in this call, as far as /proc tells; the sleep covers platforms where it tells less.
        until("asleep", || matches!(std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")), Ok(s) if s.contains(") S ")));
    }
    sleep_ms(10);
    threads
}

fn wake_counts() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let threads = waiters(&WORD, 5, !0);
    eq!(futex_wake(&WORD, 2), 2);
    eq!(futex_wake(&WORD, 1), 1);
    eq!(futex_wake(&WORD, i32::MAX), 2);
    eq!(futex_wake(&WORD, 1), 0);
    threads.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn shared_between_processes() {
    let words = shared_words();
    let pid = child(|| {
        while words[0].load(Ordering::SeqCst) == 0 {
            sys!(libc::SYS_futex, words[0].as_ptr(), libc::FUTEX_WAIT, 0, 0);
        }
        words[1].store(1, Ordering::SeqCst);
    });
    sleep_ms(5);
    words[0].store(1, Ordering::SeqCst);
    ok!(sys!(libc::SYS_futex, words[0].as_ptr(), libc::FUTEX_WAKE, 1));
    reap(pid);
    eq!(words[1].load(Ordering::SeqCst), 1);
}

fn shared_file_mapping() {
    let fd = new_file("f", &[0; PAGE]);
    let view = || -> &'static AtomicU32 {
        let p = ok!(sys!(libc::SYS_mmap, 0, PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0));
        // SAFETY: a mapping that stays.
        unsafe { &*(p as *const AtomicU32) }
    };
    let (one, two) = (view(), view());
    let pid = child(|| {
        while one.load(Ordering::SeqCst) == 0 {
            sys!(libc::SYS_futex, one.as_ptr(), libc::FUTEX_WAIT, 0, 0);
        }
    });
    sleep_ms(5);
    two.store(1, Ordering::SeqCst);
    ok!(sys!(libc::SYS_futex, two.as_ptr(), libc::FUTEX_WAKE, 1));
    reap(pid);
}

fn requeue() {
    static ONE: AtomicU32 = AtomicU32::new(0);
    static TWO: AtomicU32 = AtomicU32::new(0);
    let threads = waiters(&ONE, 4, !0);
    // Wakes one, moves two.
    check!(op(&ONE, libc::FUTEX_REQUEUE, 1, 2, TWO.as_ptr() as u64, 0) >= 1);
    eq!(futex_wake(&ONE, 10), 1);
    eq!(futex_wake(&TWO, 10), 2);
    threads.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn cmp_requeue() {
    static ONE: AtomicU32 = AtomicU32::new(0);
    static TWO: AtomicU32 = AtomicU32::new(0);
    let threads = waiters(&ONE, 3, !0);
    err!(op(&ONE, libc::FUTEX_CMP_REQUEUE, 1, 1, TWO.as_ptr() as u64, 7), libc::EAGAIN);
    eq!(op(&ONE, libc::FUTEX_CMP_REQUEUE, 1, 10, TWO.as_ptr() as u64, 0), 3);
    eq!(futex_wake(&ONE, 10), 0);
    eq!(futex_wake(&TWO, 10), 2);
    threads.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn wake_op() {
    static ONE: AtomicU32 = AtomicU32::new(0);
    static TWO: AtomicU32 = AtomicU32::new(0);
    let mut threads = waiters(&ONE, 1, !0);
    threads.extend(waiters(&TWO, 1, !0));
    // TWO += 3; it was 0, so its waiter is woken as well (FUTEX_OP_ADD, FUTEX_OP_CMP_EQ 0).
    let encoded = 1 << 28 | 3 << 12;
    eq!(op(&ONE, libc::FUTEX_WAKE_OP, 1, 1, TWO.as_ptr() as u64, encoded), 2);
    eq!(TWO.load(Ordering::SeqCst), 3);
    threads.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn bitset() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let one = waiters(&WORD, 1, 1);
    let two = waiters(&WORD, 1, 2);
    eq!(op(&WORD, libc::FUTEX_WAKE_BITSET, 10, 0, 0, 4), 0);
    eq!(op(&WORD, libc::FUTEX_WAKE_BITSET, 10, 0, 0, 2), 1);
    two.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
    eq!(op(&WORD, libc::FUTEX_WAKE_BITSET, 10, 0, 0, 5), 1);
    one.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn absolute_timeout() {
    let word = AtomicU32::new(0);
    let past = timespec_ms(1);
    err!(op(&word, libc::FUTEX_WAIT_BITSET, 0, &past as *const _ as u64, 0, !0), libc::ETIMEDOUT);
    let at = now() + 20_000_000;
    let soon = libc::timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    err!(op(&word, libc::FUTEX_WAIT_BITSET, 0, &soon as *const _ as u64, 0, !0), libc::ETIMEDOUT);
    check!(now() >= at);
    let mut real: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &mut real as *mut _));
    let flags = libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME;
    err!(op(&word, flags, 0, &real as *const _ as u64, 0, !0), libc::ETIMEDOUT);
}

fn interrupted_wait() {
    let word = AtomicU32::new(0);
    err!(interrupted(libc::SIGUSR1, 0, || futex_wait(&word, 0, None)), libc::EINTR);
}

fn restarted_wait() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let wake = || {
        WORD.store(1, Ordering::SeqCst);
        futex_wake(&WORD, 1);
    };
    let result = interrupted_then(libc::SIGUSR1, libc::SA_RESTART, 3, wake, || futex_wait(&WORD, 0, None));
    // Woken, or restarted after the value had changed.
    check!(result == 0 || result == -i64::from(libc::EAGAIN), "{}", Code(result));
    check!(seen() >= 3);
    // With a time-out, a handler ends the wait even with SA_RESTART.
    let word = AtomicU32::new(0);
    err!(interrupted(libc::SIGUSR1, libc::SA_RESTART, || futex_wait(&word, 0, Some(&timespec_ms(60_000)))), libc::EINTR);
    // Without a handler it goes on for what is left of it, and is not begun afresh.
    let pid = child(|| {
        let start = now();
        err!(futex_wait(&word, 0, Some(&timespec_ms(100))), libc::ETIMEDOUT);
        let took = (now() - start) / 1_000_000;
        check!((100..5_000).contains(&took), "{took} ms");
    });
    until("the child sleeps", || task_state(pid) == 'S');
    kill(pid, libc::SIGSTOP);
    kill(pid, libc::SIGCONT);
    reap(pid);
}

#[repr(C)]
struct Robust {
    next: u64,
    offset: i64,
    pending: u64,
    // One entry, pointing back at the head, with its word.
    entry: u64,
    word: AtomicU32,
}

fn robust_list() {
    // A thread that dies with a lock held: the word gets FUTEX_OWNER_DIED and a waiter is woken.
    let p = shared(PAGE) as u64;
    let pid = child(|| {
        std::thread::spawn(move || {
            // SAFETY: shared memory large enough for the structure.
            let r = unsafe { &mut *(p as *mut Robust) };
            r.entry = p;
            r.next = &r.entry as *const _ as u64;
            r.offset = &r.word as *const _ as i64 - &r.entry as *const _ as i64;
            r.pending = 0;
            r.word.store(gettid() as u32 | libc::FUTEX_WAITERS, Ordering::SeqCst);
            ok!(sys!(libc::SYS_set_robust_list, p, 24));
            sys!(libc::SYS_exit, 0);
        })
        .join()
        .ok();
    });
    // SAFETY: shared memory.
    let word = unsafe { &(*(p as *const Robust)).word };
    until("the owner is said to have died", || word.load(Ordering::SeqCst) & libc::FUTEX_OWNER_DIED != 0);
    eq!(word.load(Ordering::SeqCst), libc::FUTEX_OWNER_DIED | libc::FUTEX_WAITERS);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn robust_list_calls() {
    let head = [0u64; 3];
    err!(sys!(libc::SYS_set_robust_list, head.as_ptr(), 23), libc::EINVAL);
    let (mut got, mut len) = (0u64, 0u64);
    in_child(|| {
        ok!(sys!(libc::SYS_set_robust_list, head.as_ptr(), 24));
        ok!(sys!(libc::SYS_get_robust_list, 0, &mut got as *mut u64, &mut len as *mut u64));
        eq!((got, len), (head.as_ptr() as u64, 24));
        ok!(sys!(libc::SYS_set_robust_list, BAD, 24)); // Not looked at before the thread ends, and then with care.
    });
    err!(sys!(libc::SYS_get_robust_list, 0x3fff_ffff, &mut got as *mut u64, &mut len as *mut u64), libc::ESRCH);
    err!(sys!(libc::SYS_get_robust_list, 0, BAD, &mut len as *mut u64), libc::EFAULT);
}

fn many_waiters() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let threads = waiters(&WORD, 50, !0);
    eq!(futex_wake(&WORD, i32::MAX), 50);
    threads.into_iter().for_each(|t| eq!(t.join().expect("joined"), 0));
}

fn pi_lock() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let r = op(&WORD, libc::FUTEX_LOCK_PI, 0, 0, 0, 0);
    if r == -i64::from(libc::ENOSYS) {
        skip("no PI futexes");
    }
    eq!(r, 0);
    eq!(WORD.load(Ordering::SeqCst), gettid() as u32);
    err!(op(&WORD, libc::FUTEX_LOCK_PI, 0, 0, 0, 0), libc::EDEADLK);
    let thread = std::thread::spawn(|| {
        err!(op(&WORD, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0), libc::EAGAIN);
        err!(op(&WORD, libc::FUTEX_UNLOCK_PI, 0, 0, 0, 0), libc::EPERM);
        eq!(op(&WORD, libc::FUTEX_LOCK_PI, 0, 0, 0, 0), 0);
        eq!(WORD.load(Ordering::SeqCst) & 0x3fff_ffff, gettid() as u32);
        eq!(op(&WORD, libc::FUTEX_UNLOCK_PI, 0, 0, 0, 0), 0);
    });
    until("a waiter", || WORD.load(Ordering::SeqCst) & libc::FUTEX_WAITERS != 0);
    eq!(op(&WORD, libc::FUTEX_UNLOCK_PI, 0, 0, 0, 0), 0);
    thread.join().expect("joined");
    eq!(WORD.load(Ordering::SeqCst), 0);
}

fn ping_pong() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    fn play(mine: u32) {
        for _ in 0..2000 {
            while WORD.load(Ordering::SeqCst) % 2 != mine {
                futex_wait(&WORD, 1 - mine, None);
            }
            WORD.store(1 - mine, Ordering::SeqCst);
            futex_wake(&WORD, 1);
        }
    }
    let thread = std::thread::spawn(|| play(1));
    play(0);
    thread.join().expect("joined");
}
