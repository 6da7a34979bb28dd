//! Announcements by signal: fcntl(2) F_SETOWN, F_SETSIG and O_ASYNC; leases; F_NOTIFY.

use super::socket::pair;
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("sigio": pipe_input, pipe_output, socket_input, own_signal, own_signal_details, no_owner_no_signal, by_ioctl, off_again, to_a_group,
    to_a_thread, owner_ex, owner_errors, signal_errors, every_input, queue_overflows_to_sigio, owner_permission, not_for_files,
    closed_is_silent, eventfd_has_none, set_flags_keeps_mode, lease_read, lease_write, lease_errors, lease_broken_by_open,
    lease_nonblocking_open, lease_downgraded, lease_removed_lets_open_go, lease_broken_by_truncate, lease_ends_with_close,
    notify_create, notify_once, notify_errors, terminal_like_socket);

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_NOTIFY: i32 = 1026;

/// Announces input of `fd` to this process.
fn announce(fd: i32) {
    ok!(fcntl(fd, libc::F_SETOWN, getpid().into()));
    let flags = ok!(fcntl(fd, libc::F_GETFL, 0));
    ok!(fcntl(fd, libc::F_SETFL, flags | i64::from(libc::O_ASYNC)));
}

fn block(signal: i32) {
    sigmask(libc::SIG_BLOCK, bit(signal));
}

fn is_pending(signal: i32) -> bool {
    pending() & bit(signal) != 0
}

/// Takes a pending signal of this number: its siginfo, if there is one.
fn take(signal: i32) -> Option<libc::siginfo_t> {
    let set = bit(signal);
    let mut info: libc::siginfo_t = zeroed();
    let now = timespec_ms(0);
    let r = sys!(libc::SYS_rt_sigtimedwait, &set as *const u64, &mut info as *mut _, &now as *const _, 8);
    (r == i64::from(signal)).then_some(info)
}

fn pipe_input() {
    block(libc::SIGIO);
    let (r, w) = pipe();
    announce(r);
    check!(!is_pending(libc::SIGIO));
    write(w, b"x");
    check!(take(libc::SIGIO).is_some());
    write(w, b"y");
    check!(take(libc::SIGIO).is_some());
    check!(take(libc::SIGIO).is_none());
    close(w);
    check!(take(libc::SIGIO).is_some());
}

fn pipe_output() {
    block(libc::SIGIO);
    let (r, w) = pipe2(libc::O_NONBLOCK);
    while write(w, &[0; 4096]) > 0 {}
    announce(w);
    check!(!is_pending(libc::SIGIO));
    eq!(read(r, 4096).len(), 4096);
    check!(take(libc::SIGIO).is_some());
    close(r);
    check!(take(libc::SIGIO).is_some());
}

fn socket_input() {
    block(libc::SIGIO);
    let (a, b) = pair(libc::SOCK_STREAM);
    announce(a);
    write(b, b"x");
    check!(take(libc::SIGIO).is_some());
    read(a, 1);
    close(b);
    check!(take(libc::SIGIO).is_some());
}

fn own_signal() {
    let (signal, other) = (libc::SIGRTMIN() + 2, libc::SIGIO);
    block(signal);
    block(other);
    let (r, w) = pipe();
    ok!(fcntl(r, F_SETSIG, signal.into()));
    eq!(fcntl(r, F_GETSIG, 0), i64::from(signal));
    announce(r);
    write(w, b"x");
    check!(take(signal).is_some() && take(other).is_none());
    ok!(fcntl(r, F_SETSIG, 0));
    eq!(fcntl(r, F_GETSIG, 0), 0);
    write(w, b"x");
    check!(take(signal).is_none() && take(other).is_some());
}

fn own_signal_details() {
    let signal = libc::SIGRTMIN() + 2;
    block(signal);
    let (r, w) = pipe();
    ok!(fcntl(r, F_SETSIG, signal.into()));
    announce(r);
    write(w, b"x");
    let Some(info) = take(signal) else { fail(file!(), line!(), format_args!("no signal came")) };
    // POLL_IN, with the band and the descriptor.
    eq!(info.si_code, 1);
    // SAFETY: the fields of SIGIO.
    let (band, fd) = unsafe {
        let base = std::ptr::from_ref(&info).cast::<u8>();
        (base.add(16).cast::<i64>().read(), base.add(24).cast::<i32>().read())
    };
    eq!(fd, r);
    eq!(band, i64::from(libc::POLLIN | libc::POLLRDNORM));
}

