//! epoll(7) instances.
//!
//! Each watched file has a [`Watch`], registered as a waker with the file's wait queue: a change of readiness
//! puts it on the instance's ready list, and epoll_wait(2) asks each file on the list what it is ready for. An
//! idle file costs nothing.
//!
//! Locks, in order: `NESTING`, `Shared::watches` (outer instance before inner), `Watch::settings`, locks of the
//! watched file, `Shared::ready`.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use sentry_abi::Errno;
use sentry_abi::poll::EpollEvent;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps, ReleaseWatcher};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitKey, WaitQueue};

use crate::anon;

/// Bits of `epoll_event.events` that say how to watch, not what for.
const EPOLLEXCLUSIVE: u32 = 1 << 28;
const EPOLLWAKEUP: u32 = 1 << 29;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLET: u32 = 1 << 31;
/// `EPOLLERR` and `EPOLLHUP`, which are always waited for.
const ALWAYS: u32 = 0x008 | 0x010;
const MODE_BITS: u32 = EPOLLEXCLUSIVE | EPOLLWAKEUP | EPOLLONESHOT | EPOLLET;

/// What may go with `EPOLLEXCLUSIVE`.
const EXCLUSIVE_BITS: u32 = 0x001 | 0x004 | 0x008 | 0x010 | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

/// The most instances in a chain of instances that watch each other (`EP_MAX_NESTS` + 1).
const MAX_DEPTH: usize = 5;
/// The most files that all instances together watch (`/proc/sys/fs/epoll/max_user_watches`).
const MAX_WATCHES: usize = 1 << 18;
/// Bytes of a watch's places in tables, about.
const WATCH_ENTRIES: usize = 80;

/// All watches of the sandbox.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// Counts a watch as long as it lives.
struct WatchCharge;

impl WatchCharge {
    /// `ENOSPC` beyond the limit.
    fn new() -> Result<WatchCharge, Errno> {
        let more = |count: usize| (count < MAX_WATCHES).then_some(count + 1);
        match WATCHES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(WatchCharge),
            Err(_) => Err(Errno::ENOSPC),
        }
    }
}

impl Drop for WatchCharge {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held while an instance is added to another: two such at once could close a loop.
static NESTING: Mutex<(), rank::EpollNesting> = Mutex::new(());

/// One epoll instance.
pub struct Epoll(Arc<Shared>);

/// Descriptor and number of an open file.
type WatchKey = (i32, u64);

struct Shared {
    watches: Mutex<HashMap<WatchKey, Arc<Watch>>, rank::EpollWatches>,
    ready: Mutex<VecDeque<Arc<Watch>>, rank::EpollReady>,
    queue: WaitQueue,
}

struct Watch {
    _charge: WatchCharge,
    epoll: Weak<Shared>,
    fd: i32,
    file: Weak<File>,
    file_id: u64,
    settings: Mutex<Settings, rank::EpollSettings>,
    /// On the ready list, or about to be.
    queued: AtomicBool,
}

struct Settings {
    events: u32,
    data: u64,
    key: Option<WaitKey>,
}

impl Settings {
    /// What it waits for; nothing once a one-shot watch has fired.
    fn mask(&self) -> PollEvents {
        if self.events & !MODE_BITS == 0 {
            return PollEvents::empty();
        }
        PollEvents::from_bits_truncate(self.events) | PollEvents::ERR | PollEvents::HUP
    }
}

impl Watch {
    fn weak(self: &Arc<Watch>) -> Weak<dyn ReleaseWatcher> {
        let weak: Weak<Watch> = Arc::downgrade(self);
        weak
    }

    /// Registers with the file's queue and looks at the file once: it may be ready already.
    fn arm(self: &Arc<Watch>, file: &File) {
        let mut settings = self.settings.lock();
        let mask = settings.mask();
        if let Some(queue) = file.ops().wait_queue() {
            if let Some(key) = settings.key.take() {
                queue.unregister(key);
            }
            settings.key = Some(queue.register(&Waker::from(self.clone()), mask));
        }
        drop(settings);
        if file.ops().poll(file).intersects(mask) {
            self.clone().wake();
        }
    }

    fn disarm(&self, file: &File) {
        if let (Some(queue), Some(key)) = (file.ops().wait_queue(), self.settings.lock().key.take()) {
            queue.unregister(key);
        }
    }

