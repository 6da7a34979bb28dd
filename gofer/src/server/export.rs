//! What is served: exports, and what is left out of them.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};
use sentry_host::files;

use super::ServerError;

/// Names below which people keep credentials, as components from the end of a path. An export with
/// [`Export::hide_credentials`] has no such files or directories, at any depth: they are not found, not listed and
/// cannot be made. ASCII letters count as equal in both cases.
pub const CREDENTIALS: &[&[&str]] = &[
    &[".ssh"],
    &[".aws"],
    &[".azure"],
    &[".gnupg"],
    &[".kube"],
    &[".docker"],
    &[".netrc"],
    &["_netrc"],
    &[".git-credentials"],
    &[".pypirc"],
    &[".pgpass"],
    &[".my.cnf"],
    &[".vault-token"],
    &[".password-store"],
    &[".config", "gcloud"],
    &[".config", "gh"],
    &[".config", "git", "credentials"],
    &[".local", "share", "keyrings"],
    &[".cargo", "credentials"],
    &[".cargo", "credentials.toml"],
    &[".terraform.d", "credentials.tfrc.json"],
];

/// The most components that a rule of [`CREDENTIALS`] looks at.
pub(super) const CREDENTIAL_DEPTH: usize = 3;

/// A host directory, or a single regular file, to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// By which the sentry attaches to it.
    pub id: u32,
    /// Where it is on the host. Opened once, at start; links in this path are followed, those below are not.
    pub path: PathBuf,
    /// Whether it can be changed.
    pub writable: bool,
    /// Serve only what everybody may read, whoever the gofer runs as: files with the others' read bit, in
    /// directories with the others' read bit (to list) and execute bit (to pass).
    pub world_readable_only: bool,
    /// Leave [`CREDENTIALS`] out.
    pub hide_credentials: bool,
}

/// An export whose place on the host is held open.
pub(super) struct OpenExport {
    pub(super) id: u32,
    /// The directory, or the directory of the single file.
    pub(super) base: OwnedFd,
    /// The single file's name in `base`.
    pub(super) single: Option<Box<[u8]>>,
    /// The single file itself, for the Landlock rule.
    pub(super) file: Option<OwnedFd>,
    /// `base` is a tree of mounts of its own, above which there is nothing.
    pub(super) detached: bool,
    pub(super) writable: bool,
    pub(super) world_readable_only: bool,
    pub(super) hide_credentials: bool,
}

impl OpenExport {
    /// Opens the export's place; as a tree of mounts of its own if `detach` says so and the host allows it.
    pub(super) fn open(export: &Export, detach: bool) -> Result<OpenExport, ServerError> {
        let fail = |error: nix::errno::Errno| ServerError::Export {
            path: export.path.clone(),
            error: error.into(),
        };
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let directory = |path: &Path| {
            let detached = CString::new(path.as_os_str().as_bytes())
                .ok()
                .filter(|_| detach)
                .and_then(|path| files::clone_tree(&path).ok());
            match detached {
                Some(tree) => Ok((tree, true)),
                None => open(path, flags | OFlag::O_DIRECTORY, Mode::empty()).map(|fd| (fd, false)),
            }
        };
        let place = open(&export.path, flags, Mode::empty()).map_err(fail)?;
        let stat = fstat(&place).map_err(fail)?;
        let ((base, detached), single, file) = match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => (directory(&export.path).map_err(fail)?, None, None),
            libc::S_IFREG => {
                // Links in the path of the file end here too, so that its last component is a name.
                let path = export.path.canonicalize().map_err(|error| ServerError::Export {
                    path: export.path.clone(),
                    error,
                })?;
                let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(fail(nix::errno::Errno::EINVAL));
                };
                let base = directory(parent).map_err(fail)?;
                let file = openat(&base.0, name, flags | OFlag::O_NOFOLLOW, Mode::empty()).map_err(fail)?;
                (base, Some(name.as_bytes().into()), Some(file))
            }
            _ => return Err(ServerError::NeitherFileNorDirectory(export.path.clone())),
        };
        if export.writable && export.world_readable_only {
            return Err(ServerError::Contradiction(export.path.clone()));
        }
        Ok(OpenExport {
            id: export.id,
            base,
            single,
            file,
            detached,
            writable: export.writable,
            world_readable_only: export.world_readable_only,
            hide_credentials: export.hide_credentials,
        })
    }

    /// What a Landlock rule grants access to.
    pub(super) fn place(&self) -> BorrowedFd<'_> {
        self.file.as_ref().unwrap_or(&self.base).as_fd()
    }

    /// True if `name`, in a directory whose last components are `parents` (outermost first), is hidden.
    pub(super) fn hides(&self, parents: &[&[u8]], name: &[u8]) -> bool {
        self.hide_credentials && CREDENTIALS.iter().any(|rule| matches(rule, parents, name))
    }

    /// The rest of every hidden path that passes through `name` in a directory with the last components `parents`:
    /// what must not be below a directory that is renamed away from there.
    pub(super) fn hidden_below(&self, parents: &[&[u8]], name: &[u8]) -> Vec<CString> {
        if !self.hide_credentials {
            return Vec::new();
        }
        let mut rests = Vec::new();
        for rule in CREDENTIALS {
            for passed in 1..rule.len() {
                if matches(&rule[..passed], parents, name) {
                    rests.extend(CString::new(rule[passed..].join("/")));
                }
            }
        }
        rests
    }
}

