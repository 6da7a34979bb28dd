//! Counting what a guest's operations add to a host file.
//!
//! What counts is the pages that the host says the file has, after an operation and before it: so only what guests add is
//! counted, and what they free of it given back, never below nothing; what was there before is nobody's. Operations on
//! one file take turns. Before each, as many pages are charged as it can add; a write near the limit asks where the holes
//! are, and is cut short behind the last page that may be had.
//!
//! Stores to a mapping are not seen. When a descriptor that can be written goes to an address space, all holes of the file
//! are charged (`promised`), wherever it is mapped: the guest's process can map it anywhere, and its mapping can grow.
//! What comes to be in them afterwards was charged then. They count until no address space that got a descriptor is left.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use sentry_abi::{Errno, PAGE_SIZE as PAGE};
use sentry_host::{files, memory_file, stdio};

use super::file;
use super::ledger::Use;
use crate::ranges::Ranges;

/// With so many pages left nobody asks how many a write needs exactly: more than all writes at one moment.
const AMPLE: u64 = 8192;
/// So many holes are looked at; what is behind them counts as one.
const HOLES_MAX: usize = 4096;

/// What is known of the content of a host file that guests change.
#[derive(Debug, Default)]
pub(super) struct Extent {
    /// An address space may store to it.
    mapped: bool,
    /// Pages charged that are holes, for that reason.
    promised: u64,
    /// Pages that it had at the end of the last operation. Looked at if it is mapped.
    seen: u64,
    /// Holes that guests have had allocated (fallocate(2)) without writing them. There may be more.
    reserved: Ranges,
}

/// What a file has at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Pages allocated.
    pub pages: u64,
    /// Bytes.
    pub size: u64,
}

impl Look {
    fn end(self) -> u64 {
        self.size.div_ceil(PAGE)
    }
}

/// Pages for blocks of 512 bytes.
pub(super) fn pages_of(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE / 512)
}

fn look(fd: BorrowedFd<'_>) -> Result<Look, Errno> {
    let stat = file::stat(fd)?;
    Ok(Look {
        pages: pages_of(stat.blocks),
        size: stat.size,
    })
}

fn count(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(first, last)| last - first).sum()
}

/// Ranges of pages in which a file of this size has holes; where it cannot say, all is one.
fn holes(fd: BorrowedFd<'_>, first: u64, last: u64, size: u64) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    let last = last.min(size.div_ceil(PAGE));
    let end = last.saturating_mul(PAGE);
    let mut at = first.saturating_mul(PAGE);
    while at < end {
        let done = all.last().map_or(first, |&(_, done)| done);
        let hole = match memory_file::seek_extent(fd, at, false) {
            // Behind the end everything is a hole.
            Ok(hole) if hole >= size => break,
            Ok(hole) => hole.max(at),
            Err(_) => at,
        };
        if hole >= end {
            break;
        }
        let data = match memory_file::seek_extent(fd, hole, true) {
            Ok(data) if data > hole && all.len() < HOLES_MAX => data.min(end),
            _ => end,
        };
        let (from, to) = ((hole / PAGE).max(done), data.div_ceil(PAGE).min(last));
        if from < to {
            all.push((from, to));
        }
        at = data;
    }
    all
}

impl Use {
    /// What counts of a look.
    fn measure(&self, look: Look) -> u64 {
        if self.account.by_size {
            look.pages.max(look.end())
        } else {
            look.pages
        }
    }

    /// Whether all holes count: stores to them are not seen, or the host does not tell of them.
    fn counts_holes(&self, extent: &Extent) -> bool {
        extent.mapped || self.account.by_size
    }

    /// Notes what an operation has changed: `own` pages more or less, without those that were promised before; so many are
    /// promised now. `charged` pages were charged for it.
    fn settle(&self, extent: &mut Extent, after: Look, own: i128, promised: u64, charged: u64) {
        let old = self.account.charged.load(Ordering::SeqCst);
        let most = after.pages.max(after.end());
        let own = i128::from(old.saturating_sub(extent.promised)) + own;
        // No more than there is.
        let own = u64::try_from(own.clamp(0, i128::from(most))).unwrap_or(most);
        let new = own.saturating_add(promised);
        let known = old.saturating_add(charged);
        let budget = &self.ledger.budget;
        if new > known {
            budget.charge_disk_forced(new - known);
        } else {
            budget.uncharge_disk(known - new);
        }
        self.account.charged.store(new, Ordering::SeqCst);
        extent.promised = promised;
        extent.seen = after.pages;
    }

