//! Controlling terminals and job control.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{check, eq, err, ok, sys};

fn own_tty() -> i64 {
    open("/dev/tty", libc::O_RDWR, 0)
}

fn own_pgrp() -> i32 {
    sys!(libc::SYS_getpgrp) as i32
}

pub fn no_terminal() {
    err!(own_tty(), libc::ENXIO);
    let pty = Pty::new();
    let mut group = [0i32; 1];
    err!(ioctl(pty.s, TIOCGPGRP, group.as_mut_ptr()), libc::ENOTTY);
    err!(ioctl(pty.s, TIOCGSID, group.as_mut_ptr()), libc::ENOTTY);
    err!(set(pty.s, TIOCSPGRP, getpid()), libc::ENOTTY);
    err!(ioctl(pty.s, TIOCNOTTY, 0), libc::ENOTTY);
    // A master may ask; there is nothing to tell.
    eq!(get(pty.m, TIOCGPGRP), 0);
    err!(ioctl(pty.m, TIOCGSID, group.as_mut_ptr()), libc::ENOTTY);
}

pub fn opening_takes_it() {
    let m = master(0);
    let name = slave_name(m);
    close(slave(m, libc::O_NOCTTY));
    err!(own_tty(), libc::ENXIO);
    close(ok!(open(&name, libc::O_WRONLY, 0)) as i32);
    err!(own_tty(), libc::ENXIO);
    let s = ok!(open(&name, libc::O_RDONLY, 0)) as i32;
    let tty = ok!(own_tty()) as i32;
    eq!(get(s, TIOCGPGRP), getpid());
    eq!(get(tty, TIOCGSID), getpid());
    eq!(get(m, TIOCGPGRP), getpid());
    eq!(get(m, TIOCGSID), getpid());
    let st = fstat(tty);
    eq!((libc::major(st.st_rdev), libc::minor(st.st_rdev)), (5, 0));
    eq!(write(tty, b"through /dev/tty"), 16);
    shows(m, b"through /dev/tty");
    // There is only one at a time.
    let other = Pty { m: master(0), s: -1 };
    let s = slave(other.m, 0);
    err!(ioctl(s, TIOCGPGRP, &mut [0i32; 1] as *mut _), libc::ENOTTY);
    eq!(get(tty, TIOCGSID), getpid());
}

pub fn asking_takes_it() {
    let pty = Pty::new();
    let other = Pty::new();
    in_child(|| err!(ioctl(pty.s, TIOCSCTTY, 0), libc::EPERM));
    eq!(ioctl(pty.s, TIOCSCTTY, 0), 0);
    eq!(ioctl(pty.s, TIOCSCTTY, 0), 0);
    eq!(get(pty.s, TIOCGSID), getpid());
    err!(ioctl(other.s, TIOCSCTTY, 0), libc::EPERM);
    in_child(|| {
        ok!(sys!(libc::SYS_setsid));
        err!(ioctl(pty.s, TIOCSCTTY, 0), libc::EPERM);
        err!(own_tty(), libc::ENXIO);
        // By way of the master it is the slave that is taken.
        eq!(ioctl(other.m, TIOCSCTTY, 0), 0);
        eq!(get(other.s, TIOCGSID), getpid());
    });
}

pub fn stealing_needs_root() {
    let pty = Pty::own();
    in_child(|| {
        ok!(sys!(libc::SYS_setsid));
        let r = ioctl(pty.s, TIOCSCTTY, 1);
        if !is_root() {
            err!(r, libc::EPERM);
            return;
        }
        eq!(r, 0);
        eq!(get(pty.s, TIOCGSID), getpid());
    });
    if is_root() {
        err!(own_tty(), libc::ENXIO);
    }
}

pub fn session_and_groups() {
    let pty = Pty::own();
    let group = in_group(|| pause());
    to_foreground(pty.s, group);
    eq!(get(pty.s, TIOCGPGRP), group);
    eq!(get(pty.m, TIOCGPGRP), group);
    eq!(get(pty.s, TIOCGSID), getpid());
    kill(group, libc::SIGKILL);
    wait(group);
    // It stays named, though it is gone.
    eq!(get(pty.s, TIOCGPGRP), group);
}

