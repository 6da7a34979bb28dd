//! inotify(7): what happens to files is told, in order, to who watches them.

use super::socket::{bind, socket};
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("inotify": init_flags, init_errors, create_and_delete, open_read_close, open_write_close, attributes, truncation, moves, move_self,
    rename_over, exchange, cookies_differ, delete_self, delete_self_waits_for_close, delete_self_of_directory, hard_links, symlinks,
    nodes_and_sockets, directories_are_marked, directory_reading, watch_on_a_file, file_and_parent, mask_limits_events, mask_replaces,
    mask_add, mask_create, oneshot, only_directory, dont_follow, excl_unlink, unlinked_but_open, remove_watch, remove_errors, add_errors,
    needs_read_permission, same_inode_same_watch, numbers_grow, equal_events_merge, small_buffer, partial_reads, blocks_and_wakes,
    nonblocking_and_poll, epoll_edge, bytes_readable, overflow, instance_limit, watch_limit, fork_shares, exec_is_seen, renamed_parent,
    closing_ends_watches, many_watches, sendfile_and_splice, write_from_a_child, fd_path, vectors_and_offsets, name_padding,
    event_straddles_a_page, interrupted_read, umount_is_told, mkdir_then_inside, tmpfile_and_link, fallocate_modifies, fdinfo, xattr_change,
    mapped_writes_are_silent, settable_limits);

const ALL: u32 = libc::IN_ALL_EVENTS;

fn init(flags: i32) -> i32 {
    ok!(sys!(libc::SYS_inotify_init1, flags)) as i32
}

fn try_add(fd: i32, path: &str, mask: u32) -> i64 {
    sys!(libc::SYS_inotify_add_watch, fd, c(path).as_ptr(), mask)
}

fn add(fd: i32, path: &str, mask: u32) -> i32 {
    ok!(try_add(fd, path, mask)) as i32
}

#[derive(Debug, PartialEq, Eq, Clone)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: String,
}

fn parse(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        check!(bytes.len() >= 16);
        let word = |i: usize| u32::from_ne_bytes(bytes[i * 4..i * 4 + 4].try_into().expect("four bytes"));
        let len = word(3) as usize;
        check!(len.is_multiple_of(16) && bytes.len() >= 16 + len);
        let name = &bytes[16..16 + len];
        let end = name.iter().position(|&b| b == 0).unwrap_or(len);
        check!(name[end..].iter().all(|&b| b == 0));
        check!(len == 0 || end < len);
        events.push(Event {
            wd: word(0) as i32,
            mask: word(1),
            cookie: word(2),
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
        });
        bytes = &bytes[16 + len..];
    }
    events
}

/// Everything that has been told so far.
fn events(fd: i32) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        if waiting(fd) == 0 {
            return all;
        }
        all.extend(parse(&read(fd, 65536)));
    }
}

/// The same without cookies: watch, mask, name.
fn told(fd: i32) -> Vec<(i32, u32, String)> {
    events(fd).into_iter().map(|e| (e.wd, e.mask, e.name)).collect()
}

/// What is expected, as [`told`] has it.
fn list(events: &[(i32, u32, &str)]) -> Vec<(i32, u32, String)> {
    events.iter().map(|&(wd, mask, name)| (wd, mask, name.to_string())).collect()
}

use libc::{
    IN_ACCESS, IN_ATTRIB, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_IGNORED, IN_ISDIR, IN_MODIFY,
    IN_MOVE_SELF, IN_MOVED_FROM, IN_MOVED_TO, IN_OPEN,
};

fn init_flags() {
    let fd = init(0);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 0);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFL) & i64::from(libc::O_ACCMODE | libc::O_NONBLOCK), 0);
    let fd = init(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
    check!(sys!(libc::SYS_fcntl, fd, libc::F_GETFL) & i64::from(libc::O_NONBLOCK) != 0);
    ok!(sys!(libc::SYS_inotify_init));
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("a link");
    eq!(link.to_string_lossy(), "anon_inode:inotify");
}

fn init_errors() {
    err!(sys!(libc::SYS_inotify_init1, 1), libc::EINVAL);
    err!(sys!(libc::SYS_inotify_init1, libc::O_APPEND), libc::EINVAL);
}

fn create_and_delete() {
    let fd = init(0);
    let wd = add(fd, ".", ALL);
    file("a", b"");
    ok!(unlink("a"));
    eq!(told(fd), list(&[(wd, IN_CREATE, "a"), (wd, IN_OPEN, "a"), (wd, IN_CLOSE_WRITE, "a"), (wd, IN_DELETE, "a")]));
    // What fails is not told.
    err!(unlink("a"), libc::ENOENT);
    err!(mkdir("../..//", 0o700), libc::EEXIST);
    eq!(told(fd), []);
}

fn open_read_close() {
    file("a", b"hello");
    let fd = init(0);
    let wd = add(fd, ".", ALL);
    let f = ok!(open("a", libc::O_RDONLY, 0)) as i32;
    eq!(read(f, 3), b"hel");
    eq!(read(f, 9), b"lo");
    // The end of the file is no access.
    eq!(told(fd), list(&[(wd, IN_OPEN, "a"), (wd, IN_ACCESS, "a")]));
    eq!(read(f, 9), b"");
    let copy = ok!(sys!(libc::SYS_dup, f)) as i32;
    close(f);
    eq!(told(fd), []);
    close(copy);
    eq!(told(fd), list(&[(wd, IN_CLOSE_NOWRITE, "a")]));
    // O_PATH opens nothing.
    close(ok!(open("a", libc::O_PATH, 0)) as i32);
    eq!(told(fd), []);
}

