//! mmap(2) and its relatives.

use std::sync::atomic::Ordering;

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("mm": anonymous_is_zero, mmap_errors, fixed_and_noreplace, private_file, shared_file, shared_file_between_processes,
    mmap_access_modes, mapping_outlives_descriptor, offset_and_tail, munmap_makes_holes, mprotect_enforces, mprotect_errors,
    mremap_grows_and_moves, mremap_errors, mremap_fixed, brk_moves, madvise_dontneed, madvise_errors, shared_anonymous,
    msync_calls, mincore_calls, mlock_calls, large_sparse, many_mappings, exec_memory, truncated_under_mapping,
    memfd, maps_file_agrees, stack_grows, fork_keeps_layout, write_to_shared_is_read, pread_into_mapping,
    read_only_mapping_follows, part_of_a_large_file, maps_after_half_a_protect, maps_after_moves, maps_after_failed_moves,
    write_only_memory_is_read, sync_of_locked);

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn mmap(addr: u64, len: usize, prot: i32, flags: i32, fd: i32, offset: u64) -> i64 {
    sys!(libc::SYS_mmap, addr, len, prot, flags, fd, offset)
}

fn peek(at: i64) -> u8 {
    // SAFETY: mapped by the case.
    unsafe { (at as *const u8).read_volatile() }
}

fn poke(at: i64, value: u8) {
    // SAFETY: mapped by the case.
    unsafe { (at as *mut u8).write_volatile(value) }
}

/// True if touching the address faults (tried in a child).
fn faults(at: i64, write: bool) -> bool {
    let pid = child(|| if write { poke(at, 1) } else { std::hint::black_box(peek(at)); });
    let status = wait(pid);
    check!(status == 0 || matches!(libc::WTERMSIG(status), libc::SIGSEGV | libc::SIGBUS), "{status:#x}");
    status != 0
}

fn anonymous_is_zero() {
    let p = map(64 * PAGE, RW) as i64;
    eq!(p as usize % PAGE, 0);
    check!((0..64).all(|i| peek(p + i * 4096 + i) == 0));
    (0..64).for_each(|i| poke(p + i * 4096, i as u8));
    check!((0..64).all(|i| peek(p + i * 4096) == i as u8));
    ok!(sys!(libc::SYS_munmap, p, 64 * PAGE));
    check!(faults(p, false));
}

fn mmap_errors() {
    let anon = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    err!(mmap(0, 0, RW, anon, -1, 0), libc::EINVAL);
    err!(mmap(0, PAGE, RW, libc::MAP_ANONYMOUS, -1, 0), libc::EINVAL);
    err!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, -1, 0), libc::EBADF);
    err!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, 999, 0), libc::EBADF);
    err!(mmap(0, 1 << 47, RW, anon, -1, 0), libc::ENOMEM);
    err!(mmap(1, PAGE, RW, anon | libc::MAP_FIXED, -1, 0), libc::EINVAL);
    err!(mmap(1 << 47, PAGE, RW, anon | libc::MAP_FIXED, -1, 0), libc::ENOMEM);
    let fd = new_file("f", b"x");
    err!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 1), libc::EINVAL);
    let (r, _w) = pipe();
    err!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, r, 0), libc::ENODEV);
    let dir = ok!(open(".", libc::O_RDONLY, 0)) as i32;
    err!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, dir, 0), libc::ENODEV);
}

fn fixed_and_noreplace() {
    let anon = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let p = map(4 * PAGE, RW) as i64;
    poke(p, 1);
    poke(p + 4096, 2);
    // MAP_FIXED replaces.
    eq!(mmap(p as u64 + 4096, PAGE, RW, anon | libc::MAP_FIXED, -1, 0), p + 4096);
    eq!((peek(p), peek(p + 4096)), (1, 0));
    err!(mmap(p as u64, PAGE, RW, anon | libc::MAP_FIXED_NOREPLACE, -1, 0), libc::EEXIST);
    ok!(sys!(libc::SYS_munmap, p, PAGE));
    eq!(mmap(p as u64, PAGE, RW, anon | libc::MAP_FIXED_NOREPLACE, -1, 0), p);
    // A hint is followed where it is free.
    ok!(sys!(libc::SYS_munmap, p, 4 * PAGE));
    eq!(mmap(p as u64, PAGE, RW, anon, -1, 0), p);
    check!(mmap(p as u64, PAGE, RW, anon, -1, 0) != p);
}

