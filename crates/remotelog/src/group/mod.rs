//! One log on several servers, driven by its writer.
//!
//! Every server has a log of its own. A record is acknowledged when `acks` of `members` servers have it durably. A writer
//! that opens the group
//! 1. draws an epoch higher than any promised and has every server that it reaches promise it, which shuts out all earlier
//!    writers there (their connections are cut first);
//! 2. needs `members - acks + 1` promises of servers that belong to the group already: every set of so many meets every
//!    set of `acks`;
//! 3. chooses the log of the server that *adopted* the highest epoch, and of those the longest;
//! 4. makes the others equal to it: cuts off what differs, copies what lacks;
//! 5. has them adopt its epoch, and appends once `acks` of them have.
//!
//! ARGUMENT that no acknowledged record is lost. Say record *r* was acknowledged in epoch *e*: `acks` servers, all of which
//! had adopted *e*, have it durably. Claim: every log that is adopted in an epoch above *e* has *r*. Take the lowest such
//! epoch *f* that chose a log without *r*. Its promises (2) include one of a server *s* with *r*, and *s* promised after it
//! had *r*, as it listens to nobody of *e* after promising *f*. So *s* had adopted at least *e*. The log chosen (3) had
//! adopted an epoch *g* with *e* <= *g* < *f*. If *g* > *e*, it has *r* because *f* is lowest. If *g* = *e*, it is at least
//! as long as that of *s*, and both are beginnings of what the one writer of *e* appended: it has *r*. Epochs name one
//! writer each (their low half is drawn), and a server promises each counter once, so its stamps only rise.
//!
//! A server that came back empty or damaged has no say in 2 and 3, since it may have forgotten what it promised; it is
//! rebuilt in 4. The number of servers and `acks` are fixed when the group is made, or sets of servers might not meet.

use std::collections::VecDeque;

use remanence_persist::plan::Request as PlanRequest;
use thiserror::Error;

use crate::error::{AppendError, Refused};
use crate::format::record::record_len;
use crate::format::superblock::Uuid;
use crate::format::{Epoch, Mode};
use crate::proto::Request;
use crate::store::{Reader, Status};
use crate::walk::{Ahead, Source};
use crate::writer::{Updates, Writer};

/// Bytes that are read ahead while a log is copied.
const WINDOW: u64 = 256 << 10;
/// Copies that are under way at once.
const COPIES: usize = 16;

/// The connection to one server.
pub trait Leg {
    /// Asks for something; the answer is the log's status afterwards.
    ///
    /// # Errors
    /// The server refuses, or is gone.
    fn call(&mut self, request: &Request) -> Result<Status, LegError>;

    /// Reads from the server's region.
    ///
    /// # Errors
    /// The server is gone.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LegError>;

    /// Begins to make updates durable, behind all that were begun before. `plan` is what a planner is asked.
    ///
    /// # Errors
    /// The server is gone, or there is no proven way for it.
    fn submit(&mut self, updates: &Updates, plan: &PlanRequest) -> Result<(), LegError>;

    /// Whether the oldest updates that were begun, and of which this was not said yet, are durable. May wait a little.
    ///
    /// # Errors
    /// The server is gone: of what was under way nothing is known.
    fn poll(&mut self) -> Result<bool, LegError>;
}

/// Why a server does not do its part.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LegError {
    /// It says why.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// It is gone, or never was there.
    #[error("{0}")]
    Lost(String),
}

/// How a group is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How many servers must have a record before it is acknowledged. `None`: as the group was made, and all for a new one.
    pub acks: Option<u16>,
    /// A number drawn by the writer.
    pub writer: u32,
    /// The name of the group if it is made now: draw it.
    pub group: Uuid,
}

