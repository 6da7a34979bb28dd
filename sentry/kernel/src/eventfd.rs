//! eventfd(2).

use std::any::Any;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::inode::Attributes;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::anon;

/// A counter that can be waited for.
pub struct EventFd {
    count: Mutex<u64, rank::EventFd>,
    /// `EFD_SEMAPHORE`: reads take one.
    semaphore: bool,
    queue: WaitQueue,
}

impl EventFd {
    /// Adds to the counter from inside the kernel, up to the largest value.
    pub fn signal(&self, add: u64) {
        let mut count = self.count.lock();
        *count = count.saturating_add(add).min(u64::MAX - 1);
        drop(count);
        self.queue.wake(PollEvents::IN | PollEvents::RDNORM);
    }
}

/// A new eventfd; `flags` may hold `O_NONBLOCK`.
pub fn eventfd(initial: u32, semaphore: bool, flags: u32) -> Arc<File> {
    let ops = EventFd {
        count: Mutex::new(u64::from(initial)),
        semaphore,
        queue: WaitQueue::new(),
    };
    let flags = (flags & libc::O_NONBLOCK as u32) | libc::O_RDWR as u32;
    anon::file("anon_inode:[eventfd]", flags, Box::new(ops))
}

impl FileOps for EventFd {
    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        let out = buf.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        let mut count = self.count.lock();
        if *count == 0 {
            return Err(Errno::EAGAIN);
        }
        let taken = if self.semaphore { 1 } else { *count };
        *count -= taken;
        drop(count);
        *out = taken.to_ne_bytes();
        self.queue.wake(PollEvents::OUT | PollEvents::WRNORM);
        Ok(8)
    }

    fn write(&self, _file: &File, buf: &[u8], _offset: u64) -> Result<(usize, u64), Errno> {
        // As of Linux 6.9, exactly one number.
        let add = u64::from_ne_bytes(buf.try_into().map_err(|_| Errno::EINVAL)?);
        if add == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if u64::MAX - 1 - *count < add {
            return Err(Errno::EAGAIN);
        }
        *count += add;
        drop(count);
        self.queue.wake(PollEvents::IN | PollEvents::RDNORM);
        Ok((8, 0))
    }

    fn poll(&self, _file: &File) -> PollEvents {
        let count = *self.count.lock();
        let mut events = PollEvents::empty();
        if count > 0 {
            events |= PollEvents::IN | PollEvents::RDNORM;
        }
        if count < u64::MAX - 1 {
            events |= PollEvents::OUT | PollEvents::WRNORM;
        }
        events
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn anonymous_attributes(&self) -> Option<Attributes> {
        Some(anon::shared_attributes())
    }

    fn describe(&self, file: &File) -> String {
        let (count, id) = (*self.count.lock(), file.id());
        format!(
            "eventfd-count: {count:16x}\neventfd-id: {id}\neventfd-semaphore: {}\n",
            u8::from(self.semaphore)
        )
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_saturates() {
        let file = eventfd(3, false, 0);
        let ops = file.ops();
        let mut buf = [0; 8];
        assert_eq!(ops.read(&file, &mut buf, 0), Ok(8));
        assert_eq!(u64::from_ne_bytes(buf), 3);
        assert_eq!(ops.read(&file, &mut buf, 0), Err(Errno::EAGAIN));
        assert_eq!(ops.read(&file, &mut buf[..7], 0), Err(Errno::EINVAL));
        assert_eq!(ops.write(&file, &u64::MAX.to_ne_bytes(), 0), Err(Errno::EINVAL));
        assert_eq!(ops.write(&file, &(u64::MAX - 1).to_ne_bytes(), 0), Ok((8, 0)));
        assert_eq!(ops.write(&file, &1u64.to_ne_bytes(), 0), Err(Errno::EAGAIN));
        assert!(!ops.poll(&file).contains(PollEvents::OUT));
    }

    #[test]
    fn a_semaphore_gives_one_at_a_time() {
        let file = eventfd(2, true, 0);
        let mut buf = [0; 8];
        for _ in 0..2 {
            assert_eq!(file.ops().read(&file, &mut buf, 0), Ok(8));
            assert_eq!(u64::from_ne_bytes(buf), 1);
        }
        assert_eq!(file.ops().read(&file, &mut buf, 0), Err(Errno::EAGAIN));
    }
}
