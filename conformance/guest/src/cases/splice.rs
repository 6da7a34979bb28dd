//! splice(2), tee(2), vmsplice(2), sendfile(2), copy_file_range(2): data moves without passing through the program.

use super::socket::pair;
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("splice": file_to_pipe, pipe_to_file, offsets_move, pipe_to_pipe, end_of_input, splice_blocks, splice_nonblocking, splice_errors,
    splice_offset_errors, splice_append, socket_to_pipe, socket_data_is_kept, pipe_to_socket, splice_wakes_reader, splice_broken_pipe,
    tee_copies, tee_partial, tee_blocks, tee_errors, vmsplice_in, vmsplice_out, vmsplice_errors, vmsplice_vectors, sendfile_to_file,
    sendfile_offset, sendfile_to_socket, sendfile_to_pipe_blocks, sendfile_errors, sendfile_past_the_end, sendfile_large,
    copy_range, copy_range_offsets, copy_range_errors, copy_range_overlap, copy_range_beyond_end, copy_range_same_file, copy_range_holes,
    file_size_limit, set_id_bits_go, null_and_zero, special_sources, zero_length, closed_while_waiting,
    interrupted_splice, order_of_errors, texts_of_processes_are_no_source, copy_range_errors_in_order, sendfile_within_a_file,
    sendfile_of_nothing);

const NONBLOCK: u32 = 2;
const MORE: u32 = 4;

fn splice(from: i32, off_in: u64, to: i32, off_out: u64, len: usize, flags: u32) -> i64 {
    sys!(libc::SYS_splice, from, off_in, to, off_out, len, flags)
}

fn tee(from: i32, to: i32, len: usize, flags: u32) -> i64 {
    sys!(libc::SYS_tee, from, to, len, flags)
}

fn sendfile(to: i32, from: i32, offset: u64, len: usize) -> i64 {
    sys!(libc::SYS_sendfile, to, from, offset, len)
}

fn copy(from: i32, off_in: u64, to: i32, off_out: u64, len: usize, flags: u32) -> i64 {
    sys!(libc::SYS_copy_file_range, from, off_in, to, off_out, len, flags)
}

fn at(offset: &i64) -> u64 {
    std::ptr::from_ref(offset) as u64
}

fn position(fd: i32) -> i64 {
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR))
}

fn nonblock(fd: i32) {
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK));
}

fn file_to_pipe() {
    let f = new_file("f", b"0123456789");
    let (r, w) = pipe();
    eq!(splice(f, 0, w, 0, 4, 0), 4);
    eq!(position(f), 4);
    eq!(read(r, 100), b"0123");
    eq!(splice(f, 0, w, 0, 100, MORE), 6);
    eq!(read(r, 100), b"456789");
    eq!(splice(f, 0, w, 0, 100, 0), 0);
}

fn pipe_to_file() {
    let f = new_file("f", b"0123456789");
    let (r, w) = pipe();
    write(w, b"abcdef");
    eq!(splice(r, 0, f, 0, 4, 0), 4);
    eq!(position(f), 4);
    eq!(splice(r, 0, f, 0, 100, 0), 2);
    eq!(slurp("f"), b"abcdef6789");
}

fn offsets_move() {
    let f = new_file("f", b"0123456789");
    let (r, w) = pipe();
    let offset = 3i64;
    eq!(splice(f, at(&offset), w, 0, 4, 0), 4);
    // SAFETY: the kernel wrote to it.
    eq!(unsafe { std::ptr::from_ref(&offset).read_volatile() }, 7);
    eq!(position(f), 0);
    eq!(read(r, 100), b"3456");
    write(w, b"xy");
    let offset = 8i64;
    eq!(splice(r, 0, f, at(&offset), 2, 0), 2);
    // SAFETY: as above.
    eq!(unsafe { std::ptr::from_ref(&offset).read_volatile() }, 10);
    eq!(position(f), 0);
    eq!(slurp("f"), b"01234567xy");
}

