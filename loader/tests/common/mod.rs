//! Programs made by hand. `conformance/fuzz` begins with them.

use sentry_loader::{Layout, Range};

/// An address space to plan for.
pub fn layout() -> Layout {
    Layout {
        low: 0x10000,
        high: 0x7fff_f000_0000,
        mmap_base: 0x7fff_7000_0000,
        reserved: vec![Range {
            start: 0x7fff_e000_0000,
            end: 0x7fff_e001_0000,
        }],
        stack_len: 8 << 20,
    }
}

/// A program header: type, flags, offset, address, file size, memory size, alignment.
pub type Header = (u32, u32, u64, u64, u64, u64, u64);

/// A file of this type (`ET_*`), entry and program headers.
pub fn file(kind: u16, entry: u64, headers: &[Header]) -> Vec<u8> {
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend(kind.to_le_bytes());
    out.extend(62u16.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, headers.len() as u16, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    for (kind, flags, offset, addr, filesz, memsz, align) in headers {
        out.extend(kind.to_le_bytes());
        out.extend(flags.to_le_bytes());
        for word in [*offset, *addr, *addr, *filesz, *memsz, *align] {
            out.extend(word.to_le_bytes());
        }
    }
    out.resize(out.len().max(0x3000), 0x90);
    out
}
