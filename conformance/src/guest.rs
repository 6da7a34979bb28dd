//! The cases of the guest test program.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::host::{Host, Setup, brief};
use crate::report::{Outcome, Report};
use crate::{On, Place, Unit};

/// Families whose cases use files: they run on every kind of file system.
const ON_FILES: &[&str] = &[
    "open",
    "read_write",
    "stat",
    "dir",
    "fcntl",
    "locks",
    "mm",
    "exec",
    "xattr",
    "inotify",
    "splice",
    "large",
];

impl Place {
    fn suffix(self) -> &'static str {
        match self {
            Place::Tmpfs => "",
            Place::Overlay => "@overlay",
            Place::GoferRw => "@rw",
        }
    }
}

/// All cases, by family.
fn families(host: &Host) -> Result<BTreeMap<String, Vec<String>>, String> {
    let out = host.run(On::Native, &Setup::default(), &[host.guest(), "list".into()]);
    if out.code() != Some(0) {
        return Err(format!("the guest program does not run: {}", out.describe()));
    }
    let mut families: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in String::from_utf8_lossy(&out.stdout).lines() {
        let family = name.split_once('/').map_or(name, |(family, _)| family);
        families.entry(family.into()).or_default().push(name.into());
    }
    Ok(families)
}

/// The names of all cases.
pub fn names(host: &Host) -> Result<Vec<String>, String> {
    Ok(families(host)?.into_values().flatten().collect())
}

/// One unit for each family, platform and file system.
pub fn units(host: &Host) -> Result<Vec<Unit<'_>>, String> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for (family, names) in families(host)? {
        for &on in &host.options.on {
            let places = match host.options.fs.as_slice() {
                _ if on == On::Native || !ON_FILES.contains(&family.as_str()) => &[Place::Tmpfs],
                places => places,
            };
            for &place in places {
                let tagged = |name: &str| name.replacen('/', &format!("{}/", place.suffix()), 1);
                let names: Vec<String> = names
                    .iter()
                    .filter(|n| host.options.wants(&tagged(n)))
                    .cloned()
                    .collect();
                if !names.is_empty() {
                    units.push(Box::new(move |report| batch(host, report, on, place, &names)));
                }
            }
        }
    }
    Ok(units)
}

/// The host directory that the cases of the `overlay` family find as their working directory.
fn lower(host: &Host, names: &[String]) -> Setup {
    let top = host.directory("lower");
    for name in names {
        let dir = top.join(name.replace('/', "-"));
        let make = || -> std::io::Result<()> {
            std::fs::create_dir_all(dir.join("dir/sub"))?;
            std::fs::write(dir.join("file"), "lower\n")?;
            std::fs::write(dir.join("other"), "another\n")?;
            std::fs::write(dir.join("dir/one"), "1\n")?;
            std::fs::write(dir.join("dir/two"), "2\n")?;
            std::fs::write(dir.join("dir/sub/deep"), "deep\n")?;
            std::fs::write(dir.join("big"), vec![b'b'; 300_000])?;
            std::os::unix::fs::symlink("file", dir.join("link"))?;
            for path in [
                "",
                "dir",
                "dir/sub",
                "file",
                "other",
                "dir/one",
                "dir/two",
                "dir/sub/deep",
                "big",
            ] {
                host.give(&dir.join(path));
            }
            more(host, &top.join(format!("more-{}", name.replace('/', "-"))))
        };
        make().expect("files in our own directory");
    }
    Setup {
        env: vec![("GUEST_LOWER".into(), top.to_string_lossy().into_owned())],
        cwd: Some(top),
        ..Setup::default()
    }
}

/// What cases of the `overlay` family find besides.
fn more(host: &Host, dir: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir.join("many"))?;
    std::fs::create_dir_all(dir.join("tree/in"))?;
    std::fs::write(dir.join("tree/in/file"), "in\n")?;
    std::fs::write(dir.join("hard1"), "hard\n")?;
    std::fs::hard_link(dir.join("hard1"), dir.join("hard2"))?;
    let old = std::fs::File::create(dir.join("old"))?;
    std::io::Write::write_all(&mut &old, b"old\n")?;
    let time = std::time::UNIX_EPOCH + Duration::new(981_173_106, 789_000_000);
    old.set_times(std::fs::FileTimes::new().set_accessed(time).set_modified(time))?;
    std::fs::set_permissions(dir.join("old"), std::fs::Permissions::from_mode(0o640))?;
    let sparse = std::fs::File::create(dir.join("sparse"))?;
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end\n", (5 << 30) - 4)?;
    for i in 0..500 {
        std::fs::write(dir.join(format!("many/{i}")), i.to_string())?;
        host.give(&dir.join(format!("many/{i}")));
    }
    for path in ["", "many", "tree", "tree/in", "tree/in/file", "hard1", "old", "sparse"] {
        host.give(&dir.join(path));
    }
    Ok(())
}

/// Runs cases in one sandbox; after one that takes the sandbox down, the rest runs in another.
fn batch(host: &Host, report: &Report, on: On, place: Place, names: &[String]) {
    let mut setup = if names[0].starts_with("overlay/") {
        lower(host, names)
    } else {
        Setup::default()
    };
    let dir = host.directory("files");
    match (place, on) {
        (_, On::Native) => setup.env.push(("GUEST_TMP".into(), dir.to_string_lossy().into_owned())),
        (Place::Tmpfs, _) => {}
        (Place::Overlay, _) => {
            setup.env.push(("GUEST_TMP".into(), dir.to_string_lossy().into_owned()));
            setup.cwd = Some(dir);
        }
        (Place::GoferRw, _) => {
            setup.env.push(("GUEST_TMP".into(), "/writable".into()));
            setup.env.push(("GUEST_PLACE".into(), "writable".into()));
            setup
                .options
                .extend(["--rw".into(), format!("{}:/writable", dir.to_string_lossy())]);
        }
    }
    let mut left = names;
    while !left.is_empty() {
        setup.limit = 180 + 2 * left.len() as u64;
        let mut argv = vec![host.guest(), "batch".into()];
        argv.extend_from_slice(left);
        let out = host.run(on, &setup, &argv);
        let done = results(report, on, place, &String::from_utf8_lossy(&out.stdout));
        if done < left.len() {
            let name = left[done].replacen('/', &format!("{}/", place.suffix()), 1);
            let how = format!(
                "the sandbox ended or hung: {}, stderr {}",
                how_ended(&out),
                brief(&out.stderr)
            );
            report.add(on, &name, Outcome::Fail, how, Duration::ZERO);
        }
        left = left.get(done + 1..).unwrap_or_default();
    }
}

fn how_ended(out: &crate::host::Output) -> String {
    out.status
        .map_or_else(|| format!("killed after {} s", out.took.as_secs()), |s| s.to_string())
}

/// Reports the lines of `guest batch`. How many cases came to an end.
fn results(report: &Report, on: On, place: Place, text: &str) -> usize {
    let mut done = 0;
    let start = Instant::now();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(kind), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        let outcome = match kind {
            "pass" => Outcome::Pass,
            "fail" => Outcome::Fail,
            "skip" => Outcome::Skip,
            _ => continue,
        };
        let name = name.replacen('/', &format!("{}/", place.suffix()), 1);
        report.add(on, &name, outcome, words.next().unwrap_or_default(), start.elapsed());
        done += 1;
    }
    done
}
