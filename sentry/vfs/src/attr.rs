//! Operations on a place or an open file: attributes, permission, extended attributes.

use std::sync::Arc;

use sentry_abi::Errno;

use crate::cred::Cap;
use crate::file::File;
use crate::inode::{Attributes, FsStatistics, Inode, NewInode, Permissions, SetAttributes, Timestamp};
use crate::mount::MountFlags;
use crate::notify::Events;
use crate::ops::{Access, At, Caller, Lookup, SetTime, Vfs};
use crate::path::VfsPath;
use crate::permission;

impl Vfs {
    /// Attributes.
    pub fn stat(&self, path: &VfsPath) -> Result<Attributes, Errno> {
        path.inode().ok_or(Errno::EBADF)?.attributes()
    }

    /// Resolves and stats.
    pub fn stat_at(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8], flags: Lookup) -> Result<Attributes, Errno> {
        self.stat(&self.resolve(caller, at, path, flags)?)
    }

    /// Checks permission as the caller's file-system ids have it. For access(2) without `AT_EACCESS` pass
    /// [`crate::cred::Credentials::for_access`].
    pub fn access(&self, caller: &Caller<'_>, path: &VfsPath, access: Access) -> Result<(), Errno> {
        let Some(inode) = path.inode() else { return Ok(()) };
        let permissions = inode.permissions()?;
        let mount_flags = path.mount().map(|mount| mount.flags()).unwrap_or_default();
        if access.0 & Access::EXEC.0 != 0 && permissions.is_regular() && mount_flags.contains(MountFlags::NO_EXEC) {
            return Err(Errno::EACCES);
        }
        permission::check(caller.cred, permissions, access)?;
        let stored = matches!(permissions.kind(), libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK);
        if access.0 & Access::WRITE.0 != 0 && stored && mount_flags.contains(MountFlags::READ_ONLY) {
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    /// chmod(2) and fchmod(2).
    pub fn chmod(&self, caller: &Caller<'_>, path: &VfsPath, mode: u32) -> Result<(), Errno> {
        let Some((inode, permissions)) = changeable(path)? else {
            return Ok(());
        };
        if permissions.is_symlink() {
            return Err(Errno::EOPNOTSUPP);
        }
        permission::check_owner(caller.cred, permissions)?;
        let mut mode = mode & 0o7777;
        if !caller.cred.in_group(permissions.gid) && !caller.cred.has(Cap::FSETID) {
            mode &= !libc::S_ISGID;
        }
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        self.change(inode, path, &set)
    }

    /// chown(2) and fchown(2); `None` leaves an id.
    pub fn chown(&self, caller: &Caller<'_>, path: &VfsPath, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let Some((inode, permissions)) = changeable(path)? else {
            return Ok(());
        };
        let cred = caller.cred;
        if !cred.has(Cap::CHOWN) {
            let owns = cred.fsuid == permissions.uid;
            let uid_allowed = uid.is_none_or(|uid| owns && uid == permissions.uid);
            let gid_allowed = gid.is_none_or(|gid| owns && (gid == permissions.gid || cred.in_group(gid)));
            if !uid_allowed || !gid_allowed {
                return Err(Errno::EPERM);
            }
        }
        // Whoever does it: a program must not keep its privileges under another owner.
        let old = permissions.mode & 0o7777;
        let mut mode = old;
        if !permissions.is_dir() {
            mode &= !libc::S_ISUID;
            let capable = cred.in_group(permissions.gid) || cred.has(Cap::FSETID);
            if old & libc::S_IXGRP != 0 || !capable {
                mode &= !libc::S_ISGID;
            }
        }
        let mode = (mode != old).then_some(mode);
        if mode.is_some() {
            permission::check_owner(cred, permissions)?;
        }
        let set = SetAttributes {
            uid,
            gid,
            mode,
            ..SetAttributes::default()
        };
        self.change(inode, path, &set)
    }

    /// utimensat(2).
    pub fn set_times(&self, caller: &Caller<'_>, path: &VfsPath, atime: SetTime, mtime: SetTime) -> Result<(), Errno> {
        if (atime, mtime) == (SetTime::Omit, SetTime::Omit) {
            return Ok(());
        }
        let Some((inode, permissions)) = changeable(path)? else {
            return Ok(());
        };
        if let Err(errno) = permission::check_owner(caller.cred, permissions) {
            if (atime, mtime) != (SetTime::Now, SetTime::Now) {
                return Err(errno);
            }
            permission::check(caller.cred, permissions, Access::WRITE)?;
        }
        let now = Timestamp::now();
        let value = |time| match time {
            SetTime::Now => Some(now),
            SetTime::Omit => None,
            SetTime::At(time) => Some(time),
        };
        let set = SetAttributes {
            atime: value(atime),
            mtime: value(mtime),
            ..SetAttributes::default()
        };
        self.change(inode, path, &set)
    }

    /// truncate(2). The caller checks RLIMIT_FSIZE.
    pub fn truncate(&self, caller: &Caller<'_>, path: &VfsPath, len: u64) -> Result<(), Errno> {
        let inode = path.inode().ok_or(Errno::EINVAL)?;
        let permissions = inode.permissions()?;
        if permissions.is_dir() {
            return Err(Errno::EISDIR);
        }
        if !permissions.is_regular() || i64::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        if let Some(mount) = path.mount() {
            mount.check_writable()?;
        }
        permission::check(caller.cred, permissions, Access::WRITE)?;
        let _text = self.texts.write(inode)?;
        let _opened = self.break_leases(inode, true, false)?;
        let set = SetAttributes {
            only_if_resized: true,
            ..resized(caller, permissions, len)
        };
        self.change(inode, path, &set)
    }

    /// ftruncate(2): `EINVAL` unless open for writing and a regular file.
    pub fn truncate_file(&self, caller: &Caller<'_>, file: &File, len: u64) -> Result<(), Errno> {
        if file.flags() as i32 & libc::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let inode = file.path().inode().ok_or(Errno::EINVAL)?;
        let permissions = inode.permissions()?;
        if !permissions.is_regular() || !file.writable() || i64::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        self.change(inode, file.path(), &resized(caller, permissions, len))
    }

    /// To be called before each write(2) to a regular file: takes set-user-id and set-group-id bits away
    /// (unless the caller has CAP_FSETID). Costs one look at the mode when there is nothing to do.
    pub fn remove_privileges(&self, caller: &Caller<'_>, file: &File) -> Result<(), Errno> {
        let Some(inode) = file.path().inode() else {
            return Ok(());
        };
        match permission::without_privileges(caller.cred, inode.permissions()?) {
            None => Ok(()),
            mode => {
                let set = SetAttributes {
                    mode,
                    ..SetAttributes::default()
                };
                self.change(inode, file.path(), &set)
            }
        }
    }

    /// Changes attributes and tells of it.
    fn change(&self, inode: &Arc<dyn Inode>, path: &VfsPath, set: &SetAttributes) -> Result<(), Errno> {
        inode.set_attributes(set)?;
        self.notifier.attributes(path, set);
        Ok(())
    }

    /// statfs(2): totals, and the mount's flags as `ST_*`.
    pub fn statfs(&self, path: &VfsPath) -> Result<(FsStatistics, u64), Errno> {
        const ST_VALID: u64 = 0x20;
        const ST_RELATIME: u64 = 0x1000;
        const ST_NOSYMFOLLOW: u64 = 0x2000;
        let Some(inode) = path.inode() else {
            // pipefs and its like.
            let statistics = FsStatistics {
                magic: 0x5049_5045,
                block_size: 4096,
                name_max: 255,
                ..FsStatistics::default()
            };
            return Ok((statistics, ST_VALID));
        };
        let flags = path.mount().map(|mount| mount.flags()).unwrap_or_default();
        let same = MountFlags::READ_ONLY
            | MountFlags::NO_SUID
            | MountFlags::NO_DEV
            | MountFlags::NO_EXEC
            | MountFlags::NO_ATIME
            | MountFlags::NO_DIRATIME;
        let mut bits = ST_VALID | u64::from((flags & same).bits());
        if flags.contains(MountFlags::REL_ATIME) {
            bits |= ST_RELATIME;
        }
        if flags.contains(MountFlags::NO_SYMFOLLOW) {
            bits |= ST_NOSYMFOLLOW;
        }
        Ok((inode.statistics()?, bits))
    }

    /// readlinkat(2) of a place that is a symbolic link (`EINVAL` else); magic links give their text.
    pub fn readlink(&self, caller: &Caller<'_>, path: &VfsPath) -> Result<Vec<u8>, Errno> {
        let dentry = path
            .dentry()
            .filter(|dentry| dentry.is_symlink())
            .ok_or(Errno::EINVAL)?;
        dentry.inode().readlink_as(caller.task)
    }

    /// getxattr(2) and its kin.
    pub fn get_xattr(&self, caller: &Caller<'_>, path: &VfsPath, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let inode = path.inode().ok_or(Errno::EOPNOTSUPP)?;
        check_xattr(caller, inode, name, Access::READ)?;
        inode.get_xattr(name)
    }

    /// setxattr(2); `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        path: &VfsPath,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        const XATTR_SIZE_MAX: usize = 65536;
        if flags & !3 != 0 {
            return Err(Errno::EINVAL);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        writable_xattr(caller, path, name)?.set_xattr(name, value, flags)?;
        self.attributes_changed(path);
        Ok(())
    }

    /// listxattr(2): the names, each with its NUL.
    pub fn list_xattr(&self, caller: &Caller<'_>, path: &VfsPath) -> Result<Vec<u8>, Errno> {
        let names = path.inode().ok_or(Errno::EOPNOTSUPP)?.list_xattr()?;
        let mut list = Vec::new();
        for name in names {
            if !name.starts_with(b"trusted.") || caller.cred.has(Cap::SYS_ADMIN) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    /// removexattr(2).
    pub fn remove_xattr(&self, caller: &Caller<'_>, path: &VfsPath, name: &[u8]) -> Result<(), Errno> {
        writable_xattr(caller, path, name)?.remove_xattr(name)?;
        self.attributes_changed(path);
        Ok(())
    }

    fn attributes_changed(&self, path: &VfsPath) {
        if let Some(dentry) = path.dentry() {
            self.notifier.file(dentry, Events::ATTRIB);
        }
    }

    /// A place for chdir(2), chroot(2) and fchdir(2): `ENOTDIR` unless a directory, `EACCES` unless searchable.
    pub fn check_directory(&self, caller: &Caller<'_>, path: &VfsPath) -> Result<(), Errno> {
        let dentry = path.dentry().filter(|dentry| dentry.is_dir()).ok_or(Errno::ENOTDIR)?;
        permission::check(caller.cred, dentry.inode().permissions()?, Access::EXEC)
    }

    /// A file with no name in any tree (memfd_create(2)): readable, writable, shown as `/memfd:name (deleted)`.
    pub fn memfd(&self, caller: &Caller<'_>, name: &[u8]) -> Result<Arc<File>, Errno> {
        let new = NewInode {
            mode: libc::S_IFREG | 0o777,
            uid: caller.cred.fsuid,
            gid: caller.cred.fsgid,
            rdev: 0,
        };
        let inode = self.unplaced.root().tmpfile(&new)?;
        let ops = inode.open(libc::O_RDWR as u32)?;
        let path = VfsPath::anonymous_inode([b"/memfd:", name, b" (deleted)"].concat(), inode);
        Ok(File::new(path, libc::O_RDWR as u32 | 0o100000, ops))
    }
}

type Changeable<'a> = (&'a Arc<dyn Inode>, Permissions);

/// The inode and permissions of a place whose attributes are to change; `None` for files without inode, whose
/// attributes nobody looks at.
fn changeable(path: &VfsPath) -> Result<Option<Changeable<'_>>, Errno> {
    let Some(inode) = path.inode() else { return Ok(None) };
    if let Some(mount) = path.mount() {
        mount.check_writable()?;
    }
    Ok(Some((inode, inode.permissions()?)))
}

