//! Ranges of pages.

/// So many ranges are kept apart.
const RANGES_MAX: usize = 256;

/// Half-open ranges of pages, in order and apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    all: Vec<(u64, u64)>,
}

impl Ranges {
    /// Adds a range. Where there are too many the closest become one: what is between counts too.
    pub fn add_at_least(&mut self, first: u64, last: u64) {
        self.insert(first, last);
        if self.all.len() > RANGES_MAX {
            let gaps = self.all.windows(2).map(|pair| pair[1].0 - pair[0].1);
            if let Some((at, _)) = gaps.enumerate().min_by_key(|&(_, gap)| gap) {
                let (_, end) = self.all.remove(at + 1);
                self.all[at].1 = end;
            }
        }
    }

    /// Adds a range. Where there are too many the smallest is forgotten.
    pub fn add_at_most(&mut self, first: u64, last: u64) {
        self.insert(first, last);
        if self.all.len() > RANGES_MAX {
            let sizes = self.all.iter().map(|&(start, end)| end - start);
            if let Some((at, _)) = sizes.enumerate().min_by_key(|&(_, size)| size) {
                self.all.remove(at);
            }
        }
    }

    fn insert(&mut self, first: u64, last: u64) {
        if first >= last {
            return;
        }
        let from = self.all.partition_point(|&(_, end)| end < first);
        let to = self.all.partition_point(|&(start, _)| start <= last);
        let touched = &self.all[from..to];
        let start = touched.first().map_or(first, |&(start, _)| start.min(first));
        let end = touched.last().map_or(last, |&(_, end)| end.max(last));
        self.all.splice(from..to, [(start, end)]);
    }

    /// Takes a range off.
    pub fn remove(&mut self, first: u64, last: u64) {
        if self.all.is_empty() || first >= last {
            return;
        }
        let parts = self.all.iter().flat_map(|&(start, end)| {
            let below = (start, end.min(first));
            let above = (start.max(last), end);
            [below, above].into_iter().filter(|(start, end)| start < end)
        });
        self.all = parts.collect();
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
        let from = self.all.partition_point(|&(_, end)| end <= first);
        for &(start, end) in &self.all[from..] {
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

    /// The same of several ranges, in order.
    pub fn missing_of(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let missing = ranges.iter().flat_map(|&(first, last)| self.missing(first, last));
        missing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut ranges = Ranges::default();
        for (first, last) in [(10, 12), (20, 30), (12, 14), (5, 5), (25, 40), (0, 1)] {
            ranges.add_at_least(first, last);
        }
        assert_eq!(ranges.all, [(0, 1), (10, 14), (20, 40)]);
        assert_eq!(ranges.missing(0, 25), [(1, 10), (14, 20)]);
        assert_eq!(ranges.missing(39, 50), [(40, 50)]);
        assert_eq!(ranges.missing(20, 40), []);
        assert_eq!((ranges.within(0, 100), ranges.within(11, 21)), (25, 4));
        ranges.add_at_least(0, 100);
        assert_eq!(ranges.all, [(0, 100)]);
    }

    #[test]
    fn too_many_ranges_become_fewer() {
        let mut ranges = Ranges::default();
        (0..10_000).for_each(|i| ranges.add_at_least(i * 10, i * 10 + 1));
        assert!(ranges.all.len() <= RANGES_MAX);
        assert_eq!(ranges.missing(0, 1), []);
        assert!(ranges.all.is_sorted() && ranges.within(0, u64::MAX) >= 10_000);
    }

    #[test]
    fn ranges_are_joined_cut_and_taken_off() {
        let mut reserved = Ranges::default();
        reserved.add_at_most(10, 20);
        reserved.add_at_most(20, 25);
        reserved.add_at_most(30, 40);
        assert_eq!(reserved.all, [(10, 25), (30, 40)]);
        reserved.remove(15, 32);
        assert_eq!(reserved.all, [(10, 15), (32, 40)]);
        assert_eq!(reserved.missing_of(&[(0, 12), (14, 50)]), [(0, 10), (15, 32), (40, 50)]);
        reserved.remove(0, u64::MAX);
        assert_eq!(reserved.missing(3, 4), [(3, 4)]);
    }

    #[test]
    fn too_many_are_forgotten_not_joined() {
        let mut reserved = Ranges::default();
        for at in 0..1000 {
            reserved.add_at_most(at * 10, at * 10 + 1 + at % 3);
        }
        assert_eq!(reserved.all.len(), RANGES_MAX);
        assert!(
            reserved
                .all
                .iter()
                .all(|&(start, end)| start % 10 == 0 && end - start <= 3)
        );
    }
}
