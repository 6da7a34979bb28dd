//! Who owns a file, where the gofer cannot see it.
//!
//! An ordinary user gets namespaces only together with a user namespace, and in one the host shows every owner but
//! that user as nobody, and refuses to give a file to another of the user's groups. So a second process, forked
//! before, stays in the caller's user namespace. It answers for descriptors that the gofer sends: who owns this file
//! (or these names in this directory), and give it to that owner. It opens nothing, and it has no line to the sentry.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use nix::fcntl::AtFlags;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, fchownat};
use sentry_abi::Errno;
use sentry_host::filter::{Arg, Filter, HostCall, Outside, Rule};
use sentry_host::process::{self, Forked};
use sentry_host::{caps, files, landlock, scm};

use super::restrict::{CALLS_OF_MEMORY_AND_END, RestrictError, call, ignore_signals, nix};
use super::walk::{attributes, c_string};
use crate::nix_errno;
use crate::protocol::{Attributes, Name};

/// The most names in one question.
const MAX_NAMES: usize = 256;
/// The longest question: what it is, and names with a zero byte behind each.
const MAX_QUESTION: usize = 1 + MAX_NAMES * 256;
/// An answer for one file: an errno or 0, the user and the group.
const ANSWER: usize = 12;
/// Asks for owners; then come names, or nothing for the descriptor's own file.
const OWNERS_OF: u8 = 1;
/// Changes the owner; then come user and group, each `u32::MAX` to stay.
const CHANGE: u8 = 2;
/// The most owners that are remembered.
const MAX_KNOWN: usize = 4096;
/// A file's owner is remembered for as long as its status does not change, if the last change was this long ago: two
/// changes in quick succession can have the same time.
const SETTLED: Duration = Duration::from_secs(10);

const ITS_OWN: &[HostCall] = &[
    call(libc::SYS_recvmsg, "recvmsg", Rule::Always, "questions of the gofer"),
    call(libc::SYS_sendmsg, "sendmsg", Rule::Always, "answers"),
    call(
        libc::SYS_statx,
        "statx",
        Rule::Always,
        "owners of files that the gofer sends, or of names in them",
    ),
    call(libc::SYS_close, "close", Rule::Always, "descriptors"),
    call(
        libc::SYS_fcntl,
        "fcntl",
        Rule::When(&[&[Arg::Is(1, libc::F_GETFD as u32)]]),
        "looking at a descriptor that was sent",
    ),
];

const CHANGING: HostCall = call(
    libc::SYS_fchownat,
    "fchownat",
    Rule::When(&[&[Arg::With(4, libc::AT_EMPTY_PATH as u32)]]),
    "with --rw: changes, by descriptor",
);

/// The host calls of the process that knows owners, with (`writable`) or without a writable export.
pub fn owners_calls(writable: bool) -> Vec<HostCall> {
    let rest = std::slice::from_ref(&CHANGING).iter().filter(|_| writable);
    ITS_OWN
        .iter()
        .chain(CALLS_OF_MEMORY_AND_END)
        .chain(rest)
        .copied()
        .collect()
}

/// Which state of which file: device, inode, and the time of the last change of its status.
type State = (u64, u64, i64, u32);

/// A user and a group.
type Owner = (u32, u32);

/// The gofer's line to that process.
pub(super) struct Owners {
    socket: OwnedFd,
    process: Pid,
    /// The only user and group that the gofer sees itself.
    own: Owner,
    known: HashMap<State, Owner>,
}

impl Owners {
    /// Forks the process. It ends when the gofer does, or when this value is dropped. By the process's only thread.
    pub(super) fn start(writable: bool) -> nix::Result<Owners> {
        let own = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let (socket, theirs) =
            scm::packet_pair().map_err(|error| nix::errno::Errno::from_raw(Errno::from(error).raw()))?;
        let gofer = nix::unistd::getpid();
        match process::fork()? {
            Forked::Parent(process) => Ok(Owners {
                socket,
                process,
                own,
                known: HashMap::new(),
            }),
            Forked::Child => {
                if process::die_with_parent(Some(gofer)) == Ok(true) {
                    // Of the gofer's line to the sentry there must be no copy: its end is seen by the other side.
                    process::close_all_but(&[2, theirs.as_raw_fd()]);
                    if restrict(writable).is_ok() {
                        serve(theirs.as_fd());
                    }
                }
                process::exit_now(0)
            }
        }
    }

