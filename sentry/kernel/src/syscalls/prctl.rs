//! prctl(2) and arch_prctl(2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::{Cap, CapSet, Credentials};

use super::{Row, SysResult, call};
use crate::gap;
use crate::signal::Signal;
use crate::task::Thread;
use crate::user::{self, UserPtr};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_prctl, prctl, Int, Hex, Hex, Hex, Hex),
    call!(libc::SYS_arch_prctl, arch_prctl, Hex, Ptr),
];

const PR_GET_TID_ADDRESS: i32 = 40;
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;
const PR_SET_MDWE: i32 = 65;
const PR_GET_MDWE: i32 = 66;
const PR_GET_AUXV: i32 = 0x4155_5856;
const PR_CAP_AMBIENT_IS_SET: u64 = 1;
const PR_CAP_AMBIENT_RAISE: u64 = 2;
const PR_CAP_AMBIENT_LOWER: u64 = 3;
const PR_CAP_AMBIENT_CLEAR_ALL: u64 = 4;
/// All `SECBIT_*` there are, locks included.
const SECUREBITS: u64 = 0xff;
/// The locks among them; each stands above the bit that it locks.
const SECURE_LOCKS: u32 = 0xaa;
const SECBIT_KEEP_CAPS: u32 = 1 << 4;
const SECBIT_KEEP_CAPS_LOCKED: u32 = 1 << 5;
const SECBIT_NO_AMBIENT_RAISE: u32 = 1 << 6;

fn edit(thread: &Arc<Thread>, change: impl FnOnce(&mut Credentials)) -> SysResult {
    let mut cred = (*thread.cred()).clone();
    change(&mut cred);
    thread.set_cred(cred);
    Ok(0)
}

fn capability(number: u64) -> Result<Cap, Errno> {
    Cap::from_number(number)
}

