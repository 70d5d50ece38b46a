//! Protection domains: which keys go with which QPs.

use crate::device::Device;
use crate::error::VerbError;

/// Names a protection domain of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PdHandle(pub u32);

/// A PD only counts who uses it, as it may not go before they do (IBA Vol 1, 11.2.1).
#[derive(Debug, Default)]
pub(crate) struct Pd {
    pub(crate) users: u32,
}

impl Device {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdHandle, VerbError> {
        self.shared.pds.insert(Pd::default()).map(PdHandle).ok_or(VerbError::NoRoom("PD"))
    }

    /// Frees a protection domain that no MR, MW, AH, SRQ or QP uses.
    pub fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), VerbError> {
        match self.shared.pds.get(pd.0) {
            None => Err(VerbError::NoSuchObject("PD")),
            Some(Pd { users: 0 }) => {
                self.shared.pds.remove(pd.0);
                Ok(())
            }
            Some(_) => Err(VerbError::Busy("PD")),
        }
    }

    pub(crate) fn check_pd(&self, pd: PdHandle) -> Result<(), VerbError> {
        self.shared.pds.get(pd.0).map(|_| ()).ok_or(VerbError::NoSuchObject("PD"))
    }

    pub(crate) fn use_pd(&mut self, pd: PdHandle) {
        self.shared.pds.get_mut(pd.0).expect("checked before").users += 1;
    }

    pub(crate) fn release_pd(&mut self, pd: PdHandle) {
        let users = &mut self.shared.pds.get_mut(pd.0).expect("a PD outlives its users").users;
        *users = users.checked_sub(1).expect("every user was counted");
    }
}
