//! ioctl(2), and vhangup(2), which is one of its requests to the caller's own terminal.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;

use super::args::{file, int};
use super::{Row, SysResult, call};
use crate::epoll::Epoll;
use crate::inotify::Inotify;
use crate::pipe::PipeEnd;
use crate::stdio::HostStdio;
use crate::task::Thread;
use crate::tty::{self, TtyFile};
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_ioctl, ioctl, Fd, Hex, Hex),
    call!(libc::SYS_vhangup, vhangup),
];

const FIGETBSZ: u64 = 2;
const FIONCLEX: u64 = 0x5450;
const FIOCLEX: u64 = 0x5451;
const FIOASYNC: u64 = 0x5452;

fn ioctl(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let fd = int(args, 0);
    let file = file(thread, fd)?;
    // The request is an unsigned int.
    let (request, argument) = (args.args[1] & 0xffff_ffff, args.args[2]);
    match request {
        FIOCLEX => thread.files().set_cloexec(fd, true).map(|()| 0),
        FIONCLEX => thread.files().set_cloexec(fd, false).map(|()| 0),
        libc::FIONBIO => {
            let on: i32 = UserPtr::new(argument).copy_in(thread)?;
            file.set_flags(
                libc::O_NONBLOCK as u32,
                if on != 0 { libc::O_NONBLOCK as u32 } else { 0 },
            );
            Ok(0)
        }
        FIOASYNC => {
            let on: i32 = UserPtr::new(argument).copy_in(thread)?;
            let (on, flag) = (on != 0, libc::O_ASYNC as u32);
            if on != (file.flags() & flag != 0) {
                file.set_flags(flag, if on { flag } else { 0 });
                crate::sigio::set_async(thread.kernel(), &file, fd, on);
            }
            Ok(0)
        }
        FIGETBSZ if file.path().mount().is_some() => UserPtr::new(argument)
            .copy_out(thread, &file.attributes()?.block_size)
            .map(|()| 0),
        // epoll has calls of its own (of a later Linux) and refuses what it does not know in its own way.
        _ if Epoll::of(&file).is_ok() => Err(Errno::EINVAL),
        _ => match TtyFile::of(&file) {
            Some(tty) => tty::ioctl::ioctl(thread, &file, tty, request, argument),
            None if request == libc::FIONREAD => {
                UserPtr::new(argument).copy_out(thread, &available(&file)?).map(|()| 0)
            }
            None if request == libc::TIOCOUTQ => UserPtr::new(argument)
                .copy_out(thread, &outstanding(&file)?)
                .map(|()| 0),
            None => other(thread, &file, request),
        },
    }
}

/// `SIOCOUTQ`: bytes that the peer has not read yet.
fn outstanding(file: &File) -> Result<i32, Errno> {
    let socket = crate::unix::socket_of(file).map_err(|_| Errno::ENOTTY)?;
    Ok(i32::try_from(socket.outstanding()).unwrap_or(i32::MAX))
}

fn vhangup(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    tty::ioctl::hang_up_own(thread)
}

/// `FIONREAD`: what can be read at once.
fn available(file: &File) -> Result<i32, Errno> {
    if let Some(host) = HostStdio::of(file) {
        return host.available();
    }
    if let Some(end) = file.ops().as_any().downcast_ref::<PipeEnd>() {
        return Ok(i32::try_from(end.pipe().available()).unwrap_or(i32::MAX));
    }
    if let Ok(inotify) = Inotify::of(file) {
        return Ok(i32::try_from(inotify.available()).unwrap_or(i32::MAX));
    }
    if let Ok(socket) = crate::unix::socket_of(file)
        && socket.is_listening()
    {
        return Err(Errno::EINVAL);
    }
    if let Some(count) = crate::unix::available(file) {
        return Ok(i32::try_from(count).unwrap_or(i32::MAX));
    }
    let attributes = file.attributes()?;
    if attributes.mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::ENOTTY);
    }
    let left = i128::from(attributes.size) - i128::from(file.position.now());
    Ok(left.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32)
}

fn other(thread: &Thread, file: &File, request: u64) -> SysResult {
    const TTY_REQUESTS: std::ops::RangeInclusive<u64> = 0x5401..=0x5460;
    if !TTY_REQUESTS.contains(&request) {
        let kind = crate::io::kind_of(file);
        crate::gap!(thread.kernel(), "ioctl {request:#x} on file type {:#o}", kind);
    }
    Err(Errno::ENOTTY)
}
