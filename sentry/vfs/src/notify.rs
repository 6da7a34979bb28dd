//! Telling who watches an inode what happens to it (inotify(7)).
//!
//! The operations of the VFS, and the kernel where it reads and writes without it, tell a [`Notifier`] of each
//! change. A [`Mark`] is one watch: an inode and the events that are wanted. With no mark anywhere an event costs
//! one load.
//!
//! An event about a file goes to the marks of the directory it was reached through, with its name there, and then to
//! its own marks, without. Marks hold their inode and nothing else: a watched file can be removed, and its file
//! system unmounted, and both are events.
//!
//! Events are sent with locks of directories held, so that their order is that of the changes. A [`Sink`] must not
//! call the VFS.
//!
//! In trees that the host changes too, changes are told as the host reports them ([`HostReports`]).

mod reports;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bitflags::bitflags;
use sentry_lock::{RwLock, rank};

use crate::dentry::Dentry;
use crate::file::File;
use crate::inode::{Inode, SetAttributes};
use crate::mount::FileSystem;
use crate::ops::Vfs;
use crate::path::{InodeKey, VfsPath};
use reports::Reports;
pub use reports::{HostEvent, HostReports, Report};

bitflags! {
    /// What happened, with the numbers of inotify(7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Events: u32 {
        /// Data was read.
        const ACCESS = 0x1;
        /// Data or the size was changed.
        const MODIFY = 0x2;
        /// Attributes were changed.
        const ATTRIB = 0x4;
        /// Closed that was open for writing.
        const CLOSE_WRITE = 0x8;
        /// Closed that was not open for writing.
        const CLOSE_NOWRITE = 0x10;
        /// Opened.
        const OPEN = 0x20;
        /// A name went away by a rename.
        const MOVED_FROM = 0x40;
        /// A name came by a rename.
        const MOVED_TO = 0x80;
        /// A name was made.
        const CREATE = 0x100;
        /// A name was removed.
        const DELETE = 0x200;
        /// The inode itself is gone.
        const DELETE_SELF = 0x400;
        /// The inode itself was renamed.
        const MOVE_SELF = 0x800;
        /// Its file system was unmounted.
        const UNMOUNT = 0x2000;
        /// Events were lost.
        const Q_OVERFLOW = 0x4000;
        /// The watch is gone.
        const IGNORED = 0x8000;
        /// The subject is a directory.
        const ISDIR = 0x4000_0000;
    }
}

/// Who takes events.
pub trait Sink: Send + Sync {
    /// Takes one event. `name` is given for what lies in a watched directory; `cookie` joins the two halves of a
    /// rename and is 0 else. Called with locks of the VFS held.
    fn event(&self, mark: &Mark, events: Events, cookie: u32, name: Option<&[u8]>);

    /// The mark is gone, but not by the sink's own [`Notifier::remove`].
    fn gone(&self, mark: &Mark);

    /// Events were lost before they came here. Called as [`Sink::event`].
    fn overflowed(&self);
}

/// One watch.
pub struct Mark {
    /// The sink's own number for it.
    id: i32,
    inode: Arc<dyn Inode>,
    is_dir: bool,
    /// Where it was found: keeps the dentry, and so the inode, in the cache.
    dentry: Weak<Dentry>,
    fs: Weak<FileSystem>,
    mask: AtomicU32,
    excl_unlink: AtomicBool,
    /// The number of the host's watch; 0 if the host does not report what happens.
    report: AtomicI32,
    sink: Weak<dyn Sink>,
}

impl Mark {
    /// The sink's number for it.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// What is watched.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The events that are wanted.
    pub fn mask(&self) -> Events {
        Events::from_bits_truncate(self.mask.load(Ordering::Relaxed))
    }

    /// Changes what is wanted; `excl_unlink`: nothing of children whose names are gone (`IN_EXCL_UNLINK`).
    pub fn set(&self, mask: Events, excl_unlink: bool) {
        self.mask.store(mask.bits(), Ordering::Relaxed);
        self.excl_unlink.store(excl_unlink, Ordering::Relaxed);
    }

    /// True if children without a name are left out.
    pub fn excl_unlink(&self) -> bool {
        self.excl_unlink.load(Ordering::Relaxed)
    }
}

/// All marks, by inode.
#[derive(Default)]
pub struct Notifier {
    /// How many marks there are.
    count: AtomicUsize,
    marks: RwLock<HashMap<InodeKey, Vec<Arc<Mark>>>, rank::Marks>,
    cookie: AtomicU32,
    reports: Reports,
}

/// What a name is that an event is about.
#[derive(Clone, Copy)]
struct Child<'a> {
    name: &'a [u8],
    /// It has been removed, though the file is still open.
    removed: bool,
}

