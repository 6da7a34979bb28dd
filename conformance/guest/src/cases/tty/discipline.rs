//! Modes, input and output processing, flow control, and reads without lines.

use super::*;
use crate::{check, eq, err, ok, sys};

pub fn initial_modes() {
    let t = Pty::new().modes();
    eq!(t.iflag, libc::ICRNL | libc::IXON);
    eq!(t.oflag, libc::OPOST | libc::ONLCR);
    eq!(t.cflag, 0o277);
    eq!(t.lflag, 0o105073);
    eq!(
        t.cc[..17],
        [3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0]
    );
    eq!((t.line, t.ispeed, t.ospeed), (0, 38400, 38400));
}

pub fn forms_of_modes() {
    let pty = Pty::new();
    let mut old: [u8; 40] = [0xee; 40];
    eq!(ioctl(pty.m, TCGETS, old.as_mut_ptr()), 0);
    // 36 bytes and no more.
    eq!(old[36..], [0xee; 4]);
    let mut modes = pty.modes();
    eq!(old[..4], modes.iflag.to_ne_bytes());
    modes.lflag &= !libc::ECHO;
    modes.ospeed = 77;
    eq!(ioctl(pty.s, TCSETS, &modes as *const Modes), 0);
    eq!(pty.modes().lflag, modes.lflag);
    eq!(pty.modes().ospeed, 38400);
    // struct termio.
    let mut short = [0u16; 9];
    eq!(ioctl(pty.s, TCGETA, short.as_mut_ptr()), 0);
    eq!(u32::from(short[0]), modes.iflag);
    eq!(u32::from(short[3]), modes.lflag);
    short[0] = 0;
    short[3] = libc::ICANON as u16;
    pty.change(|t| t.lflag |= libc::EXTPROC);
    eq!(ioctl(pty.s, TCSETA, short.as_ptr()), 0);
    let now = pty.modes();
    eq!((now.iflag, now.lflag), (0, libc::ICANON | libc::EXTPROC));
    eq!(now.cc[libc::VLNEXT], 22);
    for request in [TCSETSW, TCSETSF] {
        modes.iflag ^= libc::IXANY;
        eq!(ioctl(pty.m, request, &modes as *const Modes), 0);
        eq!(pty.modes().iflag, modes.iflag);
    }
    let (_, end) = guarded_page();
    err!(ioctl(pty.s, TCSETS, end - 35), libc::EFAULT);
    err!(ioctl(pty.s, TCGETS, end - 35), libc::EFAULT);
    eq!(ioctl(pty.s, TCGETS, end - 36), 0);
}

pub fn speeds() {
    let pty = Pty::new();
    pty.change(|t| t.cflag = t.cflag & !libc::CBAUD | libc::B115200);
    let t = pty.modes();
    eq!((t.ispeed, t.ospeed), (115_200, 115_200));
    pty.change(|t| {
        t.cflag = t.cflag & !libc::CBAUD | 0o10000;
        t.ospeed = 12345;
        t.ispeed = 99;
    });
    let t = pty.modes();
    eq!((t.ispeed, t.ospeed), (12345, 12345));
    // Characters have eight bits, whatever is asked for.
    pty.change(|t| t.cflag = libc::B9600 | libc::CS5 | libc::PARENB | libc::CLOCAL);
    let t = pty.modes();
    eq!(t.cflag, libc::B9600 | libc::CS8 | libc::CREAD | libc::CLOCAL);
    eq!(t.ospeed, 9600);
}

pub fn input_flags() {
    let pty = Pty::silent();
    pty.change(|t| t.iflag = libc::IGNCR);
    pty.type_in(b"a\rb\n");
    eq!(pty.line(), b"ab\n");
    pty.change(|t| t.iflag = libc::INLCR | libc::ICRNL);
    pty.type_in(b"a\nb\r");
    eq!(pty.line(), b"a\rb\n");
    pty.change(|t| t.iflag = libc::ISTRIP);
    pty.type_in(b"\xe1b\n");
    eq!(pty.line(), b"ab\n");
    pty.change(|t| t.iflag = 0o1000);
    pty.type_in(b"ABc\n");
    eq!(pty.line(), b"abc\n");
    pty.change(|t| t.lflag &= !libc::IEXTEN);
    pty.type_in(b"ABc\n");
    eq!(pty.line(), b"ABc\n");
    pty.change(|t| t.iflag = 0);
    pty.type_in(b"a\r\n");
    eq!(pty.line(), b"a\r\n");
}

pub fn parity_marks() {
    let pty = Pty::silent();
    pty.change(|t| t.iflag = libc::PARMRK);
    pty.type_in(b"a\xffb\n");
    eq!(pty.line(), b"a\xff\xffb\n");
    pty.change(|t| t.iflag = 0);
    pty.type_in(b"a\xffb\n");
    eq!(pty.line(), b"a\xffb\n");
}