fn no_owner_no_signal() {
    block(libc::SIGIO);
    let (r, w) = pipe();
    ok!(fcntl(r, libc::F_SETFL, libc::O_ASYNC.into()));
    eq!(fcntl(r, libc::F_GETOWN, 0), 0);
    write(w, b"x");
    check!(take(libc::SIGIO).is_none());
    ok!(fcntl(r, libc::F_SETOWN, getpid().into()));
    eq!(fcntl(r, libc::F_GETOWN, 0), i64::from(getpid()));
    write(w, b"x");
    check!(take(libc::SIGIO).is_some());
    ok!(fcntl(r, libc::F_SETOWN, 0));
    write(w, b"x");
    check!(take(libc::SIGIO).is_none());
}

fn by_ioctl() {
    const FIOASYNC: u64 = 0x5452;
    block(libc::SIGIO);
    let (r, w) = pipe();
    ok!(fcntl(r, libc::F_SETOWN, getpid().into()));
    let on = 1i32;
    ok!(sys!(libc::SYS_ioctl, r, FIOASYNC, &on as *const i32));
    check!(ok!(fcntl(r, libc::F_GETFL, 0)) & i64::from(libc::O_ASYNC) != 0);
    write(w, b"x");
    check!(take(libc::SIGIO).is_some());
    let off = 0i32;
    ok!(sys!(libc::SYS_ioctl, r, FIOASYNC, &off as *const i32));
    write(w, b"x");
    check!(take(libc::SIGIO).is_none());
    err!(sys!(libc::SYS_ioctl, r, FIOASYNC, BAD), libc::EFAULT);
}

fn off_again() {
    block(libc::SIGIO);
    let (r, w) = pipe();
    announce(r);
    ok!(fcntl(r, libc::F_SETFL, 0));
    write(w, b"x");
    check!(take(libc::SIGIO).is_none());
    announce(r);
    write(w, b"x");
    check!(take(libc::SIGIO).is_some());
}

fn to_a_group() {
    in_child(|| {
        ok!(sys!(libc::SYS_setpgid, 0, 0));
        block(libc::SIGIO);
        let (r, w) = pipe();
        let (ready, done) = (pipe(), pipe());
        let pid = child(|| {
            write(ready.1, b"1");
            read(done.0, 1);
            check!(take(libc::SIGIO).is_some());
        });
        read(ready.0, 1);
        ok!(fcntl(r, libc::F_SETOWN, -i64::from(getpid())));
        eq!(fcntl(r, libc::F_GETOWN, 0), -i64::from(getpid()));
        ok!(fcntl(r, libc::F_SETFL, libc::O_ASYNC.into()));
        write(w, b"x");
        check!(take(libc::SIGIO).is_some());
        write(done.1, b"2");
        reap(pid);
    });
}

fn to_a_thread() {
    in_child(|| {
        block(libc::SIGIO);
        let (r, w) = pipe();
        let (ready, done, last) = (pipe(), pipe(), pipe());
        let thread = std::thread::spawn(move || {
            write(ready.1, &gettid().to_ne_bytes());
            read(done.0, 1);
            check!(take(libc::SIGIO).is_some());
            write(last.1, b"x");
        });
        let tid = i32::from_ne_bytes(read(ready.0, 4).try_into().expect("four bytes"));
        // F_OWNER_TID.
        let owner = [0i32, tid];
        ok!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, owner.as_ptr()));
        ok!(fcntl(r, libc::F_SETFL, libc::O_ASYNC.into()));
        write(w, b"x");
        check!(take(libc::SIGIO).is_none());
        write(done.1, b"x");
        read(last.0, 1);
        thread.join().expect("the thread ends");
    });
}

