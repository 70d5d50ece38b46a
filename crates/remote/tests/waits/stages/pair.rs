//! A requester and a responder on real engines, in simulated time: the live halves' sans-IO cores, and a network that
//! delays. Everything comes from a seed; the responder's power goes after so many events.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_persist::recipe::Rq;
use remanence_persist::taxonomy::{Buffers, Domain, Order, Transport};
use remanence_persist::{Config, Recipe};
use remanence_pmem::Medium;
use remanence_remote::hello::Window;
use remanence_remote::message::{Answer, Kind};
use remanence_remote::program::{Classes, Program, granule_shift};
use remanence_remote::requester::{Method, Port, Refused, Requester, Terms, Ticket};
use remanence_remote::responder::{Responder, Terms as Serving, World};
use remanence_remote::ring::{self, Layout, Ring};
use remanence_rnic::{
    Access, AhAttr, CqHandle, Data, Device, FlushId, FlushOutcome, Instant, Memory, Mr, MrAttr, PdHandle,
    Placement, PlacementSupport, PostError, QpAttr, QpCaps, QpInit, QpState, QpType, RecvWr, RegionId,
    RxMeta, SendFlags, SendOp, SendWr, Sge, Span, Wc, WcOpcode, WcStatus,
};
use remanence_wire::{Gid, Mtu, Psn, Qpn};

use super::memory::{Cpu, DRAM, PM, PM_LEN, Shared, Stages};
use super::overtake::Overtaking;

const SLOT_SIZE: u32 = 512;
const STAGING: usize = 64 << 10;
/// Receive buffers of the client.
const ANSWERS: u64 = 64;
const STAMP: u64 = 0x5eed_5eed;
/// Nobody needs more than that; who does is stuck.
const STEPS_MAX: u32 = 20_000;
/// Steps that everybody may rest with nothing on the wire.
const RESTS: u32 = 64;

/// The client's memory: staging, and where answers arrive.
struct Plain(Vec<Vec<u8>>);

impl Memory for Plain {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[region.0 as usize][offset as usize..][..into.len()]);
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.0[region.0 as usize][offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn atomic_write(&mut self, _: RegionId, _: u64, _: [u8; 8]) {
        unreachable!("nobody writes here")
    }

    fn compare_and_swap(&mut self, _: RegionId, _: u64, _: u64, _: u64) -> u64 {
        unreachable!("nobody writes here")
    }

    fn fetch_add(&mut self, _: RegionId, _: u64, _: u64) -> u64 {
        unreachable!("nobody writes here")
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        PlacementSupport::empty()
    }

    fn flush(&mut self, _: FlushId, _: Span, _: Placement) -> FlushOutcome {
        unreachable!("nobody flushes here")
    }
}

struct End {
    device: Device,
    ip: IpAddr,
    pd: PdHandle,
    cq: CqHandle,
    qpn: Qpn,
}

impl End {
    fn new(last: u8) -> Self {
        let ip = IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
        let config =
            remanence_rnic::Config { gids: vec![Gid::from_ip(ip)], seed: last.into(), ..Default::default() };
        let mut device = Device::new(config);
        let pd = device.alloc_pd().expect("room");
        let cq = device.create_cq(4096).expect("room");
        let caps =
            QpCaps { max_send_wr: 512, max_recv_wr: 256, max_send_sge: 1, max_recv_sge: 1, max_inline: 256 };
        let init =
            QpInit { pd, ty: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = device.create_qp(&init).expect("room");
        Self { device, ip, pd, cq, qpn }
    }

    fn connect(&mut self, to: &(IpAddr, Qpn), mtu: Mtu, now: Instant) {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let init = QpAttr { state: Some(QpState::Init), access: Some(access), ..QpAttr::default() };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AhAttr::new(Gid::from_ip(to.0))),
            path_mtu: Some(mtu),
            dest_qpn: Some(to.1),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(7)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            self.device.modify_qp(now, self.qpn, &attr).expect("a fair transition");
        }
    }

    fn reg(&mut self, region: RegionId, offset: u64, len: u64, access: Access, memory: &impl Memory) -> Mr {
        let attr = MrAttr { span: Span { region, offset, len }, iova: offset, access };
        self.device.reg_mr(self.pd, &attr, memory).expect("fair rights")
    }

    fn completions(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.device.pop_cq(self.cq)).collect()
    }
}

