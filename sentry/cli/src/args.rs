//! The command line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cgroup;
use crate::events::{Target, target};
use sentry_kernel::config::{Stuck, Way};

use sentry_limits::{Limits, bytes};

const EXIT_CODES: &str = "\
Exit codes:
  The command's own; 128+N if signal N killed it; 124 after --timeout;
  125 if sentry itself failed, 126 if the command cannot be executed, 127 if it was not found.";

const CHECK_CODES: &str = "\
Exit codes:
  0 if nothing in the log is missing, 1 if something is, 125 if the log cannot be read.";

/// Runs programs on a kernel in user space: none of their system calls reaches the host with its own meaning.
#[derive(Debug, Parser)]
#[command(name = "sentry", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox
    Exec(Box<Exec>),
    /// Show which protections are in force on this host, and what each part may still do
    Hardening(Hardening),
    /// List the system calls that the kernel implements
    Syscalls {
        /// As a JSON array, with the conformance cases that show each call
        #[arg(long)]
        json: bool,
    },
    /// Profiles: files with limits for `sentry exec --profile`
    Profile {
        /// What to do
        #[command(subcommand)]
        command: Profile,
    },
    /// Say what of the log of an `strace -f` run the kernel does not do
    #[command(after_help = CHECK_CODES)]
    Check {
        /// The log, `-` for standard input; as `strace -f -o TRACE COMMAND` writes it
        trace: PathBuf,
    },
}

/// What to do with a profile.
#[derive(Debug, Subcommand)]
pub enum Profile {
    /// Say what a profile limits, or what is wrong with it (exit code 1)
    Check {
        /// A TOML file; the names are those of the options of `sentry exec`
        file: PathBuf,
    },
}

/// How guest code is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PlatformChoice {
    /// systrap where seccomp works, else ptrace
    #[default]
    Auto,
    /// seccomp traps and shared memory
    Systrap,
    /// PTRACE_SYSEMU
    Ptrace,
}

impl PlatformChoice {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PlatformChoice::Auto => "auto",
            PlatformChoice::Systrap => "systrap",
            PlatformChoice::Ptrace => "ptrace",
        }
    }
}

/// `sentry exec`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Exec {
    /// How guest code is run
    #[arg(long, value_enum, default_value_t)]
    pub platform: PlatformChoice,

    /// Show DIR as the root directory instead of the default view; writes stay in memory
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Show a host directory or file, read-only
    #[arg(long, value_name = "SRC[:DST]", value_parser = bind)]
    pub ro: Vec<Bind>,

    /// Show a host directory or file; writes reach the host
    #[arg(long, value_name = "SRC[:DST]", value_parser = bind)]
    pub rw: Vec<Bind>,

    /// Put an empty file system in memory at DST (SIZE with k, m or g)
    #[arg(long, value_name = "DST[:SIZE]", value_parser = tmpfs)]
    pub tmpfs: Vec<Tmpfs>,

    /// Start in DIR instead of the current directory
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// Set an environment variable; of the caller's, only PATH, HOME, TERM, LANG and TZ are passed on
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<OsString>,

    /// Run as this user, as the command sees it; the caller's by default
    #[arg(long, value_name = "UID[:GID]", value_parser = user)]
    pub user: Option<User>,

    /// The host name that the command sees
    #[arg(long, value_name = "NAME", default_value = "sentry", value_parser = hostname)]
    pub hostname: String,

    /// How many threads the kernel works with
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub workers: Option<u16>,

    /// Print start-up times and counters at the end
    #[arg(long)]
    pub stats: bool,

    /// List what the command added, changed and deleted above the host's files, to FILE instead of standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub diff: Option<OsString>,

    /// Keep what it added, changed and deleted in FILE, a tar archive as image layers are
    #[arg(long, value_name = "FILE")]
    pub diff_out: Option<PathBuf>,

    /// Print system calls (only CALLS, separated by commas)
    #[arg(long, value_name = "CALLS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_delimiter = ',')]
    pub strace: Option<Vec<String>>,

    /// Print them to FILE instead of standard error
    #[arg(long, value_name = "FILE")]
    pub strace_file: Option<PathBuf>,

    /// What the sandbox may use
    #[command(flatten)]
    pub limits: Limits,

    /// Take limits that are not given here from FILE (TOML)
    #[arg(long, value_name = "FILE", help_heading = "Limits")]
    pub profile: Option<PathBuf>,

    /// Let the host hold limits too, in a cgroup of the sandbox's own
    #[arg(long, value_enum, default_value_t, help_heading = "Limits")]
    pub cgroup: cgroup::Choice,

    /// Write what happens to FILE, or to the descriptor N: a line of JSON for each event
    #[arg(long, value_name = "FILE|fd:N", value_parser = target)]
    pub events: Option<Target>,

    /// Print what was used at the end
    #[arg(long)]
    pub summary: bool,

    /// Report host calls outside the sentry's list and let them fail, instead of ending the sandbox
    #[arg(long, hide = true)]
    pub debug_filter_log: bool,

    /// Have whoever carries out CALL run on for ever, wait for ever, or be slow; the watch over the workers is ten times
    /// faster
    #[arg(long, hide = true, value_name = "spin|block|slow:CALL", value_parser = stuck)]
    pub debug_stuck: Option<Stuck>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `sentry hardening`.
