//! Calls that the stub answers itself, and the buffers it brings along with others.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::exchange;
use crate::layout::*;
use crate::sys;

/// What became of a call.
pub enum Answer {
    /// Its result.
    Result(i64),
    /// A kick interrupted it.
    Interrupted,
    /// The sentry has to answer.
    Sentry,
}

const MAP_PRIVATE: u64 = 0x02;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_FIXED: u64 = 2;
/// PRIVATE, FIXED, ANONYMOUS, DENYWRITE, EXECUTABLE, NORESERVE, POPULATE, NONBLOCK, STACK, FIXED_NOREPLACE.
const MMAP_FLAGS: u64 = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | 0x800 | 0x1000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000 | MAP_FIXED_NOREPLACE;

/// Answers a call if it concerns nothing but the caller's own address space and identity.
pub fn answer(slot: &Slot, rip: u64, nr: u64, a: &[u64; 6]) -> Answer {
    let value = match nr {
        39 => i64::from(slot.pid.load(Relaxed)),
        186 => i64::from(slot.tid.load(Relaxed)),
        102 => i64::from(slot.uid.load(Relaxed)),
        104 => i64::from(slot.gid.load(Relaxed)),
        107 => i64::from(slot.euid.load(Relaxed)),
        108 => i64::from(slot.egid.load(Relaxed)),
        24 => sys::call(sys::SCHED_YIELD, [0; 6]),
        228 => return clock_gettime(slot, a),
        202 => return futex(slot, rip, a),
        9 | 10 | 11 | 12 | 25 | 28 => return memory(nr, a),
        _ => return Answer::Sentry,
    };
    Answer::Result(value)
}

fn clock_gettime(slot: &Slot, a: &[u64; 6]) -> Answer {
    // Only the clocks that the vDSO reads without a system call of its own.
    if !matches!(a[0], 0 | 1 | 4 | 5 | 6 | 7 | 11) {
        return Answer::Sentry;
    }
    match now(slot, a[0]) {
        Some(time) if sys::copy(a[1], time.as_ptr() as u64, 16) == 16 => Answer::Result(0),
        Some(_) => Answer::Result(sys::EFAULT),
        None => Answer::Sentry,
    }
}

/// Reads a clock by the host's vDSO. A kick in there must not be taken for one in guest code.
fn now(slot: &Slot, clock: u64) -> Option<[u64; 2]> {
    let address = sys::clock_gettime();
    if address == 0 {
        return None;
    }
    let mut time = [0u64; 2];
    let function: extern "C" fn(u64, *mut u64) -> i32 = unsafe { core::mem::transmute(address as usize) };
    slot.in_vdso.store(1, Relaxed);
    let result = function(clock, time.as_mut_ptr());
    slot.in_vdso.store(0, Relaxed);
    (result == 0).then_some(time)
}

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_CLOCK_REALTIME: u64 = 256;

fn futex(slot: &Slot, rip: u64, a: &[u64; 6]) -> Answer {
    let command = a[1] & 0x7f;
    if a[1] & !(0x7f | 128 | FUTEX_CLOCK_REALTIME) != 0 || a[0] >= sys::guest_high() {
        return Answer::Sentry;
    }
    match command {
        1 | 3 | 4 | 5 | 10 => {
            if matches!(command, 3 | 4 | 5) && a[4] >= sys::guest_high() {
                return Answer::Sentry;
            }
            Answer::Result(sys::call(202, *a))
        }
        FUTEX_WAIT | FUTEX_WAIT_BITSET => wait(slot, rip, command, a),
        _ => Answer::Sentry,
    }
}

/// A wait, with its time-out (if any) made absolute so that a restart does not lengthen it.
fn wait(slot: &Slot, rip: u64, command: u64, a: &[u64; 6]) -> Answer {
    let mut call = *a;
    let mut deadline = [0u64; 2];
    if a[3] != 0 {
        if sys::copy(deadline.as_mut_ptr() as u64, a[3], 16) != 16 {
            return Answer::Result(sys::EFAULT);
        }
        if command == FUTEX_WAIT {
            if a[1] & FUTEX_CLOCK_REALTIME != 0 {
                return Answer::Sentry;
            }
            if slot.restart_rip.load(Relaxed) == rip && slot.restart_addr.load(Relaxed) == a[0] {
                deadline = [slot.restart_sec.load(Relaxed), slot.restart_nsec.load(Relaxed)];
            } else {
                if deadline[0] as i64 > i64::MAX / 4 || (deadline[0] as i64) < 0 || deadline[1] >= 1_000_000_000 {
                    // The host finds the right error; a time-out of centuries needs no care.
                    return interruptible(slot, &call);
                }
                let Some(time) = now(slot, 1) else { return Answer::Sentry };
                deadline[0] += time[0];
                deadline[1] += time[1];
                if deadline[1] >= 1_000_000_000 {
                    deadline[0] += 1;
                    deadline[1] -= 1_000_000_000;
                }
            }
            call[1] = (a[1] & !0x7f) | FUTEX_WAIT_BITSET;
            call[5] = 0xffff_ffff;
        }
        call[3] = deadline.as_ptr() as u64;
    }
    let result = interruptible(slot, &call);
    if matches!(result, Answer::Interrupted) && a[3] != 0 && command == FUTEX_WAIT {
        slot.restart_addr.store(a[0], Relaxed);
        slot.restart_sec.store(deadline[0], Relaxed);
        slot.restart_nsec.store(deadline[1], Relaxed);
        slot.restart_rip.store(rip, Relaxed);
    }
    result
}

