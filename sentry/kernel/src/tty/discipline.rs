//! The line discipline of terminals (N_TTY, termios(3)): pure logic between what is typed and what is read, written
//! and shown. What has to happen outside, signals and wakes, is noted in [`Effects`].

use std::collections::VecDeque;

use sentry_abi::tty::cc::{
    VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VQUIT, VREPRINT, VSTART, VSTOP, VSUSP, VWERASE,
};
use sentry_abi::tty::{Termios2, iflag, lflag, packet};

use super::input::{self, Input};
use super::modes::{Modes, settle};
use super::output::{Echo, Output, is_continuation, is_control};
use crate::signal::{SigSet, Signal};

/// How many typed bytes wait when the reader has as many as it may hold.
const WAITING: usize = 8192;

/// What a change of a terminal leads to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects {
    /// For the foreground process group.
    pub signals: SigSet,
    /// There is something to read.
    pub readable: bool,
    /// There may be room to write.
    pub writable: bool,
}

/// A terminal: its modes and all that is on its way in and out.
#[derive(Debug)]
pub struct Discipline {
    modes: Modes,
    input: Input,
    /// Typed, and not yet in the input.
    waiting: VecDeque<u8>,
    /// What is on its way out.
    pub output: Output,
    /// The next character is taken literally (`VLNEXT`).
    literal: bool,
    /// Erased characters are being printed (`ECHOPRT`).
    erasing: bool,
    /// Output is stopped.
    stopped: bool,
    /// It was stopped by tcflow(3), which alone starts it again.
    stopped_by_request: bool,
    /// What the other side has to hear, while it is in packet mode.
    status: Option<u8>,
}

impl Discipline {
    /// A terminal with these modes.
    pub fn new(termios: Termios2) -> Discipline {
        Discipline {
            modes: Modes::new(settle(termios)),
            input: Input::default(),
            waiting: VecDeque::new(),
            output: Output::default(),
            literal: false,
            erasing: false,
            stopped: false,
            stopped_by_request: false,
            status: None,
        }
    }

    /// Its modes.
    pub fn modes(&self) -> &Modes {
        &self.modes
    }

    /// Changes the modes.
    pub fn set_modes(&mut self, termios: Termios2, effects: &mut Effects) {
        let old = std::mem::replace(&mut self.modes, Modes::new(settle(termios)));
        if self.status.is_some() {
            let usual = self.modes.usual_flow_control();
            if usual != old.usual_flow_control() {
                let now = if usual { packet::DO_STOP } else { packet::NO_STOP };
                self.note(now, packet::DO_STOP | packet::NO_STOP);
            }
            if old.local(lflag::EXTPROC) || self.modes.local(lflag::EXTPROC) {
                self.note(packet::IOCTL, 0);
            }
        }
        let changed = old.termios().c_lflag ^ self.modes.termios().c_lflag;
        if changed & (lflag::ICANON | lflag::EXTPROC) != 0 {
            if self.modes.local(lflag::ICANON) {
                self.input.begin_lines();
            } else {
                self.input.end_lines();
            }
            self.erasing = false;
            self.literal = false;
        }
        if old.input(iflag::IXON) && !self.modes.input(iflag::IXON) {
            self.start(effects);
        }
        effects.readable = true;
        effects.writable = true;
    }

    // Input.

    /// Takes what is typed; how many bytes there was room for.
    pub fn receive(&mut self, data: &[u8], effects: &mut Effects) -> usize {
        let mut taken = 0;
        loop {
            let count = (data.len() - taken).min(WAITING.saturating_sub(self.waiting.len()));
            self.waiting.extend(&data[taken..taken + count]);
            taken += count;
            self.feed(effects);
            self.look_ahead(count, effects);
            if count == 0 || taken == data.len() {
                return taken;
            }
        }
    }

    /// How many typed bytes would be taken.
    pub fn receive_room(&self) -> usize {
        WAITING.saturating_sub(self.waiting.len())
    }

