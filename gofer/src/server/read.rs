//! Operations that change nothing.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::readlinkat;
use sentry_abi::Errno;
use sentry_host::files;

use super::walk::{Found, Identity, attributes, c_string};
use super::{Answer, Server};
use crate::nix_errno;
use crate::protocol::{
    Access, Attached, Attributes, Entry, EntryDetails, FsTotals, Listing, MAX_DETAILED, MAX_REPLY, MAX_TARGET,
    MAX_XATTR, Name, NodeId, Opened, Reply, Step, Stop, Walked,
};

/// Entries fill at most this much of a reply: the rest is for its head and the directory's step.
const MAX_ENTRIES: usize = MAX_REPLY - 8192;
/// The most entries in one reply.
const MAX_COUNT: usize = u16::MAX as usize;

/// The target of a symbolic link; `None` for anything else.
pub(super) fn link_target(found: &Found) -> Result<Option<Vec<u8>>, Errno> {
    if found.attributes.kind() != libc::S_IFLNK {
        return Ok(None);
    }
    read_target(found.fd.as_fd(), c"").map(Some)
}

fn read_target(dir: std::os::fd::BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Vec<u8>, Errno> {
    let target = std::os::unix::ffi::OsStringExt::into_vec(readlinkat(dir, name).map_err(nix_errno)?);
    if target.len() > MAX_TARGET {
        Err(Errno::ENAMETOOLONG)
    } else {
        Ok(target)
    }
}

impl Server {
    pub(super) fn attach(&mut self, id: u32) -> Answer {
        let index = self
            .exports
            .iter()
            .position(|export| export.id == id)
            .ok_or(Errno::ENOENT)?;
        let export = self.exports.get(index).ok_or(Errno::ENOENT)?;
        let writable = export.writable;
        let found = match &export.single {
            Some(name) => self.walker.child(export.base.as_fd(), name)?,
            None => self.walker.walk(export.base.as_fd(), &[])?,
        };
        let target = link_target(&found)?;
        let attributes = self.with_owner(&found)?;
        let node = self.nodes.root(index, Identity::from(&found.attributes))?;
        let root = Step {
            node,
            attributes,
            target,
        };
        Ok((Reply::Attached(Attached { root, writable }), Vec::new()))
    }

    pub(super) fn lookup(&mut self, start: NodeId, names: &[Name<'_>], open: Option<Access>) -> Answer {
        let mut dir = self.find_directory(start)?;
        let mut node = start;
        let mut walked = Walked {
            steps: Vec::with_capacity(names.len()),
            stop: Stop::Complete,
            opened: None,
        };
        let mut descriptor = None;
        for (index, name) in names.iter().enumerate() {
            let (step, found) = match self.lookup_one(node, &dir, *name) {
                Ok(step) => step,
                Err(errno) => {
                    walked.stop = match errno {
                        Errno::ENOENT => Stop::Missing,
                        Errno::ENOTDIR => Stop::NotDirectory,
                        errno => Stop::Failed(errno),
                    };
                    break;
                }
            };
            node = step.node;
            let is_dir = step.attributes.is_dir();
            walked.steps.push(step);
            if index + 1 < names.len() {
                if !is_dir {
                    walked.stop = Stop::NotDirectory;
                    break;
                }
                dir = found;
            } else if let Some(access) = open {
                let opened = self.open_found(node, &dir, name.as_bytes(), &found.attributes, access);
                walked.opened = Some(match opened {
                    Ok(opened) => {
                        // What was opened is newer than what was found.
                        if let Some(step) = walked.steps.last_mut() {
                            let (uid, gid) = (step.attributes.uid, step.attributes.gid);
                            step.attributes = Attributes {
                                uid,
                                gid,
                                ..opened.attributes
                            };
                        }
                        descriptor = Some(opened.fd);
                        Ok(())
                    }
                    Err(errno) => Err(errno),
                });
            }
        }
        Ok((Reply::Walked(walked), descriptor.into_iter().collect()))
    }

    /// Finds `name` in the directory `dir`, which is `parent`, and gives it out.
    fn lookup_one(&mut self, parent: NodeId, dir: &Found, name: Name<'_>) -> Result<(Step, Found), Errno> {
        let found = self.child(parent, dir, name)?;
        let step = self.step(parent, name, &found)?;
        Ok((step, found))
    }

    /// Finds `name` in the directory `dir`, which is `parent`.
    fn child(&mut self, parent: NodeId, dir: &Found, name: Name<'_>) -> Result<Found, Errno> {
        if self.hides(parent, name)? {
            return Err(Errno::ENOENT);
        }
        // `dir` may be a step of the same request, whose rights nobody has looked at yet.
        if self.export_of(parent)?.world_readable_only && dir.attributes.mode & 0o001 == 0 {
            return Err(Errno::EACCES);
        }
        let found = self.walker.child(dir.fd.as_fd(), name.as_bytes());
        if matches!(found, Err(Errno::ENOENT)) {
            self.nodes.detach(parent, name.as_bytes());
        }
        found
    }

    pub(super) fn open_ahead(&mut self, node: NodeId, names: &[Name<'_>]) -> Answer {
        let dir = self.find_directory(node)?;
        let mut opened = Vec::with_capacity(names.len());
        let mut descriptors = Vec::with_capacity(names.len());
        for name in names {
            let file = self
                .child(node, &dir, *name)
                .and_then(|found| self.open_found(node, &dir, name.as_bytes(), &found.attributes, Access::Read));
            opened.push(file.is_ok());
            descriptors.extend(file.map(|file| file.fd));
        }
        Ok((Reply::OpenedAhead(opened), descriptors))
    }

    pub(super) fn open_node(&mut self, node: NodeId, access: Access) -> Answer {
        let found = self.find(node)?;
        let opened = self.open_checked(node, &found, access)?;
        let attributes = self.with_owner(&opened)?;
        Ok((Reply::Opened(Opened { attributes }), vec![opened.fd]))
    }

    /// `EROFS` or `EACCES` unless the rules of the node's export let a file with these attributes be opened.
    fn check_open(&self, node: NodeId, attributes: &Attributes, access: Access) -> Result<(), Errno> {
        let export = self.export_of(node)?;
        if access.writes() && !export.writable {
            return Err(Errno::EROFS);
        }
        if export.world_readable_only && attributes.mode & 0o004 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(())
    }

    /// Opens the regular file `name` in `dir`, which was found with the attributes `expected`, if the rules of the
    /// export, in which `node` is, allow it.
    fn open_found(
        &mut self,
        node: NodeId,
        dir: &Found,
        name: &[u8],
        expected: &Attributes,
        access: Access,
    ) -> Result<Found, Errno> {
        self.check_open(node, expected, access)?;
        let opened = self
            .walker
            .regular_file(dir.fd.as_fd(), name, expected, access.flags())?;
        self.check_open(node, &opened.attributes, access)?;
        Ok(opened)
    }

    /// Opens the regular file that was found as `node`, if the export's rules allow it.
    fn open_checked(&mut self, node: NodeId, found: &Found, access: Access) -> Result<Found, Errno> {
        self.check_open(node, &found.attributes, access)?;
        let opened = self.open_regular(node, found, access.flags())?;
        self.check_open(node, &opened.attributes, access)?;
        Ok(opened)
    }

    /// Opens a directory for reading its entries.
    fn open_directory(&mut self, node: NodeId, found: &Found) -> Result<OwnedFd, Errno> {
        if self.export_of(node)?.world_readable_only && found.attributes.mode & 0o005 != 0o005 {
            return Err(Errno::EACCES);
        }
        // "." of a descriptor is the directory itself: nothing can come between.
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        Ok(files::open_at(found.fd.as_fd(), c".", flags, 0)?)
    }

    pub(super) fn list(&mut self, node: NodeId, name: Option<Name<'_>>, cursor: u64) -> Answer {
        let found = self.find_directory(node)?;
        let (node, found, directory) = match name {
            Some(name) => {
                let (step, found) = self.lookup_one(node, &found, name)?;
                if !step.attributes.is_dir() {
                    self.nodes.forget(step.node, 1);
                    return Err(Errno::ENOTDIR);
                }
                (step.node, found, Some(step))
            }
            None => (node, found, None),
        };
        let listed = self.list_found(node, &found, cursor);
        if let (Err(_), Some(step)) = (&listed, &directory) {
            self.nodes.forget(step.node, 1);
        }
        let (entries, next) = listed?;
        Ok((
            Reply::Listing(Listing {
                directory,
                entries,
                next,
            }),
            Vec::new(),
        ))
    }

    fn list_found(&mut self, node: NodeId, found: &Found, cursor: u64) -> Result<(Vec<Entry>, Option<u64>), Errno> {
        let dir = self.open_directory(node, found)?;
        if cursor != 0 {
            let position = i64::try_from(cursor).map_err(|_| Errno::EINVAL)?;
            files::seek_directory(dir.as_fd(), position)?;
        }
        let mut entries = Vec::new();
        let mut room = MAX_ENTRIES;
        let mut buf = vec![0; 32 * 1024];
        let mut position = cursor;
        let mut next = None;
        'reading: loop {
            let len = files::read_entries(dir.as_fd(), &mut buf)?;
            if len == 0 {
                break;
            }
            for raw in files::parse_entries(buf.get(..len).unwrap_or_default()) {
                if let Ok(name) = Name::new(raw.name)
                    && !self.hides(node, name)?
                {
                    let entry = Entry {
                        ino: raw.ino,
                        kind: raw.kind,
                        name: raw.name.to_vec(),
                        details: None,
                    };
                    let Some(left) = room
                        .checked_sub(entry.encoded_len())
                        .filter(|_| entries.len() < MAX_COUNT)
                    else {
                        next = Some(position);
                        break 'reading;
                    };
                    room = left;
                    entries.push(entry);
                }
                position = raw.next as u64;
            }
        }
        if cursor == 0 && next.is_none() && entries.len() <= MAX_DETAILED {
            self.add_details(&dir, &mut entries);
        }
        Ok((entries, next))
    }

    /// Adds attributes to all entries, or to none if they do not fit or something is not as it was.
    fn add_details(&mut self, dir: &OwnedFd, entries: &mut Vec<Entry>) {
        let details = |entry: &Entry| -> Result<EntryDetails, Errno> {
            let name = c_string(&entry.name)?;
            let attributes = attributes(&files::statx_child(dir.as_fd(), &name)?);
            let link = attributes.kind() == libc::S_IFLNK;
            let target = if link {
                Some(read_target(dir.as_fd(), &name)?)
            } else {
                None
            };
            Ok(EntryDetails { attributes, target })
        };
        let mut room = MAX_ENTRIES;
        let mut complete = true;
        entries.retain_mut(|entry| {
            if !complete {
                return true;
            }
            match details(entry) {
                Ok(details) => entry.details = Some(details),
                // Gone since it was read.
                Err(Errno::ENOENT) => return false,
                Err(_) => complete = false,
            }
            match room.checked_sub(entry.encoded_len()) {
                Some(left) => room = left,
                None => complete = false,
            }
            true
        });
        if let Some(owners) = &mut self.owners
            && complete
        {
            let mut files: Vec<(&[u8], &mut Attributes)> = entries
                .iter_mut()
                .filter_map(|entry| Some((&*entry.name, &mut entry.details.as_mut()?.attributes)))
                .collect();
            complete = owners.complete_in(dir.as_fd(), &mut files).is_ok();
        }
        if !complete {
            for entry in entries {
                entry.details = None;
            }
        }
    }

    pub(super) fn read_link(&mut self, node: NodeId) -> Answer {
        let target = link_target(&self.find(node)?)?.ok_or(Errno::EINVAL)?;
        Ok((Reply::Bytes(target), Vec::new()))
    }

    pub(super) fn fs_totals(&mut self, node: NodeId) -> Answer {
        let totals = nix::sys::statfs::fstatfs(&self.find(node)?.fd).map_err(nix_errno)?;
        let totals = FsTotals {
            block_size: u64::try_from(totals.block_size()).unwrap_or(4096),
            blocks: totals.blocks(),
            blocks_free: totals.blocks_available(),
            files: totals.files(),
            files_free: totals.files_free(),
            name_max: u64::try_from(totals.maximum_name_length()).unwrap_or(255),
            magic: totals.filesystem_type().0.cast_unsigned(),
        };
        Ok((Reply::FsTotals(totals), Vec::new()))
    }

    /// Opens a file or directory for reading its extended attributes: `O_PATH` does not do for them.
    fn open_for_xattr(&mut self, node: NodeId) -> Result<OwnedFd, Errno> {
        let found = self.find(node)?;
        if found.attributes.is_dir() {
            return self.open_directory(node, &found);
        }
        if found.attributes.kind() != libc::S_IFREG {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(self.open_checked(node, &found, Access::Read)?.fd)
    }

    pub(super) fn get_xattr(&mut self, node: NodeId, name: &[u8]) -> Answer {
        if !name.starts_with(b"user.") {
            return Err(Errno::ENODATA);
        }
        let fd = self.open_for_xattr(node)?;
        Ok((
            Reply::Bytes(files::get_xattr(fd.as_fd(), &c_string(name)?, MAX_XATTR)?),
            Vec::new(),
        ))
    }

    pub(super) fn list_xattr(&mut self, node: NodeId) -> Answer {
        let fd = self.open_for_xattr(node)?;
        let names = files::list_xattr(fd.as_fd(), MAX_XATTR)?;
        let served = names
            .split_inclusive(|byte| *byte == 0)
            .filter(|name| name.starts_with(b"user."));
        Ok((Reply::Bytes(served.flatten().copied().collect()), Vec::new()))
    }
}
