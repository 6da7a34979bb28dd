//! Path walk (path_resolution(7), openat2(2)).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;

use crate::dentry::Dentry;
use crate::mount::{Mount, MountFlags};
use crate::ops::{Access, At, Caller, Lookup, Resolve, Vfs};
use crate::path::VfsPath;
use crate::permission;

/// Bytes in a path, the final NUL included.
pub const PATH_MAX: usize = 4096;
/// Bytes in a name.
pub const NAME_MAX: usize = 255;
/// Symbolic links followed in one walk.
const LINKS_MAX: u32 = 40;

/// A mount and a dentry.
#[derive(Clone)]
pub(crate) struct Place {
    pub mount: Arc<Mount>,
    pub dentry: Arc<Dentry>,
}

impl Place {
    pub(crate) fn of(path: &VfsPath) -> Option<Place> {
        path.tree().map(|(mount, dentry)| Place {
            mount: mount.clone(),
            dentry: dentry.clone(),
        })
    }

    fn is(&self, path: &VfsPath) -> bool {
        path.tree()
            .is_some_and(|(mount, dentry)| Arc::ptr_eq(&self.mount, mount) && Arc::ptr_eq(&self.dentry, dentry))
    }

    pub(crate) fn into_path(self) -> VfsPath {
        VfsPath::new(self.mount, self.dentry)
    }
}

/// What kind the last component of a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastKind {
    /// There is none: the path was `/`.
    Root,
    Dot,
    DotDot,
    Name,
}

