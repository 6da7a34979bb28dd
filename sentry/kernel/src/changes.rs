//! What a sandbox has changed, told to the supervisor at the end.
//!
//! A stream of records: the length of each in four bytes, low first, then the record in JSON, then the bytes of the
//! file's extents. Paths come in order: a directory before what is in it, names in the order of their bytes.

use std::collections::HashMap;
use std::fs::File as HostFile;
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::file::File;
use sentry_vfs::gofer_fs::Ledger;
use sentry_vfs::inode::Inode;
use sentry_vfs::overlay::{ChangeKind, Changed, Overlay, read_at};
use sentry_vfs::path::VfsPath;
use serde::{Deserialize, Serialize};

use crate::events::Totals;

/// The longest path that is told, in bytes. Longer ones are counted.
pub const LONGEST_PATH: usize = 64 * 1024;
/// The longest record, in bytes: a file of a gibibyte with a hole behind each page has one of about 10 million.
pub const LONGEST_RECORD: usize = 16 << 20;
/// Extents are aligned to this many bytes, but for the end of a file.
pub const ALIGNMENT: u64 = 512;

/// What to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesConfig {
    /// Also what files contain.
    pub contents: bool,
}

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A path that differs from the host's.
    Path {
        /// Absolute, without `.` and `..`.
        path: Vec<u8>,
        /// How it differs.
        change: Change,
    },
    /// The last one.
    End {
        /// How many paths were too long.
        left_out: u64,
        /// How many files could not be read; zeros are in their place.
        unreadable: u64,
    },
}

/// How a path differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It is new.
    Added(Entry),
    /// It is another file, has other attributes, or something below it differs.
    Changed(Entry),
    /// It is no more.
    Deleted,
}

/// What is there now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// Of the last modification: seconds since 1970, nanoseconds.
    pub mtime: (i64, u32),
    /// Shows nothing of the lower directory in its place.
    pub opaque: bool,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// The path told before that is the same file.
    pub link: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Offset and length of what is not holes, if contents were asked for.
    pub extents: Vec<(u64, u64)>,
}

/// Writes the stream. Whoever reads it may be gone: then there is nobody to tell.
pub(crate) fn write(config: ChangesConfig, overlays: &[(Vec<u8>, Arc<Overlay>)], output: OwnedFd) {
    let mut stream = Stream {
        config,
        output: BufWriter::with_capacity(PIECE, HostFile::from(output)),
        links: HashMap::new(),
        unreadable: 0,
    };
    let mut sorted: Vec<_> = overlays.iter().collect();
    // A slash sorts before any other byte of a name.
    sorted.sort_by(|(one, _), (other, _)| one.split(|&byte| byte == b'/').cmp(other.split(|&byte| byte == b'/')));
    let _ = stream.all(&sorted);
}

/// Counts what has changed. A directory is not changed by what is in it.
pub(crate) fn count(overlays: &[(Vec<u8>, Arc<Overlay>)], totals: &mut Totals) {
    for (_, overlay) in overlays {
        // What cannot be looked at is not counted.
        let _ = overlay.changes(usize::MAX, &mut |changed| {
            let is_dir = changed
                .inode
                .as_ref()
                .is_some_and(|inode| inode.permissions().is_ok_and(|permissions| permissions.is_dir()));
            match changed.kind {
                ChangeKind::Added => totals.created += 1,
                ChangeKind::Deleted => totals.deleted += 1,
                _ if is_dir => {}
                _ => totals.changed += 1,
            }
            Ok(())
        });
    }
}

/// Counts what guests have changed of the host's files.
pub(crate) fn count_shared(ledger: &Ledger, totals: &mut Totals) {
    let files = ledger.changed_files();
    totals.created += files.created;
    totals.changed += files.changed;
    totals.deleted += files.deleted;
}

/// Bytes read at a time.
const PIECE: usize = 256 * 1024;

struct Stream {
    config: ChangesConfig,
    output: BufWriter<HostFile>,
    /// Where a file with several names was told first, by device and inode number.
    links: HashMap<(u64, u64), Vec<u8>>,
    unreadable: u64,
}

impl Stream {
    fn all(&mut self, overlays: &[&(Vec<u8>, Arc<Overlay>)]) -> Result<(), Errno> {
        let mut left_out = 0;
        for (target, overlay) in overlays {
            let prefix: &[u8] = if target == b"/" { b"" } else { target };
            let longest = LONGEST_PATH.saturating_sub(prefix.len());
            left_out += overlay.changes(longest, &mut |changed| self.path(prefix, &changed))?;
        }
        self.record(&Record::End {
            left_out,
            unreadable: self.unreadable,
        })?;
        self.output.flush().map_err(|_| Errno::EPIPE)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.output.write_all(bytes).map_err(|_| Errno::EPIPE)
    }

