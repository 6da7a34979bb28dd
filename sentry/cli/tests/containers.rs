//! Inside containers of podman and docker, with and without root, as such containers are by default: there is a working
//! sandbox, `sentry hardening` says what is so, and nothing is left.
//!
//! A test without the usual harness: each case that cannot be had here counts as skipped.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use common::container::{Engine, Host};
use common::{SENTRY, error_text, eventually, truth};

/// Containers: a name and the options.
const CONTAINERS: &[(&str, &[&str])] = &[
    ("as it is", &[]),
    ("read-only", &["--read-only"]),
    ("no new privileges", &["--security-opt", "no-new-privileges"]),
    ("user 1000", &["--user", "1000"]),
    (
        "read-only, user 1000, no new privileges, no capabilities",
        &[
            "--read-only",
            "--user",
            "1000",
            "--security-opt",
            "no-new-privileges",
            "--cap-drop",
            "all",
        ],
    ),
    (
        "small",
        &[
            "--shm-size",
            "64k",
            "--tmpfs",
            "/tmp:noexec,size=16k",
            "--ulimit",
            "nofile=256:256",
        ],
    ),
];

/// Only root's cgroups hold limits everywhere.
const LIMITED: (&str, &[&str]) = ("limits", &["--pids-limit", "20", "--memory", "64m"]);

/// On each platform: files of the image, files in memory, a pipeline; closed descriptors, which bring no words.
const SCRIPT: &str = r#"
for platform in systrap ptrace; do
    /sentry exec --platform $platform -- /bin/sh -c 'echo text > /tmp/f && cat /tmp/f /etc/passwd > /dev/null && echo hi | cat'
    echo "$platform $?"
    /sentry exec --platform $platform -- /bin/sh -c 'exit 3' <&- >&- 2>&-
    echo "closed $?"
done
"#;
const EXPECTED: &str = "hi\nsystrap 0\nclosed 3\nhi\nptrace 0\nclosed 3\n";

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
    wanted: Vec<String>,
}

impl Tally {
    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    fn count(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                eprintln!("{name}: ok");
            }
            Err(what) => {
                self.failed += 1;
                eprintln!("{name}: FAILED: {what}");
            }
        }
    }

    fn skip(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        eprintln!("SKIPPED: {name}: {why}");
    }
}

/// The cases of an engine.
fn names(engine: Engine) -> Vec<String> {
    let limited = (!engine.is_rootless()).then_some(LIMITED.0);
    let containers = CONTAINERS.iter().map(|(name, _)| *name).chain(limited);
    let all = containers.chain(["as process 1", "hardening tells the truth", "stopped"]);
    all.map(|case| format!("{}, {case}", engine.name())).collect()
}

/// What the containers' root is made of, and the sentry beside it.
fn make_tree(dir: &Path) -> Option<PathBuf> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = busybox.iter().map(Path::new).find(|path| is_static(path))?;
    let tree = dir.join("tree");
    for name in ["bin", "etc", "proc", "sys", "dev", "run", "tmp", "usr"] {
        std::fs::create_dir_all(tree.join(name)).expect("directory");
    }
    std::fs::copy(busybox, tree.join("bin/busybox")).expect("a copy");
    for name in ["sh", "cat", "sleep"] {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(name)).expect("link");
    }
    std::fs::write(tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").expect("file");
    std::fs::write(tree.join("sentry"), "").expect("file");
    let sentry = dir.join("sentry");
    std::fs::copy(SENTRY, &sentry).expect("a copy");
    is_static(&sentry).then_some(sentry)
}

/// No program interpreter (`PT_INTERP`, elf(5)) is asked for.
fn is_static(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    let word = |at: usize, size: usize| {
        let bytes = bytes.get(at..at + size).unwrap_or_default();
        bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | usize::from(*byte))
    };
    let headers = (0..word(56, 2)).map(|index| word(32, 8) + index * word(54, 2));
    bytes.starts_with(b"\x7fELF") && headers.into_iter().all(|header| word(header, 4) != 3)
}

fn works(host: &Host, options: &[&str]) -> Result<(), String> {
    let output = host.run(options, &["/bin/sh", "-c", SCRIPT]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // What is said about the container itself is not ours.
    let said = error_text(&output);
    let ours = said.lines().filter(|line| line.starts_with("sentry")).count();
    if text == EXPECTED && output.status.success() && ours == 0 {
        Ok(())
    } else {
        Err(format!("{:?} {text} {said}", output.status.code()))
    }
}

fn works_as_process_1(host: &Host) -> Result<(), String> {
    let output = host.run(
        &[],
        &["/sentry", "exec", "--", "/bin/sh", "-c", "echo hi | cat; exit 7"],
    );
    if output.stdout == b"hi\n" && output.status.code() == Some(7) {
        Ok(())
    } else {
        Err(format!("{output:?}"))
    }
}

/// Reads up to a line, and what was before it.
fn read_to(output: &mut impl BufRead, last: &str) -> Result<String, String> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
            return Err(format!("it ended: {text}"));
        }
        if line.trim_end() == last {
            return Ok(text);
        }
        text.push_str(&line);
    }
}

fn tells_the_truth(command: &mut Command, sentry: &Path) -> Result<(), String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let result = read_to(&mut output, "ready").and_then(|text| {
        let said = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let parts = truth::parts(sentry).ok_or("there is no sandbox to look at")?;
        Ok(truth::differences(&said, &parts))
    });
    drop(child.stdin.take());
    let _ = child.wait();
    match result?.as_slice() {
        [] => Ok(()),
        wrong => Err(wrong.join("; ")),
    }
}

