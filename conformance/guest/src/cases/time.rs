//! Clocks and sleeps.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("time": clocks_advance, clock_errors, resolutions, vdso_agrees, realtime_family_agrees, cpu_clocks_count_work,
    nanosleep_sleeps, nanosleep_errors, nanosleep_remaining, clock_nanosleep_absolute, clock_nanosleep_past,
    clock_nanosleep_errors, sleep_survives_stop, sleep_in_many_threads, times_and_rusage, settime_needs_privilege,
    other_process_cpu_clock);

fn clock(id: i32) -> u64 {
    let mut ts: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, id, &mut ts as *mut _));
    check!((0..1_000_000_000).contains(&ts.tv_nsec));
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn spin(ns: u64) {
    let end = now() + ns;
    while now() < end {
        std::hint::spin_loop();
    }
}

fn clocks_advance() {
    for id in [0, 1, 4, 5, 6, 7, 11] {
        let one = clock(id);
        sleep_ms(12);
        let two = clock(id);
        check!(two > one, "clock {id}: {one} then {two}");
    }
    let mut previous = clock(libc::CLOCK_MONOTONIC);
    for _ in 0..1000 {
        let next = clock(libc::CLOCK_MONOTONIC);
        check!(next >= previous);
        previous = next;
    }
}

fn clock_errors() {
    let mut ts: libc::timespec = zeroed();
    err!(sys!(libc::SYS_clock_gettime, 99, &mut ts as *mut _), libc::EINVAL);
    err!(sys!(libc::SYS_clock_gettime, 10, &mut ts as *mut _), libc::EINVAL);
    err!(sys!(libc::SYS_clock_gettime, 1, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_clock_gettime, 1, WILD), libc::EFAULT);
    let (_, end) = guarded_page();
    err!(sys!(libc::SYS_clock_gettime, 1, end - 8), libc::EFAULT);
    err!(sys!(libc::SYS_gettimeofday, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_time, BAD), libc::EFAULT);
}

fn resolutions() {
    let mut ts: libc::timespec = zeroed();
    for id in [0, 1, 2, 3, 4, 7] {
        ok!(sys!(libc::SYS_clock_getres, id, &mut ts as *mut _));
        eq!((ts.tv_sec, ts.tv_nsec), (0, 1));
    }
    ok!(sys!(libc::SYS_clock_getres, 1, 0));
    err!(sys!(libc::SYS_clock_getres, 99, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clock_getres, 1, BAD), libc::EFAULT);
}

fn vdso_agrees() {
    // libc's clock_gettime goes through the vDSO where there is one.
    for id in [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_MONOTONIC_RAW] {
        let before = clock(id);
        let mut ts: libc::timespec = zeroed();
        // SAFETY: a valid structure.
        eq!(unsafe { libc::clock_gettime(id, &mut ts) }, 0);
        let vdso = ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64;
        let after = clock(id);
        check!(before <= vdso && vdso <= after, "clock {id}: {before} {vdso} {after}");
    }
}

fn realtime_family_agrees() {
    let seconds = clock(0) / 1_000_000_000;
    let mut tv: libc::timeval = zeroed();
    ok!(sys!(libc::SYS_gettimeofday, &mut tv as *mut _, 0));
    check!((tv.tv_sec as u64).wrapping_sub(seconds) <= 1);
    let mut t = 0i64;
    let r = ok!(sys!(libc::SYS_time, &mut t as *mut i64));
    eq!(r, t);
    check!((t as u64).wrapping_sub(seconds) <= 1);
    check!(seconds > 1_600_000_000);
}

fn cpu_clocks_count_work() {
    let (process, thread) = (clock(libc::CLOCK_PROCESS_CPUTIME_ID), clock(libc::CLOCK_THREAD_CPUTIME_ID));
    until("processor time is counted", || {
        spin(5_000_000);
        clock(libc::CLOCK_PROCESS_CPUTIME_ID) > process + 10_000_000
            && clock(libc::CLOCK_THREAD_CPUTIME_ID) > thread + 10_000_000
    });
    let before = clock(libc::CLOCK_THREAD_CPUTIME_ID);
    sleep_ms(50);
    check!(clock(libc::CLOCK_THREAD_CPUTIME_ID) - before < 40_000_000);
}

fn nanosleep_sleeps() {
    for ms in [0, 1, 20] {
        let start = now();
        ok!(sys!(libc::SYS_nanosleep, &timespec_ms(ms) as *const _, 0));
        check!(now() - start >= ms * 1_000_000);
    }
}

fn nanosleep_errors() {
    let bad = |sec, nsec| libc::timespec { tv_sec: sec, tv_nsec: nsec };
    err!(sys!(libc::SYS_nanosleep, &bad(0, 1_000_000_000) as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_nanosleep, &bad(0, -1) as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_nanosleep, &bad(-1, 0) as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_nanosleep, BAD, 0), libc::EFAULT);
    let (_, end) = guarded_page();
    err!(sys!(libc::SYS_nanosleep, end - 8, 0), libc::EFAULT);
}

