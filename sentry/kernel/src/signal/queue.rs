//! Pending signals.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{SigInfo, SigSet, Signal};

/// How many signals may be queued in the whole sandbox: root can raise its own limit.
const ALL: u64 = 1 << 17;

/// Counts one queued signal against its user's `RLIMIT_SIGPENDING`, and in the whole sandbox, as long as it lives.
pub struct Charge {
    user: Arc<AtomicU64>,
    all: Arc<AtomicU64>,
}

impl Charge {
    /// Counts one more, if that does not go beyond `limit` for the user.
    pub fn new(user: &Arc<AtomicU64>, limit: u64, all: &Arc<AtomicU64>) -> Option<Charge> {
        let add = |counter: &AtomicU64, limit: u64| {
            let more = |count: u64| (count < limit).then_some(count + 1);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        };
        if !add(user, limit) {
            return None;
        }
        if !add(all, ALL) {
            user.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Charge {
            user: user.clone(),
            all: all.clone(),
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.user.fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Entry {
    info: SigInfo,
    _charge: Option<Charge>,
}

/// Pending signals of a thread or of a process. A standard signal is pending at most once.
#[derive(Default)]
pub struct SignalQueue {
    set: SigSet,
    /// By signal, oldest first; none is empty. Guests can have tens of thousands pending.
    entries: BTreeMap<Signal, VecDeque<Entry>>,
}

impl SignalQueue {
    /// What is pending.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// How many are pending.
    pub fn count(&self) -> usize {
        self.entries.values().map(VecDeque::len).sum()
    }

    /// True if a standard signal is pending already, so that another one is dropped.
    pub fn absorbs(&self, signal: Signal) -> bool {
        !signal.is_realtime() && self.set.has(signal)
    }

    /// Adds a signal.
    pub fn push(&mut self, info: SigInfo, charge: Option<Charge>) {
        if self.absorbs(info.signal) {
            return;
        }
        self.set.add(info.signal);
        self.entries
            .entry(info.signal)
            .or_default()
            .push_back(Entry { info, _charge: charge });
    }

    /// Takes the next signal of `allowed`: those of a thread's own fault first, then the lowest number, the
    /// oldest of each.
    pub fn take(&mut self, allowed: SigSet) -> Option<SigInfo> {
        let ready = self.set.intersection(allowed);
        let signal = ready.intersection(SigSet::SYNCHRONOUS).first().or(ready.first())?;
        let queued = self.entries.get_mut(&signal)?;
        let entry = queued.pop_front()?;
        if queued.is_empty() {
            self.entries.remove(&signal);
            self.set.remove(signal);
        }
        Some(entry.info)
    }

    /// Drops everything in `signals`.
    pub fn discard(&mut self, signals: SigSet) {
        if !self.set.intersection(signals).is_empty() {
            self.entries.retain(|signal, _| !signals.has(*signal));
            self.set = self.set.without(signals);
        }
    }

    /// Changes the first entry for which `update` answers true (a timer counts its overruns in the entry that
    /// is still pending). True if there was one.
    pub fn update(&mut self, mut update: impl FnMut(&mut SigInfo) -> bool) -> bool {
        self.entries.values_mut().flatten().any(|entry| update(&mut entry.info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(number: i64) -> Signal {
        Signal::from_number(number).unwrap()
    }

    #[test]
    fn standard_signals_merge_and_real_time_signals_queue_in_order() {
        let mut queue = SignalQueue::default();
        for value in 0..3 {
            queue.push(SigInfo::value(signal(40), SigInfo::SI_QUEUE, 1, 0, value), None);
            queue.push(SigInfo::value(signal(10), SigInfo::SI_QUEUE, 1, 0, value), None);
        }
        queue.push(SigInfo::kernel(signal(35)), None);
        let all = SigSet(u64::MAX);
        assert_eq!(queue.take(all).map(|info| info.signal), Some(signal(10)));
        assert_eq!(queue.take(all).map(|info| info.signal), Some(signal(35)));
        for value in 0..3 {
            assert_eq!(queue.take(all).map(|info| info.long(24)), Some(value));
        }
        assert_eq!(queue.take(all), None);
        assert!(queue.set().is_empty());
    }

    #[test]
    fn faults_come_first_and_blocked_signals_wait() {
        let mut queue = SignalQueue::default();
        queue.push(SigInfo::kernel(Signal::HUP), None);
        queue.push(SigInfo::kernel(Signal::SEGV), None);
        let mut allowed = SigSet(u64::MAX);
        assert_eq!(queue.take(allowed).map(|info| info.signal), Some(Signal::SEGV));
        allowed.remove(Signal::HUP);
        assert_eq!(queue.take(allowed), None);
        queue.discard(SigSet::from_iter([Signal::HUP]));
        assert!(queue.set().is_empty());
    }

    #[test]
    fn charges_are_given_back() {
        let (counter, all) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let first = Charge::new(&counter, 1, &all);
        assert!(first.is_some() && Charge::new(&counter, 1, &all).is_none());
        drop(first);
        assert!(Charge::new(&counter, 1, &all).is_some());
        all.store(ALL, Ordering::Relaxed);
        assert!(Charge::new(&counter, u64::MAX, &all).is_none());
        assert_eq!(counter.load(Ordering::Relaxed), 0);
    }
}