fn owner_ex() {
    let (r, _w) = pipe();
    let mut owner = [9i32, 9];
    ok!(sys!(libc::SYS_fcntl, r, F_GETOWN_EX, owner.as_mut_ptr()));
    eq!(owner[1], 0);
    for kind in [0, 1] {
        let set = [kind, getpid()];
        ok!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, set.as_ptr()));
        ok!(sys!(libc::SYS_fcntl, r, F_GETOWN_EX, owner.as_mut_ptr()));
        eq!(owner, set);
    }
    let group = sys!(libc::SYS_getpgrp) as i32;
    let set = [2, group];
    ok!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, set.as_ptr()));
    ok!(sys!(libc::SYS_fcntl, r, F_GETOWN_EX, owner.as_mut_ptr()));
    eq!(owner, set);
    eq!(fcntl(r, libc::F_GETOWN, 0), -i64::from(group));
}

fn owner_errors() {
    let (r, _w) = pipe();
    err!(fcntl(r, libc::F_SETOWN, 0x7fff_fff0), libc::ESRCH);
    err!(fcntl(r, libc::F_SETOWN, -0x7fff_fff0), libc::ESRCH);
    let bad = [7i32, 1];
    err!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, bad.as_ptr()), libc::EINVAL);
    let bad = [1i32, 0x7fff_fff0];
    err!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, bad.as_ptr()), libc::ESRCH);
    err!(sys!(libc::SYS_fcntl, r, F_SETOWN_EX, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_fcntl, r, F_GETOWN_EX, BAD), libc::EFAULT);
}

fn signal_errors() {
    let (r, _w) = pipe();
    eq!(fcntl(r, F_GETSIG, 0), 0);
    err!(fcntl(r, F_SETSIG, 65), libc::EINVAL);
    err!(fcntl(r, F_SETSIG, -1), libc::EINVAL);
    ok!(fcntl(r, F_SETSIG, 64));
}

fn every_input() {
    let signal = libc::SIGRTMIN() + 2;
    block(signal);
    let (a, b) = pair(libc::SOCK_STREAM);
    ok!(fcntl(a, F_SETSIG, signal.into()));
    announce(a);
    for _ in 0..3 {
        write(b, b"x");
    }
    let mut count = 0;
    while take(signal).is_some() {
        count += 1;
    }
    eq!(count, 3);
}

fn queue_overflows_to_sigio() {
    in_child(|| {
        let signal = libc::SIGRTMIN() + 2;
        block(signal);
        block(libc::SIGIO);
        let limit = [1u64, 1];
        ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_SIGPENDING as i32, limit.as_ptr()));
        let (a, b) = pair(libc::SOCK_STREAM);
        ok!(fcntl(a, F_SETSIG, signal.into()));
        announce(a);
        for _ in 0..10 {
            write(b, b"x");
        }
        check!(is_pending(libc::SIGIO));
    });
}

fn owner_permission() {
    need_root();
    block(libc::SIGIO);
    let (r, w) = pipe();
    let parent = getpid();
    in_child(|| {
        drop_root();
        // It may be named, but is not sent anything.
        ok!(fcntl(r, libc::F_SETOWN, parent.into()));
        ok!(fcntl(r, libc::F_SETFL, libc::O_ASYNC.into()));
        write(w, b"x");
    });
    check!(take(libc::SIGIO).is_none());
}

fn not_for_files() {
    block(libc::SIGIO);
    let f = new_file("f", b"");
    ok!(fcntl(f, libc::F_SETOWN, getpid().into()));
    sys!(libc::SYS_fcntl, f, libc::F_SETFL, libc::O_ASYNC);
    write(f, b"x");
    check!(take(libc::SIGIO).is_none());
}

fn closed_is_silent() {
    block(libc::SIGIO);
    let (a, b) = pair(libc::SOCK_STREAM);
    announce(a);
    close(a);
    sys!(libc::SYS_write, b, b"x".as_ptr(), 1);
    check!(take(libc::SIGIO).is_none());
}

fn eventfd_has_none() {
    block(libc::SIGIO);
    let e = ok!(sys!(libc::SYS_eventfd2, 0, 0)) as i32;
    ok!(fcntl(e, libc::F_SETOWN, getpid().into()));
    sys!(libc::SYS_fcntl, e, libc::F_SETFL, libc::O_ASYNC);
    write(e, &1u64.to_ne_bytes());
    check!(take(libc::SIGIO).is_none());
}

