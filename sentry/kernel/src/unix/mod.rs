//! Unix sockets (unix(7)): streams, datagrams and sequenced packets inside the sandbox.
//!
//! Each socket has one lock, for what it has received and for its state. Two sockets are never locked at a time, and a
//! reference to another socket is dropped only when no lock is held: it may be the last one, and a socket that
//! goes tells its peer.

mod name;
mod ops;
mod options;
mod room;
mod transfer;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sentry_abi::Errno;
use sentry_abi::socket::Ucred;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::File;
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::Kernel;
use crate::anon;
use crate::task::Process;

use room::Queued;

pub use name::{Address, Name, Names, address_bytes};
pub use ops::UnixSocket;
pub use options::{Flags, Options};
pub use transfer::{Received, Send, SendTarget};

/// How many bytes wait at a socket at most (`net.core.wmem_default`).
pub const BUFFER: usize = 212_992;
/// How many datagrams wait at a socket at most (`net.unix.max_dgram_qlen`).
const MAX_DATAGRAMS: usize = 512;
/// How many descriptors may be under way in messages, in the whole sandbox: what is sent in a circle is never freed.
const MAX_IN_FLIGHT: usize = 16_384;
/// The most connections that wait to be accepted (`net.core.somaxconn`).
const MAX_BACKLOG: usize = 4096;

const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
const WRITABLE: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);

/// `SOCK_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `SOCK_STREAM`.
    Stream,
    /// `SOCK_DGRAM`.
    Datagram,
    /// `SOCK_SEQPACKET`.
    SeqPacket,
}

impl Kind {
    /// From the type argument of socket(2), flags taken off.
    pub fn from_raw(raw: i32) -> Result<Kind, Errno> {
        match raw {
            libc::SOCK_STREAM => Ok(Kind::Stream),
            // Linux makes SOCK_RAW a SOCK_DGRAM here.
            libc::SOCK_DGRAM | libc::SOCK_RAW => Ok(Kind::Datagram),
            libc::SOCK_SEQPACKET => Ok(Kind::SeqPacket),
            _ => Err(Errno::ESOCKTNOSUPPORT),
        }
    }

    /// `SOCK_*`.
    pub fn raw(self) -> i32 {
        match self {
            Kind::Stream => libc::SOCK_STREAM,
            Kind::Datagram => libc::SOCK_DGRAM,
            Kind::SeqPacket => libc::SOCK_SEQPACKET,
        }
    }
}

/// Descriptors under way.
pub struct InFlight(Vec<Arc<File>>);

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

impl InFlight {
    /// No descriptor.
    pub fn none() -> InFlight {
        InFlight(Vec::new())
    }

    /// `ETOOMANYREFS` if too many are under way already.
    pub fn new(files: Vec<Arc<File>>) -> Result<InFlight, Errno> {
        let count = files.len();
        if IN_FLIGHT.fetch_add(count, Ordering::Relaxed) + count > MAX_IN_FLIGHT {
            IN_FLIGHT.fetch_sub(count, Ordering::Relaxed);
            return Err(Errno::ETOOMANYREFS);
        }
        Ok(InFlight(files))
    }

    /// They have arrived.
    pub fn take(&mut self) -> Vec<Arc<File>> {
        IN_FLIGHT.fetch_sub(self.0.len(), Ordering::Relaxed);
        std::mem::take(&mut self.0)
    }

    /// Copies, for `MSG_PEEK`.
    pub fn files(&self) -> &[Arc<File>] {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        bury(self.take());
    }
}

thread_local! {
    static GRAVES: RefCell<Option<Vec<Arc<File>>>> = const { RefCell::new(None) };
}

/// Drops files that may hold sockets that hold files, without recursion.
fn bury(files: Vec<Arc<File>>) {
    if files.is_empty() {
        return;
    }
    let nested = GRAVES.with_borrow_mut(|graves| match graves {
        Some(graves) => {
            graves.extend(files);
            true
        }
        None => {
            *graves = Some(files);
            false
        }
    });
    if nested {
        return;
    }
    while let Some(file) = GRAVES.with_borrow_mut(|graves| graves.as_mut().and_then(Vec::pop)) {
        drop(file);
    }
    GRAVES.with_borrow_mut(|graves| *graves = None);
}

