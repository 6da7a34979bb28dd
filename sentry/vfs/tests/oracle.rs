//! Random operations on our file systems and on the host's: Linux says what is right.
//!
//! As root, operations also run as other users (file-system ids are per thread), so that permission checks are
//! compared too.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{Gid, Uid};
use proptest::prelude::*;
use sentry_abi::Errno;
use sentry_vfs::cred::{Cap, CapSet, Credentials};
use sentry_vfs::device::FifoOpener;
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::SetAttributes;
use sentry_vfs::mount::MountFlags;
use sentry_vfs::ops::{Access, At, Caller, Lookup, Resolve, TaskIds, Vfs};
use sentry_vfs::overlay::Overlay;
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::{Tmpfs, TmpfsOptions};

const UMASK: u32 = 0o022;

#[derive(Clone, Debug)]
enum Op {
    Open {
        path: String,
        flags: i32,
        mode: u32,
        data: usize,
        offset: u64,
    },
    Mkdir(String, u32),
    Mknod(String, u32),
    Symlink(String, String),
    Link(String, String, bool),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    Truncate(String, u64),
    Stat(String, bool),
    Access(String, u32),
    Readlink(String),
    List(String),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "d"])
}

/// Relative paths that never leave the start.
fn path() -> impl Strategy<Value = String> {
    let tail = prop::sample::select(vec!["", "", "", "", "", "/", "/.", "/..", "/./", "/../a", "/../b/"]);
    let parts = prop::collection::vec(name(), 1..4);
    prop_oneof![
        20 => (parts, tail).prop_map(|(parts, tail)| parts.join("/") + tail),
        1 => Just(String::new()),
        1 => Just(".".to_owned()),
        1 => Just("./a".to_owned()),
        1 => Just("x".repeat(256)),
    ]
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        10 => prop::collection::vec(name(), 1..3).prop_map(|parts| parts.join("/")),
        1 => Just("a/".to_owned()),
        1 => Just("nothing".to_owned()),
    ]
}

fn open_flags() -> impl Strategy<Value = i32> {
    let access = prop::sample::select(vec![libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR]);
    let more = prop::collection::vec(
        prop::sample::select(vec![
            libc::O_CREAT,
            libc::O_CREAT,
            libc::O_EXCL,
            libc::O_TRUNC,
            libc::O_APPEND,
            libc::O_NOFOLLOW,
            libc::O_DIRECTORY,
            libc::O_PATH,
        ]),
        0..3,
    );
    (access, more).prop_map(|(access, more)| more.into_iter().fold(access, |flags, flag| flags | flag))
}

fn mode() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![
        0o755, 0o644, 0o777, 0o1777, 0o700, 0o2775, 0o4755, 0o6755, 0o000, 0o070, 0o111,
    ])
}

fn op() -> impl Strategy<Value = Op> {
    let id = || prop::option::of(prop::sample::select(vec![0u32, 1000, 1001]));
    let size = prop::sample::select(vec![0usize, 0, 5, 4096, 70_000, 1_100_000]);
    let offset = prop::sample::select(vec![0u64, 0, 3, 5000, 65_536, 300_000]);
    prop_oneof![
        8 => (path(), open_flags(), mode(), size, offset)
            .prop_map(|(path, flags, mode, data, offset)| Op::Open { path, flags, mode, data, offset }),
        6 => (path(), mode()).prop_map(|(path, mode)| Op::Mkdir(path, mode)),
        1 => (path(), mode()).prop_map(|(path, mode)| Op::Mknod(path, mode)),
        3 => (target(), path()).prop_map(|(target, path)| Op::Symlink(target, path)),
        3 => (path(), path(), any::<bool>()).prop_map(|(old, new, follow)| Op::Link(old, new, follow)),
        3 => path().prop_map(Op::Unlink),
        3 => path().prop_map(Op::Rmdir),
        6 => (path(), path(), prop::sample::select(vec![0, 0, 0, 1, 2, 3])).prop_map(|(old, new, flags)| Op::Rename(old, new, flags)),
        3 => (path(), mode()).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        2 => (path(), id(), id()).prop_map(|(path, uid, gid)| Op::Chown(path, uid, gid)),
        2 => (path(), prop::sample::select(vec![0u64, 1, 4097, 65_537, 200_000])).prop_map(|(path, size)| Op::Truncate(path, size)),
        3 => (path(), any::<bool>()).prop_map(|(path, follow)| Op::Stat(path, follow)),
        2 => (path(), 0u32..8).prop_map(|(path, access)| Op::Access(path, access)),
        1 => path().prop_map(Op::Readlink),
        1 => path().prop_map(Op::List),
    ]
}

