//! One end of a connection: a QP, its buffers, and what its consumer waits for.

use std::collections::VecDeque;
use std::ops::Range;

use remanence_rnic::{AhHandle, Mr, MwHandle, QpType, RegionId};
use remanence_wire::{Qpn, Rkey};

use crate::memory::AtomicKind;
use crate::rng::{Rng, fill};
use crate::target::Target;

/// Bytes of a slot beside the message: the GRH of a datagram, and gaps between scattered pieces.
const SLOT_EXTRA: usize = 40 + 64;
/// Bytes at the start of a target region that only atomics, ATOMIC WRITEs and fenced WRITEs touch: what is not
/// fenced may pass them (IBA Vol 1, 10.8.3.3), and no oracle could say what they find.
pub(crate) const WORDS: usize = 128;

/// A part of a message in local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Equal parts of a local region, each for the data of one work request.
#[derive(Debug)]
pub(crate) struct Slots {
    start: usize,
    size: usize,
    free: Vec<usize>,
    count: usize,
}

impl Slots {
    pub(crate) fn new(start: usize, message_max: usize, count: usize) -> Self {
        let size = (message_max + SLOT_EXTRA).next_multiple_of(8);
        Self { start, size, free: (0..count).rev().collect(), count }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.size * self.count
    }

    /// The bytes of a slot that was taken.
    pub(crate) fn range(&self, slot: usize) -> Range<usize> {
        let start = self.start + slot * self.size;
        start..start + self.size
    }

    pub(crate) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, slot: usize) {
        self.free.push(slot);
    }

    pub(crate) fn give_all_back(&mut self) {
        self.free = (0..self.count).rev().collect();
    }
}

/// Scatters `len` bytes over the given slot: up to `max` pieces, some empty, in any order, with gaps.
pub(crate) fn scatter(rng: &mut Rng, slot: Range<usize>, len: usize, max: usize) -> Vec<Piece> {
    let count = 1 + rng.index(max);
    let mut cuts: Vec<usize> = (1..count).map(|_| rng.index(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let mut pieces: Vec<Piece> = cuts.windows(2).map(|w| Piece { start: 0, len: w[1] - w[0] }).collect();
    // Where they lie has nothing to do with their order in the message.
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, rng.index(i + 1));
    }
    let mut at = slot.start;
    for index in order {
        at += rng.index(9);
        pieces[index].start = at;
        at += pieces[index].len;
    }
    assert!(at <= slot.end, "pieces up to {at} in a slot {slot:?}");
    pieces
}

/// Gap bytes of a slot, which nothing may change.
pub(crate) fn gap_pattern(slot: &Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; slot.len()];
    fill(!(slot.start as u64), &mut bytes);
    bytes
}

/// What a send-queue work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send,
    SendImm(u32),
    SendInv(Rkey),
    Write,
    WriteImm(u32),
    Read,
    Atomic(AtomicKind),
    AtomicWrite,
    Flush { persist: bool, whole: bool },
    BindMw,
    LocalInv,
}

impl Kind {
    /// Whether the peer's consumer will see a completion.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(_))
    }
}

/// Which memory an atomic goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtomicTarget {
    /// This end's own target at the peer.
    Target,
    /// The words that all ends share at the peer's node.
    Shared,
}

/// A posted send-queue work request.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) seq: u64,
    pub(crate) kind: Kind,
    pub(crate) signaled: bool,
    pub(crate) slot: Option<usize>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: usize,
    /// Where in the target.
    pub(crate) remote: Range<usize>,
    pub(crate) place: AtomicTarget,
    /// The window that it goes through: what that covers, and its rkey.
    pub(crate) window: Option<(Range<usize>, Rkey)>,
    pub(crate) fence: bool,
    /// Atomics: what must be found there; known when posted, or (shared words) when carried out.
    pub(crate) old: Option<u64>,
    /// READ: nothing posted after this may be seen in the result.
    pub(crate) barrier: u64,
}

/// A message that the peer's consumer must or may receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) seq: u64,
    pub(crate) data: Vec<u8>,
    /// WRITE with immediate: where the data went.
    pub(crate) written: Option<usize>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<Rkey>,
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) slot: usize,
    pub(crate) pieces: Vec<Piece>,
}

/// Where receives are posted: one for each QP, or one for each node with an SRQ.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub(crate) posted: VecDeque<Recv>,
    pub(crate) slots: Slots,
    pub(crate) region: RegionId,
    pub(crate) mr: Option<Mr>,
    /// It is the node's SRQ.
    pub(crate) shared: bool,
    pub(crate) depth: usize,
    pub(crate) node: usize,
    /// Of the last receive.
    pub(crate) wr_id: u64,
}

/// A memory window over the target of an end, for its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Window {
    /// The window is bound to no memory.
    Free,
    /// The work request is posted.
    Binding { start: usize, len: usize, rkey: Rkey },
    /// The peer may use it.
    Bound { start: usize, len: usize, rkey: Rkey },
    /// The peer has asked for its invalidation.
    Ending,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) node: usize,
    /// Index of the other end.
    pub(crate) peer: usize,
    pub(crate) ty: QpType,
    pub(crate) qpn: Option<Qpn>,
    pub(crate) ah: Option<AhHandle>,

    /// Buffers of sends and sinks of READs.
    pub(crate) local: RegionId,
    pub(crate) local_mr: Option<Mr>,
    pub(crate) slots: Slots,

    /// Memory for the peer.
    pub(crate) target: RegionId,
    pub(crate) target_mr: Option<Mr>,
    pub(crate) target_iova: u64,
    pub(crate) mw: Option<MwHandle>,
    pub(crate) window: Window,
    pub(crate) window_rkey: Option<Rkey>,
    pub(crate) window_key: u8,

    /// Index of the receive queue.
    pub(crate) recv: usize,
    /// The oracle of the *peer's* target, on which this end operates.
    pub(crate) oracle: Target,
    pub(crate) ops: VecDeque<Op>,
    /// Atomics that the peer's memory must carry out, in order; the flag says shared words.
    pub(crate) atomics: VecDeque<(u64, AtomicTarget, usize, AtomicKind)>,
    /// Messages that the peer's consumer has not received yet.
    pub(crate) outbox: VecDeque<Message>,
    pub(crate) seq: u64,
    pub(crate) completed: u64,
    /// The QP is in the error state and flushes.
    pub(crate) flushing: bool,
    /// What the peer's machine kept of the target in a crash that this end has not come to terms with yet.
    pub(crate) survivors: Option<Vec<u8>>,
    /// Work requests still to be posted.
    pub(crate) todo: u32,
    pub(crate) tick: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_message_and_do_not_overlap() {
        let mut rng = Rng::new(3, 0);
        for len in [0, 1, 7, 100] {
            for _ in 0..100 {
                let pieces = scatter(&mut rng, 1000..1000 + 100 + SLOT_EXTRA, len, 4);
                assert_eq!(pieces.iter().map(|p| p.len).sum::<usize>(), len);
                let mut sorted: Vec<Range<usize>> =
                    pieces.iter().filter(|p| p.len > 0).map(|p| p.start..p.start + p.len).collect();
                sorted.sort_unstable_by_key(|range| range.start);
                assert!(sorted.windows(2).all(|w| w[0].end <= w[1].start));
            }
        }
    }
}
