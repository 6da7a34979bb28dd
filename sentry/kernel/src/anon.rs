//! Files without a place in a file system: pipes, sockets, eventfds and their kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::{Attributes, Timestamp};
use sentry_vfs::path::VfsPath;

/// `st_dev` of pipes.
pub const PIPE_DEV: u64 = 0xd;
/// `st_dev` of sockets.
pub const SOCKET_DEV: u64 = 0x8;
/// `st_dev` of everything else without a file system, which shares one inode number too.
pub const ANON_DEV: u64 = 0xe;

/// An open file description without a path. `name` is what `/proc/PID/fd` shows.
pub fn file(name: &str, flags: u32, ops: Box<dyn FileOps>) -> Arc<File> {
    File::new(VfsPath::anonymous(name), flags, ops)
}

/// Attributes of a new anonymous file, with an inode number of its own.
pub fn attributes(mode: u32, uid: u32, gid: u32, dev: u64) -> Attributes {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    let now = now();
    Attributes {
        dev,
        ino: NEXT.fetch_add(1, Ordering::Relaxed),
        mode,
        nlink: 1,
        uid,
        gid,
        block_size: 4096,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..Attributes::default()
    }
}

/// Attributes of an eventfd, epoll or other file of Linux's `anon_inode`.
pub fn shared_attributes() -> Attributes {
    Attributes {
        dev: ANON_DEV,
        ino: 1,
        mode: 0o600,
        nlink: 1,
        block_size: 4096,
        ..Attributes::default()
    }
}

/// The present time of day.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nsec: since.subsec_nanos(),
    }
}