    /// Ends the process: there is no use for it. Before the filter, which has no call for that.
    pub(super) fn end(self) {
        drop(self.socket);
        let _ = waitpid(self.process, None);
    }

    fn ask(&self, file: BorrowedFd<'_>, question: &[u8], files: usize) -> Result<Vec<Result<Owner, Errno>>, Errno> {
        scm::send_with_fds(self.socket.as_fd(), question, &[file])?;
        let mut answer = vec![0; files * ANSWER];
        let (len, _) = scm::recv_with_fds(self.socket.as_fd(), &mut answer, 0)?;
        if len != answer.len() {
            return Err(Errno::EIO);
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let answers = answer.chunks_exact(ANSWER).map(|one| match word(one) {
            0 => Ok((word(&one[4..]), word(&one[8..]))),
            errno => Err(Errno::from_raw(errno as i32)),
        });
        Ok(answers.collect())
    }

    fn sees(&self, attributes: &Attributes) -> bool {
        (attributes.uid, attributes.gid) == self.own
    }

    fn state(attributes: &Attributes) -> State {
        let changed = attributes.ctime;
        (attributes.dev, attributes.ino, changed.sec, changed.nsec)
    }

    /// The owner, as far as it is known without asking.
    fn recall(&self, attributes: &Attributes) -> Option<Owner> {
        if self.sees(attributes) {
            return Some(self.own);
        }
        self.known.get(&Self::state(attributes)).copied()
    }

    fn remember(&mut self, attributes: &Attributes, owner: Owner) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let settled = now.is_ok_and(|now| {
            u64::try_from(attributes.ctime.sec).is_ok_and(|sec| sec.saturating_add(SETTLED.as_secs()) < now.as_secs())
        });
        if settled {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(Self::state(attributes), owner);
        }
    }

    /// Puts the owner of `file` into its attributes.
    pub(super) fn complete(&mut self, file: BorrowedFd<'_>, attributes: &mut Attributes) -> Result<(), Errno> {
        let owner = match self.recall(attributes) {
            Some(owner) => owner,
            None => {
                let answers = self.ask(file, &[OWNERS_OF], 1)?;
                let owner = answers.first().copied().ok_or(Errno::EIO)??;
                self.remember(attributes, owner);
                owner
            }
        };
        (attributes.uid, attributes.gid) = owner;
        Ok(())
    }

    /// The same for names in a directory. `ENOENT` and the like if one of them is gone.
    pub(super) fn complete_in(
        &mut self,
        dir: BorrowedFd<'_>,
        files: &mut [(&[u8], &mut Attributes)],
    ) -> Result<(), Errno> {
        let mut unknown: Vec<&mut (&[u8], &mut Attributes)> = Vec::new();
        for file in files {
            match self.recall(file.1) {
                Some(owner) => (file.1.uid, file.1.gid) = owner,
                None => unknown.push(file),
            }
        }
        for some in unknown.chunks_mut(MAX_NAMES) {
            let mut question = vec![OWNERS_OF];
            for (name, _) in some.iter() {
                question.extend_from_slice(name);
                question.push(0);
            }
            let answers = self.ask(dir, &question, some.len())?;
            for ((_, attributes), answer) in some.iter_mut().zip(answers) {
                let owner = answer?;
                self.remember(attributes, owner);
                (attributes.uid, attributes.gid) = owner;
            }
        }
        Ok(())
    }

    /// Changes the owner of `file`, as chown(2).
    pub(super) fn change(&self, file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let mut question = vec![CHANGE];
        for id in [uid, gid] {
            question.extend_from_slice(&id.unwrap_or(u32::MAX).to_le_bytes());
        }
        let answers = self.ask(file, &question, 1)?;
        answers.first().copied().ok_or(Errno::EIO)?.map(drop)
    }
}

