//! The results of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::On;
use crate::machine::Machine;
use crate::rows::{Job, Milestone, ROWS, Row, Value};

/// Everything that was measured.
#[derive(Debug)]
pub struct Results {
    /// The columns.
    pub systems: Vec<On>,
    /// Where.
    pub machine: Machine,
    samples: BTreeMap<(&'static str, On), Vec<f64>>,
    failures: BTreeMap<(&'static str, On), String>,
    hidden: Vec<&'static str>,
}

/// Whether a milestone is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    /// Not as it stands, but as many times the native value as where it was set: this machine is slower.
    MetScaled,
    NotMet,
    /// There is no milestone, or nothing to compare.
    Open,
}

impl Results {
    /// Nothing yet.
    pub fn new(systems: Vec<On>, pinned: Option<usize>) -> Self {
        let machine = Machine::here(pinned);
        Self {
            systems,
            machine,
            samples: BTreeMap::new(),
            failures: BTreeMap::new(),
            hidden: Vec::new(),
        }
    }

    /// The values of one run.
    pub fn add(&mut self, on: On, values: Vec<Value>) {
        for (row, value) in values {
            self.samples.entry((row, on)).or_default().push(value);
        }
    }

    /// A run that gave no values.
    pub fn fail(&mut self, on: On, job: &Job, why: String) {
        for row in job.rows {
            self.failures.insert((row, on), why.clone());
        }
    }

    /// Leaves out the rows that nobody asked for.
    pub fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        self.hidden = ROWS.iter().map(|row| row.name).filter(|name| !wanted(name)).collect();
    }

    /// The rows that have a value somewhere.
    pub fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| {
            let shown = !self.hidden.contains(&row.name);
            let known =
                |on: &On| self.samples.contains_key(&(row.name, *on)) || self.failures.contains_key(&(row.name, *on));
            shown && self.systems.iter().any(known)
        })
    }

    /// The median of a row's values on a system, unless a run of it failed.
    pub fn median(&self, row: &Row, on: On) -> Option<f64> {
        if self.failures.contains_key(&(row.name, on)) {
            return None;
        }
        let mut samples = self.samples.get(&(row.name, on))?.clone();
        samples.sort_by(f64::total_cmp);
        samples.get(samples.len() / 2).copied()
    }

    /// What comes before the table.
    pub fn head(&self) -> String {
        let machine = &self.machine;
        let pinned = match machine.pinned {
            Some(cpu) => format!("pinned to processor {cpu}"),
            None => "unpinned".into(),
        };
        format!(
            "machine {}; {}; load {}\ncommit {}; {pinned}\n\n",
            machine.processor, machine.kernel, machine.load, machine.commit
        )
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut text = format!("{:38} {:4}", "work", "unit");
        for on in &self.systems {
            let _ = write!(text, " {:>16}", on.name());
        }
        let _ = writeln!(text, "  milestone (systrap)");
        let (mut met, mut scaled, mut not_met) = (0, 0, 0);
        for row in self.rows() {
            let _ = write!(text, "{:38} {:4}", row.work, row.unit.name());
            let native = self.median(row, On::Native);
            for &on in &self.systems {
                let cell = match self.median(row, on) {
                    Some(value) => match native {
                        Some(native) if on != On::Native => format!("{} ({})", figure(value), times(value / native)),
                        _ => figure(value),
                    },
                    None if self.failures.contains_key(&(row.name, on)) => "failed".into(),
                    None => "–".into(),
                };
                let _ = write!(text, " {cell:>16}");
            }
            let verdict = self.verdict(row);
            met += usize::from(verdict == Verdict::Met);
            scaled += usize::from(verdict == Verdict::MetScaled);
            not_met += usize::from(verdict == Verdict::NotMet);
            let _ = writeln!(text, "  {}", self.milestone(row, verdict));
        }
        if met + scaled + not_met > 0 {
            let _ = writeln!(
                text,
                "\nmilestones: {met} met, {scaled} met as multiples of native, {not_met} not met"
            );
        }
        for ((row, on), why) in self.failures.iter().filter(|((row, _), _)| !self.hidden.contains(row)) {
            let _ = writeln!(text, "failed: {row} on {}: {why}", on.name());
        }
        text
    }

    fn milestone(&self, row: &Row, verdict: Verdict) -> String {
        let limit = match row.milestone {
            Milestone::AtMost { limit, .. } => format!("≤ {}", figure(limit)),
            Milestone::TimesNative(limit) => format!("≤ {limit}×"),
            Milestone::None => return "–".into(),
        };
        match verdict {
            Verdict::Met => format!("{limit} met"),
            Verdict::MetScaled => match self.scaled_limit(row) {
                Some(scaled) => format!("{limit}, here ≤ {} met", figure(scaled)),
                None => limit,
            },
            Verdict::NotMet => format!("{limit} NOT MET"),
            Verdict::Open => limit,
        }
    }

    fn verdict(&self, row: &Row) -> Verdict {
        if !self.systems.contains(&On::Systrap) {
            return Verdict::Open;
        }
        let limit = match row.milestone {
            Milestone::AtMost { limit, .. } => Some(limit),
            Milestone::TimesNative(limit) => self.median(row, On::Native).map(|native| native * limit),
            Milestone::None => None,
        };
        match (limit, self.median(row, On::Systrap)) {
            (None, _) => Verdict::Open,
            (Some(limit), Some(value)) if value <= limit => Verdict::Met,
            (_, Some(value)) if self.scaled_limit(row).is_some_and(|limit| value <= limit) => Verdict::MetScaled,
            _ => Verdict::NotMet,
        }
    }

    /// The limit as a multiple of native: what it is on a machine that is natively slower than where it was set.
    fn scaled_limit(&self, row: &Row) -> Option<f64> {
        let Milestone::AtMost {
            limit,
            native: Some(there),
        } = row.milestone
        else {
            return None;
        };
        let here = self.median(row, On::Native)?;
        (here > there).then(|| limit / there * here)
    }

    /// Everything, for other programs: medians, and the values of each round.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Cell<'a> {
            on: &'static str,
            median: Option<f64>,
            rounds: &'a [f64],
            failure: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'static str,
            work: &'static str,
            unit: &'static str,
            milestone: String,
            results: Vec<Cell<'a>>,
        }
        #[derive(Serialize)]
        struct Document<'a> {
            machine: &'a Machine,
            rows: Vec<Line<'a>>,
        }
        let line = |row: &'static Row| {
            let cell = |&on: &On| Cell {
                on: on.name(),
                median: self.median(row, on),
                rounds: self.samples.get(&(row.name, on)).map_or(&[], Vec::as_slice),
                failure: self.failures.get(&(row.name, on)).map(String::as_str),
            };
            Line {
                name: row.name,
                work: row.work,
                unit: row.unit.name(),
                milestone: self.milestone(row, self.verdict(row)),
                results: self.systems.iter().map(cell).collect(),
            }
        };
        let document = Document {
            machine: &self.machine,
            rows: self.rows().map(line).collect(),
        };
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}

