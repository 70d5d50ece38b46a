//! Memory windows: rights to a part of an MR that work requests give and take.
//!
//! Read first: IBA Vol 1, 10.6.7. A type 1 window is reached through any QP of its PD and is bound by
//! [`Device::bind_mw`]; a type 2 window (2B here) only through the QP that bound it, with an rkey whose low
//! 8 bits the consumer chooses.

use remanence_wire::{Qpn, Rkey};

use crate::device::Device;
use crate::error::{PostError, VerbError};
use crate::keys::{Entry, MwEntry, VARIANT_MASK};
use crate::pd::PdHandle;
use crate::wr::{Data, MwBind, MwHandle, MwType, SendFlags, SendOp, SendWr};

impl Device {
    /// Allocates a memory window that is bound to nothing.
    pub fn alloc_mw(&mut self, pd: PdHandle, ty: MwType) -> Result<(MwHandle, Rkey), VerbError> {
        self.check_pd(pd)?;
        if self.shared.keys.counts().1 >= self.shared.config.max_mw {
            return Err(VerbError::NoRoom("MW"));
        }
        let random = self.shared.random();
        let entry = |key| Entry::Mw(MwEntry { key, promised: key, pd, ty, binding: None });
        let (_, key) = self.shared.keys.insert(random, entry).ok_or(VerbError::NoRoom("MW"))?;
        self.use_pd(pd);
        Ok((MwHandle(key & VARIANT_MASK), Rkey(key)))
    }

    /// Frees a memory window, bound or not.
    pub fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), VerbError> {
        let slot = self.shared.keys.window(mw).ok_or(VerbError::NoSuchObject("MW"))?;
        let entry = self.shared.keys.mw(slot).expect("found above");
        let (pd, binding) = (entry.pd, entry.binding);
        self.shared.keys.unpin(binding);
        self.shared.keys.remove(slot);
        self.release_pd(pd);
        Ok(())
    }

    /// Posts the binding of a type 1 window and returns the rkey that it will have (`ibv_bind_mw`).
    pub fn bind_mw(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        flags: SendFlags,
        mw: MwHandle,
        bind: MwBind,
    ) -> Result<Rkey, PostError> {
        let slot = self.shared.keys.window(mw).ok_or(PostError::InvalidOperation)?;
        let entry = self.shared.keys.mw(slot).expect("found above");
        if entry.ty != MwType::Type1 {
            return Err(PostError::InvalidOperation);
        }
        // A new variant at every bind, so that peers who know the old rkey lose the window: also of a bind that is posted
        // and not carried out yet.
        let rkey = Rkey(entry.key & VARIANT_MASK | (entry.promised.wrapping_add(1) & !VARIANT_MASK));
        let op = SendOp::BindMw { mw, rkey, bind };
        self.post_send(qpn, &SendWr { wr_id, op, data: Data::Sges(&[]), flags, ud: None })?;
        self.shared.keys.mw_mut(slot).expect("posting frees no window").promised = rkey.0;
        Ok(rkey)
    }
}
