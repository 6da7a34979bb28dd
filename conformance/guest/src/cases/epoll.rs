//! epoll(7).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("epoll": level, edge, oneshot, modify_and_delete, ctl_errors, wait_errors, time_out, interrupted_wait, wakes_up,
    closing_removes, dup_keeps, nested, loops_are_refused, pollable, pwait_mask, pwait2_timeout, many, fair, hang_up,
    wait_in_several_threads, eventfd_inside, not_files, data_is_kept);

fn create() -> i32 {
    ok!(sys!(libc::SYS_epoll_create1, 0)) as i32
}

fn ctl(ep: i32, op: i32, fd: i32, events: i32, data: u64) -> i64 {
    let event = libc::epoll_event { events: events as u32, u64: data };
    sys!(libc::SYS_epoll_ctl, ep, op, fd, &event as *const _)
}

fn add(ep: i32, fd: i32, events: i32) {
    ok!(ctl(ep, libc::EPOLL_CTL_ADD, fd, events, fd as u64));
}

/// What is ready: (data, events).
fn ready(ep: i32, max: usize, timeout: i32) -> Vec<(u64, i32)> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
    let n = ok!(sys!(libc::SYS_epoll_wait, ep, events.as_mut_ptr(), max, timeout)) as usize;
    events[..n].iter().map(|e| (e.u64, e.events as i32)).collect()
}

fn level() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN);
    add(ep, w, libc::EPOLLOUT);
    eq!(ready(ep, 10, 0), [(w as u64, libc::EPOLLOUT)]);
    write(w, b"xy");
    for _ in 0..3 {
        let mut both = ready(ep, 10, -1);
        both.sort_unstable();
        eq!(both, [(r as u64, libc::EPOLLIN), (w as u64, libc::EPOLLOUT)]);
    }
    read(r, 2);
    eq!(ready(ep, 10, 0), [(w as u64, libc::EPOLLOUT)]);
}

fn edge() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN | libc::EPOLLET);
    write(w, b"a");
    eq!(ready(ep, 10, -1).len(), 1);
    eq!(ready(ep, 10, 0).len(), 0);
    // A new write is a new edge, although the pipe was not empty.
    write(w, b"b");
    eq!(ready(ep, 10, -1).len(), 1);
    eq!(ready(ep, 10, 0).len(), 0);
}

fn oneshot() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN | libc::EPOLLONESHOT);
    write(w, b"a");
    eq!(ready(ep, 10, -1).len(), 1);
    write(w, b"b");
    eq!(ready(ep, 10, 0).len(), 0);
    ok!(ctl(ep, libc::EPOLL_CTL_MOD, r, libc::EPOLLIN | libc::EPOLLONESHOT, 1));
    eq!(ready(ep, 10, -1), [(1, libc::EPOLLIN)]);
}

fn modify_and_delete() {
    let ep = create();
    let (r, w) = pipe();
    write(w, b"x");
    add(ep, r, 0);
    eq!(ready(ep, 10, 0).len(), 0);
    ok!(ctl(ep, libc::EPOLL_CTL_MOD, r, libc::EPOLLIN, 7));
    eq!(ready(ep, 10, -1), [(7, libc::EPOLLIN)]);
    ok!(ctl(ep, libc::EPOLL_CTL_DEL, r, 0, 0));
    eq!(ready(ep, 10, 0).len(), 0);
    ok!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_ADD, r, &libc::epoll_event { events: 1, u64: 2 } as *const _));
    ok!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_DEL, r, 0));
}

fn ctl_errors() {
    let ep = create();
    let (r, _w) = pipe();
    add(ep, r, libc::EPOLLIN);
    err!(ctl(ep, libc::EPOLL_CTL_ADD, r, libc::EPOLLIN, 0), libc::EEXIST);
    let (other, _) = pipe();
    err!(ctl(ep, libc::EPOLL_CTL_MOD, other, libc::EPOLLIN, 0), libc::ENOENT);
    err!(ctl(ep, libc::EPOLL_CTL_DEL, other, 0, 0), libc::ENOENT);
    err!(ctl(ep, 9, r, 0, 0), libc::EINVAL);
    err!(ctl(ep, libc::EPOLL_CTL_ADD, ep, 0, 0), libc::EINVAL);
    err!(ctl(r, libc::EPOLL_CTL_ADD, ep, 0, 0), libc::EINVAL);
    err!(ctl(999, libc::EPOLL_CTL_ADD, r, 0, 0), libc::EBADF);
    err!(ctl(ep, libc::EPOLL_CTL_ADD, 999, 0, 0), libc::EBADF);
    err!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_MOD, r, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_epoll_create, 0), libc::EINVAL);
    err!(sys!(libc::SYS_epoll_create1, 1), libc::EINVAL);
    let cloexec = ok!(sys!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC)) as i32;
    eq!(sys!(libc::SYS_fcntl, cloexec, libc::F_GETFD), 1);
}

