//! unix(7) and socket(7): options, ancillary data, addresses and the MSG_* flags of Unix sockets.

use super::socket::{address, bind, connect, pair, receive as recv, send, socket};
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("unix": types_and_protocols, buffer_sizes, flags_are_kept, option_errors, timeouts_round_trip, receive_timeout, send_timeout,
    low_water_mark, linger, peer_cred_of_pair, peer_cred_of_connection, peer_groups, peer_pidfd, pass_cred, pass_cred_inherited,
    credentials_are_checked, pass_pidfd, rights, rights_many, rights_cut, rights_cloexec, rights_errors, rights_peek, rights_and_data,
    rights_after_exit, abstract_names, abstract_is_binary, autobind, path_names, path_errors, bind_twice, rebind_after_unlink,
    connect_errors, connect_permission, datagram_peers, datagram_filter, datagram_reconnect, datagram_limits, datagram_truncated,
    seqpacket_bounds, seqpacket_eof, shutdown_kinds, shutdown_errors, backlog, accept_flags, accept_errors, names_of_ends, peek, peek_offset,
    wait_all, dont_wait, no_signal, trunc_flag, out_of_band, zero_length, send_errors, receive_errors, multiple_messages,
    receive_with_timeout, wait_for_one, vectors_limits, ioctl_queues, poll_states, epoll_hang_up, error_after_reset, timestamps, cookies,
    listed_in_proc, stat_of_sockets, socket_pair_errors, msg_more, long_control, blocked_writer_ends, connect_refused_later,
    reset_is_kept_for_a_read, end_of_datagrams, packets_waiting, empty_packet_is_no_loss, datagrams_go_with_their_sender);

fn listen(fd: i32, backlog: i32) -> i64 {
    sys!(libc::SYS_listen, fd, backlog)
}

fn accept(fd: i32) -> i64 {
    sys!(libc::SYS_accept, fd, 0, 0)
}

fn name(fd: i32, call: i64) -> (i64, Vec<u8>) {
    let mut buf = [0xffu8; 128];
    let mut len = 128u32;
    let r = sys!(call, fd, buf.as_mut_ptr(), &mut len as *mut u32);
    (r, buf[..len as usize].to_vec())
}

fn own_name(fd: i32) -> Vec<u8> {
    let (r, name) = name(fd, libc::SYS_getsockname);
    ok!(r);
    name
}

fn get(fd: i32, option: i32) -> i64 {
    let (mut value, mut len) = (0i32, 4u32);
    let r = sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, &mut value as *mut i32, &mut len as *mut u32);
    if r < 0 { r } else { value.into() }
}

fn set(fd: i32, option: i32, value: i32) -> i64 {
    sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &value as *const i32, 4)
}

/// A received message: result, data, control bytes, flags.
struct Message {
    data: Vec<u8>,
    control: Vec<u8>,
    flags: i32,
}

fn recvmsg(fd: i32, len: usize, room: usize, flags: i32) -> Message {
    let mut data = vec![0u8; len];
    let mut control = vec![0u64; room.div_ceil(8)];
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: len };
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = room;
    let n = sys!(libc::SYS_recvmsg, fd, &mut header as *mut _, flags);
    data.truncate(n.clamp(0, len as i64) as usize);
    let used = if n < 0 { 0 } else { header.msg_controllen };
    let control = control.iter().flat_map(|w| w.to_ne_bytes()).take(used).collect();
    Message { data, control, flags: header.msg_flags }
}

/// Control messages: level, type, data.
fn parse(control: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at + 16 <= control.len() {
        let len = usize::from_ne_bytes(control[at..at + 8].try_into().expect("eight bytes"));
        let word = |o: usize| i32::from_ne_bytes(control[o..o + 4].try_into().expect("four bytes"));
        check!(len >= 16 && at + len <= control.len());
        all.push((word(at + 8), word(at + 12), control[at + 16..at + len].to_vec()));
        at += len.next_multiple_of(8);
    }
    all
}

fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(16 + data.len()).to_ne_bytes());
    out.extend_from_slice(&level.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

fn sendmsg(fd: i32, data: &[u8], control: &[u8], flags: i32) -> i64 {
    let mut iov = libc::iovec { iov_base: data.as_ptr() as *mut _, iov_len: data.len() };
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_ptr() as *mut _;
    header.msg_controllen = control.len();
    sys!(libc::SYS_sendmsg, fd, &header as *const _, flags)
}

fn rights_of(fds: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
    control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &bytes)
}

fn numbers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().expect("four bytes"))).collect()
}

/// The descriptors in a message.
fn received(message: &Message) -> Vec<i32> {
    let rights = parse(&message.control).into_iter().find(|m| m.1 == libc::SCM_RIGHTS);
    rights.map(|m| numbers(&m.2)).unwrap_or_default()
}

fn unique(tag: &str) -> Vec<u8> {
    format!("@case-{tag}-{}", getpid()).into_bytes()
}

fn types_and_protocols() {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let fd = socket(kind);
        eq!(get(fd, libc::SO_TYPE), i64::from(kind));
        eq!(get(fd, libc::SO_DOMAIN), i64::from(libc::AF_UNIX));
        eq!(get(fd, libc::SO_PROTOCOL), 0);
        eq!(get(fd, libc::SO_ACCEPTCONN), 0);
        eq!(get(fd, libc::SO_ERROR), 0);
    }
    eq!(get(ok!(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_RAW, 0)) as i32, libc::SO_TYPE), i64::from(libc::SOCK_DGRAM));
    ok!(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 1));
    err!(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 2), libc::EPROTONOSUPPORT);
    err!(sys!(libc::SYS_socket, libc::AF_UNIX, 9, 0), libc::ESOCKTNOSUPPORT);
    err!(sys!(libc::SYS_socket, libc::AF_UNIX, 11, 0), libc::EINVAL);
    err!(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | 0x100, 0), libc::EINVAL);
    err!(sys!(libc::SYS_socket, 99, libc::SOCK_STREAM, 0), libc::EAFNOSUPPORT);
    err!(sys!(libc::SYS_socket, -1, libc::SOCK_STREAM, 0), libc::EAFNOSUPPORT);
}

fn buffer_sizes() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    check!(get(a, libc::SO_SNDBUF) >= 4096);
    ok!(set(a, libc::SO_SNDBUF, 10_000));
    eq!(get(a, libc::SO_SNDBUF), 20_000);
    ok!(set(a, libc::SO_RCVBUF, 12_000));
    eq!(get(a, libc::SO_RCVBUF), 24_000);
    // Never too small, never beyond the system's limit.
    ok!(set(a, libc::SO_SNDBUF, 1));
    let least = get(a, libc::SO_SNDBUF);
    check!((2048..=8192).contains(&least), "{least}");
    let max: i64 = text("/proc/sys/net/core/wmem_max").trim().parse().expect("a number");
    ok!(set(a, libc::SO_SNDBUF, i32::MAX));
    eq!(get(a, libc::SO_SNDBUF), 2 * max);
    // A small buffer holds less.
    let (a, b) = pair(libc::SOCK_STREAM);
    ok!(set(a, libc::SO_SNDBUF, 8192));
    let mut sent = 0;
    loop {
        match send(a, &[0; 1024], libc::MSG_DONTWAIT) {
            n if n > 0 => sent += n,
            n => {
                err!(n, libc::EAGAIN);
                break;
            }
        }
    }
    check!((2048..=40_000).contains(&sent), "{sent}");
    close(b);
}

