//! Terminals: pseudo-terminals with their line discipline, `/dev/pts`, controlling terminals and job control, and the
//! caller's terminal, which the guest sees as one of them.
//!
//! The parts, from the inside out: [`modes`] and [`input`] and [`output`] are data; [`discipline`] is the line
//! discipline, pure logic; [`pty`] makes a pair of files of it; [`devpts`] gives them names; [`job`] knows whose
//! terminal it is; [`io`] and [`ioctl`] are the system calls; [`console`] connects one with the world outside.

pub mod console;
pub mod devpts;
pub mod discipline;
pub mod input;
pub mod io;
pub mod ioctl;
pub mod job;
pub mod modes;
pub mod output;
pub mod pty;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sentry_abi::Errno;
use sentry_abi::tty::Termios2;
use sentry_vfs::cred::{Cap, Credentials};
use sentry_vfs::device::{DeviceKind, DeviceOpen};
use sentry_vfs::file::FileOps;
use sentry_vfs::ops::{At, Caller, Lookup, Vfs};
use sentry_vfs::path::VfsPath;

use crate::Kernel;
use crate::task::{Pid, Thread};
use devpts::{DevPts, Options};
use modes::Modes;
pub use pty::{Pty, TtyFile};

/// The device number of `/dev/tty`: the caller's controlling terminal.
const TTY: (u32, u32) = (5, 0);
/// The device number of `/dev/console`, which the terminal of `sentry exec` is to the guest.
const CONSOLE: (u32, u32) = (5, 1);
/// The device number of `/dev/ptmx`.
const PTMX: (u32, u32) = (5, 2);
/// The most pseudo-terminals in a sandbox (`/proc/sys/kernel/pty/max`).
pub const MAX_PTYS: usize = 4096;

/// The terminals of a sandbox.
pub struct Terminals {
    /// The file system of the sandbox's own `/dev/pts`.
    devpts: Arc<DevPts>,
    /// Pseudo-terminals of which a side is open.
    count: AtomicUsize,
    /// The caller's terminal, if there is one.
    console: OnceLock<Arc<console::Console>>,
}

impl Default for Terminals {
    fn default() -> Terminals {
        Terminals {
            devpts: DevPts::new(Options::usual()),
            count: AtomicUsize::new(0),
            console: OnceLock::new(),
        }
    }
}

impl Terminals {
    /// The file system of the sandbox's own `/dev/pts`.
    pub fn devpts(&self) -> &Arc<DevPts> {
        &self.devpts
    }

