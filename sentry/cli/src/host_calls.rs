//! The host calls that the sentry may make: one table for the filter, `sentry hardening` and the documents.
//!
//! No call here names a path, makes a socket that leads anywhere, or starts a program. Descriptors come from the
//! supervisor, the gofer (opened with the guest's rights) and `memfd_create`.

use sentry_host::filter::Arg::{Is, Is64, With, Without};
use sentry_host::filter::{HostCall, Rule};

const PROT_EXEC: u32 = libc::PROT_EXEC as u32;
const AT_EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
/// Sockets that send to their peer only.
const PACKETS: u32 = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u32;
/// What pthread_create(3) passes, and nothing else.
const THREAD: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u32;

const fn call(number: i64, name: &'static str, rule: Rule, why: &'static str) -> HostCall {
    HostCall {
        number,
        name,
        rule,
        why,
    }
}

/// With either platform.
const TABLE: &[HostCall] = &[
    call(
        libc::SYS_read,
        "read",
        Rule::Always,
        "pipes, terminals, eventfds and files handed over",
    ),
    call(libc::SYS_write, "write", Rule::Always, "the same"),
    call(libc::SYS_writev, "writev", Rule::Always, "the same"),
    call(libc::SYS_pread64, "pread64", Rule::Always, "files handed over"),
    call(libc::SYS_pwrite64, "pwrite64", Rule::Always, "the same"),
    call(libc::SYS_preadv2, "preadv2", Rule::Always, "the same, without waiting"),
    call(libc::SYS_pwritev2, "pwritev2", Rule::Always, "the same"),
    call(
        libc::SYS_lseek,
        "lseek",
        Rule::Always,
        "holes in files (SEEK_DATA, SEEK_HOLE)",
    ),
    call(libc::SYS_close, "close", Rule::Always, "descriptors of its own"),
    call(
        libc::SYS_close_range,
        "close_range",
        Rule::Always,
        "the same; a table of descriptors of its own for a thread that keeps sockets to stubs",
    ),
    call(
        libc::SYS_fstat,
        "fstat",
        Rule::Always,
        "attributes of files handed over",
    ),
    call(
        libc::SYS_newfstatat,
        "newfstatat",
        Rule::When(&[&[With(3, AT_EMPTY_PATH)]]),
        "the same, by descriptor",
    ),
    call(
        libc::SYS_statx,
        "statx",
        Rule::When(&[&[With(2, AT_EMPTY_PATH)]]),
        "the same, by descriptor",
    ),
    call(
        libc::SYS_ftruncate,
        "ftruncate",
        Rule::Always,
        "sizes of its memory files and of files handed over for writing",
    ),
    call(
        libc::SYS_fallocate,
        "fallocate",
        Rule::Always,
        "space and holes in them",
    ),
    call(libc::SYS_fsync, "fsync", Rule::Always, "files handed over for writing"),
    call(libc::SYS_fdatasync, "fdatasync", Rule::Always, "the same"),
    call(
        libc::SYS_fcntl,
        "fcntl",
        Rule::When(&[
            &[Is(1, libc::F_GETFD as u32)],
            &[Is(1, libc::F_SETFD as u32)],
            &[Is(1, libc::F_GETFL as u32)],
            &[Is(1, libc::F_SETFL as u32)],
            &[Is(1, libc::F_DUPFD_CLOEXEC as u32)],
            &[Is(1, libc::F_ADD_SEALS as u32)],
            &[Is(1, libc::F_GET_SEALS as u32)],
            &[Is(1, libc::F_OFD_GETLK as u32)],
            &[Is(1, libc::F_OFD_SETLK as u32)],
            &[Is(1, libc::F_GETPIPE_SZ as u32)],
        ]),
        "flags, seals and locks of its descriptors; no owner, no signal",
    ),
    call(
        libc::SYS_flock,
        "flock",
        Rule::When(&[
            &[Is(1, (libc::LOCK_SH | libc::LOCK_NB) as u32)],
            &[Is(1, (libc::LOCK_EX | libc::LOCK_NB) as u32)],
            &[Is(1, libc::LOCK_UN as u32)],
        ]),
        "locks of files that the host shares, without waiting",
    ),
    call(
        libc::SYS_ioctl,
        "ioctl",
        Rule::When(&[&[Is(1, libc::FIONREAD as u32)]]),
        "how much a pipe or file handed over has to read",
    ),
    call(libc::SYS_poll, "poll", Rule::Always, "waiting"),
    call(libc::SYS_ppoll, "ppoll", Rule::Always, "waiting"),
    call(libc::SYS_epoll_create1, "epoll_create1", Rule::Always, "waiting"),
    call(libc::SYS_epoll_ctl, "epoll_ctl", Rule::Always, "waiting"),
    call(libc::SYS_epoll_wait, "epoll_wait", Rule::Always, "waiting"),
    call(libc::SYS_epoll_pwait2, "epoll_pwait2", Rule::Always, "waiting"),
    call(
        libc::SYS_eventfd2,
        "eventfd2",
        Rule::Always,
        "waking its own threads; doorbells",
    ),
    call(
        libc::SYS_futex,
        "futex",
        Rule::Always,
        "its own locks, and stubs that wait in a mailbox",
    ),
    call(libc::SYS_sched_yield, "sched_yield", Rule::Always, "its own threads"),
    call(
        libc::SYS_sched_getaffinity,
        "sched_getaffinity",
        Rule::Always,
        "how many processors there are",
    ),
    call(
        libc::SYS_sched_setaffinity,
        "sched_setaffinity",
        Rule::Always,
        "a worker goes where its guest runs",
    ),
    call(libc::SYS_getcpu, "getcpu", Rule::Always, "where a worker runs"),
    call(
        libc::SYS_clock_nanosleep,
        "clock_nanosleep",
        Rule::Always,
        "its own threads",
    ),
    call(
        libc::SYS_clock_gettime,
        "clock_gettime",
        Rule::Always,
        "clocks, where the vDSO cannot tell",
    ),
    call(libc::SYS_clock_getres, "clock_getres", Rule::Always, "clocks"),
    call(
        libc::SYS_getrandom,
        "getrandom",
        Rule::Always,
        "random bytes for guests, and its own hash keys",
    ),
    call(libc::SYS_getpid, "getpid", Rule::Always, "itself"),
    call(libc::SYS_gettid, "gettid", Rule::Always, "itself"),
    call(libc::SYS_sysinfo, "sysinfo", Rule::Always, "memory and load for guests"),
    call(
        libc::SYS_prlimit64,
        "prlimit64",
        Rule::When(&[&[Is64(2, 0)]]),
        "reading limits; it sets none",
    ),
    call(
        libc::SYS_mmap,
        "mmap",
        Rule::When(&[&[Without(2, PROT_EXEC)]]),
        "memory and mailboxes; nothing executable",
    ),
    call(
        libc::SYS_mprotect,
        "mprotect",
        Rule::When(&[&[Without(2, PROT_EXEC)]]),
        "thread stacks; nothing executable",
    ),
    call(libc::SYS_munmap, "munmap", Rule::Always, "the same"),
    call(libc::SYS_mremap, "mremap", Rule::Always, "the allocator"),
    call(libc::SYS_madvise, "madvise", Rule::Always, "the allocator"),
    call(libc::SYS_brk, "brk", Rule::Always, "the allocator"),
    call(
        libc::SYS_memfd_create,
        "memfd_create",
        Rule::Always,
        "mailboxes and the files of tmpfs",
    ),
    call(
        libc::SYS_socketpair,
        "socketpair",
        Rule::When(&[&[Is(0, libc::AF_UNIX as u32), Is(1, PACKETS)]]),
        "the line to a stub; leads nowhere else (a datagram socket could send to any name)",
    ),
    call(
        libc::SYS_sendmsg,
        "sendmsg",
        Rule::Always,
        "descriptors for stubs, requests to the gofer",
    ),
    call(
        libc::SYS_recvmsg,
        "recvmsg",
        Rule::Always,
        "descriptors from the gofer, messages of the supervisor",
    ),
    call(
        libc::SYS_sendto,
        "sendto",
        Rule::When(&[&[Is64(4, 0)]]),
        "the same, without an address",
    ),
    call(libc::SYS_shutdown, "shutdown", Rule::Always, "its own sockets"),
    call(
        libc::SYS_kill,
        "kill",
        Rule::Always,
        "ending and kicking stubs; the PID namespace holds nobody else",
    ),
    call(libc::SYS_tgkill, "tgkill", Rule::Always, "the same"),
    call(
        libc::SYS_getpgid,
        "getpgid",
        Rule::Always,
        "whether a stub has its process group already",
    ),
    call(
        libc::SYS_setpgid,
        "setpgid",
        Rule::Always,
        "a process group for each guest process",
    ),
    call(libc::SYS_wait4, "wait4", Rule::Always, "stubs that have ended"),
    call(libc::SYS_waitid, "waitid", Rule::Always, "the same"),
    call(
        libc::SYS_process_vm_readv,
        "process_vm_readv",
        Rule::Always,
        "guest memory",
    ),
    call(
        libc::SYS_process_vm_writev,
        "process_vm_writev",
        Rule::Always,
        "guest memory",
    ),
    call(
        libc::SYS_clone,
        "clone",
        Rule::When(&[&[Is(0, THREAD)]]),
        "its own threads; no process, no namespace",
    ),
    call(libc::SYS_rt_sigaction, "rt_sigaction", Rule::Always, "its own signals"),
    call(
        libc::SYS_rt_sigprocmask,
        "rt_sigprocmask",
        Rule::Always,
        "its own signals",
    ),
    call(libc::SYS_rt_sigreturn, "rt_sigreturn", Rule::Always, "its own signals"),
    call(libc::SYS_sigaltstack, "sigaltstack", Rule::Always, "its own threads"),
    call(
        libc::SYS_set_robust_list,
        "set_robust_list",
        Rule::Always,
        "its own threads",
    ),
    call(libc::SYS_rseq, "rseq", Rule::Always, "its own threads"),
    call(libc::SYS_membarrier, "membarrier", Rule::Always, "its own threads"),
    call(
        libc::SYS_prctl,
        "prctl",
        Rule::When(&[&[Is(0, libc::PR_SET_NAME as u32)], &[Is(0, libc::PR_SET_VMA as u32)]]),
        "names of threads and of memory",
    ),
    call(
        libc::SYS_restart_syscall,
        "restart_syscall",
        Rule::Always,
        "a wait that was interrupted",
    ),
    call(libc::SYS_exit, "exit", Rule::Always, "its own threads"),
    call(libc::SYS_exit_group, "exit_group", Rule::Always, "the end"),
    call(
        libc::SYS_open,
        "open",
        Rule::Refuse(libc::ENOSYS),
        "libraries look for settings; there are none",
    ),
    call(libc::SYS_openat, "openat", Rule::Refuse(libc::ENOSYS), "the same"),
    call(libc::SYS_readlink, "readlink", Rule::Refuse(libc::ENOSYS), "the same"),
    call(libc::SYS_access, "access", Rule::Refuse(libc::ENOSYS), "the same"),
    call(
        libc::SYS_clone3,
        "clone3",
        Rule::Refuse(libc::ENOSYS),
        "its flags cannot be checked; libraries fall back to clone",
    ),
];

