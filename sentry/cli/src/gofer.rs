//! `sentry gofer`: the role that serves host files to the sentry.

use std::os::fd::{AsFd, OwnedFd};

use sentry_gofer::server::{self, Export, Restrictions, Server};
use sentry_host::{process, scm};

use crate::host_calls;
use crate::parts::{self, Gofer, Protection};
use crate::supervisor::FAILED;
use crate::terminal::complain;

/// Runs the role. Returns only the code to exit with.
pub fn main() -> u8 {
    let (Some(configuration), Some(socket)) = (process::adopt(parts::CONFIG), process::adopt(parts::SENTRY)) else {
        eprintln!("sentry gofer: this is started by `sentry exec`");
        return FAILED;
    };
    process::close_from(parts::SENTRY + 1);
    let served = parts::read_configuration::<Gofer>(configuration)
        .map_err(|error| format!("gofer: configuration: {error}"))
        .and_then(|gofer| {
            let exports: Vec<_> = gofer.trees.into_iter().map(Into::into).collect();
            if gofer.report {
                return report(&socket, &exports);
            }
            server::run(socket, &exports).map_err(|error| format!("gofer: {error}"))
        });
    match served {
        Ok(()) => 0,
        Err(what) => {
            complain(&what);
            FAILED
        }
    }
}

/// Restricts itself as for serving, and reports how far that went instead.
fn report(socket: &OwnedFd, exports: &[Export]) -> Result<(), String> {
    // What comes after the filter makes no other host call.
    let root = nix::unistd::geteuid().is_root();
    let server = Server::open_apart(exports).map_err(|error| format!("gofer: {error}"))?;
    let restrictions = server.restrict_self().map_err(|error| format!("gofer: {error}"))?;
    let text = serde_json::to_vec(&protections(&restrictions, root)).map_err(|error| format!("gofer: {error}"))?;
    scm::send_with_fds(socket.as_fd(), &text, &[]).map_err(|error| format!("gofer: {error}"))?;
    Ok(())
}

fn protections(restrictions: &Restrictions, root: bool) -> Vec<Protection> {
    let mut list = Vec::new();
    let mut note = |name: &str, in_force: bool, yes: &str, no: &str| {
        list.push(Protection {
            name: name.into(),
            in_force,
            detail: if in_force { yes } else { no }.into(),
        });
    };
    note(
        "user namespace",
        restrictions.user_namespace,
        "of its own, with one user; a process outside, which opens nothing, tells it the owners of files",
        if root && restrictions.namespaces {
            "root's rights over files hold in its own only"
        } else {
            "the host refuses it"
        },
    );
    note(
        "namespaces",
        restrictions.namespaces,
        "mount, network, IPC, UTS and cgroup; it starts no process and sees none",
        "the host refuses them; files are bound by Landlock, all else by seccomp",
    );
    note(
        "empty root",
        restrictions.empty_root,
        "a read-only file system with nothing in it",
        "needs a mount namespace, and a root that can be left",
    );
    note(
        "exports",
        restrictions.detached,
        "trees of mounts by themselves: nothing of the host is above them",
        "directories of the host: what is above them can be named, and not opened",
    );
    note(
        "capabilities",
        restrictions.capabilities == 0,
        "none, for the default view",
        "some are left",
    );
    note("no_new_privs", true, "no exec gains anything", "");
    let landlock = format!("only the exports, for reading (ABI {})", restrictions.landlock);
    note(
        "landlock",
        restrictions.landlock > 0,
        &landlock,
        "the host does not offer it",
    );
    let calls = format!(
        "{} host calls, arguments checked; any other ends it",
        host_calls::allowed(&server::host_calls(false))
    );
    note("seccomp", true, &calls, "");
    list
}
