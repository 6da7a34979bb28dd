//! Unix sockets.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("socket": pair_stream, pair_datagram, pair_seqpacket, pair_errors, shut_down, blocking_wakes, would_block, broken,
    passes_descriptors, passes_credentials, listens, connect_errors, abstract_names, names, peek_and_trunc, message_vectors,
    options, polls, datagram_to_name, wrong_calls, backlog);

pub fn pair(kind: i32) -> (i32, i32) {
    let mut fds = [0i32; 2];
    ok!(sys!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr()));
    (fds[0], fds[1])
}

pub fn send(fd: i32, data: &[u8], flags: i32) -> i64 {
    sys!(libc::SYS_sendto, fd, data.as_ptr(), data.len(), flags, 0, 0)
}

pub fn receive(fd: i32, len: usize, flags: i32) -> (i64, Vec<u8>) {
    let mut buf = vec![0u8; len];
    let n = sys!(libc::SYS_recvfrom, fd, buf.as_mut_ptr(), len, flags, 0, 0);
    buf.truncate(n.clamp(0, len as i64) as usize);
    (n, buf)
}

fn pair_stream() {
    let (a, b) = pair(libc::SOCK_STREAM);
    write(a, b"one");
    write(a, b"two");
    eq!(read(b, 100), b"onetwo");
    eq!(send(b, b"back", 0), 4);
    eq!(receive(a, 2, 0).1, b"ba");
    eq!(receive(a, 10, 0).1, b"ck");
    close(b);
    eq!(read(a, 10), b"");
}

fn pair_datagram() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    send(a, b"first", 0);
    send(a, b"", 0);
    send(a, b"second", 0);
    eq!(receive(b, 3, 0).1, b"fir");
    eq!(receive(b, 10, 0), (0, vec![]));
    eq!(receive(b, 10, 0).1, b"second");
}

fn pair_seqpacket() {
    let (a, b) = pair(libc::SOCK_SEQPACKET);
    send(a, b"first", 0);
    send(a, b"second", 0);
    eq!(receive(b, 3, libc::MSG_TRUNC).0, 5);
    eq!(receive(b, 10, 0).1, b"second");
    close(a);
    eq!(receive(b, 10, 0).0, 0);
}

fn pair_errors() {
    let mut fds = [0i32; 2];
    err!(sys!(libc::SYS_socketpair, libc::AF_INET, libc::SOCK_STREAM, 0, fds.as_mut_ptr()), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_socketpair, 99, libc::SOCK_STREAM, 0, fds.as_mut_ptr()), libc::EAFNOSUPPORT);
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 7, fds.as_mut_ptr()), libc::EPROTONOSUPPORT);
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, 99, 0, fds.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, BAD), libc::EFAULT);
    let (a, _) = pair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    eq!(sys!(libc::SYS_fcntl, a, libc::F_GETFD), 1);
    err!(receive(a, 1, 0).0, libc::EAGAIN);
}

fn shut_down() {
    let (a, b) = pair(libc::SOCK_STREAM);
    ok!(sys!(libc::SYS_shutdown, a, libc::SHUT_WR));
    eq!(read(b, 1), b"");
    disposition(libc::SIGPIPE, libc::SIG_IGN);
    err!(write(a, b"x"), libc::EPIPE);
    eq!(write(b, b"y"), 1);
    eq!(read(a, 1), b"y");
    ok!(sys!(libc::SYS_shutdown, b, libc::SHUT_RDWR));
    eq!(read(a, 1), b"");
    err!(sys!(libc::SYS_shutdown, a, 7), libc::EINVAL);
}

fn blocking_wakes() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let pid = child(|| {
        eq!(read(b, 10), b"wake");
        close(b);
    });
    until("the child sleeps", || task_state(pid) == 'S');
    write(a, b"wake");
    reap(pid);
    let mut buf = [0u8; 1];
    err!(interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_read, a, buf.as_mut_ptr(), 1)), libc::EINTR);
}

fn would_block() {
    let (a, b) = pair(libc::SOCK_STREAM);
    err!(receive(a, 1, libc::MSG_DONTWAIT).0, libc::EAGAIN);
    let mut total = 0;
    loop {
        let n = send(a, &[0; 4096], libc::MSG_DONTWAIT);
        if n < 0 {
            err!(n, libc::EAGAIN);
            break;
        }
        total += n;
    }
    check!(total >= 4096);
    read(b, 65536);
    let mut fd = libc::pollfd { fd: a, events: libc::POLLOUT, revents: 0 };
    until("there is room again", || {
        receive(b, 65536, libc::MSG_DONTWAIT);
        sys!(libc::SYS_poll, &mut fd as *mut _, 1, 0) == 1
    });
}

