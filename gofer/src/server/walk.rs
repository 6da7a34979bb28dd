//! Opening beneath an export's root, and the rules for what may be opened.
//!
//! A node is not held open: every request opens the node's place anew, from the export's root and by the names
//! that led to it, and compares the file it finds with the one that was given out. So a directory that somebody
//! moves out of the export is out of reach from then on, whoever holds a node in it, and the gofer needs few
//! descriptors however many nodes there are. Names are single components, so that no walk contains `..`; no walk
//! passes a symbolic link (`RESOLVE_NO_SYMLINKS`, or `O_NOFOLLOW` for each component).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sentry_abi::Errno;
use sentry_host::files;

use crate::nix_errno;
use crate::protocol::{Attributes, Time};

/// Longest piece of a path in one openat2(2); longer ones go in several.
const MAX_PIECE: usize = 3500;

/// File systems whose files are views of the host's kernel or its processes, by statfs(2)'s magic number: /proc
/// gives away the gofer's own memory, for one. They are not served even where they lie beneath an export.
const REFUSED_FILE_SYSTEMS: &[i64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x6e73_6673, // nsfs
    0x1cd1,      // devpts
    0x0187,      // autofs
    0x6165_676c, // pstore
    0x1980_0202, // mqueue
    0x4249_4e4d, // binfmt_misc
    0x6759_6969, // rpc_pipefs
];

/// A file opened with `O_PATH`, and what statx(2) says of it.
pub(super) struct Found {
    pub(super) fd: OwnedFd,
    pub(super) attributes: Attributes,
}

impl Found {
    /// A file that was found before.
    pub(super) fn of(fd: OwnedFd) -> Result<Found, Errno> {
        let attributes = attributes(&files::statx_fd(fd.as_fd())?);
        Ok(Found { fd, attributes })
    }

    /// The regular file that `expected` describes, opened. `ESTALE` if it is another one.
    pub(super) fn opened(fd: OwnedFd, expected: &Attributes) -> Result<Found, Errno> {
        let opened = Found::of(fd)?;
        if opened.attributes.kind() != libc::S_IFREG || Identity::from(&opened.attributes) != Identity::from(expected) {
            return Err(Errno::ESTALE);
        }
        Ok(opened)
    }
}

/// Which file it is. Compared for correctness only; no right depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    dev: u64,
    ino: u64,
}

impl From<&Attributes> for Identity {
    fn from(attributes: &Attributes) -> Identity {
        Identity {
            dev: attributes.dev,
            ino: attributes.ino,
        }
    }
}

/// Opens files beneath roots.
pub(super) struct Walker {
    /// Whether there is openat2(2).
    openat2: bool,
    /// Devices of file systems that are served and that the exports keep mounted.
    held: Vec<u64>,
}

