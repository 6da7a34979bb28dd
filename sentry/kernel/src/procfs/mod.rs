//! `/proc` and a small `/sys`, generated when they are read.

mod fds;
mod maps;
mod memory;
mod net;
mod pid;
mod status;
mod sysctl;
mod sysfs;
mod system;

pub use pid::process_of;

use std::sync::{Arc, Weak};

use sentry_abi::Errno;
use sentry_vfs::cred::Cap;
use sentry_vfs::file::DirEntry;
use sentry_vfs::inode::Inode;
use sentry_vfs::mount::FileSystem;
use sentry_vfs::ops::TaskIds;
use sentry_vfs::pseudo::{DynamicDir, Generate, Link, Owner, PROC_SUPER_MAGIC, PseudoFs, StaticDir};

use crate::Kernel;
use crate::task::{Pid, Process, Thread};

pub use sysfs::sys_fs;

/// What every inode of /proc needs.
struct Proc {
    kernel: Weak<Kernel>,
    fs: Arc<PseudoFs>,
}

impl Proc {
    fn kernel(&self) -> Result<Arc<Kernel>, Errno> {
        self.kernel.upgrade().ok_or(Errno::ESRCH)
    }

    /// A file whose text is made from the kernel.
    fn text(
        self: &Arc<Proc>,
        make: impl Fn(&Arc<Kernel>) -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    ) -> Arc<dyn Inode> {
        let proc = self.clone();
        self.fs.file(0o444, move || make(&proc.kernel()?))
    }
}

/// A new /proc.
pub fn proc_fs(kernel: &Arc<Kernel>) -> Arc<FileSystem> {
    // Counted now, before workers choose their processors.
    crate::system::processors();
    let proc = Arc::new(Proc {
        kernel: Arc::downgrade(kernel),
        fs: PseudoFs::new(PROC_SUPER_MAGIC),
    });
    let fixed = proc.fs.directory(0o555);
    system::fill(&proc, &fixed);
    fixed.add("sys", sysctl::directory(&proc));
    fixed.add("mounts", proc.fs.symlink("self/mounts"));
    fixed.add("net", proc.fs.symlink("self/net"));
    fixed.add("self", proc.fs.link_at(None, SelfLink { thread: false }));
    fixed.add("thread-self", proc.fs.link_at(None, SelfLink { thread: true }));
    let root = proc.fs.directory_at(
        Some(1),
        Root {
            proc: proc.clone(),
            fixed,
        },
    );
    FileSystem::new(root, "proc", "proc", "")
}

/// The root of /proc: fixed entries, and one directory for each process.
struct Root {
    proc: Arc<Proc>,
    fixed: Arc<StaticDir>,
}

impl DynamicDir for Root {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        if let Some(inode) = self.fixed.get(name) {
            return Ok(inode);
        }
        let tid = parse_number(name)?;
        // Every thread can be looked up here, but only processes are listed.
        let kernel = self.proc.kernel()?;
        let process = match kernel.process(tid) {
            Some(process) => process,
            None => kernel.thread(tid).ok_or(Errno::ENOENT)?.process().clone(),
        };
        Ok(pid::directory(&Subject::new(&self.proc, &process, tid), false))
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let mut entries = self.fixed.entries()?;
        let pids: Vec<Pid> = self
            .proc
            .kernel()?
            .tasks
            .read()
            .processes()
            .map(|node| node.process.pid())
            .collect();
        entries.extend(pids.into_iter().map(|pid| DirEntry {
            ino: pid::ino(pid, 0),
            kind: libc::DT_DIR,
            name: pid.to_string().into_bytes(),
        }));
        Ok(entries)
    }
}

/// A name that is a number as Linux reads it: digits only, no leading zero.
fn parse_number(name: &[u8]) -> Result<i32, Errno> {
    let digits = name.iter().all(u8::is_ascii_digit) && (name.len() == 1 || name.first() != Some(&b'0'));
    let text = std::str::from_utf8(name).ok().filter(|_| digits);
    text.and_then(|text| text.parse().ok()).ok_or(Errno::ENOENT)
}

/// `/proc/self` and `/proc/thread-self`.
struct SelfLink {
    thread: bool,
}

impl Link for SelfLink {
    fn target(&self, task: TaskIds) -> Result<Vec<u8>, Errno> {
        match (task.tgid, self.thread) {
            (0, _) => Err(Errno::ENOENT),
            (tgid, false) => Ok(tgid.to_string().into_bytes()),
            (tgid, true) => Ok(format!("{tgid}/task/{}", task.tid).into_bytes()),
        }
    }
}

