//! A host of a service: what it reads, appends, applies and answers. It stands beside the writer of the log, and is told whenever
//! something may have happened there.

use std::collections::VecDeque;
use std::time::Duration;

use super::message::{Refusal, Reply, Request};
use super::record::{COMMAND_HEADER, PART_HEADER, Record};
use super::sessions::{Known, NotApplied, State, parts};
use super::{Limits, StateMachine};
use crate::log::format::record::record_len;
use crate::log::group::{Machine, NotTaken, Replay, Replayed};
use crate::log::{AppendError, GroupError, Refused};

/// Bytes of a snapshot that one record carries at most.
const PART: u64 = 64 << 10;

/// The writer of the log, as a host needs it: the group's machine, or something that drives one.
pub trait Log {
    /// The machine, which says how the group is.
    fn machine(&self) -> &Machine;

    /// Takes a record; its number.
    ///
    /// # Errors
    /// Nothing was appended.
    fn append(&mut self, now: Duration, record: &[u8]) -> Result<u64, NotTaken>;

    /// Gives up the records below that number.
    ///
    /// # Errors
    /// They are not acknowledged.
    fn trim(&mut self, now: Duration, below: u64) -> Result<(), GroupError>;
}

impl Log for Machine {
    fn machine(&self) -> &Machine {
        self
    }

    fn append(&mut self, now: Duration, record: &[u8]) -> Result<u64, NotTaken> {
        self.append_batch(now, &[record]).map(|(sequence, _)| sequence)
    }

    fn trim(&mut self, now: Duration, below: u64) -> Result<(), GroupError> {
        Self::trim(self, now, below)
    }
}

/// Bytes of a server's region that are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Names the reading: what comes is handed in with it.
    pub number: u64,
    /// The server's place among the names that the machine was made with.
    pub server: usize,
    /// The byte of the region at which it begins.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// What was asked, and is not begun.
#[derive(Debug)]
struct Asked {
    token: u64,
    until: Duration,
    request: Request,
}

/// What is answered when its record is acknowledged.
#[derive(Debug)]
struct Waiting {
    token: u64,
    until: Duration,
    record: u64,
    reply: Reply,
}

/// A snapshot on its way into the log.
#[derive(Debug)]
struct Snapshot {
    /// Its parts that are not appended yet.
    parts: VecDeque<Vec<u8>>,
    /// The record of the first part, if that is appended, and one more than that of the last one.
    records: Option<(u64, u64)>,
    is_trimmed: bool,
}

#[derive(Debug)]
enum Phase {
    /// The group is not open yet.
    Opening,
    /// The log is read.
    Reading(Box<Replay>),
    Serving,
    /// It answers nothing more.
    Ended(GroupError),
}

/// A host of a service, beside the writer of its log.
///
/// Whoever drives it hands in what clients ask ([`submit`](Self::submit)), calls [`advance`](Self::advance) whenever something has come to
/// the log's writer or [`deadline`](Self::deadline) has passed, reads what [`poll_read`](Self::poll_read) says, and sends what
/// [`poll_answer`](Self::poll_answer) has. Each request is answered once.
#[derive(Debug)]
pub struct Replica<S> {
    limits: Limits,
    phase: Phase,
    state: State<S>,
    queue: VecDeque<Asked>,
    waiting: VecDeque<Waiting>,
    answers: VecDeque<(u64, Reply)>,
    /// Bytes of the log since the last snapshot.
    since: u64,
    snapshot: Option<Snapshot>,
    /// There was no room for what comes next: it is tried again when a snapshot has made some, or somebody asks again, and not all the time.
    is_full: bool,
    /// What is to be read, what is being read, and until when.
    read: Option<Read>,
    reading: Option<(u64, Duration)>,
    reads: u64,
}