/// Why a group cannot be written to. What was acknowledged is safe in every case.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// Not enough of them were reached.
    #[error("{}", too_few_sentence(*.reached, *.needed, *.named, why))]
    TooFew {
        /// Servers that count.
        reached: usize,
        /// Servers that are needed.
        needed: usize,
        /// Servers that were named.
        named: usize,
        /// What became of the others.
        why: String,
    },
    /// A later writer was faster.
    #[error(
        "another writer (epoch {promised}) has taken the log over; what it found acknowledged it keeps; open it again to go on"
    )]
    Fenced {
        /// Its epoch.
        promised: Epoch,
    },
    /// A server of another group.
    #[error("{server} holds the log of another group ({theirs}, not {ours}); name only servers of one log")]
    Stranger {
        /// The server.
        server: String,
        /// Its group.
        theirs: Uuid,
        /// The others'.
        ours: Uuid,
    },
    /// One server under two names.
    #[error("{a} and {b} are one and the same log; name each server once")]
    Twice {
        /// One name.
        a: String,
        /// The other.
        b: String,
    },
    /// Another number of servers.
    #[error(
        "this log lies on {made}, with {acks} acknowledgements for each record, and was to be opened on {given}; name them all, lost ones too, and leave out --acks"
    )]
    Members {
        /// As it was made.
        made: String,
        /// As it was made.
        acks: u16,
        /// As it was opened.
        given: String,
    },
    /// A record that cannot be appended.
    #[error("{0}")]
    Append(#[from] AppendError),
    /// A record that cannot be trimmed.
    #[error("{0}")]
    Refused(#[from] Refused),
}

/// What opening did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Records that a server lacked and got, by server.
    pub copied: Vec<(String, u64)>,
    /// Records that a server had and nobody had chosen, by server.
    pub cut: Vec<(String, u64)>,
    /// Servers that do without, and why.
    pub lost: Vec<(String, String)>,
}

#[derive(Debug)]
struct Member<L> {
    name: String,
    /// None: lost.
    leg: Option<L>,
    writer: Option<Writer>,
    /// What the planner was asked last, for updates of so many bytes of records.
    asked: Option<(usize, PlanRequest)>,
    /// One more than the last record of each update under way.
    under_way: VecDeque<u64>,
    why: String,
}

impl<L: Leg> Member<L> {
    fn lose(&mut self, why: &impl ToString) {
        self.leg = None;
        self.asked = None;
        self.under_way.clear();
        self.why = why.to_string();
    }

    /// Calls, and is lost where that fails.
    fn call(&mut self, request: &Request) -> Option<Status> {
        let answer = self.leg.as_mut()?.call(request);
        answer.map_err(|error| self.lose(&error)).ok()
    }

    fn submit(&mut self, updates: &Updates) {
        let (Some(leg), Some(writer)) = (&mut self.leg, &self.writer) else { return };
        let len = updates.records.len();
        if self.asked.as_ref().is_none_or(|(of, _)| *of != len) {
            // The planner bounds messages by what the session can receive; here nothing bounds them.
            self.asked = Some((len, writer.request(updates, u32::MAX)));
        }
        let (_, plan) = self.asked.as_ref().expect("asked just now");
        match leg.submit(updates, plan) {
            Ok(()) => self.under_way.push_back(updates.sequences.1),
            Err(error) => self.lose(&error),
        }
    }

    /// Takes what has become durable; false if nothing has.
    fn poll(&mut self) -> bool {
        let mut any = false;
        while let (Some(leg), Some(end)) = (&mut self.leg, self.under_way.front().copied()) {
            match leg.poll() {
                Ok(true) => {
                    self.under_way.pop_front();
                    self.writer.as_mut().expect("it has submitted").acknowledged(end);
                    any = true;
                }
                Ok(false) => break,
                Err(error) => self.lose(&error),
            }
        }
        any
    }

    /// Waits until no more than so many updates are under way.
    fn drain(&mut self, left: usize) {
        while self.leg.is_some() && self.under_way.len() > left {
            self.poll();
        }
    }
}

/// A log on several servers, open for its one writer.
#[derive(Debug)]
pub struct Group<L> {
    members: Vec<Member<L>>,
    epoch: Epoch,
    uuid: Uuid,
    acks: usize,
    next: u64,
    acknowledged: u64,
    /// What each member has, while it is looked at.
    durable: Vec<u64>,
}

struct Remote<'a, L>(&'a mut L);

impl<L: Leg> Source for Remote<'_, L> {
    type Error = LegError;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LegError> {
        self.0.read(offset, into)
    }
}

