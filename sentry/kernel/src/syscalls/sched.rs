//! Scheduling (sched(7)): what is asked for is kept and told; the host schedules.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::system::SchedAttr;
use sentry_abi::time::Timespec;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::{Cap, Credentials};
use zerocopy::IntoBytes;

use super::{Row, SysResult, call};
use crate::sched::{Policy, Scheduling};
use crate::task::{Resource, Thread};
use crate::user::{self, UserPtr};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_sched_yield, sched_yield),
    call!(libc::SYS_sched_setparam, sched_setparam, Int, Ptr),
    call!(libc::SYS_sched_getparam, sched_getparam, Int, Ptr),
    call!(libc::SYS_sched_setscheduler, sched_setscheduler, Int, Int, Ptr),
    call!(libc::SYS_sched_getscheduler, sched_getscheduler, Int),
    call!(libc::SYS_sched_get_priority_max, sched_get_priority_max, Int),
    call!(libc::SYS_sched_get_priority_min, sched_get_priority_min, Int),
    call!(libc::SYS_sched_rr_get_interval, sched_rr_get_interval, Int, Ptr),
    call!(libc::SYS_sched_setaffinity, sched_setaffinity, Int, Int, Ptr),
    call!(libc::SYS_sched_getaffinity, sched_getaffinity, Int, Int, Ptr),
    call!(libc::SYS_sched_setattr, sched_setattr, Int, Ptr, Int),
    call!(libc::SYS_sched_getattr, sched_getattr, Int, Ptr, Int, Int),
    call!(libc::SYS_getpriority, getpriority, Int, Int),
    call!(libc::SYS_setpriority, setpriority, Int, Int, Int),
    call!(libc::SYS_ioprio_get, ioprio_get, Int, Int),
    call!(libc::SYS_ioprio_set, ioprio_set, Int, Int, Hex),
    call!(libc::SYS_getcpu, getcpu, Ptr, Ptr, Ptr),
];

/// The bit that sched_setscheduler(2) takes with the policy.
const RESET_ON_FORK: i32 = 0x4000_0000;

fn sched_yield(_thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    Ok(0)
}