/// Three digits that matter.
pub fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

fn times(ratio: f64) -> String {
    if ratio >= 10.0 {
        format!("{ratio:.0}×")
    } else {
        format!("{ratio:.2}×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(native: f64, systrap: f64) -> Results {
        let mut results = Results::new(vec![On::Native, On::Systrap], None);
        results.add(On::Native, vec![("fault", native), ("getpid", 0.1)]);
        results.add(On::Systrap, vec![("fault", systrap), ("getpid", 2.5)]);
        results
    }

    #[test]
    fn milestones_compare_with_native_or_with_a_number() {
        let table = results(1.0, 1.05).table();
        assert!(
            table.contains("≤ 1.1× met") && table.contains("2 met, 0 met as multiples of native, 0 not met"),
            "{table}"
        );
        let table = results(1.0, 1.2).table();
        assert!(
            table.contains("≤ 1.1× NOT MET") && table.contains("1 met, 0 met as multiples of native, 1 not met"),
            "{table}"
        );
    }

    #[test]
    fn a_slower_machine_has_a_scaled_limit() {
        let run = |native: f64, systrap: f64| {
            let mut results = Results::new(vec![On::Native, On::Systrap], None);
            results.add(On::Native, vec![("brk", native)]);
            results.add(On::Systrap, vec![("brk", systrap)]);
            results.table()
        };
        assert!(run(4.4, 15.0).contains("≤ 8.00, here ≤ 16.0 met"), "{}", run(4.4, 15.0));
        assert!(run(4.4, 17.0).contains("≤ 8.00 NOT MET"));
        // A faster one keeps the limit as it stands.
        assert!(run(1.1, 7.0).contains("≤ 8.00 met"));
    }

    #[test]
    fn a_failed_run_never_meets_a_milestone() {
        let mut results = results(1.0, 1.0);
        results.fail(On::Systrap, &crate::rows::JOBS[0], "crashed".into());
        let table = results.table();
        assert!(
            table.contains("1 met, 0 met as multiples of native, 1 not met")
                && table.contains("failed: getpid on systrap: crashed"),
            "{table}"
        );
    }

    #[test]
    fn every_row_has_a_job() {
        for row in ROWS {
            assert!(
                crate::rows::JOBS.iter().any(|job| job.rows.contains(&row.name)),
                "{}",
                row.name
            );
        }
    }
}
