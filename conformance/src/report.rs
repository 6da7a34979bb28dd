//! Results: printed as they come when they failed, and as a table at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::On;

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it must.
    Pass,
    /// Not as it must.
    Fail,
    /// It does not apply here.
    Skip,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Where it ran.
    pub on: On,
    /// The name; it begins with the family and a slash.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Expected and actual, or why it was skipped.
    pub detail: String,
    /// How long it took, in milliseconds (0 where that was not measured).
    pub ms: u64,
}

/// All results so far.
pub struct Report {
    entries: Mutex<Vec<Entry>>,
    units: AtomicUsize,
    verbose: bool,
    known: Vec<(String, String)>,
}

/// What fails in a sandbox for a known reason: names and reasons.
fn known_gaps() -> Vec<(String, String)> {
    include_str!("../known_gaps.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, reason)| (name.into(), reason.into()))
        .collect()
}

impl Report {
    /// An empty report.
    pub fn new(verbose: bool) -> Report {
        Report {
            entries: Mutex::new(Vec::new()),
            units: AtomicUsize::new(0),
            verbose,
            known: known_gaps(),
        }
    }

    /// Adds a result; a failure is printed at once.
    pub fn add(&self, on: On, name: &str, outcome: Outcome, detail: impl Into<String>, took: Duration) {
        let here = format!("{name}@{}", on.name());
        let mut known = self.known.iter();
        let gap = known.find(|(known, _)| on != On::Native && (known == name || *known == here));
        let (outcome, detail) = match gap {
            Some((_, reason)) if outcome == Outcome::Fail => (Outcome::Skip, format!("known gap: {reason}")),
            _ => (outcome, detail.into()),
        };
        let entry = Entry {
            on,
            name: name.into(),
            outcome,
            detail,
            ms: took.as_millis() as u64,
        };
        if outcome == Outcome::Fail || self.verbose {
            crate::progress::clear();
        }
        match outcome {
            Outcome::Fail => println!("FAIL {:8} {}: {}", on.name(), entry.name, entry.detail),
            Outcome::Skip if self.verbose => println!("skip {:8} {}: {}", on.name(), entry.name, entry.detail),
            Outcome::Pass if self.verbose && entry.detail.is_empty() => {
                println!("pass {:8} {} ({} ms)", on.name(), entry.name, entry.ms);
            }
            Outcome::Pass if self.verbose => {
                println!(
                    "pass {:8} {} ({} ms): {}",
                    on.name(),
                    entry.name,
                    entry.ms,
                    entry.detail
                );
            }
            _ => {}
        }
        self.entries.lock().unwrap_or_else(|e| e.into_inner()).push(entry);
    }

    /// Notes that a piece of work is done.
    pub fn unit_done(&self) {
        self.units.fetch_add(1, Ordering::SeqCst);
    }

    /// How many pieces of work are done, and how many cases passed, failed and were skipped.
    pub fn so_far(&self) -> (usize, [usize; 3]) {
        let entries = self.entries.lock().unwrap_or_else(|e| e.into_inner());
        let count = |outcome| entries.iter().filter(|e| e.outcome == outcome).count();
        let counts = [Outcome::Pass, Outcome::Fail, Outcome::Skip].map(count);
        (self.units.load(Ordering::SeqCst), counts)
    }

    /// Adds a pass or a failure.
    pub fn result(&self, on: On, name: &str, result: Result<(), String>, took: Duration) {
        match result {
            Ok(()) => self.add(on, name, Outcome::Pass, "", took),
            Err(detail) => self.add(on, name, Outcome::Fail, detail, took),
        }
    }

    /// Writes all results as a JSON array.
    pub fn write_json(&self, file: &Path) -> std::io::Result<()> {
        let entries = self.entries.lock().unwrap_or_else(|e| e.into_inner());
        std::fs::write(file, serde_json::to_string_pretty(&*entries)?)
    }

    /// Prints the table and the last line; true if nothing failed.
    pub fn finish(&self) -> bool {
        let entries = self.entries.lock().unwrap_or_else(|e| e.into_inner());
        let mut platforms: Vec<On> = entries.iter().map(|e| e.on).collect();
        platforms.sort_unstable();
        platforms.dedup();
        let mut table: BTreeMap<&str, BTreeMap<On, [usize; 3]>> = BTreeMap::new();
        let mut total = [0usize; 3];
        for entry in entries.iter() {
            let family = entry
                .name
                .split_once('/')
                .map_or(entry.name.as_str(), |(family, _)| family);
            let column = match entry.outcome {
                Outcome::Pass => 0,
                Outcome::Fail => 1,
                Outcome::Skip => 2,
            };
            table.entry(family).or_default().entry(entry.on).or_default()[column] += 1;
            total[column] += 1;
        }
        print!("\n{:24}", "family");
        platforms.iter().for_each(|on| print!("{:>16}", on.name()));
        println!();
        for (family, row) in table {
            print!("{family:24}");
            for on in &platforms {
                let cell = match row.get(on) {
                    None => "-".into(),
                    Some([pass, fail, skip]) => {
                        let mut cell = format!("{pass}/{}", pass + fail);
                        if *skip > 0 {
                            cell += &format!(" ({skip} sk)");
                        }
                        cell
                    }
                };
                print!("{cell:>16}");
            }
            println!();
        }
        println!("{} passed, {} failed, {} skipped", total[0], total[1], total[2]);
        total[1] == 0
    }
}
