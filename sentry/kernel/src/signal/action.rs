//! What each signal does: `sigaction(2)`.

use bitflags::bitflags;
use sentry_lock::{Mutex, rank};

use super::{SigSet, Signal};

bitflags! {
    /// `SA_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SaFlags: u64 {
        /// No SIGCHLD when a child stops or goes on.
        const NOCLDSTOP = 1;
        /// Children leave no zombie.
        const NOCLDWAIT = 2;
        /// The handler takes three arguments.
        const SIGINFO = 4;
        /// Handlers may be given tag bits (no effect here).
        const UNSUPPORTED = 0x400;
        /// A restorer is given (always, on x86-64).
        const RESTORER = 0x0400_0000;
        /// Run on the alternate stack.
        const ONSTACK = 0x0800_0000;
        /// Restart calls.
        const RESTART = 0x1000_0000;
        /// Do not block the signal in its own handler.
        const NODEFER = 0x4000_0000;
        /// Back to the default when the handler starts.
        const RESETHAND = 0x8000_0000;
    }
}

/// Handler value for the default action.
pub const SIG_DFL: u64 = 0;
/// Handler value for "ignore".
pub const SIG_IGN: u64 = 1;

/// What one signal does; the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Action {
    /// `SIG_DFL`, `SIG_IGN` or an address.
    pub handler: u64,
    pub flags: SaFlags,
    pub restorer: u64,
    /// Blocked while the handler runs.
    pub mask: SigSet,
}

/// What the default action of a signal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Default {
    Terminate,
    Core,
    Ignore,
    Stop,
    Continue,
}

/// What is to be done with a signal now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Disposition {
    Ignore,
    Handler,
    Default(Default),
}

impl Default {
    /// The default action of a signal (signal(7)).
    pub fn of(signal: Signal) -> Default {
        match signal {
            Signal::CHLD | Signal::URG | Signal::WINCH => Default::Ignore,
            Signal::CONT => Default::Continue,
            Signal::STOP | Signal::TSTP | Signal::TTIN | Signal::TTOU => Default::Stop,
            Signal::QUIT
            | Signal::ILL
            | Signal::TRAP
            | Signal::ABRT
            | Signal::BUS
            | Signal::FPE
            | Signal::SEGV
            | Signal::XCPU
            | Signal::XFSZ
            | Signal::SYS => Default::Core,
            _ => Default::Terminate,
        }
    }
}

impl Action {
    /// What this action means for `signal`.
    pub fn disposition(&self, signal: Signal) -> Disposition {
        match self.handler {
            SIG_DFL => Disposition::Default(Default::of(signal)),
            SIG_IGN => Disposition::Ignore,
            _ => Disposition::Handler,
        }
    }

    /// True if the signal does nothing at all.
    pub fn ignores(&self, signal: Signal) -> bool {
        matches!(
            self.disposition(signal),
            Disposition::Ignore | Disposition::Default(Default::Ignore)
        )
    }
}

/// The actions of a process; shared by processes with `CLONE_SIGHAND`.
pub struct Actions {
    table: Mutex<[Action; 64], rank::SignalActions>,
}

impl std::default::Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Actions {
    /// All default.
    pub fn new() -> Actions {
        Actions {
            table: Mutex::new([Action::default(); 64]),
        }
    }

    /// A copy, as fork(2) makes it.
    pub fn fork(&self) -> Actions {
        Actions {
            table: Mutex::new(*self.table.lock()),
        }
    }

    fn index(signal: Signal) -> usize {
        usize::from(signal.0 - 1)
    }

    /// One action.
    pub fn get(&self, signal: Signal) -> Action {
        self.table.lock()[Self::index(signal)]
    }

    /// Changes one action; the old one.
    pub fn set(&self, signal: Signal, action: Action) -> Action {
        std::mem::replace(&mut self.table.lock()[Self::index(signal)], action)
    }

    /// A copy of what execve(2) and `CLONE_CLEAR_SIGHAND` leave: handlers become the default, ignored signals stay ignored.
    pub fn after_exec(&self) -> Actions {
        let mut table = *self.table.lock();
        for action in &mut table {
            let handler = if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *action = Action {
                handler,
                ..Action::default()
            };
        }
        Actions {
            table: Mutex::new(table),
        }
    }

    /// Which signals are ignored, and which caught (`SigIgn` and `SigCgt` of /proc/PID/status).
    pub fn sets(&self) -> (SigSet, SigSet) {
        let (mut ignored, mut caught) = (SigSet::EMPTY, SigSet::EMPTY);
        for (index, action) in self.table.lock().iter().enumerate() {
            let bit = SigSet(1 << index);
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => ignored = ignored.union(bit),
                _ => caught = caught.union(bit),
            }
        }
        (ignored, caught)
    }
}