/// Bytes that were sent together.
struct Message {
    data: Vec<u8>,
    /// Where the bytes begin that nobody has read yet.
    start: usize,
    files: InFlight,
    cred: Ucred,
    from: Option<Name>,
}

impl Message {
    /// Bytes without descriptors.
    fn plain(data: Vec<u8>, cred: Ucred) -> Message {
        Message {
            data,
            start: 0,
            files: InFlight::none(),
            cred,
            from: None,
        }
    }
}

/// Set in [`State::shutdown`]: nothing more is received.
const RECEIVE: u8 = 1;
/// Set in [`State::shutdown`]: nothing more can be sent.
const SEND: u8 = 2;

struct Listener {
    backlog: usize,
    pending: VecDeque<Arc<Socket>>,
}

struct State {
    inbox: VecDeque<Message>,
    bytes: Queued,
    name: Option<Name>,
    peer: Option<Weak<Socket>>,
    peer_name: Option<Name>,
    peer_info: PeerInfo,
    listener: Option<Listener>,
    shutdown: u8,
    error: Option<Errno>,
    /// The last byte that came out of band (`MSG_OOB`) and was not read.
    urgent: Option<u8>,
    /// How much its senders may have under way to it: of a stream, the send buffer of the last one.
    send_limit: usize,
    /// Datagram senders that found the inbox full.
    waiting: Vec<Weak<Socket>>,
    options: Options,
}

/// Who is at the other end, as it was when the connection was made.
#[derive(Clone)]
pub struct PeerInfo {
    /// `SO_PEERCRED`.
    pub cred: Ucred,
    /// Supplementary groups (`SO_PEERGROUPS`); none without a peer.
    pub groups: Option<Arc<[u32]>>,
    /// Its process.
    pub process: Weak<Process>,
}

impl PeerInfo {
    fn nobody() -> PeerInfo {
        PeerInfo {
            cred: Ucred {
                pid: 0,
                uid: u32::MAX,
                gid: u32::MAX,
            },
            groups: None,
            process: Weak::new(),
        }
    }
}

/// A socket.
pub struct Socket {
    me: Weak<Socket>,
    kind: Kind,
    state: Mutex<State, rank::Socket>,
    queue: WaitQueue,
    kernel: Weak<Kernel>,
    attributes: Attributes,
}

impl Socket {
    fn new(kernel: Weak<Kernel>, kind: Kind, cred: Ucred) -> Arc<Socket> {
        let state = State {
            inbox: VecDeque::new(),
            bytes: Queued::default(),
            name: None,
            peer: None,
            peer_name: None,
            peer_info: PeerInfo::nobody(),
            listener: None,
            shutdown: 0,
            error: None,
            urgent: None,
            send_limit: if kind == Kind::Datagram { BUFFER * 4 } else { BUFFER },
            waiting: Vec::new(),
            options: Options::default(),
        };
        let names = kernel.upgrade();
        let socket = Arc::new_cyclic(|me| Socket {
            me: me.clone(),
            kind,
            state: Mutex::new(state),
            queue: WaitQueue::new(),
            kernel,
            attributes: anon::attributes(libc::S_IFSOCK | 0o777, cred.uid, cred.gid, anon::SOCKET_DEV),
        });
        if let Some(kernel) = names {
            kernel.unix.note(&socket);
        }
        socket
    }

    /// Its type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where changes are announced.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// Its options.
    pub fn options(&self) -> Options {
        self.state.lock().options
    }

    /// Changes its options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.state.lock().options);
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    /// True for a listening socket (`SO_ACCEPTCONN`).
    pub fn is_listening(&self) -> bool {
        self.state.lock().listener.is_some()
    }

