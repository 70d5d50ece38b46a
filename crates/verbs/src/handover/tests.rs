//! Random schedules of every kind of driver against the decisions, in virtual time; see the head of `handover.rs`.

use super::*;

/// A small generator, so that a failing seed is the whole story.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// A thread as its scheduler sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// Not in a call of ours.
    Out,
    /// Will take the lock.
    Runnable,
    /// Asleep on its event, until then, and on the link if `link`.
    Asleep { until: Option<Instant>, link: Option<bool> },
}

struct World {
    now: Instant,
    handover: Handover,
    /// Packets that wait in the link.
    packets: u32,
    /// The last turn took some.
    came: bool,
    deadline: Option<Instant>,
    /// A packet of ours waits for room, and whether there is room by now.
    blocked: bool,
    room: bool,
    thread: State,
    thread_event: bool,
    waiters: [State; 3],
    waiter_events: [bool; 3],
    warm: [bool; 3],
    polling: bool,
}

impl World {
    fn new(policy: Progress) -> Self {
        Self {
            now: Instant::from_nanos(1_000_000_000),
            handover: Handover::new(policy, Pace::ONE),
            packets: 0,
            came: false,
            deadline: None,
            blocked: false,
            room: false,
            thread: if policy == Progress::ByConsumer { State::Out } else { State::Runnable },
            thread_event: false,
            waiters: [State::Out; 3],
            waiter_events: [false; 3],
            warm: [true; 3],
            polling: false,
        }
    }

    fn outlook(&self) -> Outlook {
        Outlook {
            deadline: self.deadline,
            blocked: self.blocked,
            busy: self.packets > 1,
            came: self.came,
            awaited: false,
        }
    }

    /// One turn of {receive, engine, transmit}.
    fn turn(&mut self) -> bool {
        let due = self.deadline.is_some_and(|deadline| deadline <= self.now);
        let sent = self.blocked && self.room;
        self.came = self.packets > 0;
        let worked = self.came || due || sent;
        self.packets = 0;
        if due {
            self.deadline = None;
        }
        if sent {
            self.blocked = false;
        }
        worked
    }

    fn kick(&mut self, kick: Kick) {
        match kick {
            Kick::None => {}
            Kick::Thread => self.thread_event = true,
            Kick::Waiter(WaiterId(id)) => self.waiter_events[id as usize] = true,
        }
    }

    fn settle(&mut self) {
        let outlook = self.outlook();
        let kick = self.handover.changed(outlook);
        self.kick(kick);
    }

    fn asleep(&self, plan: Plan) -> State {
        match plan {
            Plan::Again | Plan::Yield => State::Runnable,
            Plan::Rest(limit) => State::Asleep { until: limit.map(|limit| self.now + limit), link: None },
            Plan::Watch(limit) => {
                State::Asleep { until: limit.map(|limit| self.now + limit), link: Some(self.blocked) }
            }
        }
    }

    fn wakes(&self, state: State, event: bool) -> bool {
        let State::Asleep { until, link } = state else { return false };
        let by_link = link.is_some_and(|writable| self.packets > 0 || (writable && self.room));
        event || by_link || until.is_some_and(|until| until <= self.now)
    }

    fn run_thread(&mut self) {
        if self.wakes(self.thread, self.thread_event) {
            self.thread_event = false;
            self.thread = match self.handover.renew(self.now) {
                Some(lease) => self.asleep(Plan::Rest(Some(lease))),
                None => State::Runnable,
            };
        } else if self.thread == State::Runnable {
            let worked = self.turn();
            let plan = self.handover.plan(self.now, worked, self.outlook());
            self.thread = self.asleep(plan);
            self.settle();
        }
    }

    fn run_waiter(&mut self, id: usize, satisfied: bool) {
        if self.wakes(self.waiters[id], self.waiter_events[id]) {
            self.waiter_events[id] = false;
            self.waiters[id] = State::Runnable;
        } else if self.waiters[id] == State::Runnable {
            let worked = self.turn();
            if satisfied {
                let kick = self.handover.waiter_left(self.now, WaiterId(id as u32), true);
                self.kick(kick);
                self.waiters[id] = State::Out;
                self.waiter_events[id] = false;
            } else {
                let (now, warm, outlook) = (self.now, self.warm[id], self.outlook());
                let (plan, kick) = self.handover.plan_waiter(now, WaiterId(id as u32), warm, worked, outlook);
                self.kick(kick);
                self.waiters[id] = self.asleep(plan);
            }
            self.settle();
        }
    }

