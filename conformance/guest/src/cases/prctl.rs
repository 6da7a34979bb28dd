//! prctl(2), securebits, ambient capabilities, personality(2), set*id details.

use super::procfs::status_line;
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("prctl": timer_slack, timer_slack_inherited, thp_disable, no_new_privs_arguments, keep_caps, secure_bits_lock,
    secure_bits_need_privilege, ambient_rules, ambient_not_allowed, ambient_lost, ambient_over_exec, bounding_drop, bounding_errors,
    tid_address, tsc, mce_policy, speculation, io_flusher, ptracer, seccomp_state, timing, set_mm_needs_privilege, auxiliary_vector,
    mapping_name, memory_deny_write, unknown_options, unused_arguments, dumpable_values, dumpable_after_setuid, name_of_other_thread,
    name_in_proc, pdeathsig_cleared, subreaper_not_inherited, capget_of_others, capset_errors, capset_versions, inheritable_rules,
    root_without_privilege, no_root_securebit, setfsuid_capabilities, setresuid_minus_one, setregid_saved, setgroups_limits,
    supplementary_group_access, setuid_clears_nothing_for_user, personality_values, personality_kept, cap_last);

fn prctl(option: i32, a: u64, b: u64, c: u64, d: u64) -> i64 {
    sys!(libc::SYS_prctl, option, a, b, c, d)
}

/// Effective, permitted, inheritable.
fn caps() -> (u64, u64, u64) {
    let (header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
    ok!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()));
    let set = |i: usize| u64::from(data[i]) | u64::from(data[i + 3]) << 32;
    (set(0), set(1), set(2))
}

fn set_caps(effective: u64, permitted: u64, inheritable: u64) -> i64 {
    let header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    for (i, set) in [effective, permitted, inheritable].into_iter().enumerate() {
        data[i] = set as u32;
        data[i + 3] = (set >> 32) as u32;
    }
    sys!(libc::SYS_capset, header.as_ptr(), data.as_ptr())
}

const SETPCAP: u64 = 8;
const NET_BIND: u64 = 10;
const SYS_ADMIN: u64 = 21;

fn timer_slack() {
    in_child(|| {
        let start = prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0);
        check!(start > 0);
        ok!(prctl(libc::PR_SET_TIMERSLACK, 123_456, 0, 0, 0));
        eq!(prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0), 123_456);
        eq!(text(&format!("/proc/{}/timerslack_ns", getpid())).trim(), "123456");
        // 0 is the default again.
        ok!(prctl(libc::PR_SET_TIMERSLACK, 0, 0, 0, 0));
        eq!(prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0), start);
    });
}

fn timer_slack_inherited() {
    in_child(|| {
        ok!(prctl(libc::PR_SET_TIMERSLACK, 70_000, 0, 0, 0));
        in_child(|| {
            eq!(prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0), 70_000);
            ok!(prctl(libc::PR_SET_TIMERSLACK, 5, 0, 0, 0));
            // The maker's value is the new thread's default.
            ok!(prctl(libc::PR_SET_TIMERSLACK, 0, 0, 0, 0));
            eq!(prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0), 70_000);
        });
    });
}

fn thp_disable() {
    in_child(|| {
        eq!(prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0), 0);
        ok!(prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0));
        eq!(prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
        in_child(|| eq!(prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0), 1));
        ok!(prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0));
        eq!(prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0), 0);
        err!(prctl(libc::PR_GET_THP_DISABLE, 1, 0, 0, 0), libc::EINVAL);
    });
}

