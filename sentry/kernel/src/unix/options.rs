//! Options of sockets (socket(7)), as setsockopt(2) leaves them.

use std::time::Duration;

use bitflags::bitflags;

use super::BUFFER;

/// The smallest send buffer, in bytes.
const MIN_SEND_BUFFER: usize = 4608;
/// The smallest receive buffer, in bytes.
const MIN_RECEIVE_BUFFER: usize = 2304;

bitflags! {
    /// Options that are on or off.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u32 {
        /// `SO_PASSCRED`: messages come with their sender's credentials.
        const PASS_CRED = 1;
        /// `SO_PASSPIDFD`: messages come with a descriptor of their sender.
        const PASS_PIDFD = 2;
        /// `SO_TIMESTAMP`: messages come with a time, in microseconds.
        const TIMESTAMP = 4;
        /// `SO_TIMESTAMPNS`: messages come with a time, in nanoseconds.
        const TIMESTAMP_NANOS = 8;
        /// `SO_REUSEADDR`; of no effect on Unix sockets, as those that follow.
        const REUSE_ADDRESS = 0x10;
        /// `SO_KEEPALIVE`.
        const KEEP_ALIVE = 0x20;
        /// `SO_BROADCAST`.
        const BROADCAST = 0x40;
        /// `SO_OOBINLINE`.
        const OOB_INLINE = 0x80;
        /// `SO_DONTROUTE`.
        const DONT_ROUTE = 0x100;
        /// `SO_RXQ_OVFL`.
        const TELL_DROPS = 0x200;
    }
}

/// Options of setsockopt(2).
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Options {
    pub flags: Flags,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// Bytes that may be under way (`SO_SNDBUF`, which tells twice what was set).
    pub send_buffer: usize,
    /// `SO_RCVBUF`: kept and told; on Unix sockets the sender's buffer counts.
    pub receive_buffer: usize,
    /// `SO_RCVLOWAT`: how much a read of a stream waits for.
    pub low_water: usize,
    /// `SO_LINGER`: on or off, and seconds.
    pub linger: [i32; 2],
    /// `SO_PEEK_OFF`: where the next `MSG_PEEK` looks; negative: at the front.
    pub peek_offset: i32,
    pub priority: i32,
    pub mark: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            flags: Flags::empty(),
            receive_timeout: None,
            send_timeout: None,
            send_buffer: BUFFER,
            receive_buffer: BUFFER,
            low_water: 1,
            linger: [0; 2],
            peek_offset: -1,
            priority: 0,
            mark: 0,
        }
    }
}

/// What a buffer becomes when a size is asked for: within the limits, and doubled as Linux does.
fn doubled(wanted: i32, smallest: usize) -> usize {
    let wanted = usize::try_from(wanted as u32).unwrap_or(BUFFER).min(BUFFER);
    (2 * wanted).max(smallest)
}

impl Options {
    /// True if any of the flags is on.
    pub fn has(&self, flags: Flags) -> bool {
        self.flags.intersects(flags)
    }

    /// `SO_SNDBUF`.
    pub fn set_send_buffer(&mut self, wanted: i32) {
        self.send_buffer = doubled(wanted, MIN_SEND_BUFFER);
    }

    /// `SO_RCVBUF`.
    pub fn set_receive_buffer(&mut self, wanted: i32) {
        self.receive_buffer = doubled(wanted, MIN_RECEIVE_BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded() {
        let mut options = Options::default();
        for (wanted, got) in [
            (10_000, 20_000),
            (0, MIN_SEND_BUFFER),
            (i32::MAX, 2 * BUFFER),
            (-1, 2 * BUFFER),
        ] {
            options.set_send_buffer(wanted);
            assert_eq!(options.send_buffer, got);
        }
    }
}
