//! Both decoders against messages that no honest side sends.

use sentry_abi::Errno;
use sentry_gofer::protocol::*;

mod common;
use common::Random;
use common::messages::{replies, requests};

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
