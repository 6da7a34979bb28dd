//! Files of /proc about the machine: cpuinfo, meminfo, stat and their kin.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_abi::time::NANOS;
use sentry_host::system::Totals;
use sentry_vfs::pseudo::StaticDir;

use super::Proc;
use crate::Kernel;
use crate::system::{self, cpuid};
use crate::task::RunState;
use crate::time::{NANOS_PER_TICK, cpu};

pub(super) fn fill(proc: &Arc<Proc>, root: &StaticDir) {
    let fs = &proc.fs;
    root.add("cmdline", fs.text("quiet\n"));
    root.add("cpuinfo", proc.text(|_| Ok(cpuinfo().into_bytes())));
    root.add("devices", fs.text(DEVICES));
    root.add("diskstats", fs.text(""));
    root.add("filesystems", fs.text(FILESYSTEMS));
    root.add("interrupts", fs.text(""));
    root.add("loadavg", proc.text(loadavg));
    root.add("locks", proc.text(locks));
    root.add(
        "meminfo",
        proc.text(|kernel| Ok(meminfo(&kernel.memory_totals()).into_bytes())),
    );
    root.add("misc", fs.text(""));
    root.add("modules", fs.text(""));
    root.add("partitions", fs.text("major minor  #blocks  name\n\n"));
    root.add("stat", proc.text(stat));
    root.add("swaps", fs.text("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"));
    root.add("uptime", proc.text(uptime));
    root.add(
        "version",
        fs.text(format!(
            "{} version {} (sentry) {}\n",
            system::SYSNAME,
            system::RELEASE,
            system::VERSION
        )),
    );
    root.add("vmstat", proc.text(|_| Ok(vmstat().into_bytes())));
}

const DEVICES: &str = "Character devices:\n  1 mem\n  4 tty\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n 10 misc\n136 pts\n\nBlock devices:\n";
const FILESYSTEMS: &str = "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tdevtmpfs\nnodev\tpipefs\nnodev\tsockfs\nnodev\tdevpts\nnodev\toverlay\nnodev\tramfs\n";

fn locks(kernel: &Arc<Kernel>) -> Result<Vec<u8>, Errno> {
    let mut out = String::new();
    for (index, lock) in kernel.locks.list().iter().enumerate() {
        let _ = writeln!(out, "{}: {}", index + 1, lock.line());
    }
    Ok(out.into_bytes())
}

fn host_nanos(clock: i32) -> u64 {
    sentry_host::clock::get(clock).map_or(0, |(sec, nsec)| {
        u64::try_from(sec).unwrap_or(0) * NANOS + u64::from(nsec)
    })
}

fn centis(nanos: u64) -> String {
    format!("{}.{:02}", nanos / NANOS, nanos % NANOS / 10_000_000)
}

/// CPU time of all processes, the ended ones that were waited for included.
fn busy_nanos(kernel: &Arc<Kernel>) -> u64 {
    let processes: Vec<_> = kernel
        .tasks
        .read()
        .processes()
        .map(|node| node.process.clone())
        .collect();
    let one = |process: &crate::task::Process| {
        let ended = *process.child_usage.lock();
        cpu::process_nanos(process)
            .saturating_add(ended.user_nanos)
            .saturating_add(ended.system_nanos)
    };
    processes
        .iter()
        .map(|process| one(process))
        .fold(0, u64::saturating_add)
}

fn uptime(kernel: &Arc<Kernel>) -> Result<Vec<u8>, Errno> {
    let up = host_nanos(libc::CLOCK_BOOTTIME);
    let idle = up
        .saturating_mul(system::processors().len() as u64)
        .saturating_sub(busy_nanos(kernel));
    Ok(format!("{} {}\n", centis(up), centis(idle)).into_bytes())
}

fn loadavg(kernel: &Arc<Kernel>) -> Result<Vec<u8>, Errno> {
    let load = |value: u64| format!("{}.{:02}", value >> 16, ((value & 0xffff) * 100) >> 16);
    let [one, five, fifteen] = system::totals().loads.map(load);
    let tasks = kernel.tasks.read();
    let (mut running, mut all, mut last) = (0, 0, 0);
    for thread in tasks.threads() {
        all += 1;
        running += u32::from(thread.state() == RunState::Running);
        last = last.max(thread.tid());
    }
    Ok(format!("{one} {five} {fifteen} {running}/{all} {last}\n").into_bytes())
}

