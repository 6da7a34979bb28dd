//! mount(2), umount2(2), pivot_root(2), unshare(2), setns(2): each case in a mount namespace of its own.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("mount": tmpfs_and_umount, namespace_is_separate, bind, bind_of_a_file, bind_recursive, move_mount, read_only_remount,
    read_only_bind, nosuid_nodev_noexec, proc_again, sysfs_again, mount_over, umount_flags, umount_busy, expire, errors, umount_errors,
    unprivileged, pivot, pivot_errors, mountinfo_lines, mounts_follow_chroot, tmpfs_options, tmpfs_is_full, tmpfs_remount, propagation,
    devices_need_dev, symlink_targets, statfs_flags, chroot_escape, chroot_and_cwd, unshare_files, unshare_fs, unshare_errors,
    uts_namespace, uts_by_clone, setns_uts, setns_mount, setns_errors, namespace_links, rename_across_mounts, mount_point_is_busy,
    domain_name, host_name_limits, removed_mount_point, statx_mount_id, dot_dot_over_mounts, thread_needs_own_fs);

fn mount(source: &str, target: &str, kind: &str, flags: u64, data: &str) -> i64 {
    let (source, target, kind, data) = (c(source), c(target), c(kind), c(data));
    sys!(libc::SYS_mount, source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr())
}

fn umount(target: &str, flags: i32) -> i64 {
    sys!(libc::SYS_umount2, c(target).as_ptr(), flags)
}

/// Runs `body` in a child with mounts of its own, in which nothing is shared.
fn alone(body: impl FnOnce()) {
    need_root();
    in_child(|| {
        let r = sys!(libc::SYS_unshare, libc::CLONE_NEWNS);
        if r < 0 {
            skip("no mount namespaces");
        }
        ok!(mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, ""));
        body();
    });
}

fn exists(path: &str) -> bool {
    stat(path).0 == 0
}

fn tmpfs(target: &str) {
    ok!(mkdir(target, 0o755));
    ok!(mount("none", target, "tmpfs", 0, ""));
}

fn tmpfs_and_umount() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        file("m/below", b"");
        ok!(mount("thing", "m", "tmpfs", 0, ""));
        check!(!exists("m/below"));
        file("m/above", b"x");
        check!(stat("m").1.st_dev != stat(".").1.st_dev);
        ok!(umount("m", 0));
        check!(exists("m/below") && !exists("m/above"));
    });
}

fn namespace_is_separate() {
    ok!(mkdir("m", 0o755));
    alone(|| {
        ok!(mount("none", "m", "tmpfs", 0, ""));
        file("m/inside", b"");
        in_child(|| check!(exists("m/inside")));
    });
    check!(!exists("m/inside"));
}

fn bind() {
    alone(|| {
        ok!(mkdir("a", 0o755));
        ok!(mkdir("b", 0o755));
        file("a/x", b"1");
        ok!(mount("a", "b", "", libc::MS_BIND, ""));
        eq!(slurp("b/x"), b"1");
        file("b/y", b"2");
        eq!(slurp("a/y"), b"2");
        eq!((stat("a").1.st_dev, stat("a").1.st_ino), (stat("b").1.st_dev, stat("b").1.st_ino));
        ok!(umount("b", 0));
        check!(!exists("b/x"));
    });
}

fn bind_of_a_file() {
    alone(|| {
        file("a", b"from a");
        file("b", b"from b");
        ok!(mount("a", "b", "", libc::MS_BIND, ""));
        eq!(slurp("b"), b"from a");
        ok!(mkdir("d", 0o755));
        err!(mount("a", "d", "", libc::MS_BIND, ""), libc::ENOTDIR);
        err!(mount("d", "a", "", libc::MS_BIND, ""), libc::ENOTDIR);
        err!(unlink("b"), libc::EBUSY);
        ok!(umount("b", 0));
        eq!(slurp("b"), b"from b");
    });
}

fn bind_recursive() {
    alone(|| {
        ok!(mkdir("a", 0o755));
        tmpfs("a/m");
        file("a/m/deep", b"");
        ok!(mkdir("one", 0o755));
        ok!(mkdir("all", 0o755));
        ok!(mount("a", "one", "", libc::MS_BIND, ""));
        check!(!exists("one/m/deep"));
        ok!(mount("a", "all", "", libc::MS_BIND | libc::MS_REC, ""));
        check!(exists("all/m/deep"));
    });
}

