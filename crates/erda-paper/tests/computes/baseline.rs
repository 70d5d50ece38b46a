//! The two schemes that Erda is compared with do what they are supposed to, crashes included: only then is it a comparison.

use std::cell::RefCell;
use std::collections::BTreeMap;

use remanence_erda_paper::baseline::{Baseline, ReadAfterWritePut, Scheme, Sizes, client};
use remanence_kv::client::{Call, Completion, RemoteMemory, Verb, run};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_pmem::crash_image::{CrashImage, Explorer};
use remanence_pmem::{Medium, PersistenceDomain};

const SIZES: Sizes = Sizes { key: 1, value: 40, keys: 6, records: 4 };

struct Remote<'a> {
    image: &'a CrashImage,
    server: RefCell<Baseline<&'a CrashImage>>,
}

impl RemoteMemory for Remote<'_> {
    type Error = std::io::Error;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        let mut completions = Vec::new();
        for verb in verbs {
            completions.push(match verb {
                Verb::Write { at, bytes } => {
                    self.image.write_nt(at, &bytes);
                    Completion::Written
                }
                // On a machine without DDIO a READ makes durable what its QP wrote before it, and that is the scheme.
                Verb::Read { at, len } => {
                    self.image.psync()?;
                    let mut bytes = vec![0; len as usize];
                    self.image.read(at, &mut bytes);
                    Completion::Read(bytes)
                }
                Verb::Call(request) => Completion::Reply(self.server.borrow_mut().handle(&request)?),
                Verb::Persist(_) => panic!("the baselines have their own way"),
            });
        }
        Ok(completions)
    }

    fn now(&self) -> u64 {
        0
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        self.server.borrow_mut().apply(1).map(|_| ())
    }
}

fn put(remote: &mut Remote<'_>, scheme: Scheme, key: u8, value: u8) -> Result<(), String> {
    let value = vec![value; SIZES.value];
    let done = match scheme {
        Scheme::RedoLogging => {
            let put = Request::PutInline { key: vec![key], value, expires: 0, expect: Expect::Any };
            run(&mut client(), remote, &mut Call::new(put)).expect("memory does not fail").map(|_| ())
        }
        Scheme::ReadAfterWrite => {
            let mut put = ReadAfterWritePut::new(&[key], &value);
            run(&mut client(), remote, &mut put).expect("memory does not fail").map(|_| ())
        }
    };
    done.map_err(|error| error.to_string())
}

fn get(remote: &mut Remote<'_>, key: u8) -> Option<u8> {
    let get = Request::Get { key: vec![key] };
    match run(&mut client(), remote, &mut Call::new(get)).expect("memory does not fail") {
        Ok(Reply::Value { value, .. }) => {
            assert_eq!(value, vec![value[0]; SIZES.value], "torn");
            Some(value[0])
        }
        Ok(Reply::Absent) => None,
        other => panic!("{other:?}"),
    }
}

fn delete(remote: &mut Remote<'_>, key: u8) {
    let delete = Request::Delete { key: vec![key], expect: Expect::Any };
    run(&mut client(), remote, &mut Call::new(delete)).expect("memory does not fail").expect("no refusal");
}

/// Key, and its new value or nothing.
const STORY: [(u8, Option<u8>); 12] = [
    (1, Some(10)),
    (2, Some(20)),
    (1, Some(11)),
    (3, Some(30)),
    (1, None),
    (4, Some(40)),
    (1, Some(12)),
    (2, Some(21)),
    (3, None),
    (5, Some(50)),
    (3, Some(31)),
    (2, Some(22)),
];

#[test]
fn what_is_acknowledged_is_there_after_a_crash_at_any_step() {
    for scheme in [Scheme::RedoLogging, Scheme::ReadAfterWrite] {
        let start = CrashImage::new(SIZES.medium(), PersistenceDomain::Adr);
        Baseline::format(&start, scheme, SIZES).expect("memory does not fail");
        let report = Explorer { ways_max: 16, samples: 16, ..Explorer::default() }.run(
            &start,
            |image| {
                let server = Baseline::recover(image, scheme, SIZES).expect("memory does not fail");
                let mut remote = Remote { image, server: RefCell::new(server) };
                let mut now = BTreeMap::new();
                for (n, (key, value)) in STORY.into_iter().enumerate() {
                    match value {
                        Some(value) => put(&mut remote, scheme, key, value).expect("room"),
                        None => delete(&mut remote, key),
                    }
                    now.insert(key, value);
                    image.note(n as u64 + 1);
                    assert_eq!(get(&mut remote, key), value);
                    if n % 3 == 0 {
                        remote.server.borrow_mut().apply(2).expect("memory does not fail");
                    }
                    for (key, value) in &now {
                        assert_eq!(get(&mut remote, *key), *value, "{key} after {n}");
                    }
                }
            },
            |crashed, notes| {
                let server = Baseline::recover(crashed, scheme, SIZES).expect("memory does not fail");
                let mut remote = Remote { image: crashed, server: RefCell::new(server) };
                let state = |count: usize| -> BTreeMap<u8, Option<u8>> {
                    STORY[..count.min(STORY.len())].iter().copied().collect()
                };
                let (whole, next) = (state(notes.len()), state(notes.len() + 1));
                for key in 1..6 {
                    let found = get(&mut remote, key);
                    let fair = [&whole, &next].map(|state| state.get(&key).copied().flatten());
                    assert!(fair.contains(&found), "{key} is {found:?}, should be one of {fair:?}");
                }
            },
        );
        assert!(report.crashes > 500, "{report:?}");
    }
}

#[test]
fn a_store_that_is_full_says_so_and_a_client_that_died_does_not_stop_it() {
    let image = CrashImage::new(SIZES.medium(), PersistenceDomain::Adr);
    let server = Baseline::format(&image, Scheme::ReadAfterWrite, SIZES).expect("memory does not fail");
    let mut remote = Remote { image: &image, server: RefCell::new(server) };
    let dying = Request::Put { key: vec![1], len: 40, expires: 0, expect: Expect::Any };
    remote.server.borrow_mut().handle(&dying).expect("memory does not fail");
    for key in 2..5 {
        put(&mut remote, Scheme::ReadAfterWrite, key, key).expect("room");
    }
    assert!(put(&mut remote, Scheme::ReadAfterWrite, 5, 5).is_err(), "the ring is behind the one that died");
    remote.server.borrow_mut().skip_unfinished();
    put(&mut remote, Scheme::ReadAfterWrite, 5, 5).expect("room again");
    assert_eq!(
        (2..6).map(|key| get(&mut remote, key)).collect::<Vec<_>>(),
        [Some(2), Some(3), Some(4), Some(5)]
    );
    for key in 6..8 {
        put(&mut remote, Scheme::ReadAfterWrite, key, key).expect("room");
    }
    let full = put(&mut remote, Scheme::ReadAfterWrite, 8, 8).expect_err("six keys");
    assert!(full.contains("full"), "{full}");
    let wrong = Request::Put { key: vec![1, 2], len: 40, expires: 0, expect: Expect::Any };
    let reply = remote.server.borrow_mut().handle(&wrong).expect("memory does not fail");
    assert!(matches!(reply, Reply::Refused(_)));
}
