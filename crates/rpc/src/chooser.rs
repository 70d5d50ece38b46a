//! Who copies: the event loop itself, or an engine with a thread of its own. Decided by what each was worth lately, and
//! never for an engine that has not shown that it pays.
//!
//! A copy that is handed over saves the event loop the time of the copy, if there is a core that does it meanwhile. With a
//! client and a server on two cores there is none: the engine's thread takes turns with one of the two, and what the server
//! gains the client loses, or the other way round, and a switch of threads on top of it. No look at the machine tells the two
//! cases apart (a core that is idle now may be the client's), so they are tried: most of the time the way that was better,
//! now and then the other one for a moment, and the rarer the longer it has not paid.
//!
//! What is compared is time from the end of one copy to the end of the next, for bytes: with a client that is slower than
//! both ways they are equal, and what is equal is copied at once, which is the shorter way. Sizes are kept apart by their
//! power of two. What is shorter than [`Chooser::new`]'s crossover is never handed over.

use std::time::Duration;

/// What copies a message: a CPU or the copy engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The caller, at once.
    Inline,
    /// The copy engine, while the caller goes on.
    Engine,
}

/// The engine must be so much faster to be preferred: what two measurements of the same differ by.
const MARGIN: f64 = 1.05;
/// Copies that one measurement looks at, and bytes.
const COPIES: u32 = 16;
const BYTES: u64 = 1 << 20;
/// Copies after a change of the way that tell of the change, and are not looked at: an engine's window.
const SETTLE: u32 = 8;
/// Measurements of one way before the other one is tried: at first, and when it never paid.
const EVERY_MIN: u32 = 4;
const EVERY_MAX: u32 = 512;
/// A silence of this length is the client's, and tells of neither way.
const SILENCE: Duration = Duration::from_millis(20);

/// What is known of copies of one power of two.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// Nanoseconds a byte.
    inline: Option<f64>,
    engine: Option<f64>,
    better: Way,
    /// The other way than the better one is being tried.
    trial: bool,
    every: u32,
    left: u32,
    settle: u32,
    copies: u32,
    bytes: u64,
    time: Duration,
}

impl Class {
    const NEW: Self = Self {
        inline: None,
        engine: None,
        better: Way::Inline,
        trial: false,
        every: EVERY_MIN,
        left: EVERY_MIN,
        settle: 0,
        copies: 0,
        bytes: 0,
        time: Duration::ZERO,
    };

    const fn way(&self) -> Way {
        match (self.better, self.trial) {
            (Way::Inline, false) | (Way::Engine, true) => Way::Inline,
            (Way::Engine, false) | (Way::Inline, true) => Way::Engine,
        }
    }

    fn copied(&mut self, took: Duration, bytes: u64) {
        if self.settle > 0 {
            self.settle -= 1;
            return;
        }
        self.copies += 1;
        self.bytes += bytes;
        self.time += took;
        if self.copies >= COPIES && self.bytes >= BYTES {
            self.measured();
        }
    }

    fn measured(&mut self) {
        let cost = self.time.as_nanos() as f64 / self.bytes as f64;
        let way = self.way();
        let known = match way {
            Way::Inline => &mut self.inline,
            Way::Engine => &mut self.engine,
        };
        // A trial says how it is now; between trials the better way's own figure follows slowly.
        *known = Some(match *known {
            Some(before) if !self.trial => before + (cost - before) / 4.0,
            _ => cost,
        });
        (self.copies, self.bytes, self.time) = (0, 0, Duration::ZERO);
        if self.trial {
            let pays = match (self.inline, self.engine) {
                (Some(inline), Some(engine)) => engine * MARGIN < inline,
                _ => false,
            };
            let better = if pays { Way::Engine } else { Way::Inline };
            let changed = better != self.better;
            self.every = if changed { EVERY_MIN } else { (self.every * 2).min(EVERY_MAX) };
            (self.better, self.trial, self.left) = (better, false, self.every);
        } else {
            self.left -= 1;
            self.trial = self.left == 0;
        }
        if self.way() != way {
            self.settle = SETTLE;
        }
    }
}

/// Chooses, and learns.
#[derive(Debug)]
pub(crate) struct Chooser {
    crossover: u64,
    classes: [Class; 64],
    last: Option<Duration>,
}

impl Chooser {
    /// One that hands over nothing that is shorter than `crossover`.
    pub(crate) const fn new(crossover: u64) -> Self {
        Self { crossover, classes: [Class::NEW; 64], last: None }
    }

    fn class(&mut self, len: u64) -> &mut Class {
        &mut self.classes[(63 - len.max(1).leading_zeros()) as usize]
    }

    /// Who copies so many bytes now.
    pub(crate) fn way(&mut self, len: u64) -> Way {
        if len < self.crossover { Way::Inline } else { self.class(len).way() }
    }

