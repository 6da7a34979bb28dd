//! Walks, mounts, names, limits: what the comparison with the host's file system does not reach.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::cred::Credentials;
use sentry_vfs::file::File;
use sentry_vfs::mount::{FileSystem, MountFlags};
use sentry_vfs::ops::{At, Caller, Lookup, Resolve, TaskIds, Vfs};
use sentry_vfs::overlay::Overlay;
use sentry_vfs::path::VfsPath;
use sentry_vfs::pseudo::{Link, PseudoFs};
use sentry_vfs::tmpfs::{Tmpfs, TmpfsOptions};

struct Tree {
    vfs: Arc<Vfs>,
    root: VfsPath,
    cwd: VfsPath,
    cred: Credentials,
}

fn tmpfs(size: Option<u64>) -> Arc<FileSystem> {
    Tmpfs::new(TmpfsOptions {
        size,
        mode: 0o755,
        ..TmpfsOptions::default()
    })
    .file_system("tmpfs")
}

impl Tree {
    fn new() -> Tree {
        Tree::of(&tmpfs(None))
    }

    fn of(fs: &Arc<FileSystem>) -> Tree {
        let (vfs, root) = Vfs::new(fs, MountFlags::empty());
        Tree {
            vfs,
            cwd: root.clone(),
            root,
            cred: Credentials::root(),
        }
    }

    fn caller(&self) -> Caller<'_> {
        let task = TaskIds { tgid: 7, tid: 8 };
        Caller {
            cred: &self.cred,
            root: &self.root,
            cwd: &self.cwd,
            umask: 0o022,
            task,
        }
    }

    fn mkdir(&self, path: &str) {
        self.vfs.mkdir(&self.caller(), At::Cwd, path.as_bytes(), 0o777).unwrap();
    }

    fn symlink(&self, target: &str, path: &str) {
        self.vfs
            .symlink(&self.caller(), target.as_bytes(), At::Cwd, path.as_bytes())
            .unwrap();
    }

    fn find(&self, path: &str) -> Result<VfsPath, Errno> {
        self.vfs
            .resolve(&self.caller(), At::Cwd, path.as_bytes(), Lookup::empty())
    }

    fn name(&self, path: &str) -> String {
        self.text(&self.find(path).unwrap())
    }

    fn text(&self, path: &VfsPath) -> String {
        String::from_utf8(self.vfs.d_path(&self.root, path).0).unwrap()
    }

    fn open(&self, path: &str, flags: i32) -> Result<Arc<File>, Errno> {
        self.vfs
            .open(&self.caller(), At::Cwd, path.as_bytes(), flags, 0o666, Resolve::empty())
    }

    fn within(&self, at: &str, path: &str, resolve: Resolve) -> Result<String, Errno> {
        let start = self.find(at)?;
        let found = self.vfs.resolve_within(
            &self.caller(),
            At::Path(&start),
            path.as_bytes(),
            Lookup::empty(),
            resolve,
        )?;
        Ok(self.text(&found))
    }

    fn write(&self, path: &str, data: &[u8]) -> Arc<File> {
        let file = self.open(path, libc::O_CREAT | libc::O_RDWR).unwrap();
        write(&file, data, 0).unwrap();
        file
    }

    fn read(&self, path: &str) -> Vec<u8> {
        read(&self.open(path, libc::O_RDONLY).unwrap())
    }

    fn mount(&self, fs: &Arc<FileSystem>, at: &str, flags: MountFlags) -> VfsPath {
        self.vfs
            .mount(&self.caller(), fs, &self.find(at).unwrap(), flags)
            .unwrap()
    }
}

fn write(file: &File, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        done += file.ops().write(file, &data[done..], offset + done as u64)?.0;
    }
    Ok(())
}

fn read(file: &File) -> Vec<u8> {
    let mut buf = vec![0; file.attributes().unwrap().size as usize];
    let count = file.ops().read(file, &mut buf, 0).unwrap();
    buf.truncate(count);
    buf
}

