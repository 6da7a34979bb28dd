//! Many threads change one tree: nothing hangs, and the cache and the file system agree at the end.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use sentry_vfs::cred::Credentials;
use sentry_vfs::inode::Inode;
use sentry_vfs::mount::{FileSystem, MountFlags};
use sentry_vfs::ops::{At, Caller, Lookup, Resolve, Vfs};
use sentry_vfs::overlay::Overlay;
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::{Tmpfs, TmpfsOptions};

const THREADS: u64 = 4;
const STEPS: u32 = 20_000;

/// A small random generator (xorshift), so that runs can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(4);
        let names: Vec<&str> = (0..depth).map(|_| ["a", "b", "c"][self.below(3) as usize]).collect();
        format!("/{}", names.join("/"))
    }
}

fn run(vfs: &Vfs, root: &VfsPath, seed: u64) {
    let cred = Credentials::root();
    let caller = Caller::at_root(&cred, root);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut held = Vec::new();
    for _ in 0..STEPS {
        let (path, other) = (random.path(), random.path());
        let (path, other) = (path.as_bytes(), other.as_bytes());
        // What goes wrong depends on the others; that it ends, and how it all looks then, does not.
        match random.below(12) {
            0 | 1 => drop(vfs.mkdir(&caller, At::Cwd, path, 0o755)),
            2 | 3 => {
                let flags = libc::O_CREAT | libc::O_RDWR;
                if let Ok(file) = vfs.open(&caller, At::Cwd, path, flags, 0o644, Resolve::empty()) {
                    let _ = file.ops().write(&file, &[1; 5000], 70_000 * random.below(3));
                    held.push(file);
                }
            }
            4 => drop(vfs.unlink(&caller, At::Cwd, path)),
            5 => drop(vfs.rmdir(&caller, At::Cwd, path)),
            6 | 7 => drop(vfs.rename(&caller, At::Cwd, path, At::Cwd, other, 0)),
            8 => drop(vfs.rename(&caller, At::Cwd, path, At::Cwd, other, libc::RENAME_EXCHANGE)),
            9 => {
                if let Ok(source) = vfs.resolve(&caller, At::Cwd, path, Lookup::empty()) {
                    let _ = vfs.link(&caller, &source, At::Cwd, other);
                    let _ = vfs.d_path(root, &source);
                }
            }
            10 => drop(vfs.symlink(&caller, other, At::Cwd, path)),
            _ => {
                let _ = vfs.stat_at(&caller, At::Cwd, path, Lookup::empty());
                if random.below(100) == 0 {
                    vfs.shrink(0);
                }
            }
        }
        if held.len() > 20 {
            held.clear();
        }
    }
}

/// Names and inode numbers, as the file system has them.
fn below(inode: &Arc<dyn Inode>, path: String, into: &mut BTreeMap<String, u64>) {
    for entry in inode.entries().unwrap() {
        let child = inode.lookup(&entry.name).unwrap();
        let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
        assert_eq!(child.attributes().unwrap().ino, entry.ino);
        into.insert(path.clone(), entry.ino);
        if child.permissions().unwrap().is_dir() {
            below(&child, path, into);
        }
    }
}

fn stress(fs: &Arc<FileSystem>) {
    let (vfs, root) = Vfs::new(fs, MountFlags::empty());
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (vfs, root) = (&vfs, &root);
            scope.spawn(move || run(vfs, root, seed + 1));
        }
    });
    let mut names = BTreeMap::new();
    below(root.inode().unwrap(), String::new(), &mut names);
    let cred = Credentials::root();
    let caller = Caller::at_root(&cred, &root);
    let mut links: BTreeMap<u64, u32> = BTreeMap::new();
    for ino in names.values() {
        *links.entry(*ino).or_default() += 1;
    }
    for (path, ino) in &names {
        let found = vfs
            .resolve(&caller, At::Cwd, path.as_bytes(), Lookup::NO_FOLLOW)
            .unwrap();
        let attributes = vfs.stat(&found).unwrap();
        assert_eq!(attributes.ino, *ino, "{path}");
        assert_eq!(vfs.d_path(&root, &found).0, path.as_bytes());
        if attributes.mode & libc::S_IFMT == libc::S_IFDIR {
            let inside = format!("{path}/");
            let subdirs = names.keys().filter(|name| {
                let rest = name.strip_prefix(&inside).unwrap_or("/");
                let is_dir = || {
                    let path = vfs
                        .resolve(&caller, At::Cwd, name.as_bytes(), Lookup::NO_FOLLOW)
                        .unwrap();
                    path.dentry().unwrap().is_dir()
                };
                !rest.contains('/') && is_dir()
            });
            assert_eq!(attributes.nlink as usize, 2 + subdirs.count(), "{path}");
        } else {
            assert_eq!(attributes.nlink, links[ino], "{path}");
        }
    }
    // Nothing that is gone is still known as there.
    for name in ["a", "b", "c"] {
        for path in [
            format!("/{name}"),
            format!("/a/{name}"),
            format!("/b/{name}"),
            format!("/c/{name}"),
        ] {
            let found = vfs.resolve(&caller, At::Cwd, path.as_bytes(), Lookup::NO_FOLLOW);
            let through_link = path.len() > 2 && !names.contains_key(&path) && found.is_ok();
            assert!(found.is_ok() == names.contains_key(&path) || through_link, "{path}");
        }
    }
}

#[test]
fn tmpfs() {
    stress(
        &Tmpfs::new(TmpfsOptions {
            mode: 0o755,
            ..TmpfsOptions::default()
        })
        .file_system("t"),
    );
}

#[test]
fn overlay() {
    let lower = Tmpfs::new(TmpfsOptions {
        mode: 0o755,
        ..TmpfsOptions::default()
    });
    stress(&lower.file_system("t"));
    let overlay = Overlay::new(lower.root().clone(), TmpfsOptions::default()).unwrap();
    stress(&overlay.file_system("o"));
}
