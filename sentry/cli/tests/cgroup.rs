//! Cgroups of the host: what is set, who is in, and that nothing is left, whoever was killed.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{SENTRY, children, command_line, error_text, eventually, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where this process is in each hierarchy that it can write to: the usual places only.
fn own() -> Vec<PathBuf> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").expect("cgroups");
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().expect("controllers"), parts.next().expect("a path"));
        let mounts = match controllers {
            "" => vec!["/sys/fs/cgroup".into(), "/sys/fs/cgroup/unified".into()],
            names => vec![format!("/sys/fs/cgroup/{names}")],
        };
        for mount in mounts {
            let own = PathBuf::from(format!("{mount}{path}"));
            if own.join("cgroup.procs").exists() && nix::unistd::access(&own, nix::unistd::AccessFlags::W_OK).is_ok() {
                found.push(own);
            }
        }
    }
    found
}

/// The directories of the sandbox of this supervisor: those below ours that have the sentry in them.
fn of(supervisor: i32) -> Vec<PathBuf> {
    let Some(sentry) = children(supervisor)
        .into_iter()
        .find(|child| command_line(*child).ends_with("sentry boot"))
    else {
        return Vec::new();
    };
    let is_in = |path: &Path| {
        let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        procs.lines().any(|pid| pid == sentry.to_string())
    };
    own()
        .iter()
        .filter_map(|own| fs::read_dir(own).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| path.is_dir() && is_in(path))
        .collect()
}

/// Ends a sandbox; its first process may not have set its trap yet, and ignores the signal until then.
fn end(mut child: Child) {
    assert!(eventually(|| {
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        child.try_wait().expect("a child").is_some()
    }));
}

fn start(args: &[&str]) -> Child {
    Command::new(SENTRY)
        .arg("exec")
        .args(args)
        .args(["--", "sh", "-c", "trap exit TERM; sleep 60 & wait"])
        .current_dir("/usr")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// True if this machine lets the tests make cgroups.
fn possible() -> bool {
    let output = Command::new(SENTRY)
        .args(["exec", "--cgroup", "require", "--", "true"])
        .current_dir("/usr")
        .output()
        .expect("it starts");
    if !output.status.success() {
        eprintln!("SKIPPED: no cgroup can be made here: {}", error_text(&output));
    }
    output.status.success()
}

fn contents(path: &Path, file: &str) -> Option<String> {
    fs::read_to_string(path.join(file))
        .ok()
        .map(|text| text.trim().to_owned())
}

#[test]
fn the_host_holds_limits_with_head_room() {
    if !possible() {
        return;
    }
    let child = start(&["--memory", "1g", "--cpus", "2", "--pids", "10"]);
    let supervisor = child.id() as i32;
    let mut groups = Vec::new();
    assert!(eventually(|| {
        groups = of(supervisor);
        // Gofer, sentry, zygote, guest.
        let is_full = |path: &PathBuf| contents(path, "cgroup.procs").is_some_and(|procs| procs.lines().count() >= 4);
        !groups.is_empty() && groups.iter().all(is_full)
    }));
    let most = ((1u64 << 30) + (192 << 20)).to_string();
    let mut seen = 0;
    for group in &groups {
        for (file, value) in [
            ("memory.limit_in_bytes", most.as_str()),
            ("memory.max", &most),
            ("cpu.cfs_quota_us", "300000"),
            ("cpu.max", "300000 100000"),
            ("pids.max", "148"),
        ] {
            if let Some(found) = contents(group, file) {
                assert_eq!(found, value, "{}", group.display());
                seen += 1;
            }
        }
        let procs = contents(group, "cgroup.procs").expect("processes");
        assert!(!procs.lines().any(|pid| pid == supervisor.to_string()), "{procs}");
    }
    if seen == 0 {
        eprintln!("SKIPPED: this cgroup has no controllers");
    }
    end(child);
    assert!(groups.iter().all(|path| !path.exists()), "{groups:?}");
}

#[test]
fn none_is_made_where_none_is_wanted() {
    for args in [&["--memory", "1g", "--cgroup", "never"][..], &["--nofile", "50"]] {
        let child = start(args);
        let supervisor = child.id() as i32;
        assert!(eventually(|| children(supervisor).len() >= 2));
        let mine: Vec<_> = own().iter().map(|own| contents(own, "cgroup.procs")).collect();
        end(child);
        for procs in mine.into_iter().flatten() {
            assert!(procs.lines().any(|pid| pid == supervisor.to_string()), "{args:?}");
        }
    }
}

/// The process of a sandbox that removes its cgroup: it has the supervisor's command line.
fn keeper(supervisor: i32) -> Option<i32> {
    let line = command_line(supervisor);
    children(supervisor)
        .into_iter()
        .find(|child| command_line(*child) == line)
}

#[test]
fn nothing_is_left_of_a_supervisor_that_is_killed() {
    if !possible() {
        return;
    }
    for _ in 0..5 {
        let mut child = start(&["--memory", "1g", "--pids", "20"]);
        let supervisor = child.id() as i32;
        assert!(eventually(|| !of(supervisor).is_empty()));
        let groups = of(supervisor);
        kill(Pid::from_raw(supervisor), Signal::SIGKILL).expect("it lives");
        child.wait().expect("an end");
        assert!(eventually(|| groups.iter().all(|path| !path.exists())), "{groups:?}");
    }
}

#[test]
fn a_killed_keeper_is_stood_in_for() {
    if !possible() {
        return;
    }
    // By the supervisor.
    let child = start(&["--memory", "1g"]);
    let supervisor = child.id() as i32;
    assert!(eventually(|| !of(supervisor).is_empty()));
    let groups = of(supervisor);
    kill(Pid::from_raw(keeper(supervisor).expect("a keeper")), Signal::SIGKILL).expect("it lives");
    end(child);
    assert!(groups.iter().all(|path| !path.exists()), "{groups:?}");
    // By the next sandbox, and that leaves those alone that are in use.
    let living = start(&["--memory", "1g"]);
    assert!(eventually(|| !of(living.id() as i32).is_empty()));
    let used = of(living.id() as i32);
    let mut child = start(&["--memory", "1g"]);
    let supervisor = child.id() as i32;
    assert!(eventually(|| !of(supervisor).is_empty()));
    let groups = of(supervisor);
    kill(Pid::from_raw(keeper(supervisor).expect("a keeper")), Signal::SIGKILL).expect("it lives");
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).expect("it lives");
    child.wait().expect("an end");
    assert!(eventually(|| {
        let next = Command::new(SENTRY)
            .args(["exec", "--memory", "1g", "--", "true"])
            .current_dir("/usr")
            .status()
            .expect("it starts");
        next.success() && groups.iter().all(|path| !path.exists())
    }));
    assert!(used.iter().all(|path| path.exists()), "{used:?}");
    end(living);
}

