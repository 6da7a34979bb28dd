//! Credentials: who a task acts as (credentials(7), capabilities(7)).

use std::sync::Arc;

use sentry_abi::Errno;

/// A capability, by its number in capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cap(u8);

macro_rules! capabilities {
    ($($name:ident = $value:literal;)*) => {
        #[allow(missing_docs)]
        impl Cap {
            $(pub const $name: Cap = Cap($value);)*
        }
    };
}

capabilities! {
    CHOWN = 0;
    DAC_OVERRIDE = 1;
    DAC_READ_SEARCH = 2;
    FOWNER = 3;
    FSETID = 4;
    KILL = 5;
    SETGID = 6;
    SETUID = 7;
    SETPCAP = 8;
    LINUX_IMMUTABLE = 9;
    NET_BIND_SERVICE = 10;
    NET_BROADCAST = 11;
    NET_ADMIN = 12;
    NET_RAW = 13;
    IPC_LOCK = 14;
    IPC_OWNER = 15;
    SYS_MODULE = 16;
    SYS_RAWIO = 17;
    SYS_CHROOT = 18;
    SYS_PTRACE = 19;
    SYS_PACCT = 20;
    SYS_ADMIN = 21;
    SYS_BOOT = 22;
    SYS_NICE = 23;
    SYS_RESOURCE = 24;
    SYS_TIME = 25;
    SYS_TTY_CONFIG = 26;
    MKNOD = 27;
    LEASE = 28;
    AUDIT_WRITE = 29;
    AUDIT_CONTROL = 30;
    SETFCAP = 31;
    MAC_OVERRIDE = 32;
    MAC_ADMIN = 33;
    SYSLOG = 34;
    WAKE_ALARM = 35;
    BLOCK_SUSPEND = 36;
    AUDIT_READ = 37;
    PERFMON = 38;
    BPF = 39;
    CHECKPOINT_RESTORE = 40;
}

impl Cap {
    /// The highest capability there is (`/proc/sys/kernel/cap_last_cap`).
    pub const LAST: Cap = Cap::CHECKPOINT_RESTORE;

    /// A capability by number; `EINVAL` beyond the last.
    pub fn from_number(number: u64) -> Result<Cap, Errno> {
        if number <= u64::from(Cap::LAST.0) {
            Ok(Cap(number as u8))
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A set of capabilities; bit n is capability n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapSet(u64);

impl CapSet {
    /// No capability.
    pub const EMPTY: CapSet = CapSet(0);
    /// Every capability.
    pub const FULL: CapSet = CapSet((1 << (Cap::LAST.0 + 1)) - 1);

    /// A set from its bits; those beyond the last capability are dropped.
    pub fn from_bits(bits: u64) -> CapSet {
        CapSet(bits & CapSet::FULL.0)
    }

    /// Its bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// True if `cap` is in it.
    pub fn has(self, cap: Cap) -> bool {
        self.0 & (1 << cap.0) != 0
    }

    /// This set and `cap`.
    #[must_use]
    pub fn with(self, cap: Cap) -> CapSet {
        CapSet(self.0 | 1 << cap.0)
    }

    /// This set without `cap`.
    #[must_use]
    pub fn without(self, cap: Cap) -> CapSet {
        CapSet(self.0 & !(1 << cap.0))
    }

    /// What is in either.
    #[must_use]
    pub fn union(self, other: CapSet) -> CapSet {
        CapSet(self.0 | other.0)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(self, other: CapSet) -> CapSet {
        CapSet(self.0 & other.0)
    }

    /// What is here and not in `other`.
    #[must_use]
    pub fn difference(self, other: CapSet) -> CapSet {
        CapSet(self.0 & !other.0)
    }

    /// True if all of it is in `other`.
    pub fn is_subset(self, other: CapSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// True if it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a task acts as. Kept behind an `Arc` and copied on change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Credentials {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    /// Supplementary groups, sorted.
    pub groups: Arc<[u32]>,
    pub effective: CapSet,
    pub permitted: CapSet,
    pub inheritable: CapSet,
    pub bounding: CapSet,
    pub ambient: CapSet,
    /// `SECBIT_*`, `PR_SET_KEEPCAPS` included.
    pub securebits: u32,
    pub no_new_privs: bool,
}

impl Credentials {
    /// Credentials of a process started as this user: root has every capability, others none.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        let held = if uid == 0 { CapSet::FULL } else { CapSet::EMPTY };
        Credentials {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups: groups.into(),
            effective: held,
            permitted: held,
            inheritable: CapSet::EMPTY,
            bounding: CapSet::FULL,
            ambient: CapSet::EMPTY,
            securebits: 0,
            no_new_privs: false,
        }
    }

    /// Root with every capability.
    pub fn root() -> Credentials {
        Credentials::new(0, 0, &[])
    }

    /// True if `cap` is effective.
    pub fn has(&self, cap: Cap) -> bool {
        self.effective.has(cap)
    }

    /// `EPERM` unless `cap` is effective.
    pub fn require(&self, cap: Cap) -> Result<(), Errno> {
        if self.has(cap) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// True if `gid` is the file-system group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        gid == self.fsgid || self.groups.binary_search(&gid).is_ok()
    }

    /// True if `gid` is the effective group or a supplementary one (for what is not about files).
    pub fn in_effective_group(&self, gid: u32) -> bool {
        gid == self.egid || self.groups.binary_search(&gid).is_ok()
    }

    /// These credentials as access(2) uses them: real ids for file access, and the capabilities that root or
    /// not-root would have.
    pub fn for_access(&self) -> Credentials {
        const SECBIT_NO_SETUID_FIXUP: u32 = 4;
        let mut cred = self.clone();
        cred.fsuid = self.uid;
        cred.fsgid = self.gid;
        if self.securebits & SECBIT_NO_SETUID_FIXUP == 0 {
            cred.effective = if self.uid == 0 { self.permitted } else { CapSet::EMPTY };
        }
        cred
    }
}
