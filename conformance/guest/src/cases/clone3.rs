//! clone3(2), pidfds, waitid(2), execveat(2), close_range(2): their flags and errors.

use super::clone::CloneArgs as Args;
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("clone3": exit_signals, stack_and_size, set_tid_chooses, set_tid_taken, set_tid_errors, set_tid_privilege, pidfd_is_given, pidfd_of_exec,
    pidfd_info, clear_handlers, into_cgroup, flag_conflicts, bad_structures, parent_and_child_tid, clone_parent, clone_files_shared,
    clone_fs_shared, clone_signal_range, namespaces_refused_or_made, wait_by_pidfd, wait_pidfd_nonblocking, wait_kinds, wait_keeps,
    wait_stop_and_continue, wait_siginfo, wait_errors, wait_clone_children, wait_no_thread, wait_rusage, pidfd_poll_and_epoll,
    pidfd_open_threads, pidfd_getfd_shares, pidfd_getfd_errors, pidfd_signal_info, signal_by_proc_directory, exec_by_descriptor, exec_by_descriptor_path,
    exec_flags, exec_script_by_descriptor, exec_name_of_descriptor, exec_shares_nothing, close_range_unshares, close_range_edges,
    tid_is_cleared, vfork_child_exits, thread_group_needs);

fn clone3(args: &Args) -> i64 {
    sys!(libc::SYS_clone3, args as *const Args, size_of::<Args>())
}

const CHLD: u64 = libc::SIGCHLD as u64;

/// Makes a child that runs `body`.
fn spawn(args: Args, body: impl FnOnce()) -> i64 {
    let pid = clone3(&args);
    if pid == 0 {
        body();
        exit(0);
    }
    pid
}

fn exit_signals() {
    catch(libc::SIGUSR1, 0);
    let pid = ok!(spawn(Args { exit_signal: libc::SIGUSR1 as u64, ..Args::default() }, || {})) as i32;
    until("the chosen signal comes", || seen() == 1);
    // Only __WALL or __WCLONE finds such a child.
    err!(sys!(libc::SYS_wait4, pid, 0, 0, 0), libc::ECHILD);
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::__WALL, 0), i64::from(pid));
    let pid = ok!(spawn(Args::default(), || {})) as i32;
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::__WCLONE, 0), i64::from(pid));
    eq!(seen(), 1);
    for signal in [65u64, 100, 255, 256, 1 << 32] {
        err!(clone3(&Args { exit_signal: signal, ..Args::default() }), libc::EINVAL);
    }
}

fn stack_and_size() {
    let stack = map(16 * PAGE, libc::PROT_READ | libc::PROT_WRITE) as u64;
    err!(clone3(&Args { exit_signal: CHLD, stack, ..Args::default() }), libc::EINVAL);
    err!(clone3(&Args { exit_signal: CHLD, stack_size: 4096, ..Args::default() }), libc::EINVAL);
    err!(clone3(&Args { exit_signal: CHLD, stack: WILD, stack_size: 4096, ..Args::default() }), libc::EINVAL);
}

fn choose(tid: &[i32], flags: u64) -> Args {
    Args { flags, exit_signal: CHLD, set_tid: tid.as_ptr() as u64, set_tid_size: tid.len() as u64, ..Args::default() }
}

fn set_tid_chooses() {
    need_root();
    // An id that has just been free.
    let free = child(|| {});
    reap(free);
    let pid = spawn(choose(&[free], 0), || eq!(getpid(), free));
    eq!(pid, i64::from(free));
    reap(free);
}

fn set_tid_taken() {
    need_root();
    err!(clone3(&choose(&[getpid()], 0)), libc::EEXIST);
    let zombie = child(|| {});
    until("it has ended", || task_state(zombie) == 'Z');
    err!(clone3(&choose(&[zombie], 0)), libc::EEXIST);
    reap(zombie);
}

