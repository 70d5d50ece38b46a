//! A responder's memory with explicit volatile stages, on the way from its RNIC to its DIMMs.
//!
//! What the engine writes goes, word by word, through the RNIC's buffer, the IIO's write buffer (coherent: the CPU sees it
//! there), and then to the cache or the memory controller, which are a `pmem::crash_image`. A seed moves words on when it
//! likes, as far as the rules of `persist/src/check/machine.rs` allow; a crash keeps what the persistence domain keeps.
//! FLUSH and READ push what they promise to push, and nothing else: a FLUSH of a range, that range. Where memory may be
//! written in any order, what a later packet brings may be in the RNIC's buffer before what an earlier one brings.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_persist::Config;
use remanence_persist::taxonomy::{Domain, Order};
use remanence_pmem::crash_image::{CrashImage, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_rnic::{FlushId, FlushOutcome, Memory, Placement, PlacementSupport, RegionId, Span};

/// Persistent memory: what is served, and receive buffers if they lie there.
pub(crate) const PM: RegionId = RegionId(0);
/// Receive buffers in DRAM.
pub(crate) const DRAM: RegionId = RegionId(1);

pub(crate) const PM_LEN: u64 = 64 << 10;
pub(crate) const DRAM_LEN: u64 = 32 << 10;

/// One aligned word that the RNIC has received, or a part of it.
struct Atom {
    region: RegionId,
    at: u64,
    bytes: Vec<u8>,
    /// Which operation brought it; [`EARLY`] while the engine has not come to that operation.
    op: u64,
    /// By an ATOMIC WRITE.
    atomic: bool,
}

/// Of no operation yet: no FLUSH covers it, and no message is received for it.
const EARLY: u64 = u64::MAX;

/// A FLUSH that takes time.
struct Late {
    id: FlushId,
    span: Span,
    placement: Placement,
    op: u64,
}

pub(crate) struct Stages {
    config: Config,
    rng: ChaCha8Rng,
    image: CrashImage,
    dram: Vec<u8>,
    rnic: VecDeque<Atom>,
    /// Bytes that were placed before the engine has come to their operation.
    early: Vec<(RegionId, u64, Vec<u8>)>,
    /// Words in the IIO: offset, and its bytes that are there.
    iio: BTreeMap<u64, [Option<u8>; 8]>,
    ops: u64,
    late: VecDeque<Late>,
    /// Events until the power goes.
    left: u64,
    pub(crate) events: u64,
}

impl Stages {
    pub(crate) fn new(config: Config, seed: u64, left: u64) -> Self {
        let domain = match config.domain {
            Domain::Dmp => PersistenceDomain::Adr,
            Domain::Mhp | Domain::Wsp => PersistenceDomain::Eadr,
            Domain::PageCache => PersistenceDomain::PageCache,
            Domain::Process => PersistenceDomain::Process,
        };
        Self {
            config,
            rng: ChaCha8Rng::seed_from_u64(seed),
            image: CrashImage::new(PM_LEN, domain),
            dram: vec![0; DRAM_LEN as usize],
            rnic: VecDeque::new(),
            early: Vec::new(),
            iio: BTreeMap::new(),
            ops: 0,
            late: VecDeque::new(),
            left,
            events: 0,
        }
    }

    /// The power goes after so many events from now on.
    pub(crate) fn arm(&mut self, left: u64) {
        (self.left, self.events) = (left, 0);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.left == 0
    }

    /// Something happens; the power may go before it.
    pub(crate) fn event(&mut self) -> bool {
        self.events += 1;
        self.left = self.left.saturating_sub(1);
        !self.is_dead()
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// The operations that have arrived so far.
    pub(crate) fn mark(&self) -> u64 {
        self.ops
    }

    fn arrive(&mut self, region: RegionId, at: u64, bytes: &[u8], atomic: bool) {
        self.ops += 1;
        let there = self.early.iter().position(|(r, a, b)| (*r, *a, &b[..]) == (region, at, bytes));
        let Some(there) = there else {
            self.take_in(region, at, bytes, atomic, self.ops);
            return;
        };
        self.early.swap_remove(there);
        // What has not gone on counts as arrived now.
        let range = at..at + bytes.len() as u64;
        let its = |atom: &Atom| atom.op == EARLY && atom.region == region && range.contains(&atom.at);
        let (mut mine, others): (VecDeque<Atom>, VecDeque<Atom>) = self.rnic.drain(..).partition(its);
        mine.iter_mut().for_each(|atom| atom.op = self.ops);
        self.rnic = others;
        self.rnic.append(&mut mine);
    }

    /// A packet arrives that the engine takes later, behind others.
    pub(crate) fn arrive_early(&mut self, region: RegionId, at: u64, bytes: &[u8], atomic: bool) {
        assert_eq!(self.config.order, Order::Relaxed, "packets are placed in their order");
        self.early.push((region, at, bytes.to_vec()));
        self.take_in(region, at, bytes, atomic, EARLY);
    }

    fn take_in(&mut self, region: RegionId, at: u64, bytes: &[u8], atomic: bool, op: u64) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let len = ((8 - at % 8) as usize).min(rest.len());
            let (word, more) = rest.split_at(len);
            self.rnic.push_back(Atom { region, at, bytes: word.to_vec(), op, atomic });
            (at, rest) = (at + len as u64, more);
        }
    }

    /// Whether the word may leave the RNIC's buffer now (rule 2).
    fn may_leave(&self, n: usize) -> bool {
        let atom = &self.rnic[n];
        let relaxed = self.config.order == Order::Relaxed;
        let mut earlier = self.rnic.iter().take(n).filter(|other| other.op != atom.op);
        // An ATOMIC WRITE is executed in its turn, wherever its packet is.
        if atom.atomic {
            atom.op != EARLY && earlier.next().is_none()
        } else {
            relaxed || earlier.all(|other| other.atomic)
        }
    }

    /// A word goes from the RNIC to the IIO, where it is visible.
    fn leave(&mut self, n: usize) {
        let atom = self.rnic.remove(n).expect("it is there");
        // An earlier value of the same word would come too late (rule 8).
        let same = |other: &Atom| {
            (other.region, other.at, other.bytes.len()) == (atom.region, atom.at, atom.bytes.len())
        };
        let mut index = 0;
        self.rnic.retain(|other| {
            index += 1;
            index > n || !same(other)
        });
        if atom.region == PM {
            let word = self.iio.entry(atom.at / 8 * 8).or_default();
            for (k, byte) in atom.bytes.iter().enumerate() {
                word[(atom.at % 8) as usize + k] = Some(*byte);
            }
        } else {
            self.dram[atom.at as usize..][..atom.bytes.len()].copy_from_slice(&atom.bytes);
        }
    }

    /// A word goes from the IIO to the cache, or (`past`) to the memory controller.
    fn descend(&mut self, at: u64, past: bool) {
        let Some(word) = self.iio.remove(&at) else { return };
        if word.iter().all(Option::is_some) {
            let bytes: Vec<u8> = word.iter().flatten().copied().collect();
            self.image.write(at, &bytes);
        } else {
            for (k, byte) in word.iter().enumerate() {
                if let Some(byte) = byte {
                    self.image.write(at + k as u64, &[*byte]);
                }
            }
        }
        // The memory controller is in the domain of DMP; a page cache is written by the kernel when it likes.
        if past && self.config.domain == Domain::Dmp {
            self.image.persist_alone(at..at + 8);
        }
    }

    /// Moves one word somewhere, by chance; or (`backwards`) what came last as far as it may.
    pub(crate) fn drift(&mut self, backwards: bool) {
        if self.below(3) < 2 {
            let free: Vec<usize> = (0..self.rnic.len()).filter(|n| self.may_leave(*n)).collect();
            if !free.is_empty() {
                let n = if backwards { free.len() - 1 } else { self.below(free.len() as u64) as usize };
                self.leave(free[n]);
                return;
            }
        }
        let words: Vec<u64> = self.iio.keys().copied().collect();
        if !words.is_empty() {
            // Later updates lie higher up.
            let n = if backwards { words.len() - 1 } else { self.below(words.len() as u64) as usize };
            let at = words[n];
            let past = !self.config.ddio || self.below(4) == 0;
            self.descend(at, past);
        }
    }

    /// Everything that arrived up to an operation is visible: a message is not received before.
    pub(crate) fn make_visible(&mut self, mark: u64) {
        while let Some(n) = self.rnic.iter().position(|atom| atom.op <= mark && !atom.atomic) {
            self.leave(n);
        }
    }

    /// What a FLUSH or READ pushes: visible, out of the IIO, and (with persistence) into the domain.
    fn push(&mut self, span: Span, op: u64, everything: bool, placement: Option<Placement>) {
        let range = span.offset..span.offset + span.len;
        let in_order = self.config.order == Order::Posted;
        let inside = |atom: &Atom| {
            atom.region == span.region
                && atom.at < range.end
                && range.start < atom.at + atom.bytes.len() as u64
        };
        while let Some(n) =
            self.rnic.iter().position(|atom| atom.op <= op && (in_order || everything || inside(atom)))
        {
            self.leave(n);
        }
        let words: Vec<u64> = self
            .iio
            .keys()
            .copied()
            .filter(|at| span.region == PM && (everything || *at < range.end && range.start < at + 8))
            .collect();
        for at in words {
            self.descend(at, !self.config.ddio);
        }
        if placement == Some(Placement::Persistence) && span.region == PM {
            self.image.persist_alone(range);
        }
    }

    /// The oldest FLUSH that takes time is over.
    pub(crate) fn finish_flush(&mut self) -> Option<FlushId> {
        let late = self.late.pop_front()?;
        self.push(late.span, late.op, false, Some(late.placement));
        Some(late.id)
    }

    /// What recovery finds.
    pub(crate) fn crash(&mut self) -> CrashImage {
        let keeps_iio = matches!(self.config.domain, Domain::Mhp | Domain::Wsp | Domain::Process);
        if self.config.domain == Domain::Wsp {
            // In their order, whatever is there.
            while !self.rnic.is_empty() {
                self.leave(0);
            }
        }
        if keeps_iio {
            for at in self.iio.keys().copied().collect::<Vec<_>>() {
                self.descend(at, false);
            }
        }
        let failure =
            if self.config.domain == Domain::Process { Failure::ProcessCrash } else { Failure::PowerLoss };
        let seed = self.rng.next_u64();
        self.image.crash(failure, &mut Seeded::new(seed))
    }

    fn visible(&self, offset: u64, into: &mut [u8]) {
        self.image.read(offset, into);
        let end = offset + into.len() as u64;
        for (at, word) in self.iio.range(offset / 8 * 8..end) {
            for (k, byte) in word.iter().enumerate() {
                let at = at + k as u64;
                if let (Some(byte), true) = (byte, at >= offset && at < end) {
                    into[(at - offset) as usize] = *byte;
                }
            }
        }
    }

    /// A store of the CPU: into the cache, above what the IIO still has of these bytes.
    fn store(&mut self, offset: u64, bytes: &[u8]) {
        for at in (offset / 8 * 8..offset + bytes.len() as u64).step_by(8) {
            self.descend(at, false);
        }
        self.image.write(offset, bytes);
    }
}

