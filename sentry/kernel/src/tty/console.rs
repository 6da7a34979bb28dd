//! The terminal of `sentry exec`, as the guest has it: a pseudo-terminal whose master is the supervisor.
//!
//! The supervisor owns the terminal outside. What is typed there, and what the guest writes, travel over a socket
//! between the two; the sentry itself never holds the caller's terminal.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use sentry_abi::Errno;
use sentry_abi::tty::{NCCS, Termios, Termios2, Winsize};
use sentry_host::epoll::{Epoll, Interest};
use sentry_host::stdio;
use sentry_lock::{Mutex, rank};
use sentry_vfs::cred::Credentials;
use sentry_vfs::file::File;
use sentry_vfs::ops::Lookup;
use sentry_vfs::path::VfsPath;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use super::{Pty, TtyFile};
use crate::Kernel;
use crate::config::{Notice, TerminalConfig};
use crate::task::Thread;

/// How much is moved at a time.
const CHUNK: usize = 4096;
/// After so many chunks the others get their turn.
const ROUNDS: usize = 16;

/// The caller's terminal.
pub struct Console {
    pty: Arc<Pty>,
    socket: OwnedFd,
    /// Taken before every other lock.
    traffic: Mutex<Traffic, rank::ConsoleTraffic>,
    /// The supervisor waits to hear that the guest wants to use the terminal.
    awaited: AtomicBool,
}

/// What is on its way.
struct Traffic {
    /// None once the supervisor is gone: then the terminal is hung up.
    master: Option<TtyFile>,
    to_guest: Vec<u8>,
    to_host: Vec<u8>,
}

fn modes(config: &TerminalConfig) -> Termios2 {
    let [c_iflag, c_oflag, c_cflag, c_lflag] = config.flags;
    let mut c_cc = [0; NCCS];
    for (to, from) in c_cc.iter_mut().zip(&config.characters) {
        *to = *from;
    }
    let modes = Termios {
        c_iflag,
        c_oflag,
        c_cflag,
        c_lflag,
        c_line: 0,
        c_cc,
    };
    Termios2 {
        modes,
        ..super::modes::Modes::initial()
    }
}

/// Makes the caller's terminal, for `cred` to own, and connects it.
pub fn connect(
    kernel: &Arc<Kernel>,
    config: &TerminalConfig,
    cred: &Credentials,
    socket: OwnedFd,
) -> Result<Arc<Console>, Errno> {
    let master = super::make(kernel, kernel.terminals.devpts(), cred, modes(config))?;
    let pty = master.pty().clone();
    pty.set_locked(false);
    pty.set_size(size(config.size));
    let console = Arc::new(Console {
        pty,
        socket,
        traffic: Mutex::new(Traffic {
            master: Some(master),
            to_guest: Vec::new(),
            to_host: Vec::new(),
        }),
        awaited: AtomicBool::new(config.on_demand),
    });
    relay(kernel, console.clone())?;
    let _ = kernel.terminals.console.set(console.clone());
    Ok(console)
}

/// Rows, columns, and both in pixels, as a structure.
pub fn size([ws_row, ws_col, ws_xpixel, ws_ypixel]: [u16; 4]) -> Winsize {
    Winsize {
        ws_row,
        ws_col,
        ws_xpixel,
        ws_ypixel,
    }
}

