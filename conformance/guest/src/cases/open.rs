//! open(2), openat(2), openat2(2), creat(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("open": lowest_descriptor, missing, exclusive, truncates, appends, access_modes, directories, no_follow,
    trailing_slashes, symlink_chain, long_names, bad_paths, straddling_path, at_a_directory, mode_and_umask, path_only,
    unnamed_file, close_on_exec, too_many, openat2_beneath, openat2_in_root, openat2_no_symlinks, openat2_errors,
    fifo_waits, fifo_nonblocking, fifo_interrupted, devices, reopen_through_proc, unlinked_file_lives_on, dot_dot_at_root,
    creat_call, deleted_directory);

fn lowest_descriptor() {
    let a = ok!(open("f", libc::O_CREAT | libc::O_RDWR, 0o600)) as i32;
    let b = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    eq!(b, a + 1);
    close(a);
    eq!(open("f", libc::O_RDONLY, 0), i64::from(a));
}

fn missing() {
    err!(open("missing", libc::O_RDONLY, 0), libc::ENOENT);
    err!(open("missing/f", libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENOENT);
    err!(open("", libc::O_RDONLY, 0), libc::ENOENT);
    file("f", b"");
    err!(open("f/x", libc::O_RDONLY, 0), libc::ENOTDIR);
}

fn exclusive() {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    ok!(open("f", flags, 0o600));
    err!(open("f", flags, 0o600), libc::EEXIST);
    // A dangling link counts as there; without O_EXCL its target is made.
    ok!(symlink("target", "link"));
    err!(open("link", flags, 0o600), libc::EEXIST);
    ok!(open("link", libc::O_CREAT | libc::O_RDWR, 0o600));
    ok!(open("target", libc::O_RDONLY, 0));
}

fn truncates() {
    file("f", b"content");
    ok!(open("f", libc::O_RDONLY, 0));
    eq!(stat("f").1.st_size, 7);
    ok!(open("f", libc::O_WRONLY | libc::O_TRUNC, 0));
    eq!(stat("f").1.st_size, 0);
}

fn appends() {
    file("f", b"one");
    let fd = ok!(open("f", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(fd, b"two");
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    write(fd, b"three");
    eq!(text("f"), "onetwothree");
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), 11);
}

fn access_modes() {
    file("f", b"x");
    let r = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let w = ok!(open("f", libc::O_WRONLY, 0)) as i32;
    let mut buf = [0u8; 4];
    err!(write(r, b"x"), libc::EBADF);
    err!(sys!(libc::SYS_read, w, buf.as_mut_ptr(), 4), libc::EBADF);
    err!(sys!(libc::SYS_ftruncate, r, 0), libc::EINVAL);
    eq!(sys!(libc::SYS_fcntl, w, libc::F_GETFL) & 3, 1);
    eq!(sys!(libc::SYS_fcntl, r, libc::F_GETFL) & 0o100003, 0o100000);
}

fn directories() {
    ok!(mkdir("d", 0o755));
    err!(open("d", libc::O_RDWR, 0), libc::EISDIR);
    err!(open("d", libc::O_WRONLY, 0), libc::EISDIR);
    err!(open("d", libc::O_CREAT | libc::O_RDONLY, 0o600), libc::EISDIR);
    let fd = ok!(open("d", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut buf = [0u8; 4];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 4), libc::EISDIR);
    file("f", b"");
    err!(open("f", libc::O_RDONLY | libc::O_DIRECTORY, 0), libc::ENOTDIR);
    err!(open("f", libc::O_DIRECTORY | libc::O_CREAT, 0o600), libc::EINVAL);
}

fn no_follow() {
    file("f", b"x");
    ok!(symlink("f", "l"));
    ok!(open("l", libc::O_RDONLY, 0));
    err!(open("l", libc::O_RDONLY | libc::O_NOFOLLOW, 0), libc::ELOOP);
    ok!(mkdir("d", 0o755));
    file("d/g", b"");
    ok!(symlink("d", "dl"));
    // Only the last component is not followed.
    ok!(open("dl/g", libc::O_RDONLY | libc::O_NOFOLLOW, 0));
    err!(open("dl", libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_DIRECTORY, 0), libc::ENOTDIR);
    // With O_PATH the link itself is opened.
    let fd = ok!(open("l", libc::O_PATH | libc::O_NOFOLLOW, 0)) as i32;
    eq!(fstat(fd).st_mode & libc::S_IFMT, libc::S_IFLNK);
}

fn trailing_slashes() {
    file("f", b"");
    ok!(mkdir("d", 0o755));
    err!(open("f/", libc::O_RDONLY, 0), libc::ENOTDIR);
    err!(open("f/.", libc::O_RDONLY, 0), libc::ENOTDIR);
    ok!(open("d/", libc::O_RDONLY, 0));
    ok!(open("d//.//", libc::O_RDONLY, 0));
    err!(open("new/", libc::O_CREAT | libc::O_RDWR, 0o600), libc::EISDIR);
    err!(open("f/", libc::O_CREAT | libc::O_RDWR, 0o600), libc::EISDIR);
    ok!(symlink("d", "l"));
    ok!(open("l/", libc::O_RDONLY | libc::O_NOFOLLOW, 0));
}

fn symlink_chain() {
    file("l0", b"end");
    for i in 1..=41 {
        ok!(symlink(&format!("l{}", i - 1), &format!("l{i}")));
    }
    ok!(open("l40", libc::O_RDONLY, 0));
    err!(open("l41", libc::O_RDONLY, 0), libc::ELOOP);
    ok!(symlink("b", "a"));
    ok!(symlink("a", "b"));
    err!(open("a", libc::O_RDONLY, 0), libc::ELOOP);
}

fn long_names() {
    ok!(open(&"n".repeat(255), libc::O_CREAT | libc::O_RDWR, 0o600));
    err!(open(&"n".repeat(256), libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENAMETOOLONG);
    let long = "./".repeat(2047) + "f";
    eq!(long.len(), 4095);
    file("f", b"");
    ok!(open(&long, libc::O_RDONLY, 0));
    err!(open(&format!("/{long}"), libc::O_RDONLY, 0), libc::ENAMETOOLONG);
}

fn bad_paths() {
    for bad in [0, BAD, WILD, u64::MAX] {
        err!(sys!(libc::SYS_open, bad, 0, 0), libc::EFAULT);
        err!(sys!(libc::SYS_openat, libc::AT_FDCWD, bad, 0, 0), libc::EFAULT);
    }
}

fn straddling_path() {
    let (_, end) = guarded_page();
    file("f", b"");
    // The name ends exactly at the end of the page, or runs over it.
    // SAFETY: within the page.
    unsafe { ((end - 2) as *mut [u8; 2]).write(*b"f\0") };
    ok!(sys!(libc::SYS_open, end - 2, libc::O_RDONLY, 0));
    // SAFETY: as above.
    unsafe { ((end - 2) as *mut [u8; 2]).write(*b"ff") };
    err!(sys!(libc::SYS_open, end - 2, libc::O_RDONLY, 0), libc::EFAULT);
}

fn at_a_directory() {
    ok!(mkdir("d", 0o755));
    file("d/f", b"in d");
    let dir = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    let name = c("f");
    ok!(sys!(libc::SYS_openat, dir, name.as_ptr(), 0, 0));
    let plain = new_file("plain", b"");
    err!(sys!(libc::SYS_openat, plain, name.as_ptr(), 0, 0), libc::ENOTDIR);
    err!(sys!(libc::SYS_openat, 999, name.as_ptr(), 0, 0), libc::EBADF);
    // An absolute path does not look at the descriptor.
    ok!(sys!(libc::SYS_openat, 999, c("/").as_ptr(), 0, 0));
    // The descriptor follows its directory.
    ok!(rename("d", "e"));
    ok!(sys!(libc::SYS_openat, dir, name.as_ptr(), 0, 0));
}

fn mode_and_umask() {
    sys!(libc::SYS_umask, 0o027);
    ok!(open("f", libc::O_CREAT | libc::O_RDWR, 0o666));
    eq!(stat("f").1.st_mode & 0o7777, 0o640);
    ok!(open("g", libc::O_CREAT | libc::O_RDWR, 0o4755));
    eq!(stat("g").1.st_mode & 0o7777, if on_writable_host() { 0o750 } else { 0o4750 });
    // A mode that forbids it does not bind the descriptor that makes the file.
    let fd = ok!(open("h", libc::O_CREAT | libc::O_RDWR, 0)) as i32;
    eq!(write(fd, b"x"), 1);
}

fn path_only() {
    file("f", b"x");
    let fd = ok!(open("f", libc::O_PATH, 0)) as i32;
    let mut buf = [0u8; 1];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 1), libc::EBADF);
    err!(write(fd, b"x"), libc::EBADF);
    err!(sys!(libc::SYS_fchmod, fd, 0o600), libc::EBADF);
    err!(sys!(libc::SYS_ioctl, fd, libc::FIONREAD, buf.as_mut_ptr()), libc::EBADF);
    eq!(fstat(fd).st_size, 1);
    check!(sys!(libc::SYS_fcntl, fd, libc::F_GETFL) & i64::from(libc::O_PATH) != 0);
    let copy = ok!(sys!(libc::SYS_dup, fd)) as i32;
    close(copy);
    ok!(mkdir("d", 0o755));
    file("d/g", b"");
    let dir = ok!(open("d", libc::O_PATH, 0)) as i32;
    ok!(sys!(libc::SYS_openat, dir, c("g").as_ptr(), 0, 0));
    ok!(sys!(libc::SYS_fchdir, dir));
    ok!(open("g", libc::O_RDONLY, 0));
}

