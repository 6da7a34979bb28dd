//! User and group ids, groups, capabilities, and what they allow.

use crate::sys::*;
use crate::tool;
use crate::{cases, check, eq, err, ok, sys};

cases!("cred": ids_agree, without_privilege, setuid_as_root, setresuid_rules, setreuid_saved, setfsuid_call, groups, group_errors,
    capabilities, capability_errors, root_loses_capabilities, keep_capabilities, bounding_set, no_new_privileges, kill_permission,
    exec_setuid_program, threads_have_their_own, umask_call, dac_override_is_a_capability, secure_bits, ambient);

fn ids() -> [i64; 6] {
    let (mut r, mut e, mut s) = (0u32, 0u32, 0u32);
    let (mut rg, mut eg, mut sg) = (0u32, 0u32, 0u32);
    ok!(sys!(libc::SYS_getresuid, &mut r as *mut u32, &mut e as *mut u32, &mut s as *mut u32));
    ok!(sys!(libc::SYS_getresgid, &mut rg as *mut u32, &mut eg as *mut u32, &mut sg as *mut u32));
    [r, e, s, rg, eg, sg].map(i64::from)
}

fn ids_agree() {
    let all = ids();
    eq!(sys!(libc::SYS_getuid), all[0]);
    eq!(sys!(libc::SYS_geteuid), all[1]);
    eq!(sys!(libc::SYS_getgid), all[3]);
    eq!(sys!(libc::SYS_getegid), all[4]);
    err!(sys!(libc::SYS_getresuid, BAD, BAD, BAD), libc::EFAULT);
    eq!(sys!(libc::SYS_setfsuid, -1), all[1]);
    eq!(sys!(libc::SYS_setfsgid, -1), all[4]);
}

/// Gives up user 0 for good in a child, and goes on there.
fn as_user(uid: u32, body: impl FnOnce()) {
    in_child(|| {
        if is_root() {
            ok!(sys!(libc::SYS_setgroups, 0, 0));
            ok!(sys!(libc::SYS_setresgid, uid, uid, uid));
            ok!(sys!(libc::SYS_setresuid, uid, uid, uid));
        }
        body();
    });
}

fn without_privilege() {
    as_user(1001, || {
        let uid = sys!(libc::SYS_getuid);
        err!(sys!(libc::SYS_setuid, 0), libc::EPERM);
        err!(sys!(libc::SYS_setgid, 0), libc::EPERM);
        err!(sys!(libc::SYS_setresuid, -1, -1, 0), libc::EPERM);
        err!(sys!(libc::SYS_setreuid, 0, -1), libc::EPERM);
        err!(sys!(libc::SYS_setgroups, 0, 0), libc::EPERM);
        err!(sys!(libc::SYS_chroot, c(".").as_ptr()), libc::EPERM);
        err!(sys!(libc::SYS_sethostname, c("x").as_ptr(), 1), libc::EPERM);
        err!(sys!(libc::SYS_mount, c("a").as_ptr(), c("/").as_ptr(), c("tmpfs").as_ptr(), 0, 0), libc::EPERM);
        ok!(sys!(libc::SYS_setuid, uid));
        ok!(sys!(libc::SYS_setresuid, uid, uid, uid));
        eq!(ids()[..3], [uid; 3]);
    });
}

fn setuid_as_root() {
    need_root();
    in_child(|| {
        ok!(sys!(libc::SYS_setgid, 50));
        ok!(sys!(libc::SYS_setuid, 60));
        eq!(ids(), [60, 60, 60, 50, 50, 50]);
        err!(sys!(libc::SYS_setuid, 0), libc::EPERM);
    });
    err!(sys!(libc::SYS_setuid, -1), libc::EINVAL);
    err!(sys!(libc::SYS_setgid, -1), libc::EINVAL);
}

fn setresuid_rules() {
    need_root();
    in_child(|| {
        ok!(sys!(libc::SYS_setresuid, 10, 20, 30));
        eq!(ids()[..3], [10, 20, 30]);
        // Each may become any of the three.
        ok!(sys!(libc::SYS_setresuid, -1, 30, -1));
        ok!(sys!(libc::SYS_setresuid, 30, 10, 10));
        err!(sys!(libc::SYS_setresuid, 20, -1, -1), libc::EPERM);
        eq!(ids()[..3], [30, 10, 10]);
    });
    in_child(|| {
        // A saved id of 0 is a way back.
        ok!(sys!(libc::SYS_setresuid, 10, 10, 0));
        ok!(sys!(libc::SYS_setresuid, -1, 0, -1));
        eq!(sys!(libc::SYS_geteuid), 0);
    });
}

fn setreuid_saved() {
    need_root();
    in_child(|| {
        ok!(sys!(libc::SYS_setreuid, 10, 20));
        eq!(ids()[..3], [10, 20, 20]);
        ok!(sys!(libc::SYS_setreuid, 20, 10));
        err!(sys!(libc::SYS_setreuid, 30, -1), libc::EPERM);
    });
    in_child(|| {
        ok!(sys!(libc::SYS_setregid, 7, 8));
        eq!(ids()[3..], [7, 8, 8]);
    });
}

