//! The life of a guest thread, as a task of the executor.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use sentry_abi::Errno;
use sentry_gofer::watches;
use sentry_platform::{BoxFuture, Event, SyscallArgs};

use super::exit::end_thread;
use super::{Pid, RunState, Thread};
use crate::events;
use crate::executor::{Purpose, watch};
use crate::io::rate;
use crate::signal::{self, Restarting, SigInfo, Signal};
use crate::syscalls::{Sys, SysResult};
use crate::{gap, strace, syscalls};

/// Starts the task of a new thread whose guest side is ready to run.
pub(crate) fn start(thread: Arc<Thread>) {
    let executor = thread.kernel().executor().clone();
    executor.spawn_for(thread.clone(), thread.worker(), run(thread));
}

impl Purpose for Thread {
    fn is_gone(&self) -> bool {
        !self.shielded.load(Ordering::SeqCst) && (self.killed() || signal::fatal_is_pending(self))
    }
}

thread_local! {
    static CURRENT: Cell<Pid> = const { Cell::new(0) };
}

/// The thread whose call this host thread carries out, for what depends on who looks and is not told. Only for what a
/// call does at once, before it waits.
pub(crate) fn current() -> Pid {
    CURRENT.get()
}

async fn run(thread: Arc<Thread>) {
    poll_fn(|cx| {
        *thread.waker.lock() = Some(cx.waker().clone());
        Poll::Ready(())
    })
    .await;
    let mut restarting = None;
    loop {
        if (restarting.is_some() || thread.interrupted())
            && signal::deliver(&thread, restarting.take()).await.is_break()
        {
            break;
        }
        match run_guest(&thread).await {
            Event::Syscall(args) => {
                // Linux looks at the low half of rax.
                let args = SyscallArgs {
                    nr: args.nr & 0xffff_ffff,
                    ..args
                };
                let Some(result) = system_call(&thread, &args).await else {
                    break;
                };
                match result {
                    Ok(value) => thread.guest().set_result(value),
                    Err(code) if code.is_restart() => {
                        restarting = Some(Restarting {
                            nr: args.nr,
                            code,
                            local: false,
                        });
                    }
                    Err(errno) => thread.guest().set_result(-i64::from(errno.raw())),
                }
            }
            Event::LocalInterrupted(args) => {
                restarting = Some(Restarting {
                    nr: args.nr,
                    code: local_restart_code(&args),
                    local: true,
                });
            }
            Event::Fault(fault) => {
                *thread.fault.lock() = Some(fault);
                let signal = Signal::from_number(i64::from(fault.signal)).unwrap_or(Signal::SEGV);
                signal::force(&thread, SigInfo::fault(signal, fault.code, fault.address));
            }
            Event::Interrupted => {}
            Event::Exited => {
                gone(&thread);
                break;
            }
        }
    }
    end_thread(&thread).await;
}

/// Lets the guest run until it comes back.
async fn run_guest(thread: &Arc<Thread>) -> Event {
    thread.kernel().quota.processor().pass(thread).await;
    let guest = thread.guest();
    thread.in_guest.store(true, Ordering::SeqCst);
    guest.resume();
    // A sender that came before `in_guest` was set has woken this task only, which is already here.
    if thread.interrupted() {
        guest.kick();
    }
    let event = poll_fn(|cx| guest.poll_event(cx)).await;
    thread.in_guest.store(false, Ordering::SeqCst);
    event
}

/// Carries out a call; none if the thread was killed in it.
async fn system_call(thread: &Arc<Thread>, args: &SyscallArgs) -> Option<SysResult> {
    let kernel = thread.kernel();
    let traced = kernel.strace.load(Ordering::Relaxed);
    if traced {
        strace::enter(thread, args);
    }
    let weight = match kernel.quota.limits.io_rate {
        Some(_) => rate::weight(thread, args),
        None => 0,
    };
    let sys = match syscalls::lookup(args.nr) {
        Some(row) => {
            if kernel.stats
                && let Some(count) = kernel.counts.get(args.nr as usize)
            {
                count.fetch_add(1, Ordering::Relaxed);
            }
            CURRENT.set(thread.tid());
            watch::carries_out(kernel.executor(), thread.tid(), args.nr);
            if let Some(stuck) = &kernel.stuck {
                stuck.at(row.1);
            }
            watches::new_call();
            row.2(thread, args)
        }
        None => {
            gap!(kernel, "system call {}", args.nr);
            Sys::Done(Err(Errno::ENOSYS))
        }
    };
    let result = match sys {
        Sys::Done(result) => result,
        Sys::Wait(future) => {
            thread.set_state(RunState::Sleeping);
            let result = until_killed(thread, args.nr, future).await;
            thread.set_state(RunState::Running);
            result?
        }
    };
    crate::sigio::flush();
    if traced {
        strace::exit(thread, args, &result);
    }
    thread.process().io.count(args.nr, result.as_ref().ok().copied());
    if weight > 0
        && let Ok(count @ 1..) = result
    {
        let payer = thread.clone();
        let payment = async move {
            rate::pay(&payer, (count as u64).saturating_mul(weight)).await;
            Ok(0)
        };
        thread.set_state(RunState::Sleeping);
        let paid = until_killed(thread, args.nr, Box::pin(payment)).await;
        thread.set_state(RunState::Running);
        paid?.ok();
    }
    if let Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS)) = result {
        denied(thread, args, errno);
    }
    if let Err(Errno::ENOSPC | Errno::ENOMEM) = result {
        kernel.no_room(thread);
    }
    Some(result)
}

/// Tells of a refused access, if it is one to a path.
fn denied(thread: &Arc<Thread>, args: &SyscallArgs, errno: Errno) {
    let kernel = thread.kernel();
    let Some(row) = syscalls::lookup(args.nr) else { return };
    let Some(at) = row.3.iter().position(|arg| matches!(arg, syscalls::Arg::Str)) else {
        return;
    };
    kernel.count_denial();
    kernel.tell(|| {
        // By now it may be another one: the log says what the process says.
        let path = crate::user::read_path(thread, args.args[at]).unwrap_or_default();
        events::Event::Denied {
            pid: thread.pid(),
            comm: events::text(&thread.comm()),
            call: row.1.to_owned(),
            path: events::text(&path),
            error: errno.name().to_owned(),
        }
    });
}

/// Polls a call's future; gives it up when the thread is killed.
async fn until_killed(thread: &Arc<Thread>, nr: u64, mut future: BoxFuture<'static, SysResult>) -> Option<SysResult> {
    poll_fn(|cx| {
        if thread.killed() && !thread.shielded.load(Ordering::SeqCst) {
            return Poll::Ready(None);
        }
        watches::new_call();
        watch::carries_out(thread.kernel().executor(), thread.tid(), nr);
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A futex wait that the stub was doing by itself: how it goes on after a signal.
fn local_restart_code(args: &SyscallArgs) -> Errno {
    let timed = args.nr == libc::SYS_futex as u64
        && matches!(args.args[1] as i32 & 0x7f, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
        && args.args[3] != 0;
    if timed {
        Errno::ERESTART_RESTARTBLOCK
    } else {
        Errno::ERESTARTSYS
    }
}

/// The host process is gone, and not because this kernel wanted it: the guest process is killed as a whole.
fn gone(thread: &Arc<Thread>) {
    thread.gone.store(true, Ordering::SeqCst);
    let mut state = thread.process().signals.lock();
    if !thread.killed() {
        signal::kill(&mut state, super::wait::WaitStatus::Signaled(Signal::KILL, false));
    }
}
