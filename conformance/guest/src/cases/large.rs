//! Many, long, deep and large: directories with thousands of entries (`$GUEST_ENTRIES`, 3,000 if it is not set), names of
//! any bytes, trees deeper than a path, files beyond 4 GiB.

use std::collections::BTreeSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("large": many_entries, seeks_among_many, entries_come_and_go, many_files, longest_names, names_of_any_bytes, deeper_than_a_path,
    beyond_4_gib, truncated_beyond_4_gib, mapped_beyond_4_gib);

fn count() -> usize {
    std::env::var("GUEST_ENTRIES").ok().and_then(|count| count.parse().ok()).unwrap_or(3000)
}

/// Calls `each` with name and offset of the entries that one getdents64 into `size` bytes gives. False at the end.
fn part(fd: i32, size: usize, mut each: impl FnMut(&[u8], i64)) -> bool {
    let mut buf = vec![0u8; size];
    let n = ok!(sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), size)) as usize;
    let mut rest = &buf[..n];
    while !rest.is_empty() {
        let next = i64::from_le_bytes(rest[8..16].try_into().expect("8 bytes"));
        let len = usize::from(u16::from_le_bytes([rest[16], rest[17]]));
        let end = rest[19..len].iter().position(|&b| b == 0).expect("a zero byte");
        each(&rest[19..19 + end], next);
        rest = &rest[len..];
    }
    n > 0
}

