//! Linux structures and constants for x86-64: what crosses the line between guest and kernel.
//!
//! One file per family. Plain data only; conversions to and from bytes come from `zerocopy`.
#![forbid(unsafe_code)]

mod errno;
pub mod fs;
pub mod poll;
pub mod socket;
pub mod syscalls;
pub mod system;
pub mod time;
pub mod tty;

pub use errno::Errno;

/// The size of a page of guest and host memory, in bytes.
pub const PAGE_SIZE: u64 = 4096;
