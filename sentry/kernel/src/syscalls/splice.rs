//! splice(2), tee(2), vmsplice(2), sendfile(2), copy_file_range(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;

use super::args::{file, int, uint};
use super::{Row, Sys, call};
use crate::io::{self, Buffers, Position, with_scratch};
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

/// An optional offset argument: its present value. `no_offsets` is the error for a file without offsets.
fn offset_of(thread: &Thread, pointer: UserPtr<i64>, file: &File, no_offsets: Errno) -> Result<Option<u64>, Errno> {
    if pointer.is_null() {
        return Ok(None);
    }
    if pipe_of(file).is_some() {
        return Err(Errno::ESPIPE);
    }
    if !file.ops().seekable() {
        return Err(no_offsets);
    }
    u64::try_from(pointer.copy_in(thread)?)
        .map(Some)
        .map_err(|_| Errno::EINVAL)
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
        if let Some(offset) = transfer.from.offset {
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
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    let (in_pointer, out_pointer) = (UserPtr::<i64>::new(args.args[1]), UserPtr::<i64>::new(args.args[3]));
    let from = Side {
        offset: offset_of(thread, in_pointer, &from, Errno::EINVAL)?,
        file: from,
    };
    let to = Side {
        offset: offset_of(thread, out_pointer, &to, Errno::EINVAL)?,
        file: to,
    };
    match (pipe_of(&from.file), pipe_of(&to.file)) {
        (None, None) => return Err(Errno::EINVAL),
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return Err(Errno::EINVAL),
        _ => {}
    }
    if pipe_of(&to.file).is_none() && appends(&to.file) {
        return Err(Errno::EINVAL);
    }
    if !from.takes_part() || !to.takes_part() {
        return Err(Errno::EINVAL);
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
        with_scratch(len, |buf| match source.peek(buf)? {
            0 => Ok(0),
            count => target.fill(&buf[..count], false).map(|count| count as i64),
        })
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
    let (to, from) = (file(thread, int(args, 0))?, file(thread, int(args, 1))?);
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    let pointer = UserPtr::<i64>::new(args.args[2]);
    let offset = offset_of(thread, pointer, &from, Errno::ESPIPE)?;
    let from = Side { file: from, offset };
    let to = Side { file: to, offset: None };
    // What cannot be read twice is no source.
    if i64::try_from(args.args[3]).is_err() || !from.file.ops().seekable() || !from.takes_part() || !to.takes_part() {
        return Err(Errno::EINVAL);
    }
    if pipe_of(&to.file).is_none() && appends(&to.file) {
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
    let in_offset = offset_of(thread, in_pointer, &from, Errno::ESPIPE)?;
    let out_offset = offset_of(thread, out_pointer, &to, Errno::ESPIPE)?;
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
    let place = out_offset.unwrap_or_else(|| to.position.now());
    let start = in_offset.unwrap_or_else(|| from.position.now());
    if start.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64)
        || place.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64)
    {
        return Err(Errno::EOVERFLOW);
    }
    if len > 0 {
        io::allowed(thread, place, len).map_err(|errno| io::failed_write(thread, errno))?;
    }
    // Not beyond the end of the source, so that what lies there does not count as an overlap.
    let rest = from.ops().size(&from)?.saturating_sub(start);
    let left = len.min(usize::try_from(rest).unwrap_or(usize::MAX));
    let same = from.path().inode_key().is_some() && from.path().inode_key() == to.path().inode_key();
    let (start_end, place_end) = (start.saturating_add(left as u64), place.saturating_add(left as u64));
    if same && start < place_end && place < start_end {
        return Err(Errno::EINVAL);
    }
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
