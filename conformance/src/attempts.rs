//! The second part of the escape table: ways to the host that lead over no file of it. The guest program has the attempts
//! (`guest attempts`) and says what came of each; here is the host's side: a process that must live on, sockets that
//! nobody may reach, a descriptor and a secret that the supervisor has, and a look at what is left.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::host::{Host, Setup, left};
use crate::report::Report;
use crate::{On, Unit};

/// What the supervisor's environment has and the guest's must not.
const SECRET: &str = "the-secret-of-the-supervisor";

/// The names of all attempts: the guest program lists them.
pub fn names(host: &Host) -> Result<Vec<String>, String> {
    host.listed("attempts", "escape")
}

/// One unit for each attempt and platform.
pub fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for full in names(host)?.into_iter().filter(|name| host.options.wants(name)) {
        for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
            let full = full.clone();
            units.push(Box::new(move |report: &Report| {
                let start = Instant::now();
                let name = full.trim_start_matches("escape/");
                report.result(on, &full, attempt(host, on, name), start.elapsed());
            }));
        }
    }
    Ok(units)
}

/// A process of the host that nobody inside may reach, and is ended here.
struct Victim(Child);

impl Victim {
    fn new(host: &Host) -> Result<Victim, String> {
        let argv = ["/bin/sleep", "1000"].map(String::from);
        let mut command = host.command(On::Native, &Setup::default(), &argv);
        command
            .env("OF_THE_VICTIM", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
            .spawn()
            .map(Victim)
            .map_err(|e| format!("cannot start a process: {e}"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attempt(host: &Host, on: On, name: &str) -> Result<(), String> {
    let mut victim = Victim::new(host)?;
    let top = host.directory("attempt");
    let rw = top.join("rw");
    std::fs::create_dir(&rw).map_err(|e| e.to_string())?;
    host.give(&rw);
    let own = host.own_sentry("attempt")?;

    let socket = top.join("socket").to_string_lossy().into_owned();
    let abstract_name = |suffix: &str| SocketAddr::from_abstract_name(format!("{socket}{suffix}"));
    let bound = (|| {
        let stream = UnixListener::bind_addr(&abstract_name("")?)?;
        let datagram = UnixDatagram::bind_addr(&abstract_name("-datagram")?)?;
        let named = UnixListener::bind(&socket)?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777))?;
        for listener in [&stream, &named] {
            listener.set_nonblocking(true)?;
        }
        datagram.set_nonblocking(true)?;
        std::io::Result::Ok((stream, datagram, named))
    })();
    let (stream, datagram, named) = bound.map_err(|e| format!("cannot listen: {e}"))?;

    // A descriptor that would stay open over an exec, as a careless caller has it.
    let open = "exec 9<\"$0\"; exec \"$@\"";
    let mut argv: Vec<String> = ["/bin/sh", "-c", open, "/etc/passwd"].map(String::from).to_vec();
    argv.extend([
        own.to_string_lossy().into_owned(),
        "exec".into(),
        "--platform".into(),
        on.name().into(),
    ]);
    if let Some(workers) = host.options.workers {
        argv.extend(["--workers".into(), workers.to_string()]);
    }
    let shown = format!("{}:/rw", rw.display());
    argv.extend([
        "--ro".into(),
        host.bin().to_string_lossy().into_owned(),
        "--rw".into(),
        shown,
    ]);
    let real_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    argv.extend([
        "--env".into(),
        format!("NAME_OF_THE_HOST={}", real_name.trim()),
        "--".into(),
    ]);
    argv.extend([
        host.guest(),
        "attempt".into(),
        name.into(),
        victim.0.id().to_string(),
        socket.clone(),
    ]);
    let setup = Setup {
        env: vec![("OF_THE_SUPERVISOR".into(), SECRET.into())],
        ..Setup::default()
    };
    let before = sysctls();
    let out = host.run(On::Native, &setup, &argv);
    let text = String::from_utf8_lossy(&out.stdout);
    if out.code() != Some(0) || text.trim() != "done" {
        return Err(format!("expected a refusal, actual: {}", out.describe()));
    }
    left(&own)?;
    if sysctls() != before {
        return Err(format!(
            "the host's settings have changed: {before:?} is now {:?}",
            sysctls()
        ));
    }
    if !matches!(victim.0.try_wait(), Ok(None)) {
        return Err("the process outside has ended".into());
    }
    if stream.accept().is_ok() || named.accept().is_ok() || datagram.recv(&mut [0; 8]).is_ok() {
        return Err("somebody came to a socket outside".into());
    }
    for entry in std::fs::read_dir(&rw).map_err(|e| e.to_string())?.flatten() {
        let meta = entry.metadata().map_err(|e| e.to_string())?;
        if meta.mode() & 0o6000 != 0 {
            return Err(format!("{} has mode {:o}", entry.path().display(), meta.mode()));
        }
        unlocked(&entry.path())?;
    }
    Ok(())
}

/// Settings of the host's kernel that an attempt tries to change.
fn sysctls() -> Vec<Option<String>> {
    [
        "kernel/core_pattern",
        "kernel/panic",
        "kernel/randomize_va_space",
        "fs/suid_dumpable",
        "kernel/hostname",
    ]
    .iter()
    .map(|name| std::fs::read_to_string(format!("/proc/sys/{name}")).ok())
    .collect()
}

/// Fails if a lock is held on a file a second after its sandbox's end.
fn unlocked(path: &std::path::Path) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(format!("{} is locked: {e}", path.display())),
        }
    }
}