fn pipe_to_pipe() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    write(w, b"hello world");
    eq!(splice(r, 0, w2, 0, 5, 0), 5);
    eq!(read(r2, 100), b"hello");
    eq!(splice(r, 0, w2, 0, 100, 0), 6);
    eq!(read(r2, 100), b" world");
    err!(splice(r, 0, w, 0, 100, 0), libc::EINVAL);
}

fn end_of_input() {
    let (r, w) = pipe();
    let (_r2, w2) = pipe();
    let f = new_file("f", b"");
    close(w);
    eq!(splice(r, 0, w2, 0, 10, 0), 0);
    eq!(splice(r, 0, f, 0, 10, 0), 0);
    eq!(tee(r, w2, 10, 0), 0);
}

fn splice_blocks() {
    let f = new_file("f", b"");
    let (r, w) = pipe();
    let pid = child(|| {
        sleep_ms(30);
        write(w, b"late");
    });
    eq!(splice(r, 0, f, 0, 100, 0), 4);
    reap(pid);
    eq!(slurp("f"), b"late");
}

fn splice_nonblocking() {
    let f = new_file("f", &[7; 200_000]);
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    err!(splice(r, 0, w2, 0, 10, NONBLOCK), libc::EAGAIN);
    err!(splice(r, 0, f, 0, 10, NONBLOCK), libc::EAGAIN);
    err!(tee(r, w2, 10, NONBLOCK), libc::EAGAIN);
    // A full pipe.
    let n = ok!(splice(f, 0, w, 0, 200_000, NONBLOCK));
    check!(n == 65536, "{n}");
    err!(splice(f, 0, w, 0, 200_000, NONBLOCK), libc::EAGAIN);
    // The descriptors' own flags between pipes.
    nonblock(r2);
    err!(splice(r2, 0, w, 0, 10, 0), libc::EAGAIN);
    err!(splice(r2, 0, f, 0, 10, 0), libc::EAGAIN);
}

fn splice_errors() {
    let f = new_file("f", b"x");
    let g = new_file("g", b"x");
    let (r, w) = pipe();
    err!(splice(f, 0, g, 0, 1, 0), libc::EINVAL);
    err!(splice(w, 0, f, 0, 1, 0), libc::EBADF);
    err!(splice(f, 0, r, 0, 1, 0), libc::EBADF);
    err!(splice(999, 0, w, 0, 1, 0), libc::EBADF);
    err!(splice(f, 0, 999, 0, 1, 0), libc::EBADF);
    err!(splice(f, 0, w, 0, 1, 16), libc::EINVAL);
    let read_only = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    write(w, b"z");
    err!(splice(r, 0, read_only, 0, 1, 0), libc::EBADF);
    let path = ok!(open("f", libc::O_PATH, 0)) as i32;
    err!(splice(path, 0, w, 0, 1, 0), libc::EBADF);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(splice(dir, 0, w, 0, 1, 0), libc::EINVAL);
}

fn splice_offset_errors() {
    let f = new_file("f", b"0123456789");
    let (r, w) = pipe();
    let offset = 0i64;
    err!(splice(r, at(&offset), f, 0, 1, NONBLOCK), libc::ESPIPE);
    err!(splice(f, 0, w, at(&offset), 1, 0), libc::ESPIPE);
    err!(splice(f, BAD, w, 0, 1, 0), libc::EFAULT);
    write(w, b"q");
    err!(splice(r, 0, f, BAD, 1, 0), libc::EFAULT);
    let negative = -1i64;
    err!(splice(f, at(&negative), w, 0, 1, 0), libc::EINVAL);
}

fn splice_append() {
    let (r, w) = pipe();
    file("f", b"");
    let f = ok!(open("f", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    write(w, b"x");
    err!(splice(r, 0, f, 0, 1, 0), libc::EINVAL);
}

fn socket_to_pipe() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, w) = pipe();
    write(a, b"hello");
    eq!(splice(b, 0, w, 0, 3, 0), 3);
    eq!(splice(b, 0, w, 0, 100, 0), 2);
    eq!(read(r, 100), b"hello");
    err!(splice(b, 0, w, 0, 100, NONBLOCK), libc::EAGAIN);
    close(a);
    eq!(splice(b, 0, w, 0, 100, 0), 0);
}

