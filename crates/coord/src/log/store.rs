//! The server's half: a log on a medium. Making it, recovering it, promising it to one writer after another, trimming it.
//!
//! No append passes through here: writers put records into the medium from afar, and this looks where they have got to.
//! What it tells anybody it has made durable first.

use remanence_pmem::Medium;
use remanence_pmem::image::{Root, RootError};

use crate::log::error::{Damage, Fault, OpenError, Proof, Refused};
use crate::log::format::record::HEADER_LEN;
use crate::log::format::root::{Fence, State};
use crate::log::format::superblock::{FORMAT, Superblock, Uuid};
use crate::log::format::{Cursor, DATA_AT, Epoch, Geometry, Mode, ROOT_AT, TAILS, TAILS_AT};
use crate::log::walk::{Found, Local, Rules, Source};
use crate::log::writer::{Grant, Updates};

/// What a new log shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Make {
    /// How the end of the log is found.
    pub mode: Mode,
    /// How the region is divided.
    pub geometry: Geometry,
    /// The UUID that the log is known by, which the caller draws.
    pub uuid: Uuid,
    /// What tells the log's records from those of others in the same place; the caller draws it.
    pub salt: u64,
}

/// A stretch of records that one writer appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The epoch of the writer that appended them.
    pub epoch: Epoch,
    /// The number of its first record here; the stretch ends where the next one begins, or at the tail.
    pub from: u64,
}

/// What a server says of its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// What the log is, as page 0 says it.
    pub superblock: Superblock,
    /// What the server remembers of the log besides its records.
    pub state: State,
    /// Where the log goes on; all records before it are durable.
    pub tail: Cursor,
    /// Who appended what is there: stretches in the order of their numbers.
    pub runs: Vec<Run>,
    /// What is damaged of the log; `None` if nothing is, as far as was looked.
    pub damage: Option<Damage>,
}

impl Status {
    /// What a writer needs to go on from here.
    #[must_use]
    pub const fn writer_grant(&self) -> Grant {
        Grant {
            geometry: self.superblock.geometry,
            salt: self.superblock.salt,
            mode: self.superblock.mode,
            tail_word: tail_word(self.state.slot),
            head: self.state.head.position,
            tail: self.tail,
        }
    }

    /// Who appended the record with that number, or the one before the log begins.
    #[must_use]
    pub fn epoch_of(&self, sequence: u64) -> Option<Epoch> {
        let head = &self.state.head;
        if sequence + 1 == head.sequence {
            return Some(head.epoch);
        }
        let there = (head.sequence..self.tail.sequence).contains(&sequence);
        let run = self.runs.iter().rev().find(|run| run.from <= sequence)?;
        there.then_some(run.epoch)
    }

    /// Where the log of this server and another's begin to differ: the numbers below it are the same records in both, as
    /// far as both have them.
    #[must_use]
    pub fn agrees_until(&self, other: &Self) -> u64 {
        let least = self.state.head.sequence.max(other.state.head.sequence);
        let most = self.tail.sequence.min(other.tail.sequence);
        // One writer gives a number once, and found everything before it agreed upon: one equal record is enough.
        let mut at = most;
        while at > least {
            let (ours, theirs) = (self.epoch_of(at - 1), other.epoch_of(at - 1));
            if ours.is_some() && ours == theirs {
                return at;
            }
            // Neither changes its writer before the later of both stretches begins.
            at = self.stretch(at - 1).max(other.stretch(at - 1)).max(least);
        }
        least.min(most)
    }

    fn stretch(&self, sequence: u64) -> u64 {
        self.runs.iter().rev().find(|run| run.from <= sequence).map_or(0, |run| run.from)
    }
}

/// A log on a medium.
#[derive(Debug)]
pub struct Store<M> {
    medium: M,
    superblock: Superblock,
    root: Root<M>,
    state: State,
    tail: Cursor,
    runs: Vec<Run>,
    damage: Option<Damage>,
    failed: Option<String>,
}

