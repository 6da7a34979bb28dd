//! Process groups, sessions, priorities, scheduling calls.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("process": groups, group_errors, sessions, session_errors, parent_changes, pids_are_unique, priorities, priority_errors,
    affinity, scheduler_calls, yield_call, getcpu_call, pidfd_calls, pidfd_signals, orphaned_group);

fn groups() {
    let pid = child(|| {
        ok!(sys!(libc::SYS_setpgid, 0, 0));
        eq!(sys!(libc::SYS_getpgrp), i64::from(getpid()));
        in_child(|| check!(sys!(libc::SYS_getpgrp) != i64::from(getpid())));
        sleep_ms(60_000);
    });
    until("the child has a group of its own", || sys!(libc::SYS_getpgid, pid) == i64::from(pid));
    let other = child(|| sleep_ms(60_000));
    ok!(sys!(libc::SYS_setpgid, other, pid));
    eq!(sys!(libc::SYS_getpgid, other), i64::from(pid));
    kill(-pid, libc::SIGKILL);
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
    eq!(libc::WTERMSIG(wait(other)), libc::SIGKILL);
}

fn group_errors() {
    err!(sys!(libc::SYS_setpgid, 0, -1), libc::EINVAL);
    err!(sys!(libc::SYS_setpgid, 0x7fff_fff0, 0), libc::ESRCH);
    err!(sys!(libc::SYS_getpgid, 0x7fff_fff0), libc::ESRCH);
    err!(sys!(libc::SYS_getsid, 0x7fff_fff0), libc::ESRCH);
    // The runner made this process a session leader.
    err!(sys!(libc::SYS_setpgid, 0, 0), libc::EPERM);
    let pid = child(|| sleep_ms(60_000));
    err!(sys!(libc::SYS_setpgid, pid, 0x7fff_fff0), libc::EPERM);
    kill(pid, libc::SIGKILL);
    wait(pid);
    let (r, w) = pipe2(libc::O_CLOEXEC);
    let pid = child(|| {
        ok!(crate::tool::exec(&["pause"]));
    });
    close(w);
    eq!(read(r, 1), b"");
    // After exec it is too late.
    err!(sys!(libc::SYS_setpgid, pid, 0), libc::EACCES);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn sessions() {
    in_child(|| {
        let sid = ok!(sys!(libc::SYS_setsid));
        eq!(sid, i64::from(getpid()));
        eq!(sys!(libc::SYS_getsid, 0), sid);
        eq!(sys!(libc::SYS_getpgrp), sid);
        in_child(|| eq!(sys!(libc::SYS_getsid, 0), sid));
        err!(sys!(libc::SYS_setsid), libc::EPERM);
    });
}

fn session_errors() {
    err!(sys!(libc::SYS_setsid), libc::EPERM);
    let pid = child(|| {
        ok!(sys!(libc::SYS_setsid));
        sleep_ms(60_000);
    });
    until("the child has a session of its own", || sys!(libc::SYS_getsid, pid) == i64::from(pid));
    let other = child(|| sleep_ms(60_000));
    // Not into another session.
    err!(sys!(libc::SYS_setpgid, other, pid), libc::EPERM);
    err!(sys!(libc::SYS_setpgid, pid, 0), libc::EPERM);
    for p in [pid, other] {
        kill(p, libc::SIGKILL);
        wait(p);
    }
}

fn parent_changes() {
    let (r, w) = pipe();
    let pid = child(|| {
        let parent = getpid();
        child(|| {
            until("the parent is gone", || sys!(libc::SYS_getppid) != i64::from(parent));
            write(w, b"x");
        });
    });
    reap(pid);
    close(w);
    eq!(read(r, 1), b"x");
}

fn pids_are_unique() {
    let mut pids: Vec<_> = (0..50).map(|_| child(|| sleep_ms(60_000))).collect();
    pids.iter().for_each(|&p| eq!(kill(p, libc::SIGKILL), 0));
    pids.iter().for_each(|&p| {
        wait(p);
    });
    pids.sort_unstable();
    pids.dedup();
    eq!(pids.len(), 50);
    err!(kill(pids[0], 0), libc::ESRCH);
}

fn priorities() {
    // getpriority gives 20 minus the nice value.
    eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 20);
    in_child(|| {
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 5));
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 15);
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 100));
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 1);
        in_child(|| eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 1));
    });
}

fn priority_errors() {
    err!(sys!(libc::SYS_getpriority, 9, 0), libc::EINVAL);
    err!(sys!(libc::SYS_setpriority, 9, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0x7fff_fff0), libc::ESRCH);
    err!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0x7fff_fff0, 0), libc::ESRCH);
}

