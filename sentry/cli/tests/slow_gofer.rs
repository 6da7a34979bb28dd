//! A gofer that does not answer holds up whoever asks it, and nobody else.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Host, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn launcher() {
    common::launch();
}

/// A shell in a sandbox that does what it is told, and the files that it shares with this host.
struct Shell {
    dir: tempfile::TempDir,
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    gofer: Pid,
}

impl Shell {
    fn start(host: Host, platform: &str) -> Option<Shell> {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        fs::create_dir(dir.path().join("d")).expect("mkdir");
        for file in ["f", "g", "d/h"] {
            fs::write(dir.path().join(file), format!("content of {file}\n")).expect("write");
        }
        let shared = format!("{}:/w", dir.path().display());
        // Built-ins only: programs would come from the gofer.
        let script = "while read -r line; do eval \"$line\"; done";
        let args = [
            "exec",
            "--platform",
            platform,
            "--workers",
            "1",
            "--rw",
            &shared,
            "--",
            "sh",
            "-c",
            script,
        ];
        let mut command = host.sentry_with(&args)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the executable starts");
        let (input, lines) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (send, output) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut shell = Shell {
            dir,
            child,
            input,
            output,
            gofer: Pid::from_raw(0),
        };
        shell.tell("echo ready");
        while shell.line() != "ready" {}
        let supervisor = shell.child.id();
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).expect("/proc");
        let is_gofer =
            |pid: &&str| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sentry\0gofer\0");
        let gofer = children.split_whitespace().find(is_gofer).expect("a gofer");
        shell.gofer = Pid::from_raw(gofer.parse().expect("a number"));
        Some(shell)
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("write");
    }

    fn line(&self) -> String {
        self.output
            .recv_timeout(Duration::from_secs(20))
            .expect("an answer, and soon")
    }

    /// What the shell prints when it is told this.
    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Stops the gofer, or lets it go on.
    fn signal(&self, signal: Signal) {
        kill(self.gofer, signal).expect("our own gofer");
        if signal == Signal::SIGSTOP {
            let stopped = || {
                let stat = fs::read_to_string(format!("/proc/{}/stat", self.gofer)).expect("/proc");
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            assert!(eventually(stopped));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Where a test has failed: the supervisor takes the rest along.
        let _ = kill(self.gofer, Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn everywhere(test: impl Fn(Shell)) {
    for host in [Host::Plain, Host::OrdinaryRestricted] {
        for platform in ["systrap", "ptrace"] {
            if let Some(shell) = Shell::start(host, platform) {
                test(shell);
            }
        }
    }
}

#[test]
fn others_go_on_and_those_who_wait_can_be_killed() {
    everywhere(|mut shell| {
        shell.signal(Signal::SIGSTOP);
        // Look-ups, listings, new files; in the same directory and in others, so that they also wait for each other.
        for (number, what) in [
            ": < /w/f",
            "cd /w/d",
            "echo new > /w/new",
            "test -e /w/d/none",
            "set /w/*",
            ": < /w/g",
        ]
        .iter()
        .enumerate()
        {
            shell.tell(&format!("({what}) & p{number}=$!"));
            assert_eq!(shell.ask(&format!("echo {number}")), number.to_string());
        }
        for round in 0..200 {
            assert_eq!(
                shell.ask(&format!("echo $(echo $(({round} * 2)))")),
                (round * 2).to_string()
            );
        }
        for number in [0, 1, 3] {
            let told = format!("kill -9 $p{number}; wait $p{number}; echo $?");
            assert_eq!(shell.ask(&told), "137");
        }
        shell.signal(Signal::SIGCONT);
        // What was waited for comes; what was given up is no harm.
        assert_eq!(shell.ask("wait $p2; echo $?"), "0");
        assert_eq!(shell.ask("wait $p4 $p5; echo $?"), "0");
        assert_eq!(shell.ask("read -r text < /w/new; echo $text"), "new");
        assert_eq!(fs::read(shell.dir.path().join("new")).expect("read"), b"new\n");
        assert_eq!(shell.ask("cd /w/d; read -r text < h; echo $text"), "content of d/h");
    });
}

#[test]
fn a_sandbox_ends_while_its_files_do_not_answer() {
    everywhere(|mut shell| {
        shell.signal(Signal::SIGSTOP);
        shell.tell("(: < /w/f) & (cd /w/d) & (: < /w/d/h) &");
        assert_eq!(shell.ask("echo still here"), "still here");
        shell.tell("exit 7");
        let mut status = None;
        assert!(eventually(|| {
            status = shell.child.try_wait().expect("our own child");
            status.is_some()
        }));
        assert_eq!(status.and_then(|status| status.code()), Some(7));
    });
}

/// The shell itself waits, and is the one that is killed.
#[test]
fn a_waiting_sandbox_is_ended_by_a_signal() {
    everywhere(|mut shell| {
        shell.signal(Signal::SIGSTOP);
        shell.tell("echo now; : < /w/f");
        assert_eq!(shell.line(), "now");
        kill(Pid::from_raw(shell.child.id() as i32), Signal::SIGTERM).expect("our own child");
        let mut status = None;
        assert!(eventually(|| {
            status = shell.child.try_wait().expect("our own child");
            status.is_some()
        }));
        assert_eq!(status.and_then(|status| status.code()), Some(128 + libc::SIGTERM));
    });
}