fn set_tid_errors() {
    err!(clone3(&choose(&[0], 0)), libc::EINVAL);
    err!(clone3(&choose(&[-5], 0)), libc::EINVAL);
    err!(clone3(&choose(&[i32::MAX], 0)), libc::EINVAL);
    err!(clone3(&choose(&[7; 33], 0)), libc::EINVAL);
    err!(clone3(&Args { exit_signal: CHLD, set_tid: 1, ..Args::default() }), libc::EINVAL);
    err!(clone3(&Args { exit_signal: CHLD, set_tid_size: 1, ..Args::default() }), libc::EINVAL);
    err!(clone3(&Args { exit_signal: CHLD, set_tid: BAD, set_tid_size: 1, ..Args::default() }), libc::EFAULT);
}

fn set_tid_privilege() {
    in_child(|| {
        drop_root();
        err!(clone3(&choose(&[30_000], 0)), libc::EPERM);
    });
}

fn pidfd_is_given() {
    let mut fd = -1i32;
    let args = Args { flags: libc::CLONE_PIDFD as u64, pidfd: &mut fd as *mut i32 as u64, exit_signal: CHLD, ..Args::default() };
    let (r, w) = pipe();
    let pid = ok!(spawn(args, || {
        read(r, 1);
    })) as i32;
    check!(fd >= 0);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
    ok!(sys!(libc::SYS_pidfd_send_signal, fd, 0, 0, 0));
    write(w, b"x");
    let mut info: libc::siginfo_t = zeroed();
    ok!(sys!(libc::SYS_waitid, libc::P_PIDFD, fd, &mut info as *mut _, libc::WEXITED, 0));
    // SAFETY: filled for a child.
    eq!(unsafe { info.si_pid() }, pid);
    err!(sys!(libc::SYS_pidfd_send_signal, fd, 0, 0, 0), libc::ESRCH);
}

fn pidfd_of_exec() {
    // It goes on to mean the process when that runs another program.
    let pid = child(|| {
        ok!(crate::tool::exec(&["pause"]));
    });
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    until("the program runs", || text(&format!("/proc/{pid}/cmdline")).contains("pause"));
    ok!(sys!(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, 0, 0));
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
}

fn signal_by_proc_directory() {
    // pidfd_send_signal(2) takes a descriptor of /proc/PID, and no other of that kind.
    let send = |fd: i32, signal: i32| sys!(libc::SYS_pidfd_send_signal, fd, signal, 0, 0);
    let pid = child(|| sleep_ms(60_000));
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    let fd = ok!(open(&format!("/proc/{pid}"), flags, 0)) as i32;
    ok!(send(fd, 0));
    let others = [format!("/proc/{pid}/task/{pid}"), format!("/proc/{pid}/task"), "/proc".into()];
    for other in others {
        err!(send(ok!(open(&other, flags, 0)) as i32, 0), libc::EBADF);
    }
    err!(send(ok!(open(&format!("/proc/{pid}/status"), libc::O_RDONLY, 0)) as i32, 0), libc::EBADF);
    err!(send(ok!(open(&format!("/proc/{pid}"), flags | libc::O_PATH, 0)) as i32, 0), libc::EBADF);
    err!(sys!(libc::SYS_pidfd_getfd, fd, 0, 0), libc::EBADF);
    let mut info: libc::siginfo_t = zeroed();
    err!(sys!(libc::SYS_waitid, libc::P_PIDFD, fd, &mut info as *mut _, libc::WEXITED, 0), libc::EBADF);
    ok!(send(fd, libc::SIGKILL));
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
    err!(send(fd, 0), libc::ESRCH);
}

fn pidfd_info() {
    let pid = child(|| sleep_ms(60_000));
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    let info = text(&format!("/proc/self/fdinfo/{fd}"));
    check!(info.contains(&format!("Pid:\t{pid}\n")) && info.contains(&format!("NSpid:\t{pid}\n")), "{info}");
    kill(pid, libc::SIGKILL);
    wait(pid);
    let info = text(&format!("/proc/self/fdinfo/{fd}"));
    check!(info.contains("Pid:\t-1\n"), "{info}");
}

fn clear_handlers() {
    catch(libc::SIGUSR1, 0);
    disposition(libc::SIGUSR2, libc::SIG_IGN);
    let pid = ok!(spawn(Args { flags: 0x1_0000_0000, exit_signal: CHLD, ..Args::default() }, || {
        let handler = |signal: i32| {
            let mut action: libc::sigaction = zeroed();
            // SAFETY: a valid structure.
            unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
            action.sa_sigaction
        };
        eq!(handler(libc::SIGUSR1), libc::SIG_DFL);
        eq!(handler(libc::SIGUSR2), libc::SIG_IGN);
    }));
    reap(pid as i32);
    err!(
        clone3(&Args {
            flags: 0x1_0000_0000 | libc::CLONE_SIGHAND as u64 | libc::CLONE_VM as u64,
            exit_signal: CHLD,
            ..Args::default()
        }),
        libc::EINVAL
    );
}

