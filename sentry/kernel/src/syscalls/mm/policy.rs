//! NUMA policies: guests see one node, on which every policy means the same.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_platform::SyscallArgs;

use crate::syscalls::SysResult;
use crate::task::Thread;
use crate::user::{UserPtr, UserSlice};

const MPOL_DEFAULT: i32 = 0;
const MPOL_LOCAL: i32 = 4;
/// The highest policy there is (`MPOL_WEIGHTED_INTERLEAVE`).
const MPOL_LAST: i32 = 6;
/// `MPOL_F_STATIC_NODES`, `MPOL_F_RELATIVE_NODES`, `MPOL_F_NUMA_BALANCING`.
const MODE_FLAGS: i32 = 1 << 15 | 1 << 14 | 1 << 13;
/// The most nodes a mask may name.
const MAX_NODES: u64 = 4096;

fn check(thread: &Thread, mode: i32, mask: u64, max_node: u64) -> Result<(), Errno> {
    let mode = mode & !MODE_FLAGS;
    if !(0..=MPOL_LAST).contains(&mode) || max_node > MAX_NODES {
        return Err(Errno::EINVAL);
    }
    let words = if mask == 0 {
        0
    } else {
        max_node.saturating_sub(1).div_ceil(64) as usize
    };
    let nodes: Vec<u64> = UserSlice::new(mask, words).copy_in(thread, MAX_NODES as usize / 64)?;
    let first = nodes.first().copied().unwrap_or(0);
    let others = first & !1 != 0 || nodes.iter().skip(1).any(|&word| word != 0);
    let named = first & 1 != 0;
    match mode {
        MPOL_DEFAULT | MPOL_LOCAL if named || others => Err(Errno::EINVAL),
        MPOL_DEFAULT | MPOL_LOCAL => Ok(()),
        // MPOL_PREFERRED without a node means the local one.
        1 if !others => Ok(()),
        _ if named && !others => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn set_mempolicy(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    check(thread, args.args[0] as i32, args.args[1], args.args[2])?;
    Ok(0)
}

pub(super) fn mbind(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    let [addr, len, mode, mask, max_node, flags] = args.args;
    // MPOL_MF_STRICT, MPOL_MF_MOVE, MPOL_MF_MOVE_ALL.
    if flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let len = super::page_range(addr, len, Errno::EINVAL)?;
    check(thread, mode as i32, mask, max_node)?;
    if thread.mm().covers(addr, len) {
        Ok(0)
    } else {
        Err(Errno::EFAULT)
    }
}

pub(super) fn get_mempolicy(thread: &Arc<Thread>, args: &SyscallArgs) -> SysResult {
    const F_NODE: u64 = 1;
    const F_ADDR: u64 = 2;
    const F_MEMS_ALLOWED: u64 = 4;
    let [mode, mask, max_node, addr, flags, _] = args.args;
    let wrong = flags & !7 != 0
        || (flags & F_MEMS_ALLOWED != 0 && flags & (F_NODE | F_ADDR) != 0)
        || (flags & F_ADDR == 0 && addr != 0)
        || (mask != 0 && max_node == 0);
    if wrong {
        return Err(Errno::EINVAL);
    }
    if flags & F_ADDR != 0 && !thread.mm().covers(addr, 1) {
        return Err(Errno::EFAULT);
    }
    UserPtr::new(mode).copy_out_if(thread, &MPOL_DEFAULT)?;
    if mask != 0 {
        let words = max_node.min(MAX_NODES).div_ceil(64) as usize;
        let mut nodes = vec![0u64; words];
        if let Some(first) = nodes.first_mut() {
            *first = u64::from(flags & F_MEMS_ALLOWED != 0);
        }
        UserSlice::new(mask, words).copy_out(thread, &nodes)?;
    }
    Ok(0)
}