    /// The first two waiters begin to wait, unless they do.
    fn two_come_back(&mut self) {
        for id in [0, 1] {
            if self.waiters[id] == State::Out {
                self.waiters[id] = State::Runnable;
                self.handover.waiter_came(self.now);
            }
        }
    }

    fn poll(&mut self) {
        let kick = self.handover.polled(self.now);
        self.kick(kick);
        if self.turn() {
            self.handover.took();
        }
        self.settle();
    }

    fn step(&mut self, dice: &mut Dice) {
        match dice.roll(16) {
            0 => self.packets += 1,
            1 => {
                self.deadline = Some(self.now + Duration::from_micros(dice.roll(5_000)));
                self.settle();
            }
            2 => {
                (self.blocked, self.room) = (true, false);
                self.settle();
            }
            3 => self.room = true,
            4 => self.polling = dice.roll(4) != 0,
            5 | 6 => self.now = self.now + Duration::from_nanos(dice.roll(3_000)),
            7 => self.now = self.now + Duration::from_micros(dice.roll(400)),
            8 => self.now = self.now + Duration::from_millis(dice.roll(30)),
            9 => {
                let id = dice.roll(3) as usize;
                if self.waiters[id] == State::Out {
                    self.waiters[id] = State::Runnable;
                    self.warm[id] = dice.roll(2) == 0;
                    self.handover.waiter_came(self.now);
                }
            }
            10 | 11 => {
                let (id, satisfied) = (dice.roll(3) as usize, dice.roll(4) == 0);
                self.run_waiter(id, satisfied);
            }
            12 | 13 => self.run_thread(),
            14 if dice.roll(4) == 0 => {
                let kick = self.handover.armed();
                self.kick(kick);
                self.settle();
            }
            _ if self.polling => {
                for _ in 0..=dice.roll(400) {
                    self.poll();
                    self.now = self.now + Duration::from_nanos(300 + dice.roll(500));
                }
            }
            _ => {}
        }
    }

    /// The sentence of the head of `handover.rs`: nothing can happen that nobody would notice.
    fn assert_attended(&self, seed: u64, step: u32) {
        let everyone = || {
            std::iter::once((self.thread, self.thread_event))
                .chain(self.waiters.into_iter().zip(self.waiter_events))
        };
        // Without a progress thread nobody promises anything while no consumer is in a call.
        let promised = everyone().any(|(state, _)| state != State::Out);
        let awake =
            everyone().any(|(state, event)| state == State::Runnable || (state != State::Out && event));
        let leased = match self.thread {
            State::Asleep { until: Some(until), link: None } => until <= self.now + LEASE_LIMIT,
            _ => false,
        };
        let watched = everyone().any(|(state, _)| match state {
            State::Asleep { until, link: Some(writable) } => {
                let in_time = match (self.deadline, until) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(deadline), Some(until)) => until <= deadline,
                };
                in_time && (writable || !self.blocked)
            }
            _ => false,
        });
        assert!(
            !promised || awake || leased || watched,
            "seed {seed}, step {step}: nobody attends; thread {:?}, waiters {:?}, {:?}",
            self.thread,
            self.waiters,
            self.handover
        );
        let watchers = everyone()
            .filter(|(state, event)| matches!(state, State::Asleep { link: Some(_), .. }) && !event);
        assert!(watchers.count() <= 1, "seed {seed}, step {step}: two threads watch; {:?}", self.handover);
    }
}

#[test]
fn in_every_schedule_someone_attends_to_the_device() {
    for policy in [Progress::Adaptive, Progress::Sleep, Progress::Spin, Progress::ByConsumer] {
        for seed in 1..1_500 {
            let mut dice = Dice::new(seed);
            let mut world = World::new(policy);
            for step in 0..400 {
                world.step(&mut dice);
                world.assert_attended(seed, step);
            }
        }
    }
}

#[test]
fn when_consumers_go_away_the_progress_thread_serves_what_is_left() {
    for seed in 1..1_500 {
        let mut dice = Dice::new(seed);
        let mut world = World::new(Progress::Adaptive);
        for _ in 0..200 {
            world.step(&mut dice);
        }
        world.polling = false;
        for id in 0..3 {
            // A blocked consumer notices its own time limit; nothing else may be needed to get it out.
            if world.waiters[id] != State::Out {
                world.waiters[id] = State::Runnable;
                world.run_waiter(id, true);
            }
        }
        (world.packets, world.room) = (1, true);
        for _ in 0..1_000 {
            world.run_thread();
            world.now = world.now + Duration::from_micros(20);
        }
        assert_eq!((world.packets, world.deadline, world.blocked), (0, None, false), "seed {seed}");
        assert_eq!(world.handover.thread, Thread::Watching, "seed {seed}");
    }
}

