//! The reference implementation's own operations, reproduced from the same random stream.
//!
//! The figures were printed by YCSB's `CoreWorkload` (brianfrankcooper/YCSB, d9faaac, 2026-04-15) under its own property
//! files, with `ThreadLocalRandom` replaced by the generator below, seeded with 42 after the workload was initialised,
//! and a database that writes down what it is asked for: 20,000 transactions each, hashed line by line.

use std::sync::Arc;

use remanence_ycsb::generator::Generator;
use remanence_ycsb::record::Record;
use remanence_ycsb::workload::{InsertOrder, Length, Mix, Request, Workload};
use remanence_ycsb::{Fields, Operation, Random};

/// Random numbers by SplitMix64, which the reference used too.
struct Split(u64);

impl Random for Split {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

struct Log {
    lines: u64,
    hash: u64,
}

impl Log {
    fn note(&mut self, line: &str) {
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
        }
        self.lines += 1;
    }
}

fn show(values: &Record) -> String {
    values.iter().map(|(field, bytes)| format!(" {field}={}", std::str::from_utf8(bytes).unwrap())).collect()
}

fn which(fields: Fields) -> String {
    match fields {
        Fields::All => "all".to_owned(),
        Fields::One(field) => field.to_string(),
    }
}

fn run(workload: Workload) -> (u64, u64) {
    let workload = Arc::new(workload);
    let inserts = Generator::<Split>::inserts_of(&workload);
    let mut generator = Generator::new(workload.clone(), inserts.clone(), Split(42)).unwrap();
    let mut log = Log { lines: 0, hash: 0xCBF2_9CE4_8422_2325 };
    let key = |record: u64| {
        let mut key = Vec::new();
        workload.key(record, &mut key);
        String::from_utf8(key).unwrap()
    };
    for _ in 0..20_000 {
        match generator.operation() {
            Operation::Read { record, fields } => {
                log.note(&format!("READ {} {}", key(record), which(fields)))
            }
            Operation::Update { record, values } => {
                log.note(&format!("UPDATE {}{}", key(record), show(&values)))
            }
            Operation::Insert { record, values } => {
                log.note(&format!("INSERT {}{}", key(record), show(&values)));
                inserts.acknowledge(record);
            }
            Operation::Scan { record, count, fields } => {
                log.note(&format!("SCAN {} {count} {}", key(record), which(fields)));
            }
            Operation::ReadModifyWrite { record, fields, values } => {
                log.note(&format!("READ {} {}", key(record), which(fields)));
                log.note(&format!("UPDATE {}{}", key(record), show(&values)));
            }
        }
    }
    (log.lines, log.hash)
}

#[test]
fn the_core_workloads_ask_for_what_ycsb_asks_for() {
    for (mix, lines, hash) in [
        (Mix::A, 20_000, 1_155_407_464_523_807_165),
        (Mix::B, 20_000, 3_614_712_611_265_796_273),
        (Mix::C, 20_000, 18_080_841_806_139_977_454),
        (Mix::D, 20_000, 13_809_884_174_464_125_794),
        (Mix::E, 20_000, 3_105_257_878_281_539_385),
        (Mix::F, 29_963, 12_821_814_878_098_187_141),
        (Mix::Update, 20_000, 8_911_100_235_748_074_849),
    ] {
        assert_eq!(run(Workload::core(mix)), (lines, hash), "workload {mix}");
    }
}

#[test]
fn other_properties_ask_for_what_ycsb_asks_for() {
    let a = || Workload::core(Mix::A);
    let b = || Workload::core(Mix::B);
    let cases: Vec<(&str, Workload, u64, u64)> = vec![
        (
            "readallfields:false,fieldlengthdistribution:uniform",
            Workload { read_all: false, field_length: Length::Uniform, ..a() },
            20_000,
            840_757_819_349_190_569,
        ),
        (
            "fieldlengthdistribution:zipfian,writeallfields:true",
            Workload { field_length: Length::Zipfian, write_all: true, ..a() },
            20_000,
            6_228_512_264_758_964_621,
        ),
        (
            "requestdistribution:hotspot,recordcount:5000",
            Workload { request: Request::Hotspot, records: 5000, ..b() },
            20_000,
            10_210_963_013_338_575_539,
        ),
        (
            "requestdistribution:exponential",
            Workload { request: Request::Exponential, ..b() },
            20_000,
            3_739_327_833_595_847_935,
        ),
        (
            "requestdistribution:uniform,insertorder:ordered,zeropadding:12",
            Workload { request: Request::Uniform, order: InsertOrder::Ordered, zero_padding: 12, ..b() },
            20_000,
            15_894_176_338_526_789_069,
        ),
        (
            "requestdistribution:sequential",
            Workload { request: Request::Sequential, ..Workload::core(Mix::C) },
            20_000,
            2_115_403_123_772_476_897,
        ),
        (
            "scanlengthdistribution:zipfian,operationcount:20000",
            Workload { scan_length: Length::Zipfian, operations: 20_000, ..Workload::core(Mix::E) },
            20_000,
            18_094_528_295_268_930_331,
        ),
        ("dataintegrity:true", Workload { integrity: true, ..a() }, 20_000, 10_947_276_072_623_213_185),
    ];
    let mut wrong = Vec::new();
    for (name, workload, lines, hash) in cases {
        if run(workload) != (lines, hash) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
