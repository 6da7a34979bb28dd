//! The steps by which the sentry's process gives up everything it does not need.
//!
//! Each step is tried, and what the host refuses is noted: what holds then is what `sentry hardening` shows.

use std::fs::OpenOptions;
use std::io::Write;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid};
use sentry_host::process::{self, Disposition};
use sentry_host::{caps, landlock, namespaces};

use crate::parts::{Protection, Setting};

/// How many processes and threads a sandbox may have on the host.
pub const PROCESSES: u64 = 16384;
/// How many descriptors the sentry may have.
pub const DESCRIPTORS: u64 = 65536;
/// How much less nice the sentry is than its guests.
const WORKER_NICE: i32 = 10;

/// A worker that a guest has just woken shall run at once, also when every processor computes. Needs privilege:
/// called before that is given up, and best effort.
pub fn raise_priority() {
    let _ = process::set_nice(process::nice() - WORKER_NICE);
}

/// What has been given up so far.
#[derive(Debug, Default)]
pub struct Isolation {
    /// Every step with its outcome.
    pub protections: Vec<Protection>,
    oom: Option<(std::fs::File, String)>,
}

impl Isolation {
    fn note(&mut self, name: &str, in_force: bool, detail: impl Into<String>) {
        self.protections.push(Protection {
            name: name.into(),
            in_force,
            detail: detail.into(),
        });
    }

    fn step(&mut self, name: &str, detail: &str, result: nix::Result<()>) {
        match result {
            Ok(()) => self.note(name, true, detail),
            Err(error) => self.note(name, false, format!("the host refuses it: {}", error.desc())),
        }
    }

    /// Everything that comes before the platform is made: what it starts inherits it. `Err` where going on would
    /// leave the sentry with more than it may have.
    pub fn enter(&mut self, setting: Setting, guest_nice: i32) -> Result<(), String> {
        for signal in [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGQUIT,
            Signal::SIGHUP,
            Signal::SIGTSTP,
            Signal::SIGTTIN,
            Signal::SIGTTOU,
            Signal::SIGPIPE,
            Signal::SIGXFSZ,
        ] {
            // The terminal, or timeout(1), sends these to the whole group; the supervisor passes them on. The last two
            // come with an error.
            let _ = process::set_disposition(signal, Disposition::Ignore);
        }
        self.note_priority(guest_nice);
        let names = "PID (as its init), mount, network, IPC, UTS and cgroup";
        match setting {
            Setting::UserNamespace => {
                self.note("user namespace", true, "of its own, with one user and no other");
                self.note("namespaces", true, names);
            }
            Setting::Namespaces { .. } => {
                self.note(
                    "user namespace",
                    false,
                    "the host refuses it; the others were made as root",
                );
                self.note("namespaces", true, names);
            }
            Setting::Fallback => {
                self.note("user namespace", false, "the host refuses it");
                self.note(
                    "namespaces",
                    false,
                    "the host refuses them; network and file access are bound by seccomp and Landlock",
                );
                self.note(
                    "clean-up",
                    true,
                    "two subreapers, each of which ends all that the other leaves; parent-death signals",
                );
            }
        }
        // Stubs are to be the first to go when memory runs out. They inherit the value; the sentry then takes its
        // own back. Opened now: there is no /proc afterwards.
        self.oom = std::fs::read_to_string("/proc/self/oom_score_adj")
            .ok()
            .and_then(|own| {
                let mut file = OpenOptions::new().write(true).open("/proc/self/oom_score_adj").ok()?;
                file.write_all(b"1000").ok()?;
                Some((file, own))
            });
        self.note("oom_score_adj", self.oom.is_some(), "1000 for stubs");
        match setting {
            Setting::Fallback => self.note("empty root", false, "needs a mount namespace"),
            _ => self.step(
                "empty root",
                "a read-only file system with nothing in it",
                namespaces::enter_empty_root(),
            ),
        }
        self.give_up_privileges(setting)?;
        let rooted = process::die_with_parent(None);
        self.step(
            "parent-death signal",
            "SIGKILL when the supervisor's end dies",
            rooted.map(drop),
        );
        match landlock::restrict(&[]) {
            Ok(abi) => self.note(
                "landlock",
                true,
                format!("no file, no TCP, no signal to outside (ABI {abi})"),
            ),
            Err(error) => self.note(
                "landlock",
                false,
                format!("the host does not offer it: {}", error.desc()),
            ),
        }
        self.set_limits();
        Ok(())
    }

