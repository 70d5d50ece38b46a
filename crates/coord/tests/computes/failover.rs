//! Who leads a store on several members, in simulated time: members are killed, paused, cut off in one direction or both, their media
//! hang and their clocks differ, under a seed; and a machine that is merely busy does not have them take over all the time.
//!
//! The rules are those of `takeover.rs` and `watch.rs`; `failover/world.rs` has what is modelled around them.
//! `REMANENCE_SEEDS=from..to` runs other seeds than the few of every test run; a failure names its seed, and the fewest of its faults that fail.

mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use remanence_pmem::crash_image::{Choices, Seeded};
use world::{Fault, MS, SECOND, World, schedule, suffer};

/// How long nobody could acknowledge a write, within so much time.
fn without(world: &mut World, time: u64) -> u64 {
    let mut without = 0;
    world.watch(time, |world| without += u64::from(world.primary().is_none()));
    without
}

/// Other members than this one, in some order.
fn others(world: &mut World, than: usize) -> Vec<usize> {
    let members = world.nodes.len();
    let first = world.choices.pick(members);
    (first..first + members).map(|n| n % members).filter(|n| *n != than).collect()
}

/// The longest time without a primary, in milliseconds, over many seeds, after something has happened to it.
fn worst(happens: impl Fn(usize, usize) -> Fault) -> u64 {
    let one = |seed: u64, members: usize| {
        let mut world = World::settled(seed, members);
        let quiet = world.choices.pick(300) as u64 * MS;
        assert_eq!(without(&mut world, quiet), 0, "seed {seed}: it was lost before anything happened");
        let primary = world.primary().expect("one leads");
        world.begin(happens(primary, members));
        let without = without(&mut world, 10 * SECOND);
        assert!(world.primary().is_some(), "seed {seed}: nobody leads\n{}", world.story());
        assert_eq!(
            world.takeovers,
            2,
            "seed {seed}: as many took over, one after the other\n{}",
            world.story()
        );
        without
    };
    remanence_effort::seeds(60).flat_map(|seed| [one(seed, 3), one(seed, 5)]).max().expect("some")
}

#[test]
fn a_primary_that_is_killed_stopped_or_cut_off_is_replaced_in_time() {
    let killed = worst(|primary, _| Fault::Kill(primary));
    let stopped = worst(|primary, _| Fault::Pause(primary));
    let cut = worst(|primary, _| Fault::Split(1 << primary));
    for (what, without) in [("killed", killed), ("stopped", stopped), ("cut off", cut)] {
        println!("{what}: {without} ms without a primary");
        assert!(without <= 400, "{what}: {without} ms without a primary");
    }
}

#[test]
fn a_primary_whose_medium_hangs_is_replaced_in_time() {
    let hangs = worst(|primary, _| Fault::Hang(primary));
    assert!((1000..=1250).contains(&hangs), "{hangs} ms without a primary");
}

#[test]
fn a_primary_that_nobody_hears_or_that_hears_nobody_is_replaced_in_time() {
    let mute = worst(|primary, _| Fault::Mute(primary));
    // It is heard, until it finds that it has too few members.
    let deaf = worst(|primary, _| Fault::Deaf(primary));
    println!("mute: {mute} ms, deaf: {deaf} ms without a primary");
    assert!(mute <= 400 && deaf <= 1700, "mute: {mute} ms, deaf: {deaf} ms without a primary");
}

#[test]
fn whoever_opens_a_store_for_long_is_waited_for() {
    for seed in remanence_effort::seeds(60) {
        for members in [3, 5] {
            let mut world = World::settled(seed, members);
            world.opens = (300 * MS, 900 * MS);
            let primary = world.primary().expect("one leads");
            world.begin(Fault::Kill(primary));
            world.run(3 * SECOND);
            assert!(world.primary().is_some(), "seed {seed}, {members}\n{}", world.story());
            assert_eq!(world.attempts, 2, "seed {seed}, {members}: one tries\n{}", world.story());
        }
    }
}