    /// Who connected, or listened.
    pub fn peer_info(&self) -> PeerInfo {
        self.state.lock().peer_info.clone()
    }

    /// What fstat(2) says.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Its address.
    pub fn name(&self) -> Option<Name> {
        self.state.lock().name.clone()
    }

    /// The address of its peer; `ENOTCONN` without one.
    pub fn peer_name(&self) -> Result<Option<Name>, Errno> {
        let state = self.state.lock();
        if state.peer.is_none() {
            Err(Errno::ENOTCONN)
        } else {
            Ok(state.peer_name.clone())
        }
    }

    /// True if a datagram socket takes what `sender` sends: a connected one takes its peer's only.
    fn accepts_from(&self, sender: &Socket) -> bool {
        let state = self.state.lock();
        state.peer.as_ref().is_none_or(|peer| peer.ptr_eq(&sender.me))
    }

    /// Binds it to a name of its own if its messages are to tell where they come from, as Linux does.
    pub fn autobind(self: &Arc<Socket>, names: &Names) -> Result<(), Errno> {
        let wanted = {
            let state = self.state.lock();
            state.name.is_none() && state.options.has(Flags::PASS_CRED | Flags::PASS_PIDFD)
        };
        if wanted { self.bind(names, None) } else { Ok(()) }
    }

    /// How many bytes are under way to the peer (`SIOCOUTQ`).
    pub fn outstanding(&self) -> usize {
        self.peer().map_or(0, |peer| peer.state.lock().bytes.get())
    }

    fn peer(&self) -> Option<Arc<Socket>> {
        self.state.lock().peer.as_ref().and_then(Weak::upgrade)
    }

    /// About how many bytes of memory it and what waits take.
    pub fn memory(&self) -> u64 {
        // Measured: what 20,000 sockets take beyond their files, and a message beyond its bytes.
        const SOCKET: usize = 500;
        const MESSAGE: usize = 500;
        let state = self.state.lock();
        (SOCKET + state.bytes.get() + state.inbox.len() * MESSAGE) as u64
    }

    /// How many bytes can be read: of a packet socket, those of the next one.
    pub fn available(&self) -> usize {
        let state = self.state.lock();
        if self.kind == Kind::Datagram {
            state.inbox.front().map_or(0, |message| message.data.len())
        } else {
            state.bytes.get()
        }
    }

    /// Connects two new sockets (socketpair(2)).
    pub fn pair(kernel: &Weak<Kernel>, kind: Kind, info: PeerInfo) -> (Arc<Socket>, Arc<Socket>) {
        let cred = info.cred;
        let (a, b) = (
            Socket::new(kernel.clone(), kind, cred),
            Socket::new(kernel.clone(), kind, cred),
        );
        for (one, other) in [(&a, &b), (&b, &a)] {
            let mut state = one.state.lock();
            state.peer = Some(Arc::downgrade(other));
            state.peer_info = info.clone();
        }
        (a, b)
    }

    /// Binds it; `EINVAL` if it is bound already.
    pub fn bind(self: &Arc<Socket>, names: &Names, name: Option<Name>) -> Result<(), Errno> {
        if self.state.lock().name.is_some() {
            return Err(Errno::EINVAL);
        }
        let name = match name {
            Some(name) => {
                names.bind(&name, self)?;
                name
            }
            None => names.autobind(self)?,
        };
        self.state.lock().name = Some(name);
        Ok(())
    }

    /// listen(2).
    pub fn listen(&self, backlog: i32, info: PeerInfo) -> Result<(), Errno> {
        if self.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        if state.name.is_none() || state.peer.is_some() {
            return Err(Errno::EINVAL);
        }
        // A negative backlog is a very large one.
        let backlog = usize::try_from(backlog).unwrap_or(MAX_BACKLOG).min(MAX_BACKLOG);
        state.peer_info = info;
        match &mut state.listener {
            Some(listener) => listener.backlog = backlog,
            None => {
                state.listener = Some(Listener {
                    backlog,
                    pending: VecDeque::new(),
                })
            }
        }
        Ok(())
    }