#[test]
fn dot_dot_stays_at_the_root_and_leaves_mounts() {
    let mut tree = Tree::new();
    tree.mkdir("/a");
    tree.mkdir("/a/b");
    let mounted = tree.mount(&tmpfs(None), "/a/b", MountFlags::empty());
    tree.mkdir("/a/b/c");
    assert_eq!(tree.name("/a/b/c/../../b/c/.."), "/a/b");
    assert_eq!(tree.name("/../../a/.."), "/");
    assert!(tree.find("/a/b").unwrap().same(&mounted));
    // In a changed root, `..` stops there, unless the walk began outside.
    let outside = tree.find("/a").unwrap();
    tree.root = tree.find("/a/b").unwrap();
    assert_eq!(tree.name("/c/../../../c"), "/c");
    tree.cwd = outside;
    assert!(tree.find("../a").unwrap().same(&tree.cwd));
    assert!(tree.find("../a/b/..").unwrap().same(&tree.root));
    assert!(!tree.vfs.d_path(&tree.root, &tree.cwd).1);
    assert!(tree.vfs.getcwd(&tree.caller()).unwrap().starts_with(b"(unreachable)/"));
}

#[test]
fn links_are_counted() {
    let tree = Tree::new();
    tree.write("/end", b"x");
    let mut last = "/end".to_owned();
    for number in 0..41 {
        let next = format!("/l{number}");
        tree.symlink(&last, &next);
        last = next;
    }
    assert_eq!(tree.name("/l39"), "/end");
    assert_eq!(tree.find("/l40").unwrap_err(), Errno::ELOOP);
    tree.symlink("loop", "/loop");
    assert_eq!(tree.find("/loop").unwrap_err(), Errno::ELOOP);
    assert_eq!(
        tree.open("/loop", libc::O_CREAT | libc::O_WRONLY).unwrap_err(),
        Errno::ELOOP
    );
    assert_eq!(tree.open("/l0", libc::O_NOFOLLOW).unwrap_err(), Errno::ELOOP);
    assert_eq!(
        tree.open("/l0", libc::O_NOFOLLOW | libc::O_DIRECTORY).unwrap_err(),
        Errno::ENOTDIR
    );
    assert!(tree.open("/l0", libc::O_NOFOLLOW | libc::O_PATH).is_ok());
    // Creation goes through a dangling link.
    tree.symlink("made", "/dangling");
    tree.write("/dangling", b"here");
    assert_eq!(tree.read("/made"), b"here");
}

#[test]
fn openat2_restrictions() {
    let tree = Tree::new();
    for path in ["/r", "/r/d", "/r/d/e", "/m", "/d"] {
        tree.mkdir(path);
    }
    tree.symlink("/d", "/r/abs");
    tree.symlink("../..", "/r/d/up");
    tree.symlink("d/e", "/r/in");
    tree.mount(&tmpfs(None), "/r/d/e", MountFlags::empty());
    let beneath = |path: &str| tree.within("/r", path, Resolve::BENEATH);
    assert_eq!(beneath("d/.."), Ok("/r".to_owned()));
    assert_eq!(beneath("in"), Ok("/r/d/e".to_owned()));
    assert_eq!(beneath(".."), Err(Errno::EXDEV));
    assert_eq!(beneath("/r"), Err(Errno::EXDEV));
    assert_eq!(beneath("abs"), Err(Errno::EXDEV));
    assert_eq!(beneath("d/up"), Err(Errno::EXDEV));
    let in_root = |path: &str| tree.within("/r", path, Resolve::IN_ROOT);
    assert_eq!(in_root("/d/../../.."), Ok("/r".to_owned()));
    assert_eq!(in_root("abs"), Ok("/r/d".to_owned()));
    assert_eq!(in_root("d/up"), Ok("/r".to_owned()));
    assert_eq!(tree.within("/r", "in", Resolve::NO_SYMLINKS), Err(Errno::ELOOP));
    assert_eq!(tree.within("/r", "d/e", Resolve::NO_XDEV), Err(Errno::EXDEV));
    assert_eq!(tree.within("/r/d/e", "..", Resolve::NO_XDEV), Err(Errno::EXDEV));
    assert_eq!(tree.within("/r", "d", Resolve::NO_XDEV), Ok("/r/d".to_owned()));
}

