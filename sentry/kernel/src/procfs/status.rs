//! What a process is and does, as text: stat, status, limits and their kin (proc_pid_stat(5)…).

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::{Errno, PAGE_SIZE};

use super::{Subject, maps};
use crate::signal::SigSet;
use crate::system;
use crate::task::{Limit, Process, Resource, RunState, Thread};
use crate::time::cpu;

/// Reads at most this much of arguments and environment.
const MAX_STRINGS: u64 = 6 << 20;

/// One letter and one word, as stat and status have it.
fn state(process: &Process, thread: Option<&Arc<Thread>>) -> (char, &'static str) {
    if process.is_zombie() {
        return ('Z', "zombie");
    }
    match thread.map(|thread| thread.state()) {
        Some(RunState::Running) => ('R', "running"),
        Some(RunState::Sleeping) => ('S', "sleeping"),
        Some(RunState::Vfork) => ('D', "disk sleep"),
        Some(RunState::Stopped) => ('T', "stopped"),
        Some(RunState::Zombie) => ('Z', "zombie"),
        None => ('X', "dead"),
    }
}

fn name(subject: &Subject) -> Vec<u8> {
    subject.thread().map_or_else(|_| Vec::new(), |thread| thread.comm())
}

/// CPU time of the thread or process in nanoseconds.
pub(super) fn cpu_nanos(subject: &Subject) -> u64 {
    subject.process().map_or(0, |process| cpu::process_nanos(&process))
}

pub(super) fn comm(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let mut text = name(subject);
    text.push(b'\n');
    Ok(text)
}

pub(super) fn set_comm(subject: &Subject, data: &[u8]) -> Result<(), Errno> {
    let end = data.iter().position(|&b| b == 0 || b == b'\n').unwrap_or(data.len());
    subject.thread()?.set_comm(data.get(..end).unwrap_or_default());
    Ok(())
}

/// Memory of a process between two addresses, as far as it can be read.
fn memory(subject: &Subject, range: (u64, u64)) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    if process.is_zombie() {
        return Ok(Vec::new());
    }
    let len = range.1.saturating_sub(range.0).min(MAX_STRINGS);
    let mut out = vec![0; usize::try_from(len).map_err(|_| Errno::ENOMEM)?];
    let count = process.mm().space().read_partial(range.0, &mut out);
    out.truncate(count);
    Ok(out)
}

/// The arguments; a program that overwrote the NUL at their end (setproctitle(3)) is shown up to the first NUL
/// behind them.
pub(super) fn cmdline(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let image = subject.process()?.mm().image();
    let mut out = memory(subject, image.args)?;
    if out.last().is_some_and(|&byte| byte != 0) {
        out = memory(subject, (image.args.0, image.env.1))?;
        let end = out.iter().position(|&byte| byte == 0).map_or(out.len(), |end| end + 1);
        out.truncate(end);
    }
    Ok(out)
}

pub(super) fn environ(subject: &Subject) -> Result<Vec<u8>, Errno> {
    memory(subject, subject.process()?.mm().image().env)
}

/// Where a process stands in the tree.
struct Family {
    parent: i32,
    pgid: i32,
    sid: i32,
    terminal: u64,
    foreground: i32,
    exit_signal: i32,
}

fn family(subject: &Subject) -> Result<Family, Errno> {
    let kernel = subject.kernel()?;
    let tasks = kernel.tasks.read();
    let node = tasks.node(subject.pid).ok_or(Errno::ESRCH)?;
    let terminal = node.terminal.as_ref();
    Ok(Family {
        parent: node.parent,
        pgid: node.pgid,
        sid: node.sid,
        terminal: terminal.map_or(0, |pty| pty.device()),
        foreground: terminal.and_then(|pty| pty.job().foreground).unwrap_or(-1),
        exit_signal: node.exit_signal,
    })
}

pub(super) fn children(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let kernel = subject.kernel()?;
    let tasks = kernel.tasks.read();
    let node = tasks.node(subject.pid).ok_or(Errno::ESRCH)?;
    let mut out = String::new();
    for child in &node.children {
        let _ = write!(out, "{child} ");
    }
    Ok(out.into_bytes())
}

