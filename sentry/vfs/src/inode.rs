//! What a file system gives: inodes.

use std::any::Any;
use std::sync::Arc;

use sentry_abi::Errno;

use crate::file::{DirEntry, FileOps};

/// A point in time: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Timestamp {
    pub sec: i64,
    pub nsec: u32,
}

/// Attributes of an inode (statx(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    /// Device number of the file system, as `st_dev`.
    pub dev: u64,
    pub ino: u64,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub block_size: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

/// The attributes that permission checks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Permissions {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Permissions {
    /// The type bits (`S_IFMT`).
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// True for a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
}

impl Timestamp {
    /// The present time (`CLOCK_REALTIME`).
    pub fn now() -> Timestamp {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => Timestamp {
                sec: since.as_secs() as i64,
                nsec: since.subsec_nanos(),
            },
            Err(_) => Timestamp::default(),
        }
    }
}

/// A change of attributes; `None` leaves one as it is. Permission was checked before.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct SetAttributes {
    /// Permission bits only.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    /// With a size: the size that a file without content has already changes no times (truncate(2), but not
    /// ftruncate(2)).
    pub only_if_resized: bool,
    // `ctime` always becomes the present time, but for that.
}

/// What a new inode gets.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct NewInode {
    /// Type and permission bits (umask applied).
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
}

/// File system totals (statfs(2)).
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct FsStatistics {
    pub magic: u64,
    pub block_size: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u64,
}

/// A new file and its first open description.
pub type Created = (Arc<dyn Inode>, Box<dyn FileOps>);

/// A file, directory, link or node of a file system. Names are single components, never `.`, `..`, empty or
/// with a slash, at most 255 bytes; the VFS has checked that, and permissions, before it calls.
pub trait Inode: Send + Sync + 'static {
    /// Present attributes.
    fn attributes(&self) -> Result<Attributes, Errno>;
    /// What permission checks need, where that is cheaper than all attributes.
    fn permissions(&self) -> Result<Permissions, Errno> {
        let attributes = self.attributes()?;
        Ok(Permissions {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
        })
    }
    /// Changes attributes.
    fn set_attributes(&self, _set: &SetAttributes) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    /// A directory's child.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::ENOTDIR)
    }
    /// True if the VFS may keep what `lookup` answered (found or not) until it changes the directory itself.
    fn cacheable(&self) -> bool {
        true
    }
    /// For a directory that is not cacheable: true if `lookup` gives the same inode for the same file as long as
    /// somebody holds it. The VFS then holds what was found, and still asks each time.
    fn keeps_inodes(&self) -> bool {
        false
    }
    /// Makes a file, directory, device node, FIFO or socket, as the type bits of `new.mode` say.
    fn create(&self, _name: &[u8], _new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EROFS)
    }
    /// As [`Inode::create`] of a regular file, and opens it, whatever its mode says. `flags` as open(2).
    fn create_open(&self, name: &[u8], new: &NewInode, flags: u32) -> Result<Created, Errno> {
        let inode = self.create(name, new)?;
        let ops = inode.open(flags)?;
        Ok((inode, ops))
    }
    /// True for a directory in which no name can be made, whoever asks: making one finds nothing (`ENOENT`).
    fn refuses_new_names(&self) -> bool {
        false
    }
    /// Makes a symbolic link.
    fn symlink(&self, _name: &[u8], _target: &[u8], _new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EROFS)
    }
    /// Makes a file without a name (`O_TMPFILE`), in this directory's file system.
    fn tmpfile(&self, _new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Makes a hard link to an inode of the same file system.
    fn link(&self, _name: &[u8], _target: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    /// Has the host report changes of it, where the host changes it too: by whom, and the number in the reports.
    /// `names_only`: not of children that have lost their names. `None`: nobody but guests changes it, or there are no
    /// reports to be had.
    fn report(&self, _names_only: bool) -> Option<(Arc<dyn crate::notify::HostReports>, i32)> {
        None
    }
    /// How often it is open; `None` where there are no leases.
    fn opens(&self) -> Option<&crate::opens::Opens> {
        None
    }
    /// Told of a file in use that is about to lose a name, perhaps its last.
    fn loses_name(&self) {}
    /// Removes a name that is not a directory.
    fn unlink(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    /// Removes an empty directory.
    fn rmdir(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    /// Renames; `flags` are `RENAME_*`. `new_dir` is of the same file system.
    fn rename(&self, _old: &[u8], _new_dir: &Arc<dyn Inode>, _new: &[u8], _flags: u32) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    /// Renames and leaves `left`, a whiteout, under the old name (`RENAME_WHITEOUT`). `EINVAL` where there are none.
    fn rename_leaving(
        &self,
        _old: &[u8],
        _new_dir: &Arc<dyn Inode>,
        _new: &[u8],
        _left: &NewInode,
    ) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EINVAL)
    }
    /// A symbolic link's target.
    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EINVAL)
    }
    /// As [`Inode::readlink`], for links that depend on who asks (`/proc/self`).
    fn readlink_as(&self, _task: crate::ops::TaskIds) -> Result<Vec<u8>, Errno> {
        self.readlink()
    }
    /// A magic link (`/proc/self/fd/3`): where it leads without a path walk.
    fn follow_magic(&self) -> Option<Result<crate::path::VfsPath, Errno>> {
        None
    }
    /// As [`Inode::follow_magic`], for links that not everybody may follow.
    fn follow_magic_as(&self, _task: crate::ops::TaskIds) -> Option<Result<crate::path::VfsPath, Errno>> {
        self.follow_magic()
    }
    /// As [`Inode::open`], for files that not everybody may open whom their mode allows it.
    fn open_as(&self, flags: u32, _task: crate::ops::TaskIds) -> Result<Box<dyn FileOps>, Errno> {
        self.open(flags)
    }
    /// Opens it. `flags` as open(2); creation, truncation and permission are the VFS's work.
    fn open(&self, _flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        Err(Errno::ENXIO)
    }
    /// All entries but `.` and `..`, for overlays and simple directories.
    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        Err(Errno::ENOTDIR)
    }
    /// Totals of its file system.
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Err(Errno::ENOSYS)
    }
    /// An extended attribute.
    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Sets an extended attribute; `flags` are `XATTR_*`.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _flags: u32) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Names of all extended attributes.
    fn list_xattr(&self) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(Vec::new())
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Called on the root: mount(2) with `MS_REMOUNT` gives these options (the data string).
    fn remounted(&self, _options: &[u8]) -> Result<(), Errno> {
        Ok(())
    }
    /// Called on the root when the file system is mounted nowhere any more and nothing of it is open.
    fn unmounted(&self) {}
    /// For a file system to find its own type again.
    fn as_any(&self) -> &dyn Any;
}
