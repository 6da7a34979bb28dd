//! A sentry that sends anything, and a gofer that answers anything.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_gofer::protocol::{MAX_REPLY, NewAttributes, Opcode, Owner, Reply, Request, VERSION};
use sentry_gofer::server::{Export, Server, ServerError};
use sentry_gofer::{Access, Attributes, NodeId};
use sentry_host::memory_file::{self, MemoryFile};
use sentry_host::scm;
use sentry_host::waiting::{Waiter, set_waiter};

mod common;
use common::{Random, export, server_process, spawn};

const OWNER: Owner = Owner { uid: 0, gid: 0 };

/// What a sentry could send, with numbers of nodes that may well exist.
fn requests(random: &mut Random) -> Vec<Vec<u8>> {
    let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    let mut name = || sentry_gofer::protocol::Name::new(names[random.below(names.len())]).expect("a name");
    let (first, second) = (name(), name());
    let (node, other) = (NodeId(random.below(12) as u64), NodeId(random.below(12) as u64));
    let set = NewAttributes {
        mode: Some(0o7777),
        size: Some(random.below(10_000) as u64),
        ..Default::default()
    };
    let requests = [
        Request::Attach { export: 1 },
        Request::Lookup {
            node,
            names: vec![first, second],
            open: Some(Access::ReadWrite),
        },
        Request::List {
            node,
            name: Some(first),
            cursor: random.next(),
        },
        Request::Open {
            node,
            access: Access::Write,
        },
        Request::Create {
            parent: node,
            name: first,
            mode: 0o644,
            owner: OWNER,
            open: Some(Access::Read),
        },
        Request::MakeDirectory {
            parent: node,
            name: first,
            mode: 0o755,
            owner: OWNER,
        },
        Request::Symlink {
            parent: node,
            name: second,
            target: b"../..",
            owner: OWNER,
        },
        Request::Link {
            node,
            parent: other,
            name: second,
        },
        Request::Unlink {
            parent: node,
            name: first,
            directory: random.below(2) == 0,
        },
        Request::Rename {
            parent: node,
            name: first,
            new_parent: other,
            new_name: second,
            flags: 2,
        },
        Request::SetAttributes { node, set },
        Request::Forget {
            nodes: vec![(node, random.below(3) as u32)],
        },
        Request::Reopen,
        Request::Hold { node },
        Request::Notifications { reports: true },
        Request::Watch { node },
        Request::Report { node, names_only: true },
        Request::EndReport { watch: 3 },
    ];
    let encode = |request: &Request<'_>| {
        let mut message = Vec::new();
        request.encode(7, &mut message);
        message
    };
    requests.iter().map(encode).collect()
}

/// The server survives whatever comes; what is not even a head ends the connection, in an orderly way.
#[test]
fn any_bytes_at_the_server() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let served = dir.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    fs::write(dir.path().join("canary"), b"canary").expect("write");
    let mut random = Random::new(4);
    for connection in 0..60 {
        let (ours, theirs) = scm::packet_pair().expect("socketpair");
        let exports = [Export {
            writable: true,
            hide_credentials: true,
            ..export(1, &served)
        }];
        let mut server = Server::open(&exports).expect("exports");
        let thread = std::thread::spawn(move || server.serve(theirs.as_fd()));
        let mut buf = vec![0; MAX_REPLY];
        'connection: for _ in 0..100 {
            for mut message in requests(&mut random) {
                match random.below(6) {
                    0 => message = random.mutate(&message),
                    1 if connection % 2 == 0 => {
                        let len = random.below(100);
                        message = random.bytes(len);
                    }
                    _ => {}
                }
                if message.is_empty() {
                    continue;
                }
                if scm::send_with_fds(ours.as_fd(), &message, &[]).is_err() {
                    break 'connection;
                }
                // Read what there is, so that neither side waits for ever.
                loop {
                    match scm::try_recv_with_fds(ours.as_fd(), &mut buf, 1) {
                        Ok((0, _)) => break 'connection,
                        Ok(_) => {}
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break 'connection,
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                            break;
                        }
                    }
                }
            }
        }
        drop(ours);
        match thread.join().expect("no panic") {
            Ok(()) | Err(ServerError::NoRequest) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(fs::read(dir.path().join("canary")).expect("read"), b"canary");
    let outside: Vec<_> = fs::read_dir(dir.path())
        .expect("list")
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    assert_eq!(outside.len(), 2, "{outside:?}");
}

