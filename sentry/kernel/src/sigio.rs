//! Announcing by signal what happens to an open file: `O_ASYNC` (fcntl(2), "Managing signals"), and changes in a
//! directory (`F_NOTIFY`).
//!
//! What wakes a file's wait queue may hold locks. So signals are only noted there, and sent by the task of the
//! thread that caused them at the end of its present call, or by a task of their own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{Announce, File, Owner, ReleaseWatcher};
use sentry_vfs::notify::{Events, Mark, Sink};
use sentry_vfs::wait::{PollEvents, WaitKey};

use crate::executor::Executor;
use crate::signal::{self, SigInfo, Signal};
use crate::task::{Process, Thread};
use crate::{Kernel, fd::Fd};

/// `si_code` of readiness for reading (`POLL_IN`).
const POLL_IN: i32 = 1;
/// `si_code` of readiness for writing (`POLL_OUT`).
const POLL_OUT: i32 = 2;
/// `si_code` of a message (`POLL_MSG`), which a change in a directory is.
const POLL_MSG: i32 = 3;

/// A signal that is due.
struct Due {
    kernel: Weak<Kernel>,
    to: Announce,
    code: i32,
    band: PollEvents,
    fd: Fd,
}

thread_local! {
    /// What this host thread has caused and not sent yet.
    static DUE: RefCell<Vec<Due>> = const { RefCell::new(Vec::new()) };
}

/// Sends what is due. Holds no lock when called.
pub fn flush() {
    loop {
        let due = DUE.with_borrow_mut(std::mem::take);
        if due.is_empty() {
            return;
        }
        due.into_iter().for_each(Due::send);
    }
}

impl Due {
    /// Notes it, to be sent when no lock is held any more.
    fn note(self) {
        let Some(kernel) = self.kernel.upgrade() else { return };
        match Executor::current_worker() {
            Some(worker) => {
                DUE.with_borrow_mut(|due| due.push(self));
                kernel.executor().spawn(worker, async { flush() });
            }
            None => kernel.executor().spawn(0, async move { self.send() }),
        }
    }

    fn send(self) {
        let Some(kernel) = self.kernel.upgrade() else { return };
        let id = self.to.id;
        match self.to.owner {
            Owner::Thread => {
                if let Some(thread) = kernel.thread(id) {
                    self.send_to(&kernel, thread.process(), Some(&thread));
                }
            }
            Owner::Process => {
                if let Some(process) = kernel.process(id) {
                    self.send_to(&kernel, &process, None);
                }
            }
            Owner::Group => {
                let members: Vec<_> = kernel.tasks.read().group(id).map(|node| node.process.clone()).collect();
                for process in members {
                    self.send_to(&kernel, &process, None);
                }
            }
        }
    }

    fn send_to(&self, kernel: &Arc<Kernel>, process: &Arc<Process>, thread: Option<&Arc<Thread>>) {
        let Some(receiver) = thread.cloned().or_else(|| process.any_thread()) else {
            return;
        };
        let of = receiver.cred();
        let (uid, euid) = (self.to.uid, self.to.euid);
        if euid != 0 && ![of.uid, of.suid].contains(&euid) && ![of.uid, of.suid].contains(&uid) {
            return;
        }
        let give = |info: SigInfo| match thread {
            Some(thread) => signal::try_send_to_thread(thread, info),
            None => signal::try_send_to_process(kernel, process, info),
        };
        if let Ok(number) = Signal::from_number(self.to.signal.into()) {
            let info = SigInfo::poll(number, self.code, self.band.bits().into(), self.fd);
            if give(info) != Err(Errno::EAGAIN) {
                return;
            }
        }
        // The chosen signal cannot be queued, or none was chosen.
        let _ = give(SigInfo::kernel(Signal::IO));
    }
}

/// Files that announce their readiness, by their number.
#[derive(Default)]
pub struct Announcers {
    by_file: Mutex<HashMap<u64, Vec<Arc<Announcer>>>, rank::Announcers>,
}