fn no_new_privs_arguments() {
    in_child(|| {
        for args in [[0, 0, 0, 0], [2, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]] {
            err!(prctl(libc::PR_SET_NO_NEW_PRIVS, args[0], args[1], args[2], args[3]), libc::EINVAL);
        }
        eq!(prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
        err!(prctl(libc::PR_GET_NO_NEW_PRIVS, 1, 0, 0, 0), libc::EINVAL);
        ok!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        in_child(|| eq!(prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1));
        eq!(status_line(getpid(), "NoNewPrivs"), "1");
    });
}

fn keep_caps() {
    in_child(|| {
        eq!(prctl(libc::PR_GET_KEEPCAPS, 0, 0, 0, 0), 0);
        err!(prctl(libc::PR_SET_KEEPCAPS, 2, 0, 0, 0), libc::EINVAL);
        ok!(prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
        eq!(prctl(libc::PR_GET_KEEPCAPS, 0, 0, 0, 0), 1);
        eq!(prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0), 1 << 4);
        if is_root() {
            drop_root();
            let (effective, permitted, _) = caps();
            eq!(effective, 0);
            check!(permitted >> SYS_ADMIN & 1 == 1);
        }
    });
}

fn secure_bits_lock() {
    need_root();
    in_child(|| {
        const NOROOT: u64 = 1;
        const NOROOT_LOCKED: u64 = 2;
        const NO_FIXUP: u64 = 4;
        ok!(prctl(libc::PR_SET_SECUREBITS, NOROOT | NOROOT_LOCKED, 0, 0, 0));
        eq!(prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0), 3);
        // Locked bits stay, and so do locks.
        err!(prctl(libc::PR_SET_SECUREBITS, NOROOT_LOCKED, 0, 0, 0), libc::EPERM);
        err!(prctl(libc::PR_SET_SECUREBITS, NOROOT, 0, 0, 0), libc::EPERM);
        ok!(prctl(libc::PR_SET_SECUREBITS, NOROOT | NOROOT_LOCKED | NO_FIXUP, 0, 0, 0));
        // Keeping capabilities can be locked.
        ok!(prctl(libc::PR_SET_SECUREBITS, NOROOT | NOROOT_LOCKED | 1 << 5, 0, 0, 0));
        err!(prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0), libc::EPERM);
        err!(prctl(libc::PR_SET_SECUREBITS, 1 << 20, 0, 0, 0), libc::EPERM);
    });
}

fn secure_bits_need_privilege() {
    in_child(|| {
        drop_root();
        err!(prctl(libc::PR_SET_SECUREBITS, 1, 0, 0, 0), libc::EPERM);
        eq!(prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0), 0);
    });
}

fn ambient(operation: u64, cap: u64) -> i64 {
    prctl(libc::PR_CAP_AMBIENT, operation, cap, 0, 0)
}

fn ambient_rules() {
    need_root();
    in_child(|| {
        eq!(ambient(1, NET_BIND), 0);
        // Not inheritable yet.
        err!(ambient(2, NET_BIND), libc::EPERM);
        let (effective, permitted, _) = caps();
        ok!(set_caps(effective, permitted, 1 << NET_BIND));
        ok!(ambient(2, NET_BIND));
        eq!(ambient(1, NET_BIND), 1);
        eq!(status_line(getpid(), "CapAmb"), format!("{:016x}", 1u64 << NET_BIND));
        ok!(ambient(3, NET_BIND));
        eq!(ambient(1, NET_BIND), 0);
        ok!(ambient(2, NET_BIND));
        ok!(ambient(4, 0));
        eq!(ambient(1, NET_BIND), 0);
        err!(ambient(4, 1), libc::EINVAL);
        err!(ambient(9, NET_BIND), libc::EINVAL);
        err!(ambient(1, 99), libc::EINVAL);
        err!(prctl(libc::PR_CAP_AMBIENT, 1, NET_BIND, 1, 0), libc::EINVAL);
        err!(prctl(libc::PR_CAP_AMBIENT, 1, NET_BIND, 0, 1), libc::EINVAL);
    });
}

fn ambient_not_allowed() {
    need_root();
    in_child(|| {
        let (effective, permitted, _) = caps();
        ok!(set_caps(effective, permitted, 1 << NET_BIND));
        ok!(prctl(libc::PR_SET_SECUREBITS, 1 << 6, 0, 0, 0));
        err!(ambient(2, NET_BIND), libc::EPERM);
    });
}

