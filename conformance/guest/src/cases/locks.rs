//! Record locks of fcntl(2), open file description locks, flock(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("locks": conflict, shared_locks, get_lock, ranges_split_and_merge, not_inherited, close_releases, waits, deadlock,
    wait_interrupted, record_errors, description_locks, description_locks_of_dup, own_description_locks, flock_conflict, flock_shared_by_dup,
    flock_upgrade, flock_errors, flock_waits, exit_releases, whence, upgrade_of_a_record);

fn lock(fd: i32, cmd: i32, kind: i32, start: i64, len: i64) -> i64 {
    let mut l: libc::flock = zeroed();
    l.l_type = kind as i16;
    l.l_start = start;
    l.l_len = len;
    sys!(libc::SYS_fcntl, fd, cmd, &mut l as *mut _)
}

fn set(fd: i32, kind: i32, start: i64, len: i64) -> i64 {
    lock(fd, libc::F_SETLK, kind, start, len)
}

/// Who stops such a lock: (type, start, length, pid), in a child's eyes.
fn seen_by_child(fd: i32, kind: i32, start: i64, len: i64) -> (i32, i64, i64, i32) {
    let words = shared_words();
    in_child(|| {
        let mut l: libc::flock = zeroed();
        l.l_type = kind as i16;
        l.l_start = start;
        l.l_len = len;
        ok!(sys!(libc::SYS_fcntl, fd, libc::F_GETLK, &mut l as *mut _));
        for (word, value) in words.iter().zip([i64::from(l.l_type), l.l_start, l.l_len, i64::from(l.l_pid)]) {
            word.store(value as u32, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let word = |i: usize| words[i].load(std::sync::atomic::Ordering::SeqCst);
    (word(0) as i32, word(1).into(), word(2).into(), word(3) as i32)
}

fn conflict() {
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_WRLCK, 0, 10));
    in_child(|| {
        let fd = ok!(open("f", libc::O_RDWR, 0)) as i32;
        err!(set(fd, libc::F_WRLCK, 5, 1), libc::EAGAIN);
        err!(set(fd, libc::F_RDLCK, 9, 100), libc::EAGAIN);
        ok!(set(fd, libc::F_WRLCK, 10, 1));
    });
    ok!(set(fd, libc::F_UNLCK, 0, 0));
    in_child(|| {
        ok!(set(fd, libc::F_WRLCK, 0, 0));
    });
}

fn shared_locks() {
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_RDLCK, 0, 10));
    in_child(|| {
        ok!(set(fd, libc::F_RDLCK, 0, 10));
        err!(set(fd, libc::F_WRLCK, 0, 10), libc::EAGAIN);
    });
}

fn get_lock() {
    let fd = new_file("f", b"");
    eq!(seen_by_child(fd, libc::F_WRLCK, 0, 0).0, libc::F_UNLCK);
    ok!(set(fd, libc::F_WRLCK, 5, 10));
    eq!(seen_by_child(fd, libc::F_RDLCK, 0, 0), (libc::F_WRLCK, 5, 10, getpid()));
    eq!(seen_by_child(fd, libc::F_RDLCK, 0, 5).0, libc::F_UNLCK);
    // One's own locks do not stand in the way.
    let mut l: libc::flock = zeroed();
    l.l_type = libc::F_WRLCK as i16;
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_GETLK, &mut l as *mut _));
    eq!(i32::from(l.l_type), libc::F_UNLCK);
}

