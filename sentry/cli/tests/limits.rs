//! Limits and events, on both platforms: at each limit what Linux would do, and a line in the log.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{SENTRY, error_text, text};
use serde_json::Value;

const PLATFORMS: [&str; 2] = ["systrap", "ptrace"];

struct Run {
    code: Option<i32>,
    out: String,
    error: String,
    events: Vec<Value>,
}

impl Run {
    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |event| event["event"] == kind)
    }

    fn limit(&self, name: &str) -> Option<&Value> {
        self.of("limit").find(|event| event["limit"] == name)
    }

    fn end(&self) -> &Value {
        self.events.last().expect("events")
    }
}

fn run(platform: &str, args: &[&str]) -> Run {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let output = Command::new(SENTRY)
        .args(["exec", "--platform", platform, "--events"])
        .arg(file.path())
        .args(args)
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/usr")
        .output()
        .expect("it starts");
    let log = std::fs::read_to_string(file.path()).expect("a log");
    let events: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    for (event, seq) in events.iter().zip(1..) {
        assert_eq!(event["seq"], seq, "{log}");
    }
    assert_eq!(
        events.first().expect("a first event")["event"],
        "session_start",
        "{log}"
    );
    assert_eq!(events.last().expect("a last event")["event"], "session_end", "{log}");
    Run {
        code: output.status.code(),
        out: text(&output),
        error: error_text(&output),
        events,
    }
}

#[test]
fn programs_and_their_ends_are_told() {
    for platform in PLATFORMS {
        let run = run(
            platform,
            &["--", "sh", "-c", "cd /tmp; env true 'a\nb'; sh -c 'kill -9 $$'; exit 3"],
        );
        assert_eq!((run.code, run.error.as_str()), (Some(3), "Killed\n"), "{platform}");
        let execs: Vec<_> = run.of("exec").collect();
        assert_eq!(execs[0]["argv"][0], "sh");
        assert_eq!((&execs[0]["pid"], &execs[0]["ppid"]), (&1.into(), &0.into()));
        let inner = execs.iter().find(|exec| exec["argv"][0] == "true").expect("true");
        assert_eq!(inner["argv"][1], "a\\x0ab");
        assert_eq!(inner["cwd"], "/tmp");
        assert_eq!(inner["ppid"], 1);
        let exits: Vec<_> = run.of("exit").collect();
        assert!(exits.iter().any(|exit| exit["signal"] == 9 && exit["code"].is_null()));
        let last = exits.last().expect("exits");
        assert_eq!((&last["pid"], &last["code"]), (&1.into(), &3.into()));
        assert_eq!(run.end()["reason"], "ended");
        assert_eq!(run.end()["exit_code"], 3);
        assert_eq!(run.end()["processes"], 3, "{:?}", run.end());
    }
}

#[test]
fn denials_are_told_and_floods_of_them_counted() {
    for platform in PLATFORMS {
        let script = "touch /proc/version; for i in $(seq 300); do true < /etc/shadow; done 2> /dev/null; echo ok";
        let run = run(platform, &["--user", "1000", "--", "sh", "-c", script]);
        if !run.out.contains("ok") {
            panic!("{platform}: {}", run.error);
        }
        let denied: Vec<_> = run
            .of("denied")
            .filter(|event| event["path"] == "/etc/shadow")
            .collect();
        assert!(!denied.is_empty(), "{:?}", run.events);
        assert_eq!(denied[0]["comm"], "sh");
        let lost: u64 = run.of("gap").map(|gap| gap["lost"].as_u64().expect("a number")).sum();
        let told = run.of("denied").count() as u64;
        assert_eq!(told + lost, run.end()["denials"].as_u64().expect("a number"));
        assert!(told + lost >= 300);
    }
}

#[test]
fn a_fork_bomb_ends_at_its_limit() {
    for platform in PLATFORMS {
        let bomb = "f() { f | f & }; f 2> /dev/null; sleep 0.5; exec true";
        let run = run(platform, &["--pids", "30", "--timeout", "20", "--", "bash", "-c", bomb]);
        assert!(
            matches!(run.code, Some(0 | 143 | 254)),
            "{platform}: {:?} {}",
            run.code,
            run.error
        );
        let limit = run.limit("pids").expect("told");
        assert_eq!((&limit["value"], &limit["action"]), (&30.into(), &"refused".into()));
    }
}

