//! What a mailbox says. The memory is shared with a hostile process, which may write at any time: each word is read once,
//! checked, and only then used.

use std::sync::atomic::Ordering;

use sentry_stub::layout::{PREFETCH_MAX, Slot, request};

use crate::{Event, Fault, SyscallArgs};

/// Guest memory that the stub brought along with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// The guest's address.
    pub addr: u64,
    /// Bytes; 0: nothing.
    pub len: usize,
    /// Where they are in the slot's data area.
    pub offset: usize,
}

/// How much of the data area is reserved for what is brought along, if something is.
pub fn reserved(brought: &[Brought; 2]) -> usize {
    let ends = brought.iter().filter(|brought| brought.len > 0);
    ends.map(|brought| brought.offset + PREFETCH_MAX).max().unwrap_or(0)
}

/// Reads a request of this kind; `None` if it makes no sense.
pub fn read(head: &Slot, kind: u32) -> Option<(Event, [Brought; 2])> {
    let call = || SyscallArgs {
        nr: head.nr.load(Ordering::Relaxed),
        args: std::array::from_fn(|i| head.args[i].load(Ordering::Relaxed)),
    };
    let mut brought = [Brought::default(); 2];
    let event = match kind {
        request::SYSCALL => {
            for (index, brought) in brought.iter_mut().enumerate() {
                let len = head.prefetch_len[index].load(Ordering::Relaxed) as usize;
                if len > 0 && len <= PREFETCH_MAX {
                    *brought = Brought {
                        addr: head.prefetch_addr[index].load(Ordering::Relaxed),
                        len,
                        offset: index * PREFETCH_MAX,
                    };
                }
            }
            Event::Syscall(call())
        }
        request::LOCAL_INTERRUPTED => Event::LocalInterrupted(call()),
        request::INTERRUPTED => Event::Interrupted,
        request::FAULT => {
            let signal = head.fault_signal.load(Ordering::Relaxed);
            let known = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
            if !known.contains(&signal) {
                return None;
            }
            Event::Fault(Fault {
                signal,
                code: head.fault_code.load(Ordering::Relaxed),
                address: head.fault_address.load(Ordering::Relaxed),
                trapno: head.args[0].load(Ordering::Relaxed),
                error: head.args[1].load(Ordering::Relaxed),
            })
        }
        _ => return None,
    };
    Some((event, brought))
}
