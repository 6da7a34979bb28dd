//! Terminals: the structures and numbers of ioctl_tty(2) and termios(3), as the kernel has them (not libc).

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many characters `c_cc` has.
pub const NCCS: usize = 19;

/// `struct termios`, of `TCGETS` and its kin.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Termios {
    pub c_iflag: u32,
    pub c_oflag: u32,
    pub c_cflag: u32,
    pub c_lflag: u32,
    pub c_line: u8,
    pub c_cc: [u8; NCCS],
}

/// `struct termios2`, of `TCGETS2` and its kin: with speeds in bits a second.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Termios2 {
    pub modes: Termios,
    pub c_ispeed: u32,
    pub c_ospeed: u32,
}

impl Deref for Termios2 {
    type Target = Termios;

    fn deref(&self) -> &Termios {
        &self.modes
    }
}

impl DerefMut for Termios2 {
    fn deref_mut(&mut self) -> &mut Termios {
        &mut self.modes
    }
}

/// `struct termio`, of `TCGETA` and its kin: the older form, with the lower halves of the flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Termio {
    pub c_iflag: u16,
    pub c_oflag: u16,
    pub c_cflag: u16,
    pub c_lflag: u16,
    pub c_line: u8,
    pub c_cc: [u8; 8],
    pub padding: u8,
}

/// `struct winsize`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Winsize {
    pub ws_row: u16,
    pub ws_col: u16,
    pub ws_xpixel: u16,
    pub ws_ypixel: u16,
}

const _: () = assert!(size_of::<Termios>() == 36);
const _: () = assert!(size_of::<Termios2>() == 44);
const _: () = assert!(size_of::<Termio>() == 18);

/// Indexes of `c_cc`.
#[allow(missing_docs)]
pub mod cc {
    pub const VINTR: usize = 0;
    pub const VQUIT: usize = 1;
    pub const VERASE: usize = 2;
    pub const VKILL: usize = 3;
    pub const VEOF: usize = 4;
    pub const VTIME: usize = 5;
    pub const VMIN: usize = 6;
    pub const VSTART: usize = 8;
    pub const VSTOP: usize = 9;
    pub const VSUSP: usize = 10;
    pub const VEOL: usize = 11;
    pub const VREPRINT: usize = 12;
    pub const VWERASE: usize = 14;
    pub const VLNEXT: usize = 15;
    pub const VEOL2: usize = 16;
}

/// Flags of `c_iflag`.
#[allow(missing_docs)]
pub mod iflag {
    pub const PARMRK: u32 = 0o10;
    pub const ISTRIP: u32 = 0o40;
    pub const INLCR: u32 = 0o100;
    pub const IGNCR: u32 = 0o200;
    pub const ICRNL: u32 = 0o400;
    pub const IUCLC: u32 = 0o1000;
    pub const IXON: u32 = 0o2000;
    pub const IXANY: u32 = 0o4000;
    pub const IUTF8: u32 = 0o40000;
}

/// Flags of `c_oflag`.
#[allow(missing_docs)]
pub mod oflag {
    pub const OPOST: u32 = 0o1;
    pub const OLCUC: u32 = 0o2;
    pub const ONLCR: u32 = 0o4;
    pub const OCRNL: u32 = 0o10;
    pub const ONOCR: u32 = 0o20;
    pub const ONLRET: u32 = 0o40;
    /// The tab bits, all of which set mean: expand tabs (`XTABS`).
    pub const TABDLY: u32 = 0o14000;
}

/// Flags of `c_cflag`.
#[allow(missing_docs)]
pub mod cflag {
    pub const CBAUD: u32 = 0o10017;
    pub const CBAUDEX: u32 = 0o10000;
    /// The speed stands in `c_ispeed` or `c_ospeed`.
    pub const BOTHER: u32 = 0o10000;
    pub const B38400: u32 = 0o17;
    pub const CSIZE: u32 = 0o60;
    pub const CS8: u32 = 0o60;
    pub const CREAD: u32 = 0o200;
    pub const PARENB: u32 = 0o400;
    pub const CLOCAL: u32 = 0o4000;
    /// From here on the bits of the input speed.
    pub const IBSHIFT: u32 = 16;
}

