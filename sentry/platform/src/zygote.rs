//! The zygote: the process from which every guest process descends by fork. It holds nothing but the stub.

use std::arch::{asm, global_asm};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use sentry_abi::Errno;
use sentry_stub::layout::{self, Config};
use sentry_stub::{IMAGE, symbol};

use crate::arena::Arena;
use crate::{GuestLayout, HostVdso};

// glibc registers a restartable-sequence area in its own memory, which the zygote unmaps; it says where. Weak, for
// libraries that do not have it.
global_asm!(".weak __rseq_offset", ".weak __rseq_size");

/// The top of the user address space.
const TASK_SIZE: u64 = 0x7fff_ffff_f000;
/// The guest's part ends here; the host's own stack and the stub's pieces lie above.
pub(crate) const GUEST_HIGH: u64 = 0x7ffc_4000_0000;

/// Offset in slot 0 of the `struct sock_fprog` of the stubs' filter.
pub(crate) const FILTER_DESCRIPTION: usize = layout::DATA_OFFSET + layout::DATA_SIZE - 16;

/// Where the stub's pieces lie in every guest process: random for each sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub text: u64,
    pub text_len: u64,
    pub arena: u64,
    pub sandbox: u64,
}

impl Placement {
    /// Finds places that are free in this process now (and so in its fork).
    pub fn choose() -> Result<Placement, Errno> {
        let text_len = (IMAGE.len() as u64).next_multiple_of(4096);
        Ok(Placement {
            text: free_place(text_len, 4096)?,
            text_len,
            arena: free_place(layout::ARENA_SIZE as u64, layout::SLOT_SIZE as u64)?,
            sandbox: free_place(layout::SANDBOX_SIZE as u64, 4096)?,
        })
    }

    /// The range of the gadgets, for the filter.
    pub fn gadget(&self) -> (u64, u64) {
        (self.text + symbol::GADGET_START, self.text + symbol::GADGET_END)
    }
}

fn random_u64() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // SAFETY: fills `bytes`.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != 8 {
        return Err(Errno::EIO);
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// A random free range above the guest's part; it stays reserved until [`release`].
fn free_place(len: u64, align: u64) -> Result<u64, Errno> {
    // 64 KiB apart from everything else, and never across a 4 GiB border (the filter compares 32-bit halves).
    let room = (TASK_SIZE - GUEST_HIGH - len - (1 << 20)) / align;
    for _ in 0..1000 {
        let addr = (GUEST_HIGH + (1 << 16)).next_multiple_of(align) + (random_u64()? % room) * align;
        if addr + len + 4096 > TASK_SIZE || (addr >> 32) != ((addr + len) >> 32) {
            continue;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: reserves an unused range; NOREPLACE cannot touch an existing mapping.
        let got = unsafe { libc::mmap(addr as *mut _, len as usize, libc::PROT_NONE, flags, -1, 0) };
        if got as u64 == addr {
            return Ok(addr);
        }
        if got != libc::MAP_FAILED {
            // SAFETY: an old kernel took the address for a hint; the mapping is ours.
            unsafe { libc::munmap(got, len as usize) };
        }
    }
    Err(Errno::ENOMEM)
}

/// Gives back the reservations of [`Placement::choose`] in the sentry itself.
pub(crate) fn release(place: &Placement) {
    for (addr, len) in [
        (place.text, place.text_len),
        (place.arena, layout::ARENA_SIZE as u64),
        (place.sandbox, layout::SANDBOX_SIZE as u64),
    ] {
        // SAFETY: reservations made by free_place, used by nobody in this process.
        unsafe { libc::munmap(addr as *mut _, len as usize) };
    }
}

/// Everything the new zygote needs.
pub(crate) struct Plan<'a> {
    pub place: Placement,
    pub arena: &'a Arena,
    pub arena_fd: &'a OwnedFd,
    pub sandbox_fd: BorrowedFd<'a>,
    pub control: &'a OwnedFd,
    pub doorbells: Vec<BorrowedFd<'a>>,
    pub filter: Vec<[u8; 8]>,
    pub vdso: HostVdso,
    pub layout: GuestLayout,
    pub spin_ticks: u64,
    pub max_processes: Option<u64>,
    pub nice: i32,
    pub ptrace: bool,
}

