//! ioctl(2) on terminals (ioctl_tty(2)).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::tty::cc::{VSTART, VSTOP};
use sentry_abi::tty::{Termio, Termios2, Winsize, cflag, request as r};
use sentry_vfs::cred::{Cap, Credentials};
use sentry_vfs::file::File;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::pty::TtyFile;
use super::{job, modes};
use crate::signal::Signal;
use crate::syscalls::SysResult;
use crate::task::{Resource, Thread};
use crate::user::UserPtr;

/// `TCFLSH`: what goes.
const TCIFLUSH: u64 = 0;
const TCOFLUSH: u64 = 1;
const TCIOFLUSH: u64 = 2;
/// `TCXONC`: what stops and starts.
const TCOOFF: u64 = 0;
const TCOON: u64 = 1;
const TCIOFF: u64 = 2;
const TCION: u64 = 3;
/// The line discipline that there is.
const N_TTY: i32 = 0;

/// A request to an open terminal.
struct Call<'a> {
    thread: &'a Arc<Thread>,
    file: &'a File,
    tty: &'a TtyFile,
    argument: u64,
}

/// Carries a request out.
pub fn ioctl(thread: &Arc<Thread>, file: &File, tty: &TtyFile, request: u64, argument: u64) -> SysResult {
    if tty.is_hung_up() {
        return Err(if request == r::TIOCSPGRP {
            Errno::ENOTTY
        } else {
            Errno::EIO
        });
    }
    let call = Call {
        thread,
        file,
        tty,
        argument,
    };
    match request {
        r::TCGETS | r::TCGETS2 | r::TCGETA => call.get_modes(request),
        r::TCSETS..=r::TCSETSF | r::TCSETA..=r::TCSETAF | r::TCSETS2 | r::TCSETSW2 | r::TCSETSF2 => {
            call.set_modes(request)
        }
        r::TIOCGWINSZ => call.give(&tty.pty().size()),
        r::TIOCSWINSZ => {
            let size: Winsize = call.take()?;
            tty.pty().set_size(size);
            Ok(0)
        }
        r::FIONREAD => call.give(&i32::try_from(tty.available()).unwrap_or(i32::MAX)),
        // What is written is on its way at once; a pseudo-terminal sends no break.
        r::TIOCOUTQ => call.give(&0i32),
        r::TCSBRK | r::TCSBRKP | r::TIOCSBRK | r::TIOCCBRK => call.check_change().map(|()| 0),
        r::TCFLSH => call.flush(),
        r::TCXONC => call.flow(),
        r::TIOCGPGRP => call.give(&job::foreground(thread, tty)?),
        r::TIOCGSID => call.give(&job::session(thread, tty)?),
        r::TIOCSPGRP => job::set_foreground(thread, tty.pty(), || call.take()).map(|()| 0),
        r::TIOCSCTTY => job::take_terminal(thread, tty.pty(), file.readable(), argument == 1).map(|()| 0),
        r::TIOCNOTTY if !tty.is_master() && job::controls(thread, tty.pty()) => {
            job::give_up_terminal(thread);
            Ok(0)
        }
        r::TIOCNOTTY => Err(Errno::ENOTTY),
        r::TIOCEXCL | r::TIOCNXCL => {
            // A master cannot be opened a second time anyway.
            if !tty.is_master() {
                tty.pty().set_exclusive(request == r::TIOCEXCL);
            }
            Ok(0)
        }
        r::TIOCGEXCL => call.give(&i32::from(!tty.is_master() && tty.pty().exclusive())),
        r::TIOCSTI => call.insert(),
        r::TIOCGETD => call.give(&N_TTY),
        r::TIOCSETD => call.set_discipline(),
        r::TIOCGSOFTCAR => call.give(&i32::from(tty.pty().termios().c_cflag & cflag::CLOCAL != 0)),
        r::TIOCSSOFTCAR => {
            let on: i32 = call.take()?;
            let mut termios = tty.pty().termios();
            termios.c_cflag = termios.c_cflag & !cflag::CLOCAL | if on != 0 { cflag::CLOCAL } else { 0 };
            tty.pty().set_termios(termios, false);
            Ok(0)
        }
        r::TIOCGDEV => {
            let device = tty.pty().device();
            let (major, minor) = (libc::major(device), libc::minor(device));
            call.give(&(minor & 0xff | major << 8 | (minor & !0xff) << 12))
        }
        r::TIOCVHANGUP => {
            thread.cred().require(Cap::SYS_ADMIN)?;
            call.hang_up()
        }
        r::TIOCGPTPEER if !tty.is_master() => Err(Errno::EIO),
        _ if tty.is_master() => call.master(request),
        _ => call.unknown(request),
    }
}

