//! The responder's side of a session, sans-IO: what is done about each message that arrives.
//!
//! It is told of messages in the order in which they were received, reads them in their buffers, carries out the steps
//! that the plan lists for them, and says through [`World`] what to send and which buffers to give back. Memory is a
//! [`Medium`], so that the same code runs on a live region and on one that a test crashes at every step.
//!
//! One `psync` serves several flush steps where no order is asked for between them: it is done at the latest before an
//! acknowledgement, and before a copy that must come after what was flushed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use remanence_codec::{Malformed, clipped};
use remanence_persist::Config;
use remanence_persist::recipe::{Rsp, Target};
use remanence_pmem::Medium;

use crate::message::{Answer, AnswerKind, BY_IMMEDIATE, Entry, Immediates, Kind, Parsed};
use crate::program::{PLACE_BITS, Program};
use crate::ring::Ring;

/// What the responder does to the world.
pub trait World {
    /// Sends an answer.
    fn send(&mut self, answer: Answer);

    /// Gives the buffer of that message back to the RNIC.
    fn repost(&mut self, number: u64);

    /// Whether the session may have these bytes of the region written. All, where nothing is guarded.
    fn may_write(&mut self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        true
    }

    /// Lets the session's client, and nobody else, write the session's receive buffers: [`Immediates`]. Once a session at most.
    ///
    /// # Errors
    /// A sentence for the client, whose calls go on by SEND.
    fn immediates(&mut self) -> Result<Immediates, String> {
        Err("this server takes calls by SEND".to_owned())
    }

    /// Asks the application.
    ///
    /// # Errors
    /// Its sentence, for the client.
    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, String>;

    /// Asks the application where that answers later, by [`Responder::answered`] with this number; `false`: it answers at once.
    fn call_later(&mut self, number: u64, service: u16, request: &[u8]) -> bool {
        let _ = (number, service, request);
        false
    }
}

/// Why a session is over.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The client sent what no client of ours sends.
    #[error("the client broke the protocol: {0}")]
    Peer(&'static str),
    /// The medium failed; nothing more is acknowledged.
    #[error("the medium failed ({0}); what was not acknowledged may be lost; check the disk")]
    Medium(#[from] io::Error),
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Peer("a message is malformed")
    }
}

/// What a session is served with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// What both sides rely on.
    pub config: Config,
    /// Bytes that are served, from offset 0.
    pub data_len: u64,
    /// Where its receive buffers lie.
    pub ring: Ring,
    /// They are in persistent memory, and recovery looks at them.
    pub durable_buffers: bool,
    /// Of the session.
    pub stamp: u64,
    /// Unit of the places in immediates.
    pub shift: u32,
}

/// Steps that are owed for a message, and what it names.
#[derive(Debug)]
struct Owed {
    number: u64,
    /// The plan, and which of its messages it is.
    program: Arc<Program>,
    part: usize,
    entries: Vec<(u8, Entry)>,
    ordered: bool,
    /// Recovery would apply it.
    replay: bool,
    /// Bytes of the message.
    len: u32,
}

/// Counters of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Messages that were received.
    pub messages: u64,
    /// Updates copied to their places.
    pub copies: u64,
    /// Times that the medium was waited for.
    pub psyncs: u64,
    /// Acknowledgements that were sent.
    pub acks: u64,
}

impl std::ops::AddAssign for Served {
    fn add_assign(&mut self, one: Self) {
        self.messages += one.messages;
        self.copies += one.copies;
        self.psyncs += one.psyncs;
        self.acks += one.acks;
    }
}

/// What a call is answered.
type Reply = (AnswerKind, Vec<u8>);

/// The responder's side of one session.
#[derive(Debug)]
pub struct Responder {
    terms: Terms,
    received: u64,
    reposted: u64,
    announced: u64,
    plans: BTreeMap<u16, Arc<Program>>,
    /// Which part of which plan an immediate's number stands for.
    classes: BTreeMap<u8, (u16, u8)>,
    /// Calls come by WRITE with immediate, and every immediate is this client's number.
    immediates: Option<Immediates>,
    owed: VecDeque<Owed>,
    /// Calls that are answered later, and those behind them, whose answers are told in their order.
    unanswered: VecDeque<(u64, Option<Reply>)>,
    /// Write-backs were asked for and not waited for.
    unsynced: bool,
    served: Served,
    buffer: Vec<u8>,
}

