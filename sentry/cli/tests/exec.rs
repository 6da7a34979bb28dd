//! `sentry exec` from outside: exit codes, environment, files, signals, time-outs; as root and as an ordinary user,
//! with namespaces and without.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use common::{Host, SENTRY, error_text, text};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn launcher() {
    common::launch();
}

/// The exit code, and what it wrote to standard output.
fn run(host: Host, args: &[&str]) -> Option<(i32, String)> {
    let output = host.run(&[&["exec"], args].concat())?;
    let code = output
        .status
        .code()
        .unwrap_or_else(|| panic!("{host:?} {args:?}: {:?}", output.status.signal()));
    if code == 125 {
        eprintln!("{host:?} {args:?}: {}", error_text(&output));
    }
    Some((code, text(&output)))
}

/// A program in memory is mapped by a descriptor that the gofer opened for reading only.
#[test]
fn programs_in_memory_run_everywhere() {
    for host in Host::ALL {
        let script = "cp /bin/echo /tmp/e && /tmp/e run";
        if let Some(found) = run(host, &["sh", "-c", script]) {
            assert_eq!(found, (0, "run\n".into()), "{host:?}");
        }
    }
}

#[test]
fn exit_codes_are_the_guests_or_say_what_failed() {
    for host in Host::ALL {
        let expect = |args: &[&str], code: i32| {
            if let Some((found, _)) = run(host, args) {
                assert_eq!(found, code, "{host:?} {args:?}");
            }
        };
        expect(&["true"], 0);
        expect(&["false"], 1);
        expect(&["--", "sh", "-c", "exit 42"], 42);
        expect(&["sh", "-c", "kill -9 $$"], 137);
        expect(&["sh", "-c", "kill -TERM $$"], 143);
        expect(&["no-such-command"], 127);
        expect(&["/no/such/file"], 127);
        expect(&["/etc/passwd"], 126);
        expect(&["/usr"], 126);
        expect(&["--cwd", "/no/such/directory", "true"], 125);
        expect(&["--ro", "/no/such/directory", "true"], 125);
        expect(&["--no-such-option", "true"], 125);
        expect(&["--timeout", "0.3", "sleep", "60"], 124);
        expect(
            &[
                "--timeout",
                "0.3",
                "sh",
                "-c",
                "trap '' TERM; while :; do sleep 60; done",
            ],
            124,
        );
    }
}

#[test]
fn the_guest_sees_the_system_and_its_own_directories() {
    for host in Host::ALL {
        let Some((code, output)) = run(
            host,
            &[
                "sh",
                "-c",
                "pwd; echo x > /tmp/f && cat /tmp/f; ls /var; readlink /bin; id -u",
            ],
        ) else {
            continue;
        };
        let uid = if matches!(host, Host::Plain | Host::Restricted) {
            nix::unistd::geteuid().as_raw()
        } else {
            54321
        };
        let bin = std::fs::read_link("/bin")
            .map(|target| format!("{}\n", target.display()))
            .unwrap_or_default();
        assert_eq!((code, output), (0, format!("/usr\nx\ntmp\n{bin}{uid}\n")), "{host:?}");
    }
}

#[test]
fn writes_stay_in_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = directory.path().join("file");
    std::fs::write(&name, "host").expect("write");
    let path = name.to_str().expect("UTF-8");
    let script = format!("echo guest > {path}; cat {path}");
    let output = std::process::Command::new(SENTRY)
        .args(["exec", "sh", "-c", &script])
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    assert_eq!(
        (text(&output).as_str(), output.status.code()),
        ("guest\n", Some(0)),
        "{}",
        error_text(&output)
    );
    assert_eq!(std::fs::read_to_string(&name).expect("read"), "host");
    // With --rw they do reach it, with --ro they fail.
    let source = format!("{}:/data", directory.path().display());
    let (code, output) = run(
        Host::Plain,
        &["--rw", &source, "sh", "-c", "echo guest > /data/file; cat /data/file"],
    )
    .expect("plain");
    assert_eq!((code, output.as_str()), (0, "guest\n"));
    assert_eq!(std::fs::read_to_string(&name).expect("read"), "guest\n");
    let (code, _) = run(Host::Plain, &["--ro", &source, "sh", "-c", "echo x > /data/file"]).expect("plain");
    assert_ne!(code, 0);
    assert_eq!(std::fs::read_to_string(&name).expect("read"), "guest\n");
}

