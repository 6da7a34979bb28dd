//! User and group ids (credentials(7)).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::{Cap, CapSet, Credentials};

use super::{Row, SysResult, call};
use crate::task::Thread;
use crate::user::{UserPtr, UserSlice};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_getuid, getuid),
    call!(libc::SYS_geteuid, geteuid),
    call!(libc::SYS_getgid, getgid),
    call!(libc::SYS_getegid, getegid),
    call!(libc::SYS_getresuid, getresuid, Ptr, Ptr, Ptr),
    call!(libc::SYS_getresgid, getresgid, Ptr, Ptr, Ptr),
    call!(libc::SYS_getgroups, getgroups, Int, Ptr),
    call!(libc::SYS_setuid, setuid, Int),
    call!(libc::SYS_setgid, setgid, Int),
    call!(libc::SYS_setreuid, setreuid, Int, Int),
    call!(libc::SYS_setregid, setregid, Int, Int),
    call!(libc::SYS_setresuid, setresuid, Int, Int, Int),
    call!(libc::SYS_setresgid, setresgid, Int, Int, Int),
    call!(libc::SYS_setfsuid, setfsuid, Int),
    call!(libc::SYS_setfsgid, setfsgid, Int),
    call!(libc::SYS_setgroups, setgroups, Int, Ptr),
];

const SECBIT_KEEP_CAPS: u32 = 1 << 4;
const SECBIT_NO_SETUID_FIXUP: u32 = 1 << 2;
/// The most supplementary groups (`NGROUPS_MAX`).
const NGROUPS_MAX: usize = 65536;
/// "Leave it", for the calls with several ids.
const KEEP: u32 = u32::MAX;

fn getuid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.cred().uid))
}

fn geteuid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.cred().euid))
}

fn getgid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.cred().gid))
}

fn getegid(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(i64::from(thread.cred().egid))
}

fn write_three(thread: &Arc<Thread>, args: &SyscallArgs, values: [u32; 3]) -> SysResult {
    for (addr, value) in args.args.into_iter().zip(values) {
        UserPtr::new(addr).copy_out(thread, &value)?;
    }
    Ok(0)
}

fn getresuid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let cred = thread.cred();
    write_three(thread, args, [cred.uid, cred.euid, cred.suid])
}

fn getresgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let cred = thread.cred();
    write_three(thread, args, [cred.gid, cred.egid, cred.sgid])
}

fn getgroups(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let cred = thread.cred();
    let size = usize::try_from(args.args[0] as i32).map_err(|_| Errno::EINVAL)?;
    let count = cred.groups.len();
    if size != 0 {
        if size < count {
            return Err(Errno::EINVAL);
        }
        UserSlice::new(args.args[1], count).copy_out(thread, &cred.groups)?;
    }
    Ok(count as i64)
}

/// What a change of user ids does to the capabilities (capabilities(7), "Effect of user ID changes").
fn fix_capabilities(old: &Credentials, new: &mut Credentials) {
    if old.securebits & SECBIT_NO_SETUID_FIXUP != 0 {
        return;
    }
    let had_root = old.uid == 0 || old.euid == 0 || old.suid == 0;
    let has_root = new.uid == 0 || new.euid == 0 || new.suid == 0;
    if had_root && !has_root {
        if old.securebits & SECBIT_KEEP_CAPS == 0 {
            new.permitted = CapSet::EMPTY;
            new.effective = CapSet::EMPTY;
        }
        new.ambient = CapSet::EMPTY;
    }
    if old.euid == 0 && new.euid != 0 {
        new.effective = CapSet::EMPTY;
    }
    if old.euid != 0 && new.euid == 0 {
        new.effective = new.permitted;
    }
}

/// Capabilities that go with the file-system user id.
fn file_capabilities() -> CapSet {
    [Cap::CHOWN, Cap::DAC_OVERRIDE, Cap::DAC_READ_SEARCH, Cap::FOWNER, Cap::FSETID, Cap::LINUX_IMMUTABLE, Cap::MKNOD, Cap::MAC_OVERRIDE]
        .into_iter()
        .fold(CapSet::EMPTY, CapSet::with)
}

fn change(thread: &Arc<Thread>, edit: impl FnOnce(&mut Credentials) -> Result<(), Errno>) -> SysResult {
    let old = thread.cred();
    let mut new = (*old).clone();
    edit(&mut new)?;
    fix_capabilities(&old, &mut new);
    let changed = new.euid != old.euid || new.egid != old.egid || new.fsuid != old.fsuid || new.fsgid != old.fsgid;
    if changed {
        thread.process().dumpable.store(false, std::sync::atomic::Ordering::Relaxed);
        thread.parent_death_signal.store(0, std::sync::atomic::Ordering::Relaxed);
    }
    thread.set_cred(new);
    Ok(0)
}

fn setuid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let id = args.args[0] as u32;
    if id == KEEP {
        return Err(Errno::EINVAL);
    }
    change(thread, |cred| {
        if cred.has(Cap::SETUID) {
            (cred.uid, cred.suid) = (id, id);
        } else if id != cred.uid && id != cred.suid {
            return Err(Errno::EPERM);
        }
        (cred.euid, cred.fsuid) = (id, id);
        Ok(())
    })
}

