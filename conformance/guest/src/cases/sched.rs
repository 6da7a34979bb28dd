//! sched(7): policies, priorities, attributes and processor sets are what was set, and who may set them.

use super::procfs::status_line;
use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("sched": fifo_and_rr, policies_need_privilege, realtime_limit, set_param, policy_errors, param_errors, reset_on_fork,
    reset_on_fork_sticks, children_inherit, exec_keeps, attributes_round_trip, attribute_errors, attribute_sizes, deadline_arguments,
    idle_and_batch, nice_of_threads, nice_limit, other_users, rr_interval, rr_interval_errors, affinity_holds, affinity_inherited,
    affinity_errors, affinity_in_status, affinity_of_others, affinity_shows_in_stat, stat_fields, priority_of_groups, io_priority,
    io_priority_errors, threads_are_separate, getcpu_in_mask);

const FIFO: i32 = libc::SCHED_FIFO;
const RR: i32 = libc::SCHED_RR;
const OTHER: i32 = libc::SCHED_OTHER;
const BATCH: i32 = libc::SCHED_BATCH;
const IDLE: i32 = libc::SCHED_IDLE;
const RESET: i32 = 0x4000_0000;

fn set(pid: i32, policy: i32, priority: i32) -> i64 {
    sys!(libc::SYS_sched_setscheduler, pid, policy, &priority as *const i32)
}

fn get(pid: i32) -> i64 {
    sys!(libc::SYS_sched_getscheduler, pid)
}

fn param(pid: i32) -> i32 {
    let mut priority = -1i32;
    ok!(sys!(libc::SYS_sched_getparam, pid, &mut priority as *mut i32));
    priority
}

fn limit_of(resource: u32) -> u64 {
    let mut limit = [0u64; 2];
    ok!(sys!(libc::SYS_getrlimit, resource as i32, limit.as_mut_ptr()));
    limit[0]
}

