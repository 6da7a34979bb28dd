//! `sentry boot`: the role of the sentry. Gives up what it does not need, makes the platform, installs its filter,
//! and runs the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sentry_host::filter::{self, Filter, Outside};
use sentry_host::process;
use sentry_kernel::boot::BootHandles;
use sentry_kernel::config::ExitStatus;
use sentry_kernel::events::Totals;
use sentry_platform::{HostVdso, Kind, Load, Platform, PlatformOptions};

use crate::host_calls;
use crate::isolation::{self, Isolation};
use crate::parts::{self, Boot, Protection, Report, now};
use crate::supervisor::{FAILED, millis};

/// For whoever has to report without having been handed the socket: a panicking thread.
static CONTROL: OnceLock<OwnedFd> = OnceLock::new();

fn report(report: &Report) {
    if let Some(control) = CONTROL.get() {
        // Nobody to tell means nobody to fail for.
        let _ = parts::send_report(control.as_fd(), report);
    }
}

fn report_failure(what: String) {
    report(&Report::Ended {
        status: ExitStatus::Failed(what),
        stats: Vec::new(),
        totals: Totals::default(),
    });
}

/// A thread that panics takes the whole sentry along: state that somebody left half-changed is not gone on with.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let message = format!("internal error: {panic}").replace('\n', " ");
        report_failure(message);
        process::exit_now(FAILED.into());
    }));
}

/// Runs the role. Returns only the code to exit with.
pub fn main() -> u8 {
    let (Some(configuration), Some(control)) = (process::adopt(parts::CONFIG), process::adopt(parts::CONTROL)) else {
        eprintln!("sentry boot: this is started by `sentry exec`");
        return FAILED;
    };
    let entered = now();
    let gofer = process::adopt(parts::GOFER);
    let (terminal, events, strace) = (
        process::adopt(parts::TERMINAL),
        process::adopt(parts::EVENTS),
        process::adopt(parts::STRACE),
    );
    let changes = process::adopt(parts::CHANGES);
    // Before anything else is opened.
    process::close_from(parts::CHANGES + 1);
    let Ok(for_kernel) = control.try_clone() else {
        return FAILED;
    };
    let _ = CONTROL.set(control);
    end_on_panic();
    sentry_host::fatal::set_hook(Box::new(|why| {
        report_failure(why.into());
        process::exit_now(FAILED.into());
    }));
    sentry_host::fatal::set_warn_hook(Box::new(|what| report(&Report::Warning(what.into()))));
    let handles = Handles {
        control: Some(for_kernel),
        gofer,
        terminal,
        events,
        strace,
        changes,
    };
    match run(configuration, handles, entered) {
        Ok(()) => 0,
        Err(what) => {
            report_failure(what);
            FAILED
        }
    }
}

/// The descriptors handed over.
struct Handles {
    control: Option<OwnedFd>,
    gofer: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    events: Option<OwnedFd>,
    strace: Option<OwnedFd>,
    changes: Option<OwnedFd>,
}

fn run(configuration: OwnedFd, handles: Handles, entered: Duration) -> Result<(), String> {
    let boot: Boot = parts::read_configuration(configuration).map_err(|error| format!("configuration: {error}"))?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| format!("/dev/null: {error}"))?;
    let stdio = process::take_stdio(null.as_fd()).map_err(|error| format!("standard descriptors: {}", error.desc()))?;
    drop(null);

    let workers = boot
        .kernel
        .as_ref()
        .and_then(|kernel| kernel.workers)
        .unwrap_or_else(default_workers);
    // While there is a /proc.
    let options = PlatformOptions {
        copy_by_stub: false,
        workers,
        vdso: HostVdso::find(),
        max_processes: Some(isolation::PROCESSES),
        nice: boot.nice,
        load: Load::open().map(Arc::new),
    };

    let mut isolation = Isolation::default();
    isolation.enter(boot.setting, boot.nice)?;
    filter::let_threads_start().map_err(|error| error.to_string())?;
    let isolated = now();
    let platform = create_platform(&boot.platform, options)?;
    let name = platform.name();
    let ready = now();
    isolation.seal();
    let outside = if boot.debug_filter {
        Outside::Trap
    } else {
        Outside::Kill
    };
    if boot.debug_filter {
        sentry_host::sigsys::report().map_err(|error| format!("SIGSYS handler: {}", error.desc()))?;
    }
    let table = host_calls::for_platform(name);
    let filter = Filter::compile(&table, outside).and_then(|filter| filter.install());
    filter.map_err(|error| error.to_string())?;
    isolation.protections.push(Protection {
        name: "seccomp".into(),
        in_force: true,
        detail: format!(
            "{} host calls, arguments checked; any other ends the sandbox",
            host_calls::allowed(&table)
        ),
    });
    let filtered = now();

    let Some(mut kernel) = boot.kernel else {
        report(&Report::Isolation {
            platform: name.into(),
            protections: isolation.protections,
        });
        return Ok(());
    };
    kernel.workers = Some(workers);
    let handles = BootHandles {
        stdio,
        terminal: handles.terminal,
        control: handles.control,
        gofer: handles.gofer,
        events: handles.events,
        strace: handles.strace,
        changes: handles.changes,
    };
    let (status, summary) = sentry_kernel::boot::boot(&kernel, platform, handles);
    let mut stats = summary.stats;
    if kernel.stats {
        let step = |from: Duration, to: Duration| millis(to.saturating_sub(from));
        stats.push(format!(
            "start-up: processes {:.2} ms, isolation {:.2} ms, platform {} {:.2} ms, filter {:.2} ms; kernel ran {:.2} ms",
            step(boot.started, entered),
            step(entered, isolated),
            name,
            step(isolated, ready),
            step(ready, filtered),
            step(filtered, now()),
        ));
    }
    report(&Report::Ended {
        status,
        stats,
        totals: summary.totals,
    });
    Ok(())
}

fn create_platform(kind: &str, options: PlatformOptions) -> Result<Arc<dyn Platform>, String> {
    let kind = match kind {
        "systrap" => Kind::Systrap,
        "ptrace" => Kind::Ptrace,
        _ => Kind::Auto,
    };
    sentry_platform::create(kind, options).map_err(|error| format!("cannot make the platform: {error}"))
}

/// One worker for every two processors, at most four: guests need processors too, and those who talk to each other
/// are best served by one worker.
fn default_workers() -> usize {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap_or_default();
    let processors = (0..nix::sched::CpuSet::count())
        .filter(|cpu| set.is_set(*cpu) == Ok(true))
        .count();
    (processors / 2).clamp(1, 4)
}
