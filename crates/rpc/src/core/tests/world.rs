//! Whole worlds: servers, clients and a bad network from one seed, with an oracle that counts executions.
//!
//! Faults: every packet may be lost, repeated, and delayed by any part of a millisecond, so that any order happens; ends
//! start anew, with nothing but their address. In half of the worlds servers ask for a token, and one node has another. First everything goes wrong, and nothing wrong may be told; then the
//! network heals, and everything must come to an end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use remanence_auth::Token;
use remanence_rnic::Instant;

use super::{Datagram, Draw, End, Heap, Percent as _, address, bytes_of, datagram};
use crate::core::config::Config;
use crate::core::endpoint::Endpoint;
use crate::core::event::{CallError, Ended, Event, Failure, RequestId, SessionId};
use crate::header::{Address, Status};

const ECHO: u16 = 7;
const MS: u64 = 1_000_000;
const OURS: &str = "correct-horse-battery";
const OTHER: &str = "correct-horse-batterz";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// The oracle waits.
    Open,
    Answered,
    Unknown,
    NeverSent,
    /// Its caller died.
    Orphan,
}

struct Node {
    address: Address,
    end: End,
    heap: Heap,
    incarnation: u64,
    /// Client: the session to each server.
    sessions: BTreeMap<usize, SessionId>,
    /// Server: answers that are given later.
    later: Vec<(Instant, RequestId, Vec<u8>, Status)>,
    /// Calls of this life.
    mine: Vec<u64>,
}

struct World {
    draw: Draw,
    now: Instant,
    nodes: Vec<Node>,
    servers: usize,
    wire: BTreeMap<(Instant, u64), (Address, Address, Datagram)>,
    sequence: u64,
    loss: u64,
    repeat: u64,
    restarts: bool,
    /// What all nodes have, if anything; but for the last one, a stranger.
    token: Option<&'static str>,
    /// By call: how often it was carried out, and what became of it.
    executed: BTreeMap<u64, u32>,
    fates: BTreeMap<u64, Fate>,
    trace: VecDeque<String>,
}

/// What call `tag` says, and what its answer must be.
fn content(tag: u64, len: usize) -> Vec<u8> {
    let mut draw = Draw(tag);
    let mut bytes = tag.to_be_bytes().to_vec();
    bytes.extend((8..len.max(8)).map(|_| draw.next() as u8));
    bytes
}

/// Of a size that has nothing to do with the request's.
fn answer(tag: u64) -> Vec<u8> {
    let mut draw = Draw(!tag);
    let len = match draw.below(4) {
        0 => 8,
        1 => 900,
        _ => draw.below(20_000),
    };
    content(!tag, len as usize)
}