/// What an operation says, apart from its error.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Stat(Row),
    Text(Vec<u8>),
    Names(Vec<Vec<u8>>),
}

type Said = Result<Answer, i32>;

/// What can be compared of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    mode: u32,
    nlink: Option<u64>,
    uid: u32,
    gid: u32,
    size: Option<u64>,
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8 | 1)
        .collect()
}

// --- the host

struct Host {
    base: PathBuf,
}

impl Host {
    fn path(&self, path: &str) -> PathBuf {
        // `join` drops trailing slashes and dots only in its iterators, not in the text.
        if path.is_empty() {
            PathBuf::new()
        } else {
            self.base.join(path)
        }
    }

    fn run(&self, op: &Op) -> Said {
        self.try_run(op).map_err(|errno| errno as i32)
    }

    fn try_run(&self, op: &Op) -> nix::Result<Answer> {
        let cwd = nix::fcntl::AT_FDCWD;
        match op {
            Op::Open {
                path,
                flags,
                mode,
                data,
                offset,
            } => {
                let flags = OFlag::from_bits_retain(*flags | libc::O_CLOEXEC | libc::O_NONBLOCK);
                let fd = openat(cwd, &self.path(path), flags, Mode::from_bits_truncate(*mode))?;
                let writes = flags.bits() & libc::O_ACCMODE != libc::O_RDONLY && flags.bits() & libc::O_PATH == 0;
                if writes && *data > 0 && nix::sys::stat::fstat(&fd)?.st_mode & libc::S_IFMT == libc::S_IFREG {
                    nix::sys::uio::pwrite(&fd, &pattern(*data, *offset), *offset as i64)?;
                }
            }
            Op::Mkdir(path, mode) => nix::sys::stat::mkdirat(cwd, &self.path(path), Mode::from_bits_truncate(*mode))?,
            Op::Mknod(path, mode) => {
                nix::sys::stat::mknod(&self.path(path), SFlag::S_IFIFO, Mode::from_bits_truncate(*mode), 0)?;
            }
            Op::Symlink(target, path) => nix::unistd::symlinkat(target.as_str(), cwd, &self.path(path))?,
            Op::Link(old, new, follow) => {
                let flags = if *follow {
                    AtFlags::AT_SYMLINK_FOLLOW
                } else {
                    AtFlags::empty()
                };
                nix::unistd::linkat(cwd, &self.path(old), cwd, &self.path(new), flags)?;
            }
            Op::Unlink(path) => nix::unistd::unlink(&self.path(path))?,
            Op::Rmdir(path) => nix::unistd::unlinkat(cwd, &self.path(path), nix::unistd::UnlinkatFlags::RemoveDir)?,
            Op::Rename(old, new, flags) => {
                nix::fcntl::renameat2(
                    cwd,
                    &self.path(old),
                    cwd,
                    &self.path(new),
                    RenameFlags::from_bits_retain(*flags),
                )?;
            }
            Op::Chmod(path, mode) => {
                let mode = Mode::from_bits_truncate(*mode);
                nix::sys::stat::fchmodat(
                    cwd,
                    &self.path(path),
                    mode,
                    nix::sys::stat::FchmodatFlags::FollowSymlink,
                )?;
            }
            Op::Chown(path, uid, gid) => {
                nix::unistd::fchownat(
                    cwd,
                    &self.path(path),
                    uid.map(Uid::from_raw),
                    gid.map(Gid::from_raw),
                    AtFlags::empty(),
                )?;
            }
            Op::Truncate(path, size) => nix::unistd::truncate(&self.path(path), *size as i64)?,
            Op::Stat(path, follow) => {
                let flags = if *follow {
                    AtFlags::empty()
                } else {
                    AtFlags::AT_SYMLINK_NOFOLLOW
                };
                let stat = nix::sys::stat::fstatat(cwd, &self.path(path), flags)?;
                let stored = matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK);
                return Ok(Answer::Stat(Row {
                    mode: stat.st_mode,
                    nlink: Some(stat.st_nlink),
                    uid: stat.st_uid,
                    gid: stat.st_gid,
                    size: stored.then_some(stat.st_size as u64),
                }));
            }
            Op::Access(path, access) => {
                let access = nix::unistd::AccessFlags::from_bits_truncate(*access as i32);
                nix::unistd::faccessat(cwd, &self.path(path), access, AtFlags::AT_EACCESS)?;
            }
            Op::Readlink(path) => {
                let text = nix::fcntl::readlink(&self.path(path))?;
                return Ok(Answer::Text(text.into_encoded_bytes()));
            }
            Op::List(path) => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                let fd = openat(cwd, &self.path(path), flags, Mode::empty())?;
                let mut names = vec![b".".to_vec(), b"..".to_vec()];
                // Through the descriptor: the way there may not be open to a second walk.
                for entry in std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap() {
                    names.push(entry.unwrap().file_name().into_encoded_bytes());
                }
                names.sort();
                return Ok(Answer::Names(names));
            }
        }
        Ok(Answer::Done)
    }

    fn tree(&self) -> BTreeMap<String, (Row, Vec<u8>)> {
        fn visit(at: &Path, name: String, into: &mut BTreeMap<String, (Row, Vec<u8>)>) {
            let meta = std::fs::symlink_metadata(at).unwrap();
            let stored = meta.is_file() || meta.is_symlink();
            let content = if meta.is_file() {
                std::fs::read(at).unwrap()
            } else if meta.is_symlink() {
                std::fs::read_link(at).unwrap().into_os_string().into_encoded_bytes()
            } else {
                Vec::new()
            };
            let row = Row {
                mode: meta.mode(),
                nlink: Some(meta.nlink()),
                uid: meta.uid(),
                gid: meta.gid(),
                size: stored.then_some(meta.len()),
            };
            into.insert(name.clone(), (row, content));
            if meta.is_dir() {
                for entry in std::fs::read_dir(at).unwrap() {
                    let entry = entry.unwrap();
                    visit(
                        &entry.path(),
                        format!("{name}/{}", entry.file_name().to_str().unwrap()),
                        into,
                    );
                }
            }
        }
        let mut all = BTreeMap::new();
        visit(&self.base, String::new(), &mut all);
        all
    }
}