/// A terminal's number as stat(5) has it.
fn tty_number(device: u64) -> u64 {
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

pub(super) fn stat(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let thread = subject.thread().ok();
    let family = family(subject)?;
    let (own, children) = (cpu::usage(&process), *process.child_usage.lock());
    let mm = process.mm();
    let (image, brk) = (mm.image(), mm.brk());
    let (ignored, caught) = process.actions().sets();
    let pending = thread
        .as_ref()
        .map_or(SigSet::EMPTY, |thread| thread.signals.lock().queue.set());
    let blocked = thread.as_ref().map_or(SigSet::EMPTY, |thread| thread.signal_mask());
    let scheduling = thread
        .as_ref()
        .map(|thread| thread.scheduling.lock().clone())
        .unwrap_or_default();
    let cpu = scheduling.nearest(sentry_host::system::current_processor());
    let start = thread.as_ref().map_or(process.start_time, |thread| thread.start_time);
    let alive = !process.is_zombie();
    let fields: [(u64, bool); 48] = {
        let u = |value: u64| (value, false);
        let i = |value: i64| (value as u64, true);
        [
            i(family.parent.into()),
            i(family.pgid.into()),
            i(family.sid.into()),
            u(tty_number(family.terminal)),
            i(family.foreground.into()),
            u(0x40_0000),
            u(own.minor_faults),
            u(children.minor_faults),
            u(own.major_faults),
            u(children.major_faults),
            i(cpu::ticks(own.user_nanos)),
            i(cpu::ticks(own.system_nanos)),
            i(cpu::ticks(children.user_nanos)),
            i(cpu::ticks(children.system_nanos)),
            i(scheduling.kernel_priority()),
            i(scheduling.nice.into()),
            u(process.thread_count() as u64),
            u(0),
            i(cpu::ticks(start)),
            u(if alive { mm.total().0 } else { 0 }),
            u(if alive { maps::resident(&mm) / PAGE_SIZE } else { 0 }),
            u(process.limits.read().get(Resource::RSS).current),
            u(image.code.0),
            u(image.code.1),
            u(image.start_stack),
            u(0),
            u(0),
            u(pending.0 & 0x7fff_ffff),
            u(blocked.0 & 0x7fff_ffff),
            u(ignored.0 & 0x7fff_ffff),
            u(caught.0 & 0x7fff_ffff),
            u(0),
            u(0),
            u(0),
            i(family.exit_signal.into()),
            u(cpu.into()),
            u(scheduling.priority.into()),
            u(scheduling.policy.number() as u64),
            u(0),
            u(0),
            u(0),
            u(image.data.0),
            u(image.data.1),
            u(brk.0),
            u(image.args.0),
            u(image.args.1),
            u(image.env.0),
            u(image.env.1),
        ]
    };
    let mut out = format!("{} (", subject.tid).into_bytes();
    out.extend_from_slice(&name(subject));
    let mut rest = format!(") {}", state(&process, thread.as_ref()).0);
    for (value, signed) in fields {
        let _ = if signed {
            write!(rest, " {}", value as i64)
        } else {
            write!(rest, " {value}")
        };
    }
    rest.push_str(" 0\n");
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

pub(super) fn statm(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    if process.is_zombie() {
        return Ok(b"0 0 0 0 0 0 0\n".to_vec());
    }
    let mm = process.mm();
    let sizes = maps::Sizes::of(&mm);
    let pages = |bytes: u64| bytes / PAGE_SIZE;
    let line = format!(
        "{} {} {} {} 0 {} 0\n",
        pages(sizes.total),
        pages(sizes.resident()),
        pages(sizes.file),
        pages(sizes.text),
        pages(sizes.data + sizes.stack)
    );
    Ok(line.into_bytes())
}

pub(super) fn status(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let thread = subject.thread().ok();
    let family = family(subject)?;
    let mut out = b"Name:\t".to_vec();
    for byte in name(subject) {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            byte => out.push(byte),
        }
    }
    let (letter, word) = state(&process, thread.as_ref());
    let mut text = String::from("\n");
    let w = &mut text;
    if let Some(thread) = &thread {
        let _ = writeln!(w, "Umask:\t{:04o}", thread.fs().umask());
    }
    let _ = writeln!(w, "State:\t{letter} ({word})");
    let _ = writeln!(w, "Tgid:\t{}\nNgid:\t0\nPid:\t{}", subject.pid, subject.tid);
    let _ = writeln!(w, "PPid:\t{}\nTracerPid:\t0", family.parent);
    if let Some(thread) = &thread {
        let cred = thread.cred();
        let _ = writeln!(w, "Uid:\t{}\t{}\t{}\t{}", cred.uid, cred.euid, cred.suid, cred.fsuid);
        let _ = writeln!(w, "Gid:\t{}\t{}\t{}\t{}", cred.gid, cred.egid, cred.sgid, cred.fsgid);
        let _ = writeln!(w, "FDSize:\t{}", thread.files().capacity().max(64).next_power_of_two());
        w.push_str("Groups:\t");
        for group in cred.groups.iter() {
            let _ = write!(w, "{group} ");
        }
        w.push('\n');
    }
    let _ = writeln!(w, "NStgid:\t{}\nNSpid:\t{}", subject.pid, subject.tid);
    let _ = writeln!(w, "NSpgid:\t{}\nNSsid:\t{}\nKthread:\t0", family.pgid, family.sid);
    if !process.is_zombie() {
        memory_lines(w, &process);
    }
    let _ = writeln!(
        w,
        "CoreDumping:\t0\nTHP_enabled:\t1\nThreads:\t{}",
        process.thread_count()
    );
    signal_lines(w, &process, thread.as_ref());
    if let Some(thread) = &thread {
        let cred = thread.cred();
        for (name, set) in [
            ("CapInh", cred.inheritable),
            ("CapPrm", cred.permitted),
            ("CapEff", cred.effective),
            ("CapBnd", cred.bounding),
            ("CapAmb", cred.ambient),
        ] {
            let _ = writeln!(w, "{name}:\t{:016x}", set.bits());
        }
        let _ = writeln!(
            w,
            "NoNewPrivs:\t{}\nSeccomp:\t0\nSeccomp_filters:\t0",
            u8::from(cred.no_new_privs)
        );
    }
    w.push_str("Speculation_Store_Bypass:\tvulnerable\nSpeculationIndirectBranch:\tconditional enabled\n");
    let mask = thread
        .as_ref()
        .map_or_else(system::processor_mask, |thread| thread.scheduling.lock().mask());
    let words: Vec<String> = mask
        .iter()
        .rev()
        .flat_map(|word| [word >> 32, word & 0xffff_ffff])
        .map(|half| format!("{half:08x}"))
        .collect();
    let short = words.iter().position(|word| word != "00000000").unwrap_or(0);
    let _ = writeln!(
        w,
        "Cpus_allowed:\t{}",
        words.get(short..).unwrap_or_default().join(",").trim_start_matches('0')
    );
    let _ = writeln!(w, "Cpus_allowed_list:\t{}", system::mask_list(&mask));
    w.push_str("Mems_allowed:\t1\nMems_allowed_list:\t0\n");
    let usage = process.usage();
    let _ = writeln!(w, "voluntary_ctxt_switches:\t{}", usage.voluntary_switches);
    let _ = writeln!(w, "nonvoluntary_ctxt_switches:\t{}", usage.involuntary_switches);
    out.extend_from_slice(text.as_bytes());
    Ok(out)
}

fn memory_lines(w: &mut String, process: &Process) {
    let mm = process.mm();
    let sizes = maps::Sizes::of(&mm);
    let (_, peak) = mm.total();
    for (name, bytes) in [
        ("VmPeak", peak),
        ("VmSize", sizes.total),
        ("VmLck", mm.locked()),
        ("VmPin", 0),
        ("VmHWM", sizes.resident()),
        ("VmRSS", sizes.resident()),
        ("RssAnon", sizes.resident() - sizes.file - sizes.shared),
        ("RssFile", sizes.file),
        ("RssShmem", sizes.shared),
        ("VmData", sizes.data),
        ("VmStk", sizes.stack),
        ("VmExe", sizes.text),
        ("VmLib", sizes.file.saturating_sub(sizes.text)),
        ("VmPTE", sizes.total / 512),
        ("VmSwap", 0),
        ("HugetlbPages", 0),
    ] {
        let _ = writeln!(w, "{name}:\t{:>8} kB", bytes / 1024);
    }
}

fn signal_lines(w: &mut String, process: &Process, thread: Option<&Arc<Thread>>) {
    let shared = process.signals.lock().queue.set();
    let (own, mask) = match thread {
        Some(thread) => {
            let signals = thread.signals.lock();
            (signals.queue.set(), signals.mask)
        }
        None => (SigSet::EMPTY, SigSet::EMPTY),
    };
    let (ignored, caught) = process.actions().sets();
    let queued = own.0.count_ones() + shared.0.count_ones();
    let limit = process.limits.read().get(Resource::SIGPENDING).current;
    let _ = writeln!(w, "SigQ:\t{queued}/{limit}");
    let sets = [
        ("SigPnd", own),
        ("ShdPnd", shared),
        ("SigBlk", mask),
        ("SigIgn", ignored),
        ("SigCgt", caught),
    ];
    for (name, set) in sets {
        let _ = writeln!(w, "{name}:\t{:016x}", set.0);
    }
}

pub(super) fn limits(subject: &Subject) -> Result<Vec<u8>, Errno> {
    const ROWS: [(&str, Resource, &str); 16] = [
        ("Max cpu time", Resource::CPU, "seconds"),
        ("Max file size", Resource::FSIZE, "bytes"),
        ("Max data size", Resource::DATA, "bytes"),
        ("Max stack size", Resource::STACK, "bytes"),
        ("Max core file size", Resource::CORE, "bytes"),
        ("Max resident set", Resource::RSS, "bytes"),
        ("Max processes", Resource::NPROC, "processes"),
        ("Max open files", Resource::NOFILE, "files"),
        ("Max locked memory", Resource::MEMLOCK, "bytes"),
        ("Max address space", Resource::AS, "bytes"),
        ("Max file locks", Resource::LOCKS, "locks"),
        ("Max pending signals", Resource::SIGPENDING, "signals"),
        ("Max msgqueue size", Resource::MSGQUEUE, "bytes"),
        ("Max nice priority", Resource::NICE, ""),
        ("Max realtime priority", Resource::RTPRIO, ""),
        ("Max realtime timeout", Resource::RTTIME, "us"),
    ];
    let process = subject.process()?;
    let limits = process.limits.read().clone();
    let text = |value: u64| {
        if value == Limit::INFINITY {
            "unlimited".to_owned()
        } else {
            value.to_string()
        }
    };
    let mut out = format!(
        "{:<25} {:<20} {:<20} {:<10}\n",
        "Limit", "Soft Limit", "Hard Limit", "Units"
    );
    for (name, resource, unit) in ROWS {
        let limit = limits.get(resource);
        let _ = writeln!(
            out,
            "{name:<25} {:<20} {:<20} {unit:<10}",
            text(limit.current),
            text(limit.max)
        );
    }
    Ok(out.into_bytes())
}

pub(super) fn timer_slack(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{}\n", subject.thread()?.timer_slack()).into_bytes())
}

pub(super) fn set_timer_slack(subject: &Subject, data: &[u8]) -> Result<(), Errno> {
    let nanos: u64 = super::parse_write(data)?;
    subject.thread()?.set_timer_slack((nanos > 0).then_some(nanos));
    Ok(())
}

/// What reaches a disk is the host's to know.
pub(super) fn io(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let io = &subject.process()?.io;
    let counts = [
        ("rchar", io.read.load(Ordering::Relaxed)),
        ("wchar", io.written.load(Ordering::Relaxed)),
        ("syscr", io.reads.load(Ordering::Relaxed)),
        ("syscw", io.writes.load(Ordering::Relaxed)),
        ("read_bytes", 0),
        ("write_bytes", 0),
        ("cancelled_write_bytes", 0),
    ];
    Ok(counts
        .map(|(name, count)| format!("{name}: {count}\n"))
        .concat()
        .into_bytes())
}

pub(super) fn sched(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let mut out = String::from_utf8_lossy(&name(subject)).into_owned();
    let _ = writeln!(out, " ({}, #threads: {})", subject.tid, process.thread_count());
    out.push_str(&"-".repeat(67));
    let millis = cpu_nanos(subject) / 1_000_000;
    let _ = writeln!(
        out,
        "\nse.sum_exec_runtime                          : {millis:>20}.000000"
    );
    let _ = writeln!(out, "policy                                       : {:>20}", 0);
    let _ = writeln!(out, "prio                                         : {:>20}", 120);
    Ok(out.into_bytes())
}

pub(super) fn timers(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let mut out = String::new();
    for (id, signal) in process.timers.posix.list() {
        let number = signal.map_or(0, |signal| signal.number());
        let how = if signal.is_some() { "signal" } else { "none" };
        let _ = writeln!(
            out,
            "ID: {id}\nsignal: {number}/0\nnotify: {how}/pid.{}\nClockID: 0",
            subject.pid
        );
    }
    Ok(out.into_bytes())
}
