//! `/dev`: a tmpfs with the usual nodes, and the drivers of those that need no kernel object.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_host::memory_file::{self, MemoryFile};

use crate::device::{DeviceKind, DeviceRegistry};
use crate::file::{File, FileOps};
use crate::inode::{Inode, NewInode};
use crate::mount::FileSystem;
use crate::tmpfs::{Tmpfs, TmpfsOptions};

/// Major number of memory devices.
const MEMORY: u32 = 1;
/// Major number of `/dev/tty` and its kin.
const TERMINAL: u32 = 5;

/// Character devices: name, major, minor, permission bits.
const NODES: [(&str, u32, u32, u32); 8] = [
    ("null", MEMORY, 3, 0o666),
    ("zero", MEMORY, 5, 0o666),
    ("full", MEMORY, 7, 0o666),
    ("random", MEMORY, 8, 0o666),
    ("urandom", MEMORY, 9, 0o666),
    ("tty", TERMINAL, 0, 0o666),
    ("console", TERMINAL, 1, 0o600),
    ("ptmx", TERMINAL, 2, 0o666),
];
/// Directories: name, permission bits.
const DIRECTORIES: [(&str, u32); 3] = [("pts", 0o755), ("shm", 0o1777), ("mqueue", 0o1777)];
/// Symbolic links.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// A new `/dev`. The kernel registers the drivers of terminals; node names it needs beyond these it makes by
/// mknod.
pub fn file_system() -> Arc<FileSystem> {
    let tmpfs = Tmpfs::new(TmpfsOptions {
        size: Some(64 * 1024),
        mode: 0o755,
        ..TmpfsOptions::default()
    });
    let root = tmpfs.root();
    // A new tmpfs has room for these, and no such names: nothing can fail.
    let _ = fill(root);
    FileSystem::new(root.clone(), "devtmpfs", "dev", "size=64k,mode=755")
}

fn fill(root: &Arc<dyn Inode>) -> Result<(), Errno> {
    let new = |mode, rdev| NewInode {
        mode,
        uid: 0,
        gid: 0,
        rdev,
    };
    for (name, major, minor, mode) in NODES {
        root.create(name.as_bytes(), &new(libc::S_IFCHR | mode, libc::makedev(major, minor)))?;
    }
    for (name, mode) in DIRECTORIES {
        root.create(name.as_bytes(), &new(libc::S_IFDIR | mode, 0))?;
    }
    for (name, target) in LINKS {
        root.symlink(name.as_bytes(), target.as_bytes(), &new(libc::S_IFLNK | 0o777, 0))?;
    }
    Ok(())
}

/// Registers the drivers of memory devices. [`crate::ops::Vfs::new`] does.
pub(crate) fn register(devices: &DeviceRegistry) {
    for (minor, device) in [
        (3, Memory::Null),
        (5, Memory::Zero),
        (7, Memory::Full),
        (8, Memory::Random),
        (9, Memory::Random),
    ] {
        devices.register(DeviceKind::Character, MEMORY, minor, move |_| Ok(Box::new(device)));
    }
}

/// Memory devices (null(4), full(4), random(4)).
#[derive(Clone, Copy, Debug)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
}

impl FileOps for Memory {
    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        match self {
            Memory::Null => return Ok(0),
            Memory::Zero | Memory::Full => buf.fill(0),
            Memory::Random => memory_file::random(buf)?,
        }
        Ok(buf.len())
    }

    fn write(&self, _file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        match self {
            Memory::Full => Err(Errno::ENOSPC),
            _ => Ok((buf.len(), offset)),
        }
    }

    fn seekable(&self) -> bool {
        true
    }

    fn own_position(&self) -> bool {
        true
    }

    /// It is always at its beginning, wherever it is sent.
    fn own_seek(&self, _offset: i64, _whence: i32) -> Result<u64, Errno> {
        Ok(0)
    }

    fn size(&self, _file: &File) -> Result<u64, Errno> {
        Ok(0)
    }

    fn mmap_file(&self, _file: &File, shared: bool, writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        // Sparse, and larger than any mapping.
        const LARGE: u64 = 1 << 46;
        let Memory::Zero = self else { return Err(Errno::ENODEV) };
        let zeros = MemoryFile::new(c"zero")?;
        zeros.set_len(LARGE)?;
        if shared && !writable {
            return zeros.read_only();
        }
        Ok(zeros.descriptor().clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