fn flags_are_kept() {
    let fd = socket(libc::SOCK_STREAM);
    for option in [libc::SO_REUSEADDR, libc::SO_KEEPALIVE, libc::SO_BROADCAST, libc::SO_OOBINLINE, libc::SO_DONTROUTE, libc::SO_PASSCRED] {
        eq!(get(fd, option), 0);
        let r = set(fd, option, 5);
        if r == 0 {
            eq!(get(fd, option), 1);
            ok!(set(fd, option, 0));
            eq!(get(fd, option), 0);
        }
    }
    ok!(set(fd, libc::SO_PRIORITY, 3));
    eq!(get(fd, libc::SO_PRIORITY), 3);
}

fn option_errors() {
    let fd = socket(libc::SOCK_STREAM);
    let value = 1i32;
    let p = &value as *const i32;
    err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, p, 3), libc::EINVAL);
    err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, BAD, 4), libc::EFAULT);
    err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, 9999, p, 4), libc::ENOPROTOOPT);
    err!(sys!(libc::SYS_setsockopt, fd, 77, 1, p, 4), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_setsockopt, 999, libc::SOL_SOCKET, libc::SO_REUSEADDR, p, 4), libc::EBADF);
    let (r, _w) = pipe();
    err!(sys!(libc::SYS_setsockopt, r, libc::SOL_SOCKET, libc::SO_REUSEADDR, p, 4), libc::ENOTSOCK);
    err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, p, -1), libc::EINVAL);
    let (mut out, mut len) = (0i32, 4u32);
    let (o, l) = (&mut out as *mut i32, &mut len as *mut u32);
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, 9999, o, l), libc::ENOPROTOOPT);
    err!(sys!(libc::SYS_getsockopt, fd, 77, 1, o, l), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, BAD, l), libc::EFAULT);
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, o, BAD), libc::EFAULT);
    let mut negative = -1i32;
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, o, &mut negative as *mut i32), libc::EINVAL);
    // A short buffer gets what fits; a long one says how much there is.
    let mut short = [0xffu8; 4];
    let mut len = 2u32;
    ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, short.as_mut_ptr(), &mut len as *mut u32));
    eq!((len, short), (2, [libc::SOCK_STREAM as u8, 0, 0xff, 0xff]));
    let mut long = [0u8; 40];
    let mut len = 40u32;
    ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, long.as_mut_ptr(), &mut len as *mut u32));
    eq!(len, 4);
    err!(set(fd, libc::SO_TYPE, 1), libc::ENOPROTOOPT);
    err!(set(fd, libc::SO_ERROR, 1), libc::ENOPROTOOPT);
}

fn set_time(fd: i32, option: i32, sec: i64, usec: i64) -> i64 {
    let time = [sec, usec];
    sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, time.as_ptr(), 16)
}

fn timeouts_round_trip() {
    let fd = socket(libc::SOCK_STREAM);
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        ok!(set_time(fd, option, 3, 500_000));
        let (mut time, mut len) = ([0i64; 2], 16u32);
        ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, time.as_mut_ptr(), &mut len as *mut u32));
        eq!((time, len), ([3, 500_000], 16));
        err!(set_time(fd, option, 0, 1_000_000), libc::EDOM);
        err!(set_time(fd, option, 0, -1), libc::EDOM);
        err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, time.as_ptr(), 8), libc::EINVAL);
        // A negative time does not wait at all.
        ok!(set_time(fd, option, 0, 0));
    }
}

fn receive_timeout() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    ok!(set_time(a, libc::SO_RCVTIMEO, 0, 20_000));
    let start = now();
    err!(recv(a, 10, 0).0, libc::EAGAIN);
    check!(now() - start >= 19_000_000);
    err!(interrupted(libc::SIGUSR1, libc::SA_RESTART, || {
        ok!(set_time(a, libc::SO_RCVTIMEO, 10, 0));
        recv(a, 10, 0).0
    }), libc::EINTR);
}

fn send_timeout() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    ok!(set_time(a, libc::SO_SNDTIMEO, 0, 20_000));
    while send(a, &[0; 65536], libc::MSG_DONTWAIT) > 0 {}
    err!(send(a, b"x", 0), libc::EAGAIN);
}

fn low_water_mark() {
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(get(a, libc::SO_RCVLOWAT), 1);
    ok!(set(a, libc::SO_RCVLOWAT, 5));
    eq!(get(a, libc::SO_RCVLOWAT), 5);
    let pid = child(|| {
        send(b, b"ab", 0);
        sleep_ms(30);
        send(b, b"cde", 0);
    });
    eq!(recv(a, 100, 0).1, b"abcde");
    reap(pid);
    eq!(get(a, libc::SO_SNDLOWAT), 1);
    err!(set(a, libc::SO_SNDLOWAT, 5), libc::ENOPROTOOPT);
}

fn linger() {
    let fd = socket(libc::SOCK_STREAM);
    let value = [1i32, 7];
    ok!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, value.as_ptr(), 8));
    let (mut got, mut len) = ([0i32; 2], 8u32);
    ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, got.as_mut_ptr(), &mut len as *mut u32));
    eq!((got, len), ([1, 7], 8));
    err!(sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, value.as_ptr(), 4), libc::EINVAL);
}

fn peer_cred(fd: i32) -> [u32; 3] {
    let (mut cred, mut len) = ([7u32; 3], 12u32);
    ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_PEERCRED, cred.as_mut_ptr(), &mut len as *mut u32));
    cred
}

fn own_cred() -> [u32; 3] {
    [getpid() as u32, sys!(libc::SYS_geteuid) as u32, sys!(libc::SYS_getegid) as u32]
}

fn peer_cred_of_pair() {
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!((peer_cred(a), peer_cred(b)), (own_cred(), own_cred()));
    let own = own_cred();
    // As it was when the pair was made.
    in_child(|| eq!(peer_cred(a), own));
    eq!(peer_cred(socket(libc::SOCK_STREAM)), [0, u32::MAX, u32::MAX]);
}

fn peer_cred_of_connection() {
    let listener = socket(libc::SOCK_STREAM);
    let at = unique("peercred");
    ok!(bind(listener, &at));
    ok!(listen(listener, 5));
    let parent = own_cred();
    let (r, w) = pipe();
    let pid = child(|| {
        let fd = socket(libc::SOCK_STREAM);
        ok!(connect(fd, &at));
        eq!(peer_cred(fd), parent);
        read(r, 1);
    });
    let fd = ok!(accept(listener)) as i32;
    eq!(peer_cred(fd)[0], pid as u32);
    eq!(peer_cred(fd)[1..], parent[1..]);
    write(w, b"x");
    reap(pid);
}

fn peer_groups() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    let count = ok!(sys!(libc::SYS_getgroups, 0, 0)) as usize;
    let (mut groups, mut len) = ([0u32; 64], 256u32);
    ok!(sys!(libc::SYS_getsockopt, a, libc::SOL_SOCKET, 59, groups.as_mut_ptr(), &mut len as *mut u32));
    eq!(len as usize, 4 * count);
    if count > 0 {
        let mut none = 0u32;
        err!(sys!(libc::SYS_getsockopt, a, libc::SOL_SOCKET, 59, groups.as_mut_ptr(), &mut none as *mut u32), libc::ERANGE);
    }
    let alone = socket(libc::SOCK_STREAM);
    let mut len = 256u32;
    err!(sys!(libc::SYS_getsockopt, alone, libc::SOL_SOCKET, 59, groups.as_mut_ptr(), &mut len as *mut u32), libc::ENODATA);
}

fn peer_pidfd() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    let fd = get(a, 77);
    if fd == -i64::from(libc::ENOPROTOOPT) {
        skip("no SO_PEERPIDFD");
    }
    ok!(fd);
    let info = text(&format!("/proc/self/fdinfo/{fd}"));
    check!(info.contains(&format!("Pid:\t{}\n", getpid())), "{info}");
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
    err!(get(socket(libc::SOCK_STREAM), 77), libc::ENODATA);
}

