//! Address handles: where a packet goes.

use std::net::IpAddr;

use remanence_wire::Gid;

use crate::device::{Device, Shared};
use crate::error::VerbError;
use crate::pd::PdHandle;
use crate::wr::AhHandle;

/// The address vector of a QP, an AH or a MAD: `ibv_ah_attr` with its global route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AhAttr {
    /// The GID of the peer that packets go to.
    pub dgid: Gid,
    /// Our own address: an index into the GID table.
    pub sgid_index: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Traffic class or TOS; the ECN bits are the engine's.
    pub traffic_class: u8,
    /// IPv6 flow label; if not zero it also chooses the UDP source port, as `ibv_flow_label_to_udp_sport` does.
    pub flow_label: u32,
}

impl AhAttr {
    /// To `dgid` from the first entry of the GID table, with the usual hop limit.
    #[must_use]
    pub const fn new(dgid: Gid) -> Self {
        Self { dgid, sgid_index: 0, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// An address vector resolved to what leaves on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Av {
    pub(crate) attr: AhAttr,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
}

#[derive(Debug)]
pub(crate) struct Ah {
    pub(crate) pd: PdHandle,
    pub(crate) av: Av,
}

impl Shared {
    /// Resolves an address vector against the GID table.
    pub(crate) fn resolve(&self, attr: &AhAttr) -> Result<Av, VerbError> {
        let sgid = self.gid(attr.sgid_index).ok_or(VerbError::InvalidArgument("no GID at sgid_index"))?;
        let (src, dst) = (sgid.to_ip(), attr.dgid.to_ip());
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(VerbError::InvalidArgument(
                "source and destination GID are of different IP versions",
            ));
        }
        if dst.is_unspecified() {
            return Err(VerbError::InvalidArgument("the destination GID is empty"));
        }
        Ok(Av { attr: *attr, src, dst })
    }
}

impl Device {
    /// Creates an address handle for UD sends.
    pub fn create_ah(&mut self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbError> {
        self.check_pd(pd)?;
        let av = self.shared.resolve(attr)?;
        let handle = self.shared.ahs.insert(Ah { pd, av }).ok_or(VerbError::NoRoom("AH"))?;
        self.use_pd(pd);
        Ok(AhHandle(handle))
    }

    /// Destroys an address handle. Sends already posted with it still leave.
    pub fn destroy_ah(&mut self, ah: AhHandle) -> Result<(), VerbError> {
        let ah = self.shared.ahs.remove(ah.0).ok_or(VerbError::NoSuchObject("AH"))?;
        self.release_pd(ah.pd);
        Ok(())
    }
}