/// Sets a limit that may be above the present one.
fn limit(resource: u32, soft: u64) {
    let limit = [soft, soft];
    let r = sys!(libc::SYS_setrlimit, resource as i32, limit.as_ptr());
    if r == -i64::from(libc::EPERM) {
        skip("the limit cannot be raised here");
    }
    ok!(r);
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

fn set_attr(pid: i32, attr: &Attr) -> i64 {
    sys!(libc::SYS_sched_setattr, pid, attr as *const Attr, 0)
}

fn get_attr(pid: i32) -> Attr {
    let mut attr = Attr::default();
    ok!(sys!(libc::SYS_sched_getattr, pid, &mut attr as *mut Attr, 56, 0));
    attr
}

fn fifo_and_rr() {
    need_root();
    in_child(|| {
        ok!(set(0, FIFO, 10));
        eq!((get(0), param(0)), (i64::from(FIFO), 10));
        ok!(set(0, RR, 99));
        eq!((get(0), param(0)), (i64::from(RR), 99));
        ok!(set(0, OTHER, 0));
        eq!((get(0), param(0)), (i64::from(OTHER), 0));
        ok!(set(getpid(), FIFO, 1));
        eq!(get(getpid()), i64::from(FIFO));
        ok!(set(0, OTHER, 0));
    });
}

fn policies_need_privilege() {
    in_child(|| {
        drop_root();
        limit(libc::RLIMIT_RTPRIO, 0);
        err!(set(0, FIFO, 1), libc::EPERM);
        err!(set(0, RR, 1), libc::EPERM);
        ok!(set(0, BATCH, 0));
        ok!(set(0, IDLE, 0));
        // Back from SCHED_IDLE goes as far as RLIMIT_NICE allows.
        if limit_of(libc::RLIMIT_NICE) == 0 {
            err!(set(0, OTHER, 0), libc::EPERM);
        }
    });
}

fn realtime_limit() {
    need_root();
    in_child(|| {
        limit(libc::RLIMIT_RTPRIO, 20);
        drop_root();
        ok!(set(0, FIFO, 10));
        ok!(set(0, FIFO, 20));
        err!(set(0, FIFO, 21), libc::EPERM);
        err!(set(0, RR, 30), libc::EPERM);
        ok!(set(0, RR, 5));
        ok!(set(0, OTHER, 0));
    });
}

fn set_param() {
    need_root();
    in_child(|| {
        let seven = 7i32;
        let zero = 0i32;
        err!(sys!(libc::SYS_sched_setparam, 0, &seven as *const i32), libc::EINVAL);
        ok!(sys!(libc::SYS_sched_setparam, 0, &zero as *const i32));
        ok!(set(0, FIFO, 3));
        ok!(sys!(libc::SYS_sched_setparam, 0, &seven as *const i32));
        eq!((get(0), param(0)), (i64::from(FIFO), 7));
        err!(sys!(libc::SYS_sched_setparam, 0, &zero as *const i32), libc::EINVAL);
        ok!(set(0, OTHER, 0));
    });
}

fn policy_errors() {
    err!(set(0, FIFO, 0), libc::EINVAL);
    err!(set(0, FIFO, 100), libc::EINVAL);
    err!(set(0, RR, -1), libc::EINVAL);
    err!(set(0, OTHER, 1), libc::EINVAL);
    err!(set(0, BATCH, 1), libc::EINVAL);
    err!(set(0, IDLE, 1), libc::EINVAL);
    err!(set(0, 4, 0), libc::EINVAL);
    err!(set(0, 77, 0), libc::EINVAL);
    err!(set(0, -1, 0), libc::EINVAL);
    err!(set(-1, OTHER, 0), libc::EINVAL);
    err!(set(0x7fff_fff0, OTHER, 0), libc::ESRCH);
    err!(sys!(libc::SYS_sched_setscheduler, 0, OTHER, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_setscheduler, 0, OTHER, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_sched_get_priority_max, 4), libc::EINVAL);
    err!(sys!(libc::SYS_sched_get_priority_min, -1), libc::EINVAL);
    eq!(sys!(libc::SYS_sched_get_priority_max, 6), 0);
    eq!(sys!(libc::SYS_sched_get_priority_min, 6), 0);
}

fn param_errors() {
    let mut priority = 0i32;
    let p = &mut priority as *mut i32;
    err!(sys!(libc::SYS_sched_getparam, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getparam, 0, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_sched_getparam, -1, p), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getparam, 0x7fff_fff0, p), libc::ESRCH);
    err!(sys!(libc::SYS_sched_setparam, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_setparam, 0, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_sched_setparam, -1, p), libc::EINVAL);
    err!(sys!(libc::SYS_sched_setparam, 0x7fff_fff0, p), libc::ESRCH);
    err!(sys!(libc::SYS_sched_getscheduler, -5), libc::EINVAL);
}

fn reset_on_fork() {
    need_root();
    in_child(|| {
        ok!(set(0, FIFO | RESET, 10));
        eq!(get(0), i64::from(FIFO | RESET));
        in_child(|| {
            eq!((get(0), param(0)), (i64::from(OTHER), 0));
        });
        ok!(set(0, OTHER, 0));
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, -5));
        ok!(set(0, OTHER | RESET, 0));
        in_child(|| {
            eq!(get(0), i64::from(OTHER));
            eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 20);
        });
    });
}

fn reset_on_fork_sticks() {
    in_child(|| {
        drop_root();
        ok!(set(0, OTHER | RESET, 0));
        // Only the privileged take it away again.
        err!(set(0, OTHER, 0), libc::EPERM);
        eq!(get(0), i64::from(OTHER | RESET));
    });
}

fn children_inherit() {
    need_root();
    in_child(|| {
        ok!(set(0, RR, 4));
        in_child(|| eq!((get(0), param(0)), (i64::from(RR), 4)));
        std::thread::spawn(|| eq!((get(0), param(0)), (i64::from(RR), 4))).join().expect("the thread ends");
        ok!(set(0, OTHER, 0));
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 7));
        in_child(|| eq!(get_attr(0).nice, 7));
    });
}

