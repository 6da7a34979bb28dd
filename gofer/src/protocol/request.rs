//! What the sentry asks.

use super::wire::{Reader, Writer};
use super::{
    Access, MAX_AHEAD, MAX_FORGET, MAX_REQUEST, MAX_STEPS, MAX_TARGET, Malformed, Name, NodeId, Opcode, Time, VERSION,
};

/// Who owns a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    fn decode(reader: &mut Reader<'_>) -> Result<Owner, Malformed> {
        Ok(Owner {
            uid: reader.u32()?,
            gid: reader.u32()?,
        })
    }

    fn encode(self, writer: &mut Writer<'_>) {
        writer.u32(self.uid);
        writer.u32(self.gid);
    }
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NewAttributes {
    /// Permission bits; set-user-id and set-group-id are dropped.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

/// A request. See the module's description for how files are named.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    /// The root of an export.
    Attach {
        export: u32,
    },
    /// Walks several names below `node` and, where the last one is a regular file, opens it on the way.
    Lookup {
        node: NodeId,
        names: Vec<Name<'a>>,
        open: Option<Access>,
    },
    /// Lists a directory: `node` itself or `name` in it (which is then looked up too). `cursor` is 0 or what the
    /// last listing gave.
    List {
        node: NodeId,
        name: Option<Name<'a>>,
        cursor: u64,
    },
    /// Opens a regular file.
    Open {
        node: NodeId,
        access: Access,
    },
    GetAttributes {
        node: NodeId,
    },
    ReadLink {
        node: NodeId,
    },
    FsTotals {
        node: NodeId,
    },
    /// A `user.` attribute; the prefix is part of the name.
    GetXattr {
        node: NodeId,
        name: &'a [u8],
    },
    ListXattr {
        node: NodeId,
    },
    /// Makes a regular file that is not there yet, and opens it if `open` says so.
    Create {
        parent: NodeId,
        name: Name<'a>,
        mode: u32,
        owner: Owner,
        open: Option<Access>,
    },
    MakeDirectory {
        parent: NodeId,
        name: Name<'a>,
        mode: u32,
        owner: Owner,
    },
    Symlink {
        parent: NodeId,
        name: Name<'a>,
        target: &'a [u8],
        owner: Owner,
    },
    /// A new name for `node`, in the same export.
    Link {
        node: NodeId,
        parent: NodeId,
        name: Name<'a>,
    },
    Unlink {
        parent: NodeId,
        name: Name<'a>,
        directory: bool,
    },
    /// `flags` are 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
    Rename {
        parent: NodeId,
        name: Name<'a>,
        new_parent: NodeId,
        new_name: Name<'a>,
        flags: u32,
    },
    SetAttributes {
        node: NodeId,
        set: NewAttributes,
    },
    /// Gives nodes back: each as many times as replies have named it. There is no reply.
    Forget {
        nodes: Vec<(NodeId, u32)>,
    },
    /// Opens the regular file whose descriptor comes with the message, open for reading and writing, once more for
    /// reading only. So the sentry, which has no paths, gets a descriptor of a memory file that gives fewer rights.
    Reopen,
    /// Keeps a regular file at hand that is about to lose its name and is in use: its node stays good without a
    /// name until it is forgotten.
    Hold {
        node: NodeId,
    },
    /// The inotify descriptor that tells of changes in watched directories; with `reports`, the one for
    /// [`Request::Report`].
    Notifications {
        reports: bool,
    },
    /// Has a directory watched until its node is forgotten.
    Watch {
        node: NodeId,
    },
    /// Has all changes of a file or directory reported, for a guest that watches it. `names_only`: not of children
    /// that have lost their names.
    Report {
        node: NodeId,
        names_only: bool,
    },
    /// Ends a report by the number of its watch.
    EndReport {
        watch: i32,
    },
    /// Opens several regular files of the directory `node` for reading. Those that cannot be are left out.
    OpenAhead {
        node: NodeId,
        names: Vec<Name<'a>>,
    },
}

fn node(reader: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    reader.u64().map(NodeId)
}

fn name<'a>(reader: &mut Reader<'a>) -> Result<Name<'a>, Malformed> {
    Name::new(reader.sized(255)?)
}

/// At least one name, and at most `max`.
fn names<'a>(reader: &mut Reader<'a>, max: usize) -> Result<Vec<Name<'a>>, Malformed> {
    let count = usize::from(reader.u8()?);
    if count == 0 || count > max {
        return Err(Malformed("no names or too many"));
    }
    (0..count).map(|_| name(reader)).collect()
}

fn put_names(writer: &mut Writer<'_>, names: &[Name<'_>], max: usize) {
    let names = &names[..names.len().min(max)];
    writer.u8(names.len() as u8);
    for name in names {
        writer.sized(name.as_bytes());
    }
}

fn mode(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let mode = reader.u32()?;
    if mode & !0o7777 != 0 {
        return Err(Malformed("more than permission bits"));
    }
    Ok(mode)
}