fn ambient_lost() {
    need_root();
    in_child(|| {
        let (effective, permitted, _) = caps();
        ok!(set_caps(effective, permitted, 1 << NET_BIND));
        ok!(ambient(2, NET_BIND));
        // With the inheritable one goes the ambient one.
        ok!(set_caps(effective, permitted, 0));
        eq!(ambient(1, NET_BIND), 0);
    });
}

fn ambient_over_exec() {
    need_root();
    let pid = child(|| {
        ok!(prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
        drop_root();
        ok!(set_caps(1 << NET_BIND, 1 << NET_BIND, 1 << NET_BIND));
        ok!(ambient(2, NET_BIND));
        ok!(crate::tool::exec(&["capability", "10", "1"]));
    });
    reap(pid);
    let pid = child(|| {
        ok!(prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
        drop_root();
        ok!(set_caps(1 << NET_BIND, 1 << NET_BIND, 1 << NET_BIND));
        ok!(crate::tool::exec(&["capability", "10", "0"]));
    });
    reap(pid);
}

fn bounding_drop() {
    need_root();
    in_child(|| {
        eq!(prctl(libc::PR_CAPBSET_READ, NET_BIND, 0, 0, 0), 1);
        ok!(prctl(libc::PR_CAPBSET_DROP, NET_BIND, 0, 0, 0));
        eq!(prctl(libc::PR_CAPBSET_READ, NET_BIND, 0, 0, 0), 0);
        in_child(|| eq!(prctl(libc::PR_CAPBSET_READ, NET_BIND, 0, 0, 0), 0));
        // Held it stays, but root does not get it anew.
        check!(caps().1 >> NET_BIND & 1 == 1);
        let pid = child(|| {
            ok!(crate::tool::exec(&["capability", "10", "0"]));
        });
        reap(pid);
        // Not held beyond the bounding set, it cannot become inheritable.
        let (effective, permitted, _) = caps();
        err!(set_caps(effective, permitted, 1 << NET_BIND), libc::EPERM);
    });
}

fn bounding_errors() {
    err!(prctl(libc::PR_CAPBSET_READ, 64, 0, 0, 0), libc::EINVAL);
    err!(prctl(libc::PR_CAPBSET_DROP, 64, 0, 0, 0), if is_root() { libc::EINVAL } else { libc::EPERM });
    in_child(|| {
        drop_root();
        err!(prctl(libc::PR_CAPBSET_DROP, NET_BIND, 0, 0, 0), libc::EPERM);
    });
}

fn tid_address() {
    let word = 0u32;
    let address = std::ptr::from_ref(&word) as u64;
    in_child(|| {
        ok!(sys!(libc::SYS_set_tid_address, address));
        let mut got = 0u64;
        let r = prctl(40, std::ptr::from_mut(&mut got) as u64, 0, 0, 0);
        if r == -i64::from(libc::EINVAL) {
            skip("this kernel does not tell");
        }
        ok!(r);
        eq!(got, address);
        sys!(libc::SYS_set_tid_address, 0);
    });
}

fn tsc() {
    in_child(|| {
        let mut value = 0i32;
        ok!(prctl(libc::PR_GET_TSC, std::ptr::from_mut(&mut value) as u64, 0, 0, 0));
        eq!(value, 1);
        ok!(prctl(libc::PR_SET_TSC, 1, 0, 0, 0));
        err!(prctl(libc::PR_SET_TSC, 7, 0, 0, 0), libc::EINVAL);
        err!(prctl(libc::PR_GET_TSC, BAD, 0, 0, 0), libc::EFAULT);
    });
}

fn mce_policy() {
    in_child(|| {
        eq!(prctl(libc::PR_MCE_KILL_GET, 0, 0, 0, 0), 2);
        ok!(prctl(libc::PR_MCE_KILL, 1, 1, 0, 0));
        eq!(prctl(libc::PR_MCE_KILL_GET, 0, 0, 0, 0), 1);
        ok!(prctl(libc::PR_MCE_KILL, 1, 0, 0, 0));
        eq!(prctl(libc::PR_MCE_KILL_GET, 0, 0, 0, 0), 0);
        ok!(prctl(libc::PR_MCE_KILL, 0, 0, 0, 0));
        eq!(prctl(libc::PR_MCE_KILL_GET, 0, 0, 0, 0), 2);
        err!(prctl(libc::PR_MCE_KILL, 2, 0, 0, 0), libc::EINVAL);
        err!(prctl(libc::PR_MCE_KILL, 1, 9, 0, 0), libc::EINVAL);
        err!(prctl(libc::PR_MCE_KILL_GET, 1, 0, 0, 0), libc::EINVAL);
    });
}

fn speculation() {
    let state = prctl(libc::PR_GET_SPECULATION_CTRL, 0, 0, 0, 0);
    check!(state >= 0 || state == -i64::from(libc::EINVAL) || state == -i64::from(libc::ENODEV), "{state}");
    err!(prctl(libc::PR_GET_SPECULATION_CTRL, 99, 0, 0, 0), libc::ENODEV);
    err!(prctl(libc::PR_GET_SPECULATION_CTRL, 0, 1, 0, 0), libc::EINVAL);
}

fn io_flusher() {
    in_child(|| {
        drop_root();
        err!(prctl(57, 1, 0, 0, 0), libc::EPERM);
        err!(prctl(58, 0, 0, 0, 0), libc::EPERM);
    });
}

fn ptracer() {
    let r = prctl(libc::PR_SET_PTRACER, 0, 0, 0, 0);
    check!(r == 0 || r == -i64::from(libc::EINVAL), "{r}");
}

fn seccomp_state() {
    eq!(prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0), 0);
    err!(prctl(libc::PR_SET_SECCOMP, 77, 0, 0, 0), libc::EINVAL);
    eq!(status_line(getpid(), "Seccomp"), "0");
}

fn timing() {
    eq!(prctl(libc::PR_GET_TIMING, 0, 0, 0, 0), 0);
    ok!(prctl(libc::PR_SET_TIMING, 0, 0, 0, 0));
    err!(prctl(libc::PR_SET_TIMING, 1, 0, 0, 0), libc::EINVAL);
    // Of other architectures.
    err!(prctl(libc::PR_GET_FPEMU, 0, 0, 0, 0), libc::EINVAL);
    err!(prctl(libc::PR_GET_ENDIAN, 0, 0, 0, 0), libc::EINVAL);
    err!(prctl(libc::PR_GET_UNALIGN, 0, 0, 0, 0), libc::EINVAL);
}

fn set_mm_needs_privilege() {
    in_child(|| {
        drop_root();
        err!(prctl(libc::PR_SET_MM, 1, 0x1000, 0, 0), libc::EPERM);
    });
}

fn auxiliary_vector() {
    const PR_GET_AUXV: i32 = 0x4155_5856;
    let mut buf = [0u8; 1024];
    let n = prctl(PR_GET_AUXV, buf.as_mut_ptr() as u64, 1024, 0, 0);
    if n == -i64::from(libc::EINVAL) {
        skip("this kernel does not tell");
    }
    check!(n > 100);
    let file = slurp("/proc/self/auxv");
    eq!(buf[..file.len()], file[..]);
    err!(prctl(PR_GET_AUXV, buf.as_mut_ptr() as u64, 1024, 1, 0), libc::EINVAL);
}

fn mapping_name() {
    const PR_SET_VMA: i32 = 0x5356_4d41;
    let p = map(4 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    let set = |addr: u64, len: u64, name: u64| prctl(PR_SET_VMA, 0, addr, len, name);
    let r = set(p as u64 + PAGE as u64, PAGE as u64, c("my heap").as_ptr() as u64);
    if r == -i64::from(libc::EINVAL) {
        skip("mappings have no names here");
    }
    ok!(r);
    let line = |addr: u64| {
        let maps = text("/proc/self/maps");
        let start = format!("{addr:x}-");
        maps.lines().find(|l| l.trim_start_matches('0').starts_with(&start)).unwrap_or_default().to_string()
    };
    check!(line(p as u64 + PAGE as u64).ends_with("[anon:my heap]"), "{}", line(p as u64 + PAGE as u64));
    check!(!line(p as u64 + 2 * PAGE as u64).contains("my heap"));
    err!(set(p as u64 + 1, PAGE as u64, 0), libc::EINVAL);
    err!(set(p as u64, PAGE as u64, BAD), libc::EFAULT);
    err!(set(p as u64, PAGE as u64, c("bad[name").as_ptr() as u64), libc::EINVAL);
    err!(set(p as u64, PAGE as u64, c(&"x".repeat(81)).as_ptr() as u64), libc::EINVAL);
    err!(prctl(PR_SET_VMA, 7, p as u64, PAGE as u64, 0), libc::EINVAL);
    ok!(set(p as u64, 4 * PAGE as u64, 0));
    check!(!text("/proc/self/maps").contains("my heap"));
}

fn memory_deny_write() {
    in_child(|| {
        let now = prctl(66, 0, 0, 0, 0);
        if now == -i64::from(libc::EINVAL) {
            skip("this kernel has no such protection");
        }
        eq!(now, 0);
        err!(prctl(65, 0x100, 0, 0, 0), libc::EINVAL);
        err!(prctl(65, 2, 0, 0, 0), libc::EINVAL);
        ok!(prctl(65, 1, 0, 0, 0));
        eq!(prctl(66, 0, 0, 0, 0), 1);
        err!(prctl(65, 0, 0, 0, 0), libc::EPERM);
        let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        err!(sys!(libc::SYS_mmap, 0, PAGE, rwx, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0), libc::EACCES);
        let p = map(PAGE, libc::PROT_READ | libc::PROT_WRITE);
        err!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ | libc::PROT_EXEC), libc::EACCES);
        in_child(|| eq!(prctl(66, 0, 0, 0, 0), 1));
    });
}

