//! What the gofer answers.

use sentry_abi::Errno;

use super::wire::{Reader, Writer};
use super::{
    Attributes, MAX_AHEAD, MAX_REPLY, MAX_STEPS, MAX_TARGET, MAX_XATTR, Malformed, Name, NodeId, Opcode, VERSION,
};

/// A node that the reply gives out. The sentry owes one [`super::Request::Forget`] count for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number.
    pub node: NodeId,
    /// Present attributes.
    pub attributes: Attributes,
    /// Where it leads, if it is a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// The root of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The root: a directory or a regular file.
    pub root: Step,
    /// True if the export can be changed.
    pub writable: bool,
}

/// Why a lookup went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It did not stop: there is a step for each name.
    Complete,
    /// There is no such name behind the last step.
    Missing,
    /// The last step is not a directory (a symbolic link, which the sentry has to follow, or a file).
    NotDirectory,
    /// Something else is wrong with the next name.
    Failed(Errno),
}

/// A lookup's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// One for each name that was found.
    pub steps: Vec<Step>,
    /// Why there are no more.
    pub stop: Stop,
    /// If opening was asked for and the last name was found: whether the message brings a descriptor, or the error.
    pub opened: Option<Result<(), Errno>>,
}

/// Attributes of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EntryDetails {
    pub attributes: Attributes,
    /// Where it leads, if it is a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Entry {
    pub ino: u64,
    /// `DT_*`.
    pub kind: u8,
    pub name: Vec<u8>,
    /// In listings of at most [`super::MAX_DETAILED`] entries.
    pub details: Option<EntryDetails>,
}

/// A directory's entries without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory, if the request named it by its parent.
    pub directory: Option<Step>,
    /// In the host's order.
    pub entries: Vec<Entry>,
    /// Where the next request goes on; `None` at the end.
    pub next: Option<u64>,
}

/// An opened file; the message brings its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its attributes when it was opened.
    pub attributes: Attributes,
}

/// File system totals (statfs(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FsTotals {
    pub block_size: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u64,
    /// The kind of file system, as statfs(2) numbers them.
    pub magic: u64,
}

/// The file that has lost a name to a removal or a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Removed {
    pub dev: u64,
    pub ino: u64,
    /// Names that are left; 0 for a directory.
    pub nlink: u32,
}

/// The body of a successful reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reply {
    Attached(Attached),
    Walked(Walked),
    Listing(Listing),
    Opened(Opened),
    Attributes(Attributes),
    /// A link's target, an attribute's value, or names with a zero byte behind each.
    Bytes(Vec<u8>),
    FsTotals(FsTotals),
    /// A new file; with a descriptor if that was asked for.
    Created(Step, bool),
    Done,
    /// What has lost its name, as it was seen just before; `None` if nothing has.
    Removed(Option<Removed>),
    /// With the new descriptor.
    Reopened,
    /// With the inotify descriptor.
    Notifications,
    /// The number of the watch, as events have it.
    Watched(i32),
    /// For each name whether the file was opened, with the descriptors of those that were.
    OpenedAhead(Vec<bool>),
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub id: u32,
    /// `None` if the operation succeeded.
    pub error: Option<Errno>,
}

fn target(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let target = reader.sized(MAX_TARGET)?;
    if target.contains(&0) {
        return Err(Malformed("string with a zero byte"));
    }
    Ok(target.to_vec())
}

fn errno(reader: &mut Reader<'_>) -> Result<Errno, Malformed> {
    status(reader.u16()?)?.ok_or(Malformed("error number 0"))
}

fn status(status: u16) -> Result<Option<Errno>, Malformed> {
    match status {
        0 => Ok(None),
        // Restart codes and the like are not the gofer's to give.
        1..=133 => Ok(Some(Errno::from_raw(status.into()))),
        _ => Err(Malformed("unknown error number")),
    }
}

/// An error number as it goes into a message; unusual ones of the host become `EIO`.
fn wire_errno(errno: Errno) -> u16 {
    u16::try_from(errno.raw())
        .ok()
        .filter(|raw| (1..=133).contains(raw))
        .unwrap_or(libc::EIO as u16)
}

impl Step {
    fn decode(reader: &mut Reader<'_>) -> Result<Step, Malformed> {
        let step = Step {
            node: NodeId(reader.u64()?),
            attributes: Attributes::decode(reader)?,
            target: reader.option(target)?,
        };
        check_target(&step.attributes, step.target.as_deref())?;
        Ok(step)
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.node.0);
        self.attributes.encode(w);
        w.option(self.target.as_deref(), |w, target| w.sized(target));
    }
}

fn check_target(attributes: &Attributes, target: Option<&[u8]>) -> Result<(), Malformed> {
    if target.is_some() != (attributes.kind() == libc::S_IFLNK) {
        return Err(Malformed("a link without a target, or a target without a link"));
    }
    Ok(())
}

impl Entry {
    /// The most bytes that this entry takes in a message.
    pub(crate) fn encoded_len(&self) -> usize {
        let details = self.details.as_ref();
        16 + self.name.len()
            + details.map_or(0, |details| {
                128 + details.target.as_ref().map_or(0, |target| 2 + target.len())
            })
    }

