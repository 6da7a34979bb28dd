//! Containers of podman and docker, in namespaces of their own: whatever fails, all of it ends with the test.
//!
//! Mount and PID namespaces hold the daemon, the containers, their storage (in memory), and private copies of the places
//! that such programs write to (`/etc`, `/run`, `/dev/shm`). Their init ends when our end of its standard input closes. Only cgroups
//! live outside; they have a parent of their own, which is removed.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use super::{children, error_text};

/// Who runs containers without privileges.
const USER: &str = "54321";

/// A container engine, and who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Podman,
    RootlessPodman,
    Docker,
    RootlessDocker,
}

impl Engine {
    pub const ALL: [Engine; 4] = [
        Engine::Podman,
        Engine::RootlessPodman,
        Engine::Docker,
        Engine::RootlessDocker,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Engine::Podman => "podman",
            Engine::RootlessPodman => "podman, rootless",
            Engine::Docker => "docker",
            Engine::RootlessDocker => "docker, rootless",
        }
    }

    pub fn is_podman(self) -> bool {
        matches!(self, Engine::Podman | Engine::RootlessPodman)
    }

    pub fn is_rootless(self) -> bool {
        matches!(self, Engine::RootlessPodman | Engine::RootlessDocker)
    }

    /// The programs that it takes.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Engine::Podman => &["podman"],
            Engine::RootlessPodman => &["podman", "newuidmap"],
            Engine::Docker => &["dockerd", "docker"],
            Engine::RootlessDocker => &["dockerd", "docker", "rootlesskit", "newuidmap"],
        }
    }

    /// Starts the daemon, if there is one, and makes the image, as whoever runs it. `$1` is the directory.
    fn setup(self) -> &'static str {
        match self {
            Engine::Podman | Engine::RootlessPodman => "",
            Engine::Docker => {
                "dockerd --data-root $1/own/data --exec-root $1/own/exec --pidfile $1/own/pid -H unix://$1/own/socket \
                     --exec-opt native.cgroupdriver=cgroupfs --iptables=false --ip6tables=false --bridge=none & \
                 wait_for $1/own/socket; tar -C $1/tree -c . | docker -H unix://$1/own/socket import - tree"
            }
            Engine::RootlessDocker => {
                "rootlesskit --net=host --copy-up=/etc --copy-up=/run --state-dir $1/own/kit sh -c 'rm -f /run/docker \
                     /run/containerd /run/xtables.lock; exec dockerd --rootless --data-root $1/own/data --exec-root \
                     $1/own/exec --pidfile $1/own/pid -H unix://$1/own/socket --iptables=false --ip6tables=false \
                     --bridge=none' sh $1 & \
                 wait_for $1/own/socket; tar -C $1/tree -c . | docker -H unix://$1/own/socket import - tree"
            }
        }
    }
}

/// Makes the namespaces private places, and becomes who runs the engine. `$1` is the directory, `$2` the user.
const PRIVATE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none $1/etc && cp -a /etc/. $1/etc && mount --move $1/etc /etc
mount -t tmpfs -o mode=755 none /run && mkdir -m 1777 /run/lock
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o mode=755 none $1/own
if [ $2 != 0 ]; then
    echo "sentry-test:x:$2:$2::$1/own:/bin/sh" >> /etc/passwd && echo "sentry-test:x:$2:" >> /etc/group
    echo "sentry-test:2000000000:65536" >> /etc/subuid && echo "sentry-test:2000000000:65536" >> /etc/subgid
    chown $2:$2 $1/own && chown -R $2:$2 $1/tree
fi
mkdir $1/own/run && chown $2:$2 $1/own/run && chmod 700 $1/own/run
"#;

const SETUP: &str = r#"
wait_for() { i=0; while ! [ -S $1 ] && [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done; [ -S $1 ]; }
"#;

/// Ends everything, and removes the cgroups, of the name `$4`: those of processes that have just been killed can be in use
/// for a moment.
const END: &str = r#"
[ $$ = 1 ] && kill -9 -1
i=0
while found=$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$4") && [ -n "$found" ] && [ $i -lt 100 ]; do
    find $found -depth -type d -exec rmdir {} + 2> /dev/null
    sleep 0.05
    i=$((i+1))
done
"#;

/// A running engine.
pub struct Host {
    pub engine: Engine,
    dir: PathBuf,
    pub sentry: PathBuf,
    unshare: Child,
    /// Ends all of it.
    input: Option<ChildStdin>,
    init: i32,
    runtime: &'static [&'static str],
    cgroup: String,
}

fn found(program: &str) -> bool {
    let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"];
    places.iter().any(|place| Path::new(place).join(program).exists())
}

/// The shell words that become the user.
fn as_user(engine: Engine) -> Vec<&'static str> {
    if engine.is_rootless() {
        vec!["setpriv", "--clear-groups", "--reuid", USER, "--regid", USER]
    } else {
        Vec::new()
    }
}