#[test]
fn a_poller_takes_the_progress_thread_off_the_link_and_keeps_it_off() {
    let mut world = World::new(Progress::Adaptive);
    for _ in 0..100 {
        world.run_thread();
        world.now = world.now + Duration::from_micros(10);
    }
    assert_eq!(world.handover.thread, Thread::Watching);
    let mut turns = 0;
    let before = world.now;
    while world.now.since(before) < Duration::from_millis(100) {
        world.poll();
        world.now = world.now + Duration::from_nanos(400);
        if world.wakes(world.thread, world.thread_event) || world.thread == State::Runnable {
            world.run_thread();
            turns += 1;
        }
        let settled = world.now.since(before) > POLLER_AFTER * 2;
        assert!(!settled || world.handover.thread != Thread::Watching);
    }
    // Two steps (wake, turn) for each lease.
    assert!(turns < 1_000, "the progress thread took {turns} steps beside a poller in 100 ms");
}

#[test]
fn an_event_driven_consumer_is_not_taken_for_a_poller() {
    let mut world = World::new(Progress::Adaptive);
    for _ in 0..200 {
        world.packets += 1;
        for _ in 0..20 {
            world.run_thread();
            world.now = world.now + Duration::from_micros(10);
        }
        assert_eq!(world.handover.thread, Thread::Watching);
        for _ in 0..3 {
            world.poll();
            world.now = world.now + Duration::from_nanos(400);
        }
        let kick = world.handover.armed();
        assert_eq!(kick, Kick::None, "nobody rests on this consumer's polls");
    }
}

#[test]
fn a_busy_event_driven_consumer_is_not_taken_for_a_poller_either() {
    let mut world = World::new(Progress::Adaptive);
    // An event every 10 us, without a pause in which the progress thread could go to sleep.
    for _ in 0..1_000 {
        world.packets += 1;
        world.run_thread();
        for _ in 0..3 {
            world.poll();
            world.now = world.now + Duration::from_micros(3);
        }
        let kick = world.handover.armed();
        assert_eq!(kick, Kick::None);
        assert_eq!(world.handover.thread, Thread::Awake);
    }
}

#[test]
fn a_poller_that_asks_for_a_notification_gives_the_link_back() {
    let mut world = World::new(Progress::Adaptive);
    while world.handover.thread != (Thread::Leased { to_poller: true }) {
        world.poll();
        world.run_thread();
        world.now = world.now + Duration::from_nanos(400);
    }
    let kick = world.handover.armed();
    world.kick(kick);
    assert!(world.thread_event);
    for _ in 0..100 {
        world.run_thread();
        world.now = world.now + Duration::from_micros(5);
    }
    assert_eq!(world.handover.thread, Thread::Watching);
}

#[test]
fn spinning_lasts_while_it_is_rewarded() {
    const SHORT: Duration = Duration::from_micros(10);
    let mut budget = SpinBudget::new(Pace::ONE);
    for _ in 0..10 {
        budget.learn(SHORT, false);
    }
    assert!(budget.covers(Duration::from_micros(40)));
    for _ in 0..10 {
        budget.learn(Duration::from_millis(1), true);
    }
    assert!(!budget.covers(Duration::ZERO));
    // Long silences are no reason to try again; short ones are, and a reward is believed at once.
    budget.learn(Duration::from_millis(1), true);
    assert!(!budget.covers(Duration::ZERO));
    // Of what was slept through, two wake-ups are not the peer's silence.
    for _ in 0..2 {
        budget.learn(SpinBudget::MAX + SHORT, true);
    }
    assert!(budget.covers(Duration::from_micros(40)));
    budget.learn(SHORT, false);
    assert!(budget.covers(Duration::from_micros(40)));
}

/// Silences are short, but only as nobody spins: he who would end them waits for this core.
#[test]
fn spinning_in_vain_is_tried_ever_more_rarely() {
    let mut budget = SpinBudget::new(Pace::ONE);
    let mut spun = 0;
    for _ in 0..6400 {
        if budget.covers(Duration::from_micros(4)) {
            spun += 1;
            budget.learn(Duration::from_micros(80), true);
        } else {
            budget.learn(Duration::from_micros(30), true);
            // The answer to what was just handled is there already: no reward for spinning.
            budget.learn(Duration::from_micros(2), false);
        }
    }
    assert!((100..120).contains(&spun), "{spun} times");
}

