//! Names: mkdir(2), rename(2), link(2), unlink(2), symlink(2), getdents64(2), chdir(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};
use std::sync::atomic::{AtomicU32, Ordering};

cases!("dir": mkdir_rmdir, mkdir_errors, rmdir_errors, unlink_errors, open_file_survives_unlink, hard_links, hard_link_errors,
    symlink_errors, readlink_calls, rename_files, rename_directories, rename_errors, rename_flags, rename_whiteout, rename_same_file,
    list, list_many, list_seeks, list_errors, list_types, list_while_removing, working_directory, fchdir_calls, getcwd_errors,
    mknod_fifo, mknod_errors, sticky_directory, setgid_directory, chroot_call, permission_of_the_path, remove_trailing_slash,
    many_names, deep_path,
    renamed_while_looked_up);

fn mkdir_rmdir() {
    sys!(libc::SYS_umask, 0o022);
    ok!(mkdir("d", 0o777));
    eq!(stat("d").1.st_mode, libc::S_IFDIR | 0o755);
    ok!(mkdir("d/e/", 0o700));
    ok!(rmdir("d/e"));
    ok!(rmdir("d/"));
    err!(stat("d").0, libc::ENOENT);
    ok!(sys!(libc::SYS_mkdirat, libc::AT_FDCWD, c("x").as_ptr(), 0o700));
    ok!(sys!(libc::SYS_unlinkat, libc::AT_FDCWD, c("x").as_ptr(), libc::AT_REMOVEDIR));
}

fn mkdir_errors() {
    file("f", b"");
    ok!(symlink("nowhere", "l"));
    err!(mkdir("f", 0o755), libc::EEXIST);
    err!(mkdir("l", 0o755), libc::EEXIST);
    err!(mkdir(".", 0o755), libc::EEXIST);
    err!(mkdir("/", 0o755), libc::EEXIST);
    err!(mkdir("missing/d", 0o755), libc::ENOENT);
    err!(mkdir("f/d", 0o755), libc::ENOTDIR);
    err!(mkdir("", 0o755), libc::ENOENT);
    err!(mkdir(&"n".repeat(256), 0o755), libc::ENAMETOOLONG);
    err!(sys!(libc::SYS_mkdir, BAD, 0o755), libc::EFAULT);
}

fn rmdir_errors() {
    ok!(mkdir("d", 0o755));
    file("d/f", b"");
    err!(rmdir("d"), libc::ENOTEMPTY);
    err!(rmdir("d/f"), libc::ENOTDIR);
    err!(rmdir("missing"), libc::ENOENT);
    err!(rmdir("d/."), libc::EINVAL);
    err!(rmdir("d/.."), libc::ENOTEMPTY);
    err!(rmdir("/"), libc::EBUSY);
    err!(sys!(libc::SYS_rmdir, WILD), libc::EFAULT);
}

fn unlink_errors() {
    ok!(mkdir("d", 0o755));
    err!(unlink("d"), libc::EISDIR);
    err!(unlink("missing"), libc::ENOENT);
    file("f", b"");
    err!(unlink("f/"), libc::ENOTDIR);
    err!(unlink("f/x"), libc::ENOTDIR);
    err!(sys!(libc::SYS_unlinkat, libc::AT_FDCWD, c("f").as_ptr(), 1), libc::EINVAL);
    err!(sys!(libc::SYS_unlinkat, libc::AT_FDCWD, c("f").as_ptr(), libc::AT_REMOVEDIR), libc::ENOTDIR);
    err!(sys!(libc::SYS_unlink, BAD), libc::EFAULT);
}

fn open_file_survives_unlink() {
    let fd = new_file("f", b"still here");
    ok!(unlink("f"));
    err!(stat("f").0, libc::ENOENT);
    eq!(read(fd, 100), b"still here");
    eq!(fstat(fd).st_nlink, 0);
    // The name can be taken by another file.
    file("f", b"new");
    eq!(fstat(fd).st_size, 10);
    write(fd, b"!");
    eq!(text("f"), "new");
}

