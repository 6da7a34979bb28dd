//! inotify(7) instances: queues of file events.
//!
//! What is watched and who is told is [`sentry_vfs::notify`]'s; an instance is a sink of it. Its lock is never held
//! when a mark is removed from the notifier: the last reference to a file may go with it, and that is an event.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::notify::{Events, Mark, Notifier, Sink};
use sentry_vfs::path::{InodeKey, VfsPath};
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::anon;

const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
/// The size of `struct inotify_event` without its name.
const HEADER: usize = 16;
/// What all queues of the sandbox may hold together, in bytes of the sentry's memory.
const TOTAL_BYTES: usize = 32 << 20;
/// What an event takes beside its name.
const EVENT_BYTES: usize = size_of::<Event>() + 16;

/// The settings in `/proc/sys/fs/inotify`, and how far each user has used them.
pub struct Limits {
    /// Events in a new instance's queue.
    pub max_queued_events: AtomicU32,
    /// Instances of a user.
    pub max_user_instances: AtomicU32,
    /// Watches of a user.
    pub max_user_watches: AtomicU32,
    used: Mutex<HashMap<u32, Used>, rank::InotifyUsed>,
    /// Bytes in all queues.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Used {
    instances: u32,
    watches: u32,
}

/// The highest values that the settings can have, whoever asks: the memory is the sentry's.
pub const HIGHEST: [u32; 3] = [1 << 20, 1 << 10, 1 << 20];

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_queued_events: AtomicU32::new(16_384),
            max_user_instances: AtomicU32::new(128),
            max_user_watches: AtomicU32::new(65_536),
            used: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl Limits {
    fn take_instance(&self, uid: u32) -> Result<(), Errno> {
        let mut used = self.used.lock();
        let used = used.entry(uid).or_default();
        if used.instances >= self.max_user_instances.load(Ordering::Relaxed) {
            return Err(Errno::EMFILE);
        }
        used.instances += 1;
        Ok(())
    }

    fn take_watch(&self, uid: u32) -> Result<(), Errno> {
        let mut used = self.used.lock();
        let used = used.entry(uid).or_default();
        if used.watches >= self.max_user_watches.load(Ordering::Relaxed) {
            return Err(Errno::ENOSPC);
        }
        used.watches += 1;
        Ok(())
    }

    fn give_back(&self, uid: u32, instances: u32, watches: u32) {
        let mut all = self.used.lock();
        if let Some(used) = all.get_mut(&uid) {
            used.instances = used.instances.saturating_sub(instances);
            used.watches = used.watches.saturating_sub(watches);
            if used.instances == 0 && used.watches == 0 {
                all.remove(&uid);
            }
        }
    }
}

/// One event in a queue.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: Option<Box<[u8]>>,
}

impl Event {
    /// Its length for the reader: the name has a NUL and is filled up to a multiple of the header's size.
    fn len(&self) -> usize {
        HEADER
            + self
                .name
                .as_ref()
                .map_or(0, |name| (name.len() + 1).next_multiple_of(HEADER))
    }

    fn memory(&self) -> usize {
        EVENT_BYTES + self.name.as_ref().map_or(0, |name| name.len())
    }

    /// Writes it to the start of `out`, which is long enough.
    fn write(&self, out: &mut [u8]) {
        let len = self.len();
        let fields = [self.wd as u32, self.mask, self.cookie, (len - HEADER) as u32];
        for (place, field) in out.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        if let Some(name) = &self.name {
            out[HEADER..len].fill(0);
            out[HEADER..HEADER + name.len()].copy_from_slice(name);
        }
    }

    /// True if both tell the same, so that one of them is enough.
    fn says_same(&self, other: &Event) -> bool {
        (self.wd, self.mask, &self.name) == (other.wd, other.mask, &other.name)
    }
}

struct Watch {
    mark: Arc<Mark>,
    oneshot: bool,
}

#[derive(Default)]
struct State {
    watches: BTreeMap<i32, Watch>,
    by_inode: HashMap<InodeKey, i32>,
    /// The number given last.
    last: i32,
    events: VecDeque<Event>,
    /// An event in the queue says that more were lost.
    overflowed: bool,
}

struct Group {
    limits: Arc<Limits>,
    notifier: Arc<Notifier>,
    uid: u32,
    max_events: usize,
    state: Mutex<State, rank::InotifyState>,
    queue: WaitQueue,
}

/// An inotify instance.
pub struct Inotify(Arc<Group>);

/// How inotify_add_watch(2) treats a watch that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Its mask is replaced.
    Replace,
    /// The mask is added (`IN_MASK_ADD`).
    Extend,
    /// `EEXIST` (`IN_MASK_CREATE`).
    Refuse,
}

/// What inotify_add_watch(2) asks for.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct WatchRequest {
    pub mask: Events,
    pub oneshot: bool,
    pub excl_unlink: bool,
    pub existing: Existing,
}

