//! Programs that take all they can get, in sandboxes with limits. An honest process beside the hog must go on, the hog be
//! refused or killed as Linux would, the sandbox stay within its memory, and nothing be left. Meanwhile the machine
//! must stay usable: a thread here sleeps and wakes natively, and another sandbox does its work beside.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use serde_json::Value;

use crate::host::{Host, Output, Setup, left};
use crate::report::{Outcome, Report};
use crate::{On, Unit};

/// The limits of a sandbox with a hog in it.
const LIMITS: &[(&str, &str)] = &[
    ("--memory", "192M"),
    ("--pids", "100"),
    ("--disk", "64M"),
    ("--disk-inodes", "20000"),
    ("--nofile", "1024"),
    ("--output-limit", "1M"),
];
/// Processors' worth of time; for those who take no more than that, less than a busy machine gives them.
const CPUS: &str = "1";
const FEW_CPUS: &str = "0.1";
/// The memory limit, and what a sandbox may use beyond it between two looks.
const MEMORY: u64 = 192 << 20;
const BEYOND: u64 = 192 << 20;
/// Rounds that an honest process makes at least while a hog runs, and the longest that one may take, and ten when it is
/// gone: a machine that is busy with other tests too is slow, but nothing stands still.
const ROUNDS: u64 = 10;
const LONGEST: Duration = Duration::from_secs(5);

/// How hogs end (`stopped`: when their time is over) and the limit of which an event tells, one of several.
struct Expected {
    hogs: &'static [&'static str],
    ends: &'static [End],
    limits: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Stopped,
    Killed(i32),
    Refused(i32),
}

use End::{Done, Killed, Refused, Stopped};

const EXPECTED: &[Expected] = &[
    Expected {
        hogs: &["forks", "fork_tree", "vforks", "threads", "zombies"],
        ends: &[Refused(libc::EAGAIN), Stopped],
        limits: &["pids"],
    },
    Expected {
        hogs: &["shell_bomb"],
        ends: &[Done, Stopped],
        limits: &["pids"],
    },
    Expected {
        hogs: &["anonymous"],
        ends: &[Killed(libc::SIGKILL), Refused(libc::ENOMEM)],
        limits: &["memory"],
    },
    Expected {
        hogs: &["shared", "memfd", "tmpfs"],
        ends: &[
            Killed(libc::SIGKILL),
            Killed(libc::SIGBUS),
            Refused(libc::ENOMEM),
            Refused(libc::ENOSPC),
        ],
        limits: &["disk", "memory"],
    },
    // Bounded by what a user may have of each; whether memory ends first is the limit's size.
    Expected {
        hogs: &["pipes", "sockets", "datagrams", "rights", "open_files", "epolls"],
        ends: &[
            Killed(libc::SIGKILL),
            Refused(libc::EMFILE),
            Refused(libc::ENFILE),
            Refused(libc::ENOSPC),
            Refused(libc::ETOOMANYREFS),
            Refused(libc::ENOMEM),
            Done,
            Stopped,
        ],
        limits: &[],
    },
    Expected {
        hogs: &["watches", "inodes", "hard_links"],
        ends: &[
            Refused(libc::ENOSPC),
            Refused(libc::EMLINK),
            Killed(libc::SIGKILL),
            Stopped,
        ],
        limits: &[],
    },
    Expected {
        hogs: &["sparse"],
        ends: &[Refused(libc::ENOSPC), Stopped],
        limits: &[],
    },
    Expected {
        hogs: &["signals", "timers"],
        ends: &[Refused(libc::EAGAIN), Stopped],
        limits: &[],
    },
    Expected {
        hogs: &["locks"],
        ends: &[Done, Stopped, Refused(libc::ENOLCK), Killed(libc::SIGKILL)],
        limits: &[],
    },
    Expected {
        hogs: &["mappings"],
        ends: &[Refused(libc::ENOMEM), Stopped, Killed(libc::SIGKILL)],
        limits: &[],
    },
    Expected {
        hogs: &["huge_argv"],
        ends: &[Refused(libc::E2BIG), Stopped],
        limits: &[],
    },
    Expected {
        hogs: &["watch_events", "names"],
        ends: &[Done, Refused(libc::EMFILE), Stopped, Killed(libc::SIGKILL)],
        limits: &[],
    },
    Expected {
        hogs: &["deep_directories"],
        ends: &[
            Refused(libc::ENAMETOOLONG),
            Refused(libc::ENOSPC),
            Stopped,
            Killed(libc::SIGKILL),
        ],
        limits: &[],
    },
    Expected {
        hogs: &["renames", "sleeping"],
        ends: &[Stopped],
        limits: &[],
    },
    Expected {
        hogs: &["computing", "calls"],
        ends: &[Stopped],
        limits: &["cpus"],
    },
    Expected {
        hogs: &["output"],
        ends: &[Refused(libc::EFBIG)],
        limits: &["output-limit"],
    },
];

