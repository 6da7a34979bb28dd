//! Calls that are another form of one with a family of its own: older ones, and those that take a directory or a link.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("forms": renameat_call, symlinkat_call, faccessat_call, getdents_call, futimesat_call, fchmodat2_flags,
    xattr_of_links, flistxattr_call, eventfd_call, signalfd_call, mlock2_call, munlockall_call, pkey_mprotect_without_key,
    process_vm_copies, process_vm_errors, adjtimex_reads, settimeofday_errors, mempolicy_of_one_node, mbind_errors,
    syslog_errors, lseek_rests, fallocate_order, utimensat_order, flags_after_descriptor, nothing_from_a_socket,
    continue_is_dropped, signal_of_kill_has_no_value);

fn directory(path: &str) -> i32 {
    ok!(mkdir(path, 0o755));
    ok!(open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32
}

fn renameat_call() {
    let (a, b) = (directory("a"), directory("b"));
    file("a/f", b"moved");
    ok!(sys!(libc::SYS_renameat, a, c("f").as_ptr(), b, c("g").as_ptr()));
    eq!(slurp("b/g"), b"moved");
    err!(stat("a/f").0, libc::ENOENT);
    err!(sys!(libc::SYS_renameat, a, c("f").as_ptr(), b, c("g").as_ptr()), libc::ENOENT);
    err!(sys!(libc::SYS_renameat, 999, c("f").as_ptr(), b, c("g").as_ptr()), libc::EBADF);
    err!(sys!(libc::SYS_renameat, b, c("g").as_ptr(), b, BAD), libc::EFAULT);
}

fn symlinkat_call() {
    let dir = directory("d");
    ok!(sys!(libc::SYS_symlinkat, c("target").as_ptr(), dir, c("l").as_ptr()));
    let mut buf = [0u8; 16];
    eq!(sys!(libc::SYS_readlinkat, dir, c("l").as_ptr(), buf.as_mut_ptr(), 16), 6);
    eq!(&buf[..6], b"target");
    err!(sys!(libc::SYS_symlinkat, c("target").as_ptr(), dir, c("l").as_ptr()), libc::EEXIST);
    err!(sys!(libc::SYS_symlinkat, c("").as_ptr(), dir, c("m").as_ptr()), libc::ENOENT);
    err!(sys!(libc::SYS_symlinkat, c("target").as_ptr(), 999, c("m").as_ptr()), libc::EBADF);
    let f = new_file("f", b"");
    err!(sys!(libc::SYS_symlinkat, c("target").as_ptr(), f, c("m").as_ptr()), libc::ENOTDIR);
}

fn faccessat_call() {
    let dir = directory("d");
    file("d/f", b"");
    let access = |fd: i32, path: &str, mode: i32| sys!(libc::SYS_faccessat, fd, c(path).as_ptr(), mode);
    ok!(access(dir, "f", libc::R_OK | libc::W_OK));
    err!(access(dir, "f", libc::X_OK), libc::EACCES);
    err!(access(dir, "g", libc::F_OK), libc::ENOENT);
    err!(access(dir, "f", 8), libc::EINVAL);
    err!(access(999, "f", 0), libc::EBADF);
    // The call has three arguments: what would be flags is not looked at.
    ok!(sys!(libc::SYS_faccessat, dir, c("f").as_ptr(), 0, -1));
}

fn getdents_call() {
    let dir = directory("d");
    ["one", "two"].iter().for_each(|name| file(&format!("d/{name}"), b""));
    let mut buf = [0u8; 1024];
    let n = ok!(sys!(libc::SYS_getdents, dir, buf.as_mut_ptr(), buf.len())) as usize;
    let (mut at, mut names) = (0, Vec::new());
    while at < n {
        let len = usize::from(u16::from_ne_bytes([buf[at + 16], buf[at + 17]]));
        check!(len >= 20 && at + len <= n && len.is_multiple_of(8), "record of {len} bytes at {at} of {n}");
        let name: Vec<u8> = buf[at + 18..at + len - 1].iter().copied().take_while(|&b| b != 0).collect();
        let expected = if name.starts_with(b".") { libc::DT_DIR } else { libc::DT_REG };
        // The type stands in the last byte of the record.
        check!([expected, libc::DT_UNKNOWN].contains(&buf[at + len - 1]), "type {} of {name:?}", buf[at + len - 1]);
        names.push(String::from_utf8_lossy(&name).into_owned());
        at += len;
    }
    names.sort();
    eq!(names, [".", "..", "one", "two"]);
    eq!(sys!(libc::SYS_getdents, dir, buf.as_mut_ptr(), buf.len()), 0);
    ok!(sys!(libc::SYS_lseek, dir, 0, libc::SEEK_SET));
    err!(sys!(libc::SYS_getdents, dir, buf.as_mut_ptr(), 10), libc::EINVAL);
    err!(sys!(libc::SYS_getdents, dir, BAD, 1024), libc::EFAULT);
    err!(sys!(libc::SYS_getdents, new_file("f", b""), buf.as_mut_ptr(), 1024), libc::ENOTDIR);
}

fn futimesat_call() {
    let dir = directory("d");
    file("d/f", b"");
    let times = [libc::timeval { tv_sec: 1000, tv_usec: 5 }, libc::timeval { tv_sec: 2000, tv_usec: 7 }];
    ok!(sys!(libc::SYS_futimesat, dir, c("f").as_ptr(), times.as_ptr()));
    let st = stat("d/f").1;
    eq!((st.st_atime, st.st_atime_nsec, st.st_mtime, st.st_mtime_nsec), (1000, 5000, 2000, 7000));
    // Without a path the descriptor itself is meant.
    ok!(sys!(libc::SYS_futimesat, dir, 0, times.as_ptr()));
    eq!(stat("d").1.st_mtime, 2000);
    let wrong = [libc::timeval { tv_sec: 0, tv_usec: 1_000_000 }; 2];
    err!(sys!(libc::SYS_futimesat, dir, c("f").as_ptr(), wrong.as_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_futimesat, dir, c("f").as_ptr(), BAD), libc::EFAULT);
    err!(sys!(libc::SYS_futimesat, 999, c("f").as_ptr(), 0), libc::EBADF);
}

fn fchmodat2_flags() {
    file("f", b"");
    let change = |fd: i32, path: &str, mode: u32, flags: i32| sys!(452, fd, c(path).as_ptr(), mode, flags);
    if change(libc::AT_FDCWD, "f", 0o640, 0) == -i64::from(libc::ENOSYS) {
        skip("this kernel has no fchmodat2");
    }
    eq!(stat("f").1.st_mode & 0o7777, 0o640);
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    ok!(change(fd, "", 0o600, libc::AT_EMPTY_PATH));
    eq!(stat("f").1.st_mode & 0o7777, 0o600);
    err!(change(fd, "", 0o600, 0), libc::ENOENT);
    err!(change(libc::AT_FDCWD, "f", 0o600, 1), libc::EINVAL);
    ok!(symlink("f", "l"));
    err!(change(libc::AT_FDCWD, "l", 0o600, libc::AT_SYMLINK_NOFOLLOW), libc::EOPNOTSUPP);
}

fn with_attributes() {
    file("f", b"");
    let set = sys!(libc::SYS_setxattr, c("f").as_ptr(), c("user.a").as_ptr(), b"1".as_ptr(), 1, 0);
    if set == -i64::from(libc::EOPNOTSUPP) {
        skip("this file system has no user attributes");
    }
    ok!(set);
    ok!(symlink("f", "l"));
}

fn xattr_of_links() {
    with_attributes();
    let (mut buf, name) = ([0u8; 64], c("user.a"));
    // A link has no user attributes of its own, and the file behind it is not meant.
    err!(sys!(libc::SYS_lgetxattr, c("l").as_ptr(), name.as_ptr(), buf.as_mut_ptr(), 64), libc::ENODATA);
    eq!(sys!(libc::SYS_lgetxattr, c("f").as_ptr(), name.as_ptr(), buf.as_mut_ptr(), 64), 1);
    eq!(sys!(libc::SYS_llistxattr, c("l").as_ptr(), buf.as_mut_ptr(), 64), 0);
    eq!(sys!(libc::SYS_llistxattr, c("f").as_ptr(), buf.as_mut_ptr(), 64), 7);
    eq!(&buf[..7], b"user.a\0");
    err!(sys!(libc::SYS_lremovexattr, c("l").as_ptr(), name.as_ptr()), libc::EPERM);
    ok!(sys!(libc::SYS_lremovexattr, c("f").as_ptr(), name.as_ptr()));
    err!(sys!(libc::SYS_lremovexattr, c("f").as_ptr(), name.as_ptr()), libc::ENODATA);
    err!(sys!(libc::SYS_lremovexattr, c("missing").as_ptr(), name.as_ptr()), libc::ENOENT);
}

fn flistxattr_call() {
    with_attributes();
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let mut buf = [0u8; 64];
    eq!(sys!(libc::SYS_flistxattr, fd, 0, 0), 7);
    eq!(sys!(libc::SYS_flistxattr, fd, buf.as_mut_ptr(), 64), 7);
    eq!(&buf[..7], b"user.a\0");
    err!(sys!(libc::SYS_flistxattr, fd, buf.as_mut_ptr(), 6), libc::ERANGE);
    err!(sys!(libc::SYS_flistxattr, 999, 0, 0), libc::EBADF);
    let path = ok!(open("f", libc::O_PATH, 0)) as i32;
    err!(sys!(libc::SYS_flistxattr, path, 0, 0), libc::EBADF);
}

fn eventfd_call() {
    let fd = ok!(sys!(libc::SYS_eventfd, 7)) as i32;
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
    eq!(fcntl(fd, libc::F_GETFL, 0), i64::from(libc::O_RDWR));
    eq!(read(fd, 8), 7u64.to_ne_bytes());
}

fn signalfd_call() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    let mask = bit(libc::SIGUSR1);
    let fd = ok!(sys!(libc::SYS_signalfd, -1, &mask as *const _, 8)) as i32;
    eq!(fcntl(fd, libc::F_GETFD, 0), 0);
    kill(getpid(), libc::SIGUSR1);
    let info = read(fd, 128);
    eq!(info.len(), 128);
    eq!(info[0], libc::SIGUSR1 as u8);
    err!(sys!(libc::SYS_signalfd, -1, &mask as *const _, 4), libc::EINVAL);
    err!(sys!(libc::SYS_signalfd, 999, &mask as *const _, 8), libc::EBADF);
    err!(sys!(libc::SYS_signalfd, -1, BAD, 8), libc::EFAULT);
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn mlock2_call() {
    let at = map(2 * PAGE, RW);
    ok!(sys!(libc::SYS_mlock2, at, PAGE, 0));
    ok!(sys!(libc::SYS_mlock2, at, PAGE, libc::MLOCK_ONFAULT));
    err!(sys!(libc::SYS_mlock2, at, PAGE, 2), libc::EINVAL);
    ok!(sys!(libc::SYS_munlock, at, 2 * PAGE));
    ok!(sys!(libc::SYS_munmap, at.wrapping_add(PAGE), PAGE));
    err!(sys!(libc::SYS_mlock2, at, 2 * PAGE, 0), libc::ENOMEM);
}

fn munlockall_call() {
    let locked = || -> u64 {
        let status = text("/proc/self/status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(u64::MAX)
    };
    let at = map(4 * PAGE, RW);
    ok!(sys!(libc::SYS_mlock, at, 4 * PAGE));
    eq!(locked(), 16);
    ok!(sys!(libc::SYS_munlockall));
    eq!(locked(), 0);
}

fn pkey_mprotect_without_key() {
    let at = map(PAGE, RW);
    ok!(sys!(libc::SYS_pkey_mprotect, at, PAGE, libc::PROT_READ, -1));
    err!(sys!(libc::SYS_read, open("/dev/zero", 0, 0) as i32, at, 1), libc::EFAULT);
    ok!(sys!(libc::SYS_pkey_mprotect, at, PAGE, RW, -1));
    eq!(sys!(libc::SYS_read, open("/dev/zero", 0, 0) as i32, at, 1), 1);
    // A key that was not allocated.
    err!(sys!(libc::SYS_pkey_mprotect, at, PAGE, RW, 9), libc::EINVAL);
}

fn iov(base: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut _, iov_len: len }
}

fn process_vm_copies() {
    let there = map(2 * PAGE, RW);
    let (ready, say) = pipe();
    let (wait_for, go) = pipe();
    let pid = child(|| {
        // SAFETY: our own new mapping.
        unsafe { std::slice::from_raw_parts_mut(there, 8).copy_from_slice(b"original") };
        write(say, b"x");
        read(wait_for, 1);
        // SAFETY: as above.
        let now = unsafe { std::slice::from_raw_parts(there, 8) };
        exit(if now == b"oNEWinal" { 0 } else { 1 });
    });
    read(ready, 1);
    let mut buf = [0u8; 8];
    // In two parts here, in one there.
    let local = [iov(buf.as_mut_ptr() as u64, 3), iov(buf.as_mut_ptr() as u64 + 3, 5)];
    let remote = [iov(there as u64, 8)];
    let read_call = |flags: i32| {
        sys!(libc::SYS_process_vm_readv, pid, local.as_ptr(), 2, remote.as_ptr(), 1, flags)
    };
    if read_call(0) == -i64::from(libc::EPERM) {
        kill(pid, libc::SIGKILL);
        wait(pid);
        skip("reading another process is forbidden here");
    }
    eq!(read_call(0), 8);
    eq!(&buf, b"original");
    err!(read_call(1), libc::EINVAL);
    let (local, remote) = ([iov(b"NEW".as_ptr() as u64, 3)], [iov(there as u64 + 1, 3)]);
    eq!(sys!(libc::SYS_process_vm_writev, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0), 3);
    write(go, b"x");
    reap(pid);
}

fn process_vm_errors() {
    let mut buf = [0u8; 8];
    let local = [iov(buf.as_mut_ptr() as u64, 8)];
    let call = |pid: i32, remote: u64, len: usize| {
        let remote = [iov(remote, len)];
        sys!(libc::SYS_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
    };
    let (page, end) = guarded_page();
    err!(call(getpid(), BAD, 8), libc::EFAULT);
    eq!(call(getpid(), page as u64, 8), 8);
    // What can be read before the fault counts, in whole elements of the list.
    eq!(call(getpid(), end - 4, 8), 4);
    err!(call(0x3fff_ffff, page as u64, 8), libc::ESRCH);
    eq!(call(getpid(), page as u64, 0), 0);
    err!(sys!(libc::SYS_process_vm_writev, getpid(), BAD, 1, local.as_ptr(), 1, 0), libc::EFAULT);
    err!(sys!(libc::SYS_process_vm_writev, getpid(), local.as_ptr(), 1025, local.as_ptr(), 1, 0), libc::EINVAL);
}

fn adjtimex_reads() {
    let mut buf: libc::timex = zeroed();
    let state = ok!(sys!(libc::SYS_adjtimex, &mut buf as *mut _));
    check!((0..=5).contains(&state), "{state}");
    check!((900..=1100).contains(&(buf.tick / 10)), "tick {}", buf.tick);
    let mut again: libc::timex = zeroed();
    ok!(sys!(libc::SYS_clock_adjtime, libc::CLOCK_REALTIME, &mut again as *mut _));
    eq!((again.tick, again.precision, again.tolerance), (buf.tick, buf.precision, buf.tolerance));
    check!(again.time.tv_sec >= buf.time.tv_sec);
    err!(sys!(libc::SYS_adjtimex, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_clock_adjtime, 99, &mut again as *mut _), libc::EINVAL);
    err!(sys!(libc::SYS_clock_adjtime, libc::CLOCK_MONOTONIC, &mut again as *mut _), libc::EOPNOTSUPP);
}

fn settimeofday_errors() {
    let bad = libc::timeval { tv_sec: 0, tv_usec: -1 };
    err!(sys!(libc::SYS_settimeofday, &bad as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_settimeofday, BAD, 0), libc::EFAULT);
    in_child(|| {
        if is_root() {
            drop_root();
        }
        let one = libc::timeval { tv_sec: 1_000_000_000, tv_usec: 0 };
        err!(sys!(libc::SYS_settimeofday, &one as *const _, 0), libc::EPERM);
    });
}

fn mempolicy_of_one_node() {
    let mut mode = -1i32;
    if sys!(libc::SYS_get_mempolicy, &mut mode as *mut _, 0, 0, 0, 0) == -i64::from(libc::ENOSYS) {
        skip("this kernel has no memory policies");
    }
    eq!(mode, 0);
    let mut mask = [0u64; 16];
    ok!(sys!(libc::SYS_get_mempolicy, 0, mask.as_mut_ptr(), 1024, 0, 4));
    check!(mask[0] & 1 == 1, "allowed nodes {:#x}", mask[0]);
    ok!(sys!(libc::SYS_set_mempolicy, 0, 0, 0));
    let node = 1u64;
    // MPOL_DEFAULT takes no nodes; there is no mode 99.
    err!(sys!(libc::SYS_set_mempolicy, 0, &node as *const _, 64), libc::EINVAL);
    err!(sys!(libc::SYS_set_mempolicy, 99, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_set_mempolicy, 2, BAD, 64), libc::EFAULT);
    let at = map(PAGE, RW);
    ok!(sys!(libc::SYS_mbind, at, PAGE, 2, &node as *const _, 64, 0));
    ok!(sys!(libc::SYS_mbind, at, PAGE, 0, 0, 0, 0));
    err!(sys!(libc::SYS_get_mempolicy, &mut mode as *mut _, 0, 0, at, 0), libc::EINVAL);
}

fn mbind_errors() {
    let at = map(PAGE, RW);
    let node = 1u64;
    if sys!(libc::SYS_mbind, at, PAGE, 0, 0, 0, 0) == -i64::from(libc::ENOSYS) {
        skip("this kernel has no memory policies");
    }
    err!(sys!(libc::SYS_mbind, at.wrapping_add(1), PAGE, 2, &node as *const _, 64, 0), libc::EINVAL);
    err!(sys!(libc::SYS_mbind, at, PAGE, 2, &node as *const _, 64, 0x100), libc::EINVAL);
    err!(sys!(libc::SYS_mbind, at, PAGE, 2, BAD, 64, 0), libc::EFAULT);
    ok!(sys!(libc::SYS_munmap, at, PAGE));
    err!(sys!(libc::SYS_mbind, at, PAGE, 2, &node as *const _, 64, 0), libc::EFAULT);
}

fn syslog_errors() {
    let mut buf = [0u8; 16];
    err!(sys!(libc::SYS_syslog, 99, buf.as_mut_ptr(), 16), libc::EINVAL);
    in_child(|| {
        if is_root() {
            drop_root();
        }
        err!(sys!(libc::SYS_syslog, 5, 0, 0), libc::EPERM);
    });
    let size = sys!(libc::SYS_syslog, 10, 0, 0);
    if size == -i64::from(libc::EPERM) {
        skip("the log is not for everyone here");
    }
    check!(size > 0, "{size} bytes");
    err!(sys!(libc::SYS_syslog, 3, 0, 16), libc::EINVAL);
    err!(sys!(libc::SYS_syslog, 3, buf.as_mut_ptr(), -1), libc::EINVAL);
    eq!(sys!(libc::SYS_syslog, 3, buf.as_mut_ptr(), 0), 0);
}

fn lseek_rests() {
    let timer = ok!(sys!(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0)) as i32;
    let epoll = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let event = ok!(sys!(libc::SYS_eventfd2, 0, 0)) as i32;
    let notify = ok!(sys!(libc::SYS_inotify_init1, 0)) as i32;
    for fd in [timer, epoll, event, notify] {
        eq!(sys!(libc::SYS_lseek, fd, 7, libc::SEEK_SET), 0);
        eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_END), 0);
        err!(sys!(libc::SYS_lseek, fd, 0, 9), libc::EINVAL);
    }
    err!(sys!(libc::SYS_lseek, pipe().0, 0, libc::SEEK_CUR), libc::ESPIPE);
}