fn private_file() {
    let fd = new_file("f", &[b'a'; 2 * PAGE]);
    let p = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_PRIVATE, fd, 0));
    eq!(peek(p), b'a');
    poke(p, b'b');
    eq!(slurp("f")[0], b'a');
    eq!(peek(p + 1), b'a');
}

fn shared_file() {
    let fd = new_file("f", &[b'a'; 2 * PAGE]);
    let p = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_SHARED, fd, 0));
    poke(p + 4096, b'c');
    eq!(slurp("f")[4096], b'c');
    ok!(sys!(libc::SYS_pwrite64, fd, b"zz".as_ptr(), 2, 10));
    eq!((peek(p + 10), peek(p + 11), peek(p + 12)), (b'z', b'z', b'a'));
    // Through another open of the same file, too.
    let other = ok!(open("f", libc::O_WRONLY, 0)) as i32;
    write(other, b"Q");
    eq!(peek(p), b'Q');
    ok!(sys!(libc::SYS_munmap, p, 2 * PAGE));
    eq!(slurp("f")[4096], b'c');
}

fn shared_file_between_processes() {
    file("f", &[0; PAGE]);
    in_child(|| {
        let fd = ok!(open("f", libc::O_RDWR, 0)) as i32;
        let p = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        poke(p + 7, 77);
    });
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let p = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
    eq!(peek(p + 7), 77);
}

fn mmap_access_modes() {
    file("f", &[0; PAGE]);
    let ro = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let wo = ok!(open("f", libc::O_WRONLY, 0)) as i32;
    err!(mmap(0, PAGE, RW, libc::MAP_SHARED, ro, 0), libc::EACCES);
    err!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, wo, 0), libc::EACCES);
    let p = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, ro, 0));
    err!(sys!(libc::SYS_mprotect, p, PAGE, RW), libc::EACCES);
    let p = ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, ro, 0));
    poke(p, 1);
    let path = ok!(open("f", libc::O_PATH, 0)) as i32;
    err!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, path, 0), libc::EBADF);
}

fn mapping_outlives_descriptor() {
    let fd = new_file("f", b"hello");
    let p = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
    close(fd);
    ok!(unlink("f"));
    eq!(peek(p + 4), b'o');
}

fn offset_and_tail() {
    let mut data = vec![1u8; PAGE];
    data.extend(vec![2u8; 100]);
    let fd = new_file("f", &data);
    let p = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, PAGE as u64));
    eq!((peek(p), peek(p + 99), peek(p + 100), peek(p + 4095)), (2, 2, 0, 0));
}

fn munmap_makes_holes() {
    let p = map(5 * PAGE, RW) as i64;
    poke(p + 4096, 5);
    ok!(sys!(libc::SYS_munmap, p + 2 * 4096, PAGE));
    check!(faults(p + 2 * 4096, false));
    eq!(peek(p + 4096), 5);
    check!(!faults(p + 3 * 4096, true));
    ok!(sys!(libc::SYS_munmap, p, 5 * PAGE));
    ok!(sys!(libc::SYS_munmap, p, 5 * PAGE));
    err!(sys!(libc::SYS_munmap, p + 1, PAGE), libc::EINVAL);
    err!(sys!(libc::SYS_munmap, p, 0), libc::EINVAL);
    err!(sys!(libc::SYS_munmap, p, 1u64 << 63), libc::EINVAL);
}

fn mprotect_enforces() {
    let p = map(3 * PAGE, RW) as i64;
    poke(p, 9);
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ));
    check!(!faults(p, false) && faults(p, true));
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_NONE));
    check!(faults(p, false));
    ok!(sys!(libc::SYS_mprotect, p, 3 * PAGE, RW));
    eq!(peek(p), 9);
    // A kernel access obeys it as well.
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ));
    let fd = new_file("f", b"data");
    err!(sys!(libc::SYS_read, fd, p, 4), libc::EFAULT);
    eq!(sys!(libc::SYS_write, fd, p, 4), 4);
}

