//! The replicated log in simulated clusters: seeds, and what the simulator must be able to see.
//!
//! A failure says what replays it; `REMANENCE_EFFORT` and `REMANENCE_SEEDS` say how much is tried (`crates/effort`).

use remanence_coord::log::Mode;
use remanence_sim::cluster::log::{Outcome, Params, Plan, Work, run, run_plan};
use remanence_sim::cluster::{Aim, Blow, Clock, Counts, Fault, Kind, Moment, Speeds, Way, Whom};

fn passes(outcome: &Outcome) {
    assert!(outcome.passed(), "{outcome}");
}

/// What so many runs did, if they are the test's own: then they must have met so much.
type Met = Option<(Counts, Work, u64)>;

fn all(count: u64, params: &Params) -> Met {
    let (mut counts, mut work, mut runs) = (Counts::default(), Work::default(), 0);
    let seeds = remanence_effort::seeds(count);
    let are_all = seeds.are_all();
    for seed in seeds {
        let outcome = run(seed, params);
        passes(&outcome);
        counts += outcome.counts;
        work += outcome.work;
        runs += 1;
    }
    println!("{runs} runs\n{counts:?}\n{work:?}");
    are_all.then_some((counts, work, runs))
}

/// A simulator that no longer does anything passes everything: what so many seeds must have met together, of any group.
fn is_active(met: &Met) {
    let Some((counts, work, runs)) = met else { return };
    assert!(work.acknowledged > 12 * runs && work.opened > 2 * runs && work.shut_out > runs / 2, "{work:?}");
    assert!(work.trims > runs / 2 && work.closed > runs / 2 && work.connected_again > runs / 2, "{work:?}");
    // Half of the runs let the usual writers come to their ends, and in half of them the last one loses all connections.
    assert!(work.ended > runs / 10 && work.cut_within > runs / 4, "{work:?}");
    assert!(
        counts.pauses > runs / 4 && counts.kills > runs / 4 && counts.power_losses > runs / 2,
        "{counts:?}"
    );
    assert!(counts.power_losses_within > runs / 20 && counts.media_failed > runs / 3, "{counts:?}");
    assert!(counts.disks_lost > runs / 8 && counts.lingered > runs / 12, "{counts:?}");
    assert!(counts.slow > runs / 2 && counts.partitions > runs / 6, "{counts:?}");
    assert!(counts.aimed > runs / 2, "{counts:?}");
}

/// Of a group that has others' logs to copy and to cut.
fn copies(met: &Met) {
    let Some((_, work, runs)) = met else { return };
    assert!(work.copied > runs / 4 && work.cut > runs / 4, "{work:?}");
}

fn of(servers: u16, acks: u16) -> Params {
    Params { quorum: Some((servers, acks)), ..Params::default() }
}

#[test]
fn seeds_of_two_of_three() {
    let met = all(1000, &of(3, 2));
    is_active(&met);
    copies(&met);
}

#[test]
fn seeds_of_two_of_two() {
    let met = all(400, &of(2, 2));
    is_active(&met);
    // Neither can go on without the other: there is hardly ever something to cut.
    assert!(met.is_none_or(|(_, work, runs)| work.copied > runs));
}

#[test]
fn seeds_of_three_of_five() {
    let met = all(300, &of(5, 3));
    is_active(&met);
    copies(&met);
}

#[test]
fn seeds_of_one_of_two() {
    let met = all(300, &of(2, 1));
    is_active(&met);
    // One has each record, so that the other one is rarely behind when a log is opened.
    assert!(met.is_none_or(|(_, work, runs)| work.copied > runs / 6 && work.cut > runs / 4));
}

#[test]
fn seeds_of_one_server() {
    is_active(&all(300, &of(1, 1)));
}

#[test]
fn seeds_of_other_quorums() {
    let met = all(600, &Params::default());
    is_active(&met);
    copies(&met);
}

#[test]
fn seeds_with_a_tail_word() {
    let met = all(300, &Params { mode: Some(Mode::Compound), ..Params::default() });
    is_active(&met);
    copies(&met);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        let plan = Plan::draw(seed, &Params::default());
        let (once, again) = (run_plan(seed, &plan, 0), run_plan(seed, &plan, 0));
        assert_eq!(once, again);
        assert_eq!(run_plan(seed, &plan, 50).hash, once.hash, "a trace changes nothing");
    }
    let hash = |seed| run(seed, &Params::default()).hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn servers_that_do_not_shut_older_writers_out_are_found_and_the_plan_is_shrunk() {
    let params = Params { quorum: Some((3, 2)), fencing: false, ..Params::default() };
    let failed = (0..2000).map(|seed| run(seed, &params)).find(|outcome| !outcome.passed());
    let outcome = failed.expect("older writers wrote on and nothing was noticed");
    let drawn = Plan::draw(outcome.seed, &params);
    println!("{outcome}");
    assert!(outcome.plan.faults.len() <= drawn.faults.len());
    assert_eq!(run_plan(outcome.seed, &outcome.plan, 100), outcome, "what is left replays the failure");
    assert!(outcome.replay().starts_with(&format!("rem sim --cluster log --seed {}", outcome.seed)));
}

