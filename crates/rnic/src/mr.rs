//! Memory regions: registration, change, deregistration.
//!
//! Read first: IBA Vol 1, 10.6.3 (registration) and Annex A19 for the flush rights. The checks that the keys
//! are for are in `keys.rs`.

use remanence_wire::{Lkey, Rkey};

use crate::access::{Access, PlacementSupport};
use crate::device::Device;
use crate::error::VerbError;
use crate::keys::{Entry, MrEntry, RegionOffset};
use crate::memory::{Memory, Span};
use crate::pd::PdHandle;

/// Names a memory region of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MrHandle(pub u32);

/// What to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrAttr {
    /// The bytes. The caller vouches that they lie inside the region.
    pub span: Span,
    /// Virtual address of the first byte; not looked at with [`Access::ZERO_BASED`].
    pub iova: u64,
    /// What the device and peers may do with the bytes.
    pub access: Access,
}

/// A registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// Names it in verbs.
    pub handle: MrHandle,
    /// Names it in work requests of its own consumer.
    pub lkey: Lkey,
    /// Names it to peers. (The same number: who holds the lkey of an MR without remote rights gains nothing.)
    pub rkey: Rkey,
}

/// The rules that rights obey on their own and with the memory beneath.
fn check_attr(attr: &MrAttr, mem: &impl Memory) -> Result<u64, VerbError> {
    let access = attr.access;
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(VerbError::InvalidArgument("remote write or atomic rights need the local write right"));
    }
    let support = mem.placement_support(attr.span.region);
    if access.contains(Access::FLUSH_GLOBAL) && !support.contains(PlacementSupport::GLOBAL_VISIBILITY) {
        return Err(VerbError::Unsupported("this memory cannot be flushed to global visibility"));
    }
    if access.contains(Access::FLUSH_PERSISTENT) && !support.contains(PlacementSupport::PERSISTENCE) {
        return Err(VerbError::Unsupported(
            "this memory cannot be flushed to persistence: it has no such domain",
        ));
    }
    let base = if access.contains(Access::ZERO_BASED) { 0 } else { attr.iova };
    if base.checked_add(attr.span.len).is_none() || attr.span.offset.checked_add(attr.span.len).is_none() {
        return Err(VerbError::InvalidArgument("the memory region wraps around the address space"));
    }
    Ok(base)
}

impl Device {
    /// Registers a memory region; its length may be zero.
    pub fn reg_mr(&mut self, pd: PdHandle, attr: &MrAttr, mem: &impl Memory) -> Result<Mr, VerbError> {
        self.check_pd(pd)?;
        let base = check_attr(attr, mem)?;
        if self.shared.keys.counts().0 >= self.shared.config.max_mr {
            return Err(VerbError::NoRoom("MR"));
        }
        let random = self.shared.random();
        let place = RegionOffset { region: attr.span.region, offset: attr.span.offset };
        let entry = |key| {
            Entry::Mr(MrEntry { key, pd, access: attr.access, base, len: attr.span.len, place, windows: 0 })
        };
        let (_, key) = self.shared.keys.insert(random, entry).ok_or(VerbError::NoRoom("MR"))?;
        self.use_pd(pd);
        Ok(Mr { handle: MrHandle(key), lkey: Lkey(key), rkey: Rkey(key) })
    }

    /// Changes rights, memory or PD of a region in place, keys kept (`ibv_rereg_mr`). `None` keeps a part.
    pub fn rereg_mr(
        &mut self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        attr: Option<&MrAttr>,
        mem: &impl Memory,
    ) -> Result<(), VerbError> {
        let slot = self.shared.keys.find_mr(mr.0).ok_or(VerbError::NoSuchObject("MR"))?;
        let old = self.shared.keys.mr(slot).expect("found above");
        if old.windows > 0 {
            return Err(VerbError::Busy("MR"));
        }
        let old_pd = old.pd;
        if let Some(pd) = pd {
            self.check_pd(pd)?;
        }
        let base = attr.map(|attr| check_attr(attr, mem)).transpose()?;
        let entry = self.shared.keys.mr_mut(slot).expect("found above");
        if let (Some(attr), Some(base)) = (attr, base) {
            entry.access = attr.access;
            entry.base = base;
            entry.len = attr.span.len;
            entry.place = RegionOffset { region: attr.span.region, offset: attr.span.offset };
        }
        if let Some(pd) = pd {
            entry.pd = pd;
            self.use_pd(pd);
            self.release_pd(old_pd);
        }
        Ok(())
    }

    /// Deregisters a region. From here on its keys reach nothing, also for messages that are half way in or
    /// out; refused while a memory window is bound to it.
    pub fn dereg_mr(&mut self, mr: MrHandle) -> Result<(), VerbError> {
        let slot = self.shared.keys.find_mr(mr.0).ok_or(VerbError::NoSuchObject("MR"))?;
        let entry = self.shared.keys.mr(slot).expect("found above");
        if entry.windows > 0 {
            return Err(VerbError::Busy("MR"));
        }
        let pd = entry.pd;
        self.shared.keys.remove(slot);
        self.release_pd(pd);
        Ok(())
    }
}
