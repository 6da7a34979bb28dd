//! Attempts to get at the host beyond its files: processes, sockets, kernel interfaces, descriptors, secrets of whoever
//! started the sandbox, life beyond its end. `guest attempt NAME VICTIM SOCKET` makes one; VICTIM is the id of a process
//! of the host, SOCKET the name of an abstract socket and of a file where it listens. It exits with 0 if the attempt came to
//! nothing and prints `escaped: …` if not. The runner looks at the host's side too.

use crate::sys::*;
use crate::{ok, sys};

/// What an attempt is told.
pub struct Host<'a> {
    victim: i32,
    socket: &'a str,
}

type Attempt = (&'static str, fn(&Host<'_>) -> Result<(), String>);

/// Fails if the call had success.
fn refused(what: &str, result: i64) -> Result<(), String> {
    if result < 0 {
        Ok(())
    } else {
        Err(format!("{what} = {result}"))
    }
}

fn gone(result: i64) -> Result<(), String> {
    match result {
        r if r == -i64::from(libc::ESRCH) || r == -i64::from(libc::ENOSYS) => Ok(()),
        r => Err(format!("expected no such process, actual {}", Code(r))),
    }
}

macro_rules! refuse {
    ($($name:ident($($arg:expr),*)),* $(,)?) => {{
        $(refused(stringify!($name), sys!(libc::$name $(, $arg)*))?;)*
        Ok(())
    }};
}

fn cannot_open(paths: &[&str], flags: i32) -> Result<(), String> {
    for path in paths {
        refused(path, open(path, flags | libc::O_NONBLOCK, 0))?;
    }
    Ok(())
}

/// These are not there, cannot be read, or have nothing in them.
fn empty(paths: &[&str]) -> Result<(), String> {
    for path in paths {
        let directory = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if directory || std::fs::read(path).is_ok_and(|content| !content.is_empty()) {
            return Err(format!("{path} has something in it"));
        }
    }
    Ok(())
}

/// Nothing in these files, of any process, has the text.
fn nowhere(files: &[&str], text: &str) -> Result<(), String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        for file in files {
            let path = process.path().join(file);
            let content = std::fs::read(&path).unwrap_or_default();
            if content.windows(text.len()).any(|window| window == text.as_bytes()) {
                return Err(format!("{} has it", path.display()));
            }
        }
    }
    Ok(())
}

fn address(name: &[u8]) -> (libc::sockaddr_un, u32) {
    let mut address: libc::sockaddr_un = zeroed();
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    (address, 2 + name.len() as u32)
}

fn connects(kind: i32, name: &[u8]) -> Result<(), String> {
    let socket = ok!(sys!(libc::SYS_socket, libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0));
    let (address, len) = address(name);
    refused("connect", sys!(libc::SYS_connect, socket, &address as *const _, len))?;
    let byte = 1u8;
    let sent = sys!(
        libc::SYS_sendto,
        socket,
        &byte as *const u8,
        1,
        libc::MSG_NOSIGNAL,
        &address as *const _,
        len
    );
    refused("sendto", sent)
}

fn no_family(family: i32, kinds: &[i32]) -> Result<(), String> {
    for &kind in kinds {
        let fd = sys!(libc::SYS_socket, family, kind, 0);
        if fd < 0 {
            continue;
        }
        // One of our own network is no escape; what it reaches must not be the host.
        let any = [family as u16, 22u16.to_be(), 0x7f, 0x0100, 0, 0, 0, 0];
        refused("connect to the host", sys!(libc::SYS_connect, fd, any.as_ptr(), 16))?;
    }
    Ok(())
}

/// Runs machine code in a child; its wait status.
fn machine_code(code: &[u8]) -> i32 {
    let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let page = map(PAGE, rwx);
    // SAFETY: the code fits into the page and ends with a return.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), page, code.len()) };
    let pid = child(|| {
        // SAFETY: as above; it changes rax only.
        let result = unsafe { std::mem::transmute::<*mut u8, extern "C" fn() -> i32>(page)() };
        exit(if result < 0 { 0 } else { 1 });
    });
    wait(pid)
}

