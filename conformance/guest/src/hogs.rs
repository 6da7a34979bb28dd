//! Programs that take all they can get of one thing, and an honest neighbour beside them. Only for sandboxes with limits.
//!
//! `guest hog NAME SECONDS REPORT` starts both, ends the hog after so many seconds if it has not ended by itself, and
//! writes to a file what came of each. `none` is the neighbour alone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys::*;
use crate::{eq, sys};

/// What hog and neighbour say, in memory that they share with who started them.
struct Board {
    /// Rounds that the neighbour has made, the longest one in nanoseconds, and when the last one began.
    rounds: AtomicU64,
    longest: AtomicU64,
    /// What the hog has got, and the error number with which it was refused first.
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Board {
    /// The hog has got so much more; false if it was refused that.
    fn took(&self, result: i64, amount: u64) -> bool {
        if result < 0 {
            let _ = self
                .refused
                .compare_exchange(0, result.unsigned_abs(), Relaxed, Relaxed);
            return false;
        }
        self.taken.fetch_add(amount, Relaxed);
        true
    }
}

type Hog = fn(&Board);

const HOGS: &[(&str, Hog)] = &[
    ("none", |_| ()),
    ("forks", forks),
    ("fork_tree", fork_tree),
    ("shell_bomb", shell_bomb),
    ("vforks", vforks),
    ("threads", threads),
    ("zombies", zombies),
    ("anonymous", anonymous),
    ("shared", shared_memory),
    ("memfd", memfd),
    ("tmpfs", tmpfs),
    ("pipes", pipes),
    ("sockets", sockets),
    ("datagrams", datagrams),
    ("rights", rights),
    ("watches", watches),
    ("watch_events", watch_events),
    ("names", names_looked_up),
    ("signals", signals),
    ("timers", timers),
    ("open_files", open_files),
    ("epolls", epolls),
    ("locks", locks),
    ("mappings", mappings),
    ("deep_directories", deep_directories),
    ("huge_argv", huge_argv),
    ("sparse", sparse),
    ("inodes", inodes),
    ("hard_links", hard_links),
    ("renames", renames),
    ("computing", computing),
    ("calls", calls),
    ("output", output),
    ("sleeping", sleeping),
];

/// The names of all hogs, `none` left out.
pub fn names() -> impl Iterator<Item = &'static str> {
    HOGS.iter().map(|(name, _)| *name).skip(1)
}

/// Runs one.
pub fn run(name: &str, seconds: &str, report: &str) {
    let Some((_, hog)) = HOGS.iter().find(|(known, _)| *known == name) else {
        eprintln!("no hog is called {name}");
        exit(2)
    };
    let seconds: u64 = seconds.parse().unwrap_or(2);
    // SAFETY: a fresh shared mapping that is larger than a board, is never unmapped, and zeros are one.
    let board: &'static Board = unsafe { &*shared(4096).cast() };
    // Has its room before a hog takes all there is.
    let report = new_file(report, &[b'\n'; 4096]);
    let neighbour = child(|| neighbour(board));
    let hog = child(|| {
        sys!(libc::SYS_setsid);
        hog(board);
        if name == "none" {
            sleeping(board);
        }
        // Holds what it has for a moment: the others must go on meanwhile.
        sleep_ms(300);
        exit(0)
    });
    let end = now() + seconds * 1_000_000_000;
    let mut status = 0i32;
    let mut ended = false;
    while !ended && now() < end {
        ended = sys!(libc::SYS_wait4, hog, &mut status as *mut i32, libc::WNOHANG, 0) == i64::from(hog);
        sleep_ms(5);
    }
    // Who is killed makes room for others: until there are none.
    let gone = now() + 10_000_000_000;
    while sys!(libc::SYS_kill, -hog, libc::SIGKILL) == 0 && now() < gone {
        sleep_ms(5);
        if !ended {
            ended = sys!(libc::SYS_wait4, hog, &mut status as *mut i32, libc::WNOHANG, 0) == i64::from(hog);
        }
        while sys!(libc::SYS_wait4, -hog, 0, libc::WNOHANG, 0) > 0 {}
    }
    // How long the neighbour takes for ten more rounds.
    let (before, begun) = (board.rounds.load(Relaxed), now());
    while board.rounds.load(Relaxed) < before + 10 && now() < begun + 10_000_000_000 {
        sleep_ms(1);
    }
    let after = (now() - begun) / 1_000_000;
    kill(neighbour, libc::SIGKILL);
    let neighbour = wait(neighbour);
    let how = match board.refused.load(Relaxed) {
        _ if libc::WIFSIGNALED(status) && now() > end => "stopped".into(),
        _ if libc::WIFSIGNALED(status) => format!("killed {}", libc::WTERMSIG(status)),
        0 => "done".into(),
        errno => format!("refused {errno}"),
    };
    let [rounds, longest, taken] = [&board.rounds, &board.longest, &board.taken].map(|word| word.load(Relaxed));
    let said = format!(
        "neighbour {rounds} {} {after} {}\nhog {how} {taken}\n",
        longest / 1_000_000,
        libc::WTERMSIG(neighbour)
    );
    eq!(
        sys!(libc::SYS_pwrite64, report, said.as_ptr(), said.len(), 0),
        said.len() as i64
    );
}

