//! Starting a sandbox: file systems, the first process, the workers.

mod control;
mod init;
mod mounts;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_gofer::client::Client;
use sentry_host::{advice, memory_file};
use sentry_platform::Platform;
use sentry_vfs::budget::Budget;
use sentry_vfs::cred::Credentials;

use crate::config::{BootConfig, ExitStatus};
use crate::events::{Events, Totals};
use crate::kernel::KernelOptions;
use crate::strace::Tracer;
use crate::task::wait::WaitStatus;
use crate::{Kernel, changes, quota, stdio, system, tty};

/// Everything the boot needs that is not plain data.
pub struct BootHandles {
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
    /// The supervisor's side of the caller's terminal, if [`BootConfig::terminal`] tells of one: bytes in both directions.
    pub terminal: Option<OwnedFd>,
    /// Messages of the supervisor ([`crate::config::ControlMessage`]).
    pub control: Option<OwnedFd>,
    /// The gofer that serves files.
    pub gofer: Option<OwnedFd>,
    /// Where strace output goes (standard error if none).
    pub strace: Option<OwnedFd>,
    /// Where to tell what has changed, if [`BootConfig::changes`] asks for it.
    pub changes: Option<OwnedFd>,
    /// Where events go, if [`BootConfig::events`] wants them: a `SOCK_SEQPACKET` socket.
    pub events: Option<OwnedFd>,
}

/// What the kernel has to say at the end.
#[derive(Debug, Default)]
pub struct Summary {
    /// Lines of statistics, if [`BootConfig::stats`] asks for them.
    pub stats: Vec<String>,
    /// What was used.
    pub totals: Totals,
}

/// Builds the sandbox, runs the program in it, and says how it ended.
pub fn boot(config: &BootConfig, platform: Arc<dyn Platform>, handles: BootHandles) -> (ExitStatus, Summary) {
    let mut summary = Summary::default();
    match run(config, platform, handles, &mut summary) {
        Ok(status) | Err(status) => (status, summary),
    }
}

/// How long a supervisor that does not take the last events is waited for.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// How many of the most frequent calls are told.
const MOST_FREQUENT: usize = 20;

/// What the kernel has counted.
fn count(kernel: &Kernel) -> Vec<String> {
    let counts = kernel.counts.iter().map(|count| count.load(Ordering::Relaxed));
    let mut calls: Vec<(u64, &str)> = (0..)
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(nr, count)| (count, crate::syscalls::lookup(nr).map_or("?", |row| row.1)))
        .collect();
    calls.sort_unstable_by(|a, b| b.cmp(a));
    let total: u64 = calls.iter().map(|(count, _)| count).sum();
    let forks = kernel.forks.load(Ordering::Relaxed);
    let mut lines = vec![format!(
        "system calls: {total} entered the kernel; {forks} processes forked"
    )];
    lines.extend(
        calls
            .iter()
            .take(MOST_FREQUENT)
            .map(|(count, name)| format!("{count:>10} {name}")),
    );
    lines.extend(
        kernel
            .gaps
            .list()
            .iter()
            .map(|(name, count)| format!("{count:>10} not implemented: {name}")),
    );
    lines
}

fn failed(what: impl std::fmt::Display) -> ExitStatus {
    ExitStatus::Failed(what.to_string())
}

/// Memory files are opened for reading only by the gofer: here there are no paths.
fn open_memory_files_by(gofer: Option<Arc<Client>>) {
    memory_file::set_read_only_opener(Box::new(move |file| match &gofer {
        Some(gofer) => gofer.reopen(file),
        None => Err(Errno::EOPNOTSUPP),
    }));
}

fn run(
    config: &BootConfig,
    platform: Arc<dyn Platform>,
    handles: BootHandles,
    summary: &mut Summary,
) -> Result<ExitStatus, ExitStatus> {
    if let Some(cpus) = config.limits.cpus {
        system::limit_processors(usize::try_from(cpus.div_ceil(1000)).unwrap_or(usize::MAX));
    }
    // While files are looked at, the host makes the process.
    platform.prepare_process();
    let gofer = handles.gofer.map(Client::new);
    open_memory_files_by(gofer.clone());
    let limits = &config.limits;
    let budget = Budget::new(limits.disk, limits.inodes, limits.memory);
    let mut builder = mounts::Builder::new(
        gofer,
        Arc::new(budget),
        config.changes.is_some() || config.count_changes,
        &config.mounts,
    );
    let (vfs, root) = builder.root(&config.mounts).map_err(failed)?;
    platform.prepare_process();
    let options = KernelOptions {
        workers: config.workers.unwrap_or(1),
        hostname: config.hostname.clone(),
        log_gaps: false,
        stats: config.stats,
        strace: config.strace.is_some(),
        limits: config.limits.clone(),
        stuck: config.stuck.clone(),
        nice: config.nice,
    };
    let kernel = Kernel::new(platform, vfs, options)
        .map_err(|errno| failed(format!("cannot start: {errno}{}", advice::of(errno.raw()))))?;
    if config.stuck.is_some() {
        kernel.executor().hurry_watch();
    }
    if let Some(config) = &config.strace {
        let own = || {
            handles.stdio[2]
                .try_clone()
                .map_err(|error| failed(format!("strace output: {error}")))
        };
        let output = handles.strace.map_or_else(own, Ok)?;
        // Set once, before anything runs.
        let _ = kernel.tracer.set(Tracer::new(config, output));
    }
    if let (true, Some(socket)) = (config.events, handles.events) {
        let _ = kernel.events.set(Events::new(socket));
    }
    quota::watch(&kernel);
    builder.rest(&kernel, &root, &config.mounts).map_err(failed)?;
    builder.track().map_err(failed)?;
    let console = match (&config.terminal, handles.terminal) {
        (Some(terminal), Some(socket)) => {
            let owner = Credentials::new(config.uid, config.gid, &config.groups);
            let console = tty::console::connect(&kernel, terminal, &owner, socket);
            Some((
                console.map_err(|errno| failed(format!("terminal: {errno}")))?,
                terminal.stdio,
            ))
        }
        _ => None,
    };
    let terminal = console.as_ref().map(|(console, which)| (console, *which));
    let stdio = stdio::take_over(&kernel, &root, handles.stdio, terminal)
        .map_err(|errno| failed(format!("standard descriptors: {errno}")))?;

    let outcome = init::start(&kernel, config, root, stdio);
    let _watch = match handles.control {
        Some(socket) => control::listen(&kernel, socket).map_err(|errno| failed(format!("control socket: {errno}")))?,
        None => None,
    };
    kernel
        .executor()
        .run()
        .map_err(|error| failed(format!("cannot start worker threads: {error}{}", advice::of_io(&error))))?;
    if let Some((console, _)) = &console {
        console.drain();
    }
    summary.totals = kernel.totals();
    if config.count_changes {
        changes::count(&builder.overlays(), &mut summary.totals);
        changes::count_shared(builder.ledger(), &mut summary.totals);
    }
    if config.stats {
        summary.stats = count(&kernel);
    }
    if let Some(events) = kernel.events.get() {
        events.finish(LAST_EVENTS);
    }
    if let (Some(config), Some(output)) = (config.changes, handles.changes) {
        changes::write(config, &builder.overlays(), output);
    }
    if let Some(status) = outcome.lock().take() {
        return Err(status);
    }
    Ok(match *kernel.init_exit.lock() {
        Some(WaitStatus::Exited(code)) => ExitStatus::Code(code),
        Some(WaitStatus::Signaled(signal, _)) => ExitStatus::Signal(signal.number()),
        None => failed("the workers ended before the program"),
    })
}
