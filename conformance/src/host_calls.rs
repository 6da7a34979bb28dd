//! Host calls as they are made: every process of a sandbox is traced with ptrace(2) while guests work and make random
//! calls, and what it asks of the host is compared with what `sentry hardening --json` publishes. The filters would end
//! a process for another call; this looks at it from outside, at calls that no filter holds, and at what is listed and
//! never needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use serde::Deserialize;

use crate::host::{Host, Output, Setup, brief, left};
use crate::report::Outcome;
use crate::{On, Unit};

/// An ordinary user, whose gofer has a process for the owners of files.
const USER: u32 = 1000;
/// `--calls` above this, which is the default, makes a long run: so many calls of the fuzzer, and all guest cases.
const LONG: u64 = 200_000;
/// Calls of the fuzzer otherwise.
const CALLS: u64 = 10_000;

const NAME: &str = "host-calls/listed";

/// uretprobe and uprobe, which newer hosts let past every filter. They belong to the host's own trampolines, and called
/// from elsewhere they end in SIGILL or an error.
const PAST_FILTERS: [i64; 2] = [335, 336];

/// The names of the suite's cases.
pub fn names() -> Vec<String> {
    vec![NAME.into()]
}

/// One unit for each platform.
pub fn units(host: &Host) -> Vec<Unit<'_>> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for on in host.options.on.iter().copied().filter(|&on| on != On::Native) {
        if host.options.wants(NAME) {
            units.push(Box::new(move |report| {
                let start = Instant::now();
                if !nix::unistd::geteuid().is_root() {
                    report.add(on, NAME, Outcome::Skip, "needs root, to trace", start.elapsed());
                    return;
                }
                let (outcome, detail) = match compare(host, on) {
                    Ok(detail) => (Outcome::Pass, detail),
                    Err(message) => (Outcome::Fail, message),
                };
                report.add(on, NAME, outcome, detail, start.elapsed());
            }));
        }
    }
    units
}

#[derive(Deserialize)]
struct Published {
    host_calls: BTreeMap<String, Vec<Row>>,
}

#[derive(Deserialize)]
struct Row {
    number: i64,
    name: String,
    #[serde(default)]
    when: Vec<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    arg: usize,
    mask: u64,
    equals: Option<u64>,
    at_most: Option<u64>,
}

impl Condition {
    fn holds(&self, value: u64) -> bool {
        let value = value & self.mask;
        self.equals.is_none_or(|equals| value == equals) && self.at_most.is_none_or(|most| value <= most)
    }
}

impl Row {
    fn matters(&self) -> BTreeSet<usize> {
        self.when.iter().flatten().map(|condition| condition.arg).collect()
    }

    fn allows(&self, args: &BTreeMap<usize, u64>) -> bool {
        let holds = |condition: &Condition| args.get(&condition.arg).is_some_and(|value| condition.holds(*value));
        self.when.is_empty() || self.when.iter().any(|all| all.iter().all(holds))
    }
}

fn published(host: &Host, on: On) -> Result<Published, String> {
    let sentry = host.bin().join("sentry").to_string_lossy().into_owned();
    let argv = [sentry.as_str(), "hardening", "--json", "--platform", on.name()].map(String::from);
    let out = host.run(On::Native, &Setup::default(), &argv);
    if out.code() != Some(0) {
        return Err(format!("sentry hardening: {}", out.describe()));
    }
    serde_json::from_slice(&out.stdout).map_err(|error| format!("sentry hardening --json: {error}"))
}

/// One traced sandbox.
struct Scene {
    name: &'static str,
    /// Options of `sentry exec`.
    options: Vec<String>,
    argv: Vec<String>,
    who: Who,
    writable: bool,
}

/// Whose sandbox it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    /// An ordinary user, whose gofer has a process for the owners of files.
    User,
    /// Root, where the host refuses namespaces: a guard stands before the sentry.
    Refused,
}

/// The processes that a sandbox must have.
fn expected(on: On, scene: &Scene) -> Vec<&'static str> {
    let mut kinds = vec!["supervisor", "gofer", "sentry"];
    if on == On::Systrap {
        kinds.push("stub");
    }
    match scene.who {
        Who::Root => {}
        Who::User => kinds.push("owners"),
        Who::Refused => kinds.push("guard"),
    }
    kinds
}

