//! Signals.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::{Cap, Credentials};
use sentry_vfs::wait::PollEvents;

use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::pidfd::PidFd;
use crate::procfs;
use crate::signal::{
    self, Action, After, AltStack, DefaultAction, Disposition, MINSIGSTKSZ, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, SaFlags,
    SigInfo, SigSet, Signal,
};
use crate::task::{Pid, Process, Thread, Wake, block_on};
use crate::user::{self, UserPtr};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_rt_sigaction, rt_sigaction, Signal, Ptr, Ptr, Int),
    call!(libc::SYS_rt_sigprocmask, rt_sigprocmask, Int, Ptr, Ptr, Int),
    call!(libc::SYS_rt_sigreturn, rt_sigreturn),
    call!(libc::SYS_rt_sigpending, rt_sigpending, Ptr, Int),
    call!(libc::SYS_rt_sigtimedwait, rt_sigtimedwait, Ptr, Ptr, Ptr, Int),
    call!(libc::SYS_rt_sigqueueinfo, rt_sigqueueinfo, Int, Signal, Ptr),
    call!(libc::SYS_rt_tgsigqueueinfo, rt_tgsigqueueinfo, Int, Int, Signal, Ptr),
    call!(libc::SYS_rt_sigsuspend, rt_sigsuspend, Ptr, Int),
    call!(libc::SYS_sigaltstack, sigaltstack, Ptr, Ptr),
    call!(libc::SYS_kill, kill, Int, Signal),
    call!(libc::SYS_tkill, tkill, Int, Signal),
    call!(libc::SYS_tgkill, tgkill, Int, Int, Signal),
    call!(libc::SYS_pause, pause),
    call!(libc::SYS_restart_syscall, restart_syscall),
    call!(libc::SYS_pidfd_send_signal, pidfd_send_signal, Fd, Signal, Ptr, Hex),
];

/// The only size of `sigset_t` there is.
const SIGSET_SIZE: u64 = 8;

fn check_size(size: u64) -> Result<(), Errno> {
    if size == SIGSET_SIZE { Ok(()) } else { Err(Errno::EINVAL) }
}

fn rt_sigaction(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [number, new, old, size, ..] = args.args;
    check_size(size)?;
    let signal = Signal::from_number(i64::from(number as i32))?;
    let process = thread.process();
    let actions = process.actions();
    let before = if new == 0 {
        actions.get(signal)
    } else {
        if SigSet::UNBLOCKABLE.has(signal) {
            return Err(Errno::EINVAL);
        }
        let [handler, flags, restorer, mask] = UserPtr::<[u64; 4]>::new(new).copy_in(thread)?;
        // Unknown bits are cleared, so that a program can find out which there are (sigaction(2)).
        let flags = SaFlags::from_bits_truncate(flags) - SaFlags::UNSUPPORTED;
        let mask = SigSet(mask).without(SigSet::UNBLOCKABLE);
        let action = Action { handler, flags, restorer, mask };
        let mut state = process.signals.lock();
        let before = actions.set(signal, action);
        // POSIX: setting "ignore" drops what is pending, blocked or not. So does the default of SIGCONT, whose work is
        // done when it is sent.
        let default_continues = signal == Signal::CONT && action.disposition(signal) == Disposition::Default(DefaultAction::Continue);
        if action.ignores(signal) || default_continues {
            signal::discard_everywhere(&mut state, SigSet::from_iter([signal]));
        }
        before
    };
    let raw = [before.handler, before.flags.bits(), before.restorer, before.mask.0];
    UserPtr::<[u64; 4]>::new(old).copy_out_if(thread, &raw)?;
    Ok(0)
}

