//! Sending and receiving on sockets, with their control messages (cmsg(3)).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::socket::{CmsgHdr, MMsgHdr, MsgHdr, Ucred};
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;
use zerocopy::{FromBytes, IntoBytes};

use super::args::{int, uint};
use super::poll::Timeout;
use super::socket::{check_claimed, find_socket, read_address, socket_file};
use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::io::{Buffers, CHUNK, failed_write, gather, scatter, waited, with_scratch};
use crate::task::{Resource, Thread, block_on};
use crate::unix::{BUFFER, Flags, InFlight, Kind, Received, Send, SendTarget, address_bytes, socket_of};
use crate::user::{UserPtr, read_bytes, read_iovecs, write_bytes};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_sendto, sendto, Fd, Buf(2), Int, Hex, Ptr, Int),
    call!(libc::SYS_sendmsg, sendmsg, Fd, Ptr, Hex),
    call!(libc::SYS_sendmmsg, sendmmsg, Fd, Ptr, Int, Hex),
    call!(libc::SYS_recvfrom, recvfrom, Fd, Out, Int, Hex, Ptr, Ptr),
    call!(libc::SYS_recvmsg, recvmsg, Fd, Ptr, Hex),
    call!(libc::SYS_recvmmsg, recvmmsg, Fd, Ptr, Int, Hex, Ptr),
];

/// The most bytes of control messages (`net.core.optmem_max`).
const CONTROL_MAX: usize = 20480;
/// The most descriptors in one message (`SCM_MAX_FD`).
const MAX_FILES: usize = 253;
const HEADER: usize = size_of::<CmsgHdr>();

/// Everything that is sent at once.
struct Outgoing {
    file: Arc<File>,
    buffers: Buffers,
    target: SendTarget,
    files: InFlight,
    cred: Ucred,
    flags: i32,
}

/// Who the caller is in messages.
fn own_cred(thread: &Thread) -> Ucred {
    let cred = thread.cred();
    Ucred {
        pid: thread.pid(),
        uid: cred.uid,
        gid: cred.gid,
    }
}

fn target(thread: &Thread, file: &File, address: &[u8]) -> Result<SendTarget, Errno> {
    if address.is_empty() {
        return Ok(SendTarget::Peer);
    }
    let socket = socket_of(file)?;
    match socket.kind() {
        Kind::Datagram => {
            let target = find_socket(thread, address, Kind::Datagram)?;
            if target.kind() == Kind::Datagram {
                Ok(SendTarget::Socket(target))
            } else {
                Err(Errno::EPROTOTYPE)
            }
        }
        // Packet sockets ignore the address.
        Kind::SeqPacket => Ok(SendTarget::Peer),
        Kind::Stream if socket.peer_name().is_ok() => Err(Errno::EISCONN),
        Kind::Stream => Err(Errno::EOPNOTSUPP),
    }
}

fn sendto(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = socket_file(thread, int(args, 0))?;
    let address = if args.args[4] == 0 {
        Vec::new()
    } else {
        read_address(thread, args.args[4], int(args, 5))?
    };
    let outgoing = Outgoing {
        target: target(thread, &file, &address)?,
        buffers: Buffers::one(args.args[1], args.args[2]),
        files: InFlight::none(),
        cred: own_cred(thread),
        flags: int(args, 3),
        file,
    };
    Ok(send(thread, outgoing))
}

fn sendmsg(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = socket_file(thread, int(args, 0))?;
    let header: MsgHdr = UserPtr::new(args.args[1]).copy_in(thread)?;
    send_header(thread, file, &header, int(args, 2))
}

fn send_header(thread: &Arc<Thread>, file: Arc<File>, header: &MsgHdr, flags: i32) -> Result<Sys, Errno> {
    if header.msg_iovlen > crate::user::IOV_MAX as u64 {
        return Err(Errno::EMSGSIZE);
    }
    let buffers = Buffers::Many(read_iovecs(thread, header.msg_iov, header.msg_iovlen)?);
    let address = if header.msg_name == 0 {
        Vec::new()
    } else {
        read_address(thread, header.msg_name, header.msg_namelen as i32)?
    };
    let (files, claimed) = read_control(thread, header)?;
    let target = target(thread, &file, &address)?;
    let outgoing = Outgoing {
        file,
        buffers,
        target,
        files: InFlight::new(files)?,
        cred: claimed.unwrap_or_else(|| own_cred(thread)),
        flags,
    };
    Ok(send(thread, outgoing))
}

