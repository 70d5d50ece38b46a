//! The machine: a requester, a wire, and a responder down to its DIMMs, small enough to look at every state.
//!
//! What is written is followed as *atoms*: one aligned word of 8 bytes, written once, by the RNIC or by the responder's
//! CPU. An atom goes down through levels, and the moves of one atom know nothing of those of another but what a rule
//! below says; tearing, spontaneous eviction, out-of-order drains and lines that miss the cache are nothing else than
//! atoms moving when they like. The rules:
//!
//! 1. Packets arrive in the order in which they were posted ([`Order::Posted`]). A SEND or a WRITE_IMM arrives when there
//!    is a receive buffer for it.
//! 2. From the RNIC's buffer a posted operation moves on only behind every earlier posted operation, in any order of its
//!    words. It may pass a FLUSH, a READ and an ATOMIC WRITE. At the IIO it is visible: the IIO's write buffer is coherent.
//! 3. From the IIO atoms go on in any order: to the L3 cache with DDIO, or past it; without DDIO to the memory controller.
//! 4. FLUSH and READ are executed behind everything earlier, when it has left the IIO (*visibility*) or is in the domain
//!    (*persistence*). ATOMIC WRITE is executed behind everything earlier too, and then is on its way like any WRITE: that
//!    it was executed says nothing of where the word is.
//! 5. A completion of a posted operation means that the responder's RNIC has it (InfiniBand, RoCE) or nothing (iWARP); of
//!    the others, that they were executed. Completions are in order.
//! 6. A receive completion means that the message and everything before it is visible.
//! 7. Stores of the CPU leave the store buffer in order, an acknowledgement or a repost leaves after them. A flush waits
//!    until what is visible there has reached the domain.
//! 8. A later write to the same word takes the earlier one's place wherever it comes to lie with it or above it.

use super::{Assumption, Event, Fault, Machine, Scenario};
use crate::recipe::{Flush, Message, Recipe, Rq, Rsp, Target, Update};
use crate::taxonomy::{Buffers, Domain, Order, Transport};

/// How far an atom has come. `Gone`: another one took its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Level {
    /// Not written yet.
    None = 0,
    /// Posted, not at the responder.
    Wire = 1,
    /// In the RNIC's buffer; for a store of the CPU, in its store buffer.
    Rnic = 2,
    /// In the IIO's write buffer, visible.
    Iio = 3,
    /// In the cache.
    L3 = 4,
    /// In the memory controller's queue; in a page cache, in the kernel's page.
    Imc = 5,
    /// On the DIMM or the disk.
    Media = 6,
    /// Another atom has overwritten it.
    Gone = 7,
}

const LEVELS: [Level; 8] =
    [Level::None, Level::Wire, Level::Rnic, Level::Iio, Level::L3, Level::Imc, Level::Media, Level::Gone];

/// A set of atoms, by index.
type Atoms = u32;

/// How many atoms a state has room for.
const ATOMS_MAX: usize = 21;

/// Where an atom goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// A word of an update. `round` tells apart what is written by which carrying out of the recipe.
    Update { update: Update, round: u8, word: u8 },
    /// A word of a receive buffer.
    Buffer { buffer: u8, word: u8 },
}

#[derive(Clone, Debug)]
pub(super) struct Atom {
    pub(super) place: Destination,
    /// Stored by the CPU; else written by the RNIC.
    pub(super) cpu: bool,
    /// Persistent memory; else it is followed until it is visible.
    pm: bool,
    /// Which of the values that the place takes: larger is later.
    version: u8,
    place_index: u8,
    op: u8,
    older: Atoms,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Posted,
    Atomic,
    Flush(Flush),
}

