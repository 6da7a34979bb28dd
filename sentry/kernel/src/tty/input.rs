//! The input buffer of a terminal: bytes that were typed, in lines as far as the terminal cares for lines.

use std::collections::VecDeque;

/// The most bytes a terminal holds for its reader.
pub const CAPACITY: usize = 4096;
/// Stands at the end of a line that was ended by `VEOF`: not read, but the read ends.
pub const END_OF_FILE: u8 = 0;

/// Bytes between the terminal's reader and its typist. Positions count all bytes ever put in.
#[derive(Debug, Default)]
pub struct Input {
    bytes: VecDeque<u8>,
    /// The position of the first byte.
    tail: u64,
    /// Behind the last byte of the last complete line.
    lines: u64,
    /// The positions of the last bytes of complete lines.
    ends: VecDeque<u64>,
}

impl Input {
    /// All bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True if there is a complete line.
    pub fn has_line(&self) -> bool {
        self.lines != self.tail
    }

    fn head(&self) -> u64 {
        self.tail + self.bytes.len() as u64
    }

    fn index(&self, position: u64) -> usize {
        // Positions given out are never more than the buffer's length away.
        position.saturating_sub(self.tail) as usize
    }

    /// The bytes of the line that is being edited.
    pub fn edited(&self) -> impl DoubleEndedIterator<Item = u8> + ExactSizeIterator + '_ {
        self.bytes
            .range(self.index(self.lines).min(self.bytes.len())..)
            .copied()
    }

    /// Adds a byte.
    pub fn push(&mut self, c: u8) {
        self.bytes.push_back(c);
    }

    /// Adds bytes.
    pub fn extend(&mut self, bytes: impl Iterator<Item = u8>) {
        self.bytes.extend(bytes);
    }

    /// Takes the last bytes of the line that is being edited away.
    pub fn erase(&mut self, count: usize) {
        let count = count.min(self.edited().len());
        self.bytes.truncate(self.bytes.len() - count);
    }

    /// Ends a line with this byte.
    pub fn end_line(&mut self, c: u8) {
        self.ends.push_back(self.head());
        self.bytes.push_back(c);
        self.lines = self.head();
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.tail = self.head();
        self.bytes.clear();
        self.lines = self.tail;
        self.ends.clear();
    }

    /// What was read byte by byte is now read by lines: what there is becomes one.
    pub fn begin_lines(&mut self) {
        self.ends.clear();
        self.lines = self.tail;
        if let Some(last) = self.head().checked_sub(1).filter(|_| !self.is_empty()) {
            self.ends.push_back(last);
            self.lines = self.head();
        }
    }

    /// What was read by lines is now read byte by byte.
    pub fn end_lines(&mut self) {
        self.ends.clear();
        self.lines = self.tail;
    }

    /// How many bytes of complete lines can be read.
    pub fn in_lines(&self) -> usize {
        let markers = self.ends.iter().filter(|end| self.is_marker(**end)).count();
        self.index(self.lines).saturating_sub(markers)
    }

    fn is_marker(&self, end: u64) -> bool {
        self.bytes.get(self.index(end)) == Some(&END_OF_FILE)
    }

    /// Reads from the first complete line; there must be one.
    pub fn read_line(&mut self, buf: &mut [u8]) -> usize {
        let count = buf.len().min(self.index(self.lines));
        let end = self.ends.front().copied();
        let length = match end.map(|end| self.index(end)) {
            Some(at) if at < count => {
                self.ends.pop_front();
                let marker = self.bytes.get(at) == Some(&END_OF_FILE);
                let length = self.drain(&mut buf[..at + 1]);
                return length - usize::from(marker);
            }
            _ => self.drain(&mut buf[..count]),
        };
        // The end of a file just behind what was asked for is not told a second time.
        if length > 0
            && let Some(end) = end
            && end == self.tail
            && self.is_marker(end)
        {
            self.ends.pop_front();
            self.drain(&mut [0]);
        }
        length
    }

    /// Reads bytes, whatever lines they are in.
    pub fn read_bytes(&mut self, buf: &mut [u8]) -> usize {
        let count = self.drain(buf);
        self.lines = self.lines.max(self.tail);
        count
    }

    fn drain(&mut self, buf: &mut [u8]) -> usize {
        let count = buf.len().min(self.bytes.len());
        for (to, from) in buf.iter_mut().zip(self.bytes.drain(..count)) {
            *to = from;
        }
        self.tail += count as u64;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(input: &mut Input, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        let count = input.read_line(&mut buf);
        buf.truncate(count);
        buf
    }

    #[test]
    fn a_read_gives_a_line_or_a_part_of_it() {
        let mut input = Input::default();
        input.extend(b"one".iter().copied());
        input.end_line(b'\n');
        input.extend(b"two".iter().copied());
        assert!(input.has_line());
        assert_eq!((input.in_lines(), input.edited().len()), (4, 3));
        assert_eq!(line(&mut input, 2), b"on");
        assert_eq!(line(&mut input, 9), b"e\n");
        assert!(!input.has_line());
        input.erase(1);
        input.erase(9);
        assert!(input.is_empty());
    }

    #[test]
    fn the_end_of_a_file_is_told_once() {
        let mut input = Input::default();
        input.extend(b"ab".iter().copied());
        input.end_line(END_OF_FILE);
        input.end_line(END_OF_FILE);
        assert_eq!(input.in_lines(), 2);
        assert_eq!(line(&mut input, 2), b"ab");
        assert!(input.has_line());
        assert_eq!(line(&mut input, 2), b"");
        assert!(!input.has_line());
    }

    #[test]
    fn changing_the_way_of_reading_keeps_the_bytes() {
        let mut input = Input::default();
        input.extend(b"xyz".iter().copied());
        input.begin_lines();
        assert_eq!(line(&mut input, 9), b"xyz");
        input.extend(b"ab".iter().copied());
        input.end_line(b'\n');
        input.extend(b"c".iter().copied());
        input.end_lines();
        let mut buf = [0; 9];
        assert_eq!(input.read_bytes(&mut buf), 4);
        assert_eq!(&buf[..4], b"ab\nc");
        input.begin_lines();
        assert!(!input.has_line());
    }
}