/// Takes the control messages apart: descriptors, and credentials that are claimed.
fn read_control(thread: &Thread, header: &MsgHdr) -> Result<(Vec<Arc<File>>, Option<Ucred>), Errno> {
    let (mut files, mut claimed) = (Vec::new(), None);
    if header.msg_control == 0 || header.msg_controllen == 0 {
        return Ok((files, claimed));
    }
    let len = usize::try_from(header.msg_controllen)
        .ok()
        .filter(|&len| len <= CONTROL_MAX)
        .ok_or(Errno::ENOBUFS)?;
    let mut control = vec![0; len];
    read_bytes(thread, header.msg_control, &mut control)?;
    let mut rest = control.as_slice();
    while let Ok((head, _)) = CmsgHdr::read_from_prefix(rest) {
        let len = usize::try_from(head.cmsg_len)
            .ok()
            .filter(|&len| len >= HEADER && len <= rest.len());
        let data = rest.get(HEADER..len.ok_or(Errno::EINVAL)?).ok_or(Errno::EINVAL)?;
        match (head.cmsg_level, head.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for number in data.chunks_exact(4) {
                    let number = i32::read_from_bytes(number).map_err(|_| Errno::EINVAL)?;
                    if files.len() >= MAX_FILES {
                        return Err(Errno::EINVAL);
                    }
                    files.push(thread.files().get(number)?);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                let cred = Ucred::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
                check_claimed(thread, &thread.cred(), cred)?;
                claimed = Some(cred);
            }
            (libc::SOL_SOCKET, kind) => {
                crate::gap!(thread.kernel(), "control message SOL_SOCKET {kind}");
                return Err(Errno::EINVAL);
            }
            // Of other protocols: not for us.
            _ => {}
        }
        let next = (HEADER + data.len()).next_multiple_of(8).min(rest.len());
        rest = &rest[next..];
    }
    Ok((files, claimed))
}

/// One attempt, from byte `skip` on.
fn try_send(thread: &Thread, outgoing: &mut Outgoing, skip: usize) -> Result<usize, Errno> {
    let socket = socket_of(&outgoing.file)?;
    let total = outgoing.buffers.len();
    if socket.kind() != Kind::Stream && total > 2 * BUFFER {
        return Err(Errno::EMSGSIZE);
    }
    with_scratch((total - skip).min(CHUNK), |buf| {
        let wanted = buf.len();
        let count = if wanted == 0 {
            0
        } else {
            gather(thread, outgoing.buffers.as_slice(), skip, buf)?
        };
        if count < wanted && socket.kind() != Kind::Stream {
            return Err(Errno::EFAULT);
        }
        let send = Send {
            data: &buf[..count],
            files: &mut outgoing.files,
            cred: outgoing.cred,
            urgent: outgoing.flags & libc::MSG_OOB != 0 && count + skip == total,
        };
        socket.send(&outgoing.target, send)
    })
}

fn send(thread: &Arc<Thread>, mut outgoing: Outgoing) -> Sys {
    let urgent = outgoing.flags & libc::MSG_OOB != 0;
    let total = outgoing.buffers.len();
    if let Ok(socket) = socket_of(&outgoing.file) {
        if urgent && (socket.kind() != Kind::Stream || total == 0) {
            return Errno::EOPNOTSUPP.into();
        }
        if let Err(errno) = socket.autobind(&thread.kernel().unix) {
            return errno.into();
        }
    }
    let waits = !outgoing.file.nonblocking() && outgoing.flags & libc::MSG_DONTWAIT == 0;
    let stream = socket_of(&outgoing.file).is_ok_and(|socket| socket.kind() == Kind::Stream);
    let done = match try_send(thread, &mut outgoing, 0) {
        Ok(count) if count == total || !stream || !waits => return Sys::Done(Ok(count as i64)),
        Ok(count) => count,
        Err(Errno::EAGAIN) if waits => 0,
        Err(errno) => return send_error(thread, &outgoing, errno).into(),
    };
    let thread = thread.clone();
    Sys::wait(async move {
        let file = outgoing.file.clone();
        let socket = socket_of(&file)?;
        let deadline = socket.options().send_timeout.map(Deadline::after);
        let queues = [(socket.queue(), PollEvents::OUT | PollEvents::WRNORM)];
        let mut done = done;
        loop {
            let step = block_on(&thread, deadline, &queues, || {
                // Who waits learns of a reset first.
                if let Some(errno) = socket.take_error() {
                    return Some(Err(errno));
                }
                match try_send(&thread, &mut outgoing, done) {
                    Err(Errno::EAGAIN) => None,
                    result => Some(result),
                }
            })
            .await;
            match step {
                Ok(Ok(count)) => {
                    done += count;
                    if done >= total || !stream || count == 0 {
                        return Ok(done as i64);
                    }
                }
                Ok(Err(errno)) => {
                    let errno = send_error(&thread, &outgoing, errno);
                    return if done > 0 { Ok(done as i64) } else { Err(errno) };
                }
                Err(_) if done > 0 => return Ok(done as i64),
                Err(wake) => return waited(Err(wake), deadline),
            }
        }
    })
}

