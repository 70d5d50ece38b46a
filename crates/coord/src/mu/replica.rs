//! A replica: what it shares with the others and with its user, whoever leads. What it does as the leader is in `lead.rs`.
//!
//! **What a follower takes for decided** (`learn`). All below the word *decided* of its memory; and an entry of which another entry *of the same number*
//! says that it is. The leader of a number writes one value to an index, so whatever it says was decided there is that value. What another number's entry says is
//! no proof: a loss of power may have brought back what that leader had overwritten.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use remanence_pmem::Medium;

use super::entry::u64_at;
use super::entry::{Entry, Kind};
use super::lead::{Asked, Term};
use super::memory::{LOOK_LEN, Memory, OpenError, PROMISED, STATUS, Status, grant_at};
use super::score::Scores;
use super::{Action, Input, Options, Plane, Refusal, number};

/// Entries that are looked at in one go.
const BATCH: usize = 256;

/// A connection to a peer.
#[derive(Debug, Default)]
struct Link {
    is_up: bool,
    asked: VecDeque<Asked>,
}

/// What is known of another replica.
#[derive(Debug, Default)]
struct Peer {
    links: [Link; 2],
    /// When its status was asked for that has not come.
    since: Option<Duration>,
    status: Status,
    /// The number that it was answered last.
    answered: u64,
}

/// The zone goes to somebody else.
#[derive(Clone, Copy, Debug)]
struct Switch {
    to: usize,
    number: u64,
    /// Nobody has it any more, and the number is promised.
    is_revoked: bool,
}

/// A replica of a group.
#[derive(Debug)]
pub struct Replica<M> {
    pub(super) memory: Memory<M>,
    pub(super) options: Options,
    status: Status,
    scores: Scores,
    peers: Vec<Peer>,
    switch: Option<Switch>,
    /// Who may write to the zone.
    holder: Option<usize>,
    pub(super) term: Option<Box<Term>>,
    /// The highest number that somebody is known to have promised.
    pub(super) seen: u64,
    /// The first entry that was not handed out.
    pub(super) applied: u64,
    /// Entries from here on that are in the log and decided are what was decided.
    pub(super) right: u64,
    /// More can be handed out at once.
    is_behind: bool,
    is_snapshot_asked: bool,
    beats: Duration,
    /// Without a beat until then, and for how long the next time.
    rests: Duration,
    rest: Duration,
    is_resting: bool,
    has_failed: bool,
    pub(super) waiting: VecDeque<(u64, Vec<u8>)>,
    pub(super) actions: VecDeque<Action>,
}

