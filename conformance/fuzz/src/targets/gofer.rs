//! The gofer's protocol, in both directions.

use sentry_abi::Errno;
use sentry_gofer::protocol::*;
use sentry_gofer::{Access, Attributes, NodeId, Time};

use super::{Target, outcome};

/// What the gofer reads.
pub const REQUEST: Target = Target {
    name: "request",
    seeds: requests,
    words: &[b"..", b".", b"/", b"user.a", &[0; 8], &[255; 8]],
    make: || Box::new(request),
};

/// What the sentry reads.
pub const REPLY: Target = Target {
    name: "reply",
    seeds: replies,
    words: &[b"..", b".", b"/", &[0; 8], &[255; 8]],
    make: || Box::new(reply),
};

/// A number for a value's kind and size: from its text, which has everything in it.
fn shape(value: &impl std::fmt::Debug) -> [u64; 2] {
    let text = format!("{value:?}");
    let kind = text.bytes().take_while(u8::is_ascii_alphabetic);
    [
        kind.fold(0, |all, byte| (all << 3) ^ u64::from(byte)) & 0xff,
        text.len() as u64,
    ]
}

fn request(input: &[u8]) -> Result<u64, String> {
    let (id, request) = match Request::decode(input) {
        Ok(decoded) => decoded,
        Err(malformed) => {
            return Ok(outcome(&[
                1,
                malformed.0.len() as u64,
                malformed.0.as_bytes()[0].into(),
            ]));
        }
    };
    let mut again = Vec::new();
    request.encode(id, &mut again);
    if again != input {
        return Err(format!("{request:?} has another form than the one that was read"));
    }
    let [kind, size] = shape(&request);
    Ok(outcome(&[2, request.opcode() as u64, kind, size]))
}

/// The first byte says what was asked for.
fn reply(input: &[u8]) -> Result<u64, String> {
    let Some((&asked, message)) = input.split_first() else {
        return Ok(0);
    };
    let Some(&opcode) = opcodes().get(usize::from(asked)) else {
        return Ok(1);
    };
    let (header, body) = match reply_header(message, opcode) {
        Ok(read) => read,
        Err(malformed) => return Ok(outcome(&[2, malformed.0.len() as u64])),
    };
    if header.error.is_some() {
        return Ok(outcome(&[3, opcode as u64]));
    }
    let reply = match Reply::decode(opcode, body) {
        Ok(reply) => reply,
        Err(malformed) => return Ok(outcome(&[4, opcode as u64, malformed.0.len() as u64])),
    };
    let mut again = Vec::new();
    let ([kind, size], nodes) = (shape(&reply), reply.nodes().len() as u64);
    Reply::encode(&Ok(reply.clone()), opcode as u8, header.id, &mut again);
    if again != message {
        return Err(format!("{reply:?} has another form than the one that was read"));
    }
    Ok(outcome(&[5, opcode as u64, kind, size, nodes]))
}

fn opcodes() -> Vec<Opcode> {
    requests()
        .iter()
        .filter_map(|message| Request::decode(message).ok())
        .map(|(_, request)| request.opcode())
        .collect()
}

fn requests() -> Vec<Vec<u8>> {
    let name = |bytes: &'static [u8]| Name::new(bytes).expect("a name");
    let (node, parent) = (NodeId(7), NodeId(1 << 40));
    let owner = Owner { uid: 1000, gid: 0 };
    let time = Some(Time {
        sec: -1,
        nsec: 999_999_999,
    });
    let set = NewAttributes {
        mode: Some(0o600),
        uid: Some(1),
        gid: None,
        size: Some(5),
        atime: time,
        mtime: None,
    };
    let all = [
        Request::Attach { export: 3 },
        Request::Lookup {
            node,
            names: vec![name(b"a"), name(b"bc")],
            open: Some(Access::Read),
        },
        Request::List {
            node,
            name: Some(name(b"dir")),
            cursor: 9,
        },
        Request::Open {
            node,
            access: Access::ReadWrite,
        },
        Request::GetAttributes { node },
        Request::ReadLink { node },
        Request::FsTotals { node },
        Request::GetXattr { node, name: b"user.x" },
        Request::ListXattr { node },
        Request::Create {
            parent,
            name: name(b"new"),
            mode: 0o644,
            owner,
            open: Some(Access::Write),
        },
        Request::MakeDirectory {
            parent,
            name: name(b"new"),
            mode: 0o755,
            owner,
        },
        Request::Symlink {
            parent,
            name: name(b"new"),
            target: b"../../etc/passwd",
            owner,
        },
        Request::Link {
            node,
            parent,
            name: name(b"hard"),
        },
        Request::Unlink {
            parent,
            name: name(b"old"),
            directory: true,
        },
        Request::Rename {
            parent,
            name: name(b"a"),
            new_parent: node,
            new_name: name(b"b"),
            flags: 2,
        },
        Request::SetAttributes { node, set },
        Request::Reopen,
        Request::Hold { node },
        Request::Notifications { reports: true },
        Request::Watch { node },
        Request::Report { node, names_only: true },
        Request::EndReport { watch: 3 },
        Request::Forget {
            nodes: vec![(node, 1), (parent, u32::MAX)],
        },
    ];
    all.iter()
        .enumerate()
        .map(|(id, request)| {
            let mut message = Vec::new();
            request.encode(id as u32, &mut message);
            message
        })
        .collect()
}

