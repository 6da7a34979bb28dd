//! Arguments and results as text.

use std::fmt::Write;
use std::sync::Arc;

use sentry_platform::SyscallArgs;
use zerocopy::IntoBytes;

use crate::syscalls::{Arg, ArgSpec, SysResult};
use crate::task::Thread;

/// Bytes of a string or buffer that are shown.
const SHOWN: usize = 64;
/// Bytes of a path that are shown.
const SHOWN_PATH: usize = 4096;

/// The arguments before the call: all up to the first that only the result tells.
pub(super) fn arguments(thread: &Arc<Thread>, spec: ArgSpec, args: &SyscallArgs) -> String {
    let end = spec.iter().position(|arg| *arg == Arg::Out).unwrap_or(spec.len());
    join(thread, spec, args, 0..end, None)
}

/// The arguments that only the result tells, and those behind them.
pub(super) fn results(thread: &Arc<Thread>, spec: ArgSpec, args: &SyscallArgs, result: &SysResult) -> String {
    let Some(start) = spec.iter().position(|arg| *arg == Arg::Out) else {
        return String::new();
    };
    let comma = if start > 0 { ", " } else { "" };
    format!("{comma}{}", join(thread, spec, args, start..spec.len(), Some(result)))
}

fn join(
    thread: &Arc<Thread>,
    spec: ArgSpec,
    args: &SyscallArgs,
    range: std::ops::Range<usize>,
    result: Option<&SysResult>,
) -> String {
    let mut parts = Vec::new();
    for (kind, value) in spec.iter().zip(args.args).take(range.end).skip(range.start) {
        parts.push(argument(thread, *kind, value, args, result));
    }
    parts.join(", ")
}

fn argument(thread: &Arc<Thread>, kind: Arg, value: u64, args: &SyscallArgs, result: Option<&SysResult>) -> String {
    match kind {
        Arg::Int => short_int(value as i64),
        Arg::Hex => format!("{value:#x}"),
        Arg::Mode => format!("0{:o}", value as u32),
        Arg::Fd => descriptor(value as i32),
        Arg::Ptr if value == 0 => "NULL".to_owned(),
        Arg::Ptr => format!("{value:#x}"),
        Arg::Str => string(thread, value),
        Arg::Buf(len) => {
            let len = args.args.get(usize::from(len)).copied().unwrap_or(0);
            buffer(thread, value, len)
        }
        Arg::Out => match result {
            Some(Ok(len)) => buffer(thread, value, u64::try_from(*len).unwrap_or(0)),
            _ => format!("{value:#x}"),
        },
        Arg::Signal => signal_name(value as i32),
        Arg::OpenFlags => open_flags(value as i32),
        Arg::Prot if value as i32 == libc::PROT_NONE => "PROT_NONE".to_owned(),
        Arg::Prot => bits(value as i32, &PROT),
        Arg::MapFlags => map_flags(value as i32),
        Arg::Time => time(thread, value),
        Arg::Strings => strings(thread, value),
    }
}

/// Most integer arguments are 32 bits wide, and a negative one comes as either width.
fn short_int(value: i64) -> String {
    match u32::try_from(value) {
        Ok(word) if word > i32::MAX as u32 => (word as i32).to_string(),
        _ => value.to_string(),
    }
}

const PROT: [(i32, &str); 5] = [
    (libc::PROT_READ, "PROT_READ"),
    (libc::PROT_WRITE, "PROT_WRITE"),
    (libc::PROT_EXEC, "PROT_EXEC"),
    (libc::PROT_GROWSDOWN, "PROT_GROWSDOWN"),
    (libc::PROT_GROWSUP, "PROT_GROWSUP"),
];

/// Names of bits, and what is left as a number.
fn bits(value: i32, names: &[(i32, &str)]) -> String {
    let mut parts = Vec::new();
    let mut rest = value;
    for (bit, name) in names {
        if rest & bit == *bit {
            rest &= !bit;
            parts.push((*name).to_owned());
        }
    }
    if rest != 0 || parts.is_empty() {
        parts.push(format!("{rest:#x}"));
    }
    parts.join("|")
}

