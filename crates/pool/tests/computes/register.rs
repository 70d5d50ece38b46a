//! A blob on three servers, in every order of things: puts that overlap, fail half-way or are acknowledged, gets, a
//! catch-up, servers that crash and forget what was not durable, one that loses its disk and is brought up to date
//! before it is there again, and messages that arrive late or never.
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
use remanence_pool::quorum::{Ballot, Reading, ServerIndex, majority, others_needed};

const SERVERS: usize = 3;

/// The one that is brought up to date, and may have lost its disk.
const TARGET: ServerIndex = SERVERS - 1;

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
    /// Of a catch-up: who of the others has drawn, and the highest number.
    Drawing {
        from: Set,
        number: u64,
    },
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
    /// The last server has lost its disk, and is there for nobody else; puts and gets that were under way then.
    lost: Option<(Set, Set)>,
    disks: usize,
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
    /// How often the last server may lose its disk, before it is brought up to date.
    disks: usize,
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
            lost: None,
            disks: plan.disks,
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
        if self.disks > 0 && self.sync == Some(Get::Idle) {
            to.push(self.without_disk());
        }
        if self.crashes > 0 {
            for n in 0..SERVERS {
                let mut next = self.clone();
                next.servers[n].crash();
                next.crashes -= 1;
                to.push(next);
            }
        }
    }

    /// The last server loses all that it had; what was on its way there is lost with its connections.
    fn without_disk(&self) -> Self {
        let mut next = self.clone();
        next.disks -= 1;
        next.servers[TARGET] = Server { promises: Promises::none(), ceiling: 0, version: Version::NONE };
        let (mut puts, mut gets) = (0, 0);
        for (n, put) in next.puts.iter_mut().enumerate() {
            puts |= u8::from(put.stage != Stage::Idle && put.acknowledged.is_none()) << n;
            if let Stage::Voting { open: late, .. } | Stage::Committing { late, .. } = &mut put.stage {
                *late &= !(1 << TARGET);
            }
        }
        for (n, get) in next.gets.iter_mut().enumerate() {
            gets |= u8::from(!matches!(get, Get::Idle | Get::Done)) << n;
            if let Get::Bringing { late, .. } = get {
                *late &= !(1 << TARGET);
            }
        }
        next.lost = Some((puts, gets));
        next
    }

    /// Those that are there for everybody.
    fn there(&self) -> Set {
        if self.lost.is_some() { 0b111 & !(1 << TARGET) } else { 0b111 }
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
                let (above, open) = (self.highest(|put| put.acknowledged.is_some()), self.there());
                add(&|next| {
                    let ballot = Ballot::new(SERVERS);
                    next.puts[n].stage = Stage::Voting { ballot, open, chosen: false };
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
                        let open = ask.iter().fold(0, |set, place| set | 1 << place) & self.there();
                        next.puts[n].stage = Stage::Voting { ballot: voted.clone(), open, chosen: true };
                    });
                }
                if let Some(counter) = ballot.number() {
                    add(&|next| {
                        let version = Version { counter, writer: plan.writers[n] };
                        assert!(version > put.above, "a put that ended before it outranks it: {self:#?}");
                        next.puts[n].stage = Stage::Committing { version, late: self.there(), done: 0 };
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
                for said in self.asked(said, self.there()) {
                    add(&|next| next.gets[n] = Get::Asking { said: said.clone(), least: *least });
                }
                let Some(reading) = Reading::of(SERVERS, said) else { return };
                let (version, open) = (reading.version, reading.missing());
                let late = reading.behind.iter().fold(0, |set, place| set | 1 << place) & self.there();
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
            Get::Drawing { .. } => unreachable!("gets draw nothing"),
            Get::Done => {}
        }
    }

    /// Has the last server leave behind what others have, asks them for their versions, and brings the highest there. After a lost disk: when
    /// what was under way then has ended, gets too, as one may have counted that disk for what it has brought to others.
    fn step_sync(&self, to: &mut Vec<Self>) {
        const OTHERS: Set = 0b111 & !(1 << TARGET);
        let mut add = |sync: Get, change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            if sync == Get::Done {
                next.lost = None;
            }
            next.sync = Some(sync);
            change(&mut next);
            to.push(next);
        };
        let needed = others_needed(SERVERS);
        match &self.sync {
            Some(Get::Idle) => {
                let (puts, gets) = self.lost.unwrap_or((0, 0));
                if (0..self.puts.len()).all(|n| !has(puts, n) || self.puts[n].acknowledged.is_some())
                    && (0..self.gets.len()).all(|n| !has(gets, n) || self.gets[n] == Get::Done)
                {
                    add(Get::Drawing { from: 0, number: 0 }, &|_| ());
                }
            }
            Some(Get::Drawing { from, number }) => {
                for place in (0..SERVERS).filter(|place| has(OTHERS & !from, *place)) {
                    let mut server = self.servers[place].clone();
                    let number = server.ticket().max(*number);
                    add(Get::Drawing { from: from | 1 << place, number }, &|next| {
                        next.servers[place] = server.clone();
                    });
                }
                if count(*from) >= needed {
                    add(Get::Asking { said: Vec::new(), least: Version::NONE }, &|next| {
                        next.servers[TARGET].promise(*number);
                    });
                }
            }
            Some(Get::Asking { said, least }) => {
                for said in self.asked(said, OTHERS) {
                    add(Get::Asking { said, least: *least }, &|_| ());
                }
                if said.len() >= needed {
                    let version = Reading::of_any(SERVERS, said).expect("somebody has spoken").version;
                    add(Get::Done, &|next| next.servers[TARGET].commit(version));
                }
            }
            Some(Get::Bringing { .. }) => unreachable!("it is there at once"),
            Some(Get::Done) | None => {}
        }
    }

    /// What was said, and what one more of these servers says now.
    fn asked(
        &self,
        said: &[(ServerIndex, Version, bool)],
        of: Set,
    ) -> Vec<Vec<(ServerIndex, Version, bool)>> {
        let open =
            (0..SERVERS).filter(|place| has(of, *place) && said.iter().all(|(from, ..)| from != place));
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
        Plan { writers: EARLIER, gets: 0, sync: false, crashes: 1, disks: 0 },
        Plan { writers: LATER, gets: 0, sync: false, crashes: 0, disks: 0 },
        Plan { writers: &[9], gets: 2, sync: false, crashes: 0, disks: 0 },
    ]);
}

#[test]
fn a_server_with_a_new_disk_that_was_brought_up_to_date_has_forgotten_nothing() {
    all(&[
        Plan { writers: &[9], gets: 0, sync: true, crashes: 1, disks: 1 },
        Plan { writers: &[9], gets: 1, sync: true, crashes: 0, disks: 1 },
    ]);
}

#[test]
#[ignore = "minutes and gigabytes: `cargo xtask soak blobs` runs it"]
fn three_puts_two_gets_and_a_catch_up_among_crashes() {
    all(&[
        Plan { writers: &[9], gets: 2, sync: true, crashes: 1, disks: 0 },
        Plan { writers: EARLIER, gets: 1, sync: true, crashes: 0, disks: 0 },
        Plan { writers: LATER, gets: 2, sync: false, crashes: 1, disks: 0 },
        Plan { writers: &[9, 5, 7], gets: 0, sync: false, crashes: 1, disks: 0 },
    ]);
}