    fn give_up_privileges(&mut self, setting: Setting) -> Result<(), String> {
        // The bounding set goes first: emptying it takes a capability.
        let mut bounding = caps::drop_all_but(match setting {
            Setting::Namespaces { .. } => caps::SETUID | caps::SETGID | caps::SETPCAP,
            _ => 0,
        });
        if let Setting::Namespaces { uid, gid } = setting {
            // Refused where only root is mapped; noted below.
            let _ = namespaces::become_user(Uid::from_raw(uid), Gid::from_raw(gid));
            bounding = caps::drop_all_but(0);
        }
        let left = caps::get().map_err(|error| format!("cannot read capabilities: {}", error.desc()))?;
        if left.permitted != 0 || left.effective != 0 {
            return Err("capabilities cannot be given up".into());
        }
        let detail = match bounding {
            Ok(0) => "none; bounding set empty",
            _ => "none; the bounding set cannot be emptied without privilege, and no_new_privs makes it moot",
        };
        self.note("capabilities", true, detail);
        nix::sys::prctl::set_no_new_privs().map_err(|error| format!("no_new_privs: {}", error.desc()))?;
        self.note("no_new_privs", true, "no exec gains anything");
        let uid = nix::unistd::getuid();
        let detail = format!("sentry and stubs run as host user {uid}");
        self.note(
            "user",
            !uid.is_root(),
            if uid.is_root() {
                format!("{detail}: RLIMIT_NPROC does not bind it")
            } else {
                detail
            },
        );
        // Changing user made the process undumpable, and stubs that inherit that could not be read.
        let _ = nix::sys::prctl::set_dumpable(true);
        Ok(())
    }

    /// Notes whether the sentry runs at a higher priority than its guests; see [`raise_priority`].
    fn note_priority(&mut self, guests: i32) {
        let own = process::nice();
        let detail = format!("nice {own}; guests have {guests}");
        self.note("priority", own < guests, detail);
    }

    fn set_limits(&mut self) {
        for (name, resource, value) in [
            ("RLIMIT_CORE", Resource::RLIMIT_CORE, 0),
            ("RLIMIT_NPROC", Resource::RLIMIT_NPROC, PROCESSES),
            ("RLIMIT_NOFILE", Resource::RLIMIT_NOFILE, DESCRIPTORS),
            ("RLIMIT_MSGQUEUE", Resource::RLIMIT_MSGQUEUE, 0),
            ("RLIMIT_RTPRIO", Resource::RLIMIT_RTPRIO, 0),
            ("RLIMIT_MEMLOCK", Resource::RLIMIT_MEMLOCK, 64 << 10),
        ] {
            match process::limit(resource, value) {
                Ok(value) => self.note(name, true, value.to_string()),
                Err(error) => self.note(name, false, error.desc()),
            }
        }
    }

    /// What comes once the platform has its zygote: what is set here, stubs do not get.
    pub fn seal(&mut self) {
        if let Some((mut file, own)) = self.oom.take() {
            // The sentry's own value; refused only if it was lowered by privilege.
            let _ = file.write_all(own.trim().as_bytes());
        }
        let result = nix::sys::prctl::set_dumpable(false);
        self.step(
            "undumpable",
            "no other process of the user reads the sentry's memory",
            result,
        );
    }
}
