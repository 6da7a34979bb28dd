//! The executables, the directories, and how commands are started natively or in a sandbox.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::{On, Run};

/// The user id of `--user`.
const USER: u32 = 1000;

/// What all suites need.
pub struct Host {
    /// The options.
    pub options: Run,
    /// Everything this run makes lies below it.
    top: TempDir,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended; none if it had to be killed because it took too long.
    pub status: Option<ExitStatus>,
    /// How long it ran.
    pub took: Duration,
}

impl Output {
    /// The exit code as a shell would give it.
    pub fn code(&self) -> Option<i32> {
        let status = self.status?;
        status.code().or_else(|| status.signal().map(|s| 128 + s))
    }

    /// One line for a failure message.
    pub fn describe(&self) -> String {
        let how = match self.status {
            None => format!("still running after {} s", self.took.as_secs()),
            Some(status) => status.to_string(),
        };
        format!("{how}; stdout {}; stderr {}", brief(&self.stdout), brief(&self.stderr))
    }
}

/// The text in quotes, shortened.
pub fn brief(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut text: String = text.trim_end().to_string();
    if text.chars().count() > 600 {
        let tail: String = text.chars().skip(text.chars().count() - 300).collect();
        text = text.chars().take(300).collect::<String>() + " … " + &tail;
    }
    format!("{text:?}")
}

/// How a command is to be started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Further options of `sentry exec` (natively ignored).
    pub options: Vec<String>,
    /// Environment beyond the usual.
    pub env: Vec<(String, String)>,
    /// The directory to start in; by default a new empty one.
    pub cwd: Option<PathBuf>,
    /// What to feed to standard input.
    pub stdin: Option<Vec<u8>>,
    /// After how many seconds to give up.
    pub limit: u64,
    /// How many descriptors it may have (`RLIMIT_NOFILE`, soft and hard); else as this process.
    pub descriptors: Option<u32>,
}

fn build() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| format!("cannot find this executable: {e}"))?;
    Ok(here.parent().map(Path::to_path_buf).unwrap_or_default())
}

