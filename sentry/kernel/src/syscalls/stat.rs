//! stat(2), access(2), chmod(2), chown(2), utimensat(2), statfs(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::{Stat, Statfs, Statx, StatxTimestamp, device_parts};
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::inode::{Attributes, FsStatistics, Timestamp};
use sentry_vfs::ops::{Access, Lookup, SetTime};
use sentry_vfs::path::VfsPath;

use super::args::{Start, any_file, file, int, uint};
use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::user::{UserPtr, read_path};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_stat, stat, Str, Ptr),
    call!(libc::SYS_fstat, fstat, Fd, Ptr),
    call!(libc::SYS_lstat, lstat, Str, Ptr),
    call!(libc::SYS_newfstatat, newfstatat, Fd, Str, Ptr, Hex),
    call!(libc::SYS_statx, statx, Fd, Str, Hex, Hex, Ptr),
    call!(libc::SYS_access, access, Str, Mode),
    call!(libc::SYS_faccessat, faccessat, Fd, Str, Mode),
    call!(libc::SYS_faccessat2, faccessat2, Fd, Str, Mode, Hex),
    call!(libc::SYS_chmod, chmod, Str, Mode),
    call!(libc::SYS_fchmod, fchmod, Fd, Mode),
    call!(libc::SYS_fchmodat, fchmodat, Fd, Str, Mode),
    call!(libc::SYS_fchmodat2, fchmodat2, Fd, Str, Mode, Hex),
    call!(libc::SYS_chown, chown, Str, Int, Int),
    call!(libc::SYS_fchown, fchown, Fd, Int, Int),
    call!(libc::SYS_lchown, lchown, Str, Int, Int),
    call!(libc::SYS_fchownat, fchownat, Fd, Str, Int, Int, Hex),
    call!(libc::SYS_utime, utime, Str, Ptr),
    call!(libc::SYS_utimes, utimes, Str, Ptr),
    call!(libc::SYS_futimesat, futimesat, Fd, Str, Ptr),
    call!(libc::SYS_utimensat, utimensat, Fd, Str, Ptr, Hex),
    call!(libc::SYS_statfs, statfs, Str, Ptr),
    call!(libc::SYS_fstatfs, fstatfs, Fd, Ptr),
    call!(libc::SYS_umask, umask, Mode),
];

/// `struct stat` of a file's attributes.
fn to_stat(attributes: &Attributes) -> Stat {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Stat {
        st_dev: attributes.dev,
        st_ino: attributes.ino,
        st_nlink: attributes.nlink.into(),
        st_mode: attributes.mode,
        st_uid: attributes.uid,
        st_gid: attributes.gid,
        st_rdev: attributes.rdev,
        st_size: signed(attributes.size),
        st_blksize: attributes.block_size.into(),
        st_blocks: signed(attributes.blocks),
        st_atime: attributes.atime.sec,
        st_atime_nsec: attributes.atime.nsec.into(),
        st_mtime: attributes.mtime.sec,
        st_mtime_nsec: attributes.mtime.nsec.into(),
        st_ctime: attributes.ctime.sec,
        st_ctime_nsec: attributes.ctime.nsec.into(),
        ..Stat::default()
    }
}

fn stat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    stat_path(thread, libc::AT_FDCWD, &path, Lookup::empty(), args.args[1])
}

fn lstat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    stat_path(thread, libc::AT_FDCWD, &path, Lookup::NO_FOLLOW, args.args[1])
}

fn fstat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let attributes = any_file(thread, int(args, 0))?.attributes()?;
    UserPtr::new(args.args[1])
        .copy_out(thread, &to_stat(&attributes))
        .map(|()| 0)
}

/// A path that may be left out or empty with `AT_EMPTY_PATH`.
fn path_or_empty(thread: &Thread, addr: u64, flags: i32) -> Result<Vec<u8>, Errno> {
    if addr == 0 && flags & libc::AT_EMPTY_PATH != 0 {
        Ok(Vec::new())
    } else {
        read_path(thread, addr)
    }
}

/// `AT_*` flags as the VFS has them.
fn lookup_flags(flags: i32) -> Lookup {
    let mut lookup = Lookup::empty();
    lookup.set(Lookup::NO_FOLLOW, flags & libc::AT_SYMLINK_NOFOLLOW != 0);
    lookup.set(Lookup::EMPTY_PATH, flags & libc::AT_EMPTY_PATH != 0);
    lookup
}

