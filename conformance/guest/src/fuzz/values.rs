//! Where arguments come from: memory with canaries around it, descriptors of every type, paths.

use super::table::Kind;
use crate::random::Rng;
use crate::sys;
use crate::sys::*;

/// Pages of the memory that calls are given.
const ARENA: usize = 32;
/// Pages of the range that memory calls may change.
const RANGE: usize = 64;
/// What a canary page is full of.
const CANARY: u8 = 0xc5;
/// Descriptors that may be open.
const FDS: u64 = 64;

/// Names that exist, do not, are odd, or lead out of the directory.
const PATHS: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "d/e",
    "d/f",
    "d/..",
    "l",
    "l/a",
    "fifo",
    "sock",
    "user.a",
    "system.posix_acl_access",
    "security.capability",
    "trusted.a",
    "",
    ".",
    "..",
    "/",
    "/tmp",
    "/proc",
    "/proc/self/fd",
    "/proc/self/maps",
    "/proc/self/mem",
    "/proc/self/status",
    "/proc/self/exe",
    "/proc/self/environ",
    "/proc/self/root/..",
    "/proc/self/oom_score_adj",
    "/proc/self/comm",
    "/proc/self/uid_map",
    "/proc/self/task",
    "/proc/1/mem",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/overcommit_memory",
    "/proc/mounts",
    "/proc/meminfo",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts/0",
    "/dev/shm/x",
    "/sys",
    "/etc/passwd",
    "/bin/true",
    "/bin/sh",
    "a/",
    "a//b",
    "./././a",
    "/proc/self/fd/3",
    "/proc/self/fd/5",
    "/proc/self/fdinfo/4",
    "\u{fffd}\u{7f}",
    "tmpfs",
    "proc",
    "bind",
    "/no/such/file",
];

/// Everything a process draws arguments from.
pub struct Values {
    arena: u64,
    range: u64,
    canaries: Vec<u64>,
    paths: u64,
    long: u64,
    harmless: bool,
    own: i32,
}

impl Values {
    /// Maps memory and makes files. Where `harmless` is set, no signal can reach another process.
    pub fn new(rng: &mut Rng, harmless: bool) -> Values {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let mut canaries = Vec::new();
        // A canary page, a page that nobody may touch, the memory, another, another canary.
        let fenced = |pages: usize, canaries: &mut Vec<u64>| {
            let start = map((pages + 4) * PAGE, rw) as u64;
            let inside = start + 2 * PAGE as u64;
            let after = inside + (pages * PAGE) as u64;
            for canary in [start, after + PAGE as u64] {
                // SAFETY: a page of the mapping.
                unsafe { std::ptr::write_bytes(canary as *mut u8, CANARY, PAGE) };
                canaries.push(canary);
            }
            for fence in [start + PAGE as u64, after] {
                sys!(libc::SYS_mprotect, fence, PAGE, libc::PROT_NONE);
            }
            inside
        };
        let arena = fenced(ARENA, &mut canaries);
        let range = fenced(RANGE, &mut canaries);
        let paths = map(2 * PAGE, rw) as u64;
        for (i, path) in PATHS.iter().enumerate() {
            assert!(path.len() < 64);
            // SAFETY: fewer than 128 paths of fewer than 64 bytes fit.
            unsafe { std::ptr::copy_nonoverlapping(path.as_ptr(), (paths + 64 * i as u64) as *mut u8, path.len()) };
        }
        // A path of 5,000 bytes: too long.
        let long = map(2 * PAGE, rw) as u64;
        // SAFETY: inside the mapping.
        unsafe { std::ptr::write_bytes(long as *mut u8, b'x', 5000) };
        let mut values = Values {
            arena,
            range,
            canaries,
            paths,
            long,
            harmless,
            own: getpid(),
        };
        values.refill(rng);
        values.files();
        values
    }

