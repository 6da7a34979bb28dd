//! What guests add to the host's files, and which names they change there.
//!
//! With a limit ([`Budget`]), each host file that is open or that guests have added to has an [`Account`], by whatever
//! name and mount it is used. A file that has lost its last name gives back what was counted for it when nobody uses it
//! any more: no open file, no address space that got its descriptor, no inode for which the gofer holds it, no
//! descriptor that is kept for later.
//!
//! The gate is held over each request by which the gofer opens a file or takes a name away, and what is noted of it: who
//! opens a file just before its last name goes is seen in time. The gofer serves one request at a time anyway.
//!
//! What host processes add or remove is not counted, but a file that they have removed gives its count back once it is
//! closed here, or when its number is used for another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sentry_abi::{Errno, PAGE_SIZE};
use sentry_gofer::protocol::{Attributes, FsTotals, Removed};
use sentry_host::waiting::LongMutex;
use sentry_lock::{Mutex, MutexGuard, rank};

use super::meter::Extent;
use super::tally::{ChangedFiles, Tally};
use super::{GoferFs, Identity};
use crate::budget::Budget;
use crate::inode::FsStatistics;

/// File systems that say at once how many blocks a file has (statfs(2)'s numbers). Of others, each file counts as large
/// as it is, holes and all.
const TELLS_BLOCKS: [u64; 6] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
    0x794c_7630, // overlay
];

/// The books of a sandbox, for all its mounts of host files.
pub struct Ledger {
    pub(super) budget: Arc<Budget>,
    /// There are limits, and mounts to which they apply.
    limited: bool,
    gate: LongMutex<(), rank::GoferGate>,
    book: Mutex<Book, rank::GoferAccounts>,
    tally: Option<Tally>,
}

#[derive(Default)]
struct Book {
    accounts: HashMap<Identity, Arc<Account>>,
    /// Which devices have files that count as large as they are.
    by_size: HashMap<u64, bool>,
    /// Those that keep descriptors.
    keepers: Vec<Weak<GoferFs>>,
}

/// A host file.
pub(super) struct Account {
    identity: Identity,
    /// Counts as large as it is.
    pub(super) by_size: bool,
    /// [`Use`]s.
    users: AtomicU32,
    /// [`Mapped`]s.
    pub(super) mappings: AtomicU32,
    /// Names that guests have given it.
    names: AtomicU32,
    /// It has no name any more.
    gone: AtomicBool,
    /// Pages that count.
    pub(super) charged: AtomicU64,
    pub(super) extent: LongMutex<Extent, rank::GoferAccount>,
}

impl Account {
    fn new(identity: Identity, by_size: bool) -> Arc<Account> {
        Arc::new(Account {
            identity,
            by_size,
            users: AtomicU32::new(0),
            mappings: AtomicU32::new(0),
            names: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            extent: LongMutex::default(),
        })
    }
}

impl Ledger {
    /// Of a sandbox with this budget. `shared`: it has mounts whose files guests change on the host; `counts`: which ones
    /// they change is to be told.
    pub fn new(budget: Arc<Budget>, shared: bool, counts: bool) -> Arc<Ledger> {
        Arc::new(Ledger {
            limited: shared && budget.limits_disk(),
            budget,
            gate: LongMutex::default(),
            book: Mutex::default(),
            tally: (shared && counts).then(Tally::default),
        })
    }

    /// How many files of the host guests have created, changed and deleted.
    pub fn changed_files(&self) -> ChangedFiles {
        self.tally.as_ref().map(Tally::totals).unwrap_or_default()
    }

    pub(super) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// What is kept for later of this file system goes with the last name of its file.
    pub(super) fn keeps_descriptors(&self, fs: &Arc<GoferFs>) {
        if self.limited {
            self.book.lock().keepers.push(Arc::downgrade(fs));
        }
    }

    /// The host file system's totals as the guest sees them: the limit is all there is.
    pub(super) fn limit_totals(&self, totals: &mut FsStatistics) {
        if !self.limited || totals.block_size == 0 {
            return;
        }
        let blocks = |pages: u64| pages.saturating_mul(PAGE_SIZE) / totals.block_size;
        let (all, free) = (self.budget.max_disk_pages(), self.budget.free_disk_pages());
        if all != u64::MAX {
            totals.blocks = totals.blocks.min(blocks(all));
            totals.blocks_free = totals.blocks_free.min(blocks(free));
        }
        let (all, free) = (self.budget.max_inodes(), self.budget.free_names());
        if all != u64::MAX {
            // Some file systems say 0, and have no limit.
            let unlimited = totals.files == 0;
            totals.files = if unlimited { all } else { totals.files.min(all) };
            totals.files_free = if unlimited { free } else { totals.files_free.min(free) };
        } else if free != u64::MAX {
            totals.files_free = totals.files_free.min(free);
        }
    }