/// What programs do: pipes, jobs, files of each kind, a compiler.
const PROGRAMS: &str = "cd \"$1\" && i=0; while [ $i -lt 9 ]; do i=$((i + 1)); echo $i | cat > f$i; done; \
    mkdir -p d/e && mv f1 d/e/g && ln f2 h && ln -s f3 s && chmod 600 f2 && touch -d 2001-01-01 f4 && rm f5 && \
    truncate -s 100000 f6 && cp f6 f7 && ls -lR . && find /usr/share/doc -maxdepth 1 | wc -l; \
    tar cf t.tar d && tar tf t.tar; \
    flock f2 true; df . ; (sleep 0.1 & wait); timeout 0.1 sleep 5; \
    if [ $2 = compile ]; then echo 'int main() { return 0; }' > a.c && cc a.c -o a.out && ./a.out; fi; \
    perl -e 'fork for 1..3; 1 while wait > 0'; sync f2; stat f2 >/dev/null; test -r /etc/shadow; echo done";

fn scenes(host: &Host) -> Result<Vec<Scene>, String> {
    let guest = host.guest();
    let bin = host.bin().to_string_lossy().into_owned();
    let open = |prefix: &str| -> Result<String, String> {
        let path = host.directory(prefix);
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, all).map_err(|error| error.to_string())?;
        Ok(path.to_string_lossy().into_owned())
    };
    let cases = host.run(On::Native, &Setup::default(), &[guest.clone(), "list".into()]);
    // A long run, by hand, has more of everything.
    let long = host.options.calls > LONG;
    let step = if long { 1 } else { 40 };
    let cases = String::from_utf8_lossy(&cases.stdout);
    let cases = cases
        .lines()
        .filter(|name| long || !SLOW.iter().any(|slow| name.starts_with(slow)));
    let cases: Vec<String> = cases.step_by(step).map(String::from).collect();
    let fuzzed = if long { host.options.calls } else { CALLS };
    let mut scenes = Vec::new();
    let fuzz = |place: &str| {
        ["fuzz", "5e27", &(fuzzed / 2).to_string(), place]
            .map(String::from)
            .to_vec()
    };
    for (who, writable) in [
        (Who::Root, true),
        (Who::User, true),
        (Who::Root, false),
        (Who::Refused, false),
    ] {
        let shared = open("shared")?;
        let diff = format!("{}/diff.tar", open("diff")?);
        let mut options = vec!["--ro".into(), bin.clone(), "--memory".into(), "2G".into()];
        let place = if writable {
            options.extend(["--rw".into(), format!("{shared}:/writable")]);
            "/writable"
        } else {
            options.extend(["--diff-out".into(), diff, "--cpus".into(), "2".into()]);
            options.extend(["--cpu-time".into(), "1000".into(), "--summary".into()]);
            "/tmp"
        };
        options.extend([
            "--timeout".into(),
            "1000".into(),
            "--events".into(),
            format!("{shared}/events"),
        ]);
        let scene = |name, argv| Scene {
            name,
            options: options.clone(),
            argv,
            who,
            writable,
        };
        let compile = if who == Who::Root { "compile" } else { "do-not" };
        let program = ["sh", "-c", PROGRAMS, "sh", place, compile].map(String::from).to_vec();
        let batch = [
            "env".into(),
            format!("GUEST_TMP={place}"),
            guest.clone(),
            "batch".into(),
        ];
        let batch: Vec<String> = batch.into_iter().chain(cases.iter().cloned()).collect();
        let fuzz: Vec<String> = [guest.clone()].into_iter().chain(fuzz(place)).collect();
        match (who, writable) {
            (Who::Root, true) => {
                scenes.extend([scene("programs", program), scene("cases", batch), scene("fuzz", fuzz)]);
            }
            (Who::User, _) | (Who::Refused, _) => {
                scenes.push(scene("programs", program));
                scenes.extend(long.then(|| scene("cases", batch)));
            }
            (Who::Root, false) => {
                scenes.extend([scene(TERMINAL, program), scene("fuzz", fuzz)]);
                scenes.extend(long.then(|| scene("cases", batch)));
            }
        }
    }
    Ok(scenes)
}

/// The scene whose sandbox has a terminal.
const TERMINAL: &str = "terminal";

/// Cases that wait long, and use no host call that others do not.
const SLOW: &[&str] = &["tty/", "large/"];

/// What was seen: by kind of process (as published) and number, how often.
#[derive(Default)]
struct Seen {
    calls: BTreeMap<(String, i64), u64>,
    trapped: u64,
    processes: u64,
    /// How long each scene took.
    scenes: String,
}

