//! What the writer knows of one server, and the records that it keeps for those that are behind.

use std::collections::VecDeque;
use std::sync::Arc;

use remanence_persist::plan::Request as PlanRequest;

use super::belong::has_say;
use super::copy::Copy;
use super::machine::Time;
use crate::log::format::superblock::Uuid;
use crate::log::proto::Request;
use crate::log::store::Status;
use crate::log::writer::Writer;

/// Where a server stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Somebody tries to connect to it.
    Expected,
    /// There is no connection.
    Away,
    /// It is asked how its log is.
    Asking,
    /// It has said so.
    Known,
    /// It is asked for its promise.
    Granting,
    /// It has given it.
    Granted,
    /// What the chosen log does not have is cut off.
    Cutting,
    /// It is sent records.
    Feeding,
}

/// Somebody else may have trimmed a log in which a record does not fit: it is asked once for each attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Unknown,
    /// It is to be asked.
    Wanted,
    Asked,
    /// It has answered that.
    Answered,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) step: Step,
    pub(super) why: String,
    /// The name of the disk with which it has answered last.
    uuid: Option<Uuid>,
    /// What it said last.
    pub(super) status: Option<Status>,
    pub(super) writer: Option<Writer>,
    /// It has adopted this epoch.
    pub(super) adopted: bool,
    /// It has all records below this number durably, and has adopted: what it had before it was lost it has still.
    pub(super) durable: u64,
    /// It adopts when it has all records below this number: the chosen log, and what was acknowledged when it began to be fed.
    pub(super) goal: u64,
    /// One more than the last record of each update under way.
    pub(super) in_flight: VecDeque<u64>,
    /// What the planner was asked last, for updates of so many bytes of records.
    pub(super) asked: Option<(usize, Arc<PlanRequest>)>,
    pub(super) call: Option<Request>,
    /// How many promises had been given to this writer when it was called last.
    pub(super) called: u64,
    /// Which promise its own was, of those that were given to this writer; 0: none of this disk.
    pub(super) granted: u64,
    /// It has said that it stands by its promise when so many had been given.
    pub(super) confirmed: u64,
    /// When something came from it last, or was asked of it while nothing else was.
    pub(super) sign: Time,
    /// Since when it has been too busy for the call, and when it is asked again.
    pub(super) busy: Option<(Time, Time)>,
    /// The copy of another log that it is fed from.
    pub(super) copy: Option<Copy>,
    /// Which servers' copies the READs under way are for, by the copies' numbers.
    pub(super) reads: VecDeque<(usize, u64)>,
    /// Its log keeps the records from this number on, whatever the others give up.
    pub(super) keep: u64,
    /// It is to be asked how its log is.
    pub(super) look: bool,
    /// What is known of its room since a record did not fit.
    pub(super) room: Room,
    /// The next record does not fit.
    pub(super) full: bool,
    /// The records below this number are known to be acknowledged: it is to remember that.
    pub(super) known: Option<u64>,
    /// How often it has said how its log is.
    pub(super) replies: u64,
    pub(super) copied: u64,
    pub(super) cut: u64,
}

impl Server {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            step: Step::Expected,
            why: "it has not answered yet".to_owned(),
            uuid: None,
            status: None,
            writer: None,
            adopted: false,
            durable: 0,
            goal: 0,
            in_flight: VecDeque::new(),
            asked: None,
            call: None,
            called: 0,
            granted: 0,
            confirmed: 0,
            sign: Time::ZERO,
            busy: None,
            copy: None,
            reads: VecDeque::new(),
            keep: u64::MAX,
            look: false,
            room: Room::Unknown,
            full: false,
            known: None,
            replies: 0,
            copied: 0,
            cut: 0,
        }
    }

    /// A record does not fit. Whether it has said so since it was last asked for its room; else it will be asked.
    pub(super) fn is_short(&mut self) -> bool {
        if matches!(self.room, Room::Unknown | Room::Wanted) {
            (self.room, self.look) = (Room::Wanted, true);
        }
        self.room == Room::Answered
    }

    /// It answers with this disk. What it promised, and had, on another one is void.
    pub(super) fn is_on(&mut self, uuid: Uuid) {
        if self.uuid != Some(uuid) {
            (self.granted, self.confirmed, self.durable) = (0, 0, 0);
            self.uuid = Some(uuid);
        }
    }

    /// It has a say, and stands by its promise since that promise of another one.
    pub(super) fn confirms(&self, since: u64) -> bool {
        self.confirmed >= since && self.status.as_ref().is_some_and(has_say)
    }

    pub(super) const fn is_up(&self) -> bool {
        !matches!(self.step, Step::Expected | Step::Away)
    }

    /// Something is under way.
    pub(super) fn is_asked(&self) -> bool {
        self.busy.is_none_or(|(_, again)| again == Time::MAX)
            && (self.call.is_some() || !self.in_flight.is_empty() || !self.reads.is_empty())
    }

    pub(super) fn takes_part(&self) -> bool {
        self.step == Step::Feeding && self.adopted
    }

    pub(super) fn first(&self) -> u64 {
        self.status.as_ref().map_or(0, |status| status.state.head.sequence)
    }

    /// All records below this number are in its log, whether it has adopted or not.
    pub(super) fn has(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::durable)
    }

    pub(super) fn next(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::next)
    }
}

/// What a record costs beside its payload, bytes.
const RECORD: usize = 64;

/// The records that were appended last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    pub(super) first: u64,
    pub(super) records: VecDeque<Box<[u8]>>,
    pub(super) bytes: usize,
}

impl Recent {
    pub(super) fn get(&self, sequence: u64) -> Option<&[u8]> {
        let at = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.records.get(at).map(|record| &record[..])
    }

    pub(super) fn push(&mut self, record: &[u8]) {
        self.bytes += record.len() + RECORD;
        self.records.push_back(record.into());
    }

    pub(super) fn pop(&mut self) {
        if let Some(record) = self.records.pop_front() {
            self.bytes -= record.len() + RECORD;
            self.first += 1;
        }
    }
}
