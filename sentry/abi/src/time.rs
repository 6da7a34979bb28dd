//! Clocks, timers and usage: clock_gettime(2), timer_create(2), getrusage(2).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Errno;

/// Nanoseconds in a second.
pub const NANOS: u64 = 1_000_000_000;

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

impl Timespec {
    /// From nanoseconds.
    pub fn from_nanos(nanos: u64) -> Timespec {
        Timespec {
            sec: (nanos / NANOS) as i64,
            nsec: (nanos % NANOS) as i64,
        }
    }

    /// As nanoseconds, no more than fit; `EINVAL` for a negative time or a wrong fraction.
    pub fn to_nanos(self) -> Result<u64, Errno> {
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        let nsec = u64::try_from(self.nsec)
            .ok()
            .filter(|&nsec| nsec < NANOS)
            .ok_or(Errno::EINVAL)?;
        Ok(sec.saturating_mul(NANOS).saturating_add(nsec))
    }
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

impl Timeval {
    /// From nanoseconds, rounded down.
    pub fn from_nanos(nanos: u64) -> Timeval {
        Timeval {
            sec: (nanos / NANOS) as i64,
            usec: (nanos % NANOS / 1000) as i64,
        }
    }

    /// From nanoseconds, rounded up (time left on a timer is never 0 while it is armed).
    pub fn from_nanos_up(nanos: u64) -> Timeval {
        Timeval::from_nanos(nanos.saturating_add(999))
    }

    /// As nanoseconds; `EINVAL` for a negative time or a wrong fraction.
    pub fn to_nanos(self) -> Result<u64, Errno> {
        if !(0..1_000_000).contains(&self.usec) {
            return Err(Errno::EINVAL);
        }
        Timespec {
            sec: self.sec,
            nsec: self.usec * 1000,
        }
        .to_nanos()
    }
}

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Itimerspec {
    pub interval: Timespec,
    pub value: Timespec,
}

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Itimerval {
    pub interval: Timeval,
    pub value: Timeval,
}

/// `struct tms` (times(2)), in clock ticks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Tms {
    pub utime: i64,
    pub stime: i64,
    pub cutime: i64,
    pub cstime: i64,
}

/// `struct timezone`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Timezone {
    pub minutes_west: i32,
    pub dst_time: i32,
}

/// `struct sigevent`, as far as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Sigevent {
    pub value: u64,
    pub signo: i32,
    pub notify: i32,
    pub tid: i32,
    pub pad: [u32; 11],
}

/// `struct __kernel_timex` (adjtimex(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Timex {
    pub modes: u32,
    pub pad0: u32,
    pub offset: i64,
    pub freq: i64,
    pub maxerror: i64,
    pub esterror: i64,
    pub status: i32,
    pub pad1: u32,
    pub constant: i64,
    pub precision: i64,
    pub tolerance: i64,
    pub time: Timeval,
    pub tick: i64,
    pub ppsfreq: i64,
    pub jitter: i64,
    pub shift: i32,
    pub pad2: u32,
    pub stabil: i64,
    pub jitcnt: i64,
    pub calcnt: i64,
    pub errcnt: i64,
    pub stbcnt: i64,
    pub tai: i32,
    pub pad3: [u32; 11],
}

const _: () = assert!(size_of::<Timex>() == 208 && size_of::<Sigevent>() == 64);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn conversions() {
        assert_eq!(Timespec { sec: 1, nsec: 5 }.to_nanos().unwrap(), NANOS + 5);
        assert_eq!(Timespec { sec: i64::MAX, nsec: 5 }.to_nanos().unwrap(), u64::MAX);
        assert_eq!(Timespec { sec: -1, nsec: 0 }.to_nanos(), Err(Errno::EINVAL));
        assert_eq!(
            Timespec {
                sec: 0,
                nsec: 1_000_000_000
            }
            .to_nanos(),
            Err(Errno::EINVAL)
        );
        assert_eq!(Timeval { sec: 0, usec: -1 }.to_nanos(), Err(Errno::EINVAL));
        assert_eq!(Timeval::from_nanos_up(1), Timeval { sec: 0, usec: 1 });
        assert_eq!(Timespec::from_nanos(NANOS * 2 + 7), Timespec { sec: 2, nsec: 7 });
    }
}