impl<M: Medium> Replica<M> {
    /// The replica whose memory this is, as it was left. It has no connections; [`Action::Restore`] and [`Action::Apply`] say what its state is.
    ///
    /// # Errors
    /// It is no replica's memory, or damaged.
    pub fn open(now: Duration, medium: M, options: Options) -> Result<Self, OpenError> {
        let memory = Memory::open(medium)?;
        let replicas = usize::from(memory.geometry().replicas);
        let mut replica = Self {
            options,
            status: Status::default(),
            scores: Scores::new(replicas),
            peers: (0..replicas).map(|_| Peer::default()).collect(),
            switch: None,
            holder: None,
            term: None,
            seen: memory.promised(),
            applied: 0,
            right: 0,
            is_behind: true,
            is_snapshot_asked: false,
            beats: now,
            rests: now,
            rest: options.rest,
            is_resting: false,
            has_failed: false,
            waiting: VecDeque::new(),
            actions: VecDeque::new(),
            memory,
        };
        if let Some((place, found)) = replica.memory.snapshot() {
            let length = found.emit(replica.memory.salt()).len() as u64;
            replica.status = Status { beat: 0, head: found.index, place, length, is_stuck: false };
            (replica.applied, replica.right) = (found.index, found.index);
            replica.actions.push_back(Action::Restore { index: found.index, state: found.payload });
        }
        // A beat that was read of its last life has changed.
        replica.status.beat = replica.seen ^ now.as_nanos() as u64;
        replica.memory.say(&replica.status);
        Ok(replica)
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Duration, input: Input) {
        if self.has_failed {
            if let Input::Propose { token, .. } | Input::Confirm { token } = input {
                let why = Refusal::Elsewhere { leader: None };
                self.actions.push_back(Action::Refuse { token, why });
            }
            return;
        }
        if self.takes(now, input).and_then(|()| self.goes_on(now)).is_err() {
            self.has_failed = true;
            self.ends_term();
            self.actions.push_back(Action::Stop);
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When it wants to be told the time, should nothing happen before.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if self.has_failed {
            return None;
        }
        if self.is_behind {
            return Some(Duration::ZERO);
        }
        let term = self.term.as_ref().and_then(|term| term.deadline(&self.options));
        term.into_iter().chain([self.beats]).min()
    }

    /// Who is taken for the leader: the lowest number that is trusted. None while only this replica is left, and rests.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let trusts = |peer: &usize| match *peer == self.me() {
            true => !self.is_resting,
            false => self.scores.is_trusted(*peer),
        };
        (0..self.peers.len()).find(trusts)
    }

    /// The number under which this replica leads; none while it does not, or is not there yet.
    #[must_use]
    pub fn leads(&self) -> Option<u64> {
        self.term.as_ref().filter(|term| term.is_leading()).map(|term| term.number)
    }

    /// The first entry that was not handed out to be applied.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Its snapshot covers all entries below.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.status.head
    }

    /// The memory that it has.
    pub const fn memory(&self) -> &Memory<M> {
        &self.memory
    }

    pub(super) const fn me(&self) -> usize {
        self.memory.me()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<M> {
        let me = self.me();
        (0..self.peers.len()).filter(move |peer| *peer != me)
    }

    pub(super) const fn is_switching(&self) -> bool {
        self.switch.is_some()
    }

    pub(super) const fn rests(&self) -> bool {
        self.is_resting
    }

    pub(super) fn status_of(&self, peer: usize) -> Status {
        self.peers[peer].status
    }

    pub(super) fn is_up(&self, peer: usize, plane: Plane) -> bool {
        self.peers[peer].links[plane as usize].is_up
    }

    fn takes(&mut self, now: Duration, input: Input) -> io::Result<()> {
        self.is_resting = now < self.rests;
        match input {
            Input::Connected { peer, plane } => {
                if self.is_up(peer, plane) {
                    self.has_lost(peer, plane);
                }
                self.peers[peer].links[plane as usize] = Link { is_up: true, asked: VecDeque::new() };
                if plane == Plane::Background {
                    (self.peers[peer].since, self.peers[peer].answered) = (None, 0);
                }
            }
            Input::Lost { peer, plane } => {
                self.peers[peer].links[plane as usize] = Link::default();
                self.has_lost(peer, plane);
            }
            Input::Read { peer, plane, bytes } => match self.oldest(peer, plane) {
                Some(Asked::Status) => {
                    self.peers[peer].since = None;
                    if let Some(status) = Status::parse(&bytes) {
                        self.peers[peer].status = status;
                        self.scores.read(peer, status.beat);
                    }
                    if bytes.len() == LOOK_LEN as usize {
                        self.has_promised(peer, u64_at(&bytes, (PROMISED - STATUS) as usize));
                    }
                }
                Some(asked) => self.has_read(now, peer, &asked, &bytes)?,
                None => {}
            },
            Input::Durable { peer } => {
                if let Some(asked) = self.oldest(peer, Plane::Replication) {
                    self.has_updated(peer, &asked);
                }
            }
            Input::Written { peer, plane } => drop(self.oldest(peer, plane)),
            Input::Revoked => self.has_revoked(now)?,
            Input::Allowed { peer } => {
                if self.switch.is_some_and(|switch| switch.to == peer && switch.is_revoked) {
                    (self.switch, self.holder) = (None, Some(peer));
                }
            }
            Input::Propose { token, value } => self.is_asked(token, value),
            Input::Confirm { token } => self.is_to_confirm(token),
            Input::Snapshot { index, state } => {
                self.is_snapshot_asked = false;
                if index > self.head() {
                    self.saves(index, state)?;
                }
            }
            Input::Timeout => {}
        }
        Ok(())
    }

    fn goes_on(&mut self, now: Duration) -> io::Result<()> {
        self.beats(now);
        self.looks_at_requests(now)?;
        self.takes_pushed()?;
        self.applies();
        self.leads_on(now)
    }

    fn oldest(&mut self, peer: usize, plane: Plane) -> Option<Asked> {
        self.peers[peer].links[plane as usize].asked.pop_front()
    }

    pub(super) fn read(&mut self, peer: usize, plane: Plane, at: (u64, u32), asked: Asked) {
        let (offset, len) = at;
        self.peers[peer].links[plane as usize].asked.push_back(asked);
        self.actions.push_back(Action::Read { peer, plane, offset, len });
    }

    pub(super) fn write_word(&mut self, peer: usize, plane: Plane, offset: u64, word: u64) {
        self.peers[peer].links[plane as usize].asked.push_back(Asked::Word);
        self.actions.push_back(Action::Write { peer, plane, offset, bytes: word.to_le_bytes().to_vec() });
    }

    pub(super) fn update(&mut self, peer: usize, updates: Vec<(u64, Vec<u8>)>, asked: Asked) {
        self.peers[peer].links[Plane::Replication as usize].asked.push_back(asked);
        self.actions.push_back(Action::Update { peer, updates });
    }

    pub(super) fn reconnect(&mut self, peer: usize, plane: Plane) {
        let link = &mut self.peers[peer].links[plane as usize];
        if link.is_up {
            *link = Link::default();
            self.actions.push_back(Action::Reconnect { peer, plane });
        }
    }

    /// The owner's beat, and a look at those of the others.
    fn beats(&mut self, now: Duration) {
        if now < self.beats {
            return;
        }
        // Who did not run for long counts that as one silence of the others.
        self.beats = now + self.options.period;
        if !self.is_resting {
            self.status.beat = self.status.beat.wrapping_add(1);
            self.memory.say(&self.status);
        }
        for peer in self.others() {
            match (self.is_up(peer, Plane::Background), self.peers[peer].since) {
                (false, _) => self.scores.silence(peer),
                (true, Some(since)) if now.saturating_sub(since) >= self.options.patience => {
                    self.scores.silence(peer);
                }
                (true, Some(_)) => {}
                (true, None) => {
                    self.peers[peer].since = Some(now);
                    self.read(peer, Plane::Background, (STATUS, LOOK_LEN), Asked::Status);
                }
            }
        }
    }

    /// No beat for a while, so that the others choose somebody else.
    pub(super) fn goes_to_rest(&mut self, now: Duration) {
        (self.rests, self.is_resting) = (now + self.rest, true);
        self.rest = (self.rest * 2).min(self.options.rest * 16);
    }

    pub(super) fn is_rested(&mut self) {
        self.rest = self.options.rest;
    }

    /// Grants and refuses what peers ask for.
    fn looks_at_requests(&mut self, now: Duration) -> io::Result<()> {
        let leader = self.leader();
        self.others().try_for_each(|peer| self.answers(now, peer, leader == Some(peer)))
    }

    fn answers(&mut self, now: Duration, peer: usize, is_leader: bool) -> io::Result<()> {
        let (asked, promised) = (self.memory.request(peer), self.memory.promised());
        let is_under_way = self.switch.is_some_and(|switch| switch.to == peer);
        let is_answered = asked == 0 || asked == self.peers[peer].answered;
        let is_one = number::is_one(asked) && number::who(asked) == peer;
        if is_answered || is_under_way || !is_one || !self.is_up(peer, Plane::Background) {
            return Ok(());
        }
        if asked > promised {
            if is_leader && self.switch.is_none() {
                if self.holder == Some(peer) && number::is_of_one_term(asked, promised) {
                    // Nobody else has the right, and it asks for a connection that it has made anew. To take the right away first may cut
                    // that one, so that it would ask again, and again.
                    let switch = Switch { to: peer, number: asked, is_revoked: false };
                    (self.holder, self.switch) = (None, Some(switch));
                    return self.has_revoked(now);
                }
                self.begins_switch(peer, asked);
            }
            return Ok(());
        }
        let is_granted = asked == promised && self.holder == Some(peer);
        let word = if is_granted { asked } else { promised.max(asked + 1) };
        self.peers[peer].answered = asked;
        self.write_word(peer, Plane::Background, grant_at(self.me()), word);
        Ok(())
    }

    /// First nobody has the right any more, then the number is promised, then somebody has it, and only then that is told.
    pub(super) fn begins_switch(&mut self, to: usize, number: u64) {
        (self.holder, self.switch) = (None, Some(Switch { to, number, is_revoked: false }));
        if to != self.me() {
            self.ends_term();
        }
        self.actions.push_back(Action::Revoke);
    }

    fn has_revoked(&mut self, now: Duration) -> io::Result<()> {
        let me = self.me();
        let Some(switch) = self.switch.as_mut().filter(|switch| !switch.is_revoked) else { return Ok(()) };
        switch.is_revoked = true;
        let Switch { to, number, .. } = *switch;
        self.memory.promise(number)?;
        self.seen = self.seen.max(number);
        if to == me {
            (self.switch, self.holder) = (None, Some(me));
            self.has_own(now, number);
        } else {
            self.actions.push_back(Action::Allow { peer: to });
        }
        Ok(())
    }

    fn is_asked(&mut self, token: u64, value: Vec<u8>) {
        let why = if self.term.is_none() {
            Some(Refusal::Elsewhere { leader: self.leader() })
        } else if value.len() > self.memory.geometry().value_max() {
            Some(Refusal::TooLong)
        } else {
            (self.waiting.len() >= self.options.waiting).then_some(Refusal::Busy)
        };
        match why {
            Some(why) => self.actions.push_back(Action::Refuse { token, why }),
            None => self.waiting.push_back((token, value)),
        }
    }

    /// Makes a snapshot durable in the place of the older one.
    pub(super) fn saves(&mut self, index: u64, state: Vec<u8>) -> io::Result<()> {
        let most = self.memory.geometry().state_max();
        assert!(state.len() <= most, "a state of {} bytes, and a snapshot has {most}", state.len());
        let snapshot = Entry { index, proposal: 0, decided: index, kind: Kind::Snapshot, payload: state };
        let bytes = snapshot.emit(self.memory.salt());
        let place = (self.status.place + 1) % 2;
        self.memory.keep(place, &bytes)?;
        self.status = Status { head: index, place, length: bytes.len() as u64, ..self.status };
        self.memory.say(&self.status);
        Ok(())
    }

    /// The state jumps to that of a snapshot.
    pub(super) fn restores(&mut self, index: u64, state: Vec<u8>) {
        (self.applied, self.right) = (index, index);
        self.actions.push_back(Action::Restore { index, state });
    }

    /// Takes what a leader has sent as this replica's own snapshot.
    fn takes_pushed(&mut self) -> io::Result<()> {
        if self.memory.pushed_index() <= self.head() {
            return Ok(());
        }
        let Some(found) = self.memory.pushed().filter(|found| found.index > self.head()) else {
            return Ok(());
        };
        self.saves(found.index, found.payload.clone())?;
        if found.index > self.applied {
            self.restores(found.index, found.payload);
        }
        Ok(())
    }

    /// Hands out what is decided.
    pub(super) fn applies(&mut self) {
        let entries = match self.term.as_ref().and_then(|term| term.decided()) {
            Some(decided) => {
                let until = decided.min(self.applied + BATCH as u64);
                let own: Vec<Entry> =
                    (self.applied..until).map_while(|index| self.memory.entry(index)).collect();
                self.is_behind = own.len() == BATCH;
                own
            }
            None => self.learn(),
        };
        let is_stuck = entries.is_empty()
            && self.memory.decided() > self.applied
            && self.memory.entry(self.applied).is_none();
        entries.into_iter().for_each(|entry| self.hands_out(entry));
        if is_stuck != self.status.is_stuck {
            self.status.is_stuck = is_stuck;
            self.memory.say(&self.status);
        }
    }

    /// The entries from the first on that was not handed out that are known to be decided.
    fn learn(&mut self) -> Vec<Entry> {
        let told = self.memory.decided();
        let mut found: Vec<Entry> =
            (self.applied..).take(BATCH).map_while(|index| self.memory.entry(index)).collect();
        // What entries behind it say, by the number of their leader.
        let mut said: Vec<(u64, u64)> = Vec::new();
        let mut decided = found.len();
        for (n, entry) in found.iter().enumerate().rev() {
            let by = said.iter_mut().find(|(proposal, _)| *proposal == entry.proposal);
            let is_decided = entry.index < told || by.as_ref().is_some_and(|(_, most)| entry.index < *most);
            if !is_decided {
                decided = n;
            }
            match by {
                Some((_, most)) => *most = entry.decided.max(*most),
                None => said.push((entry.proposal, entry.decided)),
            }
        }
        self.is_behind = found.len() == BATCH && decided > 0;
        found.truncate(decided);
        found
    }

    /// Hands out the next entry.
    pub(super) fn hands_out(&mut self, entry: Entry) {
        assert_eq!(entry.index, self.applied, "entries are applied in their order");
        let token = self.token_of(entry.index);
        let value = (entry.kind == Kind::Value).then_some(entry.payload);
        self.actions.push_back(Action::Apply { index: entry.index, value, token });
        self.applied += 1;
        if self.applied - self.head() >= u64::from(self.memory.geometry().slots / 4) {
            self.asks_for_snapshot();
        }
    }

    /// The host says what the entries have led to that were applied until now, unless it was asked already.
    pub(super) fn asks_for_snapshot(&mut self) {
        if !self.is_snapshot_asked && self.applied > self.head() {
            self.is_snapshot_asked = true;
            self.actions.push_back(Action::Snapshot { index: self.applied });
        }
    }

    /// How far the snapshots of a majority go: what lies below can be written over.
    pub(super) fn recycled(&self) -> u64 {
        let heads = self.others().map(|peer| self.peers[peer].status.head).chain([self.head()]);
        kth(heads, self.memory.geometry().majority()).min(self.head())
    }
}

/// The k-th largest.
pub(super) fn kth(of: impl Iterator<Item = u64>, k: usize) -> u64 {
    let mut all: Vec<u64> = of.collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.get(k - 1).copied().unwrap_or(0)
}
