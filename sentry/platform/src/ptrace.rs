//! The ptrace platform's tracer: one host thread that stops guest system calls with `PTRACE_SYSEMU`.
//!
//! It runs over the same stubs, mailboxes and operations as systrap. A guest runs under SYSEMU, where every system
//! call of it stops before it happens, the gadgets' included. When an answer carries operations, the tracer points
//! the thread at the stub, lets it run with `PTRACE_CONT` (under the stubs' filter) until it stops at a breakpoint,
//! and then puts the guest's registers back.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use sentry_abi::Errno;
use sentry_host::epoll::{Epoll, Interest};
use sentry_lock::{Mutex, rank};
use sentry_stub::layout::{self, answer_flags};
use sentry_stub::symbol;

use crate::child_signal::ChildSignal;
use crate::context::{Guest, Traced};
use crate::core::Core;
use crate::space::Space;
use crate::thread::{Report, Thread};
use crate::zygote::{FILTER_DESCRIPTION, Placement};
use crate::{AddressSpace, Event, Fault, PlatformError, SyscallArgs};

const NT_X86_XSTATE: usize = 0x202;
/// How long the tracer looks for stops and commands before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// What the workers ask of the tracer.
pub(crate) enum Command {
    /// Let the guest run on, after the operations in its mailbox if there are any. `flags` are `answer_flags`.
    Return { thread: Arc<Thread>, ops: bool, flags: u32 },
    /// Run the operations in the mailbox, and report.
    Orders { thread: Arc<Thread> },
    /// Make a running guest come back.
    Interrupt { thread: Arc<Thread> },
    /// Read the extended state of a stopped thread, then answer.
    ReadXstate { thread: Arc<Thread>, done: Sender<()> },
}

impl Command {
    fn thread(&self) -> &Arc<Thread> {
        match self {
            Command::Return { thread, .. }
            | Command::Orders { thread }
            | Command::Interrupt { thread }
            | Command::ReadXstate { thread, .. } => thread,
        }
    }
}

/// The workers' end of the tracer.
pub(crate) struct Tracer {
    commands: Sender<Command>,
    /// For the tracer's thread.
    receiver: Mutex<Option<(Receiver<Command>, ChildSignal)>, rank::TracerReceiver>,
    wake: OwnedFd,
    text: u64,
    text_len: u64,
}

impl Tracer {
    /// Called by the first thread, before there is any other: they inherit that SIGCHLD is blocked.
    pub fn new(place: &Placement) -> Result<Tracer, Errno> {
        let (commands, receiver) = unbounded();
        let wake = sentry_host::eventfd::new()?;
        let children = ChildSignal::watch(&wake).map_err(|error| Errno::from_raw(error as i32))?;
        let receiver = Mutex::new(Some((receiver, children)));
        Ok(Tracer {
            commands,
            receiver,
            wake,
            text: place.text,
            text_len: place.text_len,
        })
    }

    pub fn send(&self, command: Command) {
        // The tracer lives as long as the process; a full eventfd is a readable one.
        let _ = self.commands.send(command);
        let _ = sentry_host::eventfd::signal(self.wake.as_fd());
    }

    /// Has the extended state of a stopped thread read, and waits for it.
    pub fn read_xstate(&self, thread: Arc<Thread>) {
        let (done, wait) = bounded(1);
        self.send(Command::ReadXstate { thread, done });
        let _ = wait.recv_timeout(Duration::from_secs(1));
    }
}

