//! What an honest sentry gets.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_gofer::protocol::{Entry, NewAttributes, Owner, Stop};
use sentry_gofer::server::Export;
use sentry_gofer::watches::Kind;
use sentry_gofer::{Access, NodeId, Time};

mod common;
use common::{export, is_root, serve};

/// A tree to serve.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path();
    fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
    fs::write(root.join("a/b/c/file"), b"content").expect("write");
    symlink("b/c", root.join("a/link")).expect("symlink");
    symlink("/etc/passwd", root.join("absolute")).expect("symlink");
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    dir
}

fn owner() -> Owner {
    Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

fn read(fd: std::os::fd::OwnedFd) -> Vec<u8> {
    let file = fs::File::from(fd);
    let mut buf = [0; 64];
    let len = file.read_at(&mut buf, 0).expect("read");
    buf[..len].to_vec()
}

/// Runs a test with and without openat2(2).
fn both(export_of: impl Fn(&Path) -> Export, test: impl Fn(&Client, NodeId, &Path)) {
    for openat2 in [true, false] {
        let dir = tree();
        let (client, server) = serve(&[export_of(dir.path())], openat2);
        let root = client.attach(1).expect("attach").root;
        assert!(root.attributes.is_dir());
        test(&client, root.node, dir.path());
        assert!(client.alive());
        drop(client);
        server.join().expect("server");
    }
}

fn read_only(path: &Path) -> Export {
    export(1, path)
}

fn read_write(path: &Path) -> Export {
    Export {
        writable: true,
        ..export(1, path)
    }
}

#[test]
fn looks_up_several_names_and_opens_in_one_request() {
    both(read_only, |client, root, path| {
        let before = client.requests();
        let names: [&[u8]; 4] = [b"a", b"b", b"c", b"file"];
        let (walked, fd) = client.lookup(root, &names, Some(Access::Read)).expect("lookup");
        assert_eq!(client.requests(), before + 1);
        assert_eq!(
            (walked.steps.len(), walked.stop, walked.opened),
            (4, Stop::Complete, Some(Ok(())))
        );
        let meta = fs::metadata(path.join("a/b/c/file")).expect("stat");
        let attributes = walked.steps[3].attributes;
        assert_eq!(
            (attributes.ino, attributes.dev, attributes.size),
            (meta.ino(), meta.dev(), 7)
        );
        assert_eq!((attributes.mode, attributes.mtime.sec), (meta.mode(), meta.mtime()));
        assert_eq!(read(fd.expect("descriptor")), b"content");

        let (walked, fd) = client
            .lookup(root, &[b"a", b"no", b"x"], Some(Access::Read))
            .expect("lookup");
        assert_eq!(
            (walked.steps.len(), walked.stop, walked.opened),
            (1, Stop::Missing, None)
        );
        assert!(fd.is_none());
        let (walked, _) = client.lookup(root, &[b"a", b"link", b"file"], None).expect("lookup");
        assert_eq!((walked.steps.len(), walked.stop), (2, Stop::NotDirectory));
        assert_eq!(walked.steps[1].target.as_deref(), Some(&b"b/c"[..]));
        let (walked, fd) = client.lookup(root, &[b"a"], Some(Access::Read)).expect("lookup");
        assert_eq!((walked.stop, walked.opened), (Stop::Complete, Some(Err(Errno::EISDIR))));
        assert!(fd.is_none());
    });
}

#[test]
fn opens_regular_files_only() {
    both(read_only, |client, root, _| {
        for (name, errno) in [
            (&b"fifo"[..], Errno::EACCES),
            (b"absolute", Errno::ELOOP),
            (b"a", Errno::EISDIR),
        ] {
            let (walked, fd) = client.lookup(root, &[name], Some(Access::Read)).expect("lookup");
            assert_eq!((walked.opened, fd.is_none()), (Some(Err(errno)), true));
            assert_eq!(client.open(walked.steps[0].node, Access::Read).err(), Some(errno));
        }
        assert_eq!(client.attributes(NodeId(u64::MAX)), Err(Errno::ESTALE));
        assert_eq!(client.attach(7).err(), Some(Errno::ENOENT));
    });
}

#[test]
fn lists_directories() {
    both(read_only, |client, root, path| {
        let listing = client.list(root, None, 0).expect("list");
        let mut names: Vec<_> = listing.entries.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        assert_eq!(names, [&b"a"[..], b"absolute", b"fifo"]);
        assert_eq!(listing.next, None);
        let link = listing
            .entries
            .iter()
            .find(|entry| entry.name == b"absolute")
            .expect("link");
        assert_eq!(
            link.details.as_ref().expect("details").target.as_deref(),
            Some(&b"/etc/passwd"[..])
        );

        let below = client.list(root, Some(b"a"), 0).expect("list");
        assert_eq!(below.entries.len(), 2);
        let dir = below.directory.expect("the directory itself");
        let names = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        let again = client.list(dir.node, None, 0).expect("list").entries;
        assert_eq!(names(again), names(below.entries));
        assert_eq!(client.list(root, Some(b"fifo"), 0).err(), Some(Errno::ENOTDIR));
        assert_eq!(client.list(root, Some(b"no"), 0).err(), Some(Errno::ENOENT));

        // Beyond 256 entries names only; beyond a message in several.
        fs::create_dir(path.join("large")).expect("mkdir");
        for number in 0..3000 {
            fs::write(path.join(format!("large/{number:060}")), b"").expect("write");
        }
        let (mut cursor, mut seen, mut messages) = (0, Vec::new(), 0);
        loop {
            let listing = client.list(root, Some(b"large"), cursor).expect("list");
            assert!(listing.entries.iter().all(|entry| entry.details.is_none()));
            seen.extend(listing.entries.into_iter().map(|entry| entry.name));
            messages += 1;
            match listing.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 3000);
        assert!((2..20).contains(&messages), "{messages}");
    });
}

#[test]
fn reads_attributes_links_and_totals() {
    both(read_only, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"absolute"], None).expect("lookup");
        let node = walked.steps[0].node;
        assert_eq!(client.read_link(node).as_deref(), Ok(&b"/etc/passwd"[..]));
        assert_eq!(client.read_link(root), Err(Errno::EINVAL));
        assert!(client.fs_totals(root).expect("totals").blocks > 0);
        assert_eq!(client.get_xattr(root, b"security.capability"), Err(Errno::ENODATA));
        let file = path.join("a/b/c/file");
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        let file_node = walked.steps[3].node;
        fs::write(&file, b"longer content").expect("write");
        assert_eq!(client.attributes(file_node).expect("attributes").size, 14);
        // Another file under the name: not the one that was given out.
        fs::write(path.join("other"), b"x").expect("write");
        fs::rename(path.join("other"), &file).expect("rename");
        assert_eq!(client.attributes(file_node), Err(Errno::ESTALE));
    });
}

