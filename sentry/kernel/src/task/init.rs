//! The first process of a sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;

use super::thread::NewThread;
use super::{FsContext, Limits, Loaded, Process, Thread, run};
use crate::Kernel;
use crate::fd::FdTable;
use crate::signal::{Actions, AltStack, SigSet};
use crate::tty::{self, Pty};

/// Makes a loaded program the first process, leader of a group and a session of its own, and starts it.
pub(crate) fn start_init(
    kernel: &Arc<Kernel>,
    loaded: Loaded,
    actions: Actions,
    limits: Limits,
    files: Arc<FdTable>,
    fs: Arc<FsContext>,
    terminal: Option<Arc<Pty>>,
) -> Result<(), Errno> {
    let Loaded {
        guest, mm, cred, comm, ..
    } = loaded;
    let mut tasks = kernel.tasks.write();
    let pid = tasks.allocate()?;
    let process = Process::new(pid, Arc::new(actions), mm, limits);
    process.real_uid.store(cred.uid, Ordering::Relaxed);
    let thread = Thread::new(
        kernel.clone(),
        process.clone(),
        NewThread {
            tid: pid,
            worker: kernel.executor().pick_worker(0),
            guest: guest.clone(),
            files,
            fs,
            cred: Arc::new(cred),
            uts: kernel.uts.clone(),
            comm,
            mask: SigSet::EMPTY,
            stack: AltStack::default(),
        },
    );
    thread.scheduling.lock().nice = kernel.nice;
    process.signals.lock().threads.push(thread.clone());
    tasks.insert_process(process, (0, 0), pid, pid, 0);
    tasks.insert_thread(thread.clone());
    if let Some(node) = tasks.node_mut(pid) {
        node.execed = true;
    }
    tasks.attended = terminal.is_some();
    if let Some(pty) = terminal {
        tty::job::give(&mut tasks, pid, &pty);
    }
    drop(tasks);
    guest.set_tid(u32::try_from(pid).unwrap_or(1));
    guest.address_space().set_identity(thread.identity());
    if !crate::mm::local_calls_allowed(kernel, thread.process()) {
        guest.address_space().set_local_calls(false);
    }
    run::start(thread);
    Ok(())
}
