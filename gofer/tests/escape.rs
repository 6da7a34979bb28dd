//! The escape table: ways to a file outside the exports, all refused. Each runs with and without openat2(2).

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_gofer::protocol::{Name, Owner, Request, Stop, VERSION};
use sentry_gofer::server::Export;
use sentry_gofer::{Access, NodeId};

mod common;
use common::{Random, export, is_root, serve, server_process, spawn};

const SECRET: &[u8] = b"outside the export";

/// `dir/secret` and `dir/served`, the latter being what is exported.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir_all(dir.path().join("served/inside/deep")).expect("mkdir");
    fs::create_dir(dir.path().join("outside")).expect("mkdir");
    fs::write(dir.path().join("secret"), SECRET).expect("write");
    fs::write(dir.path().join("outside/secret"), SECRET).expect("write");
    fs::write(dir.path().join("served/inside/secret"), b"inside").expect("write");
    dir
}

fn both(writable: bool, test: impl Fn(&Client, NodeId, &Path)) {
    for openat2 in [true, false] {
        let dir = tree();
        let (client, server) = serve(
            &[Export {
                writable,
                ..export(1, &dir.path().join("served"))
            }],
            openat2,
        );
        let root = client.attach(1).expect("attach").root.node;
        test(&client, root, dir.path());
        drop(client);
        server.join().expect("server");
    }
}

fn owner() -> Owner {
    Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// Sends names that the client's own types do not let through, by way of a name of the same length.
#[test]
fn dot_dot_and_slashes() {
    let mut message = Vec::new();
    for bad in [&b".."[..], b".", b"a/b", b"../secret", b"/", b"/etc", b"a\0b"] {
        let placeholder = vec![b'x'; bad.len()];
        let names = vec![Name::new(&placeholder).expect("a name")];
        let lookup = Request::Lookup {
            node: NodeId(1),
            names,
            open: Some(Access::Read),
        };
        lookup.encode(1, &mut message);
        let at = message
            .windows(bad.len())
            .rposition(|window| window == placeholder)
            .expect("the name");
        message[at..at + bad.len()].copy_from_slice(bad);
        assert_eq!(message[0], VERSION);
        assert!(Request::decode(&message).is_err(), "{}", bad.escape_ascii());
    }
}

#[test]
fn symbolic_links() {
    both(false, |client, root, path| {
        let served = path.join("served");
        symlink("../secret", served.join("up")).expect("symlink");
        symlink(path.join("secret"), served.join("absolute")).expect("symlink");
        symlink("../outside", served.join("directory")).expect("symlink");
        symlink("inside", served.join("harmless")).expect("symlink");
        symlink("/proc/self/root", served.join("magic")).expect("symlink");
        for link in [&b"up"[..], b"absolute", b"directory", b"harmless", b"magic"] {
            let (walked, fd) = client.lookup(root, &[link], Some(Access::Read)).expect("lookup");
            assert_eq!((walked.opened, fd.is_none()), (Some(Err(Errno::ELOOP)), true));
            let node = walked.steps[0].node;
            assert!(walked.steps[0].target.is_some());
            assert_eq!(client.open(node, Access::Read).err(), Some(Errno::ELOOP));
            assert_eq!(client.list(node, None, 0).err(), Some(Errno::ENOTDIR));
            let (walked, fd) = client
                .lookup(root, &[link, b"secret"], Some(Access::Read))
                .expect("lookup");
            assert_eq!(
                (walked.stop, walked.steps.len(), fd.is_none()),
                (Stop::NotDirectory, 1, true)
            );
            assert_eq!(client.lookup(node, &[b"secret"], None).err(), Some(Errno::ENOTDIR));
        }
    });
}

/// A directory that was given out is exchanged for a symbolic link to the outside.
#[test]
fn a_directory_becomes_a_link() {
    both(true, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"inside", b"secret"], None).expect("lookup");
        let (dir, file) = (walked.steps[0].node, walked.steps[1].node);
        fs::rename(path.join("served/inside"), path.join("served/away")).expect("rename");
        symlink("../outside", path.join("served/inside")).expect("symlink");
        assert_eq!(client.open(file, Access::Read).err(), Some(Errno::ESTALE));
        assert_eq!(
            client.lookup(dir, &[b"secret"], Some(Access::Read)).err(),
            Some(Errno::ESTALE)
        );
        assert_eq!(client.list(dir, None, 0).err(), Some(Errno::ESTALE));
        assert_eq!(
            client.create(dir, b"x", 0o644, owner(), None).err(),
            Some(Errno::ESTALE)
        );
        assert_eq!(client.unlink(dir, b"secret", false).err(), Some(Errno::ESTALE));
        assert!(path.join("outside/secret").exists());
    });
}

