//! `--io-rate`: how many bytes a second guests read and write of files and of the standard descriptors.
//!
//! A call is made first and paid for then: its thread waits until the rate has caught up with what all have used. So a
//! call never becomes a shorter one, and the rate holds over any time that is long against the largest call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::inode::Inode;

use crate::stdio::HostStdio;
use crate::task::Thread;

/// What was not used may be used later, as much as the rate gives in this time.
const BURST: Duration = Duration::from_millis(100);

/// When time began.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A token bucket.
#[derive(Default)]
pub(crate) struct Rate {
    /// Until when what was used has to be paid, in nanoseconds since the start.
    paid: AtomicU64,
    told: AtomicBool,
}

impl Rate {
    /// Charges bytes at so many a second; how long to wait for them.
    fn charge(&self, bytes: u64, rate: u64) -> Duration {
        self.charge_at(bytes, rate, nanos(START.elapsed()))
    }

    fn charge_at(&self, bytes: u64, rate: u64, now: u64) -> Duration {
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let more = |paid: u64| paid.max(now.saturating_sub(nanos(BURST))).saturating_add(cost);
        let before = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(more(paid)));
        let paid = more(before.unwrap_or_else(|paid| paid));
        Duration::from_nanos(paid.saturating_sub(now))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a call will have used for each byte that it answers: 1, or 2 for one that copies from file to file. Before the
/// call: it may close what it is about.
pub(crate) fn weight(thread: &Thread, args: &SyscallArgs) -> u64 {
    let of: &[usize] = match args.nr as i64 {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[0],
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => &[0],
        libc::SYS_sendfile => &[0, 1],
        libc::SYS_splice | libc::SYS_copy_file_range => &[0, 2],
        _ => return 0,
    };
    let files = thread.files();
    let counts = |arg: &&usize| files.get(args.args[**arg] as i32).is_ok_and(|file| is_counted(&file));
    of.iter().filter(counts).count() as u64
}

fn is_counted(file: &File) -> bool {
    let is_regular = |inode: &Arc<dyn Inode>| inode.permissions().is_ok_and(|permissions| permissions.is_regular());
    HostStdio::of(file).is_some() || file.path().inode().is_some_and(is_regular)
}

/// What a thread still has to pay for. Who is killed meanwhile leaves the rest to all: it was used.
struct Debt<'a> {
    rate: &'a Rate,
    limit: u64,
    bytes: u64,
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        self.rate.charge(self.bytes, self.limit);
    }
}

/// Pays for the bytes of a call: waits. By the piece, so that others get their turn meanwhile.
pub(crate) async fn pay(thread: &Arc<Thread>, bytes: u64) {
    let kernel = thread.kernel();
    let Some(limit) = kernel.quota.limits.io_rate else {
        return;
    };
    let rate = &kernel.quota.io_rate;
    let mut debt = Debt { rate, limit, bytes };
    while debt.bytes > 0 {
        let piece = debt.bytes.min(limit / 20).max(1);
        debt.bytes -= piece;
        let wait = rate.charge(piece, limit);
        if wait.is_zero() {
            continue;
        }
        if !rate.told.swap(true, Ordering::Relaxed) {
            kernel.limit_reached("io-rate", limit, limit, "throttled", Some(thread));
        }
        let deadline = crate::executor::Deadline::after(wait);
        kernel.executor().sleep_until(deadline).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_waits() {
        let rate = Rate::default();
        let second = 1_000_000_000;
        let now = 10 * second;
        // The burst, and not a byte more.
        assert_eq!(rate.charge_at(100, 1000, now), Duration::ZERO);
        assert_eq!(rate.charge_at(500, 1000, now), Duration::from_millis(500));
        assert_eq!(rate.charge_at(500, 1000, now), Duration::from_secs(1));
        assert_eq!(rate.charge_at(0, 1000, now + second), Duration::ZERO);
        assert!(rate.charge_at(u64::MAX, 1, now) > Duration::from_secs(1 << 32));
        assert!(rate.charge_at(u64::MAX, 1, now) > Duration::from_secs(1 << 32));
    }
}