#[derive(Debug, Args)]
pub struct Hardening {
    /// How guest code would be run
    #[arg(long, value_enum, default_value_t)]
    pub platform: PlatformChoice,

    /// As JSON, the host calls with their numbers and conditions
    #[arg(long)]
    pub json: bool,
}

/// A host path and where the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bind {
    pub source: PathBuf,
    pub target: Option<PathBuf>,
}

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Tmpfs {
    pub target: PathBuf,
    pub size: Option<u64>,
}

/// A user as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

fn bind(text: &str) -> Result<Bind, String> {
    let (source, target) = match text.split_once(':') {
        Some((source, target)) => (source, Some(PathBuf::from(target))),
        None => (text, None),
    };
    if source.is_empty() || target.as_ref().is_some_and(|target| !target.is_absolute()) {
        return Err("expected SRC or SRC:DST, with an absolute DST".into());
    }
    Ok(Bind {
        source: source.into(),
        target,
    })
}

fn tmpfs(text: &str) -> Result<Tmpfs, String> {
    let (target, size) = match text.split_once(':') {
        Some((target, size)) => (target, Some(bytes(size)?)),
        None => (text, None),
    };
    if !target.starts_with('/') {
        return Err("expected an absolute DST".into());
    }
    Ok(Tmpfs {
        target: target.into(),
        size,
    })
}

fn stuck(text: &str) -> Result<Stuck, String> {
    let (way, call) = text.split_once(':').ok_or("expected WAY:CALL")?;
    let way = match way {
        "spin" => Way::Spin,
        "block" => Way::Block,
        "slow" => Way::Slow,
        _ => return Err("expected spin, block or slow".into()),
    };
    Ok(Stuck { way, call: call.into() })
}

fn assignment(text: &str) -> Result<OsString, String> {
    match text.find('=') {
        Some(0) | None => Err("expected NAME=VALUE".into()),
        Some(_) => Ok(text.into()),
    }
}

fn user(text: &str) -> Result<User, String> {
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) if number != u32::MAX => Ok(number),
        _ => Err(format!("not a user or group number: {text}")),
    };
    match text.split_once(':') {
        Some((uid, gid)) => Ok(User {
            uid: number(uid)?,
            gid: number(gid)?,
        }),
        None => number(text).map(|uid| User { uid, gid: uid }),
    }
}

fn hostname(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 64 || text.contains('\0') {
        return Err("expected 1 to 64 characters".into());
    }
    Ok(text.into())
}

