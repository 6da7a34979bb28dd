//! uname(2), sysinfo(2), getrandom(2), prctl(2), arch_prctl(2) and other single calls.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("misc": uname_call, hostname, sysinfo_call, random, random_errors, thread_name, dumpable, prctl_errors, arch_prctl_calls,
    personality_call, membarrier_call, unknown_calls, refused_calls, set_tid_address_call, restart_syscall_call, rseq_or_enosys,
    registers_after_a_call, flags_after_a_call, many_calls, subreaper_flag, getrandom_is_random, int80_and_x32, name_errors,
    mount_errors, sync_call, death_signal_errors, wild_arguments);

fn uname_call() {
    let mut name: libc::utsname = zeroed();
    ok!(sys!(libc::SYS_uname, &mut name as *mut _));
    let text = |field: &[libc::c_char]| {
        let bytes: Vec<u8> = field.iter().map(|&b| b as u8).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    eq!(text(&name.sysname), "Linux");
    eq!(text(&name.machine), "x86_64");
    let release = text(&name.release);
    check!(release.split('.').next().and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n >= 5), "{release}");
    err!(sys!(libc::SYS_uname, BAD), libc::EFAULT);
    eq!(std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(), release);
}

fn hostname() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut uts: libc::utsname = zeroed();
    ok!(sys!(libc::SYS_uname, &mut uts as *mut _));
    let node: Vec<u8> = uts.nodename.iter().map(|&b| b as u8).take_while(|&b| b != 0).collect();
    eq!(name.trim().as_bytes(), node);
}

fn sysinfo_call() {
    let mut info: libc::sysinfo = zeroed();
    ok!(sys!(libc::SYS_sysinfo, &mut info as *mut _));
    check!(info.totalram > 0 && info.freeram <= info.totalram && info.mem_unit > 0 && info.procs > 0 && info.uptime >= 0);
    err!(sys!(libc::SYS_sysinfo, BAD), libc::EFAULT);
}

fn random() {
    let mut buf = [0u8; 300];
    eq!(sys!(libc::SYS_getrandom, buf.as_mut_ptr(), 256, 0), 256);
    check!(buf[..256].iter().any(|&b| b != 0));
    eq!(buf[256..], [0; 44]);
    eq!(sys!(libc::SYS_getrandom, buf.as_mut_ptr(), 0, 0), 0);
    for flags in [libc::GRND_NONBLOCK, libc::GRND_RANDOM, libc::GRND_INSECURE] {
        eq!(sys!(libc::SYS_getrandom, buf.as_mut_ptr(), 16, flags), 16);
    }
    let mut big = vec![0u8; 1 << 20];
    eq!(sys!(libc::SYS_getrandom, big.as_mut_ptr(), big.len(), 0), 1 << 20);
}

fn random_errors() {
    err!(sys!(libc::SYS_getrandom, BAD, 10, 0), libc::EFAULT);
    err!(sys!(libc::SYS_getrandom, 0, 10, 64), libc::EINVAL);
    err!(sys!(libc::SYS_getrandom, 0, 10, libc::GRND_RANDOM | libc::GRND_INSECURE), libc::EINVAL);
}

fn getrandom_is_random() {
    let one = || {
        let mut buf = [0u8; 32];
        ok!(sys!(libc::SYS_getrandom, buf.as_mut_ptr(), 32, 0));
        buf
    };
    let mine = one();
    check!(mine != one());
    // A forked child does not repeat its parent's bytes.
    let (r, w) = pipe();
    let pid = child(|| eq!(write(w, &one()), 32));
    let next = one();
    check!(read(r, 32) != next);
    reap(pid);
}

fn thread_name() {
    let name = || {
        let mut buf = [0u8; 16];
        ok!(sys!(libc::SYS_prctl, libc::PR_GET_NAME, buf.as_mut_ptr(), 0, 0, 0));
        String::from_utf8_lossy(&buf).trim_end_matches('\0').to_string()
    };
    ok!(sys!(libc::SYS_prctl, libc::PR_SET_NAME, c("a name that is too long").as_ptr(), 0, 0, 0));
    eq!(name(), "a name that is ");
    std::thread::spawn(move || {
        ok!(sys!(libc::SYS_prctl, libc::PR_SET_NAME, c("other").as_ptr(), 0, 0, 0));
        eq!(name(), "other");
        eq!(text(&format!("/proc/self/task/{}/comm", gettid())), "other\n");
    })
    .join()
    .expect("joined");
    eq!(name(), "a name that is ");
    err!(sys!(libc::SYS_prctl, libc::PR_SET_NAME, BAD, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_prctl, libc::PR_GET_NAME, BAD, 0, 0, 0), libc::EFAULT);
}

fn dumpable() {
    eq!(sys!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 1);
    ok!(sys!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0));
    eq!(sys!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    err!(sys!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 2, 0, 0, 0), libc::EINVAL);
}

fn prctl_errors() {
    err!(sys!(libc::SYS_prctl, 9999, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, 65, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_prctl, libc::PR_GET_PDEATHSIG, BAD, 0, 0, 0), libc::EFAULT);
}

