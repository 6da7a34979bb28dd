//! `--rw` beside processes of the host (here: the test) that use the same files.

mod common;

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use common::eventually;
use common::perl::{Guest, with_guests_in};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FlockArg, fcntl};

#[test]
fn launcher() {
    common::launch();
}

const GETLK: i32 = libc::F_GETLK;
const SETLK: i32 = libc::F_SETLK;
const SETLKW: i32 = libc::F_SETLKW;
const AGAIN: &str = "11";

trait Records {
    fn record(&mut self, command: i32, kind: i32, start: i64, len: i64) -> String;
}

impl Records for Guest {
    fn record(&mut self, command: i32, kind: i32, start: i64, len: i64) -> String {
        self.ask(&format!("record({command}, {kind}, {start}, {len})"))
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
    with_guests_in("--rw", |guest, file, _| test(guest, file));
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
        assert_eq!(guest.ask("-s '/shared/file'"), "12345");
        guest.end();
    });
}

#[test]
fn mappings_are_coherent() {
    with_guests_in("--rw", |mut guest, file, dir| {
        let mut host = Guest::on_host(dir);
        for side in [&mut guest, &mut host] {
            assert_eq!(side.ask("map_it()"), "ok");
        }
        for (at, text) in [(100, "one"), (5000, "two"), (8189, "end")] {
            assert_eq!(host.ask(&format!("poke({at}, '{text}')")), "3");
            assert_eq!(guest.ask(&format!("peek({at}, 3)")), text);
            let read = format!("sysseek($f, {at}, 0); sysread($f, $b, 3); $b");
            assert_eq!(guest.ask(&read), text);
            assert_eq!(guest.ask(&format!("poke({at}, uc('{text}'))")), "3");
            assert_eq!(host.ask(&format!("peek({at}, 3)")), text.to_uppercase());
            assert_eq!(host.ask(&read), text.to_uppercase());
        }
        // Plain writes show in the other's mapping.
        file.write_all_at(b"host", 200).expect("write");
        assert_eq!(guest.ask("peek(200, 4)"), "host");
        assert_eq!(guest.ask("sysseek($f, 300, 0); syswrite($f, 'guest')"), "5");
        assert_eq!(host.ask("peek(300, 5)"), "guest");
        guest.end();
        host.end();
    });
}

/// What the host changes is seen by the next look, however often the guest has looked before. `deep` is a directory
/// in the one that is shared.
fn sees_what_the_host_does(guest: &mut Guest, dir: &Path, deep: &str) {
    let host = dir.join(deep);
    let path = |name: &str| format!("/shared/{deep}/{name}");
    let size = |name: &str| format!("-e '{0}' ? -s '{0}' : 'none'", path(name));
    let mode = |name: &str| format!("mode('{}')", path(name));
    fs::create_dir_all(&host).expect("mkdir");
    fs::set_permissions(&host, Permissions::from_mode(0o755)).expect("chmod");
    for round in 0..6 {
        assert_eq!(guest.ask(&size("a")), "none", "{round}");
        fs::write(host.join("a"), "a").expect("write");
        assert_eq!(guest.ask(&size("a")), "1", "{round}");
        fs::set_permissions(host.join("a"), Permissions::from_mode(0o644)).expect("chmod");
        assert_eq!(guest.ask(&mode("a")), "644", "{round}");
        fs::write(host.join("a"), "longer").expect("write");
        assert_eq!(guest.ask(&size("a")), "6", "{round}");
        assert_eq!(guest.ask(&format!("content('{}')", path("a"))), "longer");
        fs::set_permissions(host.join("a"), Permissions::from_mode(0o600 | round)).expect("chmod");
        assert_eq!(guest.ask(&mode("a")), format!("{:o}", 0o600 | round));
        // Another file in its place, then another name, then several.
        fs::write(host.join("new"), "replaced").expect("write");
        fs::set_permissions(host.join("new"), Permissions::from_mode(0o644)).expect("chmod");
        assert_eq!(guest.ask(&size("new")), "8");
        fs::rename(host.join("new"), host.join("a")).expect("rename");
        assert_eq!(
            (guest.ask(&size("a")), guest.ask(&size("new"))),
            ("8".into(), "none".into())
        );
        fs::rename(host.join("a"), host.join("b")).expect("rename");
        assert_eq!(
            (guest.ask(&size("a")), guest.ask(&size("b"))),
            ("none".into(), "8".into())
        );
        // A further name is not told of; a file that is known to have several is always asked for.
        if round == 0 {
            fs::hard_link(host.join("b"), host.join("c")).expect("link");
            let links = format!("(stat('{}'))[3]", path("b"));
            assert!(eventually(|| guest.ask(&links) == "2"));
            fs::write(host.join("c"), "by the other name").expect("write");
            assert_eq!(guest.ask(&size("b")), "17");
            fs::remove_file(host.join("c")).expect("remove");
            assert_eq!(guest.ask(&links), "1");
        }
        // Links and directories.
        symlink(format!("to{round}"), host.join("link")).expect("symlink");
        assert_eq!(
            guest.ask(&format!("readlink('{}')", path("link"))),
            format!("to{round}")
        );
        fs::remove_file(host.join("link")).expect("remove");
        for name in ["d", "e"] {
            fs::create_dir(host.join(name)).expect("mkdir");
            fs::write(host.join(name).join("in"), name.repeat(round as usize + 1)).expect("write");
        }
        let all = if deep == "." { "b d e file" } else { "b d e" };
        assert_eq!(guest.ask(&format!("list('/shared/{deep}')")), all);
        assert_eq!(
            guest.ask(&format!("content('{}')", path("d/in"))),
            "d".repeat(round as usize + 1)
        );
        fs::rename(host.join("d"), host.join("f")).expect("rename");
        fs::rename(host.join("e"), host.join("d")).expect("rename");
        assert_eq!(
            guest.ask(&format!("content('{}')", path("d/in"))),
            "e".repeat(round as usize + 1)
        );
        assert_eq!(guest.ask(&format!("(stat('/shared/{deep}'))[3]")), "4");
        for name in ["d", "f"] {
            fs::remove_dir_all(host.join(name)).expect("remove");
        }
        assert_eq!(guest.ask(&format!("-e '{}' ? 1 : 0", path("d/in"))), "0");
        assert_eq!(guest.ask(&format!("(stat('/shared/{deep}'))[3]")), "2");
        fs::remove_file(host.join("b")).expect("remove");
        assert_eq!(guest.ask(&size("b")), "none");
    }
}