fn matches(rule: &[&str], parents: &[&[u8]], name: &[u8]) -> bool {
    let Some((last, before)) = rule.split_last() else {
        return false;
    };
    let same = |rule: &str, component: &[u8]| same_name(rule.as_bytes(), component);
    same(last, name)
        && before.len() <= parents.len()
        && before
            .iter()
            .rev()
            .zip(parents.iter().rev())
            .all(|(rule, component)| same(rule, component))
}

/// True if a directory that folds case could take both names for the same. Unicode's folding maps two letters
/// outside ASCII into it: the long s and the Kelvin sign; and it ignores some characters altogether, which is
/// why every other character outside ASCII is skipped.
fn same_name(rule: &[u8], name: &[u8]) -> bool {
    if name.is_ascii() {
        return rule.eq_ignore_ascii_case(name);
    }
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    let folded = name.chars().filter_map(|letter| match letter {
        '\u{17f}' => Some('s'),
        '\u{212a}' => Some('k'),
        letter if letter.is_ascii() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    folded.eq(rule.iter().map(|byte| char::from(*byte).to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(hide_credentials: bool) -> OpenExport {
        let path = std::env::temp_dir();
        let export = Export {
            id: 0,
            path,
            writable: false,
            world_readable_only: false,
            hide_credentials,
        };
        OpenExport::open(&export, false).expect("the temporary directory")
    }

    #[test]
    fn the_deepest_rule_fits() {
        assert_eq!(CREDENTIALS.iter().map(|rule| rule.len()).max(), Some(CREDENTIAL_DEPTH));
    }

    #[test]
    fn hides_credentials_at_any_depth() {
        let export = export(true);
        assert!(export.hides(&[], b".ssh"));
        assert!(export.hides(&[b"home", b"me"], b".ssh"));
        assert!(export.hides(&[], b".SSH"));
        assert!(export.hides(&[], ".\u{17f}sh".as_bytes()));
        assert!(export.hides(&[], ".s\u{200d}sh".as_bytes()));
        assert!(export.hides(&[b"me", b".config"], b"gcloud"));
        assert!(export.hides(&[b".config", b"git"], b"credentials"));
        assert!(!export.hides(&[b"git"], b"credentials"));
        assert!(!export.hides(&[b"me"], b"gcloud"));
        assert!(!export.hides(&[b".config"], b".config"));
        assert!(!export.hides(&[], b"ssh"));
        assert!(!export.hides(&[], b".ssh2"));
    }

    #[test]
    fn knows_what_a_rename_would_reveal() {
        let export = export(true);
        let below = export.hidden_below(&[b"me"], b".config");
        for rest in [c"gcloud", c"gh", c"git/credentials"] {
            assert!(below.iter().any(|path| path.as_c_str() == rest));
        }
        assert_eq!(export.hidden_below(&[b".config"], b"git"), [c"credentials".to_owned()]);
        assert!(export.hidden_below(&[], b"src").is_empty());
    }

    #[test]
    fn can_be_switched_off() {
        assert!(!export(false).hides(&[], b".ssh"));
    }
}
