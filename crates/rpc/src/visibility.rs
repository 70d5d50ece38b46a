//! The write-visibility test: is a WRITE that completed at its requester visible at the responder, and is it durable?
//!
//! Read first: paper 001, 4.1, 4.2 and 4.5. There, one machine with two NICs shows that a completed WRITE is often not
//! even visible, as it may still be in the responder's NIC. Our responder is software, which places before it
//! acknowledges, so that the effect does not exist; and a model without it would be no test of anything. Here the real
//! engine runs on both sides, over a memory that has the stages of a machine with a real NIC:
//!
//! ```text
//!  engine --WRITE--> posted writes --drain--> cache (DDIO on) ---evict, write back---> memory controller, DIMM
//!                    (NIC, PCIe)       \----> (DDIO off) ----------------------------/
//! ```
//! 1. A WRITE is acknowledged once it is a posted write. Posted writes drain in order, when they like.
//! 2. A DMA read pushes every earlier posted write in front of it (PCIe's ordering rule): so does the responder's half
//!    of a READ, and so do atomics.
//! 3. What the CPU sees is the cache and memory. What a power loss leaves (ADR) is what reached the memory controller.
//! 4. FLUSH drains, and with placement *persistence* also writes the range back.

use std::cell::RefCell;
use std::collections::VecDeque;

use remanence_pmem::crash_image::{Choices, CrashImage, Failure};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_rnic::side::{Plain, Side};
use remanence_rnic::{
    Access, Data, FlushId, FlushOutcome, Instant, Memory, Placement, PlacementSupport, RegionId, Selectivity,
    SendFlags, SendOp, SendWr, Span, Wc, WcStatus,
};
use remanence_wire::Mtu;

use crate::draw::Draw;
use crate::pwrite::Method;

/// Bytes of the responder's memory.
const LEN: u64 = 8192;
/// Where the write goes, and how long it is.
const AT: u64 = 256;
const WRITE: usize = 1024;

/// The responder's memory, stage by stage.
#[derive(Debug)]
pub struct Staged {
    posted: RefCell<VecDeque<(u64, Vec<u8>)>>,
    image: CrashImage,
    ddio: bool,
}

/// What a crash leaves at the worst.
struct Worst;

impl Choices for Worst {
    fn pick(&mut self, _options: usize) -> usize {
        0
    }
}

impl Staged {
    /// Zeros, in the persistence domain ADR.
    #[must_use]
    pub fn new(ddio: bool) -> Self {
        let image = CrashImage::new(LEN, PersistenceDomain::Adr);
        Self { posted: RefCell::default(), image, ddio }
    }

    /// The oldest posted write goes where it belongs; `false` if there is none.
    pub fn drain_one(&self) -> bool {
        let Some((offset, bytes)) = self.posted.borrow_mut().pop_front() else { return false };
        self.image.write(offset, &bytes);
        if !self.ddio {
            self.image.pwb(offset..offset + bytes.len() as u64);
            self.image.psync().expect("this medium does not fail");
        }
        true
    }

    fn drain(&self) {
        while self.drain_one() {}
    }

    /// What the responder's CPU sees.
    #[must_use]
    pub fn visible(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.image.read(offset, &mut bytes);
        bytes
    }

    /// What a power loss now leaves for certain.
    #[must_use]
    pub fn durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let left = self.image.crash(Failure::PowerLoss, &mut Worst);
        let mut bytes = vec![0; len];
        left.read(offset, &mut bytes);
        bytes
    }
}

impl Memory for Staged {
    fn read(&self, _: RegionId, offset: u64, into: &mut [u8]) {
        self.drain();
        self.image.read(offset, into);
    }

    fn write(&mut self, _: RegionId, offset: u64, bytes: &[u8]) {
        self.posted.borrow_mut().push_back((offset, bytes.to_vec()));
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        // Not posted: behind everything earlier, and at its place when it is acknowledged.
        self.write(region, offset, &bytes);
        self.drain();
    }

    fn compare_and_swap(&mut self, _: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        self.drain();
        self.image.compare_and_swap(offset, compare, swap)
    }

    fn fetch_add(&mut self, _: RegionId, offset: u64, add: u64) -> u64 {
        self.drain();
        self.image.fetch_add(offset, add)
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        PlacementSupport::all()
    }

    fn flush(&mut self, _: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        self.drain();
        if placement == Placement::Persistence {
            self.image.pwb(span.offset..span.offset + span.len);
            self.image.psync().expect("this medium does not fail");
        }
        FlushOutcome::Done
    }
}

/// What one side has to say reaches the other.
fn exchange<M: Memory, N: Memory>(from: &mut Side<M>, to: &mut Side<N>, buf: &mut [u8]) {
    while let Some(sent) = from.transmit(Instant::ZERO, buf) {
        to.receive(Instant::ZERO, &sent, buf);
    }
}

