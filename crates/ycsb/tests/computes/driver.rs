//! The driver on a store that keeps what it is given, by a clock that moves when told to.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use remanence_ycsb::driver::{Client, Outcome, Store};
use remanence_ycsb::generator::{Fields, Generator, Kind};
use remanence_ycsb::packed::{KeyValue, Packed, pack, unpack};
use remanence_ycsb::random::Seeded;
use remanence_ycsb::record::Record;
use remanence_ycsb::workload::{Mix, PAPER_002_VALUE_SIZES, Request, Workload, WorkloadError};

/// A map that all handles share; every call takes a microsecond of the clock.
#[derive(Clone, Default)]
struct Map {
    shared: Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
    time: Arc<Mutex<u64>>,
    fail_reads: bool,
    torn: bool,
}

impl Map {
    fn pass(&self) {
        *self.time.lock().unwrap() += 1000;
    }
}

impl KeyValue for Map {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        self.pass();
        if self.fail_reads {
            return Err("the cable is out".to_owned());
        }
        let found =
            self.shared.lock().unwrap().get(key).map(|found| value.extend_from_slice(found)).is_some();
        if self.torn
            && let Some(last) = value.last_mut()
        {
            *last ^= 1;
        }
        Ok(found)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.pass();
        self.shared.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<Result<(), String>> {
        self.pass();
        self.shared
            .lock()
            .unwrap()
            .range(start.to_vec()..)
            .take(count as usize)
            .for_each(|(k, v)| each(k, v));
        Some(Ok(()))
    }
}

fn clients(workload: &Workload, seed: u64, threads: u64) -> Vec<Client<Seeded>> {
    let workload = Arc::new(workload.clone());
    let inserts = Generator::<Seeded>::inserts_of(&workload);
    let generator =
        |thread| Generator::new(workload.clone(), inserts.clone(), Seeded::new(seed, thread)).unwrap();
    (0..threads).map(|thread| Client::new(generator(thread), 1_000_000)).collect()
}

#[test]
fn every_workload_finds_what_was_loaded_and_inserted() {
    for mix in Mix::ALL {
        let workload = Workload { integrity: true, ..Workload::core(mix).sized(500, 3000) };
        let map = Map::default();
        let clock = || *map.time.lock().unwrap();
        let mut store = Packed::new(map.clone(), workload.fields);
        let mut clients = clients(&workload, 3, 2);
        let loaded: u64 = clients
            .iter_mut()
            .enumerate()
            .map(|(i, c)| c.load(&mut store, &clock, i as u64, 2).unwrap())
            .sum();
        assert_eq!((loaded, map.shared.lock().unwrap().len()), (500, 500));
        let mut sum = clients[0].measured().clone();
        for client in &mut clients {
            for _ in 0..1500 {
                let (_, outcome) = client.step(&mut store, &clock);
                assert_eq!(outcome, Outcome::Done, "{mix}");
            }
        }
        sum.merge(clients[1].measured());
        assert_eq!(
            clients[0].measured().faults() + clients[1].measured().faults(),
            0,
            "{mix}: wrong bytes were read"
        );
        let kinds: Vec<Kind> = clients[0].measured().kinds().map(|(kind, _)| kind).collect();
        let expected: &[Kind] = match mix {
            Mix::A | Mix::B => &[Kind::Read, Kind::Update, Kind::Insert],
            Mix::C | Mix::D => &[Kind::Read, Kind::Insert],
            Mix::E => &[Kind::Insert, Kind::Scan],
            Mix::F => &[Kind::Read, Kind::Update, Kind::Insert, Kind::ReadModifyWrite],
            Mix::Update => &[Kind::Update, Kind::Insert],
        };
        assert_eq!(kinds, expected, "{mix} (inserts are the loading phase's too)");
    }
}

