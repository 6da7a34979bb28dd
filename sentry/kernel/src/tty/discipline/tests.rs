use sentry_abi::tty::cc::{VEOL, VMIN};
use sentry_abi::tty::{NCCS, oflag};

use super::*;

/// A terminal, its effects so far, and what was typed at it.
struct Tested {
    discipline: Discipline,
    effects: Effects,
}

impl Tested {
    fn new() -> Tested {
        Tested::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Termios2)) -> Tested {
        let mut termios = Modes::initial();
        change(&mut termios);
        Tested {
            discipline: Discipline::new(termios),
            effects: Effects::default(),
        }
    }

    /// Types; what the terminal shows.
    fn type_in(&mut self, data: &[u8]) -> String {
        assert_eq!(self.discipline.receive(data, &mut self.effects), data.len());
        self.shown()
    }

    fn shown(&mut self) -> String {
        let mut buf = vec![0; 65536];
        let count = self.discipline.take_output(&mut buf, &mut self.effects);
        String::from_utf8_lossy(&buf[..count]).into_owned()
    }

    /// Reads at most `len` bytes, `None` if there is nothing.
    fn read(&mut self, len: usize) -> Option<String> {
        let mut buf = vec![0; len];
        let count = self.discipline.read(&mut buf, &mut self.effects)?;
        Some(String::from_utf8_lossy(&buf[..count]).into_owned())
    }

    fn change(&mut self, change: impl FnOnce(&mut Termios2)) {
        let mut termios = *self.discipline.modes().termios();
        change(&mut termios);
        self.discipline.set_modes(termios, &mut self.effects);
    }
}

fn raw(termios: &mut Termios2) {
    (termios.c_iflag, termios.c_oflag, termios.c_lflag) = (0, 0, 0);
}

#[test]
fn lines_are_edited() {
    let mut t = Tested::new();
    assert_eq!(t.type_in(b"helo\x7flo\r"), "helo\x08 \x08lo\r\n");
    assert_eq!(t.read(3).as_deref(), Some("hel"));
    assert_eq!(t.read(9).as_deref(), Some("lo\n"));
    assert_eq!(t.read(9), None);
    assert_eq!(
        t.type_in(b"one two.\x17x"),
        "one two.\x08 \x08\x08 \x08\x08 \x08\x08 \x08x"
    );
    assert_eq!(t.type_in(b"\x15"), "\x08 \x08".repeat(5));
    assert_eq!(t.type_in(b"a\x16\x03b\x12"), "a^\x08^Cb^R\r\na^Cb");
    assert_eq!(t.type_in(b"\x7f\x7f\n"), "\x08 \x08\x08 \x08\x08 \x08\r\n");
    assert_eq!(t.read(9).as_deref(), Some("a\n"));
    assert_eq!(t.effects.signals, SigSet::EMPTY);
}

#[test]
fn the_end_of_a_file_ends_a_read() {
    let mut t = Tested::new();
    assert_eq!(t.type_in(b"ab\x04"), "ab");
    assert_eq!(t.discipline.available(), 2);
    assert_eq!(t.read(9).as_deref(), Some("ab"));
    t.type_in(b"\x04\x04x\n");
    assert_eq!(t.read(9).as_deref(), Some(""));
    assert_eq!(t.read(9).as_deref(), Some(""));
    assert_eq!(t.read(9).as_deref(), Some("x\n"));
}

#[test]
fn erasing_shows_what_the_flags_say() {
    let mut t = Tested::with(|t| t.c_lflag &= !lflag::ECHOE);
    assert_eq!(t.type_in(b"ab\x7f"), "ab^?");
    let mut t = Tested::with(|t| t.c_lflag |= lflag::ECHOPRT);
    assert_eq!(t.type_in(b"abc\x7f\x7fd"), "abc\\cb/d");
    let mut t = Tested::with(|t| t.c_lflag &= !lflag::ECHOKE);
    assert_eq!(t.type_in(b"ab\x15c"), "ab^U\r\nc");
    let mut t = Tested::with(|t| t.c_lflag &= !(lflag::ECHOKE | lflag::ECHOK));
    assert_eq!(t.type_in(b"ab\x15c"), "ab^Uc");
    let mut t = Tested::with(|t| t.c_lflag &= !lflag::ECHOCTL);
    assert_eq!(t.type_in(b"a\x01\x7f"), "a\x01");
    let mut t = Tested::with(|t| t.c_lflag = lflag::ICANON | lflag::ECHONL);
    assert_eq!(t.type_in(b"ab\n"), "\r\n");
}

