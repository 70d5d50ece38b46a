//! Calls by WRITE with immediate: a requester and a responder, and a network between them that does what it likes.

use proptest::prelude::*;
use remanence_persist::recipe::{Op, Shape, build};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::CrashImage;
use remanence_rnic::{PostError, RemoteAddr, SendFlags, SendOp};
use remanence_wire::Rkey;

use super::*;
use crate::hello::Window;
use crate::message::{HEADER, Header};
use crate::requester::{Port, Requester, Terms as Conduct};

const SLOTS: u16 = 4;
const SLOT: u32 = 512;
const STAMP: u64 = 0x0102_0304_0506_0708;
const BUFFERS: u64 = 1 << 32;
const OURS: Immediates = Immediates { number: 0x0A0B_0C0D, rkey: 0x51 };
const SERVICE: u16 = 3;
/// One whose calls are answered later.
const LATER: u16 = 4;

/// A message as it leaves the requester.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Posted {
    op: SendOp,
    bytes: Vec<u8>,
}

/// Staging, and what is posted from there.
struct Staged {
    memory: Vec<u8>,
    posted: Vec<Posted>,
}

impl Port for Staged {
    fn stage(&mut self, at: u64, bytes: &[u8]) {
        self.memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn post(&mut self, _: u64, op: SendOp, at: u64, len: u32, _: SendFlags) -> Result<(), PostError> {
        let bytes = self.memory[at as usize..][..len as usize].to_vec();
        self.posted.push(Posted { op, bytes });
        Ok(())
    }
}

/// An application that answers with what it was asked, and lets clients call by immediate.
#[derive(Default)]
struct Echo {
    asked: Vec<Vec<u8>>,
    answers: Vec<Answer>,
    opened: u32,
    /// Calls that are answered later.
    later: Vec<u64>,
}

impl World for Echo {
    fn send(&mut self, answer: Answer) {
        self.answers.push(answer);
    }

    fn repost(&mut self, _: u64) {}

    fn immediates(&mut self) -> Result<Immediates, String> {
        self.opened += 1;
        Ok(OURS)
    }

    fn call(&mut self, _: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        self.asked.push(request.to_vec());
        Ok(request.to_vec())
    }

    fn call_later(&mut self, number: u64, service: u16, _: &[u8]) -> bool {
        self.later.extend((service == LATER).then_some(number));
        service == LATER
    }
}

struct Pair {
    requester: Requester,
    port: Staged,
    responder: Responder,
    memory: CrashImage,
    buffers: CrashImage,
    world: Echo,
    posted: u64,
}

impl Pair {
    fn new() -> Self {
        let config: Config = "DMP+no-DDIO+DRAM".parse().expect("a configuration");
        let ring = Ring::volatile(SLOTS, SLOT);
        let conduct = Conduct {
            config,
            region: Window { rkey: 7, addr: 0, len: 4096 },
            buffers: Window { rkey: 8, addr: BUFFERS, len: ring.bytes() },
            slots: SLOTS,
            slot_size: SLOT,
            stamp: STAMP,
            shift: 6,
        };
        let terms = Terms { config, data_len: 4096, ring, durable_buffers: false, stamp: STAMP, shift: 6 };
        Self {
            requester: Requester::new(conduct, 64, 4, 1 << 16),
            port: Staged { memory: vec![0; 1 << 16], posted: Vec::new() },
            responder: Responder::new(terms),
            memory: CrashImage::new(4096, PersistenceDomain::Adr),
            buffers: CrashImage::new(ring.bytes(), PersistenceDomain::Adr),
            world: Echo::default(),
            posted: 0,
        }
    }

    /// A session whose calls go by immediate.
    fn opened() -> Self {
        let mut pair = Self::new();
        let posted = pair.call(BY_IMMEDIATE, &[]);
        assert_eq!(posted.op, SendOp::Send, "nobody may write before it was told");
        let answered = pair.deliver(&posted).expect("a call");
        let ours = Immediates::parse(&answered.body).expect("an answer");
        assert_eq!(ours, OURS);
        pair.requester.call_by_immediate(ours);
        pair
    }

    /// What the requester posts for a call.
    fn call(&mut self, service: u16, body: &[u8]) -> Posted {
        self.requester.call(Kind::Call, service, body, &mut self.port).expect("room");
        self.requester.drive(&mut self.port).expect("posted");
        self.posted += 1;
        self.requester.completed(self.posted);
        self.port.posted.pop().expect("it was posted")
    }