fn unnamed_file() {
    let r = open(".", libc::O_TMPFILE | libc::O_RDWR, 0o600);
    if r == -i64::from(libc::EOPNOTSUPP) {
        skip("this file system has no O_TMPFILE");
    }
    let fd = ok!(r) as i32;
    eq!(write(fd, b"data"), 4);
    eq!(fstat(fd).st_nlink, 0);
    err!(open(".", libc::O_TMPFILE | libc::O_RDONLY, 0o600), libc::EINVAL);
    let from = c(&format!("/proc/self/fd/{fd}"));
    ok!(sys!(libc::SYS_linkat, libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, c("named").as_ptr(), libc::AT_SYMLINK_FOLLOW));
    eq!(text("named"), "data");
}

fn close_on_exec() {
    file("f", b"");
    let fd = ok!(open("f", libc::O_CLOEXEC, 0)) as i32;
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
    let fd = ok!(open("f", 0, 0)) as i32;
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 0);
}

fn too_many() {
    file("f", b"");
    let limit = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
    ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_NOFILE, &limit as *const _));
    let last = loop {
        let r = open("f", 0, 0);
        if r < 0 {
            break r;
        }
        check!(r < 20);
    };
    err!(last, libc::EMFILE);
    err!(sys!(libc::SYS_dup, 0), libc::EMFILE);
    err!(sys!(libc::SYS_dup2, 0, 20), libc::EBADF);
    err!(sys!(libc::SYS_fcntl, 0, libc::F_DUPFD, 20), libc::EINVAL);
    let mut fds = [0i32; 2];
    err!(sys!(libc::SYS_pipe, fds.as_mut_ptr()), libc::EMFILE);
    // A failed O_CREAT for want of a descriptor makes no file.
    err!(open("new", libc::O_CREAT | libc::O_RDWR, 0o600), libc::EMFILE);
    err!(stat("new").0, libc::ENOENT);
}

