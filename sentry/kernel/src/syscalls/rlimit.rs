//! Resource limits and usage.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::system::Rlimit;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;

use super::{Row, SysResult, call};
use crate::fd::NR_OPEN;
use crate::task::{Limit, Process, Resource, Thread};
use crate::time::cpu;
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_getrlimit, getrlimit, Int, Ptr),
    call!(libc::SYS_setrlimit, setrlimit, Int, Ptr),
    call!(libc::SYS_prlimit64, prlimit64, Int, Int, Ptr, Ptr),
    call!(libc::SYS_getrusage, getrusage, Int, Ptr),
];

fn resource(number: u64) -> Result<Resource, Errno> {
    Resource::from_number(number as u32 as u64).ok_or(Errno::EINVAL)
}

fn getrlimit(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let limit = thread.limit(resource(args.args[0])?);
    UserPtr::new(args.args[1]).copy_out(
        thread,
        &Rlimit {
            current: limit.current,
            max: limit.max,
        },
    )?;
    Ok(0)
}

fn setrlimit(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let new = UserPtr::<Rlimit>::new(args.args[1]).copy_in(thread)?;
    change(
        thread,
        thread.process(),
        resource(args.args[0])?,
        Limit {
            current: new.current,
            max: new.max,
        },
    )?;
    Ok(0)
}

fn prlimit64(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, number, new, old, ..] = args.args;
    let resource = resource(number)?;
    let new = if new == 0 {
        None
    } else {
        Some(UserPtr::<Rlimit>::new(new).copy_in(thread)?)
    };
    let target = match pid as i32 {
        0 => thread.clone(),
        pid => thread.kernel().thread(pid).ok_or(Errno::ESRCH)?,
    };
    if !Arc::ptr_eq(target.process(), thread.process()) {
        let (cred, of) = (thread.cred(), target.cred());
        let same = [of.uid, of.euid, of.suid].iter().all(|&uid| uid == cred.uid)
            && [of.gid, of.egid, of.sgid].iter().all(|&gid| gid == cred.gid);
        if !same {
            cred.require(Cap::SYS_RESOURCE)?;
        }
    }
    let before = match new {
        Some(new) => change(
            thread,
            target.process(),
            resource,
            Limit {
                current: new.current,
                max: new.max,
            },
        )?,
        None => target.limit(resource),
    };
    UserPtr::new(old).copy_out_if(
        thread,
        &Rlimit {
            current: before.current,
            max: before.max,
        },
    )?;
    Ok(0)
}

/// Changes a limit; the old one.
fn change(thread: &Arc<Thread>, process: &Arc<Process>, resource: Resource, new: Limit) -> Result<Limit, Errno> {
    if new.current > new.max {
        return Err(Errno::EINVAL);
    }
    if resource == Resource::NOFILE && new.max > NR_OPEN {
        return Err(Errno::EPERM);
    }
    let old = {
        let mut limits = process.limits.write();
        let old = limits.get(resource);
        if new.max > old.max {
            thread.cred().require(Cap::SYS_RESOURCE)?;
        }
        limits.set(resource, new);
        old
    };
    let memory = resource == Resource::AS || resource == Resource::DATA;
    if memory && new.current != Limit::INFINITY {
        // The stub knows no limits: from now on the sentry has to see every call.
        process.mm().space().set_local_calls(false);
    }
    if resource == Resource::CPU && new.current != Limit::INFINITY {
        crate::time::limit::watch(thread.kernel(), process);
    }
    Ok(old)
}

fn getrusage(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const RUSAGE_SELF: i32 = 0;
    const RUSAGE_CHILDREN: i32 = -1;
    const RUSAGE_THREAD: i32 = 1;
    let process = thread.process();
    let usage = match args.args[0] as i32 {
        RUSAGE_SELF => cpu::usage(process),
        RUSAGE_CHILDREN => *process.child_usage.lock(),
        RUSAGE_THREAD => {
            let mut usage = cpu::usage(process);
            usage.user_nanos = cpu::thread_nanos(thread);
            usage.system_nanos = 0;
            usage
        }
        _ => return Err(Errno::EINVAL),
    };
    UserPtr::new(args.args[1]).copy_out(thread, &usage.to_rusage())?;
    Ok(0)
}