impl<M: Medium + Clone> Store<M> {
    /// Makes an empty log that fills a medium, over whatever was there.
    ///
    /// # Errors
    /// The medium is too small for it, or failed.
    pub fn create(medium: M, make: &Make) -> Result<Self, OpenError> {
        let Make { mode, geometry, uuid, salt } = *make;
        if geometry.size != medium.len() || Geometry::new(geometry.size, geometry.segment).is_none() {
            return Err(OpenError::BadGeometry { size: medium.len(), segment: geometry.segment });
        }
        // Whoever finds a superblock finds a log behind it: the old one goes first, the new one comes last.
        FORMAT.signature.begin(&medium).map_err(|e| OpenError::medium(&e))?;
        medium.store_u64(TAILS_AT, 0);
        medium.persist(TAILS_AT..TAILS_AT + 8).map_err(|e| OpenError::medium(&e))?;
        let state = State::default();
        let root = Root::format(medium.clone(), ROOT_AT, salt, &state.emit())
            .map_err(|e| OpenError::Medium(e.to_string()))?;
        let superblock = Superblock { uuid, geometry, salt, mode };
        // What is noted of the file's journal stays: a log that was not told of it would be refused, or would not miss it.
        FORMAT.make(&medium, &superblock.emit()).map_err(|e| OpenError::medium(&e))?;
        Ok(Self {
            medium,
            superblock,
            root,
            state,
            tail: state.head,
            runs: Vec::new(),
            damage: None,
            failed: None,
        })
    }

    /// Recovers the log on a medium. What it finds it makes durable. Damage is no error here: [`Store::damage`] has it.
    ///
    /// # Errors
    /// There is no log of this version, or nothing can be known of its records.
    pub fn open(medium: M) -> Result<Self, OpenError> {
        let superblock = read_superblock(&medium)?;
        let (root, payload) = Root::open(medium.clone(), ROOT_AT, superblock.salt).map_err(|e| match e {
            RootError::Invalid { .. } => OpenError::RootDamaged,
            RootError::Medium(e) => OpenError::medium(&e),
        })?;
        let state = State::parse(&payload).ok_or(OpenError::RootDamaged)?;
        let tail = state.head;
        let mut store =
            Self { medium, superblock, root, state, tail, runs: Vec::new(), damage: None, failed: None };
        store.advance(true, &mut |_, _| ());
        store.sync(state.head.position).map_err(|e| OpenError::Medium(e.to_string()))?;
        Ok(store)
    }

    /// The medium that the log lies on.
    pub const fn medium(&self) -> &M {
        &self.medium
    }

    /// What the log is, as page 0 says it.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What the root record says.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Where the log goes on, as far as was looked.
    #[must_use]
    pub const fn tail(&self) -> &Cursor {
        &self.tail
    }

    /// What is damaged of the log; `None` if nothing is, as far as was looked.
    #[must_use]
    pub const fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// What decides which bytes are records.
    #[must_use]
    pub const fn rules(&self) -> Rules {
        let geometry = self.superblock.geometry;
        let limit = self.state.head.position + geometry.capacity();
        Rules { geometry, salt: self.superblock.salt, fence: self.state.fence, limit }
    }

    /// Where the tail word is, in the region.
    #[must_use]
    pub const fn tail_word(&self) -> u64 {
        tail_word(self.state.slot)
    }

    /// Looks how far the log has got, and makes that durable. Hands each new record to `visit` when it is.
    ///
    /// # Errors
    /// The medium failed.
    pub fn look(&mut self, visit: &mut dyn FnMut(&Found, &[u8])) -> Result<(), Refused> {
        self.alive()?;
        let from = self.tail.position;
        let mut found: Vec<(Found, Vec<u8>)> = Vec::new();
        self.advance(false, &mut |record, payload| found.push((*record, payload.to_vec())));
        self.sync(from)?;
        found.iter().for_each(|(record, payload)| visit(record, payload));
        Ok(())
    }

    /// Looks how far the log has got, and makes what is new of it durable. However much that is, nothing of it is kept.
    fn catch_up(&mut self, prove: bool) -> Result<(), Refused> {
        self.alive()?;
        let from = self.tail.position;
        self.advance(prove, &mut |_, _| ());
        self.sync(from)
    }

    /// What there is to say, after looking.
    ///
    /// # Errors
    /// The medium failed.
    pub fn status(&mut self) -> Result<Status, Refused> {
        self.catch_up(false)?;
        Ok(self.told())
    }

    fn told(&self) -> Status {
        Status {
            superblock: self.superblock,
            state: self.state,
            tail: self.tail,
            runs: self.runs.clone(),
            damage: self.damage,
        }
    }

