//! `guest trace ROWS REPORT follow|leave as-it-is|refusing CMD ARG…`: runs a sandbox under ptrace(2) and counts the host
//! calls of each kind of process. It runs on the host, as root: so the runner sees what the sandbox's own processes ask.
//!
//! A process counts from the moment its filter is in force; the supervisor, which has none, from the moment that of the
//! sentry is. With `leave`, guest processes are not followed: on the ptrace platform the sentry traces them itself.
//!
//! Each line of ROWS is a kind of process, the number of a host call that it may make, and which of the call's arguments
//! matter. The lines of REPORT:
//!
//! - `call KIND NUMBER COUNT INDEX:VALUE…`: so often, with these arguments (all six where ROWS has no such call);
//! - `trapped COUNT`: calls of guest processes that became a signal, which are the guests' own and reached nothing;
//! - `astray NUMBER`: a guest process made a host call from outside the stub;
//! - `process KIND COUNT`, `unfiltered KIND COUNT`: how many there were, and how many never had a filter;
//! - `killed KIND COUNT`: for a call outside their filter;
//! - `exit CODE`.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Guest memory ends here; the stub lies above.
const GUEST_HIGH: u64 = 0x7ffc_4000_0000;
/// The stop of a new tracee (`PTRACE_EVENT_STOP`).
const EVENT_STOP: i32 = 128;
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Kind {
    Supervisor,
    /// Between supervisor and sentry, or keeps the cgroup; also each of the supervisor's children before it is something
    /// else.
    Guard,
    Gofer,
    Owners,
    Sentry,
    Stub,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Supervisor,
        Kind::Guard,
        Kind::Gofer,
        Kind::Owners,
        Kind::Sentry,
        Kind::Stub,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Supervisor => "supervisor",
            Kind::Guard => "guard",
            Kind::Gofer => "gofer",
            Kind::Owners => "owners",
            Kind::Sentry => "sentry",
            Kind::Stub => "stub",
        }
    }

    fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What its fork is.
    fn child(self) -> Kind {
        match self {
            Kind::Supervisor | Kind::Guard => Kind::Guard,
            Kind::Gofer | Kind::Owners => Kind::Owners,
            Kind::Sentry | Kind::Stub => Kind::Stub,
        }
    }
}

#[derive(Clone, Copy)]
struct Process {
    kind: Kind,
    filtered: bool,
    threads: u32,
}

/// A call that a thread is in, or has just left.
#[derive(Clone, Copy)]
struct Call {
    number: i64,
    args: [u64; 6],
    ip: u64,
    left: bool,
}

/// Those that matter, by index.
type Arguments = Vec<(usize, u64)>;

struct Thread {
    process: i32,
    call: Option<Call>,
}

#[derive(Default)]
struct Tracer {
    rows: HashMap<(Kind, i64), Vec<usize>>,
    leave: bool,
    threads: HashMap<i32, Thread>,
    processes: HashMap<i32, Process>,
    /// Stopped for the first time; their parents have not told of them yet.
    early: HashSet<i32>,
    calls: BTreeMap<(Kind, i64, Arguments), u64>,
    trapped: u64,
    astray: Vec<i64>,
    made: BTreeMap<Kind, u64>,
    unfiltered: BTreeMap<Kind, u64>,
    killed: BTreeMap<Kind, u64>,
}

fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> bool {
    // SAFETY: the requests made here change no memory of this process beyond what `data` points to.
    unsafe { libc::ptrace(request, tid, addr, data) != -1 }
}

fn resume(tid: i32, signal: i32) {
    ptrace(libc::PTRACE_SYSCALL, tid, 0, signal as usize);
}

fn event_message(tid: i32) -> u64 {
    let mut message = 0u64;
    ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize);
    message
}

fn registers(tid: i32) -> Option<libc::user_regs_struct> {
    // SAFETY: plain numbers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize).then_some(registers)
}

fn group_of(tid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(tid)
}

impl Tracer {
    fn kind(&self, tid: i32) -> Option<Kind> {
        let thread = self.threads.get(&tid)?;
        self.processes.get(&thread.process).map(|process| process.kind)
    }

    /// Whether the calls of a kind count yet.
    fn counts(&self, process: &Process) -> bool {
        match process.kind {
            Kind::Supervisor | Kind::Guard => self
                .processes
                .values()
                .any(|other| other.kind == Kind::Sentry && other.filtered),
            _ => process.filtered,
        }
    }

    fn count(&mut self, process: i32, call: Call) {
        let Some(process) = self.processes.get(&process).copied() else {
            return;
        };
        if !self.counts(&process) {
            return;
        }
        if process.kind == Kind::Stub && call.ip < GUEST_HIGH {
            self.astray.push(call.number);
        }
        let all = [0, 1, 2, 3, 4, 5];
        let matter = self.rows.get(&(process.kind, call.number));
        let matter = matter.map_or(&all[..], Vec::as_slice);
        let args = matter.iter().map(|&index| (index, call.args[index])).collect();
        *self.calls.entry((process.kind, call.number, args)).or_default() += 1;
    }

