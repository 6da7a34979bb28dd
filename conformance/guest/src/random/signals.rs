//! Signals to oneself: sent, blocked, waited for, handled, read.

use std::fmt::Write;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{Rng, World, shown};
use crate::sys;
use crate::sys::*;

/// What the handler saw, in order: four numbers for each signal.
static LOG: [AtomicI32; 400] = [const { AtomicI32::new(0) }; 400];
static LOGGED: AtomicI32 = AtomicI32::new(0);

/// 34 and up are real-time signals.
const SIGNALS: &[i32] = &[
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGTERM,
    libc::SIGCONT,
    36,
    37,
    64,
];

/// The world.
pub struct Signals {
    fd: i32,
    /// Signals whose default is not to be ignored: these would end the process.
    fatal: u64,
    stack: Vec<u8>,
}

extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let at = LOGGED.fetch_add(1, Ordering::SeqCst) as usize * 4;
    // SAFETY: the kernel passes a siginfo to SA_SIGINFO handlers.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize as i32) };
    let mut stack: libc::stack_t = zeroed();
    sys!(libc::SYS_sigaltstack, 0, &mut stack as *mut _);
    let mask = sigmask(libc::SIG_BLOCK, 0);
    let queued = if code == libc::SI_QUEUE { value } else { 0 };
    let values = [
        signal,
        code,
        queued,
        (mask ^ (mask >> 32)) as i32 ^ stack.ss_flags << 20,
    ];
    for (i, value) in values.into_iter().enumerate() {
        if let Some(place) = LOG.get(at + i) {
            place.store(value, Ordering::SeqCst);
        }
    }
}

/// What was handled since the last step.
fn handled() -> String {
    let count = LOGGED.swap(0, Ordering::SeqCst).clamp(0, 100) as usize;
    (0..count).fold(String::new(), |mut text, i| {
        let field = |n: usize| LOG[i * 4 + n].load(Ordering::SeqCst);
        let _ = write!(text, "[{} {} {} {:x}]", field(0), field(1), field(2), field(3));
        text
    })
}

fn set(rng: &mut Rng) -> u64 {
    SIGNALS
        .iter()
        .filter(|_| rng.next().is_multiple_of(3))
        .fold(0, |all, &signal| all | bit(signal))
}

impl Signals {
    /// Sends one in one of the ways there are.
    fn send(&mut self, rng: &mut Rng) -> String {
        let signal = rng.pick(SIGNALS);
        let blocked = sigmask(libc::SIG_BLOCK, 0) & bit(signal) != 0;
        if self.fatal & bit(signal) != 0 && !blocked && !rng.once_in(40) {
            return format!("{signal} would be fatal");
        }
        match rng.below(5) {
            0 | 1 => format!("kill {signal} = {}", shown(kill(getpid(), signal))),
            2 => format!(
                "tgkill {signal} = {}",
                shown(sys!(libc::SYS_tgkill, getpid(), gettid(), signal))
            ),
            how => {
                let mut info: libc::siginfo_t = zeroed();
                info.si_signo = signal;
                info.si_code = rng.pick(&[libc::SI_QUEUE, libc::SI_QUEUE, -2, libc::SI_USER]);
                // The value of a queued signal: behind the sender's pid and uid.
                let value = rng.below(1000);
                // SAFETY: within the structure; the layout is the kernel's.
                unsafe { (&raw mut info).cast::<u64>().add(3).write(value) };
                let r = if how == 3 {
                    sys!(libc::SYS_rt_sigqueueinfo, getpid(), signal, &info as *const _)
                } else {
                    sys!(
                        libc::SYS_rt_tgsigqueueinfo,
                        getpid(),
                        gettid(),
                        signal,
                        &info as *const _
                    )
                };
                format!("queue {how} {signal} {} {value} = {}", info.si_code, shown(r))
            }
        }
    }

