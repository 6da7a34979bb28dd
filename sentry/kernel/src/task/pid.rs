//! The table of all processes and threads, process groups and sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

use super::{Process, Thread};
use crate::tty::Pty;

/// A process or thread id, as the guest sees it.
pub type Pid = i32;

/// The highest id (`/proc/sys/kernel/pid_max`), exclusive.
pub const PID_MAX: Pid = 1 << 22;
/// The most threads at a time (`threads-max`).
pub const THREADS_MAX: usize = 32768;

/// A process's place in the tree.
pub struct Node {
    /// The process; a zombie stays until it is reaped.
    pub process: Arc<Process>,
    /// Its parent's id; 0 for the first process.
    pub parent: Pid,
    /// The thread of its parent that made it.
    pub maker: Pid,
    /// Its first parent has died.
    pub adopted: bool,
    /// Its children, zombies included.
    pub children: BTreeSet<Pid>,
    /// Those of its children that may have something to report to wait(2): looked at first, so that a parent of
    /// thousands finds the one that has ended.
    pub news: BTreeSet<Pid>,
    /// Its process group.
    pub pgid: Pid,
    /// Its session.
    pub sid: Pid,
    /// Its controlling terminal.
    pub terminal: Option<Arc<Pty>>,
    /// Of a session leader whose terminal was hung up: what was in the foreground.
    pub former_foreground: Option<Pid>,
    /// True once it has called execve(2) (setpgid(2) asks).
    pub execed: bool,
    /// The signal its parent gets at its exit; 0 for none.
    pub exit_signal: i32,
}

/// Who exists. See the lock order in the crate's documentation.
#[derive(Default)]
pub struct Tasks {
    nodes: BTreeMap<Pid, Node>,
    threads: BTreeMap<Pid, Arc<Thread>>,
    groups: BTreeMap<Pid, BTreeSet<Pid>>,
    /// Sessions with the number of their members.
    sessions: BTreeMap<Pid, usize>,
    last: Pid,
    removed: Removed,
    /// Whoever started the sandbox keeps jobs, and the first process's group is one of them.
    pub attended: bool,
}

/// What was taken out of the table and may be the last of its kind: with a process go directories and mounts, with a
/// terminal goes its node. [`TasksGuard`] drops it once the table is unlocked.
#[derive(Default)]
struct Removed {
    nodes: Vec<Node>,
    threads: Vec<Arc<Thread>>,
    terminals: Vec<Arc<Pty>>,
}

impl Removed {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.threads.is_empty() && self.terminals.is_empty()
    }
}

/// The lock around [`Tasks`].
#[derive(Default)]
pub struct TaskTable(RwLock<Tasks, rank::Tasks>);

impl TaskTable {
    /// Locks for reading.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, Tasks, rank::Tasks> {
        self.0.read()
    }

    /// Locks for writing.
    #[track_caller]
    pub fn write(&self) -> TasksGuard<'_> {
        TasksGuard(Some(self.0.write()))
    }

    /// Locks for writing if that needs no waiting.
    pub fn try_write(&self) -> Option<TasksGuard<'_>> {
        Some(TasksGuard(Some(self.0.try_write()?)))
    }
}

/// [`Tasks`] locked for writing. When it is dropped, what was removed meanwhile goes too, after the lock.
pub struct TasksGuard<'a>(Option<RwLockWriteGuard<'a, Tasks, rank::Tasks>>);

impl Deref for TasksGuard<'_> {
    type Target = Tasks;

    fn deref(&self) -> &Tasks {
        self.0.as_ref().expect("locked until dropped")
    }
}

impl DerefMut for TasksGuard<'_> {
    fn deref_mut(&mut self) -> &mut Tasks {
        self.0.as_mut().expect("locked until dropped")
    }
}

