//! What `sentry hardening --json` says of a host, compared with what the host says of a sandbox that runs there.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::children;

/// What processes of a sandbox are like, as seen from outside.
pub struct Process {
    pub pid: i32,
    status: BTreeMap<String, String>,
}

impl Process {
    pub fn of(pid: i32) -> Option<Process> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let status = text.lines().filter_map(|line| line.split_once(":\t"));
        let status = status
            .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
            .collect();
        Some(Process { pid, status })
    }

    fn field(&self, name: &str) -> &str {
        self.status.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name)
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or(0)
    }

    fn is_zero(&self, name: &str) -> bool {
        let field = self.field(name);
        !field.is_empty() && field.bytes().all(|byte| byte == b'0')
    }

    fn namespace(&self, name: &str) -> u64 {
        std::fs::metadata(format!("/proc/{}/ns/{name}", self.pid)).map_or(0, |metadata| metadata.ino())
    }

    fn apart(&self, from: &Process, names: &[&str]) -> bool {
        names.iter().all(|name| self.namespace(name) != from.namespace(name))
    }

    fn has_empty_root(&self) -> bool {
        std::fs::read_dir(format!("/proc/{}/root/", self.pid)).is_ok_and(|mut entries| entries.next().is_none())
    }

    fn limit(&self, name: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/limits", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let values = line.unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        values.first().map(|value| (*value).to_owned()).unwrap_or_default()
    }

    /// Its files in /proc belong to root if nobody may look into it.
    fn is_undumpable(&self) -> bool {
        std::fs::metadata(format!("/proc/{}/environ", self.pid))
            .is_ok_and(|file| u64::from(file.uid()) != self.number("Uid"))
    }
}

/// The processes of this executable, by id.
pub fn processes(executable: &Path) -> Vec<i32> {
    let Ok(own) = std::fs::metadata(executable) else {
        return Vec::new();
    };
    let is_own = |pid: &i32| {
        std::fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|exe| (exe.dev(), exe.ino()) == (own.dev(), own.ino()))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_own).collect()
}

/// The supervisor, the sentry and the gofer of the only sandbox of this executable.
pub fn parts(executable: &Path) -> Option<[Process; 3]> {
    let mut found = [None, None];
    for pid in processes(executable) {
        let line = super::command_line(pid);
        let which = match line.as_str() {
            "sentry boot" => 1,
            // Not its guard.
            _ if line.contains(" exec ") && children(pid).len() > 1 => 0,
            _ => continue,
        };
        found[which] = Process::of(pid);
    }
    let [Some(supervisor), Some(sentry)] = found else {
        return None;
    };
    // Not the process that tells it owners, its child.
    let mut gofers = children(supervisor.pid).into_iter();
    let gofer = Process::of(gofers.find(|pid| super::command_line(*pid) == "sentry gofer")?)?;
    Some([supervisor, sentry, gofer])
}

/// Everything that is said and not so, or so and not said. `said` is the JSON.
pub fn differences(said: &serde_json::Value, [supervisor, sentry, gofer]: &[Process; 3]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |part: &str, name: &str, is: bool| {
        let rows = said[part].as_array().cloned().unwrap_or_default();
        match rows.iter().find(|row| row["name"] == name) {
            Some(row) if row["in_force"] == is => {}
            row => wrong.push(format!("{part}: {name}: {is} in truth, said: {row:?}")),
        }
    };
    let all = ["mnt", "net", "ipc", "uts", "cgroup"];
    for (part, process) in [("sentry", sentry), ("gofer", gofer)] {
        let no_capability = process.is_zero("CapPrm") && process.is_zero("CapEff") && process.is_zero("CapAmb");
        let filters = process.number("Seccomp_filters") > supervisor.number("Seccomp_filters");
        compare(part, "user namespace", process.apart(supervisor, &["user"]));
        compare(part, "namespaces", process.apart(supervisor, &all));
        compare(part, "empty root", process.has_empty_root());
        compare(part, "capabilities", no_capability);
        compare(part, "no_new_privs", process.number("NoNewPrivs") == 1);
        compare(part, "seccomp", process.number("Seccomp") == 2 && filters);
    }
    compare("sentry", "user", sentry.number("Uid") != 0);
    compare("sentry", "undumpable", sentry.is_undumpable());
    let stubs = children(sentry.pid);
    let first = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap_or_default();
    compare(
        "sentry",
        "oom_score_adj",
        !stubs.is_empty() && stubs.iter().all(|pid| first(pid).trim() == "1000"),
    );
    let rows = said["sentry"].as_array().cloned().unwrap_or_default();
    let detail = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["detail"].as_str()).unwrap_or("").to_owned()
    };
    for (name, line) in [
        ("RLIMIT_CORE", "Max core file size"),
        ("RLIMIT_NPROC", "Max processes"),
        ("RLIMIT_NOFILE", "Max open files"),
        ("RLIMIT_MSGQUEUE", "Max msgqueue size"),
        ("RLIMIT_RTPRIO", "Max realtime priority"),
        ("RLIMIT_MEMLOCK", "Max locked memory"),
    ] {
        if detail(name) != sentry.limit(line) {
            wrong.push(format!(
                "{name}: {} in truth, said: {}",
                sentry.limit(line),
                detail(name)
            ));
        }
    }
    if detail("capabilities").contains("bounding set empty") != sentry.is_zero("CapBnd") {
        wrong.push(format!(
            "bounding set: {} in truth, said: {}",
            sentry.field("CapBnd"),
            detail("capabilities")
        ));
    }
    if sentry.apart(supervisor, &["pid"]) != detail("namespaces").contains("PID") {
        wrong.push(format!(
            "PID namespace: {} in truth, said: {}",
            sentry.apart(supervisor, &["pid"]),
            detail("namespaces")
        ));
    }
    wrong
}
