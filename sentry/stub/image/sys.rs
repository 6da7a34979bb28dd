//! Host calls, the signal frame, and the addresses that matter to the handlers.

use crate::layout::Config;

pub const CLOSE: u64 = 3;
pub const WRITE: u64 = 1;
pub const MMAP: u64 = 9;
pub const MPROTECT: u64 = 10;
pub const MUNMAP: u64 = 11;
pub const SCHED_YIELD: u64 = 24;
pub const MREMAP: u64 = 25;
pub const MADVISE: u64 = 28;
pub const RECVMSG: u64 = 47;
pub const EXIT: u64 = 60;
pub const SECCOMP: u64 = 317;
pub const MSEAL: u64 = 462;

pub const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
pub const ENOMEM: i64 = -12;
pub const EACCES: i64 = -13;
pub const EFAULT: i64 = -14;
pub const EINTR: i64 = -4;

/// The usual segments of 64-bit code, in the two ends of `sigcontext`'s word of them.
const USER_CS: u64 = 0x33;
const USER_SS: u64 = 0x2b;
const TRAP_FLAG: u64 = 1 << 8;
/// Interrupts on, and the bit that is always set.
const PLAIN_FLAGS: u64 = 0x202;
/// Where the kernel describes the extended state in its legacy part (`struct _fpx_sw_bytes`): magic number, size;
/// then the components.
const SW_RESERVED: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;

/// The kernel's `ucontext` with `sigcontext` in it (x86-64), as a signal frame has it.
#[repr(C)]
pub struct UContext {
    pub flags: u64,
    pub link: u64,
    pub stack_sp: u64,
    pub stack_flags: u64,
    pub stack_size: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub eflags: u64,
    pub segments: u64,
    pub err: u64,
    pub trapno: u64,
    pub oldmask: u64,
    pub cr2: u64,
    pub fpstate: u64,
}

/// The parts of `siginfo_t` the stub reads.
#[repr(C)]
pub struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pub pad: i32,
    /// `si_addr` of faults, `si_call_addr` of SIGSYS.
    pub address: u64,
    pub syscall: i32,
    pub arch: u32,
}

unsafe extern "C" {
    fn stub_syscall(nr: u64, a1: u64, a2: u64, a3: u64, a4: u64, a5: u64, a6: u64) -> i64;
    fn stub_futex(uaddr: u64, op: u64, val: u64, timeout: u64, uaddr2: u64, val3: u64, kicked: *const u32) -> i64;
    fn stub_leave(frame: *mut UContext, kicked: *const u32) -> !;
    fn stub_leave_by_jump(frame: *mut UContext, kicked: *const u32, state: *const u64, components: u64) -> !;
    pub fn stub_fork(arena_fd: i32, arena: u64, rsp: u64, control_fd: i32) -> i64;
    pub fn stub_thread(rsp: u64) -> i64;
    pub fn stub_hello() -> !;
    pub fn stub_ptrace_stop() -> !;
    fn stub_copy(to: u64, from: u64, len: u64) -> u64;
    fn stub_zero(to: u64, len: u64) -> u64;
    fn stub_copy_string(to: u64, from: u64, max: u64) -> u64;
    fn stub_cmpxchg(address: u64, old: u32, new: u32) -> i64;
}

#[unsafe(link_section = ".config")]
#[unsafe(no_mangle)]
static STUB_CONFIG: Config = Config {
    arena: 0,
    sandbox: 0,
    guest_high: 0,
    spin_ticks: 0,
    clock_gettime: 0,
    text: 0,
    text_len: 0,
    ptrace: 0,
    keep: [[0; 2]; 4],
    filter_len: 0,
    mseal: 0,
};

/// The values the sentry wrote into the image.
pub fn config() -> Config {
    // Volatile: the compiler must not use the initial value.
    unsafe { core::ptr::read_volatile(&STUB_CONFIG) }
}

macro_rules! config_field {
    ($name:ident) => {
        /// One configured value, read from the image.
        #[inline(always)]
        pub fn $name() -> u64 {
            unsafe { core::ptr::read_volatile(&raw const STUB_CONFIG.$name) }
        }
    };
}
config_field!(arena);
config_field!(sandbox);
config_field!(guest_high);
config_field!(spin_ticks);
config_field!(clock_gettime);
config_field!(text);
config_field!(text_len);
config_field!(ptrace);

/// A host call through the gadget.
#[inline]
pub fn call(nr: u64, a: [u64; 6]) -> i64 {
    unsafe { stub_syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]) }
}

/// futex(2), not entered when a kick is pending.
pub fn futex(a: [u64; 6], kicked: *const u32) -> i64 {
    unsafe { stub_futex(a[0], a[1], a[2], a[3], a[4], a[5], kicked) }
}

pub fn close(fd: i32) {
    if fd >= 0 {
        call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
    }
}

