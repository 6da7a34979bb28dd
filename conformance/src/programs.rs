//! Ordinary programs: what they print and how they end must be as natively.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::host::{Host, Output, Setup, brief};
use crate::report::{Outcome, Report};
use crate::{On, Unit};

/// A command whose native run is what is expected. `$BIN` is the directory of compiled programs and scripts.
struct Program {
    name: &'static str,
    argv: &'static [&'static str],
    stdin: Option<&'static str>,
    /// Seconds.
    limit: u64,
    /// Why it does not run on ptrace, if so.
    not_on_ptrace: Option<&'static str>,
    /// `RLIMIT_NOFILE`, soft and hard, of whoever runs it.
    descriptors: Option<u32>,
}

const fn program(name: &'static str, argv: &'static [&'static str]) -> Program {
    Program {
        name,
        argv,
        stdin: None,
        limit: 60,
        not_on_ptrace: None,
        descriptors: None,
    }
}

const fn sh(name: &'static str, argv: &'static [&'static str]) -> Program {
    program(name, argv)
}

const PROGRAMS: &[Program] = &[
    program("true", &["true"]),
    program("exit_code", &["sh", "-c", "exit 42"]),
    program("killed", &["sh", "-c", "kill -KILL $$"]),
    program("segfault", &["$BIN/crash", "segv"]),
    program("abort", &["$BIN/crash", "abort"]),
    program("pipeline", &["bash", "-c", "ls /usr/bin | wc -l"]),
    program("listing", &["ls", "-l", "/etc", "/usr/lib/gcc"]),
    Program {
        stdin: Some("from stdin\nsecond\n"),
        ..program("stdin", &["sh", "-c", "read a; echo \"got $a\"; cat"])
    },
    program("stderr", &["sh", "-c", "echo to stderr >&2; echo to stdout"]),
    program("arguments", &["$BIN/crash", "args", "one two", "", "ünï"]),
    program("environment", &["sh", "-c", "echo $PATH $HOME $LANG $TERM"]),
    sh(
        "busybox_static",
        &[
            "busybox",
            "sh",
            "-c",
            "echo from busybox; busybox seq 1 5 | busybox sort -r | busybox head -n 2",
        ],
    ),
    program("shell_bash", &["bash", "$BIN/shell.sh"]),
    program("shell_dash", &["dash", "$BIN/shell.sh"]),
    program("shell_busybox", &["busybox", "sh", "$BIN/shell.sh"]),
    program("bash_extras", &["bash", "$BIN/bash.sh"]),
    program("coreutils", &["bash", "$BIN/coreutils.sh"]),
    program("c_threads", &["$BIN/threads"]),
    program("c_fork_large", &["$BIN/fork_large"]),
    program("c_spawn", &["$BIN/spawn"]),
    program("c_reap", &["$BIN/reap"]),
    Program {
        descriptors: Some(1024),
        ..program("c_herd", &["$BIN/herd"])
    },
    program("c_touch", &["$BIN/touch"]),
    program("c_maps_overlay", &["$BIN/maps", "file"]),
    program("c_maps_tmpfs", &["$BIN/maps", "/tmp/conformance-maps"]),
    Program {
        limit: 150,
        not_on_ptrace: Some("takes minutes here; a smaller one runs"),
        ..program("c_storm", &["$BIN/storm"])
    },
    Program {
        limit: 150,
        ..program("c_storm_tenth", &["$BIN/storm", "10"])
    },
    Program {
        limit: 90,
        ..program("c_vector", &["$BIN/vector"])
    },
    program("c_threads_static", &["$BIN/threads_static"]),
    program("python_sum", &["/usr/bin/python3", "-c", "print(sum(range(10)))"]),
    program("python_json", &["/usr/bin/python3", "$BIN/suite.py", "test_json"]),
    program(
        "python_subprocess",
        &["/usr/bin/python3", "$BIN/suite.py", "test_subprocess"],
    ),
    program(
        "python_threading",
        &["/usr/bin/python3", "$BIN/suite.py", "test_threading"],
    ),
    program("python_fork", &["/usr/bin/python3", "$BIN/suite.py", "test_fork"]),
    program("python_signal", &["/usr/bin/python3", "$BIN/suite.py", "test_signal"]),
    program("python_sqlite3", &["/usr/bin/python3", "$BIN/suite.py", "test_sqlite3"]),
    program("python_files", &["/usr/bin/python3", "$BIN/suite.py", "test_files"]),
    program("python_polling", &["/usr/bin/python3", "$BIN/suite.py", "test_polling"]),
    program("python_asyncio", &["/usr/bin/python3", "$BIN/suite.py", "test_asyncio"]),
    program(
        "python_processes",
        &["/usr/bin/python3", "$BIN/suite.py", "test_processes"],
    ),
    program("python_system", &["/usr/bin/python3", "$BIN/suite.py", "test_system"]),
    program("tty_bash", &["/usr/bin/python3", "$BIN/terminal.py", "bash"]),
    program("tty_editing", &["/usr/bin/python3", "$BIN/terminal.py", "editing"]),
    program("tty_script", &["/usr/bin/python3", "$BIN/terminal.py", "script"]),
    program(
        "tty_python_pty",
        &["/usr/bin/python3", "$BIN/terminal.py", "python_pty"],
    ),
    program("tty_test_pty", &["/usr/bin/python3", "$BIN/terminal.py", "test_pty"]),
    program(
        "tty_python_repl",
        &["/usr/bin/python3", "$BIN/terminal.py", "python_repl"],
    ),
    program("tty_less", &["/usr/bin/python3", "$BIN/terminal.py", "less"]),
    program("tty_vim", &["/usr/bin/python3", "$BIN/terminal.py", "vim", "vim"]),
    program(
        "tty_vim_tiny",
        &["/usr/bin/python3", "$BIN/terminal.py", "vim", "vim.tiny"],
    ),
    program("tty_tmux", &["/usr/bin/python3", "$BIN/terminal.py", "tmux"]),
    program(
        "perl",
        &[
            "perl",
            "-e",
            "print join(',', map { $_ * 2 } 1..5), \"\\n\"; $p = fork; exit 3 unless $p; wait; print $? >> 8, \"\\n\"; print `echo sub`",
        ],
    ),
    program(
        "sqlite3",
        &[
            "sqlite3",
            "db",
            "create table t(a); insert into t values(1),(2); select sum(a) from t;",
        ],
    ),
    program(
        "make",
        &[
            "sh",
            "-c",
            "printf 'all: a b\\n\\tcat a b\\na b:\\n\\techo $@ > $@\\n' > Makefile; make -s -j4",
        ],
    ),
    program(
        "gcc",
        &[
            "sh",
            "-c",
            "printf '#include <stdio.h>\\nint main(void){puts(\"compiled inside\");return 7;}' > a.c; gcc -O1 -o a a.c && ./a",
        ],
    ),
    // The quick ones of scripts/real-programs.
    program("real_git", &["bash", "-eu", "$BIN/git_clone.sh"]),
    program("real_make", &["bash", "-eu", "$BIN/make.sh"]),
    program("real_cxx", &["bash", "-eu", "$BIN/cxx.sh"]),
    program(
        "real_multiprocessing",
        &["bash", "-eu", "$BIN/python_multiprocessing.sh"],
    ),
    program("real_sqlite_wal", &["bash", "-eu", "$BIN/python_sqlite_wal.sh"]),
];

/// The names of all programs.
pub fn names() -> Vec<String> {
    PROGRAMS.iter().map(|p| format!("programs/{}", p.name)).collect()
}

/// Compiles the C programs and copies the scripts to where sandboxes see them.
fn build(host: &Host) -> Result<(), String> {
    let mut entries = Vec::new();
    for from in ["programs", "../scripts/programs"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(from);
        let found = std::fs::read_dir(&from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        entries.extend(found.flatten());
    }
    for entry in entries {
        let path: PathBuf = entry.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "c") {
            compile(&path, &host.bin().join(&stem), &[])?;
            if stem == "threads" {
                compile(&path, &host.bin().join("threads_static"), &["-static"])?;
            }
        } else {
            std::fs::copy(&path, host.bin().join(entry.file_name()))
                .map_err(|e| format!("cannot copy {}: {e}", path.display()))?;
        }
    }
    Ok(())
}

fn compile(source: &Path, to: &Path, more: &[&str]) -> Result<(), String> {
    let out = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(to)
        .arg(source)
        .args(more)
        .output();
    match out {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!(
            "{} does not compile: {}",
            source.display(),
            String::from_utf8_lossy(&out.stderr)
        )),
        Err(e) => Err(format!("cannot run gcc: {e}")),
    }
}

/// One unit for each program and platform; the native run is made once and kept.
pub fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let wanted: Vec<&'static Program> = PROGRAMS
        .iter()
        .filter(|p| host.options.wants(&format!("programs/{}", p.name)))
        .collect();
    if !wanted.is_empty() {
        build(host)?;
    }
    let mut units: Vec<Unit<'_>> = Vec::new();
    for program in wanted {
        let native = Arc::new(OnceLock::new());
        for &on in &host.options.on {
            let native = Arc::clone(&native);
            units.push(Box::new(move |report| compare(host, report, program, on, &native)));
        }
    }
    Ok(units)
}

