//! What is queued and posted, by a port that keeps it.

use proptest::prelude::*;
use remanence_persist::recipe::{Op, build};

use super::*;

#[test]
fn ranges_that_lie_close_together_are_flushed_as_one_and_far_ones_where_that_costs_nothing() {
    let ranges = vec![(10_000, 8, 1), (0, 64, 1), (64, 64, 1), (100, 8, 2), (4000, 100, 1)];
    let range = |addr, len, rkey| Cover { addr, len, rkey, selectivity: Selectivity::Range };
    let covers = |mut ranges: Vec<_>, reach| covers(&mut ranges, reach).collect::<Vec<_>>();
    assert_eq!(covers(ranges.clone(), GAP), [range(0, 4100, 1), range(10_000, 8, 1), range(100, 8, 2)]);
    assert_eq!(covers(ranges, u64::MAX), [range(0, 10_008, 1), range(100, 8, 2)]);
    assert_eq!(covers(vec![(0, 8192, 1), (8192, 64, 1)], GAP), [range(0, 8256, 1)], "the gap is behind it");
    let far = vec![(0, 8, 1), (5 << 30, 8, 1)];
    let whole = Cover { addr: 0, len: 0, rkey: 1, selectivity: Selectivity::MemoryRegion };
    assert_eq!(covers(far.clone(), u64::MAX), [whole]);
    assert_eq!(covers(far, GAP).len(), 2);
}

proptest! {
    /// The obligation that one FLUSH step of a proof has: nothing that was posted before it is left out, and nothing of
    /// another key or outside of what was written is asked for.
    #[test]
    fn a_flush_step_covers_everything_that_was_posted(
        ranges in prop::collection::vec((0_u64..1 << 34, 1_u64..1 << 30, 1_u32..3), 1..12),
        reach in prop_oneof![Just(GAP), Just(u64::MAX)],
    ) {
        let all: Vec<Cover> = covers(&mut ranges.clone(), reach).collect();
        for (addr, len, rkey) in &ranges {
            let held = all.iter().filter(|c| c.rkey == *rkey).any(|c| match c.selectivity {
                Selectivity::MemoryRegion => true,
                Selectivity::Range => c.addr <= *addr && addr + len <= c.addr + u64::from(c.len),
            });
            prop_assert!(held, "{addr:#x} of {len} is left out of {all:?}");
        }
        for cover in &all {
            let of = ranges.iter().filter(|(.., rkey)| *rkey == cover.rkey);
            let low = of.clone().map(|(addr, ..)| *addr).min();
            let high = of.map(|(addr, len, _)| addr + len).max();
            prop_assert!(low.is_some_and(|low| low <= cover.addr));
            prop_assert!(high.is_some_and(|high| cover.addr + u64::from(cover.len) <= high));
        }
        let keys: std::collections::BTreeSet<u32> = ranges.iter().map(|(.., rkey)| *rkey).collect();
        prop_assert!(reach == GAP || all.len() == keys.len());
    }
}

/// Keeps what is posted.
#[derive(Default)]
struct Posted(Vec<SendOp>);

impl Port for Posted {
    fn stage(&mut self, _: u64, _: &[u8]) {}

    fn post(&mut self, _: u64, op: SendOp, _: u64, _: u32, _: SendFlags) -> Result<(), PostError> {
        self.0.push(op);
        Ok(())
    }
}

#[test]
fn updates_that_lie_far_apart_share_one_flush_where_the_responder_does_not_go_line_by_line() {
    for (text, flushes) in [
        ("MHP+DDIO+DRAM", 1),
        ("MHP+DDIO+DRAM+persistent", 1),
        ("page-cache+DDIO+DRAM+persistent", 1),
        ("DMP+DDIO+DRAM+persistent", 5),
    ] {
        let config: Config = text.parse().expect("a configuration");
        let region = Window { rkey: 7, addr: 1 << 40, len: 1 << 30 };
        let buffers = Window { rkey: 8, addr: 0, len: 16 * 1024 };
        let terms = Terms { config, region, buffers, slots: 16, slot_size: 1024, stamp: 1, shift: 6 };
        let mut requester = Requester::new(terms, 64, 4, 1 << 16);
        let shape = Shape { count: 5, ordered: false, ..Shape::SINGLETON };
        let method =
            Arc::new(Method::new(&build(&config, Op::Write, shape), 0, Vec::new()).expect("a method"));
        let updates: Vec<(u64, &[u8])> = (0..5).map(|n| (n << 24, &[1; 64][..])).collect();
        let mut port = Posted::default();
        requester.submit(&method, &updates, &mut port).expect("room");
        requester.drive(&mut port).expect("posted");
        let posted = port.0.iter().filter(|op| matches!(op, SendOp::Flush { .. })).count();
        assert_eq!(posted, flushes, "{text}: {:?}", port.0);
    }
}

/// A session of one that keeps what is posted, with a method for WRITEs of that many updates.
fn session(config: &Config, recipe: &Recipe) -> (Requester, Arc<Method>) {
    let region = Window { rkey: 7, addr: 1 << 40, len: 1 << 30 };
    let buffers = Window { rkey: 8, addr: 0, len: 16 * 1024 };
    let terms = Terms { config: *config, region, buffers, slots: 16, slot_size: 1024, stamp: 1, shift: 6 };
    let method = Arc::new(Method::new(recipe, 0, vec![0, 1]).expect("a method"));
    (Requester::new(terms, 64, 1, 1 << 16), method)
}