fn mprotect_errors() {
    let p = map(3 * PAGE, RW) as i64;
    err!(sys!(libc::SYS_mprotect, p + 1, PAGE, RW), libc::EINVAL);
    ok!(sys!(libc::SYS_mprotect, p, 0, RW));
    ok!(sys!(libc::SYS_munmap, p + 4096, PAGE));
    err!(sys!(libc::SYS_mprotect, p, 3 * PAGE, libc::PROT_READ), libc::ENOMEM);
    err!(sys!(libc::SYS_mprotect, p, PAGE, 0x100), libc::EINVAL);
}

fn mremap(p: i64, old: usize, new: usize, flags: i32, to: i64) -> i64 {
    sys!(libc::SYS_mremap, p, old, new, flags, to)
}

fn mremap_grows_and_moves() {
    let p = map(4 * PAGE, RW) as i64;
    poke(p, 1);
    poke(p + 4096, 2);
    // Shrinks in place.
    eq!(mremap(p, 4 * PAGE, 2 * PAGE, 0, 0), p);
    check!(faults(p + 2 * 4096, false));
    // Something behind it: cannot grow in place.
    let anon = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    ok!(mmap(p as u64 + 2 * 4096, PAGE, RW, anon, -1, 0));
    err!(mremap(p, 2 * PAGE, 8 * PAGE, 0, 0), libc::ENOMEM);
    let q = ok!(mremap(p, 2 * PAGE, 8 * PAGE, libc::MREMAP_MAYMOVE, 0));
    check!(q != p);
    eq!((peek(q), peek(q + 4096), peek(q + 7 * 4096)), (1, 2, 0));
    check!(faults(p, false));
}

fn mremap_errors() {
    let p = map(2 * PAGE, RW) as i64;
    err!(mremap(p + 1, PAGE, PAGE, 0, 0), libc::EINVAL);
    err!(mremap(p, PAGE, 0, 0, 0), libc::EINVAL);
    err!(mremap(p, PAGE, PAGE, 0x80, 0), libc::EINVAL);
    err!(mremap(p, PAGE, PAGE, libc::MREMAP_FIXED, p + 4096), libc::EINVAL);
    ok!(sys!(libc::SYS_munmap, p, 2 * PAGE));
    err!(mremap(p, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE, 0), libc::EFAULT);
}

fn mremap_fixed() {
    let p = map(2 * PAGE, RW) as i64;
    let q = map(2 * PAGE, RW) as i64;
    poke(p, 3);
    poke(q, 4);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    eq!(mremap(p, 2 * PAGE, 2 * PAGE, flags, q), q);
    eq!(peek(q), 3);
    check!(faults(p, false));
    err!(mremap(q, 2 * PAGE, 2 * PAGE, flags, q + 4096), libc::EINVAL);
}

fn brk_moves() {
    let start = sys!(libc::SYS_brk, 0);
    check!(start > 0);
    let end = start + 10 * 4096 + 5;
    eq!(sys!(libc::SYS_brk, end), end);
    poke(start + 4096, 1);
    poke(end - 1, 2);
    in_child(|| {
        eq!(sys!(libc::SYS_brk, 0), end);
        eq!(peek(end - 1), 2);
    });
    eq!(sys!(libc::SYS_brk, start), start);
    check!(faults(start + 5 * 4096, false));
    // Grown again it is zero; absurd values change nothing.
    eq!(sys!(libc::SYS_brk, end), end);
    eq!(peek(start + 2 * 4096), 0);
    eq!(sys!(libc::SYS_brk, 1), end);
    eq!(sys!(libc::SYS_brk, 1u64 << 62), end);
}

