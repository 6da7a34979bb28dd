//! Descriptors that are no files: pipes, counters, sockets, epoll. None of them blocks.

use std::fmt::Write;

use super::{Rng, World, digest, pattern, shown, shown_data};
use crate::sys;
use crate::sys::*;

/// Numbers that steps use: 3 to 14, of which some are open.
const FIRST: u64 = 3;
const COUNT: u64 = 12;

/// The world.
pub struct Descriptors;

fn any(rng: &mut Rng) -> i32 {
    (FIRST + rng.below(COUNT)) as i32
}

/// What poll(2) says of all.
fn ready() -> String {
    let mut text = String::new();
    for fd in FIRST..FIRST + COUNT {
        let mut poll = libc::pollfd {
            fd: fd as i32,
            events: 0x1 | 0x2 | 0x4 | 0x2000,
            revents: 0,
        };
        let r = sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0);
        let _ = if r == 1 {
            write!(text, "{:x} ", poll.revents)
        } else {
            write!(text, "- ")
        };
    }
    text
}

fn make(rng: &mut Rng) -> String {
    let mut pair = [-1i32; 2];
    let to = pair.as_mut_ptr();
    let cloexec = if rng.once_in(3) { libc::O_CLOEXEC } else { 0 };
    let flags = libc::O_NONBLOCK | cloexec;
    let (what, r) = match rng.below(11) {
        0 | 1 => ("pipe", sys!(libc::SYS_pipe2, to, flags)),
        2 => (
            "eventfd",
            sys!(libc::SYS_eventfd2, rng.below(3), flags | rng.pick(&[0, 1])),
        ),
        3 => ("stream", sys!(libc::SYS_socketpair, 1, 1 | flags, 0, to)),
        4 => ("datagram", sys!(libc::SYS_socketpair, 1, 2 | flags, 0, to)),
        5 => ("packet", sys!(libc::SYS_socketpair, 1, 5 | flags, 0, to)),
        6 => {
            let flags = libc::TFD_NONBLOCK | cloexec;
            ("timerfd", sys!(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags))
        }
        7 => {
            let flags = if cloexec == 0 { 0 } else { libc::MFD_CLOEXEC };
            ("memfd", sys!(libc::SYS_memfd_create, c("memory").as_ptr(), flags))
        }
        8 => ("inotify", sys!(libc::SYS_inotify_init1, flags)),
        9 => {
            let mask = bit(libc::SIGUSR1);
            ("signalfd", sys!(libc::SYS_signalfd4, -1, &mask as *const _, 8, flags))
        }
        _ => ("epoll", sys!(libc::SYS_epoll_create1, cloexec)),
    };
    format!("{what} {flags:#o} = {} {pair:?}", shown(r))
}

fn is_pipe_or_eventfd(fd: i32) -> bool {
    let mut st: libc::stat = zeroed();
    sys!(libc::SYS_fstat, fd, &mut st as *mut _) != 0 || st.st_mode & libc::S_IFMT != libc::S_IFSOCK
}

fn copies(rng: &mut Rng) -> String {
    let (a, b) = (any(rng), any(rng));
    match rng.below(7) {
        0 | 1 => format!("close {a} = {}", shown(sys!(libc::SYS_close, a))),
        2 => format!("dup {a} = {}", shown(sys!(libc::SYS_dup, a))),
        3 => format!("dup2 {a} {b} = {}", shown(sys!(libc::SYS_dup2, a, b))),
        4 => format!("dup3 {a} {b} = {}", shown(sys!(libc::SYS_dup3, a, b, libc::O_CLOEXEC))),
        5 => {
            let command = rng.pick(&[libc::F_DUPFD, libc::F_DUPFD_CLOEXEC]);
            format!("dupfd {a} {b} {command} = {}", shown(fcntl(a, command, b.into())))
        }
        _ => {
            let flags = rng.pick(&[0, 0, 4, 1]);
            format!(
                "close_range {a} {b} {flags} = {}",
                shown(sys!(libc::SYS_close_range, a, b, flags))
            )
        }
    }
}

