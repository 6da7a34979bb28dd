//! The content of a regular file.
//!
//! A file begins in sentry memory ([`Form::Inline`]), moves into chunks of the file system's shared memory file
//! when it grows ([`Form::Chunks`]), and gets a memory file of its own ([`Form::Own`]) when it is mapped or large.
//! Only the last form is ever seen by a guest. Memory files of their own are few (descriptors are scarce): one that
//! nothing maps or has open goes back to chunks when another is needed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_host::memory_file::MemoryFile;

use super::holes::holes;
use super::store::{CHUNK, CHUNK_PAGES, PAGE, Store};
use crate::ranges::Ranges;

/// Largest file kept in sentry memory.
const INLINE_MAX: u64 = 64 * 1024;
/// Largest offset of a file's end (`s_maxbytes`).
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

/// A piece of a file in the shared memory file.
#[derive(Clone, Copy, Default)]
pub(super) struct Chunk {
    pub number: u32,
    /// Which of its pages are charged; the others are zeros.
    pub pages: u16,
    /// Which of those were reserved and never written: holes to `SEEK_HOLE`.
    pub unwritten: u16,
}

impl Chunk {
    pub fn data(&self) -> u16 {
        self.pages & !self.unwritten
    }
}

pub(super) enum Form {
    /// Bytes from 0 on; what is behind them is zeros.
    Inline(Vec<u8>),
    /// By offset / [`CHUNK`].
    Chunks(BTreeMap<u64, Chunk>),
    Own(Arc<MemoryFile>),
}

/// A regular file's bytes. The caller passes the same store each time and calls [`Data::free`] at the end.
pub(crate) struct Data {
    pub(super) size: u64,
    /// Pages charged to the store.
    pub(super) charged: u64,
    /// What is or was mapped shared and writable, which cannot be seen being touched.
    mapped: Ranges,
    /// Pages in it that were holes: charged as if they had data, as far as the file is so large.
    promised: u64,
    pub(super) form: Form,
}

impl Data {
    pub fn new() -> Data {
        Data {
            size: 0,
            charged: 0,
            mapped: Ranges::default(),
            promised: 0,
            form: Form::Inline(Vec::new()),
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// In units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        match &self.form {
            Form::Own(file) => file.allocated().unwrap_or(self.charged * PAGE) / 512,
            _ => self.charged * (PAGE / 512),
        }
    }

    /// The memory file, if it has one of its own.
    pub fn own(&self) -> Option<&Arc<MemoryFile>> {
        match &self.form {
            Form::Own(file) => Some(file),
            _ => None,
        }
    }

    pub fn read(&self, store: &Store, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        match &self.form {
            Form::Inline(bytes) => {
                let from = usize::try_from(offset)
                    .ok()
                    .and_then(|offset| bytes.get(offset..))
                    .unwrap_or_default();
                let count = from.len().min(len);
                buf[..count].copy_from_slice(&from[..count]);
                buf[count..].fill(0);
            }
            Form::Chunks(chunks) => {
                let mut done = 0;
                while done < len {
                    let at = offset + done as u64;
                    let (index, within) = (at / CHUNK, at % CHUNK);
                    let piece = ((CHUNK - within) as usize).min(len - done);
                    let part = &mut buf[done..done + piece];
                    match chunks.get(&index) {
                        Some(chunk) => store.read_chunk(chunk.number, within, part)?,
                        None => part.fill(0),
                    }
                    done += piece;
                }
            }
            Form::Own(file) => {
                let count = file.read_at(buf, offset)?;
                buf[count..].fill(0);
            }
        }
        Ok(len)
    }