const TELLS: &str = "/sentry hardening --json && exec /sentry exec -- /bin/sh -c 'echo ready; exec cat'";

/// The engine's stop comes to the guest as SIGTERM.
fn is_stopped(host: &Host) -> Result<(), String> {
    let script = "trap 'echo stopped; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = host.command(&[], &["/sentry", "exec", "--", "/bin/sh", "-c", script]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let ready = read_to(&mut output, "ready");
    // Of the container's first process, which is the supervisor: what an engine does.
    if let Some(supervisor) = truth::parts(&host.sentry).map(|[supervisor, ..]| supervisor.pid) {
        let pid = nix::unistd::Pid::from_raw(supervisor);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    }
    let stopped = ready.and_then(|_| read_to(&mut output, "stopped"));
    let code = child.wait().map_err(|error| error.to_string())?.code();
    stopped?;
    if code == Some(5) {
        Ok(())
    } else {
        Err(format!("exit code {code:?}"))
    }
}

fn nothing_left(dir: &Path, places: &[PathBuf]) -> Result<(), String> {
    let name = dir.display().to_string();
    let processes = || {
        let mut all = common::marked(&name);
        all.retain(|(pid, _)| *pid != std::process::id() as i32);
        all
    };
    if !eventually(|| processes().is_empty()) {
        return Err(format!("processes: {:?}", processes()));
    }
    let sentries = || truth::processes(&dir.join("sentry"));
    if !eventually(|| sentries().is_empty()) {
        return Err(format!("processes: {:?}", sentries()));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(mount) = mounts.lines().find(|line| line.contains(&name)) {
        return Err(format!("a mount: {mount}"));
    }
    match engine_places().into_iter().find(|place| !places.contains(place)) {
        Some(place) => Err(format!("{}", place.display())),
        None => Ok(()),
    }
}

/// Where engines leave things, as far as there are any.
fn engine_places() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (folder, words) in [
        ("/etc", &["docker", "cni"] as &[_]),
        (
            "/run",
            &[
                "docker",
                "containerd",
                "libpod",
                "crun",
                "runc",
                "containers",
                "user",
                "xtables.lock",
            ],
        ),
        ("/var/lib", &["docker", "containerd", "containers", "cni"]),
        ("/dev/shm", &["libpod"]),
    ] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if words.iter().any(|word| name.starts_with(word)) {
                found.push(entry.path());
            }
        }
    }
    found
}

fn all_of(engine: Engine, tally: &mut Tally) {
    let mut names = names(engine);
    names.retain(|name| tally.wants(name));
    if names.is_empty() {
        return;
    }
    let places = engine_places();
    let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("chmod");
    let skip = |tally: &mut Tally, why: &str| names.iter().for_each(|name| tally.skip(name, why));
    let Some(sentry) = make_tree(dir.path()) else {
        return skip(tally, "needs a static busybox, and a static sentry");
    };
    let host = match Host::start(engine, dir.path(), &sentry) {
        Ok(host) => host,
        Err(why) => {
            skip(tally, &why);
            return tally.count(
                &format!("{}, nothing is left", engine.name()),
                nothing_left(dir.path(), &places),
            );
        }
    };
    for name in &names {
        let case = name.strip_prefix(&format!("{}, ", engine.name())).unwrap_or(name);
        let containers = CONTAINERS.iter().chain([&LIMITED]);
        let options = containers
            .clone()
            .find(|(other, _)| *other == case)
            .map(|(_, options)| *options);
        let result = match (case, options) {
            (_, Some(options)) => works(&host, options),
            ("as process 1", _) => works_as_process_1(&host),
            ("stopped", _) => is_stopped(&host),
            _ => {
                let mut command = host.command(&["-i"], &["/bin/sh", "-c", TELLS]);
                tells_the_truth(&mut command, &sentry)
            }
        };
        tally.count(name, result);
    }
    drop(host);
    tally.count(
        &format!("{}, nothing is left", engine.name()),
        nothing_left(dir.path(), &places),
    );
}

/// The comparison itself, on this host.
fn on_this_host(tally: &mut Tally) {
    let name = "this host, hardening tells the truth";
    if !tally.wants(name) {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
    let sentry = dir.path().join("sentry");
    std::fs::copy(SENTRY, &sentry).expect("a copy");
    let script = TELLS.replace("/sentry", &sentry.display().to_string());
    let mut command = Command::new("/bin/sh");
    let result = tells_the_truth(command.args(["-c", &script]).current_dir("/usr"), &sentry);
    tally.count(name, result);
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let mut tally = Tally {
        wanted: arguments
            .into_iter()
            .filter(|argument| !argument.starts_with('-'))
            .collect(),
        ..Tally::default()
    };
    on_this_host(&mut tally);
    for engine in Engine::ALL {
        if nix::unistd::geteuid().is_root() {
            all_of(engine, &mut tally);
        } else {
            let names = names(engine);
            let wanted = names.iter().filter(|name| tally.wants(name)).collect::<Vec<_>>();
            wanted
                .into_iter()
                .for_each(|name| tally.skip(name, "needs root, for namespaces of its own"));
        }
    }
    let Tally {
        passed,
        failed,
        skipped,
        ..
    } = tally;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(u8::from(failed != 0))
}