fn hard_links() {
    file("a", b"one");
    ok!(link("a", "b"));
    eq!((stat("a").1.st_nlink, stat("a").1.st_ino), (2, stat("b").1.st_ino));
    let fd = ok!(open("b", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(fd, b" two");
    eq!(text("a"), "one two");
    ok!(unlink("a"));
    eq!(stat("b").1.st_nlink, 1);
    // A link to a symbolic link, and to what it names.
    ok!(symlink("b", "l"));
    ok!(link("l", "l2"));
    let mut st: libc::stat = zeroed();
    ok!(sys!(libc::SYS_lstat, c("l2").as_ptr(), &mut st as *mut _));
    eq!(st.st_mode & libc::S_IFMT, libc::S_IFLNK);
    let flags = libc::AT_SYMLINK_FOLLOW;
    ok!(sys!(libc::SYS_linkat, libc::AT_FDCWD, c("l").as_ptr(), libc::AT_FDCWD, c("b2").as_ptr(), flags));
    eq!(stat("b2").1.st_ino, stat("b").1.st_ino);
}

fn hard_link_errors() {
    file("f", b"");
    file("g", b"");
    ok!(mkdir("d", 0o755));
    err!(link("d", "e"), libc::EPERM);
    err!(link("f", "g"), libc::EEXIST);
    err!(link("missing", "x"), libc::ENOENT);
    err!(link("f", "missing/x"), libc::ENOENT);
    err!(sys!(libc::SYS_link, BAD, c("x").as_ptr()), libc::EFAULT);
    err!(sys!(libc::SYS_linkat, libc::AT_FDCWD, c("f").as_ptr(), libc::AT_FDCWD, c("x").as_ptr(), 1), libc::EINVAL);
}

fn symlink_errors() {
    file("f", b"");
    err!(symlink("x", "f"), libc::EEXIST);
    err!(symlink("", "l"), libc::ENOENT);
    err!(symlink("x", "missing/l"), libc::ENOENT);
    err!(symlink(&"x".repeat(4096), "l"), libc::ENAMETOOLONG);
    err!(sys!(libc::SYS_symlink, BAD, c("l").as_ptr()), libc::EFAULT);
    ok!(symlink(&"x".repeat(255), "l"));
}

fn readlink_calls() {
    ok!(symlink("some/target", "l"));
    let mut buf = [b'?'; 20];
    eq!(sys!(libc::SYS_readlink, c("l").as_ptr(), buf.as_mut_ptr(), 20), 11);
    eq!(&buf[..12], b"some/target?");
    eq!(sys!(libc::SYS_readlink, c("l").as_ptr(), buf.as_mut_ptr(), 4), 4);
    err!(sys!(libc::SYS_readlink, c("l").as_ptr(), buf.as_mut_ptr(), 0), libc::EINVAL);
    err!(sys!(libc::SYS_readlink, c("l").as_ptr(), BAD, 20), libc::EFAULT);
    file("f", b"");
    err!(sys!(libc::SYS_readlink, c("f").as_ptr(), buf.as_mut_ptr(), 20), libc::EINVAL);
    err!(sys!(libc::SYS_readlink, c("missing").as_ptr(), buf.as_mut_ptr(), 20), libc::ENOENT);
    let fd = ok!(open("l", libc::O_PATH | libc::O_NOFOLLOW, 0));
    eq!(sys!(libc::SYS_readlinkat, fd, c("").as_ptr(), buf.as_mut_ptr(), 20), 11);
}

fn rename_files() {
    file("a", b"A");
    file("b", b"B");
    let fd = ok!(open("b", libc::O_RDONLY, 0)) as i32;
    ok!(rename("a", "b"));
    eq!(text("b"), "A");
    err!(stat("a").0, libc::ENOENT);
    eq!(read(fd, 10), b"B");
    ok!(mkdir("d", 0o755));
    ok!(rename("b", "d/c"));
    eq!(text("d/c"), "A");
    ok!(symlink("d/c", "l"));
    ok!(rename("l", "l2"));
    eq!(text("l2"), "A");
}

fn rename_directories() {
    ok!(mkdir("a", 0o755));
    file("a/f", b"x");
    ok!(mkdir("b", 0o755));
    ok!(rename("a", "b"));
    eq!(text("b/f"), "x");
    ok!(mkdir("c", 0o755));
    ok!(rename("b", "c/b"));
    eq!(text("c/b/f"), "x");
    // `..` of the moved directory is its new parent.
    eq!(stat("c/b/..").1.st_ino, stat("c").1.st_ino);
}

fn rename_errors() {
    file("f", b"");
    ok!(mkdir("d", 0o755));
    ok!(mkdir("e", 0o755));
    file("e/x", b"");
    err!(rename("missing", "x"), libc::ENOENT);
    err!(rename("f", "missing/x"), libc::ENOENT);
    err!(rename("f", "d"), libc::EISDIR);
    err!(rename("d", "f"), libc::ENOTDIR);
    err!(rename("d", "e"), libc::ENOTEMPTY);
    err!(rename("d", "d/sub"), libc::EINVAL);
    err!(rename("e/x", "e/x/y"), libc::ENOTDIR);
    err!(rename(".", "x"), libc::EBUSY);
    err!(rename("f", "d/.."), libc::EBUSY);
    err!(rename("f", "/proc/x"), libc::EXDEV);
    err!(rename("f", "x/"), libc::ENOTDIR);
    err!(sys!(libc::SYS_rename, c("f").as_ptr(), BAD), libc::EFAULT);
}

fn rename_flags() {
    let call = |from: &str, to: &str, flags: u32| {
        sys!(libc::SYS_renameat2, libc::AT_FDCWD, c(from).as_ptr(), libc::AT_FDCWD, c(to).as_ptr(), flags)
    };
    file("a", b"A");
    file("b", b"B");
    err!(call("a", "b", libc::RENAME_NOREPLACE), libc::EEXIST);
    ok!(call("a", "c", libc::RENAME_NOREPLACE));
    ok!(call("b", "c", libc::RENAME_EXCHANGE));
    eq!((text("b"), text("c")), ("A".into(), "B".into()));
    ok!(mkdir("d", 0o755));
    ok!(call("b", "d", libc::RENAME_EXCHANGE));
    eq!(text("d"), "A");
    eq!(stat("b").1.st_mode & libc::S_IFMT, libc::S_IFDIR);
    err!(call("b", "missing", libc::RENAME_EXCHANGE), libc::ENOENT);
    err!(call("b", "c", libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE), libc::EINVAL);
    err!(call("b", "c", 64), libc::EINVAL);
}

fn rename_whiteout() {
    let call = |from: &str, to: &str, flags: u32| {
        sys!(libc::SYS_renameat2, libc::AT_FDCWD, c(from).as_ptr(), libc::AT_FDCWD, c(to).as_ptr(), flags)
    };
    let mut fs: libc::statfs = zeroed();
    ok!(sys!(libc::SYS_statfs, c(".").as_ptr(), &mut fs as *mut _));
    file("a", b"A");
    file("c", b"C");
    ok!(mkdir("d", 0o755));
    err!(call("a", "b", libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE), libc::EINVAL);
    err!(call("a", "c", libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE), libc::EEXIST);
    let r = call("a", "c", libc::RENAME_WHITEOUT);
    if r < 0 && fs.f_type != libc::TMPFS_MAGIC {
        // Not every file system has them.
        eq!(r, -i64::from(libc::EINVAL));
        eq!((text("a"), text("c")), ("A".into(), "C".into()));
        return;
    }
    ok!(r);
    eq!(text("c"), "A");
    let left = stat("a").1;
    eq!((left.st_mode, left.st_rdev, left.st_nlink), (libc::S_IFCHR, 0, 1));
    ok!(call("d", "e", libc::RENAME_WHITEOUT));
    eq!(stat("d").1.st_mode, libc::S_IFCHR);
    ok!(unlink("a"));
    err!(stat("a").0, libc::ENOENT);
}

fn rename_same_file() {
    file("a", b"");
    ok!(rename("a", "a"));
    // Two names of one file: nothing happens.
    ok!(link("a", "b"));
    ok!(rename("a", "b"));
    eq!(stat("a").1.st_nlink, 2);
}

/// The entries of a directory: name, type and offset.
fn entries(fd: i32, size: usize) -> Vec<(String, u8, i64)> {
    let mut all = Vec::new();
    let mut buf = vec![0u8; size];
    loop {
        let n = ok!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), size)) as usize;
        if n == 0 {
            return all;
        }
        let mut at = 0;
        while at < n {
            let next = i64::from_le_bytes(buf[at + 8..at + 16].try_into().expect("8 bytes"));
            let len = usize::from(u16::from_le_bytes([buf[at + 16], buf[at + 17]]));
            let name: Vec<u8> = buf[at + 19..at + len].iter().copied().take_while(|&b| b != 0).collect();
            all.push((String::from_utf8_lossy(&name).into_owned(), buf[at + 18], next));
            eq!(len % 8, 0);
            at += len;
        }
    }
}

