//! What the supervisor tells the kernel: the first program, its view of files, and the messages on the control socket.
//!
//! Plain data. [`BootConfig`] travels as JSON in a sealed memory file; [`ControlMessage`]s are datagrams on a
//! `SOCK_SEQPACKET` socket whose other end the supervisor holds. Byte strings are `Vec<u8>`: names on Linux need not be
//! UTF-8.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::changes::ChangesConfig;

/// Everything the kernel needs to start the first process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BootConfig {
    /// The command: looked up in the guest's `PATH` if the first word has no slash.
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value` each.
    pub envp: Vec<Vec<u8>>,
    /// Where it starts; must exist in the guest's view.
    pub cwd: Vec<u8>,
    /// Its user id, real and effective. With 0 it has all capabilities, else none.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
    /// uname(2)'s node name.
    pub hostname: Vec<u8>,
    /// The guest's view, in this order. Mount points that do not exist are made, `/` first.
    pub mounts: Vec<Mount>,
    /// How many executor threads; `None`: the kernel chooses.
    pub workers: Option<usize>,
    /// Collect and return statistics.
    pub stats: bool,
    /// Print system calls.
    pub strace: Option<StraceConfig>,
    /// Tell what has changed, at the end.
    pub changes: Option<ChangesConfig>,
    /// Count at the end what has changed.
    pub count_changes: bool,
    /// The caller's terminal, if one of the standard descriptors is one.
    pub terminal: Option<TerminalConfig>,
    /// What the sandbox as a whole may use.
    pub limits: SandboxLimits,
    /// Somebody wants to know what happens ([`crate::events::Event`]).
    pub events: bool,
    /// A fault of ours, on purpose.
    pub stuck: Option<Stuck>,
    /// The caller's nice value, which the first process has.
    pub nice: i32,
}

/// For tests of the watch over the workers: whoever carries out a call does not come back, or late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// How.
    pub way: Way,
    /// The call's name.
    pub call: String,
}

/// How a worker does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// It runs on for ever.
    Spin,
    /// It waits for ever.
    Block,
    /// It takes two seconds of processor time.
    Slow,
}

impl Stuck {
    /// To be called when `call` is carried out.
    pub(crate) fn at(&self, call: &str) {
        if call != self.call {
            return;
        }
        let used = || sentry_host::clock::get(libc::CLOCK_THREAD_CPUTIME_ID).map_or(0, |(seconds, _)| seconds);
        let start = used();
        while self.way != Way::Slow || used() < start + 2 {
            if self.way == Way::Block {
                std::thread::park();
            }
            std::hint::spin_loop();
        }
    }
}

/// What a sandbox as a whole may use; `None`: as much as there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Processes and threads at a time.
    pub pids: Option<u64>,
    /// Processor time of all guests.
    pub cpu_time: Option<Duration>,
    /// Bytes of anonymous memory, page tables, files in memory and our own processes together.
    pub memory: Option<u64>,
    /// Processor time for each second, in milliseconds.
    pub cpus: Option<u64>,
    /// Bytes of files that are kept in memory, layers over the host's files included.
    pub disk: Option<u64>,
    /// How many such files.
    pub inodes: Option<u64>,
    /// Open files of a process.
    pub nofile: Option<u64>,
    /// Bytes written to the standard descriptors.
    pub output: Option<u64>,
    /// Bytes a second of files and standard descriptors, read and written.
    pub io_rate: Option<u64>,
}

/// The caller's terminal, which the supervisor keeps: the guest gets one of its own in its place, whose other side is
/// the supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalConfig {
    /// Which of descriptors 0, 1 and 2 it is.
    pub stdio: [bool; 3],
    /// `c_iflag`, `c_oflag`, `c_cflag` and `c_lflag` to begin with.
    pub flags: [u32; 4],
    /// `c_cc` to begin with.
    pub characters: Vec<u8>,
    /// Rows, columns, and both in pixels.
    pub size: [u16; 4],
    /// The supervisor brings what is typed once it hears that the guest wants it ([`Notice::TerminalWanted`]).
    pub on_demand: bool,
}

/// One place in the guest's view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// An absolute path.
    pub target: Vec<u8>,
    /// What is there.
    pub kind: MountKind,
}

/// What a [`Mount`] shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountKind {
    /// A tree (or a single file) of the gofer.
    Gofer {
        /// Its number in the gofer's list.
        tree: u32,
        /// What the guest sees of writing.
        access: Access,
        /// It is a directory; else the mount point is a file.
        directory: bool,
    },
    /// Fresh memory.
    Tmpfs {
        /// How many bytes it may hold; `None`: the kernel's default.
        size: Option<u64>,
        /// The mode of its root.
        mode: u32,
        /// The user and group of its root.
        owner: (u32, u32),
    },
    /// Not a mount: a symbolic link, as the host has it (`/bin` → `usr/bin`).
    Symlink {
        /// Where it points.
        to: Vec<u8>,
    },
    /// Process information.
    Proc,
    /// Devices, with `pts` and `shm` below.
    Dev,
    /// A minimal sysfs.
    Sys,
}

/// What writing to a gofer's tree does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// `EROFS`.
    ReadOnly,
    /// A layer in memory above takes it; the host never sees it.
    Overlay,
    /// It reaches the host.
    ReadWrite,
}

/// Which system calls to print. They go to the descriptor that `boot` is given for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StraceConfig {
    /// Names; empty: all.
    pub calls: Vec<String>,
}

/// How the sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// The first process exited.
    Code(u8),
    /// A signal killed it.
    Signal(i32),
    /// The command was not found (exit code 127).
    NotFound(String),
    /// The command was found but cannot be executed (exit code 126).
    NotExecutable(String),
    /// We failed (exit code 125): what, and what to do next.
    Failed(String),
}

/// From the supervisor to the kernel. End of file means that the supervisor is gone: the sandbox ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// The supervisor received this signal: the terminal's signals go to the guest's foreground process group,
    /// `SIGCONT` to the first process's group, others to the first process. `SIGKILL` ends every process.
    Signal(i32),
    /// The caller's terminal has this size: rows, columns, and both in pixels.
    Resize([u16; 4]),
    /// From now on the supervisor wants to hear when the guest wants to use the terminal, once.
    AwaitDemand,
    /// The sandbox's processes use so many bytes of memory.
    Memory(u64),
    /// One of those that use most: its process id, as the sentry knows it, and KiB.
    LargeProcess(u32, u32),
    /// The sandbox's processes use so many bytes, counted exactly: the answer to [`Notice::MemoryShort`], after
    /// [`ControlMessage::LargeProcess`] for some of them.
    ExactMemory(u64),
}

impl ControlMessage {
    /// The size of a message on the socket.
    pub const SIZE: usize = 12;

    /// As it goes over the socket.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        match self {
            ControlMessage::Signal(signal) => {
                bytes[0] = 1;
                bytes[4..8].copy_from_slice(&signal.to_le_bytes());
            }
            ControlMessage::Resize(size) => {
                bytes[0] = 2;
                for (to, from) in bytes[4..].chunks_exact_mut(2).zip(size) {
                    to.copy_from_slice(&from.to_le_bytes());
                }
            }
            ControlMessage::AwaitDemand => bytes[0] = 3,
            ControlMessage::Memory(total) => {
                bytes[0] = 4;
                bytes[4..].copy_from_slice(&total.to_le_bytes());
            }
            ControlMessage::LargeProcess(pid, kib) => {
                bytes[0] = 5;
                bytes[4..8].copy_from_slice(&pid.to_le_bytes());
                bytes[8..].copy_from_slice(&kib.to_le_bytes());
            }
            ControlMessage::ExactMemory(total) => {
                bytes[0] = 6;
                bytes[4..].copy_from_slice(&total.to_le_bytes());
            }
        }
        bytes
    }

    /// From the socket; `None` if it is not a message.
    pub fn decode(bytes: &[u8]) -> Option<ControlMessage> {
        let bytes: [u8; Self::SIZE] = bytes.try_into().ok()?;
        let [kind, 0, 0, 0, a, b, c, d, e, f, g, h] = bytes else {
            return None;
        };
        match kind {
            1 if [e, f, g, h] == [0; 4] => {
                let signal = i32::from_le_bytes([a, b, c, d]);
                (1..=64).contains(&signal).then_some(ControlMessage::Signal(signal))
            }
            2 => {
                let size = [[a, b], [c, d], [e, f], [g, h]].map(u16::from_le_bytes);
                Some(ControlMessage::Resize(size))
            }
            3 if bytes[4..] == [0; 8] => Some(ControlMessage::AwaitDemand),
            4 => Some(ControlMessage::Memory(u64::from_le_bytes([a, b, c, d, e, f, g, h]))),
            5 => {
                let (pid, kib) = ([a, b, c, d], [e, f, g, h]);
                Some(ControlMessage::LargeProcess(
                    u32::from_le_bytes(pid),
                    u32::from_le_bytes(kib),
                ))
            }
            6 => Some(ControlMessage::ExactMemory(u64::from_le_bytes([
                a, b, c, d, e, f, g, h,
            ]))),
            _ => None,
        }
    }
}

/// From the kernel to the supervisor, while the sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The first process was stopped by a signal, as a job of whoever started the sandbox.
    Stopped,
    /// The guest reads the caller's terminal or changes its modes. Sent once after each [`ControlMessage::AwaitDemand`].
    TerminalWanted,
    /// The processor time that the sandbox may use is used up.
    CpuTimeUsedUp,
    /// More memory is used than may be: which processes use how much?
    MemoryShort,
}

impl Notice {
    /// As it goes over the socket.
    pub fn encode(self) -> [u8; 4] {
        match self {
            Notice::Stopped => [1, 0, 0, 0],
            Notice::TerminalWanted => [2, 0, 0, 0],
            Notice::CpuTimeUsedUp => [3, 0, 0, 0],
            Notice::MemoryShort => [4, 0, 0, 0],
        }
    }

    /// From the socket; `None` if it is not one.
    pub fn decode(bytes: &[u8]) -> Option<Notice> {
        NOTICES.into_iter().find(|notice| bytes == notice.encode())
    }
}

const NOTICES: [Notice; 4] = [
    Notice::Stopped,
    Notice::TerminalWanted,
    Notice::CpuTimeUsedUp,
    Notice::MemoryShort,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_survive_the_socket_and_nonsense_does_not() {
        for message in [
            ControlMessage::Signal(2),
            ControlMessage::Resize([24, 80, 0xffff, 1]),
            ControlMessage::AwaitDemand,
            ControlMessage::Memory(u64::MAX - 1),
            ControlMessage::LargeProcess(7, u32::MAX),
            ControlMessage::ExactMemory(1 << 40),
        ] {
            assert_eq!(ControlMessage::decode(&message.encode()), Some(message));
        }
        for bad in [
            &[][..],
            &[1; 12],
            &[0; 12],
            &[1, 0, 0, 0, 65, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1],
            &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(ControlMessage::decode(bad), None);
        }
        for notice in NOTICES {
            assert_eq!(Notice::decode(&notice.encode()), Some(notice));
        }
        assert_eq!(Notice::decode(&[0; 4]), None);
    }
}
