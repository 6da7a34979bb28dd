//! What the tests of the command share: running it, as several users and on hosts that allow less.
#![allow(dead_code)]

pub mod container;
pub mod fuse;
pub mod perl;
pub mod truth;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The executable under test.
pub const SENTRY: &str = env!("CARGO_BIN_EXE_sentry");

/// Where the sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// As the tests are.
    Plain,
    /// As a user without privileges.
    Ordinary,
    /// Where namespaces and mounts are refused.
    Restricted,
    /// Both.
    OrdinaryRestricted,
}

impl Host {
    /// All of them.
    pub const ALL: [Host; 4] = [Host::Plain, Host::Ordinary, Host::Restricted, Host::OrdinaryRestricted];

    /// A command that runs the sentry there; `None` (and a loud message) if this machine cannot.
    pub fn sentry(self) -> Option<Command> {
        let ordinary = matches!(self, Host::Ordinary | Host::OrdinaryRestricted);
        if ordinary && !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: {self:?} needs root, to become somebody else");
            return None;
        }
        let mut command = match self {
            Host::Plain | Host::Ordinary => Command::new(SENTRY),
            Host::Restricted | Host::OrdinaryRestricted => {
                // This test program itself, as the launcher.
                let mut command = Command::new(std::env::current_exe().expect("own path"));
                command
                    .env(LAUNCH, SENTRY)
                    .args(["--exact", "launcher", "--nocapture", "-q", "--"]);
                command
            }
        };
        // Every directory of it can be searched by everybody.
        command.env("PATH", "/usr/bin:/bin");
        if ordinary {
            let (user, group) = (54321, 54321);
            command.uid(user).gid(group);
        }
        Some(command)
    }

    /// `sentry` with these arguments there; `None` as for [`Host::sentry`].
    pub fn sentry_with(self, args: &[&str]) -> Option<Command> {
        let mut command = self.sentry()?;
        if matches!(self, Host::Restricted | Host::OrdinaryRestricted) {
            command.env(ARGS, args.join("\x1f"));
        } else {
            command.args(args);
        }
        // A directory that everybody may enter, and that is served.
        command.current_dir("/usr");
        Some(command)
    }

    /// Runs `sentry` with these arguments there.
    pub fn run(self, args: &[&str]) -> Option<Output> {
        Some(self.sentry_with(args)?.output().expect("the executable starts"))
    }
}

const LAUNCH: &str = "SENTRY_TEST_LAUNCH";
const ARGS: &str = "SENTRY_TEST_ARGS";

/// To be called by a test named `launcher`: turns this process into a sentry on a host that refuses namespaces.
pub fn launch() {
    let Some(program) = std::env::var_os(LAUNCH) else {
        return;
    };
    let flags = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    let with_flag = |flag: i32| {
        let flag = flag as u32 as u64;
        let condition =
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flag), flag).expect("condition");
        SeccompRule::new(vec![condition]).expect("rule")
    };
    let refused = BTreeMap::from([
        (libc::SYS_unshare, vec![]),
        (libc::SYS_mount, vec![]),
        (libc::SYS_clone, flags.map(with_flag).to_vec()),
    ]);
    let unknown = BTreeMap::from([(libc::SYS_clone3, vec![])]);
    for (rules, errno) in [(refused, libc::EPERM), (unknown, libc::ENOSYS)] {
        let action = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64).expect("filter");
        let program = BpfProgram::try_from(filter).expect("program");
        seccompiler::apply_filter_all_threads(&program).expect("seccomp works");
    }
    let args = std::env::var(ARGS).unwrap_or_default();
    let mut command = Command::new(program);
    command.args(args.split('\x1f')).env_remove(LAUNCH).env_remove(ARGS);
    panic!("exec: {}", command.exec());
}

/// Waits until something is so; false if it does not come true within ten seconds.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    condition()
}

/// Processes whose command line has this mark, by id, with the words of the command line.
pub fn marked(mark: &str) -> Vec<(i32, Vec<String>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        if words.iter().any(|word| word.contains(mark)) {
            found.push((pid, words));
        }
    }
    found
}

/// The children of a process.
pub fn children(of: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        if parent == Some(of) {
            found.push(pid);
        }
    }
    found
}

/// The words of a process's command line, with spaces between them.
pub fn command_line(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
}

/// The text of standard error.
pub fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The text of standard output, without what the launcher's test harness says first.
pub fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.strip_prefix("\nrunning 1 test\n")
        .map(str::to_owned)
        .unwrap_or(text)
}
