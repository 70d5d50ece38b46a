//! The table of memory keys: which bytes an lkey or rkey reaches, and with which rights.
//!
//! Read first: IBA Vol 1, 10.6 (memory management) and 10.6.7 (memory access checks). Every access to registered
//! memory passes through [`Keys::local`] or [`Keys::remote`]; what comes out is a place inside one region.
//!
//! Handles are the keys that an object was created with (without the variant, for a window), so that a handle
//! kept too long finds nothing.
//!
//! A key is `random | slot | variant`: the slot finds the entry with one index, and the whole key must then
//! match. The random bits only make a stray or guessed key unlikely to match; the variant (low 8 bits) belongs
//! to the consumer of a type 2 memory window.

use remanence_wire::{Lkey, Qpn, Rkey};

use crate::access::Access;
use crate::memory::RegionId;
use crate::pd::PdHandle;
use crate::wr::{MwHandle, MwType};

/// All of a key but its variant.
pub(crate) const VARIANT_MASK: u32 = !0xff;

/// The place of the first byte of a checked range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionOffset {
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
}

#[derive(Debug)]
pub(crate) struct MrEntry {
    pub(crate) key: u32,
    pub(crate) pd: PdHandle,
    pub(crate) access: Access,
    /// First virtual address.
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// Of the first byte.
    pub(crate) place: RegionOffset,
    /// Windows bound to it, which keep it registered.
    pub(crate) windows: u32,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// Slot of the MR beneath.
    pub(crate) mr: u32,
    pub(crate) access: Access,
    /// First virtual address as peers name it.
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// Of the first byte.
    pub(crate) place: RegionOffset,
    /// Type 2B: the only QP through which the window can be reached.
    pub(crate) qpn: Option<Qpn>,
}

#[derive(Debug)]
pub(crate) struct MwEntry {
    pub(crate) key: u32,
    /// Type 1: the key that the last bind posted will give it.
    pub(crate) promised: u32,
    pub(crate) pd: PdHandle,
    pub(crate) ty: MwType,
    pub(crate) binding: Option<Binding>,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Mr(MrEntry),
    Mw(MwEntry),
}

/// A range that is checked against an entry: `len` bytes at `addr` lie within `span` bytes at `base`.
fn within(base: u64, span: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.checked_sub(base)?;
    (offset <= span && len <= span - offset).then_some(offset)
}

impl MrEntry {
    fn at(&self, addr: u64, len: u64) -> Option<RegionOffset> {
        let offset = within(self.base, self.len, addr, len)?;
        Some(RegionOffset { region: self.place.region, offset: self.place.offset + offset })
    }
}

/// The table. Handles of MRs and MWs are slots of it.
#[derive(Debug)]
pub(crate) struct Keys {
    slots: Vec<Option<Entry>>,
    free: std::collections::VecDeque<u32>,
    slot_bits: u32,
    mrs: u32,
    mws: u32,
    /// Type 2 windows that are bound.
    bound: u32,
}

impl Keys {
    /// A table of up to `max` keys. Slot 0 stays empty, so that no key is zero.
    pub(crate) fn new(max: u32) -> Self {
        let slot_bits = (max.saturating_add(1)).next_power_of_two().trailing_zeros().clamp(8, 24);
        Self {
            slots: vec![None],
            free: std::collections::VecDeque::new(),
            slot_bits,
            mrs: 0,
            mws: 0,
            bound: 0,
        }
    }

    pub(crate) const fn counts(&self) -> (u32, u32) {
        (self.mrs, self.mws)
    }

    const fn slot_of(&self, key: u32) -> usize {
        ((key >> 8) & ((1 << self.slot_bits) - 1)) as usize
    }

