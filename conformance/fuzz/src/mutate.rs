//! Inputs that are almost like others.

#[path = "../../../gofer/tests/common/random.rs"]
mod random;

pub use random::Random;

impl Random {
    /// One of the inputs with some changes. `words` are pieces that mean something to the parser.
    pub fn mutate(&mut self, corpus: &[Vec<u8>], words: &[&[u8]], longest: usize) -> Vec<u8> {
        let mut input = corpus.get(self.below(corpus.len())).cloned().unwrap_or_default();
        for _ in 0..=self.below(4) {
            self.change(&mut input, corpus, words);
        }
        input.truncate(longest);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&[u8]]) {
        let at = self.below(input.len());
        let rest = input.len() - at;
        match self.below(10) {
            0 if rest > 0 => input[at] = self.next() as u8,
            1 if rest > 0 => input[at] ^= 1 << self.below(8),
            // A number at a place where one could be, as small, large or odd as they come.
            2 | 3 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let at = at / width * width;
                let small = self.below(300) as u64;
                let power = 1u64 << self.below(64);
                let odd = [
                    small,
                    power,
                    power - 1,
                    small.wrapping_neg(),
                    u64::MAX >> self.below(64),
                    self.next(),
                ];
                let bytes = odd[self.below(odd.len())].to_le_bytes();
                if let Some(place) = input.get_mut(at..at + width) {
                    place.copy_from_slice(&bytes[..width]);
                }
            }
            4 => input.truncate(at),
            5 => {
                let len = self.below(rest.min(64) + 1);
                input.drain(at..at + len);
            }
            6 => {
                let len = self.below(rest.min(128) + 1);
                let piece = input[at..at + len].to_vec();
                let to = self.below(input.len());
                input.splice(to..to, piece);
            }
            7 => {
                let other = corpus.get(self.below(corpus.len())).map_or(&[][..], Vec::as_slice);
                let from = self.below(other.len());
                let piece = other[from..(from + self.below(256)).min(other.len())].to_vec();
                let end = (at + piece.len()).min(input.len());
                input.splice(at..end, piece);
            }
            8 if !words.is_empty() => {
                let word = words[self.below(words.len())];
                let end = if self.below(2) == 0 {
                    at
                } else {
                    (at + word.len()).min(input.len())
                };
                input.splice(at..end, word.iter().copied());
            }
            _ => input.insert(at, self.next() as u8),
        }
    }
}
