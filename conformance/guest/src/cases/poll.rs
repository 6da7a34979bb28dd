//! poll(2), ppoll(2), select(2), pselect6(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("poll": readable, hang_up, broken_pipe, closed_descriptor, files_are_ready, time_out, negative_descriptor, interrupted_poll,
    poll_errors, too_many, wakes_up, ppoll_mask, ppoll_leaves_time, select_sets, select_errors, select_time_left,
    pselect_mask, counts_descriptors, same_descriptor_twice, nothing_to_wait_for);

fn poll(fds: &mut [libc::pollfd], timeout: i32) -> i64 {
    sys!(libc::SYS_poll, fds.as_mut_ptr(), fds.len(), timeout)
}

fn entry(fd: i32, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0x5555 }
}

fn readable() {
    let (r, w) = pipe();
    let mut fds = [entry(r, libc::POLLIN), entry(w, libc::POLLOUT)];
    eq!(poll(&mut fds, 0), 1);
    eq!((fds[0].revents, fds[1].revents), (0, libc::POLLOUT));
    write(w, b"x");
    eq!(poll(&mut fds, -1), 2);
    eq!(fds[0].revents, libc::POLLIN);
    // More bits of the same.
    let mut fds = [entry(r, libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT)];
    eq!(poll(&mut fds, 0), 1);
    eq!(fds[0].revents, libc::POLLIN | libc::POLLRDNORM);
}

fn hang_up() {
    let (r, w) = pipe();
    write(w, b"x");
    close(w);
    let mut fds = [entry(r, libc::POLLIN)];
    eq!(poll(&mut fds, 0), 1);
    eq!(fds[0].revents, libc::POLLIN | libc::POLLHUP);
    read(r, 1);
    // POLLHUP comes unasked.
    let mut fds = [entry(r, 0)];
    eq!(poll(&mut fds, -1), 1);
    eq!(fds[0].revents, libc::POLLHUP);
}

fn broken_pipe() {
    let (r, w) = pipe();
    close(r);
    let mut fds = [entry(w, libc::POLLOUT)];
    eq!(poll(&mut fds, -1), 1);
    eq!(fds[0].revents, libc::POLLOUT | libc::POLLERR);
}

fn closed_descriptor() {
    let mut fds = [entry(999, libc::POLLIN)];
    eq!(poll(&mut fds, -1), 1);
    eq!(fds[0].revents, libc::POLLNVAL);
}

fn files_are_ready() {
    let fd = new_file("f", b"");
    let mut fds = [entry(fd, libc::POLLIN | libc::POLLOUT | libc::POLLPRI)];
    eq!(poll(&mut fds, -1), 1);
    eq!(fds[0].revents, libc::POLLIN | libc::POLLOUT);
}

fn time_out() {
    let (r, _w) = pipe();
    let start = now();
    eq!(poll(&mut [entry(r, libc::POLLIN)], 15), 0);
    check!(now() - start >= 15_000_000);
}

fn negative_descriptor() {
    let mut fds = [entry(-1, libc::POLLIN)];
    eq!(poll(&mut fds, 0), 0);
    eq!(fds[0].revents, 0);
}

fn interrupted_poll() {
    let (r, _w) = pipe();
    // Never restarted, even with SA_RESTART.
    err!(interrupted(libc::SIGUSR1, libc::SA_RESTART, || poll(&mut [entry(r, libc::POLLIN)], -1)), libc::EINTR);
    err!(interrupted(libc::SIGUSR1, libc::SA_RESTART, || poll(&mut [], -1)), libc::EINTR);
}

fn poll_errors() {
    err!(sys!(libc::SYS_poll, BAD, 1, 0), libc::EFAULT);
    err!(sys!(libc::SYS_poll, WILD, 1, 0), libc::EFAULT);
    let (_, end) = guarded_page();
    err!(sys!(libc::SYS_poll, end - 8, 2, 0), libc::EFAULT);
    err!(sys!(libc::SYS_ppoll, 0, 0, BAD, 0, 8), libc::EFAULT);
    err!(sys!(libc::SYS_ppoll, 0, 0, 0, BAD, 8), libc::EFAULT);
    err!(sys!(libc::SYS_ppoll, 0, 0, 0, BAD, 7), libc::EINVAL);
    let bad = libc::timespec { tv_sec: -1, tv_nsec: 0 };
    err!(sys!(libc::SYS_ppoll, 0, 0, &bad as *const _, 0, 8), libc::EINVAL);
}

fn too_many() {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_NOFILE, &limit as *const _));
    let mut fds = vec![entry(-1, 0); 65];
    err!(poll(&mut fds, 0), libc::EINVAL);
    eq!(poll(&mut fds[..64], 0), 0);
    err!(sys!(libc::SYS_poll, fds.as_mut_ptr(), u32::MAX, 0), libc::EINVAL);
}

fn wakes_up() {
    let (r, w) = pipe();
    let pid = child(|| {
        sleep_ms(10);
        write(w, b"x");
    });
    let mut fds = [entry(r, libc::POLLIN)];
    eq!(poll(&mut fds, 10_000), 1);
    reap(pid);
}

