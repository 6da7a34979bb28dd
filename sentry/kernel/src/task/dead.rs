//! The host side of a thread that has ended: nothing works, nothing blocks.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use sentry_abi::Errno;
use sentry_platform::{
    AddressSpace, BoxFuture, ChildStart, Event, GuestThread, Identity, MemoryLogEntry, Order, Registers,
};

use crate::mm::MemoryMap;

struct DeadSpace;

struct DeadGuest {
    space: Arc<dyn AddressSpace>,
}

static SPACE: LazyLock<Arc<dyn AddressSpace>> = LazyLock::new(|| Arc::new(DeadSpace));
static GUEST: LazyLock<Arc<dyn GuestThread>> = LazyLock::new(|| Arc::new(DeadGuest { space: SPACE.clone() }));
static MEMORY: LazyLock<Arc<MemoryMap>> = LazyLock::new(|| MemoryMap::new(SPACE.clone()));

/// The guest side of every thread that has ended.
pub(super) fn guest() -> Arc<dyn GuestThread> {
    GUEST.clone()
}

/// The memory of every process that has ended.
pub(super) fn memory() -> Arc<MemoryMap> {
    MEMORY.clone()
}

impl AddressSpace for DeadSpace {
    fn read(&self, _addr: u64, _buf: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
    fn read_partial(&self, _addr: u64, _buf: &mut [u8]) -> usize {
        0
    }
    fn write(&self, _addr: u64, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
    fn set_identity(&self, _identity: Identity) {}
    fn set_local_calls(&self, _on: bool) {}
    fn set_brk(&self, _start: u64, _end: u64, _limit: u64) {}
    fn brk(&self) -> u64 {
        0
    }
    fn drain_log(&self) -> Vec<MemoryLogEntry> {
        Vec::new()
    }
    fn host_pid(&self) -> u32 {
        0
    }
    fn kill(&self) {}
}

impl GuestThread for DeadGuest {
    fn address_space(&self) -> &Arc<dyn AddressSpace> {
        &self.space
    }
    fn resume(&self) {}
    fn poll_event(&self, _cx: &mut Context<'_>) -> Poll<Event> {
        Poll::Ready(Event::Exited)
    }
    fn will_block(&self) {}
    fn set_result(&self, _value: i64) {}
    fn registers(&self) -> Registers {
        Registers::default()
    }
    fn set_registers(&self, _registers: &Registers) {}
    fn xstate(&self) -> Vec<u8> {
        Vec::new()
    }
    fn set_xstate(&self, _state: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
    fn reset_xstate(&self) {}
    fn read(&self, _addr: u64, _buf: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
    fn read_partial(&self, _addr: u64, _buf: &mut [u8]) -> usize {
        0
    }
    fn write(&self, _addr: u64, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
    fn read_file(&self, _: BorrowedFd<'_>, _: i64, _: u64, _: usize, _: i32) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
    fn write_file(&self, _: BorrowedFd<'_>, _: i64, _: u64, _: usize, _: i32) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
    fn run<'a>(&'a self, _: &'a [Order<'a>], _: &'a [BorrowedFd<'a>]) -> BoxFuture<'a, Result<Vec<i64>, Errno>> {
        Box::pin(async { Err(Errno::ESRCH) })
    }
    fn fork(&self, _start: ChildStart) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async { Err(Errno::ESRCH) })
    }
    fn spawn(&self, _start: ChildStart, _tid: u32) -> BoxFuture<'_, Result<Arc<dyn GuestThread>, Errno>> {
        Box::pin(async { Err(Errno::ESRCH) })
    }
    fn set_identity(&self, _identity: Identity) {}
    fn read_string(&self, _addr: u64, _max: usize) -> Result<Vec<u8>, Errno> {
        Err(Errno::EFAULT)
    }
    fn set_tid(&self, _tid: u32) {}
    fn kick(&self) {}
    fn exit(&self) {}
}