fn cred_in(message: &Message) -> Option<Vec<i32>> {
    parse(&message.control).into_iter().find(|m| m.1 == libc::SCM_CREDENTIALS).map(|m| numbers(&m.2))
}

fn pass_cred() {
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"before", 0);
    check!(cred_in(&recvmsg(b, 100, 100, 0)).is_none());
    ok!(set(b, libc::SO_PASSCRED, 1));
    send(a, b"after", 0);
    let got = recvmsg(b, 100, 100, 0);
    eq!(got.data, b"after");
    eq!(cred_in(&got), Some(own_cred().map(|v| v as i32).to_vec()));
    let pid = child(|| {
        send(a, b"child", 0);
    });
    reap(pid);
    eq!(cred_in(&recvmsg(b, 100, 100, 0)).map(|c| c[0]), Some(pid));
    // Without room for it, it is cut.
    send(a, b"cut", 0);
    let got = recvmsg(b, 100, 0, 0);
    check!(got.flags & libc::MSG_CTRUNC != 0);
}

fn pass_cred_inherited() {
    let listener = socket(libc::SOCK_STREAM);
    let at = unique("passcred");
    ok!(bind(listener, &at));
    ok!(listen(listener, 5));
    ok!(set(listener, libc::SO_PASSCRED, 1));
    let client = socket(libc::SOCK_STREAM);
    ok!(connect(client, &at));
    let fd = ok!(accept(listener)) as i32;
    eq!(get(fd, libc::SO_PASSCRED), 1);
    // Binding itself: a datagram socket that passes credentials gets a name when it sends.
    let d = socket(libc::SOCK_DGRAM);
    let at = unique("passcred2");
    ok!(bind(d, &at));
    let e = socket(libc::SOCK_DGRAM);
    ok!(set(e, libc::SO_PASSCRED, 1));
    ok!(connect(e, &at));
    eq!(own_name(e).len(), 8);
}

fn credentials_are_checked() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    ok!(set(b, libc::SO_PASSCRED, 1));
    let own = own_cred();
    let bytes = |cred: [u32; 3]| -> Vec<u8> { cred.iter().flat_map(|v| v.to_ne_bytes()).collect() };
    let with = |cred: [u32; 3]| control(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &bytes(cred));
    eq!(sendmsg(a, b"x", &with(own), 0), 1);
    eq!(cred_in(&recvmsg(b, 10, 100, 0)), Some(own.map(|v| v as i32).to_vec()));
    in_child(|| {
        if is_root() {
            // The privileged may claim what is.
            let parent = sys!(libc::SYS_getppid) as u32;
            eq!(sendmsg(a, b"x", &with([parent, 77, 78]), 0), 1);
            eq!(cred_in(&recvmsg(b, 10, 100, 0)), Some(vec![parent as i32, 77, 78]));
            err!(sendmsg(a, b"x", &with([0x7fff_fff0, 0, 0]), 0), libc::ESRCH);
            drop_root();
        }
        let now = own_cred();
        err!(sendmsg(a, b"x", &with([now[0], 0, now[2]]), 0), libc::EPERM);
        err!(sendmsg(a, b"x", &with([1, now[1], now[2]]), 0), libc::EPERM);
        eq!(sendmsg(a, b"x", &with(now), 0), 1);
    });
    let short = control(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[0; 8]);
    err!(sendmsg(a, b"x", &short, 0), libc::EINVAL);
}

fn pass_pidfd() {
    let (a, b) = pair(libc::SOCK_STREAM);
    if set(b, 76, 1) < 0 {
        skip("no SO_PASSPIDFD");
    }
    eq!(get(b, 76), 1);
    send(a, b"x", 0);
    let got = recvmsg(b, 10, 100, 0);
    let pidfd = parse(&got.control).into_iter().find(|m| m.1 == 4).map(|m| numbers(&m.2)[0]);
    let Some(pidfd) = pidfd else { fail(file!(), line!(), format_args!("no descriptor came")) };
    check!(text(&format!("/proc/self/fdinfo/{pidfd}")).contains(&format!("Pid:\t{}\n", getpid())));
}

fn rights() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let f = new_file("f", b"content");
    eq!(sendmsg(a, b"x", &rights_of(&[f]), 0), 1);
    close(f);
    let got = recvmsg(b, 10, 100, 0);
    let fds = received(&got);
    eq!(fds.len(), 1);
    eq!(read(fds[0], 100), b"content");
    eq!(sys!(libc::SYS_fcntl, fds[0], libc::F_GETFD), 0);
    // The same description: the position is shared.
    let (c, d) = pair(libc::SOCK_DGRAM);
    eq!(sendmsg(c, b"y", &rights_of(&[fds[0]]), 0), 1);
    let again = received(&recvmsg(d, 10, 100, 0))[0];
    ok!(sys!(libc::SYS_lseek, again, 3, libc::SEEK_SET));
    eq!(read(fds[0], 100), b"tent");
}

fn rights_many() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, _w) = pipe();
    let many = vec![r; 253];
    eq!(sendmsg(a, b"x", &rights_of(&many), 0), 1);
    let got = recvmsg(b, 10, 16 + 253 * 4 + 4, 0);
    eq!(received(&got).len(), 253);
    err!(sendmsg(a, b"x", &rights_of(&vec![r; 254]), 0), libc::EINVAL);
    // Two lists in one message are one.
    let two = [rights_of(&[r]), rights_of(&[r, r])].concat();
    eq!(sendmsg(a, b"x", &two, 0), 1);
    eq!(received(&recvmsg(b, 10, 200, 0)).len(), 3);
}

fn rights_cut() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, w) = pipe();
    eq!(sendmsg(a, b"x", &rights_of(&[r, w, r]), 0), 1);
    let got = recvmsg(b, 10, 16 + 8, 0);
    let fds = received(&got);
    eq!(fds.len(), 2);
    check!(got.flags & libc::MSG_CTRUNC != 0);
    // Without any room they are closed.
    eq!(sendmsg(a, b"x", &rights_of(&[w]), 0), 1);
    let got = recvmsg(b, 10, 0, 0);
    check!(got.flags & libc::MSG_CTRUNC != 0);
    for fd in [w, fds[0], fds[1]] {
        close(fd);
    }
    eq!(read(r, 1), b"");
}

fn rights_cloexec() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, _w) = pipe();
    eq!(sendmsg(a, b"x", &rights_of(&[r]), 0), 1);
    let got = recvmsg(b, 10, 100, libc::MSG_CMSG_CLOEXEC);
    eq!(sys!(libc::SYS_fcntl, received(&got)[0], libc::F_GETFD), 1);
}

fn rights_errors() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(sendmsg(a, b"x", &rights_of(&[999]), 0), libc::EBADF);
    err!(sendmsg(a, b"x", &rights_of(&[-1]), 0), libc::EBADF);
    let mut bad = rights_of(&[a]);
    bad[..8].copy_from_slice(&8usize.to_ne_bytes());
    err!(sendmsg(a, b"x", &bad, 0), libc::EINVAL);
    let mut bad = rights_of(&[a]);
    bad[..8].copy_from_slice(&1000usize.to_ne_bytes());
    err!(sendmsg(a, b"x", &bad, 0), libc::EINVAL);
    err!(sendmsg(a, b"x", &control(libc::SOL_SOCKET, 99, &[0; 4]), 0), libc::EINVAL);
    // What is meant for other protocols is not looked at.
    eq!(sendmsg(a, b"x", &control(77, 1, &[0; 4]), 0), 1);
    let mut header: libc::msghdr = zeroed();
    header.msg_control = BAD as *mut _;
    header.msg_controllen = 64;
    err!(sys!(libc::SYS_sendmsg, a, &header as *const _, 0), libc::EFAULT);
}