struct ClientPort<'a> {
    end: &'a mut End,
    memory: &'a mut Plain,
    staging: Mr,
    posted: &'a mut VecDeque<(u64, bool)>,
}

impl Port for ClientPort<'_> {
    fn stage(&mut self, at: u64, bytes: &[u8]) {
        self.memory.write(RegionId(0), at, bytes);
    }

    fn post(&mut self, wr_id: u64, op: SendOp, at: u64, len: u32, flags: SendFlags) -> Result<(), PostError> {
        let sge = [Sge { addr: at, len, lkey: self.staging.lkey }];
        let data = Data::Sges(if len == 0 { &[] } else { &sge });
        let flags = flags | SendFlags::SIGNALED;
        self.end.device.post_send(self.end.qpn, &SendWr { wr_id, op, data, flags, ud: None })?;
        let posted = matches!(op, SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::Send);
        self.posted.push_back((wr_id, posted));
        Ok(())
    }
}

/// What the responder does goes to its engine, as long as there is power.
struct ServerWorld<'a> {
    end: &'a mut End,
    now: Instant,
    /// What leaves at once, while the CPU goes on; if `None`, it leaves later.
    leaves: Option<&'a mut Vec<(RxMeta, Vec<u8>)>>,
    shared: Shared,
    ring: Ring,
    incoming: Mr,
    /// The last receive buffer that was given to the engine.
    given: &'a mut u64,
}

impl ServerWorld<'_> {
    fn give(&mut self, number: u64) {
        *self.given = number;
        let sge = [Sge { addr: self.ring.buffer(number), len: SLOT_SIZE, lkey: self.incoming.lkey }];
        self.end.device.post_recv(self.end.qpn, &RecvWr { wr_id: number, sges: &sge }).expect("room");
    }
}

impl World for ServerWorld<'_> {
    fn send(&mut self, answer: Answer) {
        if self.shared.0.borrow_mut().event() {
            let bytes = answer.emit();
            let wr = SendWr {
                wr_id: u64::MAX,
                op: SendOp::Send,
                data: Data::Inline(&bytes),
                flags: SendFlags::empty(),
                ud: None,
            };
            self.end.device.post_send(self.end.qpn, &wr).expect("room");
            if let Some(leaves) = &mut self.leaves {
                leaves.extend(std::iter::from_fn(|| sent(self.end, self.now, &mut self.shared)));
            }
        }
    }

    fn repost(&mut self, number: u64) {
        if self.shared.0.borrow_mut().event() {
            self.give(number + u64::from(self.ring.slots));
        }
    }

    fn call(&mut self, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }
}

/// The next packet that an end sends, as it will arrive.
fn sent(end: &mut End, now: Instant, memory: &mut impl Memory) -> Option<(RxMeta, Vec<u8>)> {
    let mut buf = vec![0; 16 << 10];
    let t = end.device.poll_transmit(now, &mut buf, 1, memory)?;
    let rx = RxMeta {
        src: t.src,
        dst: t.dst,
        src_port: t.src_port,
        ip_id: Some(0),
        train_index: 0,
        ecn: 0,
        hop_limit: t.hop_limit,
    };
    buf.truncate(t.len);
    Some((rx, buf))
}

/// What a crashed run comes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Verdict {
    /// Everything that was promised is there.
    Kept,
    /// An acknowledged update is gone.
    Lost,
    /// A later update is there without the one before.
    Order,
    /// Nobody goes on.
    Stuck,
    /// Somebody noticed that the other one does not keep to the recipe.
    Refused,
}

/// What is tried.
#[derive(Clone, Debug)]
pub(crate) struct Story<'a> {
    pub(crate) config: Config,
    pub(crate) recipe: &'a Recipe,
    /// The last run goes to the places of the others by this one.
    pub(crate) then: Option<&'a Recipe>,
    pub(crate) seed: u64,
    /// The server looks at the client's plan before it serves it.
    pub(crate) checked: bool,
}