fn setfsuid_call() {
    need_root();
    in_child(|| {
        eq!(sys!(libc::SYS_setfsuid, 77), 0);
        eq!(sys!(libc::SYS_setfsuid, -1), 77);
        // Capabilities over files go with it.
        err!(sys!(libc::SYS_chmod, c(".").as_ptr(), 0o755), libc::EPERM);
    });
}

fn groups() {
    need_root();
    in_child(|| {
        let list = [5u32, 3, 9];
        ok!(sys!(libc::SYS_setgroups, 3, list.as_ptr()));
        let mut got = [0u32; 10];
        eq!(sys!(libc::SYS_getgroups, 0, 0), 3);
        eq!(sys!(libc::SYS_getgroups, 10, got.as_mut_ptr()), 3);
        got[..3].sort_unstable();
        eq!(got[..3], [3, 5, 9]);
        err!(sys!(libc::SYS_getgroups, 2, got.as_mut_ptr()), libc::EINVAL);
        // A file of a supplementary group.
        file("f", b"x");
        ok!(sys!(libc::SYS_chown, c("f").as_ptr(), 0, 9));
        ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o040));
        ok!(sys!(libc::SYS_setresuid, 44, 44, 44));
        ok!(open("f", libc::O_RDONLY, 0));
        err!(open("f", libc::O_WRONLY, 0), libc::EACCES);
    });
}

fn group_errors() {
    err!(sys!(libc::SYS_getgroups, -1, 0), libc::EINVAL);
    if is_root() {
        err!(sys!(libc::SYS_setgroups, 65537, BAD), libc::EINVAL);
        err!(sys!(libc::SYS_setgroups, 3, BAD), libc::EFAULT);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Caps {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

const V3: u32 = 0x2008_0522;

fn capget() -> Caps {
    let header = [V3, 0];
    let mut data = [0u32; 6];
    ok!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()));
    let word = |i: usize| u64::from(data[i]) | u64::from(data[i + 3]) << 32;
    Caps { effective: word(0), permitted: word(1), inheritable: word(2) }
}

fn capset(caps: Caps) -> i64 {
    let header = [V3, 0];
    let (e, p, i) = (caps.effective, caps.permitted, caps.inheritable);
    let data = [e as u32, p as u32, i as u32, (e >> 32) as u32, (p >> 32) as u32, (i >> 32) as u32];
    sys!(libc::SYS_capset, header.as_ptr(), data.as_ptr())
}

fn capabilities() {
    let all = capget();
    check!(all.effective & !all.permitted == 0);
    in_child(|| {
        ok!(capset(Caps { effective: 0, ..all }));
        eq!(capget().effective, 0);
        ok!(capset(all));
        let fewer = Caps { effective: 0, permitted: all.permitted & !1, inheritable: 0 };
        ok!(capset(fewer));
        eq!(capget(), fewer);
        if all.permitted & 1 != 0 {
            err!(capset(all), libc::EPERM);
        }
    });
}

fn capability_errors() {
    let mut header = [0u32; 2];
    let mut data = [0u32; 6];
    // An unknown version is answered with the right one.
    err!(sys!(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()), libc::EINVAL);
    eq!(header[0], V3);
    header[0] = 0;
    ok!(sys!(libc::SYS_capget, header.as_mut_ptr(), 0));
    header = [V3, 0x7fff_fff0];
    err!(sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()), libc::ESRCH);
    err!(sys!(libc::SYS_capset, header.as_ptr(), data.as_ptr()), libc::EPERM);
    err!(sys!(libc::SYS_capget, BAD, 0), libc::EFAULT);
    let some = capget();
    err!(capset(Caps { effective: 1, permitted: some.permitted & !1, ..some }), libc::EPERM);
}

fn root_loses_capabilities() {
    need_root();
    in_child(|| {
        let before = capget();
        check!(before.permitted != 0);
        // Changing only the effective id clears only the effective set.
        ok!(sys!(libc::SYS_setresuid, 0, 5, 0));
        eq!((capget().effective, capget().permitted), (0, before.permitted));
        ok!(sys!(libc::SYS_setresuid, 0, 0, 0));
        eq!(capget(), before);
        ok!(sys!(libc::SYS_setresuid, 5, 5, 5));
        eq!((capget().effective, capget().permitted), (0, 0));
    });
}

