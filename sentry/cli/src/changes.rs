//! `--diff` and `--diff-out`: what the command changed, as the sentry tells it at the end.
//!
//! The sentry may be hostile by then. It never sees the files that are written here: it sends a stream
//! ([`sentry_kernel::changes`]), and a thread of the supervisor checks each record, prints the list and writes the
//! archive. What breaks a rule ends that; nothing is believed but what was checked.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use sentry_kernel::changes::{ALIGNMENT, Change, ChangesConfig, Entry, LONGEST_PATH, LONGEST_RECORD, Record};

use crate::args::Exec;
use crate::tar::{self, Archive};

/// How much of a list is kept for standard error, in bytes.
const LONGEST_LIST: usize = 64 << 20;
/// The longest name, in bytes.
const NAME_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;
/// Extended attributes that mean something to whoever puts layers together.
const LAYERING: &[u8] = b"trusted.overlay.";

/// Where the changes of a sandbox go: files that are open before it starts.
pub struct Outputs {
    list: Option<List>,
    archive: Option<File>,
}

/// Where the list goes.
enum List {
    File(BufWriter<File>),
    /// Standard error, at the end; what did not fit is counted.
    Error {
        text: Vec<u8>,
        dropped: u64,
    },
}

/// A file that cannot be written.
pub type Refused = (&'static str, String, io::Error);

fn create(option: &'static str, path: &Path) -> Result<File, Refused> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|error| (option, path.display().to_string(), error))
}

impl Outputs {
    /// What the command line asks for.
    pub fn open(exec: &Exec) -> Result<Option<Outputs>, Refused> {
        let list = match &exec.diff {
            None => None,
            Some(path) if path.is_empty() => Some(List::Error {
                text: Vec::new(),
                dropped: 0,
            }),
            Some(path) => Some(List::File(BufWriter::new(create("--diff", Path::new(path))?))),
        };
        let archive = match &exec.diff_out {
            None => None,
            Some(path) => Some(create("--diff-out", path)?),
        };
        Ok((list.is_some() || archive.is_some()).then_some(Outputs { list, archive }))
    }

    /// What the sentry has to tell.
    pub fn config(&self) -> ChangesConfig {
        ChangesConfig {
            contents: self.archive.is_some(),
        }
    }
}

/// Takes the stream.
pub struct Collector {
    thread: JoinHandle<Result<Summary, String>>,
    progress: Arc<AtomicU64>,
}

/// What there is to say at the end.
struct Summary {
    text: Vec<u8>,
    remarks: Vec<String>,
}

impl Collector {
    /// Reads the stream in a thread, until its end.
    pub fn start(outputs: Outputs, stream: OwnedFd) -> io::Result<Collector> {
        let progress = Arc::new(AtomicU64::new(0));
        let counter = progress.clone();
        let thread = std::thread::Builder::new().name("changes".into()).spawn(move || {
            let input = Input {
                stream: BufReader::with_capacity(256 << 10, File::from(stream)),
                progress: counter,
            };
            collect(outputs, input)
        })?;
        Ok(Collector { thread, progress })
    }

    /// How many bytes have come.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Waits for the end of the stream, which comes when the sentry is gone, and prints the list if that goes to
    /// standard error. Says what is wrong with the files, if something is.
    pub fn finish(self) -> Result<Vec<String>, String> {
        let summary = self.thread.join().map_err(|_| "internal error".to_owned())??;
        let mut error = io::stderr().lock();
        error
            .write_all(&summary.text)
            .and_then(|()| error.flush())
            .map_err(|error| format!("standard error: {error}"))?;
        Ok(summary.remarks)
    }
}

struct Input {
    stream: BufReader<File>,
    progress: Arc<AtomicU64>,
}

fn cut_off(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the sentry ended before it had told everything".into(),
        _ => error.to_string(),
    }
}

fn nonsense(what: &str) -> String {
    format!("the sentry told nonsense ({what})")
}