/// Of whose pages only the first is in the host's page cache: a program takes a short read for the file's end.
#[test]
fn a_half_cached_file_is_read_whole() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let name = directory.path().join("file");
    std::fs::write(&name, vec![b'x'; 100_000]).expect("write");
    let file = std::fs::File::open(&name).expect("open");
    file.sync_all().expect("sync");
    let source = format!("{}:/data", directory.path().display());
    for platform in ["systrap", "ptrace"] {
        for advice in [
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            PosixFadviseAdvice::POSIX_FADV_RANDOM,
        ] {
            posix_fadvise(&file, 0, 0, advice).expect("advice");
        }
        file.read_exact_at(&mut [0], 0).expect("read");
        let read = "dd if=/data/file bs=100000 count=1 2>/dev/null | wc -c";
        let args = ["--platform", platform, "--ro", &source, "sh", "-c", read];
        assert_eq!(run(Host::Plain, &args), Some((0, "100000\n".into())), "{platform}");
    }
}

#[test]
fn the_environment_is_reduced() {
    let mut command = Host::Plain.sentry().expect("plain");
    let output = command
        .args(["exec", "--env", "ADDED=1", "--env", "TERM=dumb", "--", "/usr/bin/env"])
        .env("SECRET", "s")
        .env("HOME", "/root")
        .env("TERM", "xterm")
        .output()
        .expect("it starts");
    let output = text(&output);
    let names: Vec<_> = output
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains(&"PATH") && names.contains(&"HOME"));
    assert!(
        output.contains("ADDED=1\n") && output.contains("TERM=dumb\n"),
        "{output}"
    );
    assert!(!names.contains(&"SECRET"));
}

#[test]
fn options_shape_what_the_guest_sees() {
    let check = |args: &[&str], expected: &str| {
        let (code, output) = run(Host::Plain, args).expect("plain");
        assert_eq!((code, output.as_str()), (0, expected), "{args:?}");
    };
    check(&["--hostname", "box", "uname", "-n"], "box\n");
    check(&["--user", "12:34", "sh", "-c", "id -u; id -g; id -G"], "12\n34\n34\n");
    check(
        &[
            "--tmpfs",
            "/a/b:64k",
            "sh",
            "-c",
            "cd /a/b && head -c 100000 /dev/zero > f 2>/dev/null; wc -c < f",
        ],
        "65536\n",
    );
    check(&["--cwd", "/tmp", "pwd"], "/tmp\n");
    check(
        &[
            "--ro",
            "/etc/passwd:/x/y",
            "sh",
            "-c",
            "cmp /x/y /etc/passwd && echo same",
        ],
        "same\n",
    );
    let (code, _) = run(Host::Plain, &["--root", "/usr", "/bin/true"]).expect("plain");
    // Its libraries are not where it looks for them: what matters is that the name was found below DIR.
    assert!(code == 0 || code == 127, "{code}");
}