#[test]
fn threads_count_as_processes_do() {
    for platform in PLATFORMS {
        let script = "
import threading
gate = threading.Event()
made = 0
try:
    for _ in range(50):
        threading.Thread(target=gate.wait).start()
        made += 1
except RuntimeError:
    pass
print(made)
gate.set()";
        let run = run(platform, &["--pids", "20", "--", "/usr/bin/python3", "-c", script]);
        assert_eq!(run.out, "19\n", "{platform} {}", run.error);
    }
}

#[test]
fn processor_time_is_added_up_over_processes() {
    for platform in PLATFORMS {
        let script = "for i in 1 2; do (while :; do :; done) & done; wait";
        let started = Instant::now();
        let run = run(platform, &["--cpu-time", "0.5", "--", "sh", "-c", script]);
        assert_eq!(run.code, Some(124), "{platform} {}", run.error);
        assert!(started.elapsed() < Duration::from_secs(60));
        let limit = run.limit("cpu-time").expect("told");
        assert_eq!((&limit["value"], &limit["action"]), (&500.into(), &"ended".into()));
        assert_eq!(run.end()["reason"], "cpu-time");
        assert!(run.end()["cpu_ms"].as_u64() >= Some(500), "{:?}", run.end());
    }
}

#[test]
fn a_sleeper_ends_at_the_time_limit() {
    for platform in PLATFORMS {
        let run = run(
            platform,
            &[
                "--timeout",
                "0.3",
                "--",
                "sh",
                "-c",
                "trap 'echo told; exit 5' TERM; sleep 60 & wait",
            ],
        );
        assert_eq!(
            (run.code, run.out.as_str()),
            (Some(124), "told\n"),
            "{platform} {}",
            run.error
        );
        assert_eq!(run.limit("timeout").expect("told")["value"], 300);
        assert_eq!(run.end()["reason"], "timeout");
    }
}

#[test]
fn output_stops_at_its_limit() {
    for platform in PLATFORMS {
        let script = "head -c 100000 /dev/zero; echo $? > /tmp/code; kill -l $(cat /tmp/code) > /tmp/name";
        let run = run(
            platform,
            &[
                "--output-limit",
                "4k",
                "--",
                "bash",
                "-c",
                &format!("{script}; sleep 0.2"),
            ],
        );
        assert_eq!(run.out.len(), 4096, "{platform} {}", run.error);
        assert_eq!(run.limit("output-limit").expect("told")["value"], 4096);
        assert_eq!(run.end()["output"], 4096);
    }
}

#[test]
fn open_files_have_a_limit_that_cannot_be_raised() {
    for platform in PLATFORMS {
        let script = "ulimit -n; ulimit -Hn; ulimit -n 65 2> /dev/null || echo no";
        let run = run(
            platform,
            &["--nofile", "64", "--user", "1000", "--", "bash", "-c", script],
        );
        assert_eq!(run.out, "64\n64\nno\n", "{platform} {}", run.error);
    }
}

#[test]
fn a_profile_gives_the_limits_that_are_not_given() {
    let profile = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(profile.path(), "nofile = 50\npids = 7\n").expect("write");
    let path = profile.path().to_str().expect("UTF-8");
    let run = run(
        "systrap",
        &["--profile", path, "--nofile", "60", "--", "sh", "-c", "ulimit -n"],
    );
    assert_eq!(run.out, "60\n", "{}", run.error);
    assert_eq!(run.events[0]["limits"]["pids"], "7");
    let check = |text: &str| {
        std::fs::write(profile.path(), text).expect("write");
        Command::new(SENTRY)
            .args(["profile", "check", path])
            .output()
            .expect("it starts")
    };
    let good = check("timeout = 2");
    assert_eq!(
        (good.status.code(), text(&good).contains("timeout        2 s")),
        (Some(0), true)
    );
    let bad = check("pid = 2");
    assert_eq!((bad.status.code(), error_text(&bad).contains("pid")), (Some(1), true));
}

