//! Starts gofer and sentry, passes signals on, and sees to it that nothing is left.

mod error;
mod exec;
mod standstill;

use std::ffi::CString;
use std::fs::File;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use sentry_host::process::{self, Disposition};
use sentry_kernel::config::{BootConfig, ControlMessage, ExitStatus, Notice};
use sentry_kernel::events::Event;

use crate::args::PlatformChoice;
use crate::cgroup::Cgroup;
use crate::changes::Collector;
use crate::events::{EventLog, Own};
use crate::memory::{self, Meter};
use crate::parts::{self, Boot, Gofer, Heard, Report, Setting, now};
use crate::reap;
use crate::relay::Relay;
use crate::spawn::{self, Program, Sentry};
use crate::terminal::complain;

use error::{StartError, failed};
use standstill::Standstill;

pub use exec::{exec, millis};

/// The exit code when we failed.
pub const FAILED: u8 = 125;
/// From SIGTERM to SIGKILL after `--timeout`.
const GRACE: Duration = Duration::from_secs(2);
/// How long the sentry may tell nothing when it is to tell what has changed, after `--timeout`.
const TELLING: Duration = Duration::from_secs(10);
/// How long the sentry may live without its socket, or without its gofer.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long it may take to report what was used once every process was killed.
const LAST_REPORT: Duration = Duration::from_millis(500);

/// Signals that are passed on to the guest.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGWINCH,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The parts of a sandbox and the lines to them.
struct Sandbox {
    sentry: Sentry,
    gofer: Option<Pid>,
    control: OwnedFd,
    signals: SignalFd,
    /// The caller's terminal, if the guest uses it.
    relay: Option<Relay>,
    /// Hears what has changed.
    changes: Option<Collector>,
    /// What happens, for whoever wants to know.
    log: Option<EventLog>,
    /// Where memory is limited, or its use is to be told.
    meter: Option<Meter>,
    /// The sentry counts changes at the end.
    counts: bool,
    /// The host's part in limits, if it has one.
    cgroup: Option<Cgroup>,
    /// The limit at which the command was told to end.
    ending: Option<Limit>,
    /// It did not, and was killed.
    killed: bool,
    /// The sandbox was stopped and is to go on.
    resume: bool,
}

/// A limit at which the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// `--timeout`.
    Time,
    /// `--cpu-time`.
    CpuTime,
}

impl Limit {
    fn name(self) -> &'static str {
        match self {
            Limit::Time => "timeout",
            Limit::CpuTime => "cpu-time",
        }
    }

    fn complaint(self) -> &'static str {
        match self {
            Limit::Time => "the command did not end in time and was killed",
            Limit::CpuTime => "the command used up its processor time and was killed",
        }
    }
}

/// Takes the signals that concern a supervisor. What the caller ignores (nohup) stays ignored.
fn take_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in FORWARDED {
        if process::set_disposition(signal, Disposition::Default)? {
            process::set_disposition(signal, Disposition::Ignore)?;
        } else {
            set.add(signal);
        }
    }
    // A caller that ignores SIGCHLD would have its children, and now ours, reaped unseen.
    process::set_disposition(Signal::SIGCHLD, Disposition::Default)?;
    set.add(Signal::SIGCHLD);
    set.add(Signal::SIGTSTP);
    set.add(Signal::SIGCONT);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// What is started: the configuration of the kernel (none to look at the isolation only), and around it.
struct Plan<'a> {
    kernel: Option<BootConfig>,
    platform: PlatformChoice,
    trees: Option<Gofer>,
    strace: Option<File>,
    /// The sentry's end of the pipe for what has changed.
    changes: Option<OwnedFd>,
    /// The sentry's end of the line to the caller's terminal.
    terminal: Option<OwnedFd>,
    /// The sentry's end of the socket for events.
    events: Option<OwnedFd>,
    debug_filter: bool,
    null: &'a File,
    cgroup: Option<Cgroup>,
}