// --- ours

struct Ours {
    vfs: Arc<Vfs>,
    root: VfsPath,
    base: VfsPath,
}

/// FIFOs as `O_NONBLOCK` opens find them when nobody else has them open.
struct NoReader;

impl FifoOpener for NoReader {
    fn open_fifo(&self, _path: &VfsPath, flags: i32) -> Result<Box<dyn FileOps>, Errno> {
        struct Fifo;
        impl FileOps for Fifo {
            fn as_any(&self) -> &dyn std::any::Any {
                self
            }
        }
        if flags & libc::O_ACCMODE == libc::O_WRONLY {
            Err(Errno::ENXIO)
        } else {
            Ok(Box::new(Fifo))
        }
    }
}

impl Ours {
    fn new(fs: &Arc<sentry_vfs::mount::FileSystem>, mode: u32) -> Ours {
        let (vfs, root) = Vfs::new(fs, MountFlags::empty());
        vfs.set_fifo_opener(Arc::new(NoReader));
        let cred = Credentials::root();
        let caller = Caller::at_root(&cred, &root);
        match vfs.mkdir(&caller, At::Cwd, b"base", mode) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => panic!("{errno}"),
        }
        let base = vfs.resolve(&caller, At::Cwd, b"base", Lookup::empty()).unwrap();
        Ours { vfs, root, base }
    }

    fn run(&self, cred: &Credentials, op: &Op) -> Said {
        self.try_run(cred, op).map_err(|errno| errno.raw())
    }

    fn try_run(&self, cred: &Credentials, op: &Op) -> Result<Answer, Errno> {
        let vfs = &self.vfs;
        let caller = Caller {
            cred,
            root: &self.root,
            cwd: &self.base,
            umask: UMASK,
            task: TaskIds::default(),
        };
        let follow = |path: &str, follow: bool| {
            let flags = if follow { Lookup::empty() } else { Lookup::NO_FOLLOW };
            vfs.resolve(&caller, At::Cwd, path.as_bytes(), flags)
        };
        let at = At::Cwd;
        match op {
            Op::Open {
                path,
                flags,
                mode,
                data,
                offset,
            } => {
                let file = vfs.open(&caller, at, path.as_bytes(), *flags, *mode, Resolve::empty())?;
                if file.writable() && *data > 0 && file.attributes()?.mode & libc::S_IFMT == libc::S_IFREG {
                    vfs.remove_privileges(&caller, &file)?;
                    write_all(&file, &pattern(*data, *offset), *offset)?;
                }
            }
            Op::Mkdir(path, mode) => vfs.mkdir(&caller, at, path.as_bytes(), *mode)?,
            Op::Mknod(path, mode) => {
                vfs.mknod(&caller, at, path.as_bytes(), libc::S_IFIFO | *mode, 0)?;
            }
            Op::Symlink(target, path) => vfs.symlink(&caller, target.as_bytes(), at, path.as_bytes())?,
            Op::Link(old, new, follows) => vfs.link(&caller, &follow(old, *follows)?, at, new.as_bytes())?,
            Op::Unlink(path) => vfs.unlink(&caller, at, path.as_bytes())?,
            Op::Rmdir(path) => vfs.rmdir(&caller, at, path.as_bytes())?,
            Op::Rename(old, new, flags) => vfs.rename(&caller, at, old.as_bytes(), at, new.as_bytes(), *flags)?,
            Op::Chmod(path, mode) => vfs.chmod(&caller, &follow(path, true)?, *mode)?,
            Op::Chown(path, uid, gid) => vfs.chown(&caller, &follow(path, true)?, *uid, *gid)?,
            Op::Truncate(path, size) => vfs.truncate(&caller, &follow(path, true)?, *size)?,
            Op::Stat(path, follows) => return Ok(Answer::Stat(self.row(&follow(path, *follows)?)?)),
            Op::Access(path, access) => vfs.access(&caller, &follow(path, true)?, Access(*access))?,
            Op::Readlink(path) => return Ok(Answer::Text(vfs.readlink(&caller, &follow(path, false)?)?)),
            Op::List(path) => {
                let file = vfs.open(&caller, at, path.as_bytes(), libc::O_DIRECTORY, 0, Resolve::empty())?;
                let mut names = list(&file)?;
                names.sort();
                return Ok(Answer::Names(names));
            }
        }
        Ok(Answer::Done)
    }

    fn row(&self, path: &VfsPath) -> Result<Row, Errno> {
        let attributes = self.vfs.stat(path)?;
        let stored = matches!(attributes.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK);
        Ok(Row {
            mode: attributes.mode,
            nlink: Some(u64::from(attributes.nlink)),
            uid: attributes.uid,
            gid: attributes.gid,
            size: stored.then_some(attributes.size),
        })
    }

    fn tree(&self) -> BTreeMap<String, (Row, Vec<u8>)> {
        let mut all = BTreeMap::new();
        self.visit(&self.base, String::new(), &mut all);
        all
    }

    fn visit(&self, at: &VfsPath, name: String, into: &mut BTreeMap<String, (Row, Vec<u8>)>) {
        let cred = Credentials::root();
        let caller = Caller {
            cred: &cred,
            root: &self.root,
            cwd: &self.base,
            umask: 0,
            task: TaskIds::default(),
        };
        let row = self.row(at).unwrap();
        let content = match row.mode & libc::S_IFMT {
            libc::S_IFREG => read_all(&self.vfs.open_path(&caller, at, libc::O_RDONLY).unwrap()),
            libc::S_IFLNK => self.vfs.readlink(&caller, at).unwrap(),
            libc::S_IFDIR => {
                let dir = self.vfs.open_path(&caller, at, libc::O_DIRECTORY).unwrap();
                for entry in list(&dir).unwrap() {
                    if entry != b"." && entry != b".." {
                        let path = self
                            .vfs
                            .resolve(&caller, At::Path(at), &entry, Lookup::NO_FOLLOW)
                            .unwrap();
                        self.visit(&path, format!("{name}/{}", String::from_utf8_lossy(&entry)), into);
                    }
                }
                Vec::new()
            }
            _ => Vec::new(),
        };
        into.insert(name, (row, content));
    }
}

