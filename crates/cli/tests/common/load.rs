//! Writers that know what their keys must have, whoever of the servers is killed meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remanence_kv_live::{Error, PutOptions, Store};
use remanence_verbs::Context;

use super::common::address;

/// How long a test waits for what must come: much longer than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What a writer knows of its keys: what was acknowledged last, and what may have been written since.
pub(crate) type Known = BTreeMap<String, (u64, Vec<u64>)>;

pub(crate) fn context() -> Context {
    Context::open(remanence_verbs::Options::udp(address())).expect("a device")
}

fn value(n: u64) -> Vec<u8> {
    [&n.to_le_bytes()[..], &vec![n as u8; n as usize % 3000]].concat()
}

pub(crate) fn write(mut store: Store, writer: usize, stop: &AtomicBool, done: &AtomicU64) -> Known {
    let mut known = Known::new();
    for n in 0_u64.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let key = format!("writer {writer} key {}", n % 20);
        let entry = known.entry(key.clone()).or_default();
        match store.put(key.as_bytes(), &value(n), PutOptions::default()) {
            Ok(_) => *entry = (n, Vec::new()),
            // It is told, and not guessed.
            Err(Error::Unknown(_)) => entry.1.push(n),
            Err(error) => panic!("{error}"),
        }
        done.fetch_add(1, Ordering::AcqRel);
    }
    known
}

/// Waits until so many more writes have ended.
pub(crate) fn goes_on(done: &AtomicU64, count: u64) {
    let (before, begin) = (done.load(Ordering::Acquire), Instant::now());
    while done.load(Ordering::Acquire) < before + count {
        assert!(begin.elapsed() < PATIENCE, "the writers do not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn is_there(store: &mut Store, known: &[Known]) {
    for (key, (acknowledged, perhaps)) in known.iter().flatten() {
        let found = store.get(key.as_bytes()).expect("a GET").expect("it was acknowledged").value;
        let right = found == value(*acknowledged) || perhaps.iter().any(|n| found == value(*n));
        assert!(right, "{key}: neither {acknowledged} nor any of {perhaps:?}");
    }
}
