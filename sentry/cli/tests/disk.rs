//! `--disk` and `--disk-inodes` hold for what a guest adds to `--rw` mounts, however it adds it; and the summary knows
//! what it changed there. On both platforms, as root and as an ordinary user.

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use common::{Host, error_text, text};
use serde_json::Value;

#[test]
fn launcher() {
    common::launch();
}

const MIB: u64 = 1 << 20;

/// What the guests' programs begin with. They print what they find, a word each.
const PRELUDE: &str = "
import ctypes, errno, mmap, os, sys, threading
os.chdir(sys.argv[1])
M = 1 << 20
new = lambda name, flags=0: os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o666)
def refused(action):
    try: action()
    except OSError as error: return errno.errorcode[error.errno]
    return 'done'
def fill(fd, at=None, size=65536):
    # Until it is refused: how many bytes.
    written = 0
    try:
        while written < 64 * M:
            written += os.write(fd, b'x' * size) if at is None else os.pwrite(fd, b'x' * size, at + written)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    return written
def free():
    s = os.statvfs('.')
    return s.f_bavail * s.f_frsize
def near(size, expected):
    # The host may need some blocks to find the others.
    return 'ok' if expected - 256 * 1024 <= size <= expected else '%d,not,%d' % (size, expected)
";

struct Run {
    out: String,
    error: String,
    events: Vec<Value>,
}

/// Allocated bytes of everything in a directory.
fn allocated(dir: &Path) -> u64 {
    allocated_but(dir, &mut Vec::new())
}

fn allocated_but(dir: &Path, seen: &mut Vec<u64>) -> u64 {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    entries
        .map(|entry| {
            let metadata = fs::symlink_metadata(entry.path()).expect("metadata");
            if seen.contains(&metadata.ino()) {
                return 0;
            }
            seen.push(metadata.ino());
            let below = if metadata.is_dir() {
                allocated_but(&entry.path(), seen)
            } else {
                0
            };
            metadata.blocks() * 512 + below
        })
        .sum()
}

/// Runs a program everywhere with `limits`, after `prepare` on the host; what is on the disk then is no more than what
/// was there and `most` bytes.
fn everywhere(limits: &[&str], most: u64, prepare: impl Fn(&Path), program: &str, check: impl Fn(&Run, &Path)) {
    for host in [Host::Plain, Host::Ordinary] {
        for platform in ["systrap", "ptrace"] {
            let outer = tempfile::tempdir().expect("a directory");
            fs::set_permissions(outer.path(), Permissions::from_mode(0o777)).expect("chmod");
            let dir = outer.path().join("shared");
            fs::create_dir(&dir).expect("mkdir");
            fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
            prepare(&dir);
            for entry in fs::read_dir(&dir).expect("a directory").flatten() {
                fs::set_permissions(entry.path(), Permissions::from_mode(0o666)).expect("chmod");
                if host == Host::Ordinary && nix::unistd::geteuid().is_root() {
                    std::os::unix::fs::chown(entry.path(), Some(54321), Some(54321)).expect("chown");
                }
            }
            let before = allocated(&dir);
            let log = outer.path().join("log");
            let place = dir.to_str().expect("UTF-8");
            let program = format!("{PRELUDE}{program}");
            let mut args = vec!["exec", "--platform", platform, "--events", log.to_str().expect("UTF-8")];
            args.extend(["--summary", "--timeout", "100", "--rw", place]);
            args.extend(limits);
            args.extend(["--", "python3", "-c", &program, place]);
            let Some(output) = host.run(&args) else { continue };
            let log = fs::read_to_string(&log).expect("a log");
            let run = Run {
                out: text(&output).split_whitespace().collect::<Vec<_>>().join(" "),
                error: error_text(&output),
                events: log
                    .lines()
                    .map(|line| serde_json::from_str(line).expect("JSON"))
                    .collect(),
            };
            assert!(
                output.status.success(),
                "{host:?} {platform}: {} {}",
                run.out,
                run.error
            );
            check(&run, &dir);
            let added = allocated(&dir).saturating_sub(before);
            assert!(added <= most, "{host:?} {platform}: {added} bytes: {}", run.out);
        }
    }
}

fn nothing(_: &Path) {}

/// A little for the blocks by which the host finds others.
const LIMIT: u64 = 4 * MIB + 128 * 1024;

