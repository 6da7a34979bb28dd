//! Random and mutated files: no panic, and plans that stay within the layout.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sentry_abi::Errno;
use sentry_loader::{Backing, Elf, Image, Layout, Plan, elf, plan, stack};

mod common;
use common::{Header, file, layout};

fn read(bytes: &[u8]) -> Result<Elf, Errno> {
    let mut source = bytes;
    match Image::read(&mut source)? {
        Image::Elf(elf) => Ok(elf),
        Image::Script(_) => Err(Errno::ENOEXEC),
    }
}

fn check(plan: &Plan, layout: &Layout) {
    assert!(plan.segments.len() <= 4 * elf::MAX_PHDRS);
    plan.check(layout).unwrap();
}

const PIE: &[Header] = &[
    (3, 4, 0x400, 0x400, 16, 16, 1),
    (1, 4, 0, 0, 0x500, 0x500, 4096),
    (1, 5, 0x1000, 0x1000, 0x300, 0x300, 4096),
    (1, 6, 0x2100, 0x3100, 0x80, 0x5000, 4096),
    (0x6474_e551, 6, 0, 0, 0, 0, 16),
];

#[test]
fn position_independent() {
    let mut bytes = file(3, 0x1010, PIE);
    bytes[0x400..0x410].copy_from_slice(b"/lib64/ld.so.2\0\0");
    let elf = read(&bytes).unwrap();
    assert_eq!(elf.interpreter(), Some(&b"/lib64/ld.so.2"[..]));
    let ld = file(3, 0x20, &[(1, 5, 0, 0, 0x1000, 0x1000, 4096)]);
    let ld = Elf::read_interpreter(&mut &ld[..]).unwrap();
    let plan = plan(&elf, Some(&ld), &layout(), &[7; 64]).unwrap();
    check(&plan, &layout());
    let bias = plan.segments[0].addr;
    assert_eq!(plan.entry, bias + 0x1010);
    assert_eq!(plan.phdr, bias + 64);
    assert_eq!(plan.phnum, 5);
    assert_eq!(plan.start, plan.base + 0x20);
    assert_eq!(plan.segments.len(), 5);
    let data = plan.segments[2];
    assert_eq!(
        (data.addr, data.len, data.backing),
        (bias + 0x3000, 0x1000, Backing::Program(0x2000))
    );
    assert_eq!(data.zero, Some((bias + 0x3180, 0x1000 - 0x180)));
    let bss = plan.segments[3];
    assert_eq!(
        (bss.addr, bss.len, bss.backing),
        (bias + 0x4000, 0x5000, Backing::Anonymous)
    );
    assert!(!plan.executable_stack);
    assert!(plan.brk.start >= bias + 0x9000);
    assert!(bias > 0x5555_0000_0000 && plan.base > 0x7f00_0000_0000 && plan.stack.start > layout().mmap_base);
}

#[test]
fn fixed_addresses() {
    let bytes = file(
        2,
        0x401000,
        &[
            (1, 5, 0, 0x400000, 0x2000, 0x2000, 4096),
            (0x6474_e551, 7, 0, 0, 0, 0, 16),
        ],
    );
    let elf = read(&bytes).unwrap();
    let plan1 = plan(&elf, None, &layout(), &[1; 64]).unwrap();
    check(&plan1, &layout());
    assert_eq!(
        (plan1.start, plan1.base, plan1.segments[0].addr),
        (0x401000, 0, 0x400000)
    );
    assert!(plan1.executable_stack);
    let low = read(&file(2, 0x1000, &[(1, 5, 0, 0, 0x2000, 0x2000, 4096)])).unwrap();
    assert_eq!(plan(&low, None, &layout(), &[1; 64]).unwrap_err(), Errno::EPERM);
    let high = read(&file(2, 0x1000, &[(1, 5, 0, 0x8000_0000_0000, 0x2000, 0x2000, 4096)])).unwrap();
    assert_eq!(plan(&high, None, &layout(), &[1; 64]).unwrap_err(), Errno::ENOMEM);
    let on_reserved = read(&file(2, 0x7fff_e000_0000, &[(1, 5, 0, 0x7fff_e000_0000, 8, 8, 4096)])).unwrap();
    assert_eq!(
        plan(&on_reserved, None, &layout(), &[1; 64]).unwrap_err(),
        Errno::ENOMEM
    );
    let entry = read(&file(2, 0x10, &[(1, 5, 0, 0x400000, 8, 8, 4096)])).unwrap();
    assert_eq!(plan(&entry, None, &layout(), &[1; 64]).unwrap_err(), Errno::EINVAL);
}

