//! Namespaces of our own, user mappings and an empty root.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, chdir, pivot_root};

/// Every namespace that the sentry leaves its parent's for, the user namespace apart.
pub const EMPTY: CloneFlags = CloneFlags::CLONE_NEWPID
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWNET)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWCGROUP);

/// Those for a process that starts no other: a PID namespace is entered by children only.
pub const EMPTY_FOR_ONE: CloneFlags = EMPTY.difference(CloneFlags::CLONE_NEWPID);

/// Becomes another user for good (real, effective and saved ids) without supplementary groups. Root only.
pub fn become_user(uid: Uid, gid: Gid) -> nix::Result<()> {
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)
}

/// Enters a new user namespace, in which the present user and group keep their numbers and nobody else exists,
/// together with new namespaces of the given kinds. Needs /proc.
pub fn enter_user_namespace(others: CloneFlags) -> nix::Result<()> {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | others)?;
    write_proc("/proc/self/setgroups", "deny")?;
    write_proc("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    write_proc("/proc/self/gid_map", &format!("{gid} {gid} 1"))
}

fn write_proc(path: &str, content: &str) -> nix::Result<()> {
    std::fs::write(path, content).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// From now on the mount namespace's mounts follow what happens to those they were copied from, and never the other
/// way round.
pub fn only_follow_mounts() -> nix::Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
}

/// Leaves the mount namespace's whole tree for an empty read-only file system. Needs a mount namespace of our own
/// and `CAP_SYS_ADMIN` in it.
pub fn enter_empty_root() -> nix::Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let mask = umask(Mode::empty());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = Some("size=4k,nr_inodes=4,mode=555");
    // Any directory will do as the mount point.
    let mounted = ["/tmp", "/proc", "/dev", "/mnt"].into_iter().find_map(|point| {
        mount(Some("none"), point, Some("tmpfs"), flags, options)
            .ok()
            .map(|()| point)
    });
    umask(mask);
    let point = mounted.ok_or(Errno::EPERM)?;
    chdir(point)?;
    // pivot_root(2): the old root comes to lie on top of the new one, and goes from there.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    mount(
        none,
        "/",
        none,
        flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_BIND,
        none,
    )
}