    /// Notes what was stored through mappings since the last operation, and gives back what was promised if there are
    /// none any more.
    fn catch_up(&self, extent: &mut Extent, now: Look) {
        if !extent.mapped {
            return;
        }
        let grown = now.pages.saturating_sub(extent.seen);
        let promised = if self.account.mappings.load(Ordering::SeqCst) == 0 {
            extent.mapped = false;
            0
        } else {
            extent.promised.saturating_sub(grown)
        };
        self.settle(extent, now, grown.into(), promised, 0);
    }

    /// Pages that have to be charged before a range can be filled.
    fn missing(&self, extent: &Extent, fd: BorrowedFd<'_>, now: Look, first: u64, last: u64) -> Vec<(u64, u64)> {
        let end = now.end();
        let mut missing = Vec::new();
        let mut behind = first.max(end);
        if self.counts_holes(extent) {
            // Those within are charged already. One comes to be between the old end and the range.
            behind = end;
        } else {
            missing = holes(fd, first, last, now.size);
        }
        if last > behind {
            missing.push((behind, last));
        }
        extent.reserved.missing_of(&missing)
    }

    /// Charges what a write can add: how many bytes may be written, and how many pages were charged.
    fn charge_write(
        &self,
        extent: &Extent,
        fd: BorrowedFd<'_>,
        now: Look,
        offset: u64,
        len: usize,
    ) -> Result<(usize, u64), Errno> {
        let budget = &self.ledger.budget;
        let (first, last) = (offset / PAGE, offset.saturating_add(len as u64).div_ceil(PAGE));
        let most = match self.counts_holes(extent) {
            true => last - first.min(now.end()),
            false => last - first,
        };
        if budget.free_disk_pages() >= AMPLE.saturating_add(most) && budget.charge_disk(most).is_ok() {
            return Ok((len, most));
        }
        let missing = self.missing(extent, fd, now, first, last);
        let wanted = count(&missing);
        if wanted == 0 || budget.charge_disk(wanted).is_ok() {
            return Ok((len, wanted));
        }
        let mut granted = 0;
        for (start, end) in missing {
            for page in start..end {
                if budget.charge_disk(1).is_ok() {
                    granted += 1;
                    continue;
                }
                return match usize::try_from(page.saturating_mul(PAGE).saturating_sub(offset)) {
                    Ok(room @ 1..) if room < len => Ok((room, granted)),
                    _ => {
                        budget.uncharge_disk(granted);
                        Err(Errno::ENOSPC)
                    }
                };
            }
        }
        // Somebody has given some back meanwhile.
        Ok((len, granted))
    }

    /// Writes at an offset, or to the end; answers how much, and the offset behind it. `ENOSPC` if there is no room.
    pub fn write(&self, fd: BorrowedFd<'_>, buf: &[u8], at: Option<u64>) -> Result<(usize, u64), Errno> {
        let mut extent = self.account.extent.lock()?;
        let before = look(fd)?;
        self.catch_up(&mut extent, before);
        let offset = at.unwrap_or(before.size);
        let (len, charged) = self.charge_write(&extent, fd, before, offset, buf.len())?;
        let buf = &buf[..len];
        let result = match at {
            Some(offset) => stdio::pwrite(fd, buf, offset),
            None => files::append(fd, buf).map_err(Errno::from),
        };
        let after = look(fd).unwrap_or(before);
        let written = *result.as_ref().unwrap_or(&0);
        let behind = match at {
            Some(offset) => offset.saturating_add(written as u64),
            None => after.size,
        };
        // What was written behind the old end is there now, whatever a host that allocates late says.
        let from = (offset / PAGE).max(before.end());
        let to = offset.saturating_add(written as u64).div_ceil(PAGE).max(from);
        let added = count(&extent.reserved.missing(from, to));
        let grown = self.measure(after).saturating_sub(self.measure(before)).max(added);
        let promised = if !extent.mapped || self.account.by_size {
            0
        } else {
            let gap = if written > 0 {
                count(&extent.reserved.missing(before.end(), from))
            } else {
                0
            };
            extent.promised.saturating_sub(grown - added).saturating_add(gap)
        };
        self.settle(&mut extent, after, grown.into(), promised, charged);
        Ok((result?, behind))
    }

    /// Holes that stores to a mapping can fill.
    fn promise(&self, extent: &Extent, fd: BorrowedFd<'_>, now: Look) -> u64 {
        if !extent.mapped || self.account.by_size {
            return 0;
        }
        count(&extent.reserved.missing_of(&holes(fd, 0, now.end(), now.size)))
    }

    fn change(&self, before: Look, after: Look) -> i128 {
        i128::from(self.measure(after)) - i128::from(self.measure(before))
    }

