//! Threads, processes, and who belongs to whom.

pub mod block;
pub mod clone;
mod dead;
pub mod exec;
pub mod exit;
pub mod fs;
mod image;
mod init;
pub mod limits;
pub mod pid;
pub mod process;
pub mod robust;
pub mod run;
pub mod thread;
pub mod usage;
pub mod wait;

pub use block::{Wake, block_on};
pub(crate) use exec::tell_exec;
pub use fs::{CallerContext, FsContext};
pub(crate) use image::{Loaded, Request, load};
pub(crate) use init::start_init;
pub use limits::{Limit, Limits, Resource};
pub use pid::{Pid, Tasks};
pub use process::Process;
pub(crate) use run::current;
pub use thread::{RunState, Thread};