/// As `ib_write_lat` has it: polls for its own completion, then spins on memory.
#[test]
fn a_consumer_that_keeps_stopping_to_poll_is_no_poller_any_more() {
    let mut world = World::new(Progress::Sleep);
    let (mut leased, mut late) = (0, 0);
    for round in 0..2_000 {
        for _ in 0..20 {
            let _ = world.handover.polled(world.now);
            world.now = world.now + Duration::from_micros(6);
            world.run_thread();
        }
        // Now a packet comes that nobody polls for.
        world.packets += 1;
        let came = world.now;
        while world.packets > 0 {
            world.now = world.now + Duration::from_micros(10);
            world.run_thread();
        }
        if round >= 100 {
            leased += u32::from(world.now.since(came) > Duration::from_micros(30));
        } else {
            late += u32::from(world.now.since(came) > Duration::from_micros(30));
        }
    }
    assert!(late > 0, "at first it passes for one");
    assert_eq!(leased, 0, "and then never again");
}

/// A poller that was distrusted, as it was held up: one packet every 20 us, which the poll takes, or the progress thread, which
/// pushed the poller off its core for it.
#[test]
fn a_consumer_that_polls_whenever_there_is_something_is_a_poller_again() {
    for by_thread in [false, true] {
        let mut world = World::new(Progress::Sleep);
        for _ in 0..10 {
            world.handover.distrust();
        }
        let mut packets = 0;
        while world.handover.thread != (Thread::Leased { to_poller: true }) {
            packets += 1;
            assert!(packets < 3 * IN_TIME_MIN, "by thread: {by_thread}");
            for poll in 0..5 {
                world.poll();
                // Further apart than is allowed to who is distrusted.
                world.now = world.now + GAP_MIN + Duration::from_nanos(300);
                if poll == 3 {
                    world.packets += 1;
                    if by_thread {
                        world.run_thread();
                    }
                }
            }
            world.run_thread();
            world.run_thread();
        }
    }
}

/// It polls for its own completion, which comes as a packet, and then spins on memory for an answer. Returns how often it was
/// trusted again in each quarter of 4,000 rounds.
fn polls_for_every_other_packet(answer_after: Duration) -> [u32; 4] {
    let mut world = World::new(Progress::Sleep);
    let mut trusted = [0; 4];
    for round in 0..4_000 {
        let before = world.handover.is_distrusted();
        world.packets += 1;
        while world.packets > 0 {
            world.poll();
            world.now = world.now + Duration::from_nanos(500);
        }
        world.run_thread();
        world.now = world.now + answer_after;
        world.packets += 1;
        while world.packets > 0 {
            world.run_thread();
            world.now = world.now + Duration::from_micros(1);
        }
        trusted[round / 1_000] += u32::from(before && !world.handover.is_distrusted());
    }
    trusted
}

#[test]
fn a_consumer_that_polls_for_every_other_packet_is_trusted_ever_more_rarely() {
    // So near that it might have been about to poll.
    let trusted = polls_for_every_other_packet(IN_TIME / 2);
    assert!(trusted[0] > 2 && trusted[1] <= 1 && trusted[2] + trusted[3] <= 1, "{trusted:?}");
    assert_eq!(polls_for_every_other_packet(IN_TIME * 2), [0; 4]);
}

#[test]
fn a_poller_that_misses_one_packet_of_many_was_held_up() {
    let mut world = World::new(Progress::Sleep);
    let mut miss_after = |taken: u64| {
        for _ in 0..taken {
            world.handover.took();
        }
        world.handover.thread = Thread::Leased { to_poller: true };
        let outlook = world.outlook();
        let _ = world.handover.plan(world.now, true, outlook);
        world.handover.is_distrusted()
    };
    assert!(!miss_after(TAKEN_HELD_UP));
    assert!(!miss_after(TAKEN_HELD_UP));
    assert!(miss_after(TAKEN_HELD_UP - 1));
}

#[test]
fn of_several_blocked_consumers_one_spins_and_the_others_sleep() {
    let mut world = World::new(Progress::Adaptive);
    world.waiters = [State::Runnable; 3];
    // Busy enough that spinning pays for whoever is in the seat.
    for _ in 0..1_000 {
        world.packets += 1;
        for id in 0..3 {
            world.run_waiter(id, false);
        }
        world.now = world.now + Duration::from_micros(3);
    }
    assert_eq!(world.waiters[0], State::Runnable);
    for other in &world.waiters[1..] {
        assert_eq!(*other, State::Asleep { until: None, link: None });
    }
}