impl Host {
    /// Builds what is needed and copies it to where an ordinary user can read it.
    pub fn prepare(options: Run) -> Result<Host, String> {
        let from = build()?;
        let sandboxed = options.on.iter().any(|&on| on != On::Native);
        if !options.no_build {
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
            let mut command = Command::new(cargo);
            command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args([
                "build",
                "--quiet",
                "-p",
                "sentry-guest",
            ]);
            if sandboxed && options.sentry.is_none() {
                command.args(["-p", "sentry"]);
            }
            if from.ends_with("release") {
                command.arg("--release");
            }
            if let Some(target) = from.parent() {
                command.env("CARGO_TARGET_DIR", target);
            }
            match command.status() {
                Ok(status) if status.success() => {}
                Ok(_) => return Err("the guest program or the sentry does not build".into()),
                Err(e) => return Err(format!("cannot run cargo: {e}; with --no-build nothing is built")),
            }
        }
        let top = TempDir::with_prefix("conformance-").map_err(|e| format!("cannot make a directory: {e}"))?;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(top.path(), open).map_err(|e| e.to_string())?;
        let host = Host { options, top };
        std::fs::create_dir(host.bin()).map_err(|e| e.to_string())?;
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, host.bin().join(name)).map_err(|e| format!("cannot copy {}: {e}", from.display()))
        };
        copy(&from.join("guest"), "guest")?;
        if sandboxed {
            match &host.options.sentry {
                Some(sentry) => copy(sentry, "sentry")?,
                None => copy(&from.join("sentry"), "sentry")?,
            };
        }
        Ok(host)
    }

    /// Where the executables are.
    pub fn bin(&self) -> PathBuf {
        self.top.path().join("bin")
    }

    /// The guest program's path, on the host and in sandboxes that show [`Host::bin`].
    pub fn guest(&self) -> String {
        self.bin().join("guest").to_string_lossy().into_owned()
    }

    /// The names that the guest program lists for `what`, as cases of a family.
    pub fn listed(&self, what: &str, family: &str) -> Result<Vec<String>, String> {
        let output = Command::new(self.guest()).arg(what).output();
        let output = output.map_err(|e| format!("cannot run the guest program: {e}"))?;
        let names = String::from_utf8_lossy(&output.stdout);
        Ok(names.lines().map(|name| format!("{family}/{name}")).collect())
    }

    /// The sentry under a name of its own: whoever runs that when its sandbox has ended was left by it ([`left`]). A link,
    /// since a copy could be busy when another thread forks.
    pub fn own_sentry(&self, prefix: &str) -> Result<PathBuf, String> {
        let own = self.directory(prefix).join("sentry");
        std::fs::hard_link(self.bin().join("sentry"), &own).map_err(|e| format!("cannot link the sentry: {e}"))?;
        Ok(own)
    }

    /// A new empty directory that belongs to whom commands run as.
    pub fn directory(&self, prefix: &str) -> PathBuf {
        let prefix = prefix.replace(['/', '@'], "-");
        let dir = tempfile::Builder::new()
            .prefix(&format!("{prefix}-"))
            .tempdir_in(self.top.path());
        let path = dir.expect("a new directory").keep();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod of our own directory");
        self.give(&path);
        path
    }

    /// Gives a file or directory to whom commands run as.
    pub fn give(&self, path: &Path) {
        if self.options.user {
            chown(path, Some(USER), Some(USER)).expect("chown; --user needs root");
        }
    }

    /// A command that runs `program` as a login shell would, whatever this process was started with: no signal is ignored
    /// (who runs in the background of a script ignores SIGINT), and the limit is set if there is one.
    fn launch(&self, setup: &Setup, program: &Path) -> Command {
        let mut command = Command::new(self.guest());
        let descriptors = setup.descriptors.unwrap_or(0).to_string();
        command.args(["tool", "launch", &descriptors]).arg(program);
        command
    }

    /// `argv` natively or in a sandbox, not yet started.
    pub fn command(&self, on: On, setup: &Setup, argv: &[String]) -> Command {
        let mut command;
        if on == On::Native {
            command = self.launch(setup, Path::new(&argv[0]));
            command.args(&argv[1..]);
        } else {
            command = self.launch(setup, &self.bin().join("sentry"));
            command.args(["exec", "--platform", on.name(), "--ro"]).arg(self.bin());
            if let Some(workers) = self.options.workers {
                command.args(["--workers", &workers.to_string()]);
            }
            command.args(&setup.options);
            for (name, value) in &setup.env {
                command.arg("--env").arg(format!("{name}={value}"));
            }
            command.arg("--").args(argv);
        }
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("HOME", "/root").env("LANG", "C.UTF-8").env("TERM", "dumb");
        for (name, value) in &setup.env {
            command.env(name, value);
        }
        match &setup.cwd {
            Some(cwd) => command.current_dir(cwd),
            None => command.current_dir(self.directory("work")),
        };
        if self.options.user {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// Runs `argv` to its end.
    pub fn run(&self, on: On, setup: &Setup, argv: &[String]) -> Output {
        let mut command = self.command(on, setup, argv);
        command.stdin(if setup.stdin.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let start = Instant::now();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                let stderr = format!("cannot start {}: {e}", command.get_program().to_string_lossy()).into_bytes();
                return Output {
                    stdout: Vec::new(),
                    stderr,
                    status: None,
                    took: start.elapsed(),
                };
            }
        };
        let collect = |stream: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                if let Some(mut stream) = stream {
                    // What was read before an error is still worth showing.
                    let _ = stream.read_to_end(&mut all);
                }
                all
            })
        };
        let stdout = collect(child.stdout.take().map(|s| Box::new(s) as _));
        let stderr = collect(child.stderr.take().map(|s| Box::new(s) as _));
        if let (Some(mut stdin), Some(data)) = (child.stdin.take(), setup.stdin.clone()) {
            std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &data));
        }
        let limit = Duration::from_secs(if setup.limit == 0 { 30 } else { setup.limit });
        let status = wait(&mut child, limit);
        let took = start.elapsed();
        Output {
            stdout: stdout.join().unwrap_or_default(),
            stderr: stderr.join().unwrap_or_default(),
            status,
            took,
        }
    }
}

/// Waits for a child; one that takes longer is killed with its group.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    let group = Pid::from_raw(-(child.id() as i32));
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            // Natively, what it left in the background would keep the pipes open.
            let _ = kill(group, Signal::SIGKILL);
            return Some(status);
        }
        let waited = start.elapsed();
        if waited > limit {
            // The supervisor gets a chance to clean up.
            let _ = kill(group, Signal::SIGTERM);
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = kill(group, Signal::SIGKILL);
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(if waited.as_millis() < 100 { 1 } else { 5 }));
    }
}

/// The `/proc` directories of the processes that run an executable.
pub fn processes_of(executable: &Path) -> Vec<PathBuf> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| std::fs::read_link(path.join("exe")).is_ok_and(|exe| exe.starts_with(executable)))
        .collect()
}

/// Fails if processes that run an executable are there two seconds after their sandbox's end.
pub fn left(executable: &Path) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        let processes = processes_of(executable);
        if processes.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("processes are left: {processes:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