#[test]
fn read_only_exports_stay_as_they_are() {
    both(read_only, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        let (dir, file) = (walked.steps[2].node, walked.steps[3].node);
        let set = NewAttributes {
            mode: Some(0o777),
            ..NewAttributes::default()
        };
        assert_eq!(client.create(dir, b"x", 0o644, owner(), None).err(), Some(Errno::EROFS));
        assert_eq!(
            client.make_directory(dir, b"x", 0o755, owner()).err(),
            Some(Errno::EROFS)
        );
        assert_eq!(client.symlink(dir, b"x", b"y", owner()).err(), Some(Errno::EROFS));
        assert_eq!(client.link(file, dir, b"x").err(), Some(Errno::EROFS));
        assert_eq!(client.unlink(dir, b"file", false).err(), Some(Errno::EROFS));
        assert_eq!(client.rename((dir, b"file"), (dir, b"x"), 0).err(), Some(Errno::EROFS));
        assert_eq!(client.set_attributes(file, &set).err(), Some(Errno::EROFS));
        for access in [Access::Write, Access::ReadWrite] {
            assert_eq!(client.open(file, access).err(), Some(Errno::EROFS));
        }
        assert_eq!(fs::read(path.join("a/b/c/file")).expect("read"), b"content");
        assert_eq!(fs::read_dir(path.join("a/b/c")).expect("list").count(), 1);
    });
}