    /// Writes as much as there is room for; `ENOSPC` if that is nothing, `EFBIG` beyond the largest offset.
    pub fn write(&mut self, store: &Store, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        if buf.is_empty() {
            return Ok(0);
        }
        let room = SIZE_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let buf = &buf[..buf.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let end = offset + buf.len() as u64;
        if let Form::Inline(bytes) = &self.form
            // Also where a hole of whole pages comes to be: only the other form can leave pages out.
            && (end > INLINE_MAX || offset / PAGE > (bytes.len() as u64).div_ceil(PAGE))
        {
            self.make_chunks(store)?;
        }
        let done = match &mut self.form {
            Form::Inline(_) => self.write_inline(store, buf, offset)?,
            Form::Chunks(_) => self.write_chunks(store, buf, offset)?,
            Form::Own(_) => self.write_own(store, buf, offset)?,
        };
        self.size = self.size.max(offset + done as u64);
        Ok(done)
    }

    fn write_inline(&mut self, store: &Store, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        let Form::Inline(bytes) = &mut self.form else {
            return Err(Errno::EIO);
        };
        let (start, mut len) = (offset as usize, buf.len());
        let end = start + len;
        if end > bytes.len() {
            let needed = (end as u64).div_ceil(PAGE).saturating_sub(self.charged);
            let granted = match store.charge(needed) {
                Ok(()) => needed,
                Err(_) => charge_what_fits(store, needed),
            };
            self.charged += granted;
            let limit = (self.charged * PAGE) as usize;
            if limit < end {
                len = limit.checked_sub(start).filter(|&len| len > 0).ok_or(Errno::ENOSPC)?;
            }
            bytes.resize(bytes.len().max(start + len), 0);
        }
        bytes[start..start + len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn write_chunks(&mut self, store: &Store, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        let Form::Chunks(chunks) = &mut self.form else {
            return Err(Errno::EIO);
        };
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, within) = (at / CHUNK, at % CHUNK);
            let piece = ((CHUNK - within) as usize).min(buf.len() - done);
            let wanted = page_mask(within, piece as u64);
            let old = chunks.get(&index).copied();
            let missing = wanted & !old.map_or(0, |chunk| chunk.pages);
            let mut piece = piece;
            let mut added = missing;
            if store.charge(u64::from(missing.count_ones())).is_err() {
                // Page by page as far as there is room.
                added = 0;
                let mut page = within / PAGE;
                piece = loop {
                    let bit = 1u16 << page;
                    if wanted & bit == 0 {
                        break piece;
                    }
                    if missing & bit != 0 {
                        if store.charge(1).is_err() {
                            break (page * PAGE).saturating_sub(within) as usize;
                        }
                        added |= bit;
                    }
                    page += 1;
                    if page == CHUNK_PAGES {
                        break piece;
                    }
                };
                if piece == 0 {
                    break;
                }
            }
            let chunk = match old {
                Some(chunk) => chunk,
                None => match store.take_chunk() {
                    Ok(number) => Chunk {
                        number,
                        ..Chunk::default()
                    },
                    Err(errno) => {
                        store.uncharge(u64::from(added.count_ones()));
                        return if done > 0 { Ok(done) } else { Err(errno) };
                    }
                },
            };
            self.charged += u64::from(added.count_ones());
            chunks.insert(
                index,
                Chunk {
                    number: chunk.number,
                    pages: chunk.pages | added,
                    unwritten: chunk.unwritten & !page_mask(within, piece as u64),
                },
            );
            store.write_chunk(chunk.number, within, &buf[done..done + piece])?;
            done += piece;
        }
        if done == 0 { Err(Errno::ENOSPC) } else { Ok(done) }
    }

    fn write_own(&mut self, store: &Store, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        let Form::Own(file) = &self.form else {
            return Err(Errno::EIO);
        };
        let file = file.clone();
        let mut len = buf.len() as u64;
        let most = len.div_ceil(PAGE) + 1;
        let end = (offset + len).max(self.size).div_ceil(PAGE);
        if self.charged < end && store.lacks(most) {
            // Near the limit: up to the first hole, and as many pages as may be had behind it.
            let hole = if offset < self.size {
                file.seek_extent(offset, false)?
            } else {
                offset
            };
            let room = (hole.next_multiple_of(PAGE)).saturating_add(store.free_pages() * PAGE);
            len = len.min(room.saturating_sub(offset));
            if len == 0 {
                return Err(Errno::ENOSPC);
            }
        }
        file.write_at(&buf[..len as usize], offset)?;
        self.size = self.size.max(offset + len);
        self.recharge(store);
        Ok(len as usize)
    }

    /// Takes over what the host says a file of its own uses.
    pub(super) fn recharge(&mut self, store: &Store) {
        let Form::Own(file) = &self.form else { return };
        let used = file.allocated().unwrap_or(0).div_ceil(PAGE);
        let pages = used.max((used + self.promised).min(self.size.div_ceil(PAGE)));
        if pages > self.charged {
            store.charge_forced(pages - self.charged);
        } else {
            store.uncharge(self.charged - pages);
        }
        self.charged = pages;
    }

    /// The kernel wrote to the memory file directly, up to `end`.
    pub fn written(&mut self, store: &Store, end: u64) {
        self.size = self.size.max(end);
        self.recharge(store);
    }

    /// ftruncate(2).
    pub fn set_size(&mut self, store: &Store, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        match &mut self.form {
            Form::Inline(bytes) => {
                let keep = usize::try_from(size).unwrap_or(usize::MAX);
                if keep < bytes.len() {
                    bytes.truncate(keep);
                    if keep < bytes.capacity() / 4 {
                        bytes.shrink_to_fit();
                    }
                }
                let pages = (bytes.len() as u64).div_ceil(PAGE);
                store.uncharge(self.charged.saturating_sub(pages));
                self.charged = pages;
            }
            Form::Chunks(_) if size < self.size => {
                let behind = size.next_multiple_of(PAGE);
                self.zero_part_of_page(store, size, behind)?;
                self.drop_pages(store, behind, u64::MAX)?;
            }
            Form::Chunks(_) => {}
            Form::Own(file) => {
                file.set_len(size)?;
                let (old, new) = (self.size.div_ceil(PAGE), size.div_ceil(PAGE));
                self.promised = self.promised.saturating_add(self.mapped.within(old, new)).min(new);
            }
        }
        self.size = size;
        self.recharge(store);
        Ok(())
    }

    /// Gives the file a memory file of its own.
    pub fn make_own(&mut self, store: &Store) -> Result<&Arc<MemoryFile>, Errno> {
        if !matches!(self.form, Form::Own(_)) {
            let file = self.copy(store)?;
            self.replace_form(store, Form::Own(Arc::new(file)));
            self.recharge(store);
        }
        match &self.form {
            Form::Own(file) => Ok(file),
            _ => Err(Errno::EIO),
        }
    }

    fn copy(&self, store: &Store) -> Result<MemoryFile, Errno> {
        let file = MemoryFile::new(c"tmpfs-file")?;
        file.set_len(self.size)?;
        let mut buf = vec![0; CHUNK as usize];
        match &self.form {
            Form::Inline(bytes) => file.write_at(bytes, 0)?,
            Form::Own(own) => {
                let mut at = 0;
                while let Ok(data) = own.seek_extent(at, true) {
                    let count = own.read_at(&mut buf, data)?;
                    if count == 0 {
                        break;
                    }
                    file.write_at(&buf[..count], data)?;
                    at = data + count as u64;
                }
            }
            Form::Chunks(chunks) => {
                for (&index, chunk) in chunks {
                    for (from, to) in runs(chunk.data()) {
                        let (from, to) = (from * PAGE, to * PAGE);
                        // Pages allocated behind the end stay behind.
                        let to = to.min(self.size.saturating_sub(index * CHUNK));
                        if from < to {
                            let part = &mut buf[..(to - from) as usize];
                            store.read_chunk(chunk.number, from, part)?;
                            file.write_at(part, index * CHUNK + from)?;
                        }
                    }
                }
            }
        }
        Ok(file)
    }

    /// Charges a range from now on, as far as the file reaches: it is mapped shared and writable.
    pub fn charge_mapped(&mut self, store: &Store, range: &Range<u64>) -> Result<(), Errno> {
        let Form::Own(file) = &self.form else {
            return Err(Errno::EIO);
        };
        let size = self.size.div_ceil(PAGE);
        let (first, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let mut promised = self.promised;
        for (first, last) in self.mapped.missing(first, last.min(size)) {
            promised += holes(file, first * PAGE, last * PAGE)?;
        }
        let used = file.allocated().unwrap_or(0).div_ceil(PAGE);
        let pages = used.max((used + promised).min(size)).max(self.charged);
        store.charge(pages - self.charged)?;
        self.charged = pages;
        self.promised = promised.min(size);
        self.mapped.add_at_least(first, last);
        Ok(())
    }

    /// Moves a file that has a memory file of its own, which nobody else holds, into chunks. False if it cannot.
    pub fn give_up_own(&mut self, store: &Store) -> bool {
        let Form::Own(file) = &self.form else { return false };
        if Arc::strong_count(file) > 1 || Arc::strong_count(file.descriptor()) > 1 {
            return false;
        }
        let file = file.clone();
        match copy_to_chunks(store, &file, self.size) {
            Ok(chunks) => {
                let pages = chunks.values().map(|chunk| u64::from(chunk.pages.count_ones())).sum();
                self.form = Form::Chunks(chunks);
                store.charge_forced(pages);
                store.uncharge(self.charged);
                self.charged = pages;
                self.mapped = Ranges::default();
                self.promised = 0;
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn make_chunks(&mut self, store: &Store) -> Result<(), Errno> {
        let Form::Inline(bytes) = &self.form else { return Ok(()) };
        let mut chunks = BTreeMap::new();
        for (index, part) in (0..).zip(bytes.chunks(CHUNK as usize)) {
            let number = store.take_chunk()?;
            store.write_chunk(number, 0, part)?;
            chunks.insert(
                index,
                Chunk {
                    number,
                    pages: page_mask(0, part.len() as u64),
                    unwritten: 0,
                },
            );
        }
        self.form = Form::Chunks(chunks);
        Ok(())
    }

    fn replace_form(&mut self, store: &Store, form: Form) {
        if let Form::Chunks(chunks) = std::mem::replace(&mut self.form, form) {
            for chunk in chunks.values() {
                store.free_chunk(chunk.number);
            }
        }
    }

    /// Gives everything back to the store.
    pub fn free(&mut self, store: &Store) {
        self.replace_form(store, Form::Inline(Vec::new()));
        store.uncharge(self.charged);
        self.charged = 0;
        self.size = 0;
    }
}

fn copy_to_chunks(store: &Store, file: &MemoryFile, size: u64) -> Result<BTreeMap<u64, Chunk>, Errno> {
    let mut chunks = BTreeMap::new();
    let copied = copy_data(store, file, size, &mut chunks);
    if copied.is_err() {
        for chunk in chunks.values() {
            store.free_chunk(chunk.number);
        }
    }
    copied.map(|()| chunks)
}

fn copy_data(store: &Store, file: &MemoryFile, size: u64, chunks: &mut BTreeMap<u64, Chunk>) -> Result<(), Errno> {
    let mut buf = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < size {
        at = match file.seek_extent(at, true) {
            Ok(data) => data / CHUNK * CHUNK,
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno),
        };
        let count = file.read_at(&mut buf, at)?;
        let mut chunk = Chunk {
            number: store.take_chunk()?,
            ..Chunk::default()
        };
        for (page, bytes) in (0..).zip(buf[..count].chunks(PAGE as usize)) {
            if bytes.iter().any(|&byte| byte != 0) {
                chunk.pages |= 1 << page;
            }
        }
        chunks.insert(at / CHUNK, chunk);
        store.write_chunk(chunk.number, 0, &buf[..count])?;
        at += CHUNK;
    }
    Ok(())
}

/// The pages of a chunk that a range within it touches.
pub(super) fn page_mask(within: u64, len: u64) -> u16 {
    if len == 0 {
        return 0;
    }
    let (first, last) = (within / PAGE, (within + len - 1) / PAGE);
    let below = |page: u64| (1u32 << page) - 1;
    (below(last.min(CHUNK_PAGES - 1) + 1) & !below(first)) as u16
}

/// Runs of set bits, as half-open ranges.
fn runs(pages: u16) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for page in (0..CHUNK_PAGES).filter(|page| pages & (1 << page) != 0) {
        match all.last_mut() {
            Some(last) if last.1 == page => last.1 = page + 1,
            _ => all.push((page, page + 1)),
        }
    }
    all
}

/// Charges up to `wanted` pages, one by one.
fn charge_what_fits(store: &Store, wanted: u64) -> u64 {
    let mut granted = 0;
    while granted < wanted && store.charge(1).is_ok() {
        granted += 1;
    }
    granted
}
