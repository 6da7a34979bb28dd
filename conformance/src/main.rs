//! The conformance runner: `cargo run --release -p conformance -- run`.
//!
//! Everything runs on Linux itself first (`native`, the oracle) and then in a sandbox on each platform:
//!
//! - `guest`: the cases of the guest test program, a fresh process each, on tmpfs, on the overlay and on a
//!   writable host directory;
//! - `programs`: ordinary commands, whose output, exit code and signal must be those of the native run;
//! - `escape`: attempts to read a host file outside the allowlist, and to get at the host in other ways;
//! - `hostile`: guests that attack the stub in their own address space;
//! - `random` (only if asked for): random sequences of calls, compared step by step; a difference is shrunk to a
//!   short sequence;
//! - `fuzz`: random calls with random arguments, which must leave the sandbox as it was;
//! - `host-calls`: what the sandbox's own processes ask of the host meanwhile, compared with what is published.
//!
//! The last line is `N passed, N failed, N skipped`; the exit code is 1 if anything failed.

#![forbid(unsafe_code)]

mod attempts;
mod escape;
mod fuzz;
mod guest;
mod hogs;
mod host;
mod host_calls;
mod hostile;
mod programs;
mod progress;
mod random;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, Parser, Subcommand, ValueEnum};

use host::Host;
use report::Report;

#[derive(Debug, Parser)]
#[command(about = "Runs the conformance suites on Linux and on every platform")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the suites
    Run(Run),
    /// Print the names of everything that would run
    List(Run),
}

/// Where something runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// Linux itself
    Native,
    /// In a sandbox, on systrap
    Systrap,
    /// In a sandbox, on ptrace
    Ptrace,
}

impl On {
    /// As `--platform` wants it.
    pub fn name(self) -> &'static str {
        match self {
            On::Native => "native",
            On::Systrap => "systrap",
            On::Ptrace => "ptrace",
        }
    }
}

/// The suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Cases of the guest test program
    Guest,
    /// Ordinary programs, compared with their native run
    Programs,
    /// Attempts to reach host files
    Escape,
    /// Attacks on the stub
    Hostile,
    /// Random sequences of calls
    Random,
    /// Random calls with random arguments
    Fuzz,
    /// Host calls of all processes, traced and compared with the published lists
    HostCalls,
    /// Programs that take all that is to be had of something
    Hogs,
}

/// On which file system the cases work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// The sandbox's own `/tmp`.
    Tmpfs,
    /// The current directory: a host directory with a layer in memory above.
    Overlay,
    /// A host directory shown with `--rw`.
    GoferRw,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Where to run
    #[arg(long, value_enum, value_delimiter = ',', default_value = "native,systrap,ptrace")]
    pub on: Vec<On>,
    /// What to run
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "guest,programs,escape,hostile,fuzz,host-calls,hogs"
    )]
    pub suite: Vec<Suite>,
    /// File systems of the guest cases that use files; the others run once, on tmpfs
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tmpfs,overlay,gofer-rw")]
    pub fs: Vec<Place>,
    /// Run everything N times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeat: u32,
    /// Worker threads of each sandbox
    #[arg(long, value_name = "N")]
    pub workers: Option<u16>,
    /// Only what has TEXT in its name (several: any of them, separated by commas)
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub filter: Vec<String>,
    /// How much runs at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub jobs: usize,
    /// Write all results to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run as an ordinary user (uid 1000); needs root
    #[arg(long)]
    pub user: bool,
    /// Requests of the hostile guests
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub requests: u64,
    /// Random sequences of each kind; with the default, those of a fixed seed and of a new one
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub cases: u64,
    /// Random calls of the `fuzz` suite on systrap; a tenth of it on ptrace
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub calls: u64,
    /// Seconds that each hog has
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seconds: u64,
    /// The seed of the random sequences and calls, in hexadecimal, instead of a fixed and a new one
    #[arg(long, value_name = "SEED", value_parser = |text: &str| u64::from_str_radix(text, 16))]
    pub seed: Option<u64>,
    /// The sentry executable, instead of building it
    #[arg(long, value_name = "FILE")]
    pub sentry: Option<PathBuf>,
    /// Do not build the guest program and the sentry first
    #[arg(long)]
    pub no_build: bool,
    /// Print every result
    #[arg(long, short)]
    pub verbose: bool,
}

impl Run {
    /// True if `--filter` lets this name through.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()))
    }

    /// The seeds of a suite's random choices: the one of `--seed`, or a fixed one and a new one, which is printed.
    pub fn seeds(&self, suite: &str, fixed: u64) -> Vec<u64> {
        if let Some(seed) = self.seed {
            return vec![seed];
        }
        let new = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        eprintln!("{suite}: the new seed is {new:x}");
        vec![fixed, new]
    }
}

/// A piece of work that can run beside others.
pub type Unit<'a> = Box<dyn Fn(&Report) + Send + Sync + 'a>;

fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let mut units = Vec::new();
    for suite in &host.options.suite {
        match suite {
            Suite::Guest => units.extend(guest::units(host)?),
            Suite::Programs => units.extend(programs::units(host)?),
            Suite::Escape => {
                units.extend(escape::units(host));
                units.extend(attempts::units(host)?);
            }
            Suite::Hostile => units.extend(hostile::units(host)),
            Suite::Random => units.extend(random::units(host)),
            Suite::Fuzz => units.extend(fuzz::units(host)),
            Suite::HostCalls => units.extend(host_calls::units(host)),
            Suite::Hogs => units.extend(hogs::units(host)?),
        }
    }
    Ok(units)
}

fn run(options: Run) -> Result<bool, String> {
    let report = Report::new(options.verbose);
    let jobs = options.jobs.clamp(1, 64);
    let rounds = options.repeat.max(1) as usize;
    let json = options.json.clone();
    let host = Host::prepare(options)?;
    let units = units(&host)?;
    let next = AtomicUsize::new(0);
    let panicked = Mutex::new(false);
    let all = units.len() * rounds;
    std::thread::scope(|scope| {
        scope.spawn(|| progress::show(&report, all));
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    if at >= all {
                        break;
                    }
                    let unit = &units[at % units.len()];
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unit(&report))).is_err() {
                        *panicked.lock().unwrap_or_else(|e| e.into_inner()) = true;
                    }
                    report.unit_done();
                }
            });
        }
    });
    if *panicked.lock().unwrap_or_else(|e| e.into_inner()) {
        return Err("a test of the runner panicked".into());
    }
    if let Some(file) = json {
        report
            .write_json(&file)
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(report.finish())
}

fn list(options: Run) -> Result<(), String> {
    let host = Host::prepare(options)?;
    let mut names = guest::names(&host)?;
    names.extend(programs::names());
    names.extend(escape::names());
    names.extend(attempts::names(&host)?);
    names.extend(hostile::names());
    names.extend(random::names());
    names.extend(fuzz::names());
    names.extend(host_calls::names());
    names.extend(hogs::names(&host)?);
    names
        .iter()
        .filter(|n| host.options.wants(n))
        .for_each(|n| println!("{n}"));
    Ok(())
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run(options),
        Command::List(options) => list(options).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("conformance: {message}");
            ExitCode::from(2)
        }
    }
}