impl<'a> Plan<'a> {
    /// A descriptor, unless the guest's own terminal comes in its place.
    fn unless_terminal<'b>(&self, fd: BorrowedFd<'b>) -> BorrowedFd<'b>
    where
        'a: 'b,
    {
        if self.terminal.is_some() && fd.is_terminal() {
            self.null.as_fd()
        } else {
            fd
        }
    }

    fn start(mut self, started: Duration) -> Result<Sandbox, StartError> {
        let _ = nix::sys::prctl::set_dumpable(true);
        let signals = take_signals().map_err(failed("signalfd"))?;
        let executable = process::own_executable().map_err(StartError::Executable)?;
        let (control, sentry_control) = parts::socket_pair().map_err(failed("socketpair"))?;
        let (gofer_socket, sentry_gofer) = parts::socket_pair().map_err(failed("socketpair"))?;
        let configuration = |setting: Setting| {
            let boot = Boot {
                kernel: self.kernel.clone(),
                platform: self.platform.name().into(),
                setting,
                nice: sentry_host::process::nice(),
                debug_filter: self.debug_filter,
                started,
            };
            parts::configuration(&boot)
        };
        let args = [c"sentry", c"boot"].map(CString::from);
        let null = self.null.as_fd();
        let terminal = self.terminal.as_ref().map_or(null, AsFd::as_fd);
        let events = self.events.as_ref().map_or(null, AsFd::as_fd);
        let mut others = vec![sentry_control.as_fd(), sentry_gofer.as_fd(), terminal, events];
        match (&self.strace, &self.changes) {
            (Some(strace), _) => others.push(strace.as_fd()),
            // Keeps the place.
            (None, Some(_)) => others.push(null),
            (None, None) => {}
        }
        others.extend(self.changes.as_ref().map(AsFd::as_fd));
        let (input, output, error) = (stdin(), stdout(), stderr());
        // The sentry never holds a terminal. (With --debug-filter-log it writes to standard error itself.)
        let program = Program {
            executable: executable.as_fd(),
            args: &args,
            configuration: &configuration,
            stdio: [
                self.unless_terminal(input.as_fd()),
                self.unless_terminal(output.as_fd()),
                if self.debug_filter {
                    error.as_fd()
                } else {
                    self.unless_terminal(error.as_fd())
                },
            ],
            others: &others,
            cgroup: self.cgroup.as_ref(),
        };
        let mut gofer = None;
        if let Some(trees) = &self.trees {
            let trees = parts::configuration(trees).map_err(StartError::Memory)?;
            let descriptors = [null, null, error.as_fd(), trees.as_fd(), gofer_socket.as_fd()];
            gofer = Some(spawn::start_gofer(
                executable.as_fd(),
                &descriptors,
                self.cgroup.as_ref(),
            )?);
        }
        let sentry = program.start().inspect_err(|_| {
            if let Some(gofer) = gofer {
                reap::end(gofer, &signals);
            }
        })?;
        Ok(Sandbox {
            sentry,
            gofer,
            control,
            signals,
            relay: None,
            changes: None,
            log: None,
            meter: None,
            counts: false,
            cgroup: self.cgroup.take(),
            ending: None,
            killed: false,
            resume: false,
        })
    }
}

/// How a sandbox came to its end.
enum Outcome {
    /// The sentry reported it.
    Reported(Report),
    /// A part failed; what is to be said.
    Broken(String),
    /// A part failed and has said why itself; how it ended.
    Told(String),
    /// A limit was reached, and neither the command nor the sentry ended.
    Ended,
}

impl Sandbox {
    fn send(&self, signal: Signal) {
        self.tell(ControlMessage::Signal(signal as i32));
    }

    fn tell(&self, message: ControlMessage) {
        let message = message.encode();
        // Full or closed: the sentry does not listen, and waiting for it would not help.
        let _ = send(
            self.control.as_raw_fd(),
            &message,
            MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        );
    }

