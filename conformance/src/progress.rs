//! How far a run is: on standard error, in place at a terminal, else a line now and then.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use crate::report::Report;

/// Between two lines where standard error is no terminal.
const LINES: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Makes place for another line.
pub fn clear() {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Shows it until all units are done.
pub fn show(report: &Report, units: usize) {
    let terminal = stderr().is_terminal();
    let start = Instant::now();
    let mut shown = start;
    loop {
        let (done, [passed, failed, skipped]) = report.so_far();
        if done >= units {
            break;
        }
        let text = format!(
            "{done} of {units} batches, {passed} passed, {failed} failed, {skipped} skipped, {} s",
            start.elapsed().as_secs()
        );
        if terminal {
            eprint!("\r\x1b[K{text}");
        } else if shown.elapsed() >= LINES {
            shown = Instant::now();
            eprintln!("{text}");
        }
        std::thread::sleep(LOOK);
    }
    clear();
}
