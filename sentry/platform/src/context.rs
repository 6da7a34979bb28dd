//! Where a stopped thread's registers are: in the signal frame in its mailbox, or with the tracer.

use sentry_abi::Errno;

use crate::Registers;
use crate::arena::Arena;
use crate::frame::{self, Frame};

/// A stopped thread's registers and extended state.
#[derive(Clone)]
pub(crate) enum Guest {
    /// Not known: the thread runs, or has posted nonsense.
    Unknown,
    /// systrap: a checked frame on the stub's signal stack.
    Frame(Frame),
    /// ptrace: a copy; the tracer stores it back before the guest runs on.
    Traced(Box<Traced>),
}

/// Registers as the tracer read them.
#[derive(Clone)]
pub(crate) struct Traced {
    /// fs and gs bases are in here.
    pub registers: libc::user_regs_struct,
    /// In the form of `NT_X86_XSTATE`; `None` while it has not been read.
    pub xstate: Option<Vec<u8>>,
    /// `registers` differ from the host's.
    pub dirty: bool,
    /// `xstate` has to be stored before the guest runs on.
    pub xstate_dirty: bool,
}

impl Guest {
    pub fn traced(&mut self) -> Option<&mut Traced> {
        match self {
            Guest::Traced(traced) => Some(traced),
            _ => None,
        }
    }

    pub fn is_known(&self) -> bool {
        !matches!(self, Guest::Unknown)
    }

    pub fn registers(&self, arena: &Arena, fs_base: u64, gs_base: u64) -> Registers {
        match self {
            Guest::Unknown => Registers::default(),
            Guest::Frame(frame) => frame.registers(arena, fs_base, gs_base),
            Guest::Traced(traced) => traced.get(),
        }
    }

    pub fn set_registers(&mut self, arena: &Arena, registers: &Registers) {
        match self {
            Guest::Unknown => {}
            Guest::Frame(frame) => frame.set_registers(arena, registers),
            Guest::Traced(traced) => traced.set(registers),
        }
    }

    /// The extended state; the tracer has read it before.
    pub fn xstate(&self, arena: &Arena) -> Vec<u8> {
        match self {
            Guest::Unknown => Vec::new(),
            Guest::Frame(frame) => frame.xstate(arena),
            Guest::Traced(traced) => traced.xstate.as_deref().map(frame::from_regset).unwrap_or_default(),
        }
    }

    pub fn set_xstate(&mut self, arena: &Arena, state: &[u8]) -> Result<(), Errno> {
        match self {
            Guest::Unknown => Err(Errno::ESRCH),
            Guest::Frame(frame) => frame.set_xstate(arena, state),
            Guest::Traced(traced) => {
                let host = traced.xstate.as_deref().ok_or(Errno::ESRCH)?;
                let merged = frame::merge_xstate(&frame::from_regset(host), state).ok_or(Errno::EINVAL)?;
                traced.xstate = Some(frame::to_regset(host, &merged));
                traced.xstate_dirty = true;
                Ok(())
            }
        }
    }

    pub fn reset_xstate(&mut self, arena: &Arena) {
        match self {
            Guest::Unknown => {}
            Guest::Frame(frame) => frame.reset_xstate(arena),
            Guest::Traced(traced) => {
                if let Some(host) = traced.xstate.as_deref() {
                    let fresh = frame::fresh_xstate(&frame::from_regset(host));
                    traced.xstate = Some(frame::to_regset(host, &fresh));
                    traced.xstate_dirty = true;
                }
            }
        }
    }
}

impl Traced {
    fn get(&self) -> Registers {
        let r = &self.registers;
        Registers {
            rax: r.rax,
            rbx: r.rbx,
            rcx: r.rcx,
            rdx: r.rdx,
            rsi: r.rsi,
            rdi: r.rdi,
            rbp: r.rbp,
            rsp: r.rsp,
            r8: r.r8,
            r9: r.r9,
            r10: r.r10,
            r11: r.r11,
            r12: r.r12,
            r13: r.r13,
            r14: r.r14,
            r15: r.r15,
            rip: r.rip,
            eflags: r.eflags,
            fs_base: r.fs_base,
            gs_base: r.gs_base,
        }
    }

    fn set(&mut self, new: &Registers) {
        let r = &mut self.registers;
        r.rax = new.rax;
        r.rbx = new.rbx;
        r.rcx = new.rcx;
        r.rdx = new.rdx;
        r.rsi = new.rsi;
        r.rdi = new.rdi;
        r.rbp = new.rbp;
        r.rsp = new.rsp;
        r.r8 = new.r8;
        r.r9 = new.r9;
        r.r10 = new.r10;
        r.r11 = new.r11;
        r.r12 = new.r12;
        r.r13 = new.r13;
        r.r14 = new.r14;
        r.r15 = new.r15;
        r.rip = new.rip;
        // IF and the fixed bit stay set; IOPL, VM, TF and the like stay the host's.
        const GUEST_FLAGS: u64 = 0x24_0cd5;
        r.eflags = (new.eflags & GUEST_FLAGS) | 0x202;
        r.fs_base = new.fs_base;
        r.gs_base = new.gs_base;
        self.dirty = true;
    }
}
