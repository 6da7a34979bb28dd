//! Memory maps as text.
//!
//! What is resident only the host knows, and it is not asked: whatever can be touched counts as resident.

use std::fmt::Write;

use sentry_abi::{Errno, PAGE_SIZE};

use super::{Subject, pid};
use crate::mm::{Backing, MemoryMap, Region};

/// How much of a stack counts as touched, in bytes.
const STACK_TOUCHED: u64 = 132 << 10;

/// Sums over the regions of a process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub total: u64,
    /// Private and writable, without the stack.
    pub data: u64,
    pub stack: u64,
    /// Of files, not writable.
    pub file: u64,
    /// Of files, executable.
    pub text: u64,
    pub shared: u64,
}

impl Sizes {
    pub fn of(mm: &MemoryMap) -> Sizes {
        let mut sizes = Sizes::default();
        for region in mm.regions() {
            let len = region.len();
            sizes.total += len;
            let writable = region.prot & libc::PROT_WRITE != 0;
            match region.backing {
                Backing::Stack => sizes.stack += len,
                Backing::SharedAnonymous(_) => sizes.shared += len,
                _ if region.prot == 0 => {}
                _ if writable && !region.shared => sizes.data += len,
                Backing::File(_) => {
                    sizes.file += len;
                    if region.prot & libc::PROT_EXEC != 0 {
                        sizes.text += len;
                    }
                }
                _ => {}
            }
        }
        sizes
    }

    /// Of the stack no more counts than programs usually touch.
    pub fn resident(&self) -> u64 {
        self.data + self.stack.min(STACK_TOUCHED) + self.file + self.shared
    }
}

/// What counts as resident, in bytes.
pub(super) fn resident(mm: &MemoryMap) -> u64 {
    Sizes::of(mm).resident()
}

pub(super) fn maps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    for region in regions(subject)? {
        line(subject, &region, &mut out);
    }
    Ok(out)
}

fn regions(subject: &Subject) -> Result<Vec<Region>, Errno> {
    let process = subject.process()?;
    Ok(if process.is_zombie() {
        Vec::new()
    } else {
        process.mm().regions()
    })
}

fn line(subject: &Subject, region: &Region, out: &mut Vec<u8>) {
    let bit = |flag: i32, letter: char| if region.prot & flag != 0 { letter } else { '-' };
    let attributes = match &region.backing {
        Backing::File(file) | Backing::SharedAnonymous(file) => file.attributes().unwrap_or_default(),
        _ => Default::default(),
    };
    let name = match &region.backing {
        Backing::Anonymous => Vec::new(),
        Backing::File(file) => pid::display(subject, file.path(), Default::default()).unwrap_or_default(),
        Backing::SharedAnonymous(_) => b"/dev/zero (deleted)".to_vec(),
        Backing::Heap => b"[heap]".to_vec(),
        Backing::Stack => b"[stack]".to_vec(),
        Backing::Vdso => b"[vdso]".to_vec(),
        Backing::Vvar => b"[vvar]".to_vec(),
    };
    let (major, minor) = (libc::major(attributes.dev), libc::minor(attributes.dev));
    let head = format!(
        "{:08x}-{:08x} {}{}{}{} {:08x} {major:02x}:{minor:02x} {} ",
        region.start,
        region.end,
        bit(libc::PROT_READ, 'r'),
        bit(libc::PROT_WRITE, 'w'),
        bit(libc::PROT_EXEC, 'x'),
        if region.shared { 's' } else { 'p' },
        region.offset,
        attributes.ino,
    );
    out.extend_from_slice(head.as_bytes());
    if !name.is_empty() {
        out.extend(std::iter::repeat_n(b' ', 73usize.saturating_sub(head.len())));
        for byte in name {
            if byte == b'\n' {
                out.extend_from_slice(b"\\012")
            } else {
                out.push(byte)
            }
        }
    }
    out.push(b'\n');
}

fn counts(w: &mut String, len: u64, clean: u64, dirty: u64, locked: u64) {
    let kib = |bytes: u64| bytes / 1024;
    let resident = clean + dirty;
    for (name, bytes) in [
        ("Rss", resident),
        ("Pss", resident),
        ("Pss_Dirty", dirty),
        ("Shared_Clean", 0),
        ("Shared_Dirty", 0),
        ("Private_Clean", clean),
        ("Private_Dirty", dirty),
        ("Referenced", resident),
        ("Anonymous", dirty),
        ("KSM", 0),
        ("LazyFree", 0),
        ("AnonHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FilePmdMapped", 0),
        ("Shared_Hugetlb", 0),
        ("Private_Hugetlb", 0),
        ("Swap", 0),
        ("SwapPss", 0),
        ("Locked", locked.min(len)),
    ] {
        let _ = writeln!(w, "{:<16}{:>8} kB", format!("{name}:"), kib(bytes));
    }
}

fn split(region: &Region) -> (u64, u64) {
    match (region.prot & libc::PROT_WRITE != 0, region.prot) {
        (_, 0) => (0, 0),
        (true, _) => (0, region.len()),
        (false, _) => (region.len(), 0),
    }
}

pub(super) fn smaps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    for region in regions(subject)? {
        line(subject, &region, &mut out);
        let mut text = String::new();
        let kib = region.len() / 1024;
        let page = PAGE_SIZE / 1024;
        let _ = writeln!(
            text,
            "{:<16}{kib:>8} kB\n{:<16}{page:>8} kB\n{:<16}{page:>8} kB",
            "Size:", "KernelPageSize:", "MMUPageSize:"
        );
        let (clean, dirty) = split(&region);
        counts(
            &mut text,
            region.len(),
            clean,
            dirty,
            if region.locked { region.len() } else { 0 },
        );
        let flags = [
            (libc::PROT_READ, "rd "),
            (libc::PROT_WRITE, "wr "),
            (libc::PROT_EXEC, "ex "),
        ];
        let flags: String = flags
            .iter()
            .filter(|(bit, _)| region.prot & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let shared = if region.shared { "sh " } else { "" };
        let _ = writeln!(text, "THPeligible:           0\nVmFlags: {flags}{shared}mr mw me ");
        out.extend_from_slice(text.as_bytes());
    }
    Ok(out)
}

pub(super) fn smaps_rollup(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let regions = regions(subject)?;
    let (start, end) = (
        regions.first().map_or(0, |r| r.start),
        regions.last().map_or(0, |r| r.end),
    );
    let mut text = format!("{start:08x}-{end:08x} ---p 00000000 00:00 0                                  [rollup]\n");
    let (clean, dirty) = regions.iter().map(split).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    let locked = regions.iter().filter(|region| region.locked).map(Region::len).sum();
    counts(&mut text, u64::MAX, clean, dirty, locked);
    Ok(text.into_bytes())
}
