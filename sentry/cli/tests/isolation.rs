//! Which protections are in force, as root, as an ordinary user, and where namespaces are refused.

mod common;

use common::{Host, error_text, text};

#[test]
fn launcher() {
    common::launch();
}

/// `sentry hardening` there: each protection's name with whether it is in force.
fn protections(host: Host) -> Option<Vec<(String, bool)>> {
    let output = host.run(&["hardening"])?;
    assert_eq!(output.status.code(), Some(0), "{host:?}: {}", error_text(&output));
    let lines = text(&output);
    let rows = lines
        .lines()
        .skip_while(|line| !line.starts_with("The sentry's process"))
        .skip(1);
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