fn unknown_options() {
    err!(prctl(9999, 0, 0, 0, 0), libc::EINVAL);
    err!(prctl(-1, 0, 0, 0, 0), libc::EINVAL);
    err!(prctl(0, 0, 0, 0, 0), libc::EINVAL);
}

fn unused_arguments() {
    // Most options do not look at what they do not use.
    ok!(prctl(libc::PR_GET_DUMPABLE, 1, 2, 3, 4));
    ok!(prctl(libc::PR_GET_KEEPCAPS, 1, 2, 3, 4));
    ok!(prctl(libc::PR_GET_TIMERSLACK, 1, 2, 3, 4));
    err!(prctl(libc::PR_SET_THP_DISABLE, 0, 0, 1, 0), libc::EINVAL);
    err!(prctl(libc::PR_MCE_KILL, 0, 0, 1, 0), libc::EINVAL);
}

fn dumpable_values() {
    in_child(|| {
        eq!(prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 1);
        err!(prctl(libc::PR_SET_DUMPABLE, 2, 0, 0, 0), libc::EINVAL);
        err!(prctl(libc::PR_SET_DUMPABLE, u64::MAX, 0, 0, 0), libc::EINVAL);
        ok!(prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0));
        eq!(prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
        in_child(|| eq!(prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 0));
    });
}