    /// Waits for the end, and passes signals on meanwhile.
    fn supervise(&mut self, timeout: Option<Duration>) -> Outcome {
        let mut deadline = timeout
            .filter(|timeout| !timeout.is_zero())
            .map(|timeout| now() + timeout);
        // Something is wrong, but the sentry may still have the better explanation: until then.
        let mut suspicion: Option<(Duration, String)> = None;
        // How much of what has changed had been told when every process was killed, or when we last looked.
        let mut told = None;
        let timeout = timeout.unwrap_or_default();
        let mut look = self.meter.as_ref().map(|_| now());
        let mut connected = true;
        let mut standstill = standstill::Watch::default();
        if let Some(relay) = &mut self.relay {
            relay.take();
        }
        loop {
            self.wait(
                deadline
                    .into_iter()
                    .chain(suspicion.as_ref().map(|(until, _)| *until))
                    .chain(look)
                    .chain(standstill.next())
                    .min(),
                connected,
            );
            while let Ok(Some(info)) = self.signals.read_signal() {
                match Signal::try_from(info.ssi_signo as i32) {
                    Ok(Signal::SIGCHLD) | Err(_) => standstill.wake(),
                    Ok(Signal::SIGCONT) => self.resume = true,
                    Ok(Signal::SIGTSTP) => self.suspend(),
                    Ok(Signal::SIGWINCH) if self.relay.is_some() => self.resize(),
                    Ok(signal) => self.send(signal),
                }
            }
            if std::mem::take(&mut self.resume) {
                self.wake();
            }
            if let Some(relay) = &mut self.relay {
                relay.take();
                relay.copy();
            }
            if let Some(log) = &mut self.log {
                log.turn();
            }
            if look.is_some_and(|look| now() >= look) {
                look = self.look_at_memory();
            }
            match standstill.look(|| self.parts()) {
                Some(Standstill::Late(what)) => self.warn(what),
                Some(Standstill::Stuck(what)) => return Outcome::Broken(what),
                None => {}
            }
            // First who is dead, then what was said: a report always comes before the death.
            let (sentry_end, gofer_end) = self.reap();
            if let Some(status) = gofer_end
                && !matches!(status, WaitStatus::Exited(_, 0))
            {
                // The cause, whatever the sentry makes of it.
                let what = describe("gofer", status);
                return match status {
                    WaitStatus::Exited(_, code) if code == i32::from(FAILED) => Outcome::Told(what),
                    _ => Outcome::Broken(what),
                };
            }
            if connected {
                let mut heard = parts::receive(self.control.as_fd());
                if matches!(heard, Err(Errno::ECONNRESET)) {
                    // It ended without having read all of ours. What it said itself is still there.
                    heard = parts::receive(self.control.as_fd());
                }
                match heard {
                    Ok(Some(Heard::Notice(Notice::Stopped))) => self.stop(Signal::SIGTSTP),
                    Ok(Some(Heard::Notice(Notice::TerminalWanted))) => self.give_terminal(),
                    Ok(Some(Heard::Notice(Notice::MemoryShort))) => self.tell_memory(),
                    Ok(Some(Heard::Notice(Notice::CpuTimeUsedUp))) => {
                        if self.ending.is_none() {
                            deadline = Some(self.end_orderly(Limit::CpuTime));
                        }
                    }
                    Ok(Some(Heard::Warning(what))) => self.warn(what),
                    Ok(Some(Heard::Report(report))) => return Outcome::Reported(report),
                    Ok(None) => {
                        connected = false;
                        suspicion
                            .get_or_insert((now() + LAST_WORDS, "the sentry closed its connection and stays".into()));
                    }
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(_) => return Outcome::Broken("the sentry sent nonsense".into()),
                }
            }
            if let Some(status) = sentry_end {
                return Outcome::Broken(describe("sentry", status));
            }
            if let Some(status) = gofer_end {
                // As it ends when the sentry is gone.
                suspicion = Some((now() + LAST_WORDS, describe("gofer", status)));
            }
            if suspicion.as_ref().is_some_and(|(until, _)| now() >= *until) {
                return Outcome::Broken(suspicion.map(|(_, what)| what).unwrap_or_default());
            }
            if deadline.is_some_and(|deadline| now() >= deadline) {
                let progress = self.changes.as_ref().map(Collector::progress);
                deadline = Some(match self.ending {
                    None => {
                        self.tell_timeout(timeout);
                        self.end_orderly(Limit::Time)
                    }
                    Some(_) if !self.killed => {
                        self.killed = true;
                        self.send(Signal::SIGKILL);
                        now()
                            + if progress.is_some() || self.counts {
                                TELLING
                            } else {
                                LAST_REPORT
                            }
                    }
                    // What has changed is told when every process is dead, and as long as it is being told we wait.
                    Some(_) if progress.is_some() && progress != told => {
                        told = progress;
                        now() + TELLING
                    }
                    Some(_) => return Outcome::Ended,
                });
            }
        }
    }

