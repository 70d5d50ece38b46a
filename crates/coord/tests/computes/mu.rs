//! Mu step by step: each rule by which two leaders are kept from deciding two values, and by which one is found at all.
//!
//! Replicas are driven by hand: what is sent can be held up, can have arrived without being durable, and rights change when a test says so. What belongs to one entry or
//! to one memory is tested in `coord::mu::entry` and `memory`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use remanence_coord::mu::memory::{DECIDED, PROMISED, STATUS, grant_at, request_at};
use remanence_coord::mu::{Action, Geometry, Input, Memory, Options, Plane, Replica};
use remanence_pmem::crash_image::{Choices, CrashImage, Failure};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{Medium, PersistenceDomain};

const PERIOD: Duration = Duration::from_millis(1);
const SALT: u64 = 99;
const SLOTS: u32 = 16;
/// Periods in which a dead leader is certainly replaced.
const LONG: u32 = 40;

/// Of what is not durable nothing is left.
struct Least;

impl Choices for Least {
    fn pick(&mut self, _options: usize) -> usize {
        0
    }
}

/// What a connection does with what is sent on it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Way {
    #[default]
    Open,
    /// Nothing of it arrives yet.
    Held,
    /// Updates become visible, and are not durable yet.
    Visible,
}

#[derive(Default)]
struct Link {
    is_up: bool,
    may_write: bool,
    way: Way,
    sent: VecDeque<(Action, bool)>,
}

/// Replicas, and what is between them.
struct Group {
    geometry: Geometry,
    now: Duration,
    media: Vec<Arc<CrashImage>>,
    replicas: Vec<Option<Replica<Arc<CrashImage>>>>,
    links: BTreeMap<(usize, usize, u8), Link>,
    /// Replicas whose rights change when the test says so, and what waits for that.
    slow: BTreeSet<usize>,
    switches: Vec<(usize, Input)>,
    /// Replicas that say nothing when they are asked for a snapshot.
    without_snapshots: BTreeSet<usize>,
    applied: Vec<BTreeMap<u64, Option<Vec<u8>>>>,
    states: Vec<u64>,
    /// What became of tokens: applied or confirmed, or given up.
    done: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
    /// Updates that each replica has sent.
    updates: Vec<u32>,
    proposed: u64,
}

fn options() -> Options {
    Options { stuck: PERIOD * 100, ..Options::new(PERIOD) }
}

/// What the entries of a test lead to.
fn after(state: u64, value: Option<&[u8]>) -> u64 {
    value
        .unwrap_or(b"nothing")
        .iter()
        .fold(state, |state, byte| state.wrapping_mul(31) + u64::from(*byte) + 1)
}

impl Group {
    fn new(replicas: u16) -> Self {
        let geometry = Geometry { replicas, slots: SLOTS, slot: 256, window: 4, snapshot: 256 };
        let medium = |me| {
            let medium = Arc::new(CrashImage::new(geometry.size(), PersistenceDomain::Adr));
            Memory::create(&medium, geometry, me, Uuid([1; 16]), SALT).expect("a new medium is healthy");
            medium
        };
        let count = usize::from(replicas);
        let mut group = Self {
            geometry,
            now: Duration::from_secs(1),
            media: (0..replicas).map(medium).collect(),
            replicas: (0..count).map(|_| None).collect(),
            links: BTreeMap::new(),
            slow: BTreeSet::new(),
            switches: Vec::new(),
            without_snapshots: BTreeSet::new(),
            applied: vec![BTreeMap::new(); count],
            states: vec![0; count],
            done: BTreeSet::new(),
            given_up: BTreeSet::new(),
            updates: vec![0; count],
            proposed: 0,
        };
        (0..count).for_each(|node| group.start(node));
        group
    }

    fn nodes(&self) -> std::ops::Range<usize> {
        0..self.replicas.len()
    }

    fn start(&mut self, node: usize) {
        let medium = Arc::clone(&self.media[node]);
        self.states[node] = 0;
        self.replicas[node] = Some(Replica::open(self.now, medium, options()).expect("its memory"));
        for peer in self.nodes().filter(|peer| *peer != node) {
            if self.replicas[peer].is_some() {
                for plane in Plane::ALL {
                    self.connect(node, peer, plane);
                    self.connect(peer, node, plane);
                }
            }
        }
    }

    /// Its process is gone; of what was not durable nothing is left.
    fn kill(&mut self, node: usize) {
        self.replicas[node] = None;
        self.switches.retain(|(of, _)| *of != node);
        self.media[node] = Arc::new(self.media[node].crash(Failure::PowerLoss, &mut Least));
        for peer in self.nodes().filter(|peer| *peer != node) {
            for plane in Plane::ALL {
                self.links.remove(&(node, peer, plane as u8));
                self.lose(peer, node, plane);
            }
        }
    }

