//! Which names of the host guests have made, changed and removed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use sentry_lock::{Mutex, rank};

use super::Identity;

/// So many names are told apart; further ones are not counted.
const NAMES_MAX: usize = 1 << 17;

/// The name was there before any guest changed it.
const WAS: u8 = 1;
/// It is there now.
const IS: u8 = 2;
/// What it leads to is not what it was.
const CHANGED: u8 = 4;

/// Names that differ from what they were when the sandbox began, as far as guests did it.
#[derive(Default)]
pub(super) struct Tally {
    /// By directory and name.
    names: Mutex<HashMap<u64, u8>, rank::GoferTally>,
    hashes: RandomState,
}

/// Files that differ from what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ChangedFiles {
    pub created: u64,
    pub changed: u64,
    pub deleted: u64,
}

impl Tally {
    fn update(&self, directory: Identity, name: &[u8], change: impl FnOnce(Option<u8>) -> u8) {
        let key = self.hashes.hash_one((directory.dev, directory.ino, name));
        let mut names = self.names.lock();
        let old = names.get(&key).copied();
        let new = change(old);
        if new & (WAS | IS) == 0 {
            names.remove(&key);
        } else if old.is_some() || names.len() < NAMES_MAX {
            names.insert(key, new);
        }
    }

    /// A name is made where there was none; `replaces`: or was given to another file.
    pub fn made(&self, directory: Identity, name: &[u8], replaces: bool) {
        self.update(directory, name, |old| match old {
            Some(old) => old | IS | CHANGED,
            None if replaces => WAS | IS | CHANGED,
            None => IS,
        });
    }

    /// A name is gone.
    pub fn removed(&self, directory: Identity, name: &[u8]) {
        self.update(directory, name, |old| old.unwrap_or(WAS) & !IS);
    }

    /// The file of a name has other content or attributes.
    pub fn changed(&self, directory: Identity, name: &[u8]) {
        self.update(directory, name, |old| old.unwrap_or(WAS | IS) | CHANGED);
    }

    pub fn totals(&self) -> ChangedFiles {
        let mut totals = ChangedFiles::default();
        for state in self.names.lock().values() {
            match (state & WAS != 0, state & IS != 0) {
                (false, _) => totals.created += 1,
                (true, false) => totals.deleted += 1,
                (true, true) => totals.changed += 1,
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_the_difference() {
        let tally = Tally::default();
        let dir = Identity { dev: 1, ino: 2 };
        let totals = |created, changed, deleted| ChangedFiles {
            created,
            changed,
            deleted,
        };
        // Made and removed again.
        tally.made(dir, b"a", false);
        tally.changed(dir, b"a");
        assert_eq!(tally.totals(), totals(1, 0, 0));
        tally.removed(dir, b"a");
        assert_eq!(tally.totals(), totals(0, 0, 0));
        // Written twice.
        tally.changed(dir, b"b");
        tally.changed(dir, b"b");
        assert_eq!(tally.totals(), totals(0, 1, 0));
        // Removed, and made anew.
        tally.removed(dir, b"b");
        tally.removed(dir, b"c");
        assert_eq!(tally.totals(), totals(0, 0, 2));
        tally.made(dir, b"c", false);
        assert_eq!(tally.totals(), totals(0, 1, 1));
        // A new file in the place of an old one, as editors do it.
        tally.made(dir, b"d.new", false);
        tally.removed(dir, b"d.new");
        tally.made(dir, b"d", true);
        assert_eq!(tally.totals(), totals(0, 2, 1));
        // The same name elsewhere is another one.
        tally.made(Identity { dev: 1, ino: 3 }, b"d", false);
        assert_eq!(tally.totals(), totals(1, 2, 1));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let tally = Tally::default();
        for ino in 0..NAMES_MAX as u64 + 10 {
            tally.made(Identity { dev: 1, ino }, b"x", false);
        }
        assert_eq!(tally.totals().created, NAMES_MAX as u64);
    }
}
