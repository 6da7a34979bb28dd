//! Limits of a sandbox: as options of `sentry exec`, and as a profile, a TOML file with the same names.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Deserializer};

/// What a sandbox may use. In a profile a size is a number of bytes or text with k, m or g; a time is in seconds.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Memory of all its processes, files in memory and our own processes together (SIZE with k, m or g); beyond it the
    /// process that uses most is killed
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(deserialize_with = "of_bytes")]
    pub memory: Option<u64>,

    /// Processors' worth of time (1.5: one and a half); what is beyond waits
    #[arg(long, value_name = "N", value_parser = processors)]
    #[serde(deserialize_with = "of_processors")]
    pub cpus: Option<u64>,

    /// Bytes that are written to files in memory, layers over the host's files included; beyond it ENOSPC
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(deserialize_with = "of_bytes")]
    pub disk: Option<u64>,

    /// How many such files there may be
    #[arg(long, value_name = "N", value_parser = count)]
    #[serde(deserialize_with = "of_count")]
    pub disk_inodes: Option<u64>,

    /// Processes and threads at a time; one more gets EAGAIN
    #[arg(long, value_name = "N", value_parser = count)]
    #[serde(deserialize_with = "of_count")]
    pub pids: Option<u64>,

    /// End the command after so many seconds: SIGTERM, two seconds later SIGKILL
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    #[serde(deserialize_with = "of_seconds")]
    pub timeout: Option<Duration>,

    /// The same once all its processes together have used so many seconds of processor time
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    #[serde(deserialize_with = "of_seconds")]
    pub cpu_time: Option<Duration>,

    /// Open files of each process (the command cannot raise it)
    #[arg(long, value_name = "N", value_parser = count)]
    #[serde(deserialize_with = "of_count")]
    pub nofile: Option<u64>,

    /// Bytes to standard output and error together; what is beyond gets SIGXFSZ, or EFBIG (SIZE with k, m or g)
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(deserialize_with = "of_bytes")]
    pub output_limit: Option<u64>,

    /// Bytes a second of files and standard input and output, read and written through the kernel; who has more waits
    /// (SIZE with k, m or g)
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    #[serde(deserialize_with = "of_rate")]
    pub io_rate: Option<u64>,
}

/// Why a profile is not used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProfileError {
    #[error("profile {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("profile {}: {error}", path.display())]
    Parse { path: PathBuf, error: Box<toml::de::Error> },
}

impl Limits {
    /// Reads a profile.
    pub fn read(path: &Path) -> Result<Limits, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|error| ProfileError::Read {
            path: path.to_owned(),
            error,
        })?;
        Limits::parse(&text).map_err(|error| ProfileError::Parse {
            path: path.to_owned(),
            error: Box::new(error),
        })
    }

    /// Reads the text of a profile.
    pub fn parse(text: &str) -> Result<Limits, toml::de::Error> {
        toml::from_str(text)
    }

    /// These, and those of a profile where these say nothing.
    pub fn or(self, profile: Limits) -> Limits {
        Limits {
            memory: self.memory.or(profile.memory),
            cpus: self.cpus.or(profile.cpus),
            disk: self.disk.or(profile.disk),
            disk_inodes: self.disk_inodes.or(profile.disk_inodes),
            pids: self.pids.or(profile.pids),
            timeout: self.timeout.or(profile.timeout),
            cpu_time: self.cpu_time.or(profile.cpu_time),
            nofile: self.nofile.or(profile.nofile),
            output_limit: self.output_limit.or(profile.output_limit),
            io_rate: self.io_rate.or(profile.io_rate),
        }
    }

    /// Those that are set: names as in a profile, and values with their units.
    pub fn list(&self) -> Vec<(&'static str, String)> {
        let time = |time: Duration| format!("{} s", time.as_secs_f64());
        let bytes = |bytes: u64| format!("{bytes} bytes");
        let rows = [
            ("memory", self.memory.map(bytes)),
            ("cpus", self.cpus.map(|millis| format!("{}", millis as f64 / 1000.0))),
            ("disk", self.disk.map(bytes)),
            ("disk-inodes", self.disk_inodes.map(|count| count.to_string())),
            ("pids", self.pids.map(|count| count.to_string())),
            ("timeout", self.timeout.map(time)),
            ("cpu-time", self.cpu_time.map(time)),
            ("nofile", self.nofile.map(|count| count.to_string())),
            ("output-limit", self.output_limit.map(bytes)),
            ("io-rate", self.io_rate.map(|rate| format!("{rate} bytes a second"))),
        ];
        rows.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// A value of a profile: a number, or text as on the command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Whole(u64),
    Fraction(f64),
    Text(String),
}

