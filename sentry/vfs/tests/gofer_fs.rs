//! The file system over a gofer, with a gofer in a thread.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_gofer::server::{Export, Server};
use sentry_vfs::cred::Credentials;
use sentry_vfs::file::{DirEntry, File, FileOps};
use sentry_vfs::gofer_fs::{Caching, GoferInode, MAX_DESCRIPTORS, attach};
use sentry_vfs::inode::{Inode, NewInode, SetAttributes, Timestamp};
use sentry_vfs::mount::{FileSystem, MountFlags};
use sentry_vfs::ops::{At, Caller, Lookup, Resolve, TaskIds, Vfs};
use sentry_vfs::overlay::Overlay;
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::TmpfsOptions;

struct Fixture {
    dir: tempfile::TempDir,
    client: Arc<Client>,
    root: Arc<GoferInode>,
}

impl Fixture {
    fn new(writable: bool, caching: Caching, prepare: impl FnOnce(&Path)) -> Fixture {
        let dir = tempfile::tempdir().expect("temporary directory");
        prepare(dir.path());
        let (ours, theirs) = sentry_host::scm::packet_pair().expect("socketpair");
        let export = Export {
            id: 0,
            path: dir.path().to_owned(),
            writable,
            world_readable_only: false,
            hide_credentials: false,
        };
        let mut server = Server::open(&[export]).expect("exports");
        std::thread::spawn(move || server.serve(theirs.as_fd()).expect("an honest client"));
        let client = Client::new(ours);
        let root = attach(&client, 0, caching).expect("attach");
        Fixture { dir, client, root }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// How many messages `work` needs.
    fn messages<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let before = self.client.requests();
        let result = work();
        (self.client.requests() - before, result)
    }
}

fn small(path: &Path) {
    fs::create_dir_all(path.join("dir/below")).expect("mkdir");
    fs::write(path.join("dir/file"), b"content").expect("write");
    symlink("file", path.join("dir/link")).expect("symlink");
}

fn walk(root: &Arc<GoferInode>, path: &str) -> Result<Arc<dyn Inode>, Errno> {
    let mut at: Arc<dyn Inode> = root.clone();
    for name in path.split('/') {
        at = at.lookup(name.as_bytes())?;
    }
    Ok(at)
}

fn new(kind: u32, mode: u32) -> NewInode {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    NewInode {
        mode: kind | mode,
        uid,
        gid,
        rdev: 0,
    }
}

/// A description around an opened file, as far as the file's operations look at it.
fn describe(ops: Box<dyn FileOps>, flags: i32) -> Arc<File> {
    File::new(VfsPath::anonymous(b"test".to_vec()), flags as u32, ops)
}

fn content(inode: &Arc<dyn Inode>) -> Vec<u8> {
    let file = describe(inode.open(libc::O_RDONLY as u32).expect("open"), libc::O_RDONLY);
    let mut buf = [0; 64];
    let len = file.ops().read(&file, &mut buf, 0).expect("read");
    buf[..len].to_vec()
}

fn names(inode: &dyn Inode) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = inode
        .entries()
        .expect("entries")
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    names.sort();
    names
}

#[test]
fn a_directory_of_which_more_is_asked_comes_in_one_message() {
    let fixture = Fixture::new(false, Caching::Forever, small);
    let (messages, file) = fixture.messages(|| walk(&fixture.root, "dir/file").expect("file"));
    // One for each name: the first two are asked for by themselves.
    assert_eq!(messages, 2);
    let (messages, ()) = fixture.messages(|| {
        for absent in ["no", "no more", "dir/no", "dir/no more"] {
            assert_eq!(walk(&fixture.root, absent).err(), Some(Errno::ENOENT));
        }
    });
    // A second name each, then the lists.
    assert_eq!(messages, 4);
    let meta = fs::metadata(fixture.path().join("dir/file")).expect("stat");
    let (messages, ()) = fixture.messages(|| {
        let attributes = file.attributes().expect("attributes");
        assert_eq!(
            (attributes.ino, attributes.size, attributes.mode),
            (meta.ino(), 7, meta.mode())
        );
        assert_ne!(attributes.dev, meta.dev());
        for absent in ["nothing", "dir/nothing", "dir/fil", "dir/filee"] {
            assert_eq!(walk(&fixture.root, absent).err(), Some(Errno::ENOENT));
        }
        let link = walk(&fixture.root, "dir/link").expect("link");
        assert_eq!(link.readlink().as_deref(), Ok(&b"file"[..]));
        assert_eq!(file.readlink(), Err(Errno::EINVAL));
        let dir = walk(&fixture.root, "dir").expect("dir");
        assert_eq!(names(&*dir), [&b"below"[..], b"file", b"link"]);
        assert!(Arc::ptr_eq(&walk(&fixture.root, "dir/file").expect("file"), &file));
        assert_eq!(file.lookup(b"x").err(), Some(Errno::ENOTDIR));
    });
    assert_eq!(messages, 0);
}

