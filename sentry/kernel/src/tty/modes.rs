//! Terminal modes (termios(3)): the structure with its older forms, and which characters need a look because of them.

use sentry_abi::tty::cc::{
    VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VMIN, VQUIT, VREPRINT, VSTART, VSTOP, VSUSP, VTIME, VWERASE,
};
use sentry_abi::tty::{NCCS, Termio, Termios, Termios2, cflag, iflag, lflag, oflag};

/// What a character is that turns a function off (`_POSIX_VDISABLE`).
const DISABLED: u8 = 0;

/// Rates in bits a second by the number that `c_cflag` holds.
const RATES: [u32; 31] = [
    0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19200, 38400, 57600, 115_200, 230_400,
    460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000, 3_500_000,
    4_000_000,
];

/// The modes of a terminal.
#[derive(Clone, Debug)]
pub struct Modes {
    termios: Termios2,
    /// Characters that input does not simply take over.
    special: [u64; 4],
}

impl Modes {
    /// With these settings.
    pub fn new(termios: Termios2) -> Modes {
        let mut modes = Modes {
            termios,
            special: [0; 4],
        };
        modes.mark_special();
        modes
    }

    /// What a new pseudo-terminal has.
    pub fn initial() -> Termios2 {
        let mut c_cc = [DISABLED; NCCS];
        for (index, character) in [
            (VINTR, 0o3),
            (VQUIT, 0o34),
            (VERASE, 0o177),
            (VKILL, 0o25),
            (VEOF, 0o4),
            (VMIN, 1),
            (VSTART, 0o21),
            (VSTOP, 0o23),
            (VSUSP, 0o32),
            (VREPRINT, 0o22),
            (13, 0o17),
            (VWERASE, 0o27),
            (VLNEXT, 0o26),
        ] {
            c_cc[index] = character;
        }
        let modes = Termios {
            c_iflag: iflag::ICRNL | iflag::IXON,
            c_oflag: oflag::OPOST | oflag::ONLCR,
            c_cflag: cflag::B38400 | cflag::CS8 | cflag::CREAD,
            c_lflag: lflag::ISIG
                | lflag::ICANON
                | lflag::ECHO
                | lflag::ECHOE
                | lflag::ECHOK
                | lflag::ECHOCTL
                | lflag::ECHOKE
                | lflag::IEXTEN,
            c_line: 0,
            c_cc,
        };
        Termios2 {
            modes,
            c_ispeed: 38400,
            c_ospeed: 38400,
        }
    }

    /// The settings.
    pub fn termios(&self) -> &Termios2 {
        &self.termios
    }

    /// True if any of these flags of `c_iflag` is set.
    pub fn input(&self, flags: u32) -> bool {
        self.termios.c_iflag & flags != 0
    }

    /// True if any of these flags of `c_oflag` is set.
    pub fn output(&self, flags: u32) -> bool {
        self.termios.c_oflag & flags != 0
    }

    /// True if any of these flags of `c_lflag` is set.
    pub fn local(&self, flags: u32) -> bool {
        self.termios.c_lflag & flags != 0
    }

    /// True while tabs are printed as spaces.
    pub fn expands_tabs(&self) -> bool {
        self.termios.c_oflag & oflag::TABDLY == oflag::TABDLY
    }

    /// True while input is read by lines. (`EXTPROC` leaves that to whoever holds the master.)
    pub fn by_lines(&self) -> bool {
        self.termios.c_lflag & (lflag::ICANON | lflag::EXTPROC) == lflag::ICANON
    }

    /// A control character (`VINTR`…); 0 if it is turned off.
    pub fn character(&self, index: usize) -> u8 {
        self.termios.c_cc.get(index).copied().unwrap_or(DISABLED)
    }

    /// True if `c` has the function of this control character.
    pub fn is(&self, index: usize, c: u8) -> bool {
        c != DISABLED && self.character(index) == c
    }

    /// True if input has to look at `c`.
    pub fn is_special(&self, c: u8) -> bool {
        self.special[usize::from(c >> 6)] & 1 << (c & 63) != 0
    }

    /// True if no character needs a look, so that input goes in as it is.
    pub fn takes_all(&self) -> bool {
        let i = iflag::ISTRIP | iflag::IUCLC | iflag::IGNCR | iflag::ICRNL | iflag::INLCR | iflag::IXON | iflag::PARMRK;
        !self.input(i) && !self.local(lflag::ICANON | lflag::ISIG | lflag::ECHO)
    }

    /// `VMIN`, and `VTIME` in tenths of a second.
    pub fn min_and_time(&self) -> (u8, u8) {
        (self.character(VMIN), self.character(VTIME))
    }

    /// True if output is stopped and started by Ctrl-S and Ctrl-Q, for packet mode.
    pub fn usual_flow_control(&self) -> bool {
        self.input(iflag::IXON) && self.character(VSTOP) == 0o23 && self.character(VSTART) == 0o21
    }

