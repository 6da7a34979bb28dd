//! fcntl(2) and flock(2).

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_abi::fs::{FOwnerEx, Flock};
use sentry_platform::SyscallArgs;
use sentry_vfs::cred::Cap;
use sentry_vfs::file::{File, Owner as FileOwner};
use sentry_vfs::wait::PollEvents;

use super::args::{any_file, file, int};
use super::{Row, Sys, SysResult, call};
use crate::fd::Fd;
use crate::executor::Deadline;
use crate::locks::{Owner, Patience, Record, Refused};
use crate::pipe::PipeEnd;
use crate::sigio;
use crate::task::block::sleep;
use crate::task::{Resource, Thread, Wake, block_on};
use crate::user::UserPtr;

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_fcntl, fcntl, Fd, Int, Hex),
    call!(libc::SYS_flock, flock, Fd, Int),
];

const F_GETOWN_EX: i32 = 16;
const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const OWNER_THREAD: i32 = 0;
const OWNER_PROCESS: i32 = 1;
const OWNER_GROUP: i32 = 2;
const F_NOTIFY: i32 = 1026;
const F_DUPFD_QUERY: i32 = 1027;
const F_GET_RW_HINT: i32 = 1035;
const F_SET_FILE_RW_HINT: i32 = 1038;

/// What `F_GETFL` does not tell: flags that only matter when a file is opened.
const OPEN_ONLY: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;

fn fcntl(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let (fd, command, argument) = (int(args, 0), int(args, 1), args.args[2]);
    let any = any_file(thread, fd)?;
    let files = thread.files();
    let limit = thread.limit(Resource::NOFILE).current;
    let done = match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let min = i32::try_from(argument as u32).map_err(|_| Errno::EINVAL)?;
            if min as u64 >= limit {
                return Err(Errno::EINVAL);
            }
            files.install(any, command == libc::F_DUPFD_CLOEXEC, min, limit)?.into()
        }
        libc::F_GETFD => i64::from(files.cloexec(fd)?),
        libc::F_SETFD => files
            .set_cloexec(fd, argument & libc::FD_CLOEXEC as u64 != 0)
            .map(|()| 0)?,
        libc::F_GETFL => i64::from(any.flags() as i32 & !OPEN_ONLY),
        F_DUPFD_QUERY => i64::from(any_file(thread, argument as i32)?.id() == any.id()),
        _ if any.flags() & libc::O_PATH as u32 != 0 => return Err(Errno::EBADF),
        libc::F_GETLK | libc::F_OFD_GETLK => get_lock(thread, &any, command, UserPtr::new(argument))?,
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            return set_lock(thread, any, fd, command, UserPtr::new(argument));
        }
        _ => other(thread, &any, fd, command, argument)?,
    };
    Ok(Sys::Done(Ok(done)))
}