fn dumpable_after_setuid() {
    need_root();
    in_child(|| {
        drop_root();
        check!(prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) != 1);
        // Its files are root's now.
        eq!(stat(&format!("/proc/{}/maps", getpid())).1.st_uid, 0);
        ok!(prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0));
        eq!(stat(&format!("/proc/{}/maps", getpid())).1.st_uid, 1234);
    });
}

fn name_of_other_thread() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    let thread = std::thread::spawn(move || {
        ok!(prctl(libc::PR_SET_NAME, c("worker").as_ptr() as u64, 0, 0, 0));
        write(w, &gettid().to_ne_bytes());
        read(r2, 1);
    });
    let tid = i32::from_ne_bytes(read(r, 4).try_into().expect("four bytes"));
    eq!(text(&format!("/proc/self/task/{tid}/comm")), "worker\n");
    check!(text("/proc/self/comm") != "worker\n");
    std::fs::write(format!("/proc/self/task/{tid}/comm"), "renamed").expect("one's own thread");
    eq!(text(&format!("/proc/self/task/{tid}/comm")), "renamed\n");
    write(w2, b"x");
    thread.join().expect("the thread ends");
}

fn name_in_proc() {
    in_child(|| {
        ok!(prctl(libc::PR_SET_NAME, c("a name of more than fifteen").as_ptr() as u64, 0, 0, 0));
        eq!(text("/proc/self/comm"), "a name of more \n");
        check!(text("/proc/self/stat").contains(" (a name of more ) "));
        eq!(status_line(getpid(), "Name"), "a name of more");
        err!(prctl(libc::PR_SET_NAME, BAD, 0, 0, 0), libc::EFAULT);
        err!(prctl(libc::PR_GET_NAME, BAD, 0, 0, 0), libc::EFAULT);
        // At the end of a page.
        let (_, end) = guarded_page();
        let at = (end - 3) as *mut u8;
        // SAFETY: the last three bytes of the page.
        unsafe { std::ptr::copy_nonoverlapping(c"ab".as_ptr().cast(), at, 3) };
        ok!(prctl(libc::PR_SET_NAME, at as u64, 0, 0, 0));
        eq!(text("/proc/self/comm"), "ab\n");
    });
}

