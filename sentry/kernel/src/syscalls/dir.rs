//! Directories and names: getdents(2), mkdir(2), rename(2), links, chdir(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::Dirent64;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;
use sentry_vfs::notify::Events;
use sentry_vfs::ops::{At, Lookup};
use zerocopy::IntoBytes;

use super::args::{Start, any_file, file, int, uint};
use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::user::{read_path, write_bytes};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_getdents, getdents, Fd, Ptr, Int),
    call!(libc::SYS_getdents64, getdents64, Fd, Ptr, Int),
    call!(libc::SYS_getcwd, getcwd, Out, Int),
    call!(libc::SYS_chdir, chdir, Str),
    call!(libc::SYS_fchdir, fchdir, Fd),
    call!(libc::SYS_chroot, chroot, Str),
    call!(libc::SYS_rename, rename, Str, Str),
    call!(libc::SYS_renameat, renameat, Fd, Str, Fd, Str),
    call!(libc::SYS_renameat2, renameat2, Fd, Str, Fd, Str, Hex),
    call!(libc::SYS_mkdir, mkdir, Str, Mode),
    call!(libc::SYS_mkdirat, mkdirat, Fd, Str, Mode),
    call!(libc::SYS_rmdir, rmdir, Str),
    call!(libc::SYS_unlink, unlink, Str),
    call!(libc::SYS_unlinkat, unlinkat, Fd, Str, Hex),
    call!(libc::SYS_link, link, Str, Str),
    call!(libc::SYS_linkat, linkat, Fd, Str, Fd, Str, Hex),
    call!(libc::SYS_symlink, symlink, Str, Str),
    call!(libc::SYS_symlinkat, symlinkat, Str, Fd, Str),
    call!(libc::SYS_readlink, readlink, Str, Out, Int),
    call!(libc::SYS_readlinkat, readlinkat, Fd, Str, Out, Int),
    call!(libc::SYS_mknod, mknod, Str, Mode, Int),
    call!(libc::SYS_mknodat, mknodat, Fd, Str, Mode, Int),
];

/// The most bytes of entries one call gives.
const MAX_ENTRIES: usize = 256 << 10;
/// How often a list is read again because the position has moved.
const MAX_TRIES: u32 = 4;

/// How an entry is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `struct linux_dirent`: the type is the last byte.
    Old,
    /// `struct linux_dirent64`.
    New,
}

impl Layout {
    /// Appends an entry, if `room` bytes in all are enough.
    fn push(self, out: &mut Vec<u8>, room: usize, entry: &sentry_vfs::file::DirEntry, next: u64) -> bool {
        let head = if self == Layout::New { size_of::<Dirent64>() } else { 18 };
        // The name's NUL, and in the old layout the type.
        let tail = if self == Layout::New { 1 } else { 2 };
        let size = (head + entry.name.len() + tail).next_multiple_of(8);
        let Ok(reclen) = u16::try_from(size) else { return true };
        if out.len() + size > room {
            return false;
        }
        let start = out.len();
        if self == Layout::New {
            let header = Dirent64 {
                d_ino: entry.ino,
                d_off: next as i64,
                d_reclen: reclen,
                d_type: entry.kind,
            };
            out.extend_from_slice(header.as_bytes());
        } else {
            out.extend_from_slice(&entry.ino.to_ne_bytes());
            out.extend_from_slice(&next.to_ne_bytes());
            out.extend_from_slice(&reclen.to_ne_bytes());
        }
        out.extend_from_slice(&entry.name);
        out.resize(start + size, 0);
        if self == Layout::Old
            && let Some(last) = out.last_mut() {
                *last = entry.kind;
            }
        true
    }
}

fn getdents(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_getdents(thread, args, Layout::Old)
}

fn getdents64(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_getdents(thread, args, Layout::New)
}

