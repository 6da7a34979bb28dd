//! Loading a program into a fresh guest process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_loader::stack::{self, StackInput};
use sentry_loader::{Backing, Elf, Image, Layout, MAX_SCRIPT_DEPTH, Plan, plan};
use sentry_platform::{GuestThread, Order, Registers};
use sentry_vfs::cred::{CapSet, Credentials};
use sentry_vfs::file::File;
use sentry_vfs::mount::MountFlags;
use sentry_vfs::ops::{At, Lookup};

use super::limits::Limits;
use super::{CallerContext, Resource};
use crate::Kernel;
use crate::mm::MemoryMap;
use crate::vdso::Vdso;

/// What to execute.
#[derive(Clone)]
pub(crate) struct Request {
    /// Where a relative path starts, if not at the working directory.
    pub dir: Option<Arc<File>>,
    /// The path.
    pub path: Vec<u8>,
    /// How to resolve it.
    pub lookup: Lookup,
    /// What the program is told that its path is.
    pub execfn: Vec<u8>,
    /// That path goes through a descriptor that is closed by then: no script can be read there.
    pub unreachable: bool,
    /// Arguments.
    pub argv: Vec<Vec<u8>>,
    /// Environment.
    pub envp: Vec<Vec<u8>>,
}

/// A program in a process of its own, stopped before its first instruction.
pub(crate) struct Loaded {
    pub guest: Arc<dyn GuestThread>,
    pub mm: Arc<MemoryMap>,
    pub cred: Credentials,
    pub comm: Vec<u8>,
    /// Ids were raised.
    pub secure: bool,
}

/// The most bytes of one write order.
const WRITE_MAX: usize = 48 << 10;
const SECBIT_NOROOT: u32 = 1;
const SECBIT_KEEP_CAPS: u32 = 1 << 4;

/// Loads a program. Nothing of the caller is changed; on an error the new process is gone.
pub(crate) async fn load(
    kernel: &Arc<Kernel>,
    context: &CallerContext,
    limits: &Limits,
    request: Request,
) -> Result<Loaded, Errno> {
    let stack_limit = limits.get(Resource::STACK).current;
    stack::check_size(&request.argv, &request.envp, &request.execfn, stack_limit)?;
    let mut argv = request.argv;
    let (program, elf) = open_program(
        kernel,
        context,
        &request.dir,
        &request.path,
        request.lookup,
        (&request.execfn, request.unreachable),
        &mut argv,
    )?;
    let interpreter = match elf.interpreter() {
        Some(path) => Some(open_interpreter(kernel, context, path)?),
        None => None,
    };
    let (cred, secure) = credentials(&context.cred, &program)?;

    let mut random = [0u8; 80];
    sentry_host::memory_file::random(&mut random)?;
    let (placement, seed) = random.split_at(64);
    let mut place = [0; 64];
    place.copy_from_slice(placement);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(seed);
    let plan = plan(
        &elf,
        interpreter.as_ref().map(|(_, elf)| elf),
        &layout(kernel, stack_limit),
        &place,
    )?;
    let input = StackInput {
        argv: &argv,
        envp: &request.envp,
        execfn: &request.execfn,
        random: bytes,
        uid: cred.uid,
        euid: cred.euid,
        gid: cred.gid,
        egid: cred.egid,
        secure,
        hwcap: sentry_host::auxv::hwcap(),
        hwcap2: sentry_host::auxv::hwcap2(),
        min_sigstack: sentry_host::auxv::min_signal_stack(),
        stack_limit,
        vdso: true,
    };
    let image = stack::build(&plan, &input)?;

    let program_fd = program.ops().mmap_file(&program, false, false)?;
    let interpreter_fd = match &interpreter {
        Some((file, _)) => Some(file.ops().mmap_file(file, false, false)?),
        None => None,
    };
    let guest = kernel.platform().new_process().await?;
    let mut orders = map_orders(&plan, interpreter_fd.is_some());
    let mut at = image.sp;
    for data in image.bytes.chunks(WRITE_MAX) {
        orders.push(Order::Write { addr: at, data });
        at = at.wrapping_add(data.len() as u64);
    }
    let fds = descriptors(&program_fd, interpreter_fd.as_ref(), kernel.vdso());
    let done = carry_out(&guest, &orders, &fds).await;
    if let Err(errno) = done {
        guest.exit();
        return Err(errno);
    }

    let mm = MemoryMap::new(guest.address_space().clone());
    mm.record_exec(&plan, &image, &program, interpreter.as_ref().map(|(file, _)| file));
    mm.keep(&program);
    if let Some((file, _)) = &interpreter {
        mm.keep(file);
    }
    guest.set_registers(&Registers {
        rip: plan.start,
        rsp: image.sp,
        eflags: 0x202,
        ..Registers::default()
    });
    let comm = request.execfn.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    Ok(Loaded {
        guest,
        mm,
        cred,
        comm: comm.iter().copied().take(15).collect(),
        secure,
    })
}

