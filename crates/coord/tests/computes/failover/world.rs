//! Members of a store in simulated time: each is a [`Takeover`] with a clock of its own, and what is around it is modelled as
//! simply as it may be. Statements are datagrams, which are lost, late and out of order. An attempt to lead reads the promises
//! that can be had, asks for a later one, and has come about if enough members have kept it; that deposes whoever led before.
//! A primary looks after its members now and then: it gives orders, opens the log again for who is back, and ends when it was replaced, or
//! when too few are left for long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remanence_coord::log::Epoch;
use remanence_coord::takeover::{Action, Input, Own, Role, Statement, Takeover};
use remanence_coord::watch;
use remanence_pmem::crash_image::{Choices, Seeded};

pub(crate) const MS: u64 = 1000;
pub(crate) const SECOND: u64 = 1000 * MS;
pub(crate) const NOTICE: u64 = 200 * MS;
/// Nobody is waited for any longer than this by who cannot reach it.
const PATIENCE: u64 = SECOND;
const UPKEEP: u64 = 50 * MS;

/// What befalls the members, for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It does not run.
    Pause(usize),
    /// It is killed, and started again afterwards.
    Kill(usize),
    /// What the one says does not reach the other.
    Cut(usize, usize),
    /// It hears nobody.
    Deaf(usize),
    /// Nobody hears it.
    Mute(usize),
    /// Those whose bits are set, and the others, do not reach each other.
    Split(u32),
    /// Its medium does not answer.
    Hang(usize),
    /// So many of a hundred statements are lost.
    Loss(usize),
    /// Statements take up to so many milliseconds.
    Slow(u64),
}

enum Event {
    /// The deadline of a machine, if it is that still.
    Timer,
    /// A member says what it is, to all others.
    Beat {
        /// And goes on to do so.
        again: bool,
    },
    Message {
        from: usize,
        said: Statement,
        /// It was sent to a member that did not run.
        held: bool,
    },
    Missed {
        at: usize,
    },
    Attempt(Attempt),
    Upkeep {
        epoch: Epoch,
    },
    Obeyed {
        epoch: Epoch,
    },
}

/// How far an attempt to lead has come.
#[derive(Clone)]
enum Attempt {
    /// It finds out who can be reached.
    Connect,
    /// It asks them for a promise.
    Grant { epoch: Epoch },
    /// It has the promises, and opens the store.
    Open { epoch: Epoch },
    /// It could not.
    Fail,
}

pub(crate) struct Node {
    pub(crate) machine: Takeover,
    own: Own,
    /// Its clock: when its process began, and how many millionths of a second it is fast in each second.
    began: u64,
    drift: i64,
    pub(crate) life: u64,
    pub(crate) dead: bool,
    /// It does not run until then.
    pub(crate) paused: u64,
    hangs_since: Option<u64>,
    /// What its medium has.
    promised: Epoch,
    is_new: bool,
    /// As a primary.
    epoch: Epoch,
    /// Since when it has too few members.
    alone_since: Option<u64>,
    /// When it opens the log again at the earliest, and how long it waits then.
    reopens: (u64, u64),
    obeying: bool,
    timer: Option<u64>,
    /// What was sent to it before it woke, and has not been delivered.
    pub(crate) waiting: usize,
    /// How often its deadline has come.
    pub(crate) timeouts: usize,
    /// How often it has followed nobody any more.
    pub(crate) lost_leader: usize,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) choices: Seeded,
    acks: usize,
    events: BTreeMap<(u64, u64), (usize, u64, Event)>,
    next: u64,
    /// What befalls them now.
    pub(crate) faults: Vec<Fault>,
    /// Attempts that came about.
    pub(crate) takeovers: usize,
    pub(crate) attempts: usize,
    /// How long it takes to open a store.
    pub(crate) opens: (u64, u64),
    /// Who served in which epoch.
    served: BTreeMap<u64, (usize, u64)>,
    /// The latest epoch in which anybody served.
    latest: Epoch,
    story: Vec<String>,
}

