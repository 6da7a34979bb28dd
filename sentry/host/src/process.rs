//! Starting, leaving and ending processes: fork, exec of our own executable with given descriptors, limits.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::Pid;

/// Which side of a fork(2) this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The caller; the child's process id.
    Parent(Pid),
    /// The new process.
    Child,
}

/// The number of threads of this process, as /proc tells.
fn thread_count() -> Option<u64> {
    std::fs::metadata("/proc/self/task")
        .ok()
        .map(|task| task.st_nlink().saturating_sub(2))
}

/// Forks a process that has a single thread; `EBUSY` if it has more.
///
/// With one thread no lock can be held by somebody else, so the child may do whatever the parent may.
pub fn fork() -> nix::Result<Forked> {
    if thread_count().is_some_and(|count| count > 1) {
        return Err(Errno::EBUSY);
    }
    // SAFETY: the process has one thread, so the child's copy of memory is consistent.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(Forked::Parent(child)),
        nix::unistd::ForkResult::Child => Ok(Forked::Child),
    }
}

/// Forks a process that becomes a child of this process's parent. Single-threaded callers only, as [`fork`];
/// the child is meant to go on to [`exec_self`].
pub fn fork_sibling() -> nix::Result<Forked> {
    if thread_count().is_some_and(|count| count > 1) {
        return Err(Errno::EBUSY);
    }
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of memory and runs on the same stack
    // addresses; the process has one thread, so that copy is consistent.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match Errno::result(pid)? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(Pid::from_raw(pid as i32))),
    }
}

/// Ends the process at once: no destructors, no buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

/// Our own executable, opened for [`exec_self`]. Needs /proc.
pub fn own_executable() -> io::Result<OwnedFd> {
    File::open("/proc/self/exe").map(OwnedFd::from)
}

