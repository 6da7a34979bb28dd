//! What processes of the host do to files that guests watch.
//!
//! Where the host changes a tree too, a mark is *reported*: the host's own inotify watch of the same file tells of
//! changes, whoever made them, and the VFS does not. So a guest's changes are told once, and in the order in which
//! they happened among the host's. What changes nothing (opens, reads, their closes) and the end of a file that a
//! guest removes stay the VFS's.
//!
//! Reports are read before they could be missed: when a descriptor becomes readable, when a guest asks for events,
//! and before the VFS tells something of a reported mark.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sentry_host::inotify;
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, rank};

use super::{Events, Mark, Notifier, Sink};
use crate::path::VfsPath;

/// What a reported mark hears of by reports only: all that the host is asked for, but the end of the file.
const REPORTED: Events = Events::from_bits_truncate(inotify::REPORTS).difference(Events::DELETE_SELF);
/// Renames whose second half may still come.
const MAX_COOKIES: usize = 64;

/// Who has the host watch files.
pub trait HostReports: Send + Sync {
    /// Reads the reports that are there. False if there may be more.
    fn read(&self, each: &mut dyn FnMut(HostEvent<'_>)) -> bool;
    /// Ends a watch. Not called with locks held that a request to the gofer is not made under.
    fn end(&self, watch: i32);
    /// What becomes readable when there are reports.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// One report.
#[derive(Clone, Copy, Debug)]
pub struct HostEvent<'a> {
    /// The number of the watch.
    pub watch: i32,
    /// What happened.
    pub events: Events,
    /// Joins the halves of a rename on the host.
    pub cookie: u32,
    /// Of a watched directory's child.
    pub name: Option<&'a [u8]>,
}

/// All watches of the host.
#[derive(Default)]
pub(super) struct Reports {
    source: OnceLock<Arc<dyn HostReports>>,
    /// One request at a time: what is ended is not what is asked for meanwhile.
    asking: LongMutex<(), rank::ReportRequests>,
    /// One reader at a time: events are told in their order. The guest's cookies for the host's.
    reading: Mutex<VecDeque<(u32, u32)>, rank::ReportReading>,
    watches: Mutex<HashMap<i32, Reported>, rank::ReportedMarks>,
    /// Marks that have ended: the last reference to a file may go with one, not under the locks that are held then.
    ended: Mutex<Vec<Arc<Mark>>, rank::ReportedMarks>,
    /// How many there are.
    count: AtomicUsize,
    /// Some of them nobody wants any more.
    unwanted: AtomicBool,
}

#[derive(Default)]
struct Reported {
    marks: Vec<Arc<Mark>>,
    /// Who is about to make a mark.
    asked: usize,
}

/// A watch of the host for a mark that is about to be made.
pub struct Report {
    notifier: Arc<Notifier>,
    pub(super) watch: i32,
}

impl Drop for Report {
    fn drop(&mut self) {
        let reports = &self.notifier.reports;
        if let Some(reported) = reports.watches.lock().get_mut(&self.watch) {
            reported.asked -= 1;
            reports.left(reported);
        }
    }
}

impl Reports {
    fn left(&self, reported: &Reported) {
        if reported.marks.is_empty() && reported.asked == 0 {
            self.unwanted.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn add(&self, mark: &Arc<Mark>, report: &Report) {
        if let Some(reported) = self.watches.lock().get_mut(&report.watch) {
            mark.report.store(report.watch, Ordering::Relaxed);
            reported.marks.push(mark.clone());
        }
    }

    /// The mark is gone. The caller holds it.
    pub(super) fn forget(&self, mark: &Mark) {
        let watch = mark.report.swap(0, Ordering::Relaxed);
        if watch == 0 {
            return;
        }
        if let Some(reported) = self.watches.lock().get_mut(&watch) {
            reported.marks.retain(|other| !std::ptr::eq(Arc::as_ptr(other), mark));
            self.left(reported);
        }
    }

    fn keep(&self, ended: Arc<Mark>) {
        self.ended.lock().push(ended);
        self.unwanted.store(true, Ordering::Relaxed);
    }

    fn marks_of(&self, watch: i32) -> Vec<Arc<Mark>> {
        let watches = self.watches.lock();
        watches
            .get(&watch)
            .map(|reported| reported.marks.clone())
            .unwrap_or_default()
    }

    fn all_marks(&self) -> Vec<Arc<Mark>> {
        let watches = self.watches.lock();
        watches.values().flat_map(|reported| reported.marks.clone()).collect()
    }

    /// Ends what nobody wants. `asking` is held.
    fn end_unwanted(&self) {
        if !self.unwanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let ended = std::mem::take(&mut *self.ended.lock());
        drop(ended);
        let mut unwanted = Vec::new();
        self.watches.lock().retain(|watch, reported| {
            let wanted = !reported.marks.is_empty() || reported.asked > 0;
            if !wanted {
                unwanted.push(*watch);
            }
            wanted
        });
        self.count.fetch_sub(unwanted.len(), Ordering::Relaxed);
        if let Some(source) = self.source.get() {
            unwanted.into_iter().for_each(|watch| source.end(watch));
        }
    }
}

impl Mark {
    /// What the VFS tells this mark of these events.
    pub(super) fn unreported(&self, events: Events) -> Events {
        if self.is_reported() { events - REPORTED } else { events }
    }

    pub(super) fn is_reported(&self) -> bool {
        self.report.load(Ordering::Relaxed) != 0
    }
}

impl Notifier {
    /// Has the host report changes of what is at `path`, for a mark that is to be made with [`Notifier::add`];
    /// `None` where nobody but guests changes it, or where that is not to be had. `excl_unlink` is the mark's. Waits
    /// for the gofer; no lock is held.
    pub fn report(self: &Arc<Notifier>, path: &VfsPath, excl_unlink: bool) -> Option<Report> {
        let inode = path.inode()?;
        let reports = &self.reports;
        let _asking = reports.asking.lock().ok()?;
        reports.end_unwanted();
        let names_only = excl_unlink && self.marks_of(inode).iter().all(|mark| mark.excl_unlink());
        let (source, watch) = inode.report(names_only)?;
        let known = reports.source.get_or_init(|| source.clone());
        if !Arc::ptr_eq(known, &source) {
            source.end(watch);
            return None;
        }
        let mut watches = reports.watches.lock();
        let reported = watches.entry(watch).or_insert_with(|| {
            reports.count.fetch_add(1, Ordering::Relaxed);
            Reported::default()
        });
        reported.asked += 1;
        drop(watches);
        Some(Report {
            notifier: self.clone(),
            watch,
        })
    }

    /// A copy of the descriptor that becomes readable when there are reports; `None` as long as none were asked for.
    pub fn reports_descriptor(&self) -> Option<OwnedFd> {
        let source = self.reports.source.get()?;
        source.descriptor()?.try_clone_to_owned().ok()
    }

    /// Tells what was reported until now. May be called with locks held, as [`Sink::event`].
    pub fn read_reports(&self) {
        let reports = &self.reports;
        if reports.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(source) = reports.source.get() else { return };
        let mut cookies = reports.reading.lock();
        // What is left after that has been made meanwhile, and makes the descriptor readable anew.
        let _complete = source.read(&mut |event| self.reported(&event, &mut cookies));
    }

    /// True if watches of the host are left that [`Self::end_unwanted_reports`] would end.
    pub fn has_unwanted_reports(&self) -> bool {
        self.reports.unwanted.load(Ordering::Relaxed)
    }

    /// Ends watches of the host that were for marks that are gone. Waits for the gofer; no lock is held.
    pub fn end_unwanted_reports(&self) {
        if self.has_unwanted_reports()
            && let Ok(_asking) = self.reports.asking.lock()
        {
            self.reports.end_unwanted();
        }
    }

    fn reported(&self, event: &HostEvent<'_>, cookies: &mut VecDeque<(u32, u32)>) {
        if event.events.contains(Events::Q_OVERFLOW) {
            let mut told: Vec<Arc<dyn Sink>> = Vec::new();
            for mark in self.reports.all_marks() {
                if let Some(sink) = mark.sink.upgrade()
                    && !told.iter().any(|other| Arc::ptr_eq(other, &sink))
                {
                    sink.overflowed();
                    told.push(sink);
                }
            }
            return;
        }
        let marks = self.reports.marks_of(event.watch);
        let end = Events::DELETE_SELF | Events::UNMOUNT;
        if event.events.intersects(end) {
            for mark in marks {
                if self.take(&mark) {
                    self.end(&mark, event.events & end);
                }
                self.reports.keep(mark);
            }
        } else if event.events.contains(Events::IGNORED) {
            // The host's watch has ended, the guests' have not: what guests do is told again, at least.
            for mark in marks {
                self.reports.forget(&mark);
                self.reports.keep(mark);
            }
        } else {
            let cookie = match event.cookie {
                0 => 0,
                host => self.cookie_for(host, cookies),
            };
            for mark in marks {
                if mark.mask().intersects(event.events)
                    && let Some(sink) = mark.sink.upgrade()
                {
                    sink.event(&mark, event.events, cookie, event.name);
                }
                if !mark.is_reported() {
                    self.reports.keep(mark);
                }
            }
        }
    }

    /// The host's own numbers are not shown, and would collide with ours.
    fn cookie_for(&self, host: u32, cookies: &mut VecDeque<(u32, u32)>) -> u32 {
        if let Some((_, ours)) = cookies.iter().find(|(theirs, _)| *theirs == host) {
            return *ours;
        }
        let ours = self.next_cookie();
        if cookies.len() >= MAX_COOKIES {
            cookies.pop_front();
        }
        cookies.push_back((host, ours));
        ours
    }
}
