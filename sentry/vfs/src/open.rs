//! open(2).

use std::any::Any;
use std::sync::Arc;

use sentry_abi::Errno;

use crate::attr::resized;
use crate::device::{DeviceKind, DeviceOpen};
use crate::file::{File, FileOps};
use crate::mount::MountFlags;
use crate::names::check_create;
use crate::notify::Events;
use crate::ops::{Access, At, Caller, Lookup, Resolve, Vfs};
use crate::path::VfsPath;
use crate::permission;
use crate::walk::{LastKind, Walker};

/// The bit of `O_TMPFILE` that `O_DIRECTORY` does not have.
const TMPFILE_BIT: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// What a 64-bit kernel adds to every open (its own `O_LARGEFILE`; libc's is 0).
const LARGEFILE: i32 = 0o100000;
/// Flags that only matter while opening.
const OPENING: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC;

impl Vfs {
    /// open(2), openat(2), openat2(2). `flags` are `O_*` (unknown ones must be masked or refused by the call),
    /// `mode` the permission bits for a new file, umask not applied. FIFOs: see [`crate::device::FifoOpener`].
    pub fn open(
        &self,
        caller: &Caller<'_>,
        at: At<'_>,
        path: &[u8],
        flags: i32,
        mode: u32,
        resolve: Resolve,
    ) -> Result<Arc<File>, Errno> {
        let mut flags = flags;
        if flags & libc::O_PATH != 0 {
            flags &= libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        }
        if flags & libc::O_CREAT != 0 && flags & (libc::O_DIRECTORY | TMPFILE_BIT) != 0 {
            return Err(Errno::EINVAL);
        }
        let mut lookup = Lookup::empty();
        if flags & libc::O_NOFOLLOW != 0 {
            lookup |= Lookup::NO_FOLLOW;
        }
        if flags & libc::O_DIRECTORY != 0 {
            lookup |= Lookup::DIRECTORY;
        }
        if flags & TMPFILE_BIT != 0 {
            if flags & libc::O_DIRECTORY == 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
                return Err(Errno::EINVAL);
            }
            let dir = self.resolve_within(caller, at, path, lookup, resolve)?;
            return self.open_unnamed(caller, &dir, flags, mode);
        }
        if flags & libc::O_CREAT != 0 {
            return self.open_or_create(caller, at, path, flags, mode, resolve);
        }
        let place = self.resolve_within(caller, at, path, lookup, resolve)?;
        self.open_place(caller, place, flags)
    }

    /// Opens a place already resolved (`/proc/PID/fd/N`, open_by_handle_at). No creation.
    pub fn open_path(&self, caller: &Caller<'_>, path: &VfsPath, flags: i32) -> Result<Arc<File>, Errno> {
        let is_dir = path.dentry().is_some_and(|dentry| dentry.is_dir());
        if flags & libc::O_DIRECTORY != 0 && !is_dir {
            return Err(Errno::ENOTDIR);
        }
        self.open_place(
            caller,
            path.clone(),
            flags & !(libc::O_CREAT | libc::O_EXCL | TMPFILE_BIT),
        )
    }

    /// Opens a program to execute it: a regular file with execute permission, not on a `noexec` mount (else
    /// `EACCES`), that nobody has open for writing (`ETXTBSY`). It cannot be opened for writing as long as this lasts,
    /// or until [`File::release_text`].
    pub fn open_exec(&self, caller: &Caller<'_>, at: At<'_>, path: &[u8], flags: Lookup) -> Result<Arc<File>, Errno> {
        let place = self.resolve(caller, at, path, flags)?;
        let inode = place.inode().ok_or(Errno::EACCES)?;
        let permissions = inode.permissions()?;
        if permissions.is_symlink() {
            return Err(Errno::ELOOP);
        }
        let no_exec = place
            .mount()
            .is_some_and(|mount| mount.flags().contains(MountFlags::NO_EXEC));
        if !permissions.is_regular() || no_exec {
            return Err(Errno::EACCES);
        }
        permission::check(caller.cred, permissions, Access::EXEC)?;
        let text = self.texts.execute(inode)?;
        let _opened = self.break_leases(inode, false, false)?;
        let ops = inode.open(libc::O_RDONLY as u32)?;
        let file = File::opened(place, (libc::O_RDONLY | LARGEFILE) as u32, ops, &self.notifier);
        file.keep_text(Some(text));
        self.notifier.opened_file(&file, Events::ACCESS);
        Ok(file)
    }

    fn open_or_create(
        &self,
        caller: &Caller<'_>,
        at: At<'_>,
        path: &[u8],
        flags: i32,
        mode: u32,
        resolve: Resolve,
    ) -> Result<Arc<File>, Errno> {
        let exclusive = flags & libc::O_EXCL != 0;
        self.maybe_shrink();
        let mut walker = Walker::new(self, caller, at, path, resolve)?;
        walker.parent()?;
        loop {
            if walker.kind != LastKind::Name {
                if walker.kind == LastKind::DotDot {
                    walker.up()?;
                }
                return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
            }
            if walker.slash {
                return Err(Errno::EISDIR);
            }
            let found = match walker.lookup()? {
                Some(found) => found,
                None => match self.create_and_open(caller, &walker, flags, mode)? {
                    Some(file) => return Ok(file),
                    // Somebody else made it in between.
                    None => continue,
                },
            };
            if exclusive {
                return Err(Errno::EEXIST);
            }
            let place = if !found.dentry.is_symlink() {
                found.into_path()
            } else if flags & libc::O_NOFOLLOW != 0 {
                return Err(Errno::ELOOP);
            } else {
                match walker.follow_last(&found)? {
                    Some(place) => place,
                    None => continue,
                }
            };
            if place.dentry().is_some_and(|dentry| dentry.is_dir()) {
                return Err(Errno::EISDIR);
            }
            return self.open_place(caller, place, flags);
        }
    }

    /// Makes the last component a regular file and opens it; `None` if it exists meanwhile.
    fn create_and_open(
        &self,
        caller: &Caller<'_>,
        walker: &Walker<'_>,
        flags: i32,
        mode: u32,
    ) -> Result<Option<Arc<File>>, Errno> {
        let dir = &walker.place.dentry;
        let mut children = dir.children.lock()?;
        if self.child_locked(dir, &mut children, walker.name())?.is_some() {
            return Ok(None);
        }
        let permissions = check_create(caller, &walker.place)?;
        let mode = libc::S_IFREG | (mode & 0o7777 & !caller.umask);
        let new = permission::new_inode(caller.cred, permissions, mode, 0);
        let (inode, ops) = match dir.inode().create_open(walker.name(), &new, flags as u32) {
            Ok(created) => created,
            Err(errno) => {
                // It may be there all the same.
                children.remove(walker.name());
                return match errno {
                    // Possible where others change the directory too.
                    Errno::EEXIST if flags & libc::O_EXCL == 0 => Ok(None),
                    errno => Err(errno),
                };
            }
        };
        let text = writes(flags).then(|| self.texts.write(&inode)).transpose()?;
        let dentry = self.insert_new(dir, &mut children, walker.name(), inode);
        self.notifier.made(dir, &dentry, false);
        drop(children);
        let path = VfsPath::new(walker.place.mount.clone(), dentry);
        let file = File::opened(path, kept_flags(flags), ops, &self.notifier);
        file.keep_text(text);
        Ok(Some(file))
    }

    /// `O_TMPFILE`.
    fn open_unnamed(&self, caller: &Caller<'_>, dir: &VfsPath, flags: i32, mode: u32) -> Result<Arc<File>, Errno> {
        let (mount, dentry) = dir.tree().ok_or(Errno::ENOTDIR)?;
        mount.check_writable()?;
        let permissions = dentry.inode().permissions()?;
        permission::check(caller.cred, permissions, Access(Access::WRITE.0 | Access::EXEC.0))?;
        let mode = libc::S_IFREG | (mode & 0o7777 & !caller.umask);
        let mut new = permission::new_inode(caller.cred, permissions, mode, 0);
        new.rdev = 0;
        let inode = dentry.inode().tmpfile(&new)?;
        let text = self.texts.write(&inode)?;
        let ops = inode.open(flags as u32)?;
        let number = inode.attributes()?.ino;
        let unnamed = crate::dentry::Dentry::child(inode, dentry, format!("#{number}").as_bytes());
        unnamed.mark_deleted();
        let path = VfsPath::new(mount.clone(), unnamed);
        let file = File::opened(path, kept_flags(flags), ops, &self.notifier);
        file.keep_text(Some(text));
        Ok(file)
    }

    /// Opens what exists, with all checks.
    fn open_place(&self, caller: &Caller<'_>, place: VfsPath, flags: i32) -> Result<Arc<File>, Errno> {
        if flags & libc::O_PATH != 0 {
            return Ok(File::new(place, flags as u32, Box::new(PathOnly)));
        }
        let inode = place.inode().ok_or(Errno::ENXIO)?;
        let permissions = inode.permissions()?;
        let writes = writes(flags);
        let mut wanted = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => Access::READ.0,
            libc::O_WRONLY => Access::WRITE.0,
            _ => Access::READ.0 | Access::WRITE.0,
        };
        let truncates = flags & libc::O_TRUNC != 0 && permissions.is_regular();
        if flags & libc::O_TRUNC != 0 {
            wanted |= Access::WRITE.0;
        }
        let kind = permissions.kind();
        let mount_flags = place.mount().map(|mount| mount.flags()).unwrap_or_default();
        match kind {
            libc::S_IFLNK => return Err(Errno::ELOOP),
            libc::S_IFDIR if wanted & Access::WRITE.0 != 0 || flags & libc::O_CREAT != 0 => return Err(Errno::EISDIR),
            libc::S_IFCHR | libc::S_IFBLK if mount_flags.contains(MountFlags::NO_DEV) => return Err(Errno::EACCES),
            _ => {}
        }
        permission::check(caller.cred, permissions, Access(wanted))?;
        if flags & libc::O_NOATIME != 0 {
            permission::check_owner(caller.cred, permissions)?;
        }
        if place.mount().is_none() {
            // A pipe or the like, opened again through /proc: its own kind of inode.
            let ops = inode.open(flags as u32)?;
            return Ok(File::new(place, kept_flags(flags), ops));
        }
        let (mut truncated, mut text, mut opened) = (None, None, None);
        let ops: Box<dyn FileOps> = match kind {
            libc::S_IFSOCK => return Err(Errno::ENXIO),
            libc::S_IFIFO => {
                let opener = self.fifos.read().clone().ok_or(Errno::ENXIO)?;
                opener.open_fifo(&place, flags)?
            }
            libc::S_IFCHR | libc::S_IFBLK => {
                let kind = if kind == libc::S_IFCHR {
                    DeviceKind::Character
                } else {
                    DeviceKind::Block
                };
                let rdev = inode.attributes()?.rdev;
                self.devices.open(
                    kind,
                    &DeviceOpen {
                        path: &place,
                        flags,
                        rdev,
                        task: caller.task,
                    },
                )?
            }
            _ => {
                if writes || truncates {
                    place.mount().map_or(Ok(()), |mount| mount.check_writable())?;
                    if kind == libc::S_IFREG {
                        text = Some(self.texts.write(inode)?);
                    }
                }
                if kind == libc::S_IFREG {
                    opened = self.break_leases(inode, writes, flags & libc::O_NONBLOCK != 0)?;
                }
                if truncates {
                    // The host may report the change as soon as it is made.
                    place
                        .dentry()
                        .inspect(|dentry| self.notifier.file(dentry, Events::OPEN));
                    let set = resized(caller, permissions, 0);
                    inode.set_attributes(&set)?;
                    truncated = Some(set);
                }
                inode.open_as(flags as u32, caller.task)?
            }
        };
        let file = if truncated.is_some() {
            File::opened_before(place, kept_flags(flags), ops, &self.notifier)
        } else {
            File::opened(place, kept_flags(flags), ops, &self.notifier)
        };
        file.keep_text(text.filter(|_| writes));
        drop(opened);
        if let Some(set) = truncated {
            self.notifier.attributes(file.path(), &set);
        }
        Ok(file)
    }
}

fn writes(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR | 3)
}

fn kept_flags(flags: i32) -> u32 {
    ((flags & !OPENING) | LARGEFILE) as u32
}

/// What `O_PATH` opens: nothing but the place.
struct PathOnly;

impl FileOps for PathOnly {
    fn read(&self, _file: &File, _buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }
    fn write(&self, _file: &File, _buf: &[u8], _offset: u64) -> Result<(usize, u64), Errno> {
        Err(Errno::EBADF)
    }
    fn readdir(
        &self,
        _file: &File,
        _pos: u64,
        _sink: &mut dyn FnMut(&crate::file::DirEntry, u64) -> bool,
    ) -> Result<(), Errno> {
        Err(Errno::EBADF)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