    fn mark_special(&mut self) {
        self.special = [0; 4];
        if self.input(iflag::IGNCR | iflag::ICRNL) {
            self.mark(b'\r');
        }
        if self.input(iflag::INLCR) {
            self.mark(b'\n');
        }
        if self.local(lflag::ICANON) {
            self.mark(b'\n');
            self.mark_functions(&[VERASE, VKILL, VEOF, VEOL]);
            if self.local(lflag::IEXTEN) {
                self.mark_functions(&[VWERASE, VLNEXT, VEOL2]);
                if self.local(lflag::ECHO) {
                    self.mark_functions(&[VREPRINT]);
                }
            }
        }
        if self.input(iflag::IXON) {
            self.mark_functions(&[VSTART, VSTOP]);
        }
        if self.local(lflag::ISIG) {
            self.mark_functions(&[VINTR, VQUIT, VSUSP]);
        }
        self.special[0] &= !(1 << DISABLED);
    }

    fn mark(&mut self, c: u8) {
        self.special[usize::from(c >> 6)] |= 1 << (c & 63);
    }

    fn mark_functions(&mut self, indexes: &[usize]) {
        for index in indexes {
            self.mark(self.character(*index));
        }
    }
}

/// New settings from `struct termio`, which changes the lower halves of the flags and the first characters.
pub fn from_termio(old: &Termios2, new: &Termio) -> Termios2 {
    let merge = |old: u32, new: u16| old & 0xffff_0000 | u32::from(new);
    let mut c_cc = old.c_cc;
    for (to, from) in c_cc.iter_mut().zip(new.c_cc) {
        *to = from;
    }
    let modes = Termios {
        c_iflag: merge(old.c_iflag, new.c_iflag),
        c_oflag: merge(old.c_oflag, new.c_oflag),
        c_cflag: merge(old.c_cflag, new.c_cflag),
        c_lflag: merge(old.c_lflag, new.c_lflag),
        c_line: new.c_line,
        c_cc,
    };
    Termios2 { modes, ..*old }
}

/// Settings as `struct termio`.
pub fn to_termio(termios: &Termios2) -> Termio {
    let mut c_cc = [0; 8];
    for (to, from) in c_cc.iter_mut().zip(termios.c_cc) {
        *to = from;
    }
    Termio {
        c_iflag: termios.c_iflag as u16,
        c_oflag: termios.c_oflag as u16,
        c_cflag: termios.c_cflag as u16,
        c_lflag: termios.c_lflag as u16,
        c_line: termios.c_line,
        c_cc,
        padding: 0,
    }
}

/// What a pseudo-terminal makes of settings: the speeds agree with `c_cflag`, and characters have eight bits.
pub fn settle(mut termios: Termios2) -> Termios2 {
    let output = rate(termios.c_cflag & cflag::CBAUD, termios.c_ospeed);
    let input = (termios.c_cflag >> cflag::IBSHIFT) & cflag::CBAUD;
    termios.c_ispeed = if input == 0 {
        output
    } else {
        rate(input, termios.c_ispeed)
    };
    termios.c_ospeed = output;
    termios.c_cflag = termios.c_cflag & !(cflag::CSIZE | cflag::PARENB) | cflag::CS8 | cflag::CREAD;
    termios
}

/// The rate that a number of `c_cflag` stands for; `other` where that says so.
fn rate(number: u32, other: u32) -> u32 {
    if number == cflag::BOTHER {
        return other;
    }
    let index = if number & cflag::CBAUDEX != 0 {
        (number & !cflag::CBAUDEX) + 15
    } else {
        number
    };
    RATES.get(index as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_follow_the_flags() {
        let with = |c_cflag, c_ispeed, c_ospeed| {
            let modes = Termios {
                c_cflag,
                ..Modes::initial().modes
            };
            let settled = settle(Termios2 {
                modes,
                c_ispeed,
                c_ospeed,
            });
            (settled.c_ispeed, settled.c_ospeed)
        };
        assert_eq!(with(0o17, 1, 2), (38400, 38400));
        assert_eq!(with(0o10001, 1, 2), (57600, 57600));
        assert_eq!(with(0o10002, 1, 2), (115_200, 115_200));
        assert_eq!(with(cflag::BOTHER, 1, 1234), (1234, 1234));
        assert_eq!(with(cflag::BOTHER | cflag::BOTHER << 16, 77, 1234), (77, 1234));
        assert_eq!(with(0o10017, 1, 2), (4_000_000, 4_000_000));
        assert_eq!(with(0, 1, 2), (0, 0));
    }

    #[test]
    fn a_disabled_character_is_never_special() {
        let mut termios = Modes::initial();
        assert!(Modes::new(termios).is_special(3));
        termios.c_cc[VINTR] = 0;
        let modes = Modes::new(termios);
        assert!(!modes.is_special(3) && !modes.is_special(0) && !modes.is(VINTR, 0));
        assert!(modes.is_special(b'\r') && modes.is_special(0o177) && !modes.is_special(b'a'));
    }

    #[test]
    fn the_short_form_keeps_what_it_cannot_say() {
        let mut termios = Modes::initial();
        termios.c_lflag |= lflag::EXTPROC;
        let mut short = to_termio(&termios);
        short.c_lflag = 0;
        let new = from_termio(&termios, &short);
        assert_eq!(new.c_lflag, lflag::EXTPROC);
        assert_eq!(new.c_cc[VLNEXT], 0o26);
        assert_eq!(from_termio(&termios, &to_termio(&termios)), termios);
    }
}