    fn connect(&mut self, from: usize, to: usize, plane: Plane) {
        let link = self.links.entry((from, to, plane as u8)).or_default();
        *link = Link { is_up: true, way: link.way, ..Link::default() };
        self.handle(from, Input::Connected { peer: to, plane });
    }

    /// What was sent on it and has not arrived never will.
    fn lose(&mut self, from: usize, to: usize, plane: Plane) {
        let link = self.links.entry((from, to, plane as u8)).or_default();
        let (way, was_up) = (link.way, link.is_up);
        *link = Link { way, ..Link::default() };
        if was_up {
            self.handle(from, Input::Lost { peer: to, plane });
        }
    }

    fn way(&mut self, from: usize, to: usize, plane: Plane, way: Way) {
        self.links.entry((from, to, plane as u8)).or_default().way = way;
    }

    fn handle(&mut self, node: usize, input: Input) {
        if let Some(replica) = &mut self.replicas[node] {
            replica.handle(self.now, input);
        }
    }

    fn replica(&self, node: usize) -> &Replica<Arc<CrashImage>> {
        self.replicas[node].as_ref().expect("it runs")
    }

    fn propose(&mut self, node: usize, value: &[u8]) -> u64 {
        self.proposed += 1;
        self.handle(node, Input::Propose { token: self.proposed, value: value.to_vec() });
        self.run();
        self.proposed
    }

    fn confirm(&mut self, node: usize) -> u64 {
        self.proposed += 1;
        self.handle(node, Input::Confirm { token: self.proposed });
        self.run();
        self.proposed
    }

    /// Everything that can happen at this moment.
    fn run(&mut self) {
        loop {
            let mut is_idle = true;
            for node in self.nodes() {
                while let Some(action) = self.replicas[node].as_mut().and_then(Replica::poll_action) {
                    self.act(node, action);
                    is_idle = false;
                }
            }
            let keys: Vec<_> = self.links.keys().copied().collect();
            for key in keys {
                while self.arrive(key) {
                    is_idle = false;
                }
            }
            if is_idle {
                return;
            }
        }
    }

    /// So many periods pass.
    fn pass(&mut self, periods: u32) {
        for _ in 0..periods {
            self.now += PERIOD;
            for node in self.nodes() {
                self.handle(node, Input::Timeout);
            }
            self.run();
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Read { peer, plane, .. } => self.send(node, peer, plane, action),
            Action::Write { peer, plane, offset, ref bytes } => {
                if offset == grant_at(node) && self.granted(peer, bytes) {
                    let key = (peer, node, Plane::Replication as u8);
                    assert!(self.links[&key].may_write, "it is granted, and cannot write");
                }
                self.send(node, peer, plane, action);
            }
            Action::Update { peer, .. } => {
                self.updates[node] += 1;
                self.send(node, peer, Plane::Replication, action);
            }
            Action::Reconnect { peer, plane } => {
                let is_there = self.replicas[peer].is_some();
                let link = self.links.entry((node, peer, plane as u8)).or_default();
                *link = Link { way: link.way, ..Link::default() };
                if is_there {
                    self.connect(node, peer, plane);
                }
            }
            Action::Revoke => self.switches.push((node, Input::Revoked)),
            Action::Allow { peer } => {
                let others = self.writers(node).any(|writer| writer != peer);
                assert!(!others, "nobody else has the right when it is given to somebody");
                self.switches.push((node, Input::Allowed { peer }));
            }
            Action::Apply { index, value, token } => {
                self.states[node] = after(self.states[node], value.as_deref());
                self.applied[node].insert(index, value);
                self.done.extend(token);
            }
            Action::Restore { state, .. } => {
                self.states[node] = u64::from_le_bytes(state[..].try_into().expect("a state"));
            }
            Action::Snapshot { index } => {
                if !self.without_snapshots.contains(&node) {
                    let state = self.states[node].to_le_bytes().to_vec();
                    self.handle(node, Input::Snapshot { index, state });
                }
            }
            Action::Confirmed { token } => {
                self.done.insert(token);
            }
            Action::Refuse { token, .. } | Action::Forget { token } => {
                self.given_up.insert(token);
            }
            Action::Stop => panic!("no medium has failed"),
        }
        if !self.slow.contains(&node) {
            self.switch(node);
        }
    }

