//! read(2), write(2) and everything that moves file content.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("read_write": offsets, positional, vectors, vector_errors, bad_buffers, straddling_buffers, zero_length, seek,
    seek_data_and_hole, sparse, truncate_calls, truncate_to_the_same_size, size_limit, big_transfer, sendfile_calls, copy_range, splice_and_tee,
    allocate, preadv2_flags, sync_calls, advise, append_from_two, shared_offset_threads, read_at_the_end, dev_null_vectors, devices_have_no_position,
    write_extends, write_own_mapping);

fn offsets() {
    let fd = new_file("f", b"");
    eq!(write(fd, b"hello world"), 11);
    eq!(sys!(libc::SYS_lseek, fd, 6, libc::SEEK_SET), 6);
    eq!(read(fd, 100), b"world");
    eq!(read(fd, 100), b"");
    err!(sys!(libc::SYS_read, 999, 0, 0), libc::EBADF);
    err!(sys!(libc::SYS_write, 999, 0, 0), libc::EBADF);
    err!(sys!(libc::SYS_read, -1, 0, 0), libc::EBADF);
}

fn positional() {
    let fd = new_file("f", b"0123456789");
    let mut buf = [0u8; 4];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 4, 3), 4);
    eq!(&buf, b"3456");
    eq!(sys!(libc::SYS_pwrite64, fd, b"xy".as_ptr(), 2, 8), 2);
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), 0);
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 4, 10), 0);
    err!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 4, -1), libc::EINVAL);
    err!(sys!(libc::SYS_pwrite64, fd, buf.as_ptr(), 4, -1), libc::EINVAL);
    let (r, w) = pipe();
    err!(sys!(libc::SYS_pread64, r, buf.as_mut_ptr(), 4, 0), libc::ESPIPE);
    err!(sys!(libc::SYS_pwrite64, w, buf.as_ptr(), 4, 0), libc::ESPIPE);
    // O_APPEND wins over the position given (a documented deviation of Linux).
    let fd = ok!(open("f", libc::O_RDWR | libc::O_APPEND, 0)) as i32;
    eq!(sys!(libc::SYS_pwrite64, fd, b"end".as_ptr(), 3, 0), 3);
    eq!(text("f"), "01234567xyend");
}

fn iov(parts: &mut [&mut [u8]]) -> Vec<libc::iovec> {
    parts.iter_mut().map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() }).collect()
}

fn vectors() {
    let fd = new_file("f", b"");
    let (mut a, mut b, mut c) = (*b"abc", *b"", *b"defgh");
    let v = iov(&mut [&mut a, &mut b, &mut c]);
    eq!(sys!(libc::SYS_writev, fd, v.as_ptr(), 3), 8);
    eq!(text("f"), "abcdefgh");
    let (mut a, mut b) = ([0u8; 2], [0u8; 10]);
    let v = iov(&mut [&mut a, &mut b]);
    eq!(sys!(libc::SYS_preadv, fd, v.as_ptr(), 2, 1, 0), 7);
    eq!((&a, &b[..5]), (b"bc", &b"defgh"[..]));
    eq!(sys!(libc::SYS_pwritev, fd, v.as_ptr(), 1, 0, 0), 2);
    eq!(text("f"), "bccdefgh");
    ok!(sys!(libc::SYS_lseek, fd, 0, 0));
    eq!(sys!(libc::SYS_readv, fd, v.as_ptr(), 2), 8);
}

