//! The platform seam: what runs guest code and brings its system calls, faults and interruptions back.
//!
//! Two platforms stand behind these traits, `systrap` and `ptrace`; nothing above knows which one runs.
//! Everything here is `Send + Sync`. A [`GuestThread`] is either *running* (between [`GuestThread::resume`]
//! and the event that ends it) or *stopped*; registers, memory orders and clones are for stopped threads.

mod arena;
mod async_lock;
mod child_signal;
mod context;
mod control;
mod core;
pub mod filter;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handoff;
mod load;
mod machine;
mod mailbox;
mod ptrace;
mod space;
#[cfg(feature = "stepping")]
mod stepping;
mod thread;
mod vdso;
mod watchdog;
mod zygote;

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sentry_abi::Errno;

pub use load::Load;
pub use vdso::HostVdso;

/// A boxed future, as the trait objects here return them.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A system call as the guest made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallArgs {
    /// The number (x86-64 table).
    pub nr: u64,
    /// The six arguments: rdi, rsi, rdx, r10, r8, r9.
    pub args: [u64; 6],
}

/// The general registers of a guest thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub eflags: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

/// A synchronous exception of guest code, in the terms of `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL` or `SIGTRAP`.
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_addr`.
    pub address: u64,
    /// The processor's exception number.
    pub trapno: u64,
    /// The processor's error code.
    pub error: u64,
}

/// Why a guest thread came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It made a system call; rip is behind the instruction, rax holds the number.
    Syscall(SyscallArgs),
    /// It faulted; rip is at the instruction.
    Fault(Fault),
    /// A kick reached it; all registers are the guest's.
    Interrupted,
    /// A kick reached it in a call that its stub serves itself (a futex wait). As a system call that ended with
    /// `ERESTARTSYS` (a `FUTEX_WAIT` with a time-out: `ERESTART_RESTARTBLOCK`, whose restart is to execute the
    /// instruction again: the stub remembers the deadline). rip is behind the instruction, rax holds the number.
    LocalInterrupted(SyscallArgs),
    /// Its host thread or process is gone. Nothing else can be done with it.
    Exited,
}

/// One change to a guest's address space, carried out by a stopped thread's stub.
///
/// Addresses that touch the stub are refused with `EINVAL` for that order.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Order<'a> {
    /// mmap(2). `fd` is an index into the descriptors passed along; the stub closes them at the end.
    Mmap {
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
        fd: Option<usize>,
        offset: u64,
    },
    Munmap {
        addr: u64,
        len: u64,
    },
    Mprotect {
        addr: u64,
        len: u64,
        prot: i32,
    },
    Mremap {
        addr: u64,
        old_len: u64,
        new_len: u64,
        flags: i32,
        new_addr: u64,
    },
    Madvise {
        addr: u64,
        len: u64,
        advice: i32,
    },
    /// Copies bytes into guest memory (at most 48 KiB an order).
    Write {
        addr: u64,
        data: &'a [u8],
    },
    /// Zeroes guest memory.
    Zero {
        addr: u64,
        len: u64,
    },
    /// Atomic compare-and-exchange on an aligned u32; the result is the old value.
    CompareExchange {
        addr: u64,
        old: u32,
        new: u32,
    },
    /// Wakes up to `count` waiters on the futex at `addr`, private and shared: robust lists and clear-child-tid.
    FutexWake {
        addr: u64,
        count: u32,
    },
}

/// Where a new thread or process starts, apart from its parent's registers (rax is 0 in it).
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildStart {
    /// Its stack pointer, if not the parent's.
    pub stack: Option<u64>,
    /// Its fs base, if not the parent's.
    pub tls: Option<u64>,
}

/// What the stub may answer on its own.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Identity {
    pub pid: u32,
    pub uid: u32,
    pub euid: u32,
    pub gid: u32,
    pub egid: u32,
}

/// A change of the address space that the stub made by itself. A claim of the guest, not a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MemoryLogEntry {
    Mmap {
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
    },
    Munmap {
        addr: u64,
        len: u64,
    },
    /// Also one that failed: it has changed what lies before the place where it failed.
    Mprotect {
        addr: u64,
        len: u64,
        prot: i32,
        /// 0, or the negative error.
        result: i32,
    },
    Mremap {
        addr: u64,
        old_len: u64,
        new_len: u64,
        new_addr: u64,
    },
    /// The heap now ends here.
    Brk {
        end: u64,
    },
}

/// The part of the address space that belongs to the guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestLayout {
    /// The lowest address a guest may map.
    pub low: u64,
    /// The first address beyond the guest's part.
    pub high: u64,
    /// Where the host kernel starts to place mappings without an address, downwards (approximately).
    pub mmap_base: u64,
    /// The host's vDSO (its ELF header) as mapped in every guest process; 0 if there is none.
    pub host_vdso: u64,
}

/// A guest process's memory. Ends (host processes killed, mappings gone) when the last reference is dropped.
pub trait AddressSpace: Send + Sync {
    /// Copies guest memory into `buf`; `EFAULT` if any of it cannot be read.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Errno>;

    /// Copies as much as can be read up to the first fault; the number of bytes.
    fn read_partial(&self, addr: u64, buf: &mut [u8]) -> usize;

    /// Copies `data` into guest memory; `EFAULT` if any of it cannot be written (a part may have been).
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Errno>;

    /// What the stub may answer for getpid(2) and the uid family.
    fn set_identity(&self, identity: Identity);

    /// Switches off (or on again) what the stub answers itself: strace, audit, seccomp and tracers need every call.
    fn set_local_calls(&self, on: bool);

    /// Sets the start and present end of the heap that the stub's brk(2) works on, and how far it may grow.
    fn set_brk(&self, start: u64, end: u64, limit: u64);

    /// The present end of the heap, as the stub says.
    fn brk(&self) -> u64;

    /// Takes the changes the stub has made since the last call, oldest first.
    fn drain_log(&self) -> Vec<MemoryLogEntry>;

    /// The host process id, for CPU-time accounting of our own children.
    fn host_pid(&self) -> u32;

    /// SIGKILL to every host thread of this address space. Its threads come back with [`Event::Exited`].
    fn kill(&self);
}

/// A guest thread: one host thread in one address space.
pub trait GuestThread: Send + Sync {
    /// The address space it runs in.
    fn address_space(&self) -> &Arc<dyn AddressSpace>;

    /// Lets the guest run on. Register changes and pending writes take effect first.
    fn resume(&self);

    /// Ready when the guest, resumed before, has come back. Calls before the first `resume` wait for ever.
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event>;

    /// Tells the stub that the present call will take a while, so that it sleeps and does not spin.
    fn will_block(&self);

    /// Sets rax, the result of the present system call.
    fn set_result(&self, value: i64);

    /// The registers. Stopped threads only.
    fn registers(&self) -> Registers;

    /// Sets all registers. Stopped threads only.
    fn set_registers(&self, registers: &Registers);

    /// The extended state as the host kernel's signal frame holds it: `_fpstate` with the legacy area, the
    /// software-reserved bytes and the XSAVE area (kernel: `arch/x86/include/uapi/asm/sigcontext.h`).
    fn xstate(&self) -> Vec<u8>;

    /// Replaces the extended state with one of the same form; `EINVAL` if it is not one.
    fn set_xstate(&self, state: &[u8]) -> Result<(), Errno>;

    /// Resets the extended state to that of a new process.
    fn reset_xstate(&self);

    /// Copies guest memory, from what the stub brought along or from the address space.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Errno>;

    /// Copies guest memory up to the first fault; the number of bytes.
    fn read_partial(&self, addr: u64, buf: &mut [u8]) -> usize;

    /// Copies into guest memory before the guest runs on. What goes through the stub may fail only then: the
    /// result of the call then becomes `-EFAULT`.
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Errno>;

    /// Reads from a host file straight into the guest. `offset` as preadv2(2) (`-1`: the file's own position);
    /// `flags` are `RWF_*`. The number of bytes; `EAGAIN` as the host says.
    fn read_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno>;

    /// Writes guest memory to a host file, as [`Self::read_file`].
    fn write_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno>;

    /// Runs orders in this thread's address space, in turn; one result each, as the host call gives it
    /// (negative errno). Stopped threads only. `Err(ESRCH)` when the thread died under it.
    fn run<'a>(&'a self, orders: &'a [Order<'a>], fds: &'a [BorrowedFd<'a>]) -> BoxFuture<'a, Result<Vec<i64>, Errno>>;

    /// Forks the process: a new address space with a copy-on-write image and one stopped thread.
    fn fork(&self, start: ChildStart) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>>;

    /// A further thread in the same address space, stopped. `tid` is what its gettid(2) says.
    fn spawn(&self, start: ChildStart, tid: u32) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>>;

    /// As [`AddressSpace::set_identity`], for this thread alone: a vfork child on its parent's host thread.
    fn set_identity(&self, identity: Identity);

    /// Copies a NUL-terminated string of at most `max` bytes (the NUL not counted, and not returned).
    /// `ENAMETOOLONG` if it is longer, `EFAULT` if it cannot be read.
    fn read_string(&self, addr: u64, max: usize) -> Result<Vec<u8>, Errno>;

    /// True if the guest, as far as its stub says, sleeps in a call that the stub serves itself (for /proc; a claim).
    fn waits_locally(&self) -> bool {
        false
    }

    /// What the stub answers for gettid(2).
    fn set_tid(&self, tid: u32);

    /// Lets the host thread, and those it makes, run on these processors only.
    fn set_affinity(&self, _processors: &[u32]) {}

    /// Makes a running guest come back soon, with [`Event::Interrupted`] if nothing else. No effect on a stopped one.
    fn kick(&self);

    /// Ends the host thread (stopped threads only). The address space lives on while it has other threads.
    fn exit(&self);
}

/// Makes guest processes, and lets a worker wait for them.
pub trait Platform: Send + Sync {
    /// `"systrap"` or `"ptrace"`.
    fn name(&self) -> &'static str;

    /// The guest's part of the address space.
    fn layout(&self) -> GuestLayout;

    /// A pristine process: an empty address space (host vDSO apart) and one stopped thread, for exec.
    fn new_process(&self) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>>;

    /// A hint that [`Platform::new_process`] will be called soon. Never waits; to be repeated while there is something
    /// else to do.
    fn prepare_process(&self) {}

    /// The calling thread is this worker from now on.
    fn take_over(&self, _worker: usize) {}

    /// Looks once for guests that have come back on this worker and wakes their tasks. How many there were.
    fn scan(&self, worker: usize) -> usize;

    /// Sends the answers that `resume` has collected on this worker. Called when its run queue is empty.
    fn flush(&self, worker: usize);

    /// True while a guest that belongs to this worker runs, so that scanning on for a while can pay.
    fn should_spin(&self, worker: usize) -> bool;

    /// Called before the worker sleeps. False if something came in meanwhile; then it must not sleep.
    fn prepare_park(&self, worker: usize) -> bool;

    /// Called after the worker slept.
    fn unpark(&self, worker: usize);

    /// Readable when a guest of this worker has come back while it slept. Any worker may be woken by
    /// writing eight bytes to its doorbell (an eventfd); `unpark` drains it.
    fn doorbell(&self, worker: usize) -> BorrowedFd<'_>;
}

/// Which platform to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// systrap where it works, else ptrace.
    Auto,
    /// seccomp traps and mailboxes.
    Systrap,
    /// `PTRACE_SYSEMU`.
    Ptrace,
}

/// What a platform is made of.
#[derive(Debug)]
pub struct PlatformOptions {
    /// Worker threads that the kernel will run (1 to 16).
    pub workers: usize,
    /// The host's vDSO, found while `/proc` could be read.
    pub vdso: HostVdso,
    /// Have the stubs copy all guest memory, even where process_vm_readv(2) works.
    pub copy_by_stub: bool,
    /// `RLIMIT_NPROC` of the stubs: bounds even clones that nobody ordered.
    pub max_processes: Option<u64>,
    /// The nice value of the stubs.
    pub nice: i32,
    /// The host's load, opened while `/proc` could be: whether others want the processors.
    pub load: Option<Arc<Load>>,
}

/// Why a platform cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The host refused something.
    #[error("{0}: {1}{advice}", advice = sentry_host::advice::of(.1.raw()))]
    Host(&'static str, Errno),
    /// The seccomp filter does not compile.
    #[error("the stub's filter: {0}")]
    Filter(String),
    /// The processor (or the host's kernel) is too old.
    #[error("the processor lacks {0}")]
    Processor(&'static str),
}

/// For tests alone.
#[doc(hidden)]
pub mod testing {
    #[cfg(feature = "stepping")]
    pub use crate::stepping::{Steps, step};

    /// Switches off that a kick without an answer is repeated, which would hide that one was lost.
    pub fn never_repeat_kicks() {
        crate::watchdog::never_repeat_kicks();
    }
}

/// Makes a platform. Must be called while the process has a single thread, before its own filter is installed.
pub fn create(kind: Kind, options: PlatformOptions) -> Result<Arc<dyn Platform>, PlatformError> {
    match kind {
        Kind::Systrap => Ok(Arc::new(machine::Machine::systrap(&options)?)),
        Kind::Ptrace => Ok(Arc::new(machine::Machine::ptrace(&options)?)),
        Kind::Auto => match machine::Machine::systrap(&options) {
            Ok(machine) => Ok(Arc::new(machine)),
            Err(_) => Ok(Arc::new(machine::Machine::ptrace(&options)?)),
        },
    }
}