#[test]
fn magic_links_lead_to_places() {
    struct Magic(VfsPath);
    impl Link for Magic {
        fn target(&self, task: TaskIds) -> Result<Vec<u8>, Errno> {
            Ok(format!("of {}", task.tid).into_bytes())
        }
        fn follow(&self) -> Option<Result<VfsPath, Errno>> {
            Some(Ok(self.0.clone()))
        }
    }
    let tree = Tree::new();
    tree.mkdir("/d");
    tree.mkdir("/p");
    let file = tree.write("/d/f", b"content");
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/d/f").unwrap();
    let pseudo = PseudoFs::new(0x9fa0);
    let root = pseudo.directory(0o555);
    root.add("file", pseudo.link_at(None, Magic(file.path().clone())));
    root.add("dir", pseudo.link_at(None, Magic(tree.find("/d").unwrap())));
    root.add("pipe", pseudo.link_at(None, Magic(VfsPath::anonymous("pipe:[1]"))));
    tree.mount(&FileSystem::new(root, "proc", "proc", ""), "/p", MountFlags::empty());
    assert_eq!(tree.read("/p/file"), b"content");
    assert_eq!(tree.name("/p/file"), "/d/f (deleted)");
    assert_eq!(tree.name("/p/dir/.."), "/");
    assert_eq!(tree.name("/p/pipe"), "pipe:[1]");
    assert_eq!(tree.find("/p/file/x").unwrap_err(), Errno::ENOTDIR);
    assert_eq!(tree.find("/p/pipe/").unwrap_err(), Errno::ENOTDIR);
    assert_eq!(tree.within("/", "p/file", Resolve::NO_MAGICLINKS), Err(Errno::ELOOP));
    let link = tree
        .vfs
        .resolve(&tree.caller(), At::Cwd, b"/p/file", Lookup::NO_FOLLOW)
        .unwrap();
    assert_eq!(tree.vfs.readlink(&tree.caller(), &link).unwrap(), b"of 8");
}

#[test]
fn names_of_removed_and_renamed_files() {
    let tree = Tree::new();
    tree.mkdir("/a");
    tree.mkdir("/a/b");
    let file = tree.write("/a/b/f", b"x");
    let caller = tree.caller();
    tree.vfs.rename(&caller, At::Cwd, b"/a", At::Cwd, b"/z", 0).unwrap();
    assert_eq!(tree.text(file.path()), "/z/b/f");
    tree.write("/new", b"y");
    tree.vfs
        .rename(&caller, At::Cwd, b"/new", At::Cwd, b"/z/b/f", 0)
        .unwrap();
    assert_eq!(tree.text(file.path()), "/z/b/f (deleted)");
    assert_eq!(file.attributes().unwrap().nlink, 0);
    assert_eq!(tree.read("/z/b/f"), b"y");
    // A removed directory can be held, and nothing is made in it.
    let dir = tree.find("/z/b").unwrap();
    tree.vfs.unlink(&caller, At::Cwd, b"/z/b/f").unwrap();
    tree.vfs.rmdir(&caller, At::Cwd, b"/z/b").unwrap();
    assert_eq!(
        tree.vfs.mkdir(&caller, At::Path(&dir), b"x", 0o777).unwrap_err(),
        Errno::ENOENT
    );
    assert_eq!(
        tree.vfs.getcwd(&Caller { cwd: &dir, ..caller }).unwrap_err(),
        Errno::ENOENT
    );
    assert!(
        tree.vfs
            .resolve(&caller, At::Path(&dir), b"..", Lookup::empty())
            .is_ok()
    );
}