fn pdeathsig_cleared() {
    in_child(|| {
        let get = || {
            let mut signal = -1i32;
            ok!(prctl(libc::PR_GET_PDEATHSIG, std::ptr::from_mut(&mut signal) as u64, 0, 0, 0));
            signal
        };
        ok!(prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as u64, 0, 0, 0));
        eq!(get(), libc::SIGTERM);
        in_child(|| eq!(get(), 0));
        if is_root() {
            drop_root();
            eq!(get(), 0);
        }
    });
}

fn subreaper_not_inherited() {
    in_child(|| {
        ok!(prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
        in_child(|| {
            let mut value = -1i32;
            ok!(prctl(libc::PR_GET_CHILD_SUBREAPER, std::ptr::from_mut(&mut value) as u64, 0, 0, 0));
            eq!(value, 0);
        });
    });
}

fn capget_of_others() {
    let pid = child(|| sleep_ms(60_000));
    let (header, mut data) = ([0x2008_0522u32, pid as u32], [0u32; 6]);
    ok!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()));
    eq!(u64::from(data[1]) | u64::from(data[4]) << 32, caps().1);
    let header = [0x2008_0522u32, 0x7fff_fff0];
    err!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()), libc::ESRCH);
    let header = [0x2008_0522u32, u32::MAX];
    err!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()), libc::EINVAL);
    let header = [0x2008_0522u32, pid as u32];
    err!(sys!(libc::SYS_capset, header.as_ptr(), data.as_ptr()), libc::EPERM);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn capset_errors() {
    in_child(|| {
        ok!(set_caps(0, 0, 0));
        err!(set_caps(1, 1, 0), libc::EPERM);
        err!(set_caps(0, 1, 0), libc::EPERM);
        err!(set_caps(0, 0, 1), libc::EPERM);
        let header = [0x2008_0522u32, 0];
        err!(sys!(libc::SYS_capset, header.as_ptr(), BAD), libc::EFAULT);
        err!(sys!(libc::SYS_capset, BAD, BAD), libc::EFAULT);
    });
}

fn capset_versions() {
    let mut header = [0x1234u32, 0];
    let mut data = [0u32; 6];
    err!(sys!(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()), libc::EINVAL);
    eq!(header[0], 0x2008_0522);
    let mut header = [0x1234u32, 0];
    eq!(sys!(libc::SYS_capget, header.as_mut_ptr(), 0), 0);
    eq!(header[0], 0x2008_0522);
    // The first version has 32 capabilities.
    let header = [0x1998_0330u32, 0];
    let mut data = [7u32; 6];
    ok!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()));
    eq!(data[3..], [7, 7, 7]);
    eq!(data[1], caps().1 as u32);
    err!(sys!(libc::SYS_capget, BAD, 0), libc::EFAULT);
}

