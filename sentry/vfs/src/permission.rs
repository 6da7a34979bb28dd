//! Permission checks (path_resolution(7), capabilities(7)).

use sentry_abi::Errno;

use crate::cred::{Cap, Credentials};
use crate::inode::{NewInode, Permissions};
use crate::ops::Access;

/// `EACCES` unless `cred` may access an inode so.
pub(crate) fn check(cred: &Credentials, inode: Permissions, access: Access) -> Result<(), Errno> {
    let wanted = access.0 & 7;
    let bits = if cred.fsuid == inode.uid {
        inode.mode >> 6
    } else if cred.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if wanted & !bits == 0 {
        return Ok(());
    }
    let may_search = cred.has(Cap::DAC_READ_SEARCH);
    let may_override = cred.has(Cap::DAC_OVERRIDE);
    let allowed = if inode.is_dir() {
        may_override || (wanted & Access::WRITE.0 == 0 && may_search)
    } else {
        let executable = inode.mode & 0o111 != 0;
        (wanted == Access::READ.0 && may_search) || (may_override && (wanted & Access::EXEC.0 == 0 || executable))
    };
    if allowed { Ok(()) } else { Err(Errno::EACCES) }
}

/// `EPERM` unless `cred` owns the inode or may act as an owner.
pub(crate) fn check_owner(cred: &Credentials, inode: Permissions) -> Result<(), Errno> {
    if cred.fsuid == inode.uid || cred.has(Cap::FOWNER) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// May `cred` remove or replace `victim` in `dir`? `EACCES`, or `EPERM` in a sticky directory.
pub(crate) fn check_delete(cred: &Credentials, dir: Permissions, victim: Permissions) -> Result<(), Errno> {
    check(cred, dir, Access(Access::WRITE.0 | Access::EXEC.0))?;
    let sticky = dir.mode & libc::S_ISVTX != 0;
    if sticky && cred.fsuid != victim.uid && cred.fsuid != dir.uid && !cred.has(Cap::FOWNER) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Owner and mode of what `cred` makes in `dir` (umask applied before). Set-group-id directories hand their
/// group down.
pub(crate) fn new_inode(cred: &Credentials, dir: Permissions, mode: u32, rdev: u64) -> NewInode {
    let mut new = NewInode {
        mode,
        uid: cred.fsuid,
        gid: cred.fsgid,
        rdev,
    };
    if dir.mode & libc::S_ISGID != 0 {
        new.gid = dir.gid;
        if mode & libc::S_IFMT == libc::S_IFDIR {
            new.mode |= libc::S_ISGID;
        } else if strips_setgid(cred, mode, dir.gid) {
            new.mode &= !libc::S_ISGID;
        }
    }
    new
}

fn strips_setgid(cred: &Credentials, mode: u32, gid: u32) -> bool {
    let both = libc::S_ISGID | libc::S_IXGRP;
    mode & both == both && !cred.in_group(gid) && !cred.has(Cap::FSETID)
}

/// The mode after a write or truncation: without set-user-id, and without set-group-id where it means execution.
/// `None` if nothing changes.
pub(crate) fn without_privileges(cred: &Credentials, inode: Permissions) -> Option<u32> {
    if inode.mode & (libc::S_ISUID | libc::S_ISGID) == 0 || !inode.is_regular() || cred.has(Cap::FSETID) {
        return None;
    }
    let mut mode = inode.mode & 0o7777 & !libc::S_ISUID;
    if inode.mode & libc::S_IXGRP != 0 || !cred.in_group(inode.gid) {
        mode &= !libc::S_ISGID;
    }
    (mode != inode.mode & 0o7777).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(mode: u32, uid: u32, gid: u32) -> Permissions {
        Permissions { mode, uid, gid }
    }

    #[test]
    fn classes_do_not_add_up() {
        let user = Credentials::new(1000, 1000, &[27]);
        // The owner has no bits, others have: denied.
        assert_eq!(
            check(&user, inode(libc::S_IFREG | 0o077, 1000, 0), Access::READ),
            Err(Errno::EACCES)
        );
        assert_eq!(
            check(&user, inode(libc::S_IFREG | 0o707, 0, 27), Access::READ),
            Err(Errno::EACCES)
        );
        assert_eq!(check(&user, inode(libc::S_IFREG | 0o040, 0, 27), Access::READ), Ok(()));
        assert_eq!(check(&user, inode(libc::S_IFREG | 0o004, 0, 0), Access::READ), Ok(()));
    }

    #[test]
    fn root_cannot_execute_what_nobody_can() {
        let root = Credentials::root();
        assert_eq!(
            check(&root, inode(libc::S_IFREG | 0o666, 5, 5), Access::EXEC),
            Err(Errno::EACCES)
        );
        assert_eq!(check(&root, inode(libc::S_IFREG | 0o100, 5, 5), Access::EXEC), Ok(()));
        assert_eq!(check(&root, inode(libc::S_IFDIR, 5, 5), Access::EXEC), Ok(()));
        assert_eq!(check(&root, inode(libc::S_IFREG, 5, 5), Access(6)), Ok(()));
    }

    #[test]
    fn sticky_directories_protect_other_owners() {
        let user = Credentials::new(1000, 1000, &[]);
        let tmp = inode(libc::S_IFDIR | 0o1777, 0, 0);
        assert_eq!(
            check_delete(&user, tmp, inode(libc::S_IFREG, 1001, 0)),
            Err(Errno::EPERM)
        );
        assert_eq!(check_delete(&user, tmp, inode(libc::S_IFREG, 1000, 0)), Ok(()));
        assert_eq!(
            check_delete(&Credentials::root(), tmp, inode(libc::S_IFREG, 1001, 0)),
            Ok(())
        );
    }

    #[test]
    fn writing_clears_set_user_id() {
        let user = Credentials::new(1000, 1000, &[]);
        assert_eq!(
            without_privileges(&user, inode(libc::S_IFREG | 0o6755, 1000, 1000)),
            Some(0o755)
        );
        assert_eq!(
            without_privileges(&user, inode(libc::S_IFREG | 0o2745, 1000, 1000)),
            None
        );
        assert_eq!(
            without_privileges(&user, inode(libc::S_IFREG | 0o2745, 1000, 50)),
            Some(0o745)
        );
        assert_eq!(
            without_privileges(&Credentials::root(), inode(libc::S_IFREG | 0o6755, 0, 0)),
            None
        );
    }
}