/// The ranges of the FLUSHes among what was posted, in the region.
fn flushed(port: &mut Posted) -> Vec<(u64, u32)> {
    let ranges = port.0.drain(..).filter_map(|op| match op {
        SendOp::Flush { remote, len, .. } => Some((remote.addr - (1 << 40), len)),
        _ => None,
    });
    ranges.collect()
}

fn finish(requester: &mut Requester, port: &mut Posted) {
    while requester.under_way() > 0 {
        requester.completed(requester.posted);
        requester.drive(port).expect("posted");
        let _ = requester.finished();
    }
}

#[test]
fn a_run_flushes_nothing_of_the_runs_before_it() {
    let config: Config = "DMP+no-DDIO+DRAM+persistent".parse().expect("a configuration");
    let (mut requester, flushing) = session(&config, &build(&config, Op::Write, Shape::SINGLETON));
    // (One that flushes nothing, and leaves what it wrote.)
    let wsp: Config = "WSP+DDIO+DRAM".parse().expect("a configuration");
    let plain = build(&wsp, Op::Write, Shape::SINGLETON);
    let plain = Arc::new(Method::new(&plain, 1, Vec::new()).expect("a method"));
    let mut port = Posted::default();
    for n in 0..4_u64 {
        requester.submit(&plain, &[(n << 20, &[1; 64])], &mut port).expect("room");
        requester.drive(&mut port).expect("posted");
        assert_eq!(flushed(&mut port), []);
        finish(&mut requester, &mut port);
    }
    for n in 8..12_u64 {
        requester.submit(&flushing, &[(n << 20, &[1; 100])], &mut port).expect("room");
        requester.drive(&mut port).expect("posted");
        assert_eq!(flushed(&mut port), [(n << 20, 100)]);
        finish(&mut requester, &mut port);
    }
}

#[test]
fn a_flush_behind_a_message_is_for_the_buffer_that_it_lies_in() {
    let config: Config = "DMP+no-DDIO+PM+persistent".parse().expect("a configuration");
    let recipe = build(&config, Op::Send, Shape::SINGLETON);
    assert!(!recipe.is_two_sided() && recipe.replay, "{recipe}");
    let (mut requester, method) = session(&config, &recipe);
    let mut port = Posted::default();
    for n in 0..20_u64 {
        requester.submit(&method, &[(n << 10, &[1; 64])], &mut port).expect("room");
        requester.drive(&mut port).expect("posted");
        let [SendOp::Send, SendOp::Flush { remote, len, .. }] = port.0[..] else { panic!("{:?}", port.0) };
        assert_eq!((remote.rkey.0, remote.addr), (8, n % 16 * 1024), "message {}", n + 1);
        assert_eq!(len as usize, HEADER + ENTRY + 64);
        port.0.clear();
        finish(&mut requester, &mut port);
        // The server gives buffers back by and by.
        let credit = Answer { kind: AnswerKind::Credit, number: 0, reposted: n + 1, body: Vec::new() };
        requester.received(&credit.emit()).expect("it was used");
    }
}

#[test]
fn the_second_flush_of_a_recipe_is_for_what_was_posted_since_the_first() {
    let config: Config = "DMP+no-DDIO+DRAM+persistent".parse().expect("a configuration");
    let recipe = build(&config, Op::WriteImm, Shape::COMPOUND);
    assert_eq!(recipe.requester().filter(|step| matches!(step, Rq::Flush(_))).count(), 2, "{recipe}");
    let (mut requester, method) = session(&config, &recipe);
    let mut port = Posted::default();
    let updates: [(u64, &[u8]); 2] = [(1 << 20, &[1; 64]), (1 << 22, &[2; 8])];
    requester.submit(&method, &updates, &mut port).expect("room");
    requester.drive(&mut port).expect("posted");
    assert_eq!(flushed(&mut port), [(1 << 20, 64)]);
    requester.completed(requester.posted);
    requester.drive(&mut port).expect("posted");
    assert_eq!(flushed(&mut port), [(1 << 22, 8)]);
    finish(&mut requester, &mut port);
    assert!(requester.is_idle());
}

#[test]
fn runs_to_the_same_bytes_wait_for_each_other_where_packets_may_overtake() {
    for (text, waits) in [("WSP+DDIO+DRAM", false), ("WSP+DDIO+DRAM+relaxed", true)] {
        let config: Config = text.parse().expect("a configuration");
        let region = Window { rkey: 7, addr: 1 << 40, len: 1 << 30 };
        let buffers = Window { rkey: 8, addr: 0, len: 16 * 1024 };
        let terms = Terms { config, region, buffers, slots: 16, slot_size: 1024, stamp: 1, shift: 6 };
        let mut requester = Requester::new(terms, 64, 4, 1 << 16);
        let recipe = build(&config, Op::Write, Shape::SINGLETON);
        let method = Arc::new(Method::new(&recipe, 0, Vec::new()).expect("a method"));
        let mut port = Posted::default();
        let mut submit = |requester: &mut Requester, at: u64| {
            let submitted = requester.submit(&method, &[(at, &[1; 64])], &mut port);
            requester.drive(&mut port).expect("posted");
            match submitted {
                Ok(_) => true,
                Err(Refused::Busy) => false,
                Err(other) => panic!("{other:?}"),
            }
        };
        assert!(submit(&mut requester, 4096), "nothing is under way");
        assert!(submit(&mut requester, 4096 + 64), "beside it, and not over it");
        assert_eq!(submit(&mut requester, 4096 + 56), !waits, "{text}: over both");
        finish(&mut requester, &mut Posted::default());
        assert!(submit(&mut requester, 4096 + 56), "they are over");
    }
}