fn names(path: &str) -> Vec<String> {
    let fd = ok!(open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut names: Vec<String> = entries(fd, 4096).into_iter().map(|e| e.0).collect();
    close(fd);
    names.sort_unstable();
    names
}

fn list() {
    ok!(mkdir("d", 0o755));
    eq!(names("d"), [".", ".."]);
    file("d/f", b"");
    ok!(mkdir("d/sub", 0o755));
    ok!(symlink("f", "d/l"));
    eq!(names("d"), [".", "..", "f", "l", "sub"]);
    ok!(unlink("d/f"));
    eq!(names("d"), [".", "..", "l", "sub"]);
}

fn list_many() {
    ok!(mkdir("d", 0o755));
    (0..500).for_each(|i| file(&format!("d/{i:0>3}-{}", "n".repeat(i % 60)), b""));
    let fd = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    // A small buffer needs many calls; no name comes twice.
    let mut all: Vec<String> = entries(fd, 300).into_iter().map(|e| e.0).collect();
    all.sort_unstable();
    all.dedup();
    eq!(all.len(), 502);
}

fn list_seeks() {
    ok!(mkdir("d", 0o755));
    (0..20).for_each(|i| file(&format!("d/{i}"), b""));
    let fd = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    let first = entries(fd, 4096);
    eq!(entries(fd, 4096).len(), 0);
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    eq!(entries(fd, 4096).len(), 22);
    // Back to where the tenth entry said that the next begins.
    ok!(sys!(libc::SYS_lseek, fd, first[9].2, libc::SEEK_SET));
    let rest: Vec<String> = entries(fd, 4096).into_iter().map(|e| e.0).collect();
    eq!(rest, first[10..].iter().map(|e| e.0.clone()).collect::<Vec<_>>());
    // A rewound directory shows what has been added.
    file("d/new", b"");
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    eq!(entries(fd, 4096).len(), 23);
    // Where a place was, it still is when names have come and gone.
    let names = |entries: &[(String, u8, i64)]| -> Vec<String> {
        entries.iter().map(|e| e.0.clone()).filter(|name| !name.starts_with(['.', 'n'])).collect()
    };
    let (before, mut behind) = (names(&first[..10]), names(&first[10..]));
    behind.sort();
    for gone in [&before[3], &behind[4]] {
        ok!(unlink(&format!("d/{gone}")));
    }
    (0..5).for_each(|i| file(&format!("d/new{i}"), b""));
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    eq!(entries(fd, 4096).len(), 26);
    ok!(sys!(libc::SYS_lseek, fd, first[9].2, libc::SEEK_SET));
    behind.remove(4);
    let mut rest = names(&entries(fd, 4096));
    rest.sort();
    eq!(rest, behind);
}

fn list_errors() {
    let mut buf = [0u8; 100];
    let fd = new_file("f", b"");
    err!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), 100), libc::ENOTDIR);
    err!(sys!(libc::SYS_getdents64, 999, buf.as_mut_ptr(), 100), libc::EBADF);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(sys!(libc::SYS_getdents64, dir, BAD, 100), libc::EFAULT);
    err!(sys!(libc::SYS_getdents64, dir, buf.as_mut_ptr(), 5), libc::EINVAL);
}

