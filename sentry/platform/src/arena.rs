//! Shared memory with the stubs: arenas of mailboxes and the sandbox page.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, Op, ProcessHeader, SandboxPage, Slot, WorkerState};

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw(error as i32)
}

fn sealed_memfd(name: &str, size: usize) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).map_err(errno)?;
    nix::unistd::ftruncate(&fd, size as i64).map_err(errno)?;
    // Nobody can truncate it, so that no access of ours can raise SIGBUS.
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(errno)?;
    Ok(fd)
}

fn map(fd: &OwnedFd, size: usize) -> Result<MmapRaw, Errno> {
    MmapOptions::new().len(size).map_raw(fd).map_err(Errno::from)
}

/// One guest process's mailboxes, as the sentry sees them. The memory is shared with a hostile process: it is
/// accessed by atomics and raw copies only, and what is read is a claim.
pub struct Arena {
    map: MmapRaw,
    /// Where the arena is in the guest's address space (the same in every process).
    guest_base: u64,
}

// SAFETY: the mapping lives as long as the value, and is accessed by atomics and raw copies only.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// A fresh, zeroed arena and its descriptor, to be sent to the process that is to use it.
    pub fn new(guest_base: u64) -> Result<(Arena, OwnedFd), Errno> {
        let fd = sealed_memfd("arena", layout::ARENA_SIZE)?;
        let map = map(&fd, layout::ARENA_SIZE)?;
        Ok((Arena { map, guest_base }, fd))
    }

    /// The process header.
    pub fn header(&self) -> &ProcessHeader {
        // SAFETY: the mapping is larger than the header, aligned, lives as long as self, and the header is atomics.
        unsafe { &*self.map.as_ptr().cast() }
    }

    /// The head of a slot.
    pub fn slot(&self, index: usize) -> &Slot {
        // SAFETY: slot_ptr is in bounds and aligned; the slot's head is atomics.
        unsafe { &*self.slot_ptr(index).cast() }
    }

    /// The guest's address of a slot.
    pub fn slot_address(&self, index: usize) -> u64 {
        self.guest_base + (layout::SLOT_SIZE * (1 + index)) as u64
    }

    fn slot_ptr(&self, index: usize) -> *mut u8 {
        assert!(index < layout::MAX_SLOTS, "a slot of the arena");
        // SAFETY: in bounds, by the assertion.
        unsafe { self.map.as_mut_ptr().add(layout::SLOT_SIZE * (1 + index)) }
    }

    fn range(&self, index: usize, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: in bounds of the slot, by the check.
        (end <= layout::SLOT_SIZE).then(|| unsafe { self.slot_ptr(index).add(offset) })
    }

    /// Copies from a slot into private memory; false if that is out of bounds.
    pub fn read(&self, index: usize, offset: usize, buf: &mut [u8]) -> bool {
        let Some(from) = self.range(index, offset, buf.len()) else {
            return false;
        };
        // SAFETY: `from` is in bounds; the guest may write meanwhile, which can only garble the bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        true
    }

    /// Copies into a slot; false if that is out of bounds.
    pub fn write(&self, index: usize, offset: usize, data: &[u8]) -> bool {
        let Some(to) = self.range(index, offset, data.len()) else {
            return false;
        };
        // SAFETY: `to` is in bounds and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        true
    }

    /// A raw window into a slot's data area for host calls that fill it; `None` if out of bounds.
    pub fn data_window(&self, index: usize, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > layout::DATA_SIZE {
            return None;
        }
        self.range(index, layout::DATA_OFFSET + offset, len)
    }

    /// Copies the whole range from one slot to another (perhaps of another arena).
    pub fn copy_to(&self, index: usize, other: &Arena, other_index: usize, offset: usize, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.range(index, offset, len), other.range(other_index, offset, len)) else {
            return false;
        };
        // SAFETY: both in bounds; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) };
        true
    }

    /// Stores the operations of an answer.
    pub fn set_ops(&self, index: usize, ops: &[Op]) {
        let count = ops.len().min(layout::MAX_OPS);
        let Some(to) = self.range(index, layout::OPS_OFFSET, count * size_of::<Op>()) else {
            return;
        };
        // SAFETY: in bounds and aligned for Op.
        unsafe { std::ptr::copy_nonoverlapping(ops.as_ptr(), to.cast(), count) };
        self.slot(index).op_count.store(count as u32, Ordering::Relaxed);
    }

    /// The result that the stub claims for operation `op`.
    pub fn op_result(&self, index: usize, op: usize) -> i64 {
        let offset = layout::OPS_OFFSET + op * size_of::<Op>() + std::mem::offset_of!(Op, a);
        let mut bytes = [0; 8];
        self.read(index, offset, &mut bytes);
        i64::from_ne_bytes(bytes)
    }
}

/// The sandbox page, which all stubs map read-only, and the allocation of wake words in it.
pub struct Sandbox {
    map: MmapRaw,
    fd: OwnedFd,
    free: Mutex<(u32, Vec<u32>), rank::WakeWords>,
}

// SAFETY: the mapping lives as long as the value and is accessed by atomics only.
unsafe impl Send for Sandbox {}
// SAFETY: as above.
unsafe impl Sync for Sandbox {}

impl Sandbox {
    /// A fresh page. After this no further writable mapping of it can be made.
    pub fn new() -> Result<Sandbox, Errno> {
        let fd = sealed_memfd("sandbox", layout::SANDBOX_SIZE)?;
        let map = map(&fd, layout::SANDBOX_SIZE)?;
        const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;
        let seals = SealFlag::from_bits_retain(F_SEAL_FUTURE_WRITE) | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(errno)?;
        Ok(Sandbox {
            map,
            fd,
            free: Mutex::new((0, Vec::new())),
        })
    }

    /// The descriptor that the zygote maps.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What a worker shows to the stubs.
    pub fn worker(&self, index: usize) -> &WorkerState {
        // SAFETY: the mapping is larger than the page, aligned, and it is atomics.
        let page: &SandboxPage = unsafe { &*self.map.as_ptr().cast() };
        &page.workers[index % layout::MAX_WORKERS]
    }

    /// A wake word of a guest thread.
    pub fn wake_word(&self, index: u32) -> &AtomicU32 {
        assert!((index as usize) < layout::MAX_THREADS, "a wake word of the page");
        // SAFETY: in bounds by the assertion, aligned, atomic.
        unsafe {
            &*self
                .map
                .as_ptr()
                .add(layout::WAKE_OFFSET)
                .cast::<AtomicU32>()
                .add(index as usize)
        }
    }

    /// Takes a wake word for a new thread; `EAGAIN` when there are no more.
    pub fn take_wake_index(&self) -> Result<u32, Errno> {
        let (next, free) = &mut *self.free.lock();
        if let Some(index) = free.pop() {
            return Ok(index);
        }
        if *next as usize >= layout::MAX_THREADS {
            return Err(Errno::EAGAIN);
        }
        *next += 1;
        Ok(*next - 1)
    }

    /// Gives a wake word back.
    pub fn release_wake_index(&self, index: u32) {
        self.free.lock().1.push(index);
    }

    /// Wakes the stub that sleeps on a wake word.
    pub fn wake(&self, index: u32) {
        let word = self.wake_word(index);
        word.fetch_add(1, Ordering::SeqCst);
        self.wake_again(index);
    }

    /// Wakes without a new value: for a wake that was delegated to a stub.
    pub fn wake_again(&self, index: u32) {
        let word = self.wake_word(index);
        // SAFETY: a futex wake on a mapped word; it touches no memory.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}
