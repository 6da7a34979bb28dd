//! Benchmarks side by side: the same programs natively, on our platforms and on runsc, interleaved in one run.
//!
//! Absolute values move from machine to machine, so medians over the rounds are shown with their ratio to native.
#![forbid(unsafe_code)]

mod crowd;
mod machine;
mod macros;
mod plot;
mod report;
mod rows;
mod sandbox;
mod tree;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::report::Results;
use crate::sandbox::{Scratch, System};

/// Where a row is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum On {
    /// On this host's kernel
    Native,
    /// In our sandbox, on systrap
    Systrap,
    /// In our sandbox, on ptrace
    Ptrace,
    /// In gVisor's, on its systrap
    Runsc,
}

impl On {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            On::Native => "native",
            On::Systrap => "systrap",
            On::Ptrace => "ptrace",
            On::Runsc => "runsc",
        }
    }
}

/// Measures small pieces of work natively and in sandboxes, and compares them.
#[derive(Debug, Parser)]
pub struct Options {
    /// Where to run, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "native,systrap,ptrace,runsc"
    )]
    pub on: Vec<On>,

    /// How often each row is run; the medians of the rounds are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// Only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,

    /// Measure whole programs (python, git, gcc, npm, configure and make, find, grep) instead of small pieces of work
    #[arg(long = "macro", conflicts_with_all = ["json", "plot"])]
    pub whole: bool,

    /// Start N sandboxes at once instead: how long that takes, what they use, what is left
    #[arg(long, value_name = "N", conflicts_with_all = ["json", "plot", "whole"], value_parser = clap::value_parser!(u16).range(1..))]
    pub crowd: Option<u16>,

    /// Keep everything on this processor
    #[arg(long, value_name = "CPU")]
    pub pin: Option<usize>,

    /// Use this executable instead of building one
    #[arg(long, value_name = "FILE")]
    pub sentry: Option<PathBuf>,

    /// More options of `sentry exec`
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub exec_option: Vec<String>,

    /// How long the idle sandbox is watched
    #[arg(long, value_name = "SECS", default_value_t = 5)]
    pub idle: u64,

    /// Write the results to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the results to FILE as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("sentry-benches: {what}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), String> {
    let programs = sandbox::programs(options.sentry.as_deref())?;
    let scratch = Scratch::new(&programs)?;
    if let Some(cpu) = options.pin {
        machine::pin(cpu)?;
    }
    let mut systems = Vec::new();
    for &on in &options.on {
        match System::new(on, &programs, &options.exec_option) {
            Ok(system) => systems.push(system),
            Err(why) => eprintln!("SKIPPED {}: {why}", on.name()),
        }
    }
    let wanted = |name: &str| options.filter.as_deref().is_none_or(|text| name.contains(text));
    let mut results = Results::new(systems.iter().map(|system| system.on).collect(), options.pin);
    print!("{}", results.head());
    if options.whole {
        print!("{}", macros::run(&systems, &scratch, options.rounds, wanted));
        return Ok(());
    }
    if let Some(count) = options.crowd {
        print!("{}", crowd::run(&systems, &scratch, count.into())?);
        return Ok(());
    }
    let progress = std::io::stderr().is_terminal();
    for round in 1..=options.rounds {
        for job in rows::JOBS.iter().filter(|job| job.rows.iter().any(|row| wanted(row))) {
            for system in &systems {
                eprint!(
                    "\rround {round} of {}: {:24} {:8}",
                    options.rounds,
                    job.name,
                    system.on.name()
                );
                match job.run(system, &scratch, options.idle) {
                    Ok(values) => results.add(system.on, values),
                    Err(why) => results.fail(system.on, job, why),
                }
            }
        }
    }
    if progress {
        eprint!("\r{:60}\r", "");
    }
    results.keep(wanted);
    print!("{}", results.table());
    if let Some(file) = &options.json {
        std::fs::write(file, results.json()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if let Some(file) = &options.plot {
        std::fs::write(file, plot::draw(&results)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}
