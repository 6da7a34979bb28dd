//! The watchdog: kills a guest process one of whose threads does not do in time what its stub owes the sentry.
//!
//! What is owed is an answer to a kick, and the end of orders that carry descriptors. A hostile guest can mask the
//! kick signal, or never receive. An honest one can be late too, and must not be killed for it: it waits for a
//! processor of a busy machine, or is in a host call or page fault that takes long (much memory to unmap, a slow
//! disk). What it never does is to run *user-mode* code meanwhile: the host delivers a pending signal before the
//! next instruction, and the stub carries out orders in microseconds. So what counts is the user time that the host
//! has measured, not the time that has passed:
//!
//! - [`USER_LIMIT`] of user time of the process, if the thread is its only one. If it has others, they use that time
//!   rightfully: then the process is *isolated* first. Its other threads are kicked and not resumed, so that user
//!   time from then on is the suspect's, and counts from 0.
//! - [`CPU_LIMIT`] of user and system time together: no single host call takes so long.
//! - [`Expected::idle_rounds`] rounds in which the process has used (next to) no processor at all: it sleeps. A round
//!   is a sleep of the watchdog's own, so a machine (or a container) that stands still lets none pass.
//!
//! Before anybody is killed for not answering a kick, the kick is repeated and the count starts again: should one ever
//! be lost by a fault of ours, it costs a moment and not a guest. Only once: every kick adds a frame to the signal
//! stack of a thread that is in a long host call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use sentry_lock::{Condvar, Mutex, rank};

use crate::AddressSpace;
use crate::space::{Isolation, Space};
use crate::thread::Thread;

/// How long the watchdog sleeps between two looks.
pub(crate) const ROUND: Duration = Duration::from_millis(100);
/// User time that a thread may use before it does what it owes.
const USER_LIMIT: u64 = 100_000_000;
/// User and system time.
const CPU_LIMIT: u64 = 10_000_000_000;
/// With less than this in a round a process was idle.
const IDLE_BELOW: u64 = 1_000_000;
/// Whether a kick is repeated before somebody is killed for not answering it.
static REPEAT: AtomicBool = AtomicBool::new(true);

/// For tests, in which a lost kick has to show.
pub(crate) fn never_repeat_kicks() {
    REPEAT.store(false, Ordering::Relaxed);
}

fn repeats() -> bool {
    REPEAT.load(Ordering::Relaxed)
}

/// What a thread owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// An answer to a kick.
    Kick,
    /// The end of orders that carry descriptors.
    Orders,
    /// The end of a copy that a worker waits for in place.
    Copy,
}

impl Expected {
    /// Rounds that pass before the thread is looked at.
    fn grace_rounds(self) -> u32 {
        match self {
            Expected::Kick => 1,
            Expected::Orders | Expected::Copy => 10,
        }
    }

    /// Rounds without any use of a processor after which the thread counts as asleep for good.
    fn idle_rounds(self) -> u32 {
        match self {
            Expected::Orders => 50,
            // Twice.
            Expected::Kick => 25,
            Expected::Copy => 10,
        }
    }
}

/// What the host says a process has used, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    pub user: u64,
    /// User and system time.
    pub cpu: u64,
}