/// Waits in a file's wait queue, for good.
struct Announcer {
    kernel: Weak<Kernel>,
    file: Weak<File>,
    fd: Fd,
    code: i32,
    band: PollEvents,
    key: Mutex<Option<WaitKey>, rank::AnnouncerKey>,
}

impl Wake for Announcer {
    fn wake(self: Arc<Announcer>) {
        let Some(file) = self.file.upgrade() else { return };
        let to = *file.announce.lock();
        if to.id == 0 {
            return;
        }
        let due = Due {
            kernel: self.kernel.clone(),
            to,
            code: self.code,
            band: self.band,
            fd: self.fd,
        };
        due.note();
    }
}

impl Announcer {
    fn disarm(&self, file: &File) {
        if let (Some(queue), Some(key)) = (file.ops().wait_queue(), self.key.lock().take()) {
            queue.unregister(key);
        }
    }
}

impl ReleaseWatcher for Announcer {
    fn released(&self, file: &File) {
        self.disarm(file);
        if let Some(kernel) = self.kernel.upgrade() {
            let gone = kernel.announcers.by_file.lock().remove(&file.id());
            drop(gone);
        }
    }
}

/// True for files that can announce readiness: pipes, sockets, terminals.
fn can_announce(file: &File) -> bool {
    let kind = crate::io::kind_of(file);
    matches!(kind, libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR) && file.ops().wait_queue().is_some()
}

/// Begins or ends announcing (`O_ASYNC` is set or cleared). `fd` is what the signal tells.
pub fn set_async(kernel: &Arc<Kernel>, file: &Arc<File>, fd: Fd, on: bool) {
    let mut by_file = kernel.announcers.by_file.lock();
    if !on {
        let gone = by_file.remove(&file.id()).unwrap_or_default();
        drop(by_file);
        for announcer in gone {
            announcer.disarm(file);
            let weak: Weak<Announcer> = Arc::downgrade(&announcer);
            let weak: Weak<dyn ReleaseWatcher> = weak;
            file.unwatch_release(&weak);
        }
        return;
    }
    if by_file.contains_key(&file.id()) || !can_announce(file) {
        return;
    }
    let input = PollEvents::IN | PollEvents::RDNORM;
    let output = PollEvents::OUT | PollEvents::WRNORM | PollEvents::WRBAND;
    let sides = [
        (file.readable(), POLL_IN, input, input | PollEvents::RDHUP),
        (file.writable(), POLL_OUT, output, output),
    ];
    let mut announcers = Vec::new();
    for (_, code, band, mask) in sides.into_iter().filter(|side| side.0) {
        let announcer = Arc::new(Announcer {
            kernel: Arc::downgrade(kernel),
            file: Arc::downgrade(file),
            fd,
            code,
            band,
            key: Mutex::new(None),
        });
        if let Some(queue) = file.ops().wait_queue() {
            *announcer.key.lock() = Some(queue.register(&Waker::from(announcer.clone()), mask));
        }
        let weak: Weak<Announcer> = Arc::downgrade(&announcer);
        file.watch_release(weak);
        announcers.push(announcer);
    }
    by_file.insert(file.id(), announcers);
}

/// Tells a file's owner of something once (a lease that is to be broken).
pub fn tell_owner(kernel: &Arc<Kernel>, file: &File, fd: Fd) {
    let due = Due {
        kernel: Arc::downgrade(kernel),
        to: *file.announce.lock(),
        code: POLL_MSG,
        band: PollEvents::IN | PollEvents::RDNORM,
        fd,
    };
    due.note();
}

/// `DN_*` of fcntl(2), and the events behind.
const DIRECTORY_EVENTS: [(u32, Events); 6] = [
    (1, Events::ACCESS),
    (2, Events::MODIFY),
    (4, Events::CREATE.union(Events::MOVED_TO)),
    (8, Events::DELETE.union(Events::MOVED_FROM)),
    (0x10, Events::MOVED_FROM.union(Events::MOVED_TO)),
    (0x20, Events::ATTRIB),
];
/// `DN_MULTISHOT`: goes on after the first event.
const MULTISHOT: u32 = 0x8000_0000;

