//! Where it runs: on each kind of host there is a working sandbox, or one clear sentence and exit code 125, and nothing is left.

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SENTRY, error_text, eventually, text};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

const OLDER: &str = "SENTRY_TEST_OLDER_KERNEL";

/// Calls that came after Linux 5.10, or that a kernel may be built without, and that we use where they are.
const LATER: &[i64] = &[
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_mseal,
    libc::SYS_openat2,
    libc::SYS_close_range,
    libc::SYS_clone3,
    libc::SYS_pidfd_open,
    libc::SYS_epoll_pwait2,
    libc::SYS_faccessat2,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_fchmodat2,
];

/// Not a test: becomes the command in the environment, on a kernel without [`LATER`] and without RWF_NOWAIT. The first word
/// is the errno of calls that are not known: that of a kernel, or that of a container runtime which is older than them.
#[test]
fn launcher() {
    let Ok(words) = std::env::var(OLDER) else { return };
    let (errno, words) = words.split_once('\x1f').expect("an errno");
    let errno = errno.parse().expect("a number");
    let nowait = SeccompCondition::new(5, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(8), 8).expect("condition");
    let nowait = vec![SeccompRule::new(vec![nowait]).expect("rule")];
    let unknown: BTreeMap<i64, Vec<SeccompRule>> = LATER.iter().map(|number| (*number, Vec::new())).collect();
    let unsupported = BTreeMap::from([(libc::SYS_preadv2, nowait.clone()), (libc::SYS_pwritev2, nowait)]);
    for (rules, errno) in [(unknown, errno), (unsupported, libc::EOPNOTSUPP)] {
        let action = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64).expect("filter");
        let program = BpfProgram::try_from(filter).expect("program");
        seccompiler::apply_filter_all_threads(&program).expect("seccomp works");
    }
    let mut words = words.split('\x1f');
    let mut command = Command::new(words.next().expect("a program"));
    panic!("exec: {}", command.args(words).env_remove(OLDER).exec());
}

/// What must come of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Must {
    Work,
    /// Refuse with one sentence.
    Refuse,
    /// Either.
    Decide,
}
use Must::{Decide, Refuse, Work};

/// Hosts: a name, what a shell does before `"$@"`, and what must come of it. `unshare` needs root.
const HOSTS: &[(&str, &str, Must)] = &[
    ("as it is", "exec \"$@\"", Work),
    (
        "ordinary user",
        "exec setpriv --clear-groups --reuid 54321 --regid 54321 \"$@\"",
        Work,
    ),
    ("RLIMIT_NOFILE 256", "ulimit -n 256; exec \"$@\"", Work),
    ("one processor", "exec taskset -c 0 \"$@\"", Work),
    ("stdin closed", "exec \"$@\" <&-", Work),
    ("stdin and stderr closed", "exec \"$@\" <&- 2>&-", Work),
    (
        "read-only root",
        "exec unshare -m sh -c 'mount -o remount,bind,ro / && exec \"$@\"' sh \"$@\"",
        Work,
    ),
    (
        "/tmp that nobody can use",
        "exec unshare -m sh -c 'mount -t tmpfs -o ro,mode=0 none /tmp && exec \"$@\"' sh \"$@\"",
        Work,
    ),
    (
        "noexec /dev/shm",
        "exec unshare -m sh -c 'mount -t tmpfs -o noexec none /dev/shm && exec \"$@\"' sh \"$@\"",
        Work,
    ),
    (
        "no user namespaces",
        "exec unshare -U -r -m -p -f --mount-proc sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"' sh \"$@\"",
        Work,
    ),
    (
        "/proc that hides the processes of others",
        "exec unshare -m -p -f --mount-proc sh -c 'mount -o remount,hidepid=2 /proc && exec setpriv --clear-groups \
         --reuid 54321 --regid 54321 \"$@\"' sh \"$@\"",
        Work,
    ),
    ("RLIMIT_NOFILE 16", "ulimit -n 16; exec \"$@\"", Refuse),
    ("RLIMIT_FSIZE 0", "ulimit -f 0; exec \"$@\"", Refuse),
    ("RLIMIT_AS of 60 MB", "ulimit -v 60000; exec \"$@\"", Refuse),
    (
        "RLIMIT_NPROC 1",
        "exec setpriv --clear-groups --reuid 54321 --regid 54321 prlimit --nproc=1 \"$@\"",
        Refuse,
    ),
    (
        "no /proc",
        "exec unshare -m sh -c 'umount -l /proc && exec \"$@\"' sh \"$@\"",
        Decide,
    ),
    (
        "no /dev",
        "exec unshare -m sh -c 'mount -t tmpfs none /dev && exec \"$@\"' sh \"$@\"",
        Refuse,
    ),
];

