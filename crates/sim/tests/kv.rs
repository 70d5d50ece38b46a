//! The replicated key-value store in simulated clusters: seeds, and what the simulator must be able to see.
//!
//! A failure says what replays it; `REMANENCE_EFFORT` and `REMANENCE_SEEDS` say how much is tried (`crates/effort`).

use remanence_pmem::crash_image::{Choices as _, Seeded};
use remanence_sim::cluster::kv::{Outcome, Params, Plan, Work, run, run_plan, run_shrunk};
use remanence_sim::cluster::{Clock, Counts, Fault, Kind, Speeds, Way};

const MS: u64 = 1_000_000;
/// Mean of what is added to a way through the network.
const JITTER: u64 = MS / 5;

fn passes(outcome: &Outcome) {
    assert!(outcome.passed(), "{outcome}");
}

/// Runs so many seeds, which together must meet so much of everything: a simulator that no longer does anything passes everything.
fn all(count: u64, quorum: Option<(u16, u16)>) {
    let params = Params { quorum, ..Params::default() };
    let (mut counts, mut work, mut runs) = (Counts::default(), Work::default(), 0);
    let seeds = remanence_effort::seeds(count);
    let are_all = seeds.are_all();
    for seed in seeds {
        let outcome = run(seed, &params);
        passes(&outcome);
        counts += outcome.counts;
        work += outcome.work;
        runs += 1;
    }
    println!("{runs} runs\n{counts:?}\n{work:?}");
    if are_all && quorum == Some((1, 1)) {
        assert!(
            counts.power_losses > runs / 2 && work.trimmed > 20 * runs && work.done > 20 * runs,
            "{work:?}"
        );
    } else if are_all {
        is_active(&counts, &work, runs);
        // Of two members that both acknowledge, neither can go on while the other one is promised away.
        assert!(work.reopened > 0 || quorum == Some((2, 2)), "{work:?}");
    }
}

fn is_active(counts: &Counts, work: &Work, runs: u64) {
    assert!(work.led > runs && work.stood_down > runs / 20 && work.reconnected > runs / 3, "{work:?}");
    assert!(work.rebuilt > runs / 5 && work.trimmed > 20 * runs && work.done > 20 * runs, "{work:?}");
    assert!(work.unknown > runs / 20 && work.connected > runs && work.scans > runs, "{work:?}");
    assert!(work.behind > runs / 20 && work.put_right > 0, "{work:?}");
    assert!(
        counts.pauses > runs / 5 && counts.kills > runs / 5 && counts.power_losses > runs / 2,
        "{counts:?}"
    );
    assert!(counts.power_losses_within > runs / 20 && counts.media_failed > runs / 5, "{counts:?}");
    assert!(
        counts.hung > runs / 5
            && counts.slow > runs / 5
            && counts.partitions > runs / 10
            && counts.disks_lost > runs / 20,
        "{counts:?}"
    );
}

#[test]
fn seeds_of_two_of_three() {
    all(1000, Some((3, 2)));
}

#[test]
fn seeds_of_two_of_two() {
    all(300, Some((2, 2)));
}

/// A store with a log, and nobody beside it.
#[test]
fn seeds_of_one_member() {
    all(100, Some((1, 1)));
}

#[test]
fn seeds_of_other_quorums() {
    all(600, None);
}