#[test]
fn system_calls_are_printed_on_request() {
    let output = Host::Plain
        .run(&["exec", "--strace=write", "echo", "hi"])
        .expect("plain");
    let error = error_text(&output);
    assert!(
        error.contains("write(1, \"hi\\n\"") && !error.contains("openat("),
        "{error}"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace");
    let output = Host::Plain
        .run(&["exec", "--strace-file", file.to_str().expect("UTF-8"), "echo", "hi"])
        .expect("plain");
    assert_eq!(text(&output), "hi\n");
    assert!(
        std::fs::read_to_string(file)
            .expect("read")
            .contains("write(1, \"hi\\n\"")
    );
}

#[test]
fn statistics_are_printed_on_request() {
    let output = Host::Plain.run(&["exec", "--stats", "true"]).expect("plain");
    let error = error_text(&output);
    assert!(
        error.contains("start-up: ") && error.contains("start to exit: "),
        "{error}"
    );
}

/// A guest that says it is ready, and then what signals it gets.
fn listener(host: Host, script: &str) -> Option<(Child, BufReader<std::process::ChildStdout>)> {
    let args = ["exec", "sh", "-c", script];
    let mut command = host.sentry_with(&args)?;
    let mut child = command
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).expect("a line"), 0, "{host:?}");
    }
    Some((child, output))
}

#[test]
fn signals_are_passed_on() {
    for host in Host::ALL {
        for (name, signal) in [
            ("INT", Signal::SIGINT),
            ("TERM", Signal::SIGTERM),
            ("HUP", Signal::SIGHUP),
            ("QUIT", Signal::SIGQUIT),
            ("USR1", Signal::SIGUSR1),
            ("WINCH", Signal::SIGWINCH),
        ] {
            let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
            let Some((mut child, mut output)) = listener(host, &script) else {
                continue;
            };
            kill(Pid::from_raw(child.id() as i32), signal).expect("kill");
            let mut rest = String::new();
            output.read_to_string(&mut rest).expect("the rest");
            assert_eq!(rest, format!("got {name}\n"), "{host:?}");
            assert_eq!(child.wait().expect("wait").code(), Some(7), "{host:?} {name}");
        }
    }
}

#[test]
fn a_signal_that_is_not_caught_ends_the_guest() {
    for host in Host::ALL {
        let Some((mut child, _output)) = listener(host, "echo ready; exec sleep 60") else {
            continue;
        };
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("kill");
        assert_eq!(child.wait().expect("wait").code(), Some(143), "{host:?}");
    }
}

#[test]
fn closed_descriptors_are_no_reason_to_hang() {
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let script = format!("exec {SENTRY} exec true {closed}");
        let status = std::process::Command::new("timeout")
            .args(["20", "sh", "-c", &script])
            .status()
            .expect("a shell");
        assert_eq!(status.code(), Some(0), "{closed}");
    }
}

#[test]
fn a_full_pipe_does_not_keep_signals_from_the_guest() {
    // Nobody reads: the guest blocks in write(2), the sentry must not.
    let mut child = std::process::Command::new(SENTRY)
        .args(["exec", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut output = child.stdout.take().expect("piped");
    output.read_exact(&mut [0; 1]).expect("it writes");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("kill");
    assert_eq!(child.wait().expect("wait").code(), Some(143));
}

#[test]
fn a_reader_that_goes_away_ends_the_writer() {
    let script = format!("{SENTRY} exec yes | head -n 1");
    let output = std::process::Command::new("timeout")
        .args(["20", "sh", "-c", &script])
        .output()
        .expect("a shell");
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), "y\n"));
}

#[test]
fn output_that_the_guest_closes_is_closed_for_the_reader() {
    let script = "exec >&-; sleep 60";
    let mut child = std::process::Command::new(SENTRY)
        .args(["exec", "--timeout", "20", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = String::new();
    child
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut output)
        .expect("the end");
    assert!(child.try_wait().expect("wait").is_none(), "the guest still runs");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("kill");
    child.wait().expect("wait");
}

#[test]
fn the_caller_s_nice_value_is_the_command_s() {
    for platform in ["systrap", "ptrace"] {
        let output = std::process::Command::new("nice")
            .args(["-n", "7", common::SENTRY, "exec", "--platform", platform, "--", "nice"])
            .current_dir("/usr")
            .output()
            .expect("it starts");
        let native = std::process::Command::new("nice").args(["-n", "7", "nice"]).output();
        assert_eq!(
            output.stdout,
            native.expect("it starts").stdout,
            "{platform}: {output:?}"
        );
    }
}
