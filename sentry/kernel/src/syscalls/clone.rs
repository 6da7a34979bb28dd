//! clone(2), fork(2) and vfork(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;

use super::{Row, Sys, SysResult, call};
use crate::namespace::{KINDS, Namespace};
use crate::pidfd::PidFd;
use crate::signal::Signal;
use crate::task::Thread;
use crate::task::clone::{self as task, CloneArgs, CloneFlags};
use crate::task::pid::PID_MAX;
use crate::user;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_clone, clone, Hex, Ptr, Ptr, Ptr, Hex),
    call!(libc::SYS_fork, fork),
    call!(libc::SYS_vfork, vfork),
    call!(libc::SYS_clone3, clone3, Ptr, Int),
    call!(libc::SYS_unshare, unshare, Hex),
    call!(libc::SYS_setns, setns, Fd, Hex),
];

fn start(thread: &Arc<Thread>, args: CloneArgs) -> Sys {
    Sys::wait(task::clone(thread.clone(), args))
}

fn clone(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [flags, stack, parent_tid, child_tid, tls, _] = args.args;
    let exit_signal = (flags & 0xff) as i32;
    // Only clone3(2) has flags beyond 32 bits.
    let flags = CloneFlags::from_bits_truncate(flags & 0xffff_ff00);
    // Both answers go to one place, so that only one can be asked for.
    if flags.contains(CloneFlags::PIDFD | CloneFlags::PARENT_SETTID) {
        return Errno::EINVAL.into();
    }
    let stack = (stack != 0).then_some(stack);
    start(
        thread,
        CloneArgs {
            flags,
            exit_signal,
            stack,
            tls,
            parent_tid,
            child_tid,
            pidfd: parent_tid,
            tid: None,
        },
    )
}

fn fork(thread: &Arc<Thread>, _args: &SyscallArgs) -> Sys {
    start(
        thread,
        CloneArgs {
            exit_signal: libc::SIGCHLD,
            ..CloneArgs::default()
        },
    )
}

fn vfork(thread: &Arc<Thread>, _args: &SyscallArgs) -> Sys {
    let flags = CloneFlags::VM | CloneFlags::VFORK;
    start(
        thread,
        CloneArgs {
            flags,
            exit_signal: libc::SIGCHLD,
            ..CloneArgs::default()
        },
    )
}

fn clone3(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    match read_clone3(thread, args.args[0], args.args[1]) {
        Ok(parsed) => start(thread, parsed),
        Err(errno) => errno.into(),
    }
}

fn read_clone3(thread: &Arc<Thread>, addr: u64, size: u64) -> Result<CloneArgs, Errno> {
    /// The first and the present size of `struct clone_args`.
    const FIRST: usize = 64;
    const KNOWN: usize = 88;
    let size = usize::try_from(size).map_err(|_| Errno::E2BIG)?;
    if size > sentry_abi::PAGE_SIZE as usize {
        return Err(Errno::E2BIG);
    }
    if size < FIRST {
        return Err(Errno::EINVAL);
    }
    let mut raw = vec![0u8; size.max(KNOWN)];
    user::read_bytes(thread, addr, &mut raw[..size])?;
    if raw[KNOWN..].iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let word = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&raw[index * 8..index * 8 + 8]);
        u64::from_ne_bytes(bytes)
    };
    let flags = CloneFlags::from_bits(word(0)).ok_or(Errno::EINVAL)?;
    let (stack, stack_size) = (word(5), word(6));
    let (set_tid, set_tid_size) = (word(8), word(9));
    let exit_signal = i32::try_from(word(4)).map_err(|_| Errno::EINVAL)?;
    if exit_signal != 0 {
        Signal::from_number(exit_signal.into())?;
    }
    if flags.contains(CloneFlags::DETACHED)
        || (flags.intersects(CloneFlags::THREAD | CloneFlags::PARENT) && exit_signal != 0)
    {
        return Err(Errno::EINVAL);
    }
    if (stack == 0) != (stack_size == 0) || (set_tid == 0) != (set_tid_size == 0) {
        return Err(Errno::EINVAL);
    }
    // One id for each nested PID namespace: here is one.
    if set_tid_size > 1 {
        return Err(Errno::EINVAL);
    }
    let tid = if set_tid_size == 1 {
        let wanted = user::UserPtr::<i32>::new(set_tid).copy_in(thread)?;
        if !(1..PID_MAX).contains(&wanted) {
            return Err(Errno::EINVAL);
        }
        let cred = thread.cred();
        if !cred.has(Cap::CHECKPOINT_RESTORE) {
            cred.require(Cap::SYS_ADMIN)?;
        }
        Some(wanted)
    } else {
        None
    };
    if flags.contains(CloneFlags::INTO_CGROUP) {
        let fd = i32::try_from(word(10)).map_err(|_| Errno::EINVAL)?;
        thread.files().get(fd)?;
        // There are no cgroups here that a descriptor could mean.
        crate::gap!(thread.kernel(), "clone3 CLONE_INTO_CGROUP");
        return Err(Errno::EBADF);
    }
    let high = thread.kernel().platform().layout().high;
    let top = stack
        .checked_add(stack_size)
        .filter(|&top| top <= high)
        .ok_or(Errno::EINVAL)?;
    Ok(CloneArgs {
        flags,
        exit_signal,
        stack: (stack != 0).then_some(top),
        tls: word(7),
        parent_tid: word(3),
        child_tid: word(2),
        pidfd: word(1),
        tid,
    })
}

