//! pipe(2) and pipe2(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("pipe": round_trip, end_of_file, broken, flags, errors, wrong_end, fills_up, nonblocking_partial, atomic_writes,
    blocked_read_wakes, blocked_write_wakes, read_interrupted, read_restarts, write_interrupted_partial, many_readers,
    packets, ping_pong, chain_of_processes, stays_while_a_copy_is_open, reopened_through_proc, room_is_counted_in_pages, splice_keeps_pages);

fn round_trip() {
    let (r, w) = pipe();
    eq!(write(w, b"one"), 3);
    eq!(write(w, b"two"), 3);
    eq!(read(r, 4), b"onet");
    eq!(read(r, 100), b"wo");
}

fn end_of_file() {
    let (r, w) = pipe();
    write(w, b"last");
    close(w);
    eq!(read(r, 100), b"last");
    eq!(read(r, 100), b"");
    eq!(read(r, 100), b"");
}

fn broken() {
    let (r, w) = pipe();
    close(r);
    catch(libc::SIGPIPE, 0);
    err!(write(w, b"x"), libc::EPIPE);
    eq!(seen(), 1);
    disposition(libc::SIGPIPE, libc::SIG_IGN);
    err!(write(w, b"x"), libc::EPIPE);
}

fn flags() {
    let (r, w) = pipe2(libc::O_NONBLOCK | libc::O_CLOEXEC);
    for fd in [r, w] {
        eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
        check!(sys!(libc::SYS_fcntl, fd, libc::F_GETFL) & i64::from(libc::O_NONBLOCK) != 0);
    }
    let mut buf = [0u8; 1];
    err!(sys!(libc::SYS_read, r, buf.as_mut_ptr(), 1), libc::EAGAIN);
}

fn errors() {
    err!(sys!(libc::SYS_pipe, BAD), libc::EFAULT);
    let mut fds = [0i32; 2];
    err!(sys!(libc::SYS_pipe2, fds.as_mut_ptr(), 1), libc::EINVAL);
    // A failed call leaves no descriptors behind.
    let before = ok!(sys!(libc::SYS_dup, 0)) as i32;
    close(before);
    err!(sys!(libc::SYS_pipe, WILD), libc::EFAULT);
    eq!(sys!(libc::SYS_dup, 0), i64::from(before));
}

fn wrong_end() {
    let (r, w) = pipe();
    let mut buf = [0u8; 1];
    err!(write(r, b"x"), libc::EBADF);
    err!(sys!(libc::SYS_read, w, buf.as_mut_ptr(), 1), libc::EBADF);
}

fn fills_up() {
    let (r, w) = pipe2(libc::O_NONBLOCK);
    let mut total = 0;
    loop {
        let n = write(w, &[1; 4096]);
        if n < 0 {
            err!(n, libc::EAGAIN);
            break;
        }
        total += n;
    }
    eq!(total, 65536);
    err!(write(w, b"x"), libc::EAGAIN);
    eq!(read(r, 4096).len(), 4096);
    eq!(write(w, &[2; 4096]), 4096);
}

fn nonblocking_partial() {
    let (_r, w) = pipe2(libc::O_NONBLOCK);
    eq!(write(w, &vec![0; 100_000]), 65536);
    let (r, w) = pipe2(libc::O_NONBLOCK);
    write(w, &vec![0; 65536]);
    read(r, 4000);
    // Up to PIPE_BUF it is all or nothing.
    err!(write(w, &[0; 4096]), libc::EAGAIN);
}

fn atomic_writes() {
    let (r, w) = pipe();
    let pids: Vec<_> = (0..4u8).map(|i| child(|| (0..50).for_each(|_| eq!(write(w, &[i; 1000]), 1000)))).collect();
    close(w);
    let mut all = Vec::new();
    loop {
        let part = read(r, 7777);
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    pids.into_iter().for_each(reap);
    eq!(all.len(), 200_000);
    check!(all.chunks(1000).all(|c| c.iter().all(|&b| b == c[0])));
}

fn blocked_read_wakes() {
    let (r, w) = pipe();
    let pid = child(|| {
        eq!(read(r, 10), b"wake");
    });
    until("the child sleeps", || task_state(pid) == 'S');
    write(w, b"wake");
    reap(pid);
}

fn blocked_write_wakes() {
    let (r, w) = pipe();
    let pid = child(|| {
        eq!(write(w, &vec![7; 200_000]), 200_000);
    });
    until("the child sleeps", || task_state(pid) == 'S');
    let mut total = 0;
    while total < 200_000 {
        total += read(r, 10_000).len();
    }
    reap(pid);
}

fn read_interrupted() {
    let (r, _w) = pipe();
    let mut buf = [0u8; 1];
    err!(interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_read, r, buf.as_mut_ptr(), 1)), libc::EINTR);
}

