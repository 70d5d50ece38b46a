//! A replica that leads, or is about to: one term, under one number.
//!
//! It asks itself, then all others, and with a majority reads what they have: it copies what was decided and it lacks, looks for what may have been decided,
//! writes that again under its own number, and from then on one update to each follower and one to its own log is all that a value takes. Who
//! grants later joins when its log was brought up to date. Whatever fails at a follower that has joined ends the term.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use remanence_pmem::Medium;

use super::entry::{Entry, Kind, u64_at};
use super::memory::{DECIDED, HEAD_LEN, PROMISED, PUSHED, REPLICAS_MAX, STATUS, Status, request_at};
use super::replica::{Replica, kth};
use super::{Action, Options, Plane, Refusal, number};

/// Entries of one update.
const ENTRIES: usize = 16;
/// Entries that are copied with one READ.
const COPIES: u64 = 64;

/// What a request under way was for, by which its answer is understood.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// A peer's status.
    Status,
    /// A word that was written.
    Word,
    /// What a follower has: its status, and what it knows to be decided.
    Head,
    /// So many decided entries.
    Entries { index: u64, count: u64 },
    /// The snapshot of a follower.
    Fetch,
    /// Entries that may have been decided, from this one on.
    Tail { index: u64 },
    /// Entries of a follower, up to there.
    Stream { until: u64 },
    /// A snapshot for a follower.
    Push { index: u64 },
    /// Whose number a peer has promised last: in a term, which round of questions.
    Promise { term: u64, round: u64 },
}

/// All others are asked at once whose number they have promised last, for all who wanted to read before.
#[derive(Debug)]
struct Round {
    number: u64,
    tokens: Vec<u64>,
    /// The first entry that need not be applied when they read.
    until: u64,
    asked: [bool; REPLICAS_MAX],
    /// Those that have promised this term's number and no other since.
    said: [bool; REPLICAS_MAX],
}

#[derive(Debug)]
enum Stage {
    /// Waits for its own grant: nobody else writes to its log from then on.
    Own,
    /// Collects the grants of others.
    Asks,
    /// Reads what followers have.
    Heads,
    /// Copies what was decided and it lacks.
    Copies,
    /// Looks for entries that may have been decided, from an index on; those that were found, and whether there are some of this reading.
    Tails { at: u64, found: BTreeMap<u64, Entry>, is_any: bool },
    /// Waits for a snapshot of its own state, as its log has no room, or not all that it applied.
    Saves { found: BTreeMap<u64, Entry> },
    /// Writes what is proposed.
    Leads,
}

/// Another replica, as far as this term is concerned.
#[derive(Clone, Debug, Default)]
struct Follower {
    /// How often it was asked, and the request that it has not answered.
    times: u64,
    request: Option<u64>,
    is_granted: bool,
    /// It was asked what it has.
    is_read: bool,
    /// From here on a failure ends the term.
    has_joined: bool,
    /// What it has said that it has.
    status: Option<Status>,
    decided: u64,
    /// It had an entry that it should have.
    lacks: bool,
    /// Entries that were sent; those below that are durable there; the word that it was told; the snapshot that it was sent.
    sent: u64,
    acked: u64,
    told: u64,
    pushed: u64,
    /// What lies below it was not sent as entries, but as a snapshot.
    gap: u64,
    under_way: usize,
}

/// One term of a leader.
#[derive(Debug)]
pub(super) struct Term {
    pub(super) number: u64,
    stage: Stage,
    followers: Vec<Follower>,
    /// READs under way that the stage waits for.
    reads: usize,
    grace: Option<Duration>,
    progress: Duration,
    is_busy: bool,
    /// The first entry that is not written, and the first that is not decided.
    next: u64,
    decided: u64,
    /// Entries below may lie under other numbers where they are written.
    fresh: u64,
    tokens: BTreeMap<u64, u64>,
    /// Readers that wait for the next round of questions, the round under way, and how many there were.
    readers: Vec<u64>,
    round: Option<Round>,
    rounds: u64,
}

impl Term {
    pub(super) const fn is_leading(&self) -> bool {
        matches!(self.stage, Stage::Leads)
    }