fn ppoll_mask() {
    // A blocked signal that the call's mask lets through ends it.
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    eq!(seen(), 0);
    let none = 0u64;
    err!(sys!(libc::SYS_ppoll, 0, 0, 0, &none as *const u64, 8), libc::EINTR);
    eq!(seen(), 1);
    eq!(sigmask(libc::SIG_BLOCK, 0), bit(libc::SIGUSR1));
}

fn ppoll_leaves_time() {
    let (r, w) = pipe();
    write(w, b"x");
    let mut left = timespec_ms(10_000);
    eq!(sys!(libc::SYS_ppoll, &mut entry(r, libc::POLLIN) as *mut _, 1, &mut left as *mut _, 0, 8), 1);
    check!((5..10).contains(&left.tv_sec));
}

fn select(n: i32, sets: [&mut [u64; 16]; 3], timeout: &mut libc::timeval) -> i64 {
    let [r, w, e] = sets;
    sys!(libc::SYS_select, n, r.as_mut_ptr(), w.as_mut_ptr(), e.as_mut_ptr(), timeout as *mut _)
}

fn set(fds: &[i32]) -> [u64; 16] {
    let mut set = [0u64; 16];
    fds.iter().for_each(|&fd| set[fd as usize / 64] |= 1 << (fd % 64));
    set
}

fn select_sets() {
    let (r, w) = pipe();
    let mut zero: libc::timeval = zeroed();
    let (mut rs, mut ws, mut es) = (set(&[r]), set(&[w]), set(&[r, w]));
    eq!(select(w + 1, [&mut rs, &mut ws, &mut es], &mut zero), 1);
    eq!((rs, ws, es), (set(&[]), set(&[w]), set(&[])));
    write(w, b"x");
    let (mut rs, mut ws) = (set(&[r]), set(&[w]));
    eq!(select(w + 1, [&mut rs, &mut ws, &mut es], &mut zero), 2);
    close(r);
    // A broken pipe is writable, and select knows no error for it.
    let (mut rs, mut ws) = (set(&[]), set(&[w]));
    eq!(select(w + 1, [&mut rs, &mut ws, &mut es], &mut zero), 1);
    eq!(sys!(libc::SYS_select, 0, 0, 0, 0, &mut zero as *mut _), 0);
}

fn select_errors() {
    let mut zero: libc::timeval = zeroed();
    let (mut a, mut b, mut e) = (set(&[60]), set(&[]), set(&[]));
    err!(select(61, [&mut a, &mut b, &mut e], &mut zero), libc::EBADF);
    err!(sys!(libc::SYS_select, -1, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_select, 1, BAD, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_select, 0, 0, 0, 0, BAD), libc::EFAULT);
    let mut bad = libc::timeval { tv_sec: -1, tv_usec: 0 };
    err!(sys!(libc::SYS_select, 0, 0, 0, 0, &mut bad as *mut _), libc::EINVAL);
}

fn select_time_left() {
    let (r, w) = pipe();
    write(w, b"x");
    let mut left = libc::timeval { tv_sec: 10, tv_usec: 0 };
    let (mut a, mut b, mut e) = (set(&[r]), set(&[]), set(&[]));
    eq!(select(r + 1, [&mut a, &mut b, &mut e], &mut left), 1);
    check!((5..10).contains(&left.tv_sec) || (left.tv_sec, left.tv_usec) == (10, 0));
    let (mut a, mut short) = (set(&[]), libc::timeval { tv_sec: 0, tv_usec: 12_000 });
    let start = now();
    eq!(select(1, [&mut a, &mut b, &mut e], &mut short), 0);
    check!(now() - start >= 12_000_000);
    eq!((short.tv_sec, short.tv_usec), (0, 0));
}

fn pselect_mask() {
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    let none = 0u64;
    let sixth = [&none as *const u64 as u64, 8];
    err!(sys!(libc::SYS_pselect6, 0, 0, 0, 0, 0, sixth.as_ptr()), libc::EINTR);
    eq!(seen(), 1);
    let wrong = [&none as *const u64 as u64, 7];
    err!(sys!(libc::SYS_pselect6, 0, 0, 0, 0, 0, wrong.as_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_pselect6, 0, 0, 0, 0, 0, BAD), libc::EFAULT);
}

fn counts_descriptors() {
    let pipes: Vec<_> = (0..100).map(|_| pipe()).collect();
    let mut fds: Vec<_> = pipes.iter().map(|p| entry(p.0, libc::POLLIN)).collect();
    pipes.iter().step_by(3).for_each(|p| eq!(write(p.1, b"x"), 1));
    eq!(poll(&mut fds, -1), 34);
    check!(fds.iter().enumerate().all(|(i, f)| (f.revents != 0) == (i % 3 == 0)));
}

fn same_descriptor_twice() {
    let (r, w) = pipe();
    write(w, b"x");
    let mut fds = [entry(r, libc::POLLIN), entry(r, libc::POLLIN), entry(r, 0)];
    eq!(poll(&mut fds, -1), 2);
}

fn nothing_to_wait_for() {
    let start = now();
    eq!(poll(&mut [], 12), 0);
    check!(now() - start >= 12_000_000);
    eq!(poll(&mut [], 0), 0);
}