fn micros(time: u64) -> Duration {
    Duration::from_micros(time)
}

impl World {
    /// So many members that have just been started for the first time, on a network that is well.
    pub(crate) fn new(seed: u64, members: usize) -> Self {
        let mut choices = Seeded::new(seed);
        let acks = members / 2 + 1;
        let own = Own { promised: Epoch::NONE, is_new: true, has_image: true, acks, stalled: Duration::ZERO };
        let nodes = (0..members)
            .map(|n| Node {
                machine: Takeover::new(Duration::ZERO, n, members, micros(NOTICE), own),
                own,
                began: 0,
                drift: choices.pick(60_001) as i64 - 30_000,
                life: 0,
                dead: true,
                paused: 0,
                hangs_since: None,
                promised: Epoch::NONE,
                is_new: true,
                epoch: Epoch::NONE,
                alone_since: None,
                reopens: (0, 0),
                obeying: false,
                timer: None,
                waiting: 0,
                timeouts: 0,
                lost_leader: 0,
            })
            .collect();
        let mut this = Self {
            now: 0,
            nodes,
            choices,
            acks,
            events: BTreeMap::new(),
            next: 0,
            faults: Vec::new(),
            takeovers: 0,
            attempts: 0,
            opens: (2 * MS, 60 * MS),
            served: BTreeMap::new(),
            latest: Epoch::NONE,
            story: Vec::new(),
        };
        (0..members).for_each(|n| this.start(n));
        this
    }

    /// The same, once one of them leads and the others follow.
    pub(crate) fn settled(seed: u64, members: usize) -> Self {
        let mut this = Self::new(seed, members);
        this.run(3 * SECOND);
        assert!(this.is_settled(), "seed {seed}: nobody leads at first\n{}", this.story());
        this
    }

    fn tell(&mut self, n: usize, what: &str) {
        self.story.push(format!("{:>12.3} ms  {n}: {what}", self.now as f64 / 1000.0));
    }

    pub(crate) fn story(&self) -> String {
        self.story[self.story.len().saturating_sub(120)..].join("\n")
    }

    fn draw(&mut self, from: u64, to: u64) -> u64 {
        from + self.choices.pick((to - from + 1) as usize) as u64
    }

    fn at(&mut self, time: u64, n: usize, event: Event) {
        self.next += 1;
        self.events.insert((time, self.next), (n, self.nodes[n].life, event));
    }

    fn soon(&mut self, (from, to): (u64, u64), n: usize, event: Event) {
        let time = self.now + self.draw(from, to);
        self.at(time, n, event);
    }

    fn start(&mut self, n: usize) {
        let members = self.nodes.len();
        let node = &mut self.nodes[n];
        node.own = Own { promised: node.promised, is_new: node.is_new, stalled: Duration::ZERO, ..node.own };
        node.machine = Takeover::new(Duration::ZERO, n, members, micros(NOTICE), node.own);
        (node.life, node.dead, node.began, node.timer) = (node.life + 1, false, self.now, None);
        (node.obeying, node.alone_since, node.waiting) = (false, None, 0);
        self.tell(n, "starts");
        self.soon((0, 25 * MS), n, Event::Beat { again: true });
        for at in (0..members).filter(|at| *at != n) {
            self.at(self.now + PATIENCE, n, Event::Missed { at });
        }
    }

    /// Something begins to go wrong.
    pub(crate) fn begin(&mut self, fault: Fault) {
        self.faults.push(fault);
        match fault {
            Fault::Pause(n) => {
                self.nodes[n].paused = u64::MAX;
                self.tell(n, "is paused");
            }
            Fault::Kill(n) => {
                self.nodes[n].dead = true;
                self.tell(n, "is killed");
            }
            Fault::Hang(n) => {
                self.nodes[n].hangs_since = self.nodes[n].hangs_since.or(Some(self.now));
                self.tell(n, "its medium hangs");
            }
            _ => self.tell(0, &format!("{fault:?} begins")),
        }
    }

