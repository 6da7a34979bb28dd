//! Capabilities, and the calls that are refused.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::system::{CapData, CapHeader};
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::{Cap, CapSet, Credentials};

use super::{Row, Sys, SysResult, call};
use crate::gap;
use crate::task::Thread;
use crate::user::{UserPtr, UserSlice};

macro_rules! refused {
    ($($nr:expr, $name:ident => $errno:ident;)*) => {
        /// Calls that are known and not done: number, name, and what they answer.
        pub const REFUSED: &[(u64, &str, Errno)] =
            &[$(($nr as u64, stringify!($name), Errno::$errno)),*];

        pub(super) const TABLE: &[Row] = &[
            call!(libc::SYS_capget, capget, Ptr, Ptr),
            call!(libc::SYS_capset, capset, Ptr, Ptr),
            $(($nr as u64, stringify!($name), refuse, &[]),)*
        ];
    };
}

refused! {
    libc::SYS_rseq, rseq => ENOSYS;
    libc::SYS_io_setup, io_setup => ENOSYS;
    libc::SYS_io_destroy, io_destroy => ENOSYS;
    libc::SYS_io_getevents, io_getevents => ENOSYS;
    333, io_pgetevents => ENOSYS;
    libc::SYS_io_submit, io_submit => ENOSYS;
    libc::SYS_io_cancel, io_cancel => ENOSYS;
    libc::SYS_io_uring_setup, io_uring_setup => ENOSYS;
    libc::SYS_io_uring_enter, io_uring_enter => ENOSYS;
    libc::SYS_io_uring_register, io_uring_register => ENOSYS;
    libc::SYS_semget, semget => ENOSYS;
    libc::SYS_semop, semop => ENOSYS;
    libc::SYS_semtimedop, semtimedop => ENOSYS;
    libc::SYS_semctl, semctl => ENOSYS;
    libc::SYS_shmget, shmget => ENOSYS;
    libc::SYS_shmat, shmat => ENOSYS;
    libc::SYS_shmdt, shmdt => ENOSYS;
    libc::SYS_shmctl, shmctl => ENOSYS;
    libc::SYS_msgget, msgget => ENOSYS;
    libc::SYS_msgsnd, msgsnd => ENOSYS;
    libc::SYS_msgrcv, msgrcv => ENOSYS;
    libc::SYS_msgctl, msgctl => ENOSYS;
    libc::SYS_mq_open, mq_open => ENOSYS;
    libc::SYS_mq_unlink, mq_unlink => ENOSYS;
    libc::SYS_mq_timedsend, mq_timedsend => ENOSYS;
    libc::SYS_mq_timedreceive, mq_timedreceive => ENOSYS;
    libc::SYS_mq_notify, mq_notify => ENOSYS;
    libc::SYS_mq_getsetattr, mq_getsetattr => ENOSYS;
    libc::SYS_ptrace, ptrace => EPERM;
    libc::SYS_bpf, bpf => EPERM;
    libc::SYS_perf_event_open, perf_event_open => EACCES;
    libc::SYS_userfaultfd, userfaultfd => EPERM;
    libc::SYS_fanotify_init, fanotify_init => EPERM;
    libc::SYS_fanotify_mark, fanotify_mark => EBADF;
    libc::SYS_seccomp, seccomp => EINVAL;
    libc::SYS_add_key, add_key => ENOSYS;
    libc::SYS_request_key, request_key => ENOSYS;
    libc::SYS_keyctl, keyctl => ENOSYS;
    libc::SYS_kcmp, kcmp => ENOSYS;
    libc::SYS_memfd_secret, memfd_secret => ENOSYS;
    libc::SYS_pkey_alloc, pkey_alloc => ENOSYS;
    libc::SYS_pkey_free, pkey_free => ENOSYS;
    libc::SYS_remap_file_pages, remap_file_pages => ENOSYS;
    libc::SYS_migrate_pages, migrate_pages => ENOSYS;
    libc::SYS_move_pages, move_pages => ENOSYS;
    libc::SYS_set_mempolicy_home_node, set_mempolicy_home_node => ENOSYS;
    libc::SYS_process_madvise, process_madvise => ENOSYS;
    libc::SYS_process_mrelease, process_mrelease => ENOSYS;
    451, cachestat => ENOSYS;
    libc::SYS_landlock_create_ruleset, landlock_create_ruleset => ENOSYS;
    libc::SYS_landlock_add_rule, landlock_add_rule => ENOSYS;
    libc::SYS_landlock_restrict_self, landlock_restrict_self => ENOSYS;
    libc::SYS_lookup_dcookie, lookup_dcookie => ENOSYS;
    libc::SYS_modify_ldt, modify_ldt => ENOSYS;
    libc::SYS_uselib, uselib => ENOSYS;
    libc::SYS_ustat, ustat => ENOSYS;
    libc::SYS_sysfs, sysfs => ENOSYS;
    libc::SYS__sysctl, _sysctl => ENOSYS;
    libc::SYS_iopl, iopl => EPERM;
    libc::SYS_ioperm, ioperm => EPERM;
    libc::SYS_reboot, reboot => EPERM;
    libc::SYS_swapon, swapon => EPERM;
    libc::SYS_swapoff, swapoff => EPERM;
    libc::SYS_acct, acct => EPERM;
    libc::SYS_quotactl, quotactl => ENOSYS;
    libc::SYS_quotactl_fd, quotactl_fd => ENOSYS;
    libc::SYS_init_module, init_module => EPERM;
    libc::SYS_finit_module, finit_module => EPERM;
    libc::SYS_delete_module, delete_module => EPERM;
    libc::SYS_kexec_load, kexec_load => EPERM;
    libc::SYS_kexec_file_load, kexec_file_load => EPERM;
}

