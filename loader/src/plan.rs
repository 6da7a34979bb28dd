//! Where everything goes: addresses for a program, its interpreter, heap, stack and vDSO.

use sentry_abi::{Errno, PAGE_SIZE};

use crate::elf::{Elf, Load};
use crate::{page_down, page_up, vdso};

/// A half-open range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// True if it holds no address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The address space to plan for. All numbers page-aligned.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The lowest address a guest may map.
    pub low: u64,
    /// The first address beyond the guest's part.
    pub high: u64,
    /// Where the host begins to place mappings, downwards.
    pub mmap_base: u64,
    /// Ranges inside that are taken already, such as the host's vDSO and its data.
    pub reserved: Vec<Range>,
    /// The length of the stack mapping in bytes (from `RLIMIT_STACK`); made page-aligned and held between
    /// 128 KiB and 1 GiB.
    pub stack_len: u64,
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Zeroes.
    Anonymous,
    /// The program's file, from this page-aligned offset.
    Program(u64),
    /// The interpreter's file, from this page-aligned offset.
    Interpreter(u64),
}

/// One private mapping to make. All numbers page-aligned, but those of `zero`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where.
    pub addr: u64,
    /// How long, never 0.
    pub len: u64,
    /// `PROT_*`.
    pub prot: i32,
    /// With what.
    pub backing: Backing,
    /// What to zero after mapping (the first part of the bss, behind the file's bytes): address and length.
    /// Present only where `prot` has `PROT_WRITE`.
    pub zero: Option<(u64, u64)>,
}

/// Everything execve(2) has to put into a new address space.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Mappings, to be made in this order with `MAP_FIXED` (later ones may replace parts of earlier ones).
    pub segments: Vec<Segment>,
    /// The first instruction: the interpreter's entry, or the program's.
    pub start: u64,
    /// The program's own entry (`AT_ENTRY`).
    pub entry: u64,
    /// Where the interpreter was placed (`AT_BASE`); 0 without one.
    pub base: u64,
    /// The address of the program headers (`AT_PHDR`); 0 if no segment holds them.
    pub phdr: u64,
    /// Their number (`AT_PHNUM`).
    pub phnum: u64,
    /// The start of the heap, and how far it can grow at most.
    pub brk: Range,
    /// The whole stack, to be mapped readable and writable, and executable if `executable_stack`.
    pub stack: Range,
    /// True if the program asks for an executable stack (`PT_GNU_STACK`).
    pub executable_stack: bool,
    /// Where our vDSO goes ([`vdso::IMAGE_LEN`] bytes; `AT_SYSINFO_EHDR`).
    pub vdso: u64,
    /// How far below the top of the stack its contents begin, in bytes (a multiple of 16).
    pub stack_offset: u64,
    /// The executable segments of the program, as /proc/PID/stat gives them.
    pub code: Range,
    /// The writable segments of the program.
    pub data: Range,
}

impl Plan {
    /// Says what about it is not as it must be for any file: a range outside the layout, on a reserved one or on another,
    /// an address that is no page's. For tests and fuzzers.
    pub fn check(&self, layout: &Layout) -> Result<(), String> {
        let inside = |range: &Range| range.start >= layout.low && range.start <= range.end && range.end <= layout.high;
        let aligned = |range: &Range| range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
        let place = |segment: &Segment| Range {
            start: segment.addr,
            end: segment.addr.wrapping_add(segment.len),
        };
        let segments: Vec<Range> = self.segments.iter().map(place).collect();
        let vdso = Range {
            start: self.vdso,
            end: self.vdso.wrapping_add(vdso::IMAGE_LEN),
        };
        let parts = [self.stack, vdso, self.brk];
        for (segment, range) in self.segments.iter().zip(&segments) {
            let backing = match segment.backing {
                Backing::Program(offset) | Backing::Interpreter(offset) => offset,
                Backing::Anonymous => 0,
            };
            let zero = segment.zero.is_none_or(|(addr, len)| {
                segment.prot & 2 != 0
                    && addr >= range.start
                    && addr.checked_add(len).is_some_and(|end| end <= range.end)
                    && len < PAGE_SIZE
            });
            let good = !range.is_empty()
                && aligned(range)
                && inside(range)
                && zero
                && backing.is_multiple_of(PAGE_SIZE)
                && i64::try_from(backing).is_ok()
                && !layout.reserved.iter().any(|reserved| reserved.overlaps(range));
            if !good {
                return Err(format!("segment {segment:x?}"));
            }
        }
        for (i, part) in parts.iter().enumerate() {
            if !inside(part) || !part.start.is_multiple_of(PAGE_SIZE) {
                return Err(format!("{part:x?} in {self:x?}"));
            }
            let mut others = segments.iter().chain(&parts[..i]);
            if !part.is_empty() && others.any(|other| other.overlaps(part)) {
                return Err(format!("{part:x?} lies on another of {self:x?}"));
            }
        }
        let start = Range {
            start: self.start,
            end: self.start,
        };
        if !inside(&start) || !self.stack_offset.is_multiple_of(16) || self.stack_offset >= 2 * PAGE_SIZE {
            return Err(format!("start or stack of {self:x?}"));
        }
        Ok(())
    }
}

