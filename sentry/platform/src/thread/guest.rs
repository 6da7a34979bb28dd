//! What the kernel asks of a thread.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use sentry_abi::Errno;
use sentry_stub::layout::{self, Op, answer, op};

use super::{CURRENT_WORKER, Phase, Thread, Wake};
use crate::mailbox::Brought;
use crate::watchdog::Expected;
use crate::{AddressSpace, BoxFuture, ChildStart, Event, GuestThread, Identity, Order, Registers};

/// With less room for what goes to the guest with the answer, a longer read goes another way.
const SHORT_FILE: usize = 16 << 10;

impl GuestThread for Thread {
    fn address_space(&self) -> &Arc<dyn AddressSpace> {
        &self.space_dyn
    }

    fn resume(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            state.phase = Phase::Queued;
            drop(state);
            self.core.workers[CURRENT_WORKER.get()].outbox.lock().push(me);
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Dead => return Poll::Ready(Event::Exited),
            Phase::Running => {}
            _ => {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        let Some(kind) = self.take_request(&mut state) else {
            match &mut state.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        state.phase = Phase::Stopped;
        match self.event(&mut state, kind) {
            Some(event) => Poll::Ready(event),
            None => {
                drop(state);
                self.space.kill();
                Poll::Ready(Event::Exited)
            }
        }
    }

    fn will_block(&self) {
        self.head().blocked.store(self.seen(), Ordering::Relaxed);
    }

    fn set_result(&self, value: i64) {
        self.state.lock().result = Some(value);
    }

    fn registers(&self) -> Registers {
        let state = self.state.lock();
        let mut registers = state.guest.registers(self.arena(), state.fs_base, state.gs_base);
        if let Some(result) = state.result {
            registers.rax = result as u64;
        }
        registers
    }

    fn set_registers(&self, registers: &Registers) {
        let mut state = self.state.lock();
        state.guest.set_registers(self.arena(), registers);
        state.result = None;
        if state.guest.traced().is_some() {
            return;
        }
        for (new, old, kind) in [
            (registers.fs_base, state.fs_base, op::SET_FS),
            (registers.gs_base, state.gs_base, op::SET_GS),
        ] {
            if new != old {
                state.ops.push(Op {
                    kind,
                    flags: 0,
                    a: [new, 0, 0, 0, 0, 0, 0],
                });
            }
        }
        state.fs_base = registers.fs_base;
        state.gs_base = registers.gs_base;
    }

    fn xstate(&self) -> Vec<u8> {
        self.fetch_xstate();
        self.state.lock().guest.xstate(self.arena())
    }

    fn set_xstate(&self, xstate: &[u8]) -> Result<(), Errno> {
        self.fetch_xstate();
        self.state.lock().guest.set_xstate(self.arena(), xstate)
    }

    fn reset_xstate(&self) {
        self.fetch_xstate();
        self.state.lock().guest.reset_xstate(self.arena());
    }

    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let state = self.state.lock();
        let end = addr.checked_add(buf.len() as u64).ok_or(Errno::EFAULT)?;
        for Brought {
            addr: start,
            len,
            offset,
        } in state.prefetch
        {
            if addr >= start && end <= start + len as u64 && len > 0 {
                self.arena()
                    .read(self.slot, layout::DATA_OFFSET + offset + (addr - start) as usize, buf);
                return Ok(());
            }
        }
        let staged = state.staged.clone();
        drop(state);
        if self.fetch(addr, buf) != buf.len() {
            return Err(Errno::EFAULT);
        }
        // What this call has written but the stub has not copied yet.
        for (start, offset, len) in staged {
            let (from, to) = (addr.max(start), end.min(start + len as u64));
            if from < to {
                let part = &mut buf[(from - addr) as usize..(to - addr) as usize];
                self.arena()
                    .read(self.slot, layout::DATA_OFFSET + offset + (from - start) as usize, part);
            }
        }
        Ok(())
    }

    fn read_partial(&self, addr: u64, buf: &mut [u8]) -> usize {
        self.fetch(addr, buf)
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Errno> {
        let end = addr.checked_add(data.len() as u64).ok_or(Errno::EFAULT)?;
        if end > self.core.layout.high {
            return Err(Errno::EFAULT);
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped && data.len() <= layout::DATA_SIZE / 2 && self.stage(&mut state, addr, data) {
            return Ok(());
        }
        drop(state);
        self.store(addr, data)
    }

    fn read_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno> {
        if addr
            .checked_add(len as u64)
            .is_none_or(|end| end > self.core.layout.high)
        {
            return Err(Errno::EFAULT);
        }
        let mut state = self.state.lock();
        let start = state.data_used.next_multiple_of(64);
        let room = layout::DATA_SIZE.saturating_sub(start);
        // Most files are shorter than the buffers of those who read them. A read that is cut ends with a page.
        let first = if len <= room {
            len
        } else {
            let beyond = (offset.unsigned_abs() as usize).wrapping_add(room) % sentry_abi::PAGE_SIZE as usize;
            // Nothing where not even one page fits.
            room.saturating_sub(beyond)
        };
        if (first == len || first >= SHORT_FILE) && state.ops.len() + 8 < layout::MAX_OPS {
            let window = self.arena().data_window(self.slot, start, first).ok_or(Errno::EFAULT)?;
            let count = read_at(fd, window, first, offset, flags)?;
            if count > 0 {
                let mut a = [0; 7];
                a[..3].copy_from_slice(&[start as u64, addr, count as u64]);
                state.ops.push(Op {
                    kind: op::COPY_OUT,
                    flags: 0,
                    a,
                });
                state.staged.push((addr, start, count));
                state.data_used = start + count;
            }
            return Ok(count);
        }
        drop(state);
        let mut buf = vec![0; len.min(1 << 20)];
        let count = read_at(fd, buf.as_mut_ptr(), buf.len(), offset, flags)?;
        self.store(addr, &buf[..count])?;
        Ok(count)
    }

    fn write_file(&self, fd: BorrowedFd<'_>, offset: i64, addr: u64, len: usize, flags: i32) -> Result<usize, Errno> {
        let mut buf = vec![0; len.min(1 << 20)];
        if self.read(addr, &mut buf).is_err() {
            let count = self.fetch(addr, &mut buf);
            if count == 0 && len > 0 {
                return Err(Errno::EFAULT);
            }
            buf.truncate(count);
        }
        let iov = libc::iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        // SAFETY: the vector names `buf`, which the call only reads.
        let count = unsafe { libc::pwritev2(fd.as_raw_fd(), &iov, 1, offset, flags) };
        if count < 0 {
            Err(Errno::from(std::io::Error::last_os_error()))
        } else {
            Ok(count as usize)
        }
    }

    fn run<'a>(&'a self, orders: &'a [Order<'a>], fds: &'a [BorrowedFd<'a>]) -> BoxFuture<'a, Result<Vec<i64>, Errno>> {
        Box::pin(self.run_orders(orders, fds))
    }

    fn fork(&self, start: ChildStart) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async move { Ok(self.fork_process(start).await? as Arc<dyn GuestThread>) })
    }

    fn spawn(&self, start: ChildStart, tid: u32) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async move { Ok(self.spawn_thread(start, tid).await? as Arc<dyn GuestThread>) })
    }

    fn set_identity(&self, identity: Identity) {
        self.store_identity(identity);
    }

    fn read_string(&self, addr: u64, max: usize) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        {
            let state = self.state.lock();
            for Brought {
                addr: start,
                len,
                offset,
            } in state.prefetch
            {
                if addr == start && len > 0 {
                    text.resize(len.min(max + 1), 0);
                    self.arena().read(self.slot, layout::DATA_OFFSET + offset, &mut text);
                    break;
                }
            }
        }
        let mut seen = 0;
        loop {
            if let Some(end) = text[seen..].iter().position(|byte| *byte == 0) {
                text.truncate(seen + end);
                return Ok(text);
            }
            seen = text.len();
            if text.len() > max {
                return Err(Errno::ENAMETOOLONG);
            }
            // Most strings are short, and some end before an unmapped page: a little within the page, then to its end,
            // then the more the longer it is.
            let from = addr.checked_add(text.len() as u64).ok_or(Errno::EFAULT)?;
            let page = 4096 - (from % 4096) as usize;
            let old = text.len();
            let more = match old {
                0..256 => page.min(256),
                256..4096 => page,
                _ => page + (old / 4096) * 4096,
            };
            // Not beyond what guests can have: there nothing would be read at all.
            let there = usize::try_from(self.core.layout.high.saturating_sub(from)).unwrap_or(usize::MAX);
            text.resize(old + more.min(there).min(max + 1 - old), 0);
            let got = self.fetch(from, &mut text[old..]);
            text.truncate(old + got);
            if got == 0 {
                return Err(Errno::EFAULT);
            }
        }
    }

    fn waits_locally(&self) -> bool {
        self.head().waiting.load(Ordering::Relaxed) == 1
    }

    fn set_tid(&self, tid: u32) {
        self.head().tid.store(tid, Ordering::Relaxed);
    }

    fn set_affinity(&self, processors: &[u32]) {
        let tid = self.host_tid();
        // 0 would be the worker itself.
        if tid != 0 {
            self.pinned.store(true, Ordering::Relaxed);
            crate::handoff::set_affinity(tid, processors);
        }
    }

    fn kick(&self) {
        if self.interrupt()
            && let Some(me) = self.me.upgrade()
        {
            self.core.watchdog.expect(&me, Expected::Kick);
        }
    }

    fn exit(&self) {
        let Some(me) = self.me.upgrade() else { return };
        {
            let mut state = self.state.lock();
            if state.phase != Phase::Stopped {
                return;
            }
            state.phase = Phase::Ordering;
            state.ops.push(Op {
                kind: op::EXIT,
                flags: 0,
                a: [0; 7],
            });
        }
        me.publish(answer::CONTINUE, Vec::new(), Wake::Anywhere);
        self.mark_dead();
        self.space.release_slot(self.slot);
    }
}

fn read_at(fd: BorrowedFd<'_>, to: *mut u8, len: usize, offset: i64, flags: i32) -> Result<usize, Errno> {
    let iov = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    // SAFETY: the vector names `len` bytes at `to`, which the caller owns (or shares with a guest as raw bytes).
    let count = unsafe { libc::preadv2(fd.as_raw_fd(), &iov, 1, offset, flags) };
    if count < 0 {
        Err(Errno::from(std::io::Error::last_os_error()))
    } else {
        Ok(count as usize)
    }
}
