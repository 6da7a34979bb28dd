//! Kicks at every instruction of the stub's way in and out: none is lost, no register changes.
//!
//! The guest thread is single-stepped with ptrace from the place where its stub waits for an answer; after `n` steps
//! it gets the kick signal, and is then let go. The sentry must learn of every kick, and the guest, which checks all
//! its registers itself, must come round to its next system call.

mod guests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sentry_platform::{Event, GuestThread, Kind, Platform};

const KICK: i32 = sentry_stub::layout::KICK_SIGNAL;

fn ptrace(request: u32, tid: i32, data: usize) -> i64 {
    // SAFETY: requests without pointers.
    unsafe { libc::ptrace(request, tid, 0usize, data) }
}

/// Waits for the next stop of `tid`: its signal number and event, or none if it is gone.
fn stop(tid: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    let got = unsafe { libc::waitpid(tid, &mut status, libc::__WALL) };
    if got != tid || !libc::WIFSTOPPED(status) {
        println!("waitpid: {got} {status:#x} {}", std::io::Error::last_os_error());
    }
    (got == tid && libc::WIFSTOPPED(status)).then(|| (libc::WSTOPSIG(status), status >> 16))
}

/// As [`stop`], if it comes within a reasonable time.
fn step_done(tid: i32) -> Option<(i32, i32)> {
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(500) {
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        let got = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
        if got == tid {
            assert!(libc::WIFSTOPPED(status), "the guest died: status {status:#x}");
            return Some((libc::WSTOPSIG(status), status >> 16));
        }
        std::thread::yield_now();
    }
    None
}

/// A guest that fills its registers, makes call 110, compares them, and goes round; ud2 if one has changed. If it
/// `waits`, each round ends with a futex wait that nobody ends, and it expects `EINTR`.
fn guest(waits: bool) -> Vec<u8> {
    let mut code = Vec::new();
    let registers: [(u8, u8, u8); 11] = [
        // (REX, opcode of mov r64, imm32; modrm of cmp r64, imm32), without rax, rcx, r11 (clobbered) and rsp
        (0x48, 0xc3, 0xfb), // rbx
        (0x48, 0xc5, 0xfd), // rbp
        (0x48, 0xc6, 0xfe), // rsi
        (0x48, 0xc7, 0xff), // rdi
        (0x48, 0xc2, 0xfa), // rdx
        (0x49, 0xc0, 0xf8), // r8
        (0x49, 0xc1, 0xf9), // r9
        (0x49, 0xc2, 0xfa), // r10
        (0x49, 0xc4, 0xfc), // r12
        (0x49, 0xc5, 0xfd), // r13
        (0x49, 0xc7, 0xff), // r15
    ];
    let value = |index: usize| (0x1111_1111u32.wrapping_mul(index as u32 + 1) & 0x7fff_ffff).to_le_bytes();
    for (index, (rex, modrm, _)) in registers.iter().enumerate() {
        code.extend([*rex, 0xc7, *modrm]); // mov r64, imm32
        code.extend(value(index));
    }
    code.extend([0x66, 0x48, 0x0f, 0x6e, 0xc3]); // movq xmm0, rbx
    code.extend([0x66, 0x4c, 0x0f, 0x6e, 0xff]); // movq xmm15, rdi
    let start = code.len();
    code.extend([0xb8, 110, 0, 0, 0, 0x0f, 0x05]); // mov eax, 110; syscall
    code.extend([0x3d, 0x39, 0x05, 0, 0]); // cmp eax, 1337
    let mut jumps = Vec::new();
    let jne = |code: &mut Vec<u8>, jumps: &mut Vec<usize>| {
        code.extend([0x0f, 0x85, 0, 0, 0, 0]);
        jumps.push(code.len());
    };
    jne(&mut code, &mut jumps);
    for (index, (rex, _, modrm)) in registers.iter().enumerate() {
        code.extend([*rex, 0x81, *modrm]); // cmp r64, imm32
        code.extend(value(index));
        jne(&mut code, &mut jumps);
    }
    code.extend([0x66, 0x48, 0x0f, 0x7e, 0xc0]); // movq rax, xmm0
    code.extend([0x48, 0x39, 0xd8]); // cmp rax, rbx
    jne(&mut code, &mut jumps);
    code.extend([0x66, 0x4c, 0x0f, 0x7e, 0xf8]); // movq rax, xmm15
    code.extend([0x48, 0x39, 0xf8]); // cmp rax, rdi
    jne(&mut code, &mut jumps);
    if waits {
        for push in [0x57, 0x56, 0x52] {
            code.push(push); // push rdi, rsi, rdx
        }
        code.extend([0x41, 0x52, 0x6a, 0x05]); // push r10; push 5
        code.extend([0x48, 0x89, 0xe7]); // mov rdi, rsp
        code.extend([0xbe, 128, 0, 0, 0]); // mov esi, FUTEX_WAIT | FUTEX_PRIVATE
        code.extend([0xba, 5, 0, 0, 0]); // mov edx, 5
        code.extend([0x45, 0x31, 0xd2]); // xor r10d, r10d
        code.extend([0xb8, 202, 0, 0, 0, 0x0f, 0x05]); // mov eax, 202; syscall
        code.extend([0x48, 0x83, 0xf8, 0xfc]); // cmp rax, -4
        jne(&mut code, &mut jumps);
        code.extend([0x58, 0x41, 0x5a, 0x5a, 0x5e, 0x5f]); // pop rax, r10, rdx, rsi, rdi
    }
    let back = start as i32 - (code.len() as i32 + 5);
    code.push(0xe9);
    code.extend(back.to_le_bytes());
    let bad = code.len();
    code.extend([0x0f, 0x0b]); // ud2
    for jump in jumps {
        let distance = (bad as i32 - jump as i32).to_le_bytes();
        code[jump - 4..jump].copy_from_slice(&distance);
    }
    code
}