fn into_cgroup() {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    err!(clone3(&Args { flags: INTO_CGROUP, exit_signal: CHLD, cgroup: 999, ..Args::default() }), libc::EBADF);
    err!(clone3(&Args { flags: INTO_CGROUP, exit_signal: CHLD, cgroup: 1 << 40, ..Args::default() }), libc::EINVAL);
    let f = new_file("f", b"");
    err!(clone3(&Args { flags: INTO_CGROUP, exit_signal: CHLD, cgroup: f as u64, ..Args::default() }), libc::EBADF);
}

fn flag_conflicts() {
    let flags = |flags: i32| clone3(&Args { flags: flags as u64, exit_signal: CHLD, ..Args::default() });
    err!(flags(libc::CLONE_SIGHAND), libc::EINVAL);
    err!(flags(libc::CLONE_THREAD), libc::EINVAL);
    err!(flags(libc::CLONE_FS | libc::CLONE_NEWNS), libc::EINVAL);
    err!(flags(libc::CLONE_DETACHED), libc::EINVAL);
    // CSIGNAL bits are no flags here.
    err!(flags(libc::SIGCHLD), libc::EINVAL);
    err!(clone3(&Args { flags: 1 << 40, exit_signal: CHLD, ..Args::default() }), libc::EINVAL);
    // A thread has no exit signal.
    let all = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    err!(flags(all), libc::EINVAL);
    err!(clone3(&Args { flags: (libc::CLONE_PARENT) as u64, exit_signal: CHLD, ..Args::default() }), libc::EINVAL);
    // The old call has no way for both.
    let both = libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    err!(sys!(libc::SYS_clone, both, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clone, libc::CLONE_PIDFD | libc::CLONE_DETACHED | libc::SIGCHLD, 0, 0, 0, 0), libc::EINVAL);
}

fn bad_structures() {
    let args = Args { exit_signal: CHLD, ..Args::default() };
    err!(sys!(libc::SYS_clone3, &args as *const Args, 63), libc::EINVAL);
    err!(sys!(libc::SYS_clone3, &args as *const Args, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clone3, &args as *const Args, 5000), libc::E2BIG);
    err!(sys!(libc::SYS_clone3, BAD, 88), libc::EFAULT);
    err!(sys!(libc::SYS_clone3, 0, 88), libc::EFAULT);
    let mut long = [0u64; 32];
    long[4] = CHLD;
    let pid = sys!(libc::SYS_clone3, long.as_ptr(), 256);
    if pid == 0 {
        exit(0);
    }
    reap(ok!(pid) as i32);
    long[20] = 1;
    err!(sys!(libc::SYS_clone3, long.as_ptr(), 256), libc::E2BIG);
}

fn parent_and_child_tid() {
    let words = shared_words();
    let mut parent = 0i32;
    let args = Args {
        flags: (libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_SETTID) as u64,
        parent_tid: &mut parent as *mut i32 as u64,
        child_tid: words[0].as_ptr() as u64,
        exit_signal: CHLD,
        ..Args::default()
    };
    let pid = ok!(spawn(args, || {
        eq!(words[0].load(std::sync::atomic::Ordering::SeqCst), getpid() as u32);
    }));
    eq!(i64::from(parent), pid);
    reap(pid as i32);
}

fn clone_parent() {
    in_child(|| {
        let me = getpid();
        let (r, w) = pipe();
        let pid = child(|| {
            let sibling = ok!(spawn(Args { flags: libc::CLONE_PARENT as u64, ..Args::default() }, || {
                eq!(sys!(libc::SYS_getppid), i64::from(me));
            }));
            write(w, &(sibling as i32).to_ne_bytes());
            err!(sys!(libc::SYS_wait4, -1, 0, libc::__WALL, 0), libc::ECHILD);
        });
        let sibling = i32::from_ne_bytes(read(r, 4).try_into().expect("four bytes"));
        reap(pid);
        reap(sibling);
    });
}

