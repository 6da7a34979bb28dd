//! Copy-up: a node gets an inode of its own in memory.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_host::memory_file;

use super::node::Node;
use crate::file::File;
use crate::inode::{Attributes, Inode, NewInode};
use crate::path::VfsPath;
use crate::tmpfs;

/// Bytes copied at a time.
const PIECE: usize = 256 * 1024;

impl Node {
    /// The node's own inode, made if it has none: with the lower file's attributes, and up to `most` bytes of its
    /// content.
    pub(super) fn copy_up(&self, most: u64) -> Result<&Arc<tmpfs::Node>, Errno> {
        if let Some(upper) = self.upper.get() {
            return Ok(upper);
        }
        let one = self.copying.lock()?;
        if let Some(upper) = self.upper.get() {
            return Ok(upper);
        }
        let lower = self.lower.as_ref().ok_or(Errno::EIO)?;
        let attributes = lower.attributes()?;
        let new = NewInode {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
        };
        let target = match attributes.mode & libc::S_IFMT {
            libc::S_IFLNK => Some(lower.readlink()?),
            _ => None,
        };
        let upper = tmpfs::Node::unplaced(&self.shared.store, &new, target.as_deref())?;
        for name in lower.list_xattr().unwrap_or_default() {
            if let Ok(value) = lower.get_xattr(&name) {
                upper.set_xattr(&name, &value, 0)?;
            }
        }
        if attributes.mode & libc::S_IFMT == libc::S_IFREG {
            copy_content(lower, &upper, &attributes, most)?;
        }
        upper.set_history(&attributes);
        self.pin();
        let upper = self.upper.get_or_init(|| upper);
        drop(one);
        self.mark();
        Ok(upper)
    }
}

fn copy_content(lower: &Arc<dyn Inode>, upper: &tmpfs::Node, attributes: &Attributes, most: u64) -> Result<(), Errno> {
    let size = attributes.size.min(most);
    if size > 0 {
        let flags = libc::O_RDONLY as u32;
        let file = File::new(VfsPath::anonymous_inode("", lower.clone()), flags, lower.open(flags)?);
        let mut buf = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        let mut at = 0;
        // Holes stay holes.
        while let Some((data, hole)) = next_extent(&file, at, size) {
            at = data;
            while at < hole {
                let piece = usize::try_from(hole - at).unwrap_or(PIECE).min(buf.len());
                let count = read_at(&file, &mut buf[..piece], at)?;
                if count == 0 {
                    return upper.fill_to(size);
                }
                if buf[..count].iter().any(|&byte| byte != 0) {
                    upper.fill(&buf[..count], at)?;
                }
                at += count as u64;
            }
        }
    }
    upper.fill_to(size)
}

/// Where data begins and ends, from `at` on; all of it where the host cannot say.
fn next_extent(file: &File, at: u64, size: u64) -> Option<(u64, u64)> {
    if at >= size {
        return None;
    }
    let host = file.ops().host_file();
    let seek = |at, data| match &host {
        Some(host) if host.base == 0 => memory_file::seek_extent(host.fd, at, data),
        _ => file.ops().seek_extent(file, at, data),
    };
    let data = match seek(at, true) {
        Ok(data) if data < size => data.max(at),
        Ok(_) | Err(Errno::ENXIO) => return None,
        Err(_) => return Some((at, size)),
    };
    let hole = seek(data, false).unwrap_or(size).min(size);
    Some((data, if hole > data { hole } else { size }))
}

/// Reads a regular file at an offset, whichever way it is read.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> Result<usize, Errno> {
    match file.ops().host_file() {
        Some(host) => {
            let room = host.size.saturating_sub(at).min(buf.len() as u64) as usize;
            memory_file::read_at(host.fd, &mut buf[..room], host.base.saturating_add(at))
        }
        None => file.ops().read(file, buf, at),
    }
}