/// The stages, as the engine and the responder's CPU share them.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Rc<RefCell<Stages>>);

impl Memory for Shared {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        let mut all = self.0.borrow_mut();
        match region {
            DRAM => into.copy_from_slice(&all.dram[offset as usize..][..into.len()]),
            _ => {
                // A READ in place of a FLUSH: in order, it pushes everything before it; in any order, what it reads.
                let op = all.ops;
                let everything = all.config.order == Order::Posted;
                all.push(Span { region, offset, len: into.len() as u64 }, op, everything, None);
                all.visible(offset, into);
            }
        }
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.0.borrow_mut().arrive(region, offset, bytes, false);
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        self.0.borrow_mut().arrive(region, offset, &bytes, true);
    }

    fn compare_and_swap(&mut self, _: RegionId, _: u64, _: u64, _: u64) -> u64 {
        unreachable!("no recipe has it")
    }

    fn fetch_add(&mut self, _: RegionId, _: u64, _: u64) -> u64 {
        unreachable!("no recipe has it")
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        PlacementSupport::all()
    }

    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        let mut all = self.0.borrow_mut();
        let op = all.ops;
        if all.below(2) == 0 {
            all.push(span, op, false, Some(placement));
            return FlushOutcome::Done;
        }
        all.late.push_back(Late { id, span, placement, op });
        FlushOutcome::Pending
    }
}

