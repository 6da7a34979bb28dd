//! Sending and receiving.

use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_abi::socket::Ucred;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;

use super::room::{check_packet, room};
use super::{
    BUFFER, Flags, InFlight, Kind, MAX_DATAGRAMS, Message, Name, READABLE, RECEIVE, SEND, Socket, State, WRITABLE,
};

/// Writes to a stream that are shorter are joined in the receiver's inbox.
const JOIN: usize = 16 << 10;

/// Where a message goes.
pub enum SendTarget {
    /// To the peer.
    Peer,
    /// To this datagram socket.
    Socket(Arc<Socket>),
}

/// What is sent.
pub struct Send<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// Descriptors that go along (`SCM_RIGHTS`); taken when something was sent.
    pub files: &'a mut InFlight,
    /// On whose behalf.
    pub cred: Ucred,
    /// The last byte goes out of band (`MSG_OOB`).
    pub urgent: bool,
}

/// What was received.
#[derive(Default)]
pub struct Received {
    /// How many bytes are in the buffer.
    pub count: usize,
    /// How many the packet had, more than fit perhaps.
    pub full: usize,
    /// Descriptors that came along.
    pub files: Vec<Arc<File>>,
    /// Who sent it.
    pub cred: Ucred,
    /// From which address.
    pub from: Option<Name>,
    /// False if there was no message: the end of the stream.
    pub any: bool,
}

impl State {
    /// True while senders may add to the inbox as poll(2) tells them: it is at most a quarter full.
    fn takes_more(&self, kind: Kind) -> bool {
        match kind {
            Kind::Datagram => self.inbox.len() < MAX_DATAGRAMS && self.bytes.get() < self.send_limit,
            Kind::Stream | Kind::SeqPacket => {
                self.bytes.get() * 4 <= self.send_limit && self.inbox.len() < MAX_DATAGRAMS
            }
        }
    }

    /// Notes who is to be told when there is room again.
    fn note_waiting(&mut self, sender: &Weak<Socket>) {
        self.waiting.retain(|waiting| waiting.strong_count() > 0);
        if !self.waiting.iter().any(|waiting| waiting.ptr_eq(sender)) {
            self.waiting.push(sender.clone());
        }
    }
}

impl Socket {
    /// Sends; the number of bytes. `EAGAIN` when the receiver has no room.
    pub fn send(&self, target: &SendTarget, send: Send<'_>) -> Result<usize, Errno> {
        let (peer, from, limit) = {
            let mut state = self.state.lock();
            // A stream that is shut keeps its error for a read.
            if (self.kind != Kind::Stream || state.shutdown & SEND == 0)
                && let Some(errno) = state.error.take()
            {
                return Err(errno);
            }
            if state.shutdown & SEND != 0 {
                return Err(Errno::EPIPE);
            }
            let peer = match target {
                SendTarget::Socket(socket) => Some(Arc::downgrade(socket)),
                SendTarget::Peer => state.peer.clone(),
            };
            (peer, state.name.clone(), state.options.send_buffer)
        };
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        let Some(peer) = peer.upgrade() else {
            if self.kind != Kind::Datagram {
                return Err(Errno::EPIPE);
            }
            // With the peer goes what it has sent.
            let stale = {
                let mut state = self.state.lock();
                if state.peer.as_ref().is_some_and(|peer| peer.strong_count() > 0) {
                    return Err(Errno::ECONNREFUSED);
                }
                state.peer = None;
                state.bytes.clear();
                (std::mem::take(&mut state.inbox), std::mem::take(&mut state.waiting))
            };
            for sender in stale.1.iter().filter_map(Weak::upgrade) {
                sender.queue.wake(WRITABLE);
            }
            return Err(Errno::ECONNREFUSED);
        };
        match self.kind {
            Kind::Stream => self.send_stream(&peer, send, limit),
            // A connected socket takes its peer's datagrams only.
            Kind::Datagram if !peer.accepts_from(self) => Err(Errno::EPERM),
            _ => self.send_packet(&peer, send, from, limit),
        }
    }