/// Somebody moves a directory out of the export, while the sentry has nodes in it.
#[test]
fn a_directory_is_moved_out() {
    both(true, |client, root, path| {
        let (walked, _) = client.lookup(root, &[b"inside", b"deep"], None).expect("lookup");
        let (inside, deep) = (walked.steps[0].node, walked.steps[1].node);
        fs::rename(path.join("served/inside"), path.join("outside/inside")).expect("rename");
        fs::write(path.join("outside/inside/deep/secret"), SECRET).expect("write");
        for node in [inside, deep] {
            assert_eq!(
                client.lookup(node, &[b"secret"], Some(Access::Read)).err(),
                Some(Errno::ESTALE)
            );
            assert_eq!(client.list(node, None, 0).err(), Some(Errno::ESTALE));
            assert_eq!(client.attributes(node).err(), Some(Errno::ESTALE));
            assert_eq!(
                client.create(node, b"x", 0o644, owner(), None).err(),
                Some(Errno::ESTALE)
            );
            assert_eq!(
                client.make_directory(node, b"x", 0o755, owner()).err(),
                Some(Errno::ESTALE)
            );
        }
        // Back again: the same directory at the same place.
        fs::rename(path.join("outside/inside"), path.join("served/inside")).expect("rename");
        assert!(client.list(deep, None, 0).is_ok());
    });
}

/// No link from one export into another: a file would become writable.
#[test]
fn hard_links_between_exports() {
    let dir = tree();
    let read_only = export(1, &dir.path().join("outside"));
    let writable = Export {
        writable: true,
        ..export(2, &dir.path().join("served"))
    };
    let (client, server) = serve(&[read_only, writable], true);
    let from = client.attach(1).expect("attach").root.node;
    let to = client.attach(2).expect("attach").root.node;
    let (walked, _) = client.lookup(from, &[b"secret"], None).expect("lookup");
    let secret = walked.steps[0].node;
    assert_eq!(client.link(secret, to, b"x").err(), Some(Errno::EXDEV));
    assert_eq!(
        client.rename((from, b"secret"), (to, b"x"), 0).err(),
        Some(Errno::EROFS)
    );
    assert_eq!(
        client.rename((to, b"inside"), (from, b"x"), 0).err(),
        Some(Errno::EROFS)
    );
    assert_eq!(client.open(secret, Access::ReadWrite).err(), Some(Errno::EROFS));
    drop(client);
    server.join().expect("server");
}

/// /proc beneath an export: magic links, and the memory of the gofer itself.
#[test]
fn process_files() {
    for (openat2, path) in [(true, "/"), (false, "/"), (true, "/proc"), (true, "/proc/self")] {
        if !Path::new("/proc/self/mem").exists() {
            eprintln!("SKIPPED: no /proc");
            return;
        }
        let (client, server) = serve(&[export(1, Path::new(path))], openat2);
        let names: &[&[u8]] = match path {
            "/" => &[b"proc", b"self", b"mem"],
            "/proc" => &[b"self", b"root"],
            _ => &[b"root", b"etc"],
        };
        match client.attach(1) {
            Err(errno) => assert_eq!(errno, Errno::EACCES),
            Ok(attached) => {
                let (walked, fd) = client
                    .lookup(attached.root.node, names, Some(Access::Read))
                    .expect("lookup");
                assert_eq!(
                    (walked.stop, walked.steps.len()),
                    (Stop::Failed(Errno::EACCES), 0),
                    "{path}"
                );
                assert!(fd.is_none());
            }
        }
        drop(client);
        server.join().expect("server");
    }
}

