//! inotify(7): watching directories of the host, and reading what has happened there.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use sentry_abi::Errno;

use crate::stdio;

/// What a shared directory is watched for: all that changes names or attributes in it.
pub const CHANGES: u32 = libc::IN_ATTRIB
    | libc::IN_MODIFY
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_EXCL_UNLINK
    | libc::IN_ONLYDIR;
/// What a file or directory is watched for whose changes are told to a guest.
pub const REPORTS: u32 = libc::IN_ATTRIB
    | libc::IN_MODIFY
    | libc::IN_CLOSE_WRITE
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_DELETE_SELF
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_MOVE_SELF;
/// [`REPORTS`], without children that have lost their names.
pub const REPORTS_OF_NAMES: u32 = REPORTS | libc::IN_EXCL_UNLINK;
/// The flags of [`new`].
pub const FLAGS: i32 = libc::IN_NONBLOCK | libc::IN_CLOEXEC;
/// Head of an event, in bytes: watch, mask, cookie, length of the name.
const HEAD: usize = 16;
/// The longest event: head, name, zero byte, and what is behind it for alignment.
const LONGEST: usize = HEAD + 256;

/// A new descriptor, which never waits.
///
/// # Errors
/// Those of inotify_init1(2): `EMFILE` beyond `fs.inotify.max_user_instances`.
pub fn new() -> Result<OwnedFd, Errno> {
    // Here for its checks only: the type has no way to the numbers of watches.
    let made = nix::sys::inotify::Inotify::init(nix::sys::inotify::InitFlags::from_bits_retain(FLAGS));
    made.map(OwnedFd::from).map_err(|errno| Errno::from_raw(errno as i32))
}

/// Watches what is at `path` for the events in `mask`; answers the number of the watch.
///
/// # Errors
/// Those of inotify_add_watch(2): `ENOSPC` beyond `fs.inotify.max_user_watches`, `EACCES` for what may not be read.
pub fn add(inotify: BorrowedFd<'_>, path: &CStr, mask: u32) -> Result<i32, Errno> {
    // SAFETY: `path` is a C string.
    let watch = unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) };
    if watch < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(watch)
}

/// Ends a watch. One that has ended by itself is no error.
pub fn remove(inotify: BorrowedFd<'_>, watch: i32) {
    // SAFETY: there are no pointers.
    unsafe { libc::inotify_rm_watch(inotify.as_raw_fd(), watch) };
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The watch; -1 where it is about all ([`libc::IN_Q_OVERFLOW`]).
    pub watch: i32,
    /// `IN_*`.
    pub mask: u32,
    /// Joins the halves of a rename.
    pub cookie: u32,
    /// In the watched directory; empty if it is about the directory itself.
    pub name: &'a [u8],
}

/// Reads all events that are there. False if they do not end, or the descriptor gives something else.
pub fn drain(inotify: BorrowedFd<'_>, mut event: impl FnMut(Event<'_>)) -> bool {
    let mut buf = [0; 8192];
    // A whole queue. Whoever makes changes faster than they are read must not keep us here.
    for _ in 0..512 {
        let len = match stdio::read(inotify.as_fd(), &mut buf) {
            Ok(len) => len,
            Err(Errno::EAGAIN) => return true,
            Err(Errno::EINTR) => continue,
            Err(_) => return false,
        };
        let mut rest = &buf[..len];
        while !rest.is_empty() {
            let Some((one, behind)) = split(rest) else {
                return false;
            };
            event(one);
            rest = behind;
        }
        // Another event would have had room.
        if len > 0 && len + LONGEST <= buf.len() {
            return true;
        }
    }
    false
}

/// The first event, and what follows it.
fn split(bytes: &[u8]) -> Option<(Event<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let word = |at: usize| Some(u32::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    let (name, rest) = rest.split_at_checked(usize::try_from(word(12)?).ok()?)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let event = Event {
        watch: word(0)?.cast_signed(),
        mask: word(4)?,
        cookie: word(8)?,
        name,
    };
    Some((event, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_happens_in_a_directory() {
        let dir = std::env::temp_dir().join(format!("inotify-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("directory");
        let path = std::ffi::CString::new(dir.to_str().expect("UTF-8")).expect("no zero");
        let inotify = new().expect("inotify");
        let watch = add(inotify.as_fd(), &path, CHANGES).expect("watch");
        assert_eq!(add(inotify.as_fd(), &path, CHANGES), Ok(watch));
        std::fs::write(dir.join("a"), b"x").expect("write");
        let mut seen = Vec::new();
        assert!(drain(inotify.as_fd(), |event| seen.push((
            event.watch,
            event.mask,
            event.name.to_vec()
        ))));
        let expected = [libc::IN_CREATE, libc::IN_MODIFY].map(|mask| (watch, mask, b"a".to_vec()));
        assert_eq!(seen, expected);
        // More than one buffer.
        for number in 0..500 {
            std::fs::write(dir.join(format!("{number:0>100}")), b"").expect("write");
        }
        let mut count = 0;
        assert!(drain(inotify.as_fd(), |_| count += 1));
        assert_eq!(count, 500);
        remove(inotify.as_fd(), watch);
        let mut masks = Vec::new();
        assert!(drain(inotify.as_fd(), |event| masks.push(event.mask)));
        assert_eq!(masks, [libc::IN_IGNORED]);
        std::fs::remove_dir_all(dir).expect("remove");
    }

    #[test]
    fn takes_no_nonsense() {
        assert_eq!(split(&[0; 15]), None);
        let mut long = [0; 32];
        long[12..16].copy_from_slice(&17_u32.to_ne_bytes());
        assert_eq!(split(&long), None);
        long[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(split(&long), None);
    }
}
