//! What is the accelerator's own; that it keeps the contract of every engine is in `engine/tests.rs`.
#![expect(unsafe_code, reason = "memory that is unmapped under the engine, and a portal")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::copies::Copies;
use super::portal::{Handed, Portal};
use super::soft::{Build, Counts, Soft, Vice};
use super::spec::Descriptor;
use super::*;
use crate::FileOptions;
use crate::PersistenceDomain;
use crate::crash_image::{Choices as _, CrashImage, Failure, Seeded};
use crate::engine::{CrashOrder, Placement, Refusal};

/// Far longer than a thread of this process waits for its turn, and short enough to be waited for.
const SILENCE: Duration = Duration::from_millis(500);

fn watched(build: Build, options: Options) -> (Copies<Region>, Arc<Counts>) {
    let device = Soft::new(build);
    let counts = device.counts();
    (Copies::new(Box::new(device), build.limits(), options).unwrap(), counts)
}

fn outcomes(engine: &mut dyn CopyEngine) -> Vec<Result<Promise, CopyError>> {
    let mut outcomes = Vec::new();
    engine.finish(&mut |done| outcomes.push(done.outcome));
    outcomes
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut choices = Seeded::new(seed);
    (0..len).map(|_| choices.pick(256) as u8).collect()
}

#[test]
fn long_copies_go_in_pieces_and_never_more_of_them_than_the_queue_holds() {
    for (shared, size) in [(false, 1), (false, 4), (true, 1), (true, 4)] {
        for cache_control in [false, true] {
            let build =
                Build { shared, size, cache_control, transfer_max: 100, faults: 50, ..Build::default() };
            let (mut engine, counts) = watched(build, Options::new().placement(Placement::Cached));
            let (from, to) = (bytes(3, 10_000), Region::anonymous(1 << 14).unwrap());
            engine.submit(from.clone().into(), &to, 5).unwrap();
            engine.wait().unwrap().outcome.unwrap();
            let mut seen = vec![0; 10_000];
            to.read(5, &mut seen);
            assert_eq!(seen, from);
            let (completed, cached) =
                (counts.completed.load(Ordering::SeqCst), counts.cached.load(Ordering::SeqCst));
            assert!(completed >= 100, "{completed} pieces");
            assert_eq!(
                cached,
                if cache_control { completed } else { 0 },
                "the flag is for devices that know it"
            );
            let most = counts.most.load(Ordering::SeqCst);
            assert!(most <= size && (size == 1 || most > 1), "{most} of {size} at a time");
            assert_eq!(counts.dropped.load(Ordering::SeqCst), 0);
        }
    }
}

#[test]
fn past_the_caches_the_flag_is_clear() {
    for placement in Placement::ALL {
        let (mut engine, counts) = watched(Build::default(), Options::new().placement(placement));
        let to = Region::anonymous(4096).unwrap();
        engine.submit(vec![1; 64].into(), &to, 0).unwrap();
        engine.wait().unwrap().outcome.unwrap();
        let cached = counts.cached.load(Ordering::SeqCst) > 0;
        assert_eq!(cached, placement != Placement::NonTemporal, "{placement}");
    }
}

#[test]
fn copies_that_meet_pages_are_resumed_wherever_they_stop() {
    let mut resumed = 0;
    for seed in 0..40 {
        let build = Build { faults: 2, seed, size: 5, transfer_max: 9000, ..Build::default() };
        let (mut engine, counts) = watched(build, Options::new());
        let mut choices = Seeded::new(seed);
        let (from, to) = (Region::anonymous(1 << 15).unwrap(), Region::anonymous(1 << 15).unwrap());
        let all = bytes(seed, 1 << 15);
        from.write(0, &all);
        for _ in 0..4 {
            let (at, offset) = (choices.pick(4200), choices.pick(4200));
            let len = choices.pick(24_000);
            engine.submit(Source::region(&from, at as u64, len as u64), &to, offset as u64).unwrap();
            engine.wait().unwrap().outcome.unwrap();
            let mut seen = vec![0; len];
            to.read(offset as u64, &mut seen);
            assert_eq!(seen, all[at..at + len], "seed {seed}: {len} bytes from {at} to {offset}");
            to.write(0, &[0; 1 << 15]);
        }
        resumed += counts.partial.load(Ordering::SeqCst);
    }
    assert!(resumed > 100, "{resumed} were to be resumed");
}

#[test]
fn overlapping_copies_are_left_to_the_cpu() {
    let (mut engine, counts) = watched(Build { faults: 1000, ..Build::default() }, Options::new());
    let memory = Region::anonymous(1 << 14).unwrap();
    memory.write(0, &[7; 200]);
    engine.submit(Source::region(&memory, 0, 200), &memory, 100).unwrap();
    engine.wait().unwrap().outcome.unwrap();
    assert_eq!(counts.completed.load(Ordering::SeqCst), 0);
    // Neighbours do not overlap.
    engine.submit(Source::region(&memory, 0, 200), &memory, 200).unwrap();
    engine.submit(Source::region(&memory, 400, 200), &memory, 200).unwrap();
    assert!(outcomes(&mut engine).iter().all(Result::is_ok));
    assert_eq!(counts.completed.load(Ordering::SeqCst), 2);
    let mut seen = [1; 500];
    memory.read(0, &mut seen);
    assert_eq!(seen, [[7; 100], [7; 100], [0; 100], [0; 100], [0; 100]].concat()[..]);
}

