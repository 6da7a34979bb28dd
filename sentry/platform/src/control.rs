//! The sentry's ends of the stubs' control sockets, by which descriptors are sent.
//!
//! Each guest process has a socket of its own: what is sent to one cannot be received by another. The sentry may have
//! more processes than it may have descriptors (`RLIMIT_NOFILE`), so the sockets of processes that were not sent
//! anything for long are handed to *keepers*: threads with a table of descriptors of their own, which hold such
//! sockets and pass on what is to be sent. To send by a keeper costs the wake of a thread; there is none as long as
//! the processes are few.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use sentry_abi::Errno;
use sentry_host::{scm, table};
use sentry_lock::{Mutex, rank};

/// The most descriptors that are sent at once.
pub(crate) const MAX_FDS: usize = 15;
/// What a keeper's table must have room for beside the sockets that it keeps.
const KEEPER_OWN: usize = MAX_FDS + 5;
/// A keeper tries for so long when too many descriptors are under way.
const TRIES: u32 = 500;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// The control sockets of all processes of a sandbox.
pub(crate) struct Controls {
    /// How many may be in the sentry's own table.
    limit: usize,
    /// How many a keeper may have.
    keeper_limit: usize,
    /// How many are in the sentry's own table.
    here: AtomicUsize,
    /// Those that may be handed to a keeper, in the order in which they are looked at.
    queue: Mutex<VecDeque<Weak<Control>>, rank::ControlQueue>,
    keepers: Mutex<Vec<Arc<Keeper>>, rank::Keepers>,
}

/// The socket of one process.
pub(crate) struct Control {
    place: Mutex<Place, rank::ControlPlace>,
    /// Something was sent since it was last looked at.
    used: AtomicBool,
    controls: Arc<Controls>,
}

enum Place {
    Here(OwnedFd),
    Kept(Arc<Keeper>, u64),
}

impl Controls {
    /// `descriptors`: how many this process may have (`RLIMIT_NOFILE`).
    pub fn new(descriptors: usize) -> Arc<Controls> {
        Arc::new(Controls {
            // The other half is for files.
            limit: (descriptors / 2).max(1),
            keeper_limit: descriptors.saturating_sub(KEEPER_OWN),
            here: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
            keepers: Mutex::new(Vec::new()),
        })
    }

    /// The socket of a process that is sent to as long as it lives, like the zygote: it stays here.
    pub fn pinned(self: &Arc<Controls>, socket: OwnedFd) -> Arc<Control> {
        self.here.fetch_add(1, Ordering::Relaxed);
        Arc::new(Control {
            place: Mutex::new(Place::Here(socket)),
            used: AtomicBool::new(false),
            controls: self.clone(),
        })
    }

