//! What happened in the sandbox, for a log outside ([`Event`]).
//!
//! The supervisor holds the other end of a socket and writes the log (docs/events.md). A guest never waits for it: what
//! the supervisor has not taken yet is kept, up to [`KEPT`] bytes, and what is lost beyond that is told by an event.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sentry_host::scm;
use sentry_lock::{Mutex, rank};
use sentry_vfs::wait::PollEvents;
use serde::{Deserialize, Serialize};

use crate::Kernel;
use crate::executor::HostWatch;

/// The most bytes of events that are kept for a supervisor that does not read.
const KEPT: usize = 8 << 20;
/// The size of one message; an event may take several.
pub const MESSAGE: usize = 32 << 10;
/// How many denials, and how many reports of one limit, a second may have.
const PER_SECOND: u32 = 50;

/// Something that happened. Names are stable; fields may be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A program was executed.
    Exec {
        /// The process.
        pid: i32,
        /// Its parent.
        ppid: i32,
        /// Its effective user.
        uid: u32,
        /// Its effective group.
        gid: u32,
        /// The program's path, as the caller named it.
        path: String,
        /// All arguments.
        argv: Vec<String>,
        /// The working directory.
        cwd: String,
    },
    /// A process ended.
    Exit {
        /// The process.
        pid: i32,
        /// What it exited with, unless a signal killed it.
        code: Option<u8>,
        /// The signal that killed it.
        signal: Option<i32>,
        /// Processor time it used, in milliseconds.
        cpu_ms: u64,
    },
    /// A limit was reached.
    Limit {
        /// Its name, as the option's: `memory`, `pids`, ….
        limit: String,
        /// What it is: bytes, processes, milliseconds.
        value: u64,
        /// How much was used, or wanted.
        used: u64,
        /// What was done: `refused`, `killed`, `ended`, `throttled`.
        action: String,
        /// The process concerned.
        pid: Option<i32>,
        /// Its name.
        comm: Option<String>,
    },
    /// A file was asked for and access was refused.
    Denied {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The system call.
        call: String,
        /// The path, as the process named it.
        path: String,
        /// Why: `EACCES`, `EPERM` or `EROFS`.
        error: String,
    },
    /// So many events of a kind are missing here.
    Gap {
        /// The kind; `any` if the log could not be written fast enough.
        kind: String,
        /// How many.
        lost: u64,
    },
}

/// What a sandbox has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Processes and threads made.
    pub processes: u64,
    /// Processor time of the guests, in milliseconds.
    pub cpu_ms: u64,
    /// Refused accesses.
    pub denials: u64,
    /// Bytes written to the standard descriptors.
    pub output: u64,
    /// Files that were made above the host's.
    pub created: u64,
    /// Those that were changed.
    pub changed: u64,
    /// Those that were deleted.
    pub deleted: u64,
}

/// Bytes as text: what is not printable UTF-8 as `\xNN`, and a backslash as `\\`.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                char if char.is_control() => text.extend(char.to_string().bytes().map(|b| format!("\\x{b:02x}"))),
                char => text.push(char),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Where events go.
pub struct Events {
    socket: OwnedFd,
    queue: Mutex<Queue, rank::EventQueue>,
}

#[derive(Default)]
struct Queue {
    /// Messages that the supervisor has not taken.
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Events that found no room.
    lost: u64,
    /// Kinds of which there may be too many: this second's number, and how many were left out.
    rates: BTreeMap<String, (u32, u64)>,
    second: Option<Instant>,
    watch: Option<HostWatch>,
}

impl Events {
    /// Events go to `socket` (`SOCK_SEQPACKET`).
    pub fn new(socket: OwnedFd) -> Arc<Events> {
        Arc::new(Events {
            socket,
            queue: Mutex::default(),
        })
    }

