//! The stub that lives in every guest process: its image, and the memory layout it shares with the sentry.
//!
//! The code itself is in `image/`; `build.rs` compiles it to one position-independent block.

pub mod layout;

/// Offsets into [`IMAGE`].
pub mod symbol {
    include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
}

/// The stub: text and constants, to be mapped readable and executable at any page.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.bin"));
