//! Making threads and processes.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

use bitflags::bitflags;
use sentry_abi::Errno;
use sentry_platform::{ChildStart, GuestThread, Identity, Order, Registers};
use sentry_vfs::cred::Cap;

use super::thread::NewThread;
use super::{Pid, Process, Resource, RunState, Thread, run};
use crate::signal::AltStack;
use crate::syscalls::SysResult;
use crate::time::cpu;

bitflags! {
    /// `CLONE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CloneFlags: u64 {
        /// A new time namespace.
        const NEWTIME = 0x80;
        /// Share memory.
        const VM = 0x100;
        /// Share root, working directory and umask.
        const FS = 0x200;
        /// Share the descriptor table.
        const FILES = 0x400;
        /// Share signal actions.
        const SIGHAND = 0x800;
        /// Give a pidfd.
        const PIDFD = 0x1000;
        /// Be traced too.
        const PTRACE = 0x2000;
        /// Wait for the child to execute or end.
        const VFORK = 0x4000;
        /// Be a sibling.
        const PARENT = 0x8000;
        /// Be a thread of the same process.
        const THREAD = 0x1_0000;
        /// A new mount namespace.
        const NEWNS = 0x2_0000;
        /// Share System V semaphore undo lists.
        const SYSVSEM = 0x4_0000;
        /// Set the fs base.
        const SETTLS = 0x8_0000;
        /// Write the id in the parent.
        const PARENT_SETTID = 0x10_0000;
        /// Clear the id at the end.
        const CHILD_CLEARTID = 0x20_0000;
        /// Ignored.
        const DETACHED = 0x40_0000;
        /// Ignored.
        const UNTRACED = 0x80_0000;
        /// Write the id in the child.
        const CHILD_SETTID = 0x100_0000;
        /// A new cgroup namespace.
        const NEWCGROUP = 0x200_0000;
        /// A new UTS namespace.
        const NEWUTS = 0x400_0000;
        /// A new IPC namespace.
        const NEWIPC = 0x800_0000;
        /// A new user namespace.
        const NEWUSER = 0x1000_0000;
        /// A new PID namespace.
        const NEWPID = 0x2000_0000;
        /// A new network namespace.
        const NEWNET = 0x4000_0000;
        /// Share the I/O context.
        const IO = 0x8000_0000;
        /// Set caught signals to the default.
        const CLEAR_SIGHAND = 0x1_0000_0000;
        /// Start in another cgroup.
        const INTO_CGROUP = 0x2_0000_0000;
        /// All namespaces.
        const NAMESPACES = Self::NEWTIME.bits() | Self::NEWNS.bits() | Self::NEWCGROUP.bits() | Self::NEWUTS.bits()
            | Self::NEWIPC.bits() | Self::NEWUSER.bits() | Self::NEWPID.bits() | Self::NEWNET.bits();
    }
}

/// What clone(2) and clone3(2) ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArgs {
    /// What is shared.
    pub flags: CloneFlags,
    /// The signal at the child's end; 0 for none.
    pub exit_signal: i32,
    /// The child's stack pointer, if not the parent's.
    pub stack: Option<u64>,
    /// The child's fs base, with `SETTLS`.
    pub tls: u64,
    /// Where the child's id is written in the parent's memory.
    pub parent_tid: u64,
    /// Where the child's id is written in its own memory, and cleared at its end.
    pub child_tid: u64,
    /// Where the pidfd is written.
    pub pidfd: u64,
    /// The id that the child gets, if not just any.
    pub tid: Option<Pid>,
}

/// A vfork parent's wait for its child to execute a program or to end.
pub(crate) struct VforkDone {
    state: AtomicU8,
    parent: Arc<Thread>,
}

const WAITING: u8 = 0;
const DONE: u8 = 1;
const PARENT_GONE: u8 = 2;

impl VforkDone {
    fn new(parent: &Arc<Thread>) -> Arc<VforkDone> {
        Arc::new(VforkDone {
            state: AtomicU8::new(WAITING),
            parent: parent.clone(),
        })
    }

    /// The child no longer needs the parent's memory and host thread. True if the parent takes the host thread
    /// back; false if the parent has died, so that it is the child's to end.
    pub(crate) fn finish(&self) -> bool {
        if self
            .state
            .compare_exchange(WAITING, DONE, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return false;
        }
        self.parent.notify_task();
        true
    }
}

