//! Program images: head, program headers, interpreter, the plan and the first stack.

#[path = "../../../../loader/tests/common/mod.rs"]
mod common;

use sentry_loader::stack::{self, StackInput};
use sentry_loader::{Elf, Image, plan};

use super::{Target, outcome};
use common::{Header, file, layout};

/// See the module.
pub const TARGET: Target = Target {
    name: "elf",
    seeds,
    words: &[
        b"\x7fELF",
        b"#!",
        b"#! /bin/sh\n",
        b"/lib64/ld.so\0",
        &[1, 0, 0, 0, 5, 0, 0, 0],
        &[0; 8],
        &[255; 8],
    ],
    make: || Box::new(run),
};

/// The file without the instructions behind its headers, where changes would mean nothing.
fn headers(kind: u16, entry: u64, headers: &[Header]) -> Vec<u8> {
    let mut bytes = file(kind, entry, headers);
    bytes.truncate(64 + 56 * headers.len());
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let shared: &[Header] = &[
        (1, 4, 0, 0, 0x300, 0x300, 4096),
        (1, 5, 0x1000, 0x1000, 0x300, 0x300, 4096),
        (1, 6, 0x2100, 0x3100, 0x80, 0x5000, 4096),
        (0x6474_e551, 6, 0, 0, 0, 0, 16),
    ];
    let mut dynamic = headers(3, 0x1010, &[&[(3, 4, 0x190, 0x190, 14, 14, 1)], shared].concat());
    dynamic.resize(0x190, 0);
    dynamic.extend(b"/lib64/ld.so.2\0\0");
    vec![
        dynamic,
        headers(3, 0x20, shared),
        headers(2, 0x40_1000, &[(1, 5, 0, 0x40_0000, 0x2000, 0x2000, 4096)]),
        b"#! /bin/sh -e\n".to_vec(),
        b"#!\t/usr/bin/env python3".to_vec(),
    ]
}

fn run(input: &[u8]) -> Result<u64, String> {
    let elf = match Image::read(&mut &*input) {
        Ok(Image::Elf(elf)) => elf,
        Ok(Image::Script(script)) => {
            let mut argv = vec![b"a".to_vec(), b"b".to_vec()];
            script.rewrite(&mut argv, b"/path");
            if argv.len() < 3 || argv.iter().any(|word| word.contains(&0)) {
                return Err(format!("arguments {argv:?}"));
            }
            return Ok(outcome(&[1, argv.len() as u64]));
        }
        Err(error) => return Ok(outcome(&[2, error.raw() as u64])),
    };
    let interpreter = Elf::read_interpreter(&mut &*input);
    let interpreter = interpreter.as_ref().ok().filter(|_| elf.interpreter().is_some());
    let random = std::array::from_fn(|i| input.get(i * 7).copied().unwrap_or(i as u8));
    let planned = match plan(&elf, interpreter, &layout(), &random) {
        Ok(planned) => planned,
        Err(error) => return Ok(outcome(&[3, error.raw() as u64])),
    };
    planned.check(&layout())?;
    let words: Vec<Vec<u8>> = input.split(|&byte| byte == 0).take(40).map(<[u8]>::to_vec).collect();
    let given = StackInput {
        argv: &words,
        envp: &words,
        execfn: b"/program",
        random: [7; 16],
        uid: 0,
        euid: 0,
        gid: 0,
        egid: 0,
        secure: false,
        hwcap: 0,
        hwcap2: 0,
        min_sigstack: 2048,
        stack_limit: 8 << 20,
        vdso: true,
    };
    let stack = match stack::build(&planned, &given) {
        Ok(stack) => stack,
        Err(error) => return Ok(outcome(&[4, error.raw() as u64])),
    };
    let end = stack
        .sp
        .checked_add(stack.bytes.len() as u64)
        .ok_or("the stack goes round")?;
    if stack.sp % 16 != 0 || stack.sp < planned.stack.start || end > planned.stack.end {
        return Err(format!("stack {:x}..{end:x} in {:x?}", stack.sp, planned.stack));
    }
    let segments = planned.segments.len() as u64;
    let zeroed = planned.segments.iter().filter(|segment| segment.zero.is_some()).count() as u64;
    Ok(outcome(&[
        5,
        segments,
        zeroed,
        u64::from(planned.base != 0),
        planned.phnum,
        planned.brk.len(),
    ]))
}