fn move_mount() {
    alone(|| {
        tmpfs("a");
        file("a/x", b"");
        ok!(mkdir("b", 0o755));
        ok!(mount("a", "b", "", libc::MS_MOVE, ""));
        check!(exists("b/x") && !exists("a/x"));
        err!(mount("a", "b", "", libc::MS_MOVE, ""), libc::EINVAL);
        ok!(mkdir("b/in", 0o755));
        err!(mount("b", "b/in", "", libc::MS_MOVE, ""), libc::ELOOP);
    });
}

fn read_only_remount() {
    alone(|| {
        tmpfs("m");
        file("m/x", b"1");
        ok!(mount("none", "m", "", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY, ""));
        err!(open("m/x", libc::O_WRONLY, 0), libc::EROFS);
        err!(open("m/new", libc::O_CREAT | libc::O_WRONLY, 0o600), libc::EROFS);
        err!(mkdir("m/d", 0o700), libc::EROFS);
        err!(unlink("m/x"), libc::EROFS);
        err!(rename("m/x", "m/y"), libc::EROFS);
        err!(sys!(libc::SYS_chmod, c("m/x").as_ptr(), 0o600), libc::EROFS);
        err!(sys!(libc::SYS_truncate, c("m/x").as_ptr(), 0), libc::EROFS);
        err!(sys!(libc::SYS_access, c("m/x").as_ptr(), libc::W_OK), libc::EROFS);
        err!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("m/x").as_ptr(), 0, 0), libc::EROFS);
        err!(sys!(libc::SYS_setxattr, c("m/x").as_ptr(), c("user.a").as_ptr(), b"1".as_ptr(), 1, 0), libc::EROFS);
        eq!(slurp("m/x"), b"1");
        ok!(mount("none", "m", "", libc::MS_REMOUNT | libc::MS_BIND, ""));
        file("m/x", b"2");
    });
}

fn read_only_bind() {
    alone(|| {
        ok!(mkdir("a", 0o755));
        ok!(mkdir("b", 0o755));
        ok!(mount("a", "b", "", libc::MS_BIND, ""));
        ok!(mount("none", "b", "", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY, ""));
        err!(open("b/x", libc::O_CREAT | libc::O_WRONLY, 0o600), libc::EROFS);
        // The other mount of the same directory stays writable.
        file("a/x", b"");
        check!(exists("b/x"));
    });
}

fn nosuid_nodev_noexec() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        ok!(mount("none", "m", "tmpfs", libc::MS_NOEXEC | libc::MS_NODEV | libc::MS_NOSUID, ""));
        std::fs::copy(crate::tool::me(), "m/program").expect("a copy");
        ok!(sys!(libc::SYS_chmod, c("m/program").as_ptr(), 0o755));
        let argv = crate::tool::Argv::new(&["program", "tool", "exit", "0"]);
        err!(sys!(libc::SYS_execve, c("m/program").as_ptr(), argv.as_ptr(), 0), libc::EACCES);
        err!(sys!(libc::SYS_access, c("m/program").as_ptr(), libc::X_OK), libc::EACCES);
        ok!(sys!(libc::SYS_mknod, c("m/null").as_ptr(), libc::S_IFCHR | 0o666, 0x103));
        err!(open("m/null", libc::O_RDONLY, 0), libc::EACCES);
        let line = text("/proc/self/mounts").lines().find(|l| l.contains("/m tmpfs")).unwrap_or_default().to_string();
        check!(line.contains("rw,nosuid,nodev,noexec,relatime"), "{line}");
    });
}

fn proc_again() {
    alone(|| {
        ok!(mkdir("p", 0o755));
        ok!(mount("proc", "p", "proc", 0, ""));
        let own = std::fs::read_link("p/self").expect("a link");
        eq!(own.to_string_lossy(), getpid().to_string());
        check!(exists("p/self/status") && exists("p/meminfo"));
        ok!(umount("p", 0));
        check!(!exists("p/self"));
    });
}

fn sysfs_again() {
    alone(|| {
        ok!(mkdir("s", 0o755));
        ok!(mount("sysfs", "s", "sysfs", 0, ""));
        check!(exists("s/devices/system/cpu"));
        ok!(umount("s", 0));
    });
}

