//! What clients called and were told, what was carried out, and what logs must have because of that.

use std::collections::{BTreeMap, BTreeSet};

use remanence_codec::Reader;
use remanence_pmem::counter::{Entry, Position};
use remanence_rpc::core::event::{Ended, Failure};
use remanence_rpc::header::Status;

use super::Plan;
use crate::cluster::NodeId;
use crate::report::counters;
use crate::rng::{Rng, fill};

counters! {
/// What the service did, counted.
Work {
    /// Sessions that clients got.
    connected,
    /// Sessions that strangers did not get.
    refused,
    /// Sessions that ended as somebody had started anew, or was taken for gone.
    given_up,
    /// Calls that were made.
    calls,
    /// Those that were answered.
    answered,
    /// Those of which nobody knows whether they were carried out.
    unknown,
    /// Those that were never sent.
    never_sent,
    /// Those whose callers died.
    orphans,
    /// Calls that a server was given to carry out.
    carried_out,
    /// Entries of logs that were acknowledged.
    appended,
    /// Appends for which there was no room.
    full,
    /// Entries that were read.
    read,
    /// Times that a log was trimmed.
    trimmed,
    /// Commits of logs.
    commits,
    /// Times that a server found its log again.
    found_again,
    /// Servers that ended because their medium had failed.
    media_ended,
    /// Times that a client went back for want of an answer.
    timeouts,
    /// Packets that were late, repeated or out of order.
    stale,
    /// Packets of no session, or from the wrong place.
    strange,
    /// Packets that break a rule of the protocol.
    misbehaved,
}
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The service that answers with bytes of its own.
    Echo,
    Append,
    /// The entry that was acknowledged there.
    Read(Position),
    /// The log ended there, or behind it.
    Bounds(Position),
    Trim(Position),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Open,
    Answered,
    /// The server had no room for it.
    NoRoom,
    Unknown,
    NeverSent,
    /// Its caller died.
    Orphan,
}

#[derive(Debug)]
struct Call {
    node: NodeId,
    server: NodeId,
    what: What,
    /// Bytes of the request.
    len: usize,
    fate: Fate,
    /// How often a server was given it to carry out.
    times: u32,
}

/// What the log of a server must have.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Where the entries are that were acknowledged: the end of each, and its call.
    acknowledged: BTreeMap<Position, (Position, u64)>,
    /// A server was asked to forget what is before it.
    asked: Position,
    /// It has said that it did.
    trimmed: Position,
    /// There was no room for an entry lately.
    pub(super) is_full: bool,
    /// A server has ended because its medium had failed.
    pub(super) failed: bool,
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    calls: BTreeMap<u64, Call>,
    pub(super) logs: Vec<Log>,
    /// Operations that each client may still begin, strangers first.
    pub(super) operations: Vec<u32>,
    /// The number of the last call.
    tag: u64,
    /// Calls that have not come to their ends.
    open: usize,
    /// When all clients were done: they go.
    pub(super) leaves: Option<u64>,
}

/// What call `tag` says: that number, and bytes that no other call has.
pub(super) fn content(tag: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(8)];
    fill(tag, &mut bytes);
    bytes[..8].copy_from_slice(&tag.to_be_bytes());
    bytes
}

