//! Clocks and sleeps.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::time::{Timespec, Timeval, Timex, Timezone, Tms};
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;
use zerocopy::IntoBytes;

use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::task::Thread;
use crate::task::block::{self, Wake};
use crate::time::{Clock, cpu};
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_clock_gettime, clock_gettime, Int, Ptr),
    call!(libc::SYS_clock_settime, clock_settime, Int, Ptr),
    call!(libc::SYS_clock_getres, clock_getres, Int, Ptr),
    call!(libc::SYS_clock_adjtime, clock_adjtime, Int, Ptr),
    call!(libc::SYS_adjtimex, adjtimex, Ptr),
    call!(libc::SYS_clock_nanosleep, clock_nanosleep, Int, Int, Time, Ptr),
    call!(libc::SYS_nanosleep, nanosleep, Time, Ptr),
    call!(libc::SYS_gettimeofday, gettimeofday, Ptr, Ptr),
    call!(libc::SYS_settimeofday, settimeofday, Ptr, Ptr),
    call!(libc::SYS_time, time, Ptr),
    call!(libc::SYS_times, times, Ptr),
];

fn clock_gettime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let now = Clock::from_id(thread, args.args[0] as i32)?.now()?;
    UserPtr::new(args.args[1]).copy_out(thread, &Timespec::from_nanos(now))?;
    Ok(0)
}

fn clock_getres(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let clock = Clock::from_id(thread, args.args[0] as i32)?;
    UserPtr::new(args.args[1]).copy_out_if(thread, &Timespec::from_nanos(clock.resolution()))?;
    Ok(0)
}

/// Nobody sets a clock: the host's is the host's.
fn clock_settime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let clock = Clock::from_id(thread, args.args[0] as i32)?;
    UserPtr::<Timespec>::new(args.args[1]).copy_in(thread)?.to_nanos()?;
    match clock {
        Clock::Host(libc::CLOCK_REALTIME) | Clock::Process(_) | Clock::Thread(_) => Err(Errno::EPERM),
        Clock::Host(_) => Err(Errno::EINVAL),
    }
}

fn settimeofday(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [time, zone, ..] = args.args;
    if time != 0 {
        UserPtr::<Timeval>::new(time).copy_in(thread)?.to_nanos()?;
    }
    if zone != 0 {
        UserPtr::<Timezone>::new(zone).copy_in(thread)?;
    }
    Err(Errno::EPERM)
}

