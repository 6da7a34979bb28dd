//! Changing files of a directory that comes from the host, which keeps its own.
//!
//! The runner puts the files there: `file`, `other`, `big`, `link` to `file`, `dir` with `one`, `two` and `sub/deep`,
//! below `$GUEST_LOWER` in a directory for each case.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("overlay": reads, lists, overwrites, appends, open_for_reading_sees_changes, removes, removes_and_makes_again, whiteout_in_list,
    removes_a_tree, made_again_directory_is_empty, renames_file, renames_directory, renames_over, links_host_file, chmod_host_file,
    chown_host_directory, truncates_on_open, times_of_host_file, new_file_in_host_directory, maps_shared, maps_private_stays,
    big_file_partly, symlink_replaced, mkdir_over_removed_file, list_while_changing, execs_changed_file, exclusive_create);

fn enter(name: &str) {
    let Ok(lower) = std::env::var("GUEST_LOWER") else { skip("no host directory was given") };
    ok!(sys!(libc::SYS_chdir, c(&format!("{lower}/overlay-{name}")).as_ptr()));
}

fn names(path: &str) -> Vec<String> {
    let entries = std::fs::read_dir(path).expect("a directory");
    let mut names: Vec<String> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn reads() {
    enter("reads");
    eq!(text("file"), "lower\n");
    eq!(text("link"), "lower\n");
    eq!(text("dir/sub/deep"), "deep\n");
    eq!(stat("big").1.st_size, 300_000);
    check!(slurp("big").iter().all(|&b| b == b'b'));
}

fn lists() {
    enter("lists");
    eq!(names("."), ["big", "dir", "file", "link", "other"]);
    file("added", b"");
    eq!(names("."), ["added", "big", "dir", "file", "link", "other"]);
    eq!(names("dir"), ["one", "sub", "two"]);
}

fn overwrites() {
    enter("overwrites");
    let ino = stat("file").1.st_ino;
    let fd = ok!(open("file", libc::O_RDWR, 0)) as i32;
    eq!(read(fd, 2), b"lo");
    write(fd, b"WER");
    eq!(text("file"), "loWER\n");
    eq!(stat("file").1.st_ino, ino);
    eq!(text("link"), "loWER\n");
}

fn appends() {
    enter("appends");
    let fd = ok!(open("dir/one", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(fd, b"more\n");
    eq!(text("dir/one"), "1\nmore\n");
    eq!(text("dir/two"), "2\n");
}

fn open_for_reading_sees_changes() {
    enter("open_for_reading_sees_changes");
    // Opened before the file was written, it shows what is written: it is one file.
    let before = ok!(open("file", libc::O_RDONLY, 0)) as i32;
    let writer = ok!(open("file", libc::O_WRONLY, 0)) as i32;
    write(writer, b"UPPER");
    eq!(read(before, 10), b"UPPER\n");
    eq!(fstat(before).st_ino, stat("file").1.st_ino);
}

fn removes() {
    enter("removes");
    let fd = ok!(open("file", libc::O_RDONLY, 0)) as i32;
    ok!(unlink("file"));
    err!(stat("file").0, libc::ENOENT);
    err!(open("file", libc::O_RDONLY, 0), libc::ENOENT);
    err!(stat("link").0, libc::ENOENT);
    eq!(read(fd, 10), b"lower\n");
    err!(unlink("file"), libc::ENOENT);
}

fn removes_and_makes_again() {
    enter("removes_and_makes_again");
    ok!(unlink("file"));
    ok!(open("file", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644));
    eq!(text("file"), "");
    ok!(unlink("file"));
    err!(stat("file").0, libc::ENOENT);
}

fn whiteout_in_list() {
    enter("whiteout_in_list");
    ok!(unlink("file"));
    ok!(unlink("dir/one"));
    eq!(names("."), ["big", "dir", "link", "other"]);
    eq!(names("dir"), ["sub", "two"]);
}

fn removes_a_tree() {
    enter("removes_a_tree");
    err!(sys!(libc::SYS_rmdir, c("dir").as_ptr()), libc::ENOTEMPTY);
    std::fs::remove_dir_all("dir").expect("removed");
    err!(stat("dir/one").0, libc::ENOENT);
    err!(stat("dir").0, libc::ENOENT);
    eq!(names("."), ["big", "file", "link", "other"]);
}

fn made_again_directory_is_empty() {
    enter("made_again_directory_is_empty");
    std::fs::remove_dir_all("dir").expect("removed");
    ok!(mkdir("dir", 0o755));
    eq!(names("dir"), Vec::<String>::new());
    err!(stat("dir/one").0, libc::ENOENT);
    file("dir/one", b"new");
    eq!(text("dir/one"), "new");
    eq!(names("dir"), ["one"]);
}

fn renames_file() {
    enter("renames_file");
    ok!(rename("file", "dir/moved"));
    err!(stat("file").0, libc::ENOENT);
    eq!(text("dir/moved"), "lower\n");
    eq!(names("dir"), ["moved", "one", "sub", "two"]);
}

fn renames_directory() {
    enter("renames_directory");
    let r = rename("dir", "moved");
    if r == -i64::from(libc::EXDEV) {
        skip("a directory of the lower layer cannot be renamed, as with Linux's overlayfs");
    }
    ok!(r);
    err!(stat("dir").0, libc::ENOENT);
    eq!(text("moved/sub/deep"), "deep\n");
    eq!(names("moved"), ["one", "sub", "two"]);
}

fn renames_over() {
    enter("renames_over");
    file("new", b"new\n");
    ok!(rename("new", "file"));
    eq!(text("file"), "new\n");
    ok!(rename("other", "file"));
    eq!(text("file"), "another\n");
    eq!(names("."), ["big", "dir", "file", "link"]);
}

fn links_host_file() {
    enter("links_host_file");
    ok!(sys!(libc::SYS_link, c("file").as_ptr(), c("second").as_ptr()));
    eq!((stat("file").1.st_ino, stat("file").1.st_nlink), (stat("second").1.st_ino, 2));
    let fd = ok!(open("second", libc::O_WRONLY, 0)) as i32;
    write(fd, b"BOTH!");
    eq!(text("file"), "BOTH!\n");
}

fn chmod_host_file() {
    enter("chmod_host_file");
    ok!(sys!(libc::SYS_chmod, c("file").as_ptr(), 0o600));
    eq!(stat("file").1.st_mode & 0o7777, 0o600);
    eq!(text("file"), "lower\n");
}

fn chown_host_directory() {
    need_root();
    enter("chown_host_directory");
    ok!(sys!(libc::SYS_chown, c("dir").as_ptr(), 5, 6));
    eq!((stat("dir").1.st_uid, stat("dir").1.st_gid), (5, 6));
    eq!(names("dir"), ["one", "sub", "two"]);
}

fn truncates_on_open() {
    enter("truncates_on_open");
    let fd = ok!(open("big", libc::O_WRONLY | libc::O_TRUNC, 0)) as i32;
    write(fd, b"small");
    eq!(text("big"), "small");
    ok!(sys!(libc::SYS_truncate, c("file").as_ptr(), 3));
    eq!(text("file"), "low");
}

fn times_of_host_file() {
    enter("times_of_host_file");
    let times = [timespec_ms(5000), timespec_ms(6000)];
    ok!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("file").as_ptr(), times.as_ptr(), 0));
    eq!((stat("file").1.st_atime, stat("file").1.st_mtime), (5, 6));
    eq!(text("file"), "lower\n");
}

fn new_file_in_host_directory() {
    enter("new_file_in_host_directory");
    file("dir/sub/new", b"n");
    ok!(mkdir("dir/sub/more", 0o755));
    file("dir/sub/more/file", b"m");
    ok!(symlink("more/file", "dir/sub/l"));
    eq!(text("dir/sub/l"), "m");
    eq!(names("dir/sub"), ["deep", "l", "more", "new"]);
}

fn maps_shared() {
    enter("maps_shared");
    let fd = ok!(open("file", libc::O_RDWR, 0)) as i32;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let p = ok!(sys!(libc::SYS_mmap, 0, PAGE, prot, libc::MAP_SHARED, fd, 0)) as *mut u8;
    // SAFETY: within the file's page.
    unsafe { p.write_volatile(b'S') };
    eq!(text("file"), "Sower\n");
    eq!(sys!(libc::SYS_pwrite64, fd, b"Z".as_ptr(), 1, 1), 1);
    // SAFETY: as above.
    eq!(unsafe { p.add(1).read_volatile() }, b'Z');
}

fn maps_private_stays() {
    enter("maps_private_stays");
    let fd = ok!(open("file", libc::O_RDONLY, 0)) as i32;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let p = ok!(sys!(libc::SYS_mmap, 0, PAGE, prot, libc::MAP_PRIVATE, fd, 0)) as *mut u8;
    // SAFETY: within the file's page.
    unsafe { p.write_volatile(b'P') };
    eq!(text("file"), "lower\n");
}

fn big_file_partly() {
    enter("big_file_partly");
    let fd = ok!(open("big", libc::O_RDWR, 0)) as i32;
    eq!(sys!(libc::SYS_pwrite64, fd, b"X".as_ptr(), 1, 150_000), 1);
    let all = slurp("big");
    eq!((all.len(), all.iter().filter(|&&b| b == b'b').count(), all[150_000]), (300_000, 299_999, b'X'));
    ok!(sys!(libc::SYS_ftruncate, fd, 400_000));
    eq!(slurp("big")[399_999], 0);
}

fn symlink_replaced() {
    enter("symlink_replaced");
    ok!(unlink("link"));
    ok!(symlink("other", "link"));
    eq!(text("link"), "another\n");
    ok!(symlink("dir", "new"));
    ok!(rename("new", "link"));
    eq!(text("link/two"), "2\n");
}

fn mkdir_over_removed_file() {
    enter("mkdir_over_removed_file");
    ok!(unlink("file"));
    ok!(mkdir("file", 0o755));
    file("file/inside", b"x");
    eq!(names("file"), ["inside"]);
    ok!(unlink("file/inside"));
    ok!(sys!(libc::SYS_rmdir, c("file").as_ptr()));
    file("file", b"again");
    eq!(text("file"), "again");
}

fn list_while_changing() {
    enter("list_while_changing");
    let entries = std::fs::read_dir(".").expect("a directory");
    let mut n = 0;
    for entry in entries {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        n += 1;
        if name != "dir" {
            ok!(unlink(&name));
        }
    }
    eq!(n, 5);
    eq!(names("."), ["dir"]);
}

fn execs_changed_file() {
    enter("execs_changed_file");
    file("file", b"#!/bin/sh\nexit 9\n");
    ok!(sys!(libc::SYS_chmod, c("file").as_ptr(), 0o755));
    let status = std::process::Command::new("./file").status().expect("it runs");
    eq!(status.code(), Some(9));
}

fn exclusive_create() {
    enter("exclusive_create");
    err!(open("file", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o644), libc::EEXIST);
    err!(mkdir("dir", 0o755), libc::EEXIST);
    err!(symlink("x", "other"), libc::EEXIST);
    file("a", b"");
    err!(sys!(libc::SYS_link, c("a").as_ptr(), c("file").as_ptr()), libc::EEXIST);
}