    /// Who can write to a replica's zone.
    fn writers(&self, node: usize) -> impl Iterator<Item = usize> {
        let to = move |key: &(usize, usize, u8)| key.1 == node && key.2 == Plane::Replication as u8;
        self.links.iter().filter(move |(key, link)| to(key) && link.may_write).map(|(key, _)| key.0)
    }

    /// The changes of rights of a replica that are under way are done.
    fn switch(&mut self, node: usize) {
        let (due, rest) = std::mem::take(&mut self.switches).into_iter().partition(|(of, _)| *of == node);
        self.switches = rest;
        let due: Vec<(usize, Input)> = due;
        for (_, done) in due {
            for (key, link) in &mut self.links {
                if (key.1, key.2) == (node, Plane::Replication as u8) {
                    link.may_write = done == Input::Allowed { peer: key.0 };
                }
            }
            self.handle(node, done);
        }
    }

    fn send(&mut self, from: usize, to: usize, plane: Plane, action: Action) {
        if let Some(link) = self.links.get_mut(&(from, to, plane as u8)) {
            link.sent.push_back((action, false));
        }
    }

    /// The oldest request on a connection is carried out.
    fn arrive(&mut self, key: (usize, usize, u8)) -> bool {
        let (from, to, plane) = key;
        let plane = Plane::ALL[usize::from(plane)];
        let link = self.links.get_mut(&key).expect("it is a key");
        let (way, may_write, zone) = (link.way, link.may_write, self.geometry.zone());
        if !link.is_up || way == Way::Held || self.replicas[to].is_none() {
            return false;
        }
        if way == Way::Visible {
            let mut was_new = false;
            for (action, is_visible) in &mut link.sent {
                let Action::Update { updates, .. } = action else { break };
                if may_write && !std::mem::replace(is_visible, true) {
                    updates.iter().for_each(|(offset, bytes)| self.media[to].write(*offset, bytes));
                    was_new = true;
                }
            }
            if matches!(link.sent.front(), Some((Action::Update { .. }, _))) {
                return was_new;
            }
        }
        let Some((action, _)) = link.sent.pop_front() else { return false };
        let medium = Arc::clone(&self.media[to]);
        let is_own = |at: u64| at == request_at(from) || at == grant_at(from);
        let may = |at: u64| match plane {
            Plane::Background => is_own(at),
            Plane::Replication => may_write && zone.contains(&at),
        };
        match action {
            Action::Read { offset, len, .. } => {
                let mut bytes = vec![0; len as usize];
                medium.read(offset, &mut bytes);
                self.handle(from, Input::Read { peer: to, plane, bytes });
            }
            Action::Write { offset, bytes, .. } if may(offset) => {
                medium.write(offset, &bytes);
                self.handle(from, Input::Written { peer: to, plane });
            }
            Action::Update { updates, .. } if updates.iter().all(|(offset, _)| may(*offset)) => {
                for (offset, bytes) in updates {
                    medium.write(offset, &bytes);
                    medium.persist(offset..offset + bytes.len() as u64).expect("a healthy medium");
                }
                self.handle(from, Input::Durable { peer: to });
            }
            // NAK: remote access error.
            _ => self.lose(from, to, plane),
        }
        true
    }

    /// Whether a word that a replica is answered is what it has asked for.
    fn granted(&self, asker: usize, word: &[u8]) -> bool {
        let asked = self.nodes().map(|node| self.media[node].load_u64(request_at(asker)));
        asked.map(u64::from_le).any(|asked| asked > 0 && asked.to_le_bytes() == *word)
    }

    /// All replicas that run have applied the same, and as much.
    fn are_equal(&self) {
        let running: Vec<usize> = self.nodes().filter(|node| self.replicas[*node].is_some()).collect();
        let first = running[0];
        for node in running {
            assert_eq!(self.replica(node).applied(), self.replica(first).applied(), "replica {node}");
            assert_eq!(self.states[node], self.states[first], "replica {node}");
        }
    }

    fn values(&self, node: usize) -> Vec<&[u8]> {
        self.applied[node].values().flatten().map(|value| &value[..]).collect()
    }

    fn word(&self, node: usize, at: u64) -> u64 {
        u64::from_le(self.media[node].load_u64(at))
    }

    /// The replica after whose start nothing happens any more; whoever leads then.
    fn settle(&mut self) -> usize {
        self.pass(LONG);
        let leaders: Vec<usize> = self
            .nodes()
            .filter(|node| self.replicas[*node].as_ref().is_some_and(|replica| replica.leads().is_some()))
            .collect();
        assert_eq!(leaders.len(), 1, "{leaders:?}");
        leaders[0]
    }
}