fn socket_data_is_kept() {
    // Nothing gets lost where the pipe is nearly full.
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, w) = pipe();
    write(w, &vec![1; 60_000]);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    eq!(write(a, &data), 100_000);
    let mut got = Vec::new();
    close(a);
    let mut skipped = 0;
    loop {
        let n = ok!(splice(b, 0, w, 0, 100_000, 0));
        if n == 0 {
            break;
        }
        let part = read(r, 200_000);
        let skip = part.len().min(60_000 - skipped);
        skipped += skip;
        got.extend_from_slice(&part[skip..]);
    }
    while got.len() < data.len() && waiting(r) > 0 {
        got.extend(read(r, 200_000));
    }
    eq!(got.len(), data.len());
    check!(got == data);
}

fn pipe_to_socket() {
    let (a, b) = pair(libc::SOCK_STREAM);
    let (r, w) = pipe();
    write(w, b"through");
    eq!(splice(r, 0, a, 0, 100, 0), 7);
    eq!(read(b, 100), b"through");
    // The peer is gone.
    close(b);
    catch(libc::SIGPIPE, 0);
    write(w, b"more");
    err!(splice(r, 0, a, 0, 100, 0), libc::EPIPE);
}

fn splice_wakes_reader() {
    let f = new_file("f", b"wake up");
    let (r, w) = pipe();
    let pid = child(|| {
        eq!(read(r, 100), b"wake up");
    });
    sleep_ms(20);
    eq!(splice(f, 0, w, 0, 100, 0), 7);
    reap(pid);
}

fn splice_broken_pipe() {
    let f = new_file("f", b"x");
    let (r, w) = pipe();
    close(r);
    catch(libc::SIGPIPE, 0);
    err!(splice(f, 0, w, 0, 1, 0), libc::EPIPE);
    eq!(seen(), 1);
}

fn tee_copies() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    write(w, b"both");
    eq!(tee(r, w2, 100, 0), 4);
    eq!(read(r, 100), b"both");
    eq!(read(r2, 100), b"both");
}

fn tee_partial() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    write(w, b"abcdef");
    eq!(tee(r, w2, 3, 0), 3);
    eq!(read(r2, 100), b"abc");
    eq!(tee(r, w2, 2, 0), 2);
    eq!(read(r2, 100), b"ab");
    eq!(read(r, 100), b"abcdef");
}

fn tee_blocks() {
    let (r, w) = pipe();
    let (r2, w2) = pipe();
    let pid = child(|| {
        sleep_ms(30);
        write(w, b"late");
    });
    eq!(tee(r, w2, 100, 0), 4);
    reap(pid);
    eq!(read(r2, 100), b"late");
}

fn tee_errors() {
    let f = new_file("f", b"x");
    let (r, w) = pipe();
    let (_r2, w2) = pipe();
    err!(tee(f, w, 1, 0), libc::EINVAL);
    err!(tee(r, f, 1, 0), libc::EINVAL);
    err!(tee(r, w, 1, 0), libc::EINVAL);
    err!(tee(w, w2, 1, 0), libc::EBADF);
    err!(tee(r, 999, 1, 0), libc::EBADF);
    err!(tee(r, w2, 1, 64), libc::EINVAL);
    eq!(tee(r, w2, 0, 0), 0);
}

fn vmsplice_in() {
    let (r, w) = pipe();
    let data = *b"from memory";
    let iov = libc::iovec { iov_base: data.as_ptr() as *mut _, iov_len: data.len() };
    eq!(sys!(libc::SYS_vmsplice, w, &iov as *const _, 1, 0), 11);
    eq!(read(r, 100), b"from memory");
}

