//! A file system of the host whose only file, `file`, can be opened, and whose reads are never answered (fuse(4)).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Operations (`enum fuse_opcode`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const BATCH_FORGET: u32 = 42;
const INTERRUPT: u32 = 36;

/// The mount, in a mount namespace of the calling thread's own; the end of it ends the connection.
pub struct Fuse {
    dir: tempfile::TempDir,
    read: Arc<AtomicBool>,
    device: Option<File>,
}

impl Fuse {
    /// None, and a loud message, where it cannot be had.
    pub fn mount() -> Option<Fuse> {
        let skip = |why: &dyn std::fmt::Display| {
            eprintln!("SKIPPED: no FUSE here: {why}");
            None
        };
        let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => return skip(&error),
        };
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
            return skip(&error);
        }
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("a namespace of our own");
        let dir = tempfile::tempdir().expect("directory");
        let options = format!(
            "fd={},rootmode=40755,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        if let Err(error) = mount(
            Some("hung"),
            dir.path(),
            Some("fuse"),
            MsFlags::empty(),
            Some(options.as_str()),
        ) {
            return skip(&error);
        }
        let read = Arc::new(AtomicBool::new(false));
        let (server, seen) = (device.try_clone().expect("descriptor"), read.clone());
        std::thread::spawn(move || serve(server, &seen));
        Some(Fuse {
            dir,
            read,
            device: Some(device),
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Somebody waits for content.
    pub fn was_read(&self) -> bool {
        self.read.load(Ordering::SeqCst)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // All requests fail from now on, and the server ends.
        let _ = umount2(self.dir.path(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        self.device = None;
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
}

/// `struct fuse_attr`.
fn attributes(inode: u64) -> Vec<u8> {
    let mode: u32 = if inode == 1 { 0o40755 } else { 0o100_644 };
    let mut bytes = Vec::new();
    for value in [inode, if inode == 1 { 0 } else { 1 << 20 }, 8, 0, 0, 0] {
        bytes.extend_from_slice(&value.to_ne_bytes());
    }
    for value in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        bytes.extend_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn directory_entry(inode: u64, offset: u64, name: &str) -> Vec<u8> {
    let mut bytes = [inode.to_ne_bytes(), offset.to_ne_bytes()].concat();
    bytes.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    bytes.extend_from_slice(&(if name == "file" { 8u32 } else { 4 }).to_ne_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn serve(mut device: File, read: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        let request = &request[..length];
        let (operation, unique) = (number(request, 4), &request[8..16]);
        let inode = u64::from(number(request, 16));
        let long = |values: &[u64]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        let answer: Result<Vec<u8>, i32> = match operation {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            READ => {
                read.store(true, Ordering::SeqCst);
                continue;
            }
            // Version 7.31, what is asked for of read-ahead, no flags, and room.
            INIT => {
                let mut bytes = Vec::new();
                for value in [7u32, 31, number(request, 48), 0, 0, 65536, 1, 0] {
                    bytes.extend_from_slice(&value.to_ne_bytes());
                }
                bytes.resize(64, 0);
                Ok(bytes)
            }
            LOOKUP if request[40..].starts_with(b"file\0") => {
                Ok([long(&[2, 0, 1 << 30, 1 << 30, 0]), attributes(2)].concat())
            }
            LOOKUP => Err(libc::ENOENT),
            GETATTR => Ok([long(&[1 << 30, 0]), attributes(inode)].concat()),
            OPEN | OPENDIR => Ok(long(&[7, 0])),
            READDIR if number(request, 48) == 0 => Ok([
                directory_entry(1, 1, "."),
                directory_entry(1, 2, ".."),
                directory_entry(2, 3, "file"),
            ]
            .concat()),
            READDIR => Ok(Vec::new()),
            STATFS => Ok(vec![0; 80]),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut bytes = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&error.to_ne_bytes());
        bytes.extend_from_slice(unique);
        bytes.extend_from_slice(&body);
        let _ = device.write_all(&bytes);
    }
}
