//! A socket as an open file.

use std::any::Any;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::socket::Ucred;
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use super::{InFlight, Kind, Send, SendTarget, Socket};
use crate::Kernel;
use crate::anon;

/// An open socket.
pub struct UnixSocket {
    socket: Arc<Socket>,
    /// Who made it: write(2) sends on its behalf.
    cred: Ucred,
}

impl UnixSocket {
    /// A new file for a socket.
    pub fn file(socket: Arc<Socket>, cred: Ucred, nonblocking: bool) -> Arc<File> {
        let name = format!("socket:[{}]", socket.attributes.ino);
        let flags = libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 };
        anon::file(&name, flags as u32, Box::new(UnixSocket { socket, cred }))
    }

    /// A new, unconnected socket.
    pub fn create(kernel: &Arc<Kernel>, kind: Kind, cred: Ucred, nonblocking: bool) -> Arc<File> {
        UnixSocket::file(Socket::new(Arc::downgrade(kernel), kind, cred), cred, nonblocking)
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }
}

impl FileOps for UnixSocket {
    fn memory(&self) -> u64 {
        self.socket.memory()
    }

    fn read(&self, file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        if buf.is_empty() && self.socket.kind == Kind::Stream {
            return Ok(0);
        }
        // Descriptors that came along are dropped, as read(2) does.
        let mut received = self.socket.receive(buf, false)?;
        super::bury(std::mem::take(&mut received.files));
        if !received.any && file.nonblocking() {
            self.socket.end_of_file()?;
        }
        Ok(received.count)
    }

    fn write(&self, _file: &File, buf: &[u8], _offset: u64) -> Result<(usize, u64), Errno> {
        let mut files = InFlight::none();
        let send = Send {
            data: buf,
            files: &mut files,
            cred: self.cred,
            urgent: false,
        };
        self.socket.send(&SendTarget::Peer, send).map(|count| (count, 0))
    }

    fn poll(&self, _file: &File) -> PollEvents {
        self.socket.readiness()
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.socket.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(self.socket.attributes)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