/// A work request.
#[derive(Clone, Debug)]
struct Posting {
    kind: Kind,
    atoms: Atoms,
    fenced: bool,
    /// Which message it is, if it consumes a receive buffer.
    message: Option<u8>,
    send: bool,
    /// Atoms of earlier posted operations, and of earlier ATOMIC WRITEs.
    posted_before: Atoms,
    atomic_before: Atoms,
    /// Earlier non-posted operations, and its own number if it is one.
    flushes_before: u32,
    flush: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RqDo {
    Post(u8),
    Complete(u8),
    Acknowledged(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RspDo {
    /// Which work request brings the message; none does when it was dropped.
    Receive(Option<u8>),
    /// From the buffer words `from`, if any message brings it.
    Copy {
        atoms: Atoms,
        from: Option<Atoms>,
    },
    Flush(Atoms),
    Ack,
    Repost,
}

/// A message as recovery finds it.
#[derive(Clone, Debug)]
struct Found {
    number: u8,
    /// For each of its words: the place in the buffer, and the place of the update that it is for.
    words: Vec<(u8, Option<(u8, u8)>)>,
}

/// A state: three bits for each atom; program counters, executed flushes and the one fault that is not seen in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) atoms: u64,
    pub(super) control: u32,
}

const RSP_SHIFT: u32 = 7;
const FLUSH_SHIFT: u32 = 14;
const GARBAGE: u32 = 1 << 31;
const PC: u32 = 0x7f;
const FLUSHES_MAX: u32 = 16;

impl State {
    pub(super) const fn level(self, atom: usize) -> Level {
        LEVELS[(self.atoms >> (3 * atom) & 7) as usize]
    }

    const fn with(self, atom: usize, level: Level) -> Self {
        let shift = 3 * atom;
        Self { atoms: self.atoms & !(7 << shift) | (level as u64) << shift, ..self }
    }

    pub(super) const fn rq(self) -> usize {
        (self.control & PC) as usize
    }

    pub(super) const fn rsp(self) -> usize {
        (self.control >> RSP_SHIFT & PC) as usize
    }

    const fn executed(self, flushes: u32) -> bool {
        self.control >> FLUSH_SHIFT & flushes == flushes
    }

    const fn rq_next(self) -> Self {
        Self { control: self.control + 1, ..self }
    }

    const fn rsp_next(self) -> Self {
        Self { control: self.control + (1 << RSP_SHIFT), ..self }
    }

    /// Whether all those atoms have come that far (or are overwritten).
    fn at_least(self, mut atoms: Atoms, level: Level) -> bool {
        while atoms != 0 {
            if self.level(atoms.trailing_zeros() as usize) < level {
                return false;
            }
            atoms &= atoms - 1;
        }
        true
    }

    fn none_at(self, mut atoms: Atoms, level: Level) -> bool {
        while atoms != 0 {
            if self.level(atoms.trailing_zeros() as usize) == level {
                return false;
            }
            atoms &= atoms - 1;
        }
        true
    }
}

/// A recipe on a machine in a scenario, ready to be explored.
#[derive(Debug)]
pub(super) struct Program {
    machine: Machine,
    pub(super) atoms: Vec<Atom>,
    postings: Vec<Posting>,
    rq: Vec<RqDo>,
    rsp: Vec<RspDo>,
    /// The steps by program counter, for those who tell the story.
    pub(super) rq_steps: Vec<Rq>,
    pub(super) rsp_steps: Vec<Rsp>,
    /// Acknowledgements sent and buffers given back before each step of the responder.
    acks: Vec<u8>,
    reposts: Vec<u8>,
    /// The requester's program counter after each round.
    round_ends: Vec<usize>,
    buffers: u8,
    stores: Atoms,
    shape: crate::recipe::Shape,
    words: Vec<u8>,
    /// Place of word `w` of update `u` in round `r`: `update_places[r][u] + w`.
    update_places: Vec<Vec<u8>>,
    places: usize,
    found: Vec<Found>,
    same_place: bool,
    deepest: Level,
}

/// Collects the places and the atoms.
struct Builder {
    places: Vec<Destination>,
    atoms: Vec<Atom>,
}

impl Builder {
    fn place(&mut self, place: Destination) -> u8 {
        let known = self.places.iter().position(|p| *p == place);
        known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        }) as u8
    }

    fn atom(&mut self, place: Destination, version: u8, cpu: bool, pm: bool, op: u8) -> Atoms {
        let place_index = self.place(place);
        let same = |a: &&Atom| a.place_index == place_index;
        let older = self.atoms.iter().enumerate().filter(|(_, a)| same(a)).fold(0, |m, (n, _)| m | 1 << n);
        self.atoms.push(Atom { place, cpu, pm, version, place_index, op, older });
        assert!(self.atoms.len() <= ATOMS_MAX, "too many words for the checker");
        1 << (self.atoms.len() - 1)
    }
}

