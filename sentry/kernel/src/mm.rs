//! Memory maps of guest processes: what the sentry knows of each address space.
//!
//! The memory itself is the host's, and so is the truth about it. The map here is fed by what the sentry ordered
//! and by the stub's log of what it did itself; it serves `/proc/PID/maps`, limits and mremap(2), never safety:
//! every access to guest memory can fail, whatever the map says.

mod regions;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_loader::stack::StackImage;
use sentry_loader::{Backing as PlanBacking, Plan, vdso};
use sentry_lock::{Mutex, rank};
use sentry_platform::{AddressSpace, MemoryLogEntry};
use sentry_vfs::file::File;

use crate::Kernel;
use crate::task::{Limit, Process, Resource};

pub use regions::{Backing, Region, Regions};

/// Whether stubs may answer memory calls by themselves: not while calls are printed, and not under limits and
/// settings that only the sentry knows.
pub fn local_calls_allowed(kernel: &Kernel, process: &Process) -> bool {
    let limits = process.limits.read();
    let unlimited = |resource| limits.get(resource).current == Limit::INFINITY;
    !kernel.strace.load(Ordering::Relaxed)
        && unlimited(Resource::AS)
        && unlimited(Resource::DATA)
        && !process.options.denies_write_execute()
}

/// True if some process has the file mapped shared from a description that is open for writing (`F_SEAL_WRITE` asks).
pub fn is_mapped_writable(kernel: &Kernel, file: &File) -> bool {
    let Some(key) = file.path().inode_key() else {
        return false;
    };
    let processes: Vec<_> = kernel
        .tasks
        .read()
        .processes()
        .map(|node| node.process.clone())
        .collect();
    let counts = |region: &Region| match &region.backing {
        Backing::File(mapped) => region.shared && mapped.writable() && mapped.path().inode_key() == Some(key),
        _ => false,
    };
    processes
        .iter()
        .any(|process| process.mm().with(|state| state.regions.iter().any(counts)))
}

/// What execve(2) leaves behind for `/proc/PID` and prctl(2).
#[derive(Clone, Default)]
#[allow(missing_docs)]
pub struct ImageInfo {
    /// The program (`/proc/PID/exe`); for a script its interpreter.
    pub exe: Option<Arc<File>>,
    pub code: (u64, u64),
    pub data: (u64, u64),
    pub start_stack: u64,
    pub args: (u64, u64),
    pub env: (u64, u64),
    pub auxv: Vec<u8>,
}

/// What the kernel knows of one address space. Shared by the threads of a process, and by a vfork child.
pub struct MemoryMap {
    space: Arc<dyn AddressSpace>,
    state: Mutex<State, rank::MemoryMap>,
}

#[derive(Clone, Default)]
struct State {
    /// What holds the files of which the process has got descriptors ([`sentry_vfs::file::FileOps::mapping`]). Dropped
    /// before the files.
    held: HashMap<usize, Arc<dyn Any + Send + Sync>>,
    regions: Regions,
    brk_start: u64,
    brk_limit: u64,
    image: ImageInfo,
    /// The largest total so far, in bytes.
    peak: u64,
    /// mlockall(2) with `MCL_FUTURE`.
    lock_future: bool,
}

impl MemoryMap {
    /// The map of a new, empty address space.
    pub fn new(space: Arc<dyn AddressSpace>) -> Arc<MemoryMap> {
        Arc::new(MemoryMap {
            space,
            state: Mutex::default(),
        })
    }

    /// A copy for a forked child. Locked memory is not inherited.
    pub fn fork(&self, space: Arc<dyn AddressSpace>) -> Arc<MemoryMap> {
        let mut state = self.with(|state| state.clone());
        drop(state.regions.take_gone());
        state.regions.unlock_all();
        state.lock_future = false;
        space.set_brk(state.brk_start, self.space.brk(), state.brk_limit);
        Arc::new(MemoryMap {
            space,
            state: Mutex::new(state),
        })
    }

    /// Keeps what a file wants kept, since the process gets a descriptor of it to map.
    pub fn keep(&self, file: &File) {
        if let Some((key, held)) = file.ops().mapping() {
            let other = self.with(|state| state.held.insert(key, held));
            // Its drop may take locks.
            drop(other);
        }
    }

    /// For how many files.
    pub fn kept(&self) -> usize {
        self.with(|state| state.held.len())
    }