#[test]
fn mounts_hide_bind_move_and_go() {
    let tree = Tree::new();
    for path in ["/a", "/b", "/c"] {
        tree.mkdir(path);
    }
    tree.write("/a/under", b"");
    let caller = tree.caller();
    tree.mount(&tmpfs(Some(1 << 20)), "/a", MountFlags::NO_EXEC | MountFlags::NO_SUID);
    assert_eq!(tree.find("/a/under").unwrap_err(), Errno::ENOENT);
    tree.mkdir("/a/sub");
    tree.mount(&tmpfs(None), "/a/sub", MountFlags::empty());
    tree.write("/a/sub/deep", b"deep");
    tree.write("/a/f", b"f");
    tree.vfs
        .bind(&caller, &tree.find("/a").unwrap(), &tree.find("/b").unwrap(), false)
        .unwrap();
    assert!(tree.find("/b/f").is_ok());
    assert_eq!(tree.find("/b/sub/deep").unwrap_err(), Errno::ENOENT);
    tree.vfs
        .bind(&caller, &tree.find("/a").unwrap(), &tree.find("/c").unwrap(), true)
        .unwrap();
    assert_eq!(tree.read("/c/sub/deep"), b"deep");
    // A file on a file, and not on a directory.
    let source = tree.find("/a/f").unwrap();
    assert_eq!(
        tree.vfs
            .bind(&caller, &source, &tree.find("/c").unwrap(), false)
            .unwrap_err(),
        Errno::ENOTDIR
    );
    // Read-only is a matter of the mount.
    tree.vfs
        .remount(&caller, &tree.find("/b").unwrap(), MountFlags::READ_ONLY, None)
        .unwrap();
    assert_eq!(
        tree.open("/b/new", libc::O_CREAT | libc::O_WRONLY).unwrap_err(),
        Errno::EROFS
    );
    assert_eq!(tree.open("/b/f", libc::O_RDWR).unwrap_err(), Errno::EROFS);
    assert!(tree.open("/a/f", libc::O_RDWR).is_ok());
    // Across mounts of one file system, names do not move.
    assert_eq!(
        tree.vfs
            .rename(&caller, At::Cwd, b"/a/f", At::Cwd, b"/c/g", 0)
            .unwrap_err(),
        Errno::EXDEV
    );
    let lines: Vec<String> = tree
        .vfs
        .mounts(&tree.root)
        .iter()
        .map(|mount| String::from_utf8(mount.mounts_line()).unwrap())
        .collect();
    assert_eq!(lines[1], "tmpfs /a tmpfs rw,nosuid,noexec,size=1024k,mode=755 0 0\n");
    assert_eq!(lines[2], "tmpfs /a/sub tmpfs rw,mode=755 0 0\n");
    assert_eq!(lines.len(), 6);
    // Busy: a mount on it, an open file.
    let umount = |path: &str, flags| {
        let target = tree.find(path).unwrap();
        tree.vfs.umount(&caller, &target, flags)
    };
    assert_eq!(umount("/a", 0), Err(Errno::EBUSY));
    let open = tree.open("/b/f", libc::O_RDONLY).unwrap();
    assert_eq!(umount("/b", 0), Err(Errno::EBUSY));
    assert_eq!(umount("/", 0), Err(Errno::EINVAL));
    assert_eq!(umount("/a/f", 0), Err(Errno::EINVAL));
    drop(open);
    assert_eq!(umount("/b", 0), Ok(()));
    assert_eq!(tree.vfs.rmdir(&caller, At::Cwd, b"/c").unwrap_err(), Errno::EBUSY);
    tree.vfs
        .move_mount(&caller, &tree.find("/c").unwrap(), &tree.find("/b").unwrap())
        .unwrap();
    assert_eq!(tree.read("/b/sub/deep"), b"deep");
    let into_itself = tree.find("/b/sub").unwrap();
    assert_eq!(
        tree.vfs
            .move_mount(&caller, &tree.find("/b").unwrap(), &into_itself)
            .unwrap_err(),
        Errno::ELOOP
    );
    drop(into_itself);
    let held = tree.open("/a/sub/deep", libc::O_RDONLY).unwrap();
    assert_eq!(umount("/a", libc::MNT_DETACH), Ok(()));
    assert!(tree.find("/a/under").is_ok());
    assert_eq!(read(&held), b"deep");
    tree.vfs.rmdir(&caller, At::Cwd, b"/c").unwrap();
}

#[test]
fn a_new_root_takes_the_place_of_the_old() {
    let mut tree = Tree::new();
    tree.mkdir("/new");
    tree.write("/old-file", b"old");
    let new = tree.mount(&tmpfs(None), "/new", MountFlags::empty());
    tree.mkdir("/new/old");
    let put_old = tree.find("/new/old").unwrap();
    tree.vfs.pivot_root(&tree.caller(), &new, &put_old).unwrap();
    tree.root = new.clone();
    tree.cwd = new;
    assert_eq!(tree.read("/old/old-file"), b"old");
    let old = tree.find("/old").unwrap();
    assert_eq!(tree.vfs.umount(&tree.caller(), &old, libc::MNT_DETACH), Ok(()));
    drop(old);
    assert_eq!(tree.vfs.mounts(&tree.root).len(), 1);
    assert_eq!(tree.name("/old/.."), "/");
}

