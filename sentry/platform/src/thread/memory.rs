//! Guest memory, as a thread reaches it: by process_vm_readv(2), or by its stub where that is refused.

use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_stub::layout::{self, Op, answer, op, request};

use super::{Phase, State, Thread};
use crate::AddressSpace;
use crate::ptrace::Command;
use crate::watchdog::{Expected, ROUND, Suspect};

impl Thread {
    /// Copies between `buf` and guest memory by the stub of this stopped thread, without touching what is collected
    /// for its next answer; the number of bytes. For hosts that refuse process_vm_readv(2). The watchdog's
    /// rules hold for the stub.
    pub fn copy_by_stub(&self, addr: u64, buf: *mut u8, len: usize, write: bool) -> usize {
        let Some(me) = self.me.upgrade() else { return 0 };
        let mut done = 0;
        while done < len {
            let (number, offset, chunk) = {
                let mut state = self.state.lock();
                if state.phase != Phase::Stopped {
                    return done;
                }
                let offset = state.data_used.next_multiple_of(8);
                let chunk = (len - done).min(layout::DATA_SIZE.saturating_sub(offset));
                let Some(window) = self.arena().data_window(self.slot, offset, chunk).filter(|_| chunk > 0) else {
                    return done;
                };
                if write {
                    // SAFETY: `window` is `chunk` bytes of the data area, `buf` has `len` bytes.
                    unsafe { std::ptr::copy_nonoverlapping(buf.add(done), window, chunk) };
                }
                let kind = if write { op::COPY_OUT } else { op::COPY_IN };
                let mut a = [0; 7];
                a[..3].copy_from_slice(&[offset as u64, addr + done as u64, chunk as u64]);
                self.arena().set_ops(self.slot, &[Op { kind, flags: 0, a }]);
                state.phase = Phase::Ordering;
                (self.seen(), offset, chunk)
            };
            let mut suspect = Suspect::new(&me, Expected::Copy);
            let head = self.head();
            head.answer_kind.store(answer::CONTINUE, Ordering::Relaxed);
            if let Some(tracer) = &self.core.tracer {
                tracer.send(Command::Orders { thread: me.clone() });
            } else {
                head.answer.store(number, Ordering::SeqCst);
                self.core.sandbox.wake(self.wake_index);
            }
            let mut round = std::time::Instant::now();
            while !self.has_request() {
                if round.elapsed() >= ROUND {
                    round = std::time::Instant::now();
                    if !suspect.look() {
                        break;
                    }
                }
                std::thread::yield_now();
            }
            let mut state = self.state.lock();
            if state.phase != Phase::Ordering || self.take_request(&mut state) != Some(request::DONE) {
                drop(state);
                self.space.kill();
                return done;
            }
            state.phase = Phase::Stopped;
            let copied = usize::try_from(self.arena().op_result(self.slot, 0))
                .unwrap_or(0)
                .min(chunk);
            if !write && let Some(window) = self.arena().data_window(self.slot, offset, copied) {
                // SAFETY: as above; `copied` is at most `chunk`.
                unsafe { std::ptr::copy_nonoverlapping(window, buf.add(done), copied) };
            }
            done += copied;
            if copied < chunk {
                break;
            }
        }
        done
    }

    /// Reads guest memory up to the first fault; the number of bytes.
    pub(super) fn fetch(&self, addr: u64, buf: &mut [u8]) -> usize {
        if addr
            .checked_add(buf.len() as u64)
            .is_none_or(|end| end > self.core.layout.high)
        {
            return 0;
        }
        let done = match self.core.remote_memory {
            true => self.space.read_partial(addr, buf),
            false => 0,
        };
        if done == buf.len() || self.space.is_dead() {
            return done;
        }
        // What process_vm_readv(2) refuses, the guest may be able to read: x86 has no pages that can be written but
        // not read.
        let rest = &mut buf[done..];
        done + self.copy_by_stub(addr + done as u64, rest.as_mut_ptr(), rest.len(), false)
    }

    /// Writes guest memory at once.
    pub(super) fn store(&self, addr: u64, data: &[u8]) -> Result<(), Errno> {
        if self.core.remote_memory {
            return self.space.write(addr, data);
        }
        let done = self.copy_by_stub(addr, data.as_ptr().cast_mut(), data.len(), true);
        if done == data.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    /// Copies bytes to the guest by the data area if there is room: the operation is added.
    pub(super) fn stage(&self, state: &mut State, addr: u64, data: &[u8]) -> bool {
        let offset = state.data_used.next_multiple_of(8);
        if state.ops.len() + 8 >= layout::MAX_OPS || offset + data.len() > layout::DATA_SIZE {
            return false;
        }
        if !self.arena().write(self.slot, layout::DATA_OFFSET + offset, data) {
            return false;
        }
        let mut a = [0; 7];
        a[..3].copy_from_slice(&[offset as u64, addr, data.len() as u64]);
        state.ops.push(Op {
            kind: op::COPY_OUT,
            flags: 0,
            a,
        });
        state.staged.push((addr, offset, data.len()));
        state.data_used = offset + data.len();
        true
    }
}