fn clone_files_shared() {
    let (r, w) = pipe();
    let pid = ok!(spawn(Args { flags: libc::CLONE_FILES as u64, exit_signal: CHLD, ..Args::default() }, || close(w)));
    reap(pid as i32);
    eq!(read(r, 1), b"");
    err!(write(w, b"x"), libc::EBADF);
}

fn clone_fs_shared() {
    ok!(mkdir("d", 0o755));
    let pid = ok!(spawn(Args { flags: libc::CLONE_FS as u64, exit_signal: CHLD, ..Args::default() }, || {
        ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
        sys!(libc::SYS_umask, 0o123);
    }));
    reap(pid as i32);
    eq!(stat("../d").0, 0);
    eq!(sys!(libc::SYS_umask, 0o22), 0o123);
}

fn clone_signal_range() {
    // The old call takes any number of eight bits for the signal; what is none sends none.
    let pid = sys!(libc::SYS_clone, 77, 0, 0, 0, 0);
    if pid == 0 {
        exit(0);
    }
    if pid > 0 {
        eq!(sys!(libc::SYS_wait4, pid, 0, libc::__WALL, 0), pid);
    } else {
        err!(pid, libc::EINVAL);
    }
}

fn namespaces_refused_or_made() {
    in_child(|| {
        drop_root();
        for flag in [libc::CLONE_NEWNS, libc::CLONE_NEWUTS, libc::CLONE_NEWIPC, libc::CLONE_NEWPID, libc::CLONE_NEWNET] {
            err!(clone3(&Args { flags: flag as u64, exit_signal: CHLD, ..Args::default() }), libc::EPERM);
        }
    });
}

fn wait_by_pidfd() {
    let (r, w) = pipe();
    let pid = child(|| {
        read(r, 1);
        exit(7);
    });
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    let mut info: libc::siginfo_t = zeroed();
    ok!(waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED | libc::WNOHANG));
    eq!(info.si_signo, 0);
    write(w, b"x");
    ok!(waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED));
    // SAFETY: filled for a child.
    eq!(unsafe { (info.si_signo, info.si_code, info.si_pid(), info.si_status()) }, (libc::SIGCHLD, libc::CLD_EXITED, pid, 7));
    err!(waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED), libc::ECHILD);
    // Of somebody else's child.
    let parent = ok!(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getppid) as i32, 0)) as i32;
    err!(waitid(libc::P_PIDFD, parent, &mut info, libc::WEXITED), libc::ECHILD);
}

fn wait_pidfd_nonblocking() {
    let pid = child(|| sleep_ms(60_000));
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, libc::O_NONBLOCK)) as i32;
    let mut info: libc::siginfo_t = zeroed();
    err!(waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED), libc::EAGAIN);
    ok!(waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED | libc::WNOHANG));
    kill(pid, libc::SIGKILL);
    until("it can be waited for", || waitid(libc::P_PIDFD, fd, &mut info, libc::WEXITED) == 0);
    // SAFETY: filled for a child.
    eq!(unsafe { (info.si_code, info.si_status()) }, (libc::CLD_KILLED, libc::SIGKILL));
    err!(sys!(libc::SYS_pidfd_open, getpid(), libc::O_APPEND), libc::EINVAL);
}

fn wait_kinds() {
    in_child(|| {
        let pid = child(|| {
            ok!(sys!(libc::SYS_setpgid, 0, 0));
            exit(1);
        });
        until("it has ended", || task_state(pid) == 'Z');
        let mut info: libc::siginfo_t = zeroed();
        err!(waitid(libc::P_PGID, 0, &mut info, libc::WEXITED), libc::ECHILD);
        let look = |kind, id, info: &mut libc::siginfo_t| waitid(kind, id, info, libc::WEXITED | libc::WNOWAIT);
        for (kind, id) in [(libc::P_ALL, 0), (libc::P_PID, pid), (libc::P_PGID, pid)] {
            info = zeroed();
            ok!(look(kind, id, &mut info));
            // SAFETY: filled for a child.
            eq!(unsafe { info.si_pid() }, pid);
        }
        reap_with(pid, 1);
    });
}

