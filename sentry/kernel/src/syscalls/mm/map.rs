//! mmap, munmap, mprotect, mremap, brk.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_platform::{Order, SyscallArgs};
use sentry_vfs::file::File;
use sentry_vfs::mount::MountFlags;

use super::{page_range, result_of, run_one};
use crate::gap;
use crate::mm::{Backing, MemoryMap, Region};
use crate::syscalls::Sys;
use crate::task::{Limit, Resource, Thread};

const PROT_ALL: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
/// What the host is asked for; `MAP_GROWSDOWN`, `MAP_LOCKED` and hints are left out.
const PASSED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE | libc::MAP_POPULATE;
/// Flags that `MAP_SHARED_VALIDATE` knows.
const KNOWN: i32 = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_ANONYMOUS
    | libc::MAP_GROWSDOWN
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK
    | libc::MAP_32BIT
    | libc::MAP_HUGETLB;
/// Where `MAP_32BIT` puts things.
const LOW_WINDOW: (u64, u64) = (0x4000_0000, 0x8000_0000);

/// A checked mmap(2).
struct Request {
    addr: u64,
    len: u64,
    prot: i32,
    /// Without the type.
    flags: i32,
    shared: bool,
    file: Option<Arc<File>>,
    offset: u64,
}

pub(super) fn mmap(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    match check(thread, args).and_then(|request| Ok((descriptor(thread, &request)?, request))) {
        Ok(((fd, backing), request)) => {
            let thread = thread.clone();
            Sys::wait(async move { carry_out(&thread, &request, fd, backing).await })
        }
        Err(errno) => errno.into(),
    }
}

