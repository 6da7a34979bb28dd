//! exit(2), exit_group(2), and what happens to what a process leaves.

use std::sync::atomic::Ordering;

use crate::sys::*;
use crate::{cases, check, eq, ok, sys};

cases!("exit": code_is_a_byte, group_ends_all_threads, last_thread_decides, main_thread_may_go_first, descriptors_close,
    orphans_get_a_new_parent, subreaper_adopts, parent_death_signal);

fn code_is_a_byte() {
    for (code, seen) in [(0, 0), (1, 1), (255, 255), (256, 0), (-1, 255), (0x1234, 0x34)] {
        let status = wait(child(|| exit(code)));
        check!(libc::WIFEXITED(status));
        eq!(libc::WEXITSTATUS(status), seen);
    }
}

fn group_ends_all_threads() {
    let pid = child(|| {
        for _ in 0..4 {
            std::thread::spawn(|| {
                loop {
                    sleep_ms(10_000);
                }
            });
        }
        std::thread::spawn(|| exit(21));
        loop {
            std::hint::spin_loop();
        }
    });
    eq!(libc::WEXITSTATUS(wait(pid)), 21);
}

fn last_thread_decides() {
    // exit(2) ends a thread; the process ends with the last one.
    let pid = child(|| {
        std::thread::spawn(|| {
            sleep_ms(20);
            sys!(libc::SYS_exit, 33);
        });
        sys!(libc::SYS_exit, 44);
    });
    // The code of the last thread is the process's (since Linux 5.18).
    eq!(libc::WEXITSTATUS(wait(pid)), 33);
}

fn main_thread_may_go_first() {
    let words = shared_words();
    let (r, w) = pipe();
    let pid = child(|| {
        std::thread::spawn(move || {
            eq!(read(r, 1), b"x");
            words[0].store(1, Ordering::SeqCst);
            exit(5);
        });
        sys!(libc::SYS_exit, 0);
    });
    until("the leader is a zombie", || task_state(pid) == 'Z');
    // Still not to be waited for.
    eq!(sys!(libc::SYS_wait4, pid, 0, libc::WNOHANG, 0), 0);
    write(w, b"x");
    eq!(libc::WEXITSTATUS(wait(pid)), 5);
    eq!(words[0].load(Ordering::SeqCst), 1);
}

fn descriptors_close() {
    let (r, w) = pipe();
    let pid = child(|| sleep_ms(10_000));
    close(w);
    kill(pid, libc::SIGKILL);
    eq!(read(r, 1), b"");
    eq!(libc::WTERMSIG(wait(pid)), libc::SIGKILL);
}

fn orphans_get_a_new_parent() {
    let words = shared_words();
    let (r, w) = pipe();
    let middle = child(|| {
        let middle = getpid();
        child(|| {
            until("the parent is gone", || sys!(libc::SYS_getppid) != i64::from(middle));
            words[0].store(sys!(libc::SYS_getppid) as u32, Ordering::SeqCst);
            write(w, b"x");
        });
    });
    reap(middle);
    eq!(read(r, 1), b"x");
    let parent = words[0].load(Ordering::SeqCst);
    check!(parent != middle as u32 && parent > 0);
}

fn subreaper_adopts() {
    ok!(sys!(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    let words = shared_words();
    let middle = child(|| {
        let pid = child(|| {
            until("told to go", || words[1].load(Ordering::SeqCst) == 1);
            exit(17);
        });
        words[0].store(pid as u32, Ordering::SeqCst);
    });
    reap(middle);
    words[1].store(1, Ordering::SeqCst);
    eq!(libc::WEXITSTATUS(wait(words[0].load(Ordering::SeqCst) as i32)), 17);
}

fn parent_death_signal() {
    let (r, w) = pipe();
    let (ready_r, ready_w) = pipe();
    let middle = child(|| {
        child(|| {
            ok!(sys!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
            write(ready_w, b"x");
            sleep_ms(60_000);
        });
        read(ready_r, 1);
    });
    reap(middle);
    close(w);
    eq!(read(r, 1), b"");
}