/// A reader that does not read holds nobody up, and what it misses is told.
#[test]
fn a_reader_that_sleeps_holds_nobody_up() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i + 1)); done; echo done";
    let mut command = Command::new("bash");
    command
        .args(["-c", "exec \"$0\" \"$@\" 7>&1 1>/dev/null"])
        .args([SENTRY, "exec", "--events", "fd:7", "--", "sh", "-c", script])
        .stdout(writer);
    let mut child = command.spawn().expect("it starts");
    drop(command);
    std::thread::sleep(Duration::from_millis(500));
    let mut log = String::new();
    std::io::Read::read_to_string(&mut reader, &mut log).expect("a log");
    assert!(child.wait().expect("an end").success());
    let events: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let execs = events.iter().filter(|event| event["event"] == "exec").count();
    let lost: u64 = events.iter().filter_map(|event| event["lost"].as_u64()).sum();
    assert!(execs as u64 + lost >= 2001, "{execs} {lost}");
    assert_eq!(events.last().expect("a last one")["event"], "session_end");
}

#[test]
fn hardening_says_how_limits_are_held() {
    let output = Command::new(SENTRY).arg("hardening").output().expect("it starts");
    let text = text(&output);
    for option in ["--memory", "--cpus", "--pids", "--disk", "--output-limit", "--io-rate"] {
        assert!(text.contains(&format!("\n  {option} ")), "{text}");
    }
}

#[test]
fn the_summary_has_what_was_used() {
    let output = Command::new(SENTRY)
        .args(["exec", "--summary", "--", "sh", "-c", "echo 12345; true | true"])
        .output()
        .expect("it starts");
    let error = error_text(&output);
    for line in ["processes  3\n", "output     6 bytes\n", "denials    0\n", "time "] {
        assert!(error.contains(line), "{error}");
    }
}

/// The hog goes, the others stay.
#[test]
fn a_memory_hog_is_killed_and_the_others_go_on() {
    for platform in PLATFORMS {
        let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
        let script =
            format!("python3 -c '{hog}' & hog=$!; wait $hog; echo hog $?; python3 -c 'print(len(bytearray(8 << 20)))'");
        let run = run(
            platform,
            &["--memory", "200m", "--timeout", "60", "--", "sh", "-c", &script],
        );
        assert_eq!(run.out, "hog 137\n8388608\n", "{platform} {}", run.error);
        let limit = run.limit("memory").expect("told");
        assert_eq!(
            (&limit["value"], &limit["action"]),
            (&(200u64 << 20).into(), &"killed".into())
        );
        assert_eq!(limit["comm"], "python3");
        // What can be touched between two looks.
        let used = limit["used"].as_u64().expect("a number");
        assert!(used > 200 << 20 && used < 500 << 20, "{used}");
        assert!(run.end()["peak_memory"].as_u64() >= Some(used / 2));
    }
}

/// What fork(2) shares counts once.
#[test]
fn memory_shared_after_a_fork_counts_once() {
    for platform in PLATFORMS {
        let script = "
import os, time
data = bytearray(120 << 20)
for i in range(0, len(data), 4096): data[i] = 1
children = [os.fork() for _ in range(1)]
if children[0] == 0:
    time.sleep(1)
    os._exit(7)
print(os.waitpid(children[0], 0)[1] >> 8)";
        let run = run(
            platform,
            &["--memory", "220m", "--timeout", "60", "--", "python3", "-c", script],
        );
        assert_eq!(run.out, "7\n", "{platform} {}", run.error);
        assert!(run.limit("memory").is_none());
    }
}

