//! How much may wait at sockets, at each one and at all of them together.

use std::sync::atomic::{AtomicUsize, Ordering};

use sentry_abi::Errno;

use crate::objects;

/// What may wait at all sockets of the sandbox before each one takes a little only, in bytes and as a part of the
/// sandbox's memory.
const SOFT_TOTAL: usize = 64 << 20;
const SOFT_PART: usize = 8;
/// Beyond this, each one takes next to nothing.
const HARD_TOTAL: usize = 256 << 20;
const HARD_PART: usize = 4;
/// What a socket takes then.
const LITTLE: usize = 8 << 10;
const LEAST: usize = 1 << 10;

fn soft() -> usize {
    objects::share(SOFT_TOTAL, SOFT_PART)
}

fn hard() -> usize {
    objects::share(HARD_TOTAL, HARD_PART)
}

/// What waits at all sockets.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// The bytes that wait at one socket, counted in the total as long as they do.
#[derive(Default)]
pub(super) struct Queued(usize);

impl Queued {
    pub fn get(&self) -> usize {
        self.0
    }

    pub fn add(&mut self, bytes: usize) {
        self.0 += bytes;
        TOTAL.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn remove(&mut self, bytes: usize) {
        let bytes = bytes.min(self.0);
        self.0 -= bytes;
        TOTAL.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn clear(&mut self) {
        self.remove(self.0);
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.clear();
    }
}

/// How much may wait at a socket where it would be `limit` if there were nothing else.
pub(super) fn room(limit: usize) -> usize {
    room_beside(limit, TOTAL.load(Ordering::Relaxed))
}

fn room_beside(limit: usize, total: usize) -> usize {
    match total {
        _ if total < soft() => limit,
        _ if total < hard() => limit.min(LITTLE),
        _ => limit.min(LEAST),
    }
}

/// `ENOBUFS` for a packet of so many bytes that there is no memory for: it would be sent whole to an empty socket.
pub(super) fn check_packet(len: usize) -> Result<(), Errno> {
    check_packet_beside(len, TOTAL.load(Ordering::Relaxed))
}

fn check_packet_beside(len: usize, total: usize) -> Result<(), Errno> {
    if len > LEAST && total.saturating_add(len) > hard() {
        return Err(Errno::ENOBUFS);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_until_it_is_gone() {
        let mut queued = Queued::default();
        queued.add(1 << 30);
        assert!(TOTAL.load(Ordering::Relaxed) >= 1 << 30);
        queued.remove(1 << 29);
        assert_eq!(queued.get(), 1 << 29);
        queued.remove(usize::MAX);
        queued.add(1 << 40);
        drop(queued);
        assert!(TOTAL.load(Ordering::Relaxed) < 1 << 30);
    }

    #[test]
    fn each_takes_little_when_all_have_much() {
        assert_eq!(room_beside(200_000, SOFT_TOTAL - 1), 200_000);
        assert_eq!(room_beside(200_000, SOFT_TOTAL), LITTLE);
        assert_eq!(room_beside(200_000, HARD_TOTAL), LEAST);
        assert_eq!(room_beside(100, usize::MAX), 100);
        assert_eq!(check_packet_beside(200_000, 0), Ok(()));
        assert_eq!(check_packet_beside(LEAST, usize::MAX), Ok(()));
        assert_eq!(check_packet_beside(LEAST + 1, HARD_TOTAL), Err(Errno::ENOBUFS));
    }
}
