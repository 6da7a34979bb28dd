//! A small `/sys`: processors, the one memory node, and empty directories where programs look.

use std::sync::Arc;

use sentry_vfs::mount::FileSystem;
use sentry_vfs::pseudo::{PseudoFs, StaticDir};

use crate::system;

/// `SYSFS_MAGIC`.
const SYS_MAGIC: u64 = 0x6265_6572;

/// A new /sys.
pub fn sys_fs() -> Arc<FileSystem> {
    let fs = PseudoFs::new(SYS_MAGIC);
    let root = fs.directory(0o555);
    for name in ["block", "bus", "dev", "firmware", "module", "power"] {
        root.add(name, fs.directory(0o555));
    }
    let class = fs.directory(0o555);
    for name in ["net", "block", "tty", "dmi"] {
        class.add(name, fs.directory(0o555));
    }
    root.add("class", class);
    let file_systems = fs.directory(0o555);
    file_systems.add("cgroup", fs.directory(0o555));
    root.add("fs", file_systems);
    root.add("kernel", kernel(&fs));
    let devices = fs.directory(0o555);
    let devices_system = fs.directory(0o555);
    devices_system.add("cpu", processors(&fs)).add("node", nodes(&fs));
    devices
        .add("system", devices_system)
        .add("virtual", fs.directory(0o555));
    root.add("devices", devices);
    FileSystem::new(root, "sysfs", "sysfs", "")
}

fn text(fs: &Arc<PseudoFs>, dir: &StaticDir, name: &str, value: impl std::fmt::Display) {
    dir.add(name, fs.text(format!("{value}\n")));
}

fn kernel(fs: &Arc<PseudoFs>) -> Arc<StaticDir> {
    let kernel = fs.directory(0o555);
    let (mm, huge) = (fs.directory(0o555), fs.directory(0o555));
    text(fs, &huge, "enabled", "always [madvise] never");
    text(fs, &huge, "defrag", "always defer defer+madvise [madvise] never");
    text(
        fs,
        &huge,
        "shmem_enabled",
        "always within_size advise [never] deny force",
    );
    text(fs, &huge, "use_zero_page", 1);
    text(fs, &huge, "hpage_pmd_size", 2 << 20);
    mm.add("transparent_hugepage", huge)
        .add("hugepages", fs.directory(0o555));
    kernel
        .add("mm", mm)
        .add("debug", fs.directory(0o500))
        .add("security", fs.directory(0o555));
    kernel
}

fn processors(fs: &Arc<PseudoFs>) -> Arc<StaticDir> {
    let cpu = fs.directory(0o555);
    let list = system::processor_list();
    for name in ["online", "possible", "present"] {
        text(fs, &cpu, name, &list);
    }
    text(fs, &cpu, "offline", "");
    text(fs, &cpu, "isolated", "");
    text(fs, &cpu, "kernel_max", 8191);
    text(fs, &cpu, "uevent", "");
    let weaknesses = fs.directory(0o555);
    for name in [
        "l1tf",
        "mds",
        "meltdown",
        "retbleed",
        "spec_store_bypass",
        "spectre_v1",
        "spectre_v2",
        "srbds",
    ] {
        text(fs, &weaknesses, name, "Unknown: the host's matter");
    }
    cpu.add("vulnerabilities", weaknesses);
    let all = mask(system::processors());
    for number in system::processors() {
        let dir = fs.directory(0o555);
        let topology = fs.directory(0o555);
        let own = mask(&[*number]);
        text(fs, &topology, "core_id", number);
        for name in ["physical_package_id", "die_id", "cluster_id"] {
            text(fs, &topology, name, 0);
        }
        for name in ["thread_siblings", "core_cpus"] {
            text(fs, &topology, name, &own);
            text(fs, &topology, &format!("{name}_list"), number);
        }
        for name in ["core_siblings", "package_cpus", "die_cpus", "cluster_cpus"] {
            text(fs, &topology, name, &all);
            text(fs, &topology, &format!("{name}_list"), &list);
        }
        text(fs, &dir, "online", 1);
        dir.add("topology", topology).add("cache", caches(fs, *number));
        cpu.add(format!("cpu{number}"), dir);
    }
    cpu
}

