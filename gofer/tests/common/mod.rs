//! What the tests share.
#![allow(dead_code)]

pub mod messages;
mod random;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use sentry_gofer::client::Client;
use sentry_gofer::server::{Export, Server};
use sentry_host::scm;

pub use random::Random;

impl Random {
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A message like this one, but not quite.
    pub fn mutate(&mut self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(message.len().max(1));
            match self.below(5) {
                0 if !message.is_empty() => message[at] = self.next() as u8,
                1 if !message.is_empty() => message[at] ^= 1 << self.below(8),
                2 if !message.is_empty() => message[at] = [0, 1, 2, 127, 128, 254, 255][self.below(7)],
                3 => message.truncate(at),
                _ => message.insert(at, self.next() as u8),
            }
        }
        message
    }
}

/// An export with no special rules.
pub fn export(id: u32, path: &Path) -> Export {
    Export {
        id,
        path: path.to_owned(),
        writable: false,
        world_readable_only: false,
        hide_credentials: false,
    }
}

/// A server in a thread of its own, not restricted; it ends when the client is dropped.
pub fn serve(exports: &[Export], openat2: bool) -> (Arc<Client>, JoinHandle<()>) {
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    let mut server = Server::open(exports).expect("exports");
    if !openat2 {
        server = server.without_openat2();
    }
    let thread = std::thread::spawn(move || server.serve(theirs.as_fd()).expect("an honest client"));
    (Client::new(ours), thread)
}

/// A server in a process of its own, restricted, as the user with this number. `test` names a test of the calling
/// program that runs [`server_process`].
pub fn spawn(test: &str, exports: &[Export], uid: Option<u32>) -> (OwnedFd, Child) {
    let (ours, theirs) = scm::packet_pair().expect("socketpair");
    let flags = exports.iter().map(|export| {
        let Export {
            id,
            path,
            writable,
            world_readable_only,
            hide_credentials,
        } = export;
        let path = path.to_str().expect("UTF-8");
        format!(
            "{id}:{}:{}:{}:{path}",
            *writable as u8, *world_readable_only as u8, *hide_credentials as u8
        )
    });
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("GOFER_TEST_EXPORTS", flags.collect::<Vec<_>>().join("\n"));
    command.env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let child = command.spawn().expect("spawn");
    (ours, child)
}

/// Runs as server if [`spawn`] started this process; else does nothing.
pub fn server_process() {
    let Ok(exports) = std::env::var("GOFER_TEST_EXPORTS") else {
        return;
    };
    let exports: Vec<Export> = exports
        .lines()
        .map(|line| {
            let mut fields = line.splitn(5, ':');
            let id = fields.next().and_then(|id| id.parse().ok()).expect("number");
            let mut flag = || fields.next() == Some("1");
            let (writable, world_readable_only, hide_credentials) = (flag(), flag(), flag());
            let path = fields.next().expect("path").into();
            Export {
                id,
                path,
                writable,
                world_readable_only,
                hide_credentials,
            }
        })
        .collect();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("socket");
    let code = match sentry_gofer::server::run(socket, &exports) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    };
    std::process::exit(code);
}

/// True as root; else says so, loudly.
pub fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED, needs root: {what}");
    }
    root
}