pub fn foreground_rules() {
    let pty = Pty::own();
    sigmask(libc::SIG_BLOCK, bit(libc::SIGTTOU));
    err!(set(pty.s, TIOCSPGRP, -1), libc::EINVAL);
    err!(set(pty.s, TIOCSPGRP, 0), libc::ESRCH);
    err!(set(pty.s, TIOCSPGRP, 0x3fff_fff0), libc::ESRCH);
    err!(ioctl(pty.s, TIOCSPGRP, BAD), libc::EFAULT);
    err!(set(pty.s, TIOCSPGRP, sys!(libc::SYS_getppid) as i32), libc::EPERM);
    let other = child(|| {
        ok!(sys!(libc::SYS_setsid));
        err!(set(pty.s, TIOCSPGRP, getpid()), libc::ENOTTY);
        pause()
    });
    until("it leads a session", || {
        sys!(libc::SYS_getsid, other) == i64::from(other)
    });
    err!(set(pty.s, TIOCSPGRP, other), libc::EPERM);
    kill(other, libc::SIGKILL);
    wait(other);
    let group = in_group(|| pause());
    eq!(set(pty.s, TIOCSPGRP, group), 0);
    // The master's own side cannot be set.
    eq!(set(pty.m, TIOCSPGRP, own_pgrp()), 0);
    eq!(get(pty.s, TIOCGPGRP), own_pgrp());
    kill(group, libc::SIGKILL);
    wait(group);
}

pub fn background_read() {
    let pty = Pty::own();
    let pid = in_group(|| {
        eq!(read(pty.s, 20), b"for you\n");
    });
    eq!(stopped(pid), libc::SIGTTIN);
    to_foreground(pty.s, pid);
    kill(pid, libc::SIGCONT);
    pty.type_in(b"for you\n");
    reap(pid);
}

pub fn background_read_that_cannot_stop() {
    let pty = Pty::own();
    pty.type_in(b"not for you\n");
    reap(in_group(|| {
        disposition(libc::SIGTTIN, libc::SIG_IGN);
        err!(try_read(pty.s), libc::EIO);
        eq!(ready(pty.s, libc::POLLIN, 1000), libc::POLLIN);
    }));
    reap(in_group(|| {
        sigmask(libc::SIG_BLOCK, bit(libc::SIGTTIN));
        err!(try_read(pty.s), libc::EIO);
    }));
    // A handler is called, and without SA_RESTART that is all.
    reap(in_group(|| {
        catch(libc::SIGTTIN, 0);
        err!(try_read(pty.s), libc::EINTR);
        eq!(seen(), 1);
        eq!(last(1), 0x80);
    }));
    // Not even what there is may be looked for with O_NONBLOCK.
    sys!(libc::SYS_fcntl, pty.s, libc::F_SETFL, libc::O_NONBLOCK);
    reap(in_group(|| {
        disposition(libc::SIGTTIN, libc::SIG_IGN);
        err!(try_read(pty.s), libc::EIO);
    }));
    eq!(pty.line(), b"not for you\n");
}

pub fn background_write() {
    let pty = Pty::own();
    reap(in_group(|| eq!(write(pty.s, b"allowed"), 7)));
    pty.shows(b"allowed");
    pty.change(|t| t.lflag |= libc::TOSTOP);
    let pid = in_group(|| eq!(write(pty.s, b"at last"), 7));
    eq!(stopped(pid), libc::SIGTTOU);
    pty.shows(b"");
    to_foreground(pty.s, pid);
    kill(pid, libc::SIGCONT);
    reap(pid);
    pty.shows(b"at last");
    to_foreground(pty.s, own_pgrp());
    reap(in_group(|| {
        disposition(libc::SIGTTOU, libc::SIG_IGN);
        eq!(write(pty.s, b"ignored"), 7);
    }));
    reap(in_group(|| {
        sigmask(libc::SIG_BLOCK, bit(libc::SIGTTOU));
        eq!(write(pty.s, b"blocked"), 7);
    }));
    pty.shows(b"ignoredblocked");
}

