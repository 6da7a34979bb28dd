//! Operations on names: making, linking, removing, renaming.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{MutexGuard, rank};

use crate::cred::Cap;
use crate::dentry::{Child, Children, Dentry};
use crate::inode::{Inode, Permissions};
use crate::ops::{Access, At, Caller, Resolve, Vfs};
use crate::path::VfsPath;
use crate::permission;
use crate::walk::{LastKind, PATH_MAX, Place, Walker};

const WRITE_SEARCH: Access = Access(Access::WRITE.0 | Access::EXEC.0);

impl Vfs {
    /// mkdirat(2).
    pub fn mkdir(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8], mode: u32) -> Result<(), Errno> {
        let mode = libc::S_IFDIR | (mode & 0o1777 & !caller.umask);
        self.make(caller, at, path, true, |dir, permissions, name| {
            dir.create(name, &permission::new_inode(caller.cred, permissions, mode, 0))
        })?;
        Ok(())
    }

    /// mknodat(2), and bind(2) of a Unix socket (`S_IFSOCK`). Gives the new place.
    pub fn mknod(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8], mode: u32, rdev: u64) -> Result<VfsPath, Errno> {
        let (kind, rdev, needs_cap) = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => (libc::S_IFREG, 0, false),
            kind @ (libc::S_IFIFO | libc::S_IFSOCK) => (kind, 0, false),
            // A whiteout is no device.
            libc::S_IFCHR if rdev == 0 => (libc::S_IFCHR, 0, false),
            kind @ (libc::S_IFCHR | libc::S_IFBLK) => (kind, rdev, true),
            libc::S_IFDIR => return Err(Errno::EPERM),
            _ => return Err(Errno::EINVAL),
        };
        let mode = kind | (mode & 0o7777 & !caller.umask);
        self.make(caller, at, path, false, |dir, permissions, name| {
            if needs_cap {
                caller.cred.require(Cap::MKNOD)?;
            }
            dir.create(name, &permission::new_inode(caller.cred, permissions, mode, rdev))
        })
    }

    /// symlinkat(2).
    pub fn symlink(&self, caller: &Caller<'_>, target: &[u8], at: At<'_>, path: &[u8]) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.make(caller, at, path, false, |dir, permissions, name| {
            dir.symlink(
                name,
                target,
                &permission::new_inode(caller.cred, permissions, libc::S_IFLNK | 0o777, 0),
            )
        })?;
        Ok(())
    }

    /// linkat(2), with `source` resolved by the caller (following or not, by its flags; with `AT_EMPTY_PATH` the
    /// descriptor's path).
    pub fn link(&self, caller: &Caller<'_>, source: &VfsPath, at: At<'_>, path: &[u8]) -> Result<(), Errno> {
        let (source_mount, source) = source.tree().ok_or(Errno::EXDEV)?;
        let mut walker = self.walk_to_parent(caller, at, path)?;
        let place = new_name(&mut walker)?;
        let dir = &place.dentry;
        let mut children = dir.children.lock()?;
        self.check_absent(&walker, dir, &mut children, false)?;
        if !Arc::ptr_eq(source_mount, &place.mount) {
            return Err(Errno::EXDEV);
        }
        check_link_source(caller, source)?;
        check_create(caller, &place)?;
        if source.is_dir() {
            return Err(Errno::EPERM);
        }
        dir.inode().link(walker.name(), source.inode())?;
        let dentry = self.insert_new(dir, &mut children, walker.name(), source.inode().clone());
        self.notifier.made(dir, &dentry, true);
        Ok(())
    }

    /// unlinkat(2) without `AT_REMOVEDIR`.
    pub fn unlink(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8]) -> Result<(), Errno> {
        let walker = self.walk_to_parent(caller, at, path)?;
        if walker.kind != LastKind::Name {
            return Err(Errno::EISDIR);
        }
        walker.place.mount.check_writable()?;
        let dir = &walker.place.dentry;
        let mut children = dir.children.lock()?;
        let victim = self
            .child_locked(dir, &mut children, walker.name())?
            .ok_or(Errno::ENOENT)?;
        if walker.slash {
            return Err(if victim.is_dir() { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        check_delete(caller, dir, &victim)?;
        if victim.is_dir() {
            return Err(Errno::EISDIR);
        }
        check_not_mounted(&victim)?;
        announce_loss(&children, walker.name(), &victim);
        let ends = self.notifier.awaits_end(&victim);
        dir.inode().unlink(walker.name())?;
        victim.mark_deleted();
        self.insert_removed(dir, &mut children, walker.name());
        self.notifier.removed(dir, &victim, ends);
        // The last reference to the inode may free much: not under the directory's lock.
        drop(children);
        Ok(())
    }

    /// rmdir(2), unlinkat(2) with `AT_REMOVEDIR`.
    pub fn rmdir(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8]) -> Result<(), Errno> {
        let walker = self.walk_to_parent(caller, at, path)?;
        match walker.kind {
            LastKind::Name => {}
            LastKind::Dot => return Err(Errno::EINVAL),
            LastKind::DotDot => return Err(Errno::ENOTEMPTY),
            LastKind::Root => return Err(Errno::EBUSY),
        }
        walker.place.mount.check_writable()?;
        let dir = &walker.place.dentry;
        let mut children = dir.children.lock()?;
        let victim = self
            .child_locked(dir, &mut children, walker.name())?
            .ok_or(Errno::ENOENT)?;
        check_delete(caller, dir, &victim)?;
        if !victim.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        check_not_mounted(&victim)?;
        let ends = self.notifier.awaits_end(&victim);
        dir.inode().rmdir(walker.name())?;
        victim.mark_deleted();
        self.insert_removed(dir, &mut children, walker.name());
        self.notifier.removed(dir, &victim, ends);
        drop(children);
        victim.children.lock_anyway().clear();
        Ok(())
    }

    /// renameat2(2); `flags` are `RENAME_*`.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        old_at: At<'_>,
        old: &[u8],
        new_at: At<'_>,
        new: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let no_replace = flags & libc::RENAME_NOREPLACE != 0;
        let whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let known = libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
        if flags & !known != 0 || (exchange && (no_replace || whiteout)) {
            return Err(Errno::EINVAL);
        }
        let from = self.walk_to_parent(caller, old_at, old)?;
        let to = self.walk_to_parent(caller, new_at, new)?;
        if !Arc::ptr_eq(&from.place.mount, &to.place.mount) {
            return Err(Errno::EXDEV);
        }
        if from.kind != LastKind::Name {
            return Err(Errno::EBUSY);
        }
        if to.kind != LastKind::Name {
            return Err(if no_replace { Errno::EEXIST } else { Errno::EBUSY });
        }
        from.place.mount.check_writable()?;
        let _tree = self.rename_lock.write()?;
        let (old_dir, new_dir) = (&from.place.dentry, &to.place.dentry);
        let mut locks = LockedPair::new(old_dir, new_dir)?;
        let source = self
            .child_locked(old_dir, locks.old(), from.name())?
            .ok_or(Errno::ENOENT)?;
        let target = self.child_locked(new_dir, locks.new_children(), to.name())?;
        match &target {
            Some(_) if no_replace => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            None if new_dir.is_deleted() || new_dir.inode().refuses_new_names() => return Err(Errno::ENOENT),
            Some(target) if exchange && !target.is_dir() && to.slash => return Err(Errno::ENOTDIR),
            _ => {}
        }
        if !source.is_dir() && (from.slash || (!exchange && to.slash)) {
            return Err(Errno::ENOTDIR);
        }
        if source.is_ancestor_of(new_dir) {
            return Err(Errno::EINVAL);
        }
        if target.as_ref().is_some_and(|target| target.is_ancestor_of(old_dir)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target
            .as_ref()
            .is_some_and(|target| Arc::ptr_eq(target.inode(), source.inode()))
        {
            return Ok(());
        }
        let same_dir = Arc::ptr_eq(old_dir, new_dir);
        check_delete(caller, old_dir, &source)?;
        match &target {
            None => {
                check_create(caller, &to.place)?;
            }
            Some(target) => {
                check_delete(caller, new_dir, target)?;
                if !exchange && source.is_dir() != target.is_dir() {
                    return Err(if source.is_dir() { Errno::ENOTDIR } else { Errno::EISDIR });
                }
            }
        }
        let (exchanged, replaced) = if exchange {
            (target.as_ref(), None)
        } else {
            (None, target.as_ref())
        };
        // Moving a directory changes its `..`.
        for moved in [Some(&source), exchanged].into_iter().flatten() {
            if moved.is_dir() && !same_dir {
                permission::check(caller.cred, moved.inode().permissions()?, Access::WRITE)?;
            }
            check_not_mounted(moved)?;
        }
        if let Some(replaced) = replaced {
            check_not_mounted(replaced)?;
            announce_loss(locks.new_children(), to.name(), replaced);
        }
        let ends = replaced.is_some_and(|replaced| self.notifier.awaits_end(replaced));
        let left = if whiteout {
            let new = permission::new_inode(caller.cred, old_dir.inode().permissions()?, libc::S_IFCHR, 0);
            Some(
                old_dir
                    .inode()
                    .rename_leaving(from.name(), new_dir.inode(), to.name(), &new)?,
            )
        } else {
            old_dir.inode().rename(from.name(), new_dir.inode(), to.name(), flags)?;
            None
        };
        source.move_to(new_dir, to.name());
        match (exchanged, left) {
            (Some(exchanged), _) => {
                exchanged.move_to(old_dir, from.name());
                self.insert_dentry(old_dir, locks.old(), from.name(), exchanged);
            }
            (None, Some(left)) => drop(self.insert_new(old_dir, locks.old(), from.name(), left)),
            (None, None) => self.insert_removed(old_dir, locks.old(), from.name()),
        }
        self.insert_dentry(new_dir, locks.new_children(), to.name(), &source);
        if let Some(replaced) = replaced {
            replaced.mark_deleted();
        }
        let lost = replaced.map(|replaced| (replaced, ends));
        self.notifier.moved((old_dir, from.name()), new_dir, &source, lost);
        if let Some(exchanged) = exchanged {
            self.notifier.moved((new_dir, to.name()), old_dir, exchanged, None);
        }
        drop(locks);
        if let Some(replaced) = replaced {
            replaced.children.lock_anyway().clear();
        }
        Ok(())
    }

    /// Makes a name. `make` gets the directory's inode and permissions and the name.
    fn make(
        &self,
        caller: &Caller<'_>,
        at: At<'_>,
        path: &[u8],
        directory: bool,
        make: impl FnOnce(&Arc<dyn Inode>, Permissions, &[u8]) -> Result<Arc<dyn Inode>, Errno>,
    ) -> Result<VfsPath, Errno> {
        let mut walker = self.walk_to_parent(caller, at, path)?;
        let place = new_name(&mut walker)?;
        let dir = &place.dentry;
        let mut children = dir.children.lock()?;
        self.check_absent(&walker, dir, &mut children, directory)?;
        let permissions = check_create(caller, &place)?;
        let inode = make(dir.inode(), permissions, walker.name())?;
        let dentry = self.insert_new(dir, &mut children, walker.name(), inode);
        self.notifier.made(dir, &dentry, false);
        Ok(VfsPath::new(place.mount.clone(), dentry))
    }

    fn check_absent(
        &self,
        walker: &Walker<'_>,
        dir: &Arc<Dentry>,
        children: &mut Children,
        directory: bool,
    ) -> Result<(), Errno> {
        if self.child_locked(dir, children, walker.name())?.is_some() {
            return Err(Errno::EEXIST);
        }
        if walker.slash && !directory {
            Err(Errno::ENOENT)
        } else {
            Ok(())
        }
    }

    pub(crate) fn walk_to_parent<'a>(
        &'a self,
        caller: &'a Caller<'a>,
        at: At<'a>,
        path: &'a [u8],
    ) -> Result<Walker<'a>, Errno> {
        self.maybe_shrink();
        let mut walker = Walker::new(self, caller, at, path, Resolve::empty())?;
        walker.parent()?;
        Ok(walker)
    }
}

