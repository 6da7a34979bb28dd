//! `/proc/PID` and `/proc/PID/task/TID`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sentry_abi::Errno;
use sentry_vfs::file::{DirEntry, File};
use sentry_vfs::inode::Inode;
use sentry_vfs::ops::TaskIds;
use sentry_vfs::path::VfsPath;
use sentry_vfs::pseudo::{DynamicDir, Link, Owner, dynamic_dir};

use crate::namespace::Namespace;
use crate::syscalls::namespaces_of;
use crate::task::Process;

use super::memory::{Memory, PageMap};
use super::{Subject, SubjectFile, fds, maps, net, parse_number, parse_write, status};

type Read = fn(&Subject) -> Result<Vec<u8>, Errno>;
type Write = fn(&Subject, &[u8]) -> Result<(), Errno>;

/// What an entry is.
#[derive(Clone, Copy)]
enum Kind {
    Text(u32, Read),
    /// Opened only by who may look into the process.
    Guarded(u32, Read),
    Writable(u32, Read, Write),
    Memory,
    PageMap,
    Link(Place),
    Fds,
    FdInfo,
    Tasks,
    Namespaces,
    Net,
}

/// Where a link of a process leads.
#[derive(Clone, Copy)]
enum Place {
    Exe,
    Cwd,
    Root,
}

/// The entries of a thread's directory; those marked true are only in that of a process.
const ENTRIES: &[(&str, bool, Kind)] = &[
    (
        "auxv",
        false,
        Kind::Guarded(0o400, |s| Ok(s.process()?.mm().image().auxv)),
    ),
    ("cgroup", false, Kind::Text(0o444, |_| Ok(b"0::/\n".to_vec()))),
    ("children", false, Kind::Text(0o444, status::children)),
    (
        "clear_refs",
        false,
        Kind::Writable(0o200, |_| Err(Errno::EINVAL), |_, _| Ok(())),
    ),
    ("cmdline", false, Kind::Text(0o444, status::cmdline)),
    ("comm", false, Kind::Writable(0o644, status::comm, status::set_comm)),
    (
        "coredump_filter",
        true,
        Kind::Writable(0o644, |_| Ok(b"00000033\n".to_vec()), |_, _| Ok(())),
    ),
    ("cwd", false, Kind::Link(Place::Cwd)),
    ("environ", false, Kind::Guarded(0o400, status::environ)),
    ("exe", false, Kind::Link(Place::Exe)),
    ("fd", false, Kind::Fds),
    ("fdinfo", false, Kind::FdInfo),
    ("gid_map", false, Kind::Text(0o644, id_map)),
    ("io", false, Kind::Text(0o400, status::io)),
    ("limits", false, Kind::Text(0o444, status::limits)),
    ("loginuid", false, Kind::Text(0o644, |_| Ok(b"4294967295".to_vec()))),
    ("maps", false, Kind::Guarded(0o444, maps::maps)),
    ("mem", false, Kind::Memory),
    ("mountinfo", false, Kind::Text(0o444, mountinfo)),
    ("mounts", false, Kind::Text(0o444, mounts)),
    ("mountstats", true, Kind::Text(0o400, mountstats)),
    ("net", false, Kind::Net),
    ("ns", false, Kind::Namespaces),
    ("oom_adj", false, Kind::Text(0o644, |_| Ok(b"0\n".to_vec()))),
    ("oom_score", false, Kind::Text(0o444, |_| Ok(b"0\n".to_vec()))),
    (
        "oom_score_adj",
        false,
        Kind::Writable(0o644, oom_score_adj, set_oom_score_adj),
    ),
    ("pagemap", false, Kind::PageMap),
    (
        "personality",
        false,
        Kind::Text(0o400, |s| {
            Ok(format!("{:08x}\n", s.process()?.personality()).into_bytes())
        }),
    ),
    ("projid_map", false, Kind::Text(0o644, id_map)),
    ("root", false, Kind::Link(Place::Root)),
    ("sched", false, Kind::Text(0o644, status::sched)),
    (
        "schedstat",
        false,
        Kind::Text(0o444, |s| Ok(format!("{} 0 0\n", status::cpu_nanos(s)).into_bytes())),
    ),
    ("sessionid", false, Kind::Text(0o444, |_| Ok(b"4294967295".to_vec()))),
    ("setgroups", true, Kind::Text(0o644, |_| Ok(b"allow\n".to_vec()))),
    ("smaps", false, Kind::Guarded(0o444, maps::smaps)),
    ("smaps_rollup", false, Kind::Guarded(0o444, maps::smaps_rollup)),
    ("stack", false, Kind::Text(0o400, |_| Ok(Vec::new()))),
    ("stat", false, Kind::Text(0o444, status::stat)),
    ("statm", false, Kind::Text(0o444, status::statm)),
    ("status", false, Kind::Text(0o444, status::status)),
    ("syscall", false, Kind::Text(0o400, |_| Ok(b"running\n".to_vec()))),
    ("task", true, Kind::Tasks),
    ("timers", true, Kind::Text(0o444, status::timers)),
    (
        "timerslack_ns",
        true,
        Kind::Writable(0o666, status::timer_slack, status::set_timer_slack),
    ),
    ("uid_map", false, Kind::Text(0o644, id_map)),
    ("wchan", false, Kind::Text(0o444, |_| Ok(b"0".to_vec()))),
];

