use super::*;

/// Somebody without groups, and of a process that is not known.
fn peer() -> PeerInfo {
    PeerInfo {
        cred: Ucred::default(),
        groups: Some(Arc::from([])),
        process: Weak::new(),
    }
}

fn pair(kind: Kind) -> (Arc<File>, Arc<File>) {
    let (a, b) = Socket::pair(&Weak::new(), kind, peer());
    (
        UnixSocket::file(a, Ucred::default(), false),
        UnixSocket::file(b, Ucred::default(), false),
    )
}

fn write(file: &Arc<File>, data: &[u8]) -> Result<usize, Errno> {
    file.ops().write(file, data, 0).map(|(count, _)| count)
}

fn read(file: &Arc<File>, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let count = file.ops().read(file, &mut buf, 0)?;
    buf.truncate(count);
    Ok(buf)
}

fn send_file(to: &Arc<File>, file: &Arc<File>) -> Result<usize, Errno> {
    let mut files = InFlight::new(vec![file.clone()])?;
    let send = Send {
        data: b"x",
        files: &mut files,
        cred: Ucred::default(),
        urgent: false,
    };
    socket_of(to)?.send(&SendTarget::Peer, send)
}

#[test]
fn streams_join_and_split() {
    let (a, b) = pair(Kind::Stream);
    write(&a, b"hello ").unwrap();
    write(&a, b"world").unwrap();
    assert_eq!(read(&b, 8).unwrap(), b"hello wo");
    assert_eq!(read(&b, 8).unwrap(), b"rld");
    assert_eq!(read(&b, 8), Err(Errno::EAGAIN));
    let big = vec![7; BUFFER + 5];
    assert_eq!(write(&a, &big), Ok(BUFFER));
    assert_eq!(write(&a, b"x"), Err(Errno::EAGAIN));
    assert!(!a.ops().poll(&a).contains(PollEvents::OUT));
    assert_eq!(read(&b, BUFFER).unwrap().len(), BUFFER);
    assert!(a.ops().poll(&a).contains(PollEvents::OUT));
}

#[test]
fn packets_keep_their_bounds() {
    for kind in [Kind::Datagram, Kind::SeqPacket] {
        let (a, b) = pair(kind);
        write(&a, b"one").unwrap();
        write(&a, b"").unwrap();
        write(&a, b"three").unwrap();
        assert_eq!(read(&b, 8).unwrap(), b"one");
        assert_eq!(read(&b, 8).unwrap(), b"");
        assert_eq!(read(&b, 2).unwrap(), b"th");
        assert_eq!(read(&b, 8), Err(Errno::EAGAIN));
        assert_eq!(write(&a, &vec![0; BUFFER]), Err(Errno::EMSGSIZE));
    }
}

#[test]
fn the_end_of_one_side_is_seen_on_the_other() {
    let (a, b) = pair(Kind::Stream);
    write(&a, b"rest").unwrap();
    socket_of(&a).unwrap().shut_down(libc::SHUT_WR).unwrap();
    assert_eq!(read(&b, 8).unwrap(), b"rest");
    assert_eq!(read(&b, 8).unwrap(), b"");
    assert!(b.ops().poll(&b).contains(PollEvents::RDHUP));
    assert_eq!(write(&a, b"x"), Err(Errno::EPIPE));
    write(&b, b"y").unwrap();
    drop(a);
    assert_eq!(read(&b, 8), Err(Errno::ECONNRESET));
    assert_eq!(read(&b, 8).unwrap(), b"");
    assert_eq!(write(&b, b"x"), Err(Errno::EPIPE));
    assert!(b.ops().poll(&b).contains(PollEvents::HUP));
}

#[test]
fn connections_are_accepted_in_turn() {
    let names = Names::default();
    let new = || Socket::new(Weak::new(), Kind::Stream, Ucred::default());
    let listener = new();
    listener.bind(&names, Some(Name::Abstract(b"here".to_vec()))).unwrap();
    assert_eq!(
        new().bind(&names, Some(Name::Abstract(b"here".to_vec()))),
        Err(Errno::EADDRINUSE)
    );
    let client = new();
    assert_eq!(client.connect(&listener, peer()), Err(Errno::ECONNREFUSED));
    listener.listen(0, peer()).unwrap();
    let found = names.find_abstract(b"here", Kind::Stream).unwrap();
    client.connect(&found, peer()).unwrap();
    assert_eq!(new().connect(&found, peer()), Err(Errno::EAGAIN));
    drop(found);
    let accepted = listener.accept().unwrap();
    assert!(matches!(listener.accept(), Err(Errno::EAGAIN)));
    let file = UnixSocket::file(accepted, Ucred::default(), false);
    let client = UnixSocket::file(client, Ucred::default(), false);
    write(&client, b"hi").unwrap();
    assert_eq!(read(&file, 8).unwrap(), b"hi");
    drop(listener);
    assert!(names.find_abstract(b"here", Kind::Stream).is_none());
}

#[test]
fn descriptors_travel_and_long_chains_end() {
    let (a, b) = pair(Kind::Stream);
    let (c, d) = pair(Kind::Stream);
    send_file(&a, &c).unwrap();
    drop(c);
    let mut buf = [0; 4];
    let received = socket_of(&b).unwrap().receive(&mut buf, false).unwrap();
    assert_eq!((received.count, received.files.len()), (1, 1));
    write(&received.files[0], b"through").unwrap();
    assert_eq!(read(&d, 16).unwrap(), b"through");
    // Each socket holds the one before in its inbox: dropping the last must not recurse.
    let (mut held, mut keep) = (pair(Kind::Stream), Vec::new());
    for _ in 0..5000 {
        let next = pair(Kind::Stream);
        if send_file(&next.0, &held.1).is_err() {
            break;
        }
        keep.push(next.0.clone());
        held = next;
    }
    drop(held);
    drop(keep);
}
