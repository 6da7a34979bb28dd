//! Safe wrappers for the host calls that the sandbox's processes make: one file per topic.

pub mod advice;
pub mod auxv;
pub mod caps;
pub mod clock;
pub mod epoll;
pub mod eventfd;
pub mod fatal;
pub mod file_locks;
pub mod files;
pub mod filter;
pub mod inotify;
pub mod landlock;
pub mod memory_file;
pub mod namespaces;
pub mod process;
pub mod scm;
pub mod sigsys;
pub mod stdio;
pub mod system;
pub mod table;
pub mod vdso;
pub mod waiting;