/// Ends the process: nothing sensible can be done. Without its signal stack no handler can run, so that the next
/// fault is the last one.
pub fn trap() -> ! {
    let rsp: u64;
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack)) };
    let slot = rsp & !(crate::layout::SLOT_SIZE as u64 - 1);
    call(MUNMAP, [slot, crate::layout::SLOT_SIZE as u64, 0, 0, 0, 0]);
    unsafe { core::arch::asm!("ud2", options(noreturn)) }
}

/// Copies between guest memory and the mailbox; the number of bytes that could be copied.
pub fn copy(to: u64, from: u64, len: u64) -> u64 {
    len - unsafe { stub_copy(to, from, len) }
}

/// Zeroes guest memory; the number of bytes.
pub fn zero(to: u64, len: u64) -> u64 {
    len - unsafe { stub_zero(to, len) }
}

/// Copies up to and with a NUL byte.
pub fn copy_string(to: u64, from: u64, max: u64) -> u64 {
    unsafe { stub_copy_string(to, from, max) }
}

pub fn cmpxchg(address: u64, old: u32, new: u32) -> i64 {
    unsafe { stub_cmpxchg(address, old, new) }
}

pub fn in_text(rip: u64) -> bool {
    rip.wrapping_sub(text()) < text_len()
}

/// The address of a label in `entry.s`, without a global offset table.
macro_rules! label {
    ($name:literal) => {{
        let address: u64;
        unsafe { core::arch::asm!(concat!("lea {}, [rip + ", $name, "]"), out(reg) address, options(nomem, nostack)) };
        address
    }};
}

/// Where to go on after a fault at `rip`.
pub fn fix_up(rip: u64) -> Option<u64> {
    if rip == label!("copy_insn") {
        Some(label!("copy_fix"))
    } else if rip == label!("zero_insn") {
        Some(label!("zero_fix"))
    } else if rip == label!("string_insn") {
        Some(label!("string_fix"))
    } else if rip == label!("cmpxchg_insn") {
        Some(label!("cmpxchg_fix"))
    } else {
        None
    }
}

/// Moves a kicked context on when its kick came between a check of the flag and what the check guards.
pub fn rewind(context: &mut UContext) {
    let rip = context.rip;
    if rip >= label!("futex_check") && rip <= label!("futex_insn") {
        context.rip = label!("futex_kicked");
    } else if rip >= label!("leave_check") && rip <= label!("leave_insn") {
        context.rip = label!("leave_kicked");
    } else if rip >= label!("jump_check") && rip <= label!("jump_stack") {
        // The registers may be the guest's already, but the stack pointer still tells where its frame is.
        let pushed = if rip == label!("jump_flags") { 8 } else { 0 };
        context.rdi = context.rsp + pushed;
        context.eflags = PLAIN_FLAGS;
        context.rip = label!("leave_kicked");
    }
}

/// Carries out the stub's last instruction on the way to the guest, if that is where `context` is.
pub fn finish_jump(context: &mut UContext) {
    if context.rip == label!("jump_insn") {
        context.rip = context.rcx;
    }
}

/// Back to the guest, or to `stub_kicked` if `*kicked`: with a jump where that restores everything, since the host's
/// `rt_sigreturn` costs half as much again.
///
/// # Safety
///
/// `frame` is a signal frame of the host on this slot's stack.
pub unsafe fn leave(frame: *mut UContext, kicked: *const u32) -> ! {
    unsafe {
        let context = &*frame;
        let usual = context.rcx == context.rip
            && context.segments & 0xffff == USER_CS
            && context.segments >> 48 == USER_SS
            && context.eflags & TRAP_FLAG == 0;
        if usual && context.fpstate != 0 {
            let state = context.fpstate as *const u64;
            let (magic, components) = (*state.add(SW_RESERVED / 8) as u32, *state.add(SW_RESERVED / 8 + 1));
            if magic == FP_XSTATE_MAGIC1 {
                stub_leave_by_jump(frame, kicked, state, components);
            }
        }
        stub_leave(frame, kicked)
    }
}

/// The time-stamp counter and the processor's number.
#[inline(always)]
pub fn rdtscp() -> (u64, u32) {
    let (low, high, aux): (u32, u32, u32);
    unsafe { core::arch::asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") aux, options(nomem, nostack)) };
    (u64::from(high) << 32 | u64::from(low), aux & 0xfff)
}

pub fn fs_base() -> u64 {
    let value;
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) value, options(nomem, nostack)) };
    value
}

pub fn gs_base() -> u64 {
    let value;
    unsafe { core::arch::asm!("rdgsbase {}", out(reg) value, options(nomem, nostack)) };
    value
}

pub fn set_fs_base(value: u64) {
    unsafe { core::arch::asm!("wrfsbase {}", in(reg) value, options(nomem, nostack)) };
}

pub fn set_gs_base(value: u64) {
    unsafe { core::arch::asm!("wrgsbase {}", in(reg) value, options(nomem, nostack)) };
}

// The compiler may call these; plain string instructions are enough.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    unsafe {
        core::arch::asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    unsafe {
        core::arch::asm!("rep stosb", inout("rdi") to => _, in("al") byte as u8, inout("rcx") len => _, options(nostack));
    }
    to
}