/// `EPIPE` comes with a signal unless the caller wants none.
fn send_error(thread: &Arc<Thread>, outgoing: &Outgoing, errno: Errno) -> Errno {
    let stream = socket_of(&outgoing.file).is_ok_and(|socket| socket.kind() == Kind::Stream);
    if !stream || outgoing.flags & libc::MSG_NOSIGNAL != 0 {
        errno
    } else {
        failed_write(thread, errno)
    }
}

fn sendmmsg(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let (addr, flags) = (UserPtr::<MMsgHdr>::new(args.args[1]), int(args, 3));
    let count = (uint(args, 2) as usize).min(crate::user::IOV_MAX);
    let file = socket_file(thread, int(args, 0))?;
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        for index in 0..count {
            let place = addr.add(index)?;
            let one = async {
                let mut header = place.copy_in(&thread)?;
                let sent = finish(send_header(&thread, file.clone(), &header.hdr, flags)?).await?;
                header.msg_len = sent as u32;
                place.copy_out(&thread, &header)
            };
            match one.await {
                Ok(()) => {}
                Err(_) if index > 0 => return Ok(index as i64),
                Err(errno) => return Err(errno),
            }
        }
        Ok(count as i64)
    }))
}

async fn finish(sys: Sys) -> SysResult {
    match sys {
        Sys::Done(result) => result,
        Sys::Wait(future) => future.await,
    }
}

/// Where what is received goes.
struct Incoming {
    file: Arc<File>,
    buffers: Buffers,
    flags: i32,
    place: Place,
}

/// Where address, control messages and flags go.
#[derive(Clone, Copy)]
enum Place {
    /// recvfrom(2): address and its length.
    Address(u64, UserPtr<i32>),
    /// recvmsg(2): the header as it was, and where it is.
    Header(MsgHdr, UserPtr<MsgHdr>),
}

fn recvfrom(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = socket_file(thread, int(args, 0))?;
    let incoming = Incoming {
        file,
        buffers: Buffers::one(args.args[1], args.args[2]),
        flags: int(args, 3),
        place: Place::Address(args.args[4], UserPtr::new(args.args[5])),
    };
    Ok(receive(thread, incoming))
}

fn recvmsg(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = socket_file(thread, int(args, 0))?;
    receive_header(thread, file, UserPtr::new(args.args[1]), int(args, 2))
}

fn receive_header(thread: &Arc<Thread>, file: Arc<File>, addr: UserPtr<MsgHdr>, flags: i32) -> Result<Sys, Errno> {
    let header = addr.copy_in(thread)?;
    if header.msg_iovlen > crate::user::IOV_MAX as u64 {
        return Err(Errno::EMSGSIZE);
    }
    let buffers = Buffers::Many(read_iovecs(thread, header.msg_iov, header.msg_iovlen)?);
    Ok(receive(
        thread,
        Incoming {
            file,
            buffers,
            flags,
            place: Place::Header(header, addr),
        },
    ))
}

/// One attempt, into the buffers from byte `skip` on.
fn try_receive(thread: &Thread, incoming: &Incoming, skip: usize) -> Result<Received, Errno> {
    let socket = socket_of(&incoming.file)?;
    let total = incoming.buffers.len();
    let peek = incoming.flags & libc::MSG_PEEK != 0;
    with_scratch((total - skip).min(CHUNK), |buf| {
        let received = socket.receive(buf, peek)?;
        scatter(thread, incoming.buffers.as_slice(), skip, &buf[..received.count])?;
        Ok(received)
    })
}

