//! Descriptors: dup(2), fcntl(2), close_range(2), ioctl(2) on them.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("fcntl": dup_shares, dup2_and_dup3, dup_errors, dupfd, descriptor_flags, status_flags, nonblock_by_ioctl,
    close_range_calls, close_twice, fcntl_errors, fionread, cloexec_by_ioctl, ioctl_errors, seals, owner, table_is_copied,
    closed_by_another_thread, pipe_size);

fn dup_shares() {
    let fd = new_file("f", b"abcdef");
    let copy = ok!(sys!(libc::SYS_dup, fd)) as i32;
    eq!(read(fd, 2), b"ab");
    eq!(read(copy, 2), b"cd");
    // Status flags belong to the description, descriptor flags to the descriptor.
    ok!(fcntl(copy, libc::F_SETFL, i64::from(libc::O_APPEND)));
    check!(fcntl(fd, libc::F_GETFL, 0) & i64::from(libc::O_APPEND) != 0);
    ok!(fcntl(copy, libc::F_SETFD, 1));
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
    close(fd);
    eq!(read(copy, 2), b"ef");
}

fn dup2_and_dup3() {
    let fd = new_file("f", b"x");
    eq!(sys!(libc::SYS_dup2, fd, 77), 77);
    eq!(sys!(libc::SYS_dup2, fd, fd), i64::from(fd));
    eq!(sys!(libc::SYS_dup3, fd, 78, libc::O_CLOEXEC), 78);
    eq!(fcntl(78, libc::F_GETFD, 0), 1);
    eq!(fcntl(77, libc::F_GETFD, 0), 0);
    // What was there before is closed.
    let (r, w) = pipe();
    ok!(sys!(libc::SYS_dup2, fd, w));
    eq!(read(r, 1), b"");
}

fn dup_errors() {
    let fd = new_file("f", b"");
    err!(sys!(libc::SYS_dup, 999), libc::EBADF);
    err!(sys!(libc::SYS_dup, -1), libc::EBADF);
    err!(sys!(libc::SYS_dup2, 999, 5), libc::EBADF);
    err!(sys!(libc::SYS_dup2, fd, -1), libc::EBADF);
    err!(sys!(libc::SYS_dup2, 999, 999), libc::EBADF);
    err!(sys!(libc::SYS_dup3, fd, fd, 0), libc::EINVAL);
    err!(sys!(libc::SYS_dup3, fd, 5, 1), libc::EINVAL);
}

fn dupfd() {
    let fd = new_file("f", b"");
    eq!(fcntl(fd, libc::F_DUPFD, 100), 100);
    eq!(fcntl(fd, libc::F_DUPFD, 100), 101);
    eq!(fcntl(fd, libc::F_DUPFD_CLOEXEC, 100), 102);
    eq!(fcntl(102, libc::F_GETFD, 0), 1);
    err!(fcntl(fd, libc::F_DUPFD, -1), libc::EINVAL);
    err!(fcntl(fd, libc::F_DUPFD, 1 << 30), libc::EINVAL);
}

fn descriptor_flags() {
    let fd = new_file("f", b"");
    ok!(fcntl(fd, libc::F_SETFD, 1));
    eq!(fcntl(fd, libc::F_GETFD, 0), 1);
    // Other bits mean nothing.
    ok!(fcntl(fd, libc::F_SETFD, 0xfe));
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
}

fn status_flags() {
    let (r, _w) = pipe();
    eq!(fcntl(r, libc::F_GETFL, 0), 0);
    ok!(fcntl(r, libc::F_SETFL, i64::from(libc::O_NONBLOCK)));
    eq!(fcntl(r, libc::F_GETFL, 0), i64::from(libc::O_NONBLOCK));
    let mut buf = [0u8; 1];
    err!(sys!(libc::SYS_read, r, buf.as_mut_ptr(), 1), libc::EAGAIN);
    // The access mode cannot be changed.
    ok!(fcntl(r, libc::F_SETFL, 2));
    eq!(fcntl(r, libc::F_GETFL, 0), 0);
}

fn nonblock_by_ioctl() {
    let (r, _w) = pipe();
    let mut on = 1i32;
    ok!(sys!(libc::SYS_ioctl, r, libc::FIONBIO, &mut on as *mut i32));
    eq!(fcntl(r, libc::F_GETFL, 0), i64::from(libc::O_NONBLOCK));
    on = 0;
    ok!(sys!(libc::SYS_ioctl, r, libc::FIONBIO, &mut on as *mut i32));
    eq!(fcntl(r, libc::F_GETFL, 0), 0);
    err!(sys!(libc::SYS_ioctl, r, libc::FIONBIO, BAD), libc::EFAULT);
}

fn close_range_calls() {
    let fd = new_file("f", b"");
    (100..120).for_each(|n| eq!(sys!(libc::SYS_dup2, fd, n), n));
    ok!(sys!(libc::SYS_close_range, 105, 109, 0));
    eq!(fcntl(104, libc::F_GETFD, 0), 0);
    err!(fcntl(105, libc::F_GETFD, 0), libc::EBADF);
    eq!(fcntl(110, libc::F_GETFD, 0), 0);
    ok!(sys!(libc::SYS_close_range, 110, u32::MAX, libc::CLOSE_RANGE_CLOEXEC));
    eq!(fcntl(119, libc::F_GETFD, 0), 1);
    ok!(sys!(libc::SYS_close_range, 100, u32::MAX, 0));
    err!(fcntl(119, libc::F_GETFD, 0), libc::EBADF);
    err!(sys!(libc::SYS_close_range, 10, 5, 0), libc::EINVAL);
    err!(sys!(libc::SYS_close_range, 10, 50, 64), libc::EINVAL);
}

