//! Files: a few names and descriptors, so that steps meet.

use std::fmt::Write;

use super::{Rng, World, digest, pattern, shown, shown_data};
use crate::sys;
use crate::sys::*;

const NAMES: &[&str] = &["a", "b", "c", "d", "d/a", "d/b", "e", "e/a", "e/d", "l", "m"];
const ODD: &[&str] = &["", ".", "a/", "d/", "l/", "missing/a", "a/b", "./d/../a", "d/."];
const SLOTS: usize = 5;

/// The world.
pub struct Files {
    slots: [i32; SLOTS],
    top: i32,
}

fn name(rng: &mut Rng) -> &'static str {
    if rng.once_in(12) {
        rng.pick(ODD)
    } else {
        rng.pick(NAMES)
    }
}

/// What is to be seen of a file: type and mode, and for others than directories the size and number of links.
fn state(st: &libc::stat) -> String {
    let mut text = format!("{:o} {}:{}", st.st_mode, st.st_uid, st.st_gid);
    if st.st_mode & libc::S_IFMT != libc::S_IFDIR {
        let _ = write!(text, " {} bytes {} links", st.st_size, st.st_nlink);
    }
    if st.st_mtime < 1_000_000 {
        let _ = write!(text, " of {}.{}", st.st_mtime, st.st_mtime_nsec);
    }
    text
}

fn lstat(path: &str) -> String {
    let mut st: libc::stat = zeroed();
    match sys!(libc::SYS_lstat, c(path).as_ptr(), &mut st as *mut _) {
        0 => state(&st),
        e => shown(e),
    }
}

/// True for whiteouts: what opening one answers depends on the mount's `nodev`.
fn is_device(path: &str) -> bool {
    let (r, st) = stat(path);
    r == 0 && st.st_mode & libc::S_IFMT == libc::S_IFCHR
}

fn list(fd: i32) -> String {
    let mut buf = [0u8; 4096];
    let n = sys!(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len());
    let (mut at, mut names) = (0, Vec::new());
    while at < n.max(0) as usize {
        let len = usize::from(u16::from_ne_bytes([buf[at + 16], buf[at + 17]]));
        let name: Vec<u8> = buf[at + 19..at + len].iter().copied().take_while(|&b| b != 0).collect();
        names.push(format!("{}:{}", String::from_utf8_lossy(&name), buf[at + 18]));
        at += len;
    }
    names.sort();
    format!("{} {names:?}", if n < 0 { shown(n) } else { String::new() })
}

impl Files {
    fn slot(&mut self, rng: &mut Rng) -> (usize, i32) {
        let at = rng.below(SLOTS as u64) as usize;
        (at, self.slots[at])
    }