/// The inode number of entry `index` of a thread.
pub(super) fn ino(tid: i32, index: usize) -> u64 {
    1 << 40 | u64::from(tid as u32) << 8 | index as u64
}

/// The directory of a process, or of one of its threads.
pub(super) fn directory(subject: &Subject, task: bool) -> Arc<dyn Inode> {
    let own = ino(subject.tid, if task { 0xff } else { 0 });
    subject.proc.fs.directory_at(
        Some(own),
        PidDir {
            subject: subject.clone(),
            task,
        },
    )
}

struct PidDir {
    subject: Subject,
    task: bool,
}

/// The process of an open `/proc/PID`; `EBADF` for any other file. `ESRCH` if it has been reaped.
pub fn process_of(file: &File) -> Result<Arc<Process>, Errno> {
    let inode = file.path().inode().filter(|_| file.readable()).ok_or(Errno::EBADF)?;
    let dir = dynamic_dir::<PidDir>(&**inode)
        .filter(|dir| !dir.task)
        .ok_or(Errno::EBADF)?;
    dir.subject.process()
}

impl PidDir {
    fn shown(&self, only_process: bool) -> bool {
        !(only_process && self.task)
    }
}

impl DynamicDir for PidDir {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        self.subject.process().map_err(|_| Errno::ENOENT)?;
        let found = ENTRIES
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.0.as_bytes() == name && self.shown(entry.1));
        let (index, entry) = found.ok_or(Errno::ENOENT)?;
        Ok(make(&self.subject, index, entry.2, self.task))
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        self.subject.process().map_err(|_| Errno::ENOENT)?;
        let shown = ENTRIES.iter().enumerate().filter(|(_, entry)| self.shown(entry.1));
        let entry = |(index, entry): (usize, &(&str, bool, Kind))| DirEntry {
            ino: ino(self.subject.tid, index + 1),
            kind: match entry.2 {
                Kind::Text(..) | Kind::Guarded(..) | Kind::Writable(..) | Kind::Memory | Kind::PageMap => libc::DT_REG,
                Kind::Link(_) => libc::DT_LNK,
                _ => libc::DT_DIR,
            },
            name: entry.0.as_bytes().to_vec(),
        };
        Ok(shown.map(entry).collect())
    }

    fn owner(&self) -> Owner {
        self.subject.owner(0o555)
    }
}