/// The thread that a call is about: 0 is the caller.
fn target(thread: &Arc<Thread>, pid: u64) -> Result<Arc<Thread>, Errno> {
    match pid as i32 {
        0 => Ok(thread.clone()),
        1.. => thread.kernel().thread(pid as i32).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// As [`target`], for the calls that do not tell a negative id from one that nobody has.
fn affinity_target(thread: &Arc<Thread>, pid: u64) -> Result<Arc<Thread>, Errno> {
    target(thread, pid).map_err(|_| Errno::ESRCH)
}

/// True if the caller acts for the same user as another.
fn same_owner(cred: &Credentials, of: &Credentials) -> bool {
    cred.euid == of.uid || cred.euid == of.euid
}

fn check_change(thread: &Arc<Thread>, target: &Arc<Thread>) -> Result<(), Errno> {
    let cred = thread.cred();
    if same_owner(&cred, &target.cred()) || cred.has(Cap::SYS_NICE) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// A policy and its parameters, as they are to become.
struct Wanted {
    policy: Policy,
    priority: u32,
    /// None leaves it.
    nice: Option<i32>,
    reset_on_fork: bool,
}

/// True if a nice value is within the target's `RLIMIT_NICE`.
fn nice_allowed(target: &Thread, nice: i32) -> bool {
    let limit = target.limit(Resource::NICE).current.min(40);
    i64::from(20 - nice) <= i64::try_from(limit).unwrap_or(40)
}

/// True if the change needs `CAP_SYS_NICE` (sched(7), "Privileges and resource limits").
fn needs_privilege(cred: &Credentials, target: &Thread, now: &Scheduling, wanted: &Wanted) -> bool {
    let nice = wanted.nice.unwrap_or(now.nice);
    if wanted.policy.is_fair() && nice < now.nice && !nice_allowed(target, nice) {
        return true;
    }
    if wanted.policy.is_realtime() {
        let limit = target.limit(Resource::RTPRIO).current;
        if wanted.policy != now.policy && limit == 0 {
            return true;
        }
        if wanted.priority > now.priority && u64::from(wanted.priority) > limit {
            return true;
        }
    }
    wanted.policy == Policy::Deadline
        || (now.policy == Policy::Idle && wanted.policy != Policy::Idle && !nice_allowed(target, now.nice))
        || !same_owner(cred, &target.cred())
        || (now.reset_on_fork && !wanted.reset_on_fork)
}

/// Sets policy and parameters: `EINVAL` if they do not go together, `EPERM` if they are not the caller's to set.
fn set_scheduling(thread: &Arc<Thread>, target: &Arc<Thread>, wanted: Wanted) -> Result<(), Errno> {
    if wanted.priority > 99 || (wanted.priority != 0) != wanted.policy.is_realtime() {
        return Err(Errno::EINVAL);
    }
    let cred = thread.cred();
    let mut scheduling = target.scheduling.lock();
    if needs_privilege(&cred, target, &scheduling, &wanted) {
        cred.require(Cap::SYS_NICE)?;
    }
    if wanted.policy == Policy::Deadline {
        // As when there is no bandwidth left: the host gives none.
        crate::gap!(thread.kernel(), "sched_setattr SCHED_DEADLINE");
        return Err(Errno::EBUSY);
    }
    scheduling.policy = wanted.policy;
    scheduling.priority = wanted.priority;
    scheduling.reset_on_fork = wanted.reset_on_fork;
    if wanted.policy.is_fair()
        && let Some(nice) = wanted.nice
    {
        scheduling.nice = nice;
    }
    Ok(())
}

fn sched_setscheduler(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, policy, param, ..] = args.args;
    let policy = policy as i32;
    if policy < 0 || param == 0 || (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = UserPtr::<i32>::new(param).copy_in(thread)?;
    let target = target(thread, pid)?;
    let wanted = Wanted {
        policy: Policy::from_number(policy & !RESET_ON_FORK)?,
        priority: u32::try_from(priority).map_err(|_| Errno::EINVAL)?,
        nice: None,
        reset_on_fork: policy & RESET_ON_FORK != 0,
    };
    if wanted.policy == Policy::Deadline {
        // It has parameters that this call cannot give.
        return Err(Errno::EINVAL);
    }
    set_scheduling(thread, &target, wanted)?;
    Ok(0)
}

fn sched_getscheduler(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let target = target(thread, args.args[0])?;
    let scheduling = target.scheduling.lock();
    let flag = if scheduling.reset_on_fork { RESET_ON_FORK } else { 0 };
    Ok((scheduling.policy.number() | flag).into())
}

fn sched_setparam(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    if args.args[1] == 0 || (args.args[0] as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = UserPtr::<i32>::new(args.args[1]).copy_in(thread)?;
    let target = target(thread, args.args[0])?;
    let now = target.scheduling.lock().clone();
    let wanted = Wanted {
        policy: now.policy,
        priority: u32::try_from(priority).map_err(|_| Errno::EINVAL)?,
        nice: None,
        reset_on_fork: now.reset_on_fork,
    };
    set_scheduling(thread, &target, wanted)?;
    Ok(0)
}

fn sched_getparam(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    if args.args[1] == 0 {
        return Err(Errno::EINVAL);
    }
    let priority = target(thread, args.args[0])?.scheduling.lock().priority;
    UserPtr::new(args.args[1]).copy_out(thread, &priority)?;
    Ok(0)
}

fn sched_get_priority_max(_thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    match args.args[0] as i32 {
        1 | 2 => Ok(99),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_get_priority_min(_thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    match args.args[0] as i32 {
        1 | 2 => Ok(1),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_rr_get_interval(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let policy = target(thread, args.args[0])?.scheduling.lock().policy;
    UserPtr::new(args.args[1]).copy_out(thread, &Timespec::from_nanos(policy.interval()))?;
    Ok(0)
}

/// The most bytes of a processor mask that are looked at.
const MAX_MASK: usize = 1024;

fn sched_setaffinity(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, len, mask, ..] = args.args;
    let mut bytes = vec![0u8; (len as u32 as usize).min(MAX_MASK)];
    user::read_bytes(thread, mask, &mut bytes)?;
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|chunk| chunk.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
        .collect();
    let target = affinity_target(thread, pid)?;
    check_change(thread, &target)?;
    target.scheduling.lock().set_mask(&words)?;
    target.apply_affinity();
    Ok(0)
}

fn sched_getaffinity(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, len, out, ..] = args.args;
    if (len as u32 as usize) < size_of_val(&*crate::system::processor_mask()) || len % 8 != 0 {
        return Err(Errno::EINVAL);
    }
    let mask = affinity_target(thread, pid)?.scheduling.lock().mask();
    let bytes = mask.as_bytes();
    user::write_bytes(thread, out, bytes)?;
    Ok(bytes.len() as i64)
}

/// `SCHED_FLAG_RESET_ON_FORK`.
const FLAG_RESET_ON_FORK: u64 = 1;
/// `SCHED_FLAG_KEEP_POLICY`.
const FLAG_KEEP_POLICY: u64 = 8;
/// `SCHED_FLAG_KEEP_PARAMS`.
const FLAG_KEEP_PARAMS: u64 = 0x10;
/// `SCHED_FLAG_UTIL_CLAMP`.
const FLAG_UTIL_CLAMP: u64 = 0x60;
/// All `SCHED_FLAG_*`.
const FLAGS: u64 = 0x7f;
/// The size of `struct sched_attr` in its first version.
const ATTR_SIZE_VER0: u32 = 48;

/// Reads a `struct sched_attr` of any length that ends in zeros. The length that is known is told if it does not.
fn read_attr(thread: &Thread, addr: u64) -> Result<SchedAttr, Errno> {
    let known = size_of::<SchedAttr>();
    let size = match UserPtr::<u32>::new(addr).copy_in(thread)? {
        0 => ATTR_SIZE_VER0,
        size => size,
    };
    let mut attr = SchedAttr::default();
    let too_long = || -> Result<bool, Errno> {
        let mut rest = vec![0; (size as usize).saturating_sub(known)];
        user::read_bytes(thread, addr.saturating_add(known as u64), &mut rest)?;
        Ok(rest.iter().any(|&byte| byte != 0))
    };
    if !(ATTR_SIZE_VER0..=4096).contains(&size) || too_long()? {
        UserPtr::new(addr).copy_out(thread, &(known as u32))?;
        return Err(Errno::E2BIG);
    }
    let head = attr.as_mut_bytes().get_mut(..known.min(size as usize)).ok_or(Errno::EINVAL)?;
    user::read_bytes(thread, addr, head)?;
    Ok(attr)
}

/// True if the times of `SCHED_DEADLINE` go together.
fn deadline_is_valid(attr: &SchedAttr) -> bool {
    const SMALLEST: u64 = 1 << 10;
    let period = if attr.period == 0 { attr.deadline } else { attr.period };
    attr.deadline != 0
        && attr.runtime >= SMALLEST
        && (attr.deadline | period) >> 63 == 0
        && attr.runtime <= attr.deadline
        && attr.deadline <= period
}

fn sched_setattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, addr, flags, ..] = args.args;
    if addr == 0 || (pid as i32) < 0 || flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let attr = read_attr(thread, addr)?;
    if attr.policy > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    let target = target(thread, pid)?;
    let now = target.scheduling.lock().clone();
    let has = |flag| attr.flags & flag != 0;
    let policy = if has(FLAG_KEEP_POLICY) {
        now.policy
    } else {
        Policy::from_number(attr.policy as i32)?
    };
    if attr.flags & !FLAGS != 0 || (policy == Policy::Deadline && !deadline_is_valid(&attr)) {
        return Err(Errno::EINVAL);
    }
    if has(FLAG_UTIL_CLAMP) {
        crate::gap!(thread.kernel(), "sched_setattr with utilization clamps");
        return Err(Errno::EOPNOTSUPP);
    }
    let (priority, nice) = if has(FLAG_KEEP_PARAMS) {
        (now.priority, now.nice)
    } else {
        (attr.priority, attr.nice.clamp(-20, 19))
    };
    let wanted = Wanted {
        policy,
        priority,
        nice: Some(nice),
        reset_on_fork: has(FLAG_RESET_ON_FORK),
    };
    set_scheduling(thread, &target, wanted)?;
    Ok(0)
}

fn sched_getattr(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, addr, size, flags, ..] = args.args;
    let size = size as u32;
    if addr == 0 || (pid as i32) < 0 || !(ATTR_SIZE_VER0..=4096).contains(&size) || flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let target = target(thread, pid)?;
    let scheduling = target.scheduling.lock().clone();
    let known = size.min(size_of::<SchedAttr>() as u32);
    let attr = SchedAttr {
        size: known,
        policy: scheduling.policy.number() as u32,
        flags: if scheduling.reset_on_fork {
            FLAG_RESET_ON_FORK
        } else {
            0
        },
        nice: if scheduling.policy.is_realtime() { 0 } else { scheduling.nice },
        priority: scheduling.priority,
        util_max: 1024,
        ..SchedAttr::default()
    };
    user::write_bytes(
        thread,
        addr,
        attr.as_bytes().get(..known as usize).ok_or(Errno::EINVAL)?,
    )?;
    Ok(0)
}

/// The threads that getpriority(2) and its kin mean: one, or all of a group or user. `ESRCH` if there are none.
fn threads(thread: &Arc<Thread>, which: u64, who: u64) -> Result<Vec<Arc<Thread>>, Errno> {
    let who = who as i32;
    let kernel = thread.kernel();
    let found: Vec<Arc<Thread>> = match which as i32 {
        0 if who == 0 => vec![thread.clone()],
        0 => kernel.thread(who).into_iter().collect(),
        1 => {
            let tasks = kernel.tasks.read();
            let group = if who == 0 {
                tasks.node(thread.pid()).map_or(0, |node| node.pgid)
            } else {
                who
            };
            let processes: Vec<_> = tasks.group(group).map(|node| node.process.clone()).collect();
            drop(tasks);
            processes.iter().flat_map(|process| process.threads()).collect()
        }
        2 => {
            let uid = if who == 0 { thread.cred().uid } else { who as u32 };
            let all: Vec<_> = kernel.tasks.read().threads().cloned().collect();
            all.into_iter().filter(|thread| thread.cred().uid == uid).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if found.is_empty() { Err(Errno::ESRCH) } else { Ok(found) }
}

fn getpriority(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let found = threads(thread, args.args[0], args.args[1])?;
    let lowest = found.iter().map(|thread| thread.scheduling.lock().nice).min();
    Ok((20 - lowest.ok_or(Errno::ESRCH)?).into())
}

fn setpriority(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let found = threads(thread, args.args[0], args.args[1])?;
    let nice = (args.args[2] as i32).clamp(-20, 19);
    // An error stays, whatever else succeeds.
    let mut result = Ok(0);
    for target in found {
        if let Err(errno) = set_nice(thread, &target, nice) {
            result = Err(errno);
        }
    }
    result
}

/// Sets a nice value: `EPERM` if it is not the caller's to set, `EACCES` if it may not be so low.
fn set_nice(thread: &Arc<Thread>, target: &Arc<Thread>, nice: i32) -> Result<(), Errno> {
    check_change(thread, target)?;
    let mut scheduling = target.scheduling.lock();
    if nice < scheduling.nice && !nice_allowed(target, nice) && !thread.cred().has(Cap::SYS_NICE) {
        return Err(Errno::EACCES);
    }
    scheduling.nice = nice;
    Ok(())
}

/// `IOPRIO_WHO_PROCESS`.
const WHO_PROCESS: i32 = 1;

fn ioprio_get(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let threads = io_targets(thread, args.args[0], args.args[1])?;
    // The highest priority is the lowest number, but none (0) is lower than any.
    let value = |thread: &Arc<Thread>| thread.scheduling.lock().io_priority;
    Ok(threads
        .iter()
        .map(value)
        .filter(|&value| value != 0)
        .min()
        .unwrap_or(0)
        .into())
}

fn ioprio_set(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let value = args.args[2] as i32;
    let (class, data) = (value >> 13, value & 0x1fff);
    match class {
        0 if data == 0 => {}
        1 => {
            let cred = thread.cred();
            if !cred.has(Cap::SYS_ADMIN) {
                cred.require(Cap::SYS_NICE)?;
            }
        }
        2 if data & 7 == data => {}
        3 => {}
        _ => return Err(Errno::EINVAL),
    }
    for target in io_targets(thread, args.args[0], args.args[1])? {
        check_change(thread, &target)?;
        target.scheduling.lock().io_priority = value;
    }
    Ok(0)
}

fn io_targets(thread: &Arc<Thread>, which: u64, who: u64) -> Result<Vec<Arc<Thread>>, Errno> {
    let which = which as i32;
    if which == WHO_PROCESS {
        return Ok(vec![target(thread, who)?]);
    }
    if !(1..=3).contains(&which) {
        return Err(Errno::EINVAL);
    }
    threads(thread, (which - 1) as u64, who)
}

fn getcpu(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    // The worker serves from where it is; a guest that chose its processors is on one of those.
    let here = sentry_host::system::current_processor();
    let cpu = thread.scheduling.lock().nearest(here);
    UserPtr::new(args.args[0]).copy_out_if(thread, &cpu)?;
    UserPtr::new(args.args[1]).copy_out_if(thread, &0u32)?;
    Ok(0)
}