impl Input {
    fn exactly(&mut self, buf: &mut [u8]) -> Result<(), String> {
        self.stream.read_exact(buf).map_err(|error| cut_off(&error))?;
        self.progress.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn record(&mut self) -> Result<Record, String> {
        let mut len = [0; 4];
        self.exactly(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > LONGEST_RECORD {
            return Err(nonsense("length of a record"));
        }
        let mut text = vec![0; len];
        self.exactly(&mut text)?;
        serde_json::from_slice(&text).map_err(|_| nonsense("a record"))
    }
}

fn collect(outputs: Outputs, mut input: Input) -> Result<Summary, String> {
    let Outputs { mut list, archive } = outputs;
    let contents = archive.is_some();
    let mut archive = archive.map(|file| Archive::new(BufWriter::with_capacity(256 << 10, file)));
    let mut order = Order::default();
    let mut remarks = Vec::new();
    let mut unkept = 0u64;
    loop {
        let (path, change) = match input.record()? {
            Record::Path { path, change } => (path, change),
            Record::End { left_out, unreadable } => {
                if left_out > 0 {
                    remarks.push(format!("{left_out} changed paths are too long and were left out"));
                }
                if unreadable > 0 {
                    remarks.push(format!(
                        "{unreadable} changed files could not be read and have zeros in place"
                    ));
                }
                break;
            }
        };
        let entry = match &change {
            Change::Added(entry) | Change::Changed(entry) => Some(entry),
            Change::Deleted => None,
        };
        order.check(&path, entry)?;
        if let Some(entry) = entry {
            check_entry(entry, contents)?;
        }
        if let Some(list) = &mut list {
            let letter = match change {
                Change::Added(_) => 'A',
                Change::Changed(_) => 'C',
                Change::Deleted => 'D',
            };
            list.line(&format!("{letter} {}\n", shown(&path)))
                .map_err(|error| format!("--diff: {error}"))?;
        }
        if let Some(archive) = &mut archive {
            let kept = keep(archive, &mut input, &path, change)?;
            unkept += u64::from(!kept);
        }
    }
    if unkept > 0 {
        remarks.push(format!(
            "{unkept} sockets, and names that begin with `.wh.`, are not in the archive"
        ));
    }
    if let Some(archive) = archive {
        let written = archive.finish().map_err(|error| format!("--diff-out: {error}"));
        drop(written?);
    }
    let text = match list {
        Some(List::File(mut file)) => {
            file.flush().map_err(|error| format!("--diff: {error}"))?;
            Vec::new()
        }
        Some(List::Error { text, dropped }) => {
            if dropped > 0 {
                remarks.push(format!("{dropped} more changed paths; --diff=FILE takes all"));
            }
            text
        }
        None => Vec::new(),
    };
    Ok(Summary { text, remarks })
}

impl List {
    fn line(&mut self, line: &str) -> io::Result<()> {
        match self {
            List::File(file) => file.write_all(line.as_bytes()),
            List::Error { text, dropped } => {
                if *dropped > 0 || text.len() + line.len() > LONGEST_LIST {
                    *dropped += 1;
                } else {
                    text.extend_from_slice(line.as_bytes());
                }
                Ok(())
            }
        }
    }
}

/// Puts a change into the archive; false if it cannot hold it. What the stream has of the content is read anyway.
fn keep(
    archive: &mut Archive<BufWriter<File>>,
    input: &mut Input,
    path: &[u8],
    change: Change,
) -> Result<bool, String> {
    let failed = |error: io::Error| format!("--diff-out: {error}");
    let hides = path
        .split(|&byte| byte == b'/')
        .any(|name| name.starts_with(tar::WHITEOUT));
    let mut entry = match change {
        Change::Deleted if hides => return Ok(false),
        Change::Deleted => return archive.whiteout(path).map(|()| true).map_err(failed),
        Change::Added(entry) | Change::Changed(entry) => entry,
    };
    entry.xattrs.retain(|(name, _)| !name.starts_with(LAYERING));
    let kept = !hides && archive.entry(path, &entry).map_err(failed)?;
    let len: u64 = entry.extents.iter().map(|(_, len)| len).sum();
    let mut buf = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(256 << 10)];
    let mut left = len;
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        input.exactly(&mut buf[..piece])?;
        if kept {
            archive.content(&buf[..piece]).map_err(failed)?;
        }
        left -= piece as u64;
    }
    if kept {
        archive.pad(len).map_err(failed)?;
    }
    Ok(kept)
}

/// Paths come in order, each once, and nothing is in what is no directory.
#[derive(Default)]
struct Order {
    last: Vec<u8>,
    /// The last path that is not a directory.
    leaf: Option<Vec<u8>>,
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
}

impl Order {
    fn check(&mut self, path: &[u8], entry: Option<&Entry>) -> Result<(), String> {
        if !proper(path) {
            return Err(nonsense("a path"));
        }
        // The root, `/`, has two empty names, and everything else sorts behind.
        if !self.last.is_empty() && names(&self.last).cmp(names(path)).is_ge() {
            return Err(nonsense("the order of paths"));
        }
        let inside = |leaf: &Vec<u8>| {
            path.strip_prefix(leaf.as_slice())
                .is_some_and(|rest| rest.starts_with(b"/"))
        };
        if self.leaf.as_ref().is_some_and(inside) {
            return Err(nonsense("a path below a file"));
        }
        let directory = entry.is_some_and(|entry| entry.mode & libc::S_IFMT == libc::S_IFDIR);
        if path == b"/" && !directory {
            return Err(nonsense("the root"));
        }
        if !directory {
            self.leaf = Some(path.to_vec());
        }
        self.last = path.to_vec();
        Ok(())
    }
}

