//! The file system of pseudo-terminals, `/dev/pts`: `ptmx`, which makes one, and a node for each slave.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_abi::fs::make_device;
use sentry_lock::{Mutex, rank};
use sentry_vfs::cred::Credentials;
use sentry_vfs::dir::OpenDirectory;
use sentry_vfs::file::{DirEntry, FileOps};
use sentry_vfs::inode::{Attributes, FsStatistics, Inode, NewInode, SetAttributes, Timestamp};
use sentry_vfs::mount::FileSystem;

use super::pty::{Pty, SLAVE_MAJOR};
use super::{MAX_PTYS, PTMX};

/// `DEVPTS_SUPER_MAGIC`, for statfs(2).
const MAGIC: u64 = 0x1cd1;
const ROOT_INO: u64 = 1;
const PTMX_INO: u64 = 2;
/// The inode number of slave 0.
const FIRST_INO: u64 = 3;

/// Mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The owner of new slaves; `None`: who opens the master.
    pub uid: Option<u32>,
    /// The group of new slaves; `None`: that of who opens the master.
    pub gid: Option<u32>,
    /// The mode of new slaves.
    pub mode: u32,
    /// The mode of `ptmx`.
    pub ptmx_mode: u32,
    /// How many slaves there may be.
    pub max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            uid: None,
            gid: None,
            mode: 0o600,
            ptmx_mode: 0,
            max: MAX_PTYS,
        }
    }
}

impl Options {
    /// What a sandbox's own `/dev/pts` has: slaves are of the group `tty`, and everybody makes them.
    pub fn usual() -> Options {
        Options {
            gid: Some(5),
            mode: 0o620,
            ptmx_mode: 0o666,
            ..Options::default()
        }
    }

    /// From mount(2)'s data; `EINVAL` for what is not known.
    pub fn parse(data: &[u8]) -> Result<Options, Errno> {
        let mut options = Options::default();
        let text = std::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || value.parse::<u32>().map_err(|_| Errno::EINVAL);
            let mode = || u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL);
            match name {
                "uid" => options.uid = Some(number()?),
                "gid" => options.gid = Some(number()?),
                "mode" => options.mode = mode()? & 0o7777,
                "ptmxmode" => options.ptmx_mode = mode()? & 0o7777,
                "max" => options.max = (number()? as usize).min(MAX_PTYS),
                "newinstance" => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(options)
    }

    /// As /proc/mounts shows them.
    fn show(&self) -> String {
        let mut text = String::new();
        if let Some(uid) = self.uid {
            text += &format!("uid={uid},");
        }
        if let Some(gid) = self.gid {
            text += &format!("gid={gid},");
        }
        text += &format!("mode={:03o},ptmxmode={:03o}", self.mode, self.ptmx_mode);
        if self.max < MAX_PTYS {
            text += &format!(",max={}", self.max);
        }
        text
    }
}

/// Owner, mode and times of a node.
#[derive(Clone, Copy)]
struct Owned {
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    made: Timestamp,
}

impl Owned {
    fn new(mode: u32, uid: u32, gid: u32) -> Mutex<Owned, rank::DevPtsOwner> {
        let now = Timestamp::now();
        Mutex::new(Owned {
            mode,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            made: now,
        })
    }

    fn set(&mut self, set: &SetAttributes) {
        self.mode = set
            .mode
            .map_or(self.mode, |mode| self.mode & libc::S_IFMT | mode & 0o7777);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.atime = set.atime.unwrap_or(self.atime);
        self.mtime = set.mtime.unwrap_or(self.mtime);
        self.ctime = Timestamp::now();
    }

    fn attributes(&self, dev: u64, ino: u64, rdev: u64, nlink: u32) -> Attributes {
        Attributes {
            dev,
            ino,
            mode: self.mode,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size: 0,
            blocks: 0,
            block_size: 1024,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.made,
        }
    }
}

/// One instance of the file system.
pub struct DevPts {
    dev: u64,
    options: Options,
    table: Mutex<Table, rank::DevPtsTable>,
}

#[derive(Default)]
struct Table {
    /// Numbers in use: as long as either side is open.
    used: BTreeSet<u32>,
    /// Slaves whose master is open.
    nodes: BTreeMap<u32, Arc<Slave>>,
}

impl DevPts {
    /// A new instance.
    pub fn new(options: Options) -> Arc<DevPts> {
        Arc::new(DevPts {
            dev: sentry_vfs::mount::new_anonymous_dev(),
            options,
            table: Mutex::new(Table::default()),
        })
    }

    /// To be mounted.
    pub fn file_system(self: &Arc<DevPts>, source: &[u8]) -> Arc<FileSystem> {
        let ptmx = Arc::new(Ptmx {
            fs: Arc::downgrade(self),
            owned: Owned::new(libc::S_IFCHR | self.options.ptmx_mode, 0, 0),
            dev: self.dev,
        });
        let root = Arc::new(Root {
            fs: self.clone(),
            ptmx,
            owned: Owned::new(libc::S_IFDIR | 0o755, 0, 0),
        });
        FileSystem::new(root, "devpts", source, self.options.show())
    }

