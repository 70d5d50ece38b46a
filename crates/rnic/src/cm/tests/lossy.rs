//! Many seeds of a network that loses, duplicates and reorders, and of callers that change their minds.
//!
//! What must hold for every seed: every `connect` has exactly one outcome; nobody is told the same thing twice;
//! an established passive side has an active side that was established too; when both have ended and timewait is
//! over, both managers are empty, with no timers.

use std::collections::BTreeMap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_wire::Gid;
use remanence_wire::cm::RejReason;

use super::pair::{accept_with, config, connect_to, gid, listen_anywhere};
use crate::cm::message::Mad;
use crate::cm::{CommId, Config, Event, Manager};
use crate::time::Instant;

#[derive(Default, Debug)]
struct Story {
    /// QP of the active side, which both know.
    qpn: u32,
    active: bool,
    responses: u32,
    established: u32,
    ended: u32,
    failed: u32,
    exits: u32,
}

struct Run {
    rng: ChaCha8Rng,
    now: Instant,
    nodes: [Manager; 2],
    /// What each node was told of each connection.
    stories: [BTreeMap<CommId, Story>; 2],
    path: BTreeMap<(Instant, u64), (usize, Gid, Box<Mad>)>,
    sent: u64,
    /// Of a thousand.
    loss: u64,
    duplication: u64,
    qpn: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let loss = [0, 50, 100, 300][rng.next_u64() as usize % 4];
        let duplication = [0, 50, 300][rng.next_u64() as usize % 3];
        let max_cm_retries = [3, 15][rng.next_u64() as usize % 2];
        let node = |host: u8| {
            let seed = seed.wrapping_mul(2) + u64::from(host);
            let mut manager = Manager::new(Config { seed, max_cm_retries, ..config(host) });
            manager.listen(&listen_anywhere(4)).unwrap();
            manager
        };
        Self {
            rng,
            now: Instant::ZERO,
            nodes: [node(1), node(2)],
            stories: Default::default(),
            path: BTreeMap::new(),
            sent: 0,
            loss,
            duplication,
            qpn: 0x10,
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.next_u64().is_multiple_of(n)
    }

    fn transmit(&mut self, node: usize) {
        while let Some((path, mad)) = self.nodes[node].poll_transmit() {
            assert_eq!(path.local, gid(node as u8 + 1));
            let copies = if self.rng.next_u64() % 1000 < self.duplication { 2 } else { 1 };
            for _ in 0..copies {
                if self.rng.next_u64() % 1000 >= self.loss {
                    // Up to a second: longer than the timers, so that everything overtakes everything.
                    let micros = if self.one_in(10) { 1_000_000 } else { 1_000 };
                    let at = self.now + Duration::from_micros(self.rng.next_u64() % micros);
                    self.sent += 1;
                    self.path.insert((at, self.sent), (1 - node, path.local, mad.clone()));
                }
            }
        }
    }

