//! The guest test program: many named cases, each of which must pass on Linux itself.
//!
//! `guest list` prints their names; `guest run NAME` runs one in this process; `guest batch NAME…` runs each in a
//! child of its own and prints one line a case: `pass NAME`, `skip NAME reason` or `fail NAME what`.
//! `guest random …` runs random sequences of calls ([`random`]), `guest fuzz …` random calls ([`fuzz`]).
//! `guest attempt …` tries to get at the host ([`attempts`]). `guest hog …` takes all that is to be had ([`hogs`]).
//! `guest trace …` counts the host calls of a sandbox's processes ([`trace`]).
//! `guest tool …` are small programs that cases and other tests start.

mod attempts;
mod cases;
mod fuzz;
mod hogs;
mod random;
mod sys;
mod tool;
mod trace;

use sys::{FAILED, SKIPPED, exit};

/// A test case. `name` begins with its family: `family/what_is_tested`.
pub struct Case {
    /// The name.
    pub name: &'static str,
    /// The test; it fails by not returning.
    pub run: fn(),
}

/// Lists a family's cases: `cases!("pipe": round_trip, full);`
#[macro_export]
macro_rules! cases {
    ($family:literal: $($name:ident),* $(,)?) => {
        /// The cases of this family.
        pub const CASES: &[$crate::Case] = &[$($crate::Case { name: concat!($family, "/", stringify!($name)), run: $name }),*];
    };
}

fn find(name: &str) -> &'static Case {
    match cases::all().find(|c| c.name == name) {
        Some(case) => case,
        None => {
            eprintln!("no case is called {name}");
            exit(2)
        }
    }
}

/// Runs one case in a fresh directory below `$GUEST_TMP` (`/tmp`).
fn run(name: &str) -> ! {
    let case = find(name);
    std::panic::set_hook(Box::new(|info| {
        eprintln!("panic: {info}");
        exit(FAILED);
    }));
    let base = std::env::var("GUEST_TMP").unwrap_or_else(|_| "/tmp".into());
    let dir = format!("{base}/guest-{}-{}", sys::getpid(), name.replace('/', "-"));
    if let Err(e) = std::fs::create_dir(&dir).and_then(|()| std::env::set_current_dir(&dir)) {
        eprintln!("{dir}: {e}");
        exit(FAILED);
    }
    (case.run)();
    exit(0)
}

/// How many seconds a case may take: far more than any needs where disks and processors are busy with other things.
const PATIENCE: u64 = 60;

/// Runs one case in a child, with a limit of time, and says how it ended.
fn run_in_child(name: &str) {
    let (r, w) = sys::pipe2(libc::O_CLOEXEC);
    let pid = sys::child(|| {
        sys!(libc::SYS_setsid);
        sys!(libc::SYS_dup2, w, 1);
        sys!(libc::SYS_dup2, w, 2);
        run(name)
    });
    sys::close(w);
    let mut output = Vec::new();
    let mut ended = None;
    let limit = sys::now() + PATIENCE * 1_000_000_000;
    while ended.is_none() && sys::now() < limit {
        let mut status = 0i32;
        if sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::WNOHANG, 0) == i64::from(pid) {
            ended = Some(status);
            break;
        }
        let mut poll = libc::pollfd {
            fd: r,
            events: libc::POLLIN,
            revents: 0,
        };
        if sys!(libc::SYS_poll, &mut poll as *mut _, 1, 2) > 0 {
            if poll.revents & libc::POLLIN != 0 {
                output.extend(sys::read(r, 4096));
            } else {
                sys::sleep_ms(1);
            }
        }
    }
    // Whatever the case left running goes with its session's process group.
    sys::kill(-pid, libc::SIGKILL);
    if ended.is_none() {
        sys::kill(pid, libc::SIGKILL);
        sys::wait(pid);
    }
    let mut poll = libc::pollfd {
        fd: r,
        events: libc::POLLIN,
        revents: 0,
    };
    while sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0) > 0 && poll.revents & libc::POLLIN != 0 {
        output.extend(sys::read(r, 4096));
    }
    sys::close(r);
    let output = String::from_utf8_lossy(&output).trim().replace('\n', " | ");
    match ended {
        Some(0) => println!("pass {name}"),
        Some(s) if libc::WIFEXITED(s) && libc::WEXITSTATUS(s) == SKIPPED => println!("skip {name} {output}"),
        Some(s) if libc::WIFEXITED(s) && libc::WEXITSTATUS(s) == FAILED => println!("fail {name} {output}"),
        Some(s) if libc::WIFSIGNALED(s) => println!("fail {name} killed by signal {} {output}", libc::WTERMSIG(s)),
        Some(s) => println!("fail {name} wait status {s:#x} {output}"),
        None => println!("fail {name} still running after {PATIENCE} s {output}"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.get(1..).unwrap_or_default() {
        ["list"] => cases::all().for_each(|c| println!("{}", c.name)),
        ["run", name] => run(name),
        ["batch", names @ ..] => names.iter().for_each(|n| {
            println!("start {n}");
            run_in_child(n);
        }),
        ["random", kind, seed, count] => random::many(kind, seed, count),
        ["random-steps", kind, seed, steps] => random::steps(kind, seed, steps),
        ["attempts"] => attempts::names().for_each(|name| println!("{name}")),
        ["attempt", name, victim, socket] => attempts::run(name, victim, socket),
        ["fuzz", seed, calls, place] => fuzz::many(seed, calls, place),
        ["fuzz-one", seed] => fuzz::one(seed),
        ["trace", rows, report, guests, host, argv @ ..] if !argv.is_empty() => {
            trace::main(rows, report, guests, host, argv);
        }
        ["hogs"] => hogs::names().for_each(|name| println!("{name}")),
        ["hog", name, seconds, report] => hogs::run(name, seconds, report),
        ["tool", name, rest @ ..] => tool::run(name, rest),
        _ => {
            eprintln!(
                "usage: guest list | run NAME | batch NAME… | random KIND SEED COUNT | random-steps KIND SEED STEPS | attempts | attempt NAME VICTIM SOCKET | fuzz SEED CALLS DIR | fuzz-one SEED | trace ROWS REPORT follow|leave as-it-is|refusing CMD ARG… | hogs | hog NAME SECONDS REPORT | tool NAME ARG…"
            );
            exit(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases that the coverage files name exist.
    #[test]
    fn coverage_names_cases() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../coverage");
        let mut files = 0;
        for entry in std::fs::read_dir(dir).expect("coverage files") {
            let path = entry.expect("coverage files").path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).expect("a text");
            let calls: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            for (call, entry) in calls.as_object().expect("calls by name") {
                for name in entry["tests"].as_array().into_iter().flatten() {
                    let name = name.as_str().unwrap_or_default();
                    assert!(
                        cases::all().any(|case| case.name == name),
                        "{}: {call}: no case is called {name:?}",
                        path.display()
                    );
                }
            }
        }
        assert!(files > 30, "{files} files");
    }
}