fn fallocate_order() {
    let dir = directory("d");
    // Modes that do not exist are found before the descriptor that is not open for writing.
    err!(sys!(libc::SYS_fallocate, dir, libc::FALLOC_FL_PUNCH_HOLE, 0, 1), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_fallocate, dir, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_fallocate, dir, 0, 0, 1), libc::EBADF);
    err!(sys!(libc::SYS_fallocate, 999, 0, -1, 1), libc::EBADF);
}

fn utimensat_order() {
    file("f", b"");
    let wrong = [[0i64, 1_000_000_000], [0, 0]];
    err!(sys!(libc::SYS_utimensat, -100, c("missing").as_ptr(), wrong.as_ptr(), 0), libc::ENOENT);
    err!(sys!(libc::SYS_utimensat, -100, c("f").as_ptr(), wrong.as_ptr(), 0), libc::EINVAL);
}

fn flags_after_descriptor() {
    let mut buf = [0u8; 4];
    let part = [iov(buf.as_mut_ptr() as u64, 4)];
    let (r, w) = pipe();
    err!(sys!(libc::SYS_pwritev2, r, part.as_ptr(), 1, -1, 0, 1 << 20), libc::EBADF);
    err!(sys!(libc::SYS_preadv2, w, part.as_ptr(), 1, -1, 0, 1 << 20), libc::EBADF);
    err!(sys!(libc::SYS_preadv2, 999, part.as_ptr(), 1, -1, 0, 1 << 20), libc::EBADF);
}