fn madvise_dontneed() {
    let p = map(2 * PAGE, RW) as i64;
    poke(p, 1);
    ok!(sys!(libc::SYS_madvise, p, PAGE, libc::MADV_DONTNEED));
    eq!(peek(p), 0);
    // A private file mapping shows the file again.
    let fd = new_file("f", b"a");
    let m = ok!(mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
    poke(m, b'b');
    ok!(sys!(libc::SYS_madvise, m, PAGE, libc::MADV_DONTNEED));
    eq!(peek(m), b'a');
    for advice in [libc::MADV_NORMAL, libc::MADV_RANDOM, libc::MADV_SEQUENTIAL, libc::MADV_WILLNEED, libc::MADV_FREE] {
        ok!(sys!(libc::SYS_madvise, p, PAGE, advice));
    }
}

fn madvise_errors() {
    let p = map(3 * PAGE, RW) as i64;
    err!(sys!(libc::SYS_madvise, p + 1, PAGE, libc::MADV_DONTNEED), libc::EINVAL);
    err!(sys!(libc::SYS_madvise, p, PAGE, 12345), libc::EINVAL);
    ok!(sys!(libc::SYS_munmap, p + 4096, PAGE));
    err!(sys!(libc::SYS_madvise, p, 3 * PAGE, libc::MADV_DONTNEED), libc::ENOMEM);
}

fn shared_anonymous() {
    let words = shared_words();
    in_child(|| words[5].store(55, Ordering::SeqCst));
    eq!(words[5].load(Ordering::SeqCst), 55);
    // A private mapping made by the parent is copied, at the same place.
    let p = map(PAGE, RW) as i64;
    poke(p, 1);
    in_child(|| {
        eq!(peek(p), 1);
        poke(p, 2);
    });
    eq!(peek(p), 1);
}

fn msync_calls() {
    let fd = new_file("f", &[0; PAGE]);
    let p = ok!(mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
    poke(p, 5);
    ok!(sys!(libc::SYS_msync, p, PAGE, libc::MS_SYNC));
    ok!(sys!(libc::SYS_msync, p, PAGE, libc::MS_ASYNC));
    err!(sys!(libc::SYS_msync, p, PAGE, libc::MS_SYNC | libc::MS_ASYNC), libc::EINVAL);
    err!(sys!(libc::SYS_msync, p + 1, PAGE, libc::MS_SYNC), libc::EINVAL);
    err!(sys!(libc::SYS_msync, p, PAGE, 0x80), libc::EINVAL);
    ok!(sys!(libc::SYS_munmap, p, PAGE));
    err!(sys!(libc::SYS_msync, p, PAGE, libc::MS_SYNC), libc::ENOMEM);
}

fn mincore_calls() {
    let p = map(2 * PAGE, RW) as i64;
    poke(p, 1);
    let mut vec = [0u8; 2];
    ok!(sys!(libc::SYS_mincore, p, 2 * PAGE, vec.as_mut_ptr()));
    eq!(vec[0] & 1, 1);
    err!(sys!(libc::SYS_mincore, p + 1, PAGE, vec.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_mincore, p, PAGE, BAD), libc::EFAULT);
    ok!(sys!(libc::SYS_munmap, p, PAGE));
    err!(sys!(libc::SYS_mincore, p, PAGE, vec.as_mut_ptr()), libc::ENOMEM);
}

fn mlock_calls() {
    let p = map(2 * PAGE, RW) as i64;
    ok!(sys!(libc::SYS_mlock, p, PAGE));
    ok!(sys!(libc::SYS_munlock, p, PAGE));
    ok!(sys!(libc::SYS_munmap, p, 2 * PAGE));
    err!(sys!(libc::SYS_mlock, p, PAGE), libc::ENOMEM);
    err!(sys!(libc::SYS_mlockall, 0x80), libc::EINVAL);
}

fn large_sparse() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = 64usize << 30;
    let p = ok!(mmap(0, len, RW, flags, -1, 0));
    for i in 0..64i64 {
        poke(p + (i << 30) + 123, i as u8);
    }
    check!((0..64i64).all(|i| peek(p + (i << 30) + 123) == i as u8));
    ok!(sys!(libc::SYS_munmap, p, len));
}

fn many_mappings() {
    let base = map(4000 * PAGE, RW) as i64;
    for i in (0..4000i64).step_by(2) {
        ok!(sys!(libc::SYS_mprotect, base + i * 4096, PAGE, libc::PROT_READ));
    }
    poke(base + 4096, 1);
    check!(faults(base + 2 * 4096, true));
    ok!(sys!(libc::SYS_munmap, base, 4000 * PAGE));
}

fn exec_memory() {
    let p = map(PAGE, RW);
    let code = [0xb8u8, 42, 0, 0, 0, 0xc3]; // mov eax, 42; ret
    // SAFETY: the page is ours.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), p, code.len()) };
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ | libc::PROT_EXEC));
    // SAFETY: the code above.
    let f: extern "C" fn() -> i32 = unsafe { std::mem::transmute(p) };
    eq!(f(), 42);
    // A system call from generated code, made writable and changed meanwhile.
    ok!(sys!(libc::SYS_mprotect, p, PAGE, RW | libc::PROT_EXEC));
    let code = [0xb8u8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]; // mov eax, getpid; syscall; ret
    // SAFETY: the page is ours.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), p, code.len()) };
    let f: extern "C" fn() -> i32 = f;
    for _ in 0..100 {
        // SAFETY: as above; rcx and r11 are caller-saved.
        let pid: i32 = f();
        eq!(pid, getpid());
    }
}