/// The directory of a name that is to be made; `.`, `..` and `/` exist.
fn new_name(walker: &mut Walker<'_>) -> Result<Place, Errno> {
    if walker.kind != LastKind::Name {
        return Err(Errno::EEXIST);
    }
    Ok(walker.place.clone())
}

/// May the caller make a name in this (locked) directory?
pub(crate) fn check_create(caller: &Caller<'_>, place: &Place) -> Result<Permissions, Errno> {
    if place.dentry.is_deleted() || place.dentry.inode().refuses_new_names() {
        return Err(Errno::ENOENT);
    }
    place.mount.check_writable()?;
    let permissions = place.dentry.inode().permissions()?;
    permission::check(caller.cred, permissions, WRITE_SEARCH)?;
    Ok(permissions)
}

fn check_delete(caller: &Caller<'_>, dir: &Arc<Dentry>, victim: &Arc<Dentry>) -> Result<(), Errno> {
    permission::check_delete(caller.cred, dir.inode().permissions()?, victim.inode().permissions()?)
}

/// Tells a file that a name of it goes, if somebody but the cache and the caller holds the name's dentry.
fn announce_loss(children: &Children, name: &[u8], victim: &Arc<Dentry>) {
    let cached = matches!(children.get(name), Some(Child::Positive(dentry)) if Arc::ptr_eq(dentry, victim));
    if Arc::strong_count(victim) > 1 + usize::from(cached) {
        victim.inode().loses_name();
    }
}