    /// Connects a stream or packet socket to a listener. `EAGAIN` when its backlog is full: wait for `WRITABLE` of
    /// the listener's queue.
    pub fn connect(self: &Arc<Socket>, listener: &Arc<Socket>, info: PeerInfo) -> Result<(), Errno> {
        if listener.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        let own_name = {
            let state = self.state.lock();
            if state.peer.is_some() {
                return Err(Errno::EISCONN);
            }
            if state.listener.is_some() {
                return Err(Errno::EINVAL);
            }
            state.name.clone()
        };
        let accepted = Socket::new(self.kernel.clone(), self.kind, info.cred);
        let (peer_info, peer_name) = {
            let mut state = listener.state.lock();
            let (peer_info, name, options) = (state.peer_info.clone(), state.name.clone(), state.options);
            if state.shutdown & RECEIVE != 0 {
                return Err(Errno::ECONNREFUSED);
            }
            let Some(queue) = &mut state.listener else {
                return Err(Errno::ECONNREFUSED);
            };
            // Linux lets one more in than was asked for.
            if queue.pending.len() > queue.backlog {
                return Err(Errno::EAGAIN);
            }
            {
                // Nobody else has it yet.
                let mut new = accepted.state.lock_another();
                new.peer = Some(Arc::downgrade(self));
                new.peer_name = own_name;
                new.peer_info = info;
                new.name = name.clone();
                new.options.flags = options.flags & (Flags::PASS_CRED | Flags::PASS_PIDFD);
            }
            queue.pending.push_back(accepted.clone());
            (peer_info, name)
        };
        let mut state = self.state.lock();
        state.peer = Some(Arc::downgrade(&accepted));
        state.peer_info = peer_info;
        state.peer_name = peer_name;
        drop(state);
        listener.queue.wake(READABLE);
        self.queue.wake(WRITABLE);
        Ok(())
    }

    /// Sets where datagrams go (connect(2)); none: nowhere (`AF_UNSPEC`).
    pub fn connect_datagram(&self, target: Option<&Arc<Socket>>) -> Result<(), Errno> {
        if target.is_some_and(|target| target.kind != Kind::Datagram) {
            return Err(Errno::EPROTOTYPE);
        }
        if target.is_some_and(|target| !target.accepts_from(self)) {
            return Err(Errno::EPERM);
        }
        let name = target.and_then(|target| target.name());
        let new = target.map(Arc::downgrade);
        let mut state = self.state.lock();
        let changed = match (&state.peer, &new) {
            (Some(old), Some(new)) => !old.ptr_eq(new),
            (Some(_), None) => true,
            (None, _) => false,
        };
        // What the former peer has sent is not for this conversation.
        let mut stale = VecDeque::new();
        if changed {
            stale = std::mem::take(&mut state.inbox);
            state.bytes.clear();
        }
        state.peer = new;
        state.peer_name = name;
        drop(state);
        drop(stale);
        Ok(())
    }

    /// Takes a waiting connection; `EAGAIN` if there is none.
    pub fn accept(&self) -> Result<Arc<Socket>, Errno> {
        if self.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let shut = state.shutdown & RECEIVE != 0;
        let listener = state.listener.as_mut().ok_or(Errno::EINVAL)?;
        match listener.pending.pop_front() {
            Some(socket) => {
                drop(state);
                self.queue.wake(WRITABLE);
                Ok(socket)
            }
            None if shut => Err(Errno::EINVAL),
            None => Err(Errno::EAGAIN),
        }
    }