fn read_restarts() {
    let (r, w) = pipe();
    let give = move || {
        write(w, b"x");
    };
    let got = interrupted_then(libc::SIGUSR1, libc::SA_RESTART, 3, give, || read(r, 1));
    eq!(got, b"x");
    check!(seen() >= 3);
}

fn write_interrupted_partial() {
    let (_r, w) = pipe();
    // What had been written before the signal counts.
    let n = interrupted(libc::SIGUSR1, 0, || write(w, &vec![0; 100_000]));
    eq!(n, 65536);
    err!(interrupted(libc::SIGUSR1, 0, || write(w, b"x")), libc::EINTR);
}

fn many_readers() {
    // Each byte is read by exactly one of them.
    let (r, w) = pipe();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let mut n = 0;
                while !read(r, 1).is_empty() {
                    n += 1;
                }
                n
            })
        })
        .collect();
    (0..500).for_each(|_| eq!(write(w, b"x"), 1));
    close(w);
    eq!(threads.into_iter().map(|t| t.join().expect("joined")).sum::<i32>(), 500);
}

fn packets() {
    let (r, w) = pipe2(libc::O_DIRECT);
    write(w, b"first");
    write(w, b"second");
    eq!(read(r, 3), b"fir");
    eq!(read(r, 100), b"second");
}

fn ping_pong() {
    let ((r1, w1), (r2, w2)) = (pipe(), pipe());
    let pid = child(|| {
        for i in 0..2000u32 {
            eq!(read(r1, 4), i.to_le_bytes());
            write(w2, &(i + 1).to_le_bytes());
        }
    });
    for i in 0..2000u32 {
        write(w1, &i.to_le_bytes());
        eq!(read(r2, 4), (i + 1).to_le_bytes());
    }
    reap(pid);
}

fn chain_of_processes() {
    let (first, mut w) = pipe();
    let head = w;
    let mut r = first;
    let mut pids = Vec::new();
    for _ in 0..10 {
        let (next_r, next_w) = pipe();
        pids.push(child(|| {
            close(head);
            loop {
                let part = read(r, 100);
                if part.is_empty() {
                    break;
                }
                write(next_w, &part);
            }
        }));
        close(r);
        close(next_w);
        r = next_r;
    }
    for _ in 0..50 {
        write(w, b"token");
    }
    close(w);
    w = 0;
    let mut all = Vec::new();
    loop {
        let part = read(r, 1000);
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    eq!((all.len(), w), (250, 0));
    pids.into_iter().for_each(reap);
}

fn stays_while_a_copy_is_open() {
    let (r, w) = pipe();
    let pid = child(|| sleep_ms(60_000));
    close(w);
    // The child has the write end still.
    let mut poll = libc::pollfd { fd: r, events: libc::POLLIN, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 10), 0);
    kill(pid, libc::SIGKILL);
    eq!(read(r, 1), b"");
    wait(pid);
}

fn reopened_through_proc() {
    let (r, w) = pipe();
    let again = ok!(open(&format!("/proc/self/fd/{w}"), libc::O_WRONLY, 0)) as i32;
    close(w);
    write(again, b"x");
    eq!(read(r, 1), b"x");
    close(again);
    eq!(read(r, 1), b"");
}

/// `FIONREAD`.
fn held(fd: i32) -> i32 {
    let mut count = 0i32;
    ok!(sys!(libc::SYS_ioctl, fd, libc::FIONREAD, &mut count as *mut i32));
    count
}