fn broken() {
    let (a, b) = pair(libc::SOCK_STREAM);
    close(b);
    catch(libc::SIGPIPE, 0);
    err!(write(a, b"x"), libc::EPIPE);
    eq!(seen(), 1);
    err!(send(a, b"x", libc::MSG_NOSIGNAL), libc::EPIPE);
    eq!(seen(), 1);
}

#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    fds: [i32; 4],
}

fn control(fds: [i32; 2]) -> Control {
    let mut control: Control = Control { header: zeroed(), fds: [fds[0], fds[1], 0, 0] };
    control.header.cmsg_len = 16 + 8;
    control.header.cmsg_level = libc::SOL_SOCKET;
    control.header.cmsg_type = libc::SCM_RIGHTS;
    control
}

fn message(byte: &mut [u8], iov: &mut libc::iovec, control: &mut Control, len: usize) -> libc::msghdr {
    iov.iov_base = byte.as_mut_ptr().cast();
    iov.iov_len = byte.len();
    let mut message: libc::msghdr = zeroed();
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message.msg_control = (control as *mut Control).cast();
    message.msg_controllen = len;
    message
}

fn passes_descriptors() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let fd = new_file("f", b"passed");
    let (mut byte, mut iov) = ([1u8], zeroed::<libc::iovec>());
    let mut sent = control([fd, fd]);
    let m = message(&mut byte, &mut iov, &mut sent, 24);
    eq!(sys!(libc::SYS_sendmsg, a, &m as *const _, 0), 1);
    close(fd);
    let mut got = control([0, 0]);
    let mut m = message(&mut byte, &mut iov, &mut got, 32);
    eq!(sys!(libc::SYS_recvmsg, b, &mut m as *mut _, libc::MSG_CMSG_CLOEXEC), 1);
    eq!((got.header.cmsg_len, got.header.cmsg_type), (24, libc::SCM_RIGHTS));
    eq!(read(got.fds[0], 10), b"passed");
    eq!(read(got.fds[1], 10), b"");
    eq!(sys!(libc::SYS_fcntl, got.fds[0], libc::F_GETFD), 1);
    let mut bad = control([999, 999]);
    let m = message(&mut byte, &mut iov, &mut bad, 24);
    err!(sys!(libc::SYS_sendmsg, a, &m as *const _, 0), libc::EBADF);
}

fn passes_credentials() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let mut cred: libc::ucred = zeroed();
    let mut len = 12u32;
    ok!(sys!(libc::SYS_getsockopt, a, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut cred as *mut _, &mut len as *mut u32));
    eq!((cred.pid, cred.uid), (getpid(), sys!(libc::SYS_geteuid) as u32));
    let on = 1i32;
    ok!(sys!(libc::SYS_setsockopt, b, libc::SOL_SOCKET, libc::SO_PASSCRED, &on as *const i32, 4));
    write(a, b"x");
    let (mut byte, mut iov, mut got) = ([1u8], zeroed::<libc::iovec>(), control([0, 0]));
    let mut m = message(&mut byte, &mut iov, &mut got, 32);
    eq!(sys!(libc::SYS_recvmsg, b, &mut m as *mut _, 0), 1);
    eq!((got.header.cmsg_type, got.fds[0]), (libc::SCM_CREDENTIALS, getpid()));
}

/// An address and its length; a leading `@` stands for NUL.
pub fn address(path: &[u8]) -> (libc::sockaddr_un, usize) {
    let mut address: libc::sockaddr_un = zeroed();
    address.sun_family = libc::AF_UNIX as u16;
    path.iter().zip(address.sun_path.iter_mut()).for_each(|(&b, to)| *to = b as libc::c_char);
    if path.first() == Some(&b'@') {
        address.sun_path[0] = 0;
    }
    (address, 2 + path.len())
}

pub fn socket(kind: i32) -> i32 {
    ok!(sys!(libc::SYS_socket, libc::AF_UNIX, kind, 0)) as i32
}

pub fn bind(fd: i32, path: &[u8]) -> i64 {
    let (address, len) = address(path);
    sys!(libc::SYS_bind, fd, &address as *const _, len)
}

pub fn connect(fd: i32, path: &[u8]) -> i64 {
    let (address, len) = address(path);
    sys!(libc::SYS_connect, fd, &address as *const _, len)
}