/// Waits for a child that must exit with this code.
fn reap_with(pid: i32, code: i32) {
    let status = wait(pid);
    check!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == code, "{status:#x}");
}

fn wait_keeps() {
    let pid = child(|| exit(3));
    let mut info: libc::siginfo_t = zeroed();
    for _ in 0..3 {
        ok!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT));
    }
    reap_with(pid, 3);
}

fn wait_stop_and_continue() {
    let pid = child(|| sleep_ms(60_000));
    let mut info: libc::siginfo_t = zeroed();
    kill(pid, libc::SIGSTOP);
    ok!(waitid(libc::P_PID, pid, &mut info, libc::WSTOPPED));
    // SAFETY: filled for a child.
    eq!(unsafe { (info.si_code, info.si_status()) }, (libc::CLD_STOPPED, libc::SIGSTOP));
    // Reported once.
    ok!(waitid(libc::P_PID, pid, &mut info, libc::WSTOPPED | libc::WNOHANG));
    eq!(info.si_signo, 0);
    kill(pid, libc::SIGCONT);
    ok!(waitid(libc::P_PID, pid, &mut info, libc::WCONTINUED));
    // SAFETY: as above.
    eq!(unsafe { (info.si_code, info.si_status()) }, (libc::CLD_CONTINUED, libc::SIGCONT));
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn wait_siginfo() {
    let pid = child(|| exit(5));
    let mut info = [0xffu8; 128];
    ok!(sys!(libc::SYS_waitid, libc::P_PID, pid, info.as_mut_ptr(), libc::WEXITED, 0));
    let word = |at: usize| i32::from_ne_bytes(info[at..at + 4].try_into().expect("four bytes"));
    eq!((word(0), word(4), word(8)), (libc::SIGCHLD, 0, libc::CLD_EXITED));
    eq!((word(16), word(20), word(24)), (pid, sys!(libc::SYS_getuid) as i32, 5));
    // What is not filled is left alone.
    eq!(info[64..], [0xff; 64]);
    let pid = child(|| exit(5));
    ok!(sys!(libc::SYS_waitid, libc::P_PID, pid, 0, libc::WEXITED, 0));
    let pid = child(|| exit(5));
    err!(sys!(libc::SYS_waitid, libc::P_PID, pid, BAD, libc::WEXITED, 0), libc::EFAULT);
}

fn wait_errors() {
    let mut info: libc::siginfo_t = zeroed();
    err!(waitid(libc::P_ALL, 0, &mut info, 0), libc::EINVAL);
    err!(waitid(libc::P_ALL, 0, &mut info, libc::WNOHANG), libc::EINVAL);
    err!(waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | 0x100), libc::EINVAL);
    err!(waitid(9, 0, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_PID, 0, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_PID, -1, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_PGID, -1, &mut info, libc::WEXITED), libc::EINVAL);
    err!(waitid(libc::P_PIDFD, 999, &mut info, libc::WEXITED), libc::EBADF);
    err!(waitid(libc::P_PIDFD, -1, &mut info, libc::WEXITED), libc::EINVAL);
    let (r, _w) = pipe();
    err!(waitid(libc::P_PIDFD, r, &mut info, libc::WEXITED), libc::EBADF);
    err!(waitid(libc::P_PID, 0x7fff_fff0, &mut info, libc::WEXITED), libc::ECHILD);
    err!(sys!(libc::SYS_wait4, 0x7fff_fff0, 0, 0, 0), libc::ECHILD);
    err!(sys!(libc::SYS_wait4, -1, 0, 0x100, 0), libc::EINVAL);
    err!(sys!(libc::SYS_wait4, i32::MIN, 0, 0, 0), libc::ESRCH);
}

fn wait_clone_children() {
    let pid = ok!(spawn(Args::default(), || {})) as i32;
    let mut info: libc::siginfo_t = zeroed();
    err!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED), libc::ECHILD);
    ok!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::__WCLONE));
    let pid = child(|| {});
    err!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::__WCLONE), libc::ECHILD);
    ok!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::__WALL));
}