fn open_write_close() {
    file("a", b"hello");
    let fd = init(0);
    let wd = add(fd, ".", ALL);
    let f = ok!(open("a", libc::O_RDWR, 0)) as i32;
    eq!(write(f, b"x"), 1);
    eq!(write(f, b""), 0);
    eq!(read(f, 1), b"e");
    close(f);
    eq!(told(fd), list(&[(wd, IN_OPEN, "a"), (wd, IN_MODIFY, "a"), (wd, IN_ACCESS, "a"), (wd, IN_CLOSE_WRITE, "a")]));
    let f = ok!(open("a", libc::O_WRONLY | libc::O_TRUNC, 0)) as i32;
    close(f);
    let mut got = told(fd);
    // Which of the first two comes first differs between versions of Linux.
    got[..2].sort_unstable();
    eq!(got, list(&[(wd, IN_MODIFY, "a"), (wd, IN_OPEN, "a"), (wd, IN_CLOSE_WRITE, "a")]));
}

fn attributes() {
    file("a", b"");
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let wd = add(fd, ".", ALL);
    ok!(sys!(libc::SYS_chmod, c("a").as_ptr(), 0o600));
    eq!(told(fd), list(&[(wd, IN_ATTRIB, "a")]));
    ok!(sys!(libc::SYS_chmod, c("d").as_ptr(), 0o700));
    eq!(told(fd), list(&[(wd, IN_ATTRIB | IN_ISDIR, "d")]));
    ok!(sys!(libc::SYS_chown, c("a").as_ptr(), sys!(libc::SYS_getuid) as u32, sys!(libc::SYS_getgid) as u32));
    eq!(told(fd), list(&[(wd, IN_ATTRIB, "a")]));
    ok!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("a").as_ptr(), 0, 0));
    eq!(told(fd), list(&[(wd, IN_ATTRIB, "a")]));
    let omit = |atime: i64, mtime: i64| [libc::timespec { tv_sec: 5, tv_nsec: atime }, libc::timespec { tv_sec: 5, tv_nsec: mtime }];
    let only_mtime = omit(libc::UTIME_OMIT, 0);
    ok!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("a").as_ptr(), only_mtime.as_ptr(), 0));
    eq!(told(fd), list(&[(wd, IN_MODIFY, "a")]));
    let only_atime = omit(0, libc::UTIME_OMIT);
    ok!(sys!(libc::SYS_utimensat, libc::AT_FDCWD, c("a").as_ptr(), only_atime.as_ptr(), 0));
    eq!(told(fd), list(&[(wd, IN_ACCESS, "a")]));
    // Of the watched directory itself.
    ok!(sys!(libc::SYS_chmod, c(".").as_ptr(), 0o755));
    eq!(told(fd), list(&[(wd, IN_ATTRIB | IN_ISDIR, "")]));
    let f = ok!(open("a", libc::O_RDONLY, 0)) as i32;
    told(fd);
    ok!(sys!(libc::SYS_fchmod, f, 0o644));
    eq!(told(fd), list(&[(wd, IN_ATTRIB, "a")]));
}

fn truncation() {
    let f = new_file("a", b"12345");
    let fd = init(0);
    let wd = add(fd, ".", ALL);
    ok!(sys!(libc::SYS_truncate, c("a").as_ptr(), 2));
    eq!(told(fd), list(&[(wd, IN_MODIFY, "a")]));
    ok!(sys!(libc::SYS_ftruncate, f, 9));
    eq!(told(fd), list(&[(wd, IN_MODIFY, "a")]));
}

fn moves() {
    file("a", b"");
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let there = add(fd, "d", ALL);
    ok!(rename("a", "b"));
    let got = events(fd);
    eq!(got.len(), 2);
    eq!((got[0].wd, got[0].mask, got[0].name.as_str()), (here, IN_MOVED_FROM, "a"));
    eq!((got[1].wd, got[1].mask, got[1].name.as_str()), (here, IN_MOVED_TO, "b"));
    check!(got[0].cookie != 0 && got[0].cookie == got[1].cookie);
    ok!(rename("b", "d/c"));
    let got = events(fd);
    eq!(got.len(), 2);
    eq!((got[0].wd, got[0].mask, got[0].name.as_str()), (here, IN_MOVED_FROM, "b"));
    eq!((got[1].wd, got[1].mask, got[1].name.as_str()), (there, IN_MOVED_TO, "c"));
    check!(got[0].cookie != 0 && got[0].cookie == got[1].cookie);
    // Nothing moves when both names are one.
    ok!(link("d/c", "d/e"));
    told(fd);
    ok!(rename("d/c", "d/e"));
    eq!(told(fd), []);
}

