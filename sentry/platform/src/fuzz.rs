//! For the fuzzer: everything that is read from a mailbox, with bytes of its choice in it.

use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_stub::layout::{DATA_SIZE, OPS_OFFSET, PREFETCH_MAX, SLOT_SIZE, STACK_OFFSET};

use crate::arena::Arena;
use crate::frame::Frame;
use crate::mailbox;
use crate::{Event, Registers};

/// The slot that is attacked, between two that are not.
const SLOT: usize = 1;
/// Bytes of its neighbours that are looked at.
const EDGE: usize = 4096;
/// Where the arena is said to be.
const BASE: u64 = 0x7000_0000_0000;

/// A guest process's mailboxes, and a child's.
pub struct Mailbox {
    arena: Arena,
    child: Arena,
}

impl Mailbox {
    /// Fresh ones.
    pub fn new() -> Result<Mailbox, Errno> {
        let (arena, _) = Arena::new(BASE)?;
        let (child, _) = Arena::new(BASE)?;
        Ok(Mailbox { arena, child })
    }

    /// An input that is a request of this kind with the frame that the host makes: for the fuzzer to begin with.
    pub fn seed(kind: u32) -> Vec<u8> {
        let at = STACK_OFFSET + 1024;
        let mut head = vec![0; OPS_OFFSET];
        head[4..8].copy_from_slice(&kind.to_ne_bytes());
        let mut stack = vec![0; 304 + 512 + 64 + 256 + 4];
        let state = BASE + (SLOT_SIZE * (1 + SLOT) + at + 304) as u64;
        stack[224..232].copy_from_slice(&state.to_ne_bytes());
        for (offset, value) in [(464, 0x4650_5853), (468, 512 + 64 + 256 + 4), (472, 7)] {
            stack[304 + offset..304 + offset + 4].copy_from_slice(&u32::to_ne_bytes(value));
        }
        [(at as u64).to_ne_bytes().as_slice(), &head, &stack].concat()
    }

    /// Reads what these bytes say: where the frame is said to be, relative to the slot (8), the head of the slot, and what
    /// lies at the frame. Numbers for what was understood, or which promise is broken.
    pub fn run(&self, input: &[u8]) -> Result<[u64; 4], String> {
        let (place, rest) = input.split_at_checked(8).unwrap_or_default();
        let place = u64::from_ne_bytes(place.try_into().unwrap_or_default());
        let (head, rest) = rest.split_at(rest.len().min(OPS_OFFSET));
        self.arena.write(SLOT, 0, head);
        self.arena
            .write(SLOT, usize::try_from(place).unwrap_or(usize::MAX), rest);
        let slot = self.arena.slot(SLOT);
        let kind = slot.kind.load(Ordering::Relaxed);
        let (what, count) = match mailbox::read(slot, kind) {
            None => (0, 0),
            Some((event, brought)) => {
                if let Event::Fault(fault) = event
                    && !(1..32).contains(&fault.signal)
                {
                    return Err(format!("a fault by signal {}", fault.signal));
                }
                if brought
                    .iter()
                    .any(|brought| brought.len > PREFETCH_MAX || brought.offset + brought.len > DATA_SIZE)
                {
                    return Err(format!("{brought:?}"));
                }
                let count = brought.iter().filter(|brought| brought.len > 0).count() as u64;
                (u64::from(kind), count)
            }
        };
        let address = self.arena.slot_address(SLOT).wrapping_add(place);
        let (size, set) = match Frame::new(&self.arena, SLOT, address) {
            Some(frame) => self.frame(&frame, rest)?,
            None => (1, false),
        };
        for (slot, offset) in [(SLOT - 1, SLOT_SIZE - EDGE), (SLOT + 1, 0)] {
            let mut edge = [0; EDGE];
            for arena in [&self.arena, &self.child] {
                arena.read(slot, offset, &mut edge);
                if edge != [0; EDGE] {
                    return Err(format!("slot {slot} was written"));
                }
            }
        }
        Ok([what, count, size, u64::from(set)])
    }

    /// Everything that is done with a frame; the size of its state, and whether that can be set.
    fn frame(&self, frame: &Frame, bytes: &[u8]) -> Result<(u64, bool), String> {
        let registers = frame.registers(&self.arena, 1, 2);
        let Some(child) = frame.copy_for_child(&self.arena, &self.child, SLOT) else {
            return Err("a frame that was found cannot be copied".into());
        };
        let expected = Registers { rax: 0, ..registers };
        if child.registers(&self.child, 1, 2) != expected {
            return Err("a child has other registers".into());
        }
        let state = frame.xstate(&self.arena);
        // Where the host puts it. A state below the frame is not copied, one across it is changed with it.
        let above = frame.has_state_above(&self.arena);
        if above && child.xstate(&self.child) != state {
            return Err("a child has another state".into());
        }
        frame.reset_xstate(&self.arena);
        let fresh = frame.xstate(&self.arena);
        if above && fresh.len() != state.len() {
            return Err(format!("{} bytes of state became {}", state.len(), fresh.len()));
        }
        let set = frame.set_xstate(&self.arena, bytes).is_ok() && above;
        let after = frame.xstate(&self.arena);
        if set && after.len() != state.len() {
            return Err(format!("{} bytes of state became {}", state.len(), after.len()));
        }
        if set && after[26..28] != [0, 0] {
            return Err("reserved bits of mxcsr".into());
        }
        if set && after.len() >= 580 && after[520..576] != [0; 56] {
            return Err("reserved bytes of the state's header".into());
        }
        frame.set_registers(&self.arena, &expected);
        Ok((state.len() as u64, set))
    }
}