fn directory(path: &str) -> i32 {
    ok!(open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32
}

fn fill(count: usize) {
    ok!(mkdir("d", 0o755));
    for i in 0..count {
        close(ok!(open(&format!("d/entry-{i}"), libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644)) as i32);
    }
}

fn many_entries() {
    let count = count();
    fill(count);
    let fd = directory("d");
    // However small the buffer, each comes once.
    for size in [64, 300, 32 << 10] {
        ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
        let mut seen = vec![false; count];
        let mut dots = 0;
        while part(fd, size, |name, _| match name.strip_prefix(b"entry-") {
            Some(number) => {
                let number: usize = std::str::from_utf8(number).expect("a number").parse().expect("a number");
                check!(!seen[number], "twice: {number}");
                seen[number] = true;
            }
            None => dots += 1,
        }) {}
        check!(seen.iter().all(|seen| *seen), "not all, with {size} bytes");
        eq!(dots, 2);
    }
    for i in (0..count).step_by(7) {
        eq!(stat(&format!("d/entry-{i}")).0, 0);
    }
    err!(rmdir("d"), libc::ENOTEMPTY);
    (0..count).for_each(|i| eq!(unlink(&format!("d/entry-{i}")), 0));
    ok!(rmdir("d"));
}

fn seeks_among_many() {
    let count = count();
    fill(count);
    let fd = directory("d");
    let mut all: Vec<(Vec<u8>, i64)> = Vec::new();
    while part(fd, 4096, |name, next| all.push((name.to_vec(), next))) {}
    eq!(all.len(), count + 2);
    // From anywhere: what followed there before follows again.
    let mut at = 1;
    while at < all.len() {
        ok!(sys!(libc::SYS_lseek, fd, all[at - 1].1, libc::SEEK_SET));
        let mut found = None;
        part(fd, 300, |name, _| {
            found.get_or_insert_with(|| name.to_vec());
        });
        eq!(found.as_deref(), Some(all[at].0.as_slice()));
        at = at * 3 / 2 + 1;
    }
}

/// Whoever reads a directory sees each name once that is there from beginning to end, whatever comes and goes.
fn entries_come_and_go() {
    let count = count();
    fill(count);
    let fd = directory("d");
    let (mut seen, mut step) = (BTreeSet::new(), 0);
    loop {
        let more = part(fd, 512, |name, _| {
            let name = String::from_utf8_lossy(name).into_owned();
            check!(seen.insert(name.clone()), "twice: {name}");
        });
        if !more {
            break;
        }
        // Odd ones go, others come.
        let odd = 2 * step + 1;
        if odd < count {
            ok!(unlink(&format!("d/entry-{odd}")));
        }
        file(&format!("d/new-{step}"), b"");
        step += 1;
    }
    for even in (0..count).step_by(2) {
        check!(seen.contains(&format!("entry-{even}")), "not seen: {even}");
    }
}

/// More files than anybody may have open.
fn many_files() {
    let count = 4 * count();
    for i in 0..count {
        if i % 100 == 0 {
            ok!(mkdir(&format!("d{}", i / 100), 0o755));
        }
        let fd = ok!(open(&format!("d{}/{i}", i / 100), libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o644)) as i32;
        eq!(write(fd, format!("file {i}").as_bytes()), format!("file {i}").len() as i64);
        close(fd);
    }
    for i in (0..count).step_by(11) {
        eq!(text(&format!("d{}/{i}", i / 100)), format!("file {i}"));
    }
}

fn longest_names() {
    let longest = "n".repeat(255);
    let too_long = "n".repeat(256);
    file(&longest, b"long");
    eq!(text(&longest), "long");
    err!(open(&too_long, libc::O_CREAT | libc::O_WRONLY, 0o644), libc::ENAMETOOLONG);
    err!(open(&too_long, libc::O_RDONLY, 0), libc::ENAMETOOLONG);
    err!(mkdir(&too_long, 0o755), libc::ENAMETOOLONG);
    err!(rename(&longest, &too_long), libc::ENAMETOOLONG);
    err!(link(&longest, &too_long), libc::ENAMETOOLONG);
    err!(symlink("to", &too_long), libc::ENAMETOOLONG);
    let other = "o".repeat(255);
    ok!(rename(&longest, &other));
    ok!(mkdir(&longest, 0o755));
    let inner = format!("{longest}/{other}");
    ok!(link(&other, &inner));
    ok!(symlink(&other, &format!("{longest}/{longest}")));
    let mut names = Vec::new();
    while part(directory(&longest), 400, |name, _| names.push(name.len())) && names.len() < 2 {}
    eq!(text(&inner), "long");
    err!(sys!(libc::SYS_getdents64, directory(&longest), [0u8; 16].as_mut_ptr(), 16), libc::EINVAL);
    for path in [inner, format!("{longest}/{longest}"), other] {
        ok!(unlink(&path));
    }
    ok!(rmdir(&longest));
}

fn names_of_any_bytes() {
    let mut names: Vec<Vec<u8>> = (1..=255u8).filter(|b| !b"/.".contains(b)).map(|b| vec![b]).collect();
    names.extend([vec![0xff; 255], b"\xc3\x28".to_vec(), b"\n\r\t".to_vec(), b"a\x80b".to_vec(), b"\xf0\x9f\x98".to_vec()]);
    let path = |name: &[u8]| std::path::PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
    for name in &names {
        std::fs::write(path(name), name).expect("write");
    }
    let mut listed: Vec<Vec<u8>> = std::fs::read_dir(".")
        .expect("list")
        .map(|entry| entry.expect("entry").file_name().as_bytes().to_vec())
        .collect();
    listed.sort_unstable();
    names.sort_unstable();
    eq!(listed, names);
    for name in &names {
        eq!(&std::fs::read(path(name)).expect("read"), name);
        let mut longer = b"x".to_vec();
        longer.extend(name.iter().take(254));
        std::fs::rename(path(name), path(&longer)).expect("rename");
        eq!(&std::fs::read(path(&longer)).expect("read"), name);
    }
    // As links and directories.
    std::os::unix::fs::symlink(path(b"\xff\xfe"), "link").expect("symlink");
    eq!(std::fs::read_link("link").expect("link").as_os_str().as_bytes(), b"\xff\xfe");
    std::fs::create_dir(path(b"\xff\xfe")).expect("mkdir");
    ok!(sys!(libc::SYS_chdir, c("link").as_ptr()));
    let cwd = std::env::current_dir().expect("cwd");
    eq!(cwd.file_name().expect("name").as_bytes(), b"\xff\xfe");
}

/// A tree of 10,000 bytes of path, made, used and removed from within.
fn deeper_than_a_path() {
    let name = "n".repeat(200);
    for _ in 0..50 {
        ok!(mkdir(&name, 0o755));
        ok!(sys!(libc::SYS_chdir, c(&name).as_ptr()));
    }
    let mut buf = vec![0u8; 16384];
    err!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 16384), libc::ENAMETOOLONG);
    file("f", b"deep");
    ok!(rename("f", "g"));
    ok!(link("g", "h"));
    ok!(sys!(libc::SYS_chmod, c("g").as_ptr(), 0o600));
    eq!((text("h"), stat("h").1.st_mode & 0o777), ("deep".into(), 0o600));
    eq!(text(&format!("../{name}/g")), "deep");
    let up = "../".repeat(49);
    eq!(stat(&format!("{up}{name}")).1.st_ino, stat(&"../".repeat(48)).1.st_ino);
    err!(stat(&format!("{}{}", "../".repeat(1365), "g")).0, libc::ENAMETOOLONG);
    ok!(unlink("g"));
    ok!(unlink("h"));
    for _ in 0..50 {
        ok!(sys!(libc::SYS_chdir, c("..").as_ptr()));
        ok!(rmdir(&name));
    }
}

