//! Operations to be crashed, what they leave when they are acknowledged, and what may be found after a crash.

use std::collections::{BTreeMap, BTreeSet};

use remanence_kv::client::{Many, Put};
use remanence_kv::proto::{Expect, Inline, Refusal, Reply, Request};
use remanence_kv::server::{ClientId, Named};
use remanence_kv::{Geometry, Options};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

use super::{SALT, Session, Store, formatted, value};

pub(crate) const TINY: Geometry =
    Geometry { size: 32 << 10, region_len: 1024, segment_len: 512, heads: 2, grown_from: 0 };

pub(crate) type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put(u8, Vec<u8>),
    Inline(u8, Vec<u8>),
    Delete(u8),
    /// Of all keys, or of those that begin with a byte.
    Clear(Option<u8>),
    Batch(Vec<(u8, Vec<u8>)>),
    /// The server writes them, with one wait for the medium.
    Together(Vec<(u8, Vec<u8>)>),
    /// The same, of values and deletions.
    Mixed(Vec<(u8, Option<Vec<u8>>)>),
    /// The server writes them, and the client waits for the medium.
    Begun(Vec<(u8, Option<Vec<u8>>)>),
    /// The same, of a client that goes before it has waited; then somebody looks.
    Left(Vec<(u8, Option<Vec<u8>>)>),
    /// Entries are kept for them, of a client that goes before it has waited; meanwhile another writes the first.
    Ahead(Vec<(u8, Option<Vec<u8>>)>),
    /// Their requests are at hand together, of clients that each go on alone.
    Apart(Vec<(u8, Vec<u8>)>),
    /// Room is handed out, this much of the object is written, and the client dies.
    Torn(u8, Vec<u8>, usize),
    Clean(u8),
    Resize(u64),
    /// The table begins to grow: entries move from here on.
    Grow(u64),
    /// Some entries of the old table move.
    Step(usize),
    /// Growing comes to its end.
    Grown,
    /// The server settles what clients have confirmed.
    Settle,
}

impl Op {
    pub(crate) fn apply(&self, contents: &mut Contents) {
        match self {
            Self::Put(key, value) | Self::Inline(key, value) => {
                drop(contents.insert(vec![*key], value.clone()));
            }
            Self::Delete(key) => drop(contents.remove(&vec![*key])),
            Self::Clear(first) => contents.retain(|key, _| first.is_some_and(|first| key[0] != first)),
            Self::Batch(puts) | Self::Together(puts) | Self::Apart(puts) => {
                puts.iter().for_each(|(key, value)| drop(contents.insert(vec![*key], value.clone())));
            }
            Self::Mixed(changes) | Self::Begun(changes) | Self::Left(changes) => {
                for (key, value) in changes {
                    match value {
                        Some(value) => drop(contents.insert(vec![*key], value.clone())),
                        None => drop(contents.remove(&vec![*key])),
                    }
                }
            }
            Self::Ahead(changes) => {
                drop(contents.insert(vec![changes[0].0], changes[0].1.clone().expect("a value")))
            }
            Self::Torn(..) | Self::Clean(_) | Self::Resize(_) => {}
            Self::Grow(_) | Self::Step(_) | Self::Grown | Self::Settle => {}
        }
    }