#[test]
fn changes_writable_exports() {
    both(read_write, |client, root, path| {
        assert!(client.attach(1).expect("attach").writable);
        // Set-id bits are dropped.
        let (step, fd) = client
            .create(root, b"new", 0o6644, owner(), Some(Access::ReadWrite))
            .expect("create");
        assert_eq!(step.attributes.mode & 0o7777, 0o644 & !current_umask());
        fs::File::from(fd.expect("descriptor"))
            .write_all_at(b"hello", 0)
            .expect("write");
        assert_eq!(fs::read(path.join("new")).expect("read"), b"hello");
        assert_eq!(
            client.create(root, b"new", 0o644, owner(), None).err(),
            Some(Errno::EEXIST)
        );
        assert_eq!(
            client.create(root, b"absolute", 0o644, owner(), None).err(),
            Some(Errno::EEXIST)
        );

        let time = Some(Time {
            sec: 1_000_000,
            nsec: 5,
        });
        let set = NewAttributes {
            mode: Some(0o6600),
            size: Some(2),
            mtime: time,
            ..NewAttributes::default()
        };
        let attributes = client.set_attributes(step.node, &set).expect("set attributes");
        assert_eq!((attributes.mode & 0o7777, attributes.size), (0o600, 2));
        assert_eq!(Some(attributes.mtime), time);

        let dir = client.make_directory(root, b"dir", 0o755, owner()).expect("mkdir");
        let (inner, _) = client.create(dir.node, b"inner", 0o644, owner(), None).expect("create");
        assert_eq!(client.unlink(root, b"dir", true).err(), Some(Errno::ENOTEMPTY));
        assert_eq!(client.unlink(root, b"dir", false).err(), Some(Errno::EISDIR));
        let link = client
            .symlink(root, b"sym", b"anywhere/at/all", owner())
            .expect("symlink");
        assert_eq!(link.target.as_deref(), Some(&b"anywhere/at/all"[..]));
        assert_eq!(client.link(step.node, dir.node, b"hard").expect("link").nlink, 2);
        assert_eq!(client.link(dir.node, root, b"hard").err(), Some(Errno::EPERM));

        // A node goes with its name.
        client.rename((root, b"dir"), (root, b"moved"), 0).expect("rename");
        assert_eq!(
            client.attributes(inner.node).expect("attributes").ino,
            inner.attributes.ino
        );
        assert!(path.join("moved/inner").exists());
        assert_eq!(
            client.rename((root, b"moved"), (root, b"new"), 1).err(),
            Some(Errno::EEXIST)
        );
        client.rename((root, b"moved"), (root, b"new"), 2).expect("exchange");
        assert_eq!(
            client.attributes(inner.node).expect("attributes").ino,
            inner.attributes.ino
        );
        assert!(path.join("new/inner").exists());
        let into_itself = client.rename((root, b"new"), (dir.node, b"x"), 0);
        assert_eq!(into_itself.err(), Some(Errno::EINVAL));

        client.unlink(dir.node, b"inner", false).expect("unlink");
        client.unlink(dir.node, b"hard", false).expect("unlink");
        client.unlink(root, b"new", true).expect("rmdir");
        assert_eq!(client.attributes(dir.node), Err(Errno::ESTALE));
        assert!(!path.join("new").exists());
    });
}