impl Drop for TasksGuard<'_> {
    fn drop(&mut self) {
        let Some(mut tasks) = self.0.take() else { return };
        if tasks.removed.is_empty() {
            return;
        }
        let removed = std::mem::take(&mut tasks.removed);
        drop(tasks);
        drop(removed);
    }
}

impl Tasks {
    /// A free id: not a thread, a group or a session.
    pub fn allocate(&mut self) -> Result<Pid, Errno> {
        if self.threads.len() >= THREADS_MAX {
            return Err(Errno::EAGAIN);
        }
        for _ in 0..PID_MAX {
            self.last = if self.last + 1 >= PID_MAX { 300 } else { self.last + 1 };
            let id = self.last;
            if !self.is_used(id) {
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }

    /// This id, if it is free: `EEXIST` else.
    pub fn reserve(&mut self, id: Pid) -> Result<Pid, Errno> {
        if self.threads.len() >= THREADS_MAX {
            return Err(Errno::EAGAIN);
        }
        if self.is_used(id) { Err(Errno::EEXIST) } else { Ok(id) }
    }

    /// True if a thread, process, group or session has this id.
    pub(crate) fn is_used(&self, id: Pid) -> bool {
        self.threads.contains_key(&id)
            || self.nodes.contains_key(&id)
            || self.groups.contains_key(&id)
            || self.sessions.contains_key(&id)
    }

    /// Adds a process under a parent, made by that thread of it, in that group and session.
    pub fn insert_process(
        &mut self,
        process: Arc<Process>,
        (parent, maker): (Pid, Pid),
        pgid: Pid,
        sid: Pid,
        exit_signal: i32,
    ) {
        let pid = process.pid();
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children.insert(pid);
        }
        self.groups.entry(pgid).or_default().insert(pid);
        *self.sessions.entry(sid).or_default() += 1;
        let children = BTreeSet::new();
        let node = Node {
            process,
            parent,
            maker,
            adopted: false,
            children,
            news: BTreeSet::new(),
            pgid,
            sid,
            terminal: None,
            former_foreground: None,
            execed: false,
            exit_signal,
        };
        self.nodes.insert(pid, node);
    }

    /// Adds a thread.
    pub fn insert_thread(&mut self, thread: Arc<Thread>) {
        self.threads.insert(thread.tid(), thread);
    }

    /// Takes a thread out.
    pub fn remove_thread(&mut self, tid: Pid) {
        self.removed.threads.extend(self.threads.remove(&tid));
    }

    /// Takes a reaped process out.
    pub fn remove_process(&mut self, pid: Pid) {
        let Some(node) = self.nodes.remove(&pid) else { return };
        node.process.reaped.store(true, Ordering::Relaxed);
        if let Some(parent) = self.nodes.get_mut(&node.parent) {
            parent.children.remove(&pid);
            parent.news.remove(&pid);
        }
        self.leave_group(pid, node.pgid);
        self.leave_session(node.sid);
        self.removed.threads.extend(self.threads.remove(&pid));
        self.removed.nodes.push(node);
    }

    fn leave_group(&mut self, pid: Pid, pgid: Pid) {
        if let Some(group) = self.groups.get_mut(&pgid) {
            group.remove(&pid);
            if group.is_empty() {
                self.groups.remove(&pgid);
            }
        }
    }

    fn leave_session(&mut self, sid: Pid) {
        if let Some(members) = self.sessions.get_mut(&sid) {
            *members = members.saturating_sub(1);
            if *members == 0 {
                self.sessions.remove(&sid);
            }
        }
    }

    /// Moves a process to another group of its session.
    pub fn set_group(&mut self, pid: Pid, pgid: Pid) {
        let Some(node) = self.nodes.get_mut(&pid) else { return };
        let old = std::mem::replace(&mut node.pgid, pgid);
        if old != pgid {
            self.leave_group(pid, old);
            self.groups.entry(pgid).or_default().insert(pid);
        }
    }

    /// Makes a process the leader of a new session and group, without a terminal. The caller has checked that it may.
    pub fn new_session(&mut self, pid: Pid) {
        let Some(node) = self.nodes.get_mut(&pid) else { return };
        let old = std::mem::replace(&mut node.sid, pid);
        self.removed.terminals.extend(node.terminal.take());
        self.leave_session(old);
        *self.sessions.entry(pid).or_default() += 1;
        self.set_group(pid, pid);
    }

    /// Gives all children of `pid` to `reaper`.
    pub fn reparent(&mut self, pid: Pid, reaper: Pid) -> Vec<Pid> {
        let Some(node) = self.nodes.get_mut(&pid) else {
            return Vec::new();
        };
        let news = std::mem::take(&mut node.news);
        let children: Vec<Pid> = std::mem::take(&mut node.children).into_iter().collect();
        for child in &children {
            if let Some(child) = self.nodes.get_mut(child) {
                child.parent = reaper;
                child.maker = reaper;
                child.adopted = true;
            }
        }
        if let Some(reaper) = self.nodes.get_mut(&reaper) {
            reaper.children.extend(children.iter().copied());
            reaper.news.extend(news);
        }
        children
    }

    /// Notes that a process has something to report to its parent.
    pub fn note_news(&mut self, pid: Pid) {
        let Some(parent) = self.nodes.get(&pid).map(|node| node.parent) else {
            return;
        };
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.news.insert(pid);
        }
    }

