//! Host files: the file system over a gofer's export.
//!
//! An inode is a name that the gofer has shown, and the file that it was. Data never travels in messages: an open
//! file is a descriptor that the gofer opened. What is cached depends on the mount:
//!
//! - [`Caching::Forever`], for trees that nobody else changes while the sandbox runs: the third look-up in a
//!   directory brings the whole directory, and from then on what is there and what is not is answered from memory,
//!   attributes too. Descriptors opened for reading stay for the next open (the [`MAX_DESCRIPTORS`] used last), and who
//!   opens file after file gets several at a time.
//! - [`Caching::Revalidate`], for trees that the host and the guest share (`--rw`): in directories that the gofer
//!   watches, what was seen counts until an event says that it changed, which is looked up each time
//!   ([`sentry_gofer::watches`]), but for no longer than [`VALIDITY`]: stores to a mapping, reads, new hard links, and other
//!   machines' changes are no events. Else the gofer is asked: about files with several names, which may be changed by another,
//!   about what is not watched, and always by an open. That a name is absent is never remembered. While a file is
//!   open, its attributes come from its descriptor.
//!
//! A directory with more than [`MAX_NAMES`] names, or one that may be passed but not listed, is looked up name by
//! name.
//!
//! A request to the gofer may be made under a `directory` only, and no two of those are held together.

mod ahead;
mod count;
mod directory;
mod file;
mod fresh;
mod inode;
mod ledger;
mod meter;
mod reports;
mod tally;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_gofer::protocol::{self, NodeId, Owner, Step, Stop};
use sentry_gofer::watches::Moment;
use sentry_gofer::{Access, Time};
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, rank};

use crate::inode::{Attributes, Inode, NewInode, Timestamp};
use ahead::Waiting;
use directory::Directory;
use ledger::Use;

pub use ledger::Ledger;
pub use tally::ChangedFiles;

/// How long an answer counts in a tree that others change too.
pub const VALIDITY: Duration = Duration::from_secs(1);
/// The most descriptors that are kept for the next open.
pub const MAX_DESCRIPTORS: usize = 128;
/// The most names of a directory that are kept.
pub const MAX_NAMES: usize = 8192;
/// Like 9p, over which such trees usually come.
const MAGIC: u64 = 0x0102_1997;

/// How far answers of the gofer count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Nobody else changes the tree.
    Forever,
    /// The host changes it too.
    Revalidate,
}

/// An attached export.
struct GoferFs {
    client: Arc<Client>,
    writable: bool,
    caching: Caching,
    /// The guest's device numbers for the host's: the host's own are not shown.
    devices: Mutex<HashMap<u64, u64>, rank::GoferDevices>,
    descriptors: Mutex<Descriptors, rank::GoferDescriptors>,
    /// What guests add to host files and which they change, if somebody counts.
    ledger: Option<Arc<Ledger>>,
}

/// Descriptors for reading that are there for the next open.
#[derive(Default)]
struct Descriptors {
    kept: VecDeque<CachedDescriptor>,
    waiting: VecDeque<Waiting>,
}

struct CachedDescriptor {
    /// Held, so that the inode's weak reference stays good.
    _fd: Arc<OwnedFd>,
    identity: Identity,
    /// Used since it last came to the front.
    used: Arc<AtomicBool>,
}

impl GoferFs {
    fn dev(&self, host: u64) -> u64 {
        let mut devices = self.devices.lock();
        // A tree with many mounts, or a gofer that makes them up.
        if devices.len() >= 1024 {
            return devices.get(&host).copied().unwrap_or(0);
        }
        *devices.entry(host).or_insert_with(crate::mount::new_anonymous_dev)
    }

    fn attributes(&self, host: &protocol::Attributes) -> Attributes {
        let time = |time: Time| Timestamp {
            sec: time.sec,
            nsec: time.nsec,
        };
        Attributes {
            dev: self.dev(host.dev),
            ino: host.ino,
            mode: host.mode,
            nlink: host.nlink,
            uid: host.uid,
            gid: host.gid,
            rdev: host.rdev,
            size: host.size,
            blocks: host.blocks,
            block_size: host.block_size,
            atime: time(host.atime),
            mtime: time(host.mtime),
            ctime: time(host.ctime),
            btime: time(host.btime),
        }
    }