#[test]
fn namespaces_part() {
    let tree = Tree::new();
    tree.mkdir("/a");
    tree.mount(&tmpfs(None), "/a", MountFlags::empty());
    tree.mkdir("/a/b");
    let (mut root, mut cwd) = (tree.root.clone(), tree.find("/a/b").unwrap());
    let namespace = tree.root.mount().unwrap().namespace();
    tree.vfs.copy_mounts(namespace, &mut [&mut root, &mut cwd]).unwrap();
    let other = Tree {
        vfs: tree.vfs.clone(),
        cwd: cwd.clone(),
        root,
        cred: Credentials::root(),
    };
    assert!(!other.root.same(&tree.root));
    assert_eq!(other.text(&cwd), "/a/b");
    other.mount(&tmpfs(None), "/a/b", MountFlags::empty());
    other.write("/a/b/only-here", b"");
    assert_eq!(tree.find("/a/b/only-here").unwrap_err(), Errno::ENOENT);
    assert_eq!(other.vfs.mounts(&other.root).len(), 3);
    assert_eq!(tree.vfs.mounts(&tree.root).len(), 2);
    other.vfs.end_namespace(other.root.mount().unwrap().namespace());
    assert_eq!(tree.vfs.mounts(&tree.root).len(), 2);
}

#[test]
fn files_without_a_name() {
    let tree = Tree::new();
    tree.mkdir("/d");
    let file = tree.open("/d", libc::O_TMPFILE | libc::O_RDWR).unwrap();
    write(&file, b"hidden", 0).unwrap();
    assert_eq!(file.attributes().unwrap().nlink, 0);
    assert!(tree.text(file.path()).starts_with("/d/#"));
    tree.vfs.link(&tree.caller(), file.path(), At::Cwd, b"/d/seen").unwrap();
    assert_eq!(tree.read("/d/seen"), b"hidden");
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/d/seen").unwrap();
    // Once it had a name and lost it, it gets none again.
    assert_eq!(
        tree.vfs
            .link(&tree.caller(), file.path(), At::Cwd, b"/d/again")
            .unwrap_err(),
        Errno::ENOENT
    );
    assert_eq!(tree.open("/d", libc::O_TMPFILE).unwrap_err(), Errno::EINVAL);
    let memfd = tree.vfs.memfd(&tree.caller(), b"name").unwrap();
    write(&memfd, &[7; 100], 0).unwrap();
    assert_eq!(tree.text(memfd.path()), "/memfd:name (deleted)");
    memfd.ops().add_seals(libc::F_SEAL_GROW as u32).unwrap();
    assert_eq!(memfd.ops().write(&memfd, b"x", 100).unwrap_err(), Errno::EPERM);
    assert_eq!(memfd.ops().write(&memfd, b"xy", 99).unwrap().0, 1);
}

