//! Open regular files of tmpfs.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use sentry_abi::Errno;
use sentry_host::memory_file::MemoryFile;
use sentry_lock::{Mutex, rank};

use super::data::{Data, SIZE_MAX};
use super::node::Node;
use super::store::Store;
use crate::file::{File, FileOps, HostFile};
use crate::mount::MountFlags;

/// Files from this size on get a memory file of their own, so that reads and writes go to it directly…
const OWN_MIN: u64 = 1024 * 1024;
/// …as long as there are fewer of those in the sandbox than this: each is a descriptor of the sentry.
const OWN_MAX: usize = 256;
/// With less room than this below the size limit, writes are counted before they are made, not after.
const DIRECT_PAGES: u64 = 64 * 1024;

/// Files with a memory file of their own, in the order they got it.
static OWNERS: Mutex<Vec<Weak<Node>>, rank::TmpfsOwners> = Mutex::new(Vec::new());

pub(super) struct OpenFile {
    node: Arc<Node>,
    /// Holding it keeps the file from giving its memory file up.
    own: OnceLock<Arc<MemoryFile>>,
}

impl OpenFile {
    pub fn new(node: Arc<Node>) -> OpenFile {
        OpenFile {
            node,
            own: OnceLock::new(),
        }
    }

    fn store(&self) -> &Store {
        &self.node.store
    }

    fn sealed(&self, seals: libc::c_int) -> bool {
        self.node.meta.lock().seals & seals as u32 != 0
    }

    /// Gives the (locked) file a memory file of its own.
    fn make_own(&self, data: &mut Data, must: bool) -> Result<Arc<MemoryFile>, Errno> {
        if data.own().is_none() {
            if !free_a_slot() && !must {
                return Err(Errno::EMFILE);
            }
            data.make_own(self.store())?;
            OWNERS.lock().push(Arc::downgrade(&self.node));
        }
        data.own().cloned().ok_or(Errno::EIO)
    }
}

/// Makes room for one more memory file, if need be by moving an unused one back. False if there is none.
fn free_a_slot() -> bool {
    let mut owners = OWNERS.lock();
    if owners.len() < OWN_MAX {
        return true;
    }
    let mut visited = Vec::new();
    let mut freed = 0;
    owners.retain(|owner| {
        let Some(node) = owner.upgrade() else {
            return false;
        };
        let gives_up = freed < OWN_MAX / 8 && give_up(&node);
        freed += usize::from(gives_up);
        // Dropped without the lock: it may be the last reference.
        visited.push(node);
        !gives_up
    });
    let room = owners.len() < OWN_MAX;
    drop(owners);
    room
}

fn give_up(node: &Node) -> bool {
    let Ok(file) = node.file() else { return true };
    // The lock order is file, then `OWNERS`: here it is the other way round, so only try.
    let Some(mut data) = file.data.try_write() else {
        return false;
    };
    data.own().is_none() || data.give_up_own(&node.store)
}

impl FileOps for OpenFile {
    fn read(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let count = self.node.file()?.data.read().read(self.store(), buf, offset)?;
        if keeps_atime(file) {
            self.node.accessed();
        }
        Ok(count)
    }

    fn write(&self, file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        if self.sealed(libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) {
            return Err(Errno::EPERM);
        }
        let mut data = self.node.file()?.data.write();
        let offset = if file.flags() as i32 & libc::O_APPEND != 0 {
            data.size()
        } else {
            offset
        };
        let mut buf = buf;
        if self.sealed(libc::F_SEAL_GROW) {
            let room = usize::try_from(data.size().saturating_sub(offset)).unwrap_or(usize::MAX);
            buf = &buf[..buf.len().min(room)];
            if buf.is_empty() {
                return Err(Errno::EPERM);
            }
        }
        if offset.saturating_add(buf.len() as u64) > OWN_MIN && data.own().is_none() {
            // Without one it stays as it is.
            let _ = self.make_own(&mut data, false);
        }
        let count = data.write(self.store(), buf, offset)?;
        drop(data);
        if count > 0 {
            self.node.touch();
        }
        Ok((count, offset + count as u64))
    }

    fn seekable(&self) -> bool {
        true
    }

