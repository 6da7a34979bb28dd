//! What is measured, and what is to be reached.

use std::time::{Duration, Instant};

use crate::On;
use crate::sandbox::{Scratch, System};
use crate::tree;

/// What systrap is to reach.
#[derive(Clone, Copy, Debug)]
pub enum Milestone {
    /// At most so much, in the row's unit.
    AtMost {
        /// The most.
        limit: f64,
        /// What the same work took natively where the limit was set; `None` where there is no native value. On a
        /// slower machine the limit is as many times this machine's native value.
        native: Option<f64>,
    },
    /// At most so many times the native value.
    TimesNative(f64),
    /// None: for comparison.
    None,
}

/// The unit of a row; values are kept in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Mebibytes.
    Mebibytes,
}

impl Unit {
    /// Its sign.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Micros => "µs",
            Unit::Millis => "ms",
            Unit::Mebibytes => "MiB",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// Its key.
    pub name: &'static str,
    /// What is done.
    pub work: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// What is to be reached.
    pub milestone: Milestone,
}

use Milestone::TimesNative;
use Unit::{Mebibytes, Micros, Millis};

/// A limit, and the native value of the machine it was set on.
const fn at_most(limit: f64, native: Option<f64>) -> Milestone {
    Milestone::AtMost { limit, native }
}

const fn row(name: &'static str, work: &'static str, unit: Unit, milestone: Milestone) -> Row {
    Row {
        name,
        work,
        unit,
        milestone,
    }
}

/// All rows, in the order of the table. Call sites are never patched, so calls are trapped ones.
pub const ROWS: &[Row] = &[
    row("getpid", "getpid (the stub answers)", Micros, at_most(2.5, Some(0.1))),
    row(
        "getppid",
        "getppid (the sentry answers)",
        Micros,
        at_most(3.0, Some(0.12)),
    ),
    row(
        "getppid-parked",
        "getppid after 5 ms of computing",
        Micros,
        at_most(20.0, Some(0.25)),
    ),
    row(
        "getppid-busy",
        "getppid, two processes computing",
        Micros,
        Milestone::None,
    ),
    row("pread-1", "pread 1 B", Micros, Milestone::None),
    row("pread-4k", "pread 4 KiB", Micros, Milestone::None),
    row("pread-64k", "pread 64 KiB", Micros, Milestone::None),
    row("stat", "stat, cached", Micros, at_most(4.0, Some(1.3))),
    row("open-close", "open + close, cached", Micros, at_most(8.0, Some(1.5))),
    row(
        "create",
        "create + write 4 KiB + close",
        Micros,
        at_most(60.0, Some(35.0)),
    ),
    row("unlink", "unlink", Micros, at_most(25.0, Some(8.8))),
    row(
        "host-file-first",
        "open + read 4 KiB + close, first",
        Micros,
        at_most(60.0, Some(3.5)),
    ),
    row(
        "host-file-again",
        "open + read 4 KiB + close, again",
        Micros,
        at_most(15.0, Some(3.5)),
    ),
    row("mmap-touch", "mmap + touch 16 pages + munmap", Micros, TimesNative(1.4)),
    row("mmap", "mmap + munmap", Micros, at_most(8.0, Some(2.7))),
    row("fault", "page fault", Micros, TimesNative(1.1)),
    row("brk", "brk + touch", Micros, at_most(8.0, Some(2.2))),
    row(
        "fork-small",
        "fork + exit + wait, small",
        Micros,
        at_most(400.0, Some(119.0)),
    ),
    row(
        "fork-32m",
        "fork + exit + wait, 32 MB",
        Micros,
        at_most(1700.0, Some(1130.0)),
    ),
    row(
        "exec-static",
        "vfork + exec + exit + wait, static",
        Micros,
        TimesNative(3.5),
    ),
    row(
        "exec-dynamic",
        "vfork + exec + exit + wait, dynamic",
        Micros,
        Milestone::None,
    ),
    row(
        "pipe",
        "pipe round trip, two processes",
        Micros,
        at_most(25.0, Some(4.2)),
    ),
    row(
        "futex",
        "private futex round trip, two threads",
        Micros,
        at_most(15.0, Some(3.6)),
    ),
    row("start", "start to exit of `true`", Millis, at_most(30.0, Some(0.5))),
    row(
        "idle-memory",
        "idle sandbox, all processes (PSS)",
        Mebibytes,
        at_most(16.0, None),
    ),
    row(
        "idle-cpu",
        "idle sandbox, CPU time in 60 s",
        Millis,
        at_most(50.0, None),
    ),
    row("compute", "pure computing", Millis, TimesNative(1.03)),
];

