//! What the sentry knows of changes that the host makes in shared directories.
//!
//! The gofer places inotify watches, the sentry has the descriptor. Whatever is remembered of a watched directory
//! carries the *moment* before it was asked for. It holds as long as no event of its name came later, which is looked
//! up after all events that are there have been read: each time, or once in a call of a guest where [`new_call`] tells
//! of these. So a change that is over on the host is seen by whoever looks
//! next. The host sends an event after the change: what is answered before is never taken for newer than it is.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use sentry_host::inotify;
use sentry_lock::{Mutex, MutexGuard, rank};

/// The most names whose changes are remembered one by one.
const MAX_NAMES: usize = 16 * 1024;

/// What this thread works on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Nobody says.
    Unknown,
    /// A call of a guest that has not looked yet.
    New,
    /// One that has, here (by address).
    Looked(usize),
}

thread_local! {
    static CALL: Cell<Call> = const { Cell::new(Call::Unknown) };
}

/// This thread begins a call of a guest, or goes on with one that had to wait: what the host has changed until now
/// must be seen by it.
pub fn new_call() {
    CALL.set(Call::New);
}

/// A point in the order of events; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// All watched directories of a gofer.
#[derive(Default)]
pub struct Watches(Mutex<State, rank::GoferWatches>);

#[derive(Default)]
struct State {
    inotify: Option<OwnedFd>,
    now: u64,
    /// What was asked for before this may have changed.
    floor: u64,
    directories: HashMap<i32, Directory>,
    /// How many names all directories have together.
    names: usize,
}

/// When something last happened.
#[derive(Default)]
struct Directory {
    /// How many inodes of the sentry count on the watch.
    users: u32,
    /// To the directory: its own attributes, or its names.
    own: u64,
    /// It was not watched before.
    floor: u64,
    names: HashMap<Box<[u8]>, Name>,
}

#[derive(Clone, Copy, Default)]
struct Name {
    /// Whatever it was.
    any: u64,
    /// Something other than that data was written.
    beyond_data: u64,
}

/// What must not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything at all.
    Any,
    /// Anything but writes to the file.
    BeyondData,
}

impl State {
    fn drain(&mut self) {
        let State {
            inotify,
            now,
            floor,
            directories,
            names,
        } = self;
        let Some(inotify) = inotify else { return };
        let complete = inotify::drain(inotify.as_fd(), |event| {
            *now += 1;
            if event.mask & libc::IN_Q_OVERFLOW != 0 {
                *floor = *now;
                return;
            }
            let Some(directory) = directories.get_mut(&event.watch) else {
                return;
            };
            if event.mask & libc::IN_IGNORED != 0 {
                // There will be no more events.
                directory.floor = u64::MAX;
                return;
            }
            let data = event.mask & libc::IN_MODIFY != 0;
            if event.name.is_empty() || !data && event.mask & libc::IN_ATTRIB == 0 {
                directory.own = *now;
            }
            if event.name.is_empty() {
                return;
            }
            if !directory.names.contains_key(event.name) {
                *names += 1;
                directory.names.insert(event.name.into(), Name::default());
            }
            if let Some(name) = directory.names.get_mut(event.name) {
                name.any = *now;
                if !data {
                    name.beyond_data = *now;
                }
            }
        });
        if !complete {
            *now += 1;
            *floor = *now;
        }
        if *names > MAX_NAMES {
            directories.values_mut().for_each(|directory| directory.names.clear());
            *names = 0;
            *floor = *now;
        }
    }

    fn directory(&self, watch: i32, since: u64) -> Option<&Directory> {
        let floor = self.floor.max(self.directories.get(&watch)?.floor);
        self.directories.get(&watch).filter(|_| since >= floor)
    }
}

impl Watches {
    /// What is known now.
    fn look(&self) -> MutexGuard<'_, State, rank::GoferWatches> {
        let mut state = self.0.lock();
        let here = std::ptr::from_ref(self).addr();
        if CALL.get() != Call::Looked(here) {
            state.drain();
            if CALL.get() == Call::New {
                CALL.set(Call::Looked(here));
            }
        }
        state
    }

    /// Takes the descriptor that the gofer gave.
    pub(crate) fn start(&self, inotify: OwnedFd) {
        self.0.lock().inotify = Some(inotify);
    }

    /// True if there is a descriptor.
    pub fn started(&self) -> bool {
        self.0.lock().inotify.is_some()
    }

    /// The directory with this watch is in use (once more).
    pub(crate) fn add(&self, watch: i32) {
        let mut state = self.0.lock();
        // What is still to be read belongs to the time before.
        state.drain();
        state.now += 1;
        let now = state.now;
        let directory = state.directories.entry(watch).or_default();
        if directory.users == 0 {
            directory.floor = now;
        }
        directory.users = directory.users.saturating_add(1);
    }

    /// Takes back what [`crate::client::Client::watch`] gave.
    pub fn release(&self, watch: i32) {
        let mut state = self.0.lock();
        let Some(directory) = state.directories.get_mut(&watch) else {
            return;
        };
        directory.users = directory.users.saturating_sub(1);
        if directory.users == 0
            && let Some(gone) = state.directories.remove(&watch)
        {
            state.names -= gone.names.len();
        }
    }

    /// The moment before a request that is made next.
    pub fn moment(&self) -> Moment {
        Moment(self.look().now)
    }

    /// True if nothing of this `kind` has happened since to `name` in a watched directory.
    pub fn name_holds(&self, watch: i32, name: &[u8], kind: Kind, since: Moment) -> bool {
        self.look().directory(watch, since.0).is_some_and(|directory| {
            let changed = directory.names.get(name).copied().unwrap_or_default();
            since.0
                >= match kind {
                    Kind::Any => changed.any,
                    Kind::BeyondData => changed.beyond_data,
                }
        })
    }

    /// True if since then a watched directory's own attributes and its names are as they were.
    pub fn directory_holds(&self, watch: i32, since: Moment) -> bool {
        self.look()
            .directory(watch, since.0)
            .is_some_and(|directory| since.0 >= directory.own)
    }
}
