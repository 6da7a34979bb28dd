//! Open directories that are read from a list of entries.

use std::any::Any;
use std::collections::HashMap;

use sentry_abi::Errno;
use sentry_host::waiting::LongMutex;
use sentry_lock::rank;

use crate::file::{DirEntry, File, FileOps};
use crate::path::VfsPath;

/// An open directory over [`crate::inode::Inode::entries`]. The list is taken at the first read and whenever
/// reading starts over, so that positions stay right while names come and go. A name keeps its position as long as
/// the directory is open and each list has it. Positions 0 and 1 are `.` and `..`.
#[derive(Default)]
pub struct OpenDirectory {
    list: LongMutex<Option<List>, rank::DirectoryList>,
}

/// What was read.
struct List {
    /// Ordered by position.
    entries: Vec<(u64, DirEntry)>,
    /// The position of the next new name.
    next: u64,
}

impl List {
    /// The entries now, those of `old` at the positions they had.
    fn new(entries: Vec<DirEntry>, old: Option<List>) -> List {
        let next = old.as_ref().map_or(0, |old| old.next);
        let known: HashMap<Vec<u8>, u64> = old
            .into_iter()
            .flat_map(|old| old.entries)
            .map(|(position, entry)| (entry.name, position))
            .collect();
        let mut list = List {
            entries: Vec::with_capacity(entries.len()),
            next,
        };
        for entry in entries {
            let position = known.get(&entry.name).copied().unwrap_or_else(|| {
                list.next += 1;
                list.next - 1
            });
            list.entries.push((position, entry));
        }
        list.entries.sort_by_key(|(position, _)| *position);
        list
    }
}

impl OpenDirectory {
    /// A directory not yet read.
    pub fn new() -> OpenDirectory {
        OpenDirectory::default()
    }
}

impl FileOps for OpenDirectory {
    fn read(&self, _file: &File, _buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::EISDIR)
    }
    fn readdir(&self, file: &File, pos: u64, sink: &mut dyn FnMut(&DirEntry, u64) -> bool) -> Result<(), Errno> {
        let mut list = self.list.lock()?;
        if pos == 0 || list.is_none() {
            let inode = file.path().inode().ok_or(Errno::EBADF)?;
            if file.path().dentry().is_some_and(|dentry| dentry.is_deleted()) {
                return Err(Errno::ENOENT);
            }
            let mut all = Vec::from(dot_entries(file.path())?);
            all.append(&mut inode.entries()?);
            *list = Some(List::new(all, list.take()));
        }
        let entries = list.as_ref().map(|list| list.entries.as_slice()).unwrap_or_default();
        let start = entries.partition_point(|(position, _)| *position < pos);
        for (position, entry) in &entries[start..] {
            if !sink(entry, position + 1) {
                break;
            }
        }
        Ok(())
    }
    fn seekable(&self) -> bool {
        true
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The entries `.` and `..` of a directory.
fn dot_entries(path: &VfsPath) -> Result<[DirEntry; 2], Errno> {
    let inode = path.inode().ok_or(Errno::EBADF)?;
    let own = inode.attributes()?.ino;
    let above = match path.dentry().and_then(|dentry| dentry.parent()) {
        Some(parent) => parent.inode().attributes()?.ino,
        None => own,
    };
    let entry = |ino, name: &[u8]| DirEntry {
        ino,
        kind: libc::DT_DIR,
        name: name.to_vec(),
    };
    Ok([entry(own, b"."), entry(above, b"..")])
}