    fn send_stream(&self, peer: &Arc<Socket>, send: Send<'_>, limit: usize) -> Result<usize, Errno> {
        if send.data.is_empty() {
            return Ok(0);
        }
        let mut state = peer.state.lock();
        if state.shutdown & RECEIVE != 0 {
            return Err(Errno::EPIPE);
        }
        // Remembered: who waits is woken by what was true when it began to.
        state.send_limit = room(limit);
        let count = send.data.len().min(state.send_limit.saturating_sub(state.bytes.get()));
        if count == 0 || state.inbox.len() >= MAX_DATAGRAMS {
            return Err(Errno::EAGAIN);
        }
        if send.urgent {
            // One byte waits at most; one that was not read becomes ordinary data.
            let (data, last) = send.data.split_at(send.data.len() - 1);
            let old = state.urgent.take();
            let text: Vec<u8> = old.into_iter().chain(data.iter().copied()).collect();
            state.bytes.add(text.len());
            if !text.is_empty() {
                state.inbox.push_back(Message::plain(text, send.cred));
            }
            state.urgent = last.first().copied();
            drop(state);
            peer.queue.wake(READABLE | PollEvents::PRI);
            return Ok(send.data.len());
        }
        let data = &send.data[..count];
        let files = std::mem::replace(send.files, InFlight::none());
        let joins = files.files().is_empty();
        match state.inbox.back_mut() {
            Some(last)
                if joins
                    && last.files.files().is_empty()
                    && last.cred == send.cred
                    && last.data.len() + data.len() <= JOIN =>
            {
                last.data.extend_from_slice(data);
            }
            _ => {
                let message = Message {
                    data: data.to_vec(),
                    start: 0,
                    files,
                    cred: send.cred,
                    from: None,
                };
                state.inbox.push_back(message);
            }
        }
        state.bytes.add(count);
        drop(state);
        peer.queue.wake(READABLE);
        Ok(count)
    }

    fn send_packet(
        &self,
        peer: &Arc<Socket>,
        send: Send<'_>,
        from: Option<Name>,
        limit: usize,
    ) -> Result<usize, Errno> {
        if send.data.len() > limit - 32 {
            return Err(Errno::EMSGSIZE);
        }
        check_packet(send.data.len())?;
        let mut state = peer.state.lock();
        if state.shutdown & RECEIVE != 0 {
            return Err(Errno::EPIPE);
        }
        let bytes = state.bytes.get();
        let full = if self.kind == Kind::Datagram {
            state.send_limit = room(BUFFER * 4);
            bytes >= state.send_limit
        } else {
            state.send_limit = room(limit);
            bytes > 0 && bytes + send.data.len() > state.send_limit
        };
        let full = full || state.inbox.len() >= MAX_DATAGRAMS;
        if full {
            state.note_waiting(&self.me);
            return Err(Errno::EAGAIN);
        }
        let files = std::mem::replace(send.files, InFlight::none());
        state.inbox.push_back(Message {
            data: send.data.to_vec(),
            start: 0,
            files,
            cred: send.cred,
            from,
        });
        state.bytes.add(send.data.len());
        drop(state);
        peer.queue.wake(READABLE);
        Ok(send.data.len())
    }

    /// Receives into `buf`. `EAGAIN` when nothing is there yet.
    pub fn receive(&self, buf: &mut [u8], peek: bool) -> Result<Received, Errno> {
        let mut state = self.state.lock();
        if state.inbox.is_empty() {
            if let Some(errno) = state.error.take() {
                return Err(errno);
            }
            if state.shutdown & RECEIVE != 0 {
                return Ok(Received::default());
            }
            return Err(match (self.kind, state.peer.is_some()) {
                (Kind::Stream, false) => Errno::EINVAL,
                (Kind::SeqPacket, false) => Errno::ENOTCONN,
                _ => Errno::EAGAIN,
            });
        }
        let before = state.takes_more(self.kind);
        let was_packet = self.kind != Kind::Stream;
        let offset = usize::try_from(state.options.peek_offset).ok();
        let (received, spent) = if was_packet {
            receive_packet(&mut state, buf, peek)
        } else {
            receive_stream(&mut state, buf, if peek { Some(offset.unwrap_or(0)) } else { None })
        };
        if let Some(offset) = offset {
            // What was looked at is not looked at again; what was read is not before the place any more.
            let count = received.count;
            let offset = if peek {
                offset.saturating_add(count)
            } else {
                offset.saturating_sub(count)
            };
            state.options.peek_offset = i32::try_from(offset).unwrap_or(i32::MAX);
        }
        let wake = !peek && (was_packet || !before) && state.takes_more(self.kind);
        let waiting = if wake {
            std::mem::take(&mut state.waiting)
        } else {
            Vec::new()
        };
        let peer = if wake { state.peer.clone() } else { None };
        drop(state);
        drop(spent);
        for sender in waiting.iter().chain(&peer).filter_map(Weak::upgrade) {
            sender.queue.wake(WRITABLE);
        }
        if wake && self.kind == Kind::Datagram {
            self.queue.wake(WRITABLE);
        }
        Ok(received)
    }