/// A thread exchanges a directory for a link to the outside, and a file for another, in a loop; nothing that is
/// opened comes from outside.
#[test]
fn rename_races() {
    const ROUNDS: usize = 3000;
    both(true, |client, root, path| {
        let served = path.join("served");
        symlink("../outside", served.join("link")).expect("symlink");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
                let exchange = |a: &Path, b: &Path| {
                    renameat2(AT_FDCWD, a, AT_FDCWD, b, RenameFlags::RENAME_EXCHANGE).expect("exchange");
                };
                while !stop.load(Ordering::Relaxed) {
                    exchange(&served.join("inside"), &served.join("link"));
                    exchange(&path.join("outside/secret"), &path.join("secret"));
                    fs::rename(served.join("link"), path.join("outside/moved")).ok();
                    fs::rename(path.join("outside/moved"), served.join("link")).ok();
                }
            });
            let (mut opened, mut refused) = (0, 0);
            let mut nodes = Vec::new();
            for round in 0..ROUNDS {
                for first in [&b"inside"[..], b"link"] {
                    let names: [&[u8]; 2] = [first, b"secret"];
                    let (walked, fd) = client.lookup(root, &names, Some(Access::Read)).expect("lookup");
                    nodes.extend(walked.steps.iter().map(|step| step.node));
                    match fd {
                        Some(fd) => check(fd, &mut opened),
                        None => refused += 1,
                    }
                }
                if let Some(node) = nodes.get(round % nodes.len().max(1)).copied() {
                    match client.open(node, Access::Read) {
                        Ok((_, fd)) => check(fd, &mut opened),
                        Err(_) => refused += 1,
                    }
                    if let Ok((walked, Some(fd))) = client.lookup(node, &[b"secret"], Some(Access::Read)) {
                        nodes.extend(walked.steps.iter().map(|step| step.node));
                        check(fd, &mut opened);
                    }
                    // Nothing may appear outside.
                    let _ = client.create(node, b"made", 0o644, owner(), None);
                    let _ = client.unlink(node, b"made", false);
                }
                if nodes.len() > 5000 {
                    for node in nodes.drain(..) {
                        client.forget(node, 1);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(
                opened > 0 && refused > 0,
                "the race did not take place: {opened} opened, {refused} refused"
            );
        });
        assert!(!path.join("outside/made").exists());
        assert_eq!(fs::read(path.join("outside/secret")).expect("read"), SECRET);
    });

    fn check(fd: std::os::fd::OwnedFd, opened: &mut usize) {
        let mut buf = [0; 64];
        let len = fs::File::from(fd).read_at(&mut buf, 0).expect("read");
        assert_eq!(&buf[..len], b"inside");
        *opened += 1;
    }
}