/// So many plans one session may have: more than a client of ours ever makes.
const PLANS_MAX: usize = 1024;

impl Responder {
    /// A session that begins.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            received: 0,
            reposted: 0,
            announced: 0,
            plans: BTreeMap::new(),
            classes: BTreeMap::new(),
            immediates: None,
            owed: VecDeque::new(),
            unanswered: VecDeque::new(),
            unsynced: false,
            served: Served::default(),
            buffer: Vec::new(),
        }
    }

    /// What it was begun with.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What it did so far.
    #[must_use]
    pub const fn served(&self) -> Served {
        self.served
    }

    /// Adds a plan without asking whether it is right: for tests that show what a wrong one does.
    pub fn insert_plan(&mut self, number: u16, program: Program, classes: &[u8]) {
        for (part, class) in classes.iter().enumerate() {
            self.classes.insert(*class, (number, part as u8));
        }
        self.plans.insert(number, Arc::new(program));
    }

    /// The next message has arrived: in its buffer, or (with `imm`) as a WRITE_IMM of `len` bytes.
    ///
    /// # Errors
    /// The session is over. If the medium failed, the client has been told.
    pub fn message<M: Medium, B: Medium>(
        &mut self,
        len: u32,
        imm: Option<u32>,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let number = self.received + 1;
        let result = self.serve(number, len, imm, memory, buffers, world);
        if let Err(Fault::Medium(e)) = &result {
            self.failed(number, e, world);
        }
        result
    }

    /// Whether a message is in its receive buffer: it came by SEND, or as a call with this client's number.
    #[must_use]
    pub fn is_in_its_buffer(&self, imm: Option<u32>) -> bool {
        imm.is_none_or(|imm| self.immediates.is_some_and(|ours| ours.number == imm))
    }

    /// What a call asks of which service: a message that has arrived as the `nth` (from 0) of those that were not served yet.
    /// `None` is said of whatever else it is.
    #[must_use]
    pub fn call_ahead<B: Medium>(&self, nth: u64, len: u32, buffers: &B) -> Option<(u16, Vec<u8>)> {
        if nth >= u64::from(self.terms.ring.slots) {
            return None;
        }
        let number = self.received + 1 + nth;
        let mut buffer = vec![0; len.min(self.terms.ring.slot_size) as usize];
        buffers.read(self.terms.ring.buffer(number), &mut buffer);
        let message = Parsed::read(&buffer).ok()?;
        let header = message.header;
        let due = message.len == len && header.stamp == self.terms.stamp && header.number == number;
        (due && matches!(header.kind, Kind::Call)).then(|| (header.plan, message.body.to_vec()))
    }

    fn failed(&mut self, number: u64, e: &io::Error, world: &mut impl World) {
        let body = format!("the server's medium failed ({e})").into_bytes();
        world.send(Answer { kind: AnswerKind::Failed, number, reposted: self.announced, body });
    }

    fn serve<M: Medium, B: Medium>(
        &mut self,
        number: u64,
        len: u32,
        imm: Option<u32>,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        if self.received - self.reposted >= u64::from(self.terms.ring.slots) {
            return Err(Fault::Peer("more messages than receive buffers"));
        }
        self.received = number;
        self.served.messages += 1;
        match imm {
            Some(imm) if self.immediates.is_none() => {
                return self.immediate(number, len, imm, memory, buffers, world);
            }
            imm if !self.is_in_its_buffer(imm) => {
                return Err(Fault::Peer("an immediate is another client's number"));
            }
            _ => {}
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let bytes = len.min(self.terms.ring.slot_size) as usize;
        if buffer.len() < bytes {
            // A session that is silent has none.
            buffer.resize(bytes, 0);
        }
        buffers.read(self.terms.ring.buffer(number), &mut buffer[..bytes]);
        let message = Parsed::read(&buffer[..bytes]).map_err(Fault::from);
        let result = message.and_then(|message| match message.header.kind {
            Kind::Update | Kind::Plan if imm.is_some() => {
                Err(Fault::Peer("an immediate comes with what is no call"))
            }
            _ => self.sent(number, &message, len, memory, buffers, world),
        });
        self.buffer = buffer;
        result
    }

    fn sent<M: Medium, B: Medium>(
        &mut self,
        number: u64,
        message: &Parsed<'_>,
        len: u32,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let header = message.header;
        if message.len != len || header.stamp != self.terms.stamp || header.number != number {
            return Err(Fault::Peer("a message is not the one that was due"));
        }
        match header.kind {
            Kind::Update => {
                let program = self.plans.get(&header.plan).ok_or(Fault::Peer("the plan is unknown"))?;
                let program = Arc::clone(program);
                let index = usize::from(header.part);
                let part = program.parts().get(index).ok_or(Fault::Peer("the plan has no such message"))?;
                if !message.carries(part.message) || header.replay != program.replay() {
                    return Err(Fault::Peer("a message is not the one that its plan says"));
                }
                let (ordered, replay) = (program.ordered(), program.replay());
                for entry in &message.entries {
                    self.check(entry.offset, entry.len)?;
                }
                let all = (0..64).filter(|n| (part.message.notice.0 | part.message.data.0) >> n & 1 == 1);
                let entries: Vec<(u8, Entry)> = all.zip(message.entries.iter().copied()).collect();
                if !replay {
                    self.settle(memory, buffers, world)?;
                }
                self.act(number, &part.now, &entries, ordered, memory, buffers, world)?;
                self.owed.push_back(Owed { number, program, part: index, entries, ordered, replay, len });
            }
            Kind::Plan => {
                self.settle(memory, buffers, world)?;
                let refused = self.plan(header.plan, message.body)?;
                let kind = if refused.is_some() { AnswerKind::Refused } else { AnswerKind::Reply };
                self.answer(number, kind, refused.unwrap_or_default().into(), world);
            }
            Kind::Call if header.plan == BY_IMMEDIATE => {
                let (kind, body) = match self.take_immediates(world) {
                    Ok(ours) => (AnswerKind::Reply, ours.emit().to_vec()),
                    Err(why) => (AnswerKind::Refused, why.into_bytes()),
                };
                self.answer(number, kind, body, world);
            }
            Kind::Call => {
                // What the client sent before is in its place when the application looks.
                self.settle(memory, buffers, world)?;
                // Who is told of no buffers while it waits for answers has not more calls under way than there are.
                if self.unanswered.len() >= 2 * usize::from(self.terms.ring.slots) {
                    return Err(Fault::Peer("more calls than receive buffers are under way"));
                }
                if world.call_later(number, header.plan, message.body) {
                    self.give_back(number, world);
                    self.unanswered.push_back((number, None));
                } else {
                    let (kind, body) = self.reply(world.call(header.plan, message.body));
                    self.answer(number, kind, body, world);
                }
            }
        }
        Ok(())
    }

    fn reply(&self, answer: Result<Vec<u8>, String>) -> Reply {
        let room = self.terms.ring.slot_size as usize - crate::message::ANSWER_HEADER;
        match answer {
            Ok(body) if body.len() <= room => (AnswerKind::Reply, body),
            Ok(_) => (AnswerKind::Refused, b"the server's answer is longer than a message".to_vec()),
            Err(why) => (AnswerKind::Refused, clipped(&why, room).into()),
        }
    }

    fn give_back(&mut self, number: u64, world: &mut impl World) {
        world.repost(number);
        self.reposted = number;
    }

    /// Answers a call: its buffer is given back at once, and the answer says so. Answers are told in the order of the calls.
    fn answer(&mut self, number: u64, kind: AnswerKind, body: Vec<u8>, world: &mut impl World) {
        self.give_back(number, world);
        if self.unanswered.is_empty() {
            self.tell(number, kind, body, world);
        } else {
            self.unanswered.push_back((number, Some((kind, body))));
        }
    }

    /// The application's answer to a call that it answers later. Nothing becomes of it if that was answered already.
    pub fn answered(&mut self, number: u64, answer: Result<Vec<u8>, String>, world: &mut impl World) {
        let answer = self.reply(answer);
        let mut open = self.unanswered.iter_mut().filter(|(_, answer)| answer.is_none());
        if let Some((_, none)) = open.find(|(of, _)| *of == number) {
            *none = Some(answer);
        }
        while let Some((number, answer)) = self.unanswered.pop_front() {
            let Some((kind, body)) = answer else { return self.unanswered.push_front((number, None)) };
            self.tell(number, kind, body, world);
        }
    }

    /// The client may use the buffers of all that it was answered.
    fn tell(&mut self, number: u64, kind: AnswerKind, body: Vec<u8>, world: &mut impl World) {
        self.announced = self.announced.max(number);
        world.send(Answer { kind, number, reposted: self.announced, body });
    }

    fn take_immediates(&mut self, world: &mut impl World) -> Result<Immediates, String> {
        if !self.classes.is_empty() {
            return Err("immediates of this session say where updates are".to_owned());
        }
        if self.immediates.is_none() {
            self.immediates = Some(world.immediates()?);
        }
        Ok(self.immediates.expect("taken above"))
    }

    fn plan(&mut self, number: u16, body: &[u8]) -> Result<Option<&'static str>, Fault> {
        let (program, classes) = Program::parse(body)?;
        if self.plans.len() >= PLANS_MAX || self.plans.contains_key(&number) {
            return Err(Fault::Peer("too many plans"));
        }
        if !(classes.is_empty() || classes.len() == program.parts().len()) || classes.iter().any(|c| *c > 15)
        {
            return Err(Fault::Peer("a plan has other numbers than parts"));
        }
        if let Err(why) = program.check(&self.terms.config) {
            return Ok(Some(why));
        }
        if !classes.is_empty() && self.immediates.is_some() {
            return Ok(Some("the immediates of this session are its client's number"));
        }
        self.insert_plan(number, program, classes);
        Ok(None)
    }

    fn immediate<M: Medium, B: Medium>(
        &mut self,
        number: u64,
        len: u32,
        imm: u32,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let class = (imm >> PLACE_BITS) as u8;
        let known = self.classes.get(&class).and_then(|(plan, part)| {
            let program = self.plans.get(plan)?;
            Some((Arc::clone(program), usize::from(*part)))
        });
        let (program, index) = known.ok_or(Fault::Peer("an immediate means nothing"))?;
        let (part, ordered) = (&program.parts()[index], program.ordered());
        let offset = u64::from(imm & ((1 << PLACE_BITS) - 1)) << self.terms.shift;
        // Where exactly in the first unit it begins is not said; a flush may cover a little more.
        let end = (offset + u64::from(len) + (1 << self.terms.shift)).min(self.terms.data_len);
        let len = end.checked_sub(offset).and_then(|len| u32::try_from(len).ok());
        let len = len.ok_or(Fault::Peer("an immediate names a place outside of the region"))?;
        let update = part.message.notice.iter().next().ok_or(Fault::Peer("an immediate means nothing"))?;
        let entries = vec![(update.0, Entry { offset, len, data: None })];
        self.settle(memory, buffers, world)?;
        self.act(number, &part.now, &entries, ordered, memory, buffers, world)?;
        self.owed.push_back(Owed { number, program, part: index, entries, ordered, replay: false, len: 0 });
        Ok(())
    }

    fn check(&self, offset: u64, len: u32) -> Result<(), Fault> {
        let end = offset.checked_add(u64::from(len));
        if end.is_some_and(|end| end <= self.terms.data_len) {
            Ok(())
        } else {
            Err(Fault::Peer("an update lies outside of the region"))
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a message, and the three things it can touch")]
    fn act<M: Medium, B: Medium>(
        &mut self,
        number: u64,
        steps: &[Rsp],
        entries: &[(u8, Entry)],
        ordered: bool,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let find = |u: u8| entries.iter().find(|(n, _)| *n == u).map(|(_, entry)| *entry);
        let missing = || Fault::Peer("a step is about an update that the message does not name");
        for step in steps {
            match step {
                Rsp::Receive(_) => {}
                Rsp::Copy(u) => {
                    let entry = find(u.0).ok_or_else(missing)?;
                    let at = entry.data.ok_or_else(missing)?;
                    if !world.may_write(entry.offset, entry.len.into()) {
                        return Err(Fault::Peer("an update lies where this session may not write"));
                    }
                    if ordered {
                        self.sync(memory)?;
                    }
                    let mut bytes = vec![0; entry.len as usize];
                    buffers.read(self.terms.ring.buffer(number) + u64::from(at), &mut bytes);
                    memory.write(entry.offset, &bytes);
                    self.served.copies += 1;
                }
                Rsp::Flush(Target::Update(u)) => {
                    let entry = find(u.0).ok_or_else(missing)?;
                    memory.pwb(entry.offset..entry.offset + u64::from(entry.len));
                    self.unsynced = true;
                }
                Rsp::Flush(Target::Buffer) => {
                    let at = self.terms.ring.buffer(number);
                    buffers.pwb(at..at + u64::from(self.terms.ring.slot_size));
                    buffers.psync()?;
                    self.served.psyncs += 1;
                }
                Rsp::Ack => {
                    self.sync(memory)?;
                    self.announced = self.announced.max(self.reposted);
                    self.served.acks += 1;
                    let reposted = self.reposted;
                    world.send(Answer { kind: AnswerKind::Ack, number, reposted, body: Vec::new() });
                }
                // All of a message's effects first, and what makes recovery forget it: see `settle`.
                Rsp::Repost => {}
            }
        }
        Ok(())
    }

    fn sync<M: Medium>(&mut self, memory: &M) -> io::Result<()> {
        if self.unsynced {
            memory.psync()?;
            self.unsynced = false;
            self.served.psyncs += 1;
        }
        Ok(())
    }

    /// Does what is owed: late copies, in the order of the messages; then recovery is told to forget the messages; only then
    /// are their buffers given back.
    ///
    /// # Errors
    /// The medium failed.
    pub fn settle<M: Medium, B: Medium>(
        &mut self,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        if self.owed.is_empty() {
            return Ok(());
        }
        let owed: Vec<Owed> = self.owed.drain(..).collect();
        let mut forget = None;
        // A message that has arrived need not be durable yet, and its copy goes over what was acknowledged before: half a copy
        // must be repaired from the message.
        let fresh = owed.iter().filter(|message| message.replay && !self.terms.config.domain.keeps_caches());
        let mut any = false;
        for message in fresh {
            let at = self.terms.ring.buffer(message.number);
            buffers.pwb(at..at + u64::from(message.len));
            any = true;
        }
        if any {
            buffers.psync()?;
            self.served.psyncs += 1;
        }
        for message in &owed {
            self.act(
                message.number,
                &message.program.parts()[message.part].later,
                &message.entries,
                message.ordered,
                memory,
                buffers,
                world,
            )?;
            if message.replay {
                forget = Some(message.number);
            }
        }
        self.sync(memory)?;
        if let Some(number) = forget.filter(|_| self.terms.durable_buffers) {
            self.terms.ring.applied(buffers, number)?;
            self.served.psyncs += 1;
        }
        for message in owed {
            if message.program.parts()[message.part].later.contains(&Rsp::Repost) {
                world.repost(message.number);
                self.reposted = message.number;
            }
        }
        Ok(())
    }

    /// Tells the client something that it did not ask for.
    pub fn notice(&mut self, body: Vec<u8>, world: &mut impl World) {
        let (number, reposted) = (self.received, self.announced);
        world.send(Answer { kind: AnswerKind::Notice, number, reposted, body });
    }

    /// Nothing else is there to do: does what is owed, and tells the client of its buffers when that is worth a message.
    ///
    /// # Errors
    /// The medium failed; the client has been told.
    pub fn idle<M: Medium, B: Medium>(
        &mut self,
        memory: &M,
        buffers: &B,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let result = self.settle(memory, buffers, world);
        if let Err(Fault::Medium(e)) = &result {
            self.failed(self.received, e, world);
        }
        result?;
        let gives_back = self.reposted - self.announced >= u64::from(self.terms.ring.slots).div_ceil(4);
        if gives_back && self.unanswered.is_empty() {
            self.announced = self.reposted;
            let (number, reposted) = (self.received, self.reposted);
            world.send(Answer { kind: AnswerKind::Credit, number, reposted, body: Vec::new() });
        }
        Ok(())
    }

    /// Whether something is owed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether so much is owed that receive buffers run out.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.owed.len() * 2 >= usize::from(self.terms.ring.slots)
    }
}

#[cfg(test)]
mod tests;