fn ranges_split_and_merge() {
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_WRLCK, 0, 30));
    ok!(set(fd, libc::F_UNLCK, 10, 10));
    eq!(seen_by_child(fd, libc::F_WRLCK, 0, 0), (libc::F_WRLCK, 0, 10, getpid()));
    eq!(seen_by_child(fd, libc::F_WRLCK, 10, 10).0, libc::F_UNLCK);
    eq!(seen_by_child(fd, libc::F_WRLCK, 15, 0), (libc::F_WRLCK, 20, 10, getpid()));
    ok!(set(fd, libc::F_WRLCK, 10, 10));
    eq!(seen_by_child(fd, libc::F_WRLCK, 15, 1), (libc::F_WRLCK, 0, 30, getpid()));
    // Another type in the middle.
    ok!(set(fd, libc::F_RDLCK, 10, 10));
    eq!(seen_by_child(fd, libc::F_WRLCK, 12, 1), (libc::F_RDLCK, 10, 10, getpid()));
    eq!(seen_by_child(fd, libc::F_RDLCK, 10, 10).0, libc::F_UNLCK);
}

fn not_inherited() {
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_WRLCK, 0, 0));
    in_child(|| {
        err!(set(fd, libc::F_WRLCK, 0, 0), libc::EAGAIN);
    });
    // A child's end does not release the parent's.
    in_child(|| {
        err!(set(fd, libc::F_WRLCK, 0, 0), libc::EAGAIN);
    });
}

fn close_releases() {
    // Closing any descriptor of the file drops the process's locks, as POSIX wants.
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_WRLCK, 0, 0));
    let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    close(other);
    in_child(|| {
        ok!(set(fd, libc::F_WRLCK, 0, 0));
    });
}

fn waits() {
    let fd = new_file("f", b"");
    let (r, w) = pipe();
    ok!(set(fd, libc::F_WRLCK, 0, 0));
    let pid = child(|| {
        write(w, b"x");
        ok!(lock(fd, libc::F_SETLKW, libc::F_WRLCK, 0, 0));
        write(w, b"y");
    });
    eq!(read(r, 1), b"x");
    until("the child sleeps", || task_state(pid) == 'S');
    ok!(set(fd, libc::F_UNLCK, 0, 0));
    eq!(read(r, 1), b"y");
    reap(pid);
}

fn deadlock() {
    let fd = new_file("f", b"");
    let (r, w) = pipe();
    ok!(set(fd, libc::F_WRLCK, 0, 1));
    let pid = child(|| {
        ok!(set(fd, libc::F_WRLCK, 1, 1));
        write(w, b"x");
        ok!(lock(fd, libc::F_SETLKW, libc::F_WRLCK, 0, 1));
    });
    eq!(read(r, 1), b"x");
    until("the child sleeps", || task_state(pid) == 'S');
    err!(lock(fd, libc::F_SETLKW, libc::F_WRLCK, 1, 1), libc::EDEADLK);
    ok!(set(fd, libc::F_UNLCK, 0, 1));
    reap(pid);
}

fn wait_interrupted() {
    let fd = new_file("f", b"");
    let (r, w) = pipe();
    let pid = child(|| {
        ok!(set(fd, libc::F_WRLCK, 0, 0));
        write(w, b"x");
        sleep_ms(60_000);
    });
    eq!(read(r, 1), b"x");
    err!(interrupted(libc::SIGUSR1, 0, || lock(fd, libc::F_SETLKW, libc::F_WRLCK, 0, 0)), libc::EINTR);
    kill(pid, libc::SIGKILL);
    wait(pid);
    ok!(set(fd, libc::F_WRLCK, 0, 0));
}

fn record_errors() {
    let fd = new_file("f", b"");
    err!(set(fd, 7, 0, 0), libc::EINVAL);
    err!(set(fd, libc::F_WRLCK, -1, 0), libc::EINVAL);
    err!(set(fd, libc::F_WRLCK, 5, -10), libc::EINVAL);
    err!(set(999, libc::F_WRLCK, 0, 0), libc::EBADF);
    err!(sys!(libc::SYS_fcntl, fd, libc::F_SETLK, BAD), libc::EFAULT);
    let r = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    err!(set(r, libc::F_WRLCK, 0, 0), libc::EBADF);
    let w = ok!(open("f", libc::O_WRONLY, 0)) as i32;
    err!(set(w, libc::F_RDLCK, 0, 0), libc::EBADF);
}