fn vector_errors() {
    let fd = new_file("f", b"data");
    let mut byte = [0u8; 1];
    let one = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let many = vec![one; 1025];
    err!(sys!(libc::SYS_readv, fd, many.as_ptr(), 1025), libc::EINVAL);
    eq!(sys!(libc::SYS_readv, fd, many.as_ptr(), 1024), 4);
    err!(sys!(libc::SYS_readv, fd, many.as_ptr(), -1), libc::EINVAL);
    eq!(sys!(libc::SYS_readv, fd, BAD, 0), 0);
    err!(sys!(libc::SYS_readv, fd, BAD, 1), libc::EFAULT);
    let negative = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: usize::MAX };
    err!(sys!(libc::SYS_readv, fd, &negative as *const _, 1), libc::EINVAL);
    err!(sys!(libc::SYS_writev, fd, [one, negative].as_ptr(), 2), libc::EINVAL);
    let (_, end) = guarded_page();
    // SAFETY: the last 16 bytes of the page.
    unsafe { ((end - 16) as *mut libc::iovec).write(one) };
    err!(sys!(libc::SYS_writev, fd, end - 16, 2), libc::EFAULT);
}

fn bad_buffers() {
    let fd = new_file("f", b"data");
    for bad in [0, BAD, WILD] {
        ok!(sys!(libc::SYS_lseek, fd, 0, 0));
        err!(sys!(libc::SYS_read, fd, bad, 4), libc::EFAULT);
        err!(sys!(libc::SYS_write, fd, bad, 4), libc::EFAULT);
        err!(sys!(libc::SYS_pread64, fd, bad, 4, 0), libc::EFAULT);
    }
    // Nothing was read or written.
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), 0);
    eq!(fstat(fd).st_size, 4);
    // Read-only memory cannot be read into, but it can be written from.
    let page = map(PAGE, libc::PROT_READ);
    err!(sys!(libc::SYS_read, fd, page, 4), libc::EFAULT);
    eq!(sys!(libc::SYS_write, fd, page, 4), 4);
    // At the end of the file nothing is touched.
    eq!(sys!(libc::SYS_read, fd, BAD, 4), 0);
    let (r, w) = pipe();
    write(w, b"pipe");
    err!(sys!(libc::SYS_read, r, BAD, 4), libc::EFAULT);
    eq!(read(r, 10), b"pipe");
    err!(sys!(libc::SYS_write, w, BAD, 4), libc::EFAULT);
    err!(sys!(libc::SYS_read, r, fd as u64 | WILD, 4), libc::EFAULT);
}

fn straddling_buffers() {
    let (start, end) = guarded_page();
    let fd = new_file("f", &[7u8; 3 * PAGE]);
    // A buffer that runs over the end of the page: what fits is moved.
    let n = sys!(libc::SYS_read, fd, end - 100, 200);
    check!(n == 100 || n == -i64::from(libc::EFAULT), "{}", Code(n));
    eq!(sys!(libc::SYS_pread64, fd, end - 100, 100, 0), 100);
    // SAFETY: the last bytes of the page.
    eq!(unsafe { *((end - 100) as *const [u8; 100]) }, [7; 100]);
    eq!(sys!(libc::SYS_pread64, fd, start, PAGE, 0), PAGE as i64);
    let out = new_file("g", b"");
    eq!(sys!(libc::SYS_write, out, end - 100, 100), 100);
    let n = sys!(libc::SYS_write, out, end - 100, 200);
    check!(n == 100 || n == -i64::from(libc::EFAULT), "{}", Code(n));
    let v = [
        libc::iovec { iov_base: (end - 10) as *mut _, iov_len: 10 },
        libc::iovec { iov_base: end as *mut _, iov_len: 10 },
    ];
    let n = sys!(libc::SYS_pwritev, out, v.as_ptr(), 2, 0, 0);
    check!(n == 10 || n == -i64::from(libc::EFAULT), "{}", Code(n));
}

fn zero_length() {
    let fd = new_file("f", b"x");
    eq!(sys!(libc::SYS_read, fd, BAD, 0), 0);
    eq!(sys!(libc::SYS_write, fd, BAD, 0), 0);
    let (r, w) = pipe();
    eq!(sys!(libc::SYS_read, r, BAD, 0), 0);
    eq!(sys!(libc::SYS_write, w, BAD, 0), 0);
}