/// One region as the responder's CPU sees it. Each store may be the last one.
#[derive(Clone)]
pub(crate) struct Cpu(pub(crate) Shared, pub(crate) RegionId);

impl Medium for Cpu {
    fn len(&self) -> u64 {
        if self.1 == PM { PM_LEN } else { DRAM_LEN }
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let all = self.0.0.borrow();
        if self.1 == PM {
            all.visible(offset, into);
        } else {
            into.copy_from_slice(&all.dram[offset as usize..][..into.len()]);
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut all = self.0.0.borrow_mut();
        for (n, word) in bytes.chunks(8).enumerate() {
            if all.event() && self.1 == PM {
                all.store(offset + 8 * n as u64, word);
            }
        }
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_le_bytes(word).to_le()
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le().to_le_bytes());
    }

    fn compare_and_swap(&self, _: u64, _: u64, _: u64) -> u64 {
        unreachable!("the responder does not use it")
    }

    fn fetch_add(&self, _: u64, _: u64) -> u64 {
        unreachable!("the responder does not use it")
    }

    fn pwb(&self, range: Range<u64>) {
        let mut all = self.0.0.borrow_mut();
        if self.1 != PM || !all.event() {
            return;
        }
        // What is visible there goes to the domain, from the IIO too.
        for at in (range.start / 8 * 8..range.end).step_by(8) {
            all.descend(at, false);
        }
        all.image.pwb(range);
    }

    fn pfence(&self) -> io::Result<()> {
        self.psync()
    }

    fn psync(&self) -> io::Result<()> {
        let mut all = self.0.0.borrow_mut();
        if all.event() { all.image.psync() } else { Ok(()) }
    }
}