impl Call<'_> {
    fn give<T: IntoBytes + Immutable>(&self, value: &T) -> SysResult {
        UserPtr::new(self.argument).copy_out(self.thread, value).map(|()| 0)
    }

    fn take<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        UserPtr::new(self.argument).copy_in(self.thread)
    }

    fn unknown(&self, request: u64) -> SysResult {
        crate::gap!(self.thread.kernel(), "ioctl {request:#x} on a terminal");
        Err(Errno::ENOTTY)
    }

    /// A background process must not change its terminal (`SIGTTOU`). By way of the master one may.
    fn check_change(&self) -> Result<(), Errno> {
        if self.tty.is_master() {
            Ok(())
        } else {
            job::check_change(self.thread, self.tty.pty(), Signal::TTOU)
        }
    }

    fn get_modes(&self, request: u64) -> SysResult {
        let termios = self.tty.pty().termios();
        match request {
            r::TCGETS2 => self.give(&termios),
            r::TCGETA => self.give(&modes::to_termio(&termios)),
            _ => self.give(&termios.modes),
        }
    }

    /// Output that was written is out, so that there is nothing to wait for.
    fn set_modes(&self, request: u64) -> SysResult {
        // A master changes the slave's modes: there the caller may well be in the background.
        let pty = self.tty.pty();
        job::check_change(self.thread, pty, Signal::TTOU)?;
        super::console::wanted(self.thread, self.tty);
        let old = pty.termios();
        let new = match request {
            r::TCSETS2 | r::TCSETSW2 | r::TCSETSF2 => self.take::<Termios2>()?,
            r::TCSETA..=r::TCSETAF => modes::from_termio(&old, &self.take::<Termio>()?),
            _ => Termios2 {
                modes: self.take()?,
                ..old
            },
        };
        pty.set_termios(new, matches!(request, r::TCSETSF | r::TCSETAF | r::TCSETSF2));
        Ok(0)
    }

    fn flush(&self) -> SysResult {
        self.check_change()?;
        if self.argument > TCIOFLUSH {
            return Err(Errno::EINVAL);
        }
        if self.argument != TCOFLUSH {
            self.tty.flush_input();
        }
        if self.argument != TCIFLUSH {
            self.tty.flush_output();
        }
        Ok(0)
    }

    fn flow(&self) -> SysResult {
        self.check_change()?;
        match self.argument {
            TCOOFF | TCOON => self.tty.suspend_output(self.argument == TCOOFF),
            TCIOFF => self.tty.send_flow_character(VSTOP),
            TCION => self.tty.send_flow_character(VSTART),
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// `TIOCSTI`, which Linux has left to the superuser since 6.2.
    fn insert(&self) -> SysResult {
        if !self.thread.cred().has(Cap::SYS_ADMIN) {
            return Err(Errno::EIO);
        }
        let c: u8 = self.take()?;
        self.tty.insert(c);
        Ok(0)
    }

    fn set_discipline(&self) -> SysResult {
        self.check_change()?;
        let discipline: i32 = self.take()?;
        if discipline == N_TTY {
            return Ok(0);
        }
        crate::gap!(self.thread.kernel(), "line discipline {discipline}");
        Err(Errno::EINVAL)
    }

    fn hang_up(&self) -> SysResult {
        if self.tty.is_master() {
            return self.unknown(r::TIOCVHANGUP);
        }
        self.tty.pty().hang_up();
        Ok(0)
    }

    /// What only masters answer (pts(4)).
    fn master(&self, request: u64) -> SysResult {
        let pty = self.tty.pty();
        match request {
            r::TIOCGPTN => self.give(&pty.index()),
            r::TIOCSPTLCK => {
                let lock: i32 = self.take()?;
                pty.set_locked(lock != 0);
                Ok(0)
            }
            r::TIOCGPTLCK => self.give(&i32::from(pty.locked())),
            r::TIOCPKT => {
                let on: i32 = self.take()?;
                pty.set_packet_mode(on != 0);
                Ok(0)
            }
            r::TIOCGPKT => self.give(&i32::from(pty.packet_mode())),
            r::TIOCSIG => {
                let signal = Signal::from_number(i64::from(self.argument as i32))?;
                if ![Signal::INT, Signal::QUIT, Signal::TSTP].contains(&signal) {
                    return Err(Errno::EINVAL);
                }
                pty.signal_foreground(signal);
                Ok(0)
            }
            r::TIOCGPTPEER => self.open_peer(),
            _ => self.unknown(request),
        }
    }

    /// `TIOCGPTPEER`: opens the slave, whatever its name leads to for the caller.
    fn open_peer(&self) -> SysResult {
        let flags = self.argument as i32;
        let (thread, vfs) = (self.thread, self.thread.kernel().vfs());
        let limit = thread.limit(Resource::NOFILE).current;
        thread.files().check_room(limit)?;
        let path = super::slave_path(vfs, self.file.path(), self.tty.pty())?;
        let (context, cred) = (thread.context(), Credentials::root());
        let kept = libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_APPEND | libc::O_CLOEXEC;
        let file = vfs.open_path(&context.caller().with_cred(&cred), &path, flags & kept)?;
        job::opened(thread, &file, flags);
        let fd = thread.files().install(file, flags & libc::O_CLOEXEC != 0, 0, limit)?;
        Ok(i64::from(fd))
    }
}

/// vhangup(2): hangs the caller's terminal up.
pub fn hang_up_own(thread: &Arc<Thread>) -> SysResult {
    thread.cred().require(Cap::SYS_TTY_CONFIG)?;
    if let Some(pty) = job::terminal_of(thread.kernel(), thread.pid()) {
        pty.hang_up();
    }
    Ok(0)
}