fn do_getdents(thread: &Thread, args: &SyscallArgs, layout: Layout) -> SysResult {
    let file = file(thread, int(args, 0))?;
    let room = (uint(args, 2) as usize).min(MAX_ENTRIES);
    crate::io::check_range(thread, args.args[1], room)?;
    let mut out = Vec::new();
    let mut tries = 0;
    let (position, next) = loop {
        out.clear();
        let mut full = false;
        // Without the lock: a list may have to be waited for.
        let start = file.position.now();
        let mut next = start;
        file.ops().readdir(&file, start, &mut |entry, behind| {
            let fits = layout.push(&mut out, room, entry, behind);
            if fits {
                next = behind;
            }
            full |= !fits;
            fits
        })?;
        let position = file.position.lock();
        tries += 1;
        // Somebody else has read on meanwhile: behind that. (Somebody who does it all the time is no reason to wait.)
        if position.get() != start && tries < MAX_TRIES {
            continue;
        }
        if out.is_empty() && full {
            return Err(Errno::EINVAL);
        }
        break (position, next);
    };
    thread.kernel().vfs().notifier().opened_file(&file, Events::ACCESS);
    write_bytes(thread, args.args[1], &out)?;
    position.set(next);
    Ok(out.len() as i64)
}

fn getcwd(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let context = thread.context();
    let mut path = thread.kernel().vfs().getcwd(&context.caller())?;
    path.push(0);
    if path.len() > crate::user::PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if path.len() as u64 > args.args[1] {
        return Err(Errno::ERANGE);
    }
    write_bytes(thread, args.args[0], &path)?;
    Ok(path.len() as i64)
}

fn chdir(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let (context, vfs) = (thread.context(), thread.kernel().vfs());
    let target = vfs.resolve(&context.caller(), At::Cwd, &path, Lookup::DIRECTORY)?;
    vfs.check_directory(&context.caller(), &target)?;
    thread.fs().set_cwd(target);
    Ok(0)
}

fn fchdir(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = any_file(thread, int(args, 0))?;
    if file.path().mount().is_none() {
        return Err(Errno::ENOTDIR);
    }
    let context = thread.context();
    thread.kernel().vfs().check_directory(&context.caller(), file.path())?;
    thread.fs().set_cwd(file.path().clone());
    Ok(0)
}

fn chroot(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let path = read_path(thread, args.args[0])?;
    let (context, vfs) = (thread.context(), thread.kernel().vfs());
    let target = vfs.resolve(&context.caller(), At::Cwd, &path, Lookup::DIRECTORY)?;
    vfs.check_directory(&context.caller(), &target)?;
    context.cred.require(Cap::SYS_CHROOT)?;
    thread.fs().set_root(target);
    Ok(0)
}

fn rename(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_rename(
        thread,
        (libc::AT_FDCWD, args.args[0]),
        (libc::AT_FDCWD, args.args[1]),
        0,
    )
}

fn renameat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_rename(thread, (int(args, 0), args.args[1]), (int(args, 2), args.args[3]), 0)
}

fn renameat2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_rename(
        thread,
        (int(args, 0), args.args[1]),
        (int(args, 2), args.args[3]),
        uint(args, 4),
    )
}

fn do_rename(thread: &Thread, old: (i32, u64), new: (i32, u64), flags: u32) -> SysResult {
    const NOREPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    const WHITEOUT: u32 = 4;
    if flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 || (flags & EXCHANGE != 0 && flags & (NOREPLACE | WHITEOUT) != 0)
    {
        return Err(Errno::EINVAL);
    }
    let old_path = read_path(thread, old.1)?;
    let new_path = read_path(thread, new.1)?;
    let old_start = Start::new(thread, old.0, &old_path)?;
    let new_start = Start::new(thread, new.0, &new_path)?;
    let context = thread.context();
    let vfs = thread.kernel().vfs();
    vfs.rename(
        &context.caller(),
        old_start.at(),
        &old_path,
        new_start.at(),
        &new_path,
        flags,
    )
    .map(|()| 0)
}

fn mkdir(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_mkdir(thread, libc::AT_FDCWD, args.args[0], uint(args, 1))
}

fn mkdirat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_mkdir(thread, int(args, 0), args.args[1], uint(args, 2))
}

fn do_mkdir(thread: &Thread, dirfd: i32, addr: u64, mode: u32) -> SysResult {
    let path = read_path(thread, addr)?;
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .mkdir(&context.caller(), start.at(), &path, mode & 0o1777)
        .map(|()| 0)
}

fn rmdir(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_remove(thread, libc::AT_FDCWD, args.args[0], true)
}

fn unlink(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_remove(thread, libc::AT_FDCWD, args.args[0], false)
}

