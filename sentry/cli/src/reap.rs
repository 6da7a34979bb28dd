//! Waiting for the end of what was killed. A process that waits in the host for a file system that does not answer (a
//! hung network or FUSE server) cannot be killed before it does; nobody waits for that.

use std::fs;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How often we look, in milliseconds.
const LOOK: u16 = 10;
/// In so many looks in a row a process that was killed is in a host call that cannot be interrupted, and is given up.
const LOOKS: u32 = 100;

/// Kills a child and waits for its end; false if the host does not let it end.
pub fn end(pid: Pid, signals: &SignalFd) -> bool {
    let _ = kill(pid, Signal::SIGKILL);
    wait(pid, signals)
}

/// Waits for the end of a child that was killed, or whose children were; false if the host does not let it end. `signals`
/// tell of it.
pub fn wait(pid: Pid, signals: &SignalFd) -> bool {
    let mut stuck = 0;
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
            _ => return true,
        }
        match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], LOOK) {
            Ok(0) if waits_for_host(pid) => stuck += 1,
            Ok(0) => stuck = 0,
            _ => while let Ok(Some(_)) = signals.read_signal() {},
        }
        if stuck >= LOOKS {
            return false;
        }
    }
}

/// True if a thread of a process or of its descendants is in a host call that cannot be interrupted.
fn waits_for_host(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks.map(|task| task.path()).any(|task| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        let children = fs::read_to_string(task.join("children")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
            || children.any(|child| waits_for_host(Pid::from_raw(child)))
    })
}