fn inheritable_rules() {
    need_root();
    in_child(|| {
        let (_, permitted, _) = caps();
        // Without CAP_SETPCAP, only what is permitted or inheritable already.
        let less = permitted & !(1 << SETPCAP);
        let keep = less & !(1 << NET_BIND);
        ok!(set_caps(keep, keep, 0));
        err!(set_caps(keep, keep, 1 << NET_BIND), libc::EPERM);
        ok!(set_caps(keep, keep, 1 << SYS_ADMIN));
    });
}

fn root_without_privilege() {
    need_root();
    in_child(|| {
        ok!(set_caps(0, 0, 0));
        // User 0 without capabilities is held to permission bits.
        file("f", b"x");
        ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o000));
        err!(open("f", libc::O_RDONLY, 0), libc::EACCES);
        err!(sys!(libc::SYS_chown, c("f").as_ptr(), 77, 77), libc::EPERM);
        err!(sys!(libc::SYS_setresuid, 5, 5, 5), libc::EPERM);
        err!(sys!(libc::SYS_sethostname, c("x").as_ptr(), 1), libc::EPERM);
        err!(sys!(libc::SYS_chroot, c(".").as_ptr()), libc::EPERM);
        err!(sys!(libc::SYS_setgroups, 0, 0), libc::EPERM);
        err!(sys!(libc::SYS_mknod, c("dev").as_ptr(), libc::S_IFCHR | 0o600, 0x103), libc::EPERM);
        // Executing a program brings them back.
        let pid = child(|| {
            ok!(crate::tool::exec(&["capability", "21", "1"]));
        });
        reap(pid);
    });
}

fn no_root_securebit() {
    need_root();
    let pid = child(|| {
        ok!(prctl(libc::PR_SET_SECUREBITS, 1, 0, 0, 0));
        ok!(crate::tool::exec(&["capability", "21", "0"]));
    });
    reap(pid);
}

fn setfsuid_capabilities() {
    need_root();
    in_child(|| {
        const DAC_OVERRIDE: u64 = 1;
        check!(caps().0 >> DAC_OVERRIDE & 1 == 1);
        eq!(sys!(libc::SYS_setfsuid, 1234), 0);
        check!(caps().0 >> DAC_OVERRIDE & 1 == 0);
        check!(caps().0 >> SYS_ADMIN & 1 == 1);
        eq!(sys!(libc::SYS_setfsuid, 0), 1234);
        check!(caps().0 >> DAC_OVERRIDE & 1 == 1);
        eq!(sys!(libc::SYS_setfsuid, -1), 0);
    });
}

fn setresuid_minus_one() {
    in_child(|| {
        ok!(sys!(libc::SYS_setresuid, -1, -1, -1));
        ok!(sys!(libc::SYS_setreuid, -1, -1));
        err!(sys!(libc::SYS_setuid, -1), libc::EINVAL);
        err!(sys!(libc::SYS_setgid, -1), libc::EINVAL);
    });
}

fn setregid_saved() {
    need_root();
    in_child(|| {
        ok!(sys!(libc::SYS_setregid, 10, 20));
        let mut ids = [0u32; 3];
        let [r, e, s] = &mut ids;
        ok!(sys!(libc::SYS_getresgid, r as *mut u32, e as *mut u32, s as *mut u32));
        eq!(ids, [10, 20, 20]);
        ok!(sys!(libc::SYS_setregid, -1, 10));
        let [r, e, s] = &mut ids;
        ok!(sys!(libc::SYS_getresgid, r as *mut u32, e as *mut u32, s as *mut u32));
        eq!(ids, [10, 10, 20]);
    });
}

