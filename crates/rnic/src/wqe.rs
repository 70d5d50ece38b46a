//! Work queue entries and the rings that hold them.
//!
//! A ring is addressed by free-running counters, so that "the WQEs from `a` to `b`" is a pair of numbers that
//! survives wrapping. Scatter/gather entries and inline data live in arrays beside the ring, a fixed stride per
//! WQE: posting never allocates once a ring has grown to the depth that its consumer really uses.

use remanence_wire::{Lkey, Psn};

use crate::error::PostError;
use crate::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDest};

/// A send-queue WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) ud: Option<UdDest>,
    /// Bytes of local data.
    pub(crate) len: u32,
    sges: u8,
    inline: bool,
    /// Given by the requester when it starts on the WQE; both mean nothing before.
    pub(crate) first_psn: Psn,
    /// The number of PSNs that the WQE takes (request packets, or response packets of a READ).
    pub(crate) psns: u32,
    /// Send sequence number, for end-to-end credits (IBA Vol 1, 9.7.7).
    pub(crate) ssn: u32,
}

const EMPTY_WQE: Wqe = Wqe {
    wr_id: 0,
    op: SendOp::Send,
    flags: SendFlags::empty(),
    ud: None,
    len: 0,
    sges: 0,
    inline: false,
    first_psn: Psn::new(0),
    psns: 0,
    ssn: 0,
};

const EMPTY_SGE: Sge = Sge { addr: 0, len: 0, lkey: Lkey(0) };

impl Wqe {
    /// The PSN of its last packet.
    pub(crate) const fn last_psn(&self) -> Psn {
        self.first_psn.add(self.psns.wrapping_sub(1))
    }

    /// Whether the responder must answer it with data or a result, and so takes a responder resource.
    pub(crate) const fn takes_resource(&self) -> bool {
        match self.op {
            SendOp::Read(_)
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::Flush { .. }
            | SendOp::AtomicWrite(_) => true,
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write(_)
            | SendOp::WriteImm(..)
            | SendOp::LocalInv(_)
            | SendOp::BindMw { .. } => false,
        }
    }

    /// Whether it takes a receive WQE of the peer, and so a credit.
    pub(crate) const fn takes_credit(&self) -> bool {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::WriteImm(..) => true,
            SendOp::Write(_)
            | SendOp::Read(_)
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::Flush { .. }
            | SendOp::AtomicWrite(_)
            | SendOp::LocalInv(_)
            | SendOp::BindMw { .. } => false,
        }
    }
}

/// The send queue: WQEs from `head` (oldest not completed) to `tail`.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Vec<Wqe>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    capacity: u32,
    max_sge: u32,
    max_inline: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// The last WQE posted that is no plain WRITE, if the queue was never empty since: who asks for it at each transmission
    /// must not walk a long queue.
    other: Option<u32>,
    /// Likewise, the last one whose request does not fit a small packet.
    large: Option<u32>,
}

/// What a request carries at most that is small: then a system call costs many times what its bytes do.
const SMALL: u32 = 256;

