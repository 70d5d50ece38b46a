//! Address handles: where a UD send goes.

use remanence_rnic::AhAttr;
use remanence_rnic::{AhHandle, UdDest};
use remanence_wire::{Qkey, Qpn};

use crate::error::Error;
use crate::pd::Pd;

/// An address handle. Sends already posted with it still leave after it is gone.
#[derive(Debug)]
pub struct Ah {
    raw: AhHandle,
    pd: Pd,
}

impl Ah {
    pub(crate) fn new(pd: &Pd, attr: &AhAttr) -> Result<Self, Error> {
        let raw = pd.inner.handle.lock.lock().device.create_ah(pd.inner.raw, attr)?;
        Ok(Self { raw, pd: pd.clone() })
    }

    /// Names it in work requests.
    #[must_use]
    pub fn raw(&self) -> AhHandle {
        self.raw
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The destination of a send to one QP at this address.
    #[must_use]
    pub fn dest(&self, qpn: Qpn, qkey: Qkey) -> UdDest {
        UdDest { ah: self.raw, qpn, qkey }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        if let Some(mut driver) = self.pd.inner.handle.lock.lock_to_drop() {
            let _ = driver.device.destroy_ah(self.raw);
        }
    }
}
