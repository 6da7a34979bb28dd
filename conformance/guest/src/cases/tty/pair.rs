//! The two sides of a pseudo-terminal.

use super::*;
use crate::{check, eq, err, ok, sys};

const HUNG_UP: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLRDNORM | libc::POLLWRNORM;
const ALL: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDNORM | libc::POLLWRNORM;

pub fn names_and_nodes() {
    let pty = Pty::new();
    let number = get(pty.m, TIOCGPTN) as u32;
    let (m, s) = (fstat(pty.m), fstat(pty.s));
    eq!(m.st_mode & libc::S_IFMT, libc::S_IFCHR);
    eq!((libc::major(m.st_rdev), libc::minor(m.st_rdev)), (5, 2));
    eq!((libc::major(s.st_rdev), libc::minor(s.st_rdev)), (136, number));
    eq!(s.st_ino, u64::from(number) + 3);
    eq!(s.st_blksize, 1024);
    let (result, by_name) = stat(&slave_name(pty.m));
    eq!((result, by_name.st_rdev, by_name.st_dev), (0, s.st_rdev, s.st_dev));
    eq!(get(pty.m, TIOCGDEV), (136 << 8 | number & 0xff) as i32);
    eq!(get(pty.s, TIOCGDEV), (136 << 8 | number & 0xff) as i32);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", pty.s));
    eq!(link.expect("a link").to_string_lossy(), slave_name(pty.m));
    err!(ioctl(pty.s, TIOCGPTN, &mut [0i32; 1] as *mut _), libc::ENOTTY);
}

pub fn locked_at_first() {
    let m = ok!(open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)) as i32;
    eq!(get(m, TIOCGPTLCK), 1);
    err!(open(&slave_name(m), libc::O_RDWR, 0), libc::EIO);
    eq!(set(m, TIOCSPTLCK, 0), 0);
    eq!(get(m, TIOCGPTLCK), 0);
    let s = slave(m, libc::O_NOCTTY);
    eq!(set(m, TIOCSPTLCK, 7), 0);
    eq!(get(m, TIOCGPTLCK), 1);
    // Who has it open is not concerned.
    eq!(write(m, b"x\n"), 2);
    eq!(read(s, 9), b"x\n");
    err!(open(&slave_name(m), libc::O_RDWR, 0), libc::EIO);
    err!(ioctl(m, TIOCSPTLCK, BAD), libc::EFAULT);
    err!(set(s, TIOCSPTLCK, 0), libc::ENOTTY);
}

pub fn peer_of_a_master() {
    let m = ok!(open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)) as i32;
    err!(ioctl(m, TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY), libc::EIO);
    eq!(set(m, TIOCSPTLCK, 0), 0);
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let s = ok!(ioctl(m, TIOCGPTPEER, flags)) as i32;
    eq!(sys!(libc::SYS_fcntl, s, libc::F_GETFD), 1);
    check!(sys!(libc::SYS_fcntl, s, libc::F_GETFL) & i64::from(libc::O_NONBLOCK) != 0);
    eq!(fstat(s).st_rdev, stat(&slave_name(m)).1.st_rdev);
    err!(try_read(s), libc::EAGAIN);
    let only_read = ok!(ioctl(m, TIOCGPTPEER, libc::O_RDONLY | libc::O_NOCTTY)) as i32;
    err!(write(only_read, b"x"), libc::EBADF);
    err!(ioctl(s, TIOCGPTPEER, libc::O_RDWR), libc::EIO);
}

pub fn name_goes_with_the_master() {
    let pty = Pty::new();
    let name = slave_name(pty.m);
    let copy = ok!(sys!(libc::SYS_dup, pty.m)) as i32;
    close(pty.m);
    eq!(stat(&name).0, 0);
    close(copy);
    err!(stat(&name).0, libc::ENOENT);
    err!(open(&name, libc::O_RDWR, 0), libc::ENOENT);
}

