//! Interval timers, POSIX timers, timerfd(2).

use crate::sys::*;
use crate::tool;
use crate::{cases, check, eq, err, ok, sys};

cases!("timer": alarm_fires, alarm_remaining, itimer_repeats, fast_timers, itimer_value, itimer_errors, virtual_and_prof, fork_has_no_timers,
    exec_keeps_the_itimer, posix_signal, posix_thread_id, posix_none_and_gettime, posix_overrun, posix_absolute, posix_errors,
    posix_cpu_clock, fd_expires, fd_interval, fd_absolute, fd_nonblocking, fd_disarm, fd_errors, fd_polls);

fn itimer(which: i32, first_us: i64, interval_us: i64) -> i64 {
    let value = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: interval_us },
        it_value: libc::timeval { tv_sec: first_us / 1_000_000, tv_usec: first_us % 1_000_000 },
    };
    sys!(libc::SYS_setitimer, which, &value as *const _, 0)
}

fn alarm_fires() {
    catch(libc::SIGALRM, 0);
    eq!(sys!(libc::SYS_alarm, 1), 0);
    err!(sys!(libc::SYS_pause), libc::EINTR);
    eq!(seen(), 1);
    eq!(last(1), 0x80); // SI_KERNEL
    // Without a handler it ends the process.
    let pid = child(|| {
        disposition(libc::SIGALRM, libc::SIG_DFL);
        ok!(itimer(libc::ITIMER_REAL, 5000, 0));
        loop {
            sys!(libc::SYS_pause);
        }
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGALRM);
}

fn alarm_remaining() {
    eq!(sys!(libc::SYS_alarm, 100), 0);
    let left = sys!(libc::SYS_alarm, 0);
    check!(left == 100 || left == 99, "{left}");
    eq!(sys!(libc::SYS_alarm, 0), 0);
}

fn itimer_repeats() {
    catch(libc::SIGALRM, 0);
    ok!(itimer(libc::ITIMER_REAL, 2000, 2000));
    until("ten signals came", || seen() >= 10);
    ok!(itimer(libc::ITIMER_REAL, 0, 0));
    // One may still be on its way.
    sleep_ms(5);
    let now = seen();
    sleep_ms(20);
    eq!(seen(), now);
}

/// Programs get on with their work however fast their timers are.
fn fast_timers() {
    let children: Vec<i32> = (0..2)
        .map(|_| {
            child(|| {
                catch(libc::SIGALRM, 0);
                catch(50, 0);
                ok!(itimer(libc::ITIMER_REAL, 10, 10));
                let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 50, 0, 0));
                ok!(settime(id, 0, 10_000, 10_000));
                (0..300).for_each(|_| _ = ok!(sys!(libc::SYS_getppid)));
                check!(seen() > 0);
            })
        })
        .collect();
    children.into_iter().for_each(|pid| eq!(wait(pid), 0));
}

fn itimer_value() {
    ok!(itimer(libc::ITIMER_REAL, 50_000_000, 7000));
    let mut value: libc::itimerval = zeroed();
    ok!(sys!(libc::SYS_getitimer, libc::ITIMER_REAL, &mut value as *mut _));
    check!((45..50).contains(&value.it_value.tv_sec));
    eq!(value.it_interval.tv_usec, 7000);
    // setitimer gives the old value.
    let off: libc::itimerval = zeroed();
    let mut old: libc::itimerval = zeroed();
    ok!(sys!(libc::SYS_setitimer, libc::ITIMER_REAL, &off as *const _, &mut old as *mut _));
    eq!(old.it_interval.tv_usec, 7000);
    ok!(sys!(libc::SYS_getitimer, libc::ITIMER_REAL, &mut value as *mut _));
    eq!((value.it_value.tv_sec, value.it_value.tv_usec), (0, 0));
}

fn itimer_errors() {
    err!(sys!(libc::SYS_setitimer, 3, 0, 0), libc::EINVAL);
    let off: libc::itimerval = zeroed();
    err!(sys!(libc::SYS_setitimer, 3, &off as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_getitimer, 3, 0), libc::EINVAL);
    err!(sys!(libc::SYS_getitimer, 0, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_setitimer, 0, BAD, 0), libc::EFAULT);
    err!(itimer(libc::ITIMER_REAL, 1, 1_000_000), libc::EINVAL);
    err!(itimer(libc::ITIMER_REAL, -1, 0), libc::EINVAL);
}

fn virtual_and_prof() {
    for (which, signal) in [(libc::ITIMER_VIRTUAL, libc::SIGVTALRM), (libc::ITIMER_PROF, libc::SIGPROF)] {
        catch(signal, 0);
        let before = seen();
        ok!(itimer(which, 10_000, 0));
        until("the signal of processor time comes", || {
            (0..200_000).for_each(|_| std::hint::spin_loop());
            seen() > before
        });
        eq!(last(0), i64::from(signal));
    }
}