/// A walk in progress. After [`Walker::parent`], `place` is the directory of the last component.
pub(crate) struct Walker<'a> {
    vfs: &'a Vfs,
    caller: &'a Caller<'a>,
    resolve: Resolve,
    root: &'a VfsPath,
    pub place: Place,
    path: Cow<'a, [u8]>,
    pos: usize,
    last: Range<usize>,
    pub kind: LastKind,
    /// The last component had a slash behind it.
    pub slash: bool,
    links: u32,
    keep_expiry: bool,
    /// Where a magic link at the end led.
    magic: Option<VfsPath>,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        vfs: &'a Vfs,
        caller: &'a Caller<'a>,
        at: At<'a>,
        path: &'a [u8],
        resolve: Resolve,
    ) -> Result<Walker<'a>, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let start = match at {
            At::Cwd => caller.cwd,
            At::Path(path) => path,
        };
        let scoped = resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT);
        let root = if scoped { start } else { caller.root };
        let absolute = path.first() == Some(&b'/');
        if absolute && resolve.contains(Resolve::BENEATH) {
            return Err(Errno::EXDEV);
        }
        let place = Place::of(if absolute { root } else { start }).ok_or(Errno::ENOTDIR)?;
        Ok(Walker {
            vfs,
            caller,
            resolve,
            root,
            place,
            path: Cow::Borrowed(path),
            pos: 0,
            last: 0..0,
            kind: LastKind::Root,
            slash: false,
            links: 0,
            keep_expiry: false,
            magic: None,
        })
    }

    /// The last component, if it is a name.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.get(self.last.clone()).unwrap_or_default()
    }

    /// Walks to the directory of the last component, which must be searchable.
    pub(crate) fn parent(&mut self) -> Result<(), Errno> {
        loop {
            let start = self.skip_slashes(self.pos);
            if start == self.path.len() {
                self.kind = LastKind::Root;
                self.slash = true;
                return Ok(());
            }
            let end = self.path[start..]
                .iter()
                .position(|&byte| byte == b'/')
                .map_or(self.path.len(), |len| start + len);
            self.pos = self.skip_slashes(end);
            self.check_search()?;
            self.last = start..end;
            self.slash = end < self.path.len();
            self.kind = match self.name() {
                b"." => LastKind::Dot,
                b".." => LastKind::DotDot,
                _ => LastKind::Name,
            };
            if self.pos == self.path.len() {
                return Ok(());
            }
            match self.kind {
                LastKind::Dot | LastKind::Root => {}
                LastKind::DotDot => self.up()?,
                LastKind::Name => {
                    let next = self.lookup()?.ok_or(Errno::ENOENT)?;
                    if next.dentry.is_symlink() {
                        self.follow(&next)?;
                        if self.magic.take().is_some() {
                            return Err(Errno::ENOTDIR);
                        }
                    } else {
                        self.place = next;
                    }
                }
            }
        }
    }

    /// Walks the whole path.
    pub(crate) fn finish(mut self, flags: Lookup) -> Result<VfsPath, Errno> {
        self.keep_expiry = flags.contains(Lookup::KEEP_EXPIRY);
        self.parent()?;
        loop {
            match self.kind {
                LastKind::Root | LastKind::Dot => break,
                LastKind::DotDot => {
                    self.up()?;
                    break;
                }
                LastKind::Name => {
                    let next = self.lookup()?.ok_or(Errno::ENOENT)?;
                    if !next.dentry.is_symlink() || (flags.contains(Lookup::NO_FOLLOW) && !self.slash) {
                        self.place = next;
                        break;
                    }
                    if let Some(path) = self.follow_last(&next)? {
                        return path.required(flags, false);
                    }
                }
            }
        }
        let slash = self.slash;
        self.place.into_path().required(flags, slash)
    }

    /// Looks the last component up, and goes into what is mounted there.
    pub(crate) fn lookup(&self) -> Result<Option<Place>, Errno> {
        let Some(dentry) = self.vfs.child(&self.place.dentry, self.name())? else {
            return Ok(None);
        };
        self.cross(Place {
            mount: self.place.mount.clone(),
            dentry,
        })
        .map(Some)
    }

    /// Follows a symbolic link that is the last component: walks on to the last component of its target, or gives
    /// the end of a magic link.
    pub(crate) fn follow_last(&mut self, link: &Place) -> Result<Option<VfsPath>, Errno> {
        self.follow(link)?;
        match self.magic.take() {
            Some(path) if self.slash && !path.dentry().is_some_and(|dentry| dentry.is_dir()) => Err(Errno::ENOTDIR),
            Some(path) => Ok(Some(path)),
            None => self.parent().map(|()| None),
        }
    }

    fn skip_slashes(&self, from: usize) -> usize {
        self.path[from..]
            .iter()
            .position(|&byte| byte != b'/')
            .map_or(self.path.len(), |count| from + count)
    }

    fn check_search(&self) -> Result<(), Errno> {
        if !self.place.dentry.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        permission::check(self.caller.cred, self.place.dentry.inode().permissions()?, Access::EXEC)
    }

    fn cross(&self, mut place: Place) -> Result<Place, Errno> {
        while place.dentry.mounts.load(Ordering::Acquire) > 0 {
            let Some(mount) = self.vfs.mounted_at(&place.mount, &place.dentry) else {
                break;
            };
            if self.resolve.contains(Resolve::NO_XDEV) {
                return Err(Errno::EXDEV);
            }
            if mount.expiring.load(Ordering::Relaxed) && !self.keep_expiry {
                mount.expiring.store(false, Ordering::Relaxed);
            }
            let dentry = mount.root().clone();
            place = Place { mount, dentry };
        }
        Ok(place)
    }

    /// `..`
    pub(crate) fn up(&mut self) -> Result<(), Errno> {
        let mut place = self.place.clone();
        loop {
            if place.is(self.root) {
                if self.resolve.contains(Resolve::BENEATH) {
                    return Err(Errno::EXDEV);
                }
                break;
            }
            if Arc::ptr_eq(&place.dentry, place.mount.root()) {
                let Some((mount, dentry)) = place.mount.place.read().clone() else {
                    break;
                };
                if self.resolve.contains(Resolve::NO_XDEV) {
                    return Err(Errno::EXDEV);
                }
                place = Place { mount, dentry };
                continue;
            }
            let Some(parent) = place.dentry.parent() else { break };
            place.dentry = parent;
            place = self.cross(place)?;
            break;
        }
        self.place = place;
        Ok(())
    }

    /// Puts the link's target before the rest of the path, or notes where a magic link leads.
    fn follow(&mut self, link: &Place) -> Result<(), Errno> {
        self.links += 1;
        if self.links > LINKS_MAX
            || self.resolve.contains(Resolve::NO_SYMLINKS)
            || link.mount.flags().contains(MountFlags::NO_SYMFOLLOW)
        {
            return Err(Errno::ELOOP);
        }
        let inode = link.dentry.inode();
        if let Some(magic) = inode.follow_magic_as(self.caller.task) {
            return self.jump(link, magic?);
        }
        let target = inode.readlink_as(self.caller.task)?;
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if target.first() == Some(&b'/') {
            if self.resolve.contains(Resolve::BENEATH) {
                return Err(Errno::EXDEV);
            }
            let root = Place::of(self.root).ok_or(Errno::ENOTDIR)?;
            if self.resolve.contains(Resolve::NO_XDEV) && !Arc::ptr_eq(&root.mount, &self.place.mount) {
                return Err(Errno::EXDEV);
            }
            self.place = root;
        }
        let mut path = target;
        path.extend_from_slice(&self.path[self.last.end..]);
        self.path = Cow::Owned(path);
        self.pos = 0;
        Ok(())
    }

    fn jump(&mut self, link: &Place, to: VfsPath) -> Result<(), Errno> {
        if self.resolve.contains(Resolve::NO_MAGICLINKS) {
            return Err(Errno::ELOOP);
        }
        let same_mount = to.mount().is_some_and(|mount| Arc::ptr_eq(mount, &link.mount));
        if self.resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT)
            || (self.resolve.contains(Resolve::NO_XDEV) && !same_mount)
        {
            return Err(Errno::EXDEV);
        }
        if self.pos == self.path.len() {
            self.magic = Some(to);
            return Ok(());
        }
        // In the middle of a path: walk on from there.
        self.place = Place::of(&to).ok_or(Errno::ENOTDIR)?;
        Ok(())
    }
}