fn rt_sigprocmask(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [how, new, old, size, ..] = args.args;
    check_size(size)?;
    let before = thread.signal_mask();
    if new != 0 {
        let set = SigSet(UserPtr::<u64>::new(new).copy_in(thread)?);
        let mask = match how as i32 {
            libc::SIG_BLOCK => before.union(set),
            libc::SIG_UNBLOCK => before.without(set),
            libc::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        thread.set_signal_mask(mask);
    }
    UserPtr::<u64>::new(old).copy_out_if(thread, &before.0)?;
    Ok(0)
}

fn rt_sigreturn(thread: &Arc<Thread>, _args: &SyscallArgs) -> SysResult {
    match signal::sigreturn(thread) {
        Ok(rax) => Ok(rax as i64),
        Err(_) => {
            signal::force(thread, SigInfo::kernel(Signal::SEGV));
            Ok(0)
        }
    }
}

fn rt_sigpending(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [set, size, ..] = args.args;
    if size > SIGSET_SIZE {
        return Err(Errno::EINVAL);
    }
    let pending = thread.pending_signals().intersection(thread.signal_mask());
    user::write_bytes(thread, set, &pending.0.to_ne_bytes()[..size as usize])?;
    Ok(0)
}

/// The deadline of a relative `struct timespec`; none for a null pointer.
fn deadline(thread: &Arc<Thread>, addr: u64) -> Result<Option<Deadline>, Errno> {
    if addr == 0 {
        return Ok(None);
    }
    let [sec, nsec] = UserPtr::<[i64; 2]>::new(addr).copy_in(thread)?;
    let (Ok(sec), Ok(nsec @ 0..1_000_000_000)) = (u64::try_from(sec), u32::try_from(nsec)) else {
        return Err(Errno::EINVAL);
    };
    Ok(Some(Deadline::after(std::time::Duration::new(sec, nsec))))
}

fn rt_sigtimedwait(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [set, info, timeout, size, ..] = args.args;
    let parsed = check_size(size).and_then(|()| {
        let set = SigSet(UserPtr::<u64>::new(set).copy_in(thread)?).without(SigSet::UNBLOCKABLE);
        Ok((set, deadline(thread, timeout)?))
    });
    let (set, deadline) = match parsed {
        Ok(parsed) => parsed,
        Err(errno) => return errno.into(),
    };
    let finish = move |thread: &Arc<Thread>, taken: SigInfo| {
        if info != 0 {
            user::write_bytes(thread, info, &taken.to_bytes())?;
        }
        Ok(i64::from(taken.signal.number()))
    };
    if let Some(taken) = thread.take_signal(set) {
        return finish(thread, taken).into();
    }
    if deadline.is_some_and(Deadline::passed) {
        return Errno::EAGAIN.into();
    }
    let thread = thread.clone();
    Sys::wait(async move {
        // While it waits these signals are not dropped even if ignored, and they do not interrupt.
        let mask = thread.signal_mask();
        thread.signals.lock().waiting = set;
        thread.set_signal_mask(mask.union(set));
        let process = thread.process().clone();
        let queues = [(&process.signal_events, PollEvents::IN)];
        let waited = block_on(&thread, deadline, &queues, || thread.take_signal(set)).await;
        thread.signals.lock().waiting = SigSet::EMPTY;
        thread.set_signal_mask(mask);
        match waited {
            Ok(taken) => finish(&thread, taken),
            Err(Wake::Signal) => Err(Errno::EINTR),
            Err(Wake::Timeout) => Err(Errno::EAGAIN),
        }
    })
}

fn rt_sigsuspend(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [set, size, ..] = args.args;
    match check_size(size).and_then(|()| UserPtr::<u64>::new(set).copy_in(thread)) {
        Ok(mask) => {
            thread.set_temporary_mask(SigSet(mask));
            suspend(thread)
        }
        Err(errno) => errno.into(),
    }
}

fn pause(thread: &Arc<Thread>, _args: &SyscallArgs) -> Sys {
    suspend(thread)
}

/// Waits for a signal whose handler runs.
fn suspend(thread: &Arc<Thread>) -> Sys {
    let thread = thread.clone();
    Sys::wait(async move {
        crate::task::block::sleep(&thread, None).await;
        Err(Errno::ERESTARTNOHAND)
    })
}

fn restart_syscall(thread: &Arc<Thread>, _args: &SyscallArgs) -> Sys {
    let restart = thread.restart.lock().take();
    match restart {
        Some(restart) => restart(thread),
        None => Errno::EINTR.into(),
    }
}

fn sigaltstack(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [new, old, ..] = args.args;
    let sp = if new == 0 && old == 0 { 0 } else { thread.guest().registers().rsp };
    let before = thread.signals.lock().stack;
    if new != 0 {
        let [stack, flags, size] = UserPtr::<[u64; 3]>::new(new).copy_in(thread)?;
        let flags = flags as u32;
        if before.holds(sp) {
            return Err(Errno::EPERM);
        }
        let disarm = flags & SS_AUTODISARM;
        let after = match flags & !SS_AUTODISARM {
            SS_DISABLE => AltStack { sp: 0, size: 0, flags: disarm },
            0 | SS_ONSTACK if size < MINSIGSTKSZ => return Err(Errno::ENOMEM),
            0 | SS_ONSTACK => AltStack { sp: stack, size, flags: disarm },
            _ => return Err(Errno::EINVAL),
        };
        thread.signals.lock().stack = after;
    }
    if old != 0 {
        user::write_bytes(thread, old, &before.to_bytes(sp))?;
    }
    Ok(0)
}

/// kill(2)'s rule: the same user, CAP_KILL, or SIGCONT within one session. `tasks` is held by the caller.
fn may_signal_in(
    tasks: &crate::task::Tasks,
    sender: &Arc<Thread>,
    cred: &Credentials,
    target: &Process,
    signal: Option<Signal>,
) -> bool {
    if sender.pid() == target.pid() || cred.has(Cap::KILL) {
        return true;
    }
    let same = match target.any_thread() {
        Some(thread) => {
            let theirs = thread.cred();
            [cred.euid, cred.uid].iter().any(|id| *id == theirs.suid || *id == theirs.uid)
        }
        None => cred.euid == target.real_uid.load(Ordering::Relaxed),
    };
    let sid = |pid: Pid| tasks.node(pid).map(|node| node.sid);
    same || (signal == Some(Signal::CONT) && sid(sender.pid()) == sid(target.pid()))
}

fn parse_signal(number: u64) -> Result<Option<Signal>, Errno> {
    match number as i32 {
        0 => Ok(None),
        number => Signal::from_number(i64::from(number)).map(Some),
    }
}

fn user_info(thread: &Thread, signal: Signal, code: i32) -> SigInfo {
    SigInfo::user(signal, code, thread.pid(), thread.cred().uid)
}

fn kill(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, number, ..] = args.args;
    let signal = parse_signal(number)?;
    let kernel = thread.kernel();
    let cred = thread.cred();
    let tasks = kernel.tasks.read();
    let pid = pid as i32;
    let own_group = tasks.node(thread.pid()).map_or(0, |node| node.pgid);
    let targets: Vec<Arc<Process>> = match pid {
        1.. => tasks.process(pid).or_else(|| tasks.thread(pid).map(|thread| thread.process())).cloned().into_iter().collect(),
        0 => tasks.group(own_group).map(|node| node.process.clone()).collect(),
        -1 => {
            let others = tasks.processes().filter(|node| node.process.pid() > 1 && node.process.pid() != thread.pid());
            others.map(|node| node.process.clone()).collect()
        }
        i32::MIN => return Err(Errno::ESRCH),
        group => tasks.group(-group).map(|node| node.process.clone()).collect(),
    };
    let mut result = Err(Errno::ESRCH);
    let mut after = After::default();
    for target in &targets {
        let sent = if !may_signal_in(&tasks, thread, &cred, target, signal) {
            Err(Errno::EPERM)
        } else {
            match signal {
                None => Ok(()),
                Some(signal) => {
                    let info = user_info(thread, signal, SigInfo::SI_USER);
                    signal::send(kernel, target, None, info).map(|more| after.merge(more))
                }
            }
        };
        // One success is enough; else the last error counts.
        if result.is_err() {
            result = sent;
        }
    }
    drop(tasks);
    after.run(kernel);
    result.map(|()| 0)
}

