//! Which protections are in force, as root, as an ordinary user, and where namespaces are refused.

mod common;

use common::{Host, error_text, text};

#[test]
fn launcher() {
    common::launch();
}

/// `sentry hardening` there: each protection's name with whether it is in force, for the sentry.
fn protections(host: Host) -> Option<Vec<(String, bool)>> {
    protections_of("The sentry's process", host)
}

fn protections_of(part: &str, host: Host) -> Option<Vec<(String, bool)>> {
    let output = host.run(&["hardening"])?;
    assert_eq!(output.status.code(), Some(0), "{host:?}: {}", error_text(&output));
    let lines = text(&output);
    let rows = lines.lines().skip_while(|line| !line.starts_with(part)).skip(1);
    let rows = rows.take_while(|line| !line.is_empty()).map(|line| {
        let (state, rest) = line.trim().split_once("  ").expect("two columns");
        (
            rest.trim_start().split("  ").next().unwrap_or_default().to_owned(),
            state == "yes",
        )
    });
    Some(rows.collect())
}

fn in_force(protections: &[(String, bool)], name: &str) -> bool {
    protections
        .iter()
        .find(|(other, _)| other == name)
        .unwrap_or_else(|| panic!("no row {name}: {protections:?}"))
        .1
}

#[test]
fn what_never_depends_on_the_host_is_always_in_force() {
    for host in Host::ALL {
        let Some(protections) = protections(host) else { continue };
        for name in [
            "capabilities",
            "no_new_privs",
            "seccomp",
            "RLIMIT_CORE",
            "user",
            "undumpable",
        ] {
            assert!(in_force(&protections, name), "{host:?}: {name}: {protections:?}");
        }
    }
}

#[test]
fn namespaces_are_used_where_they_are_to_be_had() {
    for (host, expected) in [
        (Host::Plain, true),
        (Host::Ordinary, true),
        (Host::Restricted, false),
        (Host::OrdinaryRestricted, false),
    ] {
        let Some(protections) = protections(host) else { continue };
        if expected && !in_force(&protections, "namespaces") {
            eprintln!("SKIPPED: this host refuses namespaces to {host:?}");
            continue;
        }
        assert_eq!(in_force(&protections, "namespaces"), expected, "{host:?}");
        assert_eq!(in_force(&protections, "empty root"), expected, "{host:?}");
    }
}

/// What `sentry hardening` says of the gofer.
#[test]
fn the_gofer_is_set_apart_where_the_host_allows_it() {
    for (host, expected) in [
        (Host::Plain, true),
        (Host::Ordinary, true),
        (Host::Restricted, false),
        (Host::OrdinaryRestricted, false),
    ] {
        let Some(protections) = protections_of("The gofer's process", host) else {
            continue;
        };
        for name in ["capabilities", "no_new_privs", "seccomp"] {
            assert!(in_force(&protections, name), "{host:?}: {name}: {protections:?}");
        }
        if expected && !in_force(&protections, "namespaces") {
            eprintln!("SKIPPED: this host refuses namespaces to {host:?}");
            continue;
        }
        for name in ["namespaces", "empty root", "exports"] {
            assert_eq!(
                in_force(&protections, name),
                expected,
                "{host:?}: {name}: {protections:?}"
            );
        }
    }
}

/// What the host says of a gofer that serves, writable exports included.
#[test]
fn a_gofer_has_nothing_of_the_host_but_its_exports() {
    for host in [Host::Plain, Host::Ordinary] {
        let apart = protections_of("The gofer's process", host).is_some_and(|rows| in_force(&rows, "namespaces"));
        let dir = tempfile::tempdir().expect("directory");
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
        let mount = format!("{}:/shared", dir.path().display());
        for rw in [false, true] {
            let mut args = vec!["exec"];
            if rw {
                args.extend(["--rw", &mount]);
            }
            args.extend(["sh", "-c", "echo ready; read line"]);
            let Some(mut command) = host.sentry_with(&args) else {
                continue;
            };
            command
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped());
            let mut child = command.spawn().expect("it starts");
            let mut line = String::new();
            let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
            std::io::BufRead::read_line(&mut output, &mut line).expect("read");
            assert_eq!(line, "ready\n", "{host:?}");
            let supervisor = child.id() as i32;
            let gofer = common::children(supervisor)
                .into_iter()
                .find(|pid| common::command_line(*pid).ends_with("sentry gofer"))
                .expect("a gofer");
            check_gofer(host, supervisor, gofer, apart, rw);
            drop(child.stdin.take());
            assert_eq!(child.wait().expect("wait").code(), Some(1));
        }
    }
}

