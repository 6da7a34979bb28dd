//! Path walks over a tree that the input makes: lines of a letter and one or two names.

use sentry_abi::Errno;
use sentry_vfs::cred::Credentials;
use sentry_vfs::mount::MountFlags;
use sentry_vfs::ops::{At, Caller, Lookup, Resolve, Vfs};
use sentry_vfs::path::VfsPath;
use sentry_vfs::tmpfs::{Tmpfs, TmpfsOptions};

use super::{Target, outcome};

/// Lines of one input.
const LINES: usize = 40;

/// See the module.
pub const TARGET: Target = Target {
    name: "paths",
    seeds,
    words: &[
        b"\nm", b"\ns", b"\nr", b"\nn", b"\nl", b"\nu", b"\nd", b"\nb", b"\no", b"\nw", b"\nv", b"a", b"b", b"c", b"/",
        b"../", b"./", b"//", b"a/b", b"/a/b/c", b" ", b"l/l/l", b"..",
    ],
    make: || Box::new(run),
};

fn seeds() -> Vec<Vec<u8>> {
    [
        "ma\nma/b\nma/b/c\nsa/b l\nrl/c\nrl/..\nna/b d\nrl\nr/d/c/../c",
        "ma\nmb\nba b\nma/x\nrb/x\nrb/x/../..\nub\nda/x\nna/x b/y",
        "sl l\nrl\nsm n\nsn m\nrm/a\ns/ r\nr/r/r/r/r\ns.. up\nrup/up/up",
        "ma\nsa/../.. out\nwa ../b\nva ../../x\nva /a\nwa a/../..",
        "ma\nla b\noa/f\nla/f g\nua/f\nrg\nng a/g\nra/g",
        "ma\nma/b\nna a/b/c\nna/b b\nn/b /\nxa b\nob/f\nxb/f a",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

struct Tree {
    vfs: std::sync::Arc<Vfs>,
    root: VfsPath,
    cred: Credentials,
}

impl Tree {
    fn caller(&self) -> Caller<'_> {
        Caller::at_root(&self.cred, &self.root)
    }

    fn find(&self, path: &[u8], flags: Lookup) -> Result<VfsPath, Errno> {
        self.vfs.resolve(&self.caller(), At::Cwd, path, flags)
    }

    /// A place's text leads to the same place again.
    fn found_again(&self, place: &VfsPath) -> Result<(), String> {
        let (text, reachable) = self.vfs.d_path(&self.root, place);
        let shown = String::from_utf8_lossy(&text).into_owned();
        if !reachable || text.len() >= 4096 {
            return Ok(());
        }
        match self.find(&text, Lookup::NO_FOLLOW) {
            Ok(again) if again.same(place) => Ok(()),
            Ok(_) => Err(format!("{shown} is another place")),
            Err(error) => Err(format!("{shown} is not found again: {error:?}")),
        }
    }

    fn walk(&self, first: &[u8], flags: Lookup) -> Result<Result<(), Errno>, String> {
        match self.find(first, flags) {
            Ok(place) => self.found_again(&place).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A walk that must not leave the directory that it starts from.
    fn walk_within(&self, first: &[u8], second: &[u8], resolve: Resolve) -> Result<Result<(), Errno>, String> {
        let Ok(start) = self.find(first, Lookup::DIRECTORY) else {
            return Ok(Err(Errno::ENOENT));
        };
        let found = self
            .vfs
            .resolve_within(&self.caller(), At::Path(&start), second, Lookup::empty(), resolve);
        let place = match found {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        let (text, reachable) = self.vfs.d_path(&start, &place);
        if !reachable {
            return Err(format!("{} is outside its start", String::from_utf8_lossy(&text)));
        }
        Ok(Ok(()))
    }

    fn line(&self, line: &[u8]) -> Result<Result<(), Errno>, String> {
        let Some((&letter, rest)) = line.split_first() else {
            return Ok(Ok(()));
        };
        let mut words = rest.splitn(2, |&byte| byte == b' ');
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (vfs, caller, cwd) = (&self.vfs, self.caller(), At::Cwd);
        Ok(match letter {
            b'm' => vfs.mkdir(&caller, cwd, first, 0o755),
            b's' => vfs.symlink(&caller, first, cwd, second),
            b'r' => return self.walk(first, Lookup::empty()),
            b'f' => return self.walk(first, Lookup::NO_FOLLOW),
            b'n' => vfs.rename(&caller, cwd, first, cwd, second, 0),
            b'x' => vfs.rename(&caller, cwd, first, cwd, second, libc_exchange()),
            b'l' => match self.find(first, Lookup::NO_FOLLOW) {
                Ok(source) => vfs.link(&caller, &source, cwd, second),
                Err(error) => Err(error),
            },
            b'u' => vfs.unlink(&caller, cwd, first),
            b'd' => vfs.rmdir(&caller, cwd, first),
            b'o' => vfs.mknod(&caller, cwd, first, 0o100_644, 0).map(drop),
            b'b' => match (self.find(first, Lookup::empty()), self.find(second, Lookup::empty())) {
                (Ok(source), Ok(target)) => vfs.bind(&caller, &source, &target, true).map(drop),
                (Err(error), _) | (_, Err(error)) => Err(error),
            },
            b'q' => match self.find(first, Lookup::empty()) {
                Ok(target) => vfs.umount(&caller, &target, 0),
                Err(error) => Err(error),
            },
            b'w' => return self.walk_within(first, second, Resolve::BENEATH),
            b'v' => return self.walk_within(first, second, Resolve::IN_ROOT),
            _ => Err(Errno::EINVAL),
        })
    }
}

/// `RENAME_EXCHANGE`.
fn libc_exchange() -> u32 {
    2
}

fn run(input: &[u8]) -> Result<u64, String> {
    let fs = Tmpfs::new(TmpfsOptions {
        mode: 0o755,
        ..TmpfsOptions::default()
    })
    .file_system("tmpfs");
    let (vfs, root) = Vfs::new(&fs, MountFlags::empty());
    let tree = Tree {
        vfs,
        root,
        cred: Credentials::root(),
    };
    let mut parts = Vec::new();
    for line in input.split(|&byte| byte == b'\n').take(LINES) {
        let result = tree.line(line)?;
        parts.push(u64::from(line.first().copied().unwrap_or(0)) & 15);
        parts.push(result.map_or_else(|error| error.raw() as u64 & 15, |()| 0));
    }
    // Where walking ends matters more than how often.
    parts.sort_unstable();
    parts.dedup();
    Ok(outcome(&parts))
}
