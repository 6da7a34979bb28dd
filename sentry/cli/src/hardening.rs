//! `sentry hardening`: what protects this host from a guest, as tried out just now.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;

use nix::sys::wait::waitpid;
use sentry_host::filter::{self, Arg, HostCall, Rule};
use sentry_host::{process, scm};

use crate::args::Hardening;
use crate::cgroup::Cgroup;
use crate::parts::{self, Gofer, Protection, Report};
use crate::supervisor::{self, FAILED};
use crate::terminal::complain;
use crate::view::Tree;
use crate::{host_calls, spawn};
use sentry_limits::Limits;

/// Runs the command; the exit code.
pub fn main(options: &Hardening) -> u8 {
    let (platform, protections) = match supervisor::probe(options.platform) {
        Ok(Report::Isolation { platform, protections }) => (platform, protections),
        Ok(Report::Ended { .. } | Report::Warning(_)) => {
            complain("the sentry sent nonsense");
            return FAILED;
        }
        Err(what) => {
            complain(&what);
            return FAILED;
        }
    };
    let gofer = match probe_gofer() {
        Ok(protections) => protections,
        Err(what) => {
            complain(&what);
            return FAILED;
        }
    };
    let text = if options.json {
        json(&platform, &protections, &gofer)
    } else {
        render(&platform, &protections, &gofer, &host_limits())
    };
    // A reader that has seen enough is no reason to fail.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    0
}

/// Starts a gofer, with an export as in the default view, that only reports its isolation (`sentry hardening`).
fn probe_gofer() -> Result<Vec<Protection>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the gofer does not start: {error}");
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| failed(&error))?;
    let executable = process::own_executable().map_err(|error| failed(&error))?;
    let (socket, theirs) = parts::socket_pair().map_err(|error| failed(&error))?;
    let gofer = Gofer {
        trees: vec![Tree::everybody("/usr".into())],
        report: true,
    };
    let configuration = parts::configuration(&gofer).map_err(|error| failed(&error))?;
    let error = std::io::stderr();
    let descriptors = [
        null.as_fd(),
        null.as_fd(),
        error.as_fd(),
        configuration.as_fd(),
        theirs.as_fd(),
    ];
    let pid = spawn::start_gofer(executable.as_fd(), &descriptors, None).map_err(|error| failed(&error))?;
    drop(theirs);
    let mut answer = vec![0; parts::LARGEST];
    let received = scm::recv_with_fds(socket.as_fd(), &mut answer, 0);
    let _ = waitpid(pid, None);
    match received {
        Ok((0, _)) => Err("the gofer does not start".into()),
        Ok((len, _)) => serde_json::from_slice(answer.get(..len).unwrap_or_default()).map_err(|error| failed(&error)),
        Err(error) => Err(failed(&error)),
    }
}

fn render(
    platform: &str,
    protections: &[Protection],
    of_gofer: &[Protection],
    cgroup: &Result<Cgroup, String>,
) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Platform: {platform}\n\nThe sentry's process, as set up on this host:"
    );
    list(&mut text, protections);
    text.push_str("\nThe gofer's process, with the default view:\n");
    list(&mut text, of_gofer);
    limits(&mut text, cgroup);
    for list in lists(platform) {
        section(&mut text, &list);
    }
    text
}

/// The published host calls of one kind of process.
struct List {
    kind: &'static str,
    title: &'static str,
    otherwise: &'static str,
    calls: Vec<HostCall>,
}

fn lists(platform: &str) -> [List; 6] {
    let list = |kind, title, otherwise, calls| List {
        kind,
        title,
        otherwise,
        calls,
    };
    let ends = "any other ends it";
    [
        list(
            "sentry",
            "Host calls of the sentry",
            ends,
            host_calls::for_platform(platform),
        ),
        list(
            "stub",
            "Host calls of a stub, which is a guest process",
            "only from the stub's own text; anything else is a system call to the sentry",
            sentry_platform::filter::STUB_CALLS.to_vec(),
        ),
        list(
            "gofer",
            "Host calls of the gofer",
            ends,
            sentry_gofer::server::host_calls(false),
        ),
        list(
            "gofer_rw",
            "Host calls of the gofer with --rw",
            ends,
            sentry_gofer::server::host_calls(true),
        ),
        list(
            "owners",
            "Host calls of the process that tells an ordinary user's gofer the owners of files",
            ends,
            sentry_gofer::server::owners_calls(true),
        ),
        list(
            "supervisor",
            "Host calls of the supervisor while the sandbox runs",
            "it is outside and has no filter; a test holds it to them",
            host_calls::SUPERVISOR.to_vec(),
        ),
    ]
}

/// What a program reads.
fn json(platform: &str, protections: &[Protection], of_gofer: &[Protection]) -> String {
    let calls: serde_json::Map<_, _> = lists(platform)
        .iter()
        .map(|list| (list.kind.into(), list.calls.iter().map(row_json).collect()))
        .collect();
    let all = serde_json::json!({
        "platform": platform,
        "sentry": protections,
        "gofer": of_gofer,
        "host_calls": calls,
    });
    format!("{all:#}\n")
}

