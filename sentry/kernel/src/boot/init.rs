//! The first process.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_lock::{Mutex, rank};
use sentry_vfs::cred::Credentials;
use sentry_vfs::ops::{At, Lookup, TaskIds};
use sentry_vfs::path::VfsPath;

use crate::Kernel;
use crate::config::{BootConfig, ExitStatus};
use crate::fd::FdTable;
use crate::namespace::MountNamespace;
use crate::signal::Actions;
use crate::stdio::Stdio;
use crate::task::{self, FsContext, Limits, Loaded, Request};

/// Where programs are looked for without a `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const UMASK: u32 = 0o022;

/// Why the program does not run, if it does not.
pub(super) type Outcome = Arc<Mutex<Option<ExitStatus>, rank::Outcome>>;

/// Prepares a task that loads the program and starts it. If that fails the workers stop.
pub(super) fn start(kernel: &Arc<Kernel>, config: &BootConfig, root: VfsPath, stdio: Stdio) -> Outcome {
    let outcome = Outcome::default();
    let (kernel2, config, result) = (kernel.clone(), config.clone(), outcome.clone());
    kernel.executor().spawn(0, async move {
        if let Err(status) = launch(&kernel2, &config, root, stdio).await {
            *result.lock() = Some(status);
            kernel2.executor().stop();
        }
    });
    outcome
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn launch(kernel: &Arc<Kernel>, config: &BootConfig, root: VfsPath, stdio: Stdio) -> Result<(), ExitStatus> {
    let failed = |what: String| ExitStatus::Failed(what);
    kernel.platform().prepare_process();
    let cred = Arc::new(Credentials::new(config.uid, config.gid, &config.groups));
    let mounts = MountNamespace::first(kernel.vfs(), &root);
    let fs = FsContext::new(root.clone(), root, UMASK, mounts);
    let ids = TaskIds { tgid: 1, tid: 1 };
    if !config.cwd.is_empty() {
        let context = fs.context(cred.clone(), ids);
        let caller = context.caller();
        let cwd = kernel
            .vfs()
            .resolve(&caller, At::Cwd, &config.cwd, Lookup::DIRECTORY)
            .and_then(|path| {
                kernel.vfs().check_directory(&caller, &path)?;
                Ok(path)
            });
        fs.set_cwd(cwd.map_err(|errno| failed(format!("working directory {}: {errno}", text(&config.cwd))))?);
    }
    let context = fs.context(cred.clone(), ids);
    let mut limits = Limits::default();
    if let Some(most) = config.limits.nofile {
        limits.set_most(task::Resource::NOFILE, most);
    }
    let loaded = find_and_load(kernel, &context, &limits, config).await?;

    let files = FdTable::new();
    let limit = limits.get(task::Resource::NOFILE).current;
    for (fd, file) in (0..).zip(stdio.files) {
        files
            .install_at(fd, file, false, limit)
            .map_err(|errno| failed(format!("descriptor {fd}: {errno}")))?;
    }
    task::start_init(kernel, loaded, Actions::new(), limits, files, fs, stdio.terminal)
        .map_err(|errno| failed(format!("first process: {errno}")))?;
    if let (Some(init), Some(path)) = (kernel.thread(1), config.argv.first()) {
        task::tell_exec(&init, path, &config.argv);
    }
    super::control::begin(kernel);
    Ok(())
}

/// Loads the command: by its path, or from the first directory of `PATH` that has it, as execvp(3) does.
async fn find_and_load(
    kernel: &Arc<Kernel>,
    context: &task::CallerContext,
    limits: &Limits,
    config: &BootConfig,
) -> Result<Loaded, ExitStatus> {
    let Some(name) = config.argv.first().filter(|name| !name.is_empty()) else {
        return Err(ExitStatus::NotFound("no command given".to_owned()));
    };
    let candidates: Vec<Vec<u8>> = if name.contains(&b'/') {
        vec![name.clone()]
    } else {
        let path = config.envp.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
        let dirs = path.unwrap_or(DEFAULT_PATH).split(|&byte| byte == b':');
        dirs.map(|dir| {
            if dir.is_empty() {
                name.clone()
            } else {
                [dir, b"/", name].concat()
            }
        })
        .collect()
    };
    let mut refused = None;
    for path in candidates {
        let argv = config.argv.clone();
        match load(kernel, context, limits, config, &path, argv).await {
            Ok(loaded) => return Ok(loaded),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(Errno::EACCES) => refused = Some(path),
            Err(Errno::ENOEXEC) => {
                let mut argv = vec![b"/bin/sh".to_vec(), path.clone()];
                argv.extend(config.argv.iter().skip(1).cloned());
                let loaded = load(kernel, context, limits, config, b"/bin/sh", argv).await;
                return loaded.map_err(|_| not_executable(&path, Errno::ENOEXEC));
            }
            // Not the file's fault: a part of the sandbox has gone, or there is no memory.
            Err(errno @ (Errno::EIO | Errno::ESRCH | Errno::EPIPE | Errno::ENOMEM)) => {
                return Err(ExitStatus::Failed(format!("{}: {errno}", text(&path))));
            }
            Err(errno) => return Err(not_executable(&path, errno)),
        }
    }
    Err(match refused {
        Some(path) => not_executable(&path, Errno::EACCES),
        None => ExitStatus::NotFound(format!("{}: command not found", text(name))),
    })
}

fn not_executable(path: &[u8], errno: Errno) -> ExitStatus {
    ExitStatus::NotExecutable(format!("{}: {errno}", text(path)))
}

async fn load(
    kernel: &Arc<Kernel>,
    context: &task::CallerContext,
    limits: &Limits,
    config: &BootConfig,
    path: &[u8],
    argv: Vec<Vec<u8>>,
) -> Result<Loaded, Errno> {
    let request = Request {
        dir: None,
        unreachable: false,
        path: path.to_vec(),
        lookup: Lookup::empty(),
        execfn: path.to_vec(),
        argv,
        envp: config.envp.clone(),
    };
    task::load(kernel, context, limits, request).await
}