fn seek() {
    let fd = new_file("f", b"0123456789");
    eq!(sys!(libc::SYS_lseek, fd, -3, libc::SEEK_END), 7);
    eq!(sys!(libc::SYS_lseek, fd, 1, libc::SEEK_CUR), 8);
    eq!(sys!(libc::SYS_lseek, fd, 1000, libc::SEEK_SET), 1000);
    eq!(read(fd, 1), b"");
    err!(sys!(libc::SYS_lseek, fd, -1, libc::SEEK_SET), libc::EINVAL);
    err!(sys!(libc::SYS_lseek, fd, -11, libc::SEEK_END), libc::EINVAL);
    err!(sys!(libc::SYS_lseek, fd, 0, 99), libc::EINVAL);
    err!(sys!(libc::SYS_lseek, 999, 0, 0), libc::EBADF);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_lseek, r, 0, 0), libc::ESPIPE);
    let copy = ok!(sys!(libc::SYS_dup, fd)) as i32;
    ok!(sys!(libc::SYS_lseek, copy, 5, 0));
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), 5);
}

fn seek_data_and_hole() {
    let fd = new_file("f", b"data");
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_DATA), 0);
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_HOLE), 4);
    err!(sys!(libc::SYS_lseek, fd, 4, libc::SEEK_DATA), libc::ENXIO);
    err!(sys!(libc::SYS_lseek, fd, 100, libc::SEEK_HOLE), libc::ENXIO);
}

fn sparse() {
    let fd = new_file("f", b"");
    eq!(sys!(libc::SYS_pwrite64, fd, b"end".as_ptr(), 3, 1 << 30), 3);
    eq!(fstat(fd).st_size, (1 << 30) + 3);
    check!(fstat(fd).st_blocks < 1000);
    let mut buf = [1u8; 100];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 100, 12345), 100);
    eq!(buf, [0; 100]);
}

fn truncate_calls() {
    let fd = new_file("f", b"0123456789");
    ok!(sys!(libc::SYS_ftruncate, fd, 4));
    eq!(text("f"), "0123");
    ok!(sys!(libc::SYS_truncate, c("f").as_ptr(), 6));
    eq!(slurp("f"), b"0123\0\0");
    err!(sys!(libc::SYS_ftruncate, fd, -1), libc::EINVAL);
    err!(sys!(libc::SYS_truncate, c("f").as_ptr(), -1), libc::EINVAL);
    err!(sys!(libc::SYS_truncate, c("missing").as_ptr(), 0), libc::ENOENT);
    err!(sys!(libc::SYS_truncate, c(".").as_ptr(), 0), libc::EISDIR);
    err!(sys!(libc::SYS_truncate, BAD, 0), libc::EFAULT);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_ftruncate, r, 0), libc::EINVAL);
    err!(sys!(libc::SYS_ftruncate, 999, 0), libc::EBADF);
}

fn truncate_to_the_same_size() {
    // On tmpfs; ext4 sets the times.
    let path = format!("/dev/shm/truncated-{}", getpid());
    let fd = new_file(&path, b"");
    let (times, name) = ([1i64, 2, 3, 4], c(&path));
    let set = || ok!(sys!(libc::SYS_utimensat, fd, 0, times.as_ptr(), 0));
    let kept = || fstat(fd).st_mtime == 3;
    // Without content it changes nothing; by a descriptor, or with content, it does.
    for (size, content, by_path, keeps) in [
        (0, false, true, true),
        (0, false, false, false),
        (9, false, true, false),
        (9, false, true, true),
        (9, true, true, false),
        (5, true, true, false),
    ] {
        if content {
            write(fd, b"x");
        }
        set();
        let before = fstat(fd);
        sleep_ms(20);
        if by_path {
            ok!(sys!(libc::SYS_truncate, name.as_ptr(), size));
        } else {
            ok!(sys!(libc::SYS_ftruncate, fd, size));
        }
        let after = fstat(fd);
        eq!((size, content, by_path, kept()), (size, content, by_path, keeps));
        let same_change = (after.st_ctime, after.st_ctime_nsec) == (before.st_ctime, before.st_ctime_nsec);
        eq!(same_change, keeps);
    }
    unlink(&path);
}