/// The names of all hogs: the guest program lists them.
pub fn names(host: &Host) -> Result<Vec<String>, String> {
    host.listed("hogs", "hogs")
}

/// One unit for each hog and platform.
pub fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for full in names(host)?.into_iter().filter(|name| host.options.wants(name)) {
        for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
            let full = full.clone();
            units.push(Box::new(move |report: &Report| {
                let start = Instant::now();
                match run(host, on, full.trim_start_matches("hogs/")) {
                    Ok(detail) => report.add(on, &full, Outcome::Pass, detail, start.elapsed()),
                    Err(message) => report.add(on, &full, Outcome::Fail, message, start.elapsed()),
                }
            }));
        }
    }
    Ok(units)
}

/// A sandbox that has ended: how, what its guest has reported, and its events.
struct Ended {
    out: Output,
    report: String,
    events: Vec<Value>,
}

/// Runs `guest hog NAME` in a sandbox with the limits. `seconds` is what the hog has.
fn sandbox(host: &Host, executable: &Path, on: On, name: &str, seconds: u64) -> Ended {
    let shared = host.directory("hog-report");
    let log = host.directory("hog-events").join("log");
    let (report, text) = (shared.join("report"), |path: &Path| path.to_string_lossy().into_owned());
    let mut argv = vec![text(executable), "exec".into()];
    argv.extend(["--platform".into(), on.name().into(), "--ro".into(), text(&host.bin())]);
    argv.extend(["--rw".into(), text(&shared), "--events".into(), text(&log)]);
    if let Some(workers) = host.options.workers {
        argv.extend(["--workers".into(), workers.to_string()]);
    }
    argv.extend(
        LIMITS
            .iter()
            .flat_map(|(option, value)| [*option, *value].map(String::from)),
    );
    let few = ["computing", "calls"].contains(&name);
    argv.extend([
        "--cpus".into(),
        if few { FEW_CPUS } else { CPUS }.into(),
        "--".into(),
        host.guest(),
        "hog".into(),
        name.into(),
        seconds.to_string(),
        text(&report),
    ]);
    let setup = Setup {
        limit: 60 + seconds,
        ..Setup::default()
    };
    let out = host.run(On::Native, &setup, &argv);
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    Ended {
        out,
        report: std::fs::read_to_string(&report).unwrap_or_default(),
        events: log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    }
}

impl Ended {
    fn failed(&self, what: &str) -> String {
        format!("{what}: report {:?}; {}", self.report, self.out.describe())
    }

    fn tells_of(&self, limits: &[&str]) -> bool {
        let mut reached = self.events.iter().filter(|event| event["event"] == "limit");
        reached.any(|event| limits.iter().any(|limit| event["limit"] == *limit))
    }

    /// What is behind a word at the beginning of a line of the report.
    fn line(&self, first: &str) -> Option<Vec<&str>> {
        let line = self.report.lines().find_map(|line| line.strip_prefix(first))?;
        Some(line.split_whitespace().collect())
    }

    /// What the honest process came to.
    fn neighbour(&self) -> Result<Neighbour, String> {
        let words = self.line("neighbour ").unwrap_or_default();
        let numbers: Vec<u64> = words.iter().map_while(|word| word.parse().ok()).collect();
        match numbers[..] {
            [rounds, longest, after, ended_by] => Ok(Neighbour {
                rounds,
                longest: Duration::from_millis(longest),
                after: Duration::from_millis(after),
                ended_by: ended_by as i32,
            }),
            _ => Err(self.failed("the honest process's rounds were not told")),
        }
    }