fn move_self() {
    file("a", b"");
    ok!(mkdir("d", 0o755));
    ok!(mkdir("to", 0o755));
    let fd = init(0);
    let a = add(fd, "a", ALL);
    let d = add(fd, "d", ALL);
    ok!(rename("a", "to/a"));
    eq!(told(fd), list(&[(a, IN_MOVE_SELF, "")]));
    ok!(rename("d", "to/d"));
    eq!(told(fd), list(&[(d, IN_MOVE_SELF, "")]));
    // The watches go along.
    file("to/d/x", b"");
    eq!(told(fd), list(&[(d, IN_CREATE, "x"), (d, IN_OPEN, "x"), (d, IN_CLOSE_WRITE, "x")]));
}

fn rename_over() {
    file("a", b"");
    file("b", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let b = add(fd, "b", ALL);
    ok!(rename("a", "b"));
    eq!(told(fd), list(&[
        (here, IN_MOVED_FROM, "a"), (here, IN_MOVED_TO, "b"), (b, IN_ATTRIB, ""), (b, IN_DELETE_SELF, ""), (b, IN_IGNORED, "")
    ]));
}

fn exchange() {
    file("a", b"");
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let r = sys!(libc::SYS_renameat2, libc::AT_FDCWD, c("a").as_ptr(), libc::AT_FDCWD, c("d").as_ptr(), libc::RENAME_EXCHANGE);
    if r == -i64::from(libc::EINVAL) {
        skip("names cannot be exchanged on this file system");
    }
    ok!(r);
    let got = events(fd);
    let seen: Vec<_> = got.iter().map(|e| (e.wd, e.mask, e.name.as_str())).collect();
    eq!(seen, [
        (here, IN_MOVED_FROM, "a"), (here, IN_MOVED_TO, "d"), (here, IN_MOVED_FROM | IN_ISDIR, "d"), (here, IN_MOVED_TO | IN_ISDIR, "a")
    ]);
    check!(got[0].cookie == got[1].cookie && got[2].cookie == got[3].cookie && got[0].cookie != got[2].cookie);
}

fn cookies_differ() {
    file("a", b"");
    let fd = init(0);
    add(fd, ".", IN_MOVED_FROM | IN_MOVED_TO);
    for i in 0..10 {
        ok!(rename(&if i == 0 { "a".into() } else { format!("a{i}") }, &format!("a{}", i + 1)));
    }
    let mut cookies: Vec<u32> = events(fd).iter().map(|e| e.cookie).collect();
    eq!(cookies.len(), 20);
    cookies.sort_unstable();
    cookies.dedup();
    eq!(cookies.len(), 10);
}

fn delete_self() {
    file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let a = add(fd, "a", ALL);
    ok!(unlink("a"));
    eq!(told(fd), list(&[(a, IN_ATTRIB, ""), (a, IN_DELETE_SELF, ""), (a, IN_IGNORED, ""), (here, IN_DELETE, "a")]));
    // The number is free of meaning now.
    err!(sys!(libc::SYS_inotify_rm_watch, fd, a), libc::EINVAL);
}

fn delete_self_waits_for_close() {
    let f = new_file("a", b"");
    let fd = init(0);
    let a = add(fd, "a", IN_DELETE_SELF | IN_ATTRIB | IN_CLOSE_WRITE);
    ok!(unlink("a"));
    eq!(told(fd), list(&[(a, IN_ATTRIB, "")]));
    close(f);
    eq!(told(fd), list(&[(a, IN_CLOSE_WRITE, ""), (a, IN_DELETE_SELF, ""), (a, IN_IGNORED, "")]));
}

fn delete_self_of_directory() {
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let d = add(fd, "d", ALL);
    ok!(rmdir("d"));
    eq!(told(fd), list(&[(d, IN_DELETE_SELF, ""), (d, IN_IGNORED, ""), (here, IN_DELETE | IN_ISDIR, "d")]));
}

fn hard_links() {
    file("a", b"");
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let a = add(fd, "a", ALL);
    let d = add(fd, "d", ALL);
    let r = link("a", "d/b");
    if r == -i64::from(libc::EXDEV) || r == -i64::from(libc::EPERM) {
        skip("no hard links here");
    }
    ok!(r);
    eq!(told(fd), list(&[(a, IN_ATTRIB, ""), (d, IN_CREATE, "b")]));
    // One inode: what is done by the other name is told too, and the directory's watch has that name.
    let f = ok!(open("d/b", libc::O_WRONLY, 0)) as i32;
    eq!(write(f, b"x"), 1);
    close(f);
    eq!(told(fd), list(&[
        (d, IN_OPEN, "b"), (a, IN_OPEN, ""), (d, IN_MODIFY, "b"), (a, IN_MODIFY, ""), (d, IN_CLOSE_WRITE, "b"), (a, IN_CLOSE_WRITE, "")
    ]));
    ok!(unlink("a"));
    eq!(told(fd), list(&[(a, IN_ATTRIB, "")]));
    ok!(unlink("d/b"));
    eq!(told(fd), list(&[(a, IN_ATTRIB, ""), (a, IN_DELETE_SELF, ""), (a, IN_IGNORED, ""), (d, IN_DELETE, "b")]));
}

fn symlinks() {
    let fd = init(0);
    let here = add(fd, ".", ALL);
    ok!(symlink("nowhere", "l"));
    eq!(told(fd), list(&[(here, IN_CREATE, "l")]));
    ok!(unlink("l"));
    eq!(told(fd), list(&[(here, IN_DELETE, "l")]));
}

fn nodes_and_sockets() {
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let r = sys!(libc::SYS_mknod, c("p").as_ptr(), libc::S_IFIFO | 0o600, 0);
    if r == -i64::from(libc::EPERM) {
        skip("no FIFOs here");
    }
    ok!(r);
    eq!(told(fd), list(&[(here, IN_CREATE, "p")]));
    let p = ok!(open("p", libc::O_RDWR, 0)) as i32;
    close(p);
    eq!(told(fd), list(&[(here, IN_OPEN, "p"), (here, IN_CLOSE_WRITE, "p")]));
    ok!(bind(socket(libc::SOCK_STREAM), b"s\0"));
    eq!(told(fd), list(&[(here, IN_CREATE, "s")]));
}

fn directories_are_marked() {
    let fd = init(0);
    let here = add(fd, ".", ALL);
    ok!(mkdir("d", 0o755));
    ok!(rename("d", "e"));
    ok!(rmdir("e"));
    eq!(told(fd), list(&[
        (here, IN_CREATE | IN_ISDIR, "d"), (here, IN_MOVED_FROM | IN_ISDIR, "d"), (here, IN_MOVED_TO | IN_ISDIR, "e"),
        (here, IN_DELETE | IN_ISDIR, "e")
    ]));
}

fn directory_reading() {
    ok!(mkdir("d", 0o755));
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let d = add(fd, "d", ALL);
    let f = ok!(open("d", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let mut buf = [0u8; 1024];
    ok!(sys!(libc::SYS_getdents64, f, buf.as_mut_ptr(), buf.len()));
    close(f);
    eq!(told(fd), list(&[
        (here, IN_OPEN | IN_ISDIR, "d"), (d, IN_OPEN | IN_ISDIR, ""), (here, IN_ACCESS | IN_ISDIR, "d"), (d, IN_ACCESS | IN_ISDIR, ""),
        (here, IN_CLOSE_NOWRITE | IN_ISDIR, "d"), (d, IN_CLOSE_NOWRITE | IN_ISDIR, "")
    ]));
}

fn watch_on_a_file() {
    file("a", b"hello");
    let fd = init(0);
    let a = add(fd, "a", ALL);
    let f = ok!(open("a", libc::O_RDWR, 0)) as i32;
    eq!(read(f, 2), b"he");
    eq!(write(f, b"x"), 1);
    close(f);
    eq!(told(fd), list(&[(a, IN_OPEN, ""), (a, IN_ACCESS, ""), (a, IN_MODIFY, ""), (a, IN_CLOSE_WRITE, "")]));
}

fn file_and_parent() {
    file("a", b"hello");
    let fd = init(0);
    let a = add(fd, "a", IN_MODIFY);
    let here = add(fd, ".", IN_MODIFY);
    let f = ok!(open("a", libc::O_RDWR, 0)) as i32;
    eq!(write(f, b"x"), 1);
    eq!(told(fd), list(&[(here, IN_MODIFY, "a"), (a, IN_MODIFY, "")]));
    // Other instances hear of it by themselves.
    let other = init(0);
    let wd = add(other, "a", IN_MODIFY);
    eq!(write(f, b"x"), 1);
    eq!(told(other), list(&[(wd, IN_MODIFY, "")]));
    eq!(told(fd), list(&[(here, IN_MODIFY, "a"), (a, IN_MODIFY, "")]));
}

fn mask_limits_events() {
    let fd = init(0);
    let here = add(fd, ".", IN_DELETE | libc::IN_CLOSE);
    file("a", b"x");
    close(ok!(open("a", libc::O_RDONLY, 0)) as i32);
    ok!(unlink("a"));
    eq!(told(fd), list(&[(here, IN_CLOSE_WRITE, "a"), (here, IN_CLOSE_NOWRITE, "a"), (here, IN_DELETE, "a")]));
}

fn mask_replaces() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    eq!(add(fd, ".", IN_DELETE), here);
    file("a", b"x");
    ok!(unlink("a"));
    eq!(told(fd), list(&[(here, IN_DELETE, "a")]));
}

fn mask_add() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    eq!(add(fd, ".", IN_DELETE | libc::IN_MASK_ADD), here);
    file("a", b"x");
    ok!(unlink("a"));
    eq!(told(fd), list(&[(here, IN_CREATE, "a"), (here, IN_DELETE, "a")]));
}

fn mask_create() {
    let fd = init(0);
    add(fd, ".", IN_CREATE | libc::IN_MASK_CREATE);
    err!(try_add(fd, ".", IN_CREATE | libc::IN_MASK_CREATE), libc::EEXIST);
    err!(try_add(fd, "..", IN_CREATE | libc::IN_MASK_CREATE | libc::IN_MASK_ADD), libc::EINVAL);
}

fn oneshot() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE | libc::IN_ONESHOT);
    file("a", b"");
    file("b", b"");
    eq!(told(fd), list(&[(here, IN_CREATE, "a"), (here, IN_IGNORED, "")]));
    err!(sys!(libc::SYS_inotify_rm_watch, fd, here), libc::EINVAL);
}