pub fn output_flags() {
    let pty = Pty::silent();
    let writes = |oflag: u32, data: &[u8], expected: &[u8]| {
        pty.change(|t| t.oflag = oflag);
        // To column 0.
        eq!(write(pty.s, b"\r"), 1);
        eq!(write(pty.s, data), data.len() as i64);
        let mut all = if oflag & libc::OCRNL != 0 && oflag & libc::OPOST != 0 {
            b"\n".to_vec()
        } else if oflag & libc::ONOCR != 0 && oflag & libc::OPOST != 0 {
            Vec::new()
        } else {
            b"\r".to_vec()
        };
        all.extend_from_slice(expected);
        pty.shows(&all);
    };
    writes(libc::ONLCR, b"a\nb", b"a\nb");
    writes(libc::OPOST | libc::ONLCR, b"a\nb\n", b"a\r\nb\r\n");
    writes(libc::OPOST, b"a\nb\rc", b"a\nb\rc");
    writes(libc::OPOST | libc::OCRNL, b"a\rb", b"a\nb");
    writes(libc::OPOST, b"", b"");
    writes(libc::OPOST | libc::ONOCR, b"\r\rab\r\r", b"ab\r");
    writes(libc::OPOST | libc::ONLRET, b"ab\n", b"ab\n");
    writes(libc::OPOST | 0o2, b"abC1", b"ABC1");
    let long = vec![b'\n'; 1500];
    writes(libc::OPOST | libc::ONLCR, &long, &b"\r\n".repeat(1500));
}

pub fn tabs_are_expanded() {
    let pty = Pty::silent();
    pty.change(|t| t.oflag = libc::OPOST | libc::TAB3);
    let writes = |data: &[u8], expected: &[u8]| {
        eq!(write(pty.s, data), data.len() as i64);
        pty.shows(expected);
    };
    writes(b"a\tb\t", b"a       b       ");
    writes(b"\rabc\x08\x08\tx", b"\rabc\x08\x08       x");
    writes(b"\r\x1b[1m\t", b"\r\x1b[1m     ");
    writes("\rää\t".as_bytes(), "\rää    ".as_bytes());
    pty.change(|t| t.iflag |= libc::IUTF8);
    writes("\rää\t".as_bytes(), "\rää      ".as_bytes());
    writes(b"\rab\n\t", b"\rab\n      ");
    pty.change(|t| t.oflag |= libc::ONLRET);
    writes(b"\rab\n\t", b"\rab\n        ");
}

pub fn modes_change_the_buffer() {
    let pty = Pty::silent();
    pty.type_in(b"one\ntw");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    pty.change(|t| t.lflag &= !libc::ICANON);
    eq!(pty.line(), b"one\ntw");
    pty.type_in(b"ab");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    pty.change(|t| t.lflag |= libc::ICANON);
    // What had come is a line of its own.
    eq!(ready(pty.s, libc::POLLIN, 0), libc::POLLIN);
    eq!(pty.line(), b"ab");
    eq!(ready(pty.s, libc::POLLIN, 0), 0);
    pty.type_in(b"c\n");
    eq!(pty.line(), b"c\n");
    // A reader that waits for a line is woken by the change.
    pty.type_in(b"xy");
    let pid = child(|| eq!(read(pty.s, 9), b"xy"));
    until_state(pid, 'S');
    pty.change(|t| t.lflag &= !libc::ICANON);
    reap(pid);
}

pub fn typed_signals() {
    let pty = Pty::own();
    for (n, (c, signal)) in [(3u8, libc::SIGINT), (28, libc::SIGQUIT), (26, libc::SIGTSTP)]
        .into_iter()
        .enumerate()
    {
        catch(signal, 0);
        pty.type_in(&[b'x', c]);
        until("a signal comes", || seen() == n as i32 + 1);
        eq!(last(0), i64::from(signal));
        eq!(last(1), 0x80);
    }
    // What was typed before is gone.
    pty.type_in(b"new\n");
    eq!(pty.line(), b"new\n");
    pty.change(|t| t.lflag |= libc::ECHO);
    pty.echoes(b"ab", b"ab");
    pty.echoes(b"\x03", b"^C");
    until("the last one comes", || seen() == 4);
    pty.change(|t| t.cc[libc::VINTR] = b'!');
    pty.echoes(b"\x03", b"^C");
    pty.echoes(b"!", b"!");
    until("the changed one comes", || seen() == 5);
    pty.change(|t| t.lflag &= !libc::ISIG);
    pty.echoes(b"!\x1c\x1a\n", b"!^\\^Z\r\n");
    eq!(pty.line(), b"!\x1c\x1a\n");
    eq!(seen(), 5);
}

