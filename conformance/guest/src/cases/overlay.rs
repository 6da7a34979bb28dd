//! Changing files of a directory that comes from the host, which keeps its own.
//!
//! The runner puts the files there: `file`, `other`, `big`, `link` to `file`, `dir` with `one`, `two` and `sub/deep`,
//! below `$GUEST_LOWER` in a directory for each case. In another one are `hard1` and `hard2`, two names of one file, `old`
//! of 2001, `sparse` of 5 GiB, `many` with 500 files that hold their names and `tree/in/file`.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("overlay": reads, lists, overwrites, appends, open_for_reading_sees_changes, removes, removes_and_makes_again, whiteout_in_list,
    removes_a_tree, made_again_directory_is_empty, renames_file, renames_directory, renames_over, links_host_file, chmod_host_file,
    chown_host_directory, truncates_on_open, times_of_host_file, new_file_in_host_directory, maps_shared, maps_private_stays,
    big_file_partly, symlink_replaced, mkdir_over_removed_file, list_while_changing, execs_changed_file, exclusive_create,
    hard_links_stay_together, hard_link_loses_a_name, attributes_survive, holes_survive, exchange, no_replace, unnamed_file_gets_a_name,
    removed_file_changes, dot_dot_of_moved_directory, list_survives_removals, positions_survive_changes, renames_over_emptied_directory,
    file_instead_of_directory, times_of_directories, deep_below_host_directory, some_room_is_used, reads_in_one_go,
    reads_file_after_file);

fn enter(name: &str) {
    let Ok(lower) = std::env::var("GUEST_LOWER") else { skip("no host directory was given") };
    ok!(sys!(libc::SYS_chdir, c(&format!("{lower}/overlay-{name}")).as_ptr()));
}

fn enter_more(name: &str) {
    let Ok(lower) = std::env::var("GUEST_LOWER") else { skip("no host directory was given") };
    ok!(sys!(libc::SYS_chdir, c(&format!("{lower}/more-overlay-{name}")).as_ptr()));
}

fn rename2(from: &str, to: &str, flags: u32) -> i64 {
    sys!(libc::SYS_renameat2, libc::AT_FDCWD, c(from).as_ptr(), libc::AT_FDCWD, c(to).as_ptr(), flags)
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

fn reads_in_one_go() {
    enter("reads_in_one_go");
    let fd = ok!(open("big", libc::O_RDONLY, 0)) as i32;
    for offset in [0, 1, 4095, 65_537, 299_999, 300_000] {
        for len in [4096, 65_536, 65_537, 98_304, 262_144, 300_000, 1 << 20] {
            let mut buf = vec![0u8; len];
            let expected = len.min(300_000 - offset);
            eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), len, offset), expected as i64);
            check!(buf[..expected].iter().all(|&b| b == b'b'), "{len} bytes at {offset}");
            // In two vectors.
            buf.fill(0);
            let (head, tail) = buf.split_at_mut(1000);
            let v = [head, tail].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
            eq!(sys!(libc::SYS_preadv, fd, v.as_ptr(), 2, offset, 0), expected as i64);
            check!(buf[..expected].iter().all(|&b| b == b'b'), "{len} bytes at {offset}, in two");
        }
    }
    // The first part leaves little room for the second, in whatever the bytes go through.
    for first in [61_000, 64_500, 65_000, 65_530] {
        for second in [5000, 100_000] {
            let (mut head, mut tail) = (vec![0u8; first], vec![0u8; second]);
            let v = [&mut head, &mut tail].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
            eq!(sys!(libc::SYS_preadv, fd, v.as_ptr(), 2, 1, 0), (first + second) as i64);
            check!(head.iter().chain(&tail).all(|&b| b == b'b'), "{first} bytes and {second}");
        }
    }
}