fn refuse(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    match REFUSED.iter().find(|(nr, _, _)| *nr == args.nr) {
        Some((_, name, errno)) => {
            gap!(thread.kernel(), "{}", name);
            (*errno).into()
        }
        None => Errno::ENOSYS.into(),
    }
}

/// The versions of capget(2)'s header, and how many 32-bit words each has.
const VERSIONS: [(u32, usize); 3] = [(0x1998_0330, 1), (0x2007_1026, 2), (0x2008_0522, 2)];

/// Reads the header: the process and the number of words. For an unknown version the best one is told, and
/// `EINVAL` is the answer.
fn header(thread: &Arc<Thread>, addr: u64) -> Result<(i32, usize), Errno> {
    let ptr = UserPtr::<CapHeader>::new(addr);
    let header = ptr.copy_in(thread)?;
    match VERSIONS.iter().find(|(version, _)| *version == header.version) {
        Some((_, words)) => Ok((header.pid, *words)),
        None => {
            ptr.copy_out(
                thread,
                &CapHeader {
                    version: VERSIONS[2].0,
                    ..header
                },
            )?;
            Err(Errno::EINVAL)
        }
    }
}

fn capget(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [head, data, ..] = args.args;
    let (pid, words) = match header(thread, head) {
        // Asking for the version is no error.
        Err(Errno::EINVAL) if data == 0 => return Ok(0),
        other => other?,
    };
    let cred = match pid {
        0 => thread.cred(),
        1.. => thread.kernel().thread(pid).ok_or(Errno::ESRCH)?.cred(),
        _ => return Err(Errno::EINVAL),
    };
    if data == 0 {
        return Ok(0);
    }
    let word = |set: CapSet, index: usize| (set.bits() >> (32 * index)) as u32;
    let answer: Vec<CapData> = (0..words)
        .map(|index| CapData {
            effective: word(cred.effective, index),
            permitted: word(cred.permitted, index),
            inheritable: word(cred.inheritable, index),
        })
        .collect();
    UserSlice::new(data, words).copy_out(thread, &answer)?;
    Ok(0)
}

fn capset(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [head, data, ..] = args.args;
    let (pid, words) = header(thread, head)?;
    if pid != 0 && pid != thread.tid() {
        return Err(Errno::EPERM);
    }
    let data: Vec<CapData> = UserSlice::new(data, words).copy_in(thread, 2)?;
    let set = |of: fn(&CapData) -> u32| {
        let bits = data
            .iter()
            .enumerate()
            .map(|(index, data)| u64::from(of(data)) << (32 * index));
        CapSet::from_bits(bits.fold(0, |all, word| all | word))
    };
    let new = set_capabilities(
        &thread.cred(),
        set(|data| data.effective),
        set(|data| data.permitted),
        set(|data| data.inheritable),
    )?;
    thread.set_cred(new);
    Ok(0)
}

/// The rules of capset(2).
fn set_capabilities(
    old: &Credentials,
    effective: CapSet,
    permitted: CapSet,
    inheritable: CapSet,
) -> Result<Credentials, Errno> {
    let free = old.has(Cap::SETPCAP);
    let allowed = (free || inheritable.is_subset(old.inheritable.union(old.permitted)))
        && inheritable.is_subset(old.inheritable.union(old.bounding))
        && permitted.is_subset(old.permitted)
        && effective.is_subset(permitted);
    if !allowed {
        return Err(Errno::EPERM);
    }
    let ambient = old.ambient.intersection(permitted).intersection(inheritable);
    Ok(Credentials {
        effective,
        permitted,
        inheritable,
        ambient,
        ..old.clone()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_can_only_be_given_up() {
        let root = Credentials::root();
        let few = CapSet::EMPTY.with(Cap::CHOWN).with(Cap::KILL);
        let less = set_capabilities(&root, CapSet::EMPTY, few, CapSet::EMPTY).unwrap();
        assert_eq!((less.effective, less.permitted), (CapSet::EMPTY, few));
        let again = set_capabilities(&less, few, few, CapSet::EMPTY).unwrap();
        assert_eq!(again.effective, few);
        assert_eq!(
            set_capabilities(&less, few, CapSet::FULL, CapSet::EMPTY).unwrap_err(),
            Errno::EPERM
        );
        assert_eq!(
            set_capabilities(&less, CapSet::FULL, few, CapSet::EMPTY).unwrap_err(),
            Errno::EPERM
        );
        assert_eq!(
            set_capabilities(&less, few, few, CapSet::FULL).unwrap_err(),
            Errno::EPERM
        );
        assert!(set_capabilities(&less, few, few, few).is_ok());
    }
}
