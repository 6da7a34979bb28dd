//! read(2), write(2), lseek(2) and their kin.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::{File, FileOps};

use super::args::{any_file, file, int, uint};
use super::{Row, Sys, SysResult, call};
use crate::epoll::Epoll;
use crate::eventfd::EventFd;
use crate::inotify::Inotify;
use crate::leases;
use crate::io::{self, Buffers, Position, RWF_KNOWN};
use crate::signalfd::SignalFd;
use crate::task::{Resource, Thread};
use crate::timerfd::TimerFd;
use crate::user::read_iovecs;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_read, read, Fd, Out, Int),
    call!(libc::SYS_write, write, Fd, Buf(2), Int),
    call!(libc::SYS_pread64, pread64, Fd, Out, Int, Int),
    call!(libc::SYS_pwrite64, pwrite64, Fd, Buf(2), Int, Int),
    call!(libc::SYS_readv, readv, Fd, Ptr, Int),
    call!(libc::SYS_writev, writev, Fd, Ptr, Int),
    call!(libc::SYS_preadv, preadv, Fd, Ptr, Int, Int),
    call!(libc::SYS_pwritev, pwritev, Fd, Ptr, Int, Int),
    call!(libc::SYS_preadv2, preadv2, Fd, Ptr, Int, Int, Int, Hex),
    call!(libc::SYS_pwritev2, pwritev2, Fd, Ptr, Int, Int, Int, Hex),
    call!(libc::SYS_lseek, lseek, Fd, Int, Int),
    call!(libc::SYS_fsync, fsync, Fd),
    call!(libc::SYS_fdatasync, fdatasync, Fd),
    call!(libc::SYS_sync, sync),
    call!(libc::SYS_syncfs, syncfs, Fd),
    call!(libc::SYS_sync_file_range, sync_file_range, Fd, Int, Int, Hex),
    call!(libc::SYS_fadvise64, fadvise64, Fd, Int, Int, Int),
    call!(libc::SYS_readahead, readahead, Fd, Int, Int),
    call!(libc::SYS_truncate, truncate, Str, Int),
    call!(libc::SYS_ftruncate, ftruncate, Fd, Int),
    call!(libc::SYS_fallocate, fallocate, Fd, Hex, Int, Int),
];

fn readable(thread: &Thread, fd: i32) -> Result<Arc<File>, Errno> {
    let file = any_file(thread, fd)?;
    if file.readable() { Ok(file) } else { Err(Errno::EBADF) }
}

fn writable(thread: &Thread, fd: i32) -> Result<Arc<File>, Errno> {
    let file = any_file(thread, fd)?;
    if file.writable() { Ok(file) } else { Err(Errno::EBADF) }
}

/// A count from the guest; negative ones are `EINVAL`.
fn count(raw: u64) -> Result<u64, Errno> {
    if i64::try_from(raw).is_ok() {
        Ok(raw)
    } else {
        Err(Errno::EINVAL)
    }
}

fn offset(raw: u64) -> Result<Position, Errno> {
    if i64::try_from(raw).is_ok() {
        Ok(Position::At(raw))
    } else {
        Err(Errno::EINVAL)
    }
}

fn seekable(file: Arc<File>) -> Result<Arc<File>, Errno> {
    if file.ops().seekable() {
        Ok(file)
    } else {
        Err(Errno::ESPIPE)
    }
}

fn read(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = readable(thread, int(args, 0))?;
    let buffers = Buffers::one(args.args[1], count(args.args[2])?);
    Ok(io::read(thread, file, buffers, Position::Current, 0))
}

fn write(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = writable(thread, int(args, 0))?;
    let buffers = Buffers::one(args.args[1], count(args.args[2])?);
    Ok(io::write(thread, file, buffers, Position::Current, 0))
}

fn pread64(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let position = offset(args.args[3])?;
    let file = seekable(readable(thread, int(args, 0))?)?;
    let buffers = Buffers::one(args.args[1], count(args.args[2])?);
    Ok(io::read(thread, file, buffers, position, 0))
}

fn pwrite64(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let position = offset(args.args[3])?;
    let file = seekable(writable(thread, int(args, 0))?)?;
    let buffers = Buffers::one(args.args[1], count(args.args[2])?);
    Ok(io::write(thread, file, buffers, position, 0))
}

