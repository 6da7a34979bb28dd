//! /proc.

use crate::sys::*;
use crate::tool;
use crate::{cases, check, eq, err, ok, sys};
use std::sync::atomic::{AtomicU32, Ordering};

cases!("procfs": self_links, status_fields, stat_line, command_line, environment, executable, working_directory, descriptors,
    descriptor_links, fdinfo, maps_lines, tasks, comm_is_written, missing_process, zombie, listing_has_us, system_files,
    mounts, kernel_settings, read_in_pieces, writes_are_refused, limits_and_scores, memory_file, of_another_user, statm,
    seek_and_reread, cgroup_and_ns, open_files_outlive, auxv, self_task_comm,
    fdinfo_of_itself, fdinfo_of_each_other, fdinfo_of_epoll, walked_while_forking,
    io_counters, pagemap, files_that_programs_read);

fn line(path: &str, name: &str) -> String {
    let all = text(path);
    let found = all.lines().find_map(|l| l.strip_prefix(name)).map(|l| l.trim_start_matches(':').trim().to_string());
    match found {
        Some(value) => value,
        None => fail(file!(), line!(), format_args!("{path} has no line {name}")),
    }
}

/// The value of a line in `/proc/PID/status`.
pub fn status_line(pid: i32, name: &str) -> String {
    line(&format!("/proc/{pid}/status"), name)
}

