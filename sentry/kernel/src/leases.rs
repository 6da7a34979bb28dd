//! Leases on files (fcntl(2), `F_SETLEASE`): who opens or truncates a file waits until the holder has given it up.
//!
//! A lease belongs to an open file description. The VFS asks here ([`LeaseBreaker`]) before an open or a truncation
//! counts, and answers [`Errno::EJUKEBOX`] if somebody must give way first; what makes the call waits and tries again
//! with [`retry`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::cred::{Cap, Credentials};
use sentry_vfs::file::{File, ReleaseWatcher};
use sentry_vfs::inode::Inode;
use sentry_vfs::opens::{LeaseBreaker, Opened, Opens};
use sentry_vfs::path::InodeKey;
use sentry_vfs::wait::{PollEvents, WaitQueue};

use crate::executor::Deadline;
use crate::fd::Fd;
use crate::task::{Thread, Wake, block_on};
use crate::{Kernel, sigio};

/// What a lease is to become, and when that happens without its holder (`None`: never).
type Pending = Option<Option<Deadline>>;

/// All leases.
pub struct LeaseTable {
    inodes: Mutex<HashMap<InodeKey, Leased>, rank::Leases>,
    /// `/proc/sys/fs/lease-break-time`, in seconds; 0: for ever.
    pub break_time: AtomicU32,
}

/// A file with leases.
#[derive(Default)]
struct Leased {
    leases: Vec<Lease>,
    queue: Arc<WaitQueue>,
}

struct Lease {
    file: Weak<File>,
    file_id: u64,
    /// What the signal tells.
    fd: Fd,
    exclusive: bool,
    /// Is to go.
    removal: Pending,
    /// Is to become a lease for reading.
    downgrade: Pending,
}

impl Leased {
    /// Does what holders were asked for and did not do in time. True if something changed.
    fn expire(&mut self) -> bool {
        let now = Deadline::now();
        let over = |pending: &Pending| matches!(pending, Some(Some(at)) if at.0 <= now.0);
        let before = self.leases.len();
        self.leases.retain(|lease| !over(&lease.removal));
        let mut changed = self.leases.len() < before;
        for lease in self.leases.iter_mut().filter(|lease| over(&lease.downgrade)) {
            (lease.exclusive, lease.downgrade) = (false, None);
            changed = true;
        }
        changed
    }
}

/// True if the opens of a file allow a lease.
fn allowed(opens: &Opens, file: &File, exclusive: bool) -> bool {
    if !exclusive {
        return opens.writers() == 0;
    }
    let own = if file.writable() { (0, 1) } else { (1, 0) };
    (opens.readers(), opens.writers()) == own
}

impl LeaseTable {
    /// No leases.
    pub fn new() -> Arc<LeaseTable> {
        Arc::new(LeaseTable {
            inodes: Mutex::default(),
            break_time: AtomicU32::new(45),
        })
    }

    /// True if there are any.
    pub fn any(&self) -> bool {
        !self.inodes.lock().is_empty()
    }

    /// Looks at a file's leases as they are now. What is left without any is forgotten.
    fn with<T>(&self, inode: &Arc<dyn Inode>, work: impl FnOnce(&mut Leased, &Opens) -> T) -> Result<T, Errno> {
        let opens = inode.opens().ok_or(Errno::EINVAL)?;
        let mut inodes = self.inodes.lock();
        let key = InodeKey::of(inode);
        let leased = inodes.entry(key).or_default();
        let mut changed = leased.expire();
        let before: Vec<_> = leased
            .leases
            .iter()
            .map(|lease| (lease.file_id, lease.exclusive))
            .collect();
        let answer = work(leased, opens);
        let after = leased.leases.iter().map(|lease| (lease.file_id, lease.exclusive));
        changed |= !before.iter().copied().eq(after);
        let queue = leased.queue.clone();
        opens.set_leased(!leased.leases.is_empty());
        if leased.leases.is_empty() {
            inodes.remove(&key);
        }
        drop(inodes);
        if changed {
            queue.wake_all();
        }
        Ok(answer)
    }