#[test]
fn a_slow_machine_has_longer_times_and_a_fast_one_those_of_the_constants() {
    assert_eq!(Pace::of_empty_poll(Duration::from_nanos(400)), Pace::ONE);
    assert_eq!(Pace::of_empty_poll(Duration::from_nanos(3_200)).of(GAP_MIN), GAP_MIN * 16);
    let slowest = Pace::of_empty_poll(Duration::from_secs(1));
    assert!(slowest.of(POLL_GAP) < Duration::from_millis(2), "{slowest:?}");
    assert_eq!(slowest.lease_max(), LEASE_LIMIT);
    // A spin that was given up at this pace is tried again for silences that are short at this pace.
    let mut budget = SpinBudget::new(slowest);
    assert!(budget.covers(Duration::from_millis(1)));
    budget.learn(Duration::from_millis(10), true);
    assert!(budget.pays() && !budget.covers(Duration::from_millis(1)));
}

/// A server: one thread waits for requests, another for connections, which never come.
#[test]
fn of_a_warm_and_a_cold_waiter_the_warm_one_sees_to_the_link() {
    let mut world = World::new(Progress::Adaptive);
    world.warm = [false, true, true];
    let mut switches = 0;
    for round in 0..1_000 {
        world.two_come_back();
        // Both come to rest; requests are so rare that nobody spins.
        for _ in 0..100 {
            (0..2).for_each(|id| world.run_waiter(id, false));
            world.run_thread();
            world.now = world.now + Duration::from_micros(10);
        }
        // A request, which is for the warm one.
        world.packets += 1;
        switches += u32::from(round > 0 && world.wakes(world.waiters[0], world.waiter_events[0]));
        assert_eq!(world.handover.seat, Some(WaiterId(1)), "round {round}");
        assert!(world.wakes(world.waiters[1], world.waiter_events[1]), "round {round}");
        world.run_waiter(1, false);
        world.run_waiter(1, true);
        world.now = world.now + Duration::from_micros(20);
        switches += u32::from(world.waiter_events[0]);
    }
    assert_eq!(switches, 0, "the cold one was woken for nothing");
}

/// The thread that waits for connections has just accepted one, so it is warm, and waits for the next. Requests come.
#[test]
fn a_warm_waiter_that_finds_nothing_while_another_does_cools_down() {
    let mut world = World::new(Progress::Sleep);
    let (mut woken, mut called) = (0, 0);
    for round in 0..100 {
        world.two_come_back();
        for _ in 0..100 {
            (0..2).for_each(|id| world.run_waiter(id, false));
            world.run_thread();
            world.now = world.now + Duration::from_micros(1);
        }
        // A request; whoever watches calls the other one.
        world.packets += 1;
        woken += u32::from(world.wakes(world.waiters[0], world.waiter_events[0]));
        if world.handover.seat == Some(WaiterId(0)) {
            world.run_waiter(0, false);
            world.run_waiter(0, false);
            world.waiter_events[1] = true;
        }
        world.run_waiter(1, false);
        world.run_waiter(1, true);
        called += u32::from(world.waiter_events[0]);
        world.assert_attended(0, round);
    }
    assert_eq!((world.handover.seat, woken), (None, FOR_OTHERS), "it was in the seat only at first");
    assert_eq!(called, 0, "nor is it called back to it");
    // But once it finds something, it is warm again.
    world.packets += 1;
    world.waiter_events[0] = true;
    world.run_waiter(0, false);
    world.run_waiter(0, true);
    assert!(world.handover.cooled.is_empty());
}