/// What one write was when its completion was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The responder's CPU saw all of it.
    pub visible: bool,
    /// A power loss would have left all of it, whatever the caches do.
    pub durable: bool,
}

/// Writes 1 KiB by a method to a fresh responder, and looks at the moment of the completion. The seed decides how much
/// drains by itself meanwhile.
///
/// # Panics
/// The engine breaks its word.
#[must_use]
pub fn observe(method: Method, ddio: bool, seed: u64) -> Seen {
    let mut draw = Draw(seed);
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let data: Vec<u8> = (0..WRITE).map(|i| i as u8 | 1).collect();
    let mut content = data.clone();
    content.resize(LEN as usize, 0);
    let mut requester = Side::new(1, Plain(content), LEN, Access::LOCAL_WRITE, 8);
    let mut responder = Side::new(2, Staged::new(ddio), LEN, rights | Access::LOCAL_WRITE, 8);
    requester.connect(&mut responder, Mtu::B256, rights, Instant::ZERO);

    let (whole, word) = ([requester.sge(0, WRITE as u32)], [requester.sge(LEN - 8, 8)]);
    let last = SendFlags::SIGNALED;
    let flags = if method == Method::Write { last } else { SendFlags::empty() };
    let mut requests = vec![(SendOp::Write(responder.remote(AT)), &whole[..], flags)];
    match method {
        Method::Write => {}
        Method::WriteRead => requests.push((SendOp::Read(responder.remote(AT)), &word[..], last)),
        Method::WriteFlush => {
            let (placement, selectivity) = (Placement::Persistence, Selectivity::Range);
            let flush =
                SendOp::Flush { remote: responder.remote(AT), len: WRITE as u32, placement, selectivity };
            requests.push((flush, &[], last));
        }
    }
    for (op, sges, flags) in requests {
        let wr = SendWr { wr_id: 1, op, data: Data::Sges(sges), flags, ud: None };
        requester.device.post_send(requester.qpn, &wr).expect("posted");
    }
    let mut buf = vec![0; 1 << 16];
    let mut wcs: Vec<Wc> = Vec::new();
    for _ in 0..64 {
        exchange(&mut requester, &mut responder, &mut buf);
        // Now and then something drains by itself.
        for _ in 0..draw.below(8) {
            responder.memory.drain_one();
        }
        exchange(&mut responder, &mut requester, &mut buf);
        requester.device.poll_cq(requester.cq, &mut wcs, 8).expect("the CQ works");
        if let Some(wc) = wcs.first() {
            assert_eq!(wc.status, WcStatus::Success, "{method:?}");
            return Seen {
                visible: responder.memory.visible(AT, WRITE) == data,
                durable: responder.memory.durable(AT, WRITE) == data,
            };
        }
    }
    panic!("{method:?} does not complete");
}

/// How often it was what.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Writes that were observed.
    pub trials: u64,
    /// Of these, visible when they completed.
    pub visible: u64,
    /// Of these, durable when they completed.
    pub durable: u64,
}

/// [`observe`] for many seeds.
#[must_use]
pub fn tally(method: Method, ddio: bool, trials: u64, seed: u64) -> Tally {
    (0..trials).fold(Tally::default(), |tally, trial| {
        let seen = observe(method, ddio, seed.wrapping_add(trial));
        Tally {
            trials: tally.trials + 1,
            visible: tally.visible + u64::from(seen.visible),
            durable: tally.durable + u64::from(seen.durable),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIALS: u64 = 200;

    #[test]
    fn a_write_that_completed_may_be_invisible() {
        for ddio in [false, true] {
            let tally = tally(Method::Write, ddio, TRIALS, 1);
            assert!(tally.visible < TRIALS, "with DDIO {ddio} every completed WRITE was visible: {tally:?}");
            assert!(tally.visible > 0, "and now and then it is there already: {tally:?}");
            assert!(tally.durable < TRIALS);
        }
    }

    #[test]
    fn a_read_behind_it_makes_it_visible_and_without_ddio_durable() {
        let off = tally(Method::WriteRead, false, TRIALS, 1);
        assert_eq!((off.visible, off.durable), (TRIALS, TRIALS));
        let on = tally(Method::WriteRead, true, TRIALS, 1);
        assert_eq!(
            (on.visible, on.durable),
            (TRIALS, 0),
            "with DDIO it is in the cache, which power loss takes"
        );
    }

    #[test]
    fn a_flush_behind_it_makes_it_durable_with_ddio_too() {
        for ddio in [false, true] {
            let tally = tally(Method::WriteFlush, ddio, TRIALS, 1);
            assert_eq!((tally.visible, tally.durable), (TRIALS, TRIALS));
        }
    }
}
