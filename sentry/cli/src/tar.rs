//! Writes a tar archive (pax interchange format, POSIX.1-2008), in the conventions of image layers.

use std::io::{self, Write};

use sentry_kernel::changes::Entry;

/// The unit of an archive, in bytes.
const BLOCK: usize = 512;
/// The largest value of an octal field of eleven digits: sizes and times.
const OCTAL_11: u64 = (1 << 33) - 1;
/// The same for seven digits: owners and device numbers.
const OCTAL_7: u64 = (1 << 21) - 1;
/// Names up to this length, in bytes, are in the header itself.
const SHORT: usize = 100;
/// Hides a name of the layer below (OCI image specification, "Whiteouts").
pub const WHITEOUT: &[u8] = b".wh.";
/// Hides everything a directory has in the layer below.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// An archive that is being written.
pub struct Archive<W: Write> {
    output: W,
}

impl<W: Write> Archive<W> {
    pub fn new(output: W) -> Archive<W> {
        Archive { output }
    }

    /// Two empty blocks end an archive; gives back what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.write_all(&[0; 2 * BLOCK])?;
        self.output.flush()?;
        Ok(self.output)
    }

    /// The name `path` (absolute) is no more.
    pub fn whiteout(&mut self, path: &[u8]) -> io::Result<()> {
        let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let (dir, name) = path.split_at(slash);
        let name = name.strip_prefix(b"/").unwrap_or(name);
        self.marker(&[dir, b"/", WHITEOUT, name].concat())
    }

    fn marker(&mut self, path: &[u8]) -> io::Result<()> {
        let entry = Entry {
            mode: libc::S_IFREG,
            ..Entry::default()
        };
        self.header(relative(path), &entry, b'0', b"", 0, &[])
    }

    /// A file, and the opaque mark of a directory. The content of a regular file follows through
    /// [`Self::content`]. False for what an archive cannot hold (a socket).
    pub fn entry(&mut self, path: &[u8], entry: &Entry) -> io::Result<bool> {
        let mut name = relative(path).to_vec();
        if let Some(link) = &entry.link {
            self.header(&name, entry, b'1', relative(link), 0, &[])?;
            return Ok(true);
        }
        let kind = match entry.mode & libc::S_IFMT {
            libc::S_IFREG => return self.regular(&name, entry).map(|()| true),
            libc::S_IFLNK => b'2',
            libc::S_IFCHR => b'3',
            libc::S_IFBLK => b'4',
            libc::S_IFDIR => b'5',
            libc::S_IFIFO => b'6',
            _ => return Ok(false),
        };
        if kind == b'5' && !name.ends_with(b"/") {
            name.push(b'/');
        }
        self.header(&name, entry, kind, &entry.target, 0, &[])?;
        if entry.opaque {
            self.marker(&[path.strip_suffix(b"/").unwrap_or(path), b"/", OPAQUE].concat())?;
        }
        Ok(true)
    }

    fn regular(&mut self, name: &[u8], entry: &Entry) -> io::Result<()> {
        if entry.extents.is_empty() && entry.size == 0 || entry.extents == [(0, entry.size)] {
            return self.header(name, entry, b'0', b"", entry.size, &[]);
        }
        // GNU's sparse format 1.0: the map is in front of the data.
        let mut extents = entry.extents.clone();
        if extents.last().is_none_or(|(start, len)| start + len < entry.size) {
            extents.push((entry.size, 0));
        }
        let mut map = format!("{}\n", extents.len());
        for (start, len) in &extents {
            map.push_str(&format!("{start}\n{len}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        let data: u64 = extents.iter().map(|(_, len)| len).sum();
        let records = [
            (&b"GNU.sparse.major"[..], b"1".to_vec()),
            (b"GNU.sparse.minor", b"0".to_vec()),
            (b"GNU.sparse.name", name.to_vec()),
            (b"GNU.sparse.realsize", entry.size.to_string().into_bytes()),
        ];
        let slash = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, base) = name.split_at(slash);
        let stored = [dir, b"GNUSparseFile.0/", base].concat();
        self.header(&stored, entry, b'0', b"", data + map.len() as u64, &records)?;
        self.output.write_all(&map)
    }

    /// A piece of the content of the file whose header was written last.
    pub fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    /// Fills the last block of a content of `len` bytes.
    pub fn pad(&mut self, len: u64) -> io::Result<()> {
        let over = (len % BLOCK as u64) as usize;
        if over == 0 {
            return Ok(());
        }
        self.output.write_all(&[0; BLOCK][over..])
    }

    /// A header, with an extended one before it for what it cannot hold.
    fn header(
        &mut self,
        name: &[u8],
        entry: &Entry,
        kind: u8,
        target: &[u8],
        size: u64,
        more: &[(&[u8], Vec<u8>)],
    ) -> io::Result<()> {
        let mut records = Vec::new();
        let (seconds, nanoseconds) = entry.mtime;
        let owner = |id: u32| u64::from(id) > OCTAL_7;
        if name.len() > SHORT {
            record(&mut records, b"path", name);
        }
        if target.len() > SHORT {
            record(&mut records, b"linkpath", target);
        }
        if size > OCTAL_11 {
            record(&mut records, b"size", size.to_string().as_bytes());
        }
        for (key, id) in [(&b"uid"[..], entry.uid), (b"gid", entry.gid)] {
            if owner(id) {
                record(&mut records, key, id.to_string().as_bytes());
            }
        }
        if nanoseconds != 0 || !(0..=OCTAL_11 as i64).contains(&seconds) {
            record(&mut records, b"mtime", time(seconds, nanoseconds).as_bytes());
        }
        for (key, value) in more {
            record(&mut records, key, value);
        }
        if kind != b'1' {
            for (key, value) in &entry.xattrs {
                record(&mut records, &xattr_key(key), value);
            }
        }
        if !records.is_empty() {
            let header = Header {
                name: b"./PaxHeaders/entry",
                mode: 0o644,
                owner: (0, 0),
                size: records.len() as u64,
                seconds: 0,
                kind: b'x',
                target: b"",
                device: (0, 0),
            };
            self.output.write_all(&header.block())?;
            self.output.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        let header = Header {
            name,
            mode: entry.mode & 0o7777,
            owner: (entry.uid, entry.gid),
            size,
            seconds,
            kind,
            target,
            device: entry.device,
        };
        self.output.write_all(&header.block())
    }
}

/// As the archive has it: without the slash in front.
fn relative(path: &[u8]) -> &[u8] {
    match path.strip_prefix(b"/").unwrap_or(path) {
        b"" => b"./",
        rest => rest,
    }
}

/// A record of an extended header: its length in decimal digits, which counts itself, a keyword and a value.
fn record(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    to.extend_from_slice(len.to_string().as_bytes());
    to.push(b' ');
    to.extend_from_slice(key);
    to.push(b'=');
    to.extend_from_slice(value);
    to.push(b'\n');
}

/// The keyword of an extended attribute. As in GNU tar, `%` and `=` are in hexadecimal.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            _ => key.push(byte),
        }
    }
    key
}

