//! wait4(2) and waitid(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("wait": exit_and_signal_status, errors, any_child, by_group, nohang, nowait_leaves_it, waitid_info, waitid_errors,
    stopped_and_continued, ignored_sigchld_reaps, no_cldwait_reaps, interrupted_by_signal, restarted_after_signal,
    thread_waits_for_siblings_child, rusage_is_filled, sigchld_carries_status, core_flag_is_clear);

fn exit_and_signal_status() {
    let status = wait(child(|| exit(3)));
    check!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3, "{status:#x}");
    let status = wait(child(|| {
        kill(getpid(), libc::SIGTERM);
    }));
    check!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM, "{status:#x}");
}

fn errors() {
    err!(sys!(libc::SYS_wait4, -1, 0, 0, 0), libc::ECHILD);
    err!(sys!(libc::SYS_wait4, getpid(), 0, 0, 0), libc::ECHILD);
    err!(sys!(libc::SYS_wait4, -1, 0, 0x1000, 0), libc::EINVAL);
    let pid = child(|| exit(0));
    err!(sys!(libc::SYS_wait4, pid, BAD, 0, 0), libc::EFAULT);
    // The child has been reaped all the same.
    err!(sys!(libc::SYS_wait4, pid, 0, 0, 0), libc::ECHILD);
}

fn any_child() {
    let mut pids: Vec<i64> = (0..5).map(|_| i64::from(child(|| exit(1)))).collect();
    let mut got: Vec<i64> = (0..5).map(|_| sys!(libc::SYS_wait4, -1, 0, 0, 0)).collect();
    pids.sort_unstable();
    got.sort_unstable();
    eq!(got, pids);
    err!(sys!(libc::SYS_wait4, -1, 0, 0, 0), libc::ECHILD);
}

fn by_group() {
    let one = child(|| sleep_ms(60_000));
    let two = child(|| sleep_ms(60_000));
    ok!(sys!(libc::SYS_setpgid, one, 0));
    ok!(sys!(libc::SYS_setpgid, two, 0));
    kill(two, libc::SIGKILL);
    kill(one, libc::SIGKILL);
    err!(sys!(libc::SYS_wait4, 0, 0, 0, 0), libc::ECHILD);
    eq!(sys!(libc::SYS_wait4, -two, 0, 0, 0), i64::from(two));
    eq!(sys!(libc::SYS_wait4, -one, 0, 0, 0), i64::from(one));
}

fn nohang() {
    let (r, w) = pipe();
    let pid = child(|| {
        read(r, 1);
    });
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::WNOHANG, 0), 0);
    write(w, b"x");
    reap(pid);
}

fn nowait_leaves_it() {
    let pid = child(|| exit(9));
    let mut info: libc::siginfo_t = zeroed();
    for _ in 0..2 {
        ok!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT));
        // SAFETY: a SIGCHLD siginfo.
        eq!(unsafe { info.si_pid() }, pid);
    }
    eq!(libc::WEXITSTATUS(wait(pid)), 9);
}

fn waitid_info() {
    let pid = child(|| exit(9));
    let mut info: libc::siginfo_t = zeroed();
    eq!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED), 0);
    // SAFETY: a SIGCHLD siginfo.
    let (who, uid, status) = unsafe { (info.si_pid(), info.si_uid(), info.si_status()) };
    eq!((info.si_signo, info.si_code, who, status), (libc::SIGCHLD, libc::CLD_EXITED, pid, 9));
    eq!(i64::from(uid), sys!(libc::SYS_getuid));
    let pid = child(|| {
        kill(getpid(), libc::SIGKILL);
    });
    eq!(waitid(libc::P_ALL, 0, &mut info, libc::WEXITED), 0);
    // SAFETY: as above.
    eq!((info.si_code, unsafe { info.si_pid() }, unsafe { info.si_status() }), (libc::CLD_KILLED, pid, libc::SIGKILL));
    // WNOHANG with nothing to report clears the pid.
    let pid = child(|| sleep_ms(60_000));
    eq!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOHANG), 0);
    // SAFETY: as above.
    eq!(unsafe { info.si_pid() }, 0);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn waitid_errors() {
    let mut info: libc::siginfo_t = zeroed();
    err!(waitid(libc::P_ALL, 0, &mut info, 0), libc::EINVAL);
    err!(waitid(libc::P_ALL, 0, &mut info, libc::WNOHANG), libc::EINVAL);
    err!(waitid(99, 0, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_PID, 0, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_ALL, 0, &mut info, libc::WEXITED), libc::ECHILD);
}