/// A set of processors as the kernel prints it: groups of 32 bits, the highest first.
fn mask(numbers: &[usize]) -> String {
    let mut groups = vec![0u32; numbers.iter().max().map_or(1, |last| last / 32 + 1)];
    for number in numbers {
        if let Some(group) = groups.get_mut(number / 32) {
            *group |= 1 << (number % 32);
        }
    }
    let mut groups = groups.iter().rev();
    let first = groups.next().map_or_else(String::new, |group| format!("{group:x}"));
    groups.fold(first, |text, group| format!("{text},{group:08x}"))
}

/// Caches from cpuid leaf 4 (Intel) or 0x8000001d (AMD).
fn caches(fs: &Arc<PseudoFs>, number: usize) -> Arc<StaticDir> {
    let dir = fs.directory(0o555);
    let leaf = if system::cpuid::leaf(4, 0)[0] & 0x1f != 0 {
        4
    } else {
        0x8000_001d
    };
    for index in 0..8 {
        let [a, b, c, _] = system::cpuid::leaf(leaf, index);
        let kind = match a & 0x1f {
            1 => "Data",
            2 => "Instruction",
            3 => "Unified",
            _ => break,
        };
        let (ways, parts, line) = (
            u64::from(b >> 22) + 1,
            u64::from(b >> 12 & 0x3ff) + 1,
            u64::from(b & 0xfff) + 1,
        );
        let sets = u64::from(c) + 1;
        let cache = fs.directory(0o555);
        text(fs, &cache, "level", a >> 5 & 7);
        text(fs, &cache, "type", kind);
        text(fs, &cache, "size", format!("{}K", ways * parts * line * sets / 1024));
        text(fs, &cache, "coherency_line_size", line);
        text(fs, &cache, "ways_of_associativity", ways);
        text(fs, &cache, "number_of_sets", sets);
        text(fs, &cache, "physical_line_partition", parts);
        // The last level is shared by all.
        let all = a >> 5 & 7 >= 3;
        let sharers = if all {
            system::processors()
        } else {
            std::slice::from_ref(&number)
        };
        let list = if all {
            system::processor_list()
        } else {
            number.to_string()
        };
        text(fs, &cache, "shared_cpu_list", list);
        text(fs, &cache, "shared_cpu_map", mask(sharers));
        text(fs, &cache, "id", if all { 0 } else { number });
        dir.add(format!("index{index}"), cache);
    }
    dir
}

fn nodes(fs: &Arc<PseudoFs>) -> Arc<StaticDir> {
    let node = fs.directory(0o555);
    for name in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
        text(fs, &node, name, 0);
    }
    let zero = fs.directory(0o555);
    text(fs, &zero, "cpulist", system::processor_list());
    text(fs, &zero, "cpumap", mask(system::processors()));
    text(fs, &zero, "distance", 10);
    zero.add(
        "meminfo",
        fs.file(0o444, || {
            let totals = system::totals();
            let line = |name: &str, bytes: u64| format!("Node 0 {:<16}{:>8} kB\n", format!("{name}:"), bytes / 1024);
            let used = totals.total_ram.saturating_sub(totals.free_ram);
            let all = [
                line("MemTotal", totals.total_ram),
                line("MemFree", totals.free_ram),
                line("MemUsed", used),
            ];
            Ok(all.concat().into_bytes())
        }),
    );
    node.add("node0", zero);
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(mask(&[0, 1]), "3");
        assert_eq!(mask(&[33]), "2,00000000");
        assert_eq!(mask(&[]), "0");
    }
}