    /// A new thread or process, stopped.
    fn add(&mut self, tid: i32, parent: i32) {
        let process = group_of(tid);
        self.threads.insert(tid, Thread { process, call: None });
        if let Some(known) = self.processes.get_mut(&process) {
            known.threads += 1;
            return;
        }
        let parent = self
            .threads
            .get(&parent)
            .and_then(|thread| self.processes.get(&thread.process));
        let kind = parent.map_or(Kind::Supervisor, |parent| parent.kind.child());
        // A fork has its parent's filter, but the owners' process gets one of its own.
        let filtered = parent.is_some_and(|parent| parent.kind == Kind::Stub && parent.filtered);
        self.processes.insert(
            process,
            Process {
                kind,
                filtered,
                threads: 1,
            },
        );
        if kind == Kind::Stub && self.leave {
            self.forget(tid);
            ptrace(libc::PTRACE_DETACH, tid, 0, 0);
        }
    }

    fn forget(&mut self, tid: i32) {
        let Some(thread) = self.threads.remove(&tid) else {
            return;
        };
        let Some(process) = self.processes.get_mut(&thread.process) else {
            return;
        };
        process.threads -= 1;
        if process.threads == 0 {
            *self.made.entry(process.kind).or_default() += 1;
            if !process.filtered {
                *self.unfiltered.entry(process.kind).or_default() += 1;
            }
            // The supervisor's calls count as long as the sandbox has been there.
            if process.kind != Kind::Sentry {
                self.processes.remove(&thread.process);
            }
        }
    }

    fn executed(&mut self, tid: i32) {
        let line = std::fs::read(format!("/proc/{tid}/cmdline")).unwrap_or_default();
        let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        let kind = match role {
            b"gofer" => Kind::Gofer,
            b"boot" => Kind::Sentry,
            _ => return,
        };
        if let Some(process) = self
            .threads
            .get(&tid)
            .and_then(|thread| self.processes.get_mut(&thread.process))
        {
            process.kind = kind;
        }
    }

    /// The thread stops before or after a call.
    fn at_call(&mut self, tid: i32) {
        let Some(registers) = registers(tid) else { return };
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let process = thread.process;
        match thread.call {
            Some(call) if !call.left => {
                thread.call = Some(Call { left: true, ..call });
                if self.after_call(process, call, registers.rax as i64) {
                    self.threads.entry(tid).and_modify(|thread| thread.call = None);
                }
            }
            before => {
                let call = Call {
                    number: registers.orig_rax as i64,
                    args: [
                        registers.rdi,
                        registers.rsi,
                        registers.rdx,
                        registers.r10,
                        registers.r8,
                        registers.r9,
                    ],
                    ip: registers.rip,
                    left: false,
                };
                thread.call = Some(call);
                let stub = self.kind(tid) == Some(Kind::Stub);
                if let Some(before) = before.filter(|_| stub) {
                    self.count(process, before);
                }
                if !stub {
                    self.count(process, call);
                }
            }
        }
    }

    /// True if the call has put a filter in force.
    fn after_call(&mut self, process: i32, call: Call, result: i64) -> bool {
        let installs = call.number == libc::SYS_seccomp && call.args[0] == u64::from(libc::SECCOMP_SET_MODE_FILTER)
            || call.number == libc::SYS_prctl && call.args[0] == libc::PR_SET_SECCOMP as u64;
        let Some(process) = self.processes.get_mut(&process) else {
            return false;
        };
        if !installs || result != 0 || (process.kind == Kind::Stub && process.filtered) {
            return false;
        }
        // Only the last of several filters forbids to add more: what came before it was the start.
        process.filtered = true;
        let kind = process.kind;
        self.calls.retain(|(of, _, _), _| *of != kind);
        true
    }

    /// What a thread was in or had left, once it is seen elsewhere: `trapped` if a SIGSYS comes of it.
    fn settle(&mut self, tid: i32, trapped: bool) {
        let stub = self.kind(tid) == Some(Kind::Stub);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let process = thread.process;
        let Some(call) = thread.call.filter(|call| call.left && stub) else {
            return;
        };
        thread.call = None;
        if trapped {
            self.trapped += 1;
        } else {
            self.count(process, call);
        }
    }

    fn ended(&mut self, tid: i32, status: i32) {
        let (process, call) = match self.threads.get(&tid) {
            Some(thread) => (thread.process, thread.call),
            None => return,
        };
        let kind = self.kind(tid);
        // What was killed before its call has not made it.
        if let Some(call) = call.filter(|call| kind == Some(Kind::Stub) && (call.left || libc::WIFEXITED(status))) {
            self.count(process, call);
        }
        if libc::WIFSIGNALED(status)
            && libc::WTERMSIG(status) == libc::SIGSYS
            && let Some(kind) = kind
        {
            *self.killed.entry(kind).or_default() += 1;
        }
        self.forget(tid);
    }