fn source(file: &Arc<File>) -> impl FnMut(u64, &mut [u8]) -> Result<usize, Errno> + use<> {
    let file = file.clone();
    move |offset, buf: &mut [u8]| file.ops().read(&file, buf, offset)
}

/// Opens the program, through as many scripts as there are.
fn open_program(
    kernel: &Kernel,
    context: &CallerContext,
    dir: &Option<Arc<File>>,
    path: &[u8],
    lookup: Lookup,
    (execfn, unreachable): (&[u8], bool),
    argv: &mut Vec<Vec<u8>>,
) -> Result<(Arc<File>, Elf), Errno> {
    let caller = context.caller();
    let at = dir.as_ref().map_or(At::Cwd, |dir| At::Path(dir.path()));
    let mut file = kernel.vfs().open_exec(&caller, at, path, lookup)?;
    let mut name = execfn.to_vec();
    for _ in 0..=MAX_SCRIPT_DEPTH {
        match Image::read(&mut source(&file))? {
            Image::Elf(elf) => return Ok((file, elf)),
            // Its interpreter could not open it.
            Image::Script(_) if unreachable => return Err(Errno::ENOENT),
            Image::Script(script) => {
                script.rewrite(argv, &name);
                file = kernel
                    .vfs()
                    .open_exec(&caller, At::Cwd, &script.interpreter, Lookup::empty())?;
                name = script.interpreter;
            }
        }
    }
    Err(Errno::ELOOP)
}

fn open_interpreter(kernel: &Kernel, context: &CallerContext, path: &[u8]) -> Result<(Arc<File>, Elf), Errno> {
    let file = kernel
        .vfs()
        .open_exec(&context.caller(), At::Cwd, path, Lookup::empty())?;
    let elf = Elf::read_interpreter(&mut source(&file))?;
    // Linux, too, keeps writers only from the program.
    file.release_text();
    Ok((file, elf))
}

fn layout(kernel: &Kernel, stack_limit: u64) -> Layout {
    let guest = kernel.platform().layout();
    /// More than any host's vDSO and its data take.
    const HOST_VDSO: u64 = 64 << 10;
    let mut reserved = Vec::new();
    if guest.host_vdso != 0 {
        let start = guest.host_vdso.saturating_sub(HOST_VDSO) & !(PAGE_SIZE - 1);
        reserved.push(sentry_loader::Range {
            start,
            end: guest.host_vdso.saturating_add(HOST_VDSO),
        });
    }
    let page = |addr: u64| addr & !(PAGE_SIZE - 1);
    Layout {
        low: guest.low.next_multiple_of(PAGE_SIZE),
        high: page(guest.high),
        mmap_base: page(guest.mmap_base),
        reserved,
        // "Unlimited" is not an amount; what is mapped and never touched costs nothing.
        stack_len: if stack_limit == u64::MAX { 64 << 20 } else { stack_limit },
    }
}