fn replies() -> Vec<Vec<u8>> {
    let attributes = |kind: u32| Attributes {
        dev: 1,
        ino: 2,
        mode: kind | 0o644,
        nlink: 1,
        size: 77,
        block_size: 4096,
        ..Attributes::default()
    };
    let step = |kind: u32, target: Option<&[u8]>| Step {
        node: NodeId(3),
        attributes: attributes(kind),
        target: target.map(<[u8]>::to_vec),
    };
    let file = || step(libc_kind::FILE, None);
    let link = || step(libc_kind::LINK, Some(b"to"));
    let entry = |details: Option<Step>| Entry {
        ino: 5,
        kind: 8,
        name: b"entry".to_vec(),
        details: details.map(|step| EntryDetails {
            attributes: step.attributes,
            target: step.target,
        }),
    };
    let walked =
        |steps: Vec<Step>, stop: Stop, opened: Option<Result<(), Errno>>| Reply::Walked(Walked { steps, stop, opened });
    let listing = Listing {
        directory: Some(step(libc_kind::DIRECTORY, None)),
        entries: vec![entry(None), entry(Some(file())), entry(Some(link()))],
        next: Some(4),
    };
    let answer = |opcode: Opcode| match opcode {
        Opcode::Attach => vec![Reply::Attached(Attached {
            root: file(),
            writable: true,
        })],
        Opcode::Lookup => vec![
            walked(vec![file()], Stop::Complete, Some(Ok(()))),
            walked(vec![], Stop::Missing, None),
            walked(
                vec![file(), link()],
                Stop::Failed(Errno::EACCES),
                Some(Err(Errno::EISDIR)),
            ),
        ],
        Opcode::List => vec![Reply::Listing(listing.clone())],
        Opcode::Open => vec![Reply::Opened(Opened {
            attributes: attributes(libc_kind::FILE),
        })],
        Opcode::GetAttributes | Opcode::SetAttributes | Opcode::Link => {
            vec![Reply::Attributes(attributes(libc_kind::FILE))]
        }
        Opcode::ReadLink | Opcode::GetXattr | Opcode::ListXattr => vec![Reply::Bytes(b"user.a\0".to_vec())],
        Opcode::FsTotals => vec![Reply::FsTotals(FsTotals::default())],
        Opcode::Create | Opcode::MakeDirectory | Opcode::Symlink => vec![Reply::Created(file(), true)],
        Opcode::Unlink | Opcode::Rename | Opcode::Hold | Opcode::EndReport => vec![Reply::Done],
        Opcode::Reopen => vec![Reply::Reopened],
        Opcode::Notifications => vec![Reply::Notifications],
        Opcode::Watch | Opcode::Report => vec![Reply::Watched(1)],
        Opcode::Forget => vec![],
    };
    let mut all = Vec::new();
    for (asked, opcode) in opcodes().into_iter().enumerate() {
        for result in answer(opcode).into_iter().map(Ok).chain([Err(Errno::ENOENT)]) {
            let mut message = Vec::new();
            Reply::encode(&result, opcode as u8, 7, &mut message);
            message.insert(0, asked as u8);
            all.push(message);
        }
    }
    all
}

/// The kinds of files in a mode.
mod libc_kind {
    pub const FILE: u32 = 0o100_000;
    pub const LINK: u32 = 0o120_000;
    pub const DIRECTORY: u32 = 0o040_000;
}