/// Goes on with small work of several kinds, and measures how long each round takes.
fn neighbour(board: &Board) {
    let (r, w) = pipe();
    let path = format!("/tmp/neighbour-{}", getpid());
    loop {
        let begun = now();
        write(w, b"x");
        read(r, 1);
        // Without room on the disk it still has its file, an empty one.
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600);
        if fd >= 0 {
            write(fd as i32, b"neighbour");
            close(fd as i32);
        }
        stat("/proc/self/exe");
        sleep_ms(2);
        board.longest.fetch_max(now() - begun, Relaxed);
        board.rounds.fetch_add(1, Relaxed);
    }
}

/// Waits without end.
fn wait_for_ever() -> ! {
    loop {
        sys!(libc::SYS_pause);
    }
}

fn fork() -> i64 {
    sys!(libc::SYS_fork)
}

/// Goes on until it has been refused `times` times.
fn until_refused(times: u32, mut attempt: impl FnMut() -> bool) {
    let mut refused = 0;
    while refused < times {
        if !attempt() {
            refused += 1;
            sleep_ms(1);
        }
    }
}

fn forks(board: &Board) {
    until_refused(300, || match fork() {
        0 => wait_for_ever(),
        pid => board.took(pid, 1),
    });
}

/// Every process forks, and so do its children.
fn fork_tree(board: &Board) {
    loop {
        let pid = fork();
        if pid != 0 {
            board.took(pid, 1);
        }
    }
}

fn shell_bomb(_: &Board) {
    let script = "exec 2>/dev/null; f() { f | f & }; f; sleep 100";
    let args = ["/bin/bash", "-c", script].map(c);
    let argv = [args[0].as_ptr(), args[1].as_ptr(), args[2].as_ptr(), std::ptr::null()];
    let env: [*const libc::c_char; 1] = [std::ptr::null()];
    sys!(libc::SYS_execve, args[0].as_ptr(), argv.as_ptr(), env.as_ptr());
}

/// Every parent waits for its child, which has a child.
fn vforks(board: &Board) {
    fn nested(board: &Board, depth: u32) {
        if depth == 100_000 {
            return;
        }
        // As vfork(2), with memory of its own for the child, so that this stack stays as it is.
        let flags = libc::CLONE_VFORK | libc::SIGCHLD;
        match sys!(libc::SYS_clone, flags, 0, 0, 0, 0) {
            0 => {
                board.took(0, 1);
                nested(board, depth + 1);
                exit(0)
            }
            pid => board.took(pid, 0),
        };
    }
    until_refused(20, || {
        nested(board, 0);
        board.refused.load(Relaxed) == 0
    });
}

fn threads(board: &Board) {
    until_refused(50, || {
        let thread = std::thread::Builder::new()
            .stack_size(16 << 10)
            .spawn(|| wait_for_ever());
        match thread {
            Ok(_) => board.took(0, 1),
            Err(error) => board.took(-i64::from(error.raw_os_error().unwrap_or(libc::EIO)), 1),
        }
    });
}

fn zombies(board: &Board) {
    until_refused(300, || match fork() {
        0 => exit(0),
        pid => board.took(pid, 1),
    });
}

const MIB: usize = 1 << 20;

fn touch(at: i64, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // SAFETY: within a writable mapping of `len` bytes.
        unsafe { (at as *mut u8).add(page).write_volatile(1) };
    }
}

fn fill(board: &Board, flags: i32) {
    until_refused(50, || {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let at = sys!(libc::SYS_mmap, 0, MIB, prot, flags | libc::MAP_ANONYMOUS, -1, 0);
        if !board.took(at, 0) {
            return false;
        }
        touch(at, MIB);
        board.took(0, MIB as u64)
    });
}

fn anonymous(board: &Board) {
    fill(board, libc::MAP_PRIVATE);
}

fn shared_memory(board: &Board) {
    fill(board, libc::MAP_SHARED);
}

fn memfd(board: &Board) {
    let fd = sys!(libc::SYS_memfd_create, c("hog").as_ptr(), 0);
    let data = vec![1u8; MIB];
    until_refused(50, || {
        let written = sys!(libc::SYS_write, fd, data.as_ptr(), MIB);
        board.took(written, written.max(0) as u64)
    });
}

