//! Reading and writing open files for a guest thread: between [`FileOps`] and guest memory.
//!
//! [`FileOps`]: sentry_vfs::file::FileOps

mod pool;
pub(crate) mod rate;

use std::cell::RefCell;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::make_device;
use sentry_vfs::file::{CURRENT, File};
use sentry_vfs::notify::Events;
use sentry_vfs::wait::PollEvents;

use crate::executor::Deadline;
use crate::signal::{SigInfo, Signal};
use crate::signalfd::SignalFd;
use crate::syscalls::{Sys, SysResult};
use crate::task::{Resource, Thread, Wake, block_on};
use crate::tty::TtyFile;
use crate::user::IoVec;
use pool::{read_pool, write_pool};

/// The most bytes that go through the sentry's memory at a time.
pub const CHUNK: usize = 256 << 10;

const READ_EVENTS: PollEvents = PollEvents::IN.union(PollEvents::RDNORM).union(PollEvents::RDHUP);
const WRITE_EVENTS: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);

const RWF_HIPRI: u32 = 1;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;
pub(crate) const RWF_NOWAIT: u32 = 8;
const RWF_APPEND: u32 = 0x10;
/// The `RWF_*` flags known here.
pub const RWF_KNOWN: u32 = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends this host thread's buffer. Its former contents are still in it: only hand out what was filled.
pub fn with_scratch<T>(len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    let len = len.min(CHUNK);
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut buf) => {
            if buf.len() < len {
                buf.resize(len.next_power_of_two(), 0);
            }
            f(&mut buf[..len])
        }
        Err(_) => f(&mut vec![0; len]),
    })
}

/// The buffers of one call.
pub enum Buffers {
    /// read(2), write(2) and their kin.
    One([IoVec; 1]),
    /// The vectored calls.
    Many(Vec<IoVec>),
}

impl Buffers {
    /// One buffer; cut to `MAX_RW_COUNT`.
    pub fn one(addr: u64, len: u64) -> Buffers {
        let len = usize::try_from(len)
            .unwrap_or(usize::MAX)
            .min(crate::user::MAX_RW_COUNT);
        Buffers::One([IoVec { addr, len }])
    }

    /// All of them.
    pub fn as_slice(&self) -> &[IoVec] {
        match self {
            Buffers::One(one) => one,
            Buffers::Many(many) => many,
        }
    }

    /// Their length in bytes.
    pub fn len(&self) -> usize {
        self.as_slice().iter().map(|vector| vector.len).sum()
    }

    /// True if there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Walks over buffers: the parts that `len` bytes from byte `skip` on lie in.
fn parts(vectors: &[IoVec], skip: usize, len: usize) -> impl Iterator<Item = IoVec> + '_ {
    let (mut skip, mut left) = (skip, len);
    vectors.iter().filter_map(move |vector| {
        let at = skip.min(vector.len);
        skip -= at;
        let n = (vector.len - at).min(left);
        left -= n;
        (n > 0).then(|| IoVec {
            addr: vector.addr.wrapping_add(at as u64),
            len: n,
        })
    })
}

/// `EFAULT` if the guest can have no memory there.
pub fn check_range(thread: &Thread, addr: u64, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let layout = thread.kernel().platform().layout();
    let end = addr.checked_add(len as u64).ok_or(Errno::EFAULT)?;
    if addr < layout.low || end > layout.high {
        Err(Errno::EFAULT)
    } else {
        Ok(())
    }
}

/// Copies `data` to the guest's buffers, from their byte `skip` on.
pub fn scatter(thread: &Thread, vectors: &[IoVec], skip: usize, data: &[u8]) -> Result<(), Errno> {
    let guest = thread.guest();
    let mut done = 0;
    for part in parts(vectors, skip, data.len()) {
        guest.write(part.addr, &data[done..done + part.len])?;
        done += part.len;
    }
    Ok(())
}

/// Copies from the guest's buffers, from their byte `skip` on; how much could be read before a fault. `EFAULT` if
/// nothing.
pub fn gather(thread: &Thread, vectors: &[IoVec], skip: usize, buf: &mut [u8]) -> Result<usize, Errno> {
    let guest = thread.guest();
    let mut done = 0;
    for part in parts(vectors, skip, buf.len()) {
        let target = &mut buf[done..done + part.len];
        if let Err(errno) = guest.read(part.addr, target) {
            done += guest.read_partial(part.addr, target).min(part.len);
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
        done += part.len;
    }
    Ok(done)
}

/// Where to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// At the file's position, which moves along.
    Current,
    /// At this offset (pread(2), pwrite(2)).
    At(u64),
}

