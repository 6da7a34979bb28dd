//! Guests that attack the stub in their own address space. Honest processes beside them must finish, the sandbox
//! must live, and when it ends nothing of it may be left.

use std::time::{Duration, Instant};

use crate::host::{Host, Setup, left};
use crate::report::{Outcome, Report};
use crate::{On, Unit};

const ATTACKS: &[&str] = &[
    "every_number",
    "refused_arguments",
    "clones",
    "unmaps",
    "closes",
    "never_receives",
    "masks_kicks",
    "scribble",
];

/// Worker threads that every attack is made against.
const WORKERS: [u16; 2] = [1, 4];

/// The names of all attacks.
pub fn names() -> Vec<String> {
    ATTACKS.iter().map(|name| format!("hostile/{name}")).collect()
}

/// One unit for each attack, platform and number of workers.
pub fn units(host: &Host) -> Vec<Unit<'_>> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for &name in ATTACKS {
        let workers = host.options.workers.map_or_else(|| WORKERS.to_vec(), |n| vec![n]);
        for workers in workers {
            let full = format!("hostile/{name}_{workers}");
            if !host.options.wants(&full) {
                continue;
            }
            for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
                let full = full.clone();
                units.push(Box::new(move |report: &Report| {
                    attack(host, report, on, name, &full, workers)
                }));
            }
        }
    }
    units
}

fn attack(host: &Host, report: &Report, on: On, name: &str, full: &str, workers: u16) {
    let no_place = match name {
        "never_receives" => Some("requests are stops here, which no guest can forge"),
        "masks_kicks" => Some("kicks are interruptions by the tracer here, which no guest can mask"),
        _ => None,
    };
    if let (On::Ptrace, Some(reason)) = (on, no_place) {
        report.add(on, full, Outcome::Skip, reason, Duration::ZERO);
        return;
    }
    let start = Instant::now();
    let own = match host.own_sentry("hostile") {
        Ok(own) => own,
        Err(message) => {
            report.add(on, full, Outcome::Fail, message, Duration::ZERO);
            return;
        }
    };
    let mut argv: Vec<String> = ["exec", "--platform", on.name(), "--workers"]
        .map(String::from)
        .to_vec();
    argv.extend([
        workers.to_string(),
        "--ro".into(),
        host.bin().to_string_lossy().into_owned(),
        "--".into(),
    ]);
    argv.insert(0, own.to_string_lossy().into_owned());
    let requests = if on == On::Ptrace {
        host.options.requests / 10
    } else {
        host.options.requests
    };
    argv.extend([host.guest(), "tool".into()]);
    match name {
        "scribble" => argv.extend(["scribble".into(), requests.to_string()]),
        _ => argv.extend(["gadget".into(), name.into()]),
    }
    let setup = Setup {
        limit: 300,
        ..Setup::default()
    };
    let out = host.run(On::Native, &setup, &argv);
    let text = String::from_utf8_lossy(&out.stdout);
    if out.code() == Some(77) {
        report.add(
            on,
            full,
            Outcome::Skip,
            String::from_utf8_lossy(&out.stderr).trim().to_string(),
            out.took,
        );
        return;
    }
    let result = if out.code() != Some(0) || !text.ends_with("survived\n") {
        Err(format!("expected the sandbox to survive, actual: {}", out.describe()))
    } else if let Some(line) = text.lines().find(|l| l.contains("can be mapped")) {
        Err(line.into())
    } else {
        left(&own)
    };
    report.result(on, full, result, start.elapsed());
}
