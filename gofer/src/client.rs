//! The sentry's side: synchronous requests over the gofer's socket.
//!
//! One request is waited for at a time. Whoever waits for long, for an answer or for another's request to end, does it
//! as [`sentry_host::waiting`] has it: a worker's thread hands its work over, and a request of a task that is killed
//! is abandoned, whose answer the next one skips. A gofer that has died, breaks the protocol or does not answer within
//! [`TIMEOUT`] is not spoken to again: every request answers `EIO` from then on.

mod connection;
mod forget;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;
use sentry_abi::Errno;
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, rank};

use crate::nix_errno;
use crate::protocol::{
    Access, Attached, Attributes, FsTotals, Listing, MAX_AHEAD, MAX_FORGET, MAX_STEPS, MAX_TARGET, Name, NewAttributes,
    NodeId, Owner, Removed, Reply, Request, Step, Walked,
};
use crate::watches::Watches;
use connection::{Connection, Failure};

/// How long a request may take: longer than a file server that comes back at all.
pub const TIMEOUT: Duration = Duration::from_secs(600);

/// A connection to a gofer.
///
/// Lock order: `connection` before `forgotten`; neither is held while the caller's code runs.
pub struct Client {
    connection: LongMutex<Connection, rank::GoferConnection>,
    /// Nodes to give back with the next request.
    forgotten: Mutex<Vec<(NodeId, u32)>, rank::GoferForgotten>,
    /// What is to be forgotten takes space: the next request does not leave it for later.
    urgent: AtomicBool,
    broken: AtomicBool,
    requests: AtomicU64,
    watches: Watches,
    reports: OnceLock<OwnedFd>,
}

/// A file of [`Client::open_ahead`].
#[allow(missing_docs)]
pub struct OpenedAhead {
    pub fd: OwnedFd,
    pub dev: u64,
    pub ino: u64,
}

impl Client {
    /// Speaks to the gofer at the other end of `socket` (`SOCK_SEQPACKET`).
    pub fn new(socket: OwnedFd) -> Arc<Client> {
        Client::with_timeout(socket, TIMEOUT)
    }

    /// As [`Client::new`], with another time limit.
    pub fn with_timeout(socket: OwnedFd, timeout: Duration) -> Arc<Client> {
        Arc::new(Client {
            connection: LongMutex::new(Connection::new(socket, timeout)),
            forgotten: Mutex::new(Vec::new()),
            urgent: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            watches: Watches::default(),
            reports: OnceLock::new(),
        })
    }

    /// False once the gofer has died or broken the protocol.
    pub fn alive(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    /// How many requests were made.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Makes a request whose answer brings one descriptor or none.
    fn call(&self, request: &Request<'_>) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let (reply, mut fds) = self.call_with(request, None)?;
        Ok((reply, fds.pop()))
    }

    /// Makes a request, which brings a descriptor perhaps.
    fn call_with(&self, request: &Request<'_>, fd: Option<BorrowedFd<'_>>) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        if !self.alive() {
            return Err(Errno::EIO);
        }
        let mut connection = self.connection.lock()?;
        // Somebody before may have had the trouble.
        if !self.alive() {
            return Err(Errno::EIO);
        }
        self.call_on(&mut connection, request, fd)
    }

    fn call_on(
        &self,
        connection: &mut Connection,
        request: &Request<'_>,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let many = self.forgotten.lock().len() >= MAX_FORGET / 4;
        if many || self.urgent.load(Ordering::SeqCst) {
            self.send_forgotten(connection);
        }
        let answer = connection.exchange(request, fd);
        if self.urgent.load(Ordering::SeqCst) {
            self.send_forgotten(connection);
        }
        if !connection.unwanted.is_empty() {
            let unwanted = connection.unwanted.drain(..).map(|node| (node, 1));
            self.forgotten.lock().extend(unwanted);
        }
        match answer {
            Ok(answer) => Ok(answer),
            Err(Failure::Refused(errno) | Failure::GivenUp(errno)) => Err(errno),
            Err(Failure::Broken) => {
                self.broken.store(true, Ordering::Relaxed);
                connection.shut();
                Err(Errno::EIO)
            }
        }
    }

    /// Attaches to an export.
    ///
    /// # Errors
    /// `ENOENT` for an unknown number.
    pub fn attach(&self, export: u32) -> Result<Attached, Errno> {
        match self.call(&Request::Attach { export })? {
            (Reply::Attached(attached), None) => Ok(attached),
            _ => Err(Errno::EIO),
        }
    }

