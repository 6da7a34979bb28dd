//! execve(2) and execveat(2).

use crate::sys::*;
use crate::tool::{self, Argv};
use crate::{cases, check, eq, err, ok, sys};

cases!("exec": replaces_the_program, errors, script, script_argument, script_errors, closes_on_exec, keeps_and_resets_signals,
    ends_other_threads, from_a_thread_keeps_the_pid, bad_pointers, empty_argv, too_long, hostile_files, execveat_path,
    environment_is_passed, vfork_then_exec, comm_is_set, busy_text);

/// Runs `body` in a child with its standard output in a pipe: what it printed and its wait status.
fn output_of(body: impl FnOnce()) -> (String, i32) {
    let (r, w) = pipe();
    let pid = child(|| {
        ok!(sys!(libc::SYS_dup2, w, 1));
        close(r);
        close(w);
        body();
    });
    close(w);
    let mut out = Vec::new();
    loop {
        let part = read(r, 4096);
        if part.is_empty() {
            break;
        }
        out.extend(part);
    }
    (String::from_utf8_lossy(&out).into_owned(), wait(pid))
}

fn execve(path: &str, argv: &[&str], envp: &[&str]) -> i64 {
    let (path, argv, envp) = (c(path), Argv::new(argv), Argv::new(envp));
    sys!(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), envp.as_ptr())
}

fn replaces_the_program() {
    let (r, w) = pipe();
    let pid = child(|| {
        ok!(sys!(libc::SYS_dup2, w, 1));
        ok!(tool::exec(&["pid"]));
    });
    reap(pid);
    eq!(String::from_utf8_lossy(&read(r, 100)), format!("{pid} {pid}\n"));
}

fn errors() {
    err!(execve("missing", &["x"], &[]), libc::ENOENT);
    err!(execve("", &["x"], &[]), libc::ENOENT);
    file("plain", b"#!/bin/sh\n");
    ok!(sys!(libc::SYS_chmod, c("plain").as_ptr(), 0o644));
    err!(execve("plain", &["x"], &[]), libc::EACCES);
    ok!(mkdir("dir", 0o755));
    err!(execve("dir", &["x"], &[]), libc::EACCES);
    err!(execve("plain/x", &["x"], &[]), libc::ENOTDIR);
    ok!(symlink("loop", "loop"));
    err!(execve("loop", &["x"], &[]), libc::ELOOP);
    err!(execve(&"n".repeat(300), &["x"], &[]), libc::ENAMETOOLONG);
}

fn executable(path: &str, content: &[u8]) {
    file(path, content);
    ok!(sys!(libc::SYS_chmod, c(path).as_ptr(), 0o755));
}

fn script() {
    executable("script", b"#!/bin/sh\necho \"$0 $1 $#\"\nexit 4\n");
    let (out, status) = output_of(|| {
        ok!(execve("./script", &["name", "one", "two"], &["PATH=/bin:/usr/bin"]));
    });
    eq!(out, "./script one 2\n");
    eq!(libc::WEXITSTATUS(status), 4);
}

fn script_argument() {
    let line = format!("#! {} tool echo all of this  \nrest\n", tool::me());
    executable("script", line.as_bytes());
    let (out, _) = output_of(|| {
        ok!(execve("./script", &["x"], &[]));
    });
    // Everything after the interpreter is one argument.
    eq!(out, "");
    executable("interpreter", format!("#!{} list\n", tool::me()).as_bytes());
    executable("nested", b"#!./interpreter\n");
    let (_, status) = output_of(|| {
        ok!(execve("./nested", &["x"], &[]));
    });
    check!(libc::WIFEXITED(status));
}

fn script_errors() {
    executable("no-interpreter", b"#!/does/not/exist\n");
    err!(execve("no-interpreter", &["x"], &[]), libc::ENOENT);
    executable("empty-line", b"#!\n");
    err!(execve("empty-line", &["x"], &[]), libc::ENOEXEC);
    executable("self", b"#!./self\n");
    err!(execve("self", &["x"], &[]), libc::ELOOP);
}