fn size_limit() {
    let fd = new_file("f", b"");
    let limit = libc::rlimit { rlim_cur: 10, rlim_max: 100 };
    ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_FSIZE, &limit as *const _));
    catch(libc::SIGXFSZ, 0);
    eq!(write(fd, b"0123456789abc"), 10);
    err!(write(fd, b"x"), libc::EFBIG);
    eq!(seen(), 1);
    err!(sys!(libc::SYS_ftruncate, fd, 11), libc::EFBIG);
    eq!(seen(), 2);
}

fn big_transfer() {
    let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let fd = new_file("f", b"");
    eq!(write(fd, &data), data.len() as i64);
    let mut back = vec![0u8; data.len() + 10];
    eq!(sys!(libc::SYS_pread64, fd, back.as_mut_ptr(), back.len(), 0), data.len() as i64);
    check!(back[..data.len()] == data[..]);
    let (r, w) = pipe();
    let sent = data.clone();
    let thread = std::thread::spawn(move || {
        let mut at = 0;
        while at < sent.len() {
            at += ok!(write(w, &sent[at..])) as usize;
        }
        close(w);
    });
    let mut got = Vec::new();
    loop {
        let part = read(r, 70_000);
        if part.is_empty() {
            break;
        }
        got.extend(part);
    }
    thread.join().expect("joined");
    check!(got == data);
}

fn sendfile_calls() {
    let from = new_file("f", b"0123456789");
    let to = new_file("g", b"");
    eq!(sys!(libc::SYS_sendfile, to, from, 0, 4), 4);
    let mut offset = 6i64;
    eq!(sys!(libc::SYS_sendfile, to, from, &mut offset as *mut i64, 100), 4);
    eq!(offset, 10);
    eq!(text("g"), "01236789");
    eq!(sys!(libc::SYS_lseek, from, 0, libc::SEEK_CUR), 4);
    let (_r, w) = pipe();
    ok!(sys!(libc::SYS_sendfile, w, from, 0, 2));
    err!(sys!(libc::SYS_sendfile, 999, from, 0, 2), libc::EBADF);
    err!(sys!(libc::SYS_sendfile, to, from, BAD, 2), libc::EFAULT);
    let mut negative = -1i64;
    err!(sys!(libc::SYS_sendfile, to, from, &mut negative as *mut i64, 2), libc::EINVAL);
    // Into a file opened for appending it is refused.
    let append = ok!(open("g", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    err!(sys!(libc::SYS_sendfile, append, from, 0, 2), libc::EINVAL);
}

fn copy_range() {
    let from = new_file("f", b"0123456789");
    let to = new_file("g", b"");
    let call = |i: &mut i64, o: &mut i64, len: usize, flags: u32| {
        sys!(libc::SYS_copy_file_range, from, i as *mut i64, to, o as *mut i64, len, flags)
    };
    let (mut i, mut o) = (2i64, 1i64);
    eq!(call(&mut i, &mut o, 5, 0), 5);
    eq!((i, o), (7, 6));
    eq!(slurp("g"), b"\x0023456");
    eq!(call(&mut 10, &mut 0, 5, 0), 0);
    err!(call(&mut 0, &mut 0, 5, 1), libc::EINVAL);
    err!(sys!(libc::SYS_copy_file_range, from, 0, from, 0, 5, 0), libc::EINVAL);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_copy_file_range, r, 0, to, 0, 5, 0), libc::EINVAL);
    err!(sys!(libc::SYS_copy_file_range, 999, 0, to, 0, 5, 0), libc::EBADF);
}