/// One start of a program, which gives the values of one row or more.
#[derive(Debug)]
pub struct Job {
    /// Its name, and the argument of the guest program.
    pub name: &'static str,
    /// The rows it gives.
    pub rows: &'static [&'static str],
}

const fn job(name: &'static str, rows: &'static [&'static str]) -> Job {
    Job { name, rows }
}

/// All jobs, in the order in which they are run.
pub const JOBS: &[Job] = &[
    job("getpid", &["getpid"]),
    job("getppid", &["getppid"]),
    job("getppid-parked", &["getppid-parked"]),
    job("getppid-busy", &["getppid-busy"]),
    job("pread", &["pread-1", "pread-4k", "pread-64k"]),
    job("stat", &["stat"]),
    job("open-close", &["open-close"]),
    job("create-unlink", &["create", "unlink"]),
    job("host-file", &["host-file-first", "host-file-again"]),
    job("mmap-touch", &["mmap-touch"]),
    job("mmap", &["mmap"]),
    job("fault", &["fault"]),
    job("brk", &["brk"]),
    job("fork-small", &["fork-small"]),
    job("fork-32m", &["fork-32m"]),
    job("exec-static", &["exec-static"]),
    job("exec-dynamic", &["exec-dynamic"]),
    job("pipe", &["pipe"]),
    job("futex", &["futex"]),
    job("start", &["start"]),
    job("idle", &["idle-memory", "idle-cpu"]),
    job("compute", &["compute"]),
];

/// A row's key and a value in the row's unit.
pub type Value = (&'static str, f64);

impl Job {
    /// Runs it once.
    pub fn run(&self, system: &System, scratch: &Scratch, idle: u64) -> Result<Vec<Value>, String> {
        match self.name {
            "start" => self.start(system, scratch),
            "idle" => idle_sandbox(system, scratch, Duration::from_secs(idle)),
            _ => self.guest(system, scratch),
        }
    }

    fn guest(&self, system: &System, scratch: &Scratch) -> Result<Vec<Value>, String> {
        let (output, _) = system.output(scratch, &["./bench-guest", self.name])?;
        let mut values = Vec::new();
        for line in output.lines() {
            let Some((name, value)) = line.trim().split_once(' ') else {
                continue;
            };
            let row = ROWS.iter().find(|row| row.name == name && self.rows.contains(&name));
            let nanoseconds = value.parse::<f64>().ok();
            if let (Some(row), Some(nanoseconds)) = (row, nanoseconds) {
                values.push((
                    row.name,
                    if row.unit == Millis {
                        nanoseconds / 1e6
                    } else {
                        nanoseconds / 1e3
                    },
                ));
            }
        }
        if values.len() != self.rows.len() {
            return Err(format!("unexpected output: {}", output.trim()));
        }
        Ok(values)
    }

    /// The whole life of a small program, as the person who types the command sees it.
    fn start(&self, system: &System, scratch: &Scratch) -> Result<Vec<Value>, String> {
        let mut samples = Vec::new();
        for _ in 0..5 {
            let (_, time) = system.output(scratch, &["/bin/true"])?;
            samples.push(time.as_secs_f64() * 1e3);
        }
        samples.sort_by(f64::total_cmp);
        Ok(vec![(
            "start",
            samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN),
        )])
    }
}

/// A sandbox in which one tiny program waits for ever; natively there is none.
fn idle_sandbox(system: &System, scratch: &Scratch, time: Duration) -> Result<Vec<Value>, String> {
    if system.on == On::Native {
        return Ok(Vec::new());
    }
    let running = system.spawn(scratch, &["./pause"])?;
    // Long enough for the start, which is not what is measured here.
    std::thread::sleep(Duration::from_secs(1));
    let before = tree::cpu_time(running.id())?;
    let start = Instant::now();
    std::thread::sleep(time);
    let used = tree::cpu_time(running.id())?.saturating_sub(before);
    let scale = 60.0 / start.elapsed().as_secs_f64();
    let memory = tree::memory(running.id())?;
    Ok(vec![
        ("idle-memory", memory as f64 / f64::from(1 << 20)),
        ("idle-cpu", used.as_secs_f64() * 1e3 * scale),
    ])
}
