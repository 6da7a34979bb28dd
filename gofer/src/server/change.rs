//! Operations that change a writable export.
//!
//! A change names one component in a directory that was opened beneath the root; none of the host calls follows a
//! symbolic link in that place. Only regular files, directories and links are made; set-user-id and set-group-id
//! bits are not set.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{AtFlags, RenameFlags, renameat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};
use sentry_abi::Errno;
use sentry_host::files;

use super::walk::{Found, Identity, c_string};
use super::{Answer, Server, last_components};
use crate::nix_errno;
use crate::protocol::{Access, Attributes, Name, NewAttributes, NodeId, Owner, Removed, Reply, Time};

impl Server {
    /// The directory `parent` for a change of `name` in it.
    fn changing(&mut self, parent: NodeId, name: Name<'_>) -> Result<OwnedFd, Errno> {
        if !self.export_of(parent)?.writable {
            return Err(Errno::EROFS);
        }
        if self.hides(parent, name)? {
            return Err(Errno::EACCES);
        }
        Ok(self.find_directory(parent)?.fd)
    }

    /// Gives a new file its owner and hands it out; takes it away again if that fails.
    fn made(
        &mut self,
        parent: NodeId,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
        owner: Owner,
        fd: Option<OwnedFd>,
    ) -> Answer {
        let step = self.walker.child(dir, name.as_bytes()).and_then(|mut found| {
            let now = self.with_owner(&found)?;
            if (now.uid, now.gid) != (owner.uid, owner.gid) {
                self.chown(&found, Some(owner.uid), Some(owner.gid))?;
                found.attributes = super::walk::attributes(&files::statx_fd(found.fd.as_fd())?);
            }
            self.step(parent, name, &found)
        });
        match step {
            Ok(step) => Ok((Reply::Created(step, fd.is_some()), fd.into_iter().collect())),
            Err(errno) => {
                let name = c_string(name.as_bytes())?;
                // One of the two fits; an error that remains changes nothing about the answer.
                let _ = unlinkat(dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
                    .or_else(|_| unlinkat(dir, name.as_c_str(), UnlinkatFlags::RemoveDir));
                Err(errno)
            }
        }
    }

    pub(super) fn create(
        &mut self,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        owner: Owner,
        open: Option<Access>,
    ) -> Answer {
        let dir = self.changing(parent, name)?;
        let access = open.unwrap_or(Access::Read).flags();
        let fd = self.walker.create(dir.as_fd(), name.as_bytes(), access, mode & 0o777)?;
        self.made(parent, dir.as_fd(), name, owner, open.map(|_| fd))
    }

    pub(super) fn make_directory(&mut self, parent: NodeId, name: Name<'_>, mode: u32, owner: Owner) -> Answer {
        let dir = self.changing(parent, name)?;
        mkdirat(
            &dir,
            c_string(name.as_bytes())?.as_c_str(),
            Mode::from_bits_truncate(mode & 0o1777),
        )
        .map_err(nix_errno)?;
        self.made(parent, dir.as_fd(), name, owner, None)
    }

    pub(super) fn symlink(&mut self, parent: NodeId, name: Name<'_>, target: &[u8], owner: Owner) -> Answer {
        let dir = self.changing(parent, name)?;
        symlinkat(
            c_string(target)?.as_c_str(),
            &dir,
            c_string(name.as_bytes())?.as_c_str(),
        )
        .map_err(nix_errno)?;
        self.made(parent, dir.as_fd(), name, owner, None)
    }

    pub(super) fn link(&mut self, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer {
        let dir = self.changing(parent, name)?;
        // From another export, a file could become writable that is not.
        if self.nodes.place(node)?.export != self.nodes.place(parent)?.export {
            return Err(Errno::EXDEV);
        }
        let found = self.find(node)?;
        if !matches!(found.attributes.kind(), libc::S_IFREG | libc::S_IFLNK) {
            return Err(Errno::EPERM);
        }
        let (source, source_name) = self.find_parent(node)?;
        let (old, new) = (c_string(&source_name)?, c_string(name.as_bytes())?);
        linkat(&source, old.as_c_str(), &dir, new.as_c_str(), LinkatFlags::empty()).map_err(nix_errno)?;
        let linked = self.walker.child(dir.as_fd(), name.as_bytes())?;
        self.tell(&linked)
    }

    pub(super) fn unlink(&mut self, parent: NodeId, name: Name<'_>, directory: bool) -> Answer {
        let dir = self.changing(parent, name).map_err(hidden_is_absent)?;
        let flags = if directory {
            UnlinkatFlags::RemoveDir
        } else {
            UnlinkatFlags::NoRemoveDir
        };
        let victim = described(&dir, name);
        unlinkat(&dir, c_string(name.as_bytes())?.as_c_str(), flags).map_err(nix_errno)?;
        self.nodes.detach(parent, name.as_bytes());
        Ok((Reply::Removed(victim.map(lost_name)), Vec::new()))
    }

    pub(super) fn rename(&mut self, from: (NodeId, Name<'_>), to: (NodeId, Name<'_>), flags: u32) -> Answer {
        let old_dir = self.changing(from.0, from.1).map_err(hidden_is_absent)?;
        let new_dir = self.changing(to.0, to.1)?;
        if self.nodes.place(from.0)?.export != self.nodes.place(to.0)?.export {
            return Err(Errno::EXDEV);
        }
        // A hidden file must not come into view under another directory's name.
        self.refuse_if_it_reveals(from, &old_dir)?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if exchange {
            self.refuse_if_it_reveals(to, &new_dir)?;
        }
        let (old, new) = (c_string(from.1.as_bytes())?, c_string(to.1.as_bytes())?);
        let victim = match exchange {
            true => None,
            false => described(&new_dir, to.1),
        };
        // Two names of one file stay what they are.
        let victim = victim.filter(|victim| {
            described(&old_dir, from.1).is_some_and(|moved| Identity::from(&moved) != Identity::from(victim))
        });
        renameat2(
            &old_dir,
            old.as_c_str(),
            &new_dir,
            new.as_c_str(),
            RenameFlags::from_bits_truncate(flags),
        )
        .map_err(nix_errno)?;
        self.nodes
            .rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), exchange);
        Ok((Reply::Removed(victim.map(lost_name)), Vec::new()))
    }