/// Replaces the process by `executable` with the given arguments, an empty environment, and exactly these
/// descriptors: `descriptors[i]` becomes number `i`. Signals are unblocked.
///
/// Where the file's mode keeps this user from running it, a copy in memory is run.
pub fn exec_self(
    executable: BorrowedFd<'_>,
    args: &[CString],
    descriptors: &[BorrowedFd<'_>],
) -> nix::Result<Infallible> {
    use nix::fcntl::{FcntlArg, fcntl};
    let count = RawFd::try_from(descriptors.len()).map_err(|_| Errno::EINVAL)?;
    // Out of the way first: a target number may be some other source.
    let duplicate = |fd: BorrowedFd<'_>| fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(count));
    let executable = duplicate(executable)?;
    let sources = descriptors
        .iter()
        .map(|fd| duplicate(*fd))
        .collect::<nix::Result<Vec<_>>>()?;
    for (target, source) in sources.into_iter().enumerate() {
        // SAFETY: plain numbers. Whatever Rust value owned the target number is lost with the exec, or with the
        // process when exec fails: callers are forked children that can only exit.
        Errno::result(unsafe { libc::dup2(source, target as i32) })?;
    }
    // SAFETY: only sets the close-on-exec flag.
    let marked =
        Errno::result(unsafe { libc::syscall(libc::SYS_close_range, count, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) });
    if marked.is_err() {
        for fd in count..1024 {
            // SAFETY: only sets the close-on-exec flag, if there is such a descriptor.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    let environment: [&CStr; 0] = [];
    // SAFETY: the number was made by fcntl above.
    let executable = unsafe { BorrowedFd::borrow_raw(executable) };
    let flags = nix::fcntl::AtFlags::AT_EMPTY_PATH;
    match nix::unistd::execveat(executable, c"", args, &environment, flags) {
        Err(Errno::EACCES) => {
            let copy = copy_to_memory(executable)?;
            nix::unistd::execveat(&copy, c"", args, &environment, flags)
        }
        other => other,
    }
}

fn copy_to_memory(file: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let copy = nix::sys::memfd::memfd_create(c"sentry", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let failed = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let source = File::from(file.try_clone_to_owned().map_err(failed)?);
    let mut target = File::from(copy);
    let mut buffer = vec![0; 1 << 16];
    let mut offset = 0;
    loop {
        let read = std::os::unix::fs::FileExt::read_at(&source, &mut buffer, offset).map_err(failed)?;
        if read == 0 {
            // A file that somebody may write cannot be executed.
            let path = format!("/proc/self/fd/{}", target.as_raw_fd());
            return File::open(path).map(OwnedFd::from).map_err(failed);
        }
        io::Write::write_all(&mut target, &buffer[..read]).map_err(failed)?;
        offset += read as u64;
    }
}

static ADOPTED: AtomicU64 = AtomicU64::new(0);

/// Takes over a descriptor that the process was started with, and marks it close-on-exec. `None` if there is no
/// such descriptor, or if it was taken before.
pub fn adopt(number: u8) -> Option<OwnedFd> {
    let bit = 1u64.checked_shl(number.into())?;
    if ADOPTED.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return None;
    }
    // SAFETY: only reads or sets a flag of the descriptor, if there is one.
    let set = unsafe { libc::fcntl(number.into(), libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the descriptor is open, came with the exec and is given out once.
    (set == 0).then(|| unsafe { OwnedFd::from_raw_fd(number.into()) })
}

/// Takes standard input, output and error away from the process, under new numbers, and puts `null` in the place of
/// the first two: whoever gets the result and closes it closes the last reference. Standard error stays for
/// messages. Call it once, at the start.
pub fn take_stdio(null: BorrowedFd<'_>) -> nix::Result<[OwnedFd; 3]> {
    let take = |number: RawFd| {
        // SAFETY: fcntl and dup2 of plain numbers; the standard descriptors belong to nobody but the process.
        let fd = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 10) })?;
        if number < 2 {
            // SAFETY: as above.
            Errno::result(unsafe { libc::dup2(null.as_raw_fd(), number) })?;
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    Ok([take(0)?, take(1)?, take(2)?])
}

/// Replaces standard input or output (`number` 0 or 1) by `null`, so that this process does not keep it open.
pub fn give_up_stdio(number: u8, null: BorrowedFd<'_>) -> nix::Result<()> {
    if number > 1 {
        return Err(Errno::EBADF);
    }
    // SAFETY: dup2 of plain numbers; the standard descriptors belong to nobody but the process.
    Errno::result(unsafe { libc::dup2(null.as_raw_fd(), number.into()) }).map(drop)
}

/// What to do with a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing.
    Ignore,
    /// What signal(7) says.
    Default,
}

/// Sets the disposition of a signal; true if it was ignored before.
pub fn set_disposition(signal: Signal, disposition: Disposition) -> nix::Result<bool> {
    let handler = match disposition {
        Disposition::Ignore => nix::sys::signal::SigHandler::SigIgn,
        Disposition::Default => nix::sys::signal::SigHandler::SigDfl,
    };
    // SAFETY: no handler function is installed.
    let before = unsafe { nix::sys::signal::signal(signal, handler) }?;
    Ok(matches!(before, nix::sys::signal::SigHandler::SigIgn))
}

/// Asks for `signal` when the parent dies; false if the parent (`parent` as this process sees it) is gone already.
pub fn die_with_parent(parent: Option<Pid>) -> nix::Result<bool> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    Ok(parent.is_none_or(|parent| nix::unistd::getppid() == parent))
}

/// The children of this process, as /proc tells. Those of other threads are not among them.
pub fn children() -> io::Result<Vec<Pid>> {
    let me = std::process::id();
    let own = format!("/proc/self/task/{me}/children");
    if let Ok(list) = std::fs::read_to_string(own) {
        return Ok(list
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .map(Pid::from_raw)
            .collect());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // "pid (name) state ppid …": the name may hold anything.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent == Some(me) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: u8) {
    // SAFETY: called at the start of a role, when nothing beyond `first` is owned by anybody.
    unsafe { libc::syscall(libc::SYS_close_range, u32::from(first), u32::MAX, 0) };
}

/// Closes every descriptor but these, whoever owns it. For a process that has nothing else to do any more.
pub fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    let mut next = 0;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > next {
            // SAFETY: plain numbers; the caller gives up what stands behind them.
            unsafe { libc::syscall(libc::SYS_close_range, next, fd - 1, 0) };
        }
        next = fd.saturating_add(1);
    }
}

/// Sets a resource limit, soft and hard, to at most `value`. Never raises the hard limit.
pub fn limit(resource: nix::sys::resource::Resource, value: u64) -> nix::Result<u64> {
    let (_, hard) = nix::sys::resource::getrlimit(resource)?;
    let value = value.min(hard);
    nix::sys::resource::setrlimit(resource, value, value)?;
    Ok(value)
}

/// The nice value of this process, -20 to 19.
pub fn nice() -> i32 {
    // SAFETY: no memory is involved. (The library's call cannot fail for oneself.)
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice value of the calling thread, and of what it starts from now on.
pub fn set_nice(value: i32) -> nix::Result<()> {
    // SAFETY: no memory is involved.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) }).map(drop)
}

/// Makes a sealed memory file with this content: nobody can change it any more.
pub fn sealed_memory(name: &CStr, content: &[u8]) -> io::Result<OwnedFd> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::io::{Seek, Write};
    let mut file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.write_all(content)?;
    file.rewind()?;
    let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn sealed_memory_cannot_be_written() {
        let mut file = File::from(sealed_memory(c"test", b"abc").unwrap());
        assert!(file.write(b"x").is_err());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
    }

    #[test]
    fn a_descriptor_is_given_out_once() {
        assert!(adopt(63).is_none());
        assert!(adopt(64).is_none());
    }
}
