//! `sentry check`: reads the log of an `strace -f` run and says what of it the kernel does not do.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::Path;

use sentry_kernel::strace::{Coverage, Status, coverage};

use crate::supervisor::FAILED;

/// Longest example line that is shown, in characters.
const EXAMPLE: usize = 100;

/// What was found of one kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    times: usize,
    /// The first call of the kind, as the log has it.
    example: String,
}

impl Found {
    fn add(&mut self, line: &str) {
        if self.times == 0 {
            self.example = line.chars().take(EXAMPLE).collect();
        }
        self.times += 1;
    }
}

/// What a log asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Demand {
    calls: usize,
    names: BTreeMap<String, usize>,
    /// Calls that answer an error here, by name and what they answer.
    missing: BTreeMap<(String, &'static str), Found>,
    /// Arguments that are refused, by name and argument.
    refused: BTreeMap<(String, &'static str), Found>,
    /// Calls whose limits this log does not touch, as far as it can be told.
    partial: BTreeMap<(String, &'static str), Found>,
    /// Names that no system call has.
    unknown: BTreeMap<String, Found>,
}

impl Demand {
    fn add(&mut self, line: &str, table: &BTreeMap<&str, &Coverage>) {
        let Some((name, arguments)) = call(line) else { return };
        self.calls += 1;
        *self.names.entry(name.into()).or_default() += 1;
        let Some(known) = table.get(name) else {
            self.unknown.entry(name.into()).or_default().add(line);
            return;
        };
        let refused = known.refused.iter().find(|(token, _)| has_word(arguments, token));
        match (known.status, refused) {
            (Status::Supported, _) => {}
            (Status::Refused, _) => {
                let errno = known.errno.unwrap_or_default();
                self.missing.entry((name.into(), errno)).or_default().add(line);
            }
            (Status::Partial, Some((token, _))) => self.refused.entry((name.into(), token)).or_default().add(line),
            (Status::Partial, None) => self.partial.entry((name.into(), known.note)).or_default().add(line),
        }
    }

    /// True if every call of the log is answered as on Linux, as far as the log tells.
    fn is_met(&self) -> bool {
        self.missing.is_empty() && self.refused.is_empty() && self.unknown.is_empty()
    }

    fn report(&self) -> String {
        let mut text = String::new();
        let mut part = |title: &str, rows: Vec<(&str, &str, &Found)>| {
            if !rows.is_empty() {
                text.push_str(&format!("{title}:\n"));
            }
            for (name, detail, found) in rows {
                let row = format!("  {name:<22} {:>7}×  {detail}", found.times);
                text.push_str(&format!("{}\n      {}\n", row.trim_end(), found.example));
            }
        };
        fn list<'a>(map: &'a BTreeMap<(String, &'static str), Found>) -> Vec<(&'a str, &'a str, &'a Found)> {
            map.iter()
                .map(|((name, detail), found)| (name.as_str(), *detail, found))
                .collect()
        }
        part("missing", list(&self.missing));
        part("refused arguments", list(&self.refused));
        part(
            "not known",
            self.unknown
                .iter()
                .map(|(name, found)| (name.as_str(), "", found))
                .collect(),
        );
        part(
            "partial, with nothing in this log that is known to be refused",
            list(&self.partial),
        );
        text.push_str(&format!(
            "{} calls of {} kinds: {} kinds missing, {} refused arguments, {} partial\n",
            self.calls,
            self.names.len(),
            self.missing.len() + self.unknown.len(),
            self.refused.len(),
            self.partial.len(),
        ));
        text
    }
}

/// The name and the arguments of the call that a line of strace(1) begins; `None` for other lines: signals, exits,
/// the second half of a call that was interrupted by another.
fn call(line: &str) -> Option<(&str, &str)> {
    let mut rest = line.trim_start();
    // "[pid 12] ", or with -o: "12 "; times of -t, -tt, -r.
    if let Some(after) = rest.strip_prefix("[pid") {
        rest = after.split_once(']')?.1.trim_start();
    }
    while let Some((word, after)) = rest.split_once(' ')
        && !word.is_empty()
        && word.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '.')
    {
        rest = after.trim_start();
    }
    let (name, arguments) = rest.split_once('(')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, arguments))
}

