//! Guests in tight loops with known contents of all registers, which they check themselves; and their driver, which
//! kicks them at random moments and looks at what comes back.

use std::arch::global_asm;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sentry_platform::{ChildStart, Event, GuestThread, Identity, Order, Platform, Registers, SyscallArgs};

use super::{CODE, STACK, block_on, process};

/// Carry, parity, adjust, zero, sign, overflow, direction and identification; interrupts and the bit that is always set.
const FLAGS: u64 = 0x20_0ed7;
/// rbx, rbp, r12-r15 while the guests run.
const CONSTANTS: [u64; 6] = [
    0x1111_2222_3333_4444,
    0x5555_6666_7777_8888,
    0x9999_aaaa_bbbb_cccc,
    0xdddd_eeee_ffff_0001,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
];
const FS_BASE: u64 = 0x1234_5000;
const GS_BASE: u64 = 0x5432_1000;
/// x87 control word: extended precision, truncation, all masked.
const X87_CONTROL: u16 = 0x0f7f;
/// Flush to zero, truncation, all masked.
const MXCSR: u32 = 0xff80;

// Position-independent: copied to CODE. The driver starts a guest at one of the labels kick_KIND.
global_asm!(
    include_str!("kick_guest.s"),
    FLAGS = const FLAGS,
    C0 = const CONSTANTS[0],
    C1 = const CONSTANTS[1],
    C2 = const CONSTANTS[2],
    C3 = const CONSTANTS[3],
    C4 = const CONSTANTS[4],
    C5 = const CONSTANTS[5] as i64,
    X87_CONTROL = const X87_CONTROL,
    MXCSR = const MXCSR,
);

unsafe extern "C" {
    static kick_guest_start: u8;
    static kick_guest_end: u8;
    static kick_rounds: u8;
    static kick_vectors: u8;
    static kick_trapped: u8;
    static kick_copied: u8;
    static kick_answered: u8;
    static kick_futex: u8;
    static kick_waiting: u8;
    static kick_ping: u8;
    static kick_pong: u8;
    static kick_computing: u8;
    static kick_memory: u8;
    static kick_once: u8;
    static kick_once_call: u8;
    static kick_once_spin: u8;
}

/// What a guest does all the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call that the sentry answers with a number.
    Trapped,
    /// A call whose answer is copied to memory.
    Copied,
    /// Calls that the stub answers.
    Answered,
    /// Futex calls that wait for a moment at most.
    Futex,
    /// A futex wait that only kicks end.
    Waiting,
    /// Futex calls of two threads that wait for each other.
    Pair,
    Computing,
    /// Calls that change the address space.
    Memory,
    /// One call that is answered as a copied one, and then computing.
    Once,
}

pub const KINDS: [Kind; 9] = [
    Kind::Trapped,
    Kind::Copied,
    Kind::Answered,
    Kind::Futex,
    Kind::Waiting,
    Kind::Pair,
    Kind::Computing,
    Kind::Memory,
    Kind::Once,
];

fn code() -> &'static [u8] {
    let (start, end) = (&raw const kick_guest_start, &raw const kick_guest_end);
    // SAFETY: the two labels enclose constant data.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

fn address(label: *const u8) -> u64 {
    CODE + (label as u64 - &raw const kick_guest_start as u64)
}

/// xorshift.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One guest thread and what has become of its kicks.
pub struct Guest {
    pub thread: Arc<dyn GuestThread>,
    kind: Kind,
    /// A kick that has not been answered, and when it was sent.
    kicked: Option<Instant>,
    kicks: u64,
    answered: u64,
    /// The extended state when it was first interrupted: it never changes.
    xstate: Option<Vec<u8>>,
    calls: u64,
    ptrace: bool,
}

impl Guest {
    fn new(
        platform: &Arc<dyn Platform>,
        thread: Arc<dyn GuestThread>,
        kind: Kind,
        label: *const u8,
        stack: u64,
    ) -> Guest {
        thread.set_registers(&Registers {
            rip: address(label),
            rsp: stack,
            eflags: 0x202,
            fs_base: FS_BASE,
            gs_base: GS_BASE,
            ..Registers::default()
        });
        thread.set_tid(4343);
        Guest {
            thread,
            kind,
            kicked: None,
            kicks: 0,
            answered: 0,
            xstate: None,
            calls: 0,
            ptrace: platform.name() == "ptrace",
        }
    }

