//! setsockopt(2) and getsockopt(2).

use std::sync::Arc;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_abi::socket::Ucred;
use sentry_abi::time::Timeval;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;
use zerocopy::IntoBytes;

use super::args::int;
use super::socket::socket_file;
use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::unix::{Flags, Kind, Options, Socket, socket_of};
use crate::user::{UserPtr, write_bytes};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_setsockopt, setsockopt, Fd, Int, Int, Ptr, Int),
    call!(libc::SYS_getsockopt, getsockopt, Fd, Int, Int, Ptr, Ptr),
];

const SO_RCVTIMEO_NEW: i32 = 66;
const SO_SNDTIMEO_NEW: i32 = 67;
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_COOKIE: i32 = 57;
const SO_PEERGROUPS: i32 = 59;
const SO_PASSPIDFD: i32 = 76;
const SO_PEERPIDFD: i32 = 77;

/// Options that are on or off, by their number.
const SWITCHES: [(i32, Flags); 12] = [
    (libc::SO_PASSCRED, Flags::PASS_CRED),
    (SO_PASSPIDFD, Flags::PASS_PIDFD),
    (libc::SO_TIMESTAMP, Flags::TIMESTAMP),
    (SO_TIMESTAMP_NEW, Flags::TIMESTAMP),
    (libc::SO_TIMESTAMPNS, Flags::TIMESTAMP_NANOS),
    (SO_TIMESTAMPNS_NEW, Flags::TIMESTAMP_NANOS),
    (libc::SO_REUSEADDR, Flags::REUSE_ADDRESS),
    (libc::SO_KEEPALIVE, Flags::KEEP_ALIVE),
    (libc::SO_BROADCAST, Flags::BROADCAST),
    (libc::SO_OOBINLINE, Flags::OOB_INLINE),
    (libc::SO_DONTROUTE, Flags::DONT_ROUTE),
    (libc::SO_RXQ_OVFL, Flags::TELL_DROPS),
];

fn switch(option: i32) -> Option<Flags> {
    SWITCHES.iter().find(|(number, _)| *number == option).map(|(_, flag)| *flag)
}

/// Reads a value that is at least so long; `EINVAL` if the length given is less.
fn read<T: zerocopy::FromBytes + IntoBytes>(thread: &Thread, addr: u64, len: i32) -> Result<T, Errno> {
    if usize::try_from(len).map_or(true, |len| len < size_of::<T>()) {
        return Err(Errno::EINVAL);
    }
    UserPtr::new(addr).copy_in(thread)
}

fn setsockopt(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    let (level, option, addr, len) = (int(args, 1), int(args, 2), args.args[3], int(args, 4));
    let socket = socket_of(&file)?;
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    if level != libc::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    match option {
        libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW => {
            let timeout = timeout(read(thread, addr, len)?)?;
            let receive = matches!(option, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW);
            socket.set_options(|options| match receive {
                true => options.receive_timeout = timeout,
                false => options.send_timeout = timeout,
            });
        }
        libc::SO_LINGER => {
            let linger: [i32; 2] = read(thread, addr, len)?;
            socket.set_options(|options| options.linger = [i32::from(linger[0] != 0), linger[1]]);
        }
        _ => {
            let value: i32 = read(thread, addr, len)?;
            set_number(thread, socket, option, value)?;
        }
    }
    Ok(0)
}

/// A time-out from a `struct timeval`: none for 0; a negative one does not wait.
fn timeout(time: Timeval) -> Result<Option<Duration>, Errno> {
    match (time.sec, u32::try_from(time.usec)) {
        (0, Ok(0)) => Ok(None),
        (..0, Ok(0..1_000_000)) => Ok(Some(Duration::ZERO)),
        (sec, Ok(usec @ 0..1_000_000)) => Ok(Some(Duration::new(sec as u64, usec * 1000))),
        _ => Err(Errno::EDOM),
    }
}

fn set_number(thread: &Thread, socket: &Socket, option: i32, value: i32) -> Result<(), Errno> {
    if let Some(flag) = switch(option) {
        socket.set_options(|options| {
            // The two kinds of time exclude each other.
            if value != 0 && (Flags::TIMESTAMP | Flags::TIMESTAMP_NANOS).contains(flag) {
                options.flags -= Flags::TIMESTAMP | Flags::TIMESTAMP_NANOS;
            }
            options.flags.set(flag, value != 0);
        });
        return Ok(());
    }
    let cred = thread.cred();
    let net_admin = cred.has(Cap::NET_ADMIN);
    match option {
        libc::SO_SNDBUF => socket.set_options(|options| options.set_send_buffer(value)),
        libc::SO_RCVBUF => socket.set_options(|options| options.set_receive_buffer(value)),
        // Beyond the usual limit nothing is given, whoever asks: the memory is the sentry's.
        libc::SO_SNDBUFFORCE if net_admin => socket.set_options(|options| options.set_send_buffer(value)),
        libc::SO_RCVBUFFORCE if net_admin => socket.set_options(|options| options.set_receive_buffer(value)),
        libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE => return Err(Errno::EPERM),
        libc::SO_RCVLOWAT => {
            let low_water = usize::try_from(value).unwrap_or(i32::MAX as usize).max(1);
            socket.set_options(|options| options.low_water = low_water);
        }
        libc::SO_PEEK_OFF => socket.set_options(|options| options.peek_offset = value),
        libc::SO_PRIORITY if (0..=6).contains(&value) || net_admin => {
            socket.set_options(|options| options.priority = value);
        }
        libc::SO_MARK if net_admin || cred.has(Cap::NET_RAW) => {
            socket.set_options(|options| options.mark = value as u32);
        }
        libc::SO_PRIORITY | libc::SO_MARK => return Err(Errno::EPERM),
        libc::SO_DEBUG if value == 0 || net_admin => {}
        libc::SO_DEBUG => return Err(Errno::EACCES),
        libc::SO_REUSEPORT | libc::SO_ZEROCOPY => return Err(Errno::EOPNOTSUPP),
        libc::SO_TYPE
        | libc::SO_PROTOCOL
        | libc::SO_DOMAIN
        | libc::SO_ERROR
        | libc::SO_ACCEPTCONN
        | libc::SO_SNDLOWAT
        | libc::SO_PEERCRED
        | SO_PEERPIDFD
        | SO_PEERGROUPS
        | SO_COOKIE => return Err(Errno::ENOPROTOOPT),
        _ => {
            crate::gap!(thread.kernel(), "setsockopt SOL_SOCKET option {option}");
            return Err(Errno::ENOPROTOOPT);
        }
    }
    Ok(())
}