/// A file that is held can be opened and changed when its name is gone, until it is forgotten.
#[test]
fn files_without_a_name() {
    both(read_write, |client, root, path| {
        let file = path.join("a/b/c/file");
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        let (dir, node) = (walked.steps[2].node, walked.steps[3].node);
        assert_eq!(client.hold(dir), Err(Errno::EINVAL));
        client.hold(node).expect("hold");
        client.hold(node).expect("twice");
        // As long as there is a name, that is what counts.
        fs::rename(&file, path.join("away")).expect("rename");
        assert_eq!(client.attributes(node), Err(Errno::ESTALE));
        fs::rename(path.join("away"), &file).expect("rename");
        client.unlink(dir, b"file", false).expect("unlink");
        assert_eq!(client.attributes(node).expect("attributes").nlink, 0);
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            let (attributes, fd) = client.open(node, access).expect("open");
            assert_eq!((attributes.nlink, attributes.size), (0, 7));
            if access.writes() {
                fs::File::from(fd).write_at(b"X", 0).expect("write");
            }
        }
        let set = NewAttributes {
            mode: Some(0o600),
            size: Some(3),
            ..NewAttributes::default()
        };
        let now = client.set_attributes(node, &set).expect("set");
        assert_eq!((now.mode & 0o777, now.size), (0o600, 3));
        assert_eq!(read(client.open(node, Access::Read).expect("open").1), b"Xon");
        assert!(client.list_xattr(node).is_ok_and(|names| names.is_empty()));
        // It has no place to give it another name from, and none to rename it.
        assert_eq!(client.link(node, dir, b"again"), Err(Errno::ENOENT));
        client.forget_now(node, u32::MAX);
        assert_eq!(client.open(node, Access::Read).err(), Some(Errno::ESTALE));
        // The same where another file takes the name.
        fs::write(path.join("one"), b"one").expect("write");
        fs::write(path.join("two"), b"two").expect("write");
        let (walked, _) = client.lookup(root, &[b"two"], None).expect("lookup");
        let node = walked.steps[0].node;
        client.hold(node).expect("hold");
        client.rename((root, b"one"), (root, b"two"), 0).expect("rename");
        assert_eq!(read(client.open(node, Access::Read).expect("open").1), b"two");
        assert_eq!(fs::read(path.join("two")).expect("read"), b"one");
    });
}

/// A held file whose name is there still, in a directory that has gone, is like any other there.
#[test]
fn held_in_a_directory_that_is_gone() {
    both(read_only, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        let node = walked.steps[3].node;
        client.hold(node).expect("hold");
        fs::rename(path.join("a"), path.join("away")).expect("rename");
        let (gone, _) = client.lookup(root, &[b"a"], None).expect("lookup");
        assert_eq!(gone.stop, Stop::Missing);
        assert_eq!(client.attributes(node), Err(Errno::ESTALE));
        // There again, it is found by a new number.
        fs::rename(path.join("away"), path.join("a")).expect("rename");
        assert_eq!(client.attributes(node), Err(Errno::ESTALE));
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        assert!(client.attributes(walked.steps[3].node).is_ok());
    });
}

/// Holding gives no right that the export does not give, and is bounded.
#[test]
fn holding_gives_no_rights() {
    both(read_only, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"a", b"b", b"c", b"file"], None).expect("lookup");
        let node = walked.steps[3].node;
        client.hold(node).expect("hold");
        fs::remove_file(path.join("a/b/c/file")).expect("remove");
        // The gofer has not seen it go yet: the name leads nowhere.
        assert_eq!(client.open(node, Access::Read).err(), Some(Errno::ESTALE));
        let (gone, _) = client.lookup(walked.steps[2].node, &[b"file"], None).expect("lookup");
        assert_eq!(gone.stop, Stop::Missing);
        assert_eq!(read(client.open(node, Access::Read).expect("open").1), b"content");
        assert_eq!(client.open(node, Access::ReadWrite).err(), Some(Errno::EROFS));
        let set = NewAttributes {
            mode: Some(0o666),
            ..NewAttributes::default()
        };
        assert_eq!(client.set_attributes(node, &set), Err(Errno::EROFS));
        for number in 0..1000 {
            fs::write(path.join(format!("many-{number}")), b"").expect("write");
        }
        let held = (0..1000).take_while(|number| {
            let name = format!("many-{number}");
            let (walked, _) = client.lookup(root, &[name.as_bytes()], None).expect("lookup");
            match client.hold(walked.steps[0].node) {
                Ok(()) => true,
                Err(errno) => {
                    assert_eq!(errno, Errno::ENFILE);
                    false
                }
            }
        });
        assert_eq!(held.count(), 511);
        client.forget_now(node, 1);
        let (walked, _) = client.lookup(root, &[b"many-999"], None).expect("lookup");
        client.hold(walked.steps[0].node).expect("room for one");
    });
}