fn close_twice() {
    let fd = new_file("f", b"");
    close(fd);
    err!(sys!(libc::SYS_close, fd), libc::EBADF);
    err!(sys!(libc::SYS_close, -1), libc::EBADF);
    err!(sys!(libc::SYS_close, 1 << 30), libc::EBADF);
}

fn fcntl_errors() {
    let fd = new_file("f", b"");
    err!(fcntl(999, libc::F_GETFD, 0), libc::EBADF);
    err!(fcntl(fd, 9999, 0), libc::EINVAL);
    err!(fcntl(fd, libc::F_GETPIPE_SZ, 0), libc::EBADF);
}

fn fionread() {
    let (r, w) = pipe();
    let mut n = -1i32;
    ok!(sys!(libc::SYS_ioctl, r, libc::FIONREAD, &mut n as *mut i32));
    eq!(n, 0);
    write(w, b"12345");
    ok!(sys!(libc::SYS_ioctl, r, libc::FIONREAD, &mut n as *mut i32));
    eq!(n, 5);
    let fd = new_file("f", b"123");
    read(fd, 1);
    ok!(sys!(libc::SYS_ioctl, fd, libc::FIONREAD, &mut n as *mut i32));
    eq!(n, 2);
}

fn cloexec_by_ioctl() {
    let fd = new_file("f", b"");
    ok!(sys!(libc::SYS_ioctl, fd, libc::FIOCLEX));
    eq!(fcntl(fd, libc::F_GETFD, 0), 1);
    ok!(sys!(libc::SYS_ioctl, fd, libc::FIONCLEX));
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
}

fn ioctl_errors() {
    let fd = new_file("f", b"");
    let mut buf = [0u8; 64];
    err!(sys!(libc::SYS_ioctl, fd, libc::TCGETS, buf.as_mut_ptr()), libc::ENOTTY);
    err!(sys!(libc::SYS_ioctl, fd, 0xdeadbeefu32, 0), libc::ENOTTY);
    err!(sys!(libc::SYS_ioctl, 999, libc::TCGETS, 0), libc::EBADF);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_ioctl, r, libc::TIOCGWINSZ, buf.as_mut_ptr()), libc::ENOTTY);
}

fn seals() {
    let fd = ok!(sys!(libc::SYS_memfd_create, c("m").as_ptr(), libc::MFD_ALLOW_SEALING)) as i32;
    ok!(sys!(libc::SYS_ftruncate, fd, 10));
    eq!(fcntl(fd, libc::F_GET_SEALS, 0), 0);
    ok!(fcntl(fd, libc::F_ADD_SEALS, i64::from(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)));
    err!(sys!(libc::SYS_ftruncate, fd, 5), libc::EPERM);
    err!(sys!(libc::SYS_ftruncate, fd, 15), libc::EPERM);
    eq!(sys!(libc::SYS_pwrite64, fd, b"x".as_ptr(), 1, 0), 1);
    ok!(fcntl(fd, libc::F_ADD_SEALS, i64::from(libc::F_SEAL_WRITE)));
    err!(sys!(libc::SYS_pwrite64, fd, b"x".as_ptr(), 1, 0), libc::EPERM);
    ok!(fcntl(fd, libc::F_ADD_SEALS, i64::from(libc::F_SEAL_SEAL)));
    err!(fcntl(fd, libc::F_ADD_SEALS, i64::from(libc::F_SEAL_SHRINK)), libc::EPERM);
    let unsealed = ok!(sys!(libc::SYS_memfd_create, c("m").as_ptr(), 0)) as i32;
    err!(fcntl(unsealed, libc::F_ADD_SEALS, 1), libc::EPERM);
    let plain = new_file("f", b"");
    err!(fcntl(plain, libc::F_ADD_SEALS, 99999), libc::EINVAL);
}

fn owner() {
    let (r, _w) = pipe();
    eq!(fcntl(r, libc::F_GETOWN, 0), 0);
    ok!(fcntl(r, libc::F_SETOWN, i64::from(getpid())));
    eq!(fcntl(r, libc::F_GETOWN, 0), i64::from(getpid()));
    err!(fcntl(r, libc::F_SETOWN, 0x7fff_fff0), libc::ESRCH);
}

fn table_is_copied() {
    let fd = new_file("f", b"");
    in_child(|| {
        close(fd);
        ok!(sys!(libc::SYS_dup2, 1, 200));
    });
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
    err!(fcntl(200, libc::F_GETFD, 0), libc::EBADF);
    // Threads share theirs.
    std::thread::spawn(move || close(fd)).join().expect("joined");
    err!(fcntl(fd, libc::F_GETFD, 0), libc::EBADF);
}

fn closed_by_another_thread() {
    // A read that waits goes on with the pipe although its descriptor is closed meanwhile.
    let (r, w) = pipe();
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        tell.send(gettid()).expect("sent");
        read(r, 10)
    });
    let tid = told.recv().expect("received");
    sleep_ms(20);
    until("the reader waits", || task_state(tid) == 'S');
    close(r);
    write(w, b"late");
    eq!(reader.join().expect("joined"), b"late");
}

fn pipe_size() {
    let (r, w) = pipe();
    eq!(fcntl(w, libc::F_GETPIPE_SZ, 0), 65536);
    eq!(fcntl(w, libc::F_SETPIPE_SZ, 5000), 8192);
    eq!(fcntl(r, libc::F_GETPIPE_SZ, 0), 8192);
    ok!(fcntl(w, libc::F_SETFL, i64::from(libc::O_NONBLOCK)));
    eq!(write(w, &[0; 10_000]), 8192);
    err!(fcntl(w, libc::F_SETPIPE_SZ, 4096), libc::EBUSY);
    err!(fcntl(w, libc::F_SETPIPE_SZ, -1), libc::EINVAL);
}
