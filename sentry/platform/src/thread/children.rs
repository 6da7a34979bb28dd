//! New processes and threads: the stub makes them, the sentry finds out whether it told the truth.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_stub::layout::{self, Op, op, request};

use super::{Phase, Thread};
use crate::arena::Arena;
use crate::context::Guest;
use crate::core::is_child;
use crate::space::Space;
use crate::{AddressSpace, ChildStart};

impl Thread {
    /// Fills in the head of a child's slot so that its stub, once there, waits for our answer.
    fn prepare_child(
        &self,
        arena: &Arena,
        slot: usize,
        wake_index: u32,
        start: ChildStart,
    ) -> Result<(u64, Guest), Errno> {
        let guest = self.state.lock().guest.clone();
        let frame = match &guest {
            Guest::Unknown => return Err(Errno::ESRCH),
            Guest::Frame(frame) => Some(frame.copy_for_child(self.arena(), arena, slot).ok_or(Errno::ESRCH)?),
            Guest::Traced(_) => None,
        };
        let (head, parent) = (arena.slot(slot), self.head());
        let relaxed = Ordering::Relaxed;
        head.request.store(1, relaxed);
        head.answer.store(0, relaxed);
        head.blocked.store(0, relaxed);
        head.kicked.store(0, relaxed);
        head.in_vdso.store(0, relaxed);
        head.sleeping.store(0, relaxed);
        head.restart_rip.store(0, relaxed);
        head.received_count.store(0, relaxed);
        head.alive.store(1, relaxed);
        head.kind.store(request::SYSCALL, relaxed);
        head.frame.store(frame.map_or(0, |frame| frame.address(arena)), relaxed);
        head.wake_index.store(wake_index, relaxed);
        head.worker.store(parent.worker.load(relaxed), relaxed);
        for (to, from) in [
            (&head.tid, &parent.tid),
            (&head.pid, &parent.pid),
            (&head.uid, &parent.uid),
            (&head.euid, &parent.euid),
            (&head.gid, &parent.gid),
            (&head.egid, &parent.egid),
        ] {
            to.store(from.load(relaxed), relaxed);
        }
        head.local.store(u32::from(self.space.local_calls()), relaxed);
        let Some(frame) = frame else {
            return Ok((
                arena.slot_address(slot) + layout::SLOT_SIZE as u64 - 256,
                Guest::Unknown,
            ));
        };
        let mut registers = frame.registers(arena, 0, 0);
        registers.rsp = start.stack.unwrap_or(registers.rsp);
        // The child's first way to the guest must be rt_sigreturn, which sets its alternate stack: the stub takes the
        // short one only where rcx is rip. (A system call does not keep rcx.)
        registers.rcx = 0;
        frame.set_registers(arena, &registers);
        // The child's own stack begins below the frame.
        Ok(((frame.address(arena) - 8 - 256) & !15, Guest::Frame(frame)))
    }

    /// The registers of a new child: as prepared, or (ptrace) a copy of this thread's.
    fn child_guest(&self, prepared: Guest, start: ChildStart) -> Guest {
        if prepared.is_known() {
            return prepared;
        }
        let mut guest = self.state.lock().guest.clone();
        if let Some(traced) = guest.traced() {
            traced.registers.rax = 0;
            traced.registers.rsp = start.stack.unwrap_or(traced.registers.rsp);
            traced.registers.fs_base = start.tls.unwrap_or(traced.registers.fs_base);
            traced.dirty = true;
            traced.xstate_dirty = true;
        }
        guest
    }

    /// Finishes a child's thread object.
    fn adopt_child(&self, child: &Arc<Thread>, start: ChildStart, inherits_fs: bool) {
        let (fs_base, gs_base) = {
            let state = self.state.lock();
            (state.fs_base, state.gs_base)
        };
        let mut state = child.state.lock();
        if state.guest.traced().is_some() {
            return;
        }
        state.fs_base = start.tls.unwrap_or(fs_base);
        state.gs_base = gs_base;
        if start.tls.is_some() || !inherits_fs {
            let a = [state.fs_base, 0, 0, 0, 0, 0, 0];
            state.ops.push(Op {
                kind: op::SET_FS,
                flags: 0,
                a,
            });
        }
        if !inherits_fs && gs_base != 0 {
            state.ops.push(Op {
                kind: op::SET_GS,
                flags: 0,
                a: [gs_base, 0, 0, 0, 0, 0, 0],
            });
        }
    }

    /// Forks this thread's process.
    pub async fn fork_process(&self, start: ChildStart) -> Result<Arc<Thread>, Errno> {
        let made = Arena::new(self.core.arena_base)
            .and_then(|arena| Ok((arena, sentry_host::scm::packet_pair().map_err(Errno::from)?)));
        // As fork(2) says it.
        let ((arena, memfd), (ours, theirs)) = made.map_err(|error| match error {
            Errno::EMFILE | Errno::ENFILE => Errno::EAGAIN,
            error => error,
        })?;
        let wake_index = self.core.sandbox.take_wake_index()?;
        let result = self.fork_into(arena, memfd, ours, theirs, wake_index, start).await;
        if result.is_err() {
            self.core.sandbox.release_wake_index(wake_index);
        }
        result
    }