    /// Our processes, apart from the supervisor and the stubs, which are the guest's to stop.
    fn parts(&self) -> Vec<(&'static str, Pid)> {
        let below = |parent: Pid| memory::children(parent.as_raw()).into_iter().map(Pid::from_raw);
        let mut parts = vec![("sentry", self.sentry.pid)];
        if self.sentry.lifeline.is_some() {
            // That was its guard.
            parts.extend(below(self.sentry.pid).map(|pid| ("sentry", pid)));
        }
        if let Some(gofer) = self.gofer {
            parts.push(("gofer", gofer));
            parts.extend(below(gofer).map(|pid| ("gofer", pid)));
        }
        parts
    }

    /// The sentry finds that something is not as it should be.
    fn warn(&mut self, what: String) {
        complain(&what);
        if let Some(log) = &mut self.log {
            log.own(&Own::Fault { what });
        }
    }

    /// Tells the command to end; until when it may take its time.
    fn end_orderly(&mut self, limit: Limit) -> Duration {
        self.ending.get_or_insert(limit);
        self.send(Signal::SIGTERM);
        self.send(Signal::SIGCONT);
        now() + GRACE
    }

    /// Tells the sentry how much memory is in use; when to look again.
    fn look_at_memory(&mut self) -> Option<Duration> {
        let meter = self.meter.as_mut()?;
        let look = meter.look(false);
        let next = now() + meter.next(look.total);
        self.tell(ControlMessage::Memory(look.total));
        self.tell_killed();
        Some(next)
    }

    /// Tells of processes that the host has killed at the cgroup's memory limit, faster than we could.
    fn tell_killed(&mut self) {
        let killed = self.cgroup.as_mut().map_or(0, Cgroup::killed);
        if let (Some(log), Some(meter)) = (&mut self.log, &self.meter) {
            for _ in 0..killed {
                log.event(&Event::Limit {
                    limit: "memory".into(),
                    value: meter.limit(),
                    used: meter.peak,
                    action: "killed".into(),
                    pid: None,
                    comm: None,
                });
            }
        }
    }

    /// Tells it which processes use it.
    fn tell_memory(&mut self) {
        let Some(meter) = &mut self.meter else { return };
        let look = meter.look(true);
        for (pid, kib) in look.largest {
            self.tell(ControlMessage::LargeProcess(pid, kib));
        }
        self.tell(ControlMessage::ExactMemory(look.total));
    }

    fn tell_timeout(&mut self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        if let Some(log) = &mut self.log {
            log.event(&Event::Limit {
                limit: Limit::Time.name().into(),
                value: millis,
                used: millis,
                action: "ended".into(),
                pid: None,
                comm: None,
            });
        }
    }

