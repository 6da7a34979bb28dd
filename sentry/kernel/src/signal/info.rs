//! `siginfo_t`.

use super::Signal;

/// Information that goes with a signal, with the layout of `siginfo_t` (sigaction(2)) behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigInfo {
    /// The signal.
    pub signal: Signal,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`.
    pub code: i32,
    /// What follows at offset 16.
    pub(crate) fields: [u8; 112],
}

/// `si_code` values (the kernel's `asm-generic/siginfo.h`).
#[allow(missing_docs)]
impl SigInfo {
    pub const SI_USER: i32 = 0;
    pub const SI_KERNEL: i32 = 0x80;
    pub const SI_QUEUE: i32 = -1;
    pub const SI_TIMER: i32 = -2;
    pub const SI_MESGQ: i32 = -3;
    pub const SI_TKILL: i32 = -6;
    pub const CLD_EXITED: i32 = 1;
    pub const CLD_KILLED: i32 = 2;
    pub const CLD_DUMPED: i32 = 3;
    pub const CLD_STOPPED: i32 = 5;
    pub const CLD_CONTINUED: i32 = 6;
}

impl SigInfo {
    fn with(signal: Signal, code: i32, parts: &[(usize, &[u8])]) -> SigInfo {
        let mut fields = [0; 112];
        for (at, bytes) in parts {
            if let Some(place) = fields.get_mut(*at..*at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
        SigInfo {
            signal,
            errno: 0,
            code,
            fields,
        }
    }

    /// Sent by the kernel itself.
    pub fn kernel(signal: Signal) -> SigInfo {
        SigInfo::with(signal, SigInfo::SI_KERNEL, &[])
    }

    /// kill(2) (`SI_USER`), tkill(2) (`SI_TKILL`).
    pub fn user(signal: Signal, code: i32, pid: i32, uid: u32) -> SigInfo {
        SigInfo::with(signal, code, &[(0, &pid.to_ne_bytes()), (4, &uid.to_ne_bytes())])
    }

    /// A fault at an address.
    pub fn fault(signal: Signal, code: i32, address: u64) -> SigInfo {
        SigInfo::with(signal, code, &[(0, &address.to_ne_bytes())])
    }

    /// SIGCHLD: a child changed state. Times in clock ticks.
    pub fn child(code: i32, pid: i32, uid: u32, status: i32, utime: i64, stime: i64) -> SigInfo {
        let parts: [(usize, &[u8]); 5] = [
            (0, &pid.to_ne_bytes()),
            (4, &uid.to_ne_bytes()),
            (8, &status.to_ne_bytes()),
            (16, &utime.to_ne_bytes()),
            (24, &stime.to_ne_bytes()),
        ];
        SigInfo::with(Signal::CHLD, code, &parts)
    }

    /// A POSIX timer: its id, overruns, and `sigev_value`.
    pub fn timer(signal: Signal, id: i32, overrun: i32, value: u64) -> SigInfo {
        let parts: [(usize, &[u8]); 3] = [
            (0, &id.to_ne_bytes()),
            (4, &overrun.to_ne_bytes()),
            (8, &value.to_ne_bytes()),
        ];
        SigInfo::with(signal, SigInfo::SI_TIMER, &parts)
    }

    /// SIGIO and its like.
    pub fn poll(signal: Signal, code: i32, band: i64, fd: i32) -> SigInfo {
        SigInfo::with(signal, code, &[(0, &band.to_ne_bytes()), (8, &fd.to_ne_bytes())])
    }

    /// Sent with a value (`SI_QUEUE`, `SI_MESGQ`).
    pub fn value(signal: Signal, code: i32, pid: i32, uid: u32, value: u64) -> SigInfo {
        let parts: [(usize, &[u8]); 3] = [
            (0, &pid.to_ne_bytes()),
            (4, &uid.to_ne_bytes()),
            (8, &value.to_ne_bytes()),
        ];
        SigInfo::with(signal, code, &parts)
    }

    /// SIGSYS: the address behind the call, its number, the architecture.
    pub fn sys(code: i32, errno: i32, address: u64, nr: i32) -> SigInfo {
        let arch = 0xc000_003eu32;
        let parts: [(usize, &[u8]); 3] = [
            (0, &address.to_ne_bytes()),
            (8, &nr.to_ne_bytes()),
            (12, &arch.to_ne_bytes()),
        ];
        SigInfo {
            errno,
            ..SigInfo::with(Signal::SYS, code, &parts)
        }
    }

    /// From the 128 bytes of a guest's `siginfo_t` (rt_sigqueueinfo(2)); the number is given apart.
    pub fn from_bytes(signal: Signal, bytes: &[u8; 128]) -> SigInfo {
        let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut fields = [0; 112];
        fields.copy_from_slice(&bytes[16..]);
        SigInfo {
            signal,
            errno: word(4),
            code: word(8),
            fields,
        }
    }

    /// The 128 bytes of `siginfo_t`.
    pub fn to_bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[0..4].copy_from_slice(&self.signal.number().to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.fields);
        bytes
    }

    /// The 32-bit word at `offset` of `siginfo_t` (at least 16), for signalfd(2).
    pub fn word(&self, offset: usize) -> u32 {
        let at = offset.saturating_sub(16);
        match self.fields.get(at..at + 4) {
            Some(&[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]),
            _ => 0,
        }
    }

    /// The 64-bit word at `offset` of `siginfo_t` (at least 16).
    pub fn long(&self, offset: usize) -> u64 {
        u64::from(self.word(offset)) | u64::from(self.word(offset + 4)) << 32
    }

    /// True if it was sent by a user (kill(2) and its kin) and not by the kernel.
    pub fn from_user(&self) -> bool {
        self.code <= 0
    }
}