    /// What the file is ready for now, of what is waited for. The file goes to `keep`: should this be its last
    /// reference, it must not be dropped before `Shared::watches` is unlocked.
    fn ready_events(&self, keep: &mut Vec<Arc<File>>) -> PollEvents {
        let mask = self.settings.lock().mask();
        if mask.is_empty() {
            return mask;
        }
        let Some(file) = self.file.upgrade() else {
            return PollEvents::empty();
        };
        let events = file.ops().poll(&file) & mask;
        keep.push(file);
        events
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Watch>) {
        let Some(epoll) = self.epoll.upgrade() else { return };
        if !self.queued.swap(true, Ordering::AcqRel) {
            epoll.ready.lock().push_back(self);
        }
        epoll.queue.wake(PollEvents::IN | PollEvents::RDNORM);
    }
}

impl ReleaseWatcher for Watch {
    fn released(&self, file: &File) {
        self.disarm(file);
        if let Some(epoll) = self.epoll.upgrade() {
            let removed = epoll.watches.lock().remove(&(self.fd, self.file_id));
            drop(removed);
        }
    }
}

/// A new instance.
pub fn epoll() -> Arc<File> {
    let shared = Shared {
        watches: Mutex::new(HashMap::new()),
        ready: Mutex::new(VecDeque::new()),
        queue: WaitQueue::new(),
    };
    anon::file(
        "anon_inode:[eventpoll]",
        libc::O_RDWR as u32,
        Box::new(Epoll(Arc::new(shared))),
    )
}

impl Epoll {
    /// The instance behind a file; `EINVAL` if it is something else.
    pub fn of(file: &File) -> Result<&Epoll, Errno> {
        file.ops().as_any().downcast_ref::<Epoll>().ok_or(Errno::EINVAL)
    }

    /// `EPOLL_CTL_ADD`.
    pub fn add(&self, own: &File, fd: i32, file: &Arc<File>, event: EpollEvent) -> Result<(), Errno> {
        if own.id() == file.id() {
            return Err(Errno::EINVAL);
        }
        if file.ops().wait_queue().is_none() {
            return Err(Errno::EPERM);
        }
        let inner = Epoll::of(file).ok();
        if event.events & EPOLLEXCLUSIVE != 0 && (event.events & !EXCLUSIVE_BITS != 0 || inner.is_some()) {
            return Err(Errno::EINVAL);
        }
        let _nesting = match inner {
            Some(inner) => {
                let guard = NESTING.lock();
                inner.check_below(&self.0, 1)?;
                Some(guard)
            }
            None => None,
        };
        let charge = WatchCharge::new()?;
        let watch = Arc::new(Watch {
            _charge: charge,
            epoll: Arc::downgrade(&self.0),
            fd,
            file: Arc::downgrade(file),
            file_id: file.id(),
            settings: Mutex::new(Settings {
                events: event.events | ALWAYS,
                data: event.data,
                key: None,
            }),
            queued: AtomicBool::new(false),
        });
        let mut watches = self.0.watches.lock();
        match watches.entry((fd, file.id())) {
            std::collections::hash_map::Entry::Occupied(_) => return Err(Errno::EEXIST),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(watch.clone()),
        };
        drop(watches);
        file.watch_release(watch.weak());
        watch.arm(file);
        Ok(())
    }

    /// `EPOLL_CTL_MOD`.
    pub fn modify(&self, fd: i32, file: &Arc<File>, event: EpollEvent) -> Result<(), Errno> {
        let watch = self
            .0
            .watches
            .lock()
            .get(&(fd, file.id()))
            .cloned()
            .ok_or(Errno::ENOENT)?;
        let mut settings = watch.settings.lock();
        if (event.events | settings.events) & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        settings.events = event.events | ALWAYS;
        settings.data = event.data;
        drop(settings);
        watch.arm(file);
        Ok(())
    }

    /// `EPOLL_CTL_DEL`.
    pub fn remove(&self, fd: i32, file: &Arc<File>) -> Result<(), Errno> {
        let watch = self.0.watches.lock().remove(&(fd, file.id())).ok_or(Errno::ENOENT)?;
        watch.settings.lock().events = 0;
        watch.disarm(file);
        file.unwatch_release(&watch.weak());
        Ok(())
    }