    /// A copy has come to its end. `now` counts from whenever the caller likes.
    pub(crate) fn copied(&mut self, now: Duration, len: u64) {
        let took = self.last.map(|last| now.saturating_sub(last));
        self.last = Some(now);
        if let Some(took) = took.filter(|took| *took < SILENCE && len >= self.crossover) {
            self.class(len).copied(took, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a copy takes so many nanoseconds, by either way.
    struct World {
        chooser: Chooser,
        now: Duration,
        handed: u32,
        copies: u32,
        /// What the first copies after a change of the way cost more, and who copied last.
        change: u64,
        before: (Way, u32),
    }

    impl World {
        fn new() -> Self {
            let (chooser, now, before) = (Chooser::new(8 << 10), Duration::ZERO, (Way::Inline, 0));
            Self { chooser, now, handed: 0, copies: 0, change: 0, before }
        }

        fn run(&mut self, copies: u32, len: u64, inline: u64, engine: u64) {
            (self.handed, self.copies) = (0, copies);
            for n in 0..copies {
                let way = self.chooser.way(len);
                self.handed += u32::from(way == Way::Engine);
                // What two measurements of the same differ by.
                let noise = u64::from(n % 7) * inline / 500;
                self.before = if way == self.before.0 { (way, self.before.1 + 1) } else { (way, 0) };
                let change = if self.before.1 < SETTLE { self.change } else { 0 };
                let took = if way == Way::Engine { engine } else { inline } + noise + change;
                self.now += Duration::from_nanos(took);
                self.chooser.copied(self.now, len);
            }
        }

        fn share(&self) -> f64 {
            f64::from(self.handed) / f64::from(self.copies)
        }
    }

    #[test]
    fn an_engine_that_is_slower_or_as_fast_gets_next_to_nothing() {
        for engine in [23_000, 20_000, 19_500] {
            let mut world = World::new();
            world.run(100_000, 32 << 10, 20_000, engine);
            assert!(world.share() < 0.01, "{engine}: {}", world.share());
            world.run(100_000, 32 << 10, 20_000, engine);
            assert!(world.share() < 0.005, "{engine}: {}", world.share());
        }
    }

    #[test]
    fn an_engine_that_pays_gets_nearly_all() {
        let mut world = World::new();
        world.run(100_000, 128 << 10, 80_000, 40_000);
        assert!(world.share() > 0.98, "{}", world.share());
    }

    #[test]
    fn what_a_change_of_the_way_costs_says_nothing_of_the_way() {
        let mut world = World { change: 400_000, ..World::new() };
        world.run(100_000, 128 << 10, 80_000, 40_000);
        assert!(world.share() > 0.98, "{}", world.share());
    }

    #[test]
    fn what_has_just_changed_is_looked_at_again_soon() {
        let mut world = World::new();
        // Nobody had a core for a long time, and then somebody has for a moment.
        world.run(100_000, 128 << 10, 80_000, 90_000);
        while world.chooser.way(128 << 10) == Way::Inline || world.chooser.class(128 << 10).trial {
            world.run(1, 128 << 10, 80_000, 40_000);
        }
        world.run(1000, 128 << 10, 80_000, 90_000);
        assert!(world.share() < 0.5, "{}", world.share());
    }

    #[test]
    fn what_changes_is_noticed_both_ways() {
        let mut world = World::new();
        world.run(100_000, 64 << 10, 40_000, 60_000);
        assert!(world.share() < 0.01);
        // A core has become idle.
        world.run(200_000, 64 << 10, 40_000, 20_000);
        assert!(world.share() > 0.5, "{}", world.share());
        // And is not any more.
        world.run(200_000, 64 << 10, 40_000, 60_000);
        assert!(world.share() < 0.2, "{}", world.share());
    }

    #[test]
    fn sizes_are_judged_apart_and_short_ones_never_handed_over() {
        let mut world = World::new();
        for _ in 0..1000 {
            world.run(64, 16 << 10, 10_000, 20_000);
            world.run(64, 1 << 20, 500_000, 250_000);
            world.run(64, 4 << 10, 5_000, 1);
            assert_eq!(world.handed, 0);
        }
        assert_eq!(world.chooser.way(16 << 10), Way::Inline);
        assert_eq!(world.chooser.way(1 << 20), Way::Engine);
        assert_eq!(world.chooser.way(0), Way::Inline);
        assert_eq!(world.chooser.way(u64::MAX), Way::Inline, "nothing is known of it");
    }

    #[test]
    fn a_silent_client_says_nothing_of_either_way() {
        let mut world = World::new();
        world.run(10_000, 64 << 10, 30_000_000, 1_000_000);
        assert_eq!(world.handed, 0, "nothing was measured");
    }
}