fn list_types() {
    ok!(mkdir("d", 0o755));
    file("d/f", b"");
    ok!(mkdir("d/s", 0o755));
    ok!(symlink("f", "d/l"));
    fifo("d/p");
    let fd = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    for (name, kind, _) in entries(fd, 4096) {
        let expected = match name.as_str() {
            "f" => libc::DT_REG,
            "l" => libc::DT_LNK,
            "p" => libc::DT_FIFO,
            _ => libc::DT_DIR,
        };
        check!(kind == expected, "{name}: {kind}");
    }
}

fn list_while_removing() {
    // As rm -r does: every name is seen once although names go meanwhile.
    ok!(mkdir("d", 0o755));
    (0..300).for_each(|i| file(&format!("d/{i}"), b""));
    let fd = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    let mut buf = [0u8; 512];
    let mut removed = 0;
    loop {
        let n = ok!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), 512)) as usize;
        if n == 0 {
            break;
        }
        let mut at = 0;
        while at < n {
            let len = usize::from(u16::from_le_bytes([buf[at + 16], buf[at + 17]]));
            let name: Vec<u8> = buf[at + 19..at + len].iter().copied().take_while(|&b| b != 0).collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            if !name.starts_with('.') {
                ok!(unlink(&format!("d/{name}")));
                removed += 1;
            }
            at += len;
        }
    }
    eq!(removed, 300);
    ok!(rmdir("d"));
}