fn map_flags(flags: i32) -> String {
    const NAMES: [(i32, &str); 10] = [
        (libc::MAP_FIXED, "MAP_FIXED"),
        (libc::MAP_FIXED_NOREPLACE, "MAP_FIXED_NOREPLACE"),
        (libc::MAP_ANONYMOUS, "MAP_ANONYMOUS"),
        (libc::MAP_DENYWRITE, "MAP_DENYWRITE"),
        (libc::MAP_NORESERVE, "MAP_NORESERVE"),
        (libc::MAP_STACK, "MAP_STACK"),
        (libc::MAP_POPULATE, "MAP_POPULATE"),
        (libc::MAP_GROWSDOWN, "MAP_GROWSDOWN"),
        (libc::MAP_32BIT, "MAP_32BIT"),
        (libc::MAP_LOCKED, "MAP_LOCKED"),
    ];
    let kind = match flags & libc::MAP_TYPE {
        libc::MAP_SHARED => "MAP_SHARED".to_owned(),
        libc::MAP_PRIVATE => "MAP_PRIVATE".to_owned(),
        libc::MAP_SHARED_VALIDATE => "MAP_SHARED_VALIDATE".to_owned(),
        other => format!("{other:#x}"),
    };
    let rest = flags & !libc::MAP_TYPE;
    if rest == 0 {
        kind
    } else {
        format!("{kind}|{}", bits(rest, &NAMES))
    }
}

fn time(thread: &Arc<Thread>, addr: u64) -> String {
    let mut time = sentry_abi::time::Timespec::default();
    match addr {
        0 => "NULL".to_owned(),
        _ if thread.guest().read(addr, time.as_mut_bytes()).is_err() => format!("{addr:#x}"),
        _ => format!("{{tv_sec={}, tv_nsec={}}}", time.sec, time.nsec),
    }
}

/// The strings of a list, not too many of them.
fn strings(thread: &Arc<Thread>, addr: u64) -> String {
    const MOST: u64 = 32;
    if addr == 0 {
        return "NULL".to_owned();
    }
    let mut parts = Vec::new();
    for index in 0..=MOST {
        let mut word = [0; 8];
        let at = addr.wrapping_add(8 * index);
        if index == MOST || thread.guest().read(at, &mut word).is_err() {
            parts.push("...".to_owned());
            break;
        }
        match u64::from_le_bytes(word) {
            0 => break,
            string => match thread.guest().read_string(string, SHOWN_PATH) {
                Ok(text) if text.len() > SHOWN => parts.push(format!("{}...", quote(&text, SHOWN))),
                Ok(text) => parts.push(quote(&text, SHOWN)),
                Err(_) => parts.push(format!("{string:#x}")),
            },
        }
    }
    format!("[{}]", parts.join(", "))
}

fn descriptor(fd: i32) -> String {
    if fd == libc::AT_FDCWD {
        "AT_FDCWD".to_owned()
    } else {
        fd.to_string()
    }
}

fn string(thread: &Arc<Thread>, addr: u64) -> String {
    if addr == 0 {
        return "NULL".to_owned();
    }
    match thread.guest().read_string(addr, SHOWN_PATH) {
        Ok(text) => quote(&text, SHOWN_PATH),
        Err(_) => format!("{addr:#x}"),
    }
}

fn buffer(thread: &Arc<Thread>, addr: u64, len: u64) -> String {
    if addr == 0 {
        return "NULL".to_owned();
    }
    let shown = usize::try_from(len).unwrap_or(usize::MAX).min(SHOWN);
    let mut bytes = vec![0; shown];
    if shown > 0 && thread.guest().read(addr, &mut bytes).is_err() {
        return format!("{addr:#x}");
    }
    let more = if len > shown as u64 { "..." } else { "" };
    format!("{}{more}", quote(&bytes, shown))
}