fn tmpfs(board: &Board) {
    let data = vec![1u8; MIB];
    let fd = open("/dev/shm/hog", libc::O_RDWR | libc::O_CREAT, 0o600);
    until_refused(50, || {
        let written = sys!(libc::SYS_write, fd, data.as_ptr(), MIB);
        board.took(written, written.max(0) as u64)
    });
}

/// As many processes as may be had, of which each does `work`, and then waits.
fn everywhere(board: &Board, work: impl Fn(&Board)) {
    loop {
        match fork() {
            0 => {
                work(board);
                wait_for_ever()
            }
            pid if pid > 0 => sleep_ms(2),
            _ => return sleep_ms(1000),
        }
    }
}

fn pipes(board: &Board) {
    everywhere(board, |board| {
        let data = vec![1u8; 64 << 10];
        loop {
            let mut ends = [0i32; 2];
            let made = sys!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK);
            if !board.took(made, 0) {
                return;
            }
            let written = sys!(libc::SYS_write, ends[1], data.as_ptr(), data.len());
            board.took(0, written.max(0) as u64);
        }
    });
}

fn socket_pairs(board: &Board, kind: i32) {
    everywhere(board, move |board| {
        let data = vec![1u8; 32 << 10];
        loop {
            let mut ends = [0i32; 2];
            let kind = kind | libc::SOCK_NONBLOCK;
            let made = sys!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
            if !board.took(made, 0) {
                return;
            }
            loop {
                let written = sys!(libc::SYS_write, ends[0], data.as_ptr(), data.len());
                if written <= 0 {
                    break;
                }
                board.took(0, written as u64);
            }
        }
    });
}

fn sockets(board: &Board) {
    socket_pairs(board, libc::SOCK_STREAM);
}

fn datagrams(board: &Board) {
    socket_pairs(board, libc::SOCK_DGRAM);
}

/// Sockets that are on their way through other sockets, which only a collector finds.
fn rights(board: &Board) {
    until_refused(100, || {
        let mut ends = [0i32; 2];
        let made = sys!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_STREAM,
            0,
            ends.as_mut_ptr()
        );
        if !board.took(made, 0) {
            return false;
        }
        let mut byte = 1u8;
        let mut part = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let mut control = [0u64; 3];
        control[0] = 20;
        control[1] = (libc::SOL_SOCKET as u64) | (libc::SCM_RIGHTS as u64) << 32;
        control[2] = ends[0] as u64;
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 20;
        // Each end is on its way to itself.
        let sent = sys!(libc::SYS_sendmsg, ends[1], &message as *const _, libc::MSG_DONTWAIT);
        close(ends[0]);
        close(ends[1]);
        board.took(sent, 1)
    });
}

fn watches(board: &Board) {
    let fd = sys!(libc::SYS_inotify_init1, 0);
    let mut number = 0;
    until_refused(20, || {
        number += 1;
        let path = format!("/tmp/watched-{number}");
        let made = open(&path, libc::O_CREAT | libc::O_RDWR, 0o600);
        if !board.took(made, 0) {
            return false;
        }
        close(made as i32);
        board.took(
            sys!(libc::SYS_inotify_add_watch, fd, c(&path).as_ptr(), libc::IN_ALL_EVENTS),
            1,
        )
    });
}

fn watch_events(board: &Board) {
    let queues: Vec<i64> = (0..200)
        .map(|_| {
            let fd = sys!(libc::SYS_inotify_init1, 0);
            if fd >= 0 {
                sys!(libc::SYS_inotify_add_watch, fd, c("/tmp").as_ptr(), libc::IN_ALL_EVENTS);
            }
            fd
        })
        .collect();
    if let Some(refused) = queues.iter().find(|fd| **fd < 0) {
        board.took(*refused, 0);
    }
    let long = format!("/tmp/{}", "n".repeat(250));
    for number in 0..20_000 {
        let path = format!("{long}{}", number % 10);
        let fd = open(&path, libc::O_CREAT | libc::O_RDWR, 0o600);
        if !board.took(fd, 1) {
            return;
        }
        close(fd as i32);
        unlink(&path);
    }
}

/// Names that are not there, in memory and on the host.
fn names_looked_up(board: &Board) {
    for number in 0..1_000_000u64 {
        for top in ["/tmp", "/usr/bin", "/usr/lib"] {
            stat(&format!("{top}/absent-name-of-some-length-{number}"));
            board.took(0, 1);
        }
    }
}

fn signals(board: &Board) {
    sigmask(libc::SIG_BLOCK, bit(40));
    let mut info = [0u64; 16];
    info[0] = 40;
    // si_code, SI_QUEUE.
    info[1] = u64::from(u32::MAX);
    let me = getpid();
    let mut refused = 0;
    for _ in 0..1_000_000 {
        let sent = sys!(libc::SYS_rt_sigqueueinfo, me, 40, info.as_mut_ptr());
        refused += u32::from(!board.took(sent, 1));
        if refused > 1000 {
            break;
        }
    }
}

