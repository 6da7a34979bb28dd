//! Descriptors that refer to processes (pidfd_open(2)).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::anon;
use crate::fd::Fd;
use crate::task::{Process, Resource, Thread};

/// A process, as a file: readable once the process has ended.
pub struct PidFd {
    process: Arc<Process>,
}

impl PidFd {
    /// The process behind a file; `EBADF` if it is something else.
    pub fn process_of(file: &File) -> Result<Arc<Process>, Errno> {
        let pidfd = file.ops().as_any().downcast_ref::<PidFd>().ok_or(Errno::EBADF)?;
        Ok(pidfd.process.clone())
    }
}

impl FileOps for PidFd {
    fn poll(&self, _file: &File) -> PollEvents {
        if self.process.is_zombie() {
            PollEvents::IN | PollEvents::RDNORM
        } else {
            PollEvents::empty()
        }
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.process.exit_events)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, _file: &File) -> String {
        // The id may be somebody else's once the process was reaped.
        let pid = if self.process.reaped.load(Ordering::Relaxed) {
            -1
        } else {
            self.process.pid()
        };
        format!("Pid:\t{pid}\nNSpid:\t{pid}\n")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Opens a pidfd (always close-on-exec) in the thread's table.
pub fn install(thread: &Arc<Thread>, process: &Arc<Process>, nonblocking: bool) -> Result<Fd, Errno> {
    let flags = libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 };
    let file = anon::file(
        "anon_inode:[pidfd]",
        flags as u32,
        Box::new(PidFd {
            process: process.clone(),
        }),
    );
    thread
        .files()
        .install(file, true, 0, thread.limit(Resource::NOFILE).current)
}