/// A non-empty string without zero bytes.
fn text<'a>(reader: &mut Reader<'a>, max: usize) -> Result<&'a [u8], Malformed> {
    let text = reader.sized(max)?;
    if text.is_empty() || text.contains(&0) {
        return Err(Malformed("string empty or with a zero byte"));
    }
    Ok(text)
}

fn set_attributes(reader: &mut Reader<'_>) -> Result<NewAttributes, Malformed> {
    let set = NewAttributes {
        mode: reader.option(mode)?,
        uid: reader.option(Reader::u32)?,
        gid: reader.option(Reader::u32)?,
        size: reader.option(Reader::u64)?,
        atime: reader.option(Time::decode)?,
        mtime: reader.option(Time::decode)?,
    };
    if set.size.is_some_and(|size| i64::try_from(size).is_err()) {
        return Err(Malformed("size out of range"));
    }
    // -1 would mean "leave it" to the host.
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Malformed("no such user or group"));
    }
    Ok(set)
}

impl<'a> Request<'a> {
    /// Its operation.
    pub fn opcode(&self) -> Opcode {
        match self {
            Request::Attach { .. } => Opcode::Attach,
            Request::Lookup { .. } => Opcode::Lookup,
            Request::List { .. } => Opcode::List,
            Request::Open { .. } => Opcode::Open,
            Request::GetAttributes { .. } => Opcode::GetAttributes,
            Request::ReadLink { .. } => Opcode::ReadLink,
            Request::FsTotals { .. } => Opcode::FsTotals,
            Request::GetXattr { .. } => Opcode::GetXattr,
            Request::ListXattr { .. } => Opcode::ListXattr,
            Request::Create { .. } => Opcode::Create,
            Request::MakeDirectory { .. } => Opcode::MakeDirectory,
            Request::Symlink { .. } => Opcode::Symlink,
            Request::Link { .. } => Opcode::Link,
            Request::Unlink { .. } => Opcode::Unlink,
            Request::Rename { .. } => Opcode::Rename,
            Request::SetAttributes { .. } => Opcode::SetAttributes,
            Request::Forget { .. } => Opcode::Forget,
            Request::Reopen => Opcode::Reopen,
            Request::Hold { .. } => Opcode::Hold,
            Request::Notifications { .. } => Opcode::Notifications,
            Request::Watch { .. } => Opcode::Watch,
            Request::Report { .. } => Opcode::Report,
            Request::EndReport { .. } => Opcode::EndReport,
            Request::OpenAhead { .. } => Opcode::OpenAhead,
        }
    }

    /// True if the message has to bring a descriptor.
    pub fn has_descriptor(&self) -> bool {
        matches!(self, Request::Reopen)
    }

    /// Decodes a message: its id and the request.
    ///
    /// # Errors
    /// If it does not follow the protocol in every byte.
    pub fn decode(message: &'a [u8]) -> Result<(u32, Request<'a>), Malformed> {
        if message.len() > MAX_REQUEST {
            return Err(Malformed("message too long"));
        }
        let mut reader = Reader::new(message);
        let reader = &mut reader;
        if reader.u8()? != VERSION {
            return Err(Malformed("unknown version"));
        }
        let opcode = Opcode::decode(reader.u8()?)?;
        let id = reader.u32()?;
        let request = match opcode {
            Opcode::Attach => Request::Attach { export: reader.u32()? },
            Opcode::Lookup => {
                let start = node(reader)?;
                let open = reader.option(Access::decode)?;
                Request::Lookup {
                    node: start,
                    names: names(reader, MAX_STEPS)?,
                    open,
                }
            }
            Opcode::List => Request::List {
                node: node(reader)?,
                name: reader.option(name)?,
                cursor: reader.u64()?,
            },
            Opcode::Open => Request::Open {
                node: node(reader)?,
                access: Access::decode(reader)?,
            },
            Opcode::GetAttributes => Request::GetAttributes { node: node(reader)? },
            Opcode::ReadLink => Request::ReadLink { node: node(reader)? },
            Opcode::FsTotals => Request::FsTotals { node: node(reader)? },
            Opcode::GetXattr => Request::GetXattr {
                node: node(reader)?,
                name: text(reader, 255)?,
            },
            Opcode::ListXattr => Request::ListXattr { node: node(reader)? },
            Opcode::Create => Request::Create {
                parent: node(reader)?,
                name: name(reader)?,
                mode: mode(reader)?,
                owner: Owner::decode(reader)?,
                open: reader.option(Access::decode)?,
            },
            Opcode::MakeDirectory => Request::MakeDirectory {
                parent: node(reader)?,
                name: name(reader)?,
                mode: mode(reader)?,
                owner: Owner::decode(reader)?,
            },
            Opcode::Symlink => Request::Symlink {
                parent: node(reader)?,
                name: name(reader)?,
                target: text(reader, MAX_TARGET)?,
                owner: Owner::decode(reader)?,
            },
            Opcode::Link => Request::Link {
                node: node(reader)?,
                parent: node(reader)?,
                name: name(reader)?,
            },
            Opcode::Unlink => Request::Unlink {
                parent: node(reader)?,
                name: name(reader)?,
                directory: reader.bool()?,
            },
            Opcode::Rename => {
                let request = Request::Rename {
                    parent: node(reader)?,
                    name: name(reader)?,
                    new_parent: node(reader)?,
                    new_name: name(reader)?,
                    flags: reader.u32()?,
                };
                if let Request::Rename { flags, .. } = request
                    && !matches!(flags, 0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE)
                {
                    return Err(Malformed("unknown rename flags"));
                }
                request
            }
            Opcode::SetAttributes => Request::SetAttributes {
                node: node(reader)?,
                set: set_attributes(reader)?,
            },
            Opcode::Forget => {
                let count = usize::from(reader.u16()?);
                if count > MAX_FORGET {
                    return Err(Malformed("too many nodes"));
                }
                let nodes = (0..count)
                    .map(|_| Ok((node(reader)?, reader.u32()?)))
                    .collect::<Result<_, _>>()?;
                Request::Forget { nodes }
            }
            Opcode::Reopen => Request::Reopen,
            Opcode::Hold => Request::Hold { node: node(reader)? },
            Opcode::Notifications => Request::Notifications {
                reports: reader.bool()?,
            },
            Opcode::Watch => Request::Watch { node: node(reader)? },
            Opcode::Report => Request::Report {
                node: node(reader)?,
                names_only: reader.bool()?,
            },
            Opcode::EndReport => match i32::try_from(reader.u32()?) {
                Ok(watch) if watch > 0 => Request::EndReport { watch },
                _ => return Err(Malformed("no number of a watch")),
            },
            Opcode::OpenAhead => Request::OpenAhead {
                node: node(reader)?,
                names: names(reader, MAX_AHEAD)?,
            },
        };
        std::mem::replace(reader, Reader::new(&[])).finish()?;
        Ok((id, request))
    }