    /// `F_SETLEASE` with `F_RDLCK`, `F_WRLCK` or `F_UNLCK`. True if it is the description's first.
    ///
    /// # Errors
    /// `EACCES` for who does not own the file and has no `CAP_LEASE`; `EINVAL` for what is no regular file in memory
    /// or in an overlay; `EAGAIN` if it is open in a way that conflicts, and for taking away what is not there.
    pub fn set(self: &Arc<Self>, cred: &Credentials, file: &Arc<File>, fd: Fd, kind: i32) -> Result<bool, Errno> {
        if ![libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind) {
            return Err(Errno::EINVAL);
        }
        let attributes = file.attributes()?;
        if cred.fsuid != attributes.uid && !cred.has(Cap::LEASE) {
            return Err(Errno::EACCES);
        }
        let inode = file.path().inode().ok_or(Errno::EINVAL)?;
        if attributes.mode & libc::S_IFMT != libc::S_IFREG || inode.opens().is_none() {
            return Err(Errno::EINVAL);
        }
        let exclusive = kind == libc::F_WRLCK;
        let first = self.with(inode, |leased, opens| {
            let own = leased.leases.iter().position(|lease| lease.file_id == file.id());
            if kind == libc::F_UNLCK {
                leased.leases.remove(own.ok_or(Errno::EAGAIN)?);
                return Ok(false);
            }
            let others = leased.leases.iter().filter(|lease| lease.file_id != file.id());
            for other in others {
                if exclusive || other.removal.is_some() {
                    return Err(Errno::EAGAIN);
                }
            }
            // Whoever opens counts first and looks for leases then.
            opens.set_leased(true);
            if !allowed(opens, file, exclusive) {
                return Err(Errno::EAGAIN);
            }
            if let Some(lease) = own.and_then(|at| leased.leases.get_mut(at)) {
                lease.exclusive = exclusive;
                if !exclusive {
                    lease.downgrade = None;
                }
                return Ok(false);
            }
            leased.leases.push(Lease {
                file: Arc::downgrade(file),
                file_id: file.id(),
                fd,
                exclusive,
                removal: None,
                downgrade: None,
            });
            Ok(true)
        })??;
        if first {
            let weak: Weak<LeaseTable> = Arc::downgrade(self);
            let weak: Weak<dyn ReleaseWatcher> = weak;
            file.unwatch_release(&weak);
            file.watch_release(weak);
        }
        Ok(first)
    }

    /// `F_GETLEASE`: what the description's lease is, or is to become.
    pub fn get(&self, file: &File) -> i32 {
        let Some(inode) = file.path().inode().filter(|inode| is_leased(inode)) else {
            return libc::F_UNLCK;
        };
        let kind = self.with(inode, |leased, _| {
            let lease = leased.leases.iter().find(|lease| lease.file_id == file.id())?;
            Some(match lease {
                Lease { removal: Some(_), .. } => libc::F_UNLCK,
                Lease { downgrade: Some(_), .. } => libc::F_RDLCK,
                Lease { exclusive: true, .. } => libc::F_WRLCK,
                _ => libc::F_RDLCK,
            })
        });
        kind.ok().flatten().unwrap_or(libc::F_UNLCK)
    }

    /// Who has to give way to an open or truncation (`write`) has been told; true if somebody has to.
    fn breaks(&self, kernel: &Arc<Kernel>, inode: &Arc<dyn Inode>, write: bool) -> bool {
        let deadline = match self.break_time.load(Ordering::Relaxed) {
            0 => None,
            seconds => Some(Deadline(
                Deadline::now().0.saturating_add(u64::from(seconds) * 1_000_000_000),
            )),
        };
        let mut told = Vec::new();
        let conflict = self.with(inode, |leased, _| {
            let mut conflict = false;
            for lease in leased.leases.iter_mut().filter(|lease| write || lease.exclusive) {
                conflict = true;
                let pending = if write {
                    &mut lease.removal
                } else if lease.removal.is_some() {
                    continue;
                } else {
                    &mut lease.downgrade
                };
                if pending.is_none() {
                    *pending = Some(deadline);
                    told.extend(lease.file.upgrade().map(|file| (file, lease.fd)));
                }
            }
            conflict
        });
        for (file, fd) in told {
            sigio::tell_owner(kernel, &file, fd);
        }
        conflict.unwrap_or(false)
    }

