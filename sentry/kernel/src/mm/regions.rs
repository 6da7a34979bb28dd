//! A sorted set of memory regions that never overlap.

use std::collections::BTreeMap;
use std::sync::Arc;

use sentry_abi::PAGE_SIZE;
use sentry_vfs::file::File;

/// The protection bits that are kept.
pub const PROT_MASK: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// The most regions that are remembered of one process (`vm.max_map_count`). The stub's log is a claim of the
/// guest: beyond this number it is not believed.
pub const MAX_REGIONS: usize = 65530;

/// What a region holds.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Backing {
    Anonymous,
    File(Arc<File>),
    /// Shared anonymous memory: a memfd of ours.
    SharedAnonymous(Arc<File>),
    Heap,
    Stack,
    Vdso,
    /// The table behind our vDSO.
    Vvar,
}

/// A range of equal mappings.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    /// `PROT_*`.
    pub prot: i32,
    pub shared: bool,
    pub locked: bool,
    pub backing: Backing,
    /// Where in the file `start` is.
    pub offset: u64,
}

impl Region {
    /// A private region of `len` bytes, rounded up to pages.
    pub fn new(addr: u64, len: u64, prot: i32, backing: Backing) -> Region {
        let start = addr & !(PAGE_SIZE - 1);
        let end = addr
            .saturating_add(len)
            .checked_next_multiple_of(PAGE_SIZE)
            .unwrap_or(start);
        Region {
            start,
            end,
            prot: prot & PROT_MASK,
            shared: false,
            locked: false,
            backing,
            offset: 0,
        }
    }

    /// The same region at an offset of its file.
    #[must_use]
    pub fn at_offset(self, offset: u64) -> Region {
        Region { offset, ..self }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// False if mprotect(2) refuses a protection: a shared mapping of a file that is not open for writing.
    pub fn allows(&self, prot: i32) -> bool {
        match &self.backing {
            Backing::File(file) => !self.shared || prot & libc::PROT_WRITE == 0 || file.writable(),
            _ => true,
        }
    }

    /// The part of it within a range.
    fn part(&self, start: u64, end: u64) -> Option<Region> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        let offset = self.offset.wrapping_add(start.wrapping_sub(self.start));
        (start < end).then(|| Region {
            start,
            end,
            offset,
            ..self.clone()
        })
    }

    /// True if `next` goes on where this one ends, with the same properties.
    fn joins(&self, next: &Region) -> bool {
        let same = match (&self.backing, &next.backing) {
            (Backing::Anonymous, Backing::Anonymous) => !self.shared,
            (Backing::Heap, Backing::Heap) | (Backing::Stack, Backing::Stack) => true,
            (Backing::File(a), Backing::File(b)) => {
                Arc::ptr_eq(a, b) && self.offset.wrapping_add(self.len()) == next.offset
            }
            _ => false,
        };
        let flags = |r: &Region| (r.prot, r.shared, r.locked);
        same && self.end == next.start && flags(self) == flags(next)
    }
}

/// Regions by their start.
#[derive(Clone, Default)]
pub struct Regions {
    map: BTreeMap<u64, Region>,
    total: u64,
    /// What regions held that are gone.
    gone: Vec<Backing>,
}