    /// Ends a fault that was begun.
    pub(crate) fn end(&mut self, fault: Fault) {
        if let Some(at) = self.faults.iter().position(|known| *known == fault) {
            self.faults.remove(at);
        }
        if self.faults.contains(&fault) {
            return;
        }
        match fault {
            Fault::Pause(n) => {
                // Whatever was due meanwhile happens now, in some order.
                self.nodes[n].paused = self.now;
                let life = self.nodes[n].life;
                let kept = self.events.extract_if(.., |(time, _), (to, ..)| *time == u64::MAX && *to == n);
                let kept: Vec<_> = kept.collect();
                let mut messages = self.now;
                let mut held_from = vec![0; self.nodes.len()];
                for (_, (_, of, mut event)) in kept.into_iter().filter(|(_, (_, of, _))| *of == life) {
                    let time = match &mut event {
                        Event::Message { from, held, .. } => {
                            // Members wait for an answer before they say more: the oldest is what waits.
                            held_from[*from] += 1;
                            if held_from[*from] > 2 {
                                continue;
                            }
                            *held = true;
                            self.nodes[n].waiting += 1;
                            messages += self.draw(0, 2 * MS);
                            messages
                        }
                        _ => self.now + self.draw(0, 5 * MS),
                    };
                    self.next += 1;
                    self.events.insert((time, self.next), (n, of, event));
                }
                self.tell(n, "runs again");
            }
            Fault::Kill(n) => self.start(n),
            Fault::Hang(n) => {
                self.nodes[n].hangs_since = None;
                self.tell(n, "its medium answers");
            }
            _ => self.tell(0, &format!("{fault:?} ends")),
        }
    }

    fn runs(&self, n: usize) -> bool {
        !self.nodes[n].dead && self.nodes[n].paused <= self.now
    }

    fn hangs(&self, n: usize) -> bool {
        self.nodes[n].hangs_since.is_some()
    }

    /// Whether what the one says reaches the other.
    fn hears(&self, from: usize, to: usize) -> bool {
        from == to
            || !self.faults.iter().any(|fault| match *fault {
                Fault::Cut(one, other) => (one, other) == (from, to),
                Fault::Deaf(n) => n == to,
                Fault::Mute(n) => n == from,
                Fault::Split(set) => (set >> from ^ set >> to) & 1 == 1,
                _ => false,
            })
    }

    /// Whether a member could answer another one now.
    fn answers(&self, n: usize, m: usize) -> bool {
        self.runs(m) && !self.hangs(m) && self.hears(n, m) && self.hears(m, n)
    }

    fn needed(&self) -> usize {
        self.acks.max(self.nodes.len() - self.acks + 1)
    }

    fn taking(&self, n: usize) -> usize {
        let epoch = self.nodes[n].epoch;
        (0..self.nodes.len()).filter(|m| self.answers(n, *m) && self.nodes[*m].promised == epoch).count()
    }

    /// Who could acknowledge a write now.
    pub(crate) fn primary(&self) -> Option<usize> {
        let leads = |n: &usize| self.runs(*n) && self.nodes[*n].machine.role() == Role::Primary;
        let mut serving = (0..self.nodes.len()).filter(leads).filter(|n| {
            let node = &self.nodes[*n];
            node.promised == node.epoch && self.answers(*n, *n) && self.taking(*n) >= self.acks
        });
        let first = serving.next();
        assert!(serving.next().is_none(), "two of them serve\n{}", self.story());
        first
    }