fn set_flags_keeps_mode() {
    let (r, _w) = pipe();
    ok!(fcntl(r, libc::F_SETFL, i64::from(libc::O_ASYNC | libc::O_NONBLOCK | libc::O_WRONLY | libc::O_CREAT)));
    let flags = ok!(fcntl(r, libc::F_GETFL, 0)) as i32;
    eq!(flags & (libc::O_ASYNC | libc::O_NONBLOCK | libc::O_ACCMODE), libc::O_ASYNC | libc::O_NONBLOCK);
}

const LEASE: i32 = libc::F_SETLEASE;

fn lease(fd: i32, kind: i32) -> i64 {
    sys!(libc::SYS_fcntl, fd, LEASE, kind)
}

fn lease_of(fd: i32) -> i64 {
    fcntl(fd, libc::F_GETLEASE, 0)
}

fn readable(path: &str) -> i32 {
    file(path, b"leased");
    ok!(open(path, libc::O_RDONLY, 0)) as i32
}

/// Leases are not on every file system.
fn with_leases(fd: i32) {
    let r = lease(fd, libc::F_RDLCK);
    if r == -i64::from(libc::EINVAL) || r == -i64::from(libc::EOPNOTSUPP) {
        skip("no leases here");
    }
    ok!(r);
    ok!(lease(fd, libc::F_UNLCK));
}

fn lease_read() {
    let f = readable("f");
    eq!(lease_of(f), i64::from(libc::F_UNLCK));
    with_leases(f);
    ok!(lease(f, libc::F_RDLCK));
    eq!(lease_of(f), i64::from(libc::F_RDLCK));
    // Other readers do not disturb it.
    let g = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    eq!(lease_of(f), i64::from(libc::F_RDLCK));
    close(g);
    ok!(lease(f, libc::F_UNLCK));
    eq!(lease_of(f), i64::from(libc::F_UNLCK));
}

fn lease_write() {
    let f = readable("f");
    with_leases(f);
    let g = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    // Somebody else has it open.
    err!(lease(f, libc::F_WRLCK), libc::EAGAIN);
    close(g);
    ok!(lease(f, libc::F_WRLCK));
    eq!(lease_of(f), i64::from(libc::F_WRLCK));
    let w = new_file("g", b"");
    // A lease for reading needs a descriptor that cannot write.
    err!(lease(w, libc::F_RDLCK), libc::EAGAIN);
    ok!(lease(w, libc::F_WRLCK));
}

fn lease_errors() {
    let f = readable("f");
    with_leases(f);
    err!(lease(f, 77), libc::EINVAL);
    err!(lease(f, libc::F_UNLCK), libc::EAGAIN);
    let (r, _w) = pipe();
    err!(lease(r, libc::F_RDLCK), libc::EINVAL);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(lease(dir, libc::F_RDLCK), libc::EINVAL);
    if is_root() {
        in_child(|| {
            drop_root();
            err!(lease(f, libc::F_RDLCK), libc::EACCES);
        });
    }
}

fn lease_broken_by_open() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_WRLCK));
    let pid = child(|| {
        // Waits until the holder has given it up.
        let g = ok!(open("f", libc::O_RDONLY, 0)) as i32;
        eq!(read(g, 10), b"leased");
    });
    until("the holder is told", || take(libc::SIGIO).is_some());
    // What it is to become.
    eq!(lease_of(f), i64::from(libc::F_RDLCK));
    sleep_ms(20);
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::WNOHANG, 0), 0);
    ok!(lease(f, libc::F_UNLCK));
    reap(pid);
}

fn lease_nonblocking_open() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_RDLCK));
    in_child(|| {
        err!(open("f", libc::O_WRONLY | libc::O_NONBLOCK, 0), libc::EAGAIN);
        ok!(open("f", libc::O_RDONLY | libc::O_NONBLOCK, 0));
    });
    check!(take(libc::SIGIO).is_some());
    eq!(lease_of(f), i64::from(libc::F_UNLCK));
    ok!(lease(f, libc::F_UNLCK));
}