/// The others' bits count, and not who the gofer runs as.
#[test]
fn what_not_everybody_may_read() {
    let dir = tree();
    let served = dir.path().join("served");
    let mode = |path: &str, mode| {
        fs::set_permissions(served.join(path), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    for name in ["shadow", "public", "closed/file", "unlistable/file"] {
        let path = served.join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(&path, name).expect("write");
        mode(name, 0o644);
    }
    mode("", 0o755);
    mode("shadow", 0o640);
    mode("closed", 0o750);
    mode("unlistable", 0o711);
    for openat2 in [true, false] {
        let (client, server) = serve(
            &[Export {
                world_readable_only: true,
                ..export(1, &served)
            }],
            openat2,
        );
        let root = client.attach(1).expect("attach").root.node;
        let open = |names: &[&[u8]]| client.lookup(root, names, Some(Access::Read)).expect("lookup");
        assert!(open(&[b"public"]).1.is_some());
        assert!(open(&[b"unlistable", b"file"]).1.is_some());
        let (shadow, fd) = open(&[b"shadow"]);
        assert_eq!((shadow.opened, fd.is_none()), (Some(Err(Errno::EACCES)), true));
        assert_eq!(
            client.open(shadow.steps[0].node, Access::Read).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(client.list_xattr(shadow.steps[0].node).err(), Some(Errno::EACCES));
        let (closed, fd) = open(&[b"closed", b"file"]);
        assert_eq!((closed.stop, fd.is_none()), (Stop::Failed(Errno::EACCES), true));
        let closed = closed.steps[0].node;
        assert_eq!(client.lookup(closed, &[b"file"], None).err(), Some(Errno::EACCES));
        assert_eq!(client.list(closed, None, 0).err(), Some(Errno::EACCES));
        assert_eq!(client.list(root, Some(b"unlistable"), 0).err(), Some(Errno::EACCES));
        assert_eq!(
            ahead(&client, root, &[b"public", b"shadow", b"closed"]),
            [true, false, false]
        );
        let closed_error = client.open_ahead(closed, &[b"file"]).err();
        assert_eq!(closed_error, Some(Errno::EACCES));
        // Rights that are taken away count at once.
        let (walked, _) = open(&[b"unlistable", b"file"]);
        mode("unlistable", 0o700);
        assert_eq!(
            client.open(walked.steps[1].node, Access::Read).err(),
            Some(Errno::EACCES)
        );
        mode("unlistable", 0o711);
        drop(client);
        server.join().expect("server");
    }
}

/// Which files of a directory are opened ahead.
fn ahead(client: &Client, node: NodeId, names: &[&[u8]]) -> Vec<bool> {
    let opened = client.open_ahead(node, names).expect("a directory");
    opened.iter().map(Option::is_some).collect()
}

#[test]
fn credentials() {
    let dir = tree();
    let served = dir.path().join("served");
    for name in [
        ".ssh/id",
        "home/.AWS/credentials",
        ".config/gcloud/token",
        ".config/app/settings",
        ".netrc",
    ] {
        let path = served.join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(&path, SECRET).expect("write");
    }
    for openat2 in [true, false] {
        let export = Export {
            writable: true,
            hide_credentials: true,
            ..export(1, &served)
        };
        let (client, server) = serve(&[export], openat2);
        let root = client.attach(1).expect("attach").root.node;
        let hidden: [&[&[u8]]; 5] = [
            &[b".ssh"],
            &[b".SSH"],
            &[b"home", b".AWS"],
            &[b".config", b"gcloud"],
            &[b".netrc"],
        ];
        for names in hidden {
            let (walked, fd) = client.lookup(root, names, Some(Access::Read)).expect("lookup");
            assert_eq!((walked.stop, walked.steps.len()), (Stop::Missing, names.len() - 1));
            assert!(fd.is_none());
        }
        let (walked, fd) = client
            .lookup(root, &[b".config", b"app", b"settings"], Some(Access::Read))
            .expect("lookup");
        assert_eq!((walked.stop, fd.is_some()), (Stop::Complete, true));
        // A link, a directory, a FIFO and what is not there are not opened either.
        fs::write(served.join("plain"), "").expect("write");
        symlink("plain", served.join("soft")).expect("symlink");
        let _ = nix::unistd::mkfifo(&served.join("fifo"), nix::sys::stat::Mode::S_IRWXU);
        assert_eq!(
            ahead(
                &client,
                root,
                &[b".netrc", b".NETRC", b"soft", b"home", b"fifo", b"absent", b"plain"]
            ),
            [false, false, false, false, false, false, true]
        );
        for name in ["soft", "plain"] {
            fs::remove_file(served.join(name)).expect("remove");
        }
        let config = walked.steps[0].node;
        let names: Vec<_> = client
            .list(root, None, 0)
            .expect("list")
            .entries
            .into_iter()
            .map(|e| e.name)
            .collect();
        assert!(
            !names.iter().any(|name| name == b".ssh" || name == b".netrc"),
            "{names:?}"
        );
        assert_eq!(client.list(config, None, 0).expect("list").entries.len(), 1);
        // Neither made, nor replaced, nor brought into view by a rename.
        assert_eq!(
            client.make_directory(root, b".ssh", 0o755, owner()).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(
            client.make_directory(root, b".kube", 0o755, owner()).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(
            client.rename((root, b"inside"), (root, b".gnupg"), 0).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(
            client.rename((root, b".ssh"), (root, b"x"), 0).err(),
            Some(Errno::ENOENT)
        );
        assert_eq!(client.unlink(root, b".netrc", false).err(), Some(Errno::ENOENT));
        assert_eq!(
            client.rename((root, b".config"), (root, b"x"), 0).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(
            client.rename((root, b"inside"), (root, b".config"), 2).err(),
            Some(Errno::EACCES)
        );
        client.rename((root, b"home"), (root, b"h"), 0).expect("rename");
        let (walked, _) = client.lookup(root, &[b"h", b".AWS"], None).expect("lookup");
        assert_eq!(walked.stop, Stop::Missing);
        client.rename((root, b"h"), (root, b"home"), 0).expect("rename");
        drop(client);
        server.join().expect("server");
    }
}

/// The gofer process with all its restrictions, as root and as an ordinary user.
#[test]
fn restricted_process() {
    let dir = tree();
    let served = dir.path().join("served");
    fs::write(served.join("inside/private"), SECRET).expect("write");
    for path in [
        dir.path(),
        &served,
        &served.join("inside"),
        &served.join("inside/secret"),
    ] {
        let readable = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(readable)).expect("chmod");
    }
    fs::set_permissions(served.join("inside/private"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut users = vec![None];
    if is_root("a gofer as an ordinary user, beside one as root") {
        users.push(Some(65534));
    }
    for uid in users {
        for (writable, world_readable_only) in [(false, false), (true, false), (false, true)] {
            let export = Export {
                writable,
                world_readable_only,
                ..export(1, &served)
            };
            let (socket, mut child) = spawn("gofer_process", &[export], uid);
            let client = Client::new(socket);
            let root = client.attach(1).expect("attach").root.node;
            check_restrictions(child.id(), uid, writable, world_readable_only);
            let open = |name: &[u8]| {
                client
                    .lookup(root, &[b"inside", name], Some(Access::Read))
                    .expect("lookup")
            };
            let (walked, fd) = open(b"secret");
            assert!(fd.is_some());
            // The guest reads what its user reads, where the export does not say otherwise.
            let owner_reads = uid.is_none() && !world_readable_only;
            assert_eq!(
                open(b"private").1.is_some(),
                owner_reads,
                "{uid:?} {world_readable_only}"
            );
            assert_eq!(client.list(root, Some(b"inside"), 0).expect("list").entries.len(), 3);
            assert!(client.fs_totals(root).is_ok());
            assert!(client.list_xattr(walked.steps[1].node).is_ok());
            let changed = client.create(walked.steps[0].node, b"made", 0o644, owner(), Some(Access::Write));
            match (writable, uid) {
                (true, None) => {
                    let (step, _) = changed.expect("create");
                    let dir = walked.steps[0].node;
                    client.link(step.node, root, b"linked").expect("link");
                    client
                        .rename((root, b"linked"), (dir, b"moved"), 0)
                        .expect("rename between directories");
                    client.unlink(dir, b"moved", false).expect("unlink");
                    client.symlink(dir, b"sym", b"x", owner()).expect("symlink");
                    client.unlink(dir, b"sym", false).expect("unlink");
                    client.make_directory(dir, b"dir", 0o755, owner()).expect("mkdir");
                    client.unlink(dir, b"dir", true).expect("rmdir");
                    let set = sentry_gofer::protocol::NewAttributes {
                        mode: Some(0o6640),
                        size: Some(10),
                        mtime: Some(sentry_gofer::Time { sec: 5, nsec: 0 }),
                        uid: Some(owner().uid),
                        ..Default::default()
                    };
                    let now = client.set_attributes(step.node, &set).expect("set attributes");
                    assert_eq!((now.mode & 0o7777, now.size, now.mtime.sec), (0o640, 10, 5));
                    client.unlink(dir, b"made", false).expect("unlink");
                }
                (true, Some(_)) => assert_eq!(changed.err(), Some(Errno::EACCES)),
                (false, _) => assert_eq!(changed.err(), Some(Errno::EROFS)),
            }
            drop(client);
            assert!(
                child.wait().expect("wait").success(),
                "{uid:?} {writable} {world_readable_only}"
            );
        }
    }
}

/// What the host says of the gofer process.
fn check_restrictions(pid: u32, uid: Option<u32>, writable: bool, world_readable_only: bool) {
    // The test harness runs its test in a thread, which here is the gofer.
    let status = fs::read_dir(format!("/proc/{pid}/task")).ok().and_then(|tasks| {
        tasks
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
            .find(|status| status.contains("gofer_process"))
    });
    let Some(status) = status else {
        eprintln!("SKIPPED: no /proc to look at a process's restrictions");
        return;
    };
    let field = |name: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line for it");
        line[name.len()..].trim().to_owned()
    };
    assert_eq!((field("Seccomp:").as_str(), field("NoNewPrivs:").as_str()), ("2", "1"));
    let as_root = uid.is_none() && nix::unistd::geteuid().is_root();
    let capabilities = match (as_root, writable, world_readable_only) {
        (false, _, _) | (true, _, true) => 0,
        (true, false, _) => 0b100,
        (true, true, _) => 0b1111,
    };
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        let set_now = u64::from_str_radix(&field(set), 16).expect("hexadecimal");
        // An ordinary user cannot change the bounding set.
        if set != "CapBnd:" || as_root {
            assert_eq!(set_now, capabilities, "{set}");
        }
    }
    for set in ["CapInh:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{set}");
    }
}

/// Not a test: [`spawn`] runs it.
#[test]
fn gofer_process() {
    server_process();
}

/// Names of all kinds, at random, in a tree with links out of it: whatever is opened lies beneath the root.
#[test]
fn random_walks() {
    both(true, |client, root, path| {
        let served = path.join("served");
        symlink("../..", served.join("inside/up")).expect("symlink");
        symlink("/", served.join("inside/deep/slash")).expect("symlink");
        symlink("../outside", served.join("out")).expect("symlink");
        let names: [&[u8]; 10] = [
            b"inside", b"deep", b"secret", b"up", b"slash", b"out", b"outside", b"etc", b"passwd", b"served",
        ];
        let mut random = Random::new(3);
        let mut nodes = vec![root];
        for _ in 0..5000 {
            let start = nodes[random.below(nodes.len())];
            let walk: Vec<&[u8]> = (0..=random.below(5))
                .map(|_| names[random.below(names.len())])
                .collect();
            let Ok((walked, fd)) = client.lookup(start, &walk, Some(Access::Read)) else {
                continue;
            };
            if let Some(fd) = fd {
                let mut buf = [0; 64];
                let len = fs::File::from(fd).read_at(&mut buf, 0).expect("read");
                assert_eq!(&buf[..len], b"inside");
            }
            nodes.extend(walked.steps.iter().map(|step| step.node));
            nodes.truncate(200);
        }
        assert!(nodes.len() > 4);
    });
}
