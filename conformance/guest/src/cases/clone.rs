//! fork(2), vfork(2), clone(2), clone3(2), and what a child inherits.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("clone": fork_returns_twice, fork_copies_memory, fork_shares_offsets, vfork_runs_first, threads_share_memory,
    thread_ids, settid_words, parent_settid, files_shared_or_copied, invalid_flags, clone3_basics, clone3_errors,
    grandchildren, many_children, many_threads, thread_local_registers, child_has_no_threads, exit_signal_none,
    clone_stack_runs_function, fork_in_thread);

fn fork_returns_twice() {
    let words = shared_words();
    let parent = getpid();
    let pid = child(|| {
        words[0].store(getpid() as u32, Ordering::SeqCst);
        eq!(sys!(libc::SYS_getppid), i64::from(parent));
        eq!(gettid(), getpid());
    });
    check!(pid > 0 && pid != parent);
    reap(pid);
    eq!(words[0].load(Ordering::SeqCst), pid as u32);
}

fn fork_copies_memory() {
    let mut data = vec![7u8; 3 * PAGE];
    let p = data.as_mut_ptr();
    in_child(|| {
        // SAFETY: inside the vector.
        unsafe { p.add(PAGE).write_volatile(9) };
        // SAFETY: as above.
        eq!(unsafe { p.add(PAGE).read_volatile() }, 9);
    });
    // SAFETY: as above.
    eq!(unsafe { p.add(PAGE).read_volatile() }, 7);
}

fn fork_shares_offsets() {
    let fd = new_file("f", b"abcdef");
    in_child(|| eq!(read(fd, 2), b"ab"));
    eq!(read(fd, 2), b"cd");
    // The descriptor table is a copy: closing in the child changes nothing here.
    in_child(|| close(fd));
    eq!(read(fd, 2), b"ef");
}

fn vfork_runs_first() {
    // The parent must not go on before the child has exited or called exec.
    let words = shared_words();
    let pid: i64;
    // SAFETY: the child only stores and exits; both run this code with the same stack, which neither unwinds.
    unsafe {
        std::arch::asm!(
            "mov eax, 58",
            "syscall",
            "test eax, eax",
            "jnz 2f",
            "mov dword ptr [{word}], 1",
            "mov edi, 5",
            "mov eax, 231",
            "syscall",
            "2:",
            word = in(reg) words[0].as_ptr(),
            lateout("rax") pid, out("rcx") _, out("r11") _, out("rdi") _,
        );
    }
    check!(pid > 0, "{pid}");
    eq!(words[0].load(Ordering::SeqCst), 1);
    eq!(libc::WEXITSTATUS(wait(pid as i32)), 5);
}

fn threads_share_memory() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let pid = getpid();
    let thread = std::thread::spawn(move || {
        eq!(getpid(), pid);
        check!(gettid() != pid);
        WORD.store(3, Ordering::SeqCst);
    });
    thread.join().expect("joined");
    eq!(WORD.load(Ordering::SeqCst), 3);
}

fn thread_ids() {
    let mut ids: Vec<i32> = (0..8).map(|_| std::thread::spawn(gettid)).map(|t| t.join().expect("joined")).collect();
    ids.sort_unstable();
    check!(ids.iter().all(|&t| t > getpid()), "{ids:?} after {}", getpid());
}

fn settid_words() {
    // CLONE_CHILD_SETTID writes in the child's memory, CLONE_CHILD_CLEARTID clears and wakes at the end.
    let words = shared_words();
    words[1].store(99, Ordering::SeqCst);
    let flags = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
    let pid = ok!(sys!(libc::SYS_clone, flags, 0, 0, words[1].as_ptr(), 0));
    if pid == 0 {
        words[0].store(words[1].load(Ordering::SeqCst), Ordering::SeqCst);
        exit(0);
    }
    reap(pid as i32);
    eq!(words[0].load(Ordering::SeqCst), pid as u32);
    // The word is cleared only where other threads or processes still use the address space.
    eq!(words[1].load(Ordering::SeqCst), pid as u32);
}

fn parent_settid() {
    let mut tid = 0i32;
    let pid = ok!(sys!(libc::SYS_clone, libc::CLONE_PARENT_SETTID | libc::SIGCHLD, 0, &mut tid as *mut i32, 0, 0));
    if pid == 0 {
        exit(0);
    }
    eq!(i64::from(tid), pid);
    reap(pid as i32);
}

fn files_shared_or_copied() {
    let fd = new_file("f", b"x");
    let pid = ok!(sys!(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0));
    if pid == 0 {
        close(fd);
        exit(0);
    }
    reap(pid as i32);
    err!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), libc::EBADF);
    // CLONE_FS shares the working directory and the umask.
    ok!(mkdir("d", 0o755));
    let pid = ok!(sys!(libc::SYS_clone, libc::CLONE_FS | libc::SIGCHLD, 0, 0, 0, 0));
    if pid == 0 {
        ok!(sys!(libc::SYS_chdir, c("d").as_ptr()));
        sys!(libc::SYS_umask, 0o070);
        exit(0);
    }
    reap(pid as i32);
    eq!(sys!(libc::SYS_umask, 0o022), 0o070);
    err!(open("f", libc::O_RDONLY, 0), libc::ENOENT);
    ok!(open("../f", libc::O_RDONLY, 0));
}

fn invalid_flags() {
    err!(sys!(libc::SYS_clone, libc::CLONE_THREAD | libc::SIGCHLD, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clone, libc::CLONE_SIGHAND | libc::SIGCHLD, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clone, libc::CLONE_THREAD | libc::CLONE_SIGHAND, 0, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_clone, libc::CLONE_NEWNS | libc::CLONE_FS | libc::SIGCHLD, 0, 0, 0, 0), libc::EINVAL);
}