fn closes_on_exec() {
    let fd = new_file("f", b"");
    let kept = ok!(sys!(libc::SYS_dup, fd)) as i32;
    ok!(sys!(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC));
    let pid = child(|| {
        ok!(tool::exec(&["closed", &fd.to_string()]));
    });
    reap(pid);
    let pid = child(|| {
        ok!(tool::exec(&["closed", &kept.to_string()]));
    });
    eq!(libc::WEXITSTATUS(wait(pid)), 1);
}

fn keeps_and_resets_signals() {
    // Blocked and pending signals and ignored dispositions stay, handlers go.
    let pid = child(|| {
        sigmask(libc::SIG_SETMASK, bit(libc::SIGUSR1));
        kill(getpid(), libc::SIGUSR1);
        disposition(libc::SIGUSR2, libc::SIG_IGN);
        catch(libc::SIGHUP, 0);
        let usr1 = bit(libc::SIGUSR1).to_string();
        ok!(tool::exec(&["signals", &usr1, &usr1, &libc::SIGUSR2.to_string(), "1"]));
    });
    reap(pid);
    let pid = child(|| {
        catch(libc::SIGHUP, 0);
        ok!(tool::exec(&["signals", "0", "0", &libc::SIGHUP.to_string(), "0"]));
    });
    reap(pid);
}

fn ends_other_threads() {
    let (r, w) = pipe();
    let pid = child(|| {
        ok!(sys!(libc::SYS_fcntl, w, libc::F_SETFD, libc::FD_CLOEXEC));
        for _ in 0..3 {
            std::thread::spawn(|| {
                loop {
                    sleep_ms(1000);
                }
            });
        }
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
        ok!(tool::exec(&["exit", "6"]));
    });
    close(w);
    eq!(read(r, 1), b"");
    eq!(libc::WEXITSTATUS(wait(pid)), 6);
}

fn from_a_thread_keeps_the_pid() {
    let (r, w) = pipe();
    let pid = child(|| {
        ok!(sys!(libc::SYS_dup2, w, 1));
        std::thread::spawn(|| tool::exec(&["pid"]));
        loop {
            sleep_ms(1000);
        }
    });
    reap(pid);
    eq!(String::from_utf8_lossy(&read(r, 100)), format!("{pid} {pid}\n"));
}

fn bad_pointers() {
    let path = c(&tool::me());
    err!(sys!(libc::SYS_execve, BAD, 0, 0), libc::EFAULT);
    err!(sys!(libc::SYS_execve, path.as_ptr(), BAD, 0), libc::EFAULT);
    let argv = [BAD, 0];
    err!(sys!(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), 0), libc::EFAULT);
    err!(sys!(libc::SYS_execve, path.as_ptr(), WILD, 0), libc::EFAULT);
}

fn empty_argv() {
    // Linux puts an empty string in argv[0].
    let pid = child(|| {
        let path = c(&tool::me());
        ok!(sys!(libc::SYS_execve, path.as_ptr(), 0, 0));
    });
    eq!(libc::WEXITSTATUS(wait(pid)), 2);
}

fn too_long() {
    let long = "x".repeat(200_000);
    err!(execve(&tool::me(), &["x", &long], &[]), libc::E2BIG);
}

fn hostile_files() {
    executable("empty", b"");
    err!(execve("empty", &["x"], &[]), libc::ENOEXEC);
    executable("text", b"just words");
    err!(execve("text", &["x"], &[]), libc::ENOEXEC);
    executable("magic", b"\x7fELF");
    err!(execve("magic", &["x"], &[]), libc::ENOEXEC);
    let mut header = slurp(&tool::me())[..4096].to_vec();
    header[18] = 0xb7; // EM_AARCH64
    executable("machine", &header);
    err!(execve("machine", &["x"], &[]), libc::ENOEXEC);
    let mut header = slurp(&tool::me())[..4096].to_vec();
    header[54..56].copy_from_slice(&[1, 0]); // e_phentsize
    executable("phentsize", &header);
    err!(execve("phentsize", &["x"], &[]), libc::ENOEXEC);
    let mut header = slurp(&tool::me())[..4096].to_vec();
    header[56..58].copy_from_slice(&[0, 0]); // e_phnum
    executable("phnum", &header);
    err!(execve("phnum", &["x"], &[]), libc::ENOEXEC);
}

