//! A guest process: its arena, its host process, its memory.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, log};

use crate::arena::Arena;
use crate::async_lock::AsyncLock;
use crate::control::Control;
use crate::core::Core;
use crate::thread::Thread;
use crate::{AddressSpace, Identity, MemoryLogEntry};

/// One guest process.
pub(crate) struct Space {
    pub core: Arc<Core>,
    pub arena: Arena,
    /// The sentry's end of the control socket.
    pub control: Arc<Control>,
    /// The host process; 0 until it is known.
    pid: AtomicU32,
    dead: AtomicBool,
    threads: Mutex<Vec<Weak<Thread>>, rank::SpaceThreads>,
    slots: Mutex<Slots, rank::ArenaSlots>,
    /// Held while descriptors are on their way: only one order at a time carries any.
    pub descriptor_order: AsyncLock,
    local: AtomicBool,
    /// There are isolations (see [`Isolation`]): `held` has to be asked.
    isolated: AtomicBool,
    held: Mutex<Held, rank::HeldThreads>,
}

/// Threads that are not resumed while the watchdog finds out which one it is that runs.
#[derive(Default)]
struct Held {
    isolations: u32,
    /// Each with its worker.
    threads: Vec<(usize, Arc<Thread>)>,
}

/// While it lives, the other threads of a suspect's process are not resumed.
pub(crate) struct Isolation(Arc<Space>);

impl Drop for Isolation {
    fn drop(&mut self) {
        let threads = {
            let mut held = self.0.held.lock();
            held.isolations -= 1;
            if held.isolations > 0 {
                return;
            }
            self.0.isolated.store(false, Ordering::SeqCst);
            std::mem::take(&mut held.threads)
        };
        for (worker, thread) in threads {
            let worker = &self.0.core.workers[worker];
            worker.outbox.lock().push(thread);
            // A full counter is a readable one.
            let _ = sentry_host::eventfd::signal(worker.doorbell.as_fd());
        }
    }
}

#[derive(Default)]
struct Slots {
    next: usize,
    /// Slots whose thread was told to exit; free once the host says it is gone.
    leaving: Vec<usize>,
}