/// Sends to one thread, of the process `tgid` if that is given.
fn send_to(thread: &Arc<Thread>, tgid: Option<Pid>, tid: Pid, number: u64, info: Option<SigInfo>) -> SysResult {
    if tid <= 0 || tgid.is_some_and(|tgid| tgid <= 0) {
        return Err(Errno::EINVAL);
    }
    let signal = parse_signal(number)?;
    let kernel = thread.kernel();
    let tasks = kernel.tasks.read();
    let target = tasks.thread(tid).cloned().ok_or(Errno::ESRCH)?;
    if tgid.is_some_and(|tgid| tgid != target.pid()) {
        return Err(Errno::ESRCH);
    }
    if !may_signal_in(&tasks, thread, &thread.cred(), target.process(), signal) {
        return Err(Errno::EPERM);
    }
    drop(tasks);
    if let Some(signal) = signal {
        let info = info.unwrap_or_else(|| user_info(thread, signal, SigInfo::SI_TKILL));
        signal::try_send_to_thread(&target, info)?;
    }
    Ok(0)
}

fn tkill(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    send_to(thread, None, args.args[0] as i32, args.args[1], None)
}

fn tgkill(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    send_to(thread, Some(args.args[0] as i32), args.args[1] as i32, args.args[2], None)
}