#[test]
fn files_in_memory_count_as_memory() {
    for platform in PLATFORMS {
        let script = "head -c 300m /dev/zero > /tmp/f; ls -s --block-size=1m /tmp/f | cut -d ' ' -f 1; rm /tmp/f; echo ok > /tmp/g; cat /tmp/g; grep MemTotal /proc/meminfo";
        let run = run(
            platform,
            &["--memory", "100m", "--timeout", "60", "--", "sh", "-c", script],
        );
        let lines: Vec<&str> = run.out.lines().collect();
        let written: u64 = lines[0].parse().expect("a number");
        assert!((40..100).contains(&written), "{platform} {} {}", run.out, run.error);
        assert_eq!(
            lines[1..],
            ["ok", "MemTotal:         102400 kB"],
            "{platform} {}",
            run.error
        );
        assert!(run.error.contains("No space left"), "{}", run.error);
    }
}

#[test]
fn all_that_is_writable_has_one_limit() {
    for platform in PLATFORMS {
        let script = "head -c 3m /dev/zero > /tmp/a; head -c 3m /dev/zero > /etc/b; head -c 3m /dev/zero > /dev/shm/c; cat /tmp/a /etc/b /dev/shm/c | wc -c; df --output=size /tmp | tail -n 1";
        let run = run(platform, &["--disk", "5m", "--", "sh", "-c", script]);
        assert_eq!(
            run.out.replace(' ', ""),
            format!("{}\n5120\n", 5 << 20),
            "{platform} {}",
            run.error
        );
        let script = "mkdir /tmp/d; i=0; while : > /tmp/d/$i; do i=$((i+1)); done; ls /tmp/d | wc -l";
        let run = self::run(platform, &["--disk-inodes", "200", "--", "bash", "-c", script]);
        let made: u64 = run.out.trim().parse().expect("a number");
        assert!((50..200).contains(&made), "{platform} {made} {}", run.error);
    }
}

#[test]
fn processor_time_is_rationed() {
    for platform in PLATFORMS {
        let script = "import time, os\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(os.cpu_count(), time.process_time())";
        let run = run(platform, &["--cpus", "0.2", "--", "python3", "-c", script]);
        let (count, used) = run.out.trim().split_once(' ').expect("two words");
        assert_eq!(count, "1", "{platform}");
        let used: f64 = used.parse().expect("a number");
        assert!(used < 0.8, "{platform}: {used} s of 2");
        assert_eq!(run.limit("cpus").expect("told")["action"], "throttled");
    }
}

/// Programs that make the sentry grow: what they make, again and again, after `keep = []`.
const KERNEL_HOGS: [(&str, &str); 6] = [
    (
        "sockets",
        "a, b = socket.socketpair()\n  keep += [a, b]\n  a.setblocking(False)\n  try:\n   while True: a.send(b'x' * 65536)\n  except BlockingIOError: pass",
    ),
    (
        "datagrams",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n  keep += [a, b]\n  a.setblocking(False)\n  try:\n   while True: a.send(b'x' * 60000)\n  except BlockingIOError: pass",
    ),
    (
        "pipes",
        "r, w = os.pipe()\n  keep += [r, w]\n  os.set_blocking(w, False)\n  try:\n   while True: os.write(w, b'x' * 65536)\n  except BlockingIOError: pass",
    ),
    ("eventfds", "keep.append(os.eventfd(0))"),
    ("inodes", "os.close(os.open('/tmp/%d' % n, os.O_CREAT | os.O_WRONLY))"),
    ("directories", "os.mkdir('d' * 200); os.chdir('d' * 200)"),
];