fn fork_has_no_timers() {
    ok!(itimer(libc::ITIMER_REAL, 50_000_000, 0));
    in_child(|| {
        let mut value: libc::itimerval = zeroed();
        ok!(sys!(libc::SYS_getitimer, libc::ITIMER_REAL, &mut value as *mut _));
        eq!(value.it_value.tv_sec, 0);
        eq!(sys!(libc::SYS_alarm, 0), 0);
    });
}

fn exec_keeps_the_itimer() {
    let pid = child(|| {
        ok!(itimer(libc::ITIMER_REAL, 30_000, 0));
        ok!(tool::exec(&["pause"]));
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGALRM);
}

fn create(clock: i32, notify: i32, signal: i32, value: usize, tid: i32) -> i64 {
    let mut event: libc::sigevent = zeroed();
    event.sigev_notify = notify;
    event.sigev_signo = signal;
    event.sigev_value.sival_ptr = value as *mut _;
    event.sigev_notify_thread_id = tid;
    let mut id = -1i32;
    let r = sys!(libc::SYS_timer_create, clock, &event as *const _, &mut id as *mut i32);
    if r < 0 { r } else { i64::from(id) }
}

fn settime(id: i64, flags: i32, first: u64, interval: u64) -> i64 {
    let ts = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let value = libc::itimerspec { it_interval: ts(interval), it_value: ts(first) };
    sys!(libc::SYS_timer_settime, id, flags, &value as *const _, 0)
}

fn posix_signal() {
    catch(50, 0);
    let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 50, 77, 0));
    ok!(settime(id, 0, 2_000_000, 0));
    until("the signal comes", || seen() == 1);
    eq!((last(0), last(1), last(3)), (50, -2, 77)); // SI_TIMER
    ok!(sys!(libc::SYS_timer_delete, id));
    err!(sys!(libc::SYS_timer_delete, id), libc::EINVAL);
    // Without an event it is SIGALRM with the timer's id.
    catch(libc::SIGALRM, 0);
    let mut id = -1i32;
    ok!(sys!(libc::SYS_timer_create, libc::CLOCK_REALTIME, 0, &mut id as *mut i32));
    ok!(settime(id.into(), 0, 1_000_000, 0));
    until("SIGALRM comes", || seen() == 2);
    eq!(last(0), i64::from(libc::SIGALRM));
}

static TID: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

extern "C" fn note_tid(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    TID.store(gettid(), std::sync::atomic::Ordering::SeqCst);
}

fn posix_thread_id() {
    handle(51, note_tid, 0);
    let thread = std::thread::spawn(|| {
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_THREAD_ID, 51, 0, gettid()));
        ok!(settime(id, 0, 1_000_000, 0));
        until("the thread gets the signal", || TID.load(std::sync::atomic::Ordering::SeqCst) == gettid());
    });
    thread.join().expect("joined");
    err!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_THREAD_ID, 51, 0, 1), libc::EINVAL);
}

fn posix_none_and_gettime() {
    let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_NONE, 0, 0, 0));
    ok!(settime(id, 0, 100_000_000_000, 3));
    let mut value: libc::itimerspec = zeroed();
    ok!(sys!(libc::SYS_timer_gettime, id, &mut value as *mut _));
    check!((90..100).contains(&value.it_value.tv_sec));
    eq!(value.it_interval.tv_nsec, 3);
    let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 50, 0, 0));
    ok!(settime(id, 0, 100_000_000_000, 0));
    ok!(settime(id, 0, 0, 0));
    ok!(sys!(libc::SYS_timer_gettime, id, &mut value as *mut _));
    eq!((value.it_value.tv_sec, value.it_value.tv_nsec), (0, 0));
}

fn posix_overrun() {
    sigmask(libc::SIG_BLOCK, bit(52));
    let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 52, 0, 0));
    ok!(settime(id, 0, 1_000_000, 1_000_000));
    sleep_ms(30);
    let mut info: libc::siginfo_t = zeroed();
    let set = bit(52);
    eq!(sys!(libc::SYS_rt_sigtimedwait, &set as *const u64, &mut info as *mut _, 0, 8), 52);
    // One signal stands for all the periods that passed.
    let overrun = ok!(sys!(libc::SYS_timer_getoverrun, id));
    check!(overrun >= 20, "{overrun}");
}

fn posix_absolute() {
    catch(53, 0);
    let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 53, 0, 0));
    let when = now() + 5_000_000;
    ok!(settime(id, libc::TIMER_ABSTIME, when, 0));
    until("the signal comes", || seen() == 1);
    check!(now() >= when);
    // A time that has passed expires at once.
    ok!(settime(id, libc::TIMER_ABSTIME, 1, 0));
    until("the second comes", || seen() == 2);
}