/// Why an attempt did not finish.
enum Stop {
    /// With this error; `EAGAIN` if the file is not ready.
    Error(Errno),
    /// The host would have to wait for its disk: go on in the pool. The transfer began at `offset`, and `done` bytes
    /// of it are made.
    Host { offset: u64, done: usize },
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Error(errno)
    }
}

/// read(2) and its kin; the caller has checked that the file may be read.
pub fn read(thread: &Arc<Thread>, file: Arc<File>, buffers: Buffers, position: Position, flags: u32) -> Sys {
    if let Err(errno) = check_end(&buffers, position) {
        return errno.into();
    }
    if TtyFile::of(&file).is_some() {
        let wait = may_wait(&file, flags);
        return crate::tty::io::read(thread, file, buffers, wait);
    }
    match try_read(thread, &file, &buffers, position, flags) {
        Ok(count) => Sys::Done(Ok(count as i64)),
        Err(Stop::Error(Errno::EAGAIN)) if may_wait(&file, flags) => {
            let thread = thread.clone();
            Sys::wait(async move { read_waiting(&thread, &file, &buffers, position, flags).await })
        }
        Err(Stop::Error(errno)) => Sys::Done(Err(errno)),
        Err(Stop::Host { offset, done }) => {
            let thread = thread.clone();
            Sys::wait(async move { read_pool(&thread, file, &buffers, position, offset, done).await })
        }
    }
}

