//! Capabilities (capabilities(7)) of the calling thread.

use nix::errno::Errno;

/// A set of capabilities, one bit each, numbered as in `linux/capability.h`.
pub type Set = u64;

/// `CAP_CHOWN`.
pub const CHOWN: Set = 1 << 0;
/// `CAP_DAC_OVERRIDE`.
pub const DAC_OVERRIDE: Set = 1 << 1;
/// `CAP_DAC_READ_SEARCH`.
pub const DAC_READ_SEARCH: Set = 1 << 2;
/// `CAP_FOWNER`.
pub const FOWNER: Set = 1 << 3;
/// `CAP_FSETID`.
pub const FSETID: Set = 1 << 4;
/// `CAP_SETGID`.
pub const SETGID: Set = 1 << 6;
/// `CAP_SETUID`.
pub const SETUID: Set = 1 << 7;
/// `CAP_SETPCAP`.
pub const SETPCAP: Set = 1 << 8;
/// `CAP_SYS_ADMIN`.
pub const SYS_ADMIN: Set = 1 << 21;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The three sets that capget(2) knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct State {
    pub effective: Set,
    pub permitted: Set,
    pub inheritable: Set,
}

/// What this thread has.
pub fn get() -> nix::Result<State> {
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 fills exactly two entries.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) })?;
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(State {
        effective: join(data[0].effective, data[1].effective),
        permitted: join(data[0].permitted, data[1].permitted),
        inheritable: join(data[0].inheritable, data[1].inheritable),
    })
}

/// Sets them.
pub fn set(state: State) -> nix::Result<()> {
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let half = |shift: u32| Data {
        effective: (state.effective >> shift) as u32,
        permitted: (state.permitted >> shift) as u32,
        inheritable: (state.inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads exactly two entries.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &mut header, data.as_ptr()) })?;
    Ok(())
}

fn prctl(operation: i32, second: libc::c_ulong, third: libc::c_ulong) -> nix::Result<i32> {
    // SAFETY: the operations used here take plain numbers.
    Errno::result(unsafe { libc::prctl(operation, second, third, 0 as libc::c_ulong, 0 as libc::c_ulong) })
}

/// True if this thread has a seccomp filter already.
pub fn is_filtered() -> bool {
    prctl(libc::PR_GET_SECCOMP, 0, 0) == Ok(libc::SECCOMP_MODE_FILTER as i32)
}

/// Empties the bounding set, as far as the thread may; its capabilities stay, and an exec gives none.
pub fn empty_bounding_set() {
    for bit in 0..64 {
        if prctl(libc::PR_CAPBSET_DROP, bit, 0).is_err() {
            return;
        }
    }
}

/// Makes these capabilities outlive the exec of an ordinary file (ambient set).
pub fn keep_over_exec(capabilities: Set) -> nix::Result<()> {
    let mut state = get()?;
    state.inheritable = state.permitted & capabilities;
    set(state)?;
    for bit in 0..64 {
        if state.inheritable & 1 << bit != 0 {
            prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, bit)?;
        }
    }
    Ok(())
}

/// Gives up every capability but `keep`, in all sets, the bounding set included where the thread may change it.
/// What is in the bounding set afterwards.
pub fn drop_all_but(keep: Set) -> nix::Result<Set> {
    let mut bounding = 0;
    for bit in 0..64 {
        match prctl(libc::PR_CAPBSET_READ, bit, 0) {
            Ok(1) if keep & 1 << bit != 0 => bounding |= 1 << bit,
            Ok(1) if prctl(libc::PR_CAPBSET_DROP, bit, 0).is_err() => bounding |= 1 << bit,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    // Refused by kernels without ambient capabilities only.
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0);
    let permitted = get()?.permitted & keep;
    set(State {
        effective: permitted,
        permitted,
        inheritable: 0,
    })?;
    Ok(bounding)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_effective_set_is_part_of_the_permitted_one() {
        let state = super::get().unwrap();
        assert_eq!(state.effective & !state.permitted, 0);
    }
}
