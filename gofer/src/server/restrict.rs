//! What the gofer takes from itself before it reads its first request.

use std::io;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use sentry_host::caps;
use sentry_host::filter::{Arg, Filter, FilterError, HostCall, Outside, Rule};
use sentry_host::inotify;
use sentry_host::landlock::{self, Exception, READ_DIR, READ_FILE};
use sentry_host::process::{self, Disposition};

use super::export::OpenExport;
use super::nodes::MAX_HELD;

/// Why a restriction could not be applied.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RestrictError {
    #[error("{what}: {error}")]
    Host { what: &'static str, error: io::Error },
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// What has been applied, for `sentry hardening`.
///
/// Always: no new privileges, not dumpable, death with the parent, few descriptors ([`MAX_FILES`]), no core file,
/// no child, the host-call filter ([`host_calls`]). Where the kernel has it: Landlock, granting the exports only.
///
/// As root, capabilities depend on the exports. What everybody may read needs none. Other read-only exports keep
/// CAP_DAC_READ_SEARCH, so that root's guest reads what root would read. Writable ones keep CAP_DAC_OVERRIDE,
/// CAP_FOWNER and CAP_CHOWN too. They hold for the whole process: in exports of what everybody may read, the
/// gofer's own checks of the others' bits count, not the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// The version of Landlock in force; 0 for none.
    pub landlock: u32,
    /// The capabilities that are left, by bit.
    pub capabilities: u64,
    /// Mount, network, IPC, UTS and cgroup namespaces of its own.
    pub namespaces: bool,
    /// A user namespace of its own too.
    pub user_namespace: bool,
    /// The root directory is empty and cannot be written.
    pub empty_root: bool,
    /// Nothing is above the exports (and above its own descriptors in /proc).
    pub detached: bool,
}

/// Enough descriptors for one request at a time. The exports come on top, and where files can lose their names, those
/// that are held without one.
pub const MAX_FILES: u64 = 128;

/// What Landlock calls changes (`LANDLOCK_ACCESS_FS_*`): WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG,
/// MAKE_SYM, REFER, TRUNCATE.
const CHANGE: u64 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14;
/// Of [`CHANGE`], what a rule for a file can grant.
const CHANGE_FILE: u64 = 1 << 1 | 1 << 14;

pub(super) const fn call(number: i64, name: &'static str, rule: Rule, why: &'static str) -> HostCall {
    HostCall {
        number,
        name,
        rule,
        why,
    }
}

const PROT_EXEC: u32 = libc::PROT_EXEC as u32;
const OPENS_FOR_WRITING: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Calls for every gofer.
const READING: &[HostCall] = &[
    call(libc::SYS_recvmsg, "recvmsg", Rule::Always, "requests"),
    call(libc::SYS_sendmsg, "sendmsg", Rule::Always, "replies"),
    call(
        libc::SYS_openat2,
        "openat2",
        Rule::Always,
        "opening beneath a root; Landlock holds it to the exports",
    ),
    call(libc::SYS_statx, "statx", Rule::Always, "attributes"),
    call(libc::SYS_getdents64, "getdents64", Rule::Always, "listing"),
    call(libc::SYS_lseek, "lseek", Rule::Always, "going on with a listing"),
    call(
        libc::SYS_readlinkat,
        "readlinkat",
        Rule::Always,
        "targets of symbolic links",
    ),
    call(
        libc::SYS_fstatfs,
        "fstatfs",
        Rule::Always,
        "file system kind and totals",
    ),
    call(libc::SYS_fgetxattr, "fgetxattr", Rule::Always, "user attributes"),
    call(libc::SYS_flistxattr, "flistxattr", Rule::Always, "user attributes"),
    call(
        libc::SYS_inotify_init1,
        "inotify_init1",
        Rule::When(&[&[Arg::Is(0, inotify::FLAGS as u32)]]),
        "changes by the host in shared directories",
    ),
    call(
        libc::SYS_inotify_add_watch,
        "inotify_add_watch",
        Rule::When(&[
            &[Arg::Is(2, inotify::CHANGES)],
            &[Arg::Is(2, inotify::REPORTS)],
            &[Arg::Is(2, inotify::REPORTS_OF_NAMES)],
        ]),
        "the same",
    ),
    call(libc::SYS_inotify_rm_watch, "inotify_rm_watch", Rule::Always, "the same"),
    call(libc::SYS_close, "close", Rule::Always, "descriptors"),
    call(
        libc::SYS_fcntl,
        "fcntl",
        Rule::When(&[
            &[Arg::Is(1, libc::F_DUPFD_CLOEXEC as u32)],
            &[Arg::Is(1, libc::F_GETFD as u32)],
            &[Arg::Is(1, libc::F_GETFL as u32)],
            &[Arg::Is(1, libc::F_GET_SEALS as u32)],
        ]),
        "copying a root's descriptor; looking at one that was sent",
    ),
];

