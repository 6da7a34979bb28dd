//! What the stub is made of: baseline instructions only, and host calls in the gadgets only.
//!
//! The stub runs between two instructions of a guest whose vector and floating-point registers it does not save,
//! so it must not touch them in forms that a legacy save area would lose.

use goblin::elf::Elf;
use goblin::elf::sym::{STT_FUNC, STT_NOTYPE};
use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, EncodingKind, Instruction};
use sentry_stub::{IMAGE, symbol};

static ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.elf"));

/// The parts of the image that are code: the assembly, then the functions of the compiler.
fn code() -> Vec<(u64, u64)> {
    let elf = Elf::parse(ELF).expect("an ELF file");
    let functions = elf.syms.iter().filter(|symbol| symbol.st_type() == STT_FUNC);
    let mut ranges: Vec<_> = functions
        .map(|symbol| (symbol.st_value, symbol.st_value + symbol.st_size))
        .collect();
    ranges.sort_unstable();
    let first = ranges.first().expect("functions").0;
    let assembly = elf
        .syms
        .iter()
        .filter(|symbol| symbol.st_type() == STT_NOTYPE && symbol.st_value < first);
    assert!(assembly.count() > 10, "the assembly comes first");
    ranges.insert(0, (0, first));
    ranges
}

fn instructions() -> Vec<Instruction> {
    let mut all = Vec::new();
    for (start, end) in code() {
        let bytes = &IMAGE[start as usize..end as usize];
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        while decoder.can_decode() {
            all.push(decoder.decode());
        }
    }
    all
}

#[test]
fn no_code_is_overlooked() {
    let ranges = code();
    for pair in ranges.windows(2) {
        assert!(
            pair[1].0 < pair[0].1 + 16,
            "{:#x}..{:#x} is in no function",
            pair[0].1,
            pair[1].0
        );
    }
    let all = instructions();
    assert!(all.len() > 500);
    for instruction in all {
        assert!(!instruction.is_invalid(), "{:#x} is no instruction", instruction.ip());
    }
}

#[test]
fn only_baseline_instructions() {
    const REFUSED: &[CpuidFeature] = &[
        CpuidFeature::FPU,
        CpuidFeature::FPU287,
        CpuidFeature::FPU387,
        CpuidFeature::MMX,
        CpuidFeature::SSE3,
        CpuidFeature::SSSE3,
        CpuidFeature::SSE4_1,
        CpuidFeature::SSE4_2,
        CpuidFeature::AES,
    ];
    for instruction in instructions() {
        let (code, ip) = (instruction.code(), instruction.ip());
        assert_eq!(code.encoding(), EncodingKind::Legacy, "{code:?} at {ip:#x}");
        for feature in code.cpuid_features() {
            assert!(!REFUSED.contains(feature), "{code:?} at {ip:#x} needs {feature:?}");
        }
    }
}

#[test]
fn host_calls_are_made_by_the_gadgets_only() {
    let gadgets = symbol::GADGET_START..symbol::GADGET_END;
    let is_call = |code| matches!(code, Code::Syscall | Code::Sysenter | Code::Int_imm8);
    let calls: Vec<_> = instructions()
        .into_iter()
        .filter(|instruction| is_call(instruction.code()))
        .collect();
    assert!(!calls.is_empty());
    // This one is meant to trap, and traps: the zygote leaves by it.
    let elf = Elf::parse(ELF).unwrap();
    let hello = elf
        .syms
        .iter()
        .find(|symbol| elf.strtab.get_at(symbol.st_name) == Some("stub_hello"))
        .unwrap()
        .st_value;
    for call in calls {
        assert_eq!(call.code(), Code::Syscall, "{:#x}", call.ip());
        let meant = gadgets.contains(&call.ip()) || (hello..hello + 16).contains(&call.ip());
        assert!(meant, "{:#x} is not in the gadgets", call.ip());
    }
}