/// Seconds in decimal. Nanoseconds count upwards also before 1970.
fn time(seconds: i64, nanoseconds: u32) -> String {
    let (sign, seconds, nanoseconds) = match (seconds < 0, nanoseconds) {
        (false, nanoseconds) => ("", seconds.unsigned_abs(), nanoseconds),
        (true, 0) => ("-", seconds.unsigned_abs(), 0),
        (true, nanoseconds) => (
            "-",
            (seconds + 1).unsigned_abs(),
            1_000_000_000 - nanoseconds.min(999_999_999),
        ),
    };
    if nanoseconds == 0 {
        return format!("{sign}{seconds}");
    }
    let fraction = format!("{nanoseconds:09}");
    format!("{sign}{seconds}.{}", fraction.trim_end_matches('0'))
}

/// The fields of a ustar header. What does not fit is in an extended header before it.
struct Header<'a> {
    name: &'a [u8],
    mode: u32,
    owner: (u32, u32),
    size: u64,
    seconds: i64,
    kind: u8,
    target: &'a [u8],
    device: (u32, u32),
}

impl Header<'_> {
    fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let octal = |value: u64, digits: usize| {
            let most = (1u64 << (3 * digits)) - 1;
            format!("{:0digits$o}", value.min(most)).into_bytes()
        };
        put(0, &self.name[..self.name.len().min(SHORT)]);
        put(100, &octal(u64::from(self.mode), 7));
        put(108, &octal(u64::from(self.owner.0), 7));
        put(116, &octal(u64::from(self.owner.1), 7));
        put(124, &octal(self.size, 11));
        put(136, &octal(u64::try_from(self.seconds).unwrap_or(0), 11));
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.target[..self.target.len().min(SHORT)]);
        put(257, b"ustar\x0000");
        put(329, &octal(u64::from(self.device.0), 7));
        put(337, &octal(u64::from(self.device.1), 7));
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_length_counts_its_own_digits() {
        for len in [1, 5, 85, 86, 87, 88, 980, 981, 982, 983, 984, 985, 99_980] {
            let mut records = Vec::new();
            record(&mut records, b"key", &vec![b'v'; len]);
            let space = records.iter().position(|&byte| byte == b' ').unwrap();
            let told: usize = std::str::from_utf8(&records[..space]).unwrap().parse().unwrap();
            assert_eq!(told, records.len());
        }
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(time(5, 0), "5");
        assert_eq!(time(5, 120_000_000), "5.12");
        assert_eq!(time(0, 1), "0.000000001");
        assert_eq!(time(-3, 0), "-3");
        assert_eq!(time(-1, 500_000_000), "-0.5");
        assert_eq!(time(-3, 250_000_000), "-2.75");
        assert_eq!(time(i64::MIN, 0), "-9223372036854775808");
    }

    #[test]
    fn a_header_has_its_checksum() {
        let mut archive = Archive::new(Vec::new());
        let entry = Entry {
            mode: libc::S_IFREG | 0o644,
            size: 0,
            ..Entry::default()
        };
        archive.entry(b"/a/b", &entry).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!((&bytes[..4], bytes.len()), (&b"a/b\0"[..], 3 * BLOCK));
        let told = u64::from_str_radix(std::str::from_utf8(&bytes[148..154]).unwrap(), 8).unwrap();
        let sum: u64 = (0..BLOCK)
            .map(|at| if (148..156).contains(&at) { b' ' } else { bytes[at] })
            .map(u64::from)
            .sum();
        assert_eq!(told, sum);
    }
}