fn mount_over() {
    alone(|| {
        tmpfs("m");
        file("m/first", b"");
        ok!(mount("none", "m", "tmpfs", 0, ""));
        file("m/second", b"");
        check!(!exists("m/first"));
        ok!(umount("m", 0));
        check!(exists("m/first"));
        ok!(umount("m", 0));
        check!(!exists("m/first"));
        err!(umount("m", 0), libc::EINVAL);
    });
}

fn umount_flags() {
    alone(|| {
        tmpfs("m");
        ok!(symlink("m", "l"));
        err!(umount("l", libc::UMOUNT_NOFOLLOW), libc::EINVAL);
        err!(umount("m", 0x100), libc::EINVAL);
        ok!(umount("l", 0));
        tmpfs("n");
        tmpfs("n/inner");
        file("n/inner/x", b"");
        err!(umount("n", 0), libc::EBUSY);
        let held = ok!(open("n/inner/x", libc::O_RDONLY, 0)) as i32;
        ok!(umount("n", libc::MNT_DETACH));
        check!(!exists("n/inner"));
        eq!(read(held, 10), b"");
    });
}

fn umount_busy() {
    alone(|| {
        tmpfs("m");
        let f = new_file("m/x", b"");
        err!(umount("m", 0), libc::EBUSY);
        close(f);
        ok!(sys!(libc::SYS_chdir, c("m").as_ptr()));
        err!(umount("../m", 0), libc::EBUSY);
        ok!(sys!(libc::SYS_chdir, c("..").as_ptr()));
        ok!(umount("m", 0));
    });
}

fn expire() {
    alone(|| {
        tmpfs("m");
        err!(umount("m", libc::MNT_EXPIRE), libc::EAGAIN);
        check!(exists("m"));
        // Used in between, it is not expired.
        file("m/x", b"");
        err!(umount("m", libc::MNT_EXPIRE), libc::EAGAIN);
        ok!(umount("m", libc::MNT_EXPIRE));
        err!(umount("m", libc::MNT_EXPIRE | libc::MNT_DETACH), libc::EINVAL);
    });
}

fn errors() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        file("f", b"");
        err!(mount("none", "m", "nonsense", 0, ""), libc::ENODEV);
        err!(mount("none", "missing", "tmpfs", 0, ""), libc::ENOENT);
        err!(mount("none", "f", "tmpfs", 0, ""), libc::ENOTDIR);
        err!(mount("none", "m", "tmpfs", 0, "size=nonsense"), libc::EINVAL);
        err!(mount("none", "m", "tmpfs", 0, "nonsense=1"), libc::EINVAL);
        err!(mount("missing", "m", "", libc::MS_BIND, ""), libc::ENOENT);
        err!(mount("none", "m", "", libc::MS_REMOUNT, ""), libc::EINVAL);
        err!(sys!(libc::SYS_mount, c("none").as_ptr(), BAD, c("tmpfs").as_ptr(), 0, 0), libc::EFAULT);
        err!(sys!(libc::SYS_mount, c("none").as_ptr(), c("m").as_ptr(), BAD, 0, 0), libc::EFAULT);
        err!(sys!(libc::SYS_mount, c("none").as_ptr(), c("m").as_ptr(), 0, 0, 0), libc::EINVAL);
        err!(mount("none", &"x".repeat(5000), "tmpfs", 0, ""), libc::ENAMETOOLONG);
        err!(mount("none", "m", "", libc::MS_PRIVATE | libc::MS_SHARED, ""), libc::EINVAL);
        err!(mount("none", "m", "", libc::MS_PRIVATE, ""), libc::EINVAL);
    });
}

fn umount_errors() {
    alone(|| {
        ok!(mkdir("d", 0o755));
        err!(umount("d", 0), libc::EINVAL);
        err!(umount("missing", 0), libc::ENOENT);
        err!(umount("", 0), libc::ENOENT);
        err!(sys!(libc::SYS_umount2, BAD, 0), libc::EFAULT);
        err!(umount(&"x".repeat(5000), 0), libc::ENAMETOOLONG);
    });
}

