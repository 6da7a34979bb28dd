//! The kernel: processes, threads, signals, files and time of the guests, and the system-call table.
//!
//! Every guest thread is one task on the [`executor`]; a system call that cannot block is a plain function, one
//! that can is a future. Nothing here knows which platform runs the guests.
//!
//! # Lock order
//!
//! A lock further down may be taken while one further up is held, never the other way round. No lock is held
//! across an `.await` (the guards are not `Send`, so the compiler sees to it).
//!
//! 1. [`pid::Tasks`] (`Kernel::tasks`): who exists, who is whose parent, process groups, sessions
//! 2. [`task::Process`] `signals`: its threads, its shared signal queue, stop and exit state
//! 3. [`task::Thread`] `signals`: its mask, its own queue
//! 4. [`signal::Actions`]: what each signal does
//! 5. [`task::Thread`] `files`, `fs`, `cred`, `guest`, and [`task::Process`] `mm`, `limits`: pointers, held to clone one
//! 6. [`fd::FdTable`], the file system context, futex buckets, memory maps
//! 7. locks of single objects: pipes, sockets, terminals, inodes
//! 8. [`sentry_vfs::wait::WaitQueue`], the executor's queues and timers
#![forbid(unsafe_code)]

pub mod anon;
pub mod boot;
pub mod changes;
pub mod config;
pub mod epoll;
pub mod eventfd;
pub mod events;
pub mod executor;
pub mod fd;
pub mod futex;
pub mod gap;
pub mod inotify;
pub mod io;
pub mod kernel;
pub mod leases;
pub mod locks;
pub mod mm;
pub mod namespace;
mod objects;
pub mod pidfd;
pub mod pipe;
pub mod procfs;
pub mod quota;
pub mod sched;
pub mod sigio;
pub mod signal;
pub mod signalfd;
pub mod splice;
pub mod stdio;
pub mod strace;
pub mod syscalls;
pub mod system;
pub mod task;
pub mod time;
pub mod timerfd;
pub mod tty;
pub mod unix;
pub mod user;
pub mod vdso;

pub use boot::{BootHandles, boot};
pub use config::{BootConfig, ExitStatus};
pub use kernel::Kernel;
pub use task::{Pid, Process, Thread, pid};