fn death_signal_errors() {
    let mut signal = -1i32;
    ok!(sys!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0));
    ok!(sys!(libc::SYS_prctl, libc::PR_GET_PDEATHSIG, &mut signal as *mut i32, 0, 0, 0));
    eq!(signal, libc::SIGTERM);
    in_child(|| {
        let mut signal = -1i32;
        ok!(sys!(libc::SYS_prctl, libc::PR_GET_PDEATHSIG, &mut signal as *mut i32, 0, 0, 0));
        eq!(signal, 0);
    });
}

fn arch_prctl_calls() {
    const GET_FS: i32 = 0x1003;
    const GET_GS: i32 = 0x1004;
    const SET_GS: i32 = 0x1001;
    let (mut fs, mut gs) = (0u64, 1u64);
    ok!(sys!(libc::SYS_arch_prctl, GET_FS, &mut fs as *mut u64));
    let here: u64;
    // SAFETY: the thread pointer points at itself on x86-64.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) here) };
    eq!(fs, here);
    let word = 0x1234_5678u64;
    ok!(sys!(libc::SYS_arch_prctl, SET_GS, &word as *const u64));
    let through: u64;
    // SAFETY: gs points at `word` now.
    unsafe { std::arch::asm!("mov {}, gs:0", out(reg) through) };
    eq!(through, word);
    ok!(sys!(libc::SYS_arch_prctl, GET_GS, &mut gs as *mut u64));
    eq!(gs, &word as *const u64 as u64);
    err!(sys!(libc::SYS_arch_prctl, 0x9999, 0), libc::EINVAL);
    err!(sys!(libc::SYS_arch_prctl, GET_FS, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_arch_prctl, SET_GS, 1u64 << 63), libc::EPERM);
}

fn personality_call() {
    eq!(sys!(libc::SYS_personality, 0xffff_ffffu32), 0);
    eq!(sys!(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE), 0);
    eq!(sys!(libc::SYS_personality, 0xffff_ffffu32), i64::from(libc::ADDR_NO_RANDOMIZE));
}

fn membarrier_call() {
    let supported = sys!(libc::SYS_membarrier, 0, 0, 0);
    if supported == -i64::from(libc::ENOSYS) {
        skip("no membarrier");
    }
    ok!(supported);
    err!(sys!(libc::SYS_membarrier, 1 << 20, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_membarrier, 0, 1 << 20, 0), libc::EINVAL);
}

fn unknown_calls() {
    for nr in [390, 400, 470 + 100, 1000, 0x7fff_ffff, -1] {
        err!(sys!(nr, 1, 2, 3, 4, 5, 6), libc::ENOSYS);
    }
    // The number is 32 bits wide.
    eq!(sys!(1 << 40 | libc::SYS_getpid), i64::from(getpid()));
    // Calls that Linux once had.
    for nr in [134, 156, 174, 177, 178, 180, 181, 182, 183, 184, 185, 205, 211, 214, 215, 236] {
        err!(sys!(nr), libc::ENOSYS);
    }
}

fn refused_calls() {
    // As an ordinary user these are refused or not there, never done.
    in_child(|| {
        if is_root() {
            ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
        }
        for nr in [libc::SYS_reboot, libc::SYS_init_module, libc::SYS_kexec_load, libc::SYS_swapon, libc::SYS_iopl] {
            let r = sys!(nr, 3, 0, 0, 0);
            check!([libc::EPERM, libc::ENOSYS, libc::EINVAL].iter().any(|&e| r == -i64::from(e)), "call {nr}: {}", Code(r));
        }
    });
}

fn set_tid_address_call() {
    let mut word = 0i32;
    eq!(sys!(libc::SYS_set_tid_address, &mut word as *mut i32), i64::from(gettid()));
    ok!(sys!(libc::SYS_set_tid_address, 0));
}

fn restart_syscall_call() {
    err!(sys!(libc::SYS_restart_syscall), libc::EINTR);
}

fn rseq_or_enosys() {
    let r = sys!(libc::SYS_rseq, 0, 0, 0, 0);
    check!(r == -i64::from(libc::EINVAL) || r == -i64::from(libc::ENOSYS), "{}", Code(r));
}

fn registers_after_a_call() {
    // Everything but rax, rcx and r11 is as before; rcx holds the address behind, r11 the flags.
    for nr in [libc::SYS_getppid, libc::SYS_getpid, libc::SYS_sched_yield, libc::SYS_umask, 9999] {
        let (a, b, c, d, e, f, g, h, i): (u64, u64, u64, u64, u64, u64, u64, u64, u64);
        // SAFETY: a call without pointers.
        unsafe {
            std::arch::asm!(
                "push rbx",
                "push r12",
                "push r15",
                "mov rbx, 0x1111",
                "mov r12, 0x2222",
                "mov r15, 0x3333",
                "syscall",
                "mov rax, rbx",
                "mov rcx, r12",
                "mov r11, r15",
                "pop r15",
                "pop r12",
                "pop rbx",
                inout("rax") nr => a, out("rcx") b, out("r11") c,
                inout("rdi") 0o22u64 => d, inout("rsi") 2u64 => e, inout("rdx") 3u64 => f,
                inout("r10") 4u64 => g, inout("r8") 5u64 => h, inout("r9") 6u64 => i,
            );
        }
        eq!((a, b, c), (0x1111, 0x2222, 0x3333));
        eq!((d, e, f, g, h, i), (0o22, 2, 3, 4, 5, 6));
    }
    let (rcx, behind): (u64, u64);
    // SAFETY: a call without pointers.
    unsafe {
        std::arch::asm!(
            "syscall", "2:", "lea {b}, [rip + 2b]",
            b = out(reg) behind, inout("rax") libc::SYS_getppid => _, lateout("rcx") rcx, out("r11") _,
        );
    }
    eq!(rcx, behind);
}