fn reads_file_after_file() {
    enter_more("reads_file_after_file");
    let fd = ok!(open("many", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut all: Vec<String> = entries(fd, 4096).into_iter().map(|(name, _, _)| format!("many/{name}")).collect();
    all.retain(|path| !path.ends_with('.'));
    eq!(all.len(), 500);
    // Changes of files that have been opened already, and of those that are next.
    for (i, path) in all.iter().enumerate() {
        match i % 50 {
            20 => {
                file(&all[i + 2], b"changed");
                ok!(unlink(&all[i + 3]));
                ok!(rename(&all[i + 4], &all[i + 5]));
                file(&all[i + 4], b"another");
            }
            23 => {
                err!(open(path, libc::O_RDONLY, 0), libc::ENOENT);
                continue;
            }
            _ => {}
        }
        let own = &path["many/".len()..];
        let expected = match i % 50 {
            22 => "changed",
            24 => "another",
            25 => &all[i - 1]["many/".len()..],
            _ => own,
        };
        eq!((path, text(path).as_str()), (path, expected));
        if i % 50 == 30 {
            // Twice, and one from before.
            eq!(text(path), own);
            eq!(text(&all[i - 6]), "another");
        }
    }
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

fn hard_links_stay_together() {
    enter_more("hard_links_stay_together");
    let before = stat("hard1").1;
    eq!((before.st_ino, before.st_nlink), (stat("hard2").1.st_ino, 2));
    let fd = ok!(open("hard1", libc::O_WRONLY, 0)) as i32;
    write(fd, b"HA");
    eq!(text("hard2"), "HArd\n");
    ok!(sys!(libc::SYS_chmod, c("hard2").as_ptr(), 0o600));
    let (one, other) = (stat("hard1").1, stat("hard2").1);
    eq!((one.st_ino, one.st_nlink, one.st_mode & 0o777), (before.st_ino, 2, 0o600));
    eq!((other.st_ino, other.st_nlink, other.st_mode & 0o777), (before.st_ino, 2, 0o600));
}

fn hard_link_loses_a_name() {
    enter_more("hard_link_loses_a_name");
    let fd = ok!(open("hard2", libc::O_RDWR, 0)) as i32;
    ok!(unlink("hard1"));
    eq!((fstat(fd).st_nlink, stat("hard2").1.st_nlink), (1, 1));
    ok!(link("hard2", "hard3"));
    ok!(unlink("hard2"));
    write(fd, b"3");
    eq!(text("hard3"), "3ard\n");
    ok!(unlink("hard3"));
    eq!(fstat(fd).st_nlink, 0);
    eq!(sys!(libc::SYS_pwrite64, fd, b"4".as_ptr(), 1, 0), 1);
}

fn attributes_survive() {
    enter_more("attributes_survive");
    let before = stat("old").1;
    eq!((before.st_mtime, before.st_mtime_nsec), (981_173_106, 789_000_000));
    // Opened for writing only, and then given another mode: the content's time does not change.
    close(ok!(open("old", libc::O_WRONLY, 0)) as i32);
    ok!(sys!(libc::SYS_chmod, c("old").as_ptr(), 0o604));
    let after = stat("old").1;
    eq!((after.st_mtime, after.st_mtime_nsec, after.st_size), (981_173_106, 789_000_000, 4));
    eq!((after.st_uid, after.st_gid, after.st_ino), (before.st_uid, before.st_gid, before.st_ino));
    check!((after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec));
    ok!(sys!(libc::SYS_truncate, c("old").as_ptr(), 4));
    check!(stat("old").1.st_mtime > 981_173_106);
}

fn holes_survive() {
    enter_more("holes_survive");
    let size = 5i64 << 30;
    eq!(stat("sparse").1.st_size, size);
    let fd = ok!(open("sparse", libc::O_RDWR, 0)) as i32;
    eq!(sys!(libc::SYS_pwrite64, fd, b"middle".as_ptr(), 6, 3i64 << 30), 6);
    let after = fstat(fd);
    eq!(after.st_size, size);
    check!(after.st_blocks < 2048, "{} blocks", after.st_blocks);
    let mut buf = [1u8; 8];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 8, (3i64 << 30) - 1), 8);
    eq!(&buf, b"\0middle\0");
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 8, size - 4), 4);
    eq!(&buf[..4], b"end\n");
    let data = ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_DATA));
    check!(data > 1 << 30 && data <= 3 << 30, "data at {data}");
    ok!(sys!(libc::SYS_ftruncate, fd, size + 5));
    eq!(stat("sparse").1.st_size, size + 5);
}

fn exchange() {
    enter("exchange");
    file("new", b"new\n");
    ok!(mkdir("newdir", 0o755));
    file("newdir/x", b"x");
    ok!(rename2("file", "new", libc::RENAME_EXCHANGE));
    eq!((text("file"), text("new")), ("new\n".into(), "lower\n".into()));
    ok!(rename2("new", "other", libc::RENAME_EXCHANGE));
    eq!((text("new"), text("other")), ("another\n".into(), "lower\n".into()));
    let r = rename2("dir", "newdir", libc::RENAME_EXCHANGE);
    if r == -i64::from(libc::EXDEV) {
        skip("a directory of the lower layer cannot be renamed, as with Linux's overlayfs");
    }
    ok!(r);
    eq!((names("dir"), names("newdir")), (vec!["x".to_string()], vec!["one".into(), "sub".into(), "two".into()]));
    eq!(text("newdir/sub/deep"), "deep\n");
    ok!(rename2("dir", "newdir/sub/deep", libc::RENAME_EXCHANGE));
    eq!((text("dir"), text("newdir/sub/deep/x")), ("deep\n".into(), "x".into()));
}

