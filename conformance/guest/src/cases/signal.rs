//! Sending, blocking, queueing and handling signals.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("signal": handler_runs, siginfo_of_kill, sigaction_errors, kill_errors, kill_groups, blocked_stays_pending,
    standard_signals_merge, real_time_signals_queue, queue_value, tgkill_to_a_thread, directed_to_process_finds_a_thread,
    nested_and_nodefer, mask_during_handler, resethand, sigaltstack_is_used, sigaltstack_errors, suspend_swaps_the_mask,
    timedwait, segv_info, segv_blocked_kills, fpe_and_ill, default_actions, stop_stops_all_threads, registers_survive,
    vector_state_survives, handler_may_change_registers, no_signal_is_lost, sigpipe, zero_probes, sigprocmask_errors,
    cannot_catch_kill, sigreturn_restores_mask, siglongjmp_out, pause_returns_eintr, fork_clears_pending,
    queue_from_wrong_code, frames_on_a_small_stack);

fn handler_runs() {
    catch(libc::SIGUSR1, 0);
    ok!(kill(getpid(), libc::SIGUSR1));
    eq!(seen(), 1);
    eq!(last(0), i64::from(libc::SIGUSR1));
}

fn siginfo_of_kill() {
    catch(libc::SIGUSR2, 0);
    let parent = getpid();
    let pid = child(|| {
        ok!(kill(parent, libc::SIGUSR2));
    });
    until("the signal", || seen() == 1);
    eq!((last(1), last(2)), (i64::from(libc::SI_USER), i64::from(pid)));
    reap(pid);
    ok!(sys!(libc::SYS_tkill, gettid(), libc::SIGUSR2));
    eq!((last(1), last(2)), (i64::from(libc::SI_TKILL), i64::from(parent)));
}

fn sigaction_errors() {
    let act = [0u64; 4];
    let call = |sig: i32, act: u64, old: u64, size: u64| sys!(libc::SYS_rt_sigaction, sig, act, old, size);
    let p = act.as_ptr() as u64;
    err!(call(0, p, 0, 8), libc::EINVAL);
    err!(call(65, p, 0, 8), libc::EINVAL);
    err!(call(libc::SIGKILL, p, 0, 8), libc::EINVAL);
    err!(call(libc::SIGSTOP, p, 0, 8), libc::EINVAL);
    err!(call(libc::SIGUSR1, p, 0, 4), libc::EINVAL);
    err!(call(libc::SIGUSR1, BAD, 0, 8), libc::EFAULT);
    err!(call(libc::SIGUSR1, 0, BAD, 8), libc::EFAULT);
    eq!(call(libc::SIGKILL, 0, p, 8), 0);
}

fn kill_errors() {
    err!(kill(getpid(), 65), libc::EINVAL);
    err!(kill(getpid(), -1), libc::EINVAL);
    err!(kill(0x3fff_ffff, libc::SIGTERM), libc::ESRCH);
    err!(kill(-0x3fff_ffff, libc::SIGTERM), libc::ESRCH);
    err!(sys!(libc::SYS_tgkill, getpid(), 0x3fff_ffff, 0), libc::ESRCH);
    err!(sys!(libc::SYS_tgkill, -1, gettid(), 0), libc::EINVAL);
    err!(sys!(libc::SYS_tgkill, getpid(), 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_tkill, -5, 0), libc::EINVAL);
}

fn kill_groups() {
    let pids: Vec<i32> = (0..3).map(|_| child(|| sleep_ms(60_000))).collect();
    for &pid in &pids {
        ok!(sys!(libc::SYS_setpgid, pid, pids[0]));
    }
    ok!(kill(-pids[0], libc::SIGTERM));
    for pid in pids {
        eq!(libc::WTERMSIG(wait(pid)), libc::SIGTERM);
    }
}

fn blocked_stays_pending() {
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    eq!(seen(), 0);
    eq!(pending(), bit(libc::SIGUSR1));
    sigmask(libc::SIG_UNBLOCK, bit(libc::SIGUSR1));
    eq!(seen(), 1);
    eq!(pending(), 0);
    // An ignored signal is not kept.
    disposition(libc::SIGUSR2, libc::SIG_IGN);
    kill(getpid(), libc::SIGUSR2);
    eq!(pending(), 0);
}