fn listener(path: &[u8]) -> i32 {
    let fd = socket(libc::SOCK_STREAM);
    ok!(bind(fd, path));
    ok!(sys!(libc::SYS_listen, fd, 5));
    fd
}

fn listens() {
    let fd = listener(b"s\0");
    eq!(stat("s").1.st_mode & libc::S_IFMT, libc::S_IFSOCK);
    let pid = child(|| {
        let client = socket(libc::SOCK_STREAM);
        ok!(connect(client, b"s\0"));
        write(client, b"hello");
        eq!(read(client, 10), b"bye");
    });
    let server = ok!(sys!(libc::SYS_accept4, fd, 0, 0, libc::SOCK_CLOEXEC)) as i32;
    eq!(sys!(libc::SYS_fcntl, server, libc::F_GETFD), 1);
    eq!(read(server, 10), b"hello");
    write(server, b"bye");
    reap(pid);
    eq!(read(server, 10), b"");
}

fn connect_errors() {
    let fd = socket(libc::SOCK_STREAM);
    err!(connect(fd, b"missing\0"), libc::ENOENT);
    file("plain", b"");
    err!(connect(fd, b"plain\0"), libc::ECONNREFUSED);
    let bound = socket(libc::SOCK_STREAM);
    ok!(bind(bound, b"s\0"));
    err!(connect(fd, b"s\0"), libc::ECONNREFUSED);
    err!(bind(socket(libc::SOCK_STREAM), b"s\0"), libc::EADDRINUSE);
    err!(bind(bound, b"t\0"), libc::EINVAL);
    let datagram = socket(libc::SOCK_DGRAM);
    ok!(sys!(libc::SYS_listen, bound, 1));
    err!(connect(datagram, b"s\0"), libc::EPROTOTYPE);
    err!(sys!(libc::SYS_connect, fd, BAD, 10), libc::EFAULT);
    err!(sys!(libc::SYS_accept, fd, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_connect, 999, 0, 0), libc::EBADF);
    let plain = new_file("f", b"");
    err!(connect(plain, b"s\0"), libc::ENOTSOCK);
}

fn abstract_names() {
    let name = format!("\0guest-{}", getpid());
    let fd = listener(name.as_bytes());
    let client = socket(libc::SOCK_STREAM);
    ok!(connect(client, name.as_bytes()));
    let server = ok!(sys!(libc::SYS_accept, fd, 0, 0)) as i32;
    write(client, b"x");
    eq!(read(server, 1), b"x");
    close(fd);
    err!(connect(socket(libc::SOCK_STREAM), name.as_bytes()), libc::ECONNREFUSED);
}

fn names() {
    let fd = listener(b"s\0");
    let (mut name, _) = address(b"");
    let mut len = 110u32;
    ok!(sys!(libc::SYS_getsockname, fd, &mut name as *mut _, &mut len as *mut u32));
    eq!((len, name.sun_path[0] as u8), (4, b's'));
    let client = socket(libc::SOCK_STREAM);
    ok!(connect(client, b"s\0"));
    len = 110;
    ok!(sys!(libc::SYS_getpeername, client, &mut name as *mut _, &mut len as *mut u32));
    eq!((len, name.sun_path[0] as u8), (4, b's'));
    len = 110;
    ok!(sys!(libc::SYS_getsockname, client, &mut name as *mut _, &mut len as *mut u32));
    eq!(len, 2);
    err!(sys!(libc::SYS_getpeername, fd, &mut name as *mut _, &mut len as *mut u32), libc::ENOTCONN);
}

fn peek_and_trunc() {
    let (a, b) = pair(libc::SOCK_DGRAM);
    send(a, b"123456", 0);
    eq!(receive(b, 3, libc::MSG_PEEK).1, b"123");
    eq!(receive(b, 3, libc::MSG_PEEK | libc::MSG_TRUNC).0, 6);
    eq!(receive(b, 10, 0).1, b"123456");
    let (a, b) = pair(libc::SOCK_STREAM);
    let pid = child(|| {
        write(a, b"12");
        sleep_ms(10);
        write(a, b"34");
    });
    eq!(receive(b, 4, libc::MSG_WAITALL).1, b"1234");
    reap(pid);
}