#[test]
fn whose_medium_hangs_holds_nobody_up() {
    for seed in remanence_effort::seeds(60) {
        let mut world = World::settled(seed, 5);
        let primary = world.primary().expect("one leads");
        let first = usize::from(primary == 0);
        world.begin(Fault::Hang(first));
        world.run(300 * MS);
        world.begin(Fault::Kill(primary));
        let without = without(&mut world, 3 * SECOND);
        assert!(without <= 500, "seed {seed}: {without} ms without a primary\n{}", world.story());
    }
}

#[test]
fn a_primary_that_was_replaced_and_is_back_disturbs_nobody() {
    for seed in remanence_effort::seeds(60) {
        for members in [3, 5] {
            let mut world = World::settled(seed, members);
            let primary = world.primary().expect("one leads");
            let fault = match seed % 2 {
                0 => Fault::Split(1 << primary),
                _ => Fault::Pause(primary),
            };
            let time = (400 + world.choices.pick(500)) as u64 * MS;
            world.begin(fault);
            world.run(time);
            world.end(fault);
            world.run(3 * SECOND);
            let story = world.story();
            assert_eq!(
                world.attempts, 2,
                "seed {seed}, {members}: one replaced it, and that is all\n{story}"
            );
            assert!(world.is_settled(), "seed {seed}, {members}\n{story}");
        }
    }
}

#[test]
fn a_member_that_is_cut_off_in_any_way_has_nobody_take_over() {
    for seed in remanence_effort::seeds(30) {
        for members in [3, 5] {
            for kind in 0..6 {
                let mut world = World::settled(seed, members);
                let primary = world.primary().expect("one leads");
                let all = others(&mut world, primary);
                let (one, other) = (all[0], all[1]);
                let fault = match kind {
                    0 => Fault::Cut(primary, one),
                    1 => Fault::Cut(one, primary),
                    2 => Fault::Deaf(one),
                    3 => Fault::Mute(one),
                    4 => Fault::Split(1 << one),
                    _ => Fault::Cut(one, other),
                };
                world.begin(fault);
                world.run(5 * SECOND);
                world.end(fault);
                world.run(5 * SECOND);
                let story = world.story();
                assert_eq!(world.attempts, 1, "seed {seed}, {members}, {fault:?}: only the first\n{story}");
                assert!(
                    world.is_settled(),
                    "seed {seed}, {members}, {fault:?}: {one} follows nobody\n{story}"
                );
            }
        }
    }
}

#[test]
fn a_member_that_slept_suspects_nobody_and_changes_nothing() {
    for seed in remanence_effort::seeds(60) {
        for members in [3, 5] {
            let mut world = World::settled(seed, members);
            let primary = world.primary().expect("one leads");
            let before: Vec<usize> = world.nodes.iter().map(|node| node.lost_leader).collect();
            for _ in 0..20 {
                let all = others(&mut world, primary);
                // Some sleep together, and all that is between two beats, or more, or many notices.
                let sleeping = &all[..1 + world.choices.pick(all.len())];
                let longest = [60, 300, 4000][world.choices.pick(3)];
                sleeping.iter().for_each(|n| world.begin(Fault::Pause(*n)));
                let time = (1 + world.choices.pick(longest)) as u64 * MS;
                world.run(time);
                sleeping.iter().for_each(|n| world.end(Fault::Pause(*n)));
                let awake = (400 + world.choices.pick(400)) as u64 * MS;
                world.run(awake);
            }
            world.run(3 * SECOND);
            let story = world.story();
            // Who was left without enough members may have ended: that is nobody's suspicion.
            let lost: Vec<usize> = world.nodes.iter().map(|node| node.lost_leader).collect();
            if world.takeovers == 1 && world.primary() == Some(primary) {
                assert_eq!(lost, before, "seed {seed}, {members}: followed nobody for a while\n{story}");
            }
            assert!(world.is_settled(), "seed {seed}, {members}\n{story}");
        }
    }
}