pub fn background_change() {
    let pty = Pty::own();
    let changes: [fn(Pty) -> i64; 6] = [
        |pty| ioctl(pty.s, TCSETS, &pty.modes() as *const Modes),
        |pty| ioctl(pty.s, TCFLSH, 0),
        |pty| ioctl(pty.s, TCXONC, 1),
        |pty| ioctl(pty.s, TCSBRK, 1),
        |pty| set(pty.s, TIOCSPGRP, getpid()),
        |pty| set(pty.s, TIOCSETD, 0),
    ];
    for change in changes {
        let pid = in_group(|| eq!(change(pty), 0));
        eq!(stopped(pid), libc::SIGTTOU);
        to_foreground(pty.s, pid);
        kill(pid, libc::SIGCONT);
        reap(pid);
        to_foreground(pty.s, own_pgrp());
        reap(in_group(|| {
            disposition(libc::SIGTTOU, libc::SIG_IGN);
            eq!(change(pty), 0);
        }));
        to_foreground(pty.s, own_pgrp());
    }
    // The size may be set by anybody, and so may anything that is only asked.
    reap(in_group(|| {
        eq!(ioctl(pty.s, TIOCSWINSZ, [1u16, 2, 3, 4].as_ptr()), 0);
        pty.modes();
        // By way of the master, the modes are the slave's.
        catch(libc::SIGTTOU, 0);
        err!(ioctl(pty.m, TCSETS, &pty.modes() as *const Modes), libc::EINTR);
        eq!(ioctl(pty.m, TCFLSH, 0), 0);
    }));
}

pub fn background_of_an_orphan() {
    let pty = Pty::own();
    pty.change(|t| t.lflag |= libc::TOSTOP);
    let words = shared_words();
    // The middle process ends, so that its child's group has no link to the session any more.
    reap(in_group(|| {
        let middle = getpid();
        child(|| {
            until("the parent ends", || sys!(libc::SYS_getppid) != i64::from(middle));
            err!(try_read(pty.s), libc::EIO);
            err!(write(pty.s, b"x"), libc::EIO);
            err!(ioctl(pty.s, TCFLSH, 0), libc::EIO);
            err!(set(pty.s, TIOCSPGRP, middle), libc::ENOTTY);
            tell(&words[0]);
        });
    }));
    until_told("the orphan is done", &words[0]);
}

pub fn typed_signals_reach_the_foreground() {
    let pty = Pty::own();
    let front = in_group(|| pause());
    let back = in_group(|| pause());
    to_foreground(pty.s, front);
    let second = child(|| {
        sys!(libc::SYS_setpgid, 0, front);
        pause()
    });
    sys!(libc::SYS_setpgid, second, front);
    catch(libc::SIGINT, 0);
    pty.type_in(b"\x03");
    eq!(ended_by(front), libc::SIGINT);
    eq!(ended_by(second), libc::SIGINT);
    eq!(seen(), 0);
    eq!(kill(back, 0), 0);
    to_foreground(pty.s, back);
    pty.type_in(b"\x1c");
    let status = wait(back);
    eq!(libc::WTERMSIG(status), libc::SIGQUIT);
}

pub fn stopped_by_a_character() {
    let pty = Pty::own();
    let words = shared_words();
    let pid = in_group(|| {
        until("it is in the foreground", || get(pty.s, TIOCGPGRP) == getpid());
        tell(&words[0]);
        eq!(read(pty.s, 20), b"after\n");
    });
    to_foreground(pty.s, pid);
    until_told("it reads", &words[0]);
    until_state(pid, 'S');
    pty.type_in(b"\x1a");
    eq!(stopped(pid), libc::SIGTSTP);
    to_foreground(pty.s, own_pgrp());
    kill(pid, libc::SIGCONT);
    // Its read goes on, now from the background.
    eq!(stopped(pid), libc::SIGTTIN);
    to_foreground(pty.s, pid);
    kill(pid, libc::SIGCONT);
    pty.type_in(b"after\n");
    reap(pid);
}

