//! `/proc/sys`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sentry_abi::Errno;
use sentry_vfs::inode::Inode;
use sentry_vfs::pseudo::{ReadWrite, StaticDir};

use super::Proc;
use crate::Kernel;
use crate::inotify::{HIGHEST, Limits};
use crate::namespace::UtsNamespace;
use crate::system;
use crate::task::pid::{PID_MAX, THREADS_MAX};
use crate::tty::MAX_PTYS;

/// Settings that never change: directory, name, value.
const FIXED: &[(&str, &str, &str)] = &[
    ("dev/tty", "ldisc_autoload", "0"),
    ("dev/tty", "legacy_tiocsti", "0"),
    ("fs", "aio-max-nr", "65536"),
    ("fs", "aio-nr", "0"),
    ("fs", "dentry-state", "0\t0\t45\t0\t0\t0"),
    ("fs", "file-max", "524288"),
    ("fs", "file-nr", "0\t0\t524288"),
    ("fs", "inode-nr", "0\t0"),
    ("fs", "mount-max", "100000"),
    ("fs", "nr_open", "1048576"),
    ("fs", "overflowgid", "65534"),
    ("fs", "overflowuid", "65534"),
    ("fs", "pipe-max-size", "1048576"),
    ("fs", "pipe-user-pages-hard", "0"),
    ("fs", "pipe-user-pages-soft", "16384"),
    ("fs", "protected_fifos", "1"),
    ("fs", "protected_hardlinks", "1"),
    ("fs", "protected_regular", "2"),
    ("fs", "protected_symlinks", "1"),
    ("fs", "suid_dumpable", "0"),
    ("fs/epoll", "max_user_watches", "262144"),
    ("fs/mqueue", "msg_max", "10"),
    ("fs/mqueue", "msgsize_max", "8192"),
    ("fs/mqueue", "queues_max", "256"),
    ("kernel", "cap_last_cap", "40"),
    ("kernel", "core_pattern", "core"),
    ("kernel", "core_uses_pid", "0"),
    ("kernel", "dmesg_restrict", "1"),
    ("kernel", "io_uring_disabled", "2"),
    ("kernel", "hung_task_timeout_secs", "0"),
    ("kernel", "modules_disabled", "1"),
    ("kernel", "kptr_restrict", "2"),
    ("kernel", "msgmax", "8192"),
    ("kernel", "msgmnb", "16384"),
    ("kernel", "msgmni", "32000"),
    ("kernel", "msg_next_id", "-1"),
    ("kernel", "ngroups_max", "65536"),
    ("kernel", "numa_balancing", "0"),
    ("kernel", "osrelease", system::RELEASE),
    ("kernel", "ostype", system::SYSNAME),
    ("kernel", "overflowgid", "65534"),
    ("kernel", "overflowuid", "65534"),
    ("kernel", "panic", "0"),
    ("kernel", "perf_event_paranoid", "4"),
    ("kernel", "printk", "4\t4\t1\t7"),
    ("kernel", "randomize_va_space", "2"),
    ("kernel", "sched_autogroup_enabled", "0"),
    ("kernel", "sched_rt_period_us", "1000000"),
    ("kernel", "sched_rt_runtime_us", "950000"),
    ("kernel", "sem", "32000\t1024000000\t500\t32000"),
    ("kernel", "sem_next_id", "-1"),
    ("kernel", "shm_next_id", "-1"),
    ("kernel", "shm_rmid_forced", "0"),
    ("kernel", "shmall", "18446744073692774399"),
    ("kernel", "shmmax", "18446744073692774399"),
    ("kernel", "shmmni", "4096"),
    ("kernel", "sysrq", "0"),
    ("kernel", "tainted", "0"),
    ("kernel", "unprivileged_bpf_disabled", "2"),
    ("kernel", "version", system::VERSION),
    ("kernel/pty", "reserve", "1024"),
    ("kernel/random", "entropy_avail", "256"),
    ("kernel/random", "poolsize", "256"),
    ("kernel/random", "urandom_min_reseed_secs", "60"),
    ("kernel/random", "write_wakeup_threshold", "256"),
    ("kernel/yama", "ptrace_scope", "1"),
    ("net/core", "rmem_default", "212992"),
    ("net/core", "rmem_max", "212992"),
    ("net/core", "somaxconn", "4096"),
    ("net/core", "default_qdisc", "pfifo_fast"),
    ("net/core", "netdev_max_backlog", "1000"),
    ("net/core", "optmem_max", "131072"),
    ("net/core", "wmem_default", "212992"),
    ("net/core", "wmem_max", "212992"),
    ("net/ipv4", "ip_local_port_range", "32768\t60999"),
    ("net/ipv4", "icmp_echo_ignore_all", "0"),
    ("net/ipv4", "ip_default_ttl", "64"),
    ("net/ipv4", "ip_forward", "0"),
    ("net/ipv4", "ip_local_reserved_ports", ""),
    ("net/ipv4", "ip_nonlocal_bind", "0"),
    ("net/ipv4", "ip_unprivileged_port_start", "1024"),
    ("net/ipv4", "ping_group_range", "1\t0"),
    ("net/ipv4", "tcp_allowed_congestion_control", "reno cubic"),
    ("net/ipv4", "tcp_ecn", "2"),
    ("net/ipv4", "tcp_fastopen", "1"),
    ("net/ipv4", "tcp_fin_timeout", "60"),
    ("net/ipv4", "tcp_keepalive_intvl", "75"),
    ("net/ipv4", "tcp_keepalive_probes", "9"),
    ("net/ipv4", "tcp_keepalive_time", "7200"),
    ("net/ipv4", "tcp_max_tw_buckets", "16384"),
    ("net/ipv4", "tcp_mem", "47160\t62882\t94320"),
    ("net/ipv4", "tcp_mtu_probing", "0"),
    ("net/ipv4", "tcp_no_metrics_save", "0"),
    ("net/ipv4", "tcp_orphan_retries", "0"),
    ("net/ipv4", "tcp_retries1", "3"),
    ("net/ipv4", "tcp_retries2", "15"),
    ("net/ipv4", "tcp_sack", "1"),
    ("net/ipv4", "tcp_slow_start_after_idle", "1"),
    ("net/ipv4", "tcp_syn_retries", "6"),
    ("net/ipv4", "tcp_synack_retries", "5"),
    ("net/ipv4", "tcp_syncookies", "1"),
    ("net/ipv4", "tcp_timestamps", "1"),
    ("net/ipv4", "tcp_tw_reuse", "2"),
    ("net/ipv4", "tcp_window_scaling", "1"),
    ("net/ipv4", "udp_mem", "94323\t125767\t188646"),
    ("net/ipv4", "udp_rmem_min", "4096"),
    ("net/ipv4", "udp_wmem_min", "4096"),
    ("net/ipv4/conf/all", "forwarding", "0"),
    ("net/ipv4/conf/all", "rp_filter", "0"),
    ("net/ipv4/conf/default", "forwarding", "0"),
    ("net/ipv4/conf/default", "rp_filter", "0"),
    ("net/ipv4/conf/lo", "forwarding", "0"),
    ("net/ipv4/conf/lo", "rp_filter", "0"),
    ("net/ipv6", "bindv6only", "0"),
    ("net/ipv6/conf/all", "disable_ipv6", "0"),
    ("net/ipv6/conf/all", "forwarding", "0"),
    ("net/ipv6/conf/default", "disable_ipv6", "0"),
    ("net/ipv6/conf/default", "forwarding", "0"),
    ("net/ipv6/conf/lo", "disable_ipv6", "0"),
    ("net/ipv6/conf/lo", "forwarding", "0"),
    ("net/ipv4", "tcp_available_congestion_control", "reno cubic"),
    ("net/ipv4", "tcp_congestion_control", "cubic"),
    ("net/ipv4", "tcp_max_syn_backlog", "512"),
    ("net/ipv4", "tcp_rmem", "4096\t131072\t6291456"),
    ("net/ipv4", "tcp_wmem", "4096\t16384\t4194304"),
    ("net/unix", "max_dgram_qlen", "512"),
    ("user", "max_user_namespaces", "0"),
    ("user", "max_mnt_namespaces", "10000"),
    ("user", "max_uts_namespaces", "10000"),
    ("vm", "dirty_background_ratio", "10"),
    ("vm", "dirty_ratio", "20"),
    ("vm", "hugetlb_shm_group", "0"),
    ("vm", "max_map_count", "65530"),
    ("vm", "min_free_kbytes", "67584"),
    ("vm", "mmap_min_addr", "65536"),
    ("vm", "nr_hugepages", "0"),
    ("vm", "nr_overcommit_hugepages", "0"),
    ("vm", "overcommit_kbytes", "0"),
    ("vm", "overcommit_memory", "1"),
    ("vm", "overcommit_ratio", "50"),
    ("vm", "swappiness", "60"),
    ("vm", "vfs_cache_pressure", "100"),
];

