//! Protection domains: everything that may touch each other shares one.

use std::sync::Arc;

use remanence_pmem::Region;
use remanence_rnic::Access;
use remanence_rnic::AhAttr;
use remanence_rnic::MwType;
use remanence_rnic::PdHandle;
use remanence_rnic::SrqAttr;
use remanence_rnic::VerbError;

use crate::ah::Ah;
use crate::context::{Context, Handle};
use crate::error::Error;
use crate::mr::{Mr, Mw};
use crate::qp::{Qp, QpOptions};
use crate::srq::Srq;

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) raw: PdHandle,
    pub(crate) handle: Arc<Handle>,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if let Some(mut driver) = self.handle.lock.lock_to_drop() {
            // Objects of the domain own it, so none is left; unless it was deallocated by name.
            let _ = driver.device.dealloc_pd(self.raw);
        }
    }
}

/// A protection domain. Clones are the same domain; it goes with the last clone and the last object in it.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(crate) inner: Arc<PdInner>,
}

impl Pd {
    pub(crate) fn new(handle: &Arc<Handle>) -> Result<Self, Error> {
        let raw = handle.lock.lock().device.alloc_pd()?;
        Ok(Self { inner: Arc::new(PdInner { raw, handle: Arc::clone(handle) }) })
    }

    /// The device that the PD belongs to.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { handle: Arc::clone(&self.inner.handle) }
    }

    /// Names it among the device's domains.
    #[must_use]
    pub fn raw(&self) -> PdHandle {
        self.inner.raw
    }

    /// Registers a whole region. Addresses count from 0, so that a peer's address is an offset.
    ///
    /// # Errors
    /// As [`reg_mr_at`](Self::reg_mr_at).
    pub fn reg_mr(&self, region: &Region, access: Access) -> Result<Mr, Error> {
        self.reg_mr_at(region, 0, region.len(), 0, access)
    }

    /// Registers `len` bytes of a region from `offset`, whose first byte has the virtual address `iova`.
    ///
    /// # Errors
    /// The range does not lie in the region, the rights contradict each other, or the region cannot honour the
    /// flushes that are asked for: see `region.domain()`.
    pub fn reg_mr_at(
        &self,
        region: &Region,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        Mr::new(self, region, offset, len, iova, access)
    }

    /// Allocates a memory window.
    ///
    /// # Errors
    /// The device has no room.
    pub fn alloc_mw(&self, ty: MwType) -> Result<Mw, Error> {
        Mw::new(self, ty)
    }

    /// Creates an address handle for UD sends.
    ///
    /// # Errors
    /// The address cannot be reached from the GID that it names, or the device has no room.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, Error> {
        Ah::new(self, attr)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// A size is beyond the device's, or the device has no room.
    pub fn create_srq(&self, attr: &SrqAttr) -> Result<Srq, Error> {
        Srq::new(self, attr)
    }

    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// A size is beyond the device's, objects do not fit together, or the device has no room.
    pub fn create_qp(&self, options: &QpOptions<'_>) -> Result<Qp, Error> {
        Qp::new(self, options)
    }

    /// Frees the domain now, if nothing uses it.
    ///
    /// # Errors
    /// `Busy`: an MR, MW, AH, SRQ or QP is still in it.
    pub fn dealloc(&self) -> Result<(), VerbError> {
        self.inner.handle.lock.lock().device.dealloc_pd(self.inner.raw)
    }
}
