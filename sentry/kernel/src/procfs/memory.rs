//! `/proc/PID/mem` and `/proc/PID/pagemap`.

use std::any::Any;
use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::ops::TaskIds;
use sentry_vfs::pseudo::{Generate, Owner};

use super::Subject;
use crate::mm::{Backing, MemoryMap};

/// `/proc/PID/mem`: the process's memory by address.
pub(super) struct Memory {
    pub subject: Subject,
}

impl Generate for Memory {
    fn generate(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EIO)
    }

    fn open(&self, _flags: u32) -> Option<Result<Box<dyn FileOps>, Errno>> {
        let open = || -> Result<Box<dyn FileOps>, Errno> {
            Ok(Box::new(OpenMemory {
                space: self.subject.process()?.mm().space().clone(),
            }))
        };
        Some(open())
    }

    fn allows(&self, task: TaskIds) -> bool {
        self.subject.allows(task)
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.subject.owner(0o600))
    }
}

struct OpenMemory {
    space: Arc<dyn sentry_platform::AddressSpace>,
}

impl FileOps for OpenMemory {
    fn read(&self, _file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match self.space.read_partial(offset, buf) {
            0 if !buf.is_empty() => Err(Errno::EIO),
            count => Ok(count.min(buf.len())),
        }
    }

    fn write(&self, _file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        self.space.write(offset, buf).map_err(|_| Errno::EIO)?;
        Ok((buf.len(), offset.saturating_add(buf.len() as u64)))
    }

    fn spliced(&self) -> bool {
        false
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `/proc/PID/pagemap`: eight bytes for each page of the address space. Frame numbers are nobody's business; a page that
/// is mapped counts as present, as for mincore(2).
pub(super) struct PageMap {
    pub subject: Subject,
}

/// What one page says: it is there; it is a page of a file, or shared.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

impl Generate for PageMap {
    fn generate(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EIO)
    }

    fn open(&self, _flags: u32) -> Option<Result<Box<dyn FileOps>, Errno>> {
        let open = || -> Result<Box<dyn FileOps>, Errno> {
            Ok(Box::new(OpenPageMap {
                mm: self.subject.process()?.mm(),
            }))
        };
        Some(open())
    }

    fn allows(&self, task: TaskIds) -> bool {
        self.subject.allows(task)
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.subject.owner(0o400))
    }
}

struct OpenPageMap {
    mm: Arc<MemoryMap>,
}

impl FileOps for OpenPageMap {
    fn read(&self, _file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        const ENTRY: u64 = 8;
        if !offset.is_multiple_of(ENTRY) || !(buf.len() as u64).is_multiple_of(ENTRY) {
            return Err(Errno::EINVAL);
        }
        // As far as user addresses go.
        let last = (1 << 47) / PAGE_SIZE * ENTRY;
        let len = last.saturating_sub(offset).min(buf.len() as u64).min(1 << 16) as usize;
        let Some(buf) = buf.get_mut(..len) else { return Ok(0) };
        let first = offset / ENTRY * PAGE_SIZE;
        buf.fill(0);
        for region in self.mm.overlapping(first, len as u64 / ENTRY * PAGE_SIZE) {
            if region.prot == libc::PROT_NONE {
                continue;
            }
            let anonymous = matches!(region.backing, Backing::Anonymous | Backing::Heap | Backing::Stack);
            let entry = if anonymous && !region.shared {
                PRESENT
            } else {
                PRESENT | OF_FILE
            };
            for (bytes, page) in buf.chunks_exact_mut(ENTRY as usize).zip(first / PAGE_SIZE..) {
                if (region.start..region.end).contains(&(page * PAGE_SIZE)) {
                    bytes.copy_from_slice(&entry.to_le_bytes());
                }
            }
        }
        Ok(len)
    }

    fn spliced(&self) -> bool {
        false
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