#[test]
fn opening_takes_one_message_and_again_none() {
    let fixture = Fixture::new(false, Caching::Forever, small);
    // The descriptor comes with the name.
    let (messages, file) = fixture.messages(|| {
        let file = walk(&fixture.root, "dir/file").expect("file");
        assert_eq!(content(&file), b"content");
        file
    });
    assert_eq!(messages, 2);
    let (messages, _) = fixture.messages(|| (0..10).for_each(|_| assert_eq!(content(&file), b"content")));
    assert_eq!(messages, 0);
    assert_eq!(file.open(libc::O_RDWR as u32).err(), Some(Errno::EROFS));
    assert_eq!(
        fixture.root.create(b"x", &new(libc::S_IFREG, 0o644)).err(),
        Some(Errno::EROFS)
    );
    assert_eq!(fixture.root.unlink(b"dir").err(), Some(Errno::EROFS));
}

#[test]
fn opening_what_a_list_has_shown_takes_one_message() {
    let fixture = Fixture::new(false, Caching::Forever, |path| {
        for name in ["a", "b", "c"] {
            fs::write(path.join(name), name).expect("write");
        }
    });
    let files = ["a", "b", "c"].map(|name| walk(&fixture.root, name).expect("file"));
    for (file, asked) in files.iter().zip([0, 0, 1]) {
        let (messages, _) = fixture.messages(|| content(file));
        assert_eq!(messages, asked);
        let (messages, _) = fixture.messages(|| content(file));
        assert_eq!(messages, 0);
    }
}

/// Files that are opened in the order of their directory come several at a time; others, and those that are not
/// regular files or may not be read, do not.
#[test]
fn file_after_file_comes_ahead() {
    let count = 200;
    let fixture = Fixture::new(false, Caching::Forever, |path| {
        for number in 0..count {
            fs::write(path.join(format!("{number}")), format!("{number}")).expect("write");
        }
        symlink("0", path.join("link")).expect("symlink");
        fs::create_dir(path.join("dir")).expect("mkdir");
    });
    let order = |reverse: bool| {
        let mut entries = fixture.root.entries().expect("entries");
        entries.retain(|entry| entry.kind == libc::DT_REG);
        if reverse {
            entries.reverse();
        }
        entries
    };
    let read_all = |entries: Vec<DirEntry>| {
        for entry in entries {
            let name = String::from_utf8(entry.name).expect("a name");
            assert_eq!(content(&walk(&fixture.root, &name).expect("file")), name.as_bytes());
        }
    };
    let (backwards, ()) = fixture.messages(|| read_all(order(true)));
    assert!(backwards >= 200, "{backwards}");
    let before = fs::read_dir("/proc/self/fd").expect("list").count();
    for _ in 0..3 {
        let (messages, ()) = fixture.messages(|| read_all(order(false)));
        assert!((8..40).contains(&messages), "{messages}");
    }
    assert!(fs::read_dir("/proc/self/fd").expect("list").count() <= before + MAX_DESCRIPTORS + 64);
    // Another file has taken the name since.
    let names: Vec<_> = order(false).into_iter().map(|entry| entry.name).collect();
    let paths: Vec<_> = names
        .iter()
        .map(|name| std::str::from_utf8(name).expect("a name"))
        .collect();
    let files: Vec<_> = paths
        .iter()
        .map(|path| walk(&fixture.root, path).expect("file"))
        .collect();
    fs::remove_file(fixture.path().join(paths[103])).expect("remove");
    fs::write(fixture.path().join("elsewhere"), "new").expect("write");
    fs::rename(fixture.path().join("elsewhere"), fixture.path().join(paths[104])).expect("rename");
    for (index, file) in files.iter().enumerate().skip(90).take(30) {
        let open = file.open(libc::O_RDONLY as u32);
        match index {
            103 => assert_eq!(open.err(), Some(Errno::ENOENT)),
            104 => assert_eq!(content(file), b"new"),
            _ => assert_eq!(content(file), names[index]),
        }
    }
}

