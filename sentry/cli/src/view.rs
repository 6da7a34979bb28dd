//! What the guest sees of the host's files: the default view, `--root`, and the mounts asked for.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use sentry_kernel::config::{Access, Mount, MountKind};
use serde::{Deserialize, Serialize};

use crate::args::{Exec, User};

/// A host directory or file that the gofer serves (see [`sentry_gofer::server::Export`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Tree {
    pub id: u32,
    pub path: PathBuf,
    pub writable: bool,
    pub world_readable_only: bool,
    pub hide_credentials: bool,
}

impl Tree {
    /// What everybody may read below `path`, as the only tree.
    pub fn everybody(path: PathBuf) -> Tree {
        Tree {
            id: 0,
            path,
            writable: false,
            world_readable_only: true,
            hide_credentials: false,
        }
    }
}

impl From<Tree> for sentry_gofer::server::Export {
    fn from(tree: Tree) -> Self {
        let Tree {
            id,
            path,
            writable,
            world_readable_only,
            hide_credentials,
        } = tree;
        Self {
            id,
            path,
            writable,
            world_readable_only,
            hide_credentials,
        }
    }
}

/// The guest's files: mounts for the kernel, trees for the gofer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// In the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// By number, as the mounts name them.
    pub trees: Vec<Tree>,
    /// Where the command starts.
    pub cwd: PathBuf,
}

/// What keeps a view from being made.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A path that was named does not work.
    #[error("{option} {path}: {error}")]
    Path {
        /// The option that named it.
        option: &'static str,
        /// The path.
        path: String,
        /// What the host says.
        error: io::Error,
    },
    /// A mount point of the guest that cannot be one.
    #[error("{0}: a mount point must be an absolute path without `..`")]
    Target(String),
}

/// Served by default, where they exist (besides `/lib*`).
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/opt", "/etc"];
/// Fresh, and private to the guest.
const FRESH: [(&str, u32); 5] = [
    ("/tmp", 0o1777),
    ("/run", 0o755),
    ("/home", 0o755),
    ("/root", 0o700),
    ("/var/tmp", 0o1777),
];
/// The guest's own; the host's are never served.
const PSEUDO: [&str; 3] = ["/proc", "/dev", "/sys"];

/// The usual tree.
const SERVED: Tree = Tree {
    id: 0,
    path: PathBuf::new(),
    writable: false,
    world_readable_only: false,
    hide_credentials: false,
};

impl View {
    /// The view that the command line asks for.
    ///
    /// `root_user`: the caller is root on the host. `home`: a home directory to make, and whose it is.
    pub fn new(exec: &Exec, root_user: bool, home: Option<(&Path, User)>) -> Result<View, ViewError> {
        let mut view = View {
            cwd: PathBuf::from("/"),
            ..View::default()
        };
        match &exec.root {
            Some(root) => {
                let tree = view.tree("--root", root, false)?;
                view.mount(
                    "/",
                    MountKind::Gofer {
                        tree,
                        access: Access::Overlay,
                        directory: true,
                    },
                );
            }
            None => view.add_system(root_user),
        }
        view.mount("/proc", MountKind::Proc);
        view.mount("/dev", MountKind::Dev);
        view.mount("/sys", MountKind::Sys);
        if exec.root.is_none() {
            for (target, mode) in FRESH {
                view.mount(
                    target,
                    MountKind::Tmpfs {
                        size: None,
                        mode,
                        owner: (0, 0),
                    },
                );
            }
            view.add_home(home);
            view.add_working_directory();
        }
        for tmpfs in &exec.tmpfs {
            let target = guest_path(&tmpfs.target)?;
            view.mount(
                target,
                MountKind::Tmpfs {
                    size: tmpfs.size,
                    mode: 0o1777,
                    owner: (0, 0),
                },
            );
        }
        for (option, binds, writable) in [("--ro", &exec.ro, false), ("--rw", &exec.rw, true)] {
            for bind in binds {
                let tree = view.tree(option, &bind.source, writable)?;
                let source = &view.trees[tree as usize].path;
                let target = guest_path(bind.target.as_ref().unwrap_or(source))?;
                let directory = source.is_dir();
                let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
                view.mount(
                    target,
                    MountKind::Gofer {
                        tree,
                        access,
                        directory,
                    },
                );
            }
        }
        // Outer mounts first, else they would hide the inner ones. A stable sort: of two at one place the later wins.
        view.mounts.sort_by_key(|mount| {
            mount.target.iter().filter(|byte| **byte == b'/').count() * usize::from(mount.target != b"/")
        });
        if let Some(cwd) = &exec.cwd {
            view.cwd = match cwd.is_absolute() {
                true => cwd.clone(),
                false => view.cwd.join(cwd),
            };
        }
        Ok(view)
    }