fn getsockopt(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = socket_file(thread, int(args, 0))?;
    let (level, option, out) = (int(args, 1), int(args, 2), args.args[3]);
    let socket = socket_of(&file)?;
    if level != libc::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let len = UserPtr::<i32>::new(args.args[4]);
    let room = usize::try_from(len.copy_in(thread)?).map_err(|_| Errno::EINVAL)?;
    let value = value(thread, socket, option)?;
    if option == SO_PEERGROUPS && room < value.len() {
        // The length that is needed is told.
        len.copy_out(thread, &i32::try_from(value.len()).unwrap_or(i32::MAX))?;
        return Err(Errno::ERANGE);
    }
    if option == SO_COOKIE && room < value.len() {
        return Err(Errno::EINVAL);
    }
    let room = room.min(value.len());
    let result = write_bytes(thread, out, &value[..room])
        .and_then(|()| len.copy_out(thread, &i32::try_from(room).unwrap_or(i32::MAX)));
    if result.is_err() && option == SO_PEERPIDFD {
        let fd = value.first_chunk().map_or(-1, |bytes| i32::from_ne_bytes(*bytes));
        let _ = thread.files().close(fd);
    }
    result.map(|()| 0)
}

/// An option's value, as its bytes.
fn value(thread: &Arc<Thread>, socket: &Socket, option: i32) -> Result<Vec<u8>, Errno> {
    let options: Options = socket.options();
    let number = |value: i32| Ok(value.to_ne_bytes().to_vec());
    let size = |value: usize| i32::try_from(value).unwrap_or(i32::MAX).to_ne_bytes().to_vec();
    let time = |timeout: Option<Duration>| {
        let nanos = timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let time = Timeval::from_nanos(nanos);
        Ok([time.sec.to_ne_bytes(), time.usec.to_ne_bytes()].concat())
    };
    if let Some(flag) = switch(option) {
        return number(options.has(flag).into());
    }
    match option {
        libc::SO_TYPE => number(socket.kind().raw()),
        libc::SO_DOMAIN => number(libc::AF_UNIX),
        libc::SO_PROTOCOL | libc::SO_DEBUG | libc::SO_REUSEPORT => number(0),
        libc::SO_ERROR => number(socket.take_error().map_or(0, Errno::raw)),
        libc::SO_SNDBUF => Ok(size(options.send_buffer)),
        libc::SO_RCVBUF => Ok(size(options.receive_buffer)),
        libc::SO_ACCEPTCONN => number(socket.is_listening().into()),
        libc::SO_RCVLOWAT => Ok(size(options.low_water)),
        libc::SO_SNDLOWAT => number(1),
        libc::SO_LINGER => Ok(options.linger.as_bytes().to_vec()),
        libc::SO_PRIORITY => number(options.priority),
        libc::SO_MARK => number(options.mark as i32),
        libc::SO_PEEK_OFF => number(options.peek_offset),
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => time(options.receive_timeout),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => time(options.send_timeout),
        libc::SO_PEERCRED => {
            let Ucred { pid, uid, gid } = socket.peer_info().cred;
            Ok([pid.to_ne_bytes(), uid.to_ne_bytes(), gid.to_ne_bytes()].concat())
        }
        SO_PEERGROUPS => {
            let groups = socket.peer_info().groups.ok_or(Errno::ENODATA)?;
            Ok(groups.as_bytes().to_vec())
        }
        SO_PEERPIDFD => {
            let info = socket.peer_info();
            if info.groups.is_none() {
                return Err(Errno::ENODATA);
            }
            let process = info.process.upgrade().ok_or(Errno::ESRCH)?;
            number(crate::pidfd::install(thread, &process, false)?)
        }
        SO_COOKIE => Ok(socket.attributes().ino.to_ne_bytes().to_vec()),
        libc::SO_PEERNAME if socket.kind() != Kind::Datagram => {
            let name = socket.peer_name()?;
            Ok(crate::unix::address_bytes(name.as_ref()))
        }
        _ => {
            crate::gap!(thread.kernel(), "getsockopt SOL_SOCKET option {option}");
            Err(Errno::ENOPROTOOPT)
        }
    }
}
