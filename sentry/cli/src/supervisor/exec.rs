//! `sentry exec` itself: from the options to a sandbox, and from its end to an exit code.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use sentry_host::{filter, process};
use sentry_kernel::config::{BootConfig, ExitStatus, StraceConfig};
use sentry_kernel::events::Totals;

use super::error::{StartError, failed};
use super::{FAILED, LAST_WORDS, Limit, Outcome, Plan, Sandbox};
use crate::args::{Exec, User, environment};
use crate::cgroup::Cgroup;
use crate::changes::{Collector, Outputs};
use crate::events::{self, EventLog, Own};
use crate::memory::{self, Meter};
use crate::parts::{self, Gofer, Report, now};
use crate::profile;
use crate::relay::Relay;
use crate::terminal::{Saved, complain, say};
use crate::view::View;
use sentry_limits::Limits;

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const TIMED_OUT: u8 = 124;

/// The user as the guest sees it, and its supplementary groups.
fn guest_user(chosen: Option<User>) -> (User, Vec<u32>) {
    match chosen {
        Some(user) => (user, Vec::new()),
        None => {
            let user = User {
                uid: nix::unistd::getuid().as_raw(),
                gid: nix::unistd::getgid().as_raw(),
            };
            let groups = nix::unistd::getgroups().unwrap_or_default();
            (user, groups.into_iter().map(|group| group.as_raw()).collect())
        }
    }
}

/// Where system calls are printed, if they are.
fn open_strace(exec: &Exec) -> Result<Option<File>, StartError> {
    let Some(path) = &exec.strace_file else {
        let error = exec
            .strace
            .as_ref()
            .map(|_| stderr().as_fd().try_clone_to_owned())
            .transpose()?;
        return Ok(error.map(File::from));
    };
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map(Some)
        .map_err(|error| StartError::Output {
            option: "--strace-file",
            path: path.display().to_string(),
            error,
        })
}

/// The log of events, if one is wanted, and the sentry's end of its socket.
fn open_log(exec: &Exec, limits: &Limits, cgroup: Option<&Cgroup>) -> Result<Option<(EventLog, OwnedFd)>, StartError> {
    let Some(target) = &exec.events else { return Ok(None) };
    let file = target.open().map_err(StartError::Events)?;
    let (ours, theirs) = parts::socket_pair().map_err(failed("socketpair"))?;
    let mut log = EventLog::new(ours, file);
    log.own(&Own::SessionStart {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        argv: events::words(exec.command.iter().map(|word| word.as_bytes())),
        uid: nix::unistd::geteuid().as_raw(),
        host_pid: std::process::id(),
        limits: limits.list().into_iter().collect(),
        cgroup: cgroup.map(|cgroup| cgroup.held().iter().map(|(limit, _)| *limit).collect()),
    });
    Ok(Some((log, theirs)))
}

fn start_exec(exec: &Exec, limits: &Limits, started: Duration) -> Result<Sandbox, StartError> {
    if limits.memory.is_some() && !memory::can_be_seen() {
        return Err(StartError::Unseen);
    }
    let cgroup = Cgroup::make(exec.cgroup, limits).map_err(StartError::Cgroup)?;
    let (log, events) = open_log(exec, limits, cgroup.as_ref())?.unzip();
    let (user, groups) = guest_user(exec.user);
    let envp = environment(std::env::vars_os(), &exec.env);
    let home = envp
        .iter()
        .find_map(|entry| entry.strip_prefix(b"HOME="))
        .map(|home| Path::new(std::ffi::OsStr::from_bytes(home)));
    let view = View::new(exec, nix::unistd::geteuid().is_root(), home.map(|home| (home, user)))?;
    let calls = exec
        .strace
        .clone()
        .or_else(|| exec.strace_file.as_ref().map(|_| Vec::new()));
    let strace = calls.map(|calls| StraceConfig {
        calls: calls.into_iter().filter(|call| !call.is_empty()).collect(),
    });
    let strace_file = open_strace(exec)?;
    let prints_calls = strace_file.as_ref().is_some_and(IsTerminal::is_terminal);
    let (relay, terminal) = Relay::new(prints_calls)?.unzip();
    let (terminal, socket) = terminal.unzip();
    let outputs = Outputs::open(exec).map_err(|(option, path, error)| StartError::Output { option, path, error })?;
    if outputs.is_some() {
        // Of the thread that collects what has changed.
        filter::let_threads_start().map_err(std::io::Error::other)?;
    }
    let (stream, changes) = match outputs {
        Some(_) => Some(nix::unistd::pipe2(OFlag::O_CLOEXEC)?).unzip(),
        None => (None, None),
    };
    let kernel = BootConfig {
        argv: exec.command.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        envp,
        cwd: view.cwd.as_os_str().as_bytes().to_vec(),
        uid: user.uid,
        gid: user.gid,
        groups,
        hostname: exec.hostname.as_bytes().to_vec(),
        mounts: view.mounts,
        workers: exec.workers.map(usize::from),
        stats: exec.stats,
        strace,
        changes: outputs.as_ref().map(Outputs::config),
        count_changes: exec.summary || exec.events.is_some(),
        terminal,
        limits: profile::for_kernel(limits),
        events: log.is_some(),
        stuck: exec.debug_stuck.clone(),
        nice: process::nice(),
    };
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(StartError::Null)?;
    let plan = Plan {
        kernel: Some(kernel),
        platform: exec.platform,
        trees: Some(Gofer {
            trees: view.trees,
            report: false,
        }),
        strace: strace_file,
        changes,
        terminal: socket,
        events,
        debug_filter: exec.debug_filter_log,
        null: &null,
        cgroup,
    };
    let mut sandbox = plan.start(started)?;
    sandbox.relay = relay;
    sandbox.counts = exec.summary || exec.events.is_some();
    sandbox.log = log;
    if let (Some(outputs), Some(stream)) = (outputs, stream) {
        sandbox.changes = Some(Collector::start(outputs, stream)?);
    }
    if limits.memory.is_some() || exec.summary || exec.events.is_some() {
        let guarded = sandbox.sentry.lifeline.is_some();
        sandbox.meter = Some(Meter::new(sandbox.sentry.pid, guarded, limits.memory));
    }
    // What the guest closes is to be closed for whoever is at the other end. Terminals are needed at the end.
    for (number, terminal) in [(0, stdin().is_terminal()), (1, stdout().is_terminal())] {
        if !terminal {
            process::give_up_stdio(number, null.as_fd())?;
        }
    }
    Ok(sandbox)
}

