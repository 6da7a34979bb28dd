//! Extended attributes (xattr(7)).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::ops::{At, Lookup};
use sentry_vfs::path::VfsPath;

use super::args::{file, int, uint};
use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::user::{read_bytes, read_cstr, read_path, write_bytes};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_setxattr, setxattr, Str, Str, Buf(3), Int, Hex),
    call!(libc::SYS_lsetxattr, lsetxattr, Str, Str, Buf(3), Int, Hex),
    call!(libc::SYS_fsetxattr, fsetxattr, Fd, Str, Buf(3), Int, Hex),
    call!(libc::SYS_getxattr, getxattr, Str, Str, Out, Int),
    call!(libc::SYS_lgetxattr, lgetxattr, Str, Str, Out, Int),
    call!(libc::SYS_fgetxattr, fgetxattr, Fd, Str, Out, Int),
    call!(libc::SYS_listxattr, listxattr, Str, Out, Int),
    call!(libc::SYS_llistxattr, llistxattr, Str, Out, Int),
    call!(libc::SYS_flistxattr, flistxattr, Fd, Out, Int),
    call!(libc::SYS_removexattr, removexattr, Str, Str),
    call!(libc::SYS_lremovexattr, lremovexattr, Str, Str),
    call!(libc::SYS_fremovexattr, fremovexattr, Fd, Str),
];

/// The longest name, and the largest value and list, in bytes.
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 65536;

fn by_path(thread: &Thread, addr: u64, lookup: Lookup) -> Result<VfsPath, Errno> {
    let path = read_path(thread, addr)?;
    let context = thread.context();
    thread.kernel().vfs().resolve(&context.caller(), At::Cwd, &path, lookup)
}

fn by_fd(thread: &Thread, args: &SyscallArgs) -> Result<VfsPath, Errno> {
    Ok(file(thread, int(args, 0))?.path().clone())
}

/// An attribute's name; `ERANGE` if empty or too long.
fn name(thread: &Thread, addr: u64) -> Result<Vec<u8>, Errno> {
    match read_cstr(thread, addr, NAME_MAX + 1) {
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE),
        Ok(name) if name.is_empty() => Err(Errno::ERANGE),
        result => result,
    }
}

fn set(thread: &Thread, args: &SyscallArgs, target: impl FnOnce() -> Result<VfsPath, Errno>) -> SysResult {
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    let flags = uint(args, 4);
    if flags & !(CREATE | REPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = name(thread, args.args[1])?;
    let size = usize::try_from(args.args[3])
        .ok()
        .filter(|&size| size <= SIZE_MAX)
        .ok_or(Errno::E2BIG)?;
    let mut value = vec![0; size];
    read_bytes(thread, args.args[2], &mut value)?;
    let target = target()?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .set_xattr(&context.caller(), &target, &name, &value, flags)
        .map(|()| 0)
}

/// Copies out what was asked for; size 0 asks for the length only.
fn give(thread: &Thread, addr: u64, size: u64, value: &[u8]) -> SysResult {
    if size > 0 {
        if value.len() as u64 > size {
            return Err(Errno::ERANGE);
        }
        write_bytes(thread, addr, value)?;
    }
    Ok(value.len() as i64)
}

fn get(thread: &Thread, args: &SyscallArgs, target: impl FnOnce() -> Result<VfsPath, Errno>) -> SysResult {
    let name = name(thread, args.args[1])?;
    let target = target()?;
    let context = thread.context();
    let value = thread.kernel().vfs().get_xattr(&context.caller(), &target, &name)?;
    give(thread, args.args[2], args.args[3], &value)
}

fn list(thread: &Thread, args: &SyscallArgs, target: Result<VfsPath, Errno>) -> SysResult {
    let context = thread.context();
    let value = thread.kernel().vfs().list_xattr(&context.caller(), &target?)?;
    give(thread, args.args[1], args.args[2], &value)
}

fn remove(thread: &Thread, args: &SyscallArgs, target: impl FnOnce() -> Result<VfsPath, Errno>) -> SysResult {
    let name = name(thread, args.args[1])?;
    let target = target()?;
    let context = thread.context();
    thread
        .kernel()
        .vfs()
        .remove_xattr(&context.caller(), &target, &name)
        .map(|()| 0)
}

fn setxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    set(thread, args, || by_path(thread, args.args[0], Lookup::empty()))
}

fn lsetxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    set(thread, args, || by_path(thread, args.args[0], Lookup::NO_FOLLOW))
}

fn fsetxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    set(thread, args, || by_fd(thread, args))
}

fn getxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    get(thread, args, || by_path(thread, args.args[0], Lookup::empty()))
}

fn lgetxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    get(thread, args, || by_path(thread, args.args[0], Lookup::NO_FOLLOW))
}

fn fgetxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    get(thread, args, || by_fd(thread, args))
}

fn listxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    list(thread, args, by_path(thread, args.args[0], Lookup::empty()))
}

fn llistxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    list(thread, args, by_path(thread, args.args[0], Lookup::NO_FOLLOW))
}

fn flistxattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    list(thread, args, by_fd(thread, args))
}

fn removexattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    remove(thread, args, || by_path(thread, args.args[0], Lookup::empty()))
}

fn lremovexattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    remove(thread, args, || by_path(thread, args.args[0], Lookup::NO_FOLLOW))
}

fn fremovexattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    remove(thread, args, || by_fd(thread, args))
}