fn wait_no_thread() {
    let pid = child(|| {});
    std::thread::spawn(move || {
        let mut info: libc::siginfo_t = zeroed();
        err!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::__WNOTHREAD), libc::ECHILD);
        ok!(waitid(libc::P_PID, pid, &mut info, libc::WEXITED));
    })
    .join()
    .expect("the thread ends");
}

fn wait_rusage() {
    let pid = child(|| compute_ms(20));
    let mut usage: libc::rusage = zeroed();
    ok!(sys!(libc::SYS_waitid, libc::P_PID, pid, 0, libc::WEXITED, &mut usage as *mut _));
    let micros = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    let used = micros(usage.ru_utime) + micros(usage.ru_stime);
    check!((5_000..5_000_000).contains(&used), "{used}");
}

fn pidfd_poll_and_epoll() {
    let (r, w) = pipe();
    let pid = child(|| {
        read(r, 1);
    });
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    let ep = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 9 };
    ok!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_ADD, fd, &event as *const _));
    eq!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 0), 0);
    write(w, b"x");
    eq!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 5000), 1);
    eq!({ event.u64 }, 9);
    reap(pid);
    // Still ended.
    eq!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 0), 1);
    err!(sys!(libc::SYS_read, fd, &mut event as *mut _, 8), libc::EINVAL);
}

fn pidfd_open_threads() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    let thread = std::thread::spawn(move || {
        write(w, &gettid().to_ne_bytes());
        read(r2, 1);
    });
    let tid = i32::from_ne_bytes(read(r, 4).try_into().expect("four bytes"));
    let fd = sys!(libc::SYS_pidfd_open, tid, 0);
    check!(fd == -i64::from(libc::EINVAL) || fd == -i64::from(libc::ENOENT), "{fd}");
    write(w2, b"x");
    thread.join().expect("the thread ends");
    err!(sys!(libc::SYS_pidfd_open, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_pidfd_open, getpid(), 1 << 20), libc::EINVAL);
}

fn pidfd_getfd_shares() {
    let (r, w) = pipe();
    let f = new_file("f", b"0123456789");
    let pid = child(|| {
        read(r, 1);
    });
    let fd = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    let copy = ok!(sys!(libc::SYS_pidfd_getfd, fd, f, 0)) as i32;
    eq!(sys!(libc::SYS_fcntl, copy, libc::F_GETFD), 1);
    eq!(read(copy, 4), b"0123");
    eq!(read(f, 4), b"4567");
    write(w, b"x");
    reap(pid);
    err!(sys!(libc::SYS_pidfd_getfd, fd, f, 0), libc::ESRCH);
}

fn pidfd_getfd_errors() {
    let fd = ok!(sys!(libc::SYS_pidfd_open, getpid(), 0)) as i32;
    err!(sys!(libc::SYS_pidfd_getfd, fd, 999, 0), libc::EBADF);
    err!(sys!(libc::SYS_pidfd_getfd, fd, 0, 1), libc::EINVAL);
    err!(sys!(libc::SYS_pidfd_getfd, 999, 0, 0), libc::EBADF);
    let (r, _w) = pipe();
    err!(sys!(libc::SYS_pidfd_getfd, r, 0, 0), libc::EBADF);
    if is_root() {
        in_child(|| {
            drop_root();
            err!(sys!(libc::SYS_pidfd_getfd, fd, 0, 0), libc::EPERM);
        });
    }
}