    /// What one that would not wait gets at the end of what there is: datagrams have none, as long as it may wait for them.
    pub fn end_of_file(&self) -> Result<(), Errno> {
        if self.kind == Kind::Datagram {
            Err(Errno::EAGAIN)
        } else {
            Ok(())
        }
    }

    /// Takes the byte that came out of band (`MSG_OOB`), or looks at it; `EINVAL` if there is none.
    pub fn receive_urgent(&self, peek: bool) -> Result<u8, Errno> {
        let mut state = self.state.lock();
        let byte = state.urgent.ok_or(Errno::EINVAL)?;
        if !peek {
            state.urgent = None;
        }
        Ok(byte)
    }

    /// What poll(2) says.
    pub(super) fn readiness(&self) -> PollEvents {
        let mut events = PollEvents::empty();
        let peer = {
            let state = self.state.lock();
            if state.error.is_some() {
                events |= PollEvents::ERR;
            }
            if state.shutdown & RECEIVE != 0 {
                events |= READABLE | PollEvents::RDHUP;
            }
            if state.shutdown == RECEIVE | SEND {
                events |= PollEvents::HUP;
            }
            if !state.inbox.is_empty() {
                events |= READABLE;
            }
            if state.urgent.is_some() {
                events |= PollEvents::PRI;
            }
            if let Some(listener) = &state.listener {
                if !listener.pending.is_empty() {
                    events |= READABLE;
                }
                return events;
            }
            state.peer.clone()
        };
        match peer {
            None if self.kind == Kind::Datagram => events |= WRITABLE,
            None => events |= WRITABLE | PollEvents::HUP,
            Some(peer) => {
                let room = peer.upgrade().is_none_or(|peer| {
                    let mut state = peer.state.lock();
                    let room = state.takes_more(self.kind);
                    if !room {
                        state.note_waiting(&self.me);
                    }
                    room
                });
                if room {
                    events |= WRITABLE;
                }
            }
        }
        events
    }
}

/// Receives from a stream; with `peek`, looks from that byte on and takes nothing.
fn receive_stream(state: &mut State, buf: &mut [u8], peek: Option<usize>) -> (Received, Vec<InFlight>) {
    let mut received = Received {
        any: true,
        ..Received::default()
    };
    let mut spent = Vec::new();
    let mut index = 0;
    let mut skip = peek.unwrap_or(0);
    let tells_senders = state.options.has(Flags::PASS_CRED | Flags::PASS_PIDFD);
    while received.count < buf.len() {
        let Some(message) = state.inbox.get_mut(index) else {
            break;
        };
        if received.count > 0 && tells_senders && message.cred != received.cred {
            break;
        }
        received.cred = message.cred;
        let rest = &message.data[message.start..];
        if skip >= rest.len() && !rest.is_empty() && peek.is_some() {
            skip -= rest.len();
            index += 1;
            continue;
        }
        let rest = &rest[std::mem::take(&mut skip)..];
        let count = rest.len().min(buf.len() - received.count);
        buf[received.count..received.count + count].copy_from_slice(&rest[..count]);
        received.count += count;
        let with_files = !message.files.files().is_empty();
        let all = count == rest.len();
        if with_files {
            received.files = if peek.is_some() {
                message.files.files().to_vec()
            } else {
                message.files.take()
            };
        }
        if peek.is_some() {
            index += 1;
        } else {
            state.bytes.remove(count);
            message.start += count;
            if all && let Some(message) = state.inbox.pop_front() {
                spent.push(message.files);
            }
        }
        if with_files || !all {
            break;
        }
    }
    received.full = received.count;
    (received, spent)
}

fn receive_packet(state: &mut State, buf: &mut [u8], peek: bool) -> (Received, Vec<InFlight>) {
    let mut received = Received {
        any: true,
        ..Received::default()
    };
    let Some(message) = state.inbox.front_mut() else {
        return (received, Vec::new());
    };
    let count = message.data.len().min(buf.len());
    buf[..count].copy_from_slice(&message.data[..count]);
    received.count = count;
    received.full = message.data.len();
    received.cred = message.cred;
    received.from = message.from.clone();
    received.files = if peek {
        message.files.files().to_vec()
    } else {
        message.files.take()
    };
    let mut spent = Vec::new();
    if !peek && let Some(message) = state.inbox.pop_front() {
        state.bytes.remove(message.data.len());
        spent.push(message.files);
    }
    (received, spent)
}
