//! Terminals: pseudo-terminals (pty(7)), the line discipline (termios(3)), job control.
//!
//! A case leads a session without a terminal, so that what it opens without `O_NOCTTY` becomes its controlling
//! terminal.

mod discipline;
mod edit;
mod job;
mod pair;

use crate::sys::*;
use crate::{cases, check, eq, ok, sys};

use discipline::*;
use edit::*;
use job::*;
use pair::*;

cases!("tty":
    names_and_nodes, locked_at_first, peer_of_a_master, name_goes_with_the_master, lowest_number_first,
    closed_slave_ends_the_master, master_waits_for_the_first_slave, exclusive_use, window_size, nothing_to_read,
    slave_fills_up, master_fills_up, hung_up_slave, blocked_reader_is_hung_up, blocked_writer_is_hung_up, wrong_requests,
    directory_of_slaves, owner_and_mode, edges_in_epoll, packets_tell_of_flushes, packets_tell_of_flow_control,
    packets_tell_of_modes, signals_by_request, bytes_waiting, other_disciplines, forged_input, opened_again_through_proc,
    own_instance, dead_and_alive_again, hang_up_by_request,
    lines_and_echo, erases_characters, erases_words, erases_lines, erases_in_many_bytes, erases_tabs, prints_erased,
    reprints, takes_literally, ends_of_files, end_of_file_behind_a_full_read, other_ends_of_lines, echo_flags,
    overlong_line, reads_by_lines, many_ends_wait, full_of_lines,
    initial_modes, forms_of_modes, speeds, input_flags, parity_marks, output_flags, tabs_are_expanded, modes_change_the_buffer,
    typed_signals, signals_without_flush, stop_and_start, any_character_starts, flow_by_request, flow_to_the_other_side,
    minimum_of_a_read, timeout_of_a_read, timeout_between_bytes, read_at_once, nonblocking_minimum, flushes,
    flush_while_setting, interrupted_read, partial_read_at_a_signal, external_processing, breaks_and_drains,
    no_terminal, opening_takes_it, asking_takes_it, stealing_needs_root, session_and_groups, foreground_rules,
    background_read, background_read_that_cannot_stop, background_write, background_change, background_of_an_orphan,
    typed_signals_reach_the_foreground, stopped_by_a_character, orphans_do_not_stop, leader_ends, leader_ends_with_a_stopped_job,
    master_closes, given_up_by_a_member, given_up_by_the_leader, resize_is_told, inherited_and_left, terminal_of_a_process,
    orphan_of_an_ended_parent,
);

pub const TCGETS: i32 = 0x5401;
pub const TCSETS: i32 = 0x5402;
pub const TCSETSW: i32 = 0x5403;
pub const TCSETSF: i32 = 0x5404;
pub const TCGETA: i32 = 0x5405;
pub const TCSETA: i32 = 0x5406;
pub const TCSBRK: i32 = 0x5409;
pub const TCXONC: i32 = 0x540a;
pub const TCFLSH: i32 = 0x540b;
pub const TIOCEXCL: i32 = 0x540c;
pub const TIOCNXCL: i32 = 0x540d;
pub const TIOCSCTTY: i32 = 0x540e;
pub const TIOCGPGRP: i32 = 0x540f;
pub const TIOCSPGRP: i32 = 0x5410;
pub const TIOCOUTQ: i32 = 0x5411;
pub const TIOCSTI: i32 = 0x5412;
pub const TIOCGWINSZ: i32 = 0x5413;
pub const TIOCSWINSZ: i32 = 0x5414;
pub const FIONREAD: i32 = 0x541b;
pub const TIOCPKT: i32 = 0x5420;
pub const TIOCNOTTY: i32 = 0x5422;
pub const TIOCSETD: i32 = 0x5423;
pub const TIOCGETD: i32 = 0x5424;
pub const TCSBRKP: i32 = 0x5425;
pub const TIOCGSID: i32 = 0x5429;
pub const TCGETS2: u32 = 0x802c_542a;
pub const TCSETS2: u32 = 0x402c_542b;
pub const TIOCGPTN: u32 = 0x8004_5430;
pub const TIOCSPTLCK: u32 = 0x4004_5431;
pub const TIOCGDEV: u32 = 0x8004_5432;
pub const TIOCSIG: u32 = 0x4004_5436;
pub const TIOCVHANGUP: u32 = 0x5437;
pub const TIOCGPKT: u32 = 0x8004_5438;
pub const TIOCGPTLCK: u32 = 0x8004_5439;
pub const TIOCGEXCL: u32 = 0x8004_5440;
pub const TIOCGPTPEER: u32 = 0x5441;

/// `struct termios2` of the kernel; the older form is its beginning.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; 19],
    pub ispeed: u32,
    pub ospeed: u32,
}

/// A pseudo-terminal: master and slave, neither a controlling terminal.
#[derive(Clone, Copy)]
pub struct Pty {
    pub m: i32,
    pub s: i32,
}

/// ioctl(2).
pub fn ioctl(fd: i32, request: impl Arg, argument: impl Arg) -> i64 {
    call(libc::SYS_ioctl, &[fd.raw(), request.raw(), argument.raw()])
}

/// ioctl(2) that reads an int; fails the case on an error.
pub fn get(fd: i32, request: impl Arg) -> i32 {
    let mut value = -1i32;
    ok!(ioctl(fd, request, &mut value as *mut i32));
    value
}

