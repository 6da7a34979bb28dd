//! Parts that hang: a worker that does not come back, a part that is stopped, a host file system that never answers.
//! Each is told of or ended, with exit code 125 or that of the limit, and nothing is left.

mod common;

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::fuse::Fuse;
use common::{SENTRY, children, command_line, error_text, eventually, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PLATFORMS: [&str; 2] = ["systrap", "ptrace"];

fn sentry(platform: &str, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(SENTRY);
    command.args(["exec", "--platform", platform]);
    command.args(options).args(["--", "sh", "-c", script]);
    command.current_dir("/usr").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
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
    let script = "echo runs; while :; do (true) | cat; ls / > /dev/null; done";
    let mut child = sentry(platform, options, script).spawn().expect("it starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("read");
    assert_eq!(line, "runs\n");
    let mut everybody = family(child.id() as i32);
    let named = |name: &str| everybody.iter().copied().find(|pid| command_line(*pid).ends_with(name));
    let target = match part {
        // The zygote was the sentry's first child, the last may be the shell or what it runs.
        "stub" => children(named("sentry boot").expect("a sentry")).into_iter().max(),
        part => named(part),
    };
    kill(Pid::from_raw(target.expect(part)), Signal::SIGSTOP).expect("our own");
    everybody.extend(family(child.id() as i32));
    (child, everybody)
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
            let (child, everybody) = stopped(platform, &["--timeout", "1"], part);
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
            assert!(start.elapsed() < Duration::from_secs(15), "{platform} {part}");
            gone(&everybody, &format!("{platform} {part}"));
        }
    }
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