fn only_directory() {
    file("a", b"");
    let fd = init(0);
    err!(try_add(fd, "a", ALL | libc::IN_ONLYDIR), libc::ENOTDIR);
    ok!(try_add(fd, ".", ALL | libc::IN_ONLYDIR));
}

fn dont_follow() {
    file("a", b"");
    ok!(symlink("a", "l"));
    let fd = init(0);
    let a = add(fd, "a", ALL);
    eq!(add(fd, "l", ALL), a);
    check!(add(fd, "l", ALL | libc::IN_DONT_FOLLOW) != a);
}

fn unlinked_but_open() {
    let f = new_file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    ok!(unlink("a"));
    told(fd);
    eq!(write(f, b"x"), 1);
    close(f);
    eq!(told(fd), list(&[(here, IN_MODIFY, "a"), (here, IN_CLOSE_WRITE, "a")]));
}

fn excl_unlink() {
    let f = new_file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL | libc::IN_EXCL_UNLINK);
    eq!(write(f, b"x"), 1);
    ok!(unlink("a"));
    eq!(write(f, b"x"), 1);
    close(f);
    eq!(told(fd), list(&[(here, IN_MODIFY, "a"), (here, IN_DELETE, "a")]));
}

fn remove_watch() {
    let fd = init(0);
    let here = add(fd, ".", ALL);
    file("a", b"");
    ok!(sys!(libc::SYS_inotify_rm_watch, fd, here));
    file("b", b"");
    eq!(told(fd), list(&[(here, IN_CREATE, "a"), (here, IN_OPEN, "a"), (here, IN_CLOSE_WRITE, "a"), (here, IN_IGNORED, "")]));
    check!(add(fd, ".", ALL) != here);
}

