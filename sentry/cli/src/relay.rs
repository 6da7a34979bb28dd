//! The caller's terminal while a sandbox uses it: in raw mode, its bytes copied to and from the guest's own terminal.
//!
//! The guest has a pseudo-terminal of its own, with its own line discipline; what it does to that never reaches the
//! caller's. At the caller's terminal nothing is interpreted meanwhile: Ctrl-C is a byte that the guest's terminal
//! makes a signal of. If standard input and output both are the terminal it is taken at once, else when the guest
//! first wants it: in `sentry exec cat file | less` it is the pager's.
//!
//! Only a process in the foreground may take a terminal. From the background, the wish to do so stops the sandbox, as
//! it would any job.

use std::fs::OpenOptions;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::termios::{OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, read, tcgetpgrp, write};
use sentry_host::stdio;
use sentry_kernel::config::TerminalConfig;

use crate::terminal::without_stop;

/// How much is copied at a time. So little that a terminal that is ready takes it, should it block.
const CHUNK: usize = 512;
/// How much output waits for the terminal.
const LARGEST: usize = 16 << 10;
/// How often a sandbox in the background looks whether it is in the foreground again, which nobody tells it.
const LOOK: Duration = Duration::from_secs(1);

/// The caller's terminal and the line to the guest's.
pub struct Relay {
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    /// None once either side is gone.
    socket: Option<OwnedFd>,
    cooked: Termios,
    raw: Termios,
    /// The guest is to have the terminal when it can.
    wanted: bool,
    /// It has it.
    taken: bool,
    /// The guest has ended: nothing more is typed.
    ending: bool,
    to_guest: Vec<u8>,
    to_host: Vec<u8>,
}

/// What the sentry gets: its description of the terminal, and its end of the line.
pub type ForSentry = (TerminalConfig, OwnedFd);

/// Opens a descriptor's file once more, so that it can be non-blocking without being so for others. Where that is not
/// allowed (the terminal of another user), the descriptor itself has to do.
fn reopen(fd: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let again = OpenOptions::new()
        .read(flags != OFlag::O_WRONLY)
        .write(flags != OFlag::O_RDONLY)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    match again {
        Ok(file) => Ok(file.into()),
        Err(_) => fd.try_clone_to_owned().map_err(|_| Errno::EMFILE),
    }
}

fn allows(fd: BorrowedFd<'_>, refused: OFlag) -> bool {
    fcntl(fd, FcntlArg::F_GETFL).is_ok_and(|flags| OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE != refused)
}

impl Relay {
    /// Prepares it if one of the standard descriptors is a terminal. `others_print`: not only the guest prints there
    /// meanwhile.
    pub fn new(others_print: bool) -> nix::Result<Option<(Relay, ForSentry)>> {
        let (input, output, error) = (stdin(), stdout(), stderr());
        let descriptors = [input.as_fd(), output.as_fd(), error.as_fd()];
        let stdio = descriptors.map(|fd| fd.is_terminal());
        let terminals = |order: [usize; 3]| {
            order
                .into_iter()
                .filter(|index| stdio[*index])
                .map(|index| descriptors[index])
        };
        let source = terminals([0, 1, 2]).find(|fd| allows(*fd, OFlag::O_WRONLY));
        let sink = terminals([1, 2, 0]).find(|fd| allows(*fd, OFlag::O_RDONLY));
        let Some(any) = source.or(sink) else { return Ok(None) };
        let cooked = tcgetattr(any)?;
        let mut raw = cooked.clone();
        cfmakeraw(&mut raw);
        if others_print || stdio != [true; 3] {
            // Their lines shall still begin at the left.
            raw.output_flags |= cooked.output_flags & OutputFlags::OPOST;
        }
        let at_once = stdio[0] && stdio[1];
        let config = TerminalConfig {
            stdio,
            flags: [
                cooked.input_flags.bits(),
                cooked.output_flags.bits(),
                cooked.control_flags.bits(),
                cooked.local_flags.bits(),
            ],
            characters: cooked.control_chars.to_vec(),
            size: size_of(any),
            on_demand: true,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        let relay = Relay {
            input: source.map(reopen).transpose()?,
            output: sink.map(reopen).transpose()?,
            socket: Some(socket),
            cooked,
            raw,
            wanted: at_once,
            taken: false,
            ending: false,
            to_guest: Vec::new(),
            to_host: Vec::new(),
        };
        // From the background it cannot be taken yet.
        let config = TerminalConfig {
            on_demand: !at_once || !relay.in_foreground(),
            ..config
        };
        Ok(Some((relay, (config, theirs))))
    }

    fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().or(self.output.as_ref()).map(AsFd::as_fd)
    }