#[test]
fn the_lowest_leads_and_an_acknowledged_value_reaches_everybody() {
    for replicas in [1, 2, 3, 4, 5] {
        let mut group = Group::new(replicas);
        assert_eq!(group.settle(), 0);
        let token = group.propose(0, b"value");
        assert!(group.done.contains(&token), "{replicas}");
        // Nobody writes anything behind it: followers are told by the word.
        group.pass(2);
        assert!(group.nodes().all(|node| group.values(node) == [b"value"]));
        group.are_equal();
    }
}

#[test]
fn once_it_leads_a_value_is_one_update_to_each_follower() {
    let mut group = Group::new(3);
    group.settle();
    for n in 1..=10_u8 {
        let before = group.updates[0];
        let token = group.propose(0, &[n]);
        assert!(group.done.contains(&token));
        assert_eq!(group.updates[0] - before, 2, "prepare is left out");
    }
}

/// Trap 4: how many must have a value, itself included.
#[test]
fn a_majority_with_the_leader_itself_and_no_fewer_decide() {
    for (replicas, needed) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
        let mut group = Group::new(replicas);
        group.settle();
        for to in 1..usize::from(replicas) {
            group.way(0, to, Plane::Replication, Way::Held);
        }
        let token = group.propose(0, b"value");
        for to in 1..=needed {
            assert!(!group.done.contains(&token), "{replicas} replicas, {to} of {needed}");
            group.way(0, to, Plane::Replication, Way::Open);
            group.run();
        }
        assert!(group.done.contains(&token), "{replicas} replicas");
    }
}

/// Trap 1 and trap 5: what is in flight is not decided, though the entry behind it is there; and what has arrived is not durable.
#[test]
fn a_follower_applies_nothing_that_is_not_decided_whatever_is_in_flight() {
    let mut group = Group::new(3);
    group.settle();
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Visible);
    }
    let tokens: Vec<u64> = (1..=4_u8).map(|n| group.propose(0, &[n])).collect();
    group.pass(3);
    for node in [1, 2] {
        assert!(
            (0..4).all(|index| group.replica(node).memory().entry(index).is_some()),
            "they are all there"
        );
        assert!(group.values(node).is_empty(), "and none is decided");
    }
    assert!(tokens.iter().all(|token| !group.done.contains(token)));
    group.way(0, 2, Plane::Replication, Way::Open);
    group.pass(3);
    assert!(tokens.iter().all(|token| group.done.contains(token)));
    assert_eq!((group.values(2).len(), group.values(1).len()), (4, 0), "1 has not been told");
    assert_eq!(group.word(1, DECIDED), 0, "they are not durable there");
    group.way(0, 1, Plane::Replication, Way::Open);
    group.pass(3);
    group.are_equal();
}

#[test]
fn no_more_than_a_window_is_not_decided() {
    let mut group = Group::new(3);
    group.settle();
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Visible);
    }
    for n in 1..=9_u8 {
        group.propose(0, &[n]);
    }
    let there = (0..9).filter(|index| group.replica(0).memory().entry(*index).is_some()).count();
    assert_eq!(there, 4);
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Open);
    }
    group.pass(3);
    assert_eq!(group.values(1).len(), 9);
}

#[test]
fn a_dead_replica_blocks_nothing_and_a_dead_leader_is_replaced() {
    let mut group = Group::new(3);
    group.settle();
    let first = group.propose(0, b"first");
    group.kill(2);
    group.pass(5);
    let second = group.propose(0, b"second");
    assert!(group.done.contains(&first) && group.done.contains(&second));
    group.start(2);
    group.settle();
    group.are_equal();
    group.kill(0);
    assert_eq!(group.settle(), 1);
    let third = group.propose(1, b"third");
    assert!(group.done.contains(&third));
    group.pass(2);
    assert_eq!(group.values(2), [&b"first"[..], b"second", b"third"]);
    group.start(0);
    group.settle();
    group.are_equal();
}

/// Trap 3: nobody is told that it can write before nobody else can, and nothing is under way.
#[test]
fn a_right_is_taken_away_before_it_is_given_and_given_before_that_is_told() {
    let mut group = Group::new(3);
    group.settle();
    group.slow = BTreeSet::from([2]);
    let before = group.word(2, request_at(1));
    group.kill(0);
    group.pass(LONG);
    let asked = group.word(2, request_at(1));
    assert!(asked > before, "1 has asked");
    for step in 0..2 {
        assert!(group.word(1, grant_at(2)) < asked && group.replica(1).leads().is_none(), "step {step}");
        assert!(!group.links[&(1, 2, Plane::Replication as u8)].may_write);
        group.switch(2);
        if step == 0 {
            assert_eq!(group.replica(2).memory().promised(), asked, "durable before it is given");
        }
        group.run();
    }
    group.pass(5);
    assert_eq!((group.word(1, grant_at(2)), group.replica(1).leads().is_some()), (asked, true));
}

