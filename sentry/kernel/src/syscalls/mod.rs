//! The system-call table. One file per family; each exports its rows as `TABLE`.

use std::future::Future;
use std::sync::{Arc, LazyLock};

use sentry_abi::Errno;
use sentry_platform::{BoxFuture, SyscallArgs};

use crate::task::Thread;

macro_rules! families {
    ($($family:ident),* $(,)?) => {
        $(mod $family;)*
        const FAMILIES: &[&[Row]] = &[$($family::TABLE),*];
        /// Each family's name, rows, and coverage file.
        pub(crate) const COVERAGE: &[(&str, &[Row], &str)] = &[$((
            stringify!($family),
            $family::TABLE,
            include_str!(concat!("../../../../conformance/coverage/", stringify!($family), ".json")),
        )),*];
    };
}

mod args;

families! {
    clone, dir, epoll, exec, exit, fcntl, fd, futex, identity, inotify, ioctl, message, misc, mm, mount, open, pipe, poll, prctl, process,
    random, read_write, rlimit, sched, signal, socket, sockopt, splice, stat, sysinfo, time, timer, wait, xattr,
}

pub use clone::namespaces_of;
pub use misc::REFUSED;
pub use mount::SharedFileSystems;

/// What a system call answers: its value, an error number, or one of the restart codes.
pub type SysResult = Result<i64, Errno>;

/// A call that is finished, or one that has to wait.
pub enum Sys {
    /// Finished.
    Done(SysResult),
    /// Waiting; dropped only when the thread dies.
    Wait(BoxFuture<'static, SysResult>),
}

impl From<SysResult> for Sys {
    fn from(result: SysResult) -> Sys {
        Sys::Done(result)
    }
}

impl From<Result<Sys, Errno>> for Sys {
    fn from(result: Result<Sys, Errno>) -> Sys {
        result.unwrap_or_else(|errno| Sys::Done(Err(errno)))
    }
}

impl From<Errno> for Sys {
    fn from(errno: Errno) -> Sys {
        Sys::Done(Err(errno))
    }
}

impl Sys {
    /// A call that waits in `future`.
    pub fn wait(future: impl Future<Output = SysResult> + Send + 'static) -> Sys {
        Sys::Wait(Box::pin(future))
    }
}

/// Carries out one call for the thread that made it. Never blocks.
pub type Handler = fn(&Arc<Thread>, &SyscallArgs) -> Sys;

/// How an argument is printed by strace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arg {
    /// Decimal, signed.
    Int,
    /// Hexadecimal.
    Hex,
    /// Octal mode bits.
    Mode,
    /// A descriptor, or `AT_FDCWD`.
    Fd,
    /// An address.
    Ptr,
    /// A NUL-terminated string.
    Str,
    /// Bytes going in; their length is the argument with this index.
    Buf(u8),
    /// Bytes coming out; their length is the call's result.
    Out,
    /// A signal number.
    Signal,
    /// open(2) flags.
    OpenFlags,
    /// `PROT_*`.
    Prot,
    /// mmap(2) flags.
    MapFlags,
    /// A `struct timespec` going in.
    Time,
    /// A list of strings that ends with NULL.
    Strings,
}

/// The arguments of a call, in order.
pub type ArgSpec = &'static [Arg];

/// One call: number, name, handler, arguments.
pub type Row = (u64, &'static str, Handler, ArgSpec);

/// Makes a row: `call!(libc::SYS_getpid, getpid)`, `call!(libc::SYS_read, read, Fd, Out, Int)`. The handler is the
/// function of that name in the family's file.
macro_rules! call {
    ($nr:expr, $name:ident $(, $arg:ident $(($of:literal))?)* $(,)?) => {
        (
            $nr as u64,
            stringify!($name),
            |thread, args| $crate::syscalls::Sys::from($name(thread, args)),
            &[$($crate::syscalls::Arg::$arg $(($of))?),*],
        )
    };
}
pub(crate) use call;

/// Entries of the merged table.
pub const TABLE_SIZE: usize = 512;

static TABLE: LazyLock<Box<[Option<Row>; TABLE_SIZE]>> = LazyLock::new(|| {
    let mut table = Box::new([None; TABLE_SIZE]);
    for row in FAMILIES.iter().copied().flatten() {
        if let Some(entry) = table.get_mut(row.0 as usize) {
            debug_assert!(entry.is_none(), "system call {} is in two families", row.1);
            *entry = Some(*row);
        }
    }
    table
});

/// The row of a call number, if it is implemented.
pub fn lookup(nr: u64) -> Option<&'static Row> {
    TABLE.get(usize::try_from(nr).ok()?)?.as_ref()
}

/// All implemented calls, by number.
pub fn implemented() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_in_two_families_or_beyond_the_table() {
        let mut seen = std::collections::BTreeMap::new();
        for row in FAMILIES.iter().copied().flatten() {
            assert!((row.0 as usize) < TABLE_SIZE, "{}", row.1);
            assert_eq!(seen.insert(row.0, row.1), None, "{}", row.1);
        }
    }
}