    /// What a step that uses a descriptor leaves of it.
    fn after(&self, fd: i32) -> String {
        let mut st: libc::stat = zeroed();
        let pos = sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR);
        match sys!(libc::SYS_fstat, fd, &mut st as *mut _) {
            // A position in a directory has no meaning.
            0 if st.st_mode & libc::S_IFMT == libc::S_IFDIR => state(&st),
            0 => format!("at {}, {}", shown(pos), state(&st)),
            e => shown(e),
        }
    }

    fn keep(&mut self, rng: &mut Rng, fd: i64) -> String {
        if fd >= 0 {
            let at = rng.below(SLOTS as u64) as usize;
            sys!(libc::SYS_close, self.slots[at]);
            self.slots[at] = fd as i32;
            return format!("{} in {at}, {}", shown(fd), self.after(fd as i32));
        }
        shown(fd)
    }

    fn open(&mut self, rng: &mut Rng) -> String {
        let path = name(rng);
        let flags = rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR])
            | if rng.once_in(2) { libc::O_CREAT } else { 0 }
            | rng.flags(&[libc::O_TRUNC, libc::O_APPEND, libc::O_NOFOLLOW])
            | if rng.once_in(8) {
                rng.pick(&[libc::O_EXCL, libc::O_DIRECTORY, libc::O_PATH, libc::O_TMPFILE])
            } else {
                0
            };
        let mode = rng.pick(&[0o644, 0o600, 0o444, 0o200, 0o777, 0]);
        if is_device(path) {
            return format!("no open {path:?}");
        }
        let fd = open(path, flags, mode);
        format!("open {path:?} {flags:#o} {mode:#o} = {}", self.keep(rng, fd))
    }

    fn data(&mut self, rng: &mut Rng) -> String {
        let (at, fd) = self.slot(rng);
        let len = rng.pick(&[0, 1, 7, 100, 4095, 4096, 4097, 9000]);
        let offset = rng.pick(&[0i64, 1, 100, 4096, 5000, 12_288, 20_000, -1]);
        let mut buf = pattern(rng, len);
        let text = match rng.below(9) {
            0 | 1 => format!("write {at} {len} = {}", shown(write(fd, &buf))),
            2 => format!(
                "pwrite {at} {len} {offset} = {}",
                shown(sys!(libc::SYS_pwrite64, fd, buf.as_ptr(), len, offset))
            ),
            3 | 4 => {
                let n = sys!(libc::SYS_read, fd, buf.as_mut_ptr(), len);
                format!("read {at} {len} = {}", shown_data(n, &buf))
            }
            5 => {
                let n = sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), len, offset);
                format!("pread {at} {len} {offset} = {}", shown_data(n, &buf))
            }
            6 => {
                let half = len / 2;
                let v = [
                    libc::iovec {
                        iov_base: buf.as_mut_ptr().cast(),
                        iov_len: half,
                    },
                    libc::iovec {
                        iov_base: buf[half..].as_mut_ptr().cast(),
                        iov_len: len - half,
                    },
                ];
                let flags = rng.pick(&[0, 0, 0x10, 0x2, 0x8000]);
                let n = sys!(libc::SYS_pwritev2, fd, v.as_ptr(), 2, offset, 0, flags);
                format!("pwritev2 {at} {len} {offset} {flags:#x} = {}", shown(n))
            }
            7 => {
                let (other, out) = self.slot(rng);
                let mut from = offset;
                let place = if rng.once_in(2) {
                    &mut from as *mut i64
                } else {
                    std::ptr::null_mut()
                };
                let n = sys!(libc::SYS_sendfile, out, fd, place, len);
                format!(
                    "sendfile {other} {at} {offset}/{} {len} = {} {from}",
                    place.is_null(),
                    shown(n)
                )
            }
            _ => {
                let (other, out) = self.slot(rng);
                let (mut from, mut to) = (offset, rng.pick(&[0i64, 50, 8192]));
                let n = sys!(
                    libc::SYS_copy_file_range,
                    fd,
                    &mut from as *mut _,
                    out,
                    &mut to as *mut _,
                    len,
                    0
                );
                format!(
                    "copy_file_range {at} {other} {len} = {} {from} {to}, {}",
                    shown(n),
                    self.after(out)
                )
            }
        };
        format!("{text}; {}", self.after(fd))
    }

    fn descriptor(&mut self, rng: &mut Rng) -> String {
        let (at, fd) = self.slot(rng);
        let text = match rng.below(9) {
            0 => {
                self.slots[at] = -1;
                return format!("close {at} = {}", shown(sys!(libc::SYS_close, fd)));
            }
            1 | 2 => {
                let whence = rng.pick(&[0, 0, 1, 2, libc::SEEK_DATA, libc::SEEK_HOLE, 9]);
                let offset = rng.pick(&[0i64, 1, 4096, 5000, -1, -100, 20_000]);
                let mut st: libc::stat = zeroed();
                sys!(libc::SYS_fstat, fd, &mut st as *mut _);
                if st.st_mode & libc::S_IFMT == libc::S_IFDIR && whence != 0 {
                    return format!("no lseek {at}");
                }
                format!(
                    "lseek {at} {offset} {whence} = {}",
                    shown(sys!(libc::SYS_lseek, fd, offset, whence))
                )
            }
            3 => {
                let len = rng.pick(&[0i64, 1, 4096, 5000, 20_000, -1]);
                format!("ftruncate {at} {len} = {}", shown(sys!(libc::SYS_ftruncate, fd, len)))
            }
            4 => {
                let mode = rng.pick(&[0, 0, 1, 3, 2]);
                let (from, len) = (rng.pick(&[0i64, 100, 4096, 8192, -1]), rng.pick(&[0i64, 1, 4096, 9000]));
                let r = sys!(libc::SYS_fallocate, fd, mode, from, len);
                format!("fallocate {at} {mode} {from} {len} = {}", shown(r))
            }
            5 => {
                let copy = sys!(libc::SYS_dup, fd);
                format!("dup {at} = {}", self.keep(rng, copy))
            }
            6 => {
                let flags = rng.pick(&[0, libc::O_APPEND, libc::O_NONBLOCK]);
                format!(
                    "setfl {at} {flags:#o} = {} {:#o}",
                    shown(fcntl(fd, libc::F_SETFL, flags.into())),
                    fcntl(fd, libc::F_GETFL, 0)
                )
            }
            7 => {
                let how = rng.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]);
                format!(
                    "flock {at} {how} = {}",
                    shown(sys!(libc::SYS_flock, fd, how | libc::LOCK_NB))
                )
            }
            _ => {
                let mut lock: libc::flock = zeroed();
                lock.l_type = rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]) as i16;
                lock.l_start = rng.pick(&[0, 10, 20]);
                lock.l_len = rng.pick(&[0, 10, 15]);
                let command = rng.pick(&[libc::F_OFD_SETLK, libc::F_SETLK, libc::F_OFD_GETLK]);
                let asked = (lock.l_type, lock.l_start, lock.l_len);
                let r = fcntl(fd, command, &mut lock as *mut _ as i64);
                format!(
                    "lock {at} {command} {asked:?} = {} {:?}",
                    shown(r),
                    (lock.l_type, lock.l_start, lock.l_len)
                )
            }
        };
        format!("{text}; {}", self.after(fd))
    }

    fn names(&mut self, rng: &mut Rng) -> String {
        let (a, b) = (name(rng), name(rng));
        let (ca, cb) = (c(a), c(b));
        let (pa, pb) = (ca.as_ptr(), cb.as_ptr());
        let text = match rng.below(13) {
            0 | 1 => {
                let flags = rng.pick(&[0, 0, 0, 1, 2, 3, 4, 5]);
                format!(
                    "rename {a:?} {b:?} {flags} = {}",
                    shown(sys!(libc::SYS_renameat2, -100, pa, -100, pb, flags))
                )
            }
            2 => {
                let flags = rng.pick(&[0, libc::AT_SYMLINK_FOLLOW]);
                format!(
                    "link {a:?} {b:?} {flags:#x} = {}",
                    shown(sys!(libc::SYS_linkat, -100, pa, -100, pb, flags))
                )
            }
            3 => format!("symlink {a:?} {b:?} = {}", shown(sys!(libc::SYS_symlink, pa, pb))),
            4 => format!("unlink {a:?} = {}", shown(unlink(a))),
            5 => format!("rmdir {a:?} = {}", shown(rmdir(a))),
            6 | 7 => {
                let mode = rng.pick(&[0o755, 0o755, 0o700, 0o500, 0o1777, 0o2755]);
                format!("mkdir {a:?} {mode:#o} = {}", shown(mkdir(a, mode)))
            }
            8 => {
                let mode = rng.pick(&[0o644, 0o000, 0o755, 0o4755, 0o2644, 0o1777]);
                format!("chmod {a:?} {mode:#o} = {}", shown(sys!(libc::SYS_chmod, pa, mode)))
            }
            9 => {
                let mode = rng.pick(&[0, 1, 2, 4, 6, 8]);
                format!("access {a:?} {mode} = {}", shown(sys!(libc::SYS_access, pa, mode)))
            }
            10 => {
                let mut buf = [0u8; 64];
                let len = rng.pick(&[64usize, 1, 0]);
                let n = sys!(libc::SYS_readlink, pa, buf.as_mut_ptr(), len);
                format!("readlink {a:?} {len} = {}", shown_data(n, &buf))
            }
            11 => {
                let len = rng.pick(&[0i64, 5, 5000, -1]);
                format!("truncate {a:?} {len} = {}", shown(sys!(libc::SYS_truncate, pa, len)))
            }
            _ => {
                let times = [
                    [1000, 1],
                    [rng.pick(&[2000, 3000]), rng.pick(&[5, libc::UTIME_OMIT, 1_000_000_000])],
                ];
                let flags = rng.pick(&[0, libc::AT_SYMLINK_NOFOLLOW]);
                let r = sys!(libc::SYS_utimensat, -100, pa, times.as_ptr(), flags);
                format!("utimensat {a:?} {times:?} {flags:#x} = {}", shown(r))
            }
        };
        format!("{text}; {}; {}", lstat(a), lstat(b))
    }

    /// A child works on what it has inherited; what it saw comes back in its status.
    fn child(&mut self, rng: &mut Rng) -> String {
        let status = wait(child(|| {
            let text = match rng.below(3) {
                0 => self.descriptor(rng),
                _ => self.data(rng),
            };
            exit((digest(text.as_bytes()) & 0x3f) as i32);
        }));
        format!("child: {status:#x}")
    }

    fn place(&mut self, rng: &mut Rng) -> String {
        let (at, fd) = self.slot(rng);
        let path = name(rng);
        match rng.below(5) {
            0 => format!("chdir {path:?} = {}", shown(sys!(libc::SYS_chdir, c(path).as_ptr()))),
            1 => format!("fchdir {at} = {}", shown(sys!(libc::SYS_fchdir, fd))),
            2 | 3 => format!("back = {}", shown(sys!(libc::SYS_fchdir, self.top))),
            _ => {
                sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET);
                format!("list {at} = {}", list(fd))
            }
        }
    }
}

