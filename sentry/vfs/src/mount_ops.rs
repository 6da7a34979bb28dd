//! mount(2), umount(2), pivot_root(2) and the list of mounts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;

use crate::cred::Cap;
use crate::dentry::Dentry;
use crate::mount::{FileSystem, Mount, MountFlags, MountInfo, MountTable, Propagation};
use crate::ops::{Caller, Vfs};
use crate::path::VfsPath;

/// Mounts in all namespaces together (`/proc/sys/fs/mount-max` is per namespace, and larger).
const MOUNTS_MAX: usize = 10_000;

impl Vfs {
    /// A namespace with this root.
    pub(crate) fn add_namespace(&self, root: &Arc<FileSystem>, flags: MountFlags) -> Arc<Mount> {
        let mut table = self.table.write();
        let namespace = table.new_namespace();
        let mount = Mount::new(root.clone(), root.root().clone(), flags, namespace);
        table.attach(&mount, None);
        mount
    }

    pub(crate) fn mounted_at(&self, mount: &Mount, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
        self.table.read().at(mount, dentry).cloned()
    }

    /// The roots of all mounted file systems.
    pub(crate) fn file_system_roots(&self) -> Vec<Arc<Dentry>> {
        let table = self.table.read();
        let mut roots: Vec<_> = table
            .by_id
            .values()
            .map(|mount| mount.file_system().root().clone())
            .collect();
        roots.sort_by_key(|root| Arc::as_ptr(root).addr());
        roots.dedup_by(|a, b| Arc::ptr_eq(a, b));
        roots
    }

    /// Mounts without asking for permission (at start). Gives the root of the new mount.
    pub fn mount_at(&self, fs: &Arc<FileSystem>, target: &VfsPath, flags: MountFlags) -> Result<VfsPath, Errno> {
        let mut table = self.table.write();
        attach_new(&mut table, fs, fs.root(), target, flags)
    }

