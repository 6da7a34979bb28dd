//! The cases, one file per family of calls.

use crate::Case;

pub mod escape;
pub mod hostile;

macro_rules! families {
    ($($name:ident)*) => {
        $(mod $name;)*
        /// All cases.
        pub fn all() -> impl Iterator<Item = &'static Case> {
            [$($name::CASES),*].into_iter().flatten()
        }
    };
}

families! {
    clone exec exit wait signal futex mm time timer open read_write stat dir fcntl locks pipe poll epoll eventfd cred process
    rlimit misc forms procfs socket xattr overlay inotify splice sched prctl mount sigio unix clone3 futex_pi tty large
}