    /// Moves typed bytes into the input as far as there is room.
    fn feed(&mut self, effects: &mut Effects) {
        while !self.waiting.is_empty() {
            let free = input::CAPACITY.saturating_sub(self.input.len());
            let free = if self.modes.input(iflag::PARMRK) {
                free.div_ceil(3)
            } else {
                free
            };
            let mut room = free.saturating_sub(1);
            if room == 0 {
                // An overlong line still takes its end: further characters replace its last one.
                if !self.modes.local(lflag::ICANON) || self.input.has_line() {
                    break;
                }
                if free == 0 {
                    self.input.erase(self.input.len() - (input::CAPACITY - 1));
                }
                room = 1;
            }
            let count = room.min(self.waiting.len());
            self.feed_some(count, effects);
        }
        self.flush_echo();
    }

    fn feed_some(&mut self, count: usize, effects: &mut Effects) {
        let rewrites =
            self.modes.input(iflag::ISTRIP) || self.modes.input(iflag::IUCLC) && self.modes.local(lflag::IEXTEN);
        if self.modes.takes_all() || self.modes.local(lflag::EXTPROC) && !rewrites {
            self.input.extend(self.waiting.drain(..count));
        } else {
            for _ in 0..count {
                if let Some(c) = self.waiting.pop_front() {
                    self.receive_one(c, effects);
                }
            }
        }
        if !self.modes.by_lines() && !self.input.is_empty() {
            effects.readable = true;
        }
    }

    /// Ctrl-S and Ctrl-Q among the last `count` bytes work even though they wait behind others.
    fn look_ahead(&mut self, count: usize, effects: &mut Effects) {
        if self.waiting.is_empty() || !self.modes.input(iflag::IXON) || self.modes.local(lflag::EXTPROC) {
            return;
        }
        let new = self
            .waiting
            .split_off(self.waiting.len() - count.min(self.waiting.len()));
        for c in new {
            if !self.flow_control(c, effects) {
                self.waiting.push_back(c);
            }
        }
    }

    /// Stops and starts output by typed characters; false if `c` is none of them.
    fn flow_control(&mut self, c: u8, effects: &mut Effects) -> bool {
        if self.modes.is(VSTART, c) {
            self.start(effects);
            self.flush_echo();
        } else if self.modes.is(VSTOP, c) {
            self.stop();
        } else {
            return false;
        }
        true
    }

    fn receive_one(&mut self, c: u8, effects: &mut Effects) {
        let mut c = c;
        if self.modes.input(iflag::ISTRIP) {
            c &= 0x7f;
        }
        if self.modes.input(iflag::IUCLC) && self.modes.local(lflag::IEXTEN) {
            c = c.to_ascii_lowercase();
        }
        if std::mem::take(&mut self.literal) {
            self.take_plain(c, effects);
        } else if self.modes.local(lflag::EXTPROC) {
            self.input.push(c);
        } else if self.modes.is_special(c) {
            self.take_special(c, effects);
        } else {
            self.take_plain(c, effects);
        }
    }

    /// Any character starts output again, if it may (`IXANY`).
    fn start_by_any(&mut self, effects: &mut Effects) {
        if self.stopped && self.modes.input(iflag::IXON) && self.modes.input(iflag::IXANY) {
            self.start(effects);
            self.flush_echo();
        }
    }

    fn take_plain(&mut self, c: u8, effects: &mut Effects) {
        self.start_by_any(effects);
        if self.modes.local(lflag::ECHO) {
            self.finish_erasing();
            self.echo_input(c);
        }
        self.store(c);
    }

