//! poll(2), select(2) and their kin.

use std::sync::Arc;
use std::time::Duration;

use sentry_abi::Errno;
use sentry_abi::poll::PollFd;
use sentry_abi::time::{Timespec, Timeval};
use sentry_platform::SyscallArgs;
use sentry_vfs::file::File;
use sentry_vfs::wait::PollEvents;

use super::args::{int, uint};
use super::{Row, Sys, SysResult, call};
use crate::executor::Deadline;
use crate::fd::{FdTable, NR_OPEN};
use crate::signal::SigSet;
use crate::task::{Resource, Thread, Wake, block_on};
use crate::user::{UserPtr, UserSlice};

pub(super) const TABLE: &[Row] = &[
    call!(libc::SYS_poll, poll, Ptr, Int, Int),
    call!(libc::SYS_ppoll, ppoll, Ptr, Int, Ptr, Ptr, Int),
    call!(libc::SYS_select, select, Int, Ptr, Ptr, Ptr, Ptr),
    call!(libc::SYS_pselect6, pselect6, Int, Ptr, Ptr, Ptr, Ptr, Ptr),
];

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// Not at all.
    Zero,
    /// Until then.
    Until(Deadline),
    /// For ever.
    Never,
}

impl Timeout {
    /// From milliseconds; negative: for ever.
    pub(super) fn from_millis(millis: i32) -> Timeout {
        match u64::try_from(millis) {
            Ok(0) => Timeout::Zero,
            Ok(millis) => Timeout::Until(Deadline::after(Duration::from_millis(millis))),
            Err(_) => Timeout::Never,
        }
    }

    /// From nanoseconds.
    pub(super) fn from_nanos(nanos: u64) -> Timeout {
        if nanos == 0 {
            Timeout::Zero
        } else {
            Timeout::Until(Deadline::after(Duration::from_nanos(nanos)))
        }
    }

    /// From a `struct timespec`; a null pointer: for ever.
    pub(super) fn from_timespec(thread: &Thread, pointer: UserPtr<Timespec>) -> Result<Timeout, Errno> {
        if pointer.is_null() {
            return Ok(Timeout::Never);
        }
        pointer.copy_in(thread)?.to_nanos().map(Timeout::from_nanos)
    }

    /// As block_on wants it.
    pub(super) fn deadline(self) -> Option<Deadline> {
        match self {
            Timeout::Until(deadline) => Some(deadline),
            _ => None,
        }
    }

    /// True once the time is over.
    pub(super) fn passed(self) -> bool {
        match self {
            Timeout::Zero => true,
            Timeout::Until(deadline) => deadline.passed(),
            Timeout::Never => false,
        }
    }

    /// What is left of it, in nanoseconds.
    fn remaining(self) -> u64 {
        self.deadline().map_or(0, |deadline| {
            u64::try_from(deadline.remaining().as_nanos()).unwrap_or(u64::MAX)
        })
    }
}