fn message_vectors() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (mut one, mut two) = (*b"ab", *b"cde");
    let iov = [
        libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 2 },
        libc::iovec { iov_base: two.as_mut_ptr().cast(), iov_len: 3 },
    ];
    let mut m: libc::msghdr = zeroed();
    m.msg_iov = iov.as_ptr().cast_mut();
    m.msg_iovlen = 2;
    eq!(sys!(libc::SYS_sendmsg, a, &m as *const _, 0), 5);
    eq!(sys!(libc::SYS_recvmsg, b, &mut m as *mut _, 0), 5);
    eq!((&one, &two), (b"ab", b"cde"));
    m.msg_iovlen = 1025;
    err!(sys!(libc::SYS_sendmsg, a, &m as *const _, 0), libc::EMSGSIZE);
    err!(sys!(libc::SYS_sendmsg, a, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_recvmsg, a, BAD, 0), libc::EFAULT);
}

fn options() {
    let fd = socket(libc::SOCK_STREAM);
    let get = |name: i32| {
        let (mut value, mut len) = (-1i32, 4u32);
        ok!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, name, &mut value as *mut i32, &mut len as *mut u32));
        value
    };
    eq!(get(libc::SO_TYPE), libc::SOCK_STREAM);
    eq!(get(libc::SO_DOMAIN), libc::AF_UNIX);
    eq!(get(libc::SO_ERROR), 0);
    eq!(get(libc::SO_ACCEPTCONN), 0);
    check!(get(libc::SO_SNDBUF) > 1000);
    let (mut value, mut len) = (0i32, 4u32);
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, 9999, &mut value as *mut i32, &mut len as *mut u32), libc::ENOPROTOOPT);
    err!(sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, BAD, &mut len as *mut u32), libc::EFAULT);
}

fn polls() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let poll = |fd: i32| {
        let mut fd = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, revents: 0 };
        sys!(libc::SYS_poll, &mut fd as *mut _, 1, 0);
        fd.revents
    };
    eq!(poll(a), libc::POLLOUT);
    write(b, b"x");
    eq!(poll(a), libc::POLLOUT | libc::POLLIN);
    read(a, 1);
    ok!(sys!(libc::SYS_shutdown, b, libc::SHUT_WR));
    eq!(poll(a), libc::POLLOUT | libc::POLLIN | libc::POLLRDHUP);
    close(b);
    check!(poll(a) & libc::POLLHUP != 0);
    let fd = listener(b"s\0");
    eq!(poll(fd) & libc::POLLIN, 0);
    ok!(connect(socket(libc::SOCK_STREAM), b"s\0"));
    eq!(poll(fd) & libc::POLLIN, libc::POLLIN);
}

fn datagram_to_name() {
    let receiver = socket(libc::SOCK_DGRAM);
    ok!(bind(receiver, b"r\0"));
    let sender = socket(libc::SOCK_DGRAM);
    ok!(bind(sender, b"s\0"));
    let (to, len) = address(b"r\0");
    eq!(sys!(libc::SYS_sendto, sender, b"hey".as_ptr(), 3, 0, &to as *const _, len), 3);
    let (mut from, _) = address(b"");
    let (mut len, mut buf) = (110u32, [0u8; 10]);
    eq!(sys!(libc::SYS_recvfrom, receiver, buf.as_mut_ptr(), 10, 0, &mut from as *mut _, &mut len as *mut u32), 3);
    eq!((len, from.sun_path[0] as u8), (4, b's'));
    err!(send(sender, b"x", 0), libc::ENOTCONN);
}

fn wrong_calls() {
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(sys!(libc::SYS_listen, a, 1), libc::EINVAL);
    let (r, _w) = pipe();
    err!(send(r, b"x", 0), libc::ENOTSOCK);
    err!(receive(r, 1, 0).0, libc::ENOTSOCK);
    err!(sys!(libc::SYS_lseek, a, 0, 0), libc::ESPIPE);
    let single = socket(libc::SOCK_STREAM);
    err!(send(single, b"x", libc::MSG_NOSIGNAL), libc::ENOTCONN);
    err!(receive(single, 1, 0).0, libc::EINVAL);
    err!(sys!(libc::SYS_socket, 99, libc::SOCK_STREAM, 0), libc::EAFNOSUPPORT);
}

fn backlog() {
    let fd = socket(libc::SOCK_STREAM);
    ok!(bind(fd, b"s\0"));
    ok!(sys!(libc::SYS_listen, fd, 1));
    let mut refused = false;
    for _ in 0..10 {
        let client = ok!(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)) as i32;
        refused |= connect(client, b"s\0") == -i64::from(libc::EAGAIN);
    }
    check!(refused);
    ok!(sys!(libc::SYS_accept, fd, 0, 0));
}
