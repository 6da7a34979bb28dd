//! Pipes and FIFOs (pipe(7)).

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, MutexGuard, rank};
use sentry_vfs::device::FifoOpener;
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::path::{InodeKey, VfsPath};
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::{anon, objects};

/// Writes of at most this many bytes are atomic; also the size of a packet in packet mode.
pub const PIPE_BUF: usize = 4096;
/// The capacity of a new pipe, in bytes.
pub const DEFAULT_CAPACITY: usize = 64 << 10;
/// The largest capacity an unprivileged process may ask for (`/proc/sys/fs/pipe-max-size`).
pub const MAX_CAPACITY: usize = 1 << 20;

/// What all pipes of the sandbox may hold together before new ones are small and none may grow
/// (`/proc/sys/fs/pipe-user-pages-soft`), in bytes.
const SOFT_TOTAL: usize = 64 << 20;
/// The capacity of a new pipe beyond that.
const SMALL_CAPACITY: usize = 2 * PIPE_BUF;
/// What parts of the sandbox's memory new pipes are small beyond, and there are none beyond.
const SOFT_PART: usize = 8;
const HARD_PART: usize = 4;

/// The capacity of all pipes.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Counts a pipe's capacity as long as it lives.
struct Charge(usize);

/// `ENFILE` if all pipes together have as much as they may have.
pub fn check_total() -> Result<(), Errno> {
    let total = TOTAL.load(Ordering::Relaxed).saturating_add(SMALL_CAPACITY);
    if total > objects::share(usize::MAX, HARD_PART) {
        return Err(Errno::ENFILE);
    }
    Ok(())
}

/// The capacity of a new pipe when all others have `total`.
fn new_capacity(total: usize) -> usize {
    if total.saturating_add(DEFAULT_CAPACITY) <= objects::share(SOFT_TOTAL, SOFT_PART) {
        DEFAULT_CAPACITY
    } else {
        SMALL_CAPACITY
    }
}

impl Charge {
    fn new() -> Charge {
        let mut charge = Charge(0);
        charge.set(new_capacity(TOTAL.load(Ordering::Relaxed)));
        charge
    }

    fn set(&mut self, capacity: usize) {
        TOTAL.fetch_add(capacity, Ordering::Relaxed);
        TOTAL.fetch_sub(self.0, Ordering::Relaxed);
        self.0 = capacity;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.0, Ordering::Relaxed);
    }
}

const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
const WRITABLE: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);

/// A ring of bytes that grows by doubling up to the pipe's capacity.
#[derive(Default)]
struct Ring {
    bytes: Vec<u8>,
    head: usize,
    len: usize,
}

impl Ring {
    /// Appends `data`; the caller has checked the capacity.
    fn push(&mut self, data: &[u8], capacity: usize) {
        let wanted = self.len + data.len();
        if wanted > self.bytes.len() {
            self.resize(wanted.next_power_of_two().max(PIPE_BUF).min(capacity.max(wanted)));
        }
        let size = self.bytes.len();
        let tail = (self.head + self.len) % size.max(1);
        let first = data.len().min(size - tail);
        self.bytes[tail..tail + first].copy_from_slice(&data[..first]);
        self.bytes[..data.len() - first].copy_from_slice(&data[first..]);
        self.len += data.len();
    }

    /// Copies from the front; the number of bytes.
    fn peek(&self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.len);
        if n == 0 {
            return 0;
        }
        let first = n.min(self.bytes.len() - self.head);
        out[..first].copy_from_slice(&self.bytes[self.head..self.head + first]);
        out[first..n].copy_from_slice(&self.bytes[..n - first]);
        n
    }

    /// Drops `n` bytes from the front.
    fn discard(&mut self, n: usize) {
        let n = n.min(self.len);
        self.len -= n;
        self.head = if self.len == 0 {
            0
        } else {
            (self.head + n) % self.bytes.len()
        };
    }

    fn resize(&mut self, size: usize) {
        let mut bytes = vec![0; size.max(self.len)];
        let n = self.peek(&mut bytes);
        self.bytes = bytes;
        self.head = 0;
        self.len = n;
    }
}

/// What Linux keeps in one page: a pipe has room for so many of them, however little is in each.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Where in its page the first byte is.
    start: usize,
    len: usize,
    /// A packet of its own (packet mode).
    packet: bool,
    /// A write that fits behind what is there is put there.
    open: bool,
}

struct State {
    ring: Ring,
    /// Describes the whole ring.
    slots: VecDeque<Slot>,
    capacity: usize,
    charge: Charge,
    readers: usize,
    writers: usize,
    /// How often an end was opened: an open(2) of a FIFO waits for the other one to move.
    reader_opens: u64,
    writer_opens: u64,
}