/// After a silence in which the progress thread parked.
/// As a server's session thread beside a thread that polls for calls: each packet woke it, on the poller's own core.
#[test]
fn who_is_woken_beside_a_poller_for_nothing_leaves_the_link_to_it() {
    let mut world = World::new(Progress::Adaptive);
    world.waiters[0] = State::Runnable;
    world.handover.waiter_came(world.now);
    for _ in 0..100 {
        world.run_thread();
        world.run_waiter(0, false);
        world.now = world.now + Duration::from_millis(1);
    }
    assert_eq!((world.handover.thread, world.handover.seat), (Thread::Parked, Some(WaiterId(0))));
    let mut woken = 0;
    for _ in 0..1_000 {
        for _ in 0..40 {
            world.poll();
            world.now = world.now + Duration::from_nanos(400);
            world.run_thread();
            world.run_waiter(0, false);
        }
        world.packets += 1;
        if world.wakes(world.waiters[0], world.waiter_events[0]) {
            woken += 1;
            world.run_waiter(0, false);
            world.run_waiter(0, false);
        }
    }
    // Before the other one is a poller, which takes some packets; and until it has cooled down.
    assert!(woken <= 2 * FOR_OTHERS + 4, "woken {woken} times");
    assert_eq!((world.handover.thread, world.handover.seat), (Thread::Leased { to_poller: true }, None));
    // The poller stops: what comes then is attended to when its lease is over.
    world.packets = 1;
    world.now = world.now + LEASE_MAX;
    for _ in 0..4 {
        world.run_thread();
        world.now = world.now + Duration::from_micros(50);
    }
    assert_eq!(world.packets, 0);
    assert!(
        world.handover.sleepers().any(|id| id == WaiterId(0)),
        "and the waiter is called for what is its own"
    );
}

#[test]
fn a_warm_waiter_that_comes_and_goes_does_not_wake_a_cold_one_each_time() {
    let mut world = World::new(Progress::Sleep);
    world.warm = [false, true, true];
    let mut woken = (0, 0);
    for round in 0..1_000 {
        world.two_come_back();
        let silence = if round == 0 { PARK_AFTER * 2 } else { Duration::from_micros(100) };
        for _ in 0..100 {
            woken.0 += u32::from(round > 0 && world.wakes(world.waiters[0], world.waiter_events[0]));
            (0..2).for_each(|id| world.run_waiter(id, false));
            world.run_thread();
            world.now = world.now + silence / 100;
        }
        assert!(round != 0 || world.handover.thread == Thread::Parked);
        world.packets += 1;
        world.run_waiter(1, false);
        world.run_waiter(1, true);
        woken.1 += u32::from(world.thread_event);
        // It comes back at once, as a server does.
        world.now = world.now + Duration::from_micros(2);
        world.assert_attended(0, round);
    }
    assert_eq!(woken, (0, 1), "the cold one, and the progress thread");
}

#[test]
fn a_cold_waiter_has_the_seat_when_no_warm_one_was_there_lately() {
    let mut world = World::new(Progress::Adaptive);
    world.warm = [false, true, true];
    let come = |world: &mut World, id: usize| {
        world.waiters[id] = State::Runnable;
        world.handover.waiter_came(world.now);
        world.run_waiter(id, false);
    };
    come(&mut world, 0);
    assert_eq!(world.handover.seat, Some(WaiterId(0)));
    come(&mut world, 1);
    assert_eq!(world.handover.seat, Some(WaiterId(1)));
    world.run_waiter(0, false);
    world.run_thread();
    world.run_waiter(1, true);
    assert_eq!((world.handover.seat, world.waiter_events[0]), (None, false), "the other will be back");
    world.run_waiter(0, true);
    come(&mut world, 0);
    assert_eq!(world.handover.seat, None, "nor is it taken as long as that may be");
    // It is not.
    world.now = world.now + LEASE_LIMIT;
    world.run_waiter(0, true);
    come(&mut world, 0);
    assert_eq!(world.handover.seat, Some(WaiterId(0)));
}

/// A waiter in the seat has given up and comes back cold, as a server that had nothing to do soon and then has time. The progress
/// thread had left the link to it for a lease.
#[test]
fn while_a_waiter_sits_on_the_bench_a_lease_is_not_waited_for() {
    let mut world = World::new(Progress::Sleep);
    world.waiters[0] = State::Runnable;
    world.handover.waiter_came(world.now);
    world.run_waiter(0, false);
    world.run_thread();
    world.run_thread();
    assert_eq!(world.handover.thread, Thread::Leased { to_poller: false });
    let kick = world.handover.waiter_left(world.now, WaiterId(0), false);
    world.kick(kick);
    world.warm[0] = false;
    world.waiters[0] = State::Runnable;
    world.handover.waiter_came(world.now);
    world.run_waiter(0, false);
    assert_eq!(world.waiters[0], State::Asleep { until: None, link: None }, "it is on the bench");
    assert!(world.thread_event, "and nobody sees to the link before the lease is over");
    for _ in 0..3 {
        world.run_thread();
    }
    assert_eq!(world.handover.thread, Thread::Watching);
    world.packets = 1;
    assert!(world.wakes(world.thread, world.thread_event));
}