/// Undoes the parent's side of a vfork: when the child is done, or when the parent is killed in the wait.
struct VforkWait {
    link: Arc<VforkDone>,
    borrowed: bool,
}

impl Drop for VforkWait {
    fn drop(&mut self) {
        let gone = self
            .link
            .state
            .compare_exchange(WAITING, PARENT_GONE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if self.borrowed && !gone {
            self.link.parent.lent.store(false, Ordering::SeqCst);
        }
    }
}

fn check(thread: &Arc<Thread>, args: &CloneArgs) -> Result<(), Errno> {
    use CloneFlags as F;
    let has = |flags: F| args.flags.contains(flags);
    let invalid = (has(F::THREAD) && !has(F::SIGHAND))
        || (has(F::SIGHAND) && !has(F::VM))
        || (has(F::CLEAR_SIGHAND) && has(F::SIGHAND))
        || (has(F::FS) && args.flags.intersects(F::NEWNS | F::NEWUSER))
        || (has(F::THREAD) && args.flags.intersects(F::NEWUSER | F::NEWPID))
        || (has(F::PARENT) && thread.pid() == 1)
        || (has(F::PIDFD) && has(F::DETACHED));
    if invalid {
        return Err(Errno::EINVAL);
    }
    check_namespaces(thread, args.flags)?;
    thread.kernel().check_pids(thread)?;
    if !has(F::THREAD) {
        let limit = thread.limit(Resource::NPROC).current;
        let count = thread.kernel().tasks.read().process_count() as u64;
        if count >= limit && thread.cred().uid != 0 {
            return Err(Errno::EAGAIN);
        }
    }
    Ok(())
}

/// Which namespaces may be made: mounts and host names, by the privileged. `EPERM` for all others.
pub(crate) fn check_namespaces(thread: &Thread, flags: CloneFlags) -> Result<(), Errno> {
    let made = CloneFlags::NEWNS | CloneFlags::NEWUTS;
    let other = flags & CloneFlags::NAMESPACES & !made;
    if !other.is_empty() {
        crate::gap!(thread.kernel(), "new namespaces {:#x}", other.bits());
        return Err(Errno::EPERM);
    }
    if flags.intersects(made) {
        thread.cred().require(Cap::SYS_ADMIN)?;
    }
    Ok(())
}

/// clone(2): makes a thread or a process; its id.
pub(crate) async fn clone(thread: Arc<Thread>, args: CloneArgs) -> SysResult {
    use CloneFlags as F;
    check(&thread, &args)?;
    // As on Linux: a signal that is due comes first, so that it reaches parent and child in a known order.
    if thread.interrupted() {
        return Err(Errno::ERESTARTNOINTR);
    }
    // A child is made whole or not at all.
    let shield = thread.shield();
    let kernel = thread.kernel().clone();
    let tid = match args.tid {
        Some(tid) => kernel.tasks.write().reserve(tid)?,
        None => kernel.tasks.write().allocate()?,
    };
    let borrowed = args.flags.contains(F::VM | F::VFORK) && !args.flags.contains(F::THREAD);
    let start = ChildStart {
        stack: args.stack,
        tls: args.flags.contains(F::SETTLS).then_some(args.tls),
    };
    if !args.flags.contains(F::THREAD) {
        // The child will execute a program, as likely as not.
        kernel.platform().prepare_process();
    }
    let parent_guest = thread.guest();
    let (guest, saved) = if borrowed {
        let saved = Saved {
            registers: parent_guest.registers(),
            xstate: parent_guest.xstate(),
        };
        (parent_guest.clone(), Some(saved))
    } else if args.flags.contains(F::VM) {
        (parent_guest.spawn(start, tid as u32).await?, None)
    } else {
        let guest = parent_guest.fork(start).await?;
        guest.set_tid(tid as u32);
        (guest, None)
    };

    let child = match build(&thread, &args, tid, guest.clone()) {
        Ok(child) => child,
        Err(errno) => {
            if !borrowed {
                guest.exit();
            }
            return Err(errno);
        }
    };
    if let Err(errno) = write_ids(&thread, &child, &args, &guest).await {
        // Nobody has seen it yet.
        discard(&child, borrowed);
        return Err(errno);
    }
    child.publish_identity_as_child(args.flags.contains(F::VM));
    if !borrowed {
        child.apply_affinity();
    }

    if !args.flags.contains(F::VFORK) {
        run::start(child);
        return Ok(i64::from(tid));
    }

    let link = VforkDone::new(&thread);
    *child.vfork.lock() = Some(link.clone());
    child.borrows.store(borrowed, Ordering::SeqCst);
    if borrowed {
        thread.lent.store(true, Ordering::SeqCst);
        let mut registers = saved.as_ref().map(|saved| saved.registers).unwrap_or_default();
        registers.rax = 0;
        if let Some(stack) = start.stack {
            registers.rsp = stack;
        }
        if let Some(tls) = start.tls {
            registers.fs_base = tls;
        }
        guest.set_registers(&registers);
        guest.set_tid(tid as u32);
        cpu::share_space(child.process());
    }
    let wait = VforkWait {
        link: link.clone(),
        borrowed,
    };
    thread.set_state(RunState::Vfork);
    run::start(child);
    drop(shield);
    poll_fn(|_| {
        if link.state.load(Ordering::SeqCst) == WAITING {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    drop(wait);
    if let Some(saved) = saved {
        guest.set_registers(&saved.registers);
        // It is what the platform itself gave.
        let _ = guest.set_xstate(&saved.xstate);
        guest.set_tid(thread.tid() as u32);
        guest.set_identity(thread.identity());
    }
    Ok(i64::from(tid))
}

struct Saved {
    registers: Registers,
    xstate: Vec<u8>,
}

/// Makes the kernel's side of the child and puts it into the tables.
fn build(thread: &Arc<Thread>, args: &CloneArgs, tid: Pid, guest: Arc<dyn GuestThread>) -> Result<Arc<Thread>, Errno> {
    use CloneFlags as F;
    let has = |flags: F| args.flags.contains(flags);
    let kernel = thread.kernel();
    let parent = thread.process();
    let process = if has(F::THREAD) {
        parent.clone()
    } else {
        let actions = parent.actions();
        let actions = match () {
            () if has(F::SIGHAND) => actions,
            () if has(F::CLEAR_SIGHAND) => Arc::new(actions.after_exec()),
            () => Arc::new(actions.fork()),
        };
        let mm = if has(F::VM) {
            parent.mm()
        } else {
            parent.mm().fork(guest.address_space().clone())
        };
        let child = Process::new(tid, actions, mm, parent.limits.read().clone());
        crate::time::limit::watch(kernel, &child);
        child.inherit(parent);
        if !crate::mm::local_calls_allowed(kernel, &child) {
            guest.address_space().set_local_calls(false);
        }
        child
    };
    let fs = match () {
        () if has(F::NEWNS) => thread.fs().with_own_mounts()?,
        () if has(F::FS) => thread.fs(),
        () => thread.fs().fork(),
    };
    let uts = if has(F::NEWUTS) {
        thread.uts().copy()
    } else {
        thread.uts()
    };
    let (mask, stack) = {
        let signals = thread.signals.lock();
        let keep = !has(F::VM) || has(F::VFORK);
        (signals.mask, if keep { signals.stack } else { AltStack::default() })
    };
    let child = Thread::new(
        kernel.clone(),
        process.clone(),
        NewThread {
            tid,
            worker: kernel.executor().pick_worker(thread.worker()),
            guest,
            files: if has(F::FILES) {
                thread.files()
            } else {
                thread.files().fork()
            },
            fs,
            uts,
            cred: thread.cred(),
            comm: thread.comm(),
            mask,
            stack,
        },
    );
    let scheduling = thread.scheduling.lock().inherited();
    *child.scheduling.lock() = scheduling;
    child.inherit_timer_slack(thread);
    if has(F::CHILD_CLEARTID) {
        child.clear_child_tid.store(args.child_tid, Ordering::Relaxed);
    }

    let mut tasks = kernel.tasks.write();
    let mut state = parent.signals.lock();
    // Killed meanwhile: the whole process goes, and there must be no more children.
    if state.group_exit.is_some() || thread.killed() {
        return Err(Errno::EINTR);
    }
    // Others may have been made meanwhile.
    let most = kernel.quota.limits.pids.unwrap_or(u64::MAX);
    if tasks.threads().count() as u64 >= most {
        return Err(Errno::EAGAIN);
    }
    // Somebody may have chosen this very id meanwhile.
    if tasks.is_used(tid) {
        return Err(Errno::EEXIST);
    }
    if has(F::THREAD) {
        state.threads.push(child.clone());
        if state.stop != super::process::StopState::Running {
            child.work.store(true, Ordering::SeqCst);
        }
        drop(state);
    } else {
        drop(state);
        process.signals.lock().threads.push(child.clone());
        let node = tasks.node(parent.pid()).ok_or(Errno::EAGAIN)?;
        let (pgid, sid) = (node.pgid, node.sid);
        let (under, exit_signal) = if has(F::PARENT) {
            (node.parent, node.exit_signal)
        } else {
            (parent.pid(), args.exit_signal)
        };
        let terminal = tasks.node(thread.pid()).and_then(|node| node.terminal.clone());
        tasks.insert_process(process, (under, thread.tid()), pgid, sid, exit_signal);
        if let Some(node) = tasks.node_mut(tid) {
            node.terminal = terminal;
        }
        kernel.forks.fetch_add(1, Ordering::Relaxed);
    }
    tasks.insert_thread(child.clone());
    Ok(child)
}

/// Takes a child that never ran out of the tables again.
fn discard(child: &Arc<Thread>, borrowed: bool) {
    let process = child.process();
    process
        .signals
        .lock()
        .threads
        .retain(|other| !Arc::ptr_eq(other, child));
    let mut tasks = child.kernel().tasks.write();
    tasks.remove_thread(child.tid());
    if child.tid() == process.pid() {
        tasks.remove_process(process.pid());
    }
    drop(tasks);
    if !borrowed {
        child.guest().exit();
    }
}

/// Writes the child's id, and its pidfd, where they were asked for.
async fn write_ids(
    thread: &Arc<Thread>,
    child: &Arc<Thread>,
    args: &CloneArgs,
    guest: &Arc<dyn GuestThread>,
) -> Result<(), Errno> {
    use CloneFlags as F;
    let tid = child.tid().to_ne_bytes();
    if args.flags.contains(F::CHILD_SETTID) {
        let _ = if args.flags.contains(F::VM) {
            guest.address_space().write(args.child_tid, &tid)
        } else {
            guest.write(args.child_tid, &tid)
        };
    }
    if args.flags.contains(F::PARENT_SETTID) {
        let parent = thread.guest();
        if args.flags.contains(F::VM) && !Arc::ptr_eq(guest, &parent) {
            // In shared memory it must be there before either of them runs: the child may have ended, and cleared
            // it, before the parent goes on; and the parent may look for the child before that has run at all.
            let results = parent
                .run(
                    &[Order::Write {
                        addr: args.parent_tid,
                        data: &tid,
                    }],
                    &[],
                )
                .await?;
            if results.first().is_some_and(|result| *result < 0) {
                return Err(Errno::EFAULT);
            }
        } else {
            parent.write(args.parent_tid, &tid)?;
        }
    }
    if args.flags.contains(F::PIDFD) {
        let fd = crate::pidfd::install(thread, child.process(), false)?;
        let written = thread.guest().write(args.pidfd, &fd.to_ne_bytes());
        if written.is_err() {
            let _ = thread.files().close(fd);
        }
        written?;
    }
    Ok(())
}

impl Thread {
    pub(crate) fn identity(&self) -> Identity {
        let cred = self.cred();
        Identity {
            pid: u32::try_from(self.pid()).unwrap_or(0),
            uid: cred.uid,
            euid: cred.euid,
            gid: cred.gid,
            egid: cred.egid,
        }
    }

    /// Tells the platform who the new thread is; `alone` when others in its address space are somebody else.
    fn publish_identity_as_child(&self, alone: bool) {
        let guest = self.guest();
        if alone {
            guest.set_identity(self.identity());
        } else {
            guest.address_space().set_identity(self.identity());
        }
    }
}

impl Process {
    /// What a forked child takes over from its parent.
    fn inherit(&self, parent: &Process) {
        self.real_uid
            .store(parent.real_uid.load(Ordering::Relaxed), Ordering::Relaxed);
        self.dumpable
            .store(parent.dumpable.load(Ordering::Relaxed), Ordering::Relaxed);
        self.oom_score_adj
            .store(parent.oom_score_adj.load(Ordering::Relaxed), Ordering::Relaxed);
        self.options.inherit(&parent.options);
        self.personality
            .store(parent.personality.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
