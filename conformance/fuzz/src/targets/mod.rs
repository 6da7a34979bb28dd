//! What is fuzzed.

mod elf;
mod gofer;
mod mailbox;
mod paths;
mod profile;

/// Runs one input: a number that says what came of it, or which promise was broken.
pub type Run = Box<dyn FnMut(&[u8]) -> Result<u64, String>>;

/// A parser.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that mean something to it.
    pub words: &'static [&'static [u8]],
    /// Whatever it needs, made once.
    pub make: fn() -> Run,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    elf::TARGET,
    gofer::REQUEST,
    gofer::REPLY,
    paths::TARGET,
    mailbox::TARGET,
    profile::TARGET,
];

/// A number for everything that says how far a parser came: two lengths that differ by little give the same.
pub fn outcome(parts: &[u64]) -> u64 {
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &part| {
        let coarse = if part < 16 { part } else { 16 + u64::from(part.ilog2()) };
        (hash ^ coarse).wrapping_mul(0x100_0000_01b3)
    })
}