fn interruptible(slot: &Slot, call: &[u64; 6]) -> Answer {
    slot.waiting.store(1, Relaxed);
    let result = sys::futex(*call, slot.kicked.as_ptr());
    slot.waiting.store(0, Relaxed);
    match result {
        sys::EINTR => Answer::Interrupted,
        value => Answer::Result(value),
    }
}

/// Runs `work` with the process's memory lock held.
pub fn locked<T>(work: impl FnOnce() -> T) -> T {
    let lock = &exchange::header().lock;
    let (mut tries, mut held) = (0, 1);
    while lock.compare_exchange(0, held, Acquire, Relaxed).is_err() {
        tries += 1;
        if tries < 100 {
            core::hint::spin_loop();
        } else if lock.swap(2, Acquire) == 0 {
            break;
        } else {
            // Others may sleep too: who has slept takes the lock as one with sleepers, or they are forgotten.
            held = 2;
            sys::call(202, [lock.as_ptr() as u64, 128, 2, 0, 0, 0]);
        }
    }
    let result = work();
    if lock.swap(0, Release) == 2 {
        sys::call(202, [lock.as_ptr() as u64, 129, 1, 0, 0, 0]);
    }
    result
}

fn log(kind: u32, flags: u32, a: [u64; 4]) {
    let header = exchange::header();
    let head = header.log_head.load(Relaxed);
    let entry = &header.log[head as usize % LOG_ENTRIES];
    entry.kind.store(kind, Relaxed);
    entry.flags.store(flags, Relaxed);
    for (to, from) in entry.a.iter().zip(a) {
        to.store(from, Relaxed);
    }
    header.log_head.store(head.wrapping_add(1), Release);
}

fn log_has_room() -> bool {
    let header = exchange::header();
    header.log_head.load(Relaxed).wrapping_sub(header.log_tail.load(Acquire)) < LOG_ENTRIES as u64 - 1
}

fn in_guest(addr: u64, len: u64) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= sys::guest_high())
}

fn memory(nr: u64, a: &[u64; 6]) -> Answer {
    locked(|| {
        if !log_has_room() {
            return Answer::Sentry;
        }
        match nr {
            sys::MMAP => mmap(a),
            sys::MUNMAP if in_guest(a[0], a[1]) => {
                let result = sys::call(sys::MUNMAP, [a[0], a[1], 0, 0, 0, 0]);
                if result == 0 {
                    log(log::MUNMAP, 0, [a[0], a[1], 0, 0]);
                }
                Answer::Result(result)
            }
            sys::MPROTECT if in_guest(a[0], a[1]) && a[2] & !7 == 0 => {
                let result = sys::call(sys::MPROTECT, [a[0], a[1], a[2], 0, 0, 0]);
                // One that failed may have changed a part.
                if result == 0 || result == sys::ENOMEM || result == sys::EACCES {
                    log(log::MPROTECT, 0, [a[0], a[1], a[2], result as u64]);
                }
                Answer::Result(result)
            }
            sys::MREMAP if in_guest(a[0], a[1]) && in_guest(a[4], a[2]) && a[3] & !3 == 0 && in_guest(a[0], a[2]) => {
                let result = sys::call(sys::MREMAP, [a[0], a[1], a[2], a[3], a[4], 0]);
                if result >= 0 {
                    log(log::MREMAP, a[3] as u32, [a[0], a[1], a[2], result as u64]);
                } else if a[3] & MREMAP_FIXED != 0 {
                    left_behind(a);
                }
                Answer::Result(result)
            }
            sys::MADVISE if in_guest(a[0], a[1]) && matches!(a[2], 0..=4 | 8 | 14 | 15 | 20 | 21 | 22 | 23) => {
                Answer::Result(sys::call(sys::MADVISE, [a[0], a[1], a[2], 0, 0, 0]))
            }
            12 => brk(a[0]),
            _ => Answer::Sentry,
        }
    })
}

/// Logs what a failed mremap(2) to a fixed address has unmapped: its target, and what lay beyond the new length.
fn left_behind(a: &[u64; 6]) {
    let (new_addr, old, new) = (a[4], page_up(a[1]), page_up(a[2]));
    let note = |addr: u64, len: u64| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        // Taken for a moment: only where nothing is left does that work.
        if len > 0 && log_has_room() && sys::call(sys::MMAP, [addr, len, 0, flags, u64::MAX, 0]) == addr as i64 {
            sys::call(sys::MUNMAP, [addr, len, 0, 0, 0, 0]);
            log(log::MUNMAP, 0, [addr, len, 0, 0]);
        }
    };
    note(new_addr, new);
    note(a[0].wrapping_add(new), old.saturating_sub(new));
}

