//! Changes by the host, told to guests that watch the file.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sentry_gofer::client::Client;
use sentry_host::inotify;

use super::{Caching, GoferInode};
use crate::notify::{Events, HostEvent, HostReports};

impl HostReports for Client {
    fn read(&self, each: &mut dyn FnMut(HostEvent<'_>)) -> bool {
        let Some(reports) = self.reports() else { return true };
        inotify::drain(reports, |event| {
            each(HostEvent {
                watch: event.watch,
                events: Events::from_bits_truncate(event.mask),
                cookie: event.cookie,
                name: Some(event.name).filter(|name| !name.is_empty()),
            });
        })
    }

    fn end(&self, watch: i32) {
        // If the gofer is gone, so are its watches.
        let _ = self.end_report(watch);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reports()
    }
}

impl GoferInode {
    pub(super) fn reported(&self, names_only: bool) -> Option<(Arc<dyn HostReports>, i32)> {
        if self.fs.caching == Caching::Forever {
            return None;
        }
        let watch = self.with_node(|id| self.fs.client.report(id, names_only)).ok()?;
        Some((self.fs.client.clone(), watch))
    }
}