impl State {
    fn free_slots(&self) -> usize {
        (self.capacity / PIPE_BUF).saturating_sub(self.slots.len())
    }

    /// Puts `data`, at most a page, into a slot of its own.
    fn push(&mut self, data: &[u8], slot: Slot) {
        self.slots.push_back(Slot {
            len: data.len(),
            ..slot
        });
        self.ring.push(data, self.capacity);
    }

    /// Appends `data` to the last slot, if it fits there.
    fn append(&mut self, data: &[u8]) -> bool {
        let last = self.slots.back_mut();
        let Some(last) = last.filter(|last| last.open && last.start + last.len + data.len() <= PIPE_BUF) else {
            return false;
        };
        last.len += data.len();
        self.ring.push(data, self.capacity);
        true
    }

    /// Copies out what one read would get: the bytes for the reader and how many leave the pipe.
    fn peek(&self, out: &mut [u8]) -> (usize, usize) {
        let (mut wanted, mut consumed) = (0, 0);
        for slot in &self.slots {
            let room = out.len() - wanted;
            if room == 0 {
                break;
            }
            let n = slot.len.min(room);
            wanted += n;
            if slot.packet {
                // A packet ends the read, and what did not fit is lost.
                consumed += slot.len;
                break;
            }
            consumed += n;
        }
        let wanted = self.ring.peek(&mut out[..wanted]);
        (wanted, consumed)
    }

    fn consume(&mut self, mut n: usize) {
        self.ring.discard(n);
        while n > 0 {
            let Some(first) = self.slots.front_mut() else { break };
            if first.len > n {
                first.start += n;
                first.len -= n;
                break;
            }
            n -= first.len;
            self.slots.pop_front();
        }
    }
}

/// The buffer that the two ends of a pipe, or all openers of a FIFO, share.
pub struct Pipe {
    state: Mutex<State, rank::Pipe>,
    queue: WaitQueue,
}

impl Default for Pipe {
    fn default() -> Pipe {
        let charge = Charge::new();
        Pipe {
            state: Mutex::new(State {
                ring: Ring::default(),
                slots: VecDeque::new(),
                capacity: charge.0,
                charge,
                readers: 0,
                writers: 0,
                reader_opens: 0,
                writer_opens: 0,
            }),
            queue: WaitQueue::new(),
        }
    }
}

impl Pipe {
    /// How many bytes are in it.
    fn memory(&self) -> u64 {
        self.state.lock().slots.iter().map(|slot| slot.len as u64).sum()
    }

    /// An empty pipe without ends.
    pub fn new() -> Arc<Pipe> {
        Arc::new(Pipe::default())
    }

    /// Opens one end, or both.
    pub fn open(self: &Arc<Pipe>, read: bool, write: bool, attributes: Option<Attributes>) -> PipeEnd {
        let mut state = self.state.lock();
        state.readers += usize::from(read);
        state.writers += usize::from(write);
        state.reader_opens += u64::from(read);
        state.writer_opens += u64::from(write);
        // A reader that was there first is not hung up on before a writer has come.
        let quiet_until = if attributes.is_none() && read && !write && state.writers == 0 {
            Some(state.writer_opens)
        } else {
            None
        };
        let seen = (state.reader_opens, state.writer_opens);
        drop(state);
        self.queue.wake_all();
        PipeEnd {
            pipe: self.clone(),
            read,
            write,
            attributes,
            quiet_until,
            seen,
        }
    }

    /// How many readers and writers there are, and how often each side was opened.
    pub fn openers(&self) -> PipeOpeners {
        let state = self.state.lock();
        PipeOpeners {
            readers: state.readers,
            writers: state.writers,
            reader_opens: state.reader_opens,
            writer_opens: state.writer_opens,
        }
    }

    /// Where changes of the pipe are announced.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// The number of bytes in it (`FIONREAD`).
    pub fn available(&self) -> usize {
        self.state.lock().ring.len
    }

    /// `F_GETPIPE_SZ`.
    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// `F_SETPIPE_SZ`: the new capacity, which is rounded up. `EBUSY` if more is in the pipe, `EPERM` beyond
    /// the limit of an unprivileged caller.
    pub fn set_capacity(&self, wanted: usize, privileged: bool) -> Result<usize, Errno> {
        if wanted > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let capacity = wanted.max(PIPE_BUF).next_power_of_two();
        let mut state = self.state.lock();
        if capacity > state.capacity && capacity > MAX_CAPACITY && !privileged {
            return Err(Errno::EPERM);
        }
        // Bounded for privileged callers too: the memory is the sentry's.
        if capacity > MAX_CAPACITY * 16 {
            return Err(Errno::ENOMEM);
        }
        if capacity > state.capacity && TOTAL.load(Ordering::Relaxed) + capacity - state.capacity > SOFT_TOTAL {
            return Err(Errno::EPERM);
        }
        if state.slots.len() > capacity / PIPE_BUF {
            return Err(Errno::EBUSY);
        }
        if state.ring.bytes.len() > capacity {
            state.ring.resize(capacity);
        }
        state.capacity = capacity;
        state.charge.set(capacity);
        drop(state);
        self.queue.wake(WRITABLE);
        Ok(capacity)
    }

