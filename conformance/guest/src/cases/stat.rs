//! stat(2), statx(2), access(2), and changing what they show.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("stat": regular, directory_links, symlinks, pipes_and_others, at_flags, stat_errors, statx_fields, statx_errors,
    access_calls, faccessat2_flags, chmod_calls, fchmodat2_call, chown_calls, times_explicit, times_now_and_omit, times_errors,
    writes_update_times, directory_times, statfs_calls, blocks_grow, same_file_same_inode, holes_have_no_blocks);

fn regular() {
    let fd = new_file("f", b"12345");
    let (r, st) = stat("f");
    eq!(r, 0);
    eq!(st.st_mode, libc::S_IFREG | 0o644);
    eq!((st.st_size, st.st_nlink), (5, 1));
    eq!(st.st_uid, sys!(libc::SYS_geteuid) as u32);
    let by_fd = fstat(fd);
    eq!((by_fd.st_ino, by_fd.st_dev, by_fd.st_mtime), (st.st_ino, st.st_dev, st.st_mtime));
    check!(st.st_ino != 0 && st.st_blksize >= 512);
    let mut ts: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &mut ts as *mut _));
    check!((ts.tv_sec - st.st_mtime).abs() < 30);
}

fn directory_links() {
    ok!(mkdir("d", 0o755));
    let empty = stat("d").1.st_nlink;
    ok!(mkdir("d/sub", 0o755));
    let one = stat("d").1.st_nlink;
    // File systems that count directories count `..` of each.
    check!(one == empty + 1 || one == 1, "{empty} then {one}");
    eq!(stat("d").1.st_mode & libc::S_IFMT, libc::S_IFDIR);
}

fn symlinks() {
    ok!(symlink("target-of-20-letters", "l"));
    let mut st: libc::stat = zeroed();
    ok!(sys!(libc::SYS_lstat, c("l").as_ptr(), &mut st as *mut _));
    eq!(st.st_mode, libc::S_IFLNK | 0o777);
    eq!(st.st_size, 20);
    err!(stat("l").0, libc::ENOENT);
}

fn pipes_and_others() {
    let (r, _w) = pipe();
    eq!(fstat(r).st_mode & libc::S_IFMT, libc::S_IFIFO);
    let mut fds = [0i32; 2];
    ok!(sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()));
    eq!(fstat(fds[0]).st_mode & libc::S_IFMT, libc::S_IFSOCK);
    let event = ok!(sys!(libc::SYS_eventfd2, 0, 0)) as i32;
    eq!(fstat(event).st_mode & libc::S_IFMT, 0);
}

fn at(dir: i32, path: &str, flags: i32) -> (i64, libc::stat) {
    let mut st: libc::stat = zeroed();
    (sys!(libc::SYS_newfstatat, dir, c(path).as_ptr(), &mut st as *mut _, flags), st)
}

fn at_flags() {
    ok!(mkdir("d", 0o755));
    file("d/f", b"abc");
    ok!(symlink("f", "d/l"));
    let dir = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    eq!(at(dir, "f", 0).1.st_size, 3);
    eq!(at(dir, "l", 0).1.st_size, 3);
    eq!(at(dir, "l", libc::AT_SYMLINK_NOFOLLOW).1.st_size, 1);
    err!(at(dir, "", 0).0, libc::ENOENT);
    eq!(at(dir, "", libc::AT_EMPTY_PATH).1.st_mode & libc::S_IFMT, libc::S_IFDIR);
    err!(at(dir, "f", 0x4000_0000).0, libc::EINVAL);
    err!(at(999, "f", 0).0, libc::EBADF);
    eq!(at(libc::AT_FDCWD, "", libc::AT_EMPTY_PATH).1.st_ino, stat(".").1.st_ino);
}

fn stat_errors() {
    let mut st: libc::stat = zeroed();
    err!(sys!(libc::SYS_stat, BAD, &mut st as *mut _), libc::EFAULT);
    err!(sys!(libc::SYS_stat, c(".").as_ptr(), BAD), libc::EFAULT);
    err!(sys!(libc::SYS_fstat, 0, WILD), libc::EFAULT);
    err!(sys!(libc::SYS_fstat, 999, &mut st as *mut _), libc::EBADF);
    err!(stat("missing").0, libc::ENOENT);
    err!(stat("").0, libc::ENOENT);
    let (_, end) = guarded_page();
    err!(sys!(libc::SYS_stat, c(".").as_ptr(), end - 100), libc::EFAULT);
}