    pub(crate) fn run(&self, store: &Store<'_>, client: &mut Session<'_, '_>) {
        match self {
            Self::Put(key, value) => assert!(client.put(&[*key], value).is_ok()),
            Self::Inline(key, value) => {
                let (key, value) = (vec![*key], value.clone());
                let reply = client.call(&Request::PutInline { key, value, expires: 0, expect: Expect::Any });
                assert!(matches!(reply, Reply::Done { .. } | Reply::Written(_)), "{reply:?}");
            }
            Self::Delete(key) => drop(client.delete(&[*key])),
            Self::Clear(first) => {
                let mut cursor = Some(0);
                while let Some(at) = cursor {
                    let reply = client.call(&Request::Clear { first: *first, cursor: at });
                    let Reply::Page { next, .. } = reply else { panic!("{reply:?}") };
                    cursor = next;
                }
            }
            Self::Batch(puts) => {
                let puts = puts.iter().map(|(key, value)| Put::new(&[*key], value, 0, Expect::Any)).collect();
                client.run(&mut Many::new(puts)).into_iter().for_each(|put| assert!(put.is_ok()));
            }
            Self::Together(puts) => {
                let named: Vec<([u8; 1], &[u8])> =
                    puts.iter().map(|(key, value)| ([*key], &value[..])).collect();
                let puts: Vec<Inline<'_>> = named
                    .iter()
                    .map(|(key, value)| Inline { key, value: Some(value), expires: 0, expect: Expect::Any })
                    .collect();
                client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok(), "{put:?}"));
            }
            Self::Mixed(changes) => {
                let changes = inlines(changes);
                client.put_all(&changes).into_iter().for_each(|change| assert!(change.is_ok(), "{change:?}"));
            }
            Self::Begun(changes) => {
                let named = begin(store, client.id, changes);
                // Whoever comes meanwhile finds them unfinished, and does not wait for them.
                for (key, _) in changes {
                    assert_eq!(
                        client.call(&Request::Delete { key: vec![*key], expect: Expect::Any }),
                        Reply::Refused(Refusal::Unfinished),
                        "{key}"
                    );
                }
                store.image.psync().expect("memory does not fail");
                store.server.borrow_mut().end_all(&named);
            }
            Self::Left(changes) => {
                let id = store.client(0).id;
                let named = begin(store, id, changes);
                store.server.borrow_mut().disconnected(id).expect("memory does not fail");
                for (key, value) in changes {
                    assert_eq!(client.value(&[*key]).as_ref(), value.as_ref());
                    let told = client.call(&Request::Get { key: vec![*key] });
                    assert_eq!(matches!(told, Reply::Value { .. }), value.is_some(), "{told:?}");
                }
                // It says so too late.
                store.server.borrow_mut().end_all(&named);
            }
            Self::Ahead(changes) => {
                let id = store.client(0).id;
                assert!(prepare_ahead(store, id, changes));
                assert!(client.put(&[changes[0].0], changes[0].1.as_ref().expect("a value")).is_ok());
                store.server.borrow_mut().disconnected(id).expect("memory does not fail");
            }
            Self::Apart(puts) => {
                let put = |(key, value): &(u8, Vec<u8>)| Request::Put {
                    key: vec![*key],
                    len: value.len() as u64,
                    expires: 0,
                    expect: Expect::Any,
                };
                let requests: Vec<Request> = puts.iter().map(put).collect();
                store.server.borrow_mut().prepare(store.now.get(), &requests).expect("memory does not fail");
                puts.iter().for_each(|(key, value)| assert!(client.put(&[*key], value).is_ok()));
            }
            Self::Torn(key, value, written) => torn(store, *key, value, *written),
            Self::Clean(head) => {
                store.server.borrow_mut().clean(*head).expect("nothing else is being cleaned");
                store.settle_down(&mut [client]);
            }
            Self::Resize(buckets) => {
                store.server.borrow_mut().resize(*buckets).expect("room");
                store.settle_down(&mut [client]);
            }
            Self::Grow(buckets) => {
                store.server.borrow_mut().resize(*buckets).expect("room");
                // Cleared and announced; known to everybody; begun.
                for _ in 0..2 {
                    store.server.borrow_mut().step(store.now.get(), 1).expect("memory does not fail");
                    client.attend();
                }
                assert!(store.server.borrow().usage().growing);
            }
            Self::Step(budget) => {
                store.server.borrow_mut().step(store.now.get(), *budget).expect("memory does not fail");
            }
            Self::Grown => store.settle_down(&mut [client]),
            Self::Settle => {
                if let Some(confirm) = client.client.poll_confirm() {
                    client.call(&confirm);
                }
                store.step();
            }
        }
    }
}

fn inlines(changes: &[(u8, Option<Vec<u8>>)]) -> Vec<Inline<'_>> {
    let mut inlines = Vec::new();
    for change in changes {
        let (key, value) = (std::slice::from_ref(&change.0), change.1.as_deref());
        inlines.push(Inline { key, value, expires: 0, expect: Expect::Any });
    }
    inlines
}

