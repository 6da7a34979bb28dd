//! getrandom(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;

use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::user;

pub(super) const TABLE: &[Row] = &[call!(libc::SYS_getrandom, getrandom, Ptr, Int, Hex)];

/// Bytes made at a time.
const CHUNK: usize = 64 << 10;
/// The most bytes of one call; a longer request is answered in part.
const MAX: usize = 1 << 20;

fn getrandom(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [addr, len, flags, ..] = args.args;
    const KNOWN: u32 = libc::GRND_NONBLOCK | libc::GRND_RANDOM | libc::GRND_INSECURE;
    const EXCLUSIVE: u32 = libc::GRND_RANDOM | libc::GRND_INSECURE;
    let flags = flags as u32;
    if flags & !KNOWN != 0 || flags & EXCLUSIVE == EXCLUSIVE {
        return Err(Errno::EINVAL);
    }
    let len = usize::try_from(len).unwrap_or(MAX).min(MAX);
    let mut bytes = vec![0; len.min(CHUNK)];
    let mut done = 0;
    while done < len {
        let part = bytes.get_mut(..(len - done).min(CHUNK)).ok_or(Errno::EFAULT)?;
        sentry_host::memory_file::random(part)?;
        let at = addr.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        match user::write_bytes(thread, at, part) {
            Ok(()) => done += part.len(),
            Err(errno) => return if done > 0 { Ok(done as i64) } else { Err(errno) },
        }
    }
    Ok(done as i64)
}