fn remove_errors() {
    let fd = init(0);
    err!(sys!(libc::SYS_inotify_rm_watch, fd, 1), libc::EINVAL);
    err!(sys!(libc::SYS_inotify_rm_watch, fd, -1), libc::EINVAL);
    err!(sys!(libc::SYS_inotify_rm_watch, 999, 1), libc::EBADF);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_inotify_rm_watch, r, 1), libc::EINVAL);
}

fn add_errors() {
    let fd = init(0);
    err!(try_add(fd, "missing", ALL), libc::ENOENT);
    err!(try_add(fd, "", ALL), libc::ENOENT);
    err!(try_add(fd, ".", 0), libc::EINVAL);
    // Of the flags that say how, one alone is enough.
    eq!(try_add(fd, ".", libc::IN_ONLYDIR), 1);
    err!(try_add(fd, ".", 0x1_0000), libc::EINVAL);
    err!(try_add(999, ".", ALL), libc::EBADF);
    let (r, _) = pipe();
    err!(try_add(r, ".", ALL), libc::EINVAL);
    err!(sys!(libc::SYS_inotify_add_watch, fd, BAD, ALL), libc::EFAULT);
    err!(try_add(fd, &"x".repeat(5000), ALL), libc::ENAMETOOLONG);
    file("a", b"");
    err!(try_add(fd, "a/b", ALL), libc::ENOTDIR);
}

fn needs_read_permission() {
    file("a", b"");
    ok!(sys!(libc::SYS_chmod, c("a").as_ptr(), 0o000));
    in_child(|| {
        if sys!(libc::SYS_getuid) == 0 {
            ok!(sys!(libc::SYS_setresuid, 1234, 1234, 1234));
        }
        let fd = init(0);
        err!(try_add(fd, "a", ALL), libc::EACCES);
    });
}

fn same_inode_same_watch() {
    file("a", b"");
    if link("a", "b") < 0 {
        skip("no hard links here");
    }
    let fd = init(0);
    let a = add(fd, "a", ALL);
    eq!(add(fd, "b", ALL), a);
    eq!(add(fd, "./b", ALL), a);
    let other = init(0);
    eq!(add(other, "b", ALL), 1);
}

fn numbers_grow() {
    file("a", b"");
    let fd = init(0);
    eq!(add(fd, "a", ALL), 1);
    eq!(add(fd, ".", ALL), 2);
    ok!(sys!(libc::SYS_inotify_rm_watch, fd, 1));
    eq!(add(fd, "a", ALL), 3);
}

fn equal_events_merge() {
    let f = new_file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    for _ in 0..5 {
        eq!(write(f, b"x"), 1);
    }
    eq!(told(fd), list(&[(here, IN_MODIFY, "a")]));
    let g = new_file("b", b"");
    told(fd);
    for _ in 0..2 {
        eq!(write(f, b"x"), 1);
        eq!(write(g, b"x"), 1);
    }
    eq!(told(fd), list(&[(here, IN_MODIFY, "a"), (here, IN_MODIFY, "b"), (here, IN_MODIFY, "a"), (here, IN_MODIFY, "b")]));
}

fn small_buffer() {
    let fd = init(0);
    add(fd, ".", IN_CREATE);
    file("name", b"");
    let mut buf = [0u8; 64];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 0), libc::EINVAL);
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 31), libc::EINVAL);
    eq!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 32), 32);
}

fn partial_reads() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    for name in ["a", "b", "c"] {
        file(name, b"");
    }
    let first = parse(&read(fd, 32 + 32 + 31));
    eq!(first.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    eq!(told(fd), list(&[(here, IN_CREATE, "c")]));
}