impl VfsPath {
    /// `ENOTDIR` if a directory is asked for and this is none.
    fn required(self, flags: Lookup, slash: bool) -> Result<VfsPath, Errno> {
        let is_dir = self.dentry().is_some_and(|dentry| dentry.is_dir());
        if (slash || flags.contains(Lookup::DIRECTORY)) && !is_dir {
            Err(Errno::ENOTDIR)
        } else {
            Ok(self)
        }
    }
}

impl Vfs {
    /// Resolves a path.
    pub fn resolve(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8], flags: Lookup) -> Result<VfsPath, Errno> {
        self.resolve_within(caller, at, path, flags, Resolve::empty())
    }

    /// As [`Vfs::resolve`] with openat2(2)'s restrictions.
    pub fn resolve_within(
        &self,
        caller: &Caller<'_>,
        at: At<'_>,
        path: &[u8],
        flags: Lookup,
        resolve: Resolve,
    ) -> Result<VfsPath, Errno> {
        self.maybe_shrink();
        if path.is_empty() && flags.contains(Lookup::EMPTY_PATH) {
            let start = match at {
                At::Cwd => caller.cwd,
                At::Path(path) => path,
            };
            return start.clone().required(flags, false);
        }
        Walker::new(self, caller, at, path, resolve)?.finish(flags)
    }

    /// A place as text, from `root`: what getcwd(2) and /proc show. A removed file ends in ` (deleted)`. The flag
    /// says whether it can be reached from `root` (getcwd puts `(unreachable)` before it if not).
    pub fn d_path(&self, root: &VfsPath, path: &VfsPath) -> (Vec<u8>, bool) {
        let Some(mut place) = Place::of(path) else {
            return (path.anonymous_name().unwrap_or_default().to_vec(), true);
        };
        let deleted = place.dentry.is_deleted();
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        // A rename must not move a part of the path while it is read.
        let _still = self.rename_lock.read_anyway();
        let reachable = loop {
            if place.is(root) {
                break true;
            }
            if Arc::ptr_eq(&place.dentry, place.mount.root()) {
                let Some((mount, dentry)) = place.mount.place.read().clone() else {
                    break false;
                };
                place = Place { mount, dentry };
                continue;
            }
            let Some(parent) = place.dentry.parent() else {
                break false;
            };
            names.push(place.dentry.name());
            place.dentry = parent;
        };
        let mut text = Vec::new();
        for name in names.iter().rev() {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        if text.is_empty() {
            text.push(b'/');
        }
        if deleted {
            text.extend_from_slice(b" (deleted)");
        }
        (text, reachable)
    }

    /// getcwd(2): `ENOENT` if the directory was removed.
    pub fn getcwd(&self, caller: &Caller<'_>) -> Result<Vec<u8>, Errno> {
        if caller.cwd.dentry().is_some_and(|dentry| dentry.is_deleted()) {
            return Err(Errno::ENOENT);
        }
        let (text, reachable) = self.d_path(caller.root, caller.cwd);
        Ok(if reachable {
            text
        } else {
            [b"(unreachable)".as_slice(), &text].concat()
        })
    }
}
