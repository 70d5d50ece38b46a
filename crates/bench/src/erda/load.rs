//! The load generator: YCSB's clients on threads, each with a store handle of its own, one clock for all.
//!
//! Read first: `remanence_ycsb::driver`, which says what is measured. `rem bench erda` and `rem kv bench` both are this.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use remanence_ycsb::driver::{Client, Outcome};
use remanence_ycsb::generator::Kind;
use remanence_ycsb::measure::{Measurements, Series};
use remanence_ycsb::packed::{KeyValue, Packed};
use remanence_ycsb::random::Seeded;
use remanence_ycsb::{Generator, Workload};

/// A thread gives up after so many failures in a row: nobody answers any more.
const FAILURES_MAX: u32 = 50;

/// A store's client, as this bench uses it.
pub trait StoreClient: KeyValue<Error = String> + Send {
    /// Says what it has put off, so that the server has nothing left to do for it.
    ///
    /// # Errors
    /// The server cannot be reached.
    fn rest(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A store's handle of one thread.
pub type Handle = Box<dyn StoreClient>;

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After so long.
    Time(Duration),
    /// After so many operations, of all threads together.
    Operations(u64),
}

/// What is asked of a store.
#[derive(Clone, Debug)]
pub struct Load {
    /// The mix, the records and their sizes.
    pub workload: Workload,
    /// What the random numbers are drawn from.
    pub seed: u64,
    /// When it ends.
    pub until: Until,
    /// Operations a second of all threads together, evenly spaced; as fast as it goes, if nothing is said.
    pub target: Option<f64>,
    /// Nanoseconds of one slice of the timeline.
    pub slice: u64,
}

impl Load {
    /// As fast as it goes, with a timeline of 100 ms slices.
    #[must_use]
    pub const fn new(workload: Workload, until: Until) -> Self {
        Self { workload, seed: 1, until, target: None, slice: 100_000_000 }
    }
}

struct Borrowed<'a>(&'a mut Handle);

impl KeyValue for Borrowed<'_> {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        self.0.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.0.put(key, value)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<Result<(), String>> {
        self.0.scan(start, count, each)
    }
}

fn generator(load: &Load) -> Result<Generator<Seeded>, String> {
    let workload = Arc::new(load.workload.clone());
    let inserts = Generator::<Seeded>::inserts_of(&workload);
    Generator::new(workload, inserts, Seeded::new(load.seed, 0)).map_err(|e| e.to_string())
}

/// The loading phase: every record is written, by as many threads as there are handles. `told` is given how many are done.
///
/// # Errors
/// The first failure's sentence.
pub fn fill(load: &Load, handles: &mut [Handle], told: &AtomicU64) -> Result<Measurements, String> {
    let first = generator(load)?;
    let (threads, zero) = (handles.len() as u64, Instant::now());
    let clock = || zero.elapsed().as_nanos() as u64;
    let results: Vec<Result<Measurements, String>> = std::thread::scope(|scope| {
        let running: Vec<_> = handles
            .iter_mut()
            .enumerate()
            .map(|(n, handle)| {
                let generator = first.for_thread(Seeded::new(load.seed, n as u64 + 1));
                scope.spawn(move || {
                    let mut client = Client::new(generator, load.slice);
                    let mut store = Packed::new(Counted(Borrowed(handle), told), load.workload.fields);
                    client.load(&mut store, &clock, n as u64, threads).map_err(|e| e.to_string())?;
                    Ok(client.into_measured())
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(PANIC.into()))).collect()
    });
    merged(load, results)
}

const PANIC: &str = "a thread of the load generator panicked";

struct Counted<'a, K>(K, &'a AtomicU64);

impl<K: KeyValue> KeyValue for Counted<'_, K> {
    type Error = K::Error;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, K::Error> {
        self.0.get(key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), K::Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.put(key, value)
    }
}