fn cwd() -> String {
    let mut buf = [0u8; 4096];
    let n = ok!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 4096)) as usize;
    String::from_utf8_lossy(&buf[..n - 1]).into_owned()
}

fn working_directory() {
    let base = cwd();
    ok!(mkdir("d", 0o755));
    ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
    eq!(cwd(), format!("{base}/d"));
    // It follows a rename.
    ok!(rename("../d", "../e"));
    eq!(cwd(), format!("{base}/e"));
    ok!(symlink("e", "../l"));
    ok!(sys!(libc::SYS_chdir, c("../l").as_ptr()));
    eq!(cwd(), format!("{base}/e"));
    file("f", b"");
    err!(sys!(libc::SYS_chdir, c("f").as_ptr()), libc::ENOTDIR);
    err!(sys!(libc::SYS_chdir, c("missing").as_ptr()), libc::ENOENT);
    err!(sys!(libc::SYS_chdir, BAD), libc::EFAULT);
    in_child(|| {
        ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
    });
    eq!(cwd(), format!("{base}/e"));
}

fn fchdir_calls() {
    let base = cwd();
    ok!(mkdir("d", 0o755));
    let fd = ok!(open("d", libc::O_RDONLY, 0)) as i32;
    ok!(sys!(libc::SYS_fchdir, fd));
    eq!(cwd(), format!("{base}/d"));
    let plain = new_file("f", b"");
    err!(sys!(libc::SYS_fchdir, plain), libc::ENOTDIR);
    err!(sys!(libc::SYS_fchdir, 999), libc::EBADF);
}

fn getcwd_errors() {
    let mut buf = [0u8; 4096];
    err!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 1), libc::ERANGE);
    err!(sys!(libc::SYS_getcwd, BAD, 4096), libc::EFAULT);
    ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
    eq!(cwd(), "/");
}

fn mknod_fifo() {
    fifo("probe");
    ok!(sys!(libc::SYS_mknodat, libc::AT_FDCWD, c("p").as_ptr(), libc::S_IFIFO | 0o600, 0));
    eq!(stat("p").1.st_mode, libc::S_IFIFO | 0o600);
    ok!(sys!(libc::SYS_mknod, c("f").as_ptr(), 0o640, 0));
    eq!(stat("f").1.st_mode, libc::S_IFREG | 0o640);
}

fn mknod_errors() {
    err!(sys!(libc::SYS_mknod, c("d").as_ptr(), libc::S_IFDIR | 0o600, 0), libc::EPERM);
    err!(sys!(libc::SYS_mknod, c("d").as_ptr(), libc::S_IFMT | 0o600, 0), libc::EINVAL);
    file("f", b"");
    err!(sys!(libc::SYS_mknod, c("f").as_ptr(), libc::S_IFIFO | 0o600, 0), libc::EEXIST);
    err!(sys!(libc::SYS_mknod, c("missing/f").as_ptr(), libc::S_IFIFO | 0o600, 0), libc::ENOENT);
}

fn as_user(uid: u32, body: impl FnOnce()) {
    in_child(|| {
        ok!(sys!(libc::SYS_setgroups, 0, 0));
        ok!(sys!(libc::SYS_setresgid, uid, uid, uid));
        ok!(sys!(libc::SYS_setresuid, uid, uid, uid));
        body();
    });
}

fn sticky_directory() {
    need_root();
    ok!(mkdir("d", 0o755));
    ok!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o1777));
    file("d/theirs", b"");
    as_user(1001, || {
        err!(unlink("d/theirs"), libc::EPERM);
        err!(rename("d/theirs", "d/x"), libc::EPERM);
        file("d/mine", b"");
        ok!(unlink("d/mine"));
    });
}

fn setgid_directory() {
    need_root();
    if on_writable_host() {
        skip("set-id bits are stripped");
    }
    ok!(mkdir("d", 0o755));
    ok!(sys!(libc::SYS_chown, c("d").as_ptr(), 0, 77));
    ok!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o2755));
    file("d/f", b"");
    eq!(stat("d/f").1.st_gid, 77);
    ok!(mkdir("d/sub", 0o755));
    eq!((stat("d/sub").1.st_gid, stat("d/sub").1.st_mode & 0o7777), (77, 0o2755));
}