    /// Walks `names` (at most [`MAX_STEPS`]) below `node`; if `open` is set and the last one is a regular file, opens
    /// it too.
    ///
    /// # Errors
    /// Those that concern `node`; what happens on the way is in the answer.
    pub fn lookup(
        &self,
        node: NodeId,
        names: &[&[u8]],
        open: Option<Access>,
    ) -> Result<(Walked, Option<OwnedFd>), Errno> {
        if names.is_empty() || names.len() > MAX_STEPS {
            return Err(Errno::EINVAL);
        }
        let names = names
            .iter()
            .map(|name| component(name))
            .collect::<Result<Vec<_>, _>>()?;
        let count = names.len();
        let (reply, fd) = self.call(&Request::Lookup { node, names, open })?;
        let Reply::Walked(walked) = reply else {
            return Err(Errno::EIO);
        };
        let complete = walked.stop == crate::protocol::Stop::Complete;
        if walked.steps.len() > count
            || complete != (walked.steps.len() == count)
            || walked.opened.is_some() != (complete && open.is_some())
        {
            return Err(Errno::EIO);
        }
        let fd = match (fd, open) {
            (Some(fd), Some(access)) => Some(regular(fd, access)?),
            (None, _) => None,
            (Some(_), None) => return Err(Errno::EIO),
        };
        Ok((walked, fd))
    }