/// With the ptrace platform only. A process that is traced is a stub: the sentry may trace its own descendants
/// (same user, same namespace), and nobody else is in its PID namespace.
const PTRACE: &[HostCall] = &[call(libc::SYS_ptrace, "ptrace", Rule::Always, "running stubs")];

const MAKES_NONE: Rule = Rule::When(&[&[Without(2, (libc::O_CREAT | libc::O_TRUNC) as u32)]]);
const NO_EXEC: Rule = Rule::When(&[&[Without(2, PROT_EXEC)]]);
const FLAGS: Rule = Rule::When(&[
    &[Is(1, libc::F_GETFD as u32)],
    &[Is(1, libc::F_GETFL as u32)],
    &[Is(1, libc::F_SETFL as u32)],
]);
const TERMINAL: Rule = Rule::When(&[
    &[Is(1, libc::TCGETS as u32)],
    &[Is(1, libc::TCSETS as u32)],
    &[Is(1, libc::TIOCGPGRP as u32)],
    &[Is(1, libc::TIOCGWINSZ as u32)],
]);

/// What the supervisor asks of the host while a sandbox runs, and so do the guard of the fallback and the keeper of the
/// cgroup. They are outside and have no filter: before, they start programs and open what the caller named. A test traces
/// them.
pub const SUPERVISOR: &[HostCall] = &[
    call(
        libc::SYS_read,
        "read",
        Rule::Always,
        "what the sentry tells (changes), signals, the caller's terminal, /proc",
    ),
    call(
        libc::SYS_write,
        "write",
        Rule::Always,
        "the event log, lists of changes, the caller's terminal, standard error",
    ),
    call(libc::SYS_close, "close", Rule::Always, "its own descriptors"),
    call(
        libc::SYS_dup2,
        "dup2",
        Rule::Always,
        "nothing in the place of standard input and output, which are the sandbox's",
    ),
    call(libc::SYS_poll, "poll", Rule::Always, "waiting"),
    call(libc::SYS_recvfrom, "recvfrom", Rule::Always, "messages of the sentry"),
    call(
        libc::SYS_sendto,
        "sendto",
        Rule::Always,
        "signals and limits, to the sentry",
    ),
    call(
        libc::SYS_openat,
        "openat",
        MAKES_NONE,
        "/proc, for the memory that is in use, and for children that are left; files of its cgroup",
    ),
    call(libc::SYS_getdents64, "getdents64", Rule::Always, "the same"),
    call(libc::SYS_newfstatat, "newfstatat", Rule::Always, "the same"),
    call(libc::SYS_statx, "statx", Rule::Always, "the same"),
    call(libc::SYS_lseek, "lseek", Rule::Always, "the same"),
    call(libc::SYS_rmdir, "rmdir", Rule::Always, "its cgroup"),
    call(
        libc::SYS_flock,
        "flock",
        Rule::When(&[&[Is(1, libc::LOCK_UN as u32)]]),
        "the lock that says whose that is",
    ),
    call(
        libc::SYS_clock_nanosleep,
        "clock_nanosleep",
        Rule::Always,
        "until nobody is in it",
    ),
    call(libc::SYS_wait4, "wait4", Rule::Always, "its children's ends"),
    call(
        libc::SYS_kill,
        "kill",
        Rule::Always,
        "ending and stopping its children, and itself as a job",
    ),
    call(libc::SYS_tgkill, "tgkill", Rule::Always, "stopping itself as a job"),
    call(libc::SYS_getpid, "getpid", Rule::Always, "the same"),
    call(libc::SYS_gettid, "gettid", Rule::Always, "the same"),
    call(
        libc::SYS_getppid,
        "getppid",
        Rule::Always,
        "whether the supervisor lives, which the guard tells of a stopped sentry",
    ),
    call(
        libc::SYS_getpgrp,
        "getpgrp",
        Rule::Always,
        "whether it is in the foreground",
    ),
    call(libc::SYS_rt_sigaction, "rt_sigaction", Rule::Always, "the same"),
    call(libc::SYS_rt_sigprocmask, "rt_sigprocmask", Rule::Always, "the same"),
    call(libc::SYS_rt_sigreturn, "rt_sigreturn", Rule::Always, "the same"),
    call(
        libc::SYS_restart_syscall,
        "restart_syscall",
        Rule::Always,
        "waits that were interrupted",
    ),
    call(
        libc::SYS_fcntl,
        "fcntl",
        FLAGS,
        "flags of the caller's descriptors, which it leaves as it found them",
    ),
    call(
        libc::SYS_ioctl,
        "ioctl",
        TERMINAL,
        "modes, size and foreground of the caller's terminal",
    ),
    call(libc::SYS_futex, "futex", Rule::Always, "its threads"),
    call(libc::SYS_sched_yield, "sched_yield", Rule::Always, "its threads"),
    call(libc::SYS_sigaltstack, "sigaltstack", Rule::Always, "its threads"),
    call(
        libc::SYS_set_robust_list,
        "set_robust_list",
        Rule::Always,
        "its threads",
    ),
    call(
        libc::SYS_clone,
        "clone",
        Rule::When(&[&[Is(0, THREAD)]]),
        "a thread that writes down what has changed",
    ),
    call(libc::SYS_clone3, "clone3", Rule::Always, "the same"),
    call(
        libc::SYS_prctl,
        "prctl",
        Rule::When(&[&[Is(0, libc::PR_SET_NAME as u32)]]),
        "its name",
    ),
    call(
        libc::SYS_sched_getaffinity,
        "sched_getaffinity",
        Rule::Always,
        "the same",
    ),
    call(libc::SYS_rseq, "rseq", Rule::Always, "its threads"),
    call(libc::SYS_brk, "brk", Rule::Always, "memory"),
    call(libc::SYS_mmap, "mmap", NO_EXEC, "memory: not executable"),
    call(libc::SYS_mprotect, "mprotect", NO_EXEC, "memory: not executable"),
    call(libc::SYS_munmap, "munmap", Rule::Always, "memory"),
    call(libc::SYS_mremap, "mremap", Rule::Always, "memory"),
    call(libc::SYS_madvise, "madvise", Rule::Always, "memory"),
    call(libc::SYS_getrandom, "getrandom", Rule::Always, "seeds of hash tables"),
    call(libc::SYS_clock_gettime, "clock_gettime", Rule::Always, "time"),
    call(libc::SYS_exit, "exit", Rule::Always, "its threads"),
    call(libc::SYS_exit_group, "exit_group", Rule::Always, "the end"),
];

/// The table for a platform.
pub fn for_platform(platform: &str) -> Vec<HostCall> {
    let more = if platform == "ptrace" { PTRACE } else { &[] };
    TABLE.iter().chain(more).copied().collect()
}

/// How many calls of a table are allowed, some only with certain arguments.
pub fn allowed(table: &[HostCall]) -> usize {
    table
        .iter()
        .filter(|call| !matches!(call.rule, Rule::Refuse(_)))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sentry_host::filter::{Filter, Outside};

    #[test]
    fn the_tables_compile() {
        for platform in ["systrap", "ptrace"] {
            Filter::compile(&for_platform(platform), Outside::Kill).unwrap();
        }
    }

    #[test]
    fn nothing_names_a_path_starts_a_program_or_makes_a_connection() {
        let forbidden = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_openat2,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_seccomp,
            libc::SYS_pidfd_getfd,
        ];
        let allowed = for_platform("ptrace");
        for number in forbidden {
            assert!(allowed.iter().all(|call| call.number != number), "{number}");
        }
        for number in [libc::SYS_open, libc::SYS_openat] {
            assert!(
                allowed
                    .iter()
                    .all(|call| call.number != number || matches!(call.rule, Rule::Refuse(_)))
            );
        }
    }
}
