//! The lease of an unfinished write is extended by progress, and by nothing else.

use crate::common;

use common::{DEFERRED, DURABLE, ERDA, SALT, Store, value};
use remanence_kv::client::{Client, Completion, Put, RemoteMemory, Verb, run};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{ClientId, Event, Options, format};
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::Region;

const SIZE: u64 = 64 << 20;
/// What the slow link carries in a second.
const RATE: u64 = 2 << 20;
/// What a client must be further by, at least, for its lease to be extended.
const STEP: u64 = 64 << 10;

fn with_store(options: Options, story: impl Fn(&Store<'_, Region>)) {
    let region = Region::anonymous(SIZE).expect("memory");
    let geometry = Geometry { heads: 2, ..Geometry::for_size(SIZE) };
    format(&&region, &geometry, 64, SALT, [7; 16]).expect("a fair geometry");
    story(&Store::open(&region, options));
}

/// A client over a slow link: the server goes on all the while, in simulated time.
struct Slow<'s, 'a> {
    store: &'s Store<'a, Region>,
    id: ClientId,
    posts: u64,
    /// Called before each post.
    meanwhile: &'s dyn Fn(u64),
}

impl Slow<'_, '_> {
    fn carry(&self, bytes: usize) -> Result<(), &'static str> {
        let end = self.store.now.get() + bytes as u64 * 1000 / RATE;
        while self.store.now.get() < end {
            self.store.now.set(end.min(self.store.now.get() + 50));
            self.store.step();
            if self.store.events().contains(&Event::Fence { client: self.id }) {
                return Err("cut off");
            }
        }
        Ok(())
    }
}

impl RemoteMemory for Slow<'_, '_> {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        self.posts += 1;
        (self.meanwhile)(self.posts);
        let mut done = Vec::new();
        for verb in verbs {
            done.push(match verb {
                Verb::Call(request) => {
                    let mut server = self.store.server.borrow_mut();
                    Completion::Reply(common::call(&mut server, self.store.now.get(), self.id, &request))
                }
                Verb::Write { at, bytes } => {
                    self.carry(bytes.len())?;
                    self.store.image.write(at, &bytes);
                    Completion::Written
                }
                Verb::Persist(updates) => {
                    for (at, bytes) in &updates {
                        self.carry(bytes.len())?;
                        self.store.image.write_nt(*at, bytes);
                    }
                    self.store.image.psync().expect("memory does not fail");
                    Completion::Persistent
                }
                Verb::Read { .. } => panic!("nothing is read"),
            });
        }
        Ok(done)
    }

    fn now(&self) -> u64 {
        self.store.now.get()
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Err("nobody is in the way")
    }
}