fn rights_peek() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let f = new_file("f", b"content");
    eq!(sendmsg(a, b"x", &rights_of(&[f]), 0), 1);
    let first = received(&recvmsg(b, 10, 100, libc::MSG_PEEK));
    let second = received(&recvmsg(b, 10, 100, 0));
    eq!((first.len(), second.len()), (1, 1));
    check!(first[0] != second[0]);
    eq!(read(second[0], 3), b"con");
    eq!(read(first[0], 10), b"tent");
}

fn rights_and_data() {
    // Descriptors come with the bytes they were sent with.
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, _w) = pipe();
    send(a, b"plain", 0);
    eq!(sendmsg(a, b"with", &rights_of(&[r]), 0), 4);
    send(a, b"more", 0);
    let got = recvmsg(b, 100, 100, 0);
    eq!((got.data.as_slice(), received(&got).len()), (&b"plainwith"[..], 1));
    eq!(recvmsg(b, 100, 100, 0).data, b"more");
}

fn rights_after_exit() {
    let (a, b) = pair(libc::SOCK_STREAM);
    in_child(|| {
        let f = new_file("f", b"from the child");
        eq!(sendmsg(a, b"x", &rights_of(&[f]), 0), 1);
    });
    close(a);
    let fds = received(&recvmsg(b, 10, 100, 0));
    eq!(read(fds[0], 100), b"from the child");
}

fn abstract_names() {
    let at = unique("abstract");
    let a = socket(libc::SOCK_STREAM);
    ok!(bind(a, &at));
    let got = own_name(a);
    eq!(got.len(), 2 + at.len());
    eq!((got[2], &got[3..]), (0, &at[1..]));
    let b = socket(libc::SOCK_STREAM);
    err!(bind(b, &at), libc::EADDRINUSE);
    err!(connect(b, &at), libc::ECONNREFUSED);
    close(a);
    ok!(bind(b, &at));
}

fn abstract_is_binary() {
    let mut at = unique("nul");
    at.extend_from_slice(b"\0tail\0");
    let a = socket(libc::SOCK_DGRAM);
    ok!(bind(a, &at));
    eq!(&own_name(a)[3..], &at[1..]);
    let b = socket(libc::SOCK_DGRAM);
    err!(connect(b, &at[..at.len() - 1]), libc::ECONNREFUSED);
    ok!(connect(b, &at));
}

fn autobind() {
    let a = socket(libc::SOCK_DGRAM);
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    ok!(sys!(libc::SYS_bind, a, family.as_ptr(), 2));
    let name = own_name(a);
    eq!((name.len(), name[2]), (8, 0));
    check!(name[3..].iter().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
    let b = socket(libc::SOCK_DGRAM);
    ok!(sys!(libc::SYS_bind, b, family.as_ptr(), 2));
    check!(own_name(b) != name);
}

fn path_names() {
    let a = socket(libc::SOCK_STREAM);
    ok!(bind(a, b"sock\0"));
    eq!(own_name(a), [&(libc::AF_UNIX as u16).to_ne_bytes()[..], b"sock\0"].concat());
    let st = stat("sock").1;
    eq!(st.st_mode & libc::S_IFMT, libc::S_IFSOCK);
    eq!(st.st_mode & 0o777, 0o755);
    ok!(listen(a, 1));
    let b = socket(libc::SOCK_STREAM);
    ok!(connect(b, b"sock"));
    let c = socket(libc::SOCK_STREAM);
    ok!(symlink("sock", "link"));
    ok!(connect(c, b"./link"));
    // Without its name it cannot be found, but goes on.
    ok!(unlink("sock"));
    err!(connect(socket(libc::SOCK_STREAM), b"sock"), libc::ENOENT);
    ok!(accept(a));
    err!(open("link", libc::O_RDWR, 0), libc::ENOENT);
}

fn path_errors() {
    let a = socket(libc::SOCK_STREAM);
    file("f", b"");
    err!(bind(a, b"f"), libc::EADDRINUSE);
    err!(bind(a, b"missing/sock"), libc::ENOENT);
    err!(bind(a, b"f/sock"), libc::ENOTDIR);
    let (address, _) = address(b"x");
    err!(sys!(libc::SYS_bind, a, &address as *const _, 200), libc::EINVAL);
    err!(sys!(libc::SYS_bind, a, &address as *const _, 1), libc::EINVAL);
    err!(sys!(libc::SYS_bind, a, BAD, 10), libc::EFAULT);
    err!(sys!(libc::SYS_bind, a, &address as *const _, -1), libc::EINVAL);
    let wrong = [libc::AF_INET as u16, 0, 0, 0, 0, 0, 0, 0];
    err!(sys!(libc::SYS_bind, a, wrong.as_ptr(), 16), libc::EINVAL);
    err!(connect(a, b"f"), libc::ECONNREFUSED);
    // The whole of the path field, without NUL.
    let long = [b'p'; 108];
    ok!(bind(a, &long));
    eq!(stat(&"p".repeat(108)).0, 0);
    err!(open(&"p".repeat(108), libc::O_RDONLY, 0), libc::ENXIO);
}

fn bind_twice() {
    let a = socket(libc::SOCK_STREAM);
    ok!(bind(a, &unique("one")));
    err!(bind(a, &unique("two")), libc::EINVAL);
    err!(bind(a, b"path"), libc::EINVAL);
    eq!(stat("path").0, -i64::from(libc::ENOENT));
}

fn rebind_after_unlink() {
    let a = socket(libc::SOCK_DGRAM);
    ok!(bind(a, b"sock"));
    err!(bind(socket(libc::SOCK_DGRAM), b"sock"), libc::EADDRINUSE);
    close(a);
    // The name outlives the socket.
    err!(connect(socket(libc::SOCK_DGRAM), b"sock"), libc::ECONNREFUSED);
    err!(bind(socket(libc::SOCK_DGRAM), b"sock"), libc::EADDRINUSE);
    ok!(unlink("sock"));
    ok!(bind(socket(libc::SOCK_DGRAM), b"sock"));
}

fn connect_errors() {
    let a = socket(libc::SOCK_STREAM);
    err!(connect(a, b"missing"), libc::ENOENT);
    err!(connect(a, &unique("nobody")), libc::ECONNREFUSED);
    let at = unique("kind");
    let d = socket(libc::SOCK_DGRAM);
    ok!(bind(d, &at));
    // Each kind has abstract names of its own.
    err!(connect(a, &at), libc::ECONNREFUSED);
    let d = socket(libc::SOCK_DGRAM);
    ok!(bind(d, b"datagram"));
    err!(connect(a, b"datagram"), libc::EPROTOTYPE);
    let s = socket(libc::SOCK_STREAM);
    ok!(bind(s, &at));
    err!(connect(a, &at), libc::ECONNREFUSED);
    ok!(listen(s, 1));
    ok!(connect(a, &at));
    err!(connect(a, &at), libc::EISCONN);
    err!(connect(s, &at), libc::EINVAL);
    err!(sys!(libc::SYS_connect, a, BAD, 10), libc::EFAULT);
    err!(sys!(libc::SYS_connect, 999, BAD, 10), libc::EBADF);
}

fn connect_permission() {
    need_root();
    let a = socket(libc::SOCK_STREAM);
    ok!(bind(a, b"sock"));
    ok!(listen(a, 5));
    ok!(sys!(libc::SYS_chmod, c("sock").as_ptr(), 0o700));
    ok!(sys!(libc::SYS_chmod, c(".").as_ptr(), 0o755));
    in_child(|| {
        drop_root();
        err!(connect(socket(libc::SOCK_STREAM), b"sock"), libc::EACCES);
    });
    ok!(sys!(libc::SYS_chmod, c("sock").as_ptr(), 0o722));
    in_child(|| {
        drop_root();
        ok!(connect(socket(libc::SOCK_STREAM), b"sock"));
    });
}

fn sendto(fd: i32, data: &[u8], name: &[u8]) -> i64 {
    let (address, len) = address(name);
    sys!(libc::SYS_sendto, fd, data.as_ptr(), data.len(), 0, &address as *const _, len)
}

fn datagram_peers() {
    let (one, two) = (unique("one"), unique("two"));
    let (a, b) = (socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM));
    ok!(bind(a, &one));
    eq!(sendto(b, b"anonymous", &one), 9);
    let mut from = [0xffu8; 128];
    let mut len = 128u32;
    let mut buf = [0u8; 100];
    let mut receive = |from: &mut [u8; 128], len: &mut u32| {
        *len = 128;
        ok!(sys!(libc::SYS_recvfrom, a, buf.as_mut_ptr(), 100, 0, from.as_mut_ptr(), len as *mut u32))
    };
    eq!(receive(&mut from, &mut len), 9);
    eq!(len, 0);
    ok!(bind(b, &two));
    eq!(sendto(b, b"named", &one), 5);
    eq!(receive(&mut from, &mut len), 5);
    eq!(from[3..len as usize], two[1..]);
    err!(send(b, b"x", 0), libc::ENOTCONN);
    err!(sendto(b, b"x", &unique("nobody")), libc::ECONNREFUSED);
    err!(sendto(b, b"x", b"missing"), libc::ENOENT);
    let s = socket(libc::SOCK_STREAM);
    ok!(bind(s, &one));
    eq!(sendto(b, b"x", &one), 1);
    let s = socket(libc::SOCK_STREAM);
    ok!(bind(s, b"stream"));
    err!(sendto(b, b"x", b"stream"), libc::EPROTOTYPE);
}