    /// Waits until a signal, a report or something typed or printed comes, or the time has come.
    fn wait(&self, until: Option<Duration>, connected: bool) {
        let patience = self.relay.as_ref().and_then(Relay::patience);
        let left = until.map(|until| until.saturating_sub(now()));
        let wait = match left.into_iter().chain(patience).min() {
            _ if self.resume => PollTimeout::ZERO,
            None => PollTimeout::NONE,
            Some(left) => {
                let left = left.as_micros().div_ceil(1000);
                PollTimeout::try_from(left.min(i32::MAX as u128)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut ready = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if connected {
            ready.push(PollFd::new(self.control.as_fd(), PollFlags::POLLIN));
        }
        if let Some(relay) = &self.relay {
            relay.poll(&mut ready);
        }
        if let Some(log) = &self.log {
            log.poll(&mut ready);
        }
        // Interrupted or refused, the loop looks for itself.
        let _ = poll(&mut ready, wait);
    }

    /// Stops us as a job, with the terminal as the caller had it. The guest's first process has stopped already.
    fn stop(&mut self, signal: Signal) {
        if let Some(relay) = &mut self.relay {
            relay.copy();
            relay.give_back();
        }
        // Not SIGSTOP: where there is no shell to continue us, the host does not stop us either.
        let mut stop = SigSet::empty();
        stop.add(signal);
        let _ = stop.thread_unblock();
        let _ = raise(signal);
        if signal == Signal::SIGTSTP {
            let _ = stop.thread_block();
        }
        self.resume = true;
    }

    /// SIGTSTP, from outside, stops the sandbox as a whole.
    fn suspend(&mut self) {
        let _ = kill(self.sentry.pid, Signal::SIGSTOP);
        self.stop(Signal::SIGTSTP);
    }

    /// Goes on after a stop.
    fn wake(&mut self) {
        let _ = kill(self.sentry.pid, Signal::SIGCONT);
        if let Some(relay) = &mut self.relay
            && !relay.take()
        {
            self.tell(ControlMessage::AwaitDemand);
        }
        self.resize();
        self.send(Signal::SIGCONT);
    }

    fn resize(&self) {
        match &self.relay {
            Some(relay) => self.tell(ControlMessage::Resize(relay.size())),
            None => self.send(Signal::SIGWINCH),
        }
    }

    /// The guest wants the terminal: in the background that stops us.
    fn give_terminal(&mut self) {
        if let Some(relay) = &mut self.relay
            && !relay.want()
        {
            self.stop(Signal::SIGTTIN);
        }
    }

    /// Prints what is left, unless a signal comes that says not to wait for the terminal, and gives the terminal back.
    fn finish(&mut self) {
        while let Some(relay) = &mut self.relay
            && relay.has_output()
        {
            relay.copy();
            self.wait(None, false);
            if let Ok(Some(info)) = self.signals.read_signal()
                && FORWARDED.iter().any(|signal| *signal as u32 == info.ssi_signo)
                && info.ssi_signo != Signal::SIGWINCH as u32
            {
                break;
            }
        }
        self.relay = None;
    }

    /// Collects children that have ended: how the sentry did, and the gofer, if they have.
    fn reap(&mut self) -> (Option<WaitStatus>, Option<WaitStatus>) {
        let (mut sentry_end, mut gofer_end) = (None, None);
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(_) => return (sentry_end, gofer_end),
                Ok(status) if status.pid() == Some(self.sentry.pid) => sentry_end = Some(status),
                Ok(status) if status.pid().is_some() && status.pid() == self.gofer => {
                    self.gofer = None;
                    gofer_end = Some(status);
                }
                Ok(_) => {}
            }
        }
    }

    /// Ends whatever is left, and waits until it is gone.
    fn clean_up(self) {
        let Sandbox {
            sentry,
            gofer,
            signals,
            relay,
            cgroup,
            ..
        } = self;
        drop(relay);
        if let Some(gofer) = gofer {
            let _ = kill(gofer, Signal::SIGKILL);
        }
        let mut ended = match sentry.lifeline {
            // The sentry is the init of its PID namespace: its end is that of all processes in it.
            None => reap::end(sentry.pid, &signals),
            // The guard does it; if it cannot, what it leaves comes to us.
            Some(lifeline) => {
                drop(lifeline);
                let ended = reap::wait(sentry.pid, &signals);
                if ended {
                    spawn::end_children();
                }
                ended
            }
        };
        if let Some(gofer) = gofer {
            ended &= reap::wait(gofer, &signals);
        }
        if !ended {
            complain("a file system of the host does not answer; our processes that wait for it end when it does");
        }
        // Now that nobody is in it.
        drop(cgroup);
    }
}

fn describe(part: &str, status: WaitStatus) -> String {
    match status {
        WaitStatus::Signaled(_, Signal::SIGSYS, _) => {
            format!("the {part} made a host call outside its list and was ended (--debug-filter-log names the call)")
        }
        // Not by us.
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => {
            format!("the {part} was ended by SIGKILL: by somebody, or by the host or a container for want of memory")
        }
        WaitStatus::Signaled(_, signal, _) => format!("the {part} was ended by {}", signal.as_str()),
        WaitStatus::Exited(_, code) => format!("the {part} ended unexpectedly (code {code})"),
        _ => format!("the {part} ended unexpectedly"),
    }
}

/// Starts a sentry that only reports its isolation (`sentry hardening`).
pub fn probe(platform: PlatformChoice) -> Result<Report, String> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| error.to_string())?;
    let plan = Plan {
        kernel: None,
        platform,
        trees: None,
        strace: None,
        changes: None,
        terminal: None,
        events: None,
        debug_filter: false,
        null: &null,
        cgroup: None,
    };
    let mut sandbox = plan.start(now()).map_err(|error| error.to_string())?;
    let outcome = sandbox.supervise(Some(Duration::from_secs(10)));
    sandbox.clean_up();
    match outcome {
        Outcome::Reported(Report::Ended {
            status: ExitStatus::Failed(what),
            ..
        }) => Err(what),
        Outcome::Reported(report) => Ok(report),
        Outcome::Broken(what) | Outcome::Told(what) => Err(what),
        Outcome::Ended => Err("the sentry does not answer".into()),
    }
}
