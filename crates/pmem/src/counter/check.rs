//! Every state of a small word: stores, write-backs, evictions, both failures, and recoveries that fail themselves, in
//! every order there is.
//!
//! The machine. Each chunk has a visible and a durable value. An update stores one chunk, has it written back,
//! waits, and is then acknowledged. At any time any line may be evicted (durable becomes visible), the power may go
//! (visible becomes durable), or the process may die (both stay). Recovery reads the chunks, waits until they are
//! durable, and hands the value out; it can be cut short as well. The rules that compute chunks and values are those
//! of the live code (`rotating::recover`, `register::recover`, `register::update`).
//!
//! The claim, in every reachable state: recovery finds the value acknowledged last, or the one that was being set;
//! what it hands out counts as acknowledged from then on. A model that could not fail would prove nothing, so each
//! broken variant must be refuted.

use std::collections::{HashSet, VecDeque};

use super::{register, rotating};

const CHUNKS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    Greatest,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Sound,
    /// An update is acknowledged when it is written back, and not when that has been waited for.
    NoWait,
    /// Recovery hands out what it read at once.
    RecoveryDoesNotSync,
    /// Updates are acknowledged two by two.
    TwoUpdatesUnderWay,
    /// A store may be torn in halves (of two bits).
    Torn,
    /// The register is recovered as if it were a counter.
    WrongRule,
    /// The word for a chunk leaves out what the chunk held before.
    ForgetsTheChunk,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    durable: [u64; CHUNKS],
    visible: [u64; CHUNKS],
    next: usize,
    /// What the last `set` or recovery told its caller.
    told: u64,
    /// Values being set since, the newest last.
    setting: Vec<u64>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    /// Half of the store to this chunk is there; this is the whole.
    Half(usize, u64),
    Stored,
    Down,
    /// Recovery has read this value and waits for it to be durable.
    Read(u64),
}

/// Takes a step, as what it does to a state.
type Step<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;

struct Machine {
    rule: Rule,
    variant: Variant,
    /// Values are below this.
    values: u64,
}

impl Machine {
    const fn start() -> State {
        let setting = Vec::new();
        State { durable: [0; CHUNKS], visible: [0; CHUNKS], next: 0, told: 0, setting, phase: Phase::Idle }
    }

    /// The value that the writer believes in.
    fn now(state: &State) -> u64 {
        state.setting.last().copied().unwrap_or(state.told)
    }

    fn recover(&self, words: &[u64; CHUNKS]) -> Result<(u64, usize), String> {
        match self.rule {
            Rule::Xor if self.variant != Variant::WrongRule => Ok((register::recover(words), 0)),
            Rule::Xor | Rule::Greatest => rotating::recover(words)
                .map_err(|chunk| format!("chunk {chunk} of {words:?} is called damaged")),
        }
    }

