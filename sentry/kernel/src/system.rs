//! The machine that guests see: its version, processors and memory.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use sentry_host::system::Totals;

/// What uname(2) calls the system.
pub const SYSNAME: &str = "Linux";
/// The version of Linux whose interface this is, in the one place where it stands.
pub const RELEASE: &str = "6.12.0";
/// uname(2)'s version field.
pub const VERSION: &str = "#1 SMP PREEMPT_DYNAMIC sentry";
/// uname(2)'s machine.
pub const MACHINE: &str = "x86_64";

/// The numbers of the processors that guests may use.
pub fn processors() -> &'static [usize] {
    static LIST: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let mut all = sentry_host::system::processors();
        all.truncate(MOST.load(Ordering::Relaxed));
        all
    });
    &LIST
}

static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Guests are to see at most so many processors. To be called before anything else looks.
pub fn limit_processors(most: usize) {
    MOST.store(most.max(1), Ordering::Relaxed);
}

/// Processors as a bit mask of 64-bit words.
pub fn processor_mask() -> Vec<u64> {
    let mut mask = vec![0; processors().last().map_or(1, |last| last / 64 + 1)];
    for cpu in processors() {
        if let Some(word) = mask.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    mask
}

/// Processors as a list of ranges (`0-3,7`).
pub fn processor_list() -> String {
    ranges(processors())
}

/// The processors of a bit mask of 64-bit words.
pub fn mask_processors(mask: &[u64]) -> impl Iterator<Item = usize> + '_ {
    let has = |&cpu: &usize| mask.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0);
    (0..mask.len() * 64).filter(has)
}

/// The processors of a bit mask of 64-bit words, as a list of ranges.
pub fn mask_list(mask: &[u64]) -> String {
    ranges(&mask_processors(mask).collect::<Vec<_>>())
}

fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Memory and load: the host's.
pub fn totals() -> Totals {
    sentry_host::system::totals().unwrap_or_default()
}

/// cpuid, for the auxiliary vector and /proc/cpuinfo.
pub mod cpuid {
    /// The four registers of a leaf.
    pub fn leaf(leaf: u32, sub: u32) -> [u32; 4] {
        sentry_host::system::cpuid(leaf, sub)
    }

    /// `AT_HWCAP`: cpuid(1).edx.
    pub fn hwcap() -> u64 {
        u64::from(leaf(1, 0)[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(ranges(&[0]), "0");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(mask_list(&[0b1011, 1]), "0-1,3,64");
    }
}