#[test]
fn a_wrong_byte_is_noticed_where_integrity_is_asked_for() {
    let workload = Workload { integrity: true, ..Workload::core(Mix::C).sized(10, 10) };
    let map = Map::default();
    let clock = || *map.time.lock().unwrap();
    let mut client = clients(&workload, 1, 1).remove(0);
    client.load(&mut Packed::new(map.clone(), 10), &clock, 0, 1).unwrap();
    client.step(&mut Packed::new(map.clone(), 10), &clock);
    assert_eq!(client.measured().faults(), 0);
    client.step(&mut Packed::new(Map { torn: true, ..map.clone() }, 10), &clock);
    assert_eq!(client.measured().faults(), 1);
}

#[test]
fn latencies_are_of_the_store_alone_and_failures_are_apart() {
    let workload = Workload::paper_002(Mix::A, 64).sized(100, 100);
    let map = Map::default();
    let clock = || *map.time.lock().unwrap();
    let mut client = clients(&workload, 1, 1).remove(0);
    client.load(&mut Packed::new(map.clone(), 1), &clock, 0, 1).unwrap();
    let mut store = Packed::new(map.clone(), 1);
    for _ in 0..100 {
        client.step(&mut store, &clock);
    }
    let mut broken = Packed::new(Map { fail_reads: true, ..map.clone() }, 1);
    while client.measured().of(Kind::Read).unwrap().failed == 0 {
        client.step(&mut broken, &clock);
    }
    let measured = client.into_measured();
    for kind in [Kind::Read, Kind::Update] {
        let series = measured.of(kind).unwrap();
        assert!(series.latency.len() > 20);
        // Values of the histogram are exact to three digits.
        assert!(
            (999..=1001).contains(&series.latency.max()) && series.latency.min() >= 999,
            "one call, one microsecond"
        );
    }
    assert_eq!(measured.first_error.as_deref(), Some("the cable is out"));
    let over_time: u64 = measured.timeline.windows.values().map(|window| window.operations).sum();
    let done: u64 = measured.kinds().map(|(_, series)| series.latency.len()).sum();
    assert_eq!(over_time, done);
    assert!((measured.rate() - 1e6).abs() < 1e4, "{} operations a second, back to back", measured.rate());
}

#[test]
fn a_stall_is_charged_to_everything_that_waited_for_it() {
    struct Stalls(Cell<u64>, u64);
    impl Store for Stalls {
        type Error = String;
        fn read(&mut self, _: &[u8], _: Fields) -> Result<Option<Record>, String> {
            self.1 += 1;
            // The fifth takes a millisecond, the others one microsecond.
            self.0.set(self.0.get() + if self.1 == 5 { 1_000_000 } else { 1000 });
            Ok(Some(Vec::new()))
        }
        fn update(&mut self, _: &[u8], _: &Record) -> Result<bool, String> {
            Ok(true)
        }
        fn insert(&mut self, _: &[u8], _: &Record) -> Result<(), String> {
            Ok(())
        }
        fn scan(&mut self, _: &[u8], _: u64, _: Fields) -> Result<Vec<Record>, String> {
            Ok(Vec::new())
        }
    }
    let workload = Workload::core(Mix::C);
    // An operation every 10 microseconds; the caller waits for its time by moving the clock.
    let mut client = clients(&workload, 1, 1).remove(0).with_target(100_000.0);
    let mut store = Stalls(Cell::new(0), 0);
    for _ in 0..50 {
        if let Some(due) = client.due() {
            store.0.set(store.0.get().max(due));
        }
        let now = Cell::new(0);
        now.set(store.0.get());
        // The clock is read twice a step, before and after the call.
        let before = Cell::new(true);
        let base = store.0.get();
        let stall = store.1 == 4;
        let clock =
            move || if before.replace(false) { base } else { base + if stall { 1_000_000 } else { 1000 } };
        client.step(&mut store, &clock);
    }
    let series = client.measured().of(Kind::Read).unwrap();
    let slow = |histogram: &hdrhistogram::Histogram<u64>| histogram.count_between(100_000, u64::MAX / 2);
    assert_eq!(slow(&series.latency), 1, "one operation was slow");
    assert!(slow(&series.intended) > 40, "and those behind it waited: {}", slow(&series.intended));
}