    /// Keeps a descriptor for the next open; lets the ones go that were not used for longest.
    fn keep_descriptor(&self, fd: Arc<OwnedFd>, used: Arc<AtomicBool>, identity: Identity) {
        let mut gone = Vec::new();
        let mut descriptors = self.descriptors.lock();
        // Each entry is passed at most once while its mark is set, so this ends.
        while descriptors.kept.len() >= MAX_DESCRIPTORS {
            let Some(oldest) = descriptors.kept.pop_front() else {
                break;
            };
            if oldest.used.swap(false, Ordering::Relaxed) {
                descriptors.kept.push_back(oldest)
            } else {
                gone.push(oldest)
            }
        }
        descriptors.kept.push_back(CachedDescriptor {
            _fd: fd,
            used,
            identity,
        });
        drop(descriptors);
    }

    /// Closes what is kept of a file that goes.
    fn let_go(&self, identity: Identity) {
        let mut descriptors = self.descriptors.lock();
        let all = std::mem::take(&mut *descriptors);
        let (kept, stays) = all.kept.into_iter().partition(|kept| kept.identity == identity);
        descriptors.kept = stays;
        let of_file = |waiting: &Waiting| waiting.identity() == identity;
        let (waiting, stays) = all.waiting.into_iter().partition(of_file);
        descriptors.waiting = stays;
        drop(descriptors);
        // Closed without the lock.
        drop::<(VecDeque<CachedDescriptor>, VecDeque<Waiting>)>((kept, waiting));
    }

    /// Runs a request that brings a descriptor; makes room once if there is none.
    fn with_room<T>(&self, mut request: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        match request() {
            Err(Errno::EMFILE) => {
                let kept = std::mem::take(&mut *self.descriptors.lock());
                if kept.kept.is_empty() && kept.waiting.is_empty() {
                    return Err(Errno::EMFILE);
                }
                drop(kept);
                request()
            }
            result => result,
        }
    }
}

/// Which file of the host it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    dev: u64,
    ino: u64,
}

impl From<&protocol::Attributes> for Identity {
    fn from(attributes: &protocol::Attributes) -> Identity {
        Identity {
            dev: attributes.dev,
            ino: attributes.ino,
        }
    }
}

/// A directory and a name in it.
type Place = (Arc<GoferInode>, Box<[u8]>);

/// A file, directory or link of a gofer's export.
pub struct GoferInode {
    fs: Arc<GoferFs>,
    this: Weak<GoferInode>,
    /// The type bits, which do not change.
    kind: u32,
    /// The directory it is in and its name there; `None` for the root and for what was removed.
    place: Mutex<Option<Place>, rank::GoferPlace>,
    node: Mutex<Node, rank::GoferNode>,
    /// The number of the node's watch; 0 if there is none, -1 if there is none to be had.
    watch: AtomicI32,
    state: Mutex<State, rank::GoferState>,
    /// The gofer holds the file, which has lost its name or is about to.
    held: AtomicBool,
    /// Then, it counts.
    held_use: OnceLock<Option<Use>>,
    /// It is known that guests have changed it.
    noted: AtomicBool,
    /// The root of its export.
    is_export: bool,
    target: OnceLock<Vec<u8>>,
    directory: LongMutex<Directory, rank::GoferDirectory>,
    reading: Mutex<Option<Reading>, rank::GoferReading>,
}

/// The gofer's number for the inode, and how often it gave it out.
#[derive(Default)]
struct Node {
    id: Option<NodeId>,
    references: u32,
}

/// What was last heard of the inode.
struct State {
    identity: Identity,
    attributes: Attributes,
    /// When; not looked at with [`Caching::Forever`], as what follows.
    at: Instant,
    /// The moment before it was asked for.
    since: Moment,
    /// The same for its owner, which only the gofer knows.
    owner_since: Moment,
    /// False if a change of our own has made the attributes wrong.
    valid: bool,
    /// The descriptor that was opened last.
    open: Weak<OwnedFd>,
    /// The descriptor that was opened last for writing.
    open_writable: Weak<OwnedFd>,
}

/// The descriptor for reading that the next open gets too.
struct Reading {
    fd: Weak<OwnedFd>,
    used: Arc<AtomicBool>,
}

/// Attaches to an export; answers its root.
///
/// # Errors
/// `ENOENT` if the gofer has no such export, `EIO` if it is gone.
pub fn attach(client: &Arc<Client>, export: u32, caching: Caching) -> Result<Arc<GoferInode>, Errno> {
    attach_counted(client, export, caching, None)
}

/// As [`attach`]; what guests change in it is written down.
///
/// # Errors
/// As [`attach`].
pub fn attach_counted(
    client: &Arc<Client>,
    export: u32,
    caching: Caching,
    ledger: Option<&Arc<Ledger>>,
) -> Result<Arc<GoferInode>, Errno> {
    let attached = client.attach(export)?;
    let fs = Arc::new(GoferFs {
        client: client.clone(),
        writable: attached.writable,
        caching,
        devices: Mutex::default(),
        descriptors: Mutex::default(),
        ledger: ledger.cloned(),
    });
    if let (Some(ledger), Caching::Forever) = (ledger, caching) {
        ledger.keeps_descriptors(&fs);
    }
    let before = Moment::default();
    let root = GoferInode::new(&fs, None, &attached.root.attributes, attached.root.target, before);
    root.adopt(attached.root.node);
    Ok(root)
}