    /// Promises the log to a writer: no older one is listened to any more, which the caller has seen to already, so that
    /// nothing of theirs arrives while or after this looks. The writer is told what is there. One that has the promise already gets
    /// it again, on a new connection: nothing of the old one's arrives either.
    ///
    /// # Errors
    /// A newer writer has it, or the medium failed.
    pub fn grant(&mut self, epoch: Epoch) -> Result<Status, Refused> {
        self.alive()?;
        if !self.state.promised.may_become(epoch) {
            return Err(Refused::Fenced { promised: self.state.promised });
        }
        self.catch_up(true)?;
        // A record that is damaged must not be cut off by a promise: whoever repairs it decides that.
        let fence = match self.damage {
            Some(_) => self.state.fence,
            None => Fence { sequence: self.tail.sequence, stamp: epoch.counter() },
        };
        self.restart(State { promised: epoch, fence, ..self.state }, self.tail, self.damage.is_none())?;
        Ok(self.told())
    }

    fn promised_to(&self, epoch: Epoch) -> Result<(), Refused> {
        self.alive()?;
        if epoch == self.state.promised {
            Ok(())
        } else {
            Err(Refused::Fenced { promised: self.state.promised })
        }
    }

    /// Cuts off the records from this number on, for the writer of that epoch: they were not chosen, or are damaged.
    ///
    /// # Errors
    /// Another writer has the log, there is no such record, or the medium failed.
    pub fn truncate(&mut self, epoch: Epoch, sequence: u64) -> Result<Status, Refused> {
        self.promised_to(epoch)?;
        self.catch_up(false)?;
        let end = self.cursor_at(sequence)?;
        self.cut(end, epoch.counter())?;
        Ok(self.told())
    }

    /// Cuts off the records from this number on, as an administrator has decided who gives them up.
    ///
    /// # Errors
    /// There is no such record, or the medium failed.
    pub fn give_up_from(&mut self, sequence: u64) -> Result<(), Refused> {
        self.alive()?;
        let end = self.cursor_at(sequence)?;
        let counter = self.state.promised.counter() + 1;
        self.state.promised = Epoch::new(counter, 0);
        // It may lack records that were acknowledged: it has no say any more in what its group chooses.
        if self.state.members > 1 {
            self.state.adopted = Epoch::NONE;
        }
        self.cut(end, counter)
    }

    /// What it goes on to have adopted when it is cut. One that is damaged may lack records that were acknowledged, and has no say in
    /// what its group chooses before it adopts again; without damage it could be chosen for the longest log.
    fn adopted_still(&self) -> Epoch {
        if self.damage.is_some() && self.state.members > 1 { Epoch::NONE } else { self.state.adopted }
    }

    fn cut(&mut self, end: Cursor, stamp: u32) -> Result<(), Refused> {
        let fence = Fence { sequence: end.sequence, stamp };
        let known = self.state.known.min(end.sequence);
        let adopted = self.adopted_still();
        self.restart(State { adopted, fence, known, ..self.state }, end, true)?;
        self.runs.retain(|run| run.from < end.sequence);
        self.is_put_right()
    }

    /// What was damaged was cut off. What the writer that cuts has appended behind it itself its fence does not keep out: it would prove
    /// again that something is missing, and is destroyed. A crash in between finds the damage again.
    fn is_put_right(&mut self) -> Result<(), Refused> {
        if self.damage.take().is_none() {
            return Ok(());
        }
        let Ok(left) = self.rules().leftovers(&mut Local(&self.medium), &self.tail);
        for offset in left {
            self.medium.write(offset, &[0; HEADER_LEN as usize]);
            self.medium.pwb(offset..offset + HEADER_LEN);
        }
        match self.medium.psync() {
            Ok(()) => Ok(()),
            Err(error) => self.fail(&error),
        }
    }

    /// Empties the log, which goes on with that number behind a record of that epoch: for a server that lacks records
    /// that the others have trimmed already.
    ///
    /// # Errors
    /// Another writer has the log, or the medium failed.
    pub fn reset(&mut self, epoch: Epoch, sequence: u64, after: Epoch) -> Result<Status, Refused> {
        self.promised_to(epoch)?;
        let position =
            self.superblock.geometry.next_segment(self.tail.position.max(self.state.head.position));
        let head = Cursor { position, sequence, epoch: after, stamp: 0 };
        let fence = Fence { sequence, stamp: epoch.counter() };
        let known = sequence;
        let adopted = self.adopted_still();
        self.restart(State { head, adopted, fence, known, ..self.state }, head, true)?;
        self.runs.clear();
        self.is_put_right()?;
        Ok(self.told())
    }