fn make(subject: &Subject, index: usize, kind: Kind, task: bool) -> Arc<dyn Inode> {
    let fs = &subject.proc.fs;
    let ino = Some(ino(subject.tid, index + 1));
    let spliced = ENTRIES.get(index).is_some_and(|entry| entry.0.starts_with("mount"));
    let file = |mode, guarded, read, write| {
        let file = SubjectFile {
            subject: subject.clone(),
            mode,
            guarded,
            spliced,
            read,
            write,
        };
        fs.file_at(ino, subject.owner(mode), file)
    };
    match kind {
        Kind::Text(mode, read) => file(mode, false, read, None),
        Kind::Guarded(mode, read) => file(mode, true, read, None),
        Kind::Writable(mode, read, write) => file(mode, false, read, Some(write)),
        Kind::Memory => fs.file_at(
            ino,
            subject.owner(0o600),
            Memory {
                subject: subject.clone(),
            },
        ),
        Kind::PageMap => fs.file_at(
            ino,
            subject.owner(0o400),
            PageMap {
                subject: subject.clone(),
            },
        ),
        Kind::Link(place) => fs.link_at(
            ino,
            PlaceLink {
                subject: subject.clone(),
                place,
            },
        ),
        Kind::Fds => fs.directory_at(
            ino,
            fds::FdDir {
                subject: subject.clone(),
                info: false,
            },
        ),
        Kind::FdInfo => fs.directory_at(
            ino,
            fds::FdDir {
                subject: subject.clone(),
                info: true,
            },
        ),
        Kind::Tasks if !task => fs.directory_at(
            ino,
            TaskDir {
                subject: subject.clone(),
            },
        ),
        Kind::Tasks | Kind::Namespaces => fs.directory_at(
            ino,
            Namespaces {
                subject: subject.clone(),
            },
        ),
        Kind::Net => net::directory(&subject.proc),
    }
}

/// `/proc/PID/task`.
struct TaskDir {
    subject: Subject,
}

impl DynamicDir for TaskDir {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let process = self.subject.process().map_err(|_| Errno::ENOENT)?;
        let tid = parse_number(name)?;
        let known = tid == process.pid() || process.threads().iter().any(|thread| thread.tid() == tid);
        if !known {
            return Err(Errno::ENOENT);
        }
        Ok(directory(&Subject::new(&self.subject.proc, &process, tid), true))
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let process = self.subject.process().map_err(|_| Errno::ENOENT)?;
        let mut tids: Vec<i32> = process.threads().iter().map(|thread| thread.tid()).collect();
        tids.sort_unstable();
        let entry = |tid: i32| DirEntry {
            ino: ino(tid, 0xff),
            kind: libc::DT_DIR,
            name: tid.to_string().into_bytes(),
        };
        Ok(tids.into_iter().map(entry).collect())
    }

    fn owner(&self) -> Owner {
        self.subject.owner(0o555)
    }

    fn nlink(&self) -> u32 {
        2 + self
            .subject
            .process()
            .map_or(0, |process| process.thread_count() as u32)
    }
}

struct PlaceLink {
    subject: Subject,
    place: Place,
}

impl PlaceLink {
    fn path(&self) -> Result<VfsPath, Errno> {
        match self.place {
            Place::Exe => {
                let exe = self.subject.process()?.mm().image().exe;
                exe.map(|file| file.path().clone()).ok_or(Errno::ENOENT)
            }
            Place::Cwd => self
                .subject
                .thread()
                .map(|thread| thread.fs().cwd())
                .map_err(|_| Errno::ENOENT),
            Place::Root => self
                .subject
                .thread()
                .map(|thread| thread.fs().root())
                .map_err(|_| Errno::ENOENT),
        }
    }
}

impl Link for PlaceLink {
    fn target(&self, task: TaskIds) -> Result<Vec<u8>, Errno> {
        display(&self.subject, &self.path()?, task)
    }

    fn follow(&self) -> Option<Result<VfsPath, Errno>> {
        Some(self.path())
    }

    fn allows(&self, task: TaskIds) -> bool {
        self.subject.allows(task)
    }

    fn owner(&self) -> Owner {
        self.subject.owner(0o777)
    }
}

/// A place as text, as the one who asks sees it.
pub(super) fn display(subject: &Subject, path: &VfsPath, asker: TaskIds) -> Result<Vec<u8>, Errno> {
    if let Some(name) = path.anonymous_name() {
        return Ok(name.to_vec());
    }
    let kernel = subject.kernel()?;
    let asker = i32::try_from(asker.tid).ok().and_then(|tid| kernel.thread(tid));
    let root = match asker {
        Some(thread) => thread.fs().root(),
        None => subject.thread()?.fs().root(),
    };
    Ok(kernel.vfs().d_path(&root, path).0)
}

