//! What somebody says of a service so that it can be simulated, and how it is: [`simulate`].
//!
//! Whether one such service could have told its clients what they were told is decided by the service itself: what it does with a command is all
//! that can be asked of it. The search is that of `history.rs`, for any state.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::str::FromStr;

use remanence_coord::log::Mode;
use remanence_coord::replicated::StateMachine;

use super::{Plan, Replicated, Work};
use crate::cluster::{self, Params};
use crate::history::{Done, Lasts, candidates, with};

/// Steps of the search for an order, after which it is given up: what nothing is known of may have been carried out at any moment.
const STEPS: usize = 50_000;

/// A service of which somebody says what its clients ask for: then it runs in simulated clusters.
pub trait Simulated: StateMachine + Clone + Eq + Debug + 'static {
    /// The command line that calls [`simulate`] with what follows: what replays a run begins so.
    const COMMAND: &'static str;

    /// Bytes that a snapshot and eight answers have together at most, in a simulated run. The logs there have room for so much and no more, so
    /// that they are full now and then. A command may have a fifth of it.
    const BYTES: u64 = 1024;

    /// A command of a client. `number` is any number, which the seed has drawn; the last client, who comes when all faults are over, sends those of
    /// 4, 3, 2, 1 and 0.
    fn command(number: u64) -> Vec<u8>;

    /// Whether one service could have told its clients this. `false`: that was not found out. What is here finds it out for any service; the
    /// more an answer says of the state, the sooner.
    ///
    /// # Errors
    /// None could have. A sentence.
    fn judge(history: &[Told]) -> Result<bool, String> {
        judge::<Self>(history)
    }
}

/// A command, and what its client was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The client that asked, by its number.
    pub client: usize,
    /// What was asked for.
    pub command: Vec<u8>,
    /// When it was begun.
    pub invoked: u64,
    /// When it was answered; [`NEVER`](crate::history::NEVER) if nothing is known of it.
    pub returned: u64,
    /// What it was answered with; nothing if nothing is known of it.
    pub answer: Option<Vec<u8>>,
}

impl Lasts for &Told {
    fn ends(&self) -> (u64, u64) {
        (self.invoked, self.returned)
    }
}

/// Looks for an order of the commands, each at a moment between its two ends, in which a service gives these answers. What nothing is known of
/// is at a moment behind its beginning, or nowhere.
fn judge<A: Simulated>(history: &[Told]) -> Result<bool, String> {
    let mut all: Vec<&Told> = history.iter().collect();
    all.sort_by_key(|told| told.ends());
    let answered = all.iter().filter(|told| told.answer.is_some()).count();
    let mut open: Vec<(Done, usize, A)> = vec![((0, Vec::new()), 0, A::default())];
    let mut seen: BTreeSet<(Done, Vec<u8>)> = BTreeSet::new();
    // The answers until then, and what could not come next.
    let (mut furthest, mut other) = (0, None);
    while let Some((done, so_far, state)) = open.pop() {
        if so_far == answered {
            return Ok(true);
        }
        if seen.len() > STEPS {
            return Ok(false);
        }
        let (mut steps, mut asked): (Vec<(usize, A)>, Vec<&[u8]>) = (Vec::new(), Vec::new());
        for n in candidates(&all, &done) {
            let told = all[n];
            // Of those that ask for the same, and of which nothing is known, the first one is as good as any.
            if told.answer.is_none() && asked.contains(&&told.command[..]) {
                continue;
            }
            let mut after = state.clone();
            let answer = after.apply(&told.command);
            match &told.answer {
                Some(known) if *known != answer => {
                    if so_far >= furthest {
                        (furthest, other) = (so_far, Some((told, answer, after)));
                    }
                }
                // It changes nothing: if there is an order at all, there is one with it here.
                Some(_) if after == state => {
                    steps = vec![(n, after)];
                    break;
                }
                Some(_) => steps.push((n, after)),
                None => {
                    asked.push(&told.command);
                    if after != state {
                        steps.push((n, after));
                    }
                }
            }
        }
        // The last one is looked at first: what was answered, and of that what began first.
        steps.sort_by_key(|(n, _)| (all[*n].answer.is_some(), usize::MAX - n));
        for (n, state) in steps {
            let done = with(&done, n);
            if seen.insert((done.clone(), state.snapshot())) {
                open.push((done, so_far + usize::from(all[n].answer.is_some()), state));
            }
        }
    }
    let other = other.map_or_else(String::new, |(told, answer, state)| {
        format!(", and {told:?} has the answer {answer:?} then, in the state {state:?}")
    });
    Err(format!(
        "no service could have told its clients this: {furthest} of {answered} answers have an order{other}"
    ))
}