    /// Notes that this log, up to that number, is the one that the writer has chosen, for a group of so many servers.
    ///
    /// # Errors
    /// Another writer has the log, its records do not reach that far, or the medium failed.
    pub fn adopt(
        &mut self,
        epoch: Epoch,
        sequence: u64,
        group: Uuid,
        members: u16,
        acks: u16,
    ) -> Result<Status, Refused> {
        self.promised_to(epoch)?;
        if members == 0 || acks == 0 || acks > members {
            return Err(Refused::Nonsense(format!("{acks} acknowledgements of {members} servers")));
        }
        self.catch_up(false)?;
        if let Some(damage) = self.damage {
            return Err(Refused::Damaged(damage));
        }
        if self.tail.sequence != sequence {
            return Err(self.not_there(sequence));
        }
        self.store(State { adopted: epoch, known: sequence, group, members, acks, ..self.state })?;
        Ok(self.told())
    }

    /// Gives up all records below that number, durably: their place is free on return.
    ///
    /// # Errors
    /// There are not so many, or the medium failed.
    pub fn trim(&mut self, below: u64) -> Result<Status, Refused> {
        self.catch_up(false)?;
        if below <= self.state.head.sequence {
            return Ok(self.told());
        }
        let head = self.cursor_at(below)?;
        self.store(State { head, known: self.state.known.max(below), ..self.state })?;
        let first = self.runs.iter().rposition(|run| run.from <= below).unwrap_or(0);
        self.runs.drain(..first);
        if let Some(first) = self.runs.first_mut() {
            first.from = first.from.max(below);
        }
        self.runs.retain(|run| run.from < self.tail.sequence);
        Ok(self.told())
    }

    /// Notes that all records below that number were acknowledged: recovery then takes their loss for damage, even that
    /// of the last one.
    ///
    /// # Errors
    /// Another writer has the log, there are not so many, or the medium failed.
    pub fn note_known(&mut self, epoch: Epoch, below: u64) -> Result<Status, Refused> {
        self.promised_to(epoch)?;
        self.catch_up(false)?;
        if below > self.tail.sequence {
            return Err(self.not_there(below));
        }
        if below > self.state.known {
            self.store(State { known: below, ..self.state })?;
        }
        Ok(self.told())
    }

    /// Makes updates durable, one after the other, as the recipe of a session would.
    ///
    /// # Errors
    /// The medium failed. What is asked later is answered by that, as nobody knows what is durable then.
    pub fn update(&mut self, updates: &Updates) -> Result<(), Refused> {
        self.alive()?;
        for (at, bytes) in updates.list() {
            self.medium.write(at, bytes);
            if let Err(error) = self.medium.persist(at..at + bytes.len() as u64) {
                return self.fail(&error);
            }
        }
        Ok(())
    }

    fn not_there(&self, asked: u64) -> Refused {
        match self.damage {
            Some(damage) if asked > damage.sequence => Refused::Damaged(damage),
            _ => Refused::NotThere { asked, first: self.state.head.sequence, next: self.tail.sequence },
        }
    }

    /// Where the record with that number would be appended.
    fn cursor_at(&self, sequence: u64) -> Result<Cursor, Refused> {
        if !(self.state.head.sequence..=self.tail.sequence).contains(&sequence) {
            return Err(self.not_there(sequence));
        }
        if sequence == self.tail.sequence {
            return Ok(self.tail);
        }
        let (rules, mut at, mut payload) = (self.rules(), self.state.head, Vec::new());
        while at.sequence < sequence {
            match next(&rules, &self.medium, &at, &mut payload) {
                Ok(found) => at = found.after,
                Err(_) => return Err(self.not_there(sequence)),
            }
        }
        Ok(at)
    }

    fn alive(&self) -> Result<(), Refused> {
        self.failed.as_ref().map_or(Ok(()), |why| Err(Refused::Medium(why.clone())))
    }

    fn fail<T>(&mut self, error: &impl ToString) -> Result<T, Refused> {
        self.failed = Some(error.to_string());
        Err(Refused::medium(error))
    }

