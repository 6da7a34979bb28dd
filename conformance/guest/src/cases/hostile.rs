//! A guest that attacks the stub in its own address space: it finds the mailboxes and the gadget, which no pointer
//! leads to, and does with them whatever it likes. Offsets here follow `sentry/stub/src/layout.rs`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::*;
use crate::{eq, ok, sys};

const SLOT: u64 = 128 * 1024;
const LOW: u64 = 0x7ffc_4000_0000;
const HIGH: u64 = 0x7fff_ffff_f000;
const FORK_FLAGS: u64 = 0x8000 | 17;
/// The calls that the host's filter lets the gadget make, with some arguments at least.
const ALLOWED: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_exit,
    libc::SYS_sched_yield,
    libc::SYS_recvmsg,
    libc::SYS_close,
    libc::SYS_write,
];

type Gadget = extern "sysv64" fn(i64, u64, u64, u64, u64, u64, u64) -> i64;

/// Where the stub's parts are.
#[derive(Clone, Copy, Debug)]
struct Stub {
    arena: u64,
    gadget: Option<Gadget>,
}

impl Stub {
    /// The mailbox of a process's only thread.
    fn slot(&self) -> u64 {
        self.arena + SLOT
    }

    /// A host call from the one place that the filter lets calls come from.
    fn call(&self, nr: i64, args: [u64; 6]) -> i64 {
        let Some(gadget) = self.gadget else {
            skip("the gadget was not found")
        };
        gadget(nr, args[0], args[1], args[2], args[3], args[4], args[5])
    }

    fn word(&self, offset: u64) -> &'static AtomicU32 {
        // SAFETY: within the arena, which is mapped for reading and writing.
        unsafe { &*((self.arena + offset) as *const AtomicU32) }
    }
}

static FAULTS: AtomicU64 = AtomicU64::new(0);

extern "C" fn go_on(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel's frame; the code that faults keeps the address to go on at in rdx.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = context.uc_mcontext.gregs[libc::REG_RDX as usize];
    }
}

/// What is at an address, if anything.
fn probe(address: u64) -> Option<u64> {
    let before = FAULTS.load(Ordering::SeqCst);
    let value: u64;
    // SAFETY: a fault goes on at the label.
    unsafe {
        std::arch::asm!(
            "lea rdx, [rip + 2f]", "xor {v:e}, {v:e}", "mov {v}, [{a}]", "2:",
            a = in(reg) address, v = out(reg) value, out("rdx") _,
        );
    }
    (FAULTS.load(Ordering::SeqCst) == before).then_some(value)
}

/// Looks for the arena (128 MiB of mailboxes) and, by return addresses on its stacks, for the text.
fn find() -> Stub {
    handle(libc::SIGSEGV, go_on, libc::SA_NODEFER);
    handle(libc::SIGBUS, go_on, libc::SA_NODEFER);
    let tid = gettid() as u32;
    let mut at = LOW;
    let mut arena = None;
    while at < HIGH && arena.is_none() {
        if probe(at).is_some() {
            // Down to the first mailbox that names this thread.
            let mut slot = at & !(SLOT - 1);
            for _ in 0..1100 {
                if probe(slot + 260).is_none() {
                    break;
                }
                // Thread and process id side by side, and a request number.
                let ids = probe(slot + 260).unwrap_or_default();
                if ids as u32 == tid && (ids >> 32) as u32 == getpid() as u32 {
                    arena = Some(slot - SLOT);
                    break;
                }
                slot -= SLOT;
            }
        }
        at += 64 << 20;
    }
    let Some(arena) = arena else {
        skip("the mailboxes were not found")
    };
    let mut gadget = None;
    let slot = arena + SLOT;
    let stack = (slot + 4096 + 65536..slot + SLOT).step_by(8);
    for address in stack {
        let value = probe(address).unwrap_or_default();
        if !(LOW..HIGH).contains(&value) || (arena..arena + 1025 * SLOT).contains(&value) {
            continue;
        }
        for page in 0..4 {
            let start = (value & !4095).wrapping_sub(page * 4096);
            if probe(start) == Some(0x8948_f789_48f8_8948) {
                // SAFETY: the bytes are those of the gadget.
                gadget = Some(unsafe { std::mem::transmute::<u64, Gadget>(start) });
            }
        }
        if gadget.is_some() {
            break;
        }
    }
    Stub { arena, gadget }
}