    fn take_special(&mut self, c: u8, effects: &mut Effects) {
        if self.modes.input(iflag::IXON) && self.flow_control(c, effects) {
            return;
        }
        if self.modes.local(lflag::ISIG) {
            for (index, signal) in [(VINTR, Signal::INT), (VQUIT, Signal::QUIT), (VSUSP, Signal::TSTP)] {
                if self.modes.is(index, c) {
                    return self.signal(signal, c, effects);
                }
            }
        }
        self.start_by_any(effects);
        let mut c = c;
        if c == b'\r' {
            if self.modes.input(iflag::IGNCR) {
                return;
            }
            if self.modes.input(iflag::ICRNL) {
                c = b'\n';
            }
        } else if c == b'\n' && self.modes.input(iflag::INLCR) {
            c = b'\r';
        }
        if self.modes.local(lflag::ICANON) && self.edit(c, effects) {
            return;
        }
        if self.modes.local(lflag::ECHO) {
            self.finish_erasing();
            if c == b'\n' {
                self.output.echo(Echo::Plain(b'\n'));
            } else {
                self.echo_input(c);
            }
        }
        self.store(c);
    }

    fn store(&mut self, c: u8) {
        if c == 0xff && self.modes.input(iflag::PARMRK) {
            self.input.push(c);
        }
        self.input.push(c);
    }

    fn signal(&mut self, signal: Signal, c: u8, effects: &mut Effects) {
        effects.signals.add(signal);
        if !self.modes.local(lflag::NOFLSH) {
            self.output.forget_echo();
            self.flush_output(effects);
            self.reset_input();
        }
        if self.modes.input(iflag::IXON) {
            self.start(effects);
        }
        if self.modes.local(lflag::ECHO) {
            self.echo_char(c);
        }
        self.flush_echo();
    }

    /// Line editing; false if the character belongs to the line.
    fn edit(&mut self, c: u8, effects: &mut Effects) -> bool {
        let (echo, extended) = (self.modes.local(lflag::ECHO), self.modes.local(lflag::IEXTEN));
        if self.modes.is(VERASE, c) {
            self.erase(Erase::Character);
        } else if self.modes.is(VKILL, c) {
            self.kill_line();
        } else if extended && self.modes.is(VWERASE, c) {
            self.erase(Erase::Word);
        } else if extended && self.modes.is(VLNEXT, c) {
            self.literal = true;
            if echo {
                self.finish_erasing();
                if self.modes.local(lflag::ECHOCTL) {
                    self.output.echo(Echo::Plain(b'^'));
                    self.output.echo(Echo::Plain(b'\x08'));
                }
            }
        } else if extended && echo && self.modes.is(VREPRINT, c) {
            self.finish_erasing();
            self.echo_char(c);
            self.output.echo(Echo::Plain(b'\n'));
            let line: Vec<u8> = self.input.edited().collect();
            line.into_iter().for_each(|c| self.echo_char(c));
        } else if c == b'\n' {
            if echo || self.modes.local(lflag::ECHONL) {
                self.output.echo(Echo::Plain(b'\n'));
            }
            self.end_line(c, effects);
        } else if self.modes.is(VEOF, c) {
            self.end_line(input::END_OF_FILE, effects);
        } else if self.modes.is(VEOL, c) || extended && self.modes.is(VEOL2, c) {
            if echo {
                self.echo_input(c);
            }
            if c == 0xff && self.modes.input(iflag::PARMRK) {
                self.input.push(c);
            }
            self.end_line(c, effects);
        } else {
            return false;
        }
        true
    }

    fn end_line(&mut self, c: u8, effects: &mut Effects) {
        self.input.end_line(c);
        effects.readable = true;
    }

    fn kill_line(&mut self) {
        let fancy = lflag::ECHOK | lflag::ECHOKE | lflag::ECHOE;
        if self.modes.local(lflag::ECHO) && self.modes.termios().c_lflag & fancy == fancy {
            return self.erase(Erase::Line);
        }
        let length = self.input.edited().len();
        if length == 0 {
            return;
        }
        self.input.erase(length);
        if self.modes.local(lflag::ECHO) {
            self.finish_erasing();
            self.echo_char(self.modes.character(VKILL));
            if self.modes.local(lflag::ECHOK) {
                self.output.echo(Echo::Plain(b'\n'));
            }
        }
    }

