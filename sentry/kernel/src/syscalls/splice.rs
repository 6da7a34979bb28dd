//! splice(2), tee(2), vmsplice(2), sendfile(2), copy_file_range(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;

use super::args::{file, int, uint};
use super::{Row, Sys, call};
use crate::io::{self, Buffers, CHUNK, Position};
use crate::splice::{Side, Transfer, Until, pipe_of};
use crate::task::{Thread, block_on};
use crate::user::{UserPtr, read_iovecs};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_splice, splice, Fd, Ptr, Fd, Ptr, Int, Hex),
    call!(libc::SYS_tee, tee, Fd, Fd, Int, Hex),
    call!(libc::SYS_vmsplice, vmsplice, Fd, Ptr, Int, Hex),
    call!(libc::SYS_sendfile, sendfile, Fd, Fd, Ptr, Int),
    call!(libc::SYS_copy_file_range, copy_file_range, Fd, Ptr, Fd, Ptr, Int, Hex),
];

/// `SPLICE_F_NONBLOCK`.
const NONBLOCK: u32 = 2;
/// All `SPLICE_F_*`.
const KNOWN: u32 = 0xf;

/// An optional offset argument: its present value, not checked yet.
fn offset_of(thread: &Thread, pointer: UserPtr<i64>) -> Result<Option<i64>, Errno> {
    if pointer.is_null() {
        return Ok(None);
    }
    pointer.copy_in(thread).map(Some)
}

/// Where a transfer of `len` bytes begins, if an offset was given: `no_offsets` for a file that has none, `EINVAL`
/// for a place that is none.
fn place_of(file: &File, offset: Option<i64>, len: u64, no_offsets: Errno) -> Result<Option<u64>, Errno> {
    if offset.is_some() && !file.ops().seekable() {
        return Err(no_offsets);
    }
    let place = match offset {
        Some(offset) => offset,
        None if file.ops().seekable() => i64::try_from(file.position.now()).unwrap_or(0),
        None => 0,
    };
    let len = i64::try_from(len).map_err(|_| Errno::EINVAL)?;
    if place < 0 || place.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(offset.map(|offset| offset as u64))
}

fn check_length(len: u64) -> usize {
    usize::try_from(len)
        .unwrap_or(usize::MAX)
        .min(crate::user::MAX_RW_COUNT)
}

/// What a transfer does at its end: the offsets that were given by pointer move along.
fn store_offsets(
    in_pointer: UserPtr<i64>,
    out_pointer: UserPtr<i64>,
) -> impl Fn(&Thread, &Transfer) -> Result<(), Errno> {
    move |thread, transfer| {
        if let Some(offset) = transfer.from.offset
            && !in_pointer.is_null()
        {
            in_pointer.copy_out(thread, &(offset as i64))?;
        }
        if let Some(offset) = transfer.to.offset {
            out_pointer.copy_out(thread, &(offset as i64))?;
        }
        Ok(())
    }
}

fn appends(file: &File) -> bool {
    file.flags() & libc::O_APPEND as u32 != 0
}

fn splice(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let flags = uint(args, 5);
    let left = check_length(args.args[4]);
    if left == 0 {
        return Ok(Sys::Done(Ok(0)));
    }
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (file(thread, int(args, 0))?, file(thread, int(args, 2))?);
    let (in_pointer, out_pointer) = (UserPtr::<i64>::new(args.args[1]), UserPtr::<i64>::new(args.args[3]));
    let has_offset = |file: &File, pointer: UserPtr<i64>| pipe_of(file).is_some() && !pointer.is_null();
    if has_offset(&from, in_pointer) || has_offset(&to, out_pointer) {
        return Err(Errno::ESPIPE);
    }
    let out_offset = offset_of(thread, out_pointer)?;
    let in_offset = offset_of(thread, in_pointer)?;
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    let (source, target) = (pipe_of(&from), pipe_of(&to));
    match (source, target) {
        (None, None) => return Err(Errno::EINVAL),
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return Err(Errno::EINVAL),
        (Some(_), None) if appends(&to) => return Err(Errno::EINVAL),
        _ => {}
    }
    let from = Side {
        offset: place_of(&from, in_offset, args.args[4], Errno::EINVAL)?,
        file: from.clone(),
    };
    let to = Side {
        offset: place_of(&to, out_offset, args.args[4], Errno::EINVAL)?,
        file: to.clone(),
    };
    if !to.takes_part() {
        return Err(Errno::EINVAL);
    }
    if !from.gives() {
        // Only after the pipe has been looked at.
        return Err(match target {
            Some(pipe) if pipe.openers().readers == 0 => io::failed_write(thread, Errno::EPIPE),
            Some(pipe) if pipe.room() == 0 && (flags & NONBLOCK != 0 || to.file.nonblocking()) => Errno::EAGAIN,
            _ => Errno::EINVAL,
        });
    }
    let now = flags & NONBLOCK != 0 || from.file.nonblocking() || to.file.nonblocking();
    let until = if now { Until::Now } else { Until::Some };
    let transfer = Transfer { from, to, left, until };
    Ok(transfer.run(thread, store_offsets(in_pointer, out_pointer)))
}