fn of<'de, D, T>(deserializer: D, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
{
    let text = match Value::deserialize(deserializer)? {
        Value::Whole(number) => number.to_string(),
        Value::Fraction(number) => number.to_string(),
        Value::Text(text) => text,
    };
    parse(&text).map(Some).map_err(serde::de::Error::custom)
}

fn of_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    of(deserializer, count)
}

fn of_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    of(deserializer, seconds)
}

fn of_processors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    of(deserializer, processors)
}

fn of_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    of(deserializer, bytes)
}

fn of_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    of(deserializer, rate)
}

/// Bytes a second, at least a thousand and twenty-four.
fn rate(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        rate if rate < 1024 => Err(format!("less than 1k: {text}")),
        rate => Ok(rate),
    }
}

/// A number of things, at least one.
fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("not a number from 1: {text}")),
        Ok(number) => Ok(number),
    }
}

/// Processors in thousandths, at least a hundredth of one.
fn processors(text: &str) -> Result<u64, String> {
    let number = text.parse::<f64>().map_err(|_| format!("not a number: {text}"))?;
    if !(0.01..=1024.0).contains(&number) {
        return Err(format!("not a number from 0.01 to 1024: {text}"));
    }
    Ok((number * 1000.0).round() as u64)
}

/// A size in bytes, with k, m or g for the powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let shift = match text.bytes().last().map(|unit| unit.to_ascii_lowercase()) {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let count = digits.parse::<u64>().map_err(|_| format!("not a size: {text}"))?;
    count
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("too large: {text}"))
}

/// A time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| format!("not a number: {text}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_means_what_the_options_mean() {
        let profile = Limits::parse("memory = '1g'\ncpus = 1.5\ndisk = 5\ndisk-inodes = 6\npids = 10\ntimeout = 1.5\ncpu-time = 2\noutput-limit = '4k'\nnofile = '64'\nio-rate = '1m'").unwrap();
        let expected = Limits {
            memory: Some(1 << 30),
            cpus: Some(1500),
            disk: Some(5),
            disk_inodes: Some(6),
            pids: Some(10),
            timeout: Some(Duration::from_millis(1500)),
            cpu_time: Some(Duration::from_secs(2)),
            nofile: Some(64),
            output_limit: Some(4096),
            io_rate: Some(1 << 20),
        };
        assert_eq!(profile, expected);
        assert_eq!(Limits::parse("").unwrap(), Limits::default());
        let mine = Limits {
            pids: Some(3),
            ..Limits::default()
        };
        assert_eq!(mine.or(profile).pids, Some(3));
    }

    #[test]
    fn a_wrong_profile_is_refused_by_name() {
        for (text, word) in [
            ("pid = 10", "pid"),
            ("pids = 0", "0"),
            ("pids = -1", ""),
            ("timeout = 'x'", "x"),
            ("timeout = -1", ""),
            ("output-limit = '1t'", "1t"),
            ("io-rate = 1023", "1023"),
            ("pids", ""),
            ("pids = 1\npids = 2", "duplicate"),
        ] {
            let error = Limits::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    /// Profiles that are almost right: an error or limits, never a panic.
    #[test]
    fn no_profile_is_too_strange() {
        let words = [
            "memory",
            "cpus",
            "pids",
            "disk",
            "timeout",
            "output-limit",
            " = ",
            "'",
            "\"",
            "\n",
            "-",
            "1e9",
            "0x",
            "1g",
            "9",
            "99999999999999999999",
            ".5",
            "inf",
            "nan",
            "[",
            "]",
            "{",
            "}",
            "true",
            "\\u",
            "#",
            "\0",
            "\u{ff}",
            "=",
        ];
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let mut read = 0;
        for _ in 0..50_000 {
            let mut text = String::from(["memory = '1g'", "cpus = 1.5", "pids = 10\ntimeout = '5s'", ""][below(4)]);
            for _ in 0..below(6) {
                let at = below(text.chars().count() + 1);
                let at = text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
                let end = text
                    .char_indices()
                    .map(|(i, _)| i)
                    .find(|&i| i >= at + below(3))
                    .unwrap_or(text.len());
                text.replace_range(at..end.max(at), words[below(words.len())]);
            }
            if let Ok(limits) = Limits::parse(&text) {
                read += 1;
                assert!(
                    limits.cpus != Some(0) && limits.pids != Some(0),
                    "{text:?} gives {limits:?}"
                );
                let _ = limits.list();
            }
        }
        assert!(read > 1000, "{read} profiles were read");
    }
}