#[test]
fn what_a_device_answers_is_not_ignored_and_stops_the_engine() {
    for (vice, says) in [
        (Vice::Refuses(0x11), "status 0x11, flags that the device does not know"),
        (Vice::Refuses(0x9f), "status 0x9f, an error of the hardware"),
        (Vice::Refuses(0x04), "status 0x04, a page that the system would not make present"),
        (Vice::ExaggeratesFaults, "stopped after 100 of 100 bytes"),
    ] {
        let build = Build { vice, faults: 1, ..Build::default() };
        let (mut engine, _) = watched(build, Options::new());
        let to = Region::anonymous(4096).unwrap();
        let mut accepted = 0;
        for _ in 0..3 {
            accepted += usize::from(engine.submit(vec![1; 100].into(), &to, 0).is_ok());
        }
        let outcomes = outcomes(&mut engine);
        assert_eq!(outcomes.len(), accepted);
        let first = outcomes[0].as_ref().unwrap_err().to_string();
        assert!(first.contains(says), "{first:?} does not say {says:?}");
        assert!(outcomes[1..].iter().all(|o| matches!(o, Err(CopyError::GivenUp))), "{outcomes:?}");
        assert_eq!(engine.submit(vec![1].into(), &to, 0).unwrap_err().why, Refusal::Stopped);
        assert!(matches!(engine.copy(&[1], &to, 0), Err(CopyError::Refused(Refusal::Stopped))));
    }
}

#[test]
fn a_device_that_falls_silent_is_given_up_with_what_it_has() {
    for size in [1, 4] {
        let build = Build { vice: Vice::FallsSilent(2), faults: 1000, size, ..Build::default() };
        let limits = Limits { idle_max: SILENCE, ..build.limits() };
        let mut engine = Copies::new(Box::new(Soft::new(build)), limits, Options::new()).unwrap();
        let to = Region::anonymous(1 << 14).unwrap();
        for _ in 0..3 {
            engine.submit(vec![1; 600].into(), &to, 0).unwrap();
        }
        engine.submit(vec![1; 5000].into(), &to, 0).unwrap();
        let mut sources = Vec::new();
        let mut outcomes = Vec::new();
        engine.finish(&mut |done| {
            sources.push(done.source.len());
            outcomes.push(done.outcome);
        });
        assert!(outcomes[..2].iter().all(Result::is_ok), "{outcomes:?}");
        assert!(matches!(outcomes[2], Err(CopyError::Device(DeviceError::Lost))), "{outcomes:?}");
        assert!(matches!(outcomes[3], Err(CopyError::GivenUp)), "{outcomes:?}");
        assert_eq!(sources, [600, 600, 0, 5000], "what the device may still read is not handed back");
        assert_eq!(engine.submit(vec![1].into(), &to, 0).unwrap_err().why, Refusal::Stopped);
    }
}