fn no_call(code: &[u8]) -> Result<(), String> {
    match machine_code(code) {
        0 => Ok(()),
        status if libc::WIFSIGNALED(status) => Ok(()),
        status => Err(format!("the call was answered: wait status {status:#x}")),
    }
}

/// A number that only the x32 ABI has.
const X32: i64 = 0x4000_0000;

#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    // Signals.
    ("kill_host", |host| gone(kill(host.victim, libc::SIGKILL))),
    ("kill_host_group", |host| gone(kill(-host.victim, libc::SIGKILL))),
    ("tkill_host", |host| gone(sys!(libc::SYS_tkill, host.victim, libc::SIGKILL))),
    ("tgkill_host", |host| gone(sys!(libc::SYS_tgkill, host.victim, host.victim, libc::SIGKILL))),
    ("sigqueue_host", |host| {
        // As sigqueue(3) gives it: SI_QUEUE.
        let info = [0u64, 0xffff_ffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        gone(sys!(libc::SYS_rt_sigqueueinfo, host.victim, libc::SIGKILL, info.as_ptr()))
    }),
    ("pidfd_host", |host| gone(sys!(libc::SYS_pidfd_open, host.victim, 0))),
    // It spares whoever calls; nobody else is here.
    ("kill_everybody", |_| gone(kill(-1, libc::SIGKILL))),
    ("owner_of_a_pipe", |host| {
        // F_SETOWN makes the kernel send signals.
        let (r, w) = pipe();
        fcntl(r, libc::F_SETOWN, i64::from(host.victim));
        fcntl(r, 10, i64::from(libc::SIGKILL));
        fcntl(r, libc::F_SETFL, i64::from(libc::O_ASYNC));
        write(w, b"x");
        Ok(())
    }),
    // Other processes' memory and state.
    ("ptrace_attach_host", |host| refuse!(SYS_ptrace(16, host.victim, 0, 0))),
    ("ptrace_seize_host", |host| refuse!(SYS_ptrace(0x4206, host.victim, 0, 0))),
    ("read_host_memory", |host| {
        let (mut buffer, at) = ([0u8; 8], 0x40_0000u64);
        let (local, remote) = ([buffer.as_mut_ptr() as u64, 8], [at, 8]);
        gone(sys!(libc::SYS_process_vm_readv, host.victim, local.as_ptr(), 1, remote.as_ptr(), 1, 0))
    }),
    ("write_host_memory", |host| {
        let (buffer, at) = ([0u8; 8], 0x40_0000u64);
        let (local, remote) = ([buffer.as_ptr() as u64, 8], [at, 8]);
        gone(sys!(libc::SYS_process_vm_writev, host.victim, local.as_ptr(), 1, remote.as_ptr(), 1, 0))
    }),
    ("proc_of_host", |host| {
        let own = |file: &str| format!("/proc/{}/{file}", host.victim);
        for file in ["mem", "environ", "cmdline", "maps", "root/etc/passwd", "cwd", "fd/0", "stat", "task"] {
            refused(file, open(&own(file), libc::O_RDONLY, 0))?;
        }
        Ok(())
    }),
    ("prlimit_host", |host| gone(sys!(libc::SYS_prlimit64, host.victim, libc::RLIMIT_CPU, 0, 0))),
    ("schedule_host", |host| {
        let cpus = 1u64;
        gone(sys!(libc::SYS_sched_setaffinity, host.victim, 8, &cpus as *const u64))?;
        gone(sys!(libc::SYS_sched_getscheduler, host.victim))?;
        gone(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, host.victim, 19))?;
        gone(sys!(libc::SYS_ioprio_get, 1, host.victim))
    }),
    ("group_of_host", |host| {
        gone(sys!(libc::SYS_getpgid, host.victim))?;
        gone(sys!(libc::SYS_getsid, host.victim))?;
        refuse!(SYS_setpgid(0, host.victim))
    }),
    ("robust_list_of_host", |host| {
        let mut words = [0u64; 2];
        let [head, len] = &mut words;
        gone(sys!(libc::SYS_get_robust_list, host.victim, head as *mut u64, len as *mut u64))
    }),
    ("kcmp_host", |host| refuse!(SYS_kcmp(getpid(), host.victim, 0, 0, 0))),
    ("process_madvise_host", |_| refuse!(SYS_process_madvise(0, 0, 0, 4, 0), SYS_process_mrelease(0, 0))),
    ("wait_for_host", |host| refuse!(SYS_wait4(host.victim, 0, libc::WNOHANG, 0))),
    // This one alone: everybody else would be the host's.
    ("processes_of_host", |_| processes(1)),
    // Sockets.
    ("abstract_socket", |host| connects(libc::SOCK_STREAM, format!("\0{}", host.socket).as_bytes())),
    ("abstract_datagram", |host| connects(libc::SOCK_DGRAM, format!("\0{}-datagram", host.socket).as_bytes())),
    ("named_socket", |host| connects(libc::SOCK_STREAM, host.socket.as_bytes())),
    ("internet", |_| no_family(libc::AF_INET, &[libc::SOCK_STREAM])),
    ("internet_6", |_| no_family(libc::AF_INET6, &[libc::SOCK_STREAM])),
    ("raw_packets", |_| refuse!(
        SYS_socket(libc::AF_PACKET, libc::SOCK_RAW, 0), SYS_socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP))),
    ("host_netlink", |_| refuse!(
        SYS_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
        SYS_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT),
        SYS_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_CONNECTOR))),
    ("vsock", |_| refuse!(SYS_socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0))),
    ("kernel_crypto", |_| refuse!(SYS_socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0))),
    ("bluetooth_and_can", |_| refuse!(
        SYS_socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1), SYS_socket(libc::AF_CAN, libc::SOCK_RAW, 1),
        SYS_socket(libc::AF_XDP, libc::SOCK_RAW, 0), SYS_socket(libc::AF_KEY, libc::SOCK_RAW, 2))),
    // Interfaces of the host's kernel.
    // Those inside may be written; the runner looks whether the host's have changed.
    ("sysctls", |_| {
        for name in ["kernel/core_pattern", "kernel/modprobe", "kernel/panic", "kernel/yama/ptrace_scope",
            "kernel/randomize_va_space", "fs/suid_dumpable", "vm/drop_caches", "vm/overcommit_memory", "kernel/hostname"] {
            let fd = open(&format!("/proc/sys/{name}"), libc::O_WRONLY, 0);
            if fd >= 0 {
                write(fd as i32, b"77\n");
            }
        }
        Ok(())
    }),
    ("sysrq", |_| cannot_open(&["/proc/sysrq-trigger"], libc::O_WRONLY)),
    ("kernel_memory", |_| cannot_open(&["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"], libc::O_RDONLY)),
    ("kernel_symbols", |_| cannot_open(&["/proc/kallsyms", "/boot/System.map"], libc::O_RDONLY)
            .and_then(|()| empty(&["/proc/modules"]))),
    ("kernel_log", |_| {
        cannot_open(&["/dev/kmsg", "/proc/kmsg"], libc::O_RDWR)?;
        let mut text = [0u8; 4096];
        let len = sys!(libc::SYS_syslog, 3, text.as_mut_ptr(), 4096).max(0) as usize;
        match String::from_utf8_lossy(&text[..len]).contains("Linux version") {
            false => Ok(()),
            true => Err("the host's log".into()),
        }
    }),
    ("debug_files", |_| empty(&[
        "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware", "/sys/fs/bpf",
        "/sys/kernel/mm/ksm/run", "/proc/acpi", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug",
    ])),
    ("device_power", |_| empty(&[
        "/sys/power/state", "/sys/block", "/sys/class/block", "/sys/bus/pci", "/sys/devices/pci0000:00",
        "/sys/module",
    ])),
    ("host_devices", |_| cannot_open(&[
        "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda", "/dev/loop0", "/dev/loop-control", "/dev/uinput",
        "/dev/vhost-net", "/dev/vsock", "/dev/watchdog", "/dev/hwrng", "/dev/console", "/dev/tty0", "/dev/userfaultfd",
    ], libc::O_RDWR)),
    ("modules", |_| refuse!(
        SYS_init_module(0, 0, 0), SYS_finit_module(0, 0, 0), SYS_delete_module(c("x").as_ptr(), 0))),
    ("new_kernel", |_| refuse!(SYS_kexec_load(0, 0, 0, 0), SYS_kexec_file_load(0, 0, 0, 0, 0))),
    ("restart_machine", |_| refuse!(SYS_reboot(0xfee1_dead_u32, 0x2812_1969, 0x0123_4567, 0))),
    ("swap_and_accounting", |_| refuse!(
        SYS_swapon(c("/tmp/x").as_ptr(), 0), SYS_swapoff(c("/tmp/x").as_ptr()), SYS_acct(c("/tmp/x").as_ptr()))),
    ("clock", |_| {
        let time = [1u64, 0];
        refuse!(
            SYS_clock_settime(libc::CLOCK_REALTIME, time.as_ptr()), SYS_settimeofday(time.as_ptr(), 0))
    }),
    ("ports", |_| refuse!(SYS_iopl(3), SYS_ioperm(0x60, 8, 1))),
    ("in_out_instructions", |_| no_call(&[0xb0, 0x00, 0xe6, 0x80, 0xb8, 0, 0, 0, 0, 0xc3])),
    ("kernel_programs", |_| refuse!(SYS_bpf(5, 0, 0), SYS_perf_event_open(0, 0, -1, -1, 0))),
    ("faults_of_the_kernel", |_| refuse!(SYS_userfaultfd(0))),
    ("keys", |_| refuse!(
        SYS_add_key(c("user").as_ptr(), c("a").as_ptr(), c("b").as_ptr(), 1, -3i32), SYS_keyctl(0, -3i32, 0),
        SYS_request_key(c("user").as_ptr(), c("a").as_ptr(), 0, -3i32))),
    ("rings", |_| refuse!(SYS_io_uring_setup(8, c("").as_ptr()), SYS_io_setup(8, 0))),
    ("handles", |_| refuse!(SYS_open_by_handle_at(libc::AT_FDCWD, BAD, 0))),
    ("watch_everything", |_| refuse!(SYS_fanotify_init(0, 0))),
    ("quotas", |_| refuse!(SYS_quotactl(0x0080_0002_u32, c("/dev/vda").as_ptr(), 0, 0))),
    ("host_mounts", |_| refuse!(
        SYS_fsopen(c("ext4").as_ptr(), 0), SYS_open_tree(libc::AT_FDCWD, c("/").as_ptr(), 0),
        SYS_move_mount(-1, c("").as_ptr(), -1, c("").as_ptr(), 0))),
    ("secret_memory", |_| refuse!(SYS_memfd_secret(0))),
    // Namespaces and privileges.
    ("user_namespace", |_| refuse!(SYS_unshare(libc::CLONE_NEWUSER), SYS_unshare(libc::CLONE_NEWNET))),
    ("pid_namespace", |_| refuse!(SYS_unshare(libc::CLONE_NEWPID), SYS_unshare(libc::CLONE_NEWCGROUP))),
    ("setns", |_| {
        for name in ["pid", "net", "user", "ipc", "cgroup"] {
            let fd = open(&format!("/proc/self/ns/{name}"), libc::O_RDONLY, 0);
            if fd >= 0 {
                // One's own namespace again is nothing won.
                sys!(libc::SYS_setns, fd, 0);
            }
            let of_first = open(&format!("/proc/1/ns/{name}"), libc::O_RDONLY, 0);
            if of_first >= 0 {
                sys!(libc::SYS_setns, of_first, 0);
            }
        }
        processes(1)
    }),
    ("uid_map", |_| {
        let fd = open("/proc/self/uid_map", libc::O_RDWR, 0);
        if fd < 0 { Ok(()) } else { refused("writing the map", write(fd as i32, b"0 0 4294967295")) }
    }),
    // Descriptors and secrets of whoever started the sandbox.
    ("inherited_descriptors", |_| {
        for fd in 3..4096 {
            let flags = fcntl(fd, libc::F_GETFD, 0);
            if flags >= 0 {
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
                return Err(format!("descriptor {fd} is open: {link:?}"));
            }
        }
        Ok(())
    }),
    ("environment_of_the_supervisor", |_| {
        match std::env::vars().any(|(_, value)| value.contains("of-the-supervisor")) {
            true => Err("in the own environment".into()),
            false => nowhere(&["environ"], "of-the-supervisor"),
        }
    }),
    ("command_line_of_the_supervisor", |_| nowhere(&["cmdline", "comm"], "sentry")),
    ("host_name", |host| {
        let mut name: libc::utsname = zeroed();
        sys!(libc::SYS_uname, &mut name as *mut _);
        // SAFETY: the kernel ends it with a NUL.
        let own = unsafe { std::ffi::CStr::from_ptr(name.nodename.as_ptr()) }.to_string_lossy().into_owned();
        let host_name = std::env::var("NAME_OF_THE_HOST").unwrap_or_default();
        match own == host_name && host.victim > 0 {
            true => Err(format!("the host is called {own}")),
            false => Ok(()),
        }
    }),
    ("machine_id", |_| cannot_open(&[
        "/sys/class/dmi/id/product_uuid", "/sys/devices/virtual/dmi/id/product_uuid",
        "/sys/class/dmi/id/board_serial"], libc::O_RDONLY)),
    // Other ways into the kernel.
    ("int_80", |_| no_call(&[0xb8, 0x14, 0, 0, 0, 0xcd, 0x80, 0xc3])),
    ("sysenter", |_| no_call(&[0xb8, 0x14, 0, 0, 0, 0x0f, 0x34, 0xc3])),
    ("x32", |_| refused("getpid", call(X32 | libc::SYS_getpid, &[]))),
    ("high_numbers", |_| {
        for number in [-1i64, 512, 547, 1000, 0xffff_ffff] {
            refused("call", call(number, &[]))?;
        }
        Ok(())
    }),
    ("vsyscall", |_| {
        // call [rip+…] to the page that old programs jump to: time(0).
        let code = [0x31, 0xff, 0x48, 0xc7, 0xc0, 0, 0x04, 0x60, 0xff, 0xff, 0xd0, 0xb8, 0xff, 0xff, 0xff, 0xff, 0xc3];
        no_call(&code)
    }),
    // What stays behind.
    ("setuid_file", |_| {
        std::fs::write("/rw/tool", b"#!/bin/sh\n").map_err(|error| error.to_string())?;
        for mode in [0o4755, 0o2755, 0o6777] {
            sys!(libc::SYS_chmod, c("/rw/tool").as_ptr(), mode);
        }
        sys!(libc::SYS_mknod, c("/rw/another").as_ptr(), libc::S_IFREG | 0o4755, 0);
        open("/rw/third", libc::O_CREAT | libc::O_RDWR, 0o4755);
        let name = c("security.capability");
        let value = [2u32.to_le(), u32::MAX, 0, 0, 0];
        refuse!(SYS_setxattr(c("/rw/tool").as_ptr(), name.as_ptr(), value.as_ptr(), 20, 0))
    }),
    ("daemon", |_| {
        // Two forks, a session of its own, and no signal is heard.
        let pid = child(|| {
            sys!(libc::SYS_setsid);
            child(|| {
                for signal in 1..64 {
                    disposition(signal, libc::SIG_IGN);
                }
                loop {
                    sleep_ms(1000);
                }
            });
        });
        wait(pid);
        Ok(())
    }),
    ("lock_beyond_the_end", |_| {
        let file = ok!(open("/rw/locked", libc::O_CREAT | libc::O_RDWR, 0o600));
        refused("flock", -1 - sys!(libc::SYS_flock, file, libc::LOCK_EX))
    }),
];

fn processes(expected: usize) -> Result<(), String> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    match numbers.count() {
        count if count == expected => Ok(()),
        count => Err(format!("{count} processes in /proc")),
    }
}

/// Makes one attempt.
pub fn run(name: &str, victim: &str, socket: &str) {
    let Some((_, attempt)) = ATTEMPTS.iter().find(|attempt| attempt.0 == name) else {
        eprintln!("no attempt is called {name}");
        exit(2)
    };
    let host = Host {
        victim: victim.parse().unwrap_or(0),
        socket,
    };
    match attempt(&host) {
        Ok(()) => println!("done"),
        Err(how) => {
            println!("escaped: {how}");
            exit(FAILED)
        }
    }
}

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTEMPTS.iter().map(|attempt| attempt.0)
}