#[test]
fn refused() {
    let load: Header = (1, 5, 0, 0x400000, 8, 8, 4096);
    let good = file(2, 0x400000, &[load]);
    assert!(read(&good).is_ok());
    for (at, value) in [(0, 0), (16, 1), (16, 4), (18, 3), (54, 32), (56, 0), (57, 0xff)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(read(&bad).unwrap_err(), Errno::ENOEXEC, "byte {at}");
        assert_eq!(Elf::read_interpreter(&mut &bad[..]).unwrap_err(), Errno::ELIBBAD);
    }
    assert_eq!(read(&good[..63]).unwrap_err(), Errno::ENOEXEC);
    assert_eq!(read(&good[..70]).unwrap_err(), Errno::ENOEXEC);
    assert_eq!(read(b"").unwrap_err(), Errno::ENOEXEC);
    for bad in [
        (1, 5, 0, 0x400000, 9, 8, 4096),
        (1, 5, 1, 0x400000, 8, 8, 4096),
        (1, 5, 0, u64::MAX - 4, 8, 8, 4096),
        (1, 5, u64::MAX - 4095, 0x400000, 8, 8, 4096),
        (4, 5, 0, 0x400000, 8, 8, 4096),
    ] {
        assert_eq!(read(&file(2, 0x400000, &[bad])).unwrap_err(), Errno::EINVAL, "{bad:x?}");
    }
    assert_eq!(
        read(&file(2, 0x400000, &[(3, 4, 0x400, 0, 1, 1, 1), load])).unwrap_err(),
        Errno::ENOEXEC
    );
    assert_eq!(
        read(&file(2, 0x400000, &[(3, 4, 0x400, 0, 9, 9, 1), load])).unwrap_err(),
        Errno::ENOEXEC
    );
    assert_eq!(
        read(&file(2, 0x400000, &[(3, 4, 0x2fff, 0, 9, 9, 1), load])).unwrap_err(),
        Errno::EIO
    );
}

fn input<'a>(argv: &'a [Vec<u8>], envp: &'a [Vec<u8>]) -> stack::StackInput<'a> {
    stack::StackInput {
        argv,
        envp,
        execfn: b"/bin/prog",
        random: [9; 16],
        uid: 1,
        euid: 2,
        gid: 3,
        egid: 4,
        secure: false,
        hwcap: 5,
        hwcap2: 2,
        min_sigstack: 2048,
        stack_limit: 8 << 20,
        vdso: true,
    }
}

#[test]
fn first_stack() {
    let elf = read(&file(2, 0x401000, &[(1, 5, 0, 0x400000, 0x2000, 0x2000, 4096)])).unwrap();
    let plan = plan(&elf, None, &layout(), &[3; 64]).unwrap();
    let argv = [b"prog".to_vec(), b"".to_vec(), b"x".to_vec()];
    let envp = [b"A=b".to_vec()];
    let image = stack::build(&plan, &input(&argv, &envp)).unwrap();
    assert_eq!(image.sp % 16, 0);
    assert_eq!(
        image.sp + image.bytes.len() as u64,
        (plan.stack.end - plan.stack_offset) & !15
    );
    let word = |i: usize| u64::from_le_bytes(image.bytes[8 * i..8 * i + 8].try_into().unwrap());
    let text = |addr: u64| {
        let bytes = &image.bytes[(addr - image.sp) as usize..];
        bytes[..bytes.iter().position(|&b| b == 0).unwrap()].to_vec()
    };
    assert_eq!(word(0), 3);
    assert_eq!([text(word(1)), text(word(2)), text(word(3))], argv);
    assert_eq!((word(4), text(word(5)), word(6)), (0, envp[0].clone(), 0));
    assert_eq!(image.args.0, word(1));
    assert_eq!(image.env.0, word(5));
    let mut found = std::collections::BTreeMap::new();
    for i in (7..).step_by(2) {
        if word(i) == 0 {
            assert_eq!(word(i + 1), 0);
            break;
        }
        found.insert(word(i), word(i + 1));
    }
    use sentry_loader::auxv::*;
    assert_eq!(text(found[&AT_EXECFN]), b"/bin/prog");
    assert_eq!(text(found[&AT_PLATFORM]), b"x86_64");
    assert_eq!(found[&AT_ENTRY], 0x401000);
    assert_eq!(found[&AT_SYSINFO_EHDR], plan.vdso);
    let random = (found[&AT_RANDOM] - image.sp) as usize;
    assert_eq!(image.bytes[random..random + 16], [9; 16]);
    assert_eq!(image.auxv.len(), 16 * (found.len() + 1));
    // No arguments become one empty argument.
    let image = stack::build(&plan, &input(&[], &[])).unwrap();
    assert_eq!(image.bytes[..8], 1u64.to_le_bytes());
}