    /// How many pseudo-terminals there are (`/proc/sys/kernel/pty/nr`).
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn released(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The caller's terminal.
    pub fn console(&self) -> Option<&Arc<console::Console>> {
        self.console.get()
    }
}

/// Makes a pseudo-terminal with these modes, for `cred` to own; its master. `ENOSPC` if there are too many.
fn make(kernel: &Arc<Kernel>, home: &Arc<DevPts>, cred: &Credentials, termios: Termios2) -> Result<TtyFile, Errno> {
    let count = &kernel.terminals.count;
    if count.fetch_add(1, Ordering::Relaxed) >= MAX_PTYS {
        kernel.terminals.released();
        return Err(Errno::ENOSPC);
    }
    let pty = home.add(cred, |index| Pty::new(Arc::downgrade(kernel), home, index, termios));
    if pty.is_err() {
        kernel.terminals.released();
    }
    pty.map(TtyFile::master)
}

/// Registers the drivers of terminals.
pub fn register(kernel: &Arc<Kernel>) {
    type Driver = fn(&Arc<Kernel>, &DeviceOpen<'_>) -> Result<TtyFile, Errno>;
    let devices = kernel.vfs().devices();
    let with = |driver: Driver| {
        let weak: Weak<Kernel> = Arc::downgrade(kernel);
        move |open: &DeviceOpen<'_>| {
            let kernel = weak.upgrade().ok_or(Errno::ENXIO)?;
            Ok(Box::new(driver(&kernel, open)?) as Box<dyn FileOps>)
        }
    };
    for ((major, minor), driver) in [(TTY, open_own as Driver), (CONSOLE, open_console), (PTMX, open_ptmx)] {
        devices.register(DeviceKind::Character, major, minor, with(driver));
    }
    devices.register_major(DeviceKind::Character, pty::SLAVE_MAJOR, with(open_slave));
}

fn opener(kernel: &Kernel, open: &DeviceOpen<'_>) -> Result<Arc<Thread>, Errno> {
    let tid = Pid::try_from(open.task.tid).map_err(|_| Errno::ENXIO)?;
    kernel.thread(tid).ok_or(Errno::ENXIO)
}

fn open_for(kernel: &Kernel, open: &DeviceOpen<'_>, pty: &Arc<Pty>) -> Result<TtyFile, Errno> {
    pty.open_slave(opener(kernel, open)?.cred().has(Cap::SYS_ADMIN))
}

/// `/dev/tty`.
fn open_own(kernel: &Arc<Kernel>, open: &DeviceOpen<'_>) -> Result<TtyFile, Errno> {
    let pid = Pid::try_from(open.task.tgid).map_err(|_| Errno::ENXIO)?;
    let pty = job::terminal_of(kernel, pid).ok_or(Errno::ENXIO)?;
    open_for(kernel, open, &pty)
}

/// `/dev/console`.
fn open_console(kernel: &Arc<Kernel>, open: &DeviceOpen<'_>) -> Result<TtyFile, Errno> {
    let console = kernel.terminals.console().ok_or(Errno::ENXIO)?;
    open_for(kernel, open, console.pty())
}

/// `/dev/pts/N`. A node of that number elsewhere is nobody's.
fn open_slave(kernel: &Arc<Kernel>, open: &DeviceOpen<'_>) -> Result<TtyFile, Errno> {
    let pty = open.path.inode().and_then(devpts::terminal_of).ok_or(Errno::EIO)?;
    open_for(kernel, open, &pty)
}

/// `/dev/ptmx`, or the `ptmx` of a devpts: makes a terminal there.
fn open_ptmx(kernel: &Arc<Kernel>, open: &DeviceOpen<'_>) -> Result<TtyFile, Errno> {
    let directory = pts_directory(kernel.vfs(), open.path)?;
    let home = directory
        .inode()
        .and_then(devpts::instance_of_root)
        .ok_or(Errno::ENODEV)?;
    let cred = opener(kernel, open)?.cred();
    make(kernel, &home, &cred, Modes::initial())
}

/// The directory of slaves that belongs to a `ptmx`: the one it is in, or `pts` beside it.
fn pts_directory(vfs: &Vfs, ptmx: &VfsPath) -> Result<VfsPath, Errno> {
    let (mount, dentry) = ptmx.tree().ok_or(Errno::ENODEV)?;
    let parent = VfsPath::new(mount.clone(), dentry.parent().ok_or(Errno::ENODEV)?);
    if devpts::instance_of_ptmx(dentry.inode()).is_some() {
        return Ok(parent);
    }
    resolve_in(vfs, &parent, b"pts", Lookup::DIRECTORY)
}

fn resolve_in(vfs: &Vfs, directory: &VfsPath, name: &[u8], lookup: Lookup) -> Result<VfsPath, Errno> {
    let cred = Credentials::root();
    let caller = Caller::at_root(&cred, directory);
    vfs.resolve(&caller, At::Cwd, name, lookup)
}

/// Where the slave of a master is found, by the path that the master was opened by.
fn slave_path(vfs: &Vfs, master: &VfsPath, pty: &Pty) -> Result<VfsPath, Errno> {
    let directory = pts_directory(vfs, master)?;
    let path = resolve_in(vfs, &directory, pty.index().to_string().as_bytes(), Lookup::NO_FOLLOW)?;
    let found = path.inode().and_then(devpts::terminal_of);
    if found.is_some_and(|found| std::ptr::eq(&*found, pty)) {
        Ok(path)
    } else {
        Err(Errno::ENOENT)
    }
}