    /// Puts a message where its WRITE says, or where it is received.
    fn land(&self, posted: &Posted) {
        match posted.op {
            SendOp::WriteImm(to, _) => self.buffers.write(to.addr - BUFFERS, &posted.bytes),
            _ => {
                let at = self.responder.terms.ring.buffer(self.responder.received + 1);
                self.buffers.write(at, &posted.bytes);
            }
        }
    }

    /// The responder is told of it.
    fn announce(&mut self, len: u32, imm: Option<u32>) -> Result<(), Fault> {
        self.responder.message(len, imm, &self.memory, &self.buffers, &mut self.world)
    }

    /// All of it arrives, and its answer too.
    fn deliver(&mut self, posted: &Posted) -> Result<Answer, Fault> {
        self.land(posted);
        let imm = match posted.op {
            SendOp::WriteImm(_, imm) => Some(imm),
            _ => None,
        };
        self.announce(posted.bytes.len() as u32, imm)?;
        let answer = self.world.answers.pop().expect("an answer");
        self.requester.received(&answer.emit()).expect("an answer");
        Ok(answer)
    }

    /// The session is over, and the application heard of nothing.
    fn is_refused(&mut self, len: u32, imm: Option<u32>, why: &str) {
        let asked = self.world.asked.len();
        match self.announce(len, imm) {
            Err(Fault::Peer(_)) => {}
            other => panic!("{why}: {other:?}"),
        }
        assert_eq!(self.world.asked.len(), asked, "{why}");
    }
}

#[test]
fn what_is_answered_later_is_told_in_the_order_of_the_calls() {
    let mut pair = Pair::new();
    for (service, body) in [(LATER, b"a"), (SERVICE, b"b"), (LATER, b"c")] {
        let posted = pair.call(service, body);
        pair.land(&posted);
        pair.announce(posted.bytes.len() as u32, None).expect("a call");
    }
    let mut answered = |number, body: &[u8]| {
        pair.responder.answered(number, Ok(body.to_vec()), &mut pair.world);
        let told: Vec<Answer> = pair.world.answers.drain(..).collect();
        told.iter().for_each(|answer| pair.requester.received(&answer.emit()).expect("it waits for it"));
        told.into_iter().map(|answer| (answer.number, answer.body, answer.reposted)).collect::<Vec<_>>()
    };
    assert_eq!(answered(3, b"C"), [], "the first one waits still");
    let all = [(1, b"A".to_vec(), 1), (2, b"b".to_vec(), 2), (3, b"C".to_vec(), 3)];
    assert_eq!(answered(1, b"A"), all);
    assert_eq!(answered(1, b"again"), [], "it was answered");
    assert_eq!(pair.world.later, [1, 3]);
}

#[test]
fn who_waits_for_all_answers_is_given_no_buffers_for_further_calls() {
    let mut pair = Pair::new();
    for _ in 0..SLOTS {
        let posted = pair.call(LATER, b"a");
        pair.land(&posted);
        pair.announce(posted.bytes.len() as u32, None).expect("a call");
        pair.responder.idle(&pair.memory, &pair.buffers, &mut pair.world).expect("it goes on");
    }
    assert_eq!(pair.world.answers, []);
    pair.responder.answered(1, Ok(Vec::new()), &mut pair.world);
    assert_eq!(pair.world.answers.pop().expect("the first one").reposted, 1);
    // Who writes all the same may not fill the memory.
    let refused = (0..2 * SLOTS).find_map(|_| {
        let number = pair.responder.received + 1;
        let (kind, plan, entries, after) = (Kind::Call, LATER, 0, 0);
        let header = Header { stamp: STAMP, number, after, kind, replay: false, part: 0, plan, entries };
        let message = header.emit(0, &crc32fast::Hasher::new());
        pair.buffers.write(pair.responder.terms.ring.buffer(number), &message);
        pair.announce(message.len() as u32, None).err()
    });
    assert!(matches!(refused, Some(Fault::Peer(_))), "{refused:?}");
}

#[test]
fn a_call_by_immediate_is_these_bytes_in_the_buffer_that_is_next() {
    assert_eq!(OURS.emit(), [0x0A, 0x0B, 0x0C, 0x0D, 0, 0, 0, 0x51]);
    for cut in 0..8 {
        assert!(Immediates::parse(&OURS.emit()[..cut]).is_err());
    }
    assert!(Immediates::parse(&[0; 9]).is_err());
    let mut pair = Pair::opened();
    let posted = pair.call(SERVICE, b"put");
    let at = RemoteAddr { addr: BUFFERS + u64::from(SLOT), rkey: Rkey(OURS.rkey) };
    assert_eq!(posted.op, SendOp::WriteImm(at, OURS.number));
    #[rustfmt::skip]
    let golden = [
        0x27, 0x52, 0xEF, 0x47, // CRC-32
        0, 0, 0, 43, // length
        1, 2, 3, 4, 5, 6, 7, 8, // stamp
        0, 0, 0, 0, 0, 0, 0, 2, // number
        0, 0, 0, 0, 0, 0, 0, 0,
        2, 0, 0, 0, // a call
        0, 3, 0, 0, // service
        b'p', b'u', b't',
    ];
    assert_eq!(posted.bytes, golden);
    assert_eq!(pair.deliver(&posted).expect("a call").body, b"put");
}

#[test]
fn calls_by_immediate_go_round_the_buffers_and_each_is_answered() {
    let mut pair = Pair::opened();
    for n in 2..40_u8 {
        let posted = pair.call(SERVICE, &[n; 100]);
        let at = BUFFERS + u64::from(n - 1) % u64::from(SLOTS) * u64::from(SLOT);
        assert!(matches!(posted.op, SendOp::WriteImm(to, _) if to.addr == at), "{n}: {posted:?}");
        assert_eq!(pair.deliver(&posted).expect("a call").body, [n; 100]);
        assert!(pair.requester.reply(n.into()).is_some_and(|reply| reply.is_ok()));
    }
    assert_eq!(pair.world.asked.len(), 38);
    // The window is made once.
    let again = pair.call(BY_IMMEDIATE, &[]);
    pair.deliver(&again).expect("a call");
    assert_eq!(pair.world.opened, 1);
}

#[test]
fn no_more_calls_are_written_than_buffers_were_given_back() {
    let mut pair = Pair::opened();
    for n in 0..SLOTS {
        pair.call(SERVICE, &[n as u8; 8]);
    }
    pair.requester.call(Kind::Call, SERVICE, &[9; 8], &mut pair.port).expect("room in staging");
    pair.requester.drive(&mut pair.port).expect("posted");
    assert!(pair.port.posted.is_empty(), "it would be written over one that was not served yet");
}

#[test]
fn a_call_that_is_torn_or_lost_or_late_is_refused() {
    for older in [false, true] {
        let fresh = || {
            let mut pair = Pair::opened();
            if older {
                // An older call, as long as this one, lies where it is written.
                for _ in 0..SLOTS {
                    let posted = pair.call(SERVICE, &[0xEE; 100]);
                    pair.deliver(&posted).expect("a call");
                }
            }
            let posted = pair.call(SERVICE, &[7; 100]);
            (pair, posted)
        };
        let (_, whole) = fresh();
        for torn in (0..whole.bytes.len()).step_by(8) {
            let (mut pair, posted) = fresh();
            let SendOp::WriteImm(to, imm) = posted.op else { panic!("{posted:?}") };
            let mut there = vec![0; posted.bytes.len()];
            pair.buffers.read(to.addr - BUFFERS, &mut there);
            let end = (torn + 8).min(there.len());
            let missing = there[torn..end].to_vec();
            pair.land(&posted);
            if missing == posted.bytes[torn..end] {
                continue;
            }
            pair.buffers.write(to.addr - BUFFERS + torn as u64, &missing);
            pair.is_refused(posted.bytes.len() as u32, Some(imm), "a torn call");
        }
        let (mut pair, posted) = fresh();
        pair.is_refused(posted.bytes.len() as u32, Some(OURS.number), "a call that never arrived");
        // The second of two is announced in the place of the first.
        let (mut pair, _) = fresh();
        let second = pair.call(SERVICE, &[8; 100]);
        pair.land(&second);
        pair.is_refused(second.bytes.len() as u32, Some(OURS.number), "a call before its turn");
    }
}

#[test]
fn a_call_of_another_length_or_with_another_number_is_refused() {
    let len = HEADER as u32 + 100;
    for wrong in [0, 1, HEADER as u32, len - 1, len + 1, SLOT, SLOT + 1, u32::MAX] {
        let mut pair = Pair::opened();
        let posted = pair.call(SERVICE, &[7; 100]);
        pair.land(&posted);
        pair.is_refused(wrong, Some(OURS.number), "another length");
    }
    for wrong in [0, 1, OURS.number + 1, OURS.number ^ 1 << 31, u32::MAX] {
        let mut pair = Pair::opened();
        let posted = pair.call(SERVICE, &[7; 100]);
        pair.land(&posted);
        pair.is_refused(len, Some(wrong), "another client's number");
    }
    // Who has not asked has no number, whatever he writes.
    let mut pair = Pair::new();
    pair.requester.call_by_immediate(OURS);
    let posted = pair.call(SERVICE, &[7; 100]);
    pair.land(&posted);
    pair.is_refused(len, Some(OURS.number), "a call of one who may not");
}

#[test]
fn what_is_no_call_does_not_come_by_immediate() {
    let config: Config = "DMP+no-DDIO+DRAM".parse().expect("a configuration");
    let program = Program::compile(&build(&config, Op::Send, Shape::SINGLETON)).expect("a recipe");
    let mut update = Vec::new();
    Entry::emit(&mut update, 64, 8, true);
    update.extend_from_slice(b"an entry");
    let plan = program.emit();
    for (kind, plan, entries, body) in [(Kind::Update, 0, 1, update), (Kind::Plan, 1, 0, plan)] {
        for imm in [None, Some(OURS.number)] {
            let mut pair = Pair::opened();
            pair.responder.insert_plan(0, program.clone(), &[]);
            let (number, after) = (2, 0);
            let header = Header { stamp: STAMP, number, after, kind, replay: false, part: 0, plan, entries };
            let mut hash = crc32fast::Hasher::new();
            hash.update(&body);
            let bytes = [&header.emit(body.len() as u32, &hash)[..], &body].concat();
            pair.buffers.write(u64::from(SLOT), &bytes);
            match imm {
                None => pair.announce(bytes.len() as u32, None).expect("it comes by SEND"),
                Some(_) => pair.is_refused(bytes.len() as u32, imm, "no call"),
            }
        }
    }
}

#[test]
fn an_immediate_means_one_thing_in_a_session() {
    let config: Config = "DMP+DDIO+DRAM".parse().expect("a configuration");
    let program = Program::compile(&build(&config, Op::WriteImm, Shape::SINGLETON)).expect("a recipe");
    let classes = vec![0; program.parts().len()];
    // Updates first: calls go on by SEND.
    let mut pair = Pair::new();
    pair.responder.insert_plan(0, program.clone(), &classes);
    let posted = pair.call(BY_IMMEDIATE, &[]);
    assert_eq!(pair.deliver(&posted).expect("a call").kind, AnswerKind::Refused);
    assert_eq!(pair.world.opened, 0);
    let posted = pair.call(SERVICE, b"put");
    assert_eq!((posted.op, pair.deliver(&posted).expect("a call").kind), (SendOp::Send, AnswerKind::Reply));
    // Calls first: the plan is refused, in a sentence.
    let mut pair = Pair::opened();
    pair.responder.terms.config = config;
    let body = [program.emit(), classes].concat();
    pair.requester.call(Kind::Plan, 0, &body, &mut pair.port).expect("room");
    pair.requester.drive(&mut pair.port).expect("posted");
    let posted = pair.port.posted.pop().expect("it was posted");
    assert_eq!(posted.op, SendOp::Send);
    let answer = pair.deliver(&posted).expect("a plan");
    assert_eq!(answer.kind, AnswerKind::Refused);
    assert!(String::from_utf8_lossy(&answer.body).contains("client's number"));
}

proptest! {
    /// Any bytes anywhere in the session's buffers, any lengths and immediates: nothing is asked but what was asked for.
    #[test]
    fn whatever_a_client_writes_into_its_buffers_is_a_call_of_its_own_or_none(
        junk in prop::collection::vec((0_u64..u64::from(SLOTS) * u64::from(SLOT) - 64, prop::collection::vec(any::<u8>(), 1..64)), 0..4),
        lie in prop_oneof![Just(None), any::<u32>().prop_map(Some)],
        len in prop_oneof![Just(None), any::<u32>().prop_map(Some)],
    ) {
        let mut pair = Pair::opened();
        let posted = pair.call(SERVICE, &[7; 100]);
        pair.land(&posted);
        for (at, bytes) in &junk {
            pair.buffers.write(*at, bytes);
        }
        let whole = {
            let mut there = vec![0; posted.bytes.len()];
            pair.buffers.read(u64::from(SLOT), &mut there);
            there == posted.bytes
        };
        let imm = lie.unwrap_or(OURS.number);
        let len = len.unwrap_or(posted.bytes.len() as u32);
        let fair = whole && imm == OURS.number && len == posted.bytes.len() as u32;
        prop_assert_eq!(pair.announce(len, Some(imm)).is_ok(), fair);
        prop_assert_eq!(&pair.world.asked[..], if fair { &[vec![7; 100]][..] } else { &[][..] });
    }
}
