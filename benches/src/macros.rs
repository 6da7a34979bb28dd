//! Whole programs: how long they take from start to end, and how much processor time all their processes use.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::On;
use crate::report::figure;
use crate::sandbox::{Scratch, System};

/// After this, a run counts as failed.
const PATIENCE: Duration = Duration::from_secs(600);

/// A row: shell scripts, run in the directory of the runs.
struct Macro {
    name: &'static str,
    work: &'static str,
    /// Programs without which it is skipped.
    needs: &'static [&'static str],
    /// Run once, natively. It may use what [`lay_out`] made.
    setup: &'static str,
    /// What is measured. `$d` is a new directory that it may write to, `$here` that of the setup.
    run: &'static str,
}

const MACROS: &[Macro] = &[
    Macro {
        name: "python-start",
        work: "python3 with 5 imports, 10 times",
        needs: &["/usr/bin/python3"],
        setup: "",
        run: "for i in 1 2 3 4 5 6 7 8 9 10; do /usr/bin/python3 -c 'import json, re, subprocess, logging, argparse'; done",
    },
    Macro {
        name: "git-status",
        work: "git status, 5,000 files, 3 times",
        needs: &["git"],
        setup: "mkdir repository && cd repository && git init -q && for d in $(seq 50); do mkdir d$d; \
            for f in $(seq 100); do echo $d $f >d$d/f$f; done; done; git add . && \
            git -c user.name=a -c user.email=a@b commit -qm one",
        run: "cd $here/repository; for i in 1 2 3; do git -c safe.directory='*' status --porcelain; done",
    },
    Macro {
        name: "gcc",
        work: "gcc -O2, 4,000 lines",
        needs: &["gcc"],
        setup: "for i in $(seq 800); do \
            printf 'int f%s(int a, int b) {\\n  for (int i = 0; i < b; i++)\\n    a = a * %s + (a >> i);\\n  return a;\\n}\\n' $i $i; \
            done >large.c",
        run: "gcc -O2 -c -o $d/large.o $here/large.c",
    },
    Macro {
        name: "npm-install",
        work: "npm install, 10 local tarballs",
        needs: &["node", "npm"],
        setup: "mkdir npm && cd npm && for i in $(seq 10); do mkdir -p p$i/lib; \
            echo \"{\\\"name\\\": \\\"p$i\\\", \\\"version\\\": \\\"1.0.0\\\"}\" >p$i/package.json; \
            for f in $(seq 50); do echo \"module.exports = $f\" >p$i/lib/$f.js; done; \
            (cd p$i && npm pack --silent --offline --pack-destination ..); done",
        run: "cd $d && echo '{\"name\": \"app\"}' >package.json && \
            npm install --offline --no-audit --no-fund --loglevel=error $here/npm/*.tgz",
    },
    Macro {
        name: "configure-make",
        work: "configure (40 checks) and make -j2 (20 files)",
        needs: &["gcc", "make"],
        setup: "mkdir project && cd project && for i in $(seq 20); do \
            printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\nint f%s(void) { return %s; }\\n' $i $i >f$i.c; done && \
            echo 'int main(void) { return 0; }' >main.c",
        run: "cp $here/project/* $d && cd $d && for f in $(seq 40); do \
            printf 'char fun%s(void); int main(void) { return sizeof(int) != 4; }\\n' $f >conftest.c; \
            if gcc -o conftest conftest.c 2>conftest.err && ./conftest; then echo \"#define HAVE_$f 1\" >>config.h; fi; \
            rm -f conftest conftest.c conftest.err; sed -e \"s/@V$f@/$f/\" main.c >main.tmp && mv main.tmp main.c; done; \
            printf 'o := $(patsubst %%.c,%%.o,$(wildcard *.c))\\nall: $(o)\\n\\t$(CC) -o $@ $^\\n%%.o: %%.c config.h\\n\\t$(CC) -O1 -c $<\\n' \
            >Makefile && make -s -j2",
    },
    Macro {
        name: "find",
        work: "find over 50,000 files",
        needs: &["find"],
        setup: "",
        run: "test $(find $here/tree -type f -newermt 2000-01-01 | wc -l) = 50000",
    },
    Macro {
        name: "grep",
        work: "grep -r over 50,000 files",
        needs: &["grep"],
        setup: "",
        run: "test $(grep -r needle $here/tree | wc -l) = 500",
    },
];