fn clock_adjtime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    match Clock::from_id(thread, args.args[0] as i32)? {
        Clock::Host(libc::CLOCK_REALTIME) => adjust(thread, args.args[1]),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn adjtimex(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    adjust(thread, args.args[0])
}

/// What is to be known of the clock's discipline: nothing, so it is not synchronised. Changes are refused.
fn adjust(thread: &Arc<Thread>, addr: u64) -> SysResult {
    const STA_UNSYNC: i32 = 0x40;
    const TIME_ERROR: i64 = 5;
    const ADJ_OFFSET_SS_READ: u32 = 0xa001;
    let ptr = UserPtr::<Timex>::new(addr);
    let modes = ptr.copy_in(thread)?.modes;
    if modes != 0 && modes != ADJ_OFFSET_SS_READ {
        return Err(Errno::EPERM);
    }
    let answer = Timex {
        modes,
        maxerror: 16_000_000,
        esterror: 16_000_000,
        status: STA_UNSYNC,
        constant: 2,
        precision: 1,
        tolerance: 32_768_000,
        time: Timeval::from_nanos(Clock::Host(libc::CLOCK_REALTIME).now()?),
        tick: 10_000,
        ..Timex::default()
    };
    ptr.copy_out(thread, &answer)?;
    Ok(TIME_ERROR)
}

fn gettimeofday(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let now = Clock::Host(libc::CLOCK_REALTIME).now()?;
    UserPtr::new(args.args[0]).copy_out_if(thread, &Timeval::from_nanos(now))?;
    UserPtr::new(args.args[1]).copy_out_if(thread, &Timezone::default())?;
    Ok(0)
}

fn time(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let now = Clock::Host(libc::CLOCK_REALTIME).now()? / sentry_abi::time::NANOS;
    UserPtr::new(args.args[0]).copy_out_if(thread, &now)?;
    Ok(now as i64)
}

fn times(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let process = thread.process();
    let (own, children) = (cpu::usage(process), *process.child_usage.lock());
    let answer = Tms {
        utime: cpu::ticks(own.user_nanos),
        stime: cpu::ticks(own.system_nanos),
        cutime: cpu::ticks(children.user_nanos),
        cstime: cpu::ticks(children.system_nanos),
    };
    UserPtr::new(args.args[0]).copy_out_if(thread, &answer)?;
    Ok(cpu::ticks(Clock::Host(libc::CLOCK_MONOTONIC).now()?))
}

fn nanosleep(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let request = match UserPtr::<Timespec>::new(args.args[0])
        .copy_in(thread)
        .and_then(Timespec::to_nanos)
    {
        Ok(request) => request,
        Err(errno) => return errno.into(),
    };
    let deadline = Deadline(Deadline::now().0.saturating_add(request));
    sleep(thread.clone(), deadline, args.args[1])
}

/// Sleeps to a point of the monotonic clock; what is left goes to `remaining`, and the call can be restarted.
fn sleep(thread: Arc<Thread>, deadline: Deadline, remaining: u64) -> Sys {
    Sys::wait(async move {
        match block::sleep(&thread, Some(deadline)).await {
            Wake::Timeout => Ok(0),
            Wake::Signal => {
                tell_remaining(&thread, remaining, deadline.remaining().as_nanos() as u64)?;
                thread.set_restart(move |thread| sleep(thread.clone(), deadline, remaining));
                Err(Errno::ERESTART_RESTARTBLOCK)
            }
        }
    })
}

/// Writes what is left of a sleep, at once: the call's result is a restart code, which a write that fails later
/// would not replace.
fn tell_remaining(thread: &Thread, addr: u64, nanos: u64) -> Result<(), Errno> {
    if addr == 0 {
        return Ok(());
    }
    thread.mm().space().write(addr, Timespec::from_nanos(nanos).as_bytes())
}

fn clock_nanosleep(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [id, flags, request, remaining, ..] = args.args;
    match clock_sleep(thread, id as i32, flags as i32, request, remaining) {
        Ok(sys) => sys,
        Err(errno) => errno.into(),
    }
}

fn clock_sleep(thread: &Arc<Thread>, id: i32, flags: i32, request: u64, remaining: u64) -> Result<Sys, Errno> {
    if id == libc::CLOCK_THREAD_CPUTIME_ID {
        return Err(Errno::EOPNOTSUPP);
    }
    let clock = Clock::from_id(thread, id)?;
    clock.check_sleep(thread)?;
    let request = UserPtr::<Timespec>::new(request).copy_in(thread)?.to_nanos()?;
    let absolute = flags & libc::TIMER_ABSTIME != 0;
    if let Clock::Host(8 | 9) = clock {
        thread.cred().require(Cap::WAKE_ALARM)?;
    }
    if clock.is_cpu() {
        let expiry = if absolute {
            request
        } else {
            clock.now()?.saturating_add(request)
        };
        return Ok(cpu_sleep(
            thread.clone(),
            clock,
            expiry,
            if absolute { None } else { Some(remaining) },
        ));
    }
    if !absolute {
        let deadline = Deadline(Deadline::now().0.saturating_add(request));
        return Ok(sleep(thread.clone(), deadline, remaining));
    }
    let left = request.saturating_sub(clock.now()?);
    let deadline = Deadline(Deadline::now().0.saturating_add(left));
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        match block::sleep(&thread, Some(deadline)).await {
            Wake::Timeout => Ok(0),
            Wake::Signal => Err(Errno::ERESTARTNOHAND),
        }
    }))
}

/// Sleeps until a CPU clock has come to `expiry`, looking now and then. `remaining` is given for relative sleeps.
fn cpu_sleep(thread: Arc<Thread>, clock: Clock, expiry: u64, remaining: Option<u64>) -> Sys {
    const LOOK: u64 = 2_000_000;
    Sys::wait(async move {
        loop {
            // A process that is gone uses no more time: the sleep never ends by itself, but looks on.
            let left = expiry.saturating_sub(clock.now().unwrap_or(0));
            if left == 0 {
                return Ok(0);
            }
            let deadline = Deadline(Deadline::now().0.saturating_add(left.max(LOOK)));
            if block::sleep(&thread, Some(deadline)).await == Wake::Timeout {
                continue;
            }
            let Some(remaining) = remaining else {
                return Err(Errno::ERESTARTNOHAND);
            };
            tell_remaining(&thread, remaining, expiry.saturating_sub(clock.now().unwrap_or(0)))?;
            thread.set_restart(move |thread| cpu_sleep(thread.clone(), clock, expiry, Some(remaining)));
            return Err(Errno::ERESTART_RESTARTBLOCK);
        }
    })
}
