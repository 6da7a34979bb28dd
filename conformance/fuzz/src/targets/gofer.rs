//! The gofer's protocol, in both directions.

#[path = "../../../../gofer/tests/common/messages.rs"]
mod messages;

use sentry_abi::Errno;
use sentry_gofer::protocol::*;

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

/// The kinds of requests.
fn opcodes() -> Vec<Opcode> {
    messages::requests().iter().map(Request::opcode).collect()
}

fn requests() -> Vec<Vec<u8>> {
    let encode = |(id, request): (usize, Request<'_>)| {
        let mut message = Vec::new();
        request.encode(id as u32, &mut message);
        message
    };
    messages::requests().into_iter().enumerate().map(encode).collect()
}

fn replies() -> Vec<Vec<u8>> {
    let asked = opcodes();
    let errors = asked.iter().map(|&opcode| (opcode, Err(Errno::ENOENT)));
    let replies = messages::replies()
        .into_iter()
        .map(|(opcode, reply)| (opcode, Ok(reply)));
    let encode = |(opcode, result): (Opcode, Result<Reply, Errno>)| {
        let mut message = Vec::new();
        Reply::encode(&result, opcode as u8, 7, &mut message);
        let index = asked.iter().position(|&other| other == opcode).unwrap_or_default();
        message.insert(0, index as u8);
        message
    };
    replies.chain(errors).map(encode).collect()
}
