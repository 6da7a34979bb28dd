//! The socket to the gofer: requests go out, answers come in their order.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::time::TimeSpec;
use sentry_abi::Errno;
use sentry_host::scm;
use sentry_host::waiting;

use crate::protocol::{MAX_AHEAD, MAX_FORGET, MAX_REPLY, Malformed, NodeId, Opcode, Reply, Request, reply_header};

/// The most abandoned requests whose answers are due; beyond, there is nothing to do but wait.
const MAX_ABANDONED: usize = 64;

/// A connection, used for one request at a time.
pub(super) struct Connection {
    socket: OwnedFd,
    timeout: Duration,
    next: u32,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// Requests that nobody waits for any more, oldest first: their answers come before all others.
    abandoned: VecDeque<(u32, Opcode)>,
    /// Nodes that their answers gave out.
    pub(super) unwanted: Vec<NodeId>,
}

/// Why there is no answer.
pub(super) enum Failure {
    /// The gofer refused.
    Refused(Errno),
    /// It was not waited for.
    GivenUp(Errno),
    /// The gofer is not usable any more.
    Broken,
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        Failure::Broken
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, timeout: Duration) -> Connection {
        Connection {
            socket,
            timeout,
            next: 0,
            request: Vec::with_capacity(1024),
            reply: vec![0; MAX_REPLY],
            abandoned: VecDeque::new(),
            unwanted: Vec::new(),
        }
    }

    /// Closes both ways: whoever waits at the other end need not.
    pub(super) fn shut(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    /// Sends a request and waits for its answer.
    pub(super) fn exchange(
        &mut self,
        request: &Request<'_>,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        while self.abandoned.len() >= MAX_ABANDONED {
            self.skip()?;
        }
        let (id, opcode) = (self.send(request, fd)?, request.opcode());
        let answer = self.answer(id, opcode);
        if matches!(answer, Err(Failure::GivenUp(_))) {
            self.abandoned.push_back((id, opcode));
        }
        answer
    }

    /// Waits for the answer to the request `id`.
    fn answer(&mut self, id: u32, opcode: Opcode) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        while !self.abandoned.is_empty() {
            self.skip()?;
        }
        self.wait(PollFlags::POLLIN)?;
        self.receive(id, opcode)
    }

    /// Takes the answer to the oldest abandoned request.
    fn skip(&mut self) -> Result<(), Failure> {
        let Some(&(id, opcode)) = self.abandoned.front() else {
            return Ok(());
        };
        self.wait(PollFlags::POLLIN)?;
        self.abandoned.pop_front();
        match self.receive(id, opcode) {
            Ok((reply, _)) => {
                self.unwanted.extend(reply.nodes());
                Ok(())
            }
            Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn receive(&mut self, id: u32, opcode: Opcode) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let most = if opcode == Opcode::OpenAhead { MAX_AHEAD } else { 1 };
        let received = scm::try_recv_with_fds(self.socket.as_fd(), &mut self.reply, most);
        let (len, fds) = received.map_err(|error| match error.raw_os_error() {
            // No descriptor is free here. The message was taken, so that the next one is the next reply.
            Some(libc::EMFILE) => Failure::Refused(Errno::EMFILE),
            _ => Failure::Broken,
        })?;
        let message = self.reply.get(..len).unwrap_or_default();
        let (header, body) = reply_header(message, opcode)?;
        if header.id != id {
            return Err(Failure::Broken);
        }
        if let Some(errno) = header.error {
            return Err(if fds.is_empty() {
                Failure::Refused(errno)
            } else {
                Failure::Broken
            });
        }
        let reply = Reply::decode(opcode, body)?;
        if reply.descriptors() != fds.len() {
            return Err(Failure::Broken);
        }
        Ok((reply, fds))
    }

    /// Forgets as many nodes as goes without waiting; how many.
    pub(super) fn try_forget(&mut self, nodes: &[(NodeId, u32)]) -> usize {
        let mut sent = 0;
        for some in nodes.chunks(MAX_FORGET) {
            Request::Forget { nodes: some.to_vec() }.encode(self.next, &mut self.request);
            // A broken connection shows at the next request.
            if scm::try_send_with_fds(self.socket.as_fd(), &self.request, &[]).is_err() {
                break;
            }
            self.next = self.next.wrapping_add(1);
            sent += some.len();
        }
        sent
    }

    fn send(&mut self, request: &Request<'_>, fd: Option<BorrowedFd<'_>>) -> Result<u32, Failure> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        request.encode(id, &mut self.request);
        loop {
            match scm::try_send_with_fds(self.socket.as_fd(), &self.request, fd.as_slice()) {
                Ok(_) => return Ok(id),
                // Too many of this user's descriptors are under way.
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                    return Err(Failure::Refused(Errno::ENFILE));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::POLLOUT)?,
                Err(_) => return Err(Failure::Broken),
            }
        }
    }

    /// Waits until the socket is ready, but no longer than the time limit.
    fn wait(&self, what: PollFlags) -> Result<(), Failure> {
        let end = Instant::now() + self.timeout;
        let ready = waiting::wait(|limit| {
            let left = end.saturating_duration_since(Instant::now());
            let limit = TimeSpec::from_duration(limit.min(left));
            match ppoll(&mut [PollFd::new(self.socket.as_fd(), what)], Some(limit), None) {
                Ok(ready) if ready > 0 => Some(Ok(())),
                Ok(_) | Err(nix::errno::Errno::EINTR) if !left.is_zero() => None,
                _ => Some(Err(Failure::Broken)),
            }
        });
        ready.unwrap_or_else(|errno| Err(Failure::GivenUp(errno)))
    }
}
