//! Which calls are made, and what kind each of their arguments is.

/// What an argument is drawn from. Now and then any of them is something else altogether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A descriptor, open or not.
    Fd,
    /// A directory descriptor for the `*at` calls, AT_FDCWD among them.
    At,
    /// The address of a buffer.
    Buffer,
    /// The address of an array of `iovec`s.
    Vector,
    /// The address of a structure whose words are small numbers, addresses and descriptors.
    Struct,
    /// The address of a path.
    Path,
    /// The address of a NULL-terminated array of strings.
    Strings,
    /// How many bytes.
    Length,
    /// How many things.
    Count,
    /// A position in a file.
    Offset,
    /// A number below 64, of a command or an option.
    Small,
    /// A few bits.
    Flags,
    /// Permission bits.
    Mode,
    /// A signal's number.
    Signal,
    /// A process or a group that this process may do harm to.
    Process,
    /// A user or a group.
    User,
    /// An address in the range that memory calls may change.
    Address,
    /// The size of a mapping.
    Size,
    /// A futex word.
    Word,
    /// The number of an ioctl.
    Ioctl,
    /// A time in a structure, or none: short.
    Time,
    /// Anything.
    Any,
}

/// A call: its number and its arguments' kinds; those that are not named are anything.
pub type Call = (i64, &'static [Kind]);

macro_rules! calls {
    ($($name:ident($($kind:ident)*)),* $(,)?) => { &[$((libc::$name, &[$(Kind::$kind),*])),*] };
}

/// The calls that are made with arguments that fit. All other numbers are made too, more rarely.
pub const CALLS: &[Call] = calls![
    // Files by descriptor.
    SYS_read(Fd Buffer Length), SYS_write(Fd Buffer Length), SYS_readv(Fd Vector Count), SYS_writev(Fd Vector Count),
    SYS_pread64(Fd Buffer Length Offset), SYS_pwrite64(Fd Buffer Length Offset),
    SYS_preadv(Fd Vector Count Offset), SYS_pwritev(Fd Vector Count Offset),
    SYS_preadv2(Fd Vector Count Offset Any Flags), SYS_pwritev2(Fd Vector Count Offset Any Flags),
    SYS_lseek(Fd Offset Small), SYS_close(Fd), SYS_close_range(Fd Fd Flags), SYS_dup(Fd), SYS_dup2(Fd Fd),
    SYS_dup3(Fd Fd Flags), SYS_fcntl(Fd Small Struct), SYS_fcntl(Fd Small Small), SYS_ioctl(Fd Ioctl Struct),
    SYS_fstat(Fd Buffer), SYS_ftruncate(Fd Offset), SYS_fallocate(Fd Small Offset Length), SYS_fsync(Fd),
    SYS_fdatasync(Fd), SYS_sync_file_range(Fd Offset Length Flags), SYS_flock(Fd Small), SYS_fchmod(Fd Mode),
    SYS_fchown(Fd User User), SYS_fchdir(Fd), SYS_getdents(Fd Buffer Length), SYS_getdents64(Fd Buffer Length),
    SYS_fstatfs(Fd Buffer), SYS_fadvise64(Fd Offset Length Small), SYS_readahead(Fd Offset Length),
    SYS_sendfile(Fd Fd Struct Length), SYS_splice(Fd Struct Fd Struct Length Flags), SYS_tee(Fd Fd Length Flags),
    SYS_vmsplice(Fd Vector Count Flags), SYS_copy_file_range(Fd Struct Fd Struct Length Flags),
    SYS_fgetxattr(Fd Path Buffer Length), SYS_fsetxattr(Fd Path Buffer Length Flags),
    SYS_flistxattr(Fd Buffer Length), SYS_fremovexattr(Fd Path),
    // Files by path.
    SYS_open(Path Flags Mode), SYS_openat(At Path Flags Mode), SYS_openat2(At Path Struct Length), SYS_creat(Path Mode),
    SYS_stat(Path Buffer), SYS_lstat(Path Buffer), SYS_newfstatat(At Path Buffer Flags),
    SYS_statx(At Path Flags Flags Buffer), SYS_access(Path Small), SYS_faccessat(At Path Small),
    SYS_faccessat2(At Path Small Flags), SYS_mkdir(Path Mode), SYS_mkdirat(At Path Mode), SYS_rmdir(Path),
    SYS_unlink(Path), SYS_unlinkat(At Path Flags), SYS_rename(Path Path), SYS_renameat(At Path At Path),
    SYS_renameat2(At Path At Path Small), SYS_link(Path Path), SYS_linkat(At Path At Path Flags),
    SYS_symlink(Path Path), SYS_symlinkat(Path At Path), SYS_readlink(Path Buffer Length),
    SYS_readlinkat(At Path Buffer Length), SYS_mknod(Path Mode Small), SYS_mknodat(At Path Mode Small),
    SYS_chmod(Path Mode), SYS_fchmodat(At Path Mode), SYS_fchmodat2(At Path Mode Flags), SYS_chown(Path User User),
    SYS_lchown(Path User User), SYS_fchownat(At Path User User Flags), SYS_truncate(Path Offset),
    SYS_utimensat(At Path Struct Flags), SYS_utimes(Path Struct), SYS_utime(Path Struct), SYS_futimesat(At Path Struct),
    SYS_statfs(Path Buffer), SYS_chdir(Path), SYS_chroot(Path), SYS_getcwd(Buffer Length),
    SYS_getxattr(Path Path Buffer Length), SYS_lgetxattr(Path Path Buffer Length),
    SYS_setxattr(Path Path Buffer Length Flags), SYS_lsetxattr(Path Path Buffer Length Flags),
    SYS_listxattr(Path Buffer Length), SYS_llistxattr(Path Buffer Length), SYS_removexattr(Path Path),
    SYS_name_to_handle_at(At Path Struct Struct Flags), SYS_open_by_handle_at(Fd Struct Flags),
    SYS_mount(Path Path Path Flags Buffer), SYS_umount2(Path Flags), SYS_pivot_root(Path Path),
    SYS_inotify_add_watch(Fd Path Flags), SYS_inotify_rm_watch(Fd Small), SYS_inotify_init1(Flags),
    // Descriptors that are made.
    SYS_pipe(Buffer), SYS_pipe2(Buffer Flags), SYS_eventfd2(Small Flags), SYS_epoll_create1(Flags),
    SYS_epoll_ctl(Fd Small Fd Struct), SYS_epoll_wait(Fd Buffer Small Small),
    SYS_epoll_pwait(Fd Buffer Small Small Struct Small), SYS_epoll_pwait2(Fd Buffer Small Time Struct Small),
    SYS_timerfd_create(Small Flags), SYS_timerfd_settime(Fd Small Struct Buffer), SYS_timerfd_gettime(Fd Buffer),
    SYS_signalfd4(Fd Struct Small Flags), SYS_memfd_create(Path Flags), SYS_poll(Struct Small Small),
    SYS_ppoll(Struct Small Time Struct Small), SYS_select(Small Struct Struct Struct Time),
    SYS_pselect6(Small Struct Struct Struct Time Struct),
    // Sockets.
    SYS_socket(Small Small Small), SYS_socketpair(Small Small Small Buffer), SYS_bind(Fd Struct Length),
    SYS_connect(Fd Struct Length), SYS_listen(Fd Small), SYS_accept(Fd Buffer Struct),
    SYS_accept4(Fd Buffer Struct Flags), SYS_sendto(Fd Buffer Length Flags Struct Length),
    SYS_recvfrom(Fd Buffer Length Flags Buffer Struct), SYS_sendmsg(Fd Struct Flags), SYS_recvmsg(Fd Struct Flags),
    SYS_sendmmsg(Fd Struct Small Flags), SYS_recvmmsg(Fd Struct Small Flags Time), SYS_shutdown(Fd Small),
    SYS_getsockname(Fd Buffer Struct), SYS_getpeername(Fd Buffer Struct),
    SYS_getsockopt(Fd Small Small Buffer Struct), SYS_setsockopt(Fd Small Small Buffer Length),
    // Memory.
    SYS_mmap(Address Size Small Flags Fd Size), SYS_munmap(Address Size), SYS_mprotect(Address Size Small),
    SYS_mremap(Address Size Size Small Address), SYS_madvise(Address Size Small), SYS_msync(Address Size Small),
    SYS_mincore(Address Size Buffer), SYS_mlock(Address Size), SYS_munlock(Address Size), SYS_mlock2(Address Size Small),
    SYS_brk(Any), SYS_membarrier(Small Small), SYS_remap_file_pages(Address Size Small Size Flags),
    SYS_process_vm_readv(Process Vector Count Vector Count Small),
    SYS_process_vm_writev(Process Vector Count Vector Count Small), SYS_mseal(Address Size Small),
    SYS_mbind(Address Size Small Struct Small Small),
    // Futexes.
    SYS_futex(Word Small Small Time Word Small), SYS_futex(Word Small Small Small Word Small),
    SYS_futex_waitv(Struct Small Flags Time Small), SYS_set_robust_list(Struct Small),
    SYS_get_robust_list(Process Buffer Buffer),
    // Signals and timers.
    SYS_rt_sigaction(Signal Struct Buffer Small), SYS_rt_sigprocmask(Small Struct Buffer Small),
    SYS_rt_sigpending(Buffer Small), SYS_rt_sigtimedwait(Struct Buffer Time Small),
    SYS_rt_sigqueueinfo(Process Signal Struct), SYS_rt_tgsigqueueinfo(Process Process Signal Struct),
    SYS_rt_sigsuspend(Struct Small), SYS_sigaltstack(Struct Buffer), SYS_rt_sigreturn(), SYS_kill(Process Signal),
    SYS_tkill(Process Signal), SYS_tgkill(Process Process Signal), SYS_alarm(Small), SYS_pause(),
    SYS_setitimer(Small Time Buffer), SYS_getitimer(Small Buffer), SYS_timer_create(Small Struct Buffer),
    SYS_timer_settime(Small Small Time Buffer), SYS_timer_gettime(Small Buffer), SYS_timer_getoverrun(Small),
    SYS_timer_delete(Small), SYS_nanosleep(Time Buffer), SYS_clock_nanosleep(Small Small Time Buffer),
    SYS_clock_gettime(Small Buffer), SYS_clock_getres(Small Buffer), SYS_clock_settime(Small Time),
    SYS_gettimeofday(Buffer Buffer), SYS_times(Buffer), SYS_adjtimex(Struct), SYS_clock_adjtime(Small Struct),
    // Processes.
    SYS_fork(), SYS_vfork(), SYS_clone(Flags Address Buffer Buffer Any), SYS_clone3(Struct Length),
    SYS_execve(Path Strings Strings), SYS_execveat(At Path Strings Strings Flags), SYS_exit(Small),
    SYS_exit_group(Small), SYS_wait4(Process Buffer Small Buffer), SYS_waitid(Small Process Buffer Small Buffer),
    SYS_getpgid(Process), SYS_setpgid(Process Process), SYS_getsid(Process), SYS_setsid(), SYS_pidfd_open(Process Flags),
    SYS_pidfd_send_signal(Fd Signal Struct Flags), SYS_pidfd_getfd(Fd Fd Flags), SYS_kcmp(Process Process Small Fd Fd),
    SYS_getrusage(Small Buffer), SYS_prlimit64(Process Small Struct Buffer), SYS_getrlimit(Small Buffer),
    SYS_setrlimit(Small Struct), SYS_getpriority(Small Process), SYS_setpriority(Small Process Small),
    SYS_ioprio_get(Small Process), SYS_ioprio_set(Small Process Small), SYS_sched_yield(),
    SYS_sched_setaffinity(Process Length Struct), SYS_sched_getaffinity(Process Length Buffer),
    SYS_sched_setscheduler(Process Small Struct), SYS_sched_getscheduler(Process), SYS_sched_getparam(Process Buffer),
    SYS_sched_setparam(Process Struct), SYS_sched_getattr(Process Buffer Length Small),
    SYS_sched_setattr(Process Struct Small), SYS_sched_rr_get_interval(Process Buffer),
    SYS_prctl(Small Any Any Any Any), SYS_prctl(Small Small Small Small Small), SYS_prctl(Small Buffer Buffer Buffer Small),
    SYS_arch_prctl(Any Buffer), SYS_set_tid_address(Buffer), SYS_rseq(Buffer Small Small Small),
    SYS_personality(Flags), SYS_unshare(Flags), SYS_setns(Fd Flags), SYS_ptrace(Small Process Address Buffer),
    SYS_seccomp(Small Flags Struct), SYS_restart_syscall(),
    // Identity.
    SYS_setuid(User), SYS_setgid(User), SYS_setreuid(User User), SYS_setregid(User User), SYS_setresuid(User User User),
    SYS_setresgid(User User User), SYS_setfsuid(User), SYS_setfsgid(User), SYS_getresuid(Buffer Buffer Buffer),
    SYS_getgroups(Small Buffer), SYS_setgroups(Small Struct), SYS_capget(Struct Buffer), SYS_capset(Struct Struct),
    SYS_umask(Mode),
    // The machine.
    SYS_uname(Buffer), SYS_sysinfo(Buffer), SYS_getrandom(Buffer Length Flags), SYS_getcpu(Buffer Buffer Buffer),
    SYS_sethostname(Path Length), SYS_setdomainname(Path Length), SYS_syslog(Small Buffer Length), SYS_sync(), SYS_syncfs(Fd),
    SYS_quotactl(Any Path Small Buffer), SYS_sysfs(Small Small Buffer), SYS_ustat(Small Buffer),
];