#[test]
fn descriptors_have_the_access_that_was_asked_for() {
    both(read_write, |client, root, _| {
        let (step, _) = client.create(root, b"new", 0o644, owner(), None).expect("create");
        let (_, fd) = client.open(step.node, Access::Read).expect("open");
        assert!(fs::File::from(fd).write_all_at(b"x", 0).is_err());
        let (_, fd) = client.open(step.node, Access::Write).expect("open");
        let file = fs::File::from(fd);
        file.write_all_at(b"x", 0).expect("write");
        assert!(file.read_at(&mut [0; 1], 0).is_err());
    });
}

#[test]
fn reads_user_attributes() {
    both(read_write, |client, root, path| {
        let file = path.join("attributes");
        fs::write(&file, b"").expect("write");
        let set = std::process::Command::new("setfattr")
            .args(["-n", "user.x", "-v", "y"])
            .arg(&file)
            .status();
        if !set.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: cannot set an extended attribute here");
            return;
        }
        let (walked, _) = client.lookup(root, &[b"attributes"], None).expect("lookup");
        let node = walked.steps[0].node;
        assert_eq!(client.list_xattr(node), Ok(vec![b"user.x".to_vec()]));
        assert_eq!(client.get_xattr(node, b"user.x").as_deref(), Ok(&b"y"[..]));
    });
}

#[test]
fn serves_a_single_file() {
    let dir = tree();
    let path = dir.path().join("a/b/c/file");
    let (client, server) = serve(
        &[Export {
            writable: true,
            ..export(1, &path)
        }],
        true,
    );
    let root = client.attach(1).expect("attach").root;
    assert_eq!(root.attributes.kind(), libc::S_IFREG);
    let (_, fd) = client.open(root.node, Access::ReadWrite).expect("open");
    assert_eq!(read(fd), b"content");
    assert_eq!(client.lookup(root.node, &[b"x"], None).err(), Some(Errno::ENOTDIR));
    assert_eq!(client.list(root.node, None, 0).err(), Some(Errno::ENOTDIR));
    assert_eq!(
        client.create(root.node, b"x", 0o644, owner(), None).err(),
        Some(Errno::ENOTDIR)
    );
    // An editor replaces it.
    fs::write(dir.path().join("new"), b"edited").expect("write");
    fs::rename(dir.path().join("new"), &path).expect("rename");
    let (_, fd) = client.open(root.node, Access::Read).expect("open");
    assert_eq!(read(fd), b"edited");
    drop(client);
    server.join().expect("server");
}

#[test]
fn root_creates_for_others() {
    if !is_root("a file with another owner") {
        return;
    }
    both(read_write, |client, root, path| {
        let other = Owner { uid: 1234, gid: 4321 };
        let (step, _) = client.create(root, b"theirs", 0o644, other, None).expect("create");
        assert_eq!((step.attributes.uid, step.attributes.gid), (1234, 4321));
        let meta = fs::metadata(path.join("theirs")).expect("stat");
        assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
    });
}