    /// Reads; `EAGAIN` when empty with writers, 0 when empty without.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut state = self.state.lock();
        if state.slots.is_empty() {
            return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let before = state.free_slots();
        let (n, consumed) = state.peek(buf);
        state.consume(consumed);
        self.after_read(state, before);
        Ok(n)
    }

    fn after_read(&self, state: MutexGuard<'_, State, rank::Pipe>, free_before: usize) {
        let wake = free_before == 0 && state.free_slots() > 0;
        drop(state);
        if wake {
            self.queue.wake(WRITABLE);
        }
    }

    /// Copies what a read would get without taking it (tee(2), splice(2)).
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        let state = self.state.lock();
        if state.ring.len == 0 {
            return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        Ok(state.peek(buf).0)
    }

    /// Drops `n` bytes from the front, after [`Self::peek`].
    pub fn discard(&self, n: usize) {
        let mut state = self.state.lock();
        let before = state.free_slots();
        state.consume(n);
        self.after_read(state, before);
    }

    /// Writes; `EPIPE` without readers, `EAGAIN` when it does not fit (at most [`PIPE_BUF`] bytes: as a whole).
    pub fn write(&self, data: &[u8], packets: bool) -> Result<usize, Errno> {
        if data.is_empty() {
            return Ok(0);
        }
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        // As Linux: the part of a page first, behind what the last slot has, and then a slot for each page.
        let part = data.len() % PIPE_BUF;
        let mut written = if part > 0 && state.append(&data[..part]) {
            part
        } else {
            0
        };
        for page in data[written..].chunks(PIPE_BUF) {
            if state.free_slots() == 0 {
                break;
            }
            let slot = Slot {
                start: 0,
                len: 0,
                packet: packets,
                open: !packets,
            };
            state.push(page, slot);
            written += page.len();
        }
        drop(state);
        if written == 0 {
            return Err(Errno::EAGAIN);
        }
        self.queue.wake(READABLE);
        Ok(written)
    }

    /// How many bytes of whole pages fit.
    pub fn room(&self) -> usize {
        self.state.lock().free_slots() * PIPE_BUF
    }

    /// Appends what fits, a part if need be; with `all` everything, beyond the capacity (for what cannot be given
    /// back). The first byte comes to lie at `start` in its page. `EPIPE` without readers, `EAGAIN` if nothing fits.
    pub fn fill(&self, data: &[u8], start: usize, all: bool) -> Result<usize, Errno> {
        let mut slot = Slot {
            start: start % PIPE_BUF,
            len: 0,
            packet: false,
            open: false,
        };
        self.add(|state| {
            let mut done = 0;
            while done < data.len() && (all || state.free_slots() > 0) {
                let piece = (data.len() - done).min(PIPE_BUF - slot.start);
                state.push(&data[done..done + piece], slot);
                slot.start = 0;
                done += piece;
            }
            done
        })
    }

    /// Copies as many of another pipe's pages as fit, at most `len` bytes, without taking them: the bytes of it. A
    /// `copy` is closed for later writes. `EPIPE` without readers here, `EAGAIN` if nothing fits or the other one is
    /// empty and has writers.
    pub fn fill_from(&self, from: &Pipe, len: usize, copy: bool) -> Result<usize, Errno> {
        let mut slots = Vec::new();
        let mut data = Vec::new();
        {
            let state = from.state.lock();
            let mut left = len;
            for slot in &state.slots {
                if left == 0 {
                    break;
                }
                let len = slot.len.min(left);
                let open = slot.open && len == slot.len && !copy;
                slots.push(Slot { len, open, ..*slot });
                left -= len;
            }
            data.resize(len - left, 0);
            state.ring.peek(&mut data);
            if slots.is_empty() {
                return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
            }
        }
        self.add(|state| {
            let mut done = 0;
            for slot in slots.iter().take(state.free_slots()) {
                state.push(&data[done..done + slot.len], *slot);
                done += slot.len;
            }
            done
        })
    }

    /// Runs `push`, which says how much it added, and tells the readers.
    fn add(&self, push: impl FnOnce(&mut State) -> usize) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let count = push(&mut state);
        drop(state);
        if count == 0 {
            return Err(Errno::EAGAIN);
        }
        self.queue.wake(READABLE);
        Ok(count)
    }
}