fn put(store: &Store<'_, Region>, value: &[u8], meanwhile: &dyn Fn(u64)) -> Result<u64, &'static str> {
    let id = store.server.borrow_mut().connect();
    let mut client = Client::new(store.server.borrow().view(), 0);
    let mut slow = Slow { store, id, posts: 0, meanwhile };
    let version = run(&mut client, &mut slow, &mut Put::new(b"key", value, 0, Expect::Any))?;
    Ok(version.expect("room"))
}

#[test]
fn a_value_whose_transfer_takes_ten_leases_is_written() {
    for options in [DURABLE, DEFERRED, ERDA] {
        with_store(options, |store| {
            let value = value(1, 11 * (options.lease * RATE / 1000) as usize);
            let begin = store.now.get();
            put(store, &value, &|_| {}).expect("it makes progress");
            assert!(store.now.get() - begin >= 10 * options.lease);
            assert_eq!(store.server.borrow().stats().fenced, 0);
            assert!(store.client(0).value(b"key") == Some(value), "the value is another");
        });
    }
}

#[test]
fn an_object_of_one_piece_is_written_in_lots_too() {
    let region = Region::anonymous(SIZE).expect("memory");
    let geometry =
        Geometry { size: SIZE, region_len: 8 << 20, segment_len: 8 << 20, heads: 1, grown_from: 0 };
    format(&&region, &geometry, 64, SALT, [7; 16]).expect("a fair geometry");
    let store = Store::open(&region, DURABLE);
    let value = value(3, 7 << 20);
    put(&store, &value, &|_| {}).expect("it makes progress");
    assert!(store.now.get() >= 3 * DURABLE.lease);
    assert!(store.client(0).value(b"key") == Some(value), "the value is another");
}

#[test]
fn a_view_waits_for_a_long_write_that_makes_progress() {
    let has_changed = [0, 1].map(|head| {
        let changed = std::cell::Cell::new(false);
        with_store(DURABLE, |store| {
            let mut other = store.client(0);
            for n in 0..40_u8 {
                other.put(&[n], &value(2, 300)).expect("room");
            }
            store.server.borrow_mut().disconnected(other.id).expect("memory does not fail");
            let before = store.server.borrow().view().number;
            let meanwhile = |post| {
                if post == 3 {
                    store.server.borrow_mut().clean(head).expect("there is something to clean");
                }
            };
            let value = value(1, 6 * (DURABLE.lease * RATE / 1000) as usize);
            put(store, &value, &meanwhile).expect("it makes progress");
            assert_eq!(store.server.borrow().stats().fenced, 0);
            changed.set(store.server.borrow().view().number > before);
        });
        changed.get()
    });
    // The head of the key itself is not cleaned as long as there is something to be written to it.
    assert!(has_changed.contains(&true), "no view was waited for");
}

#[test]
fn a_client_that_says_it_goes_on_and_does_not_is_cut_off() {
    let saying: [fn(u64) -> u64; 3] = [|_| 0, |_| STEP, |said| STEP + said];
    for said in saying {
        with_store(DURABLE, |store| {
            let mut client = store.client(0);
            let put = Request::Put { key: b"key".to_vec(), len: 1 << 20, expires: 0, expect: Expect::Any };
            let Reply::Reserved(reserved) = client.call(&put) else { panic!("room") };
            let mut fenced = false;
            // Two leases at most: the first of these may be progress.
            for n in 0..=20 {
                store.now.set(store.now.get() + DURABLE.lease / 10);
                store.step();
                fenced |= store.events().contains(&Event::Fence { client: client.id });
                let renew = Request::Renew { version: reserved.version, written: said(n) };
                let reply = client.call(&renew);
                assert_eq!(reply, if fenced { Reply::Refused(Refusal::Fenced) } else { Reply::Ok });
            }
            assert!(fenced, "it holds the key for ever");
            store.server.borrow_mut().disconnected(client.id).expect("memory does not fail");
            assert_eq!(store.server.borrow().stats().given_up, 1);
            let mut other = store.client(0);
            other.put(b"key", b"two").expect("the key is free");
        });
    }
}

#[test]
fn a_lease_is_extended_so_often_as_there_is_something_to_write() {
    with_store(DURABLE, |store| {
        let mut client = store.client(0);
        let put = Request::Put { key: b"key".to_vec(), len: 16 * STEP, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = client.call(&put) else { panic!("room") };
        let mut renewed = 0;
        loop {
            store.now.set(store.now.get() + DURABLE.lease - 1);
            store.step();
            assert!(store.events().is_empty(), "after {renewed}");
            let written = (renewed + 1) * STEP;
            match client.call(&Request::Renew { version: reserved.version, written }) {
                Reply::Ok => renewed += 1,
                reply => break assert_eq!(reply, Reply::Refused(Refusal::Malformed)),
            }
        }
        assert_eq!(renewed, 16);
        store.now.set(store.now.get() + 1);
        store.step();
        assert_eq!(store.events(), [Event::Fence { client: client.id }]);
        let said = client.call(&Request::View);
        let Reply::Refused(refusal) = said else { panic!("{said:?}") };
        assert!(refusal.to_string().contains("lease"), "{refusal}");
    });
}

/// Steps whenever one is due, and only then. Returns when nothing is.
fn until_nothing_is_due(store: &Store<'_, Region>) {
    for _ in 0..1000 {
        let now = store.now.get();
        let Some(at) = store.server.borrow().deadline() else { return };
        assert!(at > now, "a step at {now} has left what was due at {at}");
        store.now.set(at);
        store.step();
    }
    panic!("something is due for ever");
}

#[test]
fn nothing_is_due_but_what_was_promised_to_be_over_by_then() {
    with_store(DURABLE, |store| {
        // The first round counts what is there.
        while store.step() {}
        assert_eq!(store.server.borrow().deadline(), None, "a store that nobody uses");
        let mut client = store.client(0);
        client.put(b"for ever", b"value").expect("room");
        until_nothing_is_due(store);
        // A key that expires, in a round of its own.
        let begin = store.now.get();
        let put = |expires: u64| {
            let (key, value) = (expires.to_string().into_bytes(), vec![1]);
            Request::PutInline { key, value, expires, expect: Expect::Any }
        };
        for after in [5000, 9000] {
            let reply = client.call(&put(begin + after));
            assert!(!matches!(reply, Reply::Refused(_)), "{reply:?}");
        }
        store.step();
        assert_eq!(store.server.borrow().deadline(), Some(begin + 5000));
        until_nothing_is_due(store);
        assert_eq!(store.server.borrow().stats().expired, 2);
        assert!((begin + 9000..begin + 9000 + 60_000).contains(&store.now.get()));
        // A write that does not end, and whose client is not gone yet when it is told.
        let put = Request::Put { key: b"key".to_vec(), len: 1 << 20, expires: 0, expect: Expect::Any };
        let Reply::Reserved(_) = client.call(&put) else { panic!("room") };
        let lease = store.now.get() + DURABLE.lease;
        assert_eq!(store.server.borrow().deadline(), Some(lease));
        until_nothing_is_due(store);
        assert_eq!(store.now.get(), lease);
        assert_eq!(store.events(), [Event::Fence { client: client.id }]);
        store.server.borrow_mut().disconnected(client.id).expect("memory does not fail");
        assert_eq!(store.server.borrow().deadline(), None);
    });
}

#[test]
fn nobody_extends_the_lease_of_another_and_no_reader_any() {
    with_store(DURABLE, |store| {
        let mut client = store.client(0);
        let put = Request::Put { key: b"key".to_vec(), len: 1 << 20, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = client.call(&put) else { panic!("room") };
        let renew = |version| Request::Renew { version, written: STEP };
        let mut other = store.client(0);
        assert_eq!(other.call(&renew(reserved.version)), Reply::Refused(Refusal::NotYours));
        assert_eq!(client.call(&renew(reserved.version + 1)), Reply::Refused(Refusal::NotYours));
        let reader = store.server.borrow_mut().connect_reader();
        let reply = common::call(&mut store.server.borrow_mut(), 2, reader, &renew(reserved.version));
        assert_eq!(reply, Reply::Refused(Refusal::ReadOnly));
        store.now.set(store.now.get() + DURABLE.lease);
        store.step();
        assert_eq!(store.events(), [Event::Fence { client: client.id }]);
    });
}