fn check(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Request, Errno> {
    let [addr, len, prot, flags, fd, offset] = args.args;
    let (prot, flags) = (prot as i32 & PROT_ALL, flags as i32);
    if offset % PAGE_SIZE != 0 || len == 0 {
        return Err(Errno::EINVAL);
    }
    let both = libc::PROT_WRITE | libc::PROT_EXEC;
    if prot & both == both && thread.process().options.denies_write_execute() {
        return Err(Errno::EACCES);
    }
    let len = len
        .checked_next_multiple_of(PAGE_SIZE)
        .filter(|&len| len < 1 << 47)
        .ok_or(Errno::ENOMEM)?;
    if offset.checked_add(len).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    let file = if flags & libc::MAP_ANONYMOUS == 0 {
        Some(thread.files().get(fd as i32)?)
    } else {
        None
    };
    let shared = match flags & libc::MAP_TYPE {
        libc::MAP_SHARED => true,
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED_VALIDATE if file.is_none() => return Err(Errno::EINVAL),
        libc::MAP_SHARED_VALIDATE if flags & !KNOWN != 0 => return Err(Errno::EOPNOTSUPP),
        libc::MAP_SHARED_VALIDATE => true,
        _ => return Err(Errno::EINVAL),
    };
    if flags & libc::MAP_HUGETLB != 0 {
        gap!(thread.kernel(), "mmap MAP_HUGETLB");
        return Err(if file.is_some() { Errno::EINVAL } else { Errno::ENOMEM });
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if fixed {
        page_range(addr, len, Errno::ENOMEM)?;
    }
    let mm = thread.mm();
    let mut request = Request {
        addr,
        len,
        prot,
        flags: flags & PASSED,
        shared,
        file,
        offset,
    };
    if flags & libc::MAP_32BIT != 0 && !fixed {
        request.addr = mm.find_gap(len, LOW_WINDOW.0, LOW_WINDOW.1).ok_or(Errno::ENOMEM)?;
        request.flags |= libc::MAP_FIXED_NOREPLACE;
    }
    check_limits(
        thread,
        &mm,
        if fixed { mapped_bytes(&mm, addr, len) } else { 0 },
        &request,
    )?;
    Ok(request)
}

fn mapped_bytes(mm: &MemoryMap, addr: u64, len: u64) -> u64 {
    let end = addr.saturating_add(len);
    mm.overlapping(addr, len)
        .iter()
        .map(|r| r.end.min(end).saturating_sub(r.start.max(addr)))
        .sum()
}

/// `RLIMIT_AS` and `RLIMIT_DATA`; `replaced` bytes go away at the same time.
fn check_limits(thread: &Arc<Thread>, mm: &MemoryMap, replaced: u64, request: &Request) -> Result<(), Errno> {
    let all = thread.limit(Resource::AS).current;
    if all != Limit::INFINITY && mm.total().0.saturating_sub(replaced).saturating_add(request.len) > all {
        return Err(Errno::ENOMEM);
    }
    let data = thread.limit(Resource::DATA).current;
    let counts = !request.shared && request.prot & libc::PROT_WRITE != 0;
    if data != Limit::INFINITY && counts && mm.data_total().saturating_add(request.len) > data {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// What to send along: the file's descriptor, or a memfd for shared anonymous memory.
fn descriptor(thread: &Arc<Thread>, request: &Request) -> Result<(Option<Arc<OwnedFd>>, Backing), Errno> {
    let Some(file) = &request.file else {
        if !request.shared {
            return Ok((None, Backing::Anonymous));
        }
        let context = thread.context();
        let vfs = thread.kernel().vfs();
        let file = vfs.memfd(&context.caller(), b"dev/zero")?;
        vfs.truncate_file(&context.caller(), &file, request.len)?;
        let fd = file.ops().mmap_file(&file, true, true)?;
        return Ok((Some(fd), Backing::SharedAnonymous(file)));
    };
    if file.flags() as i32 & libc::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    let wants_write = request.shared && request.prot & libc::PROT_WRITE != 0;
    if !file.readable() || (wants_write && !file.writable()) {
        return Err(Errno::EACCES);
    }
    let noexec = file
        .path()
        .mount()
        .is_some_and(|mount| mount.flags().contains(MountFlags::NO_EXEC));
    if request.prot & libc::PROT_EXEC != 0 && noexec {
        return Err(Errno::EPERM);
    }
    // With the rights of the open file, so that mprotect(2) later gives what Linux gives.
    let written = if wants_write {
        request.offset..request.offset.saturating_add(request.len)
    } else {
        0..0
    };
    thread.mm().keep(file);
    let fd = file
        .ops()
        .mmap_range(file, request.shared, request.shared && file.writable(), written)?;
    Ok((Some(fd), Backing::File(file.clone())))
}

async fn carry_out(
    thread: &Arc<Thread>,
    request: &Request,
    fd: Option<Arc<OwnedFd>>,
    backing: Backing,
) -> Result<i64, Errno> {
    let kind = if request.shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let anonymous = if fd.is_none() { libc::MAP_ANONYMOUS } else { 0 };
    let order = Order::Mmap {
        addr: request.addr,
        len: request.len,
        prot: request.prot,
        flags: request.flags | kind | anonymous,
        fd: fd.as_ref().map(|_| 0),
        // Shared anonymous memory ignores the offset, as Linux does.
        offset: if request.file.is_some() { request.offset } else { 0 },
    };
    let guest = thread.guest();
    let fds: Vec<_> = fd.as_deref().map(AsFd::as_fd).into_iter().collect();
    let addr = result_of(&guest.run(&[order], &fds).await?)?;
    let mut region = Region::new(addr as u64, request.len, request.prot, backing);
    region.shared = request.shared;
    region.offset = if request.file.is_some() { request.offset } else { 0 };
    thread.mm().record_map(region);
    Ok(addr)
}

pub(super) fn munmap(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, len, ..] = args.args;
    let len = match page_range(addr, len, Errno::EINVAL) {
        Ok(0) | Err(_) => return Errno::EINVAL.into(),
        Ok(len) => len,
    };
    let thread = thread.clone();
    Sys::wait(async move {
        let result = run_one(&thread, Order::Munmap { addr, len }).await?;
        thread.mm().record_unmap(addr, len);
        Ok(result)
    })
}

pub(super) fn mprotect(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, len, prot, ..] = args.args;
    const GROWS: i32 = libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
    let prot = prot as i32;
    let len = match page_range(addr, len, Errno::ENOMEM) {
        Ok(len) => len,
        Err(errno) => return errno.into(),
    };
    if prot & !(PROT_ALL | GROWS | 8) != 0 || prot & GROWS == GROWS {
        return Errno::EINVAL.into();
    }
    if len == 0 {
        return Sys::Done(Ok(0));
    }
    if prot & libc::PROT_EXEC != 0 && thread.process().options.denies_write_execute() {
        let gains = |region: &Region| region.prot & libc::PROT_EXEC == 0;
        if prot & libc::PROT_WRITE != 0 || thread.mm().overlapping(addr, len).iter().any(gains) {
            return Errno::EACCES.into();
        }
    }
    let thread = thread.clone();
    Sys::wait(async move {
        let order = Order::Mprotect {
            addr,
            len,
            prot: prot & (PROT_ALL | GROWS),
        };
        let result = run_one(&thread, order).await;
        thread.mm().record_protect(addr, len, prot, result.map(drop));
        result
    })
}

/// Protection keys are not given; key -1 means none and is mprotect(2).
pub(super) fn pkey_mprotect(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    if args.args[3] as i32 == -1 {
        return mprotect(thread, args);
    }
    gap!(thread.kernel(), "pkey_mprotect");
    Errno::EINVAL.into()
}

pub(super) fn mremap(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let [addr, old_len, new_len, flags, new_addr, _] = args.args;
    let flags = flags as i32;
    let check = || {
        if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | 4) != 0 || addr % PAGE_SIZE != 0 || new_len == 0 {
            return Err(Errno::EINVAL);
        }
        if flags & libc::MREMAP_FIXED != 0 && flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno::EINVAL);
        }
        if flags & 4 != 0 {
            gap!(thread.kernel(), "mremap MREMAP_DONTUNMAP");
            return Err(Errno::EINVAL);
        }
        let limit = thread.limit(Resource::AS).current;
        let growth = new_len.saturating_sub(old_len);
        if limit != Limit::INFINITY && thread.mm().total().0.saturating_add(growth) > limit {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    };
    if let Err(errno) = check() {
        return errno.into();
    }
    let thread = thread.clone();
    Sys::wait(async move {
        let place = run_one(
            &thread,
            Order::Mremap {
                addr,
                old_len,
                new_len,
                flags,
                new_addr,
            },
        )
        .await;
        match place {
            Ok(place) => thread.mm().record_remap(addr, old_len, new_len, place as u64),
            Err(_) if flags & libc::MREMAP_FIXED != 0 => {
                let rounded = |len: u64| len.checked_next_multiple_of(PAGE_SIZE);
                if let (Some(old), Some(new)) = (rounded(old_len), rounded(new_len)) {
                    note_unmapped(&thread, new_addr, new).await;
                    note_unmapped(&thread, addr.saturating_add(new), old.saturating_sub(new)).await;
                }
            }
            Err(_) => {}
        }
        place
    })
}

