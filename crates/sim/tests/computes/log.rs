//! The replicated log in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_coord::log::Mode;
use remanence_sim::cluster::log::{Log, Outcome, Plan};
use remanence_sim::cluster::{
    Aim, AimTarget, Blow, Clock, Fault, Kind, Moment, Params, Speeds, Way, run, run_plan,
};

use crate::clusters::{cluster, of, passes, what_is_not_guarded_is_found};

/// What seeds must meet in each run, of any group.
const ACTIVE: &[(&str, f64)] = &[
    ("acknowledged", 12.0),
    ("opened", 2.0),
    ("shut_out", 0.5),
    ("trims", 0.5),
    ("closed", 0.5),
    ("connected_again", 0.5),
    // Half of the runs let the usual writers come to their ends, and in half of them the last one loses all connections.
    ("ended", 0.1),
    ("cut_within", 0.25),
    ("pauses", 0.25),
    ("kills", 0.25),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("media_failed", 0.33),
    ("disks_lost", 0.125),
    ("lingered", 0.08),
    ("slow", 0.5),
    ("partitions", 0.16),
    ("aimed", 0.5),
];
/// Of a group that has others' logs to copy and to cut as well.
const COPIES: &[(&str, f64)] = &[("copied", 0.25), ("cut", 0.25)];

cluster! { Log;
    fn seeds_of_two_of_three() { 1000, of(3, 2), &[ACTIVE, COPIES].concat() }
    /// Neither can go on without the other: there is hardly ever something to cut.
    fn seeds_of_two_of_two() { 400, of(2, 2), &[ACTIVE, &[("copied", 1.0)]].concat() }
    fn seeds_of_three_of_five() { 300, of(5, 3), &[ACTIVE, COPIES].concat() }
    /// One has each record, so that the other one is rarely behind when a log is opened.
    fn seeds_of_one_of_two() { 300, of(2, 1), &[ACTIVE, &[("copied", 0.16), ("cut", 0.25)]].concat() }
    fn seeds_of_one_server() { 300, of(1, 1), ACTIVE }
    fn seeds_of_other_quorums() { 600, Params::default(), &[ACTIVE, COPIES].concat() }
    fn seeds_with_a_tail_word() { 300, Params { mode: Some(Mode::Compound), ..Params::default() }, &[ACTIVE, COPIES].concat() }
}

#[test]
fn servers_that_do_not_shut_older_writers_out_are_found_and_the_plan_is_shrunk() {
    what_is_not_guarded_is_found::<Log>();
}

/// A record that no server has yet is in the writer's memory until enough have it.
#[test]
fn a_writer_that_loses_all_connections_in_the_middle_of_an_append_comes_to_its_end() {
    let mut cut = 0;
    for seed in 0..20 {
        let outcome = run_plan(seed, &calm(), 0);
        passes(&outcome);
        cut += outcome.work.cut_within;
    }
    assert!(cut > 5, "{cut}");
}

/// The earlier writer hears all servers but the last one, the later one has the promises of that and of some that the earlier one hears too,
/// and what these have promised goes with their disks.
fn replaced_where_disks_are_lost(quorum: (u16, u16)) {
    let (servers, acks) = (usize::from(quorum.0), usize::from(quorum.1));
    let (mut lost, mut replaced) = (0, 0);
    for seed in remanence_effort::seeds(60) {
        let (earlier, later) = if seed % 2 == 0 { (servers, servers + 1) } else { (servers + 1, servers) };
        let mut plan = calm();
        (plan.servers, plan.acks, plan.segments) = (quorum.0, quorum.1, vec![400; servers]);
        (plan.writers, plan.records, plan.window) = (2, 5000, 4);
        let nodes = servers + 3;
        plan.speeds =
            Speeds { links: vec![1_000; nodes], jitter: 0, disks: vec![2_000; nodes], retry: 2 * MS };
        (plan.clocks, plan.grace) = (vec![Clock::default(); nodes], vec![MS / 2; 3]);
        let apart =
            |server, from, to, writer| fault(server, from, to - from, Kind::Partition(writer, Way::Both));
        plan.faults = vec![apart(servers - 1, 15 * MS, 45 * MS, earlier)];
        for server in 0..acks - 1 {
            // All make a new log.
            plan.faults.push(apart(server, 12 * MS, 45 * MS, later));
        }
        // One after the other.
        plan.speeds.links[servers - 2] = 40_000;
        for server in acks - 1..servers - 1 {
            plan.faults.extend([
                apart(server, 15 * MS, 30 * MS, earlier),
                fault(server, 28 * MS, MS, Kind::DiskLost),
                apart(server, 28 * MS, 45 * MS, later),
            ]);
        }
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        lost += outcome.counts.disks_lost;
        replaced += u64::from(outcome.work.opened > 2);
    }
    assert!(lost > 30 && replaced > 10, "{lost} {replaced}");
}