/// Waits for a child of an attack. It may end in any way, or hang by its own doing: then SIGKILL must end it.
fn reap_any(pid: i32, what: &str, patience_ms: u64) -> i32 {
    let mut status = 0i32;
    for (ms, signal) in [(patience_ms, libc::SIGKILL), (10_000, 0)] {
        let end = now() + ms * 1_000_000;
        while now() < end {
            if sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WNOHANG, 0) == i64::from(pid) {
                return status;
            }
            sleep_ms(2);
        }
        kill(pid, signal);
    }
    fail(file!(), line!(), format_args!("{what}: SIGKILL does not end the child"));
}

/// `guest tool gadget NAME`: one attack by way of the gadget.
pub fn gadget(args: &[&str]) {
    let stub = find();
    match args.first().copied().unwrap_or_default() {
        "find" => println!("found, gadget {}", stub.gadget.is_some()),
        "every_number" => every_number(stub),
        "refused_arguments" => refused_arguments(stub),
        "clones" => clones(stub, 500),
        // More than the stubs' RLIMIT_NPROC.
        "clones_to_the_limit" => clones(stub, 20_000),
        "unmaps" => unmaps(stub),
        "never_receives" => never_receives(stub),
        "masks_kicks" => masks_kicks(stub),
        "closes" => closes(stub),
        other => {
            eprintln!("no attack is called {other}");
            exit(2);
        }
    }
    println!("survived");
}

/// Every call that is not allowed must be answered by the sandbox's kernel: as if it were made from guest code.
fn every_number(stub: Stub) {
    eq!(stub.call(libc::SYS_getpid, [0; 6]), i64::from(getpid()));
    eq!(stub.call(libc::SYS_getppid, [0; 6]), sys!(libc::SYS_getppid));
    let mut uts: [libc::utsname; 2] = [zeroed(); 2];
    sys!(libc::SYS_uname, &mut uts[0] as *mut _);
    stub.call(libc::SYS_uname, [&mut uts[1] as *mut _ as u64, 0, 0, 0, 0, 0]);
    eq!(uts[0].nodename, uts[1].nodename);
    // pause, vfork, setsid and umask have no result to compare, or make one.
    let leave_out = [
        libc::SYS_pause,
        libc::SYS_vfork,
        libc::SYS_setsid,
        libc::SYS_umask,
        libc::SYS_exit_group,
        libc::SYS_fork,
    ];
    let words = shared_words();
    for args in [
        [u64::MAX; 6],
        [BAD, BAD, BAD, BAD, BAD, BAD],
        [0, WILD, 1, WILD, WILD, WILD],
    ] {
        for nr in (0..600).chain([0x4000_0000 + 39, 0x4000_0000 + 520, -1]) {
            if ALLOWED.contains(&nr) || leave_out.contains(&nr) {
                continue;
            }
            let pid = child(|| {
                sys!(libc::SYS_alarm, 5);
                words[0].store(1, Ordering::SeqCst);
                let plain = call(nr, &args);
                words[0].store(2, Ordering::SeqCst);
                let gadget = stub.call(nr, args);
                words[0].store(3, Ordering::SeqCst);
                if (plain < 0 || gadget < 0) && plain != gadget {
                    fail(
                        file!(),
                        line!(),
                        format_args!(
                            "call {nr}: {} from the guest, {} from the gadget",
                            Code(plain),
                            Code(gadget)
                        ),
                    );
                }
            });
            let status = reap_any(pid, "every number", 10_000);
            let reached = words[0].load(Ordering::SeqCst);
            if status != 0 && reached != 1 {
                fail(
                    file!(),
                    line!(),
                    format_args!("call {nr} {args:x?}: wait status {status:#x} after step {reached}"),
                );
            }
        }
    }
    let status = reap_any(
        child(|| exit(stub.call(libc::SYS_exit_group, [9, 0, 0, 0, 0, 0]) as i32)),
        "exit_group",
        5000,
    );
    eq!(libc::WEXITSTATUS(status), 9);
}