fn exec_keeps() {
    let pid = child(|| {
        ok!(set(0, BATCH, 0));
        ok!(crate::tool::exec(&["pause"]));
    });
    until("the program runs", || text(&format!("/proc/{pid}/cmdline")).contains("pause"));
    eq!(get(pid), i64::from(BATCH));
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn attributes_round_trip() {
    need_root();
    in_child(|| {
        let attr = get_attr(0);
        eq!((attr.size, attr.policy, attr.flags, attr.nice, attr.priority), (56, 0, 0, 0, 0));
        let mut attr = Attr { size: 56, policy: FIFO as u32, priority: 5, ..Attr::default() };
        ok!(set_attr(0, &attr));
        eq!((get(0), param(0)), (i64::from(FIFO), 5));
        let now = get_attr(0);
        eq!((now.policy, now.priority), (FIFO as u32, 5));
        attr = Attr { size: 48, policy: OTHER as u32, nice: -3, flags: 1, ..Attr::default() };
        ok!(set_attr(0, &attr));
        let now = get_attr(0);
        eq!((now.policy, now.nice, now.flags, now.priority), (0, -3, 1, 0));
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 23);
    });
}

fn attribute_errors() {
    let good = Attr { size: 48, ..Attr::default() };
    err!(set_attr(-1, &good), libc::EINVAL);
    err!(set_attr(0x7fff_fff0, &good), libc::ESRCH);
    err!(sys!(libc::SYS_sched_setattr, 0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_setattr, 0, BAD, 0), libc::EFAULT);
    err!(sys!(libc::SYS_sched_setattr, 0, &good as *const Attr, 1), libc::EINVAL);
    err!(set_attr(0, &Attr { policy: 77, ..good }), libc::EINVAL);
    err!(set_attr(0, &Attr { policy: 1 << 31, ..good }), libc::EINVAL);
    err!(set_attr(0, &Attr { flags: 0x80, ..good }), libc::EINVAL);
    err!(set_attr(0, &Attr { priority: 1, ..good }), libc::EINVAL);
    let mut attr = Attr::default();
    let p = &mut attr as *mut Attr;
    err!(sys!(libc::SYS_sched_getattr, -1, p, 56, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getattr, 0x7fff_fff0, p, 56, 0), libc::ESRCH);
    err!(sys!(libc::SYS_sched_getattr, 0, 0, 56, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getattr, 0, BAD, 56, 0), libc::EFAULT);
    err!(sys!(libc::SYS_sched_getattr, 0, p, 47, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getattr, 0, p, 5000, 0), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getattr, 0, p, 56, 1), libc::EINVAL);
}

fn attribute_sizes() {
    // Size 0 is the first one; a longer structure is taken if the rest is zero.
    ok!(set_attr(0, &Attr::default()));
    let small = Attr { size: 40, ..Attr::default() };
    err!(set_attr(0, &small), libc::E2BIG);
    let mut long = [0u8; 128];
    long[..4].copy_from_slice(&128u32.to_ne_bytes());
    ok!(sys!(libc::SYS_sched_setattr, 0, long.as_ptr(), 0));
    long[100] = 1;
    err!(sys!(libc::SYS_sched_setattr, 0, long.as_ptr(), 0), libc::E2BIG);
    let huge = Attr { size: 5000, ..Attr::default() };
    err!(set_attr(0, &huge), libc::E2BIG);
    let mut out = [0xaau8; 128];
    ok!(sys!(libc::SYS_sched_getattr, 0, out.as_mut_ptr(), 128, 0));
    eq!(u32::from_ne_bytes(out[..4].try_into().expect("four bytes")), 56);
    let mut out = [0xaau8; 56];
    ok!(sys!(libc::SYS_sched_getattr, 0, out.as_mut_ptr(), 48, 0));
    eq!(out[48..], [0xaa; 8]);
}

