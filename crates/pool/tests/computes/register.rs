//! A blob on three servers, in every order of things: puts that overlap, fail half-way or are acknowledged, gets, a
//! catch-up, servers that crash and forget what was not durable, and messages that arrive late or never.
//!
//! What is decided is decided by the code that the client and the server run: [`Ballot`], [`Reading`] and [`Promises`].
//! The exploration has no sample and no seed: it goes through every state that can be reached, and looks at each.
//!
//! The rules: a put takes a version above those of all puts that had ended when it began, well or badly. A get says at
//! least what was acknowledged when it began, and at least what a get said that had ended by then. A get or a catch-up
//! that stops half-way breaks none of it.
//!
//! A server that is away is one whose messages are late, so only a crash, which takes what was not durable, is a step of
//! its own.

use std::collections::HashSet;

use remanence_pool::Version;
use remanence_pool::promise::Promises;
use remanence_pool::quorum::{Ballot, Reading, ServerIndex, majority};

const SERVERS: usize = 3;

/// So low that the ceiling has to be raised often.
const AHEAD: u64 = 1;

/// A set of servers.
type Set = u8;

fn count(set: Set) -> usize {
    set.count_ones() as usize
}

fn has(set: Set, place: ServerIndex) -> bool {
    set >> place & 1 == 1
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Server {
    promises: Promises,
    /// What a crash leaves.
    ceiling: u64,
    version: Version,
}

impl Server {
    fn promise(&mut self, number: u64) -> u64 {
        if let Some(ceiling) = self.promises.ceiling_for(number, AHEAD) {
            self.ceiling = ceiling;
            self.promises.raised(ceiling);
        }
        self.promises.promise(number);
        self.promises.last()
    }

    fn ticket(&mut self) -> u64 {
        self.promise(self.promises.next().expect("there are many"))
    }

    /// A commit: what is newer already stays, and the client is told that it is as good as done.
    fn commit(&mut self, version: Version) {
        if version > self.version {
            self.version = version;
            self.promises.seen(version.counter);
        }
    }

    fn crash(&mut self) {
        self.promises = Promises::recover(Some(self.ceiling), self.version.counter);
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    /// It ended before it had a version.
    Failed,
    /// Who has not drawn yet, or not promised yet.
    Voting {
        ballot: Ballot,
        open: Set,
        chosen: bool,
    },
    /// Commits that may arrive, at any time from here on; whether the put goes on, and who has said done.
    Committing {
        version: Version,
        late: Set,
        done: Set,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Put {
    stage: Stage,
    /// The highest version of the puts that had ended when this one began.
    above: Version,
    /// How it ended.
    acknowledged: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Get {
    Idle,
    Asking {
        said: Vec<(ServerIndex, Version, bool)>,
        least: Version,
    },
    /// Copies that may arrive, at any time from here on.
    Bringing {
        version: Version,
        late: Set,
        open: usize,
        least: Version,
    },
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    servers: [Server; SERVERS],
    puts: Vec<Put>,
    gets: Vec<Get>,
    /// Brings the last server up to date.
    sync: Option<Get>,
    /// The highest that any get said.
    said: Version,
    crashes: usize,
}

struct Plan {
    /// Decides between puts that took the same number.
    writers: &'static [u64],
    gets: usize,
    sync: bool,
    crashes: usize,
}

impl World {
    fn new(plan: &Plan) -> Self {
        // The first one took part in puts that the others missed: its numbers are ahead.
        let server = |ceiling| {
            let promises = Promises::recover(Some(ceiling), 0);
            Server { promises, ceiling, version: Version::NONE }
        };
        let put = Put { stage: Stage::Idle, above: Version::NONE, acknowledged: None };
        Self {
            servers: [server(2), server(0), server(0)],
            puts: vec![put; plan.writers.len()],
            gets: vec![Get::Idle; plan.gets],
            sync: plan.sync.then_some(Get::Idle),
            said: Version::NONE,
            crashes: plan.crashes,
        }
    }

    /// The highest version of those puts.
    fn highest(&self, of: impl Fn(&Put) -> bool) -> Version {
        let version = |put: &Put| match put.stage {
            Stage::Committing { version, .. } if of(put) => version,
            _ => Version::NONE,
        };
        self.puts.iter().map(version).max().unwrap_or_default()
    }

    /// What a get that begins now has to say at least.
    fn least(&self) -> Version {
        self.highest(|put| put.acknowledged == Some(true)).max(self.said)
    }

    /// Every world that one step makes of this one.
    fn next(&self, plan: &Plan, to: &mut Vec<Self>) {
        for n in 0..self.puts.len() {
            self.step_put(plan, n, to);
        }
        for n in 0..self.gets.len() {
            // The first one first: they are alike.
            if n == 0 || self.gets[n - 1] != Get::Idle {
                self.step_get(n, to);
            }
        }
        self.step_sync(to);
        if self.crashes > 0 {
            for n in 0..SERVERS {
                let mut next = self.clone();
                next.servers[n].crash();
                next.crashes -= 1;
                to.push(next);
            }
        }
    }

    fn step_put(&self, plan: &Plan, n: usize, to: &mut Vec<Self>) {
        let put = &self.puts[n];
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            to.push(next);
        };
        let going_on = put.acknowledged.is_none();
        match &put.stage {
            Stage::Idle
                if n == 0
                    || self.puts[n - 1].stage != Stage::Idle
                    || self.puts[n - 1].acknowledged.is_some() =>
            {
                let above = self.highest(|put| put.acknowledged.is_some());
                add(&|next| {
                    let ballot = Ballot::new(SERVERS);
                    next.puts[n].stage = Stage::Voting { ballot, open: 0b111, chosen: false };
                    next.puts[n].above = above;
                });
            }
            Stage::Idle => {}
            Stage::Voting { ballot, open, chosen } if going_on => {
                for place in (0..SERVERS).filter(|place| has(*open, *place)) {
                    add(&|next| {
                        let (mut ballot, open) = (ballot.clone(), open & !(1 << place));
                        let server = &mut next.servers[place];
                        match ballot.chosen() {
                            None => ballot.ticket(place, server.ticket()),
                            Some(number) => ballot.promised(place, server.promise(number)),
                        }
                        next.puts[n].stage = Stage::Voting { ballot, open, chosen: *chosen };
                    });
                }
                let mut voted = ballot.clone();
                if let Some((_, ask)) = voted.choose() {
                    add(&|next| {
                        let open = ask.iter().fold(0, |set, place| set | 1 << place);
                        next.puts[n].stage = Stage::Voting { ballot: voted.clone(), open, chosen: true };
                    });
                }
                if let Some(counter) = ballot.number() {
                    add(&|next| {
                        let version = Version { counter, writer: plan.writers[n] };
                        assert!(version > put.above, "a put that ended before it outranks it: {self:#?}");
                        next.puts[n].stage = Stage::Committing { version, late: 0b111, done: 0 };
                        next.puts[n].above = Version::NONE;
                    });
                }
                // It has left nothing but numbers; what it heard matters no more.
                add(&|next| {
                    let above = Version::NONE;
                    next.puts[n] = Put { stage: Stage::Failed, above, acknowledged: Some(false) };
                });
            }
            Stage::Failed => {}
            Stage::Voting { .. } => unreachable!("it ends as failed"),
            Stage::Committing { version, late, done } => {
                for place in (0..SERVERS).filter(|place| has(*late, *place)) {
                    add(&|next| {
                        next.servers[place].commit(*version);
                        let late = late & !(1 << place);
                        let done = if going_on { done | 1 << place } else { 0 };
                        next.puts[n].stage = Stage::Committing { version: *version, late, done };
                    });
                }
                let end = |acknowledged: bool| {
                    move |next: &mut Self| {
                        let stage = Stage::Committing { version: *version, late: *late, done: 0 };
                        next.puts[n] = Put { stage, above: Version::NONE, acknowledged: Some(acknowledged) };
                    }
                };
                if going_on {
                    add(&end(false));
                    if count(*done) >= majority(SERVERS) {
                        add(&end(true));
                    }
                }
            }
        }
    }

    fn step_get(&self, n: usize, to: &mut Vec<Self>) {
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            to.push(next);
        };
        let end = |next: &mut Self, version: Version, least: Version| {
            assert!(version >= least, "a get says {version:?} where {least:?} was known: {self:#?}");
            next.said = next.said.max(version);
            next.gets[n] = Get::Done;
        };
        match &self.gets[n] {
            Get::Idle => {
                let least = self.least();
                add(&|next| next.gets[n] = Get::Asking { said: Vec::new(), least });
            }
            Get::Asking { said, least } => {
                for said in self.asked(said) {
                    add(&|next| next.gets[n] = Get::Asking { said: said.clone(), least: *least });
                }
                let Some(reading) = Reading::of(SERVERS, said) else { return };
                let (version, open) = (reading.version, reading.missing());
                let late = reading.behind.iter().fold(0, |set, place| set | 1 << place);
                match open {
                    0 => add(&|next| end(next, version, *least)),
                    _ => add(&|next| next.gets[n] = Get::Bringing { version, late, open, least: *least }),
                }
            }
            Get::Bringing { version, late, open, least } => {
                for place in (0..SERVERS).filter(|place| has(*late, *place)) {
                    add(&|next| {
                        next.servers[place].commit(*version);
                        if *open == 1 {
                            return end(next, *version, *least);
                        }
                        let (late, open) = (late & !(1 << place), open - 1);
                        next.gets[n] = Get::Bringing { version: *version, late, open, least: *least };
                    });
                }
            }
            Get::Done => {}
        }
    }

    /// As a get, but what it finds it brings to the last server, if that is behind.
    fn step_sync(&self, to: &mut Vec<Self>) {
        const TARGET: ServerIndex = SERVERS - 1;
        let mut add = |sync: Get, commit: Option<Version>| {
            let mut next = self.clone();
            next.sync = Some(sync);
            if let Some(version) = commit {
                next.servers[TARGET].commit(version);
            }
            to.push(next);
        };
        match &self.sync {
            Some(Get::Idle) => add(Get::Asking { said: Vec::new(), least: Version::NONE }, None),
            Some(Get::Asking { said, least }) => {
                for said in self.asked(said) {
                    add(Get::Asking { said, least: *least }, None);
                }
                if let Some(reading) = Reading::of(SERVERS, said)
                    && reading.behind.contains(&TARGET)
                {
                    let (version, least) = (reading.version, *least);
                    add(Get::Bringing { version, late: 1 << TARGET, open: 1, least }, None);
                }
            }
            Some(Get::Bringing { version, .. }) => add(Get::Done, Some(*version)),
            Some(Get::Done) | None => {}
        }
    }

    /// What was said, and what one more server says now.
    fn asked(&self, said: &[(ServerIndex, Version, bool)]) -> Vec<Vec<(ServerIndex, Version, bool)>> {
        let open = (0..SERVERS).filter(|place| said.iter().all(|(from, ..)| from != place));
        open.map(|place| {
            let version = self.servers[place].version;
            let mut said = [said, &[(place, version, version != Version::NONE)]].concat();
            // The order does not matter to who hears it.
            said.sort_unstable();
            said
        })
        .collect()
    }
}

/// Goes through every state; says how many there are.
fn explore(plan: &Plan) -> usize {
    let mut known = HashSet::new();
    let mut open = vec![World::new(plan)];
    known.insert(open[0].clone());
    let mut next = Vec::new();
    while let Some(world) = open.pop() {
        world.next(plan, &mut next);
        for world in next.drain(..) {
            if !known.contains(&world) {
                known.insert(world.clone());
                open.push(world);
            }
        }
    }
    known.len()
}

fn all(plans: &[Plan]) {
    for (n, plan) in plans.iter().enumerate() {
        let states = explore(plan);
        println!("plan {n}: {states} states");
        assert!(states > 1000, "{states} states are too few to mean anything");
    }
}

/// Whoever wins a tie: the earlier one or the later one.
const EARLIER: &[u64] = &[9, 5];
const LATER: &[u64] = &[5, 9];

#[test]
fn a_put_outranks_all_that_ended_before_it_and_no_get_goes_back() {
    all(&[
        Plan { writers: EARLIER, gets: 0, sync: false, crashes: 1 },
        Plan { writers: LATER, gets: 0, sync: false, crashes: 0 },
        Plan { writers: &[9], gets: 2, sync: false, crashes: 0 },
    ]);
}

#[test]
#[ignore = "minutes and gigabytes: `cargo xtask soak blobs` runs it"]
fn three_puts_two_gets_and_a_catch_up_among_crashes() {
    all(&[
        Plan { writers: &[9], gets: 2, sync: true, crashes: 1 },
        Plan { writers: EARLIER, gets: 1, sync: true, crashes: 0 },
        Plan { writers: LATER, gets: 2, sync: false, crashes: 1 },
        Plan { writers: &[9, 5, 7], gets: 0, sync: false, crashes: 1 },
    ]);
}
