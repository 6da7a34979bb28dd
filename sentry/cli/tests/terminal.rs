//! An interactive shell at a terminal: line editing, Ctrl-C, job control inside, and the sandbox as a job outside.
//! The terminal is script(1)'s.

mod common;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::SENTRY;

#[test]
fn launcher() {
    common::launch();
}

/// A command at a terminal.
struct Session {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Session {
    /// Starts it; `None` (and a loud message) without script(1).
    fn start(command: &str) -> Option<Session> {
        let started = Command::new("script")
            .args(["-q", "-e", "-c", command, "/dev/null"])
            .env("TERM", "dumb")
            .env("SHELL", "/bin/sh")
            .env_remove("PS1")
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/usr")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else {
            eprintln!("SKIPPED: script(1) is not installed");
            return None;
        };
        let input = child.stdin.take().expect("piped");
        let mut output = child.stdout.take().expect("piped");
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Some(Session {
            child,
            input,
            output: receiver,
            seen: String::new(),
        })
    }

    fn send(&mut self, text: &str) {
        self.input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush())
            .expect("the terminal takes it");
    }

    /// Waits until the terminal shows this, and forgets what came before.
    fn expect(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} in {:?}", self.seen),
            }
        }
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The terminal goes, and with it (SIGHUP) what runs there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_shell_inside_keeps_jobs_and_survives_ctrl_c() {
    let Some(mut session) = Session::start(&format!("exec {SENTRY} exec bash --norc -i")) else {
        return;
    };
    session.send("echo re''ady\n");
    session.expect("ready\r\n");
    // The shell turns the terminal's echo off while it edits a line: one thing after the other.
    session.expect("bash-");
    session.send("echo u''p; cat\n");
    session.expect("up\r\n");
    session.send("first\n");
    session.expect("first\r\nfirst\r\n");
    session.send("\x03");
    session.expect("bash-");
    session.send("echo code $?\n");
    session.expect("code 130\r\n");
    session.expect("bash-");
    session.send("echo u''p; cat\n");
    session.expect("up\r\n");
    session.send("line\n");
    session.expect("line\r\nline\r\n");
    session.send("\x1a");
    session.expect("Stopped");
    session.expect("bash-");
    session.send("fg\n");
    session.expect("fg\r\ncat\r\n");
    session.send("again\n");
    session.expect("again\r\nagain\r\n");
    session.send("\x04");
    session.expect("bash-");
    session.send("exit 5\n");
    assert_eq!(session.code(), Some(5));
}

#[test]
fn a_sandbox_is_a_job_of_the_shell_outside() {
    let Some(mut session) = Session::start("bash --norc -i") else {
        return;
    };
    session.expect("bash-");
    session.send(&format!("{SENTRY} exec sh -c 'echo re\"\"ady; exec cat'\n"));
    session.expect("ready\r\n");
    session.send("one\n");
    session.expect("one\r\none\r\n");
    session.send("\x1a");
    session.expect("Stopped");
    session.expect("bash-");
    session.send("fg\n");
    session.expect("exec cat'\r\n");
    session.send("two\n");
    session.expect("two\r\ntwo\r\n");
    session.send("\x03");
    session.expect("bash-");
    session.send("echo code $?; exit 6\n");
    session.expect("code 130\r\n");
    assert_eq!(session.code(), Some(6));
}

#[test]
fn the_terminals_modes_are_put_back() {
    let command = format!(
        "stty -a > /tmp/a.$$; {SENTRY} exec stty raw -echo; stty -a | cmp - /tmp/a.$$ && echo sa''me; rm /tmp/a.$$"
    );
    let Some(mut session) = Session::start(&command) else {
        return;
    };
    session.expect("same\r\n");
    assert_eq!(session.code(), Some(0));
}