/// Trap 6: what was granted is granted for ever.
/// To take the right away may cut the connection that has it, and who loses that asks for a new one.
#[test]
fn who_asks_for_a_new_connection_in_one_term_does_not_lose_the_right_before_it_gets_it() {
    let mut group = Group::new(3);
    group.slow = BTreeSet::from([1, 2]);
    group.pass(1);
    group.switch(1);
    group.run();
    let first = group.word(1, request_at(0));
    assert_eq!((group.switches.len(), group.replica(1).memory().promised()), (2, first));
    group.lose(0, 1, Plane::Replication);
    group.connect(0, 1, Plane::Replication);
    group.run();
    let asked = group.word(1, request_at(0));
    assert!(asked > first, "it was asked again, and has not answered");
    group.switch(1);
    group.run();
    let of_1: Vec<&Input> = group.switches.iter().filter(|(of, _)| *of == 1).map(|(_, done)| done).collect();
    assert_eq!(of_1, [&Input::Allowed { peer: 0 }], "nothing is taken away");
    assert_eq!(group.writers(1).collect::<Vec<_>>(), [0]);
    assert_eq!((group.word(0, grant_at(1)), group.replica(1).memory().promised()), (0, asked));
    group.switch(1);
    group.pass(5);
    assert_eq!((group.word(0, grant_at(1)), group.replica(0).leads().is_some()), (asked, true));
}

#[test]
fn a_replica_that_was_started_again_grants_nothing_to_an_older_request() {
    let mut group = Group::new(3);
    group.settle();
    let old = group.word(2, request_at(0));
    group.kill(0);
    assert_eq!(group.settle(), 1);
    let promised = group.replica(2).memory().promised();
    assert!(promised > old);
    group.kill(2);
    assert_eq!(
        Memory::open(&group.media[2]).expect("its memory").promised(),
        promised,
        "a crash forgets nothing"
    );
    // The older request is still there, or comes again, and its owner is the one that 2 follows.
    group.media[2].store_u64(request_at(0), old.to_le());
    group.kill(1);
    group.start(2);
    group.start(0);
    group.way(0, 2, Plane::Background, Way::Held);
    group.media[2].store_u64(request_at(0), old.to_le());
    group.pass(3);
    assert_eq!(group.replica(2).memory().promised(), promised);
    assert!(!group.links[&(0, 2, Plane::Replication as u8)].may_write);
    group.way(0, 2, Plane::Background, Way::Open);
    group.pass(2 * LONG);
    assert!(group.replica(0).leads().is_some_and(|number| number > promised), "it asks with a higher one");
}

/// Trap 7: whoever was replaced does not know it, and tells nobody anything then.
#[test]
fn a_leader_that_was_replaced_acknowledges_nothing() {
    let mut group = Group::new(3);
    group.settle();
    // Nobody hears 0 any more, and it hears nobody; what it writes arrives.
    for (a, b) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        group.way(a, b, Plane::Background, Way::Held);
    }
    group.pass(LONG);
    assert!(group.replica(1).leads().is_some(), "1 was chosen");
    assert!(group.replica(0).leads().is_some(), "and 0 does not know it");
    let token = group.propose(0, b"late");
    assert!(!group.done.contains(&token) && group.given_up.contains(&token));
    assert!(group.values(1).is_empty() && group.values(2).is_empty());
    let other = group.propose(1, b"other");
    assert!(group.done.contains(&other));
}

/// What a follower says that it has counts as long as it has granted its log to nobody else: it may be what another leader wrote.
#[test]
fn who_has_granted_its_log_to_another_one_since_does_not_join() {
    let mut group = Group::new(3);
    // Its grant comes late.
    group.way(2, 0, Plane::Background, Way::Held);
    assert_eq!(group.settle(), 0);
    let token = group.propose(0, b"of both");
    assert!(group.done.contains(&token));
    group.way(1, 0, Plane::Background, Way::Held);
    group.way(0, 1, Plane::Background, Way::Held);
    group.pass(LONG);
    let token = group.propose(1, b"of 1");
    group.pass(2);
    assert!(
        group.done.contains(&token) && group.replica(0).leads().is_some(),
        "it writes nothing, and is told nothing"
    );
    group.way(2, 0, Plane::Background, Way::Open);
    group.pass(1);
    let token = group.propose(0, b"of 0");
    assert!(!group.done.contains(&token), "2 has an entry there, and not this one");
    assert_eq!(group.values(0), [b"of both"]);
}