/// Several descriptors and overlong messages are no requests.
#[test]
fn descriptors_and_long_messages_at_the_server() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = File::open("/dev/null").expect("open");
    let long = vec![VERSION; 20_000];
    let attacks: [(&[u8], &[BorrowedFd<'_>]); 3] =
        [(&long, &[]), (&[VERSION; 20], &[file.as_fd(); 2]), (&[VERSION; 5], &[])];
    for (message, fds) in attacks {
        let (ours, theirs) = scm::packet_pair().expect("socketpair");
        let mut server = Server::open(&[export(1, dir.path())]).expect("exports");
        scm::send_with_fds(ours.as_fd(), message, fds).expect("send");
        assert!(matches!(server.serve(theirs.as_fd()), Err(ServerError::NoRequest)));
    }
}

/// A request with a descriptor that it should not have, or without one that it should have, is malformed.
#[test]
fn descriptors_where_they_do_not_belong() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    let mut server = Server::open(&[export(1, dir.path())]).expect("exports");
    let thread = std::thread::spawn(move || server.serve(theirs.as_fd()));
    let file = MemoryFile::new(c"test").expect("memfd");
    let mut buf = vec![0; MAX_REPLY];
    for (request, fds) in [
        (Request::Attach { export: 1 }, &[file.as_fd()][..]),
        (Request::Forget { nodes: Vec::new() }, &[file.as_fd()]),
        (Request::Reopen, &[]),
    ] {
        let mut message = Vec::new();
        request.encode(7, &mut message);
        scm::send_with_fds(ours.as_fd(), &message, fds).expect("send");
        let (len, fds) = scm::recv_with_fds(ours.as_fd(), &mut buf, 1).expect("receive");
        let expected = [VERSION, request.opcode() as u8, libc::EPROTO as u8, 0, 7, 0, 0, 0];
        assert_eq!((&buf[..len], fds.len()), (&expected[..], 0));
    }
    drop(ours);
    thread.join().expect("no panic").expect("an orderly end");
}

/// A restricted gofer opens a memory file once more, with fewer rights.
#[test]
fn memory_files_are_reopened() {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let root = nix::unistd::geteuid().is_root();
    for uid in [None, root.then_some(65534)] {
        for writable in [false, true] {
            let exports = [Export {
                writable,
                ..export(1, dir.path())
            }];
            let (socket, mut child) = spawn("gofer_process", &exports, uid);
            let client = Client::new(socket);
            let file = MemoryFile::new(c"test").expect("memfd");
            let reader = client.reopen(file.as_fd()).expect("a second descriptor");
            file.write_at(b"later", 0).expect("write");
            let mut buf = [0; 5];
            memory_file::read_at(reader.as_fd(), &mut buf, 0).expect("read");
            assert_eq!(&buf, b"later");
            assert_eq!(memory_file::write_at(reader.as_fd(), b"x", 0), Err(Errno::EBADF));
            drop(client);
            assert!(child.wait().expect("wait").success());
        }
    }
}

/// Nothing but memory files that are open for reading and writing is reopened: no rights are gained, and nothing is
/// opened that could block or have an effect.
#[test]
fn nothing_else_is_reopened() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (socket, mut child) = spawn("gofer_process", &[export(1, dir.path())], None);
    let client = Client::new(socket);
    let memory = MemoryFile::new(c"test").expect("memfd");
    let again = |flags: i32| {
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        let mut options = File::options();
        let options = match flags {
            libc::O_WRONLY => options.write(true),
            _ => options.read(true).custom_flags(flags),
        };
        OwnedFd::from(options.open(path).expect("open"))
    };
    let both = |path: &str| OwnedFd::from(File::options().read(true).write(true).open(path).expect("open"));
    let (reader, writer) = std::io::pipe().expect("pipe");
    let refused: [OwnedFd; 9] = [
        again(libc::O_RDONLY),
        again(libc::O_WRONLY),
        again(libc::O_PATH),
        both("/dev/null"),
        both("/proc/self/comm"),
        File::open(dir.path()).expect("open").into(),
        File::open("/proc/version").expect("open").into(),
        reader.into(),
        writer.into(),
    ];
    for fd in refused {
        let error = client.reopen(fd.as_fd()).err();
        assert!(matches!(error, Some(Errno::EACCES | Errno::EBADF)), "{error:?}");
    }
    assert!(client.alive() && client.reopen(memory.as_fd()).is_ok());
    drop(client);
    assert!(child.wait().expect("wait").success());
}