/// Allowed calls with arguments that are not.
fn refused_arguments(stub: Stub) {
    let page = map(PAGE, libc::PROT_READ | libc::PROT_WRITE) as u64;
    in_child(|| {
        // clone with other flag words: the guest kernel's own errors or its own children.
        for flags in [
            libc::CLONE_NEWUSER | libc::SIGCHLD,
            libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::SIGCHLD,
            libc::CLONE_THREAD,
        ] {
            let r = stub.call(libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]);
            if r == 0 {
                exit(0);
            }
            if r > 0 {
                eq!(sys!(libc::SYS_wait4, r, 0, libc::__WALL, 0), r);
            }
        }
    });
    in_child(|| {
        // A shared anonymous mapping is not the host's to give: the kernel inside makes it.
        let shared = stub.call(
            libc::SYS_mmap,
            [
                0,
                PAGE as u64,
                3,
                (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64,
                u64::MAX,
                0,
            ],
        );
        if shared > 0 {
            // SAFETY: mapped just now.
            unsafe { (shared as *mut u8).write_volatile(1) };
        }
    });
    // futex commands that the filter refuses are answered as from guest code.
    for op in [libc::FUTEX_FD, 99, libc::FUTEX_UNLOCK_PI] {
        in_child(|| {
            let args = [page, op as u64, 0, 0, 0, 0];
            eq!(stub.call(libc::SYS_futex, args), call(libc::SYS_futex, &args));
        });
    }
    in_child(|| {
        // A write of other lengths or to other descriptors is the guest's own write.
        let (r, w) = pipe();
        eq!(
            stub.call(libc::SYS_write, [w as u64, c("through").as_ptr() as u64, 7, 0, 0, 0]),
            7
        );
        eq!(read(r, 10), b"through");
        eq!(sys!(libc::SYS_dup2, w, 200), 200);
        eq!(
            stub.call(libc::SYS_write, [200, c("8 bytes!").as_ptr() as u64, 8, 0, 0, 0]),
            8
        );
        eq!(read(r, 10), b"8 bytes!");
    });
    for advice in [5u64, 9, 12, 100, 101, 102, u64::MAX] {
        in_child(|| {
            let args = [page, PAGE as u64, advice, 0, 0, 0];
            eq!(
                stub.call(libc::SYS_madvise, args) < 0,
                call(libc::SYS_madvise, &args) < 0
            );
        });
    }
    // The host's descriptors: none of them may be read or mapped as a file.
    let pid = child(|| {
        for fd in 0..64u64 {
            let mut buf = [0u8; 64];
            let r = stub.call(libc::SYS_mmap, [0, PAGE as u64, 1, libc::MAP_PRIVATE as u64, fd, 0]);
            if r > 0 {
                println!("descriptor {fd} of the stub can be mapped");
            }
            stub.call(libc::SYS_write, [fd.min(19), buf.as_mut_ptr() as u64, 8, 0, 0, 0]);
        }
        for _ in 0..10 {
            stub.call(libc::SYS_write, [4, 0, 8, 0, 0, 0]);
            stub.call(libc::SYS_write, [4, &u64::MAX as *const u64 as u64, 8, 0, 0, 0]);
        }
    });
    reap_any(pid, "writes to the stub's descriptors", 5000);
}