#[test]
fn a_leader_that_has_nothing_to_write_learns_that_it_was_replaced() {
    let mut group = Group::new(3);
    group.settle();
    for from in [1, 2] {
        group.way(from, 0, Plane::Background, Way::Held);
    }
    group.pass(LONG);
    let token = group.propose(1, b"value");
    assert!(group.done.contains(&token) && group.replica(0).leads().is_none());
    for from in [1, 2] {
        group.way(from, 0, Plane::Background, Way::Open);
    }
    assert_eq!(group.settle(), 0, "it asks with a higher number");
    group.are_equal();
}

#[test]
fn who_reads_is_told_at_once_when_a_majority_has_promised_nobody_else() {
    for replicas in [1, 2, 3, 5] {
        let mut group = Group::new(replicas);
        group.settle();
        let first = group.confirm(0);
        assert!(group.done.contains(&first), "{replicas}");
        let elsewhere = group.confirm(usize::from(replicas) - 1);
        assert_eq!(group.given_up.contains(&elsewhere), replicas > 1, "a follower refuses");
    }
}

/// Trap 7 once more: what such a leader has applied is old.
#[test]
fn a_leader_that_was_replaced_lets_nobody_read() {
    let mut group = Group::new(3);
    group.settle();
    for (a, b) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        group.way(a, b, Plane::Background, Way::Held);
    }
    group.pass(LONG);
    let other = group.propose(1, b"other");
    assert!(group.done.contains(&other) && group.replica(0).leads().is_some(), "0 does not know it");
    let token = group.confirm(0);
    assert!(!group.done.contains(&token), "nobody has said anything");
    for to in [1, 2] {
        group.way(0, to, Plane::Background, Way::Open);
    }
    group.pass(1);
    assert!(
        !group.done.contains(&token) && group.given_up.contains(&token),
        "they have promised another one"
    );
}

/// What an earlier leader may have told somebody of is applied before anybody reads.
#[test]
fn a_new_leader_lets_nobody_read_before_what_it_has_found_is_decided() {
    let mut group = Group::new(3);
    group.settle();
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Visible);
    }
    group.propose(0, b"found");
    group.way(1, 2, Plane::Replication, Way::Visible);
    group.kill(0);
    assert_eq!(group.settle(), 1);
    let token = group.confirm(1);
    assert!(!group.done.contains(&token) && group.values(1).is_empty());
    group.way(1, 2, Plane::Replication, Way::Open);
    group.run();
    assert!(group.done.contains(&token));
    assert_eq!(group.values(1), [b"found"]);
}

#[test]
fn a_reader_that_comes_while_others_are_asked_waits_for_the_next_round() {
    let mut group = Group::new(3);
    group.settle();
    for to in [1, 2] {
        group.way(0, to, Plane::Background, Way::Held);
    }
    let first = group.confirm(0);
    // It was read there, and the answer is on its way.
    let link = group.links.get_mut(&(0, 1, Plane::Background as u8)).expect("it is there");
    let (asked, _) = link.sent.pop_front().expect("it is asked");
    assert!(matches!(asked, Action::Read { offset: PROMISED, len: 8, .. }), "{asked:?}");
    let bytes = group.word(1, PROMISED).to_le_bytes().to_vec();
    let second = group.confirm(0);
    group.handle(0, Input::Read { peer: 1, plane: Plane::Background, bytes });
    group.run();
    assert!(group.done.contains(&first), "one of two others is enough");
    assert!(!group.done.contains(&second), "what was read is older than its question");
    group.way(0, 1, Plane::Background, Way::Open);
    group.run();
    assert!(group.done.contains(&second));
}

#[test]
fn any_failure_at_a_follower_ends_the_term() {
    let mut group = Group::new(3);
    group.settle();
    let number = group.replica(0).leads();
    group.way(0, 2, Plane::Replication, Way::Held);
    let first = group.propose(0, b"first");
    assert!(group.done.contains(&first), "2 is not needed");
    group.way(0, 1, Plane::Replication, Way::Held);
    let second = group.propose(0, b"second");
    group.lose(0, 2, Plane::Replication);
    group.run();
    assert!(group.given_up.contains(&second), "2 may have been granted to somebody else");
    group.way(0, 1, Plane::Replication, Way::Open);
    group.way(0, 2, Plane::Replication, Way::Open);
    group.connect(0, 2, Plane::Replication);
    group.settle();
    assert!(group.replica(0).leads() > number, "with a number of its own");
    assert_eq!(group.values(0), [&b"first"[..], b"second"], "what may have been decided is");
    group.are_equal();
}