    /// The guests of a kind: one, or the two of a pair.
    pub fn start(platform: &Arc<dyn Platform>, kind: Kind) -> Vec<Guest> {
        let thread = process(platform, code());
        thread.address_space().set_identity(Identity {
            pid: 4242,
            ..Identity::default()
        });
        let label = match kind {
            Kind::Trapped => &raw const kick_trapped,
            Kind::Copied => &raw const kick_copied,
            Kind::Answered => &raw const kick_answered,
            Kind::Futex => &raw const kick_futex,
            Kind::Waiting => &raw const kick_waiting,
            Kind::Pair => &raw const kick_ping,
            Kind::Computing => &raw const kick_computing,
            Kind::Memory => &raw const kick_memory,
            Kind::Once => &raw const kick_once,
        };
        let mut guests = Vec::new();
        if kind == Kind::Pair {
            let second = block_on(platform, thread.spawn(ChildStart::default(), 4343)).expect("a thread");
            guests.push(Guest::new(platform, second, kind, &raw const kick_pong, STACK + 0x8000));
        }
        guests.push(Guest::new(platform, thread, kind, label, STACK + 0x10000));
        guests
    }

    /// All registers are the guest's own, and as they must be at any place of its loop.
    fn check(&mut self) {
        let r = self.thread.registers();
        let place = r.rip.wrapping_sub(CODE);
        assert!(place < code().len() as u64, "{:?}: {r:x?}", self.kind);
        assert!((STACK..=STACK + 0x10000).contains(&r.rsp), "{:?}: {r:x?}", self.kind);
        assert_eq!((r.fs_base, r.gs_base), (FS_BASE, GS_BASE), "{:?}: {r:x?}", self.kind);
        if rounds(self) == 0 {
            // They are being loaded.
            return;
        }
        let constants = [r.rbx, r.rbp, r.r12, r.r13, r.r14, r.r15];
        assert_eq!(constants, CONSTANTS, "{:?}: {r:x?}", self.kind);
        let state = self.thread.xstate();
        assert!(state.len() >= 576 + 256, "{:?}: {}", self.kind, state.len());
        let vectors = (&raw const kick_vectors as usize) - (&raw const kick_guest_start as usize);
        for (n, vector) in code()[vectors..].chunks_exact(32).take(16).enumerate() {
            let (low, high) = (&state[160 + 16 * n..][..16], &state[576 + 16 * n..][..16]);
            assert!(
                vector == [low, high].concat(),
                "{:?}: ymm{n} {low:x?} {high:x?}",
                self.kind
            );
        }
        let control = u16::from_le_bytes([state[0], state[1]]);
        let mxcsr = u32::from_le_bytes([state[24], state[25], state[26], state[27]]);
        assert_eq!((control, mxcsr), (X87_CONTROL, MXCSR), "{:?}", self.kind);
        let first = self.xstate.get_or_insert_with(|| state.clone());
        // All but what the host writes (`_fpx_sw_bytes`) and what is reserved before it.
        let same = first[..416] == state[..416] && first[512..] == state[512..];
        assert!(
            same,
            "{:?}: the extended state has changed\n{first:x?}\n{state:x?}",
            self.kind
        );
    }

    /// Takes an event, if there is one, and lets the guest go on.
    fn poll(&mut self, platform: &Arc<dyn Platform>, cx: &mut Context<'_>) {
        match self.thread.poll_event(cx) {
            Poll::Pending => return,
            Poll::Ready(event) => self.event(platform, event),
        }
        self.thread.address_space().drain_log();
        self.thread.resume();
    }

    fn event(&mut self, platform: &Arc<dyn Platform>, event: Event) {
        match event {
            Event::Interrupted => {
                self.check();
                self.answer();
                if self.kind == Kind::Once {
                    self.once_more();
                }
            }
            Event::LocalInterrupted(args) => {
                self.check();
                self.answer();
                let mut registers = self.thread.registers();
                assert_eq!((registers.rax, args.nr), (202, 202));
                if self.kind == Kind::Waiting {
                    return self.thread.set_result(-i64::from(libc::EINTR));
                }
                // Restarted, as the kernel does it.
                registers.rip -= 2;
                self.thread.set_registers(&registers);
            }
            Event::Syscall(args) => {
                self.calls += 1;
                self.call(platform, &args);
                // A kick that reaches a thread on its way in is answered by the call. On systrap the interruption
                // comes too, since the signal does.
                if self.ptrace {
                    self.answer();
                }
            }
            other => panic!(
                "{:?}: {other:?} after {} kicks: {:x?}",
                self.kind,
                self.kicks,
                self.thread.registers()
            ),
        }
    }