const FAR: i64 = (5 << 30) - 2;

fn far_file() -> i32 {
    let fd = new_file("f", b"start");
    eq!(sys!(libc::SYS_pwrite64, fd, b"end".as_ptr(), 3, FAR), 3);
    fd
}

fn beyond_4_gib() {
    let fd = far_file();
    eq!((fstat(fd).st_size, stat("f").1.st_size), (FAR + 3, FAR + 3));
    check!(fstat(fd).st_blocks < 1024, "{} blocks", fstat(fd).st_blocks);
    ok!(sys!(libc::SYS_lseek, fd, -4, libc::SEEK_END));
    eq!(read(fd, 10), b"\0end");
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), FAR + 3);
    eq!(write(fd, b"more"), 4);
    // Across the border of 4 GiB.
    let border = (4 << 30) - 2;
    eq!(sys!(libc::SYS_pwrite64, fd, b"abcd".as_ptr(), 4, border), 4);
    let mut buf = [1u8; 6];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 6, border - 1), 6);
    eq!(&buf, b"\0abcd\0");
    eq!(sys!(libc::SYS_lseek, fd, 1 << 20, libc::SEEK_DATA), border & !4095);
    check!(sys!(libc::SYS_lseek, fd, border, libc::SEEK_HOLE) > border);
    let out = new_file("out", b"");
    let mut at = FAR;
    eq!(sys!(libc::SYS_sendfile, out, fd, &mut at as *mut i64, 100), 7);
    eq!((text("out"), at), ("endmore".into(), FAR + 7));
    let append = ok!(open("f", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    eq!(write(append, b"!"), 1);
    eq!(fstat(fd).st_size, FAR + 8);
}

fn truncated_beyond_4_gib() {
    let fd = far_file();
    ok!(sys!(libc::SYS_ftruncate, fd, FAR + 1));
    let mut buf = [0u8; 9];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 9, FAR), 1);
    ok!(sys!(libc::SYS_truncate, c("f").as_ptr(), 6i64 << 30));
    eq!(fstat(fd).st_size, 6 << 30);
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 9, FAR), 9);
    eq!(&buf, b"e\0\0\0\0\0\0\0\0");
    ok!(sys!(libc::SYS_ftruncate, fd, 5));
    eq!((slurp("f"), fstat(fd).st_blocks < 1024), (b"start".to_vec(), true));
}

fn mapped_beyond_4_gib() {
    let fd = far_file();
    ok!(sys!(libc::SYS_ftruncate, fd, 6i64 << 30));
    let offset = FAR & !4095;
    let map = |fd: i32, prot: i32| ok!(sys!(libc::SYS_mmap, 0, 8192, prot, libc::MAP_SHARED, fd, offset)) as *mut u8;
    let (p, at) = (map(fd, libc::PROT_READ | libc::PROT_WRITE), (FAR - offset) as usize);
    let ro = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let q = map(ro, libc::PROT_READ);
    // SAFETY: within the mappings, which are within the file.
    let peek = |p: *mut u8, at: usize| unsafe { p.add(at).read_volatile() };
    eq!((peek(p, at), peek(q, at + 2)), (b'e', b'd'));
    // Writes show in the mappings, and stores in what is read.
    eq!(sys!(libc::SYS_pwrite64, fd, b"END".as_ptr(), 3, FAR), 3);
    eq!((peek(p, at), peek(q, at + 2)), (b'E', b'D'));
    // SAFETY: as above.
    unsafe { p.add(at + 10).write_volatile(b'x') };
    let mut buf = [0u8; 2];
    eq!(sys!(libc::SYS_pread64, ro, buf.as_mut_ptr(), 2, FAR + 9), 2);
    eq!((&buf, peek(q, at + 10)), (b"\0x", b'x'));
}
