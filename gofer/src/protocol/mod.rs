//! Messages between sentry and gofer.
//!
//! Each message is one packet of a `SOCK_SEQPACKET` socket, little-endian. A request is `version u8, opcode u8,
//! id u32` and its body; a reply is `version u8, opcode u8, status u16, id u32` and, with status 0, its body
//! (other statuses are error numbers). Replies come in the order of their requests; [`Request::Forget`] has none.
//! At most one descriptor goes in a message: from gofer to sentry, and from sentry to gofer with
//! [`Request::Reopen`] only. The reply to [`Request::OpenAhead`] brings one for each file that was opened.
//!
//! A request names a file by a [`NodeId`] that the gofer gave out, or by such a directory and a [`Name`] in it.
//! There are no paths. Every field has a bound, and a message has no byte that is not accounted for.

mod reply;
mod request;
mod wire;

use std::fmt;

pub use reply::{
    Attached, Entry, EntryDetails, FsTotals, Header, Listing, Opened, Removed, Reply, Step, Stop, Walked, reply_header,
};
pub use request::{NewAttributes, Owner, Request};

/// The protocol's version; both sides come from one executable, so there is no negotiation.
pub const VERSION: u8 = 6;
/// The longest request, in bytes.
pub const MAX_REQUEST: usize = 8192;
/// The longest reply, in bytes.
pub const MAX_REPLY: usize = 64 * 1024;
/// The most names that one lookup walks.
pub const MAX_STEPS: usize = 16;
/// The most files that one request opens.
pub const MAX_AHEAD: usize = 24;
/// The most nodes that one message forgets.
pub const MAX_FORGET: usize = 256;
/// The longest target of a symbolic link.
pub const MAX_TARGET: usize = 4095;
/// The longest extended attribute that is served.
pub const MAX_XATTR: usize = 16 * 1024;
/// Directories with more entries are listed by name only.
pub const MAX_DETAILED: usize = 256;

/// A message that does not follow the protocol, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);

/// A file or directory that the gofer has given out. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// One component of a path: 1 to 255 bytes, neither `.` nor `..`, without slash or zero byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// If it is not a single component.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, Malformed> {
        let special = matches!(bytes, b"" | b"." | b"..");
        if special || bytes.len() > 255 || bytes.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(Malformed("not a single path component"));
        }
        Ok(Name(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// How a file is to be opened; the donated descriptor has exactly this access mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `O_RDONLY`
    Read,
    /// `O_WRONLY`
    Write,
    /// `O_RDWR`
    ReadWrite,
}

impl Access {
    /// The access mode of open(2).
    pub fn flags(self) -> i32 {
        match self {
            Access::Read => libc::O_RDONLY,
            Access::Write => libc::O_WRONLY,
            Access::ReadWrite => libc::O_RDWR,
        }
    }

    /// True unless read-only.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    fn decode(reader: &mut wire::Reader<'_>) -> Result<Access, Malformed> {
        match reader.u8()? {
            0 => Ok(Access::Read),
            1 => Ok(Access::Write),
            2 => Ok(Access::ReadWrite),
            _ => Err(Malformed("unknown access mode")),
        }
    }

    fn encode(self, writer: &mut wire::Writer<'_>) {
        writer.u8(self as u8);
    }
}

/// A point in time: seconds and nanoseconds (below 10⁹) since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

impl Time {
    fn decode(reader: &mut wire::Reader<'_>) -> Result<Time, Malformed> {
        let time = Time {
            sec: reader.i64()?,
            nsec: reader.u32()?,
        };
        if time.nsec >= 1_000_000_000 {
            return Err(Malformed("nanoseconds out of range"));
        }
        Ok(time)
    }

    fn encode(self, writer: &mut wire::Writer<'_>) {
        writer.i64(self.sec);
        writer.u32(self.nsec);
    }
}

/// Attributes of a file, as statx(2) gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    /// The host's device number.
    pub dev: u64,
    pub ino: u64,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub block_size: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Zero where the file system has none.
    pub btime: Time,
}

impl Attributes {
    /// The type bits.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// True for directories.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    fn decode(reader: &mut wire::Reader<'_>) -> Result<Attributes, Malformed> {
        let attributes = Attributes {
            dev: reader.u64()?,
            ino: reader.u64()?,
            mode: reader.u32()?,
            nlink: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            rdev: reader.u64()?,
            size: reader.u64()?,
            blocks: reader.u64()?,
            block_size: reader.u32()?,
            atime: Time::decode(reader)?,
            mtime: Time::decode(reader)?,
            ctime: Time::decode(reader)?,
            btime: Time::decode(reader)?,
        };
        const KINDS: [u32; 7] = [
            libc::S_IFREG,
            libc::S_IFDIR,
            libc::S_IFLNK,
            libc::S_IFCHR,
            libc::S_IFBLK,
            libc::S_IFIFO,
            libc::S_IFSOCK,
        ];
        if !KINDS.contains(&attributes.kind()) || attributes.mode & !(libc::S_IFMT | 0o7777) != 0 {
            return Err(Malformed("mode of no kind of file"));
        }
        if i64::try_from(attributes.size).is_err() {
            return Err(Malformed("size out of range"));
        }
        Ok(attributes)
    }

    fn encode(&self, writer: &mut wire::Writer<'_>) {
        writer.u64(self.dev);
        writer.u64(self.ino);
        for word in [self.mode, self.nlink, self.uid, self.gid] {
            writer.u32(word);
        }
        for word in [self.rdev, self.size, self.blocks] {
            writer.u64(word);
        }
        writer.u32(self.block_size);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.encode(writer);
        }
    }
}

/// The operations, by their number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Opcode {
    Attach = 1,
    Lookup,
    List,
    Open,
    GetAttributes,
    ReadLink,
    FsTotals,
    GetXattr,
    ListXattr,
    Create,
    MakeDirectory,
    Symlink,
    Link,
    Unlink,
    Rename,
    SetAttributes,
    Forget,
    Reopen,
    Hold,
    Notifications,
    Watch,
    Report,
    EndReport,
    OpenAhead,
}

impl Opcode {
    const ALL: [Opcode; 24] = [
        Opcode::Attach,
        Opcode::Lookup,
        Opcode::List,
        Opcode::Open,
        Opcode::GetAttributes,
        Opcode::ReadLink,
        Opcode::FsTotals,
        Opcode::GetXattr,
        Opcode::ListXattr,
        Opcode::Create,
        Opcode::MakeDirectory,
        Opcode::Symlink,
        Opcode::Link,
        Opcode::Unlink,
        Opcode::Rename,
        Opcode::SetAttributes,
        Opcode::Forget,
        Opcode::Reopen,
        Opcode::Hold,
        Opcode::Notifications,
        Opcode::Watch,
        Opcode::Report,
        Opcode::EndReport,
        Opcode::OpenAhead,
    ];

    fn decode(byte: u8) -> Result<Opcode, Malformed> {
        Opcode::ALL
            .into_iter()
            .find(|opcode| *opcode as u8 == byte)
            .ok_or(Malformed("unknown opcode"))
    }
}
