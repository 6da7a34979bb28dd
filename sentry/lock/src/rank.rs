//! The order of all locks of the sentry: while one is held, only those further down may be taken.
//!
//! A rank is a class of locks. Two locks of one rank are taken together only by the methods with `another` in their
//! names, whose callers have an order of their own. Groups come in the order in which the layers call each other; what
//! is called from everywhere (wait queues, the executor) comes last. Guards are not `Send`, so none is held over an
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
}
