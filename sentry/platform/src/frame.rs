//! The signal frame that the host kernel left on a stub's alternate stack: the guest's registers live there while
//! it is stopped. (Kernel: `arch/x86/include/uapi/asm/sigcontext.h`, `asm/ucontext.h`.)

use sentry_abi::Errno;
use sentry_stub::layout::{SLOT_SIZE, STACK_OFFSET};

use crate::Registers;
use crate::arena::Arena;

/// Offsets in `struct ucontext`.
mod context {
    pub const STACK_SP: usize = 16;
    pub const REGISTERS: usize = 40;
    pub const FPSTATE: usize = REGISTERS + 23 * 8;
    /// Up to and with the signal mask.
    pub const SIZE: usize = FPSTATE + 8 + 64 + 8;
}

const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Offset of the software-reserved bytes in the legacy area.
const SW_RESERVED: usize = 464;
const LEGACY_SIZE: usize = 512;
/// Larger states than this do not exist (AMX has 8 KiB; we refuse it).
const XSTATE_MAX: usize = 16 * 1024;

/// Where a frame is, as offsets in its slot; bounds are checked.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    slot: usize,
    context: usize,
}

impl Frame {
    /// Checks the address that a stub posted.
    pub fn new(arena: &Arena, slot: usize, address: u64) -> Option<Frame> {
        let context = usize::try_from(address.checked_sub(arena.slot_address(slot))?).ok()?;
        let inside = context >= STACK_OFFSET + 8 && context.checked_add(context::SIZE)? <= SLOT_SIZE;
        (inside && context.is_multiple_of(8)).then_some(Frame { slot, context })
    }