fn room_is_counted_in_pages() {
    let mut pair = [-1i32; 2];
    ok!(sys!(libc::SYS_pipe2, pair.as_mut_ptr(), libc::O_NONBLOCK));
    let ([r, w], data) = (pair, [7u8; 100_000]);
    let put = |n: usize| sys!(libc::SYS_write, w, data.as_ptr(), n);
    let mut buf = [0u8; 100_000];
    let mut get = |n: usize| sys!(libc::SYS_read, r, buf.as_mut_ptr(), n);
    (0..16).for_each(|_| eq!(put(3000), 3000));
    err!(put(3000), libc::EAGAIN);
    eq!(held(r), 48_000);
    let writable = || sys!(libc::SYS_poll, &mut libc::pollfd { fd: w, events: libc::POLLOUT, revents: 0 } as *mut _, 1, 0);
    eq!(writable(), 0);
    // Behind what the last page has.
    eq!(put(1000), 1000);
    err!(put(97), libc::EAGAIN);
    eq!(put(96), 96);
    err!(put(1), libc::EAGAIN);
    // A page is free only when all of it was read.
    eq!(get(2999), 2999);
    eq!(writable(), 0);
    err!(put(1), libc::EAGAIN);
    err!(fcntl(w, libc::F_SETPIPE_SZ, 32_768), libc::EBUSY);
    eq!(get(2), 2);
    eq!(writable(), 1);
    // A part of a page goes behind the last one's, if it fits there, and whole pages to free ones.
    eq!(put(5000), 4096);
    eq!(get(100_000), 48_000 + 1096 - 3001 + 4096);
    eq!(put(3000), 3000);
    eq!(put(5000), 5000);
    eq!(put(100_000), 14 * 4096);
    eq!(held(r), 8000 + 14 * 4096);
    // More pages, and as few as are in use.
    eq!(fcntl(w, libc::F_SETPIPE_SZ, 131_072), 131_072);
    eq!(put(1), 1);
    eq!(get(100_000), 8001 + 14 * 4096);
    (0..3).for_each(|_| eq!(put(2100), 2100));
    err!(fcntl(w, libc::F_SETPIPE_SZ, 8192), libc::EBUSY);
    eq!(fcntl(w, libc::F_SETPIPE_SZ, 12_288), 16_384);
}

fn splice_keeps_pages() {
    let mut pairs = [-1i32; 4];
    ok!(sys!(libc::SYS_pipe2, pairs.as_mut_ptr(), libc::O_NONBLOCK));
    ok!(sys!(libc::SYS_pipe2, pairs[2..].as_mut_ptr(), libc::O_NONBLOCK));
    let [r, w, r2, w2] = pairs;
    let data = [1u8; 70_000];
    let put = |fd: i32, n: usize| sys!(libc::SYS_write, fd, data.as_ptr(), n);
    let splice = |from: i32, to: i32, n: usize| sys!(libc::SYS_splice, from, 0, to, 0, n, 2);
    (0..10).for_each(|_| eq!(put(w, 3000), 3000));
    // Ten pages go, and the last one is written on.
    eq!(splice(r, w2, 100_000), 30_000);
    eq!(put(w2, 1096), 1096);
    eq!(put(w2, 6 * 4096), 6 * 4096);
    err!(put(w2, 1), libc::EAGAIN);
    // What is left of a page stays, and what went of it is not written on.
    eq!(splice(r2, w, 1000), 1000);
    eq!(put(w, 10), 10);
    eq!(held(r), 1010);
    (0..14).for_each(|_| eq!(put(w, 4095), 4095));
    err!(put(w, 2), libc::EAGAIN);
    // Copies are closed too, and what is copied is not.
    eq!(sys!(libc::SYS_read, r, [0u8; 70_000].as_mut_ptr(), 70_000), 1010 + 14 * 4095);
    eq!(put(w, 5), 5);
    eq!(sys!(libc::SYS_read, r2, [0u8; 70_000].as_mut_ptr(), 70_000), 29_000 + 1096 + 6 * 4096);
    eq!(sys!(libc::SYS_tee, r, w2, 100, 2), 5);
    eq!(put(w2, 15 * 4096), 15 * 4096);
    err!(put(w2, 1), libc::EAGAIN);
    eq!(put(w, 4000), 4000);
    // A file's bytes lie as in its pages.
    eq!(sys!(libc::SYS_read, r, [0u8; 70_000].as_mut_ptr(), 70_000), 4005);
    let fd = new_file("f", &data);
    let mut from = 100i64;
    eq!(sys!(libc::SYS_splice, fd, &mut from as *mut i64, w, 0, 100_000, 2), 16 * 4096 - 100);
    eq!(from, 16 * 4096);
}