fn truncated_under_mapping() {
    let fd = new_file("f", &[7; 3 * PAGE]);
    let p = ok!(mmap(0, 3 * PAGE, RW, libc::MAP_SHARED, fd, 0));
    ok!(sys!(libc::SYS_ftruncate, fd, 100));
    eq!((peek(p + 99), peek(p + 100)), (7, 0));
    check!(faults(p + 4096, false));
    // A call that reads from there fails and does not kill.
    let out = new_file("out", b"");
    err!(sys!(libc::SYS_write, out, p + 4096, 10), libc::EFAULT);
    ok!(sys!(libc::SYS_ftruncate, fd, 3 * PAGE));
    eq!(peek(p + 4096), 0);
}

fn memfd() {
    let fd = ok!(sys!(libc::SYS_memfd_create, c("name").as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)) as i32;
    ok!(sys!(libc::SYS_ftruncate, fd, 2 * PAGE));
    let p = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_SHARED, fd, 0));
    poke(p + 10, 9);
    let mut b = [0u8; 1];
    eq!(sys!(libc::SYS_pread64, fd, b.as_mut_ptr(), 1, 10), 1);
    eq!(b[0], 9);
    err!(sys!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE), libc::EBUSY);
    ok!(sys!(libc::SYS_munmap, p, 2 * PAGE));
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK));
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GET_SEALS), i64::from(libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK));
    err!(write(fd, b"x"), libc::EPERM);
    err!(sys!(libc::SYS_ftruncate, fd, 0), libc::EPERM);
    err!(sys!(libc::SYS_memfd_create, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_memfd_create, c("n").as_ptr(), 0x8000), libc::EINVAL);
}

fn maps_file_agrees() {
    let p = map(3 * PAGE, libc::PROT_READ) as u64;
    ok!(sys!(libc::SYS_mprotect, p + 4096, PAGE, RW));
    let fd = new_file("mapped-file", &[0; PAGE]);
    let m = ok!(mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
    let maps = text("/proc/self/maps");
    check!(maps.contains(&format!("{:x}-{:x} rw-p", p + 4096, p + 8192)), "{maps}");
    let line = maps.lines().find(|l| l.starts_with(&format!("{m:x}-"))).unwrap_or("");
    check!(line.contains(" r--s ") && line.ends_with("/mapped-file"), "{line}");
    check!(maps.contains("[stack]") && maps.contains("[heap]"), "{maps}");
    check!(maps.lines().any(|l| l.ends_with("/guest") && l.contains(" r-xp ")), "{maps}");
}

fn stack_grows() {
    fn deep(n: u32) -> u32 {
        let pad = [n as u8; 16 * 1024];
        if n == 0 { 0 } else { u32::from(std::hint::black_box(&pad)[5] & 1) + deep(n - 1) }
    }
    // 6 MiB of the main thread's 8.
    check!(deep(384) > 0);
}

fn fork_keeps_layout() {
    let p = map(10 * PAGE, RW) as i64;
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ));
    ok!(sys!(libc::SYS_munmap, p + 5 * 4096, PAGE));
    in_child(|| {
        check!(faults(p, true) && faults(p + 5 * 4096, false) && !faults(p + 6 * 4096, true));
        ok!(sys!(libc::SYS_mprotect, p, PAGE, RW));
        poke(p, 1);
    });
    check!(faults(p, true));
}