/// The run itself.
///
/// # Errors
/// Nothing succeeded, or a thread panicked; what failed on the way is in the measurements.
pub fn run(load: &Load, handles: &mut [Handle], stop: &AtomicBool) -> Result<Measurements, String> {
    let first = generator(load)?;
    let threads = handles.len();
    let barrier = Barrier::new(threads);
    // Taken from by all threads, so that a slow one does not leave the others idle at the end.
    let left = AtomicU64::new(match load.until {
        Until::Operations(operations) => operations,
        Until::Time(_) => u64::MAX,
    });
    let zero = Instant::now();
    let clock = || zero.elapsed().as_nanos() as u64;
    let (barrier, left, clock) = (&barrier, &left, &clock);
    let results: Vec<Result<Measurements, String>> = std::thread::scope(|scope| {
        let running: Vec<_> = handles
            .iter_mut()
            .enumerate()
            .map(|(n, handle)| {
                let generator = first.for_thread(Seeded::new(load.seed, n as u64 + 1));
                scope.spawn(move || {
                    let mut client = Client::new(generator, load.slice);
                    if let Some(target) = load.target {
                        client = client.with_target(target / threads as f64);
                    }
                    let mut store = Packed::new(Borrowed(handle), load.workload.fields);
                    barrier.wait();
                    let end = match load.until {
                        Until::Time(limit) => clock() + limit.as_nanos() as u64,
                        Until::Operations(_) => u64::MAX,
                    };
                    let mut failures = 0;
                    while !stop.load(Ordering::Relaxed) && clock() < end && failures < FAILURES_MAX {
                        if let Until::Operations(_) = load.until
                            && left
                                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                                .is_err()
                        {
                            break;
                        }
                        if let Some(due) = client.due() {
                            wait_until(due.min(end), clock);
                        }
                        let (_, outcome) = client.step(&mut store, clock);
                        failures = if outcome == Outcome::Failed { failures + 1 } else { 0 };
                    }
                    Ok(client.into_measured())
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(PANIC.into()))).collect()
    });
    let all = merged(load, results)?;
    let done: u64 = all.kinds().map(|(_, series)| series.latency.len()).sum();
    match &all.first_error {
        Some(why) if done == 0 => Err(why.clone()),
        _ => Ok(all),
    }
}

/// Sleeps while there is time to, and spins the rest.
pub(crate) fn wait_until(due: u64, clock: &impl Fn() -> u64) {
    const SPIN: u64 = 100_000;
    loop {
        let left = due.saturating_sub(clock());
        match left {
            0 => return,
            1..=SPIN => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_nanos(left - SPIN)),
        }
    }
}

fn merged(load: &Load, results: Vec<Result<Measurements, String>>) -> Result<Measurements, String> {
    let mut all = Measurements::new(load.slice);
    for result in results {
        all.merge(&result?);
    }
    Ok(all)
}

/// The latencies of the mix's operations together: a read-modify-write once, and not its halves again.
#[must_use]
pub fn together(load: &Load, measured: &Measurements) -> Series {
    let mut all = Series::default();
    let halves = load.workload.read_modify_writes > 0.0;
    for (kind, series) in measured.kinds() {
        // With read-modify-writes in the mix, a plain read can not be told from one of their halves.
        if halves && matches!(kind, Kind::Read | Kind::Update) {
            continue;
        }
        all.latency += &series.latency;
        all.missing += series.missing;
        all.failed += series.failed;
        all.wrong += series.wrong;
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use remanence_ycsb::workload::Mix;

    use super::*;

    /// A store in memory, shared by its handles.
    #[derive(Clone, Default)]
    pub(crate) struct Shelf(pub(crate) Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>);

    impl StoreClient for Shelf {}

    impl KeyValue for Shelf {
        type Error = String;

        fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
            let kept = self.0.lock().expect("nobody panics");
            Ok(kept.get(key).map(|found| value.extend_from_slice(found)).is_some())
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
            self.0.lock().expect("nobody panics").insert(key.to_vec(), value.to_vec());
            Ok(())
        }
    }

    fn handles(shelf: &Shelf, threads: usize) -> Vec<Handle> {
        (0..threads).map(|_| Box::new(shelf.clone()) as Handle).collect()
    }

    #[test]
    fn a_run_makes_as_many_operations_as_it_was_asked_for() {
        let workload = Workload { integrity: true, ..Workload::paper_002(Mix::A, 64).sized(50, 500) };
        let load = Load::new(workload, Until::Operations(500));
        let shelf = Shelf::default();
        let told = AtomicU64::new(0);
        fill(&load, &mut handles(&shelf, 3), &told).expect("memory does not fail");
        assert_eq!((told.load(Ordering::Relaxed), shelf.0.lock().unwrap().len()), (50, 50));
        let measured =
            run(&load, &mut handles(&shelf, 4), &AtomicBool::new(false)).expect("memory does not fail");
        assert_eq!((measured.operations, measured.faults()), (500, 0));
        assert_eq!(together(&load, &measured).latency.len(), 500);
        let mixed = [Kind::Read, Kind::Update].map(|kind| measured.of(kind).expect("both occur").count());
        assert_eq!(mixed.iter().sum::<u64>(), 500);
    }

    #[test]
    fn a_read_modify_write_counts_once() {
        let load = Load::new(Workload::paper_002(Mix::F, 16).sized(20, 200), Until::Operations(200));
        let shelf = Shelf::default();
        fill(&load, &mut handles(&shelf, 1), &AtomicU64::new(0)).expect("memory does not fail");
        let measured =
            run(&load, &mut handles(&shelf, 2), &AtomicBool::new(false)).expect("memory does not fail");
        let rmw = measured.of(Kind::ReadModifyWrite).expect("half of them").count();
        assert_eq!(together(&load, &measured).latency.len(), rmw);
        assert_eq!(measured.operations, 200);
    }

    #[test]
    fn a_store_that_is_gone_ends_the_run_with_its_own_sentence() {
        struct Gone;
        impl StoreClient for Gone {}
        impl KeyValue for Gone {
            type Error = String;
            fn get(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<bool, String> {
                Err("nobody listens there".into())
            }
            fn put(&mut self, _: &[u8], _: &[u8]) -> Result<(), String> {
                Err("nobody listens there".into())
            }
        }
        let load = Load::new(Workload::paper_002(Mix::C, 16), Until::Time(Duration::from_secs(3600)));
        let mut gone: Vec<Handle> = vec![Box::new(Gone)];
        assert_eq!(fill(&load, &mut gone, &AtomicU64::new(0)).unwrap_err(), "nobody listens there");
        assert_eq!(run(&load, &mut gone, &AtomicBool::new(false)).unwrap_err(), "nobody listens there");
    }

    #[test]
    fn a_target_spaces_operations_and_charges_a_stall_to_who_waited() {
        let load = Load {
            target: Some(20_000.0),
            ..Load::new(Workload::paper_002(Mix::C, 16).sized(10, 100), Until::Operations(100))
        };
        let shelf = Shelf::default();
        fill(&load, &mut handles(&shelf, 1), &AtomicU64::new(0)).expect("memory does not fail");
        let measured =
            run(&load, &mut handles(&shelf, 1), &AtomicBool::new(false)).expect("memory does not fail");
        let reads = measured.of(Kind::Read).expect("only reads");
        // The first one has no intended start before its own.
        assert_eq!(reads.intended.len(), 99);
        assert!(measured.rate() <= 21_000.0, "{}", measured.rate());
    }
}
