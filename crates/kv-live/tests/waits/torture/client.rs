//! A client of the torture: does what its seed says, and writes down what it does before and after.

use std::time::Duration;

use remanence_kv::client::Found;
use remanence_kv::proto::{Expect, Refusal};
use remanence_kv_live::{ConnectOptions, Error, PutOptions, Store};
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_sim::history::State;

use super::board::{Intent, Lane, Outcome};
use super::live::options;

/// Few, so that clients meet.
pub(crate) const KEYS: u64 = 10;

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// The bytes of a write: its number, its key, and what follows from both. No part of one is a part of another.
pub(crate) fn value(key: u64, write: State) -> Vec<u8> {
    let len = match write % 37 {
        0 => 17_000 + write as usize % 20_000,
        n if n < 4 => write as usize % 6000,
        n => n as usize * 11,
    };
    let mut bytes = Vec::with_capacity(len + 16);
    bytes.extend(write.to_le_bytes());
    bytes.extend(key.to_le_bytes());
    let seed = (write ^ key << 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bytes.extend((0..len as u64).map(|n| (seed.wrapping_add(n.wrapping_mul(write | 1)) >> 9) as u8));
    bytes
}

/// Which write it is; `None` if it is none.
pub(crate) fn state(key: u64, found: Option<&Found>) -> Option<State> {
    let Some(found) = found else { return Some(0) };
    let write = State::from_le_bytes(*found.value.first_chunk()?);
    (write != 0 && found.value == value(key, write)).then_some(write)
}

fn got(key: u64, found: Option<&Found>) -> Outcome {
    state(key, found).map_or_else(
        || {
            eprintln!("no such value was ever written: {key}, {found:?}");
            Outcome::Torn
        },
        Outcome::Got,
    )
}

/// What an error says about a change. Only the one that says that it does not know leaves a doubt.
fn failed(error: &Error) -> Outcome {
    match error {
        Error::Unknown(_) => Outcome::Unknown,
        Error::Refused(Refusal::WrongVersion { .. }) => Outcome::WrongVersion,
        _ => Outcome::Nothing,
    }
}

/// What one client of a life may number its writes by: numbers of its own.
pub(crate) fn first_write(epoch: u64, lane: u64) -> State {
    epoch << 32 | lane << 16 | 1
}

/// Works until it is stopped, killed or has no room to write down more, wherever the store is.
pub(crate) fn work(
    connect: impl Fn(ConnectOptions) -> Result<Store, Error>,
    mut lane: Lane,
    first: State,
    seed: u64,
) {
    let mut choices = Seeded::new(seed);
    let mut next = first;
    let mut write = || {
        next += 1;
        next - 1
    };
    let locations = if choices.pick(3) == 0 { 0 } else { 1000 };
    let options = options().locations(locations).patience(Duration::from_secs(60));
    let mut store = loop {
        if lane.board().is_stopped() {
            return;
        }
        // The server may be dead at the moment.
        match connect(options.clone()) {
            Ok(store) => break store,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    while !lane.board().is_stopped() && !lane.is_full() {
        let number = choices.pick(KEYS as usize) as u64;
        let name = key(number);
        match choices.pick(20) {
            0..7 => {
                let record = lane.begin(number, Intent::Get);
                let found = store.get(&name);
                lane.end(record, found.map_or(Outcome::Unknown, |found| got(number, found.as_ref())));
            }
            7 => {
                let numbers: Vec<u64> = (0..3).map(|n| (number + n) % KEYS).collect();
                let names: Vec<Vec<u8>> = numbers.iter().copied().map(key).collect();
                let records: Vec<u64> =
                    numbers.iter().map(|number| lane.begin(*number, Intent::Get)).collect();
                match store.get_many(&names) {
                    Ok(found) => {
                        (0..3).for_each(|n| lane.end(records[n], got(numbers[n], found[n].as_ref())))
                    }
                    Err(_) => records.into_iter().for_each(|record| lane.end(record, Outcome::Unknown)),
                }
            }
            8 => {
                let record = lane.begin(number, Intent::Delete);
                let outcome = match store.delete(&name, Expect::Any) {
                    Ok(Some(_)) => Outcome::Done,
                    Ok(None) => Outcome::Got(0),
                    Err(error) => failed(&error),
                };
                lane.end(record, outcome);
            }
            9..12 => {
                let Ok(found) = store.get(&name) else { continue };
                let Some(old) = state(number, found.as_ref()) else { continue };
                let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
                let new = write();
                let record = lane.begin(number, Intent::Swap(old, new));
                let done = store.put(&name, &value(number, new), PutOptions { expect, ttl: None });
                lane.end(record, done.map_or_else(|error| failed(&error), |_| Outcome::Done));
            }
            12 => {
                let numbers: Vec<u64> = (0..3).map(|n| (number + n) % KEYS).collect();
                let writes: Vec<State> = numbers.iter().map(|_| write()).collect();
                let pairs: Vec<(Vec<u8>, Vec<u8>)> =
                    (0..3).map(|n| (key(numbers[n]), value(numbers[n], writes[n]))).collect();
                let records: Vec<u64> =
                    (0..3).map(|n| lane.begin(numbers[n], Intent::Put(writes[n]))).collect();
                match store.put_many(&pairs, PutOptions::default()) {
                    Ok(done) => {
                        for (record, done) in records.into_iter().zip(done) {
                            lane.end(record, done.map_or_else(|error| failed(&error), |_| Outcome::Done));
                        }
                    }
                    Err(error) => records.into_iter().for_each(|record| lane.end(record, failed(&error))),
                }
            }
            _ => {
                let new = write();
                let record = lane.begin(number, Intent::Put(new));
                let done = store.put(&name, &value(number, new), PutOptions::default());
                lane.end(record, done.map_or_else(|error| failed(&error), |_| Outcome::Done));
            }
        }
        // As a client that is alive does.
        if choices.pick(16) == 0 {
            let _ = store.rest();
        }
    }
}
