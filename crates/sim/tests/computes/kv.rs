//! The replicated key-value store in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_pmem::crash_image::{Choices as _, Seeded};
use remanence_sim::cluster::kv::{Kv, Plan, Work};
use remanence_sim::cluster::{
    Aim, AimTarget, Blow, Clock, Fault, Kind, Moment, Params, Speeds, Way, run, run_plan, run_shrunk,
};

use crate::clusters::{cluster, is_shrunk_and_replayed, of, passes};

const MS: u64 = 1_000_000;
/// Mean of what is added to a way through the network.
const JITTER: u64 = MS / 5;

/// What seeds must meet in each run, of any store on several members.
const ACTIVE: &[(&str, f64)] = &[
    ("led", 1.0),
    ("stood_down", 0.05),
    ("reconnected", 0.25),
    ("rebuilt", 0.2),
    ("trimmed", 20.0),
    ("done", 20.0),
    ("unknown", 0.05),
    ("connected", 1.0),
    ("scans", 1.0),
    ("behind", 0.05),
    ("put_right", 0.0),
    ("pauses", 0.2),
    ("kills", 0.2),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("media_failed", 0.2),
    ("hung", 0.2),
    ("slow", 0.2),
    ("partitions", 0.1),
    ("disks_lost", 0.05),
];
/// Of one of which a primary can go on while another member is promised away.
const REOPENED: &[(&str, f64)] = &[("reopened", 0.0)];

cluster! { Kv;
    fn seeds_of_two_of_three() { 1000, of(3, 2), &[ACTIVE, REOPENED].concat() }
    /// They both acknowledge.
    fn seeds_of_two_of_two() { 300, of(2, 2), ACTIVE }
    /// A store with a log, and nobody beside it.
    fn seeds_of_one_member() { 100, of(1, 1), &[("power_losses", 0.5), ("trimmed", 20.0), ("done", 20.0)] }
    fn seeds_of_other_quorums() { 600, Params::default(), &[ACTIVE, REOPENED].concat() }
}

/// Seeds in which images did not follow where one of them was rebuilt, and nothing was changed after that; in which a disk hung while its
/// member was ending; in which a primary had put a superblock into an image whose disk had failed, and trimmed the log; in which a ledger
/// whose disk had failed said later that an image is whole which was written to since; and in which a primary slept when it had heard that a
/// member needs an image.
#[test]
fn seeds_that_found_something() {
    [3, 15, 1394].iter().for_each(|seed| passes(&run::<Kv>(*seed, &Params::default())));
    [1306, 1741, 4095, 4305].iter().for_each(|seed| passes(&run::<Kv>(*seed, &of(3, 2))));
}

/// Three members and two clients, without chance and without faults.
fn calm() -> Plan {
    let mut plan = Plan::draw(0, &of(3, 2));
    (plan.clients, plan.readers, plan.operations, plan.keys) = (2, 0, 60, 3);
    (plan.pause, plan.notice, plan.lease, plan.depth) = (20 * MS, 200 * MS, 2000, 32);
    plan.speeds = Speeds { links: vec![1_000; 8], jitter: 0, disks: vec![2_000; 8], retry: 50 * MS };
    plan.clocks = vec![Clock::default(); 8];
    (plan.long, plan.scans, plan.rooms, plan.scrub) = (false, false, true, 0);
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
    let drawn = Plan::draw(seed, &of(members, acks));
    let mut plan = Plan { servers: members, acks, ..calm() };
    (plan.operations, plan.pause) = (600, 10 * MS);
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
            println!("seed {seed}, {count} members: {tried} tried, {led} led, {} ms", outcome.measured / MS);
            all.push((outcome.work, outcome.measured / MS));
        }
    }
    all
}

