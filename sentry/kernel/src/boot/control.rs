//! Messages of the supervisor.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_host::scm;
use sentry_vfs::wait::PollEvents;

use crate::Kernel;
use crate::config::ControlMessage;
use crate::executor::HostWatch;
use crate::signal::{self, SigInfo, Signal};
use crate::task::wait::WaitStatus;
use crate::tty::console;

/// The first process.
const INIT: i32 = 1;

/// Takes messages from the socket as long as the answer lives.
pub(super) fn listen(kernel: &Arc<Kernel>, socket: OwnedFd) -> Result<Option<HostWatch>, Errno> {
    let weak = Arc::downgrade(kernel);
    let socket = Arc::new(socket);
    let source = socket.clone();
    // There is one.
    let _ = kernel.supervisor.set(socket.clone());
    let watch = kernel
        .executor()
        .watch_host(&*socket, PollEvents::IN | PollEvents::RDHUP, move |_| {
            receive(&weak, &source);
        })?;
    Ok(Some(watch))
}

fn receive(kernel: &Weak<Kernel>, socket: &OwnedFd) {
    let Some(kernel) = kernel.upgrade() else { return };
    loop {
        let mut message = [0; ControlMessage::SIZE];
        match scm::try_recv_with_fds(socket.as_fd(), &mut message, 0) {
            // The supervisor is gone.
            Ok((0, _)) => return end(&kernel),
            Ok((len, _)) => {
                if let Some(message) = message.get(..len).and_then(ControlMessage::decode) {
                    handle(&kernel, message);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
            Err(_) => return end(&kernel),
        }
    }
}

fn end(kernel: &Arc<Kernel>) {
    let mut exit = kernel.init_exit.lock();
    exit.get_or_insert(WaitStatus::Signaled(Signal::KILL, false));
    drop(exit);
    kernel.executor().stop();
}

fn handle(kernel: &Arc<Kernel>, message: ControlMessage) {
    let console = kernel.terminals.console();
    match message {
        ControlMessage::Signal(number) => {
            if let Ok(signal) = Signal::from_number(i64::from(number)) {
                match &mut *kernel.early_signals.lock() {
                    Some(early) if signal != Signal::KILL => return early.push(signal),
                    _ => {}
                }
                pass_on(kernel, signal);
            }
        }
        ControlMessage::Resize(size) => {
            if let Some(console) = console {
                console.pty().set_size(console::size(size));
            }
        }
        ControlMessage::Memory(total) => kernel.note_memory(total),
        ControlMessage::LargeProcess(pid, kib) => kernel.note_large_process(pid, kib),
        ControlMessage::ExactMemory(total) => kernel.judge_memory(total),
        ControlMessage::AwaitDemand => {
            if let Some(console) = console {
                console.await_demand();
            }
        }
    }
}

/// The first process is there: it gets what has come before.
pub(super) fn begin(kernel: &Arc<Kernel>) {
    let early = kernel.early_signals.lock().take();
    early.into_iter().flatten().for_each(|signal| pass_on(kernel, signal));
}

fn pass_on(kernel: &Arc<Kernel>, signal: Signal) {
    if signal == Signal::KILL {
        return end(kernel);
    }
    let of_terminal = matches!(signal, Signal::INT | Signal::QUIT);
    let (foreground, initial) = {
        let tasks = kernel.tasks.read();
        let node = tasks.node(INIT);
        let terminal = node.and_then(|node| node.terminal.as_ref());
        (
            terminal.and_then(|pty| pty.job().foreground),
            node.map(|node| node.pgid),
        )
    };
    let info = SigInfo::kernel(signal);
    if of_terminal
        && let Some(group) = foreground
        && signal::send_to_group(kernel, group, info)
    {
        return;
    }
    if signal == Signal::CONT
        && let Some(group) = initial
    {
        signal::send_to_group(kernel, group, info);
        return;
    }
    if let Some(init) = kernel.process(INIT) {
        signal::send_to_process(kernel, &init, info);
    }
}