    fn stopped(&mut self, tid: i32, status: i32) {
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == EVENT_STOP {
            if self.threads.contains_key(&tid) {
                resume(tid, 0);
            } else {
                self.early.insert(tid);
            }
            return;
        }
        if event != 0 {
            match event {
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => self.born(tid),
                libc::PTRACE_EVENT_EXEC => self.executed(tid),
                _ => {}
            }
            resume(tid, 0);
        } else if signal == libc::SIGTRAP | 0x80 {
            self.at_call(tid);
            resume(tid, 0);
        } else {
            self.settle(tid, signal == libc::SIGSYS);
            resume(tid, signal);
        }
    }

    /// Waits for the first stop of the child that a thread has made, so that it is known before the parent goes on.
    fn born(&mut self, parent: i32) {
        let child = event_message(parent) as i32;
        if !self.early.remove(&child) {
            let mut status = 0;
            // SAFETY: waits for a tracee.
            let got = unsafe { libc::waitpid(child, &mut status, libc::__WALL) };
            if got != child || !libc::WIFSTOPPED(status) {
                return;
            }
        }
        self.add(child, parent);
        if self.threads.contains_key(&child) {
            resume(child, 0);
        }
    }

    /// Until nobody is left; how the command ended.
    fn run(&mut self, command: i32) -> i32 {
        let mut code = 255;
        loop {
            let mut status = 0;
            // SAFETY: waits for tracees.
            let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
            if tid < 0 {
                return code;
            }
            if libc::WIFSTOPPED(status) {
                self.stopped(tid, status);
                continue;
            }
            if tid == command {
                code = if libc::WIFEXITED(status) {
                    libc::WEXITSTATUS(status)
                } else {
                    128 + libc::WTERMSIG(status)
                };
            }
            self.early.remove(&tid);
            self.ended(tid, status);
        }
    }

    fn report(&self, code: i32) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for ((kind, number, args), count) in &self.calls {
            let _ = write!(text, "call {} {number} {count}", kind.name());
            for (index, value) in args {
                let _ = write!(text, " {index}:{value:#x}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "trapped {}", self.trapped);
        for number in &self.astray {
            let _ = writeln!(text, "astray {number}");
        }
        for (word, counts) in [
            ("process", &self.made),
            ("unfiltered", &self.unfiltered),
            ("killed", &self.killed),
        ] {
            for (kind, count) in counts {
                let _ = writeln!(text, "{word} {} {count}", kind.name());
            }
        }
        let _ = writeln!(text, "exit {code}");
        text
    }
}

fn rows(file: &str) -> HashMap<(Kind, i64), Vec<usize>> {
    let text = std::fs::read_to_string(file).expect("the rows");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let key = (Kind::named(words.next()?)?, words.next()?.parse().ok()?);
        Some((key, words.filter_map(|word| word.parse().ok()).collect()))
    };
    text.lines().filter_map(row).collect()
}

/// Runs the command and writes the report; ends as the command did.
pub fn main(row_file: &str, report: &str, guests: &str, host: &str, argv: &[&str]) {
    let mut tracer = Tracer {
        rows: rows(row_file),
        leave: guests == "leave",
        ..Tracer::default()
    };
    let pid = stopped(argv, host == "refusing");
    assert!(ptrace(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize), "ptrace(2)");
    tracer.add(pid, 0);
    // SAFETY: our own child.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    let code = tracer.run(pid);
    std::fs::write(report, tracer.report(code)).expect("the report");
    crate::sys::exit(code)
}

/// Starts the command, which waits (stopped) to be traced.
fn stopped(argv: &[&str], refuse: bool) -> i32 {
    let program = crate::tool::Argv::new(argv);
    // SAFETY: this process has one thread; the child makes a few calls.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork(2)");
        if pid == 0 {
            if refuse {
                refuse_namespaces();
            }
            libc::raise(libc::SIGSTOP);
            libc::execv(*program.as_ptr(), program.as_ptr().cast());
            libc::_exit(127);
        }
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED), pid);
        pid
    }
}

/// From now on this process and its children get EPERM for namespaces and mounts.
fn refuse_namespaces() {
    const NEW: u32 = (libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u32;
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    // Loads, comparisons (jt and jf: how many to skip) and returns of bpf(4): number at 0, first argument at 16.
    let load = |at| (0x20, 0, 0, at);
    let program = [
        load(0),
        (0x15, 5, 0, libc::SYS_unshare as u32),
        (0x15, 4, 0, libc::SYS_mount as u32),
        (0x15, 5, 0, libc::SYS_clone3 as u32),
        (0x15, 0, 3, libc::SYS_clone as u32),
        load(16),
        (0x45, 0, 1, NEW),
        (0x06, 0, 0, errno(libc::EPERM)),
        (0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        (0x06, 0, 0, errno(libc::ENOSYS)),
    ];
    let mut program = program.map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
    }
}