impl Host {
    /// Starts it. `Err` says what is missing here. `dir` holds a directory `tree`, the root of the containers, and may be
    /// entered by everybody; `sentry` will be `/sentry` in them.
    pub fn start(engine: Engine, dir: &Path, sentry: &Path) -> Result<Host, String> {
        let tools = ["unshare", "nsenter", "setpriv", "tar"];
        for program in engine.programs().iter().chain(&tools) {
            if !found(program) {
                return Err(format!("there is no {program} here"));
            }
        }
        for place in ["etc", "own"] {
            std::fs::create_dir_all(dir.join(place)).map_err(|error| error.to_string())?;
        }
        let user = if engine.is_rootless() { USER } else { "0" };
        let rest = format!("exec >> $1/own/log 2>&1 || exit\n{SETUP}{}", engine.setup());
        let cgroup = format!("sentry-test-{}", std::process::id());
        let script = format!("({PRIVATE}) >&2 && {} && echo ready && cat\n{END}", {
            let mut words = as_user(engine);
            words.extend(["sh", "-c", "\"$3\"", "sh", "$1"]);
            words.join(" ")
        });
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "-p",
            "-f",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            &script,
            "sh",
        ]);
        command.arg(dir).args([user, &rest, &cgroup]);
        environment(&mut command, dir);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut unshare = command.spawn().map_err(|error| error.to_string())?;
        let input = unshare.stdin.take();
        let mut ready = String::new();
        if let Some(output) = unshare.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut ready);
        }
        let init = children(unshare.id() as i32).first().copied().unwrap_or(0);
        let mut host = Host {
            engine,
            dir: dir.to_owned(),
            sentry: sentry.to_owned(),
            unshare,
            input,
            init,
            runtime: &[],
            cgroup,
        };
        if ready != "ready\n" {
            let log = std::fs::read(format!("/proc/{init}/root{}/own/log", dir.display())).unwrap_or_default();
            host.end();
            let mut said = String::new();
            if let Some(mut error) = host.unshare.stderr.take() {
                let _ = error.read_to_string(&mut said);
            }
            let log = String::from_utf8_lossy(&log).into_owned();
            let last = log.lines().chain(said.lines()).last().unwrap_or("?").to_owned();
            return Err(format!("it does not start: {last}"));
        }
        host.find_runtime()?;
        Ok(host)
    }

    /// The runtime that works here: crun refuses hosts that have both versions of cgroups.
    fn find_runtime(&mut self) -> Result<(), String> {
        let mut why = String::new();
        let all: &[&'static [&'static str]] = if self.engine.is_podman() {
            &[&[], &["--runtime", "runc"], &["--runtime", "crun"]]
        } else {
            &[&[]]
        };
        for runtime in all {
            self.runtime = runtime;
            let output = self.run(&[], &["/bin/sh", "-c", "echo works"]);
            if output.stdout == b"works\n" {
                return Ok(());
            }
            why = error_text(&output);
        }
        Err(format!(
            "it runs no container: {}",
            why.lines().next_back().unwrap_or("?")
        ))
    }

    /// A command in a new container.
    pub fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p"]);
        command.args(as_user(self.engine)).args(["timeout", "-k", "5", "60"]);
        let own = self.dir.join("own");
        let within = |name: &str| own.join(name).display().to_string();
        if self.engine.is_podman() {
            command.args(["podman", "--root", &within("root"), "--runroot", &within("runroot")]);
            command
                .args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"])
                .args(self.runtime);
        } else {
            command.args(["docker", "-H", &format!("unix://{}", within("socket"))]);
        }
        command.args(["run", "--rm", "--network", "none"]);
        if !self.engine.is_rootless() {
            command.args(["--cgroup-parent", &format!("/{}", self.cgroup)]);
        }
        if self.engine.is_podman() {
            // Its own defaults are beyond what root has everywhere.
            command.args(["--ulimit", "nproc=4096:4096"]);
            if !options.contains(&"--ulimit") {
                command.args(["--ulimit", "nofile=1024:4096"]);
            }
        }
        command.args(["-v", &format!("{}:/sentry:ro", self.sentry.display())]);
        command.args(options);
        if self.engine.is_podman() {
            command.args(["--rootfs", &format!("{}:O", self.dir.join("tree").display())]);
        } else {
            command.arg("tree");
        }
        command.args(words);
        environment(&mut command, &self.dir);
        command
    }

    /// Runs it to its end.
    pub fn run(&self, options: &[&str], words: &[&str]) -> Output {
        let mut command = self.command(options, words);
        command.stdin(Stdio::null()).output().expect("nsenter")
    }

    fn end(&mut self) {
        self.input = None;
        let _ = self.unshare.wait();
        let left = cgroups(&self.cgroup);
        assert!(left.is_empty(), "cgroups are left over: {left:?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.input.is_some() {
            self.end();
        }
    }
}

fn environment(command: &mut Command, dir: &Path) {
    let own = dir.join("own");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin");
    command
        .env("HOME", &own)
        .env("TMPDIR", own.join("run"))
        .env("XDG_RUNTIME_DIR", own.join("run"));
}

/// The cgroups of that name, in every hierarchy.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten();
    let places = hierarchies.map(|entry| entry.path()).chain([root.to_owned()]);
    places
        .map(|place| place.join(name))
        .filter(|place| place.exists())
        .collect()
}
