//! Printing of system calls as strace(1) does, and the list of what is implemented.

mod coverage;
mod decode;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sentry_lock::{Mutex, rank};
use sentry_platform::SyscallArgs;

use crate::config::StraceConfig;
use crate::signal::SigInfo;
use crate::syscalls::{self, SysResult};
use crate::task::{Pid, Thread};

pub use coverage::{Coverage, Status, coverage};

/// Where the lines go, and which calls are printed.
pub struct Tracer {
    /// Names; empty: all.
    calls: BTreeSet<String>,
    output: Mutex<File, rank::TraceOutput>,
    /// What calls that have begun look like: arguments are read before the call can change them.
    begun: Mutex<BTreeMap<Pid, String>, rank::TraceBegun>,
}

impl Tracer {
    /// A tracer that writes to a descriptor.
    pub fn new(config: &StraceConfig, output: OwnedFd) -> Tracer {
        let calls = config.calls.iter().cloned().collect();
        Tracer {
            calls,
            output: Mutex::new(output.into()),
            begun: Mutex::default(),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.calls.is_empty() || self.calls.contains(name)
    }

    /// Writes a line. A reader that went away is no reason to stop the guest.
    fn line(&self, tid: Pid, text: &str) {
        let line = format!("[pid {tid:>5}] {text}\n");
        let _ = self.output.lock().write_all(line.as_bytes());
    }

    /// Prints a signal that is delivered.
    pub fn signal(&self, tid: Pid, info: &SigInfo) {
        let name = decode::signal_name(info.signal.number());
        self.line(
            tid,
            &format!("--- {name} {{si_signo={name}, si_code={}}} ---", info.code),
        );
    }

    /// Prints the end of a thread, and a call that it never came back from.
    pub fn ended(&self, tid: Pid, text: &str) {
        if let Some(begun) = self.begun.lock().remove(&tid) {
            self.line(tid, &format!("{begun} = ?"));
        }
        self.line(tid, &format!("+++ {text} +++"));
    }
}

/// The name of a call, implemented or not.
fn name_of(nr: u64) -> String {
    sentry_abi::syscalls::name(nr).map_or_else(|| format!("syscall_{nr:#x}"), str::to_owned)
}

/// Notes a call that begins.
pub fn enter(thread: &Arc<Thread>, args: &SyscallArgs) {
    let Some(tracer) = thread.kernel().tracer.get() else {
        return;
    };
    let name = name_of(args.nr);
    if !tracer.wants(&name) {
        return;
    }
    let spec = syscalls::lookup(args.nr).map_or(&[][..], |row| row.3);
    let text = format!("{name}({}", decode::arguments(thread, spec, args));
    let done = matches!(args.nr as i64, libc::SYS_exit | libc::SYS_exit_group);
    if done {
        tracer.line(thread.tid(), &format!("{text}) = ?"));
    } else {
        tracer.begun.lock().insert(thread.tid(), text);
    }
}

/// Prints a call that has ended.
pub fn exit(thread: &Arc<Thread>, args: &SyscallArgs, result: &SysResult) {
    let Some(tracer) = thread.kernel().tracer.get() else {
        return;
    };
    let Some(begun) = tracer.begun.lock().remove(&thread.tid()) else {
        return;
    };
    let spec = syscalls::lookup(args.nr).map_or(&[][..], |row| row.3);
    let out = decode::results(thread, spec, args, result);
    let outcome = decode::outcome(args.nr, result);
    tracer.line(thread.tid(), &format!("{begun}{out}) = {outcome}"));
}