fn openat2(dir: i32, path: &str, flags: i32, resolve: u64) -> i64 {
    let how = [flags as u64, 0, resolve];
    sys!(libc::SYS_openat2, dir, c(path).as_ptr(), how.as_ptr(), 24)
}

fn tree() -> i32 {
    ok!(mkdir("t", 0o755));
    ok!(mkdir("t/d", 0o755));
    file("t/d/f", b"inside");
    file("outside", b"outside");
    ok!(symlink("../outside", "t/out"));
    ok!(symlink("/d/f", "t/absolute"));
    ok!(symlink("d/f", "t/in"));
    ok!(open("t", libc::O_RDONLY, 0)) as i32
}

fn openat2_beneath() {
    let t = tree();
    ok!(openat2(t, "d/f", 0, 8));
    ok!(openat2(t, "d/../d/f", 0, 8));
    ok!(openat2(t, "in", 0, 8));
    err!(openat2(t, "../outside", 0, 8), libc::EXDEV);
    err!(openat2(t, "out", 0, 8), libc::EXDEV);
    err!(openat2(t, "absolute", 0, 8), libc::EXDEV);
    err!(openat2(t, "/etc", 0, 8), libc::EXDEV);
}

fn openat2_in_root() {
    let t = tree();
    ok!(openat2(t, "/d/f", 0, 16));
    ok!(openat2(t, "../../d/f", 0, 16));
    ok!(openat2(t, "absolute", 0, 16));
    err!(openat2(t, "out", 0, 16), libc::ENOENT);
}