    /// How many processes there are, zombies included.
    pub fn process_count(&self) -> usize {
        self.nodes.len()
    }

    /// A process's place.
    pub fn node(&self, pid: Pid) -> Option<&Node> {
        self.nodes.get(&pid)
    }

    /// A process's place, to change it.
    pub fn node_mut(&mut self, pid: Pid) -> Option<&mut Node> {
        self.nodes.get_mut(&pid)
    }

    /// A process, zombies included.
    pub fn process(&self, pid: Pid) -> Option<&Arc<Process>> {
        self.nodes.get(&pid).map(|node| &node.process)
    }

    /// A thread.
    pub fn thread(&self, tid: Pid) -> Option<&Arc<Thread>> {
        self.threads.get(&tid)
    }

    /// All processes, by id.
    pub fn processes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// All threads, by id.
    pub fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.threads.values()
    }

    /// The members of a process group.
    pub fn group(&self, pgid: Pid) -> impl Iterator<Item = &Node> {
        self.groups
            .get(&pgid)
            .into_iter()
            .flatten()
            .filter_map(|pid| self.nodes.get(pid))
    }

    /// True if there is such a group.
    pub fn has_group(&self, pgid: Pid) -> bool {
        self.groups.contains_key(&pgid)
    }

    /// Takes the controlling terminal from every member of a session.
    pub fn forget_terminal(&mut self, sid: Pid) {
        for node in self.nodes.values_mut().filter(|node| node.sid == sid) {
            self.removed.terminals.extend(node.terminal.take());
        }
    }

    /// Takes the controlling terminal from one process.
    pub fn give_up_terminal(&mut self, pid: Pid) {
        if let Some(node) = self.nodes.get_mut(&pid) {
            self.removed.terminals.extend(node.terminal.take());
        }
    }

    /// True if no member of the group has a parent in another group of the same session (setpgid(2): then a
    /// stopped member is sent SIGHUP and SIGCONT). `except` counts as gone.
    pub fn is_orphaned(&self, pgid: Pid, except: Option<Pid>) -> bool {
        !self.group(pgid).any(|node| {
            let pid = node.process.pid();
            if Some(pid) == except || node.process.is_zombie() {
                return false;
            }
            match self.nodes.get(&node.parent) {
                // What was left to the first process is nobody's job.
                Some(_) if node.adopted && node.parent == 1 => false,
                Some(parent) => parent.sid == node.sid && parent.pgid != pgid,
                None => self.attended,
            }
        })
    }
}