fn description_locks() {
    let fd = new_file("f", b"");
    let other = ok!(open("f", libc::O_RDWR, 0)) as i32;
    ok!(lock(fd, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 10));
    // They conflict within one process, and with record locks.
    err!(lock(other, libc::F_OFD_SETLK, libc::F_WRLCK, 5, 1), libc::EAGAIN);
    err!(set(other, libc::F_WRLCK, 5, 1), libc::EAGAIN);
    let mut l: libc::flock = zeroed();
    l.l_type = libc::F_WRLCK as i16;
    ok!(sys!(libc::SYS_fcntl, other, libc::F_OFD_GETLK, &mut l as *mut _));
    eq!((i32::from(l.l_type), l.l_pid), (libc::F_WRLCK, -1));
    l.l_pid = 5;
    err!(sys!(libc::SYS_fcntl, other, libc::F_OFD_SETLK, &mut l as *mut _), libc::EINVAL);
    close(fd);
    ok!(lock(other, libc::F_OFD_SETLK, libc::F_WRLCK, 5, 1));
}

fn description_locks_of_dup() {
    let fd = new_file("f", b"");
    ok!(lock(fd, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0));
    let copy = ok!(sys!(libc::SYS_dup, fd)) as i32;
    ok!(lock(copy, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0));
    let other = ok!(open("f", libc::O_RDWR, 0)) as i32;
    close(fd);
    err!(lock(other, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0), libc::EAGAIN);
    in_child(|| {
        ok!(lock(copy, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0));
    });
    ok!(lock(other, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0));
}

/// `F_UNLCK` asks for locks that the description itself has (Linux 6.5).
fn own_description_locks() {
    let fd = new_file("f", b"");
    let ask = |fd: i32, start: i64, len: i64| {
        let mut l: libc::flock = zeroed();
        (l.l_type, l.l_start, l.l_len) = (libc::F_UNLCK as i16, start, len);
        ok!(sys!(libc::SYS_fcntl, fd, libc::F_OFD_GETLK, &mut l as *mut _));
        (i32::from(l.l_type), l.l_start, l.l_len, l.l_pid)
    };
    eq!(ask(fd, 5, 10), (libc::F_UNLCK, 5, 10, 0));
    ok!(lock(fd, libc::F_OFD_SETLK, libc::F_WRLCK, 10, 10));
    ok!(lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, 30, 5));
    eq!(ask(fd, 0, 0), (libc::F_WRLCK, 10, 10, -1));
    eq!(ask(fd, 20, 0), (libc::F_RDLCK, 30, 5, -1));
    eq!(ask(fd, 20, 10), (libc::F_UNLCK, 20, 10, 0));
    let other = ok!(open("f", libc::O_RDWR, 0)) as i32;
    eq!(ask(other, 0, 0), (libc::F_UNLCK, 0, 0, 0));
    ok!(set(other, libc::F_RDLCK, 100, 1));
    eq!(ask(other, 0, 0), (libc::F_UNLCK, 0, 0, 0));
    err!(lock(fd, libc::F_GETLK, libc::F_UNLCK, 0, 0), libc::EINVAL);
}

fn flock(fd: i32, how: i32) -> i64 {
    sys!(libc::SYS_flock, fd, how)
}

fn flock_conflict() {
    let fd = new_file("f", b"");
    let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    ok!(flock(fd, libc::LOCK_EX));
    err!(flock(other, libc::LOCK_EX | libc::LOCK_NB), libc::EWOULDBLOCK);
    err!(flock(other, libc::LOCK_SH | libc::LOCK_NB), libc::EWOULDBLOCK);
    ok!(flock(fd, libc::LOCK_UN));
    ok!(flock(other, libc::LOCK_SH | libc::LOCK_NB));
    ok!(flock(fd, libc::LOCK_SH | libc::LOCK_NB));
}

