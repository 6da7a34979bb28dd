//! What a person can do about a host call that failed while a sandbox was being made.

/// What is probably behind an error (by its errno), as a clause to be put after its description; empty where nobody knows.
pub fn of(errno: i32) -> &'static str {
    match errno {
        libc::EAGAIN => "; is a limit of processes or memory reached (RLIMIT_NPROC, RLIMIT_DATA, a container's)?",
        libc::ENOMEM => "; is a limit of memory reached (RLIMIT_AS, RLIMIT_DATA, a container's)?",
        libc::EMFILE => "; RLIMIT_NOFILE is too low, 64 is enough to start",
        libc::EFBIG => "; RLIMIT_FSIZE is too low, files in memory count too",
        libc::EPERM | libc::ENOSYS => "; does a seccomp profile refuse it (a container's)?",
        _ => "",
    }
}

/// The same for an error of the standard library.
pub fn of_io(error: &std::io::Error) -> &'static str {
    error.raw_os_error().map_or("", of)
}
