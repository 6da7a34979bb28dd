//! The host's clocks.

/// Reads a host clock (`CLOCK_*`): seconds and nanoseconds.
pub fn get(clock: i32) -> Option<(i64, u32)> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result == 0 {
        Some((time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0)))
    } else {
        None
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    let (sec, nsec) = get(libc::CLOCK_MONOTONIC).unwrap_or((0, 0));
    u64::try_from(sec).unwrap_or(0) * 1_000_000_000 + u64::from(nsec)
}

/// The CPU time used by a process of this PID namespace, in nanoseconds, as `clock_getcpuclockid(3)` names its clock.
/// None once the process has been reaped.
pub fn process_cpu_nanos(pid: u32) -> Option<u64> {
    // CPUCLOCK_SCHED.
    process_clock(pid, 2)
}

/// The part of it that was spent in user mode. The host may count it by clock ticks.
pub fn process_user_nanos(pid: u32) -> Option<u64> {
    // CPUCLOCK_VIRT.
    process_clock(pid, 1)
}

/// The CPU time used by a thread of this PID namespace, in nanoseconds. None once it has ended.
pub fn thread_cpu_nanos(tid: u32) -> Option<u64> {
    // CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED.
    process_clock(tid, 4 | 2)
}

/// The kernel's `MAKE_PROCESS_CPUCLOCK(pid, clock)`, or `MAKE_THREAD_CPUCLOCK`.
fn process_clock(pid: u32, clock: i32) -> Option<u64> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0 && pid < 1 << 28)?;
    let (sec, nsec) = get((!pid) << 3 | clock)?;
    Some(
        u64::try_from(sec)
            .ok()?
            .saturating_mul(1_000_000_000)
            .saturating_add(nsec.into()),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_process() {
        assert!(process_cpu_nanos(std::process::id()).unwrap() > 0);
        assert_eq!(process_cpu_nanos(0), None);
        assert_eq!(process_cpu_nanos(u32::MAX), None);
    }

    #[test]
    fn cpu_time_of_a_thread() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            let start = std::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(20) {}
            send.send(nix::unistd::gettid().as_raw().cast_unsigned()).unwrap();
            let _ = wait.recv();
        });
        let tid = receive.recv().unwrap();
        assert!(thread_cpu_nanos(tid).unwrap() > 1_000_000);
        drop(end);
        other.join().unwrap();
        assert_eq!(thread_cpu_nanos(0), None);
    }

    #[test]
    fn user_time_of_a_process() {
        let start = process_user_nanos(std::process::id()).unwrap();
        // It comes in ticks of up to 10 ms.
        while process_user_nanos(std::process::id()).unwrap() < start + 20_000_000 {
            std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
        }
        assert!(process_cpu_nanos(std::process::id()).unwrap() >= process_user_nanos(std::process::id()).unwrap() / 2);
        assert_eq!(process_user_nanos(0), None);
    }
}