fn run(host: &Host, program: &Program, on: On) -> Output {
    let bin = host.bin().to_string_lossy().into_owned();
    let argv: Vec<String> = program.argv.iter().map(|a| a.replace("$BIN", &bin)).collect();
    let setup = Setup {
        stdin: program.stdin.map(|s| s.as_bytes().to_vec()),
        limit: program.limit,
        descriptors: program.descriptors,
        ..Setup::default()
    };
    host.run(on, &setup, &argv)
}

fn compare(host: &Host, report: &Report, program: &Program, on: On, native: &OnceLock<Output>) {
    let name = format!("programs/{}", program.name);
    let expected = native.get_or_init(|| run(host, program, On::Native));
    if expected.code() == Some(127) {
        report.add(on, &name, Outcome::Skip, "not installed", Duration::ZERO);
        return;
    }
    if on == On::Ptrace
        && let Some(reason) = program.not_on_ptrace
    {
        report.add(on, &name, Outcome::Skip, reason, Duration::ZERO);
        return;
    }
    if on == On::Native {
        let result = if expected.status.is_some() {
            Ok(())
        } else {
            Err(expected.describe())
        };
        report.result(on, &name, result, expected.took);
        return;
    }
    let actual = run(host, program, on);
    let same = actual.code() == expected.code() && actual.stdout == expected.stdout;
    let result = if same {
        Ok(())
    } else {
        Err(difference(expected, &actual))
    };
    report.result(on, &name, result, actual.took);
}

/// The exit codes if they differ, and the first line that does.
fn difference(expected: &Output, actual: &Output) -> String {
    let mut text = String::new();
    if expected.code() != actual.code() {
        let show = |o: &Output| {
            o.code().map_or_else(
                || format!("still running after {} s", o.took.as_secs()),
                |c| c.to_string(),
            )
        };
        text += &format!("exit code: expected {}, actual {}; ", show(expected), show(actual));
    }
    let lines = |o: &Output| -> Vec<String> { String::from_utf8_lossy(&o.stdout).lines().map(String::from).collect() };
    let (want, got) = (lines(expected), lines(actual));
    let at = (0..want.len().max(got.len())).find(|&i| want.get(i) != got.get(i));
    if let Some(at) = at {
        text += &format!(
            "line {}: expected {:?}, actual {:?}; ",
            at + 1,
            want.get(at),
            got.get(at)
        );
    }
    text + &format!("stderr {}", brief(&actual.stderr))
}
