//! execve(2).

use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_loader::stack::MAX_ARG_STRLEN;
use sentry_platform::SyscallArgs;
use sentry_vfs::ops::Lookup;

use super::{Row, Sys, call};
use crate::task::exec as task;
use crate::task::{Request, Resource, Thread};
use crate::user;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_execve, execve, Str, Strings, Ptr),
    call!(libc::SYS_execveat, execveat, Fd, Str, Ptr, Ptr, Hex),
];

/// More arguments than fit under any limit.
const MAX_STRINGS: usize = 1 << 20;

/// Reads a list of strings that ends with a null pointer; `left` is how many bytes it may still have.
fn read_strings(thread: &Arc<Thread>, addr: u64, left: &mut u64) -> Result<Vec<Vec<u8>>, Errno> {
    let guest = thread.guest();
    let mut strings = Vec::new();
    let mut at = addr;
    while at != 0 {
        // As many pointers as there may be in the page, at most 32.
        let to_page_end = (PAGE_SIZE - at % PAGE_SIZE) / 8;
        let mut raw = [0u8; 256];
        let len = (to_page_end.clamp(1, 32) * 8) as usize;
        guest.read(at, &mut raw[..len])?;
        for pointer in raw[..len].chunks_exact(8) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(pointer);
            let pointer = u64::from_ne_bytes(bytes);
            if pointer == 0 {
                return Ok(strings);
            }
            let string = match guest.read_string(pointer, MAX_ARG_STRLEN) {
                Ok(string) => string,
                Err(Errno::ENAMETOOLONG) => return Err(Errno::E2BIG),
                Err(errno) => return Err(errno),
            };
            *left = left.checked_sub(string.len() as u64 + 9).ok_or(Errno::E2BIG)?;
            strings.push(string);
            if strings.len() > MAX_STRINGS {
                return Err(Errno::E2BIG);
            }
        }
        at = at.checked_add(len as u64).ok_or(Errno::EFAULT)?;
    }
    Ok(strings)
}

fn start(thread: &Arc<Thread>, mut request: Request, argv: u64, envp: u64) -> Sys {
    let limit = thread.limit(Resource::STACK).current;
    let mut left = (limit / 4).clamp(128 << 10, 6 << 20);
    let strings =
        read_strings(thread, argv, &mut left).and_then(|argv| Ok((argv, read_strings(thread, envp, &mut left)?)));
    match strings {
        Ok((argv, envp)) => (request.argv, request.envp) = (argv, envp),
        Err(errno) => return errno.into(),
    }
    Sys::wait(task::exec(thread.clone(), request))
}

fn execve(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [path, argv, envp, ..] = args.args;
    let path = match user::read_path(thread, path) {
        Ok(path) => path,
        Err(errno) => return errno.into(),
    };
    let request = Request {
        dir: None,
        execfn: path.clone(),
        path,
        lookup: Lookup::empty(),
        unreachable: false,
        argv: Vec::new(),
        envp: Vec::new(),
    };
    start(thread, request, argv, envp)
}

fn execveat(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [fd, path, argv, envp, flags, _] = args.args;
    match execveat_request(thread, fd as i32, path, flags as i32) {
        Ok(request) => start(thread, request, argv, envp),
        Err(errno) => errno.into(),
    }
}

fn execveat_request(thread: &Arc<Thread>, fd: i32, path: u64, flags: i32) -> Result<Request, Errno> {
    if flags & !(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user::read_path(thread, path)?;
    let mut lookup = Lookup::empty();
    lookup.set(Lookup::NO_FOLLOW, flags & libc::AT_SYMLINK_NOFOLLOW != 0);
    lookup.set(Lookup::EMPTY_PATH, flags & libc::AT_EMPTY_PATH != 0);
    let from_cwd = fd == libc::AT_FDCWD || path.starts_with(b"/");
    let dir = if from_cwd { None } else { Some(thread.files().get(fd)?) };
    let execfn = match () {
        () if from_cwd => path.clone(),
        () if path.is_empty() => format!("/dev/fd/{fd}").into_bytes(),
        () => [format!("/dev/fd/{fd}/").as_bytes(), &path].concat(),
    };
    let unreachable = dir.is_some() && thread.files().cloexec(fd)?;
    Ok(Request { dir, path, lookup, execfn, unreachable, argv: Vec::new(), envp: Vec::new() })
}
