//! Many sandboxes at once, started as fast as they go, each doing work: how long they take, what they use, what is left.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::report::figure;
use crate::sandbox::{Scratch, System};
use crate::tree;

/// After this, a sandbox counts as failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Forks, pipes and files, then waits until it is told to end.
const WORK: &str = "f=/tmp/crowd-$$; i=0; while [ $i -lt 20 ]; do i=$((i + 1)); echo $i >$f; \
    cat $f | grep -q $i || exit 1; done; rm $f; echo ready; read -r line; exit 0";

/// Runs `count` of them on each system; the table.
pub fn run(systems: &[System], scratch: &Scratch, count: usize) -> Result<String, String> {
    let mut text = format!(
        "{count} at once, each: 20 times a file, two processes and a pipe in sh; then all wait, then all end\n\n"
    );
    let _ = writeln!(
        text,
        "{:10} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>6}",
        "system", "started ms", "ready, first", "median", "last", "ended ms", "PSS MiB", "tables MiB", "left"
    );
    for system in systems {
        let crowd = crowd(system, scratch, count)?;
        let ms = |time: Duration| figure(time.as_secs_f64() * 1e3);
        let each = |bytes: u64| figure(bytes as f64 / count as f64 / f64::from(1 << 20));
        let at = |part: usize| crowd.ready.get(part * (count - 1) / 2).copied().unwrap_or_default();
        let _ = writeln!(
            text,
            "{:10} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>6}",
            system.on.name(),
            ms(crowd.started),
            ms(at(0)),
            ms(at(1)),
            ms(at(2)),
            ms(crowd.ended),
            each(crowd.memory),
            each(crowd.tables),
            crowd.left
        );
    }
    text.push_str(
        "\nPSS and page tables are those of one sandbox: all its processes, a share of what it shares with others.\n",
    );
    Ok(text)
}

struct Crowd {
    /// Until the last one was started.
    started: Duration,
    /// From the beginning until each one's work was done, in order.
    ready: Vec<Duration>,
    /// From the word to end until the last one had.
    ended: Duration,
    memory: u64,
    tables: u64,
    /// Processes that were there afterwards.
    left: usize,
}

fn crowd(system: &System, scratch: &Scratch, count: usize) -> Result<Crowd, String> {
    let begin = Instant::now();
    let mut children = Children(Vec::new());
    let (ready, heard) = std::sync::mpsc::channel();
    for _ in 0..count {
        let mut child = system.conversation(scratch, &["/bin/sh", "-c", WORK])?;
        let output = child.stdout.take().ok_or("no pipe")?;
        let ready = ready.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = ready.send((line, begin.elapsed()));
        });
        children.0.push(child);
    }
    let started = begin.elapsed();
    let mut times = Vec::new();
    for _ in 0..count {
        match heard.recv_timeout(PATIENCE) {
            Ok((line, time)) if line == "ready\n" => times.push(time),
            Ok((line, _)) => return Err(format!("one said {line:?} instead of being ready")),
            Err(_) => return Err(format!("{} of {count} were not ready in time", count - times.len())),
        }
    }
    times.sort_unstable();
    let (mut memory, mut tables, mut family) = (0, 0, Vec::new());
    for child in &children.0 {
        memory += tree::memory(child.id())?;
        tables += tree::page_tables(child.id())?;
        family.extend(tree::family(child.id())?);
    }
    let end = Instant::now();
    for child in &mut children.0 {
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(b"end\n");
        }
    }
    let mut failed = 0;
    for child in &mut children.0 {
        let status = child.wait().map_err(|error| format!("waiting: {error}"))?;
        failed += usize::from(!status.success());
    }
    let ended = end.elapsed();
    if failed > 0 {
        return Err(format!("{failed} of {count} failed"));
    }
    // Who was killed with its sandbox may take a moment.
    std::thread::sleep(Duration::from_millis(200));
    let left = family
        .iter()
        .filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(Crowd {
        started,
        ready: times,
        ended,
        memory,
        tables,
        left: left.count(),
    })
}

/// Ends them if something fails.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if let Ok(None) = child.try_wait() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
