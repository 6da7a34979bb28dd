//! Our own small vDSO: a shared object of one page, and a table of addresses behind it.
//!
//! Its functions jump to the host's vDSO through the table, so that clocks cost a guest what they cost any
//! process, while the pointers that a guest keeps lead into an image that is ours and can be mapped again
//! elsewhere. Where the table holds 0 a function makes the system call instead.
//!
//! The form is that of the kernel's own (`arch/x86/entry/vdso`): name `linux-vdso.so.1`, version `LINUX_2.6`,
//! a System V hash table, names with and without `__vdso_`.

use sentry_abi::PAGE_SIZE;

/// The length of the vDSO's mapping in bytes: its text and, behind, the table of the host's addresses.
pub const IMAGE_LEN: u64 = 2 * PAGE_SIZE;

/// How much of the image is the shared object, to be mapped readable and executable; the rest is the table, to
/// be mapped readable.
pub const TEXT_LEN: u64 = PAGE_SIZE;

/// The functions: name and system-call number. The table holds one address each, in this order.
const FUNCTIONS: [(&str, u32); 5] = [
    ("clock_gettime", 228),
    ("gettimeofday", 96),
    ("time", 201),
    ("getcpu", 309),
    ("clock_getres", 229),
];

const SONAME: &str = "linux-vdso.so.1";
const VERSION: &str = "LINUX_2.6";
/// Where the functions begin in the page.
const TEXT_AT: usize = 0x800;
/// Bytes of text for each function.
const STRIDE: usize = 32;
/// Hash buckets.
const BUCKETS: u32 = 4;
/// `st_shndx` of the symbols: any section there could be. No section headers are in the image.
const TEXT_SECTION: u16 = 8;

/// The addresses of the host's functions in the guest; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table([u64; FUNCTIONS.len()]);

impl Table {
    /// Finds the functions in an image of the host's vDSO, which guests have at address `at` (0: nowhere).
    pub fn of_host(image: &[u8], at: u64) -> Table {
        let mut table = Table::default();
        let Ok(elf) = goblin::elf::Elf::parse(image) else {
            return table;
        };
        if at == 0 {
            return table;
        }
        for symbol in elf
            .dynsyms
            .iter()
            .filter(|symbol| symbol.is_function() && symbol.st_shndx != 0)
        {
            let name = elf
                .dynstrtab
                .get_at(symbol.st_name)
                .and_then(|name| name.strip_prefix("__vdso_"));
            let entry = FUNCTIONS.iter().position(|(function, _)| Some(*function) == name);
            if let Some(entry) = entry.and_then(|index| table.0.get_mut(index)) {
                *entry = at.wrapping_add(symbol.st_value);
            }
        }
        table
    }
}

/// Builds the image for guests: [`IMAGE_LEN`] bytes, position-independent.
pub fn image(table: &Table) -> Vec<u8> {
    let symbols: Vec<(String, usize, u8)> = (FUNCTIONS.iter().enumerate())
        .flat_map(|(index, (name, _))| {
            [
                (format!("__vdso_{name}"), index, GLOBAL_FUNCTION),
                ((*name).to_owned(), index, WEAK_FUNCTION),
            ]
        })
        .collect();
    let mut strings = Strings::default();
    let soname = strings.add(SONAME);
    let version = strings.add(VERSION);
    let names: Vec<u32> = symbols.iter().map(|(name, _, _)| strings.add(name)).collect();

    // Everything in the page in turn; the headers in front are filled in at the end.
    let mut page = vec![0u8; 64 + 2 * 56];
    let hash_at = align(&mut page, 8);
    put_hash(&mut page, &symbols);
    let symtab_at = align(&mut page, 8);
    page.resize(page.len() + 24, 0);
    for ((_, function, info), name) in symbols.iter().zip(&names) {
        put(&mut page, &name.to_le_bytes());
        put(&mut page, &[*info, 0]);
        put(&mut page, &TEXT_SECTION.to_le_bytes());
        put(&mut page, &((TEXT_AT + function * STRIDE) as u64).to_le_bytes());
        put(&mut page, &(STRIDE as u64).to_le_bytes());
    }
    let strtab_at = align(&mut page, 8);
    put(&mut page, &strings.bytes);
    let versym_at = align(&mut page, 2);
    put(&mut page, &[0, 0]);
    for _ in &symbols {
        put(&mut page, &2u16.to_le_bytes());
    }
    let verdef_at = align(&mut page, 8);
    put_version(&mut page, 1, 1, SONAME, soname, 28);
    put_version(&mut page, 0, 2, VERSION, version, 0);
    let dynamic_at = align(&mut page, 16);
    let dynamic = [
        (14, soname as usize),
        (4, hash_at),
        (5, strtab_at),
        (6, symtab_at),
        (10, strings.bytes.len()),
        (11, 24),
        (0x6fff_fffc, verdef_at),
        (0x6fff_fffd, 2),
        (0x6fff_fff0, versym_at),
        (0, 0),
    ];
    for (tag, value) in dynamic {
        put(&mut page, &(tag as u64).to_le_bytes());
        put(&mut page, &(value as u64).to_le_bytes());
    }
    let dynamic_len = page.len() - dynamic_at;

    debug_assert!(page.len() <= TEXT_AT);
    page.resize(TEXT_AT, 0);
    for (index, (_, nr)) in FUNCTIONS.iter().enumerate() {
        put_function(&mut page, index, *nr);
    }
    put_headers(&mut page, dynamic_at, dynamic_len);
    debug_assert!(page.len() <= TEXT_LEN as usize);
    page.resize(TEXT_LEN as usize, 0);
    for address in table.0 {
        put(&mut page, &address.to_le_bytes());
    }
    page.resize(IMAGE_LEN as usize, 0);
    page
}