    fn get(&self, arena: &Arena, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        arena.read(self.slot, self.context + offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn set(&self, arena: &Arena, offset: usize, value: u64) {
        arena.write(self.slot, self.context + offset, &value.to_ne_bytes());
    }

    /// The registers; fs and gs bases are not in the frame.
    pub fn registers(&self, arena: &Arena, fs_base: u64, gs_base: u64) -> Registers {
        let mut raw = [0; 18 * 8];
        arena.read(self.slot, self.context + context::REGISTERS, &mut raw);
        let mut words = [0u64; 18];
        for (word, bytes) in words.iter_mut().zip(raw.chunks_exact(8)) {
            let mut array = [0; 8];
            array.copy_from_slice(bytes);
            *word = u64::from_ne_bytes(array);
        }
        let [
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rdi,
            rsi,
            rbp,
            rbx,
            rdx,
            rax,
            rcx,
            rsp,
            rip,
            eflags,
        ] = words;
        Registers {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rbp,
            rsp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            eflags,
            fs_base,
            gs_base,
        }
    }

    /// Stores the registers, except fs and gs bases.
    pub fn set_registers(&self, arena: &Arena, r: &Registers) {
        let words = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx,
            r.rsp, r.rip, r.eflags,
        ];
        let mut raw = [0; 18 * 8];
        for (word, bytes) in words.iter().zip(raw.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        arena.write(self.slot, self.context + context::REGISTERS, &raw);
    }

    /// Where the extended state is, and its size with the trailing magic number.
    fn xstate_range(&self, arena: &Arena) -> Option<(usize, usize)> {
        let address = self.get(arena, context::FPSTATE);
        let start = usize::try_from(address.checked_sub(arena.slot_address(self.slot))?).ok()?;
        if start < STACK_OFFSET || start.checked_add(LEGACY_SIZE)? > SLOT_SIZE {
            return None;
        }
        let mut reserved = [0; 8];
        arena.read(self.slot, start + SW_RESERVED, &mut reserved);
        let [a, b, c, d, e, f, g, h] = reserved;
        if u32::from_ne_bytes([a, b, c, d]) != FP_XSTATE_MAGIC1 {
            return Some((start, LEGACY_SIZE));
        }
        let size = u32::from_ne_bytes([e, f, g, h]) as usize;
        let fits = (LEGACY_SIZE + 64..=XSTATE_MAX).contains(&size) && start.checked_add(size)? <= SLOT_SIZE;
        fits.then_some((start, size))
    }

    /// The extended state lies above the frame, as the host puts it.
    pub fn has_state_above(&self, arena: &Arena) -> bool {
        self.xstate_range(arena)
            .is_some_and(|(start, _)| start >= self.context + context::SIZE)
    }

    /// The extended state, as `struct _fpstate` and what follows it. Empty if the frame is damaged.
    pub fn xstate(&self, arena: &Arena) -> Vec<u8> {
        let Some((start, size)) = self.xstate_range(arena) else {
            return Vec::new();
        };
        let mut state = vec![0; size];
        arena.read(self.slot, start, &mut state);
        state
    }

    /// Replaces the extended state. The software-reserved bytes stay the host's own.
    pub fn set_xstate(&self, arena: &Arena, state: &[u8]) -> Result<(), Errno> {
        let (start, size) = self.xstate_range(arena).ok_or(Errno::EINVAL)?;
        let merged = merge_xstate(&self.xstate(arena), state).ok_or(Errno::EINVAL)?;
        debug_assert_eq!(merged.len(), size);
        arena.write(self.slot, start, &merged);
        Ok(())
    }

    /// The extended state of a new process.
    pub fn reset_xstate(&self, arena: &Arena) {
        if let Some((start, _)) = self.xstate_range(arena) {
            let fresh = fresh_xstate(&self.xstate(arena));
            arena.write(self.slot, start, &fresh);
        }
    }

    /// Copies this frame, with all of the stack above it, to another slot, as a child's first frame: rax is 0.
    pub fn copy_for_child(&self, from: &Arena, to: &Arena, slot: usize) -> Option<Frame> {
        let start = self.context - 8;
        if !from.copy_to(self.slot, to, slot, start, SLOT_SIZE - start) {
            return None;
        }
        let child = Frame {
            slot,
            context: self.context,
        };
        let delta = to.slot_address(slot).wrapping_sub(from.slot_address(self.slot));
        for pointer in [context::FPSTATE, context::STACK_SP] {
            child.set(to, pointer, child.get(to, pointer).wrapping_add(delta));
        }
        child.set(to, context::REGISTERS + 13 * 8, 0);
        Some(child)
    }

    /// The guest's address of the frame.
    pub fn address(&self, arena: &Arena) -> u64 {
        arena.slot_address(self.slot) + self.context as u64
    }
}

/// `state` (from a guest's frame) in the form of `host` (a state that the host wrote): `None` if it is no state at all.
pub fn merge_xstate(host: &[u8], state: &[u8]) -> Option<Vec<u8>> {
    if state.len() < LEGACY_SIZE || host.len() < LEGACY_SIZE {
        return None;
    }
    let mut merged = host.to_vec();
    merged[..SW_RESERVED].copy_from_slice(&state[..SW_RESERVED]);
    // Reserved bits of mxcsr would make the host refuse the frame.
    merged[26] = 0;
    merged[27] = 0;
    if host.len() < LEGACY_SIZE + 64 + 4 {
        return Some(merged);
    }
    let body = host.len() - 4;
    let same_form =
        state.len() == host.len() && state[SW_RESERVED..SW_RESERVED + 8] == host[SW_RESERVED..SW_RESERVED + 8];
    if same_form {
        // The header's first word says which components are present: no more than the host has.
        let present = word(state, LEGACY_SIZE) & word(host, SW_RESERVED + 8);
        merged[LEGACY_SIZE..body].copy_from_slice(&state[LEGACY_SIZE..body]);
        merged[LEGACY_SIZE..LEGACY_SIZE + 64].fill(0);
        merged[LEGACY_SIZE..LEGACY_SIZE + 8].copy_from_slice(&present.to_ne_bytes());
    } else {
        // Only the legacy area: x87 and SSE.
        merged[LEGACY_SIZE..body].fill(0);
        merged[LEGACY_SIZE] = 3;
    }
    merged[body..].copy_from_slice(&FP_XSTATE_MAGIC2.to_ne_bytes());
    Some(merged)
}

/// The initial state in the form of `host`.
pub fn fresh_xstate(host: &[u8]) -> Vec<u8> {
    let mut state = host.to_vec();
    if state.len() < LEGACY_SIZE {
        return state;
    }
    state[..SW_RESERVED].fill(0);
    state[..2].copy_from_slice(&0x37fu16.to_ne_bytes());
    state[24..28].copy_from_slice(&0x1f80u32.to_ne_bytes());
    if state.len() >= LEGACY_SIZE + 68 {
        let body = state.len() - 4;
        // PKRU is not part of a guest's state here; everything else starts in its initial configuration.
        state[LEGACY_SIZE..body].fill(0);
    }
    state
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_ne_bytes(array)
}

/// The tile data of AMX: the last component, of which no guest has the use.
const TILE_DATA: u64 = 1 << 18;
const TILE_DATA_SIZE: usize = 8192;

/// The state in the form of a signal frame, from the register set `NT_X86_XSTATE`. As in the host's own frames, tile
/// data has no room in it: it would fill small alternate stacks.
pub fn from_regset(regset: &[u8]) -> Vec<u8> {
    let mut state = regset.to_vec();
    if state.len() < LEGACY_SIZE + 64 {
        return state;
    }
    let mut features = word(regset, SW_RESERVED);
    if features & TILE_DATA != 0 && state.len() >= LEGACY_SIZE + 64 + TILE_DATA_SIZE {
        features &= !TILE_DATA;
        state.truncate(regset.len() - TILE_DATA_SIZE);
        let present = word(&state, LEGACY_SIZE) & features;
        state[LEGACY_SIZE..LEGACY_SIZE + 8].copy_from_slice(&present.to_ne_bytes());
    }
    let len = state.len() as u32;
    state[SW_RESERVED..LEGACY_SIZE].fill(0);
    state[SW_RESERVED..SW_RESERVED + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_ne_bytes());
    state[SW_RESERVED + 4..SW_RESERVED + 8].copy_from_slice(&(len + 4).to_ne_bytes());
    state[SW_RESERVED + 8..SW_RESERVED + 16].copy_from_slice(&features.to_ne_bytes());
    state[SW_RESERVED + 16..SW_RESERVED + 20].copy_from_slice(&len.to_ne_bytes());
    state.extend(FP_XSTATE_MAGIC2.to_ne_bytes());
    state
}

/// The other way round; `host` is a register set of the same machine.
pub fn to_regset(host: &[u8], state: &[u8]) -> Vec<u8> {
    let mut regset = host.to_vec();
    let len = regset.len().min(state.len());
    regset[..len].copy_from_slice(&state[..len]);
    if len >= LEGACY_SIZE {
        regset[SW_RESERVED..LEGACY_SIZE].copy_from_slice(&host[SW_RESERVED..LEGACY_SIZE]);
    }
    regset
}
