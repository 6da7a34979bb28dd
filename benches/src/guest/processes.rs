//! Rows about processes and threads.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::memory::{map, small_pages};
use crate::sys::{call, touch, vfork_exec};
use crate::{at, burn, burn_for, measure, median, need};

fn exit() -> ! {
    loop {
        call(libc::SYS_exit_group, &[0]);
    }
}

fn wait(child: i64) {
    need("wait4", call(libc::SYS_wait4, &[child as u64, 0, 0, 0]));
}

/// A parent with `extra` bytes of touched memory.
pub fn fork(name: &'static str, extra: usize) -> Vec<(&'static str, f64)> {
    if extra > 0 {
        let address = map(extra);
        small_pages(address, extra);
        touch(address, extra);
    }
    let nanoseconds = measure(|| {
        let child = need("fork", call(libc::SYS_fork, &[]));
        if child == 0 {
            exit();
        }
        wait(child);
    });
    vec![(name, nanoseconds)]
}

pub fn exec(name: &'static str, program: &CStr) -> Vec<(&'static str, f64)> {
    let argv = [program.as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null::<u8>()];
    let mut status = 0u32;
    let nanoseconds = measure(|| {
        let child = need(
            "vfork",
            vfork_exec(at(program.as_ptr()), at(argv.as_ptr()), at(envp.as_ptr())),
        );
        need(
            "wait4",
            call(libc::SYS_wait4, &[child as u64, at(&raw mut status), 0, 0]),
        );
        if status != 0 {
            need("execve", -i64::from(libc::ENOENT));
        }
    });
    vec![(name, nanoseconds)]
}

fn new_pipe() -> (u64, u64) {
    let mut ends = [0i32; 2];
    need("pipe", call(libc::SYS_pipe2, &[at(ends.as_mut_ptr().cast_const()), 0]));
    (ends[0] as u64, ends[1] as u64)
}

/// A byte to another process and back.
pub fn pipe() -> Vec<(&'static str, f64)> {
    let (there, back) = (new_pipe(), new_pipe());
    let mut byte = [1u8];
    let address = at(byte.as_mut_ptr().cast_const());
    let child = need("fork", call(libc::SYS_fork, &[]));
    if child == 0 {
        call(libc::SYS_close, &[there.1]);
        while call(libc::SYS_read, &[there.0, address, 1]) == 1 {
            call(libc::SYS_write, &[back.1, address, 1]);
        }
        exit();
    }
    let nanoseconds = measure(|| {
        need("write", call(libc::SYS_write, &[there.1, address, 1]));
        need("read", call(libc::SYS_read, &[back.0, address, 1]));
    });
    call(libc::SYS_close, &[there.1]);
    wait(child);
    vec![("pipe", nanoseconds)]
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    call(
        libc::SYS_futex,
        &[
            at(word),
            (operation | libc::FUTEX_PRIVATE_FLAG) as u64,
            u64::from(value),
            0,
        ],
    );
}

fn send(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    futex(word, libc::FUTEX_WAKE, 1);
}

fn receive(word: &AtomicU32, old: u32) -> u32 {
    loop {
        let value = word.load(Ordering::SeqCst);
        if value != old {
            return value;
        }
        futex(word, libc::FUTEX_WAIT, old);
    }
}

/// A turn to another thread and back.
pub fn futex_row() -> Vec<(&'static str, f64)> {
    let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let theirs = words.clone();
    let thread = std::thread::spawn(move || {
        let mut turn = 0;
        loop {
            turn = receive(&theirs[0], turn);
            send(&theirs[1], turn);
            if turn == u32::MAX {
                return;
            }
        }
    });
    let mut turn = 0;
    let nanoseconds = measure(|| {
        turn += 1;
        send(&words[0], turn);
        receive(&words[1], turn - 1);
    });
    send(&words[0], u32::MAX);
    let _ = thread.join();
    vec![("futex", nanoseconds)]
}

/// A call now and then, while two other processes compute all the time: the state of a busy machine.
pub fn busy() -> Vec<(&'static str, f64)> {
    let burners = [0; 2].map(|_| {
        let child = need("fork", call(libc::SYS_fork, &[]));
        if child == 0 {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(20) {
                burn(100_000);
            }
            exit();
        }
        child
    });
    let mut samples = Vec::new();
    for _ in 0..200 {
        burn_for(Duration::from_micros(200));
        let start = Instant::now();
        call(libc::SYS_getppid, &[]);
        samples.push(start.elapsed().as_nanos() as f64);
    }
    for child in burners {
        need("kill", call(libc::SYS_kill, &[child as u64, libc::SIGKILL as u64]));
        wait(child);
    }
    vec![("getppid-busy", median(samples))]
}
