//! execve(2): a new program in place of the old one.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use sentry_abi::Errno;

use super::Thread;
use super::exit::leave_guest_to;
use super::image::{Loaded, Request, load};
use crate::events::{self, Event};
use crate::leases;
use crate::signal::{AltStack, Signal};
use crate::syscalls::SysResult;
use crate::time::cpu;

/// Executes a program. Up to the moment when the program is loaded an error leaves everything as it was.
pub(crate) async fn exec(thread: Arc<Thread>, request: Request) -> SysResult {
    let kernel = thread.kernel().clone();
    let limits = thread.process().limits.read().clone();
    let told = kernel
        .events
        .get()
        .map(|_| (request.execfn.clone(), request.argv.clone()));
    // Who has a lease to write the program has to give it up first.
    let again = kernel.leases.any().then(|| request.clone());
    let mut loaded = load(&kernel, &thread.context(), &limits, request).await;
    while let (Err(Errno::EJUKEBOX), Some(again)) = (&loaded, &again) {
        let _free = leases::wait(&thread, leases::refused()).await?;
        loaded = load(&kernel, &thread.context(), &limits, again.clone()).await;
    }
    let loaded = loaded.map_err(|errno| if errno == Errno::EJUKEBOX { Errno::EAGAIN } else { errno })?;
    if let Err(errno) = end_other_threads(&thread).await {
        loaded.guest.exit();
        return Err(errno);
    }
    replace(&thread, loaded);
    if let Some((path, argv)) = told {
        tell_exec(&thread, &path, &argv);
    }
    Ok(0)
}

/// Tells of a program that was executed.
pub(crate) fn tell_exec(thread: &Arc<Thread>, path: &[u8], argv: &[Vec<u8>]) {
    let kernel = thread.kernel();
    kernel.tell(|| {
        let context = thread.context();
        let cwd = kernel.vfs().getcwd(&context.caller());
        let ppid = kernel.tasks.read().node(thread.pid()).map_or(0, |node| node.parent);
        Event::Exec {
            pid: thread.pid(),
            ppid,
            uid: context.cred.euid,
            gid: context.cred.egid,
            path: events::text(path),
            argv: argv.iter().map(|arg| events::text(arg)).collect(),
            cwd: events::text(cwd.as_deref().unwrap_or(b"(unreachable)")),
        }
    });
}

/// Ends all other threads of the process and takes over the leader's id.
async fn end_other_threads(thread: &Arc<Thread>) -> Result<(), Errno> {
    let process = thread.process();
    {
        let mut state = process.signals.lock();
        if state.group_exit.is_some() || state.exec.is_some() {
            return Err(Errno::EAGAIN);
        }
        if state.threads.len() == 1 && thread.tid() == process.pid() {
            return Ok(());
        }
        state.exec = Some(thread.tid());
        for other in state.threads.iter().filter(|other| !Arc::ptr_eq(other, thread)) {
            other.dying.store(true, Ordering::SeqCst);
            other.notify();
        }
    }
    // Killed in this wait, the thread never comes back here.
    poll_fn(|_| {
        if process.signals.lock().threads.len() == 1 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;

    let mut tasks = thread.kernel().tasks.write();
    let mut state = process.signals.lock();
    state.exec = None;
    if thread.tid() != process.pid() {
        tasks.remove_thread(process.pid());
        tasks.remove_thread(thread.tid());
        thread.set_tid(process.pid());
        tasks.insert_thread(thread.clone());
    }
    Ok(())
}

/// Puts the new program in place of the old one. Nothing can fail any more.
fn replace(thread: &Arc<Thread>, loaded: Loaded) {
    let Loaded {
        guest,
        mm,
        cred,
        comm,
        secure,
    } = loaded;
    let kernel = thread.kernel();
    let process = thread.process();
    cpu::retire_space(process);
    process.timers.posix.clear(kernel);
    thread.clear_child_tid.store(0, Ordering::Relaxed);
    thread.robust_list.store(0, Ordering::Relaxed);
    *thread.fault.lock() = None;
    *thread.restart.lock() = None;

    drop(process.set_mm(mm));
    drop(process.first_guest.lock().take());
    leave_guest_to(thread, guest);
    thread.apply_affinity();
    thread.borrows.store(false, Ordering::SeqCst);

    process.set_actions(Arc::new(process.actions().after_exec()));
    {
        let mut signals = thread.signals.lock();
        signals.stack = AltStack::default();
    }
    let files = thread.files();
    // One reference is the thread's, one is ours.
    if Arc::strong_count(&files) > 2 {
        thread.set_files(files.fork());
    }
    drop(files);
    drop(thread.files().close_on_exec());
    thread.set_comm(&comm);
    process.dumpable.store(!secure, Ordering::Relaxed);
    if secure {
        thread.parent_death_signal.store(0, Ordering::Relaxed);
    }
    if let Some(node) = kernel.tasks.write().node_mut(process.pid()) {
        node.execed = true;
        node.exit_signal = Signal::CHLD.number();
    }
    thread.set_cred(cred);
    let guest = thread.guest();
    guest.set_tid(u32::try_from(thread.tid()).unwrap_or(0));
    if !crate::mm::local_calls_allowed(kernel, process) {
        guest.address_space().set_local_calls(false);
    }
}