fn access_of(flags: u32) -> Access {
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        _ => Access::ReadWrite,
    }
}

impl GoferInode {
    fn new(
        fs: &Arc<GoferFs>,
        place: Option<Place>,
        host: &protocol::Attributes,
        target: Option<Vec<u8>>,
        since: Moment,
    ) -> Arc<GoferInode> {
        let is_export = place.is_none();
        Arc::new_cyclic(|this| GoferInode {
            fs: fs.clone(),
            is_export,
            this: this.clone(),
            kind: host.kind(),
            place: Mutex::new(place),
            node: Mutex::default(),
            watch: AtomicI32::new(0),
            state: Mutex::new(State {
                identity: Identity::from(host),
                attributes: fs.attributes(host),
                at: Instant::now(),
                since,
                owner_since: since,
                valid: true,
                open: Weak::new(),
                open_writable: Weak::new(),
            }),
            held: AtomicBool::new(false),
            held_use: OnceLock::new(),
            noted: AtomicBool::new(false),
            target: target.map(OnceLock::from).unwrap_or_default(),
            directory: LongMutex::default(),
            reading: Mutex::new(None),
        })
    }

    fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    fn identity(&self) -> Identity {
        self.state.lock().identity
    }

    /// Takes over a node that a reply gave out. Only directories keep theirs: requests name other files by their
    /// directory, and the gofer has a bound for nodes.
    fn adopt(&self, id: NodeId) {
        if !self.is_dir() && self.place.lock().is_some() {
            return self.fs.client.forget(id, 1);
        }
        self.keep_node(&mut self.node.lock(), id);
    }

    fn keep_node(&self, node: &mut Node, id: NodeId) {
        match node.id {
            Some(old) if old == id => node.references = node.references.saturating_add(1),
            _ => {
                self.give_back(node);
                *node = Node {
                    id: Some(id),
                    references: 1,
                };
            }
        }
    }

    /// Takes the number away and tells the gofer.
    fn give_back(&self, node: &mut Node) {
        let old = std::mem::take(node);
        self.unwatched();
        if let Some(id) = old.id {
            self.fs.client.forget(id, old.references);
        }
    }

    /// The gofer's number for this inode; asks for one if there is none.
    fn node(&self) -> Result<NodeId, Errno> {
        if let Some(id) = self.node.lock().id {
            return Ok(id);
        }
        // Without the lock: the parent may need one of its own, and a rename may put parents below their children.
        let (parent, name) = self.place().ok_or(Errno::ESTALE)?;
        let (step, _) = parent.request_lookup(&name, None)?;
        if step.attributes.kind() != self.kind || Identity::from(&step.attributes) != self.identity() {
            self.fs.client.forget(step.node, 1);
            return Err(Errno::ESTALE);
        }
        let mut node = self.node.lock();
        match node.id {
            // Somebody else has got one meanwhile, and uses it.
            Some(id) if id != step.node => {
                self.fs.client.forget(step.node, 1);
                Ok(id)
            }
            _ => {
                self.keep_node(&mut node, step.node);
                Ok(step.node)
            }
        }
    }

    /// Makes a request that names this inode; once more with a new number if the gofer does not take the old one.
    fn with_node<T>(&self, mut request: impl FnMut(NodeId) -> Result<T, Errno>) -> Result<T, Errno> {
        let id = self.node()?;
        match request(id) {
            Err(Errno::ESTALE) if self.place.lock().is_some() => {
                {
                    let mut node = self.node.lock();
                    if node.id == Some(id) {
                        self.give_back(&mut node);
                    }
                }
                request(self.node()?)
            }
            result => result,
        }
    }

    /// Asks the gofer for a name in this directory, and opens it if `open` says so. The caller owes a `forget`.
    fn request_lookup(&self, name: &[u8], open: Option<Access>) -> Result<(Step, Option<OwnedFd>), Errno> {
        match self.request_walk(name, open)? {
            (step, Some(Err(errno))) => {
                self.fs.client.forget(step.node, 1);
                Err(errno)
            }
            (step, Some(Ok(fd))) => Ok((step, Some(fd))),
            (step, None) => Ok((step, None)),
        }
    }

