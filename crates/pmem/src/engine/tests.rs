//! One contract, every engine.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use super::dsa::soft::{Build, Target};
use super::order::{Stress, stress};
use super::*;
use crate::crash_image::{CrashImage, Explorer, Failure, Seeded};
use crate::watched::{Watch, Watched};
use crate::{FileOptions, PersistenceDomain};

type Image = Arc<CrashImage>;

fn image(len: u64) -> Image {
    Arc::new(CrashImage::new(len, PersistenceDomain::Adr))
}

/// Every engine in every way of copying, with this window. The accelerator is one in software, of a kind of its own each time.
fn engines<M: Target>(window: usize) -> Vec<(String, Box<dyn CopyEngine<M>>)> {
    let mut engines: Vec<(String, Box<dyn CopyEngine<M>>)> = Vec::new();
    for placement in Placement::ALL {
        let options = Options::new().placement(placement).window(window);
        engines.push((format!("inline, {placement}"), Box::new(Inline::new(options))));
        for order in [CrashOrder::Prefix, CrashOrder::Any] {
            let worker = Worker::new(options.crash_order(order)).unwrap();
            engines.push((format!("worker, {placement}, {order:?}"), Box::new(worker)));
            let seed = engines.len() as u64;
            let build = Build {
                seed,
                shared: seed.is_multiple_of(4),
                size: 1 + seed as usize % 3,
                ..Build::default()
            };
            let accelerator = build.engine(options.crash_order(order));
            engines.push((format!("dsa, {placement}, {order:?}"), Box::new(accelerator)));
        }
    }
    engines
}

fn take(engine: &mut dyn CopyEngine<Image>) -> Vec<(u64, Result<Promise, String>)> {
    let mut taken = Vec::new();
    engine.finish(&mut |done| taken.push((done.ticket.number(), done.outcome.map_err(|e| e.to_string()))));
    taken
}

#[test]
fn completions_come_in_order_with_their_sources_and_the_bytes_are_there() {
    for (name, mut engine) in engines::<Image>(4) {
        let memory = image(4096);
        let mut next = 0;
        for number in 0..40_u8 {
            let len = [1, 7, 64, 100, 0, 300][usize::from(number) % 6];
            let mut source = Source::part(vec![number + 1; len + 5], 3..3 + len);
            let ticket = loop {
                match engine.submit(source, &memory, u64::from(number) * 100) {
                    Ok(ticket) => break ticket,
                    Err(refused) => {
                        assert_eq!(refused.why, Refusal::WindowFull { window: 4 }, "{name}");
                        source = refused.source;
                        let done = engine.wait().unwrap();
                        assert_eq!(done.ticket.number(), next, "{name}");
                        assert_eq!(done.outcome.unwrap(), engine.options().placement.promise());
                        assert_eq!(done.source.into_bytes().unwrap()[0], next as u8 + 1, "{name}");
                        next += 1;
                    }
                }
            };
            assert_eq!(ticket.number(), u64::from(number), "{name}");
            assert_eq!(engine.oldest(), Some(Ticket(next)));
        }
        assert_eq!(engine.in_flight(), 4, "{name}");
        let rest = take(&mut *engine);
        assert_eq!(rest.iter().map(|(ticket, _)| *ticket).collect::<Vec<u64>>(), [36, 37, 38, 39], "{name}");
        assert!(engine.poll().is_none() && engine.wait().is_none() && engine.oldest().is_none());
        let mut expected = vec![0; 4096];
        for number in 0..40_usize {
            let len = [1, 7, 64, 100, 0, 300][number % 6];
            expected[number * 100..number * 100 + len].fill(number as u8 + 1);
        }
        assert_eq!(memory.bytes(), expected, "{name}");
    }
}