fn datagram_filter() {
    // A connected socket takes datagrams from its peer only.
    let (one, two) = (unique("one"), unique("two"));
    let (a, b, other) = (socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM));
    ok!(bind(a, &one));
    ok!(bind(b, &two));
    ok!(connect(a, &two));
    err!(sendto(other, b"x", &one), libc::EPERM);
    err!(connect(other, &one), libc::EPERM);
    eq!(sendto(b, b"y", &one), 1);
    eq!(recv(a, 10, 0).1, b"y");
}

fn datagram_reconnect() {
    let (one, two) = (unique("one"), unique("two"));
    let (a, b, c) = (socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM));
    ok!(bind(a, &one));
    ok!(bind(b, &two));
    ok!(connect(c, &one));
    eq!(send(c, b"1", 0), 1);
    ok!(connect(c, &two));
    eq!(send(c, b"2", 0), 1);
    eq!((recv(a, 10, 0).1, recv(b, 10, 0).1), (b"1".to_vec(), b"2".to_vec()));
    let none = [libc::AF_UNSPEC as u16; 8];
    ok!(sys!(libc::SYS_connect, c, none.as_ptr(), 16));
    err!(send(c, b"3", 0), libc::ENOTCONN);
    ok!(connect(c, &one));
    close(a);
    err!(send(c, b"4", 0), libc::ECONNREFUSED);
    err!(send(c, b"4", 0), libc::ENOTCONN);
}

fn datagram_limits() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    let size = get(a, libc::SO_SNDBUF) as usize;
    err!(send(a, &vec![0; size + 1], 0), libc::EMSGSIZE);
    let mut count = 0;
    while send(a, b"x", libc::MSG_DONTWAIT) == 1 {
        count += 1;
    }
    check!(count >= 10, "{count}");
    err!(send(a, b"x", libc::MSG_DONTWAIT), libc::EAGAIN);
    let mut poll = libc::pollfd { fd: a, events: libc::POLLOUT, revents: 0 };
    sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0);
    for _ in 0..count {
        eq!(recv(b, 10, libc::MSG_DONTWAIT).1, b"x");
    }
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 1000), 1);
}

fn datagram_truncated() {
    for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let (a, b) = pair(kind);
        send(a, b"0123456789", 0);
        send(a, b"next", 0);
        let got = recvmsg(b, 4, 0, 0);
        eq!(got.data, b"0123");
        check!(got.flags & libc::MSG_TRUNC != 0);
        let got = recvmsg(b, 10, 0, 0);
        eq!(got.data, b"next");
        check!(got.flags & libc::MSG_TRUNC == 0);
    }
}

