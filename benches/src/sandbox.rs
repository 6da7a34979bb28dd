//! How a program is run on each system.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::On;

/// After this, a run counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The executables.
#[derive(Debug)]
pub struct Programs {
    sentry: PathBuf,
    guest: PathBuf,
}

/// Builds the executables, unless they are given.
pub fn programs(sentry: Option<&Path>) -> Result<Programs, String> {
    let own = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let folder = own.parent().ok_or("the executable is in no directory")?;
    if folder.file_name().is_some_and(|name| name == "debug") {
        eprintln!("NOTE: this is a debug build; its figures mean little (use --release)");
    }
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "-p", "sentry-benches", "--bins"]);
        if sentry.is_none() {
            build.args(["-p", "sentry"]);
        }
        if folder.file_name().is_some_and(|name| name == "release") {
            build.arg("--release");
        }
        let status = build.status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err("the programs do not build".into());
        }
    }
    let programs = Programs {
        sentry: sentry.map_or_else(|| folder.join("sentry"), Path::to_owned),
        guest: folder.join("bench-guest"),
    };
    for file in [&programs.sentry, &programs.guest] {
        if !file.exists() {
            return Err(format!("{} is not there: build the workspace first", file.display()));
        }
    }
    Ok(programs)
}

/// A directory with what the rows need. It is the current directory of each run.
#[derive(Debug)]
pub struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    /// The directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Lays the directory out.
    pub fn new(programs: &Programs) -> Result<Self, String> {
        let fill = || -> std::io::Result<Self> {
            let folder = tempfile::Builder::new().prefix("sentry-bench-").tempdir()?;
            let path = folder.path();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            fs::copy(&programs.guest, path.join("bench-guest"))?;
            fs::write(path.join("data"), vec![b'x'; 1 << 20])?;
            fs::create_dir(path.join("files"))?;
            for number in 0..100 {
                fs::write(path.join(format!("files/f{number:03}")), vec![b'y'; 4096])?;
            }
            program(&path.join("exit0"), &EXIT)?;
            program(&path.join("pause"), &PAUSE)?;
            Ok(Self { folder })
        };
        fill().map_err(|error| format!("cannot make a directory for the runs: {error}"))
    }
}

/// `exit_group(0)`
const EXIT: [u8; 9] = [0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05];
/// `loop { pause() }`
const PAUSE: [u8; 9] = [0xb8, 0x22, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];

/// Writes the smallest static program: one page of text, nothing else.
fn program(path: &Path, code: &[u8]) -> std::io::Result<()> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut image = Vec::new();
    image.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    image.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]); // executable, x86-64
    image.extend([BASE + HEADERS, 64, 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
    image.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    image.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]); // to be loaded, readable and executable
    image.extend(
        [0, BASE, BASE, size, size, 4096]
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes()),
    );
    image.extend_from_slice(code);
    fs::write(path, image)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A system on which programs are run.
#[derive(Debug)]
pub struct System {
    /// Which.
    pub on: On,
    prefix: Vec<String>,
}

/// A program that runs until this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// The process that was started.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A polite signal first: the systems clean up after themselves.
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        for _ in 0..300 {
            match self.0.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl System {
    /// Finds out whether the system is here.
    pub fn new(on: On, programs: &Programs, options: &[String]) -> Result<Self, String> {
        let sentry = programs.sentry.display().to_string();
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let mut prefix = match on {
            On::Native => Vec::new(),
            On::Systrap | On::Ptrace => words(&[&sentry, "exec", "--platform", on.name()]),
            On::Runsc => words(&[
                "runsc",
                "--platform=systrap",
                "--network=none",
                "--ignore-cgroups",
                "do",
            ]),
        };
        if on == On::Runsc && Command::new("runsc").arg("--version").output().is_err() {
            return Err("no runsc on the PATH".into());
        }
        if matches!(on, On::Systrap | On::Ptrace) {
            prefix.extend_from_slice(options);
            prefix.push("--".into());
        }
        Ok(Self { on, prefix })
    }

    fn command(&self, scratch: &Scratch, command: &[&str]) -> Command {
        let mut words = self.prefix.iter().map(String::as_str).chain(command.iter().copied());
        let program = words.next().unwrap_or_default();
        let mut start = Command::new(program);
        start.args(words).current_dir(scratch.folder.path());
        start
    }

    fn start(&self, scratch: &Scratch, command: &[&str], output: Stdio) -> Result<Child, String> {
        let mut start = self.command(scratch, command);
        // Output goes through a pipe: runsc writes a regular file at an offset of its own.
        start.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        spawn(&mut start)
    }

    /// Starts a program that is talked to: pipes to its standard input and from its output.
    pub fn conversation(&self, scratch: &Scratch, command: &[&str]) -> Result<Child, String> {
        let mut start = self.command(scratch, command);
        start.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn(&mut start)
    }

    /// Starts a program that goes on.
    pub fn spawn(&self, scratch: &Scratch, command: &[&str]) -> Result<Running, String> {
        self.start(scratch, command, Stdio::null()).map(Running)
    }

    /// Runs a program to its end; what it printed, and how long it took.
    pub fn output(&self, scratch: &Scratch, command: &[&str]) -> Result<(String, Duration), String> {
        self.output_within(scratch, command, PATIENCE)
    }

    /// The same with a time limit of its own.
    pub fn output_within(
        &self,
        scratch: &Scratch,
        command: &[&str],
        patience: Duration,
    ) -> Result<(String, Duration), String> {
        let begin = Instant::now();
        let mut child = self.start(scratch, command, Stdio::piped())?;
        let readers = [child.stdout.take().map(drain), child.stderr.take().map(drain)];
        // Waiting must cost the shortest programs nothing, so somebody else looks at the clock.
        let (finished, watch) = mpsc::channel::<()>();
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let watcher = std::thread::spawn(move || {
            let late = |time| watch.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout);
            let is_late = late(patience);
            if is_late {
                let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
                if late(Duration::from_secs(3)) {
                    let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
                }
            }
            is_late
        });
        let status = child.wait().map_err(|error| format!("waiting: {error}"))?;
        let ended = Instant::now();
        drop(finished);
        if watcher.join().unwrap_or(true) {
            return Err(format!("no end after {} s", patience.as_secs()));
        }
        let [output, errors] = readers.map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
        if !status.success() {
            let errors = errors.lines().last().unwrap_or_default().to_owned();
            return Err(format!("{status}: {errors}"));
        }
        Ok((output, ended - begin))
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let started = command.spawn();
    started.map_err(|error| format!("cannot run {}: {error}", command.get_program().to_string_lossy()))
}

fn drain(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_programs_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exit0");
        program(&path, &EXIT).unwrap();
        assert!(Command::new(&path).status().unwrap().success());
        let path = folder.path().join("pause");
        program(&path, &PAUSE).unwrap();
        let mut child = Command::new(&path).spawn().unwrap();
        std::thread::yield_now();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
