//! What the VFS asks of a host file.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_gofer::Time;
use sentry_gofer::protocol::NewAttributes;

use super::file::GoferFile;
use super::{Caching, GoferInode, Identity, MAGIC, access_of};
use crate::dir::OpenDirectory;
use crate::file::{DirEntry, FileOps};
use crate::inode::{Attributes, Created, FsStatistics, Inode, NewInode, Permissions, SetAttributes, Timestamp};
use crate::notify::HostReports;

impl Inode for GoferInode {
    fn attributes(&self) -> Result<Attributes, Errno> {
        if let Some(attributes) = self.known(true) {
            return Ok(attributes);
        }
        // Only what is in it may have changed: to know that the next time takes a watch.
        if self.is_dir() && self.known(false).is_some() {
            self.watched();
        }
        self.refresh()
    }

    fn permissions(&self) -> Result<Permissions, Errno> {
        let attributes = match self.known(false) {
            Some(attributes) => attributes,
            None => self.refresh()?,
        };
        Ok(Permissions {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
        })
    }

    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.writable()?;
        let time = |time: Timestamp| Time {
            sec: time.sec,
            nsec: time.nsec,
        };
        let mut new = NewAttributes {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
        };
        // An open file can be resized although its name is gone, and without a message.
        if let Some(size) = new.size {
            let open = self.state.lock().open_writable.upgrade();
            if let Some(fd) = open {
                self.truncate_open(&fd, size)?;
                self.changed();
                new.size = None;
            }
        }
        if new != NewAttributes::default() {
            let since = self.moment();
            let attributes = match new.size {
                Some(size) => self.truncate_unopened(size, &new)?,
                None => self.with_node(|id| self.fs.client.set_attributes(id, &new))?,
            };
            self.note(&attributes, since);
        }
        self.modified();
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok(self.find(name)?)
    }

    fn cacheable(&self) -> bool {
        self.fs.caching == Caching::Forever
    }

    fn keeps_inodes(&self) -> bool {
        true
    }

    fn create(&self, name: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        self.writable()?;
        let owner = GoferInode::owner(new);
        let mode = new.mode & 0o7777;
        let client = &self.fs.client;
        let directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
        let new_name = self.fs.new_name(directory)?;
        let gate = self.fs.gate()?;
        let since = self.moment();
        let step = match new.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => self
                .with_node(|id| client.create(id, name, mode, owner, None))
                .map(|(step, _)| step),
            libc::S_IFDIR => self.with_node(|id| client.make_directory(id, name, mode, owner)),
            // No devices, FIFOs or sockets on the host.
            _ => return Err(Errno::EPERM),
        };
        let step = self.counted(new_name, name, step.map(|step| (step, ())));
        drop(gate);
        // A directory that has been removed takes nothing.
        let (step, ()) = step.map_err(|e| if e == Errno::ESTALE { Errno::ENOENT } else { e })?;
        Ok(self.made(name, step, since))
    }

    fn create_open(&self, name: &[u8], new: &NewInode, flags: u32) -> Result<Created, Errno> {
        self.writable()?;
        let (owner, access) = (GoferInode::owner(new), access_of(flags));
        let new_name = self.fs.new_name(false)?;
        let gate = self.fs.gate()?;
        let since = self.moment();
        let created = self.with_node(|id| self.fs.client.create(id, name, new.mode & 0o7777, owner, Some(access)));
        if created.as_ref().err() == Some(&Errno::EMFILE) {
            drop(gate);
            // Made perhaps, but there was no room for the descriptor: what opens makes some.
            let inode = self.find_made(new_name, name)?;
            let ops = inode.open(flags)?;
            return Ok((inode, ops));
        }
        let created = self.counted(new_name, name, created);
        match created {
            Ok((step, fd)) => {
                let identity = Identity::from(&step.attributes);
                let used = self.fs.account(identity, || self.totals());
                drop(gate);
                let inode = self.made(name, step, since);
                let fd = inode.opened(fd.ok_or(Errno::EIO)?, access);
                let file = GoferFile::new(inode.clone(), fd, access, used);
                Ok((inode, Box::new(file)))
            }
            // A directory that has been removed takes nothing.
            Err(Errno::ESTALE) => Err(Errno::ENOENT),
            Err(errno) => Err(errno),
        }
    }

    fn report(&self, names_only: bool) -> Option<(Arc<dyn HostReports>, i32)> {
        self.reported(names_only)
    }

    fn loses_name(&self) {
        if self.kind != libc::S_IFREG {
            return;
        }
        let Ok(_gate) = self.fs.gate() else { return };
        if self.with_node(|id| self.fs.client.hold(id)).is_ok() {
            self.held.store(true, Ordering::Relaxed);
            self.held_use
                .get_or_init(|| self.fs.account(self.identity(), || self.totals()));
        }
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        self.writable()?;
        let owner = GoferInode::owner(new);
        let new_name = self.fs.new_name(true)?;
        let gate = self.fs.gate()?;
        let since = self.moment();
        let step = self.with_node(|id| self.fs.client.symlink(id, name, target, owner));
        let (step, ()) = self.counted(new_name, name, step.map(|step| (step, ())))?;
        drop(gate);
        Ok(self.made(name, step, since))
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.writable()?;
        let target = self.own(target)?;
        let new_name = self.fs.new_name(false)?;
        let gate = self.fs.gate()?;
        let since = self.moment();
        let linked = target.with_node(|node| self.with_node(|id| self.fs.client.link(node, id, name)));
        let attributes = match linked {
            Ok(attributes) => {
                new_name.made(&attributes, false);
                attributes
            }
            Err(errno) => {
                new_name.failed(errno);
                return Err(errno);
            }
        };
        drop(gate);
        self.tally_made(name, false);
        if Identity::from(&attributes) == target.identity() {
            target.note(&attributes, since);
        }
        self.linked(name, target);
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        self.remove(name, false)
    }

    fn rmdir(&self, name: &[u8]) -> Result<(), Errno> {
        self.remove(name, true)
    }

    fn rename(&self, old: &[u8], new_dir: &Arc<dyn Inode>, new: &[u8], flags: u32) -> Result<(), Errno> {
        self.writable()?;
        let to = self.own(new_dir)?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let gate = self.fs.gate()?;
        let rename = |from_id, to_id| self.fs.client.rename((from_id, old), (to_id, new), flags);
        let replaced = self.with_node(|from_id| to.with_node(|to_id| rename(from_id, to_id)))?;
        self.fs.lost_name(replaced);
        drop(gate);
        // Two names of one file stay what they are.
        let same = replaced.is_none() && !exchange && {
            let source = self.known_child(old);
            source.is_some() && source == to.known_child(new)
        };
        if let Some(tally) = self.fs.tally().filter(|_| !same) {
            if exchange {
                tally.changed(self.identity(), old);
            } else {
                tally.removed(self.identity(), old);
            }
            to.tally_made(new, exchange || replaced.is_some());
        }
        self.renamed(old, to, new, exchange);
        Ok(())
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        if self.kind != libc::S_IFLNK {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = self.target.get() {
            return Ok(target.clone());
        }
        let target = self.with_node(|id| self.fs.client.read_link(id))?;
        Ok(self.target.get_or_init(|| target).clone())
    }

    fn open(&self, flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        let access = access_of(flags);
        let this = self.this.upgrade().ok_or(Errno::EIO)?;
        match self.kind {
            libc::S_IFDIR => Ok(Box::new(OpenDirectory::new())),
            libc::S_IFREG => {
                if access.writes() {
                    self.writable()?;
                }
                let gate = self.fs.gate()?;
                let fd = self.open_file(access)?;
                let used = self.account_of(&fd)?;
                drop(gate);
                Ok(Box::new(GoferFile::new(this, fd, access, used)))
            }
            libc::S_IFLNK => Err(Errno::ELOOP),
            // The host's devices, FIFOs and sockets are there to be seen only.
            _ => Err(Errno::ENXIO),
        }
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.listed()
    }

    fn statistics(&self) -> Result<FsStatistics, Errno> {
        let totals = self.with_node(|id| self.fs.client.fs_totals(id))?;
        let mut statistics = FsStatistics {
            magic: MAGIC,
            block_size: totals.block_size,
            blocks: totals.blocks,
            blocks_free: totals.blocks_free,
            files: totals.files,
            files_free: totals.files_free,
            name_max: totals.name_max,
        };
        if let Some(ledger) = self.fs.ledger.as_ref().filter(|_| self.fs.writable) {
            ledger.limit_totals(&mut statistics);
        }
        Ok(statistics)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if !name.starts_with(b"user.") {
            return Err(Errno::ENODATA);
        }
        self.with_node(|id| self.fs.client.get_xattr(id, name))
    }

    fn list_xattr(&self) -> Result<Vec<Vec<u8>>, Errno> {
        match self.with_node(|id| self.fs.client.list_xattr(id)) {
            // Files that may not be read, and file systems without attributes, show none.
            Err(Errno::EACCES | Errno::EOPNOTSUPP | Errno::ERANGE) => Ok(Vec::new()),
            result => result,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
