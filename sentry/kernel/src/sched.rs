//! Scheduling parameters (sched(7)): kept and told. Threads are scheduled by the host, which hears of processor sets
//! only.

use sentry_abi::Errno;

use crate::system;

/// Scheduling policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Policy {
    #[default]
    Other,
    Fifo,
    RoundRobin,
    Batch,
    Idle,
    Deadline,
}

impl Policy {
    /// By its `SCHED_*` number; `EINVAL` for what is none.
    pub fn from_number(number: i32) -> Result<Policy, Errno> {
        match number {
            0 => Ok(Policy::Other),
            1 => Ok(Policy::Fifo),
            2 => Ok(Policy::RoundRobin),
            3 => Ok(Policy::Batch),
            5 => Ok(Policy::Idle),
            6 => Ok(Policy::Deadline),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Its `SCHED_*` number.
    pub fn number(self) -> i32 {
        match self {
            Policy::Other => 0,
            Policy::Fifo => 1,
            Policy::RoundRobin => 2,
            Policy::Batch => 3,
            Policy::Idle => 5,
            Policy::Deadline => 6,
        }
    }

    /// True for the policies with a static priority.
    pub fn is_realtime(self) -> bool {
        matches!(self, Policy::Fifo | Policy::RoundRobin)
    }

    /// True for the policies with a nice value.
    pub fn is_fair(self) -> bool {
        matches!(self, Policy::Other | Policy::Batch)
    }

    /// The length of a turn in nanoseconds (sched_rr_get_interval(2)).
    pub fn interval(self) -> u64 {
        match self {
            Policy::Fifo | Policy::Deadline => 0,
            Policy::RoundRobin => 100_000_000,
            Policy::Other | Policy::Batch | Policy::Idle => 4_000_000,
        }
    }
}

/// What a thread has asked for. Children inherit it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Scheduling {
    pub policy: Policy,
    /// Static priority: 1 to 99 with a real-time policy, else 0.
    pub priority: u32,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// `SCHED_RESET_ON_FORK`.
    pub reset_on_fork: bool,
    /// The processors it wants, of those there are; none: all.
    pub affinity: Option<Vec<u64>>,
    /// `IOPRIO_PRIO_VALUE` of ioprio_set(2).
    pub io_priority: i32,
}

impl Scheduling {
    /// What a child starts with.
    pub fn inherited(&self) -> Scheduling {
        let mut child = self.clone();
        if self.reset_on_fork {
            child.reset_on_fork = false;
            if !self.policy.is_fair() && self.policy != Policy::Idle {
                (child.policy, child.priority, child.nice) = (Policy::Other, 0, 0);
            }
            child.nice = child.nice.max(0);
        }
        child
    }

    /// The processors it may use.
    pub fn mask(&self) -> Vec<u64> {
        self.affinity.clone().unwrap_or_else(system::processor_mask)
    }

    /// Chooses processors; `EINVAL` if none of them is there.
    pub fn set_mask(&mut self, wanted: &[u64]) -> Result<(), Errno> {
        let mut mask = system::processor_mask();
        for (index, word) in mask.iter_mut().enumerate() {
            *word &= wanted.get(index).copied().unwrap_or(0);
        }
        if mask.iter().all(|&word| word == 0) {
            return Err(Errno::EINVAL);
        }
        self.affinity = Some(mask);
        Ok(())
    }

    /// A processor that it may use: `cpu` if that is one.
    pub fn nearest(&self, cpu: u32) -> u32 {
        let Some(mask) = &self.affinity else { return cpu };
        let all = || system::mask_processors(mask).map(|processor| processor as u32);
        if all().any(|processor| processor == cpu) {
            return cpu;
        }
        all().next().unwrap_or(cpu)
    }

    /// The priority as stat(5) shows it.
    pub fn kernel_priority(&self) -> i64 {
        if self.policy.is_realtime() {
            -1 - i64::from(self.priority)
        } else {
            20 + i64::from(self.nice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_may_be_reset() {
        let fifo = Scheduling {
            policy: Policy::Fifo,
            priority: 7,
            nice: 3,
            reset_on_fork: true,
            ..Scheduling::default()
        };
        let child = fifo.inherited();
        assert_eq!(
            (child.policy, child.priority, child.nice, child.reset_on_fork),
            (Policy::Other, 0, 0, false)
        );
        let batch = Scheduling {
            policy: Policy::Batch,
            nice: -4,
            reset_on_fork: true,
            ..Scheduling::default()
        };
        let child = batch.inherited();
        assert_eq!((child.policy, child.nice), (Policy::Batch, 0));
        assert_eq!((fifo.kernel_priority(), child.kernel_priority()), (-8, 20));
    }
}
