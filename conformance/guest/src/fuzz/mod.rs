//! Random system calls with random arguments: whatever comes of them, the kernel must not crash or hang, must not
//! write where it was not told to, and must give everything back.
//!
//! `guest fuzz SEED CALLS` has several processes make CALLS calls between them. Each process makes those of a seed of its
//! own, `SEED+n`, in a directory and a session of its own, and lives for at most [`LIFE`] calls; three of four are users
//! that may do nobody else harm, the fourth is root and spares the others. One that gets no further is killed.
//! Beside them an honest process goes on working. `guest fuzz-one SEED` makes the calls of one process and says what
//! they are. Nobody runs this natively: it would do to the machine what it likes.

mod table;
mod values;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::Rng;
use crate::sys::*;
use crate::{ok, sys};
use table::{CALLS, Kind};
use values::Values;

/// Calls of a process.
const LIFE: u32 = 2000;
/// Processes at a time.
const SLOTS: usize = 4;
/// How long a process may be without progress, in nanoseconds.
const PATIENCE: u64 = 60_000_000;
/// The highest number that is made.
const NUMBERS: u64 = 480;
/// Exit code of a process in whose memory something was written that no call was told to.
const CANARY: i32 = 99;
/// The user that the first slot's processes run as.
const USER: u32 = 40_000;

/// Ends unless this is our kernel.
fn only_inside() {
    let mut name: libc::utsname = zeroed();
    sys!(libc::SYS_uname, &mut name as *mut _);
    // SAFETY: the kernel ends it with a NUL.
    let version = unsafe { std::ffi::CStr::from_ptr(name.version.as_ptr()) };
    if !version.to_string_lossy().contains("sentry") {
        eprintln!("random calls are made in sandboxes only");
        exit(2);
    }
}

