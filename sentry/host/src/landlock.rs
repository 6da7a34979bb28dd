//! Landlock (landlock(7)): gives up file access for the calling thread and all that it starts.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION_QUERY: u32 = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const RULE_PATH_BENEATH: u32 = 1;

/// `LANDLOCK_ACCESS_FS_READ_FILE`.
pub const READ_FILE: u64 = 1 << 2;
/// `LANDLOCK_ACCESS_FS_READ_DIR`.
pub const READ_DIR: u64 = 1 << 3;

/// `struct landlock_ruleset_attr` as of ABI 6.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The highest ABI version that the host offers; 0 if it has no Landlock.
pub fn abi() -> u32 {
    // SAFETY: asks for a number only.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, VERSION_QUERY) };
    u32::try_from(version).unwrap_or(0)
}

/// Every file access right that an ABI version knows.
pub fn all_file_access(abi: u32) -> u64 {
    let bits = match abi {
        0 => 0,
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1u64 << bits) - 1
}

/// A directory (or file) below which access stays.
#[derive(Clone, Copy, Debug)]
pub struct Exception<'a> {
    /// The directory.
    pub beneath: BorrowedFd<'a>,
    /// `LANDLOCK_ACCESS_FS_*`.
    pub access: u64,
}

/// Gives up all file access but `exceptions`, TCP, and signals and abstract sockets to the world outside, as far
/// as the host's version goes. The version; `ENOSYS` or `EOPNOTSUPP` without Landlock. Needs no_new_privs.
pub fn restrict(exceptions: &[Exception<'_>]) -> nix::Result<u32> {
    let abi = abi();
    if abi == 0 {
        return Err(Errno::ENOSYS);
    }
    let access = all_file_access(abi);
    let attr = RulesetAttr {
        handled_access_fs: access,
        handled_access_net: if abi >= 4 { 3 } else { 0 },
        scoped: if abi >= 6 { 3 } else { 0 },
    };
    let size = match abi {
        1..=3 => 8usize,
        4..=5 => 16,
        _ => 24,
    };
    // SAFETY: `attr` has at least `size` bytes.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &attr, size, 0u32) })?;
    // SAFETY: a new descriptor that nobody else owns.
    let ruleset = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    for exception in exceptions {
        let rule = PathBeneathAttr {
            allowed_access: exception.access & access,
            parent_fd: exception.beneath.as_raw_fd(),
        };
        // SAFETY: `rule` is what this kind of rule reads.
        Errno::result(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset.as_raw_fd(),
                RULE_PATH_BENEATH,
                &rule,
                0u32,
            )
        })?;
    }
    // SAFETY: plain numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })?;
    Ok(abi)
}
