//! Pages of a host file that guests have had allocated (fallocate(2)) without writing them: holes to `SEEK_HOLE`.

/// So many ranges are known; of more, the smallest is forgotten.
const RANGES_MAX: usize = 256;

/// Half-open ranges of pages, in order and apart from each other. What is in it is allocated; what is not may be.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    all: Vec<(u64, u64)>,
}

impl Reserved {
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
            let sizes = self.all.iter().map(|&(start, end)| end - start);
            if let Some((at, _)) = sizes.enumerate().min_by_key(|&(_, size)| size) {
                self.all.remove(at);
            }
        }
    }

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

    /// The parts of ranges, in order, that are not in it.
    pub fn missing(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        for &(first, last) in ranges {
            let mut at = first;
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
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_cut_and_taken_off() {
        let mut reserved = Reserved::default();
        reserved.add(10, 20);
        reserved.add(20, 25);
        reserved.add(30, 40);
        assert_eq!(reserved.all, [(10, 25), (30, 40)]);
        reserved.remove(15, 32);
        assert_eq!(reserved.all, [(10, 15), (32, 40)]);
        assert_eq!(reserved.missing(&[(0, 12), (14, 50)]), [(0, 10), (15, 32), (40, 50)]);
        reserved.remove(0, u64::MAX);
        assert_eq!(reserved.missing(&[(3, 4)]), [(3, 4)]);
    }

    #[test]
    fn too_many_are_forgotten_not_joined() {
        let mut reserved = Reserved::default();
        for at in 0..1000 {
            reserved.add(at * 10, at * 10 + 1 + at % 3);
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
