//! Messages that honest sides send. `conformance/fuzz` begins with them.

use sentry_abi::Errno;
use sentry_gofer::protocol::*;
use sentry_gofer::{Access, Attributes, NodeId, Time};

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("a name")
}

/// Requests of every kind.
pub fn requests() -> Vec<Request<'static>> {
    let (node, parent) = (NodeId(7), NodeId(u64::MAX));
    let owner = Owner { uid: 1000, gid: 0 };
    let time = Some(Time {
        sec: -1,
        nsec: 999_999_999,
    });
    vec![
        Request::Attach { export: 3 },
        Request::Lookup {
            node,
            names: vec![name(b"a"), name(&[255; 255])],
            open: Some(Access::Read),
        },
        Request::Lookup {
            node,
            names: vec![name(b"x"); MAX_STEPS],
            open: None,
        },
        Request::List {
            node,
            name: None,
            cursor: 0,
        },
        Request::List {
            node,
            name: Some(name(b"dir")),
            cursor: u64::MAX,
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
        Request::SetAttributes {
            node,
            set: NewAttributes {
                mode: Some(0o600),
                uid: Some(1),
                gid: None,
                size: Some(5),
                atime: time,
                mtime: None,
            },
        },
        Request::Reopen,
        Request::Hold { node: NodeId(5) },
        Request::Notifications { reports: true },
        Request::Watch { node },
        Request::Report { node, names_only: true },
        Request::EndReport { watch: 3 },
        Request::OpenAhead {
            node,
            names: vec![name(&[b'n'; 255]); MAX_AHEAD],
        },
        Request::Forget {
            nodes: vec![(node, 1), (parent, u32::MAX)],
        },
    ]
}

fn attributes(kind: u32) -> Attributes {
    Attributes {
        dev: 1,
        ino: 2,
        mode: kind | 0o644,
        nlink: 1,
        size: 77,
        block_size: 4096,
        ..Attributes::default()
    }
}

/// Replies to every kind of request that has one.
pub fn replies() -> Vec<(Opcode, Reply)> {
    let file = || Step {
        node: NodeId(1),
        attributes: attributes(libc::S_IFREG),
        target: None,
    };
    let link = || Step {
        node: NodeId(2),
        attributes: attributes(libc::S_IFLNK),
        target: Some(b"to".to_vec()),
    };
    let plain = |name: &[u8]| Entry {
        ino: 5,
        kind: libc::DT_REG,
        name: name.to_vec(),
        details: None,
    };
    let detailed = |step: Step| Entry {
        details: Some(EntryDetails {
            attributes: step.attributes,
            target: step.target,
        }),
        ..plain(b"detailed")
    };
    vec![
        (
            Opcode::Attach,
            Reply::Attached(Attached {
                root: file(),
                writable: true,
            }),
        ),
        (
            Opcode::Lookup,
            Reply::Walked(Walked {
                steps: vec![file()],
                stop: Stop::Complete,
                opened: Some(Ok(())),
            }),
        ),
        (
            Opcode::Lookup,
            Reply::Walked(Walked {
                steps: vec![],
                stop: Stop::Missing,
                opened: None,
            }),
        ),
        (
            Opcode::Lookup,
            Reply::Walked(Walked {
                steps: vec![file(), link()],
                stop: Stop::Failed(Errno::EACCES),
                opened: Some(Err(Errno::EISDIR)),
            }),
        ),
        (
            Opcode::List,
            Reply::Listing(Listing {
                directory: Some(file()),
                entries: vec![plain(b"a"), plain(b"b")],
                next: Some(9),
            }),
        ),
        (
            Opcode::List,
            Reply::Listing(Listing {
                directory: None,
                entries: vec![detailed(file()), detailed(link())],
                next: None,
            }),
        ),
        (
            Opcode::List,
            Reply::Listing(Listing {
                directory: None,
                entries: vec![],
                next: None,
            }),
        ),
        (
            Opcode::Open,
            Reply::Opened(Opened {
                attributes: attributes(libc::S_IFREG),
            }),
        ),
        (Opcode::GetAttributes, Reply::Attributes(attributes(libc::S_IFDIR))),
        (Opcode::ReadLink, Reply::Bytes(b"target".to_vec())),
        (Opcode::ListXattr, Reply::Bytes(b"user.a\0user.b\0".to_vec())),
        (
            Opcode::FsTotals,
            Reply::FsTotals(FsTotals {
                block_size: 4096,
                ..FsTotals::default()
            }),
        ),
        (Opcode::Create, Reply::Created(file(), true)),
        (Opcode::Symlink, Reply::Created(link(), false)),
        (
            Opcode::Rename,
            Reply::Removed(Some(Removed {
                dev: 7,
                ino: 8,
                nlink: 1,
            })),
        ),
        (Opcode::Unlink, Reply::Removed(None)),
        (Opcode::Notifications, Reply::Notifications),
        (Opcode::OpenAhead, Reply::OpenedAhead(vec![true, false, true])),
        (Opcode::Watch, Reply::Watched(7)),
        (Opcode::Report, Reply::Watched(8)),
        (Opcode::EndReport, Reply::Done),
    ]
}