fn vmsplice_out() {
    let (r, w) = pipe();
    write(w, b"to memory");
    let mut data = [0u8; 20];
    let iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    eq!(sys!(libc::SYS_vmsplice, r, &iov as *const _, 1, 0), 9);
    eq!(&data[..9], b"to memory");
    err!(sys!(libc::SYS_vmsplice, r, &iov as *const _, 1, NONBLOCK), libc::EAGAIN);
}

fn vmsplice_errors() {
    let f = new_file("f", b"x");
    let (r, w) = pipe();
    let iov = libc::iovec { iov_base: BAD as *mut _, iov_len: 10 };
    err!(sys!(libc::SYS_vmsplice, f, &iov as *const _, 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_vmsplice, 999, &iov as *const _, 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_vmsplice, w, &iov as *const _, 1, 0), libc::EFAULT);
    err!(sys!(libc::SYS_vmsplice, w, BAD, 1, 0), libc::EFAULT);
    err!(sys!(libc::SYS_vmsplice, w, &iov as *const _, 1, 64), libc::EINVAL);
    err!(sys!(libc::SYS_vmsplice, w, &iov as *const _, 2000, 0), libc::EINVAL);
    eq!(sys!(libc::SYS_vmsplice, w, &iov as *const _, 0, 0), 0);
    eq!(waiting(r), 0);
}

fn vmsplice_vectors() {
    let (r, w) = pipe();
    let (a, b) = (*b"one ", *b"two");
    let iov = [
        libc::iovec { iov_base: a.as_ptr() as *mut _, iov_len: 4 },
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        libc::iovec { iov_base: b.as_ptr() as *mut _, iov_len: 3 },
    ];
    eq!(sys!(libc::SYS_vmsplice, w, iov.as_ptr(), 3, 0), 7);
    eq!(read(r, 100), b"one two");
}

fn sendfile_to_file() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    eq!(sendfile(g, f, 0, 4), 4);
    eq!(sendfile(g, f, 0, 100), 6);
    eq!((position(f), position(g)), (10, 10));
    eq!(slurp("g"), b"0123456789");
    eq!(sendfile(g, f, 0, 100), 0);
}

fn sendfile_offset() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    let offset = 4i64;
    eq!(sendfile(g, f, at(&offset), 3), 3);
    // SAFETY: the kernel wrote to it.
    eq!(unsafe { std::ptr::from_ref(&offset).read_volatile() }, 7);
    eq!(position(f), 0);
    eq!(slurp("g"), b"456");
}

fn sendfile_to_socket() {
    let f = new_file("f", b"to a socket");
    let (a, b) = pair(libc::SOCK_STREAM);
    eq!(sendfile(a, f, 0, 100), 11);
    eq!(read(b, 100), b"to a socket");
    close(b);
    catch(libc::SIGPIPE, 0);
    ok!(sys!(libc::SYS_lseek, f, 0, 0));
    err!(sendfile(a, f, 0, 100), libc::EPIPE);
}

fn sendfile_to_pipe_blocks() {
    let data: Vec<u8> = (0..150_000u32).map(|i| i as u8).collect();
    let f = new_file("f", &data);
    let (r, w) = pipe();
    let pid = child(|| {
        close(r);
        let mut sent = 0;
        while sent < 150_000 {
            sent += ok!(sendfile(w, f, 0, 150_000 - sent as usize));
        }
    });
    close(w);
    let mut got = Vec::new();
    loop {
        let part = read(r, 10_000);
        if part.is_empty() {
            break;
        }
        got.extend(part);
    }
    reap(pid);
    check!(got == data);
}

