//! The system as a whole, limits, scheduling, capabilities: uname(2), sysinfo(2), prlimit(2), sched(7), capget(2).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One field of `struct utsname`.
pub type UtsField = [u8; 65];

/// `struct new_utsname`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Utsname {
    pub sysname: UtsField,
    pub nodename: UtsField,
    pub release: UtsField,
    pub version: UtsField,
    pub machine: UtsField,
    pub domainname: UtsField,
}

/// `struct sysinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Sysinfo {
    pub uptime: i64,
    pub loads: [u64; 3],
    pub total_ram: u64,
    pub free_ram: u64,
    pub shared_ram: u64,
    pub buffer_ram: u64,
    pub total_swap: u64,
    pub free_swap: u64,
    pub procs: u16,
    pub pad: u16,
    pub pad2: u32,
    pub total_high: u64,
    pub free_high: u64,
    pub mem_unit: u32,
    pub pad3: u32,
}

/// `struct rlimit64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Rlimit {
    pub current: u64,
    pub max: u64,
}

/// `struct sched_attr`, version 1 (sched_setattr(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct SchedAttr {
    pub size: u32,
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
    pub util_min: u32,
    pub util_max: u32,
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct CapHeader {
    pub version: u32,
    pub pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct CapData {
    pub effective: u32,
    pub permitted: u32,
    pub inheritable: u32,
}

const _: () = assert!(size_of::<Sysinfo>() == 112 && size_of::<SchedAttr>() == 56);