fn readlink(path: &str) -> String {
    let mut buf = [0u8; 4096];
    let n = ok!(sys!(libc::SYS_readlink, c(path).as_ptr(), buf.as_mut_ptr(), 4096)) as usize;
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

fn self_links() {
    eq!(readlink("/proc/self"), getpid().to_string());
    eq!(readlink("/proc/thread-self"), format!("{}/task/{}", getpid(), gettid()));
    std::thread::spawn(|| eq!(readlink("/proc/thread-self"), format!("{}/task/{}", getpid(), gettid()))).join().expect("joined");
    eq!(stat("/proc/self/").1.st_mode & libc::S_IFMT, libc::S_IFDIR);
}

fn status_fields() {
    let s = "/proc/self/status";
    eq!(line(s, "Pid"), getpid().to_string());
    eq!(line(s, "Tgid"), getpid().to_string());
    eq!(line(s, "PPid"), sys!(libc::SYS_getppid).to_string());
    eq!(line(s, "Threads"), "1");
    let uid = sys!(libc::SYS_getuid);
    eq!(line(s, "Uid"), format!("{uid}\t{uid}\t{uid}\t{uid}"));
    check!(line(s, "State").starts_with('R'));
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    disposition(libc::SIGUSR2, libc::SIG_IGN);
    catch(libc::SIGHUP, 0);
    kill(getpid(), libc::SIGUSR1);
    eq!(line(s, "SigBlk"), format!("{:016x}", bit(libc::SIGUSR1)));
    eq!(line(s, "ShdPnd"), format!("{:016x}", bit(libc::SIGUSR1)));
    let set = |name: &str| u64::from_str_radix(&line(s, name), 16).expect("hexadecimal");
    check!(set("SigIgn") & bit(libc::SIGUSR2) != 0);
    check!(set("SigCgt") & bit(libc::SIGHUP) != 0);
    check!(line(s, "VmRSS").ends_with(" kB"));
    eq!(line(s, "CapBnd").len(), 16);
}

fn stat_line() {
    let all = text("/proc/self/stat");
    let (head, rest) = all.rsplit_once(") ").expect("a name in parentheses");
    check!(head.starts_with(&format!("{} (", getpid())));
    let fields: Vec<&str> = rest.trim().split(' ').collect();
    eq!(fields.len(), 50);
    eq!(fields[0], "R");
    eq!(fields[1], sys!(libc::SYS_getppid).to_string());
    eq!(fields[2], sys!(libc::SYS_getpgrp).to_string());
    eq!(fields[17], "1");
}

fn command_line() {
    let all = slurp("/proc/self/cmdline");
    let args: Vec<String> = std::env::args().collect();
    let expected: Vec<u8> = args.iter().flat_map(|a| a.bytes().chain([0])).collect();
    eq!(String::from_utf8_lossy(&all), String::from_utf8_lossy(&expected));
}

fn environment() {
    let pid = child(|| {
        let argv = tool::Argv::tool(&["pause"]);
        let envp = tool::Argv::new(&["ONE=1", "TWO=2"]);
        ok!(sys!(libc::SYS_execve, c(&tool::me()).as_ptr(), argv.as_ptr(), envp.as_ptr()));
    });
    until("the program runs", || slurp(&format!("/proc/{pid}/environ")) == b"ONE=1\0TWO=2\0");
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn executable() {
    let me = readlink("/proc/self/exe");
    check!(me.ends_with("guest"), "{me}");
    let (a, b) = (stat("/proc/self/exe").1, stat(&me).1);
    eq!((a.st_dev, a.st_ino), (b.st_dev, b.st_ino));
    eq!(slurp("/proc/self/exe")[..4], *b"\x7fELF");
}

fn working_directory() {
    let mut buf = [0u8; 4096];
    let n = ok!(sys!(libc::SYS_getcwd, buf.as_mut_ptr(), 4096)) as usize;
    eq!(readlink("/proc/self/cwd").as_bytes(), &buf[..n - 1]);
    eq!(readlink("/proc/self/root"), "/");
    ok!(mkdir("d", 0o755));
    let pid = child(|| {
        ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
        sleep_ms(60_000);
    });
    until("the child has moved", || readlink(&format!("/proc/{pid}/cwd")).ends_with("/d"));
    file(&format!("/proc/{pid}/cwd/f"), b"");
    ok!(stat("d/f").0);
    ok!(unlink("d/f"));
    ok!(sys!(libc::SYS_rmdir, c("d").as_ptr()));
    check!(readlink(&format!("/proc/{pid}/cwd")).ends_with("/d (deleted)"));
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn descriptors() {
    let fd = new_file("f", b"");
    let list = || {
        let names = std::fs::read_dir("/proc/self/fd").expect("a directory");
        let mut fds: Vec<i32> = names.map(|n| n.expect("an entry").file_name().to_string_lossy().parse().expect("a number")).collect();
        fds.sort_unstable();
        fds
    };
    check!(list().contains(&fd));
    close(fd);
    // The descriptor of the listing itself may have the same number.
    err!(stat("/proc/self/fd/900").0, libc::ENOENT);
    check!(list().starts_with(&[0, 1, 2]));
}

fn descriptor_links() {
    let fd = new_file("f", b"");
    check!(readlink(&format!("/proc/self/fd/{fd}")).ends_with("/f"));
    ok!(rename("f", "g"));
    check!(readlink(&format!("/proc/self/fd/{fd}")).ends_with("/g"));
    ok!(unlink("g"));
    check!(readlink(&format!("/proc/self/fd/{fd}")).ends_with("/g (deleted)"));
    let (r, w) = pipe();
    let link = readlink(&format!("/proc/self/fd/{r}"));
    check!(link.starts_with("pipe:["), "{link}");
    eq!(readlink(&format!("/proc/self/fd/{w}")), link);
    let event = ok!(sys!(libc::SYS_eventfd2, 0, 0));
    check!(readlink(&format!("/proc/self/fd/{event}")).starts_with("anon_inode:[eventfd"));
}

fn fdinfo() {
    let fd = new_file("f", b"123456");
    read(fd, 4);
    let path = format!("/proc/self/fdinfo/{fd}");
    eq!(line(&path, "pos"), "4");
    eq!(line(&path, "flags"), "0100002");
}

fn maps_lines() {
    let page = map(4 * PAGE, libc::PROT_READ | libc::PROT_WRITE) as u64;
    ok!(sys!(libc::SYS_mprotect, page + PAGE as u64, PAGE, libc::PROT_READ));
    let all = text("/proc/self/maps");
    let mut end = 0;
    let mut ours = Vec::new();
    for l in all.lines() {
        let mut words = l.split_whitespace();
        let (range, perms) = (words.next().expect("a range"), words.next().expect("rights"));
        let (from, to) = range.split_once('-').expect("a range");
        let [from, to] = [from, to].map(|n| u64::from_str_radix(n, 16).expect("hexadecimal"));
        check!(from < to && (from >= end || from > 1 << 63), "{l}");
        end = to;
        if from < page + 4 * PAGE as u64 && to > page {
            ours.push(perms.to_string());
        }
    }
    eq!(ours, ["rw-p", "r--p", "rw-p"]);
    check!(all.contains("[stack]") && all.contains("[vdso]") && all.contains("/guest"));
}

fn tasks() {
    let (r, w) = pipe();
    let thread = std::thread::spawn(move || {
        write(w, &gettid().to_le_bytes());
        sleep_ms(60_000);
    });
    let tid = i32::from_le_bytes(read(r, 4).try_into().expect("four bytes"));
    let names = std::fs::read_dir("/proc/self/task").expect("a directory");
    let mut tids: Vec<i32> = names.map(|n| n.expect("an entry").file_name().to_string_lossy().parse().expect("a number")).collect();
    tids.sort_unstable();
    let mut expected = vec![getpid(), tid];
    expected.sort_unstable();
    eq!(tids, expected);
    eq!(line("/proc/self/status", "Threads"), "2");
    // A thread's id works in /proc although it is not listed there.
    eq!(line(&format!("/proc/{tid}/status"), "Tgid"), getpid().to_string());
    eq!(line(&format!("/proc/self/task/{tid}/status"), "Pid"), tid.to_string());
    drop(thread);
}

fn comm_is_written() {
    let fd = ok!(open("/proc/self/comm", libc::O_WRONLY, 0)) as i32;
    eq!(write(fd, b"renamed"), 7);
    eq!(text("/proc/self/comm"), "renamed\n");
    eq!(line("/proc/self/status", "Name"), "renamed");
}

fn self_task_comm() {
    eq!(text("/proc/self/comm"), text(&format!("/proc/self/task/{}/comm", gettid())));
}

fn missing_process() {
    for path in ["/proc/2147483000", "/proc/2147483000/stat", "/proc/0", "/proc/-1", "/proc/self/missing", "/proc/1x", "/proc/01"] {
        err!(stat(path).0, libc::ENOENT);
    }
    err!(open("/proc/self/task/1/comm", libc::O_RDONLY, 0), libc::ENOENT);
}

fn zombie() {
    let pid = child(|| exit(0));
    until("it is a zombie", || task_state(pid) == 'Z');
    check!(line(&format!("/proc/{pid}/status"), "State").starts_with("Z (zombie)"));
    eq!(slurp(&format!("/proc/{pid}/cmdline")), b"");
    let mut buf = [0u8; 10];
    err!(sys!(libc::SYS_readlink, c(&format!("/proc/{pid}/exe")).as_ptr(), buf.as_mut_ptr(), 10), libc::ENOENT);
    wait(pid);
    err!(stat(&format!("/proc/{pid}")).0, libc::ENOENT);
}

fn listing_has_us() {
    let names = std::fs::read_dir("/proc").expect("a directory");
    let all: Vec<String> = names.map(|n| n.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    check!(all.contains(&getpid().to_string()));
    for name in ["self", "meminfo", "cpuinfo", "sys", "uptime", "mounts", "version", "stat", "loadavg", "filesystems"] {
        check!(all.iter().any(|n| n == name), "{name}");
    }
}

fn system_files() {
    check!(line("/proc/meminfo", "MemTotal").ends_with(" kB"));
    check!(line("/proc/meminfo", "MemAvailable").ends_with(" kB"));
    check!(text("/proc/cpuinfo").contains("processor\t: 0\n"));
    let uptime = text("/proc/uptime");
    eq!(uptime.trim().split(' ').filter(|n| n.parse::<f64>().is_ok()).count(), 2);
    eq!(text("/proc/loadavg").trim().split(' ').count(), 5);
    check!(text("/proc/version").starts_with("Linux version "));
    check!(text("/proc/stat").starts_with("cpu  "));
    check!(text("/proc/stat").contains("\nbtime "));
    check!(text("/proc/filesystems").contains("nodev\tproc\n"));
    check!(text("/proc/filesystems").contains("nodev\ttmpfs\n"));
}

fn mounts() {
    let all = text("/proc/mounts");
    check!(all.lines().any(|l| l.split(' ').nth(1) == Some("/")), "{all}");
    check!(all.lines().any(|l| l.split(' ').nth(1) == Some("/proc")), "{all}");
    check!(all.lines().all(|l| l.split(' ').count() == 6));
    eq!(text("/proc/self/mounts"), all);
    let info = text("/proc/self/mountinfo");
    check!(info.lines().all(|l| l.contains(" - ") && l.split(' ').count() >= 10));
    eq!(info.lines().count(), all.lines().count());
}

fn kernel_settings() {
    let number = |path: &str| text(path).trim().parse::<u64>().expect("a number");
    check!(number("/proc/sys/kernel/pid_max") >= 32768);
    check!(number("/proc/sys/kernel/threads-max") > 0);
    check!(number("/proc/sys/kernel/ngroups_max") == 65536);
    check!(number("/proc/sys/fs/pipe-max-size") >= 65536);
    check!(number("/proc/sys/vm/overcommit_memory") <= 2);
    check!(number("/proc/sys/vm/max_map_count") > 1000);
    eq!(text("/proc/sys/kernel/ostype"), "Linux\n");
    let id = text("/proc/sys/kernel/random/boot_id");
    eq!((id.len(), id.matches('-').count()), (37, 4));
    check!(text("/proc/sys/kernel/random/uuid") != text("/proc/sys/kernel/random/uuid"));
    eq!(text("/proc/sys/kernel/random/boot_id"), id);
}

fn read_in_pieces() {
    // A file read byte by byte is the same.
    let whole = text("/proc/self/limits");
    let fd = ok!(open("/proc/self/limits", libc::O_RDONLY, 0)) as i32;
    let mut all = Vec::new();
    loop {
        let part = read(fd, 7);
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    eq!(String::from_utf8_lossy(&all), whole);
    eq!(fstat(fd).st_size, 0);
}

fn writes_are_refused() {
    for path in ["/proc/self/status", "/proc/meminfo", "/proc/self/maps"] {
        let r = open(path, libc::O_WRONLY, 0);
        if r >= 0 {
            // User 0 may open it; the write fails.
            check!(write(r as i32, b"x") < 0);
        }
    }
    for dir in ["/proc", "/proc/self", "/proc/sys", "/proc/sys/kernel", "/proc/self/fd", "/proc/self/task"] {
        let name = format!("{dir}/none");
        err!(mkdir(&name, 0o755), libc::ENOENT);
        err!(symlink("x", &name), libc::ENOENT);
        err!(open(&name, libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENOENT);
        err!(rename("/proc/version", &name), libc::ENOENT);
        err!(unlink(&name), libc::ENOENT);
    }
    check!(unlink("/proc/meminfo") < 0);
    check!(sys!(libc::SYS_rmdir, c("/proc/self/fd").as_ptr()) < 0);
    err!(open("/proc/new", libc::O_CREAT | libc::O_RDWR, 0o600), libc::ENOENT);
}

fn limits_and_scores() {
    check!(text("/proc/self/limits").starts_with("Limit                     Soft Limit           Hard Limit           Units"));
    let adj = text("/proc/self/oom_score_adj");
    check!(adj.trim().parse::<i32>().is_ok_and(|n| (-1000..=1000).contains(&n)));
    let fd = ok!(open("/proc/self/oom_score_adj", libc::O_WRONLY, 0)) as i32;
    ok!(write(fd, b"900"));
    eq!(text("/proc/self/oom_score_adj"), "900\n");
    err!(write(fd, b"2000"), libc::EINVAL);
}

fn memory_file() {
    let secret = *b"in memory";
    let fd = ok!(open("/proc/self/mem", libc::O_RDWR, 0)) as i32;
    let mut back = [0u8; 9];
    eq!(sys!(libc::SYS_pread64, fd, back.as_mut_ptr(), 9, secret.as_ptr()), 9);
    eq!(back, secret);
    err!(sys!(libc::SYS_pread64, fd, back.as_mut_ptr(), 9, BAD), libc::EIO);
    let target = [0u8; 4];
    eq!(sys!(libc::SYS_pwrite64, fd, b"poke".as_ptr(), 4, target.as_ptr()), 4);
    // SAFETY: written through the file.
    eq!(unsafe { std::ptr::read_volatile(&target) }, *b"poke");
}

fn of_another_user() {
    need_root();
    let pid = child(|| sleep_ms(60_000));
    in_child(|| {
        ok!(sys!(libc::SYS_setresuid, 1001, 1001, 1001));
        check!(text(&format!("/proc/{pid}/status")).contains("Uid:\t0"));
        let mut buf = [0u8; 100];
        err!(sys!(libc::SYS_readlink, c(&format!("/proc/{pid}/cwd")).as_ptr(), buf.as_mut_ptr(), 100), libc::EACCES);
        err!(open(&format!("/proc/{pid}/environ"), libc::O_RDONLY, 0), libc::EACCES);
        err!(open(&format!("/proc/{pid}/fd"), libc::O_RDONLY, 0), libc::EACCES);
        for name in ["maps", "smaps"] {
            let path = format!("/proc/{pid}/{name}");
            eq!(stat(&path).1.st_mode & 0o777, 0o444);
            err!(open(&path, libc::O_RDONLY, 0), libc::EACCES);
            ok!(sys!(libc::SYS_access, c(&path).as_ptr(), libc::R_OK));
        }
        // Its own it may see, though these are root's now.
        eq!(stat("/proc/self/maps").1.st_uid, 0);
        check!(text("/proc/self/maps").contains("[stack]") && text("/proc/self/smaps").contains("Rss:"));
        err!(open("/proc/self/environ", libc::O_RDONLY, 0), libc::EACCES);
        err!(open(&format!("/proc/{pid}/mem"), libc::O_RDONLY, 0), libc::EACCES);
        err!(stat(&format!("/proc/{pid}/root/")).0, libc::EACCES);
    });
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn statm() {
    let all = text("/proc/self/statm");
    let numbers: Vec<u64> = all.trim().split(' ').map(|n| n.parse().expect("a number")).collect();
    eq!(numbers.len(), 7);
    check!(numbers[0] >= numbers[1] && numbers[1] > 0);
    // A large mapping is seen.
    map(64 << 20, libc::PROT_READ | libc::PROT_WRITE);
    let more = text("/proc/self/statm").split(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number");
    check!(more >= numbers[0] + (64 << 20) / 4096);
}

fn seek_and_reread() {
    let fd = ok!(open("/proc/self/comm", libc::O_RDONLY, 0)) as i32;
    let first = read(fd, 100);
    eq!(read(fd, 100), b"");
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    eq!(read(fd, 100), first);
    let mut buf = [0u8; 3];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 3, 1), 3);
    eq!(buf, first[1..4]);
}

fn cgroup_and_ns() {
    ok!(open("/proc/self/cgroup", libc::O_RDONLY, 0));
    for ns in ["mnt", "pid", "net", "user", "uts", "ipc"] {
        let link = readlink(&format!("/proc/self/ns/{ns}"));
        check!(link.starts_with(&format!("{ns}:[")) && link.ends_with(']'), "{link}");
    }
}

fn open_files_outlive() {
    // A file of a process that is gone gives an error and no other process's content.
    let pid = child(|| sleep_ms(60_000));
    let fd = ok!(open(&format!("/proc/{pid}/status"), libc::O_RDONLY, 0)) as i32;
    let dir = ok!(open(&format!("/proc/{pid}"), libc::O_RDONLY, 0)) as i32;
    kill(pid, libc::SIGKILL);
    wait(pid);
    let mut buf = [0u8; 100];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 100), libc::ESRCH);
    let r = sys!(libc::SYS_openat, dir, c("stat").as_ptr(), 0, 0);
    check!(r == -i64::from(libc::ENOENT) || r == -i64::from(libc::ESRCH), "{}", Code(r));
}

fn auxv() {
    let bytes = slurp("/proc/self/auxv");
    let pairs: Vec<(u64, u64)> = bytes
        .chunks_exact(16)
        .map(|p| {
            let word = |i: usize| u64::from_le_bytes(p[i..i + 8].try_into().expect("eight bytes"));
            (word(0), word(8))
        })
        .collect();
    let get = |key: u64| pairs.iter().find(|p| p.0 == key).map(|p| p.1);
    eq!(get(libc::AT_PAGESZ), Some(4096));
    eq!(get(libc::AT_UID), Some(sys!(libc::SYS_getuid) as u64));
    for key in [libc::AT_PHDR, libc::AT_ENTRY, libc::AT_RANDOM, libc::AT_EXECFN, libc::AT_SYSINFO_EHDR, libc::AT_PLATFORM] {
        check!(get(key).is_some_and(|v| v != 0), "entry {key}");
    }
    eq!(pairs.last(), Some(&(0, 0)));
    // SAFETY: the libc call has no preconditions.
    eq!(get(libc::AT_RANDOM), Some(unsafe { libc::getauxval(libc::AT_RANDOM) }));
}

/// Two descriptors with the fdinfo of each other behind them, or of itself if `alone`.
fn fdinfo_pair(alone: bool) -> [i32; 2] {
    let fds = [(); 2].map(|()| ok!(open("/dev/null", libc::O_RDONLY, 0)) as i32);
    let info = |of: usize| ok!(open(&format!("/proc/self/fdinfo/{}", fds[of]), libc::O_RDONLY, 0)) as i32;
    let infos = if alone { [info(0), info(1)] } else { [info(1), info(0)] };
    for (info, fd) in infos.into_iter().zip(fds) {
        ok!(sys!(libc::SYS_dup2, info, fd));
        close(info);
    }
    fds
}

fn fdinfo_of_itself() {
    let [fd, _] = fdinfo_pair(true);
    check!(String::from_utf8_lossy(&read(fd, 1000)).starts_with("pos:\t0\nflags:\t"));
    let mut buf = [0u8; 6];
    eq!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 6, 0), 6);
    check!(buf.starts_with(b"pos:\t"));
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    // By sendfile(2), which Linux has not always refused here, and by one that shares the description.
    let (r, w) = pipe();
    match sys!(libc::SYS_sendfile, w, fd, 0, 1000) {
        refused if refused < 0 => eq!(refused, -i64::from(libc::EINVAL)),
        _ => check!(read(r, 1000).starts_with(b"pos:\t")),
    }
    in_child(|| {
        ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
        check!(read(fd, 1000).starts_with(b"pos:\t0\n"));
    });
}

fn fdinfo_of_each_other() {
    let fds = fdinfo_pair(false);
    let readers = fds.map(|fd| {
        std::thread::spawn(move || {
            for _ in 0..1000 {
                ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
                check!(read(fd, 1000).starts_with(b"pos:\t"));
            }
        })
    });
    for reader in readers {
        reader.join().expect("joined");
    }
}

fn fdinfo_of_epoll() {
    let [outer, inner] = [(); 2].map(|()| ok!(sys!(libc::SYS_epoll_create1, 0)) as i32);
    let (r, w) = pipe();
    let control = |epoll: i32, op: i32, fd: i32| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        ok!(sys!(libc::SYS_epoll_ctl, epoll, op, fd, &raw mut event));
    };
    control(inner, libc::EPOLL_CTL_ADD, r);
    control(outer, libc::EPOLL_CTL_ADD, inner);
    let changer = std::thread::spawn(move || {
        for _ in 0..300 {
            control(inner, libc::EPOLL_CTL_ADD, w);
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            ok!(sys!(libc::SYS_epoll_wait, outer, events.as_mut_ptr(), 4, 0));
            control(inner, libc::EPOLL_CTL_DEL, w);
        }
    });
    let watched = |epoll: i32| text(&format!("/proc/self/fdinfo/{epoll}")).lines().filter(|l| l.starts_with("tfd:")).count();
    for _ in 0..300 {
        eq!(watched(outer), 1);
        check!((1..=2).contains(&watched(inner)));
    }
    changer.join().expect("joined");
}

/// Everything below a directory of /proc, as far as it is there long enough to be looked at.
fn walk(path: &str, depth: u32) {
    let fd = open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    if fd < 0 {
        return;
    }
    close(fd as i32);
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let below = format!("{path}/{name}");
        let _ = std::fs::read_link(&below);
        let _ = std::fs::metadata(&below);
        if matches!(&*name, "stat" | "status" | "maps" | "mountinfo" | "comm" | "cmdline" | "limits") || path.ends_with("/fdinfo") {
            let _ = std::fs::read(&below);
        }
        if depth > 0 && (matches!(&*name, "task" | "fd" | "fdinfo") || path.ends_with("/task")) {
            walk(&below, depth - 1);
        }
    }
}

