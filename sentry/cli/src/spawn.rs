//! Starts the sentry's process: set apart as far as the host allows.
//!
//! The ways are tried in turn, each in a child of its own, since a process cannot take back a step that worked:
//!
//! 1. a new user namespace, and in it PID, mount, network, IPC, UTS and cgroup namespaces. As root the child first
//!    becomes an otherwise unused user, which is then the only one in the user namespace;
//! 2. as root, the same without a user namespace;
//! 3. the fallback, without any: a *guard* process stands between supervisor and sentry. Both are subreapers, so that
//!    whichever of the two dies, the other ends what is left of the sandbox.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::unshare;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid};
use sentry_host::process::{self, Forked};
use sentry_host::{advice, caps, namespaces};

use crate::cgroup::Cgroup;
use crate::isolation::raise_priority;
use crate::parts::Setting;

/// The first of a range of user and group numbers that nobody uses; the supervisor's process id is added, so that
/// two sandboxes do not share one.
const UNUSED_IDS: u32 = 0x7000_0000;
/// Where such numbers are not to be had (in a container that maps few).
const UNUSED_ID: u32 = 65533;

/// The sentry's process, as the supervisor sees it.
#[derive(Debug)]
pub struct Sentry {
    /// The child to wait for: the sentry, or its guard. It ends as the sentry ended.
    pub pid: Pid,
    /// Closed when the supervisor is gone; the guard waits for that.
    pub lifeline: Option<OwnedFd>,
}

/// Why there is no sentry.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the sentry: {step}: {}{}", .error.desc(), advice::of(*.error as i32))]
pub struct SpawnError {
    step: String,
    error: Errno,
}

fn failed(step: &str) -> impl Fn(Errno) -> SpawnError {
    move |error| SpawnError {
        step: step.into(),
        error,
    }
}

fn no_memory_file(error: std::io::Error) -> SpawnError {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    failed("a file in memory (memfd_create)")(errno)
}

/// What a child says through its status pipe: `+PID` or `-ERRNO STEP`, a line each. Nothing more comes once the
/// sentry has been executed.
fn tell(status: BorrowedFd<'_>, line: &str) {
    let _ = nix::unistd::write(status, format!("{line}\n").as_bytes());
}

/// Reads the status pipe to its end: the sentry's (or the guard's) process id.
fn listen(status: OwnedFd) -> Result<Pid, SpawnError> {
    let mut text = String::new();
    File::from(status)
        .read_to_string(&mut text)
        .map_err(|_| failed("status")(Errno::EIO))?;
    let mut found = Err(SpawnError {
        step: "set apart".into(),
        error: Errno::ECHILD,
    });
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix('-') {
            let (number, step) = rest.split_once(' ').unwrap_or((rest, "?"));
            let error = number.parse().map_or(Errno::EIO, Errno::from_raw);
            return Err(SpawnError {
                step: step.into(),
                error,
            });
        }
        if let Some(pid) = line.strip_prefix('+').and_then(|pid| pid.parse().ok()) {
            found = Ok(Pid::from_raw(pid));
        }
    }
    found
}

/// Becomes the unused user if this is root, who loses all capabilities by it. Where no other user is to be had (in a
/// user namespace that maps only root) it stays who it is, and the sentry says so.
fn leave_root() -> nix::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = unused_user();
    let left = namespaces::become_user(uid, gid)
        .or_else(|_| namespaces::become_user(Uid::from_raw(UNUSED_ID), Gid::from_raw(UNUSED_ID)));
    match left {
        // The change made the process undumpable, and its /proc/self/uid_map root's.
        Ok(()) => nix::sys::prctl::set_dumpable(true),
        Err(_) => Ok(()),
    }
}

fn unused_user() -> (Uid, Gid) {
    // In the child, the supervisor is the parent.
    let id = UNUSED_IDS + nix::unistd::getppid().as_raw().unsigned_abs() % 0x0fff_ffff;
    (Uid::from_raw(id), Gid::from_raw(id))
}