    /// The first undecided entry, once this term writes.
    pub(super) fn decided(&self) -> Option<u64> {
        self.is_leading().then_some(self.decided)
    }

    pub(super) fn deadline(&self, options: &Options) -> Option<Duration> {
        let asks = matches!(self.stage, Stage::Asks);
        let stuck = self.is_busy.then_some(self.progress + options.stuck);
        stuck.into_iter().chain(self.grace.filter(|_| asks)).min()
    }
}

impl<M: Medium> Replica<M> {
    /// The term goes on, ends, or begins.
    pub(super) fn leads_on(&mut self, now: Duration) -> io::Result<()> {
        let is_leader = self.leader() == Some(self.me());
        if let Some(term) = &mut self.term {
            let reads = term.round.is_some() || !term.readers.is_empty();
            term.is_busy =
                !term.is_leading() || term.next > term.decided || !self.waiting.is_empty() || reads;
            if !term.is_busy {
                term.progress = now;
            }
            let is_stuck = now.saturating_sub(term.progress) >= self.options.stuck;
            if is_stuck || !is_leader && !term.is_leading() {
                self.ends_term();
            }
            if is_stuck {
                self.goes_to_rest(now);
            }
        }
        if self.term.is_none() && is_leader && !self.rests() {
            self.begins_term(now);
        }
        while self.step(now)? {
            if let Some(term) = &mut self.term {
                term.progress = now;
            }
        }
        Ok(())
    }

    fn begins_term(&mut self, now: Duration) {
        let counter = number::counter(self.seen.max(self.memory.promised())) + 1;
        let followers = vec![Follower::default(); self.memory.geometry().replicas.into()];
        self.term = Some(Box::new(Term {
            number: number::term(counter, self.me()),
            stage: Stage::Own,
            followers,
            reads: 0,
            grace: None,
            progress: now,
            is_busy: true,
            next: 0,
            decided: 0,
            fresh: 0,
            tokens: BTreeMap::new(),
            readers: Vec::new(),
            round: None,
            rounds: 0,
        }));
    }