fn unprivileged() {
    ok!(mkdir("m", 0o755));
    in_child(|| {
        drop_root();
        err!(mount("none", "m", "tmpfs", 0, ""), libc::EPERM);
        err!(mount("m", "m", "", libc::MS_BIND, ""), libc::EPERM);
        err!(umount("m", 0), libc::EPERM);
        err!(sys!(libc::SYS_pivot_root, c("m").as_ptr(), c("m").as_ptr()), libc::EPERM);
        err!(sys!(libc::SYS_unshare, libc::CLONE_NEWNS), libc::EPERM);
        err!(sys!(libc::SYS_unshare, libc::CLONE_NEWUTS), libc::EPERM);
        err!(sys!(libc::SYS_chroot, c(".").as_ptr()), libc::EPERM);
    });
}

fn pivot() {
    alone(|| {
        tmpfs("root");
        ok!(mkdir("root/old", 0o755));
        file("root/here", b"new root");
        ok!(sys!(libc::SYS_chdir, c("root").as_ptr()));
        ok!(sys!(libc::SYS_pivot_root, c(".").as_ptr(), c("old").as_ptr()));
        eq!(slurp("/here"), b"new root");
        check!(exists("/old/proc"));
        ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
        ok!(umount("/old", libc::MNT_DETACH));
        check!(!exists("/old/proc"));
        eq!(std::fs::read_dir("/").expect("the root").count(), 2);
    });
    alone(|| {
        // Without a place for the old root: it lies under the new one.
        tmpfs("other");
        file("other/here", b"");
        ok!(sys!(libc::SYS_chdir, c("other").as_ptr()));
        ok!(sys!(libc::SYS_pivot_root, c(".").as_ptr(), c(".").as_ptr()));
        ok!(umount(".", libc::MNT_DETACH));
        check!(exists("/here"));
        check!(!exists("/proc"));
    });
}

fn pivot_errors() {
    alone(|| {
        ok!(mkdir("d", 0o755));
        ok!(mkdir("d/old", 0o755));
        let pivot = |new: &str, old: &str| sys!(libc::SYS_pivot_root, c(new).as_ptr(), c(old).as_ptr());
        err!(pivot("missing", "d"), libc::ENOENT);
        file("f", b"");
        err!(pivot("f", "d"), libc::ENOTDIR);
        // Not a mount point; the root itself.
        check!(matches!(-pivot("d", "d/old") as i32, libc::EINVAL | libc::EBUSY));
        err!(pivot("/", "/"), libc::EBUSY);
        tmpfs("m");
        // The place for the old root is not below the new one.
        check!(matches!(-pivot("m", "d") as i32, libc::EINVAL | libc::EBUSY));
    });
}

fn mountinfo_lines() {
    alone(|| {
        ok!(mkdir("m m", 0o755));
        ok!(mount("a source", "m m", "tmpfs", libc::MS_NOSUID, "size=64k,mode=700"));
        let info = text("/proc/self/mountinfo");
        let line = info.lines().find(|l| l.contains("m\\040m")).unwrap_or_default();
        let (left, right) = line.split_once(" - ").unwrap_or_default();
        let left: Vec<&str> = left.split(' ').collect();
        check!(left.len() >= 6, "{line}");
        check!(left[0].parse::<u32>().is_ok() && left[1].parse::<u32>().is_ok());
        let dev = stat("m m").1.st_dev;
        eq!(left[2], format!("{}:{}", libc::major(dev), libc::minor(dev)));
        eq!(left[3], "/");
        check!(left[5].starts_with("rw,nosuid"), "{line}");
        let right: Vec<&str> = right.split(' ').collect();
        eq!((right[0], right[1]), ("tmpfs", "a\\040source"));
        check!(right[2].contains("size=64k") && right[2].contains("mode=700"), "{line}");
        let mounts = text("/proc/self/mounts");
        check!(mounts.lines().any(|l| l.starts_with("a\\040source ") && l.contains("m\\040m tmpfs rw,nosuid")), "{mounts}");
    });
}

fn mounts_follow_chroot() {
    alone(|| {
        tmpfs("root");
        ok!(mkdir("root/proc", 0o755));
        ok!(mount("proc", "root/proc", "proc", 0, ""));
        ok!(sys!(libc::SYS_chroot, c("root").as_ptr()));
        ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
        let mounts = text("/proc/self/mounts");
        let targets: Vec<&str> = mounts.lines().filter_map(|l| l.split(' ').nth(1)).collect();
        eq!(targets, ["/", "/proc"]);
    });
}

