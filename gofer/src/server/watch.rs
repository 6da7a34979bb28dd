//! Watching directories that the host changes too.
//!
//! The gofer places the watches, and the sentry has the descriptor and reads the events: it so learns, without a
//! message, whether what it remembers still holds. A directory is watched by its path in `/proc/self/fd`, so it is the
//! one that the node stands for, and needs the right to list it.
//!
//! What guests watch has watches of another descriptor, which live until the sentry ends them: their events become
//! the guests'.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use sentry_abi::Errno;
use sentry_host::inotify;

use super::{Answer, Server};
use crate::protocol::{NodeId, Reply};

/// The most directories that are watched: the host's bound is for all programs of a user.
pub const MAX_WATCHES: usize = 4096;
/// The most files and directories whose changes are reported to guests.
pub const MAX_REPORTS: usize = 16 * 1024;

/// The watches.
#[derive(Default)]
pub(super) struct Watcher {
    /// Made when it is first asked for.
    inotify: Option<OwnedFd>,
    /// The working directory is `/proc/self/fd`.
    here: bool,
    /// How many nodes have a watch: one directory may be several nodes.
    nodes: HashMap<i32, usize>,
    /// For reports; made when it is first asked for.
    reports: Option<OwnedFd>,
    reported: HashSet<i32>,
}

impl Watcher {
    /// From now on the working directory is this process's `/proc/self/fd`.
    pub(super) fn names_from_here(&mut self) {
        self.here = true;
    }

    fn descriptor(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        if self.inotify.is_none() {
            self.inotify = Some(inotify::new()?);
        }
        self.inotify.as_ref().map(OwnedFd::as_fd).ok_or(Errno::EMFILE)
    }

    fn reports(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        if self.reports.is_none() {
            self.reports = Some(inotify::new()?);
        }
        self.reports.as_ref().map(OwnedFd::as_fd).ok_or(Errno::EMFILE)
    }

    /// The path of an open file, through this process's `/proc/self/fd`.
    pub(super) fn path_of(&self, fd: BorrowedFd<'_>) -> Result<CString, Errno> {
        let root = if self.here { "" } else { "/proc/self/fd/" };
        CString::new(format!("{root}{}", fd.as_raw_fd())).map_err(|_| Errno::EINVAL)
    }

    fn report(&mut self, file: BorrowedFd<'_>, names_only: bool) -> Result<i32, Errno> {
        let path = self.path_of(file)?;
        let mask = if names_only {
            inotify::REPORTS_OF_NAMES
        } else {
            inotify::REPORTS
        };
        let watch = inotify::add(self.reports()?, &path, mask)?;
        if self.reported.len() >= MAX_REPORTS && !self.reported.contains(&watch) {
            inotify::remove(self.reports()?, watch);
            return Err(Errno::ENOSPC);
        }
        self.reported.insert(watch);
        Ok(watch)
    }

    fn end_report(&mut self, watch: i32) {
        if self.reported.remove(&watch)
            && let Some(reports) = &self.reports
        {
            inotify::remove(reports.as_fd(), watch);
        }
    }

    fn add(&mut self, directory: BorrowedFd<'_>) -> Result<i32, Errno> {
        let path = self.path_of(directory)?;
        let watch = inotify::add(self.descriptor()?, &path, inotify::CHANGES)?;
        if self.nodes.len() >= MAX_WATCHES && !self.nodes.contains_key(&watch) {
            inotify::remove(self.descriptor()?, watch);
            return Err(Errno::ENOSPC);
        }
        *self.nodes.entry(watch).or_default() += 1;
        Ok(watch)
    }

    /// Ends the watches of nodes that are gone.
    pub(super) fn forget(&mut self, watches: Vec<i32>) {
        for watch in watches {
            let Some(nodes) = self.nodes.get_mut(&watch) else {
                continue;
            };
            *nodes -= 1;
            if *nodes == 0 {
                self.nodes.remove(&watch);
                if let Some(inotify) = &self.inotify {
                    inotify::remove(inotify.as_fd(), watch);
                }
            }
        }
    }
}

impl Server {
    /// Gives the sentry the descriptor that tells of changes.
    pub(super) fn notifications(&mut self, reports: bool) -> Answer {
        let inotify = if reports {
            self.watcher.reports()?
        } else {
            self.watcher.descriptor()?
        };
        let inotify = inotify.try_clone_to_owned().map_err(Errno::from)?;
        Ok((Reply::Notifications, vec![inotify]))
    }

    /// Watches a directory until its node is forgotten. In an export of what everybody may read there are no watches:
    /// they would tell of more.
    pub(super) fn watch(&mut self, node: NodeId) -> Answer {
        self.watcher.forget(self.nodes.take_unwatched());
        let export = self.export_of(node)?;
        if export.world_readable_only || export.hide_credentials {
            return Err(Errno::EACCES);
        }
        if let Some(watch) = self.nodes.watch(node) {
            return Ok((Reply::Watched(watch), Vec::new()));
        }
        let found = self.find_directory(node)?;
        let watch = self.watcher.add(found.fd.as_fd())?;
        self.nodes.set_watch(node, watch);
        Ok((Reply::Watched(watch), Vec::new()))
    }

    /// Reports all changes of a file or directory until the sentry ends it; where [`Self::watch`] is refused, so is
    /// this.
    pub(super) fn report(&mut self, node: NodeId, names_only: bool) -> Answer {
        let export = self.export_of(node)?;
        if export.world_readable_only || export.hide_credentials {
            return Err(Errno::EACCES);
        }
        let found = self.find(node)?;
        let watch = self.watcher.report(found.fd.as_fd(), names_only)?;
        Ok((Reply::Watched(watch), Vec::new()))
    }

    pub(super) fn end_report(&mut self, watch: i32) -> Answer {
        self.watcher.end_report(watch);
        Ok((Reply::Done, Vec::new()))
    }
}