fn openat2_no_symlinks() {
    let t = tree();
    ok!(openat2(t, "d/f", 0, 4));
    err!(openat2(t, "in", 0, 4), libc::ELOOP);
    // A magic link is one of those, and can be refused alone.
    err!(openat2(libc::AT_FDCWD, &format!("/proc/self/fd/{t}"), 0, 2), libc::ELOOP);
    ok!(openat2(t, "in", 0, 2));
}

fn openat2_errors() {
    let how = [0u64; 4];
    let path = c(".");
    err!(sys!(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), how.as_ptr(), 23), libc::EINVAL);
    err!(sys!(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), BAD, 24), libc::EFAULT);
    ok!(sys!(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), how.as_ptr(), 32));
    let more = [0u64, 0, 0, 1];
    err!(sys!(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), more.as_ptr(), 32), libc::E2BIG);
    err!(openat2(libc::AT_FDCWD, ".", 0, 1 << 20), libc::EINVAL);
    err!(openat2(libc::AT_FDCWD, ".", 0, 8 | 16), libc::EINVAL);
    err!(openat2(libc::AT_FDCWD, ".", 0x4000_0000, 0), libc::EINVAL);
    let mode = [0u64, 0o600, 0];
    err!(sys!(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), mode.as_ptr(), 24), libc::EINVAL);
}

fn fifo_waits() {
    fifo("p");
    let pid = child(|| {
        let fd = ok!(open("p", libc::O_WRONLY, 0)) as i32;
        write(fd, b"through");
    });
    let fd = ok!(open("p", libc::O_RDONLY, 0)) as i32;
    eq!(read(fd, 100), b"through");
    reap(pid);
    eq!(read(fd, 100), b"");
}

fn fifo_nonblocking() {
    fifo("p");
    err!(open("p", libc::O_WRONLY | libc::O_NONBLOCK, 0), libc::ENXIO);
    let r = ok!(open("p", libc::O_RDONLY | libc::O_NONBLOCK, 0)) as i32;
    eq!(read(r, 10), b"");
    let w = ok!(open("p", libc::O_WRONLY | libc::O_NONBLOCK, 0)) as i32;
    let mut buf = [0u8; 1];
    err!(sys!(libc::SYS_read, r, buf.as_mut_ptr(), 1), libc::EAGAIN);
    write(w, b"x");
    eq!(read(r, 10), b"x");
    // Opened for both, it never waits.
    ok!(open("p", libc::O_RDWR, 0));
}

fn fifo_interrupted() {
    fifo("p");
    err!(interrupted(libc::SIGUSR1, 0, || open("p", libc::O_RDONLY, 0)), libc::EINTR);
}

fn devices() {
    let null = ok!(open("/dev/null", libc::O_RDWR, 0)) as i32;
    eq!(write(null, b"gone"), 4);
    eq!(read(null, 10), b"");
    eq!(fstat(null).st_mode & libc::S_IFMT, libc::S_IFCHR);
    eq!(fstat(null).st_rdev, 0x103);
    let zero = ok!(open("/dev/zero", libc::O_RDWR, 0)) as i32;
    eq!(read(zero, 5), [0; 5]);
    let full = ok!(open("/dev/full", libc::O_RDWR, 0)) as i32;
    err!(write(full, b"x"), libc::ENOSPC);
    eq!(read(full, 3), [0; 3]);
    let random = ok!(open("/dev/urandom", libc::O_RDONLY, 0)) as i32;
    check!(read(random, 32) != [0; 32]);
    err!(open("/dev/does-not-exist", libc::O_RDONLY, 0), libc::ENOENT);
}

fn reopen_through_proc() {
    let fd = new_file("f", b"content");
    read(fd, 3);
    let path = format!("/proc/self/fd/{fd}");
    // A new open file description with its own offset and rights, even without a name.
    ok!(unlink("f"));
    let again = ok!(open(&path, libc::O_RDONLY, 0)) as i32;
    eq!(read(again, 10), b"content");
    err!(write(again, b"x"), libc::EBADF);
    ok!(open(&path, libc::O_WRONLY | libc::O_TRUNC, 0));
    eq!(fstat(fd).st_size, 0);
    err!(open("/proc/self/fd/999", libc::O_RDONLY, 0), libc::ENOENT);
}