fn nothing_from_a_socket() {
    let mut pair = [0i32; 2];
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        ok!(sys!(libc::SYS_socketpair, libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0, pair.as_mut_ptr()));
        eq!(sys!(libc::SYS_read, pair[0], 0, 0), 0);
        // A message is not lost by it.
        write(pair[1], b"kept");
        eq!(sys!(libc::SYS_read, pair[0], 0, 0), 0);
        eq!(read(pair[0], 10), b"kept");
    }
}

fn continue_is_dropped() {
    catch(libc::SIGCONT, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGCONT));
    kill(getpid(), libc::SIGCONT);
    eq!(pending(), bit(libc::SIGCONT));
    disposition(libc::SIGCONT, libc::SIG_DFL);
    eq!(pending(), 0);
}

fn signal_of_kill_has_no_value() {
    let mask = bit(libc::SIGUSR1);
    sigmask(libc::SIG_BLOCK, mask);
    let fd = ok!(sys!(libc::SYS_signalfd4, -1, &mask as *const _, 8, 0)) as i32;
    let mut info: libc::siginfo_t = zeroed();
    info.si_signo = libc::SIGUSR1;
    info.si_code = libc::SI_USER;
    // SAFETY: within the structure.
    unsafe { (&raw mut info).cast::<u64>().add(3).write(77) };
    ok!(sys!(libc::SYS_rt_sigqueueinfo, getpid(), libc::SIGUSR1, &info as *const _));
    let seen = read(fd, 128);
    eq!(&seen[44..56], &[0u8; 12]);
    info.si_code = libc::SI_QUEUE;
    ok!(sys!(libc::SYS_rt_sigqueueinfo, getpid(), libc::SIGUSR1, &info as *const _));
    eq!(read(fd, 128)[44], 77);
}