/// The sentry under a name of its own, by which what it leaves is known.
fn own_sentry(dir: &Path) -> PathBuf {
    let own = dir.join("sentry");
    std::fs::copy(SENTRY, &own).expect("a copy");
    own
}

fn left(own: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .map(|entry| entry.path());
    processes
        .filter(|process| std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.starts_with(own)))
        .collect()
}

fn judge(name: &str, must: Must, own: &Path, output: &Output) {
    let (code, said) = (output.status.code(), error_text(output));
    let works = code == Some(0) && text(output).ends_with("hi\n");
    // In one sentence, which says what may be behind it.
    let refuses =
        code == Some(125) && !text(output).ends_with("hi\n") && said.lines().count() == 1 && said.contains("; ");
    let right = match must {
        Work => works,
        Refuse => refuses,
        Decide => works || refuses,
    };
    eprintln!(
        "{name}: {} {}",
        if works { "works" } else { "does not:" },
        said.trim_end()
    );
    assert!(right, "{name}: must {must:?}: {code:?} {} {said}", text(output));
    assert!(
        eventually(|| left(own).is_empty()),
        "{name}: left over: {:?}",
        left(own)
    );
}

/// A place that everybody may enter, on a file system that is neither /tmp nor /dev.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("chmod");
    dir
}

#[test]
fn on_each_kind_of_host_it_works_or_says_why_not() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: needs root, to make such hosts");
        return;
    }
    let dir = place();
    let own = own_sentry(dir.path());
    for platform in ["systrap", "ptrace"] {
        for (name, script, must) in HOSTS {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(&own);
            command.args(["exec", "--platform", platform, "--", "sh", "-c", "echo hi | cat"]);
            command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").current_dir("/usr");
            let output = command.output().expect("a shell");
            if error_text(&output).contains("unshare:") {
                eprintln!("SKIPPED: {name}: {}", error_text(&output));
                continue;
            }
            judge(&format!("{name}, {platform}"), *must, &own, &output);
        }
    }
}

#[test]
fn an_older_kernel_or_container_runtime_is_enough() {
    let dir = place();
    let own = own_sentry(dir.path());
    let shared = format!("{}:/w", dir.path().display());
    for platform in ["systrap", "ptrace"] {
        let words = [
            own.to_str().expect("a name"),
            "exec",
            "--platform",
            platform,
            "--rw",
            &shared,
            "--",
            "sh",
            "-c",
            "echo text > /w/file && cat /w/file /etc/passwd > /dev/null && rm /w/file && ls -lR /w > /dev/null; echo hi | cat",
        ];
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "launcher", "--nocapture", "-q"])
            .current_dir("/usr");
        for (host, errno) in [("kernel", libc::ENOSYS), ("container runtime", libc::EPERM)] {
            let words = format!("{errno}\x1f{}", words.join("\x1f"));
            let output = command.env(OLDER, words).output().expect("it starts");
            judge(&format!("an older {host}, {platform}"), Work, &own, &output);
        }
    }
}

#[test]
fn inside_itself_it_says_why_not() {
    let dir = place();
    let own = own_sentry(dir.path());
    for platform in ["systrap", "ptrace"] {
        for inner in ["auto", "systrap", "ptrace"] {
            let (bin, path) = (dir.path().to_str().expect("a name"), own.to_str().expect("a name"));
            let mut command = Command::new(&own);
            command.args(["exec", "--platform", platform, "--ro", bin, "--"]);
            command.args([path, "exec", "--platform", inner, "--", "echo", "hi"]);
            let output = command.current_dir("/usr").output().expect("it starts");
            judge(&format!("inside itself, {platform}, {inner}"), Refuse, &own, &output);
        }
    }
}

#[test]
fn an_executable_that_cannot_be_read_is_named() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: needs root, to become somebody else");
        return;
    }
    let dir = place();
    let own = own_sentry(dir.path());
    let execute_only = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(&own, execute_only).expect("chmod");
    let mut command = Command::new(&own);
    command.args(["exec", "--", "echo", "hi"]).uid(54321).gid(54321);
    let output = command.current_dir("/usr").output().expect("it starts");
    judge("an executable that cannot be read", Refuse, &own, &output);
    assert!(error_text(&output).contains("readable"), "{}", error_text(&output));
}