fn splice_and_tee() {
    let from = new_file("f", b"0123456789");
    let (r, w) = pipe();
    let mut offset = 3i64;
    eq!(sys!(libc::SYS_splice, from, &mut offset as *mut i64, w, 0, 4, 0), 4);
    eq!(offset, 7);
    let (r2, w2) = pipe();
    eq!(sys!(libc::SYS_tee, r, w2, 100, 0), 4);
    eq!(read(r2, 10), b"3456");
    eq!(sys!(libc::SYS_splice, r, 0, w2, 0, 2, 0), 2);
    eq!(read(r2, 10), b"34");
    let to = new_file("g", b"");
    eq!(sys!(libc::SYS_splice, r, 0, to, 0, 100, 0), 2);
    eq!(text("g"), "56");
    err!(sys!(libc::SYS_splice, from, 0, to, 0, 4, 0), libc::EINVAL);
    err!(sys!(libc::SYS_splice, r, &mut offset as *mut i64, to, 0, 4, 0), libc::ESPIPE);
    err!(sys!(libc::SYS_tee, from, w2, 4, 0), libc::EINVAL);
    err!(sys!(libc::SYS_splice, r, 0, to, 0, 4, libc::SPLICE_F_NONBLOCK), libc::EAGAIN);
    // The other end is gone.
    close(w);
    eq!(sys!(libc::SYS_splice, r, 0, to, 0, 4, 0), 0);
}

fn allocate() {
    let fd = new_file("f", b"abc");
    ok!(sys!(libc::SYS_fallocate, fd, 0, 0, 100));
    eq!(fstat(fd).st_size, 100);
    ok!(sys!(libc::SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, 0, 1000));
    eq!(fstat(fd).st_size, 100);
    ok!(sys!(libc::SYS_fallocate, fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 1, 1));
    eq!(&slurp("f")[..3], b"a\0c");
    err!(sys!(libc::SYS_fallocate, fd, 0, -1, 10), libc::EINVAL);
    err!(sys!(libc::SYS_fallocate, fd, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_fallocate, 999, 0, 0, 1), libc::EBADF);
    let (_r, w) = pipe();
    err!(sys!(libc::SYS_fallocate, w, 0, 0, 1), libc::ESPIPE);
}

fn preadv2_flags() {
    let fd = new_file("f", b"0123456789");
    let mut buf = [0u8; 4];
    let v = iov(&mut [&mut buf]);
    // Position -1 means the file's own.
    eq!(sys!(libc::SYS_preadv2, fd, v.as_ptr(), 1, -1, -1, 0), 4);
    eq!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), 4);
    eq!(sys!(libc::SYS_preadv2, fd, v.as_ptr(), 1, 8, 0, 0), 2);
    err!(sys!(libc::SYS_preadv2, fd, v.as_ptr(), 1, 0, 0, 0x4000_0000), libc::EOPNOTSUPP);
    eq!(sys!(libc::SYS_pwritev2, fd, v.as_ptr(), 1, 0, 0, 0x10), 4); // RWF_APPEND
    eq!(fstat(fd).st_size, 14);
}

fn sync_calls() {
    let fd = new_file("f", b"x");
    ok!(sys!(libc::SYS_fsync, fd));
    ok!(sys!(libc::SYS_fdatasync, fd));
    ok!(sys!(libc::SYS_syncfs, fd));
    ok!(sys!(libc::SYS_sync_file_range, fd, 0, 0, 0));
    err!(sys!(libc::SYS_fsync, 999), libc::EBADF);
    let (_r, w) = pipe();
    err!(sys!(libc::SYS_fsync, w), libc::EINVAL);
}

