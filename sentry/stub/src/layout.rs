//! What a stub and the sentry share: the arena of mailboxes, and the read-only sandbox page.
//!
//! Plain numbers and `#[repr(C)]` structures, compiled into both sides. The sentry treats everything that a
//! guest can write as hostile: it reads a field once into private memory, checks it, and then uses it.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Size of a mailbox slot, and its alignment: a stub finds its slot by masking its stack pointer.
pub const SLOT_SIZE: usize = 128 * 1024;
/// Threads that one guest process can have.
pub const MAX_SLOTS: usize = 1024;
/// Size of an arena: the process header (one slot's worth) and the slots.
pub const ARENA_SIZE: usize = SLOT_SIZE * (1 + MAX_SLOTS);
/// Offset of a slot's data area.
pub const DATA_OFFSET: usize = 4096;
/// Size of the data area.
pub const DATA_SIZE: usize = 64 * 1024;
/// Offset of the alternate signal stack, which reaches to the end of the slot.
pub const STACK_OFFSET: usize = DATA_OFFSET + DATA_SIZE;
/// Size of the alternate signal stack.
pub const STACK_SIZE: usize = SLOT_SIZE - STACK_OFFSET;
/// Offset of the operations within a slot.
pub const OPS_OFFSET: usize = 512;
/// How many operations one answer can carry.
pub const MAX_OPS: usize = (DATA_OFFSET - OPS_OFFSET) / core::mem::size_of::<Op>();
/// Workers that the sandbox page has room for.
pub const MAX_WORKERS: usize = 16;
/// Guest threads in one sandbox.
pub const MAX_THREADS: usize = 16 * 1024;
/// Size of the sandbox page (workers, then wake words).
pub const SANDBOX_SIZE: usize = 4096 + MAX_THREADS * 4;
/// Bytes of a small buffer that a stub brings along.
pub const PREFETCH_MAX: usize = 4096;
/// Entries of the memory log; a power of two.
pub const LOG_ENTRIES: usize = 1024;

/// The number of a doorbell's descriptor in every stub is this plus the worker's.
pub const DOORBELL_FD: i32 = 4;
/// The signal that makes a running guest come back.
pub const KICK_SIGNAL: i32 = 40;
/// The system-call number by which a fresh stub announces itself.
pub const HELLO_NR: u64 = 0x5e11;

/// ptrace platform, the zygote's first message: its filter is installed.
pub const FILTER_INSTALLED: u8 = b'g';
/// ptrace platform, the zygote's first message: it installs its filter itself.
pub const INSTALL_FILTER: u8 = b'f';

/// Host clone(2) flags for a guest fork: `CLONE_PARENT | SIGCHLD`.
pub const FORK_FLAGS: u64 = 0x8000 | 17;
/// Host clone(2) flags for a guest thread: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, CHILD_CLEARTID
/// (of [`Slot::alive`]).
pub const THREAD_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x20_0000;

/// Kinds of request ([`Slot::kind`]).
pub mod request {
    /// A guest system call.
    pub const SYSCALL: u32 = 1;
    /// A fault of guest code.
    pub const FAULT: u32 = 2;
    /// A kick reached guest code.
    pub const INTERRUPTED: u32 = 3;
    /// The operations of a `CONTINUE` answer are done.
    pub const DONE: u32 = 4;
    /// A call that the stub serves itself was interrupted by a kick.
    pub const LOCAL_INTERRUPTED: u32 = 5;
    /// ptrace platform, never in a mailbox: the tracer has seen an event.
    pub const TRACED: u32 = 6;
}

/// Kinds of answer ([`Slot::answer_kind`]).
pub mod answer {
    /// Run the operations, set rax if [`super::answer_flags::RESULT`], go on with the guest.
    pub const RETURN: u32 = 1;
    /// Run the operations and post `DONE`.
    pub const CONTINUE: u32 = 2;
}

/// Bits of [`Slot::answer_flags`].
pub mod answer_flags {
    /// `result` goes to rax.
    pub const RESULT: u32 = 1;
    /// A failed copy turns the result into `-EFAULT`.
    pub const FAULT_RESULT: u32 = 2;
}