pub fn lowest_number_first() {
    let masters = [0; 3].map(|_| master(0));
    let numbers = masters.map(|m| get(m, TIOCGPTN));
    check!(numbers[0] < numbers[1] && numbers[1] < numbers[2], "{numbers:?}");
    // As long as a slave is open, its number is not free.
    let s = slave(masters[1], libc::O_NOCTTY);
    close(masters[1]);
    let other = master(0);
    check!(get(other, TIOCGPTN) != numbers[1]);
    close(other);
    close(s);
    until("the number is given out again", || {
        let again = master(0);
        let number = get(again, TIOCGPTN);
        close(again);
        number == numbers[1]
    });
}

pub fn closed_slave_ends_the_master() {
    let pty = Pty::raw();
    eq!(write(pty.s, b"last"), 4);
    close(pty.s);
    eq!(ready(pty.m, ALL, 1000) & libc::POLLHUP, libc::POLLHUP);
    pty.shows(b"last");
    err!(try_read(pty.m), libc::EIO);
    err!(try_read(pty.m), libc::EIO);
    // What the master writes waits for the next slave, and so do the modes.
    eq!(write(pty.m, b"again"), 5);
    let s = slave(pty.m, libc::O_NOCTTY);
    eq!(read(s, 9), b"again");
    eq!(modes(s).lflag, 0);
    eq!(ready(pty.m, ALL, 0), libc::POLLOUT | libc::POLLWRNORM);
    close(s);
    err!(try_read(pty.m), libc::EIO);
}

pub fn master_waits_for_the_first_slave() {
    let m = master(libc::O_NONBLOCK);
    err!(try_read(m), libc::EAGAIN);
    eq!(ready(m, ALL, 0), libc::POLLOUT | libc::POLLWRNORM);
    // There is a terminal already, which echoes.
    eq!(write(m, b"hi\n"), 3);
    shows(m, b"hi\r\n");
    let s = slave(m, libc::O_NOCTTY);
    eq!(read(s, 9), b"hi\n");
}

pub fn exclusive_use() {
    let pty = Pty::new();
    eq!(get(pty.s, TIOCGEXCL), 0);
    eq!(ioctl(pty.s, TIOCEXCL, 0), 0);
    eq!(get(pty.s, TIOCGEXCL), 1);
    let again = open(&slave_name(pty.m), libc::O_RDWR | libc::O_NOCTTY, 0);
    if is_root() {
        close(ok!(again) as i32);
        let name = slave_name(pty.m);
        eq!(sys!(libc::SYS_chmod, c(&name).as_ptr(), 0o666), 0);
        in_child(|| {
            ok!(sys!(libc::SYS_setuid, 65534));
            err!(open(&name, libc::O_RDWR | libc::O_NOCTTY, 0), libc::EBUSY);
        });
    } else {
        err!(again, libc::EBUSY);
    }
    eq!(ioctl(pty.s, TIOCNXCL, 0), 0);
    close(slave(pty.m, libc::O_NOCTTY));
}

pub fn window_size() {
    let pty = Pty::new();
    let size = |fd| {
        let mut size = [9u16; 4];
        ok!(ioctl(fd, TIOCGWINSZ, size.as_mut_ptr()));
        size
    };
    eq!(size(pty.s), [0; 4]);
    eq!(ioctl(pty.m, TIOCSWINSZ, [24u16, 80, 3, 4].as_ptr()), 0);
    eq!((size(pty.s), size(pty.m)), ([24, 80, 3, 4], [24, 80, 3, 4]));
    eq!(ioctl(pty.s, TIOCSWINSZ, [1u16, 0xffff, 0, 0].as_ptr()), 0);
    eq!(size(pty.m), [1, 0xffff, 0, 0]);
    err!(ioctl(pty.s, TIOCGWINSZ, BAD), libc::EFAULT);
    err!(ioctl(pty.m, TIOCSWINSZ, WILD), libc::EFAULT);
    let (_, end) = guarded_page();
    err!(ioctl(pty.s, TIOCSWINSZ, end - 4), libc::EFAULT);
    eq!(size(pty.m), [1, 0xffff, 0, 0]);
}