#[test]
fn tabs_are_erased_to_where_they_began() {
    let mut t = Tested::new();
    t.discipline.write(b"$ ");
    t.shown();
    assert_eq!(t.type_in(b"ab\t\x7f"), "ab\t\x08\x08\x08\x08");
    assert_eq!(
        t.type_in(b"\tx\ty\x7f\x7f"),
        format!("\tx\ty\x08 \x08{}", "\x08".repeat(7))
    );
}

#[test]
fn characters_of_many_bytes_go_as_one() {
    let mut t = Tested::with(|t| t.c_iflag |= iflag::IUTF8);
    assert_eq!(
        t.type_in("aé€\x7f\x7f\x7f\x7f".as_bytes()),
        "aé€\x08 \x08\x08 \x08\x08 \x08"
    );
    let mut t = Tested::with(|t| t.c_iflag |= iflag::IUTF8);
    // A byte that begins nothing cannot be erased.
    t.type_in(b"\x80\x7f\n");
    let mut buf = [0; 4];
    assert_eq!(t.discipline.read(&mut buf, &mut t.effects), Some(2));
    assert_eq!(&buf[..2], b"\x80\n");
}

#[test]
fn input_is_translated_by_flags() {
    let mut t = Tested::with(|t| t.c_iflag = iflag::INLCR | iflag::IGNCR);
    t.type_in(b"a\rb\n\x04");
    assert_eq!(t.read(9).as_deref(), Some("ab\r"));
    let mut t = Tested::with(|t| t.c_iflag = iflag::ISTRIP | iflag::IUCLC);
    t.type_in(b"A\xc2\n");
    assert_eq!(t.read(9).as_deref(), Some("ab\n"));
    let mut t = Tested::with(|t| {
        t.c_iflag = iflag::PARMRK;
        t.c_cc[VEOL] = b';';
    });
    t.type_in(b"x\xff;");
    let mut buf = [0; 9];
    assert_eq!(t.discipline.read(&mut buf, &mut t.effects), Some(4));
    assert_eq!(&buf[..4], b"x\xff\xff;");
}

#[test]
fn signals_flush_unless_told_not_to() {
    let mut t = Tested::new();
    assert_eq!(t.type_in(b"abc"), "abc");
    assert_eq!(t.type_in(b"ab\x03d\n"), "^Cd\r\n");
    assert!(t.effects.signals.has(Signal::INT));
    assert_eq!(t.read(9).as_deref(), Some("d\n"));
    let mut t = Tested::with(|t| t.c_lflag |= lflag::NOFLSH);
    t.type_in(b"abc\x1cd\x1a\n");
    assert!(t.effects.signals.has(Signal::QUIT) && t.effects.signals.has(Signal::TSTP));
    assert_eq!(t.read(9).as_deref(), Some("abcd\n"));
}

#[test]
fn output_stops_and_starts() {
    let mut t = Tested::new();
    assert_eq!(t.type_in(b"\x13ab"), "");
    assert_eq!(t.discipline.write(b"out"), 0);
    assert!(!t.discipline.writable());
    assert_eq!(t.type_in(b"\x11"), "ab");
    t.discipline.suspend_output(true, &mut t.effects);
    assert_eq!(t.type_in(b"\x11x"), "");
    t.discipline.suspend_output(false, &mut t.effects);
    assert_eq!(t.shown(), "x");
    let mut t = Tested::with(|t| t.c_iflag |= iflag::IXANY);
    assert_eq!(t.type_in(b"\x13ab"), "ab");
    let mut t = Tested::new();
    t.type_in(b"\x13ab");
    t.change(|t| t.c_iflag &= !iflag::IXON);
    t.type_in(b"");
    assert!(t.discipline.writable());
}