/// Calls that mostly end the process.
const DEADLY: &[i64] = &[
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_rt_sigreturn,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// What a process and its parent share.
struct Slot {
    pid: i32,
    seed: u64,
    progress: u32,
    since: u64,
}

/// Makes calls until its life is over.
fn live(seed: u64, slot: u32, progress: &AtomicU32, show: bool) -> ! {
    let mut rng = Rng::new(seed, 0);
    sys!(libc::SYS_setsid);
    // What root mounts and unmounts is its own affair.
    sys!(libc::SYS_unshare, libc::CLONE_NEWNS);
    let unprivileged = !seed.is_multiple_of(4);
    let uid = USER + slot;
    let dropped = unprivileged
        && sys!(libc::SYS_setgroups, 0, 0) == 0
        && sys!(libc::SYS_setresgid, uid, uid, uid) == 0
        && sys!(libc::SYS_setresuid, uid, uid, uid) == 0;
    let mut values = Values::new(&mut rng, dropped);
    // What blocks is interrupted soon, unless a call undoes this.
    catch(libc::SIGALRM, 0);
    let every = [0u64, 5000, 0, 5000];
    sys!(libc::SYS_setitimer, libc::ITIMER_REAL, every.as_ptr(), 0);
    let own = getpid();
    for count in 0..LIFE {
        let (number, kinds) = if rng.once_in(12) {
            (rng.below(NUMBERS) as i64, &[][..])
        } else {
            rng.pick(CALLS)
        };
        // A life should not end at once.
        if DEADLY.contains(&number) && !rng.once_in(20) {
            continue;
        }
        let mut args = [0; 6];
        for (i, arg) in args.iter_mut().enumerate() {
            *arg = values.draw(&mut rng, kinds.get(i).copied().unwrap_or(Kind::Any));
        }
        values.tame(number, &mut args);
        // A new process without memory of its own goes on with this one's stack.
        if matches!(number, libc::SYS_clone) && args[0] & libc::CLONE_VM as u64 != 0 {
            args[0] |= libc::CLONE_VFORK as u64;
            args[1] = 0;
        }
        if show {
            eprintln!("{count}: {number} {args:x?}");
        }
        let result = call(number, &args);
        if show {
            eprintln!("{count}: = {}", Code(result));
        }
        let forks = matches!(
            number,
            libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3
        );
        if forks && result == 0 && (getpid() != own || gettid() != own) {
            loop {
                sys!(libc::SYS_exit, 0);
            }
        }
        progress.store(count + 1, Ordering::Relaxed);
        if count % 64 == 63 {
            values.refill(&mut rng);
            if !values.canaries_live() {
                exit(CANARY);
            }
        }
    }
    exit(if values.canaries_live() { 0 } else { CANARY })
}

fn start(slot: usize, seed: u64, progress: &AtomicU32, place: &str, null: i32) -> Slot {
    progress.store(0, Ordering::Relaxed);
    let pid = child(|| {
        let dir = format!("{place}/fuzz-{slot}-{seed:x}");
        let made = std::fs::create_dir(&dir).and_then(|()| std::env::set_current_dir(&dir));
        let uid = USER + slot as u32;
        if made.is_err() || is_root() && sys!(libc::SYS_chown, c(".").as_ptr(), uid, uid) != 0 {
            eprintln!("{dir}: cannot be made");
            exit(FAILED);
        }
        for fd in 0..3 {
            sys!(libc::SYS_dup2, null, fd);
        }
        close(null);
        live(seed, slot as u32, progress, false)
    });
    Slot {
        pid,
        seed,
        progress: 0,
        since: now(),
    }
}

/// Counts for ever in memory, a file and a pipe, and ends if any of them is not as it was left.
fn honest(beats: &AtomicU32) -> ! {
    let (r, w) = pipe();
    let file = ok!(sys!(libc::SYS_memfd_create, c("honest").as_ptr(), 0)) as i32;
    for n in 0u32.. {
        let word = n.to_le_bytes();
        sys!(libc::SYS_pwrite64, file, word.as_ptr(), 4, 0);
        write(w, &word);
        let mut back = [0u8; 4];
        sys!(libc::SYS_pread64, file, back.as_mut_ptr(), 4, 0);
        if read(r, 4) != word || back != word {
            exit(FAILED);
        }
        beats.store(n, Ordering::Relaxed);
        sleep_ms(1);
    }
    exit(FAILED)
}

fn tidy(place: &str, slot: usize, seed: u64) {
    let dir = format!("{place}/fuzz-{slot}-{seed:x}");
    let _ = std::fs::remove_dir_all(dir);
}

/// Waits for one of the processes to end. Its slot and wait status.
fn ended(slots: &[Slot]) -> Option<(usize, i32)> {
    let mut status = 0i32;
    let pid = sys!(libc::SYS_wait4, -1, &mut status as *mut i32, libc::WNOHANG, 0);
    let slot = slots.iter().position(|slot| i64::from(slot.pid) == pid)?;
    Some((slot, status))
}

/// CALLS calls, some processes at a time.
pub fn many(seed: &str, calls: &str, place: &str) {
    only_inside();
    let seed = u64::from_str_radix(seed, 16).unwrap_or(1);
    let calls: u64 = calls.parse().unwrap_or(0);
    let words = shared_words();
    let beats = &words[SLOTS];
    // Later, root may have done something to it.
    let null = open("/dev/null", libc::O_RDWR, 0) as i32;
    let worker = child(|| honest(beats));
    let (mut made, mut lives, mut stuck) = (0u64, 0u64, 0u64);
    let mut slots: Vec<Slot> = (0..SLOTS)
        .map(|slot| {
            lives += 1;
            start(slot, seed.wrapping_add(lives), &words[slot], place, null)
        })
        .collect();
    println!("started");
    let mut beat = (0, now());
    while made < calls {
        if let Some((slot, status)) = ended(&slots) {
            let of = &slots[slot];
            made += u64::from(words[slot].load(Ordering::Relaxed));
            if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == CANARY {
                println!("seed {:x}: memory was written that no call was told to", of.seed);
                exit(FAILED);
            }
            // What it started goes with it.
            kill(-of.pid, libc::SIGKILL);
            tidy(place, slot, of.seed);
            lives += 1;
            slots[slot] = start(slot, seed.wrapping_add(lives), &words[slot], place, null);
            continue;
        }
        let time = now();
        for (slot, of) in slots.iter_mut().enumerate() {
            let progress = words[slot].load(Ordering::Relaxed);
            if progress != of.progress {
                (of.progress, of.since) = (progress, time);
            } else if time - of.since > PATIENCE {
                stuck += 1;
                of.since = time;
                kill(of.pid, libc::SIGKILL);
            }
        }
        let now_at = beats.load(Ordering::Relaxed);
        if now_at != beat.0 {
            beat = (now_at, time);
        } else if time - beat.1 > 20_000_000_000 {
            println!("seed {seed:x}: the honest process has stood still for 20 s");
            exit(FAILED);
        }
        sleep_ms(1);
    }
    for (slot, of) in slots.iter().enumerate() {
        kill(of.pid, libc::SIGKILL);
        kill(-of.pid, libc::SIGKILL);
        tidy(place, slot, of.seed);
    }
    let mut status = 0i32;
    if sys!(libc::SYS_wait4, worker, &mut status as *mut i32, libc::WNOHANG, 0) != 0 {
        println!("the honest process ended: wait status {status:#x}");
        exit(FAILED);
    }
    kill(worker, libc::SIGKILL);
    while sys!(libc::SYS_wait4, -1, 0, 0, 0) > 0 {}
    println!("{made} calls in {lives} lives, {stuck} of them stopped");
    // Whoever started the sandbox looks at what it holds now.
    println!("settled");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    println!("survived");
}

/// The calls of one process, shown.
pub fn one(seed: &str) {
    only_inside();
    let seed = u64::from_str_radix(seed, 16).unwrap_or(1);
    live(seed, 0, &shared_words()[0], true)
}