fn setgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let id = args.args[0] as u32;
    if id == KEEP {
        return Err(Errno::EINVAL);
    }
    change(thread, |cred| {
        if cred.has(Cap::SETGID) {
            (cred.gid, cred.sgid) = (id, id);
        } else if id != cred.gid && id != cred.sgid {
            return Err(Errno::EPERM);
        }
        (cred.egid, cred.fsgid) = (id, id);
        Ok(())
    })
}

fn setreuid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (real, effective) = (args.args[0] as u32, args.args[1] as u32);
    change(thread, |cred| {
        let (uid, euid, suid) = (cred.uid, cred.euid, cred.suid);
        let able = cred.has(Cap::SETUID);
        if real != KEEP && !able && real != uid && real != euid {
            return Err(Errno::EPERM);
        }
        if effective != KEEP && !able && effective != uid && effective != euid && effective != suid {
            return Err(Errno::EPERM);
        }
        if real != KEEP {
            cred.uid = real;
        }
        if effective != KEEP {
            cred.euid = effective;
        }
        if real != KEEP || (effective != KEEP && effective != uid) {
            cred.suid = cred.euid;
        }
        cred.fsuid = cred.euid;
        Ok(())
    })
}

fn setregid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (real, effective) = (args.args[0] as u32, args.args[1] as u32);
    change(thread, |cred| {
        let (gid, egid, sgid) = (cred.gid, cred.egid, cred.sgid);
        let able = cred.has(Cap::SETGID);
        if real != KEEP && !able && real != gid && real != egid {
            return Err(Errno::EPERM);
        }
        if effective != KEEP && !able && effective != gid && effective != egid && effective != sgid {
            return Err(Errno::EPERM);
        }
        if real != KEEP {
            cred.gid = real;
        }
        if effective != KEEP {
            cred.egid = effective;
        }
        if real != KEEP || (effective != KEEP && effective != gid) {
            cred.sgid = cred.egid;
        }
        cred.fsgid = cred.egid;
        Ok(())
    })
}

fn setresuid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let wanted = [args.args[0] as u32, args.args[1] as u32, args.args[2] as u32];
    change(thread, |cred| {
        let present = [cred.uid, cred.euid, cred.suid];
        if !cred.has(Cap::SETUID) && wanted.iter().any(|id| *id != KEEP && !present.contains(id)) {
            return Err(Errno::EPERM);
        }
        for (place, id) in [&mut cred.uid, &mut cred.euid, &mut cred.suid].into_iter().zip(wanted) {
            if id != KEEP {
                *place = id;
            }
        }
        cred.fsuid = cred.euid;
        Ok(())
    })
}

fn setresgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let wanted = [args.args[0] as u32, args.args[1] as u32, args.args[2] as u32];
    change(thread, |cred| {
        let present = [cred.gid, cred.egid, cred.sgid];
        if !cred.has(Cap::SETGID) && wanted.iter().any(|id| *id != KEEP && !present.contains(id)) {
            return Err(Errno::EPERM);
        }
        for (place, id) in [&mut cred.gid, &mut cred.egid, &mut cred.sgid].into_iter().zip(wanted) {
            if id != KEEP {
                *place = id;
            }
        }
        cred.fsgid = cred.egid;
        Ok(())
    })
}

/// Answers the old id, changed or not.
fn setfsuid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let id = args.args[0] as u32;
    let old = thread.cred();
    if id != KEEP && (old.has(Cap::SETUID) || [old.uid, old.euid, old.suid, old.fsuid].contains(&id)) {
        let mut new = (*old).clone();
        new.fsuid = id;
        if old.fsuid == 0 && id != 0 {
            new.effective = new.effective.difference(file_capabilities());
        }
        if old.fsuid != 0 && id == 0 {
            new.effective = new.effective.union(new.permitted.intersection(file_capabilities()));
        }
        thread.set_cred(new);
    }
    Ok(i64::from(old.fsuid))
}

fn setfsgid(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let id = args.args[0] as u32;
    let old = thread.cred();
    if id != KEEP && (old.has(Cap::SETGID) || [old.gid, old.egid, old.sgid, old.fsgid].contains(&id)) {
        thread.set_cred(Credentials { fsgid: id, ..(*old).clone() });
    }
    Ok(i64::from(old.fsgid))
}

fn setgroups(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    thread.cred().require(Cap::SETGID)?;
    let count = usize::try_from(args.args[0] as i32).map_err(|_| Errno::EINVAL)?;
    let mut groups: Vec<u32> = UserSlice::new(args.args[1], count).copy_in(thread, NGROUPS_MAX)?;
    if groups.contains(&KEEP) {
        return Err(Errno::EINVAL);
    }
    groups.sort_unstable();
    change(thread, |cred| {
        cred.groups = groups.into();
        Ok(())
    })
}
