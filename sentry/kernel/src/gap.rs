//! The record of what guests asked for and this kernel does not do.

use std::collections::BTreeMap;

use sentry_lock::{Mutex, rank};

/// Counts of unimplemented calls, flags and ioctls by name.
#[derive(Default)]
pub struct Gaps {
    seen: Mutex<BTreeMap<String, u64>, rank::Gaps>,
}

/// More names than this are counted together: guests choose some of the names.
const MAX_NAMES: usize = 1024;

impl Gaps {
    /// Counts one use; the first one of a name is logged.
    pub fn hit(&self, name: &str, log: bool) {
        let mut seen = self.seen.lock();
        if let Some(count) = seen.get_mut(name) {
            *count += 1;
            return;
        }
        let name = if seen.len() < MAX_NAMES { name } else { "(more)" };
        let first = seen.insert(name.to_owned(), 1).is_none();
        drop(seen);
        if first && log {
            eprintln!("sentry: not implemented: {name}");
        }
    }

    /// All names with their counts.
    pub fn list(&self) -> Vec<(String, u64)> {
        self.seen
            .lock()
            .iter()
            .map(|(name, count)| (name.clone(), *count))
            .collect()
    }
}

/// Notes that a guest asked for something this kernel does not do: `gap!(kernel, "ioctl 0x{:x}", request)`. The
/// caller then answers the errno that Linux would.
#[macro_export]
macro_rules! gap {
    ($kernel:expr, $($name:tt)+) => {
        $kernel.gaps.hit(&format!($($name)+), $kernel.log_gaps)
    };
}