    /// One serves, and all others follow it.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(primary) = self.primary() else { return false };
        (0..self.nodes.len()).filter(|n| *n != primary).all(|n| {
            let machine = &self.nodes[n].machine;
            machine.role() == Role::Follower && machine.leader().is_some_and(|leader| leader.who == primary)
        })
    }

    fn clock(&self, n: usize) -> Duration {
        let node = &self.nodes[n];
        let passed = (self.now - node.began) as i64;
        micros((passed + passed * node.drift / 1_000_000) as u64)
    }

    /// How long a member's clock takes for that.
    fn lasts(&self, n: usize, time: Duration) -> u64 {
        (time.as_micros() as i64 * 1_000_000 / (1_000_000 + self.nodes[n].drift)) as u64 + 1
    }

    /// Runs for so long, and looks at it in every millisecond.
    pub(crate) fn watch(&mut self, time: u64, mut look: impl FnMut(&mut Self)) {
        let end = self.now + time;
        while self.now < end {
            self.run(MS);
            look(self);
        }
    }

    pub(crate) fn run(&mut self, time: u64) {
        let end = self.now + time;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((time, _), (n, life, event)) = entry.remove_entry();
            self.now = time;
            if self.nodes[n].dead || self.nodes[n].life != life {
                continue;
            }
            if self.nodes[n].paused > self.now {
                self.at(u64::MAX, n, event);
                continue;
            }
            self.happens(n, event);
        }
        self.now = end;
    }

    fn happens(&mut self, n: usize, event: Event) {
        match event {
            Event::Timer => {
                if self.nodes[n].timer != Some(self.now) {
                    return;
                }
                self.nodes[n].timer = None;
                let now = self.clock(n);
                if self.nodes[n].machine.deadline().is_some_and(|deadline| deadline <= now) {
                    self.nodes[n].timeouts += 1;
                    self.nodes[n].machine.timeout(now);
                }
                self.act(n);
            }
            Event::Beat { again } => {
                if again {
                    let time = self.now + self.lasts(n, watch::beat(micros(NOTICE)));
                    self.at(time, n, Event::Beat { again });
                }
                self.look(n);
                self.say(n);
            }
            Event::Message { from, said, held } => {
                self.nodes[n].waiting -= usize::from(held);
                self.look(n);
                self.handle(n, Input::Heard { at: from, said });
            }
            Event::Missed { at } => self.handle(n, Input::Missed { at }),
            Event::Attempt(attempt) => self.attempt(n, attempt),
            Event::Upkeep { epoch } => self.upkeep(n, epoch),
            Event::Obeyed { epoch } => {
                if self.hangs(n) {
                    return self.at(self.now + MS, n, Event::Obeyed { epoch });
                }
                self.nodes[n].obeying = false;
                let is_for = self.nodes[n].promised == epoch;
                self.handle(n, Input::Obeyed(is_for.then_some(epoch)));
            }
        }
    }

    /// What it is itself, as far as it sees that without waiting.
    fn look(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        let own = match node.hangs_since {
            Some(since) => Own { stalled: micros(now - since), ..node.own },
            None => Own { promised: node.promised, is_new: node.is_new, stalled: Duration::ZERO, ..node.own },
        };
        if own != node.own {
            node.own = own;
            self.handle(n, Input::Own(own));
        }
    }

    fn say(&mut self, n: usize) {
        let node = &self.nodes[n];
        let role = node.machine.role();
        let said = Statement {
            role,
            epoch: if role == Role::Primary { node.epoch } else { node.own.promised },
            life: node.life,
            stalled: node.own.stalled,
            has_image: node.own.has_image,
            belongs: !node.own.is_new,
        };
        let mut worst = (0, 3 * MS);
        for fault in &self.faults {
            match *fault {
                Fault::Loss(percent) => worst.0 = worst.0.max(percent),
                Fault::Slow(millis) => worst.1 = worst.1.max(millis * MS),
                _ => {}
            }
        }
        for to in (0..self.nodes.len()).filter(|to| *to != n) {
            let is_lost = self.choices.pick(100) < worst.0;
            if is_lost || !self.hears(n, to) || self.nodes[to].dead {
                continue;
            }
            self.soon((200, worst.1), to, Event::Message { from: n, said, held: false });
        }
    }

    fn handle(&mut self, n: usize, input: Input) {
        let now = self.clock(n);
        self.nodes[n].machine.handle(now, input);
        self.act(n);
    }

    fn act(&mut self, n: usize) {
        while let Some(action) = self.nodes[n].machine.poll() {
            match action {
                Action::Become(role) => {
                    self.tell(n, role.name());
                    self.nodes[n].lost_leader += usize::from(role == Role::Waiting);
                    self.soon((0, MS), n, Event::Beat { again: false });
                }
                Action::Lead => {
                    assert_eq!(
                        self.nodes[n].waiting,
                        0,
                        "{n} tries to lead before it has listened\n{}",
                        self.story()
                    );
                    self.attempts += 1;
                    self.soon((2 * MS, 20 * MS), n, Event::Attempt(Attempt::Connect));
                }
                Action::Explain(_) => {}
            }
        }
        let Some(deadline) = self.nodes[n].machine.deadline() else { return };
        let left = deadline.saturating_sub(self.clock(n));
        // It is woken a moment late.
        let time = self.now + self.lasts(n, left) + self.draw(0, 2 * MS);
        if self.nodes[n].timer.is_none_or(|timer| timer > time) {
            self.nodes[n].timer = Some(time);
            self.at(time, n, Event::Timer);
        }
    }

    fn reached(&self, n: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|m| self.answers(n, *m)).collect()
    }

    fn later(&mut self, reached: &[usize]) -> Epoch {
        let counter = reached.iter().map(|m| self.nodes[*m].promised.counter()).max().unwrap_or(0);
        self.next += 1;
        Epoch::new(counter + 1, self.next as u32)
    }

    /// Asks for a promise. How many have made it.
    fn grant(&mut self, reached: &[usize], epoch: Epoch) -> usize {
        let mut granted = 0;
        for m in reached {
            if self.nodes[*m].promised.counter() < epoch.counter() {
                (self.nodes[*m].promised, self.nodes[*m].is_new) = (epoch, false);
                granted += 1;
            }
        }
        granted
    }

    fn attempt(&mut self, n: usize, attempt: Attempt) {
        if self.hangs(n) {
            return self.at(self.now + MS, n, Event::Attempt(attempt));
        }
        let reached = self.reached(n);
        let fail = Event::Attempt(Attempt::Fail);
        match attempt {
            Attempt::Connect => {
                let epoch = self.later(&reached);
                self.soon((MS, 20 * MS), n, Event::Attempt(Attempt::Grant { epoch }));
            }
            Attempt::Grant { epoch } => {
                let enough = self.grant(&reached, epoch) >= self.needed();
                if enough {
                    self.soon(self.opens, n, Event::Attempt(Attempt::Open { epoch }));
                } else {
                    self.soon((MS, 300 * MS), n, fail);
                }
            }
            Attempt::Open { epoch } => {
                self.nodes[n].epoch = epoch;
                if self.nodes[n].promised != epoch || self.taking(n) < self.acks {
                    return self.at(self.now, n, fail);
                }
                self.serves(n, epoch);
                self.takeovers += 1;
                (self.nodes[n].alone_since, self.nodes[n].reopens) = (None, (0, NOTICE / 2));
                self.handle(n, Input::Leads { epoch });
            }
            Attempt::Fail => {
                self.look(n);
                self.handle(n, Input::Ended);
            }
        }
    }

    fn serves(&mut self, n: usize, epoch: Epoch) {
        self.tell(n, &format!("serves in epoch {}", epoch.counter()));
        let before = self.served.insert(epoch.0, (n, self.nodes[n].life));
        assert_eq!(before, None, "two serve in one epoch\n{}", self.story());
        self.latest = epoch;
        self.nodes[n].epoch = epoch;
        self.at(self.now + UPKEEP, n, Event::Upkeep { epoch });
    }

    fn upkeep(&mut self, n: usize, epoch: Epoch) {
        if self.nodes[n].machine.role() != Role::Primary || self.nodes[n].epoch != epoch {
            return;
        }
        if self.hangs(n) {
            return self.at(self.now + MS, n, Event::Upkeep { epoch });
        }
        let end = |this: &mut Self, why: &str| {
            this.tell(n, why);
            this.look(n);
            this.handle(n, Input::Ended);
        };
        if self.nodes[n].promised != epoch {
            return end(self, "was replaced");
        }
        let (members, reached, clock) = (self.nodes.len(), self.reached(n), self.clock(n));
        let is_lost = |m: &usize| self.nodes[*m].promised != epoch;
        let back =
            reached.iter().any(|m| *m != n && self.nodes[n].machine.wants_back(*m, epoch, is_lost(m), clock));
        let (not_before, pause) = self.nodes[n].reopens;
        if back && self.now >= not_before {
            self.nodes[n].reopens = (self.now + pause, (2 * pause).min(10 * SECOND));
            let (replaced, next) = (self.latest != epoch, self.later(&reached));
            let enough = self.grant(&reached, next) >= self.needed();
            if replaced || !enough {
                return end(self, "could not open the log again");
            }
            return self.serves(n, next);
        }
        if self.taking(n) >= self.acks {
            self.nodes[n].alone_since = None;
        } else {
            let since = *self.nodes[n].alone_since.get_or_insert(self.now);
            if self.now - since >= PATIENCE {
                return end(self, "has too few members");
            }
        }
        for m in (0..members).filter(|m| *m != n) {
            let takes = self.runs(m) && self.hears(n, m) && self.nodes[m].promised == epoch;
            if takes && !self.nodes[m].obeying && self.choices.pick(4) == 0 {
                self.nodes[m].obeying = true;
                self.handle(m, Input::Obeys);
                let longest = if self.choices.pick(20) == 0 { 150 * MS } else { 3 * MS };
                self.soon((100, longest), m, Event::Obeyed { epoch });
            }
        }
        self.at(self.now + UPKEEP, n, Event::Upkeep { epoch });
    }
}