fn restrict(writable: bool) -> Result<(), RestrictError> {
    ignore_signals()?;
    nix("RLIMIT_NOFILE", process::limit(Resource::RLIMIT_NOFILE, 16))?;
    nix("RLIMIT_CORE", setrlimit(Resource::RLIMIT_CORE, 0, 0))?;
    nix("RLIMIT_NPROC", setrlimit(Resource::RLIMIT_NPROC, 0, 0))?;
    nix("PR_SET_DUMPABLE", prctl::set_dumpable(false))?;
    nix("dropping capabilities", caps::drop_all_but(0))?;
    nix("PR_SET_NO_NEW_PRIVS", prctl::set_no_new_privs())?;
    if landlock::abi() > 0 {
        nix("Landlock", landlock::restrict(&[]))?;
    }
    Filter::compile(&owners_calls(writable), Outside::Kill)?.install()?;
    Ok(())
}

/// Answers until the gofer is gone.
fn serve(socket: BorrowedFd<'_>) {
    let mut question = vec![0; MAX_QUESTION];
    while let Ok((len @ 1.., fds)) = scm::recv_with_fds(socket, &mut question, 1) {
        let mut answer = Vec::new();
        let result = fds.first().ok_or(Errno::EBADF).and_then(|file| {
            let question = question.get(..len).unwrap_or_default();
            answer_for(file.as_fd(), question, &mut answer)
        });
        if let Err(errno) = result {
            answer.clear();
            push(&mut answer, Err(errno));
        }
        drop(fds);
        if scm::send_with_fds(socket, &answer, &[]).is_err() {
            return;
        }
    }
}

fn push(answer: &mut Vec<u8>, owner: Result<Owner, Errno>) {
    let words = match owner {
        Ok((uid, gid)) => [0, uid, gid],
        Err(errno) => [errno.raw() as u32, 0, 0],
    };
    words
        .iter()
        .for_each(|word| answer.extend_from_slice(&word.to_le_bytes()));
}

fn answer_for(file: BorrowedFd<'_>, question: &[u8], answer: &mut Vec<u8>) -> Result<(), Errno> {
    let owner = |stat: io::Result<libc::statx>| -> Result<Owner, Errno> {
        let attributes = attributes(&stat?);
        Ok((attributes.uid, attributes.gid))
    };
    match question {
        [OWNERS_OF] => push(answer, owner(files::statx_fd(file))),
        [OWNERS_OF, names @ .., 0] => {
            for name in names.split(|byte| *byte == 0) {
                let name = Name::new(name).map_err(|_| Errno::EINVAL)?;
                push(answer, owner(files::statx_child(file, &c_string(name.as_bytes())?)));
            }
        }
        [CHANGE, uid @ .., _, _, _, _] if question.len() == 9 => {
            let word = |bytes: &[u8]| {
                let word = bytes.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
                (word != u32::MAX).then_some(word)
            };
            let (uid, gid) = (word(uid).map(Uid::from_raw), word(&question[5..]).map(Gid::from_raw));
            let flags = AtFlags::AT_EMPTY_PATH | AtFlags::AT_SYMLINK_NOFOLLOW;
            fchownat(file, c"", uid, gid, flags).map_err(nix_errno)?;
            push(answer, Ok((0, 0)));
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_compile() {
        for writable in [false, true] {
            Filter::compile(&owners_calls(writable), Outside::Kill).expect("a table that compiles");
        }
    }

    #[test]
    fn answers_for_descriptors_and_names_only() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("a"), b"").expect("write");
        let open = std::fs::File::open(dir.path()).expect("open");
        let ask = |question: &[u8]| {
            let mut answer = Vec::new();
            answer_for(open.as_fd(), question, &mut answer).map(|()| answer)
        };
        let mut own = Vec::new();
        push(
            &mut own,
            Ok((nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())),
        );
        let mut missing = own.clone();
        push(&mut missing, Err(Errno::ENOENT));
        assert_eq!(ask(&[OWNERS_OF]), Ok(own.clone()));
        assert_eq!(ask(b"\x01a\0"), Ok(own));
        assert_eq!(ask(b"\x01a\0b\0"), Ok(missing));
        for wrong in [
            &b"\x01..\0"[..],
            b"\x01a/b\0",
            b"\x01\0",
            b"\x01a",
            b"\x02",
            b"\x02aaaaaaaaa",
            b"\x03",
            b"",
        ] {
            assert_eq!(ask(wrong), Err(Errno::EINVAL), "{wrong:?}");
        }
    }
}