    /// The socket of a new process.
    pub fn add(self: &Arc<Controls>, socket: OwnedFd) -> Arc<Control> {
        let control = self.pinned(socket);
        let here = self.here.load(Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.push_back(Arc::downgrade(&control));
        if queue.len() > 2 * here + 64 {
            queue.retain(|control| control.strong_count() > 0);
        }
        if here > self.limit {
            self.hand_over(&mut queue, here - self.limit);
        }
        control
    }

    /// Hands `count` sockets to keepers: of those at the front of the queue that were not used since they were last
    /// there, else of the others.
    fn hand_over(&self, queue: &mut VecDeque<Weak<Control>>, mut count: usize) {
        for _ in 0..2 * queue.len() {
            if count == 0 {
                return;
            }
            let Some(control) = queue.pop_front() else { return };
            let Some(control) = control.upgrade() else { continue };
            if control.used.swap(false, Ordering::Relaxed) {
                queue.push_back(Arc::downgrade(&control));
                continue;
            }
            // One that is being sent to is in use.
            let kept = control.place.try_lock().map(|mut place| match &*place {
                Place::Here(socket) => self.keep(socket.as_fd()).map(|kept| *place = kept),
                Place::Kept(..) => Ok(()),
            });
            match kept {
                Some(Ok(())) => count -= 1,
                None => queue.push_back(Arc::downgrade(&control)),
                Some(Err(_)) => {
                    // No keeper is to be had now. Then there are more here, as long as that is possible.
                    queue.push_back(Arc::downgrade(&control));
                    return;
                }
            }
        }
    }

    fn keep(&self, socket: BorrowedFd<'_>) -> Result<Place, Errno> {
        let mut keepers = self.keepers.lock();
        let free = keepers
            .iter()
            .find(|keeper| keeper.load.load(Ordering::Relaxed) < self.keeper_limit);
        let keeper = match free {
            Some(keeper) => keeper.clone(),
            None => {
                let keeper = Arc::new(Keeper::start()?);
                keepers.push(keeper.clone());
                keeper
            }
        };
        let key = keeper.keep(socket)?;
        self.here.fetch_sub(1, Ordering::Relaxed);
        Ok(Place::Kept(keeper, key))
    }
}

impl Control {
    /// Sends a message of one byte with descriptors to the stub. Never waits.
    ///
    /// # Errors
    /// `ETOOMANYREFS` if too many descriptors are under way: to be tried again later. Any other is for good.
    pub fn send(&self, byte: u8, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.used.store(true, Ordering::Relaxed);
        match &*self.place.lock() {
            Place::Here(socket) => scm::try_send_with_fds(socket.as_fd(), &[byte], fds)
                .map(drop)
                .map_err(Errno::from),
            Place::Kept(keeper, key) => keeper.send(*key, byte, fds),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        match self.place.get_mut() {
            Place::Here(_) => {
                self.controls.here.fetch_sub(1, Ordering::Relaxed);
            }
            Place::Kept(keeper, key) => keeper.forget(*key),
        }
    }
}

/// What a keeper is told. `Keep` and `Send` each come with a message on its socket.
enum Command {
    Keep(u64),
    Send(u64),
    Forget(u64),
}

/// A thread that keeps sockets.
struct Keeper {
    /// How many it has, or will have.
    load: AtomicUsize,
    line: Mutex<Line, rank::KeeperLine>,
}

/// The line to a keeper: descriptors come by the socket, what to do with them by the channel, in the same order.
struct Line {
    socket: OwnedFd,
    commands: Sender<Command>,
    next_key: u64,
}

impl Keeper {
    fn start() -> Result<Keeper, Errno> {
        let (socket, theirs) = scm::packet_pair().map_err(Errno::from)?;
        let (commands, receiver) = unbounded();
        table::spawn_with_own_table("keeper", 128 * 1024, theirs, move |socket| keep(&socket, &receiver))
            .map_err(Errno::from)?;
        Ok(Keeper {
            load: AtomicUsize::new(0),
            line: Mutex::new(Line {
                socket,
                commands,
                next_key: 0,
            }),
        })
    }

    fn keep(&self, socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        let mut line = self.line.lock();
        scm::try_send_with_fds(line.socket.as_fd(), &[0], &[socket]).map_err(Errno::from)?;
        self.load.fetch_add(1, Ordering::Relaxed);
        line.next_key += 1;
        let _ = line.commands.send(Command::Keep(line.next_key));
        Ok(line.next_key)
    }

