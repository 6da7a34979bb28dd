//! What all guest processes of a sandbox share: the sandbox page, workers' lists, process ids.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};

use crate::GuestLayout;
use crate::arena::Sandbox;
use crate::control::Controls;
use crate::handoff::Handoff;
use crate::ptrace::Tracer;
use crate::space::Space;
use crate::thread::Thread;
use crate::watchdog::Watchdog;

/// The lists of one worker.
pub(crate) struct Worker {
    /// Threads that run, or carry out orders, and whose requests this worker looks for.
    pub armed: Mutex<Vec<Arc<Thread>>, rank::Armed>,
    /// Threads to be resumed at the next flush.
    pub outbox: Mutex<Vec<Arc<Thread>>, rank::Outbox>,
    pub doorbell: OwnedFd,
    pub handoff: Handoff,
}

/// The shared state of a platform.
pub(crate) struct Core {
    pub sandbox: Sandbox,
    pub workers: Vec<Worker>,
    pub layout: GuestLayout,
    pub arena_base: u64,
    /// process_vm_readv(2) on our own children works here; else the stubs copy.
    pub remote_memory: bool,
    /// The zygote's wake word.
    pub zygote_wake_index: u32,
    /// Its host pid, once it is known.
    pub zygote_pid: AtomicU32,
    /// The tracer, on the ptrace platform.
    pub tracer: Option<Tracer>,
    /// The sentry's ends of the stubs' control sockets.
    pub controls: Arc<Controls>,
    /// Every live guest process by host pid.
    spaces: Mutex<HashMap<u32, Weak<Space>>, rank::Spaces>,
    pub watchdog: Watchdog,
}

impl Core {
    pub fn new(
        sandbox: Sandbox,
        workers: Vec<Worker>,
        layout: GuestLayout,
        arena_base: u64,
        zygote_wake_index: u32,
        remote_memory: bool,
        tracer: Option<Tracer>,
    ) -> Core {
        Core {
            sandbox,
            workers,
            layout,
            arena_base,
            zygote_wake_index,
            zygote_pid: AtomicU32::new(0),
            remote_memory,
            tracer,
            controls: Controls::new(descriptor_limit()),
            spaces: Mutex::new(HashMap::new()),
            watchdog: Watchdog::new(),
        }
    }

    /// Enters a process under its host pid; false if the pid is taken, which is a lie of the stub that claimed it.
    pub fn enter(&self, pid: u32, space: &Arc<Space>) -> bool {
        let mut spaces = self.spaces.lock();
        if spaces.get(&pid).is_some_and(|known| known.strong_count() > 0) {
            return false;
        }
        spaces.insert(pid, Arc::downgrade(space));
        true
    }

    /// True if a live guest process has this host pid.
    pub fn knows(&self, pid: u32) -> bool {
        self.spaces
            .lock()
            .get(&pid)
            .is_some_and(|known| known.strong_count() > 0)
    }

    /// The host process `pid` is dead (and about to be reaped).
    pub fn died(&self, pid: u32) {
        let known = self.spaces.lock().remove(&pid);
        if let Some(space) = known {
            // What is left of its process group: children that nobody ordered.
            // SAFETY: a signal to a group whose leader is not reaped yet.
            unsafe { libc::kill(-(pid as libc::pid_t), libc::SIGKILL) };
            if let Some(space) = space.upgrade() {
                if pid == self.zygote_pid.load(Ordering::Relaxed) {
                    sentry_host::fatal::end("the zygote was killed: no process can be made any more");
                }
                space.mark_dead();
            }
        }
    }

    /// The reaper's thread: learns of every dead child, tells its guest process, then reaps it. Never returns.
    pub fn reap(&self) -> ! {
        loop {
            match wait_for_dead_child() {
                Ok(pid) => {
                    self.died(pid);
                    reap_child(pid);
                }
                // No children now (the zygote is gone too): nothing will come.
                Err(Errno::ECHILD) => std::thread::sleep(Duration::from_millis(100)),
                Err(_) => {}
            }
        }
    }
}

/// How many descriptors this process may have.
fn descriptor_limit() -> usize {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    limit.map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Waits for a child to be dead, without reaping it.
fn wait_for_dead_child() -> Result<u32, Errno> {
    // SAFETY: siginfo_t is plain data; waitid fills it in.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOWAIT | libc::__WALL) != 0 {
            return Err(Errno::from(std::io::Error::last_os_error()));
        }
        if ![libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&info.si_code) {
            // A stop: somebody in this process traces one of our stubs (a test does).
            std::thread::sleep(Duration::from_millis(1));
            return Err(Errno::EAGAIN);
        }
        Ok(info.si_pid() as u32)
    }
}

fn reap_child(pid: u32) {
    // SAFETY: reaps one child of ours; no memory is involved.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL) };
}

/// True if `pid` is a child of ours, dead or alive.
pub(crate) fn is_child(pid: u32) -> bool {
    // SAFETY: WNOWAIT changes nothing; siginfo_t is plain data.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(
            libc::P_PID,
            pid,
            &mut info,
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL,
        ) == 0
    }
}