fn tmpfs_options() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        ok!(mount("none", "m", "tmpfs", 0, "mode=1700,uid=5,gid=6,size=1m,nr_inodes=10"));
        let st = stat("m").1;
        eq!((st.st_mode & 0o7777, st.st_uid, st.st_gid), (0o1700, 5, 6));
        let mut fs: libc::statfs = zeroed();
        ok!(sys!(libc::SYS_statfs, c("m").as_ptr(), &mut fs as *mut _));
        eq!(fs.f_type, libc::TMPFS_MAGIC);
        eq!(fs.f_blocks * fs.f_bsize as u64, 1 << 20);
        eq!(fs.f_files, 10);
        for i in 0..9 {
            file(&format!("m/{i}"), b"");
        }
        err!(open("m/more", libc::O_CREAT | libc::O_WRONLY, 0o600), libc::ENOSPC);
    });
}

fn tmpfs_is_full() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        ok!(mount("none", "m", "tmpfs", 0, "size=64k"));
        let f = ok!(open("m/f", libc::O_CREAT | libc::O_RDWR, 0o600)) as i32;
        let mut written = 0;
        let error = loop {
            match write(f, &[7; 10_000]) {
                n if n > 0 => written += n,
                error => break error,
            }
            check!(written <= 65536);
        };
        err!(error, libc::ENOSPC);
        eq!(written, 65536);
        ok!(sys!(libc::SYS_ftruncate, f, 0));
        eq!(write(f, b"x"), 1);
    });
}

fn tmpfs_remount() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        ok!(mount("none", "m", "tmpfs", 0, "size=64k"));
        file("m/f", &[1; 30_000]);
        ok!(mount("none", "m", "tmpfs", libc::MS_REMOUNT, "size=128k"));
        let mut fs: libc::statfs = zeroed();
        ok!(sys!(libc::SYS_statfs, c("m").as_ptr(), &mut fs as *mut _));
        eq!(fs.f_blocks * fs.f_bsize as u64, 128 << 10);
        // Not smaller than what is in use.
        err!(mount("none", "m", "tmpfs", libc::MS_REMOUNT, "size=4k"), libc::EINVAL);
        ok!(mount("none", "m", "tmpfs", libc::MS_REMOUNT | libc::MS_RDONLY, ""));
        err!(open("m/f", libc::O_WRONLY, 0), libc::EROFS);
    });
}

fn propagation() {
    alone(|| {
        tmpfs("m");
        for kind in [libc::MS_PRIVATE, libc::MS_UNBINDABLE, libc::MS_PRIVATE | libc::MS_REC] {
            ok!(mount("none", "m", "", kind, ""));
        }
        err!(mount("none", "m/..", "", libc::MS_PRIVATE | libc::MS_NOSUID, ""), libc::EINVAL);
    });
}

fn devices_need_dev() {
    alone(|| {
        tmpfs("m");
        ok!(sys!(libc::SYS_mknod, c("m/null").as_ptr(), libc::S_IFCHR | 0o666, 0x103));
        let fd = ok!(open("m/null", libc::O_RDWR, 0)) as i32;
        eq!(write(fd, b"gone"), 4);
        eq!(read(fd, 4), b"");
        ok!(sys!(libc::SYS_mknod, c("m/none").as_ptr(), libc::S_IFCHR | 0o666, 0xfa_07));
        err!(open("m/none", libc::O_RDWR, 0), libc::ENXIO);
    });
}

fn symlink_targets() {
    alone(|| {
        ok!(mkdir("d", 0o755));
        ok!(symlink("d", "l"));
        ok!(mount("none", "l", "tmpfs", 0, ""));
        file("d/x", b"");
        check!(exists("l/x"));
        ok!(umount("d", 0));
        check!(!exists("l/x"));
    });
}

fn statfs_flags() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        ok!(mount("none", "m", "tmpfs", libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME, ""));
        let flags = || {
            let mut fs = [0u64; 15];
            ok!(sys!(libc::SYS_statfs, c("m").as_ptr(), fs.as_mut_ptr()));
            fs[10]
        };
        eq!(flags() & 0x140f, 0x400 | 0xf);
        ok!(umount("m", 0));
        ok!(mount("none", "m", "tmpfs", 0, ""));
        eq!(flags() & 0x140f, 0x1000);
    });
}