#[test]
fn a_line_that_replays_a_run_names_what_the_seed_does_not_draw() {
    for (seed, quorum) in [(1, (3, 2)), (2, (2, 2)), (3, (5, 3))] {
        let drawn = Plan::draw(seed, &Params::default());
        assert_eq!(run_plan(seed, &drawn, 0).replay(), format!("rem sim --cluster kv --seed {seed}"));
        let params = Params { quorum: Some(quorum), ..Params::default() };
        let line = run_plan(seed, &Plan::draw(seed, &params), 0).replay();
        let members = format!(" --servers {} --acks {}", quorum.0, quorum.1);
        assert_eq!(line.contains(&members), quorum != (drawn.members, drawn.acks), "{line}");
        assert!(!line.contains("--faults"), "all that were drawn are there: {line}");
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..6 {
        let plan = Plan::draw(seed, &Params::default());
        let (once, again) = (run_plan(seed, &plan, 0), run_plan(seed, &plan, 0));
        assert_eq!(once, again);
        assert_eq!(run_plan(seed, &plan, 50).hash, once.hash, "a trace changes nothing");
    }
    let hash = |seed| run(seed, &Params::default()).hash;
    assert_ne!(hash(1), hash(2));
}

/// Seeds in which images did not follow where one of them was rebuilt, and nothing was changed after that.
#[test]
fn seeds_that_found_something() {
    [3, 15].iter().for_each(|seed| passes(&run(*seed, &Params::default())));
}

/// Three members and two clients, without chance and without faults.
fn calm() -> Plan {
    let mut plan = Plan::draw(0, &Params { quorum: Some((3, 2)), ..Params::default() });
    (plan.clients, plan.readers, plan.operations, plan.keys) = (2, 0, 60, 3);
    (plan.pause, plan.notice, plan.lease, plan.depth) = (20 * MS, 200 * MS, 2000, 32);
    plan.speeds = Speeds { links: vec![1_000; 8], jitter: 0, disks: vec![2_000; 8], retry: 50 * MS };
    plan.clocks = vec![Clock::default(); 8];
    (plan.long, plan.scans, plan.rooms) = (false, false, true);
    plan.heals = 3000 * MS;
    plan.faults = Vec::new();
    plan
}

fn fault(node: usize, at: u64, lasts: u64, kind: Kind) -> (usize, Fault) {
    (0, Fault { at: at * MS, lasts: lasts * MS, node, kind, salt: 1 })
}

#[test]
fn where_nothing_happens_one_member_leads_and_all_is_known() {
    let outcome = run_plan(7, &calm(), 0);
    passes(&outcome);
    let work = outcome.work;
    assert_eq!((work.led, work.stood_down, work.reconnected, work.rebuilt), (1, 0, 0, 0), "{outcome}");
    assert_eq!((work.unknown, work.disbelieved, work.fenced), (0, 0, 0), "{outcome}");
    assert!(work.done > 100, "{outcome}");
}

/// So many members without faults, whose clocks a seed has drawn and whose links differ by chance. The first one leads at first.
fn members(seed: u64, members: u16) -> Plan {
    let acks = members / 2 + 1;
    let drawn = Plan::draw(seed, &Params { quorum: Some((members, acks)), ..Params::default() });
    let mut plan = Plan { members, acks, operations: 600, pause: 10 * MS, ..calm() };
    (plan.speeds.links, plan.speeds.disks) = (vec![1_000; 8], vec![2_000; 8]);
    plan.clocks = drawn.clocks.iter().cycle().take(8).copied().collect();
    plan
}

/// Runs these faults with some seeds: what the members did, and for how many milliseconds nothing was done, at most.
fn suffer(
    seeds: u64,
    jitter: u64,
    faults: impl Fn(u16, &mut Seeded) -> Vec<(usize, Fault)>,
) -> Vec<(Work, u64)> {
    let mut all = Vec::new();
    for seed in remanence_effort::seeds(seeds) {
        for count in [3, 5] {
            let faults = faults(count, &mut Seeded::new(seed));
            let heals = faults.iter().map(|(_, fault)| fault.ends()).max().unwrap_or(0) + 1000 * MS;
            let mut plan = Plan { faults, heals, ..members(seed, count) };
            plan.speeds.jitter = jitter;
            let outcome = run_plan(seed, &plan, 0);
            passes(&outcome);
            let Work { tried, led, .. } = outcome.work;
            println!("seed {seed}, {count} members: {tried} tried, {led} led, {} ms", outcome.still / MS);
            all.push((outcome.work, outcome.still / MS));
        }
    }
    all
}

fn is_cut_off(node: usize, members: u16, way: Way, at: u64, lasts: u64) -> Vec<(usize, Fault)> {
    let peers = (0..usize::from(members)).filter(|peer| *peer != node);
    peers.map(|peer| fault(node, at, lasts, Kind::Partition(peer, way))).collect()
}

#[test]
fn a_primary_that_is_stopped_or_cut_off_is_replaced_once_and_disturbs_nobody_when_it_is_back() {
    for (what, most) in [
        ("killed", 500),
        ("stopped", 500),
        ("without power", 500),
        ("cut off", 500),
        ("mute", 500),
        ("deaf", 1900),
    ] {
        let outcomes = suffer(4, JITTER, |members, choices| {
            let at = 1500 + choices.pick(100) as u64;
            match what {
                "killed" => vec![fault(0, at, 1200, Kind::Kill)],
                "stopped" => vec![fault(0, at, 1200, Kind::Pause)],
                "without power" => vec![fault(0, at, 1200, Kind::PowerLoss)],
                "cut off" => is_cut_off(0, members, Way::Both, at, 1200),
                "mute" => is_cut_off(0, members, Way::Out, at, 1200),
                _ => is_cut_off(0, members, Way::In, at, 1200),
            }
        });
        for (Work { tried, led, .. }, still) in outcomes {
            assert!(
                (tried, led) == (2, 2) && still <= most,
                "{what}: {tried} tried, {led} did, after {still} ms"
            );
        }
    }
}

#[test]
fn a_primary_whose_disk_does_not_answer_is_replaced_and_one_that_could_not_lead_holds_nobody_up() {
    for (Work { tried, led, .. }, still) in suffer(4, JITTER, |_, _| vec![fault(0, 1500, 3000, Kind::Hangs)])
    {
        assert!(
            (tried, led) == (2, 2) && (900..1700).contains(&still),
            "{tried} tried, {led} did, after {still} ms"
        );
    }
    let hangs = |members: u16, choices: &mut Seeded| {
        // Of three, the other two are needed.
        let next = usize::from(members == 5);
        let at = 1600 + choices.pick(300) as u64;
        [(0, at, 1500, Kind::Kill), (next, 1300, 2000, Kind::Hangs)]
            .map(|(node, at, lasts, kind)| fault(node, at, lasts, kind))
            .into_iter()
            .filter(|(_, fault)| fault.kind == Kind::Kill || members == 5)
            .collect()
    };
    for (Work { tried, led, .. }, still) in suffer(4, JITTER, hangs) {
        assert!((tried, led) == (2, 2) && still <= 900, "{tried} tried, {led} did, after {still} ms");
    }
}

#[test]
fn whoever_takes_long_to_take_over_is_waited_for() {
    let slow = |_, choices: &mut Seeded| {
        let times = 10_000 + choices.pick(5_000) as u32;
        vec![fault(1, 899, 4000, Kind::SlowLink(times)), fault(0, 900, 4000, Kind::Kill)]
    };
    for (Work { tried, led, .. }, still) in suffer(8, 0, slow) {
        assert!(led == 2 && tried <= 4, "{tried} tried, {led} did, after {still} ms");
    }
}

#[test]
fn a_member_that_is_cut_off_in_any_way_has_nobody_take_over() {
    for way in [Way::Both, Way::In, Way::Out] {
        for from in [None, Some(0), Some(2)] {
            let cut = |members, choices: &mut Seeded| {
                let at = 800 + choices.pick(100) as u64;
                match from {
                    None => is_cut_off(1, members, way, at, 2500),
                    Some(peer) => vec![fault(1, at, 2500, Kind::Partition(peer, way))],
                }
            };
            for (Work { tried, led, .. }, _) in suffer(2, JITTER, cut) {
                assert_eq!((tried, led), (1, 1), "{way:?} of {from:?}");
            }
        }
    }
}

#[test]
fn a_member_that_sleeps_suspects_nobody() {
    let sleeps = |members: u16, choices: &mut Seeded| {
        let (mut at, mut faults) = (800, Vec::new());
        for _ in 0..12 {
            let node = 1 + choices.pick(usize::from(members) - 1);
            // All that is between two beats, or more, or many notices.
            let longest = [60, 300, 2000][choices.pick(3)];
            let lasts = 1 + choices.pick(longest) as u64;
            faults.push(fault(node, at, lasts, Kind::Pause));
            at += lasts + 300 + choices.pick(400) as u64;
        }
        faults
    };
    for (Work { tried, led, doubted, .. }, _) in suffer(10, JITTER, sleeps) {
        assert_eq!((tried, led, doubted), (1, 1, 0));
    }
}

#[test]
fn who_slept_while_others_chose_a_primary_follows_it() {
    let sleeps = |members: u16, choices: &mut Seeded| {
        let later = 900 + choices.pick(300) as u64;
        let node = 2 + choices.pick(usize::from(members) - 2);
        let mut faults = vec![fault(0, 800, 5000, Kind::Kill)];
        // Of three, the two others are needed.
        if members == 5 {
            faults.push(fault(node, later, 500 + choices.pick(2500) as u64, Kind::Pause));
        }
        faults
    };
    for (Work { tried, led, .. }, _) in suffer(8, JITTER, sleeps) {
        assert_eq!((tried, led), (2, 2));
    }
}

/// For a minute members stand still now and then, for up to 400 ms.
#[test]
fn on_a_busy_machine_members_do_not_take_over_from_each_other_all_the_time() {
    let busy = |members: u16, choices: &mut Seeded| {
        let (mut at, mut faults) = (800, Vec::new());
        while at < 60_000 {
            let node = choices.pick(members.into());
            faults.push(fault(node, at, 1 + choices.pick(400) as u64, Kind::Pause));
            at += 1 + choices.pick(1400) as u64;
        }
        faults
    };
    let takeovers: u64 = suffer(4, JITTER, busy).iter().map(|(work, _)| work.led - 1).sum();
    assert!(takeovers <= 30, "{takeovers} in eight minutes");
}

#[test]
fn a_member_that_has_lost_its_disk_is_sent_an_image_while_the_store_is_served() {
    let faults = vec![fault(2, 800, 300, Kind::DiskLost)];
    let outcome = run_plan(7, &Plan { faults, ..calm() }, 0);
    passes(&outcome);
    let work = outcome.work;
    assert_eq!((work.led, work.rebuilt, outcome.counts.disks_lost), (1, 1, 1), "{outcome}");
    assert_eq!((work.unknown, work.disbelieved), (0, 0), "{outcome}");
}

/// In the middle of the copy it loses its power: what had come of it is worth nothing.
#[test]
fn who_dies_within_its_rebuilding_is_sent_all_of_it_again() {
    let dies = |_, choices: &mut Seeded| {
        let within = Kind::PowerLossWithin(choices.pick(40) as u64);
        vec![fault(2, 1500, 300, Kind::DiskLost), fault(2, 1801, 200, within)]
    };
    for (Work { led, rebuilt, .. }, _) in suffer(8, JITTER, dies) {
        assert!(led == 1 && (1..=2).contains(&rebuilt), "{led} led, {rebuilt} images were sent");
    }
}

/// A primary that is cut off from all others, and not from those who read there, is replaced, and a client that comes anew writes elsewhere.
/// Whoever has replaced it is gone when it hears the others again, and one of them has promised its log to that one.
#[test]
fn a_primary_that_was_replaced_and_hears_others_again_does_not_go_on() {
    for seed in remanence_effort::seeds(8) {
        let mut choices = Seeded::new(seed);
        let mut plan = Plan { clients: 3, readers: 2, heals: 6000 * MS, ..members(seed, 3) };
        let lasts = 1000 + choices.pick(1000) as u64;
        plan.faults = is_cut_off(0, 3, Way::Both, 1000, lasts);
        plan.faults.push(fault(5, 900, 700, Kind::Kill));
        plan.faults.push(fault(1, 1000 + lasts - choices.pick(150) as u64, 3000, Kind::Kill));
        passes(&run_plan(seed, &plan, 0));
    }
}

#[test]
fn a_member_whose_image_alone_fails_is_behind_until_it_follows_again() {
    let image =
        |_, choices: &mut Seeded| vec![fault(2, 800 + choices.pick(200) as u64, 1500, Kind::DiskFails(1))];
    for (work, still) in suffer(4, JITTER, image) {
        let Work { led, behind, trimmed, unknown, .. } = work;
        assert!(
            led == 1 && behind > 0 && trimmed > 0 && unknown == 0 && still <= 300,
            "{work:?}, {still} ms"
        );
    }
}

/// Nobody has looked at anything before the log has no room any more, and two images are too few for it to be trimmed.
#[test]
fn an_image_that_has_to_be_sent_at_once_is_looked_at_first() {
    for seed in 0..4 {
        let faults = vec![fault(1, 800, 300, Kind::DiskLost)];
        let mut plan = Plan { members: 2, acks: 2, long: true, check: 1 << 40, faults, ..calm() };
        plan.operations = 300;
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        let Work { led, rebuilt, put_right, .. } = outcome.work;
        assert!(led <= 2 && rebuilt == 1 && put_right == 1, "{outcome}");
    }
}

#[test]
fn clients_that_believe_a_primary_which_was_replaced_are_found_and_the_plan_is_shrunk() {
    let params = Params { quorum: Some((3, 2)), guarded: false, ..Params::default() };
    let outcome = (0..40).find_map(|seed| {
        // The primary is cut off from the other members and not from its clients, of which one comes anew.
        let mut plan = Plan { guarded: false, clients: 3, readers: 2, ..calm() };
        plan.speeds.retry = 2000 * MS;
        plan.faults = vec![
            fault(1, 300, 100, Kind::SlowDisk(2)),
            fault(0, 800, 2000, Kind::Partition(1, Way::Both)),
            fault(0, 800, 2000, Kind::Partition(2, Way::Both)),
            fault(5, 900, 400, Kind::Kill),
        ];
        plan.faults.iter_mut().enumerate().for_each(|(n, fault)| fault.0 = n);
        Some(run_shrunk(seed, &plan, &params)).filter(|outcome| !outcome.passed())
    });
    let outcome = outcome.expect("nobody read anything old, and nothing guards against it");
    let failure = outcome.failure.as_ref().expect("it failed");
    assert!(failure.what.contains("no register could have had"), "{outcome}");
    println!("{outcome}");
    assert!(
        outcome.plan.faults.iter().all(|(n, _)| *n != 0),
        "the slow disk has nothing to do with it: {outcome}"
    );
    assert_eq!(run_plan(outcome.seed, &outcome.plan, 100), outcome, "what is left replays the failure");
    assert!(outcome.replay().starts_with(&format!("rem sim --cluster kv --seed {}", outcome.seed)));
}
