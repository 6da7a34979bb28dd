//! `--rw` beside processes of the host (here: the test) that use the same files.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use common::{Host, eventually};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FlockArg, fcntl};

#[test]
fn launcher() {
    common::launch();
}

/// A guest that carries out lines of Perl, with the shared file open as `$f`.
struct Guest {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const PRELUDE: &str = r#"
$| = 1;
open($f, '+<', '/shared/file') or die;
sub record {
    my ($command, $type, $start, $len) = @_;
    my $lock = pack('s s x4 q q l x4', $type, 0, $start, $len, 0);
    fcntl($f, $command, $lock) or return 0 + $!;
    my @now = unpack('s s x4 q q l', $lock);
    return "$now[0] $now[2] $now[3]";
}
sub whole { return flock($f, $_[0]) ? 'ok' : 0 + $!; }
print "ready\n";
while (<STDIN>) { print eval($_), "\n"; }
"#;

const GETLK: i32 = libc::F_GETLK;
const SETLK: i32 = libc::F_SETLK;
const SETLKW: i32 = libc::F_SETLKW;
const AGAIN: &str = "11";

impl Guest {
    fn start(host: Host, platform: &str, dir: &std::path::Path) -> Option<Guest> {
        let mount = format!("{}:/shared", dir.display());
        let mut command = host.sentry_with(&["exec", "--platform", platform, "--rw", &mount, "perl", "-e", PRELUDE])?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut guest = Guest { child, input, output };
        // The launcher's harness says something first.
        let ready = (0..4).any(|_| guest.line() == "ready");
        assert!(ready, "{host:?} {platform}");
        Some(guest)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    fn say(&mut self, code: &str) {
        writeln!(self.input, "{code}").expect("write");
    }

    fn ask(&mut self, code: &str) -> String {
        self.say(code);
        self.line()
    }

    fn record(&mut self, command: i32, kind: i32, start: i64, len: i64) -> String {
        self.ask(&format!("record({command}, {kind}, {start}, {len})"))
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("wait").success());
    }
}

fn record(file: &File, kind: i32, start: i64, len: i64) -> Result<(), Errno> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}

#[allow(deprecated)]
fn flock(file: &File, operation: FlockArg) -> Result<(), Errno> {
    nix::fcntl::flock(file.as_raw_fd(), operation)
}

/// Runs a test with a file that the host has open too, on each platform and host.
fn with_guests(test: impl Fn(Guest, &File)) {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        eprintln!("SKIPPED: no Perl");
        return;
    }
    for (host, platform) in [
        (Host::Plain, "systrap"),
        (Host::Plain, "ptrace"),
        (Host::Ordinary, "systrap"),
        (Host::Restricted, "systrap"),
    ] {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        std::fs::write(&path, [b'.'; 8192]).expect("write");
        for path in [dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
        }
        let file = File::options().read(true).write(true).open(&path).expect("open");
        if let Some(guest) = Guest::start(host, platform, dir.path()) {
            eprintln!("{host:?} {platform}");
            test(guest, &file);
        }
    }
}

#[test]
fn whole_file_locks_conflict_both_ways() {
    with_guests(|mut guest, file| {
        assert_eq!(guest.ask("whole(1)"), "ok");
        assert_eq!(flock(file, FlockArg::LockExclusiveNonblock), Err(Errno::EAGAIN));
        flock(file, FlockArg::LockSharedNonblock).expect("shared locks go together");
        assert_eq!(guest.ask("whole(2 | 4)"), AGAIN);
        assert_eq!(guest.ask("whole(8)"), "ok");
        flock(file, FlockArg::LockExclusiveNonblock).expect("the guest has none");
        // A wait that a signal ends, and one that the host ends.
        let alarm = "$SIG{ALRM} = sub { die }; alarm(1); eval { whole(2) }; alarm(0); $@ ? 'died' : 'no'";
        assert_eq!(guest.ask(alarm), "died");
        guest.say("print qq(waits\\n); whole(2)");
        assert_eq!(guest.line(), "waits");
        std::thread::sleep(Duration::from_millis(50));
        flock(file, FlockArg::Unlock).expect("unlock");
        assert_eq!(guest.line(), "ok");
        assert_eq!(flock(file, FlockArg::LockSharedNonblock), Err(Errno::EAGAIN));
        // The end of the process gives it up.
        guest.end();
        flock(file, FlockArg::LockExclusiveNonblock).expect("the guest is gone");
    });
}