#[test]
fn what_rots_in_an_image_is_put_right_from_the_others_and_a_superblock_is_as_much_of_it_as_a_value() {
    let (mut rotted, mut repaired, mut images, mut rebuilt) = (0, 0, 0, 0);
    for seed in remanence_effort::seeds(40) {
        let mut choices = Seeded::new(seed);
        let mut plan = members(seed, 3);
        plan.scrub = 100;
        // Every other time images are not sent, as nobody is away for long, and values stay for a while.
        let is_calm = seed % 2 == 0;
        if is_calm {
            (plan.segments, plan.pause, plan.keys) = (40, 150 * MS, 10);
        }
        let mut faults = Vec::new();
        let mut at = 500;
        for _ in 0..6 {
            at += 200 + choices.pick(800) as u64;
            let node = choices.pick(3);
            let (_, rots) =
                fault(node, at, 1 + choices.pick(if is_calm { 20 } else { 400 }) as u64, Kind::Rots);
            faults.push((0, Fault { salt: seed << 8 ^ at, ..rots }));
            // Sometimes another one needs an image, or leads by then.
            if choices.pick(2) == 0 && !is_calm {
                let other = (node + 1 + choices.pick(2)) % 3;
                let kind = [Kind::Kill, Kind::PowerLoss, Kind::DiskLost][choices.pick(3)];
                faults.push(fault(other, at + choices.pick(600) as u64, 300, kind));
            }
        }
        plan.heals = (at + 2000) * MS;
        plan.faults = faults;
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        rotted += outcome.counts.rotted;
        let Work { repaired: served, repaired_images, rebuilt: sent, .. } = outcome.work;
        (repaired, images, rebuilt) = (repaired + served, images + repaired_images, rebuilt + sent);
    }
    assert!(
        rotted > 60 && repaired > 10 && images > rotted / 8 && rebuilt > 10,
        "{rotted} rotted, {repaired} and {images} put right, {rebuilt} rebuilt"
    );
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
fn a_primary_whose_disk_fails_ends_and_one_other_takes_over() {
    let fails = |_, choices: &mut Seeded| {
        let kind = [Kind::MediumFails, Kind::DiskFails(0)][choices.pick(2)];
        vec![fault(0, 1500 + choices.pick(100) as u64, 3000, kind)]
    };
    for (Work { tried, led, .. }, still) in suffer(8, JITTER, fails) {
        assert!((tried, led) == (2, 2) && still <= 400, "{tried} tried, {led} did, after {still} ms");
    }
}

/// Where the others are too few, a member whose disk has failed would have to be one of those who lead.
#[test]
fn nobody_leads_with_a_member_whose_disk_has_failed_and_that_one_does_not_try() {
    let too_few = |members: u16, choices: &mut Seeded| {
        let half = usize::from(members / 2);
        let mut faults: Vec<_> = (0..half)
            .map(|n| fault(half + 1 + n, 1300 + choices.pick(50) as u64, 4000, Kind::Kill))
            .collect();
        faults.push(fault(choices.pick(2), 1500, 2000, Kind::MediumFails));
        faults
    };
    for (Work { tried, led, .. }, still) in suffer(8, JITTER, too_few) {
        assert!(tried <= 3 && led <= 3, "{tried} tried, {led} did, after {still} ms");
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
    let outcomes = suffer(8, JITTER, dies);
    for (Work { led, rebuilt, .. }, _) in &outcomes {
        assert!(*led == 1 && *rebuilt <= 2, "{led} led, {rebuilt} images were sent");
    }
    // One that dies when all of it is durable, and before it has said so, was sent none as far as is known.
    let rebuilt: u64 = outcomes.iter().map(|(work, _)| work.rebuilt).sum();
    assert!(rebuilt >= outcomes.len() as u64 / 2, "{rebuilt} images were sent");
}

/// A primary that is cut off from all others, and not from those who read there, is replaced, and a client that comes anew writes elsewhere.
/// Whoever has replaced it is gone when it hears the others again, and one of them has promised its log to that one.
#[test]
fn a_primary_that_was_replaced_and_hears_others_again_does_not_go_on() {
    for seed in remanence_effort::seeds(8) {
        let mut choices = Seeded::new(seed);
        let mut plan = Plan { heals: 6000 * MS, ..members(seed, 3) };
        (plan.clients, plan.readers) = (3, 2);
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
        let mut plan = Plan { servers: 2, acks: 2, faults, ..calm() };
        (plan.long, plan.check, plan.operations) = (true, 1 << 40, 300);
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        let Work { led, rebuilt, put_right, .. } = outcome.work;
        assert!(led <= 2 && rebuilt == 1 && put_right == 1, "{outcome}");
    }
}

#[test]
fn clients_that_believe_a_primary_which_was_replaced_are_found_and_the_plan_is_shrunk() {
    let params = Params { guarded: false, ..of(3, 2) };
    let outcome = (0..40).find_map(|seed| {
        // The primary is cut off from the other members and not from its clients, of which one comes anew.
        let mut plan = Plan { guarded: false, ..calm() };
        (plan.clients, plan.readers, plan.speeds.retry) = (3, 2, 2000 * MS);
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
    assert!(
        outcome.plan.faults.iter().all(|(n, _)| *n != 0),
        "the slow disk has nothing to do with it: {outcome}"
    );
    is_shrunk_and_replayed(&outcome, &params);
}

/// All stand still for most of the time, so that each is late whenever it looks at its clock.
#[test]
fn where_everybody_is_late_always_somebody_leads() {
    let late = |members: u16, choices: &mut Seeded| {
        let mut faults = vec![fault(0, 1500, 28_000, Kind::Kill)];
        for node in 0..usize::from(members) {
            let mut at = 1400 + choices.pick(60) as u64;
            while at < 29_000 {
                let lasts = 110 + choices.pick(40) as u64;
                faults.push(fault(node, at, lasts, Kind::Pause));
                at += lasts + 5 + choices.pick(8) as u64;
            }
        }
        faults
    };
    for (Work { led, .. }, still) in suffer(4, JITTER, late) {
        assert!(led >= 2 && still < 26_000, "{led} led, after {still} ms");
    }
}

/// It has died when all others have promised their logs to it: they have their turns as before.
#[test]
fn where_whoever_takes_over_dies_one_of_the_others_tries() {
    let dies = |members: u16, choices: &mut Seeded| {
        let aim = Aim {
            moment: Moment::Promise,
            // The last of those that are left promises.
            nth: u32::from(members) - 3,
            delay: 1 + choices.pick(1000) as u64 * 100,
            lasts: 400 * MS,
            whom: AimTarget::Asker,
            blow: Blow::Kill,
        };
        vec![fault(0, 1500, 4000, Kind::Kill), fault(0, 1501, 3000, Kind::Aimed(aim))]
    };
    for (Work { tried, led, .. }, still) in suffer(8, JITTER, dies) {
        assert!(tried <= led + 1 && still < 1500, "{tried} tried, {led} led, after {still} ms");
    }
}

/// It has heard that nobody serves, and sleeps until somebody does: that it does not try is checked in each run.
#[test]
fn who_sleeps_before_its_turn_listens_first() {
    for jitter in [JITTER, 25 * JITTER] {
        let sleeps = |members: u16, choices: &mut Seeded| {
            // Of three, the two others are needed.
            let (first, count) = (1 + choices.pick(2) as u32, if members == 5 { 1 } else { 0 });
            let mut faults = vec![fault(0, 1500, 6000, Kind::Kill)];
            for nth in first..first + count {
                let (delay, lasts) = (choices.pick(40) as u64, 1000 + choices.pick(1500) as u64);
                let (moment, whom, blow) = (Moment::Doubt, AimTarget::There, Blow::Pause);
                let aim = Aim { moment, nth, delay: delay * jitter / 10, lasts: lasts * MS, whom, blow };
                faults.push(fault(0, 1499, 3000, Kind::Aimed(aim)));
            }
            faults
        };
        for (Work { led, .. }, _) in suffer(12, jitter, sleeps) {
            assert!(led >= 2, "{led} led");
        }
    }
}

/// Found by kills of real members: one of them waited for half a minute beside a primary that was healthy, or for ever, where nobody wrote.
#[test]
fn members_that_are_killed_while_a_store_is_made_are_all_taken_in_though_nobody_writes() {
    for seed in remanence_effort::seeds(300) {
        let mut choices = Seeded::new(seed);
        let mut plan = members(seed, 3);
        (plan.clients, plan.readers, plan.operations, plan.pause) = (1, 0, 1, MS);
        plan.speeds.jitter = JITTER;
        let mut at = 1;
        for _ in 0..1 + choices.pick(8) {
            let within = [100, 300, 1000][choices.pick(3)];
            at += choices.pick(within) as u64;
            let which = 1 + choices.pick(7);
            for node in (0..3).filter(|node| which & 1 << node != 0) {
                // They are started again at once, or when another one has taken over.
                let within = [30, 300, 1500][choices.pick(3)];
                plan.faults.push(fault(node, at, 1 + choices.pick(within) as u64, Kind::Kill));
            }
        }
        // Nobody writes for longer than a member may take no part.
        plan.heals = (at + 20_000) * MS;
        passes(&run_plan(seed, &plan, 0));
    }
}