fn unlinked_file_lives_on() {
    file("f", b"content");
    file("g", b"other");
    let (f, g) = (ok!(open("f", libc::O_RDONLY, 0)) as i32, ok!(open("g", libc::O_PATH, 0)) as i32);
    // One loses its name by unlink, the other because something else takes the name.
    ok!(unlink("f"));
    file("h", b"new");
    ok!(rename("h", "g"));
    for (fd, content) in [(f, &b"content"[..]), (g, b"other")] {
        eq!(fstat(fd).st_nlink, 0);
        let path = format!("/proc/self/fd/{fd}");
        // With more rights than the descriptor has.
        let again = ok!(open(&path, libc::O_RDWR, 0)) as i32;
        eq!(read(again, 20), content);
        eq!(write(again, b"+"), 1);
        ok!(sys!(libc::SYS_fchmod, again, 0o640));
        ok!(sys!(libc::SYS_ftruncate, again, 5000));
        eq!((fstat(fd).st_size, fstat(fd).st_mode & 0o777), (5000, 0o640));
        close(again);
        // Also with no other description left that could do it.
        ok!(sys!(libc::SYS_truncate, c(&path).as_ptr(), 3));
        ok!(sys!(libc::SYS_chmod, c(&path).as_ptr(), 0o600));
        eq!((stat(&path).1.st_size, fstat(fd).st_mode & 0o777), (3, 0o600));
        let writer = ok!(open(&path, libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
        eq!(write(writer, b"end"), 3);
        close(writer);
        let mut expected = content[..3].to_vec();
        expected.extend(b"end");
        eq!(read(ok!(open(&path, libc::O_RDONLY, 0)) as i32, 20), expected);
    }
    eq!(slurp("g"), b"new");
}

fn dot_dot_at_root() {
    let same = |a: &str, b: &str| {
        let (a, b) = (stat(a).1, stat(b).1);
        (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
    };
    check!(same("/", "/.."));
    check!(same("/", "/../../.."));
    check!(same("/", "//"));
    ok!(mkdir("d", 0o755));
    check!(same(".", "d/.."));
    ok!(symlink("d", "l"));
    check!(same(".", "l/.."));
}

fn creat_call() {
    file("f", b"old");
    let fd = ok!(sys!(libc::SYS_creat, c("f").as_ptr(), 0o600)) as i32;
    eq!(fstat(fd).st_size, 0);
    let mut buf = [0u8; 1];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 1), libc::EBADF);
}

fn deleted_directory() {
    ok!(mkdir("d", 0o755));
    ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
    ok!(sys!(libc::SYS_rmdir, c("../d").as_ptr()));
    err!(open("f", libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENOENT);
    err!(open("f", libc::O_RDONLY, 0), libc::ENOENT);
    err!(mkdir("d", 0o755), libc::ENOENT);
    err!(symlink("x", "l"), libc::ENOENT);
    err!(unlink("f"), libc::ENOENT);
    let mut buf = [0u8; 100];
    err!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 100), libc::ENOENT);
    let fd = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), 100), libc::ENOENT);
    check!(stat(".").1.st_mode & libc::S_IFMT == libc::S_IFDIR);
    // Removed while it is open, and another one of that name is there.
    ok!(mkdir("../e", 0o755));
    let fd = ok!(open("../e", libc::O_RDONLY, 0)) as i32;
    ok!(sys!(libc::SYS_rmdir, c("../e").as_ptr()));
    ok!(mkdir("../e", 0o755));
    file("../e/f", b"");
    err!(sys!(libc::SYS_openat, fd, c("f").as_ptr(), libc::O_RDONLY, 0), libc::ENOENT);
    err!(sys!(libc::SYS_openat, fd, c("f").as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENOENT);
    err!(sys!(libc::SYS_renameat2, libc::AT_FDCWD, c("../e/f").as_ptr(), fd, c("f").as_ptr(), 0), libc::ENOENT);
    ok!(open("../e/f", libc::O_RDONLY, 0));
}
