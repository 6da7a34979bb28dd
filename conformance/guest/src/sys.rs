//! Raw system calls and the few helpers that the cases share.
//!
//! Calls are made with the `syscall` instruction and not through libc, so that a case sees exactly what the
//! kernel answers: results are `-errno`.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Makes a system call; the result is as the kernel gives it.
#[macro_export]
macro_rules! sys {
    ($nr:expr $(, $arg:expr)*) => { $crate::sys::call($nr, &[$($crate::sys::Arg::raw($arg)),*]) };
}

/// What can be an argument of a call.
pub trait Arg {
    /// As the register holds it: signed numbers are sign-extended.
    fn raw(self) -> u64;
}

macro_rules! arg {
    ($($t:ty)*) => { $(impl Arg for $t { fn raw(self) -> u64 { self as u64 } })* };
}
arg!(i32 u32 i64 u64 usize);

impl<T> Arg for *const T {
    fn raw(self) -> u64 {
        self as u64
    }
}

impl<T> Arg for *mut T {
    fn raw(self) -> u64 {
        self as u64
    }
}

/// Fails the case unless both sides are equal.
#[macro_export]
macro_rules! eq {
    ($actual:expr, $expected:expr) => {{
        match (&$actual, &$expected) {
            (actual, expected) if *actual != *expected => $crate::sys::fail(
                file!(),
                line!(),
                format_args!("{}: expected {:?}, actual {:?}", stringify!($actual), expected, actual),
            ),
            _ => {}
        }
    }};
}

/// Fails the case unless the condition holds.
#[macro_export]
macro_rules! check {
    ($cond:expr) => {
        if !$cond {
            $crate::sys::fail(file!(), line!(), format_args!("expected: {}", stringify!($cond)));
        }
    };
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            $crate::sys::fail(file!(), line!(), format_args!("expected: {} ({})", stringify!($cond), format_args!($($arg)+)));
        }
    };
}

/// The non-negative result of a call; fails the case if it is an error.
#[macro_export]
macro_rules! ok {
    ($call:expr) => {{
        let result: i64 = $call;
        if result < 0 && result > -4096 {
            $crate::sys::fail(
                file!(),
                line!(),
                format_args!(
                    "{}: expected success, actual {}",
                    stringify!($call),
                    $crate::sys::Code(result)
                ),
            );
        }
        result
    }};
}

/// Fails the case unless the call gives this errno.
#[macro_export]
macro_rules! err {
    ($call:expr, $errno:expr) => {{
        let result: i64 = $call;
        let expected = -i64::from($errno);
        if result != expected {
            $crate::sys::fail(
                file!(),
                line!(),
                format_args!(
                    "{}: expected {}, actual {}",
                    stringify!($call),
                    $crate::sys::Code(expected),
                    $crate::sys::Code(result)
                ),
            );
        }
    }};
}

/// The system call itself; arguments that are not given are 0.
pub fn call(nr: i64, given: &[u64]) -> i64 {
    let mut args = [0; 6];
    args[..given.len()].copy_from_slice(given);
    let result: i64;
    // SAFETY: what a call does to memory is what the case means it to do.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Exit code of a case that failed.
pub const FAILED: i32 = 101;
/// Exit code of a case that does not apply here.
pub const SKIPPED: i32 = 77;

/// Says what was expected and ends the process.
pub fn fail(file: &str, line: u32, message: fmt::Arguments<'_>) -> ! {
    let file = file.rsplit('/').next().unwrap_or(file);
    let text = format!("{file}:{line}: {message}\n");
    sys!(libc::SYS_write, 2, text.as_ptr(), text.len());
    exit(FAILED)
}

/// Ends the case as not applicable.
pub fn skip(reason: &str) -> ! {
    let text = format!("skipped: {reason}\n");
    sys!(libc::SYS_write, 2, text.as_ptr(), text.len());
    exit(SKIPPED)
}

/// `exit_group`, without running anything of libc.
pub fn exit(code: i32) -> ! {
    loop {
        sys!(libc::SYS_exit_group, code);
    }
}

/// A result, printed with the errno's name.
pub struct Code(pub i64);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 && self.0 > -4096 {
            let name = ERRNOS
                .iter()
                .find(|(n, _)| i64::from(*n) == -self.0)
                .map_or("errno", |e| e.1);
            write!(f, "-{name} ({})", self.0)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

macro_rules! errnos {
    ($($name:ident)*) => { const ERRNOS: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*]; };
}
errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW ENOTSOCK EOPNOTSUPP ETIMEDOUT ESTALE ECANCELED
}

