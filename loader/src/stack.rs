//! The first stack: strings, auxiliary vector, pointers and count (System V ABI, x86-64, section 3.4.1).

use sentry_abi::{Errno, PAGE_SIZE};

use crate::auxv::*;
use crate::elf::PHDR_SIZE;
use crate::plan::Plan;

/// The longest single argument or environment string, with its NUL (the kernel's `MAX_ARG_STRLEN`).
pub const MAX_ARG_STRLEN: usize = 32 * PAGE_SIZE as usize;

/// What the new program is told.
#[derive(Clone, Debug)]
pub struct StackInput<'a> {
    /// The arguments; an empty list becomes one empty string, as Linux does since 5.18.
    pub argv: &'a [Vec<u8>],
    /// The environment.
    pub envp: &'a [Vec<u8>],
    /// The path that was executed (`AT_EXECFN`).
    pub execfn: &'a [u8],
    /// Sixteen bytes for `AT_RANDOM`.
    pub random: [u8; 16],
    /// Real and effective ids.
    pub uid: u32,
    /// See `uid`.
    pub euid: u32,
    /// See `uid`.
    pub gid: u32,
    /// See `uid`.
    pub egid: u32,
    /// `AT_SECURE`: ids or capabilities were raised.
    pub secure: bool,
    /// `AT_HWCAP`: the processor's cpuid(1).edx.
    pub hwcap: u64,
    /// `AT_HWCAP2`; see [`HWCAP2_FSGSBASE`].
    pub hwcap2: u64,
    /// `AT_MINSIGSTKSZ`: the size of the largest signal frame.
    pub min_sigstack: u64,
    /// `RLIMIT_STACK` (soft): a quarter of it may be arguments.
    pub stack_limit: u64,
    /// False leaves `AT_SYSINFO_EHDR` out.
    pub vdso: bool,
}

/// The first stack's contents.
#[derive(Clone, Debug)]
pub struct StackImage {
    /// The stack pointer at the first instruction, and the address of `bytes`.
    pub sp: u64,
    /// What to write there; ends at the top of the used stack.
    pub bytes: Vec<u8>,
    /// Where the argument strings lie (`arg_start`, `arg_end` of /proc/PID/stat).
    pub args: (u64, u64),
    /// Where the environment strings lie.
    pub env: (u64, u64),
    /// The auxiliary vector as /proc/PID/auxv shows it.
    pub auxv: Vec<u8>,
}

/// Checks the size of arguments and environment: `E2BIG` as execve(2) gives it.
pub fn check_size(argv: &[Vec<u8>], envp: &[Vec<u8>], execfn: &[u8], stack_limit: u64) -> Result<(), Errno> {
    let limit = (stack_limit / 4).clamp(128 << 10, 6 << 20);
    let mut total = execfn.len() as u64 + 1;
    for string in argv.iter().chain(envp) {
        if string.len() >= MAX_ARG_STRLEN {
            return Err(Errno::E2BIG);
        }
        total = total.saturating_add(string.len() as u64 + 1 + 8);
    }
    if total > limit { Err(Errno::E2BIG) } else { Ok(()) }
}

/// Builds the contents of the stack for a plan; `E2BIG` if arguments and environment are too long.
pub fn build(plan: &Plan, input: &StackInput<'_>) -> Result<StackImage, Errno> {
    check_size(input.argv, input.envp, input.execfn, input.stack_limit)?;
    let empty = [Vec::new()];
    let argv = if input.argv.is_empty() { &empty[..] } else { input.argv };

    // Strings, from the top of the stack down: execfn, environment, arguments; then platform and random bytes.
    let strings_len: usize = argv.iter().chain(input.envp).map(|s| s.len() + 1).sum();
    let top = plan.stack.end.checked_sub(plan.stack_offset).ok_or(Errno::ENOMEM)? & !15;
    let execfn_at = sub(top, 8 + input.execfn.len() as u64 + 1)?;
    let strings_at = sub(execfn_at, strings_len as u64)?;
    const PLATFORM: &[u8] = b"x86_64\0";
    let platform_at = sub(strings_at, PLATFORM.len() as u64)?;
    let random_at = sub(platform_at & !15, 16)?;

    let mut aux = vec![
        (AT_MINSIGSTKSZ, input.min_sigstack),
        (AT_HWCAP, input.hwcap),
        (AT_PAGESZ, PAGE_SIZE),
        (AT_CLKTCK, 100),
        (AT_PHDR, plan.phdr),
        (AT_PHENT, PHDR_SIZE as u64),
        (AT_PHNUM, plan.phnum),
        (AT_BASE, plan.base),
        (AT_FLAGS, 0),
        (AT_ENTRY, plan.entry),
        (AT_UID, input.uid.into()),
        (AT_EUID, input.euid.into()),
        (AT_GID, input.gid.into()),
        (AT_EGID, input.egid.into()),
        (AT_SECURE, input.secure.into()),
        (AT_RANDOM, random_at),
        (AT_HWCAP2, input.hwcap2),
        (AT_EXECFN, execfn_at),
        (AT_PLATFORM, platform_at),
        (AT_NULL, 0),
    ];
    if input.vdso {
        aux.insert(0, (AT_SYSINFO_EHDR, plan.vdso));
    }

    let words = 1 + argv.len() + 1 + input.envp.len() + 1 + 2 * aux.len();
    let sp = sub(random_at, words as u64 * 8)? & !15;
    if sp < plan.stack.start.saturating_add(2 * PAGE_SIZE) {
        return Err(Errno::E2BIG);
    }

    let mut bytes = Vec::with_capacity((top - sp) as usize);
    let mut push = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
    push(argv.len() as u64);
    let mut at = strings_at;
    let args_end = at + argv.iter().map(|s| s.len() as u64 + 1).sum::<u64>();
    for list in [argv, input.envp] {
        for string in list {
            push(at);
            at += string.len() as u64 + 1;
        }
        push(0);
    }
    let mut auxv = Vec::with_capacity(aux.len() * 16);
    for (key, value) in aux {
        push(key);
        push(value);
        auxv.extend_from_slice(&key.to_le_bytes());
        auxv.extend_from_slice(&value.to_le_bytes());
    }
    bytes.resize((random_at - sp) as usize, 0);
    bytes.extend_from_slice(&input.random);
    bytes.resize((platform_at - sp) as usize, 0);
    bytes.extend_from_slice(PLATFORM);
    for string in argv.iter().chain(input.envp) {
        bytes.extend_from_slice(string);
        bytes.push(0);
    }
    bytes.extend_from_slice(input.execfn);
    bytes.resize((top - sp) as usize, 0);
    Ok(StackImage {
        sp,
        bytes,
        args: (strings_at, args_end),
        env: (args_end, execfn_at),
        auxv,
    })
}

fn sub(from: u64, len: u64) -> Result<u64, Errno> {
    from.checked_sub(len).ok_or(Errno::E2BIG)
}