fn affinity() {
    let mut set = [0u64; 16];
    let n = ok!(sys!(libc::SYS_sched_getaffinity, 0, 128, set.as_mut_ptr()));
    check!(n >= 8 && n % 8 == 0);
    check!(set.iter().any(|&w| w != 0));
    err!(sys!(libc::SYS_sched_getaffinity, 0, 1, set.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getaffinity, 0, 128, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_sched_getaffinity, 0x7fff_fff0, 128, set.as_mut_ptr()), libc::ESRCH);
    ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, set.as_ptr()));
    let none = [0u64; 16];
    err!(sys!(libc::SYS_sched_setaffinity, 0, 128, none.as_ptr()), libc::EINVAL);
}

fn scheduler_calls() {
    eq!(sys!(libc::SYS_sched_getscheduler, 0), 0);
    let mut priority = 7i32;
    ok!(sys!(libc::SYS_sched_getparam, 0, &mut priority as *mut i32));
    eq!(priority, 0);
    eq!(sys!(libc::SYS_sched_get_priority_max, libc::SCHED_FIFO), 99);
    eq!(sys!(libc::SYS_sched_get_priority_min, libc::SCHED_RR), 1);
    eq!(sys!(libc::SYS_sched_get_priority_max, libc::SCHED_OTHER), 0);
    err!(sys!(libc::SYS_sched_get_priority_max, 99), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getscheduler, 0x7fff_fff0), libc::ESRCH);
    err!(sys!(libc::SYS_sched_getscheduler, -1), libc::EINVAL);
    let zero = 0i32;
    ok!(sys!(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &zero as *const i32));
    err!(sys!(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &zero as *const i32), libc::EINVAL);
    ok!(sys!(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &zero as *const i32));
    eq!(sys!(libc::SYS_sched_getscheduler, 0), i64::from(libc::SCHED_BATCH));
}

fn yield_call() {
    (0..100).for_each(|_| eq!(sys!(libc::SYS_sched_yield), 0));
}

fn getcpu_call() {
    let (mut cpu, mut node) = (u32::MAX, u32::MAX);
    ok!(sys!(libc::SYS_getcpu, &mut cpu as *mut u32, &mut node as *mut u32, 0));
    check!(cpu < 4096 && node < 1024);
    ok!(sys!(libc::SYS_getcpu, 0, 0, 0));
    err!(sys!(libc::SYS_getcpu, BAD, 0, 0), libc::EFAULT);
}

fn pidfd(pid: i32) -> i64 {
    sys!(libc::SYS_pidfd_open, pid, 0)
}

fn pidfd_calls() {
    let pid = child(|| sleep_ms(60_000));
    let r = pidfd(pid);
    if r == -i64::from(libc::ENOSYS) {
        skip("no pidfd_open");
    }
    let fd = ok!(r) as i32;
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    kill(pid, libc::SIGKILL);
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 10_000), 1);
    let mut info: libc::siginfo_t = zeroed();
    ok!(sys!(libc::SYS_waitid, libc::P_PIDFD, fd, &mut info as *mut _, libc::WEXITED, 0));
    err!(pidfd(0x7fff_fff0), libc::ESRCH);
    err!(pidfd(-1), libc::EINVAL);
}

fn pidfd_signals() {
    let pid = child(|| sleep_ms(60_000));
    let r = pidfd(pid);
    if r == -i64::from(libc::ENOSYS) {
        skip("no pidfd_open");
    }
    ok!(sys!(libc::SYS_pidfd_send_signal, r, 0, 0, 0));
    ok!(sys!(libc::SYS_pidfd_send_signal, r, libc::SIGTERM, 0, 0));
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGTERM);
    err!(sys!(libc::SYS_pidfd_send_signal, r, libc::SIGTERM, 0, 0), libc::ESRCH);
    err!(sys!(libc::SYS_pidfd_send_signal, 999, 0, 0, 0), libc::EBADF);
}

fn orphaned_group() {
    // A stopped group that becomes orphaned gets SIGHUP and SIGCONT.
    let (r, w) = pipe();
    let pid = child(|| {
        let stopped = child(|| {
            ok!(sys!(libc::SYS_setpgid, 0, 0));
            catch(libc::SIGHUP, 0);
            write(w, b"1");
            kill(getpid(), libc::SIGSTOP);
            until("SIGHUP comes", || seen() == 1);
            write(w, b"2");
        });
        until("it is stopped", || task_state(stopped) == 'T');
    });
    close(w);
    reap(pid);
    eq!(read(r, 1), b"1");
    eq!(read(r, 1), b"2");
}