/// An address in the first page, which is never mapped.
pub const BAD: u64 = 0x10;
/// A non-canonical address.
pub const WILD: u64 = 0x8000_0000_0000_0000;
/// The size of a page.
pub const PAGE: usize = 4096;

/// A C string for a path.
pub fn c(path: &str) -> CString {
    CString::new(path).expect("no NUL in a path")
}

/// Runs `body` in a forked child, which exits with 0 when it returns. The child's pid.
pub fn child(body: impl FnOnce()) -> i32 {
    let pid = ok!(sys!(libc::SYS_fork));
    if pid == 0 {
        body();
        exit(0);
    }
    pid as i32
}

/// Waits for a child. Its wait status.
pub fn wait(pid: i32) -> i32 {
    let mut status = -1i32;
    loop {
        let r = sys!(libc::SYS_wait4, pid, &mut status as *mut i32, 0, 0);
        if r == -i64::from(libc::EINTR) {
            continue;
        }
        eq!(r, i64::from(pid));
        return status;
    }
}

/// waitid(2).
pub fn waitid(kind: u32, id: i32, info: &mut libc::siginfo_t, options: i32) -> i64 {
    sys!(libc::SYS_waitid, kind, id, info as *mut _, options, 0)
}

/// Waits for a child that must exit with 0. A child that skipped makes the case skipped.
pub fn reap(pid: i32) {
    let status = wait(pid);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == SKIPPED {
        exit(SKIPPED);
    }
    if status != 0 {
        fail(
            file!(),
            line!(),
            format_args!("the child's wait status: expected 0, actual {status:#x}"),
        );
    }
}

/// Runs `body` in a child and waits for it.
pub fn in_child(body: impl FnOnce()) {
    reap(child(body));
}

/// A pipe: (read end, write end).
pub fn pipe() -> (i32, i32) {
    pipe2(0)
}

/// A pipe with flags.
pub fn pipe2(flags: i32) -> (i32, i32) {
    let mut fds = [0i32; 2];
    ok!(sys!(libc::SYS_pipe2, fds.as_mut_ptr(), flags));
    (fds[0], fds[1])
}

/// open(2) relative to the working directory.
pub fn open(path: &str, flags: i32, mode: u32) -> i64 {
    let path = c(path);
    sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode)
}

/// Writes to a descriptor.
pub fn write(fd: i32, data: &[u8]) -> i64 {
    sys!(libc::SYS_write, fd, data.as_ptr(), data.len())
}

/// Reads at most `len` bytes; fails the case on an error.
pub fn read(fd: i32, len: usize) -> Vec<u8> {
    let mut buf = vec![0u8; len];
    let n = ok!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), len));
    buf.truncate(n as usize);
    buf
}

/// How many bytes can be read at once (`FIONREAD`).
pub fn waiting(fd: i32) -> i32 {
    let mut n = -1i32;
    ok!(sys!(libc::SYS_ioctl, fd, libc::FIONREAD, &mut n as *mut i32));
    n
}

/// fcntl(2) with a number.
pub fn fcntl(fd: i32, cmd: i32, arg: i64) -> i64 {
    sys!(libc::SYS_fcntl, fd, cmd, arg)
}

/// Closes a descriptor; fails the case on an error.
pub fn close(fd: i32) {
    eq!(sys!(libc::SYS_close, fd), 0);
}

/// Makes a file with this content in the working directory (or anywhere else).
pub fn file(path: &str, content: &[u8]) {
    let fd = ok!(open(path, libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY, 0o644)) as i32;
    eq!(write(fd, content), content.len() as i64);
    close(fd);
}

/// Opens a new file for reading and writing.
pub fn new_file(path: &str, content: &[u8]) -> i32 {
    let fd = ok!(open(path, libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR, 0o644)) as i32;
    eq!(write(fd, content), content.len() as i64);
    ok!(sys!(libc::SYS_lseek, fd, 0, libc::SEEK_SET));
    fd
}