/// Flags of `c_lflag`.
#[allow(missing_docs)]
pub mod lflag {
    pub const ISIG: u32 = 0o1;
    pub const ICANON: u32 = 0o2;
    pub const ECHO: u32 = 0o10;
    pub const ECHOE: u32 = 0o20;
    pub const ECHOK: u32 = 0o40;
    pub const ECHONL: u32 = 0o100;
    pub const NOFLSH: u32 = 0o200;
    pub const TOSTOP: u32 = 0o400;
    pub const ECHOCTL: u32 = 0o1000;
    pub const ECHOPRT: u32 = 0o2000;
    pub const ECHOKE: u32 = 0o4000;
    pub const IEXTEN: u32 = 0o100000;
    pub const EXTPROC: u32 = 0o200000;
}

/// What the first byte says that a pseudo-terminal's master reads in packet mode (`TIOCPKT`); 0: data follow.
#[allow(missing_docs)]
pub mod packet {
    pub const FLUSH_READ: u8 = 1;
    pub const FLUSH_WRITE: u8 = 2;
    pub const STOP: u8 = 4;
    pub const START: u8 = 8;
    pub const NO_STOP: u8 = 16;
    pub const DO_STOP: u8 = 32;
    pub const IOCTL: u8 = 64;
}

/// Requests of ioctl_tty(2).
#[allow(missing_docs)]
pub mod request {
    pub const TCGETS: u64 = 0x5401;
    pub const TCSETS: u64 = 0x5402;
    pub const TCSETSW: u64 = 0x5403;
    pub const TCSETSF: u64 = 0x5404;
    pub const TCGETA: u64 = 0x5405;
    pub const TCSETA: u64 = 0x5406;
    pub const TCSETAW: u64 = 0x5407;
    pub const TCSETAF: u64 = 0x5408;
    pub const TCSBRK: u64 = 0x5409;
    pub const TCXONC: u64 = 0x540a;
    pub const TCFLSH: u64 = 0x540b;
    pub const TIOCEXCL: u64 = 0x540c;
    pub const TIOCNXCL: u64 = 0x540d;
    pub const TIOCSCTTY: u64 = 0x540e;
    pub const TIOCGPGRP: u64 = 0x540f;
    pub const TIOCSPGRP: u64 = 0x5410;
    pub const TIOCOUTQ: u64 = 0x5411;
    pub const TIOCSTI: u64 = 0x5412;
    pub const TIOCGWINSZ: u64 = 0x5413;
    pub const TIOCSWINSZ: u64 = 0x5414;
    pub const TIOCGSOFTCAR: u64 = 0x5419;
    pub const TIOCSSOFTCAR: u64 = 0x541a;
    pub const FIONREAD: u64 = 0x541b;
    pub const TIOCPKT: u64 = 0x5420;
    pub const TIOCNOTTY: u64 = 0x5422;
    pub const TIOCSETD: u64 = 0x5423;
    pub const TIOCGETD: u64 = 0x5424;
    pub const TCSBRKP: u64 = 0x5425;
    pub const TIOCSBRK: u64 = 0x5427;
    pub const TIOCCBRK: u64 = 0x5428;
    pub const TIOCGSID: u64 = 0x5429;
    pub const TCGETS2: u64 = 0x802c_542a;
    pub const TCSETS2: u64 = 0x402c_542b;
    pub const TCSETSW2: u64 = 0x402c_542c;
    pub const TCSETSF2: u64 = 0x402c_542d;
    pub const TIOCGPTN: u64 = 0x8004_5430;
    pub const TIOCSPTLCK: u64 = 0x4004_5431;
    pub const TIOCGDEV: u64 = 0x8004_5432;
    pub const TIOCSIG: u64 = 0x4004_5436;
    pub const TIOCVHANGUP: u64 = 0x5437;
    pub const TIOCGPKT: u64 = 0x8004_5438;
    pub const TIOCGPTLCK: u64 = 0x8004_5439;
    pub const TIOCGEXCL: u64 = 0x8004_5440;
    pub const TIOCGPTPEER: u64 = 0x5441;
}
