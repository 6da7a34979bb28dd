//! Pseudo-terminals (pty(7)): a terminal whose other side, the master, is a program instead of a keyboard and a screen.
//!
//! A [`Pty`] is the pair. Either side is reached through a [`TtyFile`]; the terminal's modes, its input and output
//! belong to the slave's [`Discipline`].

use std::any::Any;
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_abi::fs::make_device;
use sentry_abi::tty::{Termios2, Winsize};
use sentry_lock::{Mutex, rank};
use sentry_vfs::file::{File, FileOps};
use sentry_vfs::wait::{PollEvents, WaitQueue};

use super::devpts::DevPts;
use super::discipline::{Discipline, Effects};
use super::job;
use crate::Kernel;
use crate::signal::{self, SigInfo, Signal};
use crate::task::Pid;

/// The major device number of slaves.
pub const SLAVE_MAJOR: u32 = 136;
/// Signals that a terminal's characters raise.
const TYPED: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TSTP];
const READABLE: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
const WRITABLE: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);
/// What a hung-up terminal is ready for: everything fails or ends at once.
const HUNG_UP: PollEvents = READABLE.union(WRITABLE).union(PollEvents::ERR).union(PollEvents::HUP);

/// Whose terminal it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The session that it controls.
    pub session: Option<Pid>,
    /// The foreground process group.
    pub foreground: Option<Pid>,
}

/// A pseudo-terminal.
pub struct Pty {
    index: u32,
    kernel: Weak<Kernel>,
    home: Weak<DevPts>,
    state: Mutex<State, rank::Pty>,
    /// Taken after `Kernel::tasks`, where both are.
    pub(super) job: Mutex<Job, rank::TtyJob>,
    slave_queue: WaitQueue,
    master_queue: WaitQueue,
}

struct State {
    discipline: Discipline,
    size: Winsize,
    /// Slaves cannot be opened (`TIOCSPTLCK`).
    locked: bool,
    /// Only the superuser opens slaves (`TIOCEXCL`).
    exclusive: bool,
    /// The master is open.
    master: bool,
    /// The master's own output is stopped (`TCOOFF` at the master).
    master_stopped: bool,
    /// Open slaves.
    slaves: usize,
    /// All slaves that there were are closed.
    slave_closed: bool,
    /// Counts hang-ups: slaves opened before the last one are dead.
    hangups: u64,
}

impl Pty {
    /// A new one; its slaves cannot be opened yet. Closing the master, which the caller is to make, ends it.
    pub(super) fn new(kernel: Weak<Kernel>, home: &Arc<DevPts>, index: u32, termios: Termios2) -> Arc<Pty> {
        Arc::new(Pty {
            index,
            kernel,
            home: Arc::downgrade(home),
            state: Mutex::new(State {
                discipline: Discipline::new(termios),
                size: Winsize::default(),
                locked: true,
                exclusive: false,
                master: true,
                master_stopped: false,
                slaves: 0,
                slave_closed: false,
                hangups: 0,
            }),
            job: Mutex::new(Job::default()),
            slave_queue: WaitQueue::new(),
            master_queue: WaitQueue::new(),
        })
    }

    /// The number in its name.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The slave's device number.
    pub fn device(&self) -> u64 {
        make_device(SLAVE_MAJOR, self.index)
    }

    /// The file system that it is in.
    pub fn home(&self) -> Option<Arc<DevPts>> {
        self.home.upgrade()
    }

    /// Whose terminal it is.
    pub fn job(&self) -> Job {
        *self.job.lock()
    }

    /// Where the master's readiness is announced.
    pub fn master_queue(&self) -> &WaitQueue {
        &self.master_queue
    }

    /// Where the slaves' readiness is announced.
    pub fn slave_queue(&self) -> &WaitQueue {
        &self.slave_queue
    }