/// Records that nothing is mapped in a range, if so: a failed mremap(2) to a fixed address may have unmapped its
/// target, and what lay beyond the new length.
async fn note_unmapped(thread: &Arc<Thread>, addr: u64, len: u64) {
    let order = Order::Mmap {
        addr,
        len,
        prot: libc::PROT_NONE,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        fd: None,
        offset: 0,
    };
    // Taken for a moment: only where nothing is left does that work.
    if len > 0 && run_one(thread, order).await == Ok(addr as i64) {
        let _ = run_one(thread, Order::Munmap { addr, len }).await;
        thread.mm().record_unmap(addr, len);
    }
}

/// Answers the heap's end, changed or not.
pub(super) fn brk(thread: &Arc<Thread>, args: &SyscallArgs) -> Sys {
    let wanted = args.args[0];
    let mm = thread.mm();
    let (start, now, limit) = mm.brk();
    let (Some(old), Some(new)) = (
        now.checked_next_multiple_of(PAGE_SIZE),
        wanted.checked_next_multiple_of(PAGE_SIZE),
    ) else {
        return Sys::Done(Ok(now as i64));
    };
    let data = thread
        .limit(Resource::DATA)
        .current
        .min(thread.limit(Resource::AS).current);
    let too_much = data != Limit::INFINITY && new > old && mm.data_total().saturating_add(new - old) > data;
    if wanted < start || wanted > limit || new > limit || too_much {
        return Sys::Done(Ok(now as i64));
    }
    if new == old {
        mm.record_brk(wanted);
        return Sys::Done(Ok(wanted as i64));
    }
    let order = if new > old {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Order::Mmap {
            addr: old,
            len: new - old,
            prot,
            flags,
            fd: None,
            offset: 0,
        }
    } else {
        Order::Munmap {
            addr: new,
            len: old - new,
        }
    };
    let thread = thread.clone();
    Sys::wait(async move {
        if run_one(&thread, order).await.is_err() {
            return Ok(now as i64);
        }
        mm.record_brk(wanted);
        Ok(wanted as i64)
    })
}