/// And those that any process here needs.
pub(super) const CALLS_OF_MEMORY_AND_END: &[HostCall] = &[
    call(libc::SYS_brk, "brk", Rule::Always, "memory"),
    call(
        libc::SYS_mmap,
        "mmap",
        Rule::When(&[&[Arg::Without(2, PROT_EXEC), Arg::With(3, libc::MAP_ANONYMOUS as u32)]]),
        "memory: anonymous, not executable",
    ),
    call(
        libc::SYS_mprotect,
        "mprotect",
        Rule::When(&[&[Arg::Without(2, PROT_EXEC)]]),
        "memory: not executable",
    ),
    call(libc::SYS_munmap, "munmap", Rule::Always, "memory"),
    call(libc::SYS_mremap, "mremap", Rule::Always, "memory"),
    call(libc::SYS_madvise, "madvise", Rule::Always, "memory"),
    call(libc::SYS_futex, "futex", Rule::Always, "locks of the library"),
    call(
        libc::SYS_sched_yield,
        "sched_yield",
        Rule::Always,
        "locks of the library",
    ),
    call(libc::SYS_getrandom, "getrandom", Rule::Always, "seeds of hash tables"),
    call(libc::SYS_clock_gettime, "clock_gettime", Rule::Always, "time"),
    call(libc::SYS_rt_sigprocmask, "rt_sigprocmask", Rule::Always, "ending"),
    call(libc::SYS_sigaltstack, "sigaltstack", Rule::Always, "ending"),
    call(libc::SYS_rt_sigreturn, "rt_sigreturn", Rule::Always, "signals"),
    call(libc::SYS_restart_syscall, "restart_syscall", Rule::Always, "signals"),
    call(
        libc::SYS_write,
        "write",
        Rule::When(&[&[Arg::Is(0, 2)]]),
        "the last words, to standard error",
    ),
    call(libc::SYS_exit, "exit", Rule::Always, "ending"),
    call(libc::SYS_exit_group, "exit_group", Rule::Always, "ending"),
];

/// openat for a gofer that changes nothing.
const OPENAT_READING: HostCall = call(
    libc::SYS_openat,
    "openat",
    Rule::When(&[&[Arg::Without(2, OPENS_FOR_WRITING)]]),
    "listing, and opening where there is no openat2: for reading only",
);

/// Further calls for a gofer with a writable export.
const WRITING: &[HostCall] = &[
    call(
        libc::SYS_openat,
        "openat",
        Rule::Always,
        "listing, and opening where there is no openat2",
    ),
    call(libc::SYS_mkdirat, "mkdirat", Rule::Always, "changes"),
    call(libc::SYS_unlinkat, "unlinkat", Rule::Always, "changes"),
    call(libc::SYS_symlinkat, "symlinkat", Rule::Always, "changes"),
    call(
        libc::SYS_linkat,
        "linkat",
        Rule::When(&[&[Arg::Is(4, 0)]]),
        "changes: follows no link",
    ),
    call(
        libc::SYS_renameat,
        "renameat",
        Rule::Always,
        "changes: renameat2 without flags, in the C library",
    ),
    call(libc::SYS_renameat2, "renameat2", Rule::Always, "changes"),
    call(libc::SYS_ftruncate, "ftruncate", Rule::Always, "changes"),
    call(
        libc::SYS_truncate,
        "truncate",
        Rule::Always,
        "changes, by its own /proc/self/fd; Landlock holds it to the exports",
    ),
    call(libc::SYS_fchownat, "fchownat", Rule::Always, "changes"),
    call(libc::SYS_utimensat, "utimensat", Rule::Always, "changes"),
    // No set-user-id, no set-group-id.
    call(
        libc::SYS_fchmodat2,
        "fchmodat2",
        Rule::When(&[&[Arg::Without(2, 0o6000)]]),
        "changes: no set-id bits",
    ),
    call(
        libc::SYS_fchmod,
        "fchmod",
        Rule::When(&[&[Arg::Without(1, 0o6000)]]),
        "changes: no set-id bits",
    ),
];

