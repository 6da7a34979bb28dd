//! Small programs that cases and the escape and hostile tests start as `guest tool NAME ARG…`.

use crate::sys;
use crate::sys::exit;

/// The path this program was started by.
pub fn me() -> String {
    std::env::args().next().unwrap_or_default()
}

/// The argument vector for `execve`: this program with `tool` and these arguments, NUL-terminated.
pub struct Argv {
    _strings: Vec<std::ffi::CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Argv {
    /// From strings.
    pub fn new(args: &[&str]) -> Argv {
        let strings: Vec<_> = args.iter().map(|a| sys::c(a)).collect();
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Argv {
            _strings: strings,
            pointers,
        }
    }

    /// `guest tool ARG…`.
    pub fn tool(args: &[&str]) -> Argv {
        let me = me();
        let mut all = vec![me.as_str(), "tool"];
        all.extend(args);
        Argv::new(&all)
    }

    /// For the call.
    pub fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

/// execve of this program as a tool with an empty environment; returns only on failure.
pub fn exec(args: &[&str]) -> i64 {
    let (path, argv, envp) = (sys::c(&me()), Argv::tool(args), Argv::new(&[]));
    sys!(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), envp.as_ptr())
}

/// Runs the named tool.
pub fn run(name: &str, args: &[&str]) {
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<i64>().ok()).unwrap_or(0);
    match name {
        "exit" => exit(number(0) as i32),
        "ids" => {
            let mut ids = [0u32; 3];
            let [r, e, s] = &mut ids;
            sys!(libc::SYS_getresuid, r as *mut u32, e as *mut u32, s as *mut u32);
            println!("{} {} {}", ids[0], ids[1], ids[2]);
        }
        // Exits with 0 if the permitted set has the capability or not, as given.
        "capability" => {
            let (header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
            sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr());
            exit(i32::from(i64::from(data[1] >> number(0) & 1) != number(1)));
        }
        "echo" => println!("{}", args.join(" ")),
        "pause" => loop {
            sys!(libc::SYS_pause);
        },
        "env" => std::env::vars().for_each(|(k, v)| println!("{k}={v}")),
        "pid" => println!("{} {}", sys::getpid(), sys::gettid()),
        // Exits with 0 if the descriptor is closed.
        "closed" => exit(i32::from(
            sys!(libc::SYS_fcntl, number(0), libc::F_GETFD) != -i64::from(libc::EBADF),
        )),
        // Exits with 0 if the blocked and pending signals and the ignored signal are as given.
        "signals" => {
            let mask = sys::sigmask(libc::SIG_BLOCK, 0);
            let mut action: libc::sigaction = sys::zeroed();
            // SAFETY: a valid structure.
            unsafe { libc::sigaction(number(2) as i32, std::ptr::null(), &mut action) };
            let ignored = action.sa_sigaction == libc::SIG_IGN;
            let good = mask == number(0) as u64 && sys::pending() == number(1) as u64 && ignored == (number(3) != 0);
            if !good {
                eprintln!("mask {mask:#x} pending {:#x} ignored {ignored}", sys::pending());
            }
            exit(i32::from(!good));
        }
        "launch" => launch(args),
        "gadget" => crate::cases::hostile::gadget(args),
        "scribble" => crate::cases::hostile::scribble(args),
        "work" => crate::cases::hostile::work(args),
        "escape" => crate::cases::escape::tool(args),
        _ => {
            eprintln!("no tool is called {name}");
            exit(2)
        }
    }
}

/// `guest tool launch DESCRIPTORS PROGRAM ARG…`: runs a program with the default action for every signal, and with a
/// limit of open descriptors unless that is 0.
fn launch(args: &[&str]) -> ! {
    let (Some(descriptors), Some(program)) = (args.first().and_then(|n| n.parse::<u64>().ok()), args.get(1)) else {
        eprintln!("guest tool launch DESCRIPTORS PROGRAM ARG…");
        exit(2)
    };
    // Those that the C library keeps for itself too: fork would pass on that they are ignored.
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        let default = [0u64; 4];
        sys!(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0, 8);
    }
    sys::sigmask(libc::SIG_SETMASK, 0);
    if descriptors > 0 {
        let limit = [descriptors; 2];
        let result = sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit.as_ptr(), 0);
        if result < 0 {
            eprintln!(
                "cannot have {descriptors} descriptors: {}",
                std::io::Error::from_raw_os_error(-result as i32)
            );
            exit(126);
        }
    }
    let error = std::os::unix::process::CommandExt::exec(std::process::Command::new(program).args(&args[2..]));
    eprintln!("cannot start {program}: {error}");
    exit(if error.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}
