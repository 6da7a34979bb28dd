//! Profiles: files with limits that somebody else may have written.

use sentry_limits::Limits;

use super::{Target, outcome};

/// See the module.
pub const TARGET: Target = Target {
    name: "profile",
    seeds,
    words: &[
        b"memory",
        b"cpus",
        b"pids",
        b"disk",
        b"disk-inodes",
        b"timeout",
        b"cpu-time",
        b"output-limit",
        b"nofile",
        b"io-rate",
        b" = ",
        b"'",
        b"\"",
        b"'''",
        b"\"\"\"",
        b"\n",
        b"-",
        b"1e9",
        b"0x",
        b"1g",
        b"18446744073709551616",
        b".5",
        b"inf",
        b"nan",
        b"[",
        b"]",
        b"[[",
        b"{",
        b"}",
        b"true",
        b"\\u",
        b"\\U0010ffff",
        b"#",
        b"\0",
        b"=",
        b"_",
        b"2024-01-01T00:00:00Z",
    ],
    make: || Box::new(run),
};

fn seeds() -> Vec<Vec<u8>> {
    [
        "memory = '1g'\ncpus = 1.5\npids = 10\ntimeout = 1.5\n",
        "disk = 5\ndisk-inodes = 6\noutput-limit = '4k'\nnofile = '64'\nio-rate = '1m'\ncpu-time = 2",
        "# nothing\n\"pids\" = 3\n",
        "[a]\nb = [1, {c = 2}]\n",
        "memory.a.b.c = 1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn run(input: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(input);
    let limits = match Limits::parse(&text) {
        Ok(limits) => limits,
        // What is said of it is said to somebody.
        Err(error) => {
            return Ok(outcome(&[
                error.to_string().len() as u64,
                u64::from(error.message().len() as u32),
            ]));
        }
    };
    let zero = [limits.pids, limits.nofile, limits.disk_inodes, limits.cpus];
    if zero.contains(&Some(0)) {
        return Err(format!("a limit of nothing: {limits:?}"));
    }
    if limits.cpus.is_some_and(|cpus| cpus > 1_024_000) || limits.io_rate.is_some_and(|rate| rate < 1024) {
        return Err(format!("out of bounds: {limits:?}"));
    }
    // The same limits again, whichever way they were written.
    let names: Vec<&str> = limits.list().iter().map(|(name, _)| *name).collect();
    let parts: Vec<u64> = names.iter().map(|name| name.len() as u64).collect();
    if limits.clone().or(Limits::default()) != limits {
        return Err(format!("{limits:?} and nothing are not the same"));
    }
    Ok(outcome(&[1, parts.len() as u64, parts.iter().sum()]))
}