fn unlinkat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 2);
    if flags & !libc::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    do_remove(thread, int(args, 0), args.args[1], flags != 0)
}

fn do_remove(thread: &Thread, dirfd: i32, addr: u64, directory: bool) -> SysResult {
    let path = read_path(thread, addr)?;
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    let (caller, vfs) = (context.caller(), thread.kernel().vfs());
    let result = if directory {
        vfs.rmdir(&caller, start.at(), &path)
    } else {
        vfs.unlink(&caller, start.at(), &path)
    };
    result.map(|()| 0)
}

fn link(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_link(
        thread,
        (libc::AT_FDCWD, args.args[0]),
        (libc::AT_FDCWD, args.args[1]),
        0,
    )
}

fn linkat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_link(
        thread,
        (int(args, 0), args.args[1]),
        (int(args, 2), args.args[3]),
        int(args, 4),
    )
}

fn do_link(thread: &Thread, old: (i32, u64), new: (i32, u64), flags: i32) -> SysResult {
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let old_path = read_path(thread, old.1)?;
    let new_path = read_path(thread, new.1)?;
    let context = thread.context();
    let (caller, vfs) = (context.caller(), thread.kernel().vfs());
    let source = if old_path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        if !context.cred.has(Cap::DAC_READ_SEARCH) {
            return Err(Errno::ENOENT);
        }
        if old.0 == libc::AT_FDCWD {
            context.cwd.clone()
        } else {
            any_file(thread, old.0)?.path().clone()
        }
    } else {
        let lookup = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
            Lookup::empty()
        } else {
            Lookup::NO_FOLLOW
        };
        vfs.resolve(&caller, Start::new(thread, old.0, &old_path)?.at(), &old_path, lookup)?
    };
    let start = Start::new(thread, new.0, &new_path)?;
    vfs.link(&caller, &source, start.at(), &new_path).map(|()| 0)
}

fn symlink(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_symlink(thread, args.args[0], libc::AT_FDCWD, args.args[1])
}

fn symlinkat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_symlink(thread, args.args[0], int(args, 1), args.args[2])
}

fn do_symlink(thread: &Thread, target: u64, dirfd: i32, addr: u64) -> SysResult {
    let target = read_path(thread, target)?;
    let path = read_path(thread, addr)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .symlink(&context.caller(), &target, start.at(), &path)
        .map(|()| 0)
}

fn readlink(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_readlink(thread, libc::AT_FDCWD, args.args[0], args.args[1], int(args, 2))
}

fn readlinkat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_readlink(thread, int(args, 0), args.args[1], args.args[2], int(args, 3))
}

fn do_readlink(thread: &Thread, dirfd: i32, addr: u64, out: u64, size: i32) -> SysResult {
    let size = usize::try_from(size)
        .ok()
        .filter(|&size| size > 0)
        .ok_or(Errno::EINVAL)?;
    let path = read_path(thread, addr)?;
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    let (caller, vfs) = (context.caller(), thread.kernel().vfs());
    // An empty path stands for an O_PATH descriptor of the link itself.
    let source = match &start {
        Start::File(file) if path.is_empty() => file.path().clone(),
        _ => vfs.resolve(&caller, start.at(), &path, Lookup::NO_FOLLOW)?,
    };
    let mut target = match vfs.readlink(&caller, &source) {
        Err(Errno::EINVAL) if path.is_empty() => return Err(Errno::ENOENT),
        result => result?,
    };
    target.truncate(size);
    write_bytes(thread, out, &target)?;
    Ok(target.len() as i64)
}

fn mknod(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_mknod(thread, libc::AT_FDCWD, args.args[0], uint(args, 1), uint(args, 2))
}

fn mknodat(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_mknod(thread, int(args, 0), args.args[1], uint(args, 2), uint(args, 3))
}

fn do_mknod(thread: &Thread, dirfd: i32, addr: u64, mode: u32, device: u32) -> SysResult {
    let mode = match mode & libc::S_IFMT {
        0 => mode | libc::S_IFREG,
        libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK => mode,
        libc::S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let path = read_path(thread, addr)?;
    let start = Start::new(thread, dirfd, &path)?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .mknod(&context.caller(), start.at(), &path, mode, device.into())
        .map(|_| 0)
}