fn write_to_shared_is_read() {
    // A large write into a mapped file shows in the mapping at once, and the other way round.
    let fd = new_file("f", &vec![0; 1 << 20]);
    let p = ok!(mmap(0, 1 << 20, RW, libc::MAP_SHARED, fd, 0));
    let data: Vec<u8> = (0..1u32 << 20).map(|i| ((i * 7) >> 3) as u8).collect();
    eq!(sys!(libc::SYS_pwrite64, fd, data.as_ptr(), data.len(), 0), data.len() as i64);
    // SAFETY: the mapping.
    let view = unsafe { std::slice::from_raw_parts(p as *const u8, 1 << 20) };
    check!(view == data.as_slice());
}

fn read_only_mapping_follows() {
    // What others write shows in a mapping by a descriptor for reading, which stays one for reading.
    for size in [PAGE, 3 << 20] {
        let fd = new_file("f", &vec![1; size]);
        let look = || {
            let ro = ok!(open("f", libc::O_RDONLY, 0)) as i32;
            let p = ok!(mmap(0, size, libc::PROT_READ, libc::MAP_SHARED, ro, 0));
            let private = ok!(mmap(0, size, RW, libc::MAP_PRIVATE, ro, 0));
            close(ro);
            poke(private, 9);
            eq!((peek(p), peek(p + size as i64 - 1), peek(private + 3)), (1, 1, 1));
            p
        };
        let p = look();
        eq!(sys!(libc::SYS_pwrite64, fd, b"abc".as_ptr(), 3, 0), 3);
        eq!((peek(p), peek(p + 2), peek(p + 3)), (b'a', b'c', 1));
        let writable = ok!(mmap(0, size, RW, libc::MAP_SHARED, fd, 0));
        poke(writable + 5, 7);
        eq!(peek(p + 5), 7);
        err!(sys!(libc::SYS_mprotect, p, PAGE, RW), libc::EACCES);
        check!(faults(p, true));
        // The same for whoever could not open it for writing.
        ok!(sys!(libc::SYS_pwrite64, fd, b"\x01".as_ptr(), 1, 0));
        let pid = child(|| {
            if is_root() {
                ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o644));
                ok!(sys!(libc::SYS_chmod, c(".").as_ptr(), 0o755));
                ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
                err!(open("f", libc::O_RDWR, 0), libc::EACCES);
            }
            let p = look();
            ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ));
            err!(sys!(libc::SYS_mprotect, p, PAGE, RW), libc::EACCES);
            poke(writable, 8);
            eq!(peek(p), 8);
        });
        eq!(wait(pid), 0);
        eq!(peek(p), 8);
    }
}

fn pread_into_mapping() {
    // Reading a file into a mapping of the same file.
    let fd = new_file("f", &[1; 2 * PAGE]);
    ok!(sys!(libc::SYS_pwrite64, fd, b"head".as_ptr(), 4, 0));
    let p = ok!(mmap(0, 2 * PAGE, RW, libc::MAP_SHARED, fd, 0));
    eq!(sys!(libc::SYS_pread64, fd, p + 4096, 100, 0), 100);
    eq!(slurp("f")[4096..4100].to_vec(), b"head".to_vec());
}

fn part_of_a_large_file() {
    const SIZE: i64 = 0x1_8000_0000;
    let fd = new_file("large", b"start");
    ok!(sys!(libc::SYS_ftruncate, fd, SIZE));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let p = ok!(sys!(libc::SYS_mmap, 0, 16 * PAGE, prot, libc::MAP_SHARED, fd, 0x1_4000_0000i64)) as *mut u8;
    // SAFETY: within the mapping, which is within the file.
    unsafe { p.add(PAGE + 1).write_volatile(b'X') };
    let mut buf = [0u8; 3];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 3, 0x1_4000_0000i64 + PAGE as i64), 3);
    eq!(&buf, b"\0X\0");
    check!(fstat(fd).st_blocks < 1024, "{} blocks", fstat(fd).st_blocks);
    // The whole of it, for reading.
    let all = ok!(sys!(libc::SYS_mmap, 0, SIZE, libc::PROT_READ, libc::MAP_SHARED, fd, 0)) as *const u8;
    // SAFETY: as above.
    let (first, changed, last) = unsafe { (*all, *all.add(0x1_4000_0000 + PAGE + 1), *all.add(SIZE as usize - 1)) };
    eq!((first, changed, last), (b's', b'X', 0));
    ok!(sys!(libc::SYS_munmap, all, SIZE));
    ok!(sys!(libc::SYS_munmap, p, 16 * PAGE));
    check!(fstat(fd).st_blocks < 1024, "{} blocks", fstat(fd).st_blocks);
}