/// The commands that are about the open file itself.
fn other(thread: &Arc<Thread>, file: &Arc<File>, fd: Fd, command: i32, argument: u64) -> SysResult {
    match command {
        libc::F_SETFL => set_flags(thread, file, fd, argument as i32),
        libc::F_GETPIPE_SZ => Ok(pipe(file)?.pipe().capacity() as i64),
        libc::F_SETPIPE_SZ => {
            let size = usize::try_from(argument as u32).map_err(|_| Errno::EINVAL)?;
            let privileged = thread.cred().has(Cap::SYS_RESOURCE);
            pipe(file)?
                .pipe()
                .set_capacity(size, privileged)
                .map(|size| size as i64)
        }
        libc::F_GET_SEALS => file.ops().seals().map(i64::from),
        libc::F_ADD_SEALS => {
            if !file.writable() {
                return Err(Errno::EPERM);
            }
            if argument as i32 & libc::F_SEAL_WRITE != 0 && crate::mm::is_mapped_writable(thread.kernel(), file) {
                return Err(Errno::EBUSY);
            }
            file.ops().add_seals(argument as u32).map(|()| 0)
        }
        libc::F_GETLEASE => Ok(thread.kernel().leases.get(file).into()),
        libc::F_SETLEASE => {
            if thread.kernel().leases.set(&thread.cred(), file, fd, argument as i32)? {
                own_unless_owned(thread, file);
            }
            Ok(0)
        }
        libc::F_GETOWN => match owner_of(thread, file) {
            (FileOwner::Group, id) => Ok(-i64::from(id)),
            (_, id) => Ok(id.into()),
        },
        F_GETSIG => Ok(file.announce.lock().signal.into()),
        F_GETOWN_EX => {
            let (owner, pid) = owner_of(thread, file);
            let kind = match owner {
                FileOwner::Thread => OWNER_THREAD,
                FileOwner::Process => OWNER_PROCESS,
                FileOwner::Group => OWNER_GROUP,
            };
            UserPtr::new(argument)
                .copy_out(thread, &FOwnerEx { kind, pid })
                .map(|()| 0)
        }
        libc::F_SETOWN => match argument as i32 {
            id if id >= 0 => set_owner(thread, file, FileOwner::Process, id),
            id => set_owner(thread, file, FileOwner::Group, id.checked_neg().ok_or(Errno::EINVAL)?),
        },
        F_SETOWN_EX => {
            let owner: FOwnerEx = UserPtr::new(argument).copy_in(thread)?;
            let kind = match owner.kind {
                OWNER_THREAD => FileOwner::Thread,
                OWNER_PROCESS => FileOwner::Process,
                OWNER_GROUP => FileOwner::Group,
                _ => return Err(Errno::EINVAL),
            };
            set_owner(thread, file, kind, owner.pid)
        }
        F_SETSIG => {
            if argument > 64 {
                return Err(Errno::EINVAL);
            }
            file.announce.lock().signal = argument as i32;
            Ok(0)
        }
        F_NOTIFY => {
            sigio::watch_directory(thread.kernel(), file, fd, argument as u32)?;
            own_unless_owned(thread, file);
            Ok(0)
        }
        F_GET_RW_HINT..=F_SET_FILE_RW_HINT => {
            crate::gap!(thread.kernel(), "fcntl command {command} (write hints)");
            if command % 2 == 1 {
                UserPtr::new(argument).copy_out(thread, &0u64).map(|()| 0)
            } else {
                Ok(0)
            }
        }
        _ => {
            crate::gap!(thread.kernel(), "fcntl command {command}");
            Err(Errno::EINVAL)
        }
    }
}

fn pipe(file: &File) -> Result<&PipeEnd, Errno> {
    file.ops().as_any().downcast_ref::<PipeEnd>().ok_or(Errno::EBADF)
}

/// Sets whom readiness is announced to; 0: nobody. `ESRCH` if there is no such thread, process or group.
fn set_owner(thread: &Thread, file: &File, owner: FileOwner, id: i32) -> SysResult {
    let tasks = thread.kernel().tasks.read();
    let exists = id == 0
        || match owner {
            FileOwner::Thread | FileOwner::Process => tasks.process(id).is_some() || tasks.thread(id).is_some(),
            FileOwner::Group => tasks.has_group(id) || tasks.process(id).is_some(),
        };
    drop(tasks);
    if !exists {
        return Err(Errno::ESRCH);
    }
    let cred = thread.cred();
    let mut announce = file.announce.lock();
    (announce.owner, announce.id) = (owner, id);
    (announce.uid, announce.euid) = (cred.uid, cred.euid);
    Ok(0)
}

/// Makes the calling process the owner of a file that has none.
fn own_unless_owned(thread: &Thread, file: &File) {
    if file.announce.lock().id == 0 {
        let _ = set_owner(thread, file, FileOwner::Process, thread.pid());
    }
}