    /// The hog's end, and how much it got.
    fn hog(&self) -> Option<(End, u64)> {
        let words = self.line("hog ")?;
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<i32>().ok());
        let end = match *words.first()? {
            "done" => Done,
            "stopped" => Stopped,
            "killed" => Killed(number(1)?),
            "refused" => Refused(number(1)?),
            _ => return None,
        };
        Some((end, words.last()?.parse().ok()?))
    }
}

fn run(host: &Host, on: On, name: &str) -> Result<String, String> {
    let expected = EXPECTED.iter().find(|expected| expected.hogs.contains(&name));
    let expected = expected.ok_or("nobody has said what is expected of it")?;
    let (seconds, plain) = (host.options.seconds, host.bin().join("sentry"));
    let own = host.own_sentry("hog")?;
    // The sandbox beside, alone first.
    let alone = sandbox(host, &plain, on, "none", 1).neighbour()?;
    let over = AtomicBool::new(false);
    let (ended, beside, probe) = std::thread::scope(|scope| {
        let probe = scope.spawn(|| Probe::until(&over));
        let beside = scope.spawn(|| sandbox(host, &plain, on, "none", seconds));
        let ended = sandbox(host, &own, on, name, seconds);
        let beside = beside.join();
        over.store(true, Ordering::Relaxed);
        (ended, beside, probe.join())
    });
    let beside = beside.map_err(|_| "the sandbox beside was not started")?.neighbour()?;
    let probe = probe.map_err(|_| "the probe failed")?;
    if ended.out.code() != Some(0) {
        return Err(ended.failed("the sandbox did not end well"));
    }
    let neighbour = ended.neighbour()?;
    let (end, taken) = ended.hog().ok_or_else(|| ended.failed("the hog's end was not told"))?;
    if !expected.ends.contains(&end) {
        return Err(ended.failed(&format!("expected one of {:?}, actual {end:?}", expected.ends)));
    }
    neighbour.check().map_err(|what| ended.failed(&what))?;
    if !expected.limits.is_empty() && !ended.tells_of(expected.limits) {
        return Err(ended.failed(&format!("no event tells of a limit of {:?}", expected.limits)));
    }
    if let Some(fault) = ended.events.iter().find(|event| event["event"] == "fault") {
        return Err(format!("a fault of ours: {fault}"));
    }
    let peak = ended
        .events
        .last()
        .and_then(|end| end["peak_memory"].as_u64())
        .unwrap_or(0);
    if peak == 0 || peak > MEMORY + BEYOND {
        return Err(ended.failed(&format!("at a limit of {MEMORY} bytes, {peak} were used")));
    }
    left(&own)?;
    Ok(format!(
        "{end:?} with {taken}; neighbour {neighbour}; peak {} MiB; sandbox beside {:.0} % of alone, longest {} ms; machine {probe}",
        peak >> 20,
        100.0 * beside.rate(seconds) / alone.rate(1),
        beside.longest.as_millis(),
    ))
}

/// What an honest process in a sandbox came to.
struct Neighbour {
    rounds: u64,
    longest: Duration,
    after: Duration,
    ended_by: i32,
}

impl Neighbour {
    fn check(&self) -> Result<(), String> {
        if self.ended_by != libc::SIGKILL {
            return Err("the honest process was not there any more".into());
        }
        if self.rounds < ROUNDS || self.longest.max(self.after) > LONGEST {
            return Err(format!("the honest process hardly went on: {self}"));
        }
        Ok(())
    }

    fn rate(&self, seconds: u64) -> f64 {
        self.rounds as f64 / seconds as f64
    }
}

impl std::fmt::Display for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} rounds, longest {} ms, then 10 in {} ms",
            self.rounds,
            self.longest.as_millis(),
            self.after.as_millis()
        )
    }
}

/// How late a native thread wakes from short sleeps.
struct Probe(Vec<Duration>);

impl Probe {
    fn until(over: &AtomicBool) -> Probe {
        let mut late = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            std::thread::sleep(Duration::from_millis(2));
            late.push(begun.elapsed().saturating_sub(Duration::from_millis(2)));
        }
        late.sort_unstable();
        Probe(late)
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |part: f64| {
            let index = ((self.0.len() as f64 * part) as usize).min(self.0.len().saturating_sub(1));
            self.0.get(index).copied().unwrap_or_default().as_micros()
        };
        write!(
            f,
            "late by {} µs, 99 % {} µs, longest {} µs",
            at(0.5),
            at(0.99),
            at(1.0)
        )
    }
}
