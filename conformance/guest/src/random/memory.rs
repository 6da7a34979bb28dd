//! Memory: an area of pages, anonymous ones and those of a file, mapped, protected, moved and forked.

use std::fmt::Write;

use super::{Rng, World, digest, shown};
use crate::sys;
use crate::sys::*;

/// Pages of the area.
const PAGES: u64 = 24;
/// Pages of the file.
const FILE_PAGES: i64 = 6;
const SIZE: u64 = PAGE as u64;

/// The world.
pub struct Memory {
    base: u64,
    file: i32,
    /// Bytes of memory pass through it, so that an unmapped page is an error and no signal.
    through: i32,
    /// Steps so far.
    steps: u64,
}

/// The regions of the area in `/proc/self/maps`, in pages; neighbours that go on from each other are one.
fn shape(base: u64) -> String {
    let mut regions: Vec<(u64, u64, String, i64, bool)> = Vec::new();
    for line in text("/proc/self/maps").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = words[0].split_once('-').unwrap_or_default();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        let (from, to) = (hex(from).max(base), hex(to).min(base + PAGES * SIZE));
        if from >= to {
            continue;
        }
        let skipped = from - hex(words[0].split_once('-').unwrap_or_default().0);
        let of_file = words[4] != "0" && words.get(5).is_some_and(|name| name.contains("/file"));
        let offset = if of_file { (hex(words[2]) + skipped) / SIZE } else { 0 } as i64;
        let (from, to) = ((from - base) / SIZE, (to - base) / SIZE);
        match regions.last_mut() {
            Some(last)
                if last.1 == from
                    && last.2 == words[1]
                    && last.4 == of_file
                    && (!of_file || last.3 + (from - last.0) as i64 == offset) =>
            {
                last.1 = to;
            }
            _ => regions.push((from, to, words[1].into(), offset, of_file)),
        }
    }
    let mut text = String::new();
    for (from, to, permissions, offset, of_file) in regions {
        let _ = write!(text, "{from}-{to} {permissions}");
        if of_file {
            let _ = write!(text, "@{offset}");
        }
        text.push(' ');
    }
    text
}

impl Memory {
    fn at(&self, page: u64) -> u64 {
        self.base + page * SIZE
    }

    /// Some bytes of a page, or the error of reading it.
    fn peek(&self, page: u64) -> String {
        let r = sys!(libc::SYS_pwrite64, self.through, self.at(page), 64, 0);
        if r != 64 {
            return shown(r);
        }
        let mut buf = [0u8; 64];
        sys!(libc::SYS_pread64, self.through, buf.as_mut_ptr(), 64, 0);
        format!("{:x}", digest(&buf) as u16)
    }

    fn poke(&self, page: u64, rng: &mut Rng) -> String {
        let offset = rng.below(8) * 8;
        let bytes = rng.next().to_ne_bytes();
        sys!(libc::SYS_pwrite64, self.through, bytes.as_ptr(), 8, 0);
        format!(
            "poke {page}+{offset} = {}",
            shown(sys!(libc::SYS_pread64, self.through, self.at(page) + offset, 8, 0))
        )
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let from = rng.below(PAGES);
        (from, 1 + rng.below((PAGES - from).min(6)))
    }

    fn map(&mut self, rng: &mut Rng) -> String {
        let (from, pages) = self.range(rng);
        let prot = rng.pick(&[3, 3, 3, 1, 0, 5, 2]);
        let fixed = rng.pick(&[libc::MAP_FIXED, libc::MAP_FIXED_NOREPLACE]);
        let share = rng.pick(&[libc::MAP_PRIVATE, libc::MAP_SHARED]);
        let (what, flags, fd, offset) = match rng.below(4) {
            0 | 1 => ("anonymous", libc::MAP_ANONYMOUS, -1, 0),
            _ => ("file", 0, self.file, rng.below(FILE_PAGES as u64) * SIZE),
        };
        let r = sys!(
            libc::SYS_mmap,
            self.at(from),
            pages * SIZE,
            prot,
            flags | fixed | share,
            fd,
            offset
        );
        let place = if r == self.at(from) as i64 {
            "there".into()
        } else {
            shown(r)
        };
        format!(
            "map {what} {from} {pages} {prot} {fixed:#x} {share} {} = {place}",
            offset / SIZE
        )
    }

    fn remap(&mut self, rng: &mut Rng) -> String {
        let (from, pages) = self.range(rng);
        let new = 1 + rng.below(8);
        match rng.below(3) {
            0 => {
                let r = sys!(libc::SYS_mremap, self.at(from), pages * SIZE, new * SIZE, 0, 0);
                let place = if r == self.at(from) as i64 {
                    "there".into()
                } else {
                    shown(r)
                };
                format!("resize {from} {pages} {new} = {place}")
            }
            _ => {
                let to = rng.below(PAGES - new + 1);
                let flags = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
                let r = sys!(
                    libc::SYS_mremap,
                    self.at(from),
                    pages * SIZE,
                    new * SIZE,
                    flags,
                    self.at(to)
                );
                let place = if r == self.at(to) as i64 {
                    "there".into()
                } else {
                    shown(r)
                };
                format!("move {from} {pages} to {to} {new} = {place}")
            }
        }
    }

