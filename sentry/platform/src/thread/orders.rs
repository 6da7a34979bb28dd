//! Orders to a stopped stub: operations are collected, sent and answered.

use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use sentry_abi::Errno;
use sentry_stub::layout::{self, Op, answer, op, request};

use super::{Phase, Thread, Wake};
use crate::async_lock::AsyncGuard;
use crate::control::MAX_FDS;
use crate::watchdog::Expected;
use crate::{AddressSpace, Order};

impl Thread {
    /// Sends CONTINUE with the collected operations and waits for DONE; the results of the last `count`.
    pub(super) async fn exchange(&self, count: usize) -> Result<Vec<i64>, Errno> {
        let me = self.me.upgrade().ok_or(Errno::ESRCH)?;
        let first = {
            let mut state = self.state.lock();
            if state.phase != Phase::Stopped {
                return Err(Errno::ESRCH);
            }
            state.phase = Phase::Ordering;
            state.ops.len() - count
        };
        me.publish(answer::CONTINUE, Vec::new(), Wake::Near);
        let done = poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase == Phase::Dead {
                return Poll::Ready(false);
            }
            match self.take_request(&mut state) {
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                Some(kind) => {
                    state.phase = Phase::Stopped;
                    Poll::Ready(kind == request::DONE)
                }
            }
        })
        .await;
        if !done {
            self.space.kill();
            return Err(Errno::ESRCH);
        }
        let mut state = self.state.lock();
        state.ops.clear();
        state.staged.clear();
        state.data_used = 0;
        state.prefetch = Default::default();
        Ok((first..first + count)
            .map(|index| self.arena().op_result(self.slot, index))
            .collect())
    }

    pub(super) fn push_op(&self, kind: u32, flags: u32, args: &[u64]) {
        let mut a = [0; 7];
        a[..args.len()].copy_from_slice(args);
        self.state.lock().ops.push(Op { kind, flags, a });
    }

    fn room_for_ops(&self) -> usize {
        (layout::MAX_OPS - 8).saturating_sub(self.state.lock().ops.len())
    }

    /// Sends descriptors to the stub, which are received by the next operation.
    pub(super) async fn send_descriptors<'a>(&'a self, fds: &[BorrowedFd<'_>]) -> Result<AsyncGuard<'a>, Errno> {
        let guard = self.space.descriptor_order.lock().await;
        poll_fn(|cx| self.try_send(fds, cx)).await?;
        self.push_op(op::RECEIVE, 0, &[fds.len() as u64]);
        Ok(guard)
    }

    /// Sends descriptors. If too many of this host user are on their way (unix(7), `ETOOMANYREFS`), that is the doing
    /// of other stubs, which the watchdog will end: tries again later.
    fn try_send(&self, fds: &[BorrowedFd<'_>], cx: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        if self.state.lock().phase != Phase::Stopped {
            return Poll::Ready(Err(Errno::ESRCH));
        }
        match self.space.control.send(b'd', fds) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(Errno::ETOOMANYREFS) => {
                self.core.watchdog.wake_later(cx.waker());
                Poll::Pending
            }
            Err(_) => {
                self.space.kill();
                Poll::Ready(Err(Errno::ESRCH))
            }
        }
    }

    pub(super) fn watch_orders(&self) {
        if let Some(me) = self.me.upgrade() {
            self.core.watchdog.expect(&me, Expected::Orders);
        }
    }

    /// Turns one order into an operation; `Err` with the result it has without being run.
    fn add_order(&self, order: &Order<'_>) -> Result<(), i64> {
        let inside = |addr: u64, len: u64| addr.checked_add(len).is_some_and(|end| end <= self.core.layout.high);
        let call = |nr: i64, flags: u32, args: [u64; 6]| {
            self.push_op(
                op::CALL,
                flags,
                &[nr as u64, args[0], args[1], args[2], args[3], args[4], args[5]],
            );
            Ok(())
        };
        let invalid = Err(-i64::from(libc::EINVAL));
        match *order {
            Order::Mmap {
                addr,
                len,
                prot,
                flags,
                fd,
                offset,
            } => {
                if !inside(addr, len) {
                    return Err(-i64::from(libc::ENOMEM));
                }
                let (index, argument) = fd.map_or((u64::MAX, 0), |index| (index as u64, 5));
                call(
                    libc::SYS_mmap,
                    argument,
                    [addr, len, prot as u64, flags as u64, index, offset],
                )
            }
            Order::Munmap { addr, len } if inside(addr, len) => call(libc::SYS_munmap, 0, [addr, len, 0, 0, 0, 0]),
            Order::Mprotect { addr, len, prot } if inside(addr, len) => {
                call(libc::SYS_mprotect, 0, [addr, len, prot as u64, 0, 0, 0])
            }
            Order::Mremap {
                addr,
                old_len,
                new_len,
                flags,
                new_addr,
            } if inside(addr, old_len) && inside(new_addr, new_len) && inside(addr, new_len) => {
                call(libc::SYS_mremap, 0, [addr, old_len, new_len, flags as u64, new_addr, 0])
            }
            Order::Madvise { addr, len, advice } if inside(addr, len) => {
                call(libc::SYS_madvise, 0, [addr, len, advice as u64, 0, 0, 0])
            }
            Order::Zero { addr, len } if inside(addr, len) => {
                self.push_op(op::ZERO, 0, &[addr, len]);
                Ok(())
            }
            Order::CompareExchange { addr, old, new } if inside(addr, 4) && addr.is_multiple_of(4) => {
                self.push_op(op::CMPXCHG, 0, &[addr, old.into(), new.into()]);
                Ok(())
            }
            Order::Write { addr, data } if inside(addr, data.len() as u64) => {
                let mut state = self.state.lock();
                let staged = self.stage(&mut state, addr, data);
                debug_assert!(staged, "room was made before");
                Ok(())
            }
            Order::FutexWake { addr, count } if inside(addr, 4) => {
                call(
                    libc::SYS_futex,
                    0,
                    [addr, libc::FUTEX_WAKE as u64 | 128, count.into(), 0, 0, 0],
                )?;
                call(
                    libc::SYS_futex,
                    0,
                    [addr, libc::FUTEX_WAKE as u64, count.into(), 0, 0, 0],
                )
            }
            _ => invalid,
        }
    }

    fn order_cost(order: &Order<'_>) -> (usize, usize) {
        match order {
            Order::Write { data, .. } => (1, data.len() + 8),
            Order::FutexWake { .. } => (2, 0),
            _ => (1, 0),
        }
    }

    pub(super) async fn run_orders(&self, orders: &[Order<'_>], fds: &[BorrowedFd<'_>]) -> Result<Vec<i64>, Errno> {
        let mut results = Vec::with_capacity(orders.len());
        if fds.len() > MAX_FDS {
            return Err(Errno::E2BIG);
        }
        let mut guard = None;
        if !fds.is_empty() {
            if self.room_for_ops() < 8 {
                self.exchange(0).await?;
            }
            guard = Some(self.send_descriptors(fds).await?);
            self.watch_orders();
        }
        // (number of operations, or the result of an order that is not run)
        let mut batch: Vec<Result<usize, i64>> = Vec::new();
        let mut next = orders.iter().peekable();
        loop {
            let fits = next.peek().is_some_and(|order| {
                let (ops, data) = Self::order_cost(order);
                self.room_for_ops() > ops && self.state.lock().data_used + data <= layout::DATA_SIZE
            });
            if fits {
                let Some(order) = next.next() else { break };
                batch.push(self.add_order(order).map(|()| Self::order_cost(order).0));
                continue;
            }
            let last = next.peek().is_none();
            if !last && batch.is_empty() && self.state.lock().ops.is_empty() {
                // A single order that can never fit.
                return Err(Errno::E2BIG);
            }
            let mut count: usize = batch.iter().flatten().sum();
            if last && guard.is_some() {
                self.push_op(op::CLOSE, 0, &[]);
                count += 1;
            }
            let raw = self.exchange(count).await?;
            let mut index = 0;
            for item in batch.drain(..) {
                match item {
                    Ok(ops) => {
                        results.push(raw[index]);
                        index += ops;
                    }
                    Err(result) => results.push(result),
                }
            }
            if last {
                break;
            }
        }
        // A copy that fell short faulted.
        for (result, order) in results.iter_mut().zip(orders) {
            let want = match order {
                Order::Write { data, .. } => data.len() as i64,
                Order::Zero { len, .. } => *len as i64,
                _ => continue,
            };
            if *result >= 0 {
                *result = if *result == want { 0 } else { -i64::from(libc::EFAULT) };
            }
        }
        drop(guard);
        Ok(results)
    }
}