    /// The platform's side of it.
    pub fn space(&self) -> &Arc<dyn AddressSpace> {
        &self.space
    }

    /// Runs `f` on the state, brought up to date with the stub's log. Files that only regions kept which are gone are
    /// closed after the lock.
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        for entry in self.space.drain_log() {
            state.apply(&entry);
        }
        state.peak = state.peak.max(state.regions.total());
        let result = f(&mut state);
        let gone = state.regions.take_gone();
        drop(state);
        drop(gone);
        result
    }

    /// Records a new program: everything that `plan` maps, the stack and the vDSO.
    pub fn record_exec(&self, plan: &Plan, stack: &StackImage, program: &Arc<File>, interpreter: Option<&Arc<File>>) {
        let before = self.with(|state| {
            let before = std::mem::take(state);
            for segment in &plan.segments {
                let (backing, offset) = match (segment.backing, interpreter) {
                    (PlanBacking::Program(offset), _) => (Backing::File(program.clone()), offset),
                    (PlanBacking::Interpreter(offset), Some(file)) => (Backing::File(file.clone()), offset),
                    _ => (Backing::Anonymous, 0),
                };
                let region = Region::new(segment.addr, segment.len, segment.prot, backing).at_offset(offset);
                state.regions.insert(region);
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE | if plan.executable_stack { libc::PROT_EXEC } else { 0 };
            state
                .regions
                .insert(Region::new(plan.stack.start, plan.stack.len(), prot, Backing::Stack));
            let text = Region::new(
                plan.vdso,
                vdso::TEXT_LEN,
                libc::PROT_READ | libc::PROT_EXEC,
                Backing::Vdso,
            );
            state.regions.insert(text);
            let table_len = vdso::IMAGE_LEN - vdso::TEXT_LEN;
            state.regions.insert(Region::new(
                plan.vdso + vdso::TEXT_LEN,
                table_len,
                libc::PROT_READ,
                Backing::Vvar,
            ));
            state.brk_start = plan.brk.start;
            state.brk_limit = plan.brk.end;
            state.image = ImageInfo {
                exe: Some(program.clone()),
                code: (plan.code.start, plan.code.end),
                data: (plan.data.start, plan.data.end),
                start_stack: stack.sp,
                args: stack.args,
                env: stack.env,
                auxv: stack.auxv.clone(),
            };
            before
        });
        drop(before);
        self.space.set_brk(plan.brk.start, plan.brk.start, plan.brk.end);
    }

    /// Records a mapping that was made.
    pub fn record_map(&self, region: Region) {
        self.with(|state| {
            let mut region = region;
            region.locked |= state.lock_future;
            state.regions.insert(region);
        });
    }

    /// Records munmap(2).
    pub fn record_unmap(&self, addr: u64, len: u64) {
        self.with(|state| state.apply(&MemoryLogEntry::Munmap { addr, len }));
    }

    /// Records mprotect(2), also one that failed: it has changed what lies before the place where it failed.
    pub fn record_protect(&self, addr: u64, len: u64, prot: i32, result: Result<(), Errno>) {
        let result = result.map_or_else(|errno| -errno.raw(), |()| 0);
        self.with(|state| {
            state.apply(&MemoryLogEntry::Mprotect {
                addr,
                len,
                prot,
                result,
            })
        });
    }

    /// Records mremap(2).
    pub fn record_remap(&self, addr: u64, old_len: u64, new_len: u64, new_addr: u64) {
        self.with(|state| {
            state.apply(&MemoryLogEntry::Mremap {
                addr,
                old_len,
                new_len,
                new_addr,
            })
        });
    }

    /// Records a new end of the heap, also for the stub.
    pub fn record_brk(&self, end: u64) {
        let (start, limit) = self.with(|state| {
            state.apply(&MemoryLogEntry::Brk { end });
            (state.brk_start, state.brk_limit)
        });
        self.space.set_brk(start, end, limit);
    }

    /// The heap: its start, present end and how far it may grow.
    pub fn brk(&self) -> (u64, u64, u64) {
        let (start, limit) = self.with(|state| (state.brk_start, state.brk_limit));
        (start, self.space.brk(), limit)
    }

    /// All regions, by address.
    pub fn regions(&self) -> Vec<Region> {
        self.with(|state| state.regions.iter().cloned().collect())
    }

    /// Takes in what the stub has done by itself: files stay open that only mappings kept which are gone.
    pub fn settle(&self) {
        self.with(|_| ());
    }

    /// Bytes mapped now, and the most there were.
    pub fn total(&self) -> (u64, u64) {
        self.with(|state| (state.regions.total(), state.peak))
    }

    /// Bytes that count for `RLIMIT_DATA`: private and writable, without the stack.
    pub fn data_total(&self) -> u64 {
        self.with(|state| {
            let counts =
                |r: &&Region| r.prot & libc::PROT_WRITE != 0 && !r.shared && !matches!(r.backing, Backing::Stack);
            state.regions.iter().filter(counts).map(Region::len).sum()
        })
    }

    /// Bytes locked with mlock(2).
    pub fn locked(&self) -> u64 {
        self.with(|state| {
            state
                .regions
                .iter()
                .filter(|region| region.locked)
                .map(Region::len)
                .sum()
        })
    }

    /// Sets or clears the lock of a range up to the first hole; false if there is one.
    pub fn set_locked(&self, addr: u64, len: u64, locked: bool) -> bool {
        self.with(|state| {
            let reach = state.regions.reach(addr, len);
            state.regions.change(addr, reach, |region| region.locked = locked);
            reach >= len
        })
    }

    /// mlockall(2): what is mapped now and what will be.
    pub fn set_locked_all(&self, now: Option<bool>, future: Option<bool>) {
        self.with(|state| {
            if let Some(locked) = now {
                state.regions.change(0, u64::MAX, |region| region.locked = locked);
            }
            if let Some(future) = future {
                state.lock_future = future;
            }
        });
    }

    /// A free range within `low..high`, as far as is known.
    pub fn find_gap(&self, len: u64, low: u64, high: u64) -> Option<u64> {
        self.with(|state| state.regions.find_gap(len, low, high))
    }

    /// True if all of a range is mapped, as far as is known.
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        self.with(|state| state.regions.covers(addr, len))
    }

    /// The regions that touch a range.
    pub fn overlapping(&self, addr: u64, len: u64) -> Vec<Region> {
        let end = addr.saturating_add(len);
        self.with(|state| {
            state
                .regions
                .iter()
                .filter(|r| r.start < end && addr < r.end)
                .cloned()
                .collect()
        })
    }

    /// What execve(2) left behind.
    pub fn image(&self) -> ImageInfo {
        self.with(|state| state.image.clone())
    }

    /// Changes that, for prctl(`PR_SET_MM`).
    pub fn update_image(&self, change: impl FnOnce(&mut ImageInfo)) {
        self.with(|state| change(&mut state.image));
    }
}