/// More files than descriptors that are kept.
#[test]
fn kept_descriptors_are_bounded() {
    let count = MAX_DESCRIPTORS * 2;
    let mut tree = std::path::PathBuf::new();
    let fixture = Fixture::new(false, Caching::Forever, |path| {
        tree = path.canonicalize().expect("a path");
        for number in 0..count {
            fs::write(path.join(format!("{number}")), format!("{number}")).expect("write");
        }
    });
    // Other tests run in the same process.
    let open = || {
        let links = fs::read_dir("/proc/self/fd").expect("list").flatten();
        let files = links.filter_map(|link| fs::read_link(link.path()).ok());
        files.filter(|file| file.starts_with(&tree)).count()
    };
    let inodes: Vec<_> = (0..count)
        .map(|number| walk(&fixture.root, &number.to_string()).expect("file"))
        .collect();
    for round in 0..3 {
        for (number, inode) in inodes.iter().enumerate() {
            assert_eq!(content(inode), number.to_string().as_bytes(), "round {round}");
        }
    }
    // And what belongs to the export.
    assert!(
        (MAX_DESCRIPTORS / 2..=MAX_DESCRIPTORS + 8).contains(&open()),
        "{}",
        open()
    );
}

#[test]
fn large_directories_are_looked_up_by_name() {
    let fixture = Fixture::new(false, Caching::Forever, |path| {
        for number in 0..1000 {
            fs::write(path.join(format!("{number}")), b"").expect("write");
        }
    });
    for (name, asked) in [("77", 1), ("78", 1), ("79", 2), ("80", 1)] {
        let (messages, _) = fixture.messages(|| walk(&fixture.root, name).expect("file"));
        assert_eq!(messages, asked, "{name}");
    }
    let (messages, error) = fixture.messages(|| walk(&fixture.root, "no").err());
    assert_eq!((messages, error), (0, Some(Errno::ENOENT)));
    assert_eq!(names(&*fixture.root).len(), 1000);
}

#[test]
fn mapping_gets_a_descriptor_with_the_rights_of_the_open() {
    let fixture = Fixture::new(true, Caching::Revalidate, small);
    let inode = walk(&fixture.root, "dir/file").expect("file");
    for (flags, shared, writable, allowed) in [
        (libc::O_RDONLY, true, false, true),
        (libc::O_RDONLY, false, true, true),
        (libc::O_RDONLY, true, true, false),
        (libc::O_WRONLY, true, false, false),
        (libc::O_RDWR, true, true, true),
    ] {
        let file = describe(inode.open(flags as u32).expect("open"), flags);
        let mapped = file.ops().mmap_file(&file, shared, writable);
        assert_eq!(mapped.is_ok(), allowed, "{flags} {shared} {writable}");
        if let Ok(fd) = mapped {
            let host = fs::File::from(fd.try_clone().expect("dup"));
            assert_eq!(host.write_all_at(b"C", 0).is_ok(), flags == libc::O_RDWR);
        }
        let host = file.ops().host_file().expect("a host file");
        assert_eq!(
            (host.writable, host.may_block, host.base),
            (flags != libc::O_RDONLY, true, 0)
        );
    }
}