fn flock_shared_by_dup() {
    let fd = new_file("f", b"");
    ok!(flock(fd, libc::LOCK_EX));
    in_child(|| {
        // The child has the same description.
        ok!(flock(fd, libc::LOCK_EX | libc::LOCK_NB));
        let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
        err!(flock(other, libc::LOCK_EX | libc::LOCK_NB), libc::EWOULDBLOCK);
    });
    let copy = ok!(sys!(libc::SYS_dup, fd)) as i32;
    close(fd);
    let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    err!(flock(other, libc::LOCK_EX | libc::LOCK_NB), libc::EWOULDBLOCK);
    close(copy);
    ok!(flock(other, libc::LOCK_EX | libc::LOCK_NB));
}

fn flock_upgrade() {
    let fd = new_file("f", b"");
    let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    ok!(flock(fd, libc::LOCK_SH));
    ok!(flock(fd, libc::LOCK_EX | libc::LOCK_NB));
    ok!(flock(fd, libc::LOCK_SH));
    ok!(flock(other, libc::LOCK_SH | libc::LOCK_NB));
    err!(flock(fd, libc::LOCK_EX | libc::LOCK_NB), libc::EWOULDBLOCK);
}

fn flock_errors() {
    let fd = new_file("f", b"");
    err!(flock(fd, 0), libc::EINVAL);
    err!(flock(fd, 64), libc::EINVAL);
    err!(flock(999, libc::LOCK_EX), libc::EBADF);
}

fn flock_waits() {
    let fd = new_file("f", b"");
    ok!(flock(fd, libc::LOCK_EX));
    let pid = child(|| {
        let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
        close(fd);
        ok!(flock(other, libc::LOCK_EX));
    });
    until("the child sleeps", || task_state(pid) == 'S');
    ok!(flock(fd, libc::LOCK_UN));
    reap(pid);
    let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    ok!(flock(other, libc::LOCK_EX));
    err!(interrupted(libc::SIGUSR1, 0, || flock(fd, libc::LOCK_EX)), libc::EINTR);
}

fn exit_releases() {
    let fd = new_file("f", b"");
    in_child(|| {
        ok!(set(fd, libc::F_WRLCK, 0, 0));
        let other = ok!(open("f", libc::O_RDONLY, 0)) as i32;
        ok!(flock(other, libc::LOCK_EX));
    });
    ok!(set(fd, libc::F_WRLCK, 0, 0));
    ok!(flock(fd, libc::LOCK_EX | libc::LOCK_NB));
}

fn whence() {
    let fd = new_file("f", b"0123456789");
    ok!(sys!(libc::SYS_lseek, fd, 4, 0));
    let mut l: libc::flock = zeroed();
    l.l_type = libc::F_WRLCK as i16;
    l.l_whence = libc::SEEK_CUR as i16;
    l.l_start = -1;
    l.l_len = 2;
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_SETLK, &mut l as *mut _));
    eq!(seen_by_child(fd, libc::F_WRLCK, 0, 0), (libc::F_WRLCK, 3, 2, getpid()));
    l.l_whence = libc::SEEK_END as i16;
    l.l_start = 0;
    l.l_len = -3;
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_SETLK, &mut l as *mut _));
    eq!(seen_by_child(fd, libc::F_WRLCK, 6, 0), (libc::F_WRLCK, 7, 3, getpid()));
}

fn upgrade_of_a_record() {
    let fd = new_file("f", b"");
    ok!(set(fd, libc::F_RDLCK, 0, 10));
    ok!(set(fd, libc::F_WRLCK, 0, 10));
    check!(seen_by_child(fd, libc::F_RDLCK, 0, 1).0 == libc::F_WRLCK);
    ok!(set(fd, libc::F_RDLCK, 0, 10));
    eq!(seen_by_child(fd, libc::F_RDLCK, 0, 1).0, libc::F_UNLCK);
}
