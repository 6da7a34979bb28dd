//! Interval timers and POSIX timers.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::time::{Itimerspec, Itimerval, NANOS, Sigevent, Timespec, Timeval};
use sentry_platform::SyscallArgs;

use super::{Row, SysResult, call};
use crate::signal::Signal;
use crate::task::{Resource, Thread};
use crate::time::{Clock, Interval, IntervalKind, Notify};
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_alarm, alarm, Int),
    call!(libc::SYS_getitimer, getitimer, Int, Ptr),
    call!(libc::SYS_setitimer, setitimer, Int, Ptr, Ptr),
    call!(libc::SYS_timer_create, timer_create, Int, Ptr, Ptr),
    call!(libc::SYS_timer_settime, timer_settime, Int, Int, Ptr, Ptr),
    call!(libc::SYS_timer_gettime, timer_gettime, Int, Ptr),
    call!(libc::SYS_timer_getoverrun, timer_getoverrun, Int),
    call!(libc::SYS_timer_delete, timer_delete, Int),
];

fn alarm(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let value = u64::from(args.args[0] as u32) * NANOS;
    let timers = &thread.process().timers.intervals;
    let old = timers.set(
        thread.kernel(),
        thread.process(),
        IntervalKind::Real,
        Interval { value, period: 0 },
    );
    // Rounded to the nearest second, but never 0 while something is left.
    let seconds = (old.value + NANOS / 2) / NANOS;
    Ok(if old.value > 0 { seconds.max(1) as i64 } else { 0 })
}

fn to_itimerval(interval: Interval) -> Itimerval {
    Itimerval {
        interval: Timeval::from_nanos(interval.period),
        value: Timeval::from_nanos_up(interval.value),
    }
}

fn getitimer(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let kind = IntervalKind::from_number(args.args[0])?;
    let now = thread.process().timers.intervals.get(thread.process(), kind);
    UserPtr::new(args.args[1]).copy_out(thread, &to_itimerval(now))?;
    Ok(0)
}

fn setitimer(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [kind, new, old, ..] = args.args;
    let new = if new == 0 {
        Itimerval::default()
    } else {
        UserPtr::<Itimerval>::new(new).copy_in(thread)?
    };
    let new = Interval {
        value: new.value.to_nanos()?,
        period: new.interval.to_nanos()?,
    };
    let kind = IntervalKind::from_number(kind)?;
    let before = thread
        .process()
        .timers
        .intervals
        .set(thread.kernel(), thread.process(), kind, new);
    UserPtr::new(old).copy_out_if(thread, &to_itimerval(before))?;
    Ok(0)
}

fn timer_create(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [clock, event, id, ..] = args.args;
    let clock = Clock::from_id(thread, clock as i32)?;
    clock.check_timer(thread)?;
    let (notify, value) = if event == 0 {
        (Notify::Process(Signal::ALRM), None)
    } else {
        let event = UserPtr::<Sigevent>::new(event).copy_in(thread)?;
        (notification(thread, &event)?, Some(event.value))
    };
    let limit = thread.limit(Resource::SIGPENDING).current;
    let timers = &thread.process().timers.posix;
    let made = timers.create(clock, notify, value, limit)?;
    if let Err(errno) = UserPtr::new(id).copy_out(thread, &made) {
        timers.delete(thread.kernel(), made)?;
        return Err(errno);
    }
    Ok(0)
}

fn notification(thread: &Arc<Thread>, event: &Sigevent) -> Result<Notify, Errno> {
    const SIGEV_SIGNAL: i32 = 0;
    const SIGEV_NONE: i32 = 1;
    const SIGEV_THREAD: i32 = 2;
    const SIGEV_THREAD_ID: i32 = 4;
    let signal = || Signal::from_number(event.signo.into());
    match event.notify {
        SIGEV_NONE => Ok(Notify::None),
        SIGEV_SIGNAL | SIGEV_THREAD => Ok(Notify::Process(signal()?)),
        SIGEV_THREAD_ID => {
            let target = thread
                .kernel()
                .thread(event.tid)
                .filter(|t| Arc::ptr_eq(t.process(), thread.process()));
            let target = target.ok_or(Errno::EINVAL)?;
            Ok(Notify::Thread(signal()?, Arc::downgrade(&target)))
        }
        _ => Err(Errno::EINVAL),
    }
}

fn to_itimerspec(interval: Interval) -> Itimerspec {
    Itimerspec {
        interval: Timespec::from_nanos(interval.period),
        value: Timespec::from_nanos(interval.value),
    }
}

fn timer_settime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [id, flags, new, old, ..] = args.args;
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let new = UserPtr::<Itimerspec>::new(new).copy_in(thread)?;
    let new = Interval {
        value: new.value.to_nanos()?,
        period: new.interval.to_nanos()?,
    };
    let absolute = flags as i32 & libc::TIMER_ABSTIME != 0;
    let timers = &thread.process().timers.posix;
    let before = timers.set(thread.kernel(), thread.process(), id as i32, new, absolute)?;
    UserPtr::new(old).copy_out_if(thread, &to_itimerspec(before))?;
    Ok(0)
}

fn timer_gettime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let now = thread.process().timers.posix.get(args.args[0] as i32)?;
    UserPtr::new(args.args[1]).copy_out(thread, &to_itimerspec(now))?;
    Ok(0)
}

fn timer_getoverrun(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let count = thread
        .process()
        .timers
        .posix
        .overrun(thread.process(), args.args[0] as i32)?;
    Ok(count.into())
}

fn timer_delete(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    thread
        .process()
        .timers
        .posix
        .delete(thread.kernel(), args.args[0] as i32)?;
    Ok(0)
}