/// The attributes of a file that gets this length.
pub(crate) fn resized(caller: &Caller<'_>, permissions: Permissions, len: u64) -> SetAttributes {
    SetAttributes {
        size: Some(len),
        mode: permission::without_privileges(caller.cred, permissions),
        ..SetAttributes::default()
    }
}

fn writable_xattr<'a>(caller: &Caller<'_>, path: &'a VfsPath, name: &[u8]) -> Result<&'a Arc<dyn Inode>, Errno> {
    let inode = path.inode().ok_or(Errno::EOPNOTSUPP)?;
    if let Some(mount) = path.mount() {
        mount.check_writable()?;
    }
    check_xattr(caller, inode, name, Access::WRITE)?;
    Ok(inode)
}

/// Who may read or write an extended attribute (xattr(7)).
fn check_xattr(caller: &Caller<'_>, inode: &Arc<dyn Inode>, name: &[u8], access: Access) -> Result<(), Errno> {
    let cred = caller.cred;
    let writing = access == Access::WRITE;
    let permissions = inode.permissions()?;
    let prefix = name.iter().position(|&byte| byte == b'.').map(|dot| &name[..dot]);
    match prefix {
        Some(b"trusted") if cred.has(Cap::SYS_ADMIN) => {}
        Some(b"trusted") => return Err(if writing { Errno::EPERM } else { Errno::ENODATA }),
        Some(b"security") if !writing => {}
        Some(b"security") if name == b"security.capability" => cred.require(Cap::SETFCAP)?,
        Some(b"security") => cred.require(Cap::SYS_ADMIN)?,
        Some(b"user") => {
            if !permissions.is_regular() && !permissions.is_dir() {
                return Err(if writing { Errno::EPERM } else { Errno::ENODATA });
            }
            if writing && permissions.is_dir() && permissions.mode & libc::S_ISVTX != 0 {
                permission::check_owner(cred, permissions)?;
            }
            permission::check(cred, permissions, access)?;
        }
        Some(b"system") => return Err(Errno::EOPNOTSUPP),
        _ => {
            permission::check(cred, permissions, access)?;
            return Err(Errno::EOPNOTSUPP);
        }
    }
    // Whether there is a name behind the prefix is looked at last.
    if prefix.is_some_and(|prefix| name.len() == prefix.len() + 1) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