/// ioctl(2) that takes a pointer to an int.
pub fn set(fd: i32, request: impl Arg, value: i32) -> i64 {
    ioctl(fd, request, &value as *const i32)
}

/// A new master, unlocked.
pub fn master(flags: i32) -> i32 {
    let m = ok!(open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY | flags, 0)) as i32;
    eq!(set(m, TIOCSPTLCK, 0), 0);
    m
}

/// The path of a master's slave.
pub fn slave_name(m: i32) -> String {
    format!("/dev/pts/{}", get(m, TIOCGPTN))
}

/// Opens a master's slave.
pub fn slave(m: i32, flags: i32) -> i32 {
    ok!(open(&slave_name(m), libc::O_RDWR | flags, 0)) as i32
}

impl Pty {
    /// A new one.
    pub fn new() -> Pty {
        let m = master(0);
        Pty {
            m,
            s: slave(m, libc::O_NOCTTY),
        }
    }

    /// A new one that takes and gives bytes as they are.
    pub fn raw() -> Pty {
        let pty = Pty::new();
        pty.change(|t| (t.iflag, t.oflag, t.lflag) = (0, 0, 0));
        pty
    }

    /// A new one without echo.
    pub fn silent() -> Pty {
        let pty = Pty::new();
        pty.change(|t| t.lflag &= !libc::ECHO);
        pty
    }

    /// A new one that is the case's controlling terminal, without echo.
    pub fn own() -> Pty {
        let m = master(0);
        let pty = Pty { m, s: slave(m, 0) };
        pty.change(|t| t.lflag &= !libc::ECHO);
        pty
    }

    /// Its modes.
    pub fn modes(self) -> Modes {
        modes(self.s)
    }

    /// Changes its modes.
    pub fn change(self, change: impl FnOnce(&mut Modes)) {
        let mut modes = self.modes();
        change(&mut modes);
        eq!(ioctl(self.s, TCSETS2, &modes as *const Modes), 0);
    }

    /// Types.
    pub fn type_in(self, data: &[u8]) {
        eq!(write(self.m, data), data.len() as i64);
    }

    /// What a read of the slave gives.
    pub fn line(self) -> Vec<u8> {
        read(self.s, 8192)
    }

    /// Fails unless the master reads exactly this next.
    pub fn shows(self, expected: &[u8]) {
        shows(self.m, expected);
    }

    /// Fails unless typing this shows that.
    pub fn echoes(self, typed: &[u8], expected: &[u8]) {
        self.type_in(typed);
        self.shows(expected);
    }
}

/// The modes of a terminal.
pub fn modes(fd: i32) -> Modes {
    let mut modes = Modes::default();
    ok!(ioctl(fd, TCGETS2, &mut modes as *mut Modes));
    modes
}

/// Fails unless the descriptor gives exactly this, and nothing more for a moment.
pub fn shows(fd: i32, expected: &[u8]) {
    let mut all = Vec::new();
    while all.len() < expected.len() && ready(fd, libc::POLLIN, 5000) & libc::POLLIN != 0 {
        all.extend(read(fd, 4096));
    }
    if ready(fd, libc::POLLIN, 20) & libc::POLLIN != 0 {
        all.extend(read(fd, 4096));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eq!(text(&all), text(expected));
    eq!(all, expected);
}

/// poll(2) of one descriptor: what it is ready for. A typed signal may come meanwhile.
pub fn ready(fd: i32, events: i16, millis: i32) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    while sys!(libc::SYS_poll, &mut entry as *mut _, 1, millis) == -i64::from(libc::EINTR) {}
    entry.revents
}

/// A read whose error is wanted.
pub fn try_read(fd: i32) -> i64 {
    let mut buf = [0u8; 64];
    sys!(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len())
}

/// Waits until a process has the state (`S`, `T`…).
pub fn until_state(pid: i32, state: char) {
    until("a process reaches its state", || task_state(pid) == state);
}

/// Waits for a child to stop; the signal.
pub fn stopped(pid: i32) -> i32 {
    let mut status = 0i32;
    eq!(
        sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WUNTRACED, 0),
        i64::from(pid)
    );
    check!(libc::WIFSTOPPED(status), "wait status {status:#x}");
    libc::WSTOPSIG(status)
}

/// The signal that ended a child.
pub fn ended_by(pid: i32) -> i32 {
    let status = wait(pid);
    check!(libc::WIFSIGNALED(status), "wait status {status:#x}");
    libc::WTERMSIG(status)
}

/// A child in a process group of its own.
pub fn in_group(body: impl FnOnce()) -> i32 {
    let pid = child(|| {
        sys!(libc::SYS_setpgid, 0, 0);
        body();
    });
    // Whoever is first.
    sys!(libc::SYS_setpgid, pid, pid);
    pid
}

/// Puts a group in the foreground.
pub fn to_foreground(fd: i32, group: i32) {
    let before = sigmask(libc::SIG_BLOCK, bit(libc::SIGTTOU));
    eq!(set(fd, TIOCSPGRP, group), 0);
    sigmask(libc::SIG_SETMASK, before);
}

/// Waits for ever.
pub fn pause() -> ! {
    loop {
        sys!(libc::SYS_pause);
    }
}
