//! What processes that share a port tell each other to be faster: a page per slot in shared memory.
//!
//! Nothing on the board is needed for correctness, and nothing on it is believed beyond that: it may be stale, torn
//! or missing, and then datagrams take a detour. A page is written by the holder of its slot only. Nobody waits for a
//! lock, so nobody can die or be stopped holding one.
//!
//! The file goes with its last user. Who has it open holds a shared lock on it, which the kernel takes back from the
//! dead; who can have the exclusive lock is alone, and removes it. Who leaves tries that on his own board, and who
//! opens one on those of all other network namespaces: their last users may have been killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{SLOTS, Table};
use crate::sys::unix::effective_uid;
use crate::sys::words::Words;

/// Who holds each slot: a random number, 0 for nobody. One word a slot, close together, so that looking at all of
/// them is cheap and leaves the pages of the others untouched.
const INCARNATIONS: usize = 0;
/// Counts the changes to what steering is made from.
const CHANGES: usize = SLOTS;
/// Counts the datagrams that others sent on to each slot, so that a spinning holder need not ask the kernel. A cache
/// line a slot: the holder looks at it all the time.
const DOORBELLS: usize = 2 * SLOTS;
const LINE: usize = 8;
/// Then a page for each slot.
const PAGES: usize = 8 * PAGE;
const PAGE: usize = 512;
/// On it, pairs of a group's key and the holder's index in that group, plus one,
const GROUPS: usize = 0;
const MAX_GROUPS: usize = 32;
/// and the services the holder listens for.
const SERVICES: usize = 2 * MAX_GROUPS;
const MAX_SERVICES: usize = PAGE - SERVICES;

/// Words of the whole board.
const LEN: usize = PAGES + SLOTS * PAGE;
const _: () = assert!(DOORBELLS + SLOTS * LINE <= PAGES);

/// The board of this user in this network namespace.
#[derive(Debug)]
pub(crate) struct Board {
    words: Words,
    /// The file behind it, and its number; a board without one is ours alone.
    file: Option<(File, u64)>,
}

impl Board {
    /// Opens the board, or makes a private one where there is no shared one to be had.
    pub(crate) fn open() -> io::Result<Self> {
        remove_stale();
        match open_file().and_then(|found| Ok((Words::map(Some(&found.0), LEN)?, found))) {
            Ok((words, found)) => Ok(Self { words, file: Some(found) }),
            Err(_) => Ok(Self { words: Words::map(None, LEN)?, file: None }),
        }
    }

    /// Others see it.
    pub(crate) fn shared(&self) -> bool {
        self.file.is_some()
    }

    /// It is the one that processes open now. Files in /dev/shm are removed, by hand or when their user logs out.
    pub(crate) fn is_current(&self) -> bool {
        let now = path(effective_uid()).and_then(std::fs::symlink_metadata).map(|found| found.ino());
        now.ok() == self.file.as_ref().map(|(_, number)| *number)
    }

    /// Takes `slot`'s page of this board over from another one.
    pub(crate) fn move_from(&self, old: &Self, slot: u8) {
        for index in 0..PAGE {
            self.word(slot, index).store(old.word(slot, index).load(Ordering::Acquire), Ordering::Release);
        }
        self.incarnation(slot).store(old.incarnation(slot).load(Ordering::Acquire), Ordering::Release);
        self.changed();
    }

    fn incarnation(&self, slot: u8) -> &AtomicU64 {
        self.words.at(INCARNATIONS + usize::from(slot))
    }

    fn doorbell(&self, slot: u8) -> &AtomicU64 {
        self.words.at(DOORBELLS + usize::from(slot) * LINE)
    }

    fn word(&self, slot: u8, index: usize) -> &AtomicU64 {
        self.words.at(PAGES + usize::from(slot) * PAGE + index)
    }

