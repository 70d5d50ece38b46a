//! Memory regions and memory windows: what peers, and our own work requests, may reach.

use remanence_pmem::Region;
use remanence_rnic::Access;
use remanence_rnic::MrAttr;
use remanence_rnic::VerbError;
use remanence_rnic::{MwHandle, MwType, RemoteAddr, Sge};
use remanence_rnic::{RegionId, Span};
use remanence_wire::{Lkey, Rkey};

use crate::error::Error;
use crate::pd::Pd;

/// A registered memory region. Dropping it deregisters it: from then on its keys reach nothing, and messages half
/// way in or out fail. Dropped while a memory window is bound to it, it stays registered until the device closes;
/// use [`dereg`](Self::dereg) to be told.
#[derive(Debug)]
pub struct Mr {
    raw: remanence_rnic::Mr,
    id: RegionId,
    region: Region,
    pd: Pd,
    offset: u64,
    len: u64,
    iova: u64,
    live: bool,
}

impl Mr {
    pub(crate) fn new(
        pd: &Pd,
        region: &Region,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Self, Error> {
        if !region.contains(offset, len) {
            return Err(VerbError::InvalidArgument("the range does not lie in the region").into());
        }
        check_present(region, offset, len, access)?;
        let mut driver = pd.inner.handle.lock.lock();
        let driver = &mut *driver;
        let id = driver.memory.insert(region.clone());
        let attr = MrAttr { span: Span { region: id, offset, len }, iova, access };
        match driver.device.reg_mr(pd.inner.raw, &attr, &driver.memory) {
            Ok(raw) => {
                let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
                Ok(Self { raw, id, region: region.clone(), pd: pd.clone(), offset, len, iova, live: true })
            }
            Err(e) => {
                driver.memory.remove(id);
                Err(e.into())
            }
        }
    }

    /// Names it in our own work requests.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.raw.lkey
    }

    /// Names it to peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.raw.rkey
    }

    /// Virtual address of its first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty MR is legal and of no interest")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The memory beneath; the MR begins at [`offset`](Self::offset).
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where in the region it begins.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// A buffer of `len` bytes, `offset` bytes from the start of the MR. (Bounds are checked when it is used.)
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.iova.wrapping_add(offset), len, lkey: self.raw.lkey }
    }

    /// The place `offset` bytes from the start of the MR, as a peer names it.
    #[must_use]
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.iova.wrapping_add(offset), rkey: self.raw.rkey }
    }

    /// Lets connected peers on this host reach the memory with no packet, on links that can do that (shared memory);
    /// elsewhere nothing changes. WRITE, READ, CAS, FAA, ATOMIC WRITE and FLUSH to global visibility then cost the
    /// peer some tens of nanoseconds, and this side nothing.
    ///
    /// The peer *process* maps the memory: that it keeps to bounds and rights, and leaves the memory alone after
    /// [`dereg`](Self::dereg), is up to the verbs there. The link lets processes of the same user in, of root, and of
    /// users that its configuration names.
    ///
    /// # Errors
    /// The MR does not cover a whole region without a name (`Region::memfd`) with remote read and write.
    pub fn share_in_place(&self) -> Result<(), Error> {
        let mut guard = self.pd.inner.handle.lock.lock();
        let driver = &mut *guard;
        driver.in_place.share(&driver.device, self.pd.inner.raw, &self.raw, &self.region)
    }

    /// Deregisters it now. If peers reach it in place, this waits for the end of what they are in the middle of.
    ///
    /// # Errors
    /// `Busy`: a memory window is bound to it; it stays registered.
    pub fn dereg(&mut self) -> Result<(), VerbError> {
        if self.live {
            let mut driver = self.pd.inner.handle.lock.lock();
            driver.device.dereg_mr(self.raw.handle)?;
            driver.memory.remove(self.id);
            self.live = false;
            let withdrawal = driver.in_place.mr_gone(&self.raw);
            drop(driver);
            withdrawal.wait();
        }
        Ok(())
    }

    /// Changes the rights, or the memory, or the domain, in place: the keys stay (`ibv_rereg_mr`). It is
    /// no longer shared in place.
    ///
    /// # Errors
    /// As for a registration; the MR is then as it was. `Busy`: a memory window is bound to it.
    pub fn rereg(&mut self, pd: Option<&Pd>, memory: Option<&MrMemory<'_>>) -> Result<(), Error> {
        if let Some(new) = memory {
            if !new.region.contains(new.offset, new.len) {
                return Err(VerbError::InvalidArgument("the range does not lie in the region").into());
            }
            check_present(new.region, new.offset, new.len, new.access)?;
        }
        let mut guard = self.pd.inner.handle.lock.lock();
        let driver = &mut *guard;
        let new_pd = pd.map(|pd| pd.inner.raw);
        let Some(new) = memory else {
            driver.device.rereg_mr(self.raw.handle, new_pd, None, &driver.memory)?;
            let withdrawal = driver.in_place.mr_gone(&self.raw);
            drop(guard);
            withdrawal.wait();
            self.pd = pd.unwrap_or(&self.pd).clone();
            return Ok(());
        };
        let id = driver.memory.insert(new.region.clone());
        let span = Span { region: id, offset: new.offset, len: new.len };
        let attr = MrAttr { span, iova: new.iova, access: new.access };
        if let Err(e) = driver.device.rereg_mr(self.raw.handle, new_pd, Some(&attr), &driver.memory) {
            driver.memory.remove(id);
            return Err(e.into());
        }
        driver.memory.remove(self.id);
        let withdrawal = driver.in_place.mr_gone(&self.raw);
        drop(guard);
        withdrawal.wait();
        self.id = id;
        self.region = new.region.clone();
        (self.offset, self.len) = (new.offset, new.len);
        self.iova = if new.access.contains(Access::ZERO_BASED) { 0 } else { new.iova };
        self.pd = pd.unwrap_or(&self.pd).clone();
        Ok(())
    }
}