#[test]
fn a_new_leader_has_all_that_was_decided_and_decides_what_may_have_been() {
    for is_durable in [false, true] {
        let mut group = Group::new(3);
        group.settle();
        let first = group.propose(0, b"first");
        // 1 gets nothing more; 2 gets one value that is decided, and one that is not.
        group.way(0, 1, Plane::Replication, Way::Held);
        let second = group.propose(0, b"second");
        group.way(0, 2, Plane::Replication, Way::Visible);
        let third = group.propose(0, b"third");
        assert_eq!([first, second, third].map(|token| group.done.contains(&token)), [true, true, false]);
        if is_durable {
            let at = group.geometry.slot_at(2);
            group.media[2].persist(at..at + 256).expect("a healthy medium");
        }
        group.kill(0);
        if is_durable {
            group.kill(2);
            group.start(2);
        }
        assert_eq!(group.settle(), 1);
        assert_eq!(group.values(1), [&b"first"[..], b"second", b"third"], "{is_durable}");
        group.start(0);
        group.settle();
        group.are_equal();
    }
}

#[test]
fn of_two_values_that_may_have_been_decided_the_one_of_the_higher_number_is_taken() {
    let mut group = Group::new(3);
    group.settle();
    // 0 writes to its own log and to nobody else's.
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Held);
    }
    group.propose(0, b"old");
    group.kill(0);
    assert_eq!(group.settle(), 1);
    // 1 writes another value at that place, which arrives at 2, and dies.
    group.way(1, 2, Plane::Replication, Way::Visible);
    group.propose(1, b"new");
    group.kill(1);
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Open);
    }
    group.start(0);
    assert_eq!(group.settle(), 0);
    group.pass(2);
    assert_eq!((group.values(0), group.values(2)), (vec![&b"new"[..]], vec![&b"new"[..]]));
}

#[test]
fn a_replica_that_was_away_for_a_whole_log_is_sent_a_snapshot() {
    let mut group = Group::new(3);
    group.settle();
    group.propose(0, b"before");
    group.pass(2);
    group.kill(2);
    group.pass(5);
    for n in 0..5 * SLOTS as u8 {
        let token = group.propose(0, &[n; 100]);
        group.pass(1);
        assert!(group.done.contains(&token), "{n}: a dead replica blocks nothing");
    }
    group.start(2);
    let number = group.replica(0).leads();
    group.settle();
    assert_eq!(group.replica(0).leads(), number, "it joins, and nobody notices");
    group.are_equal();
    assert!(group.applied[2].len() < SLOTS as usize, "of the entries it has applied few");
    let token = group.propose(0, b"behind");
    assert!(group.done.contains(&token));
    // And as a leader it reads that of another one.
    group.pass(2);
    group.kill(1);
    group.pass(5);
    (0..5 * SLOTS as u8).for_each(|n| {
        group.propose(0, &[n; 100]);
        group.pass(1);
    });
    group.kill(0);
    group.start(1);
    assert_eq!(group.settle(), 1);
    group.are_equal();
}

#[test]
fn a_log_is_written_over_when_a_majority_has_snapshots_and_not_before() {
    let mut group = Group::new(3);
    group.settle();
    group.without_snapshots = BTreeSet::from([1]);
    group.kill(2);
    group.pass(5);
    let tokens: Vec<u64> = (0..2 * SLOTS as u8)
        .map(|n| {
            let token = group.propose(0, &[n]);
            group.pass(1);
            token
        })
        .collect();
    let done = tokens.iter().filter(|token| group.done.contains(token)).count();
    assert_eq!(done, SLOTS as usize, "1 has no snapshot, and 2 is dead");
    group.start(2);
    group.pass(2 * LONG);
    assert!(tokens.iter().all(|token| group.done.contains(token)), "2 has one");
}

/// Two that do not hear each other would take the permission of the third from each other all the time.
#[test]
fn a_replica_grants_only_to_whom_it_takes_for_the_leader() {
    let mut group = Group::new(3);
    group.settle();
    let number = group.replica(0).leads();
    for (a, b) in [(0, 1), (1, 0)] {
        for plane in Plane::ALL {
            group.lose(a, b, plane);
        }
    }
    group.settle();
    let number_then = group.replica(0).leads();
    assert!(number_then > number, "it has lost one");
    assert!(group.word(2, request_at(1)) > 0, "1 hears nobody below it, and asks");
    group.pass(2 * LONG);
    assert_eq!(group.replica(0).leads(), number_then, "2 hears 0");
}