/// Runs `sentry exec`; the exit code.
pub fn exec(exec: &Exec) -> u8 {
    let started = now();
    let saved = Saved::take();
    let profile = exec.profile.as_deref().map(Limits::read).transpose();
    let start = profile.map_err(StartError::from).and_then(|profile| {
        let limits = exec.limits.clone().or(profile.unwrap_or_default());
        Ok((start_exec(exec, &limits, started)?, limits))
    });
    let (mut sandbox, limits) = match start {
        Ok(started) => started,
        Err(error) => {
            complain(error.to_string().trim_end());
            return FAILED;
        }
    };
    let outcome = sandbox.supervise(limits.timeout);
    let reported = now();
    sandbox.tell_killed();
    let (ending, killed) = (sandbox.ending, sandbox.killed);
    if !matches!(outcome, Outcome::Ended) {
        sandbox.finish();
    }
    let changes = sandbox.changes.take();
    let log = sandbox.log.take();
    let peak = sandbox.meter.as_ref().map_or(0, |meter| meter.peak);
    sandbox.clean_up();
    saved.restore();
    let mut reason = ending.map_or("ended", Limit::name);
    let mut used = Totals::default();
    let mut fault = None;
    let mut code = match outcome {
        Outcome::Ended => TIMED_OUT,
        Outcome::Told(what) => {
            (reason, fault) = ("fault", Some(what));
            FAILED
        }
        Outcome::Broken(what) => {
            complain(&what);
            (reason, fault) = ("fault", Some(what));
            FAILED
        }
        Outcome::Reported(Report::Ended { status, stats, totals }) => {
            for line in stats {
                say(&format!("{line}\n"));
            }
            used = totals;
            if let ExitStatus::Failed(what) = &status {
                (reason, fault) = ("fault", Some(what.clone()));
            }
            if ending.is_some() { TIMED_OUT } else { code_of(status) }
        }
        Outcome::Reported(Report::Isolation { .. } | Report::Warning(_)) => {
            complain("the sentry sent nonsense");
            FAILED
        }
    };
    match changes.map(Collector::finish) {
        Some(Ok(remarks)) => remarks.iter().for_each(|remark| complain(remark)),
        Some(Err(what)) => {
            complain(&format!("what has changed is incomplete: {what}"));
            code = FAILED;
        }
        None => {}
    }
    if exec.stats {
        let whole = now().saturating_sub(started);
        let teardown = now().saturating_sub(reported);
        say(&format!(
            "start to exit: {:.2} ms, of it clean-up {:.2} ms\n",
            millis(whole),
            millis(teardown)
        ));
    }
    if let (Some(limit), true) = (ending, killed) {
        complain(limit.complaint());
    }
    let wall = now().saturating_sub(started);
    if exec.summary {
        for line in summary(wall, peak, &used) {
            say(&line);
        }
    }
    if let Some(mut log) = log {
        log.drain(LAST_WORDS);
        if let Some(what) = fault {
            log.own(&Own::Fault { what });
        }
        log.own(&Own::SessionEnd {
            reason,
            exit_code: code,
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            totals: used,
            peak_memory: peak,
        });
        if let Some(what) = log.finish(LAST_WORDS) {
            complain(&what);
        }
    }
    code
}

/// What `--summary` prints.
fn summary(wall: Duration, peak: u64, used: &Totals) -> Vec<String> {
    vec![
        format!("time       {:.3} s\n", wall.as_secs_f64()),
        format!("processor  {:.3} s\n", Duration::from_millis(used.cpu_ms).as_secs_f64()),
        format!("memory     {} MiB at most\n", peak >> 20),
        format!("processes  {}\n", used.processes),
        format!("output     {} bytes\n", used.output),
        format!(
            "files      {} created, {} changed, {} deleted\n",
            used.created, used.changed, used.deleted
        ),
        format!("denials    {}\n", used.denials),
    ]
}

/// A duration in milliseconds, for printing.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn code_of(status: ExitStatus) -> u8 {
    let (code, what) = match status {
        ExitStatus::Code(code) => return code,
        ExitStatus::Signal(signal) => return 128u8.wrapping_add(signal.clamp(1, 64) as u8),
        ExitStatus::NotFound(what) => (NOT_FOUND, what),
        ExitStatus::NotExecutable(what) => (NOT_EXECUTABLE, what),
        ExitStatus::Failed(what) => (FAILED, what),
    };
    complain(&what);
    code
}