#[test]
fn record_locks_conflict_both_ways() {
    with_guests(|mut guest, file| {
        for (set, wait, get) in [
            (SETLK, SETLKW, GETLK),
            (libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_OFD_GETLK),
        ] {
            let kept = |wanted: &str, start: i64, len: i64| format!("{wanted} {start} {len}");
            assert_eq!(guest.record(set, libc::F_WRLCK, 0, 10), kept("1", 0, 10));
            assert_eq!(record(file, libc::F_RDLCK, 9, 1), Err(Errno::EAGAIN));
            record(file, libc::F_WRLCK, 10, 10).expect("beside it");
            assert_eq!(guest.record(set, libc::F_RDLCK, 5, 10), AGAIN);
            assert_eq!(guest.record(get, libc::F_RDLCK, 5, 100), kept("1", 10, 10));
            assert_eq!(guest.record(get, libc::F_RDLCK, 30, 0), kept("2", 30, 0));
            // A part is given up, and a part is made shared.
            assert_eq!(guest.record(set, libc::F_UNLCK, 0, 4), kept("2", 0, 4));
            assert_eq!(guest.record(set, libc::F_RDLCK, 8, 2), kept("0", 8, 2));
            record(file, libc::F_WRLCK, 0, 4).expect("given up");
            assert_eq!(record(file, libc::F_RDLCK, 4, 4), Err(Errno::EAGAIN));
            record(file, libc::F_RDLCK, 8, 2).expect("shared");
            assert_eq!(record(file, libc::F_WRLCK, 8, 2), Err(Errno::EAGAIN));
            record(file, libc::F_UNLCK, 8, 2).expect("unlock");
            // A wait that a signal ends, and one that the host ends.
            let alarm = format!("$SIG{{ALRM}} = sub {{ }}; alarm(1); my $r = record({wait}, 1, 10, 1); alarm(0); $r");
            assert_eq!(guest.ask(&alarm), "4");
            guest.say(&format!("print qq(waits\\n); record({wait}, 1, 10, 10)"));
            assert_eq!(guest.line(), "waits");
            std::thread::sleep(Duration::from_millis(50));
            record(file, libc::F_UNLCK, 0, 0).expect("unlock");
            assert_eq!(guest.line(), kept("1", 10, 10));
            assert_eq!(record(file, libc::F_RDLCK, 19, 1), Err(Errno::EAGAIN));
            assert_eq!(guest.record(set, libc::F_UNLCK, 0, 0), kept("2", 0, 0));
            record(file, libc::F_WRLCK, 0, 0).expect("the guest has none");
            record(file, libc::F_UNLCK, 0, 0).expect("unlock");
        }
        // A lock that moves to another description of the same process, and goes with the close of any.
        assert_eq!(guest.record(SETLK, libc::F_WRLCK, 0, 10), "1 0 10");
        assert_eq!(guest.ask("open($g, '+<', '/shared/file'); ($f, $g) = ($g, $f); 1"), "1");
        assert_eq!(guest.record(GETLK, libc::F_WRLCK, 0, 10), "2 0 10");
        assert_eq!(guest.record(SETLK, libc::F_WRLCK, 5, 10), "1 5 10");
        for at in [0, 5, 14] {
            assert_eq!(record(file, libc::F_RDLCK, at, 1), Err(Errno::EAGAIN), "{at}");
        }
        record(file, libc::F_WRLCK, 15, 1).expect("behind it");
        assert_eq!(guest.ask("close($g) ? 1 : 0"), "1");
        record(file, libc::F_WRLCK, 0, 0).expect("all are gone");
        record(file, libc::F_UNLCK, 0, 0).expect("unlock");
        // The end of the process, of several that share the file.
        assert_eq!(guest.record(SETLK, libc::F_WRLCK, 0, 1), "1 0 1");
        assert_eq!(
            guest.ask("my $p = fork // die; if (!$p) { print record(6, 1, 1, 1), qq(\\n); exit } wait; 7"),
            "1 1 1"
        );
        assert_eq!(guest.line(), "7");
        assert_eq!(record(file, libc::F_WRLCK, 0, 1), Err(Errno::EAGAIN));
        record(file, libc::F_WRLCK, 1, 1).expect("the child's");
        guest.end();
        record(file, libc::F_WRLCK, 0, 0).expect("the guest is gone");
    });
}

/// What is mapped is one memory for both.
#[test]
fn reads_and_writes_are_coherent() {
    with_guests(|mut guest, file| {
        file.write_all_at(b"host", 100).expect("write");
        assert_eq!(guest.ask("sysseek($f, 100, 0); sysread($f, $b, 4); $b"), "host");
        assert_eq!(guest.ask("sysseek($f, 200, 0); syswrite($f, 'guest')"), "5");
        let mut found = [0; 5];
        file.read_exact_at(&mut found, 200).expect("read");
        assert_eq!(&found, b"guest");
        // The size, too, is that of now.
        file.set_len(12345).expect("truncate");
        assert_eq!(guest.ask("-s $f"), "12345");
        assert!(eventually(|| guest.ask("-s '/shared/file'") == "12345"));
        guest.end();
    });
}