/// Kinds of operation ([`Op::kind`]).
pub mod op {
    /// Copy `a2` bytes from data offset `a0` to guest address `a1`.
    pub const COPY_OUT: u32 = 1;
    /// Copy `a2` bytes from guest address `a1` to data offset `a0`; the result is how many.
    pub const COPY_IN: u32 = 2;
    /// Host call `a0` with arguments `a1..=a6`; argument `flags` (1-6) is an index of a received descriptor.
    pub const CALL: u32 = 3;
    /// Receive `a0` descriptors on the control socket.
    pub const RECEIVE: u32 = 4;
    /// Close all received descriptors.
    pub const CLOSE: u32 = 5;
    /// Fork; received descriptor 0 is the child's arena, 1 its control socket, 2… are closed by it.
    pub const FORK: u32 = 6;
    /// New thread in slot `a0`.
    pub const THREAD: u32 = 7;
    /// Set the fs base to `a0`.
    pub const SET_FS: u32 = 8;
    /// Set the gs base to `a0`.
    pub const SET_GS: u32 = 9;
    /// Zero `a1` bytes at `a0`.
    pub const ZERO: u32 = 10;
    /// Compare-and-exchange the u32 at `a0`: old `a1`, new `a2`; the result is what was there.
    pub const CMPXCHG: u32 = 11;
    /// Wake the stub that sleeps on wake word `a0` (delegated wake).
    pub const WAKE: u32 = 12;
    /// End this thread.
    pub const EXIT: u32 = 13;
    /// Read the fs base (result).
    pub const GET_FS: u32 = 14;
    /// Read the gs base (result).
    pub const GET_GS: u32 = 15;
}

/// One operation of an answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Op {
    pub kind: u32,
    pub flags: u32,
    pub a: [u64; 7],
}

/// A buffer that the stub brought along with a system call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefetch {
    /// Guest address.
    pub addr: u64,
    /// How many bytes of it are in the data area.
    pub len: u32,
    /// Where in the data area.
    pub offset: u32,
}

/// The head of a mailbox slot. Fields are grouped by cache line and by writer.
#[repr(C, align(64))]
#[allow(missing_docs)]
pub struct Slot {
    // -- line 0: the request (stub writes)
    /// Counts requests; a new number is a new request.
    pub request: AtomicU32,
    pub kind: AtomicU32,
    pub nr: AtomicU64,
    pub args: [AtomicU64; 6],
    // -- line 1: more of the request (stub writes)
    /// Address of the `ucontext` of the signal frame.
    pub frame: AtomicU64,
    pub fault_address: AtomicU64,
    pub fault_signal: AtomicI32,
    pub fault_code: AtomicI32,
    pub fs_base: AtomicU64,
    /// Two buffers brought along.
    pub prefetch_addr: [AtomicU64; 2],
    pub prefetch_len: [AtomicU32; 2],
    pub gs_base: AtomicU64,
    // -- line 2: the answer (sentry writes)
    pub answer: AtomicU32,
    pub answer_kind: AtomicU32,
    pub answer_flags: AtomicU32,
    pub op_count: AtomicU32,
    pub result: AtomicI64,
    /// The request that will take a while: its caller should sleep.
    pub blocked: AtomicU32,
    /// The worker that looks at this slot.
    pub worker: AtomicU32,
    pub _line2: [AtomicU64; 4],
    // -- line 3: the stub's state (stub writes)
    /// 1 while the stub sleeps for its answer.
    pub sleeping: AtomicU32,
    /// The processor it last ran on.
    pub cpu: AtomicU32,
    /// Set by the kick handler.
    pub kicked: AtomicU32,
    /// 1 while the stub itself (not the guest) is in the host's vDSO.
    pub in_vdso: AtomicU32,
    /// Deadline (absolute, CLOCK_MONOTONIC) of an interrupted futex wait, for when the guest runs into the same
    /// instruction again with nothing in between: then it was restarted. `restart_rip` is 0 if there is none.
    pub restart_rip: AtomicU64,
    pub restart_addr: AtomicU64,
    pub restart_sec: AtomicU64,
    pub restart_nsec: AtomicU64,
    /// 1 while the guest sleeps in a futex wait that the stub serves itself.
    pub waiting: AtomicU32,
    pub _line3: [AtomicU32; 3],
    // -- line 4: what the sentry tells the stub
    pub wake_index: AtomicU32,
    pub tid: AtomicU32,
    pub pid: AtomicU32,
    pub uid: AtomicU32,
    pub euid: AtomicU32,
    pub gid: AtomicU32,
    pub egid: AtomicU32,
    /// 1: the stub answers what it can; 0: every call goes to the sentry.
    pub local: AtomicU32,
    /// Cleared by the host when a thread made by THREAD is gone: only then may its slot be used again.
    pub alive: AtomicU32,
    pub _line4: [AtomicU32; 7],
    // -- line 5: bookkeeping of the stub
    pub received_count: AtomicU32,
    pub received: [AtomicI32; 15],
}

