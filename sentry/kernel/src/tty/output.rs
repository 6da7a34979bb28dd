//! The way out of a terminal: what programs write and what input echoes, as it reaches the other side.
//!
//! `OPOST` processing keeps the column, so that tabs and erased tabs have their width. Echo that finds no room waits
//! in a queue of its own.

use std::collections::VecDeque;

use sentry_abi::tty::{iflag, oflag};

use super::modes::Modes;

/// How much the other side has before it stops a writer: what its own line discipline holds, and what is on the way.
const CAPACITY: usize = IN_DISCIPLINE + 8192;
/// What a flush of output cannot take back: it has reached the other side's line discipline.
const IN_DISCIPLINE: usize = 4095;
/// How much echo waits at most; the oldest goes.
const MAX_ECHO: usize = 4096;

/// Something to echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// A character, which goes the way of all output.
    Plain(u8),
    /// A control character, shown as `^X`.
    Control(u8),
    /// Backspaces over a tab. How many columns stand between it and the tab before it, or (`from_start`) the start of
    /// the input.
    EraseTab {
        /// Columns.
        columns: u32,
        /// There is no tab before it.
        from_start: bool,
    },
    /// Here the input begins.
    InputStarts,
    /// One column less: a further byte of a character.
    MoveBack,
}

/// Output on its way.
#[derive(Debug, Default)]
pub struct Output {
    queue: VecDeque<u8>,
    echo: VecDeque<Echo>,
    /// Where the next character goes.
    column: u32,
    /// Where the input that is being edited began.
    input_column: u32,
}

/// True for ASCII control characters.
pub fn is_control(c: u8) -> bool {
    c < 0x20 || c == 0x7f
}

/// True for the second and further bytes of a character, if the terminal knows UTF-8.
pub fn is_continuation(modes: &Modes, c: u8) -> bool {
    modes.input(iflag::IUTF8) && c & 0xc0 == 0x80
}