/// What is executed, and with what.
pub struct Program<'a> {
    /// Our own file.
    pub executable: BorrowedFd<'a>,
    /// Its arguments.
    pub args: &'a [CString],
    /// The configuration for a setting, to be number [`crate::parts::CONFIG`].
    pub configuration: &'a dyn Fn(Setting) -> std::io::Result<OwnedFd>,
    /// Numbers 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Those behind the configuration.
    pub others: &'a [BorrowedFd<'a>],
    /// What the process enters first.
    pub cgroup: Option<&'a Cgroup>,
}

impl Program<'_> {
    /// Executes it. Only returns on failure.
    fn run(&self, configuration: BorrowedFd<'_>) -> Errno {
        let mut descriptors = self.stdio.to_vec();
        descriptors.push(configuration);
        descriptors.extend_from_slice(self.others);
        match process::exec_self(self.executable, self.args, &descriptors) {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }

    /// Starts it, set apart as far as possible.
    pub fn start(&self) -> Result<Sentry, SpawnError> {
        let first = match self.start_in(Setting::UserNamespace) {
            Ok(sentry) => return Ok(sentry),
            Err(error) => error,
        };
        if nix::unistd::geteuid().is_root() {
            let (uid, gid) = (UNUSED_ID, UNUSED_ID);
            if let Ok(sentry) = self.start_in(Setting::Namespaces { uid, gid }) {
                return Ok(sentry);
            }
        }
        self.start_guarded().map_err(|error| match error.error {
            Errno::ECHILD => first,
            _ => error,
        })
    }

    fn start_in(&self, setting: Setting) -> Result<Sentry, SpawnError> {
        let configuration = (self.configuration)(setting).map_err(no_memory_file)?;
        let (status, child_status) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed("pipe"))?;
        if process::fork().map_err(failed("fork"))? == Forked::Child {
            let status = child_status.as_fd();
            match self.set_apart(setting, configuration.as_fd(), status) {
                Ok(pid) => tell(status, &format!("+{pid}")),
                Err((step, error)) => tell(status, &format!("-{} {step}", error as i32)),
            }
            process::exit_now(0);
        }
        drop(child_status);
        let pid = listen(status)?;
        Ok(Sentry { pid, lifeline: None })
    }

    /// In a child: enters the namespaces, and starts the sentry as the supervisor's child and their init.
    fn set_apart(
        &self,
        setting: Setting,
        configuration: BorrowedFd<'_>,
        status: BorrowedFd<'_>,
    ) -> Result<Pid, (&'static str, Errno)> {
        let at = |step: &'static str| move |error: Errno| (step, error);
        enter(self.cgroup).map_err(at("cgroup"))?;
        raise_priority();
        if setting == Setting::UserNamespace {
            leave_root().map_err(at("leave user 0"))?;
            namespaces::enter_user_namespace(namespaces::EMPTY).map_err(at("user namespace"))?;
            // For the empty root, and to empty the bounding set.
            caps::keep_over_exec(caps::SYS_ADMIN | caps::SETPCAP).map_err(at("capabilities"))?;
        } else {
            unshare(namespaces::EMPTY).map_err(at("namespaces"))?;
        }
        match process::fork_sibling().map_err(at("fork"))? {
            Forked::Parent(pid) => Ok(pid),
            Forked::Child => {
                let error = self.run(configuration);
                tell(status, &format!("-{} exec", error as i32));
                process::exit_now(125)
            }
        }
    }

    /// The fallback: the sentry below a guard.
    fn start_guarded(&self) -> Result<Sentry, SpawnError> {
        let configuration = (self.configuration)(Setting::Fallback).map_err(no_memory_file)?;
        let (status, child_status) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed("pipe"))?;
        let (guard_end, lifeline) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed("pipe"))?;
        nix::sys::prctl::set_child_subreaper(true).map_err(failed("subreaper"))?;
        match process::fork().map_err(failed("fork"))? {
            Forked::Parent(pid) => {
                drop(child_status);
                listen(status)?;
                Ok(Sentry {
                    pid,
                    lifeline: Some(lifeline),
                })
            }
            Forked::Child => {
                drop(lifeline);
                self.guard(configuration.as_fd(), child_status, guard_end)
            }
        }
    }

    /// In a child: starts the sentry, waits for its end or the supervisor's, ends all that is left, and ends as the
    /// sentry did.
    fn guard(&self, configuration: BorrowedFd<'_>, status: OwnedFd, lifeline: OwnedFd) -> ! {
        let give_up = |step: &str, error: Errno| -> ! {
            tell(status.as_fd(), &format!("-{} {step}", error as i32));
            process::exit_now(125)
        };
        if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
            give_up("subreaper", error);
        }
        let mut child_signal = SigSet::empty();
        child_signal.add(Signal::SIGCHLD);
        // All signals are blocked already: the terminal's do not reach a guard.
        let signals = match SignalFd::with_flags(&child_signal, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK) {
            Ok(signals) => signals,
            Err(error) => give_up("signalfd", error),
        };
        let (supervisor, guard) = (nix::unistd::getppid(), nix::unistd::getpid());
        let sentry = match process::fork() {
            Err(error) => give_up("fork", error),
            Ok(Forked::Parent(pid)) => pid,
            Ok(Forked::Child) => {
                let alive = process::die_with_parent(Some(guard));
                if alive != Ok(true) {
                    process::exit_now(125);
                }
                if let Err(error) = enter(self.cgroup) {
                    give_up("cgroup", error);
                }
                raise_priority();
                // Root may; who it becomes may not.
                caps::empty_bounding_set();
                // Where root cannot become somebody else, the sentry says so.
                let _ = leave_root();
                give_up("exec", self.run(configuration))
            }
        };
        tell(status.as_fd(), &format!("+{sentry}"));
        // The descriptors of the sandbox are the sentry's alone: their ends must be seen.
        drop(status);
        let keep = [lifeline.as_raw_fd(), signals.as_raw_fd()];
        process::close_all_but(&keep);
        let mut end = None;
        while end.is_none() {
            let mut ready = [
                PollFd::new(lifeline.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut ready, PollTimeout::NONE);
            if ready[0].any() == Some(true) {
                let _ = kill(sentry, Signal::SIGKILL);
            }
            while let Ok(Some(_)) = signals.read_signal() {
                // Perhaps the sentry was stopped: not ours to judge.
                if nix::unistd::getppid() == supervisor {
                    let _ = kill(supervisor, Signal::SIGCHLD);
                }
            }
            end = reap_for(sentry);
        }
        end_children();
        mirror(end)
    }
}