#[test]
fn long_arguments() {
    let long = vec![b'a'; stack::MAX_ARG_STRLEN];
    assert_eq!(
        stack::check_size(std::slice::from_ref(&long), &[], b"x", 8 << 20),
        Err(Errno::E2BIG)
    );
    let fits = long[1..].to_vec();
    assert_eq!(
        stack::check_size(std::slice::from_ref(&fits), &[], b"x", 8 << 20),
        Ok(())
    );
    let many = vec![fits; 16];
    assert_eq!(stack::check_size(&many, &[], b"x", 8 << 20), Err(Errno::E2BIG));
    assert_eq!(stack::check_size(&many[..15], &[], b"x", 8 << 20), Ok(()));
}

fn interesting() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..0x10000,
        (0u64..64).prop_map(|shift| 1 << shift),
        (0u64..64).prop_map(|shift| (1u64 << shift).wrapping_sub(1)),
        0x7fff_0000_0000u64..0x8000_0000_0000,
        0x40_0000u64..0x50_0000,
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let kind = prop_oneof![4 => Just(1u32), 1 => Just(3), 1 => Just(0x6474_e551), 1 => any::<u32>()];
    (
        kind,
        0u32..8,
        interesting(),
        interesting(),
        interesting(),
        interesting(),
        interesting(),
        any::<bool>(),
    )
        .prop_map(|(kind, flags, offset, addr, filesz, memsz, align, congruent)| {
            let offset = if congruent {
                offset & !4095 | addr & 4095
            } else {
                offset
            };
            (kind, flags, offset, addr, filesz, memsz, align)
        })
}

fn try_plan(program: &[u8], interpreter: &[u8], random: &[u8; 64]) {
    if let Ok(elf) = read(program) {
        for interpreter in [None, Elf::read_interpreter(&mut &interpreter[..]).ok()] {
            if let Ok(plan) = plan(&elf, interpreter.as_ref(), &layout(), random) {
                check(&plan, &layout());
                stack::build(&plan, &input(&[], &[])).unwrap();
            }
        }
    }
}

fn random_bytes() -> impl Strategy<Value = [u8; 64]> {
    any::<[u64; 8]>().prop_map(|words| {
        let mut out = [0; 64];
        out.chunks_exact_mut(8)
            .zip(words)
            .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_headers(
        kind in 2u16..4,
        entry in interesting(),
        headers in proptest::collection::vec(header(), 1..6),
        more in proptest::collection::vec(header(), 1..4),
        random in random_bytes(),
    ) {
        try_plan(&file(kind, entry, &headers), &file(3, entry, &more), &random);
    }

    #[test]
    fn mutated(
        kind in 2u16..4,
        changes in proptest::collection::vec((0usize..0x500, any::<u8>()), 1..12),
        random in random_bytes(),
    ) {
        let mut bytes = file(kind, 0x401000, PIE);
        bytes[0x400..0x410].copy_from_slice(b"/lib64/ld.so.2\0\0");
        for (at, value) in changes {
            bytes[at] = value;
        }
        try_plan(&bytes, &bytes, &random);
    }

    #[test]
    fn random_bytes_with_magic(tail in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.extend(tail);
        let _ = read(&bytes);
        let mut source = |offset: u64, buf: &mut [u8]| -> Result<usize, Errno> {
            buf.fill(offset as u8);
            Ok(buf.len())
        };
        let _ = Image::read(&mut source);
    }
}

#[test]
fn placement_differs() {
    let elf = read(file(3, 0x1010, PIE).as_slice());
    // The interpreter's path is missing in this file.
    assert_eq!(elf.unwrap_err(), Errno::ENOEXEC);
    let elf = read(&file(3, 0x1010, &PIE[1..])).unwrap();
    let bases: std::collections::BTreeSet<u64> = (0..50u8)
        .map(|seed| {
            plan(
                &elf,
                None,
                &layout(),
                &std::array::from_fn(|i| (i as u8).wrapping_mul(seed)),
            )
            .unwrap()
        })
        .flat_map(|plan| [plan.segments[0].addr, plan.stack.start, plan.vdso])
        .collect();
    assert!(bases.len() > 120);
}