fn tee(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let flags = uint(args, 3);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let len = check_length(args.args[2]);
    if len == 0 {
        return Ok(Sys::Done(Ok(0)));
    }
    let (from, to) = (file(thread, int(args, 0))?, file(thread, int(args, 1))?);
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    let (Some(source), Some(target)) = (pipe_of(&from).cloned(), pipe_of(&to).cloned()) else {
        return Err(Errno::EINVAL);
    };
    if Arc::ptr_eq(&source, &target) {
        return Err(Errno::EINVAL);
    }
    let once = move || {
        target.fill_from(&source, len.min(CHUNK), true).map(|count| count as i64)
    };
    match once() {
        Err(Errno::EAGAIN) if flags & NONBLOCK == 0 && !from.nonblocking() && !to.nonblocking() => {}
        result => return Ok(result.map_err(|errno| io::failed_write(thread, errno)).into()),
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let queues = [from.ops().wait_queue(), to.ops().wait_queue()];
        let [Some(a), Some(b)] = queues else {
            return Err(Errno::EAGAIN);
        };
        let queues = [(a, PollEvents::IN), (b, PollEvents::OUT)];
        let result = block_on(&thread, None, &queues, || match once() {
            Err(Errno::EAGAIN) => None,
            result => Some(result),
        })
        .await;
        io::waited(result, None).map_err(|errno| io::failed_write(&thread, errno))
    }))
}

fn vmsplice(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let flags = uint(args, 3);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let file = file(thread, int(args, 0))?;
    if pipe_of(&file).is_none() {
        return Err(Errno::EBADF);
    }
    let buffers = Buffers::Many(read_iovecs(thread, args.args[1], args.args[2])?);
    if buffers.is_empty() {
        return Ok(Sys::Done(Ok(0)));
    }
    let flags = if flags & NONBLOCK != 0 { io::RWF_NOWAIT } else { 0 };
    Ok(if file.writable() {
        io::write(thread, file, buffers, Position::Current, flags)
    } else {
        io::read(thread, file, buffers, Position::Current, flags)
    })
}

fn sendfile(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let pointer = UserPtr::<i64>::new(args.args[2]);
    let offset = offset_of(thread, pointer)?;
    let from = file(thread, int(args, 1))?;
    if !from.readable() {
        return Err(Errno::EBADF);
    }
    let offset = place_of(&from, offset, args.args[3], Errno::ESPIPE)?;
    let to = file(thread, int(args, 0))?;
    if !to.writable() {
        return Err(Errno::EBADF);
    }
    // Both sides may be the same description: each goes on from where its position was.
    let own = offset.is_none() && Arc::ptr_eq(&from, &to) && from.ops().seekable() && !from.ops().own_position();
    let offset = if own { Some(from.position.now()) } else { offset };
    let from = Side { file: from, offset };
    let to = Side { file: to, offset: None };
    if pipe_of(&to.file).is_none() && appends(&to.file) {
        return Err(Errno::EINVAL);
    }
    // What cannot be read twice is no source.
    if !from.file.ops().seekable() {
        return Err(Errno::EINVAL);
    }
    if args.args[3] == 0 && pipe_of(&to.file).is_none() {
        return Ok(Sys::Done(Ok(0)));
    }
    if !from.gives() || !to.takes_part() {
        return Err(Errno::EINVAL);
    }
    let until = match () {
        () if to.file.nonblocking() => Until::Now,
        () if pipe_of(&to.file).is_some() => Until::Some,
        () => Until::All,
    };
    let left = check_length(args.args[3]);
    let transfer = Transfer { from, to, left, until };
    Ok(transfer.run(thread, store_offsets(pointer, UserPtr::new(0))))
}

fn copy_file_range(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let (from, to) = (file(thread, int(args, 0))?, file(thread, int(args, 2))?);
    let (in_pointer, out_pointer) = (UserPtr::<i64>::new(args.args[1]), UserPtr::<i64>::new(args.args[3]));
    let in_offset = offset_of(thread, in_pointer)?;
    let out_offset = offset_of(thread, out_pointer)?;
    if uint(args, 5) != 0 {
        return Err(Errno::EINVAL);
    }
    let kind = |file: &File| file.attributes().map(|attributes| attributes.mode & libc::S_IFMT);
    let kinds = [kind(&from)?, kind(&to)?];
    if kinds.contains(&libc::S_IFDIR) {
        return Err(Errno::EISDIR);
    }
    if kinds != [libc::S_IFREG; 2] {
        return Err(Errno::EINVAL);
    }
    if !from.readable() || !to.writable() || appends(&to) {
        return Err(Errno::EBADF);
    }
    let len = check_length(args.args[4]);
    let position = |file: &File| i64::try_from(file.position.now()).unwrap_or(i64::MAX);
    let start = in_offset.unwrap_or_else(|| position(&from));
    let place = out_offset.unwrap_or_else(|| position(&to));
    let wraps = |at: i64| (at as u64).checked_add(args.args[4]).is_none();
    let beyond = |at: i64| at >= 0 && at.checked_add(len as i64).is_none();
    if wraps(start) || wraps(place) || beyond(start) || beyond(place) {
        return Err(Errno::EOVERFLOW);
    }
    // Not beyond the end of the source, so that what lies there does not count as an overlap.
    let size = from.ops().size(&from)?;
    let rest = size.saturating_sub(u64::try_from(start).unwrap_or(0));
    let left = len.min(usize::try_from(rest).unwrap_or(usize::MAX));
    if left > 0 && place >= 0 {
        io::allowed(thread, place as u64, left).map_err(|errno| io::failed_write(thread, errno))?;
    }
    let same = from.path().inode_key().is_some() && from.path().inode_key() == to.path().inode_key();
    let ends = (start.saturating_add(left as i64), place.saturating_add(left as i64));
    if same && start < ends.1 && place < ends.0 || start < 0 || place < 0 {
        return Err(Errno::EINVAL);
    }
    let (in_offset, out_offset) = (in_offset.map(|at| at as u64), out_offset.map(|at| at as u64));
    let transfer = Transfer {
        from: Side {
            file: from,
            offset: in_offset,
        },
        to: Side {
            file: to,
            offset: out_offset,
        },
        left,
        until: Until::Now,
    };
    Ok(transfer.run(thread, store_offsets(in_pointer, out_pointer)))
}