/// Who is told now; 0 once that is gone.
fn owner_of(thread: &Thread, file: &File) -> (FileOwner, i32) {
    let announce = *file.announce.lock();
    let tasks = thread.kernel().tasks.read();
    let id = announce.id;
    let there = tasks.process(id).is_some() || tasks.thread(id).is_some() || tasks.has_group(id);
    (announce.owner, if there { id } else { 0 })
}

fn set_flags(thread: &Arc<Thread>, file: &Arc<File>, fd: Fd, flags: i32) -> SysResult {
    let settable = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;
    if flags & libc::O_NOATIME != 0 && file.flags() & libc::O_NOATIME as u32 == 0 {
        let cred = thread.cred();
        if file.attributes()?.uid != cred.fsuid && !cred.has(Cap::FOWNER) {
            return Err(Errno::EPERM);
        }
    }
    let before = file.flags();
    file.set_flags(settable as u32, flags as u32);
    if (before ^ file.flags()) & libc::O_ASYNC as u32 != 0 {
        sigio::set_async(thread.kernel(), file, fd, flags & libc::O_ASYNC != 0);
    }
    Ok(0)
}

/// The range of a `struct flock`, the last byte inclusive.
fn range(file: &File, lock: &Flock) -> Result<(u64, u64), Errno> {
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => i64::try_from(file.position.now()).map_err(|_| Errno::EOVERFLOW)?,
        libc::SEEK_END => i64::try_from(file.ops().size(file).unwrap_or(0)).map_err(|_| Errno::EOVERFLOW)?,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.checked_add(lock.l_start).ok_or(Errno::EOVERFLOW)?;
    let (start, end) = match lock.l_len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
        len => (
            start.checked_add(len).ok_or(Errno::EINVAL)?,
            start.checked_sub(1).ok_or(Errno::EINVAL)?,
        ),
    };
    Ok((
        u64::try_from(start).map_err(|_| Errno::EINVAL)?,
        u64::try_from(end).map_err(|_| Errno::EINVAL)?,
    ))
}

fn owner(thread: &Thread, file: &File, command: i32, lock: &Flock) -> Result<(Owner, i32), Errno> {
    match command {
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            if lock.l_pid != 0 {
                Err(Errno::EINVAL)
            } else {
                Ok((Owner::File(file.id()), -1))
            }
        }
        _ => Ok((Owner::Table(thread.files().id()), thread.pid())),
    }
}

fn get_lock(thread: &Thread, file: &File, command: i32, pointer: UserPtr<Flock>) -> SysResult {
    let mut lock = pointer.copy_in(thread)?;
    let kind = i32::from(lock.l_type);
    // For F_UNLCK, since Linux 6.5: any lock of this very description.
    let own = command == libc::F_OFD_GETLK && kind == libc::F_UNLCK;
    if kind != libc::F_RDLCK && kind != libc::F_WRLCK && !own {
        return Err(Errno::EINVAL);
    }
    let (owner, pid) = owner(thread, file, command, &lock)?;
    let (start, end) = range(file, &lock)?;
    let wanted = Record {
        owner,
        exclusive: kind == libc::F_WRLCK,
        start,
        end,
        pid,
        via: 0,
    };
    let locks = &thread.kernel().locks;
    let found = if own {
        locks.owned(file, &wanted)
    } else {
        locks.test(file, &wanted)
    };
    match found {
        None => lock.l_type = libc::F_UNLCK as i16,
        Some(found) => {
            lock.l_type = if found.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as i16;
            lock.l_whence = libc::SEEK_SET as i16;
            lock.l_start = found.start as i64;
            lock.l_len = if found.end >= i64::MAX as u64 {
                0
            } else {
                (found.end - found.start + 1) as i64
            };
            lock.l_pid = found.pid;
        }
    }
    pointer.copy_out(thread, &lock).map(|()| 0)
}

