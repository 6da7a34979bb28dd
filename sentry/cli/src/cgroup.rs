//! A cgroup of the host for a sandbox, where one can be made: the host holds memory, processor time and processes too.
//!
//! It is made below the supervisor's own cgroup, never beside it, so that what binds the caller binds the sandbox. The
//! supervisor stays outside; gofer and sentry enter it before they are executed, and with them every guest. No process
//! but ours is ever moved, and no directory written that we did not make, with one exception: in the unified hierarchy
//! a cgroup either has processes or gives controllers to those below. If the supervisor is alone in its own (a delegated
//! scope), it goes to a leaf of its own for the time, and turns controllers on; otherwise nothing is changed there.
//!
//! A small process, the *keeper*, waits outside for the supervisor's end and removes the directories: also when that end
//! is SIGKILL. If the keeper was killed, the supervisor does it; if both were, the next sandbox that is started in the
//! same cgroup does: whoever lives holds a lock (flock(2)) on its directory.

mod find;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use sentry_host::process::{self, Disposition, Forked};

use crate::parts::now;
use find::{Hierarchy, Setting, Version, hierarchies, settings};
use sentry_limits::Limits;

/// Whether a cgroup is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// If --memory, --cpus or --pids is given and the host allows it
    #[default]
    Auto,
    /// Never: limits are held by us alone
    Never,
    /// Always; where the host cannot hold each of these limits that is given, the command is not run
    Require,
}

/// Names of what we make begin so.
const PREFIX: &str = "sentry-";
/// How long processes may take to be gone when they were killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a directory is made that somebody else removes.
const MAKING: u32 = 100;
/// After this long, those that are left are killed one by one.
const LENIENCE: Duration = Duration::from_millis(500);

/// A directory in one hierarchy.
#[derive(Debug)]
struct Group {
    version: Version,
    /// The supervisor's own.
    own: PathBuf,
    path: PathBuf,
    /// Where the supervisor is meanwhile.
    leaf: Option<Leaf>,
    /// Whoever writes to it enters.
    procs: File,
    _lock: Flock<File>,
}

/// The supervisor's place below its own cgroup.
#[derive(Debug)]
struct Leaf {
    path: PathBuf,
    /// What was turned on: `memory`.
    controllers: Vec<String>,
    _lock: Flock<File>,
}

