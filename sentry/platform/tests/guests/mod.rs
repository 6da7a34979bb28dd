//! The platform alone: tiny machine-code guests, driven without a kernel. One platform a process: it reaps all children.
#![allow(dead_code, clippy::unwrap_used)]

pub mod kicks;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sentry_platform::{
    ChildStart, Event, GuestThread, HostVdso, Kind, Load, Order, Platform, PlatformOptions, Registers,
};

/// Runs a future by looking for guests again and again, as a worker would.
pub fn block_on<T>(platform: &Arc<dyn Platform>, future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        platform.flush(0);
        platform.scan(0);
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the guest does not come back"
        );
    }
}

pub fn platform(kind: Kind) -> Arc<dyn Platform> {
    let options = PlatformOptions {
        workers: 1,
        vdso: HostVdso::find(),
        copy_by_stub: std::env::var_os("SENTRY_TEST_COPY_BY_STUB").is_some(),
        max_processes: None,
        nice: 0,
        load: Load::open().map(Arc::new),
    };
    sentry_platform::create(kind, options).expect("the platform")
}

pub const CODE: u64 = 0x40_0000;
pub const STACK: u64 = 0x50_0000;

/// A process that will run `code`.
pub fn process(platform: &Arc<dyn Platform>, code: &[u8]) -> Arc<dyn GuestThread> {
    let thread = block_on(platform, platform.new_process()).expect("a process");
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let orders = [
        Order::Mmap {
            addr: CODE,
            len: 0x8000,
            prot: rwx,
            flags: anonymous,
            fd: None,
            offset: 0,
        },
        Order::Mmap {
            addr: STACK,
            len: 0x10000,
            prot: 3,
            flags: anonymous,
            fd: None,
            offset: 0,
        },
        Order::Write { addr: CODE, data: code },
    ];
    let results = block_on(platform, thread.run(&orders, &[])).expect("orders");
    assert_eq!(results, [CODE as i64, STACK as i64, 0]);
    thread.set_registers(&Registers {
        rip: CODE,
        rsp: STACK + 0x10000,
        eflags: 0x202,
        ..Registers::default()
    });
    thread
}

pub fn next(platform: &Arc<dyn Platform>, thread: &Arc<dyn GuestThread>) -> Event {
    thread.resume();
    block_on(platform, poll_fn(|cx| thread.poll_event(cx)))
}

pub fn syscall(event: Event) -> sentry_platform::SyscallArgs {
    match event {
        Event::Syscall(call) => call,
        other => panic!("expected a system call, got {other:?}"),
    }
}

// mov eax, imm32; syscall
fn call(nr: u32) -> Vec<u8> {
    let mut code = vec![0xb8];
    code.extend(nr.to_le_bytes());
    code.extend([0x0f, 0x05]);
    code
}