pub fn orphans_do_not_stop() {
    // Whoever leads a session is an orphan as far as jobs go.
    let pty = Pty::own();
    pty.type_in(b"\x1a");
    pty.type_in(b"still here\n");
    eq!(pty.line(), b"still here\n");
    catch(libc::SIGTSTP, 0);
    pty.type_in(b"\x1a");
    until("the handler runs", || seen() == 1);
}

/// Says something by a word that both processes share.
fn tell(word: &AtomicU32) {
    word.store(1, Ordering::SeqCst);
}

/// Waits until [`tell`].
fn until_told(what: &str, word: &AtomicU32) {
    until(what, || word.load(Ordering::SeqCst) == 1);
}

/// A job that runs `then` when it has had both SIGHUP and SIGCONT; its handlers are in place.
fn hung_up(words: &'static [AtomicU32; 1024], then: impl FnOnce()) -> i32 {
    let job = in_group(|| {
        catch(libc::SIGHUP, 0);
        catch(libc::SIGCONT, 0);
        tell(&words[1]);
        until("both signals come", || seen() == 2);
        then();
    });
    until_told("it is ready", &words[1]);
    job
}

/// A session leader of its own with a terminal, which runs `body`.
fn session(body: impl FnOnce(Pty)) -> (i32, i32) {
    let m = master(0);
    let pid = child(|| {
        ok!(sys!(libc::SYS_setsid));
        let s = slave(m, 0);
        body(Pty { m, s });
    });
    (m, pid)
}

pub fn leader_ends() {
    let words = shared_words();
    let (m, leader) = session(|pty| {
        let front = in_group(|| {
            catch(libc::SIGHUP, 0);
            catch(libc::SIGCONT, 0);
            tell(&words[1]);
            until("a signal comes", || seen() > 0);
            sleep_ms(20);
            words[2].store(seen() as u32, Ordering::SeqCst);
            words[3].store(last(0) as u32, Ordering::SeqCst);
            // The terminal is nobody's any more; it can still be written.
            err!(own_tty(), libc::ENXIO);
            eq!(write(pty.s, b"free"), 4);
            tell(&words[0]);
        });
        to_foreground(pty.s, front);
        until_told("it is ready", &words[1]);
    });
    reap(leader);
    until_told("the job hears of it", &words[0]);
    eq!(words[2].load(Ordering::SeqCst), 1);
    eq!(words[3].load(Ordering::SeqCst), libc::SIGHUP as u32);
    err!(ioctl(m, TIOCGSID, &mut [0i32; 1] as *mut _), libc::ENOTTY);
    shows(m, b"free");
    // The next session can have it.
    in_child(|| {
        ok!(sys!(libc::SYS_setsid));
        let s = slave(m, 0);
        eq!(get(s, TIOCGSID), getpid());
    });
}

pub fn leader_ends_with_a_stopped_job() {
    let words = shared_words();
    let (_m, leader) = session(|pty| {
        let job = hung_up(words, || tell(&words[0]));
        kill(job, libc::SIGSTOP);
        eq!(stopped(job), libc::SIGSTOP);
        eq!(get(pty.s, TIOCGPGRP), getpid());
    });
    reap(leader);
    until_told("the job goes on", &words[0]);
}

pub fn master_closes() {
    let words = shared_words();
    let (m, leader) = session(|pty| {
        close(pty.m);
        catch(libc::SIGHUP, 0);
        let front = hung_up(words, || tell(&words[0]));
        to_foreground(pty.s, front);
        tell(&words[2]);
        until("the leader hears of it", || seen() == 1);
        err!(own_tty(), libc::ENXIO);
        eq!(try_read(pty.s), 0);
        // The job in the foreground hears of it only when the leader ends.
        eq!(words[0].load(Ordering::SeqCst), 0);
    });
    until_told("it is ready", &words[2]);
    close(m);
    reap(leader);
    until_told("the job hears of it", &words[0]);
}

pub fn given_up_by_a_member() {
    let pty = Pty::own();
    catch(libc::SIGHUP, 0);
    in_child(|| {
        close(ok!(own_tty()) as i32);
        eq!(ioctl(pty.s, TIOCNOTTY, 0), 0);
        err!(own_tty(), libc::ENXIO);
        err!(ioctl(pty.s, TIOCNOTTY, 0), libc::ENOTTY);
        err!(ioctl(pty.s, TIOCGPGRP, &mut [0i32; 1] as *mut _), libc::ENOTTY);
    });
    // The others keep it.
    close(ok!(own_tty()) as i32);
    eq!(get(pty.s, TIOCGSID), getpid());
    eq!(seen(), 0);
}