fn statx(dir: i32, path: &str, flags: i32, mask: u32) -> (i64, libc::statx) {
    let mut st: libc::statx = zeroed();
    (sys!(libc::SYS_statx, dir, c(path).as_ptr(), flags, mask, &mut st as *mut _), st)
}

fn statx_fields() {
    file("f", b"abc");
    let (r, st) = statx(libc::AT_FDCWD, "f", 0, libc::STATX_BASIC_STATS);
    eq!(r, 0);
    let old = stat("f").1;
    check!(st.stx_mask & libc::STATX_BASIC_STATS == libc::STATX_BASIC_STATS);
    eq!((st.stx_size, st.stx_ino, u32::from(st.stx_mode)), (3, old.st_ino, old.st_mode));
    eq!((st.stx_mtime.tv_sec, i64::from(st.stx_mtime.tv_nsec)), (old.st_mtime, old.st_mtime_nsec));
    eq!(libc::makedev(st.stx_dev_major, st.stx_dev_minor), old.st_dev);
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    eq!(statx(fd, "", libc::AT_EMPTY_PATH, libc::STATX_SIZE).1.stx_size, 3);
}

fn statx_errors() {
    err!(statx(libc::AT_FDCWD, "missing", 0, 0).0, libc::ENOENT);
    err!(statx(libc::AT_FDCWD, ".", 0x4000_0000, 0).0, libc::EINVAL);
    err!(statx(libc::AT_FDCWD, ".", 0, 0x8000_0000).0, libc::EINVAL);
    err!(statx(libc::AT_FDCWD, ".", 0x6000, 0).0, libc::EINVAL);
    err!(sys!(libc::SYS_statx, libc::AT_FDCWD, c(".").as_ptr(), 0, 0, BAD), libc::EFAULT);
}

fn access_calls() {
    file("f", b"");
    let access = |path: &str, mode: i32| sys!(libc::SYS_access, c(path).as_ptr(), mode);
    ok!(access("f", libc::F_OK));
    ok!(access("f", libc::R_OK | libc::W_OK));
    err!(access("f", libc::X_OK), libc::EACCES);
    ok!(access(".", libc::X_OK));
    err!(access("missing", libc::F_OK), libc::ENOENT);
    err!(access("f", 8), libc::EINVAL);
    err!(access("f/x", 0), libc::ENOTDIR);
    ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o100));
    ok!(access("f", libc::X_OK));
    if !is_root() {
        err!(access("f", libc::R_OK), libc::EACCES);
    }
}

fn faccessat2_flags() {
    file("f", b"");
    ok!(symlink("missing", "l"));
    let call = |path: &str, flags: i32| sys!(libc::SYS_faccessat2, libc::AT_FDCWD, c(path).as_ptr(), 0, flags);
    ok!(call("f", libc::AT_EACCESS));
    err!(call("l", 0), libc::ENOENT);
    ok!(call("l", libc::AT_SYMLINK_NOFOLLOW));
    ok!(call("", libc::AT_EMPTY_PATH));
    err!(call("f", 1), libc::EINVAL);
}

fn chmod_calls() {
    let fd = new_file("f", b"");
    for mode in [0o600, 0o777, 0, 0o4755, 0o1644] {
        ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), mode));
        let kept = if on_writable_host() { mode & 0o777 } else { mode };
        eq!(stat("f").1.st_mode & 0o7777, kept);
    }
    ok!(sys!(libc::SYS_fchmod, fd, 0o640));
    ok!(sys!(libc::SYS_fchmodat, libc::AT_FDCWD, c("f").as_ptr(), 0o641));
    eq!(fstat(fd).st_mode & 0o7777, 0o641);
    err!(sys!(libc::SYS_chmod, c("missing").as_ptr(), 0), libc::ENOENT);
    err!(sys!(libc::SYS_chmod, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_fchmod, 999, 0), libc::EBADF);
    // Through a link the target changes.
    ok!(symlink("f", "l"));
    ok!(sys!(libc::SYS_chmod, c("l").as_ptr(), 0o600));
    eq!(stat("f").1.st_mode & 0o7777, 0o600);
}

