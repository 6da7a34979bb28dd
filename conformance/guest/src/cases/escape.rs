//! Attempts to read host files that the sandbox does not show. The runner made them and looks at what is printed:
//! whatever an attempt could read goes to standard output.

use crate::sys::*;
use crate::tool;
use crate::{ok, sys};

/// Prints what can be read from a path.
fn try_read(path: &str) {
    for flags in [libc::O_RDONLY, libc::O_RDONLY | libc::O_NOFOLLOW, libc::O_RDWR] {
        let fd = open(path, flags | libc::O_NONBLOCK, 0);
        if fd >= 0 {
            print(path, fd as i32);
            sys!(libc::SYS_close, fd);
        }
    }
}

fn print(path: &str, fd: i32) {
    let mut buf = [0u8; 4096];
    let n = sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 4096, 0);
    if n > 0 {
        println!("{path}: {}", String::from_utf8_lossy(&buf[..n as usize]).trim_end());
    }
}

fn read_at(dir: i32, path: &str) {
    let fd = sys!(
        libc::SYS_openat,
        dir,
        c(path).as_ptr(),
        libc::O_RDONLY | libc::O_NONBLOCK,
        0
    );
    if fd >= 0 {
        print(path, fd as i32);
        sys!(libc::SYS_close, fd);
    }
    // What openat2 can be told must not make it weaker.
    for resolve in [0u64, 1, 2, 16] {
        let how = [0u64, 0, resolve];
        let fd = sys!(libc::SYS_openat2, dir, c(path).as_ptr(), how.as_ptr(), 24);
        if fd >= 0 {
            print(path, fd as i32);
            sys!(libc::SYS_close, fd);
        }
    }
}

fn ups() -> impl Iterator<Item = String> {
    (0..12).map(|n| "../".repeat(n))
}