    fn decode(reader: &mut Reader<'_>, detailed: bool) -> Result<Entry, Malformed> {
        let entry = Entry {
            ino: reader.u64()?,
            kind: reader.u8()?,
            name: Name::new(reader.sized(255)?)?.as_bytes().to_vec(),
            details: if detailed {
                let details = EntryDetails {
                    attributes: Attributes::decode(reader)?,
                    target: reader.option(target)?,
                };
                check_target(&details.attributes, details.target.as_deref())?;
                Some(details)
            } else {
                None
            },
        };
        if !matches!(entry.kind, 0 | 1 | 2 | 4 | 6 | 8 | 10 | 12) {
            return Err(Malformed("unknown kind of entry"));
        }
        Ok(entry)
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.ino);
        w.u8(self.kind);
        w.sized(&self.name);
        if let Some(details) = &self.details {
            details.attributes.encode(w);
            w.option(details.target.as_deref(), |w, target| w.sized(target));
        }
    }
}

impl Walked {
    fn decode(reader: &mut Reader<'_>) -> Result<Walked, Malformed> {
        let stop = match reader.u8()? {
            0 => Stop::Complete,
            1 => Stop::Missing,
            2 => Stop::NotDirectory,
            3 => Stop::Failed(errno(reader)?),
            _ => return Err(Malformed("unknown end of a lookup")),
        };
        let opened = match reader.u8()? {
            0 => None,
            1 => Some(Ok(())),
            2 => Some(Err(errno(reader)?)),
            _ => return Err(Malformed("unknown result of an open")),
        };
        let count = usize::from(reader.u8()?);
        if count > MAX_STEPS {
            return Err(Malformed("too many steps"));
        }
        let steps = (0..count).map(|_| Step::decode(reader)).collect::<Result<_, _>>()?;
        Ok(Walked { steps, stop, opened })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        match self.stop {
            Stop::Complete => w.u8(0),
            Stop::Missing => w.u8(1),
            Stop::NotDirectory => w.u8(2),
            Stop::Failed(errno) => {
                w.u8(3);
                w.u16(wire_errno(errno));
            }
        }
        match self.opened {
            None => w.u8(0),
            Some(Ok(())) => w.u8(1),
            Some(Err(errno)) => {
                w.u8(2);
                w.u16(wire_errno(errno));
            }
        }
        w.u8(self.steps.len() as u8);
        for step in &self.steps {
            step.encode(w);
        }
    }
}

impl Listing {
    fn decode(reader: &mut Reader<'_>) -> Result<Listing, Malformed> {
        let directory = reader.option(Step::decode)?;
        let next = reader.option(Reader::u64)?;
        let detailed = reader.bool()?;
        let count = usize::from(reader.u16()?);
        if detailed && count == 0 {
            return Err(Malformed("details of no entries"));
        }
        let entries = (0..count)
            .map(|_| Entry::decode(reader, detailed))
            .collect::<Result<_, _>>()?;
        Ok(Listing {
            directory,
            entries,
            next,
        })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.option(self.directory.as_ref(), |w, step| step.encode(w));
        w.option(self.next, Writer::u64);
        w.bool(self.entries.first().is_some_and(|entry| entry.details.is_some()));
        w.u16(self.entries.len() as u16);
        for entry in &self.entries {
            entry.encode(w);
        }
    }
}

impl Removed {
    fn decode(reader: &mut Reader<'_>) -> Result<Removed, Malformed> {
        Ok(Removed {
            dev: reader.u64()?,
            ino: reader.u64()?,
            nlink: reader.u32()?,
        })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.dev);
        w.u64(self.ino);
        w.u32(self.nlink);
    }
}

impl FsTotals {
    fn decode(reader: &mut Reader<'_>) -> Result<FsTotals, Malformed> {
        Ok(FsTotals {
            block_size: reader.u64()?,
            blocks: reader.u64()?,
            blocks_free: reader.u64()?,
            files: reader.u64()?,
            files_free: reader.u64()?,
            name_max: reader.u64()?,
            magic: reader.u64()?,
        })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        for word in [
            self.block_size,
            self.blocks,
            self.blocks_free,
            self.files,
            self.files_free,
            self.name_max,
            self.magic,
        ] {
            w.u64(word);
        }
    }
}

/// Decodes the head of a reply to a request of kind `opcode`; what is left is the body's.
///
/// # Errors
/// If it does not follow the protocol or answers another kind of request.
pub fn reply_header(message: &[u8], opcode: Opcode) -> Result<(Header, &[u8]), Malformed> {
    if message.len() > MAX_REPLY {
        return Err(Malformed("message too long"));
    }
    let mut reader = Reader::new(message);
    if reader.u8()? != VERSION {
        return Err(Malformed("unknown version"));
    }
    if reader.u8()? != opcode as u8 {
        return Err(Malformed("reply to another kind of request"));
    }
    let error = status(reader.u16()?)?;
    let id = reader.u32()?;
    let body = reader.bytes(message.len() - 8)?;
    if error.is_some() && !body.is_empty() {
        return Err(Malformed("bytes behind an error"));
    }
    Ok((Header { id, error }, body))
}