/// How fast everybody is, compared with the others. Some things only go wrong where somebody is far behind.
struct Pace {
    /// Words that move on in the responder's memory at a time, one time in so many.
    words: (u32, u32),
    /// Its CPU does something one time in so many.
    cpu: u32,
    /// Its RNIC sends one time in so many. A READ is executed when its response leaves: the WRITE behind it may pass it
    /// meanwhile (IBA Vol 1, 9.5).
    answers: u32,
    /// A FLUSH that takes time is over one time in so many.
    flushes: u32,
    /// A packet arrives there one time in so many.
    requests: u32,
    /// Nanoseconds that a packet may be late.
    late: u64,
    /// What came last moves on first, if it may.
    backwards: bool,
}

impl Pace {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut one = |of: [u32; 4]| of[rng.next_u32() as usize % 4];
        Self {
            words: (one([1, 1, 4, 16]), one([1, 1, 1, 8])),
            cpu: one([1, 1, 4, 16]),
            answers: one([1, 1, 2, 16]),
            flushes: one([1, 1, 1, 16]),
            requests: one([1, 1, 1, 8]),
            late: one([20_000, 20_000, 20_000, 100_000]).into(),
            backwards: one([0, 0, 0, 1]) == 1,
        }
    }

    fn turn(rng: &mut ChaCha8Rng, one_in: u32) -> bool {
        rng.next_u32().is_multiple_of(one_in)
    }
}

struct Flight {
    to: usize,
    rx: RxMeta,
    bytes: Vec<u8>,
}

struct Expected {
    ticket: Ticket,
    updates: Vec<(u64, Vec<u8>)>,
    acknowledged: bool,
}

pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) acknowledged: usize,
    pub(crate) events: u64,
    pub(crate) crashed: bool,
}

const RUNS: usize = 3;

/// The bytes of an update: those of no other one.
fn content(run: usize, update: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (1 + run * 41 + update * 7 + n / 8 * 3) as u8 | 0x80).collect()
}

impl Story<'_> {
    pub(crate) fn run(&self) -> Outcome {
        let Ok(program) = Program::compile(self.recipe) else { return refused() };
        if self.checked && program.check(&self.config).is_err() {
            return refused();
        }
        Play::new(self, program).run()
    }
}

fn refused() -> Outcome {
    Outcome { verdict: Verdict::Refused, acknowledged: 0, events: 0, crashed: false }
}

struct Play<'a> {
    story: &'a Story<'a>,
    rng: ChaCha8Rng,
    now: Instant,
    ends: [End; 2],
    plain: Plain,
    shared: Shared,
    wire: BTreeMap<(Instant, u64), Flight>,
    flights: u64,
    requester: Requester,
    responder: Responder,
    methods: [Arc<Method>; 2],
    /// The server was asked to apply what it has.
    asked: Option<u64>,
    staging: Mr,
    answers: Mr,
    incoming: Mr,
    ring: Ring,
    buffers: RegionId,
    layout: Option<Layout>,
    /// Receive completions that the responder has not looked at, and what had arrived by then.
    arrived: VecDeque<(Wc, u64)>,
    given: u64,
    overtaking: Overtaking,
    /// Bytes of an update that is no word.
    size: usize,
    posted: VecDeque<(u64, bool)>,
    expected: Vec<Expected>,
    over: bool,
    pace: Pace,
    rests: u32,
}