/// A new instance for a user; `EMFILE` if that has too many.
pub fn inotify(limits: &Arc<Limits>, notifier: &Arc<Notifier>, uid: u32, flags: u32) -> Result<Arc<File>, Errno> {
    limits.take_instance(uid)?;
    let group = Arc::new(Group {
        limits: limits.clone(),
        notifier: notifier.clone(),
        uid,
        max_events: limits.max_queued_events.load(Ordering::Relaxed) as usize,
        state: Mutex::default(),
        queue: WaitQueue::new(),
    });
    let flags = (flags & libc::O_NONBLOCK as u32) | libc::O_RDONLY as u32;
    Ok(anon::file("anon_inode:inotify", flags, Box::new(Inotify(group))))
}

impl Inotify {
    /// The instance behind a file; `EINVAL` if it is something else.
    pub fn of(file: &File) -> Result<&Inotify, Errno> {
        file.ops().as_any().downcast_ref::<Inotify>().ok_or(Errno::EINVAL)
    }

    /// Watches a place, or changes the watch that its inode has: the watch's number. `ENOSPC` if the user has too
    /// many.
    pub fn watch(&self, path: &VfsPath, request: WatchRequest) -> Result<i32, Errno> {
        let group = &self.0;
        let key = path.inode_key().ok_or(Errno::EINVAL)?;
        let report = group.notifier.report(path, request.excl_unlink);
        let mut state = group.state.lock();
        if let Some(&wd) = state.by_inode.get(&key)
            && let Some(watch) = state.watches.get_mut(&wd)
        {
            match request.existing {
                Existing::Refuse => return Err(Errno::EEXIST),
                Existing::Replace => {
                    watch.oneshot = request.oneshot;
                    watch.mark.set(request.mask, request.excl_unlink);
                }
                Existing::Extend => {
                    watch.oneshot |= request.oneshot;
                    let mask = watch.mark.mask() | request.mask;
                    watch.mark.set(mask, watch.mark.excl_unlink() || request.excl_unlink);
                }
            }
            return Ok(wd);
        }
        let wd = state.last.checked_add(1).ok_or(Errno::ENOSPC)?;
        group.limits.take_watch(group.uid)?;
        let sink: Weak<Group> = Arc::downgrade(group);
        let Some(mark) = group
            .notifier
            .add(path, wd, request.mask, request.excl_unlink, sink, report.as_ref())
        else {
            group.limits.give_back(group.uid, 0, 1);
            return Err(Errno::EINVAL);
        };
        state.last = wd;
        state.by_inode.insert(key, wd);
        let oneshot = request.oneshot;
        state.watches.insert(wd, Watch { mark, oneshot });
        Ok(wd)
    }

    /// Ends a watch; `EINVAL` if there is none of this number.
    pub fn unwatch(&self, wd: i32) -> Result<(), Errno> {
        // What has happened until now is told.
        self.0.notifier.read_reports();
        let mark = {
            let state = self.0.state.lock();
            state.watches.get(&wd).ok_or(Errno::EINVAL)?.mark.clone()
        };
        if !self.0.notifier.remove(&mark) {
            return Err(Errno::EINVAL);
        }
        self.0.gone(&mark);
        Ok(())
    }

    /// How many bytes can be read.
    pub fn available(&self) -> usize {
        self.0.notifier.read_reports();
        self.0.state.lock().events.iter().map(Event::len).sum()
    }
}

impl Group {
    /// Queues an event; the watch of a one-shot one is given to be ended.
    fn push(&self, event: Event) -> Option<Arc<Mark>> {
        let mut state = self.state.lock();
        let watch = state.watches.get(&event.wd);
        // Ended meanwhile.
        let watch = watch?;
        let ends = if watch.oneshot { Some(watch.mark.clone()) } else { None };
        self.queue_locked(&mut state, event);
        drop(state);
        self.queue.wake(READABLE);
        ends
    }

    fn queue_locked(&self, state: &mut State, event: Event) {
        let memory = event.memory();
        let full = state.events.len() >= self.max_events
            || self.limits.bytes.load(Ordering::Relaxed).saturating_add(memory) > TOTAL_BYTES;
        if full {
            self.overflow(state);
        } else if !state.events.back().is_some_and(|last| last.says_same(&event)) {
            self.append(state, event);
        }
    }

    fn overflow(&self, state: &mut State) {
        if !state.overflowed {
            state.overflowed = true;
            let lost = Event {
                wd: -1,
                mask: Events::Q_OVERFLOW.bits(),
                cookie: 0,
                name: None,
            };
            self.append(state, lost);
        }
    }

    fn append(&self, state: &mut State, event: Event) {
        self.limits.bytes.fetch_add(event.memory(), Ordering::Relaxed);
        state.events.push_back(event);
    }
}

impl Sink for Group {
    fn event(&self, mark: &Mark, events: Events, cookie: u32, name: Option<&[u8]>) {
        let mut mask = events;
        // Whether it is a directory is not said of the watched inode's own end and move.
        if mask.intersects(Events::DELETE_SELF | Events::MOVE_SELF) {
            mask -= Events::ISDIR;
        }
        let event = Event {
            wd: mark.id(),
            mask: mask.bits(),
            cookie,
            name: name.map(Box::from),
        };
        if let Some(mark) = self.push(event)
            && self.notifier.remove(&mark)
        {
            self.gone(&mark);
        }
    }