    /// fallocate(2). `ENOSPC` if what it adds finds no room.
    pub fn allocate(&self, fd: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
        const SHRINKS: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE;
        const MOVES: i32 = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
        const KNOWN: i32 = SHRINKS | MOVES | libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE;
        // Of blocks that files share nobody says how many there are.
        if mode & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let end = offset
            .checked_add(len)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or(Errno::EFBIG)?;
        let (first, last) = (offset / PAGE, end.div_ceil(PAGE));
        let mut extent = self.account.extent.lock()?;
        let before = look(fd)?;
        self.catch_up(&mut extent, before);
        let keeps = mode & (SHRINKS | libc::FALLOC_FL_KEEP_SIZE) == libc::FALLOC_FL_KEEP_SIZE;
        if keeps && self.account.by_size && end > before.size {
            // It would not be seen.
            return Err(Errno::EOPNOTSUPP);
        }
        let wanted = match mode {
            _ if mode & SHRINKS != 0 => 0,
            _ if mode & libc::FALLOC_FL_INSERT_RANGE != 0 => {
                if self.counts_holes(&extent) {
                    len.div_ceil(PAGE)
                } else {
                    0
                }
            }
            _ => count(&self.missing(&extent, fd, before, first, last)),
        };
        self.ledger.budget.charge_disk(wanted)?;
        let result = files::allocate(fd, mode, offset as i64, len as i64);
        let after = look(fd).unwrap_or(before);
        if mode & MOVES != 0 {
            extent.reserved = Ranges::default();
        } else if mode & SHRINKS != 0 {
            extent.reserved.remove(first, last);
        } else if result.is_ok() {
            extent.reserved.add_at_most(first, last);
        }
        let promised = self.promise(&extent, fd, after);
        let own = self.change(before, after);
        self.settle(&mut extent, after, own, promised, wanted);
        Ok(result?)
    }

    /// Gives the file another size by `act`. `ENOSPC` if holes count and there is no room. `look` says what the file has,
    /// `fd` is there if it is open.
    fn resize_by<T>(
        &self,
        size: u64,
        fd: Option<BorrowedFd<'_>>,
        look: impl Fn() -> Result<Look, Errno>,
        act: impl FnOnce() -> Result<(T, Option<Look>), Errno>,
    ) -> Result<T, Errno> {
        let mut extent = self.account.extent.lock()?;
        let before = look()?;
        self.catch_up(&mut extent, before);
        let new = size.div_ceil(PAGE);
        let wanted = match self.counts_holes(&extent) {
            true => new.saturating_sub(before.end()),
            false => 0,
        };
        self.ledger.budget.charge_disk(wanted)?;
        let result = act();
        let told = result.as_ref().ok().and_then(|(_, told)| *told);
        let after = told.map_or_else(look, Ok).unwrap_or(before);
        extent.reserved.remove(before.end().min(new), u64::MAX);
        let promised = match fd {
            Some(fd) => self.promise(&extent, fd, after),
            None if !extent.mapped => 0,
            // Which holes it has nobody says.
            None => extent.promised.saturating_add(wanted).min(after.end()),
        };
        let own = self.change(before, after);
        self.settle(&mut extent, after, own, promised, wanted);
        result.map(|(value, _)| value)
    }

    /// ftruncate(2).
    pub fn resize(&self, fd: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
        let len = i64::try_from(size).map_err(|_| Errno::EINVAL)?;
        self.resize_by(size, Some(fd), || look(fd), || Ok((files::truncate(fd, len)?, None)))
    }

    /// truncate(2) of a file that is not open here: `ask` asks the gofer for the attributes, `act` has it do it.
    pub fn resize_unopened<T>(
        &self,
        size: u64,
        ask: impl Fn() -> Result<Look, Errno>,
        act: impl FnOnce() -> Result<(T, Option<Look>), Errno>,
    ) -> Result<T, Errno> {
        self.resize_by(size, None, ask, act)
    }

    /// A descriptor that can be written is about to go to an address space. `ENOSPC` if the holes find no room.
    pub fn map(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut extent = self.account.extent.lock()?;
        let now = look(fd)?;
        self.catch_up(&mut extent, now);
        if extent.mapped {
            return Ok(());
        }
        extent.mapped = true;
        let promised = self.promise(&extent, fd, now);
        if let Err(errno) = self.ledger.budget.charge_disk(promised) {
            extent.mapped = false;
            return Err(errno);
        }
        self.settle(&mut extent, now, 0, promised, promised);
        Ok(())
    }