impl Walker {
    /// For these roots. openat2(2) is tried with one: old kernels and some containers' filters refuse it, with
    /// several error numbers.
    pub(super) fn new<'a>(roots: impl Iterator<Item = BorrowedFd<'a>>) -> Walker {
        let mut walker = Walker {
            openat2: true,
            held: Vec::new(),
        };
        for root in roots {
            let flags = libc::O_PATH | libc::O_DIRECTORY;
            walker.openat2 &= files::open_at2(root, c".", flags, 0, libc::RESOLVE_BENEATH).is_ok();
            if let (Ok(stat), Ok(true)) = (files::statx_fd(root), is_served(root)) {
                walker.held.push(attributes(&stat).dev);
            }
        }
        walker
    }

    pub(super) fn without_openat2(&mut self) {
        self.openat2 = false;
    }

    /// Opens with `O_PATH` what is at `components` beneath `root`.
    pub(super) fn walk(&self, root: BorrowedFd<'_>, components: &[&[u8]]) -> Result<Found, Errno> {
        if components.is_empty() {
            let fd = root.try_clone_to_owned()?;
            return self.found(fd);
        }
        let mut at: Option<OwnedFd> = None;
        let mut piece = Vec::new();
        for (index, name) in components.iter().enumerate() {
            if !piece.is_empty() {
                piece.push(b'/');
            }
            piece.extend_from_slice(name);
            let last = index + 1 == components.len();
            if last || !self.openat2 || piece.len() > MAX_PIECE {
                let from = at.as_ref().map_or(root, |at| at.as_fd());
                let flags = libc::O_PATH | if last { 0 } else { libc::O_DIRECTORY };
                at = Some(self.open(from, &c_string(&piece)?, flags, 0)?);
                piece.clear();
            }
        }
        self.found(at.ok_or(Errno::EIO)?)
    }

    /// Opens with `O_PATH` what is called `name` in `dir`: a symbolic link, device or FIFO itself.
    pub(super) fn child(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Found, Errno> {
        let fd = self.open(dir, &c_string(name)?, libc::O_PATH, 0)?;
        self.found(fd)
    }

    fn found(&self, fd: OwnedFd) -> Result<Found, Errno> {
        let found = Found::of(fd)?;
        if self.served(found.fd.as_fd(), found.attributes.dev)? {
            Ok(found)
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Opens the regular file called `name` in `dir`, which is the one that `expected` describes: it was looked at
    /// before it is opened, so that no device or FIFO is, and is compared afterwards, in case it was exchanged in
    /// between. (`O_NONBLOCK`: in that case nothing hangs. It has no effect on a regular file.) The attributes are
    /// those of the opened file.
    pub(super) fn regular_file(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        expected: &Attributes,
        access: libc::c_int,
    ) -> Result<Found, Errno> {
        match expected.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno::EISDIR),
            libc::S_IFLNK => return Err(Errno::ELOOP),
            _ => return Err(Errno::EACCES),
        }
        let flags = access | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = self.open(dir, &c_string(name)?, flags, 0)?;
        Found::opened(fd, expected)
    }

    /// Makes the regular file `name`, which is not there yet, and opens it.
    pub(super) fn create(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        access: libc::c_int,
        mode: u32,
    ) -> Result<OwnedFd, Errno> {
        self.open(dir, &c_string(name)?, access | libc::O_CREAT | libc::O_EXCL, mode)
    }

    /// Opens one or several components, never through a symbolic link; of a link in the last place, `O_PATH` opens
    /// the link itself. Several components only while `openat2` is true.
    fn open(&self, dir: BorrowedFd<'_>, path: &CStr, flags: libc::c_int, mode: u32) -> Result<OwnedFd, Errno> {
        const RESOLVE: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let flags = flags | libc::O_NOFOLLOW;
        if self.openat2 {
            Ok(files::open_at2(dir, path, flags, mode, RESOLVE)?)
        } else {
            Ok(files::open_at(dir, path, flags, mode)?)
        }
    }

    /// Whether a file on this device is served.
    fn served(&self, fd: BorrowedFd<'_>, dev: u64) -> Result<bool, Errno> {
        // None of the refused file systems is on a block device. Other numbers are used again after an unmount,
        // except those that the exports hold.
        Ok(libc::major(dev) != 0 || self.held.contains(&dev) || is_served(fd)?)
    }
}

fn is_served(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let totals = nix::sys::statfs::fstatfs(fd).map_err(nix_errno)?;
    Ok(!REFUSED_FILE_SYSTEMS.contains(&totals.filesystem_type().0))
}

/// A C string; names have been checked for zero bytes, so this does not fail for them.
pub(super) fn c_string(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

fn time(time: &libc::statx_timestamp) -> Time {
    Time {
        sec: time.tv_sec,
        nsec: time.tv_nsec.min(999_999_999),
    }
}

/// Translates what statx(2) gave.
pub(super) fn attributes(stat: &libc::statx) -> Attributes {
    Attributes {
        dev: libc::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size.min(i64::MAX as u64),
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        btime: time(&stat.stx_btime),
    }
}
