//! The log of events (`--events`): a line of JSON for each, as docs/events.md describes them.
//!
//! The sentry tells what happens inside over a socket; the supervisor numbers it, adds the time and writes it. What the
//! sentry says is checked for its form only: a guest that has taken over the sentry can lie about itself, but it can
//! neither change what was written before nor hide that events are missing.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use sentry_kernel::events::{self, Event, MESSAGE, Totals};
use serde::Serialize;

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file, which is made or emptied.
    File(PathBuf),
    /// A descriptor of the caller.
    Descriptor(u8),
}

/// Reads `FILE` or `fd:N`.
pub fn target(text: &str) -> Result<Target, String> {
    match text.strip_prefix("fd:") {
        Some(number) => match number.parse() {
            Ok(number @ 1..) => Ok(Target::Descriptor(number)),
            _ => Err(format!("not a descriptor from 1 to 255: {text}")),
        },
        None if text.is_empty() => Err("expected FILE or fd:N".into()),
        None => Ok(Target::File(text.into())),
    }
}

impl Target {
    /// Opens it.
    pub fn open(&self) -> std::io::Result<File> {
        match self {
            Target::File(path) => OpenOptions::new().write(true).create(true).truncate(true).open(path),
            Target::Descriptor(1) => std::io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Target::Descriptor(2) => std::io::stderr().as_fd().try_clone_to_owned().map(File::from),
            Target::Descriptor(number) => sentry_host::process::adopt(*number)
                .map(File::from)
                .ok_or_else(|| nix::errno::Errno::EBADF.into()),
        }
    }
}

/// What the supervisor itself knows.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Own {
    /// The first event.
    SessionStart {
        /// The version of the format.
        schema: u32,
        /// Ours.
        version: &'static str,
        /// The command.
        argv: Vec<String>,
        /// The host user that runs the sandbox.
        uid: u32,
        /// The supervisor's process id on the host.
        host_pid: u32,
        /// Limits that are set, by name.
        limits: std::collections::BTreeMap<&'static str, String>,
        /// Those that a cgroup of the host holds too; null if there is none.
        cgroup: Option<Vec<&'static str>>,
    },
    /// A part of ours failed.
    Fault {
        /// What happened.
        what: String,
    },
    /// The last event.
    SessionEnd {
        /// `ended`, `timeout`, `cpu-time`, `fault`.
        reason: &'static str,
        /// What `sentry exec` exits with.
        exit_code: u8,
        /// From start to end, in milliseconds.
        wall_ms: u64,
        /// What was used.
        #[serde(flatten)]
        totals: Totals,
        /// The most bytes that its processes used at a time, as far as it was looked at.
        peak_memory: u64,
    },
}

#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Guest(&'a Event),
    Own(&'a Own),
}

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    time: String,
    #[serde(flatten)]
    entry: Entry<'a>,
}

/// The largest event that is taken from the sentry, and how much of the log waits for a slow reader.
const LARGEST: usize = 8 << 20;
/// A pipe that is ready takes so much (`PIPE_BUF`).
const ATOMIC: usize = 4096;
/// So many messages are taken in one turn.
const TURN: usize = 256;

/// The log.
pub struct EventLog {
    /// The sentry's messages.
    socket: OwnedFd,
    file: File,
    /// Files take everything at once.
    regular: bool,
    next: u64,
    /// The beginning of an event whose rest is to come.
    partial: Vec<u8>,
    /// What was not written yet.
    waiting: VecDeque<u8>,
    /// Why nothing is written any more.
    broken: Option<std::io::Error>,
    closed: bool,
    lost: u64,
}

impl EventLog {
    /// A log to `file` of what comes over `socket`.
    pub fn new(socket: OwnedFd, file: File) -> EventLog {
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        EventLog {
            socket,
            file,
            regular,
            next: 0,
            partial: Vec::new(),
            waiting: VecDeque::new(),
            broken: None,
            closed: false,
            lost: 0,
        }
    }