fn xattr(rng: &mut Rng) -> String {
    let path = name(rng);
    let key = rng.pick(&["user.a", "user.a", "user.b", "trusted.a", "user.", "a"]);
    let (path_c, key_c) = (c(path), c(key));
    let (p, k) = (path_c.as_ptr(), key_c.as_ptr());
    let follow = rng.once_in(2);
    let call = |follows: i64, not: i64| if follow { follows } else { not };
    let len = rng.pick(&[0usize, 1, 7, 300]);
    let mut buf = pattern(rng, len);
    match rng.below(5) {
        0 | 1 => {
            let flags = rng.pick(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE, 3]);
            let nr = call(libc::SYS_setxattr, libc::SYS_lsetxattr);
            let r = sys!(nr, p, k, buf.as_ptr(), len, flags);
            format!("setxattr {path:?} {key} {follow} {len} {flags} = {}", shown(r))
        }
        2 => {
            let r = sys!(
                call(libc::SYS_getxattr, libc::SYS_lgetxattr),
                p,
                k,
                buf.as_mut_ptr(),
                len
            );
            format!("getxattr {path:?} {key} {follow} {len} = {}", shown_data(r, &buf))
        }
        3 => {
            let mut list = [0u8; 64];
            let len = rng.pick(&[64usize, 8, 0]);
            let nr = call(libc::SYS_listxattr, libc::SYS_llistxattr);
            let r = sys!(nr, p, list.as_mut_ptr(), len);
            let mut names: Vec<_> = list.split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
            names.sort_unstable();
            let names = String::from_utf8_lossy(&names.join(&b' ')).into_owned();
            format!("listxattr {path:?} {follow} {len} = {} {names}", shown(r))
        }
        _ => {
            let r = sys!(call(libc::SYS_removexattr, libc::SYS_lremovexattr), p, k);
            format!("removexattr {path:?} {key} {follow} = {}", shown(r))
        }
    }
}

