//! Parts of ours that somebody stopped (SIGSTOP): nothing inside can notice that, and the command would hang for ever.
//!
//! Whoever wants a sandbox to stand still stops all of it: SIGTSTP to `sentry exec` does that, and so does the freezer
//! of a cgroup. One part that is stopped for a minute while the supervisor runs is a fault.

use std::fs;
use std::time::Duration;

use nix::unistd::Pid;

use crate::parts::now;

/// How often we look.
const LOOK: Duration = Duration::from_secs(5);
/// In so many looks in a row a part was stopped when we tell of it, and when we give it up.
const TELL: u32 = 2;
const GIVE_UP: u32 = 12;

/// What a look shows.
pub enum Standstill {
    /// Somebody should know.
    Late(String),
    /// It does not go on.
    Stuck(String),
}

/// Looks whether our parts are stopped, from when the host says that something is with one of them until none is.
#[derive(Default)]
pub struct Watch {
    next: Option<Duration>,
    looks: u32,
}

impl Watch {
    /// A child of ours, or of the guard's, has been stopped, or has ended.
    pub fn wake(&mut self) {
        self.next.get_or_insert_with(|| now() + LOOK);
    }

    /// When to look.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Looks at the parts (name, process), if it is time.
    pub fn look(&mut self, parts: impl FnOnce() -> Vec<(&'static str, Pid)>) -> Option<Standstill> {
        if now() < self.next? {
            return None;
        }
        self.next = None;
        let Some((part, pid)) = parts().into_iter().find(|(_, pid)| is_stopped(*pid)) else {
            self.looks = 0;
            return None;
        };
        // Counted from here: while the supervisor itself was stopped, nobody looked.
        self.wake();
        self.looks += 1;
        let seconds = u64::from(self.looks) * LOOK.as_secs();
        match self.looks {
            TELL => Some(Standstill::Late(format!(
                "the {part} (process {pid}) was stopped by a signal; the sandbox ends unless it goes on"
            ))),
            GIVE_UP => Some(Standstill::Stuck(format!(
                "the {part} was stopped by a signal and did not go on for {seconds} s"
            ))),
            _ => None,
        }
    }
}

/// Stopped, and not by a debugger.
fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}