fn sendfile_errors() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    let (r, w) = pipe();
    let (a, _b) = pair(libc::SOCK_STREAM);
    err!(sendfile(999, f, 0, 1), libc::EBADF);
    err!(sendfile(g, 999, 0, 1), libc::EBADF);
    err!(sendfile(r, f, 0, 1), libc::EBADF);
    err!(sendfile(g, w, 0, 1), libc::EBADF);
    err!(sendfile(g, f, BAD, 1), libc::EFAULT);
    let negative = -1i64;
    err!(sendfile(g, f, at(&negative), 1), libc::EINVAL);
    // What cannot be read twice is no source.
    err!(sendfile(g, a, 0, 1), libc::EINVAL);
    write(w, b"x");
    err!(sendfile(g, r, 0, 1), libc::EINVAL);
    let offset = 0i64;
    err!(sendfile(g, r, at(&offset), 1), libc::ESPIPE);
    let append = ok!(open("g", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    err!(sendfile(append, f, 0, 1), libc::EINVAL);
    eq!(sendfile(g, f, 0, 0), 0);
}

fn sendfile_past_the_end() {
    let f = new_file("f", b"0123");
    let g = new_file("g", b"");
    let offset = 4i64;
    eq!(sendfile(g, f, at(&offset), 3), 0);
    let offset = 400i64;
    eq!(sendfile(g, f, at(&offset), 3), 0);
}

fn sendfile_large() {
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 8) as u8 ^ i as u8).collect();
    let f = new_file("f", &data);
    let g = new_file("g", b"");
    let mut sent = 0;
    while sent < data.len() {
        let n = ok!(sendfile(g, f, 0, data.len()));
        check!(n > 0);
        sent += n as usize;
    }
    check!(slurp("g") == data);
}

fn copy_range() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    eq!(copy(f, 0, g, 0, 4, 0), 4);
    eq!(copy(f, 0, g, 0, 100, 0), 6);
    eq!(slurp("g"), b"0123456789");
    eq!((position(f), position(g)), (10, 10));
}

fn copy_range_offsets() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"abcdefghij");
    let (from, to) = (2i64, 5i64);
    eq!(copy(f, at(&from), g, at(&to), 3, 0), 3);
    // SAFETY: the kernel wrote to them.
    eq!(unsafe { (std::ptr::from_ref(&from).read_volatile(), std::ptr::from_ref(&to).read_volatile()) }, (5, 8));
    eq!((position(f), position(g)), (0, 0));
    eq!(slurp("g"), b"abcde234ij");
}

fn copy_range_errors() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    let (r, w) = pipe();
    err!(copy(f, 0, g, 0, 1, 1), libc::EINVAL);
    err!(copy(999, 0, g, 0, 1, 0), libc::EBADF);
    err!(copy(f, 0, 999, 0, 1, 0), libc::EBADF);
    err!(copy(f, BAD, g, 0, 1, 0), libc::EFAULT);
    err!(copy(f, 0, g, BAD, 1, 0), libc::EFAULT);
    let read_only = ok!(open("g", libc::O_RDONLY, 0)) as i32;
    err!(copy(f, 0, read_only, 0, 1, 0), libc::EBADF);
    let write_only = ok!(open("f", libc::O_WRONLY, 0)) as i32;
    err!(copy(write_only, 0, g, 0, 1, 0), libc::EBADF);
    let append = ok!(open("g", libc::O_WRONLY | libc::O_APPEND, 0)) as i32;
    err!(copy(f, 0, append, 0, 1, 0), libc::EBADF);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(copy(dir, 0, g, 0, 1, 0), libc::EISDIR);
    err!(copy(r, 0, g, 0, 1, 0), libc::EINVAL);
    err!(copy(f, 0, w, 0, 1, 0), libc::EINVAL);
    eq!(copy(f, 0, g, 0, 0, 0), 0);
}

fn copy_range_overlap() {
    let f = new_file("f", b"0123456789");
    let (from, to) = (0i64, 3i64);
    err!(copy(f, at(&from), f, at(&to), 5, 0), libc::EINVAL);
    let to = 0i64;
    err!(copy(f, at(&from), f, at(&to), 5, 0), libc::EINVAL);
}

fn copy_range_same_file() {
    let f = new_file("f", b"0123456789");
    let (from, to) = (0i64, 5i64);
    eq!(copy(f, at(&from), f, at(&to), 5, 0), 5);
    eq!(slurp("f"), b"0123401234");
}