/// Absolute, of names that can be names.
fn proper(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/") else {
        return false;
    };
    let name =
        |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && name.len() <= NAME_MAX && !name.contains(&0);
    path.len() <= LONGEST_PATH && (rest.is_empty() || names(rest).all(name))
}

fn check_entry(entry: &Entry, contents: bool) -> Result<(), String> {
    let kind = entry.mode & libc::S_IFMT;
    let (regular, link) = (kind == libc::S_IFREG, kind == libc::S_IFLNK);
    let known = matches!(
        kind,
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK
    );
    let target = entry.target.len() <= TARGET_MAX && !entry.target.contains(&0);
    let linked = entry.link.is_some();
    let hard = entry.link.as_ref().is_none_or(|link| proper(link)) && !(linked && kind == libc::S_IFDIR);
    let xattr = |(name, _): &(Vec<u8>, Vec<u8>)| !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0);
    let right = known
        && entry.mode & !(libc::S_IFMT | 0o7777) == 0
        && entry.mtime.1 < 1_000_000_000
        && i64::try_from(entry.size).is_ok()
        && (regular || entry.size == 0)
        && target
        && (linked || link != entry.target.is_empty())
        && hard
        && entry.xattrs.iter().all(xattr)
        && (contents || entry.xattrs.is_empty())
        && (entry.extents.is_empty() || (contents && regular && !linked));
    if !right {
        return Err(nonsense("an entry"));
    }
    let mut end = 0;
    for &(start, len) in &entry.extents {
        let next = start.checked_add(len).filter(|&next| next <= entry.size);
        let aligned = start % ALIGNMENT == 0 && (len % ALIGNMENT == 0 || next == Some(entry.size));
        match next {
            Some(next) if start >= end && len > 0 && aligned => end = next,
            _ => return Err(nonsense("an extent")),
        }
    }
    Ok(())
}

/// A path for a person: what a terminal would take for more than a character is escaped in octal.
fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    let octal = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            text.push_str(&format!("\\{byte:03o}"));
        }
    };
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\'' | '"' => text.push(letter),
                _ if letter.escape_debug().count() == 1 => text.push(letter),
                _ => octal(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        octal(&mut text, chunk.invalid());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(mode: u32) -> Entry {
        Entry {
            mode,
            ..Entry::default()
        }
    }

    #[test]
    fn hostile_names_are_escaped() {
        assert_eq!(shown(b"/a b/\xc3\xa4'\""), "/a b/ä'\"");
        assert_eq!(shown(b"/\x1b[2J\n\\\xff\x7f"), "/\\033[2J\\012\\\\\\377\\177");
        // A control character of eight bits, and one that turns the direction of writing.
        assert_eq!(shown("/\u{9b}x\u{202e}".as_bytes()), "/\\302\\233x\\342\\200\\256");
    }

    #[test]
    fn paths_are_checked() {
        for good in [&b"/"[..], b"/a", b"/a/...", b"/\xff", &[b'/'; 1]] {
            assert!(proper(good));
        }
        let long = [&b"/"[..], &[b'a'; 256]].concat();
        for bad in [&b""[..], b"a", b"//a", b"/a/", b"/a/../b", b"/.", b"/a\0", &long] {
            assert!(!proper(bad), "{bad:?}");
        }
    }

    #[test]
    fn paths_come_in_order_and_not_below_files() {
        let file = of_kind(libc::S_IFREG);
        let dir = of_kind(libc::S_IFDIR);
        let mut order = Order::default();
        for (path, entry) in [(&b"/"[..], &dir), (b"/a", &dir), (b"/a/b", &file), (b"/a-b", &file)] {
            order.check(path, Some(entry)).unwrap();
        }
        for bad in [&b"/a"[..], b"/a-b", b"/a/c", b"/a-b/c"] {
            assert!(order.check(bad, Some(&file)).is_err(), "{bad:?}");
        }
        order.check(b"/b", None).unwrap();
        assert!(order.check(b"/b/c", Some(&file)).is_err());
    }

    #[test]
    fn extents_stay_within_the_file() {
        let file = |extents: &[(u64, u64)]| Entry {
            size: 2000,
            extents: extents.to_vec(),
            ..of_kind(libc::S_IFREG)
        };
        for good in [&[][..], &[(0, 2000)], &[(0, 512), (1024, 976)], &[(512, 512)]] {
            assert_eq!(check_entry(&file(good), true), Ok(()));
        }
        for bad in [
            &[(0, 2001)][..],
            &[(1, 512)],
            &[(0, 100)],
            &[(0, 1024), (512, 512)],
            &[(0, 0)],
            &[(512, u64::MAX)],
        ] {
            assert!(check_entry(&file(bad), true).is_err(), "{bad:?}");
        }
        assert!(check_entry(&file(&[(0, 2000)]), false).is_err());
    }
}