/// What replays a run says which servers it had, if its seed would draw others.
#[test]
fn a_line_that_replays_a_run_names_what_the_seed_does_not_draw() {
    for (seed, quorum, mode) in [(1, (3, 2), Mode::Singleton), (2, (5, 3), Mode::Compound)] {
        let drawn = Plan::draw(seed, &Params::default());
        let usual = run_plan(seed, &drawn, 0).replay();
        assert_eq!(usual, format!("rem sim --cluster log --seed {seed}"));
        let params = Params { quorum: Some(quorum), mode: Some(mode), ..Params::default() };
        let line = run_plan(seed, &Plan::draw(seed, &params), 0).replay();
        let servers = format!(" --servers {} --acks {}", quorum.0, quorum.1);
        assert_eq!(line.contains(&servers), quorum != (drawn.servers, drawn.acks), "{line}");
        assert_eq!(line.contains(&format!(" --mode {}", mode.name())), mode != drawn.mode, "{line}");
        assert!(!line.contains("--faults"), "all that were drawn are there: {line}");
    }
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

/// The earlier writer hears servers 0 and 1, the later one has the promises of 1 and 2, and what 1 has promised goes with its disk.
#[test]
fn a_server_without_its_disk_does_not_count_for_a_writer_that_was_replaced() {
    let (mut lost, mut replaced) = (0, 0);
    for seed in remanence_effort::seeds(60) {
        let (earlier, later) = if seed % 2 == 0 { (3, 4) } else { (4, 3) };
        let mut plan = calm();
        (plan.writers, plan.records, plan.window) = (2, 5000, 4);
        plan.speeds = Speeds { links: vec![1_000; 6], jitter: 0, disks: vec![2_000; 6], retry: 2 * MS };
        (plan.clocks, plan.grace) = (vec![Clock::default(); 6], vec![MS / 2; 3]);
        let apart =
            |server, from, to, writer| fault(server, from, to - from, Kind::Partition(writer, Way::Both));
        plan.faults = vec![
            apart(1, 15 * MS, 30 * MS, earlier),
            apart(2, 15 * MS, 45 * MS, earlier),
            // All make a new log.
            apart(0, 12 * MS, 45 * MS, later),
            fault(1, 28 * MS, MS, Kind::DiskLost),
            apart(1, 28 * MS, 45 * MS, later),
        ];
        let outcome = run_plan(seed, &plan, 0);
        passes(&outcome);
        lost += outcome.counts.disks_lost;
        replaced += u64::from(outcome.work.opened > 2);
    }
    assert!(lost > 30 && replaced > 10, "{lost} {replaced}");
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
        let (Some(first), Some(last)) = (healthy.latencies.first(), healthy.latencies.last()) else {
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
    let within = outcome.latencies.iter().filter(|(at, _)| (from..to).contains(at));
    within.map(|(_, took)| *took).max().expect("something was acknowledged then")
}

#[test]
fn a_server_that_is_silent_slow_or_full_delays_no_acknowledgement() {
    let seed = (0..50).find(|seed| run_plan(*seed, &calm(), 0).work.appended > 100).expect("a long session");
    let healthy = run_plan(seed, &calm(), 0);
    passes(&healthy);
    let (begin, end) = (healthy.latencies[0].0, healthy.latencies.last().expect("many").0);
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
        assert!(outcome.latencies.len() > 50, "{what}: {outcome}");
        let slowest = slowest(&outcome, begin, end);
        assert!(slowest <= usual, "{what}: {slowest} ns, and {usual} ns if it is not");
    }
    let mut plan = calm();
    // Those of the others do not fill.
    plan.segments = vec![400, 400, 4];
    let outcome = run_plan(seed, &plan, 0);
    let slowest = slowest(&outcome, begin, end);
    assert!(
        slowest <= usual && outcome.latencies.len() > 50,
        "full: {slowest} ns, and {usual} ns if it is not"
    );
}

#[test]
fn what_is_aimed_at_a_moment_happens_then_and_not_without_it() {
    for (moment, nth, whom, kills) in [
        (Moment::Adopt, 1, Whom::There, 1),
        (Moment::Promise, 2, Whom::Asker, 1),
        (Moment::Update, 0, Whom::Behind(2), 1),
        (Moment::Open, 0, Whom::There, 1),
        (Moment::Open, 1000, Whom::There, 0),
        (Moment::Doubt, 0, Whom::There, 0),
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
    [434, 501, 688].iter().for_each(|seed| passes(&run(*seed, &Params::default())));
    passes(&run(2943, &Params { mode: Some(Mode::Singleton), ..of(5, 3) }));
    passes(&run(42, &of(2, 1)));
    passes(&run(360, &of(5, 3)));
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
