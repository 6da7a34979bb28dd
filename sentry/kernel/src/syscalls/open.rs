//! open(2) and its kin, and memfd_create(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::OpenHow;
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::ops::Resolve;
use sentry_vfs::wait::PollEvents;

use super::args::{Start, install, int, uint};
use super::{Row, Sys, SysResult, call};
use crate::leases;
use crate::pipe::PipeEnd;
use crate::task::{Resource, Thread, block_on};
use crate::user::{UserPtr, UserSlice, read_cstr, read_path};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_open, open, Str, OpenFlags, Mode),
    call!(libc::SYS_openat, openat, Fd, Str, OpenFlags, Mode),
    call!(libc::SYS_openat2, openat2, Fd, Str, Ptr, Int),
    call!(libc::SYS_creat, creat, Str, Mode),
    call!(libc::SYS_memfd_create, memfd_create, Str, Hex),
];

/// The flags of open(2) that mean something.
const KNOWN: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | LARGEFILE
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_SYNC
    | libc::O_PATH
    | libc::O_TMPFILE;

/// The kernel's `O_LARGEFILE`, which libc has as 0; always set on x86-64.
const LARGEFILE: i32 = 0o100_000;
/// Of `O_TMPFILE`, the bit that is its own.
const TMPFILE_BIT: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

fn open(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let path = read_path(thread, args.args[0])?;
    do_open(thread, libc::AT_FDCWD, &path, int(args, 1), uint(args, 2))
}

fn openat(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let path = read_path(thread, args.args[1])?;
    do_open(thread, int(args, 0), &path, int(args, 2), uint(args, 3))
}

fn creat(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let path = read_path(thread, args.args[0])?;
    do_open(
        thread,
        libc::AT_FDCWD,
        &path,
        libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
        uint(args, 1),
    )
}