fn keep_capabilities() {
    need_root();
    in_child(|| {
        let before = capget();
        ok!(sys!(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
        eq!(sys!(libc::SYS_prctl, libc::PR_GET_KEEPCAPS, 0, 0, 0, 0), 1);
        ok!(sys!(libc::SYS_setresuid, 5, 5, 5));
        eq!((capget().effective, capget().permitted), (0, before.permitted));
        ok!(capset(before));
        err!(sys!(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 2, 0, 0, 0), libc::EINVAL);
    });
}

fn bounding_set() {
    need_root();
    in_child(|| {
        let last = text("/proc/sys/kernel/cap_last_cap").trim().parse::<u64>().expect("a number");
        check!((36..64).contains(&last));
        err!(sys!(libc::SYS_prctl, libc::PR_CAPBSET_READ, last + 1, 0, 0, 0), libc::EINVAL);
        if capget().permitted & 1 << 8 == 0 {
            skip("no CAP_SETPCAP");
        }
        ok!(sys!(libc::SYS_prctl, libc::PR_CAPBSET_DROP, 5, 0, 0, 0));
        eq!(sys!(libc::SYS_prctl, libc::PR_CAPBSET_READ, 5, 0, 0, 0), 0);
        ok!(tool::exec(&["capability", "5", "0"]));
    });
}

fn no_new_privileges() {
    in_child(|| {
        eq!(sys!(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
        err!(sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0), libc::EINVAL);
        err!(sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 1, 0, 0), libc::EINVAL);
        ok!(sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        in_child(|| eq!(sys!(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1));
    });
}

fn kill_permission() {
    need_root();
    let parent = getpid();
    as_user(1001, || {
        err!(kill(parent, libc::SIGTERM), libc::EPERM);
        err!(kill(parent, 0), libc::EPERM);
        err!(sys!(libc::SYS_tgkill, parent, parent, 0), libc::EPERM);
    });
    let pid = child(|| {
        // The real or effective id of the sender must be the real or saved id of the receiver.
        ok!(sys!(libc::SYS_setresuid, 1001, 1002, 1001));
        sleep_ms(60_000);
    });
    until("the child has other ids", || text(&format!("/proc/{pid}/status")).contains("Uid:\t1001\t1002\t1001"));
    as_user(1002, || err!(kill(pid, libc::SIGKILL), libc::EPERM));
    as_user(1001, || eq!(kill(pid, libc::SIGKILL), 0));
    wait(pid);
}

fn exec_setuid_program() {
    need_root();
    let me = slurp(&tool::me());
    file("prog", &me);
    ok!(sys!(libc::SYS_chown, c("prog").as_ptr(), 1234, 4321));
    ok!(sys!(libc::SYS_chmod, c("prog").as_ptr(), 0o6755));
    let run = |privs: bool| {
        let (r, w) = pipe();
        let pid = child(|| {
            ok!(sys!(libc::SYS_dup2, w, 1));
            ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
            if !privs {
                ok!(sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            }
            let argv = tool::Argv::tool(&["ids"]);
            ok!(sys!(libc::SYS_execve, c("prog").as_ptr(), argv.as_ptr(), 0));
        });
        close(w);
        reap(pid);
        String::from_utf8_lossy(&read(r, 100)).into_owned()
    };
    let got = run(true);
    if got == "1001 1001 1001\n" {
        skip("this file system is mounted nosuid");
    }
    eq!(got, "1001 1234 1234\n");
    eq!(run(false), "1001 1001 1001\n");
}

fn threads_have_their_own() {
    need_root();
    // The raw calls change the calling thread alone.
    std::thread::spawn(|| {
        ok!(sys!(libc::SYS_setresuid, 5, 5, 5));
        eq!(sys!(libc::SYS_geteuid), 5);
    })
    .join()
    .expect("joined");
    eq!(sys!(libc::SYS_geteuid), 0);
}

fn umask_call() {
    let old = sys!(libc::SYS_umask, 0o7777);
    eq!(sys!(libc::SYS_umask, old), 0o777);
    in_child(|| {
        sys!(libc::SYS_umask, 0o123);
    });
    eq!(sys!(libc::SYS_umask, 0), old);
}

fn dac_override_is_a_capability() {
    need_root();
    file("f", b"secret");
    ok!(sys!(libc::SYS_chown, c("f").as_ptr(), 77, 77));
    ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o600));
    in_child(|| {
        ok!(open("f", libc::O_RDWR, 0));
        let all = capget();
        ok!(capset(Caps { effective: all.effective & !(1 << 1 | 1 << 2), ..all }));
        err!(open("f", libc::O_RDONLY, 0), libc::EACCES);
        // CAP_DAC_READ_SEARCH alone is enough for reading.
        if all.permitted & 1 << 2 != 0 {
            ok!(capset(Caps { effective: all.effective & !(1 << 1), ..all }));
            ok!(open("f", libc::O_RDONLY, 0));
            err!(open("f", libc::O_WRONLY, 0), libc::EACCES);
        }
    });
}

fn secure_bits() {
    eq!(sys!(libc::SYS_prctl, libc::PR_GET_SECUREBITS, 0, 0, 0, 0), 0);
    as_user(1001, || err!(sys!(libc::SYS_prctl, libc::PR_SET_SECUREBITS, 1, 0, 0, 0), libc::EPERM));
}

fn ambient() {
    need_root();
    in_child(|| {
        let all = capget();
        err!(sys!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, 10, 0, 0), libc::EPERM);
        if all.permitted & 1 << 10 == 0 {
            skip("no CAP_NET_BIND_SERVICE");
        }
        ok!(capset(Caps { inheritable: 1 << 10, ..all }));
        ok!(sys!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, 10, 0, 0));
        eq!(sys!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, 10, 0, 0), 1);
        ok!(sys!(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
        ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
        // An ordinary program keeps it over exec.
        ok!(sys!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
        eq!(sys!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, 10, 0, 0), 0);
    });
}