    /// Goes on to the end of the log, and notices damage.
    /// Looking for proof of it takes a while in singleton mode.
    fn advance(&mut self, prove: bool, visit: &mut dyn FnMut(&Found, &[u8])) {
        if self.damage.is_some() {
            return;
        }
        let rules = self.rules();
        let mut payload = Vec::new();
        let limit = match self.superblock.mode {
            Mode::Singleton => None,
            Mode::Compound => Some(self.medium.load_u64(self.tail_word()).to_le()),
        };
        let fault = loop {
            if limit == Some(self.tail.position) {
                break None;
            }
            match next(&rules, &self.medium, &self.tail, &mut payload) {
                Ok(found) if limit.is_some_and(|limit| found.after.position > limit) => {
                    break Some(Fault::Tail);
                }
                Ok(found) => {
                    if self.runs.last().is_none_or(|run| run.epoch != found.header.epoch) {
                        self.runs.push(Run { epoch: found.header.epoch, from: found.header.sequence });
                    }
                    self.tail = found.after;
                    visit(&found, &payload);
                }
                Err(fault) => break Some(fault),
            }
        };
        if prove || limit.is_some() {
            self.damage = self.is_damage(&rules, fault, limit.is_some(), prove);
        }
    }

    /// Whether the log ends here because somebody has destroyed a record, or the tail word, and how that is known. A word that says that
    /// the log ends earlier is found out as a lost record is: by a later one whose writer knew that this was not the end.
    fn is_damage(&self, rules: &Rules, fault: Option<Fault>, compound: bool, prove: bool) -> Option<Damage> {
        let end = &self.tail;
        let reached = self.state.fence.sequence.max(self.state.known);
        let proof = if fault.is_some() && compound {
            Some(Proof::Tail)
        } else if reached > end.sequence {
            Some(Proof::Root { sequence: reached })
        } else if !prove {
            None
        } else {
            let Ok(later) = rules.proof(&mut Local(&self.medium), end);
            later.map(|sequence| Proof::Later { sequence })
        };
        let offset = rules.geometry.offset(end.position);
        let (sequence, first) = (end.sequence, self.state.head.sequence);
        let fault = fault.unwrap_or(Fault::Tail);
        let State { members, acks, .. } = self.state;
        proof.map(|proof| Damage { sequence, first, offset, fault, proof, members, acks })
    }

    /// Makes the records from a position to the tail durable, and the tail word.
    fn sync(&mut self, from: u64) -> Result<(), Refused> {
        if from == self.tail.position {
            // That no record follows may be zeros in place of one that the medium has lost.
            return match self.medium.failure() {
                Ok(()) => Ok(()),
                Err(error) => self.fail(&error),
            };
        }
        let geometry = self.superblock.geometry;
        let (capacity, to) = (geometry.capacity(), self.tail.position);
        let start = from % capacity;
        let len = (to - from).min(capacity);
        let first = len.min(capacity - start);
        self.medium.pwb(DATA_AT + start..DATA_AT + start + first);
        self.medium.pwb(DATA_AT..DATA_AT + (len - first));
        if self.superblock.mode == Mode::Compound {
            // No order is needed: the writer's recipe had the records durable before the word was written.
            self.medium.pwb(self.tail_word()..self.tail_word() + 8);
        }
        match self.medium.psync() {
            Ok(()) => Ok(()),
            Err(error) => self.fail(&error),
        }
    }

    /// Goes on at `end` under a new root record. In compound mode with a new tail word, so that a crash finds the old root
    /// with its word or the new one with its own.
    fn restart(&mut self, mut state: State, end: Cursor, word: bool) -> Result<(), Refused> {
        if word && self.superblock.mode == Mode::Compound {
            state.slot = (self.state.slot + 1) % TAILS;
            let word = tail_word(state.slot);
            self.medium.store_u64(word, end.position.to_le());
            if let Err(error) = self.medium.persist(word..word + 8) {
                return self.fail(&error);
            }
        }
        self.store(state)?;
        self.tail = end;
        if word { self.bury() } else { Ok(()) }
    }

    /// Destroys what begins where the next record may go: here, and at the next segment. A record of before the fence that
    /// is whole there would have its predecessor's stamp, and would pass for the next one when the fence has moved on, if
    /// that went to the other place. What lies behind has a stamp that is lower than the next one's.
    ///
    /// It comes after the root record: what it destroys may have been in the log until then. A crash in between leaves it
    /// behind a fence that holds until the next promise, which comes here again, as nothing was appended.
    fn bury(&mut self) -> Result<(), Refused> {
        let geometry = self.superblock.geometry;
        let (here, limit) = (self.tail.position, self.rules().limit);
        for position in [here, geometry.next_segment(here)] {
            if position + HEADER_LEN <= geometry.next_segment(position).min(limit) {
                let offset = geometry.offset(position);
                self.medium.write(offset, &[0; HEADER_LEN as usize]);
                self.medium.pwb(offset..offset + HEADER_LEN);
            }
        }
        match self.medium.psync() {
            Ok(()) => Ok(()),
            Err(error) => self.fail(&error),
        }
    }

