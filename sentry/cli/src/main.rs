//! The `sentry` executable: runs programs on a kernel in user space.
//!
//! One file in several roles. `sentry exec` is the supervisor; it starts the same file again as `sentry gofer`, the
//! only process of a sandbox that can name host files, and as `sentry boot`, the sentry: the kernel itself.
#![forbid(unsafe_code)]

mod args;
mod boot;
mod cgroup;
mod changes;
mod check;
mod events;
mod gofer;
mod hardening;
mod host_calls;
mod isolation;
mod memory;
mod parts;
mod profile;
mod reap;
mod relay;
mod spawn;
mod supervisor;
mod syscalls;
mod tar;
mod terminal;
mod view;

use std::process::ExitCode;

use clap::Parser;
use nix::sys::signal::Signal;
use sentry_host::process::{self, Disposition};

use args::{Cli, Command, Profile};

fn main() -> ExitCode {
    // The roles first: they do not need the command line's parser, and their time counts at every start.
    match std::env::args_os().nth(1).as_ref().and_then(|role| role.to_str()) {
        Some("boot") => process::exit_now(boot::main().into()),
        Some("gofer") => process::exit_now(gofer::main().into()),
        _ => {}
    }
    // A file that gets too large for RLIMIT_FSIZE is an error (EFBIG), of which we can tell.
    let _ = process::set_disposition(Signal::SIGXFSZ, Disposition::Ignore);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { supervisor::FAILED } else { 0 };
            // A reader that is gone is no reason to fail.
            let _ = error.print();
            return code.into();
        }
    };
    let code = match cli.command {
        Command::Exec(exec) => supervisor::exec(&exec),
        Command::Hardening(hardening) => hardening::main(&hardening),
        Command::Syscalls { json } => syscalls::main(json),
        Command::Check { trace } => check::main(&trace),
        Command::Profile {
            command: Profile::Check { file },
        } => profile::check(&file),
    };
    code.into()
}