/// One entry of the memory log.
#[repr(C)]
#[allow(missing_docs)]
pub struct LogEntry {
    pub kind: AtomicU32,
    pub flags: AtomicU32,
    pub a: [AtomicU64; 4],
}

/// Kinds of memory log entries.
#[allow(missing_docs)]
pub mod log {
    pub const MMAP: u32 = 1;
    pub const MUNMAP: u32 = 2;
    pub const MPROTECT: u32 = 3;
    pub const MREMAP: u32 = 4;
    pub const BRK: u32 = 5;
}

/// The head of an arena: what all threads of a guest process share.
#[repr(C, align(64))]
#[allow(missing_docs)]
pub struct ProcessHeader {
    /// Held around a memory operation and its log entry: 0 free, 1 held, 2 held with sleepers.
    pub lock: AtomicU32,
    /// This process's control socket.
    pub control_fd: AtomicI32,
    pub brk_start: AtomicU64,
    pub brk_end: AtomicU64,
    pub brk_limit: AtomicU64,
    /// Entries ever written (stub) and ever read (sentry).
    pub log_head: AtomicU64,
    pub log_tail: AtomicU64,
    pub _pad: [AtomicU64; 2],
    pub log: [LogEntry; LOG_ENTRIES],
}

/// What a worker shows to all stubs.
#[repr(C, align(64))]
pub struct WorkerState {
    /// 1 when it sleeps and wants its doorbell rung.
    pub sleeping: AtomicU32,
    /// The processor it runs on.
    pub cpu: AtomicU32,
}

/// The sandbox page: written by the sentry, read-only to every stub.
#[repr(C)]
pub struct SandboxPage {
    /// Worker states.
    pub workers: [WorkerState; MAX_WORKERS],
}

/// Offset of the wake words in the sandbox page.
pub const WAKE_OFFSET: usize = 4096;

/// Values that the sentry writes into the stub's image before it is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Config {
    pub arena: u64,
    pub sandbox: u64,
    /// The guest's part ends here: memory operations beyond are refused.
    pub guest_high: u64,
    /// How long to spin for an answer, in TSC ticks.
    pub spin_ticks: u64,
    /// The host vDSO's clock_gettime, or 0.
    pub clock_gettime: u64,
    /// The stub's own text.
    pub text: u64,
    pub text_len: u64,
    /// Not 0 on the ptrace platform: stop with int3 and do not sigreturn.
    pub ptrace: u64,
    /// What the zygote keeps mapped beside the stub: up to four ranges (start, end), sorted.
    pub keep: [[u64; 2]; 4],
    /// The seccomp program, in slot 0's data area: number of instructions.
    pub filter_len: u64,
    /// 1: seal the text with mseal(2).
    pub mseal: u64,
}

/// Offset of [`Slot::alive`].
pub const ALIVE_OFFSET: usize = core::mem::offset_of!(Slot, alive);

const _: () = assert!(core::mem::size_of::<Slot>() <= OPS_OFFSET);
const _: () = assert!(core::mem::size_of::<Op>() == 64);
const _: () = assert!(core::mem::size_of::<ProcessHeader>() <= SLOT_SIZE);