fn posix_errors() {
    err!(create(99, libc::SIGEV_SIGNAL, 50, 0, 0), libc::EINVAL);
    err!(create(1, 77, 50, 0, 0), libc::EINVAL);
    err!(create(1, libc::SIGEV_SIGNAL, 99, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timer_create, 1, BAD, 0), libc::EFAULT);
    let mut id = 0i32;
    err!(sys!(libc::SYS_timer_create, 1, BAD, &mut id as *mut i32), libc::EFAULT);
    err!(sys!(libc::SYS_timer_create, 1, 0, BAD), libc::EFAULT);
    err!(settime(12345, 0, 1, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timer_gettime, 12345, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timer_getoverrun, 12345), libc::EINVAL);
    let id = ok!(create(1, libc::SIGEV_NONE, 0, 0, 0));
    let bad = libc::itimerspec { it_interval: timespec_ms(0), it_value: libc::timespec { tv_sec: 0, tv_nsec: -1 } };
    err!(sys!(libc::SYS_timer_settime, id, 0, &bad as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timer_settime, id, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timer_settime, id, 0, BAD, 0), libc::EFAULT);
}

fn posix_cpu_clock() {
    catch(54, 0);
    let id = ok!(create(libc::CLOCK_PROCESS_CPUTIME_ID, libc::SIGEV_SIGNAL, 54, 0, 0));
    ok!(settime(id, 0, 5_000_000, 0));
    until("the signal comes", || {
        (0..200_000).for_each(|_| std::hint::spin_loop());
        seen() == 1
    });
}

fn timerfd(clock: i32, flags: i32) -> i32 {
    ok!(sys!(libc::SYS_timerfd_create, clock, flags)) as i32
}

fn arm(fd: i32, flags: i32, first: u64, interval: u64) -> i64 {
    let ts = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let value = libc::itimerspec { it_interval: ts(interval), it_value: ts(first) };
    sys!(libc::SYS_timerfd_settime, fd, flags, &value as *const _, 0)
}

fn expirations(fd: i32) -> u64 {
    u64::from_le_bytes(read(fd, 8).try_into().expect("eight bytes"))
}

fn fd_expires() {
    let fd = timerfd(libc::CLOCK_MONOTONIC, 0);
    let start = now();
    ok!(arm(fd, 0, 10_000_000, 0));
    eq!(expirations(fd), 1);
    check!(now() - start >= 10_000_000);
}

fn fd_interval() {
    let fd = timerfd(libc::CLOCK_MONOTONIC, 0);
    ok!(arm(fd, 0, 1_000_000, 1_000_000));
    sleep_ms(20);
    check!(expirations(fd) >= 15);
    check!(expirations(fd) >= 1);
    let mut value: libc::itimerspec = zeroed();
    ok!(sys!(libc::SYS_timerfd_gettime, fd, &mut value as *mut _));
    eq!(value.it_interval.tv_nsec, 1_000_000);
}

fn fd_absolute() {
    let fd = timerfd(libc::CLOCK_MONOTONIC, 0);
    ok!(arm(fd, libc::TFD_TIMER_ABSTIME, now() + 5_000_000, 0));
    eq!(expirations(fd), 1);
    ok!(arm(fd, libc::TFD_TIMER_ABSTIME, 1, 0));
    eq!(expirations(fd), 1);
}

fn fd_nonblocking() {
    let fd = timerfd(libc::CLOCK_REALTIME, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
    ok!(arm(fd, 0, 60_000_000_000, 0));
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
}

fn fd_disarm() {
    let fd = timerfd(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
    ok!(arm(fd, 0, 1_000_000, 0));
    ok!(arm(fd, 0, 0, 0));
    sleep_ms(5);
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
    // Arming again forgets what had expired.
    ok!(arm(fd, 0, 1, 0));
    sleep_ms(2);
    ok!(arm(fd, 0, 60_000_000_000, 0));
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
}

fn fd_errors() {
    err!(sys!(libc::SYS_timerfd_create, 99, 0), libc::EINVAL);
    err!(sys!(libc::SYS_timerfd_create, 1, 1), libc::EINVAL);
    let fd = timerfd(1, 0);
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 7), libc::EINVAL);
    err!(sys!(libc::SYS_write, fd, buf.as_ptr(), 8), libc::EINVAL);
    err!(arm(fd, 0x40, 1, 0), libc::EINVAL);
    err!(arm(0, 0, 1, 0), libc::EINVAL);
    err!(arm(999, 0, 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_timerfd_settime, fd, 0, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_timerfd_gettime, fd, BAD), libc::EFAULT);
}

fn fd_polls() {
    let fd = timerfd(libc::CLOCK_MONOTONIC, 0);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    ok!(arm(fd, 0, 3_000_000, 0));
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 5000), 1);
    eq!(poll.revents, libc::POLLIN);
    eq!(expirations(fd), 1);
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    err!(interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_read, fd, [0u8; 8].as_mut_ptr(), 8)), libc::EINTR);
}
