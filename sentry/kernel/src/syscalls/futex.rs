//! futex(2) and robust lists.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_platform::{Order, SyscallArgs};

use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::futex::{self, Key, MATCH_ANY, pi, requeue as condition};
use crate::task::Thread;
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_futex, futex, Ptr, Hex, Int, Ptr, Ptr, Hex),
    call!(libc::SYS_set_robust_list, set_robust_list, Ptr, Int),
    call!(libc::SYS_get_robust_list, get_robust_list, Int, Ptr, Ptr),
];

/// The size of `struct robust_list_head`.
const ROBUST_HEAD: u64 = 24;
const LOCK_PI2: i32 = 13;

fn futex(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, op, value, timeout, addr2, value3] = args.args;
    let (op, value, value2, value3) = (op as i32, value as u32, timeout as u32, value3 as u32);
    let shared = op & libc::FUTEX_PRIVATE_FLAG == 0;
    let realtime = op & libc::FUTEX_CLOCK_REALTIME != 0;
    let command = op & libc::FUTEX_CMD_MASK;
    if realtime && !matches!(command, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_WAIT_REQUEUE_PI | LOCK_PI2) {
        return Errno::ENOSYS.into();
    }
    let table = &thread.kernel().futexes;
    let wake = |bitset: u32| {
        if bitset == 0 {
            return Err(Errno::EINVAL);
        }
        // Linux wakes one even if asked for none.
        Ok(table.wake(Key::of(thread, addr, shared)?, value.max(1), bitset))
    };
    match command {
        libc::FUTEX_WAIT => wait(thread, (addr, shared), value, MATCH_ANY, relative(thread, timeout)),
        libc::FUTEX_WAIT_BITSET => {
            if value3 == 0 {
                return Errno::EINVAL.into();
            }
            wait(thread, (addr, shared), value, value3, absolute(thread, timeout, realtime))
        }
        libc::FUTEX_WAKE => wake(MATCH_ANY).into(),
        libc::FUTEX_WAKE_BITSET => wake(value3).into(),
        libc::FUTEX_REQUEUE => requeue(thread, (addr, addr2), shared, (value, value2), None).into(),
        libc::FUTEX_CMP_REQUEUE => requeue(thread, (addr, addr2), shared, (value, value2), Some(value3)).into(),
        libc::FUTEX_WAKE_OP => wake_op(thread, (addr, addr2), shared, (value, value2), value3),
        libc::FUTEX_LOCK_PI => lock_pi(thread, (addr, shared), absolute(thread, timeout, true), false),
        LOCK_PI2 => lock_pi(thread, (addr, shared), absolute(thread, timeout, realtime), false),
        libc::FUTEX_TRYLOCK_PI => lock_pi(thread, (addr, shared), Ok(None), true),
        libc::FUTEX_UNLOCK_PI => {
            let thread = thread.clone();
            Sys::wait(async move { pi::unlock(&thread, addr, shared).await.map(|()| 0) })
        }
        libc::FUTEX_WAIT_REQUEUE_PI => match absolute(thread, timeout, realtime) {
            Ok(deadline) => {
                let thread = thread.clone();
                let wait = async move { condition::wait(&thread, (addr, addr2), shared, value, deadline).await };
                Sys::wait(async move { wait.await.map(|()| 0) })
            }
            Err(errno) => errno.into(),
        },
        libc::FUTEX_CMP_REQUEUE_PI => {
            // Exactly one is woken, with the lock.
            if value != 1 || (value2 as i32) < 0 {
                return Errno::EINVAL.into();
            }
            let thread = thread.clone();
            Sys::wait(async move { condition::requeue(&thread, (addr, addr2), shared, value2, value3).await })
        }
        _ => {
            crate::gap!(thread.kernel(), "futex operation {command}");
            Errno::ENOSYS.into()
        }
    }
}

fn read_timespec(thread: &Thread, addr: u64) -> Result<Option<Duration>, Errno> {
    if addr == 0 {
        return Ok(None);
    }
    let [sec, nsec] = UserPtr::<[i64; 2]>::new(addr).copy_in(thread)?;
    match (u64::try_from(sec), u32::try_from(nsec)) {
        (Ok(sec), Ok(nsec @ 0..1_000_000_000)) => Ok(Some(Duration::new(sec, nsec))),
        _ => Err(Errno::EINVAL),
    }
}

fn relative(thread: &Thread, addr: u64) -> Result<Option<Deadline>, Errno> {
    Ok(read_timespec(thread, addr)?.map(Deadline::after))
}

fn absolute(thread: &Thread, addr: u64, realtime: bool) -> Result<Option<Deadline>, Errno> {
    let Some(time) = read_timespec(thread, addr)? else { return Ok(None) };
    if realtime {
        let (sec, nsec) = sentry_host::clock::get(libc::CLOCK_REALTIME).unwrap_or((0, 0));
        let now = Duration::new(u64::try_from(sec).unwrap_or(0), nsec);
        return Ok(Some(Deadline::after(time.saturating_sub(now))));
    }
    Ok(Some(Deadline(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))))
}

fn wait(
    thread: &Arc<Thread>,
    (addr, shared): (u64, bool),
    expected: u32,
    bitset: u32,
    deadline: Result<Option<Deadline>, Errno>,
) -> Sys {
    match deadline {
        Ok(deadline) => wait_until(thread, (addr, shared), expected, bitset, deadline),
        Err(errno) => errno.into(),
    }
}