/// `/proc/sys/fs/protected_hardlinks` is 1 here: who does not own a file may link to it only if it is harmless
/// and could be opened anyway.
fn check_link_source(caller: &Caller<'_>, source: &Arc<Dentry>) -> Result<(), Errno> {
    let inode = source.inode().permissions()?;
    if permission::check_owner(caller.cred, inode).is_ok() {
        return Ok(());
    }
    let group_exec = libc::S_ISGID | libc::S_IXGRP;
    let harmless = inode.is_regular() && inode.mode & libc::S_ISUID == 0 && inode.mode & group_exec != group_exec;
    let usable = permission::check(caller.cred, inode, Access(Access::READ.0 | Access::WRITE.0)).is_ok();
    if harmless && usable { Ok(()) } else { Err(Errno::EPERM) }
}

fn check_not_mounted(dentry: &Arc<Dentry>) -> Result<(), Errno> {
    if dentry.mounts.load(std::sync::atomic::Ordering::Acquire) > 0 {
        Err(Errno::EBUSY)
    } else {
        Ok(())
    }
}

/// The children of two directories, which may be the same one, locked by address.
struct LockedPair<'a> {
    old: Option<MutexGuard<'a, Children, rank::DentryChildren>>,
    new: MutexGuard<'a, Children, rank::DentryChildren>,
}

impl<'a> LockedPair<'a> {
    fn new(old: &'a Arc<Dentry>, new: &'a Arc<Dentry>) -> Result<LockedPair<'a>, Errno> {
        let (old, new) = if Arc::ptr_eq(old, new) {
            (None, new.children.lock()?)
        } else if Arc::as_ptr(old) < Arc::as_ptr(new) {
            let old = old.children.lock()?;
            (Some(old), new.children.lock_another()?)
        } else {
            let new = new.children.lock()?;
            (Some(old.children.lock_another()?), new)
        };
        Ok(LockedPair { old, new })
    }

    fn old(&mut self) -> &mut Children {
        self.old.as_mut().unwrap_or(&mut self.new)
    }

    fn new_children(&mut self) -> &mut Children {
        &mut self.new
    }
}
