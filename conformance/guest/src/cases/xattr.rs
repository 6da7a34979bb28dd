//! Extended attributes.

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("xattr": set_get_remove, list, flags, errors, by_descriptor, permission_first);

fn set(path: &str, name: &str, value: &[u8], flags: i32) -> i64 {
    sys!(libc::SYS_setxattr, c(path).as_ptr(), c(name).as_ptr(), value.as_ptr(), value.len(), flags)
}

fn get(path: &str, name: &str, len: usize) -> (i64, Vec<u8>) {
    let mut buf = vec![0u8; len];
    let n = sys!(libc::SYS_getxattr, c(path).as_ptr(), c(name).as_ptr(), buf.as_mut_ptr(), len);
    buf.truncate(n.clamp(0, len as i64) as usize);
    (n, buf)
}

fn begin() {
    file("f", b"");
    if set("f", "user.probe", b"x", 0) == -i64::from(libc::EOPNOTSUPP) {
        skip("this file system has no user attributes");
    }
    ok!(sys!(libc::SYS_removexattr, c("f").as_ptr(), c("user.probe").as_ptr()));
}

fn set_get_remove() {
    begin();
    ok!(set("f", "user.a", b"value", 0));
    eq!(get("f", "user.a", 100).1, b"value");
    eq!(get("f", "user.a", 0).0, 5);
    ok!(set("f", "user.a", b"", 0));
    eq!(get("f", "user.a", 100).0, 0);
    ok!(sys!(libc::SYS_removexattr, c("f").as_ptr(), c("user.a").as_ptr()));
    err!(get("f", "user.a", 100).0, libc::ENODATA);
    err!(sys!(libc::SYS_removexattr, c("f").as_ptr(), c("user.a").as_ptr()), libc::ENODATA);
}

fn list() {
    begin();
    eq!(sys!(libc::SYS_listxattr, c("f").as_ptr(), 0, 0), 0);
    ok!(set("f", "user.a", b"1", 0));
    ok!(set("f", "user.bb", b"2", 0));
    let mut buf = [0u8; 100];
    let n = ok!(sys!(libc::SYS_listxattr, c("f").as_ptr(), buf.as_mut_ptr(), 100)) as usize;
    let mut names: Vec<&[u8]> = buf[..n - 1].split(|&b| b == 0).collect();
    names.sort_unstable();
    eq!(names, [&b"user.a"[..], b"user.bb"]);
    err!(sys!(libc::SYS_listxattr, c("f").as_ptr(), buf.as_mut_ptr(), 3), libc::ERANGE);
}

fn flags() {
    begin();
    err!(set("f", "user.a", b"1", libc::XATTR_REPLACE), libc::ENODATA);
    ok!(set("f", "user.a", b"1", libc::XATTR_CREATE));
    err!(set("f", "user.a", b"1", libc::XATTR_CREATE), libc::EEXIST);
    ok!(set("f", "user.a", b"22", libc::XATTR_REPLACE));
    err!(set("f", "user.a", b"1", 64), libc::EINVAL);
}

fn errors() {
    begin();
    ok!(set("f", "user.a", b"12345", 0));
    err!(get("f", "user.a", 3).0, libc::ERANGE);
    err!(set("missing", "user.a", b"", 0), libc::ENOENT);
    err!(set("f", "", b"", 0), libc::ERANGE);
    err!(set("f", &format!("user.{}", "n".repeat(255)), b"", 0), libc::ERANGE);
    err!(set("f", "nonsense.a", b"", 0), libc::EOPNOTSUPP);
    err!(sys!(libc::SYS_setxattr, c("f").as_ptr(), BAD, 0, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_setxattr, c("f").as_ptr(), c("user.b").as_ptr(), BAD, 5, 0), libc::EFAULT);
    ok!(symlink("f", "l"));
    err!(sys!(libc::SYS_lsetxattr, c("l").as_ptr(), c("user.a").as_ptr(), b"x".as_ptr(), 1, 0), libc::EPERM);
}

fn by_descriptor() {
    begin();
    let fd = ok!(open("f", libc::O_RDONLY, 0)) as i32;
    ok!(sys!(libc::SYS_fsetxattr, fd, c("user.a").as_ptr(), b"v".as_ptr(), 1, 0));
    check!(get("f", "user.a", 10).1 == b"v");
    let mut buf = [0u8; 10];
    eq!(sys!(libc::SYS_fgetxattr, fd, c("user.a").as_ptr(), buf.as_mut_ptr(), 10), 1);
    ok!(sys!(libc::SYS_fremovexattr, fd, c("user.a").as_ptr()));
    err!(sys!(libc::SYS_fgetxattr, 999, c("user.a").as_ptr(), buf.as_mut_ptr(), 10), libc::EBADF);
}

/// The mode is looked at before the name.
fn permission_first() {
    begin();
    err!(set("f", "user.", b"x", 0), libc::EINVAL);
    err!(set("f", "unknown.a", b"x", 0), libc::EOPNOTSUPP);
    ok!(sys!(libc::SYS_chmod, c("f").as_ptr(), 0o444));
    need_root();
    in_child(|| {
        drop_root();
        for name in ["user.", "user.a", "unknown.a", "a"] {
            err!(set("f", name, b"x", 0), libc::EACCES);
        }
        err!(set("f", "system.a", b"x", 0), libc::EOPNOTSUPP);
        err!(get("f", "user.", 10).0, libc::EINVAL);
    });
}