fn deadline_arguments() {
    let ms = 1_000_000;
    let deadline = Attr { size: 48, policy: 6, runtime: 10 * ms, deadline: 30 * ms, period: 30 * ms, ..Attr::default() };
    err!(set_attr(0, &Attr { runtime: 40 * ms, ..deadline }), libc::EINVAL);
    err!(set_attr(0, &Attr { runtime: 0, ..deadline }), libc::EINVAL);
    err!(set_attr(0, &Attr { deadline: 0, ..deadline }), libc::EINVAL);
    err!(set_attr(0, &Attr { period: 20 * ms, ..deadline }), libc::EINVAL);
    err!(set(0, 6, 0), libc::EINVAL);
    in_child(|| {
        drop_root();
        err!(set_attr(0, &deadline), libc::EPERM);
    });
}

fn idle_and_batch() {
    in_child(|| {
        ok!(set(0, IDLE, 0));
        eq!(get(0), i64::from(IDLE));
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 3));
        eq!(get_attr(0).nice, 3);
        ok!(set(0, BATCH, 0));
        eq!(get_attr(0).policy, BATCH as u32);
    });
}

fn nice_of_threads() {
    // The nice value is a thread's own.
    in_child(|| {
        let (r, w) = pipe();
        let thread = std::thread::spawn(move || {
            ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 4));
            let tid = gettid();
            write(w, &tid.to_ne_bytes());
            eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 16);
        });
        let tid = i32::from_ne_bytes(read(r, 4).try_into().expect("four bytes"));
        thread.join().expect("the thread ends");
        check!(tid != getpid());
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0), 20);
        // A process is all of its threads only for PRIO_PGRP and PRIO_USER.
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, getpid(), 6));
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, getpid()), 14);
    });
}

fn nice_limit() {
    in_child(|| {
        limit(libc::RLIMIT_NICE, 15);
        drop_root();
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 10));
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 5));
        err!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 4), libc::EACCES);
        let attr = Attr { size: 48, nice: 4, ..Attr::default() };
        err!(set_attr(0, &attr), libc::EPERM);
    });
}

fn other_users() {
    need_root();
    let pid = child(|| sleep_ms(60_000));
    in_child(|| {
        drop_root();
        err!(set(pid, BATCH, 0), libc::EPERM);
        err!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, pid, 5), libc::EPERM);
        err!(set_attr(pid, &Attr { size: 48, ..Attr::default() }), libc::EPERM);
        let mask = [u64::MAX];
        err!(sys!(libc::SYS_sched_setaffinity, pid, 8, mask.as_ptr()), libc::EPERM);
        // Looking is free.
        eq!(get(pid), 0);
        eq!(param(pid), 0);
    });
    kill(pid, libc::SIGKILL);
    wait(pid);
}

fn rr_interval() {
    let interval = || {
        let mut time: libc::timespec = zeroed();
        ok!(sys!(libc::SYS_sched_rr_get_interval, 0, &mut time as *mut _));
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    check!(interval() >= 0);
    if is_root() {
        in_child(|| {
            ok!(set(0, RR, 1));
            check!((1_000_000..=1_000_000_000).contains(&interval()));
            ok!(set(0, FIFO, 1));
            eq!(interval(), 0);
            ok!(set(0, OTHER, 0));
        });
    }
}

fn rr_interval_errors() {
    let mut time: libc::timespec = zeroed();
    err!(sys!(libc::SYS_sched_rr_get_interval, -1, &mut time as *mut _), libc::EINVAL);
    err!(sys!(libc::SYS_sched_rr_get_interval, 0x7fff_fff0, &mut time as *mut _), libc::ESRCH);
    err!(sys!(libc::SYS_sched_rr_get_interval, 0, BAD), libc::EFAULT);
}

fn mask_of(pid: i32) -> Vec<u64> {
    let mut set = [0u64; 16];
    let n = ok!(sys!(libc::SYS_sched_getaffinity, pid, 128, set.as_mut_ptr())) as usize;
    set[..n / 8].to_vec()
}

fn cpus(mask: &[u64]) -> Vec<usize> {
    (0..mask.len() * 64).filter(|i| mask[i / 64] >> (i % 64) & 1 != 0).collect()
}

fn one(cpu: usize) -> [u64; 16] {
    let mut mask = [0u64; 16];
    mask[cpu / 64] = 1 << (cpu % 64);
    mask
}

fn affinity_holds() {
    in_child(|| {
        for cpu in cpus(&mask_of(0)) {
            ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, one(cpu).as_ptr()));
            eq!(cpus(&mask_of(0)), [cpu]);
            eq!(cpus(&mask_of(getpid())), [cpu]);
        }
    });
}