    /// Every state that may follow, or what is wrong with this one.
    fn next(&self, state: &State) -> Result<Vec<State>, String> {
        let mut following = Vec::new();
        let mut to = |change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            following.push(next);
        };
        for chunk in (0..CHUNKS).filter(|chunk| state.durable[*chunk] != state.visible[*chunk]) {
            to(&|s| s.durable[chunk] = s.visible[chunk]);
        }
        to(&|s| (s.phase, s.visible) = (Phase::Down, s.durable));
        to(&|s| s.phase = Phase::Down);
        let lazy = self.variant == Variant::TwoUpdatesUnderWay;
        match state.phase {
            Phase::Stored if lazy && state.setting.len() < 2 => self.begin(state, &mut to),
            Phase::Idle => self.begin(state, &mut to),
            _ => {}
        }
        match state.phase {
            Phase::Idle => {}
            Phase::Half(chunk, word) => to(&|s| {
                s.visible[chunk] = word;
                s.phase = Phase::Stored;
            }),
            Phase::Stored => to(&|s| {
                if self.variant != Variant::NoWait {
                    s.durable = s.visible;
                }
                s.told = Self::now(s);
                s.setting.clear();
                s.phase = Phase::Idle;
            }),
            Phase::Down => {
                let (found, next) = self.recover(&state.visible)?;
                if found != state.told && !state.setting.contains(&found) {
                    return Err(format!("told {}, setting {:?}, found {found}", state.told, state.setting));
                }
                let handed_out = self.variant == Variant::RecoveryDoesNotSync;
                to(&|s| {
                    s.next = next;
                    if handed_out {
                        (s.told, s.phase) = (found, Phase::Idle);
                        s.setting.clear();
                    } else {
                        s.phase = Phase::Read(found);
                    }
                });
            }
            Phase::Read(found) => to(&|s| {
                s.durable = s.visible;
                (s.told, s.phase) = (found, Phase::Idle);
                s.setting.clear();
            }),
        }
        Ok(following)
    }

    fn begin(&self, state: &State, to: &mut Step<'_>) {
        let now = Self::now(state);
        let lowest = if self.rule == Rule::Greatest { now + 1 } else { 0 };
        for value in (lowest..self.values).filter(|value| *value != now) {
            let chunk = state.next;
            let held = if self.variant == Variant::ForgetsTheChunk { 0 } else { state.visible[chunk] };
            let word = match self.rule {
                Rule::Greatest => value,
                Rule::Xor => register::update(held, now, value),
            };
            let half = (state.visible[chunk] & !1) | (word & 1);
            to(&|s| {
                s.setting.push(value);
                s.next = (chunk + 1) % CHUNKS;
                if self.variant == Variant::Torn {
                    s.visible[chunk] = half;
                    s.phase = Phase::Half(chunk, word);
                } else {
                    s.visible[chunk] = word;
                    s.phase = Phase::Stored;
                }
            });
        }
    }

    /// How many states there are, or the shortest way to one that breaks the claim.
    fn explore(&self) -> Result<usize, (String, Vec<State>)> {
        let mut seen = HashSet::from([Self::start()]);
        let mut line = VecDeque::from([(Self::start(), None)]);
        let mut visited: Vec<(State, Option<usize>)> = Vec::new();
        while let Some((state, from)) = line.pop_front() {
            visited.push((state.clone(), from));
            let here = visited.len() - 1;
            match self.next(&state) {
                Ok(following) => {
                    for next in following {
                        if seen.insert(next.clone()) {
                            line.push_back((next, Some(here)));
                        }
                    }
                }
                Err(why) => {
                    let way = std::iter::successors(Some(here), |at| visited[*at].1);
                    let mut way: Vec<State> = way.map(|at| visited[at].0.clone()).collect();
                    way.reverse();
                    return Err((why, way));
                }
            }
        }
        Ok(seen.len())
    }
}

#[test]
fn every_state_of_a_counter_and_of_a_register_recovers() {
    for (rule, values) in [(Rule::Greatest, 9), (Rule::Xor, 4)] {
        let states = Machine { rule, variant: Variant::Sound, values }.explore();
        let states = states.unwrap_or_else(|(why, way)| panic!("{rule:?}: {why}: {way:#?}"));
        println!("{rule:?}: {states} states");
        assert!(states > 1000, "{rule:?}: only {states} states");
    }
}

#[test]
fn each_broken_variant_is_refuted() {
    use Variant::{ForgetsTheChunk, NoWait, RecoveryDoesNotSync, Torn, TwoUpdatesUnderWay, WrongRule};
    let broken = [
        (Rule::Greatest, NoWait),
        (Rule::Greatest, RecoveryDoesNotSync),
        (Rule::Greatest, Torn),
        (Rule::Xor, NoWait),
        (Rule::Xor, RecoveryDoesNotSync),
        (Rule::Xor, TwoUpdatesUnderWay),
        (Rule::Xor, Torn),
        (Rule::Xor, WrongRule),
        (Rule::Xor, ForgetsTheChunk),
    ];
    for (rule, variant) in broken {
        let values = if rule == Rule::Greatest { 9 } else { 4 };
        let refuted = Machine { rule, variant, values }.explore();
        let Err((why, way)) = refuted else {
            panic!("{rule:?}, {variant:?}: {refuted:?} states, and no fault")
        };
        println!("{rule:?}, {variant:?}: {why}, after {} steps", way.len() - 1);
    }
}