    /// mount(2) of a file system made by the kernel. `EPERM` without CAP_SYS_ADMIN.
    pub fn mount(
        &self,
        caller: &Caller<'_>,
        fs: &Arc<FileSystem>,
        target: &VfsPath,
        flags: MountFlags,
    ) -> Result<VfsPath, Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        self.mount_at(fs, target, flags)
    }

    /// mount(2) with `MS_BIND` (`MS_REC`: `recursive`).
    pub fn bind(
        &self,
        caller: &Caller<'_>,
        source: &VfsPath,
        target: &VfsPath,
        recursive: bool,
    ) -> Result<VfsPath, Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        let (mount, dentry) = source.tree().ok_or(Errno::EINVAL)?;
        let mut table = self.table.write();
        if !table.has(mount) {
            return Err(Errno::EINVAL);
        }
        // The mounts below the source, before the copy can be among them.
        let below = if recursive { table.subtree(mount) } else { Vec::new() };
        let new = attach_new(&mut table, mount.file_system(), dentry, target, mount.flags())?;
        let Some(new_mount) = new.mount() else {
            return Err(Errno::EINVAL);
        };
        let mut copies = HashMap::from([(mount.id(), new_mount.clone())]);
        for old in below.iter().skip(1) {
            let Some((parent, place)) = old.place.read().clone() else {
                continue;
            };
            let Some(parent_copy) = copies.get(&parent.id()).cloned() else {
                continue;
            };
            if parent.id() == mount.id() && !dentry.is_ancestor_of(&place) {
                continue;
            }
            if table.by_id.len() >= MOUNTS_MAX {
                return Err(Errno::ENOSPC);
            }
            let copy = copy_mount(old, new_mount.namespace);
            table.attach(&copy, Some((parent_copy, place)));
            copies.insert(old.id(), copy);
        }
        Ok(new)
    }

    /// mount(2) with `MS_MOVE`.
    pub fn move_mount(&self, caller: &Caller<'_>, source: &VfsPath, target: &VfsPath) -> Result<(), Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        let mount = mount_root(source)?;
        let (to_mount, to_dentry) = target.tree().ok_or(Errno::ENOTDIR)?;
        let mut table = self.table.write();
        if !table.has(mount) || !table.has(to_mount) || mount.place.read().is_none() {
            return Err(Errno::EINVAL);
        }
        if mount.root().is_dir() != to_dentry.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if table.subtree(mount).iter().any(|below| Arc::ptr_eq(below, to_mount)) {
            return Err(Errno::ELOOP);
        }
        check_free(&table, to_mount, to_dentry)?;
        table.detach(mount);
        table.attach(mount, Some((to_mount.clone(), to_dentry.clone())));
        Ok(())
    }

    /// mount(2) with `MS_REMOUNT`: sets the flags of the mount at `target`, and unless it goes with `MS_BIND` the options
    /// of its file system.
    pub fn remount(
        &self,
        caller: &Caller<'_>,
        target: &VfsPath,
        flags: MountFlags,
        options: Option<&[u8]>,
    ) -> Result<(), Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        let mount = mount_root(target)?;
        if let Some(options) = options {
            mount.file_system().root().inode().remounted(options)?;
        }
        mount.set_flags(flags);
        Ok(())
    }

    /// mount(2) with `MS_PRIVATE`, `MS_SHARED`, `MS_SLAVE`, `MS_UNBINDABLE`. Every mount is private: mounts are
    /// not propagated, whatever is asked for, and mountinfo shows none as shared.
    pub fn set_propagation(&self, caller: &Caller<'_>, target: &VfsPath, _kind: Propagation) -> Result<(), Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        mount_root(target).map(|_| ())
    }

    /// umount2(2); `flags` are `MNT_DETACH`, `MNT_FORCE`, `MNT_EXPIRE`; `UMOUNT_NOFOLLOW` belongs to
    /// resolving `target`, which must be the caller's only reference to the place: others count as users (`EBUSY`).
    pub fn umount(&self, caller: &Caller<'_>, target: &VfsPath, flags: i32) -> Result<(), Errno> {
        let expire = flags & libc::MNT_EXPIRE != 0;
        if expire && flags & (libc::MNT_DETACH | libc::MNT_FORCE) != 0 {
            return Err(Errno::EINVAL);
        }
        caller.cred.require(Cap::SYS_ADMIN)?;
        let mount = mount_root(target)?;
        let mut table = self.table.write();
        if !table.has(mount) || mount.place.read().is_none() {
            return Err(Errno::EINVAL);
        }
        if flags & libc::MNT_DETACH != 0 {
            // Mounts on it first; who has files open in them keeps those.
            let all = table.subtree(mount);
            for below in all.iter().rev() {
                table.detach(below);
            }
            // The last references may be these: file systems are freed without the lock.
            drop(table);
            drop(all);
            self.notifier.sweep_unmounted();
            return Ok(());
        }
        // The table refers to it twice, `target` once.
        if !table.children(mount).is_empty() || Arc::strong_count(mount) > 3 {
            return Err(Errno::EBUSY);
        }
        // The first time it is only marked; whoever uses it takes the mark away.
        if expire && !mount.expiring.swap(true, Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
        table.detach(mount);
        drop(table);
        Ok(())
    }

    /// To be called after [`Vfs::umount`], once `target` is no longer held: tells who watches what is gone now.
    pub fn settle_umount(&self) {
        self.notifier.sweep_unmounted();
    }

    /// What is on top at a place: the last of the mounts that were made there.
    pub fn topmost(&self, path: &VfsPath) -> VfsPath {
        let mut path = path.clone();
        while let Some((mount, dentry)) = path.tree() {
            let Some(above) = self.mounted_at(mount, dentry) else {
                break;
            };
            let root = above.root().clone();
            path = VfsPath::new(above, root);
        }
        path
    }

    /// pivot_root(2). The kernel must then move each process's root and cwd that was the old root
    /// ([`VfsPath::same`]) to `new_root`.
    pub fn pivot_root(&self, caller: &Caller<'_>, new_root: &VfsPath, put_old: &VfsPath) -> Result<(), Errno> {
        caller.cred.require(Cap::SYS_ADMIN)?;
        let (new_mount, new_dentry) = new_root.tree().ok_or(Errno::ENOTDIR)?;
        let (old_mount, old_dentry) = put_old.tree().ok_or(Errno::ENOTDIR)?;
        let (root_mount, root_dentry) = caller.root.tree().ok_or(Errno::EINVAL)?;
        if !new_dentry.is_dir() || !old_dentry.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if Arc::ptr_eq(new_mount, root_mount) || Arc::ptr_eq(old_mount, root_mount) {
            return Err(Errno::EBUSY);
        }
        let is_root = |mount: &Arc<Mount>, dentry: &Arc<Dentry>| Arc::ptr_eq(mount.root(), dentry);
        if !is_root(new_mount, new_dentry) || !is_root(root_mount, root_dentry) {
            return Err(Errno::EINVAL);
        }
        let mut table = self.table.write();
        if !table.has(new_mount) || !table.has(old_mount) || new_mount.place.read().is_none() {
            return Err(Errno::EINVAL);
        }
        if !is_below(new_mount, new_dentry, old_mount, old_dentry)
            || !is_below(root_mount, root_dentry, new_mount, new_dentry)
        {
            return Err(Errno::EINVAL);
        }
        table.detach(new_mount);
        let above = table.detach(root_mount);
        table.attach(root_mount, Some((old_mount.clone(), old_dentry.clone())));
        table.attach(new_mount, above);
        Ok(())
    }

    /// The mounts that `root` (a process's root) can see, in mount order: /proc/PID/mounts and mountinfo.
    pub fn mounts(&self, root: &VfsPath) -> Vec<MountInfo> {
        let Some(root_mount) = root.mount() else {
            return Vec::new();
        };
        let all = self.table.read().of_namespace(root_mount.namespace);
        let mut list = Vec::new();
        for mount in all {
            let place = mount.place.read().clone();
            let at_root = Arc::ptr_eq(&mount, root_mount);
            let (target, reachable) = self.d_path(root, &VfsPath::new(mount.clone(), mount.root().clone()));
            if !reachable && !at_root {
                continue;
            }
            list.push(MountInfo {
                id: mount.id(),
                parent_id: place.map_or(1, |(parent, _)| parent.id()),
                dev: mount.file_system().dev(),
                root: path_in_file_system(mount.root()),
                target: if reachable { target } else { b"/".to_vec() },
                flags: mount.flags(),
                kind: mount.file_system().kind().to_owned(),
                source: mount.file_system().source().to_vec(),
                options: mount.file_system().options().to_vec(),
            });
        }
        list
    }

    /// unshare(2) and clone(2) with `CLONE_NEWNS`: copies the mounts of a namespace ([`Mount::namespace`]); the number
    /// of the new one. Each of `paths` (root, cwd) is moved to its copy.
    pub fn copy_mounts(&self, namespace: u64, paths: &mut [&mut VfsPath]) -> Result<u64, Errno> {
        let mut table = self.table.write();
        let new_namespace = table.new_namespace();
        let old = table.of_namespace(namespace);
        if table.by_id.len() + old.len() > MOUNTS_MAX {
            return Err(Errno::ENOSPC);
        }
        let copies: HashMap<u64, Arc<Mount>> = old
            .iter()
            .map(|mount| (mount.id(), copy_mount(mount, new_namespace)))
            .collect();
        for mount in &old {
            let Some(copy) = copies.get(&mount.id()) else { continue };
            let place = mount.place.read().clone();
            let place = place.and_then(|(parent, dentry)| Some((copies.get(&parent.id())?.clone(), dentry)));
            table.attach(copy, place);
        }
        for path in paths {
            if let Some((mount, dentry)) = path.tree()
                && let Some(copy) = copies.get(&mount.id())
            {
                **path = VfsPath::new(copy.clone(), dentry.clone());
            }
        }
        Ok(new_namespace)
    }

    /// The root of a namespace's mounts.
    pub fn namespace_root(&self, namespace: u64) -> Option<VfsPath> {
        let table = self.table.read();
        let all = table.of_namespace(namespace);
        let root = all.into_iter().find(|mount| mount.place.read().is_none())?;
        let dentry = root.root().clone();
        Some(VfsPath::new(root, dentry))
    }

    /// Ends a namespace that no process is in any more: takes all its mounts apart.
    pub fn end_namespace(&self, namespace: u64) {
        let mut table = self.table.write();
        let all = table.of_namespace(namespace);
        for mount in &all {
            table.detach(mount);
        }
        // The last references may be these: file systems are freed without the lock.
        drop(table);
        drop(all);
        self.notifier.sweep_unmounted();
    }
}

