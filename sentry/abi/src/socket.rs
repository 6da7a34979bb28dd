//! Sockets: the structures of sendmsg(2), cmsg(3) and unix(7).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct msghdr` of x86-64.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct MsgHdr {
    pub msg_name: u64,
    pub msg_namelen: u32,
    pub pad0: u32,
    pub msg_iov: u64,
    pub msg_iovlen: u64,
    pub msg_control: u64,
    pub msg_controllen: u64,
    pub msg_flags: u32,
    pub pad1: u32,
}

/// `struct mmsghdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct MMsgHdr {
    pub hdr: MsgHdr,
    pub msg_len: u32,
    pub pad: u32,
}

/// `struct cmsghdr`; the data follow at byte 16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct CmsgHdr {
    pub cmsg_len: u64,
    pub cmsg_level: i32,
    pub cmsg_type: i32,
}

/// `struct ucred`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Ucred {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

const _: () = assert!(size_of::<MsgHdr>() == 56 && size_of::<MMsgHdr>() == 64);
