//! Files that have lost their name while the sentry uses them.
//!
//! A node is held open only for that. The file had a name in the export when it was held, so whoever holds it could
//! have it open as well.

use std::os::fd::AsFd;

use sentry_abi::Errno;
use sentry_host::memory_file;

use super::walk::Found;
use super::{Answer, Server};
use crate::protocol::{NodeId, Reply};

impl Server {
    /// Keeps the regular file open (`O_PATH`) until its node is forgotten.
    pub(super) fn hold(&mut self, node: NodeId) -> Answer {
        let found = self.find(node)?;
        if found.attributes.kind() != libc::S_IFREG {
            return Err(Errno::EINVAL);
        }
        self.nodes.hold(node, found.fd)?;
        Ok((Reply::Done, Vec::new()))
    }

    /// Opens a held file anew, which takes a path in /proc: it has no other.
    pub(super) fn open_held(&self, found: &Found, access: libc::c_int) -> Result<Found, Errno> {
        let directory = self.own_descriptors.as_ref().ok_or(Errno::ESTALE)?;
        let fd = memory_file::open_again(directory.as_fd(), found.fd.as_fd(), access)?;
        Found::opened(fd, &found.attributes)
    }
}