fn copy_range_beyond_end() {
    let f = new_file("f", b"0123");
    let g = new_file("g", b"");
    let from = 4i64;
    eq!(copy(f, at(&from), g, 0, 10, 0), 0);
    let from = 100i64;
    eq!(copy(f, at(&from), g, 0, 10, 0), 0);
    let (from, to) = (0i64, 10i64);
    eq!(copy(f, at(&from), g, at(&to), 4, 0), 4);
    eq!(slurp("g"), b"\0\0\0\0\0\0\0\0\0\x000123");
    let to = i64::MAX - 2;
    check!(copy(f, at(&from), g, at(&to), 10, 0) < 0);
}

fn copy_range_holes() {
    let f = new_file("f", b"");
    ok!(sys!(libc::SYS_ftruncate, f, 1 << 20));
    ok!(sys!(libc::SYS_pwrite64, f, b"end".as_ptr(), 3, 1 << 20));
    let g = new_file("g", b"");
    let mut done = 0;
    while done < (1 << 20) + 3 {
        let n = ok!(copy(f, 0, g, 0, 1 << 21, 0));
        check!(n > 0);
        done += n;
    }
    let got = slurp("g");
    eq!(got.len(), (1 << 20) + 3);
    check!(got.ends_with(b"\0\0end"));
}

fn file_size_limit() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    let (r, w) = pipe();
    write(w, b"0123456789");
    in_child(|| {
        catch(libc::SIGXFSZ, 0);
        let limit = [4u64, 4];
        ok!(sys!(libc::SYS_setrlimit, libc::RLIMIT_FSIZE as i32, limit.as_ptr()));
        eq!(copy(f, 0, g, 0, 10, 0), 4);
        err!(copy(f, 0, g, 0, 10, 0), libc::EFBIG);
        eq!(seen(), 1);
        err!(splice(r, 0, g, 0, 10, 0), libc::EFBIG);
        eq!(seen(), 2);
        ok!(sys!(libc::SYS_lseek, g, 2, 0));
        eq!(splice(r, 0, g, 0, 10, 0), 2);
        ok!(sys!(libc::SYS_lseek, f, 0, 0));
        err!(sendfile(g, f, 0, 10), libc::EFBIG);
    });
}

fn set_id_bits_go() {
    let f = new_file("f", b"0123456789");
    let g = new_file("g", b"");
    if sys!(libc::SYS_fchmod, g, 0o6755) < 0 || fstat(g).st_mode & 0o7777 != 0o6755 {
        skip("no set-id bits here");
    }
    let (r, w) = pipe();
    write(w, b"x");
    in_child(|| {
        if sys!(libc::SYS_getuid) == 0 {
            ok!(sys!(libc::SYS_setresuid, 1234, 1234, 1234));
        }
        eq!(splice(r, 0, g, 0, 1, 0), 1);
        eq!(fstat(g).st_mode & 0o7777, 0o755);
    });
    ok!(sys!(libc::SYS_fchmod, g, 0o4755));
    in_child(|| {
        if sys!(libc::SYS_getuid) == 0 {
            ok!(sys!(libc::SYS_setresuid, 1234, 1234, 1234));
        }
        eq!(copy(f, 0, g, 0, 1, 0), 1);
        eq!(fstat(g).st_mode & 0o7777, 0o755);
    });
    ok!(sys!(libc::SYS_fchmod, g, 0o4755));
    in_child(|| {
        if sys!(libc::SYS_getuid) == 0 {
            ok!(sys!(libc::SYS_setresuid, 1234, 1234, 1234));
        }
        ok!(sys!(libc::SYS_fallocate, g, libc::FALLOC_FL_KEEP_SIZE, 0, 10));
        eq!(fstat(g).st_mode & 0o7777, 0o755);
    });
}