    /// Asks for a name, and on the way for a descriptor for reading, if the file has one to give: most files that are
    /// asked for one by one are opened next.
    fn request_lookup_ahead(&self, name: &[u8]) -> Result<(Step, Option<OwnedFd>), Errno> {
        match self.request_walk(name, Some(Access::Read)) {
            Ok((step, opened)) => Ok((step, opened.and_then(Result::ok))),
            // No room for a descriptor.
            Err(Errno::EMFILE) => self.request_lookup(name, None),
            Err(errno) => Err(errno),
        }
    }

    fn request_walk(&self, name: &[u8], open: Option<Access>) -> Result<(Step, Option<Result<OwnedFd, Errno>>), Errno> {
        let (mut walked, fd) = self.with_node(|id| self.fs.client.lookup(id, &[name], open))?;
        let step = match walked.stop {
            Stop::Complete => walked.steps.pop().ok_or(Errno::EIO)?,
            Stop::Missing => return Err(Errno::ENOENT),
            Stop::NotDirectory => return Err(Errno::ENOTDIR),
            Stop::Failed(errno) => return Err(errno),
        };
        let opened = walked.opened.map(|opened| opened.and_then(|()| fd.ok_or(Errno::EIO)));
        Ok((step, opened))
    }

    /// The descriptor for reading that is still there from an earlier open.
    fn kept_descriptor(&self) -> Option<Arc<OwnedFd>> {
        let reading = self.reading.lock();
        let reading = reading.as_ref()?;
        let fd = reading.fd.upgrade()?;
        if !reading.used.load(Ordering::Relaxed) {
            reading.used.store(true, Ordering::Relaxed);
        }
        Some(fd)
    }

    /// Opens the regular file.
    fn open_file(&self, access: Access) -> Result<Arc<OwnedFd>, Errno> {
        let keeps = access == Access::Read && self.fs.caching == Caching::Forever;
        if keeps && let Some(fd) = self.kept_descriptor() {
            return Ok(fd);
        }
        if keeps && let Some(fd) = self.opened_ahead()? {
            return Ok(fd);
        }
        let since = self.moment();
        let (attributes, fd) = self.fs.with_room(|| match self.place() {
            Some((parent, name)) => {
                let (step, fd) = parent.request_lookup(&name, Some(access))?;
                self.adopt(step.node);
                Ok((step.attributes, fd.ok_or(Errno::EIO)?))
            }
            None => self.with_node(|id| self.fs.client.open(id, access)),
        })?;
        // The name may lead to another file by now (an upgrade on the host): it is the one that was opened.
        self.note(&attributes, since);
        let fd = self.opened(fd, access);
        if keeps {
            self.keep(&fd);
        }
        Ok(fd)
    }

    /// Keeps a descriptor for reading for the next open.
    fn keep(&self, fd: &Arc<OwnedFd>) {
        let used = Arc::new(AtomicBool::new(false));
        *self.reading.lock() = Some(Reading {
            fd: Arc::downgrade(fd),
            used: used.clone(),
        });
        self.fs.keep_descriptor(fd.clone(), used, self.identity());
    }

    /// Notes what the gofer opened.
    fn opened(&self, fd: OwnedFd, access: Access) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        let mut state = self.state.lock();
        state.open = Arc::downgrade(&fd);
        if access.writes() {
            state.open_writable = Arc::downgrade(&fd);
        }
        fd
    }

    /// The directory is gone: there is nothing to ask the gofer about.
    fn removed_directory(&self) {
        self.give_back(&mut self.node.lock());
        self.state.lock().attributes.nlink = 0;
    }

    fn writable(&self) -> Result<(), Errno> {
        if self.fs.writable { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// An inode of the same file system, in its own type.
    fn own<'a>(&self, other: &'a Arc<dyn Inode>) -> Result<&'a GoferInode, Errno> {
        let other = other.as_any().downcast_ref::<GoferInode>().ok_or(Errno::EXDEV)?;
        if Arc::ptr_eq(&other.fs, &self.fs) {
            Ok(other)
        } else {
            Err(Errno::EXDEV)
        }
    }

    fn owner(new: &NewInode) -> Owner {
        Owner {
            uid: new.uid,
            gid: new.gid,
        }
    }
}

impl Drop for GoferInode {
    fn drop(&mut self) {
        self.unwatched();
        let node = self.node.get_mut();
        match node.id {
            Some(id) if *self.held.get_mut() => self.fs.client.forget_now(id, node.references),
            Some(id) => self.fs.client.forget(id, node.references),
            None => {}
        }
        // Directories go one by one: a deep tree must not be dropped by recursion.
        let mut next = self.place.get_mut().take();
        while let Some((parent, _)) = next {
            next = Arc::into_inner(parent).and_then(|mut parent| parent.place.get_mut().take());
        }
    }
}