fn wait_errors() {
    let ep = create();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    err!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, -1, 0), libc::EINVAL);
    err!(sys!(libc::SYS_epoll_wait, 999, &mut event as *mut _, 1, 0), libc::EBADF);
    let (r, w) = pipe();
    err!(sys!(libc::SYS_epoll_wait, r, &mut event as *mut _, 1, 0), libc::EINVAL);
    write(w, b"x");
    add(ep, r, libc::EPOLLIN);
    err!(sys!(libc::SYS_epoll_wait, ep, BAD, 1, 0), libc::EFAULT);
    // It is not lost by that.
    eq!(ready(ep, 1, 0).len(), 1);
}

fn time_out() {
    let ep = create();
    let start = now();
    eq!(ready(ep, 1, 15).len(), 0);
    check!(now() - start >= 15_000_000);
}

fn interrupted_wait() {
    let ep = create();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let r = interrupted(libc::SIGUSR1, libc::SA_RESTART, || sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, -1));
    err!(r, libc::EINTR);
}

fn wakes_up() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN | libc::EPOLLET);
    let pid = child(|| {
        for _ in 0..100 {
            write(w, b"x");
            sys!(libc::SYS_sched_yield);
        }
    });
    let mut got = 0;
    while got < 100 {
        eq!(ready(ep, 4, 10_000).len(), 1);
        got += read(r, 100).len();
    }
    reap(pid);
    // Something can be added while another thread waits.
    let (r2, w2) = pipe();
    let waiter = std::thread::spawn(move || ready(ep, 1, 10_000));
    sleep_ms(10);
    write(w2, b"x");
    add(ep, r2, libc::EPOLLIN);
    eq!(waiter.join().expect("joined"), [(r2 as u64, libc::EPOLLIN)]);
}

fn closing_removes() {
    let ep = create();
    let (r, w) = pipe();
    write(w, b"x");
    add(ep, r, libc::EPOLLIN);
    close(r);
    eq!(ready(ep, 1, 0).len(), 0);
}

fn dup_keeps() {
    // The registration belongs to the description: it stays until the last descriptor is closed.
    let ep = create();
    let (r, w) = pipe();
    write(w, b"x");
    add(ep, r, libc::EPOLLIN);
    let copy = ok!(sys!(libc::SYS_dup, r)) as i32;
    close(r);
    eq!(ready(ep, 1, 0).len(), 1);
    add(ep, copy, libc::EPOLLIN);
    eq!(ready(ep, 5, 0).len(), 2);
    close(copy);
    eq!(ready(ep, 1, 0).len(), 0);
}

fn nested() {
    let (outer, inner) = (create(), create());
    let (r, w) = pipe();
    add(inner, r, libc::EPOLLIN);
    add(outer, inner, libc::EPOLLIN);
    eq!(ready(outer, 1, 0).len(), 0);
    write(w, b"x");
    eq!(ready(outer, 1, -1), [(inner as u64, libc::EPOLLIN)]);
    eq!(ready(inner, 1, -1), [(r as u64, libc::EPOLLIN)]);
}

fn loops_are_refused() {
    let (a, b) = (create(), create());
    add(a, b, libc::EPOLLIN);
    err!(ctl(b, libc::EPOLL_CTL_ADD, a, libc::EPOLLIN, 0), libc::ELOOP);
    // Neither is a chain too long.
    let mut chain = create();
    let mut refused = false;
    for _ in 0..8 {
        let next = create();
        refused |= ctl(next, libc::EPOLL_CTL_ADD, chain, libc::EPOLLIN, 0) == -i64::from(libc::ELOOP);
        chain = next;
    }
    check!(refused);
}