    /// One of those that have the file open closes it.
    pub fn closing(&self, fd: BorrowedFd<'_>) {
        if !self.counts() {
            return;
        }
        let Ok(stat) = file::stat(fd) else { return };
        if stat.nlink == 0 {
            self.nameless();
        }
        if let Some(mut extent) = self.account.extent.try_lock() {
            let now = Look {
                pages: pages_of(stat.blocks),
                size: stat.size,
            };
            self.catch_up(&mut extent, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::super::ledger::{Ledger, Mapped};
    use super::*;
    use crate::budget::Budget;

    /// A file, its account, and how many pages count.
    fn file(limit: u64, by_size: bool) -> (File, Use, impl Fn() -> u64) {
        let file = tempfile::tempfile().expect("a file");
        let budget = Arc::new(Budget::new(Some(limit * PAGE), None, None));
        let ledger = Ledger::new(budget.clone(), true, false);
        let identity = (&super::file::stat(file.as_fd()).expect("stat")).into();
        (file, ledger.used(identity, by_size), move || budget.used_disk() / PAGE)
    }

    fn page(count: u64) -> Vec<u8> {
        vec![1; (count * PAGE) as usize]
    }

    #[test]
    fn a_write_is_cut_short_behind_the_last_page_that_may_be_had() {
        let (file, used, count) = file(4, false);
        let fd = file.as_fd();
        assert_eq!(used.write(fd, &page(1), Some(3 * PAGE)), Ok((PAGE as usize, 4 * PAGE)));
        // Pages 0, 1 and 2 are to be had; page 3 is there.
        assert_eq!(
            used.write(fd, &page(5), Some(10)),
            Ok((4 * PAGE as usize - 10, 4 * PAGE))
        );
        assert_eq!((count(), used.write(fd, &page(1), None)), (4, Err(Errno::ENOSPC)));
        used.resize(fd, 2 * PAGE).expect("smaller");
        assert_eq!(count(), 2);
        assert_eq!(used.write(fd, &[1], None), Ok((1, 2 * PAGE + 1)));
        assert_eq!(count(), 3);
    }

    #[test]
    fn what_counts_by_its_size_counts_with_its_holes() {
        let (file, used, count) = file(8, true);
        let fd = file.as_fd();
        used.resize(fd, 4 * PAGE).expect("there is room");
        assert_eq!((count(), used.resize(fd, 9 * PAGE)), (4, Err(Errno::ENOSPC)));
        assert_eq!(used.write(fd, &[1], Some(PAGE)), Ok((1, PAGE + 1)));
        assert_eq!((count(), used.write(fd, &[1], Some(8 * PAGE))), (4, Err(Errno::ENOSPC)));
        assert_eq!(used.write(fd, &[1], Some(7 * PAGE)), Ok((1, 7 * PAGE + 1)));
        assert_eq!(count(), 8);
        assert_eq!(
            used.allocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 9 * PAGE),
            Err(Errno::EOPNOTSUPP)
        );
        used.resize(fd, 0).expect("smaller");
        assert_eq!(count(), 0);
    }

    #[test]
    fn holes_of_a_mapped_file_count_until_nobody_can_store_to_them() {
        let (file, used, count) = file(16, false);
        let fd = file.as_fd();
        used.resize(fd, 20 * PAGE).expect("holes are free");
        assert_eq!((used.map(fd), count()), (Err(Errno::ENOSPC), 0));
        used.resize(fd, 8 * PAGE).expect("smaller");
        let mapping = Mapped::new(used.another());
        used.map(fd).expect("there is room");
        assert_eq!(count(), 8);
        // Stored to, and written: the same pages.
        std::os::unix::fs::FileExt::write_at(&file, &page(2), 0).expect("write");
        used.write(fd, &page(2), Some(PAGE)).expect("write");
        assert_eq!(count(), 8);
        // The pages between count too.
        assert_eq!(used.write(fd, &[1], Some(16 * PAGE)), Err(Errno::ENOSPC));
        used.write(fd, &[1], Some(11 * PAGE)).expect("there is room");
        assert_eq!(count(), 12);
        used.allocate(fd, 0, 9 * PAGE, 2 * PAGE).expect("they count already");
        assert_eq!(count(), 12);
        used.allocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, PAGE)
            .expect("a hole");
        assert_eq!(count(), 12);
        assert_eq!(used.resize(fd, 17 * PAGE), Err(Errno::ENOSPC));
        drop(mapping);
        // Pages 1, 2, 9, 10 and 11.
        used.closing(fd);
        assert_eq!(count(), 5);
        used.nameless();
        drop(used);
        assert_eq!(count(), 0);
    }
}