fn setgroups_limits() {
    need_root();
    in_child(|| {
        let many = vec![7u32; 65536];
        ok!(sys!(libc::SYS_setgroups, 65536, many.as_ptr()));
        eq!(sys!(libc::SYS_getgroups, 0, 0), 65536);
        err!(sys!(libc::SYS_setgroups, 65537, many.as_ptr()), libc::EINVAL);
        err!(sys!(libc::SYS_setgroups, -1, many.as_ptr()), libc::EINVAL);
        err!(sys!(libc::SYS_setgroups, 1, BAD), libc::EFAULT);
        let two = [5u32, u32::MAX];
        err!(sys!(libc::SYS_setgroups, 2, two.as_ptr()), libc::EINVAL);
        ok!(sys!(libc::SYS_setgroups, 0, 0));
        eq!(sys!(libc::SYS_getgroups, 0, 0), 0);
    });
}

fn supplementary_group_access() {
    need_root();
    file("f", b"secret");
    if sys!(libc::SYS_chown, c("f").as_ptr(), 0, 4321) < 0 {
        skip("no chown here");
    }
    ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o040));
    ok!(sys!(libc::SYS_chmod, c(".").as_ptr(), 0o755));
    in_child(|| {
        let group = [4321u32];
        ok!(sys!(libc::SYS_setgroups, 1, group.as_ptr()));
        drop_root();
        ok!(open("f", libc::O_RDONLY, 0));
        err!(open("f", libc::O_WRONLY, 0), libc::EACCES);
    });
    in_child(|| {
        ok!(sys!(libc::SYS_setgroups, 0, 0));
        drop_root();
        err!(open("f", libc::O_RDONLY, 0), libc::EACCES);
    });
}

fn setuid_clears_nothing_for_user() {
    in_child(|| {
        drop_root();
        let uid = sys!(libc::SYS_getuid);
        ok!(sys!(libc::SYS_setuid, uid));
        ok!(sys!(libc::SYS_setreuid, uid, uid));
        err!(sys!(libc::SYS_setuid, 0), libc::EPERM);
        err!(sys!(libc::SYS_setreuid, 0, -1), libc::EPERM);
        err!(sys!(libc::SYS_setresuid, -1, -1, 0), libc::EPERM);
        err!(sys!(libc::SYS_setresgid, -1, 54321, -1), libc::EPERM);
    });
}

fn personality_values() {
    in_child(|| {
        const NO_RANDOM: u64 = 0x40000;
        let start = ok!(sys!(libc::SYS_personality, 0xffff_ffffu32)) as u64;
        eq!(ok!(sys!(libc::SYS_personality, start | NO_RANDOM)) as u64, start);
        eq!(ok!(sys!(libc::SYS_personality, 0xffff_ffffu32)) as u64, start | NO_RANDOM);
        eq!(text("/proc/self/personality").trim(), format!("{:08x}", start | NO_RANDOM));
        // PER_LINUX32 changes what the machine is called.
        ok!(sys!(libc::SYS_personality, 8));
        let mut name: libc::utsname = zeroed();
        ok!(sys!(libc::SYS_uname, &mut name as *mut _));
        eq!(&name.machine[..5], [b'i', b'6', b'8', b'6', 0].map(|b| b as i8));
    });
}

fn personality_kept() {
    in_child(|| {
        ok!(sys!(libc::SYS_personality, 0x40000));
        in_child(|| eq!(sys!(libc::SYS_personality, 0xffff_ffffu32), 0x40000));
        let pid = child(|| {
            ok!(crate::tool::exec(&["pause"]));
        });
        until("the program runs", || text(&format!("/proc/{pid}/cmdline")).contains("pause"));
        eq!(text(&format!("/proc/{pid}/personality")).trim(), "00040000");
        kill(pid, libc::SIGKILL);
        wait(pid);
    });
}

fn cap_last() {
    let last: u64 = text("/proc/sys/kernel/cap_last_cap").trim().parse().expect("a number");
    check!(prctl(libc::PR_CAPBSET_READ, last, 0, 0, 0) >= 0);
    err!(prctl(libc::PR_CAPBSET_READ, last + 1, 0, 0, 0), libc::EINVAL);
}