    fn host_file(&self) -> Option<HostFile<'_>> {
        let own = match self.own.get() {
            Some(own) => own,
            None => {
                let own = self.node.file().ok()?.data.read().own()?.clone();
                self.own.get_or_init(|| own)
            }
        };
        let sealed = self.sealed(libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW);
        Some(HostFile {
            fd: own.as_fd(),
            base: 0,
            size: u64::MAX,
            writable: !sealed && self.store().free_pages() >= DIRECT_PAGES,
            may_block: false,
        })
    }

    fn host_written(&self, end: u64) {
        if let Ok(file) = self.node.file() {
            file.data.write().written(self.store(), end);
        }
        self.node.touch();
    }

    fn host_read(&self) {
        self.node.accessed();
    }

    fn mmap_file(&self, file: &File, shared: bool, writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        self.mmap_range(file, shared, writable, 0..SIZE_MAX)
    }

    fn mmap_range(
        &self,
        file: &File,
        shared: bool,
        writable: bool,
        written: Range<u64>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        if !file.readable() || (shared && writable && !file.writable()) {
            return Err(Errno::EACCES);
        }
        let sealed = self.sealed(libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE);
        if shared && writable && sealed {
            return Err(Errno::EPERM);
        }
        // As Linux has it: the rights of the open file, so that mprotect(2) may add what is missing now.
        let writes = shared && file.writable() && !sealed;
        let own = {
            let mut data = self.node.file()?.data.write();
            let own = self.make_own(&mut data, true)?;
            if writes && !written.is_empty() {
                data.charge_mapped(self.store(), &written).map_err(|_| Errno::ENOMEM)?;
            }
            own
        };
        // The mapping holds the open file, and so keeps the file from giving its memory file up.
        let own = self.own.get_or_init(|| own);
        if writes {
            Ok(own.descriptor().clone())
        } else {
            own.read_only()
        }
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let mut data = self.node.file()?.data.write();
        let grows = mode & (KEEP | PUNCH) == 0 && offset.saturating_add(len) > data.size();
        match mode {
            _ if mode & PUNCH != 0 && mode == PUNCH | KEEP => {
                if self.sealed(libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) {
                    return Err(Errno::EPERM);
                }
                data.punch(self.store(), offset, len)?;
            }
            0 | KEEP if grows && self.sealed(libc::F_SEAL_GROW) => return Err(Errno::EPERM),
            0 | KEEP => data.allocate(self.store(), offset, len, mode == KEEP)?,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        drop(data);
        self.node.touch();
        Ok(())
    }

    fn seek_extent(&self, _file: &File, offset: u64, data: bool) -> Result<u64, Errno> {
        self.node.file()?.data.read().seek_extent(offset, data)
    }

    fn size(&self, _file: &File) -> Result<u64, Errno> {
        Ok(self.node.file()?.data.read().size())
    }

    fn seals(&self) -> Result<u32, Errno> {
        Ok(self.node.meta.lock().seals)
    }

    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        const KNOWN: i32 = libc::F_SEAL_SEAL
            | libc::F_SEAL_SHRINK
            | libc::F_SEAL_GROW
            | libc::F_SEAL_WRITE
            | libc::F_SEAL_FUTURE_WRITE
            | F_SEAL_EXEC;
        const F_SEAL_EXEC: i32 = 0x20;
        if seals & !(KNOWN as u32) != 0 {
            return Err(Errno::EINVAL);
        }
        let content = self.node.file()?;
        let data = content.data.write();
        let mut meta = self.node.meta.lock();
        if meta.seals & libc::F_SEAL_SEAL as u32 != 0 {
            return Err(Errno::EPERM);
        }
        // Whether a writable mapping is left is known only by who holds the descriptor: the file itself, whoever
        // has it open, and mappings.
        let mapped = data.own().is_some_and(|own| Arc::strong_count(own.descriptor()) > 1);
        if seals & libc::F_SEAL_WRITE as u32 != 0 && mapped {
            return Err(Errno::EBUSY);
        }
        meta.seals |= seals;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for OpenFile {
    /// The last mapping goes too: what was touched through it is counted at the latest now.
    fn drop(&mut self) {
        if self.own.get().is_some()
            && let Ok(file) = self.node.file()
        {
            file.data.write().recharge(self.store());
        }
    }
}

fn keeps_atime(file: &File) -> bool {
    file.flags() as i32 & libc::O_NOATIME == 0
        && !file
            .path()
            .mount()
            .is_some_and(|mount| mount.flags().contains(MountFlags::NO_ATIME))
}