/// The process that makes the sentry grow is refused or killed, and one that has more memory of its own goes on. There is
/// room for the former to outgrow the latter: who has most is killed.
#[test]
fn who_makes_the_sentry_grow_is_limited() {
    for platform in PLATFORMS {
        for (name, step) in KERNEL_HOGS {
            let innocent = "data = bytearray(50 << 20)\nfor i in range(0, len(data), 4096): data[i] = 1\nprint('ready', flush=True)\nsys.stdin.read()\nprint('lives')";
            let hog = format!(
                "os.chdir('/tmp')\nresource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))\nkeep, n = [], 0\ntry:\n while n < 300000:\n  n += 1\n  {step}\nexcept OSError: pass\nos._exit(3)"
            );
            let script = format!(
                "import os, sys, socket, resource, subprocess
head = 'import os, sys, socket, resource\\n'
innocent = subprocess.Popen([sys.executable, '-c', head + {innocent:?}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
innocent.stdout.readline()
hog = subprocess.run([sys.executable, '-c', head + {hog:?}])
print('hog', hog.returncode in (3, -9), innocent.communicate('')[0].strip())"
            );
            let args = [
                "--memory",
                "200m",
                "--user",
                "0",
                "--timeout",
                "100",
                "--",
                "python3",
                "-c",
                &script,
            ];
            let run = run(platform, &args);
            assert_eq!(
                run.out,
                "hog True lives\n",
                "{platform} {name}: {} {:?}",
                run.error,
                run.limit("memory")
            );
            let peak = run.end()["peak_memory"].as_u64().expect("a number");
            assert!(peak < 320 << 20, "{platform} {name}: {peak}");
        }
    }
}

/// Root can raise RLIMIT_SIGPENDING; the sentry stays small.
#[test]
fn queued_signals_have_a_limit_for_all() {
    for platform in PLATFORMS {
        let script = "
import ctypes, os, resource, signal
resource.setrlimit(11, (resource.RLIM_INFINITY,) * 2)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while count < 200000 and libc.sigqueue(os.getpid(), 40, None) == 0: count += 1
print(count, ctypes.get_errno())";
        let run = run(
            platform,
            &["--user", "0", "--timeout", "100", "--", "python3", "-c", script],
        );
        assert_eq!(
            run.out,
            format!("{} {}\n", 1 << 17, libc::EAGAIN),
            "{platform} {}",
            run.error
        );
    }
}

#[test]
fn files_are_read_and_written_at_a_rate() {
    for platform in PLATFORMS {
        // A pipe is none of these, and the burst is small.
        let script = "head -c 3m /dev/zero | cat > /tmp/f; cat /tmp/f | wc -c";
        let started = Instant::now();
        let run = self::run(
            platform,
            &["--io-rate", "4m", "--timeout", "60", "--", "sh", "-c", script],
        );
        let took = started.elapsed();
        assert_eq!(run.out, format!("{}\n", 3 << 20), "{platform} {}", run.error);
        assert!(took > Duration::from_millis(1200), "{platform}: {took:?}");
        let limit = run.limit("io-rate").expect("told");
        assert_eq!(
            (&limit["value"], &limit["action"]),
            (&(4 << 20).into(), &"throttled".into())
        );
        // Who waits can be killed.
        let script =
            "dd if=/dev/zero of=/tmp/f bs=256k count=400 2> /dev/null & sleep 0.3; kill -9 $!; wait $!; echo $?";
        let started = Instant::now();
        let run = self::run(platform, &["--io-rate", "512k", "--", "sh", "-c", script]);
        assert_eq!(run.out, "137\n", "{platform} {}", run.error);
        assert!(started.elapsed() < Duration::from_secs(30), "{platform}");
    }
}

#[test]
fn changed_files_are_counted() {
    for platform in PLATFORMS {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "x").expect("write");
        }
        for name in ["usr", "lib", "lib64"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        let root = dir.path().to_str().expect("UTF-8");
        let script = "import os; os.mkdir('d'); open('d/e', 'w').close(); open('a', 'a').write('y'); os.unlink('b'); open('c').read()";
        let args = [
            "--summary",
            "--ro",
            "/usr",
            "--ro",
            "/usr/lib:/lib",
            "--ro",
            "/usr/lib64:/lib64",
            "--root",
            root,
            "--cwd",
            "/",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ];
        let run = run(platform, &args);
        assert_eq!(run.code, Some(0), "{platform} {}", run.error);
        let end = run.end();
        assert_eq!(
            (&end["created"], &end["changed"], &end["deleted"]),
            (&2.into(), &1.into(), &1.into()),
            "{platform} {end}"
        );
        assert!(
            run.error.contains("files      2 created, 1 changed, 1 deleted\n"),
            "{}",
            run.error
        );
    }
}