    /// Takes the end of the line away, and from the screen.
    fn erase(&mut self, what: Erase) {
        if self.input.edited().len() == 0 {
            return;
        }
        let mut in_word = false;
        loop {
            // A character with its further bytes.
            let further = self.input.edited().rev().position(|c| !is_continuation(&self.modes, c));
            let Some(length) = further.map(|further| further + 1) else {
                break;
            };
            let start = self.input.edited().len() - length;
            let bytes: Vec<u8> = self.input.edited().skip(start).collect();
            let first = bytes.first().copied().unwrap_or_default();
            if what == Erase::Word {
                if first.is_ascii_alphanumeric() || first == b'_' || is_latin_letter(first) {
                    in_word = true;
                } else if in_word {
                    break;
                }
            }
            self.input.erase(length);
            if self.modes.local(lflag::ECHO) {
                self.show_erased(&bytes, what);
            }
            if what == Erase::Character {
                break;
            }
        }
        if self.input.edited().len() == 0 && self.modes.local(lflag::ECHO) {
            self.finish_erasing();
        }
    }

    fn show_erased(&mut self, bytes: &[u8], what: Erase) {
        let Some((&c, rest)) = bytes.split_first() else { return };
        if self.modes.local(lflag::ECHOPRT) {
            if !std::mem::replace(&mut self.erasing, true) {
                self.output.echo(Echo::Plain(b'\\'));
            }
            self.echo_char(c);
            for &c in rest {
                self.output.echo(Echo::Plain(c));
                self.output.echo(Echo::MoveBack);
            }
        } else if what == Erase::Character && !self.modes.local(lflag::ECHOE) {
            self.echo_char(self.modes.character(VERASE));
        } else if c == b'\t' {
            self.show_erased_tab();
        } else {
            let columns = match (is_control(c), self.modes.local(lflag::ECHOCTL)) {
                (true, false) => 0,
                (true, true) => 2,
                (false, _) => 1,
            };
            for _ in 0..columns {
                for c in *b"\x08 \x08" {
                    self.output.echo(Echo::Plain(c));
                }
            }
        }
    }

    fn show_erased_tab(&mut self) {
        let mut columns: u32 = 0;
        let mut from_start = true;
        for c in self.input.edited().rev() {
            if c == b'\t' {
                from_start = false;
                break;
            } else if is_control(c) {
                columns += if self.modes.local(lflag::ECHOCTL) { 2 } else { 0 };
            } else if !is_continuation(&self.modes, c) {
                columns += 1;
            }
        }
        self.output.echo(Echo::EraseTab { columns, from_start });
    }

    fn finish_erasing(&mut self) {
        if std::mem::take(&mut self.erasing) {
            self.output.echo(Echo::Plain(b'/'));
        }
    }

    /// Echoes a character of the line, and notes where the line begins.
    fn echo_input(&mut self, c: u8) {
        if self.input.edited().len() == 0 {
            self.output.echo(Echo::InputStarts);
        }
        self.echo_char(c);
    }

    fn echo_char(&mut self, c: u8) {
        let visible = self.modes.local(lflag::ECHOCTL) && is_control(c) && c != b'\t';
        self.output
            .echo(if visible { Echo::Control(c) } else { Echo::Plain(c) });
    }

    fn flush_echo(&mut self) {
        if !self.stopped {
            self.output.process_echo(&self.modes);
        }
    }

    // Reading and writing by programs.

    /// True if a read finds something: at least `least` bytes where lines do not count.
    pub fn readable(&self, least: usize) -> bool {
        if self.modes.by_lines() {
            self.input.has_line()
        } else {
            self.input.len() >= least.max(1)
        }
    }

    /// How many bytes can be read at once (`FIONREAD`).
    pub fn available(&self) -> usize {
        if self.modes.by_lines() {
            self.input.in_lines()
        } else {
            self.input.len()
        }
    }