    /// Takes the page of a slot that the caller holds.
    pub(crate) fn take(&self, slot: u8, incarnation: u64) {
        // The doorbell counts on: a bell that somebody rings for the previous holder does no harm.
        for index in 0..PAGE {
            self.word(slot, index).store(0, Ordering::Relaxed);
        }
        self.incarnation(slot).store(incarnation, Ordering::Release);
    }

    /// Leaves the page, unless somebody else has it by now.
    pub(crate) fn leave(&self, slot: u8, incarnation: u64) {
        let _ = self.incarnation(slot).compare_exchange(incarnation, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Removes the file if nobody else has it open.
    pub(crate) fn clear_away(&self) {
        if let (Some((file, number)), Ok(path)) = (&self.file, path(effective_uid())) {
            remove_unused(file, *number, &path);
        }
    }

    /// The slots that have a holder, or had one that could not leave, with the holder's incarnation.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        (0..=u8::MAX).filter_map(|slot| {
            let incarnation = self.incarnation(slot).load(Ordering::Acquire);
            (incarnation != 0).then_some((slot, incarnation))
        })
    }

    /// Tells the holder of `slot` that a datagram waits.
    pub(crate) fn ring(&self, slot: u8) {
        self.doorbell(slot).fetch_add(1, Ordering::Release);
    }

    /// How often the bell of `slot` was rung.
    pub(crate) fn rung(&self, slot: u8) -> u64 {
        self.doorbell(slot).load(Ordering::Acquire)
    }

    /// A number that is another one after every change to what [`Board::table`] says.
    pub(crate) fn changes(&self) -> u64 {
        self.words.at(CHANGES).load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.words.at(CHANGES).fetch_add(1, Ordering::AcqRel);
    }

    /// Publishes the index of `slot`'s socket in the group of `addr`.
    pub(crate) fn publish_index(&self, slot: u8, addr: SocketAddr, socket: u32) {
        let key = group_key(addr);
        for pair in 0..MAX_GROUPS {
            let word = self.word(slot, GROUPS + 2 * pair);
            let found = word.load(Ordering::Relaxed);
            if found == key || found == 0 {
                self.word(slot, GROUPS + 2 * pair + 1).store(u64::from(socket) + 1, Ordering::Release);
                word.store(key, Ordering::Release);
                self.changed();
                return;
            }
        }
    }

    /// Takes that back: the socket is about to close.
    pub(crate) fn withdraw_index(&self, slot: u8, addr: SocketAddr) {
        let key = group_key(addr);
        let pair =
            (0..MAX_GROUPS).find(|pair| self.word(slot, GROUPS + 2 * pair).load(Ordering::Relaxed) == key);
        if let Some(pair) = pair {
            self.word(slot, GROUPS + 2 * pair + 1).store(0, Ordering::Release);
            self.changed();
        }
    }

    /// Where `slot` says its socket of the group of `addr` is.
    pub(crate) fn index(&self, slot: u8, addr: SocketAddr) -> Option<u32> {
        let key = group_key(addr);
        (0..MAX_GROUPS)
            .find(|pair| self.word(slot, GROUPS + 2 * pair).load(Ordering::Acquire) == key)
            .and_then(|pair| self.word(slot, GROUPS + 2 * pair + 1).load(Ordering::Acquire).checked_sub(1))
            .and_then(|index| u32::try_from(index).ok())
    }

    /// Publishes that `slot` listens for `service`. `false`: the page is full, and the service's requests will take
    /// the detour.
    pub(crate) fn add_service(&self, slot: u8, service: u64) -> bool {
        let added = self.replace_service(slot, 0, service);
        self.changed();
        added
    }

    /// Takes that back.
    pub(crate) fn remove_service(&self, slot: u8, service: u64) {
        self.replace_service(slot, service, 0);
        self.changed();
    }

    fn replace_service(&self, slot: u8, old: u64, new: u64) -> bool {
        (0..MAX_SERVICES).any(|i| {
            let word = self.word(slot, SERVICES + i);
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Who says it listens for `service`.
    pub(crate) fn listener(&self, service: u64) -> Option<u8> {
        self.taken().map(|(slot, _)| slot).find(|slot| self.services(*slot).any(|s| s == service))
    }

    /// Whether `slot` says that it listens for anything.
    pub(crate) fn listens(&self, slot: u8) -> bool {
        self.services(slot).next().is_some()
    }

    fn services(&self, slot: u8) -> impl Iterator<Item = u64> + '_ {
        (0..MAX_SERVICES)
            .map(move |i| self.word(slot, SERVICES + i).load(Ordering::Acquire))
            .filter(|s| *s != 0)
    }

    /// All that the board says about the group of `addr`.
    pub(crate) fn table(&self, addr: SocketAddr) -> Table {
        let mut table = Table::default();
        for (slot, _) in self.taken() {
            if let Some(index) = self.index(slot, addr) {
                table.slots.push((slot, index));
                table.services.extend(self.services(slot).map(|service| (service, index)));
            }
        }
        table
    }
}

const PLACE: &str = "/dev/shm";

/// What the names of a user's boards begin with. The number is the layout's version: programs of another version see
/// another board.
fn name_of(user: u32) -> String {
    format!("remanence-board-3.{user}.")
}

/// Where a user's board is.
pub(crate) fn path(user: u32) -> io::Result<PathBuf> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(PLACE).join(format!("{}{namespace}", name_of(user))))
}