impl Program {
    pub(super) fn new(recipe: &Recipe, machine: &Machine, scenario: &Scenario) -> Self {
        let count = recipe.shape.count;
        let words: Vec<u8> = (0..count)
            .map(|n| if recipe.shape.word && n + 1 == count { 1 } else { scenario.words })
            .collect();
        let mut b = Builder { places: Vec::new(), atoms: Vec::new() };
        let version_of = |round: u8| round + 1;
        let round_of = |round: u8| if scenario.same_place { 0 } else { round };
        let mut update_places = Vec::new();
        for round in 0..scenario.rounds {
            let mut row = Vec::new();
            for update in 0..count {
                let place =
                    |word| Destination::Update { update: Update(update), round: round_of(round), word };
                row.push(b.place(place(0)));
                for word in 1..words[usize::from(update)] {
                    b.place(place(word));
                }
            }
            update_places.push(row);
        }
        let buffers = scenario.buffers(recipe);
        let in_pm = machine.config.buffers == Buffers::Pm;
        let mut postings: Vec<Posting> = Vec::new();
        let (mut rq, mut rq_steps, mut round_ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut messages: Vec<(u8, u8, Message)> = Vec::new();
        let (mut flushes, mut acks_awaited) = (0, 0);
        // Atoms of the RNIC first, in the order of posting: packets arrive in the order of their numbers.
        for round in 0..scenario.rounds {
            for step in recipe.requester() {
                let op = postings.len() as u8;
                let update_atoms = |b: &mut Builder, update: Update| {
                    (0..words.get(usize::from(update.0)).copied().unwrap_or(0)).fold(0, |mask, word| {
                        let place = Destination::Update { update, round: round_of(round), word };
                        mask | b.atom(place, version_of(round), false, true, op)
                    })
                };
                let mut message_atoms = |b: &mut Builder, message: Message| {
                    let number = messages.len() as u8;
                    messages.push((op, round, message));
                    let buffer = number % buffers;
                    let length: u8 = message.data.iter().map(|u| words[usize::from(u.0)]).sum();
                    // A message without data still is something in a buffer; a WRITE_IMM leaves the buffer empty.
                    let atoms = (0..length.max(1)).fold(0, |mask, word| {
                        mask | b.atom(Destination::Buffer { buffer, word }, number + 1, false, in_pm, op)
                    });
                    (number, atoms)
                };
                let (kind, atoms, message) = match step {
                    Rq::Comp => {
                        rq.push(RqDo::Complete(op.wrapping_sub(1)));
                        rq_steps.push(step);
                        continue;
                    }
                    Rq::Receive => {
                        acks_awaited += 1;
                        rq.push(RqDo::Acknowledged(acks_awaited));
                        rq_steps.push(step);
                        continue;
                    }
                    Rq::Write(u) | Rq::FencedWrite(u) => (Kind::Posted, update_atoms(&mut b, u), None),
                    Rq::AtomicWrite(u) => (Kind::Atomic, update_atoms(&mut b, u), None),
                    Rq::WriteImm(u) => {
                        let atoms = update_atoms(&mut b, u);
                        let number = messages.len() as u8;
                        messages.push((op, round, Message::notice(crate::recipe::Set::one(u))));
                        (Kind::Posted, atoms, Some(number))
                    }
                    Rq::Send(message) => {
                        let (number, atoms) = message_atoms(&mut b, message);
                        (Kind::Posted, atoms, Some(number))
                    }
                    Rq::Flush(flush) => (Kind::Flush(flush), 0, None),
                };
                let before = |wanted: Kind| {
                    postings.iter().filter(|p| p.kind == wanted).fold(0, |mask, p| mask | p.atoms)
                };
                let (posted_before, atomic_before) = (before(Kind::Posted), before(Kind::Atomic));
                let flush = if kind == Kind::Posted { 0 } else { 1 << flushes };
                postings.push(Posting {
                    kind,
                    atoms,
                    fenced: matches!(step, Rq::FencedWrite(_)),
                    message,
                    send: matches!(step, Rq::Send(_)),
                    posted_before,
                    atomic_before,
                    flushes_before: (1 << flushes) - 1,
                    flush,
                });
                flushes += u32::from(flush != 0);
                assert!(flushes <= FLUSHES_MAX, "too many flushes for the checker");
                rq.push(RqDo::Post(op));
                rq_steps.push(step);
            }
            round_ends.push(rq.len());
        }
        let mut this = Self {
            machine: *machine,
            atoms: Vec::new(),
            postings,
            rq,
            rsp: Vec::new(),
            rq_steps,
            rsp_steps: Vec::new(),
            acks: vec![0],
            reposts: vec![0],
            round_ends,
            buffers,
            stores: 0,
            shape: recipe.shape,
            words,
            update_places,
            places: 0,
            found: Vec::new(),
            same_place: scenario.same_place,
            deepest: if machine.media || machine.config.domain == Domain::PageCache {
                Level::Media
            } else {
                Level::Imc
            },
        };
        this.responder(recipe, scenario, &messages, &mut b);
        this.places = b.places.len();
        this.atoms = b.atoms;
        assert!(this.rq.len().max(this.rsp.len()) < PC as usize, "too many steps for the checker");
        if recipe.replay && in_pm && machine.holds(Assumption::Replay) {
            this.find(&messages);
        }
        this
    }

    /// The responder's program.
    fn responder(
        &mut self,
        recipe: &Recipe,
        scenario: &Scenario,
        messages: &[(u8, u8, Message)],
        b: &mut Builder,
    ) {
        let mut received = 0;
        for round in 0..scenario.rounds {
            for step in recipe.responder().chain(recipe.deferred.iter().copied()) {
                let does = match step {
                    Rsp::Receive(_) => {
                        received += 1;
                        RspDo::Receive(messages.get(received - 1).map(|(op, ..)| *op))
                    }
                    Rsp::Copy(update) => {
                        let brings = |m: &&(u8, u8, Message)| m.1 == round && m.2.data.has(update);
                        let from = messages.iter().find(brings).map(|(op, _, m)| {
                            let skip: u8 = m
                                .data
                                .iter()
                                .take_while(|u| *u != update)
                                .map(|u| self.words[usize::from(u.0)])
                                .sum();
                            let first =
                                self.postings[usize::from(*op)].atoms.trailing_zeros() + u32::from(skip);
                            ((1 << self.words[usize::from(update.0)]) - 1) << first
                        });
                        let round_place = if scenario.same_place { 0 } else { round };
                        let atoms = (0..self.words[usize::from(update.0)]).fold(0, |mask, word| {
                            let place = Destination::Update { update, round: round_place, word };
                            mask | b.atom(place, round + 1, true, true, 0)
                        });
                        self.stores |= atoms;
                        RspDo::Copy { atoms, from }
                    }
                    Rsp::Flush(target) => {
                        let buffer = received.checked_sub(1).map(|n| n as u8 % self.buffers);
                        let round_place = if scenario.same_place { 0 } else { round };
                        let here = |place: Destination| match (place, target) {
                            (Destination::Update { update, round, .. }, Target::Update(u)) => {
                                update == u && round == round_place
                            }
                            (Destination::Buffer { buffer: n, .. }, Target::Buffer) => Some(n) == buffer,
                            _ => false,
                        };
                        // Stores of later rounds are not there yet; that they are in the mask does no harm.
                        let atoms = b.atoms.iter().enumerate().filter(|(_, a)| a.pm && here(a.place));
                        RspDo::Flush(atoms.fold(0, |mask, (n, _)| mask | 1 << n))
                    }
                    Rsp::Ack => RspDo::Ack,
                    Rsp::Repost => RspDo::Repost,
                };
                let (acks, reposts) = (self.acks[self.rsp.len()], self.reposts[self.rsp.len()]);
                self.acks.push(acks + u8::from(does == RspDo::Ack));
                self.reposts.push(reposts + u8::from(does == RspDo::Repost));
                self.rsp.push(does);
                self.rsp_steps.push(step);
            }
        }
    }

    /// What recovery will look for in the receive buffers.
    fn find(&mut self, messages: &[(u8, u8, Message)]) {
        for (number, (op, round, message)) in messages.iter().enumerate() {
            if message.data.is_empty() {
                continue;
            }
            let mut targets = message.data.iter().flat_map(|u| {
                let first = self.update_places[usize::from(*round)][usize::from(u.0)];
                (0..self.words[usize::from(u.0)]).map(move |w| (first + w, round + 1))
            });
            let atoms = self.postings[usize::from(*op)].atoms;
            let of_it = self.atoms.iter().enumerate().filter(|(n, _)| atoms >> n & 1 == 1);
            let words = of_it.map(|(_, atom)| (atom.place_index, targets.next())).collect();
            self.found.push(Found { number: number as u8, words });
        }
        if !self.machine.holds(Assumption::ReplayInOrder) {
            self.found.reverse();
        }
    }

    /// The step that posted a work request.
    pub(super) fn posting_name(&self, op: usize) -> String {
        let at = self.rq.iter().position(|does| *does == RqDo::Post(op as u8));
        at.map_or_else(String::new, |n| self.rq_steps[n].to_string())
    }

    /// Which message an atom of a receive buffer belongs to, from 1.
    pub(super) fn message_number(&self, n: usize) -> u8 {
        self.atoms[n].version
    }

    pub(super) const fn initial(&self) -> State {
        State { atoms: 0, control: 0 }
    }

    /// Whether both sides are at their end.
    pub(super) fn finished(&self, s: State) -> bool {
        s.rq() == self.rq.len() && s.rsp() == self.rsp.len()
    }

    /// How many rounds the requester believes durable.
    pub(super) fn acknowledged(&self, s: State) -> usize {
        self.round_ends.iter().take_while(|end| s.rq() >= **end).count()
    }

    /// Every move that the machine may make.
    pub(super) fn moves(&self, s: State, mut to: impl FnMut(Event, State)) {
        self.requester_moves(s, &mut to);
        self.responder_moves(s, &mut to);
        self.flush_moves(s, &mut to);
        for atom in 0..self.atoms.len() {
            self.atom_moves(s, atom, &mut to);
        }
    }

    fn requester_moves(&self, s: State, to: &mut impl FnMut(Event, State)) {
        let Some(does) = self.rq.get(s.rq()) else { return };
        let next = match does {
            RqDo::Post(op) => {
                let posting = &self.postings[usize::from(*op)];
                let held = posting.fenced && !s.executed(posting.flushes_before);
                let mut next = s.rq_next();
                for atom in bits(posting.atoms) {
                    next = next.with(atom, Level::Wire);
                }
                (!held).then_some(next)
            }
            RqDo::Complete(op) => {
                let over = self.postings.get(usize::from(*op)).is_none_or(|last| {
                    let early = self.machine.config.transport == Transport::Iwarp;
                    let own = if last.kind == Kind::Posted { last.atoms } else { 0 };
                    s.executed(last.flushes_before | last.flush)
                        && (early || s.at_least(last.posted_before | own, Level::Rnic))
                });
                over.then(|| s.rq_next())
            }
            RqDo::Acknowledged(n) => (self.acks[s.rsp()] >= *n).then(|| s.rq_next()),
        };
        if let Some(next) = next {
            to(Event::Requester(s.rq()), next);
        }
    }

    fn responder_moves(&self, s: State, to: &mut impl FnMut(Event, State)) {
        let Some(does) = self.rsp.get(s.rsp()) else { return };
        // What goes to the RNIC goes through its doorbell, a store behind all others.
        let rings = || !self.machine.holds(Assumption::Doorbell) || s.none_at(self.stores, Level::Rnic);
        let next = match *does {
            RspDo::Receive(None) => None,
            RspDo::Receive(Some(op)) => {
                let posting = &self.postings[usize::from(op)];
                let before = if self.machine.holds(Assumption::ReceiveAfterPlacement) {
                    posting.posted_before
                } else {
                    0
                };
                s.at_least(posting.atoms | before, Level::Iio).then(|| s.rsp_next())
            }
            RspDo::Copy { atoms, from } => {
                let there =
                    from.is_some_and(|from| s.at_least(from, Level::Iio) && s.none_at(from, Level::Gone));
                // Word by word: a crash may come between two stores.
                let word = bits(atoms).find(|n| s.level(*n) == Level::None);
                let last = word.is_none_or(|n| atoms >> n == 1);
                let mut next = if last { s.rsp_next() } else { s };
                match word {
                    Some(n) if there => next = next.with(n, Level::Rnic),
                    _ => next.control |= GARBAGE,
                }
                Some(next)
            }
            RspDo::Flush(atoms) => {
                let deep =
                    if self.machine.config.domain == Domain::PageCache { Level::Media } else { Level::Imc };
                let written = bits(atoms).all(|n| {
                    let level = s.level(n);
                    let visible = level >= Level::Iio || self.atoms[n].cpu && level == Level::Rnic;
                    !visible || level >= deep
                });
                written.then(|| s.rsp_next())
            }
            RspDo::Ack | RspDo::Repost => rings().then(|| s.rsp_next()),
        };
        if let Some(next) = next {
            to(Event::Responder(s.rsp()), next);
        }
    }

    fn flush_moves(&self, s: State, to: &mut impl FnMut(Event, State)) {
        for (op, posting) in self.postings.iter().enumerate() {
            if posting.kind == Kind::Posted
                || s.executed(posting.flush)
                || !s.executed(posting.flushes_before)
            {
                continue;
            }
            let posted = self.rq[..s.rq()].contains(&RqDo::Post(op as u8));
            let ready = || match posting.kind {
                Kind::Flush(kind) => self.pushed(s, posting, kind),
                Kind::Atomic | Kind::Posted => s.at_least(posting.atoms, Level::Rnic),
            };
            if posted && ready() {
                to(Event::Executed(op), State { control: s.control | posting.flush << FLUSH_SHIFT, ..s });
            }
        }
    }

    /// Whether everything before a flush is where the flush promises it to be.
    fn pushed(&self, s: State, posting: &Posting, kind: Flush) -> bool {
        if !self.machine.holds(Assumption::SameQp) {
            return true;
        }
        // With relaxed ordering a READ pushes the bytes that it reads, and nothing else (ibv_reg_mr(3)).
        if kind == Flush::Read && self.machine.config.order == Order::Relaxed {
            return true;
        }
        let visible = match (self.machine.holds(Assumption::FlushLeavesIio), self.machine.config.ddio) {
            (false, _) => Level::Iio,
            (true, true) => Level::L3,
            (true, false) => Level::Imc,
        };
        let wanted =
            if kind == Flush::Persistent { visible.max(self.machine.durable_from()) } else { visible };
        bits(posting.posted_before | posting.atomic_before).all(|n| {
            let atom = &self.atoms[n];
            let of_send = self.postings[usize::from(atom.op)].send;
            let covered = kind == Flush::Read || !of_send || self.machine.holds(Assumption::FlushCoversSend);
            s.level(n) >= if atom.pm && covered { wanted } else { Level::Iio }
        })
    }

    fn atom_moves(&self, s: State, n: usize, to: &mut impl FnMut(Event, State)) {
        let atom = &self.atoms[n];
        let mut go = |level: Level| {
            let mut next = s.with(n, level);
            // Where it comes to lie there is room for one value; an earlier one further down stays there.
            let ceiling = level.max(Level::L3);
            for older in bits(atom.older) {
                let at = next.level(older);
                if at >= Level::Iio && at <= ceiling {
                    next = next.with(older, Level::Gone);
                }
            }
            to(Event::Moved { atom: n, to: level }, next);
        };
        match s.level(n) {
            Level::None | Level::Media | Level::Gone => {}
            Level::Wire => {
                let posting = &self.postings[usize::from(atom.op)];
                let in_order =
                    self.machine.config.order == Order::Relaxed || n == 0 || s.level(n - 1) > Level::Wire;
                let room = posting.message.is_none_or(|m| m < self.buffers + self.reposts[s.rsp()]);
                if in_order && room {
                    go(Level::Rnic);
                }
            }
            Level::Rnic if atom.cpu => {
                let earlier = self.stores & ((1 << n) - 1);
                if !self.machine.holds(Assumption::StoresInOrder) || s.none_at(earlier, Level::Rnic) {
                    go(Level::L3);
                }
            }
            Level::Rnic => {
                let posting = &self.postings[usize::from(atom.op)];
                let behind = match (posting.kind, self.machine.config.order) {
                    (Kind::Posted, Order::Relaxed) => true,
                    (Kind::Posted, Order::Posted) => s.at_least(posting.posted_before, Level::Iio),
                    (Kind::Atomic | Kind::Flush(_), _) => {
                        s.at_least(posting.posted_before | posting.atomic_before, Level::Iio)
                            && s.executed(posting.flush)
                    }
                };
                if behind {
                    go(Level::Iio);
                }
            }
            Level::Iio if !atom.pm => {}
            Level::Iio => {
                if self.machine.config.ddio {
                    go(Level::L3);
                }
                go(Level::Imc);
            }
            Level::L3 => go(Level::Imc),
            Level::Imc => {
                if self.deepest == Level::Media {
                    go(Level::Media);
                }
            }
        }
    }

    /// The power goes (or the process dies) now; recovery runs. What is wrong with what it finds?
    pub(super) fn crash(&self, s: State) -> Option<Fault> {
        if s.control & GARBAGE != 0 {
            return Some(Fault::Garbage);
        }
        let mut values = [0_u8; 2 * ATOMS_MAX];
        for (n, atom) in self.atoms.iter().enumerate() {
            let value = &mut values[usize::from(atom.place_index)];
            if atom.version > *value && self.survives(s, n) {
                *value = atom.version;
            }
        }
        self.replay(&mut values);
        self.judge(&values[..self.places], self.acknowledged(s))
    }

    /// Whether an atom is found after a crash.
    pub(super) fn survives(&self, s: State, n: usize) -> bool {
        let level = s.level(n);
        let atom = &self.atoms[n];
        if !atom.pm || level == Level::Gone {
            return false;
        }
        if atom.cpu && level == Level::Rnic {
            return self.machine.keeps_store_buffer();
        }
        level >= self.machine.durable_from()
    }

    fn replay(&self, values: &mut [u8]) {
        for message in &self.found {
            let whole = |(place, _): &(u8, _)| values[usize::from(*place)] == message.number + 1;
            let valid = if self.machine.holds(Assumption::MessageChecksum) {
                message.words.iter().all(whole)
            } else {
                message.words.iter().any(whole)
            };
            if !valid {
                continue;
            }
            for (place, target) in &message.words {
                if let Some((update, version)) = target {
                    let there = values[usize::from(*place)] == message.number + 1;
                    values[usize::from(*update)] = if there { *version } else { 0 };
                }
            }
        }
    }

    fn judge(&self, values: &[u8], acknowledged: usize) -> Option<Fault> {
        let last = self.shape.count - 1;
        for (round, places) in self.update_places.iter().enumerate() {
            let wanted = round as u8 + 1;
            let of = |u: u8| {
                let first = usize::from(places[usize::from(u)]);
                &values[first..first + usize::from(self.words[usize::from(u)])]
            };
            let whole = |u: u8| of(u).iter().all(|v| *v >= wanted && *v == of(u)[0]);
            let some = |u: u8| of(u).iter().any(|v| *v >= wanted);
            for u in 0..=last {
                let update = Update(u);
                if round < acknowledged && !whole(u) {
                    return Some(Fault::Lost { update, round: round as u8 });
                }
                let guarded = self.shape.ordered && u < last;
                if !guarded && !self.machine.holds(Assumption::UpdateChecksum) && some(u) && !whole(u) {
                    return Some(Fault::Torn { update, round: round as u8 });
                }
                // In the same place an earlier round's value would be mistaken for this one's.
                if self.shape.ordered && u > 0 && !self.same_place && whole(u) && !whole(u - 1) {
                    return Some(Fault::Order { first: Update(u - 1), then: update, round: round as u8 });
                }
            }
        }
        None
    }
}

fn bits(mut mask: Atoms) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let n = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            n
        })
    })
}