fn no_replace() {
    enter("no_replace");
    file("new", b"new\n");
    err!(rename2("new", "file", libc::RENAME_NOREPLACE), libc::EEXIST);
    err!(rename2("file", "dir", libc::RENAME_NOREPLACE), libc::EEXIST);
    ok!(unlink("file"));
    ok!(rename2("new", "file", libc::RENAME_NOREPLACE));
    eq!(text("file"), "new\n");
    err!(rename2("other", "dir/one", libc::RENAME_NOREPLACE), libc::EEXIST);
}

fn unnamed_file_gets_a_name() {
    enter("unnamed_file_gets_a_name");
    let fd = ok!(open("dir", libc::O_TMPFILE | libc::O_RDWR, 0o640)) as i32;
    write(fd, b"unnamed");
    eq!((fstat(fd).st_nlink, names("dir")), (0, vec!["one".to_string(), "sub".into(), "two".into()]));
    let from = c(&format!("/proc/self/fd/{fd}"));
    let link = |to: &str| {
        let (from, to) = (from.clone(), c(to));
        sys!(libc::SYS_linkat, libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    err!(link("dir/one"), libc::EEXIST);
    ok!(unlink("file"));
    ok!(link("file"));
    eq!((text("file"), fstat(fd).st_nlink, stat("file").1.st_ino), ("unnamed".into(), 1, fstat(fd).st_ino));
    eq!(stat("file").1.st_mode & 0o777, 0o640 & !umask());
}

fn umask() -> u32 {
    let mask = sys!(libc::SYS_umask, 0o22) as u32;
    sys!(libc::SYS_umask, mask);
    mask
}

fn removed_file_changes() {
    enter("removed_file_changes");
    let reader = ok!(open("file", libc::O_RDONLY, 0)) as i32;
    let writer = ok!(open("big", libc::O_RDWR, 0)) as i32;
    ok!(unlink("file"));
    ok!(unlink("big"));
    ok!(sys!(libc::SYS_fchmod, reader, 0o604));
    eq!((fstat(reader).st_mode & 0o777, fstat(reader).st_nlink), (0o604, 0));
    eq!(read(reader, 10), b"lower\n");
    ok!(sys!(libc::SYS_ftruncate, writer, 10));
    eq!((fstat(writer).st_size, fstat(writer).st_nlink), (10, 0));
    eq!(read(writer, 20), b"bbbbbbbbbb");
    err!(stat("file").0, libc::ENOENT);
    file("file", b"second");
    check!(stat("file").1.st_ino != fstat(reader).st_ino);
}

fn dot_dot_of_moved_directory() {
    enter_more("dot_dot_of_moved_directory");
    ok!(mkdir("new", 0o755));
    ok!(sys!(libc::SYS_chdir, c("tree/in").as_ptr()));
    let r = rename("../../tree", "../../new/moved");
    if r == -i64::from(libc::EXDEV) {
        skip("a directory of the lower layer cannot be renamed, as with Linux's overlayfs");
    }
    ok!(r);
    eq!(names("../.."), ["moved"]);
    eq!(stat("../..").1.st_ino, stat("../../../new").1.st_ino);
    eq!(text("../../moved/in/file"), "in\n");
    let fd = ok!(open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut found = Vec::new();
    for (name, ino, _) in entries(fd, 4096) {
        if name == ".." {
            found.push(ino);
        }
    }
    eq!(found, [stat("..").1.st_ino]);
    let cwd = std::env::current_dir().expect("a working directory");
    check!(cwd.ends_with("new/moved/in"), "{}", cwd.display());
}

/// The next entries of a directory: name, inode number and position.
fn some_entries(fd: i32, size: usize) -> Vec<(String, u64, i64)> {
    let mut buf = vec![0u8; size];
    let len = ok!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), size)) as usize;
    let (mut all, mut at) = (Vec::new(), 0);
    while at < len {
        let field = |from: usize, to: usize| &buf[at + from..at + to];
        let record = u16::from_le_bytes(field(16, 18).try_into().expect("two bytes")) as usize;
        let name = field(19, record).split(|&b| b == 0).next().unwrap_or_default();
        let ino = u64::from_le_bytes(field(0, 8).try_into().expect("eight bytes"));
        let position = i64::from_le_bytes(field(8, 16).try_into().expect("eight bytes"));
        all.push((String::from_utf8_lossy(name).into_owned(), ino, position));
        at += record;
    }
    all
}

