//! Which pages of a file are mapped.

use sentry_abi::Errno;
use sentry_host::memory_file::MemoryFile;

use super::store::PAGE;

/// So many ranges are kept apart; of more, the closest become one.
const RANGES_MAX: usize = 256;

/// Half-open ranges of pages, in order and apart from each other.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    all: Vec<(u64, u64)>,
}

impl Ranges {
    /// Adds a range.
    pub fn add(&mut self, first: u64, last: u64) {
        if first >= last {
            return;
        }
        let from = self.all.partition_point(|&(_, end)| end < first);
        let to = self.all.partition_point(|&(start, _)| start <= last);
        let touched = &self.all[from..to];
        let start = touched.first().map_or(first, |&(start, _)| start.min(first));
        let end = touched.last().map_or(last, |&(_, end)| end.max(last));
        self.all.splice(from..to, [(start, end)]);
        if self.all.len() > RANGES_MAX {
            let gaps = self.all.windows(2).map(|pair| pair[1].0 - pair[0].1);
            if let Some((at, _)) = gaps.enumerate().min_by_key(|&(_, gap)| gap) {
                let (_, end) = self.all.remove(at + 1);
                self.all[at].1 = end;
            }
        }
    }

    /// How many of these pages are in it.
    pub fn within(&self, first: u64, last: u64) -> u64 {
        self.all
            .iter()
            .map(|&(start, end)| end.min(last).saturating_sub(start.max(first)))
            .sum()
    }

    /// The parts of a range that are not in it.
    pub fn missing(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let (mut missing, mut at) = (Vec::new(), first);
        for &(start, end) in &self.all {
            if start >= last {
                break;
            }
            if start > at {
                missing.push((at, start));
            }
            at = at.max(end);
        }
        if at < last {
            missing.push((at, last));
        }
        missing
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut ranges = Ranges::default();
        for (first, last) in [(10, 12), (20, 30), (12, 14), (5, 5), (25, 40), (0, 1)] {
            ranges.add(first, last);
        }
        assert_eq!(ranges.all, [(0, 1), (10, 14), (20, 40)]);
        assert_eq!(ranges.missing(0, 25), [(1, 10), (14, 20)]);
        assert_eq!(ranges.missing(39, 50), [(40, 50)]);
        assert_eq!(ranges.missing(20, 40), []);
        assert_eq!((ranges.within(0, 100), ranges.within(11, 21)), (25, 4));
        ranges.add(0, 100);
        assert_eq!(ranges.all, [(0, 100)]);
    }

    #[test]
    fn too_many_ranges_become_fewer() {
        let mut ranges = Ranges::default();
        (0..10_000).for_each(|i| ranges.add(i * 10, i * 10 + 1));
        assert!(ranges.all.len() <= RANGES_MAX);
        assert_eq!(ranges.missing(0, 1), []);
        assert!(ranges.all.is_sorted() && ranges.within(0, u64::MAX) >= 10_000);
    }
}