impl Space {
    /// A process whose first thread uses slot `first`.
    pub fn new(core: &Arc<Core>, arena: Arena, control: Arc<Control>, first: usize) -> Arc<Space> {
        Arc::new(Space {
            core: core.clone(),
            arena,
            control,
            pid: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            slots: Mutex::new(Slots {
                next: first + 1,
                leaving: Vec::new(),
            }),
            descriptor_order: AsyncLock::new(),
            local: AtomicBool::new(true),
            isolated: AtomicBool::new(false),
            held: Mutex::new(Held::default()),
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Notes the (verified) host pid.
    pub fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub fn local_calls(&self) -> bool {
        self.local.load(Ordering::Relaxed)
    }

    pub fn add_thread(&self, thread: &Arc<Thread>) {
        let mut threads = self.threads.lock();
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(thread));
    }

    /// A slot for a new thread.
    pub fn take_slot(&self) -> Result<usize, Errno> {
        let mut slots = self.slots.lock();
        let gone = slots
            .leaving
            .iter()
            .position(|slot| self.arena.slot(*slot).alive.load(Ordering::Acquire) == 0);
        if let Some(index) = gone {
            return Ok(slots.leaving.swap_remove(index));
        }
        if slots.next >= layout::MAX_SLOTS {
            return Err(Errno::EAGAIN);
        }
        slots.next += 1;
        Ok(slots.next - 1)
    }

    /// The thread of this slot has been told to exit (or never came to be).
    pub fn release_slot(&self, slot: usize) {
        self.slots.lock().leaving.push(slot);
    }

    /// The host process is gone, or is not to be waited for any more.
    pub fn mark_dead(&self) {
        if self.dead.swap(true, Ordering::SeqCst) {
            return;
        }
        let threads: Vec<_> = self.threads.lock().iter().filter_map(Weak::upgrade).collect();
        for thread in threads {
            thread.mark_dead();
        }
    }

    fn live_threads(&self) -> Vec<Arc<Thread>> {
        self.threads.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// How many threads there are that may run.
    pub fn running_threads(&self) -> usize {
        let threads = self.live_threads();
        threads.iter().filter(|thread| thread.is_alive()).count()
    }

    /// True while a kick has been sent to one of the threads that the host does not know of yet (ptrace: the tracer
    /// is late).
    pub fn kicks_are_under_way(&self) -> bool {
        self.live_threads().iter().any(|thread| thread.kick_is_under_way())
    }

    /// Stops all threads but one as soon as they come back, which the kick makes them do.
    pub fn isolate(space: &Arc<Space>, suspect: &Arc<Thread>) -> Isolation {
        {
            let mut held = space.held.lock();
            held.isolations += 1;
            space.isolated.store(true, Ordering::SeqCst);
        }
        // A thread that is resumed after this is held: `resume` and `interrupt` take the same lock.
        for thread in space.live_threads() {
            if !Arc::ptr_eq(&thread, suspect) {
                thread.interrupt();
            }
        }
        Isolation(space.clone())
    }

    /// Holds back a thread that is to be resumed on a worker, if its process is isolated.
    pub fn hold(&self, worker: usize, thread: &Arc<Thread>) -> bool {
        if !self.isolated.load(Ordering::SeqCst) {
            return false;
        }
        let mut held = self.held.lock();
        if held.isolations > 0 {
            held.threads.push((worker, thread.clone()));
        }
        held.isolations > 0
    }

    /// Copies by a stopped thread's stub, if there is one.
    fn transfer_by_stub(&self, addr: u64, buf: *mut u8, len: usize, write: bool) -> usize {
        let stopped = self.live_threads().into_iter().find(|thread| thread.is_stopped());
        stopped.map_or(0, |thread| thread.copy_by_stub(addr, buf, len, write))
    }

    /// One process_vm_readv or process_vm_writev: the number of bytes up to the first fault.
    fn transfer(&self, addr: u64, buf: *mut u8, len: usize, write: bool) -> usize {
        let pid = self.pid() as libc::pid_t;
        if len == 0
            || pid == 0
            || self.is_dead()
            || addr
                .checked_add(len as u64)
                .is_none_or(|end| end > self.core.layout.high)
        {
            return 0;
        }
        if !self.core.remote_memory {
            return self.transfer_by_stub(addr, buf, len, write);
        }
        let mut done = 0;
        while done < len {
            let local = libc::iovec {
                iov_base: buf.wrapping_add(done).cast(),
                iov_len: len - done,
            };
            let remote = libc::iovec {
                iov_base: (addr + done as u64) as *mut libc::c_void,
                iov_len: len - done,
            };
            // SAFETY: `local` lies within the caller's buffer of `len` bytes; `remote` is another process's memory.
            let count = unsafe {
                if write {
                    libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
                } else {
                    libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
                }
            };
            if count <= 0 {
                break;
            }
            done += count as usize;
        }
        done
    }
}

impl AddressSpace for Space {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Errno> {
        if self.read_partial(addr, buf) == buf.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    }

    fn read_partial(&self, addr: u64, buf: &mut [u8]) -> usize {
        self.transfer(addr, buf.as_mut_ptr(), buf.len(), false)
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Errno> {
        let done = self.transfer(addr, data.as_ptr().cast_mut(), data.len(), true);
        if done == data.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn set_identity(&self, identity: Identity) {
        for thread in self.live_threads() {
            thread.store_identity(identity);
        }
    }

    fn set_local_calls(&self, on: bool) {
        self.local.store(on, Ordering::Relaxed);
        for thread in self.live_threads() {
            thread.store_local(on);
        }
    }

    fn set_brk(&self, start: u64, end: u64, limit: u64) {
        let header = self.arena.header();
        header.brk_start.store(start, Ordering::Relaxed);
        header.brk_end.store(end, Ordering::Relaxed);
        header.brk_limit.store(limit, Ordering::Relaxed);
    }

    fn brk(&self) -> u64 {
        self.arena.header().brk_end.load(Ordering::Relaxed)
    }

    fn drain_log(&self) -> Vec<MemoryLogEntry> {
        let header = self.arena.header();
        let tail = header.log_tail.load(Ordering::Relaxed);
        let head = header.log_head.load(Ordering::Acquire);
        let count = head.wrapping_sub(tail).min(layout::LOG_ENTRIES as u64);
        let mut entries = Vec::with_capacity(count as usize);
        for index in 0..count {
            let entry = &header.log[(tail.wrapping_add(index)) as usize % layout::LOG_ENTRIES];
            let a: [u64; 4] = std::array::from_fn(|i| entry.a[i].load(Ordering::Relaxed));
            let flags = entry.flags.load(Ordering::Relaxed) as i32;
            let entry = match entry.kind.load(Ordering::Relaxed) {
                log::MMAP => MemoryLogEntry::Mmap {
                    addr: a[0],
                    len: a[1],
                    prot: a[2] as i32,
                    flags,
                },
                log::MUNMAP => MemoryLogEntry::Munmap { addr: a[0], len: a[1] },
                log::MPROTECT => MemoryLogEntry::Mprotect {
                    addr: a[0],
                    len: a[1],
                    prot: a[2] as i32,
                    result: a[3] as i32,
                },
                log::MREMAP => MemoryLogEntry::Mremap {
                    addr: a[0],
                    old_len: a[1],
                    new_len: a[2],
                    new_addr: a[3],
                },
                log::BRK => MemoryLogEntry::Brk { end: a[0] },
                _ => continue,
            };
            entries.push(entry);
        }
        header.log_tail.store(head, Ordering::Release);
        entries
    }

    fn host_pid(&self) -> u32 {
        self.pid()
    }

    fn kill(&self) {
        let pid = self.pid();
        if pid != 0 && !self.is_dead() {
            // SAFETY: signals the process group that this guest process alone is in; its leader is not reaped yet
            // (`dead` is set before that), so the number cannot have been given to anybody else.
            unsafe {
                libc::kill(-(pid as libc::pid_t), libc::SIGKILL);
                libc::kill(pid as libc::pid_t, libc::SIGKILL);
            }
        }
        self.mark_dead();
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // The map of pids holds a weak reference: the reaper still finds the pid's entry and removes it.
        self.kill();
    }
}
