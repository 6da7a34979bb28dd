//! What the host's kernel told this process about the machine (getauxval(3)).

/// A value of the auxiliary vector; 0 if it is not there.
fn get(kind: libc::c_ulong) -> u64 {
    // SAFETY: getauxval takes no memory.
    unsafe { libc::getauxval(kind) }
}

/// `AT_HWCAP`: cpuid(1).edx.
pub fn hwcap() -> u64 {
    get(libc::AT_HWCAP)
}

/// `AT_HWCAP2`.
pub fn hwcap2() -> u64 {
    get(libc::AT_HWCAP2)
}

/// `AT_MINSIGSTKSZ`: the size of the largest signal frame; 2048 where the host does not say.
pub fn min_signal_stack() -> u64 {
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    get(AT_MINSIGSTKSZ).max(2048)
}