/// Starts the tracer and has it seize the zygote; the zygote's registers, once it is ready.
pub(crate) fn start(core: &Arc<Core>, space: &Arc<Space>, pid: u32) -> Result<Guest, PlatformError> {
    wait_until_quiet(space)?;
    // Injecting needs /proc/PID/mem, which a sentry with an empty root does not have.
    let message = match install_filter(core, space, pid) {
        Ok(0) => layout::FILTER_INSTALLED,
        Ok(errno) => {
            return Err(PlatformError::Host(
                "installing the stubs' filter",
                Errno::from_raw(errno),
            ));
        }
        Err(_) => layout::INSTALL_FILTER,
    };
    let (ready, wait) = bounded(1);
    let (core, space) = (core.clone(), space.clone());
    crate::machine::spawn("tracer", move || {
        let outcome = Loop::seize(core, &space, pid as i32, message);
        match outcome {
            Ok((mut tracer, guest)) => {
                drop(space);
                let _ = ready.send(Ok(guest));
                drop(ready);
                tracer.run()
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    wait.recv()
        .unwrap_or(Err(Errno::ESRCH))
        .map(|traced| Guest::Traced(Box::new(traced)))
        .map_err(|error| PlatformError::Host("tracing a process (ptrace)", error))
}

/// Installs the stubs' filter in the zygote from outside, while it waits for its first message: a call of
/// `seccomp(SECCOMP_SET_MODE_FILTER)` by the gadget is injected. The errno that the call gave, or 0.
fn install_filter(core: &Core, space: &Space, pid: u32) -> Result<i32, ptrace_do::TraceError> {
    let text = core.tracer.as_ref().map_or(0, |tracer| tracer.text);
    if !std::path::Path::new("/proc/self/mem").exists() {
        return Err(ptrace_do::TraceError::General("no /proc"));
    }
    let frame = ptrace_do::TracedProcess::attach(pid as i32)?.next_frame()?;
    let arguments = [
        libc::SYS_seccomp as usize,
        libc::SECCOMP_SET_MODE_FILTER as usize,
        libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as usize,
        space.arena.slot_address(0) as usize + FILTER_DESCRIPTION,
    ];
    let function = text + symbol::STUB_SYSCALL;
    let back = text + symbol::STUB_PTRACE_STOP;
    let (registers, _frame) = frame.invoke_remote(function as usize, back as usize, &arguments)?;
    Ok((registers.return_value() as i64).wrapping_neg() as i32)
}

/// Waits until the zygote has unmapped everything and waits for its message.
fn wait_until_quiet(space: &Space) -> Result<(), PlatformError> {
    // It stores its control socket's number last before it enters the stub, and says so in slot 0.
    let start = Instant::now();
    while space.arena.slot(0).alive.load(std::sync::atomic::Ordering::Acquire) == 0 {
        if start.elapsed() > Duration::from_secs(5) {
            return Err(PlatformError::Host("waiting for the zygote", Errno::ETIMEDOUT));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Signals of exceptions: what code can bring on itself.
const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// What a tracee is doing.
enum Mode {
    /// Made by a clone; on its way to the breakpoint at which it is ready.
    Starting,
    /// Stopped; the guest's registers are with its thread.
    Stopped,
    /// Running guest code under SYSEMU.
    Guest,
    /// Running the stub; then to report.
    Orders,
    /// Running the stub; then to go on with the guest.
    ThenGuest { flags: u32 },
}

struct Tracee {
    mode: Mode,
    /// Weak: a process ends when the kernel lets go of it.
    thread: Weak<Thread>,
    /// A command that came while it was still starting.
    pending: Option<Command>,
    /// It was to be interrupted before it ran guest code: to be done as soon as it does.
    interrupt: bool,
}

impl Tracee {
    fn new(mode: Mode) -> Tracee {
        Tracee {
            mode,
            thread: Weak::new(),
            pending: None,
            interrupt: false,
        }
    }
}

struct Loop {
    core: Arc<Core>,
    receiver: Receiver<Command>,
    tracees: HashMap<i32, Tracee>,
    epoll: Epoll,
    children: ChildSignal,
    text: u64,
    text_len: u64,
}

/// ptrace(2) with integer arguments.
fn ptrace(request: u32, tid: i32, addr: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY: the caller passes requests whose pointers, if any, are to valid memory of the right size.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    if result == -1 {
        Err(Errno::from(std::io::Error::last_os_error()))
    } else {
        Ok(result)
    }
}

fn registers(tid: i32) -> Result<libc::user_regs_struct, Errno> {
    // SAFETY: plain data, filled in by the call.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)?;
    Ok(registers)
}

fn set_registers(tid: i32, registers: &libc::user_regs_struct) -> Result<(), Errno> {
    ptrace(libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as usize).map(drop)
}

fn xstate(tid: i32) -> Result<Vec<u8>, Errno> {
    let mut state = vec![0; 16 * 1024];
    let mut iov = libc::iovec {
        iov_base: state.as_mut_ptr().cast(),
        iov_len: state.len(),
    };
    ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut iov as usize)?;
    state.truncate(iov.iov_len);
    Ok(state)
}

fn set_xstate(tid: i32, state: &[u8]) -> Result<(), Errno> {
    let iov = libc::iovec {
        iov_base: state.as_ptr().cast_mut().cast(),
        iov_len: state.len(),
    };
    ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw const iov as usize).map(drop)
}

fn signal_info(tid: i32) -> Result<(i32, u64), Errno> {
    // SAFETY: plain data, filled in by the call; si_addr is read for fault signals only.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        ptrace(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info as usize)?;
        Ok((info.si_code, info.si_addr() as u64))
    }
}

/// One change of state of a child: its id and raw status, if there is one now.
fn next_status(tid: i32, flags: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    let tid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | flags) };
    (tid > 0).then_some((tid, status))
}

impl Loop {
    fn seize(core: Arc<Core>, space: &Space, pid: i32, message: u8) -> Result<(Loop, Traced), Errno> {
        let tracer = core.tracer.as_ref().ok_or(Errno::EINVAL)?;
        let (receiver, children) = tracer.receiver.lock().take().ok_or(Errno::EBUSY)?;
        let epoll = Epoll::new()?;
        epoll.add(children.as_fd(), Interest::READ, 0)?;
        epoll.add(tracer.wake.as_fd(), Interest::READ, 1)?;

        let options = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SEIZE, pid, 0, options as usize)?;
        space.control.send(message, &[])?;
        let (text, text_len) = (tracer.text, tracer.text_len);
        loop {
            let (_, status) = next_status(pid, 0).ok_or(Errno::ECHILD)?;
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                return Err(Errno::ESRCH);
            }
            if libc::WSTOPSIG(status) == libc::SIGTRAP && status >> 16 == 0 {
                break;
            }
            ptrace(libc::PTRACE_CONT, pid, 0, 0)?;
        }
        let host = xstate(pid)?;
        let mut registers = registers(pid)?;
        registers = libc::user_regs_struct {
            cs: registers.cs,
            ss: registers.ss,
            eflags: 0x202,
            orig_rax: u64::MAX,
            // SAFETY: plain numbers.
            ..unsafe { std::mem::zeroed() }
        };
        let fresh = crate::frame::to_regset(&host, &crate::frame::fresh_xstate(&crate::frame::from_regset(&host)));
        let traced = Traced {
            registers,
            xstate: Some(fresh),
            dirty: true,
            xstate_dirty: true,
        };
        let tracees = HashMap::from([(pid, Tracee::new(Mode::Stopped))]);
        Ok((
            Loop {
                core: core.clone(),
                receiver,
                tracees,
                epoll,
                children,
                text,
                text_len,
            },
            traced,
        ))
    }

    /// Never returns.
    fn run(&mut self) -> ! {
        let mut last = Instant::now();
        let mut events = [sentry_host::epoll::Event::default(); 4];
        loop {
            let mut busy = false;
            while let Ok(command) = self.receiver.try_recv() {
                self.command(command);
                busy = true;
            }
            while let Some((tid, status)) = next_status(-1, libc::WNOHANG) {
                self.status(tid, status);
                busy = true;
            }
            if busy {
                last = Instant::now();
            } else if last.elapsed() > SPIN {
                // What wakes it is taken before anything is looked for, so what comes meanwhile wakes it again.
                let _ = self.epoll.wait(&mut events, None);
                self.children.drain();
                if let Some(tracer) = &self.core.tracer {
                    let _ = sentry_host::eventfd::drain(tracer.wake.as_fd());
                }
                last = Instant::now();
            }
        }
    }

    fn command(&mut self, command: Command) {
        let tid = command.thread().host_tid() as i32;
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            // Dead already, and reported so.
            return;
        };
        if let Command::Interrupt { .. } = command {
            match tracee.mode {
                Mode::Guest => drop(ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)),
                Mode::ThenGuest { .. } | Mode::Starting => tracee.interrupt = true,
                // It has come back already.
                Mode::Stopped | Mode::Orders => {}
            }
            command.thread().kick_has_arrived();
            return;
        }
        tracee.thread = Arc::downgrade(command.thread());
        match tracee.mode {
            Mode::Stopped => self.carry_out(tid, command),
            _ => tracee.pending = Some(command),
        }
    }

    /// Carries out a command for a stopped thread.
    fn carry_out(&mut self, tid: i32, command: Command) {
        let thread = command.thread().clone();
        let outcome = match command {
            Command::Return { ops: false, flags, .. } => self.run_guest(tid, &thread, flags),
            Command::Return { flags, .. } => self.run_stub(tid, &thread, Mode::ThenGuest { flags }),
            Command::Orders { .. } => self.run_stub(tid, &thread, Mode::Orders),
            Command::ReadXstate { done, .. } => {
                if let Ok(state) = xstate(tid) {
                    thread.with_traced(|traced| traced.xstate = Some(state));
                }
                let _ = done.send(());
                Ok(())
            }
            Command::Interrupt { .. } => Ok(()),
        };
        if outcome.is_err() {
            thread.space().kill();
        }
    }

    /// Puts the guest's registers in place and lets it run.
    fn run_guest(&mut self, tid: i32, thread: &Arc<Thread>, flags: u32) -> Result<(), Errno> {
        let stored = thread.with_traced(|traced| {
            if flags & answer_flags::RESULT != 0 {
                let failed = flags & answer_flags::FAULT_RESULT != 0 && !thread.copies_were_clean();
                let result = if failed {
                    -i64::from(libc::EFAULT)
                } else {
                    thread.answered_result()
                };
                traced.registers.rax = result as u64;
                traced.dirty = true;
            }
            if traced.dirty {
                // No system call is in progress any more: the host must not restart one.
                traced.registers.orig_rax = u64::MAX;
                set_registers(tid, &traced.registers)?;
            }
            if traced.xstate_dirty
                && let Some(state) = &traced.xstate
            {
                set_xstate(tid, state)?;
            }
            Ok(())
        });
        stored.unwrap_or(Err(Errno::ESRCH))?;
        let interrupt = self.tracees.get_mut(&tid).is_some_and(|tracee| {
            tracee.mode = Mode::Guest;
            std::mem::take(&mut tracee.interrupt)
        });
        if interrupt {
            // Still stopped, it will stop again before it runs.
            ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        }
        self.go(tid, libc::PTRACE_SYSEMU)
    }

    /// Lets the stub run the operations in the mailbox.
    fn run_stub(&mut self, tid: i32, thread: &Arc<Thread>, mode: Mode) -> Result<(), Errno> {
        let stack = thread.stub_stack();
        let entry = self.text + symbol::STUB_PTRACE_RUN;
        let started = thread.with_traced(|traced| {
            if traced.xstate.is_none() {
                traced.xstate = Some(xstate(tid)?);
            }
            traced.dirty = true;
            traced.xstate_dirty = true;
            let registers = libc::user_regs_struct {
                rip: entry,
                rsp: stack,
                eflags: 0x202,
                orig_rax: u64::MAX,
                ..traced.registers
            };
            set_registers(tid, &registers)
        });
        started.unwrap_or(Err(Errno::ESRCH))?;
        self.set_mode(tid, mode);
        self.go(tid, libc::PTRACE_CONT)
    }

    /// Lets a stopped thread run.
    #[cfg(not(feature = "stepping"))]
    fn go(&mut self, tid: i32, request: u32) -> Result<(), Errno> {
        ptrace(request, tid, 0, 0).map(drop)
    }

    /// Lets a stopped thread run, by single steps where a test wants that.
    #[cfg(feature = "stepping")]
    fn go(&mut self, tid: i32, request: u32) -> Result<(), Errno> {
        const PTRACE_SYSEMU_SINGLESTEP: u32 = 32;
        let request = match crate::stepping::next(tid) {
            crate::stepping::Next::Resume => request,
            crate::stepping::Next::Step if request == libc::PTRACE_SYSEMU => PTRACE_SYSEMU_SINGLESTEP,
            crate::stepping::Next::Step => libc::PTRACE_SINGLESTEP,
            crate::stepping::Next::Tell(told) => {
                told.tell(registers(tid)?.rip);
                while let Ok(command) = self.receiver.try_recv() {
                    self.command(command);
                }
                request
            }
        };
        ptrace(request, tid, 0, 0).map(drop)
    }

    /// True if a trap was a single step that a test wanted; the thread runs on then.
    #[cfg(feature = "stepping")]
    fn stepped(&mut self, tid: i32) -> Result<bool, Errno> {
        // TRAP_BRKPT or TRAP_TRACE; a breakpoint instruction has SI_KERNEL.
        if !matches!(signal_info(tid)?.0, 1 | 2) || !crate::stepping::stepped(tid) {
            return Ok(false);
        }
        let guest = matches!(self.tracees.get(&tid).map(|tracee| &tracee.mode), Some(Mode::Guest));
        self.go(tid, if guest { libc::PTRACE_SYSEMU } else { libc::PTRACE_CONT })?;
        Ok(true)
    }

    fn set_mode(&mut self, tid: i32, mode: Mode) {
        if let Some(tracee) = self.tracees.get_mut(&tid) {
            tracee.mode = mode;
        }
    }

    /// A thread has changed its state.
    fn status(&mut self, tid: i32, status: i32) {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if let Some(thread) = self.tracees.remove(&tid).and_then(|tracee| tracee.thread.upgrade()) {
                thread.mark_dead();
            }
            // A process whose space is gone already is still on the list.
            self.core.died(tid as u32);
            return;
        }
        let tracee = self.tracees.entry(tid).or_insert_with(|| Tracee::new(Mode::Starting));
        let thread = tracee.thread.upgrade();
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let outcome = match event {
            0 if signal == libc::SIGTRAP | 0x80 => self.system_call(tid, thread.as_ref()),
            0 => self.signal(tid, thread.as_ref(), signal),
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.child(tid, thread.as_ref())
            }
            libc::PTRACE_EVENT_STOP => match tracee.mode {
                Mode::Guest => self.guest_event(tid, thread.as_ref(), Event::Interrupted),
                Mode::Stopped => Ok(()),
                _ => ptrace(libc::PTRACE_CONT, tid, 0, 0).map(drop),
            },
            _ => ptrace(libc::PTRACE_CONT, tid, 0, 0).map(drop),
        };
        if outcome.is_err()
            && let Some(thread) = thread
        {
            thread.space().kill();
        }
    }

    /// The host says that `tid` has made a child.
    fn child(&mut self, tid: i32, thread: Option<&Arc<Thread>>) -> Result<(), Errno> {
        let mut child: libc::c_ulong = 0;
        ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut child as usize)?;
        if let Some(thread) = thread {
            thread.note_child(child as u32);
        }
        self.tracees
            .entry(child as i32)
            .or_insert_with(|| Tracee::new(Mode::Starting));
        ptrace(libc::PTRACE_CONT, tid, 0, 0).map(drop)
    }

    fn system_call(&mut self, tid: i32, thread: Option<&Arc<Thread>>) -> Result<(), Errno> {
        let Some(Tracee { mode: Mode::Guest, .. }) = self.tracees.get(&tid) else {
            return Err(Errno::EINVAL);
        };
        let registers = registers(tid)?;
        let call = SyscallArgs {
            nr: registers.orig_rax,
            args: [
                registers.rdi,
                registers.rsi,
                registers.rdx,
                registers.r10,
                registers.r8,
                registers.r9,
            ],
        };
        self.guest_event(tid, thread, Event::Syscall(call))
    }

    /// Reports an event of guest code.
    fn guest_event(&mut self, tid: i32, thread: Option<&Arc<Thread>>, event: Event) -> Result<(), Errno> {
        let thread = thread.ok_or(Errno::ESRCH)?;
        let mut registers = registers(tid)?;
        let mut dirty = false;
        if let Event::Syscall(call) = event {
            registers.rax = call.nr;
            // A call by int 0x80 cannot be told from a 64-bit one by its registers: look at the instruction.
            let mut code = [0; 2];
            let _ = thread.space().read(registers.rip.wrapping_sub(2), &mut code);
            if code == [0xcd, 0x80] {
                registers.rax = -i64::from(libc::ENOSYS) as u64;
                registers.orig_rax = u64::MAX;
                set_registers(tid, &registers)?;
                return ptrace(libc::PTRACE_SYSEMU, tid, 0, 0).map(drop);
            }
            dirty = true;
        }
        self.set_mode(tid, Mode::Stopped);
        #[cfg(feature = "stepping")]
        crate::stepping::came_back(tid);
        let traced = Traced {
            registers,
            xstate: None,
            dirty,
            xstate_dirty: false,
        };
        thread.report(Report::Event(event), Some(traced));
        Ok(())
    }

    /// A signal is about to be delivered.
    fn signal(&mut self, tid: i32, thread: Option<&Arc<Thread>>, signal: i32) -> Result<(), Errno> {
        #[cfg(feature = "stepping")]
        if signal == libc::SIGTRAP && self.stepped(tid)? {
            return Ok(());
        }
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return Ok(());
        };
        if matches!(tracee.mode, Mode::Guest) {
            let (code, address) = signal_info(tid)?;
            if !FAULTS.contains(&signal) || code <= 0 {
                // From outside the sandbox: not for the guest.
                return ptrace(libc::PTRACE_SYSEMU, tid, 0, 0).map(drop);
            }
            // The exception's number and error code are not to be had by ptrace.
            let trapno = match signal {
                libc::SIGSEGV | libc::SIGBUS => 14,
                libc::SIGFPE => 0,
                libc::SIGILL => 6,
                _ => 3,
            };
            return self.guest_event(
                tid,
                thread,
                Event::Fault(Fault {
                    signal,
                    code,
                    address,
                    trapno,
                    error: 4,
                }),
            );
        }
        if !FAULTS.contains(&signal) {
            // From outside too, SIGSTOP for one. What the stub was doing goes on, a host call is made again.
            return ptrace(libc::PTRACE_CONT, tid, 0, 0).map(drop);
        }
        let rip = registers(tid)?.rip;
        if signal == libc::SIGTRAP && rip == self.text + symbol::PTRACE_DONE {
            return self.stub_done(tid);
        }
        let in_stub = rip.wrapping_sub(self.text) < self.text_len;
        if in_stub && matches!(signal, libc::SIGSEGV | libc::SIGBUS) {
            // A copy of the stub's: its own handler knows what to do.
            return ptrace(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop);
        }
        // Operations that somebody has tampered with.
        Err(Errno::EINVAL)
    }

    /// The stub has reached its breakpoint.
    fn stub_done(&mut self, tid: i32) -> Result<(), Errno> {
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return Ok(());
        };
        let mode = std::mem::replace(&mut tracee.mode, Mode::Stopped);
        let thread = tracee.thread.upgrade();
        match mode {
            Mode::Orders => thread.ok_or(Errno::ESRCH)?.report(Report::Done, None),
            Mode::ThenGuest { flags } => {
                let thread = thread.ok_or(Errno::ESRCH)?;
                self.run_guest(tid, &thread, flags)?;
            }
            Mode::Starting => {
                if let Some(command) = tracee.pending.take() {
                    self.carry_out(tid, command);
                }
            }
            Mode::Stopped | Mode::Guest => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}