/// The sandbox's cgroup: a directory in each hierarchy that holds something.
#[derive(Debug)]
pub struct Cgroup {
    groups: Vec<Group>,
    /// Limits that it holds: name, and by which files.
    held: Vec<(&'static str, String)>,
    /// The process that removes it, and the pipe by which it notices our end.
    keeper: Option<(Pid, OwnedFd)>,
    /// Processes that the host has killed for want of memory, as far as we know.
    killed: u64,
}

impl Cgroup {
    /// Makes one and its keeper, if one is wanted and can be had; `Err` says why not where it is required.
    pub fn make(choice: Choice, limits: &Limits) -> Result<Option<Cgroup>, String> {
        let wanted: BTreeSet<&str> = [
            ("memory", limits.memory.is_some()),
            ("cpus", limits.cpus.is_some()),
            ("pids", limits.pids.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect();
        if choice == Choice::Never || (choice == Choice::Auto && wanted.is_empty()) {
            return Ok(None);
        }
        let made = Cgroup::of(limits);
        if choice != Choice::Require {
            return Ok(made.ok());
        }
        let made = made?;
        match wanted.iter().find(|name| !made.holds(name)) {
            Some(name) => Err(format!("no cgroup here holds --{name}")),
            None => Ok(Some(made)),
        }
    }

    /// One for these limits, as far as it can be had.
    pub fn of(limits: &Limits) -> Result<Cgroup, String> {
        // A caller that ignores SIGCHLD would have our children reaped unseen.
        let _ = process::set_disposition(Signal::SIGCHLD, Disposition::Default);
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let found = hierarchies(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
        let mut cgroup = Cgroup {
            groups: Vec::new(),
            held: Vec::new(),
            keeper: None,
            killed: 0,
        };
        let mut refused = None;
        for hierarchy in &found {
            let settings = settings(hierarchy.version, limits);
            match cgroup.add(hierarchy, &settings) {
                Ok(()) => {}
                Err(error) => {
                    refused.get_or_insert(format!("{}: {error}", hierarchy.own.display()));
                }
            }
        }
        if cgroup.groups.is_empty() {
            return Err(refused.unwrap_or_else(|| "no cgroups are mounted here that we are in".into()));
        }
        // Root may enter what it has made, and each time costs milliseconds.
        if !nix::unistd::geteuid().is_root() {
            cgroup.try_out()?;
        }
        cgroup
            .start_keeper()
            .map_err(|error| format!("keeper: {}", error.desc()))?;
        Ok(cgroup)
    }

    /// Limits that it holds, and by which files.
    pub fn held(&self) -> &[(&'static str, String)] {
        &self.held
    }

    /// True if it holds this limit.
    pub fn holds(&self, limit: &str) -> bool {
        self.held.iter().any(|(name, _)| *name == limit)
    }

    /// Makes the directory in a hierarchy, if it has something for us.
    fn add(&mut self, hierarchy: &Hierarchy, settings: &[Setting]) -> io::Result<()> {
        let settings: Vec<&Setting> = settings
            .iter()
            .filter(|setting| match hierarchy.version {
                Version::One => hierarchy.controllers.iter().any(|name| name == setting.controller),
                Version::Two => true,
            })
            .collect();
        if settings.is_empty() {
            return Ok(());
        }
        sweep(&hierarchy.own);
        let name = format!("{PREFIX}{:016x}", random());
        let leaf = match hierarchy.version {
            Version::One => None,
            Version::Two => settle(hierarchy, &name, &settings)?,
        };
        let path = hierarchy.own.join(&name);
        let (lock, procs) = match make(&path) {
            Ok(made) => made,
            Err(error) => {
                if let Some(leaf) = leaf {
                    leaf.leave(&hierarchy.own, &[std::process::id()]);
                }
                return Err(error);
            }
        };
        self.groups.push(Group {
            version: hierarchy.version,
            own: hierarchy.own.clone(),
            path: path.clone(),
            leaf,
            procs,
            _lock: lock,
        });
        for setting in settings {
            if write(&path.join(setting.file), &setting.value).is_ok() {
                match self.held.iter_mut().find(|(name, _)| *name == setting.limit) {
                    Some((_, files)) => files.push_str(&format!(", {}", setting.file)),
                    None => self.held.push((setting.limit, setting.file.to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Enters it, with all that this process starts from now on.
    pub fn enter(&self) -> nix::Result<()> {
        for group in &self.groups {
            (&group.procs)
                .write_all(b"0")
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
        }
        Ok(())
    }

    /// Finds out whether it can be entered: that depends on more than whose directory it is.
    fn try_out(&self) -> Result<(), String> {
        match process::fork() {
            Ok(Forked::Child) => process::exit_now(self.enter().err().map_or(0, |error| error as i32)),
            Ok(Forked::Parent(child)) => match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => Ok(()),
                Ok(WaitStatus::Exited(_, code)) => {
                    Err(format!("it cannot be entered: {}", Errno::from_raw(code).desc()))
                }
                _ => Err("it cannot be entered".into()),
            },
            Err(error) => Err(format!("fork: {}", error.desc())),
        }
    }

    fn start_keeper(&mut self) -> nix::Result<()> {
        let (end, lifeline) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let supervisor = std::process::id();
        match process::fork()? {
            Forked::Parent(pid) => {
                self.keeper = Some((pid, lifeline));
                Ok(())
            }
            Forked::Child => {
                // What ends the supervisor by way of its terminal or its group does not end the keeper.
                let _ = SigSet::all().thread_block();
                let _ = nix::unistd::setsid();
                let _ = nix::unistd::chdir("/");
                process::close_all_but(&[end.as_raw_fd()]);
                let mut ready = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
                while matches!(poll(&mut ready, PollTimeout::NONE), Err(Errno::EINTR)) {}
                self.remove(&[std::process::id(), supervisor]);
                process::exit_now(0)
            }
        }
    }

    /// How many more processes the host has killed in it for want of memory, since this was last asked.
    pub fn killed(&mut self) -> u64 {
        let count: u64 = self.groups.iter().map(Group::killed).sum();
        let more = count.saturating_sub(self.killed);
        self.killed = count;
        more
    }

    /// Removes all directories; `ours` are those of us that may be in a leaf.
    fn remove(&self, ours: &[u32]) {
        for group in &self.groups {
            group.remove();
            if let Some(leaf) = &group.leaf {
                leaf.leave(&group.own, ours);
            }
        }
    }
}

impl Drop for Cgroup {
    /// The keeper removes it; whatever it left, we do.
    fn drop(&mut self) {
        if let Some((keeper, lifeline)) = self.keeper.take() {
            drop(lifeline);
            // ECHILD if it was killed, and reaped with others.
            while waitpid(keeper, None) == Err(Errno::EINTR) {}
        }
        self.remove(&[std::process::id()]);
    }
}

impl Group {
    fn killed(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes the directory as soon as nobody is in it. Those who are have been killed, or are now: they are ours.
    fn remove(&self) {
        let started = now();
        loop {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                _ => return,
            }
            let waited = now().saturating_sub(started);
            if waited > PATIENCE {
                return;
            }
            if waited > LENIENCE && write(&self.path.join("cgroup.kill"), "1").is_err() {
                for pid in members(&self.path) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            sleep(Duration::from_millis(1));
        }
    }
}

impl Leaf {
    /// Back to the own cgroup, which has no controllers to give any more.
    fn leave(&self, own: &Path, ours: &[u32]) {
        for controller in &self.controllers {
            let _ = write(&own.join("cgroup.subtree_control"), &format!("-{controller}"));
        }
        let here: BTreeSet<i32> = members(&self.path).into_iter().collect();
        for pid in ours {
            if i32::try_from(*pid).is_ok_and(|pid| here.contains(&pid)) {
                let _ = write(&own.join("cgroup.procs"), &pid.to_string());
            }
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Gets the controllers that are wanted for what is made below the own cgroup of the unified hierarchy: they are on
/// already, or we are alone and can go to a leaf. Without either there is a cgroup, but it holds nothing.
fn settle(hierarchy: &Hierarchy, name: &str, settings: &[&Setting]) -> io::Result<Option<Leaf>> {
    let own = &hierarchy.own;
    let list = |file: &str| -> io::Result<BTreeSet<String>> {
        let text = fs::read_to_string(own.join(file))?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    let (offered, on) = (list("cgroup.controllers")?, list("cgroup.subtree_control")?);
    let missing: BTreeSet<&str> = settings
        .iter()
        .map(|setting| setting.controller)
        .filter(|name| offered.contains(*name) && !on.contains(*name))
        .collect();
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    // The root of the hierarchy (which has no type) may have both, but what is on there concerns the whole host.
    let alone = own.join("cgroup.type").exists() && members(own) == [me];
    if missing.is_empty() || !alone {
        return Ok(None);
    }
    let path = own.join(format!("{name}.supervisor"));
    let (lock, mut procs) = make(&path)?;
    let mut leaf = Leaf {
        path,
        controllers: Vec::new(),
        _lock: lock,
    };
    if let Err(error) = procs.write_all(b"0") {
        leaf.leave(own, &[]);
        return Err(error);
    }
    for controller in missing {
        if write(&own.join("cgroup.subtree_control"), &format!("+{controller}")).is_ok() {
            leaf.controllers.push(controller.to_owned());
        }
    }
    Ok(Some(leaf))
}

/// Makes a directory, and locks it so that nobody takes it for left over. Before it is locked somebody may: again, then.
fn make(path: &Path) -> io::Result<(Flock<File>, File)> {
    let mut tries = 0;
    loop {
        tries += 1;
        match make_once(path) {
            Err(error) if tries < MAKING && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock) => {}
            made => return made,
        }
    }
}

fn make_once(path: &Path) -> io::Result<(Flock<File>, File)> {
    fs::create_dir(path)?;
    let open = || {
        let lock = lock(path)?;
        // Not there any more if it was removed before the lock.
        let procs = OpenOptions::new().write(true).open(path.join("cgroup.procs"))?;
        Ok((lock, procs))
    };
    open().inspect_err(|_| {
        let _ = fs::remove_dir(path);
    })
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Removes what supervisors and keepers that were killed have left in their own cgroup, which is ours too.
fn sweep(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let left = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Refused by the host as long as a process is in it.
        if left && let Ok(_lock) = lock(&entry.path()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The processes of a cgroup; 0 for those that this PID namespace does not have.
fn members(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|pid| pid.parse().ok())
        .filter(|pid| *pid >= 0)
        .collect()
}

/// Writes to a file that the kernel has made.
fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