/// The whole content of a file, by plain calls.
pub fn slurp(path: &str) -> Vec<u8> {
    let fd = ok!(open(path, libc::O_RDONLY, 0)) as i32;
    let mut all = Vec::new();
    loop {
        let part = read(fd, 65536);
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    close(fd);
    all
}

/// The whole content of a text file.
pub fn text(path: &str) -> String {
    String::from_utf8_lossy(&slurp(path)).into_owned()
}

/// mkdir(2).
pub fn mkdir(path: &str, mode: u32) -> i64 {
    let path = c(path);
    sys!(libc::SYS_mkdir, path.as_ptr(), mode)
}

/// unlink(2).
pub fn unlink(path: &str) -> i64 {
    let path = c(path);
    sys!(libc::SYS_unlink, path.as_ptr())
}

/// rename(2).
pub fn rename(from: &str, to: &str) -> i64 {
    let (from, to) = (c(from), c(to));
    sys!(libc::SYS_rename, from.as_ptr(), to.as_ptr())
}

/// link(2).
pub fn link(from: &str, to: &str) -> i64 {
    let (from, to) = (c(from), c(to));
    sys!(libc::SYS_link, from.as_ptr(), to.as_ptr())
}

/// rmdir(2).
pub fn rmdir(path: &str) -> i64 {
    let path = c(path);
    sys!(libc::SYS_rmdir, path.as_ptr())
}

/// symlink(2).
pub fn symlink(target: &str, path: &str) -> i64 {
    let (target, path) = (c(target), c(path));
    sys!(libc::SYS_symlink, target.as_ptr(), path.as_ptr())
}

/// stat(2): the result and the structure.
pub fn stat(path: &str) -> (i64, libc::stat) {
    let path = c(path);
    let mut st: libc::stat = zeroed();
    (sys!(libc::SYS_stat, path.as_ptr(), &mut st as *mut _), st)
}

/// fstat(2) that must succeed.
pub fn fstat(fd: i32) -> libc::stat {
    let mut st: libc::stat = zeroed();
    ok!(sys!(libc::SYS_fstat, fd, &mut st as *mut _));
    st
}

/// A zeroed C structure.
pub fn zeroed<T: Copy>() -> T {
    // SAFETY: used with plain C structures only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Maps anonymous private memory.
pub fn map(len: usize, prot: i32) -> *mut u8 {
    ok!(sys!(
        libc::SYS_mmap,
        0,
        len,
        prot,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0
    )) as *mut u8
}

/// Maps anonymous shared memory, readable and writable.
pub fn shared(len: usize) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    ok!(sys!(
        libc::SYS_mmap,
        0,
        len,
        prot,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        -1,
        0
    )) as *mut u8
}

/// An array of atomics in shared memory, for telling another process something.
pub fn shared_words() -> &'static [AtomicU32; 1024] {
    // SAFETY: the mapping is zeroed, large enough and never unmapped.
    unsafe { &*shared(PAGE).cast() }
}

/// A page with nothing mapped behind it: (start, its end).
pub fn guarded_page() -> (*mut u8, u64) {
    let p = map(2 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    let end = p as u64 + PAGE as u64;
    ok!(sys!(libc::SYS_munmap, end, PAGE));
    (p, end)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let mut ts: libc::timespec = zeroed();
    ok!(sys!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut ts as *mut _));
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Sleeps for this many milliseconds, however often signals come.
pub fn sleep_ms(ms: u64) {
    let mut ts = timespec_ms(ms);
    while sys!(libc::SYS_nanosleep, &ts as *const _, &mut ts as *mut _) == -i64::from(libc::EINTR) {}
}

/// A duration as the kernel wants it.
pub fn timespec_ms(ms: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ms / 1000) as i64,
        tv_nsec: (ms % 1000 * 1_000_000) as i64,
    }
}

/// Waits until `done` holds, and fails the case after ten seconds.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = now() + 10_000_000_000;
    while !done() {
        if now() > end {
            fail(file!(), line!(), format_args!("never happened: {what}"));
        }
        sys!(libc::SYS_nanosleep, &timespec_ms(1) as *const _, 0);
    }
}

/// Computes until the process has had so much of a processor.
pub fn compute_ms(ms: u64) {
    let mut used: libc::timespec = zeroed();
    while (used.tv_sec as u64) * 1000 + (used.tv_nsec as u64) / 1_000_000 < ms {
        ok!(sys!(
            libc::SYS_clock_gettime,
            libc::CLOCK_PROCESS_CPUTIME_ID,
            &mut used as *mut _
        ));
    }
}

/// The calling thread's id.
pub fn gettid() -> i32 {
    sys!(libc::SYS_gettid) as i32
}

/// The calling process's id.
pub fn getpid() -> i32 {
    sys!(libc::SYS_getpid) as i32
}

/// kill(2).
pub fn kill(pid: i32, signal: i32) -> i64 {
    sys!(libc::SYS_kill, pid, signal)
}

/// True if this process is user 0.
pub fn is_root() -> bool {
    sys!(libc::SYS_geteuid) == 0
}

/// Skips the case unless it runs as user 0.
pub fn need_root() {
    if !is_root() {
        skip("needs user 0");
    }
}

/// Becomes an ordinary user, if not one already.
pub fn drop_root() {
    if is_root() {
        ok!(sys!(libc::SYS_setresuid, 1234, 1234, 1234));
    }
}