/// The host calls of a gofer, with (`writable`) or without a writable export. All others end it.
pub fn host_calls(writable: bool) -> Vec<HostCall> {
    let rest = if writable {
        WRITING
    } else {
        std::slice::from_ref(&OPENAT_READING)
    };
    READING
        .iter()
        .chain(CALLS_OF_MEMORY_AND_END)
        .chain(rest)
        .copied()
        .collect()
}

pub(super) fn nix<T>(what: &'static str, result: nix::Result<T>) -> Result<T, RestrictError> {
    result.map_err(|errno| RestrictError::Host {
        what,
        error: errno.into(),
    })
}

/// The terminal, or timeout(1), sends these to the whole group; the gofer goes when its socket or its parent does.
pub(super) fn ignore_signals() -> Result<(), RestrictError> {
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
        Signal::SIGPIPE,
        // EFBIG says it.
        Signal::SIGXFSZ,
    ] {
        nix("signals", process::set_disposition(signal, Disposition::Ignore))?;
    }
    Ok(())
}

/// `apart`: what has been done already.
pub(super) fn restrict_self(exports: &[OpenExport], apart: Restrictions) -> Result<Restrictions, RestrictError> {
    let writable = exports.iter().any(|export| export.writable);
    ignore_signals()?;
    // Modes come from the guest, whose umask the sentry has applied.
    umask(Mode::empty());
    let files = MAX_FILES + exports.len() as u64 * 2 + if writable { MAX_HELD as u64 } else { 0 };
    nix(
        "RLIMIT_NOFILE",
        sentry_host::process::limit(Resource::RLIMIT_NOFILE, files),
    )?;
    nix("RLIMIT_CORE", setrlimit(Resource::RLIMIT_CORE, 0, 0))?;
    nix("RLIMIT_NPROC", setrlimit(Resource::RLIMIT_NPROC, 0, 0))?;
    nix("PR_SET_PDEATHSIG", prctl::set_pdeathsig(Signal::SIGKILL))?;
    nix("PR_SET_DUMPABLE", prctl::set_dumpable(false))?;
    // In a user namespace of its own they would only be rights over the user's own files, which Linux does not give.
    let kept = if apart.user_namespace { 0 } else { capabilities(exports) };
    nix("dropping capabilities", caps::drop_all_but(kept))?;
    let capabilities = nix("reading capabilities", caps::get())?.permitted;
    nix("PR_SET_NO_NEW_PRIVS", prctl::set_no_new_privs())?;
    let landlock = nix("Landlock", confine(exports, writable))?;
    Filter::compile(&host_calls(writable), Outside::Kill)?.install()?;
    Ok(Restrictions {
        landlock,
        capabilities,
        ..apart
    })
}

fn capabilities(exports: &[OpenExport]) -> u64 {
    exports.iter().fold(0, |kept, export| {
        kept | match (export.world_readable_only, export.writable) {
            (true, _) => 0,
            (false, false) => caps::DAC_READ_SEARCH,
            (false, true) => caps::DAC_READ_SEARCH | caps::DAC_OVERRIDE | caps::FOWNER | caps::CHOWN,
        }
    })
}

/// Applies Landlock where the kernel has it. Version 1 refuses every rename between directories: there, a gofer
/// with a writable export does without.
fn confine(exports: &[OpenExport], writable: bool) -> nix::Result<u32> {
    let version = landlock::abi();
    if version == 0 || (version == 1 && writable) {
        return Ok(0);
    }
    let exceptions: Vec<Exception<'_>> = exports
        .iter()
        .map(|export| {
            let access = match (export.single.is_some(), export.writable) {
                (true, false) => READ_FILE,
                (true, true) => READ_FILE | CHANGE_FILE,
                (false, false) => READ_FILE | READ_DIR,
                (false, true) => READ_FILE | READ_DIR | CHANGE,
            };
            Exception {
                beneath: export.place(),
                access,
            }
        })
        .collect();
    landlock::restrict(&exceptions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_compile() {
        for writable in [false, true] {
            Filter::compile(&host_calls(writable), Outside::Kill).expect("a table that compiles");
        }
    }
}