fn prctl(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [option, arg2, arg3, arg4, arg5, _] = args.args;
    let process = thread.process();
    match option as i32 {
        libc::PR_SET_PDEATHSIG => {
            if arg2 != 0 {
                Signal::from_number(arg2 as i64)?;
            }
            thread.parent_death_signal.store(arg2 as i32, Ordering::Relaxed);
            Ok(0)
        }
        libc::PR_GET_PDEATHSIG => {
            UserPtr::new(arg2).copy_out(thread, &thread.parent_death_signal.load(Ordering::Relaxed))?;
            Ok(0)
        }
        libc::PR_GET_DUMPABLE => Ok(i64::from(process.dumpable.load(Ordering::Relaxed))),
        libc::PR_SET_DUMPABLE => match arg2 {
            0 | 1 => {
                process.dumpable.store(arg2 == 1, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        },
        libc::PR_GET_KEEPCAPS => Ok(i64::from(thread.cred().securebits & SECBIT_KEEP_CAPS != 0)),
        libc::PR_SET_KEEPCAPS if arg2 > 1 => Err(Errno::EINVAL),
        libc::PR_SET_KEEPCAPS if thread.cred().securebits & SECBIT_KEEP_CAPS_LOCKED != 0 => Err(Errno::EPERM),
        libc::PR_SET_KEEPCAPS => match arg2 {
            0 => edit(thread, |cred| cred.securebits &= !SECBIT_KEEP_CAPS),
            1 => edit(thread, |cred| cred.securebits |= SECBIT_KEEP_CAPS),
            _ => Err(Errno::EINVAL),
        },
        libc::PR_SET_NAME => {
            let mut name = user_name(thread, arg2)?;
            name.truncate(15);
            thread.set_comm(&name);
            Ok(0)
        }
        libc::PR_GET_NAME => {
            let mut name = thread.comm();
            name.resize(16, 0);
            user::write_bytes(thread, arg2, &name)?;
            Ok(0)
        }
        libc::PR_SET_CHILD_SUBREAPER => {
            process.subreaper.store(arg2 != 0, Ordering::Relaxed);
            Ok(0)
        }
        libc::PR_GET_CHILD_SUBREAPER => {
            UserPtr::new(arg2).copy_out(thread, &i32::from(process.subreaper.load(Ordering::Relaxed)))?;
            Ok(0)
        }
        libc::PR_SET_NO_NEW_PRIVS => match [arg2, arg3, arg4, arg5] {
            [1, 0, 0, 0] => edit(thread, |cred| cred.no_new_privs = true),
            _ => Err(Errno::EINVAL),
        },
        libc::PR_GET_NO_NEW_PRIVS => match [arg2, arg3, arg4, arg5] {
            [0, 0, 0, 0] => Ok(i64::from(thread.cred().no_new_privs)),
            _ => Err(Errno::EINVAL),
        },
        libc::PR_CAPBSET_READ => Ok(i64::from(thread.cred().bounding.has(capability(arg2)?))),
        libc::PR_CAPBSET_DROP => {
            let cap = capability(arg2)?;
            thread.cred().require(Cap::SETPCAP)?;
            edit(thread, |cred| cred.bounding = cred.bounding.without(cap))
        }
        libc::PR_GET_SECUREBITS => Ok(i64::from(thread.cred().securebits)),
        libc::PR_SET_SECUREBITS => {
            let cred = thread.cred();
            let (old, new) = (cred.securebits, arg2 as u32);
            let locked = (old & SECURE_LOCKS) >> 1;
            if arg2 & !SECUREBITS != 0 || locked & (old ^ new) != 0 || old & SECURE_LOCKS & !new != 0 {
                return Err(Errno::EPERM);
            }
            cred.require(Cap::SETPCAP)?;
            edit(thread, |cred| cred.securebits = arg2 as u32)
        }
        libc::PR_CAP_AMBIENT => ambient(thread, arg2, arg3, arg4 | arg5),
        libc::PR_GET_SECCOMP => Ok(0),
        libc::PR_SET_SECCOMP => {
            gap!(thread.kernel(), "prctl PR_SET_SECCOMP");
            Err(Errno::EINVAL)
        }
        libc::PR_SET_TIMERSLACK => {
            thread.set_timer_slack(if (arg2 as i64) <= 0 { None } else { Some(arg2) });
            Ok(0)
        }
        libc::PR_GET_TIMERSLACK => Ok(i64::try_from(thread.timer_slack()).unwrap_or(i64::MAX)),
        libc::PR_GET_TSC => {
            UserPtr::new(arg2).copy_out(thread, &1i32)?;
            Ok(0)
        }
        libc::PR_SET_TSC if arg2 == 1 => Ok(0),
        libc::PR_GET_TIMING => Ok(0),
        libc::PR_SET_TIMING if arg2 == 0 => Ok(0),
        libc::PR_GET_THP_DISABLE if arg2 | arg3 | arg4 | arg5 == 0 => {
            Ok(process.options.thp_disabled.load(Ordering::Relaxed).into())
        }
        // Kept and told: the host decides about its pages.
        libc::PR_SET_THP_DISABLE if arg3 | arg4 | arg5 == 0 => {
            process.options.thp_disabled.store(arg2 != 0, Ordering::Relaxed);
            Ok(0)
        }
        libc::PR_GET_THP_DISABLE | libc::PR_SET_THP_DISABLE => Err(Errno::EINVAL),
        libc::PR_MCE_KILL_GET if arg2 | arg3 | arg4 | arg5 == 0 => {
            Ok(process.options.memory_errors.load(Ordering::Relaxed).into())
        }
        libc::PR_MCE_KILL if arg4 | arg5 == 0 => {
            let policy = match (arg2, arg3) {
                (0, 0) => MCE_KILL_DEFAULT,
                (1, 0..=2) => arg3 as u8,
                _ => return Err(Errno::EINVAL),
            };
            process.options.memory_errors.store(policy, Ordering::Relaxed);
            Ok(0)
        }
        libc::PR_MCE_KILL_GET | libc::PR_MCE_KILL => Err(Errno::EINVAL),
        PR_SET_MDWE | PR_GET_MDWE => deny_write_execute(thread, option as i32, [arg2, arg3, arg4, arg5]),
        PR_SET_IO_FLUSHER | PR_GET_IO_FLUSHER => {
            thread.cred().require(Cap::SYS_RESOURCE)?;
            let set = option as i32 == PR_SET_IO_FLUSHER;
            match (arg2, arg3 | arg4 | arg5) {
                (0 | 1, 0) if set => {
                    thread.io_flusher.store(arg2 == 1, Ordering::Relaxed);
                    Ok(0)
                }
                (0, 0) => Ok(thread.io_flusher.load(Ordering::Relaxed).into()),
                _ => Err(Errno::EINVAL),
            }
        }
        libc::PR_GET_SPECULATION_CTRL | libc::PR_SET_SPECULATION_CTRL => speculation(option as i32, arg2, arg3, arg4 | arg5),
        libc::PR_SET_PTRACER => match arg2 {
            // Whoever may trace at all: nothing is traced here.
            0 | u64::MAX => Ok(0),
            pid => thread.kernel().thread(pid as i32).map(|_| 0).ok_or(Errno::EINVAL),
        },
        libc::PR_SET_MM => {
            thread.cred().require(Cap::SYS_RESOURCE)?;
            gap!(thread.kernel(), "prctl PR_SET_MM {arg2}");
            Err(Errno::EINVAL)
        }
        PR_GET_TID_ADDRESS => {
            UserPtr::new(arg2).copy_out(thread, &thread.clear_child_tid.load(Ordering::Relaxed))?;
            Ok(0)
        }
        PR_GET_AUXV if arg4 | arg5 == 0 => {
            let auxv = process.mm().image().auxv;
            let len = usize::try_from(arg3).unwrap_or(usize::MAX).min(auxv.len());
            user::write_bytes(thread, arg2, &auxv[..len])?;
            Ok(auxv.len() as i64)
        }
        PR_GET_AUXV => Err(Errno::EINVAL),
        option => {
            gap!(thread.kernel(), "prctl {option}");
            Err(Errno::EINVAL)
        }
    }
}

/// A thread's name: up to 16 bytes, NUL or not.
fn user_name(thread: &Arc<Thread>, addr: u64) -> Result<Vec<u8>, Errno> {
    match user::read_cstr(thread, addr, 16) {
        Err(Errno::ENAMETOOLONG) => {
            let mut bytes = [0; 15];
            user::read_bytes(thread, addr, &mut bytes)?;
            Ok(bytes.to_vec())
        }
        result => result,
    }
}

fn ambient(thread: &Arc<Thread>, operation: u64, number: u64, rest: u64) -> SysResult {
    if rest != 0 {
        return Err(Errno::EINVAL);
    }
    if operation == PR_CAP_AMBIENT_CLEAR_ALL {
        if number != 0 {
            return Err(Errno::EINVAL);
        }
        return edit(thread, |cred| cred.ambient = CapSet::EMPTY);
    }
    let cap = capability(number)?;
    let cred = thread.cred();
    match operation {
        PR_CAP_AMBIENT_IS_SET => Ok(i64::from(cred.ambient.has(cap))),
        PR_CAP_AMBIENT_RAISE => {
            let forbidden = cred.securebits & SECBIT_NO_AMBIENT_RAISE != 0;
            if forbidden || !cred.permitted.has(cap) || !cred.inheritable.has(cap) {
                return Err(Errno::EPERM);
            }
            edit(thread, |cred| cred.ambient = cred.ambient.with(cap))
        }
        PR_CAP_AMBIENT_LOWER => edit(thread, |cred| cred.ambient = cred.ambient.without(cap)),
        _ => Err(Errno::EINVAL),
    }
}

/// `PR_MCE_KILL_DEFAULT`.
const MCE_KILL_DEFAULT: u8 = 2;

/// `PR_SET_MDWE` and `PR_GET_MDWE`: no memory is ever both writable and executable.
fn deny_write_execute(thread: &Arc<Thread>, option: i32, args: [u64; 4]) -> SysResult {
    const REFUSE_EXEC_GAIN: u64 = 1;
    const NO_INHERIT: u64 = 2;
    let [wanted, rest @ ..] = args;
    let state = &thread.process().options.write_execute;
    let now = u64::from(state.load(Ordering::Relaxed));
    if rest.iter().any(|&arg| arg != 0) {
        return Err(Errno::EINVAL);
    }
    if option == PR_GET_MDWE {
        return if wanted == 0 { Ok(now as i64) } else { Err(Errno::EINVAL) };
    }
    if wanted & !(REFUSE_EXEC_GAIN | NO_INHERIT) != 0 || wanted == NO_INHERIT {
        return Err(Errno::EINVAL);
    }
    if now != 0 && now != wanted {
        return Err(Errno::EPERM);
    }
    if wanted != 0 {
        state.store(wanted as u8, Ordering::Relaxed);
        // The stub would not look: from now on the sentry has to see every call.
        thread.mm().space().set_local_calls(false);
    }
    Ok(0)
}

/// Speculation is the host's: it is as it is, and cannot be controlled from here.
fn speculation(option: i32, which: u64, control: u64, rest: u64) -> SysResult {
    const KNOWN: std::ops::RangeInclusive<u64> = 0..=2;
    const PR_SPEC_ENABLE: i64 = 2;
    let get = option == libc::PR_GET_SPECULATION_CTRL;
    if rest != 0 || (get && control != 0) {
        return Err(Errno::EINVAL);
    }
    match (KNOWN.contains(&which), get) {
        (false, _) => Err(Errno::ENODEV),
        (true, true) => Ok(PR_SPEC_ENABLE),
        (true, false) => Err(Errno::ENXIO),
    }
}

fn arch_prctl(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const ARCH_SET_GS: i32 = 0x1001;
    const ARCH_SET_FS: i32 = 0x1002;
    const ARCH_GET_FS: i32 = 0x1003;
    const ARCH_GET_GS: i32 = 0x1004;
    const ARCH_GET_CPUID: i32 = 0x1011;
    const ARCH_CET_STATUS: i32 = 0x3001;
    let [code, addr, ..] = args.args;
    let guest = thread.guest();
    let mut registers = guest.registers();
    match code as i32 {
        ARCH_SET_FS | ARCH_SET_GS => {
            if addr >= thread.kernel().platform().layout().high {
                return Err(Errno::EPERM);
            }
            if code as i32 == ARCH_SET_FS {
                registers.fs_base = addr;
            } else {
                registers.gs_base = addr;
            }
            guest.set_registers(&registers);
            Ok(0)
        }
        ARCH_GET_FS => UserPtr::new(addr).copy_out(thread, &registers.fs_base).map(|()| 0),
        ARCH_GET_GS => UserPtr::new(addr).copy_out(thread, &registers.gs_base).map(|()| 0),
        ARCH_GET_CPUID => Ok(1),
        // Shadow stacks: there are none.
        ARCH_CET_STATUS => Err(Errno::EINVAL),
        code => {
            gap!(thread.kernel(), "arch_prctl {code:#x}");
            Err(Errno::EINVAL)
        }
    }
}
