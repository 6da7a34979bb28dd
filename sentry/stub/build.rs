//! Builds the freestanding stub (`image/`) into one flat block and notes where its entry points are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt::Write as _, fs};

use goblin::elf::Elf;

/// Symbols the sentry needs, as offsets into the block.
const SYMBOLS: &[&str] = &[
    "gadget_start",
    "gadget_end",
    "stub_on_syscall",
    "stub_on_fault",
    "stub_on_kick",
    "stub_restorer",
    "stub_zygote",
    "stub_ptrace_run",
    "ptrace_done",
    "stub_ptrace_stop",
    "STUB_CONFIG",
    "stub_syscall",
    "stub_futex",
    "stub_leave",
    "futex_check",
    "futex_insn",
    "leave_check",
    "leave_insn",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=image");
    println!("cargo::rerun-if-changed=src/layout.rs");
    let binary = out.join("stub.elf");
    build(&binary);
    let bytes = fs::read(&binary).expect("the linked stub");
    let elf = Elf::parse(&bytes).expect("an ELF file");

    let text = elf
        .section_headers
        .iter()
        .find(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".text"))
        .expect(".text");
    assert_eq!(text.sh_addr, 0, "the stub is linked at 0");
    for section in &elf.section_headers {
        let name = elf.shdr_strtab.get_at(section.sh_name).unwrap_or("");
        let linking = name.starts_with(".dyn") || name.starts_with(".rela");
        let loaded = section.is_alloc() && section.sh_size > 0 && !linking;
        assert!(
            !loaded || name == ".text",
            "the stub has data outside its text: {name} ({} bytes)",
            section.sh_size
        );
    }
    let start = text.sh_offset as usize;
    fs::write(out.join("stub.bin"), &bytes[start..start + text.sh_size as usize]).expect("writing the image");

    let mut constants = String::new();
    for name in SYMBOLS {
        let symbol = elf.syms.iter().find(|s| elf.strtab.get_at(s.st_name) == Some(name));
        let value = symbol
            .unwrap_or_else(|| panic!("the stub has no symbol {name}"))
            .st_value;
        let _ = writeln!(
            constants,
            "/// Offset of `{name}`.\npub const {}: u64 = {value:#x};",
            name.to_uppercase()
        );
    }
    let mut places = Vec::new();
    for relocation in elf.dynrelas.iter() {
        assert_eq!(
            relocation.r_type,
            goblin::elf::reloc::R_X86_64_RELATIVE,
            "only relative relocations"
        );
        places.push((relocation.r_offset, relocation.r_addend.unwrap_or(0) as u64));
    }
    let _ = writeln!(
        constants,
        "/// Where the block's address is to be added: (offset, addend)."
    );
    let _ = writeln!(constants, "pub const RELOCATIONS: &[(u64, u64)] = &{places:?};");
    fs::write(out.join("symbols.rs"), constants).expect("writing the symbols");
}

fn build(binary: &Path) {
    let source = Path::new("image/main.rs");
    let script = Path::new("image/stub.ld").canonicalize().expect("the linker script");
    let status = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"))
        .args(["--edition=2024", "--crate-name=stub", "--crate-type=bin", "--target=x86_64-unknown-linux-gnu"])
        .args(["-Copt-level=2", "-Cpanic=abort", "-Crelocation-model=pic", "-Ccode-model=small"])
        .args(["-Ctarget-cpu=x86-64", "-Cforce-unwind-tables=no", "-Coverflow-checks=off", "-Cdebuginfo=0"])
        .args(["-Clink-args=-nostartfiles -nostdlib -static-pie"])
        .arg("-Clink-args=-Wl,--no-dynamic-linker -Wl,--build-id=none -Wl,--gc-sections -Wl,-z,norelro -Wl,--no-eh-frame-hdr")
        .args(["-Clink-args=-Wl,--export-dynamic-symbol=none", "-Cstrip=none"])
        .arg(format!("-Clink-arg=-Wl,-T,{}", script.display()))
        .args(["-Cmetadata=stub", "-Ccodegen-units=1"])
        .arg("-o")
        .arg(binary)
        .arg(source)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .expect("running rustc");
    assert!(status.success(), "the stub does not compile");
}