/// `EINVAL` if a transfer at an offset would end beyond the largest one.
fn check_end(buffers: &Buffers, position: Position) -> Result<(), Errno> {
    match position {
        Position::At(offset) if offset.saturating_add(buffers.len() as u64) > i64::MAX as u64 => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn may_wait(file: &File, flags: u32) -> bool {
    flags & RWF_NOWAIT == 0 && !file.nonblocking() && file.ops().wait_queue().is_some()
}

async fn read_waiting(
    thread: &Arc<Thread>,
    file: &Arc<File>,
    buffers: &Buffers,
    position: Position,
    flags: u32,
) -> SysResult {
    let Some(queue) = file.ops().wait_queue() else {
        return Err(Errno::EAGAIN);
    };
    let deadline = crate::unix::receive_timeout(file).map(Deadline::after);
    let result = block_on(thread, deadline, &[(queue, READ_EVENTS)], || {
        match try_read(thread, file, buffers, position, flags) {
            Ok(count) => Some(Ok(count as i64)),
            Err(Stop::Error(Errno::EAGAIN)) => None,
            Err(Stop::Error(errno)) => Some(Err(errno)),
            // Files with a host file behind have no wait queue.
            Err(Stop::Host { .. }) => Some(Err(Errno::EAGAIN)),
        }
    })
    .await;
    waited(result, deadline)
}

/// The outcome of a wait; with a time-out set, a signal does not restart the call (signal(7)).
pub fn waited(result: Result<SysResult, Wake>, deadline: Option<Deadline>) -> SysResult {
    match result {
        Ok(result) => result,
        Err(Wake::Timeout) => Err(Errno::EAGAIN),
        Err(Wake::Signal) if deadline.is_some() => Err(Errno::EINTR),
        Err(Wake::Signal) => Err(Errno::ERESTARTSYS),
    }
}

fn try_read(
    thread: &Arc<Thread>,
    file: &File,
    buffers: &Buffers,
    position: Position,
    flags: u32,
) -> Result<usize, Stop> {
    let count = read_place(thread, file, buffers, position, flags)?;
    if count > 0 {
        accessed(thread, file);
    }
    Ok(count)
}

/// Tells who watches the file that it was read.
pub fn accessed(thread: &Thread, file: &File) {
    thread.kernel().vfs().notifier().opened_file(file, Events::ACCESS);
}

/// Tells who watches the file that it was written.
pub fn modified(thread: &Thread, file: &File) {
    thread.kernel().vfs().notifier().opened_file(file, Events::MODIFY);
}

fn read_place(
    thread: &Arc<Thread>,
    file: &File,
    buffers: &Buffers,
    position: Position,
    flags: u32,
) -> Result<usize, Stop> {
    let ops = file.ops();
    match position {
        Position::Current if ops.own_position() => read_at(thread, file, buffers, CURRENT, flags),
        Position::Current if ops.seekable() => {
            let place = file.position.lock();
            let count = read_at(thread, file, buffers, place.get(), flags)?;
            place.set(place.get().saturating_add(count as u64));
            Ok(count)
        }
        Position::Current => {
            if let Some(signals) = ops.as_any().downcast_ref::<SignalFd>() {
                signals.used_by(thread);
            }
            if buffers.is_empty() && crate::unix::socket_of(file).is_ok() {
                return Ok(0);
            }
            // What is read from a stream is gone: an address that cannot be right is found before.
            buffers
                .as_slice()
                .iter()
                .try_for_each(|part| check_range(thread, part.addr, part.len))?;
            read_at(thread, file, buffers, 0, flags)
        }
        Position::At(offset) => read_at(thread, file, buffers, offset, flags),
    }
}

fn read_at(thread: &Thread, file: &File, buffers: &Buffers, offset: u64, flags: u32) -> Result<usize, Stop> {
    let vectors = buffers.as_slice();
    if let Some(host) = file.ops().host_file() {
        let wait = flags & RWF_NOWAIT == 0;
        return read_host(thread, &host, vectors, offset, wait);
    }
    let total = buffers.len();
    let mut done = 0;
    loop {
        let at = if offset == CURRENT {
            CURRENT
        } else {
            offset.saturating_add(done as u64)
        };
        let wanted = (total - done).min(CHUNK);
        let step = with_scratch(wanted, |buf| -> Result<usize, Errno> {
            let count = file.ops().read(file, buf, at)?.min(buf.len());
            scatter(thread, vectors, done, &buf[..count])?;
            Ok(count)
        });
        match step {
            Ok(count) => {
                done += count;
                if count < CHUNK || done >= total {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// True if a short read of a host file can only have met the file's end: one that was cut for another reason (the
/// rest is not cached, the platform moves no more at a time) ends with a page or is large.
fn ends_file(offset: i64, count: usize) -> bool {
    !(offset.unsigned_abs() + count as u64).is_multiple_of(sentry_abi::PAGE_SIZE) && count < CHUNK
}

/// Reads a host file straight into the guest. Where the host would have to wait, the rest is for the pool, or if the
/// guest will not `wait`, what was read is all there is: programs take a short read for the end of a regular file.
fn read_host(
    thread: &Thread,
    host: &sentry_vfs::file::HostFile<'_>,
    vectors: &[IoVec],
    offset: u64,
    wait: bool,
) -> Result<usize, Stop> {
    let guest = thread.guest();
    let flags = if host.may_block { libc::RWF_NOWAIT } else { 0 };
    let mut done = 0usize;
    for vector in vectors {
        let mut at = 0;
        while at < vector.len {
            let position = offset.saturating_add(done as u64);
            let left = usize::try_from(host.size.saturating_sub(position)).unwrap_or(usize::MAX);
            let len = (vector.len - at).min(left);
            if len == 0 {
                return Ok(done);
            }
            let Some(host_offset) = host
                .base
                .checked_add(position)
                .and_then(|offset| i64::try_from(offset).ok())
            else {
                return if done > 0 { Ok(done) } else { Err(Errno::EINVAL.into()) };
            };
            match guest.read_file(host.fd, host_offset, vector.addr.wrapping_add(at as u64), len, flags) {
                Ok(0) => return Ok(done),
                Ok(count) => {
                    at += count;
                    done += count;
                    if count < len && ends_file(host_offset, count) {
                        return Ok(done);
                    }
                }
                Err(Errno::EAGAIN | Errno::EOPNOTSUPP) if host.may_block && wait => {
                    return Err(Stop::Host { offset, done });
                }
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(done)
}

/// write(2) and its kin; the caller has checked that the file may be written.
pub fn write(thread: &Arc<Thread>, file: Arc<File>, buffers: Buffers, position: Position, flags: u32) -> Sys {
    if let Err(errno) = check_end(&buffers, position) {
        return errno.into();
    }
    if let Err(errno) = crate::tty::io::check_write(thread, &file) {
        return errno.into();
    }
    let sync = flags & (RWF_DSYNC | RWF_SYNC) != 0 || file.flags() & libc::O_DSYNC as u32 != 0;
    match try_write(thread, &file, &buffers, 0, position, flags) {
        Ok(count) if count == buffers.len() || !may_wait(&file, flags) => {
            if sync
                && count > 0
                && let Err(errno) = file.ops().sync(flags & RWF_SYNC == 0)
            {
                return errno.into();
            }
            Sys::Done(Ok(count as i64))
        }
        Ok(count) => write_rest(thread, file, buffers, count, position, flags),
        Err(Stop::Error(Errno::EAGAIN)) if may_wait(&file, flags) => {
            write_rest(thread, file, buffers, 0, position, flags)
        }
        Err(Stop::Error(errno)) => Sys::Done(Err(failed_write(thread, errno))),
        Err(Stop::Host { .. }) if flags & RWF_NOWAIT != 0 => Sys::Done(Err(Errno::EAGAIN)),
        Err(Stop::Host { offset, .. }) => {
            let thread = thread.clone();
            let offset = pool::reserve(&file, &buffers, position, offset);
            Sys::wait(async move { write_pool(&thread, file, &buffers, position, offset, sync).await })
        }
    }
}

/// The signals that go with a failed write.
pub fn failed_write(thread: &Arc<Thread>, errno: Errno) -> Errno {
    let signal = match errno {
        Errno::EPIPE => Signal::PIPE,
        Errno::EFBIG => Signal::XFSZ,
        _ => return errno,
    };
    if errno == Errno::EPIPE || thread.limit(Resource::FSIZE).current != u64::MAX {
        let info = SigInfo::user(signal, SigInfo::SI_USER, thread.pid(), thread.cred().uid);
        crate::signal::send_to_thread(thread, info);
    }
    errno
}

/// A stream that takes a write in parts.
fn write_rest(
    thread: &Arc<Thread>,
    file: Arc<File>,
    buffers: Buffers,
    done: usize,
    position: Position,
    flags: u32,
) -> Sys {
    let thread = thread.clone();
    Sys::wait(async move {
        let Some(queue) = file.ops().wait_queue() else {
            return Err(Errno::EAGAIN);
        };
        let total = buffers.len();
        let deadline = crate::unix::send_timeout(&file).map(Deadline::after);
        let mut done = done;
        while done < total {
            let step = block_on(&thread, deadline, &[(queue, WRITE_EVENTS)], || {
                // Who waits learns of a reset first.
                if let Some(errno) = crate::unix::take_error(&file) {
                    return Some(Err(errno));
                }
                match try_write(&thread, &file, &buffers, done, position, flags) {
                    Ok(count) => Some(Ok(count)),
                    Err(Stop::Error(Errno::EAGAIN)) => None,
                    Err(Stop::Error(errno)) => Some(Err(errno)),
                    Err(Stop::Host { .. }) => Some(Err(Errno::EAGAIN)),
                }
            })
            .await;
            match step {
                Ok(Ok(0)) => break,
                Ok(Ok(count)) => done += count,
                Ok(Err(errno)) => {
                    // Linux raises SIGPIPE even when a part was written.
                    let errno = failed_write(&thread, errno);
                    return if done > 0 { Ok(done as i64) } else { Err(errno) };
                }
                Err(_) if done > 0 => break,
                Err(wake) => return waited(Err(wake), deadline),
            }
        }
        Ok(done as i64)
    })
}

fn try_write(
    thread: &Thread,
    file: &File,
    buffers: &Buffers,
    skip: usize,
    position: Position,
    flags: u32,
) -> Result<usize, Stop> {
    let count = write_place(thread, file, buffers, skip, position, flags)?;
    if count > 0 {
        modified(thread, file);
    }
    Ok(count)
}

fn write_place(
    thread: &Thread,
    file: &File,
    buffers: &Buffers,
    skip: usize,
    position: Position,
    flags: u32,
) -> Result<usize, Stop> {
    let ops = file.ops();
    if ops.own_position() {
        let offset = if let Position::At(offset) = position {
            offset
        } else {
            CURRENT
        };
        return write_at(thread, file, buffers, skip, offset, false).map(|(count, _)| count);
    }
    if !ops.seekable() {
        return write_at(thread, file, buffers, skip, 0, false).map(|(count, _)| count);
    }
    remove_privileges(thread, file)?;
    let append = file.flags() & libc::O_APPEND as u32 != 0;
    match position {
        Position::Current => {
            let place = file.position.lock();
            let offset = if append || flags & RWF_APPEND != 0 {
                ops.size(file)?
            } else {
                place.get()
            };
            let (count, end) = write_at(thread, file, buffers, skip, offset, append)?;
            if count > 0 {
                place.set(end);
            }
            Ok(count)
        }
        Position::At(offset) => {
            let offset = if append || flags & RWF_APPEND != 0 {
                ops.size(file)?
            } else {
                offset
            };
            write_at(thread, file, buffers, skip, offset, append).map(|(count, _)| count)
        }
    }
}

/// Takes set-user-id bits away from a file that is written to.
pub(crate) fn remove_privileges(thread: &Thread, file: &File) -> Result<(), Errno> {
    if file.path().mount().is_none() {
        return Ok(());
    }
    let mode = file.attributes().map_or(0, |attributes| attributes.mode);
    if mode & (libc::S_ISUID | libc::S_ISGID) == 0 || mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(());
    }
    let context = thread.context();
    thread.kernel().vfs().remove_privileges(&context.caller(), file)
}

/// How many bytes may be written at `offset`, by `RLIMIT_FSIZE` and the largest offset.
pub(crate) fn allowed(thread: &Thread, offset: u64, len: usize) -> Result<usize, Errno> {
    let limit = thread.limit(Resource::FSIZE).current.min(i64::MAX as u64);
    if offset >= limit {
        return Err(Errno::EFBIG);
    }
    Ok(usize::try_from(limit - offset).map_or(len, |room| room.min(len)))
}

/// `S_IF*` of a file; 0 if it cannot be told.
pub(crate) fn kind_of(file: &File) -> u32 {
    file.attributes().map_or(0, |attributes| attributes.mode & libc::S_IFMT)
}

/// True for devices that take every write without looking at it (`/dev/null`, `/dev/zero`).
fn looks_at_nothing(file: &File) -> bool {
    file.attributes().is_ok_and(|attributes| {
        attributes.mode & libc::S_IFMT == libc::S_IFCHR
            && [make_device(1, 3), make_device(1, 5)].contains(&attributes.rdev)
    })
}

/// Writes at an offset; the bytes written and the offset behind them.
fn write_at(
    thread: &Thread,
    file: &File,
    buffers: &Buffers,
    skip: usize,
    offset: u64,
    append: bool,
) -> Result<(usize, u64), Stop> {
    let vectors = buffers.as_slice();
    let mut total = buffers.len() - skip;
    let ops = file.ops();
    if total == 0 && ops.seekable() {
        return Ok((0, offset));
    }
    if ops.seekable() && !ops.own_position() {
        total = allowed(thread, offset, total)?;
    }
    if let Some(host) = ops.host_file()
        && host.writable
        && !append
        && skip == 0
        && total == buffers.len()
    {
        if host.may_block {
            return Err(Stop::Host { offset, done: 0 });
        }
        let (done, result) = write_host(thread, &host, vectors, offset);
        if done > 0 {
            let end = offset.saturating_add(done as u64);
            ops.host_written(end);
            return Ok((done, end));
        }
        return result.map(|()| (0, offset)).map_err(Stop::Error);
    }
    let mut done = 0;
    let mut end = offset;
    loop {
        let at = if offset == CURRENT {
            CURRENT
        } else {
            offset.saturating_add(done as u64)
        };
        let wanted = (total - done).min(CHUNK);
        let step = with_scratch(wanted, |buf| -> Result<(usize, usize, u64), Errno> {
            let count = match gather(thread, vectors, skip + done, buf) {
                Err(Errno::EFAULT) if looks_at_nothing(file) => buf.len(),
                result => result?,
            };
            let (written, end) = ops.write(file, &buf[..count], at)?;
            Ok((count, written.min(count), end))
        });
        match step {
            Ok((count, written, behind)) => {
                done += written;
                end = behind;
                if written < count || count < wanted || done >= total {
                    return Ok((done, end));
                }
            }
            Err(_) if done > 0 => return Ok((done, end)),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn write_host(
    thread: &Thread,
    host: &sentry_vfs::file::HostFile<'_>,
    vectors: &[IoVec],
    offset: u64,
) -> (usize, Result<(), Errno>) {
    let guest = thread.guest();
    let mut done = 0usize;
    let total: usize = vectors.iter().map(|vector| vector.len).sum();
    while done < total {
        let Some(part) = parts(vectors, done, total - done).next() else {
            break;
        };
        let place = host
            .base
            .checked_add(offset)
            .and_then(|place| place.checked_add(done as u64));
        let Some(place) = place.and_then(|place| i64::try_from(place).ok()) else {
            return (done, Err(Errno::EFBIG));
        };
        match guest.write_file(host.fd, place, part.addr, part.len, 0) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(errno) => return (done, Err(errno)),
        }
    }
    (done, Ok(()))
}