/// Whether there are new keys among them, for which entries are kept now.
fn prepare_ahead(store: &Store<'_>, client: ClientId, changes: &[(u8, Option<Vec<u8>>)]) -> bool {
    let ahead = store.server.borrow_mut().prepare_ahead(store.now.get(), client, &inlines(changes));
    ahead.expect("memory does not fail")
}

/// Has the server write them, as for a client that waits itself. A deletion of what is not there changes nothing.
fn begin(store: &Store<'_>, client: ClientId, changes: &[(u8, Option<Vec<u8>>)]) -> Vec<Named> {
    if prepare_ahead(store, client, changes) {
        store.image.psync().expect("memory does not fail");
    }
    let mut done = Vec::new();
    let named = store.server.borrow_mut().begin_all(store.now.get(), client, &inlines(changes), &mut done);
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(named.len(), changes.len());
    named
}

/// A client that dies within its WRITE.
fn torn(store: &Store<'_>, key: u8, value: &[u8], written: usize) {
    let mut dying = store.client(0);
    let put = Request::Put { key: vec![key], len: value.len() as u64, expires: 0, expect: Expect::Any };
    let Reply::Reserved(reserved) = dying.call(&put) else { panic!("room") };
    let place = remanence_kv::format::ObjectAddress {
        salt: SALT,
        head: reserved.head,
        offset: reserved.offset,
        epoch: reserved.epoch,
    };
    let content = remanence_kv::format::object::Content::Value(value);
    let object = remanence_kv::format::object::emit(&place, reserved.version, 0, &[key], content);
    store.image.write(reserved.at + 8, &object[8..written.min(object.len())]);
    let id = dying.id;
    drop(dying);
    store.server.borrow_mut().disconnected(id).expect("memory does not fail");
}

/// What the server tells, and what a client reads by itself, which must be the same.
pub(crate) fn contents<M: Medium>(crashed: &M, options: Options) -> Contents {
    let store = Store::open(crashed, options);
    let mut client = store.client(16);
    let scrubbed = store.server.borrow_mut().scrub(0, 1000).expect("memory does not fail");
    assert_eq!((scrubbed.lost, scrubbed.repaired), (0, 0), "an entry names what is not whole");
    let mut contents = Contents::new();
    for key in client.keys() {
        assert!(!contents.contains_key(&key), "two entries name {key:?}");
        let value = client.value(&key).expect("a key that is listed has a value");
        assert_eq!(client.value(&key).as_ref(), Some(&value), "with its location cached");
        let Reply::Value { value: told, .. } = client.call(&Request::Get { key: key.clone() }) else {
            panic!("the server does not find {key:?}")
        };
        assert_eq!(told, value);
        contents.insert(key, value);
    }
    contents
}

/// What is left can be worked on: everything is written, cleaned, resized and read again.
pub(crate) fn works_on(crashed: &CrashImage, options: Options) {
    let before = contents(crashed, options);
    let store = Store::open(crashed, options);
    let mut client = store.client(16);
    for key in before.keys() {
        client.put(key, b"after").expect("room");
    }
    for head in 0..2 {
        store.server.borrow_mut().clean(head).expect("nothing is being cleaned");
        store.settle_down(&mut [&mut client]);
    }
    store.server.borrow_mut().resize(40).expect("room");
    store.settle_down(&mut [&mut client]);
    assert_eq!(client.keys(), before.keys().cloned().collect::<Vec<_>>());
    for key in before.keys() {
        assert_eq!(client.value(key), Some(b"after".to_vec()));
    }
    let scrubbed = store.server.borrow_mut().scrub(0, 1000).expect("memory does not fail");
    assert_eq!(scrubbed.verified, before.len() as u64);
}

/// A store on which `prepare` was carried out, durable, and what it holds then and after each of `ops`.
pub(crate) fn prepared(
    options: Options,
    domain: PersistenceDomain,
    prepare: &[Op],
    ops: &[Op],
) -> (CrashImage, Vec<Contents>) {
    let prepared = {
        let image = formatted(TINY, 16);
        {
            let store = Store::open(&image, options);
            let mut client = store.client(0);
            prepare.iter().for_each(|op| op.run(&store, &mut client));
        }
        CrashImage::from_bytes(image.bytes(), domain)
    };
    let mut after = vec![Contents::new()];
    prepare.iter().for_each(|op| op.apply(&mut after[0]));
    for op in ops {
        let mut next = after.last().expect("the start").clone();
        op.apply(&mut next);
        after.push(next);
    }
    (prepared, after)
}

