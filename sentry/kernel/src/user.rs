//! Guest memory as the kernel sees it: addresses that are claims until a copy has succeeded.

use std::marker::PhantomData;

use sentry_abi::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::task::Thread;

/// The longest path, with its NUL (`PATH_MAX`).
pub const PATH_MAX: usize = 4096;
/// The most vectors in one readv(2) or writev(2) (`UIO_MAXIOV`).
pub const IOV_MAX: usize = 1024;
/// The most bytes in one read(2) or write(2) (`MAX_RW_COUNT`).
pub const MAX_RW_COUNT: usize = 0x7fff_f000;

/// The address of a `T` in the guest of the current thread.
pub struct UserPtr<T> {
    addr: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for UserPtr<T> {}

impl<T> UserPtr<T> {
    /// A claim that there is a `T` at `addr`.
    pub fn new(addr: u64) -> UserPtr<T> {
        UserPtr { addr, of: PhantomData }
    }

    /// The address.
    pub fn addr(self) -> u64 {
        self.addr
    }

    /// True for address 0, which many calls take to mean "none".
    pub fn is_null(self) -> bool {
        self.addr == 0
    }

    /// The element `index` places further on; `EFAULT` if that leaves the address space.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, index: usize) -> Result<UserPtr<T>, Errno> {
        let bytes = (index as u64).checked_mul(size_of::<T>() as u64).ok_or(Errno::EFAULT)?;
        Ok(UserPtr::new(self.addr.checked_add(bytes).ok_or(Errno::EFAULT)?))
    }
}

impl<T: FromBytes + IntoBytes> UserPtr<T> {
    /// Copies the value in.
    pub fn copy_in(self, thread: &Thread) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        thread.guest().read(self.addr, value.as_mut_bytes())?;
        Ok(value)
    }
}

impl<T: IntoBytes + Immutable> UserPtr<T> {
    /// Copies a value out. May fail only when the guest resumes: the call's result is `EFAULT` then.
    pub fn copy_out(self, thread: &Thread, value: &T) -> Result<(), Errno> {
        thread.guest().write(self.addr, value.as_bytes())
    }

    /// As [`Self::copy_out`], but does nothing for a null pointer.
    pub fn copy_out_if(self, thread: &Thread, value: &T) -> Result<(), Errno> {
        if self.is_null() {
            Ok(())
        } else {
            self.copy_out(thread, value)
        }
    }
}

/// `len` elements of `T` in the guest of the current thread.
pub struct UserSlice<T> {
    addr: u64,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for UserSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for UserSlice<T> {}

impl<T> UserSlice<T> {
    /// A claim that there are `len` elements at `addr`.
    pub fn new(addr: u64, len: usize) -> UserSlice<T> {
        UserSlice {
            addr,
            len,
            of: PhantomData,
        }
    }

    /// The address.
    pub fn addr(self) -> u64 {
        self.addr
    }

    /// The number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl<T: FromBytes + IntoBytes> UserSlice<T> {
    /// Copies all elements in. `EINVAL` for more than `max` elements, which bounds the sentry's memory.
    pub fn copy_in(self, thread: &Thread, max: usize) -> Result<Vec<T>, Errno> {
        if self.len > max {
            return Err(Errno::EINVAL);
        }
        let mut values: Vec<T> = Vec::new();
        values.resize_with(self.len, T::new_zeroed);
        if self.len > 0 {
            thread
                .guest()
                .read(self.addr, values.as_mut_slice().as_mut_bytes_of())?;
        }
        Ok(values)
    }
}

impl<T: IntoBytes + Immutable> UserSlice<T> {
    /// Copies `values` out, at most as many as the slice has; the number copied.
    pub fn copy_out(self, thread: &Thread, values: &[T]) -> Result<usize, Errno> {
        let count = values.len().min(self.len);
        if count > 0 {
            thread.guest().write(self.addr, values[..count].as_bytes())?;
        }
        Ok(count)
    }
}

/// The bytes of a slice of plain values.
trait AsMutBytesOf {
    fn as_mut_bytes_of(&mut self) -> &mut [u8];
}

impl<T: FromBytes + IntoBytes> AsMutBytesOf for [T] {
    fn as_mut_bytes_of(&mut self) -> &mut [u8] {
        self.as_mut_bytes()
    }
}

/// Copies `buf.len()` bytes in.
pub fn read_bytes(thread: &Thread, addr: u64, buf: &mut [u8]) -> Result<(), Errno> {
    if buf.is_empty() {
        Ok(())
    } else {
        thread.guest().read(addr, buf)
    }
}

/// Copies `data` out (see [`UserPtr::copy_out`]).
pub fn write_bytes(thread: &Thread, addr: u64, data: &[u8]) -> Result<(), Errno> {
    if data.is_empty() {
        Ok(())
    } else {
        thread.guest().write(addr, data)
    }
}

/// Reads a NUL-terminated string of at most `max` bytes, NUL included; it is returned without.
/// `ENAMETOOLONG` if there is no NUL in so many bytes.
pub fn read_cstr(thread: &Thread, addr: u64, max: usize) -> Result<Vec<u8>, Errno> {
    // The platform has most strings at hand already: its stub brings them along with the call.
    thread.guest().read_string(addr, max.saturating_sub(1))
}

/// Reads a path (`PATH_MAX`).
pub fn read_path(thread: &Thread, addr: u64) -> Result<Vec<u8>, Errno> {
    read_cstr(thread, addr, PATH_MAX)
}

/// One buffer of a vectored call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IoVec {
    pub addr: u64,
    pub len: usize,
}

/// Reads an array of `struct iovec`. `EINVAL` for more than 1024, or a negative length; lengths beyond
/// `MAX_RW_COUNT` in total are cut, as Linux does.
pub fn read_iovecs(thread: &Thread, addr: u64, count: u64) -> Result<Vec<IoVec>, Errno> {
    if count > IOV_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let raw: Vec<[u64; 2]> = UserSlice::new(addr, count as usize).copy_in(thread, IOV_MAX)?;
    let mut left = MAX_RW_COUNT;
    let mut vectors = Vec::with_capacity(raw.len());
    for [addr, len] in raw {
        if i64::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        let len = (len as usize).min(left);
        left -= len;
        vectors.push(IoVec { addr, len });
    }
    Ok(vectors)
}