    fn mount(&mut self, target: impl AsRef<Path>, kind: MountKind) {
        self.mounts.push(Mount {
            target: target.as_ref().as_os_str().as_bytes().to_vec(),
            kind,
        });
    }

    /// A tree that the command line names.
    fn tree(&mut self, option: &'static str, path: &Path, writable: bool) -> Result<u32, ViewError> {
        // The gofer follows no links, so the name is resolved here, once, while it is still the caller's word.
        let path = fs::canonicalize(path).map_err(|error| ViewError::Path {
            option,
            path: path.display().to_string(),
            error,
        })?;
        Ok(self.push_tree(Tree {
            path,
            writable,
            ..SERVED
        }))
    }

    fn push_tree(&mut self, tree: Tree) -> u32 {
        let id = self.trees.len() as u32;
        self.trees.push(Tree { id, ..tree });
        id
    }

    fn add_system(&mut self, root_user: bool) {
        self.mount(
            "/",
            MountKind::Tmpfs {
                size: None,
                mode: 0o755,
                owner: (0, 0),
            },
        );
        let libraries = fs::read_dir("/")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let mut libraries: Vec<_> = libraries
            .filter(|path| path.as_os_str().as_bytes().starts_with(b"/lib"))
            .collect();
        libraries.sort();
        for path in SYSTEM.into_iter().map(PathBuf::from).chain(libraries) {
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if metadata.is_symlink() {
                if let Ok(to) = fs::read_link(&path) {
                    self.mount(
                        &path,
                        MountKind::Symlink {
                            to: to.as_os_str().as_bytes().to_vec(),
                        },
                    );
                }
            } else if metadata.is_dir() {
                let tree = self.push_tree(Tree {
                    path: path.clone(),
                    world_readable_only: root_user,
                    ..SERVED
                });
                self.mount(
                    &path,
                    MountKind::Gofer {
                        tree,
                        access: Access::Overlay,
                        directory: true,
                    },
                );
            }
        }
    }

    /// Below the fresh directories, a home directory of the user's own, so that programs find it and may write.
    fn add_home(&mut self, home: Option<(&Path, User)>) {
        let Some((home, User { uid, gid })) = home else { return };
        let below_fresh = FRESH.iter().any(|(fresh, _)| home.starts_with(fresh));
        let Ok(target) = guest_path(home) else { return };
        if below_fresh && !FRESH.iter().any(|(fresh, _)| target == Path::new(fresh)) {
            self.mount(
                target,
                MountKind::Tmpfs {
                    size: None,
                    mode: 0o700,
                    owner: (uid, gid),
                },
            );
        }
    }

    /// Shows the current directory at its own place, unless it is shown already or must not be.
    fn add_working_directory(&mut self) {
        let Ok(cwd) = std::env::current_dir() else { return };
        self.show_working_directory(&cwd);
    }

    fn show_working_directory(&mut self, cwd: &Path) {
        if cwd == Path::new("/") || PSEUDO.iter().any(|pseudo| cwd.starts_with(pseudo)) {
            return;
        }
        self.cwd = cwd.to_owned();
        if self.trees.iter().any(|tree| cwd.starts_with(&tree.path)) {
            return;
        }
        let tree = self.push_tree(Tree {
            path: cwd.to_owned(),
            hide_credentials: true,
            ..SERVED
        });
        self.mount(
            cwd,
            MountKind::Gofer {
                tree,
                access: Access::Overlay,
                directory: true,
            },
        );
    }
}

