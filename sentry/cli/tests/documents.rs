//! The documents say what the tables say: with `UPDATE_DOCS=1` these tests write them anew.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Between these lines, a document is written by a test.
fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- {name}: written by a test -->\n"),
        format!("<!-- end of {name} -->\n"),
    )
}

/// Compares the marked part of a document with `wanted`.
fn compare(file: &str, name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = marks(name);
    let start = text
        .find(&begin)
        .unwrap_or_else(|| panic!("docs/{file} has no line {begin}"))
        + begin.len();
    let stop = start
        + text[start..]
            .find(&end)
            .unwrap_or_else(|| panic!("docs/{file} has no line {end}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{}{wanted}{}", &text[..start], &text[stop..])).unwrap();
        return;
    }
    assert!(
        text[start..stop] == *wanted,
        "docs/{file}: `{name}` is out of date; UPDATE_DOCS=1 writes it anew"
    );
}

fn sentry(arguments: &[&str]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_sentry"))
        .args(arguments)
        .output()
        .unwrap();
    if !output.status.success() {
        eprintln!(
            "SKIPPED: `sentry {arguments:?}` fails here: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn security_lists_the_host_calls_of_the_filters() {
    let Some(text) = sentry(&["hardening", "--platform", "systrap"]) else {
        return;
    };
    let lists = &text[text.find("Host calls of the sentry").unwrap()..];
    compare("security.md", "host calls", &format!("\n```text\n{lists}```\n\n"));
}

/// A row of a table in Markdown for each call that a stub may do.
#[test]
fn the_threat_model_has_a_row_for_each_host_call_of_a_stub() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/threat-model.md");
    let text = fs::read_to_string(&path).unwrap();
    for call in sentry_platform::filter::STUB_CALLS {
        assert!(
            text.contains(&format!("\n| `{}` |", call.name)),
            "docs/threat-model.md has no row for {}",
            call.name
        );
    }
}

#[test]
fn compatibility_lists_the_calls_of_the_kernel() {
    let Some(text) = sentry(&["syscalls"]) else { return };
    compare(
        "compatibility.md",
        "system calls",
        &format!("\n```text\n{}\n```\n\n", text.trim_end()),
    );
}