/// Its answer, of a size that has nothing to do with the request's.
pub(super) fn answer(tag: u64) -> Vec<u8> {
    let mut rng = Rng::new(tag, 72);
    let len = match rng.below(4) {
        0 => 8,
        1 => 900,
        _ => rng.index(20_000),
    };
    content(!tag, len)
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            calls: BTreeMap::new(),
            logs: (0..plan.servers).map(|_| Log::default()).collect(),
            operations: vec![plan.operations; usize::from(plan.strangers + plan.clients)],
            tag: 0,
            open: 0,
            leaves: None,
        }
    }

    /// Whether the token of a node is another one.
    pub(super) fn is_stranger(&self, node: NodeId) -> bool {
        let servers = usize::from(self.plan.servers);
        (servers..servers + usize::from(self.plan.strangers)).contains(&node)
    }

    /// Whether a node is the client that comes at the end.
    pub(super) fn is_last(&self, node: NodeId) -> bool {
        node == usize::from(self.plan.servers + self.plan.strangers + self.plan.clients)
    }

    /// Whether some call has not come to its end.
    pub(super) const fn is_waiting(&self) -> bool {
        self.open > 0
    }

    /// Which calls have not.
    pub(super) fn waits(&self) -> Option<String> {
        let open = self.calls.iter().filter(|(_, call)| call.fate == Fate::Open);
        let open: Vec<String> = open.map(|(tag, call)| format!("{tag} of node {}", call.node)).collect();
        (!open.is_empty()).then(|| format!("calls without an end: {}", open.join(", ")))
    }

    /// The number of the next call.
    pub(super) const fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    pub(super) fn begins(&mut self, tag: u64, node: NodeId, server: NodeId, what: What, len: usize) {
        self.work.calls += 1;
        self.open += 1;
        self.calls.insert(tag, Call { node, server, what, len, fate: Fate::Open, times: 0 });
    }

    /// One of the entries that were acknowledged and are there: where it begins and ends.
    pub(super) fn entry(&self, server: NodeId, rng: &mut Rng) -> Option<(Position, Position)> {
        let log = &self.logs[server];
        let entries: Vec<_> = log.acknowledged.range(log.asked..).map(|(at, (end, _))| (*at, *end)).collect();
        (!entries.is_empty()).then(|| rng.pick(&entries))
    }

    /// Where the last of the entries ends that were acknowledged.
    pub(super) fn tail(&self, server: NodeId) -> Position {
        self.logs[server].acknowledged.values().next_back().map_or(0, |(end, _)| *end)
    }

    fn close(&mut self, tag: u64, fate: Fate) -> Result<(), String> {
        let call = self.calls.get_mut(&tag).ok_or_else(|| format!("call {tag} was never made"))?;
        let was = std::mem::replace(&mut call.fate, fate);
        if was != Fate::Open {
            return Err(format!("call {tag} ends twice: {was:?}, {fate:?}"));
        }
        self.open -= 1;
        match fate {
            Fate::Answered | Fate::NoRoom => self.work.answered += 1,
            Fate::Unknown => self.work.unknown += 1,
            Fate::NeverSent => self.work.never_sent += 1,
            Fate::Orphan => self.work.orphans += 1,
            Fate::Open => {}
        }
        match fate {
            Fate::Unknown | Fate::NeverSent if self.is_last(self.calls[&tag].node) => {
                Err(format!("call {tag} has no answer, though all faults are over: {fate:?}"))
            }
            _ => Ok(()),
        }
    }

    /// A client starts anew: what it had under way has no caller any more.
    pub(super) fn forgets(&mut self, node: NodeId) {
        let mine = self.calls.iter().filter(|(_, call)| call.node == node && call.fate == Fate::Open);
        for tag in mine.map(|(tag, _)| *tag).collect::<Vec<_>>() {
            self.close(tag, Fate::Orphan).expect("it was open");
        }
    }

    /// A server is given a call to carry out: its number.
    ///
    /// # Errors
    /// It is none that was made, is damaged, is a stranger's, or was carried out before.
    pub(super) fn carried_out(&mut self, server: NodeId, bytes: &[u8]) -> Result<u64, String> {
        let tag =
            bytes.first_chunk().map(|tag| u64::from_be_bytes(*tag)).ok_or("a request without a number")?;
        let Some(call) = self.calls.get_mut(&tag).filter(|call| call.server == server) else {
            return Err(format!("server {server} is called with {tag}, which nobody has called it with"));
        };
        call.times += 1;
        self.work.carried_out += 1;
        let (node, times, len) = (call.node, call.times, call.len);
        if bytes != content(tag, len) {
            return Err(format!("the request of call {tag} is damaged"));
        }
        if self.is_stranger(node) {
            return Err(format!("call {tag} of a stranger is carried out"));
        }
        if times > 1 {
            return Err(format!("call {tag} is carried out {times} times"));
        }
        Ok(tag)
    }

    /// A server acknowledges an entry.
    pub(super) fn acknowledged(&mut self, server: NodeId, tag: u64, place: &[u8]) -> Result<(), String> {
        let [position, end] = numbers(place)?;
        let log = &mut self.logs[server];
        match log.acknowledged.insert(position, (end, tag)) {
            Some((_, other)) => Err(format!("entries {other} and {tag} are both at {position}")),
            None => Ok(()),
        }
    }

    /// A server is to forget what is before a position.
    pub(super) fn trims(&mut self, server: NodeId, to: Position) {
        let log = &mut self.logs[server];
        log.asked = log.asked.max(to);
    }

    /// It says that it has.
    pub(super) fn trimmed(&mut self, server: NodeId, to: Position) {
        let log = &mut self.logs[server];
        log.trimmed = log.trimmed.max(to);
        self.work.trimmed += 1;
    }

    /// Whether a log may be like this.
    ///
    /// # Errors
    /// It may not. A sentence.
    pub(super) fn compare(
        &self,
        server: NodeId,
        (head, tail): (Position, Position),
        entries: &BTreeMap<Position, (Entry, Vec<u8>)>,
    ) -> Result<(), String> {
        let log = &self.logs[server];
        if head < log.trimmed || head > log.asked || tail < head {
            return Err(format!("it begins at {head} and ends at {tail}; trimmed to {}", log.trimmed));
        }
        let mut seen = BTreeSet::new();
        for (position, (entry, bytes)) in entries {
            let tag = bytes.first_chunk().map_or(0, |tag| u64::from_be_bytes(*tag));
            let call = self.calls.get(&tag);
            let call = call.filter(|call| call.server == server && matches!(call.what, What::Append));
            let call = call.ok_or_else(|| format!("what is at {position} was never appended"))?;
            if *bytes != content(tag, call.len) {
                return Err(format!("entry {tag} at {position} is damaged"));
            }
            if !seen.insert(tag) {
                return Err(format!("entry {tag} is there twice"));
            }
            if matches!(call.fate, Fate::NoRoom | Fate::NeverSent) {
                return Err(format!("entry {tag} is there, and was not appended: {:?}", call.fate));
            }
            match log.acknowledged.get(position) {
                Some((end, other)) if (*end, *other) != (entry.end, tag) => {
                    return Err(format!("entry {tag} is where entry {other} was acknowledged"));
                }
                _ => {}
            }
        }
        let missing = log.acknowledged.range(head..).find(|(position, _)| !entries.contains_key(position));
        match missing {
            Some((position, (_, tag))) => {
                Err(format!("entry {tag} was acknowledged at {position}, and is not there"))
            }
            None => Ok(()),
        }
    }

    /// A call is answered.
    ///
    /// # Errors
    /// It may not be answered so.
    pub(super) fn answered(&mut self, tag: u64, status: Status, bytes: &[u8]) -> Result<(), String> {
        let call = self.calls.get(&tag).ok_or_else(|| format!("call {tag} was never made"))?;
        let (server, what) = (call.server, call.what);
        let log = &mut self.logs[server];
        let mut fate = Fate::Answered;
        let is_right = match (what, status) {
            (What::Echo, Status::Done) => bytes == answer(tag),
            (What::Append, Status::Done) => {
                let [position, end] = numbers(bytes)?;
                self.work.appended += 1;
                log.acknowledged.get(&position) == Some(&(end, tag))
            }
            (What::Append, Status::Refused) => {
                log.is_full = true;
                if !log.failed {
                    self.work.full += 1;
                    fate = Fate::NoRoom;
                }
                true
            }
            (What::Read(position), Status::Done) => {
                let (end, of) = log.acknowledged[&position];
                self.work.read += 1;
                let mut there = end.to_be_bytes().to_vec();
                there.extend_from_slice(&content(of, self.calls[&of].len));
                bytes == there
            }
            (What::Read(position), Status::Refused) => position < log.asked,
            (What::Bounds(least), Status::Done) => {
                let [head, tail] = numbers(bytes)?;
                head <= log.asked && tail >= least
            }
            (What::Trim(to), Status::Done) => log.trimmed >= to,
            (What::Trim(to), Status::Refused) => to < log.asked || log.failed,
            _ => false,
        };
        if !is_right {
            return Err(format!(
                "call {tag} ({what:?}) is answered wrongly: {status:?}, {} bytes",
                bytes.len()
            ));
        }
        self.close(tag, fate)
    }

    /// A call has no answer.
    ///
    /// # Errors
    /// It may not fail so.
    pub(super) fn failed(&mut self, tag: u64, why: Failure) -> Result<(), String> {
        match why {
            Failure::Ended(_) => self.close(tag, Fate::Unknown),
            Failure::NeverSent(_) => self.close(tag, Fate::NeverSent),
            Failure::NoRoom(len) => Err(format!("there is room for {len} bytes")),
        }
    }

    /// A session of a node has ended.
    ///
    /// # Errors
    /// There was no reason for it.
    pub(super) fn ended(&mut self, node: NodeId, why: Ended) -> Result<(), String> {
        let gone = matches!(why, Ended::Reset | Ended::Unreachable);
        self.work.given_up += u64::from(gone);
        let is_fair = if self.is_stranger(node) {
            let refused = matches!(why, Ended::WrongToken | Ended::Wait(_));
            self.work.refused += u64::from(refused);
            refused || matches!(why, Ended::Closed | Ended::Unreachable)
        } else {
            // A server may be left with a session by a hello that came when its client had gone.
            let unlucky = node < usize::from(self.plan.servers) || !self.plan.faults.is_empty();
            why == Ended::Closed || unlucky && gone
        };
        if is_fair { Ok(()) } else { Err(format!("a session of node {node} ends without a reason: {why}")) }
    }

    /// Whether all that was carried out can be, when the run is over.
    ///
    /// # Errors
    /// It cannot. A sentence.
    pub(super) fn judge(&self) -> Result<(), String> {
        for (tag, call) in &self.calls {
            let counts = matches!(call.what, What::Echo | What::Append);
            let fits = match call.fate {
                Fate::Answered | Fate::NoRoom => !counts || call.times == 1,
                Fate::NeverSent => call.times == 0,
                Fate::Unknown | Fate::Orphan => call.times <= 1,
                Fate::Open => false,
            };
            if !fits {
                return Err(format!("call {tag} was carried out {} times: {:?}", call.times, call.fate));
            }
        }
        Ok(())
    }
}

/// Two numbers that an answer has, and nothing else.
fn numbers(bytes: &[u8]) -> Result<[u64; 2], String> {
    let mut reader = Reader::new(bytes);
    let read = (reader.u64_be(), reader.u64_be(), reader.end());
    match read {
        (Ok(first), Ok(second), Ok(())) => Ok([first, second]),
        _ => Err(format!("an answer of {} bytes, where two numbers are due", bytes.len())),
    }
}
