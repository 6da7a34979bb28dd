//! Both decoders against messages that no honest side sends.

use sentry_abi::Errno;
use sentry_gofer::protocol::*;
use sentry_gofer::{Access, Attributes, NodeId, Time};

mod common;
use common::Random;

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("a name")
}

fn requests() -> Vec<Request<'static>> {
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

fn replies() -> Vec<(Opcode, Reply)> {
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
        (Opcode::Rename, Reply::Done),
        (Opcode::Notifications, Reply::Notifications),
        (Opcode::Watch, Reply::Watched(7)),
        (Opcode::Report, Reply::Watched(8)),
        (Opcode::EndReport, Reply::Done),
    ]
}

#[test]
fn requests_come_back() {
    let mut message = Vec::new();
    for request in requests() {
        request.encode(42, &mut message);
        assert!(message.len() <= MAX_REQUEST);
        assert_eq!(Request::decode(&message), Ok((42, request)));
    }
}

#[test]
fn replies_come_back() {
    let mut message = Vec::new();
    for (opcode, reply) in replies() {
        Reply::encode(&Ok(reply.clone()), opcode as u8, 42, &mut message);
        let (header, body) = reply_header(&message, opcode).expect("a head");
        assert_eq!(header, Header { id: 42, error: None });
        assert_eq!(Reply::decode(opcode, body), Ok(reply));
    }
    Reply::encode(&Err(Errno::ENOENT), Opcode::Open as u8, 1, &mut message);
    let (header, _) = reply_header(&message, Opcode::Open).expect("a head");
    assert_eq!(
        header,
        Header {
            id: 1,
            error: Some(Errno::ENOENT)
        }
    );
    // What the sentry must not take from a gofer.
    Reply::encode(&Err(Errno::ERESTARTSYS), Opcode::Open as u8, 1, &mut message);
    assert_eq!(
        reply_header(&message, Opcode::Open).expect("a head").0.error,
        Some(Errno::EIO)
    );
}

#[test]
fn names_are_single_components() {
    for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 256]] {
        assert!(Name::new(bad).is_err(), "{bad:?}");
    }
    for good in [&b"..."[..], b".a", b"a b", b"\xff\xfe", &[b'x'; 255]] {
        assert!(Name::new(good).is_ok(), "{good:?}");
    }
}

/// Whatever is accepted is exactly what an honest side would have sent: there are no two forms of a message.
fn check_request(message: &[u8]) {
    if let Ok((id, request)) = Request::decode(message) {
        let mut again = Vec::new();
        request.encode(id, &mut again);
        assert_eq!(again, message);
    }
}

fn check_reply(opcode: Opcode, message: &[u8]) {
    let Ok((header, body)) = reply_header(message, opcode) else {
        return;
    };
    let result = match header.error {
        Some(errno) => Err(errno),
        None => match Reply::decode(opcode, body) {
            Ok(reply) => Ok(reply),
            Err(_) => return,
        },
    };
    let mut again = Vec::new();
    Reply::encode(&result, opcode as u8, header.id, &mut again);
    assert_eq!(again, message);
}

#[test]
fn cut_lengthened_and_changed_messages() {
    let mut random = Random::new(1);
    let mut message = Vec::new();
    for request in requests() {
        request.encode(42, &mut message);
        for len in 0..message.len() {
            assert!(Request::decode(&message[..len]).is_err(), "{request:?} cut to {len}");
        }
        message.push(0);
        assert!(Request::decode(&message).is_err());
        message.pop();
        for _ in 0..20_000 {
            check_request(&random.mutate(&message));
        }
    }
    for (opcode, reply) in replies() {
        Reply::encode(&Ok(reply.clone()), opcode as u8, 42, &mut message);
        for len in 8..message.len() {
            assert!(
                Reply::decode(opcode, &message[8..len]).is_err(),
                "{reply:?} cut to {len}"
            );
        }
        message.push(0);
        assert!(Reply::decode(opcode, &message[8..]).is_err());
        message.pop();
        for _ in 0..20_000 {
            check_reply(opcode, &random.mutate(&message));
        }
    }
}

#[test]
fn random_messages() {
    let mut random = Random::new(2);
    for _ in 0..300_000 {
        let len = random.below(200);
        let mut message = random.bytes(len);
        // With a right head, the body is looked at.
        if let [version, opcode, ..] = &mut message[..] {
            *version = VERSION;
            *opcode %= 18;
        }
        check_request(&message);
        if let Some(opcode) = message
            .get(1)
            .and_then(|byte| replies().get(usize::from(*byte)).map(|(code, _)| *code))
        {
            message[1] = opcode as u8;
            if let Some(status) = message.get_mut(2..4) {
                status.fill(0);
            }
            check_reply(opcode, &message);
        }
    }
    for len in [MAX_REQUEST + 1, MAX_REPLY + 1] {
        let message = vec![VERSION; len];
        assert!(Request::decode(&message).is_err());
        assert!(reply_header(&message, Opcode::Attach).is_err() || len <= MAX_REPLY);
    }
}