    fn file(&mut self, rng: &mut Rng) -> String {
        let page = rng.below(FILE_PAGES as u64);
        let bytes = rng.next().to_ne_bytes();
        match rng.below(4) {
            0 => {
                let len = rng.pick(&[FILE_PAGES * SIZE as i64, 3 * SIZE as i64 + 100, 0, SIZE as i64]);
                format!("ftruncate {len} = {}", shown(sys!(libc::SYS_ftruncate, self.file, len)))
            }
            1 => {
                let mut buf = [0u8; 64];
                let n = sys!(libc::SYS_pread64, self.file, buf.as_mut_ptr(), 64, page * SIZE);
                format!("file page {page} = {} {:x}", shown(n), digest(&buf) as u16)
            }
            _ => {
                let r = sys!(libc::SYS_pwrite64, self.file, bytes.as_ptr(), 8, page * SIZE + 16);
                format!("file page {page} written = {}", shown(r))
            }
        }
    }

    /// A child writes to its copy, or to what is shared, and tells what it sees.
    fn fork(&mut self, rng: &mut Rng) -> String {
        let page = rng.below(PAGES);
        let status = wait(child(|| {
            let text = self.poke(page, rng) + &self.peek(page) + &shape(self.base);
            exit((digest(text.as_bytes()) & 0x3f) as i32);
        }));
        format!("child at {page}: {status:#x} {}", self.peek(page))
    }

    fn all(&self) -> String {
        (0..PAGES).fold(String::new(), |text, page| text + &self.peek(page) + " ")
    }
}

impl World for Memory {
    fn new(_rng: &mut Rng) -> Memory {
        // Around the area nothing may lie, so that it neither grows nor merges.
        let around = sys!(
            libc::SYS_mmap,
            0,
            (PAGES + 64) * SIZE,
            0,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0
        );
        let base = around as u64 + 32 * SIZE;
        sys!(libc::SYS_munmap, base, PAGES * SIZE);
        let file = open("file", libc::O_RDWR | libc::O_CREAT, 0o600) as i32;
        for page in 0..FILE_PAGES as u64 {
            sys!(libc::SYS_pwrite64, file, [page as u8 + 1; 64].as_ptr(), 64, page * SIZE);
        }
        sys!(libc::SYS_ftruncate, file, FILE_PAGES * SIZE as i64);
        Memory {
            base,
            file,
            through: open("through", libc::O_RDWR | libc::O_CREAT, 0o600) as i32,
            steps: 0,
        }
    }

    fn step(&mut self, rng: &mut Rng) -> String {
        let (from, pages) = self.range(rng);
        let (at, len) = (self.at(from), pages * SIZE);
        let text = match rng.below(20) {
            0..6 => self.map(rng),
            6..8 => format!("unmap {from} {pages} = {}", shown(sys!(libc::SYS_munmap, at, len))),
            8..10 => {
                let prot = rng.pick(&[3, 1, 0, 7, 2]);
                format!(
                    "protect {from} {pages} {prot} = {}",
                    shown(sys!(libc::SYS_mprotect, at, len, prot))
                )
            }
            10..12 => self.remap(rng),
            12..15 => self.poke(from, rng),
            15 => {
                let advice = rng.pick(&[4, 4, 3, 0, 8, 99]);
                format!(
                    "advise {from} {pages} {advice} = {}",
                    shown(sys!(libc::SYS_madvise, at, len, advice))
                )
            }
            16 => match rng.below(3) {
                0 => {
                    let flags = rng.pick(&[1, 2, 4, 5]);
                    format!(
                        "sync {from} {pages} {flags} = {}",
                        shown(sys!(libc::SYS_msync, at, len, flags))
                    )
                }
                1 => {
                    let mut out = [0u8; PAGES as usize];
                    format!(
                        "core {from} {pages} = {}",
                        shown(sys!(libc::SYS_mincore, at, len, out.as_mut_ptr()))
                    )
                }
                _ => {
                    // Not to stay: what is locked differs, which docs/limits.md tells. Nor to be brought to memory.
                    let lock = sys!(libc::SYS_mlock2, at, len, 1);
                    let unlock = sys!(libc::SYS_munlock, at, len);
                    format!("lock {from} {pages} = {} {}", shown(lock), shown(unlock))
                }
            },
            17 | 18 => self.file(rng),
            _ => self.fork(rng),
        };
        self.steps += 1;
        let contents = if self.steps.is_multiple_of(4) {
            self.all()
        } else {
            self.peek(from)
        };
        format!("{text}; {}; {contents}", shape(self.base))
    }

    fn end(&mut self) -> String {
        self.all()
    }
}