const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;
const WEAK_FUNCTION: u8 = 2 << 4 | 2;

#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    fn add(&mut self, text: &str) -> u32 {
        if self.bytes.is_empty() {
            self.bytes.push(0);
        }
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        at
    }
}

fn put(page: &mut Vec<u8>, bytes: &[u8]) {
    page.extend_from_slice(bytes);
}

fn align(page: &mut Vec<u8>, to: usize) -> usize {
    page.resize(page.len().next_multiple_of(to), 0);
    page.len()
}

/// The hash of the System V ABI.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |h, byte| {
        let h = (h << 4).wrapping_add(byte.into());
        let high = h & 0xf000_0000;
        (h ^ (high >> 24)) & !high
    })
}

fn put_hash(page: &mut Vec<u8>, symbols: &[(String, usize, u8)]) {
    let count = symbols.len() as u32 + 1;
    let mut buckets = [0u32; BUCKETS as usize];
    let mut chains = vec![0u32; count as usize];
    for (index, (name, _, _)) in symbols.iter().enumerate() {
        let bucket = &mut buckets[(hash(name) % BUCKETS) as usize];
        chains[index + 1] = *bucket;
        *bucket = index as u32 + 1;
    }
    for word in [BUCKETS, count].iter().chain(&buckets).chain(&chains) {
        put(page, &word.to_le_bytes());
    }
}

/// One `Elf64_Verdef` with its one `Elf64_Verdaux`.
fn put_version(page: &mut Vec<u8>, flags: u16, index: u16, name: &str, name_at: u32, next: u32) {
    for half in [1, flags, index, 1] {
        put(page, &u16::to_le_bytes(half));
    }
    for word in [hash(name), 20, next, name_at, 0] {
        put(page, &word.to_le_bytes());
    }
}

/// `endbr64; mov table(%rip),%rax; test %rax,%rax; jz 1f; jmp *%rax; 1: mov $nr,%eax; syscall; ret`
fn put_function(page: &mut Vec<u8>, index: usize, nr: u32) {
    let start = page.len();
    put(page, &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05]);
    let behind = page.len() + 4;
    put(page, &((TEXT_LEN as usize + 8 * index - behind) as u32).to_le_bytes());
    put(page, &[0x48, 0x85, 0xc0, 0x74, 0x02, 0xff, 0xe0, 0xb8]);
    put(page, &nr.to_le_bytes());
    put(page, &[0x0f, 0x05, 0xc3]);
    page.resize(start + STRIDE, 0xcc);
}

fn put_headers(page: &mut [u8], dynamic_at: usize, dynamic_len: usize) {
    let mut head = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [3u16, 62] {
        put(&mut head, &half.to_le_bytes());
    }
    put(&mut head, &1u32.to_le_bytes());
    for word in [0u64, 64, 0] {
        put(&mut head, &word.to_le_bytes());
    }
    put(&mut head, &0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 0, 0] {
        put(&mut head, &half.to_le_bytes());
    }
    let text = TEXT_LEN as usize;
    for (kind, flags, at, len, to) in [(1u32, 5u32, 0, text, text), (2, 4, dynamic_at, dynamic_len, 8)] {
        put(&mut head, &kind.to_le_bytes());
        put(&mut head, &flags.to_le_bytes());
        for word in [at, at, at, len, len, to] {
            put(&mut head, &(word as u64).to_le_bytes());
        }
    }
    page[..head.len()].copy_from_slice(&head);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_shared_object_with_the_names_of_linux() {
        let image = image(&Table([1, 2, 3, 4, 5]));
        assert_eq!(image.len() as u64, IMAGE_LEN);
        let elf = goblin::elf::Elf::parse(&image).unwrap();
        assert!(elf.is_lib);
        assert_eq!(elf.soname, Some(SONAME));
        let names: Vec<_> = elf
            .dynsyms
            .iter()
            .filter_map(|s| elf.dynstrtab.get_at(s.st_name))
            .collect();
        for (function, _) in FUNCTIONS {
            assert!(names.contains(&function) && names.contains(&format!("__vdso_{function}").as_str()));
        }
        assert_eq!(hash(VERSION), 0x03ae_75f6);
        assert_eq!(image[4096..4104], 1u64.to_le_bytes());
        // What it exports is found again the way the host's functions are.
        assert!(Table::of_host(&image, 0x1000).0.iter().all(|&address| address > 0x1000));
        assert_eq!(Table::of_host(&image, 0), Table::default());
    }

    #[test]
    fn functions_load_their_own_entry() {
        let image = image(&Table::default());
        let elf = goblin::elf::Elf::parse(&image).unwrap();
        for (index, (function, nr)) in FUNCTIONS.iter().enumerate() {
            let symbol = elf
                .dynsyms
                .iter()
                .find(|s| elf.dynstrtab.get_at(s.st_name) == Some(*function))
                .unwrap();
            let at = symbol.st_value as usize;
            let load = u32::from_le_bytes(image[at + 7..at + 11].try_into().unwrap()) as usize;
            assert_eq!(at + 11 + load, 4096 + 8 * index);
            assert_eq!(image[at + 18], 0xb8);
            assert_eq!(image[at + 19..at + 23], nr.to_le_bytes());
            assert_eq!(image[at + 23..at + 26], [0x0f, 0x05, 0xc3]);
        }
    }
}