/// The tree.
pub(super) fn directory(proc: &Arc<Proc>) -> Arc<dyn Inode> {
    let root = proc.fs.directory(0o555);
    let mut dirs: Vec<(String, Arc<StaticDir>)> = vec![(String::new(), root.clone())];
    for (dir, name, value) in FIXED {
        let path = format!("{dir}/{name}");
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
        find(proc, &mut dirs, dir).add(name, proc.fs.text(format!("{value}\n")));
    }
    let kernel = find(proc, &mut dirs, "kernel");
    kernel.add("pid_max", proc.fs.text(format!("{PID_MAX}\n")));
    kernel.add("threads-max", proc.fs.text(format!("{THREADS_MAX}\n")));
    kernel.add("hostname", name_file(proc, true));
    kernel.add("domainname", name_file(proc, false));
    let pty = find(proc, &mut dirs, "kernel/pty");
    pty.add("max", proc.fs.text(format!("{MAX_PTYS}\n")));
    let count = proc.clone();
    let count = move || Ok(format!("{}\n", count.kernel()?.terminals.count()).into_bytes());
    pty.add("nr", proc.fs.file(0o444, count));
    let inotify = find(proc, &mut dirs, "fs/inotify");
    for (index, name) in ["max_queued_events", "max_user_instances", "max_user_watches"]
        .iter()
        .enumerate()
    {
        inotify.add(name, inotify_limit(proc, index));
    }
    find(proc, &mut dirs, "fs").add("lease-break-time", lease_break_time(proc));
    let random = find(proc, &mut dirs, "kernel/random");
    let boot_id = uuid().unwrap_or_default();
    random.add("boot_id", proc.fs.text(boot_id));
    random.add("uuid", proc.text(|_| uuid()));
    root
}