impl Output {
    /// How many bytes more there is room for.
    pub fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.queue.len())
    }

    /// How many bytes wait for the other side.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if nothing waits for the other side.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many bytes the other side's line discipline has (`FIONREAD`).
    pub fn delivered(&self) -> usize {
        self.queue.len().min(IN_DISCIPLINE)
    }

    /// Takes bytes out for the other side.
    pub fn take(&mut self, buf: &mut [u8]) -> usize {
        let count = self.queue.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(self.queue.drain(..count)) {
            *to = from;
        }
        count
    }

    /// Drops what the other side's line discipline does not have yet (`TCOFLUSH`).
    pub fn flush(&mut self) {
        self.queue.truncate(IN_DISCIPLINE);
    }

    /// Drops everything, as the other side's own flush does.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// Drops echo that is still waiting.
    pub fn forget_echo(&mut self) {
        self.echo.clear();
    }

    /// Notes something to echo; [`Output::process_echo`] puts it out.
    pub fn echo(&mut self, echo: Echo) {
        if self.echo.len() >= MAX_ECHO {
            self.echo.pop_front();
        }
        self.echo.push_back(echo);
    }

    /// Puts a character out past all processing (`TCIOFF`).
    pub fn push_raw(&mut self, c: u8) -> bool {
        let fits = self.room() > 0;
        if fits {
            self.queue.push_back(c);
        }
        fits
    }

    /// Puts out as much echo as there is room for.
    pub fn process_echo(&mut self, modes: &Modes) {
        while let Some(echo) = self.echo.front().copied() {
            if !self.put_echo(modes, echo) {
                return;
            }
            self.echo.pop_front();
        }
    }

    fn put_echo(&mut self, modes: &Modes, echo: Echo) -> bool {
        match echo {
            Echo::Plain(c) if modes.output(oflag::OPOST) => return self.process(modes, c),
            Echo::Plain(c) => return self.push_raw(c),
            Echo::Control(c) => {
                if self.room() < 2 {
                    return false;
                }
                self.queue.extend([b'^', c ^ 0o100]);
                self.column = self.column.wrapping_add(2);
            }
            Echo::EraseTab { columns, from_start } => {
                let columns = if from_start {
                    columns.wrapping_add(self.input_column)
                } else {
                    columns
                };
                let back = 8 - (columns & 7);
                if self.room() < back as usize {
                    return false;
                }
                self.queue.extend(std::iter::repeat_n(b'\x08', back as usize));
                self.column = self.column.saturating_sub(back);
            }
            Echo::InputStarts => self.input_column = self.column,
            Echo::MoveBack => self.column = self.column.saturating_sub(1),
        }
        true
    }

    /// Takes what a program writes; how many of its bytes went out.
    pub fn write(&mut self, modes: &Modes, data: &[u8]) -> usize {
        self.process_echo(modes);
        if !modes.output(oflag::OPOST) {
            let count = data.len().min(self.room());
            self.queue.extend(&data[..count]);
            return count;
        }
        let taken = data.iter().position(|&c| !self.process(modes, c));
        taken.unwrap_or(data.len())
    }

    /// Output processing of one character; false if it does not fit.
    fn process(&mut self, modes: &Modes, c: u8) -> bool {
        let room = self.room();
        if room == 0 {
            return false;
        }
        let mut c = c;
        match c {
            b'\n' => {
                if modes.output(oflag::ONLRET) {
                    self.column = 0;
                }
                if modes.output(oflag::ONLCR) {
                    if room < 2 {
                        return false;
                    }
                    self.column = 0;
                    self.input_column = 0;
                    self.queue.extend(*b"\r\n");
                    return true;
                }
                self.input_column = self.column;
            }
            b'\r' => {
                if modes.output(oflag::ONOCR) && self.column == 0 {
                    return true;
                }
                let becomes_newline = modes.output(oflag::OCRNL);
                if becomes_newline {
                    c = b'\n';
                }
                if !becomes_newline || modes.output(oflag::ONLRET) {
                    self.column = 0;
                    self.input_column = 0;
                }
            }
            b'\t' => {
                let width = 8 - (self.column & 7);
                if modes.expands_tabs() {
                    if room < width as usize {
                        return false;
                    }
                    self.column = self.column.wrapping_add(width);
                    self.queue.extend(std::iter::repeat_n(b' ', width as usize));
                    return true;
                }
                self.column = self.column.wrapping_add(width);
            }
            b'\x08' => self.column = self.column.saturating_sub(1),
            _ if is_control(c) => {}
            _ => {
                if modes.output(oflag::OLCUC) {
                    c = c.to_ascii_uppercase();
                }
                if !is_continuation(modes, c) {
                    self.column = self.column.wrapping_add(1);
                }
            }
        }
        self.queue.push_back(c);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(oflag: u32, data: &[u8]) -> Vec<u8> {
        let mut termios = Modes::initial();
        termios.c_oflag = oflag;
        let (modes, mut output) = (Modes::new(termios), Output::default());
        assert_eq!(output.write(&modes, data), data.len());
        let mut buf = vec![0; 256];
        let count = output.take(&mut buf);
        buf.truncate(count);
        buf
    }

    #[test]
    fn output_is_processed_by_flags() {
        use oflag::{OCRNL, OLCUC, ONLCR, ONLRET, ONOCR, OPOST, TABDLY};
        assert_eq!(written(OPOST | ONLCR, b"a\nb\r"), b"a\r\nb\r");
        assert_eq!(written(ONLCR, b"a\n"), b"a\n");
        assert_eq!(written(OPOST | OCRNL, b"a\rb"), b"a\nb");
        assert_eq!(written(OPOST | ONOCR, b"\ra\r\r"), b"a\r");
        assert_eq!(written(OPOST | OLCUC, b"aZ\xe4"), b"AZ\xe4");
        assert_eq!(written(OPOST | TABDLY, b"ab\tc\t"), b"ab      c       ");
        assert_eq!(written(OPOST | TABDLY, b"abc\x08\x08\t|"), b"abc\x08\x08       |");
        assert_eq!(written(OPOST | TABDLY | ONLRET, b"abc\n\t"), b"abc\n        ");
        assert_eq!(written(OPOST | TABDLY, b"abc\n\t"), b"abc\n     ");
    }

    #[test]
    fn a_full_queue_takes_whole_sequences_only() {
        let (modes, mut output) = (Modes::new(Modes::initial()), Output::default());
        let all = vec![b'x'; CAPACITY - 1];
        assert_eq!(output.write(&modes, &all), all.len());
        assert_eq!(output.write(&modes, b"\nmore"), 0);
        assert_eq!(output.write(&modes, b"xy"), 1);
        output.echo(Echo::Control(3));
        output.process_echo(&modes);
        assert_eq!(output.len(), CAPACITY);
        output.take(&mut [0; 4]);
        output.process_echo(&modes);
        assert_eq!(output.len(), CAPACITY - 2);
        output.flush();
        assert_eq!((output.len(), output.delivered()), (IN_DISCIPLINE, IN_DISCIPLINE));
    }
}