/// The window above a base in which position-independent programs are placed (28 bits of pages, as Linux).
const PROGRAM_WINDOW: u64 = 1 << 40;
/// The window below `mmap_base` for interpreters.
const INTERPRETER_WINDOW: u64 = 1 << 36;
/// The window at the top for stack and vDSO.
const TOP_WINDOW: u64 = 1 << 38;
/// The heap starts at most this far behind the program.
const BRK_WINDOW: u64 = 32 << 20;
/// Kept free on both sides of what is placed at random.
const GUARD: u64 = 1 << 20;

/// Plans a program. `random` decides the placement: 64 bytes from a good generator.
///
/// `ENOMEM` if it does not fit into the layout, `EINVAL` for an entry point outside it, `EPERM` for addresses
/// below `layout.low`.
pub fn plan(program: &Elf, interpreter: Option<&Elf>, layout: &Layout, random: &[u8; 64]) -> Result<Plan, Errno> {
    let mut dice = random
        .chunks_exact(8)
        .map(|c| c.iter().fold(0u64, |n, b| n << 8 | u64::from(*b)));
    let mut roll = || dice.next().unwrap_or(0);
    let whole = Range {
        start: page_up(layout.low).ok_or(Errno::ENOMEM)?,
        end: page_down(layout.high),
    };
    let mut taken = layout.reserved.clone();
    let mut segments = Vec::new();

    // The program.
    let extent = extent(program)?;
    let bias = if program.position_independent {
        let base = (layout.high / 3).saturating_mul(2);
        let window = Range {
            start: base,
            end: base.saturating_add(PROGRAM_WINDOW),
        };
        let addr = place(extent.len(), alignment(program), roll(), window, whole, &taken)?;
        addr.wrapping_sub(extent.start)
    } else {
        roll();
        0
    };
    let image = shift(extent, bias);
    check(image, whole, &layout.reserved)?;
    taken.push(widen(image));
    add_segments(program, bias, Backing::Program, &mut segments)?;
    let entry = program.entry.wrapping_add(bias);

    // The interpreter.
    let (start, base) = match interpreter {
        None => {
            roll();
            (entry, 0)
        }
        Some(interpreter) => {
            let extent = self::extent(interpreter)?;
            let bias = if interpreter.position_independent {
                let top = layout.mmap_base.min(whole.end);
                let window = Range {
                    start: top.saturating_sub(INTERPRETER_WINDOW),
                    end: top,
                };
                let addr = place(extent.len(), alignment(interpreter), roll(), window, whole, &taken)?;
                addr.wrapping_sub(extent.start)
            } else {
                roll();
                0
            };
            let image = shift(extent, bias);
            check(image, whole, &taken)?;
            taken.push(widen(image));
            add_segments(interpreter, bias, Backing::Interpreter, &mut segments)?;
            (interpreter.entry.wrapping_add(bias), bias)
        }
    };
    if !(whole.start..whole.end).contains(&start) {
        return Err(Errno::EINVAL);
    }

    // Stack and vDSO: above the host's mappings where there is room, else anywhere near the top.
    let stack_len = page_up(layout.stack_len.clamp(128 << 10, 1 << 30)).ok_or(Errno::ENOMEM)?;
    let above = Range {
        start: page_up(layout.mmap_base).unwrap_or(whole.end),
        end: whole.end,
    };
    let top = if above.len() > stack_len + 8 * GUARD {
        Range {
            start: above.start.max(above.end.saturating_sub(TOP_WINDOW)),
            end: above.end,
        }
    } else {
        Range {
            start: whole.end.saturating_sub(TOP_WINDOW),
            end: whole.end,
        }
    };
    let addr = place(stack_len, PAGE_SIZE, roll(), top, whole, &taken)?;
    let stack = Range {
        start: addr,
        end: addr + stack_len,
    };
    taken.push(widen(stack));
    let vdso = place(vdso::IMAGE_LEN, PAGE_SIZE, roll(), top, whole, &taken)?;
    taken.push(Range {
        start: vdso,
        end: vdso + vdso::IMAGE_LEN,
    });

    // The heap: behind the program, with what is free up to the next range.
    let end = page_up(image.end).ok_or(Errno::ENOMEM)?;
    let limit = taken
        .iter()
        .map(|r| r.start)
        .filter(|&s| s >= end)
        .min()
        .unwrap_or(whole.end)
        .min(whole.end);
    let room = limit.saturating_sub(end);
    let brk = end + page_down(pick(roll(), BRK_WINDOW.min(room / 2)));

    let union = |flag: i32| {
        let mut found: Option<Range> = None;
        for load in program.loads.iter().filter(|load| load.prot & flag != 0) {
            let start = load.vaddr.wrapping_add(bias);
            let range = Range {
                start,
                end: start.saturating_add(load.memsz),
            };
            found = Some(found.map_or(range, |f| Range {
                start: f.start.min(range.start),
                end: f.end.max(range.end),
            }));
        }
        found.unwrap_or(Range { start: 0, end: 0 })
    };
    Ok(Plan {
        segments,
        start,
        entry,
        base,
        phdr: program.phdr_vaddr.map_or(0, |addr| addr.wrapping_add(bias)),
        phnum: program.phnum,
        brk: Range { start: brk, end: limit },
        stack,
        executable_stack: program.executable_stack,
        vdso,
        stack_offset: pick(roll(), 8192) & !15,
        code: union(4),
        data: union(2),
    })
}