#[test]
fn an_overlong_line_can_be_ended() {
    let mut t = Tested::with(|t| t.c_lflag &= !lflag::ECHO);
    t.type_in(&[b'x'; 6000]);
    t.type_in(b"\n");
    let line = t.read(9000).unwrap();
    assert_eq!(line.len(), 4096);
    assert!(line.ends_with("x\n"));
}

#[test]
fn a_full_input_holds_the_typist_up() {
    let mut t = Tested::with(raw);
    let mut total = 0;
    loop {
        match t.discipline.receive(&[b'x'; 1000], &mut t.effects) {
            0 => break,
            count => total += count,
        }
    }
    assert_eq!(total, 4095 + WAITING);
    assert_eq!(t.discipline.available(), 4095);
    assert_eq!(t.read(4000).map(|text| text.len()), Some(4000));
    assert_eq!(t.discipline.available(), 4095);
    assert_eq!(t.discipline.receive_room(), 4000);
}

#[test]
fn flow_control_overtakes_what_waits() {
    let mut t = Tested::with(|t| {
        raw(t);
        t.c_iflag = iflag::IXON;
    });
    t.type_in(&[b'x'; 5000]);
    t.type_in(b"\x13y");
    assert!(!t.discipline.writable());
    t.type_in(b"\x11z");
    assert!(t.discipline.writable());
    let mut all = String::new();
    while let Some(part) = t.read(4096) {
        all += &part;
    }
    assert!(all.ends_with("xxyz"));
    assert_eq!(all.len(), 5002);
}

#[test]
fn changing_modes_keeps_the_input() {
    let mut t = Tested::new();
    t.type_in(b"one\ntw");
    t.change(raw);
    assert_eq!(t.read(99).as_deref(), Some("one\ntw"));
    t.type_in(b"ab");
    t.change(|t| t.c_lflag = lflag::ICANON);
    assert_eq!(t.read(99).as_deref(), Some("ab"));
    assert_eq!(t.read(99), None);
}

#[test]
fn packet_mode_tells_of_changes() {
    let mut t = Tested::new();
    t.type_in(b"\x13");
    assert_eq!(t.discipline.status(), 0);
    t.discipline.set_packet_mode(true);
    t.type_in(b"\x11\x13");
    assert_eq!(t.discipline.take_status(), packet::STOP);
    t.type_in(b"\x11\x03");
    assert_eq!(
        t.discipline.take_status(),
        packet::START | packet::FLUSH_READ | packet::FLUSH_WRITE
    );
    t.change(|t| t.c_iflag &= !iflag::IXON);
    assert_eq!(t.discipline.take_status(), packet::NO_STOP);
    t.change(|t| t.c_lflag |= lflag::EXTPROC);
    assert_eq!(t.discipline.take_status(), packet::IOCTL);
}

/// Whatever is typed, written, read and set in whatever order: nothing panics, and nothing grows without bound.
#[test]
fn nothing_breaks_it() {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut t = Tested::new();
    for _ in 0..50_000 {
        let bytes: Vec<u8> = (0..random(40))
            .map(|_| [random(32), random(256)][random(2) as usize] as u8)
            .collect();
        match random(8) {
            0 => {
                let mut termios = Modes::initial();
                termios.c_iflag = random(1 << 16) as u32;
                termios.c_oflag = random(1 << 14) as u32;
                termios.c_lflag = random(1 << 17) as u32;
                termios.c_cc = [0; NCCS].map(|_: u8| random(256) as u8);
                termios.c_cc[VMIN] = random(3) as u8;
                t.discipline.set_modes(termios, &mut t.effects);
            }
            1 => drop(t.read(random(100) as usize)),
            2 => drop(t.shown()),
            3 => drop(t.discipline.write(&bytes)),
            4 => t.discipline.suspend_output(random(2) == 0, &mut t.effects),
            5 if random(50) == 0 => t.discipline.flush_input(),
            6 if random(50) == 0 => t.discipline.flush_output(&mut t.effects),
            _ => drop(t.discipline.receive(&bytes.repeat(random(60) as usize), &mut t.effects)),
        }
        assert!(t.discipline.available() <= input::CAPACITY + 4);
        assert!(t.discipline.receive_room() <= WAITING);
    }
    let _ = oflag::OPOST;
}
