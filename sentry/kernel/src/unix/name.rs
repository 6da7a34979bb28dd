//! Addresses of Unix sockets, and who is bound to them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::path::{InodeKey, VfsPath};

use super::{Kind, Socket};

/// The longest path in a `struct sockaddr_un`.
const PATH_LEN: usize = 108;
const AF_UNIX: [u8; 2] = (libc::AF_UNIX as u16).to_ne_bytes();

/// What a guest gave as an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Only the family: bind(2) then chooses an abstract name.
    Unnamed,
    /// A path.
    Path(Vec<u8>),
    /// An abstract name, without the zero byte before it.
    Abstract(Vec<u8>),
}

impl Address {
    /// From the bytes of a `struct sockaddr_un`; `EINVAL` if it is not one.
    pub fn parse(bytes: &[u8]) -> Result<Address, Errno> {
        let (family, rest) = bytes.split_at_checked(2).ok_or(Errno::EINVAL)?;
        if family != AF_UNIX || rest.len() > PATH_LEN {
            return Err(Errno::EINVAL);
        }
        Ok(match rest {
            [] => Address::Unnamed,
            [0, name @ ..] => Address::Abstract(name.to_vec()),
            path => Address::Path(path.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()),
        })
    }
}

/// What a socket is bound to.
#[derive(Clone)]
pub enum Name {
    /// A path as it was given, and its place, which keeps the key below valid.
    Path(Vec<u8>, VfsPath),
    /// An abstract name.
    Abstract(Vec<u8>),
}

impl Name {
    /// The bytes of its `struct sockaddr_un`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = AF_UNIX.to_vec();
        match self {
            Name::Path(path, _) => {
                out.extend_from_slice(path);
                if path.len() < PATH_LEN {
                    out.push(0);
                }
            }
            Name::Abstract(name) => {
                out.push(0);
                out.extend_from_slice(name);
            }
        }
        out
    }

    fn key(&self, kind: Kind) -> Option<Key> {
        match self {
            Name::Path(_, place) => place.inode_key().map(Key::Inode),
            Name::Abstract(name) => Some(Key::Abstract(kind, name.clone())),
        }
    }
}

/// The bytes of an optional name's `struct sockaddr_un`.
pub fn address_bytes(name: Option<&Name>) -> Vec<u8> {
    name.map_or_else(|| AF_UNIX.to_vec(), Name::to_bytes)
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Inode(InodeKey),
    /// Each kind of socket has names of its own.
    Abstract(Kind, Vec<u8>),
}

/// Who is bound to which name.
#[derive(Default)]
pub struct Names {
    bound: Mutex<Bound, rank::SocketNames>,
    /// All sockets, for /proc/net/unix.
    all: Mutex<Vec<Weak<Socket>>, rank::AllSockets>,
}

#[derive(Default)]
struct Bound {
    sockets: HashMap<Key, Weak<Socket>>,
    next: u32,
}

impl Names {
    /// Notes a new socket.
    pub fn note(&self, socket: &Arc<Socket>) {
        let mut all = self.all.lock();
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|other| other.strong_count() > 0);
        }
        all.push(Arc::downgrade(socket));
    }

    /// All sockets that there are.
    pub fn sockets(&self) -> Vec<Arc<Socket>> {
        self.all.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Binds a socket; `EADDRINUSE` if somebody has the name.
    pub fn bind(&self, name: &Name, socket: &Arc<Socket>) -> Result<(), Errno> {
        let key = name.key(socket.kind()).ok_or(Errno::EINVAL)?;
        let mut bound = self.bound.lock();
        if bound.sockets.get(&key).is_some_and(|other| other.strong_count() > 0) {
            return Err(Errno::EADDRINUSE);
        }
        bound.sockets.insert(key, Arc::downgrade(socket));
        Ok(())
    }

    /// Binds a socket to a free abstract name of five hexadecimal digits (unix(7), autobind).
    pub fn autobind(&self, socket: &Arc<Socket>) -> Result<Name, Errno> {
        for _ in 0..1 << 20 {
            let number = {
                let mut bound = self.bound.lock();
                bound.next = (bound.next + 1) & 0xf_ffff;
                bound.next
            };
            let name = Name::Abstract(format!("{number:05x}").into_bytes());
            if self.bind(&name, socket).is_ok() {
                return Ok(name);
            }
        }
        Err(Errno::ENOSPC)
    }

    /// Forgets a name when its socket goes.
    pub fn release(&self, name: &Name, kind: Kind) {
        if let Some(key) = name.key(kind) {
            let mut bound = self.bound.lock();
            if bound.sockets.get(&key).is_some_and(|socket| socket.strong_count() == 0) {
                bound.sockets.remove(&key);
            }
        }
    }

    /// Who is bound to an abstract name.
    pub fn find_abstract(&self, name: &[u8], kind: Kind) -> Option<Arc<Socket>> {
        self.bound
            .lock()
            .sockets
            .get(&Key::Abstract(kind, name.to_vec()))
            .and_then(Weak::upgrade)
    }

    /// Who is bound to a socket node.
    pub fn find_place(&self, place: &VfsPath) -> Option<Arc<Socket>> {
        let key = Key::Inode(place.inode_key()?);
        self.bound.lock().sockets.get(&key).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let unix = |rest: &[u8]| [&AF_UNIX[..], rest].concat();
        assert_eq!(Address::parse(&[1]), Err(Errno::EINVAL));
        assert_eq!(Address::parse(&[2, 0, 1]), Err(Errno::EINVAL));
        assert_eq!(Address::parse(&unix(b"")), Ok(Address::Unnamed));
        assert_eq!(
            Address::parse(&unix(b"/tmp/x\0junk")),
            Ok(Address::Path(b"/tmp/x".to_vec()))
        );
        assert_eq!(
            Address::parse(&unix(b"\0a\0b")),
            Ok(Address::Abstract(b"a\0b".to_vec()))
        );
        assert_eq!(Address::parse(&unix(&[b'x'; 109])), Err(Errno::EINVAL));
        assert_eq!(Name::Abstract(b"n".to_vec()).to_bytes(), unix(b"\0n"));
    }
}