fn blocks_and_wakes() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    let pid = child(|| {
        sleep_ms(30);
        file("later", b"");
    });
    let got = parse(&read(fd, 4096));
    eq!(got.len(), 1);
    eq!((got[0].wd, got[0].name.as_str()), (here, "later"));
    reap(pid);
}

fn nonblocking_and_poll() {
    let fd = init(libc::IN_NONBLOCK);
    add(fd, ".", IN_CREATE);
    let mut buf = [0u8; 64];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 64), libc::EAGAIN);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    file("a", b"");
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 1);
    eq!(poll.revents, libc::POLLIN | libc::POLLRDNORM);
    read(fd, 64);
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    err!(write(fd, b"x"), libc::EBADF);
    err!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 64, 0), libc::ESPIPE);
}

fn epoll_edge() {
    let fd = init(libc::IN_NONBLOCK);
    add(fd, ".", IN_CREATE);
    let ep = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
    ok!(sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_ADD, fd, &event as *const _));
    let mut wait = || sys!(libc::SYS_epoll_wait, ep, &mut event as *mut _, 1, 0);
    eq!(wait(), 0);
    file("a", b"");
    eq!(wait(), 1);
    eq!(wait(), 0);
    file("b", b"");
    eq!(wait(), 1);
    eq!(told(fd).len(), 2);
    eq!(wait(), 0);
}

fn bytes_readable() {
    let fd = init(0);
    add(fd, ".", IN_CREATE);
    eq!(waiting(fd), 0);
    file("a", b"");
    eq!(waiting(fd), 32);
    file("fifteen-letters", b"");
    eq!(waiting(fd), 64);
    file("sixteen--letters", b"");
    eq!(waiting(fd), 112);
    ok!(sys!(libc::SYS_inotify_rm_watch, fd, 1));
    eq!(waiting(fd), 128);
    err!(sys!(libc::SYS_ioctl, fd, libc::FIONREAD, BAD), libc::EFAULT);
}

fn limit(name: &str) -> u64 {
    text(&format!("/proc/sys/fs/inotify/{name}")).trim().parse().expect("a number")
}

fn overflow() {
    let max = limit("max_queued_events");
    if max > 100_000 {
        skip("the queue is too long for a test");
    }
    let (f, g) = (new_file("a", b""), new_file("b", b""));
    let fd = init(0);
    let here = add(fd, ".", IN_MODIFY);
    for _ in 0..max / 2 + 10 {
        eq!(write(f, b"x"), 1);
        eq!(write(g, b"x"), 1);
        ok!(sys!(libc::SYS_lseek, f, 0, 0));
        ok!(sys!(libc::SYS_lseek, g, 0, 0));
    }
    let got = told(fd);
    eq!(got.len() as u64, max + 1);
    eq!(got[0], (here, IN_MODIFY, "a".to_string()));
    eq!(got[max as usize], (-1, libc::IN_Q_OVERFLOW, String::new()));
    eq!(write(f, b"x"), 1);
    eq!(told(fd), list(&[(here, IN_MODIFY, "a")]));
}

fn instance_limit() {
    let max = limit("max_user_instances");
    if max > 900 {
        skip("the limit is beyond that of descriptors");
    }
    let mut fds = Vec::new();
    let error = loop {
        match sys!(libc::SYS_inotify_init1, 0) {
            fd if fd >= 0 => fds.push(fd as i32),
            error => break error,
        }
        check!(fds.len() as u64 <= max);
    };
    err!(error, libc::EMFILE);
    close(fds[0]);
    until("a closed instance makes room", || sys!(libc::SYS_inotify_init1, 0) >= 0);
}

fn watch_limit() {
    if sys!(libc::SYS_getuid) != 0 {
        skip("needs root");
    }
    // As another user, whose count is fresh; the limit is not reached, only told.
    check!(limit("max_user_watches") >= 1000);
    check!(limit("max_user_instances") >= 16);
    check!(limit("max_queued_events") >= 1000);
}

fn fork_shares() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    in_child(|| {
        file("a", b"");
        eq!(told(fd), list(&[(here, IN_CREATE, "a")]));
        close(fd);
    });
    eq!(told(fd), []);
    file("b", b"");
    eq!(told(fd), list(&[(here, IN_CREATE, "b")]));
}

fn exec_is_seen() {
    std::fs::copy(crate::tool::me(), "program").expect("a copy");
    ok!(sys!(libc::SYS_chmod, c("program").as_ptr(), 0o755));
    let fd = init(libc::IN_CLOEXEC);
    let wd = add(fd, "program", IN_OPEN | IN_ACCESS | IN_CLOSE_NOWRITE);
    let pid = child(|| {
        let argv = crate::tool::Argv::new(&["program", "tool", "exit", "0"]);
        let none = crate::tool::Argv::new(&[]);
        sys!(libc::SYS_execve, c("./program").as_ptr(), argv.as_ptr(), none.as_ptr());
        exit(99);
    });
    reap(pid);
    let mut got = Vec::new();
    until("the program is closed", || {
        got.extend(told(fd));
        got.contains(&(wd, IN_CLOSE_NOWRITE, String::new()))
    });
    eq!(got[0], (wd, IN_OPEN, String::new()));
    check!(got.contains(&(wd, IN_ACCESS, String::new())));
}