    /// True if this process is in the terminal's foreground, or the terminal knows no jobs of ours.
    fn in_foreground(&self) -> bool {
        match self.terminal().map(tcgetpgrp) {
            Some(Ok(group)) => group == getpgrp(),
            Some(Err(_)) => true,
            None => false,
        }
    }

    /// Rows, columns, and both in pixels.
    pub fn size(&self) -> [u16; 4] {
        self.terminal().map_or([0; 4], size_of)
    }

    /// The guest wants the terminal. False if it cannot have it: this process is in the background.
    pub fn want(&mut self) -> bool {
        self.wanted = true;
        self.take()
    }

    /// Takes the terminal if the guest is to have it and can.
    pub fn take(&mut self) -> bool {
        if self.wanted && !self.taken && self.input.is_some() && self.in_foreground() {
            self.taken = self.set(&self.raw);
        }
        self.taken || !self.wanted || self.input.is_none()
    }

    /// Gives the terminal back.
    pub fn give_back(&mut self) {
        if self.taken {
            self.set(&self.cooked);
            self.taken = false;
        }
    }

    fn set(&self, modes: &Termios) -> bool {
        self.terminal()
            .is_some_and(|fd| without_stop(|| tcsetattr(fd, SetArg::TCSANOW, modes)).is_ok())
    }

    /// How long to wait at most.
    pub fn patience(&self) -> Option<Duration> {
        (self.wanted && !self.taken && self.input.is_some() && self.socket.is_some()).then_some(LOOK)
    }

    /// What to wait for.
    pub fn poll<'a>(&'a self, into: &mut Vec<PollFd<'a>>) {
        let Some(socket) = &self.socket else { return };
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.to_host.len() < LARGEST);
        events.set(PollFlags::POLLOUT, !self.to_guest.is_empty());
        into.push(PollFd::new(socket.as_fd(), events));
        if let Some(input) = &self.input
            && self.reads()
        {
            into.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
        }
        if let Some(output) = &self.output
            && !self.to_host.is_empty()
        {
            into.push(PollFd::new(output.as_fd(), PollFlags::POLLOUT));
        }
    }

    /// True while what is typed is taken.
    fn reads(&self) -> bool {
        self.taken && !self.ending && self.to_guest.is_empty()
    }

    /// Copies what there is, in both directions, without waiting.
    pub fn copy(&mut self) {
        if self.taken && !self.in_foreground() {
            // Somebody else has it now, who has set its modes.
            self.taken = false;
        }
        if self.reads() {
            self.read_terminal();
        }
        if let Some(socket) = &self.socket
            && !self.to_guest.is_empty()
        {
            match write(socket, &self.to_guest) {
                Ok(count) => drop(self.to_guest.drain(..count)),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => self.socket = None,
            }
        }
        while self.receive() {}
        while self.print() {}
    }

    fn read_terminal(&mut self) {
        let Some(input) = self.input.as_ref().filter(|fd| ready(fd.as_fd(), PollFlags::POLLIN)) else {
            return;
        };
        let mut buf = [0; CHUNK];
        match read(input, &mut buf) {
            Ok(count @ 1..) => self.to_guest.extend_from_slice(&buf[..count]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The terminal is gone: the guest's is hung up too.
            Ok(_) | Err(_) => {
                self.input = None;
                self.socket = None;
            }
        }
    }

    /// Takes output from the sentry; true if there may be more.
    fn receive(&mut self) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| self.to_host.len() < LARGEST) else {
            return false;
        };
        let mut buf = [0; 4096];
        match read(socket, &mut buf) {
            Ok(count @ 1..) => {
                self.to_host.extend_from_slice(&buf[..count]);
                true
            }
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            Ok(_) | Err(_) => {
                self.socket = None;
                false
            }
        }
    }

    /// Prints output; true if there is more and the terminal takes it.
    fn print(&mut self) -> bool {
        if self.to_host.is_empty() {
            return false;
        }
        let Some(output) = &self.output else {
            self.to_host.clear();
            return false;
        };
        if !ready(output.as_fd(), PollFlags::POLLOUT) {
            return false;
        }
        match write(output, &self.to_host[..self.to_host.len().min(CHUNK)]) {
            Ok(count) => drop(self.to_host.drain(..count)),
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            Err(_) => {
                self.output = None;
                self.to_host.clear();
            }
        }
        !self.to_host.is_empty()
    }

    /// True while output has not reached the terminal. For the end: from now on nothing that is typed is taken.
    pub fn has_output(&mut self) -> bool {
        self.ending = true;
        self.receive();
        !self.to_host.is_empty()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// True if reading or writing will not wait.
fn ready(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    stdio::poll_now(fd, events.bits()) != 0
}

fn size_of(fd: BorrowedFd<'_>) -> [u16; 4] {
    stdio::get_winsize(fd).map_or([0; 4], |size| {
        [size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel]
    })
}