/// Fate sharing: who cannot decide anything lets another one try.
#[test]
fn a_leader_without_progress_rests_and_is_replaced() {
    let mut group = Group::new(3);
    group.settle();
    for to in [1, 2] {
        group.way(0, to, Plane::Replication, Way::Held);
    }
    let token = group.propose(0, b"value");
    group.pass(105);
    assert!(group.given_up.contains(&token) && group.replica(0).leads().is_none());
    let beat = group.word(0, STATUS);
    group.pass(LONG);
    assert_eq!(group.word(0, STATUS), beat, "it stands still");
    let token = group.propose(1, b"other");
    assert!(group.done.contains(&token), "1 leads meanwhile");
}

#[test]
fn who_slept_suspects_nobody_and_who_does_not_answer_is_suspected() {
    let mut group = Group::new(3);
    group.settle();
    group.now += PERIOD * 1000;
    group.handle(1, Input::Timeout);
    assert_eq!(group.replica(1).leader(), Some(0), "it has slept itself");
    group.pass(1);
    assert_eq!(group.replica(1).leader(), Some(0));
    // A connection that stays, and on which no READ is answered: so it is with a process that was stopped.
    for from in [1, 2] {
        group.way(from, 0, Plane::Background, Way::Held);
    }
    group.pass(10);
    assert_eq!(group.replica(1).leader(), Some(0), "not at once");
    group.pass(20);
    assert_eq!(group.replica(1).leader(), Some(1));
}

#[test]
fn all_that_was_acknowledged_is_there_after_a_loss_of_power_of_all() {
    let mut group = Group::new(3);
    group.settle();
    let tokens: Vec<u64> = (0..3 * SLOTS as u8)
        .map(|n| {
            let token = group.propose(0, &[n; 30]);
            group.pass(1);
            token
        })
        .collect();
    assert!(tokens.iter().all(|token| group.done.contains(token)));
    let (state, applied) = (group.states[0], group.replica(0).applied());
    (0..3).for_each(|node| group.kill(node));
    (1..3).for_each(|node| group.start(node));
    assert_eq!(group.settle(), 1);
    group.pass(2);
    assert_eq!((group.states[1], group.replica(1).applied()), (state, applied));
    group.start(0);
    group.settle();
    group.are_equal();
}

#[test]
fn what_the_leader_has_itself_counts_as_it_is_durable() {
    let mut group = Group::new(3);
    group.settle();
    group.way(0, 2, Plane::Replication, Way::Held);
    let token = group.propose(0, b"value");
    assert!(group.done.contains(&token), "0 and 1 have it");
    (0..3).for_each(|node| group.kill(node));
    group.start(0);
    group.start(2);
    assert_eq!(group.settle(), 0);
    assert_eq!(group.values(2), [b"value"]);
}

#[test]
fn a_replica_whose_medium_fails_takes_part_in_nothing_any_more() {
    let geometry = Geometry { replicas: 1, slots: SLOTS, slot: 256, window: 4, snapshot: 256 };
    let medium = Arc::new(CrashImage::new(geometry.size(), PersistenceDomain::Adr));
    Memory::create(&medium, geometry, 0, Uuid([1; 16]), SALT).expect("a new medium is healthy");
    let mut replica = Replica::open(PERIOD, Arc::clone(&medium), options()).expect("its memory");
    replica.handle(PERIOD, Input::Timeout);
    assert_eq!(replica.poll_action(), Some(Action::Revoke));
    replica.handle(PERIOD, Input::Revoked);
    assert!(replica.leads().is_some());
    medium.fail_after_psyncs(0);
    replica.handle(PERIOD, Input::Propose { token: 7, value: b"value".to_vec() });
    assert_eq!(replica.poll_action(), Some(Action::Forget { token: 7 }));
    assert_eq!(replica.poll_action(), Some(Action::Stop));
    replica.handle(PERIOD * 2, Input::Propose { token: 8, value: b"value".to_vec() });
    assert!(matches!(replica.poll_action(), Some(Action::Refuse { token: 8, .. })));
    assert_eq!((replica.poll_action(), replica.deadline(), replica.leads()), (None, None, None));
}

#[test]
fn what_is_no_memory_of_a_replica_is_not_opened() {
    let medium = CrashImage::new(4096, PersistenceDomain::Adr);
    assert!(Replica::open(PERIOD, &medium, options()).is_err());
    let geometry = Geometry { replicas: 3, slots: SLOTS, slot: 256, window: 4, snapshot: 256 };
    let medium = CrashImage::new(geometry.size(), PersistenceDomain::Adr);
    Memory::create(&medium, geometry, 2, Uuid([1; 16]), SALT).expect("a new medium is healthy");
    assert!(Replica::open(PERIOD, &medium, options()).is_ok());
    medium.write(50, &[0xFF]);
    assert!(Replica::open(PERIOD, &medium, options()).is_err(), "damaged");
}