fn mmap(a: &[u64; 6]) -> Answer {
    let (addr, len, prot, flags) = (a[0], a[1], a[2], a[3]);
    if flags & (MAP_PRIVATE | MAP_ANONYMOUS) != MAP_PRIVATE | MAP_ANONYMOUS
        || flags & !MMAP_FLAGS != 0
        || prot & !7 != 0
        || !in_guest(addr, len)
    {
        return Answer::Sentry;
    }
    let result = sys::call(sys::MMAP, [addr, len, prot, flags, u64::MAX, 0]);
    if result >= 0 {
        log(log::MMAP, flags as u32, [result as u64, len, prot, 0]);
    }
    Answer::Result(result)
}

fn page_up(value: u64) -> u64 {
    (value + 4095) & !4095
}

fn brk(want: u64) -> Answer {
    let header = exchange::header();
    let (start, end, limit) =
        (header.brk_start.load(Relaxed), header.brk_end.load(Relaxed), header.brk_limit.load(Relaxed));
    if start == 0 {
        return Answer::Sentry;
    }
    if want < start || want > limit || limit > sys::guest_high() {
        return Answer::Result(end as i64);
    }
    let (old, new) = (page_up(end), page_up(want));
    let result = if new > old {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        let result = sys::call(sys::MMAP, [old, new - old, 3, flags, u64::MAX, 0]);
        if result == old as i64 { 0 } else { -1 }
    } else if new < old {
        sys::call(sys::MUNMAP, [new, old - new, 0, 0, 0, 0])
    } else {
        0
    };
    if result != 0 {
        return Answer::Result(end as i64);
    }
    header.brk_end.store(want, Relaxed);
    if new != old {
        log(log::BRK, 0, [want, 0, 0, 0]);
    }
    Answer::Result(want as i64)
}

/// Copies strings and small buffers that the call will need into the data area.
pub fn prefetch(slot: &Slot, nr: u64, a: &[u64; 6]) {
    match nr {
        // open stat lstat access chdir rename mkdir rmdir creat link unlink symlink readlink chmod chown lchown execve
        2 | 4 | 6 | 21 | 59 | 80 | 83 | 84 | 85 | 87 | 89 | 90 | 92 | 94 | 76 | 137 => string(slot, 0, a[0]),
        82 | 86 | 88 => {
            string(slot, 0, a[0]);
            string(slot, 1, a[1]);
        }
        // openat mkdirat mknodat fchownat futimesat newfstatat unlinkat readlinkat fchmodat faccessat utimensat
        // execveat statx openat2 faccessat2 fchmodat2
        257..=263 | 267 | 268 | 269 | 280 | 322 | 332 | 437 | 439 | 452 => string(slot, 0, a[1]),
        264 | 316 => {
            string(slot, 0, a[1]);
            string(slot, 1, a[3]);
        }
        // write pwrite64 sendto
        1 | 18 | 44 => buffer(slot, 0, a[1], a[2]),
        // writev readv: the vector
        19 | 20 => buffer(slot, 0, a[1], a[2].saturating_mul(16)),
        // poll, ppoll
        7 => buffer(slot, 0, a[0], a[1].saturating_mul(8)),
        271 => {
            buffer(slot, 0, a[0], a[1].saturating_mul(8));
            buffer(slot, 1, a[2], 16);
        }
        // rt_sigaction, rt_sigprocmask
        13 => buffer(slot, 0, a[1], 32),
        14 => buffer(slot, 0, a[1], 8),
        // nanosleep, clock_nanosleep
        35 => buffer(slot, 0, a[0], 16),
        230 => buffer(slot, 0, a[2], 16),
        // epoll_ctl
        233 => buffer(slot, 0, a[3], 12),
        _ => {}
    }
}

fn place(slot: &Slot, index: usize) -> u64 {
    slot as *const Slot as u64 + (DATA_OFFSET + index * PREFETCH_MAX) as u64
}

fn string(slot: &Slot, index: usize, addr: u64) {
    if addr != 0 && addr < sys::guest_high() {
        let len = sys::copy_string(place(slot, index), addr, PREFETCH_MAX as u64);
        slot.prefetch_addr[index].store(addr, Relaxed);
        slot.prefetch_len[index].store(len as u32, Relaxed);
    }
}

fn buffer(slot: &Slot, index: usize, addr: u64, len: u64) {
    if addr != 0 && len != 0 && len <= PREFETCH_MAX as u64 && in_guest(addr, len) {
        let done = sys::copy(place(slot, index), addr, len);
        slot.prefetch_addr[index].store(addr, Relaxed);
        slot.prefetch_len[index].store(done as u32, Relaxed);
    }
}