    /// Works on it, and wakes and signals whom that concerns.
    fn with<T>(&self, work: impl FnOnce(&mut State, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let measure = |state: &State| {
            let discipline = &state.discipline;
            (discipline.output.len(), discipline.status(), discipline.receive_room())
        };
        let (output, status, room) = measure(&state);
        let result = work(&mut state, &mut effects);
        let (new_output, new_status, new_room) = measure(&state);
        drop(state);
        if effects.readable {
            self.slave_queue.wake(READABLE);
        }
        if effects.writable {
            self.slave_queue.wake(WRITABLE);
        }
        if new_output > output {
            self.master_queue.wake(READABLE);
        }
        if new_status & !status != 0 {
            self.master_queue.wake(READABLE | PollEvents::PRI);
        }
        if new_room > room {
            self.master_queue.wake(WRITABLE);
        }
        for signal in TYPED {
            if effects.signals.has(signal) {
                self.signal_foreground(signal);
            }
        }
        result
    }

    /// Sends a signal to the foreground process group.
    pub fn signal_foreground(&self, signal: Signal) {
        let foreground = self.job().foreground;
        if let (Some(kernel), Some(group)) = (self.kernel.upgrade(), foreground) {
            signal::send_to_group(&kernel, group, SigInfo::kernel(signal));
        }
    }

    // The master's side.

    /// Takes what the master writes; `EAGAIN` if nothing of it finds room.
    pub fn master_write(&self, data: &[u8]) -> Result<usize, Errno> {
        let count = self.with(|state, effects| {
            if state.master_stopped {
                0
            } else {
                state.discipline.receive(data, effects)
            }
        });
        if count == 0 && !data.is_empty() {
            Err(Errno::EAGAIN)
        } else {
            Ok(count)
        }
    }

    /// Gives the master what there is to read; `EAGAIN` for nothing, `EIO` once all slaves are closed.
    pub fn master_read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.with(|state, effects| {
            let discipline = &mut state.discipline;
            if discipline.status() != 0 {
                buf[0] = discipline.take_status();
                return Ok(1);
            }
            if discipline.output.is_empty() {
                return Err(if state.slave_closed { Errno::EIO } else { Errno::EAGAIN });
            }
            if discipline.packet_mode() {
                buf[0] = 0;
                Ok(1 + discipline.take_output(&mut buf[1..], effects))
            } else {
                Ok(discipline.take_output(buf, effects))
            }
        })
    }

    fn master_poll(&self) -> PollEvents {
        let state = self.state.lock();
        let mut events = PollEvents::empty();
        if !state.discipline.output.is_empty() {
            events |= READABLE;
        }
        if state.discipline.status() != 0 {
            events |= READABLE | PollEvents::PRI;
        }
        if state.slave_closed {
            events |= PollEvents::HUP;
        }
        if !state.master_stopped && state.discipline.receive_room() > 0 {
            events |= WRITABLE;
        }
        events
    }

    /// The master is closed: the slaves are hung up, the name goes, the session is told.
    pub(super) fn close_master(self: &Arc<Pty>) {
        let mut state = self.state.lock();
        state.master = false;
        state.hangups += 1;
        state.discipline.shut_down();
        drop(state);
        if let Some(home) = self.home() {
            home.remove(self.index);
        }
        self.slave_queue.wake_all();
        self.master_queue.wake_all();
        if let Some(kernel) = self.kernel.upgrade() {
            job::hang_up(&kernel, self);
        }
    }

    // The slave's side.

    /// Opens a slave: `EIO` without master or while it is locked, `EBUSY` if somebody wants it for himself.
    pub fn open_slave(self: &Arc<Pty>, privileged: bool) -> Result<TtyFile, Errno> {
        let mut state = self.state.lock();
        if state.exclusive && !privileged {
            return Err(Errno::EBUSY);
        }
        if !state.master || state.locked {
            return Err(Errno::EIO);
        }
        state.slaves += 1;
        state.slave_closed = false;
        let hangups = state.hangups;
        drop(state);
        Ok(TtyFile {
            pty: self.clone(),
            side: Side::Slave { hangups },
        })
    }

    fn close_slave(&self) {
        let mut state = self.state.lock();
        state.slaves = state.slaves.saturating_sub(1);
        state.slave_closed = state.slaves == 0;
        let closed = state.slave_closed;
        drop(state);
        if closed {
            self.master_queue.wake(READABLE | PollEvents::HUP);
        }
    }

    /// Hangs the slaves up while the master stays (vhangup(2)): the terminal is as new.
    pub fn hang_up(self: &Arc<Pty>) {
        self.with(|state, effects| {
            state.hangups += 1;
            state.discipline.flush_output(effects);
            state.discipline.flush_input();
            state.discipline.set_modes(super::modes::Modes::initial(), effects);
        });
        self.slave_queue.wake_all();
        if let Some(kernel) = self.kernel.upgrade() {
            job::hang_up(&kernel, self);
        }
    }

