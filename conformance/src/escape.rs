//! The escape table: ways to a host file outside the allowlist, each of which must be refused.
//!
//! `guest tool escape NAME` makes the attempt inside and prints whatever it could read. Nothing of it may be from
//! the secret files that lie on the host beside what the sandbox shows.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::host::{Host, Setup, brief};
use crate::report::Report;
use crate::{On, Unit};

/// What no sandbox may print.
const SECRET: &str = "the-secret-of-the-host";

/// What the host does meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// Standard input is the directory with the secret.
    DirectoryAsInput,
    /// Swaps a shown directory with a link to one that is not.
    Races,
    /// Moves a shown directory to where it is not shown.
    MovesDirectory,
    /// Puts a link in the place of a shown tree's root.
    ReplacesRoot,
}

const ATTEMPTS: &[(&str, Meanwhile)] = &[
    ("dot_dot", Meanwhile::Nothing),
    ("symlinks", Meanwhile::Nothing),
    ("hard_links", Meanwhile::Nothing),
    ("proc_root", Meanwhile::Nothing),
    ("proc_fd", Meanwhile::DirectoryAsInput),
    ("magic_links", Meanwhile::DirectoryAsInput),
    ("rename_race", Meanwhile::Nothing),
    ("host_race", Meanwhile::Races),
    ("moved_directory", Meanwhile::MovesDirectory),
    ("replaced_root", Meanwhile::ReplacesRoot),
    ("chroot", Meanwhile::Nothing),
    ("handles", Meanwhile::Nothing),
    ("mounts", Meanwhile::Nothing),
    ("special_files", Meanwhile::Nothing),
    ("not_for_everybody", Meanwhile::Nothing),
    ("read_only", Meanwhile::Nothing),
    ("processes", Meanwhile::Nothing),
];

/// The names of all attempts.
pub fn names() -> Vec<String> {
    ATTEMPTS.iter().map(|a| format!("escape/{}", a.0)).collect()
}

/// One unit for each attempt and platform.
pub fn units(host: &Host) -> Vec<Unit<'_>> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for &(name, role) in ATTEMPTS {
        let full = format!("escape/{name}");
        if !host.options.wants(&full) {
            continue;
        }
        for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
            let full = full.clone();
            units.push(Box::new(move |report: &Report| {
                let start = Instant::now();
                report.result(on, &full, attempt(host, on, name, role), start.elapsed());
            }));
        }
    }
    units
}

/// The host's side: `secret` beside `shared`, `rw` and `cwd`, with every kind of link between them.
fn prepare(host: &Host) -> std::io::Result<PathBuf> {
    let top = host.directory("escape");
    let write = |path: &str, content: &str| -> std::io::Result<()> {
        let path = top.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, content)
    };
    write("secret", SECRET)?;
    write("elsewhere/secret", SECRET)?;
    for tree in ["shared", "rw"] {
        write(&format!("{tree}/plain"), "plain\n")?;
        write(&format!("{tree}/sub/inner"), "inner\n")?;
        write(&format!("{tree}/moved/deep/inner"), "inner\n")?;
        write(&format!("{tree}/swap/decoy"), "decoy\n")?;
        let dir = top.join(tree);
        symlink(top.join("secret"), dir.join("absolute"))?;
        symlink("../secret", dir.join("relative"))?;
        symlink("..", dir.join("dirlink"))?;
        symlink("../..", dir.join("sub/up"))?;
        symlink("relative", dir.join("chain"))?;
        symlink("../elsewhere", dir.join("away"))?;
        UnixListener::bind(dir.join("socket"))?;
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        nix::unistd::mkfifo(&dir.join("fifo"), mode)?;
        // Only user 0 can make one; without it the attempt has less to try.
        let _ = nix::sys::stat::mknod(
            &dir.join("device"),
            nix::sys::stat::SFlag::S_IFCHR,
            mode,
            nix::sys::stat::makedev(1, 5),
        );
        host.give(&dir);
        host.give(&dir.join("moved"));
        host.give(&dir.join("swap"));
    }
    write("shared/.ssh/id_rsa", "a key of the shared tree\n")?;
    write("cwd/plain", "plain\n")?;
    write("cwd/sub/inner", "inner\n")?;
    write("cwd/.ssh/id_rsa", SECRET)?;
    write("cwd/.aws/credentials", SECRET)?;
    for path in [
        "cwd",
        "cwd/plain",
        "cwd/sub",
        "cwd/sub/inner",
        "cwd/.ssh",
        "cwd/.ssh/id_rsa",
        "cwd/.aws",
    ] {
        host.give(&top.join(path));
    }
    Ok(top)
}