/// `struct clone_args`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

fn clone3_basics() {
    let mut tid = 0i32;
    let args = CloneArgs {
        flags: libc::CLONE_PARENT_SETTID as u64,
        parent_tid: &mut tid as *mut i32 as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    let pid = ok!(sys!(libc::SYS_clone3, &args as *const _, 64));
    if pid == 0 {
        exit(7);
    }
    eq!(i64::from(tid), pid);
    eq!(libc::WEXITSTATUS(wait(pid as i32)), 7);
}

fn clone3_errors() {
    let args = CloneArgs { exit_signal: 200, ..CloneArgs::default() };
    err!(sys!(libc::SYS_clone3, &args as *const _, 64), libc::EINVAL);
    let args = CloneArgs { stack_size: 4096, ..CloneArgs::default() };
    err!(sys!(libc::SYS_clone3, &args as *const _, 64), libc::EINVAL);
    let args = CloneArgs::default();
    err!(sys!(libc::SYS_clone3, &args as *const _, 63), libc::EINVAL);
    err!(sys!(libc::SYS_clone3, &args as *const _, 5000), libc::E2BIG);
    err!(sys!(libc::SYS_clone3, BAD, 64), libc::EFAULT);
    let args = CloneArgs { flags: 0xff, ..CloneArgs::default() };
    err!(sys!(libc::SYS_clone3, &args as *const _, 64), libc::EINVAL);
}

fn grandchildren() {
    let words = shared_words();
    in_child(|| {
        in_child(|| {
            words[0].fetch_add(1, Ordering::SeqCst);
            in_child(|| {
                words[0].fetch_add(1, Ordering::SeqCst);
            });
        })
    });
    eq!(words[0].load(Ordering::SeqCst), 2);
}

fn many_children() {
    let words = shared_words();
    let pids: Vec<i32> = (0..40)
        .map(|i| {
            child(move || {
                words[0].fetch_add(1, Ordering::SeqCst);
                exit(i);
            })
        })
        .collect();
    for (i, pid) in pids.into_iter().enumerate() {
        eq!(libc::WEXITSTATUS(wait(pid)), i as i32);
    }
    eq!(words[0].load(Ordering::SeqCst), 40);
}

fn many_threads() {
    static SUM: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (1..=32u32)
        .map(|i| {
            std::thread::spawn(move || {
                for _ in 0..100 {
                    SUM.fetch_add(i, Ordering::SeqCst);
                    sys!(libc::SYS_sched_yield);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    eq!(SUM.load(Ordering::SeqCst), 100 * 32 * 33 / 2);
}

fn thread_local_registers() {
    // Each thread has its own fs base and vector state, over system calls that enter the kernel.
    thread_local!(static MINE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    let threads: Vec<_> = (0..4u64)
        .map(|i| {
            std::thread::spawn(move || {
                MINE.set(i);
                for n in 0..200u64 {
                    let value = i << 32 | n;
                    let back: u64;
                    // SAFETY: getppid changes no memory.
                    unsafe {
                        std::arch::asm!(
                            "movq xmm9, {v}",
                            "mov eax, 110",
                            "syscall",
                            "movq {b}, xmm9",
                            v = in(reg) value, b = lateout(reg) back,
                            out("rax") _, out("rcx") _, out("r11") _, out("xmm9") _,
                        );
                    }
                    eq!(back, value);
                    eq!(MINE.get(), i);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("joined"));
}

fn child_has_no_threads() {
    let (r, w) = pipe();
    let thread = std::thread::spawn(move || read(r, 1));
    in_child(|| eq!(std::fs::read_dir("/proc/self/task").expect("task directory").count(), 1));
    write(w, b"x");
    eq!(thread.join().expect("joined"), b"x");
}

fn exit_signal_none() {
    // A child without an exit signal is waited for only with __WALL or __WCLONE.
    let pid = ok!(sys!(libc::SYS_clone, 0, 0, 0, 0, 0));
    if pid == 0 {
        exit(3);
    }
    err!(sys!(libc::SYS_wait4, pid, 0, 0, 0), libc::ECHILD);
    let mut status = 0i32;
    eq!(sys!(libc::SYS_wait4, pid, &mut status as *mut i32, libc::__WALL, 0), pid);
    eq!(libc::WEXITSTATUS(status), 3);
}

extern "C" fn on_new_stack(arg: *mut libc::c_void) -> libc::c_int {
    let here = 0u8;
    // SAFETY: the parent passes a shared word.
    let word = unsafe { &*arg.cast::<AtomicU32>() };
    word.store((&here as *const u8 as u64 >> 12) as u32, Ordering::SeqCst);
    11
}

fn clone_stack_runs_function() {
    let words = shared_words();
    let stack = map(16 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the stack is ours; CLONE_VM | CLONE_VFORK suspends this thread meanwhile.
    let pid = unsafe {
        libc::clone(
            on_new_stack,
            stack.add(16 * PAGE).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            words[0].as_ptr().cast(),
        )
    };
    check!(pid > 0);
    eq!(libc::WEXITSTATUS(wait(pid)), 11);
    let page = u64::from(words[0].load(Ordering::SeqCst));
    let first = stack as u64 >> 12 & 0xffff_ffff;
    check!(page >= first && page < first + 16, "{page:#x} {first:#x}");
}

fn fork_in_thread() {
    let thread = std::thread::spawn(|| {
        let tid = gettid();
        let pid = child(|| {
            eq!(getpid(), gettid());
            check!(getpid() != tid);
        });
        reap(pid);
    });
    thread.join().expect("joined");
}
