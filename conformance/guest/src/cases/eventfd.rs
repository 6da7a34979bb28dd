//! eventfd(2) and signalfd(2).

use crate::sys::*;
use crate::{cases, check, eq, err, ok, sys};

cases!("eventfd": counts, semaphore, blocks_when_full, nonblocking, eventfd_errors, wakes_reader, between_processes,
    signal_is_read, signal_blocks_and_wakes, signal_mask_changes, signal_nonblocking, signal_errors, signal_polls,
    signal_queue_order);

fn eventfd(initial: u32, flags: i32) -> i32 {
    ok!(sys!(libc::SYS_eventfd2, initial, flags)) as i32
}

fn value(fd: i32) -> u64 {
    u64::from_le_bytes(read(fd, 8).try_into().expect("eight bytes"))
}

fn give(fd: i32, n: u64) -> i64 {
    write(fd, &n.to_le_bytes())
}

fn counts() {
    let fd = eventfd(3, 0);
    eq!(give(fd, 4), 8);
    eq!(value(fd), 7);
    eq!(give(fd, 0), 8);
    eq!(give(fd, 1), 8);
    eq!(value(fd), 1);
}

fn semaphore() {
    let fd = eventfd(3, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK);
    (0..3).for_each(|_| eq!(value(fd), 1));
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
}

fn blocks_when_full() {
    let fd = eventfd(0, 0);
    give(fd, u64::MAX - 1);
    let pid = child(|| {
        eq!(give(fd, 5), 8);
    });
    until("the child sleeps", || task_state(pid) == 'S');
    eq!(value(fd), u64::MAX - 1);
    reap(pid);
    eq!(value(fd), 5);
}

fn nonblocking() {
    let fd = eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8), libc::EAGAIN);
    give(fd, u64::MAX - 1);
    err!(give(fd, 1), libc::EAGAIN);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
}

fn eventfd_errors() {
    let fd = eventfd(0, 0);
    let mut buf = [0u8; 8];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 7), libc::EINVAL);
    err!(sys!(libc::SYS_write, fd, buf.as_ptr(), 7), libc::EINVAL);
    err!(give(fd, u64::MAX), libc::EINVAL);
    err!(sys!(libc::SYS_write, fd, BAD, 8), libc::EFAULT);
    err!(sys!(libc::SYS_eventfd2, 0, 0x100), libc::EINVAL);
    err!(sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), 8, 0), libc::ESPIPE);
}

fn wakes_reader() {
    let fd = eventfd(0, 0);
    let reader = std::thread::spawn(move || value(fd));
    sleep_ms(10);
    give(fd, 9);
    eq!(reader.join().expect("joined"), 9);
    let mut buf = [0u8; 8];
    err!(interrupted(libc::SIGUSR1, 0, || sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 8)), libc::EINTR);
}

fn between_processes() {
    let (a, b) = (eventfd(0, 0), eventfd(0, 0));
    let pid = child(|| {
        for _ in 0..500 {
            eq!(value(a), 1);
            give(b, 1);
        }
    });
    for _ in 0..500 {
        give(a, 1);
        eq!(value(b), 1);
    }
    reap(pid);
    let mut fd = libc::pollfd { fd: a, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut fd as *mut _, 1, 0), 1);
    eq!(fd.revents, libc::POLLOUT);
}

fn signalfd(fd: i32, set: u64, flags: i32) -> i64 {
    sys!(libc::SYS_signalfd4, fd, &set as *const u64, 8, flags)
}

fn info(fd: i32) -> libc::signalfd_siginfo {
    let bytes = read(fd, 128);
    eq!(bytes.len(), 128);
    // SAFETY: the kernel's structure.
    unsafe { bytes.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() }
}

fn signal_is_read() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1) | bit(50));
    let fd = ok!(signalfd(-1, bit(libc::SIGUSR1) | bit(50), 0)) as i32;
    kill(getpid(), libc::SIGUSR1);
    let got = info(fd);
    eq!((got.ssi_signo, got.ssi_code, got.ssi_pid), (libc::SIGUSR1 as u32, 0, getpid() as u32));
    eq!(pending(), 0);
}

fn signal_blocks_and_wakes() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    let fd = ok!(signalfd(-1, bit(libc::SIGUSR1), 0)) as i32;
    let parent = getpid();
    let pid = child(|| {
        sleep_ms(15);
        kill(parent, libc::SIGUSR1);
    });
    eq!(info(fd).ssi_pid, pid as u32);
    reap(pid);
}

fn signal_mask_changes() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1) | bit(libc::SIGUSR2));
    let fd = ok!(signalfd(-1, bit(libc::SIGUSR1), libc::SFD_NONBLOCK)) as i32;
    kill(getpid(), libc::SIGUSR2);
    let mut buf = [0u8; 128];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 128), libc::EAGAIN);
    eq!(signalfd(fd, bit(libc::SIGUSR2), 0), i64::from(fd));
    eq!(info(fd).ssi_signo, libc::SIGUSR2 as u32);
}

fn signal_nonblocking() {
    let fd = ok!(signalfd(-1, 0, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)) as i32;
    let mut buf = [0u8; 128];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 128), libc::EAGAIN);
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_GETFD), 1);
}

fn signal_errors() {
    let fd = ok!(signalfd(-1, 0, libc::SFD_NONBLOCK)) as i32;
    let mut buf = [0u8; 128];
    err!(sys!(libc::SYS_read, fd, buf.as_mut_ptr(), 127), libc::EINVAL);
    err!(signalfd(-1, 0, 1), libc::EINVAL);
    err!(signalfd(999, 0, 0), libc::EBADF);
    err!(signalfd(0, 0, 0), libc::EINVAL);
    err!(sys!(libc::SYS_signalfd4, -1, BAD, 8, 0), libc::EFAULT);
    err!(sys!(libc::SYS_signalfd4, -1, BAD, 7, 0), libc::EINVAL);
}

fn signal_polls() {
    sigmask(libc::SIG_BLOCK, bit(libc::SIGUSR1));
    let fd = ok!(signalfd(-1, bit(libc::SIGUSR1), 0)) as i32;
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 0), 0);
    let parent = getpid();
    let pid = child(|| {
        sleep_ms(10);
        kill(parent, libc::SIGUSR1);
    });
    eq!(sys!(libc::SYS_poll, &mut poll as *mut _, 1, 10_000), 1);
    reap(pid);
}

fn signal_queue_order() {
    sigmask(libc::SIG_BLOCK, u64::MAX);
    let fd = ok!(signalfd(-1, bit(50) | bit(51) | bit(libc::SIGUSR1), 0)) as i32;
    for signal in [51, 50, 50, libc::SIGUSR1] {
        kill(getpid(), signal);
    }
    // Lower numbers first; several at once if there is room.
    let all = read(fd, 128 * 10);
    let signals: Vec<u32> = all.chunks(128).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    eq!(signals, [libc::SIGUSR1 as u32, 50, 50, 51]);
    check!(all.len() == 512);
}