impl<L: Leg> Group<L> {
    /// Opens the log on these servers, of which some may be lost already; makes it if all of them are new.
    ///
    /// # Errors
    /// Too few servers, servers that do not belong together, or a writer that was faster.
    ///
    /// # Panics
    /// With no server.
    pub fn open(
        legs: Vec<(String, Result<L, LegError>)>,
        options: &Options,
    ) -> Result<(Self, Opened), GroupError> {
        assert!(!legs.is_empty() && legs.len() < 1 << 16, "a log lies on one server at least");
        let mut members: Vec<Member<L>> = legs.into_iter().map(Member::new).collect();
        let before: Vec<Option<Status>> =
            members.iter_mut().map(|member| member.call(&Request::Status)).collect();
        // Who names the wrong servers shuts nobody out.
        belong_together(&members, &before, options)?;
        let promised = before.iter().flatten().map(|status| status.state.promised.counter()).max();
        let epoch = Epoch::new(promised.unwrap_or(0) + 1, options.writer);
        let mut granted: Vec<Option<Status>> = Vec::new();
        for member in &mut members {
            let answer = member.leg.as_mut().map(|leg| leg.call(&Request::Grant { epoch }));
            granted.push(match answer {
                None => None,
                Some(Ok(status)) => Some(status),
                Some(Err(LegError::Refused(Refused::Fenced { promised }))) => {
                    return Err(GroupError::Fenced { promised });
                }
                Some(Err(error)) => {
                    member.lose(&error);
                    None
                }
            });
        }
        // Only now does nothing change any more: another writer may have made the group in the meantime.
        let made = belong_together(&members, &granted, options)?;
        let acks = usize::from(made.acks);
        // With no server of the group there, all of them must be there and new: it is made now.
        let needed = if made.new { members.len() } else { members.len() - acks + 1 };
        let counts = |status: &Status| made.new || has_say(status);
        let heard = granted.iter().flatten().filter(|status| counts(status)).count();
        if heard < needed {
            return Err(too_few(&members, &granted, heard, needed));
        }
        let best = (0..members.len())
            .filter(|n| granted[*n].as_ref().is_some_and(counts))
            .max_by_key(|n| granted[*n].as_ref().map(|s| (s.state.adopted, s.tail.sequence)))
            .expect("some were heard");
        let chosen = granted[best].clone().expect("it was heard");

        let mut opened = Opened::default();
        for n in (0..members.len()).filter(|n| *n != best) {
            let Some(status) = granted[n].take() else { continue };
            let name = members[n].name.clone();
            match equalise(&mut members, best, n, &chosen, status, epoch) {
                Ok((cut, copied)) => {
                    (cut > 0).then(|| opened.cut.push((name.clone(), cut)));
                    (copied > 0).then(|| opened.copied.push((name, copied)));
                }
                Err(error) => {
                    if members[best].leg.is_none() {
                        // Without its log nothing can be said of the others; whoever opens next chooses anew.
                        return Err(too_few(&members, &granted, heard - 1, needed.max(heard)));
                    }
                    members[n].lose(&error);
                }
            }
        }
        let next = chosen.tail.sequence;
        let adopt = Request::Adopt {
            epoch,
            sequence: next,
            group: made.group,
            members: members.len() as u16,
            acks: made.acks,
        };
        for member in &mut members {
            member.writer = member.call(&adopt).map(|status| Writer::new(status.writer_grant(), epoch));
        }
        let up = members.iter().filter(|member| member.leg.is_some()).count();
        if up < acks {
            return Err(too_few(&members, &granted, up, acks));
        }
        opened.lost =
            members.iter().filter(|m| m.leg.is_none()).map(|m| (m.name.clone(), m.why.clone())).collect();
        let (uuid, durable) = (made.group, Vec::new());
        let group = Self { members, epoch, uuid, acks, next, acknowledged: next, durable };
        Ok((group, opened))
    }