#[test]
fn limits_of_size_and_number() {
    let options = TmpfsOptions {
        size: Some(64 * 4096),
        inodes: Some(4),
        mode: 0o755,
        ..TmpfsOptions::default()
    };
    let tree = Tree::of(&Tmpfs::new(options).file_system("t"));
    // Small steps, one large write, beyond the inline size: always 64 pages.
    for step in [1000, 300_000, 70_000] {
        let file = tree.open("/f", libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC).unwrap();
        let mut at = 0;
        let errno = loop {
            match file.ops().write(&file, &vec![1; step], at) {
                Ok((_, end)) => at = end,
                Err(errno) => break errno,
            }
        };
        assert_eq!((errno, at), (Errno::ENOSPC, 64 * 4096));
        let (statistics, _) = tree.vfs.statfs(file.path()).unwrap();
        assert_eq!((statistics.blocks, statistics.blocks_free), (64, 0));
        // What is there can be overwritten; a hole cannot be filled.
        write(&file, &[2; 4096], 8192).unwrap();
        tree.vfs.truncate_file(&tree.caller(), &file, 1 << 40).unwrap();
        assert_eq!(file.ops().write(&file, b"x", 1 << 30).unwrap_err(), Errno::ENOSPC);
        file.ops()
            .fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 8192)
            .unwrap();
        write(&file, b"x", 1 << 30).unwrap();
        assert_eq!(file.ops().fallocate(0, 1 << 20, 8192).unwrap_err(), Errno::ENOSPC);
    }
    tree.write("/g", b"");
    tree.write("/h", b"");
    assert_eq!(tree.open("/i", libc::O_CREAT).unwrap_err(), Errno::ENOSPC);
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/g").unwrap();
    tree.write("/i", b"");
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/f").unwrap();
    let (statistics, _) = tree.vfs.statfs(&tree.root).unwrap();
    assert_eq!((statistics.blocks_free, statistics.files_free), (64, 1));
    // What is kept beside the content counts too.
    let path = tree.find("/i").unwrap();
    tree.vfs
        .set_xattr(&tree.caller(), &path, b"user.large", &[0; 60_000], 0)
        .unwrap();
    assert_eq!(tree.vfs.statfs(&path).unwrap().0.blocks_free, 64 - 15);
    tree.vfs.remove_xattr(&tree.caller(), &path, b"user.large").unwrap();
    tree.symlink(&"x".repeat(200), "/l");
    assert_eq!(tree.vfs.statfs(&path).unwrap().0.blocks_free, 63);
    tree.vfs.unlink(&tree.caller(), At::Cwd, b"/l").unwrap();
    assert_eq!(tree.vfs.statfs(&path).unwrap().0.blocks_free, 64);
}

#[test]
fn holes() {
    let tree = Tree::new();
    let file = tree.write("/f", b"start");
    write(&file, b"end", 1 << 20).unwrap();
    let seek = |offset, data| file.ops().seek_extent(&file, offset, data);
    assert_eq!(seek(0, true), Ok(0));
    assert_eq!(seek(0, false), Ok(4096));
    assert_eq!(seek(4096, true), Ok(1 << 20));
    assert_eq!(seek(1 << 20, false), Ok((1 << 20) + 3));
    assert_eq!(seek((1 << 20) + 3, true), Err(Errno::ENXIO));
    assert_eq!(file.attributes().unwrap().blocks, 16);
    file.ops().fallocate(libc::FALLOC_FL_KEEP_SIZE, 0, 65536).unwrap();
    assert_eq!(file.attributes().unwrap().size, (1 << 20) + 3);
    assert_eq!(file.attributes().unwrap().blocks, 8 * 17);
    // Reserved is not written.
    assert_eq!(seek(4096, true), Ok(1 << 20));
    write(&file, b"now", 8192).unwrap();
    assert_eq!((seek(4096, true), seek(8192, false)), (Ok(8192), Ok(12288)));
    assert_eq!(file.attributes().unwrap().blocks, 8 * 17);
    file.ops()
        .fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 2, 1 << 20)
        .unwrap();
    let mut buf = [9; 6];
    file.ops().read(&file, &mut buf, 0).unwrap();
    assert_eq!(&buf, b"st\0\0\0\0");
}

/// More mapped files than there may be memory files: those that nothing uses give theirs up.
#[test]
fn ten_thousand_files_with_few_descriptors() {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 1024, hard).unwrap();
    let tree = Tree::new();
    tree.mkdir("/d");
    let data: Vec<u8> = (0..20_000u32).map(|at| (at / 7) as u8).collect();
    for number in 0..10_000 {
        let file = tree.write(&format!("/d/{number}"), &data[number..number + 5000]);
        if number % 3 == 0 {
            let fd = file.ops().mmap_file(&file, true, true).unwrap();
            sentry_host::memory_file::write_at(std::os::fd::AsFd::as_fd(&fd), b"mapped", 4000).unwrap();
        }
        if number % 5 == 0 {
            file.ops().mmap_file(&file, false, false).unwrap();
        }
    }
    for number in 0..10_000 {
        let mut expected = data[number..number + 5000].to_vec();
        if number % 3 == 0 {
            expected[4000..4006].copy_from_slice(b"mapped");
        }
        assert!(tree.read(&format!("/d/{number}")) == expected);
    }
}