fn unshare(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    use CloneFlags as F;
    let flags = F::from_bits(args.args[0]).ok_or(Errno::EINVAL)?;
    let known = F::FS | F::FILES | F::SYSVSEM | F::THREAD | F::SIGHAND | F::VM | F::NAMESPACES;
    if !known.contains(flags) {
        return Err(Errno::EINVAL);
    }
    if flags.intersects(F::THREAD | F::SIGHAND | F::VM) && thread.process().thread_count() > 1 {
        return Err(Errno::EINVAL);
    }
    task::check_namespaces(thread, flags)?;
    // Mounts of one's own begin with a root and a working directory of one's own.
    if flags.contains(F::NEWNS) {
        thread.set_fs(thread.fs().with_own_mounts()?);
    } else if flags.contains(F::FS) {
        thread.set_fs(thread.fs().fork());
    }
    if flags.contains(F::FILES) {
        let _old = thread.set_files(thread.files().fork());
    }
    if flags.contains(F::NEWUTS) {
        thread.set_uts(thread.uts().copy());
    }
    Ok(0)
}

fn setns(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = super::args::file(thread, args.args[0] as i32)?;
    let wanted = args.args[1] as u32 as u64;
    if let Ok(process) = PidFd::process_of(&file) {
        let flags = CloneFlags::from_bits(wanted).ok_or(Errno::EINVAL)?;
        if flags.is_empty() || !CloneFlags::NAMESPACES.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let target = process.any_thread().ok_or(Errno::ESRCH)?;
        if !crate::procfs::may_inspect(thread, &process) {
            return Err(Errno::EPERM);
        }
        let all = namespaces_of(&target);
        let chosen = all.filter(|namespace| flags.contains(namespace.description().2));
        for namespace in chosen.collect::<Vec<_>>() {
            enter(thread, &namespace)?;
        }
        return Ok(0);
    }
    let namespace = Namespace::of(&file)?;
    if wanted != 0 && wanted != namespace.description().2.bits() {
        return Err(Errno::EINVAL);
    }
    enter(thread, &namespace)?;
    Ok(0)
}

/// The namespaces that a thread is in.
pub fn namespaces_of(thread: &Thread) -> impl Iterator<Item = Namespace> + use<> {
    let own = [Namespace::Mount(thread.fs().mounts()), Namespace::Uts(thread.uts())];
    own.into_iter().chain((0..KINDS.len()).map(Namespace::Only))
}

fn enter(thread: &Arc<Thread>, namespace: &Namespace) -> Result<(), Errno> {
    let cred = thread.cred();
    match namespace {
        Namespace::Uts(uts) => {
            cred.require(Cap::SYS_ADMIN)?;
            thread.set_uts(uts.clone());
        }
        Namespace::Mount(mounts) => {
            cred.require(Cap::SYS_ADMIN)?;
            cred.require(Cap::SYS_CHROOT)?;
            let fs = thread.fs();
            // One reference is the thread's, one is ours: others would be moved along.
            if Arc::strong_count(&fs) > 2 {
                return Err(Errno::EINVAL);
            }
            fs.enter_mounts(mounts.clone())?;
        }
        // One's own user namespace cannot be entered again.
        Namespace::Only(_) if namespace.description().2 == CloneFlags::NEWUSER => return Err(Errno::EINVAL),
        // There is one: everybody is in it.
        Namespace::Only(_) => cred.require(Cap::SYS_ADMIN)?,
    }
    Ok(())
}
