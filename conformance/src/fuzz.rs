//! Random system calls with random arguments, made in sandboxes only. Whatever they are, the sandbox must live, an honest
//! process in it must get on, no memory may be written beside what a call was given, and when the processes that made
//! them are gone the sandbox must hold no more than it did when they had just begun: processes, threads,
//! descriptors, memory. A host call that is not on our list ends the sandbox, and so does a panic: both fail here.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::{Host, Setup, brief, left, processes_of};
use crate::report::{Outcome, Report};
use crate::{On, Unit};

/// Where the processes work: below memory, or below a host directory that they may write to.
const PLACES: [&str; 2] = ["tmpfs", "rw"];
/// The seed whose calls every run makes, beside those of a new one.
const FIXED: u64 = 0x5e27_0000;
/// How much more than at first a sandbox may hold: a spare process that was made meanwhile, caches.
const SPARE: Held = Held {
    processes: 4,
    threads: 8,
    descriptors: 64,
    memory: 64 << 20,
};

/// The names of the suite's cases.
pub fn names() -> Vec<String> {
    PLACES.iter().map(|place| format!("fuzz/{place}")).collect()
}

/// One unit for each place, platform and seed.
pub fn units(host: &Host) -> Vec<Unit<'_>> {
    let seeds = host.options.seeds("fuzz", FIXED);
    let mut units: Vec<Unit<'_>> = Vec::new();
    for place in PLACES {
        if !host.options.wants(&format!("fuzz/{place}")) {
            continue;
        }
        for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
            let calls = host.options.calls / if on == On::Ptrace { 10 } else { 1 };
            for seed in seeds.clone() {
                // Of a run, each place and each seed has its share.
                let share = calls / (PLACES.len() * seeds.len()) as u64;
                units.push(Box::new(move |report| fuzz(host, report, on, place, seed, share)));
            }
        }
    }
    units
}

fn fuzz(host: &Host, report: &Report, on: On, place: &str, seed: u64, calls: u64) {
    let start = Instant::now();
    let name = format!("fuzz/{place}");
    let result = attempt(host, on, place, seed, calls).map_err(|message| format!("seed {seed:x}: {message}"));
    match result {
        Ok(detail) => report.add(
            on,
            &name,
            Outcome::Pass,
            format!("seed {seed:x}: {detail}"),
            start.elapsed(),
        ),
        Err(message) => report.add(on, &name, Outcome::Fail, message, start.elapsed()),
    }
}

fn attempt(host: &Host, on: On, place: &str, seed: u64, calls: u64) -> Result<String, String> {
    let own = host.own_sentry("fuzz")?;
    let shared = host.directory("shared");
    let shared_text = shared.to_string_lossy().into_owned();
    let bin = host.bin().to_string_lossy().into_owned();
    let mut argv: Vec<String> = [own.to_string_lossy().as_ref(), "exec", "--platform", on.name()]
        .map(String::from)
        .to_vec();
    if let Some(workers) = host.options.workers {
        argv.extend(["--workers".into(), workers.to_string()]);
    }
    argv.extend(
        [
            "--memory",
            "2G",
            "--pids",
            "200",
            "--ro",
            &bin,
            "--rw",
            &shared_text,
            "--",
        ]
        .map(String::from),
    );
    argv.extend([host.guest(), "fuzz".into(), format!("{seed:x}"), calls.to_string()]);
    argv.push(if place == "rw" { shared_text } else { "/dev/shm".into() });

    let mut command = host.command(On::Native, &Setup::default(), &argv);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.process_group(0);
    let mut child = command.spawn().map_err(|e| format!("cannot start: {e}"))?;
    let group = Pid::from_raw(-(child.id() as i32));
    let (send, lines) = mpsc::channel();
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        for line in stdout
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines())
            .map_while(Result::ok)
        {
            let _ = send.send(line);
        }
    });
    let mut stderr = child.stderr.take();
    let errors = std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(stderr) = &mut stderr {
            let _ = stderr.read_to_end(&mut all);
        }
        all
    });
    // At a thousand calls a second, this is far beyond what a busy machine needs.
    let patience = Duration::from_secs(60 + calls / 1000);
    let outcome = watch(&lines, &own, patience, child.stdin.take());
    let end = Instant::now() + Duration::from_secs(20);
    let mut status = child.try_wait().ok().flatten();
    while outcome.is_ok() && status.is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        status = child.try_wait().ok().flatten();
    }
    if status.is_none() {
        let _ = kill(group, Signal::SIGTERM);
        std::thread::sleep(Duration::from_secs(2));
        let _ = kill(group, Signal::SIGKILL);
        let _ = child.wait();
    }
    let _ = reader.join();
    let errors = errors.join().unwrap_or_default();
    let said = || format!("; exit {status:?}; stderr {}", brief(&errors));
    let detail = outcome.map_err(|message| message + &said())?;
    if status.and_then(|status| status.code()) != Some(0) {
        return Err(format!("the sandbox did not end well{}", said()));
    }
    left(&own)?;
    Ok(detail)
}

/// Follows what the guest says; what it did and what the sandbox held.
fn watch(
    lines: &mpsc::Receiver<String>,
    own: &Path,
    patience: Duration,
    stdin: Option<impl Write>,
) -> Result<String, String> {
    let end = Instant::now() + patience;
    let mut said = Vec::new();
    let mut next = |want: &str| -> Result<(), String> {
        loop {
            let wait = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(wait) {
                Ok(line) if line == want => return Ok(()),
                Ok(line) => said.push(line),
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(format!("no end after {} s", patience.as_secs())),
                Err(_) => return Err(format!("the guest ended before it had {want}: {}", said.join("; "))),
            }
        }
    };
    next("started")?;
    let before = Held::by(own);
    next("settled")?;
    let calm = Instant::now() + Duration::from_secs(5);
    let mut after = Held::by(own);
    while !after.fits(&before) && Instant::now() < calm {
        std::thread::sleep(Duration::from_millis(50));
        after = Held::by(own);
    }
    let held = format!("held at first {before}, in the end {after}");
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(b"\n");
    }
    next("survived")?;
    if !after.fits(&before) {
        return Err(held);
    }
    Ok(format!("{}; {held}", said.join("; ")))
}

/// What the processes of a sandbox hold.
#[derive(Clone, Copy, Default)]
struct Held {
    processes: usize,
    threads: usize,
    descriptors: usize,
    memory: u64,
}

impl Held {
    fn by(executable: &Path) -> Held {
        let mut held = Held::default();
        for process in processes_of(executable) {
            let count = |what: &str| std::fs::read_dir(process.join(what)).map_or(0, Iterator::count);
            held.processes += 1;
            held.threads += count("task");
            held.descriptors += count("fd");
            let rollup = std::fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
            let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let pss = pss.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
            held.memory += pss.unwrap_or(0) << 10;
        }
        held
    }

    fn fits(&self, before: &Held) -> bool {
        self.processes <= before.processes + SPARE.processes
            && self.threads <= before.threads + SPARE.threads
            && self.descriptors <= before.descriptors + SPARE.descriptors
            && self.memory <= before.memory + SPARE.memory
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Held {
            processes,
            threads,
            descriptors,
            memory,
        } = self;
        write!(
            f,
            "{processes} processes, {threads} threads, {descriptors} descriptors, {} MiB",
            memory >> 20
        )
    }
}
