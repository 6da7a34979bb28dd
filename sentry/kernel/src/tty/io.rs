//! Reading and writing terminals for guest threads: job control before it, `VMIN` and `VTIME` in it.

use std::sync::Arc;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;

use super::job;
use super::pty::{ReadRule, TtyFile};
use crate::executor::Deadline;
use crate::io::{Buffers, CHUNK, check_range, scatter, with_scratch};
use crate::signal::Signal;
use crate::syscalls::{Sys, SysResult};
use crate::task::{Thread, Wake, block_on};

const READ_EVENTS: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
/// The unit of `VTIME`.
const TENTH: Duration = Duration::from_millis(100);

/// read(2) of a terminal; `wait` says whether it may.
pub fn read(thread: &Arc<Thread>, file: Arc<File>, buffers: Buffers, wait: bool) -> Sys {
    match start(thread, &file, &buffers) {
        Err(errno) => errno.into(),
        Ok(Progress::Done(count)) => Sys::Done(Ok(count as i64)),
        Ok(Progress::More(0, _)) if !wait => Errno::EAGAIN.into(),
        Ok(Progress::More(done, _)) if !wait => Sys::Done(Ok(done as i64)),
        Ok(Progress::More(done, rule)) => {
            let thread = thread.clone();
            Sys::wait(async move { go_on(&thread, &file, &buffers, done, rule).await })
        }
    }
}

/// How far a read is.
enum Progress {
    /// It is finished, with so many bytes.
    Done(usize),
    /// It has so many and wants more.
    More(usize, ReadRule),
}

fn start(thread: &Arc<Thread>, file: &File, buffers: &Buffers) -> Result<Progress, Errno> {
    let tty = TtyFile::of(file).ok_or(Errno::EIO)?;
    if !tty.is_master() && !tty.is_hung_up() {
        job::check_change(thread, tty.pty(), Signal::TTIN)?;
    }
    buffers
        .as_slice()
        .iter()
        .try_for_each(|part| check_range(thread, part.addr, part.len))?;
    if buffers.is_empty() {
        return Ok(Progress::Done(0));
    }
    let rule = tty.read_rule();
    let done = match step(thread, file, buffers, 0) {
        Ok(0) => return Ok(Progress::Done(0)),
        Ok(count) => count,
        Err(Errno::EAGAIN) => 0,
        Err(errno) => return Err(errno),
    };
    Ok(if rule.at_once || enough(done, buffers, rule) {
        Progress::Done(done)
    } else {
        Progress::More(done, rule)
    })
}

fn enough(done: usize, buffers: &Buffers, rule: ReadRule) -> bool {
    done >= rule.minimum.min(buffers.len())
}

/// Reads what there is, to behind the first `done` bytes.
fn step(thread: &Thread, file: &File, buffers: &Buffers, done: usize) -> Result<usize, Errno> {
    with_scratch((buffers.len() - done).min(CHUNK), |buf| {
        let count = file.ops().read(file, buf, 0)?.min(buf.len());
        scatter(thread, buffers.as_slice(), done, &buf[..count])?;
        Ok(count)
    })
}

/// Waits for the rest.
async fn go_on(thread: &Arc<Thread>, file: &File, buffers: &Buffers, mut done: usize, rule: ReadRule) -> SysResult {
    let tty = TtyFile::of(file).ok_or(Errno::EIO)?;
    let queue = file.ops().wait_queue().ok_or(Errno::EIO)?;
    let time = TENTH * u32::from(rule.time);
    let from_start = (rule.from_start && rule.time > 0).then(|| Deadline::after(time));
    super::console::wanted(thread, tty);
    while !enough(done, buffers, rule) {
        let between = (!rule.from_start && rule.time > 0 && done > 0).then(|| Deadline::after(time));
        let result = block_on(thread, from_start.or(between), &[(queue, READ_EVENTS)], || {
            match step(thread, file, buffers, done) {
                Err(Errno::EAGAIN) => None,
                result => Some(result),
            }
        })
        .await;
        match result {
            Ok(Ok(0)) if done == 0 && tty.is_hung_up() && tty.is_orphan() => return Err(Errno::EIO),
            Ok(Ok(0)) => break,
            Ok(Ok(count)) => done += count,
            Ok(Err(errno)) if done == 0 => return Err(errno),
            Err(Wake::Signal) if done == 0 => return Err(Errno::ERESTARTSYS),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Ok(done as i64)
}

/// Before a write: with `TOSTOP` set, a background process is stopped.
pub fn check_write(thread: &Arc<Thread>, file: &File) -> Result<(), Errno> {
    match TtyFile::of(file) {
        Some(tty) if !tty.is_master() && tty.pty().stops_background_output() && !tty.is_hung_up() => {
            job::check_change(thread, tty.pty(), Signal::TTOU)
        }
        _ => Ok(()),
    }
}