fn newfstatat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 3);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_empty(thread, args.args[1], flags)?;
    stat_path(thread, int(args, 0), &path, lookup_flags(flags), args.args[2])
}

fn stat_path(thread: &Thread, dirfd: i32, path: &[u8], lookup: Lookup, out: u64) -> SysResult {
    let (attributes, _) = look_up(thread, dirfd, path, lookup)?;
    UserPtr::new(out).copy_out(thread, &to_stat(&attributes)).map(|()| 0)
}

/// The file that an empty path with `AT_EMPTY_PATH` means.
fn own_file(thread: &Thread, dirfd: i32, path: &[u8], lookup: Lookup) -> Result<Option<Arc<File>>, Errno> {
    let own = path.is_empty() && lookup.contains(Lookup::EMPTY_PATH) && dirfd != libc::AT_FDCWD;
    own.then(|| any_file(thread, dirfd)).transpose()
}

/// The attributes of what a path argument with `AT_*` flags leads to, and its place.
fn look_up(thread: &Thread, dirfd: i32, path: &[u8], lookup: Lookup) -> Result<(Attributes, VfsPath), Errno> {
    if let Some(file) = own_file(thread, dirfd, path, lookup)? {
        return Ok((file.attributes()?, file.path().clone()));
    }
    let place = resolve(thread, dirfd, path, lookup)?;
    Ok((thread.kernel().vfs().stat(&place)?, place))
}

fn to_statx(attributes: &Attributes) -> Statx {
    let time = |time: Timestamp| StatxTimestamp {
        tv_sec: time.sec,
        tv_nsec: time.nsec,
        reserved: 0,
    };
    let (major, minor) = device_parts(attributes.dev);
    let (rdev_major, rdev_minor) = device_parts(attributes.rdev);
    // STATX_BASIC_STATS, and STATX_BTIME where there is one.
    let born = attributes.btime != Timestamp::default();
    Statx {
        stx_mask: if born { 0xfff } else { 0x7ff },
        stx_blksize: attributes.block_size,
        stx_nlink: attributes.nlink,
        stx_uid: attributes.uid,
        stx_gid: attributes.gid,
        stx_mode: attributes.mode as u16,
        stx_ino: attributes.ino,
        stx_size: attributes.size,
        stx_blocks: attributes.blocks,
        stx_atime: time(attributes.atime),
        stx_btime: time(attributes.btime),
        stx_ctime: time(attributes.ctime),
        stx_mtime: time(attributes.mtime),
        stx_rdev_major: rdev_major,
        stx_rdev_minor: rdev_minor,
        stx_dev_major: major,
        stx_dev_minor: minor,
        ..Statx::default()
    }
}

fn statx(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const SYNC_TYPE: i32 = 0x6000;
    const RESERVED: u32 = 0x8000_0000;
    let (flags, mask) = (int(args, 2), uint(args, 3));
    let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | SYNC_TYPE;
    if flags & !known != 0 || flags & SYNC_TYPE == SYNC_TYPE || mask & RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_empty(thread, args.args[1], flags)?;
    let (attributes, place) = look_up(thread, int(args, 0), &path, lookup_flags(flags))?;
    let mut answer = to_statx(&attributes);
    tell_mount(&mut answer, &place, mask);
    UserPtr::new(args.args[4]).copy_out(thread, &answer).map(|()| 0)
}

/// What statx(2) says of the mount: its number, in the form that was asked for, and whether this is its root.
fn tell_mount(answer: &mut Statx, place: &VfsPath, mask: u32) {
    const MNT_ID: u32 = 0x1000;
    const MNT_ID_UNIQUE: u32 = 0x4000;
    const ATTR_MOUNT_ROOT: u64 = 0x2000;
    answer.stx_attributes_mask |= ATTR_MOUNT_ROOT;
    let Some((mount, dentry)) = place.tree() else { return };
    answer.stx_mnt_id = mount.id();
    // Numbers are not used again, so that one is as good as the other.
    answer.stx_mask |= if mask & MNT_ID_UNIQUE != 0 {
        MNT_ID_UNIQUE
    } else {
        MNT_ID
    };
    if Arc::ptr_eq(mount.root(), dentry) {
        answer.stx_attributes |= ATTR_MOUNT_ROOT;
    }
}