fn chroot_call() {
    need_root();
    ok!(mkdir("r", 0o755));
    file("r/f", b"inside");
    file("f", b"outside");
    err!(sys!(libc::SYS_chroot, c("f").as_ptr()), libc::ENOTDIR);
    in_child(|| {
        ok!(sys!(libc::SYS_chroot, c("r").as_ptr()));
        eq!(text("/f"), "inside");
        eq!(text("/../../f"), "inside");
        // The working directory has not moved and is outside now.
        eq!(text("f"), "outside");
        ok!(sys!(libc::SYS_chdir, c("/").as_ptr()));
        eq!(cwd(), "/");
        eq!(text("../f"), "inside");
    });
}

fn permission_of_the_path() {
    need_root();
    ok!(mkdir("d", 0o755));
    file("d/f", b"");
    ok!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o644));
    as_user(1001, || {
        err!(open("d/f", libc::O_RDONLY, 0), libc::EACCES);
        err!(stat("d/f").0, libc::EACCES);
        eq!(names("d"), [".", "..", "f"]);
        err!(mkdir("new", 0o755), libc::EACCES);
        err!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o777), libc::EPERM);
    });
    ok!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o711));
    as_user(1001, || {
        ok!(open("d/f", libc::O_RDONLY, 0));
        err!(open("d/f", libc::O_WRONLY, 0), libc::EACCES);
        err!(open("d", libc::O_RDONLY, 0), libc::EACCES);
    });
}

fn remove_trailing_slash() {
    ok!(mkdir("d", 0o755));
    ok!(symlink("d", "l"));
    err!(rmdir("l"), libc::ENOTDIR);
    err!(rmdir("l/"), libc::ENOTDIR);
    err!(unlink("l/"), libc::ENOTDIR);
    ok!(unlink("l"));
}

fn many_names() {
    ok!(mkdir("d", 0o755));
    (0..1000).for_each(|i| file(&format!("d/{i}"), b""));
    (0..1000).for_each(|i| eq!(unlink(&format!("d/{i}")), 0));
    ok!(rmdir("d"));
}

fn deep_path() {
    // A directory deeper than a path can be long; getcwd fails there, relative names work.
    for _ in 0..25 {
        let name = "n".repeat(200);
        ok!(mkdir(&name, 0o755));
        ok!(sys!(libc::SYS_chdir, c(&name).as_ptr()));
    }
    let mut buf = vec![0u8; 8192];
    err!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 8192), libc::ENAMETOOLONG);
    file("f", b"deep");
    eq!(text("f"), "deep");
}

/// Directories that go into each other and out again, while others look for what is in them.
fn renamed_while_looked_up() {
    static OVER: AtomicU32 = AtomicU32::new(0);
    for dir in ["x", "y", "x/d", "y/e"] {
        ok!(mkdir(dir, 0o755));
    }
    file("x/d/f", b"1");
    file("y/e/g", b"2");
    let there_and_back = |from: &'static str, to: &'static str| {
        std::thread::spawn(move || {
            for _ in 0..100 {
                // The way may be gone with the other directory.
                if rename(from, to) == 0 {
                    until("it is back", || rename(to, from) == 0);
                }
            }
            OVER.fetch_add(1, Ordering::SeqCst);
        })
    };
    let threads = [there_and_back("x/d", "y/e/d"), there_and_back("y/e", "x/d/e")];
    let lookers = ["x/d/f", "y/e/g", "x/d/e/g", "y/e/d/f"].map(|path| {
        std::thread::spawn(move || {
            while OVER.load(Ordering::SeqCst) < 2 {
                let (r, _) = stat(path);
                check!(r == 0 || r == -i64::from(libc::ENOENT), "{}", Code(r));
                let fd = open(path, libc::O_RDONLY, 0);
                if fd >= 0 {
                    eq!(fstat(fd as i32).st_size, 1);
                    close(fd as i32);
                }
                let _ = std::fs::read_dir(path.rsplit_once('/').expect("a directory").0).map(Iterator::count);
            }
        })
    });
    for thread in threads.into_iter().chain(lookers) {
        thread.join().expect("joined");
    }
    eq!((slurp("x/d/f"), slurp("y/e/g")), (b"1".to_vec(), b"2".to_vec()));
}