fn lease_downgraded() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_WRLCK));
    let pid = child(|| {
        ok!(open("f", libc::O_RDONLY, 0));
    });
    until("the holder is told", || take(libc::SIGIO).is_some());
    ok!(lease(f, libc::F_RDLCK));
    reap(pid);
    eq!(lease_of(f), i64::from(libc::F_RDLCK));
}

fn lease_removed_lets_open_go() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_RDLCK));
    let pid = child(|| {
        let g = ok!(open("f", libc::O_WRONLY, 0)) as i32;
        eq!(write(g, b"x"), 1);
    });
    until("the holder is told", || take(libc::SIGIO).is_some());
    ok!(lease(f, libc::F_UNLCK));
    reap(pid);
}

fn lease_broken_by_truncate() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_RDLCK));
    let pid = child(|| {
        ok!(sys!(libc::SYS_truncate, c("f").as_ptr(), 2));
    });
    until("the holder is told", || take(libc::SIGIO).is_some());
    ok!(lease(f, libc::F_UNLCK));
    reap(pid);
    eq!(fstat(f).st_size, 2);
}

fn lease_ends_with_close() {
    let f = readable("f");
    with_leases(f);
    block(libc::SIGIO);
    ok!(lease(f, libc::F_WRLCK));
    let pid = child(|| {
        close(f);
        ok!(open("f", libc::O_RDONLY, 0));
    });
    until("the holder is told", || take(libc::SIGIO).is_some());
    close(f);
    reap(pid);
}

fn notify_create() {
    const DN_CREATE: u64 = 4;
    const DN_DELETE: u64 = 8;
    const DN_MULTISHOT: u64 = 0x8000_0000;
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    block(libc::SIGIO);
    let r = sys!(libc::SYS_fcntl, dir, F_NOTIFY, DN_CREATE | DN_DELETE | DN_MULTISHOT);
    if r == -i64::from(libc::EINVAL) {
        skip("no directory notification");
    }
    ok!(r);
    file("a", b"");
    check!(take(libc::SIGIO).is_some());
    ok!(unlink("a"));
    check!(take(libc::SIGIO).is_some());
    check!(take(libc::SIGIO).is_none());
    ok!(sys!(libc::SYS_fcntl, dir, F_NOTIFY, 0));
    file("b", b"");
    check!(take(libc::SIGIO).is_none());
}

fn notify_once() {
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    let signal = libc::SIGRTMIN() + 3;
    block(signal);
    ok!(fcntl(dir, F_SETSIG, signal.into()));
    let r = sys!(libc::SYS_fcntl, dir, F_NOTIFY, 4);
    if r == -i64::from(libc::EINVAL) {
        skip("no directory notification");
    }
    ok!(r);
    file("a", b"");
    let Some(info) = take(signal) else { fail(file!(), line!(), format_args!("no signal came")) };
    // SAFETY: the fields of SIGIO.
    eq!(unsafe { std::ptr::from_ref(&info).cast::<u8>().add(24).cast::<i32>().read() }, dir);
    file("b", b"");
    check!(take(signal).is_none());
}

fn notify_errors() {
    let f = new_file("f", b"");
    let r = sys!(libc::SYS_fcntl, f, F_NOTIFY, 4);
    check!(r == -i64::from(libc::ENOTDIR) || r == -i64::from(libc::EINVAL), "{r}");
}

fn terminal_like_socket() {
    // Room at a stream socket is announced as well.
    block(libc::SIGIO);
    let (a, b) = pair(libc::SOCK_STREAM);
    ok!(fcntl(a, libc::F_SETFL, libc::O_NONBLOCK.into()));
    announce(a);
    while sys!(libc::SYS_write, a, [0u8; 4096].as_ptr(), 4096) > 0 {}
    while take(libc::SIGIO).is_some() {}
    let mut got = 0;
    while got < 400_000 {
        let part = sys!(libc::SYS_recvfrom, b, [0u8; 65536].as_mut_ptr(), 65536, libc::MSG_DONTWAIT, 0, 0);
        if part <= 0 {
            break;
        }
        got += part;
    }
    check!(take(libc::SIGIO).is_some());
}