fn execveat_path() {
    let me = tool::me();
    let (dir, name) = me.rsplit_once('/').expect("an absolute path");
    let fd = ok!(open(if dir.is_empty() { "/" } else { dir }, libc::O_PATH | libc::O_DIRECTORY, 0)) as i32;
    let run = |fd: i32, name: &str, flags: i32| {
        let (name, argv) = (c(name), Argv::tool(&["exit", "9"]));
        sys!(libc::SYS_execveat, fd, name.as_ptr(), argv.as_ptr(), 0, flags)
    };
    let pid = child(|| {
        ok!(run(fd, name, 0));
    });
    eq!(libc::WEXITSTATUS(wait(pid)), 9);
    let pid = child(|| {
        let file = ok!(open(&tool::me(), libc::O_RDONLY, 0)) as i32;
        ok!(run(file, "", libc::AT_EMPTY_PATH));
    });
    eq!(libc::WEXITSTATUS(wait(pid)), 9);
    err!(run(fd, name, 0x4000_0000), libc::EINVAL);
    err!(run(999, name, 0), libc::EBADF);
    err!(run(fd, "", 0), libc::ENOENT);
    ok!(symlink(&me, "link"));
    err!(run(libc::AT_FDCWD, "link", libc::AT_SYMLINK_NOFOLLOW), libc::ELOOP);
}

fn environment_is_passed() {
    let (out, status) = output_of(|| {
        ok!(execve(&tool::me(), &["guest", "tool", "env"], &["A=1", "EMPTY=", "B=two words"]));
    });
    eq!(status, 0);
    eq!(out, "A=1\nEMPTY=\nB=two words\n");
}

fn vfork_then_exec() {
    let out = std::process::Command::new(tool::me()).args(["tool", "echo", "spawned"]).output().expect("spawned");
    eq!(String::from_utf8_lossy(&out.stdout), "spawned\n");
    let e = std::process::Command::new("/does/not/exist").spawn().err().and_then(|e| e.raw_os_error());
    eq!(e, Some(libc::ENOENT));
}

fn comm_is_set() {
    let (r, w) = pipe();
    ok!(symlink(&tool::me(), "a-long-name-for-a-program"));
    let (r2, w2) = pipe();
    let pid = child(|| {
        ok!(sys!(libc::SYS_dup2, r2, 0));
        close(w2);
        ok!(sys!(libc::SYS_fcntl, w, libc::F_SETFD, libc::FD_CLOEXEC));
        ok!(execve("./a-long-name-for-a-program", &["x", "tool", "exit", "0"], &[]));
    });
    close(w);
    close(r2);
    read(r, 1);
    // The program may end before we look; its zombie still has the name.
    let comm = text(&format!("/proc/{pid}/comm"));
    reap(pid);
    eq!(comm, "a-long-name-for\n");
}

fn busy_text() {
    std::fs::copy("/bin/cat", "cat").expect("a copy");
    ok!(sys!(libc::SYS_chmod, c("cat").as_ptr(), 0o755));
    let writer = ok!(open("cat", libc::O_WRONLY, 0)) as i32;
    err!(execve("cat", &["cat"], &[]), libc::ETXTBSY);
    close(writer);
    let (input, keep) = pipe2(libc::O_CLOEXEC);
    let (started, at_exec) = pipe2(libc::O_CLOEXEC);
    let pid = child(|| {
        ok!(sys!(libc::SYS_dup2, input, 0));
        ok!(execve("cat", &["cat"], &[]));
    });
    close(at_exec);
    // Its other end is closed by the exec.
    eq!(read(started, 1), b"");
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_TRUNC, libc::O_RDWR | libc::O_CREAT] {
        err!(open("cat", flags, 0o755), libc::ETXTBSY);
    }
    err!(sys!(libc::SYS_truncate, c("cat").as_ptr(), 0), libc::ETXTBSY);
    check!(stat("cat").1.st_size > 0);
    close(ok!(open("cat", libc::O_RDONLY, 0)) as i32);
    ok!(rename("cat", "dog"));
    err!(open("dog", libc::O_WRONLY, 0), libc::ETXTBSY);
    close(keep);
    close(input);
    reap(pid);
    until("the program is not busy", || open("dog", libc::O_WRONLY, 0) >= 0);
}