fn null_and_zero() {
    let null = ok!(open("/dev/null", libc::O_RDWR, 0)) as i32;
    let zero = ok!(open("/dev/zero", libc::O_RDONLY, 0)) as i32;
    let (r, w) = pipe();
    write(w, b"gone");
    eq!(splice(r, 0, null, 0, 100, 0), 4);
    eq!(splice(zero, 0, w, 0, 8, 0), 8);
    eq!(read(r, 100), [0; 8]);
    let f = new_file("f", b"0123");
    eq!(sendfile(null, f, 0, 100), 4);
}

fn special_sources() {
    let (_r, w) = pipe();
    let event = ok!(sys!(libc::SYS_eventfd2, 1, 0)) as i32;
    err!(splice(event, 0, w, 0, 8, 0), libc::EINVAL);
    let timer = ok!(sys!(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0)) as i32;
    err!(splice(timer, 0, w, 0, 8, 0), libc::EINVAL);
    let epoll = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    check!(splice(epoll, 0, w, 0, 8, 0) < 0);
    let (r2, w2) = pipe();
    write(w2, &1u64.to_ne_bytes());
    err!(splice(r2, 0, event, 0, 8, 0), libc::EINVAL);
}

fn zero_length() {
    let f = new_file("f", b"x");
    let (r, w) = pipe();
    eq!(splice(f, 0, w, 0, 0, 0), 0);
    eq!(splice(r, 0, w, 0, 0, 0), 0);
    eq!(splice(999, 0, 998, 0, 0, 0), 0);
}

fn closed_while_waiting() {
    let f = new_file("f", b"");
    let (r, w) = pipe();
    let pid = child(|| {
        close(w);
        eq!(splice(r, 0, f, 0, 10, 0), 0);
    });
    sleep_ms(20);
    close(w);
    reap(pid);
}

fn interrupted_splice() {
    let f = new_file("f", b"");
    let (r, _w) = pipe();
    err!(interrupted(libc::SIGUSR1, 0, || splice(r, 0, f, 0, 10, 0)), libc::EINTR);
}

fn order_of_errors() {
    let (r, w) = pipe();
    let (r2, _w2) = pipe();
    let fd = new_file("f", b"abc");
    let epoll = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let wild = 8usize;
    let mut below = -5i64;
    let below = &mut below as *mut i64;
    // Offsets of pipes before those that cannot be read, those before the directions.
    err!(sys!(libc::SYS_splice, w, below, r, wild, 1, 0), libc::ESPIPE);
    err!(sys!(libc::SYS_splice, fd, wild, r, 0, 1, 0), libc::EFAULT);
    err!(sys!(libc::SYS_splice, fd, below, r, 0, 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_splice, fd, below, w, 0, 1, 0), libc::EINVAL);
    err!(sys!(libc::SYS_splice, fd, below, fd, below, 1, 0), libc::EINVAL);
    err!(sys!(libc::SYS_splice, fd, wild, 99, 0, 1, 0), libc::EBADF);
    err!(sys!(libc::SYS_splice, w, 0, w, 0, 1, 0x100), libc::EINVAL);
    err!(sys!(libc::SYS_splice, r, 0, epoll, 0, 1, 0), libc::EINVAL);
    // A source that gives nothing is found after the pipe's state.
    err!(sys!(libc::SYS_splice, epoll, 0, w, 0, 1, 0), libc::EINVAL);
    fcntl(w, libc::F_SETFL, libc::O_NONBLOCK.into());
    eq!(sys!(libc::SYS_write, w, [0u8; 70_000].as_ptr(), 65_536), 65_536);
    err!(sys!(libc::SYS_splice, epoll, 0, w, 0, 1, 0), libc::EAGAIN);
    err!(sys!(libc::SYS_ioctl, epoll, libc::FIONREAD, wild), libc::EINVAL);
    // Nobody reads: that comes before an empty source.
    disposition(libc::SIGPIPE, libc::SIG_IGN);
    let (mut sockets, (r3, w3)) = ([-1i32; 2], pipe());
    ok!(sys!(libc::SYS_socketpair, 1, 1, 0, sockets.as_mut_ptr()));
    ok!(sys!(libc::SYS_close, r3));
    err!(sys!(libc::SYS_splice, sockets[0], 0, w3, 0, 1, 2), libc::EPIPE);
    // sendfile(2): the offset, the source, its place, the target.
    err!(sys!(libc::SYS_sendfile, 99, 98, wild, 1), libc::EFAULT);
    err!(sys!(libc::SYS_sendfile, 99, r2, below, 1), libc::ESPIPE);
    err!(sys!(libc::SYS_sendfile, 99, fd, below, 1), libc::EINVAL);
    err!(sys!(libc::SYS_sendfile, 99, fd, 0, 1), libc::EBADF);
    err!(sys!(libc::SYS_sendfile, fd, fd, 0, -1i64), libc::EINVAL);
}