/// Passes every stop of the thread on until `done`, then detaches.
fn pass_on(tid: i32, done: &AtomicBool) {
    let mut status = 0;
    while !done.load(Ordering::SeqCst) {
        // SAFETY: `status` is a valid place.
        let got = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
        assert!(
            got != tid || libc::WIFSTOPPED(status),
            "the guest died: status {status:#x}"
        );
        if got != tid {
            std::thread::yield_now();
            continue;
        }
        // SIGTRAP is left over from the last step.
        let signal = libc::WSTOPSIG(status);
        let pass = status >> 16 == 0 && signal != libc::SIGTRAP;
        let signal = if pass { signal as usize } else { 0 };
        ptrace(libc::PTRACE_CONT, tid, signal);
    }
    ptrace(libc::PTRACE_INTERRUPT, tid, 0);
    while let Some((signal, event)) = stop(tid) {
        let pass = if event == 0 { signal as usize } else { 0 };
        if event != 0 {
            ptrace(libc::PTRACE_DETACH, tid, 0);
            return;
        }
        ptrace(libc::PTRACE_CONT, tid, pass);
    }
}

/// Sets a flag at the end, a panic's too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The next event; a call is answered with 1337 and counted.
fn event(platform: &Arc<dyn Platform>, thread: &Arc<dyn GuestThread>) -> Event {
    guests::block_on(platform, std::future::poll_fn(|cx| thread.poll_event(cx)))
}