fn advise() {
    let fd = new_file("f", b"x");
    for advice in 0..6 {
        ok!(sys!(libc::SYS_fadvise64, fd, 0, 0, advice));
    }
    err!(sys!(libc::SYS_fadvise64, fd, 0, 0, 99), libc::EINVAL);
    err!(sys!(libc::SYS_fadvise64, 999, 0, 0, 0), libc::EBADF);
    let (r, _) = pipe();
    err!(sys!(libc::SYS_fadvise64, r, 0, 0, 0), libc::ESPIPE);
    ok!(sys!(libc::SYS_readahead, fd, 0, 10));
}

fn append_from_two() {
    file("f", b"");
    let pids: Vec<_> = [b"a", b"b"]
        .into_iter()
        .map(|letter| {
            child(|| {
                let fd = ok!(open("f", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
                (0..200).for_each(|_| eq!(write(fd, letter), 1));
            })
        })
        .collect();
    pids.into_iter().for_each(reap);
    let all = slurp("f");
    eq!(all.len(), 400);
    eq!(all.iter().filter(|&&b| b == b'a').count(), 200);
}

fn shared_offset_threads() {
    // Writes through one open file description do not overlap.
    let fd = new_file("f", b"");
    let threads: Vec<_> = (0..4u8)
        .map(|i| std::thread::spawn(move || (0..100).for_each(|_| eq!(write(fd, &[b'a' + i; 10]), 10))))
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    let all = slurp("f");
    eq!(all.len(), 4000);
    check!(all.chunks(10).all(|c| c.iter().all(|&b| b == c[0])));
}

fn read_at_the_end() {
    let fd = new_file("f", b"x");
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_END));
    eq!(read(fd, 10), b"");
    let other = ok!(open("f", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(other, b"more");
    eq!(read(fd, 10), b"more");
}

fn devices_have_no_position() {
    for name in ["null", "zero", "full", "urandom"] {
        let fd = ok!(open(&format!("/dev/{name}"), libc::O_RDWR, 0)) as i32;
        let seek = |offset: i64, whence: i32| sys!(libc::SYS_lseek, fd, offset, whence);
        let mut buf = [0u8; 10];
        ok!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 10));
        let places = [(100, libc::SEEK_SET), (-5, libc::SEEK_SET), (7, libc::SEEK_CUR), (-9, libc::SEEK_END), (3, libc::SEEK_DATA), (3, libc::SEEK_HOLE)];
        for (offset, whence) in places {
            eq!(seek(offset, whence), 0);
        }
        err!(seek(0, 9), libc::EINVAL);
        ok!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 10, 1u64 << 40));
        eq!(seek(0, libc::SEEK_CUR), 0);
    }
}

fn dev_null_vectors() {
    let fd = ok!(open("/dev/null", libc::O_RDWR, 0)) as i32;
    let (mut a, mut b) = ([0u8; 100], [0u8; 50]);
    let v = iov(&mut [&mut a, &mut b]);
    eq!(sys!(libc::SYS_writev, fd, v.as_ptr(), 2), 150);
    eq!(sys!(libc::SYS_write, fd, BAD, 100), 100);
}

fn write_extends() {
    let fd = new_file("f", b"abc");
    ok!(sys!(libc::SYS_lseek, fd, 10, 0));
    write(fd, b"z");
    eq!(slurp("f"), b"abc\0\0\0\0\0\0\0z");
    err!(sys!(libc::SYS_pwrite64, fd, b"x".as_ptr(), 1, i64::MAX), libc::EINVAL);
}

fn write_own_mapping() {
    // The buffer is a mapping of the file itself.
    let fd = new_file("f", &[b'm'; PAGE]);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let m = ok!(sys!(libc::SYS_mmap, 0, PAGE, prot, libc::MAP_SHARED, fd, 0));
    eq!(sys!(libc::SYS_pwrite64, fd, m, PAGE, PAGE), PAGE as i64);
    eq!(sys!(libc::SYS_pread64, fd, m, PAGE, PAGE), PAGE as i64);
    check!(slurp("f").iter().all(|&b| b == b'm'));
}