/// A signal mask argument: none for a null pointer.
pub(super) fn mask_argument(thread: &Thread, pointer: u64, size: u64) -> Result<Option<SigSet>, Errno> {
    if pointer == 0 {
        return Ok(None);
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let bits: u64 = UserPtr::new(pointer).copy_in(thread)?;
    Ok(Some(SigSet(bits).without(SigSet::UNBLOCKABLE)))
}

/// Makes a call with another signal mask in force.
pub(super) fn with_mask(thread: &Arc<Thread>, mask: Option<SigSet>, call: impl FnOnce() -> Sys) -> Sys {
    let Some(mask) = mask else { return call() };
    thread.set_temporary_mask(mask);
    let restore = |thread: &Thread, result: SysResult| {
        if !matches!(result, Err(errno) if errno == Errno::EINTR || errno.is_restart()) {
            thread.restore_mask();
        }
        result
    };
    match call() {
        Sys::Done(result) => Sys::Done(restore(thread, result)),
        Sys::Wait(future) => {
            let thread = thread.clone();
            Sys::wait(async move {
                let result = future.await;
                restore(&thread, result)
            })
        }
    }
}

/// One descriptor being polled: its file, if it is open, and what is asked.
struct Polled {
    file: Option<Arc<File>>,
    mask: PollEvents,
}

impl Polled {
    fn new(files: &FdTable, fd: i32, events: PollEvents) -> Polled {
        let file = files
            .get(fd)
            .ok()
            .filter(|file| file.flags() & libc::O_PATH as u32 == 0);
        Polled {
            file,
            mask: events | PollEvents::ERR | PollEvents::HUP,
        }
    }

    fn ready(&self) -> PollEvents {
        match &self.file {
            Some(file) => file.ops().poll(file) & self.mask,
            None => PollEvents::NVAL,
        }
    }
}

/// Fills in the results; how many are not zero.
fn look(entries: &mut [PollFd], polled: &[Polled]) -> usize {
    let mut count = 0;
    for (entry, polled) in entries.iter_mut().zip(polled) {
        let ready = if entry.fd < 0 {
            PollEvents::empty()
        } else {
            polled.ready()
        };
        entry.revents = ready.bits() as i16;
        count += usize::from(!ready.is_empty());
    }
    count
}

fn read_entries(thread: &Thread, args: &SyscallArgs) -> Result<Vec<PollFd>, Errno> {
    let count = uint(args, 1);
    if u64::from(count) > thread.limit(Resource::NOFILE).current.min(NR_OPEN) {
        return Err(Errno::EINVAL);
    }
    UserSlice::new(args.args[0], count as usize).copy_in(thread, count as usize)
}

/// poll(2) proper. `interrupted` says what a signal makes of it.
fn do_poll(
    thread: &Arc<Thread>,
    mut entries: Vec<PollFd>,
    addr: u64,
    timeout: Timeout,
    interrupted: impl FnOnce(&Arc<Thread>) -> Errno + Send + 'static,
) -> Sys {
    let files = thread.files();
    let polled: Vec<Polled> = entries
        .iter()
        .map(|entry| {
            Polled::new(
                &files,
                entry.fd,
                PollEvents::from_bits_truncate(u32::from(entry.events as u16)),
            )
        })
        .collect();
    let count = look(&mut entries, &polled);
    if count > 0 || timeout == Timeout::Zero {
        return answer(thread, addr, &entries, count).into();
    }
    let thread = thread.clone();
    Sys::wait(async move {
        let queues: Vec<_> = polled
            .iter()
            .filter_map(|polled| Some((polled.file.as_ref()?.ops().wait_queue()?, polled.mask)))
            .collect();
        let result = block_on(&thread, timeout.deadline(), &queues, || {
            let count = look(&mut entries, &polled);
            (count > 0).then_some(count)
        })
        .await;
        match result {
            Ok(count) => answer(&thread, addr, &entries, count),
            Err(Wake::Timeout) => {
                entries.iter_mut().for_each(|entry| entry.revents = 0);
                answer(&thread, addr, &entries, 0)
            }
            Err(Wake::Signal) => Err(interrupted(&thread)),
        }
    })
}

fn answer(thread: &Thread, addr: u64, entries: &[PollFd], count: usize) -> SysResult {
    UserSlice::new(addr, entries.len()).copy_out(thread, entries)?;
    Ok(count as i64)
}

fn poll(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let timeout = Timeout::from_millis(int(args, 2));
    let entries = read_entries(thread, args)?;
    Ok(poll_until(thread, entries, args.args[0], timeout))
}

/// poll(2) goes on after a signal with the time that is left.
fn poll_until(thread: &Arc<Thread>, entries: Vec<PollFd>, addr: u64, timeout: Timeout) -> Sys {
    let again = entries.clone();
    do_poll(thread, entries, addr, timeout, move |thread| {
        thread.set_restart(move |thread| poll_until(thread, again, addr, timeout));
        Errno::ERESTART_RESTARTBLOCK
    })
}

fn ppoll(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let pointer = UserPtr::<Timespec>::new(args.args[2]);
    let timeout = Timeout::from_timespec(thread, pointer)?;
    let mask = mask_argument(thread, args.args[3], args.args[4])?;
    let entries = read_entries(thread, args)?;
    let sys = with_mask(thread, mask, || {
        do_poll(thread, entries, args.args[0], timeout, |_| Errno::ERESTARTNOHAND)
    });
    Ok(then(thread, sys, move |thread| {
        report_timespec(thread, pointer, timeout)
    }))
}

/// Does something after a call, whatever it answers.
fn then(thread: &Arc<Thread>, sys: Sys, finish: impl FnOnce(&Thread) + Send + 'static) -> Sys {
    match sys {
        Sys::Done(result) => {
            finish(thread);
            Sys::Done(result)
        }
        Sys::Wait(future) => {
            let thread = thread.clone();
            Sys::wait(async move {
                let result = future.await;
                finish(&thread);
                result
            })
        }
    }
}

/// Writes back the time that is left. A failure is not the call's.
fn report_timespec(thread: &Thread, pointer: UserPtr<Timespec>, timeout: Timeout) {
    if let Timeout::Until(_) = timeout {
        let _ = pointer.copy_out_if(thread, &Timespec::from_nanos(timeout.remaining()));
    }
}

/// The three sets of select(2), as words of 64 descriptors.
#[derive(Clone, Default)]
struct Sets {
    words: [Vec<u64>; 3],
    addrs: [u64; 3],
}

/// What the three sets ask for.
const SET_EVENTS: [PollEvents; 3] = [
    PollEvents::IN
        .union(PollEvents::RDNORM)
        .union(PollEvents::RDBAND)
        .union(PollEvents::HUP)
        .union(PollEvents::ERR),
    PollEvents::OUT
        .union(PollEvents::WRNORM)
        .union(PollEvents::WRBAND)
        .union(PollEvents::ERR),
    PollEvents::PRI,
];

impl Sets {
    fn read(thread: &Thread, args: &SyscallArgs, nfds: usize) -> Result<Sets, Errno> {
        let mut sets = Sets {
            addrs: [args.args[1], args.args[2], args.args[3]],
            ..Sets::default()
        };
        let count = nfds.div_ceil(64);
        for (words, addr) in sets.words.iter_mut().zip(sets.addrs) {
            if addr != 0 {
                *words = UserSlice::new(addr, count).copy_in(thread, count)?;
                if let (Some(last), true) = (words.last_mut(), !nfds.is_multiple_of(64)) {
                    *last &= (1 << (nfds % 64)) - 1;
                }
            }
        }
        Ok(sets)
    }

    /// The descriptors in any set, each with its file and what is asked of it.
    fn polled(&self, files: &FdTable) -> Result<Vec<(usize, Polled)>, Errno> {
        let mut out = Vec::new();
        let len = self.words.iter().map(Vec::len).max().unwrap_or(0);
        for index in 0..len {
            let words = [0, 1, 2].map(|set: usize| self.words[set].get(index).copied().unwrap_or(0));
            let mut any = words[0] | words[1] | words[2];
            while any != 0 {
                let bit = any.trailing_zeros() as usize;
                any &= any - 1;
                let fd = index * 64 + bit;
                let mut mask = PollEvents::empty();
                for (word, events) in words.iter().zip(SET_EVENTS) {
                    if word & (1 << bit) != 0 {
                        mask |= events;
                    }
                }
                let polled = Polled::new(files, i32::try_from(fd).map_err(|_| Errno::EBADF)?, mask);
                if polled.file.is_none() {
                    return Err(Errno::EBADF);
                }
                out.push((fd, polled));
            }
        }
        Ok(out)
    }

    /// The sets of what is ready, and the number of bits in them.
    fn look(&self, polled: &[(usize, Polled)]) -> (Sets, usize) {
        let mut out = Sets {
            words: self.words.each_ref().map(|words| vec![0; words.len()]),
            addrs: self.addrs,
        };
        let mut count = 0;
        for (fd, polled) in polled {
            let ready = polled.ready();
            for (set, events) in SET_EVENTS.iter().enumerate() {
                let asked = self.words[set]
                    .get(fd / 64)
                    .is_some_and(|word| word & (1 << (fd % 64)) != 0);
                if asked && ready.intersects(*events)
                    && let Some(word) = out.words[set].get_mut(fd / 64) {
                        *word |= 1 << (fd % 64);
                        count += 1;
                    }
            }
        }
        (out, count)
    }

    fn write(&self, thread: &Thread) -> Result<(), Errno> {
        for (words, addr) in self.words.iter().zip(self.addrs) {
            UserSlice::new(addr, words.len()).copy_out(thread, words)?;
        }
        Ok(())
    }
}

fn do_select(thread: &Arc<Thread>, args: &SyscallArgs, timeout: Timeout) -> Result<Sys, Errno> {
    let files = thread.files();
    let nfds = usize::try_from(int(args, 0))
        .map_err(|_| Errno::EINVAL)?
        .min(files.capacity());
    let sets = Sets::read(thread, args, nfds)?;
    let polled = sets.polled(&files)?;
    let (ready, count) = sets.look(&polled);
    if count > 0 || timeout == Timeout::Zero {
        ready.write(thread)?;
        return Ok(Sys::Done(Ok(count as i64)));
    }
    let thread = thread.clone();
    Ok(Sys::wait(async move {
        let queues: Vec<_> = polled
            .iter()
            .filter_map(|(_, polled)| Some((polled.file.as_ref()?.ops().wait_queue()?, polled.mask)))
            .collect();
        let result = block_on(&thread, timeout.deadline(), &queues, || {
            let (ready, count) = sets.look(&polled);
            (count > 0).then_some((ready, count))
        })
        .await;
        match result {
            Ok((ready, count)) => {
                ready.write(&thread)?;
                Ok(count as i64)
            }
            Err(Wake::Timeout) => {
                sets.look(&[]).0.write(&thread)?;
                Ok(0)
            }
            Err(Wake::Signal) => Err(Errno::ERESTARTNOHAND),
        }
    }))
}

fn select(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let pointer = UserPtr::<Timeval>::new(args.args[4]);
    let timeout = if pointer.is_null() {
        Timeout::Never
    } else {
        // Linux takes more than a million microseconds here.
        let time = pointer.copy_in(thread)?;
        let usec = u64::try_from(time.usec).map_err(|_| Errno::EINVAL)?;
        let sec = u64::try_from(time.sec).map_err(|_| Errno::EINVAL)?;
        Timeout::from_nanos(
            sec.saturating_mul(1_000_000_000)
                .saturating_add(usec.saturating_mul(1000)),
        )
    };
    let sys = do_select(thread, args, timeout)?;
    Ok(then(thread, sys, move |thread| {
        if let Timeout::Until(_) = timeout {
            let _ = pointer.copy_out_if(thread, &Timeval::from_nanos(timeout.remaining()));
        }
    }))
}

fn pselect6(thread: &Arc<Thread>, args: &SyscallArgs) -> Result<Sys, Errno> {
    let pointer = UserPtr::<Timespec>::new(args.args[4]);
    let timeout = Timeout::from_timespec(thread, pointer)?;
    let mask = if args.args[5] == 0 {
        None
    } else {
        let [address, size]: [u64; 2] = UserPtr::new(args.args[5]).copy_in(thread)?;
        mask_argument(thread, address, size)?
    };
    let sys = with_mask(thread, mask, || Sys::from(do_select(thread, args, timeout)));
    Ok(then(thread, sys, move |thread| {
        report_timespec(thread, pointer, timeout)
    }))
}
