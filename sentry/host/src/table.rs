//! Threads with a table of descriptors of their own.
//!
//! `RLIMIT_NOFILE` bounds one table (getrlimit(2)), and threads need not share theirs (unshare(2), `CLONE_FILES`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Starts a thread in whose table `keep` is the only descriptor; `body` gets it. It is closed in the caller's table.
///
/// A number of the caller's table means something else, or nothing, in that thread: `body` must not have captured
/// descriptors, nor call anything that holds some (wakers of an executor, for one).
///
/// # Errors
/// Those of starting a thread, and of close_range(2) with `CLOSE_RANGE_UNSHARE` (Linux 5.9).
pub fn spawn_with_own_table(
    name: &str,
    stack_size: usize,
    keep: OwnedFd,
    body: impl FnOnce(OwnedFd) + Send + 'static,
) -> io::Result<()> {
    let number = keep.as_raw_fd();
    let (done, wait) = sync_channel(1);
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(stack_size)
        .spawn(move || {
            if let Some(kept) = leave_table(number, &done) {
                body(kept);
            }
        })?;
    // Until it has its own table, the descriptor must stay open in ours.
    let result = wait.recv().unwrap_or(Err(libc::EIO));
    drop(keep);
    result.map_err(io::Error::from_raw_os_error)
}

fn leave_table(number: RawFd, done: &SyncSender<Result<(), i32>>) -> Option<OwnedFd> {
    let close = |first: u32, last: u32, flags: libc::c_uint| {
        // SAFETY: with CLOSE_RANGE_UNSHARE the thread has a table of its own from here on, in which nothing but
        // `number` is used any more.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    };
    let number_up = number.unsigned_abs();
    let mut result = close(number_up + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    if result.is_ok() && number_up > 0 {
        result = close(0, number_up - 1, 0);
    }
    let left = result.is_ok();
    let _ = done.send(result);
    // SAFETY: open in this thread's own table, where nobody else owns it.
    left.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scm;
    use std::os::fd::AsFd;

    #[test]
    fn the_other_table_has_one_descriptor_and_closes_for_itself() {
        let (ours, theirs) = scm::packet_pair().expect("socketpair");
        let probe = std::fs::File::open("/dev/null").expect("open");
        let number = probe.as_raw_fd();
        spawn_with_own_table("table", 64 << 10, theirs, move |channel| {
            let open = (0..1024).filter(|fd| {
                // SAFETY: only reads flags.
                unsafe { libc::fcntl(*fd, libc::F_GETFD) != -1 }
            });
            let count = open.count() as u8;
            // SAFETY: not open in this table, so nothing is closed in it.
            let closed = unsafe { libc::close(number) };
            let _ = scm::send_with_fds(channel.as_fd(), &[count, closed as u8], &[]);
        })
        .expect("a thread");
        let mut answer = [0; 2];
        assert_eq!(scm::recv_with_fds(ours.as_fd(), &mut answer, 0).expect("answer").0, 2);
        assert_eq!(answer, [1, 255]);
        // The thread is gone, and its end with it; our own descriptors are as before.
        assert_eq!(scm::recv_with_fds(ours.as_fd(), &mut answer, 0).expect("end").0, 0);
        probe.metadata().expect("still open");
    }
}