/// Host children that nobody ordered.
fn clones(stub: Stub, count: u32) {
    let words = shared_words();
    let honest = Honest::start(2);
    let pid = child(|| {
        for _ in 0..count {
            let r = stub.call(libc::SYS_clone, [FORK_FLAGS, 0, 0, 0, 0, 0]);
            if r == 0 {
                // The stray: it stays, and would stay for ever.
                loop {
                    stub.call(
                        libc::SYS_futex,
                        [words[2].as_ptr() as u64, libc::FUTEX_WAIT as u64, 0, 0, 0, 0],
                    );
                }
            }
            if r < 0 {
                words[1].store(-r as u32, Ordering::SeqCst);
                break;
            }
            words[0].fetch_add(1, Ordering::SeqCst);
        }
        loop {
            sys!(libc::SYS_pause);
        }
    });
    let end = now() + 120_000_000_000;
    let mut ended = false;
    let made = || words[0].load(Ordering::SeqCst);
    while now() < end && !ended && made() < count && words[1].load(Ordering::SeqCst) == 0 {
        ended = sys!(libc::SYS_wait4, pid, 0, libc::WNOHANG, 0) == i64::from(pid);
        sleep_ms(10);
    }
    eprintln!(
        "{} made before errno {}, ended {ended}",
        made(),
        words[1].load(Ordering::SeqCst)
    );
    if !ended {
        kill(pid, libc::SIGKILL);
        wait(pid);
    }
    if made() >= 20_000 {
        fail(file!(), line!(), format_args!("{count} processes that nobody ordered"));
    }
    honest.finish();
}

/// The stub's own memory goes.
fn unmaps(stub: Stub) {
    let honest = Honest::start(2);
    let slot = stub.slot();
    let attacks: &[(&str, i64, [u64; 6])] = &[
        ("the mailbox", libc::SYS_munmap, [slot, SLOT, 0, 0, 0, 0]),
        ("its stack", libc::SYS_munmap, [slot + SLOT / 2, SLOT / 2, 0, 0, 0, 0]),
        ("the data area", libc::SYS_munmap, [slot + 4096, 65536, 0, 0, 0, 0]),
        ("the header", libc::SYS_munmap, [stub.arena, SLOT, 0, 0, 0, 0]),
        ("the arena", libc::SYS_munmap, [stub.arena, 1025 * SLOT, 0, 0, 0, 0]),
        ("everything", libc::SYS_munmap, [0, 0x7fff_ffff_f000, 0, 0, 0, 0]),
        ("the guest", libc::SYS_munmap, [0, LOW, 0, 0, 0, 0]),
        ("the stub", libc::SYS_munmap, [LOW, HIGH - LOW, 0, 0, 0, 0]),
        ("no access", libc::SYS_mprotect, [stub.arena, 1025 * SLOT, 0, 0, 0, 0]),
        ("read-only", libc::SYS_mprotect, [stub.arena, 1025 * SLOT, 1, 0, 0, 0]),
        ("anonymous instead", libc::SYS_mmap, [slot, SLOT, 3, 0x32, u64::MAX, 0]),
        ("moved", libc::SYS_mremap, [slot, SLOT, SLOT, 3, 0x1000_0000, 0]),
        ("discarded", libc::SYS_madvise, [slot, SLOT, 4, 0, 0, 0]),
        ("a wild frame", libc::SYS_rt_sigreturn, [0; 6]),
    ];
    for (what, nr, args) in attacks {
        let pid = child(|| {
            stub.call(*nr, *args);
            for _ in 0..50 {
                sys!(libc::SYS_getppid);
                sys!(libc::SYS_write, 99, what.as_ptr(), what.len());
            }
            sys!(libc::SYS_fork);
            exit(0);
        });
        let status = reap_any(pid, what, 1000);
        eprintln!("{what}: wait status {status:#x}");
    }
    honest.finish();
}

