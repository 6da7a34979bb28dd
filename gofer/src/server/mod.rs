//! The gofer process: opens the exports, gives up everything else, and answers requests until its socket closes.

mod apart;
mod change;
mod export;
mod held;
mod nodes;
mod owners;
mod read;
mod reopen;
mod restrict;
mod walk;
mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use sentry_abi::Errno;
use sentry_host::{files, memory_file, namespaces, scm};

pub use export::{CREDENTIALS, Export};
pub use owners::owners_calls;
pub use restrict::{RestrictError, Restrictions, host_calls};

use crate::protocol::{Attributes, MAX_REPLY, MAX_REQUEST, Name, NodeId, Reply, Request, Step};
use apart::Apart;
use export::{CREDENTIAL_DEPTH, OpenExport};
use nodes::Nodes;
use owners::Owners;
use walk::{Found, Identity, Walker};
use watch::Watcher;

/// Why the gofer does not start or stops.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ServerError {
    #[error("cannot serve {}: {error}", path.display())]
    Export { path: PathBuf, error: io::Error },
    #[error("cannot serve {}: it is neither a directory nor a regular file", .0.display())]
    NeitherFileNorDirectory(PathBuf),
    #[error("cannot serve {}: what only everybody's rights open cannot be writable", .0.display())]
    Contradiction(PathBuf),
    #[error("two exports have the number {0}")]
    Twice(u32),
    #[error("the gofer could not restrict itself: {0}")]
    Restrict(#[from] RestrictError),
    #[error("the gofer's socket failed: {0}")]
    Socket(io::Error),
    #[error("the sentry sent what is no request")]
    NoRequest,
}

/// The gofer's state.
pub struct Server {
    exports: Vec<OpenExport>,
    nodes: Nodes,
    walker: Walker,
    /// This process's `/proc/self/fd`, if /proc was there at the start.
    own_descriptors: Option<OwnedFd>,
    /// What is watched.
    watcher: Watcher,
    /// Who knows the owners of files, if the gofer does not see them.
    owners: Option<Owners>,
    /// How far the process is set apart.
    apart: Restrictions,
}

/// What an operation answers: the reply and, for some, descriptors.
type Answer = Result<(Reply, Vec<OwnedFd>), Errno>;

/// Sets the process apart, opens the exports, restricts the process ([`Server::restrict_self`]) and serves `socket`
/// until it closes. To be called by the process's only thread.
///
/// # Errors
/// If an export cannot be opened, a restriction not be applied, or the other side breaks the protocol.
pub fn run(socket: OwnedFd, exports: &[Export]) -> Result<(), ServerError> {
    let mut server = Server::open_apart(exports)?;
    server.restrict_self()?;
    server.serve(socket.as_fd())
}

impl Server {
    /// Opens the exports' places on the host, and nothing else after that by an absolute path.
    ///
    /// # Errors
    /// If one cannot be opened or is neither a directory nor a regular file.
    pub fn open(exports: &[Export]) -> Result<Server, ServerError> {
        Server::open_in(exports, Apart::default())
    }

    /// As [`Server::open`], in namespaces of the process's own and from an empty root, as far as the host allows.
    /// To be called by the process's only thread.
    ///
    /// # Errors
    /// Those of [`Server::open`].
    pub fn open_apart(exports: &[Export]) -> Result<Server, ServerError> {
        let apart = Apart::enter(exports);
        let mut server = Server::open_in(exports, apart)?;
        let apart = &mut server.apart;
        apart.empty_root = apart.namespaces && namespaces::enter_empty_root().is_ok();
        if let Some(own) = &server.own_descriptors
            && nix::unistd::fchdir(own).is_ok()
        {
            server.watcher.names_from_here();
        }
        Ok(server)
    }

    fn open_in(exports: &[Export], apart: Apart) -> Result<Server, ServerError> {
        for (index, export) in exports.iter().enumerate() {
            if exports[..index].iter().any(|other| other.id == export.id) {
                return Err(ServerError::Twice(export.id));
            }
        }
        let exports: Vec<_> = exports
            .iter()
            .map(|export| OpenExport::open(export, apart.namespaces))
            .collect::<Result<_, _>>()?;
        let walker = Walker::new(exports.iter().map(|export| export.base.as_fd()));
        let own = Some(c"/proc/self/fd").filter(|_| apart.namespaces);
        let own = own.and_then(|path| files::clone_tree(path).ok());
        let detached = own.is_some() && exports.iter().all(|export| export.detached);
        Ok(Server {
            exports,
            nodes: Nodes::default(),
            walker,
            own_descriptors: own.or_else(|| memory_file::own_descriptors().ok()),
            watcher: Watcher::default(),
            owners: apart.owners,
            apart: Restrictions {
                namespaces: apart.namespaces,
                user_namespace: apart.user_namespace,
                detached,
                ..Restrictions::default()
            },
        })
    }

