//! Lines: how they are edited, shown and read (`ICANON`).

use super::*;
use crate::{check, eq, err, ok};

pub fn lines_and_echo() {
    let pty = Pty::new();
    pty.echoes(b"hello\r", b"hello\r\n");
    eq!(pty.line(), b"hello\n");
    pty.echoes(b"a\x01\x1b\t\n", b"a^A^[\t\r\n");
    eq!(pty.line(), b"a\x01\x1b\t\n");
    pty.echoes("zwölf\n".as_bytes(), "zwölf\r\n".as_bytes());
    eq!(pty.line(), "zwölf\n".as_bytes());
}

pub fn erases_characters() {
    let pty = Pty::new();
    pty.echoes(b"abc\x7f\x7fd\n", b"abc\x08 \x08\x08 \x08d\r\n");
    eq!(pty.line(), b"ad\n");
    // A control character takes two columns; nothing is erased beyond the line.
    pty.echoes(b"\x01\x7f\x7f\x7f", b"^A\x08 \x08\x08 \x08");
    pty.change(|t| t.cc[libc::VERASE] = b'#');
    pty.echoes(b"ab#\x7f\n", b"ab\x08 \x08^?\r\n");
    eq!(pty.line(), b"a\x7f\n");
    pty.change(|t| t.cc[libc::VERASE] = 0);
    pty.echoes(b"ab#\0\n", b"ab#^@\r\n");
    eq!(pty.line(), b"ab#\0\n");
}

pub fn erases_words() {
    let pty = Pty::new();
    let erased = |n: usize| "\x08 \x08".repeat(n);
    pty.echoes(b"one two_3.;\x17", format!("one two_3.;{}", erased(7)).as_bytes());
    pty.echoes(b"\x17x\n", format!("{}x\r\n", erased(4)).as_bytes());
    eq!(pty.line(), b"x\n");
    pty.echoes(b"a  \x17\x17", format!("a  {}", erased(3)).as_bytes());
    pty.change(|t| t.lflag &= !libc::IEXTEN);
    pty.echoes(b"a\x17\n", b"a^W\r\n");
    eq!(pty.line(), b"a\x17\n");
}

pub fn erases_lines() {
    let pty = Pty::new();
    let erased = |n: usize| "\x08 \x08".repeat(n);
    pty.echoes(b"abc\x15d\n", format!("abc{}d\r\n", erased(3)).as_bytes());
    eq!(pty.line(), b"d\n");
    pty.change(|t| t.lflag &= !libc::ECHOKE);
    pty.echoes(b"abc\x15d\n", b"abc^U\r\nd\r\n");
    eq!(pty.line(), b"d\n");
    pty.change(|t| t.lflag &= !libc::ECHOK);
    pty.echoes(b"abc\x15d\n", b"abc^Ud\r\n");
    eq!(pty.line(), b"d\n");
    // An empty line shows nothing.
    pty.echoes(b"\x15\x15\n", b"\r\n");
    eq!(pty.line(), b"\n");
    pty.change(|t| t.lflag &= !libc::ECHO);
    pty.echoes(b"abc\x15d\n", b"");
    eq!(pty.line(), b"d\n");
}

pub fn erases_in_many_bytes() {
    let pty = Pty::new();
    pty.echoes("é\x7f".as_bytes(), "é\x08 \x08".as_bytes());
    pty.echoes(b"\n", b"\r\n");
    eq!(pty.line(), b"\xc3\n");
    pty.change(|t| t.iflag |= libc::IUTF8);
    pty.echoes(
        "aé€\u{1f600}\x7f\x7f\x7f".as_bytes(),
        "aé€\u{1f600}\x08 \x08\x08 \x08\x08 \x08".as_bytes(),
    );
    pty.echoes(b"\n", b"\r\n");
    eq!(pty.line(), b"a\n");
    pty.echoes(
        "wört über\x17".as_bytes(),
        format!("wört über{}", "\x08 \x08".repeat(4)).as_bytes(),
    );
    pty.echoes(b"\x15\n", format!("{}\r\n", "\x08 \x08".repeat(5)).as_bytes());
    eq!(pty.line(), b"\n");
    // What begins no character stays.
    pty.type_in(b"\x80\x81\x7f\n");
    eq!(pty.line(), b"\x80\x81\n");
}

