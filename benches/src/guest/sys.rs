//! Raw system calls.

/// What can be an argument of a call.
pub trait Arg {
    /// As the register holds it.
    fn raw(self) -> u64;
}

impl<T: ?Sized> Arg for *const T {
    fn raw(self) -> u64 {
        self.cast::<u8>() as u64
    }
}

/// Makes a system call; arguments that are not given are 0. The result is as the kernel gives it.
#[inline(always)]
pub fn call(number: i64, given: &[u64]) -> i64 {
    let argument = |index: usize| given.get(index).copied().unwrap_or(0);
    let result: i64;
    // SAFETY: the rows pass pointers to live memory of the size that the call is told.
    unsafe {
        std::arch::asm!(
            "nop",
            "syscall",
            inlateout("rax") number => result,
            in("rdi") argument(0),
            in("rsi") argument(1),
            in("rdx") argument(2),
            in("r10") argument(3),
            in("r8") argument(4),
            in("r9") argument(5),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// vfork(2) and execve(2) at once; the child's process id, or an error. The child uses no stack, so it disturbs
/// nothing of its parent's.
pub fn vfork_exec(path: u64, argv: u64, envp: u64) -> i64 {
    let result: i64;
    // SAFETY: the child only makes calls, with registers that the parent sets again afterwards.
    unsafe {
        std::arch::asm!(
            "nop",
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, 59",
            "nop",
            "syscall",
            "mov edi, 127",
            "mov eax, 60",
            "nop",
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") 58_i64 => result,
            inlateout("rdi") path => _,
            in("rsi") argv,
            in("rdx") envp,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Writes a byte into each page of `[address, address + length)`.
pub fn touch(address: u64, length: usize) {
    for offset in (0..length).step_by(4096) {
        // SAFETY: the caller has mapped the range writable.
        unsafe { ((address as usize + offset) as *mut u8).write_volatile(1) };
    }
}