    /// shutdown(2): `how` is `SHUT_*`.
    pub fn shut_down(&self, how: i32) -> Result<(), Errno> {
        let (mine, theirs) = match how {
            libc::SHUT_RD => (RECEIVE, SEND),
            libc::SHUT_WR => (SEND, RECEIVE),
            libc::SHUT_RDWR => (RECEIVE | SEND, RECEIVE | SEND),
            _ => return Err(Errno::EINVAL),
        };
        self.state.lock().shutdown |= mine;
        if self.kind != Kind::Datagram
            && let Some(peer) = self.peer()
        {
            peer.state.lock().shutdown |= theirs;
            peer.queue.wake_all();
        }
        self.queue.wake_all();
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // An empty message in front does not count.
        let empty = |message: &Message| message.data.len() == message.start;
        let unread = state.inbox.len() > usize::from(state.inbox.front().is_some_and(empty));
        let inbox = std::mem::take(&mut state.inbox);
        let pending = state.listener.take().map(|listener| listener.pending);
        let waiting = std::mem::take(&mut state.waiting);
        let (peer, name) = (state.peer.take(), state.name.take());
        if let (Some(name), Some(kernel)) = (name, self.kernel.upgrade()) {
            // Accepted sockets share their listener's name: it is forgotten only when nobody answers to it.
            kernel.unix.release(&name, self.kind);
        }
        if self.kind != Kind::Datagram
            && let Some(peer) = peer.as_ref().and_then(Weak::upgrade)
        {
            let mut state = peer.state.lock();
            state.shutdown |= RECEIVE | SEND;
            if unread {
                state.error = Some(Errno::ECONNRESET);
            }
            drop(state);
            peer.queue.wake_all();
        }
        for sender in waiting.iter().filter_map(Weak::upgrade) {
            sender.queue.wake(WRITABLE);
        }
        self.queue.wake_all();
        // Nobody will accept these: their clients see the end.
        for socket in pending.into_iter().flatten() {
            if let Some(client) = socket.peer() {
                client.state.lock().error = Some(Errno::ECONNRESET);
            }
        }
        bury(inbox.into_iter().flat_map(|mut message| message.files.take()).collect());
    }
}

impl Socket {
    /// A line of /proc/net/unix, with its newline.
    pub fn line(self: &Arc<Socket>) -> Vec<u8> {
        const ACCEPTS: u32 = 0x1_0000;
        let (listens, connected, name) = {
            let state = self.state.lock();
            (state.listener.is_some(), state.peer.is_some(), state.name.clone())
        };
        let mut line = format!(
            "0000000000000000: {:08X} 00000000 {:08X} {:04X} {:02X} {:5}",
            Arc::strong_count(self),
            if listens { ACCEPTS } else { 0 },
            self.kind.raw(),
            if connected { 3 } else { 1 },
            self.attributes.ino
        )
        .into_bytes();
        match name {
            Some(Name::Path(path, _)) => {
                line.push(b' ');
                line.extend_from_slice(&path);
            }
            Some(Name::Abstract(name)) => {
                line.extend_from_slice(b" @");
                line.extend(name.iter().map(|&byte| if byte == 0 { b'@' } else { byte }));
            }
            None => {}
        }
        line.push(b'\n');
        line
    }
}

/// The socket behind a file; `ENOTSOCK` if it is something else.
pub fn socket_of(file: &File) -> Result<&Arc<Socket>, Errno> {
    file.ops()
        .as_any()
        .downcast_ref::<UnixSocket>()
        .map(UnixSocket::socket)
        .ok_or(Errno::ENOTSOCK)
}

/// `SO_RCVTIMEO` of a file, if it is a socket that has one.
pub fn receive_timeout(file: &File) -> Option<Duration> {
    socket_of(file).ok()?.options().receive_timeout
}

/// `SO_SNDTIMEO` of a file, if it is a socket that has one.
pub fn send_timeout(file: &File) -> Option<Duration> {
    socket_of(file).ok()?.options().send_timeout
}

/// Takes the pending error of a file, if it is a socket.
pub fn take_error(file: &File) -> Option<Errno> {
    socket_of(file).ok()?.take_error()
}

/// How many bytes can be read, if the file is a socket.
pub fn available(file: &File) -> Option<usize> {
    socket_of(file).ok().map(|socket| socket.available())
}

#[cfg(test)]
mod tests;