impl World for Files {
    fn new(_rng: &mut Rng) -> Files {
        let top = open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0) as i32;
        let mut slots = [-1; SLOTS];
        mkdir("d", 0o755);
        for (slot, (path, flags)) in slots.iter_mut().zip([
            ("a", libc::O_RDWR | libc::O_CREAT),
            ("d/b", libc::O_RDWR | libc::O_CREAT),
            ("d", 0),
        ]) {
            *slot = open(path, flags, 0o644) as i32;
        }
        Files { slots, top }
    }

    fn step(&mut self, rng: &mut Rng) -> String {
        match rng.below(23) {
            0..5 => self.open(rng),
            5..11 => self.data(rng),
            11..15 => self.descriptor(rng),
            15..20 => self.names(rng),
            20 => self.place(rng),
            21 => xattr(rng),
            _ => self.child(rng),
        }
    }

    fn end(&mut self) -> String {
        sys!(libc::SYS_fchdir, self.top);
        let mut text = String::new();
        for path in NAMES {
            let _ = write!(text, "{path}: {}", lstat(path));
            if is_device(path) {
                continue;
            }
            let fd = open(path, libc::O_RDONLY | libc::O_NOFOLLOW, 0) as i32;
            let mut buf = vec![0; 65536];
            let n = sys!(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len());
            let _ = write!(text, " {} {:x}; ", shown(n), digest(&buf[..n.max(0) as usize]) as u32);
        }
        text
    }
}
