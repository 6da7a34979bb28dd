//! Resource limits.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("rlimit": get_and_set, inherited, hard_limit_is_final, errors, prlimit_of_another, address_space, data_segment,
    processor_time, stack_limit_in_maps, infinity, shared_by_threads);

fn get(resource: u32) -> (u64, u64) {
    let mut limit: libc::rlimit = zeroed();
    ok!(sys!(libc::SYS_getrlimit, resource, &mut limit as *mut _));
    (limit.rlim_cur, limit.rlim_max)
}

fn set(resource: u32, cur: u64, max: u64) -> i64 {
    let limit = libc::rlimit { rlim_cur: cur, rlim_max: max };
    sys!(libc::SYS_setrlimit, resource, &limit as *const _)
}

fn get_and_set() {
    let (_, max) = get(libc::RLIMIT_NOFILE);
    ok!(set(libc::RLIMIT_NOFILE, 50, max));
    eq!(get(libc::RLIMIT_NOFILE), (50, max));
    for resource in 0..16 {
        let (cur, max) = get(resource);
        check!(cur <= max, "{resource}: {cur} {max}");
    }
}

fn inherited() {
    ok!(set(libc::RLIMIT_CORE, 0, 0));
    in_child(|| eq!(get(libc::RLIMIT_CORE), (0, 0)));
    let out = std::process::Command::new("/bin/sh").args(["-c", "ulimit -c"]).output().expect("a shell");
    eq!(String::from_utf8_lossy(&out.stdout), "0\n");
}

fn hard_limit_is_final() {
    ok!(set(libc::RLIMIT_NOFILE, 50, 60));
    ok!(set(libc::RLIMIT_NOFILE, 60, 60));
    in_child(|| {
        if is_root() {
            ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
        }
        err!(set(libc::RLIMIT_NOFILE, 60, 61), libc::EPERM);
        ok!(set(libc::RLIMIT_NOFILE, 10, 20));
    });
}

fn errors() {
    err!(set(libc::RLIMIT_NOFILE, 20, 10), libc::EINVAL);
    err!(sys!(libc::SYS_getrlimit, 16, 0), libc::EINVAL);
    err!(set(16, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_getrlimit, 0, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_setrlimit, 0, BAD), libc::EFAULT);
}

fn prlimit_of_another() {
    let pid = child(|| sleep_ms(60_000));
    let new = libc::rlimit { rlim_cur: 33, rlim_max: 44 };
    let mut old: libc::rlimit = zeroed();
    ok!(sys!(libc::SYS_prlimit64, pid, libc::RLIMIT_NOFILE, &new as *const _, &mut old as *mut _));
    ok!(sys!(libc::SYS_prlimit64, pid, libc::RLIMIT_NOFILE, 0, &mut old as *mut _));
    eq!((old.rlim_cur, old.rlim_max), (33, 44));
    kill(pid, libc::SIGKILL);
    wait(pid);
    err!(sys!(libc::SYS_prlimit64, pid, libc::RLIMIT_NOFILE, 0, &mut old as *mut _), libc::ESRCH);
    err!(sys!(libc::SYS_prlimit64, 0, 99, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_prlimit64, 0, 7, BAD, 0), libc::EFAULT);
}

fn address_space() {
    in_child(|| {
        ok!(set(libc::RLIMIT_AS, 256 << 20, 256 << 20));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        err!(sys!(libc::SYS_mmap, 0, 512 << 20, 3, flags, -1, 0), libc::ENOMEM);
        let p = ok!(sys!(libc::SYS_mmap, 0, 16 << 20, 3, flags, -1, 0));
        ok!(sys!(libc::SYS_munmap, p, 16 << 20));
    });
}

fn data_segment() {
    in_child(|| {
        ok!(set(libc::RLIMIT_DATA, 16 << 20, 16 << 20));
        let brk = sys!(libc::SYS_brk, 0);
        eq!(sys!(libc::SYS_brk, brk + (64 << 20)), brk);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        err!(sys!(libc::SYS_mmap, 0, 64 << 20, 3, flags, -1, 0), libc::ENOMEM);
    });
}

fn processor_time() {
    // SIGXCPU at the soft limit.
    let pid = child(|| {
        ok!(set(libc::RLIMIT_CPU, 1, 3));
        loop {
            std::hint::spin_loop();
        }
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGXCPU);
}

fn stack_limit_in_maps() {
    check!(text("/proc/self/limits").contains("Max open files"));
    check!(text("/proc/self/limits").lines().count() == 17);
}

fn infinity() {
    let (_, max) = get(libc::RLIMIT_FSIZE);
    if max == u64::MAX {
        ok!(set(libc::RLIMIT_FSIZE, u64::MAX, u64::MAX));
        eq!(get(libc::RLIMIT_FSIZE), (u64::MAX, u64::MAX));
    }
}

fn shared_by_threads() {
    std::thread::spawn(|| ok!(set(libc::RLIMIT_NOFILE, 77, 88))).join().expect("joined");
    eq!(get(libc::RLIMIT_NOFILE), (77, 88));
}
