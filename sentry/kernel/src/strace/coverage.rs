//! Which system calls are implemented: derived from the table that answers them.

use sentry_abi::syscalls::NAMES;

use crate::syscalls::{self, REFUSED};

/// How much of a call there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What programs use of it.
    Implemented,
    /// Some of its flags or commands are refused.
    Partial,
    /// It answers an error.
    Missing,
}

impl Status {
    /// As `sentry syscalls` prints it.
    pub fn text(self) -> &'static str {
        match self {
            Status::Implemented => "implemented",
            Status::Partial => "partial",
            Status::Missing => "missing",
        }
    }
}

/// One line of `sentry syscalls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Coverage {
    pub nr: u64,
    pub name: &'static str,
    pub status: Status,
    /// What is missing of it, or what a refused call answers.
    pub note: &'static str,
    /// Arguments that are refused, as strace(1) names them: one whose name begins so.
    pub refused: &'static [&'static str],
}

/// Calls that do less than Linux, what is missing, and the arguments, as strace(1) names them, that are refused.
const PARTIAL: &[(&str, &str, &[&str])] = &[
    ("adjtimex", "reading only: the clock is the host's", &[]),
    ("clock_adjtime", "reading only: the clock is the host's", &[]),
    ("clock_settime", "refused with EPERM: the clock is the host's", &[]),
    ("settimeofday", "refused with EPERM: the clock is the host's", &[]),
    ("fcntl", "no leases", &["F_SETLEASE"]),
    ("get_mempolicy", "one node", &[]),
    ("mbind", "one node", &[]),
    ("set_mempolicy", "one node", &[]),
    ("ioctl", "terminals and files", &[]),
    (
        "madvise",
        "advice about fork, merging and hardware errors is refused",
        &[
            "MADV_REMOVE",
            "MADV_DONTFORK",
            "MADV_WIPEONFORK",
            "MADV_MERGEABLE",
            "MADV_UNMERGEABLE",
            "MADV_COLLAPSE",
            "MADV_GUARD",
            "MADV_HWPOISON",
            "MADV_SOFT_OFFLINE",
        ],
    ),
    (
        "membarrier",
        "no SYNC_CORE and no RSEQ",
        &[
            "MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE",
            "MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ",
        ],
    ),
    ("mincore", "mapped pages count as resident", &[]),
    (
        "mmap",
        "no MAP_HUGETLB; MAP_LOCKED and MAP_GROWSDOWN have no effect",
        &["MAP_HUGETLB"],
    ),
    ("mremap", "no MREMAP_DONTUNMAP", &["MREMAP_DONTUNMAP"]),
    ("pkey_mprotect", "without a key only", &[]),
    ("prctl", "the options that programs use", &[]),
    (
        "sched_setattr",
        "kept and told, the host schedules; no deadline policy",
        &["SCHED_DEADLINE"],
    ),
    ("sched_setscheduler", "kept and told; the host schedules", &[]),
    ("setpriority", "kept and told; the host schedules", &[]),
    (
        "socket",
        "Unix sockets",
        &[
            "AF_INET",
            "AF_NETLINK",
            "AF_PACKET",
            "AF_VSOCK",
            "AF_ALG",
            "AF_BLUETOOTH",
        ],
    ),
    ("syslog", "the log is empty", &[]),
];

/// All calls of x86-64, by number.
pub fn coverage() -> Vec<Coverage> {
    NAMES
        .iter()
        .map(|&(nr, name)| {
            let nr = u64::from(nr);
            let refused = REFUSED.iter().find(|(number, _, _)| *number == nr);
            let partial = PARTIAL.iter().find(|(partial, _, _)| *partial == name);
            let (status, note, refused) = match (syscalls::lookup(nr), refused, partial) {
                (None, _, _) => (Status::Missing, "ENOSYS", [].as_slice()),
                (Some(_), Some((_, _, errno)), _) => (Status::Missing, errno.name(), [].as_slice()),
                (Some(_), None, Some((_, note, refused))) => (Status::Partial, *note, *refused),
                (Some(_), None, None) => (Status::Implemented, "", [].as_slice()),
            };
            Coverage {
                nr,
                name,
                status,
                note,
                refused,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_linux_name() {
        for row in syscalls::implemented() {
            assert_eq!(sentry_abi::syscalls::name(row.0), Some(row.1));
        }
        let list = coverage();
        let status = |name: &str| list.iter().find(|line| line.name == name).map(|line| line.status);
        assert_eq!(status("getrandom"), Some(Status::Implemented));
        assert_eq!(status("mmap"), Some(Status::Partial));
        assert_eq!(status("bpf"), Some(Status::Missing));
    }
}
