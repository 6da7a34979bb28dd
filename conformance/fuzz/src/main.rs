//! A fuzzer for the parsers that read bytes nobody vouches for: `cargo run --release -p sentry-fuzz`.
//!
//! It needs no instrumented build. A target takes bytes and says in a number what came of them (which error, how
//! many parts); inputs that bring a new number are kept and mutated further, so that a file gets past the first check
//! into the second. A panic, a broken promise of a target and a run of more than ten seconds are failures: the input
//! is written to a file, which `--input FILE` runs again.
//!
//! The seed is printed; the same seed and number of runs give the same inputs.

#![forbid(unsafe_code)]

mod mutate;
mod targets;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;

use mutate::Random;
use targets::{TARGETS, Target};

/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Inputs that are kept.
const CORPUS: usize = 1024;
/// The longest input.
const LONGEST: usize = 16 << 10;

#[derive(Debug, Parser)]
#[command(about = "Fuzzes the parsers of untrusted bytes")]
struct Options {
    /// The targets, by default all: elf, request, reply, paths, mailbox, profile
    targets: Vec<String>,
    /// Runs of each target
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    runs: u64,
    /// The seed, in hexadecimal, instead of a new one
    #[arg(long, value_parser = |text: &str| u64::from_str_radix(text, 16))]
    seed: Option<u64>,
    /// Run one input of one target
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// The input that is being run, for whoever finds that it does not end.
#[derive(Default)]
struct Current {
    number: AtomicU64,
    input: Mutex<Vec<u8>>,
}

/// What failed, and where the input is kept.
fn failure(target: &Target, seed: u64, number: u64, input: &[u8], what: &str) -> String {
    let file = std::env::temp_dir().join(format!("fuzz-{}-{seed:x}-{number}", target.name));
    let kept = match std::fs::write(&file, input) {
        Ok(()) => format!("sentry-fuzz {} --input {}", target.name, file.display()),
        Err(error) => format!("cannot write {}: {error}; input {input:x?}", file.display()),
    };
    format!("{}: {what} (seed {seed:x}, run {number}); {kept}", target.name)
}

/// Ends the process if a run takes too long: nothing else ends a loop.
fn watch(target: Target, seed: u64, current: Arc<Current>) {
    std::thread::spawn(move || {
        let mut last = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let number = current.number.load(Ordering::Relaxed);
            if number == u64::MAX {
                return;
            }
            if number != last.0 {
                last = (number, Instant::now());
            } else if last.1.elapsed() > PATIENCE {
                let input = current.input.lock().map(|input| input.clone()).unwrap_or_default();
                eprintln!("{}", failure(&target, seed, number, &input, "takes too long"));
                std::process::exit(1);
            }
        }
    });
}

fn attempt(run: &mut dyn FnMut(&[u8]) -> Result<u64, String>, input: &[u8]) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(|| run(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

/// Runs a target; how many outcomes there were.
fn fuzz(target: &Target, seed: u64, runs: u64) -> Result<usize, String> {
    let current = Arc::new(Current::default());
    watch(*target, seed, Arc::clone(&current));
    let mut run = (target.make)();
    let mut corpus = (target.seeds)();
    let mut outcomes = HashSet::new();
    let mut random = Random::new(seed);
    for number in 0..runs {
        let input = match corpus.get(number as usize) {
            Some(seed) => seed.clone(),
            None => random.mutate(&corpus, target.words, LONGEST),
        };
        if let Ok(mut shown) = current.input.lock() {
            shown.clone_from(&input);
        }
        current.number.store(number, Ordering::Relaxed);
        let outcome = attempt(&mut *run, &input).map_err(|what| failure(target, seed, number, &input, &what))?;
        if outcomes.insert(outcome) && number >= corpus.len() as u64 {
            if corpus.len() < CORPUS {
                corpus.push(input);
            } else {
                let at = random.below(CORPUS);
                corpus[at] = input;
            }
        }
    }
    current.number.store(u64::MAX, Ordering::Relaxed);
    Ok(outcomes.len())
}

fn main() -> ExitCode {
    let options = Options::parse();
    let new = || std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = options.seed.unwrap_or_else(new);
    let wanted =
        |target: &&Target| options.targets.is_empty() || options.targets.iter().any(|name| name == target.name);
    let chosen: Vec<&Target> = TARGETS.iter().filter(wanted).collect();
    if chosen.len() < options.targets.len() || options.input.is_some() && chosen.len() != 1 {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("sentry-fuzz: the targets are {}; --input takes one", names.join(", "));
        return ExitCode::from(2);
    }
    if let Some(file) = &options.input {
        let result = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
        return match result.and_then(|input| (chosen[0].make)()(&input)) {
            Ok(outcome) => {
                println!("{}: outcome {outcome:x}", chosen[0].name);
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("{message}");
                ExitCode::from(1)
            }
        };
    }
    println!("seed {seed:x}");
    // A panic is caught and reported with its input.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut failed) = (0, 0);
    for target in chosen {
        let start = Instant::now();
        match fuzz(target, seed, options.runs) {
            Ok(outcomes) => {
                passed += 1;
                let each = start.elapsed().as_nanos() as f64 / options.runs.max(1) as f64 / 1000.0;
                println!(
                    "{}: {} runs, {outcomes} outcomes, {each:.2} µs each",
                    target.name, options.runs
                );
            }
            Err(message) => {
                failed += 1;
                println!("{message}");
            }
        }
    }
    println!("{passed} passed, {failed} failed, 0 skipped");
    ExitCode::from(u8::from(failed != 0))
}