/// Resolves a path argument with `AT_*` flags.
fn resolve(thread: &Thread, dirfd: i32, path: &[u8], lookup: Lookup) -> Result<VfsPath, Errno> {
    if let Some(file) = own_file(thread, dirfd, path, lookup)? {
        return Ok(file.path().clone());
    }
    let start = Start::new(thread, dirfd, path)?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .resolve(&context.caller(), start.at(), path, lookup)
}

fn access(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_access(thread, libc::AT_FDCWD, args.args[0], uint(args, 1), 0)
}

fn faccessat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_access(thread, int(args, 0), args.args[1], uint(args, 2), 0)
}

fn faccessat2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 3);
    if flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    do_access(thread, int(args, 0), args.args[1], uint(args, 2), flags)
}

fn do_access(thread: &Thread, dirfd: i32, addr: u64, mode: u32, flags: i32) -> SysResult {
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_empty(thread, addr, flags)?;
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    let real = context.cred.for_access();
    let caller = context.caller();
    let caller = if flags & libc::AT_EACCESS != 0 {
        caller
    } else {
        caller.with_cred(&real)
    };
    let vfs = thread.kernel().vfs();
    let target = match &start {
        Start::File(file) if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 => file.path().clone(),
        _ => vfs.resolve(&caller, start.at(), &path, lookup_flags(flags))?,
    };
    if target.inode().is_none() {
        // A pipe or socket: its permission bits are not looked at any further.
        return Ok(0);
    }
    vfs.access(&caller, &target, Access(mode)).map(|()| 0)
}

fn chmod(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    do_chmod(
        thread,
        &resolve(thread, libc::AT_FDCWD, &path, Lookup::empty())?,
        uint(args, 1),
    )
}

fn fchmod(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    if file.path().inode().is_none() {
        // Anonymous files take the change and show nothing of it.
        return Ok(0);
    }
    do_chmod(thread, file.path(), uint(args, 1))
}

fn fchmodat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[1])?;
    do_chmod(
        thread,
        &resolve(thread, int(args, 0), &path, Lookup::empty())?,
        uint(args, 2),
    )
}

fn fchmodat2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 3);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_empty(thread, args.args[1], flags)?;
    let target = resolve(thread, int(args, 0), &path, lookup_flags(flags))?;
    if target.inode().is_some_and(|inode| {
        inode
            .attributes()
            .is_ok_and(|attributes| attributes.mode & libc::S_IFMT == libc::S_IFLNK)
    }) {
        return Err(Errno::EOPNOTSUPP);
    }
    do_chmod(thread, &target, uint(args, 2))
}

fn do_chmod(thread: &Thread, path: &VfsPath, mode: u32) -> SysResult {
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .chmod(&context.caller(), path, mode & 0o7777)
        .map(|()| 0)
}

fn chown(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let target = resolve(thread, libc::AT_FDCWD, &path, Lookup::empty())?;
    do_chown(thread, &target, uint(args, 1), uint(args, 2))
}

fn lchown(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let target = resolve(thread, libc::AT_FDCWD, &path, Lookup::NO_FOLLOW)?;
    do_chown(thread, &target, uint(args, 1), uint(args, 2))
}

fn fchown(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    if file.path().inode().is_none() {
        return Ok(0);
    }
    do_chown(thread, file.path(), uint(args, 1), uint(args, 2))
}

fn fchownat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 4);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_empty(thread, args.args[1], flags)?;
    let target = resolve(thread, int(args, 0), &path, lookup_flags(flags))?;
    do_chown(thread, &target, uint(args, 2), uint(args, 3))
}

fn do_chown(thread: &Thread, path: &VfsPath, uid: u32, gid: u32) -> SysResult {
    let id = |id: u32| if id == u32::MAX { None } else { Some(id) };
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .chown(&context.caller(), path, id(uid), id(gid))
        .map(|()| 0)
}

fn do_utimes(thread: &Thread, path: &VfsPath, times: [SetTime; 2]) -> SysResult {
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .set_times(&context.caller(), path, times[0], times[1])
        .map(|()| 0)
}

fn utime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let pointer = UserPtr::<[i64; 2]>::new(args.args[1]);
    let times = if pointer.is_null() {
        [SetTime::Now; 2]
    } else {
        pointer
            .copy_in(thread)?
            .map(|sec| SetTime::At(Timestamp { sec, nsec: 0 }))
    };
    do_utimes(thread, &resolve(thread, libc::AT_FDCWD, &path, Lookup::empty())?, times)
}