/// Carries them out, with a note after each.
pub(crate) fn run_all(image: &CrashImage, options: Options, ops: &[Op]) {
    let store = Store::open(image, options);
    let mut client = store.client(0);
    for (n, op) in ops.iter().enumerate() {
        op.run(&store, &mut client);
        image.note(n as u64 + 1);
    }
}

/// Whether this may be found when the operations that the notes tell of were acknowledged, and the next was under way.
pub(crate) fn fair(after: &[Contents], notes: &[u64], found: &Contents, options: Options) {
    let (whole, next) = (&after[notes.len()], after.get(notes.len() + 1));
    let keys: BTreeSet<&Vec<u8>> = after.iter().flat_map(BTreeMap::keys).chain(found.keys()).collect();
    for key in keys {
        let value = found.get(key);
        let fair = match options.mode {
            remanence_kv::Mode::Durable => {
                value == whole.get(key) || next.is_some_and(|next| value == next.get(key))
            }
            remanence_kv::Mode::Erda => {
                after[..=(notes.len() + 1).min(after.len() - 1)].iter().any(|state| value == state.get(key))
            }
        };
        assert!(fair, "{key:?} is {value:?}, should be {:?} or {next:?}", whole.get(key));
    }
}

pub(crate) fn some(count: u8, len: usize) -> Vec<Op> {
    (0..count).map(|n| Op::Put(n, value(n.into(), len))).collect()
}

/// What was done before, and what is to be crashed.
pub(crate) type Workload = (Vec<Op>, Vec<Op>);

pub(crate) fn every_operation() -> Workload {
    let ops = vec![
        Op::Put(1, value(1, 30)),
        Op::Put(1, value(2, 90)),
        Op::Put(2, value(3, 10)),
        Op::Delete(1),
        Op::Inline(2, value(4, 100)),
        Op::Put(1, value(5, 5)),
        Op::Batch(vec![(1, value(6, 70)), (2, value(7, 7)), (3, value(8, 20))]),
        Op::Settle,
        Op::Put(3, value(9, 20)),
        Op::Delete(3),
        Op::Clear(Some(2)),
        Op::Put(2, value(10, 30)),
        Op::Clear(None),
        Op::Put(1, value(11, 30)),
        Op::Put(3, value(12, 8)),
    ];
    (some(3, 20), ops)
}

/// The server writes for clients in its process.
pub(crate) fn together() -> Workload {
    let ops = vec![
        Op::Together(vec![(1, value(1, 20)), (9, value(2, 6))]),
        Op::Together(vec![(1, value(3, 9))]),
        Op::Delete(9),
        Op::Together(vec![(9, value(4, 12)), (0, value(5, 30))]),
        Op::Together(vec![(7, value(7, 8)), (8, value(8, 40))]),
        Op::Put(9, value(6, 10)),
    ];
    (some(2, 20), ops)
}

/// The same with deletions, and with clients that wait themselves.
pub(crate) fn changes() -> Workload {
    let ops = vec![
        Op::Mixed(vec![(1, None), (9, Some(value(2, 6))), (0, Some(value(3, 30)))]),
        Op::Mixed(vec![(9, None), (1, Some(value(4, 9))), (5, None)]),
        Op::Begun(vec![(1, Some(value(5, 12))), (0, None), (9, Some(value(6, 30)))]),
        Op::Begun(vec![(1, None)]),
        Op::Left(vec![(9, Some(value(7, 8))), (2, None)]),
        Op::Ahead(vec![(6, Some(value(9, 8))), (7, Some(value(10, 8)))]),
        Op::Left(vec![(5, Some(value(11, 7))), (6, Some(value(12, 9)))]),
        Op::Put(9, value(8, 10)),
    ];
    (some(3, 20), ops)
}

/// The same, with fewer words that may or may not be durable at a time.
pub(crate) fn few_changes() -> Workload {
    let ops = vec![
        Op::Mixed(vec![(1, None), (0, Some(value(3, 9)))]),
        Op::Begun(vec![(1, Some(value(5, 6))), (0, None)]),
        Op::Left(vec![(1, None)]),
        Op::Begun(vec![(4, Some(value(6, 7))), (3, Some(value(7, 5)))]),
    ];
    (some(2, 8), ops)
}

