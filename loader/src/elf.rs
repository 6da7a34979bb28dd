//! Reading ELF files: header and program headers, checked as the kernel's `fs/binfmt_elf.c` checks them.

use goblin::container::{Container, Ctx, Endian};
use goblin::elf::header::{EI_CLASS, EI_DATA, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_DYN, ET_EXEC};
use goblin::elf::program_header::{PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD};
use goblin::elf::{Elf as GoblinElf, ProgramHeader};
use sentry_abi::Errno;

/// The size of an ELF64 file header.
const EHDR_SIZE: usize = 64;
/// The size of an ELF64 program header.
pub const PHDR_SIZE: usize = 56;
/// The kernel takes at most 64 KiB of program headers.
pub const MAX_PHDRS: usize = 65536 / PHDR_SIZE;
/// The longest path of an interpreter, with its NUL.
const PATH_MAX: u64 = 4096;

/// Where the bytes of a file come from.
///
/// A reader that cannot wait may fail with `EAGAIN` for bytes it does not have yet, fetch them, and have the
/// file parsed again: parsing has no side effect.
pub trait Source {
    /// Reads at an offset; the number of bytes, 0 at the end of the file.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno>;
}

impl Source for &[u8] {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.get(offset..))
            .unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

impl<F: FnMut(u64, &mut [u8]) -> Result<usize, Errno>> Source for F {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self(offset, buf)
    }
}

/// Reads until `buf` is full or the file ends.
pub(crate) fn read_up_to(source: &mut dyn Source, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset.checked_add(done as u64).ok_or(Errno::ENOEXEC)?;
        match source.read_at(at, rest)? {
            0 => break,
            n => done += n.min(rest.len()),
        }
    }
    Ok(done)
}

/// A loadable segment, in the terms of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub offset: u64,
    pub vaddr: u64,
    pub filesz: u64,
    pub memsz: u64,
    pub align: u64,
    /// `PROT_*`.
    pub prot: i32,
}

/// A checked ELF file for x86-64.
#[derive(Clone, Debug)]
pub struct Elf {
    pub(crate) position_independent: bool,
    pub(crate) entry: u64,
    pub(crate) phnum: u64,
    /// The program headers' address by the file's own addresses, if a segment holds them.
    pub(crate) phdr_vaddr: Option<u64>,
    pub(crate) loads: Vec<Load>,
    pub(crate) executable_stack: bool,
    interpreter: Option<Vec<u8>>,
}

impl Elf {
    /// Reads a program. `ENOEXEC` if it is none for this machine, `EINVAL` for segments that make no sense,
    /// `EIO` if it is cut short, or what the source says.
    pub fn read(source: &mut dyn Source) -> Result<Elf, Errno> {
        let mut header = [0u8; EHDR_SIZE];
        if read_up_to(source, 0, &mut header)? < EHDR_SIZE {
            return Err(Errno::ENOEXEC);
        }
        if !header.starts_with(ELFMAG) {
            return Err(Errno::ENOEXEC);
        }
        // Linux looks at neither of these; what they would say is clear from the machine.
        header[EI_CLASS] = ELFCLASS64;
        header[EI_DATA] = ELFDATA2LSB;
        let header = GoblinElf::parse_header(&header).map_err(|_| Errno::ENOEXEC)?;
        let count = usize::from(header.e_phnum);
        if !matches!(header.e_type, ET_EXEC | ET_DYN)
            || header.e_machine != EM_X86_64
            || usize::from(header.e_phentsize) != PHDR_SIZE
            || !(1..=MAX_PHDRS).contains(&count)
        {
            return Err(Errno::ENOEXEC);
        }
        let mut table = vec![0u8; count * PHDR_SIZE];
        if read_up_to(source, header.e_phoff, &mut table)? < table.len() {
            return Err(Errno::ENOEXEC);
        }
        let context = Ctx::new(Container::Big, Endian::Little);
        let phdrs = ProgramHeader::parse(&table, 0, count, context).map_err(|_| Errno::ENOEXEC)?;

        let mut elf = Elf {
            position_independent: header.e_type == ET_DYN,
            entry: header.e_entry,
            phnum: count as u64,
            phdr_vaddr: None,
            loads: Vec::new(),
            executable_stack: false,
            interpreter: None,
        };
        for phdr in &phdrs {
            match phdr.p_type {
                PT_LOAD => elf.add_load(phdr, header.e_phoff)?,
                PT_GNU_STACK => elf.executable_stack = phdr.p_flags & PF_X != 0,
                PT_INTERP if elf.interpreter.is_none() => elf.interpreter = Some(read_interpreter_path(source, phdr)?),
                _ => {}
            }
        }
        if elf.loads.is_empty() {
            return Err(Errno::EINVAL);
        }
        Ok(elf)
    }

    /// Reads the interpreter of a program. What is no ELF file for this machine is `ELIBBAD`.
    pub fn read_interpreter(source: &mut dyn Source) -> Result<Elf, Errno> {
        let mut elf = Elf::read(source).map_err(|e| if e == Errno::ENOEXEC { Errno::ELIBBAD } else { e })?;
        // Its own interpreter does not count.
        elf.interpreter = None;
        Ok(elf)
    }

    /// The path of the interpreter the program asks for (`PT_INTERP`).
    pub fn interpreter(&self) -> Option<&[u8]> {
        self.interpreter.as_deref()
    }

    fn add_load(&mut self, phdr: &ProgramHeader, phoff: u64) -> Result<(), Errno> {
        let in_page = phdr.p_vaddr % sentry_abi::PAGE_SIZE;
        let sane = phdr.p_filesz <= phdr.p_memsz
            && phdr
                .p_vaddr
                .checked_add(phdr.p_memsz)
                .and_then(crate::page_up)
                .is_some()
            && phdr
                .p_offset
                .checked_add(phdr.p_filesz)
                .and_then(crate::page_up)
                .is_some_and(|e| i64::try_from(e).is_ok())
            && (phdr.p_filesz == 0 || phdr.p_offset % sentry_abi::PAGE_SIZE == in_page);
        if !sane {
            return Err(Errno::EINVAL);
        }
        let prot = [(PF_R, 1), (PF_W, 2), (PF_X, 4)]
            .iter()
            .filter(|(f, _)| phdr.p_flags & f != 0)
            .map(|(_, p)| p)
            .sum();
        let inside = phdr.p_offset <= phoff && phoff - phdr.p_offset < phdr.p_filesz;
        if inside && self.phdr_vaddr.is_none() {
            self.phdr_vaddr = phdr.p_vaddr.checked_add(phoff - phdr.p_offset);
        }
        if phdr.p_memsz > 0 {
            self.loads.push(Load {
                offset: phdr.p_offset,
                vaddr: phdr.p_vaddr,
                filesz: phdr.p_filesz,
                memsz: phdr.p_memsz,
                align: phdr.p_align,
                prot,
            });
        }
        Ok(())
    }
}

fn read_interpreter_path(source: &mut dyn Source, phdr: &ProgramHeader) -> Result<Vec<u8>, Errno> {
    if !(2..=PATH_MAX).contains(&phdr.p_filesz) {
        return Err(Errno::ENOEXEC);
    }
    let mut path = vec![0u8; phdr.p_filesz as usize];
    if read_up_to(source, phdr.p_offset, &mut path)? < path.len() {
        return Err(Errno::EIO);
    }
    if path.last() != Some(&0) {
        return Err(Errno::ENOEXEC);
    }
    let end = path.iter().position(|&b| b == 0).unwrap_or(0);
    path.truncate(end);
    if path.is_empty() { Err(Errno::ENOENT) } else { Ok(path) }
}