fn standard_signals_merge() {
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    for _ in 0..5 {
        kill(getpid(), libc::SIGUSR1);
    }
    sigmask(libc::SIG_SETMASK, 0);
    eq!(seen(), 1);
}

static ORDER: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

extern "C" fn note_value(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let i = SEEN.fetch_add(1, Ordering::SeqCst) as usize;
    // SAFETY: a queued signal's siginfo.
    ORDER[i % 64].store(unsafe { (*info).si_value().sival_ptr } as u64, Ordering::SeqCst);
}

fn queue(pid: i32, signal: i32, value: usize) -> i64 {
    #[repr(C)]
    struct Info {
        signo: i32,
        errno: i32,
        code: i32,
        pad: i32,
        pid: i32,
        uid: u32,
        value: usize,
        rest: [u8; 96],
    }
    let info = Info { signo: signal, errno: 0, code: libc::SI_QUEUE, pad: 0, pid: getpid(), uid: 0, value, rest: [0; 96] };
    sys!(libc::SYS_rt_sigqueueinfo, pid, signal, &info as *const _)
}

fn real_time_signals_queue() {
    let signal = 40;
    handle(signal, note_value, 0);
    sigmask(libc::SIG_BLOCK, bit(signal));
    for i in 0..20 {
        ok!(queue(getpid(), signal, 100 + i));
    }
    sigmask(libc::SIG_SETMASK, 0);
    eq!(seen(), 20);
    for (i, value) in ORDER.iter().take(20).enumerate() {
        eq!(value.load(Ordering::SeqCst), 100 + i as u64);
    }
    // Lower numbers come first.
    handle(41, note_value, 0);
    sigmask(libc::SIG_BLOCK, bit(40) | bit(41));
    ok!(queue(getpid(), 41, 1));
    ok!(queue(getpid(), 40, 2));
    sigmask(libc::SIG_SETMASK, 0);
    // The handler of the last one delivered runs first, so the lower signal's frame is below.
    let (a, b) = (ORDER[20].load(Ordering::SeqCst), ORDER[21].load(Ordering::SeqCst));
    check!((a, b) == (1, 2), "{a} {b}");
}

fn queue_value() {
    catch(libc::SIGUSR1, 0);
    ok!(queue(getpid(), libc::SIGUSR1, 0x1234_5678_9abc));
    eq!((seen(), last(1), last(3)), (1, i64::from(libc::SI_QUEUE), 0x1234_5678_9abc));
}