fn write_all(file: &File, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        let (count, _) = file.ops().write(file, &data[done..], offset + done as u64)?;
        done += count;
    }
    Ok(())
}

fn read_all(file: &File) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buf = vec![0; 10_000];
    loop {
        let count = file.ops().read(file, &mut buf, all.len() as u64).unwrap();
        if count == 0 {
            break;
        }
        all.extend_from_slice(&buf[..count]);
    }
    // The same bytes by the direct way, where there is one.
    if let Some(host) = file.ops().host_file() {
        let mut direct = vec![0; all.len() + 1];
        let count = sentry_host::memory_file::read_at(host.fd, &mut direct, host.base).unwrap();
        assert!(direct[..count] == all[..]);
    }
    all
}

fn list(file: &File) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    let mut pos = 0;
    loop {
        let before = pos;
        // A small buffer: three at a time.
        let mut room = 3;
        file.ops().readdir(file, pos, &mut |entry, next| {
            if room == 0 {
                return false;
            }
            room -= 1;
            names.push(entry.name.clone());
            pos = next;
            true
        })?;
        if pos == before {
            return Ok(names);
        }
    }
}

// --- the comparison

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Credentials as the thread has them, as far as files are concerned.
fn credentials(user: u32) -> Credentials {
    if !is_root() {
        let groups: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        return Credentials::new(
            nix::unistd::geteuid().as_raw(),
            nix::unistd::getegid().as_raw(),
            &groups,
        );
    }
    let mut cred = Credentials::root();
    if user != 0 {
        cred.fsuid = user;
        cred.fsgid = user;
        let groups: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        cred.groups = groups.into();
        cred.effective = [
            Cap::CHOWN,
            Cap::DAC_OVERRIDE,
            Cap::DAC_READ_SEARCH,
            Cap::FOWNER,
            Cap::FSETID,
        ]
        .into_iter()
        .fold(CapSet::FULL, CapSet::without);
    }
    cred
}

