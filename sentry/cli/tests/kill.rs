//! SIGKILL to any part of a sandbox, at any moment: nothing of it is left, and the supervisor (if it still lives)
//! says why.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::{Host, command_line, error_text, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn launcher() {
    common::launch();
}

/// What a guest does meanwhile: forks, pipes and sleeps without end.
const BUSY: &str = "exec 2>/dev/null; while :; do (sleep 0.01; true) | cat; done & while :; do /bin/true; done";

/// Parents of all processes.
fn parents() -> BTreeMap<i32, i32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.insert(pid, parent);
        }
    }
    parents
}

/// A process and all its descendants.
fn family(root: i32) -> BTreeSet<i32> {
    let parents = parents();
    let mut family = BTreeSet::from([root]);
    loop {
        let more: Vec<_> = parents
            .iter()
            .filter(|(pid, parent)| family.contains(*parent) && !family.contains(*pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return family;
        }
        family.extend(more);
    }
}

/// Alive, and not just waiting to be reaped.
fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Those of some processes that do not end, with their command lines.
fn still_alive(everybody: &BTreeSet<i32>) -> Vec<(i32, String)> {
    let mut left = Vec::new();
    eventually(|| {
        left = everybody
            .iter()
            .filter(|pid| alive(**pid))
            .map(|pid| (*pid, command_line(*pid)))
            .collect();
        left.is_empty()
    });
    left
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Supervisor,
    Gofer,
    Sentry,
    Zygote,
    Stub,
    Guard,
}

impl Part {
    /// The part's process in a sandbox whose supervisor is `supervisor`, if there is one.
    fn find(self, supervisor: i32) -> Option<i32> {
        let parents = parents();
        let children = |of: i32| {
            parents
                .iter()
                .filter(move |(_, parent)| **parent == of)
                .map(|(pid, _)| *pid)
        };
        let named = |of: i32, name: &str| children(of).find(|pid| command_line(*pid).ends_with(name));
        let guard = children(supervisor).find(|pid| named(*pid, "sentry boot").is_some());
        let sentry = named(supervisor, "sentry boot").or_else(|| named(guard?, "sentry boot"));
        match self {
            Part::Supervisor => Some(supervisor),
            Part::Gofer => named(supervisor, "sentry gofer"),
            Part::Guard => guard,
            Part::Sentry => sentry,
            // Made first, and so the lowest number but for a wrap-around.
            Part::Zygote => children(sentry?).min(),
            Part::Stub => children(sentry?)
                .max()
                .filter(|stub| children(sentry.unwrap_or(0)).min() != Some(*stub)),
        }
    }
}

fn start(host: Host) -> Option<Child> {
    let mut command: Command = host.sentry_with(&["exec", "sh", "-c", BUSY])?;
    Some(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts"),
    )
}

/// A number that differs from round to round and run to run.
fn random(below: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % below
}

fn round(host: Host, part: Part) {
    let Some(mut child) = start(host) else { return };
    let supervisor = child.id() as i32;
    // A random moment: now and then before the part is there, mostly while the guest works.
    std::thread::sleep(std::time::Duration::from_micros(random(60_000)));
    let mut target = None;
    assert!(
        eventually(|| {
            target = part.find(supervisor);
            // (In /proc, a process whose thread executes looks dead for a moment.)
            target.is_some() || child.try_wait().expect("wait").is_some()
        }),
        "{host:?}: no {part:?}"
    );
    let mut everybody = family(supervisor);
    if let Some(target) = target {
        let _ = kill(Pid::from_raw(target), Signal::SIGKILL);
    }
    if part == Part::Stub {
        // Only that guest process is gone, as if the guest had killed it; the rest goes on or ends.
        std::thread::sleep(std::time::Duration::from_millis(20));
        everybody.extend(family(supervisor));
        let _ = kill(Pid::from_raw(supervisor), Signal::SIGTERM);
    }
    let output = child.wait_with_output().expect("wait");
    if part != Part::Supervisor && part != Part::Stub {
        assert_eq!(
            output.status.code(),
            Some(125),
            "{host:?} {part:?}: {}",
            error_text(&output)
        );
        let lines = error_text(&output);
        assert!(
            lines.lines().filter(|line| line.starts_with("sentry: ")).count() == 1,
            "{host:?} {part:?}: {lines}"
        );
    }
    let left = still_alive(&everybody);
    assert!(left.is_empty(), "{host:?} {part:?}: left over: {left:?}");
}

/// Five parts, four rounds each, or as many as `SENTRY_KILL_ROUNDS` says (for long runs by hand).
fn rounds(host: Host) {
    let rounds = std::env::var("SENTRY_KILL_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(4);
    for _ in 0..rounds {
        for part in [Part::Supervisor, Part::Gofer, Part::Sentry, Part::Zygote, Part::Stub] {
            round(host, part);
        }
    }
}

#[test]
fn nothing_is_left_as_root_or_whoever_runs_the_tests() {
    rounds(Host::Plain);
}

#[test]
fn nothing_is_left_of_an_ordinary_users_sandbox() {
    rounds(Host::Ordinary);
}

#[test]
fn nothing_is_left_where_namespaces_are_refused() {
    rounds(Host::Restricted);
    for _ in 0..4 {
        round(Host::Restricted, Part::Guard);
    }
}

/// What a sandbox may leave besides processes.
#[derive(Debug, Default, PartialEq)]
struct Things {
    mounts: usize,
    cgroups: BTreeSet<PathBuf>,
}

impl Things {
    fn there() -> Things {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
        let mut cgroups = BTreeSet::new();
        let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                    if entry.file_name().to_string_lossy().starts_with("sentry-") {
                        cgroups.insert(entry.path());
                    }
                }
            }
        }
        Things {
            mounts: mounts.lines().count(),
            cgroups,
        }
    }
}