fn queue_from_wrong_code() {
    // Another process may not be sent a code that only the kernel uses.
    let pid = child(|| sleep_ms(60_000));
    let mut info = [0i32; 32];
    info[0] = libc::SIGUSR1;
    info[2] = libc::SI_USER;
    err!(sys!(libc::SYS_rt_sigqueueinfo, pid, libc::SIGUSR1, info.as_ptr()), libc::EPERM);
    err!(sys!(libc::SYS_rt_sigqueueinfo, pid, libc::SIGUSR1, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_rt_tgsigqueueinfo, pid, 0, libc::SIGUSR1, info.as_ptr()), libc::EINVAL);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

static WHO: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_thread(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    WHO.store(gettid(), Ordering::SeqCst);
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn tgkill_to_a_thread() {
    handle(libc::SIGUSR1, note_thread, 0);
    let (tx, rx) = std::sync::mpsc::channel();
    let (r, w) = pipe();
    let thread = std::thread::spawn(move || {
        tx.send(gettid()).expect("sent");
        let mut buf = [0u8; 1];
        while sys!(libc::SYS_read, r, buf.as_mut_ptr(), 1) != 1 {}
    });
    let tid = rx.recv().expect("received");
    ok!(sys!(libc::SYS_tgkill, getpid(), tid, libc::SIGUSR1));
    until("handled", || seen() == 1);
    eq!(WHO.load(Ordering::SeqCst), tid);
    err!(sys!(libc::SYS_tgkill, tid, tid, libc::SIGUSR1), libc::ESRCH);
    write(w, b"x");
    thread.join().expect("joined");
}

fn directed_to_process_finds_a_thread() {
    // The main thread blocks it, so another one must take it, though it is asleep.
    handle(libc::SIGUSR1, note_thread, libc::SA_RESTART);
    let (tx, rx) = std::sync::mpsc::channel();
    let (r, w) = pipe();
    let thread = std::thread::spawn(move || {
        tx.send(gettid()).expect("sent");
        read(r, 1);
    });
    let tid = rx.recv().expect("received");
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    until("handled", || seen() == 1);
    eq!(WHO.load(Ordering::SeqCst), tid);
    write(w, b"x");
    thread.join().expect("joined");
}

static DEPTH: AtomicI32 = AtomicI32::new(0);
static DEEPEST: AtomicI32 = AtomicI32::new(0);

extern "C" fn nest(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let depth = DEPTH.fetch_add(1, Ordering::SeqCst) + 1;
    DEEPEST.fetch_max(depth, Ordering::SeqCst);
    if SEEN.fetch_add(1, Ordering::SeqCst) < 2 {
        sys!(libc::SYS_tgkill, getpid(), gettid(), signal);
    }
    DEPTH.fetch_sub(1, Ordering::SeqCst);
}

fn nested_and_nodefer() {
    handle(libc::SIGUSR1, nest, 0);
    kill(getpid(), libc::SIGUSR1);
    eq!((seen(), DEEPEST.load(Ordering::SeqCst)), (3, 1));
    SEEN.store(0, Ordering::SeqCst);
    handle(libc::SIGUSR1, nest, libc::SA_NODEFER);
    kill(getpid(), libc::SIGUSR1);
    eq!((seen(), DEEPEST.load(Ordering::SeqCst)), (3, 3));
}

extern "C" fn note_mask(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    ORDER[0].store(sigmask(libc::SIG_BLOCK, 0), Ordering::SeqCst);
}

fn mask_during_handler() {
    let mut action: libc::sigaction = zeroed();
    action.sa_sigaction = note_mask as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a valid set and action.
    unsafe {
        libc::sigaddset(&mut action.sa_mask, libc::SIGHUP);
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    sigmask(libc::SIG_BLOCK, bit(libc::SIGWINCH));
    kill(getpid(), libc::SIGUSR1);
    eq!(ORDER[0].load(Ordering::SeqCst), bit(libc::SIGUSR1) | bit(libc::SIGHUP) | bit(libc::SIGWINCH));
    eq!(sigmask(libc::SIG_BLOCK, 0), bit(libc::SIGWINCH));
}

fn resethand() {
    catch(libc::SIGUSR1, libc::SA_RESETHAND);
    kill(getpid(), libc::SIGUSR1);
    eq!(seen(), 1);
    let pid = child(|| {
        kill(getpid(), libc::SIGUSR1);
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGUSR1);
}

extern "C" fn note_stack(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let here = 0u8;
    ORDER[0].store(&here as *const u8 as u64, Ordering::SeqCst);
    let mut ss: libc::stack_t = zeroed();
    ok!(sys!(libc::SYS_sigaltstack, 0, &mut ss as *mut _));
    ORDER[1].store(ss.ss_flags as u64, Ordering::SeqCst);
    let new = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    ORDER[2].store(-sys!(libc::SYS_sigaltstack, &new as *const _, 0) as u64, Ordering::SeqCst);
}

fn sigaltstack_is_used() {
    let size = 64 * 1024;
    let stack = map(size, libc::PROT_READ | libc::PROT_WRITE);
    let ss = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: size };
    ok!(sys!(libc::SYS_sigaltstack, &ss as *const _, 0));
    let inside = || {
        let at = ORDER[0].load(Ordering::SeqCst);
        at >= stack as u64 && at < stack as u64 + size as u64
    };
    handle(libc::SIGUSR1, note_stack, 0);
    kill(getpid(), libc::SIGUSR1);
    check!(!inside());
    handle(libc::SIGUSR1, note_stack, libc::SA_ONSTACK);
    // That handler disabled the stack while not on it: set it again.
    ok!(sys!(libc::SYS_sigaltstack, &ss as *const _, 0));
    kill(getpid(), libc::SIGUSR1);
    check!(inside());
    eq!(ORDER[1].load(Ordering::SeqCst), libc::SS_ONSTACK as u64);
    eq!(ORDER[2].load(Ordering::SeqCst), libc::EPERM as u64);
    let mut old: libc::stack_t = zeroed();
    ok!(sys!(libc::SYS_sigaltstack, 0, &mut old as *mut _));
    eq!((old.ss_sp as u64, old.ss_flags, old.ss_size), (stack as u64, 0, size));
    in_child(|| {
        let mut old: libc::stack_t = zeroed();
        ok!(sys!(libc::SYS_sigaltstack, 0, &mut old as *mut _));
        eq!(old.ss_size, size);
    });
}

fn sigaltstack_errors() {
    let ss = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 100 };
    err!(sys!(libc::SYS_sigaltstack, &ss as *const _, 0), libc::ENOMEM);
    let ss = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 77, ss_size: 100_000 };
    err!(sys!(libc::SYS_sigaltstack, &ss as *const _, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sigaltstack, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_sigaltstack, 0, BAD), libc::EFAULT);
}

fn suspend_swaps_the_mask() {
    catch(libc::SIGUSR1, 0);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    let none = 0u64;
    err!(sys!(libc::SYS_rt_sigsuspend, &none as *const u64, 8), libc::EINTR);
    eq!(seen(), 1);
    eq!(sigmask(libc::SIG_BLOCK, 0), bit(libc::SIGUSR1));
    err!(sys!(libc::SYS_rt_sigsuspend, &none as *const u64, 4), libc::EINVAL);
    err!(sys!(libc::SYS_rt_sigsuspend, BAD, 8), libc::EFAULT);
}

fn timedwait() {
    let set = bit(libc::SIGUSR1) | bit(45);
    sigmask(libc::SIG_BLOCK, set);
    let mut info: libc::siginfo_t = zeroed();
    let mut call = |ms: u64| {
        let ts = timespec_ms(ms);
        sys!(libc::SYS_rt_sigtimedwait, &set as *const u64, &mut info as *mut _, &ts as *const _, 8)
    };
    err!(call(0), libc::EAGAIN);
    err!(call(10), libc::EAGAIN);
    kill(getpid(), libc::SIGUSR1);
    eq!(call(0), i64::from(libc::SIGUSR1));
    let parent = getpid();
    let pid = child(|| {
        sleep_ms(10);
        queue(parent, 45, 7);
    });
    eq!(call(10_000), 45);
    eq!((info.si_signo, info.si_code), (45, libc::SI_QUEUE));
    reap(pid);
    // Another signal interrupts.
    let result = interrupted(libc::SIGUSR2, libc::SA_RESTART, || sys!(libc::SYS_rt_sigtimedwait, &set as *const u64, 0, 0, 8));
    err!(result, libc::EINTR);
    err!(sys!(libc::SYS_rt_sigtimedwait, BAD, 0, 0, 8), libc::EFAULT);
}

static FAULT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

extern "C" fn skip_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's frame.
    unsafe {
        FAULT[0].store(signal as u64, Ordering::SeqCst);
        FAULT[1].store((*info).si_code as u64, Ordering::SeqCst);
        FAULT[2].store((*info).si_addr() as u64, Ordering::SeqCst);
        let context = &mut *context.cast::<libc::ucontext_t>();
        FAULT[3].store(context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64, Ordering::SeqCst);
        // The cases put the address to go on at into rdx.
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = context.uc_mcontext.gregs[libc::REG_RDX as usize];
    }
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn fault() -> (i32, i32, u64) {
    (
        FAULT[0].load(Ordering::SeqCst) as i32,
        FAULT[1].load(Ordering::SeqCst) as i32,
        FAULT[2].load(Ordering::SeqCst),
    )
}

fn poke(address: u64) {
    // SAFETY: the SIGSEGV handler goes on at the label.
    unsafe {
        std::arch::asm!(
            "lea rdx, [rip + 2f]",
            "mov byte ptr [{a}], 1",
            "2:",
            a = in(reg) address, out("rdx") _,
        );
    }
}

fn segv_info() {
    handle(libc::SIGSEGV, skip_fault, 0);
    poke(0x123);
    eq!(fault(), (libc::SIGSEGV, 1, 0x123)); // SEGV_MAPERR
    let p = map(PAGE, libc::PROT_READ) as u64;
    poke(p + 5);
    eq!(fault(), (libc::SIGSEGV, 2, p + 5)); // SEGV_ACCERR
    eq!(seen(), 2);
    // A non-canonical address is a general protection fault: SI_KERNEL, address 0.
    poke(WILD);
    eq!(fault(), (libc::SIGSEGV, 0x80, 0));
    // A file mapping beyond the end of the file.
    handle(libc::SIGBUS, skip_fault, 0);
    let fd = new_file("f", b"x");
    let m = ok!(sys!(libc::SYS_mmap, 0, 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)) as u64;
    poke(m + PAGE as u64 + 3);
    eq!(fault(), (libc::SIGBUS, 2, m + PAGE as u64 + 3)); // BUS_ADRERR
}

fn segv_blocked_kills() {
    let pid = child(|| {
        handle(libc::SIGSEGV, skip_fault, 0);
        sigmask(libc::SIG_BLOCK, bit(libc::SIGSEGV));
        poke(0x123);
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGSEGV);
    let pid = child(|| {
        disposition(libc::SIGSEGV, libc::SIG_IGN);
        poke(0x123);
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGSEGV);
}

fn fpe_and_ill() {
    handle(libc::SIGFPE, skip_fault, 0);
    handle(libc::SIGILL, skip_fault, 0);
    handle(libc::SIGTRAP, skip_fault, 0);
    // SAFETY: the handler goes on at the label.
    unsafe {
        std::arch::asm!("xor ecx, ecx", "mov eax, 1", "lea rdx, [rip + 2f]", "div cl", "2:", out("rax") _, out("rcx") _, out("rdx") _);
    }
    eq!((fault().0, fault().1), (libc::SIGFPE, 1)); // FPE_INTDIV
    eq!(fault().2, FAULT[3].load(Ordering::SeqCst));
    // SAFETY: as above.
    unsafe { std::arch::asm!("lea rdx, [rip + 2f]", "ud2", "2:", out("rdx") _) };
    eq!((fault().0, fault().1), (libc::SIGILL, 2)); // ILL_ILLOPN
    // SAFETY: as above; int3 is reported behind the instruction.
    unsafe { std::arch::asm!("lea rdx, [rip + 2f]", "int3", "2:", out("rdx") _) };
    eq!((fault().0, fault().1), (libc::SIGTRAP, 0x80));
    // SAFETY: as above; a privileged instruction is a general protection fault.
    handle(libc::SIGSEGV, skip_fault, 0);
    unsafe { std::arch::asm!("lea rdx, [rip + 2f]", "hlt", "2:", out("rdx") _) };
    eq!(seen(), 4);
}

fn default_actions() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGABRT, libc::SIGUSR1, libc::SIGALRM, libc::SIGPIPE, 34, 64] {
        let zero = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let pid = child(|| {
            sys!(libc::SYS_setrlimit, libc::RLIMIT_CORE, &zero as *const _);
            disposition(signal, libc::SIG_DFL);
            kill(getpid(), signal);
        });
        eq!(wait(pid) & 0x7f, signal);
    }
    for signal in [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT] {
        in_child(|| {
            ok!(kill(getpid(), signal));
        });
    }
}

fn stop_stops_all_threads() {
    let words = shared_words();
    let pid = child(|| {
        std::thread::spawn(|| {
            loop {
                words[0].fetch_add(1, Ordering::SeqCst);
            }
        });
        loop {
            words[1].fetch_add(1, Ordering::SeqCst);
        }
    });
    until("both run", || words[0].load(Ordering::SeqCst) > 1000 && words[1].load(Ordering::SeqCst) > 1000);
    kill(pid, libc::SIGSTOP);
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::WUNTRACED, 0), i64::from(pid));
    let (a, b) = (words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst));
    sleep_ms(20);
    eq!((words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst)), (a, b));
    kill(pid, libc::SIGCONT);
    until("both run on", || words[0].load(Ordering::SeqCst) > a && words[1].load(Ordering::SeqCst) > b);
    kill(pid, libc::SIGKILL);
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
}