#[test]
fn a_server_without_its_disk_does_not_count_for_a_writer_that_was_replaced() {
    replaced_where_disks_are_lost((3, 2));
}

#[test]
fn servers_without_their_disks_confirm_nothing_for_each_other() {
    replaced_where_disks_are_lost((5, 3));
}

/// What a writer has sent before it lost its connections arrives when the places that it is for have later records.
#[test]
fn what_is_held_up_on_an_older_connection_of_the_same_writer_is_not_listened_to() {
    let mut held = 0;
    for seed in 0..30 {
        let mut plan = calm();
        plan.segments = vec![9; 3];
        (plan.records, plan.payload, plan.window, plan.pause) = (4000, 300, 16, 1_000);
        plan.speeds.links = vec![50_000; 5];
        let healthy = run_plan(seed, &plan, 0);
        let (Some(first), Some(last)) = (healthy.measured.first(), healthy.measured.last()) else {
            continue;
        };
        let begins = first.0 + 2 * MS + seed * 37_000;
        if last.0 < begins + 15 * MS {
            continue;
        }
        plan.faults = vec![fault(0, begins, 8 * MS, Kind::Linger(3))];
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        assert!(outcome.counts.lingered == 1 && outcome.work.connected_again >= 3, "{outcome}");
        held += 1;
    }
    assert!(held > 10, "{held}");
}

/// Three servers without chance, of which two are fast; a writer that appends one record at a time.
fn calm() -> Plan {
    let mut plan =
        Plan::draw(0, &Params { quorum: Some((3, 2)), mode: Some(Mode::Singleton), ..Params::default() });
    plan.segments = vec![400; 3];
    (plan.writers, plan.sessions, plan.records) = (1, 1, 200);
    (plan.payload, plan.window, plan.pause, plan.depth) = (40, 1, 100_000, 16);
    (plan.grace, plan.patience, plan.heals) = (vec![1_000_000; 2], 100_000_000, 60_000_000);
    (plan.reconnect, plan.follows) = (700_000, None);
    plan.speeds = Speeds { links: vec![1_000; 5], jitter: 0, disks: vec![2_000; 5], retry: 20_000_000 };
    plan.clocks = vec![Clock::default(); 5];
    plan.faults = Vec::new();
    plan
}

fn fault(node: usize, at: u64, lasts: u64, kind: Kind) -> (usize, Fault) {
    (0, Fault { at, lasts, node, kind, salt: 1 })
}

const MS: u64 = 1_000_000;

/// What those acknowledgements took at most that were asked for in a time.
fn slowest(outcome: &Outcome, from: u64, to: u64) -> u64 {
    let within = outcome.measured.iter().filter(|(at, _)| (from..to).contains(at));
    within.map(|(_, took)| *took).max().expect("something was acknowledged then")
}

#[test]
fn a_server_that_is_silent_slow_or_full_delays_no_acknowledgement() {
    let seed = (0..50).find(|seed| run_plan(*seed, &calm(), 0).work.appended > 100).expect("a long session");
    let healthy = run_plan(seed, &calm(), 0);
    passes(&healthy);
    let (begin, end) = (healthy.measured[0].0, healthy.measured.last().expect("many").0);
    let usual = slowest(&healthy, begin, end);
    let lasts = calm().heals - begin - 1;
    for (what, kind) in [
        ("silent", Kind::Pause),
        ("behind a slow disk", Kind::SlowDisk(2000)),
        ("behind a slow link", Kind::SlowLink(1000)),
        ("dead", Kind::Kill),
        ("without a medium", Kind::MediumFails),
        ("not heard", Kind::Partition(3, Way::Out)),
        ("not reached", Kind::Partition(3, Way::In)),
    ] {
        let mut plan = calm();
        plan.faults = vec![fault(2, begin + 1, lasts, kind)];
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        assert!(outcome.measured.len() > 50, "{what}: {outcome}");
        let slowest = slowest(&outcome, begin, end);
        assert!(slowest <= usual, "{what}: {slowest} ns, and {usual} ns if it is not");
    }
    let mut plan = calm();
    // Those of the others do not fill.
    plan.segments = vec![400, 400, 4];
    let outcome = run_plan(seed, &plan, 0);
    let slowest = slowest(&outcome, begin, end);
    assert!(
        slowest <= usual && outcome.measured.len() > 50,
        "full: {slowest} ns, and {usual} ns if it is not"
    );
}