    /// Sends the guest back to its call from the loop that comes after it.
    fn once_more(&mut self) {
        let mut registers = self.thread.registers();
        if registers.rip >= address(&raw const kick_once_spin) {
            registers.rip = address(&raw const kick_once_call);
            registers.rsp = STACK + 0x10000;
            self.thread.set_registers(&registers);
        }
    }

    fn answer(&mut self) {
        if self.kicked.take().is_some() {
            self.answered += 1;
        } else {
            assert!(self.ptrace, "{:?}: interrupted without a kick", self.kind);
        }
    }

    fn call(&mut self, platform: &Arc<dyn Platform>, args: &SyscallArgs) {
        let a = args.args;
        let order = match args.nr {
            110 => return self.thread.set_result(1337),
            96 => {
                let value = self.calls.to_le_bytes();
                self.thread.write(a[0], &[value, value].concat()).expect("a write");
                return self.thread.set_result(self.calls as i64);
            }
            39 => return self.thread.set_result(4242),
            186 => return self.thread.set_result(4343),
            24 => return self.thread.set_result(0),
            228 => {
                self.thread.write(a[1], &[7; 16]).expect("a write");
                return self.thread.set_result(0);
            }
            // On ptrace only: nobody really waits.
            202 if self.kind == Kind::Waiting => return self.thread.set_result(-i64::from(libc::EINTR)),
            202 if a[1] == 129 || self.kind == Kind::Pair => return self.thread.set_result(0),
            202 => return self.thread.set_result(if a[3] == 0 { -11 } else { -110 }),
            9 => Order::Mmap {
                addr: a[0],
                len: a[1],
                prot: a[2] as i32,
                flags: a[3] as i32,
                fd: None,
                offset: 0,
            },
            10 => Order::Mprotect {
                addr: a[0],
                len: a[1],
                prot: a[2] as i32,
            },
            11 => Order::Munmap { addr: a[0], len: a[1] },
            25 => Order::Mremap {
                addr: a[0],
                old_len: a[1],
                new_len: a[2],
                flags: a[3] as i32,
                new_addr: a[4],
            },
            28 => Order::Madvise {
                addr: a[0],
                len: a[1],
                advice: a[2] as i32,
            },
            nr => panic!("{:?}: call {nr}", self.kind),
        };
        let results = block_on(platform, self.thread.run(&[order], &[])).expect("orders");
        self.thread.set_result(results[0]);
    }
}

/// Looks once at all guests.
fn look(platform: &Arc<dyn Platform>, guests: &mut [Guest]) {
    let mut cx = Context::from_waker(Waker::noop());
    platform.flush(0);
    platform.scan(0);
    for guest in guests {
        guest.poll(platform, &mut cx);
    }
}

/// Kicks guests at random moments, `count` times in all, and waits for every answer.
pub fn kick_at_random(platform: &Arc<dyn Platform>, guests: &mut [Guest], count: u64, random: &mut Random) {
    let before: u64 = guests.iter().map(|guest| guest.kicks).sum();
    let mut slowest = Duration::ZERO;
    let sent = |guests: &[Guest]| guests.iter().map(|guest| guest.kicks).sum::<u64>() - before;
    while sent(guests) < count || guests.iter().any(|guest| guest.kicked.is_some()) {
        look(platform, guests);
        for guest in guests.iter() {
            let waited = guest.kicked.map_or(Duration::ZERO, |at| at.elapsed());
            slowest = slowest.max(waited);
            assert!(
                waited < Duration::from_secs(20),
                "{:?}: kick {} is lost",
                guest.kind,
                guest.kicks
            );
        }
        if sent(guests) < count {
            // The driver alone takes events, so a guest that has been let go by a flush is there for a kick.
            platform.flush(0);
            for _ in 0..random.below(400) {
                std::hint::spin_loop();
            }
            let guest = random.below(guests.len() as u64) as usize;
            let guest = &mut guests[guest];
            if guest.kicked.is_none() {
                guest.kicks += 1;
                guest.kicked = Some(Instant::now());
                guest.thread.kick();
            }
        }
    }
    println!(
        "{:?}: {} kicks, the slowest answer took {slowest:?}",
        guests.iter().map(|guest| guest.kind).collect::<Vec<_>>(),
        sent(guests)
    );
    for guest in guests.iter() {
        assert_eq!(guest.kicks, guest.answered);
    }
}

