//! Random sequences of calls: what each step answers and leaves must be as natively.
//!
//! The guest program makes the sequences from a seed and prints a digest for each. Where the digests differ, steps are
//! left out as long as the rest still differs, and the shortest sequence found is shown with both outputs.

use std::time::{Duration, Instant};

use crate::host::{Host, Setup, brief};
use crate::report::{Outcome, Report};
use crate::{On, Unit};

const KINDS: &[&str] = &["files", "descriptors", "memory", "signals"];
/// The seed whose sequences every run has, beside those of a new one.
const FIXED: u64 = 0x5e27;
/// Sequences of one sandbox.
const CHUNK: u64 = 500;
/// Steps of a sequence, as the guest program makes them.
const STEPS: usize = 40;
/// How many differences of a kind are shrunk and shown.
const SHOWN: usize = 5;

/// The names of the suite's cases.
pub fn names() -> Vec<String> {
    KINDS.iter().map(|kind| format!("random/{kind}")).collect()
}

/// One unit for each kind, platform, seed and part of the sequences.
pub fn units(host: &Host) -> Vec<Unit<'_>> {
    let seeds = host.options.seeds("random", FIXED);
    let mut units: Vec<Unit<'_>> = Vec::new();
    for &kind in KINDS {
        if !host.options.wants(&format!("random/{kind}")) {
            continue;
        }
        for &on in host.options.on.iter().filter(|&&on| on != On::Native) {
            for &seed in &seeds {
                for chunk in 0..host.options.cases.div_ceil(CHUNK) {
                    let count = CHUNK.min(host.options.cases - chunk * CHUNK);
                    units.push(Box::new(move |report| {
                        compare(host, report, kind, on, seed.wrapping_add(chunk << 32), count);
                    }));
                }
            }
        }
    }
    units
}

/// Natively on tmpfs too: that is what is compared.
fn setup(host: &Host, on: On) -> (Setup, Option<tempfile::TempDir>) {
    let mut setup = Setup {
        limit: 600,
        ..Setup::default()
    };
    if on != On::Native {
        return (setup, None);
    }
    let dir = tempfile::Builder::new()
        .prefix("conformance-")
        .tempdir_in("/dev/shm")
        .ok();
    let path = dir
        .as_ref()
        .map_or_else(|| host.directory("random"), |d| d.path().to_path_buf());
    host.give(&path);
    // Some sequences run as another user, who has to come this far.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let _ = std::fs::set_permissions(&path, open);
    setup
        .env
        .push(("GUEST_TMP".into(), path.to_string_lossy().into_owned()));
    (setup, dir)
}

fn guest(host: &Host, on: On, words: &[&str]) -> Result<String, String> {
    let (setup, _dir) = setup(host, on);
    let argv: Vec<String> = std::iter::once(host.guest())
        .chain(words.iter().map(|w| (*w).into()))
        .collect();
    let out = host.run(on, &setup, &argv);
    if out.code() != Some(0) {
        return Err(format!("{} on {}: {}", words.join(" "), on.name(), out.describe()));
    }
    if !out.stderr.is_empty() {
        return Err(format!(
            "{} on {}: stderr {}",
            words.join(" "),
            on.name(),
            brief(&out.stderr)
        ));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn compare(host: &Host, report: &Report, kind: &str, on: On, seed: u64, count: u64) {
    let name = format!("random/{kind}");
    let start = Instant::now();
    let seed = format!("{seed:x}");
    let run = |on| guest(host, on, &["random", kind, &seed, &count.to_string()]);
    let (expected, actual) = match run(On::Native).and_then(|native| Ok((native, run(on)?))) {
        Ok(both) => both,
        Err(message) => {
            report.add(
                on,
                &name,
                Outcome::Fail,
                format!("seed {seed}: {message}"),
                start.elapsed(),
            );
            return;
        }
    };
    let mut shown = 0;
    for (want, got) in expected.lines().zip(actual.lines().chain(std::iter::repeat(""))) {
        let of_case = want.split(' ').next().unwrap_or_default();
        if want == got {
            report.add(on, &name, Outcome::Pass, format!("seed {of_case}"), Duration::ZERO);
            continue;
        }
        let how = if shown < SHOWN {
            shrunk(host, kind, on, of_case)
        } else {
            Some("not shrunk".into())
        };
        shown += 1;
        match how {
            Some(how) => {
                let detail = format!("seed {of_case} (of run {seed}): {how}");
                report.add(on, &name, Outcome::Fail, detail, start.elapsed());
            }
            None => {
                let detail = format!("seed {of_case} (of run {seed}): differed once, not again");
                report.add(on, &name, Outcome::Fail, detail, start.elapsed());
            }
        }
    }
}

/// Leaves out steps of a sequence as long as the outputs differ; the rest with its outputs. None if all steps of it
/// give the same now.
fn shrunk(host: &Host, kind: &str, on: On, seed: &str) -> Option<String> {
    let outputs = |steps: &[usize]| {
        let list: Vec<String> = steps.iter().map(usize::to_string).collect();
        let words = ["random-steps", kind, seed, &list.join(",")];
        let show = |on| guest(host, on, &words).unwrap_or_else(|message| message);
        (show(On::Native), show(on))
    };
    let mut steps: Vec<usize> = (0..STEPS).collect();
    let (mut want, mut got) = outputs(&steps);
    if want == got {
        return None;
    }
    let mut size = STEPS / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len() && steps.len() > 1 {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            let (w, g) = outputs(&fewer);
            if !fewer.is_empty() && w != g {
                (steps, want, got) = (fewer, w, g);
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    let list: Vec<String> = steps.iter().map(usize::to_string).collect();
    let mut text = format!("guest random-steps {kind} {seed} {}\n", list.join(","));
    let mut actual = got.lines();
    for line in want.lines() {
        match actual.next() {
            Some(same) if same == line => text += &format!("         {line}\n"),
            other => text += &format!("expected {line}\nactual   {}\n", other.unwrap_or("nothing")),
        }
    }
    Some(text)
}