fn chroot_escape() {
    need_root();
    in_child(|| {
        ok!(mkdir("jail", 0o755));
        file("outside", b"");
        ok!(sys!(libc::SYS_chroot, c("jail").as_ptr()));
        ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
        check!(!exists("/outside") && !exists("../outside") && !exists("/../../outside"));
        let mut buf = [0u8; 100];
        eq!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 100), 2);
        ok!(symlink("/../../../outside", "l"));
        check!(!exists("l"));
    });
}

fn chroot_and_cwd() {
    need_root();
    in_child(|| {
        ok!(mkdir("jail", 0o755));
        file("outside", b"");
        ok!(sys!(libc::SYS_chroot, c("jail").as_ptr()));
        // The working directory stays where it was, outside.
        check!(exists("outside"));
        let mut buf = [0u8; 4096];
        let n = ok!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 4096)) as usize;
        check!(buf[..n].starts_with(b"(unreachable)"), "{}", String::from_utf8_lossy(&buf[..n]));
        err!(sys!(libc::SYS_chroot, c("/missing").as_ptr()), libc::ENOENT);
        file("/f", b"");
        err!(sys!(libc::SYS_chroot, c("/f").as_ptr()), libc::ENOTDIR);
    });
}

fn unshare_files() {
    in_child(|| {
        let (r, w) = pipe();
        let (r2, w2) = pipe();
        let thread = std::thread::spawn(move || {
            ok!(sys!(libc::SYS_unshare, libc::CLONE_FILES));
            close(w2);
            write(w, b"x");
            read(r2, 1);
        });
        read(r, 1);
        // Closed in the thread's own table only.
        eq!(write(w2, b"y"), 1);
        thread.join().expect("the thread ends");
    });
}

fn unshare_fs() {
    ok!(mkdir("d", 0o755));
    in_child(|| {
        let thread = std::thread::spawn(|| {
            ok!(sys!(libc::SYS_unshare, libc::CLONE_FS));
            ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
            sys!(libc::SYS_umask, 0o777);
        });
        thread.join().expect("the thread ends");
        check!(exists("d"));
        check!(sys!(libc::SYS_umask, 0o22) != 0o777);
    });
}

fn unshare_errors() {
    err!(sys!(libc::SYS_unshare, 0x8000_0000u32), libc::EINVAL);
    err!(sys!(libc::SYS_unshare, libc::CLONE_PARENT), libc::EINVAL);
    err!(sys!(libc::SYS_unshare, 1), libc::EINVAL);
    ok!(sys!(libc::SYS_unshare, 0));
    ok!(sys!(libc::SYS_unshare, libc::CLONE_THREAD));
    ok!(sys!(libc::SYS_unshare, libc::CLONE_VM | libc::CLONE_SIGHAND));
    ok!(sys!(libc::SYS_unshare, libc::CLONE_SYSVSEM));
    in_child(|| {
        let (r, w) = pipe();
        let (r2, w2) = pipe();
        let thread = std::thread::spawn(move || {
            write(w, b"x");
            read(r2, 1);
        });
        read(r, 1);
        err!(sys!(libc::SYS_unshare, libc::CLONE_THREAD), libc::EINVAL);
        err!(sys!(libc::SYS_unshare, libc::CLONE_VM), libc::EINVAL);
        write(w2, b"x");
        thread.join().expect("the thread ends");
    });
}

fn host() -> String {
    let mut name: libc::utsname = zeroed();
    ok!(sys!(libc::SYS_uname, &mut name as *mut _));
    name.nodename.iter().map(|&b| b as u8 as char).take_while(|&b| b != '\0').collect()
}

fn domain() -> String {
    let mut name: libc::utsname = zeroed();
    ok!(sys!(libc::SYS_uname, &mut name as *mut _));
    name.domainname.iter().map(|&b| b as u8 as char).take_while(|&b| b != '\0').collect()
}

fn set_host(name: &str) -> i64 {
    sys!(libc::SYS_sethostname, name.as_ptr(), name.len())
}