/// What `/proc/self/maps` shows of `pages` pages from `base` on: for each its protection.
fn shown(base: i64, pages: usize) -> String {
    let mut out = vec!["."; pages];
    let maps = text("/proc/self/maps");
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        for (page, out) in out.iter_mut().enumerate() {
            let at = base as u64 + page as u64 * 4096;
            if hex(from) <= at && at < hex(to) {
                *out = match &rest[..3] {
                    "rw-" => "w",
                    "r--" => "r",
                    "---" => "-",
                    _ => "x",
                };
            }
        }
    }
    out.concat()
}

/// Ten pages with a hole at the sixth, in a reserved place of twenty.
fn with_hole() -> i64 {
    let p = map(20 * PAGE, RW) as i64;
    ok!(sys!(libc::SYS_munmap, p + 5 * 4096, PAGE));
    ok!(sys!(libc::SYS_munmap, p + 10 * 4096, 10 * PAGE));
    eq!(shown(p, 20), "wwwww.wwww..........");
    p
}

fn maps_after_half_a_protect() {
    let p = with_hole();
    err!(sys!(libc::SYS_mprotect, p + 3 * 4096, 5 * PAGE, libc::PROT_READ), libc::ENOMEM);
    eq!(shown(p, 20), "wwwrr.wwww..........");
    check!(faults(p + 3 * 4096, true) && !faults(p + 6 * 4096, true));
    err!(sys!(libc::SYS_mprotect, p + 5 * 4096, 2 * PAGE, libc::PROT_READ), libc::ENOMEM);
    err!(sys!(libc::SYS_mprotect, p + 8 * 4096, 4 * PAGE, libc::PROT_NONE), libc::ENOMEM);
    eq!(shown(p, 20), "wwwrr.ww--..........");
    // A file that is not open for writing: what comes before it is changed.
    new_file("f", &[1; 8192]);
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    ok!(mmap(p as u64 + 4096, 2 * PAGE, libc::PROT_READ, flags, fd, 0));
    ok!(sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_NONE));
    err!(sys!(libc::SYS_mprotect, p, 5 * PAGE, RW), libc::EACCES);
    eq!(shown(p, 20), "wrrrr.ww--..........");
}

fn maps_after_moves() {
    let (fixed, p) = (libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE, map(20 * PAGE, RW) as i64);
    ok!(sys!(libc::SYS_munmap, p + 10 * 4096, 10 * PAGE));
    // Shrunk over several regions.
    ok!(sys!(libc::SYS_mprotect, p + 4096, PAGE, libc::PROT_READ));
    ok!(sys!(libc::SYS_mprotect, p + 3 * 4096, PAGE, libc::PROT_NONE));
    eq!(mremap(p, 5 * PAGE, 3 * PAGE, 0, 0), p);
    eq!(shown(p, 20), "wrw..wwwww..........");
    // Shrunk and moved.
    ok!(sys!(libc::SYS_mprotect, p + 8 * 4096, PAGE, libc::PROT_READ));
    eq!(mremap(p + 5 * 4096, 5 * PAGE, 2 * PAGE, fixed, p + 12 * 4096), p + 12 * 4096);
    eq!(shown(p, 20), "wrw.........ww......");
    // Grown over what is there.
    eq!(mremap(p + 12 * 4096, 2 * PAGE, 4 * PAGE, fixed, p + 4096), p + 4096);
    eq!(shown(p, 20), "wwwww...............");
    // Several regions, where Linux moves them (6.17 and later) or has unmapped the target.
    ok!(sys!(libc::SYS_mprotect, p + 4096, PAGE, libc::PROT_READ));
    ok!(sys!(libc::SYS_munmap, p + 3 * 4096, PAGE));
    ok!(mmap(p as u64 + 10 * 4096, 7 * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1, 0));
    let r = mremap(p, 5 * PAGE, 5 * PAGE, fixed, p + 11 * 4096);
    if r < 0 {
        eq!(r, -i64::from(libc::EFAULT));
        eq!(shown(p, 20), "wrw.w.....-.....-...");
    } else {
        eq!(shown(p, 20), "..........-wrw-w-...");
        check!(!faults(p + 13 * 4096, true) && faults(p + 12 * 4096, true));
    }
}

