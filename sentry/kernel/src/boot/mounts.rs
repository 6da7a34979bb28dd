//! The guest's view of files.

use std::cell::RefCell;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_host::advice;
use sentry_vfs::budget::Budget;
use sentry_vfs::cred::Credentials;
use sentry_vfs::devtmpfs;
use sentry_vfs::gofer_fs::{self, Caching, Ledger};
use sentry_vfs::mount::{FileSystem, MountFlags};
use sentry_vfs::ops::{At, Caller, Lookup, Resolve, Vfs};
use sentry_vfs::overlay::Overlay;
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::{Tmpfs, TmpfsOptions};

use crate::Kernel;
use crate::config::{Access, Mount, MountKind};
use crate::procfs;

/// Trees of the host that nobody changes while a sandbox runs, as far as it matters.
const SYSTEM: [&[u8]; 9] = [
    b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/opt", b"/etc",
];
/// What a tmpfs holds at most, if nothing else is said.
const TMPFS_SIZE: u64 = 1 << 30;

/// Makes the mounts of a sandbox.
pub(super) struct Builder {
    gofer: Option<Arc<Client>>,
    /// What all files in memory may use.
    budget: Arc<Budget>,
    /// What guests change of the host's files.
    ledger: Arc<Ledger>,
    /// The first mount was the root.
    root_given: bool,
    /// Overlays are to know what changes.
    tracks: bool,
    /// Overlays and where they are.
    overlays: RefCell<Vec<(Vec<u8>, Arc<Overlay>)>>,
}

impl Builder {
    pub(super) fn new(gofer: Option<Arc<Client>>, budget: Arc<Budget>, tracks: bool, mounts: &[Mount]) -> Builder {
        let writable = |mount: &Mount| {
            let kind = &mount.kind;
            matches!(kind, MountKind::Gofer { access, .. } if *access == Access::ReadWrite)
        };
        Builder {
            gofer,
            ledger: Ledger::new(budget.clone(), mounts.iter().any(writable), tracks),
            budget,
            root_given: false,
            tracks,
            overlays: RefCell::default(),
        }
    }

    /// From now on changes count, if they are wanted.
    pub(super) fn track(&self) -> Result<(), String> {
        for (target, overlay) in self.overlays() {
            overlay
                .track()
                .map_err(|errno| format!("changes of {}: {errno}", String::from_utf8_lossy(&target)))?;
        }
        Ok(())
    }

    /// What guests have changed of the host's files.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The overlays whose changes are wanted, and where they are.
    pub(super) fn overlays(&self) -> Vec<(Vec<u8>, Arc<Overlay>)> {
        self.overlays.borrow().clone()
    }

    /// The tree with its root: the first mount if that is for `/`, else an empty tmpfs.
    pub(super) fn root(&mut self, mounts: &[Mount]) -> Result<(Arc<Vfs>, VfsPath), String> {
        let first = mounts.first().filter(|mount| mount.target == b"/");
        let (fs, flags) = match first {
            Some(mount) => {
                self.root_given = true;
                self.file_system(mount, None)
                    .map_err(|errno| format!("root: {errno}"))?
            }
            None => (self.tmpfs(None, 0o755, (0, 0), "root"), MountFlags::empty()),
        };
        Ok(Vfs::with_budget(&fs, flags, self.budget.clone()))
    }

    /// Everything but the root.
    pub(super) fn rest(&self, kernel: &Arc<Kernel>, root: &VfsPath, mounts: &[Mount]) -> Result<(), String> {
        for mount in mounts.iter().skip(usize::from(self.root_given)) {
            let name = String::from_utf8_lossy(&mount.target).into_owned();
            self.place(kernel, root, mount)
                .map_err(|errno| format!("mount {name}: {errno}{}", advice::of(errno.raw())))?;
        }
        Ok(())
    }

    fn place(&self, kernel: &Arc<Kernel>, root: &VfsPath, mount: &Mount) -> Result<(), Errno> {
        let cred = Credentials::root();
        let caller = Caller::at_root(&cred, root);
        let vfs = kernel.vfs();
        if let MountKind::Symlink { to } = &mount.kind {
            make_parents(vfs, &caller, &mount.target)?;
            return match vfs.symlink(&caller, to, At::Cwd, &mount.target) {
                Err(Errno::EEXIST) => Ok(()),
                result => result,
            };
        }
        let directory = !matches!(mount.kind, MountKind::Gofer { directory: false, .. });
        let target = make_target(vfs, &caller, &mount.target, directory)?;
        let (fs, flags) = self.file_system(mount, Some(kernel))?;
        vfs.mount_at(&fs, &target, flags)?;
        if matches!(mount.kind, MountKind::Dev) {
            self.below_dev(kernel, &caller)?;
        }
        Ok(())
    }