fn fchmodat2_call() {
    file("f", b"");
    let r = sys!(452, libc::AT_FDCWD, c("f").as_ptr(), 0o604, 0);
    if r == -i64::from(libc::ENOSYS) {
        skip("fchmodat2 is newer than this kernel");
    }
    ok!(r);
    eq!(stat("f").1.st_mode & 0o7777, 0o604);
    ok!(sys!(452, libc::AT_FDCWD, c("f").as_ptr(), 0o600, libc::AT_SYMLINK_NOFOLLOW));
    err!(sys!(452, libc::AT_FDCWD, c("f").as_ptr(), 0o600, 1), libc::EINVAL);
}

fn chown_calls() {
    let fd = new_file("f", b"");
    let (uid, gid) = (sys!(libc::SYS_geteuid), sys!(libc::SYS_getegid));
    ok!(sys!(libc::SYS_chown, c("f").as_ptr(), uid, gid));
    ok!(sys!(libc::SYS_fchown, fd, -1, -1));
    err!(sys!(libc::SYS_chown, c("missing").as_ptr(), uid, gid), libc::ENOENT);
    err!(sys!(libc::SYS_fchown, 999, uid, gid), libc::EBADF);
    err!(sys!(libc::SYS_fchownat, libc::AT_FDCWD, c("f").as_ptr(), uid, gid, 1), libc::EINVAL);
    if !is_root() {
        err!(sys!(libc::SYS_chown, c("f").as_ptr(), 0, -1), libc::EPERM);
        skip("the rest needs user 0");
    }
    ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o6755));
    ok!(sys!(libc::SYS_chown, c("f").as_ptr(), 12, 34));
    let st = stat("f").1;
    eq!((st.st_uid, st.st_gid), (12, 34));
    // The set-id bits go.
    eq!(st.st_mode & 0o7777, 0o755);
    ok!(symlink("f", "l"));
    ok!(sys!(libc::SYS_lchown, c("l").as_ptr(), 56, 78));
    let mut link: libc::stat = zeroed();
    ok!(sys!(libc::SYS_lstat, c("l").as_ptr(), &mut link as *mut _));
    eq!((link.st_uid, stat("f").1.st_uid), (56, 12));
}

fn utimens(path: &str, times: &[libc::timespec; 2], flags: i32) -> i64 {
    sys!(libc::SYS_utimensat, libc::AT_FDCWD, c(path).as_ptr(), times.as_ptr(), flags)
}

fn ts(sec: i64, nsec: i64) -> libc::timespec {
    libc::timespec { tv_sec: sec, tv_nsec: nsec }
}

fn times_explicit() {
    file("f", b"");
    ok!(utimens("f", &[ts(1_000_000, 5000), ts(2_000_000, 7000)], 0));
    let st = stat("f").1;
    eq!((st.st_atime, st.st_atime_nsec, st.st_mtime, st.st_mtime_nsec), (1_000_000, 5000, 2_000_000, 7000));
    let tv = |s| libc::timeval { tv_sec: s, tv_usec: 3 };
    ok!(sys!(libc::SYS_utimes, c("f").as_ptr(), [tv(10), tv(20)].as_ptr()));
    eq!((stat("f").1.st_mtime, stat("f").1.st_mtime_nsec), (20, 3000));
    ok!(sys!(libc::SYS_utime, c("f").as_ptr(), [30i64, 40].as_ptr()));
    eq!((stat("f").1.st_atime, stat("f").1.st_mtime), (30, 40));
    ok!(symlink("f", "l"));
    ok!(utimens("l", &[ts(1, 0), ts(2, 0)], libc::AT_SYMLINK_NOFOLLOW));
    eq!(stat("f").1.st_mtime, 40);
}

fn times_now_and_omit() {
    let fd = new_file("f", b"");
    ok!(utimens("f", &[ts(5, 0), ts(6, 0)], 0));
    ok!(utimens("f", &[ts(0, libc::UTIME_OMIT), ts(9, 0)], 0));
    eq!((stat("f").1.st_atime, stat("f").1.st_mtime), (5, 9));
    ok!(utimens("f", &[ts(0, libc::UTIME_NOW), ts(0, libc::UTIME_OMIT)], 0));
    check!(stat("f").1.st_atime > 1_000_000_000);
    ok!(sys!(libc::SYS_utimensat, fd, 0, 0, 0));
    check!(stat("f").1.st_mtime > 1_000_000_000);
}