#[test]
fn who_slept_while_others_chose_a_primary_follows_it() {
    for seed in remanence_effort::seeds(60) {
        let mut world = World::settled(seed, 5);
        let primary = world.primary().expect("one leads");
        let all = others(&mut world, primary);
        // The primary dies, and somebody falls asleep at any moment of what follows.
        let later = world.choices.pick(400) as u64 * MS;
        let time = (500 + world.choices.pick(3000)) as u64 * MS;
        world.begin(Fault::Kill(primary));
        world.run(later);
        let sleeps = all
            .iter()
            .copied()
            .find(|n| {
                !matches!(
                    world.nodes[*n].machine.role(),
                    remanence_coord::takeover::Role::TakingOver | remanence_coord::takeover::Role::Primary
                )
            })
            .expect("some");
        world.begin(Fault::Pause(sleeps));
        world.run(time);
        let takeovers = world.takeovers;
        assert!(world.primary().is_some(), "seed {seed}: three of five are enough\n{}", world.story());
        world.end(Fault::Pause(sleeps));
        world.run(5 * SECOND);
        assert_eq!(world.takeovers, takeovers, "seed {seed}: {sleeps} slept\n{}", world.story());
    }
}

#[test]
fn nothing_is_due_while_all_is_calm() {
    for members in [3, 5] {
        let mut world = World::settled(1, members);
        let before: Vec<usize> = world.nodes.iter().map(|node| node.timeouts).collect();
        world.run(60 * SECOND);
        let after: Vec<usize> = world.nodes.iter().map(|node| node.timeouts).collect();
        assert_eq!(after, before, "no deadline comes where all are heard");
        assert_eq!(world.attempts, 1);
    }
}

#[test]
fn on_a_busy_machine_members_do_not_take_over_from_each_other_all_the_time() {
    let (mut takeovers, mut gone) = (0, 0);
    for seed in 0..10 {
        let mut world = World::settled(seed, 3);
        // For two minutes each of them stands still now and then, for up to 400 ms.
        let mut until = [0; 3];
        world.watch(120 * SECOND, |world| {
            let n = world.choices.pick(3);
            if world.choices.pick(700) == 0 {
                let end = world.now + world.choices.pick(400) as u64 * MS;
                if until[n] == 0 {
                    world.begin(Fault::Pause(n));
                }
                until[n] = end.max(until[n]);
            }
            for (n, until) in until.iter_mut().enumerate().filter(|(_, until)| **until > 0) {
                if *until <= world.now {
                    world.end(Fault::Pause(n));
                    *until = 0;
                }
            }
            gone += u64::from(world.primary().is_none());
        });
        takeovers += world.takeovers - 1;
    }
    println!("{takeovers} wrong takeovers in 20 minutes, {gone} ms without a primary");
    assert!(takeovers <= 25, "{takeovers} in 20 minutes");
}

/// The faults of a schedule, all of which end; then one leads soon, and goes on to.
fn endures(seed: u64, members: usize, faults: &[(u64, u64, Fault)], within: u64) {
    let mut world = World::new(seed, members);
    suffer(&mut world, faults, within);
    // What is on its way still comes, whatever it says.
    world.run(SECOND);
    let ended = world.now;
    while !world.is_settled() {
        assert!(
            world.now < ended + 15 * SECOND,
            "nobody leads, 15 s after all faults have ended\n{}",
            world.story()
        );
        world.run(100 * MS);
    }
    let (attempts, primary) = (world.attempts, world.primary());
    for _ in 0..30 {
        world.run(SECOND);
        assert_eq!(world.primary(), primary, "nothing happens, and another one leads\n{}", world.story());
    }
    assert_eq!(
        world.attempts,
        attempts,
        "nothing happens, and somebody tries to take over\n{}",
        world.story()
    );
}

#[test]
fn after_all_that_can_happen_one_leads_soon_and_goes_on_to() {
    const WITHIN: u64 = 15 * SECOND;
    for seed in remanence_effort::seeds(150) {
        for members in [3, 5] {
            let mut faults = schedule(&mut Seeded::new(seed ^ 0x5eed), members, WITHIN);
            let fails = |faults: &[(u64, u64, Fault)]| {
                catch_unwind(AssertUnwindSafe(|| endures(seed, members, faults, WITHIN))).is_err()
            };
            if !fails(&faults) {
                continue;
            }
            // The fewest that fail.
            let mut n = 0;
            while n < faults.len() {
                let mut fewer = faults.clone();
                fewer.remove(n);
                if fails(&fewer) { faults = fewer } else { n += 1 }
            }
            eprintln!("seed {seed}, {members} members, the fewest faults: {faults:?}");
            eprintln!("{} repeats it", remanence_effort::replay(seed));
            endures(seed, members, &faults, WITHIN);
        }
    }
}