fn compare(host: &Host, on: On) -> Result<String, String> {
    let published = published(host, on)?;
    let mut seen = Seen::default();
    let mut wrong = Vec::new();
    for scene in scenes(host)? {
        let start = Instant::now();
        if let Err(message) = trace(host, on, &scene, &published, &mut seen) {
            let mode = if scene.writable { "rw" } else { "ro" };
            wrong.push(format!("{} as {:?}, {mode}: {message}", scene.name, scene.who));
        }
        let _ = write!(
            seen.scenes,
            " {} {:?} {:.1} s,",
            scene.name,
            scene.who,
            start.elapsed().as_secs_f64()
        );
    }
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    Ok(summary(&published, on, &seen))
}

/// The published list that a traced kind is held to.
fn list<'a>(published: &'a Published, kind: &str, writable: bool) -> &'a [Row] {
    let name = match kind {
        "gofer" if writable => "gofer_rw",
        // The guard and the keeper of the cgroup wait, as the supervisor does.
        "guard" => "supervisor",
        other => other,
    };
    published.host_calls.get(name).map_or(&[], Vec::as_slice)
}

fn trace(host: &Host, on: On, scene: &Scene, published: &Published, seen: &mut Seen) -> Result<(), String> {
    let own = host.own_sentry("host-calls")?;
    let dir = host.directory("trace");
    let (rows, report) = (dir.join("rows"), dir.join("report"));
    let mut text = String::new();
    for kind in ["supervisor", "guard", "gofer", "owners", "sentry", "stub"] {
        for row in list(published, kind, scene.writable) {
            let _ = write!(text, "{kind} {}", row.number);
            for index in row.matters() {
                let _ = write!(text, " {index}");
            }
            text.push('\n');
        }
    }
    std::fs::write(&rows, text).map_err(|error| error.to_string())?;
    let out = run(host, on, scene, &own, &rows, &report);
    let text = std::fs::read_to_string(&report)
        .map_err(|error| format!("the tracer did not report: {error}; {}", out.describe()))?;
    let mut wrong = judge(on, scene, published, &text, seen);
    // The cases tell of themselves elsewhere.
    if !matches!(out.code(), Some(0)) {
        wrong.push(format!(
            "the sandbox did not end well: {:?}, {}",
            out.code(),
            brief(&out.stderr)
        ));
    }
    left(&own)?;
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join(", "))
    }
}

fn run(host: &Host, on: On, scene: &Scene, own: &Path, rows: &Path, report: &Path) -> Output {
    let mut argv = vec![host.guest(), "trace".into()];
    argv.extend([rows, report].map(|path| path.to_string_lossy().into_owned()));
    // On ptrace guests have a tracer already, the sentry.
    let guests = if on == On::Ptrace { "leave" } else { "follow" };
    let host_is = if scene.who == Who::Refused {
        "refusing"
    } else {
        "as-it-is"
    };
    argv.extend([guests, host_is].map(String::from));
    if scene.who == Who::User {
        let user = USER.to_string();
        argv.extend(["/usr/bin/setpriv", "--clear-groups", "--reuid", &user, "--regid", &user].map(String::from));
    }
    argv.extend([own.to_string_lossy().as_ref(), "exec", "--platform", on.name()].map(String::from));
    if let Some(workers) = host.options.workers {
        argv.extend(["--workers".into(), workers.to_string()]);
    }
    argv.extend(scene.options.iter().cloned());
    argv.push("--".into());
    argv.extend(scene.argv.iter().cloned());
    if scene.name == TERMINAL {
        let words: Vec<String> = argv
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
            .collect();
        argv = ["/usr/bin/script", "-qec", &words.join(" "), "/dev/null"]
            .map(String::from)
            .to_vec();
    }
    let setup = Setup {
        limit: 60 + host.options.calls / 250,
        stdin: Some(b"\n".to_vec()),
        cwd: Some("/usr".into()),
        ..Setup::default()
    };
    host.run(On::Native, &setup, &argv)
}