    async fn fork_into(
        &self,
        arena: Arena,
        memfd: OwnedFd,
        ours: OwnedFd,
        theirs: OwnedFd,
        wake_index: u32,
        start: ChildStart,
    ) -> Result<Arc<Thread>, Errno> {
        let guard = self.send_descriptors(&[memfd.as_fd(), theirs.as_fd()]).await?;
        drop((memfd, theirs));
        let (rsp, prepared) = self.prepare_child(&arena, self.slot, wake_index, start)?;
        let (from, to) = (self.arena().header(), arena.header());
        to.control_fd
            .store(from.control_fd.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_start
            .store(from.brk_start.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_end
            .store(from.brk_end.load(Ordering::Relaxed), Ordering::Relaxed);
        to.brk_limit
            .store(from.brk_limit.load(Ordering::Relaxed), Ordering::Relaxed);
        self.push_op(op::FORK, 0, &[rsp]);
        self.push_op(op::CLOSE, 0, &[]);
        self.watch_orders();
        let mut results = self.exchange(3).await?;
        drop(guard);
        self.host_says(&mut results[1]);
        if results[0] != 0 {
            self.space.kill();
            return Err(Errno::ESRCH);
        }
        if results[1] < 0 {
            return Err(Errno::from_raw(-results[1].max(-4095) as i32));
        }
        let space = Space::new(&self.core, arena, self.core.controls.add(ours), self.slot);
        let pid = u32::try_from(results[1])
            .ok()
            .filter(|pid| self.verify_child(*pid))
            .ok_or(Errno::EAGAIN);
        let Ok(pid) = pid.and_then(|pid| {
            if self.core.enter(pid, &space) {
                Ok(pid)
            } else {
                Err(Errno::EAGAIN)
            }
        }) else {
            // A false claim: the process that made it ends, and whatever it really forked with it (its group).
            self.space.kill();
            return Err(Errno::EAGAIN);
        };
        // SAFETY: moves a child of ours, which has not called exec, to a group of its own.
        unsafe { libc::setpgid(pid as libc::pid_t, pid as libc::pid_t) };
        space.set_pid(pid);
        if !self.space.local_calls() {
            space.set_local_calls(false);
        }
        let guest = self.child_guest(prepared, start);
        let child = Thread::new(&self.core, &space, self.slot, wake_index, 1, guest);
        child.host_tid.store(pid, Ordering::Relaxed);
        self.adopt_child(&child, start, true);
        Ok(child)
    }

    /// ptrace: the host tells the tracer who the child is; the stub's claim does not count.
    fn host_says(&self, result: &mut i64) {
        if self.core.tracer.is_some() && *result > 0 {
            *result = self
                .state
                .lock()
                .made
                .take()
                .map_or(-i64::from(libc::EAGAIN), i64::from);
        }
    }

    /// True if a pid that the stub claims is really its new child: ours, unknown, and in this process's group.
    fn verify_child(&self, pid: u32) -> bool {
        // SAFETY: asks for a process group; no memory involved.
        let group = unsafe { libc::getpgid(pid as libc::pid_t) };
        let mine = self.space.pid() as libc::pid_t;
        pid > 1 && is_child(pid) && !self.core.knows(pid) && (group == mine || group < 0)
    }

    pub(super) async fn spawn_thread(&self, start: ChildStart, tid: u32) -> Result<Arc<Thread>, Errno> {
        let slot = self.space.take_slot()?;
        let wake_index = match self.core.sandbox.take_wake_index() {
            Ok(index) => index,
            Err(error) => {
                self.arena().slot(slot).alive.store(0, Ordering::Relaxed);
                self.space.release_slot(slot);
                return Err(error);
            }
        };
        let (rsp, prepared) = self.prepare_child(self.arena(), slot, wake_index, start)?;
        self.arena().slot(slot).tid.store(tid, Ordering::Relaxed);
        self.push_op(op::THREAD, 0, &[rsp]);
        let mut result = self.exchange(1).await?[0];
        self.host_says(&mut result);
        let guest = self.child_guest(prepared, start);
        let child = Thread::new(&self.core, &self.space, slot, wake_index, 1, guest);
        let result = match result {
            host_tid if host_tid > 0 => {
                child.host_tid.store(host_tid as u32, Ordering::Relaxed);
                self.adopt_child(&child, start, false);
                return Ok(child);
            }
            error => Errno::from_raw(-error.max(-4095) as i32),
        };
        child.state.lock().phase = Phase::Dead;
        self.arena().slot(slot).alive.store(0, Ordering::Relaxed);
        self.space.release_slot(slot);
        Err(result)
    }
}