fn maps_after_failed_moves() {
    let fixed = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
    let p = with_hole();
    // From a hole, and growing over a region's end: what has become of the target is the kernel's secret.
    for (from, old, new) in [(5, 1, 1), (8, 4, 6), (12, 3, 2), (3, 3, 2), (4, 2, 4), (7, 9, 5)] {
        let q = map(8 * PAGE, libc::PROT_READ) as i64;
        let r = mremap(p + from * 4096, old * PAGE, new * PAGE, fixed, q + 4096);
        check_shown(p, 20);
        check_shown(q, 8);
        if r >= 0 {
            eq!(mremap(q + 4096, new * PAGE, new * PAGE, fixed, p + from * 4096), p + from * 4096);
            check_shown(p, 20);
        }
        sys!(libc::SYS_munmap, q, 8 * PAGE);
    }
}

/// Compares which pages are shown with which are there, as madvise(2) tells.
fn check_shown(base: i64, pages: usize) {
    let shown = shown(base, pages);
    for (page, shown) in shown.bytes().enumerate() {
        let there = sys!(libc::SYS_madvise, base + page as i64 * 4096, PAGE, libc::MADV_NORMAL) == 0;
        check!(there == (shown != b'.'), "page {page}");
    }
}

/// x86 has no pages that can be written but not read, so that calls read from them too.
fn write_only_memory_is_read() {
    let pages = 40;
    let p = map((pages + 1) * PAGE, libc::PROT_WRITE) as i64;
    ok!(sys!(libc::SYS_munmap, p + (pages * PAGE) as i64, PAGE));
    for page in 0..pages {
        poke(p + (page * PAGE) as i64, page as u8 + 1);
    }
    let f = new_file("f", b"");
    eq!(sys!(libc::SYS_write, f, p, pages * PAGE), (pages * PAGE) as i64);
    let written = slurp("f");
    check!((0..pages).all(|page| written[page * PAGE] == page as u8 + 1));
    // Up to the hole behind it.
    eq!(sys!(libc::SYS_pwrite64, f, p + ((pages - 2) * PAGE) as i64, 3 * PAGE, 0), 2 * PAGE as i64);
    // A name and a structure.
    for (i, byte) in b"f\0".iter().enumerate() {
        poke(p + 100 + i as i64, *byte);
    }
    close(ok!(sys!(libc::SYS_open, p + 100, libc::O_RDONLY, 0)) as i32);
    for (at, word) in [(200, p as u64), (208, 64)] {
        for (i, byte) in word.to_ne_bytes().iter().enumerate() {
            poke(p + at + i as i64, *byte);
        }
    }
    eq!(sys!(libc::SYS_writev, f, p + 200, 1), 64);
    // Made so later, and of a file.
    let q = map(PAGE, RW) as i64;
    poke(q + 5, 7);
    ok!(sys!(libc::SYS_mprotect, q, PAGE, libc::PROT_WRITE));
    eq!(sys!(libc::SYS_pwrite64, f, q, PAGE, 0), PAGE as i64);
    eq!(slurp("f")[5], 7);
    let g = new_file("g", &[9; PAGE]);
    let shared = ok!(mmap(0, PAGE, libc::PROT_WRITE, libc::MAP_SHARED, g, 0));
    eq!(sys!(libc::SYS_pwrite64, f, shared, PAGE, 0), PAGE as i64);
    eq!(slurp("f")[..PAGE], [9; PAGE]);
}

fn sync_of_locked() {
    let p = map(4 * PAGE, RW) as i64;
    ok!(sys!(libc::SYS_munmap, p + 2 * 4096, PAGE));
    err!(sys!(libc::SYS_msync, p, 4 * PAGE, libc::MS_INVALIDATE), libc::ENOMEM);
    ok!(sys!(libc::SYS_mlock, p + 3 * 4096, PAGE));
    // Even behind a hole.
    err!(sys!(libc::SYS_msync, p, 4 * PAGE, libc::MS_INVALIDATE), libc::EBUSY);
    err!(sys!(libc::SYS_msync, p, 4 * PAGE, libc::MS_ASYNC), libc::ENOMEM);
}