fn receive(thread: &Arc<Thread>, incoming: Incoming) -> Sys {
    if incoming.flags & libc::MSG_OOB != 0 {
        return receive_urgent(thread, &incoming).into();
    }
    if incoming.flags & libc::MSG_ERRQUEUE != 0 {
        return Errno::EAGAIN.into();
    }
    let total = incoming.buffers.len();
    let waits = !incoming.file.nonblocking() && incoming.flags & libc::MSG_DONTWAIT == 0;
    let stream = socket_of(&incoming.file).is_ok_and(|socket| socket.kind() == Kind::Stream);
    // How much a stream waits for; a look takes what there is.
    let enough = match incoming.flags & libc::MSG_WAITALL != 0 {
        _ if !waits || !stream || incoming.flags & libc::MSG_PEEK != 0 => 0,
        true => total,
        false => socket_of(&incoming.file).map_or(1, |socket| socket.options().low_water).min(total),
    };
    let first = match try_receive(thread, &incoming, 0) {
        Ok(received) if !received.any && !waits => {
            let end = socket_of(&incoming.file).and_then(|socket| socket.end_of_file());
            return end.and_then(|()| deliver(thread, &incoming, received)).into();
        }
        Ok(received) if !received.any || received.count >= enough => {
            return deliver(thread, &incoming, received).into();
        }
        Ok(received) => Some(received),
        Err(Errno::EAGAIN) if waits => None,
        Err(errno) => return errno.into(),
    };
    let thread = thread.clone();
    Sys::wait(async move {
        let file = incoming.file.clone();
        let socket = socket_of(&file)?;
        let deadline = socket.options().receive_timeout.map(Deadline::after);
        let queues = [(socket.queue(), PollEvents::IN | PollEvents::RDNORM | PollEvents::RDHUP)];
        let mut so_far = first;
        loop {
            let skip = so_far.as_ref().map_or(0, |received| received.count);
            let step = block_on(&thread, deadline, &queues, || {
                match try_receive(&thread, &incoming, skip) {
                    Err(Errno::EAGAIN) => None,
                    result => Some(result),
                }
            })
            .await;
            let ended = match step {
                Ok(Ok(received)) => {
                    let end = !received.any;
                    match &mut so_far {
                        None => so_far = Some(received),
                        Some(before) => {
                            before.count += received.count;
                            before.full += received.full;
                            before.files.extend(received.files);
                        }
                    }
                    end
                }
                Ok(Err(errno)) if so_far.is_none() => return Err(errno),
                Err(wake) if so_far.is_none() => return waited(Err(wake), deadline),
                _ => true,
            };
            if let Some(received) = so_far.take_if(|received| ended || received.count >= enough) {
                return deliver(&thread, &incoming, received);
            }
        }
    })
}

/// `MSG_OOB`: the one byte that came out of band.
fn receive_urgent(thread: &Arc<Thread>, incoming: &Incoming) -> SysResult {
    let socket = socket_of(&incoming.file)?;
    if socket.kind() != Kind::Stream {
        return Err(Errno::EOPNOTSUPP);
    }
    let byte = socket.receive_urgent(incoming.flags & libc::MSG_PEEK != 0)?;
    let received = Received {
        count: 1.min(incoming.buffers.len()),
        full: 1,
        any: true,
        ..Received::default()
    };
    scatter(thread, incoming.buffers.as_slice(), 0, &[byte][..received.count])?;
    deliver(thread, incoming, received)
}

/// Writes out what goes with a message, and says how long it was.
fn deliver(thread: &Arc<Thread>, incoming: &Incoming, received: Received) -> SysResult {
    let socket = socket_of(&incoming.file)?;
    let packet = socket.kind() != Kind::Stream;
    let cut = packet && received.full > received.count;
    let answer = if packet && incoming.flags & libc::MSG_TRUNC != 0 {
        received.full
    } else {
        received.count
    };
    let address = match &received.from {
        Some(name) if packet => address_bytes(Some(name)),
        _ => Vec::new(),
    };
    match incoming.place {
        Place::Address(0, _) => {}
        Place::Address(addr, len) => super::socket::write_address(thread, addr, len, &address)?,
        Place::Header(mut header, pointer) => {
            let mut flags = if cut { libc::MSG_TRUNC } else { 0 };
            if socket.kind() == Kind::SeqPacket && received.any {
                flags |= libc::MSG_EOR;
            }
            if header.msg_name != 0 {
                let room = (header.msg_namelen as usize).min(address.len());
                write_bytes(thread, header.msg_name, &address[..room])?;
            }
            header.msg_namelen = address.len() as u32;
            let room = if header.msg_control == 0 {
                0
            } else {
                usize::try_from(header.msg_controllen).unwrap_or(0)
            };
            let mut tell = socket.options().flags;
            if !received.any {
                tell = Flags::empty();
            }
            if !packet {
                tell -= Flags::TIMESTAMP | Flags::TIMESTAMP_NANOS;
            }
            let cloexec = incoming.flags & libc::MSG_CMSG_CLOEXEC != 0;
            let (control, control_cut) = write_control(thread, &received, tell, room, cloexec);
            write_bytes(thread, header.msg_control, &control)?;
            header.msg_controllen = control.len() as u64;
            if control_cut {
                flags |= libc::MSG_CTRUNC;
            }
            if cloexec {
                flags |= libc::MSG_CMSG_CLOEXEC;
            }
            header.msg_flags = flags as u32;
            pointer.copy_out(thread, &header)?;
        }
    }
    Ok(answer as i64)
}