    fn slave_read(&self, buf: &mut [u8], hangups: u64) -> Result<usize, Errno> {
        self.with(|state, effects| {
            if state.hangups != hangups {
                return Ok(0);
            }
            state.discipline.read(buf, effects).ok_or(Errno::EAGAIN)
        })
    }

    fn slave_write(&self, data: &[u8], hangups: u64) -> Result<usize, Errno> {
        self.with(|state, _| {
            if state.hangups != hangups {
                return Err(Errno::EIO);
            }
            match state.discipline.write(data) {
                0 if !data.is_empty() => Err(Errno::EAGAIN),
                count => Ok(count),
            }
        })
    }

    fn slave_poll(&self, hangups: u64) -> PollEvents {
        let state = self.state.lock();
        if state.hangups != hangups {
            return HUNG_UP;
        }
        let discipline = &state.discipline;
        let least = match discipline.modes().min_and_time() {
            (least, 0) => usize::from(least),
            _ => 1,
        };
        let mut events = PollEvents::empty();
        if discipline.readable(least) {
            events |= READABLE;
        }
        if discipline.writable() {
            events |= WRITABLE;
        }
        events
    }

    // Both sides: what ioctl(2) asks and sets.

    /// The modes.
    pub fn termios(&self) -> Termios2 {
        *self.state.lock().discipline.modes().termios()
    }

    /// True if background processes may not write (`TOSTOP`).
    pub(super) fn stops_background_output(&self) -> bool {
        use sentry_abi::tty::lflag::TOSTOP;
        self.state.lock().discipline.modes().local(TOSTOP)
    }

    /// Changes the modes; with `flush`, input that was not read goes.
    pub fn set_termios(&self, termios: Termios2, flush: bool) {
        self.with(|state, effects| {
            if flush {
                state.discipline.flush_input();
            }
            state.discipline.set_modes(termios, effects);
        });
    }

    /// The size.
    pub fn size(&self) -> Winsize {
        self.state.lock().size
    }

    /// Changes the size; the foreground hears of it.
    pub fn set_size(&self, size: Winsize) {
        let old = std::mem::replace(&mut self.state.lock().size, size);
        if old != size {
            self.signal_foreground(Signal::WINCH);
        }
    }

    /// Whether slaves can be opened.
    pub fn set_locked(&self, locked: bool) {
        self.state.lock().locked = locked;
    }

    /// True while no slave can be opened.
    pub fn locked(&self) -> bool {
        self.state.lock().locked
    }

    /// Whether only the superuser may open slaves.
    pub fn set_exclusive(&self, exclusive: bool) {
        self.state.lock().exclusive = exclusive;
    }

    /// True if only the superuser may.
    pub fn exclusive(&self) -> bool {
        self.state.lock().exclusive
    }

    /// Switches packet mode.
    pub fn set_packet_mode(&self, on: bool) {
        self.state.lock().discipline.set_packet_mode(on);
    }

    /// True in packet mode.
    pub fn packet_mode(&self) -> bool {
        self.state.lock().discipline.packet_mode()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.release(self.index);
        }
        if let Some(kernel) = self.kernel.upgrade() {
            kernel.terminals.released();
        }
    }
}

/// A side of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `/dev/ptmx`.
    Master,
    /// `/dev/pts/N`, opened after so many hang-ups.
    Slave {
        /// How many.
        hangups: u64,
    },
}

/// How a read waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRule {
    /// How many bytes it wants.
    pub minimum: usize,
    /// How long it waits, in tenths of a second; 0 for ever.
    pub time: u8,
    /// The time runs from the start, else from each byte.
    pub from_start: bool,
    /// It does not wait at all.
    pub at_once: bool,
}

/// An open side of a terminal.
pub struct TtyFile {
    pty: Arc<Pty>,
    side: Side,
}

impl TtyFile {
    /// The master's side; there is one.
    pub(super) fn master(pty: Arc<Pty>) -> TtyFile {
        TtyFile {
            pty,
            side: Side::Master,
        }
    }

    /// The one behind a file.
    pub fn of(file: &File) -> Option<&TtyFile> {
        file.ops().as_any().downcast_ref::<TtyFile>()
    }

    /// The terminal.
    pub fn pty(&self) -> &Arc<Pty> {
        &self.pty
    }

    /// True for the master.
    pub fn is_master(&self) -> bool {
        self.side == Side::Master
    }