    fn send(&self, key: u64, byte: u8, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let line = self.line.lock();
        match scm::try_send_with_fds(line.socket.as_fd(), &[byte], fds).map_err(Errno::from) {
            Ok(_) => {
                let _ = line.commands.send(Command::Send(key));
                Ok(())
            }
            // The keeper is behind.
            Err(Errno::EAGAIN) => Err(Errno::ETOOMANYREFS),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, key: u64) {
        let _ = self.line.lock().commands.send(Command::Forget(key));
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A keeper's thread: as long as there is anybody to send commands. Nothing in here may use a descriptor of the
/// sentry's own table.
fn keep(line: &OwnedFd, commands: &Receiver<Command>) {
    let mut kept: HashMap<u64, OwnedFd> = HashMap::new();
    let mut byte = [0];
    while let Ok(command) = commands.recv() {
        match command {
            Command::Forget(key) => drop(kept.remove(&key)),
            Command::Keep(key) => {
                if let Ok((_, fds)) = scm::try_recv_with_fds(line.as_fd(), &mut byte, 1) {
                    kept.extend(fds.into_iter().next().map(|socket| (key, socket)));
                }
            }
            Command::Send(key) => {
                let message = scm::try_recv_with_fds(line.as_fd(), &mut byte, MAX_FDS);
                if let (Ok((_, fds)), Some(socket)) = (message, kept.get(&key)) {
                    pass_on(socket, byte, &fds);
                }
            }
        }
    }
}

/// Sends to a stub. What fails is the stub's fault (it has closed its socket, or never receives), and the order that
/// waits for the descriptors fails by that.
fn pass_on(socket: &OwnedFd, byte: [u8; 1], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    for _ in 0..TRIES {
        match scm::try_send_with_fds(socket.as_fd(), &byte, &fds).map_err(Errno::from) {
            Err(Errno::ETOOMANYREFS) => std::thread::sleep(BETWEEN_TRIES),
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn received(socket: &OwnedFd) -> (u8, usize) {
        let mut byte = [0];
        let (length, fds) = scm::recv_with_fds(socket.as_fd(), &mut byte, MAX_FDS).expect("a message");
        assert_eq!(length, 1);
        for fd in &fds {
            let mut zero = [1];
            let mut file = File::from(fd.try_clone().expect("a copy"));
            assert_eq!((file.read(&mut zero).expect("read"), zero), (1, [0]));
        }
        (byte[0], fds.len())
    }

    fn is_here(control: &Control) -> bool {
        matches!(*control.place.lock(), Place::Here(_))
    }

    #[test]
    fn everybody_receives_what_is_for_them_wherever_the_socket_is() {
        let controls = Controls::new(40);
        let zero = File::open("/dev/zero").expect("open");
        let (mut all, mut stubs) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let (ours, theirs) = scm::packet_pair().expect("socketpair");
            all.push(controls.add(ours));
            stubs.push(theirs);
        }
        let here = all.iter().filter(|control| is_here(control)).count();
        assert_eq!((here, controls.here.load(Ordering::Relaxed)), (20, 20));
        assert_eq!(controls.keepers.lock().len(), 4);
        for (index, control) in all.iter().enumerate() {
            control
                .send(index as u8, &vec![zero.as_fd(); 1 + index % MAX_FDS])
                .expect("send");
        }
        for (index, stub) in stubs.iter().enumerate() {
            assert_eq!(received(stub), (index as u8, 1 + index % MAX_FDS));
        }
        // Who is gone is forgotten, and the stub sees it.
        for stub in stubs.drain(..50).zip(all.drain(..50)).map(|(stub, _)| stub) {
            assert_eq!(scm::recv_with_fds(stub.as_fd(), &mut [0], 0).expect("the end").0, 0);
        }
        let load = |keeper: &Arc<Keeper>| keeper.load.load(Ordering::Relaxed);
        let kept: usize = controls.keepers.lock().iter().map(load).sum();
        assert_eq!(kept, all.iter().filter(|control| !is_here(control)).count());
        drop(all);
        assert_eq!(controls.here.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_used_ones_stay() {
        let controls = Controls::new(40);
        let mut stubs = Vec::new();
        let mut add = |controls: &Arc<Controls>| {
            let (ours, theirs) = scm::packet_pair().expect("socketpair");
            stubs.push(theirs);
            controls.add(ours)
        };
        let busy = add(&controls);
        let pinned = controls.pinned(scm::packet_pair().expect("socketpair").0);
        let mut others = Vec::new();
        for _ in 0..100 {
            others.push(add(&controls));
            busy.send(0, &[]).expect("send");
        }
        assert!(is_here(&busy) && is_here(&pinned));
        assert!(others.iter().any(|control| !is_here(control)));
    }

    #[test]
    fn short_lives_need_no_keeper() {
        let controls = Controls::new(40);
        for _ in 0..1000 {
            let (ours, _theirs) = scm::packet_pair().expect("socketpair");
            drop(controls.add(ours));
        }
        assert!(controls.keepers.lock().is_empty());
        assert!(controls.queue.lock().len() < 100);
    }
}