fn nanosleep_remaining() {
    let mut left = timespec_ms(0);
    let r = interrupted(libc::SIGUSR1, libc::SA_RESTART, || {
        sys!(libc::SYS_nanosleep, &timespec_ms(60_000) as *const _, &mut left as *mut _)
    });
    err!(r, libc::EINTR);
    check!((30..60).contains(&left.tv_sec), "{} s left", left.tv_sec);
    let r = interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_nanosleep, &timespec_ms(60_000) as *const _, 0));
    err!(r, libc::EINTR);
    let r = interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_nanosleep, &timespec_ms(60_000) as *const _, BAD));
    err!(r, libc::EFAULT);
}

fn at(id: i32, ms: u64) -> libc::timespec {
    let ns = clock(id) + ms * 1_000_000;
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn clock_nanosleep_absolute() {
    for id in [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME] {
        let when = at(id, 15);
        ok!(sys!(libc::SYS_clock_nanosleep, id, libc::TIMER_ABSTIME, &when as *const _, 0));
        check!(clock(id) >= when.tv_sec as u64 * 1_000_000_000 + when.tv_nsec as u64);
    }
    // A handler ends an absolute sleep, with SA_RESTART or not.
    let when = at(libc::CLOCK_MONOTONIC, 60_000);
    let r = interrupted(libc::SIGUSR1, libc::SA_RESTART, || {
        sys!(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &when as *const _, 0)
    });
    err!(r, libc::EINTR);
}

fn clock_nanosleep_past() {
    let when = timespec_ms(1);
    ok!(sys!(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &when as *const _, 0));
    ok!(sys!(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &timespec_ms(1) as *const _, 0));
}

fn clock_nanosleep_errors() {
    err!(sys!(libc::SYS_clock_nanosleep, libc::CLOCK_THREAD_CPUTIME_ID, 0, &timespec_ms(1) as *const _, 0), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_clock_nanosleep, 99, 0, &timespec_ms(1) as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clock_nanosleep, 1, 0, BAD, 0), libc::EFAULT);
    let bad = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000_000 };
    err!(sys!(libc::SYS_clock_nanosleep, 1, 0, &bad as *const _, 0), libc::EINVAL);
}

fn sleep_survives_stop() {
    // Stopped and continued without a handler, a sleep goes on until its time.
    let pid = child(|| {
        let start = now();
        ok!(sys!(libc::SYS_nanosleep, &timespec_ms(80) as *const _, 0));
        check!(now() - start >= 80_000_000);
    });
    until("the child sleeps", || task_state(pid) == 'S');
    kill(pid, libc::SIGSTOP);
    until("the child is stopped", || task_state(pid) == 'T');
    kill(pid, libc::SIGCONT);
    reap(pid);
}

fn sleep_in_many_threads() {
    let start = now();
    let threads: Vec<_> = (0..32).map(|i| std::thread::spawn(move || sleep_ms(30 + i % 7))).collect();
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    let took = (now() - start) / 1_000_000;
    check!((30..5000).contains(&took), "{took} ms");
}

fn times_and_rusage() {
    let mut tms: libc::tms = zeroed();
    check!(ok!(sys!(libc::SYS_times, &mut tms as *mut _)) > 0);
    err!(sys!(libc::SYS_times, BAD), libc::EFAULT);
    let mut usage: libc::rusage = zeroed();
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN, 1] {
        ok!(sys!(libc::SYS_getrusage, who, &mut usage as *mut _));
    }
    err!(sys!(libc::SYS_getrusage, 7, &mut usage as *mut _), libc::EINVAL);
    err!(sys!(libc::SYS_getrusage, 0, BAD), libc::EFAULT);
    in_child(|| while clock(libc::CLOCK_PROCESS_CPUTIME_ID) < 30_000_000 {});
    ok!(sys!(libc::SYS_getrusage, libc::RUSAGE_CHILDREN, &mut usage as *mut _));
    let us = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    check!(us(usage.ru_utime) + us(usage.ru_stime) >= 10_000, "the child's time is added");
}

fn settime_needs_privilege() {
    let bad = libc::timespec { tv_sec: 0, tv_nsec: -1 };
    err!(sys!(libc::SYS_clock_settime, libc::CLOCK_REALTIME, &bad as *const _), libc::EINVAL);
    err!(sys!(libc::SYS_clock_settime, libc::CLOCK_MONOTONIC, &timespec_ms(1) as *const _), libc::EINVAL);
    err!(sys!(libc::SYS_clock_settime, libc::CLOCK_REALTIME, BAD), libc::EFAULT);
}

fn other_process_cpu_clock() {
    let pid = child(|| loop {
        spin(1_000_000);
    });
    // The clock of a process by its id, as clock_getcpuclockid(3) makes it.
    let id = (!pid << 3) | 2;
    until("the other's processor time is counted", || clock(id) > 5_000_000);
    kill(pid, libc::SIGKILL);
    wait(pid);
    let mut ts: libc::timespec = zeroed();
    err!(sys!(libc::SYS_clock_gettime, id, &mut ts as *mut _), libc::EINVAL);
}