pub fn calls_faults_forks_and_threads(platform: &Arc<dyn Platform>) {
    // getppid, then a load from address 0x10, then fork, getppid in both
    let mut code = vec![0xbf, 7, 0, 0, 0]; // mov edi, 7
    code.extend(call(110));
    code.extend([0x48, 0x89, 0xc3]); // mov rbx, rax
    code.extend([0x8b, 0x04, 0x25, 0x10, 0, 0, 0]); // mov eax, [0x10]
    code.extend(call(57));
    code.extend(call(110));
    code.extend([0xeb, 0xfe]); // jmp $
    let thread = process(platform, &code);
    let made = syscall(next(platform, &thread));
    assert_eq!((made.nr, made.args[0]), (110, 7));
    thread.set_result(1234);
    let Event::Fault(fault) = next(platform, &thread) else {
        panic!("expected a fault")
    };
    assert_eq!((fault.signal, fault.address), (libc::SIGSEGV, 0x10));
    let mut registers = thread.registers();
    assert_eq!(registers.rbx, 1234);
    registers.rip += 7;
    thread.set_registers(&registers);
    assert_eq!(syscall(next(platform, &thread)).nr, 57);
    let child = block_on(platform, thread.fork(ChildStart::default())).expect("a child");
    assert_eq!(child.registers().rax, 0);
    assert_ne!(child.address_space().host_pid(), thread.address_space().host_pid());
    thread.set_result(99);
    assert_eq!(syscall(next(platform, &child)).nr, 110);
    assert_eq!(syscall(next(platform, &thread)).nr, 110);
    assert_eq!(child.registers().rbx, 1234);
    // Memory is not shared.
    child.address_space().write(STACK, b"child").unwrap();
    let mut bytes = [0; 5];
    thread.read(STACK, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0\0");

    let start = ChildStart {
        stack: Some(STACK + 0x8000),
        tls: Some(0x1234_5000),
    };
    let second = block_on(platform, thread.spawn(start, 77)).expect("a thread");
    let registers = second.registers();
    assert_eq!(
        (registers.rsp, registers.fs_base, registers.rax),
        (STACK + 0x8000, 0x1234_5000, 0)
    );
    second.resume();
    platform.flush(0);
    second.kick();
    assert_eq!(
        block_on(platform, poll_fn(|cx| second.poll_event(cx))),
        Event::Interrupted
    );
    assert_eq!(second.registers().fs_base, 0x1234_5000);
    second.exit();
    thread.address_space().kill();
    assert_eq!(block_on(platform, poll_fn(|cx| thread.poll_event(cx))), Event::Exited);
    drop(child);
}

pub fn stub_answers_and_copies(platform: &Arc<dyn Platform>, local: bool) {
    // getpid (local), write(1, STACK, 5) with prefetch, then read into STACK+8
    let mut code = call(39);
    code.extend([0x48, 0x89, 0xc3]); // mov rbx, rax
    code.extend([0xbe]);
    code.extend((STACK as u32).to_le_bytes()); // mov esi, STACK
    code.extend([0xba, 5, 0, 0, 0]); // mov edx, 5
    code.extend(call(1));
    code.extend(call(0));
    code.extend(call(0));
    code.extend(call(231));
    let thread = process(platform, &code);
    thread.address_space().set_identity(sentry_platform::Identity {
        pid: 4711,
        ..Default::default()
    });
    thread.address_space().write(STACK, b"hello").unwrap();
    if !local {
        assert_eq!(syscall(next(platform, &thread)).nr, 39);
        thread.set_result(4711);
    }
    assert_eq!(syscall(next(platform, &thread)).nr, 1);
    assert_eq!(thread.registers().rbx, 4711);
    let mut bytes = [0; 5];
    thread.read(STACK, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    thread.set_result(5);
    assert_eq!(syscall(next(platform, &thread)).nr, 0);
    thread.write(STACK + 8, b"world").unwrap();
    thread.read(STACK + 8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
    thread.set_result(5);
    assert_eq!(syscall(next(platform, &thread)).nr, 0);
    assert_eq!(thread.registers().rax, 0, "the number of read(2)");
    thread.address_space().read(STACK + 8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
    // A copy to nowhere turns the result into EFAULT.
    thread.write(0x66_0000, b"nowhere").unwrap();
    thread.set_result(5);
    assert_eq!(syscall(next(platform, &thread)).nr, 231);
    thread.address_space().kill();
}

pub fn local_memory_calls_are_logged(platform: &Arc<dyn Platform>) {
    let mut code = vec![0x31, 0xff]; // xor edi, edi
    code.extend([0xbe, 0, 0x20, 0, 0]); // mov esi, 0x2000
    code.extend([0xba, 3, 0, 0, 0]); // mov edx, 3
    code.extend([0x41, 0xba, 0x22, 0, 0, 0]); // mov r10d, MAP_PRIVATE|MAP_ANONYMOUS
    code.extend(call(9));
    code.extend([0x48, 0x89, 0xc3]); // mov rbx, rax
    code.extend([0xc6, 0x00, 0x2a]); // mov byte [rax], 42
    code.extend(call(110));
    let thread = process(platform, &code);
    assert_eq!(syscall(next(platform, &thread)).nr, 110);
    let at = thread.registers().rbx;
    let log = thread.address_space().drain_log();
    assert_eq!(
        log,
        [sentry_platform::MemoryLogEntry::Mmap {
            addr: at,
            len: 0x2000,
            prot: 3,
            flags: 0x22
        }]
    );
    let mut byte = [0];
    thread.read(at, &mut byte).unwrap();
    assert_eq!(byte, [42]);
    thread.address_space().kill();
}

/// Prints what a trapped call costs; no assertion about time.
pub fn trapped_call_cost(platform: &Arc<dyn Platform>) {
    let mut code = call(110);
    code.extend([0xeb, 0xf7]); // jmp to the start
    let thread = process(platform, &code);
    let rounds = if platform.name() == "ptrace" { 500 } else { 20_000 };
    syscall(next(platform, &thread));
    let start = Instant::now();
    for _ in 0..rounds {
        thread.set_result(1);
        syscall(next(platform, &thread));
    }
    println!("trapped call: {:?}", start.elapsed() / rounds);
    let start = Instant::now();
    for _ in 0..50 {
        drop(block_on(platform, platform.new_process()).expect("a process"));
    }
    println!("new process: {:?}", start.elapsed() / 50);
    thread.address_space().kill();
}

/// A kick that comes while the answer is on its way, with or without something for the stub to do first.
pub fn kicks_right_after_answers(platform: &Arc<dyn Platform>) {
    let thread = process(platform, &[0xeb, 0xfe]); // jmp $
    for round in 0..300 {
        if round % 2 == 1 {
            thread.write(STACK, b"something to copy").unwrap();
        }
        thread.resume();
        if round % 3 > 0 {
            platform.flush(0);
        }
        thread.kick();
        let event = block_on(platform, poll_fn(|cx| thread.poll_event(cx)));
        assert_eq!(event, Event::Interrupted, "round {round}");
    }
    thread.address_space().kill();
}

/// The host thread of this process with the given name.
fn host_thread(name: &str) -> std::path::PathBuf {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let named =
        |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim() == name);
    tasks.flatten().map(|task| task.path()).find(named).expect("the thread")
}

/// The tracer is woken by what happens and by nothing else, though threads of this process do not block SIGCHLD.
pub fn the_tracer_sleeps(platform: &Arc<dyn Platform>) {
    let thread = process(platform, &call(110));
    syscall(next(platform, &thread));
    let status = host_thread("tracer").join("status");
    let switches = || {
        let status = std::fs::read_to_string(&status).expect("/proc");
        let counts: Vec<_> = status.lines().filter(|line| line.contains("_ctxt_switches:")).collect();
        counts.join(" ")
    };
    // Processes of earlier tests may still be ending.
    let quiet = (0..20).any(|_| {
        let before = switches();
        std::thread::sleep(Duration::from_millis(300));
        switches() == before
    });
    assert!(quiet, "the tracer wakes up on its own");
    thread.address_space().kill();
    assert_eq!(block_on(platform, poll_fn(|cx| thread.poll_event(cx))), Event::Exited);
}