#[test]
fn a_file_that_is_cut_short_fails_the_copy_and_not_the_process() {
    let path = std::env::temp_dir().join(format!("remanence-dsa-cut-{}", std::process::id()));
    for placement in Placement::ALL {
        let region = FileOptions::new().create_new(1 << 20).open(&path).unwrap();
        let (mut engine, counts) =
            watched(Build { faults: 1000, ..Build::default() }, Options::new().placement(placement));
        engine.submit(vec![1; 9000].into(), &region, 1 << 18).unwrap();
        engine.wait().unwrap().outcome.unwrap();
        let before = counts.partial.load(Ordering::SeqCst);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        engine.submit(vec![2; 9000].into(), &region, 1 << 18).unwrap();
        let lost = engine.wait().unwrap().outcome.unwrap_err().to_string();
        assert!(lost.contains("its medium failed") && lost.contains("truncated"), "{placement}: {lost}");
        assert!(counts.partial.load(Ordering::SeqCst) > before, "the device met the page");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn memory_that_its_owner_unmapped_fails_the_copy_whichever_side_it_is() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for source in [false, true] {
        // SAFETY: the kernel chooses an address range that nobody uses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 1 << 16, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast::<u8>()).unwrap();
        // SAFETY: mapped, and nobody's but this test's.
        let borrowed = unsafe { Region::borrowed(base.as_ptr(), 1 << 16) }.unwrap();
        let ours = Region::anonymous(1 << 16).unwrap();
        let (mut engine, _) = watched(Build::default(), Options::new().placement(Placement::Cached));
        let mut copy = || {
            let (from, to) = if source { (&borrowed, &ours) } else { (&ours, &borrowed) };
            engine.submit(Source::region(from, 10, 30_000), to, 4).unwrap();
            engine.wait().unwrap().outcome
        };
        assert!(copy().is_ok());
        // SAFETY: the last quarter of the mapping above.
        unsafe { libc::munmap(base.as_ptr().add(1 << 14).cast(), (1 << 16) - (1 << 14)) };
        let lost = copy().unwrap_err().to_string();
        assert!(lost.contains("its medium failed") && lost.contains("unmapped"), "{lost}");
        // SAFETY: the rest of it.
        unsafe { libc::munmap(base.as_ptr().cast(), 1 << 14) };
    }
}

#[test]
fn the_power_may_go_at_any_time_while_the_device_copies() {
    for order in [CrashOrder::Prefix, CrashOrder::Any] {
        for placement in [Placement::WriteBack, Placement::NonTemporal] {
            for seed in 0..25_u64 {
                let memory = Arc::new(CrashImage::new(32 * 100, PersistenceDomain::Adr));
                let options = Options::new().placement(placement).crash_order(order).window(5);
                let build = Build { seed, transfer_max: 48, shared: seed % 2 == 0, ..Build::default() };
                let mut engine = build.engine::<Arc<CrashImage>>(options);
                let mut completed = 0;
                for number in 0..32_u64 {
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
                    if number % 4 == seed % 4 {
                        // The device goes on meanwhile.
                        let left = memory.crash(Failure::PowerLoss, &mut Seeded::new(seed)).bytes();
                        let whole = left.chunks(100).enumerate();
                        let whole =
                            whole.take_while(|(n, s)| s.iter().all(|b| usize::from(*b) == n + 1)).count();
                        assert!(
                            whole >= completed,
                            "seed {seed}: {completed} were completed, {whole} are left"
                        );
                        let behind =
                            left.chunks(100).skip(whole + 1).all(|slot| slot.iter().all(|b| *b == 0));
                        assert!(behind || order == CrashOrder::Any, "seed {seed}: a later copy has begun");
                    }
                }
            }
        }
    }
}

/// A queue that others keep full.
#[derive(Default)]
struct NoRoom(Arc<AtomicBool>);

impl Portal for NoRoom {
    unsafe fn submit(&mut self, _: &Descriptor) -> io::Result<Handed> {
        Ok(Handed::Full)
    }

    fn abandon(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_queue_that_stays_full_is_given_up_and_everything_comes_back() {
    let limits = Limits { idle_max: Duration::from_millis(30), ..Build::default().limits() };
    let mut engine = Copies::<Region>::new(Box::new(NoRoom::default()), limits, Options::new()).unwrap();
    let to = Region::anonymous(4096).unwrap();
    engine.submit(vec![1; 600].into(), &to, 0).unwrap();
    let done = engine.wait().unwrap();
    assert!(matches!(done.outcome, Err(CopyError::Device(DeviceError::Lost))));
    assert_eq!(done.source.len(), 600);
}

#[test]
fn a_forked_childs_engine_is_its_parents() {
    let portal = NoRoom::default();
    let abandoned = Arc::clone(&portal.0);
    let limits = Build::default().limits();
    let mut engine = Copies::<Region>::new(Box::new(portal), limits, Options::new().window(4)).unwrap();
    let to = Region::anonymous(1 << 16).unwrap();
    for _ in 0..3 {
        engine.submit(vec![1; 9000].into(), &to, 0).unwrap();
    }
    engine.process = 0;
    assert_eq!(engine.submit(vec![1].into(), &to, 0).unwrap_err().why, Refusal::Stopped);
    assert!(matches!(engine.copy(&[1], &to, 0), Err(CopyError::Refused(Refusal::Stopped))));
    for _ in 0..3 {
        assert!(matches!(engine.wait().unwrap().outcome, Err(CopyError::Died)), "nobody waits there");
    }
    assert!(engine.wait().is_none());
    drop(engine);
    assert!(abandoned.load(Ordering::SeqCst), "the portal is not this process's to unmap");
}

#[test]
fn a_device_that_does_what_it_is_told_passes_its_trial() {
    for (shared, size, transfer_max, faults, seed) in
        [(false, 8, 1 << 20, 30, 1), (true, 2, 4096, 10, 2), (false, 1, 700, 100, 3)]
    {
        let build = Build { shared, size, transfer_max, faults, seed, ..Build::default() };
        trial::run(&mut || Ok(Box::new(Soft::new(build))), build.limits()).unwrap();
    }
}

#[test]
fn a_device_that_does_not_is_refused_with_a_sentence() {
    for (vice, says) in [
        (Vice::FlipsAByte, "did not arrive as they were"),
        (Vice::Overruns, "were written beside"),
        (Vice::CompletesEarly, "with cached copies, "),
        (Vice::HidesFaults, "with cached copies, "),
        (Vice::ExaggeratesFaults, "which is no stop"),
        (Vice::FallsSilent(20), "it has done nothing for ten seconds"),
        (Vice::Refuses(0x10), "an operation that the queue does not allow"),
    ] {
        let build = Build { vice, transfer_max: 1 << 20, size: 4, faults: 4, ..Build::default() };
        let limits = Limits { idle_max: SILENCE, ..build.limits() };
        let refused = trial::run(&mut || Ok(Box::new(Soft::new(build))), limits).unwrap_err().to_string();
        assert!(refused.contains("did not pass") && refused.contains(says), "{vice:?}: {refused}");
    }
}