/// How many rounds of its loop a guest has made.
pub fn rounds(guest: &Guest) -> u64 {
    let mut bytes = [0; 8];
    let at = address(&raw const kick_rounds);
    guest.thread.address_space().read(at, &mut bytes).expect("the counter");
    u64::from_le_bytes(bytes)
}

/// All kinds of guests, one kind after the other and then all at once.
pub fn random_kicks(platform: &Arc<dyn Platform>, kicks: u64) {
    if !std::arch::is_x86_feature_detected!("avx") {
        println!("skipped: no AVX");
        return;
    }
    let kicks = std::env::var("SENTRY_TEST_KICKS").map_or(kicks, |n| n.parse().expect("a number"));
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut all = Vec::new();
    for kind in KINDS {
        let mut guests = Guest::start(platform, kind);
        guests.iter().for_each(|guest| guest.thread.resume());
        kick_at_random(platform, &mut guests, kicks / 10, &mut random);
        // On a busy machine kicks may have come faster than it gets round.
        let until = Instant::now() + Duration::from_secs(30);
        while guests.iter().any(|guest| rounds(guest) == 0) && Instant::now() < until {
            look(platform, &mut guests);
            platform.flush(0);
        }
        assert!(guests.iter().all(|guest| rounds(guest) > 0), "{kind:?} does not get on");
        all.append(&mut guests);
    }
    kick_at_random(platform, &mut all, kicks / 10, &mut random);
    all.iter().for_each(|guest| guest.thread.address_space().kill());
    let thread = all.pop().expect("a guest").thread;
    assert_eq!(block_on(platform, poll_fn(|cx| thread.poll_event(cx))), Event::Exited);
}

/// Kicks a guest at every instruction of the stub and of its own from the answer to a call, which the stub has to copy
/// (or not), until it computes without calls; ptrace only.
pub fn kick_at_every_step(platform: &Arc<dyn Platform>, copies: bool) {
    let mut guest = Guest::start(platform, Kind::Once).remove(0);
    let tid = guest.thread.address_space().host_pid() as i32;
    let (spin, end) = (address(&raw const kick_once_spin), address(&raw const kick_guest_end));
    guest.thread.resume();
    let event = |guest: &Guest| block_on(platform, poll_fn(|cx| guest.thread.poll_event(cx)));
    let mut in_stub = 0;
    for count in 0.. {
        let Event::Syscall(args) = event(&guest) else {
            panic!("after {count} steps: no call")
        };
        assert_eq!(args.nr, 96);
        // A bare answer finds the bytes already there.
        let value = 0x1_0000 + i64::from(count);
        let bytes = [value.to_le_bytes(), value.to_le_bytes()].concat();
        if copies {
            guest.thread.write(args.args[0], &bytes).expect("a write");
        } else {
            guest
                .thread
                .address_space()
                .write(args.args[0], &bytes)
                .expect("a write");
        }
        guest.thread.set_result(value);
        let steps = sentry_platform::testing::step(tid, count);
        guest.thread.resume();
        platform.flush(0);
        let rip = steps
            .wait()
            .unwrap_or_else(|| panic!("{count} steps: {:x?}", guest.thread.registers()));
        guest.thread.kick();
        steps.go();
        assert_eq!(
            event(&guest),
            Event::Interrupted,
            "the kick after {count} steps at {rip:#x} is lost"
        );
        guest.check();
        let mut registers = guest.thread.registers();
        let own = (CODE..end).contains(&registers.rip);
        assert!(own, "after {count} steps: {registers:x?}");
        in_stub += u32::from(!(CODE..end).contains(&rip));
        // It comes to the loop in which it checks its registers, and is sent back from there.
        while registers.rip < spin {
            guest.thread.resume();
            platform.flush(0);
            std::thread::sleep(Duration::from_micros(50));
            guest.thread.kick();
            assert_eq!(event(&guest), Event::Interrupted, "after {count} steps");
            registers = guest.thread.registers();
        }
        if rip >= spin && rip < end {
            println!("{} steps, {in_stub} of them in the stub", count + 1);
            assert!(!copies || in_stub > 50, "{in_stub}");
            break;
        }
        guest.once_more();
        guest.thread.resume();
    }
    guest.thread.address_space().kill();
}