pub fn erases_tabs() {
    let pty = Pty::new();
    let back = |n: usize| "\x08".repeat(n);
    pty.echoes(b"ab\t\x7f", format!("ab\t{}", back(6)).as_bytes());
    pty.echoes(b"\x15\n", b"\x08 \x08\x08 \x08\r\n");
    eq!(pty.line(), b"\n");
    // The prompt counts.
    eq!(write(pty.s, b"$ "), 2);
    pty.shows(b"$ ");
    pty.echoes(b"ab\t\x7f", format!("ab\t{}", back(4)).as_bytes());
    pty.echoes(
        b"\ty\t\x7f\x7f\x7f",
        format!("\ty\t{}\x08 \x08{}", back(7), back(4)).as_bytes(),
    );
    pty.echoes(b"\x01\t\x7f\n", format!("^A\t{}\r\n", back(2)).as_bytes());
    eq!(pty.line(), b"ab\x01\n");
}

pub fn prints_erased() {
    let pty = Pty::new();
    pty.change(|t| t.lflag |= libc::ECHOPRT);
    pty.echoes(b"abc\x7f\x7fd\x7f\n", b"abc\\cb/d\\d\r\n");
    eq!(pty.line(), b"a\n");
    pty.echoes(b"ab\x7f\x7f\n", b"/ab\\ba/\r\n");
    eq!(pty.line(), b"\n");
    pty.echoes(b"one two\x17\n", b"one two\\owt\r\n");
    eq!(pty.line(), b"one \n");
    pty.change(|t| {
        t.lflag &= !(libc::ECHOPRT | libc::ECHOE);
    });
    pty.echoes(b"ab\x7f\x7f\n", b"/ab^?^?\r\n");
    eq!(pty.line(), b"\n");
}

pub fn reprints() {
    let pty = Pty::new();
    pty.echoes(b"a\x01b\x12", b"a^Ab^R\r\na^Ab");
    pty.echoes(b"\n", b"\r\n");
    eq!(pty.line(), b"a\x01b\n");
    pty.change(|t| t.lflag &= !libc::ECHO);
    pty.echoes(b"a\x12\n", b"");
    eq!(pty.line(), b"a\x12\n");
}

pub fn takes_literally() {
    let pty = Pty::new();
    pty.echoes(b"a\x16\x03\x16\x16\x16\x7f\n", b"a^\x08^C^\x08^V^\x08^?\r\n");
    eq!(pty.line(), b"a\x03\x16\x7f\n");
    // Neither does a carriage return become a newline, nor does a newline end a line.
    pty.echoes(b"\x16\r\x16\n", b"^\x08^M^\x08^J");
    pty.echoes(b"\n", b"\r\n");
    eq!(pty.line(), b"\r\n\n");
    pty.change(|t| t.lflag &= !libc::ECHOCTL);
    pty.echoes(b"\x16x\n", b"x\r\n");
    eq!(pty.line(), b"x\n");
    pty.change(|t| t.lflag &= !libc::IEXTEN);
    pty.echoes(b"\x16x\n", b"\x16x\r\n");
    eq!(pty.line(), b"\x16x\n");
}

pub fn ends_of_files() {
    let pty = Pty::new();
    pty.echoes(b"\x04", b"");
    eq!(pty.line(), b"");
    pty.echoes(b"ab\x04", b"ab");
    eq!(pty.line(), b"ab");
    pty.type_in(b"\x04\x04c\n");
    eq!(pty.line(), b"");
    eq!(pty.line(), b"");
    eq!(pty.line(), b"c\n");
    let fd = pty.s;
    pty.type_in(b"abc\x04");
    eq!(read(fd, 2), b"ab");
    eq!(read(fd, 2), b"c");
    ok!(crate::sys!(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK));
    err!(try_read(fd), libc::EAGAIN);
}

pub fn end_of_file_behind_a_full_read() {
    let pty = Pty::silent();
    ok!(crate::sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, libc::O_NONBLOCK));
    pty.type_in(b"abc\x04");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    eq!(read(pty.s, 3), b"abc");
    err!(try_read(pty.s), libc::EAGAIN);
    // A second one is an end of its own.
    pty.type_in(b"abc\x04\x04");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    eq!(read(pty.s, 3), b"abc");
    eq!(read(pty.s, 3), b"");
    err!(try_read(pty.s), libc::EAGAIN);
}