/// `/proc/PID/ns`.
struct Namespaces {
    subject: Subject,
}

/// Links that show the namespace of another name.
const NAMESPACE_ALIASES: [(&str, &str); 2] = [("pid_for_children", "pid"), ("time_for_children", "time")];

impl Namespaces {
    /// All of them, by name.
    fn list(&self) -> Result<Vec<(&'static str, Namespace)>, Errno> {
        let thread = self.subject.thread()?;
        let mut list: Vec<_> = namespaces_of(&thread).map(|ns| (ns.description().0, ns)).collect();
        for (alias, name) in NAMESPACE_ALIASES {
            if let Some(same) = list.iter().find(|(known, _)| *known == name).map(|(_, ns)| ns.clone()) {
                list.push((alias, same));
            }
        }
        list.sort_by_key(|(name, _)| *name);
        Ok(list)
    }
}

struct NamespaceLink {
    subject: Subject,
    namespace: Namespace,
}

impl Link for NamespaceLink {
    fn target(&self, _task: TaskIds) -> Result<Vec<u8>, Errno> {
        Ok(self.namespace.text().into_bytes())
    }

    fn follow(&self) -> Option<Result<VfsPath, Errno>> {
        Some(Ok(self.namespace.path()))
    }

    fn allows(&self, task: TaskIds) -> bool {
        self.subject.allows(task)
    }
}

impl DynamicDir for Namespaces {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let list = self.list().map_err(|_| Errno::ENOENT)?;
        let found = list
            .into_iter()
            .enumerate()
            .find(|(_, (known, _))| known.as_bytes() == name);
        let (index, (_, namespace)) = found.ok_or(Errno::ENOENT)?;
        let ino = ino(self.subject.tid, 0xe0 + index);
        let subject = self.subject.clone();
        Ok(self
            .subject
            .proc
            .fs
            .link_at(Some(ino), NamespaceLink { subject, namespace }))
    }

    fn entries(&self) -> Result<Vec<DirEntry>, Errno> {
        let entry = |(index, (name, _)): (usize, (&str, Namespace))| DirEntry {
            ino: ino(self.subject.tid, 0xe0 + index),
            kind: libc::DT_LNK,
            name: name.into(),
        };
        Ok(self.list()?.into_iter().enumerate().map(entry).collect())
    }

    fn owner(&self) -> Owner {
        self.subject.owner(0o511)
    }
}

fn id_map(_subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{:>10} {:>10} {:>10}\n", 0, 0, u32::MAX).into_bytes())
}

fn mounts(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let root = subject.thread()?.fs().root();
    Ok(subject
        .kernel()?
        .vfs()
        .mounts(&root)
        .iter()
        .flat_map(|mount| mount.mounts_line())
        .collect())
}

fn mountinfo(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let root = subject.thread()?.fs().root();
    Ok(subject
        .kernel()?
        .vfs()
        .mounts(&root)
        .iter()
        .flat_map(|mount| mount.mountinfo_line())
        .collect())
}

fn mountstats(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let root = subject.thread()?.fs().root();
    let mut out = Vec::new();
    for mount in subject.kernel()?.vfs().mounts(&root) {
        let (source, target) = (
            String::from_utf8_lossy(&mount.source),
            String::from_utf8_lossy(&mount.target),
        );
        let line = format!("device {source} mounted on {target} with fstype {}\n", mount.kind);
        out.extend_from_slice(line.as_bytes());
    }
    Ok(out)
}

fn oom_score_adj(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{}\n", subject.process()?.oom_score_adj.load(Ordering::Relaxed)).into_bytes())
}

fn set_oom_score_adj(subject: &Subject, data: &[u8]) -> Result<(), Errno> {
    let value: i32 = parse_write(data)?;
    if !(-1000..=1000).contains(&value) {
        return Err(Errno::EINVAL);
    }
    subject.process()?.oom_score_adj.store(value, Ordering::Relaxed);
    Ok(())
}
