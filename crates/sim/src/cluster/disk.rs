//! Media that lose their power in the middle of something, and media that fail.
//!
//! What a crash leaves is `pmem`'s crash image. Here is *when*: a node that is to lose its power within so many syncs loses it in the
//! middle of whatever its process does then, and that goes on with a medium of which nothing will be left.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};

/// Of what is not durable nothing is left.
struct Least;

impl Choices for Least {
    fn pick(&mut self, _options: usize) -> usize {
        0
    }
}

/// The power of a node: all of its disks lose it at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Power(Arc<Mutex<Supply>>);

#[derive(Debug, Default)]
struct Supply {
    /// How many more syncs there are before it goes, and what decides what is left.
    goes: Option<(u64, u64)>,
    /// It is gone; what decides what is left.
    gone: Option<u64>,
}

impl Power {
    fn lock(&self) -> MutexGuard<'_, Supply> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes after so many more syncs.
    pub(super) fn goes_after(&self, syncs: u64, salt: u64) {
        self.lock().goes = Some((syncs, salt));
    }

    /// Takes a loss of power back that was to come.
    pub(super) fn stays(&self) {
        self.lock().goes = None;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.lock().gone.is_some()
    }

    fn syncs(&self) {
        let mut supply = self.lock();
        match supply.goes {
            Some((0, salt)) => (supply.goes, supply.gone) = (None, Some(salt)),
            Some((left, salt)) => supply.goes = Some((left - 1, salt)),
            None => {}
        }
    }
}

/// A medium of a node. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    image: CrashImage,
    power: Power,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fails: bool,
    fails_once: bool,
    syncs: u64,
    /// A sync has failed.
    has_failed: bool,
    /// What was left when the power went.
    left: Option<CrashImage>,
}

impl Disk {
    pub(super) fn new(len: u64, domain: PersistenceDomain, power: &Power) -> Self {
        Self::of(CrashImage::new(len, domain), power)
    }

    fn of(image: CrashImage, power: &Power) -> Self {
        Self(Arc::new(Inner { image, power: power.clone(), state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk after a failure, as whoever comes next finds it; it does not fail any more.
    pub(super) fn crash(&self, failure: Failure, salt: u64, power: &Power) -> Self {
        let left = self.lock().left.take();
        let left = left.unwrap_or_else(|| self.0.image.crash(failure, &mut Seeded::new(salt)));
        Self::of(left, power)
    }

    /// Another disk with what is durable on this one now, and nothing of what may be.
    pub(super) fn durable(&self) -> Self {
        Self::of(self.0.image.crash(Failure::PowerLoss, &mut Least), &Power::default())
    }

    /// All syncs fail from now on.
    pub(super) fn fail(&self) {
        self.lock().fails = true;
    }

    /// The next sync fails.
    pub(super) fn fail_once(&self) {
        self.lock().fails_once = true;
    }

    /// How many syncs there were.
    pub(super) fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Whether a sync has failed since the machine was started: whatever was stored before may not be durable.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Makes these lines durable and nothing else, as a device does that goes past the caches.
    pub(super) fn persist_alone(&self, range: Range<u64>) -> io::Result<()> {
        self.sync(|image| {
            image.persist_alone(range);
            Ok(())
        })
    }

    /// What happens to a medium without power has no consequences.
    fn image(&self) -> &CrashImage {
        if let Some(salt) = self.0.power.lock().gone {
            let mut state = self.lock();
            if state.left.is_none() {
                state.left = Some(self.0.image.crash(Failure::PowerLoss, &mut Seeded::new(salt)));
            }
        }
        &self.0.image
    }

    fn sync(&self, sync: impl FnOnce(&CrashImage) -> io::Result<()>) -> io::Result<()> {
        self.0.power.syncs();
        let image = self.image();
        let mut state = self.lock();
        state.syncs += 1;
        if state.left.is_some() {
            state.has_failed = true;
            return Err(io::Error::other("the power is gone"));
        }
        if state.fails || std::mem::take(&mut state.fails_once) {
            state.has_failed = true;
            return Err(io::Error::other("the simulated medium failed"));
        }
        sync(image)
    }
}

impl Medium for Disk {
    fn len(&self) -> u64 {
        self.0.image.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.image.read(offset, into);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.image().write(offset, bytes);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.0.image.load_u64(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.image().store_u64(offset, value);
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.image().compare_and_swap(offset, compare, swap)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.image().fetch_add(offset, add)
    }

    fn pwb(&self, range: Range<u64>) {
        self.image().pwb(range);
    }

    fn pfence(&self) -> io::Result<()> {
        self.sync(CrashImage::pfence)
    }

    fn psync(&self) -> io::Result<()> {
        self.sync(CrashImage::psync)
    }

    fn failure(&self) -> io::Result<()> {
        match self.has_failed() {
            true => Err(io::Error::other("the simulated medium failed")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_the_power_has_gone_leaves_nothing_on_any_disk() {
        let power = Power::default();
        let disks = [0, 1].map(|_| Disk::new(128, PersistenceDomain::Adr, &power));
        power.goes_after(1, 7);
        for value in 1..4 {
            for disk in &disks {
                disk.store_u64(0, value);
                let synced = disk.persist(0..8).is_ok();
                assert_eq!(synced, value == 1 && !power.is_gone(), "{value}");
            }
        }
        assert!(power.is_gone());
        let again = Power::default();
        let left = disks.map(|disk| disk.crash(Failure::PowerLoss, 1, &again).load_u64(0));
        assert!(left[0] == 1 && left[1] <= 1, "{left:?}");
    }

    #[test]
    fn a_medium_that_fails_once_takes_the_next_sync_and_one_that_fails_takes_none() {
        let disk = Disk::new(128, PersistenceDomain::Adr, &Power::default());
        disk.fail_once();
        assert!(disk.persist(0..8).is_err() && disk.persist_alone(0..8).is_ok());
        disk.fail();
        assert!(disk.persist(0..8).is_err() && disk.pfence().is_err() && disk.persist_alone(0..8).is_err());
        assert_eq!(disk.syncs(), 5);
    }
}
