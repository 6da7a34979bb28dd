//! Host files whose reads and writes may wait for the host: in the executor's pool.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::file::File;

use super::{Buffers, CHUNK, Position, gather, scatter};
use crate::syscalls::SysResult;
use crate::task::Thread;

/// Reads a host file in the pool, from `offset` on, of which `done` bytes have been read.
pub(super) async fn read_pool(
    thread: &Arc<Thread>,
    file: Arc<File>,
    buffers: &Buffers,
    position: Position,
    offset: u64,
    mut done: usize,
) -> SysResult {
    thread.guest().will_block();
    let executor = thread.kernel().executor();
    let total = buffers.len();
    while done < total {
        let len = (total - done).min(CHUNK * 4);
        let at = offset.saturating_add(done as u64);
        let source = file.clone();
        let result = executor
            .blocking(move || {
                let host = source.ops().host_file().ok_or(Errno::EIO)?;
                let left = usize::try_from(host.size.saturating_sub(at)).unwrap_or(usize::MAX);
                let mut buf = vec![0; len.min(left)];
                let place = host.base.checked_add(at).ok_or(Errno::EINVAL)?;
                let count = sentry_host::stdio::pread(host.fd, &mut buf, place)?;
                buf.truncate(count);
                Ok::<_, Errno>(buf)
            })
            .await;
        match result.and_then(|data| scatter(thread, buffers.as_slice(), done, &data).map(|()| data.len())) {
            Ok(count) => {
                done += count;
                if count < len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    if position == Position::Current {
        file.position.lock().set(offset.saturating_add(done as u64));
    }
    if done > 0 {
        super::accessed(thread, &file);
    }
    Ok(done as i64)
}

/// Moves the file position over what is about to be written, so that another writer through the same description
/// goes on behind it: the offset to write at.
pub(super) fn reserve(file: &File, buffers: &Buffers, position: Position, offset: u64) -> u64 {
    if position != Position::Current || appends(file) {
        return offset;
    }
    let place = file.position.lock();
    let offset = place.get();
    place.set(offset.saturating_add(buffers.len() as u64));
    offset
}

fn appends(file: &File) -> bool {
    file.flags() & libc::O_APPEND as u32 != 0
}

/// Takes back what was reserved and not written, unless somebody has moved the position since.
fn settle(file: &File, position: Position, reserved: u64, end: u64) {
    if position == Position::Current {
        let place = file.position.lock();
        if appends(file) || place.get() == reserved {
            place.set(end);
        }
    }
}

/// Writes a host file in the pool, at an offset from [`reserve`].
pub(super) async fn write_pool(
    thread: &Arc<Thread>,
    file: Arc<File>,
    buffers: &Buffers,
    position: Position,
    offset: u64,
    sync: bool,
) -> SysResult {
    thread.guest().will_block();
    let executor = thread.kernel().executor();
    let total = buffers.len();
    let mut done = 0usize;
    let mut failure = None;
    while done < total {
        let mut data = vec![0; (total - done).min(CHUNK * 4)];
        let count = match gather(thread, buffers.as_slice(), done, &mut data) {
            Ok(count) => count,
            Err(errno) => {
                failure = Some(errno);
                break;
            }
        };
        let short = count < data.len();
        data.truncate(count);
        let at = offset.saturating_add(done as u64);
        let target = file.clone();
        let result = executor
            .blocking(move || {
                // Not straight to the host file: what it adds may have a limit.
                target.ops().write(&target, &data, at).map(|(written, _)| written)
            })
            .await;
        match result {
            Ok(written) => {
                done += written;
                if written < count || short {
                    break;
                }
            }
            Err(errno) => {
                failure = Some(errno);
                break;
            }
        }
    }
    let end = offset.saturating_add(done as u64);
    if done > 0 || !appends(&file) {
        settle(&file, position, offset.saturating_add(total as u64), end);
    }
    if done == 0 {
        return failure.map_or(Ok(0), Err);
    }
    file.ops().host_written(end);
    super::modified(thread, &file);
    if sync {
        let target = file.clone();
        executor.blocking(move || target.ops().sync(true)).await?;
    }
    Ok(done as i64)
}