    /// Lists a directory: `node`, or `name` in it. `cursor` is 0 or what the last listing gave.
    ///
    /// # Errors
    /// `ENOTDIR`, `EACCES`, `ESTALE`…
    pub fn list(&self, node: NodeId, name: Option<&[u8]>, cursor: u64) -> Result<Listing, Errno> {
        let named = name.is_some();
        let name = name.map(component).transpose()?;
        match self.call(&Request::List { node, name, cursor })? {
            (Reply::Listing(listing), None) if listing.directory.is_some() == named => Ok(listing),
            _ => Err(Errno::EIO),
        }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// `EISDIR` for directories, `EACCES` for what is neither file nor directory, `EROFS`, `ESTALE`…
    pub fn open(&self, node: NodeId, access: Access) -> Result<(Attributes, OwnedFd), Errno> {
        match self.call(&Request::Open { node, access })? {
            (Reply::Opened(opened), Some(fd)) => Ok((opened.attributes, regular(fd, access)?)),
            _ => Err(Errno::EIO),
        }
    }

    /// Opens regular files of a directory for reading, at most [`MAX_AHEAD`]: for each name the file's device and inode
    /// number and the descriptor, if it could be opened.
    ///
    /// # Errors
    /// Those that concern the directory; `EMFILE` if not all descriptors find room here.
    pub fn open_ahead(&self, node: NodeId, names: &[&[u8]]) -> Result<Vec<Option<OpenedAhead>>, Errno> {
        let names = names
            .iter()
            .map(|name| component(name))
            .collect::<Result<Vec<_>, _>>()?;
        if names.is_empty() || names.len() > MAX_AHEAD {
            return Err(Errno::EINVAL);
        }
        let count = names.len();
        let (reply, fds) = self.call_with(&Request::OpenAhead { node, names }, None)?;
        let Reply::OpenedAhead(opened) = reply else {
            return Err(Errno::EIO);
        };
        if opened.len() != count {
            return Err(Errno::EIO);
        }
        let mut fds = fds.into_iter();
        let mut next = || {
            let fd = regular(fds.next().ok_or(Errno::EIO)?, Access::Read)?;
            let stat = fstat(&fd).map_err(nix_errno)?;
            Ok(OpenedAhead {
                fd,
                dev: stat.st_dev,
                ino: stat.st_ino,
            })
        };
        opened
            .into_iter()
            .map(|opened| opened.then(&mut next).transpose())
            .collect()
    }

    /// Present attributes.
    ///
    /// # Errors
    /// `ESTALE` if the name leads to another file now.
    pub fn attributes(&self, node: NodeId) -> Result<Attributes, Errno> {
        self.attributes_of(&Request::GetAttributes { node })
    }

    fn attributes_of(&self, request: &Request<'_>) -> Result<Attributes, Errno> {
        match self.call(request)? {
            (Reply::Attributes(attributes), None) => Ok(attributes),
            _ => Err(Errno::EIO),
        }
    }

    fn bytes_of(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        match self.call(request)? {
            (Reply::Bytes(bytes), None) => Ok(bytes),
            _ => Err(Errno::EIO),
        }
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.bytes_of(&Request::ReadLink { node })
    }

    /// Totals of the file system in which a node is.
    ///
    /// # Errors
    /// Those of fstatfs(2).
    pub fn fs_totals(&self, node: NodeId) -> Result<FsTotals, Errno> {
        match self.call(&Request::FsTotals { node })? {
            (Reply::FsTotals(totals), None) => Ok(totals),
            _ => Err(Errno::EIO),
        }
    }

    /// The value of an extended attribute (`user.` only).
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`, `ERANGE`…
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return Err(Errno::ERANGE);
        }
        self.bytes_of(&Request::GetXattr { node, name })
    }

    /// The names of the extended attributes that are served.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `ERANGE`…
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
        let names = self.bytes_of(&Request::ListXattr { node })?;
        Ok(names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect())
    }

    fn created(&self, request: &Request<'_>) -> Result<(Step, Option<OwnedFd>), Errno> {
        match self.call(request)? {
            (Reply::Created(step, _), fd) => Ok((step, fd)),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes a regular file, which must not be there yet.
    ///
    /// # Errors
    /// `EEXIST`, `EROFS`, `EACCES`…
    pub fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        owner: Owner,
        open: Option<Access>,
    ) -> Result<(Step, Option<OwnedFd>), Errno> {
        let name = component(name)?;
        let (step, fd) = self.created(&Request::Create {
            parent,
            name,
            mode: mode & 0o7777,
            owner,
            open,
        })?;
        match (fd, open) {
            (None, None) => Ok((step, None)),
            (Some(fd), Some(access)) => Ok((step, Some(regular(fd, access)?))),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST`, `EROFS`, `EACCES`…
    pub fn make_directory(&self, parent: NodeId, name: &[u8], mode: u32, owner: Owner) -> Result<Step, Errno> {
        let name = component(name)?;
        match self.created(&Request::MakeDirectory {
            parent,
            name,
            mode: mode & 0o7777,
            owner,
        })? {
            (step, None) => Ok(step),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// `EEXIST`, `EROFS`, `EACCES`…
    pub fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], owner: Owner) -> Result<Step, Errno> {
        if target.is_empty() || target.contains(&0) {
            return Err(Errno::ENOENT);
        }
        if target.len() > MAX_TARGET {
            return Err(Errno::ENAMETOOLONG);
        }
        match self.created(&Request::Symlink {
            parent,
            name: component(name)?,
            target,
            owner,
        })? {
            (step, None) => Ok(step),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes a hard link to `node`; answers its new attributes.
    ///
    /// # Errors
    /// `EXDEV` between exports, `EPERM` for directories, `EEXIST`, `EROFS`…
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Attributes, Errno> {
        self.attributes_of(&Request::Link {
            node,
            parent,
            name: component(name)?,
        })
    }

    fn done(&self, request: &Request<'_>) -> Result<(), Errno> {
        match self.call(request)? {
            (Reply::Done, None) => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn removed(&self, request: &Request<'_>) -> Result<Option<Removed>, Errno> {
        match self.call(request)? {
            (Reply::Removed(removed), None) => Ok(removed),
            _ => Err(Errno::EIO),
        }
    }

    /// Removes a name: a directory's or another's. Answers which file has lost it, if that is certain.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`, `EROFS`…
    pub fn unlink(&self, parent: NodeId, name: &[u8], directory: bool) -> Result<Option<Removed>, Errno> {
        self.removed(&Request::Unlink {
            parent,
            name: component(name)?,
            directory,
        })
    }

    /// Renames within an export. `flags`: 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`. Answers which file has lost the
    /// name to the other, if one has.
    ///
    /// # Errors
    /// `EXDEV` between exports, `EINVAL` for other flags…
    pub fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags: u32) -> Result<Option<Removed>, Errno> {
        if !matches!(flags, 0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) {
            return Err(Errno::EINVAL);
        }
        let (name, new_name) = (component(from.1)?, component(to.1)?);
        self.removed(&Request::Rename {
            parent: from.0,
            name,
            new_parent: to.0,
            new_name,
            flags,
        })
    }

    /// Changes attributes; answers the new ones.
    ///
    /// # Errors
    /// `EROFS`, `EPERM`, `EINVAL`…
    pub fn set_attributes(&self, node: NodeId, set: &NewAttributes) -> Result<Attributes, Errno> {
        let mut set = *set;
        set.mode = set.mode.map(|mode| mode & 0o7777);
        // What means "leave it" to Linux.
        set.uid = set.uid.filter(|uid| *uid != u32::MAX);
        set.gid = set.gid.filter(|gid| *gid != u32::MAX);
        let nsec_valid = [set.atime, set.mtime]
            .into_iter()
            .flatten()
            .all(|time| time.nsec < 1_000_000_000);
        if !nsec_valid || set.size.is_some_and(|size| i64::try_from(size).is_err()) {
            return Err(Errno::EINVAL);
        }
        self.attributes_of(&Request::SetAttributes { node, set })
    }

    /// Opens a memory file once more, for reading only.
    ///
    /// # Errors
    /// `EACCES` if `file` is no memory file that is open for reading and writing; `EOPNOTSUPP` if the gofer has no
    /// /proc.
    pub fn reopen(&self, file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        match self.call_with(&Request::Reopen, Some(file))? {
            (Reply::Reopened, mut opened) => {
                let opened = regular(opened.pop().ok_or(Errno::EIO)?, Access::Read)?;
                let (ours, theirs) = (fstat(file).map_err(nix_errno)?, fstat(&opened).map_err(nix_errno)?);
                if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) {
                    return Err(Errno::EIO);
                }
                Ok(opened)
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Has a regular file held that is about to lose its name: `node` stays good until it is forgotten.
    ///
    /// # Errors
    /// `ENFILE` if there are too many.
    pub fn hold(&self, node: NodeId) -> Result<(), Errno> {
        self.done(&Request::Hold { node })
    }

    /// What is known of the host's changes.
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Has a directory watched, until its node is forgotten; answers the number of the watch. The caller owes a
    /// [`Watches::release`].
    ///
    /// # Errors
    /// `EMFILE`, `ENOSPC` if there are too many watches, `EACCES` for what may not be listed.
    pub fn watch(&self, node: NodeId) -> Result<i32, Errno> {
        if !self.watches.started() {
            match self.call(&Request::Notifications { reports: false })? {
                (Reply::Notifications, Some(fd)) => self.watches.start(notifications(fd)?),
                _ => return Err(Errno::EIO),
            }
        }
        match self.call(&Request::Watch { node })? {
            (Reply::Watched(watch), None) => {
                self.watches.add(watch);
                Ok(watch)
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Has all changes of a file or directory reported by [`Self::reports`] (`names_only`: not of children that have lost
    /// their names), until [`Self::end_report`]; answers the number that the events have. One file has one number,
    /// however often it is asked for.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn report(&self, node: NodeId, names_only: bool) -> Result<i32, Errno> {
        if self.reports.get().is_none() {
            match self.call(&Request::Notifications { reports: true })? {
                (Reply::Notifications, Some(fd)) => drop(self.reports.set(notifications(fd)?)),
                _ => return Err(Errno::EIO),
            }
        }
        match self.call(&Request::Report { node, names_only })? {
            (Reply::Watched(watch), None) => Ok(watch),
            _ => Err(Errno::EIO),
        }
    }

    /// Ends a report.
    ///
    /// # Errors
    /// `EIO` if the gofer is gone.
    pub fn end_report(&self, watch: i32) -> Result<(), Errno> {
        self.done(&Request::EndReport { watch })
    }

    /// The inotify descriptor with the reports, once there are any.
    pub fn reports(&self) -> Option<BorrowedFd<'_>> {
        self.reports.get().map(OwnedFd::as_fd)
    }
}

fn component(name: &[u8]) -> Result<Name<'_>, Errno> {
    Name::new(name).map_err(|_| {
        if name.len() > 255 {
            Errno::ENAMETOOLONG
        } else {
            Errno::EINVAL
        }
    })
}

/// The gofer is not trusted: what it gives must be a regular file, on which nothing blocks for ever, and have the
/// access mode that was asked for.
fn regular(fd: OwnedFd, access: Access) -> Result<OwnedFd, Errno> {
    let stat = fstat(&fd).map_err(nix_errno)?;
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).map_err(nix_errno)?);
    let mode = (flags & OFlag::O_ACCMODE).bits();
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || flags.contains(OFlag::O_PATH) || mode != access.flags() {
        return Err(Errno::EIO);
    }
    Ok(fd)
}

/// What reads from it must not wait. (A gofer can make it wait later, as it can leave requests unanswered.)
fn notifications(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).map_err(nix_errno)?);
    if flags.contains(OFlag::O_NONBLOCK) && !flags.contains(OFlag::O_PATH) {
        Ok(fd)
    } else {
        Err(Errno::EIO)
    }
}