/// The environment for a command: what is passed on of the caller's, then `--env`, the last of a name counting.
pub fn environment(own: impl Iterator<Item = (OsString, OsString)>, added: &[OsString]) -> Vec<Vec<u8>> {
    const PASSED: [&str; 5] = ["PATH", "HOME", "TERM", "LANG", "TZ"];
    let name_of = |entry: &[u8]| entry.iter().position(|byte| *byte == b'=').unwrap_or(entry.len());
    let mut environment: Vec<Vec<u8>> = Vec::new();
    let passed = own
        .filter(|(name, _)| PASSED.iter().any(|passed| name == passed))
        .map(|(name, value)| {
            let mut entry = name.into_vec();
            entry.push(b'=');
            entry.extend_from_slice(value.as_bytes());
            entry
        });
    let default_path = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec();
    for entry in std::iter::once(default_path)
        .chain(passed)
        .chain(added.iter().map(|entry| entry.as_bytes().to_vec()))
    {
        let name = &entry[..name_of(&entry)];
        match environment.iter_mut().find(|other| other[..name_of(other)] == *name) {
            Some(other) => *other = entry,
            None => environment.push(entry),
        }
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(args: &[&str]) -> Result<Exec, clap::Error> {
        let all = ["sentry", "exec"].iter().chain(args);
        Cli::try_parse_from(all).map(|cli| match cli.command {
            Command::Exec(exec) => *exec,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn options_end_at_the_command() {
        let parsed = exec(&["--stats", "ls", "-l", "--stats", "--", "x"]).unwrap();
        assert!(parsed.stats);
        assert_eq!(parsed.command, ["ls", "-l", "--stats", "--", "x"]);
        let parsed = exec(&["--", "--odd", "-l"]).unwrap();
        assert_eq!(parsed.command, ["--odd", "-l"]);
        assert!(exec(&["--no-such-option", "ls"]).is_err());
        assert!(exec(&[]).is_err());
    }

    #[test]
    fn strace_takes_calls_only_after_an_equals_sign() {
        assert_eq!(exec(&["ls"]).unwrap().strace, None);
        assert_eq!(exec(&["--strace", "ls"]).unwrap().strace, Some(vec![String::new()]));
        assert_eq!(
            exec(&["--strace=open,read", "ls"]).unwrap().strace,
            Some(vec!["open".into(), "read".into()])
        );
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(
            tmpfs("/x:4k").unwrap(),
            Tmpfs {
                target: "/x".into(),
                size: Some(4096)
            }
        );
        assert!(tmpfs("x").is_err() && tmpfs("/x:k").is_err() && tmpfs("/x:99999999999g").is_err());
        assert_eq!(user("7").unwrap(), User { uid: 7, gid: 7 });
        assert!(user("4294967295").is_err() && user("1:").is_err() && user("-1").is_err());
        assert!(bind(":/x").is_err() && bind("a:b").is_err());
        assert_eq!(
            bind("a:/b").unwrap(),
            Bind {
                source: "a".into(),
                target: Some("/b".into())
            }
        );
        assert!(exec(&["--timeout", "-1", "x"]).is_err() && exec(&["--timeout", "x", "x"]).is_err());
        let parsed = exec(&["--timeout", "0.5", "--pids=7", "x"]).unwrap();
        assert_eq!(parsed.limits.timeout, Some(std::time::Duration::from_millis(500)));
        assert_eq!(parsed.limits.pids, Some(7));
    }

    #[test]
    fn the_environment_is_reduced() {
        let own = [("PATH", "/p"), ("SECRET", "s"), ("TERM", "t")].map(|(name, value)| (name.into(), value.into()));
        let environment = environment(own.into_iter(), &["A=1".into(), "TERM=u".into(), "A=2".into()]);
        let environment: Vec<_> = environment
            .iter()
            .map(|entry| String::from_utf8_lossy(entry).into_owned())
            .collect();
        assert_eq!(environment, ["PATH=/p", "TERM=u", "A=2"]);
    }
}