    fn events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].poll_event() {
            let now = self.now;
            match event {
                Event::ConnectRequest(request) => {
                    let story = Story { qpn: request.remote_qpn.value(), ..Story::default() };
                    let twin = self.stories[node].insert(request.id, story);
                    assert!(twin.is_none(), "{:?} was there before", request.id);
                    match self.rng.next_u64() % 8 {
                        0 => {
                            let reason = RejReason::CONSUMER_DEFINED;
                            self.nodes[node].reject(request.id, reason, &[], b"no").unwrap();
                            self.story(node, request.id).failed += 1;
                        }
                        // Never decides: the request must go by itself.
                        1 => {}
                        _ => {
                            self.qpn += 1;
                            self.nodes[node].accept(now, request.id, &accept_with(self.qpn)).unwrap();
                        }
                    }
                }
                Event::Response { id, .. } => {
                    self.story(node, id).responses += 1;
                    if self.one_in(8) {
                        self.nodes[node].reject(id, RejReason::CONSUMER_DEFINED, &[], b"").unwrap();
                        self.story(node, id).failed += 1;
                    } else {
                        self.nodes[node].establish(id, b"").unwrap();
                        self.story(node, id).established += 1;
                    }
                }
                Event::Established { id } => self.story(node, id).established += 1,
                Event::Rejected { id, .. } | Event::Unreachable { id } => self.story(node, id).failed += 1,
                Event::Disconnected { id, .. } => self.story(node, id).ended += 1,
                Event::TimewaitExit { id } => self.story(node, id).exits += 1,
                Event::SidrRequest(_) | Event::SidrResponse { .. } => panic!("nobody asked"),
            }
        }
    }

    fn story(&mut self, node: usize, id: CommId) -> &mut Story {
        let story = self.stories[node].get_mut(&id).expect("an event for a connection that was begun");
        assert_eq!(story.exits, 0, "an event after timewait");
        story
    }

    fn step(&mut self) -> bool {
        for node in 0..2 {
            self.events(node);
            self.transmit(node);
        }
        let timer = self.nodes.iter().filter_map(Manager::poll_timeout).min();
        let packet = self.path.first_key_value().map(|(&(at, _), _)| at);
        let Some(at) = timer.into_iter().chain(packet).min() else { return false };
        self.now = self.now.max(at);
        if packet == Some(at) {
            let (_, (node, from, mad)) = self.path.pop_first().unwrap();
            self.nodes[node].handle_mad(self.now, from, &mad);
        } else {
            for node in &mut self.nodes {
                node.handle_timeout(self.now);
            }
        }
        true
    }

    fn connect(&mut self) {
        let node = self.rng.next_u64() as usize % 2;
        self.qpn += 1;
        let connect = connect_to(2 - node as u8, 1 + node as u8, self.qpn);
        let id = self.nodes[node].connect(self.now, &connect).unwrap();
        let story = Story { qpn: self.qpn, active: true, ..Story::default() };
        assert!(self.stories[node].insert(id, story).is_none());
    }

    fn up(&self, node: usize) -> Vec<CommId> {
        let up = |(&id, story): (&CommId, &Story)| (story.established > story.ended).then_some(id);
        self.stories[node].iter().filter_map(up).collect()
    }

    /// Disconnects something that is up.
    fn disconnect(&mut self) {
        let node = self.rng.next_u64() as usize % 2;
        if let Some(&id) = self.up(node).first() {
            // An error says that the connection ends already.
            let _ = self.nodes[node].disconnect(self.now, id);
        }
    }

    fn finish(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "it never ends");
            if self.one_in(4) {
                self.disconnect();
            }
        }
        // What is still up was disconnected by nobody.
        for node in 0..2 {
            for id in self.up(node) {
                let _ = self.nodes[node].disconnect(self.now, id);
                while self.step() {}
            }
        }
    }

    fn check(&self) {
        for (node, manager) in self.nodes.iter().enumerate() {
            assert!(manager.is_empty(), "node {node} keeps {} connections", manager.len());
            assert!(manager.poll_timeout().is_none());
            assert_eq!(
                (manager.half_open, manager.by_remote_id.len(), manager.by_remote_qpn.len()),
                (0, 0, 0)
            );
            assert!(manager.listeners.values().all(|listener| listener.pending == 0));
            for (id, story) in &self.stories[node] {
                assert!(story.established <= 1 && story.responses <= 1, "{id:?} {story:?}");
                assert_eq!(story.failed + story.ended, 1, "{id:?} must end exactly once: {story:?}");
                assert!(story.ended >= story.established, "{id:?} {story:?}");
            }
        }
    }

    /// Who was told "established" had a peer that was told the same, or that was told that it failed: the last
    /// message of a conversation can always be lost.
    fn check_agreement(&self) {
        for (node, stories) in self.stories.iter().enumerate() {
            for story in stories.values().filter(|story| story.established == 1) {
                let mut peers = self.stories[1 - node].values();
                let fits = |peer: &Story| peer.qpn == story.qpn && peer.active != story.active;
                if story.active {
                    assert!(peers.any(|peer| fits(peer) && peer.established + peer.failed == 1), "{story:?}");
                } else {
                    assert!(peers.any(|peer| fits(peer) && peer.established == 1), "{story:?}");
                }
            }
        }
    }
}

fn run(seed: u64) -> Run {
    let mut run = Run::new(seed);
    let connects = 1 + run.rng.next_u64() % 6;
    for _ in 0..connects {
        run.connect();
        for _ in 0..run.rng.next_u64() % 20 {
            run.step();
        }
        if run.one_in(2) {
            run.disconnect();
        }
    }
    run.finish();
    run.check();
    run.check_agreement();
    run
}

#[test]
fn every_connection_ends_and_nothing_leaks() {
    let (mut up, mut failed) = (0, 0);
    for seed in 0..4000 {
        let run = run(seed);
        let stories = || run.stories.iter().flat_map(BTreeMap::values);
        up += stories().filter(|s| s.active && s.established == 1).count();
        failed += stories().filter(|s| s.failed == 1).count();
    }
    // The test would prove nothing if all went one way.
    assert!(up > 4000 && failed > 2000, "{up} established, {failed} failed");
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        let (a, b) = (run(seed), run(seed));
        assert_eq!((a.now, a.sent), (b.now, b.sent));
        assert_eq!(format!("{:?}", a.stories), format!("{:?}", b.stories));
    }
}