pub fn signals_without_flush() {
    let pty = Pty::own();
    catch(libc::SIGINT, 0);
    pty.change(|t| t.lflag |= libc::NOFLSH);
    pty.type_in(b"one\ntw\x03o\n");
    until("the signal comes", || seen() == 1);
    eq!(pty.line(), b"one\n");
    eq!(pty.line(), b"two\n");
    // A terminal that is nobody's raises nothing.
    let other = Pty::silent();
    other.type_in(b"a\x03b\n");
    eq!(other.line(), b"b\n");
    eq!(seen(), 1);
}

pub fn stop_and_start() {
    let pty = Pty::new();
    pty.type_in(b"\x13");
    sleep_ms(10);
    eq!(ready(pty.s, libc::POLLOUT, 0), 0);
    let pid = child(|| eq!(write(pty.s, b"held up"), 7));
    until_state(pid, 'S');
    // Neither output nor echo.
    pty.echoes(b"ab", b"");
    pty.type_in(b"\x11");
    reap(pid);
    let mut all = Vec::new();
    while all.len() < 9 {
        all.extend(read(pty.m, 100));
    }
    all.sort_unstable();
    let mut expected = *b"abheld up";
    expected.sort_unstable();
    eq!(all, expected);
    pty.change(|t| t.iflag &= !libc::IXON);
    pty.echoes(b"\x13\x11", b"^S^Q");
    // Turning flow control off starts what was stopped.
    pty.change(|t| t.iflag |= libc::IXON);
    pty.type_in(b"\x13");
    sleep_ms(10);
    eq!(ready(pty.s, libc::POLLOUT, 0), 0);
    pty.change(|t| t.iflag &= !libc::IXON);
    eq!(ready(pty.s, libc::POLLOUT, 0), libc::POLLOUT);
}

pub fn any_character_starts() {
    let pty = Pty::new();
    pty.change(|t| t.iflag |= libc::IXANY);
    pty.type_in(b"\x13");
    sleep_ms(10);
    eq!(ready(pty.s, libc::POLLOUT, 0), 0);
    pty.echoes(b"x", b"x");
    eq!(ready(pty.s, libc::POLLOUT, 0), libc::POLLOUT);
}

pub fn flow_by_request() {
    let pty = Pty::new();
    eq!(ioctl(pty.s, TCXONC, 0), 0);
    eq!(ready(pty.s, libc::POLLOUT, 0), 0);
    sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, libc::O_NONBLOCK);
    err!(write(pty.s, b"x"), libc::EAGAIN);
    // Only the same call starts it again.
    pty.echoes(b"\x11", b"");
    err!(write(pty.s, b"x"), libc::EAGAIN);
    eq!(ioctl(pty.s, TCXONC, 1), 0);
    eq!(write(pty.s, b"x"), 1);
    pty.shows(b"x");
}

pub fn flow_to_the_other_side() {
    let pty = Pty::new();
    eq!(ioctl(pty.s, TCXONC, 2), 0);
    pty.shows(b"\x13");
    eq!(ioctl(pty.s, TCXONC, 3), 0);
    pty.shows(b"\x11");
    pty.change(|t| t.cc[libc::VSTOP] = b'!');
    eq!(ioctl(pty.s, TCXONC, 2), 0);
    pty.shows(b"!");
    pty.change(|t| t.cc[libc::VSTOP] = 0);
    eq!(ioctl(pty.s, TCXONC, 2), 0);
    pty.shows(b"");
}

pub fn minimum_of_a_read() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (5, 0));
    pty.type_in(b"abc");
    eq!(ready(pty.s, libc::POLLIN, 20), 0);
    let pid = child(|| eq!(read(pty.s, 100), b"abcdef"));
    until_state(pid, 'S');
    pty.type_in(b"d");
    sleep_ms(5);
    until_state(pid, 'S');
    pty.type_in(b"ef");
    reap(pid);
    // No more is waited for than is asked for.
    pty.type_in(b"xyz");
    eq!(read(pty.s, 3), b"xyz");
    pty.type_in(b"12345");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    eq!(read(pty.s, 100), b"12345");
}

pub fn timeout_of_a_read() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (0, 2));
    let start = now();
    eq!(read(pty.s, 10), b"");
    let took = now() - start;
    check!((150_000_000..5_000_000_000).contains(&took), "{took} ns");
    pty.type_in(b"ab");
    eq!(read(pty.s, 10), b"ab");
    // A byte ends the wait.
    pty.change(|t| t.cc[libc::VTIME] = 200);
    let pid = child(|| eq!(read(pty.s, 10), b"c"));
    until_state(pid, 'S');
    pty.type_in(b"c");
    reap(pid);
}