fn affinity_inherited() {
    in_child(|| {
        let cpu = *cpus(&mask_of(0)).last().expect("a processor");
        ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, one(cpu).as_ptr()));
        in_child(|| eq!(cpus(&mask_of(0)), [cpu]));
        std::thread::spawn(move || eq!(cpus(&mask_of(0)), [cpu])).join().expect("the thread ends");
    });
}

fn affinity_errors() {
    let all = [u64::MAX; 16];
    err!(sys!(libc::SYS_sched_setaffinity, 0, 128, BAD), libc::EFAULT);
    err!(sys!(libc::SYS_sched_setaffinity, 0x7fff_fff0, 128, all.as_ptr()), libc::ESRCH);
    err!(sys!(libc::SYS_sched_setaffinity, 0, 0, all.as_ptr()), libc::EINVAL);
    // Processors that there are not, alone.
    let mut none = [0u64; 16];
    none[15] = 1 << 63;
    err!(sys!(libc::SYS_sched_setaffinity, 0, 128, none.as_ptr()), libc::EINVAL);
    // With one that there is they do not matter.
    in_child(|| {
        ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, all.as_ptr()));
    });
    let mut set = [0u64; 16];
    err!(sys!(libc::SYS_sched_getaffinity, 0, 12, set.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getaffinity, 0, 0, set.as_mut_ptr()), libc::EINVAL);
    // A negative id is one that nobody has; the length is looked at first.
    err!(sys!(libc::SYS_sched_getaffinity, -1, 0, set.as_mut_ptr()), libc::EINVAL);
    err!(sys!(libc::SYS_sched_getaffinity, -1, 128, set.as_mut_ptr()), libc::ESRCH);
    err!(sys!(libc::SYS_sched_setaffinity, -1, 128, all.as_ptr()), libc::ESRCH);
}

fn affinity_in_status() {
    in_child(|| {
        let cpu = *cpus(&mask_of(0)).last().expect("a processor");
        ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, one(cpu).as_ptr()));
        eq!(status_line(getpid(), "Cpus_allowed_list"), cpu.to_string());
        let mask = status_line(getpid(), "Cpus_allowed").replace(',', "");
        eq!(u128::from_str_radix(&mask, 16).expect("hexadecimal"), 1u128 << cpu);
    });
}

fn affinity_of_others() {
    let pid = child(|| sleep_ms(60_000));
    let cpu = cpus(&mask_of(pid))[0];
    ok!(sys!(libc::SYS_sched_setaffinity, pid, 128, one(cpu).as_ptr()));
    eq!(cpus(&mask_of(pid)), [cpu]);
    kill(pid, libc::SIGKILL);
    wait(pid);
}

/// The fields of stat behind the name: index 0 is the state, field 3.
fn stat_of(pid: i32) -> Vec<String> {
    let stat = text(&format!("/proc/{pid}/stat"));
    let rest = stat.rsplit_once(')').expect("a name").1.to_string();
    rest.split_whitespace().map(str::to_string).collect()
}

fn affinity_shows_in_stat() {
    in_child(|| {
        let cpu = *cpus(&mask_of(0)).last().expect("a processor");
        ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, one(cpu).as_ptr()));
        // Field 39: the processor last run on.
        eq!(stat_of(getpid())[36], cpu.to_string());
    });
}

fn stat_fields() {
    in_child(|| {
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 5));
        let stat = stat_of(getpid());
        eq!((stat[15].as_str(), stat[16].as_str()), ("25", "5"));
        ok!(set(0, BATCH, 0));
        eq!(stat_of(getpid())[38], "3");
        if is_root() {
            ok!(set(0, FIFO, 7));
            let stat = stat_of(getpid());
            eq!((stat[15].as_str(), stat[37].as_str(), stat[38].as_str()), ("-8", "7", "1"));
            ok!(set(0, OTHER, 0));
        }
    });
}

