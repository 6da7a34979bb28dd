//! Memory files and positioned file calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek64};
use sentry_abi::Errno;

/// Opens a memory file once more, for reading only.
pub type ReadOnlyOpener = Box<dyn Fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno> + Send + Sync>;

static READ_ONLY_OPENER: OnceLock<ReadOnlyOpener> = OnceLock::new();

/// Sets, once and for the whole process, how [`MemoryFile::read_only`] opens: memory files are opened anew by a path
/// in /proc only, and a process that gives paths up needs another one to do it.
pub fn set_read_only_opener(opener: ReadOnlyOpener) {
    // A second one is not needed: there is one sandbox in a process.
    let _ = READ_ONLY_OPENER.set(opener);
}

/// Opens the file behind a descriptor of this process once more, by `directory`, an `O_PATH` descriptor of its own
/// `/proc/self/fd`. `access`: `O_RDONLY`, `O_WRONLY` or `O_RDWR`. For regular files, on which nothing blocks.
///
/// # Errors
/// Those of openat(2).
pub fn open_again(directory: BorrowedFd<'_>, file: BorrowedFd<'_>, access: libc::c_int) -> Result<OwnedFd, Errno> {
    let name = std::ffi::CString::new(file.as_raw_fd().to_string()).map_err(|_| Errno::EINVAL)?;
    let flags = (access & libc::O_ACCMODE) | libc::O_NONBLOCK | libc::O_NOCTTY;
    Ok(crate::files::open_at(directory, &name, flags, 0)?)
}

/// The directory that [`open_again`] wants.
///
/// # Errors
/// Those of open(2): `ENOENT` where no /proc is mounted.
pub fn own_descriptors() -> Result<OwnedFd, Errno> {
    let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_CLOEXEC;
    nix::fcntl::open("/proc/self/fd", flags, nix::sys::stat::Mode::empty()).map_err(errno)
}

/// A file in memory (memfd_create(2)), with `pread`-like calls only: it has no position that matters.
#[derive(Debug)]
pub struct MemoryFile {
    fd: Arc<OwnedFd>,
    /// See [`MemoryFile::read_only`].
    read_only: OnceLock<Arc<OwnedFd>>,
}

impl MemoryFile {
    /// An empty memory file. `name` shows in the host's /proc only.
    pub fn new(name: &std::ffi::CStr) -> Result<MemoryFile, Errno> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC).map_err(errno)?;
        Ok(MemoryFile {
            fd: Arc::new(fd),
            read_only: OnceLock::new(),
        })
    }

    /// Reads until `buf` is full or the file ends; gives the count.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        read_at(self.fd.as_fd(), buf, offset)
    }

    /// Writes the whole of `buf`.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Errno> {
        write_at(self.fd.as_fd(), buf, offset)
    }

    /// Sets the size.
    pub fn set_len(&self, len: u64) -> Result<(), Errno> {
        let len = i64::try_from(len).map_err(|_| Errno::EFBIG)?;
        nix::unistd::ftruncate(&self.fd, len).map_err(errno)
    }

    /// The size.
    pub fn size(&self) -> Result<u64, Errno> {
        Ok(u64::try_from(fstat(&self.fd).map_err(errno)?.st_size).unwrap_or(0))
    }

    /// Memory in use, in bytes.
    pub fn allocated(&self) -> Result<u64, Errno> {
        Ok(u64::try_from(fstat(&self.fd).map_err(errno)?.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512))
    }

    /// Gives memory back; the range reads as zeros.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.fallocate(
            FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
            offset,
            len,
        )
    }

    /// Reserves memory for a range; the size grows unless `keep_size`.
    pub fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> Result<(), Errno> {
        let flags = if keep_size {
            FallocateFlags::FALLOC_FL_KEEP_SIZE
        } else {
            FallocateFlags::empty()
        };
        self.fallocate(flags, offset, len)
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        let offset = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let len = i64::try_from(len).map_err(|_| Errno::EFBIG)?;
        fallocate(&self.fd, flags, offset, len).map_err(errno)
    }

    /// `SEEK_DATA` (`data`) or `SEEK_HOLE` from `offset`; `ENXIO` at the end.
    pub fn seek_extent(&self, offset: u64, data: bool) -> Result<u64, Errno> {
        seek_extent(self.as_fd(), offset, data)
    }

    /// The descriptor, shared.
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// A descriptor of the same file that is open for reading only, so that no mapping of it can be made writable.
    /// Opened at the first call ([`set_read_only_opener`]; without one by this process's own /proc) and kept.
    ///
    /// # Errors
    /// Those of opening.
    pub fn read_only(&self) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(fd) = self.read_only.get() {
            return Ok(fd.clone());
        }
        let fd = match READ_ONLY_OPENER.get() {
            Some(opener) => opener(self.as_fd())?,
            None => open_again(own_descriptors()?.as_fd(), self.as_fd(), libc::O_RDONLY)?,
        };
        Ok(self.read_only.get_or_init(|| Arc::new(fd)).clone())
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `SEEK_DATA` (`data`) or `SEEK_HOLE` from `offset` in any regular file; moves the position of the descriptor.
///
/// # Errors
/// `ENXIO` at the end, and before it if no data follows; else those of lseek(2).
pub fn seek_extent(fd: BorrowedFd<'_>, offset: u64, data: bool) -> Result<u64, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    let whence = if data { Whence::SeekData } else { Whence::SeekHole };
    let found = lseek64(fd, offset, whence).map_err(errno)?;
    u64::try_from(found).map_err(|_| Errno::EIO)
}

/// Reads from a descriptor at an offset until `buf` is full or the file ends.
pub fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let offset = i64::try_from(offset.saturating_add(done as u64)).map_err(|_| Errno::EINVAL)?;
        match nix::sys::uio::pread(fd, rest, offset) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(done)
}

/// Writes the whole of `buf` to a descriptor at an offset.
pub fn write_at(fd: BorrowedFd<'_>, buf: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
        let offset = i64::try_from(offset.saturating_add(done as u64)).map_err(|_| Errno::EFBIG)?;
        match nix::sys::uio::pwrite(fd, rest, offset) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(())
}

/// Fills `buf` with random bytes (getrandom(2)).
pub fn random(buf: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the pointer and the length are those of `rest`, which is valid for writes.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw(error as i32)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn holes_take_no_memory() {
        let file = MemoryFile::new(c"t").unwrap();
        file.write_at(b"abc", 4096).unwrap();
        let mut buf = [0; 3];
        assert_eq!(file.read_at(&mut buf, 4096).unwrap(), 3);
        assert_eq!(&buf, b"abc");
        assert_eq!(file.seek_extent(0, true).unwrap(), 4096);
        file.punch(4096, 4096).unwrap();
        assert_eq!(file.allocated().unwrap(), 0);
    }

    #[test]
    fn the_read_only_descriptor_shows_the_same_file() {
        let file = MemoryFile::new(c"t").unwrap();
        let reader = file.read_only().unwrap();
        file.write_at(b"abc", 0).unwrap();
        let mut buf = [0; 3];
        assert_eq!(read_at(reader.as_fd(), &mut buf, 0).unwrap(), 3);
        assert_eq!(&buf, b"abc");
        assert_eq!(write_at(reader.as_fd(), b"x", 0), Err(Errno::EBADF));
        assert!(Arc::ptr_eq(&reader, &file.read_only().unwrap()));
    }

    #[test]
    fn random_bytes_differ() {
        let (mut a, mut b) = ([0; 32], [0; 32]);
        random(&mut a).unwrap();
        random(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
