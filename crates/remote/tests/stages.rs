//! The same recipes that the checker proves, over the real engine, against a responder with explicit volatile stages, with
//! the power going at any event. A seed that fails is printed; `REMANENCE_SEED=N` runs that one alone, and
//! `REMANENCE_ROUNDS=N` runs so many times as many; `REMANENCE_WIDE=1` drops each step of each recipe of all configurations,
//! which takes some minutes of a core.

#[path = "stages/memory.rs"]
mod memory;
#[path = "stages/pair.rs"]
mod pair;

use std::collections::BTreeMap;

use pair::{Story, Verdict};
use remanence_persist::Config;
use remanence_persist::check::{Machine, Prover};
use remanence_persist::recipe::{Flush, Op, Recipe, Rq, Shape, Step, build, variants};
use remanence_persist::taxonomy::{Buffers, Domain, Order};

/// Of the configurations that are not always looked at, one in so many is: a number without a factor of 480, so that every axis is
/// looked at in all its values.
const OTHERS: usize = 7;

const SHAPES: [Shape; 5] =
    [Shape::SINGLETON, Shape::COMPOUND, Shape::COMPOUND_LONG, Shape::batch(3), Shape::list(3)];

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Every recipe of a configuration.
fn recipes(config: &Config) -> Vec<(Op, Recipe)> {
    let mut all = Vec::new();
    for shape in SHAPES {
        all.extend(Op::ALL.into_iter().map(|op| (op, build(config, op, shape))));
        all.extend(variants(config, shape));
    }
    all
}

#[test]
fn what_is_acknowledged_survives_a_crash_at_any_event_in_every_configuration() {
    let rounds = from_env("REMANENCE_ROUNDS").unwrap_or(3);
    let only = from_env("REMANENCE_SEED");
    let (mut seed, mut crashes, mut acknowledged, mut events) = (0, 0_u64, 0, 0);
    for round in 0..rounds {
        for config in Config::all() {
            for (op, recipe) in recipes(&config) {
                seed += 1;
                if only.is_some_and(|only| only != seed) {
                    continue;
                }
                let outcome = Story { config, recipe: &recipe, then: None, seed, checked: true }.run();
                assert_eq!(
                    outcome.verdict,
                    Verdict::Kept,
                    "seed {seed} (REMANENCE_SEED={seed} REMANENCE_ROUNDS={}): {config}, {} {}: {recipe}",
                    round + 1,
                    op.name(),
                    recipe.shape,
                );
                crashes += u64::from(outcome.crashed);
                acknowledged += outcome.acknowledged;
                events += outcome.events;
            }
        }
    }
    println!(
        "{seed} stories, {events} events, {crashes} crashes in the middle, {acknowledged} updates acknowledged"
    );
    assert!(only.is_some() || crashes > 3000 && acknowledged > 5000, "the crashes come at the wrong time");
}

#[test]
fn a_message_that_is_applied_late_never_goes_over_what_came_after_it() {
    // The places of a message are the server's until it has applied it: what is written there by other means waits, and
    // recovery does not apply the message again. Words, so that no update can be torn.
    let word = Shape { count: 1, ordered: false, word: true };
    let rounds = from_env("REMANENCE_ROUNDS").unwrap_or(3);
    let (mut stories, mut acknowledged) = (0, 0);
    for config in Config::all().into_iter().filter(|c| c.buffers == Buffers::Pm) {
        let send = build(&config, Op::Send, word);
        let late = variants(&config, word).into_iter().map(|(_, recipe)| recipe);
        for recipe in std::iter::once(send).chain(late).filter(|recipe| recipe.replay) {
            for op in Op::ALL {
                let then = build(&config, op, word);
                for seed in 1..=rounds {
                    let outcome =
                        Story { config, recipe: &recipe, then: Some(&then), seed, checked: true }.run();
                    assert_eq!(
                        outcome.verdict,
                        Verdict::Kept,
                        "seed {seed}: {config}: {recipe}, then {then}"
                    );
                    (stories, acknowledged) = (stories + 1, acknowledged + outcome.acknowledged);
                }
            }
        }
    }
    println!("{stories} stories, {acknowledged} updates acknowledged");
}

/// A recipe without one of its steps.
fn mutants(recipe: &Recipe) -> Vec<(String, Recipe)> {
    let mut all = Vec::new();
    for n in 0..recipe.steps.len() {
        let mut mutant = recipe.clone();
        let step = mutant.steps.remove(n);
        all.push((step.to_string(), mutant));
    }
    for n in 0..recipe.deferred.len() {
        let mut mutant = recipe.clone();
        let step = Step::Rsp(mutant.deferred.remove(n));
        all.push((format!("{step} (deferred)"), mutant));
    }
    all
}

/// Carries a mutant out until it fails.
fn kill(config: Config, mutant: &Recipe, limit: u64) -> Option<(Verdict, u64)> {
    (1..=limit).find_map(|seed| {
        let outcome = Story { config, recipe: mutant, then: None, seed, checked: false }.run();
        (outcome.verdict != Verdict::Kept).then_some((outcome.verdict, seed))
    })
}