/// The file and its number. Only its owner may use it: others could not share the port either.
fn open_file() -> io::Result<(File, u64)> {
    let path = path(effective_uid())?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut tries = 0;
    loop {
        let (file, number) = open_own(&mut options, &path)?;
        tries += 1;
        // Whoever holds the exclusive lock is removing the file. He may be stopped at that, so nobody waits for him:
        // should he go on later, we find the next board as everybody does whose board was removed.
        let locked = file.try_lock_shared();
        let removed = !is_at(number, &path) || matches!(locked, Err(TryLockError::WouldBlock));
        if removed && tries < MAX_TRIES {
            continue;
        }
        let len = (LEN * size_of::<u64>()) as u64;
        if file.metadata()?.len() < len {
            file.set_len(len)?;
        }
        return Ok((file, number));
    }
}

/// How often a board that is being removed is opened again.
const MAX_TRIES: usize = 16;

/// A plain file of this user, and its number. Others may have put anything at the name.
fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<(File, u64)> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != effective_uid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((file, found.ino()))
}

fn is_at(number: u64, path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == number)
}

/// Removes the file `number` at `path` if nobody but `file` has it open, which loses its own lock by asking. Only who
/// holds the exclusive lock removes, so that what stands at the path stays the same between the look and the removal.
fn remove_unused(file: &File, number: u64, path: &Path) {
    if file.try_lock().is_ok() && is_at(number, path) {
        let _ = std::fs::remove_file(path);
    }
}

/// Removes this user's boards that nobody has open: killed processes leave them behind, and with a network namespace
/// that is gone nobody comes back to them.
fn remove_stale() {
    let ours = name_of(effective_uid());
    let Ok(entries) = std::fs::read_dir(PLACE) else { return };
    let boards =
        entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(ours.as_bytes()));
    for path in boards.map(|entry| entry.path()) {
        if let Ok((file, number)) = open_own(OpenOptions::new().read(true), &path) {
            remove_unused(&file, number, &path);
        }
    }
}

/// A number that stands for a reuseport group, never 0. Two groups with the same number would cost detours.
fn group_key(addr: SocketAddr) -> u64 {
    let mut key = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            key = (key ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    match addr.ip() {
        std::net::IpAddr::V4(ip) => mix(&ip.octets()),
        std::net::IpAddr::V6(ip) => mix(&ip.octets()),
    }
    mix(&addr.port().to_be_bytes());
    key | 1
}
