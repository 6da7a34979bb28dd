//! signalfd(2).

use std::any::Any;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use sentry_abi::Errno;
use sentry_abi::poll::SignalfdSiginfo;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitKey, WaitQueue};
use zerocopy::{FromZeros, IntoBytes};

use crate::anon;
use crate::signal::{SigInfo, SigSet, Signal};
use crate::task::{Process, Thread};

const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);

/// Pending signals as something to read. It shows those of the thread that uses it; between its uses, of the one
/// that used it last.
pub struct SignalFd {
    mask: Mutex<SigSet, rank::SignalFdMask>,
    user: Mutex<User, rank::SignalFdUser>,
    relay: Arc<Relay>,
}

/// Who used the descriptor last, and the registration with its process.
struct User {
    thread: Weak<Thread>,
    process: Weak<Process>,
    key: Option<WaitKey>,
}

/// Passes the process's announcements on to who waits for the descriptor.
#[derive(Default)]
struct Relay {
    queue: WaitQueue,
}

impl Wake for Relay {
    fn wake(self: Arc<Relay>) {
        self.queue.wake(READABLE);
    }
}

/// A descriptor for the signals of `mask`.
pub fn signalfd(thread: &Arc<Thread>, mask: SigSet, flags: u32) -> Arc<File> {
    let user = User {
        thread: Weak::new(),
        process: Weak::new(),
        key: None,
    };
    let ops = SignalFd {
        mask: Mutex::new(mask),
        user: Mutex::new(user),
        relay: Arc::default(),
    };
    ops.used_by(thread);
    let flags = (flags & libc::O_NONBLOCK as u32) | libc::O_RDWR as u32;
    anon::file("anon_inode:[signalfd]", flags, Box::new(ops))
}

impl SignalFd {
    /// The one behind a file; `EINVAL` if it is something else.
    pub fn of(file: &File) -> Result<&SignalFd, Errno> {
        file.ops().as_any().downcast_ref::<SignalFd>().ok_or(Errno::EINVAL)
    }

    /// Changes the signals it shows.
    pub fn set_mask(&self, mask: SigSet) {
        *self.mask.lock() = mask;
        self.relay.queue.wake(READABLE);
    }

    /// Notes who is about to read from it or to wait for it.
    pub fn used_by(&self, thread: &Arc<Thread>) {
        let mut user = self.user.lock();
        if std::ptr::eq(user.thread.as_ptr(), Arc::as_ptr(thread)) {
            return;
        }
        user.thread = Arc::downgrade(thread);
        if !std::ptr::eq(user.process.as_ptr(), Arc::as_ptr(thread.process())) {
            user.unregister();
            user.process = Arc::downgrade(thread.process());
            user.key = Some(
                thread
                    .process()
                    .signal_events
                    .register(&Waker::from(self.relay.clone()), READABLE),
            );
        }
    }
}

impl User {
    fn unregister(&mut self) {
        if let (Some(process), Some(key)) = (self.process.upgrade(), self.key.take()) {
            process.signal_events.unregister(key);
        }
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        self.user.get_mut().unregister();
    }
}

/// `struct signalfd_siginfo` of a signal.
fn convert(info: &SigInfo) -> SignalfdSiginfo {
    let mut out = SignalfdSiginfo::new_zeroed();
    out.ssi_signo = info.signal.number() as u32;
    out.ssi_errno = info.errno;
    out.ssi_code = info.code;
    if info.code == SigInfo::SI_TIMER {
        out.ssi_tid = info.word(16);
        out.ssi_overrun = info.word(20);
        out.ssi_int = info.word(24) as i32;
        out.ssi_ptr = info.long(24);
    } else if info.signal == Signal::CHLD && info.code > 0 {
        out.ssi_pid = info.word(16);
        out.ssi_uid = info.word(20);
        out.ssi_status = info.word(24) as i32;
        out.ssi_utime = info.long(32);
        out.ssi_stime = info.long(40);
    } else if info.from_user() || info.code == SigInfo::SI_KERNEL {
        out.ssi_pid = info.word(16);
        out.ssi_uid = info.word(20);
        // kill(2) and the kernel send no value, whatever a forged one says.
        if info.code < 0 {
            out.ssi_int = info.word(24) as i32;
            out.ssi_ptr = info.long(24);
        }
    } else if info.signal == Signal::IO {
        out.ssi_band = info.word(16);
        out.ssi_fd = info.word(24) as i32;
    } else {
        out.ssi_addr = info.long(16);
    }
    out
}

impl FileOps for SignalFd {
    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        const SIZE: usize = size_of::<SignalfdSiginfo>();
        if buf.len() < SIZE {
            return Err(Errno::EINVAL);
        }
        let thread = self.user.lock().thread.upgrade().ok_or(Errno::EAGAIN)?;
        let mask = *self.mask.lock();
        let mut count = 0;
        for place in buf.chunks_exact_mut(SIZE) {
            let Some(info) = thread.take_signal(mask) else { break };
            place.copy_from_slice(convert(&info).as_bytes());
            count += SIZE;
        }
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(count) }
    }

    fn poll(&self, _file: &File) -> PollEvents {
        let thread = self.user.lock().thread.upgrade();
        let pending = thread.map_or(SigSet::EMPTY, |thread| thread.pending_signals());
        if pending.intersection(*self.mask.lock()).is_empty() {
            PollEvents::empty()
        } else {
            READABLE
        }
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.relay.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, _file: &File) -> String {
        format!("sigmask:\t{:016x}\n", self.mask.lock().0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