    fn gone(&self, mark: &Mark) {
        let mut state = self.state.lock();
        let Some(watch) = state.watches.remove(&mark.id()) else {
            return;
        };
        state.by_inode.remove(&InodeKey::of(mark.inode()));
        let event = Event {
            wd: mark.id(),
            mask: Events::IGNORED.bits(),
            cookie: 0,
            name: None,
        };
        self.queue_locked(&mut state, event);
        drop(state);
        drop(watch);
        self.limits.give_back(self.uid, 0, 1);
        self.queue.wake(READABLE);
    }

    fn overflowed(&self) {
        self.overflow(&mut self.state.lock());
        self.queue.wake(READABLE);
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        let (watches, events) = {
            let mut state = self.0.state.lock();
            state.by_inode.clear();
            (std::mem::take(&mut state.watches), std::mem::take(&mut state.events))
        };
        let bytes = events.iter().map(Event::memory).sum();
        for watch in watches.values() {
            self.0.notifier.remove(&watch.mark);
        }
        self.0.limits.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.limits.give_back(self.0.uid, 1, watches.len() as u32);
    }
}

impl FileOps for Inotify {
    fn memory(&self) -> u64 {
        const WATCH: usize = 300;
        let state = self.0.state.lock();
        let events: usize = state.events.iter().map(Event::memory).sum();
        (events + state.watches.len() * WATCH) as u64
    }

    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        self.0.notifier.read_reports();
        let mut state = self.0.state.lock();
        let mut done = 0;
        while let Some(event) = state.events.front() {
            let (len, memory) = (event.len(), event.memory());
            let Some(out) = buf.get_mut(done..done + len) else {
                if done == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            };
            event.write(out);
            done += len;
            if event.mask == Events::Q_OVERFLOW.bits() {
                state.overflowed = false;
            }
            state.events.pop_front();
            self.0.limits.bytes.fetch_sub(memory, Ordering::Relaxed);
        }
        if done == 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }

    fn poll(&self, _file: &File) -> PollEvents {
        self.0.notifier.read_reports();
        if self.0.state.lock().events.is_empty() {
            PollEvents::empty()
        } else {
            READABLE
        }
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.0.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, _file: &File) -> String {
        let marks: Vec<_> = {
            let state = self.0.state.lock();
            state.watches.values().map(|watch| watch.mark.clone()).collect()
        };
        let mut out = String::new();
        for mark in marks {
            let Ok(attributes) = mark.inode().attributes() else {
                continue;
            };
            let (major, minor) = (libc::major(attributes.dev), libc::minor(attributes.dev));
            let _ = writeln!(
                out,
                "inotify wd:{:x} ino:{:x} sdev:{:x} mask:{:x} ignored_mask:0",
                mark.id(),
                attributes.ino,
                major << 20 | minor,
                mark.mask().bits()
            );
        }
        out
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(wd: i32, mask: u32, name: &str) -> Event {
        Event {
            wd,
            mask,
            cookie: 0,
            name: (!name.is_empty()).then(|| name.as_bytes().into()),
        }
    }

    #[test]
    fn names_are_padded() {
        for (name, len) in [("", 16), ("a", 32), ("fifteen-letters", 32), ("sixteen--letters", 48)] {
            let event = event(3, 0x100, name);
            assert_eq!(event.len(), len);
            let mut out = vec![0xff; len];
            event.write(&mut out);
            assert_eq!(out[..4], 3u32.to_ne_bytes());
            assert_eq!(out[12..16], (len as u32 - 16).to_ne_bytes());
            assert!(out[16..].starts_with(name.as_bytes()));
            assert!(out[16 + name.len()..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_full_queue_says_so_once() {
        let limits = Arc::new(Limits::default());
        limits.max_queued_events.store(2, Ordering::Relaxed);
        let file = inotify(&limits, &Arc::default(), 0, 0).unwrap();
        let Inotify(group) = Inotify::of(&file).unwrap();
        let mut state = group.state.lock();
        for (wd, name) in [(1, "a"), (1, "a"), (1, "b"), (1, "c"), (1, "d")] {
            group.queue_locked(&mut state, event(wd, 0x100, name));
        }
        drop(state);
        let mut buf = [0; 256];
        assert_eq!(file.ops().read(&file, &mut buf, 0), Ok(32 + 32 + 16));
        assert_eq!(buf[64..68], (-1i32).to_ne_bytes());
        assert_eq!(file.ops().read(&file, &mut buf, 0), Err(Errno::EAGAIN));
        assert_eq!(limits.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn users_have_limits() {
        let limits = Arc::new(Limits::default());
        limits.max_user_instances.store(1, Ordering::Relaxed);
        let notifier = Arc::default();
        let one = inotify(&limits, &notifier, 5, 0).unwrap();
        assert_eq!(inotify(&limits, &notifier, 5, 0).err(), Some(Errno::EMFILE));
        assert!(inotify(&limits, &notifier, 6, 0).is_ok());
        drop(one);
        assert!(inotify(&limits, &notifier, 5, 0).is_ok());
    }
}
