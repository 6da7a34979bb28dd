//! The system as a whole: uname(2), sysinfo(2) and their kin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_abi::system::{Sysinfo, UtsField, Utsname};
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;

use super::{Row, SysResult, call};
use crate::system;
use crate::task::Thread;
use crate::user::{self, UserPtr};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_uname, uname, Ptr),
    call!(libc::SYS_sethostname, sethostname, Buf(1), Int),
    call!(libc::SYS_setdomainname, setdomainname, Buf(1), Int),
    call!(libc::SYS_sysinfo, sysinfo, Ptr),
    call!(libc::SYS_personality, personality, Hex),
    call!(libc::SYS_syslog, syslog, Int, Ptr, Int),
];

fn field(text: &[u8]) -> UtsField {
    let mut out = [0; 65];
    out.iter_mut().take(64).zip(text).for_each(|(to, from)| *to = *from);
    out
}

fn uname(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const PER_MASK: u64 = 0xff;
    const PER_LINUX32: u64 = 8;
    let names = thread.uts().names();
    let narrow = thread.process().personality() & PER_MASK == PER_LINUX32;
    let answer = Utsname {
        sysname: field(system::SYSNAME.as_bytes()),
        nodename: field(&names.host),
        release: field(system::RELEASE.as_bytes()),
        version: field(system::VERSION.as_bytes()),
        machine: field(if narrow { b"i686" } else { system::MACHINE.as_bytes() }),
        domainname: field(&names.domain),
    };
    UserPtr::new(args.args[0]).copy_out(thread, &answer)?;
    Ok(0)
}

/// The longest host or domain name.
const NAME_MAX: u64 = 64;

fn read_name(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Vec<u8>, Errno> {
    thread.cred().require(Cap::SYS_ADMIN)?;
    let [addr, len, ..] = args.args;
    if len as i32 as i64 as u64 > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let mut name = vec![0; len as u32 as usize];
    user::read_bytes(thread, addr, &mut name)?;
    // What follows a NUL is not seen by anyone.
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    name.truncate(end);
    Ok(name)
}

fn sethostname(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let name = read_name(thread, args)?;
    thread.uts().change(|names| names.host = name);
    Ok(0)
}

fn setdomainname(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let name = read_name(thread, args)?;
    thread.uts().change(|names| names.domain = name);
    Ok(0)
}

fn sysinfo(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let totals = thread.kernel().memory_totals();
    let procs = thread.kernel().tasks.read().threads().count();
    let answer = Sysinfo {
        uptime: totals.uptime,
        loads: totals.loads,
        total_ram: totals.total_ram,
        free_ram: totals.free_ram,
        shared_ram: totals.shared_ram,
        buffer_ram: totals.buffer_ram,
        total_swap: totals.total_swap,
        free_swap: totals.free_swap,
        procs: u16::try_from(procs).unwrap_or(u16::MAX),
        mem_unit: 1,
        ..Sysinfo::default()
    };
    UserPtr::new(args.args[0]).copy_out(thread, &answer)?;
    Ok(0)
}

fn personality(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let wanted = args.args[0] as u32;
    let old = thread.process().personality();
    if wanted != u32::MAX {
        thread.process().personality.store(wanted.into(), Ordering::Relaxed);
    }
    Ok(old as i64)
}

/// The kernel's log is empty; it is not the host's.
fn syslog(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [action, addr, len, ..] = args.args;
    thread.cred().require(Cap::SYSLOG)?;
    match action as i32 {
        // Close, open, clear, console off, console on.
        0 | 1 | 5..=7 => Ok(0),
        // Read, read all, read and clear.
        2..=4 if addr == 0 || (len as i32) < 0 => Err(Errno::EINVAL),
        2..=4 => Ok(0),
        8 if (1..=8).contains(&(len as i32)) => Ok(0),
        // What is unread; the size of the buffer.
        9 => Ok(0),
        10 => Ok(1 << 17),
        _ => Err(Errno::EINVAL),
    }
}