fn walked_while_forking() {
    let over: &'static AtomicU32 = &shared_words()[0];
    let makers: Vec<_> = (0..2)
        .map(|n| {
            std::thread::spawn(move || {
                let dir = format!("d{n}");
                for _ in 0..30 {
                    // The end of the child drops the last hold on its directory and its descriptors.
                    let pid = child(|| {
                        mkdir(&dir, 0o700);
                        ok!(sys!(libc::SYS_chdir, c(&dir).as_ptr()));
                        rmdir(&format!("../{dir}"));
                        pipe();
                        // The child has one thread, whatever its parent has.
                        let fd = ok!(open("/proc/self/stat", libc::O_RDONLY, 0)) as i32;
                        check!(!read(fd, 100).is_empty());
                    });
                    wait(pid);
                    std::thread::spawn(|| ()).join().expect("joined");
                }
                over.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    let walkers: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                while over.load(Ordering::SeqCst) < 2 {
                    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
                        let Ok(name) = entry.file_name().into_string() else { continue };
                        if name.starts_with(|c: char| c.is_ascii_digit()) {
                            walk(&format!("/proc/{name}"), 3);
                        }
                    }
                }
            })
        })
        .collect();
    for thread in makers.into_iter().chain(walkers) {
        thread.join().expect("joined");
    }
}