/// The tree that find and grep look at: 500 directories of 100 files of some lines.
fn tree(at: &Path) -> std::io::Result<()> {
    for dir in 0..500 {
        let dir = at.join(format!("tree/a{}/b{dir}", dir % 20));
        fs::create_dir_all(&dir)?;
        for file in 0..100 {
            let word = if file == 50 { "needle" } else { "straw" };
            fs::write(
                dir.join(format!("f{file}")),
                format!("file {file}\n{word}\n").repeat(8).replacen(word, "hay", 7),
            )?;
        }
    }
    Ok(())
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Makes what a row needs; an error says why it is skipped.
fn lay_out(row: &Macro, at: &Path) -> Result<(), String> {
    if let Some(absent) = row.needs.iter().find(|program| !installed(program)) {
        return Err(format!("no {absent}"));
    }
    if matches!(row.name, "find" | "grep") && !at.join("tree").exists() {
        tree(at).map_err(|error| error.to_string())?;
    }
    let done = Command::new("bash")
        .args(["-euc", row.setup])
        .current_dir(at)
        .env("HOME", at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("its setup fails: {status}")),
        Err(error) => Err(format!("cannot run bash: {error}")),
    }
}

/// User and system time of all children that were waited for, and of theirs.
fn children_time() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(f64::NAN, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
    })
}

/// Seconds from start to end, and seconds of processor time.
type Sample = (f64, f64);

fn one(row: &Macro, system: &System, scratch: &Scratch) -> Result<Sample, String> {
    let here = scratch.path().display();
    let script = format!(
        "export PATH=/usr/local/bin:/usr/bin:/bin here={here}; d=$(mktemp -d); export HOME=$d; {}\ncd /; rm -rf $d",
        row.run
    );
    let before = children_time();
    let (_, time) = system.output_within(scratch, &["bash", "-euc", &script], PATIENCE)?;
    Ok((time.as_secs_f64(), children_time() - before))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the rows that are wanted, interleaved, and gives the table: medians over the rounds, with the ratio to native.
/// What runs in a process that is not a child of the sandbox's command (runsc's) is missing from its processor time.
pub fn run(systems: &[System], scratch: &Scratch, rounds: u32, wanted: impl Fn(&str) -> bool) -> String {
    let mut samples: BTreeMap<(&str, On), Vec<Sample>> = BTreeMap::new();
    let mut failed: BTreeMap<(&str, On), String> = BTreeMap::new();
    let mut rows = Vec::new();
    for row in MACROS.iter().filter(|row| wanted(row.name)) {
        match lay_out(row, scratch.path()) {
            Ok(()) => rows.push(row),
            Err(why) => eprintln!("SKIPPED {}: {why}", row.name),
        }
    }
    for _ in 0..rounds {
        for row in &rows {
            for system in systems {
                match one(row, system, scratch) {
                    Ok(sample) => samples.entry((row.name, system.on)).or_default().push(sample),
                    Err(why) => drop(failed.insert((row.name, system.on), why)),
                }
            }
        }
    }
    table(systems, &rows, &samples, &failed)
}

fn table(
    systems: &[System],
    rows: &[&Macro],
    samples: &BTreeMap<(&str, On), Vec<Sample>>,
    failed: &BTreeMap<(&str, On), String>,
) -> String {
    let mut text = format!("{:46}", "work (seconds: wall / user + system)");
    for system in systems {
        let _ = write!(text, " {:>26}", system.on.name());
    }
    text.push('\n');
    for row in rows {
        let of = |on: On| -> Option<Sample> {
            let list = samples
                .get(&(row.name, on))
                .filter(|_| !failed.contains_key(&(row.name, on)))?;
            let part = |pick: fn(&Sample) -> f64| median(list.iter().map(pick).collect());
            Some((part(|sample| sample.0), part(|sample| sample.1)))
        };
        let native = of(On::Native);
        let _ = write!(text, "{:46}", row.work);
        for system in systems {
            let cell = match (of(system.on), native) {
                (None, _) => "failed".into(),
                (Some((wall, cpu)), Some(native)) if system.on != On::Native => format!(
                    "{} / {} ({:.1}×, {:.1}×)",
                    figure(wall),
                    figure(cpu),
                    wall / native.0,
                    cpu / native.1
                ),
                (Some((wall, cpu)), _) => format!("{} / {}", figure(wall), figure(cpu)),
            };
            let _ = write!(text, " {cell:>26}");
        }
        text.push('\n');
    }
    for ((name, on), why) in failed {
        let _ = writeln!(text, "failed: {name} on {}: {why}", on.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn the_time_of_a_child_is_counted() {
        let before = children_time();
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(children_time() > before);
    }
}