fn stat(kernel: &Arc<Kernel>) -> Result<Vec<u8>, Errno> {
    let cpus = system::processors();
    let up = host_nanos(libc::CLOCK_BOOTTIME);
    let busy = busy_nanos(kernel) / NANOS_PER_TICK;
    let idle = (up / NANOS_PER_TICK)
        .saturating_mul(cpus.len() as u64)
        .saturating_sub(busy);
    let mut out = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n");
    let count = cpus.len().max(1) as u64;
    for number in 0..cpus.len() {
        let _ = writeln!(out, "cpu{number} {} 0 0 {} 0 0 0 0 0 0", busy / count, idle / count);
    }
    let boot = host_nanos(libc::CLOCK_REALTIME).saturating_sub(up) / NANOS;
    let running = kernel
        .tasks
        .read()
        .threads()
        .filter(|thread| thread.state() == RunState::Running)
        .count();
    let forks = kernel.forks.load(Ordering::Relaxed);
    let _ = writeln!(
        out,
        "intr 0\nctxt 0\nbtime {boot}\nprocesses {forks}\nprocs_running {running}\nprocs_blocked 0"
    );
    out.push_str("softirq 0 0 0 0 0 0 0 0 0 0 0\n");
    Ok(out.into_bytes())
}

fn meminfo(totals: &Totals) -> String {
    let cached = totals.buffer_ram;
    let available = totals.free_ram.saturating_add(cached);
    let mut out = String::new();
    for (name, bytes) in [
        ("MemTotal", totals.total_ram),
        ("MemFree", totals.free_ram),
        ("MemAvailable", available),
        ("Buffers", totals.buffer_ram),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("Active(anon)", 0),
        ("Inactive(anon)", 0),
        ("Active(file)", 0),
        ("Inactive(file)", 0),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", totals.total_swap),
        ("SwapFree", totals.free_swap),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", totals.shared_ram),
        ("KReclaimable", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("KernelStack", 0),
        ("PageTables", 0),
        ("CommitLimit", totals.total_ram / 2),
        ("Committed_AS", 0),
        ("VmallocTotal", 0x1fff_ffff_fc00),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
    ] {
        let _ = writeln!(out, "{:<16}{:>8} kB", format!("{name}:"), bytes / 1024);
    }
    out.push_str(
        "HugePages_Total:       0\nHugePages_Free:        0\nHugePages_Rsvd:        0\nHugePages_Surp:        0\n",
    );
    out.push_str("Hugepagesize:       2048 kB\n");
    out
}

fn vmstat() -> String {
    let totals = system::totals();
    let mut out = format!("nr_free_pages {}\n", totals.free_ram / sentry_abi::PAGE_SIZE);
    for name in [
        "nr_dirty",
        "nr_writeback",
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "pgfault",
        "pgmajfault",
        "oom_kill",
    ] {
        let _ = writeln!(out, "{name} 0");
    }
    out
}

fn text_of(registers: &[u32]) -> String {
    let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default())
        .trim()
        .to_owned()
}

fn cpuinfo() -> String {
    let vendor = cpuid::leaf(0, 0);
    let one = cpuid::leaf(1, 0);
    let brand: Vec<u32> = (0x8000_0002..=0x8000_0004)
        .flat_map(|leaf| cpuid::leaf(leaf, 0))
        .collect();
    let sizes = cpuid::leaf(0x8000_0008, 0)[0];
    let (mut family, mut model) = (one[0] >> 8 & 0xf, one[0] >> 4 & 0xf);
    if family == 6 || family == 15 {
        model |= one[0] >> 12 & 0xf0;
    }
    if family == 15 {
        family += one[0] >> 20 & 0xff;
    }
    let cpus = system::processors();
    let mhz = f64::from(cpuid::leaf(0x16, 0)[0].max(1000));
    let flush = (one[1] >> 8 & 0xff) * 8;
    let mut out = String::new();
    for number in 0..cpus.len() {
        let _ = write!(
            out,
            "processor\t: {number}\nvendor_id\t: {}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {}\n\
             stepping\t: {}\ncpu MHz\t\t: {mhz:.3}\ncache size\t: {} KB\nphysical id\t: 0\nsiblings\t: {}\n\
             core id\t\t: {number}\ncpu cores\t: {}\napicid\t\t: {number}\ninitial apicid\t: {number}\nfpu\t\t: yes\n\
             fpu_exception\t: yes\ncpuid level\t: {}\nwp\t\t: yes\nflags\t\t: {}\nbugs\t\t:\nbogomips\t: {:.2}\n\
             clflush size\t: {flush}\ncache_alignment\t: {flush}\naddress sizes\t: {} bits physical, {} bits virtual\n\
             power management:\n\n",
            text_of(&[vendor[1], vendor[3], vendor[2]]),
            text_of(&brand),
            one[0] & 0xf,
            cpuid::leaf(0x8000_0006, 0)[2] >> 16,
            cpus.len(),
            cpus.len(),
            vendor[0],
            flags().join(" "),
            mhz * 2.0,
            sizes & 0xff,
            sizes >> 8 & 0xff,
        );
    }
    out
}

