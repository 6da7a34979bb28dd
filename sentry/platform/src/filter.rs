//! The seccomp filter of the stubs: what a guest process may ask the host for, and only from the gadgets.

use libc::{
    MADV_COLD, MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_POPULATE_READ,
    MADV_POPULATE_WRITE, MADV_WILLNEED, MAP_ANONYMOUS, MAP_PRIVATE, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use sentry_host::filter::{Arg, Filter, FilterError, HostCall, Outside, Rule};
use sentry_stub::layout;

const PROT: u32 = (PROT_READ | PROT_WRITE | PROT_EXEC) as u32;
/// The mmap(2) flags that stand in no table row: HUGETLB, LOCKED, SYNC, GROWSDOWN, UNINITIALIZED, droppable, and all above.
const MMAP_REFUSED: u32 = !(libc::MAP_SHARED
    | MAP_PRIVATE
    | MAP_ANONYMOUS
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK) as u32;
const ANONYMOUS: u32 = (MAP_PRIVATE | MAP_ANONYMOUS) as u32;

const fn call(number: i64, name: &'static str, rule: Rule, why: &'static str) -> HostCall {
    HostCall {
        number,
        name,
        rule,
        why,
    }
}

/// Every host call that a stub may make, with its instruction pointer in the gadgets. Anything else is turned into
/// SIGSYS, which is to say: it is a guest system call.
pub const STUB_CALLS: &[HostCall] = &[
    call(
        libc::SYS_futex,
        "futex",
        Rule::When(&[
            &[Arg::Without(1, !0x181)],
            &[Arg::Without(1, !0x183), Arg::With(1, 3)],
            &[Arg::Without(1, !0x185), Arg::With(1, 4)],
            &[Arg::Without(1, !0x189), Arg::With(1, 9)],
            &[Arg::Without(1, !0x18a), Arg::With(1, 10)],
        ]),
        "wait, wake, requeue, wake-op (no PI, no FD) on the guest's own memory; sleeping for an answer",
    ),
    call(
        libc::SYS_mmap,
        "mmap",
        Rule::When(&[
            &[
                Arg::Without(2, !PROT),
                Arg::Without(3, MMAP_REFUSED),
                Arg::With(3, ANONYMOUS),
            ],
            &[
                Arg::Without(2, !PROT),
                Arg::Without(3, MMAP_REFUSED | MAP_ANONYMOUS as u32),
            ],
        ]),
        "private anonymous memory, or a received descriptor",
    ),
    call(
        libc::SYS_munmap,
        "munmap",
        Rule::Always,
        "the guest's own address space",
    ),
    call(
        libc::SYS_mprotect,
        "mprotect",
        Rule::When(&[&[Arg::Without(2, !(PROT | 0x0300_0000))]]),
        "no pkeys",
    ),
    call(
        libc::SYS_mremap,
        "mremap",
        Rule::When(&[&[Arg::Without(3, !3)]]),
        "MAYMOVE, FIXED",
    ),
    call(
        libc::SYS_madvise,
        "madvise",
        Rule::When(&[
            &[Arg::AtMost(2, MADV_DONTNEED as u32)],
            &[Arg::Is(2, MADV_FREE as u32)],
            &[Arg::Is(2, MADV_HUGEPAGE as u32)],
            &[Arg::Is(2, MADV_NOHUGEPAGE as u32)],
            &[Arg::Is(2, MADV_COLD as u32)],
            &[Arg::Is(2, MADV_PAGEOUT as u32)],
            &[Arg::Is(2, MADV_POPULATE_READ as u32)],
            &[Arg::Is(2, MADV_POPULATE_WRITE as u32)],
        ]),
        "named advices on the guest's own memory",
    ),
    call(
        libc::SYS_rt_sigreturn,
        "rt_sigreturn",
        Rule::Always,
        "back to the guest",
    ),
    call(
        libc::SYS_clone,
        "clone",
        Rule::When(&[
            &[Arg::Is64(0, layout::FORK_FLAGS)],
            &[Arg::Is64(0, layout::THREAD_FLAGS)],
        ]),
        "a fork or a thread that the sentry ordered: two exact flag words",
    ),
    call(libc::SYS_exit, "exit", Rule::Always, "the end of a thread"),
    call(
        libc::SYS_sched_yield,
        "sched_yield",
        Rule::Always,
        "the guest's sched_yield",
    ),
    call(
        libc::SYS_recvmsg,
        "recvmsg",
        Rule::Always,
        "descriptors to map, from the control socket",
    ),
    call(libc::SYS_close, "close", Rule::Always, "received descriptors"),
    call(
        libc::SYS_write,
        "write",
        Rule::When(&[&[
            Arg::AtMost(0, layout::DOORBELL_FD as u32 + layout::MAX_WORKERS as u32 - 1),
            Arg::Is64(2, 8),
        ]]),
        "eight bytes to a doorbell",
    ),
];

const _: () = assert!(MADV_WILLNEED == 3 && MADV_DONTNEED == 4);

/// The program for stubs whose gadgets lie in `gadget` (start, end; in one 4 GiB window): seccompiler's rules
/// behind a check of the instruction pointer, which its rule model cannot express.
pub fn stub_program(gadget: (u64, u64)) -> Result<Vec<[u8; 8]>, FilterError> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const ABOVE: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const IP: u32 = 8; // offset of instruction_pointer in seccomp_data
    let instruction = |code: u16, jt: u8, jf: u8, k: u32| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&code.to_ne_bytes());
        bytes[2] = jt;
        bytes[3] = jf;
        bytes[4..].copy_from_slice(&k.to_ne_bytes());
        bytes
    };
    assert_eq!(gadget.0 >> 32, gadget.1 >> 32, "the gadgets lie in one 4 GiB window");
    let trap = libc::SECCOMP_RET_TRAP;
    let mut program = vec![
        instruction(LOAD, 0, 0, IP + 4),
        instruction(EQUAL, 0, 3, (gadget.0 >> 32) as u32),
        instruction(LOAD, 0, 0, IP),
        instruction(ABOVE, 0, 1, gadget.0 as u32),
        instruction(ABOVE, 0, 1, gadget.1 as u32),
        instruction(RETURN, 0, 0, trap),
    ];
    let rules = Filter::compile(STUB_CALLS, Outside::Trap)?;
    program.extend(
        rules
            .main_program()
            .iter()
            .map(|i| instruction(i.code, i.jt, i.jf, i.k)),
    );
    Ok(program)
}