/// Runs `body` in a child with a UTS namespace of its own.
fn own_names(body: impl FnOnce()) {
    need_root();
    in_child(|| {
        if sys!(libc::SYS_unshare, libc::CLONE_NEWUTS) < 0 {
            skip("no UTS namespaces");
        }
        body();
    });
}

fn uts_namespace() {
    let before = host();
    own_names(|| {
        eq!(host(), before);
        ok!(set_host("inner"));
        eq!(host(), "inner");
        eq!(text("/proc/sys/kernel/hostname").trim(), "inner");
        in_child(|| eq!(host(), "inner"));
    });
    eq!(host(), before);
}

fn uts_by_clone() {
    need_root();
    let before = host();
    let pid = sys!(libc::SYS_clone, libc::CLONE_NEWUTS | libc::SIGCHLD, 0, 0, 0, 0);
    if pid == 0 {
        ok!(set_host("cloned"));
        eq!(host(), "cloned");
        exit(0);
    }
    if pid < 0 {
        skip("no UTS namespaces");
    }
    reap(pid as i32);
    eq!(host(), before);
}

fn setns_uts() {
    own_names(|| {
        let outer = ok!(open("/proc/self/ns/uts", libc::O_RDONLY, 0)) as i32;
        ok!(set_host("outer"));
        ok!(sys!(libc::SYS_unshare, libc::CLONE_NEWUTS));
        ok!(set_host("inner"));
        err!(sys!(libc::SYS_setns, outer, libc::CLONE_NEWNS), libc::EINVAL);
        ok!(sys!(libc::SYS_setns, outer, libc::CLONE_NEWUTS));
        eq!(host(), "outer");
        ok!(sys!(libc::SYS_setns, outer, 0));
    });
}

fn setns_mount() {
    alone(|| {
        ok!(mkdir("m", 0o755));
        let outer = ok!(open("/proc/self/ns/mnt", libc::O_RDONLY, 0)) as i32;
        ok!(sys!(libc::SYS_unshare, libc::CLONE_NEWNS));
        ok!(mount("none", "m", "tmpfs", 0, ""));
        file("m/x", b"");
        let cwd = std::env::current_dir().expect("a working directory");
        ok!(sys!(libc::SYS_setns, outer, libc::CLONE_NEWNS));
        // Root and working directory are those of the namespace's root.
        ok!(sys!(libc::SYS_chdir, c(&cwd.to_string_lossy()).as_ptr()));
        check!(!exists("m/x"));
    });
}

fn setns_errors() {
    err!(sys!(libc::SYS_setns, 999, 0), libc::EBADF);
    let f = new_file("f", b"");
    err!(sys!(libc::SYS_setns, f, 0), libc::EINVAL);
    let (r, _w) = pipe();
    err!(sys!(libc::SYS_setns, r, 0), libc::EINVAL);
    in_child(|| {
        if is_root() {
            ok!(sys!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0));
        }
        let fd = open("/proc/self/ns/uts", libc::O_RDONLY, 0);
        if fd < 0 {
            skip("namespaces cannot be opened");
        }
        drop_root();
        err!(sys!(libc::SYS_setns, fd, libc::CLONE_NEWUTS), libc::EPERM);
    });
}

fn namespace_links() {
    let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).expect("a link").to_string_lossy().into_owned();
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let text = link(name);
        check!(text.starts_with(&format!("{name}:[")) && text.ends_with(']'), "{text}");
    }
    let before = link("uts");
    own_names(|| {
        check!(link("uts") != before);
        let fd = ok!(open("/proc/self/ns/uts", libc::O_RDONLY, 0)) as i32;
        let number = fstat(fd).st_ino;
        eq!(link("uts"), format!("uts:[{number}]"));
        eq!(stat("/proc/self/ns/uts").1.st_ino, number);
    });
}

fn rename_across_mounts() {
    alone(|| {
        tmpfs("m");
        file("x", b"");
        err!(rename("x", "m/x"), libc::EXDEV);
        err!(sys!(libc::SYS_link, c("x").as_ptr(), c("m/x").as_ptr()), libc::EXDEV);
        // Two mounts of one file system, too.
        ok!(mkdir("a", 0o755));
        ok!(mkdir("b", 0o755));
        ok!(mount("a", "b", "", libc::MS_BIND, ""));
        file("a/x", b"");
        err!(rename("a/x", "b/y"), libc::EXDEV);
    });
}