/// Announces changes in a directory to the owner of one open description.
struct DirectoryWatch {
    kernel: Weak<Kernel>,
    file: Weak<File>,
    fd: Fd,
    /// `DN_*`; 0 once it has fired.
    mask: AtomicU32,
    mark: Mutex<Option<Arc<Mark>>, rank::DirectoryWatchMark>,
}

/// Open directories that are watched so, by their number.
#[derive(Default)]
pub struct DirectoryWatches {
    by_file: Mutex<HashMap<u64, Arc<DirectoryWatch>>, rank::DirectoryWatches>,
}

/// `F_NOTIFY`: adds to the events that are announced, or with 0 ends it. `ENOTDIR` for what is no directory.
pub fn watch_directory(kernel: &Arc<Kernel>, file: &Arc<File>, fd: Fd, mask: u32) -> Result<(), Errno> {
    if !file.path().dentry().is_some_and(|dentry| dentry.is_dir()) {
        return Err(Errno::ENOTDIR);
    }
    let old = kernel.directory_watches.by_file.lock().remove(&file.id());
    let before = old.as_ref().map_or(0, |watch| watch.mask.load(Ordering::Relaxed));
    if let Some(old) = old {
        old.end();
        let weak: Weak<DirectoryWatch> = Arc::downgrade(&old);
        let weak: Weak<dyn ReleaseWatcher> = weak;
        file.unwatch_release(&weak);
    }
    if mask & !MULTISHOT == 0 {
        return Ok(());
    }
    let mask = mask | before;
    let wanted = DIRECTORY_EVENTS.iter().filter(|(bit, _)| mask & bit != 0);
    let events = wanted.fold(Events::empty(), |all, (_, events)| all | *events);
    let watch = Arc::new(DirectoryWatch {
        kernel: Arc::downgrade(kernel),
        file: Arc::downgrade(file),
        fd,
        mask: AtomicU32::new(mask),
        mark: Mutex::new(None),
    });
    let sink: Weak<DirectoryWatch> = Arc::downgrade(&watch);
    let notifier = kernel.vfs().notifier();
    let report = notifier.report(file.path(), false);
    let mark = notifier.add(file.path(), 0, events, false, sink.clone(), report.as_ref());
    kernel.follow_reports();
    *watch.mark.lock() = mark;
    file.watch_release(sink);
    kernel.directory_watches.by_file.lock().insert(file.id(), watch);
    Ok(())
}

impl DirectoryWatch {
    fn end(&self) {
        let mark = self.mark.lock().take();
        if let (Some(mark), Some(kernel)) = (mark, self.kernel.upgrade()) {
            kernel.vfs().notifier().remove(&mark);
        }
    }
}

impl Sink for DirectoryWatch {
    fn event(&self, _mark: &Mark, _events: Events, _cookie: u32, name: Option<&[u8]>) {
        // Of what lies in the directory only.
        if name.is_some() {
            self.fire();
        }
    }

    fn gone(&self, _mark: &Mark) {}

    fn overflowed(&self) {
        self.fire();
    }
}

impl DirectoryWatch {
    fn fire(&self) {
        let keep = |mask: u32| (mask & MULTISHOT == 0).then_some(0);
        let mask = match self.mask.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep) {
            Ok(mask) | Err(mask) => mask,
        };
        if mask != 0
            && let (Some(kernel), Some(file)) = (self.kernel.upgrade(), self.file.upgrade())
        {
            tell_owner(&kernel, &file, self.fd);
        }
    }
}

impl ReleaseWatcher for DirectoryWatch {
    fn released(&self, file: &File) {
        self.end();
        if let Some(kernel) = self.kernel.upgrade() {
            let gone = kernel.directory_watches.by_file.lock().remove(&file.id());
            drop(gone);
        }
    }
}