    /// Opens one of everything.
    fn files(&self) {
        let at = |i: u64| self.arena + i;
        let open = |path: &str, flags: i32| open(path, flags | libc::O_NONBLOCK, 0o644);
        sys!(libc::SYS_mkdir, c("d").as_ptr(), 0o755);
        sys!(libc::SYS_symlink, c("d").as_ptr(), c("l").as_ptr());
        sys!(libc::SYS_mknod, c("fifo").as_ptr(), libc::S_IFIFO | 0o644, 0);
        file("a", &[7; 10_000]);
        open("a", libc::O_RDWR);
        open("b", libc::O_RDWR | libc::O_CREAT);
        open("c", libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND);
        open("d", libc::O_RDONLY | libc::O_DIRECTORY);
        open("a", libc::O_PATH);
        open("fifo", libc::O_RDWR);
        open(".", libc::O_TMPFILE | libc::O_RDWR);
        for path in [
            "/proc/self/mem",
            "/proc/self/maps",
            "/proc",
            "/dev/zero",
            "/dev/null",
            "/etc/passwd",
            "/dev/ptmx",
        ] {
            open(
                path,
                if path == "/dev/ptmx" {
                    libc::O_RDWR
                } else {
                    libc::O_RDONLY
                },
            );
        }
        sys!(libc::SYS_pipe2, at(0), libc::O_NONBLOCK);
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            sys!(
                libc::SYS_socketpair,
                libc::AF_UNIX,
                kind | libc::SOCK_NONBLOCK,
                0,
                at(0)
            );
            sys!(libc::SYS_socket, libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0);
        }
        sys!(libc::SYS_eventfd2, 3, libc::EFD_NONBLOCK);
        sys!(libc::SYS_epoll_create1, 0);
        sys!(libc::SYS_timerfd_create, 1, libc::TFD_NONBLOCK);
        let mask = u64::MAX;
        sys!(libc::SYS_signalfd4, -1, &mask as *const u64, 8, libc::SFD_NONBLOCK);
        sys!(libc::SYS_inotify_init1, libc::IN_NONBLOCK);
        sys!(libc::SYS_memfd_create, c("m").as_ptr(), libc::MFD_ALLOW_SEALING);
        sys!(libc::SYS_pidfd_open, self.own, 0);
    }

    /// Fills the memory anew: words that mean something to some call.
    pub fn refill(&mut self, rng: &mut Rng) {
        for _ in 0..512 {
            let at = self.arena + rng.below((ARENA * PAGE / 8) as u64) * 8;
            let word = match rng.below(8) {
                0 => 0,
                1 => rng.next(),
                2 => self.buffer(rng),
                3 => rng.below(FDS) | rng.below(FDS) << 32,
                4 => rng.below(4096),
                5 => self.path(rng),
                6 => u64::MAX >> rng.below(64),
                _ => rng.below(8) | rng.below(8) << 32,
            };
            // SAFETY: an aligned word of the arena, which no call unmaps.
            unsafe { (at as *mut u64).write(word) };
        }
    }

    /// False if something was written where no call was told to.
    pub fn canaries_live(&self) -> bool {
        self.canaries.iter().all(|&canary| {
            // SAFETY: the pages are never unmapped.
            let page = unsafe { std::slice::from_raw_parts(canary as *const u8, PAGE) };
            page.iter().all(|&byte| byte == CANARY)
        })
    }

    /// An address in the arena, often at the end of a page or of all of it.
    fn buffer(&self, rng: &mut Rng) -> u64 {
        let end = (ARENA * PAGE) as u64;
        self.arena
            + match rng.below(4) {
                0 => end - rng.below(64),
                1 => rng.below(ARENA as u64) * PAGE as u64 + PAGE as u64 - rng.below(32),
                2 => rng.below(end),
                _ => rng.below(end) & !7,
            }
    }

    fn path(&self, rng: &mut Rng) -> u64 {
        match rng.below(40) {
            0 => self.long,
            1 => self.buffer(rng),
            _ => self.paths + 64 * rng.below(PATHS.len() as u64),
        }
    }

    /// Writes something at an address of the arena and gives the address.
    fn put(&self, rng: &mut Rng, words: &[u64]) -> u64 {
        let room = (ARENA * PAGE - 8 * words.len()) as u64;
        let at = self.arena + (rng.below(room) & !7);
        for (i, word) in words.iter().enumerate() {
            // SAFETY: inside the arena.
            unsafe { ((at + 8 * i as u64) as *mut u64).write(*word) };
        }
        at
    }

    fn length(&self, rng: &mut Rng) -> u64 {
        match rng.below(10) {
            0 => 0,
            1 => rng.below(1 << 20),
            2 => PAGE as u64,
            3 => u64::MAX >> rng.below(64),
            _ => rng.below(512),
        }
    }

    fn process(&self, rng: &mut Rng) -> u64 {
        let own = i64::from(self.own);
        let from = match rng.below(6) {
            0 => 0,
            1 => -own,
            2 => 1_000_000 + rng.below(1000) as i64,
            // Its parent, the first process, everybody: only where it may not do them harm.
            3 if self.harmless => 1,
            4 if self.harmless => -1,
            _ => own,
        };
        from as u64
    }

    /// An argument of this kind.
    pub fn draw(&self, rng: &mut Rng, kind: Kind) -> u64 {
        if rng.once_in(24) && kind != Kind::Process && kind != Kind::Address {
            return self.draw_any(rng);
        }
        match kind {
            Kind::Fd => rng.below(FDS),
            Kind::At if rng.once_in(4) => rng.below(FDS),
            Kind::At => libc::AT_FDCWD as u64,
            Kind::Buffer => self.buffer(rng),
            Kind::Vector => {
                let words: Vec<u64> = (0..8)
                    .map(|i| if i % 2 == 0 { self.buffer(rng) } else { self.length(rng) })
                    .collect();
                self.put(rng, &words)
            }
            Kind::Struct if rng.once_in(2) => {
                let words: Vec<u64> = (0..12).map(|_| self.word(rng)).collect();
                self.put(rng, &words)
            }
            Kind::Struct => self.buffer(rng) & !3,
            Kind::Path => self.path(rng),
            Kind::Strings => {
                let mut words: Vec<u64> = (0..rng.below(5)).map(|_| self.path(rng)).collect();
                words.push(0);
                self.put(rng, &words)
            }
            Kind::Length => self.length(rng),
            Kind::Count => rng.pick(&[0, 1, 2, 3, 4, 4, 1024, 1025]),
            Kind::Offset => match rng.below(4) {
                0 => rng.pick(&[0, 1, 4095, 4096, u64::MAX, i64::MAX as u64]),
                1 => rng.below(1 << 40),
                _ => rng.below(20_000),
            },
            Kind::Small => rng.below(64),
            Kind::Flags => (0..rng.below(4)).fold(0, |flags, _| flags | 1 << rng.below(32)),
            Kind::Mode => rng.below(0o20_0000),
            Kind::Signal => rng.below(66),
            Kind::Process => self.process(rng),
            Kind::User => rng.pick(&[0, 1, 1000, 65534, u64::MAX, u64::from(u32::MAX)]),
            Kind::Address => self.range + rng.below(RANGE as u64) * PAGE as u64,
            Kind::Size => match rng.below(4) {
                0 => rng.pick(&[0, 1, 4096, 4097]),
                1 => 4096 * rng.below(RANGE as u64),
                _ => 4096 * rng.below(8),
            },
            Kind::Word => self.buffer(rng) & !3,
            Kind::Ioctl => match rng.below(5) {
                0 => 0x5400 + rng.below(0x70),
                1 => rng.pick(&[0x8004_5430, 0x4004_5431, 0x8004_5432, 0x8004_5438, 0x8004_5439]),
                2 => 0x8900 + rng.below(256),
                3 => 0x4000_6600 + rng.below(64) + (rng.below(4) << 30),
                _ => rng.next() as u32 as u64,
            },
            Kind::Time => {
                let short = |rng: &mut Rng| rng.pick(&[0, 1, 1000, 100_000, 999_999_999, 1_000_000_000, u64::MAX]);
                let words = [0, short(rng), rng.below(2), short(rng)];
                let at = self.put(rng, &words);
                rng.pick(&[at, at, at, at, 0])
            }
            Kind::Any => self.draw_any(rng),
        }
    }

    fn word(&self, rng: &mut Rng) -> u64 {
        match rng.below(6) {
            0 => 0,
            1 => rng.below(64),
            2 => self.buffer(rng),
            3 => rng.below(FDS),
            4 => 1 << rng.below(64),
            _ => self.length(rng),
        }
    }

    fn draw_any(&self, rng: &mut Rng) -> u64 {
        match rng.below(10) {
            0 => 0,
            1 => u64::MAX,
            2 => BAD,
            3 => WILD,
            4 => 0xffff_8000_0000_0000 + rng.below(1 << 30),
            5 => 0x7fff_ffff_f000 - rng.below(8 * 4096),
            6 => 1 << rng.below(64),
            7 => self.arena + (ARENA * PAGE) as u64 + rng.below(PAGE as u64),
            8 => rng.below(1 << 16),
            _ => self.buffer(rng),
        }
    }

    /// Memory calls with addresses that are anywhere would unmap this program; where it would be harmful, an address
    /// is brought back into the range.
    pub fn tame(&self, number: i64, args: &mut [u64; 6]) {
        let range = self.range..self.range + (RANGE * PAGE) as u64;
        let within = |address: u64, size: u64| {
            range.contains(&address) && address.checked_add(size).is_some_and(|end| end <= range.end)
        };
        let fit = |args: &mut [u64; 6], address: usize, size: usize| {
            if !within(args[address], args[size]) {
                args[address] = range.start;
                args[size] = args[size].min(range.end - range.start);
            }
        };
        match number {
            libc::SYS_mmap => {
                fit(args, 0, 1);
                // Shared and writable memory of any size would only fill the machine.
                args[1] = args[1].min(1 << 24);
            }
            libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_madvise | libc::SYS_pkey_mprotect => fit(args, 0, 1),
            libc::SYS_remap_file_pages | libc::SYS_mseal | libc::SYS_mlock | libc::SYS_mlock2 => fit(args, 0, 1),
            libc::SYS_mremap => {
                fit(args, 0, 1);
                args[2] = args[2].min(1 << 24);
                fit(args, 4, 2);
            }
            libc::SYS_shmat => args[0] = 0,
            _ => {}
        }
    }
}
