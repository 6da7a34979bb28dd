//! Signal frames on the guest's stack, with the layout of Linux on x86-64 (`arch/x86/kernel/signal_64.c`).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::{Fault, Registers};

use super::{Action, SaFlags, SigInfo, SigSet};
use crate::task::Thread;

/// The stack is disabled (`SS_DISABLE`).
pub const SS_DISABLE: u32 = 2;
/// The thread runs on it (`SS_ONSTACK`).
pub const SS_ONSTACK: u32 = 1;
/// It is disarmed while a handler runs on it (`SS_AUTODISARM`).
pub const SS_AUTODISARM: u32 = 1 << 31;

/// The alternate signal stack (sigaltstack(2)). Size 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AltStack {
    pub sp: u64,
    pub size: u64,
    /// `SS_AUTODISARM`, or 0.
    pub flags: u32,
}

impl AltStack {
    /// True if `sp` is on it.
    pub fn holds(&self, sp: u64) -> bool {
        self.flags & SS_AUTODISARM == 0 && sp > self.sp && sp - self.sp <= self.size
    }

    /// `ss_flags` as sigaltstack(2) gives them.
    pub fn status(&self, sp: u64) -> u32 {
        let state = match () {
            () if self.size == 0 => SS_DISABLE,
            () if self.holds(sp) => SS_ONSTACK,
            () => 0,
        };
        state | (self.flags & SS_AUTODISARM)
    }

    /// As `stack_t`.
    pub fn to_bytes(self, sp: u64) -> [u8; 24] {
        let mut bytes = [0; 24];
        put(&mut bytes, 0, self.sp);
        bytes[8..12].copy_from_slice(&self.status(sp).to_le_bytes());
        put(&mut bytes, 16, self.size);
        bytes
    }
}

/// Bytes of the red zone below the stack pointer, which belong to the interrupted function.
const RED_ZONE: u64 = 128;
/// `struct rt_sigframe`: the return address, `ucontext`, `siginfo_t`.
const FRAME_LEN: usize = 8 + UCONTEXT_LEN + 128;
const UCONTEXT_LEN: usize = 304;
/// Offsets in the frame.
const UC: usize = 8;
const UC_STACK: usize = UC + 16;
const UC_REGISTERS: usize = UC + 40;
const UC_FPSTATE: usize = UC_REGISTERS + 184;
const UC_SIGMASK: usize = UC + 296;
const INFO: usize = UC + UCONTEXT_LEN;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const UC_FLAGS: u64 = 7;
const USER_CS: u64 = 0x33;
const USER_SS: u64 = 0x2b;
/// eflags bits that sigreturn takes from the frame: AC, OF, DF, TF, SF, ZF, AF, PF, CF, RF.
const FLAGS_MASK: u64 = 0x0005_0dd5;
/// Direction, trap and resume flag: clear when a handler starts.
const FLAGS_CLEARED: u64 = 1 << 10 | 1 << 8 | 1 << 16;
/// No extended state is larger than this (AVX-512 with all parts is 2,700 bytes; AMX is not offered).
const XSTATE_MAX: usize = 16 << 10;

fn put(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

fn get(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    if let Some(place) = bytes.get(at..at + 8) {
        value.copy_from_slice(place);
    }
    u64::from_le_bytes(value)
}

/// The registers in the order of `struct sigcontext`.
fn in_order(r: &Registers) -> [u64; 18] {
    [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags,
    ]
}

/// What is put into a frame apart from the registers.
pub(super) struct Context<'a> {
    pub info: &'a SigInfo,
    pub action: &'a Action,
    /// The mask to go back to.
    pub mask: SigSet,
    pub stack: AltStack,
    /// The thread's last fault.
    pub fault: Option<Fault>,
}

/// Builds a frame and gives the registers with which the handler starts. `EFAULT` if the stack cannot be written.
pub(super) fn build(thread: &Arc<Thread>, regs: &Registers, context: &Context<'_>) -> Result<Registers, Errno> {
    let Context {
        info,
        action,
        mask,
        stack,
        fault,
    } = context;
    if !action.flags.contains(SaFlags::RESTORER) {
        return Err(Errno::EFAULT);
    }
    let guest = thread.guest();
    let xstate = guest.xstate();

    let on_stack = stack.holds(regs.rsp);
    let mut sp = regs.rsp.wrapping_sub(RED_ZONE);
    let mut entered = false;
    if action.flags.contains(SaFlags::ONSTACK) && stack.status(regs.rsp) & !SS_AUTODISARM == 0 {
        sp = stack.sp.wrapping_add(stack.size);
        entered = true;
    }
    let fpstate = if xstate.is_empty() {
        0
    } else {
        sp.wrapping_sub(xstate.len() as u64) & !63
    };
    let below = if fpstate == 0 { sp } else { fpstate };
    let at = (below.wrapping_sub(FRAME_LEN as u64) & !15).wrapping_sub(8);
    // Running out of the alternate stack is not noticed by a fault: it must be checked.
    if (on_stack || entered) && !(at > stack.sp && at - stack.sp <= stack.size) {
        return Err(Errno::EFAULT);
    }

    let mut frame = [0u8; FRAME_LEN];
    put(&mut frame, 0, action.restorer);
    put(&mut frame, UC, UC_FLAGS);
    frame[UC_STACK..UC_STACK + 24].copy_from_slice(&stack.to_bytes(regs.rsp));
    for (index, value) in in_order(regs).into_iter().enumerate() {
        put(&mut frame, UC_REGISTERS + index * 8, value);
    }
    put(&mut frame, UC_REGISTERS + 144, USER_CS | USER_SS << 48);
    if let Some(fault) = fault {
        put(&mut frame, UC_REGISTERS + 152, fault.error);
        put(&mut frame, UC_REGISTERS + 160, fault.trapno);
        put(
            &mut frame,
            UC_REGISTERS + 176,
            if fault.trapno == 14 { fault.address } else { 0 },
        );
    }
    put(&mut frame, UC_REGISTERS + 168, mask.0);
    put(&mut frame, UC_FPSTATE, fpstate);
    put(&mut frame, UC_SIGMASK, mask.0);
    frame[INFO..].copy_from_slice(&info.to_bytes());

    let space = guest.address_space();
    if fpstate != 0 {
        space.write(fpstate, &xstate)?;
    }
    space.write(at, &frame)?;
    guest.reset_xstate();

    Ok(Registers {
        rax: 0,
        rdi: info.signal.number() as u64,
        rsi: at.wrapping_add(INFO as u64),
        rdx: at.wrapping_add(UC as u64),
        rsp: at,
        rip: action.handler,
        eflags: regs.eflags & !FLAGS_CLEARED,
        ..*regs
    })
}