/// A cgroup of the unified hierarchy that was handed to an ordinary user, who is alone in it: the supervisor goes aside,
/// and comes back.
#[test]
fn a_delegated_cgroup_is_as_it_was() {
    let (user, group) = (54321, 54321);
    let unified = own()
        .into_iter()
        .find(|own| own.join("cgroup.subtree_control").exists());
    let (true, Some(unified)) = (nix::unistd::geteuid().is_root(), unified) else {
        eprintln!("SKIPPED: needs root and the unified hierarchy of cgroups");
        return;
    };
    let delegated = unified.join(format!("sentrytest{}", std::process::id()));
    fs::create_dir(&delegated).expect("a cgroup");
    for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
        std::os::unix::fs::chown(delegated.join(file), Some(user), Some(group)).expect("chown");
    }
    let before = contents(&delegated, "cgroup.subtree_control");
    let offered = contents(&delegated, "cgroup.controllers").unwrap_or_default();
    let script = format!(
        "echo 0 > {}/cgroup.procs; exec setpriv --reuid {user} --regid {group} --clear-groups \"$@\"",
        delegated.display()
    );
    let run = |args: &[&str]| {
        Command::new("sh")
            .args(["-c", &script, "sh", SENTRY])
            .args(args)
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/usr")
            .process_group(0)
            .output()
            .expect("it starts")
    };
    let output = run(&["exec", "--cgroup", "require", "--", "echo", "inside"]);
    let left: Vec<_> = fs::read_dir(&delegated)
        .expect("the cgroup")
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.path())
        .collect();
    let after = contents(&delegated, "cgroup.subtree_control");
    let limited = run(&["exec", "--cgroup", "require", "--memory", "1g", "--", "true"]);
    let removed = fs::remove_dir(&delegated);
    assert_eq!(text(&output), "inside\n", "{}", error_text(&output));
    assert_eq!((left, after), (Vec::new(), before));
    match offered.split_whitespace().any(|name| name == "memory") {
        true => assert_eq!(limited.status.code(), Some(0), "{}", error_text(&limited)),
        false => assert_eq!(
            (limited.status.code(), error_text(&limited).as_str()),
            (Some(125), "sentry: --cgroup require: no cgroup here holds --memory\n")
        ),
    }
    removed.expect("empty");
}

/// Whoever starts sweeps away what others have left, and must not take what another one makes at that moment.
#[test]
fn many_that_start_at_once_all_get_one() {
    if !possible() {
        return;
    }
    for _ in 0..3 {
        let sandboxes: Vec<Child> = (0..12)
            .map(|_| {
                Command::new(SENTRY)
                    .args(["exec", "--cgroup", "require", "--memory", "256m", "--", "true"])
                    .current_dir("/usr")
                    .stdin(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("it starts")
            })
            .collect();
        for sandbox in sandboxes {
            let output = sandbox.wait_with_output().expect("wait");
            assert!(output.status.success(), "{}", error_text(&output));
        }
    }
}