fn seqpacket_bounds() {
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    send(a, b"one", 0);
    send(a, b"two", 0);
    eq!(recv(b, 100, 0).1, b"one");
    eq!(recv(b, 100, 0).1, b"two");
    eq!(write(a, b"three"), 5);
    eq!(read(b, 2), b"th");
    err!(recv(b, 100, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    // An address is of no use here.
    eq!(sendto(a, b"x", &unique("nobody")), 1);
    eq!(recv(b, 10, 0).1, b"x");
    err!(send(socket(libc::SOCK_SEQPACKET), b"x", 0), libc::ENOTCONN);
}

fn seqpacket_eof() {
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    send(a, b"last", 0);
    close(a);
    eq!(recv(b, 100, 0).1, b"last");
    eq!(recv(b, 100, 0).0, 0);
    err!(send(b, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
}

fn shutdown(fd: i32, how: i32) -> i64 {
    sys!(libc::SYS_shutdown, fd, how)
}

fn shutdown_kinds() {
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"rest", 0);
    ok!(shutdown(a, libc::SHUT_WR));
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
    eq!(recv(b, 100, 0).1, b"rest");
    eq!(recv(b, 100, 0).0, 0);
    // The other direction still works.
    eq!(send(b, b"back", 0), 4);
    eq!(recv(a, 100, 0).1, b"back");
    ok!(shutdown(b, libc::SHUT_RDWR));
    eq!(recv(a, 100, 0).0, 0);
    let (a, b) = pair(libc::SOCK_STREAM);
    send(b, b"unread", 0);
    ok!(shutdown(a, libc::SHUT_RD));
    eq!(recv(a, 100, 0).1, b"unread");
    eq!(recv(a, 100, 0).0, 0);
    err!(send(b, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
}

fn shutdown_errors() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(shutdown(a, 3), libc::EINVAL);
    err!(shutdown(a, -1), libc::EINVAL);
    err!(shutdown(999, 0), libc::EBADF);
    let (r, _w) = pipe();
    err!(shutdown(r, 0), libc::ENOTSOCK);
    let alone = socket(libc::SOCK_STREAM);
    ok!(shutdown(alone, libc::SHUT_RDWR));
}

fn backlog() {
    let listener = socket(libc::SOCK_STREAM);
    let at = unique("backlog");
    ok!(bind(listener, &at));
    ok!(listen(listener, 1));
    let nonblocking = || socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let kept: Vec<i32> = (0..2).map(|_| nonblocking()).collect();
    kept.iter().for_each(|&fd| {
        ok!(connect(fd, &at));
    });
    err!(connect(nonblocking(), &at), libc::EAGAIN);
    let pid = child(|| {
        ok!(connect(socket(libc::SOCK_STREAM), &at));
    });
    sleep_ms(20);
    ok!(accept(listener));
    reap(pid);
}

fn accept_flags() {
    let listener = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let at = unique("flags");
    ok!(bind(listener, &at));
    ok!(listen(listener, 5));
    err!(accept(listener), libc::EAGAIN);
    for _ in 0..2 {
        let client = socket(libc::SOCK_STREAM);
        ok!(connect(client, &at));
    }
    // What the listener has is not inherited.
    let a = ok!(accept(listener));
    eq!(sys!(libc::SYS_fcntl, a, libc::F_GETFL) & i64::from(libc::O_NONBLOCK), 0);
    eq!(sys!(libc::SYS_fcntl, a, libc::F_GETFD), 0);
    let b = ok!(sys!(libc::SYS_accept4, listener, 0, 0, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC));
    check!(sys!(libc::SYS_fcntl, b, libc::F_GETFL) & i64::from(libc::O_NONBLOCK) != 0);
    eq!(sys!(libc::SYS_fcntl, b, libc::F_GETFD), 1);
    err!(sys!(libc::SYS_accept4, listener, 0, 0, 1), libc::EINVAL);
}

fn accept_errors() {
    let a = socket(libc::SOCK_STREAM);
    err!(accept(a), libc::EINVAL);
    err!(listen(a, 1), libc::EINVAL);
    err!(accept(socket(libc::SOCK_DGRAM)), libc::EOPNOTSUPP);
    err!(listen(socket(libc::SOCK_DGRAM), 1), libc::EOPNOTSUPP);
    err!(accept(999), libc::EBADF);
    let (r, _w) = pipe();
    err!(accept(r), libc::ENOTSOCK);
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(listen(a, 1), libc::EINVAL);
}

fn names_of_ends() {
    let listener = socket(libc::SOCK_STREAM);
    let at = unique("names");
    ok!(bind(listener, &at));
    ok!(listen(listener, 5));
    let client = socket(libc::SOCK_STREAM);
    ok!(connect(client, &at));
    let mut from = [0xffu8; 128];
    let mut len = 128u32;
    let server = ok!(sys!(libc::SYS_accept, listener, from.as_mut_ptr(), &mut len as *mut u32)) as i32;
    // The client has no name.
    eq!((len, from[0]), (2, 1));
    let peer = |fd| name(fd, libc::SYS_getpeername);
    eq!(own_name(server)[3..], at[1..]);
    eq!(peer(client).1[3..], at[1..]);
    eq!(peer(server).1.len(), 2);
    eq!(own_name(client).len(), 2);
    err!(peer(listener).0, libc::ENOTCONN);
    // A short buffer is filled, and the true length told.
    let mut short = [0xffu8; 8];
    let mut len = 5u32;
    ok!(sys!(libc::SYS_getsockname, server, short.as_mut_ptr(), &mut len as *mut u32));
    eq!((len as usize, short[5]), (2 + at.len(), 0xff));
    let mut negative = -1i32;
    err!(sys!(libc::SYS_getsockname, server, short.as_mut_ptr(), &mut negative as *mut i32), libc::EINVAL);
    err!(sys!(libc::SYS_getsockname, server, short.as_mut_ptr(), BAD), libc::EFAULT);
}

fn peek() {
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"hello", 0);
    eq!(recv(b, 3, libc::MSG_PEEK).1, b"hel");
    eq!(recv(b, 100, libc::MSG_PEEK).1, b"hello");
    eq!(recv(b, 100, 0).1, b"hello");
    err!(recv(b, 100, libc::MSG_PEEK | libc::MSG_DONTWAIT).0, libc::EAGAIN);
}

fn peek_offset() {
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(get(b, libc::SO_PEEK_OFF), -1);
    ok!(set(b, libc::SO_PEEK_OFF, 2));
    send(a, b"0123456789", 0);
    eq!(recv(b, 3, libc::MSG_PEEK).1, b"234");
    eq!(recv(b, 3, libc::MSG_PEEK).1, b"567");
    eq!(get(b, libc::SO_PEEK_OFF), 8);
    eq!(recv(b, 4, 0).1, b"0123");
    eq!(get(b, libc::SO_PEEK_OFF), 4);
    eq!(recv(b, 3, libc::MSG_PEEK).1, b"89");
    ok!(set(b, libc::SO_PEEK_OFF, -1));
    eq!(recv(b, 3, libc::MSG_PEEK).1, b"456");
}

fn wait_all() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let pid = child(|| {
        for part in ["ab", "cd", "ef"] {
            send(a, part.as_bytes(), 0);
            sleep_ms(5);
        }
    });
    eq!(recv(b, 6, libc::MSG_WAITALL).1, b"abcdef");
    reap(pid);
    send(a, b"short", 0);
    close(a);
    eq!(recv(b, 100, libc::MSG_WAITALL).1, b"short");
}

fn dont_wait() {
    let (a, b) = pair(libc::SOCK_STREAM);
    err!(recv(b, 10, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    while send(a, &[0; 10_000], libc::MSG_DONTWAIT) > 0 {}
    err!(send(a, &[0; 10_000], libc::MSG_DONTWAIT), libc::EAGAIN);
}

fn no_signal() {
    let (a, b) = pair(libc::SOCK_STREAM);
    close(b);
    catch(libc::SIGPIPE, 0);
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
    eq!(seen(), 0);
    err!(send(a, b"x", 0), libc::EPIPE);
    eq!(seen(), 1);
    err!(write(a, b"x"), libc::EPIPE);
    eq!(seen(), 2);
    // Packets raise none.
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    close(b);
    err!(send(a, b"x", 0), libc::EPIPE);
    eq!(seen(), 2);
}

fn trunc_flag() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    send(a, b"0123456789", 0);
    let (n, data) = recv(b, 4, libc::MSG_TRUNC | libc::MSG_PEEK);
    eq!((n, data.as_slice()), (10, &b"0123"[..]));
    eq!(recv(b, 4, libc::MSG_TRUNC).0, 10);
}

fn out_of_band() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let r = send(a, b"!", libc::MSG_OOB);
    if r == -i64::from(libc::EOPNOTSUPP) {
        skip("no out-of-band data");
    }
    eq!(r, 1);
    let mut poll = libc::pollfd { fd: b, events: libc::POLLPRI, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 1);
    send(a, b"normal", 0);
    eq!(recv(b, 10, libc::MSG_OOB).1, b"!");
    err!(recv(b, 10, libc::MSG_OOB).0, libc::EINVAL);
    eq!(recv(b, 100, 0).1, b"normal");
    // Of datagrams there is none.
    let (a, b) = pair(libc::SOCK_DGRAM);
    err!(send(a, b"!", libc::MSG_OOB), libc::EOPNOTSUPP);
    err!(recv(b, 1, libc::MSG_OOB).0, libc::EOPNOTSUPP);
}

fn zero_length() {
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(send(a, b"", 0), 0);
    err!(recv(b, 10, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    err!(recv(b, 0, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    send(a, b"x", 0);
    eq!(recv(b, 0, libc::MSG_DONTWAIT).0, 0);
    let (a, b) = pair(libc::SOCK_DGRAM);
    eq!(send(a, b"", 0), 0);
    eq!(recv(b, 10, libc::MSG_DONTWAIT).0, 0);
    err!(recv(b, 10, libc::MSG_DONTWAIT).0, libc::EAGAIN);
}

fn send_errors() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(sys!(libc::SYS_sendto, a, BAD, 10, 0, 0, 0), libc::EFAULT);
    err!(send(socket(libc::SOCK_STREAM), b"x", 0), libc::ENOTCONN);
    err!(sendto(a, b"x", &unique("nobody")), libc::EISCONN);
    err!(sendto(socket(libc::SOCK_STREAM), b"x", &unique("nobody")), libc::EOPNOTSUPP);
    err!(send(999, b"x", 0), libc::EBADF);
    let (r, _w) = pipe();
    err!(send(r, b"x", 0), libc::ENOTSOCK);
    err!(sys!(libc::SYS_sendmsg, a, BAD, 0), libc::EFAULT);
    let mut header: libc::msghdr = zeroed();
    header.msg_iovlen = 1025;
    err!(sys!(libc::SYS_sendmsg, a, &header as *const _, 0), libc::EMSGSIZE);
    let (a, _b) = pair(libc::SOCK_DGRAM);
    err!(sys!(libc::SYS_sendto, a, BAD, 10, 0, 0, 0), libc::EFAULT);
}

fn receive_errors() {
    let (a, b) = pair(libc::SOCK_STREAM);
    err!(recv(socket(libc::SOCK_STREAM), 10, 0).0, libc::EINVAL);
    err!(recv(socket(libc::SOCK_SEQPACKET), 10, 0).0, libc::ENOTCONN);
    err!(recv(999, 10, 0).0, libc::EBADF);
    let (r, _w) = pipe();
    err!(recv(r, 10, 0).0, libc::ENOTSOCK);
    send(a, b"x", 0);
    err!(sys!(libc::SYS_recvfrom, b, BAD, 10, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_recvmsg, b, BAD, 0), libc::EFAULT);
    let mut header: libc::msghdr = zeroed();
    header.msg_iovlen = 1025;
    err!(sys!(libc::SYS_recvmsg, b, &mut header as *mut _, 0), libc::EMSGSIZE);
}

/// Headers for sendmmsg and recvmmsg over these buffers.
fn many(buffers: &mut [Vec<u8>]) -> (Vec<libc::mmsghdr>, Vec<libc::iovec>) {
    let mut iov: Vec<libc::iovec> =
        buffers.iter_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect();
    let headers = iov
        .iter_mut()
        .map(|i| {
            let mut header: libc::mmsghdr = zeroed();
            header.msg_hdr.msg_iov = i;
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect();
    (headers, iov)
}

fn multiple_messages() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    let mut out: Vec<Vec<u8>> = [&b"one"[..], b"two", b"three"].iter().map(|d| d.to_vec()).collect();
    let (mut headers, _iov) = many(&mut out);
    eq!(sys!(libc::SYS_sendmmsg, a, headers.as_mut_ptr(), 3, 0), 3);
    eq!(headers.iter().map(|h| h.msg_len).collect::<Vec<_>>(), [3, 3, 5]);
    let mut into: Vec<Vec<u8>> = vec![vec![0; 10]; 5];
    let (mut headers, _iov) = many(&mut into);
    eq!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 5, libc::MSG_DONTWAIT, 0), 3);
    eq!(headers.iter().map(|h| h.msg_len).collect::<Vec<_>>(), [3, 3, 5, 0, 0]);
    eq!((&into[0][..3], &into[2][..5]), (&b"one"[..], &b"three"[..]));
    err!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 5, libc::MSG_DONTWAIT, 0), libc::EAGAIN);
    eq!(sys!(libc::SYS_sendmmsg, a, headers.as_mut_ptr(), 0, 0), 0);
    err!(sys!(libc::SYS_sendmmsg, 999, headers.as_mut_ptr(), 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_sendmmsg, a, BAD, 1, 0), libc::EFAULT);
}

fn receive_with_timeout() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    let mut into: Vec<Vec<u8>> = vec![vec![0; 10]; 3];
    let (mut headers, _iov) = many(&mut into);
    let bad = libc::timespec { tv_sec: 0, tv_nsec: -1 };
    err!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 3, 0, &bad as *const _), libc::EINVAL);
    err!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 3, 0, BAD), libc::EFAULT);
    // The time is looked at when a message has come.
    send(a, b"1", 0);
    let time = timespec_ms(0);
    eq!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 3, 0, &time as *const _), 1);
}