/// The descriptors, in the order in which [`map_orders`] counts them.
fn descriptors<'a>(
    program: &'a Arc<OwnedFd>,
    interpreter: Option<&'a Arc<OwnedFd>>,
    vdso: &'a Vdso,
) -> Vec<BorrowedFd<'a>> {
    let mut fds = vec![vdso.fd(), program.as_fd()];
    fds.extend(interpreter.map(|fd| fd.as_fd()));
    fds
}

/// Everything but the contents of the stack.
fn map_orders<'a>(plan: &Plan, interpreted: bool) -> Vec<Order<'a>> {
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let mut orders = Vec::new();
    for segment in &plan.segments {
        let (fd, offset) = match segment.backing {
            Backing::Program(offset) => (Some(1), offset),
            Backing::Interpreter(offset) if interpreted => (Some(2), offset),
            _ => (None, 0),
        };
        let flags = if fd.is_none() {
            fixed | libc::MAP_ANONYMOUS
        } else {
            fixed
        };
        orders.push(Order::Mmap {
            addr: segment.addr,
            len: segment.len,
            prot: segment.prot,
            flags,
            fd,
            offset,
        });
        if let Some((addr, len)) = segment.zero {
            orders.push(Order::Zero { addr, len });
        }
    }
    orders.extend(Vdso::orders(plan.vdso, 0));
    let executable = if plan.executable_stack { libc::PROT_EXEC } else { 0 };
    let prot = libc::PROT_READ | libc::PROT_WRITE | executable;
    let flags = fixed | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    orders.push(Order::Mmap {
        addr: plan.stack.start,
        len: plan.stack.len(),
        prot,
        flags,
        fd: None,
        offset: 0,
    });
    orders
}

/// Runs the orders; the first that fails is the error.
async fn carry_out(guest: &Arc<dyn GuestThread>, orders: &[Order<'_>], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let results = guest.run(orders, fds).await?;
    match results.iter().find(|result| (-4095..0).contains(*result)) {
        Some(&failed) => Err(Errno::from_raw(i32::try_from(-failed).unwrap_or(libc::ENOMEM))),
        None if results.len() < orders.len() => Err(Errno::ENOMEM),
        None => Ok(()),
    }
}

/// What execve(2) does to credentials: set-user-id and set-group-id bits, and capabilities (capabilities(7)).
fn credentials(old: &Credentials, program: &File) -> Result<(Credentials, bool), Errno> {
    let mut cred = old.clone();
    let attributes = program.attributes()?;
    let ignored = old.no_new_privs
        || program
            .path()
            .mount()
            .is_none_or(|mount| mount.flags().contains(MountFlags::NO_SUID));
    if !ignored && attributes.mode & libc::S_ISUID != 0 {
        cred.euid = attributes.uid;
    }
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    if !ignored && attributes.mode & group_bits == group_bits {
        cred.egid = attributes.gid;
    }
    (cred.suid, cred.fsuid) = (cred.euid, cred.euid);
    (cred.sgid, cred.fsgid) = (cred.egid, cred.egid);
    let raised = cred.euid != old.euid || cred.egid != old.egid;
    if raised {
        cred.ambient = CapSet::EMPTY;
    }
    let root = cred.securebits & SECBIT_NOROOT == 0 && (cred.uid == 0 || cred.euid == 0);
    if root {
        cred.permitted = cred.inheritable.union(cred.bounding);
        if old.no_new_privs {
            // Never more than before.
            cred.permitted = cred.permitted.intersection(old.permitted);
        }
        cred.effective = if cred.euid == 0 { cred.permitted } else { cred.ambient };
    } else {
        cred.permitted = cred.ambient;
        cred.effective = cred.ambient;
    }
    cred.securebits &= !SECBIT_KEEP_CAPS;
    let secure = cred.uid != cred.euid || cred.gid != cred.egid;
    Ok((cred, secure || raised))
}
