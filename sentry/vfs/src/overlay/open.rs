//! Lower files open for reading.

use std::any::Any;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use sentry_abi::Errno;
use sentry_host::memory_file;

use super::node::Node;
use crate::file::{File, FileOps, HostFile};
use crate::inode::Inode;

/// A lower file open for reading. Once the file is copied up, reads go to the copy, so that they see what others
/// write.
pub(super) struct OpenLower {
    node: Arc<Node>,
    lower: Box<dyn FileOps>,
    upper: OnceLock<Box<dyn FileOps>>,
    flags: u32,
}

impl OpenLower {
    pub fn new(node: Arc<Node>, lower: Box<dyn FileOps>, flags: u32) -> OpenLower {
        OpenLower {
            node,
            lower,
            upper: OnceLock::new(),
            flags,
        }
    }

    fn current(&self) -> &dyn FileOps {
        if let Some(upper) = self.upper.get() {
            return &**upper;
        }
        match self.node.upper.get().map(|upper| upper.open(self.flags)) {
            Some(Ok(upper)) => &**self.upper.get_or_init(|| upper),
            _ => &*self.lower,
        }
    }
}

impl FileOps for OpenLower {
    fn read(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.current().read(file, buf, offset)
    }
    fn seekable(&self) -> bool {
        self.current().seekable()
    }
    fn host_file(&self) -> Option<HostFile<'_>> {
        self.current().host_file().map(|host| HostFile {
            writable: false,
            ..host
        })
    }
    fn host_read(&self) {
        self.current().host_read();
    }
    fn mmap_file(&self, file: &File, shared: bool, writable: bool) -> Result<Arc<OwnedFd>, Errno> {
        self.current().mmap_file(file, shared, writable)
    }
    fn mmap_range(
        &self,
        file: &File,
        shared: bool,
        writable: bool,
        written: Range<u64>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        self.current().mmap_range(file, shared, writable, written)
    }
    fn mapping(&self) -> Option<(usize, Arc<dyn Any + Send + Sync>)> {
        self.current().mapping()
    }
    fn size(&self, file: &File) -> Result<u64, Errno> {
        self.current().size(file)
    }
    fn sync(&self, data_only: bool) -> Result<(), Errno> {
        self.current().sync(data_only)
    }
    fn seek_extent(&self, file: &File, offset: u64, data: bool) -> Result<u64, Errno> {
        let current = self.current();
        match current.host_file() {
            // Reads and writes go to it with offsets, so its position is free.
            Some(host) => memory_file::seek_extent(host.fd, offset, data),
            None => current.seek_extent(file, offset, data),
        }
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
