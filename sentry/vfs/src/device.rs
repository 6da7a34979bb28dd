//! Device nodes and FIFOs: who answers when one is opened.

use std::collections::HashMap;
use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{RwLock, rank};

use crate::file::FileOps;
use crate::ops::TaskIds;
use crate::path::VfsPath;

/// Character or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DeviceKind {
    Character,
    Block,
}

/// What an opened device node is asked with.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct DeviceOpen<'a> {
    pub path: &'a VfsPath,
    /// `O_*`.
    pub flags: i32,
    pub rdev: u64,
    pub task: TaskIds,
}

/// Opens a device.
pub type DeviceDriver = dyn Fn(&DeviceOpen<'_>) -> Result<Box<dyn FileOps>, Errno> + Send + Sync;

/// Kind, major and minor number.
type DeviceId = (DeviceKind, u32, u32);

/// Drivers by kind and number. A node without driver answers `ENXIO`.
#[derive(Default)]
pub struct DeviceRegistry {
    drivers: RwLock<HashMap<DeviceId, Arc<DeviceDriver>>, rank::DeviceDrivers>,
    /// Drivers of every minor number of a major one (pseudo terminals).
    majors: RwLock<HashMap<(DeviceKind, u32), Arc<DeviceDriver>>, rank::DeviceMajors>,
}

impl DeviceRegistry {
    /// Adds (or replaces) the driver of one device.
    pub fn register<F>(&self, kind: DeviceKind, major: u32, minor: u32, driver: F)
    where
        F: Fn(&DeviceOpen<'_>) -> Result<Box<dyn FileOps>, Errno> + Send + Sync + 'static,
    {
        self.drivers.write().insert((kind, major, minor), Arc::new(driver));
    }

    /// Adds (or replaces) the driver of all devices of a major number that have none of their own.
    pub fn register_major<F>(&self, kind: DeviceKind, major: u32, driver: F)
    where
        F: Fn(&DeviceOpen<'_>) -> Result<Box<dyn FileOps>, Errno> + Send + Sync + 'static,
    {
        self.majors.write().insert((kind, major), Arc::new(driver));
    }

    /// Opens a device; `ENXIO` if it has no driver.
    pub fn open(&self, kind: DeviceKind, open: &DeviceOpen<'_>) -> Result<Box<dyn FileOps>, Errno> {
        let (major, minor) = (libc::major(open.rdev), libc::minor(open.rdev));
        let driver = self.drivers.read().get(&(kind, major, minor)).cloned();
        let driver = driver.or_else(|| self.majors.read().get(&(kind, major)).cloned());
        driver.ok_or(Errno::ENXIO)?(open)
    }
}

/// Opens FIFOs: the kernel's pipes behind names.
///
/// [`crate::ops::Vfs::open`] calls this after its permission checks and hands back the file at once; it does
/// not wait for the other end. The kernel finds its own type in the file ([`FileOps::as_any`]) and waits for the
/// peer before it installs the descriptor, unless `O_NONBLOCK` (then `O_WRONLY` without a reader is `ENXIO`, to
/// be answered here). The pipe of a FIFO is found by [`VfsPath::inode_key`], which is valid while a path is held.
pub trait FifoOpener: Send + Sync {
    /// Makes one end (or both, for `O_RDWR`).
    fn open_fifo(&self, path: &VfsPath, flags: i32) -> Result<Box<dyn FileOps>, Errno>;
}