pub(crate) fn dying_clients() -> Workload {
    let ops = vec![
        Op::Torn(1, value(1, 100), 70),
        Op::Torn(1, value(2, 100), 8),
        Op::Put(1, value(3, 100)),
        Op::Torn(2, value(4, 40), 60),
        Op::Torn(2, value(5, 40), 30),
        Op::Delete(2),
        Op::Torn(9, value(5, 40), 64),
        Op::Put(9, value(6, 40)),
    ];
    (some(3, 60), ops)
}

pub(crate) fn chunks() -> Workload {
    let ops = vec![
        Op::Put(1, value(1, 1200)),
        Op::Inline(2, value(2, 900)),
        Op::Put(1, value(3, 20)),
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(2, value(4, 700)),
    ];
    (some(3, 60), ops)
}

pub(crate) fn for_mode_erda() -> Workload {
    let ops = vec![
        Op::Put(1, value(1, 30)),
        Op::Put(1, value(2, 90)),
        Op::Put(1, value(3, 10)),
        Op::Settle,
        Op::Together(vec![(1, value(6, 50)), (8, value(7, 9))]),
        Op::Delete(1),
        Op::Inline(2, value(4, 100)),
        Op::Put(7, value(5, 5)),
        Op::Clean(0),
        Op::Clean(1),
        Op::Resize(32),
    ];
    (some(3, 20), ops)
}

pub(crate) fn cleaning() -> Workload {
    let mut prepare = some(12, 60);
    prepare.extend((0..6).map(|n| Op::Put(n, value(100 + u64::from(n), 40))));
    prepare.extend([Op::Delete(2), Op::Delete(9), Op::Settle]);
    let ops = vec![
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(0, value(7, 60)),
        Op::Torn(5, value(8, 60), 50),
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(9, value(9, 10)),
    ];
    (prepare, ops)
}

/// New keys come in batches while the table grows, and values of keys that have just moved.
///
/// So many keys are there before, and so many come at a time.
pub(crate) fn growing(before: u8, each: usize) -> Workload {
    let many = |round: u8, keys: [u8; 4]| {
        let value = |key: u8| value(u64::from(round) << 8 | u64::from(key), 4);
        keys[..each].iter().map(|key| (*key, value(*key))).collect()
    };
    let begun = |round, keys| {
        let puts: Vec<(u8, Vec<u8>)> = many(round, keys);
        Op::Begun(puts.into_iter().map(|(key, value)| (key, Some(value))).collect())
    };
    let ops = vec![
        // Logs have begun: the next values have no wait for that.
        Op::Together(many(7, [0, 1, 2, 3])),
        Op::Grow(40),
        Op::Step(usize::from(before)),
        // No wait comes between the move and these.
        Op::Together(many(1, [0, 1, 2, 3])),
        Op::Batch(many(2, [40, 41, 0, 1])),
        Op::Together(many(3, [42, 43, 40, 2])),
        Op::Batch(many(4, [1, 42, 44, 45])),
        Op::Delete(42),
        begun(8, [60, 61, 1, 62]),
        Op::Apart(many(5, [50, 51, 3, 52])),
        Op::Grown,
        Op::Together(many(6, [46, 47, 0, 42])),
    ];
    (some(before, 4), ops)
}

pub(crate) fn resizing() -> Workload {
    // More keys than a neighbourhood has places: entries are displaced on the way.
    let mut ops: Vec<Op> = (20..30).map(|n| Op::Put(n, value(n.into(), 4))).collect();
    ops[9] = Op::Inline(29, value(29, 4));
    // Those that come later displace those that came before, which are not settled yet.
    ops.push(Op::Together((30..34).map(|n| (n, value(n.into(), 4))).collect()));
    ops.push(Op::Resize(32));
    ops.push(Op::Put(3, value(1, 4)));
    ops.push(Op::Delete(4));
    ops.push(Op::Resize(40));
    ops.push(Op::Put(4, value(2, 4)));
    (some(14, 4), ops)
}
