//! What comes and goes inside leaves nothing in our processes: their descriptors, threads and memory stay as they are.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::{SENTRY, children, command_line, eventually};

/// Rounds until everything has been used once (caches, pools, the keepers of descriptors), and then.
const WARM_UP: usize = 4;

/// `SENTRY_ROUNDS`, else a few.
fn rounds() -> usize {
    std::env::var("SENTRY_ROUNDS").map_or(16, |rounds| rounds.parse().expect("a number"))
}

/// One round each time a line comes: processes, threads, pipes, sockets, files, mappings, timers, signals, terminals.
const GUEST: &str = r#"
import mmap, os, pty, select, signal, socket, subprocess, sys, tempfile, threading

def files(base, count):
    dirs = []
    for i in range(count):
        d = os.path.join(base, f"d{i}")
        os.mkdir(d)
        dirs.append(d)
        for j in range(10):
            p = os.path.join(d, f"f{j}")
            with open(p, "wb") as f:
                f.write(b"x" * 5000)
            os.rename(p, p + "r")
            os.link(p + "r", p)
            os.symlink("nowhere", p + "s")
        os.listdir(d)
    for d in dirs:
        for name in os.listdir(d):
            os.unlink(os.path.join(d, name))
        os.rmdir(d)

def sockets():
    a, b = socket.socketpair()
    p = os.pipe()
    socket.send_fds(a, [b"x"], [p[0], p[1]])
    _, fds, _, _ = socket.recv_fds(b, 1, 2)
    for fd in (*p, *fds):
        os.close(fd)
    poller = select.epoll()
    poller.register(b.fileno(), select.EPOLLIN)
    a.send(b"y")
    poller.poll(1)
    poller.close()
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0churn")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0churn")
    peer, _ = server.accept()
    for s in (a, b, server, client, peer):
        s.close()

def memory():
    m = mmap.mmap(-1, 1 << 20)
    m[:] = b"z" * (1 << 20)
    pid = os.fork()
    if pid == 0:
        m[5] = 1
        os._exit(0)
    os.waitpid(pid, 0)
    m.close()
    with tempfile.TemporaryFile() as f:
        f.truncate(1 << 16)
        with mmap.mmap(f.fileno(), 1 << 16) as m:
            m[7] = 7

def terminals():
    pid, fd = pty.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    while True:
        try:
            if not os.read(fd, 100):
                break
        except OSError:
            break
    os.waitpid(pid, 0)
    os.close(fd)

def threads():
    ts = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(8)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
for line in sys.stdin:
    for _ in range(6):
        subprocess.run(["sh", "-c", "true | cat; (sleep 0 &); ls / > /dev/null"])
        sockets()
        memory()
        threads()
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        signal.sigwait({signal.SIGALRM})
    terminals()
    for base in sys.argv[1:]:
        files(base, 5)
    # As the first process it is everybody's heir.
    try:
        while os.waitpid(-1, 0)[0]:
            pass
    except ChildProcessError:
        pass
    print("done", flush=True)
"#;

/// Descriptors, threads and kibibytes of memory of its own of a process.
#[derive(Clone, Copy, Debug)]
struct Use {
    descriptors: usize,
    threads: usize,
    memory: usize,
}

fn used(pid: i32) -> Use {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .expect("a number")
    };
    Use {
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count),
        threads: number("Threads:"),
        memory: number("RssAnon:"),
    }
}

fn churns(platform: &str, workers: &str) {
    let writable = tempfile::tempdir().expect("directory");
    let mount = format!("{}:/rw", writable.path().display());
    let options = ["exec", "--platform", platform, "--workers", workers, "--rw", &mount];
    let mut sandbox = Command::new(SENTRY)
        .args(options)
        .args(["--", "python3", "-c", GUEST, "/tmp", "/usr/share", "/rw"])
        .current_dir("/usr")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = sandbox.stdin.take().expect("piped");
    let mut output = BufReader::new(sandbox.stdout.take().expect("piped"));
    let mut parts = Vec::new();
    let mut first: Vec<Use> = Vec::new();
    for round in 0..WARM_UP + rounds() {
        input.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        output.read_line(&mut line).expect("it writes");
        assert_eq!(line, "done\n", "{platform}, round {round}");
        if parts.is_empty() {
            parts = children(sandbox.id() as i32)
                .into_iter()
                .map(|pid| (pid, command_line(pid)))
                .filter(|(_, line)| line.ends_with("sentry boot") || line.ends_with("sentry gofer"))
                .collect();
            assert_eq!(parts.len(), 2, "sentry and gofer: {parts:?}");
        }
        if round + 1 == WARM_UP {
            first = parts.iter().map(|(pid, _)| used(*pid)).collect();
        }
        if round % 50 == 49 {
            let now: Vec<Use> = parts.iter().map(|(pid, _)| used(*pid)).collect();
            eprintln!("{platform}, {workers} workers, after {} rounds: {now:?}", round + 1);
        }
    }
    for ((pid, name), first) in parts.iter().zip(&first) {
        // Whatever ended last may still be cleared away.
        let settled = eventually(|| {
            let last = used(*pid);
            last.descriptors <= first.descriptors + 8 && last.threads <= first.threads + 2
        });
        let last = used(*pid);
        let seen = format!("{platform}, {workers} workers, {name}: {first:?} became {last:?}");
        assert!(settled, "{seen}");
        assert!(last.memory <= first.memory + 2048, "{seen}");
        eprintln!("{seen}");
    }
    drop(input);
    assert!(sandbox.wait().expect("wait").success());
}

#[test]
fn nothing_is_left_in_our_processes_of_what_came_and_went() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3 here");
        return;
    }
    std::thread::scope(|scope| {
        for (platform, workers) in [("systrap", "1"), ("systrap", "4"), ("ptrace", "1")] {
            scope.spawn(move || churns(platform, workers));
        }
    });
}