/// The pages that an image covers, by its own addresses.
fn extent(elf: &Elf) -> Result<Range, Errno> {
    let start = elf
        .loads
        .iter()
        .map(|load| page_down(load.vaddr))
        .min()
        .ok_or(Errno::EINVAL)?;
    let mut end = start;
    for load in &elf.loads {
        end = end.max(
            load.vaddr
                .checked_add(load.memsz)
                .and_then(page_up)
                .ok_or(Errno::EINVAL)?,
        );
    }
    Ok(Range { start, end })
}

/// The largest alignment that its segments ask for; what is no power of two is ignored, as Linux does.
fn alignment(elf: &Elf) -> u64 {
    let wanted = elf
        .loads
        .iter()
        .map(|load| load.align)
        .filter(|align| align.is_power_of_two())
        .max();
    wanted.unwrap_or(PAGE_SIZE).max(PAGE_SIZE)
}

fn shift(range: Range, bias: u64) -> Range {
    let start = range.start.wrapping_add(bias);
    Range {
        start,
        end: start.saturating_add(range.len()),
    }
}

fn widen(range: Range) -> Range {
    Range {
        start: range.start.saturating_sub(GUARD),
        end: range.end.saturating_add(GUARD),
    }
}

fn check(image: Range, whole: Range, taken: &[Range]) -> Result<(), Errno> {
    if image.start < whole.start {
        return Err(Errno::EPERM);
    }
    if image.end > whole.end || taken.iter().any(|range| range.overlaps(&image)) {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// A number below `bound`; 0 if that is 0.
fn pick(random: u64, bound: u64) -> u64 {
    random.checked_rem(bound).unwrap_or(0)
}

/// Finds room for `len` bytes: at random in `window`, else the highest free place in `whole`.
fn place(len: u64, align: u64, random: u64, window: Range, whole: Range, taken: &[Range]) -> Result<u64, Errno> {
    let fits = |addr: u64| {
        let candidate = Range {
            start: addr,
            end: addr.saturating_add(len),
        };
        candidate.start >= whole.start && candidate.end <= whole.end && !taken.iter().any(|r| r.overlaps(&candidate))
    };
    if len == 0 || len > whole.len() {
        return Err(Errno::ENOMEM);
    }
    let window = Range {
        start: window.start.max(whole.start),
        end: window.end.min(whole.end),
    };
    let slots = window.len().checked_sub(len).map_or(0, |room| room / PAGE_SIZE + 1);
    let mut random = random;
    for _ in 0..16 {
        let addr = window.start.saturating_add(pick(random, slots) * PAGE_SIZE) & !(align - 1);
        if slots > 0 && fits(addr) {
            return Ok(addr);
        }
        random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    // Highest first: below the end of the whole and below every taken range.
    let mut tops: Vec<u64> = taken.iter().map(|r| r.start).chain([whole.end]).collect();
    tops.sort_unstable();
    let below = |top: &u64| top.checked_sub(len).map(|addr| page_down(addr) & !(align - 1));
    tops.iter()
        .rev()
        .filter_map(below)
        .find(|addr| fits(*addr))
        .ok_or(Errno::ENOMEM)
}

fn add_segments(elf: &Elf, bias: u64, file: fn(u64) -> Backing, out: &mut Vec<Segment>) -> Result<(), Errno> {
    for load in &elf.loads {
        add_load(load, bias, file, out).ok_or(Errno::EINVAL)?;
    }
    Ok(())
}

/// The mapping of the file's bytes, the rest of its last page zeroed, and pages of zeroes behind.
fn add_load(load: &Load, bias: u64, file: fn(u64) -> Backing, out: &mut Vec<Segment>) -> Option<()> {
    let start = load.vaddr.wrapping_add(bias);
    let addr = page_down(start);
    let file_end = start.checked_add(load.filesz)?;
    let mem_end = page_up(start.checked_add(load.memsz)?)?;
    let mut anonymous = addr;
    if load.filesz > 0 {
        let end = page_up(file_end)?;
        let bss = load.memsz > load.filesz && end > file_end && load.prot & 2 != 0;
        let zero = bss.then(|| (file_end, end - file_end));
        let backing = file(load.offset - (start - addr));
        out.push(Segment {
            addr,
            len: end - addr,
            prot: load.prot,
            backing,
            zero,
        });
        anonymous = end;
    }
    if mem_end > anonymous {
        let (len, backing) = (mem_end - anonymous, Backing::Anonymous);
        out.push(Segment {
            addr: anonymous,
            len,
            prot: load.prot,
            backing,
            zero: None,
        });
    }
    Some(())
}
