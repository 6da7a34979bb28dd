//! Moving data from one open file to another: splice(2), sendfile(2), copy_file_range(2).
//!
//! What a source has is copied to the target through the sentry's memory. A file that can be read again is read
//! first and moved on by what the target took; of what cannot (a socket, a terminal), no more is read than the
//! target, a pipe, takes.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use sentry_abi::Errno;
use sentry_vfs::file::{CURRENT, File};
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::io::{self, CHUNK, with_scratch};
use crate::pipe::{Pipe, PipeEnd};
use crate::syscalls::{Sys, SysResult};
use crate::task::{Thread, Wake, block_on};

/// How much is moved before others get their turn, in bytes.
const TURN: usize = 4 << 20;
/// How much goes to the pool of blocking host calls at a time, in bytes.
const POOL_CHUNK: usize = 1 << 20;

const SOURCE_EVENTS: PollEvents = PollEvents::IN.union(PollEvents::RDNORM).union(PollEvents::RDHUP);
const TARGET_EVENTS: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);

/// The pipe behind an open file, if it is one.
pub fn pipe_of(file: &File) -> Option<&Arc<Pipe>> {
    file.ops().as_any().downcast_ref::<PipeEnd>().map(PipeEnd::pipe)
}

/// One side of a transfer: a file, and an offset if not its own position.
pub struct Side {
    /// The file.
    pub file: Arc<File>,
    /// Where to read or write; it moves along.
    pub offset: Option<u64>,
}

impl Side {
    /// True for files that can give, or take, data inside the kernel: pipes, sockets, terminals, and what has
    /// offsets, but not directories, eventfds and their kind.
    pub fn takes_part(&self) -> bool {
        matches!(
            io::kind_of(&self.file),
            libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK
        )
    }

    /// True for a source: not every text of /proc is one.
    pub fn gives(&self) -> bool {
        self.takes_part() && self.file.ops().spliced()
    }

    /// True if what was read can be read again.
    fn rereadable(&self) -> bool {
        let ops = self.file.ops();
        pipe_of(&self.file).is_some() || ops.seekable()
    }

    fn may_block(&self) -> bool {
        self.file.ops().host_file().is_some_and(|host| host.may_block)
    }

    fn place(&self) -> u64 {
        match self.offset {
            Some(offset) => offset,
            None if self.file.ops().own_position() => CURRENT,
            None if self.file.ops().seekable() => self.file.position.now(),
            None => 0,
        }
    }

    /// Reads at the side's place without moving it.
    fn peek(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        match pipe_of(&self.file) {
            Some(pipe) => pipe.peek(buf),
            None => self.file.ops().read(&self.file, buf, self.place()),
        }
    }

    /// Moves the side's place by what was used of the `read` bytes.
    fn advance(&mut self, used: usize, read: usize) {
        let ops = self.file.ops();
        if let Some(pipe) = pipe_of(&self.file) {
            pipe.discard(used);
        } else if let Some(offset) = &mut self.offset {
            *offset = offset.saturating_add(used as u64);
        } else if ops.own_position() {
            if used < read {
                let _ = ops.own_seek(used as i64 - read as i64, libc::SEEK_CUR);
            }
        } else if ops.seekable() {
            let position = self.file.position.lock();
            position.set(position.get().saturating_add(used as u64));
        }
    }

    /// How many of `len` bytes the file may get at its place, by its kind and `RLIMIT_FSIZE`.
    fn allowed(&self, thread: &Thread, len: usize) -> Result<usize, Errno> {
        if io::kind_of(&self.file) != libc::S_IFREG || self.file.ops().own_position() {
            return Ok(len);
        }
        io::remove_privileges(thread, &self.file)?;
        io::allowed(thread, self.place(), len)
    }

    /// Where in a page the side's place is: so lie the bytes of a file's pages in a pipe.
    fn in_page(&self) -> usize {
        match self.place() {
            CURRENT => 0,
            place => (place % sentry_abi::PAGE_SIZE) as usize,
        }
    }