/// Control messages on their way to the guest.
struct Control {
    bytes: Vec<u8>,
    /// How many bytes there may be.
    room: usize,
    /// Something did not fit.
    cut: bool,
}

impl Control {
    /// Appends a message; notes if it does not fit.
    fn push(&mut self, kind: i32, data: &[u8]) {
        if self.left() < HEADER + data.len() {
            self.cut = true;
            return;
        }
        let head = CmsgHdr {
            cmsg_len: (HEADER + data.len()) as u64,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: kind,
        };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(data);
        let len = self.bytes.len().next_multiple_of(8).min(self.room);
        self.bytes.resize(len, 0);
    }

    fn left(&self) -> usize {
        self.room - self.bytes.len()
    }
}

/// Builds the control messages in at most `room` bytes and installs the descriptors; true if something did not fit.
fn write_control(thread: &Arc<Thread>, received: &Received, tell: Flags, room: usize, cloexec: bool) -> (Vec<u8>, bool) {
    const SCM_PIDFD: i32 = 4;
    let mut control = Control {
        bytes: Vec::new(),
        room,
        cut: false,
    };
    if tell.intersects(Flags::TIMESTAMP | Flags::TIMESTAMP_NANOS) {
        let now = crate::anon::now();
        let (kind, part) = if tell.contains(Flags::TIMESTAMP_NANOS) {
            (libc::SCM_TIMESTAMPNS, i64::from(now.nsec))
        } else {
            (libc::SCM_TIMESTAMP, i64::from(now.nsec / 1000))
        };
        control.push(kind, [now.sec, part].as_bytes());
    }
    if tell.contains(Flags::PASS_CRED) {
        control.push(libc::SCM_CREDENTIALS, received.cred.as_bytes());
    }
    let files = thread.files();
    if !received.files.is_empty() {
        let fitting = control.left().saturating_sub(HEADER) / 4;
        let limit = thread.limit(Resource::NOFILE).current;
        let numbers: Vec<i32> = received
            .files
            .iter()
            .take(fitting)
            .map_while(|file| files.install(file.clone(), cloexec, 0, limit).ok())
            .collect();
        control.cut |= numbers.len() < received.files.len();
        if !numbers.is_empty() {
            control.push(libc::SCM_RIGHTS, numbers.as_bytes());
        }
    }
    if tell.contains(Flags::PASS_PIDFD)
        && let Some(process) = thread.kernel().process(received.cred.pid)
    {
        if control.left() < HEADER + 4 {
            control.cut = true;
        } else if let Ok(fd) = crate::pidfd::install(thread, &process, false) {
            control.push(SCM_PIDFD, &fd.to_ne_bytes());
        }
    }
    (control.bytes, control.cut)
}

fn recvmmsg(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let timeout = Timeout::from_timespec(thread, UserPtr::new(args.args[4]))?;
    let (addr, flags) = (UserPtr::<MMsgHdr>::new(args.args[1]), int(args, 3));
    let count = (uint(args, 2) as usize).min(crate::user::IOV_MAX);
    let file = socket_file(thread, int(args, 0))?;
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
        let mut flags = flags & !libc::MSG_WAITFORONE;
        for index in 0..count {
            let place = addr.add(index)?;
            let one = async {
                let got = finish(receive_header(
                    &thread,
                    file.clone(),
                    UserPtr::new(place.addr()),
                    flags,
                )?)
                .await?;
                let length = place
                    .addr()
                    .checked_add(size_of::<MsgHdr>() as u64)
                    .ok_or(Errno::EFAULT)?;
                UserPtr::new(length).copy_out(&thread, &(got as u32))
            };
            match one.await {
                Ok(()) => {}
                Err(_) if index > 0 => return Ok(index as i64),
                Err(errno) => return Err(errno),
            }
            if wait_for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            if timeout.passed() {
                return Ok(index as i64 + 1);
            }
        }
        Ok(count as i64)
    }))
}