    fn store(&mut self, state: State) -> Result<(), Refused> {
        if let Err(error) = self.root.store(&state.emit()) {
            return self.fail(&error);
        }
        self.state = state;
        Ok(())
    }
}

const fn tail_word(slot: u16) -> u64 {
    TAILS_AT + slot as u64 * 8
}

fn next<M: Medium>(rules: &Rules, medium: &M, at: &Cursor, payload: &mut Vec<u8>) -> Result<Found, Fault> {
    let Ok(found) = rules.next(&mut Local(medium), at, payload);
    found
}

/// The superblock of a medium.
///
/// # Errors
/// There is no log of this version.
pub fn read_superblock(medium: &impl Medium) -> Result<Superblock, OpenError> {
    Superblock::parse(&FORMAT.read(medium), medium.len())
}

/// A record and its payload, or what is wrong with it.
pub type Whole<'a> = Result<(Found, &'a [u8]), Fault>;

/// Reads records one after the other from a source that may change: what a reader from afar does.
#[derive(Clone, Debug)]
pub struct Reader {
    rules: Rules,
    at: Cursor,
    payload: Vec<u8>,
    /// Who appended the two records that were read last, the later one first.
    writers: [Option<Epoch>; 2],
}

impl Reader {
    /// Begins with the first record that is there.
    #[must_use]
    pub fn new(status: &Status) -> Self {
        let geometry = status.superblock.geometry;
        let head = status.state.head;
        let limit = head.position + geometry.capacity();
        let rules = Rules { geometry, salt: status.superblock.salt, fence: status.state.fence, limit };
        Self { rules, at: head, payload: Vec::new(), writers: [None; 2] }
    }

    /// The number of the record that comes next.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.at.sequence
    }

    /// Whether the log, as it is now, has what this reader would read next where it would look, behind what it has read: nothing was
    /// trimmed beyond that, nothing that was read was cut off, and the log was not begun anew, which puts what it has behind all that
    /// it had.
    #[must_use]
    pub fn can_go_on(&self, status: &Status) -> bool {
        let (head, tail) = (&status.state.head, &status.tail);
        let at_head = self.at == *head;
        let behind = head.position < self.at.position && head.sequence < self.at.sequence;
        let there = self.at.position <= tail.position && self.at.sequence <= tail.sequence;
        // A number has one content in an epoch: one record of each writer tells for those before it.
        let is_by = |back: u64, writer: Option<Epoch>| {
            let sequence = self.at.sequence.checked_sub(back).filter(|number| *number + 1 >= head.sequence);
            // A status from afar has the last runs only: of what is older it says nothing.
            let by = sequence.and_then(|number| status.epoch_of(number));
            by.is_none_or(|by| Some(by) == writer)
        };
        let [last, before] = self.writers;
        let as_read =
            is_by(1, Some(self.at.epoch)) && (last == before || before.is_none() || is_by(2, before));
        (at_head || behind && as_read) && there
    }

    /// Whether the record that was read last is another writer's than the one before it: then the log may have been cut in between,
    /// and a newer status must say that the reader [can go on](Self::can_go_on).
    #[must_use]
    pub fn changed_writer(&self) -> bool {
        let [last, before] = self.writers;
        before.is_some() && last != before
    }

    /// Takes a newer status into account: there may be more room.
    pub fn refresh(&mut self, status: &Status) {
        self.rules.limit = status.state.head.position + self.rules.geometry.capacity();
        self.rules.fence = status.state.fence;
    }

    /// The next record, if it is whole.
    ///
    /// # Errors
    /// The source fails; or what is wrong with the record, which may have been trimmed and overwritten meanwhile.
    pub fn read<S: Source>(&mut self, source: &mut S) -> Result<Whole<'_>, S::Error> {
        let found = self.rules.next(source, &self.at, &mut self.payload)?;
        Ok(found.map(|found| {
            self.at = found.after;
            self.writers = [Some(found.header.epoch), self.writers[0]];
            (found, &self.payload[..])
        }))
    }
}