fn flags_after_a_call() {
    // Carry, zero, sign and direction flags survive a call.
    for nr in [libc::SYS_getppid, libc::SYS_getpid, libc::SYS_umask] {
        let flags: u64;
        // SAFETY: a call without pointers; the direction flag is cleared again.
        unsafe {
            std::arch::asm!(
                "push 0xcd7", "popfq", "syscall", "pushfq", "pop {f}", "cld",
                f = out(reg) flags, inout("rax") nr => _, in("rdi") 0o22, out("rcx") _, out("r11") _,
            );
        }
        check!(flags & 0xcd5 == 0xcd5, "{flags:#x}");
    }
}

fn many_calls() {
    let mut last = 0;
    (0..20_000).for_each(|_| last = sys!(libc::SYS_getppid));
    check!(last > 0);
}

fn subreaper_flag() {
    let mut on = -1i32;
    ok!(sys!(libc::SYS_prctl, libc::PR_GET_CHILD_SUBREAPER, &mut on as *mut i32, 0, 0, 0));
    eq!(on, 0);
    ok!(sys!(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    ok!(sys!(libc::SYS_prctl, libc::PR_GET_CHILD_SUBREAPER, &mut on as *mut i32, 0, 0, 0));
    eq!(on, 1);
}

fn int80_and_x32() {
    // The 32-bit entry either works as 32-bit Linux or says ENOSYS; the process goes on with its registers.
    let r: u64;
    // SAFETY: getpid of the 32-bit table.
    unsafe { std::arch::asm!("int 0x80", inout("rax") 20u64 => r, out("r8") _, out("r9") _, out("r10") _, out("r11") _) };
    check!(r as i32 == getpid() || r as i32 == -libc::ENOSYS, "{}", r as i32);
    let r = sys!(0x4000_0000 + 39);
    check!(r == i64::from(getpid()) || r == -i64::from(libc::ENOSYS), "{}", Code(r));
}

fn name_errors() {
    need_root();
    err!(sys!(libc::SYS_sethostname, BAD, 5), libc::EFAULT);
    err!(sys!(libc::SYS_sethostname, c("x").as_ptr(), 65), libc::EINVAL);
    err!(sys!(libc::SYS_sethostname, c("x").as_ptr(), -1), libc::EINVAL);
}

fn mount_errors() {
    need_root();
    err!(sys!(libc::SYS_umount2, c("missing").as_ptr(), 0), libc::ENOENT);
    ok!(mkdir("d", 0o755));
    err!(sys!(libc::SYS_umount2, c("d").as_ptr(), 0), libc::EINVAL);
    err!(sys!(libc::SYS_mount, c("x").as_ptr(), c("d").as_ptr(), c("nosuchfs").as_ptr(), 0, 0), libc::ENODEV);
}

fn sync_call() {
    // Inside a sandbox only: on a host it can take long.
    if std::env::var("GUEST_TMP").is_err() {
        ok!(sys!(libc::SYS_sync));
    }
}

fn wild_arguments() {
    // Random arguments to calls that cannot do harm: any errno, but the process lives.
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        match seed % 7 {
            0 => 0,
            1 => u64::MAX,
            2 => seed,
            3 => BAD,
            4 => WILD + seed % 4096,
            5 => seed % 4096,
            _ => seed >> 17,
        }
    };
    in_child(|| {
        let calls = [
            libc::SYS_stat, libc::SYS_access, libc::SYS_pipe, libc::SYS_readv, libc::SYS_writev, libc::SYS_getcwd, libc::SYS_uname,
            libc::SYS_getitimer, libc::SYS_readlink, libc::SYS_statfs, libc::SYS_getrlimit, libc::SYS_sysinfo, libc::SYS_statx,
            libc::SYS_clock_gettime, libc::SYS_getresuid, libc::SYS_capget, libc::SYS_rt_sigpending, libc::SYS_getdents64,
            libc::SYS_mincore, libc::SYS_sched_getaffinity, libc::SYS_getrandom, libc::SYS_openat, libc::SYS_openat2,
            libc::SYS_epoll_ctl, libc::SYS_timer_create, libc::SYS_timerfd_settime, libc::SYS_fcntl, libc::SYS_ioctl,
        ];
        for _ in 0..200 {
            for nr in calls {
                let args = [next() | 1 << 62, next(), next(), next(), next(), next()];
                call(nr, &args);
            }
        }
    });
}
