//! The file gofer: the only process of a sandbox that can name a host path, and its protocol to the sentry.
//!
//! [`server`] runs in the gofer process. It serves a fixed list of exports (host directories or files), resolves
//! names one component at a time beneath an export's root, never through a symbolic link, and opens regular files,
//! whose descriptors it gives to the sentry. [`client`] is the sentry's side. Neither trusts the other:
//! [`protocol`] decodes every field with its bounds, and a wrong message is an error, never a panic.
#![forbid(unsafe_code)]

pub mod client;
pub mod protocol;
pub mod server;
pub mod watches;

pub use protocol::{Access, Attributes, NodeId, Time};

fn nix_errno(errno: nix::errno::Errno) -> sentry_abi::Errno {
    sentry_abi::Errno::from_raw(errno as i32)
}