pub fn given_up_by_the_leader() {
    let pty = Pty::own();
    let words = shared_words();
    let front = hung_up(words, || err!(own_tty(), libc::ENXIO));
    to_foreground(pty.s, front);
    catch(libc::SIGHUP, 0);
    eq!(ioctl(pty.s, TIOCNOTTY, 0), 0);
    reap(front);
    eq!(seen(), 0);
    err!(own_tty(), libc::ENXIO);
    err!(ioctl(pty.m, TIOCGSID, &mut [0i32; 1] as *mut _), libc::ENOTTY);
    // It can be taken again.
    eq!(ioctl(pty.s, TIOCSCTTY, 0), 0);
}

pub fn resize_is_told() {
    let pty = Pty::own();
    catch(libc::SIGWINCH, 0);
    eq!(ioctl(pty.m, TIOCSWINSZ, [10u16, 20, 0, 0].as_ptr()), 0);
    until("the foreground hears of it", || seen() == 1);
    eq!(last(0), i64::from(libc::SIGWINCH));
    // The same size is no news.
    eq!(ioctl(pty.m, TIOCSWINSZ, [10u16, 20, 0, 0].as_ptr()), 0);
    let front = in_group(|| {
        catch(libc::SIGWINCH, 0);
        until("the job hears of it", || seen() == 1);
    });
    to_foreground(pty.s, front);
    sleep_ms(20);
    eq!(ioctl(pty.s, TIOCSWINSZ, [11u16, 20, 0, 0].as_ptr()), 0);
    reap(front);
    eq!(seen(), 1);
}

pub fn inherited_and_left() {
    let pty = Pty::own();
    in_child(|| {
        close(ok!(own_tty()) as i32);
        in_child(|| close(ok!(own_tty()) as i32));
        ok!(sys!(libc::SYS_setsid));
        err!(own_tty(), libc::ENXIO);
        in_child(|| err!(own_tty(), libc::ENXIO));
    });
    close(pty.s);
    // No slave is open; the terminal is still there.
    let tty = ok!(own_tty()) as i32;
    eq!(write(pty.m, b"x\n"), 2);
    eq!(read(tty, 9), b"x\n");
    // A child made before there was a terminal has none.
    in_child(|| {
        ok!(sys!(libc::SYS_setsid));
        let words = shared_words();
        let early = child(|| {
            until_told("the terminal is there", &words[0]);
            err!(own_tty(), libc::ENXIO);
        });
        let m = master(0);
        slave(m, 0);
        tell(&words[0]);
        reap(early);
    });
}

pub fn terminal_of_a_process() {
    let field = |index: usize| -> i64 {
        let stat = text("/proc/self/stat");
        let rest = stat.rsplit_once(") ").expect("a name").1;
        rest.split(' ').nth(index).expect("a field").parse().expect("a number")
    };
    eq!((field(4), field(5)), (0, -1));
    let pty = Pty::own();
    let number = i64::from(get(pty.m, TIOCGPTN));
    eq!(field(4), 136 << 8 | number & 0xff);
    eq!(field(5), i64::from(getpid()));
    let group = in_group(|| pause());
    to_foreground(pty.s, group);
    eq!(field(5), i64::from(group));
    check!(field(2) == i64::from(own_pgrp()));
    kill(group, libc::SIGKILL);
    wait(group);
}

pub fn orphan_of_an_ended_parent() {
    // A stopped job whose parent ends is told, though its terminal stays.
    let words = shared_words();
    let pty = Pty::own();
    let parent = in_group(|| {
        let job = hung_up(words, || tell(&words[0]));
        kill(job, libc::SIGSTOP);
        eq!(stopped(job), libc::SIGSTOP);
    });
    reap(parent);
    until_told("the job goes on", &words[0]);
    eq!(get(pty.s, TIOCGSID), getpid());
}
