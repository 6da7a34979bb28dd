//! Which system calls there are: the files in `conformance/coverage`, one for each family of the table that answers
//! them. They are part of the executable; the tests below hold them against the table.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use sentry_abi::syscalls::NAMES;
use serde::Deserialize;

use crate::syscalls::COVERAGE;

/// The file of calls that have no row in the table.
const ABSENT: &str = include_str!("../../../../conformance/coverage/absent.json");

/// How much of a call there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// What programs use of it.
    Supported,
    /// Some of its flags or commands are refused, or do less than on Linux.
    Partial,
    /// It answers an error.
    Refused,
}

impl Status {
    /// As `sentry syscalls` prints it.
    pub fn text(self) -> &'static str {
        match self {
            Status::Supported => "supported",
            Status::Partial => "partial",
            Status::Refused => "refused",
        }
    }
}

/// A call in a coverage file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    support: Status,
    /// What a refused call answers.
    #[serde(default, borrow)]
    errno: Option<&'static str>,
    /// Why it is refused.
    #[serde(default, borrow)]
    why: Option<&'static str>,
    /// What a partial call does less than on Linux.
    #[serde(default, borrow)]
    note: Option<&'static str>,
    /// Arguments of a partial call that are refused, and what they answer.
    #[serde(default, borrow)]
    missing: BTreeMap<&'static str, &'static str>,
    /// Conformance cases that show it.
    #[serde(default, borrow)]
    tests: Vec<&'static str>,
}

/// One line of `sentry syscalls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// The call's number.
    pub nr: u64,
    /// Its name.
    pub name: &'static str,
    /// How much of it there is.
    pub status: Status,
    /// What is less than on Linux, or why the call is refused.
    pub note: &'static str,
    /// What a refused call answers.
    pub errno: Option<&'static str>,
    /// Arguments that are refused, as strace(1) names them (one whose name begins so), and what they answer.
    pub refused: Vec<(&'static str, &'static str)>,
    /// Conformance cases that show it.
    pub tests: Vec<&'static str>,
}

type Family = BTreeMap<&'static str, Entry>;

fn parse(text: &'static str) -> Result<Family, serde_json::Error> {
    serde_json::from_str(text)
}

static ENTRIES: LazyLock<Family> = LazyLock::new(|| {
    let texts = COVERAGE.iter().map(|family| family.2).chain([ABSENT]);
    // A file that does not parse fails the tests; its calls then count as unknown here.
    texts.flat_map(|text| parse(text).unwrap_or_default()).collect()
});

/// All calls of x86-64, by number.
pub fn coverage() -> Vec<Coverage> {
    let row = |&(nr, name): &(u16, &'static str)| {
        let entry = ENTRIES.get(name)?;
        Some(Coverage {
            nr: nr.into(),
            name,
            status: entry.support,
            note: entry.note.or(entry.why).unwrap_or_default(),
            errno: entry.errno,
            refused: entry.missing.iter().map(|(name, errno)| (*name, *errno)).collect(),
            tests: entry.tests.clone(),
        })
    };
    NAMES.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::syscalls::{self, REFUSED};

    #[test]
    fn every_row_has_its_linux_name() {
        for row in syscalls::implemented() {
            assert_eq!(sentry_abi::syscalls::name(row.0), Some(row.1));
        }
    }

    #[test]
    fn each_file_has_the_calls_of_its_family() {
        let mut all = BTreeSet::new();
        for &(family, table, text) in COVERAGE {
            let file = format!("conformance/coverage/{family}.json");
            let calls = parse(text).unwrap_or_else(|error| panic!("{file}: {error}"));
            let rows: BTreeSet<_> = table.iter().map(|row| row.1).collect();
            let named: BTreeSet<_> = calls.keys().copied().collect();
            assert_eq!(named, rows, "{file}");
            assert!(all.is_disjoint(&named), "{file}: a call is in two files");
            all.extend(named);
        }
        let absent: BTreeSet<_> = parse(ABSENT).unwrap().keys().copied().collect();
        assert!(all.is_disjoint(&absent), "absent.json has calls of the table");
        all.extend(absent);
        let linux: BTreeSet<_> = NAMES.iter().map(|entry| entry.1).collect();
        assert_eq!(all, linux);
    }

    #[test]
    fn refused_calls_are_those_of_the_table() {
        for call in coverage() {
            let answer = match REFUSED.iter().find(|(nr, _, _)| *nr == call.nr) {
                Some((_, _, errno)) => Some(errno.name()),
                None if syscalls::lookup(call.nr).is_none() => Some("ENOSYS"),
                None => None,
            };
            assert_eq!(call.errno, answer, "{}", call.name);
            assert_eq!(call.status == Status::Refused, answer.is_some(), "{}", call.name);
        }
    }

    #[test]
    fn entries_say_what_they_must() {
        for call in coverage() {
            let name = call.name;
            assert_eq!(call.note.is_empty(), call.status == Status::Supported, "{name}: a note");
            assert!(
                call.refused.is_empty() || call.status == Status::Partial,
                "{name}: refused arguments"
            );
            assert!(
                !call.tests.is_empty() || call.status == Status::Refused,
                "{name}: no tests"
            );
        }
    }
}
