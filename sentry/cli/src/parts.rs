//! What the supervisor hands to the parts it starts, and what they report back.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use sentry_kernel::config::{BootConfig, ExitStatus, Notice};
use sentry_kernel::events::Totals;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::view::Tree;

/// The configuration, in both parts.
pub const CONFIG: u8 = 3;
/// The sentry's socket to the supervisor.
pub const CONTROL: u8 = 4;
/// The socket between gofer and sentry, on the sentry's side.
pub const GOFER: u8 = 5;
/// The sentry's end of the line between the guest's terminal and the caller's; `/dev/null` if there is none.
pub const TERMINAL: u8 = 6;
/// Where the sentry tells of events; `/dev/null` if nobody wants to know.
pub const EVENTS: u8 = 7;
/// Where the sentry prints system calls.
pub const STRACE: u8 = 8;
/// Where the sentry tells what has changed.
pub const CHANGES: u8 = 9;
/// The socket between gofer and sentry, on the gofer's side.
pub const SENTRY: u8 = 4;

/// What the sentry is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Boot {
    /// What to run; `None`: only report what isolation there is.
    pub kernel: Option<BootConfig>,
    /// `auto`, `systrap` or `ptrace`.
    pub platform: String,
    /// How the process was set apart before it was started.
    pub setting: Setting,
    /// The nice value of the supervisor, which guests are to have too.
    pub nice: i32,
    /// Host calls outside the list are told and fail, instead of ending the sandbox.
    pub debug_filter: bool,
    /// When the supervisor started (`CLOCK_MONOTONIC`).
    pub started: Duration,
}

/// How the sentry's process was set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// New user namespace, and in it all the others.
    UserNamespace,
    /// All the others without a user namespace; the sentry still is root and becomes this user and group.
    Namespaces { uid: u32, gid: u32 },
    /// None of that: process groups, parent-death signals and Landlock have to do.
    Fallback,
}

/// What the gofer is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Gofer {
    /// What it serves.
    pub trees: Vec<Tree>,
    /// Only report what isolation there is.
    pub report: bool,
}

/// One protection: what it is, and whether it is in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Protection {
    pub name: String,
    pub in_force: bool,
    pub detail: String,
}

/// From the sentry to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The answer when there was nothing to run.
    Isolation {
        platform: String,
        protections: Vec<Protection>,
    },
    /// Something is not as it should be, and the sandbox goes on.
    Warning(String),
    /// The sandbox has ended.
    Ended {
        status: ExitStatus,
        stats: Vec<String>,
        totals: Totals,
    },
}

/// What the supervisor hears from the sentry.
#[derive(Debug)]
pub enum Heard {
    /// Something happened; the sandbox goes on.
    Notice(Notice),
    /// Something that ends nothing.
    Warning(String),
    /// The last word.
    Report(Report),
}

/// The largest report.
pub const LARGEST: usize = 64 << 10;

/// The present time of `CLOCK_MONOTONIC`, which all parts share.
pub fn now() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// A pair of connected sockets that keep messages apart.
pub fn socket_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

/// Puts a configuration where a part can read it and nobody can change it.
pub fn configuration(value: &impl Serialize) -> std::io::Result<OwnedFd> {
    let text = serde_json::to_vec(value)?;
    sentry_host::process::sealed_memory(c"sentry-config", &text)
}

/// Reads a configuration.
pub fn read_configuration<T: DeserializeOwned>(file: OwnedFd) -> std::io::Result<T> {
    let mut text = Vec::new();
    File::from(file).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Sends a report. Never waits: the supervisor reads, or is gone.
pub fn send_report(control: BorrowedFd<'_>, report: &Report) -> Result<(), Errno> {
    let mut text = serde_json::to_vec(report).map_err(|_| Errno::EINVAL)?;
    if text.len() > LARGEST {
        let report = Report::Ended {
            status: ExitStatus::Failed("the report is too long".into()),
            stats: Vec::new(),
            totals: Totals::default(),
        };
        text = serde_json::to_vec(&report).map_err(|_| Errno::EINVAL)?;
    }
    send(
        control.as_raw_fd(),
        &text,
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
    )
    .map(drop)
}

/// Receives a message; `Ok(None)` at the end of the connection, `EAGAIN` if there is none yet. The sender may be
/// hostile: what is no report is `EBADMSG`.
pub fn receive(control: BorrowedFd<'_>) -> Result<Option<Heard>, Errno> {
    let mut buffer = vec![0; LARGEST];
    let length = match recv(control.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        // The sender has gone and left a message of ours unread. That is said once, before its own last words.
        Err(Errno::ECONNRESET) => recv(control.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?,
        received => received?,
    };
    if length == 0 {
        return Ok(None);
    }
    let text = buffer.get(..length).ok_or(Errno::EBADMSG)?;
    if let Some(notice) = Notice::decode(text) {
        return Ok(Some(Heard::Notice(notice)));
    }
    Ok(Some(
        match serde_json::from_slice(text).map_err(|_| Errno::EBADMSG)? {
            Report::Warning(what) => Heard::Warning(what),
            report => Heard::Report(report),
        },
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, send, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn last_words_are_heard_though_a_message_was_left_unread() {
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (ours, theirs) = pair();
        send(ours.as_raw_fd(), b"to be read", MsgFlags::empty()).unwrap();
        send(theirs.as_raw_fd(), &Notice::Stopped.encode(), MsgFlags::empty()).unwrap();
        drop(theirs);
        assert!(matches!(
            receive(ours.as_fd()),
            Ok(Some(Heard::Notice(Notice::Stopped)))
        ));
        assert!(matches!(receive(ours.as_fd()), Ok(None)));

        let (ours, theirs) = pair();
        send(ours.as_raw_fd(), b"to be read", MsgFlags::empty()).unwrap();
        drop(theirs);
        assert!(matches!(receive(ours.as_fd()), Ok(None)));
    }
}