fn io_counters() {
    let io = |name: &str| -> u64 { line("/proc/self/io", name).parse().expect("a number") };
    file("data", &[1; 1000]);
    let before = ["rchar", "wchar", "syscr", "syscw"].map(io);
    let out = ok!(open("data", libc::O_WRONLY, 0)) as i32;
    eq!(write(out, &[2; 600]), 600);
    eq!(write(out, &[2; 100]), 100);
    let data = ok!(open("data", libc::O_RDONLY, 0)) as i32;
    eq!(read(data, 900).len(), 900);
    let after = ["rchar", "wchar", "syscr", "syscw"].map(io);
    // What reading /proc/self/io itself reads comes on top.
    check!(after[0] - before[0] >= 900 && after[0] - before[0] < 4000, "{before:?} {after:?}");
    eq!(after[1] - before[1], 700);
    check!(after[2] > before[2]);
    eq!(after[3] - before[3], 2);
    eq!(io("cancelled_write_bytes"), 0);
}

fn pagemap() {
    let page = map(2 * 4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the pages are ours.
    unsafe { (page.write_volatile(1), page.add(4096).write_volatile(1)) };
    ok!(sys!(libc::SYS_munmap, page.wrapping_add(4096), 4096));
    let fd = ok!(open("/proc/self/pagemap", libc::O_RDONLY, 0)) as i32;
    let mut entries = [0u64; 2];
    let at = page as u64 / 4096 * 8;
    eq!(sys!(libc::SYS_pread64, fd, entries.as_mut_ptr(), 16, at), 16);
    eq!(entries[0] >> 63, 1);
    // Anonymous and private.
    eq!(entries[0] >> 61 & 1, 0);
    eq!(entries[1] >> 63, 0);
    err!(sys!(libc::SYS_pread64, fd, entries.as_mut_ptr(), 15, at), libc::EINVAL);
    err!(sys!(libc::SYS_pread64, fd, entries.as_mut_ptr(), 8, at + 1), libc::EINVAL);
}

/// Files that programs look for. On Linux some depend on how the kernel was built.
fn files_that_programs_read() {
    let strict = text("/proc/version").contains("sentry");
    let process = "auxv cgroup cmdline comm coredump_filter cwd environ exe fd fdinfo gid_map io limits loginuid maps mem \
        mountinfo mounts mountstats net ns oom_adj oom_score oom_score_adj pagemap personality projid_map root sched schedstat \
        sessionid setgroups smaps smaps_rollup stack stat statm status syscall task timerslack_ns uid_map wchan";
    let system = "cmdline cpuinfo devices filesystems loadavg meminfo modules mounts self thread-self stat swaps uptime version \
        vmstat net/unix sys/kernel/hostname sys/kernel/domainname sys/kernel/osrelease sys/kernel/ostype sys/kernel/version \
        sys/kernel/pid_max sys/kernel/threads-max sys/kernel/random/boot_id sys/kernel/random/uuid \
        sys/kernel/random/entropy_avail sys/kernel/randomize_va_space sys/kernel/cap_last_cap sys/kernel/overflowuid \
        sys/kernel/overflowgid sys/kernel/shmmax sys/kernel/shmall sys/kernel/shmmni sys/kernel/msgmax sys/kernel/msgmnb \
        sys/kernel/msgmni sys/kernel/sem sys/kernel/ngroups_max sys/fs/file-max sys/fs/nr_open sys/fs/pipe-max-size \
        sys/fs/inotify/max_user_watches sys/fs/inotify/max_user_instances sys/fs/inotify/max_queued_events \
        sys/fs/epoll/max_user_watches sys/vm/overcommit_memory sys/vm/max_map_count sys/vm/mmap_min_addr sys/vm/swappiness \
        sys/net/core/somaxconn";
    let devices = "null zero full random urandom tty console ptmx pts shm mqueue fd stdin stdout stderr";
    let sysfs = "devices/system/cpu/online devices/system/cpu/possible devices/system/cpu/present \
        devices/system/node class/net fs/cgroup \
        kernel/mm/transparent_hugepage/enabled block module";
    // Those that are offline (inside: those that the sandbox may not use) have no topology.
    let online = text("/sys/devices/system/cpu/online");
    let first = online.split(['-', ',', '\n']).next().unwrap_or("0");
    let topology = format!("devices/system/cpu/cpu{first}/topology/core_id");
    for (below, names) in [("/sys", topology.as_str()), ("/proc/self", process), ("/proc", system), ("/dev", devices), ("/sys", sysfs)] {
        for name in names.split_whitespace() {
            let path = format!("{below}/{name}");
            let mut found: libc::stat = zeroed();
            let seen = sys!(libc::SYS_lstat, c(&path).as_ptr(), std::ptr::from_mut(&mut found));
            check!(seen == 0 || !strict, "{path}: {seen}");
        }
    }
}