#[test]
fn without_any_one_step_acknowledged_data_is_lost_or_nobody_goes_on() {
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    let mut alive = Vec::new();
    let more = [
        "page-cache+DDIO+DRAM",
        "page-cache+DDIO+PM+persistent",
        "DMP+DDIO+PM+persistent",
        "process+DDIO+DRAM+read",
    ];
    let more = more.map(|text| text.parse::<Config>().expect("a configuration"));
    let wide = from_env("REMANENCE_WIDE").is_some_and(|wide| wide != 0);
    // The paper's, on both transports, some of ours, and of the others one in so many.
    let chosen = |n: usize, config: &Config| {
        config.is_papers() || more.contains(config) || wide || n.is_multiple_of(OTHERS)
    };
    let all = Config::all().into_iter().enumerate().filter(|(n, config)| chosen(*n, config));
    let (mut configs, mut prover, mut needless, mut unseen) = (0, Prover::default(), 0_u64, 0_u64);
    let reads = |recipe: &Recipe| recipe.requester().any(|step| step == Rq::Flush(Flush::Read));
    // Our engine takes packets in the order of their numbers. With relaxed order what was sent later may be received earlier, which
    // counts where the RNIC's buffer is in the domain; only the checker's machine receives it so.
    let early = |config: &Config| config.domain == Domain::Wsp && config.order == Order::Relaxed;
    for config in all.map(|(_, config)| config) {
        configs += 1;
        for shape in [Shape::SINGLETON, Shape::COMPOUND] {
            let built = Op::ALL.into_iter().map(|op| build(&config, op, shape));
            for recipe in built.chain(variants(&config, shape).into_iter().map(|(_, recipe)| recipe)) {
                for (step, mutant) in mutants(&recipe) {
                    // Outside of the paper's some lists have a step that only a weaker configuration needs.
                    if !config.is_papers() && prover.prove(&mutant, &Machine::new(config)).holds() {
                        needless += 1;
                        continue;
                    }
                    match kill(config, &mutant, 6000) {
                        Some((verdict, _)) => *verdicts.entry(verdict).or_default() += 1,
                        // Our responder executes a READ before it takes the WRITE behind it, which others need not (IBA Vol 1,
                        // 9.5): that nobody waited for a READ in place of a FLUSH, only the checker's machine can tell.
                        None if !config.is_papers() && step == "Rq Comp" && reads(&recipe) => unseen += 1,
                        None if early(&config) && matches!(&step[..], "Rq Comp" | "Rq Flush") => unseen += 1,
                        None => alive.push(format!("{config}: {recipe} without {step}")),
                    }
                }
            }
        }
    }
    println!(
        "{configs} configurations, {verdicts:?}; {needless} that the checker proves all the same, {unseen} that it alone refutes"
    );
    assert!(alive.is_empty(), "these lists are as good as the recipes:\n{}", alive.join("\n"));
    let of = |verdict| verdicts.get(&verdict).copied().unwrap_or(0);
    assert!(of(Verdict::Lost) > 100 && of(Verdict::Order) > 5, "{verdicts:?}");
}

#[test]
fn the_recipe_of_another_configuration_loses_data_here() {
    // What a wrong declaration does (the checker's misuse matrix, live).
    for (declared, real, shape) in [
        ("MHP+DDIO+DRAM", "DMP+DDIO+DRAM", Shape::SINGLETON),
        ("DMP+no-DDIO+DRAM", "DMP+DDIO+DRAM", Shape::SINGLETON),
        ("WSP+DDIO+DRAM", "MHP+DDIO+DRAM", Shape::SINGLETON),
        ("WSP+DDIO+DRAM", "WSP+DDIO+DRAM+iwarp", Shape::SINGLETON),
        ("MHP+DDIO+DRAM", "MHP+DDIO+DRAM+relaxed", Shape::COMPOUND),
    ] {
        let [declared, real] = [declared, real].map(|text| text.parse::<Config>().expect("a configuration"));
        let recipe = build(&declared, Op::Write, shape);
        let found = kill(real, &recipe, 2000);
        assert!(
            matches!(found, Some((Verdict::Lost | Verdict::Order, _))),
            "{recipe} of {declared} on {real}: {found:?}"
        );
    }
}

#[test]
fn a_story_is_told_the_same_way_twice() {
    let config: Config = "DMP+no-DDIO+PM".parse().expect("a configuration");
    let recipe = build(&config, Op::Send, Shape::COMPOUND);
    for seed in 1..20 {
        let tell = || {
            let outcome = Story { config, recipe: &recipe, then: None, seed, checked: true }.run();
            (outcome.verdict, outcome.acknowledged, outcome.events, outcome.crashed)
        };
        assert_eq!(tell(), tell(), "seed {seed}");
    }
}