impl<'a> Play<'a> {
    fn new(story: &'a Story<'a>, program: Program) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(story.seed);
        let config = story.config;
        let pace = Pace::draw(&mut rng);
        // One in four runs to its end and is crashed there.
        let left = if rng.next_u32() % 4 == 0 { u64::MAX } else { 1 + rng.next_u64() % 160 };
        let shared = Shared(Rc::new(RefCell::new(Stages::new(config, rng.next_u64(), u64::MAX))));
        let now = Instant::from_nanos(1_000_000_000);
        let mut ends = [End::new(1), End::new(2)];
        let places = [(ends[0].ip, ends[0].qpn), (ends[1].ip, ends[1].qpn)];
        // Packets that overtake each other may be of one update, too. A message is never longer than its buffer.
        let sends =
            |recipe: &Recipe| recipe.requester().any(|step| matches!(step, Rq::Send(m) if m.data.0 != 0));
        let long = config.order == Order::Relaxed
            && !sends(story.recipe)
            && !story.then.is_some_and(sends)
            && rng.next_u32().is_multiple_of(4);
        let (mtu, size) = if long { (Mtu::B256, 320) } else { (Mtu::B1024, 24) };
        ends[0].connect(&places[1], mtu, now);
        ends[1].connect(&places[0], mtu, now);
        // No more receive buffers than one or two runs need.
        let messages = program.parts().len().max(1) as u16;
        let slots = messages * (1 + (rng.next_u32() % 2) as u16);
        let (buffers, ring, layout) = if config.buffers == Buffers::Pm {
            let layout = Layout::at_the_end(PM_LEN, 1, slots, SLOT_SIZE).expect("room");
            (PM, layout.ring(0), Some(layout))
        } else {
            (DRAM, Ring::volatile(slots, SLOT_SIZE), None)
        };
        let cpu = Cpu(shared.clone(), PM);
        if let Some(layout) = &layout {
            layout.format(&cpu).expect("memory does not fail");
            layout.ring(0).begin(&cpu, STAMP).expect("memory does not fail");
        }
        let every = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let data_len = layout.map_or(PM_LEN, |layout| layout.data_len);
        let memory = ends[1].reg(PM, 0, data_len, every, &shared);
        let incoming = ends[1].reg(buffers, ring.first, ring.bytes(), every, &shared);
        let plain = Plain(vec![vec![0; STAGING], vec![0; ANSWERS as usize * SLOT_SIZE as usize]]);
        let staging = ends[0].reg(RegionId(0), 0, STAGING as u64, Access::LOCAL_WRITE, &plain);
        let answers = ends[0].reg(RegionId(1), 0, plain.0[1].len() as u64, Access::LOCAL_WRITE, &plain);
        for n in 0..ANSWERS {
            give_answer(&mut ends[0], &answers, n);
        }
        let mut given = 0;
        let mut world = ServerWorld {
            end: &mut ends[1],
            now,
            leaves: None,
            shared: shared.clone(),
            ring,
            incoming,
            given: &mut given,
        };
        (1..=u64::from(slots)).for_each(|number| world.give(number));
        let shift = granule_shift(data_len);
        let terms = Terms {
            config,
            region: Window { rkey: memory.rkey.0, addr: 0, len: data_len },
            buffers: Window { rkey: incoming.rkey.0, addr: ring.first, len: ring.bytes() },
            slots,
            slot_size: SLOT_SIZE,
            stamp: STAMP,
            shift,
        };
        let mut responder = Responder::new(Serving {
            config,
            data_len,
            ring,
            durable_buffers: layout.is_some(),
            stamp: STAMP,
            shift,
        });
        let mut classes = Classes::default();
        let mut method = |number: u16, recipe: &Recipe| {
            let program = Program::compile(recipe).expect("a recipe");
            let numbers = classes.enter(&program).expect("few");
            responder.insert_plan(number, program, &numbers);
            Arc::new(Method::new(recipe, number, numbers).expect("compiled before"))
        };
        let methods = [method(0, story.recipe), method(1, story.then.unwrap_or(story.recipe))];
        let depth = 1 + (rng.next_u32() % 3) as usize;
        let requester = Requester::new(terms, 256, depth, STAGING as u64);
        // From here on the power may go.
        shared.0.borrow_mut().arm(left);
        let mut play = Self {
            story,
            rng,
            now,
            ends,
            plain,
            shared,
            wire: BTreeMap::new(),
            flights: 0,
            requester,
            responder,
            methods,
            asked: None,
            staging,
            answers,
            incoming,
            ring,
            buffers,
            layout,
            arrived: VecDeque::new(),
            given,
            overtaking: Overtaking::default(),
            size,
            posted: VecDeque::new(),
            expected: Vec::new(),
            over: false,
            pace,
            rests: 0,
        };
        play.plan_updates();
        play
    }

    /// Each run has places of its own, but where recovery repairs a torn one all write to the same.
    fn plan_updates(&mut self) {
        let recipe = self.story.recipe;
        let same = self.story.then.is_some() || recipe.replay && self.rng.next_u32().is_multiple_of(2);
        let count = usize::from(recipe.shape.count);
        // No two in one unit of write-back, so that the flush of one is none of another.
        let apart = if self.story.config.domain == Domain::PageCache { 4096 } else { 512 };
        for run in 0..RUNS {
            let update = |u: usize| {
                let word = recipe.shape.word && u + 1 == count;
                let place = if same { u } else { run * count + u };
                (128 + place as u64 * apart, content(run, u, if word { 8 } else { self.size }))
            };
            let updates = (0..count).map(update).collect();
            self.expected.push(Expected { ticket: Ticket(0), updates, acknowledged: false });
        }
    }

    fn run(mut self) -> Outcome {
        let mut next = 0;
        let mut stuck = true;
        for _ in 0..STEPS_MAX {
            if !self.client(&mut next) {
                break;
            }
            if self.shared.0.borrow().is_dead() {
                self.last_words(&mut next);
                stuck = false;
                break;
            }
            let all = self.expected.iter().all(|run| run.acknowledged);
            if all
                && !self.responder.is_busy()
                && self.arrived.is_empty()
                && self.wire.is_empty()
                && self.collect(true)
            {
                stuck = false;
                break;
            }
            if !self.step() {
                // Nothing is under way any more, and nobody has work: done, or stuck.
                stuck = !all;
                break;
            }
        }
        let verdict = if self.over {
            Verdict::Refused
        } else if stuck {
            Verdict::Stuck
        } else {
            self.judge()
        };
        let acknowledged = self.expected.iter().filter(|run| run.acknowledged).count();
        let (events, crashed) = (self.shared.0.borrow().events, self.shared.0.borrow().is_dead());
        Outcome { verdict, acknowledged, events, crashed }
    }

    /// The client does what it can: `false` when its session is over.
    fn client(&mut self, next: &mut usize) -> bool {
        let early = self.story.config.transport == Transport::Iwarp;
        loop {
            let mut moved = false;
            for wc in self.ends[0].completions() {
                moved = true;
                if wc.status != WcStatus::Success {
                    self.over = true;
                    return false;
                }
                if matches!(wc.opcode, WcOpcode::Recv) {
                    let mut bytes = vec![0; wc.byte_len as usize];
                    self.plain.read(RegionId(1), wc.wr_id * u64::from(SLOT_SIZE), &mut bytes);
                    give_answer(&mut self.ends[0], &self.answers, wc.wr_id);
                    if self.requester.received(&bytes).is_err() {
                        self.over = true;
                        return false;
                    }
                } else {
                    self.posted.retain(|(wr_id, _)| *wr_id > wc.wr_id);
                    self.requester.completed(wc.wr_id);
                }
            }
            // Without an acknowledgement of the responder's RNIC a completion says nothing.
            while let Some((wr_id, true)) = self.posted.front().copied().filter(|_| early) {
                self.posted.pop_front();
                self.requester.completed(wr_id);
                moved = true;
            }
            let mut port = ClientPort {
                end: &mut self.ends[0],
                memory: &mut self.plain,
                staging: self.staging,
                posted: &mut self.posted,
            };
            while let Some(run) = self.expected.get_mut(*next) {
                let updates: Vec<(u64, &[u8])> = run.updates.iter().map(|(at, b)| (*at, &b[..])).collect();
                let method = &self.methods[usize::from(*next + 1 == RUNS)];
                match self.requester.submit(method, &updates, &mut port) {
                    Ok(ticket) => run.ticket = ticket,
                    Err(Refused::Unapplied) if self.asked.is_none() => {
                        let asked = self.requester.call(Kind::Call, u16::MAX, &[], &mut port);
                        self.asked = asked.ok();
                        break;
                    }
                    Err(_) => break,
                }
                *next += 1;
                moved = true;
            }
            if self.requester.drive(&mut port).is_err() {
                self.over = true;
                return false;
            }
            while let Some((ticket, _)) = self.requester.finished() {
                let run = self.expected.iter_mut().find(|run| run.ticket == ticket);
                run.expect("it was submitted").acknowledged = true;
                moved = true;
            }
            if let Some(asked) = self.asked
                && self.requester.reply(asked).is_some()
            {
                (self.asked, moved) = (None, true);
            }
            if !moved {
                return true;
            }
        }
    }

    /// Takes what the client's engine wants to send, and (`both`) the responder's; `true` if nothing is on its way then.
    fn collect(&mut self, both: bool) -> bool {
        while let Some((rx, bytes)) = sent(&mut self.ends[0], self.now, &mut self.plain) {
            let (buffers, ring) = (self.buffers, self.ring);
            self.overtaking.sent(&bytes, |number| (buffers, ring.buffer(number)));
            self.fly(1, rx, bytes);
        }
        while let Some((rx, bytes)) =
            both.then(|| sent(&mut self.ends[1], self.now, &mut self.shared)).flatten()
        {
            self.fly(0, rx, bytes);
        }
        self.wire.is_empty()
    }

    /// A packet is on its way: in order, and some of them for a while; others pass in the meantime what they may pass.
    fn fly(&mut self, to: usize, rx: RxMeta, bytes: Vec<u8>) {
        let late = self.rng.next_u32().is_multiple_of(4);
        let delay = 1000 + if late { self.rng.next_u64() % self.pace.late } else { 0 };
        let last = self.wire.iter().filter(|(_, f)| f.to == to).map(|((at, _), _)| *at).max();
        let at = (self.now + Duration::from_nanos(delay)).max(last.unwrap_or(self.now));
        self.flights += 1;
        self.wire.insert((at, self.flights), Flight { to, rx, bytes });
    }

    /// The responder's power has gone. What had left it by then arrives.
    fn last_words(&mut self, next: &mut usize) {
        for flight in std::mem::take(&mut self.wire).into_values().filter(|flight| flight.to == 0) {
            self.deliver(&flight);
        }
        self.client(next);
    }

    /// One thing happens somewhere. `false` when nothing can happen any more.
    fn step(&mut self) -> bool {
        let answers = Pace::turn(&mut self.rng, self.pace.answers);
        self.collect(answers);
        let roll = self.rng.next_u32() % 8;
        if roll < 3 {
            let Pace { words: (words, seldom), backwards, .. } = self.pace;
            let moves = Pace::turn(&mut self.rng, seldom);
            if self.shared.0.borrow_mut().event() && !self.overtake() && moves {
                (0..words).for_each(|_| self.shared.0.borrow_mut().drift(backwards));
            }
            return true;
        }
        if roll == 3 && Pace::turn(&mut self.rng, self.pace.flushes) && self.finish_flush() {
            return true;
        }
        if roll == 4 && Pace::turn(&mut self.rng, self.pace.cpu) && self.serve() {
            return true;
        }
        let arrives = Pace::turn(&mut self.rng, self.pace.requests);
        let mut flights = self.wire.iter().filter(|(_, flight)| arrives || flight.to == 0);
        if let Some(key) = flights.next().map(|(key, _)| *key) {
            if !self.shared.0.borrow_mut().event() {
                return true;
            }
            self.now = self.now.max(key.0);
            let flight = self.wire.remove(&key).expect("it was the first");
            self.deliver(&flight);
            return true;
        }
        if !self.wire.is_empty() {
            return true;
        }
        // Who is slow is so with nothing on the wire too, but not for ever.
        self.rests = (self.rests + 1) % RESTS;
        let awake = self.rests == 0;
        let Pace { cpu, flushes, answers, .. } = self.pace;
        if (awake || Pace::turn(&mut self.rng, cpu)) && self.serve()
            || (awake || Pace::turn(&mut self.rng, flushes)) && self.finish_flush()
            || (awake || Pace::turn(&mut self.rng, answers)) && !self.collect(true)
            || !awake
        {
            return true;
        }
        let deadline = self.ends.iter().filter_map(|end| end.device.poll_timeout()).min();
        let Some(deadline) = deadline else { return false };
        self.now = self.now.max(deadline);
        self.ends.iter_mut().for_each(|end| end.device.handle_timeout(self.now));
        true
    }

    /// Where memory may be written in any order, some packet that waits behind others is placed.
    fn overtake(&mut self) -> bool {
        if self.story.config.order != Order::Relaxed || self.rng.next_u32().is_multiple_of(2) {
            return false;
        }
        let waiting: Vec<&Flight> = self.wire.values().filter(|flight| flight.to == 1).skip(1).collect();
        if waiting.is_empty() {
            return false;
        }
        let flight = waiting[self.rng.next_u32() as usize % waiting.len()];
        let Some((target, bytes)) = self.overtaking.place(&flight.bytes, self.given) else { return false };
        self.shared.0.borrow_mut().arrive_early(target.region, target.at, bytes, target.atomic);
        true
    }

    fn deliver(&mut self, flight: &Flight) {
        let end = &mut self.ends[flight.to];
        if flight.to == 0 {
            end.device.handle_datagram(self.now, &flight.rx, &flight.bytes, &mut self.plain);
            return;
        }
        self.overtaking.delivered(&flight.bytes);
        end.device.handle_datagram(self.now, &flight.rx, &flight.bytes, &mut self.shared);
        let mark = self.shared.0.borrow().mark();
        self.arrived.extend(end.completions().into_iter().map(|wc| (wc, mark)));
    }

    fn finish_flush(&mut self) -> bool {
        let id = {
            let mut stages = self.shared.0.borrow_mut();
            if stages.is_dead() { None } else { stages.finish_flush() }
        };
        let Some(id) = id else { return false };
        self.ends[1].device.flush_done(self.now, id, Ok(()), &mut self.shared);
        true
    }

    /// The responder's CPU looks at its next message, or does what it owes.
    fn serve(&mut self) -> bool {
        let next = self.arrived.pop_front();
        let memory = Cpu(self.shared.clone(), PM);
        let buffers = Cpu(self.shared.clone(), self.buffers);
        let mut left = Vec::new();
        let at_once = Pace::turn(&mut self.rng, self.pace.answers);
        let mut world = ServerWorld {
            end: &mut self.ends[1],
            now: self.now,
            leaves: at_once.then_some(&mut left),
            shared: self.shared.clone(),
            ring: self.ring,
            incoming: self.incoming,
            given: &mut self.given,
        };
        let result = match next {
            Some((wc, mark)) => {
                if wc.status != WcStatus::Success
                    || !matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
                {
                    return true;
                }
                self.shared.0.borrow_mut().make_visible(mark);
                let imm = (wc.opcode == WcOpcode::RecvRdmaWithImm).then(|| wc.imm.expect("it has one"));
                self.responder.message(wc.byte_len, imm, &memory, &buffers, &mut world)
            }
            None if self.responder.is_busy() => self.responder.idle(&memory, &buffers, &mut world),
            None => return false,
        };
        left.into_iter().for_each(|(rx, bytes)| self.fly(0, rx, bytes));
        self.over |= result.is_err() && !self.shared.0.borrow().is_dead();
        true
    }

    /// The power has gone; recovery runs. Is everything there that was promised?
    fn judge(&self) -> Verdict {
        let image = self.shared.0.borrow_mut().crash();
        if self.layout.is_some() {
            ring::recover(&image).expect("a crash is no damage");
        }
        let found = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            image.read(at, &mut bytes);
            bytes
        };
        for (n, run) in self.expected.iter().enumerate() {
            let there = |u: usize| {
                let (at, bytes) = &run.updates[u];
                let is = found(*at, bytes.len());
                // A later run may have written the same places.
                let later = self.expected[n + 1..].iter().any(|other| other.updates[u] == (*at, is.clone()));
                is == *bytes || later
            };
            let all: Vec<bool> = (0..run.updates.len()).map(there).collect();
            if run.acknowledged && all.contains(&false) {
                return Verdict::Lost;
            }
            let alone =
                self.expected.iter().filter(|other| other.updates[0].0 == run.updates[0].0).count() == 1;
            if alone && self.story.recipe.shape.ordered && all.windows(2).any(|pair| !pair[0] && pair[1]) {
                return Verdict::Order;
            }
        }
        Verdict::Kept
    }
}

fn give_answer(end: &mut End, answers: &Mr, n: u64) {
    let sge = [Sge { addr: n * u64::from(SLOT_SIZE), len: SLOT_SIZE, lkey: answers.lkey }];
    end.device.post_recv(end.qpn, &RecvWr { wr_id: n, sges: &sge }).expect("room");
}