fn wait_for_one() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    let pid = child(|| {
        sleep_ms(20);
        send(a, b"1", 0);
    });
    let mut into: Vec<Vec<u8>> = vec![vec![0; 10]; 3];
    let (mut headers, _iov) = many(&mut into);
    eq!(sys!(libc::SYS_recvmmsg, b, headers.as_mut_ptr(), 3, libc::MSG_WAITFORONE, 0), 1);
    reap(pid);
}

fn vectors_limits() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let byte = *b"v";
    let iov = vec![libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 }; 1024];
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = iov.as_ptr() as *mut _;
    header.msg_iovlen = 1024;
    eq!(sys!(libc::SYS_sendmsg, a, &header as *const _, 0), 1024);
    eq!(recv(b, 2000, 0).1, vec![b'v'; 1024]);
    eq!(sys!(libc::SYS_writev, a, iov.as_ptr(), 3), 3);
    eq!(recv(b, 2000, 0).1, b"vvv");
}

fn ioctl_queues() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let queue = |fd: i32, request: u64| {
        let mut n = -1i32;
        ok!(sys!(libc::SYS_ioctl, fd, request, &mut n as *mut i32));
        n
    };
    const SIOCINQ: u64 = 0x541b;
    const SIOCOUTQ: u64 = 0x5411;
    eq!((queue(b, SIOCINQ), queue(a, SIOCOUTQ)), (0, 0));
    send(a, b"12345", 0);
    eq!(queue(b, SIOCINQ), 5);
    check!(queue(a, SIOCOUTQ) >= 5);
    eq!(queue(a, SIOCINQ), 0);
    recv(b, 2, 0);
    eq!(queue(b, SIOCINQ), 3);
    recv(b, 3, 0);
    eq!(queue(a, SIOCOUTQ), 0);
    let (a, b) = pair(libc::SOCK_DGRAM);
    send(a, b"123", 0);
    send(a, b"45", 0);
    eq!(queue(b, SIOCINQ), 3);
    let l = socket(libc::SOCK_STREAM);
    ok!(bind(l, &unique("listener")));
    ok!(listen(l, 1));
    let mut n = 0i32;
    err!(sys!(libc::SYS_ioctl, l, SIOCINQ, &mut n as *mut i32), libc::EINVAL);
}

fn poll_of(fd: i32) -> i16 {
    let mut poll = libc::pollfd { fd, events: 0x2fff & !libc::POLLERR, revents: 0 };
    ok!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0));
    poll.revents & !(libc::POLLWRNORM | libc::POLLRDNORM | libc::POLLWRBAND)
}

fn poll_states() {
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(poll_of(a), libc::POLLOUT);
    send(b, b"x", 0);
    eq!(poll_of(a), libc::POLLOUT | libc::POLLIN);
    ok!(shutdown(b, libc::SHUT_WR));
    eq!(poll_of(a), libc::POLLOUT | libc::POLLIN | libc::POLLRDHUP);
    close(b);
    eq!(poll_of(a) & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP), libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP);
    eq!(poll_of(socket(libc::SOCK_STREAM)), libc::POLLOUT | libc::POLLHUP);
    eq!(poll_of(socket(libc::SOCK_DGRAM)), libc::POLLOUT);
    let l = socket(libc::SOCK_STREAM);
    let at = unique("poll");
    ok!(bind(l, &at));
    ok!(listen(l, 1));
    eq!(poll_of(l), 0);
    ok!(connect(socket(libc::SOCK_STREAM), &at));
    eq!(poll_of(l), libc::POLLIN);
}

fn epoll_hang_up() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let ep = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32, u64: 1 };
    ok!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_ADD, a, &event as *const _));
    eq!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 0), 0);
    close(b);
    eq!(sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 1000), 1);
    eq!({ event.events } as i32 & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP),
        libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP);
}

fn error_after_reset() {
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"never read", 0);
    close(b);
    eq!(get(a, libc::SO_ERROR), i64::from(libc::ECONNRESET));
    eq!(get(a, libc::SO_ERROR), 0);
    eq!(recv(a, 10, 0).0, 0);
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"never read", 0);
    close(b);
    err!(recv(a, 10, 0).0, libc::ECONNRESET);
    eq!(recv(a, 10, 0).0, 0);
}