#[test]
fn what_the_host_changes_is_seen_at_once() {
    for option in ["--rw", "--ro"] {
        with_guests_in(option, |mut guest, file, dir| {
            sees_what_the_host_does(&mut guest, dir, ".");
            sees_what_the_host_does(&mut guest, dir, "x/y/z");
            // The file that the guest has open, and its owner, which only the gofer knows.
            fs::set_permissions(dir.join("file"), Permissions::from_mode(0o640)).expect("chmod");
            assert_eq!(guest.ask("mode($f)"), "640");
            if nix::unistd::geteuid().is_root() {
                for owner in [1234, 4321] {
                    std::os::unix::fs::fchown(file, Some(owner), None).expect("chown");
                    assert_eq!(guest.ask("(stat($f))[4]"), owner.to_string());
                    assert_eq!(guest.ask("(stat('/shared/file'))[4]"), owner.to_string());
                }
            }
            fs::remove_file(dir.join("file")).expect("remove");
            assert_eq!(guest.ask("(stat($f))[3]"), "0");
            assert_eq!(guest.ask("-e '/shared/file' ? 1 : 0"), "0");
            assert_eq!(guest.ask("sysseek($f, 0, 0); sysread($f, $b, 2); $b"), "..");
            guest.end();
        });
    }
}

#[test]
fn what_the_guest_changes_is_seen_at_once() {
    with_guests_in("--rw", |mut guest, _, dir| {
        for round in 0..5 {
            let text = "g".repeat(round + 1);
            assert_eq!(guest.ask(&format!("written('/shared/a', '{text}')")), "ok");
            assert_eq!(fs::read_to_string(dir.join("a")).expect("read"), text);
            assert_eq!(guest.ask("chmod(0604, '/shared/a')"), "1");
            assert_eq!(fs::metadata(dir.join("a")).expect("stat").mode() & 0o7777, 0o604);
            assert_eq!(guest.ask("rename('/shared/a', '/shared/b')"), "1");
            assert!(!dir.join("a").exists() && dir.join("b").exists());
            assert_eq!(guest.ask("utime(100, 200, '/shared/b')"), "1");
            assert_eq!(fs::metadata(dir.join("b")).expect("stat").mtime(), 200);
            assert_eq!(guest.ask("truncate('/shared/b', 77)"), "1");
            assert_eq!(fs::metadata(dir.join("b")).expect("stat").len(), 77);
            assert_eq!(guest.ask("symlink('to', '/shared/l')"), "1");
            assert_eq!(fs::read_link(dir.join("l")).expect("link"), Path::new("to"));
            assert_eq!(guest.ask("mkdir('/shared/d')"), "1");
            assert!(dir.join("d").is_dir());
            // And the guest itself sees what it did.
            assert_eq!(guest.ask("list('/shared')"), "b d file l");
            assert_eq!(guest.ask("(stat('/shared/b'))[7]"), "77");
            assert_eq!(guest.ask("rmdir('/shared/d') + unlink('/shared/b', '/shared/l')"), "3");
            assert_eq!(fs::read_dir(dir).expect("list").count(), 1);
        }
        guest.end();
    });
}