fn times_errors() {
    file("f", b"");
    err!(utimens("f", &[ts(0, 1_000_000_000), ts(0, 0)], 0), libc::EINVAL);
    err!(utimens("f", &[ts(0, 0), ts(0, 0)], 1), libc::EINVAL);
    err!(utimens("missing", &[ts(0, 0), ts(0, 0)], 0), libc::ENOENT);
    err!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("f").as_ptr(), BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_utimensat, 999, 0, 0, 0), libc::EBADF);
}

fn writes_update_times() {
    let fd = new_file("f", b"");
    ok!(utimens("f", &[ts(5, 0), ts(6, 0)], 0));
    write(fd, b"x");
    check!(stat("f").1.st_mtime > 1_000_000_000);
    ok!(utimens("f", &[ts(5, 0), ts(6, 0)], 0));
    ok!(sys!(libc::SYS_ftruncate, fd, 0));
    check!(stat("f").1.st_mtime > 1_000_000_000);
    let before = stat("f").1;
    sleep_ms(15);
    ok!(sys!(libc::SYS_fchmod, fd, 0o600));
    let after = stat("f").1;
    check!((after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec));
    eq!((after.st_mtime, after.st_mtime_nsec), (before.st_mtime, before.st_mtime_nsec));
}

fn directory_times() {
    ok!(mkdir("d", 0o755));
    ok!(utimens("d", &[ts(5, 0), ts(6, 0)], 0));
    file("d/f", b"");
    check!(stat("d").1.st_mtime > 6);
    ok!(utimens("d", &[ts(5, 0), ts(6, 0)], 0));
    ok!(unlink("d/f"));
    check!(stat("d").1.st_mtime > 6);
}

fn statfs_calls() {
    let mut st: libc::statfs = zeroed();
    ok!(sys!(libc::SYS_statfs, c(".").as_ptr(), &mut st as *mut _));
    check!(st.f_bsize >= 512 && st.f_namelen == 255);
    let fd = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    ok!(sys!(libc::SYS_fstatfs, fd, &mut st as *mut _));
    ok!(sys!(libc::SYS_statfs, c("/proc").as_ptr(), &mut st as *mut _));
    eq!(st.f_type, 0x9fa0);
    err!(sys!(libc::SYS_statfs, c("missing").as_ptr(), &mut st as *mut _), libc::ENOENT);
    err!(sys!(libc::SYS_statfs, c(".").as_ptr(), BAD), libc::EFAULT);
    err!(sys!(libc::SYS_fstatfs, 999, &mut st as *mut _), libc::EBADF);
}

fn blocks_grow() {
    let fd = new_file("f", b"");
    eq!(fstat(fd).st_blocks, 0);
    write(fd, &[1; 100_000]);
    ok!(sys!(libc::SYS_fsync, fd));
    check!(fstat(fd).st_blocks >= 100_000 / 512);
}

fn same_file_same_inode() {
    file("f", b"");
    let before = stat("f").1;
    ok!(rename("f", "g"));
    eq!(stat("g").1.st_ino, before.st_ino);
    let fd = ok!(open("g", libc::O_RDWR, 0)) as i32;
    write(fd, b"x");
    eq!(fstat(fd).st_ino, before.st_ino);
    file("h", b"");
    check!(stat("h").1.st_ino != before.st_ino);
}

fn holes_have_no_blocks() {
    let fd = new_file("f", b"x");
    eq!(fstat(fd).st_blocks, 8);
    eq!(sys!(libc::SYS_pwrite64, fd, b"y".as_ptr(), 1, 40_000), 1);
    eq!(fstat(fd).st_blocks, 16);
    eq!(sys!(libc::SYS_pwrite64, fd, b"z".as_ptr(), 1, 20_000), 1);
    eq!(fstat(fd).st_blocks, 24);
    ok!(sys!(libc::SYS_ftruncate, fd, 20_001));
    eq!(fstat(fd).st_blocks, 16);
    ok!(sys!(libc::SYS_ftruncate, fd, 50_000));
    eq!(fstat(fd).st_blocks, 16);
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_HOLE), 4096);
    eq!(sys!(libc::SYS_lseek, fd, 4096, libc::SEEK_DATA), 16_384);
}
