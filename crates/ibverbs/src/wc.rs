//! Work completions for C.

use remanence_rnic::{Wc, WcStatus};

use crate::abi::{
    IBV_WC_GRH, IBV_WC_RECV, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc, ibv_wc_flags, ibv_wc_imm,
};

/// What a completion carries besides its data, and which of the flags says so. On Ethernet every packet has a GRH, or the IP
/// header in its place, so everything that is received says that there was one, as Soft-RoCE's does; only of datagrams it is put
/// in front of the data.
#[inline]
pub(crate) fn flags(wc: &Wc) -> ibv_wc_flags {
    let received = wc.status == WcStatus::Success && wc.opcode as u32 & IBV_WC_RECV != 0;
    let grh = if received { IBV_WC_GRH } else { 0 };
    let imm = if wc.imm.is_some() { IBV_WC_WITH_IMM } else { 0 };
    let inv = if wc.invalidated.is_some() { IBV_WC_WITH_INV } else { 0 };
    grh | imm | inv
}

/// The immediate, in network order, or the rkey that was taken away, in host order.
#[inline]
pub(crate) fn imm(wc: &Wc) -> u32 {
    match (wc.imm, wc.invalidated) {
        (Some(imm), _) => imm.to_be(),
        (None, Some(rkey)) => rkey.0,
        (None, None) => 0,
    }
}

/// What kind of header a received datagram has. There are no service levels on Ethernet, and the hardware that UCX was
/// written for says it in their place: bit 3 for a UDP header, then 1 for IPv6, 2 for IPv4 (Annex A17, A17.4.5.1,
/// wants it to be told, and not where). UCX drops datagrams that do not say it.
#[inline]
pub(crate) fn sl(wc: &Wc) -> u8 {
    match (wc.grh, wc.ipv4) {
        (false, _) => 0,
        (true, false) => 0b1001,
        (true, true) => 0b1010,
    }
}

/// A completion as C sees it.
#[inline]
pub(crate) fn of(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: 0,
        byte_len: wc.byte_len,
        imm: ibv_wc_imm { imm_data: imm(wc) },
        qp_num: wc.qpn.value(),
        src_qp: wc.src_qp.value(),
        wc_flags: flags(wc),
        // What only an InfiniBand link has is zero; the one partition is the first.
        pkey_index: 0,
        slid: 0,
        sl: sl(wc),
        dlid_path_bits: 0,
    }
}

/// C's array of completions, written from its beginning.
pub(crate) struct Array {
    next: *mut ibv_wc,
    left: usize,
}

impl Array {
    /// # Safety
    /// `start` has room for `len` completions as long as this lives.
    #[inline]
    pub(crate) unsafe fn new(start: *mut ibv_wc, len: usize) -> Self {
        Self { next: start, left: len }
    }
}

impl Extend<Wc> for Array {
    #[inline]
    fn extend<I: IntoIterator<Item = Wc>>(&mut self, completions: I) {
        for wc in completions {
            assert!(self.left > 0, "no more completions are taken than there is room for");
            // SAFETY: there is room, as `new` was promised and the line above checked.
            unsafe { self.next.write(of(&wc)) };
            self.next = self.next.wrapping_add(1);
            self.left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use remanence_rnic::WcOpcode;
    use remanence_wire::{Qpn, Rkey};

    use super::*;
    use crate::abi::IBV_WC_REM_ACCESS_ERR;

    #[test]
    fn immediates_are_in_network_order_and_rkeys_in_host_order() {
        let wc = Wc { imm: Some(0x0102_0304), ..Wc::new(WcOpcode::Recv, Qpn::new(0x17)) };
        assert_eq!(imm(&wc), u32::from_be(0x0102_0304));
        assert_eq!(flags(&wc), IBV_WC_GRH | IBV_WC_WITH_IMM);
        assert_eq!(flags(&Wc { status: WcStatus::WrFlushErr, imm: None, ..wc }), 0);
        assert_eq!(flags(&Wc::new(WcOpcode::RdmaRead, Qpn::new(0x17))), 0, "nothing was received");
        let wc = Wc { imm: None, invalidated: Some(Rkey(0x0102_0304)), grh: true, ..wc };
        assert_eq!(imm(&wc), 0x0102_0304);
        assert_eq!(flags(&wc), IBV_WC_WITH_INV | IBV_WC_GRH);
        assert_eq!((sl(&wc), sl(&Wc { ipv4: true, ..wc }), sl(&Wc { grh: false, ..wc })), (9, 10, 0));
        let c = of(&Wc { status: WcStatus::RemAccessErr, ..wc });
        assert_eq!((c.opcode, c.status, c.qp_num), (IBV_WC_RECV, IBV_WC_REM_ACCESS_ERR, 0x17));
    }

    #[test]
    #[should_panic(expected = "room")]
    fn an_array_is_never_written_beyond_its_end() {
        let mut room = [of(&Wc::new(WcOpcode::Send, Qpn::new(2))); 1];
        // SAFETY: it is as long as it says.
        let mut array = unsafe { Array::new(room.as_mut_ptr(), room.len()) };
        array.extend([Wc::new(WcOpcode::Recv, Qpn::new(3)); 2]);
    }
}
