//! Why a sandbox was not started, in the words that a person sees.

use nix::errno::Errno;
use sentry_host::advice;
use sentry_limits::ProfileError;

use crate::spawn::SpawnError;
use crate::view::ViewError;

/// Why a sandbox was not started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{option} {path}: {error}")]
    Output {
        option: &'static str,
        path: String,
        error: std::io::Error,
    },
    #[error("--memory cannot be held here: /proc does not tell which processes are whose children")]
    Unseen,
    #[error("--cgroup require: {0}")]
    Cgroup(String),
    #[error("--events: {0}")]
    Events(std::io::Error),
    #[error("cannot find our own executable: {0}; {why}", why = match .0.raw_os_error() {
        Some(libc::EACCES) => "it must be readable, not only executable",
        Some(libc::ENOENT) => "is /proc mounted?",
        _ => "is /proc as it should be?",
    })]
    Executable(std::io::Error),
    #[error("/dev/null: {0}; is there a /dev?")]
    Null(std::io::Error),
    #[error("cannot prepare the sandbox: {call}: {}{}", .error.desc(), advice::of(*.error as i32))]
    Call { call: &'static str, error: Errno },
    #[error("cannot prepare the sandbox: a file in memory (memfd_create): {0}{why}", why = advice::of_io(.0))]
    Memory(std::io::Error),
    #[error("cannot prepare the sandbox: {}{}", .0.desc(), advice::of(*.0 as i32))]
    Host(#[from] Errno),
    #[error("cannot prepare the sandbox: {0}{why}", why = advice::of_io(.0))]
    Io(#[from] std::io::Error),
}

/// A host call that failed.
pub fn failed(call: &'static str) -> impl Fn(Errno) -> StartError {
    move |error| StartError::Call { call, error }
}