fn set_lock(
    thread: &Arc<Thread>,
    file: Arc<File>,
    fd: i32,
    command: i32,
    pointer: UserPtr<Flock>,
) -> Result<Sys, Errno> {
    let lock = pointer.copy_in(thread)?;
    let (owner, pid) = owner(thread, &file, command, &lock)?;
    let (start, end) = range(&file, &lock)?;
    let locks = thread.kernel().locks.clone();
    let exclusive = match i32::from(lock.l_type) {
        libc::F_UNLCK => {
            locks.unset(&file, owner, start, end);
            return Ok(Sys::Done(Ok(0)));
        }
        libc::F_RDLCK if file.readable() => false,
        libc::F_WRLCK if file.writable() => true,
        libc::F_RDLCK | libc::F_WRLCK => return Err(Errno::EBADF),
        _ => return Err(Errno::EINVAL),
    };
    let record = Record {
        owner,
        exclusive,
        start,
        end,
        pid,
        via: 0,
    };
    if let Owner::Table(_) = owner {
        thread.files().set_locks(&locks);
    }
    match locks.set(&file, record) {
        Ok(()) => return after_lock(thread, &file, fd, owner).map(|()| Sys::Done(Ok(0))),
        Err(Refused::Error(errno)) => return Err(errno),
        Err(_) if command == libc::F_SETLK || command == libc::F_OFD_SETLK => return Err(Errno::EAGAIN),
        Err(_) => {}
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let _waiting = locks.wait_for(&file, record)?;
        granted(&thread, || locks.set(&file, record)).await?;
        after_lock(&thread, &file, fd, owner).map(|()| 0)
    }))
}

/// Waits until a lock is granted, or a signal comes.
async fn granted(thread: &Arc<Thread>, mut attempt: impl FnMut() -> Result<(), Refused>) -> Result<(), Errno> {
    let mut patience = Patience::default();
    let mut result = attempt();
    loop {
        let wake = match result {
            Ok(()) => return Ok(()),
            Err(Refused::Error(errno)) => return Err(errno),
            // The table keeps the queue as long as somebody holds it.
            Err(Refused::Conflict(queue)) => {
                let queues = [(&*queue, PollEvents::all())];
                let again = block_on(thread, None, &queues, || match attempt() {
                    Err(Refused::Conflict(_)) => None,
                    other => Some(other),
                });
                match again.await {
                    Ok(now) => {
                        result = now;
                        continue;
                    }
                    Err(wake) => wake,
                }
            }
            Err(Refused::Host) => sleep(thread, Some(Deadline::after(patience.interval()))).await,
        };
        if wake == Wake::Signal {
            return Err(Errno::ERESTARTSYS);
        }
        result = attempt();
    }
}

/// A descriptor that another thread closed meanwhile leaves no lock behind.
fn after_lock(thread: &Thread, file: &File, fd: i32, owner: Owner) -> Result<(), Errno> {
    if let Owner::Table(_) = owner
        && !thread.files().get(fd).is_ok_and(|now| now.id() == file.id()) {
            thread.kernel().locks.unset(file, owner, 0, u64::MAX);
            return Err(Errno::EBADF);
        }
    Ok(())
}

fn flock(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let operation = int(args, 1);
    let exclusive = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => false,
        libc::LOCK_EX => true,
        libc::LOCK_UN => {
            thread.kernel().locks.unflock(&*file(thread, int(args, 0))?);
            return Ok(Sys::Done(Ok(0)));
        }
        _ => return Err(Errno::EINVAL),
    };
    let file = file(thread, int(args, 0))?;
    let (locks, pid) = (thread.kernel().locks.clone(), thread.pid());
    match locks.flock(&file, exclusive, pid) {
        Ok(()) => return Ok(Sys::Done(Ok(0))),
        Err(Refused::Error(errno)) => return Err(errno),
        Err(_) if operation & libc::LOCK_NB != 0 => return Err(Errno::EAGAIN),
        Err(_) => {}
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let result = granted(&thread, || locks.flock(&file, exclusive, pid)).await;
        if result.is_err() {
            locks.unflock(&file);
        }
        result.map(|()| 0)
    }))
}
