//! The conformance runner: `cargo run --release -p sentry-conformance -- run`.
//!
//! Everything runs on Linux itself first (`native`, the oracle) and then in a sandbox on each platform:
//!
//! - `guest`: the cases of the guest test program, a fresh process each, on tmpfs, on the overlay and on a
//!   writable host directory;
//! - `programs`: ordinary commands, whose output, exit code and signal must be those of the native run;
//! - `escape`: attempts to read a host file outside the allowlist;
//! - `hostile`: guests that attack the stub in their own address space.
//!
//! The last line is `N passed, N failed, N skipped`; the exit code is 1 if anything failed.

#![forbid(unsafe_code)]

mod escape;
mod guest;
mod host;
mod hostile;
mod programs;
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
        default_value = "guest,programs,escape,hostile"
    )]
    pub suite: Vec<Suite>,
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
}

/// A piece of work that can run beside others.
pub type Unit<'a> = Box<dyn Fn(&Report) + Send + Sync + 'a>;

fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let mut units = Vec::new();
    for suite in &host.options.suite {
        match suite {
            Suite::Guest => units.extend(guest::units(host)?),
            Suite::Programs => units.extend(programs::units(host)?),
            Suite::Escape => units.extend(escape::units(host)),
            Suite::Hostile => units.extend(hostile::units(host)),
        }
    }
    Ok(units)
}

fn run(options: Run) -> Result<bool, String> {
    let report = Report::new(options.verbose);
    let jobs = options.jobs.clamp(1, 64);
    let json = options.json.clone();
    let host = Host::prepare(options)?;
    let units = units(&host)?;
    let next = AtomicUsize::new(0);
    let panicked = Mutex::new(false);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unit(&report))).is_err() {
                        *panicked.lock().unwrap_or_else(|e| e.into_inner()) = true;
                    }
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
    names.extend(hostile::names());
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
