//! The vDSO image that guests see: built once, kept in a sealed memfd, mapped by each execve(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sentry_abi::Errno;
use sentry_loader::vdso::{IMAGE_LEN, TEXT_LEN, Table, image};
use sentry_platform::Order;

/// Our vDSO.
pub struct Vdso {
    memfd: OwnedFd,
}

impl Vdso {
    /// Builds the image for guests that have the host's vDSO at `host_vdso` (0: they have none).
    pub fn new(host_vdso: u64) -> Result<Vdso, Errno> {
        let host = sentry_host::vdso::image().unwrap_or_default();
        let image = image(&Table::of_host(host, host_vdso));
        Ok(Vdso {
            memfd: sentry_host::vdso::sealed_memfd(c"vdso", &image)?,
        })
    }

    /// What to pass along with [`Vdso::orders`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// The orders that map it at `addr` (`Plan::vdso`); `fd` is the index of [`Vdso::fd`] among the descriptors.
    pub fn orders<'a>(addr: u64, fd: usize) -> [Order<'a>; 2] {
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let text = libc::PROT_READ | libc::PROT_EXEC;
        let table = addr.wrapping_add(TEXT_LEN);
        let len = IMAGE_LEN - TEXT_LEN;
        [
            Order::Mmap {
                addr,
                len: TEXT_LEN,
                prot: text,
                flags,
                fd: Some(fd),
                offset: 0,
            },
            Order::Mmap {
                addr: table,
                len,
                prot: libc::PROT_READ,
                flags,
                fd: Some(fd),
                offset: TEXT_LEN,
            },
        ]
    }
}
