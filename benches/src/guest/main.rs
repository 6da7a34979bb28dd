//! The program that is measured: `bench-guest ROW` runs one row and prints `NAME NANOSECONDS` for each result.
//!
//! It makes its calls with the `syscall` instruction, preceded by a `nop`, so that no kernel can rewrite the site:
//! a call costs what a trapped call costs. Time is read through the vDSO.

mod files;
mod memory;
mod processes;
mod sys;

use std::time::{Duration, Instant};

use sys::{Arg, call};

/// How long one measurement goes on.
const BUDGET: Duration = Duration::from_millis(150);
/// How long one sample takes at least: long beside reading the clock.
const SAMPLE: Duration = Duration::from_micros(500);

type Row = fn() -> Vec<(&'static str, f64)>;

const ROWS: &[(&str, Row)] = &[
    ("getpid", || one("getpid", || call(libc::SYS_getpid, &[]))),
    ("getppid", || one("getppid", || call(libc::SYS_getppid, &[]))),
    ("getppid-parked", parked),
    ("getppid-busy", processes::busy),
    ("pread", files::pread),
    ("stat", files::stat),
    ("open-close", files::open_close),
    ("create-unlink", files::create_unlink),
    ("host-file", files::host_file),
    ("mmap-touch", memory::mmap_touch),
    ("mmap", memory::mmap),
    ("fault", memory::fault),
    ("brk", memory::brk),
    ("fork-small", || processes::fork("fork-small", 0)),
    ("fork-32m", || processes::fork("fork-32m", 32 << 20)),
    ("exec-static", || processes::exec("exec-static", c"./exit0")),
    ("exec-dynamic", || processes::exec("exec-dynamic", c"/bin/true")),
    ("pipe", processes::pipe),
    ("futex", processes::futex_row),
    ("compute", compute),
];

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, row)) = ROWS.iter().find(|(row, _)| *row == name) else {
        let names: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: bench-guest ROW, with ROW one of {}", names.join(", "));
        std::process::exit(2);
    };
    for (name, nanoseconds) in row() {
        println!("{name} {nanoseconds:.2}");
    }
}

/// Ends the program when a call failed that a row needs.
fn need(what: &str, result: i64) -> i64 {
    if result < 0 {
        eprintln!("{what}: {}", std::io::Error::from_raw_os_error(-result as i32));
        std::process::exit(1);
    }
    result
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds for one run of `work`: the median of samples of many runs each.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut runs = 1u32;
    loop {
        let start = Instant::now();
        (0..runs).for_each(|_| work());
        if start.elapsed() >= SAMPLE || runs >= 1 << 20 {
            break;
        }
        runs *= 2;
    }
    let begin = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < 5 || begin.elapsed() < BUDGET {
        let start = Instant::now();
        (0..runs).for_each(|_| work());
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(runs));
    }
    median(samples)
}

fn one(name: &'static str, mut work: impl FnMut() -> i64) -> Vec<(&'static str, f64)> {
    need(name, work());
    let nanoseconds = measure(|| {
        work();
    });
    vec![(name, nanoseconds)]
}

/// Some arithmetic that the compiler cannot leave out.
fn burn(rounds: u64) -> u64 {
    let mut value = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..rounds {
        value = (value ^ (value >> 29))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .wrapping_add(round);
    }
    std::hint::black_box(value)
}

fn burn_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        burn(1000);
    }
}

/// A call by a program that mostly computes: the sentry has stopped looking for its requests by then.
fn parked() -> Vec<(&'static str, f64)> {
    let mut samples = Vec::new();
    for _ in 0..40 {
        burn_for(Duration::from_millis(5));
        let start = Instant::now();
        call(libc::SYS_getppid, &[]);
        samples.push(start.elapsed().as_nanos() as f64);
    }
    vec![("getppid-parked", median(samples))]
}

fn compute() -> Vec<(&'static str, f64)> {
    let samples = (0..7).map(|_| {
        let start = Instant::now();
        burn(10_000_000);
        start.elapsed().as_nanos() as f64
    });
    vec![("compute", median(samples.collect()))]
}

/// A pointer as an argument.
fn at<T: ?Sized>(pointer: *const T) -> u64 {
    pointer.raw()
}
