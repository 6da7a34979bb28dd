//! Reserving, punching and finding holes in the content of a regular file.

use std::collections::BTreeMap;

use sentry_abi::Errno;
use sentry_host::memory_file::MemoryFile;

use super::data::{Chunk, Data, Form, SIZE_MAX, page_mask};
use super::store::{CHUNK, PAGE, Store};

impl Data {
    /// Writes zeros to a range within one page, if the page has data.
    pub(super) fn zero_part_of_page(&self, store: &Store, start: u64, end: u64) -> Result<(), Errno> {
        let Form::Chunks(chunks) = &self.form else {
            return Ok(());
        };
        if start >= end {
            return Ok(());
        }
        match chunks.get(&(start / CHUNK)) {
            Some(chunk) if chunk.pages & page_mask(start % CHUNK, 1) != 0 => {
                let zeros = [0; PAGE as usize];
                store.write_chunk(chunk.number, start % CHUNK, &zeros[..(end - start) as usize])
            }
            _ => Ok(()),
        }
    }

    /// Forgets whole pages from `start` to `end` (both at page borders, or `end` at the end of all).
    pub(super) fn drop_pages(&mut self, store: &Store, start: u64, end: u64) -> Result<(), Errno> {
        let Form::Chunks(chunks) = &mut self.form else {
            return Ok(());
        };
        let indexes: Vec<u64> = chunks
            .range(start / CHUNK..end.div_ceil(CHUNK))
            .map(|(&index, _)| index)
            .collect();
        for index in indexes {
            let Some(chunk) = chunks.get_mut(&index) else { continue };
            let base = index * CHUNK;
            let from = start.saturating_sub(base).min(CHUNK);
            let to = end.saturating_sub(base).min(CHUNK);
            let gone = chunk.pages & page_mask(from, to - from);
            store.uncharge(u64::from(gone.count_ones()));
            self.charged -= u64::from(gone.count_ones());
            chunk.pages &= !gone;
            chunk.unwritten &= !gone;
            if chunk.pages == 0 {
                store.free_chunk(chunk.number);
                chunks.remove(&index);
            } else if gone != 0 {
                store.punch_chunk(chunk.number, from, to - from)?;
            }
        }
        Ok(())
    }

    /// fallocate(2) without a mode, or with `FALLOC_FL_KEEP_SIZE`.
    pub fn allocate(&mut self, store: &Store, offset: u64, len: u64, keep_size: bool) -> Result<(), Errno> {
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= SIZE_MAX)
            .ok_or(Errno::EFBIG)?;
        if matches!(self.form, Form::Inline(_)) {
            self.make_chunks(store)?;
        }
        match &mut self.form {
            Form::Inline(_) => return Err(Errno::EIO),
            Form::Own(file) => {
                // What is there already is counted as missing: an error too early is the price near the limit.
                if store.lacks(len.div_ceil(PAGE)) {
                    return Err(Errno::ENOSPC);
                }
                file.allocate(offset, len, true)?;
                if !keep_size && end > self.size {
                    file.set_len(end)?;
                }
            }
            Form::Chunks(chunks) => {
                let (first, last) = (offset / CHUNK, end.div_ceil(CHUNK));
                let pages = end.div_ceil(PAGE) - offset / PAGE;
                if store.lacks(pages.saturating_sub(self.charged)) {
                    return Err(Errno::ENOSPC);
                }
                let mask_of = |index: u64| {
                    let base = index * CHUNK;
                    let from = offset.saturating_sub(base);
                    page_mask(from, (end - base).min(CHUNK) - from)
                };
                let missing_in = |chunks: &BTreeMap<u64, Chunk>, index: u64| {
                    mask_of(index) & !chunks.get(&index).map_or(0, |chunk| chunk.pages)
                };
                let missing: u64 = (first..last)
                    .map(|index| u64::from(missing_in(chunks, index).count_ones()))
                    .sum();
                store.charge(missing)?;
                self.charged += missing;
                for index in first..last {
                    let missing = missing_in(chunks, index);
                    if missing == 0 {
                        continue;
                    }
                    let chunk = match chunks.get(&index) {
                        Some(chunk) => *chunk,
                        None => Chunk {
                            number: store.take_chunk()?,
                            ..Chunk::default()
                        },
                    };
                    chunks.insert(
                        index,
                        Chunk {
                            number: chunk.number,
                            pages: chunk.pages | missing,
                            unwritten: chunk.unwritten | missing,
                        },
                    );
                }
            }
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
        self.recharge(store);
        Ok(())
    }