/// Names of processor features: leaf, register (eax 0 … edx 3), and bits by number.
#[allow(clippy::type_complexity)]
#[rustfmt::skip]
const FEATURES: &[(u32, usize, &[(u32, &str)])] = &[
    (1, 3, &[
        (0, "fpu"), (1, "vme"), (2, "de"), (3, "pse"), (4, "tsc"), (5, "msr"), (6, "pae"), (7, "mce"), (8, "cx8"), (9, "apic"),
        (11, "sep"), (12, "mtrr"), (13, "pge"), (14, "mca"), (15, "cmov"), (16, "pat"), (17, "pse36"), (19, "clflush"),
        (23, "mmx"), (24, "fxsr"), (25, "sse"), (26, "sse2"), (27, "ss"), (28, "ht"),
    ]),
    (0x8000_0001, 3, &[
        (11, "syscall"), (20, "nx"), (22, "mmxext"), (25, "fxsr_opt"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm"),
    ]),
    (1, 2, &[
        (0, "pni"), (1, "pclmulqdq"), (9, "ssse3"), (12, "fma"), (13, "cx16"), (19, "sse4_1"), (20, "sse4_2"), (21, "x2apic"),
        (22, "movbe"), (23, "popcnt"), (25, "aes"), (26, "xsave"), (28, "avx"), (29, "f16c"), (30, "rdrand"), (31, "hypervisor"),
    ]),
    (0x8000_0001, 2, &[
        (0, "lahf_lm"), (5, "abm"), (6, "sse4a"), (7, "misalignsse"), (8, "3dnowprefetch"),
    ]),
    (7, 1, &[
        (0, "fsgsbase"), (3, "bmi1"), (5, "avx2"), (7, "smep"), (8, "bmi2"), (9, "erms"), (16, "avx512f"), (17, "avx512dq"),
        (18, "rdseed"), (19, "adx"), (20, "smap"), (21, "avx512ifma"), (23, "clflushopt"), (24, "clwb"), (28, "avx512cd"),
        (29, "sha_ni"), (30, "avx512bw"), (31, "avx512vl"),
    ]),
    (7, 2, &[
        (1, "avx512vbmi"), (2, "umip"), (6, "avx512_vbmi2"), (8, "gfni"), (9, "vaes"), (10, "vpclmulqdq"), (11, "avx512_vnni"),
        (12, "avx512_bitalg"), (14, "avx512_vpopcntdq"), (22, "rdpid"),
    ]),
    (7, 3, &[(4, "fsrm"), (14, "serialize")]),
    (0xd, 0, &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1"), (3, "xsaves")]),
];

/// The features that the processor has and programs can use.
fn flags() -> Vec<&'static str> {
    let mut out = Vec::new();
    for (leaf, register, bits) in FEATURES {
        let sub = u32::from(*leaf == 0xd);
        let value = cpuid::leaf(*leaf, sub).get(*register).copied().unwrap_or(0);
        out.extend(
            bits.iter()
                .filter(|(bit, _)| value & 1 << bit != 0)
                .map(|(_, name)| *name),
        );
    }
    out.extend(["constant_tsc", "rep_good", "nopl", "cpuid"]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_processor() {
        let text = cpuinfo();
        assert!(text.starts_with("processor\t: 0\nvendor_id\t: "));
        assert!(text.contains("sse2") && text.contains(" lm "));
        assert!(meminfo(&system::totals()).starts_with("MemTotal:"));
        assert_eq!(centis(1_230_000_000), "1.23");
    }
}