/// A descriptor handed out for a mapping gives no right that the guest could not have.
#[test]
fn mappings_give_no_more_than_the_rights() {
    use std::os::fd::AsFd;
    let mut tree = Tree::new();
    let owned = tree.write("/f", b"content");
    tree.cred = Credentials::new(1000, 1000, &[]);
    let other = tree.open("/f", libc::O_RDONLY).unwrap();
    assert_eq!(other.ops().mmap_file(&other, true, true).unwrap_err(), Errno::EACCES);
    let fd = other.ops().mmap_file(&other, false, false).unwrap();
    let mut buf = [0; 7];
    assert_eq!(sentry_host::memory_file::read_at(fd.as_fd(), &mut buf, 0).unwrap(), 7);
    assert_eq!(&buf, b"content");
    assert_eq!(
        sentry_host::memory_file::write_at(fd.as_fd(), b"X", 0),
        Err(Errno::EBADF)
    );
    let reader = owned.ops().mmap_file(&owned, false, false).unwrap();
    assert_eq!(
        sentry_host::memory_file::write_at(reader.as_fd(), b"X", 0),
        Err(Errno::EBADF)
    );
    // The owner's mapping is the file.
    let fd = owned.ops().mmap_file(&owned, true, true).unwrap();
    sentry_host::memory_file::write_at(fd.as_fd(), b"X", 0).unwrap();
    assert_eq!(tree.read("/f"), b"Xontent");
    write(&owned, b"Y", 1).unwrap();
    for fd in [fd, reader] {
        sentry_host::memory_file::read_at(fd.as_fd(), &mut buf, 0).unwrap();
        assert_eq!(&buf, b"XYntent");
    }
}

#[test]
fn the_cache_stays_bounded() {
    let tree = Tree::new();
    tree.mkdir("/d");
    let held = tree.write("/d/held", b"held");
    for number in 0..200_000 {
        assert!(tree.find(&format!("/d/none-{number}")).is_err());
    }
    assert!(tree.vfs.cached_names() < 70_000);
    tree.vfs.shrink(0);
    assert_eq!(tree.text(held.path()), "/d/held");
    assert!(tree.find("/d/held").unwrap().same(held.path()));
}

#[test]
fn deep_trees_go_without_recursion() {
    let overlay = Overlay::new(
        Tmpfs::new(TmpfsOptions::default()).root().clone(),
        TmpfsOptions::default(),
    )
    .unwrap();
    for fs in [tmpfs(None), overlay.file_system("o")] {
        let mut tree = Tree::of(&fs);
        for _ in 0..100_000 {
            tree.mkdir("d");
            tree.cwd = tree.find("d").unwrap();
        }
        tree.cwd = tree.root.clone();
        tree.vfs.shrink(0);
        drop(tree);
    }
}

#[test]
fn attributes_beside_the_usual_ones() {
    let mut tree = Tree::new();
    tree.write("/f", b"");
    tree.symlink("f", "/l");
    let path = tree.find("/f").unwrap();
    let link = tree
        .vfs
        .resolve(&tree.caller(), At::Cwd, b"/l", Lookup::NO_FOLLOW)
        .unwrap();
    let set = |tree: &Tree, path: &VfsPath, name: &str, flags| {
        tree.vfs
            .set_xattr(&tree.caller(), path, name.as_bytes(), b"value", flags)
    };
    assert_eq!(set(&tree, &path, "user.a", 2), Err(Errno::ENODATA));
    assert_eq!(set(&tree, &path, "user.a", 1), Ok(()));
    assert_eq!(set(&tree, &path, "user.a", 1), Err(Errno::EEXIST));
    assert_eq!(set(&tree, &path, "trusted.t", 0), Ok(()));
    assert_eq!(set(&tree, &path, "nonsense", 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&tree, &path, "user.", 0), Err(Errno::EINVAL));
    assert_eq!(set(&tree, &link, "user.a", 0), Err(Errno::EPERM));
    assert_eq!(
        tree.vfs.list_xattr(&tree.caller(), &path).unwrap(),
        b"trusted.t\0user.a\0"
    );
    tree.cred = Credentials::new(1000, 1000, &[]);
    assert_eq!(tree.vfs.list_xattr(&tree.caller(), &path).unwrap(), b"user.a\0");
    assert_eq!(set(&tree, &path, "user.b", 0), Err(Errno::EACCES));
    assert_eq!(set(&tree, &path, "trusted.b", 0), Err(Errno::EPERM));
    assert_eq!(tree.vfs.get_xattr(&tree.caller(), &path, b"user.a").unwrap(), b"value");
    assert_eq!(
        tree.vfs.get_xattr(&tree.caller(), &path, b"trusted.t").unwrap_err(),
        Errno::ENODATA
    );
}

