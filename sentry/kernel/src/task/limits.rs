//! Resource limits (getrlimit(2)).

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Limit {
    pub current: u64,
    pub max: u64,
}

impl Limit {
    /// No limit.
    pub const INFINITY: u64 = u64::MAX;

    const fn new(current: u64, max: u64) -> Limit {
        Limit { current, max }
    }
}

/// A resource, by its `RLIMIT_*` number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource(usize);

macro_rules! resources {
    ($($name:ident = $value:literal;)*) => {
        #[allow(missing_docs)]
        impl Resource {
            $(pub const $name: Resource = Resource($value);)*
        }
    };
}

resources! {
    CPU = 0; FSIZE = 1; DATA = 2; STACK = 3; CORE = 4; RSS = 5; NPROC = 6; NOFILE = 7; MEMLOCK = 8; AS = 9; LOCKS = 10;
    SIGPENDING = 11; MSGQUEUE = 12; NICE = 13; RTPRIO = 14; RTTIME = 15;
}

impl Resource {
    /// How many there are.
    pub const COUNT: usize = 16;

    /// The resource of a number; none beyond the last.
    pub fn from_number(number: u64) -> Option<Resource> {
        usize::try_from(number)
            .ok()
            .filter(|&number| number < Self::COUNT)
            .map(Resource)
    }
}

/// All limits of a process.
#[derive(Clone, Debug)]
pub struct Limits([Limit; Resource::COUNT]);

impl Limits {
    /// One limit.
    pub fn get(&self, resource: Resource) -> Limit {
        self.0[resource.0]
    }

    /// Sets one limit. Permission was checked before.
    pub fn set(&mut self, resource: Resource, limit: Limit) {
        self.0[resource.0] = limit;
    }

    /// Lowers a limit, soft and hard, to this at most.
    pub fn set_most(&mut self, resource: Resource, most: u64) {
        let Limit { current, max } = self.get(resource);
        self.set(resource, Limit::new(current.min(most), max.min(most)));
    }
}

impl Default for Limits {
    fn default() -> Limits {
        const NONE: Limit = Limit::new(Limit::INFINITY, Limit::INFINITY);
        let mut limits = Limits([NONE; Resource::COUNT]);
        limits.set(Resource::STACK, Limit::new(8 << 20, Limit::INFINITY));
        limits.set(Resource::CORE, Limit::new(0, Limit::INFINITY));
        limits.set(Resource::NPROC, Limit::new(32768, 32768));
        limits.set(Resource::NOFILE, Limit::new(1024, 1 << 20));
        limits.set(Resource::MEMLOCK, Limit::new(8 << 20, 8 << 20));
        limits.set(Resource::SIGPENDING, Limit::new(32768, 32768));
        limits.set(Resource::MSGQUEUE, Limit::new(819_200, 819_200));
        limits.set(Resource::NICE, Limit::new(0, 0));
        limits.set(Resource::RTPRIO, Limit::new(0, 0));
        limits
    }
}