/// Unknown opcodes and malformed bodies get an answer.
#[test]
fn malformed_requests_are_answered() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    let mut server = Server::open(&[export(1, dir.path())]).expect("exports");
    let thread = std::thread::spawn(move || server.serve(theirs.as_fd()));
    let mut buf = vec![0; MAX_REPLY];
    for message in [
        &[VERSION, 99, 1, 0, 0, 0][..],
        &[9, 1, 1, 0, 0, 0],
        &[VERSION, Opcode::Attach as u8, 1, 0, 0, 0],
    ] {
        scm::send_with_fds(ours.as_fd(), message, &[]).expect("send");
        let (len, _) = scm::recv_with_fds(ours.as_fd(), &mut buf, 1).expect("receive");
        assert_eq!(buf[..len], [VERSION, message[1], libc::EPROTO as u8, 0, 1, 0, 0, 0]);
    }
    drop(ours);
    thread.join().expect("no panic").expect("an orderly end");
}

/// A gofer that answers each request by `answer`: a message and descriptors.
fn false_gofer(mut answer: impl FnMut(&[u8]) -> (Vec<u8>, Vec<OwnedFd>) + Send + 'static) -> Arc<Client> {
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    std::thread::spawn(move || {
        let mut buf = vec![0; 8192];
        while let Ok((len, _)) = scm::recv_with_fds(theirs.as_fd(), &mut buf, 0) {
            if len == 0 {
                break;
            }
            let (message, fds) = answer(&buf[..len]);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if !message.is_empty() && scm::send_with_fds(theirs.as_fd(), &message, &fds).is_err() {
                break;
            }
        }
    });
    Client::with_timeout(ours, Duration::from_millis(300))
}

fn opened(request: &[u8]) -> Vec<u8> {
    let attributes = Attributes {
        mode: libc::S_IFREG | 0o644,
        ..Attributes::default()
    };
    let reply = Reply::Opened(sentry_gofer::protocol::Opened { attributes });
    let mut message = Vec::new();
    let id = u32::from_le_bytes(request[2..6].try_into().expect("id"));
    Reply::encode(&Ok(reply), Opcode::Open as u8, id, &mut message);
    message
}

#[test]
fn any_bytes_at_the_client() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let client = false_gofer(move |request| {
            let mut message = opened(request);
            if random.below(3) == 0 {
                message[1] = request[1];
            }
            let fds =
                (0..random.below(3)).map(|_| File::open("/etc/hostname").or_else(|_| File::open("/proc/version")));
            let fds = fds.map(|file| file.expect("some regular file").into()).collect();
            (random.mutate(&message), fds)
        });
        for _ in 0..10 {
            let _ = client.open(NodeId(1), Access::Read);
            let _ = client.lookup(NodeId(1), &[b"x"], Some(Access::Read));
            let _ = client.list(NodeId(1), None, 0);
            let _ = client.attach(1);
            let _ = client.create(NodeId(1), b"x", 0, OWNER, None);
        }
    }
}

/// What the gofer opens must be a regular file with the right access.
#[test]
fn wrong_descriptors_at_the_client() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("file");
    fs::write(&path, b"x").expect("write");
    let wrong: Vec<Vec<OwnedFd>> = vec![
        vec![File::open("/dev/zero").expect("open").into()],
        vec![File::open(dir.path()).expect("open").into()],
        vec![std::io::pipe().expect("pipe").0.into()],
        vec![File::options().read(true).write(true).open(&path).expect("open").into()],
        vec![File::options().write(true).open(&path).expect("open").into()],
        vec![],
        vec![
            File::open(&path).expect("open").into(),
            File::open(&path).expect("open").into(),
        ],
    ];
    for fds in wrong {
        let mut fds = Some(fds);
        let client = false_gofer(move |request| (opened(request), fds.take().unwrap_or_default()));
        let error = client.open(NodeId(1), Access::Read).err();
        assert!(matches!(error, Some(Errno::EIO | Errno::EMFILE)), "{error:?}");
    }
    let mut file = Some(File::open(&path).expect("open"));
    let client = false_gofer(move |request| (opened(request), file.take().into_iter().map(OwnedFd::from).collect()));
    assert!(client.open(NodeId(1), Access::Read).is_ok());
}