/// Why a simulation did not pass: the arguments mean nothing, or the story of the run that failed.
#[derive(Clone, PartialEq, Eq)]
pub struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Debug is the text as well: it is what a program prints whose `main` returns it.
impl Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failed {}

/// Runs what is asked for, by the words of `rem sim --cluster`: `--seeds 0..500`, or `--seed 7`, and of the faults of that seed only these,
/// `--faults 0,2` or `--faults none`; `--operations N`, `--servers N --acks N`, `--mode singleton`. What all of them did together, counted.
///
/// # Errors
/// The first run that failed, after the smallest that was found to fail as well: what happened in it, and the line that replays it. Or words that
/// mean nothing.
pub fn simulate<A: Simulated>(arguments: &str) -> Result<Work, Failed> {
    let asked = Asked::parse(arguments).map_err(Failed)?;
    let params = Params { quorum: asked.quorum, mode: asked.mode, ..Params::default() };
    let mut work = Work::default();
    for seed in asked.seeds {
        let mut plan = Plan::<A>::draw(seed, &params);
        if let Some(faults) = &asked.faults {
            plan.keep(faults);
        }
        plan.operations = asked.operations.unwrap_or(plan.operations);
        let outcome = cluster::run_shrunk::<Replicated<A>>(seed, &plan, &params);
        if !outcome.passed() {
            return Err(Failed(outcome.to_string()));
        }
        work += outcome.work;
    }
    Ok(work)
}

/// What is to be run.
struct Asked {
    seeds: Range<u64>,
    faults: Option<Vec<usize>>,
    operations: Option<u32>,
    quorum: Option<(u16, u16)>,
    mode: Option<Mode>,
}

impl Asked {
    fn parse(arguments: &str) -> Result<Self, String> {
        let mut asked = Self { seeds: 0..0, faults: None, operations: None, quorum: None, mode: None };
        let (mut servers, mut acks) = (None, None);
        let mut words = arguments.split_whitespace();
        while let Some(option) = words.next() {
            let value = words.next().unwrap_or_default();
            let is_taken = match option {
                "--seed" => value.parse().is_ok_and(|seed: u64| {
                    asked.seeds = seed..seed.saturating_add(1);
                    true
                }),
                "--seeds" => value.split_once("..").is_some_and(|(from, to)| {
                    from.parse().is_ok_and(|from| {
                        asked.seeds = from..to.parse().unwrap_or(from);
                        true
                    })
                }),
                "--faults" => {
                    let numbers = value.split(',').filter(|_| value != "none").map(str::parse);
                    asked.faults = numbers.collect::<Result<_, _>>().ok();
                    asked.faults.is_some()
                }
                "--operations" => put(&mut asked.operations, value),
                "--servers" => put(&mut servers, value),
                "--acks" => put(&mut acks, value),
                "--mode" => {
                    asked.mode = Mode::ALL.into_iter().find(|mode| mode.name() == value);
                    asked.mode.is_some()
                }
                _ => false,
            };
            if !is_taken {
                return Err(format!("`{option} {value}` means nothing here; a simulation takes {TAKES}"));
            }
        }
        asked.quorum = servers.zip(acks);
        let fits = servers.is_some() == acks.is_some()
            && asked
                .quorum
                .is_none_or(|(servers, acks)| (1..=16).contains(&servers) && (1..=servers).contains(&acks));
        if asked.seeds.is_empty() || !fits {
            return Err(format!("a simulation takes {TAKES}"));
        }
        Ok(asked)
    }
}

fn put<T: FromStr>(to: &mut Option<T>, value: &str) -> bool {
    *to = value.parse().ok();
    to.is_some()
}

const TAKES: &str = "--seed N or --seeds A..B; --faults N,N or none; --operations N; --servers N with --acks N; --mode singleton or compound";

#[cfg(test)]
mod tests {
    use remanence_codec::Malformed;

    use super::*;
    use crate::history::NEVER;

    /// A queue: a byte goes in behind the others, and nothing takes the first one out.
    #[derive(Clone, PartialEq, Eq, Default, Debug)]
    struct Queue(Vec<u8>);

    impl StateMachine for Queue {
        fn apply(&mut self, command: &[u8]) -> Vec<u8> {
            match command {
                [] if self.0.is_empty() => Vec::new(),
                [] => vec![self.0.remove(0)],
                [byte, ..] => {
                    self.0.push(*byte);
                    Vec::new()
                }
            }
        }

        fn snapshot(&self) -> Vec<u8> {
            self.0.clone()
        }

        fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
            Ok(Self(snapshot.to_vec()))
        }
    }

    impl Simulated for Queue {
        const COMMAND: &'static str = "queue";

        fn command(number: u64) -> Vec<u8> {
            if number.is_multiple_of(2) { Vec::new() } else { vec![number as u8] }
        }
    }

    fn told(command: &[u8], invoked: u64, returned: u64, answer: &[u8]) -> Told {
        let answer = (returned != NEVER).then(|| answer.to_vec());
        Told { client: 0, command: command.to_vec(), invoked, returned, answer }
    }

    #[test]
    fn what_no_queue_could_have_told_is_seen() {
        let (one, two) = (told(&[1], 1, 4, &[]), told(&[2], 2, 3, &[]));
        let pop = |invoked, returned, answer: &[u8]| told(&[], invoked, returned, answer);
        let fair = [one.clone(), two.clone(), pop(5, 6, &[2]), pop(7, 8, &[1]), pop(9, 10, &[])];
        assert_eq!(Queue::judge(&fair), Ok(true));
        for (what, rest) in [
            ("what was put in is lost", [pop(5, 6, &[1]), pop(7, 8, &[])]),
            ("it comes out twice", [pop(5, 6, &[1]), pop(7, 8, &[1])]),
            ("nobody had put it in", [pop(5, 6, &[1]), pop(7, 8, &[3])]),
        ] {
            let history = [&[one.clone(), two.clone()][..], &rest].concat();
            let why = Queue::judge(&history).expect_err(what);
            assert!(why.contains("3 of 4 answers"), "{what}: {why}");
        }
        let late = [told(&[1], 1, 2, &[]), told(&[2], 3, 4, &[]), pop(5, 6, &[2])];
        assert!(Queue::judge(&late).is_err(), "the first one came first");
    }

    #[test]
    fn what_is_not_known_may_have_been_carried_out_once_and_not_before_it_began() {
        let unknown = told(&[9], 3, NEVER, &[]);
        let pop = |invoked, returned, answer: &[u8]| told(&[], invoked, returned, answer);
        for answer in [&[9][..], &[]] {
            assert_eq!(Queue::judge(&[unknown.clone(), pop(5, 6, answer)]), Ok(true));
        }
        assert!(Queue::judge(&[unknown.clone(), pop(1, 2, &[9])]).is_err(), "it had not begun");
        assert!(Queue::judge(&[unknown, pop(5, 6, &[9]), pop(7, 8, &[9])]).is_err(), "once");
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        // Each of these may be anywhere, and the last answer is none that any of them leads to.
        let mut history: Vec<Told> = (0..40).map(|n| told(&[n], n.into(), NEVER, &[])).collect();
        history.push(told(&[], 100, 101, &[99]));
        assert_eq!(Queue::judge(&history), Ok(false));
    }

    #[test]
    fn words_that_mean_nothing_are_refused_and_a_line_replays_its_run() {
        for words in [
            "",
            "--seed",
            "--seed x",
            "--seeds 3..3",
            "--seed 1 --acks 1",
            "--seed 1 --servers 2 --acks 3",
            "--sede 1",
        ] {
            let why = simulate::<Queue>(words).expect_err(words).to_string();
            assert!(why.contains("--seed N or --seeds A..B"), "{words}: {why}");
        }
        let work = simulate::<Queue>("--seeds 0..3").expect("they pass");
        let again: Result<Vec<Work>, Failed> =
            (0..3).map(|seed| simulate::<Queue>(&format!("--seed {seed}"))).collect();
        let mut sum = Work::default();
        again.expect("they pass").into_iter().for_each(|work| sum += work);
        assert_eq!(work, sum);
    }

    /// One that forgets to say in its snapshot what it has.
    #[derive(Clone, PartialEq, Eq, Default, Debug)]
    struct Forgetful(Queue);

    impl StateMachine for Forgetful {
        fn apply(&mut self, command: &[u8]) -> Vec<u8> {
            self.0.apply(command)
        }

        fn snapshot(&self) -> Vec<u8> {
            self.0.snapshot().split_last().map_or(Vec::new(), |(_, rest)| rest.to_vec())
        }

        fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
            Queue::restore(snapshot).map(Self)
        }
    }

    impl Simulated for Forgetful {
        const COMMAND: &'static str = "forgetful";

        fn command(number: u64) -> Vec<u8> {
            Queue::command(number)
        }
    }

    #[test]
    fn a_service_whose_snapshot_lacks_something_is_found_and_its_line_replays_it() {
        let why = simulate::<Forgetful>("--seeds 0..200").expect_err("it is wrong").to_string();
        let line = why.lines().last().and_then(|line| line.split_once("forgetful ")).expect("a line").1;
        let again = simulate::<Forgetful>(line).expect_err("it fails again").to_string();
        assert_eq!(again.lines().last(), why.lines().last());
    }
}