/// Reads a `siginfo_t` that a guest sends. What looks as if the kernel or kill(2) had sent it is for oneself only.
fn read_info(thread: &Arc<Thread>, addr: u64, number: u64, to: Pid) -> Result<Option<SigInfo>, Errno> {
    let raw = UserPtr::<[u8; 128]>::new(addr).copy_in(thread)?;
    let Some(signal) = parse_signal(number)? else { return Ok(None) };
    let info = SigInfo::from_bytes(signal, &raw);
    if (info.code >= 0 || info.code == SigInfo::SI_TKILL) && to != thread.pid() {
        return Err(Errno::EPERM);
    }
    Ok(Some(info))
}

fn rt_sigqueueinfo(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [pid, number, addr, ..] = args.args;
    let pid = pid as i32;
    let info = read_info(thread, addr, number, pid)?;
    let kernel = thread.kernel();
    let tasks = kernel.tasks.read();
    let target = tasks.process(pid).cloned().ok_or(Errno::ESRCH)?;
    if !may_signal_in(&tasks, thread, &thread.cred(), &target, info.map(|info| info.signal)) {
        return Err(Errno::EPERM);
    }
    drop(tasks);
    if let Some(info) = info {
        signal::try_send_to_process(kernel, &target, info)?;
    }
    Ok(0)
}

fn rt_tgsigqueueinfo(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [tgid, tid, number, addr, ..] = args.args;
    if tgid as i32 <= 0 || tid as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let info = read_info(thread, addr, number, tgid as i32)?;
    send_to(thread, Some(tgid as i32), tid as i32, number, info)
}

fn pidfd_send_signal(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [fd, number, addr, flags, ..] = args.args;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(fd as i32)?;
    // Here, and only here, a directory in /proc will do too.
    let target = PidFd::process_of(&file).or_else(|_| procfs::process_of(&file))?;
    let signal = parse_signal(number)?;
    let info = match (addr, signal) {
        (_, None) => None,
        (0, Some(signal)) => Some(user_info(thread, signal, SigInfo::SI_USER)),
        (addr, Some(signal)) => {
            let info = read_info(thread, addr, number, target.pid())?;
            let raw: i32 = UserPtr::new(addr).copy_in(thread)?;
            if raw != signal.number() {
                return Err(Errno::EINVAL);
            }
            info
        }
    };
    let kernel = thread.kernel();
    if target.is_zombie() && kernel.process(target.pid()).is_none() {
        return Err(Errno::ESRCH);
    }
    if !may_signal_in(&kernel.tasks.read(), thread, &thread.cred(), &target, signal) {
        return Err(Errno::EPERM);
    }
    if let Some(info) = info {
        signal::try_send_to_process(kernel, &target, info)?;
    }
    Ok(0)
}