/// Starts the zygote. The calling process must have one thread only.
pub(crate) fn start(plan: &Plan<'_>) -> Result<u32, Errno> {
    let image = image(plan)?;
    let program: Vec<u8> = plan.filter.concat();
    // Behind the program its `struct sock_fprog`, for a filter that is installed from outside.
    let mut description = [0; 16];
    description[..2].copy_from_slice(&(plan.filter.len() as u16).to_ne_bytes());
    let data = plan.arena.slot_address(0) + layout::DATA_OFFSET as u64;
    description[8..].copy_from_slice(&data.to_ne_bytes());
    let stored =
        plan.arena.write(0, layout::DATA_OFFSET, &program) && plan.arena.write(0, FILTER_DESCRIPTION, &description);
    if !stored {
        return Err(Errno::E2BIG);
    }
    // SAFETY: the process has a single thread (the caller's promise), so the child may go on with any code.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::from(std::io::Error::last_os_error())),
        0 => {
            // SAFETY: this is the new process, which will never return to Rust code of the sentry.
            unsafe { become_zygote(plan, &image) }
        }
        pid => {
            // SAFETY: moves our child to a group of its own; the child does the same.
            unsafe { libc::setpgid(pid, pid) };
            Ok(pid as u32)
        }
    }
}

/// The stub's image with its configuration filled in.
fn image(plan: &Plan<'_>) -> Result<Vec<u8>, Errno> {
    let mut image = IMAGE.to_vec();
    image.resize(plan.place.text_len as usize, 0);
    for (offset, addend) in symbol::RELOCATIONS {
        let at = *offset as usize;
        let slot = image.get_mut(at..at + 8).ok_or(Errno::ENOEXEC)?;
        slot.copy_from_slice(&(plan.place.text + addend).to_ne_bytes());
    }
    let mut keep: Vec<[u64; 2]> = vec![
        [plan.place.text, plan.place.text + plan.place.text_len],
        [plan.place.arena, plan.place.arena + layout::ARENA_SIZE as u64],
        [plan.place.sandbox, plan.place.sandbox + layout::SANDBOX_SIZE as u64],
    ];
    if let Some((start, end)) = plan.vdso.range {
        keep.push([start, end]);
    }
    keep.sort_unstable();
    let mut ranges = [[0; 2]; 4];
    ranges[..keep.len()].copy_from_slice(&keep);
    let config = Config {
        arena: plan.place.arena,
        sandbox: plan.place.sandbox,
        guest_high: plan.layout.high,
        spin_ticks: plan.spin_ticks,
        clock_gettime: plan.vdso.clock_gettime,
        text: plan.place.text,
        text_len: plan.place.text_len,
        ptrace: plan.ptrace.into(),
        keep: ranges,
        filter_len: plan.filter.len() as u64,
        mseal: 1,
    };
    let at = symbol::STUB_CONFIG as usize;
    let slot = image.get_mut(at..at + size_of::<Config>()).ok_or(Errno::ENOEXEC)?;
    // SAFETY: Config is plain numbers without padding between its u64 fields; `slot` has exactly its size.
    slot.copy_from_slice(unsafe { std::slice::from_raw_parts((&raw const config).cast::<u8>(), size_of::<Config>()) });
    Ok(image)
}

fn die(step: &str) -> ! {
    // SAFETY: async-signal-safe calls only.
    unsafe {
        libc::write(2, b"sentry: zygote: ".as_ptr().cast(), 16);
        libc::write(2, step.as_ptr().cast(), step.len());
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::_exit(71)
    }
}

/// # Safety
/// Only in a freshly forked child: it replaces the whole process.
unsafe fn become_zygote(plan: &Plan<'_>, image: &[u8]) -> ! {
    let place = &plan.place;
    // SAFETY: the whole body is host calls in a process that nobody else uses; the ranges were reserved by the parent.
    unsafe {
        libc::setpgid(0, 0);
        let map = |addr: u64, len: usize, prot: i32, flags: i32, fd: i32| {
            libc::mmap(addr as *mut _, len, prot, flags | libc::MAP_FIXED, fd, 0) as u64 == addr
        };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        if !map(
            place.text,
            place.text_len as usize,
            rw,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        ) {
            die("mapping the text");
        }
        std::ptr::copy_nonoverlapping(image.as_ptr(), place.text as *mut u8, image.len());
        if libc::mprotect(
            place.text as *mut _,
            place.text_len as usize,
            libc::PROT_READ | libc::PROT_EXEC,
        ) != 0
        {
            die("protecting the text");
        }
        if !map(
            place.arena,
            layout::ARENA_SIZE,
            rw,
            libc::MAP_SHARED,
            plan.arena_fd.as_raw_fd(),
        ) {
            die("mapping the arena");
        }
        if !map(
            place.sandbox,
            layout::SANDBOX_SIZE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            plan.sandbox_fd.as_raw_fd(),
        ) {
            die("mapping the sandbox page");
        }

        set_descriptors(plan);
        set_limits(plan);
        set_signals(place);
        forget_the_library();

        let header = place.arena as *const layout::ProcessHeader;
        (*header).control_fd.store(3, std::sync::atomic::Ordering::Relaxed);
        let stack = place.arena + (layout::SLOT_SIZE * 2) as u64 - 64;
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "jmp {entry}",
            stack = in(reg) stack,
            entry = in(reg) place.text + symbol::STUB_ZYGOTE,
            options(noreturn)
        );
    }
}

