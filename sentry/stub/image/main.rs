//! The stub: freestanding code in every guest process, between the guest and the sentry.
//!
//! It enters through signal handlers, posts what happened to the mailbox, waits for the answer, runs the
//! operations in it and leaves. It has no writable memory but its mailbox, and trusts nobody less than the
//! sentry distrusts it: whatever it does wrong, a hostile guest could do as well.
#![no_std]
#![no_main]

mod exchange;
#[path = "../src/layout.rs"]
#[allow(dead_code)]
mod layout;
mod local;
mod operations;
mod sys;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use layout::*;
use sys::UContext;

core::arch::global_asm!(
    include_str!("entry.s"),
    FORK_FLAGS = const FORK_FLAGS,
    THREAD_FLAGS = const THREAD_FLAGS,
    ARENA_SIZE = const ARENA_SIZE,
    HELLO_NR = const HELLO_NR,
    SLOT_SIZE = const SLOT_SIZE,
    ALIVE_OFFSET = const ALIVE_OFFSET,
    R8 = const core::mem::offset_of!(UContext, r8),
    R9 = const core::mem::offset_of!(UContext, r9),
    R10 = const core::mem::offset_of!(UContext, r10),
    R11 = const core::mem::offset_of!(UContext, r11),
    R12 = const core::mem::offset_of!(UContext, r12),
    R13 = const core::mem::offset_of!(UContext, r13),
    R14 = const core::mem::offset_of!(UContext, r14),
    R15 = const core::mem::offset_of!(UContext, r15),
    RDI = const core::mem::offset_of!(UContext, rdi),
    RSI = const core::mem::offset_of!(UContext, rsi),
    RBP = const core::mem::offset_of!(UContext, rbp),
    RBX = const core::mem::offset_of!(UContext, rbx),
    RDX = const core::mem::offset_of!(UContext, rdx),
    RAX = const core::mem::offset_of!(UContext, rax),
    RCX = const core::mem::offset_of!(UContext, rcx),
    RSP = const core::mem::offset_of!(UContext, rsp),
    EFLAGS = const core::mem::offset_of!(UContext, eflags),
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::trap()
}

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// SIGSYS: the guest made a system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_on_syscall(_signal: i32, info: *const sys::SigInfo, frame: *mut UContext) -> ! {
    let slot = exchange::slot();
    let context = unsafe { &mut *frame };
    let nr = context.rax;
    if unsafe { (*info).arch } != sys::AUDIT_ARCH_X86_64 {
        context.rax = -38i64 as u64;
        exchange::leave(slot, frame);
    }
    let args = [context.rdi, context.rsi, context.rdx, context.r10, context.r8, context.r9];
    if slot.local.load(Relaxed) != 0 {
        match local::answer(slot, context.rip, nr, &args) {
            local::Answer::Result(value) => {
                context.rax = value as u64;
                exchange::leave(slot, frame);
            }
            local::Answer::Interrupted => {
                slot.kicked.store(0, Relaxed);
                exchange::post_call(slot, nr, &args);
                exchange::serve(slot, frame, request::LOCAL_INTERRUPTED);
            }
            local::Answer::Sentry => {}
        }
    }
    exchange::post_call(slot, nr, &args);
    local::prefetch(slot, nr, &args);
    exchange::serve(slot, frame, request::SYSCALL)
}

/// SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP: a fault of the guest, or of a copy of ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_on_fault(signal: i32, info: *const sys::SigInfo, frame: *mut UContext) {
    let context = unsafe { &mut *frame };
    if sys::in_text(context.rip) {
        match sys::fix_up(context.rip) {
            Some(rip) => context.rip = rip,
            // A bug of ours or a jump of the guest into the stub: end this process.
            None => sys::trap(),
        }
        return;
    }
    let slot = exchange::slot();
    slot.fault_signal.store(signal, Relaxed);
    unsafe {
        slot.fault_code.store((*info).code, Relaxed);
        slot.fault_address.store((*info).address, Relaxed);
    }
    slot.args[0].store(context.trapno, Relaxed);
    slot.args[1].store(context.err, Relaxed);
    exchange::serve(slot, frame, request::FAULT)
}

/// The kick signal: come back to the sentry soon.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_on_kick(_signal: i32, _info: *const sys::SigInfo, frame: *mut UContext) {
    let slot = exchange::slot();
    let context = unsafe { &mut *frame };
    sys::finish_jump(context);
    if !sys::in_text(context.rip) {
        // Guest code, or the host's vDSO, which it may be interrupted in like any other code of its own.
        if slot.in_vdso.load(Relaxed) == 0 {
            exchange::serve(slot, frame, request::INTERRUPTED);
        }
        slot.kicked.store(1, SeqCst);
        return;
    }
    slot.kicked.store(1, SeqCst);
    sys::rewind(context);
}

/// A kick came between the last check and the return to the guest.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_kicked(frame: *mut UContext) -> ! {
    let slot = exchange::slot();
    slot.kicked.store(0, Relaxed);
    exchange::serve(slot, frame, request::INTERRUPTED)
}

/// The first code of a forked child, on its own arena, which the sentry has filled in.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_fork_child(arena_fd: i32, control_fd: i32) -> ! {
    let slot = exchange::slot();
    let header = exchange::header();
    sys::close(arena_fd);
    sys::close(header.control_fd.load(Relaxed));
    header.control_fd.store(control_fd, Relaxed);
    if sys::ptrace() != 0 {
        unsafe { sys::stub_ptrace_stop() }
    }
    exchange::child_start(slot)
}

/// The first code of a new thread, on its own slot, which the sentry has filled in.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_thread_child() -> ! {
    if sys::ptrace() != 0 {
        unsafe { sys::stub_ptrace_stop() }
    }
    exchange::child_start(exchange::slot())
}

/// The zygote: unmaps all that is not the stub's, takes the filter, says hello.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_zygote_main() -> ! {
    let config = sys::config();
    let mut from = 0;
    for [start, end] in config.keep {
        if end == 0 {
            continue;
        }
        if start > from {
            sys::call(sys::MUNMAP, [from, start - from, 0, 0, 0, 0]);
        }
        from = end;
    }
    sys::call(sys::MUNMAP, [from, 0x7fff_ffff_f000 - from, 0, 0, 0, 0]);
    if config.mseal != 0 {
        sys::call(sys::MSEAL, [config.text, config.text_len, 0, 0, 0, 0]);
    }
    let slot = exchange::slot();
    if config.ptrace != 0 {
        // The sentry seizes this process and then sends a byte; it may have installed the filter from outside.
        slot.alive.store(1, Relaxed);
        if operations::wait_for_byte(slot) == FILTER_INSTALLED {
            unsafe { sys::stub_ptrace_stop() }
        }
    }
    let data = (slot as *const Slot as u64) + DATA_OFFSET as u64;
    let program = [config.filter_len, data];
    if sys::call(sys::SECCOMP, [1, 4 /* SPEC_ALLOW */, program.as_ptr() as u64, 0, 0, 0]) != 0 {
        sys::trap();
    }
    if config.ptrace != 0 {
        unsafe { sys::stub_ptrace_stop() }
    }
    unsafe { sys::stub_hello() }
}

/// ptrace platform: the operations of the answer in the mailbox; then the tracer takes over again.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_ptrace_operations() {
    let slot = exchange::slot();
    let clean = operations::run(slot);
    slot.args[0].store(u64::from(clean), Relaxed);
}
