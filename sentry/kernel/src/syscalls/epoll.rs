//! epoll(7), timerfd(2), signalfd(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::poll::EpollEvent;
use sentry_abi::time::{Itimerspec, Timespec};
use sentry_platform::SyscallArgs;
use sentry_vfs::wait::PollEvents;

use super::args::{file, install, int};
use super::poll::{Timeout, mask_argument, with_mask};
use super::{Row, Sys, SysResult, call};
use crate::epoll::Epoll;
use crate::signal::SigSet;
use crate::signalfd::SignalFd;
use crate::task::{Thread, Wake, block_on};
use crate::timerfd::TimerFd;
use crate::user::{UserPtr, UserSlice};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_epoll_create, epoll_create, Int),
    call!(libc::SYS_epoll_create1, epoll_create1, Hex),
    call!(libc::SYS_epoll_ctl, epoll_ctl, Fd, Int, Fd, Ptr),
    call!(libc::SYS_epoll_wait, epoll_wait, Fd, Ptr, Int, Int),
    call!(libc::SYS_epoll_pwait, epoll_pwait, Fd, Ptr, Int, Int, Ptr, Int),
    call!(libc::SYS_epoll_pwait2, epoll_pwait2, Fd, Ptr, Int, Ptr, Ptr, Int),
    call!(libc::SYS_timerfd_create, timerfd_create, Int, Hex),
    call!(libc::SYS_timerfd_settime, timerfd_settime, Fd, Hex, Ptr, Ptr),
    call!(libc::SYS_timerfd_gettime, timerfd_gettime, Fd, Ptr),
    call!(libc::SYS_signalfd, signalfd, Fd, Ptr, Int),
    call!(libc::SYS_signalfd4, signalfd4, Fd, Ptr, Int, Hex),
];

/// The most events that one wait gives.
const MAX_EVENTS: usize = 4096;

fn epoll_create(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    if int(args, 0) <= 0 {
        return Err(Errno::EINVAL);
    }
    install(thread, crate::epoll::epoll(), false)
}

fn epoll_create1(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 0);
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    install(thread, crate::epoll::epoll(), flags != 0)
}

fn epoll_ctl(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (operation, fd) = (int(args, 1), int(args, 2));
    let event: EpollEvent = if operation == libc::EPOLL_CTL_DEL {
        EpollEvent::default()
    } else {
        UserPtr::new(args.args[3]).copy_in(thread)?
    };
    let own = file(thread, int(args, 0))?;
    let target = file(thread, fd)?;
    if target.ops().wait_queue().is_none() {
        return Err(Errno::EPERM);
    }
    let epoll = Epoll::of(&own)?;
    if own.id() == target.id() {
        return Err(Errno::EINVAL);
    }
    match operation {
        libc::EPOLL_CTL_ADD => epoll.add(&own, fd, &target, event),
        libc::EPOLL_CTL_MOD => epoll.modify(fd, &target, event),
        libc::EPOLL_CTL_DEL => epoll.remove(fd, &target),
        _ => Err(Errno::EINVAL),
    }
    .map(|()| 0)
}

fn epoll_wait(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    do_epoll_wait(thread, args, Timeout::from_millis(int(args, 3)))
}

fn epoll_pwait(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let mask = mask_argument(thread, args.args[4], args.args[5])?;
    let timeout = Timeout::from_millis(int(args, 3));
    Ok(with_mask(thread, mask, || do_epoll_wait(thread, args, timeout).into()))
}

fn epoll_pwait2(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let timeout = Timeout::from_timespec(thread, UserPtr::<Timespec>::new(args.args[3]))?;
    let mask = mask_argument(thread, args.args[4], args.args[5])?;
    Ok(with_mask(thread, mask, || do_epoll_wait(thread, args, timeout).into()))
}

fn do_epoll_wait(thread: &Arc<Thread>, args: &SyscallArgs, timeout: Timeout) -> Result<Sys, Errno> {
    let (addr, max) = (args.args[1], int(args, 2));
    if max <= 0 || max > i32::MAX / size_of::<EpollEvent>() as i32 {
        return Err(Errno::EINVAL);
    }
    let max = (max as usize).min(MAX_EVENTS);
    let own = file(thread, int(args, 0))?;
    let events = Epoll::of(&own)?.collect(max);
    if !events.is_empty() || timeout == Timeout::Zero {
        return Ok(Sys::Done(give(thread, addr, &events)));
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let epoll = Epoll::of(&own)?;
        let queues = [(epoll.queue(), PollEvents::IN)];
        let result = block_on(&thread, timeout.deadline(), &queues, || {
            let events = epoll.collect(max);
            (!events.is_empty()).then_some(events)
        })
        .await;
        match result {
            Ok(events) => give(&thread, addr, &events),
            Err(Wake::Timeout) => Ok(0),
            // Never restarted (signal(7)).
            Err(Wake::Signal) => Err(Errno::EINTR),
        }
    }))
}

fn give(thread: &Thread, addr: u64, events: &[EpollEvent]) -> SysResult {
    UserSlice::new(addr, events.len())
        .copy_out(thread, events)
        .map(|count| count as i64)
}

fn timerfd_create(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let (clock, flags) = (int(args, 0), int(args, 1));
    if flags & !(libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = crate::timerfd::timerfd(thread, clock, flags as u32)?;
    install(thread, file, flags & libc::TFD_CLOEXEC != 0)
}

fn timerfd_settime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let flags = int(args, 1);
    if flags & !(libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let new: Itimerspec = UserPtr::new(args.args[2]).copy_in(thread)?;
    let (value, interval) = (new.value.to_nanos()?, new.interval.to_nanos()?);
    let file = file(thread, int(args, 0))?;
    let timer = TimerFd::of(&file)?;
    let (old_value, old_interval) = timer.set(value, interval, flags & libc::TFD_TIMER_ABSTIME != 0)?;
    let old = Itimerspec {
        value: Timespec::from_nanos(old_value),
        interval: Timespec::from_nanos(old_interval),
    };
    UserPtr::new(args.args[3]).copy_out_if(thread, &old).map(|()| 0)
}

fn timerfd_gettime(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let file = file(thread, int(args, 0))?;
    let (value, interval) = TimerFd::of(&file)?.get()?;
    let now = Itimerspec {
        value: Timespec::from_nanos(value),
        interval: Timespec::from_nanos(interval),
    };
    UserPtr::new(args.args[1]).copy_out(thread, &now).map(|()| 0)
}

fn signalfd(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_signalfd(thread, int(args, 0), args.args[1], args.args[2], 0)
}

fn signalfd4(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    do_signalfd(thread, int(args, 0), args.args[1], args.args[2], int(args, 3))
}

fn do_signalfd(thread: &Arc<Thread>, fd: i32, addr: u64, size: u64, flags: i32) -> SysResult {
    if flags & !(libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) != 0 || size != 8 {
        return Err(Errno::EINVAL);
    }
    let bits: u64 = UserPtr::new(addr).copy_in(thread)?;
    let set = SigSet(bits).without(SigSet::UNBLOCKABLE);
    if fd == -1 {
        let file = crate::signalfd::signalfd(thread, set, flags as u32);
        return install(thread, file, flags & libc::SFD_CLOEXEC != 0);
    }
    SignalFd::of(&*file(thread, fd)?)?.set_mask(set);
    Ok(fd.into())
}