fn pollable() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN);
    let mut fd = libc::pollfd { fd: ep, events: libc::POLLIN, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut fd as *mut _, 1, 0), 0);
    write(w, b"x");
    eq!(sys!(libc::SYS_poll, &mut fd as *mut _, 1, -1), 1);
    err!(sys!(libc::SYS_read, ep, &mut fd as *mut _, 8), libc::EINVAL);
}

fn pwait_mask() {
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    let ep = create();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let none = 0u64;
    err!(sys!(libc::SYS_epoll_pwait, ep, &mut event as *mut _, 1, -1, &none as *const u64, 8), libc::EINTR);
    eq!(seen(), 1);
    err!(sys!(libc::SYS_epoll_pwait, ep, &mut event as *mut _, 1, -1, &none as *const u64, 7), libc::EINVAL);
}

fn pwait2_timeout() {
    let ep = create();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let short = libc::timespec { tv_sec: 0, tv_nsec: 3_500_000 };
    let start = now();
    let r = sys!(libc::SYS_epoll_pwait2, ep, &mut event as *mut _, 1, &short as *const _, 0, 8);
    if r == -i64::from(libc::ENOSYS) {
        skip("epoll_pwait2 is newer than this kernel");
    }
    eq!(r, 0);
    check!(now() - start >= 3_500_000);
}

fn many() {
    let ep = create();
    let pipes: Vec<_> = (0..300).map(|_| pipe()).collect();
    pipes.iter().for_each(|p| add(ep, p.0, libc::EPOLLIN));
    pipes.iter().step_by(7).for_each(|p| eq!(write(p.1, b"x"), 1));
    let mut got: Vec<u64> = ready(ep, 300, -1).into_iter().map(|e| e.0).collect();
    got.sort_unstable();
    eq!(got, pipes.iter().step_by(7).map(|p| p.0 as u64).collect::<Vec<_>>());
}

fn fair() {
    // With room for one at a time, every ready descriptor gets its turn.
    let ep = create();
    let pipes: Vec<_> = (0..5).map(|_| pipe()).collect();
    pipes.iter().for_each(|p| add(ep, p.0, libc::EPOLLIN));
    pipes.iter().for_each(|p| eq!(write(p.1, b"x"), 1));
    let mut got: Vec<u64> = (0..5).flat_map(|_| ready(ep, 1, 0)).map(|e| e.0).collect();
    got.sort_unstable();
    got.dedup();
    eq!(got.len(), 5);
}

fn hang_up() {
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN | libc::EPOLLRDHUP);
    close(w);
    eq!(ready(ep, 1, -1), [(r as u64, libc::EPOLLHUP)]);
    let (r, w) = pipe();
    add(ep, w, 0);
    close(r);
    check!(ready(ep, 5, -1).contains(&(w as u64, libc::EPOLLERR)));
}

fn wait_in_several_threads() {
    // One event wakes one waiter of an edge-triggered registration; all get their share.
    let ep = create();
    let (r, w) = pipe();
    add(ep, r, libc::EPOLLIN | libc::EPOLLET);
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(move || ready(ep, 1, 10_000).len())).collect();
    let mut written = 0;
    until("all have been woken", || {
        if written < 1000 {
            written += write(w, b"x");
        }
        threads.iter().all(|t| t.is_finished())
    });
    eq!(threads.into_iter().map(|t| t.join().expect("joined")).sum::<usize>(), 4);
}

fn eventfd_inside() {
    let ep = create();
    let fd = ok!(sys!(libc::SYS_eventfd2, 0, 0)) as i32;
    add(ep, fd, libc::EPOLLIN);
    eq!(ready(ep, 1, 0).len(), 0);
    write(fd, &1u64.to_le_bytes());
    eq!(ready(ep, 1, -1), [(fd as u64, libc::EPOLLIN)]);
    read(fd, 8);
    eq!(ready(ep, 1, 0).len(), 0);
}

fn not_files() {
    let ep = create();
    let fd = new_file("f", b"");
    err!(ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 0), libc::EPERM);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(ctl(ep, libc::EPOLL_CTL_ADD, dir, libc::EPOLLIN, 0), libc::EPERM);
}

fn data_is_kept() {
    let ep = create();
    let (_r, w) = pipe();
    ok!(ctl(ep, libc::EPOLL_CTL_ADD, w, libc::EPOLLOUT, u64::MAX - 3));
    eq!(ready(ep, 1, -1), [(u64::MAX - 3, libc::EPOLLOUT)]);
}
