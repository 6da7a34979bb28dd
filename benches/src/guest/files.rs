//! Rows about files, in the current directory as the harness has laid it out.

use std::ffi::CString;
use std::time::{Duration, Instant};

use crate::sys::call;
use crate::{at, measure, median, need};

const DATA: &std::ffi::CStr = c"data";
/// How many files the harness puts into `files/`: fewer than the descriptors that the sentry keeps.
const FILES: usize = 100;

fn open(path: &std::ffi::CStr, flags: i32) -> u64 {
    let directory = i64::from(libc::AT_FDCWD) as u64;
    need(
        "open",
        call(libc::SYS_openat, &[directory, at(path.as_ptr()), flags as u64, 0o644]),
    ) as u64
}

fn close(fd: u64) {
    need("close", call(libc::SYS_close, &[fd]));
}

pub fn pread() -> Vec<(&'static str, f64)> {
    let fd = open(DATA, libc::O_RDONLY);
    let mut buffer = vec![0u8; 64 << 10];
    let mut row = |name, length: u64| {
        let address = at(buffer.as_mut_ptr().cast_const());
        let read = || call(libc::SYS_pread64, &[fd, address, length, 0]);
        if need("pread", read()) as u64 != length {
            need("pread", -i64::from(libc::EIO));
        }
        (
            name,
            measure(|| {
                read();
            }),
        )
    };
    vec![row("pread-1", 1), row("pread-4k", 4 << 10), row("pread-64k", 64 << 10)]
}

pub fn stat() -> Vec<(&'static str, f64)> {
    let mut buffer = [0u64; 32];
    let address = at(buffer.as_mut_ptr().cast_const());
    let stat = || need("stat", call(libc::SYS_stat, &[at(DATA.as_ptr()), address]));
    stat();
    vec![(
        "stat",
        measure(|| {
            stat();
        }),
    )]
}

pub fn open_close() -> Vec<(&'static str, f64)> {
    close(open(DATA, libc::O_RDONLY));
    vec![("open-close", measure(|| close(open(DATA, libc::O_RDONLY))))]
}

/// Makes files of 4 KiB and removes them again, in turn.
pub fn create_unlink() -> Vec<(&'static str, f64)> {
    let data = vec![7u8; 4096];
    let begin = Instant::now();
    let (mut creates, mut unlinks) = (Vec::new(), Vec::new());
    for number in 0.. {
        if creates.len() >= 20 && begin.elapsed() > Duration::from_millis(150) {
            break;
        }
        let name = CString::new(format!("new-{}", number % 64)).unwrap_or_default();
        let start = Instant::now();
        let fd = open(&name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL);
        need(
            "write",
            call(libc::SYS_write, &[fd, at(data.as_ptr()), data.len() as u64]),
        );
        close(fd);
        creates.push(start.elapsed().as_nanos() as f64);
        let start = Instant::now();
        need("unlink", call(libc::SYS_unlink, &[at(name.as_ptr())]));
        unlinks.push(start.elapsed().as_nanos() as f64);
    }
    vec![("create", median(creates)), ("unlink", median(unlinks))]
}

/// Opens, reads and closes files that nobody has touched, then the same files again.
pub fn host_file() -> Vec<(&'static str, f64)> {
    let names: Vec<_> = (0..FILES)
        .filter_map(|number| CString::new(format!("files/f{number:03}")).ok())
        .collect();
    let mut buffer = vec![0u8; 4096];
    let address = at(buffer.as_mut_ptr().cast_const());
    let pass = || {
        let samples = names.iter().map(|name| {
            let start = Instant::now();
            let fd = open(name, libc::O_RDONLY);
            need("read", call(libc::SYS_read, &[fd, address, 4096]));
            close(fd);
            start.elapsed().as_nanos() as f64
        });
        median(samples.collect())
    };
    let first = pass();
    vec![("host-file-first", first), ("host-file-again", pass())]
}