    /// The account of a file, in use; made if there is none.
    pub(super) fn used(self: &Arc<Self>, identity: Identity, by_size: bool) -> Use {
        let mut book = self.book.lock();
        let account = book
            .accounts
            .entry(identity)
            .or_insert_with(|| Account::new(identity, by_size));
        account.users.fetch_add(1, Ordering::SeqCst);
        Use {
            ledger: self.clone(),
            account: account.clone(),
        }
    }

    /// A guest has made a file, or has given one a further name (`new` is false), for which a name was charged and so many
    /// pages.
    fn named(&self, identity: Identity, new: bool, pages: u64) {
        let mut book = self.book.lock();
        let stale = |account: &Arc<Account>| account.users.load(Ordering::SeqCst) == 0;
        if new && let Some(old) = book.accounts.get(&identity).filter(|account| stale(account)) {
            // It had the same number, and is no more.
            self.give_back(old);
            book.accounts.remove(&identity);
        }
        let by_size = book.by_size.get(&identity.dev).copied().unwrap_or(true);
        let account = book
            .accounts
            .entry(identity)
            .or_insert_with(|| Account::new(identity, by_size));
        account.names.fetch_add(1, Ordering::SeqCst);
        account.charged.fetch_add(pages, Ordering::SeqCst);
    }

    /// A file has lost a name. The gate is held.
    pub(super) fn lost(&self, removed: Removed) {
        let identity = Identity {
            dev: removed.dev,
            ino: removed.ino,
        };
        if removed.nlink == 0 {
            self.let_go(identity);
        }
        let mut book = self.book.lock();
        let Some(account) = book.accounts.get(&identity).cloned() else {
            return;
        };
        let one_less = |names: u32| names.checked_sub(1);
        if removed.nlink == 0 {
            // Its last name counts as long as it is used.
            account.gone.store(true, Ordering::SeqCst);
        } else if account
            .names
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok()
        {
            self.budget.uncharge_names(1);
        }
        self.prune(&mut book, &account);
    }

    /// Closes descriptors of a file that are kept for a later open.
    fn let_go(&self, identity: Identity) {
        let keepers: Vec<_> = {
            let book = self.book.lock();
            // Nobody has opened it.
            if !book.accounts.contains_key(&identity) {
                return;
            }
            book.keepers.iter().filter_map(Weak::upgrade).collect()
        };
        for fs in keepers {
            fs.let_go(identity);
        }
    }

    /// Removes an account that nobody uses and that says nothing; gives back what counts for a file that is no more.
    fn prune(&self, book: &mut Book, account: &Arc<Account>) {
        if account.users.load(Ordering::SeqCst) > 0 {
            return;
        }
        if account.gone.load(Ordering::SeqCst) {
            self.give_back(account);
        }
        let empty = account.names.load(Ordering::SeqCst) == 0 && account.charged.load(Ordering::SeqCst) == 0;
        let current = book.accounts.get(&account.identity);
        if empty && current.is_some_and(|current| Arc::ptr_eq(current, account)) {
            book.accounts.remove(&account.identity);
        }
    }

    fn give_back(&self, account: &Account) {
        self.budget.uncharge_disk(account.charged.swap(0, Ordering::SeqCst));
        let names = account.names.swap(0, Ordering::SeqCst);
        self.budget.uncharge_names(names.into());
    }
}

/// A file is used: what counts for it stays counted.
pub(super) struct Use {
    pub(super) ledger: Arc<Ledger>,
    pub(super) account: Arc<Account>,
}

impl Use {
    pub fn another(&self) -> Use {
        self.account.users.fetch_add(1, Ordering::SeqCst);
        Use {
            ledger: self.ledger.clone(),
            account: self.account.clone(),
        }
    }

    /// False if only names have a limit.
    pub fn meters(&self) -> bool {
        self.ledger.budget.max_disk_pages() != u64::MAX
    }

    /// Something is counted for the file.
    pub fn counts(&self) -> bool {
        let names = self.account.names.load(Ordering::SeqCst);
        names > 0 || self.account.charged.load(Ordering::SeqCst) > 0
    }

    /// It was seen to have no name.
    pub fn nameless(&self) {
        self.account.gone.store(true, Ordering::SeqCst);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // Under the lock: else two that end at the same time could both take the other for the last.
        let mut book = self.ledger.book.lock();
        self.account.users.fetch_sub(1, Ordering::SeqCst);
        self.ledger.prune(&mut book, &self.account);
    }
}