    /// Its name.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The epoch of this writer.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// All records below this number are acknowledged.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// How many servers acknowledge, of how many.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        (self.acks, self.members.len())
    }

    /// The servers that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.members.iter().filter(|m| m.leg.is_none()).map(|m| (m.name.clone(), m.why.clone())).collect()
    }

    /// Whether the log of some server is more than half full. A log that is copied to another server lies at other places
    /// there, and what stays free at the ends of segments differs: whoever keeps half of it free can always have it copied.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.members.iter().filter_map(Member::up).any(Writer::is_half_full)
    }

    /// The connections that are left.
    pub fn legs(&mut self) -> impl Iterator<Item = (&str, &mut L)> {
        self.members.iter_mut().filter_map(|m| Some((m.name.as_str(), m.leg.as_mut()?)))
    }

    /// Begins to append a record; its number. It is acknowledged when [`acknowledged`](Self::acknowledged) is above that,
    /// and not before: if the group fails first, the record may be found later or not.
    ///
    /// # Errors
    /// It does not fit: nothing was appended. Or too few servers are left: it may be found later or not.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64, GroupError> {
        self.append_batch(&[payload]).map(|(sequence, _)| sequence)
    }

    /// Begins to append the first of these records, as many as go in one update on every server: the number of the first,
    /// and how many.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_batch(&mut self, payloads: &[&[u8]]) -> Result<(u64, usize), GroupError> {
        let longest = payloads.first().map_or(0, |payload| payload.len());
        for member in &mut self.members {
            if matches!(member.fits(longest), Err(AppendError::Full { .. })) {
                // It may have been trimmed by somebody else.
                let head = member.call(&Request::Status).map(|status| status.state.head.position);
                if let Some((head, writer)) = head.zip(member.writer.as_mut()) {
                    writer.trimmed(head);
                }
            }
            member.fits(longest)?;
        }
        self.enough()?;
        // As many as every server takes behind one another.
        let mut count = payloads.len();
        for member in self.members.iter().filter(|_| payloads.len() > 1) {
            let Some(mut writer) = member.up().cloned() else { continue };
            let updates = writer.append_batch(&payloads[..count])?;
            count = count.min((updates.sequences.1 - updates.sequences.0) as usize);
        }
        let mut batches: Vec<Option<Updates>> = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            // In compound mode the tail word of one append must not overtake the record of the one before it.
            if member.up().is_some_and(|writer| writer.mode() == Mode::Compound) {
                member.drain(0);
            }
            batches.push(match (&member.leg, &mut member.writer) {
                (Some(_), Some(writer)) => Some(writer.append_batch(&payloads[..count])?),
                _ => None,
            });
        }
        for (member, updates) in self.members.iter_mut().zip(batches) {
            updates.inspect(|updates| member.submit(updates));
        }
        let first = self.next;
        self.next += count as u64;
        self.enough()?;
        Ok((first, count))
    }

    fn enough(&self) -> Result<(), GroupError> {
        let up = self.members.iter().filter(|member| member.leg.is_some()).count();
        if up < self.acks { Err(too_few(&self.members, &[], up, self.acks)) } else { Ok(()) }
    }

    /// Looks what has become durable; [`acknowledged`](Self::acknowledged) is up to date on return.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn poll(&mut self) -> Result<u64, GroupError> {
        for member in &mut self.members {
            member.poll();
        }
        // What a server had durably before it was lost it has still.
        let durable = &mut self.durable;
        durable.clear();
        durable.extend(self.members.iter().map(|m| m.writer.as_ref().map_or(0, Writer::durable)));
        durable.sort_unstable_by_key(|below| std::cmp::Reverse(*below));
        self.acknowledged = self.acknowledged.max(durable[self.acks - 1]);
        if self.acknowledged < self.next {
            self.enough()?;
        }
        Ok(self.acknowledged)
    }

    /// Waits until all records below that number are acknowledged.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn wait(&mut self, below: u64) -> Result<(), GroupError> {
        while self.poll()? < below {}
        Ok(())
    }

    /// Gives up the records below that number on every server that is there: they were applied.
    ///
    /// # Errors
    /// They are not acknowledged.
    pub fn trim(&mut self, below: u64) -> Result<(), GroupError> {
        if below > self.acknowledged {
            let next = self.acknowledged;
            return Err(Refused::NotThere { asked: below, first: 0, next }.into());
        }
        for member in &mut self.members {
            // A server that lags gives up what it has, and lacks the rest until it was rebuilt.
            member.drain(0);
            let head = member.call(&Request::Trim { below }).map(|status| status.state.head.position);
            if let Some((head, writer)) = head.zip(member.writer.as_mut()) {
                writer.trimmed(head);
            }
        }
        self.poll().map(drop)
    }

    /// Waits for everything under way, and has the servers remember what was acknowledged, so that they would notice the
    /// loss of the last record too.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn close(mut self) -> Result<(), GroupError> {
        self.wait(self.next)?;
        for member in &mut self.members {
            member.drain(0);
            if let Some(below) = member.up().map(Writer::durable) {
                member.call(&Request::Known { epoch: self.epoch, below });
            }
        }
        Ok(())
    }
}