    fn file_system(&self, mount: &Mount, kernel: Option<&Arc<Kernel>>) -> Result<(Arc<FileSystem>, MountFlags), Errno> {
        let careful = MountFlags::NO_SUID | MountFlags::NO_DEV;
        Ok(match &mount.kind {
            MountKind::Gofer { tree, access, .. } => self.gofer(&mount.target, *tree, *access)?,
            MountKind::Tmpfs { size, mode, owner } => (self.tmpfs(*size, *mode, *owner, "tmpfs"), careful),
            MountKind::Proc => (
                procfs::proc_fs(kernel.ok_or(Errno::EINVAL)?),
                careful | MountFlags::NO_EXEC,
            ),
            MountKind::Sys => {
                let flags = careful | MountFlags::NO_EXEC | MountFlags::READ_ONLY;
                (procfs::sys_fs(), flags)
            }
            MountKind::Dev => (devtmpfs::file_system(), MountFlags::NO_SUID | MountFlags::NO_EXEC),
            // Made in place.
            MountKind::Symlink { .. } => return Err(Errno::EINVAL),
        })
    }

    fn gofer(&self, target: &[u8], tree: u32, access: Access) -> Result<(Arc<FileSystem>, MountFlags), Errno> {
        let client = self.gofer.as_ref().ok_or(Errno::ENXIO)?;
        let system = SYSTEM.iter().any(|dir| {
            target
                .strip_prefix(*dir)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        });
        // What lies below an overlay must not change anyway. Where the guest changes the host, both count on seeing it.
        let caching = if access == Access::Overlay || (system && access == Access::ReadOnly) {
            Caching::Forever
        } else {
            Caching::Revalidate
        };
        let lower = gofer_fs::attach_counted(client, tree, caching, Some(&self.ledger))?;
        let careful = MountFlags::NO_SUID | MountFlags::NO_DEV;
        Ok(match access {
            Access::ReadOnly => (
                FileSystem::new(lower, "gofer", "host", "ro"),
                careful | MountFlags::READ_ONLY,
            ),
            Access::ReadWrite => (FileSystem::new(lower, "gofer", "host", "rw"), careful),
            Access::Overlay => {
                let options = TmpfsOptions {
                    size: Some(TMPFS_SIZE),
                    budget: self.budget.clone(),
                    ..TmpfsOptions::default()
                };
                let overlay = Overlay::new(lower, options)?;
                if self.tracks {
                    overlay.prepare_tracking();
                    self.overlays.borrow_mut().push((target.to_vec(), overlay.clone()));
                }
                (overlay.file_system("host"), careful)
            }
        })
    }

    /// `/dev/shm` and `/dev/pts`.
    fn below_dev(&self, kernel: &Arc<Kernel>, caller: &Caller<'_>) -> Result<(), Errno> {
        let vfs = kernel.vfs();
        let shm = make_target(vfs, caller, b"/dev/shm", true)?;
        vfs.mount_at(
            &self.tmpfs(None, 0o1777, (0, 0), "shm"),
            &shm,
            MountFlags::NO_SUID | MountFlags::NO_DEV,
        )?;
        let pts = make_target(vfs, caller, b"/dev/pts", true)?;
        vfs.mount_at(
            &kernel.terminals.devpts().file_system(b"devpts"),
            &pts,
            MountFlags::NO_SUID | MountFlags::NO_EXEC | MountFlags::REL_ATIME,
        )?;
        Ok(())
    }

    fn tmpfs(&self, size: Option<u64>, mode: u32, (uid, gid): (u32, u32), source: &str) -> Arc<FileSystem> {
        let size = Some(size.unwrap_or(TMPFS_SIZE));
        Tmpfs::new(TmpfsOptions {
            size,
            mode,
            uid,
            gid,
            budget: self.budget.clone(),
            ..TmpfsOptions::default()
        })
        .file_system(source)
    }
}

/// Makes the directories above a path.
fn make_parents(vfs: &Vfs, caller: &Caller<'_>, path: &[u8]) -> Result<(), Errno> {
    let slashes = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0);
    for (at, _) in slashes {
        match vfs.mkdir(caller, At::Cwd, &path[..at], 0o755) {
            Ok(()) | Err(Errno::EEXIST) => {}
            // A read-only or foreign parent that has it already.
            Err(errno) => {
                vfs.resolve(caller, At::Cwd, &path[..at], Lookup::DIRECTORY)
                    .map_err(|_| errno)?;
            }
        }
    }
    Ok(())
}

/// The place to mount on, made if it does not exist.
fn make_target(vfs: &Vfs, caller: &Caller<'_>, path: &[u8], directory: bool) -> Result<VfsPath, Errno> {
    if let Ok(target) = vfs.resolve(caller, At::Cwd, path, Lookup::empty()) {
        return Ok(target);
    }
    make_parents(vfs, caller, path)?;
    if directory {
        vfs.mkdir(caller, At::Cwd, path, 0o755)?;
    } else {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        vfs.open(caller, At::Cwd, path, flags, 0o644, Resolve::empty())?;
    }
    vfs.resolve(caller, At::Cwd, path, Lookup::empty())
}