impl Reply {
    /// How many descriptors the message has to bring.
    pub fn descriptors(&self) -> usize {
        let one = match self {
            Reply::Walked(walked) => walked.opened == Some(Ok(())),
            Reply::Opened(_) | Reply::Reopened | Reply::Notifications => true,
            Reply::Created(_, opened) => *opened,
            Reply::OpenedAhead(opened) => return opened.iter().filter(|opened| **opened).count(),
            _ => false,
        };
        one.into()
    }

    /// The nodes that it gives out.
    pub fn nodes(&self) -> Vec<NodeId> {
        match self {
            Reply::Attached(attached) => vec![attached.root.node],
            Reply::Walked(walked) => walked.steps.iter().map(|step| step.node).collect(),
            Reply::Listing(listing) => listing.directory.iter().map(|step| step.node).collect(),
            Reply::Created(step, _) => vec![step.node],
            _ => Vec::new(),
        }
    }

    /// Decodes the body of a successful reply to a request of kind `opcode`.
    ///
    /// # Errors
    /// If it does not follow the protocol in every byte.
    pub fn decode(opcode: Opcode, body: &[u8]) -> Result<Reply, Malformed> {
        let mut reader = Reader::new(body);
        let r = &mut reader;
        let reply = match opcode {
            Opcode::Attach => Reply::Attached(Attached {
                root: Step::decode(r)?,
                writable: r.bool()?,
            }),
            Opcode::Lookup => Reply::Walked(Walked::decode(r)?),
            Opcode::List => Reply::Listing(Listing::decode(r)?),
            Opcode::Open => Reply::Opened(Opened {
                attributes: Attributes::decode(r)?,
            }),
            Opcode::GetAttributes | Opcode::SetAttributes | Opcode::Link => Reply::Attributes(Attributes::decode(r)?),
            Opcode::ReadLink => Reply::Bytes(target(r)?),
            Opcode::GetXattr | Opcode::ListXattr => Reply::Bytes(r.sized(MAX_XATTR)?.to_vec()),
            Opcode::FsTotals => Reply::FsTotals(FsTotals::decode(r)?),
            Opcode::Create | Opcode::MakeDirectory | Opcode::Symlink => Reply::Created(Step::decode(r)?, r.bool()?),
            Opcode::Unlink | Opcode::Rename => Reply::Removed(r.option(Removed::decode)?),
            Opcode::Hold | Opcode::EndReport => Reply::Done,
            Opcode::Reopen => Reply::Reopened,
            Opcode::Notifications => Reply::Notifications,
            Opcode::Watch | Opcode::Report => match i32::try_from(r.u32()?) {
                Ok(watch) if watch > 0 => Reply::Watched(watch),
                _ => return Err(Malformed("no number of a watch")),
            },
            Opcode::OpenAhead => {
                let count = usize::from(r.u8()?);
                if count == 0 || count > MAX_AHEAD {
                    return Err(Malformed("no files or too many"));
                }
                Reply::OpenedAhead((0..count).map(|_| r.bool()).collect::<Result<_, _>>()?)
            }
            Opcode::Forget => return Err(Malformed("reply to a request that has none")),
        };
        reader.finish()?;
        Ok(reply)
    }

    /// Puts a whole reply, success or error, into `out`, in place of what is there.
    pub fn encode(result: &Result<Reply, Errno>, opcode: u8, id: u32, out: &mut Vec<u8>) {
        out.clear();
        let mut writer = Writer::new(out);
        let w = &mut writer;
        w.u8(VERSION);
        w.u8(opcode);
        w.u16(result.as_ref().map_or_else(|errno| wire_errno(*errno), |_| 0));
        w.u32(id);
        match result {
            Err(_) | Ok(Reply::Done | Reply::Reopened | Reply::Notifications) => {}
            Ok(Reply::Removed(removed)) => w.option(*removed, |w, removed| removed.encode(w)),
            Ok(Reply::Watched(watch)) => w.u32(watch.cast_unsigned()),
            Ok(Reply::OpenedAhead(opened)) => {
                w.u8(opened.len() as u8);
                opened.iter().for_each(|opened| w.bool(*opened));
            }
            Ok(Reply::Attached(attached)) => {
                attached.root.encode(w);
                w.bool(attached.writable);
            }
            Ok(Reply::Walked(walked)) => walked.encode(w),
            Ok(Reply::Listing(listing)) => listing.encode(w),
            Ok(Reply::Opened(opened)) => opened.attributes.encode(w),
            Ok(Reply::Attributes(attributes)) => attributes.encode(w),
            Ok(Reply::Bytes(bytes)) => w.sized(bytes),
            Ok(Reply::FsTotals(totals)) => totals.encode(w),
            Ok(Reply::Created(step, opened)) => {
                step.encode(w);
                w.bool(*opened);
            }
        }
    }
}