#[test]
fn a_copy_that_does_not_fit_is_refused_and_changes_nothing() {
    for (name, mut engine) in engines::<Image>(4) {
        let memory = image(128);
        for (offset, len) in [(128, 1), (100, 29), (129, 0), (u64::MAX, 2)] {
            let refused = engine.submit(vec![7; len].into(), &memory, offset).unwrap_err();
            let why = Refusal::OutOfRange { offset, len: len as u64, region: 128 };
            assert_eq!(refused.why, why, "{name}");
            assert_eq!(refused.source.into_bytes(), Some(vec![7; len]), "{name}");
            assert!(matches!(engine.copy(&vec![7; len], &memory, offset), Err(CopyError::Refused(_))));
        }
        engine.submit(vec![7; 28].into(), &memory, 100).unwrap();
        assert_eq!(take(&mut *engine).len(), 1, "{name}");
        assert_eq!(memory.bytes()[..100], [0; 100], "{name}");
    }
}

#[test]
fn a_borrowed_copy_goes_behind_everything_and_leaves_completions_alone() {
    for (name, mut engine) in engines::<Image>(8) {
        let memory = image(256);
        for number in 1..=8 {
            engine.submit(vec![number; 64].into(), &memory, 0).unwrap();
        }
        let promise = engine.copy(&[9; 32], &memory, 16).unwrap();
        assert_eq!(promise, engine.options().placement.promise(), "{name}");
        assert_eq!(memory.bytes()[..64], [[8; 16], [9; 16], [9; 16], [8; 16]].concat(), "{name}");
        assert_eq!(engine.in_flight(), 8, "{name}");
        assert_eq!(take(&mut *engine).len(), 8, "{name}");
    }
}

#[test]
fn waiting_for_one_hands_out_those_before_it_and_no_other() {
    for (name, mut engine) in engines::<Image>(8) {
        let memory = image(64);
        let tickets: Vec<Ticket> =
            (0..6).map(|_| engine.submit(vec![1; 8].into(), &memory, 0).unwrap()).collect();
        let mut seen = Vec::new();
        engine.wait_for(tickets[3], &mut |done| seen.push(done.ticket));
        assert_eq!(seen, tickets[..4], "{name}");
        engine.wait_for(tickets[1], &mut |_| panic!("{name}: it was handed back before"));
        assert_eq!(engine.in_flight(), 2, "{name}");
    }
}

#[test]
fn bytes_of_a_region_are_copied_from_where_they_lie() {
    let receive = Region::anonymous(1 << 16).unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 16).map(|i| (i % 251) as u8).collect();
    receive.write(0, &bytes);
    for (name, mut engine) in engines::<Image>(2) {
        let memory = image(1 << 15);
        engine.submit(Source::region(&receive, 1001, 10_000), &memory, 77).unwrap();
        let done = engine.wait().unwrap();
        assert_eq!(done.source.len(), 10_000);
        assert!(done.source.into_bytes().is_none());
        assert_eq!(memory.bytes()[77..10_077], bytes[1001..11_001], "{name}");
        assert_eq!(memory.bytes()[10_077..10_100], [0; 23], "{name}");
    }
    let target = lines();
    for (name, mut engine) in engines::<Region>(2) {
        for (at, len, to) in [(0, 8192, 0), (3, 5000, 70), (64, 255, 13), (1, 0, 9), (17, 300, 1 << 15)] {
            target.write(0, &vec![0; 1 << 16]);
            engine.submit(Source::region(&receive, at, len), &target, to).unwrap();
            engine.finish(&mut |done| _ = done.outcome.unwrap());
            let mut found = vec![0; 1 << 16];
            target.read(0, &mut found);
            let (at, to, len) = (at as usize, to as usize, len as usize);
            assert_eq!(found[to..to + len], bytes[at..at + len], "{name}: {len} bytes from {at} to {to}");
            let beside = found[..to].iter().chain(&found[to + len..]).all(|byte| *byte == 0);
            assert!(beside, "{name}: beside {len} bytes at {to}");
        }
    }
}

