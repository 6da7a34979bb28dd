//! mount(2), umount2(2), pivot_root(2).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use sentry_lock::{Mutex, rank};
use sentry_abi::Errno;
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;
use sentry_vfs::devtmpfs;
use sentry_vfs::mount::{FileSystem, MountFlags, Propagation};
use sentry_vfs::ops::{At, Lookup};
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::{MEMORY, Tmpfs, TmpfsOptions};

use super::args::int;
use super::{Row, SysResult, call};
use crate::procfs;
use crate::task::Thread;
use crate::tty::devpts::{DevPts, Options};
use crate::user::{read_cstr, read_path};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_mount, mount, Str, Str, Str, Hex, Ptr),
    call!(libc::SYS_umount2, umount2, Str, Hex),
    call!(libc::SYS_pivot_root, pivot_root, Str, Str),
];

/// The old magic number that may stand in the upper half of the flags.
const MAGIC: u64 = 0xc0ed_0000;

fn optional(thread: &Thread, addr: u64, max: usize) -> Result<Vec<u8>, Errno> {
    if addr == 0 {
        Ok(Vec::new())
    } else {
        read_cstr(thread, addr, max)
    }
}

fn resolve(thread: &Thread, path: &[u8], lookup: Lookup) -> Result<VfsPath, Errno> {
    let context = thread.context();
    thread.kernel().vfs().resolve(&context.caller(), At::Cwd, path, lookup)
}

fn mount(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let kind = optional(thread, args.args[2], sentry_abi::PAGE_SIZE as usize)?;
    let source = optional(thread, args.args[0], crate::user::PATH_MAX)?;
    let target = read_path(thread, args.args[1])?;
    let mut flags = args.args[3];
    if flags & 0xffff_0000 == MAGIC {
        flags &= 0xffff;
    }
    let data = optional(thread, args.args[4], sentry_abi::PAGE_SIZE as usize)?;
    let vfs = thread.kernel().vfs();
    let target = vfs.topmost(&resolve(thread, &target, Lookup::empty())?);
    let context = thread.context();
    context.cred.require(Cap::SYS_ADMIN)?;
    let caller = context.caller();
    const PROPAGATION: u64 = libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE | libc::MS_UNBINDABLE;
    if flags & libc::MS_REMOUNT != 0 {
        let mut new = mount_flags(flags);
        if flags & ATIME == 0 {
            // What is not said stays.
            let atime = mount_flags(ATIME);
            let old = target.mount().map(|mount| mount.flags()).unwrap_or_default();
            new = (new - atime) | (old & atime);
        }
        let changes_fs = flags & libc::MS_BIND == 0;
        vfs.remount(&caller, &target, new, changes_fs.then_some(&data))?;
    } else if flags & libc::MS_BIND != 0 {
        let source = resolve(thread, &source, Lookup::empty())?;
        vfs.bind(&caller, &source, &target, flags & libc::MS_REC != 0)?;
    } else if flags & PROPAGATION != 0 {
        if flags & !(PROPAGATION | libc::MS_REC | libc::MS_SILENT) != 0 {
            return Err(Errno::EINVAL);
        }
        let kind = match flags & PROPAGATION {
            libc::MS_SHARED => Propagation::Shared,
            libc::MS_PRIVATE => Propagation::Private,
            libc::MS_SLAVE => Propagation::Slave,
            libc::MS_UNBINDABLE => Propagation::Unbindable,
            _ => return Err(Errno::EINVAL),
        };
        vfs.set_propagation(&caller, &target, kind)?;
    } else if flags & libc::MS_MOVE != 0 {
        let source = resolve(thread, &source, Lookup::empty())?;
        vfs.move_mount(&caller, &source, &target)?;
    } else {
        let fs = file_system(thread, &kind, &source, &data)?;
        vfs.mount(&caller, &fs, &target, mount_flags(flags))?;
    }
    Ok(0)
}

/// What mount(2) says about access times.
const ATIME: u64 = libc::MS_NOATIME | libc::MS_NODIRATIME | libc::MS_RELATIME | libc::MS_STRICTATIME;