fn with_limit(program: &str, expected: &str) {
    everywhere(&["--disk", "4m"], LIMIT, nothing, program, |run, _| {
        assert_eq!(run.out, expected, "{}", run.error);
    });
}

#[test]
fn plain_writes_are_refused_beyond_the_limit_and_told() {
    let program = "
s = os.statvfs('.')
print(s.f_blocks * s.f_frsize // M, near(free(), 4 * M))
fd = new('a')
print(near(fill(fd), 4 * M), free(), refused(lambda: os.write(fd, b'x' * 4096)))
# What is there can be written again, and in memory there is no room either.
print(os.pwrite(fd, b'y' * M, 0), refused(lambda: os.write(new('/tmp/a'), b'x' * 4096)))
# Not by appending, nor by another name.
os.link('a', 'b')
print(refused(lambda: os.write(os.open('b', os.O_WRONLY | os.O_APPEND), b'x' * 8192)))
print(refused(lambda: os.posix_fallocate(fd, 0, 8 * M)))
";
    let expected = "4 ok ok 0 ENOSPC 1048576 ENOSPC ENOSPC ENOSPC";
    everywhere(&["--disk", "4m"], LIMIT, nothing, program, |run, _| {
        assert_eq!(run.out, expected, "{}", run.error);
        let mut limits = run.events.iter().filter(|event| event["limit"] == "disk");
        let limit = limits.next().expect("an event");
        assert_eq!(
            (&limit["action"], &limit["value"]),
            (&"refused".into(), &(4 * MIB).into())
        );
        let used = limit["used"].as_u64().expect("a number");
        assert!((4 * MIB - 256 * 1024..=4 * MIB).contains(&used), "{limit}");
    });
}

#[test]
fn what_is_removed_is_given_back() {
    let program = "
def over():
    os.close(new('b'))
    os.rename('b', 'a')
for remove in (lambda: os.unlink('a'), lambda: os.truncate('a', 0), over, lambda: os.close(new('a', os.O_TRUNC))):
    fd = new('a')
    size = fill(fd)
    os.ftruncate(fd, size - M)
    print(near(size, 4 * M), near(free(), M))
    os.close(fd)
    remove()
    print(near(free(), 4 * M))
";
    with_limit(program, &["ok ok ok"; 4].join(" "));
}

#[test]
fn a_file_that_is_open_or_has_another_name_is_not() {
    let program = "
fd = new('a')
again = os.open('a', os.O_RDONLY)
fill(fd)
os.unlink('a')
print(free(), end=' ')
os.close(fd)
print(free(), end=' ')
path = os.open('/proc/self/fd/%d' % again, os.O_RDONLY)
os.close(again)
print(free(), end=' ')
os.close(path)
print(near(free(), 4 * M))

fd = new('a')
fill(fd)
os.link('a', 'b')
os.close(fd)
os.unlink('a')
print(free(), end=' ')
os.close(new('c'))
os.rename('c', 'b')
print(near(free(), 4 * M))

# By O_PATH, and by a mapping.
fd = new('a')
fill(fd)
held = os.open('a', os.O_PATH)
memory = mmap.mmap(fd, M, mmap.MAP_PRIVATE, mmap.PROT_READ)
os.close(fd)
os.unlink('a')
os.close(held)
print(free(), memory[:1])
";
    with_limit(program, "0 0 0 ok 0 ok 0 b'x'");
}

#[test]
fn what_was_there_before_is_nobodys() {
    let prepare = |dir: &Path| fs::write(dir.join("old"), vec![1; 2 << 20]).expect("write");
    let program = "
print(near(free(), 4 * M))
fd = os.open('old', os.O_RDWR)
print(os.pwrite(fd, b'x' * M, 0), near(free(), 4 * M))
print(near(fill(fd, at=2 * M), 4 * M), free())
os.ftruncate(fd, 3 * M)
print(near(free(), 3 * M))
os.ftruncate(fd, 0)
print(near(free(), 4 * M))
os.unlink('old')
print(near(fill(new('a')), 4 * M), near(fill(fd), 0))
";
    everywhere(&["--disk", "4m"], LIMIT, prepare, program, |run, _| {
        assert_eq!(run.out, "ok 1048576 ok ok 0 ok ok ok ok", "{}", run.error);
    });
}

#[test]
fn holes_are_no_way_round() {
    let prepare = |dir: &Path| {
        let file = File::create(dir.join("sparse")).expect("create");
        file.set_len(64 << 20).expect("set the size");
    };
    let program = "
fd = os.open('sparse', os.O_RDWR)
# Page by page, every second one, from behind.
count = 0
try:
    while True: count += os.pwrite(fd, b'x', 63 * M - count * 8192)
except OSError as error: print(errno.errorcode[error.errno], near(count * 4096, 4 * M))
print(refused(lambda: os.pwrite(fd, b'x', 0)), os.pwrite(fd, b'y', 63 * M))
# A write that begins in a page that is there ends behind it.
print(os.pwrite(fd, b'z' * 8192, 63 * M))
# A page is given back.
os.ftruncate(fd, 63 * M)
# An own one is made as large as it likes.
os.ftruncate(new('own'), 1 << 33)
print(fill(os.open('own', os.O_RDWR), at=1 << 32))
";
    everywhere(&["--disk", "4m"], LIMIT, prepare, program, |run, _| {
        assert_eq!(run.out, "ENOSPC ok ENOSPC 1 4096 4096", "{}", run.error);
    });
}

#[test]
fn mappings_are_no_way_round() {
    let prepare = |dir: &Path| {
        let file = File::create(dir.join("sparse")).expect("create");
        file.set_len(64 << 20).expect("set the size");
    };
    let program = "
fd = os.open('sparse', os.O_RDWR)
# However little of it, and even for reading: it could be more later.
for prot in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
    print(refused(lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, prot)))
print(len(mmap.mmap(os.open('sparse', os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_READ)), near(free(), 4 * M))
a = new('a')
os.ftruncate(a, 3 * M)
memory = mmap.mmap(a, 3 * M)
print(near(free(), M))
# A write that leaves a hole in a file that is mapped.
c = new('c')
os.ftruncate(c, 4096)
hole = mmap.mmap(c, 4096)
print(refused(lambda: os.pwrite(c, b'x', 2 * M)), os.pwrite(c, b'x', 65536), near(free(), M - 65536))
for at in range(0, 2 * M, 4096): memory[at] = 1
print(near(free(), M), near(fill(new('b')), M), refused(lambda: os.ftruncate(a, 4 * M)))
# What is stored was counted, however often it is told; what is written into the holes too.
print(os.pwrite(a, b'x' * M, 2 * M), free(), os.stat('a').st_blocks * 512 >= 3 * M)
os.truncate('b', 0)
memory.close()
os.close(a)
print(near(free(), M))
os.unlink('a')
# This process could have kept it, and so could a child. Another program cannot.
if os.fork() == 0: os._exit(0)
os.wait()
print(near(free(), M), flush=True)
os.execvp('python3', ['python3', '-c', 'import os; s = os.statvfs(\".\"); print(s.f_bavail * s.f_frsize >> 10 >= 3900)'])
";
    everywhere(&["--disk", "4m"], LIMIT, prepare, program, |run, _| {
        let expected = "ENOMEM ENOMEM 4096 ok ok ENOSPC 1 ok ok ok ENOSPC 1048576 0 True ok ok True";
        assert_eq!(run.out, expected, "{}", run.error);
    });
}

#[test]
fn what_is_allocated_can_be_written() {
    let program = "
a = new('a')
os.posix_fallocate(a, 0, 2 * M)
print(near(free(), 2 * M), refused(lambda: os.posix_fallocate(new('b'), 0, 3 * M)))
fill(new('b'))
print(free(), os.pwrite(a, b'x' * M, M), os.pwrite(a, b'x' * M, 0), refused(lambda: os.pwrite(a, b'x', 2 * M)))
# A hole gives back what was there.
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
print(libc.fallocate(a, 3, 0, M), near(free(), M))
print(near(fill(os.open('b', os.O_WRONLY | os.O_APPEND)), M))
print(refused(lambda: os.pwrite(a, b'x', 0)), os.pwrite(a, b'x', M))
os.truncate('b', 0)
# Space beyond the end counts, and truncation takes it away.
os.ftruncate(a, 0)
print(libc.fallocate(a, 1, M, 3 * M), near(free(), M))
os.ftruncate(a, 0)
print(near(free(), 4 * M))
";
    with_limit(program, "ok ENOSPC 0 1048576 1048576 ENOSPC 0 ok ok ENOSPC 1 0 ok ok");
}

#[test]
fn copies_and_splices_count() {
    let program = "
source = new('/tmp/source')
os.write(source, b'x' * M)
total = 0
out = new('a')
try:
    while True: total += os.sendfile(out, source, 0, M)
except OSError as error: print(errno.errorcode[error.errno])
try:
    while True: total += os.copy_file_range(source, out, M, 0)
except OSError as error: print(errno.errorcode[error.errno])
r, w = os.pipe()
os.write(w, b'x' * 65536)
print(refused(lambda: os.splice(r, out, 65536)), near(total, 3 * M))
";
    with_limit(program, "ENOSPC ENOSPC ENOSPC ok");
}

#[test]
fn threads_that_race_get_no_more() {
    let program = "
import random
files = [new('f%d' % n) for n in range(4)]
def work(seed):
    r = random.Random(seed)
    for n in range(30):
        fd = r.choice(files)
        try:
            what = r.randrange(10)
            if what < 6: os.pwrite(fd, b'x' * r.randrange(1, 200000), r.randrange(0, 8 * M))
            elif what < 8: os.ftruncate(fd, r.randrange(0, 4 * M))
            elif what < 9: os.posix_fallocate(fd, r.randrange(0, 4 * M), r.randrange(1, M))
            else:
                name = 't%d' % seed
                t = new(name)
                try: os.write(t, b'x' * 300000)
                finally:
                    os.unlink(name)
                    os.close(t)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
for round in range(5):
    threads = [threading.Thread(target=work, args=(4 * round + n,)) for n in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    # While they run a sum would be of different moments.
    most = sum(os.fstat(fd).st_blocks for fd in files) * 512
    assert most <= 4 * M + 512 * 1024, most
for fd in files: os.ftruncate(fd, 0)
print(near(free(), 4 * M))
";
    with_limit(program, "ok");
}

#[test]
fn every_name_counts_as_an_inode() {
    let prepare = |dir: &Path| fs::write(dir.join("old"), "old").expect("write");
    let program = "
s = os.statvfs('.')
left = lambda: os.statvfs('.').f_favail
print(s.f_files)
begin = left()
os.close(new('file')); os.mkdir('dir'); os.symlink('x' * 2000, 'link'); os.link('old', 'old2'); os.mknod('node', 0o100644)
print(begin - left())
print(refused(lambda: os.close(new('file', os.O_EXCL))), refused(lambda: os.mkdir('dir')), begin - left())
os.rename('file', 'node')
print(begin - left())
os.unlink('old')
print(begin - left())
for name in ('node', 'link', 'old2'): os.unlink(name)
os.rmdir('dir')
print(begin - left())
made = 0
try:
    while True:
        os.close(new('n%d' % made))
        made += 1
except OSError as error: print(errno.errorcode[error.errno], made == begin, left())
for action in (lambda: os.mkdir('d'), lambda: os.symlink('a', 's'), lambda: os.link('n0', 'l'), lambda: os.mkdir('/tmp/d')):
    print(refused(action))
os.unlink('n0')
os.mkdir('d')
print(left())
";
    let expected = "300 5 EEXIST EEXIST 5 4 3 0 ENOSPC True 0 ENOSPC ENOSPC ENOSPC ENOSPC 0";
    everywhere(&["--disk-inodes", "300"], MIB, prepare, program, |run, dir| {
        assert_eq!(run.out, expected, "{}", run.error);
        assert!(fs::read_dir(dir).expect("a directory").count() <= 300);
        assert!(run.events.iter().any(|event| event["limit"] == "disk-inodes"));
    });
    // Without a limit of their own there are as many as pages.
    let program = "
made = 0
try:
    while made < 3000:
        os.mkdir('d%d' % made)
        made += 1
except OSError as error: print(errno.errorcode[error.errno], 500 < made <= 1024)
";
    with_limit(program, "ENOSPC True");
}

/// Two mounts show the same file: it is used as long as either has it open, or could open it at once.
#[test]
fn another_mount_of_the_same_tree_is_no_way_round() {
    let program = "
other = sys.argv[2]
for n in range(3):
    name = 'f%d' % n
    fd = new(name)
    fill(fd)
    os.close(fd)
    for again in range(3): os.close(os.open(other + '/' + name, os.O_RDONLY))
    held = os.open(other + '/' + name, os.O_RDONLY)
    os.unlink(name)
    print(free())
    os.close(held)
    print(near(free(), 4 * M))
";
    let program = format!("{PRELUDE}{program}");
    for platform in ["systrap", "ptrace"] {
        for overlay in [false, true] {
            let outer = tempfile::tempdir().expect("a directory");
            fs::set_permissions(outer.path(), Permissions::from_mode(0o777)).expect("chmod");
            let place = outer.path().to_str().expect("UTF-8");
            let second = format!("{place}:/mnt/second");
            // An overlay does not see names that are made below it.
            for name in ["f0", "f1", "f2"] {
                fs::write(outer.path().join(name), "").expect("write");
            }
            let mut command = std::process::Command::new(common::SENTRY);
            command.args(["exec", "--platform", platform, "--disk", "4m"]);
            // The working directory is an overlay, which keeps descriptors.
            if overlay {
                command.args(["--rw", &second]).current_dir(outer.path());
            } else {
                command.args(["--rw", place, "--ro", &second]).current_dir("/usr");
            }
            command.args(["--", "python3", "-c", &program]);
            let output = match overlay {
                true => command.args(["/mnt/second", place]).output(),
                false => command.args([place, "/mnt/second"]).output(),
            };
            let output = output.expect("it starts");
            let out = text(&output).split_whitespace().collect::<Vec<_>>().join(" ");
            let expected = ["0 ok"; 3].join(" ");
            assert_eq!(out, expected, "{platform}, overlay {overlay}: {}", error_text(&output));
        }
    }
}

#[test]
fn the_summary_counts_files_of_the_host() {
    let prepare = |dir: &Path| {
        for name in [
            "written", "chmodded", "removed", "renamed", "replaced", "kept", "mapped",
        ] {
            fs::write(dir.join(name), "12345678").expect("write");
        }
    };
    let program = "
for n in range(3): os.write(new('new'), b'x')
os.mkdir('dir')
os.symlink('x', 'dir/link')
for n in range(100): os.write(os.open('written', os.O_RDWR), b'%d' % n)
os.chmod('chmodded', 0o600)
os.unlink('removed')
os.rename('renamed', 'moved')
os.write(new('temporary'), b'x')
os.rename('temporary', 'replaced')
os.close(new('gone')); os.unlink('gone')
open('kept').read(); os.stat('kept')
memory = mmap.mmap(os.open('mapped', os.O_RDWR), 8)
memory[0] = 1
";
    everywhere(&[], MIB, prepare, program, |run, _| {
        // new, dir, dir/link, moved; written, chmodded, replaced, mapped; removed, renamed.
        let line = "files      4 created, 4 changed, 2 deleted\n";
        assert!(run.error.contains(line), "{}", run.error);
        let end = run.events.last().expect("events");
        assert_eq!(
            (&end["created"], &end["changed"], &end["deleted"]),
            (&4.into(), &4.into(), &2.into())
        );
    });
}

/// A guest's process could write to a file that it has got to map, by the one call that the stub has for doorbells.
#[test]
fn processes_of_guests_can_write_to_no_file() {
    fn below(pid: i32) -> Vec<i32> {
        let children = common::children(pid);
        let deeper: Vec<_> = children.iter().flat_map(|child| below(*child)).collect();
        [children, deeper].concat()
    }
    for platform in ["systrap", "ptrace"] {
        let mut child = std::process::Command::new(common::SENTRY)
            .args(["exec", "--platform", platform, "--", "sleep", "60"])
            .current_dir("/usr")
            .spawn()
            .expect("it starts");
        let limit = |pid: i32, name: &str| {
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
            let line = limits.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line[name.len().min(line.len())..]
                .split_whitespace()
                .next()
                .map(str::to_owned)
        };
        let stubs = || {
            let all = below(child.id().cast_signed()).into_iter();
            all.filter(|pid| limit(*pid, "Max open files").as_deref() == Some("64"))
                .collect::<Vec<_>>()
        };
        assert!(common::eventually(|| !stubs().is_empty()), "{platform}");
        for stub in stubs() {
            // One that has ended meanwhile has none.
            let size = limit(stub, "Max file size");
            assert!(matches!(size.as_deref(), Some("0") | None), "{platform}: {size:?}");
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}