    /// This replica leads no more. What is under way is cut off, so that nothing of it comes later than what the next term does.
    pub(super) fn ends_term(&mut self) {
        let Some(term) = self.term.take() else { return };
        for token in term.tokens.into_values() {
            self.actions.push_back(Action::Forget { token });
        }
        let why = Refusal::Elsewhere { leader: self.leader().filter(|leader| *leader != self.me()) };
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(token, _)| token);
        let asked = term.round.into_iter().flat_map(|round| round.tokens);
        for token in waiting.chain(term.readers).chain(asked) {
            self.actions.push_back(Action::Refuse { token, why });
        }
        for (peer, follower) in term.followers.iter().enumerate() {
            if follower.times > 0 {
                self.reconnect(peer, Plane::Replication);
            }
        }
    }

    /// Its own log is granted as it is to others.
    fn asks_itself(&mut self, number: u64) {
        if number <= self.memory.promised() {
            // It was promised to somebody meanwhile.
            self.ends_term();
        } else if !self.is_switching() {
            self.begins_switch(self.me(), number);
        }
    }

    /// The owner has granted its own log to this term.
    pub(super) fn has_own(&mut self, now: Duration, number: u64) {
        if let Some(term) = self.term.as_mut().filter(|term| term.number == number) {
            (term.stage, term.progress) = (Stage::Asks, now);
        }
    }

    pub(super) fn token_of(&mut self, index: u64) -> Option<u64> {
        self.term.as_mut().and_then(|term| term.tokens.remove(&index))
    }

    /// A connection is lost.
    pub(super) fn has_lost(&mut self, peer: usize, plane: Plane) {
        let Some(term) = &mut self.term else { return };
        if plane == Plane::Background
            && let Some(round) = &mut term.round
        {
            round.asked[peer] = false;
        }
        let follower = &mut term.followers[peer];
        if !follower.has_joined {
            *follower = Follower { times: follower.times, ..Follower::default() };
        } else if plane == Plane::Replication {
            self.ends_term();
        }
    }

    /// A peer has promised that. If it is one that has joined, and the number is another one's, this term is over as if it had written there: who has nothing
    /// to write must learn of that too.
    pub(super) fn has_promised(&mut self, peer: usize, promised: u64) {
        let is_anothers =
            |term: &Term| promised > term.number && !number::is_of_one_term(promised, term.number);
        if self.term.as_ref().is_some_and(|term| term.followers[peer].has_joined && is_anothers(term)) {
            self.seen = self.seen.max(promised);
            self.ends_term();
        }
    }

    /// One step; whether another one is to follow.
    fn step(&mut self, now: Duration) -> io::Result<bool> {
        let Some(term) = &self.term else { return Ok(false) };
        match &term.stage {
            Stage::Own => {
                let number = term.number;
                self.asks_itself(number);
                Ok(false)
            }
            Stage::Asks => Ok(self.collects(now)),
            Stage::Heads => {
                let is_done = term.followers.iter().all(|f| !f.has_joined || f.status.is_some());
                if is_done {
                    self.enters(Stage::Copies);
                }
                Ok(is_done)
            }
            Stage::Copies if term.reads > 0 => Ok(false),
            Stage::Copies => self.copies(now),
            Stage::Tails { .. } if term.reads > 0 => Ok(false),
            Stage::Tails { .. } => self.looks_further(),
            Stage::Saves { .. } => self.adopts(),
            Stage::Leads => self.writes(now).map(|()| false),
        }
    }

    fn enters(&mut self, stage: Stage) {
        if let Some(term) = &mut self.term {
            term.stage = stage;
        }
    }

    fn follower(&mut self, peer: usize) -> Option<&mut Follower> {
        self.term.as_mut().map(|term| &mut term.followers[peer])
    }

    /// Those that have joined.
    fn joined(&self) -> Vec<usize> {
        let all = self.term.iter().flat_map(|term| term.followers.iter().enumerate());
        all.filter(|(_, follower)| follower.has_joined).map(|(peer, _)| peer).collect()
    }

    /// Asks those that have not granted, as far as they are connected, and takes what they answer. The term ends if somebody has promised a later one.
    fn asks(&mut self) {
        let me = self.me();
        for peer in self.others() {
            let is_up = Plane::ALL.into_iter().all(|plane| self.is_up(peer, plane));
            let answer = Some(self.memory.grant(peer)).filter(|word| number::is_one(*word)).unwrap_or(0);
            let Some(term) = &mut self.term else { return };
            let (number, follower) = (term.number, &mut term.followers[peer]);
            if follower.is_granted || !is_up {
                continue;
            }
            match follower.request {
                None => {
                    // A term has some thousands of requests for each; the next one has as many.
                    let Some(request) = number::request(number, follower.times) else {
                        return self.ends_term();
                    };
                    (follower.request, follower.times) = (Some(request), follower.times + 1);
                    self.write_word(peer, Plane::Background, request_at(me), request);
                }
                Some(request) if answer == request => follower.is_granted = true,
                Some(request) if answer > request => {
                    follower.request = None;
                    if !number::is_of_one_term(answer, number) {
                        self.seen = self.seen.max(answer);
                        return self.ends_term();
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Waits for grants: for a majority, and a little for the rest.
    fn collects(&mut self, now: Duration) -> bool {
        self.asks();
        let (majority, grace) = (self.memory.geometry().majority(), self.options.grace);
        let Some(term) = &mut self.term else { return false };
        let granted = term.followers.iter().filter(|follower| follower.is_granted).count();
        if granted + 1 < majority {
            // One that had granted was lost: what is over is not waited for.
            term.grace = None;
            return false;
        }
        let until = *term.grace.get_or_insert(now + grace);
        if granted + 1 < term.followers.len() && now < until {
            return false;
        }
        term.stage = Stage::Heads;
        for follower in &mut term.followers {
            follower.has_joined = follower.is_granted;
        }
        self.joined().into_iter().for_each(|peer| self.reads_head(peer));
        true
    }

    fn reads_head(&mut self, peer: usize) {
        if let Some(follower) = self.follower(peer) {
            follower.is_read = true;
            self.read(peer, Plane::Replication, (STATUS, HEAD_LEN), Asked::Head);
        }
    }

    /// What a READ of this term has brought.
    pub(super) fn has_read(
        &mut self,
        now: Duration,
        peer: usize,
        asked: &Asked,
        bytes: &[u8],
    ) -> io::Result<()> {
        let Some(term) = &mut self.term else { return Ok(()) };
        match asked {
            Asked::Head => {
                let Some(status) = Status::parse(bytes).filter(|_| bytes.len() == HEAD_LEN as usize) else {
                    return Ok(());
                };
                let promised = u64_at(bytes, (PROMISED - STATUS) as usize);
                if !number::is_of_one_term(promised, term.number) {
                    // It has granted its log to somebody else since, and what it knows to be decided may be what that one has written.
                    self.seen = self.seen.max(promised);
                    self.ends_term();
                    return Ok(());
                }
                let is_leading = term.is_leading();
                let follower = &mut term.followers[peer];
                follower.decided = u64_at(bytes, HEAD_LEN as usize - 8);
                (follower.status, follower.told, follower.pushed) =
                    (Some(status), follower.decided, status.head);
                follower.acked = follower.decided.max(status.head);
                follower.sent = follower.acked;
                follower.has_joined |= is_leading;
            }
            Asked::Entries { index, count } => {
                term.reads -= 1;
                let entries = self.parse(*index, bytes);
                let whole: Vec<Entry> = entries.into_iter().map_while(|entry| entry).collect();
                if let Some(follower) = self.follower(peer) {
                    follower.lacks |= (whole.len() as u64) < *count;
                }
                self.memory.rewrite(&whole)?;
                for entry in whole {
                    if entry.index == self.applied {
                        self.hands_out(entry);
                    }
                }
            }
            Asked::Fetch => {
                term.reads -= 1;
                let found = Entry::parse(bytes, self.memory.salt())
                    .filter(|found| found.kind == Kind::Snapshot && found.index > self.applied);
                match found {
                    Some(found) => {
                        self.saves(found.index, found.payload.clone())?;
                        self.restores(found.index, found.payload);
                    }
                    // Its owner has written another one over it since: what it has is asked anew.
                    None => self.ends_term(),
                }
            }
            Asked::Tail { index } => {
                term.reads -= 1;
                let entries = self.parse(*index, bytes);
                self.finds(entries.into_iter().flatten());
            }
            Asked::Promise { term: of, round } => {
                // This alone is no progress: whoever waits to write may be stuck.
                let promised = u64_at(bytes, 0);
                if number::is_of_one_term(promised, term.number) {
                    if let Some(under_way) = &mut term.round {
                        under_way.said[peer] |= (*of, *round) == (term.number, under_way.number);
                    }
                } else {
                    self.has_promised(peer, promised);
                }
                return Ok(());
            }
            Asked::Status | Asked::Word | Asked::Stream { .. } | Asked::Push { .. } => {}
        }
        if let Some(term) = &mut self.term {
            term.progress = now;
        }
        Ok(())
    }

    /// What lies in slots that were read, from that of an index on.
    fn parse(&self, index: u64, bytes: &[u8]) -> Vec<Option<Entry>> {
        let slots = bytes.chunks_exact(self.memory.geometry().slot as usize);
        let entry = |(index, slot): (u64, &[u8])| {
            let found = Entry::parse(slot, self.memory.salt());
            found.filter(|found| found.index == index && found.kind != Kind::Snapshot)
        };
        (index..).zip(slots).map(entry).collect()
    }

    fn reads_slots(&mut self, peer: usize, from: u64, count: u64, asked: impl Fn(u64, u64) -> Asked) {
        let geometry = *self.memory.geometry();
        for (index, count) in geometry.runs(from, count) {
            let at = (geometry.slot_at(index), count as u32 * geometry.slot);
            self.read(peer, Plane::Replication, at, asked(index, count));
            if let Some(term) = &mut self.term {
                term.reads += 1;
            }
        }
    }

    /// Copies what a follower knows to be decided and this replica lacks: entries, or a snapshot where they are gone.
    fn copies(&mut self, now: Duration) -> io::Result<bool> {
        let applied = self.applied;
        let Some(term) = &self.term else { return Ok(false) };
        let followers = || {
            let joined = term.followers.iter().enumerate().filter(|(_, follower)| follower.has_joined);
            joined.filter_map(|(peer, follower)| Some((peer, follower, follower.status?)))
        };
        let known = followers().map(|(_, follower, status)| follower.decided.max(status.head)).max();
        if known.unwrap_or(0).max(self.memory.decided()) <= applied {
            self.enters(Stage::Tails { at: applied, found: BTreeMap::new(), is_any: false });
            self.reads_tails(applied);
            return Ok(true);
        }
        let gives = followers().filter(|(_, follower, status)| {
            !follower.lacks && status.head <= applied && applied < follower.decided
        });
        if let Some((peer, follower, _)) = gives.max_by_key(|(_, follower, _)| follower.decided) {
            // What lies in its own slots is not written over before a snapshot has it.
            let room = (self.head() + u64::from(self.memory.geometry().slots)).saturating_sub(applied);
            let count = (follower.decided - applied).min(COPIES).min(room);
            if count == 0 {
                self.asks_for_snapshot();
            }
            self.reads_slots(peer, applied, count, |index, count| Asked::Entries { index, count });
            return Ok(false);
        }
        let fetched = followers().filter(|(_, _, status)| status.head > applied);
        let Some((peer, _, status)) = fetched.max_by_key(|(_, _, status)| status.head) else {
            self.ends_term();
            self.goes_to_rest(now);
            return Ok(false);
        };
        let geometry = self.memory.geometry();
        let len = status.length.min(geometry.snapshot.into()) as u32;
        let at = (geometry.snapshot_at(status.place), len);
        self.read(peer, Plane::Replication, at, Asked::Fetch);
        if let Some(term) = &mut self.term {
            term.reads += 1;
        }
        Ok(false)
    }

    /// Reads what may have been decided from an index on: as many entries as may be written and not decided.
    fn reads_tails(&mut self, at: u64) {
        let window = u64::from(self.memory.geometry().window);
        let own: Vec<Entry> = (at..at + window).filter_map(|index| self.memory.entry(index)).collect();
        self.finds(own.into_iter());
        for peer in self.joined() {
            self.reads_slots(peer, at, window, |index, _| Asked::Tail { index });
        }
    }

    /// Of what was found at an index the entry of the highest number counts.
    fn finds(&mut self, entries: impl Iterator<Item = Entry>) {
        let Some(Stage::Tails { found, is_any, .. }) = self.term.as_mut().map(|term| &mut term.stage) else {
            return;
        };
        for entry in entries {
            *is_any = true;
            if found.get(&entry.index).is_none_or(|other| other.proposal < entry.proposal) {
                found.insert(entry.index, entry);
            }
        }
    }

    /// A whole window without an entry is behind the end: whoever wrote further had decided the first one of it, which a majority would have.
    fn looks_further(&mut self) -> io::Result<bool> {
        let window = u64::from(self.memory.geometry().window);
        let Some(Stage::Tails { at, found, is_any }) = self.term.as_mut().map(|term| &mut term.stage) else {
            return Ok(false);
        };
        if std::mem::take(is_any) {
            *at += window;
            let at = *at;
            self.reads_tails(at);
            return Ok(true);
        }
        let found = std::mem::take(found);
        self.enters(Stage::Saves { found });
        Ok(true)
    }

    /// Writes what was found into its own log, under its own number, and nothing where nothing was found before something.
    fn adopts(&mut self) -> io::Result<bool> {
        let (slots, window) =
            (u64::from(self.memory.geometry().slots), u64::from(self.memory.geometry().window));
        let (start, head, own) = (self.applied, self.head(), self.memory.decided());
        let Some(term) = &mut self.term else { return Ok(false) };
        let Stage::Saves { found } = &mut term.stage else { return Ok(false) };
        let end = found.keys().next_back().map_or(start, |last| (last + 1).max(start));
        let from = head.max(own).min(start);
        let is_whole = (from..start).all(|index| self.memory.entry(index).is_some());
        if !is_whole {
            self.right = start;
        }
        if head < start && (!is_whole || end + window > head + slots) {
            self.asks_for_snapshot();
            return Ok(false);
        }
        let number = term.number;
        let mut found = std::mem::take(found);
        let entry = |index| {
            let nothing =
                Entry { index, proposal: number, decided: start, kind: Kind::Nothing, payload: Vec::new() };
            Entry { proposal: number, ..found.remove(&index).unwrap_or(nothing) }
        };
        let entries: Vec<Entry> = (start..end).map(entry).collect();
        (term.next, term.fresh, term.decided, term.stage) = (end, end, start, Stage::Leads);
        self.memory.persist(from..start)?;
        self.memory.set_decided(start);
        self.memory.rewrite(&entries)?;
        Ok(true)
    }

    /// What a leader does, whenever something has happened.
    fn writes(&mut self, now: Duration) -> io::Result<()> {
        self.asks();
        let Some(term) = &self.term else { return Ok(()) };
        let granted = term.followers.iter().enumerate().filter(|(_, f)| f.is_granted && !f.is_read);
        let granted: Vec<usize> = granted.map(|(peer, _)| peer).collect();
        granted.into_iter().for_each(|peer| self.reads_head(peer));
        while self.decides(now) | self.takes_values()? {}
        for peer in self.joined() {
            self.sends(peer);
        }
        while self.confirms(now) {}
        Ok(())
    }

    /// Somebody wants to read. Who asks while others are asked waits for the next round, as these READs may be older than its question.
    pub(super) fn is_to_confirm(&mut self, token: u64) {
        let why = match &mut self.term {
            None => Refusal::Elsewhere { leader: self.leader() },
            Some(term) if term.readers.len() >= self.options.waiting => Refusal::Busy,
            Some(term) => return term.readers.push(token),
        };
        self.actions.push_back(Action::Refuse { token, why });
    }

    /// Asks all others whether this replica leads still, for all who want to read, and tells them when a majority has said so. Whether another round is
    /// to follow.
    ///
    /// ARGUMENT: whoever leads later has the grant of one replica of that majority, and got it behind the READ of what that one had promised, which is
    /// behind the question. So all that anybody was told of before the question was decided by this leader or by earlier ones; of those it has
    /// found everything, below `fresh`, and it tells nobody of a value of its own that is not below `decided`.
    fn confirms(&mut self, now: Duration) -> bool {
        let majority = self.memory.geometry().majority();
        let Some(term) = &mut self.term else { return false };
        if term.round.is_none() && !term.readers.is_empty() {
            term.rounds += 1;
            term.round = Some(Round {
                number: term.rounds,
                tokens: std::mem::take(&mut term.readers),
                until: term.decided.max(term.fresh),
                asked: [false; REPLICAS_MAX],
                said: [false; REPLICAS_MAX],
            });
        }
        for peer in self.others() {
            let is_up = self.is_up(peer, Plane::Background);
            let Some(term) = &mut self.term else { return false };
            if let Some(round) = term.round.as_mut().filter(|round| is_up && !round.asked[peer]) {
                round.asked[peer] = true;
                let asked = Asked::Promise { term: term.number, round: round.number };
                self.read(peer, Plane::Background, (PROMISED, 8), asked);
            }
        }
        let applied = self.applied;
        let Some(term) = &mut self.term else { return false };
        let is_over = |round: &mut Round| {
            let said = round.said.iter().filter(|said| **said).count();
            said + 1 >= majority && applied >= round.until
        };
        let Some(round) = term.round.take_if(is_over) else { return false };
        if term.next == term.decided {
            term.progress = now;
        }
        let goes_on = !term.readers.is_empty();
        self.actions.extend(round.tokens.into_iter().map(|token| Action::Confirmed { token }));
        goes_on
    }

    /// What is durable on a majority is decided.
    fn decides(&mut self, now: Duration) -> bool {
        let majority = self.memory.geometry().majority();
        let me = self.me();
        let Some(term) = &mut self.term else { return false };
        let followers = term.followers.iter().enumerate();
        let durable = followers.map(|(peer, follower)| if peer == me { term.next } else { follower.acked });
        let decided = kth(durable, majority).min(term.next);
        if decided <= term.decided {
            return false;
        }
        (term.decided, term.progress) = (decided, now);
        self.memory.set_decided(decided);
        self.is_rested();
        self.applies();
        true
    }

    /// Writes values into its own log: so many that no more than a window is not decided, and nothing is written over that a majority has no snapshot of.
    fn takes_values(&mut self) -> io::Result<bool> {
        let (slots, window) =
            (u64::from(self.memory.geometry().slots), u64::from(self.memory.geometry().window));
        let recycled = self.recycled();
        let Some(term) = &mut self.term else { return Ok(false) };
        let until = (term.decided + window).min(recycled + slots);
        let mut entries = Vec::new();
        while term.next < until
            && let Some((token, payload)) = self.waiting.pop_front()
        {
            let (index, proposal, decided) = (term.next, term.number, term.decided);
            entries.push(Entry { index, proposal, decided, kind: Kind::Value, payload });
            term.tokens.insert(index, token);
            term.next += 1;
        }
        if entries.is_empty() {
            return Ok(false);
        }
        self.memory.put(&entries)?;
        Ok(true)
    }

    /// Sends a follower what it lacks, and tells it what is decided when there is nothing else to say.
    fn sends(&mut self, peer: usize) {
        if self.status_of(peer).is_stuck {
            self.pushes(peer, 0);
        }
        loop {
            let (right, depth) = (self.right, self.options.depth);
            let Some(term) = &self.term else { return };
            let (next, follower) = (term.next, &term.followers[peer]);
            let from = follower.sent;
            if follower.under_way >= depth || from >= next {
                break;
            }
            let entries = (from..next).take(ENTRIES).map_while(|index| self.memory.entry(index));
            let entries: Vec<Entry> = if from < right { Vec::new() } else { entries.collect() };
            if entries.is_empty() {
                if self.pushes(peer, from + 1) {
                    continue;
                }
                break;
            }
            let until = from + entries.len() as u64;
            let (fresh, mut updates) = (term.fresh, Vec::new());
            for entry in entries {
                let (at, bytes) =
                    (self.memory.geometry().slot_at(entry.index), entry.emit(self.memory.salt()));
                if entry.index < fresh {
                    let (number_at, number) = Entry::renumber(&bytes);
                    updates.push((at + number_at, number.to_vec()));
                }
                updates.push((at, bytes));
            }
            if let Some(follower) = self.follower(peer) {
                (follower.sent, follower.under_way) = (until, follower.under_way + 1);
            }
            self.update(peer, updates, Asked::Stream { until });
        }
        let has = self.status_of(peer).head;
        let Some(term) = &mut self.term else { return };
        let (decided, next) = (term.decided, term.next);
        let follower = &mut term.followers[peer];
        // What is written there is durable there, and is what was decided: below a snapshot that it has not taken yet may lie anything.
        let known = decided.min(follower.acked);
        let is_idle = follower.under_way == 0 && follower.sent == next;
        if is_idle && known > follower.told && has >= follower.gap {
            follower.told = known;
            self.write_word(peer, Plane::Replication, DECIDED, known);
        }
    }

    /// Sends a follower this replica's snapshot, if that goes so far and was not sent yet; asks for another one if not.
    fn pushes(&mut self, peer: usize, least: u64) -> bool {
        let head = self.head();
        let Some(follower) = self.follower(peer) else { return false };
        if head <= follower.pushed || head < least {
            self.asks_for_snapshot();
            return false;
        }
        let Some((_, snapshot)) = self.memory.snapshot() else { return false };
        let (index, bytes) = (snapshot.index, snapshot.emit(self.memory.salt()));
        if let Some(follower) = self.follower(peer) {
            if index > follower.sent {
                (follower.sent, follower.gap) = (index, index);
            }
            (follower.pushed, follower.under_way) = (index, follower.under_way + 1);
        }
        self.update(peer, vec![(PUSHED, bytes)], Asked::Push { index });
        true
    }

    /// An update is durable at a follower.
    pub(super) fn has_updated(&mut self, peer: usize, asked: &Asked) {
        let Some(follower) = self.follower(peer) else { return };
        if let Asked::Stream { until: upto } | Asked::Push { index: upto } = asked {
            (follower.acked, follower.under_way) = (follower.acked.max(*upto), follower.under_way - 1);
        }
    }
}
