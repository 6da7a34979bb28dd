//! `sentry syscalls`: which system calls the kernel implements.

use std::collections::BTreeMap;
use std::io::{Write, stdout};

use sentry_kernel::strace::{Coverage, Status, coverage};

/// What is less than on Linux.
fn detail(call: &Coverage) -> String {
    if let Some(errno) = call.errno {
        return format!("{errno}: {}", call.note);
    }
    let refused: Vec<String> = (call.refused.iter())
        .map(|(argument, errno)| format!("{argument} ({errno})"))
        .collect();
    match (call.note, refused.is_empty()) {
        (note, true) => note.to_owned(),
        (note, false) => format!("{note}; refused: {}", refused.join(", ")),
    }
}

fn text(list: &[Coverage]) -> String {
    let mut text = String::new();
    for call in list {
        let row = format!(
            "{:>4}  {:<26} {:<10} {}",
            call.nr,
            call.name,
            call.status.text(),
            detail(call)
        );
        text.push_str(row.trim_end());
        text.push('\n');
    }
    let count = |status| list.iter().filter(|call| call.status == status).count();
    text + &format!(
        "{} supported, {} partial, {} refused\n",
        count(Status::Supported),
        count(Status::Partial),
        count(Status::Refused)
    )
}

fn json(list: &[Coverage]) -> String {
    let rows: Vec<serde_json::Value> = list
        .iter()
        .map(|call| {
            serde_json::json!({
                "number": call.nr,
                "name": call.name,
                "support": call.status.text(),
                "errno": call.errno,
                "note": call.note,
                "missing": call.refused.iter().copied().collect::<BTreeMap<_, _>>(),
                "tests": call.tests,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::Array(rows))
}

/// Runs the command; the exit code.
pub fn main(as_json: bool) -> u8 {
    let list = coverage();
    let text = if as_json { json(&list) } else { text(&list) };
    // A reader that has seen enough is no reason to fail.
    let _ = stdout().lock().write_all(text.as_bytes());
    0
}