fn attach_new(
    table: &mut MountTable,
    fs: &Arc<FileSystem>,
    root: &Arc<Dentry>,
    target: &VfsPath,
    flags: MountFlags,
) -> Result<VfsPath, Errno> {
    let (mount, dentry) = target.tree().ok_or(Errno::ENOTDIR)?;
    if root.is_dir() != dentry.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    if dentry.is_deleted() {
        return Err(Errno::ENOENT);
    }
    if !table.has(mount) {
        return Err(Errno::EINVAL);
    }
    if table.by_id.len() >= MOUNTS_MAX {
        return Err(Errno::ENOSPC);
    }
    check_free(table, mount, dentry)?;
    let new = Mount::new(fs.clone(), root.clone(), flags, mount.namespace);
    table.attach(&new, Some((mount.clone(), dentry.clone())));
    Ok(VfsPath::new(new, root.clone()))
}

/// A resolved target is the topmost mount there; only a stale one has something on it.
fn check_free(table: &MountTable, mount: &Mount, dentry: &Arc<Dentry>) -> Result<(), Errno> {
    if table.at(mount, dentry).is_some() {
        Err(Errno::EBUSY)
    } else {
        Ok(())
    }
}

fn copy_mount(mount: &Mount, namespace: u64) -> Arc<Mount> {
    Mount::new(
        mount.file_system().clone(),
        mount.root().clone(),
        mount.flags(),
        namespace,
    )
}

