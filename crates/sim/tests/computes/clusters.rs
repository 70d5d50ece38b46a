//! What the tests of all clusters of services have in common: loops over seeds, what those must meet together, and what every run must be.
//!
//! A failure says what replays it; `REMANENCE_EFFORT` and `REMANENCE_SEEDS` say how much is tried (`crates/effort`).

use std::collections::BTreeMap;

use remanence_sim::cluster::{Counters as _, Counts, Outcome, Params, Plan, Service, run, run_plan};

pub(crate) fn passes<S: Service>(outcome: &Outcome<S>) {
    assert!(outcome.passed(), "{outcome}");
}

/// So many servers, of which so many acknowledge.
pub(crate) fn of(servers: u16, acks: u16) -> Params {
    Params { quorum: Some((servers, acks)), ..Params::default() }
}

/// What seeds did together, if they are a test's own.
pub(crate) struct Met(Option<(BTreeMap<&'static str, u64>, u64)>);

impl Met {
    /// A simulator that no longer does anything passes everything: in so many runs each of these must have happened so often, on average.
    pub(crate) fn at_least(&self, least: &[(&str, f64)]) {
        let Some((counted, runs)) = &self.0 else { return };
        let few = least.iter().filter(|(name, often)| counted[name] as f64 <= often * *runs as f64);
        let few: Vec<String> = few.map(|(name, often)| format!("{name} ({often} a run)")).collect();
        assert!(few.is_empty(), "{runs} runs have met too little: {}", few.join(", "));
    }
}

/// Runs so many seeds.
pub(crate) fn all<S: Service>(count: u64, params: &Params) -> Met {
    let (mut counts, mut work, mut runs) = (Counts::default(), S::Work::default(), 0);
    let seeds = remanence_effort::seeds(count);
    let are_all = seeds.are_all();
    for seed in seeds {
        let outcome = run::<S>(seed, params);
        passes(&outcome);
        counts += outcome.counts;
        work += outcome.work;
        runs += 1;
    }
    println!("{runs} runs\n{counts:?}\n{work:?}");
    Met(are_all.then(|| (work.fields().into_iter().chain(counts.fields()).collect(), runs)))
}

pub(crate) fn one_seed_is_one_run<S: Service>() {
    for seed in 0..6 {
        let plan = Plan::<S>::draw(seed, &Params::default());
        let (once, again) = (run_plan(seed, &plan, 0), run_plan(seed, &plan, 0));
        assert_eq!(once, again);
        assert_eq!(run_plan(seed, &plan, 50).hash, once.hash, "a trace changes nothing");
    }
    let hash = |seed| run::<S>(seed, &Params::default()).hash;
    assert_ne!(hash(1), hash(2));
}

/// What replays a run says which servers it had, if its seed would draw others, and what makes it shorter.
pub(crate) fn a_line_replays_what_its_seed_does_not_draw<S: Service>() {
    for (seed, (servers, acks)) in [(1, (3, 2)), (2, (2, 2)), (3, (5, 3))] {
        let drawn = Plan::<S>::draw(seed, &Params::default());
        let usual = format!("rem sim --cluster {} --seed {seed}", S::NAME);
        assert_eq!(run_plan(seed, &drawn, 0).replay(), usual);
        let mut params = of(servers, acks);
        // The one that the seed does not draw.
        params.mode = drawn.own.mode().map(|drawn| {
            remanence_coord::log::Mode::ALL.into_iter().find(|mode| *mode != drawn).expect("two")
        });
        let mut plan = Plan::<S>::draw(seed, &params);
        let line = run_plan(seed, &plan, 0).replay();
        let is_other = (servers, acks) != (drawn.servers, drawn.acks);
        assert_eq!(line.contains(&format!(" --servers {servers} --acks {acks}")), is_other, "{line}");
        let mode = params.mode.map(|mode| format!(" --mode {}", mode.name()));
        assert!(mode.is_none_or(|mode| line.contains(&mode)), "{line}");
        assert!(!line.contains("--faults"), "all that were drawn are there: {line}");
        plan.keep(&[]);
        let (name, length) = plan.own.lengths().swap_remove(0);
        *length += 1;
        let length = format!(" --{name} {}", plan.own.lengths()[0].1);
        let shorter = run_plan(seed, &plan, 0).replay();
        assert!(shorter.ends_with(&length), "{shorter}");
    }
}

/// A run that failed as it had to: its plan was shrunk, and replays the failure.
pub(crate) fn is_shrunk_and_replayed<S: Service>(outcome: &Outcome<S>, params: &Params) {
    println!("{outcome}");
    let again = run_plan(outcome.seed, &outcome.plan, params.trace_lines);
    assert_eq!(&again, outcome, "what is left replays the failure");
    let line = format!("rem sim --cluster {} --seed {}", S::NAME, outcome.seed);
    assert!(outcome.replay().starts_with(&line));
}

/// Without what guards against whoever was replaced a seed fails.
pub(crate) fn what_is_not_guarded_is_found<S: Service>() {
    let params = Params { guarded: false, ..of(3, 2) };
    let failed = (0..2000).map(|seed| run::<S>(seed, &params)).find(|outcome| !outcome.passed());
    let outcome = failed.expect("nothing guards, and nothing was noticed");
    assert!(outcome.plan.faults.len() <= Plan::<S>::draw(outcome.seed, &params).faults.len());
    is_shrunk_and_replayed(&outcome, &params);
}

/// The tests that every cluster has: of these seeds, so many with such parameters, which must meet so much together.
macro_rules! cluster {
    ($service:ty; $($(#[$doc:meta])* fn $name:ident() { $count:literal, $params:expr, $least:expr })+) => {
        $($(#[$doc])*
        #[test]
        fn $name() {
            $crate::clusters::all::<$service>($count, &$params).at_least($least);
        })+

        #[test]
        fn one_seed_is_one_run() {
            $crate::clusters::one_seed_is_one_run::<$service>();
        }

        #[test]
        fn a_line_that_replays_a_run_names_what_the_seed_does_not_draw() {
            $crate::clusters::a_line_replays_what_its_seed_does_not_draw::<$service>();
        }
    };
}
pub(crate) use cluster;
