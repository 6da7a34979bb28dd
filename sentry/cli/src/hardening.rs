//! `sentry hardening`: what protects this host from a guest, as tried out just now.

use std::fmt::Write as _;
use std::io::Write as _;

use sentry_host::filter::{self, HostCall, Rule};

use crate::args::Hardening;
use crate::host_calls;
use crate::parts::{Protection, Report};
use crate::supervisor::{self, FAILED};
use crate::terminal::complain;

/// Runs the command; the exit code.
pub fn main(options: &Hardening) -> u8 {
    let (platform, protections) = match supervisor::probe(options.platform) {
        Ok(Report::Isolation { platform, protections }) => (platform, protections),
        Ok(Report::Ended { .. }) => {
            complain("the sentry sent nonsense");
            return FAILED;
        }
        Err(what) => {
            complain(&what);
            return FAILED;
        }
    };
    let text = render(&platform, &protections);
    // A reader that has seen enough is no reason to fail.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    0
}

fn render(platform: &str, protections: &[Protection]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Platform: {platform}\n\nThe sentry's process, as set up on this host:"
    );
    for protection in protections {
        let state = if protection.in_force { "yes" } else { "NO " };
        let _ = writeln!(text, "  {state}  {:20} {}", protection.name, protection.detail);
    }
    let table = host_calls::for_platform(platform);
    section(&mut text, "Host calls of the sentry", "any other ends it", &table);
    let stub = "only from the stub's own text; anything else is a system call to the sentry";
    section(
        &mut text,
        "Host calls of a stub, which is a guest process",
        stub,
        sentry_platform::filter::STUB_CALLS,
    );
    let gofer = sentry_gofer::server::host_calls(false);
    section(&mut text, "Host calls of the gofer", "any other ends it", &gofer);
    let writing = sentry_gofer::server::host_calls(true);
    section(
        &mut text,
        "Host calls of the gofer with --rw",
        "any other ends it",
        &writing,
    );
    text
}

fn section(text: &mut String, title: &str, otherwise: &str, table: &[HostCall]) {
    let _ = writeln!(text, "\n{title} ({}; {otherwise}):", host_calls::allowed(table));
    for call in table.iter().filter(|call| !matches!(call.rule, Rule::Refuse(_))) {
        row(text, call);
    }
    let refused: Vec<_> = table
        .iter()
        .filter(|call| matches!(call.rule, Rule::Refuse(_)))
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(text, "  refused with an error, without effect:");
        refused.into_iter().for_each(|call| row(text, call));
    }
}

fn row(text: &mut String, call: &HostCall) {
    let _ = writeln!(text, "  {:18} {}", call.name, call.why);
    let rule = filter::describe(call.rule);
    if !rule.is_empty() {
        let _ = writeln!(text, "  {:18} {rule}", "");
    }
}