fn mount_point_is_busy() {
    alone(|| {
        tmpfs("m");
        err!(sys!(libc::SYS_rmdir, c("m").as_ptr()), libc::EBUSY);
        err!(rename("m", "n"), libc::EBUSY);
        ok!(mkdir("other", 0o755));
        err!(rename("other", "m"), libc::EBUSY);
        ok!(umount("m", 0));
        ok!(sys!(libc::SYS_rmdir, c("m").as_ptr()));
    });
}

fn domain_name() {
    own_names(|| {
        ok!(sys!(libc::SYS_setdomainname, b"example".as_ptr(), 7));
        eq!(domain(), "example");
        eq!(text("/proc/sys/kernel/domainname").trim(), "example");
    });
}

fn host_name_limits() {
    own_names(|| {
        let long = "h".repeat(64);
        ok!(set_host(&long));
        eq!(host(), long);
        err!(set_host(&"h".repeat(65)), libc::EINVAL);
        err!(sys!(libc::SYS_sethostname, b"x".as_ptr(), -1), libc::EINVAL);
        err!(sys!(libc::SYS_sethostname, BAD, 3), libc::EFAULT);
        ok!(set_host(""));
        eq!(host(), "");
        std::fs::write("/proc/sys/kernel/hostname", "by-file\n").expect("root may");
        eq!(host(), "by-file");
    });
}

fn removed_mount_point() {
    alone(|| {
        ok!(mkdir("d", 0o755));
        let fd = ok!(open("d", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
        ok!(sys!(libc::SYS_rmdir, c("d").as_ptr()));
        check!(mount("none", &format!("/proc/self/fd/{fd}"), "tmpfs", 0, "") < 0);
    });
}

fn statx_mount_id() {
    alone(|| {
        tmpfs("m");
        let id = |path: &str| {
            let mut buf = [0u8; 256];
            ok!(sys!(libc::SYS_statx, libc::AT_FDCWD, c(path).as_ptr(), 0, 0x1000, buf.as_mut_ptr()));
            let mask = u32::from_ne_bytes(buf[..4].try_into().expect("four bytes"));
            if mask & 0x1000 == 0 {
                skip("statx does not tell mounts");
            }
            u64::from_ne_bytes(buf[0x90..0x98].try_into().expect("eight bytes"))
        };
        check!(id("m") != id("."));
        let info = text("/proc/self/mountinfo");
        let number = id("m").to_string();
        check!(info.lines().any(|l| l.starts_with(&format!("{number} ")) && l.contains("/m ")), "{info}");
        let mut buf = [0u8; 256];
        ok!(sys!(libc::SYS_statx, libc::AT_FDCWD, c("m").as_ptr(), 0, 0x7ff, buf.as_mut_ptr()));
        // STATX_ATTR_MOUNT_ROOT, known and set.
        let word = |at: usize| u64::from_ne_bytes(buf[at..at + 8].try_into().expect("eight bytes"));
        eq!((word(8) & 0x2000, word(0x38) & 0x2000), (0x2000, 0x2000));
    });
}

fn dot_dot_over_mounts() {
    alone(|| {
        tmpfs("m");
        ok!(mkdir("m/d", 0o755));
        file("beside", b"");
        check!(exists("m/../beside") && exists("m/d/../../beside"));
        ok!(sys!(libc::SYS_chdir, c("m/d").as_ptr()));
        check!(exists("../../beside"));
    });
}

fn thread_needs_own_fs() {
    need_root();
    in_child(|| {
        let (r, w) = pipe();
        let (r2, w2) = pipe();
        let thread = std::thread::spawn(move || {
            // Of several threads one alone can have mounts of its own.
            let r = sys!(libc::SYS_unshare, libc::CLONE_NEWNS);
            write(w, &r.to_ne_bytes());
            read(r2, 1);
        });
        let r = i64::from_ne_bytes(read(r, 8).try_into().expect("eight bytes"));
        check!(r == 0 || r == -i64::from(libc::EPERM), "{r}");
        write(w2, b"x");
        thread.join().expect("the thread ends");
        let outer = ok!(open("/proc/self/ns/mnt", libc::O_RDONLY, 0)) as i32;
        let _ = outer;
    });
}