/// The control socket and the doorbell go.
fn closes(stub: Stub) {
    let honest = Honest::start(2);
    for fds in [3..4, 4..20, 0..64u64] {
        let pid = child(|| {
            fds.clone().for_each(|fd| {
                stub.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            });
            // Calls that need a descriptor or the doorbell.
            let fd = open("/tmp/closes", libc::O_CREAT | libc::O_RDWR, 0o600);
            sys!(libc::SYS_ftruncate, fd, PAGE);
            sys!(libc::SYS_mmap, 0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            let grandchild = sys!(libc::SYS_fork);
            if grandchild == 0 {
                exit(0);
            }
            sys!(libc::SYS_wait4, -1, 0, 0, 0);
            sleep_ms(20);
            exit(0);
        });
        let status = reap_any(pid, "closes", 3000);
        eprintln!("closed {fds:?}: wait status {status:#x}");
    }
    honest.finish();
}

/// Forges a request that is answered with a descriptor, and never takes it.
fn never_receives(stub: Stub) {
    let honest = Honest::start(2);
    let forge = |nr: u64, args: [u64; 6]| {
        let slot = SLOT;
        let base = (stub.arena + slot) as *const AtomicU64;
        // SAFETY: the head of our mailbox: nr at 8, the arguments behind it.
        unsafe {
            (*base.add(1)).store(nr, Ordering::SeqCst);
            for (i, arg) in args.iter().enumerate() {
                (*base.add(2 + i)).store(*arg, Ordering::SeqCst);
            }
        }
        stub.word(slot + 4).store(1, Ordering::SeqCst);
        stub.word(slot).fetch_add(1, Ordering::SeqCst);
        for worker in 0..4 {
            stub.call(libc::SYS_write, [4 + worker, &1u64 as *const u64 as u64, 8, 0, 0, 0]);
        }
    };
    let fd = new_file("/tmp/never", &[7; PAGE]) as u64;
    let many = [
        (
            libc::SYS_mmap as u64,
            [0, PAGE as u64, 1, libc::MAP_SHARED as u64, fd, 0],
        ),
        (libc::SYS_fork as u64, [0; 6]),
        (libc::SYS_clone as u64, [17, 0, 0, 0, 0, 0]),
    ];
    for (nr, args) in many {
        let pid = child(|| {
            forge(nr, args);
            let end = now() + 15_000_000_000;
            // Not even the clock may be asked by a call now: the mailbox is in use.
            let mut spins = 0u64;
            loop {
                spins += 1;
                if spins > 60_000_000_000 || end == 0 {
                    exit(1);
                }
                std::hint::spin_loop();
            }
        });
        let start = now();
        let status = reap_any(pid, "never receives", 20_000);
        if now() - start > 15_000_000_000 {
            fail(
                file!(),
                line!(),
                format_args!("call {nr}: a stub that never takes its descriptors lives on"),
            );
        }
        eprintln!("call {nr}: wait status {status:#x}");
    }
    honest.finish();
}

/// Masks every signal of the host, the kick too, by a frame of its own for the host's rt_sigreturn.
fn mask_all(stub: Stub) {
    let Some(gadget) = stub.gadget else {
        skip("the gadget was not found")
    };
    let mut frame: libc::ucontext_t = zeroed();
    frame.uc_stack.ss_sp = (stub.slot() + 4096 + 65536) as *mut libc::c_void;
    frame.uc_stack.ss_size = (SLOT - 4096 - 65536) as usize;
    frame.uc_mcontext.gregs[libc::REG_CSGSFS as usize] = 0x002b_0000_0000_0033;
    frame.uc_mcontext.gregs[libc::REG_EFL as usize] = 0x202;
    sys_fill(&mut frame.uc_sigmask);
    let registers = frame.uc_mcontext.gregs.as_mut_ptr();
    // SAFETY: the frame says to go on at the label, with the stack and the registers that the compiler needs; all
    // others are lost. The host takes the frame from the stack pointer.
    unsafe {
        std::arch::asm!(
            "lea rcx, [rip + 2f]", "mov [rdx + 16*8], rcx",
            "mov [rdx + 15*8], rsp", "mov [rdx + 11*8], rbx", "mov [rdx + 10*8], rbp",
            "mov rsp, rsi", "mov edi, 15", "jmp rax", "2:",
            in("rax") gadget, in("rdx") registers, in("rsi") &raw mut frame,
            lateout("rax") _, lateout("rdx") _, lateout("rsi") _, out("rcx") _, out("rdi") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

fn sys_fill(set: &mut libc::sigset_t) {
    // SAFETY: a valid set.
    unsafe { libc::sigfillset(set) };
}

extern "C" fn ignore(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Does not come back from a kick: masks its signal and computes, sleeps, or stays in host calls; alone and beside a
/// thread of its own that works.
fn masks_kicks(stub: Stub) {
    if stub.gadget.is_none() {
        skip("the gadget was not found");
    }
    let honest = Honest::start(2);
    let words = shared_words();
    for (what, beside) in [
        ("computes", false),
        ("computes", true),
        ("sleeps", false),
        ("calls", false),
        ("calls", true),
    ] {
        words[0].store(0, Ordering::SeqCst);
        words[1].store(0, Ordering::SeqCst);
        let pid = child(|| {
            handle(libc::SIGUSR1, ignore, 0);
            if beside {
                std::thread::spawn(|| {
                    loop {
                        words[1].fetch_add(1, Ordering::SeqCst);
                        sys!(libc::SYS_getppid);
                    }
                });
            }
            mask_all(stub);
            loop {
                words[0].fetch_add(1, Ordering::SeqCst);
                match what {
                    "sleeps" => {
                        let word = words[2].as_ptr() as u64;
                        stub.call(libc::SYS_futex, [word, libc::FUTEX_WAIT as u64, 0, 0, 0, 0]);
                    }
                    "calls" => {
                        stub.call(libc::SYS_sched_yield, [0; 6]);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        });
        until("it has masked the kick", || words[0].load(Ordering::SeqCst) != 0);
        let start = now();
        kill(pid, libc::SIGUSR1);
        let status = reap_any(pid, what, 60_000);
        let took = (now() - start) / 1_000_000;
        if took >= 60_000 {
            fail(
                file!(),
                line!(),
                format_args!("a process that masks kicks and {what} lives on"),
            );
        }
        eq!(libc::WIFSIGNALED(status), true);
        eprintln!("{what}, others {beside}: wait status {status:#x} after {took} ms");
    }
    eq!(words[2].load(Ordering::SeqCst), 0);
    honest.finish();
}

/// Processes that work properly beside an attack.
struct Honest(Vec<i32>);

impl Honest {
    fn start(count: usize) -> Honest {
        Honest((0..count).map(|i| child(|| honest_work(i as u64, 200))).collect())
    }

    fn finish(self) {
        for pid in self.0 {
            let status = reap_any(pid, "an honest process", 120_000);
            eq!(status, 0);
        }
    }
}

fn honest_work(seed: u64, rounds: u64) {
    let path = format!("/tmp/honest-{}-{seed}", getpid());
    let ((r1, w1), (r2, w2)) = (pipe(), pipe());
    let echo = child(|| {
        close(w1);
        loop {
            let part = read(r1, 64);
            if part.is_empty() {
                exit(0);
            }
            write(w2, &part);
        }
    });
    close(r1);
    for round in 0..rounds {
        let text = format!("round {round} of {seed}");
        eq!(write(w1, text.as_bytes()), text.len() as i64);
        eq!(String::from_utf8_lossy(&read(r2, 64)), text);
        file(&path, text.as_bytes());
        eq!(String::from_utf8_lossy(&slurp(&path)), text);
        if round % 20 == 0 {
            let sum = std::thread::spawn(move || (0..1000u64).map(|n| n ^ round).sum::<u64>());
            eq!(
                sum.join().expect("joined"),
                (0..1000u64).map(|n| n ^ round).sum::<u64>()
            );
            in_child(|| eq!(read(new_file(&format!("{path}-child"), b"x"), 1), b"x"));
            let p = map(8 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
            ok!(sys!(libc::SYS_munmap, p, 8 * PAGE));
        }
    }
    close(w1);
    reap(echo);
}

/// `guest tool work ROUNDS`: honest work alone.
pub fn work(args: &[&str]) {
    let rounds = args.first().and_then(|a| a.parse().ok()).unwrap_or(200);
    honest_work(0, rounds);
    println!("survived");
}

/// `guest tool scribble REQUESTS`: random bytes over the mailboxes of one process after the other, with requests all
/// the while, until there have been so many; beside it, honest processes.
pub fn scribble(args: &[&str]) {
    let requests: u64 = args.first().and_then(|a| a.parse().ok()).unwrap_or(100_000);
    let stub = find();
    let words = shared_words();
    let honest = Honest::start(3);
    let mut seed = now() | 1;
    let mut children = 0u64;
    let end = now() + 240_000_000_000;
    while u64::from(words[0].load(Ordering::SeqCst)) < requests && now() < end {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mode = seed >> 33;
        let pid = child(|| attack(stub, words, seed, mode));
        // A child whose mailbox is broken may hang: that is its own loss, and ours to end.
        let limit = now() + 500_000_000;
        let mut status = 0i32;
        loop {
            if sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WNOHANG, 0) == i64::from(pid) {
                break;
            }
            if now() > limit {
                kill(pid, libc::SIGKILL);
                reap_any(pid, "a killed attacker", 5000);
                break;
            }
            sys!(libc::SYS_sched_yield);
        }
        children += 1;
        if children.is_multiple_of(50) {
            // New honest processes still start and work.
            in_child(|| honest_work(children, 3));
        }
    }
    eprintln!("{} requests by {children} processes", words[0].load(Ordering::SeqCst));
    honest.finish();
    println!("survived");
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// One attacker: a thread that scribbles and one that makes requests.
fn attack(stub: Stub, words: &'static [AtomicU32; 1024], seed: u64, mode: u64) {
    let flood = move || {
        let mut seed = seed;
        loop {
            // Which part of the arena: header, heads of slots, operations, data, stacks, or all.
            let (from, len) = match mode % 7 {
                0 => (0, SLOT),
                1 => (SLOT, 512),
                2 => (SLOT + 512, 3584),
                3 => (SLOT + 4096, 65536),
                4 => (SLOT + 4096 + 65536, SLOT - 4096 - 65536),
                5 => (2 * SLOT, SLOT),
                _ => (0, 4 * SLOT),
            };
            for _ in 0..64 {
                let offset = (from + random(&mut seed) % len) & !3;
                let value = match random(&mut seed) % 8 {
                    0 => 0,
                    1 => u32::MAX,
                    2 | 3 => (random(&mut seed) % 16) as u32,
                    4 => (random(&mut seed) % 4096) as u32,
                    5 => stub.word(offset).load(Ordering::Relaxed).wrapping_add(1),
                    _ => random(&mut seed) as u32,
                };
                stub.word(offset).store(value, Ordering::Relaxed);
            }
            if (mode / 7).is_multiple_of(4) && stub.gadget.is_some() {
                // And ring, so that somebody looks.
                stub.call(
                    libc::SYS_write,
                    [4 + random(&mut seed) % 4, &1u64 as *const u64 as u64, 8, 0, 0, 0],
                );
                words[0].fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::spawn(flood);
    let mut seed = seed ^ 0x5555;
    for n in 0..5000u64 {
        let nr = match random(&mut seed) % 8 {
            0 => libc::SYS_uname,
            1 => libc::SYS_getcwd,
            2 => libc::SYS_pipe,
            3 => libc::SYS_mmap,
            4 => libc::SYS_stat,
            5 => libc::SYS_sched_getaffinity,
            6 => libc::SYS_rt_sigprocmask,
            _ => libc::SYS_getppid,
        };
        let buffer = map(PAGE, 3) as u64;
        call(nr, &[buffer, buffer, 128, buffer, buffer, 0]);
        words[0].fetch_add(1, Ordering::SeqCst);
        if n % 1000 == 999 {
            sys!(libc::SYS_fork);
        }
    }
    exit(0);
}
