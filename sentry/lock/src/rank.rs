//! The order of all locks of the sentry: while one is held, only those further down may be taken.
//!
//! A rank is a class of locks. Two locks of one rank are taken together only by the methods with `another` in their
//! names, whose callers have an order of their own. Groups come in the order in which the layers call each other; what
//! is called from everywhere (wait queues, the executor) comes last. What takes locks when it is dropped (files, tasks,
//! mounts) is dropped after the lock that it was found under. Guards are not `Send`, so none is held over an
//! `.await`.

/// A place in the order of locks.
pub trait Rank: 'static {
    /// Locks with a higher level may be taken while this one is held.
    const LEVEL: u16;
    /// For messages.
    const NAME: &'static str;
}

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[repr(u16)]
        enum Level { $($name),* }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}

            impl Rank for $name {
                const LEVEL: u16 = Level::$name as u16;
                const NAME: &'static str = stringify!($name);
            }
        )*
    };
}

ranks! {
    // -- Whole calls.

    /// A file's position. Held over a whole read or write that moves it.
    FilePosition,
    /// Whose turn it is to read or write the caller's standard input or output.
    StdioTurn,
    /// What goes between the caller's terminal and the guest's.
    ConsoleTraffic,
    /// Which epoll watches which. Held while another is added.
    EpollNesting,
    /// Who has the host report changes of a file. Held while the gofer is asked.
    ReportRequests,
    /// File systems that are the same wherever they are mounted. Held while one is made.
    SharedMounts,
    /// The one who shrinks the dentry cache.
    CacheShrink,

    // -- Names and file systems.

    /// The text of an open generated file. Not held while it is generated.
    PseudoText,
    /// All names. Held in each rename, and while a path is put together.
    RenameLock,
    /// What an open directory lists. Held while the directory is read.
    DirectoryList,
    /// Names in a directory. Held while its file system looks for one or changes one. In a rename two, by address.
    DentryChildren,
    /// Directories of a tmpfs or an overlay. Held over renames and removals, which lock two of them.
    TmpfsTree,
    /// What a directory of an overlay has beyond the one below.
    OverlayDirectory,
    /// A file that is being copied up.
    OverlayCopy,
    /// Nodes of an overlay by what is below.
    OverlayNodes,
    /// Where a node of an overlay was found.
    OverlayFound,
    /// Names of a directory in memory. A second one, a child's, under `TmpfsTree` only.
    TmpfsEntries,
    /// Extended attributes of a file in memory.
    TmpfsXattrs,
    /// What guests add to a host file. Held while they change it.
    GoferAccount,
    /// Who has host files open, and which names they have. Held while the gofer opens one or changes a name.
    GoferGate,
    /// What is known of a host directory's names. Held while the gofer is asked.
    GoferDirectory,
    /// The gofer's number for a file.
    GoferNode,
    /// The directory and name of a host file.
    GoferPlace,
    /// Attributes of a host file.
    GoferState,
    /// A host file's descriptor for the next open.
    GoferReading,
    /// Descriptors of host files that are kept.
    GoferDescriptors,
    /// Device numbers that stand for the host's.
    GoferDevices,
    /// Which host files guests have added to.
    GoferAccounts,
    /// Which names of the host guests have changed.
    GoferTally,
    /// The connection to the gofer. Held while an answer is awaited.
    GoferConnection,
    /// What the gofer is to be told to forget.
    GoferForgotten,
    /// Where the host was seen to change something. Held while its events are read.
    GoferWatches,
    /// All mounts. Held while one is made or taken away.
    MountTable,
    /// Where a mount is.
    MountPlace,
    /// Names of a generated directory that stay.
    PseudoEntries,
    /// Owner and mode of a generated file.
    PseudoOwner,
    /// What opens FIFOs. Set once.
    FifoOpener,
    /// Drivers of devices.
    DeviceDrivers,
    /// Drivers of all devices of a major number.
    DeviceMajors,

    // -- Tasks.

    /// Who exists, who is whose parent, process groups, sessions. What is removed is dropped after it.
    Tasks,
    /// Session and foreground group of a terminal.
    TtyJob,
    /// Terminals of a devpts.
    DevPtsTable,
    /// Owner and times of a terminal's node.
    DevPtsOwner,
    /// Which actions a process has. Held to copy the pointer, as those that follow.
    ProcessActions,
    /// What the children of a process had used.
    ChildUsage,
    /// The host thread of a leader that ended before its process.
    FirstGuest,
    /// Which descriptors a thread has.
    ThreadFiles,
    /// Which root and working directory a thread has.
    ThreadFs,
    /// Which host name a thread sees.
    ThreadUts,
    /// A thread's name.
    ThreadName,
    /// The vfork parent that waits for a thread.
    ThreadVfork,
    /// How a thread's interrupted call goes on.
    ThreadRestart,
    /// A thread's last fault.
    ThreadFault,
    /// A thread's policy and processors.
    Scheduling,
    /// Host and domain name.
    HostName,
    /// Root, working directory and umask.
    FsPlaces,
    /// A table of descriptors. Files are dropped after it.
    FdSlots,
    /// Locks on files, and who waits for them.
    FileLocks,
    /// Leases on files. Holders are noted to be told with it held.
    Leases,
    /// Who is told by a signal when a file is ready.
    FileAnnounce,
    /// Files that announce their readiness by signals.
    Announcers,
    /// Where the data of a file in memory is.
    TmpfsData,
    /// Files of a tmpfs that have a memory file of their own.
    TmpfsOwners,
    /// Attributes of a file in memory.
    TmpfsMeta,
    /// Free places in a tmpfs's memory file.
    TmpfsChunks,
    /// Who is told when a file is closed.
    FileWatchers,
    /// Where such a file waits to be ready.
    AnnouncerKey,
    /// Directories whose changes are announced by signals.
    DirectoryWatches,
    /// The mark of such a directory.
    DirectoryWatchMark,

    // -- Objects that calls are about.

    /// Files of an epoll instance. Held while they are asked: an inner instance's under an outer's.
    EpollWatches,
    /// What is wanted of one of them.
    EpollSettings,
    /// What the host reports of files that guests watch. Held while it is read and told: poll asks for it.
    ReportReading,
    /// Those that may be ready.
    EpollReady,
    /// Pipes behind FIFOs.
    Fifos,
    /// A pipe's data.
    Pipe,
    /// Names of Unix sockets.
    SocketNames,
    /// All Unix sockets, for /proc.
    AllSockets,
    /// A Unix socket's state. Of a connection that nobody else has yet, under the listener's.
    Socket,
    /// A terminal's line discipline.
    Pty,
    /// An eventfd's count.
    EventFd,
    /// What a signalfd takes.
    SignalFdMask,
    /// Who used a signalfd last.
    SignalFdUser,
    /// A timerfd's time and count.
    TimerFd,
    /// The next look at `RLIMIT_CPU`.
    CpuLimit,
    /// A process's timers by timer_create(2).
    PosixTimers,
    /// What is known of the memory of the sandbox.
    MemoryUse,

    // -- Signals, what is held to copy a pointer, memory.

    /// Threads of a process, its queue of signals, stop and exit.
    ProcessSignals,
    /// A thread's mask and queue of signals.
    ThreadSignals,
    /// What each signal does.
    SignalActions,
    /// Which memory a process has.
    ProcessMemory,
    /// Resource limits.
    ProcessLimits,
    /// What a process has used.
    ProcessUsage,
    /// One of a process's interval timers.
    IntervalTimer,
    /// Who waits for which futex. Held while the word is read.
    Futexes,
    /// Who waits for which futex with an owner.
    PiFutexes,
    /// The regions of an address space.
    MemoryMap,
    /// The parent and name of a dentry. Held to copy them.
    DentryLink,
    /// Watches and events of an inotify instance.
    InotifyState,
    /// Who is told of changes to which file.
    Marks,
    /// Which of them the host reports to.
    ReportedMarks,
    /// Inotify instances and watches of each user.
    InotifyUsed,
    /// That a file counts as a program that runs, or as one that is written.
    FileText,
    /// How many write or execute which inode.
    TextCounts,
    /// Counters of queued signals by user.
    PendingSignals,
    /// Signals from outside that came before there was a process.
    EarlySignals,
    /// How the first process has ended.
    InitExit,
    /// What was asked for and is missing.
    Gaps,
    /// How the sandbox's program has ended, or that it could not be started.
    Outcome,
    /// Which host thread a thread has. Held to copy the pointer.
    ThreadGuest,
    /// Which credentials a thread has. Held to copy the pointer.
    ThreadCredentials,
    /// Calls that have begun, by thread.
    TraceBegun,
    /// Where --strace prints.
    TraceOutput,
    /// Guests that wait for their share of processor time.
    ProcessorGate,
    /// Events that the supervisor has not taken. Held while the socket is registered to be waited for.
    EventQueue,

    // -- The platform: called by the kernel, calls nobody but wakers.

    /// `AsyncLock`'s state. Its holder is woken with it held.
    AsyncWaiters,
    /// Guest processes by host pid. Held for a look-up.
    Spaces,
    /// The process that is being forked ahead. Taken out, then awaited.
    SpareProcess,
    /// Threads of one guest process. Copied, then gone through.
    SpaceThreads,
    /// Slots of an arena.
    ArenaSlots,
    /// Threads that are not resumed for a while. Taken out, then resumed.
    HeldThreads,
    /// A guest thread: phase, registers, operations. Held while it is put on its worker's list.
    GuestState,
    /// A worker's list of running threads.
    Armed,
    /// A worker's list of threads to be resumed.
    Outbox,
    /// Wakes that were left to a stub.
    DelegatedWakes,
    /// Who has to come back in time.
    WatchdogList,
    /// Control sockets in the order in which they may be given away. Held while some are.
    ControlQueue,
    /// Where one control socket is. Held while something is sent.
    ControlPlace,
    /// Threads that keep control sockets. Held while one is started, or given a socket.
    Keepers,
    /// The line to one of them.
    KeeperLine,
    /// Free wake words. A thread that is dropped gives its own back, whatever is held.
    WakeWords,
    /// The tracer's end of its channel. Taken once.
    TracerReceiver,
    /// A test's plan of single steps.
    StepPlan,

    // -- Wakes and the executor: from everywhere.

    /// Who waits for an object. Held while they are woken.
    Waiters,
    /// The waker of a thread's task.
    ThreadWaker,
    /// The result of a host call that another thread makes.
    BlockingSlot,
    /// Whether a host descriptor that a task waits for is ready.
    HostReadiness,
    /// Host descriptors that are waited for.
    Reactor,
    /// Host threads that do the workers' work.
    WorkerThreads,
    /// Timers of a worker.
    Timers,
    /// Tasks that are ready to run.
    ReadyTasks,
}
