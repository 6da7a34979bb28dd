//! Who is killed for being late, and who is not: `sentry/platform/src/watchdog.rs`. What a hostile guest does about it
//! is in the conformance suite (`hostile/masks_kicks`, `hostile/never_receives`).

mod guests;

use std::future::poll_fn;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sentry_platform::{ChildStart, Event, GuestThread, Kind, Order, Platform};

/// Where the guests below count.
const COUNTER: u64 = guests::STACK;

/// inc qword [COUNTER]; jmp to it. At the second byte pair's end there is room for nothing else.
fn counting() -> Vec<u8> {
    let mut code = vec![0x48, 0xff, 0x04, 0x25];
    code.extend((COUNTER as u32).to_le_bytes());
    code.extend([0xeb, 0xf6]);
    code
}

fn counter(thread: &Arc<dyn GuestThread>) -> u64 {
    let mut bytes = [0; 8];
    thread.address_space().read(COUNTER, &mut bytes).expect("the counter");
    u64::from_le_bytes(bytes)
}

/// Drives all guests for a while; every interruption is answered by going on. How many there were of each.
fn drive(platform: &Arc<dyn Platform>, threads: &[&Arc<dyn GuestThread>], time: Duration) -> Vec<u32> {
    let mut interruptions = vec![0; threads.len()];
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    while start.elapsed() < time {
        platform.flush(0);
        platform.scan(0);
        for (index, thread) in threads.iter().enumerate() {
            match thread.poll_event(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(Event::Interrupted) => {
                    interruptions[index] += 1;
                    thread.resume();
                }
                Poll::Ready(other) => panic!("thread {index}: {other:?}"),
            }
        }
        std::thread::yield_now();
    }
    interruptions
}

/// Kicks a guest that maps, touches and unmaps much memory, on a machine with far more to do than it has processors.
fn honest_on_a_crowded_machine(platform: &Arc<dyn Platform>) {
    const LEN: u32 = 16 << 20;
    let mut code = vec![0x31, 0xff]; // xor edi, edi
    code.push(0xbe); // mov esi, LEN
    code.extend(LEN.to_le_bytes());
    code.extend([0xba, 3, 0, 0, 0]); // mov edx, 3
    code.extend([0x41, 0xba]); // mov r10d, MAP_PRIVATE|MAP_ANONYMOUS|MAP_POPULATE
    code.extend(0x8022u32.to_le_bytes());
    code.extend([0xb8, 9, 0, 0, 0, 0x0f, 0x05]); // mmap
    code.extend([0x48, 0x89, 0xc7]); // mov rdi, rax
    code.extend([0xb8, 11, 0, 0, 0, 0x0f, 0x05]); // munmap
    let back = -(code.len() as i32 + 5);
    code.push(0xe9);
    code.extend(back.to_le_bytes());
    let thread = guests::process(platform, &code);
    thread.resume();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let start = Instant::now();
        let (mut kicks, mut slowest) = (0, Duration::ZERO);
        while start.elapsed() < Duration::from_secs(3) {
            platform.flush(0);
            thread.kick();
            let kicked = Instant::now();
            match guests::block_on(platform, poll_fn(|cx| thread.poll_event(cx))) {
                Event::Interrupted => kicks += 1,
                // The log of memory operations is full: it is read at each event.
                Event::Syscall(_) => panic!("a memory call that the stub did not answer"),
                other => panic!("after {kicks} kicks: {other:?}"),
            }
            slowest = slowest.max(kicked.elapsed());
            thread.address_space().drain_log();
            thread.resume();
        }
        done.store(true, Ordering::Relaxed);
        println!("crowded: {kicks} kicks, the slowest took {slowest:?}");
    });
    thread.address_space().kill();
}

/// A thread is late through no fault of its own (a debugger holds it, as a host call would) while another of its process
/// computes: that one has to stop, and nobody is killed.
fn late_while_others_compute(platform: &Arc<dyn Platform>) {
    let thread = guests::process(platform, &counting());
    let tid = thread.address_space().host_pid() as i32;
    let start = ChildStart {
        stack: Some(guests::STACK + 0x8000),
        ..ChildStart::default()
    };
    let second = guests::block_on(platform, thread.spawn(start, 77)).expect("a thread");
    thread.resume();
    second.resume();
    drive(platform, &[&thread, &second], Duration::from_millis(20));
    assert!(counter(&thread) > 0);
    // SAFETY: requests without pointers, to a thread of a child of ours.
    let ptrace = |request| unsafe { libc::ptrace(request, tid, 0usize, 0usize) };
    assert_eq!(ptrace(libc::PTRACE_SEIZE), 0, "{}", std::io::Error::last_os_error());
    assert_eq!(ptrace(libc::PTRACE_INTERRUPT), 0);
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    assert_eq!(unsafe { libc::waitpid(tid, &mut status, libc::__WALL) }, tid);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    thread.kick();
    let begin = Instant::now();
    loop {
        // Interrupted once, to be isolated.
        if drive(platform, &[&thread, &second], Duration::from_millis(50))[1] > 0 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "the other thread runs on");
    }
    let before = counter(&thread);
    let interruptions = drive(platform, &[&thread, &second], Duration::from_millis(500));
    assert_eq!(interruptions, [0, 0]);
    assert_eq!(counter(&thread), before, "the other thread runs on");
    assert_eq!(ptrace(libc::PTRACE_DETACH), 0);
    let begin = Instant::now();
    let (mut first, mut counts) = (0, false);
    while first == 0 || !counts {
        first += drive(platform, &[&thread, &second], Duration::from_millis(50))[0];
        counts = counter(&thread) > before;
        assert!(begin.elapsed() < Duration::from_secs(20), "{first} interruptions");
    }
    assert_eq!(first, 1);
    // The second thread too: held threads go on.
    second.kick();
    assert!(drive(platform, &[&thread, &second], Duration::from_millis(500))[1] > 0);
    thread.address_space().kill();
}

/// A stub that sleeps in the middle of an order with a descriptor (stopped here) is killed in the end; its neighbour
/// gets its own descriptors meanwhile.
fn asleep_with_descriptors(platform: &Arc<dyn Platform>) {
    let sleeper = guests::process(platform, &counting());
    let neighbour = guests::process(platform, &counting());
    let pid = sleeper.address_space().host_pid() as i32;
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let map = |addr| Order::Mmap {
        addr,
        len: 4096,
        prot: 1,
        flags: libc::MAP_PRIVATE | libc::MAP_FIXED,
        fd: Some(0),
        offset: 0,
    };
    let (fds, begin) = ([file.as_fd()], Instant::now());
    let orders = [map(0x70_0000)];
    let mut late = sleeper.run(&orders, &fds);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(late.as_mut().poll(&mut cx).is_pending());
    let mut served = 0;
    let result = loop {
        if let Poll::Ready(result) = late.as_mut().poll(&mut cx) {
            break result;
        }
        let results = guests::block_on(platform, neighbour.run(&orders, &fds)).expect("orders");
        assert_eq!(results, [0x70_0000]);
        served += 1;
        assert!(begin.elapsed() < Duration::from_secs(60), "it is not killed");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(result.is_err());
    assert!(served > 10, "{served}");
    drop(late);
    neighbour.resume();
    drive(platform, &[&neighbour], Duration::from_millis(20));
    assert!(counter(&neighbour) > 0);
    neighbour.address_space().kill();
}

#[test]
fn only_who_is_late_by_its_own_doing_is_killed() {
    let platform = guests::platform(Kind::Systrap);
    late_while_others_compute(&platform);
    honest_on_a_crowded_machine(&platform);
    asleep_with_descriptors(&platform);
}