impl<L: Leg> Member<L> {
    fn new((name, leg): (String, Result<L, LegError>)) -> Self {
        let (leg, why) = match leg {
            Ok(leg) => (Some(leg), String::new()),
            Err(error) => (None, error.to_string()),
        };
        Self { name, leg, writer: None, asked: None, under_way: VecDeque::new(), why }
    }

    fn up(&self) -> Option<&Writer> {
        self.leg.as_ref().and(self.writer.as_ref())
    }

    fn fits(&self, payload: usize) -> Result<(), AppendError> {
        self.up().map_or(Ok(()), |writer| writer.fits(payload))
    }
}

fn too_few_sentence(reached: usize, needed: usize, named: usize, why: &str) -> String {
    // Of a log on one server there are no others.
    if named == 1 {
        return format!(
            "the log's only server cannot be written to ({why}); nothing that was acknowledged was changed, and it lies there alone"
        );
    }
    format!(
        "{reached} of the {needed} servers that must be heard were reached ({why}); nothing was changed that matters, and what was \
         acknowledged is safe on the others: start them, or wait"
    )
}

/// Whether a server's word counts: it has taken part, and knows what it knew.
fn has_say(status: &Status) -> bool {
    status.state.adopted != Epoch::NONE && status.damage.is_none()
}

fn too_few<L: Leg>(
    members: &[Member<L>],
    told: &[Option<Status>],
    reached: usize,
    needed: usize,
) -> GroupError {
    let mut why: Vec<String> = Vec::new();
    for (n, member) in members.iter().enumerate() {
        match told.get(n).and_then(Option::as_ref) {
            _ if member.leg.is_none() => why.push(format!("{}: {}", member.name, member.why)),
            Some(Status { damage: Some(damage), .. }) => why.push(format!("{}: {damage}", member.name)),
            Some(status) if !has_say(status) => why.push(format!("{} is new or incomplete", member.name)),
            _ => {}
        }
    }
    let why = if why.is_empty() { "no more were named".into() } else { why.join("; ") };
    GroupError::TooFew { reached, needed, named: members.len(), why }
}

/// As what a group was made, or is made now.
struct Made {
    group: Uuid,
    acks: u16,
    new: bool,
}

fn belong_together<L: Leg>(
    members: &[Member<L>],
    before: &[Option<Status>],
    options: &Options,
) -> Result<Made, GroupError> {
    let told = || before.iter().enumerate().filter_map(|(n, status)| Some((n, status.as_ref()?)));
    for (n, status) in told() {
        let uuid = status.superblock.uuid;
        if let Some((m, _)) = told().find(|(m, other)| *m < n && other.superblock.uuid == uuid) {
            return Err(GroupError::Twice { a: members[m].name.clone(), b: members[n].name.clone() });
        }
    }
    // A group whose making was cut short is made again: where no server has a record, none was acknowledged, unless more
    // disks were lost than the group can stand.
    let empty = |status: &Status| (status.tail.sequence, status.damage) == (0, None);
    let new = told().count() == members.len() && told().all(|(_, status)| empty(status));
    let Some((_, first)) = told().find(|(_, status)| status.state.group != Uuid::default()) else {
        let acks = options.acks.unwrap_or(members.len() as u16).clamp(1, members.len() as u16);
        // It is made if all of them are there; they are not, or it would be known to be new.
        return Ok(Made { group: options.group, acks, new: true });
    };
    let ours = first.state.group;
    for (n, status) in told() {
        let theirs = status.state.group;
        if theirs != ours && theirs != Uuid::default() {
            return Err(GroupError::Stranger { server: members[n].name.clone(), theirs, ours });
        }
    }
    let servers = |n: usize| format!("{n} server{}", if n == 1 { "" } else { "s" });
    let (made, acks) = (usize::from(first.state.members), first.state.acks);
    if made != members.len() || options.acks.is_some_and(|asked| asked != acks) {
        let asked = options.acks.map_or_else(String::new, |asked| format!(" with {asked}"));
        let given = format!("{}{asked}", servers(members.len()));
        return Err(GroupError::Members { made: servers(made), acks, given });
    }
    Ok(Made { group: ours, acks, new })
}

