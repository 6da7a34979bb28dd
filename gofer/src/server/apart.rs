//! Namespaces of the gofer's own, and a root without anything in it.
//!
//! The exports are then trees of mounts by themselves (open_tree(2)): they are what they were below, submounts
//! included, and above them there is nothing. So the gofer names no path of the host but beneath its exports, not
//! even by `..`.
//!
//! There is no PID namespace: the gofer starts no process, has no /proc, and its filter has no call that names a
//! process.

use sentry_host::namespaces;

use super::export::Export;
use super::owners::Owners;

/// How far the process is set apart. To be called by its only thread.
#[derive(Default)]
pub(super) struct Apart {
    /// It has mount, network, IPC, UTS and cgroup namespaces of its own.
    pub(super) namespaces: bool,
    /// And a user namespace, in which only the present user exists.
    pub(super) user_namespace: bool,
    /// Who knows the other owners then.
    pub(super) owners: Option<Owners>,
}

impl Apart {
    /// Enters namespaces, as far as the host allows it: as root without a user namespace, since root's rights over
    /// files hold in the one it is in. A container's root may not do that; where nothing takes such rights, it does
    /// as an ordinary user.
    pub(super) fn enter(exports: &[Export]) -> Apart {
        let writable = exports.iter().any(|export| export.writable);
        let for_everybody = !writable && exports.iter().all(|export| export.world_readable_only);
        let user = nix::unistd::geteuid();
        if user.is_root() {
            let entered = nix::sched::unshare(namespaces::EMPTY_FOR_ONE);
            if entered.is_ok() || !for_everybody {
                return Apart {
                    namespaces: entered.and_then(|()| namespaces::only_follow_mounts()).is_ok(),
                    ..Apart::default()
                };
            }
        }
        let Ok(owners) = Owners::start(writable) else {
            return Apart::default();
        };
        let entered = namespaces::enter_user_namespace(namespaces::EMPTY_FOR_ONE);
        // In a user namespace whose mappings were refused, nobody has a number any more.
        let user_namespace = entered.is_ok() || nix::unistd::geteuid() != user;
        let owners = if user_namespace {
            Some(owners)
        } else {
            owners.end();
            None
        };
        Apart {
            namespaces: entered.is_ok() && namespaces::only_follow_mounts().is_ok(),
            user_namespace,
            owners,
        }
    }
}