fn check_gofer(host: Host, supervisor: i32, gofer: i32, apart: bool, writable: bool) {
    let status = std::fs::read_to_string(format!("/proc/{gofer}/status")).expect("status");
    let field = |name: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line for it");
        line[name.len()..].trim().to_owned()
    };
    assert_eq!((field("Seccomp:").as_str(), field("NoNewPrivs:").as_str()), ("2", "1"));
    // A writable export of root's is root's to change.
    if !(writable && host == Host::Plain) {
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{host:?}: {set}");
        }
    }
    if !apart {
        eprintln!("SKIPPED: this host refuses namespaces to {host:?}");
        return;
    }
    let link = |pid: i32, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("a namespace");
    let mut names = vec!["mnt", "net", "ipc", "uts", "cgroup"];
    if host == Host::Ordinary {
        names.push("user");
    }
    for name in names {
        assert_ne!(link(gofer, name), link(supervisor, name), "{host:?}: {name}");
    }
    let root = std::fs::read_dir(format!("/proc/{gofer}/root")).expect("its root");
    assert_eq!(root.count(), 0, "{host:?}: its root is not empty");
    let mounts = std::fs::read_to_string(format!("/proc/{gofer}/mountinfo")).expect("mounts");
    assert_eq!(mounts.lines().count(), 1, "{host:?}: {mounts}");
    // Nothing that it holds lies in the host's tree of mounts: no directory has a path there.
    for entry in std::fs::read_dir(format!("/proc/{gofer}/fd"))
        .expect("descriptors")
        .flatten()
    {
        if entry.metadata().is_ok_and(|file| file.is_dir()) {
            let up = std::fs::metadata(entry.path().join("..")).expect("above");
            let here = std::fs::metadata(entry.path()).expect("here");
            use std::os::unix::fs::MetadataExt;
            assert_eq!((up.dev(), up.ino()), (here.dev(), here.ino()), "{host:?}: {entry:?}");
        }
    }
}

/// An ordinary user sees who owns what, and its changes of owners are those that Linux allows it.
#[test]
fn owners_are_those_of_the_host() {
    use std::os::unix::fs::MetadataExt;
    for host in [Host::Plain, Host::Ordinary, Host::OrdinaryRestricted] {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
        let names: Vec<String> = (0..300).map(|number| format!("f{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let path = dir.path().join(name);
            std::fs::write(&path, b"").expect("write");
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::chown(&path, Some(number as u32 * 7), Some(number as u32 * 11)).expect("chown");
            }
        }
        let owners = |path: &std::path::Path| {
            let file = std::fs::symlink_metadata(path).expect("metadata");
            format!("{} {}", file.uid(), file.gid())
        };
        let mount = format!("{}:/shared", dir.path().display());
        let script = "cd /shared; stat -c '%u %g' f5 f250; stat -c '%n %u %g' * | sort; stat -c '%u %g' /usr; \
             touch own; stat -c '%u %g' own; chown 4321 own 2>&1 || true";
        let Some(output) = host.run(&["exec", "--rw", &mount, "sh", "-c", script]) else {
            continue;
        };
        let mut wanted = vec![owners(&dir.path().join("f5")), owners(&dir.path().join("f250"))];
        let mut all: Vec<String> = names
            .iter()
            .map(|name| format!("{name} {}", owners(&dir.path().join(name))))
            .collect();
        all.sort();
        wanted.extend(all);
        wanted.push(owners(std::path::Path::new("/usr")));
        let ordinary = host != Host::Plain;
        let lines = text(&output);
        let mut lines = lines.lines();
        for wanted in wanted {
            assert_eq!(lines.next(), Some(&*wanted), "{host:?}: {}", error_text(&output));
        }
        let user = if ordinary {
            "54321 54321".into()
        } else {
            format!("{} {}", nix::unistd::geteuid(), nix::unistd::getegid())
        };
        assert_eq!(lines.next(), Some(&*user), "{host:?}");
        let refused = lines.next();
        if ordinary {
            assert!(
                refused.is_some_and(|line| line.contains("not permitted")),
                "{host:?}: {refused:?}"
            );
        } else {
            assert_eq!(refused, None);
            assert_eq!(std::fs::metadata(dir.path().join("own")).expect("own").uid(), 4321);
        }
    }
}

/// Mounts below an export are part of it.
#[test]
fn mounts_below_an_export_are_seen() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    let script = "mkdir $0/below && mount -t tmpfs none $0/below && mkdir -m 777 $0/below/sub && \
         echo deep > $0/below/sub/file && $1 exec --rw $0:/shared sh -c 'cat /shared/below/sub/file; \
         echo made > /shared/below/sub/new' && cat $0/below/sub/new";
    let mut command = std::process::Command::new("unshare");
    command
        .args(["-r", "-m", "sh", "-c", script])
        .arg(dir.path())
        .arg(common::SENTRY)
        .current_dir("/usr");
    let output = command.output().expect("unshare(1)");
    if error_text(&output).contains("unshare:") {
        eprintln!("SKIPPED: {}", error_text(&output));
        return;
    }
    assert_eq!(text(&output), "deep\nmade\n", "{}", error_text(&output));
}

/// In a container whose user namespace maps root and nobody else, with and without further user namespaces.
#[test]
fn a_container_with_root_only_is_enough() {
    let inside = "echo hi | cat";
    for forbid in ["", "echo 0 > /proc/sys/user/max_user_namespaces && "] {
        let script = format!("{forbid}exec {} exec sh -c '{inside}'", common::SENTRY);
        let mut command = std::process::Command::new("unshare");
        command
            .args(["-U", "-r", "-m", "-p", "-f", "--mount-proc", "sh", "-c", &script])
            .current_dir("/usr");
        let output = match command.output() {
            Ok(output) if error_text(&output).contains("unshare:") => {
                eprintln!("SKIPPED: {}", error_text(&output));
                continue;
            }
            Ok(output) => output,
            Err(error) => {
                eprintln!("SKIPPED: unshare(1): {error}");
                return;
            }
        };
        assert_eq!(
            (output.status.code(), text(&output).as_str()),
            (Some(0), "hi\n"),
            "{}",
            error_text(&output)
        );
    }
}