fn renamed_parent() {
    ok!(mkdir("d", 0o755));
    file("d/a", b"");
    let fd = init(0);
    let d = add(fd, "d", IN_MODIFY | IN_MOVE_SELF);
    let f = ok!(open("d/a", libc::O_WRONLY, 0)) as i32;
    ok!(rename("d", "e"));
    eq!(write(f, b"x"), 1);
    eq!(told(fd), list(&[(d, IN_MOVE_SELF, ""), (d, IN_MODIFY, "a")]));
    // Moved out of the directory, it is no more told by it.
    ok!(rename("e/a", "a"));
    eq!(write(f, b"x"), 1);
    eq!(told(fd), []);
}

fn closing_ends_watches() {
    let fd = init(0);
    add(fd, ".", ALL);
    file("a", b"");
    close(fd);
    file("b", b"");
    let fd = init(0);
    eq!(add(fd, ".", ALL), 1);
    eq!(told(fd), []);
}

fn many_watches() {
    let fd = init(0);
    for i in 0..500 {
        ok!(mkdir(&format!("d{i}"), 0o755));
        eq!(add(fd, &format!("d{i}"), IN_CREATE), i + 1);
    }
    for i in (0..500).step_by(7) {
        file(&format!("d{i}/x"), b"");
    }
    let got = told(fd);
    eq!(got.len(), 72);
    for (index, event) in got.iter().enumerate() {
        eq!(event.0, 7 * index as i32 + 1);
    }
}

fn sendfile_and_splice() {
    file("a", b"hello");
    let from = ok!(open("a", libc::O_RDONLY, 0)) as i32;
    let to = new_file("b", b"");
    let (r, w) = pipe();
    let fd = init(0);
    let here = add(fd, ".", ALL);
    eq!(sys!(libc::SYS_sendfile, w, from, 0, 5), 5);
    eq!(told(fd), list(&[(here, IN_ACCESS, "a")]));
    eq!(sys!(libc::SYS_splice, r, 0, to, 0, 5, 0), 5);
    eq!(told(fd), list(&[(here, IN_MODIFY, "b")]));
    ok!(sys!(libc::SYS_lseek, from, 0, 0));
    let r = sys!(libc::SYS_copy_file_range, from, 0, to, 0, 5, 0);
    if r == 5 {
        let got = told(fd);
        check!(got.contains(&(here, IN_ACCESS, "a".into())) && got.contains(&(here, IN_MODIFY, "b".into())));
    }
}

fn write_from_a_child() {
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE | IN_CLOSE_WRITE);
    in_child(|| {
        let f = ok!(open("a", libc::O_CREAT | libc::O_WRONLY, 0o600)) as i32;
        eq!(write(f, b"x"), 1);
        // Ends without closing.
    });
    until("the descriptor of the ended child is closed", || waiting(fd) == 64);
    eq!(told(fd), list(&[(here, IN_CREATE, "a"), (here, IN_CLOSE_WRITE, "a")]));
}

fn fd_path() {
    let f = new_file("a", b"");
    let fd = init(0);
    let a = add(fd, &format!("/proc/self/fd/{f}"), IN_MODIFY);
    eq!(add(fd, "a", IN_MODIFY), a);
    eq!(write(f, b"x"), 1);
    eq!(told(fd), list(&[(a, IN_MODIFY, "")]));
}

fn vectors_and_offsets() {
    let f = new_file("a", b"12345678");
    let fd = init(0);
    let here = add(fd, ".", IN_MODIFY | IN_ACCESS);
    let mut buf = [0u8; 4];
    let iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 2 }; 2];
    eq!(sys!(libc::SYS_pread64, f, buf.as_mut_ptr(), 4, 2), 4);
    eq!(sys!(libc::SYS_pwrite64, f, buf.as_ptr(), 4, 2), 4);
    eq!(sys!(libc::SYS_readv, f, iov.as_ptr(), 2), 4);
    eq!(sys!(libc::SYS_writev, f, iov.as_ptr(), 2), 4);
    eq!(sys!(libc::SYS_preadv2, f, iov.as_ptr(), 2, 0, 0, 0), 4);
    eq!(sys!(libc::SYS_pwritev2, f, iov.as_ptr(), 2, 0, 0, 0), 4);
    eq!(told(fd), list(&[
        (here, IN_ACCESS, "a"), (here, IN_MODIFY, "a"), (here, IN_ACCESS, "a"), (here, IN_MODIFY, "a"), (here, IN_ACCESS, "a"),
        (here, IN_MODIFY, "a")
    ]));
}

fn name_padding() {
    let fd = init(0);
    add(fd, ".", IN_CREATE);
    for len in [1usize, 15, 16, 31, 32, 200, 255] {
        let name = "n".repeat(len);
        file(&name, b"");
        let bytes = read(fd, 4096);
        eq!(bytes.len(), 16 + (len + 1).next_multiple_of(16));
        eq!(parse(&bytes)[0].name, name);
    }
}

fn event_straddles_a_page() {
    let fd = init(0);
    add(fd, ".", IN_CREATE);
    let (_, end) = guarded_page();
    file("a", b"");
    err!(sys!(libc::SYS_read, fd, BAD, 4096), libc::EFAULT);
    file("b", b"");
    eq!(sys!(libc::SYS_read, fd, end - 32, 32), 32);
}

