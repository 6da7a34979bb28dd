//! Where this process is in the host's cgroups, and what a limit is called there. Pure: texts in, plans out.

use std::path::{Path, PathBuf};

use sentry_limits::Limits;

/// Which of the two interfaces a hierarchy has (cgroups(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller, or a few.
    One,
    /// The unified hierarchy.
    Two,
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its interface.
    pub version: Version,
    /// The controllers of a v1 hierarchy; empty for v2, whose directories tell.
    pub controllers: Vec<String>,
    /// The directory of this process.
    pub own: PathBuf,
}

/// The hierarchies that `/proc/self/cgroup` and `/proc/self/mountinfo` tell of and this process can see itself in.
pub fn hierarchies(cgroup: &str, mountinfo: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match (number, controllers) {
            ("0", "") => Version::Two,
            _ => Version::One,
        };
        let controllers: Vec<String> = match version {
            Version::Two => Vec::new(),
            Version::One => controllers.split(',').map(str::to_owned).collect(),
        };
        // Of two mounts at one place the later is seen.
        let own = mountinfo
            .lines()
            .rev()
            .find_map(|mount| place(mount, version, &controllers, path));
        if let Some(own) = own {
            found.push(Hierarchy {
                version,
                controllers,
                own,
            });
        }
    }
    found
}

/// The directory of the cgroup `path` below a mount, if that is a mount of its hierarchy.
fn place(mount: &str, version: Version, controllers: &[String], path: &str) -> Option<PathBuf> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1)?);
    let fits = match version {
        Version::Two => name == "cgroup2",
        Version::One => {
            let has = |wanted: &String| options.split(',').any(|option| option == wanted);
            name == "cgroup" && controllers.iter().all(has)
        }
    };
    // Names with spaces are escaped in mountinfo; cgroups that need it are not used.
    if !fits || point.contains('\\') || path.split('/').any(|part| part == "..") {
        return None;
    }
    let below = Path::new(path).strip_prefix(root).ok()?;
    // Not joined with nothing: that would add a slash.
    Some(match below.as_os_str().is_empty() {
        true => point.into(),
        false => Path::new(point).join(below),
    })
}

/// A file of a cgroup and what is to be written to it for a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The limit, as its option is called.
    pub limit: &'static str,
    /// Whose file it is.
    pub controller: &'static str,
    /// In a directory of the hierarchy.
    pub file: &'static str,
    /// What is written.
    pub value: String,
}

/// The most processes and threads of a sandbox without `--pids`.
const PROCESSES: u64 = 2 * crate::isolation::PROCESSES;

/// What the limits are in a hierarchy of this version.
///
/// Everything has head-room, so that our own limits, which know guests and tell who was stopped, act first. The cgroup's
/// hold against what they cannot see, or see too late.
pub fn settings(version: Version, limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |limit, controller, file, value: String| {
        settings.push(Setting {
            limit,
            controller,
            file,
            value,
        });
    };
    if let Some(memory) = limits.memory {
        // The kernel's own memory and cached files count here, and do not in ours.
        let most = memory.saturating_add(memory / 8).saturating_add(64 << 20);
        match version {
            Version::One => add("memory", "memory", "memory.limit_in_bytes", most.to_string()),
            Version::Two => {
                add("memory", "memory", "memory.max", most.to_string());
                // Who allocates beyond is slowed down: time for our own choice.
                let high = memory.saturating_add(memory / 16).saturating_add(32 << 20);
                add("memory", "memory", "memory.high", high.to_string());
            }
        }
    }
    if let Some(cpus) = limits.cpus {
        // The work of sentry and gofer counts too; without room for it they would answer late, and guests wait twice.
        let quota = (cpus.saturating_mul(5) / 4).saturating_add(500).saturating_mul(100);
        match version {
            Version::One => add("cpus", "cpu", "cpu.cfs_quota_us", quota.to_string()),
            Version::Two => add("cpus", "cpu", "cpu.max", format!("{quota} 100000")),
        }
    }
    // Our own threads, processes that wait to be used, and those that were told to end count too.
    let pids = limits
        .pids
        .map_or(PROCESSES, |pids| pids.saturating_mul(2).saturating_add(128));
    add("pids", "pids", "pids.max", pids.min(PROCESSES).to_string());
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "25 20 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
28 25 0:25 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
29 25 0:26 /.. /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
";

    #[test]
    fn the_own_directories_are_found() {
        let cgroup = "4:memory:/docker/1/a\n3:cpu,cpuacct:/\n2:pids:/x\n1:name=systemd:/\n0::/user.slice/u 1\n";
        let found = hierarchies(cgroup, MOUNTS);
        let paths: Vec<_> = found
            .iter()
            .map(|found| (found.own.to_str().unwrap(), found.version))
            .collect();
        assert_eq!(
            paths,
            [
                ("/sys/fs/cgroup/memory/a", Version::One),
                ("/sys/fs/cgroup/cpu,cpuacct", Version::One),
                ("/sys/fs/cgroup/unified/user.slice/u 1", Version::Two),
            ]
        );
    }

    #[test]
    fn what_cannot_be_seen_is_not_used() {
        for cgroup in ["0::/../other", "4:memory:/docker/2", "9:memory:", "x", "", "4:memory"] {
            assert_eq!(hierarchies(cgroup, MOUNTS), [], "{cgroup}");
        }
        assert_eq!(hierarchies("0::/", "26 25 0:23 / / - cgroup2\n- - -\n\n"), []);
    }

    #[test]
    fn our_own_limits_act_first() {
        let limits = Limits {
            memory: Some(1 << 30),
            cpus: Some(2000),
            pids: Some(10),
            ..Limits::default()
        };
        let values = |version| -> Vec<_> {
            settings(version, &limits)
                .into_iter()
                .map(|setting| format!("{}={}", setting.file, setting.value))
                .collect()
        };
        let most = (1u64 << 30) + (192 << 20);
        let high = (1u64 << 30) + (96 << 20);
        assert_eq!(
            values(Version::One),
            [
                format!("memory.limit_in_bytes={most}"),
                "cpu.cfs_quota_us=300000".into(),
                "pids.max=148".into()
            ]
        );
        assert_eq!(
            values(Version::Two),
            [
                format!("memory.max={most}"),
                format!("memory.high={high}"),
                "cpu.max=300000 100000".into(),
                "pids.max=148".into()
            ]
        );
        let largest = Limits {
            memory: Some(u64::MAX),
            pids: Some(u64::MAX),
            cpus: Some(1_024_000),
            ..Limits::default()
        };
        assert_eq!(settings(Version::Two, &largest).len(), 4);
        assert_eq!(settings(Version::One, &Limits::default()).len(), 1);
    }
}
