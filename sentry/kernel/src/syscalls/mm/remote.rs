//! process_vm_readv(2) and process_vm_writev(2), from guest to guest.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::{AddressSpace, SyscallArgs};

use crate::procfs::may_inspect;
use crate::syscalls::SysResult;
use crate::task::Thread;
use crate::user::{self, IoVec};

/// The most bytes of one call; more are left for the next one, as after any partial transfer.
const MAX_TRANSFER: usize = 4 << 20;
/// Bytes copied at a time.
const CHUNK: usize = 64 << 10;

pub(super) fn process_vm_readv(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (local, remote, theirs) = prepare(thread, args)?;
    let own = thread.mm();
    copy(&remote, theirs.as_ref(), &local, own.space().as_ref())
}

pub(super) fn process_vm_writev(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (local, remote, theirs) = prepare(thread, args)?;
    let own = thread.mm();
    copy(&local, own.space().as_ref(), &remote, theirs.as_ref())
}

type Prepared = (Vec<IoVec>, Vec<IoVec>, Arc<dyn AddressSpace>);

fn prepare(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Prepared, Errno> {
    let [pid, local, local_count, remote, remote_count, flags] = args.args;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let local = user::read_iovecs(thread, local, local_count)?;
    let remote = user::read_iovecs(thread, remote, remote_count)?;
    let target = thread.kernel().thread(pid as i32).ok_or(Errno::ESRCH)?;
    if !may_inspect(thread, target.process()) {
        return Err(Errno::EPERM);
    }
    let space = target.mm().space().clone();
    Ok((local, remote, space))
}

/// Copies from one list of buffers to another; the number of bytes, or `EFAULT` if there is none before a fault.
fn copy(from: &[IoVec], source: &dyn AddressSpace, to: &[IoVec], target: &dyn AddressSpace) -> SysResult {
    let (mut from, mut to) = (Cursor::new(from), Cursor::new(to));
    let mut done = 0;
    let mut buf = vec![0u8; CHUNK];
    while done < MAX_TRANSFER {
        let (Some(read), Some(write)) = (from.next(), to.next()) else {
            break;
        };
        let len = read.len.min(write.len).min(CHUNK);
        let Some(part) = buf.get_mut(..len) else { break };
        let got = source.read_partial(read.addr, part).min(len);
        let stored = part
            .get(..got)
            .is_some_and(|part| target.write(write.addr, part).is_ok());
        if got == 0 || !stored {
            return if done > 0 { Ok(done as i64) } else { Err(Errno::EFAULT) };
        }
        done += got;
        if got < len {
            break;
        }
        from.advance(len);
        to.advance(len);
    }
    Ok(done as i64)
}

/// Goes through a list of buffers byte by byte.
struct Cursor<'a> {
    list: &'a [IoVec],
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(list: &'a [IoVec]) -> Cursor<'a> {
        Cursor { list, offset: 0 }
    }

    /// What is left of the first buffer that is not used up.
    fn next(&mut self) -> Option<IoVec> {
        while let Some((first, rest)) = self.list.split_first() {
            if self.offset < first.len {
                let addr = first.addr.wrapping_add(self.offset as u64);
                return Some(IoVec {
                    addr,
                    len: first.len - self.offset,
                });
            }
            self.list = rest;
            self.offset = 0;
        }
        None
    }

    fn advance(&mut self, len: usize) {
        self.offset += len;
    }
}
