//! `sentry gofer`: the role that serves host files to the sentry.

use sentry_host::process;

use crate::parts::{self, Gofer};
use crate::supervisor::FAILED;
use crate::terminal::complain;

/// Runs the role. Returns only the code to exit with.
pub fn main() -> u8 {
    let (Some(configuration), Some(socket)) = (process::adopt(parts::CONFIG), process::adopt(parts::SENTRY)) else {
        eprintln!("sentry gofer: this is started by `sentry exec`");
        return FAILED;
    };
    process::close_from(parts::SENTRY + 1);
    let served = parts::read_configuration::<Gofer>(configuration)
        .map_err(|error| format!("gofer: configuration: {error}"))
        .and_then(|gofer| {
            let exports: Vec<_> = gofer.trees.into_iter().map(Into::into).collect();
            sentry_gofer::server::run(socket, &exports).map_err(|error| format!("gofer: {error}"))
        });
    match served {
        Ok(()) => 0,
        Err(what) => {
            complain(&what);
            FAILED
        }
    }
}