#[test]
fn shared_trees_show_what_the_host_does() {
    let fixture = Fixture::new(true, Caching::Revalidate, small);
    assert!(!fixture.root.cacheable());
    // As a dentry would hold it.
    let dir = walk(&fixture.root, "dir").expect("dir");
    assert_eq!(walk(&fixture.root, "dir/new").err(), Some(Errno::ENOENT));
    // That a name is absent is not remembered.
    fs::write(fixture.path().join("dir/new"), b"host").expect("write");
    let inode = walk(&fixture.root, "dir/new").expect("new");
    assert_eq!(content(&inode), b"host");
    // An open file's attributes are the file's.
    let file = describe(inode.open(libc::O_RDWR as u32).expect("open"), libc::O_RDWR);
    fs::write(fixture.path().join("dir/new"), b"more from the host").expect("write");
    assert_eq!(inode.attributes().expect("attributes").size, 18);
    assert_eq!(file.ops().size(&file), Ok(18));
    drop(file);
    // Replaced by another file: found when somebody opens it.
    fs::write(fixture.path().join("other"), b"replaced").expect("write");
    fs::rename(fixture.path().join("other"), fixture.path().join("dir/new")).expect("rename");
    assert_eq!(content(&walk(&fixture.root, "dir/new").expect("new")), b"replaced");
    // While nothing happens, names and attributes are answered from memory.
    let look = || walk(&fixture.root, "dir/new").expect("new");
    let (messages, inode) = fixture.messages(look);
    assert_eq!(messages, 1);
    let (messages, _) = fixture.messages(|| {
        look();
        inode.attributes().expect("attributes")
    });
    assert_eq!(messages, 0);
    // A change is seen at once.
    let mode = || look().attributes().expect("attributes").mode & 0o7777;
    for wanted in [0o600, 0o640, 0o644] {
        fs::set_permissions(fixture.path().join("dir/new"), fs::Permissions::from_mode(wanted)).expect("chmod");
        assert_eq!(
            (mode(), inode.permissions().expect("permissions").mode & 0o7777),
            (wanted, wanted)
        );
    }
    // What happens beside it is no matter.
    fs::write(fixture.path().join("dir/beside"), b"").expect("write");
    assert_eq!(fixture.messages(mode), (0, 0o644));
    fs::remove_file(fixture.path().join("dir/beside")).expect("remove");
    // A directory changes with its names.
    for size in 0..3 {
        let before = dir.attributes().expect("attributes").nlink;
        fs::create_dir(fixture.path().join("dir").join(format!("below{size}"))).expect("mkdir");
        assert_eq!(dir.attributes().expect("attributes").nlink, before + 1);
    }
    let (messages, _) = fixture.messages(|| dir.attributes().expect("attributes"));
    assert_eq!(messages, 0);
    for size in 0..3 {
        fs::remove_dir(fixture.path().join("dir").join(format!("below{size}"))).expect("rmdir");
    }
    // More than are remembered one by one, and more than the host keeps.
    for number in 0..9_000 {
        fs::write(fixture.path().join("dir").join(number.to_string()), b"").expect("write");
    }
    for number in 0..9_000 {
        fs::remove_file(fixture.path().join("dir").join(number.to_string())).expect("remove");
    }
    fs::set_permissions(fixture.path().join("dir/new"), fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(mode(), 0o600);
    assert_eq!(names(&*walk(&fixture.root, "dir").expect("dir")).len(), 4);
}

#[test]
fn writes_reach_the_host() {
    for caching in [Caching::Forever, Caching::Revalidate] {
        let fixture = Fixture::new(true, caching, small);
        let dir = walk(&fixture.root, "dir").expect("dir");
        assert!(dir.entries().is_ok());
        let inode = dir.create(b"new", &new(libc::S_IFREG, 0o600)).expect("create");
        let file = describe(inode.open(libc::O_RDWR as u32).expect("open"), libc::O_RDWR);
        assert_eq!(file.ops().write(&file, b"hello", 2), Ok((5, 7)));
        assert_eq!(inode.attributes().expect("attributes").size, 7);
        file.set_flags(libc::O_APPEND as u32, libc::O_APPEND as u32);
        assert_eq!(file.ops().write(&file, b"!", 0), Ok((1, 8)));
        assert_eq!(fs::read(fixture.path().join("dir/new")).expect("read"), b"\0\0hello!");
        inode
            .set_attributes(&SetAttributes {
                size: Some(4),
                ..Default::default()
            })
            .expect("truncate");
        assert_eq!(inode.attributes().expect("attributes").size, 4);
        assert_eq!(file.ops().fallocate(0, 0, 4096), Ok(()));
        assert_eq!(inode.attributes().expect("attributes").size, 4096);
        assert_eq!(file.ops().sync(false), Ok(()));
        drop(file);
        let set = SetAttributes {
            mode: Some(0o640),
            size: Some(1),
            mtime: Some(Timestamp { sec: 100, nsec: 7 }),
            ..Default::default()
        };
        inode.set_attributes(&set).expect("set attributes");
        let attributes = inode.attributes().expect("attributes");
        assert_eq!(
            (attributes.mode & 0o7777, attributes.size, attributes.mtime.sec),
            (0o640, 1, 100)
        );
        assert_eq!(
            dir.create(b"new", &new(libc::S_IFREG, 0o600)).err(),
            Some(Errno::EEXIST)
        );
        assert_eq!(
            dir.create(b"fifo", &new(libc::S_IFIFO, 0o600)).err(),
            Some(Errno::EPERM)
        );
        assert_eq!(dir.create(b"dev", &new(libc::S_IFCHR, 0o600)).err(), Some(Errno::EPERM));
        assert!(walk(&fixture.root, "dir/new").is_ok());
        assert!(inode.statistics().expect("totals").blocks > 0);
    }
}

#[test]
fn names_change() {
    for caching in [Caching::Forever, Caching::Revalidate] {
        let fixture = Fixture::new(true, caching, small);
        let root: Arc<dyn Inode> = fixture.root.clone();
        let dir = walk(&fixture.root, "dir").expect("dir");
        let below = walk(&fixture.root, "dir/below").expect("below");
        let file = walk(&fixture.root, "dir/file").expect("file");
        let inner = below.create(b"inner", &new(libc::S_IFREG, 0o644)).expect("create");

        dir.rename(b"below", &root, b"moved", 0).expect("rename");
        assert_eq!(walk(&fixture.root, "dir/below").err(), Some(Errno::ENOENT));
        assert!(Arc::ptr_eq(&walk(&fixture.root, "moved/inner").expect("inner"), &inner));
        assert_eq!(content(&inner), b"");
        assert!(below.create(b"more", &new(libc::S_IFREG, 0o644)).is_ok());
        assert!(fixture.path().join("moved/more").exists());

        // One file, two names.
        root.link(b"hard", &file).expect("link");
        assert_eq!(file.attributes().expect("attributes").nlink, 2);
        let hard = walk(&fixture.root, "hard").expect("hard");
        assert_eq!(
            hard.attributes().expect("attributes").ino,
            file.attributes().expect("attributes").ino
        );
        dir.unlink(b"file").expect("unlink");
        assert_eq!(walk(&fixture.root, "dir/file").err(), Some(Errno::ENOENT));
        assert_eq!(content(&walk(&fixture.root, "hard").expect("hard")), b"content");
        assert_eq!(
            walk(&fixture.root, "hard")
                .expect("hard")
                .attributes()
                .expect("attributes")
                .nlink,
            1
        );

        // Open and unlinked.
        let hard = walk(&fixture.root, "hard").expect("hard");
        let open = describe(hard.open(libc::O_RDWR as u32).expect("open"), libc::O_RDWR);
        root.unlink(b"hard").expect("unlink");
        assert_eq!(open.ops().write(&open, b"C", 0), Ok((1, 1)));
        assert_eq!(hard.attributes().expect("attributes").nlink, 0);
        hard.set_attributes(&SetAttributes {
            size: Some(3),
            ..Default::default()
        })
        .expect("truncate");
        assert_eq!(open.ops().size(&open), Ok(3));

        let link = root
            .symlink(b"sym", b"moved", &new(libc::S_IFLNK, 0o777))
            .expect("symlink");
        assert_eq!(link.readlink().as_deref(), Ok(&b"moved"[..]));
        assert_eq!(root.rmdir(b"moved").err(), Some(Errno::ENOTEMPTY));
        root.rename(b"moved", &dir, b"exchanged", libc::RENAME_NOREPLACE)
            .expect("rename");
        let made = root.create(b"made", &new(libc::S_IFDIR, 0o755)).expect("mkdir");
        root.rename(b"made", &dir, b"exchanged", libc::RENAME_EXCHANGE)
            .expect("exchange");
        assert!(Arc::ptr_eq(&walk(&fixture.root, "dir/exchanged").expect("made"), &made));
        assert!(Arc::ptr_eq(&walk(&fixture.root, "made/inner").expect("inner"), &inner));
        dir.rmdir(b"exchanged").expect("rmdir");
        assert_eq!(made.create(b"x", &new(libc::S_IFREG, 0o644)).err(), Some(Errno::ENOENT));
    }
}

/// A file is made and opened in one message, whatever its mode says.
#[test]
fn creating_opens() {
    let fixture = Fixture::new(true, Caching::Revalidate, small);
    let flags = libc::O_RDWR as u32;
    let make = |name: &[u8]| fixture.root.create_open(name, &new(libc::S_IFREG, 0), flags);
    let (messages, created) = fixture.messages(|| make(b"new"));
    let (inode, ops) = created.expect("created");
    assert_eq!(messages, 1);
    let file = describe(ops, libc::O_RDWR);
    assert_eq!(file.ops().write(&file, b"x", 0), Ok((1, 1)));
    let attributes = inode.attributes().expect("attributes");
    assert_eq!((attributes.size, attributes.mode), (1, libc::S_IFREG));
    assert_eq!(
        fs::metadata(fixture.path().join("new")).expect("stat").mode(),
        libc::S_IFREG
    );
    assert_eq!(make(b"new").err(), Some(Errno::EEXIST));
    assert!(Arc::ptr_eq(&fixture.root.lookup(b"new").expect("look-up"), &inode));
}

/// Through the VFS: what is in use when its name goes stays whole; a directory that is gone has nothing in it.
#[test]
fn what_is_in_use_outlives_its_name() {
    let fixture = Fixture::new(true, Caching::Revalidate, small);
    let tree = Tree::new(&FileSystem::new(fixture.root.clone(), "gofer", "host", "rw"));
    let (vfs, caller) = (&tree.vfs, tree.caller());
    let file = tree.open("dir/file", libc::O_RDONLY).expect("open");
    vfs.unlink(&caller, At::Cwd, b"dir/file").expect("unlink");
    let again = vfs.open_path(&caller, file.path(), libc::O_RDWR).expect("open anew");
    assert_eq!(again.ops().write(&again, b"C", 0), Ok((1, 1)));
    let mut buf = [0; 7];
    assert_eq!(file.ops().read(&file, &mut buf, 0), Ok(7));
    assert_eq!(&buf, b"Content");
    assert_eq!(file.attributes().map(|attributes| attributes.nlink), Ok(0));
    // Nobody uses this one: removing it takes what it took.
    tree.open("dir/other", libc::O_CREAT | libc::O_WRONLY).expect("create");
    let (messages, ()) = fixture.messages(|| vfs.unlink(&caller, At::Cwd, b"dir/other").expect("unlink"));
    // The names, and then their watches.
    assert!(messages <= 4, "{messages}");

    let dir = vfs
        .resolve(&caller, At::Cwd, b"dir/below", Lookup::empty())
        .expect("directory");
    vfs.rmdir(&caller, At::Cwd, b"dir/below").expect("rmdir");
    let inside = At::Path(&dir);
    for flags in [libc::O_RDONLY, libc::O_CREAT | libc::O_RDWR] {
        let opened = vfs.open(&caller, inside, b"x", flags, 0o600, Resolve::empty());
        assert_eq!(opened.err(), Some(Errno::ENOENT));
    }
    assert_eq!(vfs.mkdir(&caller, inside, b"x", 0o700).err(), Some(Errno::ENOENT));
    let attributes = dir.inode().expect("inode").attributes().expect("attributes");
    assert_eq!((attributes.nlink, attributes.mode & libc::S_IFMT), (0, libc::S_IFDIR));
}

/// A name keeps its position while the directory is open, whatever comes and goes.
#[test]
fn positions_stay() {
    let fixture = Fixture::new(true, Caching::Revalidate, |path| {
        for number in 0..50 {
            fs::write(path.join(number.to_string()), b"").expect("write");
        }
    });
    let tree = Tree::new(&FileSystem::new(fixture.root.clone(), "gofer", "host", "rw"));
    let dir = tree.open("/", libc::O_RDONLY).expect("open");
    let list = |from: u64| {
        let mut all = Vec::new();
        dir.ops()
            .readdir(&dir, from, &mut |entry, next| {
                all.push((entry.name.clone(), next));
                true
            })
            .expect("readdir");
        all
    };
    let first = list(0);
    assert_eq!(first.len(), 52);
    for (index, (_, next)) in first.iter().enumerate() {
        assert_eq!(list(*next), first[index + 1..]);
    }
    let gone = first[20].0.clone();
    std::fs::remove_file(fixture.path().join(std::str::from_utf8(&gone).expect("a number"))).expect("remove");
    std::fs::write(fixture.path().join("new"), b"").expect("write");
    let second = list(0);
    assert_eq!(second.len(), 52);
    for (name, next) in &first {
        let same = second.iter().find(|(other, _)| other == name);
        assert!(same.map_or(*name == gone, |(_, now)| now == next), "{name:?}");
    }
    assert!(list(first[51].1).iter().map(|(name, _)| name.as_slice()).eq([b"new"]));
}

/// A file that nobody has looked at is renamed in a tree whose list is kept.
#[test]
fn a_rename_of_what_was_not_looked_at() {
    let fixture = Fixture::new(true, Caching::Forever, small);
    let dir = walk(&fixture.root, "dir").expect("dir");
    let root: Arc<dyn Inode> = fixture.root.clone();
    dir.rename(b"file", &root, b"file2", 0).expect("rename");
    assert_eq!(content(&walk(&fixture.root, "file2").expect("file2")), b"content");
    assert_eq!(walk(&fixture.root, "dir/file").err(), Some(Errno::ENOENT));
    assert_eq!(names(&*fixture.root), [&b"dir"[..], b"file2"]);
}

#[test]
fn a_dead_gofer_is_an_error() {
    let (ours, theirs) = sentry_host::scm::packet_pair().expect("socketpair");
    let client = Client::new(ours);
    drop(theirs);
    assert_eq!(attach(&client, 0, Caching::Forever).err(), Some(Errno::EIO));
}

#[test]
fn several_threads() {
    let fixture = Fixture::new(true, Caching::Revalidate, |path| {
        for number in 0..10 {
            fs::create_dir_all(path.join(format!("{number}/x/y"))).expect("mkdir");
        }
    });
    let root: Arc<dyn Inode> = fixture.root.clone();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (fixture, root) = (&fixture, &root);
            scope.spawn(move || {
                for round in 0..300_usize {
                    let from = format!("{}", (round * (thread + 1)) % 10);
                    let to = format!("{}", (round + thread) % 10);
                    let _ = walk(&fixture.root, &format!("{from}/x/y"));
                    let name = format!("{thread}");
                    if let (Ok(from), Ok(to)) = (walk(&fixture.root, &from), walk(&fixture.root, &to)) {
                        let _ = from.create(name.as_bytes(), &new(libc::S_IFREG, 0o644));
                        let _ = from.rename(name.as_bytes(), &to, name.as_bytes(), 0);
                        let _ = from.entries();
                    }
                    let _ = root.rename(from.as_bytes(), root, to.as_bytes(), libc::RENAME_EXCHANGE);
                }
            });
        }
    });
    assert!(fixture.client.alive());
    assert_eq!(names(&*root).len(), 10);
}