#[test]
fn many_nodes_and_threads_at_once() {
    let dir = tree();
    for number in 0..200 {
        fs::write(dir.path().join(format!("f{number}")), format!("{number}")).expect("write");
    }
    let (client, server) = serve(&[export(1, dir.path())], true);
    let root = client.attach(1).expect("attach").root.node;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2000 {
                    let number = round % 200;
                    let name = format!("f{number}");
                    let (walked, fd) = client
                        .lookup(root, &[name.as_bytes()], Some(Access::Read))
                        .expect("lookup");
                    assert_eq!(read(fd.expect("descriptor")), number.to_string().as_bytes());
                    client.forget(walked.steps[0].node, 1);
                }
            });
        }
    });
    drop(client);
    server.join().expect("server");
}

/// The permission bits that creating files loses in this process (a real gofer has umask 0).
fn current_umask() -> u32 {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("x");
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("create");
    0o666 & !fs::metadata(&path).expect("stat").permissions().mode()
}

#[test]
fn names_of_any_bytes() {
    both(read_write, |client, root, path| {
        let name: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        client.create(root, &name, 0o644, owner(), None).expect("create");
        assert!(path.join(std::ffi::OsStr::from_bytes(&name)).exists());
        assert_eq!(
            client.lookup(root, &[&[b'x'; 256]], None).err(),
            Some(Errno::ENAMETOOLONG)
        );
        for bad in [&b".."[..], b".", b"", b"a/b"] {
            assert_eq!(client.lookup(root, &[bad], None).err(), Some(Errno::EINVAL));
        }
    });
}

#[test]
fn watches() {
    both(read_write, |client, root, path| {
        let dir = |name: &[u8]| client.lookup(root, &[name], None).expect("lookup").0.steps[0].node;
        let watches = client.watches();
        let watch = client.watch(root).expect("watch");
        assert_eq!(client.watch(root), Ok(watch));
        let other = client.watch(dir(b"a")).expect("watch");
        assert_ne!(watch, other);
        let before = watches.moment();
        let holds = |name: &[u8], kind| watches.name_holds(watch, name, kind, before);
        assert!(holds(b"new", Kind::Any) && watches.directory_holds(watch, before));
        fs::write(path.join("new"), b"").expect("write");
        assert!(!holds(b"new", Kind::BeyondData) && !watches.directory_holds(watch, before));
        assert!(holds(b"other", Kind::Any) && watches.directory_holds(other, before));
        // Writes are told apart.
        let before = watches.moment();
        fs::write(path.join("new"), b"content").expect("write");
        assert!(!watches.name_holds(watch, b"new", Kind::Any, before));
        assert!(watches.name_holds(watch, b"new", Kind::BeyondData, before));
        assert!(watches.directory_holds(watch, before));
        // A watch ends with the last node that has it: nothing is known then.
        watches.release(other);
        client.forget_now(dir(b"a"), 3);
        assert!(!watches.directory_holds(other, watches.moment()));
        let again = client.watch(dir(b"a")).expect("watch");
        assert_ne!(again, other);
        // A directory that is removed is not known any more.
        fs::create_dir(path.join("gone")).expect("mkdir");
        let gone = client.watch(dir(b"gone")).expect("watch");
        assert!(watches.directory_holds(gone, watches.moment()));
        fs::remove_dir(path.join("gone")).expect("rmdir");
        assert!(!watches.directory_holds(gone, watches.moment()));
        // More than the host keeps: everything may have changed.
        let before = watches.moment();
        for _ in 0..5_000 {
            for name in ["x", "y"] {
                fs::write(path.join("a").join(name), b"").expect("write");
                fs::remove_file(path.join("a").join(name)).expect("remove");
            }
        }
        assert!(!watches.name_holds(watch, b"other", Kind::Any, before));
        assert!(watches.name_holds(watch, b"other", Kind::Any, watches.moment()));
        for no_directory in [b"new", b"lnk"] {
            symlink("a", path.join("lnk")).ok();
            assert_eq!(client.watch(dir(no_directory)), Err(Errno::ENOTDIR));
        }
    });
    let careful = |path: &Path| Export {
        hide_credentials: true,
        ..read_only(path)
    };
    both(careful, |client, root, _| {
        assert_eq!(client.watch(root), Err(Errno::EACCES))
    });
}