/// Starts the task that moves bytes.
fn relay(kernel: &Arc<Kernel>, console: Arc<Console>) -> Result<(), Errno> {
    let queue = Arc::new(WaitQueue::new());
    let announce = queue.clone();
    let events = PollEvents::IN | PollEvents::OUT | PollEvents::RDHUP;
    let watch = kernel
        .executor()
        .watch_host(&console.socket, events, move |_| announce.wake_all())?;
    kernel.executor().spawn(0, async move {
        // Ends with the task.
        let _watch = watch;
        let mut registered = None;
        poll_fn(|cx| {
            registered.get_or_insert_with(|| {
                let all = PollEvents::all();
                let outside = queue.register(cx.waker(), all);
                (outside, console.pty.master_queue().register(cx.waker(), all))
            });
            for _ in 0..ROUNDS {
                match console.move_some() {
                    Moved::Some => {}
                    Moved::Nothing => return Poll::Pending,
                    Moved::End => return Poll::Ready(()),
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        if let Some((outside, inside)) = registered {
            queue.unregister(outside);
            console.pty.master_queue().unregister(inside);
        }
    });
    Ok(())
}

enum Moved {
    Some,
    Nothing,
    /// The supervisor is gone.
    End,
}

impl Console {
    /// The terminal.
    pub fn pty(&self) -> &Arc<Pty> {
        &self.pty
    }

    /// An open slave, as the guest's standard descriptors.
    pub fn open(&self, kernel: &Kernel, root: &VfsPath) -> Result<Arc<File>, Errno> {
        let name = format!("dev/pts/{}", self.pty.index());
        let path = super::resolve_in(kernel.vfs(), root, name.as_bytes(), Lookup::empty())
            .unwrap_or_else(|_| VfsPath::anonymous(format!("/{name}")));
        let slave = self.pty.open_slave(true)?;
        Ok(File::new(path, libc::O_RDWR as u32, Box::new(slave)))
    }

    /// From now on the supervisor wants to hear when the guest wants to use the terminal.
    pub fn await_demand(&self) {
        self.awaited.store(true, Ordering::SeqCst);
    }

    /// Moves a chunk in each direction.
    fn move_some(&self) -> Moved {
        let mut traffic = self.traffic.lock();
        let Traffic {
            master,
            to_guest,
            to_host,
        } = &mut *traffic;
        if master.is_none() {
            return Moved::End;
        }
        let mut moved = false;
        if to_guest.is_empty() {
            let mut buf = [0; CHUNK];
            match stdio::read(self.socket.as_fd(), &mut buf) {
                Ok(count @ 1..) => to_guest.extend_from_slice(&buf[..count.min(CHUNK)]),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Ok(0) | Err(_) => {
                    // Hangs up, which sends signals: without the lock.
                    let master = master.take();
                    drop(traffic);
                    drop(master);
                    return Moved::End;
                }
            }
        }
        if let Ok(count @ 1..) = self.pty.master_write(to_guest) {
            to_guest.drain(..count.min(to_guest.len()));
            moved = true;
        }
        moved |= self.move_out(to_host);
        if moved { Moved::Some } else { Moved::Nothing }
    }

    /// Moves output; true if something was moved.
    fn move_out(&self, to_host: &mut Vec<u8>) -> bool {
        if to_host.is_empty() {
            let mut buf = [0; CHUNK];
            if let Ok(count) = self.pty.master_read(&mut buf) {
                to_host.extend_from_slice(&buf[..count.min(CHUNK)]);
            }
        }
        if to_host.is_empty() {
            return false;
        }
        match stdio::write(self.socket.as_fd(), to_host) {
            Ok(count) => {
                to_host.drain(..count.min(to_host.len()));
                count > 0
            }
            Err(_) => false,
        }
    }

    /// Sends what the guest has written, waiting for the supervisor to take it. For the end, when no task runs.
    pub fn drain(&self) {
        let mut traffic = self.traffic.lock();
        if traffic.master.is_none() {
            return;
        }
        loop {
            if self.move_out(&mut traffic.to_host) {
                continue;
            }
            if traffic.to_host.is_empty() || !self.wait_writable() {
                return;
            }
        }
    }

    /// Waits until the socket takes bytes; false if it never will.
    fn wait_writable(&self) -> bool {
        let wait = || {
            let epoll = Epoll::new()?;
            epoll.add(self.socket.as_fd(), Interest::WRITE, 0)?;
            let mut events = [sentry_host::epoll::Event::default(); 1];
            epoll.wait(&mut events, None)?;
            Ok::<_, Errno>(events[0].readiness())
        };
        match wait() {
            Ok(ready) => !PollEvents::from_bits_truncate(ready).intersects(PollEvents::ERR | PollEvents::HUP),
            Err(errno) => errno == Errno::EINTR,
        }
    }
}

/// A guest waits to read from a terminal: if it is the caller's, the supervisor may have to hear of it.
pub(super) fn wanted(thread: &Thread, tty: &TtyFile) {
    let kernel = thread.kernel();
    let Some(console) = kernel.terminals.console() else {
        return;
    };
    if tty.is_master() || !Arc::ptr_eq(tty.pty(), &console.pty) {
        return;
    }
    if console.awaited.swap(false, Ordering::SeqCst) {
        kernel.tell_supervisor(Notice::TerminalWanted);
    }
}