fn pidfd_signal_info() {
    let fd = ok!(sys!(libc::SYS_pidfd_open, getpid(), 0)) as i32;
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    let mut info = [0i32; 32];
    info[0] = libc::SIGUSR1;
    info[2] = libc::SI_QUEUE;
    info[6] = 42;
    ok!(sys!(libc::SYS_pidfd_send_signal, fd, libc::SIGUSR1, info.as_ptr(), 0));
    let set = bit(libc::SIGUSR1);
    let mut got = [0i32; 32];
    eq!(sys!(libc::SYS_rt_sigtimedwait, &set as *const u64, got.as_mut_ptr(), 0, 8), i64::from(libc::SIGUSR1));
    eq!((got[2], got[6]), (libc::SI_QUEUE, 42));
    // The number in both places must agree.
    err!(sys!(libc::SYS_pidfd_send_signal, fd, libc::SIGUSR2, info.as_ptr(), 0), libc::EINVAL);
    err!(sys!(libc::SYS_pidfd_send_signal, fd, libc::SIGUSR1, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_pidfd_send_signal, fd, 99, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_pidfd_send_signal, fd, 0, 0, 64), libc::EINVAL);
    let (r, _w) = pipe();
    err!(sys!(libc::SYS_pidfd_send_signal, r, 0, 0, 0), libc::EBADF);
    // To others only what a kill could be.
    let pid = child(|| sleep_ms(60_000));
    let other = ok!(sys!(libc::SYS_pidfd_open, pid, 0)) as i32;
    info[2] = libc::SI_USER;
    err!(sys!(libc::SYS_pidfd_send_signal, other, libc::SIGUSR1, info.as_ptr(), 0), libc::EPERM);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

/// execveat of a file with these arguments; returns only on failure.
fn execveat(fd: i32, path: &str, args: &[&str], flags: i32) -> i64 {
    let (path, argv, envp) = (c(path), crate::tool::Argv::new(args), crate::tool::Argv::new(&[]));
    sys!(libc::SYS_execveat, fd, path.as_ptr(), argv.as_ptr(), envp.as_ptr(), flags)
}

fn exec_by_descriptor() {
    let pid = child(|| {
        let fd = ok!(open(&crate::tool::me(), libc::O_RDONLY | libc::O_CLOEXEC, 0)) as i32;
        ok!(execveat(fd, "", &["guest", "tool", "exit", "9"], libc::AT_EMPTY_PATH));
    });
    reap_with(pid, 9);
    let pid = child(|| {
        // O_PATH is enough.
        let fd = ok!(open(&crate::tool::me(), libc::O_PATH, 0)) as i32;
        ok!(execveat(fd, "", &["guest", "tool", "exit", "8"], libc::AT_EMPTY_PATH));
    });
    reap_with(pid, 8);
}

fn exec_by_descriptor_path() {
    let me = crate::tool::me();
    let (dir, name) = me.rsplit_once('/').expect("an absolute path");
    let pid = child(|| {
        let fd = ok!(open(dir, libc::O_PATH, 0)) as i32;
        ok!(execveat(fd, name, &["guest", "tool", "exit", "7"], 0));
    });
    reap_with(pid, 7);
}

fn exec_flags() {
    let me = crate::tool::me();
    ok!(symlink(&me, "link"));
    err!(execveat(libc::AT_FDCWD, "link", &["x"], libc::AT_SYMLINK_NOFOLLOW), libc::ELOOP);
    err!(execveat(libc::AT_FDCWD, "", &["x"], 0), libc::ENOENT);
    err!(execveat(libc::AT_FDCWD, "link", &["x"], 0x4), libc::EINVAL);
    err!(execveat(999, "x", &["x"], 0), libc::EBADF);
    err!(execveat(999, "", &["x"], libc::AT_EMPTY_PATH), libc::EBADF);
    let f = new_file("f", b"");
    err!(execveat(f, "x", &["x"], 0), libc::ENOTDIR);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(execveat(dir, "", &["x"], libc::AT_EMPTY_PATH), libc::EACCES);
    err!(execveat(f, "", &["x"], libc::AT_EMPTY_PATH), libc::EACCES);
}

fn exec_script_by_descriptor() {
    file("script", b"#!/bin/sh\nexit 6\n");
    ok!(sys!(libc::SYS_chmod, c("script").as_ptr(), 0o755));
    let pid = child(|| {
        let fd = ok!(open("script", libc::O_RDONLY, 0)) as i32;
        ok!(execveat(fd, "", &["script"], libc::AT_EMPTY_PATH));
    });
    reap_with(pid, 6);
    // The interpreter could not open what is closed by then.
    let pid = child(|| {
        let fd = ok!(open("script", libc::O_RDONLY | libc::O_CLOEXEC, 0)) as i32;
        err!(execveat(fd, "", &["script"], libc::AT_EMPTY_PATH), libc::ENOENT);
    });
    reap(pid);
}

fn exec_name_of_descriptor() {
    let pid = child(|| {
        let fd = ok!(open(&crate::tool::me(), libc::O_RDONLY, 0)) as i32;
        ok!(execveat(fd, "", &["any", "tool", "pause"], libc::AT_EMPTY_PATH));
    });
    until("the program runs", || text(&format!("/proc/{pid}/cmdline")).contains("pause"));
    let comm = text(&format!("/proc/{pid}/comm"));
    check!(comm.trim() == "guest" || comm.trim().parse::<u32>().is_ok(), "{comm}");
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a link");
    eq!(exe.to_string_lossy(), std::fs::canonicalize(crate::tool::me()).expect("a path").to_string_lossy());
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn exec_shares_nothing() {
    // A descriptor table that is shared is the new program's own.
    let (r, w) = pipe();
    let pid = ok!(spawn(Args { flags: libc::CLONE_FILES as u64, exit_signal: CHLD, ..Args::default() }, || {
        ok!(sys!(libc::SYS_fcntl, w, libc::F_SETFD, libc::FD_CLOEXEC));
        ok!(crate::tool::exec(&["exit", "0"]));
    }));
    reap(pid as i32);
    eq!(write(w, b"x"), 1);
    eq!(read(r, 1), b"x");
}

fn close_range(first: u32, last: u32, flags: u32) -> i64 {
    sys!(libc::SYS_close_range, first, last, flags)
}

fn close_range_unshares() {
    let (r, w) = pipe();
    let pid = ok!(spawn(Args { flags: libc::CLONE_FILES as u64, exit_signal: CHLD, ..Args::default() }, || {
        ok!(close_range(w as u32, w as u32, 2));
        err!(write(w, b"x"), libc::EBADF);
    }));
    reap(pid as i32);
    eq!(write(w, b"x"), 1);
    eq!(read(r, 1), b"x");
}

fn close_range_edges() {
    err!(close_range(5, 4, 0), libc::EINVAL);
    err!(close_range(0, 0, 1), libc::EINVAL);
    err!(close_range(0, 0, 8), libc::EINVAL);
    in_child(|| {
        let (r, w) = pipe();
        ok!(close_range(w as u32, u32::MAX, 4));
        eq!((sys!(libc::SYS_fcntl, r, libc::F_GETFD), sys!(libc::SYS_fcntl, w, libc::F_GETFD)), (0, 1));
        ok!(close_range(100_000, u32::MAX, 0));
        ok!(close_range(3, u32::MAX, 6));
        ok!(close_range(3, u32::MAX, 0));
        err!(sys!(libc::SYS_fcntl, r, libc::F_GETFD), libc::EBADF);
    });
}

fn tid_is_cleared() {
    use std::sync::atomic::Ordering;
    let words = shared_words();
    let args = Args {
        flags: (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64,
        child_tid: words[0].as_ptr() as u64,
        exit_signal: CHLD,
        ..Args::default()
    };
    // Only where the memory is shared with somebody else is it cleared.
    let pid = ok!(spawn(args, || {})) as i32;
    reap(pid);
    check!(words[0].load(Ordering::SeqCst) == pid as u32);
    let thread = std::thread::spawn(move || {
        ok!(sys!(libc::SYS_set_tid_address, words[1].as_ptr()));
        words[1].store(5, Ordering::SeqCst);
    });
    // The library waits for a word that is no more the thread's.
    std::mem::forget(thread);
    until("the word is cleared", || words[1].load(Ordering::SeqCst) == 0);
}

fn vfork_child_exits() {
    let words = shared_words();
    let args = Args { flags: libc::CLONE_VFORK as u64, exit_signal: CHLD, ..Args::default() };
    let pid = ok!(spawn(args, || {
        sleep_ms(20);
        words[0].store(1, std::sync::atomic::Ordering::SeqCst);
    }));
    eq!(words[0].load(std::sync::atomic::Ordering::SeqCst), 1);
    reap(pid as i32);
}

fn thread_group_needs() {
    let flags = |flags: i32| sys!(libc::SYS_clone, flags, 0, 0, 0, 0);
    err!(flags(libc::CLONE_THREAD | libc::CLONE_VM), libc::EINVAL);
    err!(flags(libc::CLONE_SIGHAND), libc::EINVAL);
    err!(flags(libc::CLONE_NEWNS | libc::CLONE_FS), libc::EINVAL);
    err!(flags(libc::CLONE_NEWUSER | libc::CLONE_FS), libc::EINVAL);
}