#[test]
fn what_is_aimed_at_a_moment_happens_then_and_not_without_it() {
    for (moment, nth, whom, kills) in [
        (Moment::Adopt, 1, AimTarget::There, 1),
        (Moment::Promise, 2, AimTarget::Asker, 1),
        (Moment::Update, 0, AimTarget::Behind(2), 1),
        (Moment::Open, 0, AimTarget::There, 1),
        (Moment::Open, 1000, AimTarget::There, 0),
        (Moment::Doubt, 0, AimTarget::There, 0),
    ] {
        let mut plan = calm();
        let aim = Aim { moment, nth, delay: 0, lasts: MS, whom, blow: Blow::Kill };
        plan.faults = vec![fault(0, 0, plan.heals, Kind::Aimed(aim))];
        let outcome = run_plan(3, &plan, 0);
        passes(&outcome);
        assert_eq!((outcome.counts.aimed, outcome.counts.kills), (kills, kills), "{moment:?}: {outcome}");
    }
}

/// What has rotted is noticed, has no say, and is put right while the log is written.
#[test]
fn a_record_that_rots_is_found_and_put_right() {
    let mut rotted = 0;
    for seed in remanence_effort::seeds(20) {
        let mut plan = calm();
        (plan.writers, plan.sessions, plan.records) = (2, 8, 30);
        plan.speeds = Speeds { links: vec![1_000; 6], jitter: 0, disks: vec![2_000; 6], retry: 2 * MS };
        (plan.clocks, plan.grace) = (vec![Clock::default(); 6], vec![MS / 2; 3]);
        plan.faults = vec![fault(1, 20 * MS + seed % 20 * MS, MS, Kind::Rots)];
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        rotted += outcome.counts.rotted;
    }
    assert!(rotted > 5, "{rotted}");
}

/// Seeds that found something: 688 a server without its disk that was believed, 434 and 501 a group without enough servers that
/// have a say (42 of one of two as well), 2943 servers that had no room for what others had trimmed already,
/// 360 (three of five) a server that was begun anew below what it had.
#[test]
fn seeds_that_found_something() {
    let (usual, singleton) = (Params::default(), Some(Mode::Singleton));
    for (seed, params) in [
        (434, usual),
        (501, usual),
        (688, usual),
        (2943, Params { mode: singleton, ..of(5, 3) }),
        (42, of(2, 1)),
        (360, of(5, 3)),
    ] {
        passes(&run::<Log>(seed, &params));
        // Without what seeds did not draw then.
        let mut plan = Plan::draw(seed, &params);
        (plan.reconnect, plan.follows) = (700_000, None);
        passes(&run_plan(seed, &plan, 0));
    }
}

/// The records that it had acknowledged are on one other server, which then is away while the log is opened.
#[test]
fn a_server_that_comes_back_empty_in_the_same_epoch_loses_nothing() {
    let params = Params { quorum: Some((2, 2)), shrinking: 0, ..Params::default() };
    let mut rebuilt = 0;
    for seed in remanence_effort::seeds(200) {
        let mut plan = Plan::draw(seed, &params);
        (plan.writers, plan.sessions, plan.records) = (1, 1, 40);
        (plan.payload, plan.segments, plan.heals) = (16, vec![40; 2], 30 * MS);
        (plan.grace, plan.speeds.retry) = (vec![0; 2], MS / 2);
        plan.faults = vec![
            fault(0, 16 * MS + (seed % 200) * 10_000, MS, Kind::DiskLost),
            fault(1, 17 * MS + (seed % 200) * 10_000, 5 * MS, Kind::Pause),
            fault(
                1,
                23 * MS + (seed % 200) * 10_000,
                30 * MS - 23 * MS - (seed % 200) * 10_000 % (5 * MS),
                Kind::PowerLoss,
            ),
        ];
        plan.faults.iter_mut().for_each(|(_, fault)| fault.at = fault.at.min(29 * MS));
        plan.faults.iter_mut().for_each(|(_, fault)| fault.lasts = fault.lasts.min(30 * MS - fault.at));
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        rebuilt += outcome.counts.disks_lost;
    }
    assert!(rebuilt > 20, "{rebuilt}");
}