/// Memory on which lines are written back, and non-temporal stores used.
fn lines() -> Region {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("remanence-engine-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::path::Path::new("/dev/shm").join(name);
    let options = FileOptions::new().create_new(1 << 16).declare(PersistenceDomain::Adr);
    let region = options.open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    region
}

#[test]
fn a_medium_that_fails_stops_the_engine_where_it_failed() {
    for (name, mut engine) in engines::<Image>(8) {
        if engine.options().placement.promise() == Promise::Visible {
            continue;
        }
        let memory = image(640);
        memory.fail_after_psyncs(2);
        let mut accepted = 0;
        for number in 0..6 {
            match engine.submit(vec![number as u8 + 1; 64].into(), &memory, number * 64) {
                Ok(_) => accepted += 1,
                Err(refused) => assert_eq!(refused.why, Refusal::Stopped, "{name}"),
            }
        }
        let done = take(&mut *engine);
        assert_eq!(done.len(), accepted, "{name}: each that was accepted has its completion");
        let synced = done.iter().take_while(|(_, outcome)| outcome.is_ok()).count();
        assert_eq!(synced, 2, "{name}");
        assert!(done[2].1.as_ref().is_err_and(|e| e.contains("its medium failed")), "{name}: {done:?}");
        assert!(done[3..].iter().all(|(_, o)| o.as_ref().is_err_and(|e| e.contains("given up"))), "{name}");
        if engine.options().order == CrashOrder::Prefix {
            assert_eq!(
                memory.bytes()[3 * 64..],
                [0; 640 - 192],
                "{name}: nothing behind the failure was begun"
            );
        }
        assert_eq!(engine.submit(vec![1].into(), &memory, 0).unwrap_err().why, Refusal::Stopped, "{name}");
        let copied = engine.copy(&[1], &memory, 0);
        assert!(matches!(copied, Err(CopyError::Refused(Refusal::Stopped))), "{name}");
    }
}

#[test]
fn a_file_that_is_cut_short_fails_the_copy_and_not_the_process() {
    let path = std::env::temp_dir().join(format!("remanence-engine-cut-{}", std::process::id()));
    let region = FileOptions::new().create_new(1 << 20).open(&path).unwrap();
    let mut engine = Worker::new(Options::new()).unwrap();
    engine.submit(vec![1; 9000].into(), &region, 1 << 18).unwrap();
    assert_eq!(engine.wait().unwrap().outcome.unwrap(), Promise::Synced);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    engine.submit(vec![2; 9000].into(), &region, 1 << 18).unwrap();
    let lost = engine.wait().unwrap().outcome.unwrap_err().to_string();
    assert!(lost.contains("its medium failed") && lost.contains("truncated"), "{lost}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn dropping_an_engine_carries_out_what_was_submitted() {
    for round in 0..50_u64 {
        for (name, mut engine) in engines::<Image>(16) {
            let memory = image(1024);
            let copies = 1 + round % 16;
            for number in 0..copies {
                engine.submit(vec![number as u8 + 1; 64].into(), &memory, number * 64).unwrap();
            }
            let synced = engine.options().placement.promise() == Promise::Synced;
            drop(engine);
            let whole = |bytes: &[u8]| {
                let mut slots = bytes.chunks(64).take(copies as usize).enumerate();
                slots.all(|(number, slot)| slot.iter().all(|b| *b == number as u8 + 1))
            };
            assert!(whole(&memory.bytes()), "{name}, {copies} copies");
            let after = memory.crash_seeded(Failure::PowerLoss, round);
            assert!(!synced || whole(&after.bytes()), "{name}: and none of it is lost to a power loss");
        }
    }
}

/// What the copying thread panics at.
#[derive(Clone)]
struct Mine(u64);

impl Watch for Mine {
    fn store(&self, range: std::ops::Range<u64>) {
        assert!(range.start < self.0, "the mine at {}", range.start);
    }
}

#[test]
fn nobody_waits_for_a_thread_that_died() {
    for order in [CrashOrder::Prefix, CrashOrder::Any] {
        let memory = Watched { medium: image(1024), watch: Mine(128) };
        let mut engine = Worker::new(Options::new().crash_order(order)).unwrap();
        let mut accepted = 0;
        for number in 0..4 {
            accepted += usize::from(engine.submit(vec![1; 64].into(), &memory, number * 64).is_ok());
        }
        let mut outcomes = Vec::new();
        engine.finish(&mut |done| outcomes.push(done.outcome));
        assert_eq!(outcomes.len(), accepted);
        assert!(matches!(outcomes.last(), Some(Err(CopyError::Died))), "{outcomes:?}");
        assert_eq!(
            outcomes.iter().filter(|o| o.is_ok()).count(),
            if order == CrashOrder::Prefix { 2 } else { outcomes.iter().filter(|o| o.is_ok()).count() }
        );
        assert_eq!(engine.submit(vec![1].into(), &memory, 0).unwrap_err().why, Refusal::Stopped);
        assert!(engine.copy(&[1], &memory, 0).is_err());
    }
}

/// What a power loss may leave of copies of `len` bytes, number i to place i: all up to some point, parts of one, and
/// nothing behind it. Returns how many are whole.
fn prefix(bytes: &[u8], len: usize) -> usize {
    let whole = bytes
        .chunks(len)
        .enumerate()
        .take_while(|(number, slot)| slot.iter().all(|b| usize::from(*b) == number + 1))
        .count();
    let behind = bytes.chunks(len).skip(whole + 1).all(|slot| slot.iter().all(|b| *b == 0));
    assert!(behind, "copy {whole} is not whole, and a later one has begun: {bytes:?}");
    whole
}

#[test]
fn a_crash_at_any_step_leaves_a_prefix_with_all_that_was_completed() {
    for placement in [Placement::WriteBack, Placement::NonTemporal] {
        let explorer = Explorer { failure: Failure::PowerLoss, ways_max: 300, samples: 100, seed: 3 };
        let report = explorer.run(
            &CrashImage::new(5 * 40, PersistenceDomain::Adr),
            |image| {
                let mut engine = Inline::new(Options::new().placement(placement));
                for number in 0..5_u8 {
                    engine.submit(vec![number + 1; 40].into(), &image, u64::from(number) * 40).unwrap();
                    let done = CopyEngine::<&CrashImage>::poll(&mut engine).unwrap();
                    done.outcome.unwrap();
                    image.note(u64::from(number) + 1);
                }
            },
            |crashed, notes| {
                let completed = notes.last().copied().unwrap_or(0);
                assert!(prefix(&crashed.bytes(), 40) as u64 >= completed, "a completed copy is gone");
            },
        );
        assert!(report.crashes > 100, "{report:?}");
    }
}

#[test]
fn the_power_may_go_at_any_time_while_a_worker_copies() {
    for order in [CrashOrder::Prefix, CrashOrder::Any] {
        for seed in 0..60_u64 {
            let memory = image(64 * 100);
            let mut engine = Worker::new(Options::new().crash_order(order).window(6)).unwrap();
            let mut completed = 0;
            for number in 0..64_u64 {
                let mut source = Source::from(vec![number as u8 + 1; 100]);
                while let Err(refused) = engine.submit(source, &memory, number * 100) {
                    source = refused.source;
                    engine.wait().unwrap().outcome.unwrap();
                    completed += 1;
                }
                while let Some(done) = engine.poll() {
                    done.outcome.unwrap();
                    completed += 1;
                }
                if number % 8 == seed % 8 {
                    // The worker goes on meanwhile: what it does after this line is the future that never comes.
                    let left = memory.crash(Failure::PowerLoss, &mut Seeded::new(seed)).bytes();
                    let whole = match order {
                        CrashOrder::Prefix => prefix(&left, 100),
                        CrashOrder::Any => {
                            let slots = left.chunks(100).enumerate();
                            slots.take_while(|(n, s)| s.iter().all(|b| usize::from(*b) == n + 1)).count()
                        }
                    };
                    assert!(whole >= completed, "seed {seed}: {completed} were completed, {whole} are left");
                }
            }
        }
    }
}

#[test]
fn an_armed_engine_calls_once_when_there_is_something_to_take() {
    let (tell, told) = mpsc::channel();
    let notify = Box::new(move || {
        let _ = tell.send(());
    });
    let mut engine = Worker::<Image>::with_notify(Options::new(), notify).unwrap();
    let memory = image(64);
    assert!(engine.arm(), "nothing is there yet");
    for _ in 0..500 {
        engine.submit(vec![1; 64].into(), &memory, 0).unwrap();
        engine.submit(vec![2; 64].into(), &memory, 0).unwrap();
        // As a caller with an event loop does: take what is there, arm, and sleep only if that says so.
        let mut taken = 0;
        while taken < 2 {
            while engine.poll().is_some() {
                taken += 1;
            }
            if taken < 2 && engine.arm() {
                told.recv().unwrap();
            }
        }
        assert!(engine.poll().is_none());
        let _ = engine.arm();
    }
}

#[test]
fn hand_overs_of_every_rhythm_lose_no_wake_up() {
    let memory = image(4096);
    for window in [1, 2, 7] {
        let mut engine = Worker::new(Options::new().window(window).placement(Placement::Cached)).unwrap();
        let mut choices = Seeded::new(window as u64);
        let mut taken = 0;
        for number in 0..4000_u64 {
            // Pauses from none to longer than anybody spins, so that each side is caught asleep and awake.
            use crate::crash_image::Choices as _;
            match choices.pick(40) {
                0 => std::thread::sleep(std::time::Duration::from_micros(120)),
                1..4 => std::thread::yield_now(),
                _ => {}
            }
            let mut source = Source::from(vec![number as u8; choices.pick(80)]);
            while let Err(refused) = engine.submit(source, &memory, 8) {
                source = refused.source;
                taken += u64::from(engine.wait().is_some());
            }
            if choices.pick(3) == 0 {
                taken += u64::from(engine.wait().is_some());
            }
        }
        engine.finish(&mut |done| {
            assert_eq!(done.ticket.number(), taken);
            taken += 1;
        });
        assert_eq!(taken, 4000);
    }
}

#[test]
fn an_engine_may_move_from_thread_to_thread() {
    let memory = image(64);
    let mut engine = Worker::new(Options::new()).unwrap();
    engine.submit(vec![1; 64].into(), &memory, 0).unwrap();
    let mut engine = std::thread::spawn(move || {
        engine.wait().unwrap().outcome.unwrap();
        engine.submit(vec![2; 64].into(), &memory, 0).unwrap();
        engine
    })
    .join()
    .unwrap();
    assert_eq!(engine.wait().unwrap().ticket.number(), 1);
}

#[test]
fn copies_are_seen_in_order() {
    let copies = remanence_effort::rounds(3_000, 2_000_000);
    for (name, mut engine) in engines::<Region>(8) {
        for region in [lines(), Region::anonymous(1 << 16).unwrap()] {
            for len in [64, 1024] {
                let verdict = stress(&mut *engine, &region, Stress { copies, len, slots: 12 }).unwrap();
                assert_eq!(verdict.first, None, "{name}: {verdict:?}");
                assert!(verdict.looks > 0);
            }
        }
    }
}

#[test]
fn what_a_completion_is_worth_depends_on_the_region() {
    let adr = Guarantee::of(PersistenceDomain::Adr);
    assert!(!Promise::Visible.survives(adr).power_loss);
    assert!(Promise::Synced.survives(adr).power_loss);
    assert!(Promise::Visible.survives(Guarantee::of(PersistenceDomain::Eadr)).power_loss);
    assert!(!Promise::Synced.survives(Guarantee::of(PersistenceDomain::Process)).power_loss);
    for (asked, given) in [(0, 1), (3, 3), (usize::MAX, Options::WINDOW_MAX)] {
        let inline = Inline::<Region>::new(Options::new().window(asked));
        assert_eq!(inline.options().window, given);
        assert_eq!(Worker::<Region>::new(Options::new().window(asked)).unwrap().options().window, given);
    }
    for placement in Placement::ALL {
        assert_eq!(Placement::from_name(placement.name()), Some(placement));
    }
}