pub fn other_ends_of_lines() {
    let pty = Pty::new();
    pty.change(|t| {
        t.cc[libc::VEOL] = b';';
        t.cc[libc::VEOL2] = b'.';
    });
    pty.echoes(b"a;b.c\n", b"a;b.c\r\n");
    eq!(pty.line(), b"a;");
    eq!(pty.line(), b"b.");
    eq!(pty.line(), b"c\n");
    pty.change(|t| t.lflag &= !libc::IEXTEN);
    pty.type_in(b"x.y;");
    eq!(pty.line(), b"x.y;");
}

pub fn echo_flags() {
    let pty = Pty::new();
    pty.change(|t| t.lflag = libc::ICANON | libc::ECHONL);
    pty.echoes(b"secret\n", b"\r\n");
    eq!(pty.line(), b"secret\n");
    pty.change(|t| t.lflag = libc::ICANON | libc::ECHO);
    pty.echoes(b"a\x01b\n", b"a\x01b\r\n");
    eq!(pty.line(), b"a\x01b\n");
    // Without lines a newline that nothing asks about is shown like other control characters.
    pty.change(|t| (t.lflag, t.iflag) = (libc::ECHO | libc::ECHOCTL, 0));
    pty.echoes(b"x\n\r\t", b"x^J^M\t");
    pty.change(|t| t.oflag = 0);
    pty.change(|t| (t.lflag, t.iflag) = (libc::ICANON | libc::ECHO, libc::ICRNL));
    pty.type_in(b"\n");
    eq!(pty.line(), b"x\n\r\t");
    eq!(pty.line(), b"\n");
    pty.shows(b"\n");
}

pub fn overlong_line() {
    let pty = Pty::silent();
    // The end of a line always finds room.
    for _ in 0..5 {
        pty.type_in(&[b'x'; 1000]);
    }
    pty.type_in(b"end\n");
    eq!(ready(pty.s, libc::POLLIN, 2000), libc::POLLIN);
    let line = pty.line();
    eq!(line.len(), 4096);
    check!(line[..4095].iter().all(|c| *c == b'x'));
    eq!(line[4095], b'\n');
    pty.type_in(b"next\n");
    eq!(pty.line(), b"next\n");
}

pub fn reads_by_lines() {
    let pty = Pty::silent();
    pty.type_in(b"first\nsecond\nthird");
    eq!(read(pty.s, 3), b"fir");
    eq!(read(pty.s, 3), b"st\n");
    eq!(read(pty.s, 100), b"second\n");
    pty.type_in(b"\n");
    // Into several buffers too: one line.
    let (mut a, mut b) = ([0u8; 2], [0u8; 20]);
    let vectors = [
        libc::iovec {
            iov_base: a.as_mut_ptr().cast(),
            iov_len: 2,
        },
        libc::iovec {
            iov_base: b.as_mut_ptr().cast(),
            iov_len: 20,
        },
    ];
    eq!(crate::sys!(libc::SYS_readv, pty.s, vectors.as_ptr(), 2), 6);
    eq!((&a[..], &b[..4]), (&b"th"[..], &b"ird\n"[..]));
}

pub fn many_ends_wait() {
    let pty = Pty::silent();
    pty.type_in(&[b'\n'; 1000]);
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    until("all lines are there", || get(pty.s, FIONREAD) == 1000);
    for _ in 0..1000 {
        eq!(pty.line(), b"\n");
    }
    eq!(ready(pty.s, libc::POLLIN, 0), 0);
}

pub fn full_of_lines() {
    // Lines that nobody reads hold the typist up, and none is lost.
    let pty = Pty::silent();
    let writer = child(|| {
        for n in 0..2000 {
            let line = format!("line number {n}\n");
            eq!(write(pty.m, line.as_bytes()), line.len() as i64);
        }
    });
    sleep_ms(20);
    for n in 0..2000 {
        eq!(pty.line(), format!("line number {n}\n").as_bytes());
    }
    reap(writer);
}
