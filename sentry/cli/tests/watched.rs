//! inotify(7) of guests on `--rw` and `--ro` mounts: what processes of the host (here: the test) and guests do.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use common::perl::{Guest, with_guests_in};
use nix::sys::signal::{Signal, kill};

#[test]
fn launcher() {
    common::launch();
}

/// All that is told of the host: no opens, no reads.
const ALL: u32 = libc::IN_ATTRIB
    | libc::IN_MODIFY
    | libc::IN_CLOSE_WRITE
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_DELETE_SELF
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_MOVE_SELF;

fn watch(guest: &mut Guest, path: &str, mask: u32, number: i32) {
    assert_eq!(guest.ask(&format!("watch('{path}', {mask})")), number.to_string());
}

/// A guest and a process of the host watch the shared directory, which is `there` on the host, and what is in it.
fn watch_both(guest: &mut Guest, host: &mut Guest, there: &str, mask: u32) {
    for (side, root) in [(guest, "/shared"), (host, there)] {
        assert_eq!(side.ask("notify()"), "ok");
        for (path, number) in [("", 1), ("/sub", 2), ("/file", 3)] {
            watch(side, &format!("{root}{path}"), mask, number);
        }
    }
}

/// What a guest is told, as long as it is a part of what is wanted.
fn told(guest: &mut Guest, wanted: &str) -> String {
    let end = Instant::now() + Duration::from_secs(5);
    let mut all = guest.ask("told()");
    while all != wanted && wanted.starts_with(&all) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        all += &guest.ask("told()");
    }
    all
}

/// What a guest is told is what a process of the host is told that watches the same, `here` and `there` being the names
/// of the directory.
fn compare(guest: &mut Guest, host: &mut Guest, step: &str) {
    let wanted = host.ask("told()");
    assert!(!wanted.is_empty(), "{step}");
    assert_eq!(told(guest, &wanted), wanted, "{step}");
}

#[test]
fn guests_are_told_what_the_host_does() {
    for option in ["--rw", "--ro"] {
        with_guests_in(option, |mut guest, file, dir| {
            let mut host = Guest::on_host(dir);
            let there = dir.display().to_string();
            fs::create_dir(dir.join("sub")).expect("mkdir");
            watch_both(&mut guest, &mut host, &there, ALL);
            let mut step = |name: &str, change: &dyn Fn()| {
                change();
                compare(&mut guest, &mut host, name);
            };
            let (new, other) = (dir.join("new"), dir.join("sub/other"));
            step("create", &|| drop(File::create(&new).expect("create")));
            step("write", &|| fs::write(&new, "text").expect("write"));
            step("chmod", &|| {
                fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("chmod")
            });
            step("rename", &|| fs::rename(&new, &other).expect("rename"));
            step("rename back", &|| fs::rename(&other, &new).expect("rename"));
            step("link", &|| fs::hard_link(dir.join("file"), &other).expect("link"));
            step("write by the link", &|| fs::write(&other, "text").expect("write"));
            step("remove the link", &|| fs::remove_file(&other).expect("remove"));
            step("directory", &|| fs::create_dir(dir.join("d")).expect("mkdir"));
            step("no directory", &|| fs::remove_dir(dir.join("d")).expect("rmdir"));
            step("symlink", &|| symlink("to", dir.join("link")).expect("symlink"));
            step("replace", &|| fs::rename(dir.join("link"), &new).expect("rename"));
            step("remove", &|| fs::remove_file(&new).expect("remove"));
            step("an open file", &|| (&*file).write_all(b"text").expect("write"));
            step("truncate", &|| file.set_len(3).expect("truncate"));
            step("move itself", &|| {
                fs::rename(dir.join("sub"), dir.join("bus")).expect("rename")
            });
            step("chmod of a directory", &|| {
                fs::set_permissions(dir.join("bus"), Permissions::from_mode(0o700)).expect("chmod");
            });
            step("remove a directory", &|| {
                fs::remove_dir(dir.join("bus")).expect("rmdir")
            });
            guest.end();
            host.end();
        });
    }
}

#[test]
fn the_end_of_a_file() {
    with_guests_in("--rw", |mut guest, _, dir| {
        fs::write(dir.join("one"), "").expect("write");
        fs::write(dir.join("two"), "").expect("write");
        assert_eq!(guest.ask("notify()"), "ok");
        watch(&mut guest, "/shared/one", ALL, 1);
        watch(&mut guest, "/shared/two", ALL, 2);
        // One that nobody has open, one that a guest has.
        fs::remove_file(dir.join("one")).expect("remove");
        assert_eq!(told(&mut guest, " 1:4 1:400 1:8000"), " 1:4 1:400 1:8000");
        assert_eq!(guest.ask("open($g, '<', '/shared/two') ? 1 : 0"), "1");
        fs::remove_file(dir.join("two")).expect("remove");
        assert_eq!(told(&mut guest, " 2:4"), " 2:4");
        assert_eq!(guest.ask("close($g) ? 1 : 0"), "1");
        assert_eq!(told(&mut guest, " 2:400 2:8000"), " 2:400 2:8000");
        // A new file is another one, which is not watched.
        fs::write(dir.join("one"), "").expect("write");
        assert_eq!(guest.ask("told()"), "");
        watch(&mut guest, "/shared/one", ALL, 3);
        assert_eq!(guest.ask("unlink('/shared/one')"), "1");
        assert_eq!(told(&mut guest, " 3:4 3:400 3:8000"), " 3:4 3:400 3:8000");
        guest.end();
    });
}