    /// `FALLOC_FL_PUNCH_HOLE`, and the data part of `FALLOC_FL_ZERO_RANGE`.
    pub fn punch(&mut self, store: &Store, offset: u64, len: u64) -> Result<(), Errno> {
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= SIZE_MAX)
            .ok_or(Errno::EFBIG)?;
        match &mut self.form {
            Form::Inline(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let stop = usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len());
                bytes[start..stop].fill(0);
                if stop == bytes.len() && start < stop && end >= self.size {
                    // A hole at the end need not be kept.
                    bytes.truncate(start);
                    let pages = (start as u64).div_ceil(PAGE);
                    store.uncharge(self.charged.saturating_sub(pages));
                    self.charged = pages;
                } else if stop - start >= PAGE as usize {
                    // A hole in the middle: only the other form can leave pages out.
                    self.make_chunks(store)?;
                    return self.punch(store, offset, len);
                }
            }
            Form::Chunks(_) => {
                let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
                if first > last {
                    return self.zero_part_of_page(store, offset, end);
                }
                self.zero_part_of_page(store, offset, first)?;
                self.zero_part_of_page(store, last, end)?;
                self.drop_pages(store, first, last)?;
            }
            Form::Own(file) => file.punch(offset, len)?,
        }
        self.recharge(store);
        Ok(())
    }

    /// `SEEK_DATA` (`data`) and `SEEK_HOLE`.
    pub fn seek_extent(&self, offset: u64, data: bool) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::ENXIO);
        }
        match &self.form {
            Form::Inline(bytes) => {
                let end = (bytes.len() as u64).next_multiple_of(PAGE).min(self.size);
                match (data, offset < end) {
                    (true, true) => Ok(offset),
                    (true, false) => Err(Errno::ENXIO),
                    (false, true) => Ok(end),
                    (false, false) => Ok(offset),
                }
            }
            Form::Own(file) => file.seek_extent(offset, data),
            Form::Chunks(chunks) => {
                let has = |at: u64| {
                    chunks
                        .get(&(at / CHUNK))
                        .is_some_and(|chunk| chunk.data() & page_mask(at % CHUNK, 1) != 0)
                };
                if has(offset) == data {
                    return Ok(offset);
                }
                let mut at = offset / PAGE * PAGE + PAGE;
                while at < self.size {
                    if has(at) == data {
                        return Ok(at);
                    }
                    // Over a hole of whole chunks to the next one that there is.
                    at = match chunks.range(at / CHUNK..).next() {
                        Some((&index, _)) if index > at / CHUNK && data => index * CHUNK,
                        None if data => return Err(Errno::ENXIO),
                        _ => at + PAGE,
                    };
                }
                if data { Err(Errno::ENXIO) } else { Ok(self.size) }
            }
        }
    }
}

/// How many pages of a range, from and to a page's beginning, have no data.
pub(super) fn holes(file: &MemoryFile, start: u64, end: u64) -> Result<u64, Errno> {
    let (mut at, mut data) = (start, 0);
    while at < end {
        let from = match file.seek_extent(at, true) {
            Ok(from) => from,
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno),
        };
        if from >= end {
            break;
        }
        at = file.seek_extent(from, false)?.min(end);
        data += at.div_ceil(PAGE) - from / PAGE;
    }
    Ok(((end - start) / PAGE).saturating_sub(data))
}