fn entries(fd: i32, size: usize) -> Vec<(String, u64, i64)> {
    let mut all = Vec::new();
    loop {
        let some = some_entries(fd, size);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn list_survives_removals() {
    enter_more("list_survives_removals");
    (0..20).for_each(|i| file(&format!("many/new{i}"), b""));
    let fd = ok!(open("many", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut seen = Vec::new();
    loop {
        let some = some_entries(fd, 256);
        if some.is_empty() {
            break;
        }
        for (name, _, _) in some.into_iter().filter(|(name, _, _)| !name.starts_with('.')) {
            ok!(unlink(&format!("many/{name}")));
            seen.push(name);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    eq!(seen.len(), 520);
    ok!(rmdir("many"));
}

fn positions_survive_changes() {
    enter_more("positions_survive_changes");
    let fd = ok!(open("many", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut all = Vec::new();
    while all.len() < 300 {
        all.extend(some_entries(fd, 256));
    }
    let rest: Vec<String> = entries(fd, 4096).into_iter().map(|(name, _, _)| name).collect();
    // What is read from a position on is the same after names in front of it went and came.
    (0..100).filter(|&i| !all[i].0.starts_with('.')).for_each(|i| {
        ok!(unlink(&format!("many/{}", all[i].0)));
    });
    ok!(sys!(libc::SYS_lseek, fd, all[all.len() - 1].2, libc::SEEK_SET));
    let again: Vec<String> = entries(fd, 4096).into_iter().map(|(name, _, _)| name).collect();
    eq!(again, rest);
}

fn renames_over_emptied_directory() {
    enter("renames_over_emptied_directory");
    ok!(mkdir("new", 0o700));
    file("new/x", b"x");
    err!(rename("new", "dir"), libc::ENOTEMPTY);
    std::fs::remove_dir_all("dir/sub").expect("removed");
    ok!(unlink("dir/one"));
    ok!(unlink("dir/two"));
    ok!(rename("new", "dir"));
    eq!((names("dir"), stat("dir").1.st_mode & 0o777), (vec!["x".to_string()], 0o700));
    err!(stat("dir/one").0, libc::ENOENT);
    err!(stat("new").0, libc::ENOENT);
}

fn file_instead_of_directory() {
    enter("file_instead_of_directory");
    std::fs::remove_dir_all("dir").expect("removed");
    file("dir", b"file");
    eq!(text("dir"), "file");
    err!(stat("dir/one").0, libc::ENOTDIR);
    ok!(unlink("dir"));
    ok!(mkdir("dir", 0o755));
    eq!(names("dir"), Vec::<String>::new());
    ok!(mkdir("dir/sub", 0o755));
    eq!(names("dir/sub"), Vec::<String>::new());
}

fn times_of_directories() {
    enter("times_of_directories");
    let times = [timespec_ms(5000), timespec_ms(6000)];
    for dir in ["dir", "."] {
        ok!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c(dir).as_ptr(), times.as_ptr(), 0));
    }
    // A file that changes is no change of its directory; a name that comes or goes is.
    let fd = ok!(open("dir/one", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(fd, b"x");
    ok!(sys!(libc::SYS_chmod, c("dir/two").as_ptr(), 0o600));
    eq!(stat("dir").1.st_mtime, 6);
    ok!(unlink("dir/one"));
    check!(stat("dir").1.st_mtime > 6);
    eq!(stat(".").1.st_mtime, 6);
    let links = stat(".").1.st_nlink;
    ok!(mkdir("more", 0o755));
    check!(stat(".").1.st_mtime > 6);
    // File systems that do not count say 1.
    check!(links == 1 || stat(".").1.st_nlink == links + 1);
}

fn deep_below_host_directory() {
    enter_more("deep_below_host_directory");
    ok!(sys!(libc::SYS_chdir, c("tree/in").as_ptr()));
    let name = "n".repeat(255);
    let mut inos = Vec::new();
    for _ in 0..40 {
        ok!(mkdir(&name, 0o755));
        ok!(sys!(libc::SYS_chdir, c(&name).as_ptr()));
        inos.push(stat(".").1.st_ino);
    }
    err!(mkdir(&"n".repeat(256), 0o755), libc::ENAMETOOLONG);
    file("f", b"deep");
    ok!(unlink("f"));
    for ino in inos.into_iter().rev() {
        eq!(stat(".").1.st_ino, ino);
        ok!(sys!(libc::SYS_chdir, c("..").as_ptr()));
        ok!(rmdir(&name));
    }
    eq!(text("file"), "in\n");
}

fn some_room_is_used() {
    enter("some_room_is_used");
    let totals = || {
        let mut totals: libc::statfs = zeroed();
        ok!(sys!(libc::SYS_statfs, c("file").as_ptr(), &mut totals as *mut libc::statfs));
        totals
    };
    let before = totals();
    check!(before.f_bfree < before.f_blocks, "{} of {}", before.f_bfree, before.f_blocks);
    check!(before.f_bavail <= before.f_bfree && before.f_bavail > 0);
}