fn registers_survive() {
    // A loop that only computes, with every register in use, while signals come.
    catch(libc::SIGUSR1, 0);
    let (pid, tid) = (getpid(), gettid());
    let thread = std::thread::spawn(move || {
        for _ in 0..200 {
            sys!(libc::SYS_tgkill, pid, tid, libc::SIGUSR1);
            sys!(libc::SYS_nanosleep, &libc::timespec { tv_sec: 0, tv_nsec: 50_000 } as *const _, 0);
        }
    });
    let mut rounds = 0;
    while !thread.is_finished() || rounds == 0 {
        let bad: u64;
        // SAFETY: registers only; rbx and rbp are not used.
        unsafe {
            std::arch::asm!(
                "mov r8, 0x1111", "mov r9, 0x2222", "mov r10, 0x3333", "mov r11, 0x4444",
                "mov r12, 0x5555", "mov r13, 0x6666", "mov r14, 0x7777", "mov r15, 0x8888",
                "mov rsi, 0x9999", "mov rdi, 0xaaaa", "mov rdx, 0xbbbb",
                "stc",
                "mov rcx, 200000",
                "2:",
                "jnc 3f",
                "dec rcx",
                "jnz 2b",
                "xor eax, eax",
                "cmp r8, 0x1111", "setne al", "mov ecx, eax", "cmp r9, 0x2222", "setne al", "or ecx, eax",
                "cmp r10, 0x3333", "setne al", "or ecx, eax", "cmp r11, 0x4444", "setne al", "or ecx, eax",
                "cmp r12, 0x5555", "setne al", "or ecx, eax", "cmp r13, 0x6666", "setne al", "or ecx, eax",
                "cmp r14, 0x7777", "setne al", "or ecx, eax", "cmp r15, 0x8888", "setne al", "or ecx, eax",
                "cmp rsi, 0x9999", "setne al", "or ecx, eax", "cmp rdi, 0xaaaa", "setne al", "or ecx, eax",
                "cmp rdx, 0xbbbb", "setne al", "or ecx, eax",
                "mov eax, ecx",
                "jmp 4f",
                "3:", "mov eax, 2",
                "4:",
                out("rax") bad, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _,
                out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
        eq!(bad, 0);
        rounds += 1;
    }
    thread.join().expect("joined");
    check!(seen() > 0);
}

extern "C" fn clobber(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: registers only.
    unsafe {
        std::arch::asm!(
            "pcmpeqd xmm0, xmm0", "pcmpeqd xmm7, xmm7", "pcmpeqd xmm15, xmm15", "fninit", "fldz",
            out("xmm0") _, out("xmm7") _, out("xmm15") _, out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn vector_state_survives() {
    handle(libc::SIGUSR1, clobber, 0);
    let (pid, tid) = (getpid() as u64, gettid() as u64);
    let (a, b, c): (u64, u64, u64);
    let mut control = 0u16;
    // SAFETY: tgkill to this thread; the handler returns here.
    unsafe {
        std::arch::asm!(
            "fninit",
            "mov word ptr [{cw}], 0x0c7f",
            "fldcw word ptr [{cw}]",
            "mov rax, 0x1234567890",
            "movq xmm0, rax", "movq xmm7, rax", "movq xmm15, rax",
            "mov eax, 234",
            "mov edx, 10",
            "syscall",
            "movq r8, xmm0", "movq r9, xmm7", "movq r10, xmm15",
            "fnstcw word ptr [{cw}]",
            "fninit",
            cw = in(reg) &mut control,
            in("rdi") pid, in("rsi") tid, out("rdx") _, out("rax") _, out("rcx") _, out("r11") _,
            out("r8") a, out("r9") b, out("r10") c,
            out("xmm0") _, out("xmm7") _, out("xmm15") _, out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    eq!(seen(), 1);
    eq!((a, b, c), (0x12_3456_7890, 0x12_3456_7890, 0x12_3456_7890));
    eq!(control, 0x0c7f);
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: AVX is there.
        let high = unsafe { avx_round_trip(pid, tid) };
        eq!(high, 0x55);
    }
}

#[target_feature(enable = "avx")]
unsafe fn avx_round_trip(pid: u64, tid: u64) -> u64 {
    let high: u64;
    let value = [1u64, 2, 3, 0x55];
    let mut back = [0u64; 4];
    // SAFETY: as in the caller.
    unsafe {
        std::arch::asm!(
            "vmovdqu ymm7, [{v}]",
            "mov eax, 234",
            "mov edx, 10",
            "syscall",
            "vmovdqu [{b}], ymm7",
            v = in(reg) value.as_ptr(), b = in(reg) back.as_mut_ptr(),
            in("rdi") pid, in("rsi") tid, out("rdx") _, out("rax") _, out("rcx") _, out("r11") _, out("ymm7") _,
        );
        high = std::ptr::read_volatile(&back[3]);
    }
    high
}

extern "C" fn set_rax(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's frame.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = 4242;
    }
}

fn handler_may_change_registers() {
    handle(libc::SIGUSR1, set_rax, 0);
    eq!(kill(getpid(), libc::SIGUSR1), 4242);
}

fn no_signal_is_lost() {
    // Real-time signals from several threads to one that computes: each is handled exactly once.
    handle(50, note_value, 0);
    let (pid, tid) = (getpid(), gettid());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..500 {
                    while sys!(libc::SYS_tgkill, pid, tid, 50) == -i64::from(libc::EAGAIN) {
                        sys!(libc::SYS_sched_yield);
                    }
                }
            })
        })
        .collect();
    until("all sent", || threads.iter().all(|t| t.is_finished()));
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    until("all handled", || seen() >= 2000);
    eq!(seen(), 2000);
}

fn sigpipe() {
    let (r, w) = pipe();
    close(r);
    let pid = child(|| {
        disposition(libc::SIGPIPE, libc::SIG_DFL);
        write(w, b"x");
    });
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGPIPE);
    catch(libc::SIGPIPE, 0);
    err!(write(w, b"x"), libc::EPIPE);
    eq!(seen(), 1);
}

