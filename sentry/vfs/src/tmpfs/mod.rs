//! tmpfs: files in memory (tmpfs(5)).
//!
//! The tree is made of [`Node`]s that hold each other by name; content is in `data.rs`, limits and the shared
//! memory file in `store.rs`. The overlay uses the same nodes for what it has copied up.

mod data;
mod holes;
mod node;
mod open;
mod store;

use std::sync::Arc;

pub(crate) use node::Node;
pub(crate) use store::Store;

use sentry_abi::Errno;

use crate::budget::Budget;
use crate::inode::{Inode, NewInode};
use crate::mount::FileSystem;

/// What sizes in per cent are of, and what a tmpfs without a size gets half of, in bytes.
pub const MEMORY: u64 = 512 << 20;

/// Mount options of tmpfs(5).
#[derive(Clone, Debug)]
pub struct TmpfsOptions {
    /// Bytes that files may use; `None`: no limit.
    pub size: Option<u64>,
    /// Files there may be; `None`: one for each page of the size, at most about a million.
    pub inodes: Option<u64>,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// What it shares with others.
    pub budget: Arc<Budget>,
}

impl Default for TmpfsOptions {
    fn default() -> TmpfsOptions {
        TmpfsOptions {
            size: None,
            inodes: None,
            mode: 0o1777,
            uid: 0,
            gid: 0,
            budget: Arc::default(),
        }
    }
}

impl TmpfsOptions {
    /// From the data string of mount(2): `size=64m,nr_inodes=1k,mode=755,uid=0,gid=0`. `EINVAL` for what is not
    /// understood; sizes in per cent are of `memory` bytes.
    pub fn parse(data: &[u8], memory: u64) -> Result<TmpfsOptions, Errno> {
        let mut options = TmpfsOptions::default();
        let text = std::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            match name {
                "size" => options.size = parse_size(value, memory)?,
                "nr_blocks" => options.size = parse_size(value, memory)?.map(|blocks| blocks.saturating_mul(4096)),
                "nr_inodes" => options.inodes = parse_size(value, memory)?,
                "mode" => options.mode = u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)? & 0o7777,
                "uid" => options.uid = value.parse().map_err(|_| Errno::EINVAL)?,
                "gid" => options.gid = value.parse().map_err(|_| Errno::EINVAL)?,
                "huge" | "mpol" | "inode32" | "inode64" | "noswap" => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(options)
    }
}

/// A number with a suffix `k`, `m`, `g` or `%`; 0 is no limit.
fn parse_size(text: &str, memory: u64) -> Result<Option<u64>, Errno> {
    let digits = text.trim_end_matches(|last: char| !last.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    let size = match &text[digits.len()..] {
        "" => number,
        "k" | "K" => number.saturating_mul(1 << 10),
        "m" | "M" => number.saturating_mul(1 << 20),
        "g" | "G" => number.saturating_mul(1 << 30),
        "%" => memory.saturating_mul(number) / 100,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Some(size).filter(|&size| size != 0))
}

/// A tmpfs.
pub struct Tmpfs {
    root: Arc<dyn Inode>,
    options: TmpfsOptions,
}

impl Tmpfs {
    /// An empty tmpfs.
    pub fn new(options: TmpfsOptions) -> Arc<Tmpfs> {
        let store = Arc::new(Store::new(options.size, options.inodes, options.budget.clone()));
        let new = NewInode {
            mode: libc::S_IFDIR | (options.mode & 0o7777),
            uid: options.uid,
            gid: options.gid,
            rdev: 0,
        };
        // The root counts too; a limit of no inodes at all cannot be asked for.
        let _ = store.charge_inode();
        let root = Node::make(&store, &new, node::Content::directory());
        Arc::new(Tmpfs { root, options })
    }

    /// Its root directory.
    pub fn root(&self) -> &Arc<dyn Inode> {
        &self.root
    }

    /// The same, ready to be mounted. `source` is the first field of /proc/mounts.
    pub fn file_system(&self, source: impl Into<Vec<u8>>) -> Arc<FileSystem> {
        let mut options = String::new();
        if let Some(size) = self.options.size {
            options.push_str(&format!("size={}k", size.div_ceil(1024)));
        }
        if let Some(inodes) = self.options.inodes {
            options.push_str(&format!(
                "{}nr_inodes={inodes}",
                if options.is_empty() { "" } else { "," }
            ));
        }
        if self.options.mode != 0o1777 {
            options.push_str(&format!(
                "{}mode={:o}",
                if options.is_empty() { "" } else { "," },
                self.options.mode
            ));
        }
        FileSystem::new(self.root.clone(), "tmpfs", source, options)
    }
}