/// Whose look at something else is due soon waits until then, again and again, and is no worse a server for that.
#[test]
fn who_gives_up_soon_keeps_the_seat_and_who_waited_for_long_in_vain_does_not() {
    let mut world = World::new(Progress::Sleep);
    let (soon, long) = (Some(Duration::from_micros(50)), Some(Duration::from_millis(100)));
    for (limit, found) in [(long, true), (soon, false), (soon, false), (long, true), (soon, false)] {
        world.waiters[0] = State::Runnable;
        world.handover.waiter_came(world.now);
        world.run_waiter(0, false);
        for _ in 0..3 {
            world.run_thread();
        }
        assert_eq!(
            world.handover.seat,
            Some(WaiterId(0)),
            "the next request is its own, with no other thread in between"
        );
        assert!(matches!(world.waiters[0], State::Asleep { link: Some(_), .. }));
        world.now = world.now + Duration::from_micros(50);
        let kick = world.handover.waiter_left(world.now, WaiterId(0), found);
        world.kick(kick);
        world.warm[0] = warm_after(world.warm[0], found, limit);
    }
    assert!(world.warm[0] && !warm_after(true, false, long) && !warm_after(true, false, None));
    assert!(!warm_after(true, false, Some(LEASE_MAX)) && !warm_after(false, false, soon));
    assert!(warm_after(false, true, None));
}

/// A client that asks now and then, and whose peer answers at once.
#[test]
fn who_has_just_asked_spins_however_long_ago_the_last_answer_was() {
    let mut world = World::new(Progress::Adaptive);
    for round in 0..100 {
        world.now = world.now + Duration::from_millis(10);
        world.waiters[0] = State::Runnable;
        world.handover.waiter_came(world.now);
        for _ in 0..6 {
            world.run_waiter(0, false);
            world.now = world.now + Duration::from_micros(1);
            assert_eq!(world.waiters[0], State::Runnable, "round {round}");
        }
        world.packets += 1;
        world.turn();
        world.handover.found(world.now);
        world.run_waiter(0, true);
        // Meanwhile the progress thread goes to sleep.
        for _ in 0..100 {
            world.run_thread();
            world.now = world.now + Duration::from_micros(100);
        }
    }
}

/// Looks of a waiter, 1 us each, until it sleeps, or for so long. Returns how many.
fn looks(world: &mut World, most: u32) -> u32 {
    for n in 0..most {
        world.run_waiter(0, false);
        if world.waiters[0] != State::Runnable {
            return n;
        }
        world.now = world.now + Duration::from_micros(1);
    }
    most
}

/// It is awake, as a packet has come.
fn packet(world: &mut World) {
    world.packets = 1;
    world.waiters[0] = State::Runnable;
}

/// A server whose flush worker answers: a request is two packets, or one and a timer, and then there is silence while it is flushed.
#[test]
fn what_was_there_at_the_next_look_and_what_was_due_reward_no_spinning() {
    for is_due in [false, true] {
        let mut world = World::new(Progress::Adaptive);
        world.waiters[0] = State::Runnable;
        world.handover.waiter_came(world.now);
        let mut spun = 0;
        for round in 0..200 {
            packet(&mut world);
            world.run_waiter(0, false);
            // So long does it take to write what it brings.
            world.now = world.now + Duration::from_micros(9);
            if is_due {
                let looked = looks(&mut world, 8);
                world.now = world.now + Duration::from_micros(u64::from(8 - looked));
                world.deadline = Some(world.now);
                world.waiters[0] = State::Runnable;
            } else {
                packet(&mut world);
            }
            world.run_waiter(0, false);
            let looked = looks(&mut world, 200);
            spun += if round < 100 { 0 } else { looked };
            world.now = world.now + Duration::from_micros(120);
        }
        assert!(spun < 400, "{spun} looks in 100 rounds");
    }
}

/// A writer that waits for two disks at once: the first answer takes long, and the other one comes soon after.
#[test]
fn silences_after_a_post_are_learned_from_apart() {
    let mut world = World::new(Progress::Adaptive);
    let (mut first, mut second) = (0, 0);
    for round in 0..200 {
        let _ = world.handover.posted(world.now);
        for (silence, spun) in [(100, &mut first), (10, &mut second)] {
            world.waiters[0] = State::Runnable;
            world.handover.waiter_came(world.now);
            let looked = looks(&mut world, silence);
            *spun += if round < 100 { 0 } else { looked };
            world.now = world.now + Duration::from_micros(u64::from(silence - looked));
            packet(&mut world);
            world.turn();
            world.handover.found(world.now);
            world.run_waiter(0, true);
        }
    }
    assert!(first < 400, "{first} looks for what takes 100 us, in 100 rounds");
    assert_eq!(second, 1000, "looks for what takes 10 us");
}