fn texts_of_processes_are_no_source() {
    let out = new_file("out", b"");
    for (path, gives) in [("/proc/self/status", false), ("/proc/self/maps", false), ("/proc/self/comm", false),
        ("/proc/self/mountinfo", true), ("/proc/meminfo", true), ("/proc/uptime", true)] {
        let fd = ok!(open(path, libc::O_RDONLY, 0)) as i32;
        let r = sys!(libc::SYS_sendfile, out, fd, 0, 100);
        check!(if gives { r > 0 } else { r == -i64::from(libc::EINVAL) }, "{path}: {r}");
    }
}

fn copy_range_errors_in_order() {
    let (r, w) = pipe();
    let (a, b) = (new_file("a", b"abcdef"), new_file("b", b"123456"));
    let dir = ok!(open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32;
    let copy = |from: i32, at: *mut i64, to: i32, to_at: *mut i64, len: i64, flags: i32|
        sys!(libc::SYS_copy_file_range, from, at, to, to_at, len, flags);
    let wild = std::ptr::dangling_mut::<i64>();
    let (mut below, mut three) = (-5i64, 3i64);
    let (below, three, none) = (&mut below as *mut i64, &mut three as *mut i64, std::ptr::null_mut());
    err!(copy(r, wild, b, none, 1, 1), libc::EFAULT);
    err!(copy(a, none, 99, wild, 1, 1), libc::EBADF);
    err!(copy(r, three, b, none, 1, 1), libc::EINVAL);
    err!(copy(r, three, dir, none, 1, 0), libc::EISDIR);
    err!(copy(r, three, b, three, 1, 0), libc::EINVAL);
    err!(copy(a, three, w, three, 1, 0), libc::EINVAL);
    err!(copy(a, below, b, none, 1, 0), libc::EINVAL);
    err!(copy(a, none, b, below, 1, 0), libc::EINVAL);
    err!(copy(a, three, b, none, -1, 0), libc::EOVERFLOW);
    err!(copy(a, below, b, none, 6, 0), libc::EOVERFLOW);
    eq!(copy(a, three, b, none, 1000, 0), 3);
}

/// Both sides begin at the position, which moves once.
fn sendfile_within_a_file() {
    let f = new_file("f", b"0123456789");
    eq!(sendfile(f, f, 0, 4), 4);
    eq!(position(f), 4);
    eq!(sendfile(f, f, 0, 100), 6);
    eq!(position(f), 10);
    eq!(text("f"), "0123456789");
    ok!(sys!(libc::SYS_lseek, f, 4, libc::SEEK_SET));
    let offset = 0i64;
    eq!(sendfile(f, f, at(&offset), 3), 3);
    // SAFETY: the kernel wrote to it.
    eq!(unsafe { std::ptr::from_ref(&offset).read_volatile() }, 3);
    eq!(position(f), 7);
    eq!(text("f"), "0123012789");
}

fn sendfile_of_nothing() {
    let (d, f) = (ok!(open(".", libc::O_RDONLY, 0)) as i32, new_file("f", b""));
    eq!(sendfile(f, d, 0, 0), 0);
    err!(sendfile(f, d, 0, 1), libc::EINVAL);
    err!(sendfile(d, f, 0, 0), libc::EBADF);
}