/// A mount point: absolute, without `.`, `..` and double slashes.
fn guest_path(path: &Path) -> Result<PathBuf, ViewError> {
    let bad = || ViewError::Target(path.display().to_string());
    if !path.is_absolute() || path.as_os_str().as_bytes().contains(&0) {
        return Err(bad());
    }
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => clean.push(name),
            Component::ParentDir | Component::Prefix(_) => return Err(bad()),
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn view(args: &[&str]) -> Result<View, ViewError> {
        let all = ["sentry", "exec"].iter().chain(args).chain(&["true"]);
        let Command::Exec(exec) = Cli::try_parse_from(all).unwrap().command else {
            panic!()
        };
        View::new(&exec, true, Some((Path::new("/home/me"), User { uid: 7, gid: 8 })))
    }

    fn at<'a>(view: &'a View, target: &str) -> Option<&'a MountKind> {
        view.mounts
            .iter()
            .rfind(|mount| mount.target == target.as_bytes())
            .map(|mount| &mount.kind)
    }

    #[test]
    fn the_default_view_shows_the_system_and_hides_the_rest() {
        let view = view(&[]).unwrap();
        assert_eq!(view.mounts[0].target, b"/");
        assert!(matches!(
            at(&view, "/usr"),
            Some(MountKind::Gofer {
                access: Access::Overlay,
                ..
            })
        ));
        assert!(matches!(at(&view, "/tmp"), Some(MountKind::Tmpfs { mode: 0o1777, .. })));
        assert!(matches!(at(&view, "/proc"), Some(MountKind::Proc)));
        assert!(matches!(
            at(&view, "/home/me"),
            Some(MountKind::Tmpfs {
                mode: 0o700,
                owner: (7, 8),
                ..
            })
        ));
        assert!(at(&view, "/boot").is_none() && at(&view, "/var").is_none());
        assert!(view.trees.iter().all(|tree| !tree.writable));
        let usr = view.trees.iter().find(|tree| tree.path == Path::new("/usr")).unwrap();
        assert!(usr.world_readable_only);
    }

    #[test]
    fn outer_mounts_come_before_inner_ones() {
        let view = view(&["--tmpfs", "/a/b/c", "--tmpfs", "/a", "--ro", "/usr:/a/b"]).unwrap();
        let place = |target: &str| {
            view.mounts
                .iter()
                .position(|mount| mount.target == target.as_bytes())
                .unwrap()
        };
        assert!(place("/") == 0 && place("/a") < place("/a/b") && place("/a/b") < place("/a/b/c"));
    }

    #[test]
    fn a_root_of_ones_own_replaces_the_system() {
        let view = view(&["--root", "/usr"]).unwrap();
        assert!(matches!(
            at(&view, "/"),
            Some(MountKind::Gofer {
                tree: 0,
                access: Access::Overlay,
                directory: true
            })
        ));
        assert!(at(&view, "/usr").is_none() && at(&view, "/tmp").is_none());
        assert_eq!(view.cwd, Path::new("/"));
    }

    #[test]
    fn the_hosts_root_and_pseudo_file_systems_are_never_the_working_directory() {
        for odd in ["/", "/proc", "/proc/self", "/dev/shm", "/sys/kernel"] {
            let mut view = View {
                cwd: "/".into(),
                ..View::default()
            };
            view.show_working_directory(Path::new(odd));
            assert_eq!((view.cwd, view.trees), (PathBuf::from("/"), vec![]), "{odd}");
        }
    }

    #[test]
    fn bad_paths_are_told() {
        assert!(
            view(&["--ro", "/no/such/thing"])
                .unwrap_err()
                .to_string()
                .starts_with("--ro /no/such/thing: ")
        );
        assert!(view(&["--tmpfs", "/a/../b"]).is_err());
    }
}