    /// Reads; `None` if there is nothing. 0 bytes are the end of a file.
    pub fn read(&mut self, buf: &mut [u8], effects: &mut Effects) -> Option<usize> {
        if buf.is_empty() {
            return Some(0);
        }
        if !self.readable(1) {
            return None;
        }
        let mut count = if self.modes.by_lines() {
            self.input.read_line(buf)
        } else {
            self.input.read_bytes(buf)
        };
        let outside = self.modes.local(lflag::EXTPROC) && self.modes.local(lflag::ICANON);
        if outside && count == 1 && self.input.is_empty() && buf.first() == Some(&self.modes.character(VEOF)) {
            count = 0;
        }
        self.feed(effects);
        Some(count)
    }

    /// Writes; how many bytes went out.
    pub fn write(&mut self, data: &[u8]) -> usize {
        if self.stopped {
            return 0;
        }
        self.output.write(&self.modes, data)
    }

    /// True if a write finds room.
    pub fn writable(&self) -> bool {
        !self.stopped && self.output.room() > 0
    }

    /// The other side takes output. Echo that found no room goes out now.
    pub fn take_output(&mut self, buf: &mut [u8], effects: &mut Effects) -> usize {
        let count = self.output.take(buf);
        if count > 0 {
            self.flush_echo();
            effects.writable = true;
        }
        count
    }

    // Flow control and flushes.

    /// Starts output after a stop by a character.
    fn start(&mut self, effects: &mut Effects) {
        if self.stopped && !self.stopped_by_request {
            self.stopped = false;
            self.note(packet::START, packet::STOP);
            effects.writable = true;
        }
    }

    fn stop(&mut self) {
        if !self.stopped {
            self.stopped = true;
            self.note(packet::STOP, packet::START);
        }
    }

    /// `TCOOFF` and `TCOON`.
    pub fn suspend_output(&mut self, suspend: bool, effects: &mut Effects) {
        if suspend == self.stopped_by_request {
            return;
        }
        self.stopped_by_request = suspend;
        if suspend {
            self.stop();
        } else {
            self.start(effects);
            self.flush_echo();
        }
    }

    fn reset_input(&mut self) {
        self.input.clear();
        self.output.forget_echo();
        self.literal = false;
        self.erasing = false;
        self.note(packet::FLUSH_READ, 0);
    }

    /// Drops what was typed and not read (`TCIFLUSH`).
    pub fn flush_input(&mut self) {
        self.waiting.clear();
        self.reset_input();
    }

    /// Drops what was typed and has not reached the input, as the other side's flush of its output does.
    pub fn flush_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Drops what was written and not taken (`TCOFLUSH`).
    pub fn flush_output(&mut self, effects: &mut Effects) {
        self.output.flush();
        self.note(packet::FLUSH_WRITE, 0);
        effects.writable = true;
    }

    /// The other side is gone for good.
    pub fn shut_down(&mut self) {
        let termios = *self.modes.termios();
        *self = Discipline::new(termios);
    }

    // Packet mode.

    /// Switches packet mode.
    pub fn set_packet_mode(&mut self, on: bool) {
        self.status = match (on, self.status) {
            (true, status) => Some(status.unwrap_or(0)),
            (false, _) => None,
        };
    }

    /// True in packet mode.
    pub fn packet_mode(&self) -> bool {
        self.status.is_some()
    }

    /// What the other side has to hear; 0 for nothing.
    pub fn status(&self) -> u8 {
        self.status.unwrap_or(0)
    }

    /// Takes it.
    pub fn take_status(&mut self) -> u8 {
        self.status.as_mut().map_or(0, std::mem::take)
    }

    fn note(&mut self, set: u8, clear: u8) {
        if let Some(status) = &mut self.status {
            *status = *status & !clear | set;
        }
    }
}

/// How much goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Erase {
    Character,
    Word,
    Line,
}

/// What counts as a letter beyond ASCII, in ISO 8859-1, where words are erased.
fn is_latin_letter(c: u8) -> bool {
    c >= 0xc0 && c != 0xd7 && c != 0xf7
}

#[cfg(test)]
mod tests;