pub fn timeout_between_bytes() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (10, 2));
    // With a timer one byte is enough for poll(2).
    pty.type_in(b"ab");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    let start = now();
    eq!(read(pty.s, 10), b"ab");
    let took = now() - start;
    check!((150_000_000..5_000_000_000).contains(&took), "{took} ns");
    // It does not run before the first byte.
    let pid = child(|| eq!(read(pty.s, 10), b"x"));
    sleep_ms(300);
    until_state(pid, 'S');
    pty.type_in(b"x");
    reap(pid);
    // Nor does it end a read of bytes that keep coming, however slow the machine is.
    pty.change(|t| t.cc[libc::VTIME] = 100);
    let pid = child(|| eq!(read(pty.s, 10), b"0123456789"));
    until_state(pid, 'S');
    for c in b"0123456789" {
        pty.type_in(&[*c]);
        sleep_ms(20);
    }
    reap(pid);
}

pub fn read_at_once() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (0, 0));
    eq!(read(pty.s, 10), b"");
    pty.type_in(b"ab");
    eq!(read(pty.s, 10), b"ab");
    // Even so, nothing is ready for poll(2), and O_NONBLOCK changes nothing.
    eq!(ready(pty.s, libc::POLLIN, 0), 0);
    sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, libc::O_NONBLOCK);
    eq!(try_read(pty.s), 0);
}

pub fn nonblocking_minimum() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (5, 9));
    sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, libc::O_NONBLOCK);
    err!(try_read(pty.s), libc::EAGAIN);
    pty.type_in(b"ab");
    eq!(read(pty.s, 10), b"ab");
}

pub fn flushes() {
    let pty = Pty::silent();
    pty.type_in(b"gone\nhal");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    eq!(ioctl(pty.s, TCFLSH, 0), 0);
    pty.type_in(b"new\n");
    eq!(pty.line(), b"new\n");
    eq!(write(pty.s, b"out"), 3);
    eq!(ready(pty.m, libc::POLLIN, 1000), libc::POLLIN);
    // It has reached the other side, which alone can drop it.
    eq!(ioctl(pty.s, TCFLSH, 1), 0);
    pty.shows(b"out");
    eq!(write(pty.s, b"out"), 3);
    eq!(ready(pty.m, libc::POLLIN, 1000), libc::POLLIN);
    eq!(ioctl(pty.m, TCFLSH, 0), 0);
    pty.shows(b"");
}

pub fn flush_while_setting() {
    let pty = Pty::silent();
    pty.type_in(b"gone\n");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    let modes = pty.modes();
    eq!(ioctl(pty.s, TCSETSW, &modes as *const Modes), 0);
    eq!(ready(pty.s, libc::POLLIN, 0), libc::POLLIN);
    eq!(ioctl(pty.s, TCSETSF, &modes as *const Modes), 0);
    eq!(ready(pty.s, libc::POLLIN, 0), 0);
}

pub fn interrupted_read() {
    let pty = Pty::silent();
    let fd = pty.s;
    err!(interrupted(libc::SIGUSR1, 0, || try_read(fd)), libc::EINTR);
    let m = pty.m;
    let line = interrupted_then(
        libc::SIGUSR1,
        libc::SA_RESTART,
        3,
        move || eq!(write(m, b"line\n"), 5),
        || read(fd, 20),
    );
    eq!(line, b"line\n");
    // The master too.
    err!(interrupted(libc::SIGUSR1, 0, || try_read(m)), libc::EINTR);
}

pub fn partial_read_at_a_signal() {
    let pty = Pty::raw();
    pty.change(|t| (t.cc[libc::VMIN], t.cc[libc::VTIME]) = (9, 0));
    pty.type_in(b"abc");
    let fd = pty.s;
    eq!(interrupted(libc::SIGUSR1, 0, || read(fd, 20)), b"abc");
}

pub fn external_processing() {
    let pty = Pty::new();
    pty.change(|t| t.lflag |= libc::EXTPROC);
    // Who holds the master edits; nothing is looked at here.
    pty.echoes(b"a\x7f\x03\r", b"");
    eq!(pty.line(), b"a\x7f\x03\r");
    pty.type_in(b"\x04");
    eq!(pty.line(), b"");
    pty.type_in(b"x\x04");
    eq!(pty.line(), b"x\x04");
}

pub fn breaks_and_drains() {
    let pty = Pty::new();
    for fd in [pty.s, pty.m] {
        eq!(ioctl(fd, TCSBRK, 0), 0);
        eq!(ioctl(fd, TCSBRK, 1), 0);
        eq!(ioctl(fd, TCSBRKP, 3), 0);
    }
    pty.shows(b"");
    eq!(write(pty.s, b"x"), 1);
    eq!(ioctl(pty.s, TCSBRK, 1), 0);
    ok!(write(pty.s, b"y"));
    pty.shows(b"xy");
}