/// What [`Pipe::openers`] says.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PipeOpeners {
    pub readers: usize,
    pub writers: usize,
    pub reader_opens: u64,
    pub writer_opens: u64,
}

/// One open end of a pipe, or an open FIFO.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    read: bool,
    write: bool,
    /// Of an anonymous pipe.
    attributes: Option<Attributes>,
    /// No `HUP` while the number of writer opens is still this.
    quiet_until: Option<u64>,
    /// How often either end had been opened when this one was.
    seen: (u64, u64),
}

impl PipeEnd {
    /// The pipe behind.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }

    /// True if the other end is open, or has been since this one was opened.
    pub fn peer_seen(&self) -> bool {
        let openers = self.pipe.openers();
        match (self.read, self.write) {
            (true, false) => openers.writers > 0 || openers.writer_opens != self.seen.1,
            (false, true) => openers.readers > 0 || openers.reader_opens != self.seen.0,
            _ => true,
        }
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.readers -= usize::from(self.read);
        state.writers -= usize::from(self.write);
        let mut events = PollEvents::empty();
        if self.read && state.readers == 0 {
            events |= WRITABLE | PollEvents::ERR;
        }
        if self.write && state.writers == 0 {
            events |= READABLE | PollEvents::HUP;
        }
        if state.readers == 0 && state.writers == 0 {
            // A FIFO without openers keeps nothing.
            state.ring = Ring::default();
            state.slots.clear();
        }
        drop(state);
        if !events.is_empty() {
            self.pipe.queue.wake(events);
        }
    }
}

impl FileOps for PipeEnd {
    /// Of what is in it, which the reading end has.
    fn memory(&self) -> u64 {
        if self.read { self.pipe.memory() } else { 0 }
    }

    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        self.pipe.read(buf)
    }

    fn write(&self, file: &File, buf: &[u8], _offset: u64) -> Result<(usize, u64), Errno> {
        self.pipe
            .write(buf, file.flags() & libc::O_DIRECT as u32 != 0)
            .map(|n| (n, 0))
    }

    fn poll(&self, _file: &File) -> PollEvents {
        let state = self.pipe.state.lock();
        let mut events = PollEvents::empty();
        if self.read {
            if !state.slots.is_empty() {
                events |= READABLE;
            }
            if state.writers == 0 && self.quiet_until != Some(state.writer_opens) {
                events |= PollEvents::HUP;
            }
        }
        if self.write {
            if state.free_slots() > 0 {
                events |= WRITABLE;
            }
            if state.readers == 0 {
                events |= PollEvents::ERR;
            }
        }
        events
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.pipe.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        self.attributes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The pipes behind FIFOs that are open.
#[derive(Default)]
pub struct Fifos {
    pipes: Mutex<HashMap<InodeKey, Weak<Pipe>>, rank::Fifos>,
}

impl FifoOpener for Fifos {
    fn open_fifo(&self, path: &VfsPath, flags: i32) -> Result<Box<dyn FileOps>, Errno> {
        let key = path.inode_key().ok_or(Errno::ENXIO)?;
        let (read, write) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            _ => (true, true),
        };
        let mut pipes = self.pipes.lock();
        let pipe = match pipes.get(&key).and_then(Weak::upgrade) {
            Some(pipe) => pipe,
            None => {
                pipes.retain(|_, pipe| pipe.strong_count() > 0);
                let pipe = Pipe::new();
                pipes.insert(key, Arc::downgrade(&pipe));
                pipe
            }
        };
        if write && !read && flags & libc::O_NONBLOCK != 0 && pipe.openers().readers == 0 {
            return Err(Errno::ENXIO);
        }
        Ok(Box::new(pipe.open(read, write, None)))
    }
}

/// The two ends of a new pipe: read, write. `flags` may hold `O_NONBLOCK` and `O_DIRECT`.
pub fn pipe(flags: u32, uid: u32, gid: u32) -> (Arc<File>, Arc<File>) {
    let pipe = Pipe::new();
    let attributes = anon::attributes(libc::S_IFIFO | 0o600, uid, gid, anon::PIPE_DEV);
    let name = format!("pipe:[{}]", attributes.ino);
    let reader = pipe.open(true, false, Some(attributes));
    let writer = pipe.open(false, true, Some(attributes));
    let status = flags & (libc::O_NONBLOCK | libc::O_DIRECT) as u32;
    (
        anon::file(&name, status | libc::O_RDONLY as u32, Box::new(reader)),
        anon::file(&name, status | libc::O_WRONLY as u32, Box::new(writer)),
    )
}

#[cfg(test)]
mod tests;