/// `guest tool escape NAME TOP`: TOP is the host directory with `secret`, `shared` (shown read-only as `/shared`) and
/// `rw` (shown writable as `/rw`).
pub fn tool(args: &[&str]) {
    let (name, top) = (
        args.first().copied().unwrap_or_default(),
        args.get(1).copied().unwrap_or("/"),
    );
    let inner = top.trim_start_matches('/');
    match name {
        "dot_dot" => {
            try_read(&format!("{top}/secret"));
            for up in ups() {
                try_read(&format!("/shared/{up}{inner}/secret"));
                try_read(&format!("/shared/{up}secret"));
                try_read(&format!("/shared/sub/{up}secret"));
                try_read(&format!("/rw/./{up}secret"));
                try_read(&format!("/{up}{inner}/secret"));
            }
        }
        "symlinks" => {
            // The host has put these links there, and the guest adds its own.
            for link in [
                "absolute",
                "relative",
                "dirlink/secret",
                "sub/up/secret",
                "sub/up/../secret",
                "chain",
            ] {
                try_read(&format!("/shared/{link}"));
                try_read(&format!("/rw/{link}"));
            }
            for (i, target) in [format!("{top}/secret"), "../secret".into(), "../../secret".into()]
                .iter()
                .enumerate()
            {
                for dir in ["/rw", "/tmp", "/shared", "."] {
                    let link = format!("{dir}/own{i}");
                    if symlink(target, &link) == 0 {
                        try_read(&link);
                    }
                }
            }
            symlink("..", "/rw/owndir");
            try_read("/rw/owndir/secret");
        }
        "hard_links" => {
            let mut n = 0;
            for from in [
                format!("{top}/secret"),
                "/shared/relative".into(),
                "/rw/relative".into(),
                "/proc/1/root/secret".into(),
            ] {
                for flags in [0, libc::AT_SYMLINK_FOLLOW] {
                    let to = format!("/rw/hard{n}");
                    n += 1;
                    let r = sys!(
                        libc::SYS_linkat,
                        libc::AT_FDCWD,
                        c(&from).as_ptr(),
                        libc::AT_FDCWD,
                        c(&to).as_ptr(),
                        flags
                    );
                    if r == 0 {
                        try_read(&to);
                    }
                }
            }
        }
        "proc_root" => {
            let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let mut pids: Vec<String> = pids.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            pids.extend((1..300).map(|n| n.to_string()));
            for pid in pids {
                for link in ["root", "cwd", "exe/..", "fd", "ns", "map_files"] {
                    for up in ups().take(4) {
                        try_read(&format!("/proc/{pid}/{link}/{up}{inner}/secret"));
                        try_read(&format!("/proc/{pid}/{link}/{up}secret"));
                    }
                }
            }
        }
        "proc_fd" => {
            for pid in (1..50)
                .map(|n| n.to_string())
                .chain(["self".into(), "thread-self".into()])
            {
                for fd in 0..64 {
                    let path = format!("/proc/{pid}/fd/{fd}");
                    try_read(&path);
                    for up in ups().take(5) {
                        try_read(&format!("{path}/{up}secret"));
                        try_read(&format!("{path}/{up}{inner}/secret"));
                    }
                }
            }
            // Descriptors that nobody gave us.
            for fd in 0..256 {
                read_at(fd, "secret");
                read_at(fd, "../secret");
                if fd > 2 {
                    print("descriptor", fd);
                }
            }
        }
        "magic_links" => {
            for path in ["/dev/fd/0", "/dev/stdin", "/proc/self/fd/0", "/proc/thread-self/fd/0"] {
                for up in ups().take(4) {
                    try_read(&format!("{path}/{up}secret"));
                    try_read(&format!("{path}/{up}{inner}/secret"));
                }
            }
            let maps = std::fs::read_dir("/proc/self/map_files")
                .into_iter()
                .flatten()
                .flatten();
            for entry in maps {
                let fd = open(&entry.path().to_string_lossy(), libc::O_RDWR, 0);
                if fd >= 0 {
                    println!("writable: {}", entry.path().display());
                }
            }
        }
        "rename_race" => race(),
        "host_race" => {
            println!("ready");
            let end = now() + 3_000_000_000;
            let mut n = 0;
            while now() < end {
                try_read("/shared/swap/secret");
                read_at(libc::AT_FDCWD, "/rw/swap/secret");
                n += 2;
            }
            println!("tried {n}");
        }
        "moved_directory" => {
            let fds: Vec<i32> = ["/shared/moved", "/shared/moved/deep", "/rw/moved"]
                .iter()
                .map(|d| ok!(open(d, libc::O_RDONLY | libc::O_DIRECTORY, 0)) as i32)
                .collect();
            let old = ok!(open("/shared/moved/deep", libc::O_PATH, 0)) as i32;
            ok!(sys!(libc::SYS_chdir, c("/shared/moved/deep").as_ptr()));
            println!("ready");
            read(0, 1);
            for fd in fds.into_iter().chain([old, libc::AT_FDCWD]) {
                for up in ups().take(6) {
                    read_at(fd, &format!("{up}secret"));
                    read_at(fd, &format!("{up}elsewhere/secret"));
                    read_at(fd, &format!("deep/{up}secret"));
                }
            }
        }
        "replaced_root" => {
            try_read("/shared/sub/secret");
            println!("ready");
            read(0, 1);
            for path in ["/shared/secret", "/shared/sub/../secret", "/shared/new", "/rw/secret"] {
                try_read(path);
            }
        }
        "chroot" => {
            // The classic: out of a chroot by a directory kept open.
            mkdir("/tmp/jail", 0o755);
            let fd = open("/", libc::O_RDONLY, 0);
            sys!(libc::SYS_chroot, c("/tmp/jail").as_ptr());
            sys!(libc::SYS_fchdir, fd);
            for _ in 0..20 {
                sys!(libc::SYS_chdir, c("..").as_ptr());
            }
            sys!(libc::SYS_chroot, c(".").as_ptr());
            try_read(&format!("{top}/secret"));
            try_read("secret");
        }
        "handles" => {
            for (kind, bytes) in [(1i32, 8u32), (2, 12), (0x81, 8), (0xfe, 24)] {
                for ino in 1..2000u32 {
                    let mut handle = [0u32; 32];
                    (handle[0], handle[1], handle[2]) = (bytes, kind as u32, ino);
                    for fd in [libc::AT_FDCWD, 0, 3] {
                        let fd = sys!(libc::SYS_open_by_handle_at, fd, handle.as_ptr(), libc::O_RDONLY);
                        if fd >= 0 {
                            print("handle", fd as i32);
                            read_at(fd as i32, "secret");
                        }
                    }
                }
            }
        }
        "mounts" => {
            mkdir("/tmp/m", 0o755);
            let m = c("/tmp/m");
            let attempts: [(&str, &str, u64); 6] = [
                (top, "none", libc::MS_BIND),
                (top, "none", libc::MS_BIND | libc::MS_REC),
                ("/dev/vda", "ext4", 0),
                ("/dev/sda1", "ext4", 0),
                ("overlay", "overlay", 0),
                ("devtmpfs", "devtmpfs", 0),
            ];
            for (source, kind, flags) in attempts {
                let (source, kind) = (c(source), c(kind));
                let data = c(&format!("lowerdir={top}"));
                if sys!(
                    libc::SYS_mount,
                    source.as_ptr(),
                    m.as_ptr(),
                    kind.as_ptr(),
                    flags,
                    data.as_ptr()
                ) == 0
                {
                    try_read("/tmp/m/secret");
                    sys!(libc::SYS_umount2, m.as_ptr(), libc::MNT_DETACH);
                }
            }
            // Device nodes made by ourselves.
            for (i, (major, minor)) in [(8, 0), (8, 1), (254, 0), (259, 0), (1, 1), (1, 2), (1, 4), (10, 229)]
                .iter()
                .enumerate()
            {
                for (dir, kind) in [
                    ("/tmp", libc::S_IFBLK),
                    ("/tmp", libc::S_IFCHR),
                    ("/rw", libc::S_IFBLK),
                    ("/rw", libc::S_IFCHR),
                ] {
                    let path = format!("{dir}/node{i}-{kind}");
                    let dev = libc::makedev(*major, *minor);
                    if sys!(libc::SYS_mknod, c(&path).as_ptr(), kind | 0o666, dev) == 0 {
                        try_read(&path);
                        if open(&path, libc::O_RDWR, 0) >= 0 {
                            println!("opened device {major}:{minor}");
                        }
                    }
                }
            }
            for device in [
                "/dev/mem",
                "/dev/kmem",
                "/dev/port",
                "/dev/vda",
                "/dev/sda",
                "/dev/kvm",
                "/dev/fuse",
            ] {
                if open(device, libc::O_RDONLY, 0) >= 0 {
                    println!("opened device {device}");
                }
            }
        }
        "special_files" => {
            // A fifo, a socket and a device that the host has in the shared trees.
            for dir in ["/shared", "/rw"] {
                for name in ["fifo", "device", "socket"] {
                    try_read(&format!("{dir}/{name}"));
                }
                let fd = sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0) as i32;
                let mut address: libc::sockaddr_un = zeroed();
                address.sun_family = libc::AF_UNIX as u16;
                let path = format!("{dir}/socket");
                path.bytes()
                    .zip(address.sun_path.iter_mut())
                    .for_each(|(b, to)| *to = b as libc::c_char);
                if fd >= 0 && sys!(libc::SYS_connect, fd, &address as *const _, 2 + path.len()) == 0 {
                    println!("connected to {path}");
                    print("socket", fd);
                }
            }
        }
        "not_for_everybody" => {
            for path in [
                "/etc/shadow",
                "/etc/gshadow",
                "private",
                ".ssh/id_rsa",
                ".aws/credentials",
                "/shared/.ssh/id_rsa",
            ] {
                try_read(path);
            }
        }
        "read_only" => {
            // Everything that could change a file shown read-only; the host looks at it afterwards.
            let fd = ok!(open("/shared/plain", libc::O_RDONLY, 0)) as i32;
            let own = format!("/proc/self/fd/{fd}");
            for path in ["/shared/plain", own.as_str(), "/dev/fd/../shared/plain"] {
                for flags in [
                    libc::O_RDWR,
                    libc::O_WRONLY,
                    libc::O_WRONLY | libc::O_TRUNC,
                    libc::O_RDONLY | libc::O_TRUNC,
                ] {
                    let w = open(path, flags, 0);
                    if w >= 0 {
                        write(w as i32, b"CHANGED");
                        sys!(libc::SYS_ftruncate, w, 1);
                    }
                }
                sys!(libc::SYS_truncate, c(path).as_ptr(), 1);
                sys!(libc::SYS_chmod, c(path).as_ptr(), 0o777);
                sys!(libc::SYS_chown, c(path).as_ptr(), 1, 1);
                sys!(
                    libc::SYS_setxattr,
                    c(path).as_ptr(),
                    c("user.x").as_ptr(),
                    b"x".as_ptr(),
                    1,
                    0
                );
            }
            sys!(libc::SYS_fchmod, fd, 0o777);
            sys!(libc::SYS_fallocate, fd, 0, 0, 100_000);
            for flags in [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE, libc::MAP_PRIVATE] {
                let p = sys!(libc::SYS_mmap, 0, PAGE, libc::PROT_READ, flags, fd, 0);
                if p > 0 && sys!(libc::SYS_mprotect, p, PAGE, libc::PROT_READ | libc::PROT_WRITE) == 0 {
                    // SAFETY: mapped, and writable as mprotect says.
                    unsafe { (p as *mut u8).write_volatile(b'M') };
                    sys!(libc::SYS_msync, p, PAGE, libc::MS_SYNC);
                }
            }
            unlink("/shared/plain");
            rename("/shared/plain", "/shared/other");
            rename("/tmp", "/shared/tmp");
            sys!(libc::SYS_mkdir, c("/shared/new").as_ptr(), 0o755);
            symlink("x", "/shared/newlink");
            // In the working directory everything works, but only here.
            file("plain", b"CHANGED");
            unlink("sub/inner");
            std::fs::create_dir_all("new/dir").expect("the overlay takes directories");
        }
        "processes" => {
            // Processes of the host are not there, nor can they be reached.
            for pid in 2..5000 {
                if pid != getpid() && kill(pid, 0) == 0 {
                    println!("process {pid} can be signalled");
                }
                if pid != getpid() && sys!(libc::SYS_ptrace, 16, pid, 0, 0) == 0 {
                    println!("process {pid} can be traced");
                }
            }
            for path in ["/proc/1/mem", "/proc/kcore", "/proc/kallsyms", "/proc/sysrq-trigger"] {
                let fd = open(path, libc::O_RDWR, 0);
                if fd >= 0 && !path.contains("/1/") {
                    println!("opened {path}");
                }
            }
        }
        _ => {
            eprintln!("no escape is called {name}");
            exit(2)
        }
    }
    println!("done {}", tool::me().is_empty());
}

/// A directory of ours changes place with links while paths through it are opened.
fn race() {
    mkdir("/rw/race", 0o755);
    mkdir("/rw/race/a", 0o755);
    mkdir("/rw/race/a/b", 0o755);
    mkdir("/rw/race/other", 0o755);
    symlink("../../..", "/rw/race/link");
    let pid = child(|| {
        loop {
            for (from, to) in [("a/b", "other/b"), ("other/b", "a/b")] {
                rename(&format!("/rw/race/{from}"), &format!("/rw/race/{to}"));
            }
            sys!(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                c("/rw/race/a").as_ptr(),
                libc::AT_FDCWD,
                c("/rw/race/link").as_ptr(),
                libc::RENAME_EXCHANGE
            );
        }
    });
    let end = now() + 2_000_000_000;
    while now() < end {
        for path in [
            "a/secret",
            "a/b/../../../../secret",
            "a/b/../../../secret",
            "a/../../secret",
            "other/b/../../../../secret",
        ] {
            read_at(libc::AT_FDCWD, &format!("/rw/race/{path}"));
        }
    }
    kill(pid, libc::SIGKILL);
    wait(pid);
}