    /// Walks without openat2(2), as on kernels before 5.6.
    pub fn without_openat2(mut self) -> Server {
        self.walker.without_openat2();
        self
    }

    /// Takes from this process what serving does not need, for good. See [`Restrictions`]. To be called by the
    /// process's only thread: capabilities and Landlock are a thread's.
    ///
    /// # Errors
    /// If the host refuses one of those that are not optional.
    pub fn restrict_self(&self) -> Result<Restrictions, RestrictError> {
        restrict::restrict_self(&self.exports, self.apart)
    }

    /// Answers requests until the other side closes its socket.
    ///
    /// # Errors
    /// If the socket fails or brings something that is not even the head of a request.
    pub fn serve(&mut self, socket: BorrowedFd<'_>) -> Result<(), ServerError> {
        let mut request = vec![0; MAX_REQUEST];
        let mut reply = Vec::with_capacity(MAX_REPLY);
        loop {
            let (len, fd) = match scm::recv_with_fds(socket, &mut request, 1) {
                Ok((0, _)) => return Ok(()),
                Ok((len, mut fds)) => (len, fds.pop()),
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(()),
                // Too long, or with several descriptors.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EMFILE)) => {
                    return Err(ServerError::NoRequest);
                }
                Err(error) => return Err(ServerError::Socket(error)),
            };
            let message = request.get(..len).unwrap_or_default();
            let [_, opcode, id @ ..] = message else {
                return Err(ServerError::NoRequest);
            };
            let Some(id) = id.first_chunk() else {
                return Err(ServerError::NoRequest);
            };
            let (opcode, id) = (*opcode, u32::from_le_bytes(*id));
            let answer = match Request::decode(message) {
                Ok((_, request)) if request.has_descriptor() != fd.is_some() => Err(Errno::EPROTO),
                Ok((_, Request::Reopen)) => fd.ok_or(Errno::EPROTO).and_then(|fd| self.reopen(&fd)),
                Ok((_, Request::Forget { nodes })) => {
                    for (node, count) in nodes {
                        self.nodes.forget(node, count);
                    }
                    self.watcher.forget(self.nodes.take_unwatched());
                    continue;
                }
                Ok((_, request)) => self.answer(&request),
                Err(_) => Err(Errno::EPROTO),
            };
            if !send(socket, answer, opcode, id, &mut reply)? {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, request: &Request<'_>) -> Answer {
        match request {
            Request::Attach { export } => self.attach(*export),
            Request::Lookup { node, names, open } => self.lookup(*node, names, *open),
            Request::List { node, name, cursor } => self.list(*node, *name, *cursor),
            Request::Open { node, access } => self.open_node(*node, *access),
            Request::GetAttributes { node } => self.find(*node).and_then(|found| self.tell(&found)),
            Request::ReadLink { node } => self.read_link(*node),
            Request::FsTotals { node } => self.fs_totals(*node),
            Request::GetXattr { node, name } => self.get_xattr(*node, name),
            Request::ListXattr { node } => self.list_xattr(*node),
            Request::Create {
                parent,
                name,
                mode,
                owner,
                open,
            } => self.create(*parent, *name, *mode, *owner, *open),
            Request::MakeDirectory {
                parent,
                name,
                mode,
                owner,
            } => self.make_directory(*parent, *name, *mode, *owner),
            Request::Symlink {
                parent,
                name,
                target,
                owner,
            } => self.symlink(*parent, *name, target, *owner),
            Request::Link { node, parent, name } => self.link(*node, *parent, *name),
            Request::Unlink {
                parent,
                name,
                directory,
            } => self.unlink(*parent, *name, *directory),
            Request::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename((*parent, *name), (*new_parent, *new_name), *flags),
            Request::SetAttributes { node, set } => self.set_attributes(*node, set),
            Request::Hold { node } => self.hold(*node),
            Request::Notifications { reports } => self.notifications(*reports),
            Request::Watch { node } => self.watch(*node),
            Request::Report { node, names_only } => self.report(*node, *names_only),
            Request::EndReport { watch } => self.end_report(*watch),
            Request::OpenAhead { node, names } => self.open_ahead(*node, names),
            Request::Forget { .. } | Request::Reopen => Err(Errno::EPROTO),
        }
    }

    /// Opens, with `O_PATH`, the file that was given out as `id`. `ESTALE` if another one has its place.
    fn find(&mut self, id: NodeId) -> Result<Found, Errno> {
        if let Some(held) = self.nodes.held(id) {
            return Found::of(held.try_clone()?);
        }
        let place = self.nodes.place(id)?;
        let export = self.exports.get(place.export).ok_or(Errno::ESTALE)?;
        let found = match (&export.single, place.components.is_empty()) {
            // An editor replaces a file by renaming: it is the name that is served.
            (Some(name), true) => return self.walker.child(export.base.as_fd(), name),
            _ => self.walker.walk(export.base.as_fd(), &place.components),
        };
        let found = found.map_err(|errno| match errno {
            // A name that was given out is gone, or something on the way is no directory any more.
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => Errno::ESTALE,
            errno => errno,
        })?;
        if Identity::from(&found.attributes) == place.identity {
            Ok(found)
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// As [`Self::find`], and it is a directory through which the export's rules let everybody pass.
    fn find_directory(&mut self, id: NodeId) -> Result<Found, Errno> {
        let found = self.find(id)?;
        if !found.attributes.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if self.export_of(id)?.world_readable_only && found.attributes.mode & 0o001 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(found)
    }

    /// The directory in which a node is (or a single file's) and the name by which to open it there.
    fn find_parent(&mut self, id: NodeId) -> Result<(OwnedFd, Box<[u8]>), Errno> {
        match self.nodes.parent(id)? {
            Some((parent, name)) => Ok((self.find_directory(parent)?.fd, name)),
            None => {
                let export = self.export_of(id)?;
                let name = export.single.clone().ok_or(Errno::EISDIR)?;
                Ok((export.base.try_clone()?, name))
            }
        }
    }

    fn export_of(&self, id: NodeId) -> Result<&OpenExport, Errno> {
        self.exports.get(self.nodes.export(id)?).ok_or(Errno::ESTALE)
    }

    /// Opens, for `access` (`O_RDONLY`…), the regular file that [`Self::find`] has found as `node`.
    fn open_regular(&mut self, node: NodeId, found: &Found, access: libc::c_int) -> Result<Found, Errno> {
        if self.nodes.held(node).is_some() {
            return self.open_held(found, access);
        }
        let (dir, name) = self.find_parent(node)?;
        self.walker.regular_file(dir.as_fd(), &name, &found.attributes, access)
    }

    /// True if `name` in `directory` is left out of the export.
    fn hides(&self, directory: NodeId, name: Name<'_>) -> Result<bool, Errno> {
        let place = self.nodes.place(directory)?;
        let export = self.exports.get(place.export).ok_or(Errno::ESTALE)?;
        Ok(export.hides(last_components(&place.components), name.as_bytes()))
    }

    /// Gives out what was found at `name` in `parent`.
    fn step(&mut self, parent: NodeId, name: Name<'_>, found: &Found) -> Result<Step, Errno> {
        let target = read::link_target(found)?;
        let attributes = self.with_owner(found)?;
        let node = self
            .nodes
            .child(parent, name.as_bytes(), Identity::from(&found.attributes))?;
        Ok(Step {
            node,
            attributes,
            target,
        })
    }

    /// The attributes with the true owner. (Those of a [`Found`] have the one that this process sees.)
    fn with_owner(&mut self, found: &Found) -> Result<Attributes, Errno> {
        let mut attributes = found.attributes;
        if let Some(owners) = &mut self.owners {
            owners.complete(found.fd.as_fd(), &mut attributes)?;
        }
        Ok(attributes)
    }

    /// Answers with the attributes of what was found.
    fn tell(&mut self, found: &Found) -> Answer {
        Ok((Reply::Attributes(self.with_owner(found)?), Vec::new()))
    }
}

/// The components that rules for credentials look at.
fn last_components<'a, 'b>(components: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
    &components[components.len().saturating_sub(CREDENTIAL_DEPTH)..]
}

/// Sends a reply; false if the other side has closed.
fn send(socket: BorrowedFd<'_>, answer: Answer, opcode: u8, id: u32, out: &mut Vec<u8>) -> Result<bool, ServerError> {
    let (result, fds) = match answer {
        Ok((reply, fds)) => (Ok(reply), fds),
        Err(errno) => (Err(errno), Vec::new()),
    };
    Reply::encode(&result, opcode, id, out);
    if out.len() > MAX_REPLY {
        Reply::encode(&Err(Errno::EOVERFLOW), opcode, id, out);
    }
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let sent = match scm::send_with_fds(socket, out, &fds) {
        // Too many of this user's descriptors are under way: no harm to others, an error for this request.
        Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            Reply::encode(&Err(Errno::ENFILE), opcode, id, out);
            scm::send_with_fds(socket, out, &[])
        }
        sent => sent,
    };
    match sent {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => Ok(false),
        Err(error) => Err(ServerError::Socket(error)),
    }
}