impl Regions {
    /// All regions, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.map.values()
    }

    /// Bytes in all regions.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// What regions held that are gone since this was asked last: files, which take locks when they are closed.
    pub fn take_gone(&mut self) -> Vec<Backing> {
        std::mem::take(&mut self.gone)
    }

    /// Adds a region in place of whatever was there, and joins it with equal neighbours.
    pub fn insert(&mut self, region: Region) {
        if region.is_empty() {
            return;
        }
        self.remove(region.start, region.len());
        if self.map.len() >= MAX_REGIONS {
            self.note_gone(region);
            return;
        }
        let start = region.start;
        self.put(region);
        self.join_at(start);
    }

    fn note_gone(&mut self, region: Region) {
        if matches!(region.backing, Backing::File(_) | Backing::SharedAnonymous(_)) {
            self.gone.push(region.backing);
        }
    }

    fn put(&mut self, region: Region) {
        self.total = self.total.saturating_add(region.len());
        self.map.insert(region.start, region);
    }

    fn take(&mut self, start: u64) -> Option<Region> {
        let region = self.map.remove(&start)?;
        self.total = self.total.saturating_sub(region.len());
        Some(region)
    }

    /// Joins the region at `start` with its neighbours.
    fn join_at(&mut self, start: u64) {
        let mut start = start;
        let before = self.map.range(..start).next_back().map(|(&s, _)| s);
        if let Some(before) = before.filter(|b| self.can_join(*b, start)) {
            self.join(before, start);
            start = before;
        }
        let Some(end) = self.map.get(&start).map(|r| r.end) else {
            return;
        };
        if self.can_join(start, end) {
            self.join(start, end);
        }
    }

    fn can_join(&self, first: u64, second: u64) -> bool {
        matches!((self.map.get(&first), self.map.get(&second)), (Some(a), Some(b)) if a.joins(b))
    }

    fn join(&mut self, first: u64, second: u64) {
        if let Some(second) = self.map.remove(&second)
            && let Some(first) = self.map.get_mut(&first)
        {
            first.end = second.end;
        }
    }

    /// The starts of the regions that touch a range.
    fn touching(&self, start: u64, end: u64) -> Vec<u64> {
        let before = self.map.range(..start).next_back().filter(|(_, r)| r.end > start);
        before
            .into_iter()
            .chain(self.map.range(start..end.max(start)))
            .map(|(&s, _)| s)
            .collect()
    }

    /// Removes everything in a range.
    pub fn remove(&mut self, addr: u64, len: u64) {
        let start = addr & !(PAGE_SIZE - 1);
        let end = addr
            .saturating_add(len)
            .checked_next_multiple_of(PAGE_SIZE)
            .unwrap_or(u64::MAX);
        for at in self.touching(start, end) {
            let Some(region) = self.take(at) else { continue };
            if let Some(head) = region.part(0, start) {
                self.put(head);
            }
            if let Some(tail) = region.part(end, u64::MAX) {
                self.put(tail);
            }
            self.note_gone(region);
        }
    }

    /// Changes all regions in a range, splitting those that stick out. A guest chooses how many there are: they are
    /// changed where they stand.
    pub fn change(&mut self, addr: u64, len: u64, mut change: impl FnMut(&mut Region)) {
        let start = addr & !(PAGE_SIZE - 1);
        let end = addr
            .saturating_add(len)
            .checked_next_multiple_of(PAGE_SIZE)
            .unwrap_or(u64::MAX);
        self.split_at(start);
        self.split_at(end);
        let mut last: Option<u64> = None;
        if start < end {
            for (&at, region) in self.map.range_mut(start..end) {
                change(region);
                last = Some(at);
            }
        }
        if let Some(last) = last {
            self.join_range(start, last);
        }
    }

    /// Makes `at` a border between regions, if it is inside of one.
    fn split_at(&mut self, at: u64) {
        let Some(region) = self.map.range_mut(..at).next_back().map(|(_, region)| region) else {
            return;
        };
        if let (Some(head), Some(tail)) = (region.part(0, at), region.part(at, u64::MAX)) {
            *region = head;
            self.map.insert(tail.start, tail);
        }
    }

    /// Joins what has become equal from the region before `start` to the one behind `last`.
    fn join_range(&mut self, start: u64, last: u64) {
        let first = self.map.range(..start).next_back().map_or(start, |(&at, _)| at);
        let behind = self.map.get(&last).map_or(last, |region| region.end);
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        let mut before: Option<&Region> = None;
        for region in self.map.range(first..=behind).map(|(_, region)| region) {
            if let Some(before) = before.filter(|before| before.joins(region)) {
                match runs.last_mut().filter(|run| run.2 == before.end) {
                    Some(run) => run.2 = region.end,
                    None => runs.push((before.start, region.start, region.end)),
                }
            }
            before = Some(region);
        }
        for (head, second, end) in runs {
            let tails: Vec<u64> = self.map.range(second..end).map(|(&at, _)| at).collect();
            for at in tails {
                self.map.remove(&at);
            }
            if let Some(region) = self.map.get_mut(&head) {
                region.end = end;
            }
        }
    }

    /// Moves, grows or shrinks what is at `addr` (mremap(2)). An old length of 0 makes a second mapping. Several
    /// regions at once keep their distances, and what lies between their new places stays.
    pub fn remap(&mut self, addr: u64, old_len: u64, new_len: u64, new_addr: u64) {
        let rounded = |len: u64| len.checked_next_multiple_of(PAGE_SIZE);
        let (Some(old), Some(new)) = (rounded(old_len), rounded(new_len)) else {
            return;
        };
        let (addr, new_addr) = (addr & !(PAGE_SIZE - 1), new_addr & !(PAGE_SIZE - 1));
        let (Some(end), Some(_)) = (addr.checked_add(old), new_addr.checked_add(new)) else {
            return;
        };
        let parts = if old == 0 {
            let found = self.map.range(..=addr).next_back();
            let part = found.and_then(|(_, region)| region.part(addr, addr.saturating_add(new)));
            part.into_iter()
                .map(|part| Region {
                    end: addr.saturating_add(new),
                    ..part
                })
                .collect()
        } else {
            let kept = addr.saturating_add(old.min(new));
            let touching = self.touching(addr, kept).into_iter();
            let mut parts: Vec<Region> = touching.filter_map(|at| self.map.get(&at)?.part(addr, kept)).collect();
            self.remove(addr, old);
            if let Some(last) = parts.last_mut().filter(|last| new > old && last.end == end) {
                last.end = addr.saturating_add(new);
            }
            parts
        };
        for mut region in parts {
            if matches!(region.backing, Backing::Heap) && new_addr != addr {
                region.backing = Backing::Anonymous;
            }
            let len = region.len();
            region.start = new_addr.saturating_add(region.start - addr);
            region.end = region.start.saturating_add(len);
            self.insert(region);
        }
    }

    /// Removes the heap, before it is recorded anew.
    pub fn remove_heap(&mut self) {
        let heap: Vec<u64> = self
            .map
            .iter()
            .filter(|(_, r)| matches!(r.backing, Backing::Heap))
            .map(|(&s, _)| s)
            .collect();
        for start in heap {
            self.take(start);
        }
    }

    /// Forgets all locks.
    pub fn unlock_all(&mut self) {
        if self.map.values().any(|region| region.locked) {
            self.change(0, u64::MAX, |region| region.locked = false);
        }
    }

    /// The start of a free range of `len` bytes within `low..high`, the highest there is.
    pub fn find_gap(&self, len: u64, low: u64, high: u64) -> Option<u64> {
        let mut top = high;
        for region in self.map.range(..high).rev().map(|(_, region)| region) {
            let free = top.saturating_sub(region.end.max(low));
            if free >= len {
                break;
            }
            top = top.min(region.start);
        }
        top.checked_sub(len).filter(|start| *start >= low)
    }

    /// True if all of a range is mapped.
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        self.reach(addr, len) >= len
    }

    /// How many of `len` bytes from `addr` on are mapped without a hole.
    pub fn reach(&self, addr: u64, len: u64) -> u64 {
        self.reach_where(addr, len, |_| true)
    }

    /// How many of `len` bytes from `addr` on are mapped without a hole, in regions of a kind.
    pub fn reach_where(&self, addr: u64, len: u64, kind: impl Fn(&Region) -> bool) -> u64 {
        let end = addr.saturating_add(len);
        let mut at = addr;
        let first = self.map.range(..=addr).next_back();
        let rest = self.map.range(addr.saturating_add(1)..end.max(addr.saturating_add(1)));
        for region in first.into_iter().chain(rest).map(|(_, region)| region) {
            if region.start > at || region.end <= at || !kind(region) {
                break;
            }
            at = region.end;
        }
        at.min(end) - addr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, pages: u64, prot: i32) -> Region {
        Region::new(start * PAGE_SIZE, pages * PAGE_SIZE, prot, Backing::Anonymous)
    }

    fn list(regions: &Regions) -> Vec<(u64, u64, i32)> {
        let out: Vec<_> = regions
            .iter()
            .map(|r| (r.start / PAGE_SIZE, r.end / PAGE_SIZE, r.prot))
            .collect();
        assert_eq!(regions.total(), regions.iter().map(Region::len).sum::<u64>());
        out
    }

    #[test]
    fn splits_and_joins() {
        let mut regions = Regions::default();
        regions.insert(region(10, 10, 3));
        regions.insert(region(20, 5, 3));
        assert_eq!(list(&regions), [(10, 25, 3)]);
        regions.change(12 * PAGE_SIZE, 2 * PAGE_SIZE, |r| r.prot = 1);
        assert_eq!(list(&regions), [(10, 12, 3), (12, 14, 1), (14, 25, 3)]);
        regions.change(12 * PAGE_SIZE, 2 * PAGE_SIZE, |r| r.prot = 3);
        assert_eq!(list(&regions), [(10, 25, 3)]);
        regions.remove(11 * PAGE_SIZE, 1);
        assert_eq!(list(&regions), [(10, 11, 3), (12, 25, 3)]);
        assert!(regions.covers(12 * PAGE_SIZE, 13 * PAGE_SIZE));
        assert!(!regions.covers(10 * PAGE_SIZE, 3 * PAGE_SIZE));
        regions.insert(region(0, 100, 0));
        assert_eq!(list(&regions), [(0, 100, 0)]);
        regions.remove(0, u64::MAX);
        assert_eq!(list(&regions), []);
    }

    #[test]
    fn remaps() {
        let mut regions = Regions::default();
        regions.insert(region(10, 10, 3));
        regions.remap(15 * PAGE_SIZE, 2 * PAGE_SIZE, 4 * PAGE_SIZE, 50 * PAGE_SIZE);
        assert_eq!(list(&regions), [(10, 15, 3), (17, 20, 3), (50, 54, 3)]);
        regions.remap(50 * PAGE_SIZE, 4 * PAGE_SIZE, PAGE_SIZE, 50 * PAGE_SIZE);
        assert_eq!(list(&regions), [(10, 15, 3), (17, 20, 3), (50, 51, 3)]);
        regions.remap(50 * PAGE_SIZE, 1, u64::MAX, u64::MAX - 5);
        assert_eq!(regions.map.len(), 3);
    }

    #[test]
    fn changes_join_in_runs() {
        let mut regions = Regions::default();
        for page in 10..20 {
            regions.insert(region(page, 1, (page % 2) as i32 + 1));
        }
        assert_eq!(list(&regions).len(), 10);
        regions.change(11 * PAGE_SIZE, 8 * PAGE_SIZE, |r| r.prot = 1);
        assert_eq!(list(&regions), [(10, 19, 1), (19, 20, 2)]);
        regions.change(14 * PAGE_SIZE, PAGE_SIZE, |r| r.locked = true);
        assert_eq!(list(&regions), [(10, 14, 1), (14, 15, 1), (15, 19, 1), (19, 20, 2)]);
        regions.change(0, u64::MAX, |r| (r.locked, r.prot) = (false, 3));
        assert_eq!(list(&regions), [(10, 20, 3)]);
    }

    #[test]
    fn gaps() {
        let mut regions = Regions::default();
        let gap = |regions: &Regions, pages| {
            regions
                .find_gap(pages * PAGE_SIZE, 0, 100 * PAGE_SIZE)
                .map(|a| a / PAGE_SIZE)
        };
        assert_eq!(gap(&regions, 10), Some(90));
        assert_eq!(gap(&regions, 101), None);
        regions.insert(region(80, 15, 3));
        assert_eq!(gap(&regions, 5), Some(95));
        assert_eq!(gap(&regions, 6), Some(74));
        regions.insert(region(2, 70, 3));
        assert_eq!(gap(&regions, 9), None);
        assert_eq!(gap(&regions, 8), Some(72));
    }

    #[test]
    fn agrees_with_a_list_of_pages() {
        const PAGES: usize = 40;
        let mut seed = 1u64;
        let mut random = move |bound: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let mut regions = Regions::default();
        let mut pages = [None; PAGES];
        for step in 0..20_000 {
            let start = random(PAGES as u64);
            let count = 1 + random(PAGES as u64 - start);
            let (addr, len) = (start * PAGE_SIZE, count * PAGE_SIZE);
            let range = start as usize..(start + count) as usize;
            match random(3) {
                0 => {
                    let prot = random(3) as i32;
                    regions.insert(Region::new(addr, len, prot, Backing::Anonymous));
                    pages[range].fill(Some(prot));
                }
                1 => {
                    regions.remove(addr, len);
                    pages[range].fill(None);
                }
                _ => {
                    let prot = random(3) as i32;
                    regions.change(addr, len, |region| region.prot = prot);
                    pages[range].iter_mut().flatten().for_each(|page| *page = prot);
                }
            }
            let mut seen = [None; PAGES];
            let mut before: Option<(u64, u64, i32)> = None;
            for (start, end, prot) in list(&regions) {
                seen[start as usize..end as usize].fill(Some(prot));
                assert!(
                    before.is_none_or(|(_, e, p)| e < start || p != prot),
                    "not joined at step {step}"
                );
                before = Some((start, end, prot));
            }
            assert_eq!(seen, pages, "step {step}");
        }
    }

    #[test]
    fn is_bounded_and_total() {
        let mut regions = Regions::default();
        for page in 0..MAX_REGIONS as u64 + 10 {
            regions.insert(region(page * 2, 1, 3));
        }
        assert_eq!(regions.map.len(), MAX_REGIONS);
        regions.insert(Region::new(u64::MAX, u64::MAX, 7, Backing::Anonymous));
        regions.change(u64::MAX - 1, 5, |r| r.prot = 0);
        regions.remove(5, u64::MAX);
    }
}