    fn refuse_if_it_reveals(&mut self, (parent, name): (NodeId, Name<'_>), dir: &OwnedFd) -> Result<(), Errno> {
        let place = self.nodes.place(parent)?;
        let export = self.exports.get(place.export).ok_or(Errno::ESTALE)?;
        let rests = export.hidden_below(last_components(&place.components), name.as_bytes());
        for rest in rests {
            let mut components = vec![name.as_bytes()];
            components.extend(rest.to_bytes().split(|byte| *byte == b'/'));
            match self.walker.walk(dir.as_fd(), &components) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                _ => return Err(Errno::EACCES),
            }
        }
        Ok(())
    }

    pub(super) fn set_attributes(&mut self, node: NodeId, set: &NewAttributes) -> Answer {
        if !self.export_of(node)?.writable {
            return Err(Errno::EROFS);
        }
        let found = self.find(node)?;
        if let Some(size) = set.size {
            self.resize(node, &found, i64::try_from(size).map_err(|_| Errno::EFBIG)?)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.chown(&found, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            self.chmod(node, &found, mode)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let time = |time: Option<Time>| match time {
                Some(time) => (time.sec, i64::from(time.nsec)),
                None => (0, libc::UTIME_OMIT),
            };
            files::set_times_fd(found.fd.as_fd(), time(set.atime), time(set.mtime))?;
        }
        self.tell(&Found::of(found.fd)?)
    }

    /// By its path where there is one: whoever watches the file sees no open and no close.
    fn resize(&mut self, node: NodeId, found: &Found, size: i64) -> Result<(), Errno> {
        if found.attributes.kind() == libc::S_IFREG {
            match nix::unistd::truncate(self.watcher.path_of(found.fd.as_fd())?.as_c_str(), size) {
                // There is no such directory here, or it is out of reach.
                Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR | nix::errno::Errno::EACCES) => {}
                result => return result.map_err(nix_errno),
            }
        }
        let file = self.open_regular(node, found, libc::O_WRONLY)?;
        nix::unistd::ftruncate(&file.fd, size).map_err(nix_errno)
    }

    fn chown(&self, found: &Found, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        if let Some(owners) = &self.owners {
            return owners.change(found.fd.as_fd(), uid, gid);
        }
        let flags = AtFlags::AT_EMPTY_PATH | AtFlags::AT_SYMLINK_NOFOLLOW;
        fchownat(&found.fd, c"", uid.map(Uid::from_raw), gid.map(Gid::from_raw), flags).map_err(nix_errno)
    }

    fn chmod(&mut self, node: NodeId, found: &Found, mode: u32) -> Result<(), Errno> {
        let mode = match found.attributes.kind() {
            libc::S_IFLNK => return Err(Errno::EOPNOTSUPP),
            libc::S_IFDIR => mode & 0o1777,
            _ => mode & 0o777,
        };
        match files::chmod_fd(found.fd.as_fd(), mode) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {}
            result => return Ok(result?),
        }
        // Before Linux 6.6: only what can be opened.
        let fd = match found.attributes.kind() {
            libc::S_IFDIR => files::open_at(found.fd.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?,
            _ => self.open_regular(node, found, libc::O_RDONLY)?.fd,
        };
        nix::sys::stat::fchmod(&fd, Mode::from_bits_truncate(mode)).map_err(nix_errno)
    }
}

/// What a name in a directory leads to now. Not opened: a file that loses its last name is to be gone at once, as whoever
/// watches it sees.
fn described(dir: &OwnedFd, name: Name<'_>) -> Option<Attributes> {
    let name = c_string(name.as_bytes()).ok()?;
    let stat = files::statx_child(dir.as_fd(), &name).ok()?;
    Some(super::walk::attributes(&stat))
}

/// What a file becomes that loses a name.
fn lost_name(before: Attributes) -> Removed {
    Removed {
        dev: before.dev,
        ino: before.ino,
        nlink: if before.is_dir() {
            0
        } else {
            before.nlink.saturating_sub(1)
        },
    }
}

/// Removing what is hidden finds nothing.
fn hidden_is_absent(errno: Errno) -> Errno {
    if errno == Errno::EACCES { Errno::ENOENT } else { errno }
}
