//! Program images: ELF files, scripts, the auxiliary vector and the initial stack. Bytes in, plan out.
//!
//! Nothing here opens a file or touches a guest. The kernel reads through a [`Source`], gets an [`Image`],
//! opens the interpreter that it names, calls [`plan()`] for the addresses of everything and
//! [`stack::build`] for the contents of the first stack, and then carries the plan out.
//!
//! ```text
//! loop {                                     // at most MAX_SCRIPT_DEPTH times
//!     match Image::read(&mut file)? {
//!         Image::Script(s) => { s.rewrite(&mut argv, path); path = s.interpreter; }   // open it, go on
//!         Image::Elf(elf) => break elf,
//!     }
//! }
//! let interp = elf.interpreter().map(|path| Elf::read_interpreter(&mut open(path)));
//! let plan = plan(&elf, interp.as_ref(), &layout, &random)?;
//! for s in &plan.segments { mmap(s.addr, s.len, s.prot, MAP_FIXED | MAP_PRIVATE, s.backing); zero(s.zero) }
//! mmap(plan.stack.start, …); let image = stack::build(&plan, &input)?; write(image.sp, image.bytes);
//! start(rip = plan.start, rsp = image.sp);
//! ```
//!
//! Every file is hostile: whatever it holds, the answer is an [`Errno`] as Linux gives it, or a plan whose
//! ranges lie within the layout and whose size is bounded (at most [`elf::MAX_PHDRS`] segments doubled).
#![forbid(unsafe_code)]

pub mod auxv;
pub mod elf;
mod plan;
mod script;
pub mod stack;
pub mod vdso;

pub use elf::{Elf, Source};
pub use plan::{Backing, Layout, Plan, Range, Segment, plan};
pub use script::{MAX_SCRIPT_DEPTH, Script};

use sentry_abi::{Errno, PAGE_SIZE};

/// What execve(2) was given.
#[derive(Clone, Debug)]
pub enum Image {
    /// A program.
    Elf(Elf),
    /// A text file that begins with `#!`.
    Script(Script),
}

impl Image {
    /// Reads the head of a file and says what it is; `ENOEXEC` if nothing that can be run.
    pub fn read(source: &mut dyn Source) -> Result<Image, Errno> {
        let mut head = [0u8; script::LINE_MAX];
        let len = elf::read_up_to(source, 0, &mut head)?;
        if head.starts_with(b"#!") {
            return Script::parse(head.get(..len).unwrap_or_default()).map(Image::Script);
        }
        Elf::read(source).map(Image::Elf)
    }
}

fn page_down(addr: u64) -> u64 {
    addr & !(PAGE_SIZE - 1)
}

fn page_up(addr: u64) -> Option<u64> {
    addr.checked_add(PAGE_SIZE - 1).map(page_down)
}