fn priority_of_groups() {
    in_child(|| {
        ok!(sys!(libc::SYS_setpgid, 0, 0));
        let pid = child(|| sleep_ms(60_000));
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PGRP, 0, 3));
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, pid), 17);
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PGRP, getpid()), 17);
        ok!(sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, pid, 9));
        // The highest priority of all.
        eq!(sys!(libc::SYS_getpriority, libc::PRIO_PGRP, 0), 17);
        err!(sys!(libc::SYS_getpriority, libc::PRIO_PGRP, 0x7fff_fff0), libc::ESRCH);
        kill(pid, libc::SIGKILL);
        wait(pid);
    });
}

const BEST_EFFORT: i32 = 2 << 13;

fn io_priority() {
    in_child(|| {
        ok!(sys!(libc::SYS_ioprio_set, 1, 0, BEST_EFFORT | 3));
        eq!(sys!(libc::SYS_ioprio_get, 1, 0), i64::from(BEST_EFFORT | 3));
        eq!(sys!(libc::SYS_ioprio_get, 1, getpid()), i64::from(BEST_EFFORT | 3));
        in_child(|| eq!(sys!(libc::SYS_ioprio_get, 1, 0), i64::from(BEST_EFFORT | 3)));
        ok!(sys!(libc::SYS_ioprio_set, 1, 0, 3 << 13));
        eq!(sys!(libc::SYS_ioprio_get, 1, 0), 3 << 13);
        if is_root() {
            ok!(sys!(libc::SYS_ioprio_set, 1, 0, 1 << 13 | 2));
            eq!(sys!(libc::SYS_ioprio_get, 1, 0), 1 << 13 | 2);
        }
    });
}

fn io_priority_errors() {
    err!(sys!(libc::SYS_ioprio_set, 9, 0, BEST_EFFORT), libc::EINVAL);
    err!(sys!(libc::SYS_ioprio_get, 9, 0), libc::EINVAL);
    err!(sys!(libc::SYS_ioprio_set, 1, 0x7fff_fff0, BEST_EFFORT), libc::ESRCH);
    err!(sys!(libc::SYS_ioprio_get, 1, 0x7fff_fff0), libc::ESRCH);
    err!(sys!(libc::SYS_ioprio_set, 1, 0, 7 << 13), libc::EINVAL);
    err!(sys!(libc::SYS_ioprio_set, 1, 0, 5), libc::EINVAL);
    in_child(|| {
        drop_root();
        err!(sys!(libc::SYS_ioprio_set, 1, 0, 1 << 13), libc::EPERM);
    });
}

fn threads_are_separate() {
    in_child(|| {
        let (r, w) = pipe();
        let (r2, w2) = pipe();
        let thread = std::thread::spawn(move || {
            ok!(set(0, BATCH, 0));
            write(w, &gettid().to_ne_bytes());
            read(r2, 1);
        });
        let tid = i32::from_ne_bytes(read(r, 4).try_into().expect("four bytes"));
        eq!(get(tid), i64::from(BATCH));
        eq!(get(0), i64::from(OTHER));
        write(w2, b"x");
        thread.join().expect("the thread ends");
    });
}

fn getcpu_in_mask() {
    in_child(|| {
        for cpu in cpus(&mask_of(0)) {
            ok!(sys!(libc::SYS_sched_setaffinity, 0, 128, one(cpu).as_ptr()));
            let mut now = u32::MAX;
            ok!(sys!(libc::SYS_getcpu, &mut now as *mut u32, 0, 0));
            eq!(now as usize, cpu);
            for _ in 0..50 {
                // SAFETY: no arguments; goes through the vDSO where there is one.
                eq!(unsafe { libc::sched_getcpu() } as usize, cpu);
                sys!(libc::SYS_sched_yield);
            }
        }
    });
}