impl Notifier {
    /// True while nobody watches anything.
    pub fn is_idle(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Makes a mark on what is at `path`, which must be in a tree (`None` else). `report` is what [`Self::report`]
    /// gave for it.
    pub fn add(
        &self,
        path: &VfsPath,
        id: i32,
        mask: Events,
        excl_unlink: bool,
        sink: Weak<dyn Sink>,
        report: Option<&Report>,
    ) -> Option<Arc<Mark>> {
        let (mount, dentry) = path.tree()?;
        let mark = Arc::new(Mark {
            id,
            inode: dentry.inode().clone(),
            is_dir: dentry.is_dir(),
            dentry: Arc::downgrade(dentry),
            fs: Arc::downgrade(mount.file_system()),
            mask: AtomicU32::new(mask.bits()),
            excl_unlink: AtomicBool::new(excl_unlink),
            report: AtomicI32::new(0),
            sink,
        });
        dentry.watched.fetch_add(1, Ordering::Relaxed);
        let mut marks = self.marks.write();
        marks.entry(InodeKey::of(&mark.inode)).or_default().push(mark.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(report) = report {
            self.reports.add(&mark, report);
        }
        drop(marks);
        Some(mark)
    }

    /// Takes a mark away; false if it was gone already.
    pub fn remove(&self, mark: &Arc<Mark>) -> bool {
        let removed = self.take(mark);
        if removed {
            self.forget(mark);
        }
        removed
    }

    /// Takes a mark out of the table; false if it was not there.
    fn take(&self, mark: &Arc<Mark>) -> bool {
        let key = InodeKey::of(&mark.inode);
        let mut marks = self.marks.write();
        let Some(of_inode) = marks.get_mut(&key) else {
            return false;
        };
        let before = of_inode.len();
        of_inode.retain(|other| !Arc::ptr_eq(other, mark));
        let removed = of_inode.len() < before;
        if of_inode.is_empty() {
            marks.remove(&key);
        }
        removed
    }

    fn forget(&self, mark: &Mark) {
        self.reports.forget(mark);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(dentry) = mark.dentry.upgrade() {
            dentry.watched.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn marks_of(&self, inode: &Arc<dyn Inode>) -> Vec<Arc<Mark>> {
        self.marks.read().get(&InodeKey::of(inode)).cloned().unwrap_or_default()
    }

    fn is_marked(&self, inode: &Arc<dyn Inode>) -> bool {
        !self.is_idle() && self.marks.read().contains_key(&InodeKey::of(inode))
    }

    fn send(&self, inode: &Arc<dyn Inode>, events: Events, cookie: u32, child: Option<Child<'_>>) {
        let marks = self.marks_of(inode);
        // What the host has reported until now happened before. (The host's own close comes after ours.)
        if marks.iter().any(|mark| mark.is_reported())
            && !events.intersects(Events::CLOSE_WRITE | Events::CLOSE_NOWRITE)
        {
            self.read_reports();
        }
        for mark in marks {
            let events = mark.unreported(events);
            let excluded = child.is_some_and(|child| child.removed) && mark.excl_unlink();
            if !excluded
                && mark.mask().intersects(events)
                && let Some(sink) = mark.sink.upgrade()
            {
                sink.event(&mark, events, cookie, child.map(|child| child.name));
            }
        }
    }

    /// Something happened to a file, reached by this name.
    pub fn file(&self, dentry: &Arc<Dentry>, events: Events) {
        if self.is_idle() {
            return;
        }
        let events = subject(events, dentry);
        if let Some(parent) = dentry.parent() {
            let name = dentry.name();
            let child = Child {
                name: &name,
                removed: dentry.is_deleted(),
            };
            self.send(parent.inode(), events, 0, Some(child));
        }
        self.send(dentry.inode(), events, 0, None);
    }

    /// Something happened to an open file.
    pub fn opened_file(&self, file: &File, events: Events) {
        if self.is_idle() {
            return;
        }
        let Some(dentry) = file.path().dentry() else { return };
        // What goes through a FIFO is not told.
        if !(dentry.is_fifo() && events.intersects(Events::ACCESS | Events::MODIFY)) {
            self.file(dentry, events);
        }
    }

    /// Attributes were changed as `set` says.
    pub(crate) fn attributes(&self, path: &VfsPath, set: &SetAttributes) {
        if self.is_idle() {
            return;
        }
        let Some(dentry) = path.dentry() else { return };
        let mut events = Events::empty();
        if set.uid.is_some() || set.gid.is_some() || set.mode.is_some() {
            events |= Events::ATTRIB;
        }
        if set.size.is_some() {
            events |= Events::MODIFY;
        }
        events |= match (set.atime.is_some(), set.mtime.is_some()) {
            (true, true) => Events::ATTRIB,
            (true, false) => Events::ACCESS,
            (false, true) => Events::MODIFY,
            (false, false) => Events::empty(),
        };
        if !events.is_empty() {
            self.file(dentry, events);
        }
    }

    /// A name was made or removed in a directory.
    fn name(&self, dir: &Arc<Dentry>, name: &[u8], events: Events) {
        self.send(dir.inode(), events, 0, Some(Child { name, removed: false }));
    }

    /// A name was made in a directory. A further one of an inode that was there changes that one's attributes.
    pub(crate) fn made(&self, dir: &Arc<Dentry>, child: &Arc<Dentry>, link: bool) {
        if self.is_idle() {
            return;
        }
        if link {
            self.send(child.inode(), Events::ATTRIB, 0, None);
        }
        self.name(dir, &child.name(), subject(Events::CREATE, child));
    }

    /// True if somebody watches the inode, and this name, which is about to go, is its last.
    pub(crate) fn awaits_end(&self, dentry: &Arc<Dentry>) -> bool {
        let last = || {
            dentry.is_dir()
                || dentry
                    .inode()
                    .attributes()
                    .is_ok_and(|attributes| attributes.nlink <= 1)
        };
        self.is_marked(dentry.inode()) && last()
    }

    /// `victim` was removed from `dir`. The caller has marked it so, and holds one reference. `ends` is what
    /// [`Self::awaits_end`] said before.
    pub(crate) fn removed(self: &Arc<Notifier>, dir: &Arc<Dentry>, victim: &Arc<Dentry>, ends: bool) {
        if self.is_idle() {
            return;
        }
        if !victim.is_dir() {
            self.send(victim.inode(), Events::ATTRIB, 0, None);
        }
        if ends {
            self.lost(victim);
        }
        self.name(dir, &victim.name(), subject(Events::DELETE, victim));
    }

    /// A dentry has lost its inode's last name: the end is told, once nobody holds the dentry.
    fn lost(self: &Arc<Notifier>, victim: &Arc<Dentry>) {
        let inode = victim.inode();
        if Arc::strong_count(victim) == 1 {
            self.ended(inode, Events::DELETE_SELF);
        } else {
            let notice = EndNotice {
                notifier: self.clone(),
                inode: inode.clone(),
            };
            let _ = victim.end_notice.set(Box::new(notice));
        }
    }

    /// The inode is gone for those who watch it.
    fn ended(&self, inode: &Arc<dyn Inode>, events: Events) {
        // The last close was before.
        if self.marks_of(inode).iter().any(|mark| mark.is_reported()) {
            self.read_reports();
        }
        let marks = self.marks.write().remove(&InodeKey::of(inode)).unwrap_or_default();
        for mark in marks {
            self.end(&mark, events);
        }
    }

    /// Tells the end of a mark that was taken from the table.
    fn end(&self, mark: &Arc<Mark>, events: Events) {
        self.forget(mark);
        let Some(sink) = mark.sink.upgrade() else { return };
        // Nobody asks for UNMOUNT: everybody gets it.
        if events.contains(Events::UNMOUNT) || mark.mask().intersects(events) {
            sink.event(mark, events, 0, None);
        }
        sink.gone(mark);
    }

    /// A rename from `old_name` in `old_dir` to the place where `moved` is now, in `new_dir`. `replaced` was there
    /// before and has lost its name; with it goes what [`Self::awaits_end`] said before.
    pub(crate) fn moved(
        self: &Arc<Notifier>,
        (old_dir, old_name): (&Arc<Dentry>, &[u8]),
        new_dir: &Arc<Dentry>,
        moved: &Arc<Dentry>,
        replaced: Option<(&Arc<Dentry>, bool)>,
    ) {
        if self.is_idle() {
            return;
        }
        let cookie = self.next_cookie();
        let (from, to) = (subject(Events::MOVED_FROM, moved), subject(Events::MOVED_TO, moved));
        let child = |name| Some(Child { name, removed: false });
        self.send(old_dir.inode(), from, cookie, child(old_name));
        self.send(new_dir.inode(), to, cookie, child(&moved.name()));
        if let Some((replaced, _)) = replaced {
            self.send(replaced.inode(), Events::ATTRIB, 0, None);
        }
        self.send(moved.inode(), Events::MOVE_SELF, 0, None);
        if let Some((replaced, true)) = replaced {
            self.lost(replaced);
        }
    }

    fn next_cookie(&self) -> u32 {
        self.cookie.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }

    /// To be called after an umount: ends the marks in file systems that are mounted nowhere any more.
    pub(crate) fn sweep_unmounted(&self) {
        if self.is_idle() {
            return;
        }
        let mut gone: Vec<Arc<Mark>> = Vec::new();
        self.marks.write().retain(|_, marks| {
            marks.retain(|mark| {
                let here = mark.fs.strong_count() > 0;
                if !here {
                    gone.push(mark.clone());
                }
                here
            });
            !marks.is_empty()
        });
        for mark in gone {
            let kind = if mark.is_dir { Events::ISDIR } else { Events::empty() };
            self.end(&mark, Events::UNMOUNT | kind);
        }
    }
}

/// The events with `ISDIR` for a directory.
fn subject(events: Events, dentry: &Dentry) -> Events {
    if dentry.is_dir() {
        events | Events::ISDIR
    } else {
        events
    }
}

/// Lies in a dentry without a name, and tells the inode's end when that goes.
pub(crate) struct EndNotice {
    notifier: Arc<Notifier>,
    inode: Arc<dyn Inode>,
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.notifier.ended(&self.inode, Events::DELETE_SELF);
    }
}

impl Vfs {
    /// Who is told of changes.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }
}