    fn record(&mut self, record: &Record) -> Result<(), Errno> {
        let text = serde_json::to_vec(record).map_err(|_| Errno::EINVAL)?;
        self.bytes(&(text.len() as u32).to_le_bytes())?;
        self.bytes(&text)
    }

    fn path(&mut self, prefix: &[u8], changed: &Changed<'_>) -> Result<(), Errno> {
        let mut path = [prefix, changed.path].concat();
        if path.is_empty() {
            path.push(b'/');
        }
        let (Some(inode), false) = (&changed.inode, changed.kind == ChangeKind::Deleted) else {
            return self.record(&Record::Path {
                path,
                change: Change::Deleted,
            });
        };
        let (entry, file) = self.entry(&path, inode, changed.opaque)?;
        let extents = entry.extents.clone();
        let change = match changed.kind {
            ChangeKind::Added => Change::Added(entry),
            _ => Change::Changed(entry),
        };
        self.record(&Record::Path { path, change })?;
        if let Some(file) = file {
            self.content(&file, &extents)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: &[u8],
        inode: &Arc<dyn Inode>,
        opaque: bool,
    ) -> Result<(Entry, Option<Arc<File>>), Errno> {
        let attributes = inode.attributes()?;
        let kind = attributes.mode & libc::S_IFMT;
        let mut entry = Entry {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            device: match kind {
                libc::S_IFCHR | libc::S_IFBLK => (libc::major(attributes.rdev), libc::minor(attributes.rdev)),
                _ => (0, 0),
            },
            size: if kind == libc::S_IFREG { attributes.size } else { 0 },
            mtime: (attributes.mtime.sec, attributes.mtime.nsec),
            opaque,
            ..Entry::default()
        };
        if kind != libc::S_IFDIR && attributes.nlink > 1 {
            let key = (attributes.dev, attributes.ino);
            entry.link = self.links.get(&key).cloned();
            if entry.link.is_some() {
                return Ok((entry, None));
            }
            self.links.insert(key, path.to_vec());
        }
        if kind == libc::S_IFLNK {
            entry.target = inode.readlink()?;
        }
        if !self.config.contents {
            return Ok((entry, None));
        }
        let names = inode.list_xattr().unwrap_or_default();
        let values = names.into_iter().filter_map(|name| {
            let value = inode.get_xattr(&name).ok()?;
            Some((name, value))
        });
        entry.xattrs = values.collect();
        if kind != libc::S_IFREG || entry.size == 0 {
            return Ok((entry, None));
        }
        let flags = libc::O_RDONLY as u32;
        match inode.open(flags) {
            Ok(ops) => {
                let file = File::new(VfsPath::anonymous_inode("", inode.clone()), flags, ops);
                entry.extents = extents(&file, entry.size);
                Ok((entry, Some(file)))
            }
            Err(_) => {
                self.unreadable += 1;
                Ok((entry, None))
            }
        }
    }

    fn content(&mut self, file: &File, extents: &[(u64, u64)]) -> Result<(), Errno> {
        let mut buf = vec![0; PIECE];
        let mut whole = true;
        for &(start, len) in extents {
            let mut at = start;
            while at < start + len {
                let piece = usize::try_from(start + len - at).unwrap_or(PIECE).min(PIECE);
                let part = &mut buf[..piece];
                let count = match read_at(file, part, at) {
                    Ok(count) if count > 0 => count,
                    _ => {
                        part.fill(0);
                        whole = false;
                        piece
                    }
                };
                at += count as u64;
                self.output.write_all(&buf[..count]).map_err(|_| Errno::EPIPE)?;
            }
        }
        self.unreadable += u64::from(!whole);
        Ok(())
    }
}

/// Where a file has data, aligned; all of it where the file cannot say.
fn extents(file: &File, size: u64) -> Vec<(u64, u64)> {
    let mut extents: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match file.ops().seek_extent(file, at, true) {
            Ok(data) if data >= at => data,
            Err(Errno::ENXIO) => break,
            _ => return vec![(0, size)],
        };
        let hole = match file.ops().seek_extent(file, data, false) {
            Ok(hole) if hole > data => hole,
            _ => size,
        };
        let start = data / ALIGNMENT * ALIGNMENT;
        let end = hole
            .checked_next_multiple_of(ALIGNMENT)
            .map_or(size, |end| end.min(size));
        if start >= size {
            break;
        }
        match extents.last_mut() {
            Some((first, len)) if *first + *len >= start => *len = end - *first,
            _ => extents.push((start, end - start)),
        }
        at = hole.max(end);
    }
    extents
}