impl<S: StateMachine> Replica<S> {
    /// Beside a writer that is opening the log.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Opening,
            state: State::at(0),
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            since: 0,
            snapshot: None,
            is_full: false,
            read: None,
            reading: None,
            reads: 0,
        }
    }

    /// Whether it has the state of the log, and takes commands.
    #[must_use]
    pub const fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    /// Why it answers nothing more, if it does not: another host took over, or the log cannot be read. What was acknowledged is in the
    /// log, and whoever opens that again has it.
    #[must_use]
    pub const fn ended(&self) -> Option<&GroupError> {
        match &self.phase {
            Phase::Ended(error) => Some(error),
            _ => None,
        }
    }

    /// The state, with what is applied and not acknowledged yet: not for clients.
    #[must_use]
    pub const fn state(&self) -> &State<S> {
        &self.state
    }

    /// Takes what a client asks, to be answered with this token by that time.
    pub fn submit(&mut self, token: u64, until: Duration, request: Request) {
        if self.queue.len() + self.waiting.len() >= self.limits.waiting {
            self.answers.push_back((token, Reply::Refused(Refusal::Busy)));
        } else {
            self.queue.push_back(Asked { token, until, request });
            self.is_full &= self.snapshot.as_ref().is_some_and(|snapshot| snapshot.parts.is_empty());
        }
    }

    /// The next answer, with its token.
    pub fn poll_answer(&mut self) -> Option<(u64, Reply)> {
        self.answers.pop_front()
    }

    /// What is to be read next.
    pub fn poll_read(&mut self) -> Option<Read> {
        self.read.take()
    }

    /// What was to be read has come; `None`: the server is lost.
    pub fn came(&mut self, number: u64, bytes: Option<Vec<u8>>) {
        if self.reading.is_none_or(|(of, _)| of != number) {
            return;
        }
        self.reading = None;
        if let Phase::Reading(replay) = &mut self.phase {
            match bytes {
                Some(bytes) => replay.came(bytes),
                None => replay.avoid(),
            }
        }
    }

    /// When [`advance`](Self::advance) is to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let queued = self.queue.iter().map(|asked| asked.until);
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        queued.chain(waiting).chain(self.reading.map(|(_, until)| until)).min()
    }

    /// Goes on as far as the log allows.
    pub fn advance(&mut self, now: Duration, log: &mut impl Log) {
        if self.ended().is_none()
            && let Some(error) = over(log.machine())
        {
            self.end(error);
        }
        if matches!(self.phase, Phase::Opening) && log.machine().is_open() {
            self.phase = Phase::Reading(Box::new(Replay::new(log.machine())));
        }
        if matches!(self.phase, Phase::Reading(_)) {
            self.read(now, log.machine());
            // A server may have all that lies before a whole snapshot, and need the room for the next one.
            if let Some((first, _)) = self.state.last_snapshot().filter(|_| self.is_serving()) {
                // It is told again when the next one is whole.
                let _ = log.trim(now, first);
            }
        }
        if self.is_serving() {
            self.trim(now, log);
            self.take(now, log);
        }
        self.answer(log.machine().acknowledged());
        self.time_out(now);
        self.refuse(log.machine());
    }

    /// Nothing is answered any more.
    fn end(&mut self, error: GroupError) {
        let why = error.to_string();
        for waiting in self.waiting.drain(..) {
            self.answers.push_back((waiting.token, Reply::Unknown(why.clone())));
        }
        (self.read, self.reading) = (None, None);
        self.phase = Phase::Ended(error);
    }

    /// Reads the log, as far as it has come.
    fn read(&mut self, now: Duration, machine: &Machine) {
        let Phase::Reading(replay) = &mut self.phase else { return };
        if let Some((_, until)) = self.reading {
            let is_there = replay.source().is_some_and(|server| machine.takes_part(server));
            if is_there && now < until {
                return;
            }
            (self.reading, self.read) = (None, None);
            replay.avoid();
        }
        loop {
            match replay.next(machine) {
                Replayed::Anew(first) => (self.state, self.since) = (State::at(first), 0),
                Replayed::Record(sequence, record) => {
                    self.since += record_len(record.len() as u64);
                    if let Err(why) = self.state.apply(sequence, &record) {
                        return self.end(not_applied(sequence, &why));
                    }
                }
                Replayed::Read { server, offset, len } => {
                    self.reads += 1;
                    self.reading = Some((self.reads, now + self.limits.patience));
                    self.read = Some(Read { number: self.reads, server, offset, len });
                    return;
                }
                Replayed::Wait => return,
                Replayed::Damaged(sequence, fault) => {
                    let why = format!("record {sequence} of the log cannot be read: {fault}");
                    return self.end(Refused::Said(why).into());
                }
                Replayed::Done if self.state.is_whole() => {
                    // What lies before a snapshot that an earlier host had appended whole was not given up, perhaps. One that it had not
                    // appended to its end is.
                    let unfinished = self.state.take_unfinished();
                    if unfinished.is_some() {
                        self.since = 0;
                    }
                    let whole = self.state.last_snapshot().map(|(first, end)| (first, end, VecDeque::new()));
                    self.snapshot = unfinished.or(whole).map(|(first, end, parts)| Snapshot {
                        parts,
                        records: Some((first, end)),
                        is_trimmed: false,
                    });
                    self.phase = Phase::Serving;
                    return;
                }
                Replayed::Done => {
                    let why = "the log begins with a snapshot that is not whole".to_owned();
                    return self.end(Refused::Said(why).into());
                }
            }
        }
    }

    /// Gives up what lies before a snapshot that is acknowledged.
    fn trim(&mut self, now: Duration, log: &mut impl Log) {
        let machine = log.machine();
        let (acknowledged, acks) = (machine.acknowledged(), machine.quorum().0);
        let Some(snapshot) = &mut self.snapshot else { return };
        let Some((first, end)) = snapshot.records.filter(|_| snapshot.parts.is_empty()) else { return };
        if !snapshot.is_trimmed && acknowledged >= end {
            snapshot.is_trimmed = log.trim(now, first).is_ok();
        }
        if snapshot.is_trimmed && log.machine().trimmed(first) >= acks {
            (self.snapshot, self.is_full) = (None, false);
        }
    }

    /// Appends what is asked, as far as the log takes it. Nothing comes between the parts of a snapshot.
    fn take(&mut self, now: Duration, log: &mut impl Log) {
        if self.is_full {
            return;
        }
        self.begin_snapshot(log.machine());
        while let Some(snapshot) = &mut self.snapshot
            && let Some(part) = snapshot.parts.front()
        {
            let sequence = match log.append(now, part) {
                Ok(sequence) => sequence,
                Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. }))) => {
                    self.is_full = true;
                    return self.refuse_all(&Refusal::Full);
                }
                Err(NotTaken::Refused(GroupError::Append(AppendError::TooLong { .. }))) => {
                    // A server with shorter segments has come: it is split anew.
                    (self.snapshot, self.since) = (None, u64::MAX >> 1);
                    return self.begin_snapshot(log.machine());
                }
                Err(_) => return,
            };
            snapshot.parts.pop_front();
            let first = snapshot.records.map_or(sequence, |(first, _)| first);
            snapshot.records = Some((first, sequence + 1));
        }
        while let Some(asked) = self.queue.front() {
            let (token, until) = (asked.token, asked.until);
            if until <= now {
                self.queue.pop_front();
                self.answers.push_back((token, Reply::Refused(Refusal::Late)));
                continue;
            }
            let session = match &asked.request {
                Request::Open => None,
                Request::Command { session, number, .. } => Some((*session, *number)),
            };
            let known = session.map_or(Known::New, |(session, number)| self.state.look(session, number));
            // A host that was replaced and does not know it has not heard of a session either, and what it has applied and nobody has
            // acknowledged may be void. So a refusal is as good as what is acknowledged behind it: a record of no effect.
            let refusal = match known {
                Known::New => None,
                Known::Done(record, reply) => {
                    let reply = Reply::Done(reply.to_vec());
                    self.queue.pop_front();
                    self.waiting.push_back(Waiting { token, until, record, reply });
                    continue;
                }
                Known::Stale => Some(Refusal::Stale),
                Known::Expired => Some(Refusal::Expired),
            };
            let record = match &asked.request {
                Request::Open => Record::Open { keep: self.limits.sessions },
                Request::Command { session, number, command } => {
                    let command = if refusal.is_none() { &command[..] } else { &[] };
                    Record::Command { session: *session, number: *number, command }
                }
            };
            let record = record.emit();
            let reply = match log.append(now, &record) {
                Ok(sequence) => {
                    self.since += record_len(record.len() as u64);
                    if let Err(why) = self.state.apply(sequence, &record) {
                        let ended = not_applied(sequence, &why);
                        self.queue.pop_front();
                        self.answers.push_back((token, Reply::Unknown(ended.to_string())));
                        return self.end(ended);
                    }
                    let applied = || match session {
                        None => Reply::Opened(sequence),
                        Some((session, number)) => match self.state.look(session, number) {
                            Known::Done(_, reply) => Reply::Done(reply.to_vec()),
                            _ => Reply::Refused(Refusal::Expired),
                        },
                    };
                    Err((sequence, refusal.map_or_else(applied, Reply::Refused)))
                }
                Err(NotTaken::NotYet) => return,
                Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. }))) => {
                    // There will be room.
                    if self.snapshot.is_some() {
                        self.is_full = true;
                        return;
                    }
                    Ok(Refusal::Full)
                }
                Err(NotTaken::Refused(GroupError::Append(AppendError::TooLong { max, .. }))) => {
                    Ok(Refusal::TooLong(max.saturating_sub(COMMAND_HEADER)))
                }
                Err(NotTaken::Refused(error)) => Ok(Refusal::TooFew(error.to_string())),
            };
            self.queue.pop_front();
            match reply {
                Err((record, reply)) => self.waiting.push_back(Waiting { token, until, record, reply }),
                Ok(refusal) => self.answers.push_back((token, Reply::Refused(refusal))),
            }
            self.begin_snapshot(log.machine());
            if self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.parts.is_empty()) {
                return self.take(now, log);
            }
        }
    }

    /// Makes a snapshot where a quarter of the smallest log was written since the last one: together with what is lost at the ends of segments
    /// and with the snapshot itself that is not more than the half of it that a log should have free.
    fn begin_snapshot(&mut self, machine: &Machine) {
        let statuses = (0..machine.quorum().1).filter_map(|n| machine.status(n));
        let geometries = statuses.map(|status| status.superblock.geometry);
        let smallest = geometries.map(|geometry| (geometry.capacity(), geometry.payload_max()));
        let Some((capacity, payload)) =
            smallest.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
        else {
            return;
        };
        if self.snapshot.is_some() || self.since < capacity / 4 {
            return;
        }
        let bytes = self.state.snapshot();
        let len = payload.min(PART).saturating_sub(PART_HEADER).max(1) as usize;
        let parts = parts(&bytes, len);
        self.since = 0;
        self.snapshot = Some(Snapshot { parts, records: None, is_trimmed: false });
    }

    /// Answers what is acknowledged.
    fn answer(&mut self, acknowledged: u64) {
        let answers = &mut self.answers;
        self.waiting.retain_mut(|waiting| {
            let is_over = waiting.record < acknowledged;
            if is_over {
                let reply = std::mem::replace(&mut waiting.reply, Reply::Refused(Refusal::Late));
                answers.push_back((waiting.token, reply));
            }
            !is_over
        });
    }

    fn time_out(&mut self, now: Duration) {
        let answers = &mut self.answers;
        self.queue.retain(|asked| {
            let is_late = asked.until <= now;
            if is_late {
                answers.push_back((asked.token, Reply::Refused(Refusal::Late)));
            }
            !is_late
        });
        self.waiting.retain(|waiting| {
            let is_late = waiting.until <= now;
            if is_late {
                let why = "too few servers have confirmed it in its time".to_owned();
                answers.push_back((waiting.token, Reply::Unknown(why)));
            }
            !is_late
        });
    }

    /// What is not begun is refused where it cannot be: it is over, or too few servers are there. Of what is begun nothing is known then, and
    /// nobody waits for what may never come: who asks again is answered when it has.
    fn refuse(&mut self, machine: &Machine) {
        let refusal = match &self.phase {
            Phase::Ended(GroupError::Fenced { promised }) => Refusal::Replaced(*promised),
            Phase::Ended(error) => Refusal::TooFew(error.to_string()),
            Phase::Opening => match machine.shortage() {
                Some(short) => Refusal::TooFew(short.to_string()),
                None => return,
            },
            Phase::Reading(_) | Phase::Serving => match machine.enough() {
                Err(short) => Refusal::TooFew(short.to_string()),
                Ok(()) => return,
            },
        };
        for waiting in self.waiting.drain(..) {
            self.answers.push_back((waiting.token, Reply::Unknown(refusal.to_string())));
        }
        self.refuse_all(&refusal);
    }

    fn refuse_all(&mut self, refusal: &Refusal) {
        for asked in self.queue.drain(..) {
            self.answers.push_back((asked.token, Reply::Refused(refusal.clone())));
        }
    }
}

/// The end of a host that cannot apply a record: no other host of the same release could.
fn not_applied(sequence: u64, why: &NotApplied) -> GroupError {
    Refused::Said(format!("record {sequence} of the log {why}")).into()
}

/// Why the writer will never acknowledge anything more: it has failed; or it has not enough servers, and one of them has promised a later
/// epoch, so that it does not get them back.
fn over(machine: &Machine) -> Option<GroupError> {
    if let Some(error) = machine.failed() {
        return Some(error.clone());
    }
    machine.enough().err().filter(|_| machine.is_open())?;
    let promised = (0..machine.quorum().1).filter_map(|n| Some(machine.status(n)?.state.promised)).max()?;
    (promised > machine.epoch()).then_some(GroupError::Fenced { promised })
}
