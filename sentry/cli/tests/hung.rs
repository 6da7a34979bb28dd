//! Parts that hang: a worker that does not come back, a part that is stopped, a host file system that never answers.
//! Each is told of or ended, with exit code 125 or that of the limit, and nothing is left.

mod common;

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::fuse::Fuse;
use common::{Host, children, command_line, error_text, eventually, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PLATFORMS: [&str; 2] = ["systrap", "ptrace"];

#[test]
fn launcher() {
    common::launch();
}

fn sentry(platform: &str, options: &[&str], script: &str) -> Command {
    sentry_on(Host::Plain, platform, options, script).expect("it is plain")
}

fn sentry_on(host: Host, platform: &str, options: &[&str], script: &str) -> Option<Command> {
    let words = [&["exec", "--platform", platform], options, &["--", "sh", "-c", script]].concat();
    let mut command = host.sentry_with(&words)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Some(command)
}

/// A process and all its descendants.
fn family(root: i32) -> Vec<i32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        all.extend(children(pid));
    }
    all
}

/// Running, or stopped: not gone, and not just to be reaped.
fn alive(pid: &i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// What a sandbox with a worker that behaves like `way` in sched_rr_get_interval(2), which nobody else calls, prints, and its
/// events of kind `fault`.
fn with_stuck(platform: &str, way: &str) -> (Output, Vec<String>) {
    let dir = tempfile::tempdir().expect("directory");
    let log = dir.path().join("events");
    let stuck = format!("{way}:sched_rr_get_interval");
    let options = [
        "--workers",
        "2",
        "--debug-stuck",
        &stuck,
        "--events",
        log.to_str().expect("a name"),
    ];
    let script = "sleep 100 & echo before; perl -e '$b = pack(\"QQ\", 0, 0); syscall(148, 0, $b)'; echo after";
    let output = sentry(platform, &options, script).output().expect("it starts");
    let log = fs::read_to_string(log).expect("events");
    let faults = log.lines().filter(|line| line.contains(r#""event":"fault""#));
    (output, faults.map(str::to_owned).collect())
}

#[test]
fn a_worker_that_does_not_come_back_ends_the_sandbox() {
    std::thread::scope(|scope| {
        for (platform, way) in PLATFORMS
            .iter()
            .flat_map(|platform| [(*platform, "spin"), (*platform, "block")])
        {
            scope.spawn(move || {
                let (output, faults) = with_stuck(platform, way);
                let said = error_text(&output);
                assert_eq!(output.status.code(), Some(125), "{platform} {way}: {said}");
                assert_eq!(text(&output), "before\n", "{platform} {way}");
                let lines: Vec<&str> = said.lines().collect();
                let [late, stuck] = lines[..] else { panic!("{said}") };
                for (line, how) in [(late, "a worker is late: "), (stuck, "a worker is stuck: ")] {
                    assert!(
                        line.contains(how) && line.contains(" is in sched_rr_get_interval of thread "),
                        "{line}"
                    );
                    assert!(line.contains("worker 0 ") && line.contains("worker 1 "), "{line}");
                }
                assert_eq!(faults.len(), 2, "{faults:?}");
            });
        }
    });
}

#[test]
fn a_worker_that_comes_back_is_told_of_only() {
    for platform in PLATFORMS {
        let (output, faults) = with_stuck(platform, "slow");
        assert_eq!(output.status.code(), Some(0), "{platform}: {}", error_text(&output));
        assert_eq!(text(&output), "before\nafter\n", "{platform}");
        assert_eq!(faults.len(), 1, "{platform}: {faults:?}");
        assert!(faults[0].contains("a worker is late: "), "{platform}: {faults:?}");
    }
}

/// Starts a sandbox that says when it runs, and stops one of its parts.
fn stopped(platform: &str, options: &[&str], part: &str) -> (Child, Vec<i32>) {
    stopped_on(Host::Plain, platform, options, part).expect("it is plain")
}

fn stopped_on(host: Host, platform: &str, options: &[&str], part: &str) -> Option<(Child, Vec<i32>)> {
    let script = "echo runs; while :; do (true) | cat; ls / > /dev/null; done";
    let mut child = sentry_on(host, platform, options, script)?.spawn().expect("it starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    // What launches it on other hosts may print something first.
    while line != "runs\n" {
        line.clear();
        let read = std::io::BufRead::read_line(&mut output, &mut line).expect("read");
        assert_ne!(read, 0, "it did not start");
    }
    let mut everybody = family(child.id() as i32);
    let named = |name: &str| everybody.iter().copied().find(|pid| command_line(*pid).ends_with(name));
    let target = match part {
        // The zygote was the sentry's first child, the last may be the shell or what it runs.
        "stub" => children(named("sentry boot").expect("a sentry")).into_iter().max(),
        part => named(part),
    };
    kill(Pid::from_raw(target.expect(part)), Signal::SIGSTOP).expect("our own");
    everybody.extend(family(child.id() as i32));
    Some((child, everybody))
}

fn gone(everybody: &[i32], what: &str) {
    let gone = eventually(|| !everybody.iter().any(alive));
    let left = everybody.iter().filter(|pid| alive(pid)).map(|pid| command_line(*pid));
    assert!(gone, "{what}: left over: {:?}", left.collect::<Vec<_>>());
}

#[test]
fn a_stopped_part_does_not_outlive_the_time_limit() {
    for platform in PLATFORMS {
        for part in ["sentry boot", "sentry gofer", "stub"] {
            let start = Instant::now();
            let (child, everybody) = stopped(platform, &["--timeout", "3"], part);
            let output = child.wait_with_output().expect("wait");
            assert_eq!(
                output.status.code(),
                Some(124),
                "{platform} {part}: {}",
                error_text(&output)
            );
            let said = error_text(&output);
            assert!(
                said.is_empty() || said.contains("did not end in time"),
                "{platform} {part}: {said}"
            );
            assert!(start.elapsed() < Duration::from_secs(20), "{platform} {part}");
            gone(&everybody, &format!("{platform} {part}"));
        }
    }
}

#[test]
fn a_stopped_part_ends_the_sandbox() {
    std::thread::scope(|scope| {
        let parts = ["sentry boot", "sentry gofer"];
        let plain = PLATFORMS
            .iter()
            .flat_map(|platform| parts.map(|part| (Host::Plain, *platform, part)));
        // Where a guard stands between supervisor and sentry.
        for (host, platform, part) in plain.chain([(Host::Restricted, "systrap", "sentry boot")]) {
            scope.spawn(move || {
                let dir = tempfile::tempdir().expect("directory");
                let log = dir.path().join("events");
                let options = ["--events", log.to_str().expect("a name")];
                let Some((child, everybody)) = stopped_on(host, platform, &options, part) else {
                    return;
                };
                let output = child.wait_with_output().expect("wait");
                let said = error_text(&output);
                assert_eq!(output.status.code(), Some(125), "{platform} {part}: {said}");
                let name = part.trim_start_matches("sentry ").replace("boot", "sentry");
                let lines: Vec<&str> = said.lines().collect();
                let [late, stuck] = lines[..] else { panic!("{said}") };
                assert!(late.contains(&format!("the {name} (process ")), "{late}");
                assert!(
                    stuck.contains(&format!(
                        "the {name} was stopped by a signal and did not go on for 60 s"
                    )),
                    "{stuck}"
                );
                let log = fs::read_to_string(log).expect("events");
                assert!(log.contains(r#""event":"fault""#), "{log}");
                gone(&everybody, &format!("{platform} {part}"));
            });
        }
    });
}

/// A part that goes on in time, as after a debugger's or an operator's short stop.
#[test]
fn a_part_that_was_stopped_for_a_while_goes_on() {
    let (mut child, everybody) = stopped("systrap", &[], "sentry boot");
    std::thread::sleep(Duration::from_secs(12));
    for pid in &everybody {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().expect("wait").is_none(), "it goes on");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("our own");
    let output = child.wait_with_output().expect("wait");
    let said = error_text(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("the sentry (process "), "{said}");
    gone(&everybody, "afterwards");
}

#[test]
fn a_stopped_part_goes_with_the_supervisor() {
    for platform in PLATFORMS {
        for part in ["sentry boot", "sentry gofer", "stub"] {
            let (mut child, everybody) = stopped(platform, &[], part);
            child.kill().expect("our own");
            child.wait().expect("wait");
            gone(&everybody, &format!("{platform} {part}"));
        }
    }
}

/// A read that the host never answers holds up the one who reads: it can be killed, the others go on, and the sandbox
/// ends while it hangs.
#[test]
fn a_host_file_system_that_never_answers_delays_nobody() {
    for platform in PLATFORMS {
        for kill_it in [true, false] {
            let Some(fuse) = Fuse::mount() else { return };
            let mount = format!("{}:/hung", fuse.path().display());
            let script = if kill_it {
                "cat /hung/file & sleep 0.3; kill -9 $!; wait $!; echo $?; ls /hung; exit 7"
            } else {
                "cat /hung/file & sleep 0.3; echo here; exit 7"
            };
            let mut command = sentry(platform, &["--ro", &mount], script);
            let start = Instant::now();
            let mut child = command.spawn().expect("it starts");
            let mut status = None;
            eventually(|| {
                status = child.try_wait().expect("wait");
                status.is_some()
            });
            let took = start.elapsed();
            let everybody = family(child.id() as i32);
            assert!(fuse.was_read(), "{platform}: nothing was read");
            drop(fuse);
            let output = child.wait_with_output().expect("wait");
            let said = format!(
                "{platform} {kill_it}: after {took:?}: {:?} {}",
                text(&output),
                error_text(&output)
            );
            assert_eq!(status.and_then(|status| status.code()), Some(7), "{said}");
            assert_eq!(text(&output), if kill_it { "137\nfile\n" } else { "here\n" }, "{said}");
            gone(&everybody, &said);
        }
    }
}