    /// Takes up to `max` ready events.
    pub fn collect(&self, max: usize) -> Vec<EpollEvent> {
        let mut out = Vec::new();
        if self.0.ready.lock().is_empty() {
            return out;
        }
        let mut keep = Vec::new();
        // The lock makes a second waiter see the level-triggered entries that this one puts back.
        let watches = self.0.watches.lock();
        let mut again = Vec::new();
        let mut left = self.0.ready.lock().len();
        while left > 0 && out.len() < max {
            left -= 1;
            let Some(watch) = self.0.ready.lock().pop_front() else {
                break;
            };
            // Before the look at the file: what happens after it queues the watch anew.
            watch.queued.store(false, Ordering::Release);
            let current = watches
                .get(&(watch.fd, watch.file_id))
                .is_some_and(|other| Arc::ptr_eq(other, &watch));
            let events = if current {
                watch.ready_events(&mut keep)
            } else {
                PollEvents::empty()
            };
            if events.is_empty() {
                continue;
            }
            let mut settings = watch.settings.lock();
            out.push(EpollEvent {
                events: events.bits(),
                data: settings.data,
            });
            if settings.events & EPOLLONESHOT != 0 {
                settings.events &= MODE_BITS;
            } else if settings.events & EPOLLET == 0 {
                drop(settings);
                again.push(watch);
            }
        }
        let mut ready = self.0.ready.lock();
        for watch in again {
            if !watch.queued.swap(true, Ordering::AcqRel) {
                ready.push_back(watch);
            }
        }
        drop(ready);
        out
    }

    /// Where new ready files are announced.
    pub fn queue(&self) -> &WaitQueue {
        &self.0.queue
    }

    /// `ELOOP` if `above` is watched from here down, or the chain gets too long.
    fn check_below(&self, above: &Arc<Shared>, depth: usize) -> Result<(), Errno> {
        if Arc::ptr_eq(&self.0, above) || depth >= MAX_DEPTH {
            return Err(Errno::ELOOP);
        }
        let files: Vec<Arc<File>> = self
            .0
            .watches
            .lock()
            .values()
            .filter_map(|watch| watch.file.upgrade())
            .collect();
        for file in &files {
            if let Ok(inner) = Epoll::of(file) {
                inner.check_below(above, depth + 1)?;
            }
        }
        Ok(())
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let watches = std::mem::take(&mut *self.0.watches.lock());
        self.0.ready.lock().clear();
        for watch in watches.into_values() {
            if let Some(file) = watch.file.upgrade() {
                watch.disarm(&file);
                file.unwatch_release(&watch.weak());
            }
        }
    }
}

impl FileOps for Epoll {
    fn memory(&self) -> u64 {
        let watches = self.0.watches.lock_another().len();
        (watches * (size_of::<Watch>() + WATCH_ENTRIES)) as u64
    }