/// `EINVAL` unless the place is the root of a mount.
fn mount_root(path: &VfsPath) -> Result<&Arc<Mount>, Errno> {
    match path.tree() {
        Some((mount, dentry)) if Arc::ptr_eq(mount.root(), dentry) => Ok(mount),
        _ => Err(Errno::EINVAL),
    }
}

/// True if the second place is the first or below it.
fn is_below(top: &Arc<Mount>, top_dentry: &Arc<Dentry>, mount: &Arc<Mount>, dentry: &Arc<Dentry>) -> bool {
    let mut place = (mount.clone(), dentry.clone());
    while !Arc::ptr_eq(top, &place.0) {
        let Some(above) = place.0.place.read().clone() else {
            return false;
        };
        place = above;
    }
    top_dentry.is_ancestor_of(&place.1)
}

fn path_in_file_system(dentry: &Arc<Dentry>) -> Vec<u8> {
    let mut names = Vec::new();
    let mut next = dentry.clone();
    while let Some(parent) = next.parent() {
        names.push(next.name());
        next = parent;
    }
    if names.is_empty() {
        return b"/".to_vec();
    }
    let mut text = Vec::new();
    for name in names.iter().rev() {
        text.push(b'/');
        text.extend_from_slice(name);
    }
    if dentry.is_deleted() {
        text.extend_from_slice(b"//deleted");
    }
    text
}

impl MountFlags {
    /// As in /proc/mounts: `rw,nosuid,relatime`.
    pub fn to_options(self) -> String {
        let mut text = String::from(if self.contains(MountFlags::READ_ONLY) {
            "ro"
        } else {
            "rw"
        });
        for (flag, name) in [
            (MountFlags::NO_SUID, ",nosuid"),
            (MountFlags::NO_DEV, ",nodev"),
            (MountFlags::NO_EXEC, ",noexec"),
            (MountFlags::NO_ATIME, ",noatime"),
            (MountFlags::NO_DIRATIME, ",nodiratime"),
            (MountFlags::REL_ATIME, ",relatime"),
            (MountFlags::NO_SYMFOLLOW, ",nosymfollow"),
        ] {
            if self.contains(flag) {
                text.push_str(name);
            }
        }
        text
    }
}

impl MountInfo {
    /// A line of /proc/PID/mounts, with its newline.
    pub fn mounts_line(&self) -> Vec<u8> {
        let mut line = Vec::new();
        for field in [&self.source, &self.target, &self.kind.as_bytes().to_vec()] {
            push_escaped(&mut line, field);
            line.push(b' ');
        }
        line.extend_from_slice(self.flags.to_options().as_bytes());
        self.push_options(&mut line);
        line.extend_from_slice(b" 0 0\n");
        line
    }

    /// A line of /proc/PID/mountinfo, with its newline.
    pub fn mountinfo_line(&self) -> Vec<u8> {
        let (major, minor) = (libc::major(self.dev), libc::minor(self.dev));
        let mut line = format!("{} {} {major}:{minor} ", self.id, self.parent_id).into_bytes();
        push_escaped(&mut line, &self.root);
        line.push(b' ');
        push_escaped(&mut line, &self.target);
        line.extend_from_slice(format!(" {} - {} ", self.flags.to_options(), self.kind).as_bytes());
        push_escaped(&mut line, &self.source);
        line.extend_from_slice(if self.flags.contains(MountFlags::READ_ONLY) {
            b" ro"
        } else {
            b" rw"
        });
        self.push_options(&mut line);
        line.push(b'\n');
        line
    }

    fn push_options(&self, line: &mut Vec<u8>) {
        if !self.options.is_empty() {
            line.push(b',');
            line.extend_from_slice(&self.options);
        }
    }
}

/// Blanks, backslashes and `#` as octal numbers.
fn push_escaped(line: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\\' | b'#') {
            line.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            line.push(byte);
        }
    }
}