    /// Writes at the side's place and moves it. With `all`, a pipe takes everything; there, the first byte comes to
    /// lie at `start` in a page.
    fn write(&mut self, data: &[u8], start: usize, all: bool) -> Result<usize, Errno> {
        let ops = self.file.ops();
        if let Some(pipe) = pipe_of(&self.file) {
            return pipe.fill(data, start, all);
        }
        if let Some(offset) = &mut self.offset {
            let (written, end) = ops.write(&self.file, data, *offset)?;
            *offset = end;
            return Ok(written);
        }
        if ops.own_position() {
            return ops.write(&self.file, data, CURRENT).map(|(written, _)| written);
        }
        if !ops.seekable() {
            return ops.write(&self.file, data, 0).map(|(written, _)| written);
        }
        let position = self.file.position.lock();
        let (written, end) = ops.write(&self.file, data, position.get())?;
        position.set(end);
        Ok(written)
    }

    /// How much fits, as far as it can be told.
    fn room(&self) -> usize {
        pipe_of(&self.file).map_or(usize::MAX, |pipe| pipe.room())
    }

    fn queue(&self) -> Option<&WaitQueue> {
        self.file.ops().wait_queue()
    }
}

/// When a transfer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Never: `EAGAIN` if nothing can be moved at once.
    Now,
    /// Until something has moved.
    Some,
    /// Until everything has moved, or the source is at its end.
    All,
}

/// A transfer of up to `left` bytes.
pub struct Transfer {
    /// Where data comes from.
    pub from: Side,
    /// Where it goes.
    pub to: Side,
    /// How much is still to be moved.
    pub left: usize,
    /// When it waits.
    pub until: Until,
}

/// Why a round of moving ended.
enum Round {
    /// Everything has moved, or the source is at its end.
    Finished,
    /// One side is not ready.
    NotReady,
    /// It is somebody else's turn.
    Turn,
}

impl Transfer {
    /// Moves one piece that needs no waiting host call. 0: the end.
    fn piece(&mut self, thread: &Thread) -> Result<usize, Errno> {
        let Transfer { from, to, left, .. } = self;
        let rereadable = from.rereadable();
        if let Some(target) = pipe_of(&to.file)
            && pipe_of(&from.file).is_none()
            && target.openers().readers == 0
        {
            return Err(Errno::EPIPE);
        }
        let mut len = (*left).min(CHUNK);
        if !rereadable {
            len = len.min(to.room());
            if len == 0 {
                return Err(Errno::EAGAIN);
            }
        }
        if let (Some(source), Some(target)) = (pipe_of(&from.file), pipe_of(&to.file)) {
            let count = target.fill_from(source, len, false)?;
            source.discard(count);
            return Ok(count);
        }
        let len = to.allowed(thread, len)?;
        let start = from.in_page();
        with_scratch(len, |buf| {
            let read = from.peek(buf)?.min(buf.len());
            if read == 0 {
                return Ok(0);
            }
            match to.write(&buf[..read], start, !rereadable) {
                Ok(written) => {
                    from.advance(written, read);
                    Ok(written)
                }
                Err(errno) => {
                    from.advance(0, read);
                    Err(errno)
                }
            }
        })
    }

    /// As [`Self::piece`], with the host calls in the pool.
    async fn pooled_piece(&mut self, thread: &Arc<Thread>) -> Result<usize, Errno> {
        let executor = thread.kernel().executor().clone();
        let len = self.left.min(POOL_CHUNK).min(self.to.room());
        if len == 0 {
            return Err(Errno::EAGAIN);
        }
        let len = self.to.allowed(thread, len)?;
        let data = if self.from.may_block() {
            let (file, place) = (self.from.file.clone(), self.from.place());
            let read = move || {
                let mut buf = vec![0; len];
                let count = file.ops().read(&file, &mut buf, place)?;
                buf.truncate(count);
                Ok::<_, Errno>(buf)
            };
            executor.blocking(read).await?
        } else {
            let mut buf = vec![0; len];
            let count = self.from.peek(&mut buf)?;
            buf.truncate(count);
            buf
        };
        let read = data.len();
        if read == 0 {
            return Ok(0);
        }
        let written = if self.to.may_block() {
            let (file, place) = (self.to.file.clone(), self.to.place());
            executor
                .blocking(move || file.ops().write(&file, &data, place))
                .await
                .map(|(written, end)| {
                    match &mut self.to.offset {
                        Some(offset) => *offset = end,
                        None => self.to.file.position.lock().set(end),
                    }
                    written
                })
        } else {
            self.to.write(&data, self.from.in_page(), false)
        };
        self.from.advance(*written.as_ref().unwrap_or(&0), read);
        written
    }