    fn poll(&self, _file: &File) -> PollEvents {
        let mut keep = Vec::new();
        // Under those of an instance that this one is in, perhaps: there are no loops.
        let watches = self.0.watches.lock_another();
        let mut left = self.0.ready.lock().len();
        while left > 0 {
            left -= 1;
            let Some(watch) = self.0.ready.lock().pop_front() else {
                break;
            };
            watch.queued.store(false, Ordering::Release);
            let current = watches
                .get(&(watch.fd, watch.file_id))
                .is_some_and(|other| Arc::ptr_eq(other, &watch));
            if current && !watch.ready_events(&mut keep).is_empty() {
                if !watch.queued.swap(true, Ordering::AcqRel) {
                    self.0.ready.lock().push_front(watch);
                }
                return PollEvents::IN | PollEvents::RDNORM;
            }
        }
        PollEvents::empty()
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.0.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, _file: &File) -> String {
        let watches: Vec<Arc<Watch>> = self.0.watches.lock().values().cloned().collect();
        let mut out = String::new();
        for watch in watches {
            let Some(file) = watch.file.upgrade() else { continue };
            let (events, data) = {
                let settings = watch.settings.lock();
                (settings.events, settings.data)
            };
            let attributes = file.attributes().unwrap_or_default();
            let position = file.position.now();
            out.push_str(&format!(
                "tfd: {:8} events: {events:8x} data: {data:16x}  pos:{position} ino:{:x} sdev:{:x}\n",
                watch.fd, attributes.ino, attributes.dev
            ));
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
    use crate::{eventfd::eventfd, pipe::pipe};

    fn event(events: u32, data: u64) -> EpollEvent {
        EpollEvent { events, data }
    }

    fn wait(file: &File) -> Vec<(u32, u64)> {
        Epoll::of(file)
            .unwrap()
            .collect(16)
            .iter()
            .map(|event| (event.events, event.data))
            .collect()
    }

    fn write(file: &Arc<File>, data: &[u8]) {
        file.ops().write(file, data, 0).unwrap();
    }

    #[test]
    fn level_triggered_reports_until_drained() {
        let (ep, (r, w)) = (epoll(), pipe(0, 0, 0));
        Epoll::of(&ep).unwrap().add(&ep, 3, &r, event(1, 7)).unwrap();
        assert!(wait(&ep).is_empty());
        write(&w, b"ab");
        assert_eq!(wait(&ep), [(1, 7)]);
        assert_eq!(wait(&ep), [(1, 7)]);
        r.ops().read(&r, &mut [0; 8], 0).unwrap();
        assert!(wait(&ep).is_empty());
        drop(w);
        assert_eq!(wait(&ep), [(0x10, 7)]);
    }

    #[test]
    fn edge_triggered_reports_once_per_change() {
        let (ep, (r, w)) = (epoll(), pipe(0, 0, 0));
        Epoll::of(&ep).unwrap().add(&ep, 3, &r, event(1 | EPOLLET, 7)).unwrap();
        write(&w, b"a");
        assert_eq!(wait(&ep), [(1, 7)]);
        assert!(wait(&ep).is_empty());
        write(&w, b"b");
        assert_eq!(wait(&ep), [(1, 7)]);
    }

    #[test]
    fn one_shot_needs_rearming() {
        let (ep, ev) = (epoll(), eventfd(1, false, 0));
        let instance = Epoll::of(&ep).unwrap();
        instance.add(&ep, 3, &ev, event(1 | EPOLLONESHOT, 1)).unwrap();
        assert_eq!(wait(&ep), [(1, 1)]);
        write(&ev, &1u64.to_ne_bytes());
        assert!(wait(&ep).is_empty());
        instance.modify(3, &ev, event(1 | EPOLLONESHOT, 2)).unwrap();
        assert_eq!(wait(&ep), [(1, 2)]);
    }

    #[test]
    fn closed_files_vanish() {
        let (ep, ev) = (epoll(), eventfd(1, false, 0));
        Epoll::of(&ep).unwrap().add(&ep, 3, &ev, event(1, 1)).unwrap();
        drop(ev);
        assert!(wait(&ep).is_empty());
        assert!(Epoll::of(&ep).unwrap().0.watches.lock().is_empty());
    }

    #[test]
    fn control_errors() {
        let (ep, ev) = (epoll(), eventfd(0, false, 0));
        let instance = Epoll::of(&ep).unwrap();
        assert_eq!(instance.add(&ep, 3, &ep, event(1, 0)), Err(Errno::EINVAL));
        assert_eq!(instance.modify(3, &ev, event(1, 0)), Err(Errno::ENOENT));
        assert_eq!(instance.remove(3, &ev), Err(Errno::ENOENT));
        instance.add(&ep, 3, &ev, event(1 | EPOLLEXCLUSIVE, 0)).unwrap();
        assert_eq!(instance.add(&ep, 3, &ev, event(1, 0)), Err(Errno::EEXIST));
        assert_eq!(
            instance.add(&ep, 4, &ev, event(1 | EPOLLEXCLUSIVE | EPOLLONESHOT, 0)),
            Err(Errno::EINVAL)
        );
        assert_eq!(instance.modify(3, &ev, event(1, 0)), Err(Errno::EINVAL));
        instance.remove(3, &ev).unwrap();
    }

    #[test]
    fn nesting_works_and_loops_are_refused() {
        let (outer, inner, ev) = (epoll(), epoll(), eventfd(0, false, 0));
        Epoll::of(&inner).unwrap().add(&inner, 3, &ev, event(1, 1)).unwrap();
        Epoll::of(&outer).unwrap().add(&outer, 4, &inner, event(1, 2)).unwrap();
        assert!(wait(&outer).is_empty());
        write(&ev, &1u64.to_ne_bytes());
        assert_eq!(wait(&outer), [(1, 2)]);
        assert_eq!(wait(&inner), [(1, 1)]);
        assert_eq!(
            Epoll::of(&inner).unwrap().add(&inner, 5, &outer, event(1, 0)),
            Err(Errno::ELOOP)
        );
        let mut chain = vec![outer];
        let mut result = Ok(());
        for _ in 0..6 {
            let next = epoll();
            result = Epoll::of(&next)
                .unwrap()
                .add(&next, 3, &chain[chain.len() - 1], event(1, 0));
            chain.push(next);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(Errno::ELOOP));
    }
}