    /// What to wait for before an open or truncation (`write`) can be; `None` if nothing is in the way.
    fn blocked(&self, inode: &Arc<dyn Inode>, write: bool) -> Option<(Arc<WaitQueue>, Option<Deadline>)> {
        if !is_leased(inode) {
            return None;
        }
        self.with(inode, |leased, _| {
            let mut conflicts = leased.leases.iter().filter(|lease| write || lease.exclusive).peekable();
            conflicts.peek()?;
            let times = conflicts.filter_map(|lease| {
                [lease.removal, lease.downgrade]
                    .into_iter()
                    .flatten()
                    .flatten()
                    .min_by_key(|at| at.0)
            });
            Some((leased.queue.clone(), times.min_by_key(|at| at.0)))
        })
        .ok()
        .flatten()
    }
}

fn is_leased(inode: &Arc<dyn Inode>) -> bool {
    inode.opens().is_some_and(Opens::leased)
}

impl ReleaseWatcher for LeaseTable {
    fn released(&self, file: &File) {
        if let Some(inode) = file.path().inode().filter(|inode| is_leased(inode)) {
            let _ = self.with(inode, |leased, _| {
                leased.leases.retain(|lease| lease.file_id != file.id())
            });
        }
    }
}

thread_local! {
    /// What this host thread was refused last, and whether for writing.
    static REFUSED: RefCell<Refused> = const { RefCell::new(None) };
}

/// Asked by the VFS.
pub struct Breaker(pub Weak<Kernel>);

impl LeaseBreaker for Breaker {
    fn breaks(&self, inode: &Arc<dyn Inode>, write: bool, nonblocking: bool) -> Result<(), Errno> {
        let Some(kernel) = self.0.upgrade() else { return Ok(()) };
        if !kernel.leases.breaks(&kernel, inode, write) {
            return Ok(());
        }
        if nonblocking {
            return Err(Errno::EAGAIN);
        }
        let old = REFUSED.replace(Some((inode.clone(), write)));
        drop(old);
        Err(Errno::EJUKEBOX)
    }
}

/// The file that a call of the VFS has just answered [`Errno::EJUKEBOX`] for, and whether it was to be written.
pub type Refused = Option<(Arc<dyn Inode>, bool)>;

/// What that was on this host thread: to be asked for at once.
#[must_use]
pub fn refused() -> Refused {
    REFUSED.take()
}

/// Waits for the leases that refused a call of the VFS, and makes it again, until it answers something else.
pub async fn retry<T>(
    thread: &Arc<Thread>,
    mut refused: Refused,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let _free = wait(thread, refused).await?;
        match call() {
            // Another lease, perhaps on another file that has the name now.
            Err(Errno::EJUKEBOX) => refused = self::refused(),
            result => return result,
        }
    }
}

/// Waits until a file's leases allow to open it (or with `write`, to write it). As long as the answer is held, no new
/// lease is in the way. `ERESTARTSYS` for a signal.
pub async fn wait(thread: &Arc<Thread>, refused: Refused) -> Result<Option<Opened>, Errno> {
    let (inode, write) = refused.ok_or(Errno::EIO)?;
    let table = thread.kernel().leases.clone();
    let opened = Opened::new(&inode, write);
    while let Some((queue, deadline)) = table.blocked(&inode, write) {
        let queues = [(&*queue, PollEvents::all())];
        let waited = block_on(thread, deadline, &queues, || {
            let still = table
                .blocked(&inode, write)
                .is_some_and(|(other, _)| Arc::ptr_eq(&other, &queue));
            (!still).then_some(())
        });
        if waited.await == Err(Wake::Signal) {
            return Err(Errno::ERESTARTSYS);
        }
    }
    Ok(opened)
}
