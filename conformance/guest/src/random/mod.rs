//! Random sequences of calls, the same for the same seed, whose every step prints what it did and what came of it.
//!
//! `guest random KIND SEED COUNT` runs COUNT sequences, each in a process and a directory of its own, and prints a
//! line for each: its own seed and a digest of what it printed. Where two platforms give different digests,
//! `guest random-steps KIND SEED STEPS` runs some steps of one sequence and shows what they print. What a step does
//! depends on the seed and its index alone, so that any subset of the steps is a sequence too.
//! Nothing that differs between runs is printed: addresses, process ids, times.

mod descriptors;
mod files;
mod memory;
mod signals;

use std::fmt::Write;

use crate::sys::*;
use crate::{ok, sys};

/// Steps of a sequence.
const STEPS: u64 = 40;
/// Where the child writes what it prints; beyond the descriptors that steps touch.
const OUT: i32 = 200;
/// The user that half of the sequences run as.
const USER: u32 = 1234;
/// How long a sequence may take, in milliseconds.
const LIMIT: i32 = 20_000;

/// A generator of numbers: splitmix64.
pub struct Rng(u64);

impl Rng {
    /// One that starts from two numbers.
    pub fn new(seed: u64, index: u64) -> Rng {
        let mut rng = Rng(seed ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93));
        rng.next();
        rng
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Some of these flags.
    pub fn flags(&mut self, from: &[i32]) -> i32 {
        from.iter()
            .filter(|_| self.0 != 0 && self.next().is_multiple_of(4))
            .fold(0, |all, flag| all | flag)
    }
}

/// FNV-1a, 64 bits.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Bytes that tell where they came from.
pub fn pattern(rng: &mut Rng, len: usize) -> Vec<u8> {
    let first = rng.next() as u8;
    (0..len).map(|i| first.wrapping_add((i / 7) as u8)).collect()
}

/// What the sequences of a kind work on.
trait World {
    /// A new one.
    fn new(rng: &mut Rng) -> Self;
    /// One step; what it prints.
    fn step(&mut self, rng: &mut Rng) -> String;
    /// What is left after the last step.
    fn end(&mut self) -> String;
}

fn say(text: &str) {
    sys!(libc::SYS_write, OUT, text.as_ptr(), text.len());
}

fn sequence<W: World>(seed: u64, steps: &[u64]) {
    let mut world = W::new(&mut Rng::new(seed, u64::MAX));
    for &index in steps {
        let text = world.step(&mut Rng::new(seed, index));
        say(&format!("{index}: {text}\n"));
    }
    say(&format!("end: {}\n", world.end()));
}

/// Runs a sequence in a child; what it printed, and how it ended.
fn run(kind: &str, seed: u64, steps: &[u64]) -> Vec<u8> {
    let base = std::env::var("GUEST_TMP").unwrap_or_else(|_| "/tmp".into());
    let dir = format!("{base}/random-{}", getpid());
    std::fs::create_dir(&dir).expect("a new directory");
    let (r, w) = pipe2(libc::O_CLOEXEC);
    let pid = child(|| {
        sys!(libc::SYS_setsid);
        sys!(libc::SYS_umask, 0o022);
        ok!(sys!(libc::SYS_chdir, c(&dir).as_ptr()));
        ok!(sys!(libc::SYS_dup2, w, OUT));
        ok!(sys!(libc::SYS_close_range, 3, OUT - 1, 0));
        ok!(sys!(libc::SYS_close_range, OUT + 1, u32::MAX, 0));
        if seed & 1 == 1 && is_root() {
            ok!(sys!(libc::SYS_chown, c(".").as_ptr(), USER, USER));
            ok!(sys!(libc::SYS_setgroups, 0, 0));
            ok!(sys!(libc::SYS_setresgid, USER, USER, USER));
            ok!(sys!(libc::SYS_setresuid, USER, USER, USER));
            // What is to be seen below /proc/self is not the question here.
            ok!(sys!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1));
        }
        match kind {
            "files" => sequence::<files::Files>(seed, steps),
            "descriptors" => sequence::<descriptors::Descriptors>(seed, steps),
            "memory" => sequence::<memory::Memory>(seed, steps),
            "signals" => sequence::<signals::Signals>(seed, steps),
            _ => say("no such kind\n"),
        }
    });
    close(w);
    let mut output = Vec::new();
    let hung = loop {
        let mut poll = libc::pollfd {
            fd: r,
            events: libc::POLLIN,
            revents: 0,
        };
        if sys!(libc::SYS_poll, &mut poll as *mut _, 1, LIMIT) <= 0 {
            break true;
        }
        let part = read(r, 65536);
        if part.is_empty() {
            break false;
        }
        output.extend(part);
    };
    if hung {
        kill(pid, libc::SIGKILL);
    }
    let status = wait(pid);
    close(r);
    let end = if hung {
        "still running".into()
    } else {
        format!("wait status {status:#x}")
    };
    output.extend(format!("{end}\n").bytes());
    remove(&dir);
    output
}

/// Removes a directory and what is in it, whatever its modes are.
fn remove(dir: &str) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove(&path.to_string_lossy());
        } else {
            let _ = std::fs::remove_file(path);
        }
    }
    let _ = std::fs::remove_dir(dir);
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| {
        eprintln!("{text:?} is no hexadecimal number");
        exit(2)
    })
}

/// `guest random KIND SEED COUNT`
pub fn many(kind: &str, seed: &str, count: &str) {
    let mut rng = Rng::new(number(seed), 0);
    for _ in 0..count.parse().unwrap_or(0u64) {
        let seed = rng.next();
        let output = run(kind, seed, &(0..STEPS).collect::<Vec<_>>());
        println!("{seed:x} {:x}", digest(&output));
    }
}

/// `guest random-steps KIND SEED STEPS`
pub fn steps(kind: &str, seed: &str, steps: &str) {
    let steps: Vec<u64> = match steps {
        "all" => (0..STEPS).collect(),
        list => list.split(',').filter_map(|index| index.parse().ok()).collect(),
    };
    print!("{}", String::from_utf8_lossy(&run(kind, number(seed), &steps)));
}

/// A result as text.
pub fn shown(result: i64) -> String {
    Code(result).to_string()
}

/// The result of a read: how much, and a digest of it.
pub fn shown_data(result: i64, data: &[u8]) -> String {
    let mut text = shown(result);
    if result > 0 {
        let _ = write!(
            text,
            " {:x}",
            digest(data.get(..result as usize).unwrap_or(data)) as u32
        );
    }
    text
}