/// What a frame says the thread goes back to.
struct Return {
    registers: Registers,
    mask: SigSet,
    stack: AltStack,
    fpstate: u64,
}

fn parse(frame: &[u8; FRAME_LEN], now: &Registers) -> Return {
    let reg = |index: usize| get(frame, UC_REGISTERS + index * 8);
    let registers = Registers {
        r8: reg(0),
        r9: reg(1),
        r10: reg(2),
        r11: reg(3),
        r12: reg(4),
        r13: reg(5),
        r14: reg(6),
        r15: reg(7),
        rdi: reg(8),
        rsi: reg(9),
        rbp: reg(10),
        rbx: reg(11),
        rdx: reg(12),
        rax: reg(13),
        rcx: reg(14),
        rsp: reg(15),
        rip: reg(16),
        eflags: (now.eflags & !FLAGS_MASK) | (reg(17) & FLAGS_MASK),
        fs_base: now.fs_base,
        gs_base: now.gs_base,
    };
    let flags = u32::from_le_bytes([
        frame[UC_STACK + 8],
        frame[UC_STACK + 9],
        frame[UC_STACK + 10],
        frame[UC_STACK + 11],
    ]);
    let disabled = flags & SS_DISABLE != 0;
    let stack = AltStack {
        sp: if disabled { 0 } else { get(frame, UC_STACK) },
        size: if disabled { 0 } else { get(frame, UC_STACK + 16) },
        flags: flags & SS_AUTODISARM,
    };
    Return {
        registers,
        mask: SigSet(get(frame, UC_SIGMASK)),
        stack,
        fpstate: get(frame, UC_FPSTATE),
    }
}

/// rt_sigreturn(2): puts back everything that the frame above the stack pointer holds; gives rax. `EFAULT` if there is no
/// good frame: then SIGSEGV is due.
pub(crate) fn sigreturn(thread: &Arc<Thread>) -> Result<u64, Errno> {
    let guest = thread.guest();
    let now = guest.registers();
    let mut frame = [0u8; FRAME_LEN];
    // The handler's `ret` has taken the return address off.
    guest.read(now.rsp.wrapping_sub(8), &mut frame)?;
    let back = parse(&frame, &now);
    if back.fpstate == 0 {
        guest.reset_xstate();
    } else {
        let state = read_xstate(thread, back.fpstate)?;
        guest.set_xstate(&state).map_err(|_| Errno::EFAULT)?;
    }
    guest.set_registers(&back.registers);
    thread.set_signal_mask(back.mask);
    // Errors are of no consequence here, as on Linux: a stack that is too small stays as it was.
    let mut signals = thread.signals.lock();
    if !signals.stack.holds(back.registers.rsp) && (back.stack.size == 0 || back.stack.size >= MINSIGSTKSZ) {
        signals.stack = back.stack;
    }
    drop(signals);
    *thread.restart.lock() = None;
    Ok(back.registers.rax)
}

/// The smallest alternate stack sigaltstack(2) takes.
pub const MINSIGSTKSZ: u64 = 2048;

/// Reads an extended state whose size its own software-reserved bytes say.
fn read_xstate(thread: &Arc<Thread>, addr: u64) -> Result<Vec<u8>, Errno> {
    const LEGACY: usize = 512;
    const SOFTWARE: usize = 464;
    const MAGIC1: u32 = 0x4650_5853;
    let guest = thread.guest();
    let mut state = vec![0; LEGACY];
    guest.read(addr, &mut state)?;
    let word = |at: usize| get(&state, at) as u32;
    if word(SOFTWARE) == MAGIC1 {
        let len = word(SOFTWARE + 4) as usize;
        if (LEGACY..=XSTATE_MAX).contains(&len) {
            state.resize(len, 0);
            guest.read(addr, &mut state)?;
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_has_the_size_and_places_of_linux() {
        assert_eq!(FRAME_LEN, 440);
        assert_eq!(UC_FPSTATE - UC_REGISTERS, 184);
        assert_eq!(UC_SIGMASK, 304);
        assert_eq!(INFO, 312);
    }

    #[test]
    fn an_alternate_stack_knows_what_is_on_it() {
        let stack = AltStack {
            sp: 0x1000,
            size: 0x2000,
            flags: 0,
        };
        assert!(!stack.holds(0x1000) && stack.holds(0x1001) && stack.holds(0x3000) && !stack.holds(0x3001));
        assert_eq!(stack.status(0x2000), SS_ONSTACK);
        assert_eq!(AltStack::default().status(0), SS_DISABLE);
        let disarmed = AltStack {
            flags: SS_AUTODISARM,
            ..stack
        };
        assert_eq!(disarmed.status(0x2000), SS_AUTODISARM);
    }
}