fn data(rng: &mut Rng) -> String {
    let (a, b) = (any(rng), any(rng));
    // How much fits into a socket is not the same everywhere, so that little is sent.
    let len = if is_pipe_or_eventfd(a) {
        rng.pick(&[0, 1, 8, 100, 4096, 5000])
    } else {
        rng.pick(&[0, 1, 8, 100])
    };
    let mut buf = pattern(rng, len);
    match rng.below(10) {
        0..=2 => {
            if len == 8 && rng.once_in(2) {
                buf = rng.pick(&[0u64, 1, 5, u64::MAX - 1, u64::MAX]).to_ne_bytes().to_vec();
            }
            format!("write {a} {len} = {}", shown(write(a, &buf)))
        }
        3..=5 => {
            let n = sys!(libc::SYS_read, a, buf.as_mut_ptr(), len);
            format!("read {a} {len} = {}", shown_data(n, &buf))
        }
        6 => {
            let flags = libc::SPLICE_F_NONBLOCK as i32;
            match rng.below(2) {
                0 => format!("tee {a} {b} {len} = {}", shown(sys!(libc::SYS_tee, a, b, len, flags))),
                _ if is_pipe_or_eventfd(b) => {
                    format!(
                        "splice {a} {b} {len} = {}",
                        shown(sys!(libc::SYS_splice, a, 0, b, 0, len, flags))
                    )
                }
                _ => "no splice".into(),
            }
        }
        7 => {
            let flags = rng.flags(&[libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_WAITALL]) | libc::MSG_DONTWAIT;
            let n = sys!(libc::SYS_recvfrom, a, buf.as_mut_ptr(), len, flags, 0, 0);
            let kept = &buf[..(n.max(0) as usize).min(len)];
            format!("recv {a} {len} {flags:#x} = {}", shown_data(n, kept))
        }
        8 => {
            let flags = rng.flags(&[libc::MSG_EOR]) | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            format!(
                "send {a} {len} {flags:#x} = {}",
                shown(sys!(libc::SYS_sendto, a, buf.as_ptr(), len.min(100), flags, 0, 0))
            )
        }
        _ => format!("shutdown {a} = {}", shown(sys!(libc::SYS_shutdown, a, rng.below(4)))),
    }
}

fn state(rng: &mut Rng) -> String {
    let a = any(rng);
    match rng.below(8) {
        0 => {
            let mut n = -1i32;
            let r = sys!(libc::SYS_ioctl, a, libc::FIONREAD, &mut n as *mut _);
            format!("fionread {a} = {} {n}", shown(r))
        }
        1 => format!("getfl {a} = {:#o}", fcntl(a, libc::F_GETFL, 0)),
        2 => {
            let on = rng.below(2) as i64;
            format!(
                "setfd {a} {on} = {} {}",
                shown(fcntl(a, libc::F_SETFD, on)),
                shown(fcntl(a, libc::F_GETFD, 0))
            )
        }
        3 => {
            let size = rng.pick(&[0i64, 4096, 5000, 65536, 1 << 20]);
            let r = fcntl(a, libc::F_SETPIPE_SZ, size);
            format!(
                "setpipe_sz {a} {size} = {} {}",
                shown(r),
                shown(fcntl(a, libc::F_GETPIPE_SZ, 0))
            )
        }
        4 => {
            let option = rng.pick(&[
                libc::SO_TYPE,
                libc::SO_ERROR,
                libc::SO_ACCEPTCONN,
                libc::SO_DOMAIN,
                libc::SO_PROTOCOL,
            ]);
            let (mut value, mut len) = (-1i32, 4u32);
            let r = sys!(
                libc::SYS_getsockopt,
                a,
                1,
                option,
                &mut value as *mut _,
                &mut len as *mut _
            );
            format!("getsockopt {a} {option} = {} {value} {len}", shown(r))
        }
        5 => format!("lseek {a} = {}", shown(sys!(libc::SYS_lseek, a, 0, 1))),
        6 => {
            let mut st: libc::stat = zeroed();
            let r = sys!(libc::SYS_fstat, a, &mut st as *mut _);
            format!("fstat {a} = {} {:o} {}", shown(r), st.st_mode, st.st_size)
        }
        _ => {
            let r = sys!(libc::SYS_fsync, a);
            format!("fsync {a} = {}", shown(r))
        }
    }
}

