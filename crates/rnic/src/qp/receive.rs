//! Receive WQEs: taking one, filling it, completing it. Shared by all transports.

use remanence_wire::packet::Packet;

use super::Qp;
use crate::access::Access;
use crate::device::Shared;
use crate::memory::Memory;
use crate::pd::PdHandle;
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wqe::RecvWqe;
use crate::wr::Sge;

/// The receive WQE of the message that is coming in.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    pub(crate) wqe: RecvWqe,
    pub(crate) taken: bool,
    /// Bytes of the message that are in it.
    pub(crate) received: u32,
}

/// A local buffer that its lkey does not reach, or that is not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalProtection;

/// Visits the parts of a scatter/gather list that hold `len` bytes from `skip` on: each is an address range of
/// one entry, with the offset of its first byte within the `len` bytes.
pub(crate) fn for_each_part<E>(
    sges: &[Sge],
    skip: u64,
    len: usize,
    mut visit: impl FnMut(&Sge, u64, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut done) = (skip, 0);
    for sge in sges {
        if done == len {
            break;
        }
        let size = u64::from(sge.len);
        if skip >= size {
            skip -= size;
            continue;
        }
        let part = (size - skip).min((len - done) as u64) as usize;
        visit(sge, sge.addr.wrapping_add(skip), done, part)?;
        done += part;
        skip = 0;
    }
    debug_assert_eq!(done, len, "the list was checked to hold the bytes");
    Ok(())
}

/// Writes `bytes` into a scatter list from offset `skip` on. Every part is checked before any is written.
pub(crate) fn scatter(
    shared: &Shared,
    pd: PdHandle,
    sges: &[Sge],
    skip: u64,
    bytes: &[u8],
    mem: &mut impl Memory,
) -> Result<(), LocalProtection> {
    let place = |sge: &Sge, addr, part: usize| {
        shared.keys.local(pd, sge.lkey, addr, part as u64, Access::LOCAL_WRITE).ok_or(LocalProtection)
    };
    if let [sge] = sges {
        // One entry is the rule, and needs no second pass.
        if !bytes.is_empty() {
            let at = place(sge, sge.addr.wrapping_add(skip), bytes.len())?;
            mem.write(at.region, at.offset, bytes);
            return if mem.take_fault() { Err(LocalProtection) } else { Ok(()) };
        }
        return Ok(());
    }
    for_each_part(sges, skip, bytes.len(), |sge, addr, _, part| place(sge, addr, part).map(|_| ()))?;
    for_each_part(sges, skip, bytes.len(), |sge, addr, at, part| {
        let to = place(sge, addr, part)?;
        mem.write(to.region, to.offset, &bytes[at..at + part]);
        if mem.take_fault() { Err(LocalProtection) } else { Ok(()) }
    })
}

impl Qp {
    /// Takes the next receive WQE, unless one is already taken (UC and UD keep theirs when a message breaks).
    pub(crate) fn take_receive(&mut self, shared: &mut Shared) -> bool {
        self.receiving.received = 0;
        if self.receiving.taken {
            return true;
        }
        self.receiving.taken = match self.init.srq {
            None => self.rq.pop(&mut self.receiving.wqe),
            Some(handle) => {
                let srq = shared.srqs.get_mut(handle.0).expect("an SRQ outlives its QPs");
                let taken = srq.queue.pop(&mut self.receiving.wqe);
                if taken {
                    shared.check_srq_limit(handle);
                }
                taken
            }
        };
        self.receiving.taken
    }

    /// Whether a receive WQE is at hand.
    pub(crate) fn can_receive(&self, shared: &Shared) -> bool {
        self.receiving.taken
            || match self.init.srq {
                None => self.rq.len() > 0,
                Some(handle) => shared.srqs.get(handle.0).expect("an SRQ outlives its QPs").queue.len() > 0,
            }
    }

    /// Appends a payload to the receive WQE.
    pub(crate) fn fill_receive(
        &mut self,
        shared: &Shared,
        payload: &[u8],
        mem: &mut impl Memory,
    ) -> Result<(), LocalProtection> {
        let receiving = &mut self.receiving;
        let skip = u64::from(receiving.received);
        scatter(shared, self.recv_pd, &receiving.wqe.sges, skip, payload, mem)?;
        receiving.received += payload.len() as u32;
        Ok(())
    }

    /// Completes the receive WQE of a message whose last packet is `packet`.
    pub(crate) fn complete_receive(
        &mut self,
        shared: &mut Shared,
        opcode: WcOpcode,
        packet: &Packet<'_>,
        len: u32,
    ) {
        let wc = Wc {
            byte_len: len,
            imm: packet.imm().map(|imm| imm.imm),
            invalidated: packet.ieth().map(|ieth| ieth.rkey),
            solicited: packet.bth_header().solicited(),
            ..Wc::new(opcode, self.qpn)
        };
        self.push_receive(shared, wc);
    }

    /// Completes the receive WQE that is taken, if one is, with an error.
    pub(crate) fn fail_receive(&mut self, shared: &mut Shared, status: WcStatus) {
        if self.receiving.taken {
            self.push_receive(shared, Wc { status, ..Wc::new(WcOpcode::Recv, self.qpn) });
        }
    }

    pub(crate) fn push_receive(&mut self, shared: &mut Shared, wc: Wc) {
        debug_assert!(self.receiving.taken);
        self.receiving.taken = false;
        let wc = Wc { wr_id: self.receiving.wqe.wr_id, ..wc };
        shared.stats.receives += u64::from(wc.status == WcStatus::Success);
        if shared.complete(self.init.recv_cq, wc).is_err() {
            self.cq_lost = true;
        }
    }
}