#[test]
fn copy_up_keeps_open_files_and_numbers() {
    let lower = Tmpfs::new(TmpfsOptions {
        mode: 0o755,
        ..TmpfsOptions::default()
    });
    let below = Tree::of(&lower.file_system("t"));
    below.mkdir("/d");
    below.write("/d/f", &[1; 200_000]);
    below
        .vfs
        .link(&below.caller(), &below.find("/d/f").unwrap(), At::Cwd, b"/d/g")
        .unwrap();
    let overlay = Overlay::new(lower.root().clone(), TmpfsOptions::default()).unwrap();
    let tree = Tree::of(&overlay.file_system("o"));
    let reader = tree.open("/d/f", libc::O_RDONLY).unwrap();
    let before = reader.attributes().unwrap();
    let writer = tree.open("/d/f", libc::O_WRONLY).unwrap();
    write(&writer, b"new", 199_999).unwrap();
    let after = tree.find("/d/f").unwrap();
    let after = tree.vfs.stat(&after).unwrap();
    assert_eq!(
        (before.dev, before.ino, before.nlink),
        (after.dev, after.ino, after.nlink)
    );
    assert_eq!(after.size, 200_002);
    let mut buf = [0; 8];
    assert_eq!(reader.ops().read(&reader, &mut buf, 199_998).unwrap(), 4);
    assert_eq!(&buf[..4], b"\x01new");
    // Both names are still one file; below nothing changed.
    drop((reader, writer));
    tree.vfs.shrink(0);
    assert_eq!(tree.read("/d/g").len(), 200_002);
    assert_eq!(below.read("/d/f"), [1; 200_000]);
    // A directory from below moves, with all that is in it.
    tree.vfs
        .rename(&tree.caller(), At::Cwd, b"/d", At::Cwd, b"/e", 0)
        .unwrap();
    tree.vfs.shrink(0);
    assert_eq!(tree.read("/e/f").len(), 200_002);
    assert_eq!(tree.find("/d").unwrap_err(), Errno::ENOENT);
    assert_eq!(
        tree.vfs.rmdir(&tree.caller(), At::Cwd, b"/e").unwrap_err(),
        Errno::ENOTEMPTY
    );
    tree.mkdir("/d");
    tree.vfs.shrink(0);
    assert_eq!(tree.find("/d/f").unwrap_err(), Errno::ENOENT);
}

#[test]
fn devices() {
    let tree = Tree::new();
    tree.mkdir("/dev");
    tree.mount(&sentry_vfs::devtmpfs::file_system(), "/dev", MountFlags::empty());
    let mut buf = [1; 16];
    let zero = tree.open("/dev/zero", libc::O_RDWR).unwrap();
    assert_eq!(zero.ops().read(&zero, &mut buf, 0).unwrap(), 16);
    assert_eq!(buf, [0; 16]);
    let null = tree.open("/dev/null", libc::O_RDWR).unwrap();
    assert_eq!(null.ops().read(&null, &mut buf, 0).unwrap(), 0);
    let full = tree.open("/dev/full", libc::O_RDWR).unwrap();
    assert_eq!(full.ops().write(&full, b"x", 0).unwrap_err(), Errno::ENOSPC);
    let random = tree.open("/dev/urandom", libc::O_RDONLY).unwrap();
    assert_eq!(random.ops().read(&random, &mut buf, 0).unwrap(), 16);
    assert_ne!(buf, [0; 16]);
    // No driver; and no devices at all on a `nodev` mount.
    assert_eq!(tree.open("/dev/tty", libc::O_RDWR).unwrap_err(), Errno::ENXIO);
    tree.vfs
        .remount(&tree.caller(), &tree.find("/dev").unwrap(), MountFlags::NO_DEV, None)
        .unwrap();
    assert_eq!(tree.open("/dev/null", libc::O_RDWR).unwrap_err(), Errno::EACCES);
}