/// A whole tree on top, as a guest's calls see it.
struct Tree {
    vfs: Arc<Vfs>,
    root: VfsPath,
    cred: Credentials,
}

impl Tree {
    fn new(fs: &Arc<FileSystem>) -> Tree {
        let (vfs, root) = Vfs::new(fs, MountFlags::empty());
        Tree {
            vfs,
            root,
            cred: Credentials::root(),
        }
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            cred: &self.cred,
            root: &self.root,
            cwd: &self.root,
            umask: 0o022,
            task: TaskIds::default(),
        }
    }

    fn open(&self, path: &str, flags: i32) -> Result<Arc<File>, Errno> {
        self.vfs
            .open(&self.caller(), At::Cwd, path.as_bytes(), flags, 0o644, Resolve::empty())
    }

    fn content(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let file = self.open(path, libc::O_RDONLY)?;
        let mut buf = [0; 64];
        let len = file.ops().read(&file, &mut buf, 0)?;
        Ok(buf[..len].to_vec())
    }
}

#[test]
fn below_an_overlay_nothing_reaches_the_host() {
    let fixture = Fixture::new(false, Caching::Forever, small);
    let overlay = Overlay::new(fixture.root.clone(), TmpfsOptions::default()).expect("overlay");
    let tree = Tree::new(&overlay.file_system("host"));
    assert_eq!(tree.content("/dir/link").as_deref(), Ok(&b"content"[..]));
    assert_eq!(
        tree.content("/dir/../dir/below/../file").as_deref(),
        Ok(&b"content"[..])
    );
    let (messages, _) = fixture.messages(|| {
        for _ in 0..10 {
            assert!(tree.content("/dir/file").is_ok());
            assert_eq!(tree.content("/dir/nothing"), Err(Errno::ENOENT));
        }
    });
    assert_eq!(messages, 0);
    let reader = tree.open("/dir/file", libc::O_RDONLY).expect("open");
    let writer = tree.open("/dir/file", libc::O_RDWR).expect("open");
    assert_eq!(writer.ops().write(&writer, b"CON", 0), Ok((3, 3)));
    assert_eq!(tree.content("/dir/file").as_deref(), Ok(&b"CONtent"[..]));
    let mut buf = [0; 3];
    assert_eq!(reader.ops().read(&reader, &mut buf, 0), Ok(3));
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/dir/link").expect("unlink");
    assert_eq!(tree.content("/dir/link"), Err(Errno::ENOENT));
    assert!(tree.open("/dir/new", libc::O_CREAT | libc::O_WRONLY).is_ok());
    assert_eq!(fs::read(fixture.path().join("dir/file")).expect("read"), b"content");
    assert_eq!(fs::read_dir(fixture.path().join("dir")).expect("list").count(), 3);
}