/// Reaps whatever has ended; how the process `wanted` did, if it was among them.
fn reap_for(wanted: Pid) -> Option<WaitStatus> {
    let mut found = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return found,
            Ok(status) if status.pid() == Some(wanted) => found = Some(status),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Kills every child there is and becomes, until there is none. For subreapers.
pub fn end_children() {
    loop {
        for child in process::children().unwrap_or_default() {
            let _ = kill(child, Signal::SIGKILL);
        }
        // Waits for one; those orphaned by its death are children by then.
        match waitpid(None, None) {
            Err(Errno::ECHILD) => return,
            _ => continue,
        }
    }
}

fn mirror(end: Option<WaitStatus>) -> ! {
    match end {
        Some(WaitStatus::Exited(_, code)) => process::exit_now(code),
        Some(WaitStatus::Signaled(_, signal, _)) => {
            if signal != Signal::SIGKILL {
                let _ = process::set_disposition(signal, process::Disposition::Default);
            }
            let mut only = SigSet::empty();
            only.add(signal);
            let _ = only.thread_unblock();
            let _ = kill(nix::unistd::getpid(), signal);
            process::exit_now(125)
        }
        _ => process::exit_now(125),
    }
}

fn enter(cgroup: Option<&Cgroup>) -> nix::Result<()> {
    cgroup.map_or(Ok(()), Cgroup::enter)
}

/// Starts the gofer as a child, with the same executable.
pub fn start_gofer(
    executable: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
    cgroup: Option<&Cgroup>,
) -> Result<Pid, SpawnError> {
    let supervisor = nix::unistd::getpid();
    match process::fork().map_err(failed("fork"))? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => {
            if enter(cgroup).is_ok() && process::die_with_parent(Some(supervisor)) == Ok(true) {
                let args = [c"sentry".to_owned(), c"gofer".to_owned()];
                let _ = process::exec_self(executable, &args, descriptors);
            }
            process::exit_now(125)
        }
    }
}