/// `when`: alternatives, each a list of conditions that all have to hold: the argument with this index, of which `mask` is
/// looked at, is `equals`, or not above `at_most`. Without it, the arguments do not matter.
fn row_json(call: &HostCall) -> serde_json::Value {
    let condition = |arg: &Arg| {
        let half = u64::from(u32::MAX);
        let equals =
            |index: u8, mask: u64, value: u64| serde_json::json!({ "arg": index, "mask": mask, "equals": value });
        match *arg {
            Arg::Is(index, value) => equals(index, half, value.into()),
            Arg::Is64(index, value) => equals(index, u64::MAX, value),
            Arg::Without(index, mask) => equals(index, mask.into(), 0),
            Arg::With(index, mask) => equals(index, mask.into(), mask.into()),
            Arg::AtMost(index, value) => serde_json::json!({ "arg": index, "mask": half, "at_most": value }),
        }
    };
    let mut row = serde_json::json!({ "number": call.number, "name": call.name, "why": call.why });
    match call.rule {
        Rule::Always => {}
        Rule::Refuse(errno) => row["refused"] = errno.into(),
        Rule::When(alternatives) => {
            let alternatives = alternatives.iter();
            row["when"] = alternatives
                .map(|all| all.iter().map(condition).collect::<Vec<_>>())
                .collect();
        }
    }
    row
}

fn list(text: &mut String, protections: &[Protection]) {
    for protection in protections {
        let state = if protection.in_force { "yes" } else { "NO " };
        let _ = writeln!(text, "  {state}  {:20} {}", protection.name, protection.detail);
    }
}

/// How each limit is held.
const LIMITS: &[(&str, &str, &str)] = &[
    (
        "--memory",
        "polled",
        "the supervisor looks every 2 to 100 ms, the sooner the nearer; files in memory: exact",
    ),
    (
        "--cpus",
        "polled",
        "the sentry looks every 10 ms, over periods of 100 ms; guests' time and its own",
    ),
    ("--cpu-time", "polled", "the sentry looks every 50 ms"),
    ("--timeout", "exact", "by the supervisor"),
    ("--pids", "exact", "by the sentry, when one is made"),
    (
        "--disk",
        "exact",
        "by the sentry, when a page is taken; of --rw mounts what the guest adds",
    ),
    (
        "--disk-inodes",
        "exact",
        "by the sentry, when one is made; of --rw mounts those that the guest makes",
    ),
    ("--nofile", "exact", "by the sentry, as RLIMIT_NOFILE"),
    (
        "--output-limit",
        "exact",
        "by the sentry, at each write; not to a terminal",
    ),
    (
        "--io-rate",
        "exact",
        "by the sentry, after each call; not what is read and written through mappings",
    ),
];

/// What the host holds too, tried out with all limits that it can hold.
fn host_limits() -> Result<Cgroup, String> {
    Cgroup::of(&Limits {
        memory: Some(1 << 30),
        cpus: Some(1000),
        pids: Some(100),
        ..Limits::default()
    })
}

fn limits(text: &mut String, cgroup: &Result<Cgroup, String>) {
    let held = match cgroup {
        Ok(cgroup) if !cgroup.held().is_empty() => {
            text.push_str("\nLimits, held by us and with --cgroup auto by a cgroup of the sandbox's own:\n");
            cgroup.held()
        }
        Ok(_) => {
            text.push_str(
                "\nLimits, held by us (a cgroup can be made, but has no controller for memory, cpu or pids):\n",
            );
            &[]
        }
        Err(why) => {
            let _ = writeln!(text, "\nLimits, held by us (no cgroup can be made: {why}):");
            &[]
        }
    };
    let seen = crate::memory::can_be_seen();
    for (name, how, by) in LIMITS {
        if *name == "--memory" && !seen {
            let _ = writeln!(
                text,
                "  {name:<15} NO      this host's /proc does not tell processes' children"
            );
        } else {
            let _ = writeln!(text, "  {name:<15} {how:<7} {by}");
        }
        let files = held.iter().find(|(limit, _)| name.strip_prefix("--") == Some(*limit));
        let beyond = HEAD_ROOM.iter().find(|(limit, _)| limit == name);
        if let (Some((_, files)), Some((_, beyond))) = (files, beyond) {
            let _ = writeln!(text, "  {:<15} cgroup  {files}: {beyond}", "");
        }
    }
}

/// How far a cgroup's limit is beyond ours, which is to act first.
const HEAD_ROOM: &[(&str, &str)] = &[
    (
        "--memory",
        "an eighth and 64 MiB beyond (high: a sixteenth and 32 MiB); cached files and the kernel's memory count",
    ),
    ("--cpus", "a quarter and half a processor beyond; our processes count"),
    ("--pids", "twice as many and 128; our processes count"),
];

fn section(text: &mut String, list: &List) {
    let List {
        title,
        otherwise,
        calls: table,
        ..
    } = list;
    let _ = writeln!(text, "\n{title} ({}; {otherwise}):", host_calls::allowed(table));
    for call in table.iter().filter(|call| !matches!(call.rule, Rule::Refuse(_))) {
        row(text, call);
    }
    let refused: Vec<_> = table
        .iter()
        .filter(|call| matches!(call.rule, Rule::Refuse(_)))
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(text, "  refused with an error, without effect:");
        refused.into_iter().for_each(|call| row(text, call));
    }
}

fn row(text: &mut String, call: &HostCall) {
    let _ = writeln!(text, "  {:18} {}", call.name, call.why);
    let rule = filter::describe(call.rule);
    if !rule.is_empty() {
        let _ = writeln!(text, "  {:18} {rule}", "");
    }
}