fn zero_probes() {
    ok!(kill(getpid(), 0));
    let pid = child(|| ());
    reap(pid);
    err!(kill(pid, 0), libc::ESRCH);
    ok!(kill(0, 0));
}

fn sigprocmask_errors() {
    let set = 0u64;
    err!(sys!(libc::SYS_rt_sigprocmask, 77, &set as *const u64, 0, 8), libc::EINVAL);
    err!(sys!(libc::SYS_rt_sigprocmask, 0, &set as *const u64, 0, 16), libc::EINVAL);
    err!(sys!(libc::SYS_rt_sigprocmask, 0, BAD, 0, 8), libc::EFAULT);
    err!(sys!(libc::SYS_rt_sigprocmask, 0, 0, BAD, 8), libc::EFAULT);
    // KILL and STOP cannot be blocked, silently.
    sigmask(libc::SIG_SETMASK, !0);
    eq!(sigmask(libc::SIG_SETMASK, 0), !bit(libc::SIGKILL) & !bit(libc::SIGSTOP));
}

fn cannot_catch_kill() {
    let pid = child(|| {
        sigmask(libc::SIG_SETMASK, !0);
        loop {
            std::hint::spin_loop();
        }
    });
    kill(pid, libc::SIGKILL);
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
}

extern "C" fn change_frame_mask(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's frame; the set's first word is the kernel's set.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        libc::sigaddset(&mut context.uc_sigmask, libc::SIGHUP);
    }
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR2));
}

