//! Sockets. Only Unix sockets exist so far.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::socket::Ucred;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Credentials;
use sentry_vfs::file::File;
use sentry_vfs::ops::{Access, At, Lookup};
use sentry_vfs::wait::PollEvents;

use super::args::{file, install, int};
use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::io::waited;
use crate::task::{Resource, Thread, block_on};
use crate::unix::{Address, Kind, Name, PeerInfo, Socket, UnixSocket, address_bytes, socket_of};
use crate::user::{UserPtr, read_bytes, write_bytes};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_socket, socket, Int, Hex, Int),
    call!(libc::SYS_socketpair, socketpair, Int, Hex, Int, Ptr),
    call!(libc::SYS_bind, bind, Fd, Ptr, Int),
    call!(libc::SYS_listen, listen, Fd, Int),
    call!(libc::SYS_accept, accept, Fd, Ptr, Ptr),
    call!(libc::SYS_accept4, accept4, Fd, Ptr, Ptr, Hex),
    call!(libc::SYS_connect, connect, Fd, Ptr, Int),
    call!(libc::SYS_getsockname, getsockname, Fd, Ptr, Ptr),
    call!(libc::SYS_getpeername, getpeername, Fd, Ptr, Ptr),
    call!(libc::SYS_shutdown, shutdown, Fd, Int),
];

/// Beyond the highest type of socket.
const SOCK_MAX: i32 = 11;
/// The longest socket address.
const ADDRESS_MAX: usize = 128;

/// Who the caller is to its peers.
pub(super) fn peer_cred(thread: &Thread) -> Ucred {
    let cred = thread.cred();
    Ucred {
        pid: thread.pid(),
        uid: cred.euid,
        gid: cred.egid,
    }
}

/// The caller as its peers see it later.
fn peer_info(thread: &Thread) -> PeerInfo {
    PeerInfo {
        cred: peer_cred(thread),
        groups: Some(thread.cred().groups.clone()),
        process: Arc::downgrade(thread.process()),
    }
}

/// The flags in a socket's type argument, and the rest of it.
fn split_type(raw: i32) -> Result<(i32, bool, bool), Errno> {
    let flags = raw & !0xf;
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok((
        raw & 0xf,
        flags & libc::SOCK_CLOEXEC != 0,
        flags & libc::SOCK_NONBLOCK != 0,
    ))
}

/// Checks family and protocol of a Unix socket.
fn check_family(thread: &Thread, family: i32, protocol: i32) -> Result<(), Errno> {
    if family != libc::AF_UNIX {
        crate::gap!(thread.kernel(), "socket of family {family}");
        return Err(Errno::EAFNOSUPPORT);
    }
    if protocol != 0 && protocol != libc::AF_UNIX {
        Err(Errno::EPROTONOSUPPORT)
    } else {
        Ok(())
    }
}

fn socket(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (kind, cloexec, nonblocking) = split_type(int(args, 1))?;
    check_family(thread, int(args, 0), int(args, 2))?;
    if kind >= SOCK_MAX {
        return Err(Errno::EINVAL);
    }
    let kind = Kind::from_raw(kind)?;
    let file = UnixSocket::create(thread.kernel(), kind, peer_cred(thread), nonblocking);
    install(thread, file, cloexec)
}

fn socketpair(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (kind, cloexec, nonblocking) = split_type(int(args, 1))?;
    if matches!(int(args, 0), libc::AF_INET | libc::AF_INET6) {
        return Err(Errno::EOPNOTSUPP);
    }
    check_family(thread, int(args, 0), int(args, 2))?;
    let cred = peer_cred(thread);
    let (a, b) = Socket::pair(&Arc::downgrade(thread.kernel()), Kind::from_raw(kind)?, peer_info(thread));
    let pair = (
        UnixSocket::file(a, cred, nonblocking),
        UnixSocket::file(b, cred, nonblocking),
    );
    let files = thread.files();
    let (a, b) = files.install_pair(pair, cloexec, thread.limit(Resource::NOFILE).current)?;
    if let Err(errno) = UserPtr::new(args.args[3]).copy_out(thread, &[a, b]) {
        let _ = files.close(a);
        let _ = files.close(b);
        return Err(errno);
    }
    Ok(0)
}

/// A socket's file.
pub(super) fn socket_file(thread: &Thread, fd: i32) -> Result<Arc<File>, Errno> {
    let file = file(thread, fd)?;
    socket_of(&file)?;
    Ok(file)
}

/// The bytes of an address argument.
pub(super) fn read_address(thread: &Thread, addr: u64, len: i32) -> Result<Vec<u8>, Errno> {
    let len = usize::try_from(len)
        .ok()
        .filter(|&len| len <= ADDRESS_MAX)
        .ok_or(Errno::EINVAL)?;
    let mut bytes = vec![0; len];
    read_bytes(thread, addr, &mut bytes)?;
    Ok(bytes)
}

