//! Signals: numbers, sets, information, queues, actions, and their way into the guest.

mod action;
mod deliver;
mod frame;
mod info;
mod queue;
mod send;

pub use action::{Action, Actions, Default as DefaultAction, Disposition, SaFlags};
pub use deliver::{Restarting, deliver};
pub(crate) use deliver::{complete_stop, fatal_is_pending};
pub(crate) use frame::sigreturn;
pub use frame::{AltStack, MINSIGSTKSZ, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};
pub use info::SigInfo;
pub use queue::SignalQueue;
pub use send::{
    After, force, force_fatal, send, send_to_group, send_to_process, send_to_thread, try_send_to_process,
    try_send_to_thread,
};
pub(crate) use send::{discard_everywhere, kill};

use sentry_abi::Errno;

/// A signal number from 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $value:literal;)*) => {
        #[allow(missing_docs)]
        impl Signal {
            $(pub const $name: Signal = Signal($value);)*
        }
    };
}

signals! {
    HUP = 1; INT = 2; QUIT = 3; ILL = 4; TRAP = 5; ABRT = 6; BUS = 7; FPE = 8; KILL = 9; USR1 = 10; SEGV = 11; USR2 = 12;
    PIPE = 13; ALRM = 14; TERM = 15; STKFLT = 16; CHLD = 17; CONT = 18; STOP = 19; TSTP = 20; TTIN = 21; TTOU = 22;
    URG = 23; XCPU = 24; XFSZ = 25; VTALRM = 26; PROF = 27; WINCH = 28; IO = 29; PWR = 30; SYS = 31;
}

impl Signal {
    /// A signal by number; `EINVAL` for anything but 1 to 64.
    pub fn from_number(number: i64) -> Result<Signal, Errno> {
        match u8::try_from(number) {
            Ok(number @ 1..=64) => Ok(Signal(number)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// True from 32 on: queued, each with its own information.
    pub fn is_realtime(self) -> bool {
        self.0 >= 32
    }

    fn bit(self) -> u64 {
        1 << (self.0 - 1)
    }
}

/// A set of signals, as `sigset_t`: bit n-1 is signal n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SigSet(pub u64);

impl SigSet {
    /// No signal.
    pub const EMPTY: SigSet = SigSet(0);
    /// SIGKILL and SIGSTOP, which cannot be blocked, caught or ignored.
    pub const UNBLOCKABLE: SigSet = SigSet(1 << 8 | 1 << 18);
    /// What stops a process by default.
    pub const STOPS: SigSet = SigSet(1 << 18 | 1 << 19 | 1 << 20 | 1 << 21);
    /// What a fault of the thread itself raises: delivered first.
    pub const SYNCHRONOUS: SigSet = SigSet(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);

    /// True if `signal` is in it.
    pub fn has(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }

    /// Adds a signal.
    pub fn add(&mut self, signal: Signal) {
        self.0 |= signal.bit();
    }

    /// Removes a signal.
    pub fn remove(&mut self, signal: Signal) {
        self.0 &= !signal.bit();
    }

    /// What is in either.
    #[must_use]
    pub fn union(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }

    /// What is here and not in `other`.
    #[must_use]
    pub fn without(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(self, other: SigSet) -> SigSet {
        SigSet(self.0 & other.0)
    }

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest signal.
    pub fn first(self) -> Option<Signal> {
        if self.0 == 0 {
            None
        } else {
            Some(Signal(self.0.trailing_zeros() as u8 + 1))
        }
    }
}

impl FromIterator<Signal> for SigSet {
    fn from_iter<T: IntoIterator<Item = Signal>>(signals: T) -> SigSet {
        let mut set = SigSet::EMPTY;
        signals.into_iter().for_each(|signal| set.add(signal));
        set
    }
}