    /// Tells of an event. Never waits.
    pub fn tell(self: &Arc<Self>, kernel: &Kernel, event: &Event) {
        let mut queue = self.queue.lock();
        queue.tick();
        if let Some(kind) = rated(event) {
            let rate = queue.rates.entry(kind).or_default();
            if rate.0 >= PER_SECOND {
                rate.1 += 1;
                return;
            }
            rate.0 += 1;
        }
        queue.push(event);
        self.send(&mut queue);
        if !queue.waiting.is_empty() && queue.watch.is_none() {
            let weak: Weak<Events> = Arc::downgrade(self);
            let watch = kernel.executor().watch_host(&self.socket, PollEvents::OUT, move |_| {
                if let Some(events) = weak.upgrade() {
                    events.send(&mut events.queue.lock());
                }
            });
            queue.watch = watch.ok();
        }
    }

    /// Sends what waits, as far as there is room.
    fn send(&self, queue: &mut Queue) {
        while let Some(message) = queue.waiting.front() {
            match scm::try_send_with_fds(self.socket.as_fd(), message, &[]) {
                Ok(_) => {
                    queue.bytes -= message.len();
                    queue.waiting.pop_front();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // Nobody listens any more.
                Err(_) => {
                    queue.waiting.clear();
                    queue.bytes = 0;
                }
            }
        }
    }

    /// At the end: sends what is left, and waits at most so long for it to be taken.
    pub fn finish(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut queue = self.queue.lock();
        queue.watch = None;
        queue.close_second();
        queue.tell_lost();
        loop {
            self.send(&mut queue);
            if queue.waiting.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The kind under which events are counted that a guest can make as many of as it likes.
fn rated(event: &Event) -> Option<String> {
    match event {
        Event::Denied { .. } => Some("denied".into()),
        Event::Limit { limit, .. } => Some(format!("limit {limit}")),
        _ => None,
    }
}

impl Queue {
    /// Once a second what was left out is told.
    fn tick(&mut self) {
        match self.second {
            Some(start) if start.elapsed() < Duration::from_secs(1) => {}
            _ => {
                self.close_second();
                self.second = Some(Instant::now());
            }
        }
    }

    fn close_second(&mut self) {
        for (kind, (_, lost)) in std::mem::take(&mut self.rates) {
            if lost > 0 {
                self.push(&Event::Gap { kind, lost });
            }
        }
    }

    fn tell_lost(&mut self) {
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.add(&Event::Gap {
                kind: "any".into(),
                lost,
            });
        }
    }

    fn push(&mut self, event: &Event) {
        if self.bytes > KEPT {
            self.lost += 1;
            return;
        }
        self.tell_lost();
        self.add(event);
    }

    fn add(&mut self, event: &Event) {
        // An event is plain data: there is nothing in it that JSON cannot hold.
        let Ok(line) = serde_json::to_vec(event) else { return };
        let mut parts = line.chunks(MESSAGE - 1).peekable();
        while let Some(part) = parts.next() {
            let mut message = Vec::with_capacity(part.len() + 1);
            message.push(u8::from(parts.peek().is_some()));
            message.extend_from_slice(part);
            self.bytes += message.len();
            self.waiting.push_back(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_line_and_unambiguous() {
        assert_eq!(text("plain é".as_bytes()), "plain é");
        assert_eq!(text(b"a\nb\\x\xff\0"), "a\\x0ab\\\\x\\xff\\x00");
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut queue = Queue::default();
        let event = Event::Exec {
            pid: 1,
            ppid: 0,
            uid: 0,
            gid: 0,
            path: "x".into(),
            argv: vec!["y".repeat(1 << 20)],
            cwd: "/".into(),
        };
        for _ in 0..20 {
            queue.push(&event);
        }
        assert!(queue.bytes < KEPT + (2 << 20) && queue.lost > 5);
        assert!(queue.waiting.iter().all(|message| message.len() <= MESSAGE));
        let lost = queue.lost;
        queue.waiting.clear();
        queue.bytes = 0;
        queue.push(&event);
        let first = &queue.waiting[0];
        let gap: Event = serde_json::from_slice(&first[1..]).unwrap();
        assert_eq!(
            gap,
            Event::Gap {
                kind: "any".into(),
                lost
            }
        );
    }
}