fn config(seed: u64, incarnation: u64, own: Address, token: Option<&str>) -> Config {
    let mut secret = [0; 32];
    secret[..8].copy_from_slice(&seed.to_be_bytes());
    Config {
        incarnation,
        seed,
        token: token.map(|text| Token::new(text).expect("a fair token")),
        secret,
        own,
        datagram: 1024,
        message_max: 1 << 20,
        credits: 8,
        backlog: 64,
        sessions_max: 64,
        timeout_min: Duration::from_micros(500),
        timeout_max: Duration::from_millis(20),
        probe: Duration::from_millis(2),
        patience: Duration::from_millis(200),
        ping: Duration::from_millis(50),
        silence_max: Duration::from_millis(400),
        queueing: Duration::from_micros(100),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let (servers, clients) = (1 + draw.below(2) as usize, 1 + draw.below(4) as usize);
        let token = draw.percent(50).then_some(OURS);
        let nodes = (0..servers + clients + usize::from(token.is_some()))
            .map(|n| Node {
                address: address(n as u8 + 1),
                end: {
                    let credential = if n == servers + clients { Some(OTHER) } else { token };
                    Endpoint::new(config(draw.next(), 1, address(n as u8 + 1), credential))
                },
                heap: Heap { largest: None, short: draw.percent(20) },
                incarnation: 1,
                sessions: BTreeMap::new(),
                later: Vec::new(),
                mine: Vec::new(),
            })
            .collect();
        let (loss, repeat, restarts) = (draw.below(25), draw.below(25), draw.percent(50));
        Self {
            draw,
            now: Instant::ZERO,
            nodes,
            servers,
            wire: BTreeMap::new(),
            sequence: 0,
            loss,
            repeat,
            restarts,
            token,
            executed: BTreeMap::new(),
            fates: BTreeMap::new(),
            trace: VecDeque::new(),
        }
    }

    fn run(&mut self, calls: u64) {
        let mut made = 0;
        while made < calls {
            if self.draw.percent(30) {
                made += u64::from(self.call(made));
            }
            if self.restarts && self.draw.below(400) == 0 {
                self.restart();
            }
            if self.draw.below(300) == 0 {
                self.disconnect();
            }
            let until = self.now + Duration::from_nanos(self.draw.below(MS / 4));
            self.advance(until);
        }
        // The network heals.
        (self.loss, self.repeat) = (0, 0);
        let end = self.now + Duration::from_secs(20);
        while self.fates.values().any(|&fate| fate == Fate::Open) {
            assert!(self.now < end, "calls are open for ever: {:?}\n{}", self.open(), self.story());
            self.advance(self.now + Duration::from_millis(1));
        }
        for (tag, fate) in &self.fates {
            let times = self.executed.get(tag).copied().unwrap_or(0);
            match fate {
                Fate::Answered => assert_eq!(times, 1, "call {tag} was answered"),
                Fate::NeverSent => assert_eq!(times, 0, "call {tag} was said to be never sent"),
                Fate::Unknown | Fate::Orphan => {
                    assert!(times <= 1, "call {tag} was carried out {times} times")
                }
                Fate::Open => unreachable!("just excluded"),
            }
        }
        // Sessions whose clients went without a word are forgotten.
        let silent = self.now + Duration::from_secs(2);
        for node in self.servers..self.nodes.len() {
            for (_, session) in std::mem::take(&mut self.nodes[node].sessions) {
                let now = self.now;
                self.nodes[node].end.disconnect(now, session);
            }
        }
        self.advance(silent);
        for node in &self.nodes {
            assert_eq!(node.end.sessions(), 0, "sessions are left at {:?}\n{}", node.address, self.story());
        }
    }

    /// The node whose token is another one.
    fn stranger(&self) -> Option<usize> {
        self.token.map(|_| self.nodes.len() - 1)
    }

    fn open(&self) -> Vec<u64> {
        self.fates.iter().filter(|(_, fate)| **fate == Fate::Open).map(|(tag, _)| *tag).collect()
    }

    fn story(&self) -> String {
        self.trace.iter().map(|line| format!("{line}\n")).collect()
    }

    fn tell(&mut self, line: String) {
        self.trace.push_back(format!("{:?} {line}", self.now));
        if self.trace.len() > 60 {
            self.trace.pop_front();
        }
    }

    fn call(&mut self, tag: u64) -> bool {
        let node = self.servers + self.draw.below((self.nodes.len() - self.servers) as u64) as usize;
        let server = self.draw.below(self.servers as u64) as usize;
        let to = self.nodes[server].address;
        let len = match self.draw.below(4) {
            0 => 8,
            1 => 992,
            2 => 993,
            _ => self.draw.below(30_000) as usize,
        };
        let now = self.now;
        let it = &mut self.nodes[node];
        let end = &mut it.end;
        let session =
            *it.sessions.entry(server).or_insert_with(|| end.connect(now, to).expect("few sessions"));
        let message = content(tag, len);
        let length = message.len() as u32;
        match end.call(now, session, ECHO, Arc::new(message), length, tag) {
            Ok(()) => {
                it.mine.push(tag);
                self.fates.insert(tag, Fate::Open);
                self.tell(format!("node {node} calls {server} with {tag}, {length} bytes"));
                true
            }
            Err((CallError::Full, _)) => false,
            Err((why, _)) => panic!("{why}"),
        }
    }

    fn restart(&mut self) {
        let n = self.draw.below(self.nodes.len() as u64) as usize;
        self.tell(format!("node {n} starts anew"));
        let seed = self.draw.next();
        let credential = if self.stranger() == Some(n) { Some(OTHER) } else { self.token };
        let node = &mut self.nodes[n];
        node.incarnation += 1;
        node.end = Endpoint::new(config(seed, node.incarnation, node.address, credential));
        node.sessions.clear();
        node.later.clear();
        for tag in node.mine.drain(..) {
            let fate = self.fates.get_mut(&tag).expect("made");
            if *fate == Fate::Open {
                *fate = Fate::Orphan;
            }
        }
    }

    fn disconnect(&mut self) {
        let node = self.servers + self.draw.below((self.nodes.len() - self.servers) as u64) as usize;
        let now = self.now;
        let it = &mut self.nodes[node];
        if let Some((_, session)) = it.sessions.pop_first() {
            it.end.disconnect(now, session);
        }
    }

    fn advance(&mut self, until: Instant) {
        loop {
            (0..self.nodes.len()).for_each(|node| self.settle(node));
            let timeouts = self.nodes.iter().filter_map(|node| node.end.poll_timeout());
            let later = self.nodes.iter().flat_map(|node| node.later.iter().map(|later| later.0));
            let packet = self.wire.keys().next().map(|key| key.0);
            let Some(next) = timeouts.chain(later).chain(packet).min().filter(|&next| next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            let now = self.now;
            while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= now) {
                let (from, to, packet) = entry.remove();
                if let Some(node) = self.nodes.iter_mut().find(|node| node.address == to) {
                    node.end.handle_packet(now, &mut node.heap, from, packet);
                }
            }
            for node in &mut self.nodes {
                node.end.handle_timeout(now);
                let due = node.later.extract_if(.., |later| later.0 <= now).collect::<Vec<_>>();
                for (_, id, bytes, status) in due {
                    let length = bytes.len() as u32;
                    node.end.respond(id, status, Some(Arc::new(bytes)), length);
                }
            }
        }
    }

    /// Events and packets of a node.
    fn settle(&mut self, n: usize) {
        while let Some(event) = self.nodes[n].end.poll_event() {
            self.on_event(n, event);
        }
        let now = self.now;
        while let Some(transmit) = self.nodes[n].end.poll_transmit(now) {
            let (from, packet) = (self.nodes[n].address, datagram(&transmit));
            assert!(packet.0.len() <= 1024, "a datagram of {} bytes", packet.0.len());
            let copies = match (self.draw.percent(self.loss), self.draw.percent(self.repeat)) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            for _ in 0..copies {
                let delay =
                    5_000 + if self.draw.percent(20) { self.draw.below(MS) } else { self.draw.below(20_000) };
                self.sequence += 1;
                let at = now + Duration::from_nanos(delay);
                self.wire.insert((at, self.sequence), (from, transmit.to, packet.clone()));
            }
        }
    }

    fn on_event(&mut self, n: usize, event: Event<Heap>) {
        self.tell(format!("node {n}: {event:?}"));
        match event {
            Event::Request { id, service, body } => {
                assert_eq!(service, ECHO);
                let bytes = bytes_of(&body);
                let tag = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                assert_eq!(bytes, content(tag, bytes.len()), "the request of call {tag} is damaged");
                let caller = self.nodes.iter().position(|node| node.mine.contains(&tag));
                assert!(
                    caller.is_none() || caller != self.stranger(),
                    "a stranger was heard\n{}",
                    self.story()
                );
                *self.executed.entry(tag).or_default() += 1;
                let delay = match self.draw.below(10) {
                    0 => self.draw.below(30 * MS),
                    1..4 => self.draw.below(MS),
                    _ => 0,
                };
                let at = self.now + Duration::from_nanos(delay);
                self.nodes[n].later.push((at, id, answer(tag), Status::Done));
            }
            Event::Response { tag, status, body } => {
                assert_eq!(status, Status::Done);
                assert_eq!(bytes_of(&body), answer(tag), "the response to call {tag} is damaged");
                self.close(tag, Fate::Answered);
            }
            Event::Failed { tag, why } => match why {
                Failure::Ended(_) => self.close(tag, Fate::Unknown),
                Failure::NeverSent(_) => self.close(tag, Fate::NeverSent),
                Failure::NoRoom(len) => panic!("there is room for {len} bytes"),
            },
            Event::Ended { session, why } => {
                // (A server may be left with a session by a hello that came when its client had gone.)
                let refused = matches!(why, Ended::WrongToken | Ended::Wait(_));
                let fair = if self.stranger() == Some(n) {
                    refused || matches!(why, Ended::Closed | Ended::Unreachable)
                } else {
                    let unlucky = n < self.servers || self.restarts || self.loss > 0;
                    matches!(why, Ended::Closed)
                        || unlucky && matches!(why, Ended::Reset | Ended::Unreachable)
                };
                assert!(fair, "node {n}: {why}\n{}", self.story());
                self.nodes[n].sessions.retain(|_, mine| *mine != session);
            }
            Event::Connected(_) => {
                assert_ne!(self.stranger(), Some(n), "a stranger has a session\n{}", self.story());
            }
            Event::Accepted { peer, .. } => {
                let stranger = self.stranger().map(|n| self.nodes[n].address);
                assert_ne!(stranger, Some(peer), "a stranger has a session\n{}", self.story());
            }
        }
    }

    fn close(&mut self, tag: u64, fate: Fate) {
        let was = self.fates.insert(tag, fate);
        assert_eq!(was, Some(Fate::Open), "call {tag} ends twice\n{}", self.story());
    }
}

#[test]
fn every_call_ends_once_and_is_carried_out_at_most_once() {
    for seed in remanence_effort::seeds(60) {
        eprintln!("seed {seed}: {}", remanence_effort::replay(seed));
        World::new(seed).run(60);
    }
}

#[test]
fn one_seed_is_one_story() {
    let story = || {
        let mut world = World::new(77);
        world.run(40);
        (world.now, world.sequence, world.story())
    };
    assert_eq!(story(), story());
}