/// Faults under a seed: when each begins, for how long it lasts, and what it is.
pub(crate) fn schedule(choices: &mut Seeded, members: usize, within: u64) -> Vec<(u64, u64, Fault)> {
    let mut draw = |to: usize| choices.pick(to);
    let count = 1 + draw(8);
    let mut all = Vec::new();
    for _ in 0..count {
        let n = draw(members);
        let fault = match draw(11) {
            0 | 1 => Fault::Pause(n),
            2 | 3 => Fault::Kill(n),
            4 => Fault::Cut(n, (n + 1 + draw(members - 1)) % members),
            5 => Fault::Deaf(n),
            6 => Fault::Mute(n),
            7 => Fault::Split(1 + draw((1 << members) - 2) as u32),
            8 => Fault::Hang(n),
            9 => Fault::Loss(10 + draw(80)),
            _ => Fault::Slow(10 + draw(300) as u64),
        };
        let begins = draw(within as usize) as u64;
        let longest = [100 * MS, 500 * MS, 3 * SECOND, 10 * SECOND][draw(4)];
        let lasts = 1 + draw(longest as usize) as u64;
        all.push((begins, lasts.min(within - begins), fault));
    }
    all.sort_by_key(|(begins, ..)| *begins);
    all
}

/// Has these faults happen to members under a seed, and runs for that long.
pub(crate) fn suffer(world: &mut World, faults: &[(u64, u64, Fault)], within: u64) {
    let begin = world.now;
    let mut steps: BTreeSet<(u64, bool, usize)> = BTreeSet::new();
    for (n, (begins, lasts, _)) in faults.iter().enumerate() {
        steps.insert((begin + begins, true, n));
        steps.insert((begin + begins + lasts, false, n));
    }
    for (time, begins, n) in steps {
        world.run(time.saturating_sub(world.now));
        let fault = faults[n].2;
        if begins { world.begin(fault) } else { world.end(fault) }
    }
    world.run((begin + within).saturating_sub(world.now));
}