/// Single-steps the guest, first not at all, then once, twice and so on, kicks it there, and sees what comes; until it
/// sleeps after all steps. It starts where its stub waits for the answer to call 110.
fn walk(platform: &Arc<dyn Platform>, waits: bool) {
    let thread = guests::process(platform, &guest(waits));
    let tid = thread.address_space().host_pid() as i32;
    thread.resume();
    assert!(matches!(event(platform, &thread), Event::Syscall(_)));
    let mut interrupted = [0u32; 2];
    for step in 0.. {
        assert!(step < 5000, "it does not come to sleep");
        // The guest's stub waits for an answer: stop it there.
        let seized = ptrace(libc::PTRACE_SEIZE, tid, 0);
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        ptrace(libc::PTRACE_INTERRUPT, tid, 0);
        assert!(stop(tid).is_some(), "before {step} steps");
        thread.set_result(1337);
        thread.resume();
        platform.flush(0);
        let mut pending = 0;
        let (mut asleep, mut called) = (false, false);
        for _ in 0..step {
            ptrace(libc::PTRACE_SINGLESTEP, tid, pending);
            let Some((signal, event)) = step_done(tid) else {
                // It sleeps, in its call or for an answer: the whole way out and in again has been walked.
                asleep = true;
                ptrace(libc::PTRACE_INTERRUPT, tid, 0);
                assert!(stop(tid).is_some());
                pending = 0;
                break;
            };
            // SIGTRAP is the step's own; a system call of the guest arrives as SIGSYS and is passed on.
            called |= event == 0 && signal == libc::SIGSYS;
            pending = if event == 0 && signal != libc::SIGTRAP {
                signal as usize
            } else {
                0
            };
        }
        // SAFETY: the registers of a stopped thread, into a structure of the right form.
        let rip = unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, tid, 0usize, &raw mut registers);
            registers.rip
        };
        let place = format!("step {step}: kick at {rip:#x}, pending signal {pending}");
        // SAFETY: a signal to a thread of our own child.
        unsafe { libc::syscall(libc::SYS_tgkill, tid, tid, KICK) };
        ptrace(libc::PTRACE_CONT, tid, pending);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (thread, done, place) = (&thread, &done, &place);
            let events = scope.spawn(move || {
                let _done = Done(done);
                if waits {
                    interrupted_in_wait(platform, thread, called || asleep, place);
                } else {
                    interrupted_around_call(platform, thread, called || asleep, place);
                }
            });
            pass_on(tid, done);
            events.join().expect("the events");
        });
        interrupted[usize::from(called || asleep)] += 1;
        if asleep {
            break;
        }
    }
    assert!(interrupted.iter().all(|count| *count > 50), "{interrupted:?}");
    println!("waits: {waits}; kicks on the way out and in: {interrupted:?}");
    thread.address_space().kill();
}

/// The call that the guest has made by then (if it has) comes first, and no other; then the interruption.
fn interrupted_around_call(platform: &Arc<dyn Platform>, thread: &Arc<dyn GuestThread>, called: bool, place: &str) {
    let mut calls = 0;
    loop {
        match event(platform, thread) {
            Event::Interrupted => break,
            Event::Syscall(call) => {
                assert_eq!(call.nr, 110);
                thread.set_result(1337);
                calls += 1;
                assert!(calls <= usize::from(called), "the kick is lost ({place})");
                thread.resume();
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    thread.resume();
    assert!(matches!(event(platform, thread), Event::Syscall(_)), "{place}");
}

/// The wait is interrupted if the guest is in it, else the guest; in the end it makes its next call.
fn interrupted_in_wait(platform: &Arc<dyn Platform>, thread: &Arc<dyn GuestThread>, called: bool, place: &str) {
    let first = event(platform, thread);
    if called {
        assert!(matches!(first, Event::LocalInterrupted(_)), "{place}: {first:?}");
    } else {
        assert_eq!(first, Event::Interrupted, "{place}");
        // On to the wait, from which it would not return by itself.
        loop {
            thread.resume();
            platform.flush(0);
            thread.kick();
            match event(platform, thread) {
                Event::Interrupted => {}
                Event::LocalInterrupted(_) => break,
                other => panic!("{place}: {other:?}"),
            }
        }
    }
    thread.set_result(-i64::from(libc::EINTR));
    thread.resume();
    assert!(matches!(event(platform, thread), Event::Syscall(_)), "{place}");
}

#[test]
fn no_kick_is_lost_at_any_instruction() {
    sentry_platform::testing::never_repeat_kicks();
    let platform = guests::platform(Kind::Systrap);
    walk(&platform, false);
    walk(&platform, true);
}