impl Usage {
    /// Of the process `pid`; all zeros when it is gone.
    pub fn of(pid: u32) -> Usage {
        Usage {
            user: sentry_host::clock::process_user_nanos(pid).unwrap_or(0),
            cpu: sentry_host::clock::process_cpu_nanos(pid).unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    /// The other threads of the process have to stop, to see whether it is this one that runs.
    Isolate,
    Kill,
}

/// The account of one suspect: numbers only.
struct Account {
    expected: Expected,
    rounds: u32,
    idle: u32,
    /// What had been used when the count began, and at the last look.
    begin: Usage,
    last: Usage,
}

impl Account {
    fn new(expected: Expected) -> Account {
        Account {
            expected,
            rounds: 0,
            idle: 0,
            begin: Usage::default(),
            last: Usage::default(),
        }
    }

    /// A round has passed; `now` is what the process has used in its life, `alone` if the suspect only can have.
    fn round(&mut self, now: Usage, alone: bool) -> Verdict {
        self.rounds += 1;
        if self.rounds == 1 {
            (self.begin, self.last) = (now, now);
            return Verdict::Wait;
        }
        if now.cpu.saturating_sub(self.last.cpu) < IDLE_BELOW {
            self.idle += 1;
        }
        self.last = now;
        let user = now.user.saturating_sub(self.begin.user);
        let cpu = now.cpu.saturating_sub(self.begin.cpu);
        if self.rounds <= self.expected.grace_rounds() {
            Verdict::Wait
        } else if self.idle >= self.expected.idle_rounds() {
            Verdict::Kill
        } else if user < USER_LIMIT && cpu < CPU_LIMIT {
            Verdict::Wait
        } else if alone {
            Verdict::Kill
        } else {
            Verdict::Isolate
        }
    }

    /// The other threads have been kicked: what is used from now on is the suspect's.
    fn isolated(&mut self, now: Usage) {
        (self.begin, self.last) = (now, now);
        self.idle = 0;
    }
}

/// A thread that owes something.
pub(crate) struct Suspect {
    thread: Weak<Thread>,
    /// The request that had been seen when the clock started; a newer one settles the matter.
    seen: u32,
    account: Account,
    isolation: Option<Isolation>,
    /// The kick has been repeated.
    repeated: bool,
}

impl Suspect {
    pub fn new(thread: &Arc<Thread>, expected: Expected) -> Suspect {
        Suspect {
            thread: Arc::downgrade(thread),
            seen: thread.seen(),
            account: Account::new(expected),
            isolation: None,
            repeated: false,
        }
    }

    /// To be called after each [`ROUND`]: false when there is nothing to wait for any more, since the thread has done
    /// what it owes, or its process has been killed.
    pub fn look(&mut self) -> bool {
        let Some(thread) = self.thread.upgrade() else {
            return false;
        };
        if thread.has_come_back(self.seen) {
            return false;
        }
        let space = thread.space();
        if thread.is_queued() || space.kicks_are_under_way() {
            // It is the sentry that has not let it run, or the tracer that has not interrupted it.
            self.account = Account::new(self.account.expected);
            return true;
        }
        let alone = self.isolation.is_some() || space.running_threads() <= 1;
        match self.account.round(Usage::of(space.pid()), alone) {
            Verdict::Wait => true,
            Verdict::Isolate => {
                self.isolation = Some(Space::isolate(space, &thread));
                self.account.isolated(Usage::of(space.pid()));
                true
            }
            Verdict::Kill if self.account.expected == Expected::Kick && !self.repeated && repeats() => {
                self.repeated = true;
                self.account = Account::new(Expected::Kick);
                thread.send_kick();
                true
            }
            Verdict::Kill => {
                space.kill();
                false
            }
        }
    }
}

#[derive(Default)]
struct Pending {
    suspects: Vec<Suspect>,
    /// To be woken after the next round.
    later: Vec<Waker>,
}

/// All threads that owe something.
pub(crate) struct Watchdog {
    pending: Mutex<Pending, rank::WatchdogList>,
    added: Condvar,
}

impl Watchdog {
    pub fn new() -> Watchdog {
        Watchdog {
            pending: Mutex::new(Pending::default()),
            added: Condvar::new(),
        }
    }

    fn add(&self, add: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock();
        let idle = pending.suspects.is_empty() && pending.later.is_empty();
        add(&mut pending);
        if idle {
            self.added.notify_one();
        }
    }

    /// Has an eye on `thread` until it has done what it owes.
    pub fn expect(&self, thread: &Arc<Thread>, expected: Expected) {
        let suspect = Suspect::new(thread, expected);
        self.add(|pending| pending.suspects.push(suspect));
    }

    /// Wakes a task after a round: for what has to be tried again.
    pub fn wake_later(&self, waker: &Waker) {
        self.add(|pending| pending.later.push(waker.clone()));
    }

    /// The watchdog's thread: never returns. It sleeps as long as nobody owes anything.
    pub fn watch(&self) -> ! {
        loop {
            let mut pending = self.pending.lock();
            while pending.suspects.is_empty() && pending.later.is_empty() {
                self.added.wait(&mut pending);
            }
            drop(pending);
            std::thread::sleep(ROUND);
            // Without the lock: what is done to a suspect may put other threads under watch.
            let Pending { mut suspects, later } = std::mem::take(&mut *self.pending.lock());
            suspects.retain_mut(Suspect::look);
            self.pending.lock().suspects.append(&mut suspects);
            for waker in later {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Rounds in each of which so much user and system time (in ms) is used, until there is a verdict.
    fn rounds(expected: Expected, alone: bool, user: u64, system: u64, limit: u32) -> (u32, Verdict) {
        let mut account = Account::new(expected);
        let mut usage = Usage {
            user: 77 * MILLI,
            cpu: 99 * MILLI,
        };
        for round in 1..=limit {
            let verdict = account.round(usage, alone);
            if verdict != Verdict::Wait {
                return (round, verdict);
            }
            usage.user += user * MILLI;
            usage.cpu += (user + system) * MILLI;
        }
        (limit, Verdict::Wait)
    }

    #[test]
    fn who_runs_on_with_a_kick_pending_is_killed_after_its_time() {
        assert_eq!(rounds(Expected::Kick, true, 100, 0, 100), (2, Verdict::Kill));
        // With a thirtieth of a processor it takes longer, but no more of it.
        assert_eq!(rounds(Expected::Kick, true, 3, 0, 100), (35, Verdict::Kill));
        assert_eq!(rounds(Expected::Kick, true, 0, 100, 1000), (101, Verdict::Kill));
    }

    #[test]
    fn who_never_receives_is_killed_after_a_second() {
        assert_eq!(rounds(Expected::Orders, true, 100, 0, 100), (11, Verdict::Kill));
        assert_eq!(rounds(Expected::Copy, true, 100, 0, 100), (11, Verdict::Kill));
    }

    #[test]
    fn who_sleeps_is_killed_after_idle_rounds() {
        assert_eq!(rounds(Expected::Kick, true, 0, 0, 100), (26, Verdict::Kill));
        assert_eq!(rounds(Expected::Kick, false, 0, 0, 100), (26, Verdict::Kill));
        assert_eq!(rounds(Expected::Orders, true, 0, 0, 100), (51, Verdict::Kill));
        assert_eq!(rounds(Expected::Copy, true, 0, 0, 100), (11, Verdict::Kill));
    }

    #[test]
    fn a_long_host_call_is_waited_for() {
        // Nine seconds of unmapping, on a free processor and with a sixteenth of one.
        assert_eq!(rounds(Expected::Kick, true, 0, 100, 90), (90, Verdict::Wait));
        assert_eq!(rounds(Expected::Orders, false, 0, 6, 1500), (1500, Verdict::Wait));
    }

    #[test]
    fn other_threads_are_stopped_before_anybody_is_killed() {
        assert_eq!(rounds(Expected::Kick, false, 100, 0, 100), (2, Verdict::Isolate));
        let mut account = Account::new(Expected::Kick);
        let used = |ms: u64| Usage {
            user: ms * MILLI,
            cpu: ms * MILLI,
        };
        assert_eq!(account.round(used(0), false), Verdict::Wait);
        assert_eq!(account.round(used(200), false), Verdict::Isolate);
        account.isolated(used(210));
        // What the others had used does not count.
        assert_eq!(account.round(used(300), true), Verdict::Wait);
        assert_eq!(account.round(used(311), true), Verdict::Kill);
    }
}