/// Writes an address and its length out, cut to the room there is; nothing for a null pointer.
pub(super) fn write_address(thread: &Thread, addr: u64, len: UserPtr<i32>, bytes: &[u8]) -> Result<(), Errno> {
    if addr == 0 {
        return Ok(());
    }
    let room = usize::try_from(len.copy_in(thread)?).map_err(|_| Errno::EINVAL)?;
    write_bytes(thread, addr, &bytes[..room.min(bytes.len())])?;
    len.copy_out(thread, &i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

/// The socket at an address.
pub(super) fn find_socket(thread: &Thread, bytes: &[u8], kind: Kind) -> Result<Arc<Socket>, Errno> {
    let kernel = thread.kernel();
    match Address::parse(bytes)? {
        Address::Unnamed => Err(Errno::EINVAL),
        Address::Abstract(name) => kernel.unix.find_abstract(&name, kind).ok_or(Errno::ECONNREFUSED),
        Address::Path(path) => {
            let context = thread.context();
            let caller = context.caller();
            let place = kernel.vfs().resolve(&caller, At::Cwd, &path, Lookup::empty())?;
            kernel.vfs().access(&caller, &place, Access::WRITE)?;
            kernel.unix.find_place(&place).ok_or(Errno::ECONNREFUSED)
        }
    }
}

fn bind(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    let bytes = read_address(thread, args.args[1], int(args, 2))?;
    let (socket, kernel) = (socket_of(&file)?, thread.kernel());
    let name = match Address::parse(&bytes)? {
        Address::Unnamed => None,
        Address::Abstract(name) => Some(Name::Abstract(name)),
        Address::Path(path) => {
            if socket.name().is_some() {
                return Err(Errno::EINVAL);
            }
            let context = thread.context();
            let made = kernel
                .vfs()
                .mknod(&context.caller(), At::Cwd, &path, libc::S_IFSOCK | 0o777, 0);
            let place = made.map_err(|errno| {
                if errno == Errno::EEXIST {
                    Errno::EADDRINUSE
                } else {
                    errno
                }
            })?;
            Some(Name::Path(path, place))
        }
    };
    socket.bind(&kernel.unix, name).map(|()| 0)
}

fn listen(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    socket_of(&file)?.listen(int(args, 1), peer_info(thread)).map(|()| 0)
}

fn accept(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    do_accept(thread, args, 0)
}

fn accept4(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    do_accept(thread, args, int(args, 3))
}

fn do_accept(thread: &Arc<Thread>, args: &SyscallArgs, flags: i32) -> Result<Sys, Errno> {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let listener = socket_file(thread, int(args, 0))?;
    let (addr, len) = (args.args[1], UserPtr::new(args.args[2]));
    let finish = move |thread: &Thread, socket: Arc<Socket>| {
        let bytes = address_bytes(socket.peer_name().ok().flatten().as_ref());
        write_address(thread, addr, len, &bytes)?;
        let file = UnixSocket::file(socket, peer_cred(thread), flags & libc::SOCK_NONBLOCK != 0);
        install(thread, file, flags & libc::SOCK_CLOEXEC != 0)
    };
    match socket_of(&listener)?.accept() {
        Err(Errno::EAGAIN) if !listener.nonblocking() => {}
        result => return Ok(Sys::Done(finish(thread, result?))),
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let socket = socket_of(&listener)?;
        let deadline = socket.options().receive_timeout.map(Deadline::after);
        let result = block_on(
            &thread,
            deadline,
            &[(socket.queue(), PollEvents::IN)],
            || match socket.accept() {
                Err(Errno::EAGAIN) => None,
                result => Some(result),
            },
        )
        .await;
        match result {
            Ok(socket) => finish(&thread, socket?),
            Err(wake) => waited(Err(wake), deadline),
        }
    }))
}

fn connect(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = socket_file(thread, int(args, 0))?;
    let bytes = read_address(thread, args.args[1], int(args, 2))?;
    let socket = socket_of(&file)?;
    if socket.kind() == Kind::Datagram {
        let unspecified = bytes.first_chunk::<2>() == Some(&(libc::AF_UNSPEC as u16).to_ne_bytes());
        let target = if unspecified {
            None
        } else {
            socket.autobind(&thread.kernel().unix)?;
            Some(find_socket(thread, &bytes, Kind::Datagram)?)
        };
        return Ok(socket.connect_datagram(target.as_ref()).map(|()| 0).into());
    }
    let listener = find_socket(thread, &bytes, socket.kind())?;
    socket.autobind(&thread.kernel().unix)?;
    let info = peer_info(thread);
    match socket.connect(&listener, info.clone()) {
        Err(Errno::EAGAIN) if !file.nonblocking() => {}
        result => return Ok(result.map(|()| 0).into()),
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let socket = socket_of(&file)?;
        let deadline = socket.options().send_timeout.map(Deadline::after);
        // The listener may go while its backlog is full: each try finds that out.
        let queues = [(listener.queue(), PollEvents::OUT | PollEvents::HUP)];
        let result = block_on(&thread, deadline, &queues, || match socket.connect(&listener, info.clone()) {
            Err(Errno::EAGAIN) => None,
            result => Some(result.map(|()| 0)),
        })
        .await;
        waited(result, deadline)
    }))
}

fn getsockname(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    let bytes = address_bytes(socket_of(&file)?.name().as_ref());
    write_address(thread, args.args[1], UserPtr::new(args.args[2]), &bytes).map(|()| 0)
}

fn getpeername(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    let bytes = address_bytes(socket_of(&file)?.peer_name()?.as_ref());
    write_address(thread, args.args[1], UserPtr::new(args.args[2]), &bytes).map(|()| 0)
}

fn shutdown(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    socket_of(&file)?.shut_down(int(args, 1)).map(|()| 0)
}

/// Checks credentials that a sender claims (`SCM_CREDENTIALS`).
pub(super) fn check_claimed(thread: &Thread, cred: &Credentials, claimed: Ucred) -> Result<(), Errno> {
    use sentry_vfs::cred::Cap;
    if thread.kernel().process(claimed.pid).is_none() && thread.kernel().thread(claimed.pid).is_none() {
        return Err(Errno::ESRCH);
    }
    let pid_fits = claimed.pid == thread.pid() || cred.has(Cap::SYS_ADMIN);
    let uid_fits = [cred.uid, cred.euid, cred.suid].contains(&claimed.uid) || cred.has(Cap::SETUID);
    let gid_fits = [cred.gid, cred.egid, cred.sgid].contains(&claimed.gid) || cred.has(Cap::SETGID);
    if pid_fits && uid_fits && gid_fits {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