fn sigreturn_restores_mask() {
    handle(libc::SIGUSR1, change_frame_mask, 0);
    kill(getpid(), libc::SIGUSR1);
    eq!(sigmask(libc::SIG_BLOCK, 0), bit(libc::SIGHUP));
}

fn siglongjmp_out() {
    // Leaving a handler without sigreturn: as siglongjmp does, by setting the mask and going on.
    for round in 1..=20 {
        handle(libc::SIGUSR1, skip_and_stay, 0);
        kill(getpid(), libc::SIGUSR1);
        eq!(seen(), round);
    }
}

extern "C" fn skip_and_stay(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::SeqCst);
    // The frame is left in place and another is made on top, until the mask is set by hand.
    sigmask(libc::SIG_UNBLOCK, bit(libc::SIGUSR1));
}

fn pause_returns_eintr() {
    err!(interrupted(libc::SIGUSR1, libc::SA_RESTART, || sys!(libc::SYS_pause)), libc::EINTR);
}

fn fork_clears_pending() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    kill(getpid(), libc::SIGUSR1);
    in_child(|| {
        eq!(pending(), 0);
        eq!(sigmask(libc::SIG_BLOCK, 0), bit(libc::SIGUSR1));
    });
    eq!(pending(), bit(libc::SIGUSR1));
}

/// Two frames fit into 16 KiB, since state that a thread has no leave to use (AMX) is not in them.
fn frames_on_a_small_stack() {
    let size = 16 * 1024;
    let stack = map(size, libc::PROT_READ | libc::PROT_WRITE);
    let ss = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: size };
    ok!(sys!(libc::SYS_sigaltstack, &ss as *const _, 0));
    catch(libc::SIGUSR1, libc::SA_ONSTACK);
    catch(libc::SIGUSR2, libc::SA_ONSTACK);
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1) | bit(libc::SIGUSR2));
    kill(getpid(), libc::SIGUSR1);
    kill(getpid(), libc::SIGUSR2);
    sigmask(libc::SIG_SETMASK, 0);
    eq!(seen(), 2);
}