impl State {
    fn apply(&mut self, entry: &MemoryLogEntry) {
        match *entry {
            MemoryLogEntry::Mmap { addr, len, prot, flags } => {
                let mut region = Region::new(addr, len, prot, Backing::Anonymous);
                region.shared = flags & libc::MAP_TYPE == libc::MAP_SHARED;
                region.locked = self.lock_future;
                self.regions.insert(region);
            }
            MemoryLogEntry::Munmap { addr, len } => self.regions.remove(addr, len),
            MemoryLogEntry::Mprotect {
                addr,
                len,
                prot,
                result,
            } => {
                let reach = match -result {
                    0 => len,
                    libc::ENOMEM => self.regions.reach(addr, len),
                    libc::EACCES => self.regions.reach_where(addr, len, |region| region.allows(prot)),
                    _ => 0,
                };
                self.regions
                    .change(addr, reach, |region| region.prot = prot & regions::PROT_MASK);
            }
            MemoryLogEntry::Mremap {
                addr,
                old_len,
                new_len,
                new_addr,
            } => {
                self.regions.remap(addr, old_len, new_len, new_addr);
            }
            MemoryLogEntry::Brk { end } => {
                let start = self.brk_start;
                self.regions.remove_heap();
                let Some(end) = end.checked_next_multiple_of(PAGE_SIZE) else {
                    return;
                };
                let start = start.next_multiple_of(PAGE_SIZE);
                if start < end {
                    let prot = libc::PROT_READ | libc::PROT_WRITE;
                    self.regions
                        .insert(Region::new(start, end - start, prot, Backing::Heap));
                }
            }
        }
        self.peak = self.peak.max(self.regions.total());
    }
}
