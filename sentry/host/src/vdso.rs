//! The host's vDSO as this process has it, and sealed memfds for images of our own.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sentry_abi::{Errno, PAGE_SIZE};

/// The host's vDSO in this process, its ELF header first; none if the host gives none.
pub fn image() -> Option<&'static [u8]> {
    // SAFETY: getauxval takes no memory.
    let addr = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if addr == 0 || addr % PAGE_SIZE != 0 {
        return None;
    }
    let start = std::ptr::with_exposed_provenance::<u8>(usize::try_from(addr).ok()?);
    // SAFETY: the kernel says that the vDSO is mapped here, readable and at least one page; it stays.
    let head = unsafe { std::slice::from_raw_parts(start, PAGE_SIZE as usize) };
    let len = load_len(head)?;
    // SAFETY: as above; its own program header says how long it is.
    Some(unsafe { std::slice::from_raw_parts(start, len) })
}

/// The file size of the first PT_LOAD, page-aligned: what the kernel maps of a vDSO.
fn load_len(head: &[u8]) -> Option<usize> {
    let word = |at: usize| {
        head.get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let half = |at: usize| {
        head.get(at..at + 2)
            .and_then(|b| b.try_into().ok())
            .map(u16::from_le_bytes)
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (
        usize::try_from(word(32)?).ok()?,
        usize::from(half(54)?),
        usize::from(half(56)?),
    );
    (0..count.min(16)).find_map(|index| {
        let at = table.checked_add(index * size).filter(|at| *at < head.len())?;
        let load = half(at)? == 1 && half(at + 2)? == 0;
        let len = word(at + 32)?.checked_next_multiple_of(PAGE_SIZE)?;
        (load && len <= 64 * PAGE_SIZE).then_some(len as usize)
    })
}

/// A memfd with this content that nobody can change any more.
pub fn sealed_memfd(name: &CStr, content: &[u8]) -> Result<OwnedFd, Errno> {
    let last_error = || Errno::from(std::io::Error::last_os_error());
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut done = 0;
    while let Some(rest) = content.get(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` is valid for its length.
        let count = unsafe { libc::pwrite(fd.as_raw_fd(), rest.as_ptr().cast(), rest.len(), done as i64) };
        match usize::try_from(count) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(_) => return Err(last_error()),
        }
    }
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: no memory is passed.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(last_error());
    }
    Ok(fd)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_image_is_an_elf_file() {
        let image = image().unwrap();
        assert!(image.len() >= 4096 && image.starts_with(b"\x7fELF"));
    }

    #[test]
    fn sealed_memfds_cannot_be_written() {
        let fd = sealed_memfd(c"test", b"hello").unwrap();
        // SAFETY: one byte of valid memory.
        let written = unsafe { libc::pwrite(fd.as_raw_fd(), b"x".as_ptr().cast(), 1, 0) };
        assert_eq!(
            (written, std::io::Error::last_os_error().raw_os_error()),
            (-1, Some(libc::EPERM))
        );
    }
}