    /// Writes an event of our own.
    pub fn own(&mut self, own: &Own) {
        self.line(Entry::Own(own));
    }

    /// Writes an event that the supervisor has seen, of a kind that the sentry tells too.
    pub fn event(&mut self, event: &Event) {
        self.line(Entry::Guest(event));
    }

    fn line(&mut self, entry: Entry<'_>) {
        self.next += 1;
        let line = Line {
            seq: self.next,
            time: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            entry,
        };
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            self.waiting.extend(text);
        }
        self.write();
    }

    /// What to wait for.
    pub fn poll<'a>(&'a self, ready: &mut Vec<PollFd<'a>>) {
        if !self.closed && self.waiting.len() < LARGEST {
            ready.push(PollFd::new(self.socket.as_fd(), PollFlags::POLLIN));
        }
        if !self.waiting.is_empty() && self.broken.is_none() {
            ready.push(PollFd::new(self.file.as_fd(), PollFlags::POLLOUT));
        }
    }

    /// Takes what the sentry has told, as far as there is room, and writes; true if there may be more.
    pub fn turn(&mut self) -> bool {
        self.write();
        for _ in 0..TURN {
            if self.closed || self.waiting.len() >= LARGEST {
                return false;
            }
            let mut message = [0; MESSAGE];
            match recv(self.socket.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => self.closed = true,
                Ok(len) => self.message(&message[..len.min(MESSAGE)]),
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => return false,
                Err(_) => self.closed = true,
            }
        }
        true
    }

    fn message(&mut self, message: &[u8]) {
        let Some((more, part)) = message.split_first() else {
            return;
        };
        if self.partial.len() + part.len() > LARGEST {
            self.partial.clear();
            self.lost += 1;
            return;
        }
        self.partial.extend_from_slice(part);
        if *more != 0 {
            return;
        }
        let text = std::mem::take(&mut self.partial);
        match serde_json::from_slice::<Event>(&text) {
            Ok(event) => self.line(Entry::Guest(&event)),
            Err(_) => self.lost += 1,
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            let kind = "unreadable".to_owned();
            self.line(Entry::Guest(&Event::Gap { kind, lost }));
        }
    }

    fn ready(file: BorrowedFd<'_>, wait: Duration) -> bool {
        let mut ready = [PollFd::new(file, PollFlags::POLLOUT)];
        let wait = PollTimeout::try_from(wait.as_millis()).unwrap_or(PollTimeout::MAX);
        matches!(poll(&mut ready, wait), Ok(1))
    }

    fn write(&mut self) {
        while !self.waiting.is_empty() && self.broken.is_none() {
            if !self.regular && !EventLog::ready(self.file.as_fd(), Duration::ZERO) {
                return;
            }
            let (front, _) = self.waiting.as_slices();
            let len = if self.regular {
                front.len()
            } else {
                front.len().min(ATOMIC)
            };
            match self.file.write(&front[..len]) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => self.broken = Some(error),
            }
        }
        if self.broken.is_some() {
            self.waiting.clear();
        }
    }

    /// After the end of the sentry: takes everything it has told.
    pub fn drain(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while (self.turn() || self.waiting.len() >= LARGEST) && self.broken.is_none() && Instant::now() < until {
            EventLog::ready(self.file.as_fd(), Duration::from_millis(10));
        }
    }

    /// Writes what is left; why the log is not complete, if it is not.
    pub fn finish(mut self, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        while !self.waiting.is_empty() && self.broken.is_none() && Instant::now() < until {
            EventLog::ready(self.file.as_fd(), Duration::from_millis(10));
            self.write();
        }
        match self.broken {
            Some(error) => Some(format!("the event log could not be written: {error}")),
            None if !self.waiting.is_empty() => Some("the event log is not complete: nobody read it".into()),
            None => None,
        }
    }
}

/// The command as text.
pub fn words<'a>(command: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    command.map(events::text).collect()
}