fn timestamps() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    ok!(set(b, libc::SO_TIMESTAMP, 1));
    eq!(get(b, libc::SO_TIMESTAMP), 1);
    ok!(set(b, libc::SO_TIMESTAMP, 0));
    ok!(set(b, libc::SO_TIMESTAMPNS, 1));
    eq!(get(b, libc::SO_TIMESTAMPNS), 1);
    send(a, b"x", 0);
    let messages = parse(&recvmsg(b, 10, 100, 0).control);
    eq!(messages.len(), 1);
    eq!((messages[0].0, messages[0].1, messages[0].2.len()), (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, 16));
    let sec = i64::from_ne_bytes(messages[0].2[..8].try_into().expect("eight bytes"));
    let mut time: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &mut time as *mut _));
    check!((sec - time.tv_sec).abs() < 100, "{sec}");
    ok!(set(b, libc::SO_TIMESTAMPNS, 0));
    send(a, b"x", 0);
    check!(recvmsg(b, 10, 100, 0).control.is_empty());
}

fn cookies() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let cookie = |fd: i32| {
        let (mut value, mut len) = (0u64, 8u32);
        ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, 57, &mut value as *mut u64, &mut len as *mut u32));
        value
    };
    check!(cookie(a) != 0 && cookie(a) == cookie(a) && cookie(a) != cookie(b));
}

fn listed_in_proc() {
    let l = socket(libc::SOCK_STREAM);
    let at = unique("listed");
    ok!(bind(l, &at));
    ok!(listen(l, 1));
    ok!(bind(socket(libc::SOCK_DGRAM), b"by-path"));
    let table = text("/proc/net/unix");
    let find = |name: &str| table.lines().find(|l| l.ends_with(name)).unwrap_or_default().to_string();
    let name = format!("@{}", String::from_utf8_lossy(&at[1..]));
    let line = find(&name);
    let fields: Vec<&str> = line.split_whitespace().collect();
    eq!(fields.len(), 8);
    eq!((fields[2], fields[3], fields[4], fields[5]), ("00000000", "00010000", "0001", "01"));
    eq!(fields[6], fstat(l).st_ino.to_string());
    check!(find("by-path").contains(" 0002 "));
}

fn stat_of_sockets() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let st = fstat(a);
    eq!((st.st_mode, st.st_size), (libc::S_IFSOCK | 0o777, 0));
    check!(st.st_ino != fstat(b).st_ino);
    let link = std::fs::read_link(format!("/proc/self/fd/{a}")).expect("a link");
    eq!(link.to_string_lossy(), format!("socket:[{}]", st.st_ino));
    err!(open(&format!("/proc/self/fd/{a}"), libc::O_RDWR, 0), libc::ENXIO);
    err!(sys!(libc::SYS_lseek, a, 0, libc::SEEK_CUR), libc::ESPIPE);
    err!(sys!(libc::SYS_fsync, a), libc::EINVAL);
    err!(sys!(libc::SYS_ftruncate, a, 0), libc::EINVAL);
}

fn socket_pair_errors() {
    let mut fds = [0i32; 2];
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, 99, 0, fds.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 7, fds.as_mut_ptr()), libc::EPROTONOSUPPORT);
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_socketpair, libc::AF_INET, libc::SOCK_STREAM, 0, fds.as_mut_ptr()), libc::EOPNOTSUPP);
    ok!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0, fds.as_mut_ptr()));
    eq!(sys!(libc::SYS_fcntl, fds[0], libc::F_GETFD), 1);
    err!(recv(fds[1], 1, 0).0, libc::EAGAIN);
}

fn msg_more() {
    // Of no meaning here, but allowed.
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(send(a, b"one", libc::MSG_MORE), 3);
    eq!(recv(b, 10, 0).1, b"one");
    eq!(send(a, b"two", libc::MSG_EOR | libc::MSG_CONFIRM), 3);
}

fn long_control() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    let mut header: libc::msghdr = zeroed();
    let long = vec![0u8; 1 << 20];
    header.msg_control = long.as_ptr() as *mut _;
    header.msg_controllen = long.len();
    check!(sys!(libc::SYS_sendmsg, a, &header as *const _, 0) < 0);
    header.msg_controllen = usize::MAX / 2;
    err!(sys!(libc::SYS_sendmsg, a, &header as *const _, 0), libc::ENOBUFS);
}

fn blocked_writer_ends() {
    let (a, b) = pair(libc::SOCK_STREAM);
    while send(a, &[0; 65536], libc::MSG_DONTWAIT) > 0 {}
    let pid = child(|| {
        close(b);
        // What the other side has not read is lost: a reset, first.
        err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::ECONNRESET);
        err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
    });
    sleep_ms(20);
    until("the writer waits", || task_state(pid) == 'S');
    close(b);
    reap(pid);
    let (a, b) = pair(libc::SOCK_STREAM);
    while send(a, &[0; 65536], libc::MSG_DONTWAIT) > 0 {}
    let pid = child(|| {
        close(b);
        err!(write(a, b"x"), libc::ECONNRESET);
    });
    sleep_ms(20);
    until("the writer waits", || task_state(pid) == 'S');
    close(b);
    reap(pid);
}

fn reset_is_kept_for_a_read() {
    let (a, b) = pair(libc::SOCK_STREAM);
    send(a, b"never read", 0);
    close(b);
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
    err!(recv(a, 10, 0).0, libc::ECONNRESET);
    err!(send(a, b"", libc::MSG_NOSIGNAL), libc::EPIPE);
    eq!(recv(a, 10, 0).0, 0);
    // A packet socket does not tell them apart.
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    send(a, b"never read", 0);
    close(b);
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::ECONNRESET);
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
}

fn end_of_datagrams() {
    let (a, _b) = pair(libc::SOCK_DGRAM);
    ok!(shutdown(a, libc::SHUT_RD));
    eq!(recv(a, 10, 0).0, 0);
    eq!(sys!(libc::SYS_read, a, [0u8; 8].as_mut_ptr(), 8), 0);
    err!(recv(a, 10, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    ok!(fcntl(a, libc::F_SETFL, libc::O_NONBLOCK.into()));
    err!(sys!(libc::SYS_read, a, [0u8; 8].as_mut_ptr(), 8), libc::EAGAIN);
    let (a, _b) = pair(libc::SOCK_SEQPACKET);
    ok!(shutdown(a, libc::SHUT_RD));
    eq!(recv(a, 10, libc::MSG_DONTWAIT).0, 0);
}

fn packets_waiting() {
    for (kind, all) in [(libc::SOCK_DGRAM, 3), (libc::SOCK_SEQPACKET, 7), (libc::SOCK_STREAM, 7)] {
        let (a, b) = pair(kind);
        send(a, b"one", 0);
        send(a, b"more", 0);
        eq!(waiting(b), all);
        recv(b, 3, 0);
        eq!(waiting(b), 4);
    }
}

fn empty_packet_is_no_loss() {
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    send(a, b"x", 0);
    send(a, b"", 0);
    close(b);
    eq!(get(a, libc::SO_ERROR), i64::from(libc::ECONNRESET));
}

/// Once it is found gone.
fn datagrams_go_with_their_sender() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    send(b, b"old", 0);
    close(b);
    eq!(waiting(a), 3);
    err!(send(a, b"x", 0), libc::ECONNREFUSED);
    eq!(waiting(a), 0);
    err!(recv(a, 10, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    err!(send(a, b"x", 0), libc::ENOTCONN);
}

fn connect_refused_later() {
    let l = socket(libc::SOCK_STREAM);
    let at = unique("later");
    ok!(bind(l, &at));
    ok!(listen(l, 5));
    let client = socket(libc::SOCK_STREAM);
    ok!(connect(client, &at));
    send(client, b"x", 0);
    // Never accepted.
    close(l);
    err!(recv(client, 10, 0).0, libc::ECONNRESET);
    err!(send(client, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
}