    fn action(&mut self, rng: &mut Rng) -> String {
        let signal = rng.pick(SIGNALS);
        let ignored = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT].contains(&signal);
        let mut action: libc::sigaction = zeroed();
        self.fatal &= !bit(signal);
        let what = match rng.below(6) {
            0 => {
                action.sa_sigaction = libc::SIG_DFL;
                if !ignored {
                    self.fatal |= bit(signal);
                }
                "default"
            }
            1 => {
                action.sa_sigaction = libc::SIG_IGN;
                "ignore"
            }
            _ => {
                action.sa_sigaction = note as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | rng.flags(&[libc::SA_NODEFER, libc::SA_RESTART, libc::SA_ONSTACK]);
                if rng.once_in(5) {
                    action.sa_flags |= libc::SA_RESETHAND;
                    if !ignored {
                        self.fatal |= bit(signal);
                    }
                }
                "handle"
            }
        };
        let mask = set(rng);
        // SAFETY: the first word of the C library's set is the kernel's.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(mask) };
        let mut old: libc::sigaction = zeroed();
        // SAFETY: valid actions; the library gives the restorer.
        let r = unsafe { libc::sigaction(signal, &action, &mut old) };
        let kind = match old.sa_sigaction {
            libc::SIG_DFL => "default",
            libc::SIG_IGN => "ignore",
            _ => "handle",
        };
        // SAFETY: as above.
        let old_mask = unsafe { (&raw const old.sa_mask).cast::<u64>().read() };
        format!(
            "{what} {signal} {:x} {mask:x} = {r}, was {kind} {:x} {old_mask:x}",
            action.sa_flags,
            old.sa_flags & !0x0400_0000
        )
    }

    fn block(&mut self, rng: &mut Rng) -> String {
        let how = rng.pick(&[libc::SIG_BLOCK, libc::SIG_UNBLOCK, libc::SIG_SETMASK]);
        let mut new = set(rng);
        // What would end the process stays blocked.
        let waiting = pending() & self.fatal;
        match how {
            libc::SIG_UNBLOCK => new &= !waiting,
            libc::SIG_SETMASK => new |= waiting,
            _ => {}
        }
        format!("mask {how} {new:x} = {:x}", sigmask(how, new))
    }

    fn fetch(&mut self, rng: &mut Rng) -> String {
        let wanted = set(rng);
        match rng.below(4) {
            0 | 1 => {
                let mut info: libc::siginfo_t = zeroed();
                let time = timespec_ms(0);
                let r = sys!(
                    libc::SYS_rt_sigtimedwait,
                    &wanted as *const _,
                    &mut info as *mut _,
                    &time as *const _,
                    8
                );
                // SAFETY: a queued signal has a value.
                let value = if info.si_code == libc::SI_QUEUE {
                    unsafe { info.si_value().sival_ptr as usize as i32 }
                } else {
                    0
                };
                format!("wait {wanted:x} = {} {} {value}", shown(r), info.si_code)
            }
            2 => {
                let r = sys!(libc::SYS_signalfd4, self.fd, &wanted as *const _, 8, libc::O_NONBLOCK);
                if self.fd < 0 {
                    self.fd = r as i32;
                }
                format!("signalfd {wanted:x} = {}", shown(r))
            }
            _ => {
                let mut buf = [0u8; 300];
                let len = rng.pick(&[128usize, 300, 100]);
                let n = sys!(libc::SYS_read, self.fd, buf.as_mut_ptr(), len);
                let word = |at: usize| i32::from_ne_bytes([buf[at], buf[at + 1], buf[at + 2], buf[at + 3]]);
                format!(
                    "read {len} = {} {} {} {} {}",
                    shown(n),
                    word(0),
                    word(8),
                    word(44),
                    word(128)
                )
            }
        }
    }

    /// Only if something is there that it lets through, else it would never end.
    fn suspend(&mut self, rng: &mut Rng) -> String {
        let mask = set(rng) | pending() & self.fatal;
        let mut caught = 0;
        for &signal in SIGNALS {
            let mut old: libc::sigaction = zeroed();
            // SAFETY: a valid place.
            unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) };
            if old.sa_sigaction > libc::SIG_IGN {
                caught |= bit(signal);
            }
        }
        if pending() & !mask & caught == 0 {
            return "no suspend".into();
        }
        format!(
            "suspend {mask:x} = {}",
            shown(sys!(libc::SYS_rt_sigsuspend, &mask as *const _, 8))
        )
    }

    fn stack(&mut self, rng: &mut Rng) -> String {
        let size = rng.pick(&[16_384usize, 65_536, 100]);
        let flags = rng.pick(&[0, 0, libc::SS_DISABLE, 1 << 31, 99]);
        let new = libc::stack_t {
            ss_sp: self.stack.as_mut_ptr().cast(),
            ss_flags: flags,
            ss_size: size,
        };
        let mut old: libc::stack_t = zeroed();
        let r = sys!(libc::SYS_sigaltstack, &new as *const _, &mut old as *mut _);
        format!(
            "stack {size} {flags:x} = {} {:x} {}",
            shown(r),
            old.ss_flags,
            old.ss_size
        )
    }
}

impl World for Signals {
    fn new(_rng: &mut Rng) -> Signals {
        SIGNALS.iter().for_each(|&signal| disposition(signal, libc::SIG_DFL));
        sigmask(libc::SIG_SETMASK, 0);
        let ends = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGTERM, 36, 37, 64];
        // The library's own stack for handlers is not there in a child of its first thread, or it is: none, to begin with.
        let none = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        sys!(libc::SYS_sigaltstack, &none as *const _, 0);
        Signals {
            fd: -1,
            fatal: ends.iter().fold(0, |all, &signal| all | bit(signal)),
            stack: vec![0; 65_536],
        }
    }

    fn step(&mut self, rng: &mut Rng) -> String {
        let text = match rng.below(20) {
            0..7 => self.send(rng),
            7..11 => self.action(rng),
            11..14 => self.block(rng),
            14..17 => self.fetch(rng),
            17 => self.suspend(rng),
            18 => self.stack(rng),
            _ => {
                let pid = child(|| exit((pending() ^ sigmask(0, 0)).count_ones() as i32));
                let mut status = -1;
                let r = sys!(libc::SYS_wait4, pid, &mut status as *mut i32, 0, 0);
                format!(
                    "child {} {status:#x}",
                    if r == i64::from(pid) {
                        "waited for".into()
                    } else {
                        shown(r)
                    }
                )
            }
        };
        format!(
            "{text}; pending {:x} blocked {:x} {}",
            pending(),
            sigmask(libc::SIG_BLOCK, 0),
            handled()
        )
    }

    fn end(&mut self) -> String {
        format!("pending {:x}", pending())
    }
}