/// Two `struct timeval`; none: now.
fn timevals(thread: &Thread, addr: u64) -> Result<[SetTime; 2], Errno> {
    let pointer = UserPtr::<[[i64; 2]; 2]>::new(addr);
    if pointer.is_null() {
        return Ok([SetTime::Now; 2]);
    }
    let one = |[sec, usec]: [i64; 2]| match u32::try_from(usec) {
        Ok(usec @ 0..1_000_000) => Ok(SetTime::At(Timestamp { sec, nsec: usec * 1000 })),
        _ => Err(Errno::EINVAL),
    };
    let [atime, mtime] = pointer.copy_in(thread)?;
    Ok([one(atime)?, one(mtime)?])
}

fn utimes(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let times = timevals(thread, args.args[1])?;
    let path = read_path(thread, args.args[0])?;
    do_utimes(thread, &resolve(thread, libc::AT_FDCWD, &path, Lookup::empty())?, times)
}

fn futimesat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let times = timevals(thread, args.args[2])?;
    if args.args[1] == 0 {
        return do_utimes(thread, file(thread, int(args, 0))?.path(), times);
    }
    let path = read_path(thread, args.args[1])?;
    do_utimes(thread, &resolve(thread, int(args, 0), &path, Lookup::empty())?, times)
}

fn utimensat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 3);
    let pointer = UserPtr::<[[i64; 2]; 2]>::new(args.args[2]);
    let one = |[sec, nsec]: [i64; 2]| match nsec {
        libc::UTIME_NOW => Ok(SetTime::Now),
        libc::UTIME_OMIT => Ok(SetTime::Omit),
        0..1_000_000_000 => Ok(SetTime::At(Timestamp { sec, nsec: nsec as u32 })),
        _ => Err(Errno::EINVAL),
    };
    // Times are checked when the file is found.
    let times = if pointer.is_null() {
        Ok([SetTime::Now; 2])
    } else {
        let [atime, mtime] = pointer.copy_in(thread)?;
        one(atime).and_then(|atime| Ok([atime, one(mtime)?]))
    };
    if times == Ok([SetTime::Omit; 2]) {
        return Ok(0);
    }
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    if args.args[1] == 0 && int(args, 0) != libc::AT_FDCWD {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let file = file(thread, int(args, 0))?;
        return do_utimes(thread, file.path(), times?);
    }
    let path = path_or_empty(thread, args.args[1], flags)?;
    let place = resolve(thread, int(args, 0), &path, lookup_flags(flags))?;
    do_utimes(thread, &place, times?)
}

fn to_statfs(statistics: &FsStatistics, flags: u64) -> Statfs {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    // ST_VALID, as statfs(2) always sets it.
    const VALID: u64 = 0x20;
    Statfs {
        f_type: signed(statistics.magic),
        f_bsize: signed(statistics.block_size),
        f_blocks: statistics.blocks,
        f_bfree: statistics.blocks_free,
        f_bavail: statistics.blocks_free,
        f_files: statistics.files,
        f_ffree: statistics.files_free,
        f_namelen: signed(statistics.name_max),
        f_frsize: signed(statistics.block_size),
        f_flags: signed(flags | VALID),
        ..Statfs::default()
    }
}

fn statfs(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let target = resolve(thread, libc::AT_FDCWD, &path, Lookup::empty())?;
    let (statistics, flags) = thread.kernel().vfs().statfs(&target)?;
    UserPtr::new(args.args[1])
        .copy_out(thread, &to_statfs(&statistics, flags))
        .map(|()| 0)
}

fn fstatfs(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = any_file(thread, int(args, 0))?;
    let (statistics, flags) = if file.path().mount().is_some() {
        thread.kernel().vfs().statfs(file.path())?
    } else {
        let magic = match crate::io::kind_of(&file) {
            libc::S_IFIFO => 0x5049_5045,
            libc::S_IFSOCK => 0x534f_434b,
            libc::S_IFREG => 0x0102_1994,
            _ => 0x0904_1934,
        };
        (
            FsStatistics {
                magic,
                block_size: 4096,
                name_max: 255,
                ..FsStatistics::default()
            },
            0,
        )
    };
    UserPtr::new(args.args[1])
        .copy_out(thread, &to_statfs(&statistics, flags))
        .map(|()| 0)
}

fn umask(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    Ok(thread.fs().set_umask(uint(args, 0)).into())
}