/// A process, and the thread of it that is looked at. Files of it fail with `ESRCH` once it has been reaped.
#[derive(Clone)]
struct Subject {
    proc: Arc<Proc>,
    process: Weak<Process>,
    pid: Pid,
    tid: Pid,
}

impl Subject {
    fn new(proc: &Arc<Proc>, process: &Arc<Process>, tid: Pid) -> Subject {
        Subject {
            proc: proc.clone(),
            process: Arc::downgrade(process),
            pid: process.pid(),
            tid,
        }
    }

    fn kernel(&self) -> Result<Arc<Kernel>, Errno> {
        self.proc.kernel()
    }

    fn process(&self) -> Result<Arc<Process>, Errno> {
        let process = self.process.upgrade().ok_or(Errno::ESRCH)?;
        let listed = self.kernel()?.process(self.pid).ok_or(Errno::ESRCH)?;
        if Arc::ptr_eq(&process, &listed) {
            Ok(process)
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// The thread, or another one that speaks for the process. None of a zombie.
    fn thread(&self) -> Result<Arc<Thread>, Errno> {
        let process = self.process()?;
        let own = self
            .kernel()?
            .thread(self.tid)
            .filter(|thread| Arc::ptr_eq(thread.process(), &process));
        own.or_else(|| process.any_thread()).ok_or(Errno::ESRCH)
    }

    /// True if a task may look into the process.
    fn allows(&self, task: TaskIds) -> bool {
        let asker = || -> Result<bool, Errno> {
            let tid = i32::try_from(task.tid).map_err(|_| Errno::ESRCH)?;
            let thread = self.kernel()?.thread(tid).ok_or(Errno::ESRCH)?;
            let process = self.process()?;
            // Of a zombie there is nothing to see.
            Ok(process.is_zombie() || may_inspect(&thread, &process))
        };
        asker().unwrap_or(false)
    }

    /// Who owns the files: root's once a process keeps its secrets.
    fn owner(&self, mode: u32) -> Owner {
        match (self.process(), self.thread()) {
            (Ok(process), Ok(thread)) if process.dumpable.load(std::sync::atomic::Ordering::Relaxed) => {
                let cred = thread.cred();
                Owner {
                    mode,
                    uid: cred.euid,
                    gid: cred.egid,
                }
            }
            _ => Owner::root(mode),
        }
    }
}

/// True if a thread may look into a process: the rules of ptrace(2), "Ptrace access mode checking".
pub fn may_inspect(thread: &Thread, target: &Arc<Process>) -> bool {
    if Arc::ptr_eq(thread.process(), target) {
        return true;
    }
    let Some(other) = target.any_thread() else { return false };
    let (cred, of) = (thread.cred(), other.cred());
    if cred.has(Cap::SYS_PTRACE) {
        return true;
    }
    let same = [of.uid, of.euid, of.suid].iter().all(|&uid| uid == cred.uid)
        && [of.gid, of.egid, of.sgid].iter().all(|&gid| gid == cred.gid);
    let dumpable = target.dumpable.load(std::sync::atomic::Ordering::Relaxed);
    same && dumpable && of.permitted.is_subset(cred.permitted)
}

/// A file of a process with code behind it.
#[allow(clippy::type_complexity)]
struct SubjectFile {
    subject: Subject,
    mode: u32,
    /// Opened only by who may look into the process.
    guarded: bool,
    /// Whether splice(2) and sendfile(2) read from it: Linux's own choice.
    spliced: bool,
    read: fn(&Subject) -> Result<Vec<u8>, Errno>,
    write: Option<fn(&Subject, &[u8]) -> Result<(), Errno>>,
}

impl Generate for SubjectFile {
    fn generate(&self) -> Result<Vec<u8>, Errno> {
        (self.read)(&self.subject)
    }

    fn write(&self, data: &[u8], _offset: u64) -> Result<usize, Errno> {
        let write = self.write.ok_or(Errno::EINVAL)?;
        write(&self.subject, data)?;
        Ok(data.len())
    }

    fn spliced(&self) -> bool {
        self.spliced
    }

    fn allows(&self, task: TaskIds) -> bool {
        !self.guarded || self.subject.allows(task)
    }

    fn owner(&self) -> Option<Owner> {
        Some(self.subject.owner(self.mode))
    }
}

/// A decimal number, as the kernel reads one from a write: blanks and a newline around it.
fn parse_write<T: std::str::FromStr>(data: &[u8]) -> Result<T, Errno> {
    let text = std::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0')
        .parse()
        .map_err(|_| Errno::EINVAL)
}