    /// Moves what can be moved now; `done` counts.
    fn round(&mut self, thread: &Thread, done: &mut usize) -> Result<Round, Errno> {
        let mut turn = 0;
        while self.left > 0 {
            match self.piece(thread) {
                Ok(0) => return Ok(Round::Finished),
                Ok(count) => {
                    *done += count;
                    turn += count;
                    self.left = self.left.saturating_sub(count);
                    if turn >= TURN {
                        return Ok(Round::Turn);
                    }
                }
                Err(Errno::EAGAIN) => return Ok(Round::NotReady),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Round::Finished)
    }

    /// Carries the transfer out. `finish` runs at its end, unless it failed.
    pub fn run(
        mut self,
        thread: &Arc<Thread>,
        finish: impl Fn(&Thread, &Transfer) -> Result<(), Errno> + Send + 'static,
    ) -> Sys {
        let pooled = self.from.may_block() || self.to.may_block();
        let mut done = 0;
        if !pooled {
            let round = self.round(thread, &mut done);
            let waits = match (&round, self.until) {
                (Ok(Round::Turn), _) => true,
                (Ok(Round::NotReady), Until::All) => true,
                (Ok(Round::NotReady), Until::Some) => done == 0,
                _ => false,
            };
            if !waits {
                let ready = !matches!(round, Ok(Round::NotReady)) || done > 0;
                let result = round.and(if ready { Ok(()) } else { Err(Errno::EAGAIN) });
                return self.end(thread, done, result, &finish).into();
            }
        }
        let thread = thread.clone();
        Sys::wait(async move {
            let result = self.go_on(&thread, &mut done, pooled).await;
            self.end(&thread, done, result, &finish)
        })
    }

    fn end(
        &self,
        thread: &Arc<Thread>,
        done: usize,
        result: Result<(), Errno>,
        finish: &impl Fn(&Thread, &Transfer) -> Result<(), Errno>,
    ) -> SysResult {
        if done > 0 {
            io::accessed(thread, &self.from.file);
            io::modified(thread, &self.to.file);
        }
        match result {
            Err(errno) if done == 0 => return Err(io::failed_write(thread, errno)),
            // Linux raises the signal even when a part was moved.
            Err(errno @ Errno::EPIPE) => {
                io::failed_write(thread, errno);
            }
            _ => {}
        }
        finish(thread, self)?;
        Ok(done as i64)
    }

    /// Goes on with what did not happen at once.
    async fn go_on(&mut self, thread: &Arc<Thread>, done: &mut usize, pooled: bool) -> Result<(), Errno> {
        while self.left > 0 {
            let round = if pooled {
                match self.pooled_piece(thread).await {
                    Ok(0) => Round::Finished,
                    Ok(count) => {
                        *done += count;
                        self.left = self.left.saturating_sub(count);
                        if self.left == 0 { Round::Finished } else { Round::Turn }
                    }
                    Err(Errno::EAGAIN) => Round::NotReady,
                    Err(errno) => return Err(errno),
                }
            } else {
                self.round(thread, done)?
            };
            match round {
                Round::Finished => return Ok(()),
                Round::Turn if thread.interrupted() => return Ok(()),
                Round::Turn => yield_now().await,
                Round::NotReady if *done > 0 && self.until != Until::All => return Ok(()),
                Round::NotReady if self.until == Until::Now => return Err(Errno::EAGAIN),
                Round::NotReady => match self.wait(thread).await {
                    Ok(()) => {}
                    Err(_) if *done > 0 => return Ok(()),
                    Err(_) => return Err(Errno::ERESTARTSYS),
                },
            }
        }
        Ok(())
    }

    /// Waits until both sides are ready.
    async fn wait(&self, thread: &Arc<Thread>) -> Result<(), Wake> {
        let (from, to) = (&self.from.file, &self.to.file);
        let mut queues = Vec::new();
        queues.extend(self.from.queue().map(|queue| (queue, SOURCE_EVENTS)));
        queues.extend(self.to.queue().map(|queue| (queue, TARGET_EVENTS)));
        let always = PollEvents::HUP | PollEvents::ERR;
        block_on(thread, None, &queues, || {
            let readable = from.ops().poll(from).intersects(SOURCE_EVENTS | always);
            let writable = match pipe_of(to) {
                Some(pipe) => pipe.room() > 0 || pipe.openers().readers == 0,
                None => to.ops().poll(to).intersects(TARGET_EVENTS | always),
            };
            (readable && writable).then_some(())
        })
        .await
    }
}

/// Lets other tasks of the worker run.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