/// A gofer that is gone, silent, or answers another request: EIO, soon, and for ever.
#[test]
fn a_gofer_that_fails() {
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    drop(theirs);
    let gone = Client::new(ours);
    let silent = false_gofer(|_| (Vec::new(), Vec::new()));
    let confused = false_gofer(|request| {
        let mut message = opened(request);
        message[4] ^= 1;
        (message, vec![File::open("/proc/version").expect("open").into()])
    });
    for client in [gone, silent, confused] {
        let started = std::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(client.open(NodeId(1), Access::Read).err(), Some(Errno::EIO));
        }
        assert!(!client.alive());
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

/// Gives up at the first look.
struct Impatient;

impl Waiter for Impatient {
    fn hand_off(&self) -> bool {
        true
    }
    fn given_up(&self) -> bool {
        true
    }
}

/// Requests that nobody waits for any more are no harm to those that come later: each gets its own answer.
#[test]
fn abandoned_requests() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for number in 0..200 {
        fs::write(dir.path().join(number.to_string()), number.to_string()).expect("write");
    }
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    let mut server = Server::open(&[Export {
        writable: true,
        ..export(1, dir.path())
    }])
    .expect("exports");
    let client = Client::new(ours);
    // Nobody answers yet.
    set_waiter(Some(Rc::new(Impatient)));
    assert_eq!(client.attach(1).err(), Some(Errno::EINTR));
    assert_eq!(client.attach(7).err(), Some(Errno::EINTR));
    set_waiter(None);
    let thread = std::thread::spawn(move || server.serve(theirs.as_fd()));
    let root = client.attach(1).expect("attach").root.node;
    for round in 0..200_u32 {
        let name = round.to_string();
        let names = [name.as_bytes()];
        // In time or not, with a descriptor.
        set_waiter(Some(Rc::new(Impatient)));
        let _ = client.lookup(root, &names, Some(Access::Read));
        let _ = client.make_directory(root, format!("dir-{round}").as_bytes(), 0o755, OWNER);
        set_waiter(None);
        let (walked, fd) = client.lookup(root, &names, Some(Access::ReadWrite)).expect("lookup");
        let mut text = String::new();
        File::from(fd.expect("opened")).read_to_string(&mut text).expect("read");
        assert_eq!((text, walked.steps.len()), (name, 1));
    }
    assert!(client.alive());
    drop(client);
    thread.join().expect("no panic").expect("an orderly end");
}

/// A gofer killed in the middle of everything.
#[test]
fn a_gofer_that_is_killed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::write(dir.path().join("file"), b"x").expect("write");
    let (socket, mut child) = spawn("gofer_process", &[export(1, dir.path())], None);
    let client = Client::new(socket);
    let root = client.attach(1).expect("attach").root.node;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    match client.lookup(root, &[b"file"], Some(Access::Read)) {
                        Ok((walked, _)) => client.forget(walked.steps[0].node, 1),
                        Err(errno) => return assert_eq!(errno, Errno::EIO),
                    }
                }
            });
        }
        while client.requests() < 100 {
            std::thread::yield_now();
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    });
    assert_eq!(client.attach(1).err(), Some(Errno::EIO));
}

/// Random bytes at a restricted gofer process do not make it do anything its filter would kill it for.
#[test]
fn any_bytes_at_a_restricted_process() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut random = Random::new(5);
    for writable in [false, true] {
        let (ours, mut child) = spawn(
            "gofer_process",
            &[Export {
                writable,
                ..export(1, dir.path())
            }],
            None,
        );
        let mut buf = vec![0; MAX_REPLY];
        for _ in 0..1000 {
            for message in requests(&mut random) {
                let forget = message[1] == Opcode::Forget as u8;
                scm::send_with_fds(ours.as_fd(), &message, &[]).expect("send");
                if !forget {
                    assert!(scm::recv_with_fds(ours.as_fd(), &mut buf, 1).expect("receive").0 >= 8);
                }
            }
        }
        drop(ours);
        assert!(child.wait().expect("wait").success());
    }
}

/// Not a test: [`spawn`] runs it.
#[test]
fn gofer_process() {
    server_process();
}