fn vectors(thread: &Thread, args: &SyscallArgs) -> Result<Buffers, Errno> {
    let vectors = read_iovecs(thread, args.args[1], args.args[2])?;
    Ok(if let [one] = vectors.as_slice() {
        Buffers::One([*one])
    } else {
        Buffers::Many(vectors)
    })
}

fn readv(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = readable(thread, int(args, 0))?;
    Ok(io::read(thread, file, vectors(thread, args)?, Position::Current, 0))
}

fn writev(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = writable(thread, int(args, 0))?;
    Ok(io::write(thread, file, vectors(thread, args)?, Position::Current, 0))
}

fn preadv(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let position = offset(args.args[3])?;
    let file = seekable(readable(thread, int(args, 0))?)?;
    Ok(io::read(thread, file, vectors(thread, args)?, position, 0))
}

fn pwritev(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let position = offset(args.args[3])?;
    let file = seekable(writable(thread, int(args, 0))?)?;
    Ok(io::write(thread, file, vectors(thread, args)?, position, 0))
}

/// The position and flags of preadv2(2) and pwritev2(2): offset -1 stands for the file's position.
fn position_and_flags(args: &SyscallArgs) -> Result<(Position, u32), Errno> {
    let position = if args.args[3] == u64::MAX {
        Position::Current
    } else {
        offset(args.args[3])?
    };
    Ok((position, uint(args, 5)))
}

/// The buffers of these calls; flags that are not known are refused only if there is something to move.
fn vectors_for(thread: &Arc<Thread>, args: &SyscallArgs, flags: u32) -> Result<Buffers, Errno> {
    let buffers = vectors(thread, args)?;
    if flags & !RWF_KNOWN != 0 && !buffers.is_empty() {
        crate::gap!(thread.kernel(), "preadv2 or pwritev2 flags {:#x}", flags & !RWF_KNOWN);
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(buffers)
}

fn preadv2(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = readable(thread, int(args, 0))?;
    let (position, flags) = position_and_flags(args)?;
    let file = if position == Position::Current {
        file
    } else {
        seekable(file)?
    };
    Ok(io::read(thread, file, vectors_for(thread, args, flags)?, position, flags))
}

fn pwritev2(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = writable(thread, int(args, 0))?;
    let (position, flags) = position_and_flags(args)?;
    let file = if position == Position::Current {
        file
    } else {
        seekable(file)?
    };
    Ok(io::write(thread, file, vectors_for(thread, args, flags)?, position, flags))
}

fn lseek(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    do_lseek(&file, args.args[1] as i64, int(args, 2))
}

/// True for files on which lseek(2) does nothing.
fn rests(ops: &dyn FileOps) -> bool {
    let any = ops.as_any();
    any.is::<EventFd>() || any.is::<TimerFd>() || any.is::<SignalFd>() || any.is::<Epoll>() || any.is::<Inotify>()
}

/// Moves a file's position.
fn do_lseek(file: &File, offset: i64, whence: i32) -> SysResult {
    let ops = file.ops();
    if !(0..=libc::SEEK_HOLE).contains(&whence) {
        return Err(Errno::EINVAL);
    }
    if ops.own_position() {
        return ops.own_seek(offset, whence).map(|position| position as i64);
    }
    if !ops.seekable() {
        // Counters, timers and their like have a position that nothing moves.
        return if rests(ops) { Ok(0) } else { Err(Errno::ESPIPE) };
    }
    let position = file.position.lock();
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => i64::try_from(position.get()).map_err(|_| Errno::EOVERFLOW)?,
        libc::SEEK_END => i64::try_from(ops.size(file)?).map_err(|_| Errno::EOVERFLOW)?,
        _ => {
            let start = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            position.set(ops.seek_extent(file, start, whence == libc::SEEK_DATA)?);
            return i64::try_from(position.get()).map_err(|_| Errno::EOVERFLOW);
        }
    };
    let target = base.checked_add(offset).ok_or(Errno::EOVERFLOW)?;
    position.set(u64::try_from(target).map_err(|_| Errno::EINVAL)?);
    Ok(target)
}