pub fn nothing_to_read() {
    let pty = Pty::new();
    for fd in [pty.m, pty.s] {
        eq!(ready(fd, ALL, 0), libc::POLLOUT | libc::POLLWRNORM);
        eq!(sys!(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        err!(try_read(fd), libc::EAGAIN);
        eq!(sys!(libc::SYS_read, fd, 0, 0), 0);
        eq!(sys!(libc::SYS_write, fd, 0, 0), 0);
        err!(sys!(libc::SYS_lseek, fd, 0, 0), libc::ESPIPE);
        err!(sys!(libc::SYS_pread64, fd, BAD, 1, 0), libc::ESPIPE);
    }
    // Half a line is not enough for a reader of lines.
    pty.type_in(b"half");
    err!(try_read(pty.s), libc::EAGAIN);
    eq!(ready(pty.s, libc::POLLIN, 0), 0);
    pty.type_in(b"\n");
    eq!(ready(pty.s, ALL, 0), ALL & !libc::POLLPRI);
    eq!(read(pty.s, 9), b"half\n");
}

/// Writes until nothing more goes; how much went.
fn fill(fd: i32) -> usize {
    eq!(sys!(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
    let mut total = 0;
    loop {
        match write(fd, &[b'x'; 1000]) {
            n if n > 0 => total += n as usize,
            n => {
                err!(n, libc::EAGAIN);
                // The other side may just be taking some.
                sleep_ms(5);
                if ready(fd, libc::POLLOUT, 0) == 0 {
                    return total;
                }
            }
        }
        check!(total < 1 << 20);
    }
}

/// Reads everything.
fn drain(fd: i32) -> usize {
    let mut total = 0;
    while ready(fd, libc::POLLIN, 20) & libc::POLLIN != 0 {
        total += read(fd, 3000).len();
    }
    total
}

pub fn slave_fills_up() {
    let pty = Pty::raw();
    let total = fill(pty.s);
    check!(total >= 4096, "{total}");
    eq!(drain(pty.m), total);
    check!(ready(pty.s, libc::POLLOUT, 1000) & libc::POLLOUT != 0);
    // A writer that waits goes on when there is room.
    fill(pty.s);
    eq!(sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, 0), 0);
    let pid = child(|| eq!(write(pty.s, &[b'y'; 30_000]), 30_000));
    until_state(pid, 'S');
    let mut ys = 0;
    while ys < 30_000 {
        ys += read(pty.m, 3000).iter().filter(|c| **c == b'y').count();
    }
    reap(pid);
}

pub fn master_fills_up() {
    let pty = Pty::raw();
    let total = fill(pty.m);
    check!(total >= 4096, "{total}");
    eq!(get(pty.s, FIONREAD), 4095);
    eq!(drain(pty.s), total);
    check!(ready(pty.m, libc::POLLOUT, 1000) & libc::POLLOUT != 0);
    eq!(write(pty.m, b"x"), 1);
}

pub fn hung_up_slave() {
    let pty = Pty::new();
    pty.type_in(b"never read\n");
    close(pty.m);
    eq!(ready(pty.s, ALL, 1000), HUNG_UP);
    eq!(try_read(pty.s), 0);
    err!(write(pty.s, b"x"), libc::EIO);
    err!(ioctl(pty.s, TCGETS, &mut Modes::default() as *mut Modes), libc::EIO);
    err!(ioctl(pty.s, FIONREAD, &mut [0i32; 1] as *mut _), libc::EIO);
    err!(set(pty.s, TIOCSPGRP, 1), libc::ENOTTY);
    eq!(fstat(pty.s).st_mode & libc::S_IFMT, libc::S_IFCHR);
}

pub fn blocked_reader_is_hung_up() {
    let pty = Pty::new();
    let pid = child(|| {
        close(pty.m);
        err!(try_read(pty.s), libc::EIO);
        eq!(try_read(pty.s), 0);
    });
    until_state(pid, 'S');
    close(pty.m);
    reap(pid);
}

pub fn blocked_writer_is_hung_up() {
    let pty = Pty::raw();
    fill(pty.s);
    eq!(sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, 0), 0);
    let pid = child(|| {
        close(pty.m);
        // Linux moves what was written on by and by, and may find room for some more.
        let mut written = 4;
        while written == 4 {
            written = write(pty.s, b"more");
        }
        err!(written, libc::EIO);
    });
    until_state(pid, 'S');
    close(pty.m);
    reap(pid);
}

pub fn wrong_requests() {
    let pty = Pty::new();
    for fd in [pty.m, pty.s] {
        err!(ioctl(fd, TCGETS, BAD), libc::EFAULT);
        err!(ioctl(fd, TCSETS, WILD), libc::EFAULT);
        err!(ioctl(fd, FIONREAD, BAD), libc::EFAULT);
        err!(ioctl(fd, 0x5499, 0), libc::ENOTTY);
        err!(ioctl(fd, TCXONC, 9), libc::EINVAL);
        err!(ioctl(fd, TCFLSH, 3), libc::EINVAL);
        eq!(sys!(libc::SYS_read, fd, BAD, 0), 0);
        err!(
            sys!(libc::SYS_mmap, 0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0),
            libc::ENODEV
        );
    }
    // Of the master only.
    for request in [TIOCPKT as u32, TIOCSPTLCK, TIOCSIG] {
        err!(set(pty.s, request, 0), libc::ENOTTY);
    }
    let (r, _) = pipe();
    for request in [TCGETS, TIOCGWINSZ, TIOCGPGRP] {
        err!(ioctl(r, request, &mut Modes::default() as *mut Modes), libc::ENOTTY);
    }
    pty.type_in(b"x\n");
    err!(sys!(libc::SYS_read, pty.s, BAD, 5), libc::EFAULT);
    err!(sys!(libc::SYS_write, pty.s, BAD, 5), libc::EFAULT);
}

pub fn directory_of_slaves() {
    let pty = Pty::new();
    let number = get(pty.m, TIOCGPTN).to_string();
    let mut statfs: libc::statfs = zeroed();
    ok!(sys!(libc::SYS_statfs, c("/dev/pts").as_ptr(), &mut statfs as *mut _));
    eq!(statfs.f_type, 0x1cd1);
    let listed = || -> Vec<String> {
        let entries = std::fs::read_dir("/dev/pts").expect("a directory");
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    check!(listed().contains(&number) && listed().contains(&"ptmx".into()));
    need_root();
    err!(
        open("/dev/pts/new", libc::O_CREAT | libc::O_WRONLY, 0o600),
        libc::EACCES
    );
    err!(mkdir("/dev/pts/new", 0o700), libc::EPERM);
    err!(unlink(&slave_name(pty.m)), libc::EPERM);
    err!(rename(&slave_name(pty.m), "/dev/pts/new"), libc::EPERM);
    err!(open("/dev/pts/4294967297", libc::O_RDWR, 0), libc::ENOENT);
    err!(open(&format!("/dev/pts/0{number}"), libc::O_RDWR, 0), libc::ENOENT);
    close(pty.m);
    check!(!listed().contains(&number));
}

pub fn owner_and_mode() {
    let pty = Pty::new();
    let st = fstat(pty.s);
    eq!(st.st_uid, sys!(libc::SYS_geteuid) as u32);
    check!([0o600, 0o620].contains(&(st.st_mode & 0o7777)), "mode {:o}", st.st_mode);
    let name = slave_name(pty.m);
    eq!(sys!(libc::SYS_chmod, c(&name).as_ptr(), 0o640), 0);
    eq!(fstat(pty.s).st_mode & 0o7777, 0o640);
    need_root();
    eq!(sys!(libc::SYS_chown, c(&name).as_ptr(), 1, 2), 0);
    let st = stat(&name).1;
    eq!((st.st_uid, st.st_gid, st.st_mode & 0o7777), (1, 2, 0o640));
    in_child(|| {
        ok!(sys!(libc::SYS_setuid, 65534));
        err!(open(&name, libc::O_RDWR | libc::O_NOCTTY, 0), libc::EACCES);
        let own = Pty::new();
        eq!(fstat(own.s).st_uid, 65534);
    });
}

pub fn edges_in_epoll() {
    let pty = Pty::silent();
    let ep = ok!(sys!(libc::SYS_epoll_create1, 0)) as i32;
    let watch = |fd: i32, events: i32| {
        let mut event = libc::epoll_event {
            events: (events | libc::EPOLLET) as u32,
            u64: fd as u64,
        };
        eq!(
            sys!(libc::SYS_epoll_ctl, ep, libc::EPOLL_CTL_ADD, fd, &mut event as *mut _),
            0
        );
    };
    let next = |millis: i32| -> Vec<(i32, i32)> {
        let mut events: [libc::epoll_event; 4] = zeroed();
        let n = ok!(sys!(libc::SYS_epoll_wait, ep, events.as_mut_ptr(), 4, millis));
        events[..n as usize]
            .iter()
            .map(|e| (e.u64 as i32, e.events as i32))
            .collect()
    };
    watch(pty.s, libc::EPOLLIN);
    watch(pty.m, libc::EPOLLIN);
    eq!(next(0), []);
    pty.type_in(b"one\n");
    eq!(next(1000), [(pty.s, libc::EPOLLIN)]);
    eq!(next(0), []);
    pty.type_in(b"two\n");
    eq!(next(1000), [(pty.s, libc::EPOLLIN)]);
    eq!(write(pty.s, b"out"), 3);
    eq!(next(1000), [(pty.m, libc::EPOLLIN)]);
    close(pty.s);
    let hung = next(1000);
    check!(
        hung.iter()
            .any(|(fd, events)| *fd == pty.m && events & libc::EPOLLHUP != 0),
        "{hung:?}"
    );
}

fn packet(pty: Pty) -> Vec<u8> {
    eq!(ready(pty.m, libc::POLLIN, 1000) & libc::POLLIN, libc::POLLIN);
    read(pty.m, 100)
}

pub fn packets_tell_of_flushes() {
    let pty = Pty::silent();
    eq!(get(pty.m, TIOCGPKT), 0);
    eq!(set(pty.m, TIOCPKT, 1), 0);
    eq!(get(pty.m, TIOCGPKT), 1);
    eq!(write(pty.s, b"hello\n"), 6);
    eq!(packet(pty), b"\0hello\r\n");
    eq!(ioctl(pty.s, TCFLSH, 0), 0);
    eq!(ready(pty.m, ALL, 1000) & libc::POLLPRI, libc::POLLPRI);
    eq!(packet(pty), [1]);
    eq!(ioctl(pty.s, TCFLSH, 1), 0);
    eq!(packet(pty), [2]);
    eq!(ioctl(pty.s, TCFLSH, 2), 0);
    eq!(packet(pty), [3]);
    // A read of one byte is the kind alone.
    eq!(write(pty.s, b"x"), 1);
    eq!(ready(pty.m, libc::POLLIN, 1000), libc::POLLIN);
    eq!(read(pty.m, 1), [0]);
    eq!(read(pty.m, 9), b"\0x");
    eq!(set(pty.m, TIOCPKT, 0), 0);
    eq!(ioctl(pty.s, TCFLSH, 2), 0);
    eq!(write(pty.s, b"plain"), 5);
    pty.shows(b"plain");
    err!(ioctl(pty.m, TIOCPKT, BAD), libc::EFAULT);
}

pub fn packets_tell_of_flow_control() {
    let pty = Pty::silent();
    eq!(set(pty.m, TIOCPKT, 1), 0);
    pty.type_in(b"\x13");
    eq!(packet(pty), [4]);
    pty.type_in(b"\x11");
    eq!(packet(pty), [8]);
    eq!(ioctl(pty.s, TCXONC, 0), 0);
    eq!(packet(pty), [4]);
    eq!(ioctl(pty.s, TCXONC, 1), 0);
    eq!(packet(pty), [8]);
}

pub fn packets_tell_of_modes() {
    let pty = Pty::silent();
    eq!(set(pty.m, TIOCPKT, 1), 0);
    pty.change(|t| t.iflag &= !libc::IXON);
    eq!(packet(pty), [16]);
    pty.change(|t| t.iflag |= libc::IXON);
    eq!(packet(pty), [32]);
    pty.change(|t| t.cc[libc::VSTOP] = b's');
    eq!(packet(pty), [16]);
    pty.change(|t| t.lflag &= !libc::ECHOE);
    eq!(ready(pty.m, libc::POLLIN, 20), 0);
    pty.change(|t| t.lflag |= libc::EXTPROC);
    eq!(packet(pty), [64]);
    pty.change(|t| t.lflag &= !libc::EXTPROC);
    eq!(packet(pty), [64]);
}

pub fn signals_by_request() {
    let pty = Pty::own();
    catch(libc::SIGINT, 0);
    eq!(ioctl(pty.m, TIOCSIG, libc::SIGINT), 0);
    until("the signal comes", || seen() == 1);
    eq!(last(0), i64::from(libc::SIGINT));
    err!(ioctl(pty.m, TIOCSIG, libc::SIGTERM), libc::EINVAL);
    err!(ioctl(pty.m, TIOCSIG, 0), libc::EINVAL);
    err!(ioctl(pty.m, TIOCSIG, 1000), libc::EINVAL);
}

pub fn bytes_waiting() {
    let pty = Pty::silent();
    pty.type_in(b"one\ntwo\nth");
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    eq!(get(pty.s, FIONREAD), 8);
    eq!(pty.line(), b"one\n");
    eq!(get(pty.s, FIONREAD), 4);
    pty.type_in(b"\x04");
    until("the end of the file comes", || get(pty.s, FIONREAD) == 6);
    pty.change(|t| t.lflag &= !libc::ICANON);
    eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    check!(get(pty.s, FIONREAD) >= 6);
    eq!(write(pty.s, b"12345"), 5);
    eq!(ready(pty.m, libc::POLLIN, 1000), libc::POLLIN);
    eq!(get(pty.m, FIONREAD), 5);
    eq!(get(pty.s, TIOCOUTQ), 0);
    eq!(get(pty.m, TIOCOUTQ), 0);
}

pub fn other_disciplines() {
    let pty = Pty::new();
    eq!(get(pty.s, TIOCGETD), 0);
    eq!(set(pty.s, TIOCSETD, 0), 0);
    err!(set(pty.s, TIOCSETD, 1000), libc::EINVAL);
    err!(set(pty.s, TIOCSETD, -1), libc::EINVAL);
    err!(ioctl(pty.s, TIOCSETD, BAD), libc::EFAULT);
    eq!(get(pty.s, TIOCGETD), 0);
}

pub fn forged_input() {
    let pty = Pty::own();
    if !is_root() {
        // Linux may still be told to allow it.
        if std::fs::read("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|text| text.starts_with(b"1")) {
            skip("this kernel allows it");
        }
        err!(ioctl(pty.s, TIOCSTI, b"x".as_ptr()), libc::EIO);
        return;
    }
    for byte in b"ok\n" {
        eq!(ioctl(pty.s, TIOCSTI, byte as *const u8), 0);
    }
    eq!(pty.line(), b"ok\n");
    err!(ioctl(pty.s, TIOCSTI, BAD), libc::EFAULT);
}

pub fn opened_again_through_proc() {
    let pty = Pty::silent();
    let again = ok!(open(
        &format!("/proc/self/fd/{}", pty.s),
        libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK,
        0
    )) as i32;
    // A description of its own, of the same terminal.
    eq!(
        sys!(libc::SYS_fcntl, pty.s, libc::F_GETFL) & i64::from(libc::O_NONBLOCK),
        0
    );
    err!(try_read(again), libc::EAGAIN);
    pty.type_in(b"line\n");
    eq!(read(again, 9), b"line\n");
    close(pty.s);
    eq!(write(again, b"still"), 5);
    pty.shows(b"still");
    close(again);
    err!(try_read(pty.m), libc::EIO);
    // A master opened that way is a new one.
    let other = ok!(open(
        &format!("/proc/self/fd/{}", pty.m),
        libc::O_RDWR | libc::O_NOCTTY,
        0
    )) as i32;
    check!(get(other, TIOCGPTN) != get(pty.m, TIOCGPTN));
}

pub fn own_instance() {
    need_root();
    eq!(mkdir("pts", 0o755), 0);
    let (kind, dir) = (c("devpts"), c("pts"));
    let data = c("newinstance,ptmxmode=0666,mode=0640,uid=3,gid=4");
    let r = call(
        libc::SYS_mount,
        &[
            kind.as_ptr().raw(),
            dir.as_ptr().raw(),
            kind.as_ptr().raw(),
            0,
            data.as_ptr().raw(),
        ],
    );
    if r == -i64::from(libc::EPERM) {
        skip("mounting is not allowed here");
    }
    ok!(r);
    let m = ok!(open("pts/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)) as i32;
    eq!(get(m, TIOCGPTN), 0);
    eq!(set(m, TIOCSPTLCK, 0), 0);
    let st = stat("pts/0").1;
    eq!((st.st_uid, st.st_gid, st.st_mode & 0o7777), (3, 4, 0o640));
    let s = ok!(open("pts/0", libc::O_RDWR | libc::O_NOCTTY, 0)) as i32;
    let peer = ok!(ioctl(m, TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY)) as i32;
    eq!(fstat(peer).st_dev, fstat(s).st_dev);
    check!(fstat(peer).st_dev != stat("/dev/pts").1.st_dev);
    eq!(write(m, b"x\n"), 2);
    eq!(read(s, 9), b"x\n");
    // A node of the same number elsewhere is no terminal.
    eq!(
        sys!(
            libc::SYS_mknod,
            c("node").as_ptr(),
            libc::S_IFCHR | 0o666,
            libc::makedev(136, 0)
        ),
        0
    );
    let other = open("node", libc::O_RDWR | libc::O_NOCTTY, 0);
    check!([libc::EIO, libc::EACCES].contains(&(-other as i32)), "{}", Code(other));
    [m, s, peer].into_iter().for_each(close);
    eq!(sys!(libc::SYS_umount2, dir.as_ptr(), 0), 0);
}

pub fn dead_and_alive_again() {
    // A slave that was closed and opened again is not what hung up.
    let pty = Pty::raw();
    for _ in 0..20 {
        let s = slave(pty.m, libc::O_NOCTTY);
        eq!(write(s, b"a"), 1);
        close(s);
    }
    close(pty.s);
    let mut all = Vec::new();
    while ready(pty.m, libc::POLLIN, 0) & libc::POLLIN != 0 {
        all.extend(read(pty.m, 7));
    }
    eq!(all, [b'a'; 20]);
    err!(try_read(pty.m), libc::EIO);
}

pub fn hang_up_by_request() {
    let pty = Pty::own();
    if !is_root() {
        err!(ioctl(pty.s, TIOCVHANGUP, 0), libc::EPERM);
        err!(sys!(libc::SYS_vhangup), libc::EPERM);
        return;
    }
    catch(libc::SIGHUP, 0);
    let fd = slave(pty.m, libc::O_NOCTTY);
    let pid = child(|| eq!(try_read(fd), 0));
    until_state(pid, 'S');
    pty.change(|t| t.lflag = 0);
    eq!(sys!(libc::SYS_vhangup), 0);
    until("the leader hears of it", || seen() == 1);
    reap(pid);
    eq!(try_read(pty.s), 0);
    err!(write(pty.s, b"x"), libc::EIO);
    err!(open("/dev/tty", libc::O_RDWR, 0), libc::ENXIO);
    // The terminal itself is as new.
    let new = slave(pty.m, libc::O_NOCTTY);
    check!(modes(new).lflag & libc::ICANON != 0);
    eq!(write(pty.m, b"x\n"), 2);
    eq!(read(new, 9), b"x\n");
}