/// Makes the log of one server equal to the chosen one of another; how many records were cut off, and how many copied.
fn equalise<L: Leg>(
    members: &mut [Member<L>],
    best: usize,
    to: usize,
    chosen: &Status,
    mut theirs: Status,
    epoch: Epoch,
) -> Result<(u64, u64), LegError> {
    let lost = || LegError::Lost("it was lost meanwhile".into());
    let head = &chosen.state.head;
    let before = theirs.tail.sequence;
    let agreed = chosen.agrees_until(&theirs);
    let from_scratch = agreed < head.sequence
        || agreed == head.sequence
            && head.sequence > 0
            && theirs.epoch_of(head.sequence - 1) != Some(head.epoch);
    let leg = members[to].leg.as_mut().ok_or_else(lost)?;
    let kept = if from_scratch { theirs.state.head.sequence } else { agreed };
    if from_scratch {
        theirs = leg.call(&Request::Reset { epoch, sequence: head.sequence, after: head.epoch })?;
    } else if agreed < theirs.tail.sequence || theirs.damage.is_some() {
        theirs = leg.call(&Request::Truncate { epoch, sequence: agreed })?;
    }
    let cut = before.saturating_sub(kept);
    let mut writer = Writer::new(theirs.writer_grant(), epoch);

    let mut reader = Reader::new(chosen);
    let mut copied = 0;
    let mut batch: Vec<(Epoch, Vec<u8>)> = Vec::new();
    while writer.next() + (batch.len() as u64) < chosen.tail.sequence {
        let mut bytes = 0;
        {
            let source = members[best].leg.as_mut().ok_or_else(lost)?;
            let mut ahead = Ahead::new(Remote(source), chosen.superblock.geometry.size, WINDOW);
            while bytes < WINDOW && reader.next_sequence() < chosen.tail.sequence {
                match reader.read(&mut ahead) {
                    Ok(Ok((found, payload))) => {
                        bytes += record_len(payload.len() as u64);
                        // From the head on, the reader passes what they have already.
                        if found.header.sequence >= writer.next() {
                            batch.push((found.header.epoch, payload.to_vec()));
                        }
                    }
                    Ok(Err(fault)) => {
                        let why = format!("its record {} cannot be copied: {fault}", reader.next_sequence());
                        members[best].lose(&why);
                        return Err(LegError::Lost(why));
                    }
                    Err(error) => {
                        members[best].lose(&error);
                        return Err(error);
                    }
                }
            }
        }
        let member = &mut members[to];
        member.writer = Some(writer.clone());
        for (by, payload) in batch.drain(..) {
            member.drain(if writer.mode() == Mode::Compound { 0 } else { COPIES - 1 });
            let durable = member.writer.as_ref().map_or(0, Writer::durable);
            writer.acknowledged(durable);
            let updates = writer.append_copy(by, &payload).map_err(|e| LegError::Lost(e.to_string()))?;
            member.writer = Some(writer.clone());
            member.submit(&updates);
            if member.leg.is_none() {
                return Err(LegError::Lost(member.why.clone()));
            }
            copied += 1;
        }
        member.drain(0);
        if member.leg.is_none() {
            return Err(LegError::Lost(member.why.clone()));
        }
        writer.acknowledged(writer.next());
    }
    if theirs.state.head.sequence < head.sequence {
        members[to].leg.as_mut().ok_or_else(lost)?.call(&Request::Trim { below: head.sequence })?;
    }
    Ok((cut, copied))
}
