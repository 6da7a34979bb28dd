//! Posting a request and waiting for its answer.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};

use crate::layout::*;
use crate::operations;
use crate::sys::{self, UContext};

/// The mailbox of the calling thread: its stack is in it.
#[inline(always)]
pub fn slot() -> &'static Slot {
    let rsp: u64;
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack));
        &*((rsp & !(SLOT_SIZE as u64 - 1)) as *const Slot)
    }
}

/// The head of this process's arena.
pub fn header() -> &'static ProcessHeader {
    unsafe { &*(sys::arena() as *const ProcessHeader) }
}

fn worker(slot: &Slot) -> &'static WorkerState {
    let index = slot.worker.load(Relaxed) as usize % MAX_WORKERS;
    unsafe { &(&(*(sys::sandbox() as *const SandboxPage)).workers)[index] }
}

/// Fills in the call's number and arguments.
pub fn post_call(slot: &Slot, nr: u64, args: &[u64; 6]) {
    slot.nr.store(nr, Relaxed);
    for (to, from) in slot.args.iter().zip(args) {
        to.store(*from, Relaxed);
    }
    slot.prefetch_len[0].store(0, Relaxed);
    slot.prefetch_len[1].store(0, Relaxed);
}

/// Posts a request, runs answers until one says to return, and leaves to the guest.
pub fn serve(slot: &Slot, frame: *mut UContext, kind: u32) -> ! {
    slot.frame.store(frame as u64, Relaxed);
    slot.fs_base.store(sys::fs_base(), Relaxed);
    slot.gs_base.store(sys::gs_base(), Relaxed);
    if kind != request::LOCAL_INTERRUPTED {
        slot.restart_rip.store(0, Relaxed);
    }
    let number = post(slot, kind);
    finish(slot, frame, number)
}

/// A child's first wait: the sentry has posted for it.
pub fn child_start(slot: &Slot) -> ! {
    let frame = slot.frame.load(Relaxed) as *mut UContext;
    finish(slot, frame, slot.request.load(Relaxed))
}

fn finish(slot: &Slot, frame: *mut UContext, mut number: u32) -> ! {
    loop {
        wait(slot, number);
        let kind = slot.answer_kind.load(Relaxed);
        let flags = slot.answer_flags.load(Relaxed);
        let result = slot.result.load(Relaxed);
        let clean = operations::run(slot);
        if kind == answer::RETURN {
            if flags & answer_flags::RESULT != 0 {
                let failed = !clean && flags & answer_flags::FAULT_RESULT != 0;
                unsafe { (*frame).rax = if failed { sys::EFAULT } else { result } as u64 };
            }
            leave(slot, frame);
        }
        number = post(slot, request::DONE);
    }
}

/// Back to the guest, as the frame says.
pub fn leave(slot: &Slot, frame: *mut UContext) -> ! {
    unsafe { sys::leave(frame, slot.kicked.as_ptr()) }
}

fn post(slot: &Slot, kind: u32) -> u32 {
    slot.kind.store(kind, Relaxed);
    let (_, cpu) = sys::rdtscp();
    slot.cpu.store(cpu, Relaxed);
    let number = slot.request.load(Relaxed).wrapping_add(1);
    slot.request.store(number, Release);
    fence(SeqCst);
    if worker(slot).sleeping.load(Relaxed) != 0 {
        let one = 1u64;
        let fd = DOORBELL_FD as u64 + u64::from(slot.worker.load(Relaxed));
        sys::call(sys::WRITE, [fd, &raw const one as u64, 8, 0, 0, 0]);
    }
    number
}

/// Waits until request `number` is answered: spins while that can pay, then sleeps.
fn wait(slot: &Slot, number: u32) {
    let done = || slot.answer.load(Acquire) == number;
    let (start, _) = sys::rdtscp();
    let limit = sys::spin_ticks();
    let worker = worker(slot);
    loop {
        if done() {
            return;
        }
        let (now, cpu) = sys::rdtscp();
        if now.wrapping_sub(start) > limit
            || worker.cpu.load(Relaxed) == cpu
            || slot.blocked.load(Relaxed) == number
        {
            break;
        }
        core::hint::spin_loop();
    }
    let index = slot.wake_index.load(Relaxed) as usize % MAX_THREADS;
    let word = unsafe { &*((sys::sandbox() as usize + WAKE_OFFSET) as *const AtomicU32).add(index) };
    loop {
        slot.sleeping.store(1, SeqCst);
        let value = word.load(SeqCst);
        if done() {
            break;
        }
        // FUTEX_WAIT, shared: the sentry wakes it through its own mapping.
        sys::call(202, [word.as_ptr() as u64, 0, u64::from(value), 0, 0, 0]);
        if done() {
            break;
        }
    }
    slot.sleeping.store(0, Relaxed);
}
