//! The machine as a whole: memory, load, processors, barriers.

use sentry_abi::Errno;

/// What sysinfo(2) says.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Totals {
    /// Seconds since the start of the machine.
    pub uptime: i64,
    /// Load averages over 1, 5 and 15 minutes, times 65536.
    pub loads: [u64; 3],
    /// All in bytes.
    pub total_ram: u64,
    pub free_ram: u64,
    pub shared_ram: u64,
    pub buffer_ram: u64,
    pub total_swap: u64,
    pub free_swap: u64,
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().into()
}

/// Memory and load of the host.
pub fn totals() -> Result<Totals, Errno> {
    // SAFETY: all zeroes is a valid `sysinfo`.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for the call.
    if unsafe { libc::sysinfo(&raw mut info) } < 0 {
        return Err(last_error());
    }
    let bytes = |count: u64| count.saturating_mul(u64::from(info.mem_unit.max(1)));
    Ok(Totals {
        uptime: info.uptime,
        loads: info.loads,
        total_ram: bytes(info.totalram),
        free_ram: bytes(info.freeram),
        shared_ram: bytes(info.sharedram),
        buffer_ram: bytes(info.bufferram),
        total_swap: bytes(info.totalswap),
        free_swap: bytes(info.freeswap),
    })
}

/// The numbers of the processors that this process may use, ascending; at least one.
pub fn processors() -> Vec<usize> {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the given number of bytes; `cpu_set_t` is an array of words.
    let len = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            std::mem::size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    };
    let words = usize::try_from(len).unwrap_or(0) / 8;
    let set = |&cpu: &usize| mask[cpu / 64] & (1 << (cpu % 64)) != 0;
    let list: Vec<usize> = (0..words.min(mask.len()) * 64).filter(set).collect();
    if list.is_empty() { vec![0] } else { list }
}

/// The processor that the caller runs on.
pub fn current_processor() -> u32 {
    // SAFETY: takes no memory.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// membarrier(2) `MEMBARRIER_CMD_GLOBAL`: after it, every running thread of the machine has passed a full barrier.
/// Takes milliseconds.
pub fn global_barrier() -> Result<(), Errno> {
    const GLOBAL: i32 = 1;
    // SAFETY: takes no memory.
    if unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } < 0 {
        Err(last_error())
    } else {
        Ok(())
    }
}

/// Whether [`global_barrier`] works here.
pub fn has_global_barrier() -> bool {
    // SAFETY: takes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) & 1 == 1 }
}

/// cpuid: eax, ebx, ecx, edx of a leaf; zeroes beyond the last leaf.
pub fn cpuid(leaf: u32, sub: u32) -> [u32; 4] {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let last = __cpuid(leaf & 0x8000_0000).eax;
    if leaf > last {
        return [0; 4];
    }
    let answer = __cpuid_count(leaf, sub);
    [answer.eax, answer.ebx, answer.ecx, answer.edx]
}

/// The number of the calling thread in its PID namespace.
pub fn thread_id() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Gives what is free in the heap back to the host.
pub fn trim_heap() {
    // SAFETY: has no preconditions; it takes the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn says_something() {
        assert!(totals().unwrap().total_ram > 1 << 20);
        assert!(processors().windows(2).all(|pair| pair[0] < pair[1]));
        if has_global_barrier() {
            global_barrier().unwrap();
        }
    }
}