    /// True for a slave that was hung up.
    pub fn is_hung_up(&self) -> bool {
        match self.side {
            Side::Master => false,
            Side::Slave { hangups } => self.pty.state.lock().hangups != hangups,
        }
    }

    /// True once the master is closed.
    pub(super) fn is_orphan(&self) -> bool {
        !self.pty.state.lock().master
    }

    /// How a read waits, by the modes.
    pub(super) fn read_rule(&self) -> ReadRule {
        let state = self.pty.state.lock();
        let modes = state.discipline.modes();
        let (least, time) = modes.min_and_time();
        if self.is_master() || modes.local(sentry_abi::tty::lflag::ICANON) {
            return ReadRule {
                minimum: 1,
                time: 0,
                from_start: false,
                at_once: false,
            };
        }
        ReadRule {
            minimum: usize::from(least.max(1)),
            time,
            from_start: least == 0,
            at_once: least == 0 && time == 0,
        }
    }

    /// How many bytes can be read at once (`FIONREAD`).
    pub fn available(&self) -> usize {
        let state = self.pty.state.lock();
        if self.is_master() {
            state.discipline.output.delivered()
        } else {
            state.discipline.available()
        }
    }

    /// `TCFLSH` of what this side reads.
    pub fn flush_input(&self) {
        self.pty.with(|state, effects| match self.side {
            Side::Master => {
                state.discipline.output.clear();
                effects.writable = true;
            }
            Side::Slave { .. } => state.discipline.flush_input(),
        });
    }

    /// `TCFLSH` of what this side writes.
    pub fn flush_output(&self) {
        self.pty.with(|state, effects| match self.side {
            Side::Master => state.discipline.flush_waiting(),
            Side::Slave { .. } => state.discipline.flush_output(effects),
        });
    }

    /// `TCOOFF` (`suspend`) and `TCOON`.
    pub fn suspend_output(&self, suspend: bool) {
        self.pty.with(|state, effects| match self.side {
            Side::Master => state.master_stopped = suspend,
            Side::Slave { .. } => state.discipline.suspend_output(suspend, effects),
        });
        if self.is_master() && !suspend {
            self.pty.master_queue.wake(WRITABLE);
        }
    }

    /// `TCIOFF` and `TCION`: the other side is asked to stop or to go on. `index` is `VSTOP` or `VSTART`.
    pub fn send_flow_character(&self, index: usize) {
        self.pty.with(|state, effects| match self.side {
            Side::Master => {
                // The master's own characters are the usual ones and cannot be changed.
                let c = super::modes::Modes::initial().c_cc.get(index).copied().unwrap_or(0);
                state.discipline.receive(&[c], effects);
            }
            Side::Slave { .. } => {
                let c = state.discipline.modes().character(index);
                if c != 0 {
                    state.discipline.output.push_raw(c);
                }
            }
        });
    }

    /// Puts a byte into this side's input (`TIOCSTI`).
    pub fn insert(&self, c: u8) {
        self.pty.with(|state, effects| match self.side {
            Side::Master => drop(state.discipline.output.push_raw(c)),
            Side::Slave { .. } => drop(state.discipline.receive(&[c], effects)),
        });
    }
}

impl FileOps for TtyFile {
    fn read(&self, _file: &File, buf: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        match self.side {
            Side::Master => self.pty.master_read(buf),
            Side::Slave { hangups } => self.pty.slave_read(buf, hangups),
        }
    }

    fn write(&self, _file: &File, buf: &[u8], offset: u64) -> Result<(usize, u64), Errno> {
        let count = match self.side {
            Side::Master => self.pty.master_write(buf),
            Side::Slave { hangups } => self.pty.slave_write(buf, hangups),
        };
        Ok((count?, offset))
    }

    fn poll(&self, _file: &File) -> PollEvents {
        match self.side {
            Side::Master => self.pty.master_poll(),
            Side::Slave { hangups } => self.pty.slave_poll(hangups),
        }
    }

    fn wait_queue(&self) -> Option<&WaitQueue> {
        Some(match self.side {
            Side::Master => &self.pty.master_queue,
            Side::Slave { .. } => &self.pty.slave_queue,
        })
    }

    fn size(&self, _file: &File) -> Result<u64, Errno> {
        Ok(0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for TtyFile {
    fn drop(&mut self) {
        match self.side {
            Side::Master => self.pty.close_master(),
            Side::Slave { .. } => self.pty.close_slave(),
        }
    }
}