/// Timers that never end, or have ended when the step has.
fn timer(rng: &mut Rng) -> String {
    let a = any(rng);
    let mut old: libc::itimerspec = zeroed();
    let kind = |timer: &libc::itimerspec| (timer.it_value.tv_sec > 0, timer.it_interval.tv_sec);
    if rng.once_in(3) {
        let r = sys!(libc::SYS_timerfd_gettime, a, &mut old as *mut _);
        return format!("gettime {a} = {} {:?}", shown(r), kind(&old));
    }
    let mut new: libc::itimerspec = zeroed();
    let what = rng.below(4);
    match what {
        0 => {}
        1 => new.it_value.tv_sec = 3600,
        2 => new.it_value.tv_nsec = 1_000_000_000,
        _ => new.it_value.tv_nsec = 1,
    }
    new.it_interval.tv_sec = rng.pick(&[0, 0, 1000]);
    let flags = rng.pick(&[0, 0, 0, libc::TFD_TIMER_ABSTIME, 8]);
    let r = sys!(
        libc::SYS_timerfd_settime,
        a,
        flags,
        &new as *const _,
        &mut old as *mut _
    );
    if r == 0 && what == 3 {
        let mut poll = libc::pollfd {
            fd: a,
            events: libc::POLLIN,
            revents: 0,
        };
        sys!(libc::SYS_poll, &mut poll as *mut _, 1, 1000);
    }
    format!(
        "settime {a} {what} {} {flags} = {} {:?}",
        new.it_interval.tv_sec,
        shown(r),
        kind(&old)
    )
}

/// A child works on what it has inherited; what it saw comes back in its status.
fn in_a_child(rng: &mut Rng) -> String {
    let status = wait(child(|| {
        let text = match rng.below(4) {
            0 => copies(rng),
            1 => epoll(rng),
            _ => data(rng),
        };
        exit((digest(text.as_bytes()) & 0x3f) as i32);
    }));
    format!("child: {status:#x}")
}

fn epoll(rng: &mut Rng) -> String {
    let (a, b) = (any(rng), any(rng));
    if rng.once_in(3) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let n = sys!(libc::SYS_epoll_wait, a, events.as_mut_ptr(), 16, 0);
        let mut seen: Vec<(u64, u32)> = events
            .iter()
            .take(n.max(0) as usize)
            .map(|e| ({ e.u64 }, { e.events }))
            .collect();
        seen.sort_unstable();
        return format!("epoll_wait {a} = {} {seen:x?}", shown(n));
    }
    let op = rng.pick(&[1, 1, 1, 3, 2]);
    let flags = rng.flags(&[
        libc::EPOLLOUT,
        libc::EPOLLET,
        libc::EPOLLONESHOT,
        libc::EPOLLRDHUP,
        libc::EPOLLPRI,
    ]);
    let mut event = libc::epoll_event {
        events: (flags | libc::EPOLLIN) as u32,
        u64: rng.below(100),
    };
    let r = sys!(libc::SYS_epoll_ctl, a, op, b, &mut event as *mut _);
    format!("epoll_ctl {a} {op} {b} {flags:#x} = {}", shown(r))
}

impl World for Descriptors {
    fn new(_rng: &mut Rng) -> Descriptors {
        disposition(libc::SIGPIPE, libc::SIG_IGN);
        let mut pair = [-1i32; 2];
        sys!(libc::SYS_pipe2, pair.as_mut_ptr(), libc::O_NONBLOCK);
        sys!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            0,
            pair.as_mut_ptr()
        );
        sys!(libc::SYS_epoll_create1, 0);
        Descriptors
    }

    fn step(&mut self, rng: &mut Rng) -> String {
        let text = match rng.below(23) {
            0..5 => make(rng),
            5..8 => copies(rng),
            8..14 => data(rng),
            14..16 => state(rng),
            20 | 21 => timer(rng),
            22 => in_a_child(rng),
            _ => epoll(rng),
        };
        format!("{text}; {}", ready())
    }

    fn end(&mut self) -> String {
        ready()
    }
}