fn stopped_and_continued() {
    let pid = child(|| {
        kill(getpid(), libc::SIGSTOP);
        exit(2);
    });
    let mut status = 0i32;
    eq!(sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WUNTRACED, 0), i64::from(pid));
    check!(libc::WIFSTOPPED(status), "{status:#x}");
    eq!(libc::WSTOPSIG(status), libc::SIGSTOP);
    // Reported once.
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::WUNTRACED | libc::WNOHANG, 0), 0);
    eq!(task_state(pid), 'T');
    kill(pid, libc::SIGCONT);
    eq!(sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WCONTINUED | libc::WUNTRACED, 0), i64::from(pid));
    // It may have exited already; a continue is then no longer reported.
    if libc::WIFCONTINUED(status) {
        eq!(libc::WEXITSTATUS(wait(pid)), 2);
    } else {
        eq!(libc::WEXITSTATUS(status), 2);
    }
}

fn ignored_sigchld_reaps() {
    disposition(libc::SIGCHLD, libc::SIG_IGN);
    let pid = child(|| exit(0));
    err!(sys!(libc::SYS_wait4, pid, 0, 0, 0), libc::ECHILD);
}

fn no_cldwait_reaps() {
    catch(libc::SIGCHLD, libc::SA_NOCLDWAIT);
    let pid = child(|| exit(0));
    until("no child is left", || sys!(libc::SYS_wait4, pid, 0, libc::WNOHANG, 0) == -i64::from(libc::ECHILD));
    eq!(seen(), 1);
}

fn interrupted_by_signal() {
    let pid = child(|| sleep_ms(60_000));
    let result = interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_wait4, pid, 0, 0, 0));
    err!(result, libc::EINTR);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn restarted_after_signal() {
    let pid = child(|| sleep_ms(60_000));
    let result = interrupted_then(
        libc::SIGUSR1,
        libc::SA_RESTART,
        3,
        move || {
            kill(pid, libc::SIGKILL);
        },
        || sys!(libc::SYS_wait4, pid, 0, 0, 0),
    );
    eq!(result, i64::from(pid));
    check!(seen() >= 3);
}

fn thread_waits_for_siblings_child() {
    let (tx, rx) = std::sync::mpsc::channel();
    let (r, w) = pipe();
    let thread = std::thread::spawn(move || {
        tx.send(child(|| exit(8))).expect("sent");
        read(r, 1);
    });
    let pid = rx.recv().expect("received");
    // Not with __WNOTHREAD.
    err!(sys!(libc::SYS_wait4, pid, 0, libc::__WNOTHREAD, 0), libc::ECHILD);
    eq!(libc::WEXITSTATUS(wait(pid)), 8);
    write(w, b"x");
    thread.join().expect("joined");
}

fn rusage_is_filled() {
    let pid = child(|| compute_ms(20));
    let mut usage: libc::rusage = zeroed();
    usage.ru_utime.tv_sec = -1;
    eq!(sys!(libc::SYS_wait4, pid, 0, 0, &mut usage as *mut _), i64::from(pid));
    let used = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1_000_000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    check!((5_000..10_000_000).contains(&used), "{used} µs");
    let mut children: libc::rusage = zeroed();
    ok!(sys!(libc::SYS_getrusage, libc::RUSAGE_CHILDREN, &mut children as *mut _));
    check!(children.ru_utime.tv_usec + children.ru_stime.tv_usec > 0 || children.ru_utime.tv_sec > 0);
}

fn sigchld_carries_status() {
    catch(libc::SIGCHLD, 0);
    let pid = child(|| exit(12));
    until("SIGCHLD", || seen() == 1);
    eq!((last(0), last(1), last(2)), (i64::from(libc::SIGCHLD), i64::from(libc::CLD_EXITED), i64::from(pid)));
    eq!(libc::WEXITSTATUS(wait(pid)), 12);
}

fn core_flag_is_clear() {
    // With a core limit of 0 no core is made, and the flag says so.
    let zero = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let pid = child(|| {
        ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_CORE, &zero as *const _));
        // SAFETY: meant to fault.
        unsafe { (BAD as *mut u8).write_volatile(1) };
    });
    eq!(wait(pid) & 0xff, libc::SIGSEGV);
}