/// The control socket becomes 3, the doorbells follow; nothing else stays open.
unsafe fn set_descriptors(plan: &Plan<'_>) {
    // SAFETY: see become_zygote.
    unsafe {
        let count = 1 + plan.doorbells.len() as i32;
        // Out of the way first: a target number may be some other source.
        let above = |fd: i32| libc::fcntl(fd, libc::F_DUPFD, 3 + count);
        let mut sources = [-1; 1 + layout::MAX_WORKERS];
        sources[0] = above(plan.control.as_raw_fd());
        for (source, doorbell) in sources[1..].iter_mut().zip(&plan.doorbells) {
            *source = above(doorbell.as_raw_fd());
        }
        for (target, source) in (3..3 + count).zip(sources) {
            if libc::dup3(source, target, 0) < 0 {
                die("placing descriptors");
            }
        }
        let close = |first: i32, last: u32| {
            if libc::syscall(libc::SYS_close_range, first, last, 0) != 0 {
                for fd in first..(last.min(65536) as i32) {
                    libc::close(fd);
                }
            }
        };
        close(0, 2);
        close(3 + count, u32::MAX);
    }
}

unsafe fn set_limits(plan: &Plan<'_>) {
    let limit = |resource, value: u64| {
        let limit = libc::rlimit {
            rlim_cur: value,
            rlim_max: value,
        };
        // SAFETY: sets a limit of this process from a valid structure.
        unsafe { libc::setrlimit(resource, &limit) };
    };
    limit(libc::RLIMIT_NOFILE, 64);
    limit(libc::RLIMIT_CORE, 0);
    // A process could put a file that it got to map in a doorbell's place, and write to it what the sentry does not see.
    // Doorbells are no regular files.
    limit(libc::RLIMIT_FSIZE, 0);
    limit(libc::RLIMIT_MEMLOCK, 0);
    if let Some(count) = plan.max_processes {
        limit(libc::RLIMIT_NPROC, count);
    }
    // SAFETY: process attributes.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, plan.nice);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
}

/// Default dispositions, then the stub's handlers; an empty mask; the alternate stack of slot 0.
unsafe fn set_signals(place: &Placement) {
    /// The host kernel's `struct sigaction`.
    #[repr(C)]
    struct Action {
        handler: u64,
        flags: u64,
        restorer: u64,
        mask: u64,
    }
    const SA_RESTORER: u64 = 0x0400_0000;
    // SAFETY: see become_zygote; the structures are the host kernel's own.
    unsafe {
        let default = Action {
            handler: 0,
            flags: 0,
            restorer: 0,
            mask: 0,
        };
        let set = |signal: i32, action: &Action| {
            libc::syscall(libc::SYS_rt_sigaction, signal, std::ptr::from_ref(action), 0, 8);
        };
        for signal in 1..=64 {
            set(signal, &default);
        }
        let flags = SA_RESTORER | (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER) as u64;
        let handler = |offset: u64| Action {
            handler: place.text + offset,
            flags,
            restorer: place.text + symbol::STUB_RESTORER,
            mask: 0,
        };
        set(libc::SIGSYS, &handler(symbol::STUB_ON_SYSCALL));
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            set(signal, &handler(symbol::STUB_ON_FAULT));
        }
        set(layout::KICK_SIGNAL, &handler(symbol::STUB_ON_KICK));
        let slot = place.arena + layout::SLOT_SIZE as u64;
        let stack = libc::stack_t {
            ss_sp: (slot + layout::STACK_OFFSET as u64) as *mut _,
            ss_flags: 0,
            ss_size: layout::STACK_SIZE,
        };
        if libc::sigaltstack(&stack, std::ptr::null_mut()) != 0 {
            die("setting the signal stack");
        }
        let empty = 0u64;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const empty, 0, 8);
    }
}

/// The C library's registrations with the kernel point into memory that will be gone.
unsafe fn forget_the_library() {
    // SAFETY: see become_zygote; the weak symbols are read only if they exist.
    unsafe {
        libc::syscall(libc::SYS_set_tid_address, 0);
        libc::syscall(libc::SYS_set_robust_list, 0, 24);
        let (offset, thread): (*const isize, isize);
        asm!("mov {}, qword ptr [rip + __rseq_offset@GOTPCREL]", out(reg) offset, options(nostack, preserves_flags));
        asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags));
        if !offset.is_null() {
            const SIGNATURE: u32 = 0x5305_3053;
            for size in [32, 20, 24, 28, 64] {
                if libc::syscall(libc::SYS_rseq, thread + *offset, size, 1, SIGNATURE) == 0 {
                    break;
                }
            }
        }
        asm!("wrfsbase {0}", "wrgsbase {0}", in(reg) 0u64, options(nostack, preserves_flags));
    }
}