/// A C string literal.
pub(super) fn quote(bytes: &[u8], max: usize) -> String {
    let mut out = String::from("\"");
    for &byte in bytes.iter().take(max) {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            b'"' | b'\\' => {
                out.push('\\');
                out.push(byte.into());
            }
            0x20..0x7f => out.push(byte.into()),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

fn open_flags(flags: i32) -> String {
    const NAMES: [(i32, &str); 15] = [
        (libc::O_CREAT, "O_CREAT"),
        (libc::O_EXCL, "O_EXCL"),
        (libc::O_NOCTTY, "O_NOCTTY"),
        (libc::O_TRUNC, "O_TRUNC"),
        (libc::O_APPEND, "O_APPEND"),
        (libc::O_NONBLOCK, "O_NONBLOCK"),
        (libc::O_SYNC, "O_SYNC"),
        (libc::O_DSYNC, "O_DSYNC"),
        (libc::O_DIRECT, "O_DIRECT"),
        (libc::O_TMPFILE, "O_TMPFILE"),
        (libc::O_DIRECTORY, "O_DIRECTORY"),
        (libc::O_NOFOLLOW, "O_NOFOLLOW"),
        (libc::O_NOATIME, "O_NOATIME"),
        (libc::O_CLOEXEC, "O_CLOEXEC"),
        (libc::O_PATH, "O_PATH"),
    ];
    let mut out = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => "O_RDONLY",
        libc::O_WRONLY => "O_WRONLY",
        libc::O_RDWR => "O_RDWR",
        _ => "O_ACCMODE",
    }
    .to_owned();
    let mut rest = flags & !libc::O_ACCMODE;
    for (bits, name) in NAMES {
        if rest & bits == bits {
            rest &= !bits;
            out.push('|');
            out.push_str(name);
        }
    }
    if rest != 0 {
        let _ = write!(out, "|{rest:#x}");
    }
    out
}

/// The name of a signal.
pub fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number)
        .ok()
        .and_then(|n| n.checked_sub(1))
        .and_then(|n| NAMES.get(n))
    {
        Some(name) => format!("SIG{name}"),
        None if (32..=64).contains(&number) => format!("SIGRT_{}", number - 32),
        None => number.to_string(),
    }
}

/// What stands behind the equals sign.
pub(super) fn outcome(nr: u64, result: &SysResult) -> String {
    const ADDRESSES: [i64; 4] = [libc::SYS_mmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_shmat];
    match result {
        Ok(value) if ADDRESSES.contains(&(nr as i64)) => format!("{value:#x}"),
        Ok(value) => value.to_string(),
        Err(errno) if errno.is_restart() => format!("? {} ({})", errno.name(), errno.message()),
        Err(errno) => format!("-1 {} ({})", errno.name(), errno.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sentry_abi::Errno;

    #[test]
    fn looks_like_strace() {
        assert_eq!(
            open_flags(libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC),
            "O_RDWR|O_CREAT|O_CLOEXEC"
        );
        assert_eq!(quote(b"a\"b\\\n\x01\xff", 99), r#""a\"b\\\n\x01\xff""#);
        assert_eq!(outcome(0, &Err(Errno::ENOENT)), "-1 ENOENT (No such file or directory)");
        assert_eq!(outcome(libc::SYS_mmap as u64, &Ok(0x1000)), "0x1000");
        assert_eq!(map_flags(0x22), "MAP_PRIVATE|MAP_ANONYMOUS");
        assert_eq!(bits(3, &PROT), "PROT_READ|PROT_WRITE");
        assert_eq!(bits(0x1001, &PROT), "PROT_READ|0x1000");
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(34), "SIGRT_2");
        assert_eq!(signal_name(0), "0");
        assert_eq!(descriptor(-100), "AT_FDCWD");
        assert_eq!(short_int(0xffff_ffff), "-1");
    }
}