    /// Puts the message into `out`, in place of what is there.
    pub fn encode(&self, id: u32, out: &mut Vec<u8>) {
        out.clear();
        let mut writer = Writer::new(out);
        let w = &mut writer;
        w.u8(VERSION);
        w.u8(self.opcode() as u8);
        w.u32(id);
        match self {
            Request::Attach { export } => w.u32(*export),
            Request::Lookup { node, names, open } => {
                w.u64(node.0);
                w.option(*open, |w, access| access.encode(w));
                put_names(w, names, MAX_STEPS);
            }
            Request::OpenAhead { node, names } => {
                w.u64(node.0);
                put_names(w, names, MAX_AHEAD);
            }
            Request::List { node, name, cursor } => {
                w.u64(node.0);
                w.option(*name, |w, name| w.sized(name.as_bytes()));
                w.u64(*cursor);
            }
            Request::Open { node, access } => {
                w.u64(node.0);
                access.encode(w);
            }
            Request::GetAttributes { node }
            | Request::ReadLink { node }
            | Request::FsTotals { node }
            | Request::ListXattr { node } => w.u64(node.0),
            Request::GetXattr { node, name } => {
                w.u64(node.0);
                w.sized(name);
            }
            Request::Create {
                parent,
                name,
                mode,
                owner,
                open,
            } => {
                w.u64(parent.0);
                w.sized(name.as_bytes());
                w.u32(*mode);
                owner.encode(w);
                w.option(*open, |w, access| access.encode(w));
            }
            Request::MakeDirectory {
                parent,
                name,
                mode,
                owner,
            } => {
                w.u64(parent.0);
                w.sized(name.as_bytes());
                w.u32(*mode);
                owner.encode(w);
            }
            Request::Symlink {
                parent,
                name,
                target,
                owner,
            } => {
                w.u64(parent.0);
                w.sized(name.as_bytes());
                w.sized(target);
                owner.encode(w);
            }
            Request::Link { node, parent, name } => {
                w.u64(node.0);
                w.u64(parent.0);
                w.sized(name.as_bytes());
            }
            Request::Unlink {
                parent,
                name,
                directory,
            } => {
                w.u64(parent.0);
                w.sized(name.as_bytes());
                w.bool(*directory);
            }
            Request::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
            } => {
                w.u64(parent.0);
                w.sized(name.as_bytes());
                w.u64(new_parent.0);
                w.sized(new_name.as_bytes());
                w.u32(*flags);
            }
            Request::SetAttributes { node, set } => {
                w.u64(node.0);
                w.option(set.mode, Writer::u32);
                w.option(set.uid, Writer::u32);
                w.option(set.gid, Writer::u32);
                w.option(set.size, Writer::u64);
                w.option(set.atime, |w, time| time.encode(w));
                w.option(set.mtime, |w, time| time.encode(w));
            }
            Request::Forget { nodes } => {
                let nodes = &nodes[..nodes.len().min(MAX_FORGET)];
                w.u16(nodes.len() as u16);
                for (node, count) in nodes {
                    w.u64(node.0);
                    w.u32(*count);
                }
            }
            Request::Reopen => {}
            Request::Notifications { reports } => w.bool(*reports),
            Request::Report { node, names_only } => {
                w.u64(node.0);
                w.bool(*names_only);
            }
            Request::EndReport { watch } => w.u32(watch.cast_unsigned()),
            Request::Hold { node } | Request::Watch { node } => w.u64(node.0),
        }
    }
}