/// True on a writable host directory of a sandbox, where set-id bits are stripped and only files, directories and
/// links can be made.
pub fn on_writable_host() -> bool {
    std::env::var("GUEST_PLACE").is_ok_and(|place| place == "writable")
}

/// Makes a FIFO; skips the case where that is refused by design.
pub fn fifo(path: &str) {
    let r = sys!(libc::SYS_mknod, c(path).as_ptr(), libc::S_IFIFO | 0o600, 0);
    if on_writable_host() {
        err!(r, libc::EPERM);
        skip("no FIFO is made on the host");
    }
    ok!(r);
}

/// The state letter of a task in /proc (`S`, `R`, `Z`, `T`, …), or `?`.
pub fn task_state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
        .unwrap_or('?')
}

// Signals.

/// How many signals [`on_signal`] has seen.
pub static SEEN: AtomicI32 = AtomicI32::new(0);
/// The number, code, sender and value of the last one.
pub static LAST: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// A handler that counts and remembers.
pub extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to SA_SIGINFO handlers.
    let info = unsafe { &*info };
    LAST[0].store(signal as u64, Ordering::SeqCst);
    LAST[1].store(info.si_code as i64 as u64, Ordering::SeqCst);
    // SAFETY: reading the union as the kill and queue forms, whatever it holds.
    unsafe {
        LAST[2].store(info.si_pid() as u64, Ordering::SeqCst);
        LAST[3].store(info.si_value().sival_ptr as u64, Ordering::SeqCst);
    }
    SEEN.fetch_add(1, Ordering::SeqCst);
}

/// What a [`LAST`] field holds.
pub fn last(field: usize) -> i64 {
    LAST[field].load(Ordering::SeqCst) as i64
}

/// How many signals were seen.
pub fn seen() -> i32 {
    SEEN.load(Ordering::SeqCst)
}

/// Installs [`on_signal`].
pub fn catch(signal: i32, flags: i32) {
    handle(signal, on_signal, flags);
}

/// Installs a three-argument handler (through libc, for its restorer).
pub fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void), flags: i32) {
    let mut action: libc::sigaction = zeroed();
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags | libc::SA_SIGINFO;
    // SAFETY: a valid action.
    let r = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    eq!(r, 0);
}

/// Sets a signal to its default or to be ignored.
pub fn disposition(signal: i32, to: libc::sighandler_t) {
    // SAFETY: SIG_DFL or SIG_IGN.
    unsafe { libc::signal(signal, to) };
}

/// The bit of a signal in a kernel signal set.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// rt_sigprocmask(2) with a kernel set; the old set.
pub fn sigmask(how: i32, set: u64) -> u64 {
    let mut old = 0u64;
    ok!(sys!(
        libc::SYS_rt_sigprocmask,
        how,
        &set as *const u64,
        &mut old as *mut u64,
        8
    ));
    old
}

/// rt_sigpending(2).
pub fn pending() -> u64 {
    let mut set = 0u64;
    ok!(sys!(libc::SYS_rt_sigpending, &mut set as *mut u64, 8));
    set
}

/// Runs `call` while another thread keeps sending it `signal`, so that it is surely interrupted.
pub fn interrupted<T>(signal: i32, flags: i32, call: impl FnOnce() -> T) -> T {
    interrupted_then(signal, flags, i32::MAX, || (), call)
}

/// As [`interrupted`], but after `count` signals have been handled `then` runs, once, in the other thread.
pub fn interrupted_then<T>(
    signal: i32,
    flags: i32,
    count: i32,
    then: impl FnOnce() + Send + 'static,
    call: impl FnOnce() -> T,
) -> T {
    catch(signal, flags);
    let (pid, tid) = (getpid(), gettid());
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    let start = seen();
    let helper = std::thread::spawn(move || {
        let mut then = Some(then);
        while !flag.load(Ordering::SeqCst) {
            sleep_ms(5);
            if seen().wrapping_sub(start) >= count {
                if let Some(then) = then.take() {
                    then();
                }
            } else if !flag.load(Ordering::SeqCst) {
                sys!(libc::SYS_tgkill, pid, tid, signal);
            }
        }
    });
    let result = call();
    done.store(true, Ordering::SeqCst);
    helper.join().expect("the helper thread ends");
    result
}

/// futex(2) wait on a word, private.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<&libc::timespec>) -> i64 {
    let timeout = timeout.map_or(std::ptr::null(), |t| t as *const _);
    sys!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        value,
        timeout
    )
}

/// futex(2) wake on a word, private.
pub fn futex_wake(word: &AtomicU32, count: i32) -> i64 {
    sys!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        count
    )
}