/// Polls every microsecond for so long.
fn poll_for(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.now = world.now + Duration::from_micros(1);
        let _ = world.handover.polled(world.now);
    }
}

#[test]
fn what_a_post_takes_is_no_gap_between_polls() {
    for (posts, still) in [(true, true), (false, false)] {
        let mut world = World::new(Progress::Sleep);
        poll_for(&mut world, POLLER_AFTER * 2);
        world.now = world.now + Duration::from_micros(1);
        if posts {
            world.handover.posted(world.now);
        }
        world.now = world.now + POLL_GAP * 2;
        let _ = world.handover.polled(world.now);
        assert_eq!(world.handover.is_polled(world.now), still);
    }
    // But what it did before the post is.
    let mut world = World::new(Progress::Sleep);
    poll_for(&mut world, POLLER_AFTER * 2);
    world.now = world.now + POLL_GAP * 2;
    world.handover.posted(world.now);
    let _ = world.handover.polled(world.now);
    assert!(!world.handover.is_polled(world.now));
}

#[test]
fn posting_on_and_on_is_no_gap_between_polls() {
    let mut world = World::new(Progress::Sleep);
    poll_for(&mut world, POLLER_AFTER * 2);
    for _ in 0..100 {
        world.now = world.now + POLL_GAP;
        assert!(world.handover.posted(world.now));
        assert!(world.handover.is_polled(world.now));
    }
    // Until it polls no more.
    world.now = world.now + POLL_GAP * 2;
    assert!(!world.handover.is_polled(world.now));
    assert!(!world.handover.posted(world.now));
}

#[test]
fn what_a_turn_takes_is_no_gap_between_polls() {
    let mut world = World::new(Progress::Sleep);
    let turn = |world: &mut World, time| {
        let start = world.now + Duration::from_micros(1);
        let _ = world.handover.polled(start);
        world.now = start + time;
        world.handover.drove_until(start, world.now);
        world.handover.is_polled(world.now)
    };
    // One long turn makes no poller.
    assert!(!turn(&mut world, POLLER_AFTER * 100));
    for _ in 0..100 {
        assert!(turn(&mut world, POLL_GAP * 20));
    }
    // A pause is a gap.
    world.now = world.now + POLL_GAP * 2;
    assert!(!turn(&mut world, Duration::ZERO));
}

#[test]
fn a_consumer_that_answers_at_once_is_a_poller_again() {
    let mut world = World::new(Progress::Sleep);
    for _ in 0..10 {
        world.handover.distrust();
    }
    assert_eq!((world.handover.gap, world.handover.poller_after), (GAP_MIN, POLLER_AFTER_MAX));
    world.handover.answered(ANSWERS - 1, 0);
    world.handover.answered(0, 1);
    world.handover.answered(ANSWERS - 1, 0);
    assert_eq!(world.handover.gap, GAP_MIN, "one that it did not answer counts for all before it");
    world.handover.answered(1, 0);
    assert_eq!((world.handover.gap, world.handover.poller_after), (POLL_GAP, POLLER_AFTER));
    // Held up between answers, it stays one, and has the next lease; without an answer in between it does not.
    let lease_ends = |world: &mut World| {
        world.handover.thread = Thread::Leased { to_poller: true };
        let outlook = world.outlook();
        world.handover.plan(world.now, true, outlook)
    };
    assert!(matches!(lease_ends(&mut world), Plan::Rest(Some(_))));
    assert_eq!(world.handover.gap, POLL_GAP);
    let _ = lease_ends(&mut world);
    assert!(world.handover.gap < POLL_GAP);
}

#[test]
fn the_core_is_left_to_whoever_is_expected_to_answer() {
    let plan = |policy, awaited| {
        let mut world = World::new(policy);
        let outlook = Outlook { awaited, ..world.outlook() };
        world.handover.plan(world.now, true, outlook)
    };
    assert_eq!(plan(Progress::Adaptive, false), Plan::Again, "spinning pays until it is seen not to");
    assert!(matches!(plan(Progress::Adaptive, true), Plan::Watch(_)));
    assert_eq!(plan(Progress::Spin, true), Plan::Again);
}