/// What is wrong in a tracer's report.
fn judge(on: On, scene: &Scene, published: &Published, text: &str, seen: &mut Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut kinds, mut called, mut unlisted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok()).unwrap_or(-1);
        match words.as_slice() {
            ["call", kind, _, _, args @ ..] => {
                let args = args.iter().filter_map(|arg| {
                    let (index, value) = arg.split_once(":0x")?;
                    Some((index.parse().ok()?, u64::from_str_radix(value, 16).ok()?))
                });
                let args: BTreeMap<usize, u64> = args.collect();
                called.insert(kind.to_string());
                let table = list(published, kind, scene.writable);
                let row = table.iter().find(|row| row.number == number(2));
                if !PAST_FILTERS.contains(&number(2))
                    && !row.is_some_and(|row| row.allows(&args))
                    && unlisted.insert((kind.to_string(), number(2)))
                {
                    wrong.push(format!("the {kind} makes host call {} with {args:x?}", number(2)));
                }
                let name = if *kind == "gofer" && scene.writable {
                    "gofer_rw"
                } else {
                    kind
                };
                *seen.calls.entry((name.into(), number(2))).or_default() += number(3) as u64;
            }
            ["trapped", _] => seen.trapped += number(1) as u64,
            ["process", kind, _] => {
                kinds.insert(kind.to_string());
                seen.processes += number(2) as u64;
            }
            ["unfiltered", kind, _]
                if !(matches!(*kind, "supervisor" | "guard") || *kind == "stub" && on == On::Ptrace) =>
            {
                wrong.push(format!("{} of kind {kind} had no filter", number(2)));
            }
            ["killed", kind, _] => wrong.push(format!("{} of kind {kind} were ended by their filters", number(2))),
            ["astray", _] if PAST_FILTERS.contains(&number(1)) => {}
            ["astray", _] => wrong.push(format!("a guest made host call {} without the stub", number(1))),
            _ => {}
        }
    }
    let missing: Vec<_> = expected(on, scene)
        .into_iter()
        .filter(|kind| !kinds.contains(*kind) || !called.contains(*kind))
        .collect();
    if !missing.is_empty() {
        wrong.push(format!("not seen: {missing:?}"));
    }
    wrong
}

fn summary(published: &Published, on: On, seen: &Seen) -> String {
    let mut text = format!(
        "{} {} processes, {} guest calls trapped",
        seen.scenes.trim_start(),
        seen.processes,
        seen.trapped
    );
    for (kind, rows) in &published.host_calls {
        if kind == "stub" && on == On::Ptrace {
            continue;
        }
        let count = |row: &&Row| seen.calls.get(&(kind.clone(), row.number)).copied().unwrap_or(0);
        let total: u64 = rows.iter().map(|row| count(&row)).sum();
        let never: Vec<&str> = rows
            .iter()
            .filter(|row| count(row) == 0)
            .map(|row| row.name.as_str())
            .collect();
        let _ = write!(text, "; {kind}: {total} calls of {} kinds", rows.len() - never.len());
        if !never.is_empty() {
            let _ = write!(text, ", never {}", never.join(" "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = r#"{ "host_calls": { "sentry": [
        { "number": 1, "name": "write" },
        { "number": 44, "name": "sendto", "when": [[{ "arg": 4, "mask": 18446744073709551615, "equals": 0 }]] },
        { "number": 72, "name": "fcntl", "when": [
            [{ "arg": 1, "mask": 4294967295, "equals": 3 }],
            [{ "arg": 1, "mask": 4294967295, "at_most": 1 }, { "arg": 2, "mask": 4, "equals": 0 }]
        ] }
    ], "gofer": [], "supervisor": [{ "number": 0, "name": "read" }] } }"#;

    fn judged(report: &str) -> Vec<String> {
        let published: Published = serde_json::from_str(LISTS).unwrap();
        let scene = Scene {
            name: "test",
            options: Vec::new(),
            argv: Vec::new(),
            who: Who::Root,
            writable: false,
        };
        // Not whether everybody was there.
        let mut wrong = judge(On::Ptrace, &scene, &published, report, &mut Seen::default());
        wrong.retain(|message| !message.starts_with("not seen"));
        wrong
    }

    #[test]
    fn what_is_listed_is_right() {
        let report = "call sentry 1 5\ncall sentry 44 1 4:0x0\ncall sentry 72 1 1:0xff00000003 2:0x4\n\
            call sentry 72 1 1:0x1 2:0xb\ncall supervisor 0 1\nunfiltered supervisor 1\ncall stub 335 1 0:0x0";
        assert_eq!(judged(report), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_listed_is_wrong() {
        for line in [
            "call sentry 2 1 0:0x0",
            "call gofer 1 1",
            "call sentry 44 1 4:0x100000000",
            "call sentry 72 1 1:0x0 2:0x4",
            "unfiltered gofer 1",
            "killed sentry 1",
            "astray 39",
        ] {
            assert_eq!(judged(line).len(), 1, "{line}");
        }
    }

    #[test]
    fn who_made_no_call_was_not_seen() {
        let published: Published = serde_json::from_str(LISTS).unwrap();
        for scene in [Who::Root, Who::User, Who::Refused] {
            let scene = Scene {
                name: "test",
                options: Vec::new(),
                argv: Vec::new(),
                who: scene,
                writable: false,
            };
            let report =
                "process supervisor 1\nprocess gofer 1\nprocess sentry 1\ncall supervisor 0 1\ncall sentry 1 1";
            assert_eq!(
                judge(On::Systrap, &scene, &published, report, &mut Seen::default()).len(),
                1
            );
        }
    }
}