/// The flags of a mount: access times are relative unless something else is asked for.
fn mount_flags(flags: u64) -> MountFlags {
    let mut mount = MountFlags::from_bits_truncate(flags as u32) - MountFlags::REL_ATIME;
    if flags & libc::MS_STRICTATIME != 0 {
        mount -= MountFlags::NO_ATIME;
    } else if flags & libc::MS_NOATIME == 0 {
        mount |= MountFlags::REL_ATIME;
    }
    mount
}

/// File systems that are the same wherever they are mounted, by type.
#[derive(Default)]
pub struct SharedFileSystems {
    mounted: Mutex<BTreeMap<&'static str, Weak<FileSystem>>, rank::SharedMounts>,
}

impl SharedFileSystems {
    /// The file system of a type, made if it is mounted nowhere.
    fn get(&self, kind: &'static str, make: impl FnOnce() -> Arc<FileSystem>) -> Arc<FileSystem> {
        if let Some(fs) = self.mounted.lock().get(kind).and_then(Weak::upgrade) {
            return fs;
        }
        let fs = make();
        self.mounted.lock().insert(kind, Arc::downgrade(&fs));
        fs
    }
}

/// A file system of a type that guests may mount.
fn file_system(thread: &Thread, kind: &[u8], source: &[u8], data: &[u8]) -> Result<Arc<FileSystem>, Errno> {
    let source = if source.is_empty() { b"none" } else { source };
    let kernel = thread.kernel();
    let shared = &kernel.shared_file_systems;
    match kind {
        b"tmpfs" | b"ramfs" => {
            let mut options = TmpfsOptions::parse(data, MEMORY)?;
            // A limit in any case: the memory is the sandbox's.
            options.size.get_or_insert(MEMORY / 2);
            options.budget = kernel.vfs().budget().clone();
            Ok(Tmpfs::new(options).file_system(source))
        }
        b"proc" => Ok(shared.get("proc", || procfs::proc_fs(kernel))),
        b"sysfs" => Ok(shared.get("sysfs", procfs::sys_fs)),
        b"devtmpfs" => Ok(shared.get("devtmpfs", devtmpfs::file_system)),
        b"devpts" => Ok(DevPts::new(Options::parse(data)?).file_system(source)),
        b"" => Err(Errno::EINVAL),
        _ => {
            crate::gap!(
                kernel,
                "mount of {}",
                String::from_utf8_lossy(&kind[..kind.len().min(32)])
            );
            Err(Errno::ENODEV)
        }
    }
}

fn umount2(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const KNOWN: i32 = libc::MNT_DETACH | libc::MNT_FORCE | libc::MNT_EXPIRE | libc::UMOUNT_NOFOLLOW;
    let flags = int(args, 1);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let path = read_path(thread, args.args[0])?;
    let mut lookup = Lookup::empty();
    lookup.set(Lookup::NO_FOLLOW, flags & libc::UMOUNT_NOFOLLOW != 0);
    lookup.set(Lookup::KEEP_EXPIRY, flags & libc::MNT_EXPIRE != 0);
    let context = thread.context();
    let vfs = thread.kernel().vfs();
    // The only reference: others count as users.
    let target = {
        let place = resolve(thread, &path, lookup)?;
        vfs.topmost(&place)
    };
    vfs.umount(&context.caller(), &target, flags)?;
    drop(target);
    vfs.settle_umount();
    Ok(0)
}

fn pivot_root(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let new_root = read_path(thread, args.args[0])?;
    let put_old = read_path(thread, args.args[1])?;
    let new_root = resolve(thread, &new_root, Lookup::DIRECTORY)?;
    let put_old = resolve(thread, &put_old, Lookup::DIRECTORY)?;
    let context = thread.context();
    let old_root = context.root.clone();
    thread
        .kernel()
        .vfs()
        .pivot_root(&context.caller(), &new_root, &put_old)?;
    // Who stood in the old root stands in the new one now.
    let kernel = thread.kernel();
    let threads: Vec<Arc<Thread>> = kernel.tasks.read().threads().cloned().collect();
    for other in threads {
        let fs = other.fs();
        if fs.root().same(&old_root) {
            fs.set_root(new_root.clone());
        }
        if fs.cwd().same(&old_root) {
            fs.set_cwd(new_root.clone());
        }
    }
    Ok(0)
}