#[test]
fn one_seed_replays_a_run_and_threads_differ() {
    let workload = Workload::core(Mix::F).sized(1000, 1000);
    let operations = |seed, thread| {
        let workload = Arc::new(workload.clone());
        let inserts = Generator::<Seeded>::inserts_of(&workload);
        let mut generator = Generator::new(workload, inserts, Seeded::new(seed, thread)).unwrap();
        (0..200).map(|_| generator.operation()).collect::<Vec<_>>()
    };
    let shared = Arc::new(workload.clone());
    let first =
        Generator::new(shared.clone(), Generator::<Seeded>::inserts_of(&shared), Seeded::new(1, 0)).unwrap();
    let mut second = first.for_thread(Seeded::new(1, 1));
    assert_eq!((0..200).map(|_| second.operation()).collect::<Vec<_>>(), operations(1, 1));
    assert_eq!(operations(1, 0), operations(1, 0));
    assert_ne!(operations(1, 0), operations(1, 1));
    assert_ne!(operations(1, 0), operations(2, 0));
}

#[test]
fn paper_002_replaces_values_of_its_sizes_whole() {
    for size in PAPER_002_VALUE_SIZES {
        let workload = Workload::paper_002(Mix::Update, size).sized(50, 50);
        let map = Map::default();
        let clock = || *map.time.lock().unwrap();
        let mut client = clients(&workload, 1, 1).remove(0);
        let mut store = Packed::new(map.clone(), workload.fields);
        client.load(&mut store, &clock, 0, 1).unwrap();
        for _ in 0..50 {
            client.step(&mut store, &clock);
        }
        assert!(map.shared.lock().unwrap().values().all(|value| value.len() == size));
        let calls = *map.time.lock().unwrap() / 1000;
        assert_eq!(calls, 100, "an update is one write, and no read");
    }
}

#[test]
fn records_are_packed_and_what_is_none_is_refused() {
    let record: Record = vec![(0, b"a".to_vec()), (1, Vec::new()), (2, vec![7; 300])];
    let value = pack(&record);
    assert_eq!(unpack(&value, 3), Some(record));
    assert_eq!(unpack(&value, 2), None);
    assert_eq!(unpack(&value, 4), None);
    for cut in 0..value.len() {
        assert_eq!(unpack(&value[..cut], 3), None, "cut at {cut}");
    }
    assert_eq!(pack(&vec![(0, b"whole".to_vec())]), b"whole");
}

#[test]
fn property_files_are_read_as_ycsb_reads_them() {
    let text = "# Yahoo\nrecordcount=2000\noperationcount=10\nworkload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n\
                readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\n\
                requestdistribution=zipfian\nmaxscanlength=100\nscanlengthdistribution=uniform\n";
    assert_eq!(Workload::parse(text).unwrap(), Workload::core(Mix::E).sized(2000, 10));
    assert_eq!(Workload::parse("").unwrap().request, Request::Uniform);
    let refused = |text: &str| Workload::parse(text).unwrap_err();
    assert!(matches!(refused("hello"), WorkloadError::Line { line: 1, .. }));
    assert!(matches!(refused("fieldcount=x"), WorkloadError::Unknown { name: "fieldcount", .. }));
    assert!(matches!(refused("requestdistribution=what"), WorkloadError::Unknown { .. }));
    assert!(matches!(refused("fieldlengthhistogram=h.txt"), WorkloadError::Unsupported { .. }));
    for text in [
        "recordcount=0",
        "insertstart=900\ninsertcount=200",
        "fieldcount=0",
        "minscanlength=5\nmaxscanlength=4",
        "readproportion=0\nupdateproportion=0",
        "readproportion=-1",
        "readproportion=NaN",
        "fieldlengthdistribution=uniform\nminfieldlength=200",
        "dataintegrity=true\nfieldlengthdistribution=zipfian",
        "requestdistribution=latest\nrecordcount=1",
        "insertcount=0",
        "insertstart=18446744073709551615",
    ] {
        assert!(matches!(refused(text), WorkloadError::Contradiction(_)), "{text}");
    }
    assert_eq!("B".parse::<Mix>().unwrap(), Mix::B);
    assert!("g".parse::<Mix>().is_err());
}
