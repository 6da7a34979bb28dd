//! Messages with descriptors over Unix sockets (`SCM_RIGHTS`, unix(7)).
//!
//! The peer is not trusted: a message that was cut, or that carries more descriptors than the caller allows,
//! is an error, and every descriptor that came with it is closed.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors that one message can carry here (the kernel's own limit is 253).
pub const MAX_FDS: usize = 64;

/// Room for a control message with `MAX_FDS` descriptors, aligned as `cmsghdr` wants it. The header is 16 bytes.
type ControlBuffer = [u64; 2 + MAX_FDS / 2];

/// Sends one message with descriptors; waits while the peer's queue is full. `EPIPE` raises no signal.
///
/// # Errors
/// `EINVAL` for more than [`MAX_FDS`] descriptors or for descriptors without data; else those of sendmsg(2).
pub fn send_with_fds(sock: BorrowedFd<'_>, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(sock, data, fds, 0)
}

/// As [`send_with_fds`], but `EAGAIN` when the peer's queue is full.
///
/// # Errors
/// Those of [`send_with_fds`], and `EAGAIN`.
pub fn try_send_with_fds(sock: BorrowedFd<'_>, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(sock, data, fds, libc::MSG_DONTWAIT)
}

fn send(sock: BorrowedFd<'_>, data: &[u8], fds: &[BorrowedFd<'_>], flags: libc::c_int) -> io::Result<usize> {
    if fds.len() > MAX_FDS || (data.is_empty() && !fds.is_empty()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control: ControlBuffer = [0; 2 + MAX_FDS / 2];
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: msghdr is a plain structure of integers and pointers; all zero is a valid value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = (fds.len() * size_of::<RawFd>()) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
        // SAFETY: msg_control points to an aligned buffer with room for a header and MAX_FDS descriptors, and
        // msg_controllen is at least a header, so CMSG_FIRSTHDR is not null and its data has room for `fds`.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let slots = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                slots.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the message's pointers refer to live buffers of the stated lengths; sendmsg only reads them.
        let sent = unsafe { libc::sendmsg(sock.as_raw_fd(), &message, flags | libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one message and at most `max_fds` descriptors, which are close-on-exec; waits for it. A length of 0
/// (with no descriptors) means that the peer has closed.
///
/// # Errors
/// `EMSGSIZE` if the message was longer than `buf` (packet sockets). `EMFILE` if its descriptors did not all
/// arrive: more than `max_fds`, or none free here; the message is gone. `EINVAL` if `max_fds` exceeds [`MAX_FDS`].
/// Else those of recvmsg(2).
pub fn recv_with_fds(sock: BorrowedFd<'_>, buf: &mut [u8], max_fds: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    recv(sock, buf, max_fds, 0)
}

/// As [`recv_with_fds`], but `EAGAIN` when there is no message.
///
/// # Errors
/// Those of [`recv_with_fds`], and `EAGAIN`.
pub fn try_recv_with_fds(sock: BorrowedFd<'_>, buf: &mut [u8], max_fds: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    recv(sock, buf, max_fds, libc::MSG_DONTWAIT)
}

fn recv(sock: BorrowedFd<'_>, buf: &mut [u8], max_fds: usize, flags: libc::c_int) -> io::Result<(usize, Vec<OwnedFd>)> {
    if max_fds > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control: ControlBuffer = [0; 2 + MAX_FDS / 2];
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: msghdr is a plain structure of integers and pointers; all zero is a valid value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    if max_fds > 0 {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE((max_fds * size_of::<RawFd>()) as u32) } as _;
    }
    let received = loop {
        // SAFETY: the message's pointers refer to live, writable buffers of the stated lengths.
        let received = unsafe { libc::recvmsg(sock.as_raw_fd(), &mut message, flags | libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            break received as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let fds = take_fds(&message);
    // Alignment gives room for one descriptor more than an odd `max_fds`.
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > max_fds {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((received.min(buf.len()), fds))
}

/// Takes ownership of every descriptor that the kernel has put into a received message.
fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    if message.msg_controllen == 0 || message.msg_control.is_null() {
        return fds;
    }
    // SAFETY: the kernel filled msg_control and set msg_controllen to what it wrote; the CMSG macros walk within
    // that. Each number in an SCM_RIGHTS message is a descriptor newly made for this process that nobody owns yet.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let slots = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(slots.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

/// A pair of connected packet sockets (`SOCK_SEQPACKET`), close-on-exec.
///
/// # Errors
/// Those of socketpair(2).
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_arrive() {
        let (left, right) = packet_pair().expect("socketpair");
        let zero = File::open("/dev/zero").expect("open");
        let fds = [zero.as_fd(), zero.as_fd(), zero.as_fd()];
        assert_eq!(send_with_fds(left.as_fd(), b"hello", &fds).expect("send"), 5);
        let mut buf = [0; 16];
        let (len, fds) = recv_with_fds(right.as_fd(), &mut buf, 3).expect("receive");
        assert_eq!((&buf[..len], fds.len()), (&b"hello"[..], 3));
        for fd in fds {
            let mut byte = [1];
            assert_eq!(File::from(fd).read(&mut byte).expect("read"), 1);
            assert_eq!(byte, [0]);
        }
    }

    #[test]
    fn too_many_descriptors_and_long_messages_are_errors() {
        let (left, right) = packet_pair().expect("socketpair");
        let zero = File::open("/dev/zero").expect("open");
        let mut buf = [0; 4];
        for (allowed, sent) in [(0, 1), (1, 2), (1, 3), (2, 3)] {
            send_with_fds(left.as_fd(), b"x", &vec![zero.as_fd(); sent]).expect("send");
            let error = recv_with_fds(right.as_fd(), &mut buf, allowed).expect_err("too many");
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{allowed} of {sent}");
        }
        send_with_fds(left.as_fd(), b"12345", &[]).expect("send");
        assert_eq!(
            recv_with_fds(right.as_fd(), &mut buf, 0)
                .expect_err("cut")
                .raw_os_error(),
            Some(libc::EMSGSIZE)
        );
        assert_eq!(
            try_recv_with_fds(right.as_fd(), &mut buf, 0).expect_err("empty").kind(),
            io::ErrorKind::WouldBlock
        );
        drop(left);
        assert_eq!(recv_with_fds(right.as_fd(), &mut buf, 1).expect("closed").0, 0);
    }
}