    /// Adds an entry whose key is made of `random`; returns its slot and key.
    pub(crate) fn insert(&mut self, random: u32, make: impl FnOnce(u32) -> Entry) -> Option<(u32, u32)> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                if slot >> self.slot_bits != 0 {
                    return None;
                }
                self.slots.push(None);
                slot
            }
        };
        let slot_mask = ((1 << self.slot_bits) - 1) << 8;
        let key = (random & !slot_mask) | slot << 8;
        let entry = make(key);
        match entry {
            Entry::Mr(_) => self.mrs += 1,
            Entry::Mw(_) => self.mws += 1,
        }
        self.slots[slot as usize] = Some(entry);
        Some((slot, key))
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Entry> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        match entry {
            Entry::Mr(_) => self.mrs -= 1,
            Entry::Mw(_) => self.mws -= 1,
        }
        self.free.push_back(slot);
        Some(entry)
    }

    pub(crate) fn mr(&self, slot: u32) -> Option<&MrEntry> {
        match self.slots.get(slot as usize)?.as_ref()? {
            Entry::Mr(mr) => Some(mr),
            Entry::Mw(_) => None,
        }
    }

    pub(crate) fn mr_mut(&mut self, slot: u32) -> Option<&mut MrEntry> {
        match self.slots.get_mut(slot as usize)?.as_mut()? {
            Entry::Mr(mr) => Some(mr),
            Entry::Mw(_) => None,
        }
    }

    pub(crate) fn mw(&self, slot: u32) -> Option<&MwEntry> {
        match self.slots.get(slot as usize)?.as_ref()? {
            Entry::Mw(mw) => Some(mw),
            Entry::Mr(_) => None,
        }
    }

    pub(crate) fn mw_mut(&mut self, slot: u32) -> Option<&mut MwEntry> {
        match self.slots.get_mut(slot as usize)?.as_mut()? {
            Entry::Mw(mw) => Some(mw),
            Entry::Mr(_) => None,
        }
    }

    /// The slot of the live MR that a key names.
    pub(crate) fn find_mr(&self, key: u32) -> Option<u32> {
        let slot = self.slot_of(key);
        let mr = self.mr(slot as u32)?;
        (mr.key == key).then_some(slot as u32)
    }

    /// The slot of the live MW of a handle.
    pub(crate) fn window(&self, handle: MwHandle) -> Option<u32> {
        let slot = self.slot_of(handle.0) as u32;
        (self.mw(slot)?.key & VARIANT_MASK == handle.0).then_some(slot)
    }

    /// The slot of the live MW that a key names.
    pub(crate) fn find_mw(&self, key: u32) -> Option<u32> {
        let slot = self.slot_of(key);
        let mw = self.mw(slot as u32)?;
        (mw.key == key).then_some(slot as u32)
    }

    /// Checks a local buffer: `len` bytes at `addr` of the MR `lkey`, in the QP's PD, with the right `need`.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdHandle,
        lkey: Lkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Option<RegionOffset> {
        match self.slots.get(self.slot_of(lkey.0))? {
            Some(Entry::Mr(mr)) if mr.key == lkey.0 && mr.pd == pd && mr.access.contains(need) => {
                mr.at(addr, len)
            }
            _ => None,
        }
    }

    /// Checks an access by a peer: `len` bytes at `addr` under `rkey`, through the QP `qpn` of `pd`.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: PdHandle,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Option<RegionOffset> {
        match self.slots.get(self.slot_of(rkey.0))?.as_ref()? {
            Entry::Mr(mr) => {
                if mr.key != rkey.0 || mr.pd != pd || !mr.access.contains(need) {
                    return None;
                }
                mr.at(addr, len)
            }
            Entry::Mw(mw) => {
                let binding = mw.binding.as_ref()?;
                let reachable = mw.key == rkey.0
                    && mw.pd == pd
                    && binding.qpn.is_none_or(|owner| owner == qpn)
                    && binding.access.contains(need);
                if !reachable {
                    return None;
                }
                let offset = within(binding.base, binding.len, addr, len)?;
                Some(RegionOffset { region: binding.place.region, offset: binding.place.offset + offset })
            }
        }
    }

    /// First address and length of all that an rkey covers (FLUSH of a whole memory region).
    pub(crate) fn extent(&self, rkey: Rkey) -> Option<(u64, u64)> {
        match self.slots.get(self.slot_of(rkey.0))?.as_ref()? {
            Entry::Mr(mr) => (mr.key == rkey.0).then_some((mr.base, mr.len)),
            Entry::Mw(mw) => {
                let binding = mw.binding.as_ref()?;
                (mw.key == rkey.0).then_some((binding.base, binding.len))
            }
        }
    }

    /// Binds a window: a type 1 window to anything at any time, a type 2 window only when it is free. The new
    /// rkey must keep the window's upper 24 bits (IBA Vol 1, 10.6.7).
    pub(crate) fn bind(&mut self, request: &BindRequest) -> Result<(), BindError> {
        let slot = self.window(request.mw).ok_or(BindError)?;
        let mw = self.mw(slot).expect("found above");
        if mw.pd != request.pd || (mw.key ^ request.rkey.0) & VARIANT_MASK != 0 {
            return Err(BindError);
        }
        let (ty, old) = (mw.ty, mw.binding);
        if ty == MwType::Type2 && (old.is_some() || request.len == 0) {
            return Err(BindError);
        }
        if request.access.contains(Access::ZERO_BASED) && ty == MwType::Type1 {
            return Err(BindError);
        }
        let binding = if request.len == 0 { None } else { Some(self.resolve_binding(ty, request)?) };
        self.unpin(old);
        if let Some(binding) = &binding {
            self.mr_mut(binding.mr).expect("resolved just now").windows += 1;
            self.bound += u32::from(binding.qpn.is_some());
        }
        let mw = self.mw_mut(slot).expect("found above");
        mw.binding = binding;
        mw.key = request.rkey.0;
        Ok(())
    }

    fn resolve_binding(&self, ty: MwType, request: &BindRequest) -> Result<Binding, BindError> {
        let slot = self.find_mr(request.mr.0).ok_or(BindError)?;
        let mr = self.mr(slot).expect("found above");
        let remote_rights = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let rights = request.access & remote_rights;
        if mr.pd != request.pd
            || !mr.access.contains(Access::MW_BIND)
            // A window must not be bound to a zero-based MR (10.6.7: its addresses would mean two things).
            || mr.access.contains(Access::ZERO_BASED)
            // Remote rights to write need the MR's own local right to write; flush rights the MR's own.
            || (rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
                && !mr.access.contains(Access::LOCAL_WRITE))
            || !mr.access.contains(rights & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT))
        {
            return Err(BindError);
        }
        let place = mr.at(request.addr, request.len).ok_or(BindError)?;
        let base = if request.access.contains(Access::ZERO_BASED) { 0 } else { request.addr };
        let qpn = (ty == MwType::Type2).then_some(request.qpn);
        Ok(Binding { mr: slot, access: rights, base, len: request.len, place, qpn })
    }

    /// Takes the binding of a type 2 window away (LOCAL_INV, SEND with invalidate). A type 1 window or an MR
    /// cannot be invalidated. `qpn` must be the QP that bound it.
    pub(crate) fn invalidate(&mut self, pd: PdHandle, qpn: Qpn, rkey: Rkey) -> Result<(), BindError> {
        let slot = self.find_mw(rkey.0).ok_or(BindError)?;
        let mw = self.mw_mut(slot).expect("found above");
        if mw.ty != MwType::Type2 || mw.pd != pd || mw.binding.is_some_and(|b| b.qpn != Some(qpn)) {
            return Err(BindError);
        }
        let old = mw.binding.take();
        self.unpin(old);
        Ok(())
    }

    /// Gives up the windows that a QP bound, when it is reset or destroyed.
    pub(crate) fn unbind_all_of(&mut self, qpn: Qpn) {
        let slots = if self.bound == 0 { 0 } else { self.slots.len() as u32 };
        for slot in 0..slots {
            let Some(mw) = self.mw_mut(slot) else { continue };
            if mw.binding.is_some_and(|binding| binding.qpn == Some(qpn)) {
                let old = mw.binding.take();
                self.unpin(old);
            }
        }
    }

    pub(crate) fn unpin(&mut self, binding: Option<Binding>) {
        if let Some(binding) = binding {
            self.mr_mut(binding.mr).expect("an MR outlives its windows").windows -= 1;
            self.bound -= u32::from(binding.qpn.is_some());
        }
    }
}

/// The arguments of a bind, as the requester executes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindRequest {
    pub(crate) mw: MwHandle,
    pub(crate) rkey: Rkey,
    pub(crate) mr: Lkey,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) pd: PdHandle,
    pub(crate) qpn: Qpn,
}

/// A bind or invalidation that the rules refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BindError;