fn act_as(user: u32) {
    if is_root() {
        nix::unistd::setfsuid(Uid::from_raw(0));
        nix::unistd::setfsgid(Gid::from_raw(user));
        nix::unistd::setfsuid(Uid::from_raw(user));
    }
}

fn compare(ours: &Ours, host: &Host, ops: &[(u32, Op)]) {
    for (step, (user, op)) in ops.iter().enumerate() {
        let user = if is_root() { *user } else { 0 };
        act_as(user);
        let expected = host.run(op);
        act_as(0);
        let cred = credentials(user);
        let mut said = ours.run(&cred, op);
        // Directories of overlays and others may count links in their own way; the tree is compared below.
        if let (Ok(Answer::Stat(said)), Ok(Answer::Stat(expected))) = (&mut said, &expected)
            && expected.mode & libc::S_IFMT == libc::S_IFDIR
        {
            said.nlink = expected.nlink;
        }
        assert_eq!(said, expected, "step {step}, as {user}: {op:?}");
    }
    act_as(0);
    let expected = host.tree();
    let tree = ours.tree();
    let names: Vec<_> = expected.keys().collect();
    assert_eq!(tree.keys().collect::<Vec<_>>(), names);
    for (name, (row, content)) in &expected {
        let (our_row, our_content) = &tree[name];
        assert_eq!(our_row, row, "{name}");
        assert!(our_content == content, "content of {name}");
    }
}

/// A place on a host tmpfs, whose link counts of directories are the classic ones.
fn host_directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    }
    .unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn host_base(dir: &tempfile::TempDir, mode: u32) -> Host {
    let base = dir.path().join("base");
    std::fs::create_dir(&base).unwrap();
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(mode)).unwrap();
    Host { base }
}

fn operations(most: usize) -> impl Strategy<Value = Vec<(u32, Op)>> {
    prop::collection::vec((prop::sample::select(vec![0u32, 0, 1000, 1001]), op()), 1..most)
}

fn fresh_tmpfs() -> Arc<Tmpfs> {
    Tmpfs::new(TmpfsOptions {
        mode: 0o755,
        ..TmpfsOptions::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tmpfs_is_as_linux(ops in operations(60)) {
        nix::sys::stat::umask(Mode::from_bits_truncate(UMASK));
        let dir = host_directory();
        let host = host_base(&dir, 0o777);
        let fs = fresh_tmpfs();
        let ours = Ours::new(&fs.file_system("t"), 0o777);
        compare(&ours, &host, &ops);
    }

    /// The first operations make the lower tree, the others run on the overlay.
    #[test]
    fn overlay_is_as_linux(below in operations(40), ops in operations(40)) {
        nix::sys::stat::umask(Mode::from_bits_truncate(UMASK));
        let dir = host_directory();
        let host = host_base(&dir, 0o777);
        let lower = fresh_tmpfs();
        let lower_fs = lower.file_system("t");
        let ours = Ours::new(&lower_fs, 0o777);
        compare(&ours, &host, &below);
        drop(ours);
        lower.root().set_attributes(&SetAttributes { mode: Some(0o755), ..SetAttributes::default() }).unwrap();
        let overlay = Overlay::new(lower.root().clone(), TmpfsOptions::default()).unwrap();
        let ours = Ours::new(&overlay.file_system("overlay"), 0o777);
        compare(&ours, &host, &ops);
    }
}

fn cases() -> u32 {
    std::env::var("ORACLE_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(200)
}