/// The directory of a path, made if it is not there.
fn find(proc: &Arc<Proc>, dirs: &mut Vec<(String, Arc<StaticDir>)>, path: &str) -> Arc<StaticDir> {
    if let Some((_, dir)) = dirs.iter().find(|(known, _)| known == path) {
        return dir.clone();
    }
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = find(proc, dirs, above);
    let dir = proc.fs.directory(0o555);
    parent.add(name, dir.clone());
    dirs.push((path.to_owned(), dir.clone()));
    dir
}

/// The host names of whoever reads or writes.
fn uts(kernel: &Kernel) -> Arc<UtsNamespace> {
    let reader = kernel.thread(crate::task::current());
    reader.map_or_else(|| kernel.uts.clone(), |thread| thread.uts())
}

/// hostname and domainname: root may write them, as the mode says.
fn name_file(proc: &Arc<Proc>, host: bool) -> Arc<dyn Inode> {
    let (reader, writer) = (proc.clone(), proc.clone());
    let read = move || {
        let names = uts(&*reader.kernel()?).names();
        let mut text = if host { names.host } else { names.domain };
        text.push(b'\n');
        Ok(text)
    };
    let write = move |data: &[u8], _offset: u64| {
        let end = data
            .iter()
            .position(|&byte| byte == 0 || byte == b'\n')
            .unwrap_or(data.len())
            .min(64);
        let name = data.get(..end).unwrap_or_default().to_vec();
        uts(&*writer.kernel()?).change(|names| {
            let place = if host { &mut names.host } else { &mut names.domain };
            *place = name;
        });
        Ok(data.len())
    };
    proc.fs.file(0o644, ReadWrite { read, write })
}

/// A limit of inotify(7), which root may set up to what the sentry can bear.
fn inotify_limit(proc: &Arc<Proc>, index: usize) -> Arc<dyn Inode> {
    fn limit(limits: &Limits, index: usize) -> &AtomicU32 {
        match index {
            0 => &limits.max_queued_events,
            1 => &limits.max_user_instances,
            _ => &limits.max_user_watches,
        }
    }
    let (reader, writer) = (proc.clone(), proc.clone());
    let read = move || {
        let value = limit(&reader.kernel()?.inotify, index).load(Ordering::Relaxed);
        Ok(format!("{value}\n").into_bytes())
    };
    let write = move |data: &[u8], _offset: u64| {
        let value: u32 = super::parse_write(data)?;
        let highest = HIGHEST.get(index).copied().unwrap_or(value);
        if value > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        limit(&writer.kernel()?.inotify, index).store(value.min(highest), Ordering::Relaxed);
        Ok(data.len())
    };
    proc.fs.file(0o644, ReadWrite { read, write })
}

/// How long holders of leases have to give them up, in seconds.
fn lease_break_time(proc: &Arc<Proc>) -> Arc<dyn Inode> {
    let (reader, writer) = (proc.clone(), proc.clone());
    let read = move || {
        let seconds = reader.kernel()?.leases.break_time.load(Ordering::Relaxed);
        Ok(format!("{seconds}\n").into_bytes())
    };
    let write = move |data: &[u8], _offset: u64| {
        let seconds: u32 = super::parse_write(data)?;
        if seconds > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        writer.kernel()?.leases.break_time.store(seconds, Ordering::Relaxed);
        Ok(data.len())
    };
    proc.fs.file(0o644, ReadWrite { read, write })
}

/// A random UUID (version 4) and a newline.
fn uuid() -> Result<Vec<u8>, Errno> {
    let mut bytes = [0u8; 16];
    sentry_host::memory_file::random(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = hex.concat();
    let parts = [
        hex.get(..8),
        hex.get(8..12),
        hex.get(12..16),
        hex.get(16..20),
        hex.get(20..),
    ];
    Ok(format!("{}\n", parts.map(Option::unwrap_or_default).join("-")).into_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_their_form() {
        let text = String::from_utf8(uuid().unwrap()).unwrap();
        assert_eq!(text.len(), 37);
        let lengths: Vec<usize> = text.trim().split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(text.as_bytes()[14], b'4');
    }
}