fn attempt(host: &Host, on: On, name: &str, role: Meanwhile) -> Result<(), String> {
    let top = prepare(host).map_err(|e| format!("cannot prepare: {e}"))?;
    let shown = |dir: &str, at: &str| format!("{}:{at}", top.join(dir).display());
    let setup = Setup {
        options: vec![
            "--ro".into(),
            shown("shared", "/shared"),
            "--rw".into(),
            shown("rw", "/rw"),
            "--timeout".into(),
            "90".into(),
        ],
        cwd: Some(top.join("cwd")),
        ..Setup::default()
    };
    let argv: Vec<String> = vec![
        host.guest(),
        "tool".into(),
        "escape".into(),
        name.into(),
        top.to_string_lossy().into_owned(),
    ];
    let before = tree(&top);
    let mut command = host.command(on, &setup, &argv);
    match role {
        Meanwhile::DirectoryAsInput => {
            command.stdin(Stdio::from(std::fs::File::open(&top).map_err(|e| e.to_string())?));
        }
        Meanwhile::MovesDirectory | Meanwhile::ReplacesRoot => {
            command.stdin(Stdio::piped());
        }
        _ => {
            command.stdin(Stdio::null());
        }
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start: {e}"))?;
    let (stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(stream) = stderr.as_mut() {
            let _ = stream.read_to_end(&mut all);
        }
        all
    });
    let stop = Arc::new(AtomicBool::new(false));
    let mut racer = None;
    let mut all = String::new();
    for line in BufReader::new(stdout.ok_or("no output")?).lines() {
        let line = line.map_err(|e| format!("reading the output: {e}"))?;
        if line == "ready" {
            match role {
                Meanwhile::Races => racer = Some(race(top.clone(), Arc::clone(&stop))),
                Meanwhile::MovesDirectory => {
                    for (from, to) in [("shared/moved", "elsewhere/moved"), ("rw/moved", "elsewhere/moved2")] {
                        std::fs::rename(top.join(from), top.join(to)).map_err(|e| e.to_string())?;
                    }
                }
                Meanwhile::ReplacesRoot => {
                    for tree in ["shared", "rw"] {
                        std::fs::rename(top.join(tree), top.join(format!("{tree}.old"))).map_err(|e| e.to_string())?;
                        symlink(&top, top.join(tree)).map_err(|e| e.to_string())?;
                    }
                }
                _ => {}
            }
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(b"\n").map_err(|e| e.to_string())?;
            }
        }
        all += &line;
        all.push('\n');
    }
    stop.store(true, Ordering::SeqCst);
    if let Some(racer) = racer {
        let _ = racer.join();
    }
    let status = wait(&mut child);
    let errors = errors.join().unwrap_or_default();
    if all.contains(SECRET) || String::from_utf8_lossy(&errors).contains(SECRET) {
        let line = all.lines().find(|l| l.contains(SECRET)).unwrap_or_default();
        return Err(format!("expected nothing, actual: the secret by {line}"));
    }
    if !all.contains("\ndone ") && !all.starts_with("done ") {
        return Err(format!(
            "the attempt did not end: {status}, stdout {}, stderr {}",
            brief(all.as_bytes()),
            brief(&errors)
        ));
    }
    for bad in [
        "opened device",
        "connected to",
        "can be signalled",
        "can be traced",
        "writable: ",
        "opened /proc",
        "/device: ",
        "/fifo: ",
    ] {
        if let Some(line) = all.lines().find(|l| l.contains(bad)) {
            return Err(format!("expected a refusal, actual: {line}"));
        }
    }
    if name == "not_for_everybody" && all.contains("/etc/shadow: ") {
        return Err("expected a refusal, actual: /etc/shadow was read".into());
    }
    if name == "read_only" && tree(&top) != before {
        return Err(format!(
            "the host's files have changed: {before:?} is now {:?}",
            tree(&top)
        ));
    }
    Ok(())
}

/// Names, modes and contents below a directory.
fn tree(top: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![top.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.path().symlink_metadata() else {
                continue;
            };
            let content = if meta.is_file() {
                std::fs::read(entry.path()).unwrap_or_default()
            } else {
                Vec::new()
            };
            all.push((
                entry.path().to_string_lossy().into_owned(),
                meta.permissions().mode(),
                content,
            ));
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

/// Swaps `swap` (a directory) and `away` (a link to where the secret is), as fast as it goes.
fn race(top: PathBuf, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            for tree in ["shared", "rw"] {
                let (a, b) = (top.join(tree).join("swap"), top.join(tree).join("away"));
                let here = nix::fcntl::AT_FDCWD;
                let _ = nix::fcntl::renameat2(here, &a, here, &b, nix::fcntl::RenameFlags::RENAME_EXCHANGE);
            }
        }
    })
}

fn wait(child: &mut std::process::Child) -> String {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Ok(Some(status)) = child.try_wait() {
            return status.to_string();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    "it had to be killed".into()
}