/// An address space may have the file mapped.
pub(super) struct Mapped {
    used: Use,
}

impl Mapped {
    pub fn new(used: Use) -> Mapped {
        used.account.mappings.fetch_add(1, Ordering::SeqCst);
        Mapped { used }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.used.account.mappings.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A name that is about to be made, counted already. Dropped, it was not made.
pub(super) struct NewName<'a> {
    ledger: Option<&'a Ledger>,
    pages: u64,
}

impl NewName<'_> {
    /// It is there: of a `new` file, or a further one of a file.
    pub fn made(mut self, attributes: &Attributes, new: bool) {
        let Some(ledger) = self.ledger.take() else { return };
        // What is given here was counted for the name.
        let pages = if new {
            super::meter::pages_of(attributes.blocks)
        } else {
            0
        };
        ledger.budget.charge_disk_forced(pages.saturating_sub(self.pages));
        ledger.budget.uncharge_disk(self.pages.saturating_sub(pages));
        ledger.named(Identity::from(attributes), new, pages);
    }

    /// It is there, a new regular file.
    pub fn found(mut self, identity: Identity) {
        if let Some(ledger) = self.ledger.take() {
            ledger.budget.uncharge_disk(self.pages);
            ledger.named(identity, true, 0);
        }
    }

    /// It was not made, unless what is to be known of it does not say.
    pub fn failed(mut self, errno: Errno) {
        // A request that was given up is carried out all the same.
        if matches!(errno, Errno::EINTR | Errno::ENOMEM | Errno::EIO)
            && let Some(ledger) = self.ledger.take()
        {
            ledger.budget.uncharge_disk(self.pages);
        }
    }
}

impl Drop for NewName<'_> {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger {
            ledger.budget.uncharge_disk(self.pages);
            ledger.budget.uncharge_names(1);
        }
    }
}

impl GoferFs {
    /// The books, if there is a limit.
    pub(super) fn limited(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref().filter(|ledger| ledger.limited)
    }

    pub(super) fn tally(&self) -> Option<&Tally> {
        self.ledger.as_ref().and_then(|ledger| ledger.tally())
    }

    /// Held over a request that opens a file or changes names, if there is a limit.
    pub(super) fn gate(&self) -> Result<Option<MutexGuard<'_, (), rank::GoferGate>>, Errno> {
        self.limited().map(|ledger| ledger.gate.lock()).transpose()
    }

    /// The account of a file that has just been opened; the gate is held. `totals` asks for what its file system says.
    pub(super) fn account(&self, identity: Identity, totals: impl FnOnce() -> Result<FsTotals, Errno>) -> Option<Use> {
        let ledger = self.limited()?;
        self.learn(ledger, identity.dev, totals);
        let by_size = ledger.book.lock().by_size.get(&identity.dev).copied();
        Some(ledger.used(identity, by_size.unwrap_or(true)))
    }

    /// What the file system of a new file says.
    pub(super) fn learn_of(&self, dev: u64, totals: impl FnOnce() -> Result<FsTotals, Errno>) {
        if let Some(ledger) = self.limited() {
            self.learn(ledger, dev, totals);
        }
    }

    fn learn(&self, ledger: &Ledger, dev: u64, totals: impl FnOnce() -> Result<FsTotals, Errno>) {
        if ledger.book.lock().by_size.contains_key(&dev) {
            return;
        }
        let tells = totals().is_ok_and(|totals| TELLS_BLOCKS.contains(&totals.magic));
        let mut book = ledger.book.lock();
        // More than there are file systems: a gofer makes them up.
        if book.by_size.len() < 1024 {
            book.by_size.insert(dev, !tells);
        }
    }

    /// Counts a name that is about to be made, and for what is no regular file a page.
    pub(super) fn new_name(&self, page: bool) -> Result<NewName<'_>, Errno> {
        let Some(ledger) = self.limited() else {
            return Ok(NewName { ledger: None, pages: 0 });
        };
        ledger.budget.charge_name()?;
        if page && let Err(errno) = ledger.budget.charge_disk(1) {
            ledger.budget.uncharge_names(1);
            return Err(errno);
        }
        Ok(NewName {
            ledger: Some(ledger),
            pages: page.into(),
        })
    }

    /// A file has lost a name; the gate is held.
    pub(super) fn lost_name(&self, removed: Option<Removed>) {
        if let (Some(ledger), Some(removed)) = (self.limited(), removed) {
            ledger.lost(removed);
        }
    }
}