fn timers(board: &Board) {
    until_refused(100, || {
        let mut id = 0i32;
        board.took(
            sys!(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, 0, &mut id as *mut i32),
            1,
        )
    });
}

fn open_files(board: &Board) {
    everywhere(board, |board| {
        until_refused(1, || board.took(open("/dev/null", libc::O_RDONLY, 0), 1))
    });
}

fn epolls(board: &Board) {
    everywhere(board, |board| {
        let event = sys!(libc::SYS_eventfd2, 0, 0);
        until_refused(1, || {
            let fd = sys!(libc::SYS_epoll_create1, 0);
            if !board.took(fd, 0) {
                return false;
            }
            let mut interest = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0,
            };
            let added = sys!(
                libc::SYS_epoll_ctl,
                fd,
                libc::EPOLL_CTL_ADD,
                event,
                &mut interest as *mut _
            );
            board.took(added, 1)
        });
    });
}

fn locks(board: &Board) {
    let fd = open("/tmp/locked", libc::O_RDWR | libc::O_CREAT, 0o600);
    let mut refused = 0;
    for number in 0..300_000i64 {
        let mut range: libc::flock = zeroed();
        range.l_type = libc::F_WRLCK as i16;
        range.l_start = number * 2;
        range.l_len = 1;
        let locked = sys!(libc::SYS_fcntl, fd, libc::F_SETLK, &mut range as *mut _);
        refused += u32::from(!board.took(locked, 1));
        if refused > 100 {
            break;
        }
    }
}

fn mappings(board: &Board) {
    let mut protection = libc::PROT_READ;
    until_refused(20, || {
        protection ^= libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        board.took(sys!(libc::SYS_mmap, 0, PAGE, protection, flags, -1, 0), 1)
    });
}

fn deep_directories(board: &Board) {
    sys!(libc::SYS_chdir, c("/tmp").as_ptr());
    let name = "d".repeat(200);
    until_refused(20, || {
        let made = mkdir(&name, 0o700);
        board.took(made, 1) && sys!(libc::SYS_chdir, c(&name).as_ptr()) == 0
    });
}

fn huge_argv(board: &Board) {
    let argument = c(&"a".repeat(100 << 10));
    let mut argv = vec![argument.as_ptr(); 4000];
    argv.push(std::ptr::null());
    let (path, env) = (c("/bin/true"), [std::ptr::null::<libc::c_char>()]);
    for _ in 0..50 {
        let result = sys!(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), env.as_ptr());
        board.took(result, 0);
    }
}

fn sparse(board: &Board) {
    let fd = open("/tmp/sparse", libc::O_RDWR | libc::O_CREAT, 0o600);
    sys!(libc::SYS_ftruncate, fd, 1i64 << 42);
    let mut offset = 0i64;
    until_refused(50, || {
        offset += 1 << 24;
        board.took(sys!(libc::SYS_pwrite64, fd, b"x".as_ptr(), 1, offset), 1)
    });
}

fn inodes(board: &Board) {
    let mut number = 0;
    until_refused(50, || {
        number += 1;
        let fd = open(&format!("/tmp/inode-{number}"), libc::O_CREAT | libc::O_RDWR, 0o600);
        if fd >= 0 {
            close(fd as i32);
        }
        board.took(fd, 1)
    });
}

fn hard_links(board: &Board) {
    file("/tmp/first", b"");
    let mut number = 0;
    until_refused(50, || {
        number += 1;
        board.took(link("/tmp/first", &format!("/tmp/link-{number}")), 1)
    });
}

fn renames(board: &Board) {
    mkdir("/tmp/a", 0o700);
    mkdir("/tmp/b", 0o700);
    file("/tmp/a/x", b"x");
    loop {
        rename("/tmp/a/x", "/tmp/b/y");
        rename("/tmp/b/y", "/tmp/a/x");
        rename("/tmp/a", "/tmp/c");
        rename("/tmp/c", "/tmp/a");
        board.took(0, 4);
    }
}

fn many(work: impl Fn()) -> ! {
    for _ in 0..7 {
        if fork() == 0 {
            break;
        }
    }
    loop {
        work();
    }
}

fn computing(_: &Board) {
    many(|| compute_ms(100))
}

fn calls(board: &Board) {
    many(|| {
        sys!(libc::SYS_getppid);
        board.took(0, 1);
    })
}

fn output(board: &Board) {
    disposition(libc::SIGXFSZ, libc::SIG_IGN);
    let data = vec![b'o'; 4096];
    until_refused(50, || {
        let written = sys!(libc::SYS_write, 1, data.as_ptr(), data.len());
        board.took(written, written.max(0) as u64)
    });
}

fn sleeping(_: &Board) {
    wait_for_ever()
}
