//! Rows about memory.

use std::time::Instant;

use crate::sys::{call, touch};
use crate::{measure, median, need};

const PAGE: usize = 4096;

/// A private anonymous mapping, in small pages.
pub fn map(length: usize) -> u64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    need(
        "mmap",
        call(libc::SYS_mmap, &[0, length as u64, protection, flags, u64::MAX, 0]),
    ) as u64
}

fn unmap(address: u64, length: usize) {
    need("munmap", call(libc::SYS_munmap, &[address, length as u64]));
}

pub fn mmap_touch() -> Vec<(&'static str, f64)> {
    let nanoseconds = measure(|| {
        let address = map(16 * PAGE);
        touch(address, 16 * PAGE);
        unmap(address, 16 * PAGE);
    });
    vec![("mmap-touch", nanoseconds)]
}

pub fn mmap() -> Vec<(&'static str, f64)> {
    vec![("mmap", measure(|| unmap(map(PAGE), PAGE)))]
}

/// First touches of pages of one big mapping.
pub fn fault() -> Vec<(&'static str, f64)> {
    const PAGES: usize = 2048;
    let samples = (0..20).map(|_| {
        let address = map(PAGES * PAGE);
        small_pages(address, PAGES * PAGE);
        let start = Instant::now();
        touch(address, PAGES * PAGE);
        let nanoseconds = start.elapsed().as_nanos() as f64 / PAGES as f64;
        unmap(address, PAGES * PAGE);
        nanoseconds
    });
    vec![("fault", median(samples.collect()))]
}

/// Not every kernel knows huge pages, so an error is no matter.
pub fn small_pages(address: u64, length: usize) {
    call(
        libc::SYS_madvise,
        &[address, length as u64, libc::MADV_NOHUGEPAGE as u64],
    );
}

/// The heap grows by a page, which is touched, and shrinks.
pub fn brk() -> Vec<(&'static str, f64)> {
    let set = |end: u64| call(libc::SYS_brk, &[end]) as u64;
    let base = (set(0) + PAGE as u64 - 1) & !(PAGE as u64 - 1);
    let old = set(0);
    let nanoseconds = measure(|| {
        if set(base + PAGE as u64) != base + PAGE as u64 {
            need("brk", -i64::from(libc::ENOMEM));
        }
        touch(base, PAGE);
        set(base);
    });
    set(old);
    vec![("brk", nanoseconds)]
}