/// Borrowed memory must be there, and allow what is asked for; as when a network card pins it.
fn check_present(region: &Region, offset: u64, len: u64, access: Access) -> Result<(), Error> {
    if access.contains(Access::ON_DEMAND) {
        return Ok(());
    }
    let present = region.check_present(offset, len, access.contains(Access::LOCAL_WRITE));
    present.map_err(|e| Error::os("the memory to be registered is not there, or not to be used so", e))
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        if let Some(mut driver) = self.pd.inner.handle.lock.lock_to_drop()
            && driver.device.dereg_mr(self.raw.handle).is_ok()
        {
            driver.memory.remove(self.id);
            let withdrawal = driver.in_place.mr_gone(&self.raw);
            drop(driver);
            withdrawal.wait();
        }
    }
}

/// New memory and rights of an MR: the arguments of [`Pd::reg_mr_at`].
#[derive(Clone, Copy, Debug)]
pub struct MrMemory<'a> {
    /// The region that the MR's bytes are in.
    pub region: &'a Region,
    /// Where in it the MR begins.
    pub offset: u64,
    /// How many bytes of the region the MR covers.
    pub len: u64,
    /// Virtual address of the first byte.
    pub iova: u64,
    /// What the device and peers may do with the bytes.
    pub access: Access,
}

/// A memory window. Dropping it takes it away from peers.
#[derive(Debug)]
pub struct Mw {
    raw: MwHandle,
    rkey: Rkey,
    ty: MwType,
    pd: Pd,
}

impl Mw {
    pub(crate) fn new(pd: &Pd, ty: MwType) -> Result<Self, Error> {
        let (raw, rkey) = pd.inner.handle.lock.lock().device.alloc_mw(pd.inner.raw, ty)?;
        Ok(Self { raw, rkey, ty, pd: pd.clone() })
    }

    /// Names it in work requests.
    #[must_use]
    pub fn raw(&self) -> MwHandle {
        self.raw
    }

    /// The rkey that it was allocated with. A type 1 window gets another with each bind; the consumer chooses the
    /// low byte of a type 2 window's.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// The type, which says who may bind the window and how: 1 by a verb, 2 by a work request.
    #[must_use]
    pub fn ty(&self) -> MwType {
        self.ty
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        if let Some(mut driver) = self.pd.inner.handle.lock.lock_to_drop() {
            let _ = driver.device.dealloc_mw(self.raw);
        }
    }
}