impl SendQueue {
    pub(crate) const fn new(capacity: u32, max_sge: u32, max_inline: u32) -> Self {
        Self {
            wqes: Vec::new(),
            sges: Vec::new(),
            inline: Vec::new(),
            capacity,
            max_sge,
            max_inline,
            head: 0,
            tail: 0,
            other: None,
            large: None,
        }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether all WQEs from `at` on are WRITEs without immediate; also when there are none.
    #[inline]
    pub(crate) fn are_plain_writes_from(&self, at: u32) -> bool {
        !self.is_from(self.other, at)
    }

    /// Whether all WQEs from `at` on make small request packets; also when there are none.
    #[inline]
    pub(crate) fn are_small_from(&self, at: u32) -> bool {
        !self.is_from(self.large, at)
    }

    #[inline]
    fn is_from(&self, wqe: Option<u32>, at: u32) -> bool {
        wqe.is_some_and(|wqe| wqe.wrapping_sub(at) < self.tail.wrapping_sub(at))
    }

    #[inline]
    const fn index(&self, at: u32) -> usize {
        at as usize & (self.wqes.len() - 1)
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> &Wqe {
        &self.wqes[self.index(at)]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Wqe {
        let index = self.index(at);
        &mut self.wqes[index]
    }

    /// Whether it can be posted behind `ahead` others that are not posted yet.
    #[inline]
    pub(crate) fn check(&self, wr: &SendWr<'_>, ahead: u32) -> Result<(), PostError> {
        if self.len().saturating_add(ahead) >= self.capacity {
            return Err(PostError::QueueFull);
        }
        match wr.data {
            Data::Sges(sges) if sges.len() > self.max_sge as usize => Err(PostError::TooManySges),
            Data::Inline(data) if data.len() > self.max_inline as usize => Err(PostError::InlineTooLong),
            Data::Sges(_) | Data::Inline(_) => Ok(()),
        }
    }

    pub(crate) fn post(&mut self, wr: &SendWr<'_>, len: u32) -> Result<(), PostError> {
        self.check(wr, 0)?;
        let (sges, inline) = match wr.data {
            Data::Sges(sges) => (sges.len() as u8, false),
            Data::Inline(_) => (0, true),
        };
        if self.len() as usize == self.wqes.len() {
            self.grow();
        }
        if self.len() == 0 {
            (self.other, self.large) = (None, None);
        }
        if !matches!(wr.op, SendOp::Write(_)) {
            self.other = Some(self.tail);
        }
        if len > SMALL && !matches!(wr.op, SendOp::Read(_)) {
            self.large = Some(self.tail);
        }
        let index = self.index(self.tail);
        match wr.data {
            Data::Sges(from) => {
                let start = index * self.max_sge as usize;
                self.sges[start..start + from.len()].copy_from_slice(from);
            }
            Data::Inline(from) => {
                let start = index * self.max_inline as usize;
                self.inline[start..start + from.len()].copy_from_slice(from);
            }
        }
        self.wqes[index] =
            Wqe { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, ud: wr.ud, len, sges, inline, ..EMPTY_WQE };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Doubles the ring. Slots depend on the ring's size, so every WQE moves to its new one.
    fn grow(&mut self) {
        let size = (self.wqes.len() * 2).max(2).min((self.capacity as usize).next_power_of_two());
        let mut wqes = vec![EMPTY_WQE; size];
        let mut sges = vec![EMPTY_SGE; size * self.max_sge as usize];
        let mut inline = vec![0; size * self.max_inline as usize];
        let (sge_stride, inline_stride) = (self.max_sge as usize, self.max_inline as usize);
        for n in 0..self.len() {
            let at = self.head.wrapping_add(n);
            let (old, new) = (self.index(at), at as usize & (size - 1));
            wqes[new] = self.wqes[old];
            sges[new * sge_stride..][..sge_stride]
                .copy_from_slice(&self.sges[old * sge_stride..][..sge_stride]);
            inline[new * inline_stride..][..inline_stride]
                .copy_from_slice(&self.inline[old * inline_stride..][..inline_stride]);
        }
        (self.wqes, self.sges, self.inline) = (wqes, sges, inline);
    }

    pub(crate) const fn clear(&mut self) {
        self.head = self.tail;
    }

    /// The scatter/gather list of a WQE without inline data.
    #[inline]
    pub(crate) fn sges(&self, at: u32) -> &[Sge] {
        let index = self.index(at);
        &self.sges[index * self.max_sge as usize..][..self.wqes[index].sges as usize]
    }

    /// The inline data of a WQE, if it has that instead of a list.
    #[inline]
    pub(crate) fn inline(&self, at: u32) -> Option<&[u8]> {
        let index = self.index(at);
        let wqe = &self.wqes[index];
        wqe.inline.then(|| &self.inline[index * self.max_inline as usize..][..wqe.len as usize])
    }
}

/// A receive WQE while a message is written into it.
#[derive(Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
    /// Bytes that the list holds.
    pub(crate) room: u64,
}

#[derive(Clone, Copy, Debug)]
struct RecvSlot {
    wr_id: u64,
    sges: u32,
}

/// A receive queue, of a QP or shared.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    slots: Vec<RecvSlot>,
    sges: Vec<Sge>,
    capacity: u32,
    max_sge: u32,
    head: u32,
    tail: u32,
}

impl RecvQueue {
    pub(crate) const fn new(capacity: u32, max_sge: u32) -> Self {
        Self { slots: Vec::new(), sges: Vec::new(), capacity, max_sge, head: 0, tail: 0 }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) const fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.len() >= self.capacity {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        if wr.sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>() > u64::from(crate::device::MAX_MESSAGE) {
            return Err(PostError::InvalidLength);
        }
        if self.len() as usize == self.slots.len() {
            self.grow();
        }
        let index = self.tail as usize & (self.slots.len() - 1);
        self.slots[index] = RecvSlot { wr_id: wr.wr_id, sges: wr.sges.len() as u32 };
        let start = index * self.max_sge as usize;
        self.sges[start..start + wr.sges.len()].copy_from_slice(wr.sges);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(8);
        let mut slots = vec![RecvSlot { wr_id: 0, sges: 0 }; size];
        let mut sges = vec![EMPTY_SGE; size * self.max_sge as usize];
        let stride = self.max_sge as usize;
        for n in 0..self.len() {
            let at = self.head.wrapping_add(n) as usize;
            let (old, new) = (at & (self.slots.len() - 1), at & (size - 1));
            slots[new] = self.slots[old];
            sges[new * stride..][..stride].copy_from_slice(&self.sges[old * stride..][..stride]);
        }
        (self.slots, self.sges) = (slots, sges);
    }

    pub(crate) const fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Takes the oldest WQE into `into`, whose storage is used again.
    pub(crate) fn pop(&mut self, into: &mut RecvWqe) -> bool {
        if self.len() == 0 {
            return false;
        }
        let index = self.head as usize & (self.slots.len() - 1);
        let slot = self.slots[index];
        into.wr_id = slot.wr_id;
        into.sges.clear();
        into.sges.extend_from_slice(&self.sges[index * self.max_sge as usize..][..slot.sges as usize]);
        into.room = into.sges.iter().map(|sge| u64::from(sge.len)).sum();
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Takes the oldest WQE for flushing.
    pub(crate) fn pop_wr_id(&mut self) -> Option<u64> {
        if self.len() == 0 {
            return None;
        }
        let wr_id = self.slots[self.head as usize & (self.slots.len() - 1)].wr_id;
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use remanence_wire::Rkey;

    use super::*;
    use crate::wr::RemoteAddr;

    fn recv(wr_id: u64, len: u32) -> (u64, [Sge; 1]) {
        (wr_id, [Sge { addr: wr_id, len, lkey: Lkey(1) }])
    }

    #[test]
    fn rings_keep_order_while_they_grow_and_wrap() {
        let mut queue = RecvQueue::new(100, 2);
        let mut next_in = 0;
        let mut next_out = 0;
        let mut wqe = RecvWqe::default();
        for round in 1..60u64 {
            for _ in 0..round.min(11) {
                let (wr_id, sges) = recv(next_in, 8);
                if queue.post(&RecvWr { wr_id, sges: &sges }).is_ok() {
                    next_in += 1;
                }
            }
            for _ in 0..round.min(10) / 2 {
                if queue.pop(&mut wqe) {
                    assert_eq!((wqe.wr_id, wqe.sges[0].addr, wqe.room), (next_out, next_out, 8));
                    next_out += 1;
                }
            }
        }
        assert_eq!(u64::from(queue.len()), next_in - next_out);
        assert!(queue.len() > 90, "the test fills the queue");
    }

    #[test]
    fn a_send_queue_keeps_lists_and_inline_data_while_it_grows() {
        let mut queue = SendQueue::new(64, 2, 16);
        queue.head = u32::MAX - 3;
        queue.tail = queue.head;
        let first = queue.tail;
        for n in 0..64u8 {
            let sges = [Sge { addr: n.into(), len: 1, lkey: Lkey(7) }; 2];
            let bytes = [n; 16];
            let inline = n % 3 == 0;
            let data = if inline { Data::Inline(&bytes) } else { Data::Sges(&sges) };
            let wr = SendWr { wr_id: n.into(), op: SendOp::Send, data, flags: SendFlags::empty(), ud: None };
            queue.post(&wr, if inline { 16 } else { 2 }).unwrap();
        }
        for n in 0..64u8 {
            let at = first.wrapping_add(n.into());
            assert_eq!(queue.get(at).wr_id, n.into());
            if n % 3 == 0 {
                assert_eq!(queue.inline(at), Some(&[n; 16][..]));
            } else {
                assert_eq!(queue.inline(at), None);
                assert_eq!(queue.sges(at)[1].addr, n.into());
            }
        }
    }

    #[test]
    fn what_is_left_to_send_is_known_for_plain_writes_without_a_walk() {
        let to = RemoteAddr { addr: 0, rkey: Rkey(1) };
        let mut queue = SendQueue::new(16, 1, 0);
        (queue.head, queue.tail) = (u32::MAX - 40, u32::MAX - 40);
        for round in 0..200_u32 {
            let op = if round % 7 == 3 || round % 11 == 0 { SendOp::Send } else { SendOp::Write(to) };
            let wr = SendWr { wr_id: 0, op, data: Data::Sges(&[]), flags: SendFlags::empty(), ud: None };
            if queue.len() == 16 || round % 50 == 49 {
                let done = if round % 50 == 49 { queue.len() } else { 1 };
                queue.head = queue.head.wrapping_add(done);
            }
            queue.post(&wr, 0).unwrap();
            for ahead in 0..=queue.len() {
                let at = queue.head.wrapping_add(ahead);
                let walked = (0..queue.tail.wrapping_sub(at))
                    .all(|n| matches!(queue.get(at.wrapping_add(n)).op, SendOp::Write(_)));
                assert_eq!(queue.are_plain_writes_from(at), walked, "round {round}, {ahead} ahead");
            }
        }
    }
}