fn interrupted_read() {
    let fd = init(0);
    add(fd, ".", IN_CREATE);
    let mut buf = [0u8; 64];
    err!(interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 64)), libc::EINTR);
}

fn umount_is_told() {
    in_child(|| {
        if sys!(libc::SYS_unshare, libc::CLONE_NEWNS) < 0 {
            skip("no mount namespaces");
        }
        ok!(sys!(libc::SYS_mount, 0, c("/").as_ptr(), 0, libc::MS_REC | libc::MS_PRIVATE, 0));
        ok!(mkdir("m", 0o755));
        ok!(sys!(libc::SYS_mount, c("none").as_ptr(), c("m").as_ptr(), c("tmpfs").as_ptr(), 0, 0));
        ok!(mkdir("m/d", 0o755));
        let fd = init(0);
        let d = add(fd, "m/d", ALL);
        ok!(sys!(libc::SYS_umount2, c("m").as_ptr(), 0));
        eq!(told(fd), list(&[(d, libc::IN_UNMOUNT | IN_ISDIR, ""), (d, IN_IGNORED, "")]));
    });
}

fn mkdir_then_inside() {
    let fd = init(0);
    let here = add(fd, ".", ALL);
    ok!(mkdir("d", 0o755));
    file("d/a", b"");
    // Only the directory itself is watched, not what lies below.
    eq!(told(fd), list(&[(here, IN_CREATE | IN_ISDIR, "d")]));
}

fn tmpfile_and_link() {
    let f = open(".", libc::O_TMPFILE | libc::O_RDWR, 0o600);
    if f < 0 {
        skip("no files without a name here");
    }
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE | IN_DELETE);
    let r = sys!(libc::SYS_linkat, libc::AT_FDCWD, c(&format!("/proc/self/fd/{f}")).as_ptr(), libc::AT_FDCWD, c("a").as_ptr(),
        libc::AT_SYMLINK_FOLLOW);
    if r < 0 {
        skip("cannot be linked here");
    }
    eq!(told(fd), list(&[(here, IN_CREATE, "a")]));
}

fn fallocate_modifies() {
    let f = new_file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let r = sys!(libc::SYS_fallocate, f, 0, 0, 4096);
    if r == -i64::from(libc::EOPNOTSUPP) {
        skip("no fallocate here");
    }
    ok!(r);
    eq!(told(fd), list(&[(here, IN_MODIFY, "a")]));
}

fn fdinfo() {
    let fd = init(0);
    let wd = add(fd, ".", IN_CREATE | IN_DELETE);
    let info = text(&format!("/proc/self/fdinfo/{fd}"));
    let ino = stat(".").1.st_ino;
    let line = info.lines().find(|l| l.starts_with("inotify")).unwrap_or_default();
    check!(line.starts_with(&format!("inotify wd:{wd:x} ino:{ino:x} sdev:")), "{line}");
    check!(line.contains(&format!("mask:{:x} ignored_mask:0", IN_CREATE | IN_DELETE)), "{line}");
}

fn xattr_change() {
    file("a", b"");
    let fd = init(0);
    let here = add(fd, ".", ALL);
    let r = sys!(libc::SYS_setxattr, c("a").as_ptr(), c("user.x").as_ptr(), b"1".as_ptr(), 1, 0);
    if r == -i64::from(libc::EOPNOTSUPP) {
        skip("no user attributes here");
    }
    ok!(r);
    ok!(sys!(libc::SYS_removexattr, c("a").as_ptr(), c("user.x").as_ptr()));
    eq!(told(fd), list(&[(here, IN_ATTRIB, "a")]));
}

fn mapped_writes_are_silent() {
    let f = new_file("a", &[0; 4096]);
    let fd = init(0);
    add(fd, ".", ALL);
    let p = ok!(sys!(libc::SYS_mmap, 0, 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, f, 0)) as *mut u8;
    // SAFETY: the page has just been mapped.
    unsafe { p.write_volatile(1) };
    eq!(told(fd), []);
    ok!(sys!(libc::SYS_munmap, p, 4096));
    close(f);
    eq!(told(fd).len(), 1);
}

fn settable_limits() {
    if sys!(libc::SYS_getuid) != 0 || std::env::var("GUEST_TMP").is_ok() {
        skip("would change the machine's setting");
    }
    std::fs::write("/proc/sys/fs/inotify/max_queued_events", "4").expect("root may set it");
    eq!(limit("max_queued_events"), 4);
    let fd = init(0);
    let here = add(fd, ".", IN_CREATE);
    for i in 0..6 {
        file(&format!("{i}"), b"");
    }
    eq!(told(fd), list(&[
        (here, IN_CREATE, "0"), (here, IN_CREATE, "1"), (here, IN_CREATE, "2"), (here, IN_CREATE, "3"), (-1, libc::IN_Q_OVERFLOW, "")
    ]));
    check!(std::fs::write("/proc/sys/fs/inotify/max_queued_events", "nonsense").is_err());
    std::fs::write("/proc/sys/fs/inotify/max_queued_events", "16384").expect("root may set it");
}