/// The namespaces of processes, as far as they are not those of this one.
fn namespaces(pids: impl IntoIterator<Item = String>) -> BTreeSet<PathBuf> {
    let of = |pid: &str| {
        let list = std::fs::read_dir(format!("/proc/{pid}/ns"));
        let links = list.into_iter().flatten().flatten();
        links
            .filter_map(|link| std::fs::read_link(link.path()).ok())
            .collect::<BTreeSet<_>>()
    };
    let own = of("self");
    pids.into_iter()
        .flat_map(|pid| of(&pid))
        .filter(|namespace| !own.contains(namespace))
        .collect()
}

/// SIGKILL to any process of a sandbox with work and limits in it, whichever it is, on both platforms and as several
/// users: no process, mount, cgroup, namespace or temporary file is left. `SENTRY_KILLS` says how often.
#[test]
fn random_kills_leave_nothing() {
    const WORK: &str = "exec 2>/dev/null; while :; do (sleep 0.01; true) | cat; done & \
        while :; do echo x >/tmp/f; (ulimit -n 50; exec /bin/true) & wait $!; rm /tmp/f; done";
    let kills = std::env::var("SENTRY_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12);
    let before = Things::there();
    for number in 0..kills {
        let host = [Host::Plain, Host::Ordinary, Host::Restricted][number / 2 % 3];
        let platform = ["systrap", "ptrace"][number % 2];
        let scratch = tempfile::tempdir().expect("a directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(scratch.path(), open).expect("chmod");
        let limits = ["--memory", "256M", "--pids", "100", "--cpus", "1.5"];
        let mut args = vec!["exec", "--platform", platform];
        args.extend(limits);
        args.extend(["sh", "-c", WORK]);
        let Some(mut command) = host.sentry_with(&args) else {
            continue;
        };
        let child = command
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = child.spawn().expect("it starts");
        let supervisor = child.id() as i32;
        std::thread::sleep(std::time::Duration::from_micros(random(60_000)));
        let mut everybody = family(supervisor);
        let spaces = namespaces(everybody.iter().map(i32::to_string));
        let victim = *everybody
            .iter()
            .nth(random(everybody.len() as u64) as usize)
            .expect("the supervisor");
        let what = format!(
            "kill {number}: {host:?}, {platform}, {victim} of {supervisor}: {:?}",
            command_line(victim)
        );
        let _ = kill(Pid::from_raw(victim), Signal::SIGKILL);
        std::thread::sleep(std::time::Duration::from_micros(random(5_000)));
        everybody.extend(family(supervisor));
        // It may be a guest's process, without which the rest goes on.
        let _ = kill(Pid::from_raw(supervisor), Signal::SIGTERM);
        let output = child.wait_with_output().expect("wait");
        let left = still_alive(&everybody);
        assert!(left.is_empty(), "{what}: left over: {left:?}; {}", error_text(&output));
        let mut spaces_left = BTreeSet::new();
        let gone = eventually(|| {
            spaces_left = namespaces(parents().keys().map(i32::to_string))
                .intersection(&spaces)
                .cloned()
                .collect();
            spaces_left.is_empty()
        });
        assert!(gone, "{what}: namespaces are left: {spaces_left:?}");
        let files: Vec<_> = std::fs::read_dir(scratch.path()).expect("list").collect();
        assert!(files.is_empty(), "{what}: files are left: {files:?}");
    }
    // Other tests of this program have sandboxes too, for a while.
    let mut now = Things::default();
    let same = eventually(|| {
        now = Things::there();
        now.mounts == before.mounts && now.cgroups.is_subset(&before.cgroups)
    });
    assert!(same, "before {before:?}, now {now:?}");
}

/// A signal that comes before the first process is there waits for it.
#[test]
fn a_signal_at_the_start_is_not_lost() {
    for number in 0..40 {
        let platform = ["systrap", "ptrace"][number % 2];
        let mut command = Host::Plain
            .sentry_with(&["exec", "--platform", platform, "sleep", "1000"])
            .expect("plain");
        let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(std::time::Duration::from_micros(number as u64 * 500));
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        let ended = eventually(|| child.try_wait().expect("wait").is_some());
        let _ = child.kill();
        let _ = child.wait();
        assert!(ended, "{platform}, after {} us", number * 500);
    }
}

/// SIGSTOP and SIGCONT from outside, to any part but the supervisor, at random moments: the sandbox goes on as if nothing
/// had been.
#[test]
fn parts_that_are_stopped_and_continued_go_on() {
    const WORK: &str = "i=0; while [ $i -lt 40 ]; do i=$((i + 1)); (true; echo $i) | cat; done; sleep 0.1; echo done";
    for platform in ["systrap", "ptrace"] {
        let mut command = Host::Plain
            .sentry_with(&["exec", "--platform", platform, "sh", "-c", WORK])
            .expect("plain");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let supervisor = child.id() as i32;
        let mut stops = 0;
        while child.try_wait().expect("wait").is_none() {
            let parts: Vec<_> = family(supervisor)
                .into_iter()
                .filter(|pid| *pid != supervisor)
                .collect();
            if parts.is_empty() {
                continue;
            }
            let part = Pid::from_raw(parts[random(parts.len() as u64) as usize]);
            if kill(part, Signal::SIGSTOP).is_ok() {
                stops += 1;
                std::thread::sleep(std::time::Duration::from_micros(random(2000)));
                let _ = kill(part, Signal::SIGCONT);
            }
        }
        let output = child.wait_with_output().expect("wait");
        assert_eq!(output.status.code(), Some(0), "{platform}: {}", error_text(&output));
        assert!(
            common::text(&output).ends_with("40\ndone\n"),
            "{platform}: {}",
            common::text(&output)
        );
        assert!(stops > 0, "{platform}");
    }
}

#[test]
fn no_descriptor_of_the_caller_and_no_mount_is_left() {
    let mounts = || {
        std::fs::read_to_string("/proc/self/mountinfo")
            .expect("/proc")
            .lines()
            .count()
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let before = (mounts(), descriptors());
    for _ in 0..3 {
        let output = Host::Plain.run(&["exec", "true"]).expect("plain");
        assert_eq!(output.status.code(), Some(0), "{}", error_text(&output));
    }
    // Other tests of this program open and close descriptors meanwhile.
    assert!(eventually(|| mounts() == before.0 && descriptors() <= before.1 + 8));
}