fn wait_until(
    thread: &Arc<Thread>,
    (addr, shared): (u64, bool),
    expected: u32,
    bitset: u32,
    deadline: Option<Deadline>,
) -> Sys {
    let thread = thread.clone();
    Sys::wait(async move {
        match futex::wait(&thread, addr, shared, expected, bitset, deadline).await {
            Ok(()) => Ok(0),
            Err(Errno::ERESTARTSYS) if deadline.is_some() => {
                thread.set_restart(move |thread| wait_until(thread, (addr, shared), expected, bitset, deadline));
                Err(Errno::ERESTART_RESTARTBLOCK)
            }
            Err(errno) => Err(errno),
        }
    })
}

fn lock_pi(
    thread: &Arc<Thread>,
    (addr, shared): (u64, bool),
    deadline: Result<Option<Deadline>, Errno>,
    only_try: bool,
) -> Sys {
    let deadline = match deadline {
        Ok(deadline) => deadline,
        Err(errno) => return errno.into(),
    };
    let thread = thread.clone();
    Sys::wait(async move { pi::lock(&thread, addr, shared, deadline, only_try).await.map(|()| 0) })
}

fn requeue(
    thread: &Arc<Thread>,
    (addr, addr2): (u64, u64),
    shared: bool,
    (wake, moved): (u32, u32),
    expected: Option<u32>,
) -> SysResult {
    if (wake as i32) < 0 || (moved as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (Key::of(thread, addr, shared)?, Key::of(thread, addr2, shared)?);
    let (woken, moved) =
        thread.kernel().futexes.requeue(thread, (from, addr), to, (wake, moved), expected)?;
    // FUTEX_REQUEUE counts the woken only.
    Ok(if expected.is_some() { woken + moved } else { woken })
}

/// The new value that `FUTEX_WAKE_OP` stores, and whether the old one asks for a second wake.
fn apply(code: u32, old: u32) -> Result<(u32, bool), Errno> {
    let sign_extend = |value: u32| ((value << 20) as i32) >> 20;
    let (op, compare) = (code >> 28, code >> 24 & 0xf);
    let (mut operand, against) = (sign_extend(code >> 12 & 0xfff), sign_extend(code & 0xfff));
    if op & 8 != 0 {
        if !(0..32).contains(&operand) {
            operand &= 31;
        }
        operand = 1 << operand;
    }
    let operand = operand as u32;
    let new = match op & 7 {
        0 => operand,
        1 => old.wrapping_add(operand),
        2 => old | operand,
        3 => old & !operand,
        4 => old ^ operand,
        _ => return Err(Errno::ENOSYS),
    };
    let signed = old as i32;
    let wakes = match compare {
        0 => signed == against,
        1 => signed != against,
        2 => signed < against,
        3 => signed <= against,
        4 => signed > against,
        5 => signed >= against,
        _ => return Err(Errno::ENOSYS),
    };
    Ok((new, wakes))
}

fn wake_op(
    thread: &Arc<Thread>,
    (addr, addr2): (u64, u64),
    shared: bool,
    (count, count2): (u32, u32),
    code: u32,
) -> Sys {
    let thread = thread.clone();
    Sys::wait(async move {
        let (key, key2) = (Key::of(&thread, addr, shared)?, Key::of(&thread, addr2, shared)?);
        let guest = thread.guest();
        let mut old = futex::read_word(&thread, addr2)?;
        let wakes = loop {
            let (new, wakes) = apply(code, old)?;
            let results = guest.run(&[Order::CompareExchange { addr: addr2, old, new }], &[]).await?;
            match results.first() {
                Some(&found) if found == i64::from(old) => break wakes,
                Some(&found) if found >= 0 => old = found as u32,
                _ => return Err(Errno::EFAULT),
            }
        };
        let table = &thread.kernel().futexes;
        let mut woken = table.wake(key, count.max(1), MATCH_ANY);
        if wakes {
            woken += table.wake(key2, count2.max(1), MATCH_ANY);
        }
        Ok(woken)
    })
}

fn set_robust_list(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    if args.args[1] != ROBUST_HEAD {
        return Err(Errno::EINVAL);
    }
    thread.robust_list.store(args.args[0], Ordering::Relaxed);
    Ok(0)
}

fn get_robust_list(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [tid, head, len, ..] = args.args;
    let target = match tid as i32 {
        0 => thread.clone(),
        tid => thread.kernel().thread(tid).ok_or(Errno::ESRCH)?,
    };
    if target.pid() != thread.pid() && thread.cred().euid != target.cred().euid && thread.cred().euid != 0 {
        return Err(Errno::EPERM);
    }
    UserPtr::new(len).copy_out(thread, &ROBUST_HEAD)?;
    UserPtr::new(head).copy_out(thread, &target.robust_list.load(Ordering::Relaxed))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_op_codes() {
        // ADD 1, compare GT 1: what pthread_cond_signal used.
        let code = 1 << 28 | 4 << 24 | 1 << 12 | 1;
        assert_eq!(apply(code, 1), Ok((2, false)));
        assert_eq!(apply(code, 2), Ok((3, true)));
        // SET (1 << 4), compare EQ -1.
        let code = 8 << 28 | 4 << 12 | 0xfff;
        assert_eq!(apply(code, u32::MAX), Ok((16, true)));
        assert_eq!(apply(7 << 28, 0), Err(Errno::ENOSYS));
    }
}