/// Flushes a file in the pool if it has a host file behind, at once else.
fn flush(thread: &Arc<Thread>, file: Arc<File>, data_only: bool) -> Sys {
    if file.ops().host_file().is_none_or(|host| !host.may_block) {
        return file.ops().sync(data_only).map(|()| 0).into();
    }
    let thread = thread.clone();
    Sys::wait(async move {
        thread.guest().will_block();
        thread
            .kernel()
            .executor()
            .blocking(move || file.ops().sync(data_only))
            .await
            .map(|()| 0)
    })
}

fn fsync(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    Ok(flush(thread, syncable(thread, args)?, false))
}

fn fdatasync(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    Ok(flush(thread, syncable(thread, args)?, true))
}

/// `EINVAL` for pipes, sockets and other files without a file system.
fn syncable(thread: &Thread, args: &SyscallArgs) -> Result<Arc<File>, Errno> {
    let file = file(thread, int(args, 0))?;
    if file.ops().anonymous_attributes().is_some() {
        Err(Errno::EINVAL)
    } else {
        Ok(file)
    }
}

fn sync(_thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(0)
}

fn syncfs(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    Ok(flush(thread, file(thread, int(args, 0))?, false))
}

fn sync_file_range(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let file = file(thread, int(args, 0))?;
    let (offset, len) = (args.args[1] as i64, args.args[2] as i64);
    if uint(args, 3) & !7 != 0 || offset < 0 || len < 0 || offset.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(flush(thread, seekable(file)?, true))
}

fn fadvise64(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    if !file.ops().seekable() {
        return Err(Errno::ESPIPE);
    }
    if !(0..=5).contains(&int(args, 3)) || (args.args[2] as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

fn readahead(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = readable(thread, int(args, 0))?;
    if file.ops().host_file().is_none() && !file.ops().seekable() {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// Checks a new length against `RLIMIT_FSIZE`.
fn length(thread: &Arc<Thread>, raw: u64) -> Result<u64, Errno> {
    let len = count(raw)?;
    if len > thread.limit(Resource::FSIZE).current {
        return Err(io::failed_write(thread, Errno::EFBIG));
    }
    Ok(len)
}

fn truncate(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let len = count(args.args[1])?;
    let name = crate::user::read_path(thread, args.args[0])?;
    let (context, vfs) = (thread.context(), thread.kernel().vfs());
    let caller = context.caller();
    let path = vfs.resolve(
        &caller,
        sentry_vfs::ops::At::Cwd,
        &name,
        sentry_vfs::ops::Lookup::empty(),
    )?;
    length(thread, len)?;
    match vfs.truncate(&caller, &path, len) {
        Err(Errno::EJUKEBOX) => {}
        result => return Ok(Sys::Done(result.map(|()| 0))),
    }
    // Somebody has a lease on it.
    let (thread, refused) = (thread.clone(), leases::refused());
    Ok(Sys::wait(async move {
        let again = || {
            let context = thread.context();
            thread.kernel().vfs().truncate(&context.caller(), &path, len)
        };
        leases::retry(&thread, refused, again).await.map(|()| 0)
    }))
}

fn ftruncate(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let len = count(args.args[1])?;
    let file = file(thread, int(args, 0))?;
    if !file.writable() {
        return Err(Errno::EINVAL);
    }
    length(thread, len)?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .truncate_file(&context.caller(), &file, len)
        .map(|()| 0)
}

fn fallocate(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (mode, start, len) = (int(args, 1), args.args[2] as i64, args.args[3] as i64);
    file(thread, int(args, 0))?;
    if start < 0 || len <= 0 {
        return Err(Errno::EINVAL);
    }
    const KNOWN: i32 = 0x7f;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
    if mode & !KNOWN != 0 || mode & (PUNCH | libc::FALLOC_FL_KEEP_SIZE) == PUNCH {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = writable(thread, int(args, 0))?;
    let end = start.checked_add(len).ok_or(Errno::EFBIG)?;
    if !file.ops().seekable() {
        return Err(if file.ops().anonymous_attributes().is_some() {
            Errno::ESPIPE
        } else {
            Errno::ENODEV
        });
    }
    let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
    if grows {
        length(thread, end as u64)?;
    }
    file.ops().fallocate(mode, start as u64, len as u64)?;
    io::remove_privileges(thread, &file)?;
    io::modified(thread, &file);
    Ok(0)
}