/// A guest that sleeps is woken, whatever it sleeps in.
#[test]
fn sleepers_are_woken() {
    with_guests_in("--rw", |mut guest, _, dir| {
        assert_eq!(guest.ask("notify()"), "ok");
        watch(&mut guest, "/shared", libc::IN_CREATE, 1);
        for how in ["read", "select", "poll", "epoll"] {
            guest.say(&format!("print qq(waits\\n); wait_by_{how}()"));
            assert_eq!(guest.line(), "waits");
            std::thread::sleep(Duration::from_millis(50));
            fs::write(dir.join(how), "").expect("write");
            let told = guest.line();
            if how == "read" {
                assert_eq!(told, "told");
            } else {
                assert_eq!(told, format!(" 1:100:{how}"));
            }
        }
        // And another guest.
        guest.say("my $p = fork // die; if (!$p) { print wait_by_poll(), qq(\\n); exit } 'forked'");
        assert_eq!(guest.line(), "forked");
        std::thread::sleep(Duration::from_millis(50));
        fs::write(dir.join("for the child"), "").expect("write");
        assert_eq!(guest.line(), " 1:100:for the child");
        guest.end();
    });
}

/// Guests are told once of what they do, as a process of the host is told of what it does, opens and reads included.
#[test]
fn guests_are_told_once_what_they_do() {
    with_guests_in("--rw", |mut guest, _, dir| {
        let native = tempfile::tempdir().expect("directory");
        fs::write(native.path().join("file"), [b'.'; 8192]).expect("write");
        let there = native.path().display().to_string();
        let mut host = Guest::on_host(native.path());
        assert_eq!(guest.ask("mkdir('/shared/sub')"), "1");
        assert_eq!(host.ask(&format!("mkdir('{there}/sub')")), "1");
        watch_both(&mut guest, &mut host, &there, libc::IN_ALL_EVENTS);
        for code in [
            "written('ROOT/file', 'text')",
            "written('ROOT/new', 'text')",
            "written('ROOT/new', 'again')",
            "content('ROOT/new')",
            "chmod(0600, 'ROOT/new')",
            "rename('ROOT/new', 'ROOT/sub/moved')",
            "rename('ROOT/sub/moved', 'ROOT/back')",
            "link('ROOT/file', 'ROOT/sub/name')",
            "written('ROOT/file', 'by the other name')",
            "unlink('ROOT/sub/name')",
            "truncate('ROOT/file', 8192)",
            "utime(100, 200, 'ROOT/back')",
            "mkdir('ROOT/d') + rmdir('ROOT/d')",
            "symlink('to', 'ROOT/link')",
            "rename('ROOT/link', 'ROOT/back')",
            "unlink('ROOT/back')",
            "list('ROOT')",
            // Stores to a mapping are not told of.
            "map_it(); poke(10, 'mapped'); open(my $a, '>>', 'ROOT/file'); syswrite($a, 'x'); close($a); 1",
            "rmdir('ROOT/sub')",
        ] {
            let (ours, theirs) = (code.replace("ROOT", "/shared"), code.replace("ROOT", &there));
            assert_eq!(guest.ask(&ours), host.ask(&theirs), "{code}");
            compare(&mut guest, &mut host, code);
        }
        assert_eq!(fs::read_dir(dir).expect("list").count(), 1);
        guest.end();
        host.end();
    });
}

/// More than the host keeps while the sandbox does not look: guests are told so, and of what comes later.
#[test]
fn lost_events_are_told() {
    with_guests_in("--rw", |mut guest, file, dir| {
        assert_eq!(guest.ask("notify()"), "ok");
        // The host keeps more than that for it, which fills its queue; the guest's own stays empty.
        watch(&mut guest, "/shared", libc::IN_CREATE, 1);
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("read");
        let limit: usize = limit.trim().parse().expect("number");
        let sentries = guest.sentries();
        assert!(!sentries.is_empty());
        sentries
            .iter()
            .for_each(|pid| kill(*pid, Signal::SIGSTOP).expect("stop"));
        let stopped = |pid: &nix::unistd::Pid| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").flatten();
            let stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
            stats
                .into_iter()
                .all(|stat| stat.contains(") T ") || stat.contains(") t "))
        };
        while !sentries.iter().all(stopped) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..=limit {
            file.set_len(1).expect("truncate");
            file.set_permissions(Permissions::from_mode(0o666)).expect("chmod");
        }
        fs::write(dir.join("lost"), "").expect("write");
        sentries
            .iter()
            .for_each(|pid| kill(*pid, Signal::SIGCONT).expect("continue"));
        assert_eq!(guest.ask("wait_by_poll()"), " -1:4000");
        fs::write(dir.join("later"), "").expect("write");
        assert_eq!(guest.ask("wait_by_poll()"), " 1:100:later");
        guest.end();
    });
}
