//! Names the host calls that a filter under [`crate::filter::Outside::Trap`] refuses. For developers only.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

/// Numbers seen before are not told again; one bit each.
static SEEN: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

fn decimal(mut value: u64, out: &mut [u8; 20]) -> &[u8] {
    let mut at = out.len();
    loop {
        at -= 1;
        out[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &out[at..];
        }
    }
}

extern "C" fn handler(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and ucontext to an SA_SIGINFO handler.
    let (context, code) = unsafe { (&mut *context.cast::<libc::ucontext_t>(), (*info).si_code) };
    // SYS_SECCOMP
    if code != 1 {
        return;
    }
    let registers = &mut context.uc_mcontext.gregs;
    let number = registers[libc::REG_RAX as usize] as u64;
    let word = (number / 64).min(7) as usize;
    let bit = 1usize << (number % 64);
    if SEEN[word].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        let args = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10].map(|index| registers[index as usize]);
        let put = |bytes: &[u8]| {
            // SAFETY: write(2) from valid memory; async-signal-safe.
            unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
        };
        let mut digits = [0; 20];
        put(b"sentry: host call outside the list: number ");
        put(decimal(number, &mut digits));
        for arg in args {
            put(b" ");
            put(decimal(arg as u64, &mut digits));
        }
        put(b"\n");
    }
    registers[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
}

/// Installs the handler for this process: refused calls are told on standard error and fail with `ENOSYS`.
pub fn report() -> nix::Result<()> {
    // SAFETY: an all-zero sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler touches only its arguments and an atomic, and makes only write(2).
    Errno::result(unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) })?;
    Ok(())
}