/// open(2) and openat(2) ignore what they do not know.
fn do_open(thread: &Arc<Thread>, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Result<Sys, Errno> {
    let mut flags = (flags & KNOWN) | LARGEFILE;
    if flags & libc::O_PATH != 0 {
        flags &= libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    }
    let creates = flags & (libc::O_CREAT | TMPFILE_BIT) != 0;
    let mode = if creates { mode & 0o7777 } else { 0 };
    open_checked(thread, dirfd, path, flags, mode, Resolve::empty())
}

fn openat2(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    const SIZE: usize = size_of::<OpenHow>();
    let size = usize::try_from(args.args[3]).map_err(|_| Errno::E2BIG)?;
    if size < SIZE {
        return Err(Errno::EINVAL);
    }
    if size > sentry_abi::PAGE_SIZE as usize {
        return Err(Errno::E2BIG);
    }
    let how: OpenHow = UserPtr::new(args.args[2]).copy_in(thread)?;
    let rest: Vec<u8> = UserSlice::new(args.args[2].checked_add(SIZE as u64).ok_or(Errno::EFAULT)?, size - SIZE)
        .copy_in(thread, size)?;
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let flags = i32::try_from(how.flags).map_err(|_| Errno::EINVAL)?;
    let resolve = Resolve::from_bits(how.resolve).ok_or(Errno::EINVAL)?;
    let creates = flags & (libc::O_CREAT | TMPFILE_BIT) != 0;
    let path_only = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    if flags & !KNOWN != 0
        || how.mode & !0o7777 != 0
        || (how.mode != 0 && !creates)
        || (flags & libc::O_PATH != 0 && flags & !path_only != 0)
        || resolve.contains(Resolve::BENEATH | Resolve::IN_ROOT)
        || (resolve.contains(Resolve::CACHED) && flags & (libc::O_TRUNC | libc::O_CREAT | TMPFILE_BIT) != 0)
    {
        return Err(Errno::EINVAL);
    }
    let path = read_path(thread, args.args[1])?;
    open_checked(thread, int(args, 0), &path, flags | LARGEFILE, how.mode as u32, resolve)
}

fn open_checked(
    thread: &Arc<Thread>,
    dirfd: i32,
    path: &[u8],
    flags: i32,
    mode: u32,
    resolve: Resolve,
) -> Result<Sys, Errno> {
    if flags & TMPFILE_BIT != 0 {
        let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
        if flags & libc::O_DIRECTORY == 0 || flags & libc::O_CREAT != 0 || !writes {
            return Err(Errno::EINVAL);
        }
    } else if flags & (libc::O_CREAT | libc::O_DIRECTORY) == libc::O_CREAT | libc::O_DIRECTORY {
        return Err(Errno::EINVAL);
    }
    let start = if resolve.intersects(Resolve::IN_ROOT | Resolve::BENEATH) && dirfd != libc::AT_FDCWD {
        Start::File(super::args::any_file(thread, dirfd)?)
    } else {
        Start::new(thread, dirfd, path)?
    };
    thread.files().check_room(thread.limit(Resource::NOFILE).current)?;
    let opening = Opening {
        start,
        flags,
        mode,
        resolve,
    };
    let cloexec = flags & libc::O_CLOEXEC != 0;
    match opening.open(thread, path) {
        Ok(file) if needs_peer(&file) => Ok(wait_for_peer(thread.clone(), file, cloexec)),
        Ok(file) => opening.install(thread, file).map(|fd| Sys::Done(Ok(fd))),
        Err(Errno::EJUKEBOX) => {
            let (thread, path, refused) = (thread.clone(), path.to_vec(), leases::refused());
            Ok(Sys::wait(async move {
                let file = leases::retry(&thread, refused, || opening.open(&thread, &path)).await?;
                opening.install(&thread, file)
            }))
        }
        Err(errno) => Err(errno),
    }
}

/// What is to be opened, and how.
struct Opening {
    start: Start,
    flags: i32,
    mode: u32,
    resolve: Resolve,
}

impl Opening {
    fn open(&self, thread: &Arc<Thread>, path: &[u8]) -> Result<Arc<File>, Errno> {
        let (context, vfs) = (thread.context(), thread.kernel().vfs());
        let caller = context.caller();
        vfs.open(&caller, self.start.at(), path, self.flags, self.mode, self.resolve)
    }

    fn install(&self, thread: &Arc<Thread>, file: Arc<File>) -> SysResult {
        crate::tty::job::opened(thread, &file, self.flags);
        install(thread, file, self.flags & libc::O_CLOEXEC != 0)
    }
}

/// True for a FIFO whose other end is not open yet, opened without `O_NONBLOCK`.
fn needs_peer(file: &File) -> bool {
    !file.nonblocking()
        && file
            .ops()
            .as_any()
            .downcast_ref::<PipeEnd>()
            .is_some_and(|end| !end.peer_seen())
}

/// The open(2) of a FIFO waits for somebody to open the other end (fifo(7)).
fn wait_for_peer(thread: Arc<Thread>, file: Arc<File>, cloexec: bool) -> Sys {
    Sys::wait(async move {
        let end = file.ops().as_any().downcast_ref::<PipeEnd>().ok_or(Errno::EIO)?;
        let queue = end.pipe().queue();
        let seen = block_on(&thread, None, &[(queue, PollEvents::all())], || {
            end.peer_seen().then_some(())
        })
        .await;
        match seen {
            Ok(()) => install(&thread, file, cloexec),
            Err(_) => Err(Errno::ERESTARTSYS),
        }
    })
}

fn memfd_create(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const MFD_CLOEXEC: u32 = 1;
    const MFD_ALLOW_SEALING: u32 = 2;
    const MFD_HUGETLB: u32 = 4;
    const MFD_NOEXEC_SEAL: u32 = 8;
    const MFD_EXEC: u32 = 0x10;
    let flags = uint(args, 1);
    let huge_size = if flags & MFD_HUGETLB != 0 { 0x3f << 26 } else { 0 };
    let known = MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_NOEXEC_SEAL | MFD_EXEC | huge_size;
    if flags & !known != 0 || flags & (MFD_EXEC | MFD_NOEXEC_SEAL) == MFD_EXEC | MFD_NOEXEC_SEAL {
        return Err(Errno::EINVAL);
    }
    // The name is at most 249 bytes, so that `memfd:` and it make a file name.
    thread.files().check_room(thread.limit(Resource::NOFILE).current)?;
    let name = read_cstr(thread, args.args[0], 250).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => Errno::EINVAL,
        other => other,
    })?;
    if flags & MFD_HUGETLB != 0 {
        crate::gap!(thread.kernel(), "memfd_create MFD_HUGETLB");
        return Err(Errno::ENOMEM);
    }
    let context = thread.context();
    let file = thread.kernel().vfs().memfd(&context.caller(), &name)?;
    const F_SEAL_SEAL: u32 = 1;
    const F_SEAL_EXEC: u32 = 0x20;
    if flags & MFD_NOEXEC_SEAL != 0 {
        thread.kernel().vfs().chmod(&context.caller(), file.path(), 0o666)?;
        let _ = file.ops().add_seals(F_SEAL_EXEC);
    } else if flags & MFD_ALLOW_SEALING == 0 {
        let _ = file.ops().add_seals(F_SEAL_SEAL);
    }
    install(thread, file, flags & MFD_CLOEXEC != 0)
}