/// True if a word of `text` outside of strings begins with `token`.
fn has_word(text: &str, token: &str) -> bool {
    let mut quoted = false;
    let mut escaped = false;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let starts = !before.is_ascii_alphanumeric() && before != '_';
        if !quoted && starts && text.get(at..).is_some_and(|rest| rest.starts_with(token)) {
            return true;
        }
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        before = c;
    }
    false
}

/// Runs the command on the log `path` (`-`: standard input): 0 if nothing is missing, 1 if something is, 125 if the
/// log cannot be read.
pub fn main(path: &Path) -> u8 {
    let log: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(stdin().lock())
    } else {
        match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => {
                eprintln!("sentry check: {}: {error}", path.display());
                return FAILED;
            }
        }
    };
    let list = coverage();
    let table = list.iter().map(|row| (row.name, row)).collect();
    let mut demand = Demand::default();
    for line in log.split(b'\n') {
        match line {
            Ok(line) => demand.add(&String::from_utf8_lossy(&line), &table),
            Err(error) => {
                eprintln!("sentry check: {}: {error}", path.display());
                return FAILED;
            }
        }
    }
    if demand.calls == 0 {
        eprintln!(
            "sentry check: {}: no system call in it; is it the output of `strace -f`?",
            path.display()
        );
        return FAILED;
    }
    // A reader that has seen enough is no reason to fail.
    let _ = stdout().lock().write_all(demand.report().as_bytes());
    u8::from(!demand.is_met())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(log: &str) -> Demand {
        let list = coverage();
        let table = list.iter().map(|row| (row.name, row)).collect();
        let mut demand = Demand::default();
        log.lines().for_each(|line| demand.add(line, &table));
        demand
    }

    #[test]
    fn lines_of_every_form_are_understood() {
        assert_eq!(call("getpid()  = 1"), Some(("getpid", ")  = 1")));
        assert_eq!(call("[pid  12] 12:00:01.5 close(3) = 0"), Some(("close", "3) = 0")));
        assert_eq!(
            call("77    0.000123 read(3, \"x\", 1) = 1"),
            Some(("read", "3, \"x\", 1) = 1"))
        );
        assert_eq!(
            call("5 wait4(-1,  <unfinished ...>"),
            Some(("wait4", "-1,  <unfinished ...>"))
        );
        for other in [
            "5 <... wait4 resumed>0x7ffc, 0, NULL) = 6",
            "--- SIGCHLD {si_signo=SIGCHLD} ---",
            "+++ exited with 0 +++",
            "strace: Process 12 attached",
            "",
        ] {
            assert_eq!(call(other), None, "{other}");
        }
    }

    #[test]
    fn arguments_count_outside_of_strings_only() {
        assert!(has_word("AF_INET6, SOCK_STREAM, 0) = 3", "AF_INET"));
        assert!(has_word(
            "NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_HUGETLB, -1, 0)",
            "MAP_HUGETLB"
        ));
        assert!(!has_word("3, \"AF_INET \\\" AF_INET\", 4)", "AF_INET"));
        assert!(!has_word("3, MY_AF_INET)", "AF_INET"));
    }

    #[test]
    fn a_log_is_summed_up() {
        let met = demand("1 getpid() = 1\n1 exit_group(0) = ?\n");
        assert!(met.is_met() && met.calls == 2, "{met:?}");
        let unmet = demand("bpf(BPF_MAP_CREATE, 0x1, 2) = -1\nbpf(1) = -1\nnosuch(1) = 0\n");
        assert!(!unmet.is_met());
        let report = unmet.report();
        assert!(report.contains("2×") && report.contains("BPF_MAP_CREATE"), "{report}");
        assert!(
            report.ends_with("3 calls of 2 kinds: 2 kinds missing, 0 refused arguments, 0 partial\n"),
            "{report}"
        );
    }

    #[test]
    fn a_refused_argument_is_told_from_a_harmless_one() {
        let mapped = |flags| {
            demand(&format!(
                "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|{flags}, -1, 0) = 0x1"
            ))
        };
        assert!(mapped("MAP_ANONYMOUS").is_met());
        let refused = mapped("MAP_HUGETLB|MAP_ANONYMOUS");
        assert_eq!(refused.refused.keys().next(), Some(&("mmap".into(), "MAP_HUGETLB")));
    }
}