    /// Makes a terminal, for `cred` to own; `ENOSPC` if there are too many. `make` is given its number.
    pub(super) fn add(&self, cred: &Credentials, make: impl FnOnce(u32) -> Arc<Pty>) -> Result<Arc<Pty>, Errno> {
        let index = {
            let mut table = self.table.lock();
            if table.used.len() >= self.options.max {
                return Err(Errno::ENOSPC);
            }
            // The first gap.
            let taken = (0..).zip(&table.used).take_while(|(expected, used)| expected == *used);
            let index = taken.count() as u32;
            table.used.insert(index);
            index
        };
        let pty = make(index);
        let uid = self.options.uid.unwrap_or(cred.fsuid);
        let gid = self.options.gid.unwrap_or(cred.fsgid);
        let node = Arc::new(Slave {
            dev: self.dev,
            index,
            owned: Owned::new(libc::S_IFCHR | self.options.mode, uid, gid),
            pty: Arc::downgrade(&pty),
        });
        self.table.lock().nodes.insert(index, node);
        Ok(pty)
    }

    /// Takes a terminal's name away.
    pub(super) fn remove(&self, index: u32) {
        self.table.lock().nodes.remove(&index);
    }

    /// Gives a terminal's number back.
    pub(super) fn release(&self, index: u32) {
        self.table.lock().used.remove(&index);
    }

    fn node(&self, name: &[u8]) -> Option<Arc<Slave>> {
        let text = std::str::from_utf8(name).ok()?;
        let index: u32 = text.parse().ok()?;
        if index.to_string() != text {
            return None;
        }
        self.table.lock().nodes.get(&index).cloned()
    }
}

struct Root {
    fs: Arc<DevPts>,
    ptmx: Arc<Ptmx>,
    owned: Mutex<Owned, rank::DevPtsOwner>,
}

impl Inode for Root {
    fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(self.owned.lock().attributes(self.fs.dev, ROOT_INO, 0, 2))
    }
    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.owned.lock().set(set);
        Ok(())
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        if name == b"ptmx" {
            return Ok(self.ptmx.clone());
        }
        let node = self.fs.node(name).ok_or(Errno::ENOENT)?;
        Ok(node)
    }
    fn cacheable(&self) -> bool {
        false
    }
    fn create(&self, _name: &[u8], new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        Err(match new.mode & libc::S_IFMT {
            libc::S_IFREG => Errno::EACCES,
            _ => Errno::EPERM,
        })
    }
    fn symlink(&self, _name: &[u8], _target: &[u8], _new: &NewInode) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }
    fn link(&self, _name: &[u8], _target: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    fn unlink(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    fn rename(&self, _old: &[u8], _new_dir: &Arc<dyn Inode>, _new: &[u8], _flags: u32) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    fn open(&self, _flags: u32) -> Result<Box<dyn FileOps>, Errno> {
        Ok(Box::new(OpenDirectory::new()))
    }
    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let entry = |name: String, ino: u64| DirEntry {
            ino,
            kind: libc::DT_CHR,
            name: name.into_bytes(),
        };
        let mut entries = vec![entry("ptmx".into(), PTMX_INO)];
        let table = self.fs.table.lock();
        entries.extend(
            table
                .nodes
                .keys()
                .map(|index| entry(index.to_string(), FIRST_INO + u64::from(*index))),
        );
        Ok(entries)
    }
    fn statistics(&self) -> Result<FsStatistics, Errno> {
        Ok(FsStatistics {
            magic: MAGIC,
            block_size: 4096,
            name_max: 255,
            ..FsStatistics::default()
        })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `ptmx`.
struct Ptmx {
    fs: Weak<DevPts>,
    owned: Mutex<Owned, rank::DevPtsOwner>,
    dev: u64,
}

impl Inode for Ptmx {
    fn attributes(&self) -> Result<Attributes, Errno> {
        let rdev = make_device(PTMX.0, PTMX.1);
        Ok(self.owned.lock().attributes(self.dev, PTMX_INO, rdev, 1))
    }
    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.owned.lock().set(set);
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A slave's node.
struct Slave {
    dev: u64,
    index: u32,
    owned: Mutex<Owned, rank::DevPtsOwner>,
    /// Names may be remembered longer than the terminal is there.
    pty: Weak<Pty>,
}

impl Inode for Slave {
    fn attributes(&self) -> Result<Attributes, Errno> {
        let ino = FIRST_INO + u64::from(self.index);
        let rdev = make_device(SLAVE_MAJOR, self.index);
        Ok(self.owned.lock().attributes(self.dev, ino, rdev, 1))
    }
    fn set_attributes(&self, set: &SetAttributes) -> Result<(), Errno> {
        self.owned.lock().set(set);
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The instance whose `ptmx` an inode is.
pub(super) fn instance_of_ptmx(inode: &Arc<dyn Inode>) -> Option<Arc<DevPts>> {
    inode.as_any().downcast_ref::<Ptmx>()?.fs.upgrade()
}

/// The instance whose root directory an inode is.
pub(super) fn instance_of_root(inode: &Arc<dyn Inode>) -> Option<Arc<DevPts>> {
    Some(inode.as_any().downcast_ref::<Root>()?.fs.clone())
}

/// The terminal whose slave an inode is.
pub(super) fn terminal_of(inode: &Arc<dyn Inode>) -> Option<Arc<Pty>> {
    inode.as_any().downcast_ref::<Slave>()?.pty.upgrade()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_shown() {
        let options = Options::parse(b"newinstance,ptmxmode=0666,mode=0620,gid=5").unwrap();
        assert_eq!(options, Options::usual());
        assert_eq!(options.show(), "gid=5,mode=620,ptmxmode=666");
        assert_eq!(
            Options::parse(b"uid=1,max=3").unwrap().show(),
            "uid=1,mode=600,ptmxmode=000,max=3"
        );
        for bad in [&b"mode=9"[..], b"gid=x", b"what", b"\xff"] {
            assert_eq!(Options::parse(bad), Err(Errno::EINVAL));
        }
    }
}