#[test]
fn a_shared_tree_is_what_the_host_has() {
    let fixture = Fixture::new(true, Caching::Revalidate, small);
    let tree = Tree::new(&FileSystem::new(fixture.root.clone(), "gofer", "host", "rw"));
    let file = tree
        .open("/dir/new", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)
        .expect("create");
    assert_eq!(file.ops().write(&file, b"guest", 0), Ok((5, 5)));
    assert_eq!(fs::read(fixture.path().join("dir/new")).expect("read"), b"guest");
    assert!(tree.open("/dir/new", libc::O_TRUNC | libc::O_WRONLY).is_ok());
    assert_eq!(fs::metadata(fixture.path().join("dir/new")).expect("stat").len(), 0);
    let (messages, _) = fixture.messages(|| {
        for _ in 0..10 {
            let stat = tree
                .vfs
                .stat_at(&tree.caller(), At::Cwd, b"/dir/below", Lookup::empty());
            assert!(stat.is_ok());
        }
    });
    // The names, and then their watches.
    assert!(messages <= 4, "{messages}");
    tree.vfs
        .rename(&tree.caller(), At::Cwd, b"/dir", At::Cwd, b"/moved", 0)
        .expect("rename");
    assert_eq!(tree.content("/moved/file").as_deref(), Ok(&b"content"[..]));
    assert_eq!(tree.content("/dir/file"), Err(Errno::ENOENT));
    fs::write(fixture.path().join("moved/host"), b"host").expect("write");
    assert_eq!(tree.content("/moved/host").as_deref(), Ok(&b"host"[..]));
    fs::remove_file(fixture.path().join("moved/file")).expect("remove");
    assert_eq!(tree.content("/moved/file"), Err(Errno::ENOENT));
}
