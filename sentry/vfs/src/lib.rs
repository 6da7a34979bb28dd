//! The virtual file system: mounts, dentries, open file descriptions, file systems.
//!
//! The kernel's entry point is [`ops::Vfs`]; a file system implements [`inode::Inode`] and [`file::FileOps`].
#![forbid(unsafe_code)]

mod attr;
pub mod budget;
mod cache;
pub mod cred;
pub mod dentry;
pub mod device;
pub mod devtmpfs;
pub mod dir;
pub mod file;
pub mod gofer_fs;
pub mod inode;
pub mod mount;
mod mount_ops;
mod names;
pub mod notify;
mod open;
pub mod opens;
pub mod ops;
pub mod overlay;
pub mod path;
mod permission;
pub mod pseudo;
mod ranges;
mod text;
pub mod tmpfs;
pub mod wait;
pub mod walk;
